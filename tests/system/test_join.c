/* test_join.c - workers come to a run that goes on and leave it, are killed and let go, and psd too: who took part is in the
 * result with its end, every sample is applied once or said to be lost, and nothing of it all is left behind.
 *
 *     test_system_join                a few churns
 *     test_system_join many 50 SEED   so many, for a night
 *
 * Each worker is so slow that there is a run to come to, however long it takes to come. */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/rng.h"
#include "tests/system/job.h"
#include "tests/system/resumed.h"

/* Promise: Workers join and leave ps-async and ssp beside kills of ranks and psd: every sample is applied
 * once or reported lost. */

#define STATE_EVERY 4
#define TEXT_OF(x)  #x
#define TEXT(x)     TEXT_OF(x)
enum {
    BATCH = 4,
    RANKS = 12 /* that come */,
    KEPT = 2 * STATE_EVERY + 8,
    COMES_WITHIN = GUARD,
    ENDS_WITHIN = 4 * GUARD /* of two slow ranks, beside whatever else */
};
#define MODEL "--device=ref --model=mlp --data=synthetic --limit-test-samples=64 --threads=1 --batch-size=4 "
#define PACE  "--straggler=0:60,1:60,2:60,3:60,4:60,5:60,6:60,7:60,8:60,9:60,10:60,11:60 "
#define JOB   MODEL PACE "--lr=0.02 --quiet "

/* ---- a run, and what happens to it ---- */

typedef struct trial {
    job j;
    int places, samples, files; /* of others, before */
    int unsaved; /* micro-batches that dead ranks may have had applied since the state that a killed psd came back with */
    char out[160];
} trial;

static void begin(trial *t, const char *strategy, int places, int samples, const char *more)
{
    t->places = places;
    t->samples = samples;
    t->unsaved = 0;
    t->files = files_left("entrain");
    folder_for(t->out, "join");
    job_run(&t->j, strategy, 2, "--max-workers=%d --out=%s --limit-train-samples=%d " JOB "%s", places,
            t->out, samples, more);
    job_wait(&t->j, 1, -1, NULL, 1, COMES_WITHIN);
}

static void join(const trial *t, process *p, int n)
{
    process_start(p, "entrain", NULL, "join %d -n %d", (int)t->j.run.pid, n);
}

/* Until it has taken a step. */
static void has_come(const trial *t, int rank)
{
    job_wait(&t->j, rank, -1, NULL, 1, COMES_WITHIN);
}

static void expect_code(process *p, int code)
{
    const int got = process_wait(p, ENDS_WITHIN);
    if (got != code) fail_msg("%s: exit %d, not %d\n%s", p->name, got, code, process_err(p));
}

static void leave(const trial *t, int rank)
{
    process p;
    process_start(&p, "entrain", NULL, "leave %d %d", (int)t->j.run.pid, rank);
    expect_code(&p, 0);
}

/* Exit 2, and one sentence with these words. */
static void expect_refused(process *p, const char *sentence)
{
    expect_code(p, 2);
    if (process_says(p, " E ", "") != 1 || process_says(p, " E ", sentence) != 1)
        fail_msg("not one sentence with \"%s\":\n%s", sentence, process_err(p));
}

static void refused(const trial *t, const char *sentence, const char *command, const char *argument)
{
    process p;
    process_start(&p, "entrain", NULL, "%s %d %s", command, (int)t->j.run.pid, argument);
    expect_refused(&p, sentence);
}

/* ---- what must come of it ---- */

static void expect_nothing_left(trial *t)
{
    process_nobody_left(GUARD);
    assert_int_equal(sockets_left(t->j.sockets), 0);
    assert_int_equal(shared_memory_left(), 0);
    assert_int_equal(files_left("entrain"), t->files);
}

/* One letter a rank: stayed, left, or lost (x). */
static void expect_presence(const json_t *result, const char *ends)
{
    const json_t *presence = json_object_get(result, "presence"), *p;
    const double end = number_at(result, "train_seconds");
    size_t i;
    char found[RANKS + 2] = "";
    json_array_foreach(presence, i, p)
    {
        const char *how = text_at(p, "end");
        const double from = number_at(p, "from_s"), to = number_at(p, "to_s");
        assert_int_equal((int)number_at(p, "rank"), i);
        found[i] = (char)(strcmp(how, "lost") == 0 ? 'x' : how[0]);
        assert_true(i < 2 ? from == 0 : from > 0);
        assert_true(from < to && to <= end);
        assert_true((found[i] == 's') == (to == end));
    }
    if (strcmp(found, ends) != 0) fail_msg("they took part as \"%s\", not \"%s\"", found, ends);
}

/* What dead ranks took with them is all that is not applied. Claims come from the loader's thread alone, which begins batch
 * `taken + DEPTH` at most (data/loader.c: two wait, none is claimed beyond them), and of those that were taken all are applied
 * but the last: an answer to each push is awaited before the next batch is taken (strategies/ps.c). So a rank has 3 that are
 * claimed and not applied, in whatever order it and psd die: a claim is in the journal before it is answered, a rank asks for
 * its last one only, by number, and gets the same again.
 *
 * Where psd is killed, too, what it had applied since its newest state on disk is lost with whoever cannot push it again: all
 * kept calls of the rank (client_step.h), and no more, for a rank whose queue is full waits until psd has saved
 * (make_room in runtime/client/client.c). It has room for 2 x --state-every + 8 (rank/exchange.c). How many are in it is the
 * disk's pace, not --state-every alone: while one state is being written all ranks go on. What a rank has pushed before a
 * state that psd came back with is safe for ever, so each dead rank counts once, however often psd is killed; and one that
 * died after psd's last death has lost nothing in this way. */
static void expect_samples(const trial *t, const json_t *result, const char *ends)
{
    const json_t *worker, *lost = json_object_get(result, "lost");
    double applied = 0, missing = 0;
    size_t i, dead = 0;
    json_array_foreach(json_object_get(result, "per_worker"), i, worker)
    {
        applied += number_at(worker, "samples_applied");
        assert_int_equal((int)number_at(worker, "rank"), i);
    }
    assert_int_equal(i, strlen(ends));
    for (int r = 0; ends[r] != 0; r++) {
        if (ends[r] != 'x') continue;
        assert_int_equal((int)number_at(json_array_get(lost, dead++), "rank"), r);
    }
    assert_int_equal(json_array_size(lost), dead);
    if (dead > 0) missing = number_at(result, "samples_lost");
    assert_true((json_object_get(result, "samples_lost") != NULL) == (dead > 0));
    assert_true(missing >= 0 && missing <= (double)((3 * dead + (size_t)t->unsaved) * BATCH));
    if (applied != number_at(result, "samples_applied") || applied + missing != t->samples)
        fail_msg("%.0f applied in sum, %.0f said to be, %.0f lost, of %d", applied,
                 number_at(result, "samples_applied"), missing, t->samples);
    assert_int_equal((int)number_at(result, "samples_dropped"), 0);
}

static void start_by_hand(const trial *t, process *p, const char *flags)
{
    char leader[128];
    assert_int_equal(job_attribute(&t->j, "leader", leader, sizeof leader), 1);
    process_start(p, "worker", NULL,
                  "--strategy=%s --server=%s --rank=new --limit-train-samples=%d " MODEL "%s", t->j.strategy,
                  leader, t->samples, flags);
}

/* Enough has happened: one more comes, as fast as it can, and takes the rest. */
static void hurry(const trial *t, const char *more)
{
    process p;
    char flags[100];
    snprintf(flags, sizeof flags, "--lr=0.02 --max-workers=%d %s", t->places, more);
    start_by_hand(t, &p, flags);
    expect_code(&p, 0);
}

static json_t *expect_end(trial *t, const char *ends)
{
    expect_code(&t->j.run, 0);
    json_t *result = result_of(t->out);
    assert_string_equal(text_at(result, "exit"), "ok");
    expect_presence(result, ends);
    expect_samples(t, result, ends);
    expect_nothing_left(t);
    return result;
}

/* ---- some come, and stay ---- */

/* W - 1 while W were there, weighted by their pushes. */
static void expect_theory(const json_t *result)
{
    const json_t *presence = json_object_get(result, "presence");
    const double end = number_at(result, "train_seconds"),
                 third = number_at(json_array_get(presence, 2), "from_s"),
                 fourth = number_at(json_array_get(presence, 3), "from_s");
    const double pushes = 2 * third + 3 * (fourth - third) + 4 * (end - fourth);
    const double expected = (2 * third + 6 * (fourth - third) + 12 * (end - fourth)) / pushes;
    assert_true(fabs(number_at(result, "staleness_theory") - expected) < 0.001);
}

/* The clock of a newcomer begins where the slowest is: at most BOUND + 1 pushes behind rank 0. It ends at most so many ahead, and
 * HELD that it has claimed when rank 0 gets no more. So it makes hardly more pushes than rank 0 does from then on. One that
 * began at 0 would hold the others until it had made up for all that they had done. */
static void expect_clock(const json_t *result, int64_t step_of_0_before)
{
    enum { BOUND = 2, HELD = 3 };
    const json_t *worker = json_object_get(result, "per_worker");
    for (size_t r = 2; r < 4; r++)
        assert_true(number_at(json_array_get(worker, r), "steps") + (double)step_of_0_before <=
                    number_at(json_array_get(worker, 0), "steps") + 2 * (BOUND + 1) + HELD);
}

static void two_come(const char *strategy)
{
    trial t;
    process joined;
    begin(&t, strategy, 4, 1000, "");
    job_look(&t.j);
    job_wait(&t.j, 0, -1, NULL, 20, COMES_WITHIN);
    const int64_t before = job_step(&t.j, 0);
    join(&t, &joined, 2);
    has_come(&t, 2);
    has_come(&t, 3);
    expect_code(&joined, 0);
    json_t *result = expect_end(&t, "ssss");
    assert_int_equal((int)number_at(result, "max_workers"), 4);
    for (size_t r = 0; r < 4; r++)
        assert_true(number_at(json_array_get(json_object_get(result, "per_worker"), r), "samples_applied") >
                    0);
    if (strcmp(strategy, "ps-async") == 0)
        expect_theory(result);
    else
        expect_clock(result, before);
    promise("%s: two workers come to two, after %.1f of %.1f s: all %d samples are applied", strategy,
            number_at(json_array_get(json_object_get(result, "presence"), 2), "from_s"),
            number_at(result, "train_seconds"), t.samples);
    json_decref(result);
}

static void two_come_to_ssp(void **state)
{
    (void)state;
    two_come("ssp:bound=2");
}

static void two_come_to_ps_async(void **state)
{
    (void)state;
    two_come("ps-async");
}

/* ---- one leaves, and who cannot ---- */

static void one_leaves_and_another_comes(void **state)
{
    trial t;
    process first, second;
    (void)state;
    begin(&t, "ps-async", 3, 4000, "");
    join(&t, &first, 1);
    has_come(&t, 2);
    refused(&t,
            "all 3 places of the run are taken: wait for one to become free, or start the run with a larger "
            "--max-workers",
            "join", "");
    refused(&t, "rank 0 keeps the curve and the result", "leave", "0");
    refused(&t, "it has no such rank", "leave", "3");
    refused(&t, "\"x\" is no rank of run", "leave", "x");
    leave(&t, 2);
    expect_code(&first, 0);
    refused(&t, "that rank is not here any more", "leave", "2");
    join(&t, &second, 1);
    has_come(&t, 3);
    leave(&t, 1); /* one that was there from the start may, too */
    job_wait(&t.j, 1, ENI_RANK_GONE, NULL, -1, COMES_WITHIN);
    hurry(&t, "");
    expect_code(&second, 0);
    json_decref(expect_end(&t, "sllss"));
    promise("leave: two ranks go in good order, one comes in their place; rank 0, strangers and who has left "
            "are refused");
}

static void ctrl_c_of_join(void **state)
{
    trial t;
    process both, one;
    eni_run_rank r;
    (void)state;
    begin(&t, "ps-async", 4, 4000, "");
    join(&t, &both, 2);
    has_come(&t, 2);
    has_come(&t, 3);
    process_kill(&both, SIGINT);
    expect_code(&both, 130);
    join(&t, &one, 1);
    has_come(&t, 4);
    assert_int_equal(job_ask(&t.j, 4, &r), 1);
    assert_int_equal(kill((pid_t)r.pid, SIGTERM), 0); /* that one, and not who has started it */
    process_wait(&one, GUARD);
    hurry(&t, "");
    json_decref(expect_end(&t, "ssllls"));
    promise(
        "Ctrl-C for `entrain join`, or SIGTERM for a newcomer: they finish what they have claimed and leave");
}

/* ---- who does not fit ---- */

static void by_hand(const trial *t, const char *sentence, const char *flags)
{
    process p;
    start_by_hand(t, &p, flags);
    expect_refused(&p, sentence);
}

static void who_does_not_fit_is_refused(void **state)
{
    trial t;
    char flags[400];
    (void)state;
    begin(&t, "ps-async", 3, 4000, "");
    by_hand(&t, "lr differs: the run has 0.02", "--max-workers=3 --lr=0.03");
    by_hand(&t, "model differs: the run has mlp", "--max-workers=3 --lr=0.02 --model=toy");
    by_hand(&t, "a newcomer was told --max-workers=4, the run --max-workers=3", "--max-workers=4 --lr=0.02");
    snprintf(flags, sizeof flags, "--max-workers=3 --lr=0.02 --token-file=%s/token", system_folder());
    FILE *token = fopen(strstr(flags, "/tmp"), "we");
    assert_non_null(token);
    fprintf(token, "%032d\n", 7);
    fclose(token);
    assert_int_equal(chmod(strstr(flags, "/tmp"), 0600), 0);
    by_hand(&t, "the job token is not this run's", flags);
    hurry(&t, ""); /* what they lacked */
    json_decref(expect_end(&t, "sss"));
    promise("a newcomer of other flags, another model, another number of places, or without the token is "
            "refused");
}

/* Rank 1 is in its last step for some seconds, and everything is given out. */
static void a_run_that_ends_takes_nobody(void **state)
{
    trial t;
    process p;
    (void)state;
    folder_for(t.out, "join");
    t.files = files_left("entrain");
    job_run(
        &t.j, "ps-async", 2,
        "--max-workers=3 --out=%s --model=convnet --data=synthetic --device=ref --threads=1 --batch-size=16 "
        "--limit-train-samples=160 --limit-test-samples=8 --straggler=1:40 --quiet",
        t.out);
    job_wait(&t.j, 0, -1, "finish", 0, COMES_WITHIN);
    refused(&t, "the run is ending: all its micro-batches are given out", "join", "");
    expect_code(&t.j.run, 0);
    process_start(&p, "entrain", NULL, "join %d", (int)t.j.run.pid);
    expect_refused(&p, "there is no run");
    expect_nothing_left(&t);
}

/* Ends the run while a newcomer is on its way to it; the exit code of its `entrain join`. 1: it was there already. */
static int join_too_late(void)
{
    trial t;
    process p;
    pid_t newcomer;
    begin(&t, "ps-async", 3, 4000, "--join-timeout=1h");
    join(&t, &p, 1);
    const double deadline = now_seconds() + COMES_WITHIN;
    while ((newcomer = process_child(p.pid, "--rank=new")) == 0)
        if (now_seconds() > deadline) fail_msg("no newcomer\n%s", process_err(&p));
    assert_int_equal(kill(newcomer, SIGSTOP), 0);
    process_kill(&t.j.run, SIGKILL);
    process_wait(&t.j.run, GUARD);
    assert_int_equal(kill(newcomer, SIGCONT), 0);
    const int code = process_wait(&p, GUARD);
    process_nobody_left(GUARD);
    assert_true(code == 1 || process_says(&p, " E ", "has ended; who waits to join it is called off") == 1);
    return code;
}

/* A newcomer would look for the leader for as long as its --join-timeout. */
static void a_run_that_has_ended_is_not_waited_for(void **state)
{
    int code = 1;
    (void)state;
    for (int i = 0; i < 10 && code == 1; i++)
        code = join_too_late();
    assert_int_equal(code, 2);
}

/* ---- all of it, in any order ---- */

typedef struct churn {
    trial t;
    process joiner[RANKS];
    char ends[RANKS + 2]; /* so far */
    int joins, kills, leaves, psds;
    uint64_t seed, drawn;
} churn;

/* The same for the same seed. */
static int draw(churn *c, int below)
{
    const eni_rng_key key = {.seed = c->seed, .purpose = ENI_RNG_TEST};
    return (int)eni_rng_below(&key, c->drawn++, (uint64_t)below);
}

/* 0: there is none. */
static int a_newcomer(churn *c)
{
    int here[RANKS], n = 0;
    for (int r = 2; c->ends[r] != 0; r++)
        if (c->ends[r] == 's') here[n++] = r;
    return n == 0 ? 0 : here[draw(c, n)];
}

static int count_here(const churn *c)
{
    int n = 0;
    for (int r = 0; c->ends[r] != 0; r++)
        n += c->ends[r] == 's';
    return n;
}

static void one_comes(churn *c)
{
    const int rank = (int)strlen(c->ends);
    process *joiner = &c->joiner[rank];
    eni_run_rank r;
    join(&c->t, joiner, 1);
    while (job_ask(&c->t.j, rank, &r) == 0) {
        struct pollfd ended = {.fd = joiner->pidfd, .events = POLLIN};
        if (poll(&ended, 1, 10) > 0)
            fail_msg("who was to be rank %d has ended: %s", rank, process_err(joiner));
    }
    has_come(&c->t, rank);
    c->ends[rank] = 's';
    c->joins++;
}

static void one_is_killed(churn *c, int rank)
{
    eni_run_rank r;
    if (job_ask(&c->t.j, rank, &r) == 0 || r.pid <= 0) fail_msg("nothing is known of rank %d", rank);
    assert_int_equal(kill((pid_t)r.pid, SIGKILL), 0);
    c->ends[rank] = 'x';
    c->kills++;
}

static void one_leaves(churn *c, int rank)
{
    leave(&c->t, rank);
    c->ends[rank] = 'l';
    c->leaves++;
}

/* Until it is back, and rank 0 goes on. */
static void psd_is_killed(churn *c)
{
    const int64_t step = job_step(&c->t.j, 0);
    const pid_t psd = process_child(c->t.j.run.pid, "psd");
    const double deadline = now_seconds() + GUARD;
    assert_true(psd > 0);
    assert_int_equal(kill(psd, SIGKILL), 0);
    for (pid_t next = psd; next <= 0 || next == psd; next = process_child(c->t.j.run.pid, "psd"))
        assert_true(now_seconds() <
                    deadline); /* what the dead one has written must not be read for the next one's */
    c->psds++;
    c->t.unsaved = c->kills * KEPT;
    job_wait(&c->t.j, 0, -1, NULL, step + 1, COMES_WITHIN);
}

/* Somebody may be killed, or have been asked to leave, at the moment at which psd is. */
static void one_thing_happens(churn *c)
{
    const int what = draw(c, 6), rank = a_newcomer(c);
    if (rank == 0 || (what < 2 && count_here(c) < 4 && strlen(c->ends) < RANKS)) {
        one_comes(c);
        return;
    }
    if (what == 2 || what == 4) one_is_killed(c, rank);
    if (what == 3 || what == 5) one_leaves(c, rank);
    if (what >= 4 || what < 2) psd_is_killed(c);
    if (c->ends[rank] != 's') expect_code(&c->joiner[rank], c->ends[rank] == 'x');
}

/* So many things, or until 70 % of the micro-batches have been given out. */
static void come_and_go(uint64_t seed, int things, int samples)
{
    const int is_async = seed % 2 != 0;
    churn c = {.seed = seed, .ends = "ss"};
    begin(&c.t, is_async ? "ps-async" : "ssp:bound=2", 5, samples,
          "--server-restarts=99 --server-timeout=6s --state-every=" TEXT(STATE_EVERY));
    job_look(&c.t.j);
    while (strlen(c.ends) < RANKS && things-- > 0 && job_given_out(&c.t.j) < 0.7)
        one_thing_happens(&c);
    if (is_async) hurry(&c.t, "--server-timeout=6s"); /* in ssp it would wait for the others */
    for (int r = 2; c.ends[r] != 0; r++)
        if (c.ends[r] == 's') expect_code(&c.joiner[r], 0);
    if (is_async) strcat(c.ends, "s");
    json_t *result = expect_end(&c.t, c.ends);
    const json_t *lost = json_object_get(result, "samples_lost");
    promise("seed %d: %d workers came, %d were killed, %d left, psd was killed %d times: %.0f of %d samples "
            "are applied, and %d are said to be lost",
            (int)seed, c.joins, c.kills, c.leaves, c.psds, number_at(result, "samples_applied"), samples,
            lost == NULL ? 0 : (int)json_integer_value(lost));
    json_decref(result);
}

static void workers_come_and_go(void **state)
{
    (void)state;
    come_and_go(1, 8, 4000);
    come_and_go(6, 8, 2400);
}

static int wanted;
static uint64_t first_seed;

static void many(void **state)
{
    (void)state;
    for (int i = 0; i < wanted; i++)
        come_and_go(first_seed + (uint64_t)i, 20, 6000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {JOB_TEST(two_come_to_ssp),
                                       JOB_TEST(two_come_to_ps_async),
                                       JOB_TEST(one_leaves_and_another_comes),
                                       JOB_TEST(ctrl_c_of_join),
                                       JOB_TEST(who_does_not_fit_is_refused),
                                       JOB_TEST(a_run_that_ends_takes_nobody),
                                       JOB_TEST(a_run_that_has_ended_is_not_waited_for),
                                       JOB_TEST(workers_come_and_go)};
    const struct CMUnitTest night[] = {JOB_TEST(many)};
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    if (argc < 3 || strcmp(argv[1], "many") != 0) return system_main(tests);
    wanted = atoi(argv[2]);
    first_seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    return system_main(night);
}
