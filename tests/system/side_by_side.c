/* side_by_side.c - see side_by_side.h. */
#include "tests/system/side_by_side.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE = 8 };

typedef struct child {
    pid_t pid; /* 0: none */
    double begin;
    char name[32]; /* of its folder; its output goes to NAME.said */
} child;

/* The outcome of the cases. */
typedef struct tally {
    int failed, skipped;
    double slowest; /* seconds */
} tally;

/* A cmocka group with this one test. */
static _Noreturn void become_case(const struct CMUnitTest *test, const char *name)
{
    char said[160];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(said, sizeof said, "%s/%s.said", system_folder(), name);
    const int file = open(said, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || dup2(file, 1) < 0 || dup2(file, 2) < 0) _exit(126);
    system_enter(name);
    const int failed = _cmocka_run_group_tests(test->name, test, 1, NULL, NULL);
    fflush(NULL);
    _exit(failed != 0);
}

static void start(child *c, const struct CMUnitTest *test)
{
    static int started;
    snprintf(c->name, sizeof c->name, "case%d", started++);
    c->begin = now_seconds();
    fflush(NULL);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) become_case(test, c->name);
}

/* Prints its output: all of it, or the lines of promises and skipped tests. */
static void show(const child *c, bool has_failed, tally *ends)
{
    char path[160], line[4096];
    snprintf(path, sizeof path, "%s/%s.said", system_folder(), c->name);
    FILE *file = fopen(path, "re");
    bool is_skipped = false;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const bool skips =
            strstr(line, "SKIPPED ] ") != NULL; /* cmocka's word; the group as such has not failed */
        if (has_failed || skips || strncmp(line, "PROMISE ", 8) == 0) fputs(line, stdout);
        is_skipped |= skips;
    }
    if (file != NULL) fclose(file);
    fflush(stdout);
    ends->failed += has_failed;
    ends->skipped += !has_failed && is_skipped;
}

/* Waits for one of them, and shows it. Its own waits have deadlines. */
static void end_one(child *children, tally *ends)
{
    for (;;) {
        int status;
        const pid_t pid = waitpid(-1, &status, 0);
        assert_true(pid > 0 || errno == EINTR);
        for (int i = 0; i < AT_ONCE; i++) {
            if (pid <= 0 || children[i].pid != pid) continue; /* an orphan of a case */
            const double took = now_seconds() - children[i].begin;
            if (took > ends->slowest) ends->slowest = took;
            show(&children[i], status != 0, ends);
            children[i].pid = 0;
            return;
        }
    }
}

static tally run_all(const struct CMUnitTest *tests, size_t n)
{
    child children[AT_ONCE] = {0};
    tally ends = {0};
    int running = 0;
    for (size_t next = 0; next < n || running > 0;) {
        int at = 0;
        while (at < AT_ONCE && children[at].pid != 0)
            at++;
        if (next < n && at < AT_ONCE) {
            start(&children[at], &tests[next++]);
            running++;
        } else {
            end_one(children, &ends);
            running--;
        }
    }
    return ends;
}

typedef struct one_case {
    void (*run)(const void *cases, size_t i);
    const void *cases;
    size_t i;
} one_case;

static void run_case(void **state)
{
    const one_case *c = *state;
    c->run(c->cases, c->i);
}

double side_by_side(size_t n, void (*run)(const void *cases, size_t i), const void *cases)
{
    struct CMUnitTest *tests = calloc(n, sizeof *tests);
    one_case *all = calloc(n, sizeof *all);
    assert_true(tests != NULL && all != NULL);
    for (size_t i = 0; i < n; i++) {
        all[i] = (one_case){run, cases, i};
        tests[i] = (struct CMUnitTest){.name = "a case", .test_func = run_case, .initial_state = &all[i]};
    }
    const tally ends = run_all(tests, n);
    free(tests);
    free(all);
    if (ends.failed > 0) fail_msg("%d of %d cases failed, as shown above", ends.failed, (int)n);
    return ends.slowest;
}

int side_by_side_run(const struct CMUnitTest *tests, size_t n)
{
    if (!system_begin()) return 1;
    const tally ends = run_all(tests, n);
    printf("%d of %d tests passed, %d skipped\n", (int)n - ends.failed - ends.skipped, (int)n, ends.skipped);
    return ends.failed;
}
