/* prepared.h - the nodes of a network, or of a part of it, planned for batches of one size, with the memory that a
 * step needs.
 *
 * Values (outputs, what forward saves, gradients, scratch) live from the first call that writes them to the last
 * that reads them; memory_plan.h lays them out. An output that no backward call reads is given back as soon as
 * its readers are done; in evaluation that is all of them. Between forward and backward lie the ends of a part:
 * the output of its last node until then, the gradient of that from then on. The gradient of what enters is there
 * in the end: a part's first operation reads it, and is the last in backward. A batch is in flight from its forward to
 * its backward: all batches in flight of a size share its plans, and each has memory of its own.
 *
 * Gradients that meet. A node's output may have several readers. Backward goes from the last node to the first,
 * so the last reader's contribution comes first and starts the gradient; each later one is added to it, in the
 * order of the walk. A contribution that is the gradient of a node that is done (of a sum, or of what a batch
 * normalisation adds) is not copied: its memory becomes the input's gradient. */
#ifndef MODELS_PREPARED_H
#define MODELS_PREPARED_H

#include <stdbool.h>

#include "entrain/model.h"

/* What happens to a finished contribution to the gradient of an input. */
typedef enum eni_join { ENI_JOIN_NONE, ENI_JOIN_COPY, ENI_JOIN_ADD } eni_join;

typedef struct eni_contribution {
    eni_join join;
    void *from, *to;
    uint64_t bytes;
    en_plan *add; /* borrowed from the size; of an ENI_JOIN_ADD */
} eni_contribution;

/* One node of the schema: where its values lie. Of what enters a part there is dy alone. */
typedef struct eni_step_node {
    en_plan *plan;    /* NULL: what enters, or a view: the output is the input */
    void *x, *x2, *y; /* NULL: what enters, where the caller has it */
    void *saved;
    void *scratch[2];          /* of forward, of backward */
    void *dy, *dx;             /* dx NULL: not asked for */
    bool has_backward;         /* weights lie here or above */
    eni_contribution joins[2]; /* behind its backward: of x and of x2 */
} eni_step_node;

typedef struct eni_prepared {
    int64_t n;     /* samples */
    int mode;      /* EN_MODEL_TRAIN or EN_MODEL_EVALUATE */
    bool is_kept;  /* EN_MODEL_KEEP */
    uint64_t used; /* the model's: when last */
    uint32_t nnodes, in_flight;
    eni_step_node *nodes; /* (in_flight, nnodes), as the schema's; y of the loss is float[2] */
    uint32_t nadds;
    en_plan **adds;             /* (nadds) sums of gradients, by extent */
    void *memory;               /* the device memory that all values lie in, (in_flight) times `bytes` */
    uint64_t bytes;             /* of a batch */
    uint64_t bytes_live;        /* the most of them that live at one time: what no plan can go below */
    uint64_t y_bytes, dx_bytes; /* of a part's ends, one batch: its output, and the gradient of what enters */
} eni_prepared;

/* Plans and allocates, as the options say, which are whole: a type, a range of nodes, batches in flight (for training).
 * EN_EINVAL (one value a channel for a batch normalisation, a batch too large to count), EN_ENOMEM, or what the
 * device says (logged there). */
en_status eni_prepare(const en_schema *schema, const en_device *device, en_ctx *ctx,
                      const en_model_options *options, int64_t n, int mode, eni_prepared *prepared_out);

/* Safe on a zeroed struct. */
void eni_prepared_fini(eni_prepared *prepared, const en_device *device, en_ctx *ctx);

#endif
