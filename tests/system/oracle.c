#include "tests/system/oracle.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "tests/system/process.h"

enum { WORLD = 3, NBUCKETS = 2, COUNT = 2048, NELEMENTS = NBUCKETS * COUNT, SHARDS = 2 };
enum {
    FIRST = 2,
    PLACES = 4,
    MOST = 16
};                          /* where others join: ranks that begin, that live together, at most */
enum { ROUNDS_AFTER = 20 }; /* that go on after a state could not be written */

typedef struct worker {
    struct trial *trial;
    int32_t rank;
    eni_member *member;
    eni_arena *arena;
    eni_endpoints endpoints;
    pthread_t thread;
    _Atomic(en_status) status;
    uint64_t pushes;           /* rounds of one push a bucket */
    atomic_ullong acked;       /* the same, for main */
    bool is_newcomer, is_dead; /* the latter: with one more round under way, of which nothing is known */
    atomic_bool must_die, is_over;
} worker;

typedef struct trial {
    const oracle_plan *plan;
    process psd;
    char listen[64], token_file[160], state[160];
    eni_address address;
    eni_token token;
    uint64_t random;
    atomic_int is_over; /* no new rounds */
    int nworkers;       /* that were started */
    worker worker[MOST];
    float weights[NELEMENTS];
    uint64_t clocks_ahead;
} trial;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t index_of(int32_t rank, uint64_t round, int bucket)
{
    return mix((uint64_t)rank << 48 | (uint64_t)bucket << 40 | (round + 1)) % COUNT;
}

/* ---- a worker ------------------------------------------------------------------------------------------ */

static en_status alive(void *user)
{
    const worker *w = user;
    return eni_member_status(w->member);
}

static uint64_t generation(void *user)
{
    const worker *w = user;
    return eni_member_generation(w->member);
}

static en_status locate(void *user, const eni_endpoints **psd_out)
{
    worker *w = user;
    uint32_t epoch;
    const eni_peer *psd = eni_member_leader(w->member, &epoch);
    *psd_out = &w->endpoints;
    return eni_endpoints_find(psd, epoch, w->trial->plan->is_shared ? psd->host_id : NULL, &w->endpoints);
}

static en_status begin_alike(worker *w, eni_client *client)
{
    for (uint32_t b = 0; b < NBUCKETS; b++) {
        en_status st = EN_OK;
        if (w->rank == 0) {
            st = eni_client_call(client, b, ENI_SLOT_PARAM, ENI_SLOT_NONE,
                                 &(eni_header){.type = ENI_MSG_INIT, .what = EN_WEIGHTS});
            if (st == EN_OK) st = eni_client_wait(client, b);
        }
        if (st == EN_OK)
            st = eni_client_call(client, b, ENI_SLOT_NONE, ENI_SLOT_PARAM,
                                 &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = EN_WEIGHTS});
        if (st == EN_OK) st = eni_client_wait(client, b);
        if (st != EN_OK) return st;
    }
    return w->is_newcomer ? eni_client_join(client, eni_now_ns() + 60 * ENI_SECOND) : EN_OK;
}

static en_status push_all(worker *w, eni_client *client)
{
    float *grad = eni_arena_at(w->arena, ENI_SLOT_GRAD, 0);
    en_status st = EN_OK;
    while (st == EN_OK && !atomic_load(&w->trial->is_over)) {
        eni_member_note(w->member, (int64_t)w->pushes, "push");
        for (int b = 0; b < NBUCKETS && st == EN_OK; b++) {
            memset(grad + b * COUNT, 0, COUNT * sizeof *grad);
            grad[(uint64_t)b * COUNT + index_of(w->rank, w->pushes, b)] = 1;
            st = eni_client_call(client, (uint32_t)b, ENI_SLOT_GRAD, ENI_SLOT_PARAM,
                                 &(eni_header){.type = ENI_MSG_CALL,
                                               .kind = 1,
                                               .what = EN_GRAD,
                                               .nsamples = 1,
                                               .covered = 1,
                                               .step = w->pushes});
        }
        w->is_dead = atomic_load(&w->must_die);
        if (w->is_dead) return EN_ESTOP;
        for (int b = 0; b < NBUCKETS && st == EN_OK; b++)
            st = eni_client_wait(client, (uint32_t)b);
        if (st == EN_OK) atomic_store(&w->acked, ++w->pushes);
    }
    return st;
}

/* The store's weights at the end, when all have finished. */
static en_status look(worker *w, eni_client *client)
{
    for (uint32_t b = 0; b < NBUCKETS; b++) {
        en_status st = eni_client_call(client, b, ENI_SLOT_NONE, ENI_SLOT_PARAM,
                                       &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = EN_WEIGHTS});
        if (st == EN_OK) st = eni_client_wait(client, b);
        if (st != EN_OK) return st;
    }
    memcpy(w->trial->weights, eni_arena_at(w->arena, ENI_SLOT_PARAM, 0), sizeof w->trial->weights);
    return EN_OK;
}

/* Psd's, behind those of the ranks. */
static void take_report(trial *t, const eni_blobs *blobs)
{
    const eni_blob *last = &blobs->blob[blobs->count - 1];
    json_t *report = json_loadb((const char *)last->data, last->bytes, 0, NULL);
    t->clocks_ahead = (uint64_t)json_integer_value(json_object_get(report, "max_clocks_ahead"));
    json_decref(report);
}

static en_status work(worker *w, eni_client *client)
{
    en_status st = begin_alike(w, client);
    if (st == EN_OK) st = push_all(w, client);
    if (st == EN_OK) st = eni_client_finished(client);
    if (st == EN_OK) st = eni_member_gather(w->member, "trained", NULL, 0, NULL, INT64_MAX);
    if (st == EN_OK && w->rank == 0) st = look(w, client);
    eni_blobs blobs = {0};
    if (st == EN_OK) st = eni_member_gather(w->member, "result", "{}", 2, &blobs, INT64_MAX);
    if (st == EN_OK && w->rank == 0) take_report(w->trial, &blobs);
    eni_blobs_fini(&blobs);
    return st == EN_OK ? eni_member_bye(w->member, eni_now_ns() + 30 * ENI_SECOND) : st;
}

static en_status use_client(worker *w)
{
    const eni_world_info *info = eni_member_world(w->member);
    eni_bucket_range ranges[NBUCKETS];
    eni_buckets plan = {.n = NBUCKETS, .count = NELEMENTS, .bucket = ranges};
    const eni_endpoints *psd;
    eni_net *net;
    eni_client *client = NULL;
    for (uint64_t b = 0; b < NBUCKETS; b++)
        ranges[b] = (eni_bucket_range){.lo = b * COUNT, .hi = (b + 1) * COUNT};
    en_status st = locate(w, &psd);
    if (st == EN_OK) st = eni_arena_open(NELEMENTS, ENI_ARENA_NSLOTS, 1, &w->arena);
    if (st != EN_OK) return st;
    st = eni_net_open(1, &net);
    if (st != EN_OK) return st;
    const eni_client_config config = {.net = net,
                                      .psd = psd,
                                      .arena = w->arena,
                                      .buckets = &plan,
                                      .token = &w->trial->token,
                                      .rank = w->rank,
                                      .incarnation = info->incarnation,
                                      .alive = alive,
                                      .user = w,
                                      .wake_fd = eni_member_fd(w->member),
                                      .join_deadline_ns = eni_now_ns() + 30 * ENI_SECOND,
                                      .keep = (uint32_t)(2 * w->endpoints.state_every + 8),
                                      .generation = generation,
                                      .locate = locate};
    st = eni_client_open(&config, &client);
    if (st == EN_OK) st = work(w, client);
    if (st != EN_OK) eni_net_abort(net);
    eni_client_close(client);
    eni_net_close(net);
    return st;
}

static void *run_worker(void *user)
{
    worker *w = user;
    char word[32], host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    const char *options = strchr(w->trial->plan->strategy, ':');
    snprintf(word, sizeof word, "%.*s", (int)strcspn(w->trial->plan->strategy, ":"),
             w->trial->plan->strategy);
    eni_host_info_name(host);
    eni_host_info_id(NULL, host_id);
    const eni_key_value key_values[] = {
        {"strategy-name", word},
        {"strategy-options", options ? options + 1 : ""},
        {"buckets", "2048,2048"},
        {"bucket-offsets", "0,2048"},
        {"elements", "4096"},
        {"optimizer", "sgd"},
        {"momentum", "0"},
        {"weight-decay", "0"},
        {"nesterov", "0"},
        {"lr", "1"},
        {"lr-schedule", "constant"},
        {"lr-warmup", "0"},
        {"lr-step", "0"},
        {"lr-gamma", "1"},
        {"total-samples", "1000000"},
        {"sum-order", "rank"},
        {"seed", "1"},
        {"budget", "1000000"},
        {"server-timeout", "60s"},
    };
    const eni_member_config config = {
        .leader = w->trial->address,
        .token = w->trial->token,
        .rank = w->is_newcomer ? ENI_RANK_NEW : w->rank,
        .nranks = w->trial->plan->joins > 0 ? PLACES * ENI_RANKS_PER_PLACE : WORLD,
        .host = host,
        .host_id = host_id,
        .key_values = key_values,
        .nkey_values = sizeof key_values / sizeof *key_values,
        .join_deadline_ns = eni_now_ns() + 30 * ENI_SECOND,
        .server_timeout_ns = 60 * ENI_SECOND,
        .abort_fd = -1,
    };
    en_status st = eni_member_open(&config, &w->member);
    if (st == EN_OK) {
        w->rank = eni_member_world(w->member)->rank;
        st = use_client(w);
        eni_member_close(w->member); /* of a dead one: without a goodbye */
    }
    /* A newcomer that meets a psd which is dying is not admitted: its starter starts another one. */
    const bool has_not_come = w->is_newcomer && atomic_load(&w->acked) == 0;
    w->status = (st == EN_ESTOP && w->is_dead) || has_not_come ? EN_OK : st;
    atomic_store(&w->is_over, true);
    return NULL;
}

/* ---- psd, and its killer ------------------------------------------------------------------------------- */

static int first_ranks(const trial *t)
{
    return t->plan->joins > 0 ? FIRST : WORLD;
}

static void start_psd(trial *t, const char *strace)
{
    char psd[256] = "psd", front[512] = "";
    if (strace) {
        snprintf(psd, sizeof psd, "/usr/bin/strace");
        /* Without a folder for `entrain ps`, whose file is written by the same calls. */
        snprintf(front, sizeof front, "-f -o /dev/null -E XDG_RUNTIME_DIR=/dev/null %s %s/psd ", strace,
                 EN_BUILD_DIR);
    }
    process_start(&t->psd, psd, NULL,
                  "%s--listen=%s --token-file=%s --state=%s --state-every=%d --strategy=%s --world-size=%d "
                  "--shards=%d --quiet%s",
                  front, t->listen, t->token_file, t->state, t->plan->state_every, t->plan->strategy,
                  first_ranks(t), SHARDS, t->plan->joins > 0 ? " --max-workers=4" : "");
}

static uint64_t draw(trial *t, uint64_t below)
{
    t->random = mix(t->random + UINT64_C(0x9e3779b97f4a7c15));
    return t->random % below;
}

static int has_failed(const trial *t)
{
    for (int r = 0; r < t->nworkers; r++)
        if (t->worker[r].status != EN_OK) return 1;
    return 0;
}

/* Whether every rank gets two answers within this many seconds. */
static int progress_within(trial *t, double seconds)
{
    const double begin = now_seconds();
    uint64_t before[MOST];
    for (int r = 0; r < t->nworkers; r++)
        before[r] = atomic_load(&t->worker[r].acked);
    for (int r = 0; r < t->nworkers; r++)
        while (atomic_load(&t->worker[r].acked) < before[r] + 2 && !atomic_load(&t->worker[r].must_die) &&
               !atomic_load(&t->worker[r].is_over)) {
            if (now_seconds() - begin > seconds || has_failed(t)) return 0;
            eni_sleep_until(eni_now_ns() + ENI_MILLI);
        }
    return 1;
}

static double await_progress(trial *t)
{
    const double begin = now_seconds();
    assert_true(progress_within(t, 60 * SLOWNESS) || has_failed(t));
    return now_seconds() - begin;
}

static void kill_often(trial *t, oracle_outcome *o)
{
    while (o->kills < t->plan->kills && !has_failed(t)) {
        int more = t->plan->nested > 0 ? (int)draw(t, (uint64_t)t->plan->nested + 1) : 0;
        eni_sleep_until(eni_now_ns() + (int64_t)draw(t, 120) * ENI_MILLI);
        for (; more >= 0 && o->kills < t->plan->kills; more--) {
            process_kill(&t->psd, SIGKILL);
            process_wait(&t->psd, GUARD);
            o->kills++;
            start_psd(t, NULL);
            if (more > 0) eni_sleep_until(eni_now_ns() + (int64_t)draw(t, 90) * ENI_MILLI);
        }
        const double took = await_progress(t);
        if (took > o->worst_return) o->worst_return = took;
    }
}

/* ---- ranks that come and go ---------------------------------------------------------------------------- */

static void start_worker(trial *t, bool is_newcomer)
{
    worker *w = &t->worker[t->nworkers];
    w->trial = t;
    w->rank = t->nworkers++;
    w->is_newcomer = is_newcomer;
    assert_int_equal(pthread_create(&w->thread, NULL, run_worker, w), 0);
}

/* A newcomer that pushes; NULL if absent. */
static worker *find_newcomer(trial *t)
{
    for (int r = FIRST; r < t->nworkers; r++)
        if (atomic_load(&t->worker[r].acked) > 0 && !atomic_load(&t->worker[r].must_die))
            return &t->worker[r];
    return NULL;
}

static int count_living(const trial *t)
{
    int n = 0;
    for (int r = 0; r < t->nworkers; r++)
        n += !atomic_load(&t->worker[r].is_over);
    return n;
}

static int count_joined(const trial *t)
{
    int n = 0;
    for (int r = FIRST; r < t->nworkers; r++)
        n += atomic_load(&t->worker[r].acked) > 0;
    return n;
}

/* Does the remaining events in random order: a rank joins, a rank dies, psd dies. A rank may join at any
 * moment, also while psd is away. */
static void come_and_go(trial *t, oracle_outcome *o)
{
    const oracle_plan *plan = t->plan;
    const double deadline = now_seconds() + GUARD * SLOWNESS;
    while ((o->joined < plan->joins || o->died < plan->deaths || o->kills < plan->kills) && !has_failed(t)) {
        assert_true(now_seconds() < deadline);
        o->joined = count_joined(t);
        const uint64_t what = draw(t, 3);
        worker *victim = what == 1 && o->died < plan->deaths ? find_newcomer(t) : NULL;
        eni_sleep_until(eni_now_ns() + (int64_t)draw(t, 60) * ENI_MILLI);
        if (what == 0 && o->joined < plan->joins && count_living(t) < PLACES && t->nworkers < MOST) {
            start_worker(t, true);
        } else if (victim != NULL) {
            atomic_store(&victim->must_die, true);
            o->died++;
        } else if (what == 2 && o->kills < plan->kills) {
            process_kill(&t->psd, SIGKILL);
            process_wait(&t->psd, GUARD);
            o->kills++;
            start_psd(t, NULL);
            await_progress(t); /* psd would wait for a rank that dies while psd is away */
        }
    }
}

/* The second incarnation of psd runs under strace, which kills it at a system call or makes the call fail;
 * the third, if there is one, does not. The pushes until then are not counted: states are written after them,
 * and several that are due may become one. */
static void let_strace_act(trial *t, oracle_outcome *o)
{
    const double deadline = now_seconds() + GUARD * SLOWNESS;
    process_kill(&t->psd, SIGKILL);
    process_wait(&t->psd, GUARD);
    start_psd(t, t->plan->strace);
    for (int i = 0; i < ROUNDS_AFTER && !has_failed(t) && now_seconds() < deadline;) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)t->psd.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
            process_wait(&t->psd, GUARD);
            o->kills++;
            start_psd(t, NULL);
            o->worst_return = await_progress(t);
            return;
        }
        const int has_progress = progress_within(t, 0.02);
        o->warnings = process_says(&t->psd, " W ", t->state);
        i += has_progress && o->warnings > 0;
    }
}

static void prepare(trial *t, const oracle_plan *plan)
{
    static int number;
    int lock;
    memset(t, 0, sizeof *t);
    t->plan = plan;
    t->random = plan->seed;
    t->address = (eni_address){.host = "127.0.0.1", .port = (uint16_t)free_port()};
    snprintf(t->listen, sizeof t->listen, "tcp://127.0.0.1:%u", t->address.port);
    snprintf(t->token_file, sizeof t->token_file, "%s/token-%d", system_folder(), number);
    snprintf(t->state, sizeof t->state, "%s/state-%d", system_folder(), number++);
    eni_token_make(&t->token);
    assert_int_equal(eni_token_write(&t->token, t->token_file, &lock), EN_OK);
    close(lock);
}

static void judge(const trial *t, oracle_outcome *o)
{
    static uint32_t want[NELEMENTS],
        may[NELEMENTS]; /* at least; and so many more, of the dead ones' last rounds */
    memset(want, 0, sizeof want);
    memset(may, 0, sizeof may);
    for (int i = 0; i < t->nworkers; i++) {
        const worker *w = &t->worker[i];
        for (uint64_t s = 0; s < w->pushes + w->is_dead; s++)
            for (int b = 0; b < NBUCKETS; b++) {
                (s < w->pushes ? want : may)[(uint64_t)b * COUNT + index_of(w->rank, s, b)]++;
                o->pushes += s < w->pushes;
            }
    }
    for (int i = 0; i < NELEMENTS; i++) {
        o->missing += -t->weights[i] < (float)want[i];
        o->double_ += -t->weights[i] > (float)(want[i] + may[i]);
    }
    o->clocks_ahead = t->clocks_ahead;
}

void oracle_run(const oracle_plan *plan, oracle_outcome *o)
{
    trial *t = malloc(sizeof *t);
    *o = (oracle_outcome){0};
    prepare(t, plan);
    eni_log_set_level(ENI_LOG_ERROR);
    start_psd(t, NULL);
    for (int r = 0; r < first_ranks(t); r++)
        start_worker(t, false);
    await_progress(t);
    if (plan->strace)
        let_strace_act(t, o);
    else if (plan->joins > 0)
        come_and_go(t, o);
    else
        kill_often(t, o);
    await_progress(t);
    atomic_store(&t->is_over, 1);
    for (int r = 0; r < t->nworkers; r++)
        pthread_join(t->worker[r].thread, NULL);
    for (int r = 0; r < t->nworkers; r++)
        assert_int_equal(t->worker[r].status, EN_OK);
    o->psd_code = process_wait(&t->psd, GUARD);
    judge(t, o);
    for (int r = 0; r < t->nworkers; r++)
        eni_arena_close(t->worker[r].arena);
    free(t);
}
