/* prepared.h - all layers of a network planned for batches of one size, with the memory that they need. */
#ifndef MODELS_PREPARED_H
#define MODELS_PREPARED_H

#include "entrain/model.h"

/* One layer, or the cast in front of the first. */
typedef struct eni_stage {
    en_plan *plan; /* NULL: a view, the output is the input */
    void *y;       /* own memory for the output; unset for a view */
    void *saved;
    const void *in, *out; /* of the last forward: the first layer reads the batch where it is */
    uint32_t first;       /* its tensors in the schema */
    uint32_t ntensors;    /* 0: none; weight, then bias */
} eni_stage;

typedef struct eni_prepared {
    int64_t n;   /* samples */
    int mode;    /* EN_MODEL_TRAIN or EN_MODEL_EVALUATE */
    int is_kept; /* EN_MODEL_KEEP */
    uint64_t used;
    int nstages;
    int first_weights; /* the first stage with weights: where backward ends */
    eni_stage *stages; /* (nstages); the last is the loss, its y float[2] */
    void *dy[2];       /* gradients of activations, used in turn from dy[0] on; train only */
    void *workspace;   /* one call's scratch */
    void *memory;      /* the device memory that all of the above lie in */
} eni_prepared;

/* Plans and allocates, for activations of type dtype. EN_ENOMEM, or what the device says (logged there). */
en_status eni_prepared_init(const en_schema *schema, const en_device *device, en_ctx *ctx, uint32_t dtype,
                            int64_t n, int mode, eni_prepared *prepared_out);

/* Safe on a zeroed struct. */
void eni_prepared_fini(eni_prepared *prepared, const en_device *device, en_ctx *ctx);

#endif
