/* test_curve.c - which points a curve has, which are evaluated, and what is left on the disk. */
#include "rank/curve.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/copies.h"
#include "core/log.h"
#include "tests/heard.h"

/* Promise: A curve's points are the grid and the bracket of its target. */

enum { COUNT = 16, RECORD = 48 + COUNT * 4 };

/* The "test set": the loss of a model is its first element, the accuracy its second. */
struct judge {
    int calls, fail_at; /* fail_at: this call fails; 0: none */
    int nstate;         /* elements of the state that has to come with each model */
    float seen[256];    /* the losses, as they were asked for */
};

static en_status judge(void *user, const float *flat, const float *state, double *loss_out,
                       double *accuracy_out)
{
    struct judge *j = user;
    assert_int_equal(state == NULL, j->nstate == 0);
    for (int i = 0; i < j->nstate; i++)
        assert_true(state[i] == -flat[0]); /* those that were added with it */
    j->seen[j->calls] = flat[0];
    if (++j->calls == j->fail_at) return EN_EINTR;
    *loss_out = (double)flat[0];
    *accuracy_out = (double)flat[1];
    return EN_OK;
}

static eni_curve_config config_of(struct judge *j, const char *dir, uint64_t every)
{
    return (eni_curve_config){
        .dir = dir, .set = "test", .count = COUNT, .every = every, .evaluate = judge, .user = j};
}

/* With so many copies in memory, but two at least. */
static eni_curve *open_curve(struct judge *j, const char *dir, uint64_t every, uint64_t copies)
{
    const eni_curve_config config = config_of(j, dir, every);
    eni_curve *curve = NULL;
    assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
    eni_curve_expect(curve, 0, copies * (COUNT * sizeof(float) + 1));
    return curve;
}

/* Adds a model with that loss and accuracy. */
static void add_model(eni_curve *curve, uint64_t samples, float loss, float accuracy)
{
    float flat[COUNT] = {loss, accuracy};
    assert_int_equal(
        eni_curve_add(curve, &(eni_copy_note){samples, samples / 10, (double)samples / 100, 0}, flat, NULL),
        EN_OK);
    memset(flat, 0xff, sizeof flat); /* it was copied, was it not */
}

static void add(eni_curve *curve, uint64_t samples, float loss)
{
    add_model(curve, samples, loss, 0.25f);
}

static eni_curve_end finish(eni_curve *curve)
{
    eni_curve_end end;
    assert_int_equal(eni_curve_finish(curve, &end), EN_OK);
    return end;
}

/* ---- a folder ---- */

static char dir[] = "/tmp/entrain-curve-XXXXXX", path_room[128];

static const char *path_of(const char *name)
{
    snprintf(path_room, sizeof path_room, "%s/%s", dir, name);
    return path_room;
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path_of("eval.jsonl"));
    unlink(path_of("snapshots"));
    return rmdir(dir); /* nothing else is left */
}

static long size_of(const char *name)
{
    struct stat info;
    return stat(path_of(name), &info) == 0 ? (long)info.st_size : -1;
}

/* The lines of eval.jsonl, which the caller releases. */
static json_t *lines(void)
{
    json_t *list = json_array();
    FILE *file = fopen(path_of("eval.jsonl"), "r");
    assert_non_null(file);
    for (json_t *o; (o = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)) != NULL;)
        json_array_append_new(list, o);
    fclose(file);
    return list;
}

/* "100 200 300b": samples of the lines, b where it is of a bracket. */
static void expect_lines(const char *expected)
{
    char text[1024] = "";
    size_t i;
    json_t *o, *list = lines();
    json_array_foreach(list, i, o)
    {
        const char *mark = json_is_true(json_object_get(o, "bracket")) ? "b" : "";
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d%s", i > 0 ? " " : "",
                 (int)json_integer_value(json_object_get(o, "samples")), mark);
    }
    json_decref(list);
    assert_string_equal(text, expected);
}

/* ---- points ---- */

static void test_due_at_multiples(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, NULL, 100, 8);
    assert_false(eni_curve_is_due(curve, 0));
    assert_false(eni_curve_is_due(curve, 99));
    assert_true(eni_curve_is_due(curve, 100));
    assert_true(eni_curve_is_due(curve, 130)); /* steps do not hit multiples */
    add(curve, 130, 1);
    assert_false(eni_curve_is_due(curve, 130));
    assert_false(eni_curve_is_due(curve, 199));
    assert_true(eni_curve_is_due(curve, 200)); /* the grid stays where it was */
    add(curve, 470, 1);                        /* two multiples at once make one point */
    assert_false(eni_curve_is_due(curve, 499));
    assert_true(eni_curve_is_due(curve, 500));
    eni_curve_close(curve);
    assert_int_equal(j.calls, 0); /* nothing is evaluated unless asked */
}

static void test_never_due_without_a_grid(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, "", 0, 8);
    assert_false(eni_curve_is_due(curve, UINT64_MAX));
    add(curve, 1000, 2);
    const eni_point last = finish(curve).last;
    assert_int_equal(j.calls, 1);
    assert_true(last.loss == 2 && last.accuracy == 0.25 && last.samples == 1000);
    eni_curve_close(curve);
    eni_curve_close(NULL);
}

/* However many copies fit, nothing is evaluated before the end, and then everything, in order. */
static void test_nothing_is_evaluated_before_the_end(void **state)
{
    (void)state;
    for (uint64_t copies = 0; copies <= 7; copies++)
        for (int has_dir = 0; has_dir <= 1; has_dir++) {
            struct judge j = {0};
            eni_curve *curve = open_curve(&j, has_dir ? dir : NULL, 100, copies);
            for (int i = 1; i <= 6; i++)
                add(curve, 100 * (uint64_t)i, (float)i);
            assert_int_equal(j.calls, 0);
            if (has_dir) assert_int_equal(size_of("snapshots") > 0, copies < 6);
            assert_true(finish(curve).last.loss == 6);
            assert_int_equal(j.calls, 6);
            for (int i = 1; i <= 6; i++)
                assert_true(j.seen[i - 1] == (float)i);
            eni_curve_close(curve);
            if (has_dir) expect_lines("100 200 300 400 500 600");
            if (has_dir) assert_int_equal(size_of("snapshots"), -1);
        }
}

static void test_the_final_model_replaces(void **state)
{
    (void)state;
    for (uint64_t copies = 2; copies <= 3; copies++)
        for (int is_kept = 0; is_kept <= 1; is_kept++) {
            struct judge j = {0};
            eni_curve *curve = open_curve(&j, dir, 100, copies);
            add(curve, 50, 5);
            add(curve, 100, 4);
            if (is_kept) eni_curve_keep(curve);
            add(curve, 100, 3); /* also when it is in the file */
            assert_true(finish(curve).last.loss == 3);
            assert_int_equal(j.calls, 2);
            eni_curve_close(curve);
            expect_lines("50 100");
        }
}

static void test_file(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve_config config = config_of(&j, dir, 100);
    eni_curve *curve;
    for (int is_holdout = 0; is_holdout <= 1; is_holdout++) {
        config.set = is_holdout ? "holdout" : "test";
        assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
        add(curve, 100, 4);
        add(curve, 200, NAN); /* a model that diverged: JSON has no NaN */
        add(curve, 300, 2);
        finish(curve);
        eni_curve_close(curve);
        json_t *list = lines();
        assert_int_equal(json_array_size(list), 3);
        for (int i = 1; i <= 3; i++) {
            const json_t *o = json_array_get(list, (size_t)i - 1);
            assert_int_equal(json_integer_value(json_object_get(o, "samples")), 100 * i);
            assert_int_equal(json_integer_value(json_object_get(o, "update")), 10 * i);
            assert_float_equal(json_real_value(json_object_get(o, "t")), i, 1e-6);
            assert_null(json_object_get(o, "bracket"));
            assert_null(json_object_get(o, is_holdout ? "test_loss" : "holdout_loss"));
            const json_t *accuracy = json_object_get(o, is_holdout ? "holdout_accuracy" : "test_accuracy");
            assert_float_equal(json_number_value(accuracy), 0.25, 1e-9);
            const json_t *loss = json_object_get(o, is_holdout ? "holdout_loss" : "test_loss");
            if (i == 2)
                assert_true(json_is_null(loss));
            else
                assert_float_equal(json_number_value(loss), i == 1 ? 4 : 2, 1e-9);
        }
        json_decref(list);
    }
}

/* ---- with a target ---- */

/* A run of `k` points behind the initial weights, whose accuracy rises by 1/k with each. */
static eni_curve_end rise(struct judge *j, double target, int k, uint64_t copies)
{
    eni_curve_config config = config_of(j, dir, 10);
    eni_curve *curve;
    config.target.value = target;
    assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
    eni_curve_expect(curve, 0, copies * (COUNT * sizeof(float) + 1));
    for (int i = 0; i <= k; i++)
        add_model(curve, 10 * (uint64_t)i, (float)i, (float)i / (float)k);
    const eni_curve_end end = finish(curve);
    eni_curve_close(curve);
    return end;
}

/* 48 points: the grid is every fourth. 0.55 lies between 26 and 27, so in the bracket (24, 28]. */
static void test_the_grid_and_the_bracket(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve_end end = rise(&j, 0.55, 48, 5);
    expect_lines("0 40 80 120 160 200 240 250b 260b 270b 280 320 360 400 440 480");
    assert_int_equal(j.calls, 13 + 3);
    assert_true(end.is_whole);
    assert_float_equal(end.reach.samples, 264, 0.01);
    assert_float_equal(end.reach.t, 2.64, 1e-4);
    assert_float_equal(end.reach.low, 2.6, 1e-9);
    assert_float_equal(end.reach.high, 2.7, 1e-9);
    assert_int_equal(end.last.samples, 480);
    j.calls = 0;
    end = rise(&j, 0.99, 48, 5); /* one point of the grid is no three */
    assert_true(isinf(end.reach.t));
    expect_lines("0 40 80 120 160 200 240 280 320 360 400 440 480");
    j.calls = 0;
    end = rise(&j, 0.55, 50, 100); /* every fifth, and the last */
    expect_lines("0 50 100 150 200 250 260b 270b 280b 290b 300 350 400 450 500");
    j.calls = 0;
    end = rise(&j, 0.03, 48, 5); /* before the first of the grid: the initial weights are below it */
    expect_lines("0 10b 20b 30b 40 80 120 160 200 240 280 320 360 400 440 480");
    assert_float_equal(end.reach.samples, 14.4, 0.01);
    j.calls = 0;
    rise(&j, 0.5, 7, 5); /* as many as the grid has: no need for a bracket */
    expect_lines("0 10 20 30 40 50 60 70");
}

static void test_no_target_evaluates_all(void **state)
{
    (void)state;
    struct judge j = {0};
    rise(&j, 0, 30, 4);
    assert_int_equal(j.calls, 31);
}

/* ---- a run that was killed ---- */

/* What a killed process leaves: nothing was closed. */
static void leave(eni_curve *curve)
{
    char there[160], aside[170];
    snprintf(there, sizeof there, "%s", path_of("snapshots"));
    snprintf(aside, sizeof aside, "%s.aside", there);
    rename(there, aside);
    eni_curve_close(curve);
    rename(aside, there);
}

/* The state of a model goes with it, in memory, through the file, and into a run that goes on. */
static void test_a_state_goes_with_its_model(void **state)
{
    (void)state;
    struct judge j = {.nstate = 4};
    eni_curve_config config = config_of(&j, dir, 100);
    eni_curve *curve = NULL;
    config.nstate = 4;
    for (int life = 0; life < 2; life++) {
        assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
        for (int i = 3 * life + 1; i <= 3 * life + 3; i++) {
            const float flat[COUNT] = {(float)i}, stats[4] = {(float)-i, (float)-i, (float)-i, (float)-i};
            assert_int_equal(eni_curve_add(curve, &(eni_copy_note){100 * (uint64_t)i, 1, i, 0}, flat, stats),
                             EN_OK);
        }
        config.resumed = 300;
        if (life > 0) continue;
        eni_curve_keep(curve);
        assert_int_equal(size_of("snapshots"), 3 * (RECORD + 16));
        leave(curve);
    }
    finish(curve);
    assert_int_equal(j.calls, 6);
    eni_curve_close(curve);
}

static eni_curve *resume(struct judge *j, uint64_t resumed, double target)
{
    eni_curve_config config = config_of(j, dir, 100);
    eni_curve *curve = NULL;
    config.resumed = resumed;
    config.target.value = target;
    assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
    return curve;
}

static void begin_and_die(int points_kept, int points_after)
{
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, dir, 100, 300);
    for (int i = 1; i <= points_kept; i++)
        add(curve, 100 * (uint64_t)i, (float)i);
    eni_curve_keep(curve);
    for (int i = 1; i <= points_after; i++)
        add(curve, 100 * (uint64_t)(points_kept + i), -1);
    if (points_after > 1) eni_curve_keep(curve); /* a later checkpoint, which was lost */
    leave(curve);
    assert_int_equal(j.calls, 0);
}

static void finish_resumed(uint64_t resumed, int from, int until)
{
    struct judge j = {0};
    eni_curve *curve = resume(&j, resumed, 0);
    for (int i = from; i <= until; i++) {
        assert_true(eni_curve_is_due(curve, 100 * (uint64_t)i));
        add(curve, 100 * (uint64_t)i, (float)i);
    }
    assert_true(finish(curve).last.samples == 100 * (uint64_t)until);
    for (int i = 0; i < j.calls; i++) /* the weights of each, in order, and none that were forgotten */
        assert_true(j.seen[i] > (i == 0 ? 0 : j.seen[i - 1]));
    assert_true(j.seen[j.calls - 1] == (float)until);
    eni_curve_close(curve);
}

static void test_a_killed_run_goes_on(void **state)
{
    (void)state;
    begin_and_die(3, 1);
    assert_int_equal(size_of("snapshots"), 3 * RECORD);
    finish_resumed(350, 4, 6);
    expect_lines("100 200 300 400 500 600");
    assert_int_equal(size_of("snapshots"), -1);
    begin_and_die(3, 4); /* points beyond the checkpoint are forgotten: they will be made again */
    assert_int_equal(size_of("snapshots"), 7 * RECORD);
    finish_resumed(300, 4, 6);
    expect_lines("100 200 300 400 500 600");
}

/* Killed in the middle of a record, or one that has rotted. */
static void test_a_torn_tail(void **state)
{
    (void)state;
    for (int cut = 1; cut <= RECORD; cut += 37) {
        begin_and_die(3, 0);
        assert_int_equal(truncate(path_of("snapshots"), 3 * RECORD - cut), 0);
        finish_resumed(300, 4, 5);
        expect_lines("100 200 400 500");
    }
    begin_and_die(3, 0);
    const int fd = open(path_of("snapshots"), O_RDWR);
    assert_int_equal(pwrite(fd, "x", 1, 2 * RECORD + 60), 1);
    close(fd);
    finish_resumed(300, 4, 5);
    expect_lines("100 200 400 500");
}

/* A run that has ended, and is made longer: the beginning of its curve is in eval.jsonl alone. */
static void test_a_finished_run_goes_on(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, dir, 100, 2);
    add(curve, 100, 1);
    add(curve, 200, 2);
    finish(curve);
    eni_curve_close(curve);
    for (int is_killed = 1; is_killed >= 0; is_killed--) {
        curve = resume(&j, is_killed ? 200 : 300, 0.5);
        if (is_killed) {
            add(curve, 300, 3);
            eni_curve_keep(curve);
            leave(curve);
            continue;
        }
        add(curve, 400, 4);
        assert_false(finish(curve).is_whole);
        eni_curve_close(curve);
    }
    expect_lines("100 200 300 400");
}

/* A fresh run in a folder where one was killed has nothing of it. */
static void test_a_fresh_run_begins_empty(void **state)
{
    (void)state;
    struct judge j = {0};
    begin_and_die(3, 0);
    eni_curve *curve = open_curve(&j, dir, 100, 2);
    assert_int_equal(size_of("snapshots"), -1);
    add(curve, 100, 1);
    finish(curve);
    eni_curve_close(curve);
    expect_lines("100");
}

/* The user does not wait for the evaluation: the lines that are there are written, and what was kept stays.
 */
static void test_called_off_in_the_middle(void **state)
{
    (void)state;
    for (int is_kept = 0; is_kept <= 1; is_kept++) {
        struct judge j = {.fail_at = 3};
        eni_curve *curve = open_curve(&j, dir, 100, 2);
        eni_curve_end end;
        for (int i = 1; i <= 5; i++)
            add(curve, 100 * (uint64_t)i, (float)i);
        if (is_kept) eni_curve_keep(curve);
        assert_int_equal(eni_curve_finish(curve, &end), EN_EINTR);
        assert_true(isnan(end.last.accuracy));
        eni_curve_close(curve);
        expect_lines("100 200");
        assert_int_equal(size_of("snapshots"), is_kept ? 5 * RECORD : -1);
    }
    finish_resumed(500, 6, 6);
    expect_lines("100 200 300 400 500 600");
}

/* ---- failures ---- */

static void test_no_folder(void **state)
{
    (void)state;
    struct judge j = {0};
    heard said = {0};
    eni_curve *curve;
    eni_log_set_sink(hear, &said);
    eni_curve_config config = config_of(&j, "/nonexistent", 0);
    assert_int_equal(eni_curve_open(&config, &curve), EN_EIO);
    eni_log_set_sink(NULL, NULL);
    assert_non_null(strstr(said.text, "/nonexistent/eval.jsonl"));
}

/* Adds point `number` at 100 times that many samples. */
static en_status add_numbered(eni_curve *curve, uint32_t number)
{
    const float flat[COUNT] = {(float)number, 0.25f};
    const eni_copy_note note = {100 * (uint64_t)number, 10 * (uint64_t)number, number, number};
    return eni_curve_add(curve, &note, flat, NULL);
}

/* A disk with room for so many snapshots: training goes on with what memory has, and where that is full too every second
 * point goes. */
static void test_a_full_disk(void **state)
{
    (void)state;
    for (uint64_t room = 0; room <= 1; room++) {
        struct judge j = {0};
        heard said = {0};
        const struct rlimit few = {room * RECORD + RECORD / 2, RLIM_INFINITY};
        struct rlimit before;
        eni_curve *curve = open_curve(&j, dir, 100, 3 - room);
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before);
        setrlimit(RLIMIT_FSIZE, &few);
        eni_log_set_sink(hear, &said);
        for (uint32_t i = 1; i <= 3; i++)
            assert_int_equal(add_numbered(curve, i), EN_OK);
        eni_curve_keep(curve);
        assert_non_null(strstr(said.text, "/snapshots"));
        for (uint32_t i = 4; i <= 13; i++) /* 4, 6; then there is room for 8 and 12 */
            assert_int_equal(add_numbered(curve, i), EN_OK);
        assert_non_null(strstr(said.text, "--eval-every"));
        eni_log_set_sink(NULL, NULL);
        setrlimit(RLIMIT_FSIZE, &before);
        const float last[COUNT] = {13};
        assert_int_equal(eni_curve_add(curve, &(eni_copy_note){1300, 130, 13, 0}, last, NULL), EN_OK);
        assert_int_equal(eni_curve_left_out(curve), 10);
        finish(curve);
        for (int i = 0; i < j.calls; i++) /* each with the weights of its own */
            assert_true(j.seen[i] == (i < 3 ? 4 * (float)i + 4 : 13));
        eni_curve_close(curve);
        expect_lines("400 800 1200 1300"); /* the last one always */
    }
}

static void count_warnings(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem, (void)text;
    *(int *)user += level == ENI_LOG_WARN;
    assert_int_not_equal(level, ENI_LOG_ERROR);
}

/* The initial weights, which stay, fill half of what memory has: training goes on, and few words are made. */
static void test_a_full_disk_and_large_models(void **state)
{
    (void)state;
    struct judge j = {0};
    int warnings = 0;
    const float ends[COUNT] = {0};
    const struct rlimit none = {RECORD / 2, RLIM_INFINITY};
    struct rlimit before;
    eni_curve *curve = open_curve(&j, dir, 100, 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &none);
    eni_log_set_sink(count_warnings, &warnings);
    assert_int_equal(eni_curve_add(curve, &(eni_copy_note){0}, ends, NULL), EN_OK);
    for (uint32_t i = 4; i <= 66; i += 2) /* 6 has no room: every second one would still be 4 */
        assert_int_equal(add_numbered(curve, i), EN_OK);
    assert_int_equal(eni_curve_left_out(curve), 31);
    assert_int_equal(eni_curve_add(curve, &(eni_copy_note){6700, 670, 67, 0}, ends, NULL), EN_OK);
    assert_int_equal(eni_curve_left_out(curve), 32);
    assert_in_range(warnings, 1, 7);
    eni_log_set_sink(NULL, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    finish(curve);
    eni_curve_close(curve);
    expect_lines("0 6700");
}

static size_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1) fail_msg("no /proc/self/statm");
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* ulimit -v leaves less than the budget: what memory has no room for is in the file, and nobody calls that an error. */
static void test_little_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their malloc ends the program instead */
#endif
    const size_t bytes = (size_t)16 << 20;
    int warnings = 0;
    for (int is_expected = 0; is_expected <= 1; is_expected++) {
        eni_copies *copies;
        char *room = test_malloc(bytes);
        struct rlimit before;
        assert_int_equal(eni_copies_open("", dir, bytes, &copies), EN_OK);
        getrlimit(RLIMIT_AS, &before);
        const struct rlimit few = {mapped_bytes() + 3 * bytes, before.rlim_max};
        eni_log_set_sink(count_warnings, &warnings);
        if (setrlimit(RLIMIT_AS, &few) != 0) fail_msg("no limit");
        eni_copies_expect(copies, is_expected ? 8 : 0, 64 * bytes);
        for (uint32_t i = 1; i <= 8; i++) {
            void *block = NULL;
            assert_int_equal(eni_copies_add(copies, &(eni_copy_note){.samples = i, .number = i}, &block),
                             EN_OK);
            assert_non_null(block);
            memset(block, (int)i, bytes);
        }
        setrlimit(RLIMIT_AS, &before);
        eni_log_set_sink(NULL, NULL);
        assert_int_equal(eni_copies_count(copies), 8);
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(((const char *)eni_copies_read(copies, i, room))[bytes - 1], i + 1);
        eni_copies_close(copies, false);
        test_free(room);
    }
    assert_int_equal(warnings, 0);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_due_at_multiples),
        cmocka_unit_test(test_never_due_without_a_grid),
        WITH_FOLDER(test_nothing_is_evaluated_before_the_end),
        WITH_FOLDER(test_the_final_model_replaces),
        WITH_FOLDER(test_file),
        WITH_FOLDER(test_the_grid_and_the_bracket),
        WITH_FOLDER(test_no_target_evaluates_all),
        WITH_FOLDER(test_a_killed_run_goes_on),
        WITH_FOLDER(test_a_state_goes_with_its_model),
        WITH_FOLDER(test_a_torn_tail),
        WITH_FOLDER(test_a_finished_run_goes_on),
        WITH_FOLDER(test_a_fresh_run_begins_empty),
        WITH_FOLDER(test_called_off_in_the_middle),
        cmocka_unit_test(test_no_folder),
        WITH_FOLDER(test_a_full_disk),
        WITH_FOLDER(test_a_full_disk_and_large_models),
        WITH_FOLDER(test_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
