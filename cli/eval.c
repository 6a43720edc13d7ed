/* eval.c - `entrain eval` and `entrain predict`: saved weights on the whole test set, divided among several
 * processes; and opening the model on its device (compute.h). */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/processes.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "data/dataset.h"
#include "models/evaluation.h"
#include "models/registry.h"
#include "models/formats/weights.h"
#include "ops/device.h"
#include "runtime/net/host_info.h"

/* Picks the GPU if --device does not name one. */
static en_status choose_gpu(const char *spec, const char *plugin_dir, int local_rank, int nlocal,
                            int *index_out)
{
    const en_device *table;
    const eni_gpu_want want = {.spec = spec, .n = 1};
    int32_t count = 0, index[ENI_DEVICES_MAX];
    int n;
    if (!eni_device_is_gpu(spec)) return EN_OK;
    EN_TRY(eni_device_load("cuda", plugin_dir, &table));
    EN_TRY(table->gpu->count(eni_device_host(), &count));
    EN_TRY(eni_gpu_pick(&want, count, local_rank, nlocal, index, &n));
    *index_out = index[0];
    return EN_OK;
}

static en_status options_of(const eni_config *c, const eni_device *device, en_model_options *options_out)
{
    *options_out = (en_model_options){.size = sizeof *options_out, .dtype = eni_config_dtype(c)};
    if (options_out->dtype == EN_F32 || !(device->ops->flags & EN_DEVICE_HOST)) return EN_OK;
    return eni_fail(EN_EINVAL, "device", "--precision=fp16: %s has no fp16; omit it, or use --device=cuda",
                    device->ops->name);
}

en_status eni_compute_open(const eni_config *config, const char *plugin_dir, int threads, int local_rank,
                           int nlocal, const en_schema *schema, eni_compute *compute_out)
{
    eni_compute compute = {0};
    en_model_options options;
    eni_device_options how = {
        .plugin_dir = plugin_dir, .threads = threads, .flags = eni_config_open_flags(config)};
    EN_TRY(choose_gpu(config->device, plugin_dir, local_rank, nlocal, &how.index));
    EN_TRY(eni_device_open_with(config->device, &how, &compute.device));
    en_status st = options_of(config, &compute.device, &options);
    if (st == EN_OK)
        st = en_model_new(schema, compute.device.ops, compute.device.ctx, &options, &compute.model);
    if (st != EN_OK)
        eni_device_close(&compute.device);
    else
        *compute_out = compute;
    return st;
}

void eni_compute_close(eni_compute *compute)
{
    en_model_free(compute->model);
    compute->model = NULL;
    eni_device_close(&compute->device);
}

/* ---- the test set over several processes -------------------------------------------------------------------
 *
 * They take batches from one counter and write each result to its position in shared memory; the caller adds up
 * and prints in file order. So neither the sums nor the lines depend on the number of processes. */

typedef struct answer {
    double probability;
    int32_t class, label;
} answer;

/* Shared by the processes; followed by (nbatches) means of losses and hits, then (count) answers. */
typedef struct board {
    _Atomic uint64_t next; /* batch */
    char device[112];
} board;

typedef struct evaluation {
    const eni_config *config;
    const char *plugin_dir;
    en_schema schema;
    eni_dataset *dataset;
    float *flat; /* the weights, then the state */
    eni_set set;
    uint64_t nbatches;
    int n, threads;
    board *board; /* of this process */
} evaluation;

static float *pairs_of(const board *b)
{
    return (float *)(uintptr_t)(b + 1);
}

static answer *answers_of(const evaluation *e, const board *b)
{
    return (answer *)(void *)(pairs_of(b) + 2 * e->nbatches);
}

static bool wants_answers(const evaluation *e)
{
    return e->config->program == ENI_PREDICT;
}

/* ---- in a process ---- */

static uint64_t next_batch(void *user)
{
    const evaluation *e = user;
    return atomic_fetch_add(&e->board->next, 1);
}

/* The largest output, the first of equal ones; its share of the sum of all exponentials, which is the same
 * for logits and for log-probabilities: not finite if an output is not a number or the largest is infinite. */
static void find_answer(const float *outputs, int32_t n, answer *answer_out)
{
    int32_t best = 0;
    double sum = 0;
    for (int32_t k = 1; k < n; k++)
        if (outputs[k] > outputs[best]) best = k;
    for (int32_t k = 0; k < n; k++)
        sum += exp((double)outputs[k] - (double)outputs[best]);
    answer_out->class = best;
    answer_out->probability = 1 / sum;
}

static void take_batch(void *user, uint64_t first, uint64_t n, const float pair[2], const float *outputs)
{
    const evaluation *e = user;
    memcpy(pairs_of(e->board) + 2 * (first / e->set.batch), pair, 2 * sizeof *pair);
    for (uint64_t i = 0; i < n && wants_answers(e); i++)
        find_answer(outputs + i * (uint64_t)e->schema.outputs, (int32_t)e->schema.outputs,
                    &answers_of(e, e->board)[first + i]);
}

static void fill(void *user, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    const evaluation *e = user;
    eni_dataset_fill_test(e->dataset, first, n, x_out, target_out);
    for (uint64_t i = 0; i < n && wants_answers(e); i++)
        answers_of(e, e->board)[first + i].label = ((const int32_t *)target_out)[i];
}

static int evaluate_some(const eni_process *self)
{
    evaluation e = *(const evaluation *)self->user;
    eni_compute compute = {0};
    eni_set_score ignored;
    e.board = self->shared;
    e.set.user = &e;
    en_status st =
        eni_compute_open(e.config, e.plugin_dir, e.threads, self->rank, self->n, &e.schema, &compute);
    if (st == EN_OK && self->rank == 0)
        snprintf(e.board->device, sizeof e.board->device, "%s",
                 compute.device.ops->describe(compute.device.ctx));
    if (st == EN_OK)
        st = eni_model_evaluate_set(compute.model, e.flat, e.flat + e.schema.count, &e.set, &ignored);
    eni_compute_close(&compute);
    return eni_signals_exit_code(st, -1);
}

/* ---- before and after ---- */

static en_status check_predict(const eni_config *c, const en_schema *schema)
{
    if (schema->loss == EN_OP_MSE)
        return eni_fail(EN_EINVAL, "predict",
                        "--model=%s does not classify samples; `entrain eval` prints its loss", c->model);
    if (c->precision != ENI_PRECISION_FP32)
        return eni_fail(EN_EINVAL, "predict",
                        "--precision: probabilities are computed in fp32; omit it, or use `entrain eval`");
    return EN_OK;
}

/* One thread each unless --threads says more, so that results do not depend on the number of processes. */
static void share_out(evaluation *e)
{
    const eni_config *c = e->config;
    e->threads = c->threads > 0 ? (int)c->threads : 1;
    int64_t n = eni_device_is_gpu(c->device) ? 1 : eni_host_info_cores() / e->threads;
    if (c->processes > 0) n = c->processes;
    if (n > ENI_PROCESSES_MAX) n = ENI_PROCESSES_MAX;
    if ((uint64_t)n > e->nbatches) n = (int64_t)e->nbatches;
    e->n = n < 1 ? 1 : (int)n;
    if (c->processes > e->n && !c->quiet)
        eni_info(wants_answers(e) ? "predict" : "eval",
                 "-n %lld: %llu samples are %llu batch%s of %llu, at most one process each",
                 (long long)c->processes, (unsigned long long)e->set.count, (unsigned long long)e->nbatches,
                 e->nbatches == 1 ? "" : "es", (unsigned long long)e->set.batch);
}

static en_status open_all(evaluation *e)
{
    const eni_config *c = e->config;
    eni_data_options options = {.name = c->data,
                                .folder = c->data_dir,
                                .limit_test = (uint64_t)c->limit_test_samples,
                                .seed = (uint64_t)c->seed,
                                .transform = eni_config_transform(c)};
    en_data_shape shape;
    EN_TRY(eni_dataset_shape(&options, &shape));
    EN_TRY(eni_network_schema("--model", c->model, &shape, &e->schema));
    if (wants_answers(e)) EN_TRY(check_predict(c, &e->schema));
    options.want = eni_data_want_of(&e->schema);
    EN_TRY(eni_dataset_open(&options, &e->dataset));
    e->flat = eni_alloc_array(e->schema.count + e->schema.nstate, sizeof(float));
    if (e->flat == NULL) return EN_ENOMEM;
    EN_TRY(eni_weights_load(c->init, &e->schema, e->flat, e->flat + e->schema.count));
    const uint64_t count = e->dataset->split[ENI_TEST].count, batch = (uint64_t)c->eval_batch_size;
    e->set = (eni_set){.count = count,
                       .batch = batch < count ? batch : count,
                       .fill = fill,
                       .next = next_batch,
                       .take = take_batch,
                       .sample_bytes = e->dataset->sample_floats * sizeof(float),
                       .target_bytes = eni_dataset_target_bytes(e->dataset)};
    e->nbatches = (count + e->set.batch - 1) / e->set.batch;
    share_out(e);
    return EN_OK;
}

/* "INDEX LABEL CLASS PROBABILITY". Outputs that are not numbers have no largest one: prints nothing then. */
static en_status print_answers(const evaluation *e, const board *b)
{
    const answer *answers = answers_of(e, b);
    for (uint64_t i = 0; i < e->set.count; i++)
        if (!isfinite(answers[i].probability))
            return eni_fail(
                EN_ENONFINITE, "predict",
                "--init=%s: the network's output for sample %" PRIu64
                " is not finite: training has diverged, or --model or --normalize is not what the "
                "weights were trained with",
                e->config->init, i);
    for (uint64_t i = 0; i < e->set.count; i++)
        printf("%" PRIu64 " %d %d %.6f\n", i, answers[i].label, answers[i].class, answers[i].probability);
    return EN_OK;
}

/* The result of eval, and printed beside predict's. EN_ENONFINITE, logged: the loss is not finite. */
static en_status print_score(const evaluation *e, const board *b, FILE *stream)
{
    double loss = 0, correct = 0;
    for (uint64_t at = 0; at < e->nbatches; at++) {
        const float *pair = pairs_of(b) + 2 * at;
        const uint64_t left = e->set.count - at * e->set.batch, n = left < e->set.batch ? left : e->set.batch;
        loss += (double)pair[0] * (double)n;
        correct += (double)pair[1];
    }
    const double n = (double)e->set.count;
    if (!isfinite(loss))
        return eni_fail(
            EN_ENONFINITE, "eval",
            "--init=%s: the average loss is not finite: training has diverged, or --model or --normalize is "
            "not what the weights were trained with",
            e->config->init);
    if (e->dataset->classes > 0)
        fprintf(stream, "Test set: Average loss: %.4f, Accuracy: %.0f/%.0f (%.2f%%)\n", loss / n, correct, n,
                correct / n * 100);
    else
        fprintf(stream, "Test set: Average loss: %.6f\n", loss / n);
    return EN_OK;
}

static en_status evaluate(const evaluation *e, int signal_fd)
{
    const size_t bytes = sizeof(board) + e->nbatches * 2 * sizeof(float) +
                         (wants_answers(e) ? e->set.count * sizeof(answer) : 0);
    const eni_processes processes = {.who = wants_answers(e) ? "predict" : "eval",
                                     .n = e->n,
                                     .shared_bytes = bytes,
                                     .main = evaluate_some,
                                     .user = (void *)(uintptr_t)e,
                                     .signal_fd = signal_fd};
    void *shared;
    const int64_t begin = eni_now_ns();
    EN_TRY(eni_processes_run(&processes, &shared));
    const double seconds = (double)(eni_now_ns() - begin) * 1e-9;
    const board *b = shared;
    en_status st = wants_answers(e) ? print_answers(e, b) : EN_OK;
    if (st == EN_OK && (!wants_answers(e) || !e->config->quiet))
        st = print_score(e, b, wants_answers(e) ? stderr : stdout);
    if (st == EN_OK && !e->config->quiet)
        fprintf(stderr, "Time elapsed: %.2f s, %.0f samples/s, %d process%s on %s\n", seconds,
                (double)e->set.count / seconds, e->n, e->n == 1 ? "" : "es", b->device);
    eni_processes_release(shared, bytes);
    return st;
}

en_status eni_command_eval(const eni_command_context *context)
{
    evaluation e = {.config = context->config, .plugin_dir = context->plugin_dir};
    en_status st = open_all(&e);
    if (st == EN_EIO || st == EN_ENONFINITE || st == EN_ENOMEM) st = EN_EINVAL; /* a file, or the machine */
    if (st == EN_OK) st = evaluate(&e, context->signal_fd);
    eni_free(e.flat);
    eni_dataset_close(e.dataset);
    en_schema_fini(&e.schema);
    return st;
}
