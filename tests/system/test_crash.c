/* test_crash.c - a function of a plugin that ends the process or never returns, in a rank, in psd and in
 * `entrain sim`: one sentence names the function, the plugin and the place, the exit is not 0, and nobody is
 * left. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: A plugin that crashes, exits or hangs causes one sentence with function, plugin, rank, step and
 * bucket, and an exit code other than 0. */

#define PLUGIN EN_BUILD_DIR "/test/plugins/crash.so"
#define BY_HAND                                                                                              \
    "--device=ref --model=toy --threads=1 --quiet --steps=4 --batch-size=2 --assign=fixed --log-level=warn"

enum { WITHIN = 30 };

typedef struct deed {
    const char *name, *words;
} deed;
static const deed deeds[] = {{"segv", "crashed: Segmentation fault (SIGSEGV)"},
                             {"fpe", "crashed: Floating point exception (SIGFPE)"},
                             {"abort", "crashed: Aborted (SIGABRT)"},
                             {"exit", "called exit(0)"},
                             {"exit2", "called exit(2)"},
                             {"quick", "called quick_exit(0)"},
                             {"leave", "called _exit(0)"},
                             {"overflow", "crashed: Segmentation fault (SIGSEGV), its stack overflowed"},
                             {"loop", "has not returned for 0.5 s (--hook-timeout)"}};

typedef struct hook {
    const char *name;
    int is_store;
    const char *place; /* begins so */
} hook;
static const hook hooks[] = {{"open", 0, "open of crash (rank 1"},
                             {"plan", 0, "plan of crash (rank 1, bucket 0)"},
                             {"before_step", 0, "before_step of crash (rank 1, step 2)"},
                             {"submit", 0, "submit of crash (rank 1, step 2, bucket 0)"},
                             {"finish", 0, "finish of crash (rank 1, step 2, bucket 0)"},
                             {"after_step", 0, "after_step of crash (rank 1, step 2)"},
                             {"eval", 0, "eval of crash (rank 1"},
                             {"theory", 0, "theory of crash (rank 0"},
                             {"on_push", 1, "on_push of crash-store (shard 0, bucket 0, version "},
                             {"on_pull", 1, "on_pull of crash-store (shard 0, bucket 0, version "},
                             {"on_timer", 1, "on_timer of crash-store (shard 0, bucket 0, version "},
                             {"on_member", 1, "on_member of crash-store (shard 0, bucket 0, version "}};
enum { DEEDS = sizeof deeds / sizeof *deeds, HOOKS = sizeof hooks / sizeof *hooks };

/* Ends not with 0, and says it once. */
static void expect(process *p, const char *what, const hook *h, const deed *d)
{
    const int code = process_wait(p, WITHIN);
    if (code == 0 || process_says(p, h->place, d->words) != 1)
        fail_msg("%s, %s in %s: exit %d; one line with \"%s\" and \"%s\" is expected:\n%s", what, d->name,
                 h->name, code, h->place, d->words, process_err(p));
}

static void run(const hook *h, const deed *d)
{
    process p;
    process_start(
        &p, "entrain", NULL, "run -n 2 " BY_HAND " --hook-timeout=%s --strategy=" PLUGIN "%s:hook=%s,deed=%s",
        strcmp(d->name, "loop") == 0 ? "500ms" : "30s", h->is_store ? "@crash-store" : "", h->name, d->name);
    expect(&p, "run", h, d);
    process_nobody_left(WITHIN);
}

/* Every function, and every deed: the rest of the table is for sim, where a run takes no time. */
static void test_in_a_run(void **state)
{
    (void)state;
    for (int h = 0; h < HOOKS; h++)
        run(&hooks[h], &deeds[h % DEEDS]);
    for (int d = 0; d < DEEDS; d++) {
        run(&hooks[3], &deeds[d]);
        run(&hooks[8], &deeds[d]);
    }
    promise("a plugin that crashes, exits or hangs in a run: %d of %d functions and %d of %d ways are one "
            "sentence with function, rank, step and bucket, and not 0",
            HOOKS, HOOKS, DEEDS, DEEDS);
}

static void test_in_sim(void **state)
{
    (void)state;
    for (int h = 0; h < HOOKS; h++)
        for (int d = 0; d < DEEDS; d++) {
            process p;
            process_start(&p, "entrain", NULL,
                          "sim --workers=2 --steps=4 --hook-timeout=%s --strategy=" PLUGIN
                          "%s:hook=%s,deed=%s",
                          strcmp(deeds[d].name, "loop") == 0 ? "0.5" : "30",
                          hooks[h].is_store ? "@crash-store" : "", hooks[h].name, deeds[d].name);
            expect(&p, "sim", &hooks[h], &deeds[d]);
        }
    promise("the same sentence under entrain sim: %d of %d functions, each in %d ways", HOOKS, HOOKS, DEEDS);
}

/* What is called before there is a run: in ranks, and in the command itself. */
static void test_outside_of_steps(void **state)
{
    static const struct {
        const char *command, *env, *place;
    } calls[] = {{"run -n 2 --strategy=ring --model=" PLUGIN ":deed=loop", NULL, "build of crash"},
                 {"run -n 2 --strategy=ring --model=" PLUGIN ":deed=segv", NULL, "build of crash"},
                 {"run -n 2 --strategy=ring --model=" PLUGIN, "CRASH_IN_ENTRY=1", "en_network_entry of "},
                 {"run -n 2 --model=toy --strategy=" PLUGIN, "CRASH_IN_ENTRY=1", "en_strategy_entry of "},
                 {"eval --init=none --model=" PLUGIN ":deed=loop", NULL, "build of crash"}};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        process p;
        const int is_loop = strstr(calls[i].command, "segv") == NULL;
        process_start(&p, "entrain", calls[i].env, "%s --data=synthetic --device=ref --hook-timeout=500ms",
                      calls[i].command);
        const int code = process_wait(&p, WITHIN);
        if (code == 0 || process_says(&p, calls[i].place, deeds[is_loop ? DEEDS - 1 : 0].words) == 0)
            fail_msg("%s: exit %d\n%s", calls[i].command, code, process_err(&p));
        process_nobody_left(WITHIN);
    }
}

/* Who leaves says nothing of itself where nobody asks: the process itself does. */
static void test_everybody(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", NULL,
                  "run -n 2 " BY_HAND " --strategy=" PLUGIN ":hook=submit,deed=leave,everybody=1");
    const int code = process_wait(&p, WITHIN);
    if (code == 0 || process_says(&p, "submit of crash (rank ", "called _exit(0)") != 1)
        fail_msg("all ranks leave: exit %d:\n%s", code, process_err(&p));
    process_nobody_left(WITHIN);
}

static void psd_by_hand(const deed *d)
{
    process psd, rank[2];
    int port = 0;
    process_start(&psd, "psd", NULL,
                  "--log-level=warn --world-size=2 --listen=tcp://127.0.0.1:0 --strategy=" PLUGIN
                  "@crash-store:hook=on_push,deed=%s",
                  d->name);
    const char *line = wait_for_line(&psd, "--server=", WITHIN);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=tcp://127.0.0.1:%d", &port), 1);
    for (int r = 0; r < 2; r++)
        process_start(&rank[r], "worker", NULL,
                      BY_HAND " --strategy=" PLUGIN "@crash-store:hook=on_push,deed=%s --rank=%d "
                              "--world-size=2 --server=tcp://127.0.0.1:%d",
                      d->name, r, port);
    for (int r = 0; r < 2; r++) {
        assert_int_not_equal(process_wait(&rank[r], WITHIN), 0);
        assert_int_equal(process_says(&rank[r], "psd (pid", "died"), 1);
    }
    expect(&psd, "psd by hand", &hooks[8], d);
}

/* Without a launcher: the process itself says it, and the others name who died. */
static void test_by_hand(void **state)
{
    (void)state;
    for (int d = 0; d < DEEDS - 1; d++) {
        const int port = free_port();
        process rank[2];
        for (int r = 0; r < 2; r++)
            process_start(&rank[r], "worker", NULL,
                          BY_HAND " --strategy=" PLUGIN ":hook=submit,deed=%s --rank=%d --world-size=2 "
                                  "--rendezvous=tcp://127.0.0.1:%d",
                          deeds[d].name, r, port);
        assert_int_not_equal(process_wait(&rank[0], WITHIN), 0);
        assert_int_equal(process_says(&rank[0], "rank 1 (pid", "died"), 1);
        expect(&rank[1], "a rank by hand", &hooks[3], &deeds[d]);
        psd_by_hand(&deeds[d]);
    }
    promise("the same by hand: the process itself says it, and whoever is left names who died");
}

/* Longer than a moment, and within the limit: said while it lasts. */
static void test_long(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", NULL,
                  "run -n 2 " BY_HAND " --hook-timeout=7s --strategy=" PLUGIN ":hook=submit,deed=loop");
    wait_for_line(&p, "submit of crash (rank 1, step 2, bucket 0) has been running for 5 s", WITHIN);
    const deed late = {"loop", "has not returned for 7 s (--hook-timeout)"};
    expect(&p, "run", &hooks[3], &late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_a_run),         cmocka_unit_test(test_in_sim),
        cmocka_unit_test(test_outside_of_steps), cmocka_unit_test(test_everybody),
        cmocka_unit_test(test_by_hand),          cmocka_unit_test(test_long)};
    return system_main(tests);
}
