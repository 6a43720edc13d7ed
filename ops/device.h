/* device.h - finds, checks and opens a device library. */
#ifndef OPS_DEVICE_H
#define OPS_DEVICE_H

#include "entrain/device.h"

typedef struct eni_device {
    const en_device *ops;
    en_ctx *ctx;
} eni_device;

/* How a device is opened. */
typedef struct eni_device_options {
    const char *plugin_dir;
    int threads;    /* >= 1 */
    uint32_t flags; /* EN_OPEN_* */
    int index;      /* which one, where the spec does not say: "cuda", not "cuda:1" */
} eni_device_options;

/* "cuda:1" to "cuda" and 1; "cuda" to "cuda" and -1: not said; "auto" to cpu where it was built, else ref.
 * EN_EINVAL, logged: this is no device. */
enum { ENI_DEVICE_NAME = 16 };
en_status eni_device_parse(const char *spec, const char *plugin_dir, char name_out[ENI_DEVICE_NAME],
                           int *index_out);

/* Opens "ref", "cpu", "cuda[:index]", or "auto". All but ref are PLUGIN_DIR/device_NAME.so.
 *
 * Before such a library is loaded, OMP_NUM_THREADS=threads and OMP_WAIT_POLICY=passive are put into the
 * environment of this process: OpenMP reads them once, when it is loaded, and with its default policy two
 * workers with two threads each on two cores spin each other down to a sixteenth of their speed. So call it
 * while no other thread reads the environment, before anything else loads OpenMP. (cuda does not compute on
 * the host, and may be opened at any time.)
 *
 * EN_ENOENT, EN_EFORMAT, EN_EVERSION, EN_EUNSUPPORTED, logged with the remedy. A loaded library is never
 * unloaded. */
en_status eni_device_open_with(const char *spec, const eni_device_options *options, eni_device *device_out);
/* The same without flags, index 0. */
en_status eni_device_open(const char *spec, const char *plugin_dir, int threads, eni_device *device_out);

/* The checked table of the device NAME ("cuda"), without opening it: for what its `gpu` answers before there
 * is a context. Same errors. What those calls take: the host. */
en_status eni_device_load(const char *name, const char *plugin_dir, const en_device **table_out);
const en_device_host *eni_device_host(void);

/* Safe on a zeroed struct and twice. */
void eni_device_close(eni_device *device);

/* 1 if the spec names a GPU: "cuda", "cuda:1". */
int eni_device_is_gpu(const char *spec);

/* The table that is linked in. */
const en_device *eni_ref_device(void);

/* ---- which GPU of its host a rank computes on: `worker` chooses by it, `entrain gpus -n` shows it ---------
 */

/* Of G GPUs each of the L ranks of the host has a slice of G/L in a row, of which it uses the first: the rest
 * of the slice is for models that span GPUs. With more ranks than GPUs they are dealt out in turns:
 *
 *     G = 4, L = 2     0 . 1 .          G = 2, L = 3     0,2 1           -1 where there is no GPU */
static inline int eni_gpu_of_rank(int local_rank, int nlocal, int ngpus)
{
    if (ngpus < 1 || nlocal < 1 || local_rank < 0) return -1;
    const int slice = ngpus / nlocal > 1 ? ngpus / nlocal : 1;
    return (int)((long long)local_rank * slice % ngpus);
}

/* Pure: the GPU of a rank among `count`: "cuda": as above; "cuda:I": I. EN_EINVAL, logged. */
en_status eni_gpu_pick(const char *spec, int count, int local_rank, int nlocal, int32_t *index_out);

/* There is a GPU, and `spec` names one that is there: EN_OK; EN_EINVAL, EN_EUNSUPPORTED, logged with the
 * remedy. `device` is the one of GPUs. Opens no context. */
en_status eni_gpu_check(const char *spec, const en_device *device, const en_device_host *host);

#endif
