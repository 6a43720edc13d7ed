/* trains.c - a program that trains a network of ours through entrain/rank.h: what the program `worker` computes, pushed from
 * outside.
 *
 *     test_job_trains reads|writes|after|steps|noisy|counts|exits|dies|twice|closes SETTING..
 *
 * reads: it may share its weights; writes: they are its own, and it writes to them; after: its tensors are ready after backward;
 * steps: it has an optimizer of its own; noisy: a generator of each rank adds noise to gradients, and memories know its state;
 * counts: only rank 0's memories; exits, dies, twice: rank 1 exits with 0 in its step 20, dies and leaves a child that holds
 * all its descriptors, or joins once more; closes: rank 1 closes its rank there and lives on, while the others compute for long */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entrain/rank.h"
#include "job/job.h"
#include "ops/device.h"

enum { TENSORS_MAX = 16 };

typedef struct trainee {
    const char *how;
    eni_config config;
    eni_job job;
    eni_dataset *dataset;
    eni_device device;
    en_model *model;
    float *init, *x;
    void *target;
    en_rank *rank;
    int accumulate, nfinished;

    /* memories */
    int64_t generator, counts[2]; /* steps; samples */
    float average[3];
    unsigned char last;
} trainee;

static int open_network(trainee *t)
{
    const char *const given[][2] = {{"model", "mlp"},
                                    {"data", "synthetic"},
                                    {"limit-train-samples", "103"},
                                    {"limit-test-samples", "64"}};
    if (eni_config_init(ENI_WORKER, &t->config) != EN_OK) return 0;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (eni_config_set(&t->config, given[i][0], given[i][1], given[i][0]) != EN_OK) return 0;
    if (eni_config_resolve(&t->config) != EN_OK || eni_job_network(&t->job, &t->config) != EN_OK) return 0;
    const eni_data_options data = eni_job_data(&t->job, &t->config);
    const en_schema *schema = &t->job.schema;
    if (eni_dataset_open(&data, &t->dataset) != EN_OK) return 0;
    if (eni_device_open("ref", "", 1, &t->device) != EN_OK) return 0;
    if (en_model_new(schema, t->device.ops, t->device.ctx, NULL, &t->model) != EN_OK) return 0;
    t->init = calloc(schema->count, sizeof *t->init);
    t->x = calloc(64 * t->dataset->sample_floats, sizeof *t->x);
    t->target = calloc(64, eni_dataset_target_bytes(t->dataset));
    en_schema_init_param(schema, (uint64_t)t->config.seed, t->init);
    return schema->ntensors <= TENSORS_MAX;
}

static en_status join(trainee *t, char **settings, int n)
{
    const en_schema *schema = &t->job.schema;
    const int is_noisy = strcmp(t->how, "noisy") == 0, is_counting = strcmp(t->how, "counts") == 0;
    const en_rank_memory memories[] = {
        {.size = sizeof *memories, .dtype = EN_F32, .name = "average", .shape = {3}, .data = t->average},
        {.size = sizeof *memories, .dtype = EN_U8, .name = "last", .data = &t->last},
        {.size = sizeof *memories, .dtype = EN_I64, .name = "counts", .shape = {2, 1}, .data = t->counts},
        {.size = sizeof *memories,
         .flags = EN_MEMORY_EACH,
         .dtype = EN_I64,
         .name = "noise.generator",
         .data = &t->generator}};
    en_rank_tensor tensors[TENSORS_MAX];
    memset(tensors, 0, sizeof tensors);
    for (uint32_t i = 0; i < schema->ntensors; i++) {
        const en_model_tensor *from = &schema->tensors[i];
        tensors[i] =
            (en_rank_tensor){.size = sizeof *tensors, .name = from->name, .initial = t->init + from->offset};
        for (uint32_t d = 0; d < from->ndim; d++)
            tensors[i].shape[d] = (uint64_t)from->shape[d];
    }
    const en_rank_options options = {.abi = EN_RANK_ABI,
                                     .size = sizeof options,
                                     .flags = EN_RANK_ENVIRONMENT | EN_RANK_HAS_ACCURACY |
                                              (strcmp(t->how, "reads") == 0   ? EN_RANK_READS_WEIGHTS
                                               : strcmp(t->how, "steps") == 0 ? EN_RANK_STEPS_ITSELF
                                                                              : 0u),
                                     .ntensors = schema->ntensors,
                                     .tensors = tensors,
                                     .train_samples = 103,
                                     .model = "mlp",
                                     .nmemories = is_noisy      ? 4
                                                  : is_counting ? 3
                                                                : 0,
                                     .memories = memories};
    const en_status st = en_rank_open(&options, (const char *const *)settings, (size_t)n, &t->rank);
    if (st == EN_OK && en_rank_about(t->rank)->first_step == 0)
        t->generator = 1000 + en_rank_about(t->rank)->rank;
    if (st == EN_OK && is_counting) fprintf(stderr, "begins with %d steps\n", (int)t->counts[0]);
    return st;
}

static void remember(trainee *t, const en_rank_batch *b, double loss)
{
    t->counts[0]++;
    t->counts[1] += (int64_t)b->count;
    t->average[1] = t->average[1] * 0.9f + (float)loss * 0.1f;
    t->last = (unsigned char)b->number;
}

/* In [0, 0.01) */
static float noise(trainee *t)
{
    t->generator = (int64_t)((uint64_t)t->generator * UINT64_C(6364136223846793005) + 1442695040888963407u);
    return (float)((uint64_t)t->generator >> 40) * 0x1p-24f * 0.01f;
}

static void misbehave(trainee *t)
{
    const char *const settings[] = {"strategy=ring", "quiet"};
    const en_rank_tensor tensor = {.size = sizeof tensor, .name = "w"};
    const en_rank_options options = {.abi = EN_RANK_ABI,
                                     .size = sizeof options,
                                     .flags = EN_RANK_ENVIRONMENT,
                                     .ntensors = 1,
                                     .tensors = &tensor,
                                     .train_samples = 103};
    en_rank *second;
    if (strcmp(t->how, "closes") == 0) {
        if (en_rank_about(t->rank)->rank == 1) en_rank_close(t->rank);
        sleep(300);
    }
    if (en_rank_about(t->rank)->rank != 1) return;
    if (strcmp(t->how, "exits") == 0) exit(0);
    if (strcmp(t->how, "dies") == 0 && fork() == 0) {
        sleep(8);
        _exit(0);
    }
    if (strcmp(t->how, "dies") == 0) raise(SIGKILL);
    if (strcmp(t->how, "twice") == 0) exit(en_rank_open(&options, settings, 2, &second) != EN_OK ? 3 : 4);
}

static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    trainee *t = user;
    en_status st = EN_OK;
    for (uint32_t i = first + n; i > first && st == EN_OK; i--) {
        if (strcmp(t->how, "noisy") == 0) en_rank_gradient(t->rank, i - 1)[0] += noise(t);
        st = en_rank_ready(t->rank, i - 1);
    }
    return st;
}

/* After: its tensors are ready after backward, in the order of forward. */
static en_status step(trainee *t, const en_rank_batch *b)
{
    const en_schema *schema = &t->job.schema;
    const bool is_after = strcmp(t->how, "after") == 0;
    float *param = en_rank_weights(t->rank, 0), *grad = en_rank_gradient(t->rank, 0);
    en_score score = {0};
    if (b->count > 0) {
        const en_batch batch = {.n = (int64_t)b->count, .x = t->x, .target = t->target};
        eni_dataset_gather(t->dataset, ENI_TRAIN, b->epoch, b->samples, b->count, t->x, t->target);
        if (strcmp(t->how, "writes") == 0) param[0] = param[0] + 0.0f; /* in memory that is mapped: SIGSEGV */
        if (en_model_forward(t->model, param, NULL, &batch) != EN_OK) return EN_EBUG;
        const en_status st = en_model_backward(t->model, param, grad, is_after ? NULL : on_grad_ready, t);
        if (st != EN_OK) return st;
        for (uint32_t i = 0; is_after && i < schema->ntensors; i++)
            if (en_rank_ready(t->rank, i) != EN_OK) return EN_EBUG;
        if (en_model_result(t->model, &score) != EN_OK) return EN_EBUG;
    }
    const en_rank_score told = {.size = sizeof told,
                                .loss = score.loss,
                                .accuracy = b->count > 0 ? (double)score.correct / (double)b->count : 0};
    remember(t, b, score.loss);
    if (t->nfinished == 20) misbehave(t);
    const en_status st = en_rank_finish(t->rank, &told);
    const float lr = (float)en_rank_about(t->rank)->lr;
    const bool has_mean = ++t->nfinished % t->accumulate == 0;
    for (uint64_t i = 0; st == EN_OK && has_mean && strcmp(t->how, "steps") == 0 && i < schema->count; i++)
        param[i] = param[i] - lr * grad[i];
    return st;
}

static en_status train(trainee *t)
{
    en_rank_batch batch;
    en_status st;
    while ((st = en_rank_next(t->rank, &batch)) == EN_OK &&
           (st = en_rank_begin(t->rank, batch.count)) == EN_OK)
        if ((st = step(t, &batch)) != EN_OK) return st;
    return st == EN_ESTOP ? en_rank_end(t->rank) : st;
}

int main(int argc, char **argv)
{
    trainee t = {.how = argc > 1 ? argv[1] : "", .accumulate = 1};
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "accumulate=", 11) == 0) t.accumulate = atoi(argv[i] + 11);
    if (argc < 2 || !open_network(&t)) return 2;
    en_status st = join(&t, argv + 2, argc - 2);
    for (uint32_t i = 0; st == EN_OK && i < t.job.schema.ntensors; i++)
        if (en_rank_weights(t.rank, i) != en_rank_weights(t.rank, 0) + t.job.schema.tensors[i].offset)
            st = EN_EBUG;
    if (st == EN_OK) st = train(&t);
    en_rank_close(t.rank);
    en_model_free(t.model);
    eni_device_close(&t.device);
    eni_dataset_close(t.dataset);
    en_schema_fini(&t.job.schema);
    eni_config_fini(&t.config);
    free(t.init);
    free(t.x);
    free(t.target);
    if (st != EN_OK) fprintf(stderr, "ended with %d: %s\n", st, en_status_str(st));
    return st == EN_OK ? 0 : 1;
}
