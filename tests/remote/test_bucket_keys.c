/* test_bucket_keys.c - where keys are found, in which order, and that a file which others may read is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "remote/bucket_keys.h"
#include "remote/url.h"
#include "tests/heard.h"

/* Promise: Keys to object storage are never read from a file that other users can read. */

#define PAIR(id, secret) "aws_access_key_id = " id "\naws_secret_access_key = " secret "\n"

static char home[64];
static heard said;
static struct {
    const char *name;
    char value[10000];
} environment[12];

static const char *variable(const char *name)
{
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++)
        if (environment[i].name != NULL && strcmp(environment[i].name, name) == 0)
            return environment[i].value;
    return NULL;
}

static void set(const char *name, const char *value)
{
    size_t i = 0;
    while (environment[i].name != NULL && strcmp(environment[i].name, name) != 0)
        i++;
    environment[i].name = name;
    snprintf(environment[i].value, sizeof environment[i].value, "%s", value);
}

/* An empty home, and no variables. */
static int begin(void **state)
{
    char path[96];
    (void)state;
    snprintf(home, sizeof home, "/tmp/entrain-keys-XXXXXX");
    if (mkdtemp(home) == NULL) return -1;
    snprintf(path, sizeof path, "%s/.aws", home);
    if (mkdir(path, 0700) != 0) return -1;
    memset(environment, 0, sizeof environment);
    set("HOME", home);
    said = (heard){0};
    eni_log_set_sink(hear, &said);
    return 0;
}

static int end(void **state)
{
    char command[96];
    (void)state;
    eni_log_set_sink(NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", home);
    return system(command);
}

static const char *below_home(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static const char *write_bytes(const char *name, const char *text, size_t bytes, mode_t mode)
{
    const char *path = below_home(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static const char *write_file(const char *name, const char *text, mode_t mode)
{
    return write_bytes(name, text, strlen(text), mode);
}

static eni_keys find(int kind, const char *file)
{
    eni_keys keys;
    if (eni_keys_find(kind, file, variable, &keys) != EN_OK) fail_msg("%s", said.text);
    assert_int_equal(said.lines, 0);
    return keys;
}

static void expect(const eni_keys *keys, const char *id, const char *secret, const char *token,
                   const char *region)
{
    assert_string_equal(keys->id, id);
    assert_string_equal(keys->secret, secret);
    assert_string_equal(keys->token, token);
    assert_string_equal(keys->region, region);
}

/* Refused in one sentence with these parts, and without the secret of these tests. */
static void expect_refused(int kind, const char *file, const char *part, const char *part_too)
{
    eni_keys keys;
    assert_int_equal(eni_keys_find(kind, file, variable, &keys), EN_EINVAL);
    assert_int_equal(said.lines, 1);
    if (strstr(said.text, part) == NULL || strstr(said.text, part_too) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", said.text, part, part_too);
    assert_null(strstr(said.text, "hush"));
    said = (heard){0};
}

/* ---- finding them ---- */

static void variables(void **state)
{
    (void)state;
    set("AWS_ACCESS_KEY_ID", "ID");
    set("AWS_SECRET_ACCESS_KEY", "hush");
    set("OSS_ACCESS_KEY_ID", "OSSID");
    set("OSS_ACCESS_KEY_SECRET", "osshush");
    eni_keys keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "");
    assert_string_equal(keys.from, "AWS_ACCESS_KEY_ID");
    keys = find(ENI_OSS, NULL);
    expect(&keys, "OSSID", "osshush", "", "");
    set("AWS_SESSION_TOKEN", "token+/==");
    set("AWS_DEFAULT_REGION", "eu-west-1");
    set("OSS_SESSION_TOKEN", "osstoken");
    set("OSS_REGION", "cn-hangzhou");
    keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "token+/==", "eu-west-1");
    keys = find(ENI_OSS, NULL);
    expect(&keys, "OSSID", "osshush", "osstoken", "cn-hangzhou");
    set("AWS_REGION", "eu-west-2"); /* over AWS_DEFAULT_REGION */
    keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "token+/==", "eu-west-2");
}

static void profiles_of_s3(void **state)
{
    (void)state;
    write_file(".aws/credentials",
               "[default]\n" PAIR("ID", "hush") "[other]\n" PAIR(
                   "OTHER", "hush2") "aws_session_token = t\nregion=r-1\n",
               0600);
    eni_keys keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "");
    assert_memory_equal(keys.from, home, strlen(home));
    set("AWS_PROFILE", "other");
    keys = find(ENI_S3, NULL);
    expect(&keys, "OTHER", "hush2", "t", "r-1");
    set("AWS_REGION", "r-2");
    keys = find(ENI_S3, NULL);
    expect(&keys, "OTHER", "hush2", "t", "r-2");
    set("AWS_SHARED_CREDENTIALS_FILE", write_file("elsewhere", "[other]\n" PAIR("THERE", "hush3"), 0400));
    keys = find(ENI_S3, NULL);
    expect(&keys, "THERE", "hush3", "", "r-2");
    set("AWS_ACCESS_KEY_ID", "VARIABLE"); /* before every file but --data-keys */
    set("AWS_SECRET_ACCESS_KEY", "hush4");
    keys = find(ENI_S3, NULL);
    expect(&keys, "VARIABLE", "hush4", "", "r-2");
    keys = find(
        ENI_S3,
        write_file("given", "[default]\n" PAIR("GIVEN", "hush5") "[other]\n" PAIR("GIVEN2", "hush6"), 0600));
    expect(&keys, "GIVEN2", "hush6", "", "r-2");
}

static void the_profile_of_oss(void **state)
{
    (void)state;
    write_file(".ossutilconfig",
               "[Credentials]\nlanguage=EN\nendpoint=oss-cn-hangzhou.aliyuncs.com\n"
               "accessKeyID=ID\naccessKeySecret=hush\nstsToken=token\n[Bucket-Endpoint]\naccessKeyID=no\n",
               0600);
    set("AWS_PROFILE", "of-aws-alone");
    eni_keys keys = find(ENI_OSS, NULL);
    expect(&keys, "ID", "hush", "token", "");
}

static void a_file_of_its_own(void **state)
{
    (void)state;
    static const char *const names[][3] = {
        {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"},
        {"access_key_id", "access_key_secret", "session_token"},
        {"access_key_id", "secret_access_key", "session_token"},
        {"accessKeyID", "accessKeySecret", "stsToken"},
        {"ACCESSKEYID", "accesskeysecret", "STSTOKEN"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int kind = ENI_S3; kind <= ENI_OSS; kind++) {
            char text[256];
            snprintf(text, sizeof text, "[default]\n%s=ID\n%s =hush\n%s= t\nregion = r-1\n", names[i][0],
                     names[i][1], names[i][2]);
            const eni_keys keys = find(kind, write_file("keys", text, 0600));
            expect(&keys, "ID", "hush", "t", "r-1");
        }
}

/* It may be readable by all, so only the region is taken from it, no keys. */
static void the_region_of_a_configuration(void **state)
{
    (void)state;
    set("AWS_ACCESS_KEY_ID", "ID");
    set("AWS_SECRET_ACCESS_KEY", "hush");
    write_file(".aws/config",
               "[default]\nregion = r-1\naws_session_token = no\n[profile other]\nregion = r-2\n", 0644);
    eni_keys keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "r-1");
    set("AWS_PROFILE", "other");
    keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "r-2");
    set("AWS_CONFIG_FILE", write_file("elsewhere", "[profile other]\nregion = r-3\n", 0644));
    keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "r-3");
    set("AWS_REGION", "r-4");
    keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "r-4");
    memset(environment, 0, sizeof environment);
    set("HOME", home);
    write_file(".aws/config", "[default]\nregion = r-1\n" PAIR("OPEN", "hush"), 0644);
    expect_refused(ENI_S3, NULL, "/.aws/config: ", "chmod 600");
}

/* ~/.aws/config may have all of it, as `aws configure` leaves a profile. */
static void keys_of_a_configuration(void **state)
{
    (void)state;
    write_file(".aws/config",
               "[profile other]\nregion = r-2\nendpoint_url = https://h:9\n" PAIR(
                   "ID", "hush") "[profile sso]\nsso_session = me\nregion = r-3\n",
               0600);
    set("AWS_PROFILE", "other");
    eni_keys keys = find(ENI_S3, NULL);
    expect(&keys, "ID", "hush", "", "r-2");
    assert_string_equal(keys.endpoint, "https://h:9");
    assert_string_equal(keys.endpoint_by, "endpoint_url");
    set("AWS_ENDPOINT_URL", "https://a");
    keys = find(ENI_S3, NULL);
    assert_string_equal(keys.endpoint, "https://a");
    assert_string_equal(keys.endpoint_by, "AWS_ENDPOINT_URL");
    set("AWS_ENDPOINT_URL_S3", "https://b");
    keys = find(ENI_S3, NULL);
    assert_string_equal(keys.endpoint, "https://b");
    assert_string_equal(keys.endpoint_by, "AWS_ENDPOINT_URL_S3");
    set("AWS_PROFILE", "sso");
    expect_refused(ENI_S3, NULL, "sso_session", "aws configure export-credentials");
    keys = find(ENI_S3, "none"); /* a public bucket */
    assert_true(keys.is_none);
    expect(&keys, "", "", "", "");
    write_file(".aws/config", "\xef\xbb\xbf[profile sso]\nregion = r-4\n" PAIR("ID", "hush"), 0600);
    keys = find(ENI_S3, NULL); /* after a byte order mark */
    expect(&keys, "ID", "hush", "", "r-4");
}

/* ---- the format of a file ---- */

static void how_files_are_written(void **state)
{
    (void)state;
    static const struct {
        const char *text, *secret, *token;
    } good[] = {
        {"[default]\naws_access_key_id=ID\naws_secret_access_key=hush", "hush", ""}, /* no end of line */
        {"[default]\r\naws_access_key_id=ID\r\naws_secret_access_key=hush\r\n", "hush", ""},
        {"# of me\n; too\n\n[default]\n#aws_session_token=no\n ; aws_session_token=no\n" PAIR("ID", "hush"),
         "hush", ""},
        {"aws_access_key_id = NO\n[default]\n" PAIR("ID", "hush"), "hush", ""}, /* before all sections */
        {"  [ default ]\t\n\t" PAIR("ID", "hush"), "hush", ""},
        {"[default] # the one\n" PAIR("ID", "hush") "[next] ; [another]\naws_session_token=no\n", "hush", ""},
        {"[default]\n" PAIR("ID", "hush=/+==") "more\n=\n==\n[]\n]\n[\n", "hush=/+==", ""},
        {"[default]\n" PAIR("ID", "hush") PAIR("ID2", "hush2"), "hush", ""}, /* the first counts */
        {"[default]\n" PAIR("ID", "hush") "[next]\n" PAIR("NO", "hush3") "[default]\n" PAIR(
             "ID2", "hush2") "aws_session_token = t\n",
         "hush", "t"}, /* twice: as one, and the first counts */
        {"[defaults]\n" PAIR("NO", "hush2") "[DEFAULT]\n" PAIR("NO", "hush2") "[default]\n" PAIR("ID",
                                                                                                 "hush"),
         "hush", ""},
        {"\xef\xbb\xbf[default]\r\n" PAIR("ID", "hush"), "hush", ""}, /* Notepad's byte order mark */
        {"\xef\xbb\xbf# of me\n[default]\n" PAIR("ID", "hush"), "hush", ""},
        {"[default]\naws_access_key_id_too = NO\n" PAIR("ID", "hush") "aws_session_token =\n", "hush", ""},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const eni_keys keys = find(ENI_S3, write_file("keys", good[i].text, 0600));
        expect(&keys, "ID", good[i].secret, good[i].token, "");
    }
}

static void a_parsed_text(void **state)
{
    (void)state;
    eni_keys keys = {.id = "KEPT"};
    static const char text[] = "[a]\n" PAIR("ID", "hush");
    assert_false(eni_keys_parse(text, sizeof text - 1, "b", &keys));
    assert_string_equal(keys.secret, "");
    assert_true(eni_keys_parse(text, sizeof text - 1, "a", &keys)); /* only members that are empty */
    assert_string_equal(keys.id, "KEPT");
    assert_string_equal(keys.secret, "hush");
    assert_false(eni_keys_parse("", 0, "a", &keys));
    assert_false(eni_keys_parse("[", 1, "", &keys));
    assert_true(eni_keys_parse("[]", 2, "", &keys));
    assert_true(eni_keys_parse("\xef\xbb\xbf[]", 5, "", &keys));
    assert_false(eni_keys_parse("\xef\xbb[]", 4, "", &keys)); /* half a mark does not count */
    assert_false(eni_keys_parse("\xef\xbb\xbf", 3, "", &keys));
}

/* ---- refusals ---- */

static void no_keys(void **state)
{
    (void)state;
    expect_refused(ENI_S3, NULL, "AWS_SECRET_ACCESS_KEY", "~/.aws/credentials");
    expect_refused(ENI_OSS, NULL, "OSS_ACCESS_KEY_SECRET", "~/.ossutilconfig");
    write_file(".aws/credentials", "[other]\n" PAIR("ID", "hush"), 0600);
    expect_refused(ENI_S3, NULL, "s3://", "--data-keys");
    memset(environment, 0, sizeof environment); /* no HOME either */
    expect_refused(ENI_S3, NULL, "s3://", "--data-keys");
}

static void what_was_asked_for_is_not_there(void **state)
{
    (void)state;
    expect_refused(ENI_S3, below_home("none"), "/none", "");
    expect_refused(ENI_S3, write_file("keys", "[other]\n" PAIR("ID", "hush"), 0600), "[default]",
                   "aws_secret_access_key");
    expect_refused(ENI_OSS, write_file("keys", "", 0600), "[default]", "accessKeySecret");
    set("AWS_PROFILE", "other");
    expect_refused(ENI_S3, NULL, "AWS_PROFILE=other: ", "[other]");
    write_file(".aws/credentials", "[default]\n" PAIR("ID", "hush"), 0600);
    expect_refused(ENI_S3, NULL, "AWS_PROFILE=other: ", "aws_access_key_id");
}

static void half_a_key(void **state)
{
    (void)state;
    expect_refused(ENI_S3, write_file("keys", "[default]\naws_access_key_id=ID\n", 0600), "[default]",
                   "aws_secret_access_key");
    write_file(".aws/credentials", "[default]\naws_secret_access_key = hush\n", 0600);
    expect_refused(ENI_S3, NULL, "/.aws/credentials", "aws_access_key_id");
    write_file(".ossutilconfig", "[Credentials]\naccessKeyID=ID\naccessKeySecret=\n", 0600);
    expect_refused(ENI_OSS, NULL, "[Credentials]", "accessKeySecret");
    set("AWS_ACCESS_KEY_ID", "ID");
    expect_refused(ENI_S3, NULL, "AWS_ACCESS_KEY_ID is set", "AWS_SECRET_ACCESS_KEY is not");
    set("OSS_ACCESS_KEY_SECRET", "hush");
    expect_refused(ENI_OSS, NULL, "OSS_ACCESS_KEY_SECRET is set", "OSS_ACCESS_KEY_ID is not");
}

static void files_that_others_may_read(void **state)
{
    (void)state;
    static const mode_t modes[] = {0644, 0640, 0660, 0604, 0620, 0602, 0610, 0601};
    char number[8];
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        snprintf(number, sizeof number, "%04o", (unsigned)modes[i]);
        expect_refused(ENI_S3, write_file("keys", "[default]\n" PAIR("ID", "hush"), modes[i]), number,
                       "chmod 600");
        write_file(".aws/credentials", "[default]\n" PAIR("ID", "hush"), modes[i]);
        expect_refused(ENI_S3, NULL, number, "/.aws/credentials");
        write_file(".ossutilconfig", "[Credentials]\naccessKeyID=ID\naccessKeySecret=hush\n", modes[i]);
        expect_refused(ENI_OSS, NULL, number, "/.ossutilconfig");
    }
}

static void a_file_of_another_user(void **state)
{
    (void)state;
    const char *path = write_file("keys", "[default]\n" PAIR("ID", "hush"), 0600);
    if (geteuid() != 0 || chown(path, 12345, 12345) != 0) skip(); /* only root can make one */
    expect_refused(ENI_S3, path, "/keys", "chown");
}

static void files_that_are_none(void **state)
{
    (void)state;
    static char large[65536];
    char link[128];
    memset(large, '\n', sizeof large);
    memcpy(large, "[default]\n" PAIR("ID", "hush"), strlen("[default]\n" PAIR("ID", "hush")));
    expect_refused(ENI_S3, write_bytes("large", large, sizeof large, 0600), "/large", "too large");
    const eni_keys keys = find(ENI_S3, write_bytes("large", large, sizeof large - 1, 0600));
    expect(&keys, "ID", "hush", "", "");
    assert_int_equal(mkfifo(below_home("fifo"), 0600), 0);
    expect_refused(ENI_S3, below_home("fifo"), "/fifo", "regular file"); /* at once */
    expect_refused(ENI_S3, home, home, "regular file");
    expect_refused(ENI_S3, "/dev/null", "/dev/null", "regular file");
    snprintf(link, sizeof link, "%s/loop", home);
    assert_int_equal(symlink(link, link), 0);
    expect_refused(ENI_S3, link, "/loop", "");
    write_file("file", "", 0600);
    expect_refused(ENI_S3, below_home("file/keys"), "/file/keys", "");
}

/* Headers are lines: characters that would end one, or begin another. */
static void keys_that_no_header_takes(void **state)
{
    (void)state;
    static const char *const bad[] = {"a b",   "a\tb",     "a\rb",         "a\x1b[2J",
                                      "a\x7f", "\xc3\xa4", "a\nX-Other: b"};
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int k = 0; k < 3; k++) {
            for (int other = 0; other < 3; other++)
                set(names[other], other == k ? bad[i] : "hush");
            expect_refused(ENI_S3, NULL, "AWS_ACCESS_KEY_ID", "blanks");
        }
    expect_refused(ENI_S3, write_file("keys", "[default]\n" PAIR("ID", "hush hush"), 0600), "/keys",
                   "blanks");
    expect_refused(ENI_S3, write_file("keys", "[default]\n" PAIR("ID", "hush # mine"), 0600), "/keys",
                   "blanks");
}

/* The longest fit; longer ones are refused, not ignored. */
static void long_keys(void **state)
{
    (void)state;
    static const struct {
        const char *name, *in_file;
        size_t bytes;
    } parts[] = {{"AWS_ACCESS_KEY_ID", "aws_access_key_id", ENI_KEY_TEXT_MAX},
                 {"AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", ENI_KEY_TEXT_MAX},
                 {"AWS_SESSION_TOKEN", "aws_session_token", ENI_KEY_TOKEN_MAX},
                 {"AWS_REGION", "region", 64}};
    char value[9000], text[10000];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        memset(environment, 0, sizeof environment);
        set("AWS_ACCESS_KEY_ID", "ID");
        set("AWS_SECRET_ACCESS_KEY", "hush");
        memset(value, 'v', sizeof value);
        value[parts[i].bytes - 1] = '\0';
        set(parts[i].name, value);
        const eni_keys keys = find(ENI_S3, NULL);
        assert_string_equal(i == 0   ? keys.id
                            : i == 1 ? keys.secret
                            : i == 2 ? keys.token
                                     : keys.region,
                            value);
        strcat(value, "v");
        set(parts[i].name, value);
        expect_refused(ENI_S3, NULL, "AWS_ACCESS_KEY_ID", "longer");
        memset(environment, 0, sizeof environment);
        snprintf(text, sizeof text, "[default]\n%s = %s\n" PAIR("ID", "hush"), parts[i].in_file, value);
        expect_refused(ENI_S3, write_file("keys", text, 0600), "/keys", "longer");
    }
}

#define A_TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {A_TEST(variables),
                                       A_TEST(profiles_of_s3),
                                       A_TEST(the_profile_of_oss),
                                       A_TEST(a_file_of_its_own),
                                       A_TEST(the_region_of_a_configuration),
                                       A_TEST(keys_of_a_configuration),
                                       A_TEST(how_files_are_written),
                                       A_TEST(a_parsed_text),
                                       A_TEST(no_keys),
                                       A_TEST(what_was_asked_for_is_not_there),
                                       A_TEST(half_a_key),
                                       A_TEST(files_that_others_may_read),
                                       A_TEST(a_file_of_another_user),
                                       A_TEST(files_that_are_none),
                                       A_TEST(keys_that_no_header_takes),
                                       A_TEST(long_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
