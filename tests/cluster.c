#include "tests/cluster.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "runtime/net/tcp.h"

static cluster_board *board_open(void)
{
    cluster_board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return NULL;
    atomic_store(&board->victim, -1);
    return board;
}

static void note_end(struct cluster *cluster, int rank, int status)
{
    if (!WIFSIGNALED(status)) {
        cluster->exit_code[rank] = WEXITSTATUS(status);
        return;
    }
    cluster->exit_code[rank] = 128 + WTERMSIG(status);
    int none = -1;
    atomic_store(&cluster->board->killed_ns, eni_now_ns());
    atomic_compare_exchange_strong(&cluster->board->victim, &none, rank);
}

static void collect(struct cluster *cluster, const pid_t *pid, int deadline_ms)
{
    const int64_t deadline_ns = eni_now_ns() + deadline_ms * ENI_MILLI;
    int left = cluster->n, is_over = 0;
    while (left > 0) {
        int status;
        const pid_t ended = waitpid(-1, &status, is_over ? 0 : WNOHANG);
        for (int r = 0; ended > 0 && r < cluster->n; r++)
            if (pid[r] == ended) {
                if (!is_over) note_end(cluster, r, status);
                left--;
            }
        if (ended > 0) continue;
        if (!is_over && eni_now_ns() > deadline_ns) {
            is_over = 1;
            for (int r = 0; r < cluster->n; r++)
                if (cluster->exit_code[r] == -1) kill(pid[r], SIGKILL);
        }
        poll(NULL, 0, 1);
    }
}

int cluster_run(struct cluster *cluster, int n, cluster_main main, void *user, int deadline_ms)
{
    pid_t pid[CLUSTER_MAX];
    *cluster = (struct cluster){.n = n, .board = board_open()};
    if (!cluster->board || n > CLUSTER_MAX) return n;
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        cluster->exit_code[r] = -1;
        pid[r] = fork();
        if (pid[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int code = main(r, n, cluster->board, user);
            fflush(NULL);
            _exit(code);
        }
    }
    collect(cluster, pid, deadline_ms);
    int bad = 0;
    for (int r = 0; r < n; r++)
        bad += cluster->exit_code[r] != 0;
    return bad;
}

void cluster_close(struct cluster *cluster)
{
    if (cluster->board) munmap(cluster->board, sizeof *cluster->board);
    cluster->board = NULL;
}

en_status cluster_alive(void *user)
{
    const cluster_board *board = user;
    return atomic_load(&board->victim) < 0 ? EN_OK : EN_EPEER;
}

int cluster_await(const _Atomic uint64_t *word, uint64_t want)
{
    const int64_t deadline_ns = eni_now_ns() + 20 * ENI_SECOND;
    while (atomic_load(word) < want && eni_now_ns() < deadline_ns)
        poll(NULL, 0, 1);
    return atomic_load(word) >= want;
}

int cluster_connect(int n, int pairs[CLUSTER_MAX][CLUSTER_MAX])
{
    const int64_t deadline_ns = eni_now_ns() + 5 * ENI_SECOND;
    eni_address any = {.host = "127.0.0.1", .port = 0}, bound;
    int listener;
    if (eni_tcp_listen(&any, false, &listener, &bound) != EN_OK) return -1;
    int bad = 0;
    for (int a = 0; a < n; a++) {
        pairs[a][a] = -1;
        for (int b = a + 1; b < n; b++) {
            bad |= eni_tcp_connect(&bound, deadline_ns, -1, &pairs[a][b]) != EN_OK;
            bad |= eni_tcp_accept(listener, deadline_ns, -1, &pairs[b][a]) != EN_OK;
        }
    }
    close(listener);
    return bad ? -1 : 0;
}

void cluster_keep(int n, int pairs[CLUSTER_MAX][CLUSTER_MAX], int rank)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; a != rank && b < n; b++)
            if (pairs[a][b] >= 0) close(pairs[a][b]);
}
