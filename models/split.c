/* split.c - finds legal cuts, balances them, and resolves cuts named by a user. */
#include "models/split.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "models/node.h"

/* ---- cuts -------------------------------------------------------------------------------------------- */

/* Counts the tensors that cross a cut in front of node `at` (2: two or more), and names the nodes that produce them. */
static int crossing(const en_schema *schema, uint32_t at, int32_t roots_out[2])
{
    int n = 0;
    roots_out[0] = roots_out[1] = 0;
    for (uint32_t i = at; i < schema->nnodes; i++) {
        const int32_t inputs[] = {schema->nodes[i].x, schema->nodes[i].x2};
        for (int k = 0; k < 2; k++) {
            if (inputs[k] < 0 || inputs[k] >= (int32_t)at) continue;
            const int32_t root = eni_node_root(schema, inputs[k]);
            if (n > 0 && root == roots_out[0]) continue;
            roots_out[n++] = root;
            if (n == 2) return n;
        }
    }
    return n;
}

/* Counts the tensors of nodes in front of `at`. */
static uint32_t tensors_before(const en_schema *schema, uint32_t at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < at; i++)
        n += schema->nodes[i].ntensors;
    return n;
}

bool eni_split_is_legal(const en_schema *schema, uint32_t at)
{
    int32_t roots[2];
    if (at < 1 || at >= schema->nnodes || crossing(schema, at, roots) != 1) return false;
    const uint32_t before = tensors_before(schema, at);
    return before > 0 && before < schema->ntensors;
}

en_status eni_split_part(const en_schema *schema, uint32_t first, uint32_t end, eni_part *part_out)
{
    int32_t roots[2];
    const bool is_range = first < end && end <= schema->nnodes;
    if (!is_range || (first > 0 && !eni_split_is_legal(schema, first)) ||
        (end < schema->nnodes && !eni_split_is_legal(schema, end)) ||
        tensors_before(schema, first) == tensors_before(schema, end))
        return eni_fail(EN_EINVAL, "split", "%s: nodes %u to %u of %u cannot stand alone as a part",
                        schema->network->name, first, end, schema->nnodes);
    (void)crossing(schema, first, roots);
    eni_part part = {.first = first,
                     .end = end,
                     .input = roots[0],
                     .tensor = tensors_before(schema, first),
                     .tensor_end = tensors_before(schema, end)};
    for (uint32_t i = 0; i < end; i++) {
        if (i < first) part.buffer += schema->nodes[i].nbuffers;
        part.buffer_end += schema->nodes[i].nbuffers;
        if (i >= first) part.multiply_adds += eni_op_multiply_adds(&schema->nodes[i].op);
    }
    part.lo = schema->tensors[part.tensor].offset;
    part.hi = part.tensor_end < schema->ntensors ? schema->tensors[part.tensor_end].offset : schema->count;
    part.state_lo = part.buffer < schema->nbuffers ? schema->buffers[part.buffer].offset : schema->nstate;
    part.state_hi =
        part.buffer_end < schema->nbuffers ? schema->buffers[part.buffer_end].offset : schema->nstate;
    *part_out = part;
    return EN_OK;
}

/* cuts: 0 and the first nodes of stages 1, 2, ..; with room for one more. */
static en_status make_parts(const en_schema *schema, int nstages, uint32_t *cuts, eni_part *parts_out)
{
    cuts[nstages] = schema->nnodes;
    for (int s = 0; s < nstages; s++)
        EN_TRY(eni_split_part(schema, cuts[s], cuts[s + 1], &parts_out[s]));
    return EN_OK;
}

/* ---- balance ----------------------------------------------------------------------------------------- */

/* A legal start of a part, and the work in front of it. */
typedef struct place {
    uint32_t node, tensors;
    int64_t multiply_adds;
} place;

/* The batch, then every legal cut; at most (nnodes). Also the multiply-adds of the whole network. */
static uint32_t find_places(const en_schema *schema, place *places_out, int64_t *total_out)
{
    uint32_t n = 1, tensors = 0;
    int64_t sum = 0;
    places_out[0] = (place){0};
    for (uint32_t i = 1; i < schema->nnodes; i++) {
        if (eni_split_is_legal(schema, i)) places_out[n++] = (place){i, tensors, sum};
        sum += eni_op_multiply_adds(&schema->nodes[i].op);
        tensors += schema->nodes[i].ntensors;
    }
    *total_out = sum;
    return n;
}

/* Counts stages: two cuts without weights between them do not make a part. */
static int most_stages(const place *places, uint32_t n)
{
    int stages = 1;
    for (uint32_t p = 1; p < n; p++)
        stages += places[p].tensors > places[p - 1].tensors;
    return stages;
}

/* The largest part, if one part spans p to q and the largest of the rest is `rest`. */
static int64_t largest(const place *p, const place *q, int64_t rest)
{
    const int64_t part = q->multiply_adds - p->multiply_adds;
    if (q->tensors == p->tensors) return INT64_MAX;
    return part > rest ? part : rest;
}

/* least[s][p]: the smallest largest part over all splits of the network from p on into s + 1 parts, computed from the last
 * part to the first; INT64_MAX if impossible. Then the cuts, each as early as that minimum allows. */
static void balance(const place *places, uint32_t n, int64_t total, int nstages, int64_t *least,
                    uint32_t *cuts_out)
{
    for (uint32_t p = 0; p < n; p++)
        least[p] = total - places[p].multiply_adds;
    for (int s = 1; s < nstages; s++) {
        const int64_t *rest = least + (size_t)(s - 1) * n;
        for (uint32_t p = 0; p < n; p++) {
            int64_t best = INT64_MAX;
            for (uint32_t q = p + 1; q < n; q++) {
                const int64_t now = largest(&places[p], &places[q], rest[q]);
                if (now < best) best = now;
            }
            least[(size_t)s * n + p] = best;
        }
    }
    const int64_t best = least[(size_t)(nstages - 1) * n];
    for (int s = 1, p = 0; s < nstages; s++) {
        const int64_t *rest = least + (size_t)(nstages - 1 - s) * n;
        uint32_t q = (uint32_t)p + 1;
        while (largest(&places[p], &places[q], rest[q]) > best)
            q++; /* exists */
        cuts_out[s] = places[q].node;
        p = (int)q;
    }
}

en_status eni_split_balance(const en_schema *schema, int nstages, eni_part *parts_out)
{
    uint32_t cuts[ENI_STAGES_MAX + 1] = {0};
    int64_t total, *least;
    if (nstages < 1 || nstages > ENI_STAGES_MAX)
        return eni_fail(EN_EINVAL, "split", "--stages=%d is out of range; give 1 to %d", nstages,
                        ENI_STAGES_MAX);
    place *places = eni_alloc_array(schema->nnodes, sizeof *places);
    if (places == NULL) return EN_ENOMEM;
    const uint32_t n = find_places(schema, places, &total);
    const int most = most_stages(places, n);
    en_status st = EN_ENOMEM;
    if (nstages > most) {
        st = eni_fail(EN_EINVAL, "split",
                      "--stages=%d: %s can be cut into at most %d, where one tensor crosses and both sides "
                      "have weights; give --stages=%d or fewer",
                      nstages, schema->network->name, most, most);
    } else if ((least = eni_alloc_array((size_t)nstages * n, sizeof *least)) != NULL) {
        balance(places, n, total, nstages, least, cuts);
        st = make_parts(schema, nstages, cuts, parts_out);
        eni_free(least);
    }
    eni_free(places);
    return st;
}

/* ---- named cuts -------------------------------------------------------------------------------------- */

/* Finds the node with weights by name. */
static en_status find_node(const en_schema *schema, const char *name, uint32_t *at_out)
{
    const char *nearest = NULL;
    for (uint32_t i = 1; i < schema->nnodes; i++) {
        const en_node *node = &schema->nodes[i];
        if (node->ntensors == 0) continue;
        if (strcmp(node->name, name) == 0) {
            *at_out = i;
            return EN_OK;
        }
        if (eni_is_nearer(name, node->name, nearest)) nearest = node->name;
    }
    return eni_fail(EN_EINVAL, "split",
                    "--split=%s: %s has no such node with weights; %s%s%s`entrain models MODEL` lists its "
                    "nodes and marks possible cuts",
                    name, schema->network->name, nearest ? "the nearest is " : "", nearest ? nearest : "",
                    nearest ? ", and " : "");
}

/* Checks a cut in front of node `at`, the previous one being in front of `before`. */
static en_status check_cut(const en_schema *schema, uint32_t at, uint32_t before)
{
    const char *name = schema->nodes[at].name;
    int32_t roots[2];
    char one[ENI_NODE_TEXT], other[ENI_NODE_TEXT];
    if (at == before) return eni_fail(EN_EINVAL, "split", "--split names %s twice; name it once", name);
    if (at < before)
        return eni_fail(EN_EINVAL, "split",
                        "--split names %s after %s, but %s has them in the opposite order; name the nodes as "
                        "`entrain models MODEL` lists them",
                        name, schema->nodes[before].name, schema->network->name);
    if (tensors_before(schema, at) == 0)
        return eni_fail(EN_EINVAL, "split",
                        "--split=%s: the stage before it would have no weights; name a later node", name);
    if (crossing(schema, at, roots) == 1) return EN_OK;
    return eni_fail(EN_EINVAL, "split",
                    "--split=%s: two tensors would cross the cut, the outputs of %s and %s, but only one "
                    "may; `entrain models MODEL` marks possible cuts",
                    name, roots[0] > 0 ? eni_node_text(schema, roots[0], one) : "the batch",
                    roots[1] > 0 ? eni_node_text(schema, roots[1], other) : "the batch");
}

en_status eni_split_at(const en_schema *schema, const char *names, int *nstages_out, eni_part *parts_out)
{
    uint32_t cuts[ENI_STAGES_MAX + 1] = {0};
    int n = 1;
    for (const char *at = names;; at++) {
        char name[EN_MAX_TENSOR_NAME]; /* longer than any node's name, so a truncated one is not found */
        const size_t length = strcspn(at, ",+"); /* arms of a comparison write '+' for ',' */
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name), at);
        if (n == ENI_STAGES_MAX)
            return eni_fail(EN_EINVAL, "split", "--split=%.60s..: more than %d stages; name fewer nodes",
                            names, ENI_STAGES_MAX);
        EN_TRY(find_node(schema, name, &cuts[n]));
        EN_TRY(check_cut(schema, cuts[n], cuts[n - 1]));
        n++;
        at += length;
        if (*at == '\0') break;
    }
    EN_TRY(make_parts(schema, n, cuts, parts_out));
    *nstages_out = n;
    return EN_OK;
}
