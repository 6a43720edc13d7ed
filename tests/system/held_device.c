/* held_device.c - the device that held.h puts in place of "cpu": ref, but it stops or fails where the test
 * asks for that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ops/device.h"
#include "tests/system/held.h"

struct en_ctx {
    en_ctx *ref;
    int index;
};

struct en_plan {
    en_plan *ref;
    int index;
    int is_paced; /* it is a linear layer, and the test wants those to sleep */
};

static const en_device_host *program;

static const char *path_of(const char *word, int index, const char *turn, char path_out[HELD_PATH])
{
    snprintf(path_out, HELD_PATH, "%s/%s-%d-%d-%s", getenv("XDG_RUNTIME_DIR"), word, (int)getpid(), index,
             turn);
    return path_out;
}

/* Acts as the files say. For the first file that is there, "is-held" informs the test. */
static en_status obey(int index, const char *turn)
{
    const struct timespec nap = {0, 1000000};
    char hold[HELD_PATH], fail[HELD_PATH], is_held[HELD_PATH];
    if (getenv("XDG_RUNTIME_DIR") == NULL) return EN_OK;
    if (access(path_of("fail", index, turn, fail), F_OK) == 0) {
        char text[64];
        snprintf(text, sizeof text, "cpu:%d has failed in %s, as it was told", index, turn);
        program->log(0, "held", text);
        return EN_EIO;
    }
    if (access(path_of("hold", index, turn, hold), F_OK) != 0) return EN_OK;
    FILE *file = fopen(path_of("is-held", index, turn, is_held), "we");
    if (file != NULL) fclose(file);
    while (access(hold, F_OK) == 0)
        nanosleep(&nap, NULL);
    return EN_OK;
}

static en_status held_open(const en_device_config *config, en_ctx **ctx_out)
{
    program = config->host;
    en_ctx *ctx = *ctx_out = calloc(1, sizeof *ctx);
    if (ctx == NULL) return EN_ENOMEM;
    ctx->index = config->index;
    return eni_ref_device()->open(config, &ctx->ref);
}

static void held_close(en_ctx *ctx)
{
    eni_ref_device()->close(ctx->ref);
    free(ctx);
}

static const char *held_describe(en_ctx *ctx)
{
    return eni_ref_device()->describe(ctx->ref);
}

static int wants_pace(void)
{
    char path[HELD_PATH];
    if (getenv("XDG_RUNTIME_DIR") == NULL) return 0;
    snprintf(path, sizeof path, "%s/is-paced", getenv("XDG_RUNTIME_DIR"));
    return access(path, F_OK) == 0;
}

static void pace(const en_plan *plan)
{
    const struct timespec nap = {0, HELD_PACE_MS * 1000000};
    if (plan->is_paced) nanosleep(&nap, NULL);
}

static en_status held_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    en_plan *plan = *plan_out = calloc(1, sizeof *plan);
    if (plan == NULL) return EN_ENOMEM;
    plan->index = ctx->index;
    plan->is_paced = op->kind == EN_OP_LINEAR && wants_pace();
    const en_status st = eni_ref_device()->plan(ctx->ref, op, &plan->ref);
    if (st != EN_OK) free(plan);
    return st;
}

static void held_plan_free(en_plan *plan)
{
    if (plan == NULL) return;
    eni_ref_device()->plan_free(plan->ref);
    free(plan);
}

static void held_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    eni_ref_device()->plan_info(plan->ref, info_out);
}

static en_status held_forward(en_plan *plan, const en_args *args)
{
    const en_status st = obey(plan->index, HELD_FORWARD);
    pace(plan);
    return st == EN_OK ? eni_ref_device()->forward(plan->ref, args) : st;
}

static en_status held_backward_weights(en_plan *plan, const en_args *args)
{
    const en_status st = obey(plan->index, HELD_BACKWARD);
    pace(plan);
    return st == EN_OK ? eni_ref_device()->backward_weights(plan->ref, args) : st;
}

static en_status held_backward_data(en_plan *plan, const en_args *args)
{
    return eni_ref_device()->backward_data(plan->ref, args);
}

const en_device *en_device_entry(uint32_t host_abi);
__attribute__((visibility("default"))) const en_device *en_device_entry(uint32_t host_abi)
{
    static en_device held;
    held = *eni_ref_device();
    held.name = "cpu";
    held.open = held_open;
    held.close = held_close;
    held.describe = held_describe;
    held.plan = held_plan;
    held.plan_free = held_plan_free;
    held.plan_info = held_plan_info;
    held.forward = held_forward;
    held.backward_weights = held_backward_weights;
    held.backward_data = held_backward_data;
    return host_abi == EN_DEVICE_ABI ? &held : NULL;
}
