/* nccl_group.c - collectives among GPUs of which each has one rank: NCCL.
 *
 * NCCL has no timeout: a rank whose peer died waits forever, in a kernel that never ends. So communicators
 * are of the non-blocking kind: each call returns at once, and until the communicator says that it is done we
 * ask it and the caller's `alive` in turns. Once somebody says that the run is over, ncclCommAbort ends the
 * kernels, and the streams go on.
 *
 *     compute thread     open .. sum sum sum ..  close          `lock` holds the communicator while a call of
 *     any thread                       abort                     NCCL's is under way: abort frees it
 *
 * A graph that has a collective in it must be freed before the group is closed: NCCL frees no communicator
 * that a graph could still use. Its ncclCommAbort, too, ends the kernels at once but returns only when such
 * graphs are gone (commDestroySync in its src/init.cc), and the caller of abort may be the one who would free
 * them. So it is called on a thread of its own, which close joins; and so is ncclCommDestroy, which waits for
 * NCCL's own threads without a limit. */
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"

/* ---- libnccl ------------------------------------------------------------------------------------------- */

/* libnccl, loaded when it is first needed: a run on one GPU, or on the processor, needs none of its
 * 200 MB. The types of the table are those of its own header: a change there does not compile here. */
typedef struct nccl_library {
    __typeof__(ncclGetVersion) *get_version;
    __typeof__(ncclGetUniqueId) *get_unique_id;
    __typeof__(ncclGetErrorString) *get_error_string;
    __typeof__(ncclGetLastError) *get_last_error;
    __typeof__(ncclCommInitRankConfig) *comm_init;
    __typeof__(ncclCommGetAsyncError) *comm_get_async_error;
    __typeof__(ncclCommFinalize) *comm_finalize;
    __typeof__(ncclCommDestroy) *comm_destroy;
    __typeof__(ncclCommAbort) *comm_abort;
    __typeof__(ncclAllReduce) *all_reduce;
    __typeof__(ncclBroadcast) *broadcast;
    __typeof__(ncclRedOpCreatePreMulSum) *create_scaled_sum;
    __typeof__(ncclRedOpDestroy) *destroy_op;
} nccl_library;

/* Finds each function by its name. NULL, or why it cannot be had: one clause, static or the loader's own. A
 * library that was loaded stays: it has threads of its own. */
static const char *load_nccl(nccl_library *nccl_out)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"ncclGetVersion", &nccl_out->get_version},
        {"ncclGetUniqueId", &nccl_out->get_unique_id},
        {"ncclGetErrorString", &nccl_out->get_error_string},
        {"ncclGetLastError", &nccl_out->get_last_error},
        {"ncclCommInitRankConfig", &nccl_out->comm_init},
        {"ncclCommGetAsyncError", &nccl_out->comm_get_async_error},
        {"ncclCommFinalize", &nccl_out->comm_finalize},
        {"ncclCommDestroy", &nccl_out->comm_destroy},
        {"ncclCommAbort", &nccl_out->comm_abort},
        {"ncclAllReduce", &nccl_out->all_reduce},
        {"ncclBroadcast", &nccl_out->broadcast},
        {"ncclRedOpCreatePreMulSum", &nccl_out->create_scaled_sum},
        {"ncclRedOpDestroy", &nccl_out->destroy_op},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return "libnccl.so.2 is older than 2.14";
        *(void **)wanted[i].where = found; /* POSIX's way around ISO C's function pointers */
    }
    return NULL;
}

/* ---- a group ------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(ncclUniqueId) == EN_GPU_GROUP_ID, "an id of NCCL's is an id of ours");

struct en_group {
    en_ctx *ctx; /* borrowed; outlives us */
    nccl_library nccl;
    pthread_mutex_t lock;
    ncclComm_t comm; /* NULL: aborted */
    int has_failed;  /* an error was logged */
    int is_open;     /* all are there */
    int rank, nranks;
    ncclComm_t leaving; /* being aborted, or destroyed, by `leave_thread` */
    int is_friendly;    /* destroyed */
    pthread_t leave_thread;
    atomic_int has_left;
    en_status (*alive)(void *user);
    void *user;
};

static en_status load(nccl_library *nccl)
{
    const char *why = load_nccl(nccl);
    if (!why) return EN_OK;
    return eni_fail(
        EN_EUNSUPPORTED, "cuda",
        "NCCL is needed for ranks on several GPUs and cannot be loaded: %s; install libnccl2, or let "
        "the host exchange with --backend=host",
        why);
}

/* Between two questions to a communicator that is still busy. What only has to start a thread that launches a
 * kernel is done in some ten microseconds; what connects takes seconds. */
static void breathe(int64_t waited_ns)
{
    if (waited_ns < ENI_MILLI / 5)
        sched_yield();
    else
        eni_sleep_until(eni_now_ns() + ENI_MILLI / 5);
}

/* What NCCL says, as a status, logged once. `lock` is held, or nobody else knows the group. */
static en_status say(en_group *group, ncclResult_t result, const char *doing)
{
    if (result == ncclSuccess || result == ncclInProgress) return EN_OK;
    const nccl_library *nccl = &group->nccl;
    const char *more = group->comm ? nccl->get_last_error(group->comm) : NULL;
    if (!group->has_failed)
        eni_error("cuda", "%s, rank %d of %d on %s: NCCL error %d, %s%s%s%s", doing, group->rank,
                  group->nranks, group->ctx->name, (int)result, nccl->get_error_string(result),
                  more && *more ? ": " : "", more ? more : "",
                  group->is_open ? "" : "; --backend=host goes without NCCL");
    group->has_failed = 1;
    return result == ncclRemoteError ? EN_EPEER : EN_EIO;
}

/* The state of the communicator now: ncclInProgress while a call is under way. */
static ncclResult_t state_of(en_group *group)
{
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = group->nccl.comm_get_async_error(group->comm, &state);
    return asked == ncclSuccess ? state : asked;
}

/* Until the call that was made is done: NCCL connects at first use, which takes all ranks. */
static en_status settle(en_group *group, const char *doing)
{
    const int64_t begin = eni_now_ns();
    for (;;) {
        pthread_mutex_lock(&group->lock);
        const ncclResult_t state = group->comm ? state_of(group) : ncclRemoteError;
        const en_status st = !group->comm ? EN_EPEER : say(group, state, doing);
        pthread_mutex_unlock(&group->lock);
        if (st != EN_OK || state != ncclInProgress) return st;
        EN_TRY(group->alive ? group->alive(group->user) : EN_OK);
        breathe(eni_now_ns() - begin);
    }
}

en_status eni_cuda_group_id(const en_device_host *host, uint8_t id_out[EN_GPU_GROUP_ID])
{
    eni_ref_log_to(host);
    nccl_library nccl;
    ncclUniqueId id;
    EN_TRY(load(&nccl));
    const ncclResult_t result = nccl.get_unique_id(&id);
    if (result != ncclSuccess)
        return eni_fail(EN_EUNSUPPORTED, "cuda", "NCCL finds no way between hosts: error %d, %s: %s",
                        (int)result, nccl.get_error_string(result), nccl.get_last_error(NULL));
    memcpy(id_out, &id, sizeof id);
    return EN_OK;
}

static en_status connect_all(en_group *group, const uint8_t *id)
{
    ncclUniqueId given;
    memcpy(&given, id, sizeof given);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const char *doing = "connecting the GPUs";
    const en_status st =
        say(group, group->nccl.comm_init(&group->comm, group->nranks, given, group->rank, &config), doing);
    return st == EN_OK ? settle(group, doing) : st;
}

en_status eni_cuda_group_open(en_ctx *ctx, const uint8_t id[EN_GPU_GROUP_ID], int rank, int nranks,
                              en_status (*alive)(void *user), void *user, en_group **group_out)
{
    EN_TRY(eni_cuda_select(ctx));
    en_group *group = eni_alloc(sizeof *group);
    if (!group) return EN_ENOMEM;
    *group = (en_group){.ctx = ctx, .rank = rank, .nranks = nranks, .alive = alive, .user = user};
    pthread_mutex_init(&group->lock, NULL);
    en_status st = load(&group->nccl);
    if (st == EN_OK) st = connect_all(group, id);
    if (st != EN_OK) {
        const int is_refused = group->has_failed && st == EN_EIO; /* NCCL said why */
        eni_cuda_group_abort(group);
        eni_cuda_group_close(group);
        return is_refused ? EN_EUNSUPPORTED : st;
    }
    group->is_open = 1;
    *group_out = group;
    return EN_OK;
}

/* ncclSum, or the sum of what was multiplied before: an operation for which NCCL keeps the factor's address,
 * so that the kernel reads it when it runs, in a graph at each launch. It may be freed once the call that was
 * given it is done. */
static ncclResult_t make_op(en_group *group, const float *scale, ncclRedOp_t *op_out)
{
    *op_out = ncclSum;
    if (!scale) return ncclSuccess;
    return group->nccl.create_scaled_sum(op_out, (void *)scale, ncclFloat, ncclScalarDevice, group->comm);
}

static void free_op(en_group *group, const float *scale, ncclRedOp_t op)
{
    pthread_mutex_lock(&group->lock);
    if (scale && group->comm) (void)group->nccl.destroy_op(op, group->comm);
    pthread_mutex_unlock(&group->lock);
}

/* Puts a collective into EXCHANGE: the sum, or rank 0's data for all. */
static en_status put_in(en_group *group, float *data, uint64_t count, const float *scale, int is_sum)
{
    if (count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(group->ctx));
    const char *doing = is_sum ? "adding up" : "spreading";
    const nccl_library *nccl = &group->nccl;
    const cudaStream_t stream = group->ctx->stream[EN_STREAM_EXCHANGE];
    ncclRedOp_t op = ncclSum;
    pthread_mutex_lock(&group->lock);
    en_status st = group->comm ? say(group, make_op(group, scale, &op), doing) : EN_EPEER;
    const int is_made = st == EN_OK;
    if (st == EN_OK)
        st = say(group,
                 is_sum ? nccl->all_reduce(data, data, count, ncclFloat, op, group->comm, stream)
                        : nccl->broadcast(data, data, count, ncclFloat, 0, group->comm, stream),
                 doing);
    pthread_mutex_unlock(&group->lock);
    if (st == EN_OK) st = settle(group, doing);
    if (is_made) free_op(group, scale, op);
    return st;
}

en_status eni_cuda_group_sum(en_group *group, float *data, uint64_t count, const float *scale)
{
    return put_in(group, data, count, scale, 1);
}

en_status eni_cuda_group_broadcast(en_group *group, float *data, uint64_t count)
{
    return put_in(group, data, count, NULL, 0);
}

en_status eni_cuda_group_poll(en_group *group)
{
    pthread_mutex_lock(&group->lock);
    const en_status st = group->comm ? say(group, state_of(group), "exchanging") : EN_EPEER;
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* Until NCCL has let go of everything: of an abort, the kernels have ended long before. */
static int wait_until_left(en_group *group, int64_t ns)
{
    const int64_t begin = eni_now_ns();
    while (!atomic_load(&group->has_left) && eni_now_ns() - begin < ns)
        breathe(eni_now_ns() - begin);
    return atomic_load(&group->has_left);
}

static void *leave_main(void *user)
{
    en_group *group = user;
    (void)cudaSetDevice(group->ctx->index);
    if (group->is_friendly)
        (void)group->nccl.comm_destroy(group->leaving);
    else
        (void)group->nccl.comm_abort(group->leaving);
    atomic_store(&group->has_left, 1);
    return NULL;
}

/* Takes the communicator from everybody; the second time there is none. 1: NCCL is letting go of it. */
static int leave(en_group *group, int is_friendly)
{
    pthread_mutex_lock(&group->lock);
    const ncclComm_t comm = group->comm;
    group->comm = NULL;
    if (comm) {
        group->leaving = comm;
        group->is_friendly = is_friendly;
        if (pthread_create(&group->leave_thread, NULL, leave_main, group) != 0) {
            group->leaving = NULL;
            (void)group->nccl.comm_abort(comm); /* better late than not */
        }
    }
    const int is_leaving = group->leaving != NULL;
    pthread_mutex_unlock(&group->lock);
    return is_leaving;
}

void eni_cuda_group_abort(en_group *group)
{
    if (leave(group, 0)) (void)wait_until_left(group, ENI_SECOND / 4);
}

/* In friendship, if nothing is under way and nothing went wrong; but no longer than two seconds. */
static int finalize(en_group *group)
{
    if (!group->comm || group->has_failed || group->ctx->has_failed) return 0;
    if (cudaStreamQuery(group->ctx->stream[EN_STREAM_EXCHANGE]) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    const int64_t begin = eni_now_ns();
    ncclResult_t state = group->nccl.comm_finalize(group->comm);
    while (state == ncclInProgress && eni_now_ns() - begin < 2 * ENI_SECOND) {
        breathe(eni_now_ns() - begin);
        state = state_of(group);
    }
    return state == ncclSuccess;
}

void eni_cuda_group_close(en_group *group)
{
    if (!group) return;
    (void)cudaSetDevice(group->ctx->index);
    if (leave(group, finalize(group))) {
        if (!wait_until_left(group, 2 * ENI_SECOND)) { /* it is still in there, with the group in its hands */
            eni_warn("cuda", "NCCL does not let go of %s: its memory is given back when the process ends",
                     group->ctx->name);
            (void)pthread_detach(group->leave_thread);
            return;
        }
        (void)pthread_join(group->leave_thread, NULL);
    }
    pthread_mutex_destroy(&group->lock);
    eni_free(group);
}

/* Asked for a line to people, now and then: loaded each time, written into one place once. */
static char version_text[32];
static pthread_once_t version_once = PTHREAD_ONCE_INIT;

static void ask_version(void)
{
    nccl_library nccl;
    int version = 0;
    if (load_nccl(&nccl) || nccl.get_version(&version) != ncclSuccess) return;
    snprintf(version_text, sizeof version_text, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100,
             version % 100);
}

const char *eni_cuda_group_version(void)
{
    pthread_once(&version_once, ask_version);
    return version_text;
}
