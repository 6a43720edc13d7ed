/* cifar.c - a set in the binary files of CIFAR-10 or CIFAR-100 (Krizhevsky 2009), mapped, not copied: the ranks of a host
 * share the pages.
 *
 *     CIFAR-10    data_batch_1.bin .. data_batch_5.bin, test_batch.bin     a record: label, image
 *     CIFAR-100   train.bin, test.bin                                      a record: label of 20, label of 100, image
 *     image       1,024 bytes red, 1,024 green, 1,024 blue, each 32 rows of 32
 *
 * Accepts any number of records. An optional set-name.txt beside them names the set, since files of this form are not
 * always CIFAR (tools/make_cifar.py). Writing to a mapped file changes the run. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset_make.h"
#include "plugin/hook.h"

enum { SIDE = 32, CHANNELS = 3, IMAGE = SIDE * SIDE * CHANNELS, FILES = 6 };

typedef struct cifar_form {
    const char *name, *file[FILES]; /* the last is the test set */
    int nfiles, labels, classes;
} cifar_form;

static const cifar_form forms[] = {
    [ENI_CIFAR_10] = {"CIFAR-10",
                      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                       "data_batch_5.bin", "test_batch.bin"},
                      6,
                      1,
                      10},
    [ENI_CIFAR_100] = {"CIFAR-100", {"train.bin", "test.bin"}, 2, 2, 100},
};

struct eni_cifar {
    const cifar_form *form;
    char folder[PATH_MAX];
    eni_record_file file[FILES];
};

const char *eni_cifar_file(int kind, int i)
{
    return i >= 0 && i < forms[kind].nfiles ? forms[kind].file[i] : NULL;
}

static size_t record_bytes(const cifar_form *form)
{
    return (size_t)form->labels + IMAGE;
}

/* ---- one file ---- */

static en_status refuse_size(const cifar_form *form, const char *path, uint64_t bytes)
{
    const uint64_t size = record_bytes(form), whole = bytes / size;
    if (bytes == 0) return eni_fail(EN_EFORMAT, "cifar", "%s is empty; unpack it again", path);
    return eni_fail(
        EN_EFORMAT, "cifar",
        "%s is truncated, or not a file of %s: record %llu has %llu of %llu bytes; unpack it again", path,
        form->name, (ull)whole, (ull)(bytes % size), (ull)size);
}

en_status eni_cifar_check(int kind, const char *path, const eni_record_file *file, uint64_t first,
                          uint64_t count)
{
    const cifar_form *form = &forms[kind];
    const size_t size = record_bytes(form);
    for (uint64_t i = first; i < first + count; i++) {
        const uint8_t label = file->base[i * size + (size_t)form->labels - 1];
        if (label >= form->classes)
            return eni_fail(EN_EFORMAT, "cifar",
                            "%s: record %llu has label %u, but %s has labels 0 to %d; unpack it again", path,
                            (ull)i, label, form->name, form->classes - 1);
    }
    return EN_OK;
}

/* Does not touch pages: the check of labels touches all that are used, since each page has a label, so no step is the
 * first to touch one. Private, since FUSE and 9p refuse shared mappings if they do not cache pages, and readers see the
 * same pages either way. A file that cannot be mapped is read into memory. */
static void *map_or_read(int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base != MAP_FAILED || (errno != ENODEV && errno != EINVAL && errno != ENOSYS && errno != EACCES))
        return base;
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || eni_file_read_at(fd, base, bytes, 0)) return base;
    const int code = errno;
    munmap(base, bytes);
    errno = code;
    return MAP_FAILED;
}

en_status eni_cifar_map(int kind, const char *path, bool is_whole, eni_record_file *file_out)
{
    const cifar_form *form = &forms[kind];
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int code = errno;
        if (fd >= 0) close(fd);
        return eni_fail(EN_EIO, "cifar", "cannot open %s: %s", path, strerror(code));
    }
    const uint64_t bytes = S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    const bool is_good = bytes > 0 && bytes % record_bytes(form) == 0;
    void *base = is_good && is_whole ? map_or_read(fd, bytes) : NULL;
    const int code = errno;
    close(fd);
    if (!S_ISREG(info.st_mode)) return eni_fail(EN_EFORMAT, "cifar", "%s is not a regular file", path);
    if (!is_good) return refuse_size(form, path, bytes);
    if (base == MAP_FAILED) return eni_fail(EN_ENOMEM, "cifar", "cannot read %s: %s", path, strerror(code));
    *file_out = (eni_record_file){.base = base, .count = bytes / record_bytes(form), .bytes = bytes};
    if (base == NULL) return EN_OK;
    eni_hook_mapped(base, bytes, path);
    return EN_OK;
}

void eni_cifar_unmap(eni_record_file *file)
{
    if (file->base != NULL) {
        eni_hook_unmapped(file->base);
        munmap((void *)file->base, file->bytes);
    }
    *file = (eni_record_file){0};
}

/* ---- the folder ---- */

static bool holds(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           access(path, F_OK) == 0;
}

/* -1: neither form. */
static int form_in(const char *folder)
{
    for (int kind = ENI_CIFAR_10; kind <= ENI_CIFAR_100; kind++)
        for (int i = 0; i < forms[kind].nfiles; i++)
            if (holds(folder, forms[kind].file[i])) return kind;
    return -1;
}

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

en_status eni_cifar_refuse_other(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return EN_OK;
    if (S_ISREG(info.st_mode) && (ends_in(path, ".tar.gz") || ends_in(path, ".tgz") || ends_in(path, ".tar")))
        return eni_fail(EN_EFORMAT, "dataset",
                        "%s is an archive: unpack it (tar -xf %s -C FOLDER) and name the folder with the "
                        ".bin files, such as FOLDER/cifar-10-batches-bin",
                        path, path);
    if (S_ISREG(info.st_mode) && (ends_in(path, ".pt") || ends_in(path, ".pth")))
        return eni_fail(
            EN_EFORMAT, "dataset",
            "%s is a PyTorch pickle, which runs code when it is loaded, so Entrain refuses it: write the "
            "original files with tools/pt2idx.py (MNIST) or tools/cifar_py2bin.py (CIFAR)",
            path);
    if (S_ISREG(info.st_mode))
        return eni_fail(EN_EFORMAT, "dataset", "%s is a file: name the folder of the data set", path);
    const bool is_within = holds(path, "cifar-10-batches-py") || holds(path, "cifar-100-python");
    if (is_within || holds(path, "data_batch_1") || (holds(path, "train") && holds(path, "meta")))
        return eni_fail(EN_EFORMAT, "dataset",
                        "%s has CIFAR as Python pickles, which run code when they are loaded, so Entrain "
                        "refuses them: write the binary files with tools/cifar_py2bin.py %s%s FOLDER",
                        path, path,
                        !is_within                           ? ""
                        : holds(path, "cifar-10-batches-py") ? "/cifar-10-batches-py"
                                                             : "/cifar-100-python");
    static const char *const archives[] = {"cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz",
                                           "cifar-10-python.tar.gz", "cifar-100-python.tar.gz"};
    for (size_t i = 0; i < sizeof archives / sizeof *archives; i++)
        if (holds(path, archives[i]))
            return eni_fail(EN_EFORMAT, "dataset",
                            "%s has the archive %s: unpack it with tar -xzf %s/%s -C %s", path, archives[i],
                            path, archives[i], path);
    return EN_OK;
}

int eni_cifar_find(const char *folder, int wanted, char found_out[PATH_MAX])
{
    static const char *const inner[] = {"", "/cifar-10-batches-bin", "/cifar-100-binary"};
    for (int only = wanted; only >= -1; only = only == -1 ? -2 : -1) /* prefer the wanted form */
        for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
            if ((size_t)snprintf(found_out, PATH_MAX, "%s%s", folder, inner[i]) >= PATH_MAX) continue;
            const int kind = form_in(found_out);
            if (kind >= 0 && (only == -1 || kind == only)) return kind;
        }
    snprintf(found_out, PATH_MAX, "%s", folder);
    return -1;
}

static en_status map_file(const cifar_form *form, int kind, const char *folder, int i, bool is_whole,
                          eni_record_file *file_out)
{
    char path[PATH_MAX];
    if (!holds(folder, form->file[i]))
        return eni_fail(EN_ENOENT, "cifar",
                        "%s has no file %s: the format of %s consists of %s%s and %s; unpack it again",
                        folder, form->file[i], form->name, form->file[0],
                        form->nfiles > 2 ? " to data_batch_5.bin" : "", form->file[form->nfiles - 1]);
    snprintf(path, sizeof path, "%s/%s", folder, form->file[i]); /* fits: the file exists */
    return eni_cifar_map(kind, path, is_whole, file_out);
}

en_status eni_cifar_size(int kind, const char *folder, uint64_t *size_out)
{
    const cifar_form *form = &forms[kind];
    *size_out = 0;
    for (int i = 0; i + 1 < form->nfiles; i++) {
        eni_record_file file;
        EN_TRY(map_file(form, kind, folder, i, false, &file));
        *size_out += file.count;
    }
    return EN_OK;
}

void eni_cifar_shape(int kind, en_data_shape *shape_out)
{
    *shape_out = (en_data_shape){SIDE, SIDE, CHANNELS, forms[kind].classes};
}

/* The name in set-name.txt, if there is one: letters, digits, '-', '_' and '.'. Only CIFAR may be called CIFAR. */
static en_status read_name(const char *folder, char name_out[64])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    char path[PATH_MAX], text[64] = "";
    snprintf(path, sizeof path, "%.*s/" ENI_CIFAR_NAME, PATH_MAX - 20, folder);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return EN_OK;
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    const int code = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return eni_fail(EN_EIO, "cifar", "cannot read %s: %s", path, strerror(code));
    const size_t length = strcspn(text, "\r\n");
    const bool is_line =
        length + strspn(text + length, "\r\n") == (size_t)n; /* without a zero byte or a second line */
    text[length] = '\0';
    if (is_line && strncasecmp(text, "cifar", 5) == 0)
        return eni_fail(EN_EFORMAT, "cifar",
                        "%s names the data set %s, but CIFAR's own files need no name: choose another, or "
                        "remove the file",
                        path, text);
    if (!is_line || text[0] == '\0' || n == sizeof text - 1 || strspn(text, letters) != strlen(text))
        return eni_fail(EN_EFORMAT, "cifar",
                        "%s must be one line with the name of the data set, 1 to 60 letters, digits, '-', "
                        "'_' and '.': correct or remove it",
                        path);
    memcpy(name_out, text, sizeof text);
    return EN_OK;
}

en_status eni_cifar_read(int kind, const char *folder, eni_dataset *set)
{
    const cifar_form *form = &forms[kind];
    EN_TRY(read_name(folder, set->name));
    eni_cifar *r = set->records = eni_alloc(sizeof *r);
    if (r == NULL) return EN_ENOMEM;
    r->form = form;
    snprintf(r->folder, sizeof r->folder, "%s", folder);
    for (int i = 0; i < form->nfiles; i++) {
        EN_TRY(map_file(form, kind, folder, i, true, &r->file[i]));
        set->split[i + 1 < form->nfiles ? ENI_TRAIN : ENI_TEST].count += r->file[i].count;
    }
    if (set->split[ENI_TRAIN].count > UINT32_MAX)
        return eni_fail(EN_EFORMAT, "cifar", "%s: %llu images are more than this reader supports", folder,
                        (ull)set->split[ENI_TRAIN].count);
    set->height = set->width = SIDE;
    set->channels = CHANNELS;
    set->classes = form->classes;
    return EN_OK;
}

void eni_cifar_close(eni_cifar *r)
{
    if (r == NULL) return;
    for (int i = 0; i < FILES; i++)
        eni_cifar_unmap(&r->file[i]);
    eni_free(r);
}

const uint8_t *eni_cifar_at(const eni_cifar *r, bool is_test, uint64_t i, uint8_t *label_out)
{
    const size_t size = record_bytes(r->form), labels = (size_t)r->form->labels;
    const eni_record_file *file = is_test ? &r->file[r->form->nfiles - 1] : r->file;
    for (; i >= file->count; file++)
        i -= file->count;
    const uint8_t *record = file->base + i * size;
    *label_out = record[labels - 1];
    return record + labels;
}

/* How many of the `count` records from `*first` on are in this file; adjusts `*first` for the next file. */
static uint64_t part_in(const eni_record_file *file, uint64_t count, uint64_t *first, uint64_t *from_out)
{
    *from_out = *first < file->count ? *first : file->count;
    *first -= *from_out;
    return count < file->count - *from_out ? count : file->count - *from_out;
}

void eni_cifar_hash(const eni_cifar *r, bool is_test, uint64_t first, uint64_t count, eni_digest *digest)
{
    const size_t size = record_bytes(r->form);
    const eni_record_file *file = is_test ? &r->file[r->form->nfiles - 1] : r->file;
    for (uint64_t from, n; count > 0; file++, count -= n)
        if ((n = part_in(file, count, &first, &from)) > 0)
            eni_digest_add(digest, file->base + from * size, n * size);
}

en_status eni_cifar_check_labels(const eni_cifar *r, bool is_test, uint64_t first, uint64_t count)
{
    char path[PATH_MAX + 32];
    uint64_t from, n;
    for (int i = is_test ? r->form->nfiles - 1 : 0; count > 0; i++, count -= n) {
        n = part_in(&r->file[i], count, &first, &from);
        snprintf(path, sizeof path, "%s/%s", r->folder, r->form->file[i]);
        EN_TRY(eni_cifar_check((int)(r->form - forms), path, &r->file[i], from, n));
    }
    return EN_OK;
}

uint64_t eni_cifar_record_bytes(const eni_cifar *r)
{
    return record_bytes(r->form);
}
