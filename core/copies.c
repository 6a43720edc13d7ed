/* copies.c - blocks in memory, then in a file, then thinned (copies.h). */
#include "core/copies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"

enum { MIN_IN_MEMORY = 2, MAX_IN_MEMORY = 256, STRIDE_MAX = 1 << 30 };

typedef struct header {
    char magic[8];
    uint64_t bytes, samples, update;
    double t;
    uint32_t crc; /* of the fields above, the number and the block */
    uint32_t number;
} header;
static const char magic[8] = "ENSNAP2";

typedef struct copy {
    eni_copy_note note;
    void *block;   /* NULL: in the file */
    uint32_t slot; /* its slot in the file */
} copy;

struct eni_copies {
    size_t bytes; /* of a block */
    char path[1024], dir[1024];
    int fd;          /* -1 until the file is needed */
    uint32_t nslots; /* in the file, free ones included */
    copy *list;
    uint32_t n, room;
    void *idle[MAX_IN_MEMORY]; /* blocks without a copy */
    uint32_t nidle, nblocks, capacity;
    uint32_t stride;
    uint64_t nthinned;
};

/* ---- the file ---- */

static off_t place_of(const eni_copies *c, uint32_t slot)
{
    return (off_t)slot * (off_t)(sizeof(header) + c->bytes);
}

static uint32_t checksum(const header *h, const void *block)
{
    const uint32_t fields = eni_crc32c(0, h, offsetof(header, crc));
    return eni_crc32c(eni_crc32c(fields, &h->number, sizeof h->number), block, h->bytes);
}

static bool has_file(eni_copies *c)
{
    char nameless[1100];
    if (c->fd >= 0) return true;
    snprintf(nameless, sizeof nameless, "%s/entrain-snapshots-XXXXXX", c->dir);
    c->fd = c->path[0] != 0 ? open(c->path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666)
                            : mkostemp(nameless, O_CLOEXEC);
    if (c->path[0] == 0 && c->fd >= 0) unlink(nameless);
    return c->fd >= 0;
}

/* The first free slot; a new one at the end if all are in use. */
static uint32_t free_slot(const eni_copies *c)
{
    uint32_t used = 0, slot = 0;
    for (uint32_t i = 0; i < c->n; i++)
        used += c->list[i].block == NULL;
    if (used == c->nslots) return c->nslots;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->list[i].block == NULL && c->list[i].slot == slot) slot++, i = UINT32_MAX; /* from 0 again */
    return slot;
}

static bool spill(eni_copies *c, copy *one)
{
    header h = {.bytes = c->bytes,
                .samples = one->note.samples,
                .update = one->note.update,
                .t = one->note.t,
                .number = one->note.number};
    if (!has_file(c)) return false;
    const uint32_t slot = free_slot(c);
    const off_t at = place_of(c, slot);
    memcpy(h.magic, magic, sizeof h.magic);
    h.crc = checksum(&h, one->block);
    if (!eni_file_write_at(c->fd, one->block, c->bytes, at + (off_t)sizeof h) ||
        !eni_file_write_at(c->fd, &h, sizeof h, at))
        return false;
    c->idle[c->nidle++] = one->block;
    one->block = NULL;
    one->slot = slot;
    if (slot == c->nslots) c->nslots++;
    return true;
}

static bool load_header(const eni_copies *c, uint32_t slot, header *h)
{
    return eni_file_read_at(c->fd, h, sizeof *h, place_of(c, slot)) &&
           memcmp(h->magic, magic, sizeof magic) == 0 && h->bytes == c->bytes;
}

static bool load_block(const eni_copies *c, uint32_t slot, void *room)
{
    header h;
    return load_header(c, slot, &h) &&
           eni_file_read_at(c->fd, room, c->bytes, place_of(c, slot) + (off_t)sizeof h) &&
           checksum(&h, room) == h.crc;
}

/* ---- blocks ---- */

static void *take_block(eni_copies *c)
{
    if (c->nidle > 0) return c->idle[--c->nidle];
    void *block = eni_alloc_quietly(c->bytes);
    c->nblocks += block != NULL;
    return block;
}

void eni_copies_forget(eni_copies *c, uint32_t begin, uint32_t end)
{
    if (begin == end) return;
    for (uint32_t i = begin; i < end; i++) {
        c->nblocks -= c->list[i].block != NULL;
        eni_free(c->list[i].block);
    }
    memmove(c->list + begin, c->list + end, (c->n - end) * sizeof *c->list);
    c->n -= end - begin;
}

bool eni_copies_takes(eni_copies *c, uint32_t number)
{
    const bool takes = number % c->stride == 0;
    c->nthinned += !takes;
    return takes;
}

/* Returns how many were removed. */
static uint32_t thin(eni_copies *c)
{
    const uint32_t before = c->n;
    const int why = errno;
    c->stride *= 2;
    for (uint32_t i = c->n; i-- > 0;)
        if (c->list[i].note.number % c->stride != 0) eni_copies_forget(c, i, i + 1);
    c->nthinned += before - c->n;
    if (c->n < before)
        eni_warn("snapshots",
                 "cannot write %s: %s; dropped %u of %u snapshots for lack of space, and from now on every "
                 "second one is skipped: make room there, or raise --eval-every",
                 eni_copies_path(c), strerror(why), before - c->n, before);
    return before - c->n;
}

/* Makes room for one more block. For a block that may be skipped at most every second one is removed. */
static bool make_room(eni_copies *c, bool is_needed)
{
    while (c->nidle == 0 && c->nblocks == c->capacity) {
        uint32_t i = 0;
        while (c->list[i].block == NULL)
            i++;
        if (spill(c, &c->list[i])) continue;
        if (c->stride == STRIDE_MAX || (thin(c) == 0 && !is_needed)) return false;
    }
    return true;
}

/* NULL: no room. If memory runs out below the budget, the blocks allocated so far become the budget. */
static void *find_block(eni_copies *c, bool is_needed)
{
    void *block = make_room(c, is_needed) ? take_block(c) : NULL;
    if (block != NULL || c->nblocks == 0 || c->nblocks == c->capacity) return block;
    c->capacity = c->nblocks;
    return make_room(c, is_needed) ? take_block(c) : NULL;
}

static en_status leave_out(eni_copies *c, bool is_needed)
{
    static const char *const text =
        "neither memory nor %s has room for a snapshot of %zu bytes: make room there, or raise --eval-every";
    if (is_needed) return eni_fail(EN_EIO, "snapshots", text, eni_copies_path(c), c->bytes);
    if (c->nthinned++ == 0) eni_warn("snapshots", text, eni_copies_path(c), c->bytes);
    return EN_OK;
}

/* Inserts at position i. */
static copy *insert(eni_copies *c, uint32_t i, const eni_copy_note *note)
{
    if (eni_grow((void **)&c->list, &c->room, c->n + 1, sizeof *c->list) != EN_OK) return NULL;
    memmove(c->list + i + 1, c->list + i, (c->n++ - i) * sizeof *c->list);
    c->list[i] = (copy){.note = *note};
    return &c->list[i];
}

en_status eni_copies_add(eni_copies *c, const eni_copy_note *note, void **room_out)
{
    const bool is_needed = note->number == 0;
    void *block = find_block(c, is_needed);
    *room_out = NULL;
    if (block == NULL) return leave_out(c, is_needed);
    copy *one = insert(c, c->n, note);
    if (one != NULL)
        one->block = *room_out = block;
    else
        c->idle[c->nidle++] = block;
    return one != NULL ? EN_OK : EN_ENOMEM;
}

const void *eni_copies_read(eni_copies *c, uint32_t i, void *room)
{
    if (c->list[i].block != NULL) return c->list[i].block;
    return load_block(c, c->list[i].slot, room) ? room : NULL;
}

bool eni_copies_save(eni_copies *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->list[i].block != NULL && !spill(c, &c->list[i])) return false;
    return true;
}

/* ---- copies of an earlier process ---- */

static en_status load_slot(eni_copies *c, uint32_t slot, void *room,
                           bool (*is_wanted)(void *user, const eni_copy_note *note), void *user)
{
    header h;
    if (!load_header(c, slot, &h)) return EN_OK;
    const eni_copy_note note = {h.samples, h.update, h.t, h.number};
    if (!is_wanted(user, &note)) { /* a later process must not find it either */
        memset(&h, 0, sizeof h);
        return eni_file_write_at(c->fd, &h, sizeof h, place_of(c, slot)) ? EN_OK : EN_EIO;
    }
    if (!load_block(c, slot, room)) return EN_OK;
    uint32_t i = c->n;
    while (i > 0 && c->list[i - 1].note.samples > note.samples)
        i--;
    if (i > 0 && c->list[i - 1].note.samples == note.samples) eni_copies_forget(c, i - 1, i), i--;
    copy *one = insert(c, i, &note);
    if (one == NULL) return EN_ENOMEM;
    one->slot = slot;
    return EN_OK;
}

en_status eni_copies_load(eni_copies *c, bool (*is_wanted)(void *user, const eni_copy_note *note), void *user)
{
    struct stat info;
    c->fd = open(c->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (c->fd < 0 && errno == ENOENT) return EN_OK;
    void *room = eni_alloc(c->bytes);
    en_status st = room == NULL ? EN_ENOMEM : c->fd >= 0 && fstat(c->fd, &info) == 0 ? EN_OK : EN_EIO;
    for (uint32_t slot = 0; st == EN_OK && place_of(c, slot) < info.st_size; slot++)
        st = load_slot(c, slot, room, is_wanted, user), c->nslots = slot + 1;
    eni_free(room);
    if (st != EN_EIO) return st;
    return eni_fail(EN_EIO, "snapshots", "cannot open or update %s: %s; choose another --out", c->path,
                    strerror(errno));
}

/* ---- lifetime ---- */

en_status eni_copies_open(const char *path, const char *dir, size_t bytes, eni_copies **copies_out)
{
    eni_copies *c = eni_alloc(sizeof *c);
    if (c == NULL) return EN_ENOMEM;
    c->bytes = bytes;
    c->fd = -1;
    c->stride = 1;
    c->capacity = MIN_IN_MEMORY;
    snprintf(c->path, sizeof c->path, "%s", path);
    snprintf(c->dir, sizeof c->dir, "%s", dir == NULL ? "/tmp" : dir);
    *copies_out = c;
    return EN_OK;
}

void eni_copies_expect(eni_copies *c, uint64_t n, uint64_t budget)
{
    const uint64_t fit = budget / (c->bytes + 1), most = fit < MAX_IN_MEMORY ? fit : MAX_IN_MEMORY;
    if (most > c->capacity) c->capacity = (uint32_t)most;
    while (c->nblocks < c->capacity && c->nblocks < n) {
        void *block = eni_alloc_quietly(c->bytes);
        if (block == NULL) {
            if (c->nblocks > 0) c->capacity = c->nblocks;
            break;
        }
        c->idle[c->nidle++] = block;
        c->nblocks++;
    }
}

void eni_copies_close(eni_copies *c, bool file_stays)
{
    if (c == NULL) return;
    if (c->fd >= 0) close(c->fd);
    if (c->fd >= 0 && c->path[0] != 0 && !file_stays) unlink(c->path);
    eni_copies_forget(c, 0, c->n);
    for (uint32_t i = 0; i < c->nidle; i++)
        eni_free(c->idle[i]);
    eni_free(c->list);
    eni_free(c);
}

/* ---- queries ---- */

uint32_t eni_copies_count(const eni_copies *c)
{
    return c->n;
}

const eni_copy_note *eni_copies_note(const eni_copies *c, uint32_t i)
{
    return &c->list[i].note;
}

const char *eni_copies_path(const eni_copies *c)
{
    return c->path[0] != 0 ? c->path : c->dir;
}

uint64_t eni_copies_thinned(const eni_copies *c)
{
    return c->nthinned;
}
