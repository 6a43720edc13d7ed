/* test_intruder.c - a run under attack ends like one that is left alone: the same bytes, little memory, each
 * refusal counted, each process alive. The attack begins before the ranks join. */
#include <stdio.h>
#include <string.h>

#include "tests/system/intruder.h"
#include "tests/system/run.h"

/* Promise: A run under attack ends with the bytes of an undisturbed one and grows little. */

#define RUN                                                                                                  \
    "--log-every=100000 --data=synthetic --device=ref --model=toy --limit-train-samples=2000 "               \
    "--limit-test-samples=16 --batch-size=4 --threads=1 --transport=tcp "

enum { STARTS_WITHIN = 60, ENDS_WITHIN = 150, MEMORY_MIB = 64, ROUNDS = 3 };

/* What a run left behind. */
typedef struct ended {
    char hash[65];
    double seconds;
    json_t *result;
} ended;

static ended read_result(const char *out, double began)
{
    ended e = {.seconds = now_seconds() - began};
    char path[256];
    snprintf(path, sizeof path, "%s/result.json", out);
    e.result = json_load_file(path, 0, NULL);
    assert_non_null(e.result);
    snprintf(e.hash, sizeof e.hash, "%s", text_at(e.result, "params_sha256"));
    return e;
}

static void expect_zero(process *p)
{
    const int code = process_wait(p, ENDS_WITHIN * SLOWNESS);
    if (code == 0) return;
    fprintf(stderr, "%s\n",
            process_err(p)); /* whole: a message of cmocka's is cut, and the cause stands last */
    fail_msg("%s ended with %d", p->name, code);
}

/* psd's part of the result. */
static const json_t *psd_of(const ended *e)
{
    size_t i;
    json_t *role;
    json_array_foreach(json_object_get(e->result, "roles"), i, role)
    {
        const char *name = json_string_value(json_object_get(role, "role"));
        if (name != NULL && strcmp(name, "psd") == 0) return role;
    }
    fail_msg("the result has no psd among its roles");
    return NULL;
}

/* psd and workers by hand; `who` attacks psd from its first moment, or is NULL. With `has_token` it is a
 * confused member. */
static ended ps_run(const char *strategy, int nranks, int steps, int is_attacked, int has_token,
                    intruder_report *report_out)
{
    static int nruns;
    process psd, worker[2];
    char address[64], out[160], token_path[192];
    eni_token token;
    intruder *who = NULL;
    snprintf(out, sizeof out, "%s/ps-%d", system_folder(), nruns++);
    process_start(&psd, "psd", NULL,
                  "--strategy=%s --world-size=%d --listen=tcp://127.0.0.1:0 --transport=tcp", strategy,
                  nranks);
    const char *line = wait_for_line(&psd, "--server=", STARTS_WITHIN);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=%63s", address), 1);
    snprintf(token_path, sizeof token_path, "%s/entrain/token-%s", system_folder(),
             strrchr(address, ':') + 1);
    if (has_token) assert_int_equal(eni_token_read(token_path, &token), EN_OK);
    if (is_attacked) {
        who = intruder_start(has_token ? &token : NULL);
        intruder_add(who, psd.pid);
        while (intruder_attacks(who) < 10)
            assert_true(process_err(&psd) != NULL);
    }
    const double began = now_seconds();
    for (int r = 0; r < nranks; r++) {
        process_start(&worker[r], "worker", NULL,
                      "--strategy=%s --server=%s --rank=%d --world-size=%d --steps=%d --out=%s " RUN,
                      strategy, address, r, nranks, steps, out);
        if (who != NULL) intruder_add(who, worker[r].pid);
    }
    for (int r = 0; r < nranks; r++)
        expect_zero(&worker[r]);
    expect_zero(&psd);
    if (who != NULL) *report_out = intruder_stop(who);
    return read_result(out, began);
}

static ended ring_run(int steps, int is_attacked, intruder_report *report_out)
{
    static int nruns;
    process worker[2];
    char out[160];
    intruder *who = NULL;
    const int port = free_port();
    snprintf(out, sizeof out, "%s/ring-%d", system_folder(), nruns++);
    const double began = now_seconds();
    for (int r = 0; r < 2; r++) {
        process_start(
            &worker[r], "worker", NULL,
            "--strategy=ring --allreduce=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=2 "
            "--steps=%d --out=%s " RUN,
            port, r, steps, out);
        if (!is_attacked) continue;
        if (who == NULL) who = intruder_start(NULL);
        intruder_add(who, worker[r].pid);
        while (r == 0 && intruder_attacks(who) < 20) /* while rank 0 waits for rank 1 */
            assert_true(process_err(&worker[0]) != NULL);
    }
    for (int r = 0; r < 2; r++)
        expect_zero(&worker[r]);
    if (who != NULL) *report_out = intruder_stop(who);
    return read_result(out, began);
}

/* Little slower than alone. */
static int is_in_time(const ended *alone, const ended *attacked)
{
    return attacked->seconds < 10 + 5 * alone->seconds * SLOWNESS;
}

/* Its bytes and its memory. */
static void expect_untouched(const char *what, const ended *alone, const ended *attacked,
                             const intruder_report *r)
{
    assert_string_equal(attacked->hash, alone->hash);
    promise("%s under %llu attacks on %d ports and %d sockets (%llu connections, %.1f MB): the same weights; "
            "%.1f s, alone %.1f s; no process grew by more than %.1f MiB",
            what, (unsigned long long)r->attacks, r->ports, r->sockets, (unsigned long long)r->connections,
            (double)r->bytes / 1e6, attacked->seconds, alone->seconds, (double)r->growth / 1048576);
    assert_true(r->attacks >= 50);
    assert_true(r->growth < (uint64_t)MEMORY_MIB << 20);
    assert_string_equal(text_at(attacked->result, "exit"), "ok");
}

static double refusals(const json_t *psd, const char *kind)
{
    char path[64];
    snprintf(path, sizeof path, "refusals.%s", kind);
    return number_at(psd, path);
}

static void expect_refusals(const ended *alone, const ended *attacked, int has_token)
{
    const json_t *before = psd_of(alone), *psd = psd_of(attacked);
    promise(
        "refused: %.0f by token, %.0f by membership, %.0f without HELLO; %.0f malformed; %.0f connections "
        "closed",
        refusals(psd, "token"), refusals(psd, "member"), refusals(psd, "unknown"), refusals(psd, "malformed"),
        refusals(psd, "evicted"));
    assert_true(refusals(psd, "token") > 0 || has_token);
    assert_true(refusals(psd, "member") > 0 || !has_token);
    assert_true(refusals(psd, "unknown") > 0 && refusals(psd, "malformed") > 0 &&
                refusals(psd, "evicted") > 0);
    assert_true(number_at(before, "refused") == 0 && refusals(before, "evicted") == 0);
    assert_true(number_at(psd, "repeats") == 0 && number_at(psd, "nonfinite") == 0);
}

/* Of a time the best of some rounds counts: what else the machine does makes it longer, never shorter. All
 * the rest holds in every round. */
static void attack_ps(const char *strategy, int nranks, int steps, int has_token)
{
    int is_fast = 0;
    for (int round = 0; round < ROUNDS && !is_fast; round++) {
        intruder_report report = {0};
        const ended alone = ps_run(strategy, nranks, steps, 0, 0, NULL);
        const ended attacked = ps_run(strategy, nranks, steps, 1, has_token, &report);
        expect_untouched(has_token ? "psd, by one who has the token," : "psd", &alone, &attacked, &report);
        expect_refusals(&alone, &attacked, has_token);
        is_fast = is_in_time(&alone, &attacked);
        json_decref(alone.result);
        json_decref(attacked.result);
    }
    assert_true(is_fast);
}

static void test_ps_sync(void **state)
{
    (void)state;
    attack_ps("ps-sync", 2, 20000, 0);
    attack_ps("ps-sync", 2, 20000, 1);
}

/* One asynchronous worker: the same bytes each time, and nobody to wait for. */
static void test_ps_async(void **state)
{
    (void)state;
    attack_ps("ps-async", 1, 20000, 0);
}

static void test_ring(void **state)
{
    (void)state;
    int is_fast = 0;
    for (int round = 0; round < ROUNDS && !is_fast; round++) {
        intruder_report report = {0};
        const ended alone = ring_run(20000, 0, NULL), attacked = ring_run(20000, 1, &report);
        expect_untouched("a ring over TCP", &alone, &attacked, &report);
        is_fast = is_in_time(&alone, &attacked);
        json_decref(alone.result);
        json_decref(attacked.result);
    }
    assert_true(is_fast);
}

/* Beyond loopback nothing is encrypted: each program that would listen there says so and does not. */
static void test_beyond_loopback(void **state)
{
    (void)state;
    static const struct {
        const char *program, *arguments;
    } listeners[] = {
        {"psd", "--strategy=ps-sync --world-size=1 --listen=tcp://0.0.0.0:0"},
        {"psd", "--strategy=ps-sync --world-size=1 --listen=tcp://*:0"},
        {"psd", "--strategy=ps-sync --world-size=1 --listen=tcp://[::]:0"},
        {"worker", "--strategy=ring --rank=0 --world-size=2 --rendezvous=tcp://0.0.0.0:0 " RUN},
        {"worker", "--strategy=ring --rank=0 --world-size=1 --rendezvous=tcp://[::]:0 " RUN},
    };
    for (size_t i = 0; i < sizeof listeners / sizeof *listeners; i++) {
        process p;
        process_start(&p, listeners[i].program, NULL, "%s", listeners[i].arguments);
        const int code = process_wait(&p, 20 * SLOWNESS);
        if (code == 0 || process_says(&p, "--insecure", "") < 1)
            fail_msg("%s %s ended with %d:\n%s", listeners[i].program, listeners[i].arguments, code,
                     process_err(&p));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ps_sync), cmocka_unit_test(test_ps_async),
                                       cmocka_unit_test(test_ring), cmocka_unit_test(test_beyond_loopback)};
    return system_main(tests);
}
