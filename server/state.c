/* state.c - the folder of --state: files in two generations, of which one is always whole; the description of
 * the run; and the log of what the leader has said. */
#include "server/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
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
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* ---- generations of a part ----------------------------------------------------------------------------- */

#define MAGIC UINT64_C(0x4554415453544e45) /* "ENTSTATE" */

enum { VERSION = 1, NAME_MAX_BYTES = 32, DIGEST_BYTES = ENI_DIGEST_HEX - 1 };

/* In front of the bytes, as it lies in the file: little endian, like everything that Entrain runs on. */
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
        return eni_fail(EN_EDENIED, "state",
                        "%s must be this user's, and nobody else may write to it: it holds the job token",
                        state->path);
    if (flock(state->fd, LOCK_EX | LOCK_NB) == 0) return EN_OK;
    return eni_fail(EN_EDENIED, "state", "%s is in use by another psd", state->path);
}

en_status eni_state_open(const char *folder, eni_state **state_out)
{
    eni_state *state = eni_alloc(sizeof *state);
    en_status st = EN_ENOMEM;
    if (!state) return EN_ENOMEM;
    state->fd = -1;
    if (!(state->path = eni_strdup(folder))) goto close_state;
    st = EN_EIO;
    if ((mkdir(folder, 0700) != 0 && errno != EEXIST) ||
        (state->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        st = errno == ENOENT ? EN_ENOENT : EN_EIO;
        eni_error("state", "cannot make the folder %s of --state: %s", folder, strerror(errno));
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
    if (!state) return;
    if (state->fd >= 0) close(state->fd);
    eni_free(state->path);
    eni_free(state);
}

/* Whether a file is one of ours: "claims", "run.N", "lane-K.N", and what such a file is before its rename. */
static int is_ours(const char *name)
{
    unsigned shard;
    char end[8] = "";
    int used = 0;
    if (strcmp(name, "claims") == 0 || strcmp(name, "claims.tmp") == 0) return 1;
    if (strncmp(name, "run.", 4) == 0)
        snprintf(end, sizeof end, "%s", name + 4);
    else if (sscanf(name, "lane-%u.%n", &shard, &used) == 1 && used > 0)
        snprintf(end, sizeof end, "%s", name + used);
    return strcmp(end, "0") == 0 || strcmp(end, "1") == 0 || strcmp(end, "tmp") == 0;
}

void eni_state_clear(eni_state *state)
{
    const int copy = openat(state->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        if (copy >= 0) close(copy);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (is_ours(entry->d_name)) unlinkat(state->fd, entry->d_name, 0);
    closedir(dir);
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
        snprintf(name, NAME_MAX_BYTES, "lane-%u.%s", shard, end);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void digest_frame(const frame *head, const void *bytes, size_t length, char hex[ENI_DIGEST_HEX])
{
    eni_digest *digest = eni_digest_new();
    hex[0] = 0;
    if (!digest) return;
    eni_digest_add(digest, head, sizeof *head);
    eni_digest_add(digest, bytes, length);
    eni_digest_take(digest, hex);
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
    if (!hex[0]) return EN_ENOMEM;
    struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, length}, {hex, DIGEST_BYTES}};
    name_of(stamp->kind, stamp->shard, "tmp", beside);
    name_of(stamp->kind, stamp->shard, stamp->generation % 2 == 0 ? "0" : "1", place);
    const eni_file_plan plan = {.folder = state->fd, .name = place, .temporary = beside, .mode = 0600};
    if (eni_file_put(&plan, parts, 3, &doing) == 0) return EN_OK;
    eni_warn(
        "state",
        "cannot write %s/%s: %s; serving goes on, and a psd that is started again would continue from an "
        "older state",
        state->path, place, strerror(errno));
    return EN_EIO;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* One generation; the reason why it is not sound, or NULL. *is_there_out: there is such a file. */
static const char *read_one(const eni_state *state, const char *name, eni_state_kind kind, uint32_t shard,
                            frame *head, uint8_t **bytes_out, int *is_there_out)
{
    struct stat info;
    char hex[ENI_DIGEST_HEX], stored[DIGEST_BYTES];
    const char *why = NULL;
    uint8_t *bytes = NULL;
    const int fd = openat(state->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    *is_there_out = fd >= 0 || errno != ENOENT;
    if (fd < 0) return strerror(errno);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        why = "it is no regular file";
    else if (read(fd, head, sizeof *head) != (ssize_t)sizeof *head || head->magic != MAGIC)
        why = "it is no state of psd";
    else if (head->version != VERSION)
        why = "it was written by another version of psd";
    else if (head->kind != kind || head->shard != shard)
        why = "it is the state of something else";
    else if (info.st_size < (off_t)(sizeof *head + DIGEST_BYTES) ||
             head->length != (uint64_t)info.st_size - sizeof *head - DIGEST_BYTES)
        why = "it was cut off";
    else if (!(bytes = eni_alloc(head->length)))
        why = "psd is out of memory";
    for (uint64_t at = 0; !why && at < head->length;) {
        const ssize_t n = read(fd, bytes + at, head->length - at);
        if (n <= 0) why = "it cannot be read";
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (!why && read(fd, stored, sizeof stored) != (ssize_t)sizeof stored) why = "it cannot be read";
    if (!why) digest_frame(head, bytes, head->length, hex);
    if (!why && memcmp(hex, stored, sizeof stored) != 0) why = "its hash is wrong: it is damaged";
    close(fd);
    if (why)
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
    int is_there[2];
    for (int i = 0; i < 2; i++) {
        name_of(kind, shard, ends[i], name);
        why[i] = read_one(state, name, kind, shard, &head[i], &bytes[i], &is_there[i]);
        if (why[i] && is_there[i]) eni_warn("state", "%s/%s is of no use: %s", state->path, name, why[i]);
    }
    if (!is_there[0] && !is_there[1]) return EN_ENOENT;
    if (why[0] && why[1]) {
        name_of(kind, shard, "*", name);
        return eni_fail(EN_EFORMAT, "state",
                        "neither generation of %s/%s is sound: psd cannot go on with that run", state->path,
                        name);
    }
    const int newest = why[0] ? 1 : why[1] ? 0 : head[1].generation > head[0].generation;
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

/* ---- the run ------------------------------------------------------------------------------------------- */

/* ---- writing ------------------------------------------------------------------------------------------- */

static json_t *key_values_json(const eni_key_value *key_values, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("[s, s]", key_values[i].key, key_values[i].value));
    return list;
}

static json_t *peer_json(const eni_peer *peer)
{
    return json_pack("{s:i, s:I, s:I, s:s, s:s, s:o}", "rank", (int)peer->rank, "pid", (json_int_t)peer->pid,
                     "born", (json_int_t)peer->born, "host", peer->host, "host_id", peer->host_id, "privates",
                     key_values_json(peer->member_data, peer->nmember_data));
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
                            "workers", (int)world->nranks, "lanes", (int)attributes->nshards, "version",
                            attributes->version ? attributes->version : "", "token", token, "incarnation",
                            incarnation, "epoch", (json_int_t)world->epoch, "pairs",
                            key_values_json(world->key_values, world->nkey_values), "peers", peers);
    char *text = run ? json_dumps(run, JSON_COMPACT) : NULL;
    json_decref(run);
    if (!text)
        return eni_fail(EN_ENOMEM, "state",
                        "psd cannot write down its run: out of memory, or a name is not UTF-8");
    const eni_state_stamp stamp = {
        .kind = ENI_STATE_RUN, .run = world->incarnation, .generation = world->epoch};
    const en_status st = eni_state_write(state, &stamp, text, strlen(text));
    free(text);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* What the object points into. */
typedef struct run_memory {
    eni_run_file file; /* first */
    json_t *json;
    eni_key_value *key_values;
    eni_peer *peers; /* (npeers) */
    size_t npeers;
    eni_revived_rank *ranks; /* (npeers) */
} run_memory;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* The texts stay the JSON's. */
static en_status read_key_values(const json_t *list, eni_key_value **key_values_out, size_t *n_out)
{
    const size_t n = json_array_size(list);
    eni_key_value *key_values = eni_alloc_array(n, sizeof *key_values);
    if (!key_values) return EN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i);
        key_values[i] = (eni_key_value){json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1))};
        if (key_values[i].key && key_values[i].value) continue;
        eni_free(key_values);
        return EN_EFORMAT;
    }
    *key_values_out = key_values;
    *n_out = n;
    return EN_OK;
}

static en_status read_peers(run_memory *m, const json_t *list)
{
    m->npeers = json_array_size(list);
    m->peers = eni_alloc_array(m->npeers, sizeof *m->peers);
    m->ranks = eni_alloc_array(m->npeers, sizeof *m->ranks);
    if (!m->peers || !m->ranks) return EN_ENOMEM;
    for (size_t i = 0; i < m->npeers; i++) {
        const json_t *from = json_array_get(list, i);
        eni_key_value *member_data = NULL;
        eni_peer *peer = &m->peers[i];
        EN_TRY(read_key_values(json_object_get(from, "privates"), &member_data, &peer->nmember_data));
        peer->member_data = member_data;
        peer->rank = (int32_t)json_integer_value(json_object_get(from, "rank"));
        peer->pid = json_integer_value(json_object_get(from, "pid"));
        peer->born = (uint64_t)json_integer_value(json_object_get(from, "born"));
        peer->host = text_of(from, "host");
        peer->host_id = text_of(from, "host_id");
        if (peer->rank != (int32_t)i) return EN_EFORMAT;
    }
    return EN_OK;
}

static en_status read_all(run_memory *m, const eni_state_stamp *stamp)
{
    eni_run_file *file = &m->file;
    const json_t *run = m->json;
    file->attributes.strategy = text_of(run, "strategy");
    file->attributes.version = text_of(run, "version");
    file->attributes.nshards = (int32_t)json_integer_value(json_object_get(run, "lanes"));
    file->nranks = (int32_t)json_integer_value(json_object_get(run, "workers"));
    EN_TRY(eni_token_parse(text_of(run, "token"), &file->attributes.token));
    EN_TRY(read_key_values(json_object_get(run, "pairs"), &m->key_values, &file->revived.nkey_values));
    EN_TRY(read_peers(m, json_object_get(run, "peers")));
    file->revived.key_values = m->key_values;
    file->revived.peers = m->peers;
    file->revived.rank = m->ranks;
    file->revived.epoch = (uint32_t)stamp->generation;
    file->revived.incarnation = strtoull(text_of(run, "incarnation"), NULL, 16);
    file->revived.stop_step = ENI_STEP_NEVER;
    return file->nranks >= 1 && (size_t)file->nranks == m->npeers && file->revived.incarnation == stamp->run
               ? EN_OK
               : EN_EFORMAT;
}

en_status eni_run_file_read(const eni_state *state, eni_run_file **file_out)
{
    eni_state_stamp stamp;
    uint8_t *bytes;
    size_t length;
    EN_TRY(eni_state_read(state, ENI_STATE_RUN, 0, &stamp, &bytes, &length));
    run_memory *m = eni_alloc(sizeof *m);
    if (m) m->json = json_loadb((const char *)bytes, length, 0, NULL);
    eni_free(bytes);
    if (!m) return EN_ENOMEM;
    m->file.memory = m;
    const en_status st = m->json ? read_all(m, &stamp) : EN_EFORMAT;
    if (st == EN_OK) {
        *file_out = &m->file;
        return EN_OK;
    }
    if (st == EN_EFORMAT) eni_error("state", "%s holds a run that cannot be read", eni_state_path(state));
    eni_run_file_free(&m->file);
    return st;
}

void eni_run_file_free(eni_run_file *file)
{
    if (!file) return;
    run_memory *m = file->memory;
    for (size_t i = 0; m->peers && i < m->npeers; i++)
        eni_free((void *)m->peers[i].member_data);
    eni_free(m->peers);
    eni_free(m->ranks);
    eni_free(m->key_values);
    json_decref(m->json);
    eni_free(m);
}

/* ---- the claim log ------------------------------------------------------------------------------------- */

#define LOG_MAGIC UINT64_C(0x534d49414c43454e) /* "NECLAIMS" */

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
    return eni_fail(EN_EIO, "journal", "cannot map %s/claims: %s", folder, strerror(errno));
}

/* Made beside its place, so that a file of that name is always whole. */
static en_status make_file(eni_journal *journal, const eni_state *state, uint64_t run)
{
    const char *folder = eni_state_path(state);
    const int dir = state->fd;
    const int fd = openat(dir, "claims.tmp", O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    en_status st = EN_EIO;
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)journal->bytes) != 0) {
        eni_error("journal", "cannot make %s/claims of %zu bytes: is the disk full?", folder, journal->bytes);
        goto close_file;
    }
    EN_TRY_GOTO(map_file(journal, fd, folder), close_file);
    journal->file->magic = LOG_MAGIC;
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
    const int fd = openat(state->fd, "claims", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return eni_fail(errno == ENOENT ? EN_ENOENT : EN_EIO, "journal", "cannot open %s/claims: %s", folder,
                        strerror(errno));
    en_status st = EN_EFORMAT;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)journal->bytes) {
        eni_error("journal", "%s/claims is not the journal of a run of %d workers", folder, journal->nranks);
        goto close_file;
    }
    EN_TRY_GOTO(map_file(journal, fd, folder), close_file);
    if (journal->file->magic != LOG_MAGIC || journal->file->run != run ||
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
