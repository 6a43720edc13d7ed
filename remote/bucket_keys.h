/* bucket_keys.h - the keys to a bucket: where they are looked for, and that nobody else could read them there.
 *
 * --data-keys=FILE; else the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (for oss://
 * OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET, OSS_SESSION_TOKEN); else the profile AWS_PROFILE (default) of
 * AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, else of AWS_CONFIG_FILE or ~/.aws/config, which may also name the region
 * and endpoint_url (for oss:// ~/.ossutilconfig). --data-keys=none: none, for a bucket that is open to all. FILE has the
 * form of those:
 *
 *     [default]
 *     aws_access_key_id = ..            access_key_id and accessKeyID, too
 *     aws_secret_access_key = ..        access_key_secret, accessKeySecret
 *     aws_session_token = ..            stsToken; only of keys that end
 */
#ifndef REMOTE_BUCKET_KEYS_H
#define REMOTE_BUCKET_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/status.h"

enum { ENI_KEY_TEXT_MAX = 256, ENI_KEY_TOKEN_MAX = 8192 };

typedef struct eni_keys {
    char id[ENI_KEY_TEXT_MAX], secret[ENI_KEY_TEXT_MAX];
    char token[ENI_KEY_TOKEN_MAX];  /* "": they do not end */
    char region[64], endpoint[256]; /* what the environment or the profile says; "": nothing */
    const char *endpoint_by; /* who says that: "AWS_ENDPOINT_URL", "endpoint_url" of a profile; a constant */
    char by[32];             /* "sso_session": the profile gets its keys so, which is not done here */
    bool is_none;            /* requests go without a signature */
    bool is_too_long;        /* a value did not fit: eni_keys_find refuses it */
    char from[64];           /* where they were found, for messages: a file's name may be cut */
} eni_keys;

/* `variable` reads the environment (config/env.h: eni_env), `kind` is url.h's, `file` --data-keys or NULL. EN_EINVAL,
 * logged: there are none (with the variables that are looked at), half of them, a file that others may read or that is
 * malformed. Blocks on the file system. eni_wipe them after use. */
en_status eni_keys_find(int kind, const char *file, const char *(*variable)(const char *name),
                        eni_keys *keys_out);

/* The values of a profile in such a text, into what is still empty; false: it has no such profile. Exposed for its
 * test and its fuzz target. */
bool eni_keys_parse(const char *text, size_t bytes, const char *profile, eni_keys *keys);

#endif
