/* folder.c - a set in files: the four IDX files of an MNIST-like set in one folder.
 *
 *     byte 0, 1   0
 *     byte 2      element type: 0x08 is unsigned byte, the only one read here
 *     byte 3      dimensions d: 1 (labels) or 3 (images)
 *     4 + 4 i     size of dimension i, big-endian, i < d
 *     4 + 4 d     the elements, row-major, to the end of the file
 *
 * Source: yann.lecun.com/exdb/mnist, "The IDX file format". Any deviation is refused, naming the file, what was found and
 * what was expected. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset_make.h"

/* ---- one IDX file ---- */

enum { HEADER_MAX = 4 + 4 * ENI_IDX_DIMS, TYPE_U8 = 0x08, FEW_CLASSES = 10 };

static uint64_t big_endian(const uint8_t *byte)
{
    return (uint64_t)byte[0] << 24 | (uint64_t)byte[1] << 16 | (uint64_t)byte[2] << 8 | byte[3];
}

/* Bytes of the header that starts with these 4, or 0 with the reason logged. */
static size_t header_bytes(const uint8_t magic[4], const char *name)
{
    if (magic[0] == 0x80 || memcmp(magic, "PK\3\4", 4) == 0)
        eni_error(
            "idx",
            "%s is a PyTorch pickle, which runs code when it is loaded, so Entrain refuses it: give the "
            "original IDX files (train-images-idx3-ubyte.gz, ..), or write them with tools/pt2idx.py",
            name);
    else if (magic[0] != 0 || magic[1] != 0)
        eni_error("idx", "%s is not an IDX file: it starts with bytes %02x %02x %02x %02x, expected 00 00 08",
                  name, magic[0], magic[1], magic[2], magic[3]);
    else if (magic[2] != TYPE_U8)
        eni_error("idx", "%s: element type 0x%02x; only 0x08 (unsigned byte) is supported", name, magic[2]);
    else if (magic[3] != 1 && magic[3] != ENI_IDX_DIMS)
        eni_error("idx", "%s: %u dimensions, expected 1 (labels) or 3 (images)", name, magic[3]);
    else
        return 4 + 4 * (size_t)magic[3];
    return 0;
}

/* Reads the sizes from a complete header. */
static en_status parse_header(const uint8_t *header, const char *name, eni_idx *idx)
{
    idx->ndims = header[3];
    idx->bytes = 1;
    for (int i = 0; i < ENI_IDX_DIMS; i++) {
        idx->dim[i] = i < idx->ndims ? big_endian(header + 4 + 4 * i) : 1;
        if (idx->dim[i] == 0)
            return eni_fail(EN_EFORMAT, "idx", "%s: dimension %d is 0, so the file is empty", name, i);
        if (__builtin_mul_overflow(idx->bytes, idx->dim[i], &idx->bytes) || idx->bytes > ENI_IDX_MAX_BYTES)
            return eni_fail(EN_EFORMAT, "idx",
                            "%s: its header declares more than %llu bytes of elements; it is damaged, or too "
                            "large for this reader",
                            name, (ull)ENI_IDX_MAX_BYTES);
    }
    return EN_OK;
}

static en_status truncated(const char *name, uint64_t found, uint64_t expected)
{
    return eni_fail(EN_EFORMAT, "idx", "%s is truncated: %llu bytes of %llu; fetch it again", name,
                    (ull)found, (ull)expected);
}

/* Reads `bytes` decompressed bytes; *found_out is less only at the end of the file. */
static en_status read_bytes(gzFile file, const char *path, uint8_t *into, uint64_t bytes, uint64_t *found_out)
{
    uint64_t found = 0;
    while (found < bytes) {
        uint64_t left = bytes - found;
        int got = gzread(file, into + found, left > (1u << 30) ? 1u << 30 : (unsigned)left);
        if (got < 0) {
            int code;
            const char *why = gzerror(file, &code);
            return eni_fail(code == Z_ERRNO ? EN_EIO : EN_EFORMAT, "idx",
                            "cannot decompress %s: %s; fetch it again", path,
                            code == Z_ERRNO ? strerror(errno) : why);
        }
        if (got == 0) break;
        found += (unsigned)got;
    }
    *found_out = found;
    return EN_OK;
}

/* A small damaged file must not make us allocate gigabytes: deflate compresses at most 1032 to 1 (zlib's "technical
 * details"), and plain files not at all. */
static en_status check_plausible(const char *path, uint64_t file_bytes, bool is_plain, uint64_t promised)
{
    uint64_t most = is_plain ? file_bytes : file_bytes * 1032;
    if (promised <= most) return EN_OK;
    return eni_fail(
        EN_EFORMAT, "idx",
        "%s is truncated: its %llu bytes cannot hold the %llu that its header declares; fetch it again", path,
        (ull)file_bytes, (ull)promised);
}

/* Reads the header of an open file: the shape, and the header's length. */
static en_status read_head(gzFile file, const char *path, uint64_t file_bytes, eni_idx *idx, size_t *head_out)
{
    uint8_t header[HEADER_MAX];
    uint64_t found;
    EN_TRY(read_bytes(file, path, header, 4, &found));
    if (found < 4) return truncated(path, found, 4);
    size_t head = header_bytes(header, path);
    if (head == 0) return EN_EFORMAT;
    EN_TRY(read_bytes(file, path, header + 4, head - 4, &found));
    if (found < head - 4) return truncated(path, 4 + found, head);
    EN_TRY(parse_header(header, path, idx));
    *head_out = head;
    return check_plausible(path, file_bytes, gzdirect(file) != 0, head + idx->bytes);
}

/* Reads the elements after the header; on failure the caller frees idx->elements. */
static en_status read_elements(gzFile file, const char *path, size_t head, eni_idx *idx)
{
    uint64_t found;
    idx->elements = eni_alloc(idx->bytes);
    if (idx->elements == NULL) return EN_ENOMEM;
    EN_TRY(read_bytes(file, path, idx->elements, idx->bytes, &found));
    if (found < idx->bytes) return truncated(path, head + found, head + idx->bytes);
    uint8_t extra;
    EN_TRY(read_bytes(file, path, &extra, 1, &found)); /* also makes zlib check the CRC of a gzip file */
    if (found != 0)
        return eni_fail(EN_EFORMAT, "idx", "%s has data after its last element; header and content disagree",
                        path);
    return EN_OK;
}

/* Opens regular files only: a fifo could block forever. */
static en_status open_file(const char *path, gzFile *file_out, uint64_t *bytes_out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        int code = errno;
        if (fd >= 0) close(fd);
        return eni_fail(code == ENOENT || code == ENOTDIR ? EN_ENOENT : EN_EIO, "idx", "cannot open %s: %s",
                        path, strerror(code));
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return eni_fail(EN_EFORMAT, "idx", "%s is not a regular file", path);
    }
    gzFile file = gzdopen(fd, "rb");
    if (file == NULL) {
        close(fd);
        return eni_fail(EN_ENOMEM, "idx", "out of memory for decompressing %s", path);
    }
    gzbuffer(file, 1u << 18);
    *file_out = file;
    *bytes_out = (uint64_t)info.st_size;
    return EN_OK;
}

en_status eni_idx_read(const char *path, bool is_whole, eni_idx *idx_out)
{
    gzFile file;
    uint64_t file_bytes;
    size_t head;
    eni_idx idx = {0};
    EN_TRY(open_file(path, &file, &file_bytes));
    en_status st = read_head(file, path, file_bytes, &idx, &head);
    if (st == EN_OK && is_whole) st = read_elements(file, path, head, &idx);
    const int closed = gzclose_r(file);
    if (st == EN_OK && is_whole && closed != Z_OK)
        st = eni_fail(EN_EFORMAT, "idx", "%s is truncated: its gzip stream does not end; fetch it again",
                      path);
    if (st != EN_OK)
        eni_idx_fini(&idx);
    else
        *idx_out = idx;
    return st;
}

void eni_idx_fini(eni_idx *idx)
{
    eni_free(idx->elements);
    *idx = (eni_idx){0};
}

/* ---- the folder ---- */

/* Not a folder: some archives put a file into a folder of its name. */
static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* FOLDER/NAME.gz if it exists, else FOLDER/NAME; or either with '.' in place of '-' before "idx", as some sets have it. */
static en_status find_file(const char *folder, const char *name, const char *remedy, char path[PATH_MAX])
{
    for (int way = 0; way < 4; way++) {
        const int length = snprintf(path, PATH_MAX, "%s/%s%s", folder, name, way % 2 == 0 ? ".gz" : "");
        if (length < 0 || length >= PATH_MAX)
            return eni_fail(EN_EINVAL, "dataset", "the data set's path is longer than %d bytes: move it",
                            PATH_MAX);
        if (way >= 2) strstr(path + strlen(folder) + 1, "-idx")[0] = '.';
        if (is_file(path)) return EN_OK;
    }
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    if (access(path, F_OK) == 0) return EN_OK; /* a folder, refused when it is opened */
    snprintf(path, PATH_MAX, "%s/training.pt", folder);
    if (is_file(path))
        return eni_fail(
            EN_EFORMAT, "dataset",
            "%s has training.pt, a PyTorch pickle, which runs code when it is loaded, so Entrain refuses it: "
            "write the IDX files with tools/pt2idx.py %s/training.pt %s/test.pt FOLDER",
            folder, folder, folder);
    return eni_fail(EN_ENOENT, "dataset", "%s has neither %s.gz nor %s: %s", folder, name, name, remedy);
}

static en_status read_file(const char *folder, const char *name, const char *remedy, int ndims,
                           eni_idx *idx_out)
{
    char path[PATH_MAX];
    EN_TRY(find_file(folder, name, remedy, path));
    EN_TRY(eni_idx_read(path, true, idx_out));
    if (idx_out->ndims == ndims) return EN_OK;
    eni_error("dataset", "%s has %d dimensions, expected %d: %s", path, idx_out->ndims, ndims,
              ndims == 1 ? "labels and images are swapped" : "images and labels are swapped");
    eni_idx_fini(idx_out);
    return EN_EFORMAT;
}

/* Moves the elements of both files into the split. */
static en_status read_split(const char *folder, const char *prefix, const char *remedy, eni_split *split,
                            eni_idx *images_out)
{
    char name[64];
    eni_idx labels;
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    EN_TRY(read_file(folder, name, remedy, ENI_IDX_DIMS, images_out));
    split->x = images_out->elements;
    split->count = images_out->dim[0];
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    EN_TRY(read_file(folder, name, remedy, 1, &labels));
    split->target = labels.elements;
    if (labels.dim[0] == split->count) return EN_OK;
    return eni_fail(EN_EFORMAT, "dataset",
                    "%s: %llu %s images but %llu labels; the files do not belong together", folder,
                    (ull)split->count, prefix, (ull)labels.dim[0]);
}

/* Reads the head of one file: its sides, without elements. */
static en_status read_train_head(const char *folder, const char *name, const char *remedy, eni_idx *idx_out)
{
    char path[PATH_MAX];
    EN_TRY(find_file(folder, name, remedy, path));
    return eni_idx_read(path, false, idx_out);
}

/* One more than the largest label, if that is below 10. Otherwise the labels that the training samples have without a gap after 0 (some sets
 * count from 1): one damaged label must not make a network of 256 outputs, and is reported as such. */
static int count_classes(const uint8_t *train, uint64_t ntrain, const uint8_t *test, uint64_t ntest)
{
    bool has[UINT8_MAX + 2] = {false};
    int most = 1, gap = 1;
    for (uint64_t i = 0; i < ntrain; i++) {
        has[train[i]] = true;
        if (train[i] > most) most = train[i];
    }
    for (uint64_t i = 0; i < ntest; i++)
        if (test[i] > most) most = test[i];
    while (has[gap])
        gap++;
    if (most < FEW_CLASSES) return most + 1;
    return gap > FEW_CLASSES ? gap : FEW_CLASSES;
}

static en_status read_classes(const char *folder, const char *remedy, int64_t *classes_out)
{
    eni_idx train, test;
    EN_TRY(read_file(folder, "train-labels-idx1-ubyte", remedy, 1, &train));
    const en_status st = read_file(folder, "t10k-labels-idx1-ubyte", remedy, 1, &test);
    if (st == EN_OK) {
        *classes_out = count_classes(train.elements, train.bytes, test.elements, test.bytes);
        eni_idx_fini(&test);
    }
    eni_idx_fini(&train);
    return st;
}

en_status eni_dataset_folder_shape(const char *folder, const char *remedy, int classes,
                                   en_data_shape *shape_out)
{
    eni_idx idx;
    EN_TRY(read_train_head(folder, "train-images-idx3-ubyte", remedy, &idx));
    *shape_out = (en_data_shape){(int64_t)idx.dim[1], (int64_t)idx.dim[2], 1, classes};
    return classes > 0 ? EN_OK : read_classes(folder, remedy, &shape_out->classes);
}

en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out)
{
    eni_idx idx;
    EN_TRY(read_train_head(folder, "train-labels-idx1-ubyte", remedy, &idx));
    *size_out = idx.dim[0];
    return EN_OK;
}

en_status eni_dataset_read_folder(const char *folder, const char *remedy, int classes, eni_dataset *set)
{
    eni_idx train, test;
    EN_TRY(read_split(folder, "train", remedy, &set->split[ENI_TRAIN], &train));
    EN_TRY(read_split(folder, "t10k", remedy, &set->split[ENI_TEST], &test));
    if (train.dim[1] != test.dim[1] || train.dim[2] != test.dim[2])
        return eni_fail(EN_EFORMAT, "dataset",
                        "%s: training images are %llu x %llu, but test images %llu x %llu", folder,
                        (ull)train.dim[1], (ull)train.dim[2], (ull)test.dim[1], (ull)test.dim[2]);
    if (train.dim[1] > 4096 || train.dim[2] > 4096 || train.dim[0] > UINT32_MAX)
        return eni_fail(EN_EFORMAT, "dataset",
                        "%s: %llu images of %llu x %llu are more than this reader supports", folder,
                        (ull)train.dim[0], (ull)train.dim[1], (ull)train.dim[2]);
    set->height = (int)train.dim[1];
    set->width = (int)train.dim[2];
    set->channels = 1;
    const eni_split *split = set->split;
    set->classes = classes > 0 ? classes
                               : count_classes(split[ENI_TRAIN].target, split[ENI_TRAIN].count,
                                               split[ENI_TEST].target, split[ENI_TEST].count);
    return EN_OK;
}
