/* upload.c - see upload.h. */
#include "remote/upload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "core/log.h"
#include "core/try.h"
#include "remote/remote_call.h"

enum { HASH_BYTES = 64 << 20, PLACE_BYTES = ENI_REMOTE_KEY + ENI_REMOTE_NAME + 16 };

static const char attribute[] = "user.entrain.upload"; /* "s3://BUCKET/KEY\nID" */

typedef struct upload {
    eni_remote *bucket;
    const eni_remote_options *o;
    const char *key;
    int fd;
    uint64_t bytes;
    char place[PLACE_BYTES]; /* s3://BUCKET/KEY */
    char id[ENI_UPLOAD_ID];  /* of an upload in parts; else "" */
} upload;

/* ---- requests ---- */

/* Begins a request for part `number`, or, if that is 0, for the whole upload. */
static en_status begin(const upload *u, const char *method, int number, eni_remote_call **call_out)
{
    char text[16] = "";
    EN_TRY(eni_remote_call_begin(u->bucket, method, u->key, call_out));
    eni_remote_call *c = *call_out;
    if (number > 0) snprintf(text, sizeof text, "%d", number);
    if (eni_remote_call_query(c, "partNumber", text) && eni_remote_call_query(c, "uploadId", u->id))
        return EN_OK;
    return eni_remote_call_end(c, eni_fail(EN_EFORMAT, "remote", "the id of an upload is too long"));
}

/* Hashes this range of the file. EN_EINTR: stopped. */
static en_status hash(const upload *u, uint64_t at, uint64_t end, char sha256_out[ENI_DIGEST_HEX])
{
    const eni_remote_options *o = u->o;
    eni_digest digest;
    int error = 0;
    bool is_stopped = false;
    eni_digest_begin(&digest);
    for (uint64_t next; error == 0 && !is_stopped && at < end; at = next) {
        next = end - at > HASH_BYTES ? at + HASH_BYTES : end;
        error = eni_digest_add_file(&digest, u->fd, at, next);
        if (o->on_sign != NULL) o->on_sign(o->user);
        is_stopped = o->is_stopped != NULL && o->is_stopped(o->user);
    }
    eni_digest_end(&digest, sha256_out);
    if (error == 0) return is_stopped ? EN_EINTR : EN_OK;
    return eni_fail(EN_EIO, "remote", "cannot read the file to upload: %s", strerror(error));
}

/* Sends the whole file, as number 0, or a part. */
static en_status put(const upload *u, int number, uint64_t at, uint64_t bytes, char etag_out[ENI_ETAG])
{
    eni_remote_call *c;
    en_status st = begin(u, "PUT", number, &c);
    if (st != EN_OK) return st;
    c->fd = u->fd;
    c->at = at;
    c->bytes = bytes;
    if (u->o->url->kind == ENI_S3) st = hash(u, at, at + bytes, c->request.body_sha256);
    if (st == EN_OK) st = eni_remote_call_perform(c);
    memcpy(etag_out, c->etag, ENI_ETAG);
    return eni_remote_call_end(c, st);
}

static en_status begin_parts(upload *u)
{
    eni_remote_call *c;
    EN_TRY(begin(u, "POST", 0, &c));
    /* A name without a value is signed with '=' by S3, and without by OSS. */
    strcpy(c->request.query, u->o->url->kind == ENI_S3 ? "uploads=" : "uploads");
    c->body = "";
    en_status st = eni_remote_call_perform(c);
    if (st == EN_OK && !eni_upload_begun_read(c->text, c->length, u->id))
        st = eni_fail(EN_EFORMAT, "remote", "%s: %s sent no upload id", u->place, u->o->place->host);
    return eni_remote_call_end(c, st);
}

/* EN_ENOENT: an upload with this id does not exist (any more). */
static en_status end_parts(const upload *u, const char *xml, size_t length)
{
    eni_digest digest;
    eni_remote_call *c;
    EN_TRY(begin(u, "POST", 0, &c));
    c->body = xml;
    c->bytes = length;
    c->is_join = true;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, xml, length);
    eni_digest_end(&digest, c->request.body_sha256);
    return eni_remote_call_end(c, eni_remote_call_perform(c));
}

static en_status drop_parts(const upload *u)
{
    eni_remote_call *c;
    EN_TRY(begin(u, "DELETE", 0, &c));
    return eni_remote_call_end(c, eni_remote_call_hurry(c));
}

/* ---- an upload in parts ---- */

uint64_t eni_upload_part(uint64_t bytes, uint64_t least)
{
    enum { MIB = 1 << 20 };
    const uint64_t even = (bytes + ENI_PARTS_MAX - 1) / ENI_PARTS_MAX;
    return even <= least ? least : (even + MIB - 1) / MIB * MIB;
}

/* False: some file systems have no such attributes. */
static bool note(const upload *u)
{
    char text[PLACE_BYTES + ENI_UPLOAD_ID];
    const int length = snprintf(text, sizeof text, "%s\n%s", u->place, u->id);
    return fsetxattr(u->fd, attribute, text, (size_t)length, 0) == 0;
}

/* Removes the parts that an earlier upload of this file has left. */
static void drop_noted(upload *u)
{
    char text[PLACE_BYTES + ENI_UPLOAD_ID] = "";
    const size_t place = strlen(u->place);
    if (fgetxattr(u->fd, attribute, text, sizeof text - 1) <= 0) return;
    if (strncmp(text, u->place, place) != 0 || text[place] != '\n') return;
    snprintf(u->id, sizeof u->id, "%s", text + place + 1);
    if (drop_parts(u) == EN_OK)
        eni_info("remote", "%s: removed the parts of an interrupted upload", u->place);
    u->id[0] = '\0';
}

/* Sends all parts. *xml_out: the list that completes them, which the caller frees. */
static en_status put_parts(const upload *u, uint64_t part, char **xml_out, size_t *length_out)
{
    const uint64_t n = (u->bytes + part - 1) / part;
    const size_t room = (size_t)n * (ENI_ETAG + 80) + 80;
    char *xml = *xml_out = malloc(room), etag[ENI_ETAG];
    if (xml == NULL) return eni_fail(EN_ENOMEM, "remote", "out of memory for a list of parts");
    size_t length = (size_t)snprintf(xml, room, "<CompleteMultipartUpload>");
    for (int number = 1; (uint64_t)number <= n; number++) {
        const uint64_t at = (uint64_t)(number - 1) * part, left = u->bytes - at;
        EN_TRY(put(u, number, at, left < part ? left : part, etag));
        if (etag[0] == '\0' || strpbrk(etag, "<>&") != NULL)
            return eni_fail(EN_EFORMAT, "remote", "%s: %s sent no ETag for part %d", u->place,
                            u->o->place->host, number);
        length += (size_t)snprintf(xml + length, room - length,
                                   "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", number, etag);
    }
    *length_out = length + (size_t)snprintf(xml + length, room - length, "</CompleteMultipartUpload>");
    return EN_OK;
}

/* EN_OK with an ETag of "" if the object does not exist, or may not be read. */
static en_status look(const upload *u, eni_object *object_out, bool *may_read_out)
{
    const en_status st = eni_remote_head(u->bucket, u->key, object_out);
    *may_read_out = st != EN_EDENIED;
    if (st != EN_ENOENT && st != EN_EDENIED) return st;
    object_out->etag[0] = '\0';
    object_out->size = 0;
    return EN_OK;
}

/* Joins the parts to the object, and checks it. */
static en_status join_parts(const upload *u, const char *xml, size_t length)
{
    eni_object before, after;
    bool may_read;
    EN_TRY(look(u, &before, &may_read));
    const en_status ended = end_parts(u, xml, length);
    if (ended != EN_ENOENT) EN_TRY(ended);
    EN_TRY(look(u, &after, &may_read));
    if (ended == EN_ENOENT && strcmp(before.etag, after.etag) == 0)
        return eni_fail(EN_EIO, "remote",
                        "%s: %s no longer has its parts (HTTP 404), nor a new object: they were removed, for "
                        "example by a lifecycle rule of the bucket",
                        u->place, u->o->place->host);
    if (!may_read || (after.etag[0] != '\0' && after.size == u->bytes)) return EN_OK;
    return eni_fail(EN_EIO, "remote", "%s has %llu bytes in the bucket instead of %llu", u->place,
                    (unsigned long long)after.size, (unsigned long long)u->bytes);
}

static en_status upload_parts(upload *u, uint64_t part)
{
    char *xml = NULL;
    size_t length = 0;
    drop_noted(u);
    EN_TRY(begin_parts(u));
    const bool is_noted = note(u);
    en_status st = put_parts(u, part, &xml, &length);
    if (st == EN_OK) st = join_parts(u, xml, length);
    free(xml);
    const en_status dropped = st == EN_OK ? EN_OK : drop_parts(u);
    if (dropped == EN_OK)
        (void)fremovexattr(u->fd, attribute);
    else
        eni_warn("remote", "%s: some of its parts stay in the bucket (upload %.100s): %s", u->place, u->id,
                 dropped == EN_EDENIED ? "these keys may not remove them (AbortMultipartUpload)"
                 : is_noted            ? "the next upload of this file will remove them"
                            : "a rule of the bucket can remove them (AbortIncompleteMultipartUpload)");
    return st;
}

en_status eni_upload(eni_remote *bucket, const char *key, int fd, uint64_t bytes,
                     const eni_upload_sizes *sizes)
{
    upload u = {.bucket = bucket, .o = &bucket->o, .key = key, .fd = fd, .bytes = bytes};
    char etag[ENI_ETAG];
    snprintf(u.place, sizeof u.place, "%s://%s/%s", eni_url_scheme(u.o->url->kind), u.o->url->bucket, key);
    const uint64_t part = eni_upload_part(bytes, sizes->part);
    if (part > ENI_PUT_MAX)
        return eni_fail(EN_EUNSUPPORTED, "remote", "%s: %llu bytes are more than %d parts of 5 GiB", u.place,
                        (unsigned long long)bytes, ENI_PARTS_MAX);
    return bytes > sizes->put_max ? upload_parts(&u, part) : put(&u, 0, 0, bytes, etag);
}
