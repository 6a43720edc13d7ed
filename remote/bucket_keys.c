/* bucket_keys.c - see bucket_keys.h. */
#include "remote/bucket_keys.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/files.h"
#include "core/log.h"
#include "core/try.h"
#include "remote/url.h"

enum { FILE_BYTES = 65536, PATH_BYTES = 4096 };

typedef const char *(*lookup)(const char *name);

static const struct service {
    const char *id, *secret, *token, *region, *region_too; /* environment variables */
    const char *file, *profile;                            /* below the home folder; its section */
} services[] = {[ENI_S3] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
                            "AWS_DEFAULT_REGION", ".aws/credentials", "default"},
                [ENI_OSS] = {"OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN", "OSS_REGION",
                             "OSS_REGION", ".ossutilconfig", "Credentials"}};

/* ---- a file of profiles ---- */

static void trim(const char **text, size_t *length)
{
    while (*length > 0 && isspace((unsigned char)**text))
        (*text)++, (*length)--;
    while (*length > 0 && isspace((unsigned char)(*text)[*length - 1]))
        (*length)--;
}

static bool is_word(const char *text, size_t length, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strlen(*words) == length && strncasecmp(text, *words, length) == 0) return true;
    return false;
}

static void take(eni_keys *keys, char *into, size_t bytes, const char *text, size_t length)
{
    if (into[0] != '\0') return;
    if (length >= bytes) {
        keys->is_too_long = true;
        return;
    }
    memcpy(into, text, length);
    into[length] = '\0';
}

static void take_endpoint(eni_keys *keys, const char *by, const char *text, size_t length)
{
    if (keys->endpoint[0] == '\0') keys->endpoint_by = by;
    take(keys, keys->endpoint, sizeof keys->endpoint, text, length);
}

static void take_pair(const char *key, size_t key_length, const char *value, size_t length, eni_keys *keys)
{
    static const char *const ids[] = {"aws_access_key_id", "access_key_id", "accessKeyID", NULL};
    static const char *const secrets[] = {"aws_secret_access_key", "access_key_secret", "secret_access_key",
                                          "accessKeySecret", NULL};
    static const char *const tokens[] = {"aws_session_token", "session_token", "stsToken", NULL};
    static const char *const regions[] = {"region", NULL}, *const endpoints[] = {"endpoint_url", NULL};
    static const char *const others[] = {"sso_session", "sso_start_url",           "credential_process",
                                         "role_arn",    "web_identity_token_file", NULL};
    trim(&key, &key_length);
    trim(&value, &length);
    if (is_word(key, key_length, ids)) take(keys, keys->id, sizeof keys->id, value, length);
    if (is_word(key, key_length, secrets)) take(keys, keys->secret, sizeof keys->secret, value, length);
    if (is_word(key, key_length, tokens)) take(keys, keys->token, sizeof keys->token, value, length);
    if (is_word(key, key_length, others)) take(keys, keys->by, sizeof keys->by, key, key_length);
    if (is_word(key, key_length, endpoints)) take_endpoint(keys, "endpoint_url", value, length);
    if (is_word(key, key_length, regions)) take(keys, keys->region, sizeof keys->region, value, length);
}

bool eni_keys_parse(const char *text, size_t bytes, const char *profile, eni_keys *keys)
{
    static const char bom[] = {'\xef', '\xbb', '\xbf'}; /* editors on Windows put it in front */
    const size_t skipped = bytes >= sizeof bom && memcmp(text, bom, sizeof bom) == 0 ? sizeof bom : 0;
    bool is_ours = false, has = false;
    for (const char *line = text + skipped, *end = text + bytes; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline != NULL ? newline : end) - line);
        const char *next = line + length + 1;
        trim(&line, &length);
        const char *equals = memchr(line, '=', length);
        const char *bracket = length > 0 && line[0] == '[' ? memchr(line, ']', length) : NULL;
        if (bracket != NULL) { /* a remark may follow it */
            const char *name = line + 1;
            size_t name_length = (size_t)(bracket - name);
            trim(&name, &name_length);
            if (name_length > 8 && strncmp(name, "profile ", 8) == 0)
                name += 8, name_length -= 8; /* ~/.aws/config */
            is_ours = name_length == strlen(profile) && memcmp(name, profile, name_length) == 0;
            has = has || is_ours;
        } else if (is_ours && equals != NULL && line[0] != '#' && line[0] != ';') {
            take_pair(line, (size_t)(equals - line), equals + 1, length - (size_t)(equals - line) - 1, keys);
        }
        line = next;
    }
    return has;
}

/* EN_ENOENT, not logged, if the file does not exist. */
static en_status read_file(const char *path, bool is_secret, char text_out[FILE_BYTES], size_t *bytes_out)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return EN_ENOENT;
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int cause = errno;
        if (fd >= 0) close(fd);
        return eni_fail(EN_EINVAL, "remote", "cannot read the keys in %s: %s", path, strerror(cause));
    }
    en_status st = EN_OK;
    if (!S_ISREG(info.st_mode) || info.st_size >= FILE_BYTES)
        st = eni_fail(EN_EINVAL, "remote", "%s is not a file of keys: it is %s", path,
                      S_ISREG(info.st_mode) ? "too large" : "not a regular file");
    else if (is_secret && (info.st_uid != geteuid() || (info.st_mode & 077) != 0))
        st = eni_fail(EN_EINVAL, "remote",
                      "%s: others may read these keys, or they are another user's (mode %04o); chown the "
                      "file to yourself and chmod 600 it",
                      path, (unsigned)info.st_mode & 07777);
    /* Reads to the end of the file: some file systems give 0 as st_size. */
    ssize_t n = 0;
    *bytes_out = 0;
    while (st == EN_OK && *bytes_out < FILE_BYTES &&
           (n = read(fd, text_out + *bytes_out, FILE_BYTES - *bytes_out)) > 0)
        *bytes_out += (size_t)n;
    if (st == EN_OK && n < 0)
        st = eni_fail(EN_EINVAL, "remote", "cannot read the keys in %s: %s", path, strerror(errno));
    close(fd);
    return st;
}

static en_status read_profile(const char *path, const char *profile, bool is_secret, eni_keys *keys,
                              bool *has_out)
{
    char text[FILE_BYTES];
    size_t bytes;
    *has_out = false;
    const en_status st = read_file(path, is_secret, text, &bytes);
    if (st == EN_OK) *has_out = eni_keys_parse(text, bytes, profile, keys);
    eni_wipe(text, sizeof text);
    return st;
}

/* ---- finding them ---- */

static bool name_file(lookup variable, const char *given, const char *below_home, char path_out[PATH_BYTES])
{
    const char *home = variable("HOME");
    if (given == NULL && home == NULL) return false;
    const int length = given != NULL ? snprintf(path_out, PATH_BYTES, "%s", given)
                                     : snprintf(path_out, PATH_BYTES, "%s/%s", home, below_home);
    return length > 0 && length < PATH_BYTES;
}

static en_status from_file(const struct service *s, const char *path, const char *profile, bool is_asked,
                           eni_keys *keys)
{
    bool has;
    en_status st = read_profile(path, profile, true, keys, &has);
    if (st == EN_OK && !has &&
        s == &services[ENI_OSS]) /* ossutil 1 writes [Credentials], ossutil 2 [default] */
        st = read_profile(path, strcmp(profile, "default") == 0 ? s->profile : "default", true, keys, &has);
    if (st == EN_ENOENT && !is_asked) return EN_OK;
    if (st == EN_ENOENT) return eni_fail(EN_EINVAL, "remote", "the file of keys %s does not exist", path);
    EN_TRY(st);
    snprintf(keys->from, sizeof keys->from, "%.63s", path);
    if (keys->is_too_long) return EN_OK; /* its caller refuses that */
    if (has && keys->id[0] != '\0' && keys->secret[0] != '\0') return EN_OK;
    if (!is_asked && (!has || keys->by[0] != '\0')) return EN_OK;
    return eni_fail(EN_EINVAL, "remote", "%s has no [%s] with aws_access_key_id and aws_secret_access_key%s",
                    path, profile, s == &services[ENI_OSS] ? " (or accessKeyID and accessKeySecret)" : "");
}

static void take_variable(lookup variable, const char *name, eni_keys *keys, char *into, size_t bytes)
{
    const char *value = variable(name);
    if (value != NULL) take(keys, into, bytes, value, strlen(value));
}

/* ~/.aws/config may be readable by all, unless keys are taken from it. */
static en_status take_config(const char *path, const char *profile, eni_keys *keys)
{
    bool has;
    eni_keys config = {0};
    (void)read_profile(path, profile, false, &config, &has);
    take(keys, keys->region, sizeof keys->region, config.region, strlen(config.region));
    take_endpoint(keys, config.endpoint_by, config.endpoint, strlen(config.endpoint));
    take(keys, keys->by, sizeof keys->by, config.by, strlen(config.by));
    const bool has_keys = keys->id[0] == '\0' && keys->secret[0] == '\0' && config.id[0] != '\0';
    eni_wipe(&config, sizeof config);
    if (!has_keys) return EN_OK;
    snprintf(keys->from, sizeof keys->from, "%.63s", path);
    return read_profile(path, profile, true, keys, &has);
}

static en_status from_anywhere(const struct service *s, const char *file, lookup variable, eni_keys *keys)
{
    char path[PATH_BYTES];
    static const char *const endpoints[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"};
    const bool is_s3 = s == &services[ENI_S3];
    const char *asked_profile = is_s3 ? variable("AWS_PROFILE") : NULL;
    const char *profile = asked_profile != NULL ? asked_profile : s->profile;
    take_variable(variable, s->region, keys, keys->region, sizeof keys->region);
    take_variable(variable, s->region_too, keys, keys->region, sizeof keys->region);
    for (int i = 0; is_s3 && i < 2; i++) {
        const char *url = variable(endpoints[i]);
        if (url != NULL) take_endpoint(keys, endpoints[i], url, strlen(url));
    }
    keys->is_none = file != NULL && strcmp(file, "none") == 0;
    if (keys->is_none) return EN_OK;
    if (file != NULL) return from_file(s, file, asked_profile != NULL ? profile : "default", true, keys);
    const char *id = variable(s->id), *secret = variable(s->secret);
    if ((id == NULL) != (secret == NULL))
        return eni_fail(EN_EINVAL, "remote", "%s is set but %s is not: a key needs both",
                        id != NULL ? s->id : s->secret, id != NULL ? s->secret : s->id);
    if (id != NULL) {
        take_variable(variable, s->id, keys, keys->id, sizeof keys->id);
        take_variable(variable, s->secret, keys, keys->secret, sizeof keys->secret);
        take_variable(variable, s->token, keys, keys->token, sizeof keys->token);
        snprintf(keys->from, sizeof keys->from, "%s", s->id);
    } else if (name_file(variable, is_s3 ? variable("AWS_SHARED_CREDENTIALS_FILE") : NULL, s->file, path)) {
        EN_TRY(from_file(s, path, profile, false, keys));
    }
    if (!is_s3 || !name_file(variable, variable("AWS_CONFIG_FILE"), ".aws/config", path)) return EN_OK;
    EN_TRY(take_config(path, profile, keys));
    if (asked_profile == NULL || keys->id[0] != '\0' || keys->by[0] != '\0') return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "AWS_PROFILE=%s: neither ~/.aws/credentials nor ~/.aws/config has a [%s] with "
                    "aws_access_key_id and aws_secret_access_key",
                    profile, profile);
}

/* Whether a text can be the value of a header. */
static bool is_header_text(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text > '~') return false;
    return true;
}

en_status eni_keys_find(int kind, const char *file, const char *(*variable)(const char *name),
                        eni_keys *keys_out)
{
    const struct service *s = &services[kind];
    eni_keys *keys = keys_out;
    *keys = (eni_keys){0};
    EN_TRY(from_anywhere(s, file, variable, keys));
    if (keys->is_too_long)
        return eni_fail(EN_EINVAL, "remote",
                        "a key, a token or a region of %s is longer than any that a service issues",
                        keys->from[0] != '\0' ? keys->from : "the environment");
    if (keys->is_none) return EN_OK;
    if (keys->id[0] == '\0' && keys->by[0] != '\0')
        return eni_fail(EN_EINVAL, "remote",
                        "the profile gets its keys by %s, which only the AWS command line supports: eval "
                        "\"$(aws configure export-credentials --format env)\" sets them as variables",
                        keys->by);
    if (keys->id[0] == '\0' || keys->secret[0] == '\0')
        return eni_fail(
            EN_EINVAL, "remote",
            "no keys for %s://: set %s and %s (and %s for temporary keys), or put them into ~/%s, or into a "
            "file of mode 0600 for --data-keys; use --data-keys=none for a public bucket",
            eni_url_scheme(kind), s->id, s->secret, s->token, s->file);
    if (is_header_text(keys->id) && is_header_text(keys->secret) && is_header_text(keys->token)) return EN_OK;
    return eni_fail(EN_EINVAL, "remote", "the keys of %s contain blanks or invalid characters", keys->from);
}
