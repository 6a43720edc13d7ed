/* folder.c - the four IDX files of an MNIST-like set in one folder. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"
#include "data/dataset_make.h"
#include "data/idx.h"

typedef unsigned long long ull;

/* FOLDER/NAME.gz if it is there, else FOLDER/NAME. */
static en_status find_file(const char *folder, const char *name, const char *remedy, char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%s/%s.gz", folder, name);
    if (length < 0 || length >= PATH_MAX) {
        eni_error("dataset", "the folder's path is longer than %d bytes: move the set", PATH_MAX);
        return EN_EINVAL;
    }
    if (access(path, F_OK) != 0) path[length - 3] = '\0';
    if (access(path, F_OK) == 0) return EN_OK;
    eni_error("dataset", "%s holds neither %s.gz nor %s: %s", folder, name, name, remedy);
    return EN_ENOENT;
}

static en_status read_file(const char *folder, const char *name, const char *remedy, int ndims,
                           eni_idx *idx_out)
{
    char path[PATH_MAX];
    EN_TRY(find_file(folder, name, remedy, path));
    EN_TRY(eni_idx_read(path, idx_out));
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
    split->images = images_out->elements;
    split->count = images_out->dim[0];
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    EN_TRY(read_file(folder, name, remedy, 1, &labels));
    split->labels = labels.elements;
    if (labels.dim[0] == split->count) return EN_OK;
    eni_error("dataset", "%s: %llu %s images but %llu labels; the files do not belong together", folder,
              (ull)split->count, prefix, (ull)labels.dim[0]);
    return EN_EFORMAT;
}

en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out)
{
    char path[PATH_MAX];
    eni_idx idx;
    EN_TRY(find_file(folder, "train-labels-idx1-ubyte", remedy, path));
    EN_TRY(eni_idx_shape(path, &idx));
    *size_out = idx.dim[0];
    return EN_OK;
}

en_status eni_dataset_read_folder(const char *folder, const char *remedy, eni_dataset *set)
{
    eni_idx train, test;
    EN_TRY(read_split(folder, "train", remedy, &set->split[ENI_TRAIN], &train));
    EN_TRY(read_split(folder, "t10k", remedy, &set->split[ENI_TEST], &test));
    if (train.dim[1] != test.dim[1] || train.dim[2] != test.dim[2]) {
        eni_error("dataset", "%s: training images are %llu x %llu, test images %llu x %llu", folder,
                  (ull)train.dim[1], (ull)train.dim[2], (ull)test.dim[1], (ull)test.dim[2]);
        return EN_EFORMAT;
    }
    if (train.dim[1] > 4096 || train.dim[2] > 4096 || train.dim[0] > UINT32_MAX) {
        eni_error("dataset", "%s: %llu images of %llu x %llu are more than this reader takes", folder,
                  (ull)train.dim[0], (ull)train.dim[1], (ull)train.dim[2]);
        return EN_EFORMAT;
    }
    set->height = (int)train.dim[1];
    set->width = (int)train.dim[2];
    set->channels = 1;
    set->classes = 10;
    return EN_OK;
}
