/* nccl_group.c - collectives among GPUs with one rank each: NCCL.
 *
 * NCCL has no timeout: a rank whose peer died waits forever, in a kernel that never ends. So communicators
 * are non-blocking: each call returns at once, and we poll the communicator and the caller's `alive`
 * alternately until the call is done. When the run is over, ncclCommAbort ends the kernels, and the streams
 * go on.
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

/* libnccl, loaded on first use: a run on one GPU, or on the processor, does without its 200 MB. The table
 * takes its types from NCCL's header: a change there does not compile here. */
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

/* Finds each function by its name. NULL, or why that failed: one clause, static or the loader's own. A loaded
 * library stays: it has threads of its own. */
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

_Static_assert(sizeof(ncclUniqueId) == EN_GPU_GROUP_ID, "an NCCL id fits into ours");

struct en_group {
    en_ctx *ctx; /* borrowed; outlives us */
    nccl_library nccl;
    pthread_mutex_t lock;
    ncclComm_t comm; /* NULL: aborted */
    bool has_failed; /* an error was logged */
    bool is_open;    /* all ranks are connected */
    int rank, nranks;
    ncclComm_t leaving; /* being aborted, or destroyed, by `leave_thread` */
    bool is_friendly;   /* destroyed rather than aborted */
    pthread_t leave_thread;
    atomic_bool has_left;
    en_status (*alive)(void *user);
    void *user;
};

static en_status load(nccl_library *nccl)
{
    const char *why = load_nccl(nccl);
    if (!why) return EN_OK;
    return eni_fail(
        EN_EUNSUPPORTED, "cuda",
        "cannot load NCCL, which ranks on several GPUs need: %s; install libnccl2, or use --backend=host",
        why);
}

/* Pauses between two polls of a busy communicator. Starting a thread that launches a kernel takes some ten
 * microseconds; connecting takes seconds. */
static void pause_polling(int64_t waited_ns)
{
    if (waited_ns < ENI_MILLI / 5)
        sched_yield();
    else
        eni_sleep_until(eni_now_ns() + ENI_MILLI / 5);
}

/* NCCL's result as a status, logged once. `lock` is held, or nobody else knows the group. */
static en_status check(en_group *group, ncclResult_t result, const char *doing)
{
    if (result == ncclSuccess || result == ncclInProgress) return EN_OK;
    const nccl_library *nccl = &group->nccl;
    const char *more = group->comm ? nccl->get_last_error(group->comm) : NULL;
    if (!group->has_failed)
        eni_error("cuda", "%s, rank %d of %d on %s: NCCL error %d, %s%s%s%s", doing, group->rank,
                  group->nranks, group->ctx->name, (int)result, nccl->get_error_string(result),
                  more && *more ? ": " : "", more ? more : "",
                  group->is_open ? "" : "; --backend=host works without NCCL");
    group->has_failed = true;
    return result == ncclRemoteError ? EN_EPEER : EN_EIO;
}

/* The state of the communicator now: ncclInProgress while a call is in progress. */
static ncclResult_t state_of(en_group *group)
{
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = group->nccl.comm_get_async_error(group->comm, &state);
    return asked == ncclSuccess ? state : asked;
}

/* Waits until the last call is done: NCCL connects at first use, which takes all ranks. */
static en_status await_call(en_group *group, const char *doing)
{
    const int64_t begin = eni_now_ns();
    for (;;) {
        pthread_mutex_lock(&group->lock);
        const ncclResult_t state = group->comm ? state_of(group) : ncclRemoteError;
        const en_status st = !group->comm ? EN_EPEER : check(group, state, doing);
        pthread_mutex_unlock(&group->lock);
        if (st != EN_OK || state != ncclInProgress) return st;
        EN_TRY(group->alive ? group->alive(group->user) : EN_OK);
        pause_polling(eni_now_ns() - begin);
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
        return eni_fail(EN_EUNSUPPORTED, "cuda", "NCCL finds no network between hosts: error %d, %s: %s",
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
        check(group, group->nccl.comm_init(&group->comm, group->nranks, given, group->rank, &config), doing);
    return st == EN_OK ? await_call(group, doing) : st;
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
        const bool is_refused = group->has_failed && st == EN_EIO; /* NCCL has logged why */
        eni_cuda_group_abort(group);
        eni_cuda_group_close(group);
        return is_refused ? EN_EUNSUPPORTED : st;
    }
    group->is_open = true;
    *group_out = group;
    return EN_OK;
}

/* ncclSum, or a sum of scaled values: NCCL keeps the factor's address, so that the kernel reads it when it
 * runs, in a graph at each launch. The operation may be freed once the call that uses it is done. */
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

/* Enqueues a collective in EXCHANGE: the sum, or rank 0's data for all. */
static en_status put_in(en_group *group, float *data, uint64_t count, const float *scale, bool is_sum)
{
    if (count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(group->ctx));
    const char *doing = is_sum ? "the sum" : "spreading";
    const nccl_library *nccl = &group->nccl;
    const cudaStream_t stream = group->ctx->stream[EN_STREAM_EXCHANGE];
    ncclRedOp_t op = ncclSum;
    pthread_mutex_lock(&group->lock);
    en_status st = group->comm ? check(group, make_op(group, scale, &op), doing) : EN_EPEER;
    const bool is_made = st == EN_OK;
    if (st == EN_OK)
        st = check(group,
                   is_sum ? nccl->all_reduce(data, data, count, ncclFloat, op, group->comm, stream)
                          : nccl->broadcast(data, data, count, ncclFloat, 0, group->comm, stream),
                   doing);
    pthread_mutex_unlock(&group->lock);
    if (st == EN_OK) st = await_call(group, doing);
    if (is_made) free_op(group, scale, op);
    return st;
}

en_status eni_cuda_group_sum(en_group *group, float *data, uint64_t count, const float *scale)
{
    return put_in(group, data, count, scale, true);
}

en_status eni_cuda_group_broadcast(en_group *group, float *data, uint64_t count)
{
    return put_in(group, data, count, NULL, false);
}

en_status eni_cuda_group_poll(en_group *group)
{
    pthread_mutex_lock(&group->lock);
    const en_status st = group->comm ? check(group, state_of(group), "exchanging") : EN_EPEER;
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* Waits until NCCL has released everything; after an abort, the kernels have ended long before. */
static bool wait_until_left(en_group *group, int64_t ns)
{
    const int64_t begin = eni_now_ns();
    while (!atomic_load(&group->has_left) && eni_now_ns() - begin < ns)
        pause_polling(eni_now_ns() - begin);
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
    atomic_store(&group->has_left, true);
    return NULL;
}

/* Takes the communicator away from the group, once. True: NCCL is releasing it. */
static bool leave(en_group *group, bool is_friendly)
{
    pthread_mutex_lock(&group->lock);
    const ncclComm_t comm = group->comm;
    group->comm = NULL;
    if (comm) {
        group->leaving = comm;
        group->is_friendly = is_friendly;
        if (pthread_create(&group->leave_thread, NULL, leave_main, group) != 0) {
            group->leaving = NULL;
            (void)group->nccl.comm_abort(comm); /* blocks, but no thread could be started */
        }
    }
    const bool is_leaving = group->leaving != NULL;
    pthread_mutex_unlock(&group->lock);
    return is_leaving;
}

void eni_cuda_group_abort(en_group *group)
{
    if (leave(group, false)) (void)wait_until_left(group, ENI_SECOND / 4);
}

/* Finalizes it, if nothing is in progress and nothing failed, but for two seconds at most. */
static bool finalize(en_group *group)
{
    if (!group->comm || group->has_failed || group->ctx->has_failed) return false;
    if (cudaStreamQuery(group->ctx->stream[EN_STREAM_EXCHANGE]) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    const int64_t begin = eni_now_ns();
    ncclResult_t state = group->nccl.comm_finalize(group->comm);
    while (state == ncclInProgress && eni_now_ns() - begin < 2 * ENI_SECOND) {
        pause_polling(eni_now_ns() - begin);
        state = state_of(group);
    }
    return state == ncclSuccess;
}

void eni_cuda_group_close(en_group *group)
{
    if (!group) return;
    (void)cudaSetDevice(group->ctx->index);
    if (leave(group, finalize(group))) {
        if (!wait_until_left(group, 2 * ENI_SECOND)) { /* its thread still uses the group */
            eni_warn("cuda", "NCCL does not release %s: its memory is freed when the process ends",
                     group->ctx->name);
            (void)pthread_detach(group->leave_thread);
            return;
        }
        (void)pthread_join(group->leave_thread, NULL);
    }
    pthread_mutex_destroy(&group->lock);
    eni_free(group);
}

/* The version, for a log line. Loads the library each time; written once, into one place. */
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
