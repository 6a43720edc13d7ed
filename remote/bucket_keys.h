/* bucket_keys.h - the keys to a bucket: where to find them, and a check that no other user could read them
 * there.
 *
 * --data-keys=FILE; else the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (for
 * oss:// OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET, OSS_SESSION_TOKEN); else the profile AWS_PROFILE (default)
 * of AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, else of AWS_CONFIG_FILE or ~/.aws/config, which may
 * also have the region and endpoint_url (for oss:// ~/.ossutilconfig). --data-keys=none: no keys, for a
 * public bucket. FILE has the format of those:
 *
 *     [default]
 *     aws_access_key_id = ..            access_key_id and accessKeyID, too
 *     aws_secret_access_key = ..        access_key_secret, accessKeySecret
 *     aws_session_token = ..            stsToken; only for temporary keys */
#ifndef REMOTE_BUCKET_KEYS_H
#define REMOTE_BUCKET_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/status.h"

enum { ENI_KEY_TEXT_MAX = 256, ENI_KEY_TOKEN_MAX = 8192 };

typedef struct eni_keys {
    char id[ENI_KEY_TEXT_MAX], secret[ENI_KEY_TEXT_MAX];
    char token[ENI_KEY_TOKEN_MAX];  /* "" for permanent keys */
    char region[64], endpoint[256]; /* from the environment or the profile; "" if absent */
    const char *endpoint_by; /* its source: "AWS_ENDPOINT_URL", "endpoint_url" of a profile; a constant */
    char by[32];      /* "sso_session": the profile gets its keys this way, which is not supported here */
    bool is_none;     /* requests are not signed */
    bool is_too_long; /* a value did not fit: eni_keys_find refuses it */
    char from[64];    /* their source, for messages: a file's name may be truncated */
} eni_keys;

/* `variable` reads the environment (config/env.h: eni_env), `kind` is url.h's, `file` --data-keys or NULL.
 * EN_EINVAL, logged: no keys (with the variables that were tried), half of them, or a file that others may
 * read or that is malformed. Blocks on the file system. eni_wipe them after use. */
en_status eni_keys_find(int kind, const char *file, const char *(*variable)(const char *name),
                        eni_keys *keys_out);

/* Reads a profile's values from such a text into the members that are still empty; false if it has no such
 * profile. Exposed for its test and its fuzz target. */
bool eni_keys_parse(const char *text, size_t bytes, const char *profile, eni_keys *keys);

#endif
