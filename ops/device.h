/* device.h - finds, checks and opens a device library. */
#ifndef OPS_DEVICE_H
#define OPS_DEVICE_H

#include "entrain/device.h"
#include "run/device_list.h"

typedef struct eni_device {
    const en_device *ops;
    en_ctx *ctx;
} eni_device;

/* How a device is opened. */
typedef struct eni_device_options {
    const char *plugin_dir;
    int threads;    /* >= 1 */
    uint32_t flags; /* EN_OPEN_* */
    int index;      /* which one if the spec gives no index: "cuda", not "cuda:1" */
} eni_device_options;

/* Parses --device (run/device_list.h): "auto" becomes cpu if it was built, else ref. EN_EINVAL, logged, if it
 * is invalid. */
en_status eni_device_list_parse(const char *spec, const char *plugin_dir, eni_device_list *list_out);

/* Opens one device: "ref", "cpu", "cuda", any with an index, or "auto". All but ref are
 * PLUGIN_DIR/device_NAME.so. Opened several times, each is a device of its own, to be used by one thread at a
 * time. Before such a library is loaded, this sets OMP_NUM_THREADS=threads and OMP_WAIT_POLICY=passive in the
 * environment of this process, and unsets the variables that bind threads to cores or limit their number
 * (each rank would bind its threads to the same first core; taskset still restricts a process): OpenMP reads
 * them once, when it is loaded, and with its default policy two workers with two threads each on two cores
 * spin each other down to a sixteenth of their speed. So call it while no other thread reads the environment,
 * before anything else loads OpenMP. (cuda does not compute on the host: it only gets
 * CUDA_DEVICE_ORDER=PCI_BUS_ID, unless the user has set it, so that `entrain gpus` and nvidia-smi count
 * alike.) EN_ENOENT, EN_EFORMAT, EN_EVERSION, EN_EUNSUPPORTED, logged with the remedy. A loaded library is
 * never unloaded. */
en_status eni_device_open_with(const char *spec, const eni_device_options *options, eni_device *device_out);
/* The same without flags, index 0. */
en_status eni_device_open(const char *spec, const char *plugin_dir, int threads, eni_device *device_out);

/* Whether the library of a device (not "ref") is in the folder. Loads nothing. */
bool eni_device_is_built(const char *name, const char *plugin_dir);

/* The checked table of the device NAME ("cuda"), without opening it: for calls of its `gpu` that need no
 * context. Same errors. eni_device_host: their first argument. */
en_status eni_device_load(const char *name, const char *plugin_dir, const en_device **table_out);
const en_device_host *eni_device_host(void);

/* Safe on a zeroed struct and twice. */
void eni_device_close(eni_device *device);

/* Whether the spec names GPUs: "cuda", "cuda:1", "cuda:0,cuda:1". */
bool eni_device_is_gpu(const char *spec);

/* The table that is linked in. */
const en_device *eni_ref_device(void);

/* ---- the GPUs of a rank among its host's: `worker` picks by these, `entrain gpus -n` shows them ----------- */

/* One GPU per rank. Each of the L ranks of a host has G/L of its G GPUs in a row and uses the first; if there
 * are more ranks than GPUs, GPUs are assigned in turn:
 *
 *     G = 4, L = 2     0 . 1 .          G = 2, L = 3     0,2 1           -1 without GPUs */
static inline int eni_gpu_of_rank(int local_rank, int nlocal, int ngpus)
{
    if (ngpus < 1 || nlocal < 1 || local_rank < 0) return -1;
    const int slice = ngpus / nlocal > 1 ? ngpus / nlocal : 1;
    return (int)((long long)local_rank * slice % ngpus);
}

/* `n` GPUs per rank, for a network on several: rank r has the slice [r n, (r+1) n), of which this is the
 * first. -1 if that does not exist; with is_shared existing slices are assigned in turn. n = 1: as above,
 * always shared.
 *
 *     G = 4, n = 2, L = 2     0 0 1 1   G = 5, n = 2, L = 3, shared     0,2 0,2 1 1 . */
static inline int eni_gpu_slice(int local_rank, int nlocal, int ngpus, int n, bool is_shared)
{
    if (n == 1) return eni_gpu_of_rank(local_rank, nlocal, ngpus);
    if (n < 1 || ngpus < n || nlocal < 1 || local_rank < 0) return -1;
    const int nslices = ngpus / n;
    return nlocal <= nslices || is_shared ? local_rank % nslices * n : -1;
}

/* The GPUs that a rank asks for. */
typedef struct eni_gpu_want {
    const char *spec; /* --device: "cuda", "cuda:1", "cuda:0,cuda:1", "cuda:all" */
    int n;            /* GPUs per rank if the spec gives no index; 0: all, divided among the host's ranks */
    bool is_shared;   /* --gpu-sharing */
} eni_gpu_want;

/* Pure: the GPUs of a rank among `count`: those that the spec names, else its slice; *n_out of index_out.
 * EN_EINVAL, logged with the remedy. */
en_status eni_gpu_pick(const eni_gpu_want *want, int count, int local_rank, int nlocal,
                       int32_t index_out[ENI_DEVICES_MAX], int *n_out);

/* Checks that there are GPUs, enough for each of `nlocal` ranks: EN_OK; EN_EINVAL, EN_EUNSUPPORTED, logged
 * with the remedy. `device` is the GPUs' table. Opens no context. */
en_status eni_gpu_check(const eni_gpu_want *want, int nlocal, const en_device *device,
                        const en_device_host *host);

#endif
