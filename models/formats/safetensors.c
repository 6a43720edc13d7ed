/* safetensors.c - the strict reader, and the writer; see safetensors.h. */
#include "models/formats/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/rows.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "float32 is copied between file and memory unchanged");

enum { LENGTH_BYTES = 8 };

static const char *const dtypes[] = {
    [EN_F32] = "F32", [EN_BF16] = "BF16", [EN_F16] = "F16",   [EN_I32] = "I32", [EN_U8] = "U8",
    [EN_I64] = "I64", [EN_F64] = "F64",   [EN_BOOL] = "BOOL", [EN_I8] = "I8",   [EN_I16] = "I16",
    [EN_U16] = "U16", [EN_U32] = "U32",   [EN_U64] = "U64"};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* Names appear in messages and in other people's terminals. */
static bool is_clean_text(const char *text)
{
    size_t length = 0;
    for (; text[length] != '\0'; length++) {
        const unsigned char c = (unsigned char)text[length];
        if (c < 0x20 || c == 0x7f || length >= ENI_ST_MAX_NAME) return false;
    }
    return length > 0;
}

/* The only int64 in our state_dict: batch normalisation's counter. */
static bool is_batch_count(const char *name)
{
    const char *dot = strrchr(name, '.');
    return strcmp(dot == NULL ? name : dot + 1, "num_batches_tracked") == 0;
}

/* Types that our state_dict has. Others are memories of a program (entrain/rank.h), and their file says so: "types": "any". */
static bool is_plain(const eni_st_tensor *tensor)
{
    return tensor->dtype == EN_F32 || tensor->dtype == EN_U8 ||
           (tensor->dtype == EN_I64 && tensor->ndim == 0 && is_batch_count(tensor->name));
}

/* ---- one entry of the header ------------------------------------------------------------------------- */

static en_status shape_parse(const char *name, const json_t *shape, eni_st_tensor *tensor)
{
    tensor->ndim = (uint32_t)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > EN_MAX_DIMS)
        return eni_fail(EN_EFORMAT, "safetensors",
                        "%s: tensor %s: the shape is not a list of at most %d sides", name, tensor->name,
                        EN_MAX_DIMS);
    tensor->count = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        const json_t *side = json_array_get(shape, d);
        tensor->shape[d] = json_integer_value(side);
        if (!json_is_integer(side) || tensor->shape[d] < 0 ||
            __builtin_mul_overflow(tensor->count, (uint64_t)tensor->shape[d], &tensor->count))
            return eni_fail(EN_EFORMAT, "safetensors",
                            "%s: tensor %s: side %u of the shape is not a valid size", name, tensor->name, d);
    }
    return EN_OK;
}

/* data_offsets [begin, end), relative to the end of the header. */
static en_status offsets_parse(const char *name, const json_t *offsets, const unsigned char *data,
                               uint64_t data_bytes, eni_st_tensor *tensor)
{
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    const int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second) || begin < 0 ||
        end < begin || (uint64_t)end > data_bytes)
        return eni_fail(EN_EFORMAT, "safetensors",
                        "%s: tensor %s: data_offsets [%lld, %lld] lie outside the %llu bytes of data", name,
                        tensor->name, (long long)begin, (long long)end, (unsigned long long)data_bytes);
    const uint64_t bytes = (uint64_t)(end - begin), most = UINT64_MAX / sizeof(int64_t);
    if (tensor->count > most || eni_st_bytes(tensor) != bytes) {
        char shape[ENI_ST_SHAPE_TEXT];
        return eni_fail(EN_EFORMAT, "safetensors", "%s: tensor %s: shape %s does not match %llu bytes of %s",
                        name, tensor->name, eni_st_shape_text(tensor->shape, tensor->ndim, shape),
                        (unsigned long long)bytes, eni_st_dtype_text(tensor->dtype));
    }
    tensor->data = data + begin;
    return EN_OK;
}

static en_status tensor_parse(const char *name, const json_t *entry, const unsigned char *data,
                              uint64_t data_bytes, bool is_any, eni_st_tensor *tensor)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype) || json_object_size(entry) != 3)
        return eni_fail(EN_EFORMAT, "safetensors",
                        "%s: tensor %s: expected an object of dtype, shape and data_offsets", name,
                        tensor->name);
    const char *text = json_string_value(dtype);
    for (tensor->dtype = EN_F32; tensor->dtype < DTYPES; tensor->dtype++)
        if (strcmp(text, dtypes[tensor->dtype]) == 0) break;
    if (tensor->dtype == DTYPES || (!is_any && !is_plain(tensor)))
        return eni_fail(EN_EFORMAT, "safetensors", "%s: tensor %s has dtype %s; only F32 is supported%s: %s",
                        name, tensor->name, is_clean_text(text) ? text : "(not a name)",
                        strcmp(text, "I64") == 0 ? ", and I64 for num_batches_tracked" : "",
                        strchr(text, 'F') != NULL
                            ? "convert it with .float()"
                            : "omit it if it is not a weight (labels, position ids), or "
                              "convert it with .float()");
    EN_TRY(shape_parse(name, json_object_get(entry, "shape"), tensor));
    if (!is_any && tensor->dtype == EN_I64 && tensor->ndim != 0) {
        char shape[ENI_ST_SHAPE_TEXT];
        return eni_fail(EN_EFORMAT, "safetensors",
                        "%s: tensor %s has shape %s; expected () for a number of batches", name, tensor->name,
                        eni_st_shape_text(tensor->shape, tensor->ndim, shape));
    }
    return offsets_parse(name, json_object_get(entry, "data_offsets"), data, data_bytes, tensor);
}

static en_status meta_parse(const char *name, json_t *object, eni_st_file *file)
{
    if (!json_is_object(object))
        return eni_fail(EN_EFORMAT, "safetensors", "%s: __metadata__ is not an object", name);
    file->meta = eni_alloc_array(json_object_size(object), sizeof *file->meta);
    if (file->meta == NULL) return EN_ENOMEM;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return eni_fail(EN_EFORMAT, "safetensors", "%s: __metadata__ has a value other than text", name);
        file->meta[file->nmeta++] = (eni_st_meta){key, json_string_value(value)};
    }
    return EN_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

/* torch.save writes a zip archive; before 1.6 it wrote a bare pickle. */
static bool is_pickle(const unsigned char *bytes, size_t size)
{
    return size >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || (bytes[0] == 0x80 && bytes[1] <= 5));
}

static en_status header_parse(const char *name, const unsigned char *bytes, size_t size, size_t *header_out,
                              json_t **root_out)
{
    uint64_t header = 0;
    if (size >= LENGTH_BYTES) memcpy(&header, bytes, LENGTH_BYTES);
    if (size < LENGTH_BYTES || header > size - LENGTH_BYTES || header > ENI_ST_MAX_HEADER || header < 2) {
        if (is_pickle(bytes, size))
            eni_error("safetensors",
                      "%s is a PyTorch pickle, which runs code when it is loaded, so Entrain refuses it: "
                      "save it again with safetensors.torch.save_file(model.state_dict(), FILE)",
                      name);
        else
            eni_error("safetensors",
                      "%s: a header of %llu bytes in a file of %zu; not a safetensors file, or truncated: "
                      "fetch or save it again",
                      name, (unsigned long long)header, size);
        return EN_EFORMAT;
    }
    if (bytes[LENGTH_BYTES] != '{')
        return eni_fail(EN_EFORMAT, "safetensors",
                        "%s: the header does not begin with {; not a safetensors file", name);
    json_error_t error;
    json_t *root = json_loadb((const char *)bytes + LENGTH_BYTES, header, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        eni_error("safetensors", "%s: the header is invalid at byte %d (bad JSON, or a duplicate name)", name,
                  error.position);
        json_decref(root);
        return EN_EFORMAT;
    }
    *header_out = header;
    *root_out = root;
    return EN_OK;
}

static int by_data(const void *left, const void *right)
{
    const eni_st_tensor *a = left, *b = right;
    if (a->data != b->data) return (uintptr_t)a->data < (uintptr_t)b->data ? -1 : 1;
    return (a->count > b->count) - (a->count < b->count); /* an empty tensor ends where the next begins */
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static en_status tensors_cover(const char *name, eni_st_file *file, const unsigned char *data, uint64_t bytes)
{
    const unsigned char *end = data;
    if (file->ntensors > 1) qsort(file->tensors, file->ntensors, sizeof *file->tensors, by_data);
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const eni_st_tensor *tensor = &file->tensors[t];
        if (tensor->data != end)
            return eni_fail(EN_EFORMAT, "safetensors", "%s: tensor %s %s", name, tensor->name,
                            (uintptr_t)tensor->data < (uintptr_t)end ? "overlaps another"
                                                                     : "is preceded by a hole");
        end += eni_st_bytes(tensor);
    }
    if (end != data + bytes)
        return eni_fail(EN_EFORMAT, "safetensors", "%s: %llu bytes after the last tensor", name,
                        (unsigned long long)(data + bytes - end));
    return EN_OK;
}

static en_status count_is_one(const char *name, const eni_st_tensor *tensor)
{
    int64_t batches;
    memcpy(&batches, tensor->data, sizeof batches);
    if (batches >= 0 && batches <= INT64_C(1) << 53) return EN_OK;
    return eni_fail(EN_EFORMAT, "safetensors",
                    "%s: tensor %s: invalid number of batches %lld; expected 0 to 2^53", name, tensor->name,
                    (long long)batches);
}

static bool has_any_type(const eni_st_file *file)
{
    return eni_st_find_meta(file, "types") != NULL;
}

static en_status values_are_sound(const char *name, const eni_st_file *file)
{
    const bool is_any = has_any_type(file);
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const eni_st_tensor *tensor = &file->tensors[t];
        if (tensor->dtype == EN_I64 && !is_any) EN_TRY(count_is_one(name, tensor));
        for (uint64_t i = 0; i < tensor->count && tensor->dtype == EN_F32; i++) {
            float value;
            memcpy(&value, (const unsigned char *)tensor->data + i * sizeof value, sizeof value);
            if (isfinite(value)) continue;
            return eni_fail(EN_ENONFINITE, "safetensors", "%s: tensor %s: element %llu is %f, not finite",
                            name, tensor->name, (unsigned long long)i, (double)value);
        }
    }
    return EN_OK;
}

static en_status entries_parse(const char *name, json_t *root, const unsigned char *data, uint64_t bytes,
                               eni_st_file *file)
{
    const char *key;
    json_t *entry, *about = json_object_get(root, "__metadata__");
    if (about != NULL) EN_TRY(meta_parse(name, about, file));
    file->tensors = eni_alloc_array(json_object_size(root), sizeof *file->tensors);
    if (file->tensors == NULL) return EN_ENOMEM;
    json_object_foreach(root, key, entry)
    {
        if (entry == about) continue;
        if (!is_clean_text(key))
            return eni_fail(EN_EFORMAT, "safetensors",
                            "%s: a tensor's name is empty, longer than %d bytes, or has control characters",
                            name, ENI_ST_MAX_NAME);
        eni_st_tensor *tensor = &file->tensors[file->ntensors++];
        tensor->name = key;
        EN_TRY(tensor_parse(name, entry, data, bytes, has_any_type(file), tensor));
    }
    EN_TRY(tensors_cover(name, file, data, bytes));
    return values_are_sound(name, file);
}

en_status eni_st_parse(const char *name, const void *data, size_t bytes, eni_st_file *file_out)
{
    size_t header;
    json_t *root;
    EN_TRY(header_parse(name, data, bytes, &header, &root));
    eni_st_file file = {.header = root};
    const size_t start = LENGTH_BYTES + header;
    en_status st = entries_parse(name, root, (const unsigned char *)data + start, bytes - start, &file);
    if (st == EN_OK)
        *file_out = file;
    else
        eni_st_close(&file);
    return st;
}

void eni_st_close(eni_st_file *file)
{
    json_decref(file->header);
    eni_free(file->tensors);
    eni_free(file->meta);
    eni_free(file->bytes);
    *file = (eni_st_file){0};
}

/* ---- from disk --------------------------------------------------------------------------------------- */

static en_status read_all(const char *path, int fd, unsigned char *bytes, size_t size,
                          char why_out[ENI_ST_WHY])
{
    for (size_t done = 0; done < size;) {
        const ssize_t got = read(fd, bytes + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            snprintf(why_out, ENI_ST_WHY, "%s: read stopped after %zu of %zu bytes: %s", path, done, size,
                     got < 0 ? strerror(errno) : "the file was truncated");
            return EN_EIO;
        }
        done += (size_t)got;
    }
    return EN_OK;
}

/* O_NONBLOCK: opening a named pipe must not wait for its writer. */
en_status eni_st_contents(const char *path, uint64_t max_bytes, unsigned char **bytes_out, size_t *size_out,
                          char why_out[ENI_ST_WHY])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const int cause = errno;
        snprintf(why_out, ENI_ST_WHY, "cannot open %s: %s", path, strerror(cause));
        return cause == ENOENT ? EN_ENOENT : EN_EIO;
    }
    struct stat info;
    en_status st = EN_EIO;
    unsigned char *bytes = NULL;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        snprintf(why_out, ENI_ST_WHY, "%s is not a regular file", path);
    } else if ((uint64_t)info.st_size > max_bytes) {
        snprintf(why_out, ENI_ST_WHY, "%s has %lld bytes; at most %llu are expected here", path,
                 (long long)info.st_size, (unsigned long long)max_bytes);
        st = EN_EFORMAT;
    } else if ((bytes = eni_alloc((size_t)info.st_size)) == NULL) {
        snprintf(why_out, ENI_ST_WHY, "%s has %lld bytes, which do not fit into memory", path,
                 (long long)info.st_size);
        st = EN_ENOMEM;
    } else {
        st = read_all(path, fd, bytes, (size_t)info.st_size, why_out);
    }
    close(fd);
    if (st != EN_OK) {
        eni_free(bytes);
        return st;
    }
    *bytes_out = bytes;
    *size_out = (size_t)info.st_size;
    return EN_OK;
}

en_status eni_st_read(const char *path, uint64_t max_bytes, eni_st_file *file_out)
{
    char why[ENI_ST_WHY];
    unsigned char *bytes;
    size_t size;
    en_status st = eni_st_contents(path, max_bytes, &bytes, &size, why);
    if (st != EN_OK) return eni_fail(st, "safetensors", "%s", why);
    st = eni_st_parse(path, bytes, size, file_out);
    if (st == EN_OK)
        file_out->bytes = bytes;
    else
        eni_free(bytes);
    return st;
}

/* ---- look-ups ---------------------------------------------------------------------------------------- */

const eni_st_tensor *eni_st_find(const eni_st_file *file, const char *name)
{
    for (uint32_t t = 0; t < file->ntensors; t++)
        if (strcmp(file->tensors[t].name, name) == 0) return &file->tensors[t];
    return NULL;
}

const char *eni_st_find_meta(const eni_st_file *file, const char *key)
{
    for (uint32_t m = 0; m < file->nmeta; m++)
        if (strcmp(file->meta[m].key, key) == 0) return file->meta[m].value;
    return NULL;
}

const char *eni_st_dtype_text(uint32_t dtype)
{
    return dtypes[dtype];
}

const char *eni_st_shape_text(const int64_t *shape, uint32_t ndim, char text_out[ENI_ST_SHAPE_TEXT])
{
    size_t at = (size_t)snprintf(text_out, ENI_ST_SHAPE_TEXT, "(");
    for (uint32_t d = 0; d < ndim; d++) /* 8 sides of at most 19 digits fit */
        at += (size_t)snprintf(text_out + at, ENI_ST_SHAPE_TEXT - at, "%s%lld", d ? ", " : "",
                               (long long)shape[d]);
    snprintf(text_out + at, ENI_ST_SHAPE_TEXT - at, ")");
    return text_out;
}

enum { HEADER_ALIGN = 8 }; /* the data is aligned to 8 bytes, as by the Rust and Python writers */

/* ---- writing: atomic; first the header ---- */

/* False: out of memory, or text that is not UTF-8. */
static bool add_meta(json_t *root, const eni_st_meta *meta, uint32_t nmeta, bool is_any)
{
    json_t *object = json_object();
    if (json_object_set_new(root, "__metadata__", object) != 0) return false;
    for (uint32_t m = 0; m < nmeta; m++)
        if (json_object_set_new(object, meta[m].key, json_string(meta[m].value)) != 0) return false;
    return !is_any || json_object_set_new(object, "types", json_string("any")) == 0;
}

/* False as above, or a duplicate name. */
static bool add_tensor(json_t *root, const eni_st_tensor *tensor, uint64_t begin)
{
    const uint64_t end = begin + eni_st_bytes(tensor);
    if (json_object_get(root, tensor->name) != NULL) return false;
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->ndim; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", eni_st_dtype_text(tensor->dtype), "shape",
                              shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    return json_object_set_new(root, tensor->name, entry) == 0;
}

/* The header's text without its padding, freed with free(); NULL if out of memory. */
static char *header_new(const eni_st_tensor *tensors, uint32_t ntensors, const eni_st_meta *meta,
                        uint32_t nmeta)
{
    json_t *root = json_object();
    uint64_t begin = 0;
    bool is_any = false;
    for (uint32_t t = 0; t < ntensors; t++)
        is_any = is_any || !is_plain(&tensors[t]);
    bool is_good = (nmeta == 0 && !is_any) || add_meta(root, meta, nmeta, is_any);
    for (uint32_t t = 0; t < ntensors && is_good; t++) {
        is_good = add_tensor(root, &tensors[t], begin);
        begin += eni_st_bytes(&tensors[t]);
    }
    char *text = is_good ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* ---- the seal ---------------------------------------------------------------------------------------- */

#define SEAL_PREFIX "{\"__metadata__\":{\"digest\":\""
enum { SEAL_AT = sizeof SEAL_PREFIX - 1, SEAL_BYTES = ENI_DIGEST_HEX - 1 };
static const char no_seal[ENI_DIGEST_HEX] =
    "0000000000000000000000000000000000000000000000000000000000000000";

/* Writes the hash of the file's parts into the header in place of no_seal. */
static void seal(char *header, const struct iovec *parts, size_t n, char digest_out[ENI_DIGEST_HEX])
{
    eni_digest digest;
    eni_digest_begin(&digest);
    for (size_t i = 0; i < n; i++)
        eni_digest_add(&digest, parts[i].iov_base, parts[i].iov_len);
    eni_digest_end(&digest, digest_out);
    memcpy(header + SEAL_AT, digest_out, SEAL_BYTES);
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
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, at, begin);
    eni_digest_add(&digest, no_seal, SEAL_BYTES);
    eni_digest_add(&digest, at + end, bytes - end);
    eni_digest_end(&digest, digest_out);
    if (memcmp(at + begin, digest_out, SEAL_BYTES) == 0) return EN_OK;
    snprintf(why_out, ENI_ST_WHY,
             "its %zu bytes hash to %.8s.., but its digest is %.8s..: damaged or truncated", bytes,
             digest_out, at + begin);
    return EN_EFORMAT;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* Tensors in the order of the file, freed with eni_free; NULL: out of memory. */
static eni_st_tensor *wide_first(const eni_st_tensor *tensors, uint32_t n)
{
    eni_st_tensor *ordered = eni_alloc_array(n, sizeof *ordered);
    uint32_t at = 0;
    for (size_t bytes = 8; bytes > 0 && ordered != NULL; bytes /= 2)
        for (uint32_t t = 0; t < n; t++)
            if (en_dtype_bytes(tensors[t].dtype) == bytes) ordered[at++] = tensors[t];
    return ordered;
}

/* Makes all data row-major, which needs copies of some; false: out of memory. */
static bool lie_in_rows(eni_st_tensor *tensors, uint32_t n, void **copies)
{
    for (uint32_t t = 0; t < n; t++) {
        if (tensors[t].own == NULL) continue;
        tensors[t].data = eni_rows_of(tensors[t].own, tensors[t].data, &copies[t]);
        if (tensors[t].data == NULL) return false;
    }
    return true;
}

/* digest_out NULL: without a seal. */
static en_status write_file(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                            const eni_st_meta *meta, uint32_t nmeta, char *digest_out,
                            char why_out[ENI_ST_WHY])
{
    static char spaces[HEADER_ALIGN] = "        ";
    eni_st_tensor *ordered = wide_first(tensors, ntensors);
    char *header = ordered != NULL ? header_new(ordered, ntensors, meta, nmeta) : NULL;
    const size_t n = 3 + (size_t)ntensors;
    struct iovec *parts = eni_alloc_array(n, sizeof *parts);
    void **copies = eni_alloc_array(ntensors, sizeof *copies);
    en_status st = EN_ENOMEM;
    snprintf(why_out, ENI_ST_WHY,
             "%s: cannot make the header: out of memory, or a name is not UTF-8 or a duplicate", path);
    if (header != NULL && parts != NULL && copies != NULL && lie_in_rows(ordered, ntensors, copies)) {
        const size_t text = strlen(header);
        uint64_t length = eni_round_up(text, HEADER_ALIGN); /* with its padding */
        parts[0] = (struct iovec){&length, sizeof length};
        parts[1] = (struct iovec){header, text};
        parts[2] = (struct iovec){spaces, length - text};
        for (uint32_t t = 0; t < ntensors; t++)
            parts[3 + t] = (struct iovec){(void *)(uintptr_t)ordered[t].data, eni_st_bytes(&ordered[t])};
        if (digest_out != NULL) seal(header, parts, n, digest_out);
        st = eni_file_replace(path, parts, n, why_out, ENI_ST_WHY);
    }
    for (uint32_t t = 0; t < ntensors && copies != NULL; t++)
        eni_free(copies[t]);
    eni_free(copies);
    eni_free(parts);
    eni_free(ordered);
    free(header); /* from jansson, by malloc */
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
