/* copies.h - blocks of equal size in order, each with a note: the newest in memory, up to a budget, and the older ones
 * in a file. If the file cannot grow, every second block is removed (thinning). Records of the file:
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
    uint32_t number; /* thinning keeps multiples of a power of two, so 0 always stays */
} eni_copy_note;

enum { ENI_COPIES_HOST_BYTES = 1 << 30 }; /* all budgets of a host together */

/* `path`: the file, created when it is needed; "": an unnamed file in `dir` (NULL: /tmp). The budget is two blocks.
 * EN_ENOMEM. */
en_status eni_copies_open(const char *path, const char *dir, size_t bytes, eni_copies **copies_out);

/* Sets the budget in bytes (at least two blocks) and allocates now, and touches, what the expected `n` copies need of it,
 * so that no page is touched for the first time when a copy is made. Allocates fewer if memory is short. */
void eni_copies_expect(eni_copies *copies, uint64_t n, uint64_t budget);

/* Removes the file, unless it has a name and file_stays. NULL is fine. */
void eni_copies_close(eni_copies *copies, bool file_stays);

uint32_t eni_copies_count(const eni_copies *copies);
const eni_copy_note *eni_copies_note(const eni_copies *copies, uint32_t i);
const char *eni_copies_path(const eni_copies *copies); /* of the file, for messages */
uint64_t eni_copies_thinned(const eni_copies *copies); /* how many were removed or skipped */

/* Whether a copy of that number is kept; if not, it counts as thinned. */
bool eni_copies_takes(eni_copies *copies, uint32_t number);

/* Appends a copy: the caller fills the block at *room_out, valid until the next call. May thin, with a warning.
 * *room_out NULL: no room, and it counts as thinned; for number 0 that is EN_EIO, logged. EN_ENOMEM. */
en_status eni_copies_add(eni_copies *copies, const eni_copy_note *note, void **room_out);

/* The block of copy i, in `room` or in place; NULL if the file has lost it. */
const void *eni_copies_read(eni_copies *copies, uint32_t i, void *room);

/* Removes copies [begin, end). */
void eni_copies_forget(eni_copies *copies, uint32_t begin, uint32_t end);

/* Writes all copies in memory to the file. False, with errno: some failed, and stay in memory. */
bool eni_copies_save(eni_copies *copies);

/* Loads the copies that an earlier process saved and `is_wanted` accepts, in order of samples, and destroys the others.
 * Call it before the first eni_copies_add. EN_EIO, logged; EN_ENOMEM. */
en_status eni_copies_load(eni_copies *copies, bool (*is_wanted)(void *user, const eni_copy_note *note),
                          void *user);

#endif
