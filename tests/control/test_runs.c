/* test_runs.c - a run seen and stopped from outside, by its leader's file. */
#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/memory.h"
#include "crew.h"
#include "runtime/control/runs.h"

static char folder[] = "/tmp/entrain-test-runs-XXXXXX";

static const eni_key_value attributes[] = {
    {"strategy", "ssp:bound=2"}, {"out", "/tmp/x"}, {"launcher", "4711"}};

/* The run of this process that has such an `out`; NULL. */
static const eni_run_status *find(const eni_run_status *runs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *out = eni_key_value_find(runs[i].attributes, runs[i].nattributes, "out");
        if (runs[i].pid == getpid() && out != NULL && strcmp(out, "/tmp/x") == 0) return &runs[i];
    }
    return NULL;
}

/* The run of this process as it is now. */
static const eni_run_status *look(eni_run_status **runs, size_t *n)
{
    const int64_t deadline = crew_soon();
    for (;;) {
        assert_int_equal(eni_runs_list(folder, runs, n), EN_OK);
        const eni_run_status *run = find(*runs, *n);
        if (run != NULL) return run;
        assert_true(eni_now_ns() < deadline);
        eni_runs_free(*runs, *n);
    }
}

static void start(crew *c, int n)
{
    crew_init(c, n);
    c->config.status_folder = folder;
    c->config.attributes = attributes;
    c->config.nattributes = 3;
    c->config.budget = 100;
    c->config.peer_timeout_ns = 2 * ENI_SECOND;
    for (int r = 0; r < n; r++)
        c->hand[r].config.peer_timeout_ns = 2 * ENI_SECOND;
    assert_true(crew_start(c));
}

static void a_run_is_listed_with_its_ranks(void **state)
{
    (void)state;
    crew c;
    eni_run_status *runs;
    size_t n;
    uint64_t index;
    start(&c, 2);
    const eni_run_status *run = look(&runs, &n);
    assert_int_equal(run->stage, ENI_RUN_JOINING);
    assert_int_equal(run->nrank, 2);
    assert_int_equal(run->rank[0].state, ENI_RANK_MISSING);
    eni_runs_free(runs, n);
    crew_join(&c, 0, 2);
    eni_member_note(c.hand[1].member, 41, "exchange");
    eni_member_wait_begin(c.hand[1].member, "all-reduce", "w", 4, 1);
    eni_member_note_samples(c.hand[0].member, 640);
    assert_int_equal(eni_member_claim(c.hand[0].member, &index, crew_soon()), EN_OK);
    int64_t deadline = crew_soon();
    do { /* until the heartbeat has arrived */
        run = look(&runs, &n);
        if (run->rank[1].state == ENI_RANK_WAITING && run->samples == 640) break;
        eni_runs_free(runs, n);
        poll(NULL, 0, 5);
    } while (eni_now_ns() < deadline);
    assert_int_equal(run->rank[1].step, 41);
    assert_int_equal(run->rank[1].state, ENI_RANK_WAITING);
    assert_string_equal(run->rank[1].phase, "exchange");
    assert_string_equal(run->rank[1].host, "h");
    assert_int_equal(run->rank[1].pid, getpid());
    assert_int_equal(run->rank[0].state, ENI_RANK_ACTIVE);
    assert_int_equal(run->stage, ENI_RUN_RUNNING);
    assert_int_equal(run->samples, 640);
    assert_int_equal(run->claimed, 1);
    assert_int_equal(run->budget, 100);
    assert_true(run->started_ns > 0 && run->written_ns > run->started_ns);
    assert_string_equal(eni_key_value_find(run->attributes, run->nattributes, "strategy"), "ssp:bound=2");
    assert_string_equal(eni_key_value_find(run->attributes, run->nattributes, "launcher"), "4711");
    eni_runs_free(runs, n);
    eni_member_wait_end(c.hand[1].member);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void two_leaders_of_a_process_have_two_files(void **state)
{
    (void)state;
    eni_run_status run = {.pid = getpid(), .born = eni_process_born(getpid()), .nranks = 1}, *runs;
    size_t n;
    eni_run_writer *first = eni_run_writer_open(folder, &run);
    run.started_ns = 1;
    eni_run_writer *second = eni_run_writer_open(folder, &run);
    assert_true(first != NULL && second != NULL);
    run.samples = 7;
    eni_run_writer_put(second, &run);
    const int64_t deadline = crew_soon();
    bool is_written = false;
    while (!is_written && eni_now_ns() < deadline) { /* by its own thread */
        assert_int_equal(eni_runs_list(folder, &runs, &n), EN_OK);
        assert_int_equal(n, 2);
        assert_int_equal(runs[0].samples, 0);
        is_written = runs[1].samples == 7;
        eni_runs_free(runs, n);
    }
    assert_true(is_written);
    eni_run_writer_close(first);
    eni_run_writer_close(second);
}

/* The leader's process gets SIGTERM and ends the run, as psd and rank 0 do. */
static void a_run_is_stopped_from_outside(void **state)
{
    (void)state;
    crew c;
    eni_run_status *runs;
    size_t n;
    char why[ENI_REASON_MAX];
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    start(&c, 2);
    crew_join(&c, 0, 2);
    const eni_run_status *run = look(&runs, &n);
    assert_int_equal(eni_runs_stop(run), EN_OK);
    assert_int_equal(sigtimedwait(&term, NULL, &(struct timespec){10, 0}), SIGTERM);
    sigprocmask(SIG_UNBLOCK, &term, NULL);
    eni_leader_stop_run(c.leader, "SIGTERM");
    assert_true(crew_await_logged("ends early*SIGTERM"));
    snprintf(why, sizeof why, "%s", eni_leader_outcome(c.leader).stop_why);
    assert_true(why[0] != '\0');
    assert_true(crew_bye(&c));
    crew_fini(&c);
    eni_runs_free(runs, n);
    assert_int_equal(eni_runs_list(folder, &runs, &n), EN_OK);
    assert_null(find(runs, n));
    eni_runs_free(runs, n);
}

static char *path_of(const char *name, char path[256])
{
    snprintf(path, 256, "%.150s/%.100s", folder, name);
    return path;
}

static size_t count_files(void)
{
    size_t n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    closedir(dir);
    return n;
}

static size_t list_count(void)
{
    eni_run_status *runs;
    size_t n;
    assert_int_equal(eni_runs_list(folder, &runs, &n), EN_OK);
    eni_runs_free(runs, n);
    return n;
}

/* A killed leader's file is removed by the next listing, even if its pid was reused. */
static void what_a_killed_leader_left_is_removed(void **state)
{
    (void)state;
    for (int life = 0; life < 2; life++) {
        int ends[2];
        char byte;
        assert_int_equal(pipe(ends), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            const eni_run_status run = {
                .pid = getpid(), .born = eni_process_born(getpid()) + (uint64_t)life, .nranks = 1};
            eni_run_writer *writer = eni_run_writer_open(folder, &run);
            if (writer == NULL || write(ends[1], "x", 1) != 1) _exit(1);
            for (;;)
                pause();
        }
        assert_int_equal(read(ends[0], &byte, 1), 1);
        assert_int_equal(count_files(), 1);
        assert_int_equal(list_count(), life == 0 ? 1 : 0); /* the second is that of another process */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        assert_int_equal(list_count(), 0);
        assert_int_equal(count_files(), 0);
        close(ends[0]);
        close(ends[1]);
    }
}

/* A stopped leader is listed as such. A signal for an ended process hits no other. */
static void a_stopped_leader_is_named(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    eni_run_status *runs;
    size_t n;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        const eni_run_status run = {.pid = getpid(), .born = eni_process_born(getpid()), .nranks = 1};
        if (eni_run_writer_open(folder, &run) == NULL || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    assert_int_equal(eni_runs_list(folder, &runs, &n), EN_OK);
    assert_int_equal(n, 1);
    assert_true(runs[0].is_stopped);
    assert_true(eni_run_silent_ns(&runs[0], eni_now_ns()) > 0);
    runs[0].is_stopped = false;
    assert_int_equal(eni_run_silent_ns(&runs[0], runs[0].written_ns + 4 * ENI_SECOND), 0);
    assert_true(eni_run_silent_ns(&runs[0], runs[0].written_ns + 6 * ENI_SECOND) > 0);
    runs[0].born++;
    assert_int_equal(eni_runs_stop(&runs[0]), EN_ENOENT); /* a later process with that pid */
    runs[0].born--;
    assert_int_equal(eni_runs_stop(&runs[0]), EN_OK);
    kill(pid, SIGCONT);
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(eni_runs_stop(&runs[0]), EN_ENOENT);
    eni_runs_free(runs, n);
    assert_int_equal(list_count(), 0);
    close(ends[0]);
    close(ends[1]);
}

static void wrong_files_are_passed_over(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "ENTrun1", "ENTrun2 of another version", "nonsense"};
    char path[256], name[32];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "status-%d", i + 1);
        FILE *file = fopen(path_of(name, path), "w");
        assert_non_null(file);
        fputs(texts[i], file);
        fclose(file);
    }
    assert_int_equal(symlink("/dev/zero", path_of("status-9", path)), 0);
    assert_int_equal(mkfifo(path_of("status-10", path), 0600), 0);
    assert_int_equal(list_count(), 0);
    assert_int_equal(count_files(), 6); /* they may be another user's */
    for (int i = 1; i <= 10; i++) {
        snprintf(name, sizeof name, "status-%d", i);
        unlink(path_of(name, path));
    }
    eni_run_status run = {.pid = getpid(), .nranks = 1};
    assert_null(eni_run_writer_open("/dev/null", &run));
    assert_null(eni_run_writer_open("/proc", &run)); /* another user's, or not to be written */
    eni_run_status *runs;
    size_t n;
    assert_int_equal(eni_runs_list("/nonexistent/folder", &runs, &n), EN_OK);
    assert_int_equal(n, 0);
    eni_runs_free(runs, n);
}

static void a_file_survives_truncation_and_noise(void **state)
{
    (void)state;
    char path[256], name[32];
    eni_run_rank ranks[2] = {{.rank = 0, .pid = 8, .step = 3, .state = ENI_RANK_GONE, .host = "a"},
                             {.rank = -2}};
    eni_run_status run = {.pid = getpid(),
                          .nranks = 2,
                          .nrank = 2,
                          .rank = ranks,
                          .attributes = attributes,
                          .nattributes = 3},
                   out;
    eni_run_writer *writer = eni_run_writer_open(folder, &run);
    assert_non_null(writer);
    snprintf(name, sizeof name, "status-%d", (int)getpid());
    FILE *file = fopen(path_of(name, path), "r");
    assert_non_null(file);
    uint8_t bytes[1024];
    const size_t whole = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(whole, 50, sizeof bytes - 1);
    for (size_t length = 0; length <= whole; length++) {
        uint8_t *exact = eni_alloc(length); /* its own memory, so that a read too far shows */
        memcpy(exact, bytes, length);
        const en_status st = eni_run_status_read(exact, length, &out);
        assert_int_equal(st, length == whole ? EN_OK : EN_EPROTO);
        eni_free(exact);
    }
    assert_int_equal(out.rank[1].rank, -2);
    assert_string_equal(out.rank[0].host, "a");
    assert_string_equal(eni_key_value_find(out.attributes, out.nattributes, "launcher"), "4711");
    eni_free(out.attributes);
    eni_free(out.rank);
    eni_run_writer_close(writer);
    assert_int_equal(count_files(), 0);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* nothing is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_is_listed_with_its_ranks),
                                       cmocka_unit_test(two_leaders_of_a_process_have_two_files),
                                       cmocka_unit_test(a_run_is_stopped_from_outside),
                                       cmocka_unit_test(what_a_killed_leader_left_is_removed),
                                       cmocka_unit_test(a_stopped_leader_is_named),
                                       cmocka_unit_test(wrong_files_are_passed_over),
                                       cmocka_unit_test(a_file_survives_truncation_and_noise)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
