/* test_program.c - programs that know entrain/rank.h only, as the ranks of real runs: the worker's bytes, deaths by name, no
 * call that hangs, nothing of the program's process touched. */
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entrain/rank.h"
#include "tests/client/kv_rig.h"
#include "tests/system/run.h"

/* Promise: A program that pushes its gradients (entrain/rank.h) ends with the bytes of the program `worker`.
 * Promise: When a rank of a program is killed, gives up or closes too early, the others name it in 2 s.
 * Promise: A program's rank reads no environment, prints nothing beside its log callback, and leaves no descriptor. */

#define TRAINS   EN_BUILD_DIR "/test_job_trains"
#define LINE     EN_BUILD_DIR "/examples/rank_line"
#define JOB      "batch-size=%d lr=0.02 momentum=0.9 nesterov epochs=2 quiet"
#define AS_PLAIN "--device=ref --model=mlp " MADE_UP " --batch-size=%d --lr=0.02 --epochs=2"
#define AS_JOB                                                                                               \
    "--device=ref --model=mlp " MADE_UP " --batch-size=%d --lr=0.02 --momentum=0.9 --nesterov --epochs=2"

enum { MOST = 3 };

/* A program as ranks by hand, and a psd if the strategy has a store. */
typedef struct cast {
    int n, has_psd;
    char meet[96], out[128];
    process psd, rank[MOST];
} cast;

static void start(cast *c, const char *strategy, int n, const char *program, const char *settings)
{
    static int runs;
    const int port = free_port(), is_line = strcmp(program, "line") == 0;
    *c = (cast){.n = n,
                .has_psd = strncmp(strategy, "ps", 2) == 0 || strncmp(strategy, "ssp", 3) == 0 ||
                           strncmp(strategy, "hybrid", 6) == 0 || strncmp(strategy, "hier", 4) == 0};
    snprintf(c->meet, sizeof c->meet, "%s=tcp://127.0.0.1:%d", c->has_psd ? "server" : "rendezvous", port);
    snprintf(c->out, sizeof c->out, "%s/out-%d", system_folder(), ++runs);
    if (c->has_psd)
        process_start(&c->psd, "psd", NULL,
                      "--listen=tcp://127.0.0.1:%d --strategy=%s --world-size=%d --shards=3", port, strategy,
                      n);
    for (int r = 0; r < n; r++)
        process_start(&c->rank[r], is_line ? LINE : TRAINS, NULL,
                      "%s%sstrategy=%s %s world-size=%d rank=%d out=%s %s", is_line ? "" : program,
                      is_line ? "" : " ", strategy, c->meet, n, r, c->out, settings);
}

static json_t *end(cast *c)
{
    for (int r = 0; r < c->n; r++) {
        const int code = process_wait(&c->rank[r], GUARD);
        if (code != 0) fail_msg("rank %d ended with %d:\n%s", r, code, process_err(&c->rank[r]));
    }
    if (c->has_psd) assert_int_equal(process_wait(&c->psd, GUARD), 0);
    char path[160];
    snprintf(path, sizeof path, "%s/result.json", c->out);
    json_t *result = json_load_file(path, 0, NULL);
    assert_non_null(result);
    return result;
}

/* ---- bytes ---- */

static void expect_workers_bytes(const char *strategy, int n, int batch, const char *how, const char *more,
                                 const json_t *of_worker)
{
    cast c;
    char settings[256];
    snprintf(settings, sizeof settings, JOB " %s", batch, more);
    start(&c, strategy, n, how, settings);
    json_t *result = end(&c);
    static const char *const keys[] = {"params_sha256", "order_sha256"};
    for (size_t i = 0; i < 2; i++)
        if (strcmp(text_at(result, keys[i]), text_at(of_worker, keys[i])) != 0)
            fail_msg("%s, %d ranks, %s: %s %s, and the worker's is %s", strategy, n, how, keys[i],
                     text_at(result, keys[i]), text_at(of_worker, keys[i]));
    assert_true(number_at(result, "updates") == number_at(of_worker, "updates"));
    json_decref(result);
}

static void test_the_workers_bytes(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        json_t *of_worker = train(GUARD, "-n %d --strategy=%s " AS_JOB, n, n == 1 ? "solo" : "ring", 12 / n);
        char accumulate[32];
        snprintf(accumulate, sizeof accumulate, "accumulate=%d", n);
        expect_workers_bytes("solo", 1, 12 / n, "writes", accumulate, of_worker);
        expect_workers_bytes("ring", n, 12 / n, "reads", "", of_worker);
        expect_workers_bytes("ring", n, 12 / n, "writes", "", of_worker);
        expect_workers_bytes("ps-sync", n, 12 / n, "reads", "", of_worker);
        expect_workers_bytes("ps-sync", n, 12 / n, "writes", "transport=tcp", of_worker);
        expect_workers_bytes("ps-sync", n, 12 / n, "after", "overlap=off", of_worker);
        json_decref(of_worker);
    }
    static const char *const others[] = {"hybrid", "hierarchical", EN_BUILD_DIR "/plugins/localsgd.so"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *of_worker = train(GUARD, "-n 2 --strategy=%s " AS_JOB, others[i], 6);
        expect_workers_bytes(others[i], 2, 6, "writes", "", of_worker);
        json_decref(of_worker);
    }
    json_t *of_worker = train(GUARD, "-n 2 --strategy=ring --transport=tcp " AS_JOB, 6);
    expect_workers_bytes("ring", 2, 6, "writes", "transport=tcp", of_worker);
    json_decref(of_worker);
    of_worker = train(GUARD, "-n 1 --strategy=ps-async " AS_JOB, 6);
    expect_workers_bytes("ps-async", 1, 6, "writes", "", of_worker);
    json_decref(of_worker);
    of_worker = train(GUARD, "-n 2 --strategy=ring --momentum=0 " AS_PLAIN, 6);
    expect_workers_bytes("ring", 2, 6, "steps", "nesterov=off momentum=0 eval-every=40", of_worker);
    expect_workers_bytes("solo", 1, 6, "steps", "nesterov=off momentum=0 accumulate=2", of_worker);
    expect_workers_bytes("ring", 2, 6, "steps", "nesterov=off momentum=0 transport=tcp", of_worker);
    json_decref(of_worker);
    promise("solo, ring, ps-sync, hybrid, hierarchical, localsgd, ps-async: params_sha256 and order_sha256 "
            "of the worker, "
            "weights shared or private");
}

/* ---- the example ---- */

static void fit(const char *strategy, int n, char sha_out[65])
{
    cast c;
    char settings[128];
    snprintf(settings, sizeof settings, "batch-size=%d steps=12 lr=0.1 quiet", 48 / n);
    start(&c, strategy, n, "line", settings);
    json_t *result = end(&c);
    assert_non_null(strstr(process_out(&c.rank[n - 1]), "y = "));
    snprintf(sha_out, 65, "%s", text_at(result, "params_sha256"));
    assert_true(number_at(result, "test_loss") < 0.3); /* 6 at the start */
    json_decref(result);
}

static void test_a_line_under_every_strategy(void **state)
{
    char ring[65], sync[65], other[65];
    (void)state;
    for (int n = 2; n <= 3; n++) {
        fit("ring", n, ring);
        fit("ps-sync", n, sync);
        assert_string_equal(ring, sync);
        fit("ps-async", n, other);
        fit("ssp:bound=2", n, other);
    }
}

/* ---- deaths ---- */

static void expect_named(cast *c, int dead, const char *word)
{
    stopwatch watch = stopwatch_start();
    for (int r = 0; r < c->n; r++)
        if (r != dead) assert_int_equal(process_wait(&c->rank[r], GUARD), 1);
    const double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, 2 * SLOWNESS, "until all ranks have ended");
    char name[24];
    snprintf(name, sizeof name, "rank %d", dead);
    for (int r = 0; r < c->n; r++)
        if (r != dead && process_says(&c->rank[r], name, word) == 0)
            fail_msg("rank %d does not name %s:\n%s", r, name, process_err(&c->rank[r]));
    if (c->has_psd) process_wait(&c->psd, GUARD);
    promise("%s: named by the others in %.2f s", word, took);
}

static void test_a_killed_rank_is_named(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync", "ssp:bound=2"};
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int dead = 0; dead < 3; dead += 1 + (int)i) {
            cast c;
            start(&c, strategies[i], 3, "line", "batch-size=8 steps=1000000000 lr=0.001");
            wait_for_line(&c.rank[0], "Train Epoch", GUARD);
            process_kill(&c.rank[dead], SIGKILL);
            assert_int_equal(process_wait(&c.rank[dead], GUARD), 128 + SIGKILL);
            expect_named(&c, dead, SAYS_DIED);
        }
    process_nobody_left(GUARD);
}

/* The child lives on for 8 s, and has copies of all sockets. */
static void test_a_killed_rank_with_a_child_is_named(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        cast c;
        start(&c, strategies[i], 2, "dies", "batch-size=6 steps=1000000");
        assert_int_equal(process_wait(&c.rank[1], GUARD), 128 + SIGKILL);
        expect_named(&c, 1, SAYS_DIED);
    }
    process_nobody_left(GUARD);
}

/* ---- calls: programs in children of this test ---- */

static void hear(void *user, int level, const char *subsystem, const char *text)
{
    scene *s = user;
    (void)subsystem;
    if (level <= 1) snprintf(s->said, sizeof s->said, "%s", text);
}

/* A name of 200 bytes, and one of a single letter. */
#define TEN   "0123456789"
#define FIFTY TEN TEN TEN TEN TEN
static const en_rank_tensor two[2] = {
    {.size = sizeof two[0], .name = FIFTY FIFTY FIFTY FIFTY, .shape = {3, 2}},
    {.size = sizeof two[0], .name = "b"}};

static en_rank_options options_for(scene *s)
{
    return (en_rank_options){.abi = EN_RANK_ABI,
                             .size = sizeof(en_rank_options),
                             .ntensors = 2,
                             .tensors = two,
                             .train_samples = 100,
                             .log = hear,
                             .user = s};
}

static const en_rank_score fine = {.size = sizeof fine, .loss = 1};

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static en_status whole_run(en_rank *rank)
{
    en_rank_batch batch;
    en_status st;
    while ((st = en_rank_next(rank, &batch)) == EN_OK && (st = en_rank_begin(rank, batch.count)) == EN_OK)
        if ((st = en_rank_finish(rank, &fine)) != EN_OK) return st;
    return st == EN_ESTOP ? en_rank_end(rank) : st;
}

static int quiet_rank(scene *s, int rank)
{
    static const char *const settings[] = {"strategy=solo", "epochs=2", "batch-size=16", "lr=0.1"};
    char text[64];
    struct sigaction before[32], after[32];
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &before[i]);
    setenv("RANK", "5", 1); /* not read */
    setenv("WORLD_SIZE", "nonsense", 1);
    FILE *said = tmpfile();
    REQUIRE(said != NULL && dup2(fileno(said), STDOUT_FILENO) >= 0);
    const int kept = dup(STDERR_FILENO);
    REQUIRE(dup2(fileno(said), STDERR_FILENO) >= 0);
    const en_rank_options options = options_for(s);
    int files = 0;
    for (int i = 0; i < 50; i++) {
        en_rank *r;
        const en_status st = en_rank_open(&options, settings, 4, &r);
        const en_rank_facts *facts = st == EN_OK ? en_rank_about(r) : NULL;
        const int is_fine = st == EN_OK && facts->rank == 0 && facts->nranks == 1 && facts->steps == 14 &&
                            facts->batch == 16 && whole_run(r) == EN_OK;
        if (!is_fine) dup2(kept, STDERR_FILENO);
        REQUIRE(is_fine);
        en_rank_close(r);
        if (i == 0) files = open_files();
    }
    fflush(NULL);
    dup2(kept, STDERR_FILENO);
    REQUIRE(ftell(said) == 0 && fseek(said, 0, SEEK_END) == 0 && ftell(said) == 0); /* nothing was printed */
    REQUIRE(open_files() == files);
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &after[i]);
    for (int i = 1; i < 32; i++)
        REQUIRE(before[i].sa_handler == after[i].sa_handler);
    en_rank_why(text, sizeof text);
    REQUIRE(text[0] == 0);
    return 0;
}

typedef struct judged_rank {
    en_rank *rank;
    int is_refused;
} judged_rank;

static en_status call_the_rank(void *user, const float *const *weights, en_rank_score *score_out)
{
    judged_rank *j = user;
    en_rank_batch batch;
    score_out->loss = (double)weights[0][0];
    j->is_refused = en_rank_next(j->rank, &batch) == EN_EINVAL && en_rank_end(j->rank) == EN_EINVAL;
    return EN_OK;
}

static int misused_rank(scene *s, int rank)
{
    judged_rank judged = {0};
    static const char *const good[] = {"strategy=ring", "steps=9", "batch-size=8"};
    static const char *const wrong[][2] = {{"stratgy=ring", "strategy"},
                                           {"model=mlp", "model"},
                                           {"lr=fast", "lr"},
                                           {"strategy=", "strategy"},
                                           {"help", "help"}};
    en_rank_options options = options_for(s);
    en_rank *r = (en_rank *)s;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        REQUIRE(en_rank_open(&options, &wrong[i][0], 1, &r) == EN_EINVAL && r == NULL);
        REQUIRE(strstr(s->said, wrong[i][1]) != NULL);
    }
    REQUIRE(en_rank_open(&options, (const char *const[]){"strategy=none-such"}, 1, &r) == EN_ENOENT &&
            r == NULL);
    options.abi = 77;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EVERSION);
    options.abi = EN_RANK_ABI;
    options.train_samples = 0;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL);
    options.train_samples = 100;
    const en_rank_tensor twice[2] = {two[1], two[1]};
    options.tensors = twice;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "called b") != NULL);
    char name[EN_RANK_NAME + 2] = "";
    memset(name, 'n', sizeof name - 1);
    const en_rank_tensor long_named[2] = {{.size = sizeof two[0], .name = name}, two[1]},
                         clashing[2] = {{.size = sizeof two[0], .name = "rank.0/b"}, two[1]},
                         header[2] = {{.size = sizeof two[0], .name = "__metadata__"}, two[1]},
                         disordered[2] = {
                             {.size = sizeof two[0], .name = "a", .shape = {3, 2}, .order = {1, 1}}, two[1]};
    options.tensors = long_named;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "200 bytes") != NULL);
    options.tensors = clashing;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "rank.0/b") != NULL);
    options.tensors = header;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL &&
            strstr(s->said, "tensor __metadata__ has") != NULL);
    options.tensors = disordered;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "order of tensor a") != NULL);
    options.tensors = two;
    uint8_t byte = 0;
    en_rank_memory memory = {.size = sizeof memory, .dtype = EN_U8, .name = "b", .data = &byte};
    options.nmemories = 1;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "NULL") != NULL);
    options.memories = &memory;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "called b") != NULL);
    memory.name = "m";
    memory.dtype = 77;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "not 77") != NULL);
    memory.size = 8;
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_EINVAL && strstr(s->said, "size 8") != NULL);
    options.nmemories = 0;
    options.plugins = "/nowhere";
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_ENOENT);
    options.plugins = NULL;
    options.flags = EN_RANK_STEPS_ITSELF;
    REQUIRE(en_rank_open(&options, (const char *const[]){"strategy=ps-async", "server=tcp://127.0.0.1:1"}, 2,
                         &r) == EN_EINVAL);
    REQUIRE(strstr(s->said, "ps-async") != NULL && strstr(s->said, "ring") != NULL);
    options.flags = 0;

    en_rank_batch batch, ahead;
    REQUIRE(en_rank_open(NULL, good, 3, &r) == EN_EINVAL && r == NULL);
    REQUIRE(en_rank_next(r, &batch) == EN_EINVAL && strstr(s->said, "NULL") != NULL);
    options.evaluate = call_the_rank;
    options.user = &judged;
    options.log = NULL;
    REQUIRE(en_rank_open(&options, (const char *const[]){"strategy=solo", "steps=1", "mute"}, 3,
                         &judged.rank) == EN_OK);
    REQUIRE(whole_run(judged.rank) == EN_OK && judged.is_refused);
    en_rank_close(judged.rank);
    options = options_for(s);
    REQUIRE(en_rank_open(&options, good, 3, &r) == EN_OK);
    REQUIRE(en_rank_begin(r, 8) == EN_EINVAL && en_rank_ready(r, 0) == EN_EINVAL);
    REQUIRE(en_rank_finish(r, &fine) == EN_EINVAL && en_rank_end(r) == EN_EINVAL);
    REQUIRE(strstr(s->said, "steps left") != NULL);
    REQUIRE(en_rank_weights(r, 2) == NULL && en_rank_gradient(r, 1) != NULL);
    REQUIRE(((uintptr_t)en_rank_weights(r, 1) & 63) == 0);
    REQUIRE(en_rank_next(r, &batch) == EN_OK && batch.count == 8 && batch.number == 0);
    for (uint64_t i = 0; i < 8; i++)
        REQUIRE(batch.samples[i] < 100);
    REQUIRE(en_rank_next(r, &ahead) == EN_OK && ahead.number == 1);
    REQUIRE(en_rank_begin(r, 7) == EN_EINVAL && en_rank_begin(r, 8) == EN_OK &&
            en_rank_begin(r, 8) == EN_EINVAL);
    REQUIRE(en_rank_ready(r, 2) == EN_EINVAL && en_rank_ready(r, 1) == EN_OK &&
            en_rank_ready(r, 1) == EN_EINVAL);
    REQUIRE(strstr(s->said, "twice") != NULL);
    REQUIRE(en_rank_finish(r, NULL) == EN_EINVAL && en_rank_finish(r, &fine) == EN_OK);
    const pid_t child = fork();
    if (child == 0) {
        const int is_refused = en_rank_next(r, &batch) == EN_EBUG && en_rank_begin(r, 8) == EN_EBUG &&
                               en_rank_ready(r, 0) == EN_EBUG && en_rank_finish(r, &fine) == EN_EBUG &&
                               en_rank_end(r) == EN_EBUG && en_rank_status(r) == EN_EBUG;
        en_rank_stop(r, NULL);
        en_rank_abort(r, NULL);
        en_rank_close(r);
        _exit(is_refused ? 7 : 1);
    }
    REQUIRE(end_rank(child) == 7);
    REQUIRE(en_rank_status(r) == EN_OK && en_rank_begin(r, 8) == EN_OK); /* the one ahead */
    REQUIRE(en_rank_finish(r, &fine) == EN_OK);
    REQUIRE(whole_run(r) == EN_OK);
    REQUIRE(en_rank_next(r, &batch) == EN_EINVAL && strstr(s->said, "left") != NULL);
    en_rank_close(r);
    en_rank_close(NULL);
    return 0;
}

/* How often the events of TensorBoard in `dir` name `tag`. */
static int events_of(const char *dir, const char *tag)
{
    char pattern[200], bytes[8192];
    glob_t found;
    int n = 0;
    snprintf(pattern, sizeof pattern, "%s/events.*", dir);
    if (glob(pattern, 0, NULL, &found) != 0) return -1;
    FILE *file = fopen(found.gl_pathv[0], "r");
    globfree(&found);
    if (file == NULL) return -1;
    const size_t end = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (const char *at = bytes; (at = memmem(at, (size_t)(bytes + end - at), tag, strlen(tag))) != NULL;
         at++)
        n++;
    return n;
}

/* A child made by fork exits, as a loader's may: it does not write again what it has inherited. */
static int forking_rank(scene *s, int rank)
{
    char out[160], path[200];
    snprintf(out, sizeof out, "out=%s/forks", system_folder());
    const char *const settings[] = {"strategy=solo", "steps=10",    "batch-size=10",
                                    "tensorboard",   "log-every=1", out};
    const en_rank_options options = options_for(s);
    en_rank *r;
    en_rank_batch batch;
    REQUIRE(en_rank_open(&options, settings, 6, &r) == EN_OK);
    for (int step = 0; step < 10; step++) {
        REQUIRE(en_rank_next(r, &batch) == EN_OK && en_rank_begin(r, batch.count) == EN_OK);
        *en_rank_gradient(r, 0) = 1;
        REQUIRE(en_rank_ready(r, 0) == EN_OK && en_rank_finish(r, &fine) == EN_OK);
        const pid_t child = step == 5 ? fork() : -1;
        if (child == 0) {
            fflush(NULL); /* as exit() does */
            _exit(0);
        }
        REQUIRE(child < 0 || end_rank(child) == 0);
    }
    REQUIRE(whole_run(r) == EN_OK);
    en_rank_close(r);
    snprintf(path, sizeof path, "%s/metrics-0.jsonl", out + strlen("out="));
    json_t *lines = read_lines(path);
    REQUIRE(json_array_size(lines) == 10);
    json_decref(lines);
    REQUIRE(events_of(out + strlen("out="), "train/lr") == 10);
    return 0;
}

static int diverged_rank(scene *s, int rank)
{
    static const char *const settings[] = {"strategy=solo", "steps=9"};
    const en_rank_options options = options_for(s);
    const en_rank_score wrong = {.size = sizeof wrong, .loss = 1.0 / 0.0};
    en_rank *r;
    en_rank_batch batch;
    REQUIRE(en_rank_open(&options, settings, 2, &r) == EN_OK);
    REQUIRE(en_rank_next(r, &batch) == EN_OK && en_rank_begin(r, batch.count) == EN_OK);
    REQUIRE(en_rank_finish(r, &wrong) == EN_ENONFINITE && strstr(s->said, "diverged") != NULL);
    REQUIRE(en_rank_next(r, &batch) == EN_ENONFINITE && en_rank_end(r) == EN_ENONFINITE);
    REQUIRE(en_rank_status(r) == EN_ENONFINITE);
    en_rank_close(r);
    return 0;
}

static void alone(rank_main main)
{
    scene s = {.go = {-1, -1}};
    assert_int_equal(end_rank(start_rank(&s, main, 0)), 0);
}

static void test_calls(void **state)
{
    (void)state;
    alone(quiet_rank);
    alone(misused_rank);
    alone(forking_rank);
    alone(diverged_rank);
    promise("50 runs in one process: no line printed, no descriptor left, no signal's handler changed");
}

/* ---- two ranks in step ---- */

static en_status open_pair(scene *s, int rank, en_rank **r)
{
    char place[32];
    const char *const settings[] = {s->strategy,     "world-size=2", place,     s->server,
                                    "steps=1000000", "batch-size=8", "lr=0.001"};
    snprintf(place, sizeof place, "rank=%d", rank);
    en_rank_options options = options_for(s);
    options.flags = EN_RANK_ENVIRONMENT;
    return en_rank_open(&options, settings, 7, r);
}

/* The status that ends its steps; `at` does something in step 20. */
static en_status run_pair(en_rank *r, void (*at)(en_rank *r), uint64_t *steps_out)
{
    en_rank_batch batch;
    en_status st;
    for (*steps_out = 0;
         (st = en_rank_next(r, &batch)) == EN_OK && (st = en_rank_begin(r, batch.count)) == EN_OK;
         ++*steps_out) {
        if (*steps_out == 20 && at != NULL) at(r);
        for (uint32_t t = 2; t > 0; t--) {
            en_rank_gradient(r, t - 1)[0] = 0.5f;
            if ((st = en_rank_ready(r, t - 1)) != EN_OK) return st;
        }
        if ((st = en_rank_finish(r, &fine)) != EN_OK) return st;
    }
    return st;
}

static void give_up(en_rank *r)
{
    en_rank_abort(r, "ValueError: a shape is wrong");
}

static int rank_and_a_rank_that_aborts(scene *s, int rank)
{
    en_rank *r;
    uint64_t steps;
    REQUIRE(open_pair(s, rank, &r) == EN_OK);
    const en_status st = run_pair(r, rank == 1 ? give_up : NULL, &steps);
    REQUIRE(st == (rank == 1 ? EN_EINTR : EN_EPEER));
    REQUIRE(rank == 1 ||
            (strstr(s->said, "rank 1") != NULL && strstr(s->said, "ValueError: a shape is wrong") != NULL));
    en_rank_close(r);
    return 0;
}

static void go_away(en_rank *r)
{
    en_rank_close(r);
    _exit(0);
}

static int rank_and_a_rank_that_closes(scene *s, int rank)
{
    en_rank *r;
    uint64_t steps;
    REQUIRE(open_pair(s, rank, &r) == EN_OK);
    REQUIRE(run_pair(r, rank == 1 ? go_away : NULL, &steps) == EN_EPEER);
    REQUIRE(strstr(s->said, "rank 1") != NULL && strstr(s->said, "closed") != NULL);
    en_rank_close(r);
    return 0;
}

static void stop(en_rank *r)
{
    en_rank_stop(r, "enough");
}

static int rank_and_a_rank_that_stops(scene *s, int rank)
{
    en_rank *r;
    uint64_t steps;
    REQUIRE(open_pair(s, rank, &r) == EN_OK);
    REQUIRE(run_pair(r, rank == 1 ? stop : NULL, &steps) == EN_ESTOP);
    REQUIRE(steps > 20 && steps < 1000000 && en_rank_end(r) == EN_OK);
    en_rank_close(r);
    return 0;
}

/* Rank 1 has another rate. */
static int other_rank(scene *s, int rank)
{
    char place[32];
    const char *const settings[] = {s->strategy, "world-size=2", place,
                                    s->server,   "steps=5",      rank == 0 ? "lr=0.1" : "lr=0.2"};
    snprintf(place, sizeof place, "rank=%d", rank);
    en_rank_options options = options_for(s);
    en_rank *r;
    options.flags = EN_RANK_ENVIRONMENT;
    const en_status st = en_rank_open(&options, settings, 6, &r);
    REQUIRE(r == NULL && (st == EN_EMISMATCH || st == EN_EPEER));
    return 0;
}

static void pair(const char *strategy, rank_main main, double bound, const char *what)
{
    scene s = {.strategy = strategy, .go = {-1, -1}};
    snprintf(s.server, sizeof s.server, "rendezvous=tcp://127.0.0.1:%d", free_port());
    pid_t pid[2];
    for (int r = 0; r < 2; r++)
        pid[r] = start_rank(&s, main, r);
    stopwatch watch = stopwatch_start();
    for (int r = 0; r < 2; r++)
        assert_int_equal(end_rank(pid[r]), 0);
    const double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, bound * SLOWNESS, what);
}

static void test_ends_that_one_rank_causes(void **state)
{
    (void)state;
    pair("strategy=ring", rank_and_a_rank_that_aborts, 4, "an abort");
    pair("strategy=ring", rank_and_a_rank_that_closes, 4, "a close");
    pair("strategy=ring", rank_and_a_rank_that_stops, 4, "a stop");
    pair("strategy=ring", other_rank, 4, "a mismatch");
    process_nobody_left(GUARD);
}

int main(void)
{
    const struct CMUnitTest program[] = {cmocka_unit_test(test_calls),
                                         cmocka_unit_test(test_ends_that_one_rank_causes),
                                         cmocka_unit_test(test_a_line_under_every_strategy),
                                         cmocka_unit_test(test_the_workers_bytes),
                                         cmocka_unit_test(test_a_killed_rank_is_named),
                                         cmocka_unit_test(test_a_killed_rank_with_a_child_is_named)};
    return system_main(program);
}
