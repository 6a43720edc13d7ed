/* state.c - the folder of --state: files in two generations, of which one is always whole; the description of
 * the run; and the log of the leader's answers. */
#include "server/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/client/client.h"
#include "runtime/net/process.h"

/* ---- generations of a part ----------------------------------------------------------------------------- */

#define MAGIC UINT64_C(0x4554415453544e45) /* "ENTSTATE" */

enum { VERSION = 2, NAME_MAX_BYTES = 32, DIGEST_BYTES = ENI_DIGEST_HEX - 1 };

/* Precedes the bytes in the file: little endian, like all machines that Entrain runs on. */
typedef struct frame {
    uint64_t magic;
    uint32_t version, kind, shard, nshards;
    uint64_t run, generation, length;
    uint64_t unused[2];
} frame;
_Static_assert(sizeof(frame) == 64, "the header of a state file");

struct eni_state {
    char *path;
    int fd;
};

/* ---- the folder ---------------------------------------------------------------------------------------- */

static en_status check_folder(const eni_state *state)
{
    struct stat info;
    if (fstat(state->fd, &info) != 0)
        return eni_fail(EN_EIO, "state", "%s: %s", state->path, strerror(errno));
    if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return eni_fail(
            EN_EDENIED, "state",
            "%s must belong to this user, and others must not be able to write to it: it holds the job token",
            state->path);
    if (flock(state->fd, LOCK_EX | LOCK_NB) == 0) return EN_OK;
    return eni_fail(EN_EDENIED, "state", "%s is in use by another psd", state->path);
}

en_status eni_state_open(const char *folder, eni_state **state_out)
{
    eni_state *state = eni_alloc(sizeof *state);
    en_status st = EN_ENOMEM;
    if (state == NULL) return EN_ENOMEM;
    state->fd = -1;
    if ((state->path = eni_strdup(folder)) == NULL) goto close_state;
    st = EN_EIO;
    if ((mkdir(folder, 0700) != 0 && errno != EEXIST) ||
        (state->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        st = errno == ENOENT ? EN_ENOENT : EN_EIO;
        eni_error("state", "cannot create the folder %s of --state: %s", folder, strerror(errno));
        goto close_state;
    }
    EN_TRY_GOTO(check_folder(state), close_state);
    *state_out = state;
    return EN_OK;

close_state:
    eni_state_close(state);
    return st;
}

void eni_state_close(eni_state *state)
{
    if (state == NULL) return;
    if (state->fd >= 0) close(state->fd);
    eni_free(state->path);
    eni_free(state);
}

const char *eni_state_path(const eni_state *state)
{
    return state->path;
}

static void name_of(eni_state_kind kind, uint32_t shard, const char *end, char name[NAME_MAX_BYTES])
{
    if (kind == ENI_STATE_RUN)
        snprintf(name, NAME_MAX_BYTES, "run.%s", end);
    else
        snprintf(name, NAME_MAX_BYTES, "shard-%u.%s", shard, end);
}

/* Under all names that a part may have, or had before its rename. */
static void remove_part(const eni_state *state, eni_state_kind kind, uint32_t shard)
{
    static const char *const ends[] = {"0", "1", "tmp"};
    char name[NAME_MAX_BYTES];
    for (int i = 0; i < 3; i++) {
        name_of(kind, shard, ends[i], name);
        unlinkat(state->fd, name, 0);
    }
}

void eni_state_clear(eni_state *state)
{
    unlinkat(state->fd, "claims", 0);
    unlinkat(state->fd, "claims.tmp", 0);
    remove_part(state, ENI_STATE_RUN, 0);
    for (uint32_t k = 0; k < ENI_SHARDS_MAX; k++)
        remove_part(state, ENI_STATE_SHARD, k);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void digest_frame(const frame *head, const void *bytes, size_t length, char hex[ENI_DIGEST_HEX])
{
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, head, sizeof *head);
    eni_digest_add(&digest, bytes, length);
    eni_digest_end(&digest, hex);
}

en_status eni_state_write(const eni_state *state, const eni_state_stamp *stamp, const void *bytes,
                          size_t length)
{
    char hex[ENI_DIGEST_HEX], beside[NAME_MAX_BYTES], place[NAME_MAX_BYTES];
    const char *doing;
    frame head = {.magic = MAGIC,
                  .version = VERSION,
                  .kind = stamp->kind,
                  .shard = stamp->shard,
                  .nshards = stamp->nshards,
                  .run = stamp->run,
                  .generation = stamp->generation,
                  .length = length};
    digest_frame(&head, bytes, length, hex);
    struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, length}, {hex, DIGEST_BYTES}};
    name_of(stamp->kind, stamp->shard, "tmp", beside);
    name_of(stamp->kind, stamp->shard, stamp->generation % 2 == 0 ? "0" : "1", place);
    const eni_file_plan plan = {.folder = state->fd, .name = place, .temporary = beside, .mode = 0600};
    if (eni_file_put(&plan, parts, 3, &doing) == 0) return EN_OK;
    eni_warn("state",
             "cannot write %s/%s: %s; serving goes on, but a restarted psd would resume from an older state",
             state->path, place, strerror(errno));
    return EN_EIO;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* Reads one generation; returns why it is not sound, or NULL. *is_there_out: the file exists. */
static const char *read_one(const eni_state *state, const char *name, eni_state_kind kind, uint32_t shard,
                            frame *head, uint8_t **bytes_out, bool *is_there_out)
{
    struct stat info;
    char hex[ENI_DIGEST_HEX], stored[DIGEST_BYTES];
    const char *why = NULL;
    uint8_t *bytes = NULL;
    const int fd = openat(state->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *is_there_out = fd >= 0 || errno != ENOENT;
    if (fd < 0) return strerror(errno);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        why = "it is not a regular file";
    else if (!eni_file_read_at(fd, head, sizeof *head, 0) || head->magic != MAGIC)
        why = "it is not a state of psd";
    else if (head->version != VERSION)
        why = "it was written by another version of psd";
    else if (head->kind != kind || head->shard != shard)
        why = "it is the state of another part";
    else if (info.st_size < (off_t)(sizeof *head + DIGEST_BYTES) ||
             head->length != (uint64_t)info.st_size - sizeof *head - DIGEST_BYTES)
        why = "it is truncated";
    else if ((bytes = eni_alloc(head->length)) == NULL)
        why = "psd is out of memory";
    else if (!eni_file_read_at(fd, bytes, head->length, sizeof *head) ||
             !eni_file_read_at(fd, stored, sizeof stored, (off_t)(sizeof *head + head->length)))
        why = "it cannot be read";
    if (why == NULL) digest_frame(head, bytes, head->length, hex);
    if (why == NULL && memcmp(hex, stored, sizeof stored) != 0) why = "it is damaged (wrong hash)";
    close(fd);
    if (why != NULL)
        eni_free(bytes);
    else
        *bytes_out = bytes;
    return why;
}

en_status eni_state_read(const eni_state *state, eni_state_kind kind, uint32_t shard,
                         eni_state_stamp *stamp_out, uint8_t **bytes_out, size_t *length_out)
{
    static const char *const ends[] = {"0", "1"};
    char name[NAME_MAX_BYTES];
    frame head[2];
    uint8_t *bytes[2] = {0};
    const char *why[2];
    bool is_there[2];
    for (int i = 0; i < 2; i++) {
        name_of(kind, shard, ends[i], name);
        why[i] = read_one(state, name, kind, shard, &head[i], &bytes[i], &is_there[i]);
        if (why[i] != NULL && is_there[i])
            eni_warn("state", "cannot use %s/%s: %s", state->path, name, why[i]);
    }
    if (!is_there[0] && !is_there[1]) return EN_ENOENT;
    if (why[0] != NULL && why[1] != NULL) {
        name_of(kind, shard, "*", name);
        return eni_fail(EN_EFORMAT, "state",
                        "neither generation of %s/%s is intact: psd cannot continue that run", state->path,
                        name);
    }
    const int newest = why[0] != NULL ? 1 : why[1] != NULL ? 0 : head[1].generation > head[0].generation;
    eni_free(bytes[!newest]);
    *stamp_out = (eni_state_stamp){.kind = kind,
                                   .shard = shard,
                                   .nshards = head[newest].nshards,
                                   .run = head[newest].run,
                                   .generation = head[newest].generation};
    *bytes_out = bytes[newest];
    *length_out = head[newest].length;
    return EN_OK;
}

/* ---- the run: writing ---------------------------------------------------------------------------------- */

static json_t *key_values_json(const eni_key_value *key_values, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("[s, s]", key_values[i].key, key_values[i].value));
    return list;
}

/* Without its start time if we cannot see the process: in another pid namespace it would look as if it had
 * ended. */
static json_t *peer_json(const eni_peer *peer)
{
    const bool is_seen = eni_process_look(peer->pid, peer->born) != ENI_PROCESS_ENDED;
    return json_pack("{s:i, s:I, s:I, s:s, s:s, s:o}", "rank", (int)peer->rank, "pid", (json_int_t)peer->pid,
                     "born", is_seen ? (json_int_t)peer->born : 0, "host", peer->host, "host_id",
                     peer->host_id, "member_data", key_values_json(peer->member_data, peer->nmember_data));
}

en_status eni_run_file_write(const eni_state *state, const eni_served *attributes,
                             const eni_world_info *world)
{
    char token[ENI_TOKEN_HEX], incarnation[20];
    json_t *peers = json_array();
    eni_token_hex(&attributes->token, token);
    snprintf(incarnation, sizeof incarnation, "%" PRIx64, world->incarnation);
    for (int32_t r = 0; r < world->nranks; r++)
        json_array_append_new(peers, peer_json(&world->peers[r]));
    json_t *run = json_pack("{s:s, s:i, s:i, s:s, s:s, s:s, s:I, s:o, s:o}", "strategy", attributes->strategy,
                            "workers", (int)world->nranks, "shards", (int)attributes->nshards, "version",
                            attributes->version ? attributes->version : "", "token", token, "incarnation",
                            incarnation, "epoch", (json_int_t)world->epoch, "key_values",
                            key_values_json(world->key_values, world->nkey_values), "peers", peers);
    char *text = run ? json_dumps(run, JSON_COMPACT) : NULL;
    json_decref(run);
    if (text == NULL)
        return eni_fail(EN_ENOMEM, "state",
                        "psd cannot record its run: out of memory, or a name is not UTF-8");
    const eni_state_stamp stamp = {
        .kind = ENI_STATE_RUN, .run = world->incarnation, .generation = world->epoch};
    const en_status st = eni_state_write(state, &stamp, text, strlen(text));
    free(text);
    return st;
}

/* ---- the run: reading ---------------------------------------------------------------------------------- */

/* The memory that the object points into. */
typedef struct run_memory {
    eni_run_file file; /* first */
    json_t *json;
    eni_key_value *key_values;
    eni_peer *peers; /* (npeers) */
    size_t npeers;
    eni_revived_rank *ranks; /* (npeers) */
} run_memory;

/* The JSON owns the texts. */
static void take_key_value(eni_json *in, const json_t *pair, void *into)
{
    eni_key_value *of = into;
    *of = (eni_key_value){json_string_value(json_array_get(pair, 0)),
                          json_string_value(json_array_get(pair, 1))};
    if (of->key == NULL || of->value == NULL) eni_json_fail(in, "%s should be [key, value]", in->where);
}

/* A rank that has never joined has no host: its texts are empty. */
static void take_peer(eni_json *in, const json_t *o, void *into)
{
    eni_peer *peer = into;
    peer->rank = (int32_t)eni_json_need_integer(in, o, "rank");
    peer->pid = eni_json_need_integer(in, o, "pid");
    peer->born = eni_json_need_whole(in, o, "born");
    peer->host = eni_json_text(in, o, "host");
    peer->host_id = eni_json_text(in, o, "host_id");
    if (peer->host == NULL || peer->host_id == NULL)
        eni_json_fail(in, "%s should have a host and a host_id", in->where);
    eni_json_list(in, o, "member_data", SIZE_MAX, sizeof *peer->member_data, take_key_value,
                  &peer->member_data, &peer->nmember_data);
}

static en_status read_all(eni_json *in, run_memory *m, const eni_state_stamp *stamp)
{
    eni_run_file *file = &m->file;
    const char *token = eni_json_need_text(in, m->json, "token"),
               *incarnation = eni_json_need_text(in, m->json, "incarnation");
    file->attributes.strategy = eni_json_need_text(in, m->json, "strategy");
    file->attributes.version = eni_json_text(in, m->json, "version");
    file->attributes.nshards = (int32_t)eni_json_need_integer(in, m->json, "shards");
    file->nranks = (int32_t)eni_json_need_integer(in, m->json, "workers");
    eni_json_list(in, m->json, "key_values", SIZE_MAX, sizeof *m->key_values, take_key_value, &m->key_values,
                  &file->revived.nkey_values);
    EN_TRY(eni_json_list(in, m->json, "peers", ENI_RANKS_MAX, sizeof *m->peers, take_peer, &m->peers,
                         &m->npeers));
    if ((m->ranks = eni_alloc_array(m->npeers, sizeof *m->ranks)) == NULL) return EN_ENOMEM;
    file->revived.key_values = m->key_values;
    file->revived.peers = m->peers;
    file->revived.rank = m->ranks;
    file->revived.epoch = (uint32_t)stamp->generation;
    file->revived.incarnation = strtoull(incarnation, NULL, 16);
    file->revived.stop_step = ENI_STEP_NEVER;
    for (size_t i = 0; i < m->npeers; i++)
        if (m->peers[i].rank != (int32_t)i) eni_json_fail(in, "peers[%zu].rank should be %zu", i, i);
    if (file->nranks < 1 || (size_t)file->nranks != m->npeers || file->revived.incarnation != stamp->run ||
        file->attributes.version == NULL || eni_token_parse(token, &file->attributes.token) != EN_OK)
        eni_json_fail(in, "workers, peers, version, token and incarnation should be those of one run");
    return in->status;
}

en_status eni_run_file_read(const eni_state *state, eni_run_file **file_out)
{
    eni_state_stamp stamp;
    uint8_t *bytes;
    size_t length;
    EN_TRY(eni_state_read(state, ENI_STATE_RUN, 0, &stamp, &bytes, &length));
    eni_json in = {.who = "state", .path = state->path, .where = "run"};
    run_memory *m = eni_alloc(sizeof *m);
    if (m) m->json = eni_json_parse(&in, (const char *)bytes, length);
    eni_free(bytes);
    if (m == NULL) return EN_ENOMEM;
    m->file.memory = m;
    const en_status st = read_all(&in, m, &stamp);
    if (st == EN_OK)
        *file_out = &m->file;
    else
        eni_run_file_free(&m->file);
    return st;
}

void eni_run_file_free(eni_run_file *file)
{
    if (file == NULL) return;
    run_memory *m = file->memory;
    for (size_t i = 0; m->peers && i < m->npeers; i++)
        eni_free(m->peers[i].member_data);
    eni_free(m->peers);
    eni_free(m->ranks);
    eni_free(m->key_values);
    json_decref(m->json);
    eni_free(m);
}

/* ---- the claim log ------------------------------------------------------------------------------------- */

#define LOG_MAGIC UINT64_C(0x534d49414c43454e) /* "NECLAIMS" */

typedef struct claim {
    _Atomic uint64_t value, number; /* number 0: empty */
} claim;

typedef struct rank_entries {
    claim claim[2]; /* by the number's last bit */
    _Atomic uint64_t has_left, is_leaving, has_said_bye, came, born;
} rank_entries;

/* The file. */
typedef struct journal_file {
    uint64_t magic, run, nranks;
    _Atomic uint64_t training_ns; /* 0: not all ranks had begun to train */
    _Atomic uint64_t handed_out;  /* follows the claims: it may lack the last one */
    _Atomic uint64_t is_stopping, stop_step;
    rank_entries rank[]; /* (nranks) */
} journal_file;

struct eni_journal {
    journal_file *file;
    size_t bytes;
    int32_t nranks;
};

/* A new file is made under another name, so that one of this name is always whole. */
static en_status map_file(eni_journal *journal, const eni_state *state, uint64_t run, bool is_new)
{
    const char *folder = state->path;
    struct stat info;
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (is_new ? O_CREAT | O_TRUNC : 0);
    const int fd = openat(state->fd, is_new ? "claims.tmp" : "claims", flags, 0600);
    en_status st = EN_EIO;
    if (is_new && (fd < 0 || posix_fallocate(fd, 0, (off_t)journal->bytes) != 0)) {
        eni_error("journal", "cannot create %s/claims of %zu bytes: is the disk full?", folder,
                  journal->bytes);
        goto close_file;
    }
    if (fd < 0)
        return eni_fail(errno == ENOENT ? EN_ENOENT : EN_EIO, "journal", "cannot open %s/claims: %s", folder,
                        strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)journal->bytes) {
        eni_error("journal", "%s/claims is not the journal of a run of %d worker%s", folder, journal->nranks,
                  journal->nranks == 1 ? "" : "s");
        st = EN_EFORMAT;
        goto close_file;
    }
    journal_file *file = mmap(NULL, journal->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) {
        eni_error("journal", "cannot map %s/claims: %s; give --state a folder on a local disk", folder,
                  strerror(errno));
        goto close_file;
    }
    journal->file = file;
    if (is_new) {
        file->magic = LOG_MAGIC;
        file->run = run;
        file->nranks = (uint64_t)journal->nranks;
    }
    st = EN_OK;
    if (file->magic != LOG_MAGIC || file->run != run || file->nranks != (uint64_t)journal->nranks) {
        eni_error("journal", "%s/claims belongs to another run", folder);
        st = EN_EFORMAT;
    } else if (is_new && (fsync(fd) != 0 || renameat(state->fd, "claims.tmp", state->fd, "claims") != 0)) {
        eni_error("journal", "cannot create %s/claims: %s", folder, strerror(errno));
        st = EN_EIO;
    }
close_file:
    if (fd >= 0) close(fd);
    return st;
}

en_status eni_journal_open(const eni_state *state, uint64_t run, int32_t nranks, bool is_new,
                           eni_journal **journal_out)
{
    eni_journal *journal = eni_alloc(sizeof *journal);
    if (journal == NULL) return EN_ENOMEM;
    journal->nranks = nranks;
    journal->bytes = sizeof(journal_file) + (size_t)nranks * sizeof journal->file->rank[0];
    const en_status st = map_file(journal, state, run, is_new);
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
    case ENI_ENTRY_LEAVE: set(&of->is_leaving, 1); break;
    case ENI_ENTRY_TRAIN: set(&journal->file->training_ns, entry->value); break;
    case ENI_ENTRY_CAME:
        set(&of->born, entry->number);
        set(&of->came, entry->value);
        break;
    case ENI_ENTRY_STOP:
        set(&journal->file->stop_step, entry->value);
        set(&journal->file->is_stopping, 1);
        break;
    default: eni_warn("journal", "unknown entry of kind %u", entry->kind);
    }
}

void eni_journal_fold(const eni_journal *journal, eni_revived *revived)
{
    const journal_file *file = journal->file;
    revived->claimed = atomic_load(&file->handed_out);
    for (int32_t r = 0; r < journal->nranks; r++) {
        const rank_entries *of = &file->rank[r];
        const claim *last = &of->claim[atomic_load(&of->claim[1].number) > atomic_load(&of->claim[0].number)];
        const uint64_t index = atomic_load(&last->value);
        revived->rank[r] = (eni_revived_rank){.claim_number = atomic_load(&last->number),
                                              .claim_index = index,
                                              .has_left = atomic_load(&of->has_left) != 0,
                                              .is_leaving = atomic_load(&of->is_leaving) != 0,
                                              .has_said_bye = atomic_load(&of->has_said_bye) != 0,
                                              .came = (int64_t)atomic_load(&of->came),
                                              .born = atomic_load(&of->born)};
        if (revived->rank[r].claim_number > 0 && index != UINT64_MAX && index >= revived->claimed)
            revived->claimed = index + 1;
    }
    revived->training_ns = (int64_t)atomic_load(&file->training_ns);
    if (atomic_load(&file->is_stopping)) revived->stop_step = atomic_load(&file->stop_step);
}

void eni_journal_close(eni_journal *journal)
{
    if (journal == NULL) return;
    if (journal->file) munmap(journal->file, journal->bytes);
    eni_free(journal);
}
