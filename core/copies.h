/* copies.h - blocks of equal length, each with a note, in order: the newest in memory, up to a budget, and the older ones
 * in a file. Where the file cannot grow they are thinned: every second one goes. Records of the file:
 *
 *     "ENSNAP2\0" bytes samples update t crc32c number | block (header 48 bytes)
 *
 * Owned by one thread. */
#ifndef CORE_COPIES_H
#define CORE_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_copies eni_copies;

typedef struct eni_copy_note {
    uint64_t samples, update;
    double t;
    uint32_t number; /* thinning leaves those that a power of two divides: 0 always stays */
} eni_copy_note;

enum { ENI_COPIES_HOST_BYTES = 1 << 30 }; /* in the memory of a host: all its budgets */

/* `path`: of the file, which is made when it is needed; "": one without a name in `dir` (NULL: /tmp). Two blocks may be in
 * memory. EN_ENOMEM. */
en_status eni_copies_open(const char *path, const char *dir, size_t bytes, eni_copies **copies_out);

/* `budget` bytes may be in memory, but two blocks at least. So many will be added: those that fit have their memory now, and
 * no page of it is touched for the first time when a copy is made. Where there is no memory for them, fewer. */
void eni_copies_expect(eni_copies *copies, uint64_t n, uint64_t budget);

/* The file is removed, unless it has a name and stays. NULL is fine. */
void eni_copies_close(eni_copies *copies, bool file_stays);

uint32_t eni_copies_count(const eni_copies *copies);
const eni_copy_note *eni_copies_note(const eni_copies *copies, uint32_t i);
const char *eni_copies_path(const eni_copies *copies); /* of the file, for a sentence */
uint64_t eni_copies_thinned(const eni_copies *copies); /* how many are gone, or were not taken */

/* Whether a copy of that number is taken: else it counts as thinned out. */
bool eni_copies_takes(eni_copies *copies, uint32_t number);

/* A new last one: its block, which the caller fills, is at *room_out until the next call. May thin (a warning says so).
 * *room_out NULL: there is no room for it, and it counts as thinned out; for number 0 that is EN_EIO, logged. EN_ENOMEM. */
en_status eni_copies_add(eni_copies *copies, const eni_copy_note *note, void **room_out);

/* The block of copy i, in `room` or where it is; NULL: the file does not have it any more. */
const void *eni_copies_read(eni_copies *copies, uint32_t i, void *room);

/* Those from `begin` up to `end` go. */
void eni_copies_forget(eni_copies *copies, uint32_t begin, uint32_t end);

/* All that are in memory go to the file. False, with errno: some could not; they stay in memory. */
bool eni_copies_save(eni_copies *copies);

/* Loads the copies that an earlier process saved and `is_wanted` accepts, in order of samples, and destroys the others.
 * Call it before the first eni_copies_add. EN_EIO, logged; EN_ENOMEM. */
en_status eni_copies_load(eni_copies *copies, bool (*is_wanted)(void *user, const eni_copy_note *note),
                          void *user);

#endif
