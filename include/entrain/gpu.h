/* gpu.h - the services of a device with its own memory: streams, events, shared access to host memory, arithmetic on flat
 * vectors, graphs, memory of other processes, and collectives among GPUs.
 *
 * The table is en_device.gpu, NULL on host devices, where all work is complete on return.
 *
 * Streams. A context has three; each runs its work in the order of enqueueing, and they run concurrently:
 *
 *
 *     EN_STREAM_PREFETCH  batches come in                        [batch t+1]
 *     EN_STREAM_COMPUTE   forward, backward       [ forward t | backward t: b0  b1  b2 ]  [ forward t+1
 *     EN_STREAM_EXCHANGE  gradients go out, weights come in,            [b0][b1][b2]
 *                        collectives, steps; first when both could run
 *
 * The only order between streams is an event: event_record(e, COMPUTE), then wait_event(EXCHANGE, e): work enqueued into
 * EXCHANGE from now on begins when all work in COMPUTE before the event is done. The host checks with poll(): nothing in this
 * table blocks unless documented. The waiting caller owns the deadline.
 *
 * Host memory. copy() takes registered host memory only: other memory would make it block, or be read later than the caller
 * thinks. The memory is in use until an event after the copy is reached. Registered memory must stay mapped unchanged until
 * unregister_memory().
 *
 * Errors. A failed device stays failed: every later call with a status returns EN_EIO, logged once with the library's name of
 * the error. Calls that free, unregister, abort and close are still allowed.
 *
 * Lifetime. Free events, graphs, groups and imported memory before closing the context. A graph keeps the addresses of
 * captured work: free plans, memory, events, rates and groups after it.
 *
 * Threads: a context belongs to one thread at a time, with one exception: group_abort may be called from any.
 *
 *
 * Growth: as in device.h. */
#ifndef ENTRAIN_GPU_H
#define ENTRAIN_GPU_H

#include <stdint.h>

#include "entrain/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct en_ctx;
struct en_device_host;

enum { EN_STREAM_COMPUTE = 0, EN_STREAM_PREFETCH = 1, EN_STREAM_EXCHANGE = 2, EN_STREAMS = 3 };

typedef struct en_event en_event;     /* a point in a stream */
typedef struct en_capture en_capture; /* a captured piece of work */
typedef struct en_group en_group;     /* this rank's part in a collective of several GPUs */

/* ---- facts ------------------------------------------------------------------------------------------- */

typedef struct en_gpu_facts {
    uint32_t size; /* in: sizeof(en_gpu_facts); out: bytes filled */
    int32_t index; /* as in cuda:INDEX, after CUDA_VISIBLE_DEVICES */
    char name[64]; /* "NVIDIA H100 80GB HBM3" */
    char uuid[48]; /* "GPU-5f1c..": the same in every process and every container */
    uint64_t memory_bytes;
    int32_t major, minor; /* compute capability */
    int32_t cores;        /* multiprocessors */
    double bytes_per_s;   /* peak of its memory; 0: not known */
} en_gpu_facts;

/* ---- arithmetic on flat vectors ------------------------------------------------------------------------ */

enum { EN_GPU_SOURCES = 64, EN_GPU_SLOTS = 3 };

/* The numbers of one step. In device memory, so that a graph reads those of the step that launches it. In a world of W:
 * scale[r] = samples of rank r, inv = 1 / their sum; in a world of one both are 1 (ops/mean.h). Frozen with the ABI: an
 * optimizer that needs more gets its own struct. */
typedef struct en_gpu_rates {
    float lr, momentum, weight_decay;
    int32_t nesterov;
    float inv;
    float scale[EN_GPU_SOURCES];
} en_gpu_rates;

/* The numbers of one step of "adam" or "adamw" (formulas: ops/optimizer.c), in device memory as well. */
typedef struct en_gpu_adam {
    float decay;                    /* adam: times the weight, added to the gradient; 0: off */
    float keep;                     /* adamw: multiplies the weight first; else 1 */
    float take_mean;                /* 1 - beta1 */
    float keep_square, take_square; /* beta2, 1 - beta2 */
    float rate;                     /* lr / (1 - beta1^t) */
    float root;                     /* sqrt(1 - beta2^t) */
    float eps;
} en_gpu_adam;

/* g[i] = (sum over k of source[k][i] * scale[k]) * inv, added in that order, each product and sum rounded by itself: the bits
 * of eni_mean. A source of scale 0 is skipped and not read, as in eni_mean_ranks; if all are skipped g is 0. Then, with w, the
 * optimizer's step with g: the bits of eni_optimizer.step. With mean, writes g there. All addresses except `source` itself are
 * device addresses. An unknown optimizer, or more sources: EN_EUNSUPPORTED, logged; a step of count 0 checks support. */
typedef struct en_gpu_step {
    uint32_t size;
    const char *optimizer;      /* "sgd", "adam", "adamw"; NULL: no step, w is NULL */
    int32_t nsources;           /* 1 .. EN_GPU_SOURCES */
    const float *const *source; /* (nsources) host array, read during the call; each (count) */
    float *mean;                /* (count) or NULL; may be source[0] */
    float *w;                   /* (count) or NULL */
    float *slot[EN_GPU_SLOTS];  /* (count) or NULL each */
    uint64_t count;
    const en_gpu_rates *rates;
    /* NULL, or the address of the number of samples: then inv is 1 / *total, and 0 samples skip the step and set mean to 0. */
    const float *total;
    const en_gpu_adam *adam; /* adam, adamw: needs both slots; uses inv and scale of `rates` */
} en_gpu_step;

/* ---- images ---------------------------------------------------------------------------------------------- */

/* One image of a batch, cut out of a stored one. */
typedef struct en_gpu_cut {
    uint32_t image;    /* its number among the stored ones */
    int32_t top, left; /* of the stored image, at the corner of the cut; the cut may reach beyond it: zeros */
    uint32_t is_flipped; /* not 0: mirrored, left and right */
} en_gpu_cut;

/* out (count, height, width, channels) = table[channel][stored byte]. Channel c of row y, column x of a stored
 * image lies at y * row_step + x * pixel_step + c * channel_step. Images, cuts, table and out: device
 * addresses. */
typedef struct en_gpu_pixels {
    uint32_t size;
    int32_t height, width, channels;
    int32_t stored_height, stored_width;
    int32_t row_step, pixel_step, channel_step; /* bytes; channel_step 0: one channel, repeated */
    const uint8_t *images;
    uint64_t image_bytes; /* from one to the next */
    const void *cuts;     /* (count) en_gpu_cut */
    uint64_t cut_bytes;   /* from one to the next; a multiple of 4 */
    const float *table;   /* (channels, 256) */
    float *out;
    uint64_t count;
} en_gpu_pixels;

/* ---- the table ----------------------------------------------------------------------------------------- */

enum { EN_GPU_HANDLE = 64, EN_GPU_EXPORT_MIN = 64 << 10, EN_GPU_GROUP_ID = 128 };

typedef struct en_gpu {
    uint32_t size;

    /* Number of GPUs that this process sees. EN_EUNSUPPORTED, logged with the remedy: none, no driver, or one that is too old.
     * Needs no context, like facts; any thread. */
    en_status (*count)(const struct en_device_host *, int32_t *n_out);
    en_status (*facts)(const struct en_device_host *, int32_t index, en_gpu_facts *facts_out);

    /* Streams and events. event_record() may be repeated with the same event, which then stands for the later point. poll:
     * EN_OK once it is reached (or if it was never set), EN_ETIMEOUT before. wait_event() on an event of another context:
     * EN_EINVAL. */
    en_status (*event_new)(struct en_ctx *, en_event **event_out);
    void (*event_free)(en_event *); /* NULL is fine */
    en_status (*event_record)(en_event *, int stream);
    en_status (*wait_event)(struct en_ctx *, int stream, en_event *);
    en_status (*poll)(en_event *);

    /* As en_device.copy and zero, in any stream; host memory must be registered. */
    en_status (*copy)(struct en_ctx *, int stream, void *dst, const void *src, uint64_t bytes, int direction);
    en_status (*zero)(struct en_ctx *, int stream, void *dst, uint64_t bytes);

    /* Makes host memory reachable for the device. The library handles page edges: ranges that share a page may both be
     * registered. Each call needs an unregister_memory with the same address. EN_EUNSUPPORTED, logged: this memory cannot be
     * registered. */
    en_status (*register_memory)(struct en_ctx *, void *memory, uint64_t bytes);
    void (*unregister_memory)(struct en_ctx *, void *memory);

    en_status (*mean_step)(struct en_ctx *, int stream, const en_gpu_step *);
    /* y = a * x + b * y on (count); b == 0 overwrites y whatever it held: the bits of eni_lin. */
    en_status (*lin)(struct en_ctx *, int stream, float *y, float a, const float *x, float b, uint64_t count);
    /* Sets *flag (device memory) to 1 if an element of v (count) is not finite; else does not change it. */
    en_status (*check_finite)(struct en_ctx *, int stream, const float *v, uint64_t count, uint32_t *flag);

    /* Graphs. Between the two calls, work enqueued into COMPUTE, and into streams ordered after it, is captured and not run;
     * all of them must be ordered before COMPUTE again at the end. launch enqueues the whole graph into COMPUTE.
     *
     * An event set inside stands for the latest launch: poll() answers for that one, and wait_event() outside orders after the
     * whole launch. (Before the first launch it counts as never set.) poll() may be late, by the rest of the launch, for an
     * event that was never polled before its capture. Inside, wait_event() takes events that were set inside. An event may be
     * set in several graphs, and outside of them in between.
     *
     * During capture do not make plans; do not allocate, free, register, unregister, export or import memory; do not poll or
     * wait. Numbers of a call (lin's a and b, a count) are captured as they are. Work that cannot be captured returns
     * EN_EUNSUPPORTED, logged as a warning once, and so does capture_end, which must be called all the same: nothing was run,
     * and the device still works. */
    en_status (*capture_begin)(struct en_ctx *);
    en_status (*capture_end)(struct en_ctx *, en_capture **graph_out);
    en_status (*launch)(en_capture *);
    void (*graph_free)(en_capture *); /* NULL is fine */

    /* Memory of another process on the same GPU. export_memory: `memory` is a block of EN_GPU_EXPORT_MIN bytes or more from
     * en_device.alloc: smaller pieces share a block with others, which the importer could then read. EN_EUNSUPPORTED, at debug
     * level: the system refuses it (some containers do). The exporter must outlive the importers' use. */
    en_status (*export_memory)(struct en_ctx *, void *memory, uint8_t handle_out[EN_GPU_HANDLE]);
    en_status (*import_memory)(struct en_ctx *, const uint8_t handle[EN_GPU_HANDLE], void **memory_out);
    void (*release_memory)(struct en_ctx *, void *memory); /* from import_memory */

    /* Collectives among GPUs, one rank each (NCCL). group_id: made by rank 0 and sent to the others. group_open blocks until
     * all have joined; it calls alive(user) every few milliseconds and returns its status if that is not EN_OK.
     * EN_EUNSUPPORTED, logged: NCCL is absent or refuses these GPUs. Keeps `alive` and `user`: the first sum or broadcast,
     * which connects, calls it too. */
    en_status (*group_id)(const struct en_device_host *, uint8_t id_out[EN_GPU_GROUP_ID]);
    en_status (*group_open)(struct en_ctx *, const uint8_t id[EN_GPU_GROUP_ID], int rank, int nranks,
                            en_status (*alive)(void *user), void *user, en_group **group_out);
    /* In place, in EXCHANGE: data = sum over the ranks of scale * data, (count) floats. scale: device address
     * of this rank's own factor, or NULL: 1. All ranks make the same calls in the same order. */
    en_status (*group_sum)(en_group *, float *data, uint64_t count, const float *scale);
    /* In place, in EXCHANGE: rank 0's data on all ranks. */
    en_status (*group_broadcast)(en_group *, float *data, uint64_t count);
    /* EN_OK while all is well; later EN_EPEER or EN_EIO (logged). Call it in every wait. */
    en_status (*group_poll)(en_group *);
    /* Ends operations in progress, so that streams go on; results are undefined, and other calls return EN_EPEER; group_close
     * must still be called. Any thread, in bounded time, but not concurrently with group_close: the owner first takes the
     * pointer away from the other threads. */
    void (*group_abort)(en_group *);
    void (*group_close)(en_group *);    /* NULL is fine; aborts operations in progress */
    const char *(*group_version)(void); /* "NCCL 2.28.9"; "" without NCCL */

    /* An event that also records when it was reached, for work that is not captured; and the device time from one to the
     * other, both set and reached (else EN_ETIMEOUT). */
    en_status (*timer_new)(struct en_ctx *, en_event **event_out);
    en_status (*elapsed)(en_event *begin, en_event *end, int64_t *ns_out);

    /* Images from stored bytes. An unknown size: EN_EUNSUPPORTED, logged. */
    en_status (*pixels)(struct en_ctx *, int stream, const en_gpu_pixels *);
    /* Free memory of the GPU, for all processes. */
    en_status (*free_bytes)(struct en_ctx *, uint64_t *bytes_out);
} en_gpu;

#ifdef __cplusplus
}
#endif
#endif
