/* device.h - finds, checks and opens a device library. */
#ifndef OPS_DEVICE_H
#define OPS_DEVICE_H

#include "entrain/device.h"

typedef struct eni_device {
    const en_device *ops;
    en_ctx *ctx;
} eni_device;

/* Opens "ref", "cpu", "cuda[:index]", or "auto": cpu where it was built, else ref. All but ref
 * are PLUGIN_DIR/device_NAME.so.
 *
 * Before such a library is loaded, OMP_NUM_THREADS=threads and OMP_WAIT_POLICY=passive are put into the
 * environment of this process: OpenMP reads them once, when it is loaded, and with its default policy two
 * workers with two threads each on two cores spin each other down to a sixteenth of their speed. So call it
 * while no other thread reads the environment, before anything else loads OpenMP.
 *
 * EN_ENOENT, EN_EVERSION, EN_EUNSUPPORTED, logged with the remedy. A loaded library is never unloaded. */
en_status eni_device_open(const char *spec, const char *plugin_dir, int threads, eni_device *device_out);

/* The checked table of the device NAME ("cuda"), without opening it: for what its `gpu` answers before there is
 * a context. Same errors. What those calls take: the host. */
en_status eni_device_load(const char *name, const char *plugin_dir, const en_device **table_out);
const en_device_host *eni_device_host(void);

/* Safe on a zeroed struct and twice. */
void eni_device_close(eni_device *device);

/* The table that is linked in. */
const en_device *eni_ref_device(void);

#endif
