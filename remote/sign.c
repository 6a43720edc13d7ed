/* sign.c - see sign.h. */
#include "remote/sign.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

/* The differences between the two services. */
typedef struct dialect {
    const char *algorithm, *secret_prefix, *service, *terminator, *header_prefix, *token;
    /* All headers are signed, Host among them; else only those with the prefix, unnamed. */
    bool names_headers;
    bool hashes_body; /* else the word below replaces the hash, and TLS protects the body */
    bool has_bucket;  /* in the canonical path, wherever the URL has it */
} dialect;

static const dialect dialects[] = {[ENI_S3] = {"AWS4-HMAC-SHA256", "AWS4", "s3", "aws4_request", "x-amz-",
                                               "security-token", true, true, false},
                                   [ENI_OSS] = {"OSS4-HMAC-SHA256", "aliyun_v4", "oss", "aliyun_v4_request",
                                                "x-oss-", "security-token", false, false, true}};
static const char unsigned_body[] = "UNSIGNED-PAYLOAD";
static const char empty_sha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

enum { DATE = 9, MOMENT = 17, SCOPE = 160 };

typedef struct signing {
    const dialect *d;
    char date[DATE], moment[MOMENT], scope[SCOPE];
    char headers[2 * ENI_SIGNED_TEXT]; /* canonical: "name:value\n", by name */
    char names[256];                   /* "host;x-amz-date" */
    eni_signed *out;
    bool is_short; /* a text did not fit */
} signing;

static void add(signing *s, char *text, size_t bytes, const char *more)
{
    if (strlen(text) + strlen(more) >= bytes)
        s->is_short = true;
    else
        strcat(text, more);
}

/* In the order of their names. */
static void add_header(signing *s, const char *prefix, const char *name, const char *value)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    add(s, s->headers, sizeof s->headers, full);
    add(s, s->headers, sizeof s->headers, ":");
    add(s, s->headers, sizeof s->headers, value);
    add(s, s->headers, sizeof s->headers, "\n");
    if (s->names[0] != '\0') add(s, s->names, sizeof s->names, ";");
    add(s, s->names, sizeof s->names, full);
    char *line = s->out->header[s->out->n++];
    if (snprintf(line, ENI_SIGNED_TEXT, "%s: %s", full, value) >= ENI_SIGNED_TEXT) s->is_short = true;
}

static void hash_canonical(const signing *s, const eni_remote_url *url, const eni_remote_endpoint *place,
                           const eni_remote_request *request, const char *body, char hex_out[ENI_DIGEST_HEX])
{
    const bool adds_bucket = s->d->has_bucket && !place->has_bucket_in_path;
    const char *const parts[] = {request->method,
                                 "\n",
                                 adds_bucket ? "/" : "",
                                 adds_bucket ? url->bucket : "",
                                 request->path,
                                 "\n",
                                 request->query,
                                 "\n",
                                 s->headers,
                                 "\n",
                                 s->d->names_headers ? s->names : "",
                                 "\n",
                                 body};
    eni_digest digest;
    eni_digest_begin(&digest);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        eni_digest_add(&digest, parts[i], strlen(parts[i]));
    eni_digest_end(&digest, hex_out);
}

/* HMAC(HMAC(HMAC(HMAC(prefix + secret, day), region), service), terminator), of the text. */
static void make_signature(const signing *s, const eni_remote_endpoint *place, const eni_keys *keys,
                           const char *text, char hex_out[ENI_DIGEST_HEX])
{
    char first[ENI_KEY_TEXT_MAX + 16];
    unsigned char key[ENI_DIGEST_BYTES], next[ENI_DIGEST_BYTES];
    const char *const words[] = {place->region, s->d->service, s->d->terminator, text};
    snprintf(first, sizeof first, "%s%s", s->d->secret_prefix, keys->secret);
    eni_digest_hmac(first, strlen(first), s->date, key);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        eni_digest_hmac(key, sizeof key, words[i], next);
        memcpy(key, next, sizeof key);
    }
    eni_digest_hex(key, hex_out);
    eni_wipe(first, sizeof first);
    eni_wipe(key, sizeof key);
    eni_wipe(next, sizeof next);
}

en_status eni_sign(const eni_remote_url *url, const eni_remote_endpoint *place, const eni_keys *keys,
                   const eni_remote_request *request, time_t now, eni_signed *signed_out)
{
    signing s = {.d = &dialects[url->kind], .out = signed_out};
    char hash[ENI_DIGEST_HEX], text[512], signature[ENI_DIGEST_HEX];
    struct tm utc;
    *signed_out = (eni_signed){0};
    gmtime_r(&now, &utc);
    strftime(s.date, sizeof s.date, "%Y%m%d", &utc);
    strftime(s.moment, sizeof s.moment, "%Y%m%dT%H%M%SZ", &utc);
    snprintf(s.scope, sizeof s.scope, "%s/%s/%s/%s", s.date, place->region, s.d->service, s.d->terminator);
    const char *prefix = s.d->header_prefix;
    const char *body = !s.d->hashes_body                 ? unsigned_body
                       : request->body_sha256[0] == '\0' ? empty_sha256
                                                         : request->body_sha256;
    if (s.d->names_headers)
        add_header(&s, "", "host", place->host); /* curl's own would differ: no :443, lower case */
    add_header(&s, prefix, "content-sha256", body);
    add_header(&s, prefix, "date", s.moment);
    if (keys->token[0] != '\0') add_header(&s, prefix, s.d->token, keys->token);
    hash_canonical(&s, url, place, request, body, hash);
    snprintf(text, sizeof text, "%s\n%s\n%s\n%s", s.d->algorithm, s.moment, s.scope, hash);
    make_signature(&s, place, keys, text, signature);
    const int length = snprintf(signed_out->header[signed_out->n++], ENI_SIGNED_TEXT,
                                "Authorization: %s Credential=%s/%s, %s%s%sSignature=%s", s.d->algorithm,
                                keys->id, s.scope, s.d->names_headers ? "SignedHeaders=" : "",
                                s.d->names_headers ? s.names : "", s.d->names_headers ? ", " : "", signature);
    eni_wipe(s.headers, sizeof s.headers);
    if (!s.is_short && length < ENI_SIGNED_TEXT) return EN_OK;
    return eni_fail(EN_EINVAL, "remote", "the keys of %s are longer than any that a service issues",
                    keys->from);
}
