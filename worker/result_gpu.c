/* result_gpu.c - see result_gpu.h. */
#include "worker/result_gpu.h"

#include "worker/gpus.h"
#include "worker/graph.h"
#include "worker/scaler.h"
#include "worker/vectors.h"

static void set_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

void eni_result_gpu_rank(const eni_worker *w, json_t *report)
{
    if (w->vectors == NULL) return;
    const en_gpu_facts *facts = eni_gpus_facts(w->gpus);
    const eni_scale *scale = eni_scaler_scale(w->scaler);
    eni_gpus_use use;
    eni_gpus_look(w->gpus, &use);
    json_t *gpu = json_object();
    json_object_set_new(gpu, "name", json_string(facts->name));
    set_int(gpu, "index", (uint64_t)facts->index);
    json_object_set_new(gpu, "uuid", json_string(facts->uuid));
    set_int(gpu, "memory_bytes", facts->memory_bytes);
    set_int(gpu, "own_bytes", use.own_bytes); /* 0: the driver does not tell */
    json_object_set_new(gpu, "others", use.is_known ? json_integer(use.others) : json_null());
    set_int(gpu, "graph_steps", eni_graphs_count(w));
    json_object_set_new(gpu, "no_graph_because", json_string(eni_graphs_why_not(w)));
    set_int(gpu, "copied_bytes", eni_vectors_copied(w));
    if (scale != NULL) {
        set_int(gpu, "overflows", scale->overflows);
        set_int(gpu, "samples_overflown", w->tally.overflown);
        json_object_set_new(gpu, "loss_scale", json_real((double)scale->scale));
    }
    json_object_set_new(report, "gpu", gpu);
}

const char *eni_result_gpu_transport(const eni_worker *w)
{
    if (w->vectors == NULL || !eni_worker_is_on_gpu(w) || w->gpu.way == ENI_GPU_ALONE) return NULL;
    return w->gpu.way == ENI_GPU_GROUP ? "nccl" : "cuda-ipc";
}

/* Over the ranks. */
static void add_sums(const json_t *reports, json_t *gpu)
{
    size_t i;
    json_t *r;
    json_int_t overflows = 0, others = 0;
    int is_fp16 = 0, is_known = 0;
    json_array_foreach(reports, i, r)
    {
        const json_t *own = json_object_get(r, "gpu");
        const json_int_t seen = json_integer_value(json_object_get(own, "others"));
        is_fp16 |= json_object_get(own, "overflows") != NULL;
        overflows += json_integer_value(json_object_get(own, "overflows"));
        is_known |= json_is_integer(json_object_get(own, "others"));
        others = seen > others ? seen : others;
    }
    if (is_fp16) json_object_set_new(gpu, "overflows", json_integer(overflows));
    /* not 0: times say little; null: the driver does not tell */
    json_object_set_new(gpu, "others", is_known ? json_integer(others) : json_null());
}

void eni_result_gpu_run(const eni_worker *w, const json_t *reports, json_t *result)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const eni_config *c = w->config;
    if (w->vectors == NULL) return;
    const en_gpu_facts *facts = eni_gpus_facts(w->gpus);
    json_t *gpu = json_object();
    json_object_set_new(gpu, "name", json_string(facts->name));
    set_int(gpu, "index", (uint64_t)facts->index);
    json_object_set_new(gpu, "uuid", json_string(facts->uuid));
    json_object_set_new(gpu, "precision", json_string(precisions[c->precision]));
    json_object_set_new(gpu, "tf32", json_boolean(c->tf32));
    json_object_set_new(gpu, "deterministic", json_boolean(c->deterministic));
    json_object_set_new(gpu, "graph", json_boolean(eni_graphs_count(w) > 0));
    json_object_set_new(gpu, "no_graph_because", json_string(eni_graphs_why_not(w)));
    json_object_set_new(gpu, "vectors", json_string(eni_worker_is_on_gpu(w) ? "gpu" : "staged"));
    json_object_set_new(gpu, "why", json_string(w->gpu.why));
    add_sums(reports, gpu);
    json_object_set_new(result, "gpu", gpu);
}
