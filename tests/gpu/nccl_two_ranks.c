/* nccl_two_ranks.c - what a machine with one GPU can show of NCCL: the collective of the cuda device, with
 * two ranks on that GPU, which NCCL refuses by itself.
 *
 *     gpu_nccl_two_ranks PLUGIN_FOLDER [RANKS]        one rank: that the library works at all
 *
 *     rank 0, NCCL_HOSTID=rank0  ----  sockets on lo  ----  rank 1, NCCL_HOSTID=rank1
 *                          \______________ cuda:0 ______________/
 *
 * NCCL looks for two ranks with the same host and the same GPU. With a host id of its own per process it
 * takes them for two machines, and they talk through sockets: the slowest way that it has, but with real
 * sums, call by call and captured. (Where there are as many GPUs as ranks, each has its own, and nothing of
 * this is needed.) An experiment: "refused" is not our failure, and the exit code is 77. Numbers are small
 * integers, so sums are exact in any order. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "ops/device.h"

enum { COUNT = 1 << 18, ROUNDS = 20, TIMEOUT_S = 60, MAX_RANKS = 4, REFUSED = 77 };

/* Between the processes; `has_id` is set once, by rank 0. */
typedef struct meeting {
    int has_id;
    uint8_t id[EN_GPU_GROUP_ID];
} meeting;

typedef struct rank {
    int number, n;
    meeting *met;
    const en_device *device;
    en_ctx *ctx;
    en_group *group;
    en_event *event, *fork, *join;
    float *data;       /* (COUNT) on the GPU */
    float *registered; /* (COUNT) */
    int64_t deadline_ns;
} rank;

static en_status alive(void *user)
{
    const rank *r = user;
    return eni_now_ns() < r->deadline_ns ? EN_OK : EN_ETIMEOUT;
}

/* Before NCCL is loaded, which is when it is first needed. */
static void prepare_environment(const rank *r)
{
    char name[16];
    snprintf(name, sizeof name, "rank%d", r->number);
    setenv("NCCL_HOSTID", name, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
}

static en_status agree_on_id(rank *r)
{
    if (r->number == 0) {
        EN_TRY(r->device->gpu->group_id(eni_device_host(), r->met->id));
        __atomic_store_n(&r->met->has_id, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&r->met->has_id, __ATOMIC_ACQUIRE)) {
        EN_TRY(alive(r));
        poll(NULL, 0, 1);
    }
    return EN_OK;
}

/* Until all that was put into EXCHANGE is done. */
static en_status settle(rank *r)
{
    en_status st;
    EN_TRY(r->device->gpu->event_record(r->event, EN_STREAM_EXCHANGE));
    while ((st = r->device->gpu->poll(r->event)) == EN_ETIMEOUT) {
        EN_TRY(r->device->gpu->group_poll(r->group));
        EN_TRY(alive(r));
    }
    return st;
}

static en_status put(rank *r, float factor)
{
    for (int i = 0; i < COUNT; i++)
        r->registered[i] = factor * (float)(i % 97);
    EN_TRY(r->device->gpu->copy(r->ctx, EN_STREAM_EXCHANGE, r->data, r->registered, COUNT * sizeof(float),
                                EN_COPY_IN));
    return settle(r);
}

/* How many elements differ from factor * (i % 97). */
static en_status count_wrong(rank *r, float factor, int *wrong_out)
{
    EN_TRY(r->device->gpu->copy(r->ctx, EN_STREAM_EXCHANGE, r->registered, r->data, COUNT * sizeof(float),
                                EN_COPY_OUT));
    EN_TRY(settle(r));
    *wrong_out = 0;
    for (int i = 0; i < COUNT; i++)
        *wrong_out += r->registered[i] != factor * (float)(i % 97);
    return EN_OK;
}

static en_status put_recorded_sum(rank *r)
{
    const en_gpu *gpu = r->device->gpu;
    EN_TRY(gpu->event_record(r->fork, EN_STREAM_COMPUTE));
    EN_TRY(gpu->wait_event(r->ctx, EN_STREAM_EXCHANGE, r->fork));
    EN_TRY(gpu->group_sum(r->group, r->data, COUNT, NULL));
    EN_TRY(gpu->event_record(r->join, EN_STREAM_EXCHANGE));
    return gpu->wait_event(r->ctx, EN_STREAM_COMPUTE, r->join);
}

/* A sum as a step has it, launched three times: each multiplies by the number of ranks. */
static en_status launch_sums(rank *r, en_capture *graph)
{
    int wrong;
    float factor = (float)(r->n * (r->n + 1) / 2);
    EN_TRY(put(r, (float)(r->number + 1)));
    for (int i = 0; i < 3; i++) {
        EN_TRY(r->device->gpu->launch(graph));
        if (i > 0) factor *= (float)r->n;
    }
    EN_TRY(r->device->gpu->wait_event(r->ctx, EN_STREAM_EXCHANGE, r->join)); /* behind the whole launch */
    EN_TRY(count_wrong(r, factor, &wrong));
    if (wrong > 0) eni_error("nccl", "rank %d: %d of %d captured sums are wrong", r->number, wrong, COUNT);
    return wrong > 0 ? EN_EIO : EN_OK;
}

static en_status try_recorded_sums(rank *r)
{
    const en_gpu *gpu = r->device->gpu;
    en_capture *graph = NULL;
    EN_TRY(gpu->capture_begin(r->ctx));
    en_status st = put_recorded_sum(r);
    const en_status ended = gpu->capture_end(r->ctx, &graph);
    if (st == EN_OK) st = ended;
    if (st == EN_OK) st = launch_sums(r, graph);
    gpu->graph_free(graph);
    return st;
}

static en_status try_sums(rank *r)
{
    int wrong_sum, wrong_copy;
    EN_TRY(put(r, (float)(r->number + 1)));
    EN_TRY(r->device->gpu->group_sum(r->group, r->data, COUNT, NULL));
    EN_TRY(count_wrong(r, (float)(r->n * (r->n + 1) / 2), &wrong_sum));
    EN_TRY(put(r, (float)(r->number + 5)));
    EN_TRY(r->device->gpu->group_broadcast(r->group, r->data, COUNT));
    EN_TRY(count_wrong(r, 5, &wrong_copy));
    if (wrong_sum + wrong_copy > 0) {
        eni_error("nccl", "rank %d: %d of %d sums and %d of %d copies are wrong", r->number, wrong_sum, COUNT,
                  wrong_copy, COUNT);
        return EN_EIO;
    }
    EN_TRY(try_recorded_sums(r));
    EN_TRY(put(r, 0));
    const int64_t begin = eni_now_ns();
    for (int i = 0; i < ROUNDS; i++)
        EN_TRY(r->device->gpu->group_sum(r->group, r->data, COUNT, NULL));
    EN_TRY(settle(r));
    if (r->number == 0)
        printf("{\"what\":\"nccl\",\"ranks\":%d,\"library\":\"%s\",\"bytes\":%zu,\"us\":%.1f}\n", r->n,
               r->device->gpu->group_version(), COUNT * sizeof(float),
               (double)(eni_now_ns() - begin) * 1e-3 / ROUNDS);
    return EN_OK;
}

static en_status open_all(rank *r, const char *plugins)
{
    EN_TRY(eni_device_load("cuda", plugins, &r->device));
    if (r->device->gpu == NULL) return EN_EVERSION;
    int32_t ngpus = 0;
    EN_TRY(r->device->gpu->count(eni_device_host(), &ngpus));
    if (ngpus < r->n) prepare_environment(r);
    const en_device_config config = {.size = sizeof config,
                                     .index = ngpus < r->n ? 0 : r->number,
                                     .threads = 1,
                                     .host = eni_device_host()};
    EN_TRY(r->device->open(&config, &r->ctx));
    EN_TRY(r->device->alloc(r->ctx, COUNT * sizeof(float), (void **)&r->data));
    EN_TRY(r->device->gpu->event_new(r->ctx, &r->event));
    EN_TRY(r->device->gpu->event_new(r->ctx, &r->fork));
    EN_TRY(r->device->gpu->event_new(r->ctx, &r->join));
    r->registered =
        mmap(NULL, COUNT * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->registered == MAP_FAILED) return EN_ENOMEM;
    return r->device->gpu->register_memory(r->ctx, r->registered, COUNT * sizeof(float));
}

/* 0, 1, or REFUSED. */
static int run_rank(rank *r, const char *plugins)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r->deadline_ns = eni_now_ns() + TIMEOUT_S * ENI_SECOND;
    if (open_all(r, plugins) != EN_OK || agree_on_id(r) != EN_OK) return 1;
    const en_status opened =
        r->device->gpu->group_open(r->ctx, r->met->id, r->number, r->n, alive, r, &r->group);
    if (opened != EN_OK) {
        printf("{\"what\":\"nccl\",\"ranks\":%d,\"refused\":true}\n", r->n);
        fflush(stdout);
        return opened == EN_EUNSUPPORTED && r->n > 1 ? REFUSED : 1;
    }
    const en_status st = try_sums(r);
    fflush(stdout);
    r->device->gpu->group_close(r->group);
    if (st != EN_OK) return 1; /* what is under way may still use the rest */
    r->device->gpu->unregister_memory(r->ctx, r->registered);
    r->device->gpu->event_free(r->event);
    r->device->gpu->event_free(r->fork);
    r->device->gpu->event_free(r->join);
    r->device->free(r->ctx, r->data);
    r->device->close(r->ctx);
    return 0;
}

/* The worst of all; one that was killed counts as failed. */
static int wait_for_all(int n)
{
    int worst = 0;
    for (int i = 0; i < n; i++) {
        int status;
        while (wait(&status) < 0 && errno == EINTR)
            ;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (worst == 0 || (code != 0 && code != REFUSED)) worst = code;
    }
    return worst;
}

int main(int argc, char **argv)
{
    const int n = argc > 2 ? atoi(argv[2]) : 2;
    if (argc < 2 || n < 1 || n > MAX_RANKS) {
        fprintf(stderr, "usage: gpu_nccl_two_ranks PLUGIN_FOLDER [RANKS], 1 to %d\n", MAX_RANKS);
        return 2;
    }
    meeting *met = mmap(NULL, sizeof *met, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (met == MAP_FAILED) return 1;
    for (int i = 0; i < n; i++) {
        const pid_t pid = fork();
        if (pid < 0) return 1;
        if (pid == 0) {
            rank r = {.number = i, .n = n, .met = met};
            _exit(run_rank(&r, argv[1]));
        }
    }
    return wait_for_all(n);
}
