/* test_runs.c - a run seen and stopped from outside, over the abstract socket of its leader. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/memory.h"
#include "crew.h"
#include "runtime/control/runs.h"
#include "runtime/control/runs_wire.h"

static const eni_key_value attributes[] = {
    {"strategy", "ssp:bound=2"}, {"out", "/tmp/x"}, {"launcher", "4711"}};

/* The run of this process that has such an `out`; NULL. */
static const eni_run *find(const eni_run *runs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *out = eni_key_value_find(runs[i].attributes, runs[i].nattributes, "out");
        if (runs[i].pid == getpid() && out != NULL && strcmp(out, "/tmp/x") == 0) return &runs[i];
    }
    return NULL;
}

/* The run of this process as it is now; its leader may take a while to answer on a busy machine. */
static const eni_run *look(eni_run **runs, size_t *n)
{
    const int64_t deadline = crew_soon();
    for (;;) {
        assert_int_equal(eni_runs_list(crew_soon(), runs, n), EN_OK);
        const eni_run *run = find(*runs, *n);
        if (run != NULL) return run;
        assert_true(eni_now_ns() < deadline);
        eni_runs_free(*runs, *n);
    }
}

static void start(crew *c, int n)
{
    crew_init(c, n);
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
    eni_run *runs;
    size_t n;
    uint64_t index;
    start(&c, 2);
    const eni_run *run = look(&runs, &n);
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
    do { /* until the heartbeat has brought it */
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
    assert_true(run->elapsed_ns > 0);
    assert_string_equal(eni_key_value_find(run->attributes, run->nattributes, "strategy"), "ssp:bound=2");
    assert_string_equal(eni_key_value_find(run->attributes, run->nattributes, "launcher"), "4711");
    eni_runs_free(runs, n);
    eni_member_wait_end(c.hand[1].member);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void a_run_is_stopped_from_outside(void **state)
{
    (void)state;
    crew c;
    eni_run *runs;
    size_t n;
    char why[ENI_REASON_MAX];
    start(&c, 2);
    crew_join(&c, 0, 2);
    const eni_run *run = look(&runs, &n);
    assert_int_equal(eni_runs_stop(run, "entrain stop", crew_soon()), EN_OK);
    assert_true(crew_await_logged("the run ends early: entrain stop"));
    assert_true(eni_leader_is_stopping(c.leader, why));
    assert_true(crew_bye(&c));
    crew_fini(&c);
    assert_int_equal(eni_runs_stop(run, "entrain stop", crew_soon()), EN_ENOENT); /* it has ended */
    eni_runs_free(runs, n);
    assert_int_equal(eni_runs_list(crew_soon(), &runs, &n), EN_OK);
    assert_null(find(runs, n));
    eni_runs_free(runs, n);
}

static int call(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int n = snprintf(to.sun_path + 1, sizeof to.sun_path - 1, ENI_RUNS_NAME "%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, bytes), 0);
    return fd;
}

static void nonsense_and_crowds_do_no_harm(void **state)
{
    (void)state;
    static const uint8_t nonsense[][4] = {{0x91, 9}, {0x92, 1, 1}, {0xdd, 0xff, 0xff, 0xff}, {0}};
    crew c;
    eni_run *runs;
    size_t n;
    int silent[16];
    start(&c, 1);
    for (size_t i = 0; i < 4; i++) {
        int fd = call();
        uint8_t answer[16];
        assert_int_equal(send(fd, nonsense[i], 4, MSG_NOSIGNAL), 4);
        struct pollfd set = {fd, POLLIN, 0};
        assert_int_equal(poll(&set, 1, 10000), 1);
        assert_true(recv(fd, answer, sizeof answer, 0) <= 0); /* hung up */
        close(fd);
    }
    for (int i = 0; i < 16; i++)
        silent[i] = call();           /* more than are heard at a time */
    assert_non_null(look(&runs, &n)); /* the silent ones made room */
    eni_runs_free(runs, n);
    for (int i = 0; i < 16; i++)
        close(silent[i]);
    crew_join(&c, 0, 1);
    assert_int_equal(c.hand[0].status, EN_OK);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void answers_survive_truncation_and_noise(void **state)
{
    (void)state;
    uint8_t memory[ENI_RUNS_MESSAGE_MAX];
    eni_run run = {.pid = 7,
                   .nranks = 2,
                   .nrank = 2,
                   .attributes = (eni_key_value *)(uintptr_t)attributes,
                   .nattributes = 3},
            out;
    eni_run_rank rank = {.rank = -2, .pid = 8, .step = 3, .state = ENI_RANK_GONE, .host = "a"}, rank_out;
    for (int which = 0; which < 2; which++) {
        eni_pack pack = eni_pack_over(memory, sizeof memory);
        if (which == 0)
            eni_runs_put_run(&pack, &run);
        else
            eni_runs_put_rank(&pack, &rank);
        for (size_t length = 0; length <= pack.bytes; length++) {
            uint8_t *exact = eni_alloc(length); /* its own memory, so that a read too far shows */
            memcpy(exact, pack.data, length);
            en_status st = which == 0 ? eni_runs_get_run(exact, length, &out)
                                      : eni_runs_get_rank(exact, length, &rank_out);
            assert_int_equal(st, length == pack.bytes ? EN_OK : EN_EPROTO);
            if (which == 0) eni_free(out.attributes);
            eni_free(exact);
        }
    }
    assert_int_equal(rank_out.rank, -2);
    assert_string_equal(rank_out.host, "a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_is_listed_with_its_ranks),
                                       cmocka_unit_test(a_run_is_stopped_from_outside),
                                       cmocka_unit_test(nonsense_and_crowds_do_no_harm),
                                       cmocka_unit_test(answers_survive_truncation_and_noise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
