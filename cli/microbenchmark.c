/* microbenchmark.c - processes for a short measurement, and those of collectives and copies. */
#include "cli/microbenchmark.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/collective/probe.h"
#include "runtime/net/tcp.h"

/* In front of what the processes share. */
typedef struct head {
    _Atomic int lost;
    _Atomic int met;
} head;
enum { HEAD_BYTES = 64 };
_Static_assert(sizeof(head) <= HEAD_BYTES, "what is shared begins on a line");

static head *head_of(void *shared)
{
    return (head *)(void *)((char *)shared - HEAD_BYTES);
}

en_status eni_processes_alive(void *shared)
{
    return atomic_load_explicit(&head_of(shared)->lost, memory_order_relaxed) ? EN_EPEER : EN_OK;
}

int eni_processes_meet(const eni_process *self, int *times)
{
    head *h = head_of(self->shared);
    const int all = ++*times * self->n;
    const int64_t begin = eni_now_ns();
    atomic_fetch_add(&h->met, 1);
    while (atomic_load(&h->met) < all) { /* as sync.h: looks often at first, then leaves the core to others */
        if (eni_processes_alive(self->shared) != EN_OK) return 1;
        if (eni_now_ns() - begin < ENI_MILLI)
            sched_yield();
        else
            eni_sleep_until(eni_now_ns() + 50 * ENI_MICRO);
    }
    return 0;
}

/* ---- processes ---- */

static en_status await_all(const pid_t *pid, int n, void *shared, int64_t deadline_ns)
{
    int left = n;
    en_status st = EN_OK;
    char has_ended[ENI_PROCESSES_MAX] = {0};
    while (left > 0) {
        const int before = left;
        for (int r = 0; r < n; r++) {
            int status;
            if (has_ended[r] || waitpid(pid[r], &status, WNOHANG) != pid[r]) continue;
            has_ended[r] = 1;
            left--;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            atomic_store(&head_of(shared)->lost, 1);
            if (st == EN_OK) st = EN_EPEER;
        }
        if (left == before) poll(NULL, 0, 1);
        if (st != EN_OK || eni_now_ns() <= deadline_ns) continue;
        eni_error("microbenchmark", "a measurement among %d processes did not end in time", n);
        st = EN_ETIMEOUT;
        for (int r = 0; r < n; r++)
            if (!has_ended[r]) kill(pid[r], SIGKILL);
    }
    return st;
}

en_status eni_processes_run(int n, size_t shared_bytes, void **shared_out,
                            int (*main)(const eni_process *self), void *user, int64_t deadline_ns)
{
    pid_t pid[ENI_PROCESSES_MAX], parent = getpid();
    char *base =
        mmap(NULL, HEAD_BYTES + shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return EN_ENOMEM;
    void *shared = base + HEAD_BYTES;
    int started = 0;
    fflush(NULL);
    for (; started < n; started++) {
        pid[started] = fork();
        if (pid[started] < 0) break;
        if (pid[started] > 0) continue;
        const eni_process self = {n, started, shared, user};
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
        _exit(main(&self));
    }
    const int error = errno;
    if (started < n) atomic_store(&head_of(shared)->lost, 1);
    en_status st = await_all(pid, started, shared, deadline_ns);
    if (started < n) {
        eni_error("microbenchmark", "cannot start a process to measure with: %s", strerror(error));
        st = EN_ENOMEM;
    }
    if (st == EN_OK)
        *shared_out = shared;
    else
        eni_processes_release(shared, shared_bytes);
    return st;
}

void eni_processes_release(void *shared, size_t shared_bytes)
{
    if (shared != NULL) munmap((char *)shared - HEAD_BYTES, HEAD_BYTES + shared_bytes);
}

/* ---- all-reduce ---- */

typedef struct group {
    int n, algorithm, transport, nsizes;
    const uint64_t *bytes;
    int64_t budget_ns;
    eni_arena *arenas[ENI_PROCESSES_MAX];
    int pairs[ENI_PROCESSES_MAX][ENI_PROCESSES_MAX];
} group;

typedef struct group_figures {
    eni_cost_curve curve[ENI_PROCESSES_MAX];
    double barrier[ENI_PROCESSES_MAX];
} group_figures;

static int group_main(const eni_process *self)
{
    group *g = self->user;
    group_figures *figures = self->shared;
    eni_coll *coll;
    for (int a = 0; a < g->n; a++)
        for (int b = 0; a != self->rank && b < g->n; b++)
            if (g->pairs[a][b] >= 0) close(g->pairs[a][b]);
    const eni_coll_config config = {.rank = self->rank,
                                    .nranks = g->n,
                                    .epoch = 1,
                                    .algorithm = g->algorithm,
                                    .transport = g->transport,
                                    .arenas = g->arenas,
                                    .sockets = g->transport == ENI_OVER_TCP ? g->pairs[self->rank] : NULL,
                                    .alive = {eni_processes_alive, self->shared, -1}};
    if (eni_coll_open(&config, &coll) != EN_OK) return 1;
    en_status st = eni_probe_barrier(coll, 51, &figures->barrier[self->rank]);
    if (st == EN_OK)
        st = eni_probe_allreduce(coll, 0, g->bytes, g->nsizes, g->budget_ns, &figures->curve[self->rank]);
    eni_coll_close(coll);
    return st != EN_OK;
}

static en_status connect_all(group *g)
{
    const int64_t deadline = eni_now_ns() + 5 * ENI_SECOND;
    const eni_address any = {.host = "127.0.0.1", .port = 0};
    eni_address bound;
    int listener;
    EN_TRY(eni_tcp_listen(&any, false, &listener, &bound));
    en_status st = EN_OK;
    for (int a = 0; a < g->n && st == EN_OK; a++)
        for (int b = a + 1; b < g->n && st == EN_OK; b++) {
            st = eni_tcp_connect(&bound, deadline, -1, &g->pairs[a][b]);
            if (st == EN_OK) st = eni_tcp_accept(listener, deadline, -1, &g->pairs[b][a]);
        }
    close(listener);
    return st;
}

static en_status open_group(group *g)
{
    uint64_t most = 0;
    for (int i = 0; i < g->nsizes; i++)
        if (g->bytes[i] > most) most = g->bytes[i];
    for (int r = 0; r < g->n; r++)
        EN_TRY(eni_arena_open(most / sizeof(float), 1, 1, &g->arenas[r]));
    return g->transport == ENI_OVER_TCP ? connect_all(g) : EN_OK;
}

static void close_group(group *g)
{
    for (int a = 0; a < g->n; a++) {
        eni_arena_close(g->arenas[a]);
        for (int b = 0; b < g->n; b++)
            if (g->pairs[a][b] >= 0) close(g->pairs[a][b]);
    }
    eni_free(g);
}

/* An all-reduce is over when its slowest rank has it. */
static void slowest(const group *g, const group_figures *figures, eni_cost_curve *curve, double *barrier)
{
    *curve = figures->curve[0];
    *barrier = figures->barrier[0];
    for (int r = 1; r < g->n; r++) {
        if (figures->barrier[r] > *barrier) *barrier = figures->barrier[r];
        for (int i = 0; i < curve->n && i < figures->curve[r].n; i++)
            if (figures->curve[r].point[i].seconds > curve->point[i].seconds)
                curve->point[i].seconds = figures->curve[r].point[i].seconds;
    }
}

en_status eni_measure_allreduce(int n, int algorithm, int transport, const uint64_t *bytes, int nsizes,
                                int64_t budget_ns, eni_cost_curve *curve_out, double *barrier_out)
{
    void *shared;
    group *g = eni_alloc(sizeof *g);
    if (g == NULL) return EN_ENOMEM;
    *g = (group){.n = n,
                 .algorithm = algorithm,
                 .transport = transport,
                 .nsizes = nsizes,
                 .bytes = bytes,
                 .budget_ns = budget_ns};
    memset(g->pairs, -1, sizeof g->pairs);
    en_status st = open_group(g);
    if (st == EN_OK)
        st = eni_processes_run(n, sizeof(group_figures), &shared, group_main, g,
                               eni_now_ns() + 60 * ENI_SECOND);
    if (st == EN_OK) {
        slowest(g, shared, curve_out, barrier_out);
        eni_processes_release(shared, sizeof(group_figures));
    }
    close_group(g);
    return st;
}

/* Between two ranks direct takes 2 flags + 4 S moves / 2, and a ring 2 hops + S bytes (cost_model.h). */
en_status eni_measure_numbers(int cores, double *flag_out, double *move_out, eni_cost_numbers *tcp_out)
{
    static const uint64_t bytes[] = {4096, 65536, 1 << 20, 4 << 20};
    const int n = sizeof bytes / sizeof *bytes;
    eni_cost_curve direct, ring;
    double alpha, beta, barrier;
    EN_TRY(
        eni_measure_allreduce(2, ENI_COLL_DIRECT, ENI_OVER_SHM, bytes, n, 25 * ENI_MILLI, &direct, &barrier));
    eni_cost_line(&direct, &alpha, &beta);
    *flag_out = alpha / 2;
    *move_out = beta * (cores < 2 ? cores : 2) / 4;
    EN_TRY(eni_measure_allreduce(2, ENI_COLL_RING, ENI_OVER_TCP, bytes, n, 25 * ENI_MILLI, &ring, &barrier));
    eni_cost_line(&ring, &alpha, &beta);
    *tcp_out = (eni_cost_numbers){alpha / 2, beta, 0};
    return EN_OK;
}

/* ---- copies ---- */

typedef struct copies {
    double move[ENI_PROCESSES_MAX], sum[ENI_PROCESSES_MAX];
} copies;

static int copy_main(const eni_process *self)
{
    const uint64_t bytes = *(const uint64_t *)self->user;
    copies *figures = self->shared;
    int times = 0;
    float *from = eni_alloc(bytes), *to = eni_alloc(bytes);
    if (from == NULL || to == NULL) return 1;
    memset(from, 0, bytes);
    if (eni_processes_meet(self, &times)) return 1;
    figures->move[self->rank] = eni_probe_copy(to, from, bytes, 60 * ENI_MILLI);
    if (eni_processes_meet(self, &times)) return 1;
    figures->sum[self->rank] = eni_probe_sum(to, from, bytes, 60 * ENI_MILLI);
    return 0;
}

en_status eni_measure_copy(int n, uint64_t bytes, double *move_out, double *sum_out)
{
    void *shared;
    EN_TRY(eni_processes_run(n, sizeof(copies), &shared, copy_main, &bytes, eni_now_ns() + 20 * ENI_SECOND));
    const copies *figures = shared;
    *move_out = *sum_out = 0;
    for (int r = 0; r < n; r++) {
        *move_out += figures->move[r] / n;
        *sum_out += figures->sum[r] / n;
    }
    eni_processes_release(shared, sizeof(copies));
    return EN_OK;
}
