/* images.h - who makes images of stored bytes, loader or GPU, and where a GPU has the bytes.
 *
 *     ENI_FORM_CUTS     the training set is on the GPU; a batch brings cuts: which image, from where, mirrored or not
 *     ENI_FORM_BYTES    a batch brings the bytes, too
 *     ENI_FORM_FLOATS   the loader makes them: --resize, sets of floats, a device library without en_gpu.pixels
 *
 * The same bytes in each form. */
#ifndef WORKER_GPU_IMAGES_H
#define WORKER_GPU_IMAGES_H

#include "worker/worker.h"

/* Sets w->gpu.form and pixels, and copies the set if it stays there: before the loader starts. Blocks. EN_EINVAL, logged:
 * --data-on-device=on cannot be. */
en_status eni_images_open(eni_worker *w);
void eni_images_close(eni_worker *w); /* after the prefetch */

/* The form for result.json. */
const char *eni_images_form(const eni_worker *w);

#endif
