/* dataset_share.c - one copy of a set for all processes that train on it on this host: filled by one, mapped by the others.
 *
 *     [header: one page] [x] [target] of the training split, and of the test split
 *
 * The holdout lies among the training samples. Each array starts on a page. For mapped records there is only the header: the
 * others map the same files, which have been hashed. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset_make.h"

#define SHARE_MAGIC UINT64_C(0x34746e656c6e65) /* "enlent4" */
enum { PAGE = 4096, SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, ARRAYS = 2 };
enum { MAX_VALUES = 1 << 26 }; /* of a sample, so that no product below overflows */

typedef struct share_header {
    uint64_t magic;
    char name[64], sha256[ENI_DIGEST_HEX], identity[ENI_DIGEST_HEX];
    int32_t height, width, channels, classes, targets, has_records;
    uint64_t summed[ENI_SPLITS]; /* samples covered by sha256 */
    uint64_t read[2];            /* .. samples stored */
} share_header;
_Static_assert(sizeof(share_header) <= PAGE, "the header is one page");

/* The arrays of a split in their order of storage, and the bytes of each. */
static void arrays_of(const eni_dataset *set, eni_split *split, void **array_out[ARRAYS],
                      uint64_t bytes_out[ARRAYS])
{
    array_out[0] = &split->x, bytes_out[0] = split->read * eni_stored_x_bytes(set);
    array_out[1] = &split->target, bytes_out[1] = split->read * eni_stored_target_bytes(set);
}

/* Moves one array after the other, so that the set is never in memory twice. */
static bool move_all(eni_dataset *set, int fd, const share_header *head)
{
    uint64_t at = PAGE;
    if (!eni_file_write_at(fd, head, sizeof *head, 0)) return false;
    for (int s = ENI_TRAIN; s <= ENI_TEST && set->records == NULL; s++) {
        void **array[ARRAYS];
        uint64_t bytes[ARRAYS];
        arrays_of(set, &set->split[s], array, bytes);
        for (int a = 0; a < ARRAYS; a++) {
            if (!eni_file_write_at(fd, *array[a], bytes[a], (off_t)at)) return false;
            at += eni_round_up(bytes[a], PAGE);
            eni_free(*array[a]);
            *array[a] = NULL;
        }
    }
    return ftruncate(fd, (off_t)at) == 0;
}

static void describe(const eni_dataset *set, share_header *head_out)
{
    *head_out = (share_header){.magic = SHARE_MAGIC,
                               .height = set->height,
                               .width = set->width,
                               .channels = set->channels,
                               .classes = set->classes,
                               .targets = set->targets,
                               .has_records = set->records != NULL};
    snprintf(head_out->name, sizeof head_out->name, "%s", set->name);
    for (int s = 0; s < ENI_SPLITS; s++)
        head_out->summed[s] = set->split[s].count;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++)
        head_out->read[s] = set->split[s].read;
}

/* Empties memory that a killed process left half filled. Memory that is sealed, or in use by another process, is not ours. */
static int empty_memory(int fd)
{
    if (fd >= 0 && lockf(fd, F_TLOCK, 0) == 0 && ftruncate(fd, 0) == 0) return fd;
    if (fd >= 0) close(fd);
    return memfd_create("entrain-data", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

en_status eni_dataset_share(eni_dataset *set, const char *identity, int *fd_io)
{
    share_header head;
    describe(set, &head);
    snprintf(head.identity, sizeof head.identity, "%s", identity);
    en_status st = eni_dataset_sha256(set, head.sha256);
    const int fd = empty_memory(*fd_io);
    if (st == EN_OK && (fd < 0 || !move_all(set, fd, &head) || fcntl(fd, F_ADD_SEALS, SEALS) != 0)) {
        eni_warn("dataset", "cannot share %s, so every rank reads it separately: %s", set->name,
                 strerror(errno));
        st = EN_EUNSUPPORTED;
    }
    if (st != EN_OK && fd >= 0) close(fd);
    *fd_io = st == EN_OK ? fd : -1;
    eni_dataset_close(set);
    return st;
}

/* Maps the whole set and touches its pages now, so that no step is the first to touch one. */
static en_status map_all(int fd, eni_dataset *set, share_header *head_out)
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
    return head_out->magic == SHARE_MAGIC ? EN_OK : EN_EPROTO;
}

static en_status place_split(eni_dataset *set, int s, const share_header *head, uint64_t *at)
{
    void **array[ARRAYS];
    uint64_t bytes[ARRAYS];
    eni_split *split = &set->split[s];
    split->count = split->read = head->read[s];
    if (eni_stored_floats(set) > MAX_VALUES || (uint64_t)set->targets > MAX_VALUES ||
        split->read > UINT32_MAX)
        return EN_EPROTO;
    arrays_of(set, split, array, bytes);
    for (int a = 0; a < ARRAYS; a++) {
        if (*at > set->map_bytes || bytes[a] > set->map_bytes - *at) return EN_EPROTO;
        *array[a] = (uint8_t *)set->map + *at;
        *at += eni_round_up(bytes[a], PAGE);
    }
    return EN_OK;
}

en_status eni_dataset_map(int fd, const char *identity, eni_dataset *set, bool *has_records_out)
{
    share_header head;
    uint64_t at = PAGE;
    EN_TRY(map_all(fd, set, &head));
    head.name[sizeof head.name - 1] = head.sha256[sizeof head.sha256 - 1] = 0;
    if (strncmp(head.identity, identity, sizeof head.identity) != 0) return EN_EPROTO;
    memcpy(set->name, head.name, sizeof set->name);
    memcpy(set->sha256, head.sha256, sizeof set->sha256);
    set->height = head.height, set->width = head.width, set->channels = head.channels;
    set->classes = head.classes, set->targets = head.targets;
    for (int s = 0; s < ENI_SPLITS; s++)
        set->summed[s] = head.summed[s];
    *has_records_out = head.has_records != 0;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        set->split[s].count = head.read[s];
        if (!head.has_records) EN_TRY(place_split(set, s, &head, &at));
    }
    eni_debug("dataset", "mapped %s", set->name);
    return EN_OK;
}
