/* kv_rig.c - see kv_rig.h. */
#include "tests/client/kv_rig.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
static int leaks(void)
{
    return __lsan_do_recoverable_leak_check();
}
#else
static int leaks(void)
{
    return 0;
}
#endif

void start_psd(scene *s, process *psd, const char *strategy, int ranks, int shards)
{
    const int port = free_port();
    *s = (scene){.strategy = strategy, .go = {-1, -1}};
    snprintf(s->server, sizeof s->server, "tcp://127.0.0.1:%d", port);
    process_start(psd, "psd", NULL, "--listen=%s --strategy=%s --world-size=%d --shards=%d", s->server,
                  strategy, ranks, shards);
}

pid_t start_rank(scene *s, rank_main main, int rank)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RANK_SECONDS * SLOWNESS); /* no wait without a deadline */
    const int code = main(s, rank);
    fflush(NULL);
    _exit(code != 0 ? code : leaks());
}

int end_rank(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void run_ranks(scene *s, process *psd, rank_main main, int ranks, int psd_code)
{
    pid_t pid[RANKS];
    for (int r = 0; r < ranks; r++)
        pid[r] = start_rank(s, main, r);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(end_rank(pid[r]), 0);
    assert_int_equal(process_wait(psd, 30), psd_code);
}

void open_go(scene *s)
{
    assert_int_equal(pipe(s->go), 0);
}

void close_go(const scene *s)
{
    close(s->go[0]);
    close(s->go[1]);
}

void say_go(const scene *s)
{
    if (write(s->go[1], "", 1) != 1) _exit(1);
}

int hear_go(const scene *s)
{
    struct pollfd word = {.fd = s->go[0], .events = POLLIN};
    char byte;
    return poll(&word, 1, RANK_SECONDS * SLOWNESS * 1000) == 1 && read(s->go[0], &byte, 1) == 1;
}

/* ---- what a rank declares -------------------------------------------------------------------------------
 */

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    scene *s = user;
    const size_t used = strlen(s->said);
    if (level <= 1) snprintf(s->said + used, sizeof s->said - used, "%s: %s\n", subsystem, text);
}

const uint64_t counts[TENSORS] = {35, 3, 1};

float initial_at(uint64_t i)
{
    return (float)i - 8;
}

void declare(en_client_tensor tensors[TENSORS])
{
    static const char *const names[] = {"w", "b", "s"};
    static float initial[35];
    for (uint64_t i = 0; i < 35; i++)
        initial[i] = initial_at(i);
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (en_client_tensor){.size = sizeof *tensors, .name = names[t], .initial = initial};
    tensors[W].shape[0] = 5;
    tensors[W].shape[1] = 7;
    tensors[B].shape[0] = 3;
}

en_client_options options_of(scene *s, int rank, int ranks, const en_client_tensor *tensors)
{
    return (en_client_options){.abi = EN_CLIENT_ABI,
                               .size = sizeof(en_client_options),
                               .server = s->server,
                               .strategy = s->strategy,
                               .rank = rank,
                               .world_size = ranks,
                               .runtime_dir = system_folder(),
                               .flags = s->flags,
                               .tensors = tensors,
                               .ntensors = TENSORS,
                               .lr = 1,
                               .join_timeout = 30 * SLOWNESS,
                               .log = listen_in,
                               .log_user = s};
}

en_status open_rank(scene *s, int rank, int ranks, en_client **client)
{
    en_client_tensor tensors[TENSORS];
    declare(tensors);
    const en_client_options options = options_of(s, rank, ranks, tensors);
    return en_client_open(&options, client);
}
