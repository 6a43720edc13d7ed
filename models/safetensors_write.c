/* safetensors_write.c - a safetensors file that is there whole or not at all; see safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/safetensors.h"

enum { HEADER_ALIGN = 8 }; /* the data starts on 8 bytes, as the Rust and Python writers have it */

/* ---- the header -------------------------------------------------------------------------------------- */

static int add_meta(json_t *root, const eni_st_meta *meta, uint32_t nmeta)
{
    json_t *object = json_object();
    for (uint32_t m = 0; m < nmeta; m++) {
        if (json_object_set_new(object, meta[m].key, json_string(meta[m].value)) != 0) {
            json_decref(object);
            return -1;
        }
    }
    return json_object_set_new(root, "__metadata__", object);
}

static int add_tensor(json_t *root, const eni_st_tensor *tensor, uint64_t begin)
{
    const uint64_t end = begin + eni_st_bytes(tensor);
    if (json_object_get(root, tensor->name) != NULL) return -1;
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->ndim; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype == ENI_ST_U8 ? "U8" : "F32",
                              "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    return json_object_set_new(root, tensor->name, entry);
}

/* The header's text without its padding, freed with free(); NULL when out of memory. */
static char *header_new(const eni_st_tensor *tensors, uint32_t ntensors, const eni_st_meta *meta,
                        uint32_t nmeta)
{
    json_t *root = json_object();
    uint64_t begin = 0;
    int failed = nmeta > 0 ? add_meta(root, meta, nmeta) : 0;
    for (uint32_t t = 0; t < ntensors && failed == 0; t++) {
        failed = add_tensor(root, &tensors[t], begin);
        begin += eni_st_bytes(&tensors[t]);
    }
    char *text = failed == 0 ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* What goes into a file, header first. */
typedef struct contents {
    uint64_t length; /* of the header with its padding */
    char *header;
    size_t text; /* of the header without it */
    const eni_st_tensor *tensors;
    uint32_t ntensors;
} contents;

static const char spaces[HEADER_ALIGN] = "        ";

static uint64_t contents_bytes(const contents *c)
{
    uint64_t bytes = sizeof c->length + c->length;
    for (uint32_t t = 0; t < c->ntensors; t++)
        bytes += eni_st_bytes(&c->tensors[t]);
    return bytes;
}

/* ---- the seal ---------------------------------------------------------------------------------------- */

#define SEAL_PREFIX "{\"__metadata__\":{\"digest\":\""
enum { LENGTH_BYTES = 8, SEAL_AT = sizeof SEAL_PREFIX - 1, SEAL_BYTES = ENI_DIGEST_HEX - 1 };
static const char no_seal[ENI_DIGEST_HEX] =
    "0000000000000000000000000000000000000000000000000000000000000000";

/* Writes the hash of the file into its header, which has no_seal there. */
static en_status seal(contents *c, char digest_out[ENI_DIGEST_HEX])
{
    eni_digest *digest = eni_digest_new();
    if (digest == NULL) return EN_ENOMEM;
    eni_digest_add(digest, &c->length, LENGTH_BYTES);
    eni_digest_add(digest, c->header, c->text);
    eni_digest_add(digest, spaces, c->length - c->text);
    for (uint32_t t = 0; t < c->ntensors; t++)
        eni_digest_add(digest, c->tensors[t].data, eni_st_bytes(&c->tensors[t]));
    eni_digest_take(digest, digest_out);
    memcpy(c->header + SEAL_AT, digest_out, SEAL_BYTES);
    return EN_OK;
}

en_status eni_st_check_seal(const void *data, size_t bytes, char digest_out[ENI_DIGEST_HEX],
                            char why_out[ENI_ST_WHY])
{
    const char *at = data;
    const size_t begin = LENGTH_BYTES + SEAL_AT, end = begin + SEAL_BYTES;
    if (bytes < end || memcmp(at + LENGTH_BYTES, SEAL_PREFIX, SEAL_AT) != 0) {
        snprintf(why_out, ENI_ST_WHY, "it does not begin with the digest of a checkpoint");
        return EN_EFORMAT;
    }
    eni_digest *digest = eni_digest_new();
    if (digest == NULL) {
        snprintf(why_out, ENI_ST_WHY, "out of memory");
        return EN_ENOMEM;
    }
    eni_digest_add(digest, at, begin);
    eni_digest_add(digest, no_seal, SEAL_BYTES);
    eni_digest_add(digest, at + end, bytes - end);
    eni_digest_take(digest, digest_out);
    if (memcmp(at + begin, digest_out, SEAL_BYTES) == 0) return EN_OK;
    snprintf(why_out, ENI_ST_WHY, "its %zu bytes hash to %.8s.. where it says %.8s..: damaged or cut off",
             bytes, digest_out, at + begin);
    return EN_EFORMAT;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* Takes the room first: a disk that is too full is found now. Not every file system can. */
static en_status contents_write(void *user, const char *path, int fd, char *why_out, size_t why_bytes)
{
    const contents *c = user;
    if (fallocate(fd, 0, 0, (off_t)contents_bytes(c)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
        errno != EINTR)
        return eni_file_failed("write", path, why_out, why_bytes);
    EN_TRY(eni_file_put_all(path, fd, &c->length, sizeof c->length, why_out, why_bytes));
    EN_TRY(eni_file_put_all(path, fd, c->header, c->text, why_out, why_bytes));
    EN_TRY(eni_file_put_all(path, fd, spaces, c->length - c->text, why_out, why_bytes));
    for (uint32_t t = 0; t < c->ntensors; t++)
        EN_TRY(
            eni_file_put_all(path, fd, c->tensors[t].data, eni_st_bytes(&c->tensors[t]), why_out, why_bytes));
    return EN_OK;
}

/* digest_out NULL: without a seal. */
static en_status write_file(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                            const eni_st_meta *meta, uint32_t nmeta, char *digest_out,
                            char why_out[ENI_ST_WHY])
{
    contents c = {
        .header = header_new(tensors, ntensors, meta, nmeta), .tensors = tensors, .ntensors = ntensors};
    en_status st = EN_ENOMEM;
    snprintf(why_out, ENI_ST_WHY, "%s: no header: out of memory, or a name that is not UTF-8 or there twice",
             path);
    if (c.header != NULL) {
        c.text = strlen(c.header);
        c.length = eni_round_up(c.text, HEADER_ALIGN);
        st = digest_out != NULL ? seal(&c, digest_out) : EN_OK;
    }
    if (st == EN_OK) st = eni_file_replace(path, contents_write, &c, why_out, ENI_ST_WHY);
    free(c.header); /* jansson's, made with malloc */
    return st;
}

en_status eni_st_write(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                       const eni_st_meta *meta, uint32_t nmeta)
{
    char why[ENI_ST_WHY];
    en_status st = write_file(path, tensors, ntensors, meta, nmeta, NULL, why);
    if (st != EN_OK) eni_error("safetensors", "%s", why);
    return st;
}

en_status eni_st_write_sealed(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                              const eni_st_meta *meta, uint32_t nmeta, char digest_out[ENI_DIGEST_HEX],
                              char why_out[ENI_ST_WHY])
{
    eni_st_meta *sealed = eni_alloc_array((size_t)nmeta + 1, sizeof *sealed);
    if (sealed == NULL) return EN_ENOMEM;
    sealed[0] = (eni_st_meta){"digest", no_seal}; /* the first key: jansson keeps the order */
    for (uint32_t i = 0; i < nmeta; i++)
        sealed[1 + i] = meta[i];
    en_status st = write_file(path, tensors, ntensors, sealed, nmeta + 1, digest_out, why_out);
    eni_free(sealed);
    return st;
}
