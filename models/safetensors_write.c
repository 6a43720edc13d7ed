/* safetensors_write.c - a safetensors file that is there whole or not at all; see safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/safetensors.h"
#include "runtime/core/digest.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

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
    const uint64_t end = begin + tensor->count * sizeof(float);
    if (json_object_get(root, tensor->name) != NULL) return -1;
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->ndim; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                              (json_int_t)begin, (json_int_t)end);
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
        begin += tensors[t].count * sizeof(float);
    }
    char *text = failed == 0 ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static en_status write_all(const char *path, int fd, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        const ssize_t put = write(fd, at, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            eni_error("safetensors", "cannot write %s: %s", path, strerror(errno));
            return EN_EIO;
        }
        at += put;
        bytes -= (size_t)put;
    }
    return EN_OK;
}

static en_status contents_write(const char *path, int fd, const char *header, const eni_st_tensor *tensors,
                                uint32_t ntensors)
{
    static const char spaces[HEADER_ALIGN] = "        ";
    const size_t text = strlen(header);
    const uint64_t length = eni_round_up(text, HEADER_ALIGN);
    EN_TRY(write_all(path, fd, &length, sizeof length));
    EN_TRY(write_all(path, fd, header, text));
    EN_TRY(write_all(path, fd, spaces, length - text));
    for (uint32_t t = 0; t < ntensors; t++)
        EN_TRY(write_all(path, fd, tensors[t].data, tensors[t].count * sizeof(float)));
    if (fsync(fd) != 0) {
        eni_error("safetensors", "cannot bring %s to the disk: %s", path, strerror(errno));
        return EN_EIO;
    }
    return EN_OK;
}

/* Makes the rename itself durable. */
static en_status folder_sync(const char *path)
{
    char *folder = eni_strdup(path);
    if (folder == NULL) return EN_ENOMEM;
    char *slash = strrchr(folder, '/');
    if (slash != NULL) slash[slash == folder] = '\0';
    const int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int failed = fd < 0 || fsync(fd) != 0;
    if (failed)
        eni_error("safetensors", "cannot bring the folder of %s to the disk: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    eni_free(folder);
    return failed ? EN_EIO : EN_OK;
}

/* "PATH.0123456789abcdef": beside the target, so that rename works, and nobody else's. Freed with eni_free.
 */
static char *temporary_name(const char *path)
{
    uint64_t tag;
    eni_random_bytes(&tag, sizeof tag);
    const size_t bytes = strlen(path) + sizeof ".0123456789abcdef";
    char *name = eni_alloc(bytes);
    if (name != NULL) snprintf(name, bytes, "%s.%016llx", path, (unsigned long long)tag);
    return name;
}

static en_status replace(const char *path, const char *temporary, const char *header,
                         const eni_st_tensor *tensors, uint32_t ntensors)
{
    en_status st = EN_OK;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        const int cause = errno;
        eni_error("safetensors", "cannot create %s: %s", temporary, strerror(cause));
        return cause == ENOENT ? EN_ENOENT : EN_EIO;
    }
    EN_TRY_GOTO(contents_write(temporary, fd, header, tensors, ntensors), remove_temporary);
    if (close(fd) != 0 || (fd = -1, rename(temporary, path)) != 0) {
        eni_error("safetensors", "cannot put %s in place: %s", path, strerror(errno));
        st = EN_EIO;
        goto remove_temporary;
    }
    return folder_sync(path);

remove_temporary:
    if (fd >= 0) close(fd);
    unlink(temporary);
    return st;
}

en_status eni_st_write(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                       const eni_st_meta *meta, uint32_t nmeta)
{
    char *header = header_new(tensors, ntensors, meta, nmeta);
    char *temporary = temporary_name(path);
    en_status st = EN_ENOMEM;
    if (header == NULL)
        eni_error("safetensors", "%s: no header: out of memory, or a name that is not UTF-8 or there twice",
                  path);
    else if (temporary != NULL)
        st = replace(path, temporary, header, tensors, ntensors);
    free(header); /* jansson's, made with malloc */
    eni_free(temporary);
    return st;
}
