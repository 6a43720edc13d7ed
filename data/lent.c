/* lent.c - one copy of a set for all processes that train on it on this host; see dataset.h.
 *
 *     [header: one page] [images] [labels] [features] [targets] of the training split, and of the test split
 *
 * What is held out is among the training samples.
 *
 * Each array starts on a page. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset_make.h"

#define LENT_MAGIC UINT64_C(0x31746e656c6e65) /* "enlent1" */
enum { PAGE = 4096, SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, ARRAYS = 4 };
enum { MAX_VALUES = 1 << 26 }; /* of a sample, so that no product below overflows */

typedef struct header {
    uint64_t magic;
    char name[64], sha256[ENI_DIGEST_HEX];
    int32_t height, width, channels, classes, targets;
    uint64_t summed[ENI_SPLITS]; /* samples that sha256 is about */
    uint64_t read[2];            /* .. that are there */
    uint8_t has[2][ARRAYS];
} header;
_Static_assert(sizeof(header) <= PAGE, "the header is one page");

/* The arrays of a split, in the order in which they lie, and the bytes of each. */
static void arrays_of(eni_split *split, uint64_t sample_floats, uint64_t targets, void **array_out[ARRAYS],
                      uint64_t bytes_out[ARRAYS])
{
    const uint64_t n = split->read;
    array_out[0] = (void **)&split->images, bytes_out[0] = n * sample_floats;
    array_out[1] = (void **)&split->labels, bytes_out[1] = n;
    array_out[2] = (void **)&split->features, bytes_out[2] = n * sample_floats * sizeof(float);
    array_out[3] = (void **)&split->targets, bytes_out[3] = n * targets * sizeof(float);
}

/* ---- giving ---- */

static bool write_all(int fd, const void *data, uint64_t bytes, uint64_t at)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, from, bytes < 1u << 30 ? bytes : 1u << 30, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n, at += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return true;
}

/* One array after the other, so that no machine has to hold the set twice. */
static bool move_all(eni_dataset *set, int fd, const header *head)
{
    uint64_t at = PAGE;
    if (!write_all(fd, head, sizeof *head, 0)) return false;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        void **array[ARRAYS];
        uint64_t bytes[ARRAYS];
        arrays_of(&set->split[s], set->sample_floats, (uint64_t)set->targets, array, bytes);
        for (int a = 0; a < ARRAYS; a++) {
            if (*array[a] == NULL) continue;
            if (!write_all(fd, *array[a], bytes[a], at)) return false;
            at += eni_round_up(bytes[a], PAGE);
            eni_free(*array[a]);
            *array[a] = NULL;
        }
    }
    return ftruncate(fd, (off_t)at) == 0;
}

static void describe(eni_dataset *set, header *head_out)
{
    *head_out = (header){.magic = LENT_MAGIC,
                         .height = set->height,
                         .width = set->width,
                         .channels = set->channels,
                         .classes = set->classes,
                         .targets = set->targets};
    snprintf(head_out->name, sizeof head_out->name, "%s", set->name);
    for (int s = 0; s < ENI_SPLITS; s++)
        head_out->summed[s] = set->split[s].count;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        void **array[ARRAYS];
        uint64_t bytes[ARRAYS];
        head_out->read[s] = set->split[s].read;
        arrays_of(&set->split[s], set->sample_floats, (uint64_t)set->targets, array, bytes);
        for (int a = 0; a < ARRAYS; a++)
            head_out->has[s][a] = *array[a] != NULL;
    }
}

en_status eni_dataset_lend(eni_dataset *set, int *fd_out)
{
    header head;
    describe(set, &head);
    en_status st = eni_dataset_sha256(set, head.sha256);
    const int fd = st == EN_OK ? memfd_create("entrain-data", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
    if (st == EN_OK && (fd < 0 || !move_all(set, fd, &head) || fcntl(fd, F_ADD_SEALS, SEALS) != 0)) {
        eni_warn("dataset", "every rank reads %s for itself, for it cannot be shared: %s", set->name,
                 strerror(errno));
        st = EN_EUNSUPPORTED;
    }
    if (st != EN_OK && fd >= 0) close(fd);
    if (st == EN_OK) *fd_out = fd;
    eni_dataset_close(set);
    return st;
}

/* ---- taking ---- */

/* Mapped at once and whole: a step is not to meet a page for the first time. */
static en_status map_all(int fd, eni_dataset *set, header *head_out)
{
    struct stat file;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 || file.st_size < PAGE ||
        file.st_uid != geteuid())
        return EN_EPROTO;
    void *base = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED) return EN_ENOMEM;
    set->map = base;
    set->map_bytes = (size_t)file.st_size;
    memcpy(head_out, base, sizeof *head_out);
    return head_out->magic == LENT_MAGIC ? EN_OK : EN_EPROTO;
}

static en_status place_split(eni_dataset *set, int s, const header *head, uint64_t *at)
{
    void **array[ARRAYS];
    uint64_t bytes[ARRAYS];
    const uint64_t values = (uint64_t)set->height * (uint64_t)set->width * (uint64_t)set->channels;
    eni_split *split = &set->split[s];
    split->count = split->read = head->read[s];
    if (values > MAX_VALUES || (uint64_t)set->targets > MAX_VALUES || split->read > UINT32_MAX)
        return EN_EPROTO;
    arrays_of(split, values, (uint64_t)set->targets, array, bytes);
    for (int a = 0; a < ARRAYS; a++) {
        if (!head->has[s][a]) continue;
        if (*at > set->map_bytes || bytes[a] > set->map_bytes - *at) return EN_EPROTO;
        *array[a] = (uint8_t *)set->map + *at;
        *at += eni_round_up(bytes[a], PAGE);
    }
    return EN_OK;
}

en_status eni_dataset_map(int fd, eni_dataset *set)
{
    header head;
    uint64_t at = PAGE;
    EN_TRY(map_all(fd, set, &head));
    head.name[sizeof head.name - 1] = head.sha256[sizeof head.sha256 - 1] = 0;
    memcpy(set->name, head.name, sizeof set->name);
    memcpy(set->sha256, head.sha256, sizeof set->sha256);
    set->height = head.height, set->width = head.width, set->channels = head.channels;
    set->classes = head.classes, set->targets = head.targets;
    for (int s = 0; s < ENI_SPLITS; s++)
        set->summed[s] = head.summed[s];
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++)
        EN_TRY(place_split(set, s, &head, &at));
    eni_debug("dataset", "mapped %s", set->name);
    return EN_OK;
}
