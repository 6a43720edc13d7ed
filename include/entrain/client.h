/* client.h - psd as a key-value store for your own program: named tensors in, averaged and stepped ones out.
 *
 *     entrain psd --world-size=2 --strategy=ps-sync    cc mine.c -lentrain -o mine; ./mine 0 & ./mine 1
 *
 * A store holds named float32 tensors and an optimizer. N programs ("ranks") work on them in five steps: read some data,
 * pull the weights, compute a gradient, push it, and the store updates the weights. The strategy that psd was started with
 * decides when the store updates, and who waits:
 *
 *     ps-sync     one step on the mean of all ranks' gradients; a push is answered when that step is made
 *     ps-async    a step on every gradient as it arrives; a push is answered at once
 *     ssp         as ps-async, but no rank runs more than `bound` pushes ahead of the slowest
 *
 *     en_client_open(&options, &client);                     joins; every rank has rank 0's initial weights
 *     float *w = en_client_param(client, 0), *g = en_client_grad(client, 0);
 *     for (each batch) {
 *         ...                                                g = gradient of the mean loss at w
 *         en_client_push_pull(client, EN_CLIENT_ALL, n);     starts: g goes out, the next w comes back
 *         ...                                                work without w and g, such as reading data
 *         en_client_wait(client, EN_CLIENT_ALL);             now w is new and g is yours again
 *     }
 *     en_client_finish(client);
 *     en_client_close(client);
 *
 * All ranks of a run declare the same tensors, optimizer and rates: psd compares them, and refuses a rank that differs,
 * naming both values. The program `worker` declares a model and a data set as well, so it cannot be a rank of such a run. A
 * psd serves one run and ends with it.
 *
 * Threads: a client belongs to one thread at a time; en_client_status may be called from any. Clients share nothing but the
 * log, so a process may have several, each a rank of its own. Internally one thread talks to psd (heartbeats) and another
 * moves bytes. Do not use a client in a child made by fork.
 *
 * Waiting: a blocking call ends with EN_EPEER when psd or another rank dies (at once if the process ends, after peer_timeout
 * if its host falls silent), never because a live peer is slow; with EN_EINTR when interrupt_fd is readable.
 *
 * Errors: every cause is logged once, in one sentence, where it is first detected. EN_EINVAL changes nothing. After any other
 * error only en_client_status and en_client_close work: all other calls return the same status.
 *
 * Growth: `abi` is the major version, `size` the minor; structs only grow at their end, and zero always means the default. So
 * zero a whole struct first, then set the fields you need. */
#ifndef ENTRAIN_CLIENT_H
#define ENTRAIN_CLIENT_H

#include <stdint.h>

#include "entrain/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_CLIENT_ABI 1u

#if defined(__GNUC__)
#define EN_CLIENT_API __attribute__((visibility("default")))
#else
#define EN_CLIENT_API
#endif

enum { EN_CLIENT_ALL = -1 };      /* in place of a tensor's index: all of them */
enum { EN_CLIENT_DIMS = 8 };      /* most dimensions of a shape */
enum { EN_CLIENT_TENSORS = 900 }; /* most tensors of a run */

/* Flags. */
enum {
    EN_CLIENT_NESTEROV = 1,
    EN_CLIENT_TCP =
        2 /* gradients and weights over TCP even where psd is on this host (else: shared memory) */
};

/* A key of the store. */
typedef struct en_client_tensor {
    uint32_t size;                  /* sizeof(en_client_tensor) */
    uint32_t reserved;              /* 0 */
    const char *name;               /* not empty, at most 200 bytes, no two alike */
    uint64_t shape[EN_CLIENT_DIMS]; /* row-major; ends at the first 0; {0}: a single number */
    const float *initial; /* (count) the store's initial values; only rank 0's are used. NULL: zeros */
} en_client_tensor;

/* A rank's options for joining. Everything is read during en_client_open only. */
typedef struct en_client_options {
    uint32_t abi;  /* EN_CLIENT_ABI */
    uint32_t size; /* sizeof(en_client_options) */

    const char *server;       /* where psd listens: "tcp://127.0.0.1:5555" */
    const char *strategy;     /* as given to psd: "ps-sync", "ps-async", "ssp:bound=2" */
    int32_t rank, world_size; /* 0 .. world_size - 1; psd's --world-size */
    const char *token_file;  /* the run's secret, as psd's --token-file. NULL: the file that a psd of the same
                                user on this host leaves, entrain/token-PORT in .. */
    const char *runtime_dir; /* .. this folder: give getenv("XDG_RUNTIME_DIR"), as psd sees it. The library
                                itself reads no environment. NULL: /tmp/entrain-UID/token-PORT */
    uint32_t flags;          /* EN_CLIENT_* */
    uint32_t ntensors;       /* 1 .. EN_CLIENT_TENSORS */
    const en_client_tensor *tensors; /* (ntensors) */

    const char *optimizer;         /* NULL: "sgd"; "adam", "adamw": with PyTorch's formulas */
    double lr;                     /* > 0 */
    double momentum, weight_decay; /* 0 .. */
    const char *lr_schedule;       /* NULL: "constant"; "step", "cosine", "multistep", "linear": functions of
                                      samples applied, cosine and linear to 0 */
    double lr_gamma;               /* step, multistep: the factor .. */
    uint64_t lr_step;              /* .. every so many samples */
    uint64_t lr_warmup;            /* samples of a linear rise from 0 */
    uint64_t total_samples;        /* cosine, linear: of the run, over all ranks */

    double join_timeout; /* seconds to wait for psd and all ranks; 0: 60 */
    double peer_timeout; /* seconds of silence after which psd is dead; 0: 5 */
    /* Readable: every wait ends with EN_EINTR (a signalfd, an eventfd). 0: none. The client keeps a copy (dup), so this one
     * may be closed after open. */
    int interrupt_fd;

    /* Takes the log lines of the whole process from now on, instead of stderr; any thread, must not block. level 0 error ..
     * 4 trace; `text` is valid during the call. NULL: unchanged. */
    void (*log)(void *user, int level, const char *subsystem, const char *text);
    void *log_user;

    double beta1, beta2, eps;      /* adam, adamw: below 1; 0: 0.9, 0.999, 1e-8 */
    const uint64_t *lr_milestones; /* multistep: (nlr_milestones), 1 to 8 rising numbers of samples */
    uint32_t nlr_milestones;
} en_client_options;

typedef struct en_client en_client;

/* Joins the run: finds the token (waiting for the file until the deadline, so psd may be started later), meets the other
 * ranks, sets rank 0's initial weights, and pulls them. Blocks until all ranks have joined, at most join_timeout.
 *
 * Success: the caller closes *client_out. Failure: *client_out is NULL. EN_EVERSION: the library has another abi. EN_EINVAL:
 * an invalid option. EN_ENOENT: no token; EN_EDENIED: not this run's token, or others may read its file. EN_EMISMATCH: the
 * ranks, or a rank and psd, disagree (logged). EN_ETIMEOUT: not all joined. EN_EPEER, EN_EINTR, EN_EPROTO, EN_ENOMEM. */
EN_CLIENT_API en_status en_client_open(const en_client_options *options, en_client **client_out);

/* Weights and gradient of a tensor, (count) in the order of its shape, 64-byte aligned, owned by the library until
 * en_client_close; NULL if there is no such tensor. Tensors lie in two flat vectors in the order of declaration, each on 64
 * bytes. The store never sees what you write into the weights.
 *
 * From the start of a call on a tensor to its wait: do not write grad (push, push_pull), do not touch param (pull, push_pull).
 * Never blocks. */
EN_CLIENT_API float *en_client_param(en_client *client, int tensor);
EN_CLIENT_API float *en_client_grad(en_client *client, int tensor);

/* Elements of a tensor; 0 if there is no such tensor. */
EN_CLIENT_API uint64_t en_client_elements(const en_client *client, int tensor);

/* These calls start an operation and return; en_client_wait completes it. One operation per tensor at a time; operations on
 * different tensors may overlap, and the store answers them independently. They block only while psd does not accept data
 * and the send queue is full.
 *
 * pull         param becomes the store's current weights. Never held back, whatever the strategy.
 * push         grad goes to the store; param stays. The strategy decides when the store answers.
 * push_pull    both in one round trip: the answer's weights go into param. Cheaper than push, then pull.
 *
 * grad is the gradient of the mean loss over `nsamples` samples: means are weighted by it, and the rate depends on it. 0: this
 * rank had no data, and grad is ignored (ps-sync still needs the push).
 *
 * EN_EINVAL: no such tensor, an operation is in progress on it, or after finish. Other errors as above; EN_EPROTO: psd
 * violated the protocol. */
EN_CLIENT_API en_status en_client_pull(en_client *client, int tensor);
EN_CLIENT_API en_status en_client_push(en_client *client, int tensor, uint64_t nsamples);
EN_CLIENT_API en_status en_client_push_pull(en_client *client, int tensor, uint64_t nsamples);

/* Blocks until the tensor's operation is complete; returns at once if none is in progress. EN_ENONFINITE: the gradient, or its
 * mean, is not finite; the store did not step. */
EN_CLIENT_API en_status en_client_wait(en_client *client, int tensor);

/* Leaves in order: waits for operations in progress, and reports to psd that no more pushes come, so that no rank waits for
 * this one. Blocks for two round trips. Afterwards param may be read, and only status, count and close be called; calling it
 * again is fine. */
EN_CLIENT_API en_status en_client_finish(en_client *client);

/* Frees the client. Without finish before it the other ranks see a death, and their run ends. Takes a few seconds at most.
 * NULL is fine. */
EN_CLIENT_API void en_client_close(en_client *client);

/* EN_OK while the run goes on, else the reason why calls fail. Any thread, never blocks. */
EN_CLIENT_API en_status en_client_status(const en_client *client);

/* Optimizer steps included in param: the minimum over the tensor's parts (psd may have several shards), or over all tensors.
 * 0 if there is no such tensor. */
EN_CLIENT_API uint64_t en_client_version(const en_client *client, int tensor);

/* This rank's counters since open. A push of all tensors counts once per tensor. */
typedef struct en_client_counters {
    uint32_t size;          /* sizeof(en_client_counters): set by the caller */
    uint32_t is_shared;     /* 1: payloads go through shared memory */
    uint64_t pushes, pulls; /* answered; a push_pull is a push */
    /* Mean and maximum over the pushes: versions between the weights that this rank got last and those stepped. */
    double staleness_mean, staleness_max;
    uint64_t payload_sent, payload_received; /* bytes of gradients and weights, by any transport */
    uint64_t wire_bytes;                     /* both ways, headers and framing included */
    uint64_t shm_bytes;                      /* payload through shared memory */
    int64_t wait_ns;                         /* time blocked on psd */
} en_client_counters;

/* Overwrites all fields but size. Never blocks. EN_EINVAL: size is not set. */
EN_CLIENT_API en_status en_client_count(const en_client *client, en_client_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
