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

#endif
