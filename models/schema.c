/* schema.c - builds a network's schema, and the initial values of its tensors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "entrain/model.h"
#include "models/node.h"
#include "ops/ref/ref.h"

/* Sets the size of the loss's input, and the spec: two ranks' specs are equal exactly if name and options are. */
static en_status conclude(en_schema *schema, const eni_options *options)
{
    const char *canonical = eni_options_canonical(options);
    const en_node *loss = &schema->nodes[schema->nnodes - 1];
    schema->outputs = loss->op.x.h * loss->op.x.w * loss->op.x.c;
    schema->loss = loss->op.kind;
    const size_t bytes = strlen(schema->network->name) + strlen(canonical) + 2;
    schema->spec = eni_alloc(bytes);
    if (schema->spec == NULL) return EN_ENOMEM;
    snprintf(schema->spec, bytes, "%s%s%s", schema->network->name, canonical[0] != '\0' ? ":" : "",
             canonical);
    return EN_OK;
}

en_status en_schema_init_for(const en_network *network, const char *options, const en_data_shape *data,
                             en_schema *schema_out)
{
    const en_data_shape unknown = {0};
    en_schema schema = {.network = network};
    eni_options *resolved;
    EN_TRY(eni_options_parse("model", network->name, network->options, options, &resolved));
    en_status st = eni_graph_build(network, resolved, data != NULL ? data : &unknown, &schema);
    if (st == EN_OK) st = conclude(&schema, resolved);
    eni_options_free(resolved);
    if (st != EN_OK)
        en_schema_fini(&schema);
    else
        *schema_out = schema;
    return st;
}

void en_schema_fini(en_schema *schema)
{
    eni_free(schema->spec);
    eni_free(schema->nodes);
    eni_free(schema->tensors);
    eni_free(schema->buffers);
    *schema = (en_schema){0};
}

/* ---- initial values ---- */

/* The quantile of the normal distribution: Wichura 1988, algorithm AS 241, PPND16, to 1e-16. 0 < p < 1. Uses our own
 * logarithm and the exact square root, so it is the same on every machine, unlike libm's cos and sin. */
static double polynomial(const double *c, double x)
{
    double sum = c[7];
    for (int i = 6; i >= 0; i--)
        sum = sum * x + c[i];
    return sum;
}

static double normal_quantile(double p)
{
    static const double a[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                               1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                               3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[] = {1.0000000000000000000e+0, 4.2313330701600911252e+1, 6.8718700749205790830e+2,
                               5.3941960214247511077e+3, 2.1213794301586595867e+4, 3.9307895800092710610e+4,
                               2.8729085735721942674e+4, 5.2264952788528545610e+3};
    static const double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                               3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[] = {1.00000000000000000000e0,  2.05319162663775882187e0,
                               1.67638483018380384940e0,  6.89767334985100004550e-1,
                               1.48103976427480074590e-1, 1.51986665636164571966e-2,
                               5.47593808499534494600e-4, 1.05075007164441684324e-9};
    static const double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                               1.78482653991729133580e0,  2.96560571828504891230e-1,
                               2.65321895265761230930e-2, 1.24266094738807843860e-3,
                               2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[] = {1.00000000000000000000e0,  5.99832206555887937690e-1,
                               1.36929880922735805310e-1, 1.48753612908506148525e-2,
                               7.86869131145613259100e-4, 1.84631831751005468180e-5,
                               1.42151175831644588870e-7, 2.04426310338993978564e-15};
    const double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * polynomial(a, r) / polynomial(b, r);
    }
    const double r = sqrt(-eni_ref_log(q < 0 ? p : 1 - p));
    const double x = r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6)
                            : polynomial(e, r - 5) / polynomial(f, r - 5);
    return q < 0 ? -x : x;
}

/* kaiming_uniform(a) is uniform in +-sqrt(3) * gain / sqrt(fan_in), gain = sqrt(2 / (1 + a^2)) (He et al.,
 * ICCV'15); a = sqrt(5) gives 1 / sqrt(fan_in), which PyTorch uses for the bias too. */
static double first_scale(const en_model_tensor *tensor)
{
    return tensor->init == EN_INIT_NORMAL_FAN_OUT ? sqrt(2 / (double)tensor->fan_out)
                                                  : 1 / sqrt((double)tensor->fan_in);
}

static float first_value(const en_model_tensor *tensor, double scale, const eni_rng_key *key, uint64_t i)
{
    switch (tensor->init) {
    case EN_INIT_ZERO: return 0;
    case EN_INIT_ONE: return 1;
    case EN_INIT_NORMAL_FAN_OUT: {
        const double p =
            eni_rng_unit(key, i) + 0x1p-54; /* the middle of one of 2^53 steps, except the last */
        return (float)(normal_quantile(p < 1 ? p : 0x1.fffffffffffffp-1) * scale);
    }
    default: return (float)((2 * eni_rng_unit(key, i) - 1) * scale);
    }
}

void en_schema_init_param(const en_schema *schema, uint64_t seed, float *param)
{
    memset(param, 0, schema->count * sizeof *param);
    for (uint32_t t = 0; t < schema->ntensors; t++) {
        const en_model_tensor *tensor = &schema->tensors[t];
        if (tensor->kind != EN_TENSOR_WEIGHT) continue;
        const eni_rng_key key = {.seed = seed, .purpose = ENI_RNG_INIT, .rank = 0, .step = t};
        const double scale = first_scale(tensor);
        for (uint64_t i = 0; i < tensor->count; i++)
            param[tensor->offset + i] = first_value(tensor, scale, &key, i);
    }
}

void en_schema_init_state(const en_schema *schema, float *state)
{
    memset(state, 0, schema->nstate * sizeof *state);
    for (uint32_t b = 0; b < schema->nbuffers; b++) {
        const en_model_tensor *buffer = &schema->buffers[b];
        for (uint64_t i = 0; i < buffer->count && buffer->init == EN_INIT_ONE; i++)
            state[buffer->offset + i] = 1;
    }
}
