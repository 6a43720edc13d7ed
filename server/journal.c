#include "server/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

#define MAGIC UINT64_C(0x534d49414c43454e) /* "NECLAIMS" */

typedef struct slot {
    _Atomic uint64_t index, number;
} slot;

/* The file. */
typedef struct journal_file {
    uint64_t magic, run, nranks, unused;
    slot slot[][2]; /* (nranks) */
} journal_file;

struct eni_journal {
    journal_file *file;
    size_t bytes;
    int32_t nranks;
};

static en_status map_file(eni_journal *journal, int fd, const char *folder)
{
    void *file = mmap(NULL, journal->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file != MAP_FAILED) {
        journal->file = file;
        return EN_OK;
    }
    eni_error("journal", "cannot map %s/claims: %s", folder, strerror(errno));
    return EN_EIO;
}

/* Made beside its place, so that a file of that name is always whole. */
static en_status make_file(eni_journal *journal, const eni_state *state, uint64_t run)
{
    const char *folder = eni_state_path(state);
    const int dir = eni_state_fd(state);
    const int fd = openat(dir, "claims.tmp", O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    en_status st = EN_EIO;
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)journal->bytes) != 0) {
        eni_error("journal", "cannot make %s/claims of %zu bytes: is the disk full?", folder, journal->bytes);
        goto close_file;
    }
    EN_TRY_GOTO(map_file(journal, fd, folder), close_file);
    journal->file->magic = MAGIC;
    journal->file->run = run;
    journal->file->nranks = (uint64_t)journal->nranks;
    if (fsync(fd) != 0 || renameat(dir, "claims.tmp", dir, "claims") != 0) {
        eni_error("journal", "cannot make %s/claims: %s", folder, strerror(errno));
        st = EN_EIO;
    }
close_file:
    if (fd >= 0) close(fd);
    return st;
}

static en_status take_file(eni_journal *journal, const eni_state *state, uint64_t run)
{
    const char *folder = eni_state_path(state);
    struct stat info;
    const int fd = openat(eni_state_fd(state), "claims", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        eni_error("journal", "cannot open %s/claims: %s", folder, strerror(errno));
        return errno == ENOENT ? EN_ENOENT : EN_EIO;
    }
    en_status st = EN_EFORMAT;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)journal->bytes) {
        eni_error("journal", "%s/claims is not the journal of a run of %d workers", folder, journal->nranks);
        goto close_file;
    }
    EN_TRY_GOTO(map_file(journal, fd, folder), close_file);
    if (journal->file->magic != MAGIC || journal->file->run != run ||
        journal->file->nranks != (uint64_t)journal->nranks) {
        eni_error("journal", "%s/claims belongs to another run", folder);
        st = EN_EFORMAT;
    }
close_file:
    close(fd);
    return st;
}

en_status eni_journal_open(const eni_state *state, uint64_t run, int32_t nranks, int is_new,
                           eni_journal **journal_out)
{
    eni_journal *journal = eni_alloc(sizeof *journal);
    if (!journal) return EN_ENOMEM;
    journal->nranks = nranks;
    journal->bytes = sizeof(journal_file) + (size_t)nranks * sizeof journal->file->slot[0];
    const en_status st = is_new ? make_file(journal, state, run) : take_file(journal, state, run);
    if (st == EN_OK)
        *journal_out = journal;
    else
        eni_journal_close(journal);
    return st;
}

void eni_journal_write(eni_journal *journal, int32_t rank, uint64_t number, uint64_t index)
{
    slot *to = &journal->file->slot[rank][number % 2];
    atomic_store_explicit(&to->index, index, memory_order_relaxed);
    atomic_store_explicit(&to->number, number, memory_order_release);
}

eni_journal_claim eni_journal_last(const eni_journal *journal, int32_t rank)
{
    const slot *pair = journal->file->slot[rank];
    const slot *last = atomic_load(&pair[1].number) > atomic_load(&pair[0].number) ? &pair[1] : &pair[0];
    return (eni_journal_claim){atomic_load(&last->number), atomic_load(&last->index)};
}

uint64_t eni_journal_handed_out(const eni_journal *journal)
{
    uint64_t next = 0;
    for (int32_t r = 0; r < journal->nranks; r++) {
        const eni_journal_claim claim = eni_journal_last(journal, r);
        if (claim.number > 0 && claim.index >= next) next = claim.index + 1;
    }
    return next;
}

void eni_journal_close(eni_journal *journal)
{
    if (!journal) return;
    if (journal->file) munmap(journal->file, journal->bytes);
    eni_free(journal);
}
