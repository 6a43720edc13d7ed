/* gpu_here.h - does this host have the GPU that a run is to use? Asked before any of its processes is
 * started. */
#ifndef CLI_GPU_HERE_H
#define CLI_GPU_HERE_H

#include "entrain/status.h"

/* `device` is --device. What is no GPU is EN_OK. EN_EINVAL, logged with the remedy: no CUDA in this build, no
 * driver, no GPU, or not this one. EN_EINTR: signal_fd (-1: none) has a signal, which is left there.
 *
 * A child asks: CUDA does not survive a fork, and who starts the processes of a run forks. */
en_status eni_gpu_here(const char *device, const char *plugin_dir, int signal_fd);

#endif
