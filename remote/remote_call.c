/* remote_call.c - see remote_call.h. */
#include "remote/remote_call.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"

enum {
    CONNECT_S = 10,
    STALL_S = 30,
    STALL_BYTES_S = 1024,
    JOIN_S = 300, /* "several minutes" (CompleteMultipartUpload, Amazon S3 API Reference) */
    HURRY_S = 3,
    HURRY_TRIES = 2,
    BUFFER_BYTES = 512 * 1024,
    PAGE_BYTES = 16 << 20, /* of XML: 1,000 keys of 1,024 bytes, each as %XX */
    TOLD_S = 5,
    TOLD_AGAIN_S = 10,
    FIRST_WAIT_MS = 200,
    MOST_WAIT_MS = 30000,
    SLICE_MS = 1000 /* of a wait */
};

/* ---- waits ---- */

static void tell_life(const eni_remote_call *c)
{
    if (c->b->o.on_sign != NULL) c->b->o.on_sign(c->b->o.user);
}

static void note_move(eni_remote_call *c)
{
    c->moved_ns = eni_now_ns();
    tell_life(c);
}

static bool is_stopped(const eni_remote_call *c)
{
    return !c->is_hurry && c->b->o.is_stopped != NULL && c->b->o.is_stopped(c->b->o.user);
}

/* Explains a wait: for which host and object, and why; `wait_ms` of it are still to come. */
static void tell_wait(eni_remote_call *c, long wait_ms, const char *why)
{
    const int64_t now_ns = eni_now_ns(), still_ns = now_ns - c->moved_ns + wait_ms * (ENI_SECOND / 1000);
    if (still_ns < TOLD_S * ENI_SECOND) return;
    if (c->told_ns != 0 && now_ns - c->told_ns < TOLD_AGAIN_S * ENI_SECOND) return;
    c->told_ns = now_ns;
    const char *key = c->key[0] != '\0' ? c->key : "its list";
    eni_warn("remote", "waiting for %s to %s %.200s of %s: %s (try %d of %d)", c->b->o.place->host,
             c->request.method[0] == 'P' ? "accept" : "send", key, c->b->o.url->bucket, why, c->tries,
             ENI_REMOTE_TRIES);
}

/* libcurl calls this about once a second in any case. */
static int look_at_wait(void *user, curl_off_t down_of, curl_off_t down, curl_off_t up_of, curl_off_t up)
{
    eni_remote_call *c = user;
    char why[80];
    const uint64_t moved = c->have + (uint64_t)(c->object == NULL ? down : 0) + (uint64_t)up;
    (void)down_of;
    (void)up_of;
    if (moved > c->most) {
        c->most = moved;
        note_move(c);
    }
    const int64_t still_ns = eni_now_ns() - c->moved_ns;
    if (c->is_join && still_ns < JOIN_S * ENI_SECOND) tell_life(c); /* it is working */
    snprintf(why, sizeof why, "nothing for %.0f s", (double)still_ns / ENI_SECOND);
    tell_wait(c, 0, why);
    return is_stopped(c);
}

/* ---- libcurl's callbacks ---- */

/* A header of the answer; "" if it is absent, too long, or not text. */
static void keep_header(const eni_remote_call *c, const char *name, char *into, size_t bytes)
{
    struct curl_header *h;
    const bool is_there = curl_easy_header(c->b->curl, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK &&
                          strlen(h->value) < bytes && eni_is_text(h->value);
    snprintf(into, bytes, "%s", is_there ? h->value : "");
}

static void take_headers(eni_remote_call *c)
{
    char etag[ENI_ETAG + 8], range[64];
    unsigned long long begin = 0, last = 0, total = 0;
    curl_off_t length = -1, retry_after_s = 0;
    CURL *h = c->b->curl;
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &c->code);
    curl_easy_getinfo(h, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    curl_easy_getinfo(h, CURLINFO_RETRY_AFTER, &retry_after_s);
    c->length_told = (uint64_t)length; /* -1: absent */
    c->retry_after_s = retry_after_s < MOST_WAIT_MS / 1000 ? (long)retry_after_s : MOST_WAIT_MS / 1000;
    keep_header(c, "etag", etag, sizeof etag);
    keep_header(c, "date", c->date, sizeof c->date);
    keep_header(c, "x-amz-bucket-region", c->region, sizeof c->region);
    keep_header(c, "location", c->location, sizeof c->location);
    keep_header(c, "content-range", range, sizeof range); /* bytes 0-9/10 */
    (void)eni_etag_set(c->etag, etag, strlen(etag));
    const bool is_range = sscanf(range, "bytes %llu-%llu/%llu", &begin, &last, &total) == 3;
    c->range_begin = is_range ? begin : 0;
    c->range_total = is_range ? total : 0;
}

static size_t keep_text(eni_remote_call *c, const char *data, size_t n)
{
    c->is_flood = c->length + n >= PAGE_BYTES;
    if (c->is_flood) return 0;
    if (c->text == NULL) c->text = malloc(PAGE_BYTES); /* untouched pages cost nothing */
    if (c->text == NULL) return 0;
    memcpy(c->text + c->length, data, n);
    c->length += n;
    return n;
}

/* Whether the answer continues the file: the same object, from the byte where it ends. A service without
 * ranges sends all of it again. */
static bool check_begin(eni_remote_call *c)
{
    const bool is_part = c->code == 206;
    if (strcmp(c->etag, c->object->etag) != 0) return false;
    if (is_part) return c->range_begin == c->have && c->range_total == c->object->size;
    if (c->have == 0) return true;
    if (c->b->o.on_bytes != NULL) c->b->o.on_bytes(c->b->o.user, -(int64_t)c->have);
    c->have = 0;
    if (c->on_have != NULL) c->on_have(c->user, 0);
    if (ftruncate(c->fd, 0) != 0) c->disk = errno;
    return c->disk == 0;
}

static size_t take_body(char *data, size_t one, size_t n, void *user)
{
    eni_remote_call *c = user;
    (void)one;
    if (c->code == 0) take_headers(c);
    const bool is_first = c->sent == 0;
    if (c->object == NULL || c->code < 200 || c->code > 299) return keep_text(c, data, n);
    c->sent = 1;
    if ((is_first && !check_begin(c)) || n > c->object->size - c->have) {
        c->is_other = c->disk == 0;
        return 0;
    }
    if (!eni_file_write_at(c->fd, data, n, (off_t)c->have)) {
        c->disk = errno;
        return 0;
    }
    c->have += n;
    if (c->on_have != NULL) c->on_have(c->user, c->have);
    if (c->b->o.on_bytes != NULL) c->b->o.on_bytes(c->b->o.user, (int64_t)n);
    return n;
}

static size_t give_body(char *data, size_t one, size_t n, void *user)
{
    eni_remote_call *c = user;
    const uint64_t left = c->bytes - c->sent;
    n *= one;
    if (n > left) n = (size_t)left;
    if (n == 0) return 0;
    const ssize_t r = pread(c->fd, data, n, (off_t)(c->at + c->sent));
    if (r <= 0) {
        c->disk = r < 0 ? errno : EIO; /* it was truncated */
        return CURL_READFUNC_ABORT;
    }
    c->sent += (uint64_t)r;
    if (c->b->o.on_bytes != NULL) c->b->o.on_bytes(c->b->o.user, (int64_t)r);
    return (size_t)r;
}

/* ---- one try ---- */

static bool add_line(struct curl_slist **lines, const char *line)
{
    struct curl_slist *more = curl_slist_append(*lines, line);
    if (more != NULL) *lines = more;
    return more != NULL;
}

/* They contain the session token. */
static void free_lines(struct curl_slist *lines)
{
    for (struct curl_slist *l = lines; l != NULL; l = l->next)
        eni_wipe(l->data, strlen(l->data));
    curl_slist_free_all(lines);
}

static en_status sign(eni_remote_call *c, struct curl_slist **lines_out)
{
    eni_signed s;
    struct curl_slist *lines = NULL;
    const eni_remote_options *o = &c->b->o;
    s.n = 0;
    const en_status st =
        o->keys->is_none ? EN_OK : eni_sign(o->url, o->place, o->keys, &c->request, time(NULL), &s);
    bool is_whole = st == EN_OK;
    for (int i = 0; is_whole && i < s.n; i++)
        is_whole = add_line(&lines, s.header[i]);
    eni_wipe(&s, sizeof s);
    if (is_whole) is_whole = add_line(&lines, "Expect:") && add_line(&lines, "Content-Type:");
    *lines_out = lines;
    if (st != EN_OK || is_whole) return st;
    return eni_fail(EN_ENOMEM, "remote", "out of memory for a request");
}

static void set_common(eni_remote_call *c, const char *url, struct curl_slist *lines)
{
    CURL *h = c->b->curl;
    const eni_remote_options *o = &c->b->o;
    curl_easy_reset(h); /* keeps the connection */
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, o->place->is_plain ? "http" : "https");
    curl_easy_setopt(h, CURLOPT_PATH_AS_IS, 1L); /* a key may contain "/../", which is signed */
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, lines);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_S);
    curl_easy_setopt(h, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(h, CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, c->b->error);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, look_at_wait);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "entrain");
    if (o->ca_file != NULL) curl_easy_setopt(h, CURLOPT_CAINFO, o->ca_file);
    if (o->place->is_plain) curl_easy_setopt(h, CURLOPT_NOPROXY, "*"); /* it is this host */
}

static void set_method(eni_remote_call *c)
{
    CURL *h = c->b->curl;
    const char *method = c->request.method;
    if (strcmp(method, "PUT") == 0) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, give_body);
        curl_easy_setopt(h, CURLOPT_READDATA, c);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->bytes);
    } else if (strcmp(method, "POST") == 0) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, c->body);
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->bytes);
    } else if (strcmp(method, "DELETE") == 0) {
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, method);
    }
    if (c->is_head) curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    if (c->is_join) curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, 0L); /* a blank arrives now and then */
    if (c->is_join || c->is_hurry)
        curl_easy_setopt(h, CURLOPT_TIMEOUT, (long)(c->is_join ? JOIN_S : HURRY_S));
}

static en_status try_once(eni_remote_call *c, CURLcode *result_out)
{
    char url[ENI_SIGNED_PATH + ENI_SIGNED_TEXT + ENI_REMOTE_HOST + 16], range[32];
    struct curl_slist *lines = NULL;
    const en_status st = sign(c, &lines);
    snprintf(url, sizeof url, "%s://%s%s%s%s", c->b->o.place->is_plain ? "http" : "https",
             c->b->o.place->host, c->request.path, c->request.query[0] != '\0' ? "?" : "", c->request.query);
    c->code = 0;
    c->length = 0;
    c->sent = 0;
    c->b->error[0] = '\0';
    if (st == EN_OK) {
        set_common(c, url, lines);
        if (c->object != NULL && c->have > 0) {
            snprintf(range, sizeof range, "%llu-", (unsigned long long)c->have);
            curl_easy_setopt(c->b->curl, CURLOPT_RANGE, range);
        }
        set_method(c);
        *result_out = curl_easy_perform(c->b->curl);
        take_headers(c);
    }
    free_lines(lines);
    return st;
}

/* ---- judging an answer ---- */

static en_status refuse_other_host(const eni_remote_call *c, const eni_service_error *said)
{
    const eni_remote_options *o = &c->b->o;
    const char *region = c->region[0] != '\0' ? c->region : said->region;
    if (o->url->kind == ENI_S3 && region[0] != '\0' && strcmp(region, o->place->region) != 0)
        return eni_fail(EN_EINVAL, "remote",
                        "s3://%s is in the region %s, but the request was for %s: set AWS_REGION=%s",
                        o->url->bucket, region, o->place->region, region);
    return eni_fail(EN_EINVAL, "remote",
                    "%s redirects requests for %s://%s to %.200s, which is not followed: the signature is "
                    "valid for %s only. Give the right host%s",
                    o->place->host, eni_url_scheme(o->url->kind), o->url->bucket,
                    c->location[0] != '\0' ? c->location : "another host", o->place->host,
                    o->url->kind == ENI_S3 ? ", or the right AWS_REGION" : " in the URL");
}

/* Reports an error that another try would not cure. */
static en_status refuse(const eni_remote_call *c)
{
    const eni_remote_options *o = &c->b->o;
    const char *scheme = eni_url_scheme(o->url->kind), *bucket = o->url->bucket;
    eni_service_error said;
    eni_service_error_read(c->text, c->length, &said);
    char told[400] = "";
    if (said.code[0] != '\0') snprintf(told, sizeof told, " (%s: %s)", said.code, said.message);
    if (c->code >= 300 && c->code < 400) return refuse_other_host(c, &said);
    if (c->code == 400 &&
        (said.region[0] != '\0' || (c->region[0] != '\0' && strcmp(c->region, o->place->region) != 0)))
        return refuse_other_host(c, &said);
    if (strcmp(said.code, "RequestTimeTooSkewed") == 0) {
        char now[40];
        struct tm utc;
        const time_t t = time(NULL);
        gmtime_r(&t, &utc);
        strftime(now, sizeof now, "%a, %d %b %Y %H:%M:%S GMT", &utc);
        return eni_fail(EN_EINVAL, "remote",
                        "%s: the clock of this host says %s, that of the service %s: set the clock%s",
                        o->place->host, now, c->date, told);
    }
    if ((c->code == 403 || c->code == 401) && o->keys->is_none)
        return eni_fail(
            EN_EINVAL, "remote",
            "%s://%s: %s denied access without keys, HTTP %ld%s: omit --data-keys=none, and provide keys",
            scheme, bucket, o->place->host, c->code, told);
    if (c->code == 403 || c->code == 401)
        return eni_fail(EN_EINVAL, "remote",
                        "%s://%s: %s denied access to the keys of %s (region %s), HTTP %ld%s: check the keys "
                        "and their permissions",
                        scheme, bucket, o->place->host, o->keys->from, o->place->region, c->code, told);
    if (c->code == 404)
        return eni_fail(EN_EINVAL, "remote",
                        "%s://%s: %s has no such %s, HTTP 404%s: check the name and the region (%s)", scheme,
                        bucket, o->place->host,
                        strcmp(said.code, "NoSuchKey") == 0      ? "object"
                        : strcmp(said.code, "NoSuchUpload") == 0 ? "upload"
                                                                 : "bucket",
                        told, o->place->region);
    return eni_fail(c->code < 500 ? EN_EINVAL : EN_EIO, "remote", "%s://%s: %s answered HTTP %ld%s", scheme,
                    bucket, o->place->host, c->code, told);
}

static bool may_help(long code)
{
    return code == 429 || code == 500 || code == 502 || code == 503 || code == 504;
}

static bool is_denied(const eni_remote_call *c)
{
    eni_service_error said;
    eni_service_error_read(c->text, c->length, &said);
    return c->code == 403 && strcmp(said.code, "AccessDenied") == 0;
}

/* Errors of this host, which another try would not cure. */
static bool is_hopeless(CURLcode result)
{
    return result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE ||
           result == CURLE_URL_MALFORMAT || result == CURLE_WRITE_ERROR ||
           result == CURLE_COULDNT_RESOLVE_PROXY;
}

/* Whether the parts are the object now. An error after the 200 is turned into the code that it would have had
 * in front. */
static bool is_joined(eni_remote_call *c)
{
    static const char *const passing[] = {"InternalError", "SlowDown", "ServiceUnavailable",
                                          "RequestTimeout"};
    eni_service_error said;
    if (eni_upload_over_read(c->text, c->length)) return true;
    eni_service_error_read(c->text, c->length, &said);
    if (said.code[0] != '\0') c->code = strcmp(said.code, "NoSuchUpload") == 0 ? 404 : 400;
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (strcmp(said.code, passing[i]) == 0) c->code = 503;
    return false;
}

/* Judges a try; false: another one may help. */
static bool judge(eni_remote_call *c, CURLcode result, en_status *st_out)
{
    const char *host = c->b->o.place->host;
    const bool is_whole = result == CURLE_OK && (c->object == NULL || c->have == c->object->size);
    const bool is_good = is_whole && c->code >= 200 && c->code < 300 && (!c->is_join || is_joined(c));
    if (c->disk != 0)
        *st_out = eni_fail(EN_EIO, "remote", "cannot %s %s: %s", c->object != NULL ? "write" : "read",
                           c->object != NULL ? c->object->key : "the file to upload", strerror(c->disk));
    else if (result == CURLE_ABORTED_BY_CALLBACK)
        *st_out = EN_EINTR;
    else if (c->object != NULL && (c->is_other || c->code == 416 || c->code == 404))
        *st_out = EN_EMISMATCH;
    else if ((c->is_head && (c->code == 403 || c->code == 404)) || (c->is_join && c->code == 404))
        *st_out = c->code == 404 ? EN_ENOENT : EN_EDENIED;
    else if (c->is_ask && is_denied(c))
        *st_out = EN_EDENIED;
    else if (is_good)
        *st_out = EN_OK;
    else if (result == CURLE_OK && (c->code < 200 || c->code > 299) && !may_help(c->code))
        *st_out = refuse(c);
    else if (result == CURLE_PEER_FAILED_VERIFICATION)
        *st_out = eni_fail(
            EN_EINVAL, "remote",
            "the certificate of %s is not trusted: %s; set AWS_CA_BUNDLE=FILE for a private authority", host,
            c->b->error);
    else if (c->is_flood)
        *st_out =
            eni_fail(EN_EFORMAT, "remote", "%s answered with over %d MB, more than any list or error has",
                     host, PAGE_BYTES >> 20);
    else if (is_hopeless(result))
        *st_out = eni_fail(EN_EINVAL, "remote", "the request to %s failed: %s", host,
                           c->b->error[0] != '\0' ? c->b->error : curl_easy_strerror(result));
    else
        return false;
    return true;
}

static const char *why_not(const eni_remote_call *c, CURLcode result)
{
    if (result == CURLE_OK) return "it sent less than announced";
    return c->b->error[0] != '\0' ? c->b->error : curl_easy_strerror(result);
}

static en_status give_up(const eni_remote_call *c, CURLcode result)
{
    const eni_remote_options *o = &c->b->o;
    if (result == CURLE_OK && c->code > 299) return refuse(c);
    if (result == CURLE_COULDNT_RESOLVE_HOST)
        return eni_fail(
            EN_EINVAL, "remote",
            "cannot find the host %s (region %s): check the network, the name, %s, and --data-endpoint",
            o->place->host, o->place->region, o->url->kind == ENI_S3 ? "AWS_REGION" : "the host in the URL");
    return eni_fail(EN_EIO, "remote", "%s cannot be reached, or breaks the connection (%d tries): %s",
                    o->place->host, c->tries, why_not(c, result));
}

/* Waits for the next try. EN_EINTR: stopped. */
static en_status wait_for_next(eni_remote_call *c, CURLcode result)
{
    long wait_ms = (long)FIRST_WAIT_MS << (c->tries - 1);
    if (c->retry_after_s > 0 && c->retry_after_s * 1000 > wait_ms) wait_ms = c->retry_after_s * 1000;
    if (wait_ms > MOST_WAIT_MS) wait_ms = MOST_WAIT_MS;
    char code[32], why[CURL_ERROR_SIZE + 64];
    snprintf(code, sizeof code, "HTTP %ld", c->code);
    snprintf(why, sizeof why, "%s, again in %.1f s",
             result == CURLE_OK && c->code > 299 ? code : why_not(c, result), (double)wait_ms / 1000);
    eni_debug("remote", "%s", why);
    tell_wait(c, wait_ms, why);
    for (long left = wait_ms; left > 0; left -= SLICE_MS) {
        if (is_stopped(c)) return EN_EINTR;
        poll(NULL, 0, left < SLICE_MS ? (int)left : SLICE_MS);
        if (c->retry_after_s > 0) tell_life(c); /* it announced this wait */
    }
    return EN_OK;
}

en_status eni_remote_call_perform(eni_remote_call *c)
{
    uint64_t most = c->have; /* a service without ranges starts again each time, which is not progress */
    c->most = c->have;
    note_move(c);
    for (int tries = 1;; tries++) {
        CURLcode result = CURLE_OK;
        en_status st;
        c->tries = tries;
        EN_TRY(try_once(c, &result));
        if (result == CURLE_OK) tell_life(c);
        if (judge(c, result, &st)) return st;
        if (c->have > most) {
            tries = 0;
            most = c->have;
        }
        if (tries == ENI_REMOTE_TRIES) return give_up(c, result);
        if (tries > 0) EN_TRY(wait_for_next(c, result));
    }
}

en_status eni_remote_call_hurry(eni_remote_call *c)
{
    c->is_hurry = true;
    note_move(c);
    for (int tries = 0; tries < HURRY_TRIES; tries++) {
        CURLcode result = CURLE_OK;
        if (tries > 0) poll(NULL, 0, FIRST_WAIT_MS);
        EN_TRY(try_once(c, &result));
        if (result == CURLE_OK && ((c->code >= 200 && c->code < 300) || c->code == 404)) return EN_OK;
        if (result == CURLE_OK && c->code == 403) return EN_EDENIED;
    }
    return EN_EIO;
}

/* ---- the request ---- */

/* "/BUCKET/KEY" or "/KEY". */
en_status eni_remote_call_begin(eni_remote *b, const char *method, const char *key,
                                eni_remote_call **call_out)
{
    eni_remote_call *c = *call_out = eni_alloc(sizeof *c);
    if (c == NULL) return EN_ENOMEM;
    *c = (eni_remote_call){.b = b, .request = {.method = method}, .key = key, .fd = -1};
    char *path = c->request.path;
    snprintf(path, sizeof c->request.path, "/%s%s", b->o.place->has_bucket_in_path ? b->o.url->bucket : "",
             b->o.place->has_bucket_in_path ? "/" : "");
    if (eni_url_add(path, sizeof c->request.path, key, true)) return EN_OK;
    return eni_remote_call_end(c, eni_fail(EN_EINVAL, "remote", "the key %.100s.. is too long", key));
}

en_status eni_remote_call_end(eni_remote_call *c, en_status st)
{
    free(c->text);
    eni_free(c);
    return st;
}

bool eni_remote_call_query(eni_remote_call *c, const char *name, const char *value)
{
    char *query = c->request.query;
    const size_t at = strlen(query), bytes = sizeof c->request.query;
    if (value[0] == '\0') return true; /* the services differ in how they sign an empty value */
    if ((size_t)snprintf(query + at, bytes - at, "%s%s=", at > 0 ? "&" : "", name) >= bytes - at)
        return false;
    return eni_url_add(query, bytes, value, false);
}
