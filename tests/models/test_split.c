/* test_split.c - parts of a network: where the cuts are, which balance; and that a chain of parts computes what the
 * whole network does, byte for byte. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "models/evaluation.h"
#include "models/node.h"
#include "models/prepared.h"
#include "models/split.h"
#include "tests/heard.h"
#include "tests/network.h"
#include "tests/mentions.h"

#define NETWORK(name_, ...)                                                                                  \
    {                                                                                                        \
        .abi = EN_NETWORK_ABI, .size = sizeof(en_network), .name = (name_), .help = "of a test", __VA_ARGS__ \
    }

enum { MOST_STAGES = 4, MOST_CUTS = 64, IN_FLIGHT = 2, SAMPLES = 4 };

/* ---- networks ---------------------------------------------------------------------------------------- */

/* Blocks one behind the other, each with one output, some of which branch inside: a builder gets nothing but the
 * graph, so the seed lies here. */
static struct {
    uint64_t seed, draws;
} drawn;

static uint64_t draw(uint64_t bound)
{
    const eni_rng_key key = {.seed = drawn.seed, .purpose = ENI_RNG_TEST, .rank = 11};
    return eni_rng_below(&key, drawn.draws++, bound);
}

static en_at build_block(en_graph *g, en_at x, int i)
{
    const int64_t channels = 1 + (int64_t)draw(6);
    const char *name = g->name(g, "b%d", i), *other = g->name(g, "b%d.other", i);
    switch (draw(9)) {
    case 0: return en_conv_bias(g, x, name, channels, 3, 1, 1);
    case 1: return en_batchnorm_relu(g, en_conv(g, x, name, channels, 3, 1, 1), other);
    case 2: return en_batchnorm_relu(g, x, name);
    case 3: return en_relu(g, x);
    case 4: return en_add(g, x, x);
    case 5: return en_add_relu(g, en_conv(g, x, name, en_channels(g, x), 3, 1, 1), x);
    case 6: return en_batchnorm_add_relu(g, en_conv(g, x, name, en_channels(g, x), 1, 1, 0), x, other);
    case 7:
        return en_add(g, en_conv(g, x, name, channels, 3, 1, 1),
                      en_conv_bias(g, x, other, channels, 1, 1, 0));
    default: return en_extent_at(g, x).h > 3 ? en_maxpool(g, x, 3, 2, 1) : en_batchnorm(g, x, name);
    }
}

static en_at build_blocks(en_graph *g, en_at x)
{
    drawn.draws = 0;
    const int blocks = 2 + (int)draw(8);
    en_at y = en_conv(g, x, "first", 4, 3, 1, 1);
    for (int i = 0; i < blocks; i++)
        y = build_block(g, y, i);
    y = en_flatten(g, draw(2) ? en_global_mean(g, y) : y); /* a view, or not; and read twice */
    if (draw(2)) y = en_relu(g, en_linear(g, y, "hidden", 5));
    y = en_add(g, en_linear(g, y, "left", 3), en_linear(g, y, "right", 3));
    return draw(2) ? en_cross_entropy(g, y) : en_nll(g, en_log_softmax(g, y));
}

/* Views at a cut: what crosses is read as it is and as a view. */
static en_at build_views(en_graph *g, en_at x)
{
    en_at pooled = en_global_mean(g, en_conv_bias(g, x, "one", 3, 3, 1, 0));
    en_at flat = en_flatten(g, pooled), y = en_linear_relu(g, flat, "fc1", 3);
    y = en_add(g, en_add(g, y, flat), en_flatten(g, pooled));
    return en_mse(g, en_linear(g, y, "fc2", 2));
}

static en_at build_deep(en_graph *g, en_at x)
{
    for (int i = 0; i < ENI_STAGES_MAX + 6; i++)
        x = en_linear(g, x, g->name(g, "l%d", i), 2);
    return en_mse(g, x);
}

static const en_network blocks = NETWORK("blocks", .input = {1, 8, 8, 2}, .build = build_blocks);
static const en_network views = NETWORK("views", .input = {1, 8, 8, 2}, .build = build_views);
static const en_network deep = NETWORK("deep", .input = {1, 1, 1, 2}, .build = build_deep);
static const en_data_shape small = {8, 8, 3, 5};

/* ---- cuts, by the definition ------------------------------------------------------------------------- */

static uint32_t weights_of(const en_schema *s, uint32_t first, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++)
        n += s->nodes[i].ntensors > 0;
    return n;
}

static bool is_legal(const en_schema *s, uint32_t at)
{
    bool crosses[256] = {false};
    int n = 0;
    assert_true(s->nnodes < 256);
    for (uint32_t i = at; i < s->nnodes; i++) {
        const int32_t inputs[] = {s->nodes[i].x, s->nodes[i].x2};
        for (int k = 0; k < 2; k++) {
            int32_t in = inputs[k];
            while (in > 0 && eni_op_is_view(&s->nodes[in].op))
                in = s->nodes[in].x;
            if (in >= 0 && in < (int32_t)at) crosses[in] = true;
        }
    }
    for (uint32_t i = 0; i < at; i++)
        n += crosses[i];
    return n == 1 && weights_of(s, 0, at) > 0 && weights_of(s, at, s->nnodes) > 0;
}

static int64_t adds_of(const en_schema *s, uint32_t first, uint32_t end)
{
    int64_t sum = 0;
    for (uint32_t i = first; i < end; i++)
        if (i > 0) sum += eni_op_multiply_adds(&s->nodes[i].op);
    return sum;
}

/* All splits of a schema into n parts, from the earliest cuts to the latest. */
typedef struct splits {
    const en_schema *schema;
    int n;
    uint32_t cuts[MOST_STAGES + 1]; /* 0, the first nodes of the parts, nnodes */
} splits;

/* The next one; false: there is none. All cuts are 0 at first. */
static bool splits_next(splits *all)
{
    const en_schema *s = all->schema;
    const int last = all->n - 1;
    const bool is_new = all->cuts[all->n] == 0;
    all->cuts[all->n] = s->nnodes;
    if (last == 0) return is_new;
    for (int at = is_new ? 1 : last; at > 0;) {
        const uint32_t before = all->cuts[at - 1];
        uint32_t next = (all->cuts[at] > before ? all->cuts[at] : before) + 1;
        while (next < s->nnodes && !(is_legal(s, next) && weights_of(s, before, next) > 0))
            next++;
        all->cuts[at] = next < s->nnodes ? next : 0;
        if (next < s->nnodes && at == last) return true;
        at += next < s->nnodes ? 1 : -1;
        if (next < s->nnodes) all->cuts[at] = 0;
    }
    return false;
}

static int64_t largest_of(const splits *split)
{
    int64_t largest = 0;
    for (int i = 0; i < split->n; i++) {
        const int64_t part = adds_of(split->schema, split->cuts[i], split->cuts[i + 1]);
        if (part > largest) largest = part;
    }
    return largest;
}

static void parts_tile(const en_schema *s, int n, const eni_part *parts)
{
    assert_true(parts[0].first == 0 && parts[0].input == 0 && parts[0].lo == 0 && parts[0].state_lo == 0);
    for (int i = 0; i < n; i++) {
        const eni_part *p = &parts[i], end = {.first = s->nnodes,
                                              .tensor = s->ntensors,
                                              .lo = s->count,
                                              .buffer = s->nbuffers,
                                              .state_lo = s->nstate};
        const eni_part *next = i + 1 < n ? &parts[i + 1] : &end;
        assert_true(p->end == next->first && p->tensor_end == next->tensor && p->hi == next->lo);
        assert_true(p->buffer_end == next->buffer && p->state_hi == next->state_lo);
        assert_true(p->tensor < p->tensor_end);
        assert_true(p->multiply_adds == adds_of(s, p->first, p->end));
    }
}

static void parts_are_the_same(int n, const eni_part *a, const eni_part *b)
{
    for (int i = 0; i < n; i++)
        assert_true(a[i].first == b[i].first && a[i].end == b[i].end && a[i].input == b[i].input);
}

/* The first of the best ones, by looking at all; a refusal where there is none. */
static void is_balanced(const en_schema *s)
{
    eni_part parts[ENI_STAGES_MAX], again[ENI_STAGES_MAX];
    for (int n = 1; n <= MOST_STAGES; n++) {
        splits all = {s, n, {0}}, best = {0};
        while (splits_next(&all))
            if (best.n == 0 || largest_of(&all) < largest_of(&best)) best = all;
        if (best.n == 0) {
            eni_log_set_level(-1);
            assert_int_equal(eni_split_balance(s, n, parts), EN_EINVAL);
            eni_log_set_level(ENI_LOG_INFO);
            continue;
        }
        assert_int_equal(eni_split_balance(s, n, parts), EN_OK);
        assert_int_equal(eni_split_balance(s, n, again), EN_OK);
        parts_are_the_same(n, parts, again);
        parts_tile(s, n, parts);
        for (int i = 0; i < n; i++)
            assert_int_equal(parts[i].first, best.cuts[i]);
    }
}

static void open_schema(en_schema *s, const en_network *network, const char *options)
{
    assert_int_equal(en_schema_init_for(network, options, network->input.h > 0 ? NULL : &small, s), EN_OK);
}

static void balance_is_the_best_there_is(void **state)
{
    (void)state;
    const struct {
        const en_network *network;
        const char *options;
    } known[] = {{network_named("toy"), NULL},
                 {network_named("convnet"), NULL},
                 {&eni_resnet18, "width=8"},
                 {&eni_resnet18, "stem=cifar"},
                 {&views, NULL}};
    en_schema s;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        open_schema(&s, known[i].network, known[i].options);
        is_balanced(&s);
        en_schema_fini(&s);
    }
    for (drawn.seed = 0; drawn.seed < 500; drawn.seed++) {
        open_schema(&s, &blocks, NULL);
        for (uint32_t at = 0; at <= s.nnodes; at++)
            assert_int_equal(eni_split_is_legal(&s, at), at > 0 && at < s.nnodes && is_legal(&s, at));
        is_balanced(&s);
        en_schema_fini(&s);
    }
}

/* Sum of the multiply-adds of ResNet-18 at 32 x 32, cut in two in front of its third stage. */
static void resnet18_is_cut_where_it_should_be(void **state)
{
    (void)state;
    const en_data_shape cifar = {32, 32, 3, 10};
    en_schema s;
    eni_part parts[ENI_STAGES_MAX], named[ENI_STAGES_MAX];
    int n;
    assert_int_equal(en_schema_init_for(&eni_resnet18, "stem=cifar", &cifar, &s), EN_OK);
    assert_int_equal(eni_split_balance(&s, 2, parts), EN_OK);
    assert_string_equal(s.nodes[parts[1].first].name, "layer3.0.conv1");
    assert_int_equal(parts[0].multiply_adds * 100 / (parts[0].multiply_adds + parts[1].multiply_adds), 51);
    assert_int_equal(eni_split_at(&s, "layer3.0.conv1", &n, named), EN_OK);
    assert_int_equal(n, 2);
    parts_are_the_same(n, named, parts);
    assert_int_equal(eni_split_at(&s, "bn1,layer2.0.conv1,fc", &n, named), EN_OK);
    assert_int_equal(n, 4);
    parts_tile(&s, n, named);
    en_schema_fini(&s);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void wrong_cuts_are_named(void **state)
{
    (void)state;
    const struct {
        const char *network;
        int stages;
        const char *split, *says;
    } cases[] = {{"toy", 3, NULL, "--stages=3|toy|--stages=2"},
                 {"toy", 0, NULL, "--stages=0|1 to 64"},
                 {"resnet18", 65, NULL, "--stages=65|1 to 64"},
                 {"convnet", 0, "fc3", "--split=fc3|convnet|nearest is fc1|`entrain models MODEL`"},
                 {"convnet", 0, "conv2,", "--split=: |convnet"},
                 {"convnet", 0, "fc2,conv2", "--split|conv2|fc2|convnet|`entrain models MODEL`"},
                 {"convnet", 0, "conv2,fc1,fc1", "--split|fc1 twice"},
                 {"convnet", 0, "conv1", "--split=conv1|weights|later"},
                 {"resnet18", 0, "layer1.1.conv2",
                  "--split=layer1.1.conv2|two|layer1.1.bn1 (batchnorm)|layer1.0.bn2 (batchnorm)|`entrain "
                  "models MODEL`"},
                 {"deep", 0, NULL, "64 stages"}};
    char names[1024] = "l1";
    for (int i = 2; i < ENI_STAGES_MAX + 2; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), ",l%d", i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        heard said = {0};
        en_schema s;
        eni_part parts[ENI_STAGES_MAX];
        int n;
        const bool is_deep = strcmp(cases[i].network, "deep") == 0;
        open_schema(&s, is_deep ? &deep : network_named(cases[i].network), NULL);
        eni_log_set_sink(hear, &said);
        const char *split = is_deep ? names : cases[i].split;
        const en_status st = split != NULL ? eni_split_at(&s, split, &n, parts)
                                           : eni_split_balance(&s, cases[i].stages, parts);
        eni_log_set_sink(NULL, NULL);
        assert_int_equal(st, EN_EINVAL);
        if (!mentions(said.text, cases[i].says))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].says, said.text);
        en_schema_fini(&s);
    }
}

/* ---- a chain of parts -------------------------------------------------------------------------------- */

/* A stage has memory for its part and not for more. */
typedef struct stage {
    eni_part part;
    en_model *model;
    float *param, *grad, *state;
    void *x[IN_FLIGHT]; /* what entered, where it is copied */
    uint32_t left;      /* tensors whose gradient is still to be told of */
} stage;

typedef struct chain {
    rig *r;
    int n, in_flight;
    bool copies; /* else a stage reads its input where the one before it has it */
    stage stages[MOST_STAGES];
} chain;

/* What two training steps and an evaluation leave. */
typedef struct outcome {
    double loss[IN_FLIGHT];
    float *grad[IN_FLIGHT], *state; /* (count), (nstate) */
    en_score score;
} outcome;

static void outcome_open(const en_schema *s, outcome *o)
{
    *o = (outcome){.state = eni_alloc_array(s->nstate + 1, sizeof(float))};
    for (int l = 0; l < IN_FLIGHT; l++)
        o->grad[l] = eni_alloc_array(s->count, sizeof(float));
}

static void outcome_close(outcome *o)
{
    for (int l = 0; l < IN_FLIGHT; l++)
        eni_free(o->grad[l]);
    eni_free(o->state);
}

static void *take(rig *r, uint64_t bytes)
{
    void *memory;
    assert_int_equal(r->device.ops->alloc(r->device.ctx, bytes, &memory), EN_OK);
    return memory;
}

static void copy_on(rig *r, void *to, const void *from, uint64_t bytes)
{
    if (bytes > 0) assert_int_equal(r->device.ops->copy(r->device.ctx, to, from, bytes, EN_COPY_ON), EN_OK);
}

static void stage_open(chain *c, stage *g, uint32_t first, uint32_t end, uint32_t dtype)
{
    rig *r = c->r;
    *g = (stage){0};
    assert_int_equal(eni_split_part(&r->schema, first, end, &g->part), EN_OK);
    const eni_part *p = &g->part;
    const en_model_options options = {.size = sizeof options,
                                      .dtype = dtype,
                                      .first = p->first,
                                      .end = p->end,
                                      .input = (uint32_t)p->input,
                                      .in_flight = (uint32_t)c->in_flight};
    assert_int_equal(en_model_new(&r->schema, r->device.ops, r->device.ctx, &options, &g->model), EN_OK);
    g->param = take(r, (p->hi - p->lo) * sizeof(float));
    g->grad = take(r, (p->hi - p->lo) * sizeof(float));
    if (p->state_hi > p->state_lo) g->state = take(r, (p->state_hi - p->state_lo) * sizeof(float));
    copy_on(r, g->param, rig_send_param(r) + p->lo, (p->hi - p->lo) * sizeof(float));
    copy_on(r, g->state, r->state + p->state_lo, (p->state_hi - p->state_lo) * sizeof(float));
}

static void stage_close(chain *c, stage *g)
{
    const en_device *ops = c->r->device.ops;
    en_model_free(g->model);
    for (int l = 0; l < IN_FLIGHT; l++)
        ops->free(c->r->device.ctx, g->x[l]);
    ops->free(c->r->device.ctx, g->param);
    ops->free(c->r->device.ctx, g->grad);
    ops->free(c->r->device.ctx, g->state);
}

static en_model_ends ends_of(const stage *g)
{
    en_model_ends ends;
    assert_int_equal(en_model_ends_of(g->model, &ends), EN_OK);
    return ends;
}

static uint32_t turn_of(const chain *c, int chunk)
{
    return (uint32_t)(chunk % c->in_flight);
}

/* What stage s is given of a batch. */
static en_batch input_of(chain *c, int s, const en_batch *batch, int chunk)
{
    if (s == 0) return *batch;
    stage *g = &c->stages[s];
    const en_model_ends before = ends_of(&c->stages[s - 1]);
    const bool ends = g->part.end == c->r->schema.nnodes;
    assert_non_null(before.y);
    if (c->copies) {
        if (g->x[chunk] == NULL) g->x[chunk] = take(c->r, before.y_bytes);
        copy_on(c->r, g->x[chunk], before.y, before.y_bytes);
    }
    return (en_batch){
        .n = batch->n, .x = c->copies ? g->x[chunk] : before.y, .target = ends ? batch->target : NULL};
}

static void chain_forward(chain *c, const en_batch *batch, int chunk, bool is_training)
{
    for (int s = 0; s < c->n; s++) {
        stage *g = &c->stages[s];
        assert_int_equal(en_model_turn(g->model, turn_of(c, chunk)), EN_OK);
        const en_batch in = input_of(c, s, batch, chunk);
        if (is_training)
            assert_int_equal(en_model_forward(g->model, g->param, g->state, &in), EN_OK);
        else
            assert_int_equal(eni_model_forward_only(g->model, g->param, g->state, &in), EN_OK);
    }
}

static en_status told(void *user, uint32_t first, uint32_t n)
{
    stage *g = user;
    assert_int_equal(first + n, g->part.tensor + g->left); /* from the last to the first */
    g->left -= n;
    return EN_OK;
}

static void chain_backward(chain *c, int chunk)
{
    for (int s = c->n - 1; s >= 0; s--) {
        stage *g = &c->stages[s];
        assert_int_equal(en_model_turn(g->model, turn_of(c, chunk)), EN_OK);
        if (s < c->n - 1) {
            const en_model_ends here = ends_of(g), next = ends_of(&c->stages[s + 1]);
            assert_non_null(here.dy);
            assert_non_null(next.dx);
            assert_int_equal(here.y_bytes, next.dx_bytes);
            copy_on(c->r, here.dy, next.dx, next.dx_bytes);
            const unsigned char *y = here.y, *dy = here.dy; /* y stays while dy is filled */
            assert_true(y + here.y_bytes <= dy || dy + here.y_bytes <= y);
        } else {
            assert_true(ends_of(g).y == NULL && ends_of(g).dy == NULL);
        }
        g->left = g->part.tensor_end - g->part.tensor;
        assert_int_equal(en_model_backward(g->model, g->param, g->grad, told, g), EN_OK);
        assert_int_equal(g->left, 0);
    }
    assert_null(ends_of(&c->stages[0]).dx);
}

static void chain_gradient(chain *c, float *grad_out)
{
    rig *r = c->r;
    for (int s = 0; s < c->n; s++) {
        const eni_part *p = &c->stages[s].part;
        copy_on(r, rig_grad(r) + p->lo, c->stages[s].grad, (p->hi - p->lo) * sizeof(float));
    }
    rig_fetch_grad(r);
    memcpy(grad_out, r->grad, r->schema.count * sizeof(float));
}

static double chain_loss(chain *c)
{
    en_score score;
    assert_int_equal(en_model_result(c->stages[c->n - 1].model, &score), EN_OK);
    return score.loss;
}

/* F0 F1 B0 B1, or F0 B0 F1 B1. */
static void chain_run(chain *c, const en_batch batches[IN_FLIGHT], outcome *o)
{
    rig *r = c->r;
    const bool together = c->in_flight == IN_FLIGHT;
    for (int l = 0; l < IN_FLIGHT; l++) {
        chain_forward(c, &batches[l], l, true);
        o->loss[l] = chain_loss(c);
        for (int b = 0; b < IN_FLIGHT; b++) {
            if (together ? l < IN_FLIGHT - 1 : b != l) continue;
            chain_backward(c, b);
            chain_gradient(c, o->grad[b]);
        }
    }
    chain_forward(c, &batches[0], 0, false);
    assert_int_equal(en_model_result(c->stages[c->n - 1].model, &o->score), EN_OK);
    for (int s = 0; s < c->n; s++) {
        const eni_part *p = &c->stages[s].part;
        copy_on(r, r->state + p->state_lo, c->stages[s].state, (p->state_hi - p->state_lo) * sizeof(float));
    }
    if (r->schema.nstate > 0) rig_fetch_state(r, o->state);
}

static void whole_run(rig *r, const en_batch batches[IN_FLIGHT], outcome *o)
{
    const float *param = rig_send_param(r);
    for (int l = 0; l < IN_FLIGHT; l++) {
        assert_int_equal(en_model_forward(r->model, param, r->state, &batches[l]), EN_OK);
        assert_int_equal(rig_backward(r, NULL, NULL), EN_OK);
        o->loss[l] = rig_result(r).loss;
        memcpy(o->grad[l], r->grad, r->schema.count * sizeof(float));
    }
    assert_int_equal(eni_model_forward_only(r->model, param, r->state, &batches[0]), EN_OK);
    o->score = rig_result(r);
    if (r->schema.nstate > 0) rig_fetch_state(r, o->state);
}

static void outcomes_are_equal(const splits *split, const outcome *a, const outcome *b)
{
    const en_schema *s = split->schema;
    bool same = memcmp(a->state, b->state, s->nstate * sizeof(float)) == 0 &&
                a->score.loss == b->score.loss && a->score.correct == b->score.correct;
    for (int l = 0; l < IN_FLIGHT; l++)
        same =
            same && a->loss[l] == b->loss[l] && memcmp(a->grad[l], b->grad[l], s->count * sizeof(float)) == 0;
    if (!same)
        fail_msg("%s, seed %llu, %d parts, cut at %u, %u, %u", s->network->name,
                 (unsigned long long)drawn.seed, split->n, split->cuts[1], split->cuts[2], split->cuts[3]);
}

/* Number i of the splits: by turns with one batch in flight and two, with copies and without. */
static void split_is_the_whole(rig *r, const splits *split, int i, uint32_t dtype,
                               const en_batch batches[IN_FLIGHT], const outcome *want)
{
    chain c = {.r = r, .n = split->n, .in_flight = i % 3 == 2 ? 1 : IN_FLIGHT, .copies = i % 2 == 0};
    outcome got;
    float *first = eni_alloc_array(r->schema.nstate + 1, sizeof *first);
    outcome_open(&r->schema, &got);
    en_schema_init_state(&r->schema, first);
    if (r->schema.nstate > 0) rig_send_state(r, first);
    for (int s = 0; s < c.n; s++)
        stage_open(&c, &c.stages[s], split->cuts[s], split->cuts[s + 1], dtype);
    chain_run(&c, batches, &got);
    outcomes_are_equal(split, &got, want);
    for (int s = 0; s < c.n; s++)
        stage_close(&c, &c.stages[s]);
    outcome_close(&got);
    eni_free(first);
}

/* A batch in memory of its own, on the device. */
static en_batch batch_there(rig *r, uint64_t seed)
{
    const uint64_t x_bytes = SAMPLES * (uint64_t)en_extent_count(r->schema.input) * sizeof(float);
    const uint64_t wanted = r->schema.loss == EN_OP_MSE ? (uint64_t)r->schema.outputs : 1;
    void *x = take(r, x_bytes), *target = take(r, SAMPLES * wanted * sizeof(float));
    en_batch batch = batch_new(&r->schema, SAMPLES, seed);
    const en_batch sent = rig_send_batch(r, &batch);
    copy_on(r, x, sent.x, x_bytes);
    copy_on(r, target, sent.target, SAMPLES * wanted * sizeof(float));
    assert_int_equal(r->device.ops->sync(r->device.ctx), EN_OK);
    batch_free(&batch);
    return (en_batch){.n = SAMPLES, .x = x, .target = target};
}

/* Every `every`th split, and the first of each number of stages. */
static int all_splits_are_the_whole(rig *r, int every, uint32_t dtype)
{
    outcome want;
    int done = 0;
    en_batch batches[IN_FLIGHT];
    for (int l = 0; l < IN_FLIGHT; l++)
        batches[l] = batch_there(r, 5 + (uint64_t)l);
    outcome_open(&r->schema, &want);
    whole_run(r, batches, &want);
    assert_true(want.loss[0] != want.loss[1]);
    for (int n = 1; n <= MOST_STAGES; n++) {
        splits all = {&r->schema, n, {0}};
        for (int i = 0; splits_next(&all); i++) {
            if (i % every != 0) continue;
            split_is_the_whole(r, &all, done++, dtype, batches, &want);
        }
    }
    outcome_close(&want);
    for (int l = 0; l < IN_FLIGHT; l++) {
        r->device.ops->free(r->device.ctx, (void *)(uintptr_t)batches[l].x);
        r->device.ops->free(r->device.ctx, (void *)(uintptr_t)batches[l].target);
    }
    return done;
}

static bool is_quick(void)
{
    return strcmp(rig_device(), "ref") == 0 || strcmp(rig_device(), "cpu") == 0;
}

static void a_chain_of_parts_is_the_whole(void **state)
{
    (void)state;
    const struct {
        const en_network *network;
        const char *options;
        int every, elsewhere, least;
    } cases[] = {{network_named("toy"), NULL, 1, 1, 2},
                 {network_named("convnet"), NULL, 1, 5, 6},
                 {&views, NULL, 1, 1, 2},
                 {&eni_resnet18, "width=4", 1, 60, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        const en_network *network = cases[i].network;
        rig_open_for(&r, network, cases[i].options, network->input.h > 0 ? NULL : &small, rig_device(), 1);
        const int done =
            all_splits_are_the_whole(&r, is_quick() ? cases[i].every : cases[i].elsewhere, EN_F32);
        print_message("%s: %d splits\n", network->name, done);
        assert_true(done >= cases[i].least);
        rig_close(&r);
    }
}

static void so_are_those_of_random_graphs(void **state)
{
    (void)state;
    int done = 0;
    for (uint64_t seed = 0; seed < (is_quick() ? 40 : 4); seed++) {
        rig r;
        drawn.seed = seed;
        rig_open(&r, &blocks, rig_device());
        done += all_splits_are_the_whole(&r, is_quick() ? 3 : 20, EN_F32);
        rig_close(&r);
    }
    print_message("%d splits\n", done);
}

/* Where a device has the type: what crosses is of it, and no cast is made of it. */
static void a_cut_has_the_type_of_its_tensor(void **state)
{
    (void)state;
    rig r;
    if (strcmp(rig_device(), "cuda") != 0) skip();
    rig_open_as(&r, network_named("convnet"), rig_device(), EN_BF16, 1);
    assert_true(all_splits_are_the_whole(&r, 7, EN_BF16) > 2);
    rig_close(&r);
}

/* ---- memory, misuse ---------------------------------------------------------------------------------- */

static void batches_in_flight_share_plans_and_have_memory_of_their_own(void **state)
{
    (void)state;
    rig r;
    eni_prepared one, three;
    rig_open_for(&r, &eni_resnet18, "width=4", &small, rig_device(), 1);
    en_model_options options = {.dtype = EN_F32, .end = r.schema.nnodes, .in_flight = 1};
    assert_int_equal(eni_prepare(&r.schema, r.device.ops, r.device.ctx, &options, 3, EN_MODEL_TRAIN, &one),
                     EN_OK);
    options.in_flight = 3;
    assert_int_equal(eni_prepare(&r.schema, r.device.ops, r.device.ctx, &options, 3, EN_MODEL_TRAIN, &three),
                     EN_OK);
    assert_true(three.in_flight == 3 && three.bytes == one.bytes && three.nadds == one.nadds);
    for (uint32_t i = 1; i < r.schema.nnodes; i++) {
        const eni_step_node *first = &three.nodes[i], *last = &three.nodes[2 * r.schema.nnodes + i];
        assert_ptr_equal(last->plan, first->plan);
        assert_int_equal((unsigned char *)last->y - (unsigned char *)first->y, 2 * three.bytes);
        assert_true((unsigned char *)last->y < (unsigned char *)three.memory + 3 * three.bytes);
    }
    eni_prepared_fini(&three, r.device.ops, r.device.ctx);
    options.in_flight = 3;
    assert_int_equal(
        eni_prepare(&r.schema, r.device.ops, r.device.ctx, &options, 3, EN_MODEL_EVALUATE, &three), EN_OK);
    assert_int_equal(three.in_flight, 1);
    eni_prepared_fini(&three, r.device.ops, r.device.ctx);
    eni_prepared_fini(&one, r.device.ops, r.device.ctx);
    rig_close(&r);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    rig r;
    en_model *model;
    en_model_ends ends;
    en_score score;
    rig_open(&r, network_named("toy"), "ref"); /* net1, net2, loss */
    en_batch batch = batch_new(&r.schema, 2, 6);
    eni_log_set_level(-1);
    const en_model_options wrong[] = {{.size = sizeof *wrong, .first = 2, .end = 9, .input = 1},
                                      {.size = sizeof *wrong, .first = 2, .end = 2, .input = 1},
                                      {.size = sizeof *wrong, .first = 3, .end = 4, .input = 2},
                                      {.size = sizeof *wrong, .first = 2, .end = 4, .input = 0},
                                      {.size = sizeof *wrong, .first = 0, .end = 3}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &wrong[i], &model), EN_EINVAL);
    const en_model_options front = {.size = sizeof front, .end = 2, .in_flight = 2};
    assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &front, &model), EN_OK);
    assert_int_equal(en_model_turn(model, 2), EN_EINVAL);
    assert_int_equal(en_model_ends_of(model, &ends), EN_EBUG);
    assert_int_equal(en_model_forward(model, r.param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_ends_of(model, &ends), EN_OK);
    assert_int_equal(ends.y_bytes, 2 * 10 * sizeof(float));
    assert_int_equal(en_model_result(model, &score), EN_EBUG);
    assert_int_equal(en_model_turn(model, 1), EN_OK);
    assert_int_equal(en_model_ends_of(model, &ends), EN_EBUG);
    assert_int_equal(en_model_backward(model, r.param, r.grad, NULL, NULL), EN_EBUG);
    assert_int_equal(eni_model_forward_only(model, r.param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_ends_of(model, &ends), EN_OK);
    assert_true(ends.y != NULL && ends.dy == NULL && ends.dx == NULL);
    eni_log_set_level(ENI_LOG_INFO);
    en_model_free(model);
    batch_free(&batch);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    rig_choose_device(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balance_is_the_best_there_is),
        cmocka_unit_test(resnet18_is_cut_where_it_should_be),
        cmocka_unit_test(wrong_cuts_are_named),
        cmocka_unit_test(a_chain_of_parts_is_the_whole),
        cmocka_unit_test(so_are_those_of_random_graphs),
        cmocka_unit_test(a_cut_has_the_type_of_its_tensor),
        cmocka_unit_test(batches_in_flight_share_plans_and_have_memory_of_their_own),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
