/* result_gpu.h - what a run on GPUs says of them in result.json; nothing on host devices. */
#ifndef WORKER_RESULT_GPU_H
#define WORKER_RESULT_GPU_H

#include <jansson.h>

#include "worker/worker.h"

/* Into a rank's own report, "gpu": which one, what this rank took of it, who else was there, how many steps
 * were replayed, what was copied, what overflowed. */
void eni_result_gpu_rank(const eni_worker *w, json_t *report);

/* Into the result: precision, tf32, deterministic, graph, and of the ranks' reports the sum of overflows and
 * whether anybody else used a GPU. `reports` NULL: a run that was cut short. */
void eni_result_gpu_run(const eni_worker *w, const json_t *reports, json_t *result);

/* "nccl", "cuda-ipc": what carries gradients where vectors stay on GPUs; NULL elsewhere. */
const char *eni_result_gpu_transport(const eni_worker *w);

#endif
