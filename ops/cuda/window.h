/* window.h - windows over an image, as pool.cu and unfold.cu walk them. For .cu files only. */
#ifndef OPS_CUDA_WINDOW_H
#define OPS_CUDA_WINDOW_H

#include "ops/cuda/element.h"

typedef struct eni_window {
    uint32_t h, w, out_h, out_w, packs; /* packs of channels per pixel */
    uint32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
} eni_window;

/* Of an operation whose packs are `width` channels. */
static inline eni_window eni_window_of(const en_plan *plan, int width)
{
    const en_op *op = &plan->op;
    eni_window s;
    s.h = (uint32_t)op->x.h;
    s.w = (uint32_t)op->x.w;
    s.out_h = (uint32_t)plan->y.h;
    s.out_w = (uint32_t)plan->y.w;
    s.packs = (uint32_t)(op->x.c / width);
    s.kernel_h = (uint32_t)op->kernel_h;
    s.kernel_w = (uint32_t)op->kernel_w;
    s.stride_h = (uint32_t)eni_least(op->stride_h, INT32_MAX / 2);
    s.stride_w = (uint32_t)eni_least(op->stride_w, INT32_MAX / 2);
    s.pad_h = (uint32_t)op->pad_h;
    s.pad_w = (uint32_t)op->pad_w;
    return s;
}

#endif
