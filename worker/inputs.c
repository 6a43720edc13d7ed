/* inputs.c - what a rank can find wrong by itself, before it meets anybody: whoever waits for it would learn
 * it later, and from somebody else. */

#include "config/folders.h"
#include "config/outputs.h"
#include "config/units.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/weights.h"
#include "worker/worker.h"

static en_status check_stragglers(const eni_worker *w)
{
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank < w->world.nranks)
            continue;
        eni_error("worker", "--straggler=%s: write RANK:FACTOR with a rank below %d, such as 1:3",
                  w->config->straggler.item[i], w->world.nranks);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* Rank 0's weights become everybody's. A rank that has none yet may become rank 0. */
static en_status read_init(eni_worker *w)
{
    if (w->config->init == NULL || w->world.rank > 0 || w->config->resume != NULL) return EN_OK;
    w->init = eni_alloc_array(w->schema.count, sizeof *w->init);
    if (w->init == NULL) return EN_ENOMEM;
    return eni_weights_load(w->config->init, &w->schema, w->init);
}

/* Rank 0 takes it for all ranks, before it meets them; where a launcher has started us, that one has. */
static en_status take_out(eni_worker *w)
{
    const eni_config *c = w->config;
    EN_TRY(eni_folder_check("--out", c->out));
    w->out_fd = (int)c->out_fd;
    if (c->out == NULL || c->result_fd >= 0) return EN_OK;
    return w->world.rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &w->out_fd) : eni_out_ask(c, c->out);
}

en_status eni_inputs_check(eni_worker *w)
{
    EN_TRY(check_stragglers(w));
    EN_TRY(take_out(w));
    if (w->world.rank <= 0) {
        EN_TRY(eni_target_check("--save", w->config->save));
        EN_TRY(eni_target_check("--trace", w->config->trace)); /* may lie in --out */
    }
    return read_init(w);
}
