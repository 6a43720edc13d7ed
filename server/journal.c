#include "server/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#define MAGIC UINT64_C(0x534d49414c43454e) /* "NECLAIMS" */

typedef struct claim {
    _Atomic uint64_t value, number; /* number 0: none */
} claim;

typedef struct rank_entries {
    claim claim[2]; /* by the number's last bit */
    _Atomic uint64_t has_left, has_said_bye;
} rank_entries;

/* The file. */
typedef struct journal_file {
    uint64_t magic, run, nranks, unused;
    _Atomic uint64_t handed_out; /* follows the claims: at most the last one is not in it */
    _Atomic uint64_t is_stopping, stop_step;
    rank_entries rank[]; /* (nranks) */
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
    journal->bytes = sizeof(journal_file) + (size_t)nranks * sizeof journal->file->rank[0];
    const en_status st = is_new ? make_file(journal, state, run) : take_file(journal, state, run);
    if (st == EN_OK)
        *journal_out = journal;
    else
        eni_journal_close(journal);
    return st;
}

static void set(_Atomic uint64_t *place, uint64_t value)
{
    atomic_store_explicit(place, value, memory_order_release);
}

void eni_journal_write(eni_journal *journal, const eni_entry *entry)
{
    rank_entries *of = &journal->file->rank[entry->rank < 0 ? 0 : entry->rank];
    claim *slot = &of->claim[entry->number % 2];
    switch (entry->kind) {
    case ENI_ENTRY_CLAIM:
        set(&slot->value, entry->value);
        set(&slot->number, entry->number);
        if (entry->value != UINT64_MAX) set(&journal->file->handed_out, entry->value + 1);
        break;
    case ENI_ENTRY_LEFT: set(&of->has_left, 1); break;
    case ENI_ENTRY_BYE: set(&of->has_said_bye, 1); break;
    case ENI_ENTRY_STOP:
        set(&journal->file->stop_step, entry->value);
        set(&journal->file->is_stopping, 1);
        break;
    default: eni_warn("journal", "an entry of kind %u is not known", entry->kind);
    }
}

static en_status fold_rank(const eni_journal *journal, int32_t rank, eni_revived *revived)
{
    const rank_entries *of = &journal->file->rank[rank];
    const claim *last = &of->claim[atomic_load(&of->claim[1].number) > atomic_load(&of->claim[0].number)];
    const eni_entry entry = {ENI_ENTRY_CLAIM, rank, atomic_load(&last->number), atomic_load(&last->value)};
    if (entry.number > 0) EN_TRY(eni_revived_apply(revived, journal->nranks, &entry));
    const eni_entry left = {ENI_ENTRY_LEFT, rank, 0, 0}, bye = {ENI_ENTRY_BYE, rank, 0, 0};
    if (atomic_load(&of->has_left)) EN_TRY(eni_revived_apply(revived, journal->nranks, &left));
    if (atomic_load(&of->has_said_bye)) EN_TRY(eni_revived_apply(revived, journal->nranks, &bye));
    return EN_OK;
}

en_status eni_journal_fold(const eni_journal *journal, eni_revived *revived)
{
    revived->claimed = atomic_load(&journal->file->handed_out);
    for (int32_t r = 0; r < journal->nranks; r++)
        EN_TRY(fold_rank(journal, r, revived));
    const eni_entry stop = {ENI_ENTRY_STOP, 0, 0, atomic_load(&journal->file->stop_step)};
    if (!atomic_load(&journal->file->is_stopping)) return EN_OK;
    return eni_revived_apply(revived, journal->nranks, &stop);
}

void eni_journal_close(eni_journal *journal)
{
    if (!journal) return;
    if (journal->file) munmap(journal->file, journal->bytes);
    eni_free(journal);
}
