/* prepared.h - the nodes of a network, or of a part of it, planned for batches of one size, with the memory that a
 * step needs.
 *
 * Values (outputs, data saved by forward, gradients, scratch) live from the first call that writes them to the last that
 * reads them; memory_plan.h lays them out. An output that no backward call reads is freed as soon as its readers are done;
 * in evaluation that applies to all. Between forward and backward a part exchanges its ends: its last node's output lives
 * until then, the gradient of that from then on. The gradient of a part's input lives to the end: the part's first
 * operation writes it, last in backward. A batch is in flight from its forward to its backward: all batches in flight of a
 * size share its plans, and each has its own memory.
 *
 * Joining gradients. A node's output may have several readers. Backward goes from the last node to the first, so the last
 * reader's contribution comes first and starts the gradient; each later one is added to it, in that order. A contribution
 * that is the gradient of a finished node (of a sum, or of the tensor that a batch normalisation adds) is not copied: its
 * memory becomes the input's gradient. */
#ifndef MODELS_PREPARED_H
#define MODELS_PREPARED_H

#include <stdbool.h>

#include "entrain/model.h"

/* How a finished contribution joins the gradient of an input. */
typedef enum eni_join { ENI_JOIN_NONE, ENI_JOIN_COPY, ENI_JOIN_ADD } eni_join;

typedef struct eni_contribution {
    eni_join join;
    void *from, *to;
    uint64_t bytes;
    en_plan *add; /* for ENI_JOIN_ADD; borrowed from the size */
} eni_contribution;

/* A model with keeps_weights: what the plan of a node has made of its weights (en_args.kept), for all batches in flight. */
typedef struct eni_kept_weights {
    void *memory;
    uint64_t of[2]; /* the model's number of the weights that forward, backward_data had last; 0: none */
} eni_kept_weights;

/* The addresses of one node's values. For a part's input only dy is set. */
typedef struct eni_step_node {
    en_plan *plan;    /* NULL: the part's input, or a view, whose output is its input */
    void *x, *x2, *y; /* NULL: the part's input, which the caller owns */
    void *saved;
    void *scratch[2];          /* of forward, of backward */
    void *dy, *dx;             /* dx NULL: not needed */
    bool has_backward;         /* weights lie here or above */
    eni_contribution joins[2]; /* after its backward: for x and x2 */
} eni_step_node;

typedef struct eni_prepared {
    int64_t n;     /* samples */
    int mode;      /* EN_MODEL_TRAIN or EN_MODEL_EVALUATE */
    bool is_kept;  /* EN_MODEL_KEEP */
    uint64_t used; /* when the model last used it */
    uint32_t nnodes, in_flight;
    eni_step_node *nodes;   /* (in_flight, nnodes), as in the schema; y of the loss is float[2] */
    eni_kept_weights *kept; /* (nnodes) */
    uint64_t kept_bytes;    /* of all of them */
    uint32_t nadds;
    en_plan **adds;             /* (nadds) sums of gradients, by extent */
    void *memory;               /* device memory of all values, (in_flight) times `bytes` */
    uint64_t bytes;             /* of a batch */
    uint64_t bytes_live;        /* most bytes live at one time: the lower bound of any plan */
    uint64_t y_bytes, dx_bytes; /* a part's ends, for one batch: its output, and the gradient of its input */
} eni_prepared;

/* Plans and allocates by fully resolved options: a type, a range of nodes, batches in flight (for training). EN_EINVAL (a
 * batch normalisation with one value per channel, a batch too large to address), EN_ENOMEM, or the device's status (logged
 * there). */
en_status eni_prepare(const en_schema *schema, const en_device *device, en_ctx *ctx,
                      const en_model_options *options, int64_t n, int mode, eni_prepared *prepared_out);

/* Safe on a zeroed struct. */
void eni_prepared_fini(eni_prepared *prepared, const en_device *device, en_ctx *ctx);

#endif
