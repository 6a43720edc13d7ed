/* test_url.c - URLs of buckets and endpoints: accepted and refused ones, and the encoding of keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/options.h"
#include "remote/url.h"
#include "tests/heard.h"

#define TEN      "abcdefghij"
#define SIXTY    TEN TEN TEN TEN TEN TEN
#define HANGZHOU "oss-cn-hangzhou.aliyuncs.com"

static heard said;

static int listen_to_log(void **state)
{
    (void)state;
    said = (heard){0};
    eni_log_set_sink(hear, &said);
    return 0;
}

static int stop_listening(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    return 0;
}

/* One line, which has all of these parts. */
static void expect_said(const char *of, const char *const part[3])
{
    if (said.lines != 1) fail_msg("%s: %d lines, the last \"%s\"", of, said.lines, said.text);
    for (int i = 0; i < 3 && part[i] != NULL; i++)
        if (strstr(said.text, part[i]) == NULL) fail_msg("%s: \"%s\" lacks \"%s\"", of, said.text, part[i]);
    said = (heard){0};
}

/* ---- names of objects ---- */

static void paths_are_no_urls(void **state)
{
    (void)state;
    static const char *const urls[] = {"s3://b/k", "oss://b.h/k", "s3://", "gs://b", "S3://b", "a+b-c.d://x"};
    static const char *const paths[] = {"", "data", "/data", "./s3://b", "s3:/b", "://b", "a b://c", "s3"};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++)
        if (!eni_is_url(urls[i])) fail_msg("%s is a URL", urls[i]);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (eni_is_url(paths[i])) fail_msg("%s is no URL", paths[i]);
    assert_false(eni_is_url(NULL));
}

static void good_urls(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int kind;
        const char *bucket, *host, *key;
    } good[] = {
        {"s3://abc", ENI_S3, "abc", "", ""},
        {"s3://abc/", ENI_S3, "abc", "", ""},
        {"s3://a-b.c1/d/e.bin", ENI_S3, "a-b.c1", "", "d/e.bin"},
        {"s3://" SIXTY "abc/k", ENI_S3, SIXTY "abc", "", "k"},
        {"s3://abc//a//b/", ENI_S3, "abc", "", "/a//b/"},
        {"s3://abc/../x?y#z%41+ \xe6\x95\xb0", ENI_S3, "abc", "",
         "../x?y#z%41+ \xe6\x95\xb0"}, /* as it stands */
        {"s3://abc/s3://d", ENI_S3, "abc", "", "s3://d"},
        {"oss://abc." HANGZHOU, ENI_OSS, "abc", HANGZHOU, ""},
        {"oss://abc." HANGZHOU "/d/e", ENI_OSS, "abc", HANGZHOU, "d/e"},
        {"oss://1b3.h/d.e", ENI_OSS, "1b3", "h", "d.e"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        eni_remote_url url;
        if (eni_remote_url_parse("--data", good[i].text, &url) != EN_OK)
            fail_msg("%s: %s", good[i].text, said.text);
        assert_int_equal(url.kind, good[i].kind);
        assert_string_equal(url.bucket, good[i].bucket);
        assert_string_equal(url.host, good[i].host);
        assert_string_equal(url.key, good[i].key);
    }
    assert_int_equal(said.lines, 0);
}

static void a_key_of_1024_bytes_and_of_one_more(void **state)
{
    (void)state;
    char text[2000] = "s3://abc/";
    eni_remote_url url;
    memset(text + 9, 'k', 1024);
    assert_int_equal(eni_remote_url_parse("--data", text, &url), EN_OK);
    assert_int_equal(strlen(url.key), 1024);
    text[9 + 1024] = 'k';
    assert_int_equal(eni_remote_url_parse("--data", text, &url), EN_EINVAL);
    expect_said("a long key", (const char *const[3]){"--data=s3://abc/kkk", "1024 bytes"});
}

static void bad_urls_are_one_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part[3];
    } bad[] = {
        {"gs://abc/d", {"s3://BUCKET/PREFIX"}},
        {"https://abc/d", {"s3://BUCKET/PREFIX", "oss://BUCKET.HOST/PREFIX"}},
        {"S3://abc", {"s3://BUCKET/PREFIX"}},
        {"s3://", {"\"\"", "s3://BUCKET/PREFIX"}},
        {"s3:///d", {"\"\""}},
        {"s3://ab/d", {"\"ab\""}},
        {"s3://" SIXTY "abcd/d", {SIXTY "abcd\""}},
        {"s3://Abc/d", {"\"Abc\"", "lower-case"}},
        {"s3://a_b/d", {"\"a_b\""}},
        {"s3://-abc/d", {"\"-abc\""}},
        {"s3://abc./d", {"\"abc.\""}},
        {"s3://a c/d", {"\"a c\""}},
        {"s3://me:secret@abc/d", {"63"}},
        {"s3://abc:80/d", {"\"abc:80\""}},
        {"s3://abc?x/d", {"\"abc?x\""}},
        {"oss://abc/d", {"oss://abc.HOST/PREFIX", HANGZHOU}},
        {"oss://abc./d", {".HOST/PREFIX"}},
        {"oss://abc.-h/d", {".HOST/PREFIX"}},
        {"oss://abc.h:80/d", {".HOST/PREFIX"}},
        {"oss://abc.h@evil.com/d", {".HOST/PREFIX"}},
        {"oss://." HANGZHOU "/d", {"\"\"", "oss://BUCKET.HOST/PREFIX"}},
        {"s3://abc/a\nb", {"control characters", "abc/a\\x0ab"}},
        {"s3://abc/a\x7f", {"control characters"}},
        {"s3://abc/\xff", {"UTF-8", "s3://abc/\\xff"}},
        {"s3://abc/\xc2\x9b", {"control characters"}}, /* a terminal obeys it as ESC [ */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        eni_remote_url url;
        const char *const *part = bad[i].part;
        if (eni_remote_url_parse("--init", bad[i].text, &url) != EN_EINVAL)
            fail_msg("%s is taken", bad[i].text);
        assert_memory_equal(said.text, "--init=", 7);
        if (strpbrk(bad[i].text, "\n\x7f\xc2\xff") == NULL) /* those are escaped in a log */
            assert_memory_equal(said.text + 7, bad[i].text, strlen(bad[i].text));
        expect_said(bad[i].text, part);
    }
}

static void a_long_value_is_cut_in_the_message(void **state)
{
    (void)state;
    char text[4000];
    eni_remote_url url;
    memset(text, 'A', sizeof text);
    memcpy(text, "s3://", 5);
    text[sizeof text - 1] = '\0';
    assert_int_equal(eni_remote_url_parse("--data", text, &url), EN_EINVAL);
    assert_true(strlen(said.text) < 600);
    expect_said("a long bucket", (const char *const[3]){"63", "s3://BUCKET/PREFIX"});
    memcpy(text, "oss://abc.", 10);
    assert_int_equal(eni_remote_url_parse("--data", text, &url), EN_EINVAL);
    expect_said("a long host", (const char *const[3]){".HOST/PREFIX"});
}

/* ---- the destination of requests ---- */

static eni_remote_url parse(const char *text)
{
    eni_remote_url url;
    assert_int_equal(eni_remote_url_parse("--data", text, &url), EN_OK);
    return url;
}

static void hosts_and_regions(void **state)
{
    (void)state;
    static const struct {
        const char *url, *endpoint, *region;
        const char *host, *in_region;
        bool is_plain, has_bucket_in_path;
    } good[] = {
        {"s3://abc", NULL, NULL, "abc.s3.us-east-1.amazonaws.com", "us-east-1", false, false},
        {"s3://abc", NULL, "eu-west-3", "abc.s3.eu-west-3.amazonaws.com", "eu-west-3", false, false},
        {"s3://a.b.c", NULL, "eu-west-3", "s3.eu-west-3.amazonaws.com", "eu-west-3", false, true},
        {"s3://abc", NULL, "cn-north-1", "abc.s3.cn-north-1.amazonaws.com.cn", "cn-north-1", false, false},
        {"s3://a.bc", NULL, "cn-north-1", "s3.cn-north-1.amazonaws.com.cn", "cn-north-1", false, true},
        {"oss://abc." HANGZHOU, NULL, NULL, "abc." HANGZHOU, "cn-hangzhou", false, false},
        {"oss://abc." HANGZHOU, NULL, "eu-west-1", "abc." HANGZHOU, "cn-hangzhou", false, false},
        {"oss://abc.oss-cn-hangzhou-internal.aliyuncs.com", NULL, NULL,
         "abc.oss-cn-hangzhou-internal.aliyuncs.com", "cn-hangzhou", false, false},
        {"oss://abc.oss-us-west-1.aliyuncs.com", NULL, NULL, "abc.oss-us-west-1.aliyuncs.com", "us-west-1",
         false, false},
        {"oss://abc.data.example.com", NULL, "cn-shanghai", "abc.data.example.com", "cn-shanghai", false,
         false},
        /* acceleration has one name for all regions */
        {"oss://abc.oss-accelerate.aliyuncs.com", NULL, "cn-shanghai", "abc.oss-accelerate.aliyuncs.com",
         "cn-shanghai", false, false},
        {"oss://abc.oss-accelerate-overseas.aliyuncs.com", NULL, "cn-shanghai",
         "abc.oss-accelerate-overseas.aliyuncs.com", "cn-shanghai", false, false},
        {"oss://abc.oss-internal.aliyuncs.com", NULL, "cn-shanghai", "abc.oss-internal.aliyuncs.com",
         "cn-shanghai", false, false},
        {"oss://abc.oss-.aliyuncs.com", NULL, "cn-shanghai", "abc.oss-.aliyuncs.com", "cn-shanghai", false,
         false},
        {"s3://abc", "https://minio.example.com:9000", NULL, "minio.example.com:9000", "us-east-1", false,
         true},
        {"s3://abc", "https://minio.example.com/", "x1", "minio.example.com", "x1", false, true},
        {"s3://abc", "https://a_b-c.d:65535", NULL, "a_b-c.d:65535", "us-east-1", false, true},
        {"oss://abc." HANGZHOU, "https://10.0.0.1", NULL, "10.0.0.1", "cn-hangzhou", false, true},
        {"s3://abc", "https://[fe80::1]:9000", NULL, "[fe80::1]:9000", "us-east-1", false, true},
        {"s3://abc", "http://127.0.0.1:9000", NULL, "127.0.0.1:9000", "us-east-1", true, true},
        {"s3://abc", "http://127.1.2.3", NULL, "127.1.2.3", "us-east-1", true, true},
        {"s3://abc", "http://localhost", NULL, "localhost", "us-east-1", true, true},
        {"s3://abc", "http://LocalHost:9000/", NULL, "LocalHost:9000", "us-east-1", true, true},
        {"s3://abc", "http://[::1]", NULL, "[::1]", "us-east-1", true, true},
        {"s3://abc", "http://[::1]:9000", NULL, "[::1]:9000", "us-east-1", true, true},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const eni_remote_url url = parse(good[i].url);
        eni_remote_endpoint place;
        if (eni_remote_endpoint_find(&url, "--data-endpoint", good[i].endpoint, good[i].region, &place) !=
            EN_OK)
            fail_msg("%s, %s: %s", good[i].url, good[i].endpoint, said.text);
        assert_string_equal(place.host, good[i].host);
        assert_string_equal(place.region, good[i].in_region);
        assert_int_equal(place.is_plain, good[i].is_plain);
        assert_int_equal(place.has_bucket_in_path, good[i].has_bucket_in_path);
    }
    assert_int_equal(said.lines, 0);
}

static void bad_endpoints_are_one_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *endpoint, *part;
    } bad[] = {
        {"", "https://HOST "},
        {"minio.example.com", "https://HOST "},
        {"ftp://a.b", "https://HOST "},
        {"HTTP://127.0.0.1", "https://HOST "},
        {"httpx://127.0.0.1", "https://HOST "},
        {"x://y/http://127.0.0.1", "https://HOST "},
        {"https://", "no path"},
        {"https:///", "no path"},
        {"https://:443", "no path"},
        {"https://a.b/c", "no path"},
        {"https://me@a.b", "no path"},
        {"https://a.b?x", "no path"},
        {"https://a.b#x", "no path"},
        {"https://a%2eb", "no path"},
        {"https://a b", "no path"},
        {"https://a\nHost: b", "no path"},
        {"https://a\\b", "no path"},
        {"https://a.b:", "no path"},
        {"https://a.b:0", "no path"},
        {"https://a.b:65536", "no path"},
        {"https://a.b:4294967739", "no path"},
        {"https://a.b:x", "no path"},
        {"https://a.b:80:80", "no path"},
        {"https://fe80::1", "no path"},
        {"https://[fe80::1", "no path"},
        {"https://[fe80::1]x", "no path"},
        {"https://[fe80::1]x:80", "no path"},
        {"http://user@127.0.0.1", "no path"},
        {"http://127.0.0.1:80@evil.com", "no path"},
        {"http://127.0.0.1#.evil.com", "no path"},
        {"http://minio.example.com", "this host"},
        {"http://10.0.0.1:9000", "this host"},
        {"http://localhost.evil.com", "this host"},
        {"http://127.0.0.1.evil.com", "this host"},
        {"http://127.0.0.1evil.com", "this host"},
        {"http://evil.com.127.0.0.1", "this host"},
        {"http://127.+0.0.1", "this host"}, /* names, not addresses */
        {"http://127.-1.0.1", "this host"},
        {"http://127.999.0.1", "this host"},
        {"http://127.0.1", "this host"},
        {"http://1270.0.0.1", "this host"},
        {"http://0.0.0.0", "this host"},
        {"http://[::2]:9000", "this host"},
        {"http://[::1%25eth0]", "no path"},
    };
    const eni_remote_url url = parse("s3://abc");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        eni_remote_endpoint place;
        if (eni_remote_endpoint_find(&url, "--data-endpoint", bad[i].endpoint, NULL, &place) != EN_EINVAL)
            fail_msg("%s is taken", bad[i].endpoint);
        const char *const part[3] = {
            "--data-endpoint=", strchr(bad[i].endpoint, '\n') ? "\\x0aHost: b" : bad[i].endpoint,
            bad[i].part};
        expect_said(bad[i].endpoint, part);
    }
}

static void long_hosts_are_refused(void **state)
{
    (void)state;
    char text[600] = "https://", host[400];
    eni_remote_endpoint place;
    eni_remote_url url = parse("s3://abc");
    memset(host, 'h', sizeof host);
    host[ENI_REMOTE_HOST - 1] = '\0';
    strcat(text, host);
    assert_int_equal(eni_remote_endpoint_find(&url, "--data-endpoint", text, NULL, &place), EN_OK);
    assert_string_equal(place.host, host);
    strcat(text, "h");
    assert_int_equal(eni_remote_endpoint_find(&url, "--data-endpoint", text, NULL, &place), EN_EINVAL);
    expect_said("a long endpoint", (const char *const[3]){"no path"});
    snprintf(text, sizeof text, "oss://abc.%s", host);
    url = parse(text); /* fits alone, but not with the bucket in front */
    assert_int_equal(eni_remote_endpoint_find(&url, "--data-endpoint", NULL, "cn-hangzhou", &place),
                     EN_EINVAL);
    expect_said("a long host", (const char *const[3]){"too long", "abc.hhh"});
}

static void bad_regions_are_one_sentence(void **state)
{
    (void)state;
    static const char *const bad[] = {"-x",  ".evil.com", "a/b",      "evil.com/", "a b",
                                      "a@b", "a?",        "\xc3\xa4", "a\nb",      SIXTY "abcd"};
    const eni_remote_url s3 = parse("s3://abc"), oss = parse("oss://abc.example.com");
    eni_remote_endpoint place;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (eni_remote_endpoint_find(&s3, "--data-endpoint", NULL, bad[i], &place) != EN_EINVAL)
            fail_msg("%s is taken", bad[i]);
        expect_said(bad[i],
                    (const char *const[3]){"AWS_REGION, AWS_DEFAULT_REGION or the profile", "region"});
        if (eni_remote_endpoint_find(&oss, "--data-endpoint", NULL, bad[i], &place) != EN_EINVAL)
            fail_msg("%s is taken", bad[i]);
        expect_said(bad[i], (const char *const[3]){"OSS_REGION or the profile", "region"});
    }
    assert_int_equal(eni_remote_endpoint_find(&oss, "--data-endpoint", NULL, NULL, &place), EN_EINVAL);
    expect_said("no region", (const char *const[3]){"oss://abc.example.com", "OSS_REGION"});
    const eni_remote_url internal = parse("oss://abc.oss-internal.aliyuncs.com");
    assert_int_equal(eni_remote_endpoint_find(&internal, "--data-endpoint", NULL, NULL, &place), EN_EINVAL);
    expect_said("no region", (const char *const[3]){"oss://abc.oss-internal.aliyuncs.com", "OSS_REGION"});
}

/* ---- encoding in URLs ---- */

static void all_bytes_come_back(void **state)
{
    (void)state;
    char text[256], written[3 * 256 + 1];
    for (int i = 1; i < 256; i++)
        text[i - 1] = (char)i;
    text[255] = '\0';
    for (int keeps_slash = 0; keeps_slash < 2; keeps_slash++) {
        written[0] = '\0';
        assert_true(eni_url_add(written, sizeof written, text, keeps_slash));
        assert_int_equal(
            strspn(written, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%/"),
            strlen(written));
        assert_int_equal(strchr(written, '/') != NULL, keeps_slash);
        assert_int_equal(strstr(written, "%2F") != NULL, !keeps_slash);
        assert_true(eni_url_decode(written));
        assert_string_equal(written, text);
    }
    for (int i = 1; i < 256; i++) { /* each of them alone, too */
        char one[2] = {(char)i}, out[4] = "";
        assert_true(eni_url_add(out, sizeof out, one, false));
        assert_true(strlen(out) == 1 || strlen(out) == 3);
        assert_true(eni_url_decode(out));
        assert_string_equal(out, one);
    }
}

static void what_is_written(void **state)
{
    (void)state;
    char out[64] = "x=";
    assert_true(eni_url_add(out, sizeof out, "a b+c%d/\xe6\x95\xb0~", false));
    assert_string_equal(out, "x=a%20b%2Bc%25d%2F%E6%95%B0~");
    char small[6] = "ab";
    assert_true(eni_url_add(small, sizeof small, "/", false)); /* "ab%2F" and its 0 fit */
    assert_string_equal(small, "ab%2F");
    assert_false(eni_url_add(small, sizeof small, "c", false));
    assert_string_equal(small, "ab%2F");
    char less[5] = "ab";
    assert_false(eni_url_add(less, sizeof less, "/", false));
    assert_true(eni_url_add(less, sizeof less, "/", true));
    assert_string_equal(less, "ab/");
}

static void what_is_decoded(void **state)
{
    (void)state;
    static const char *const good[][2] = {
        {"", ""},         {"a+b", "a b"}, {"a%2Bb", "a+b"}, {"%2f%2F", "//"}, {"%e6%95%B0", "\xe6\x95\xb0"},
        {"%2541", "%41"}, {"%25", "%"}};
    static const char *const bad[] = {"%",   "a%",    "%4",   "a%4", "%4g", "%g4",
                                      "%00", "a%00b", "%%41", "% 1", "%+1", "%-1"};
    char text[32];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        strcpy(text, good[i][0]);
        assert_true(eni_url_decode(text));
        assert_string_equal(text, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        strcpy(text, bad[i]);
        if (eni_url_decode(text)) fail_msg("%s is decoded", bad[i]);
    }
}

#define A_TEST(function) cmocka_unit_test_setup_teardown(function, listen_to_log, stop_listening)

int main(void)
{
    const struct CMUnitTest tests[] = {A_TEST(paths_are_no_urls),
                                       A_TEST(good_urls),
                                       A_TEST(a_key_of_1024_bytes_and_of_one_more),
                                       A_TEST(bad_urls_are_one_sentence),
                                       A_TEST(a_long_value_is_cut_in_the_message),
                                       A_TEST(hosts_and_regions),
                                       A_TEST(bad_endpoints_are_one_sentence),
                                       A_TEST(long_hosts_are_refused),
                                       A_TEST(bad_regions_are_one_sentence),
                                       A_TEST(all_bytes_come_back),
                                       A_TEST(what_is_written),
                                       A_TEST(what_is_decoded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
