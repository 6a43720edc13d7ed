/* winograd.c - 3 x 3 convolutions of stride 1 by Winograd's minimal filtering F(2 x 2, 3 x 3) (Lavin and
 * Gray, CVPR'16, sections 3 and 4): 16 multiplications for four outputs where the plain sum takes 36.
 *
 * The map that a pass writes is split into tiles of 2 x 2 pixels; each needs 4 x 4 pixels of the map that it
 * reads,
 *
 *     y = A' [ (G w G') * (B' x B) ] A          * element by element, summed over the channels
 *
 * so each of the 16 positions of a tile takes one product of matrices, of all tiles at once:
 *
 *     forward           M (T, O) = V (T, C)  U (C, O)      V = B' x B,  U = G w G',  y = A' M A
 *     backward data     the same on dy, with the weights rotated by 180 degrees, C and O exchanged
 *     backward weights  U (O, C) += W (T, O)'  V (T, C)    W = A dy A',  dw = G' U G
 *
 * A chunk is the tiles of a few rows, so that V and M stay in the cache; the weights' sum goes over the
 * chunks in order, and their size does not depend on the number of threads, so neither do the bits. Sums and
 * halves only: the error is that of the plain sum (the same paper, table 4); larger tiles have a greater one.
 * Numbers near the largest float overflow earlier, and an infinite weight meets the zeros beyond the
 * edges. */
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "ops/cpu/cpu.h"
#include "ops/multiversion.h"

enum {
    PLACES = 16,           /* in a tile, one product each */
    LANES = 8,             /* channels per pass of the loops below */
    ROWS = 16,             /* of the weights, in one pass over their columns */
    GAP = 16,              /* floats after a row of a matrix: rows of a power of two would share cache sets */
    CHUNK_BYTES = 1 << 20, /* of V and M together, per thread */
    MIN_TILES = 64,        /* per chunk: U is read once per chunk */
    MIN_CHANNELS = 16,
    MIN_WEIGHTS = 16 * 24, /* fewer channels in and out: the transforms cost more than the products save */
};

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* The tiles of a pass, and the map that it reads. */
typedef struct grid {
    en_extent from, to;    /* in the weights' pass: x and y */
    int64_t pad;           /* of the map that it reads */
    int64_t high, wide;    /* tiles of a map */
    int64_t rows, at_once; /* rows of tiles, of all maps; of a chunk */
} grid;

/* Floats from one row of a matrix to the next. */
static int64_t stride(int64_t channels)
{
    return channels + GAP;
}

static grid grid_of(const en_plan *plan, int which)
{
    const bool is_data = which == ENI_BACKWARD_DATA;
    grid g = {.from = is_data ? plan->y : plan->op.x,
              .to = is_data ? plan->op.x : plan->y,
              .pad = is_data ? 2 - plan->op.pad_h : plan->op.pad_h};
    g.high = eni_cpu_parts(g.to.h, 2);
    g.wide = eni_cpu_parts(g.to.w, 2);
    g.rows = g.to.n * g.high;
    const int64_t tile_bytes = PLACES * (stride(g.from.c) + stride(g.to.c)) * (int64_t)sizeof(float);
    const int64_t fit = CHUNK_BYTES / tile_bytes,
                  most = eni_cpu_parts(fit > MIN_TILES ? fit : MIN_TILES, g.wide);
    g.at_once = eni_cpu_parts(g.rows, eni_cpu_parts(g.rows, most));
    return g;
}

/* Tiles mostly beyond the edge save nothing. Off x86 oneDNN's sgemm may be plain loops. */
bool eni_cpu_winograd_fit(const en_op *op)
{
#ifdef __x86_64__
    const en_extent y = eni_ref_output(op);
    return op->kernel_h == 3 && op->kernel_w == 3 && op->stride_h == 1 && op->stride_w == 1 &&
           op->pad_h == op->pad_w && op->pad_h <= 2 && op->x.c % LANES == 0 && op->channels % LANES == 0 &&
           op->x.c >= MIN_CHANNELS && op->channels >= MIN_CHANNELS && op->x.c * op->channels >= MIN_WEIGHTS &&
           y.h * y.w >= 3 * eni_cpu_parts(y.h, 2) * eni_cpu_parts(y.w, 2) && y.n * y.h * y.w >= 4 * MIN_TILES;
#else
    (void)op;
    return false;
#endif
}

/* ---- the workspace: a row of zeros, U, and for each thread V, M and a row that nobody reads --------------- */

static int64_t edge_floats(const en_plan *plan)
{
    return plan->op.x.c > plan->op.channels ? plan->op.x.c : plan->op.channels;
}

static int64_t weights_floats(const en_plan *plan)
{
    const int64_t c = plan->op.x.c, o = plan->op.channels;
    return PLACES * (c > o ? c * stride(o) : o * stride(c));
}

static int64_t chunk_floats(const grid *g, int64_t channels)
{
    return PLACES * g->at_once * g->wide * stride(channels);
}

/* Floats of the workspace per thread. */
static int64_t own_floats(const en_plan *plan, const grid *g)
{
    return chunk_floats(g, g->from.c) + chunk_floats(g, g->to.c) + edge_floats(plan);
}

static uint64_t workspace_bytes(const en_plan *plan, int which)
{
    const grid g = grid_of(plan, which);
    const int64_t threads = which == ENI_BACKWARD_WEIGHTS ? 1 : plan->ctx->threads;
    return (uint64_t)(edge_floats(plan) + weights_floats(plan) + threads * own_floats(plan, &g)) *
           sizeof(float);
}

static float *zeros_of(const en_args *args)
{
    return args->workspace;
}

static float *sums_of(const en_plan *plan, const en_args *args)
{
    return zeros_of(args) + edge_floats(plan);
}

/* U of forward or backward data: in the workspace, unless it is kept. */
static float *weights_of(const en_plan *plan, const en_args *args, int which)
{
    float *kept = eni_cpu_kept(args);
    if (kept == NULL) return sums_of(plan, args);
    return kept + (which == ENI_FORWARD ? 0 : weights_floats(plan));
}

/* V of a thread; its other matrices lie behind it. */
static float *chunk_of(const en_plan *plan, const grid *g, const en_args *args, int64_t thread)
{
    return sums_of(plan, args) + weights_floats(plan) + thread * own_floats(plan, g);
}

/* ---- tiles: (4, 4) pixels to 16 positions and back, each of `channels` floats ----------------------------- */

/* Places [from, to) of B' x B. */
ENI_ALWAYS_INLINE void input_places(float *v, int64_t place, const float *const *at, int64_t channels,
                                    int from, int to)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        lanes t[4][4];
        for (int j = 0; j < 4; j++) {
            const lanes d0 = *(const lanes *)(at[j] + c), d1 = *(const lanes *)(at[4 + j] + c);
            const lanes d2 = *(const lanes *)(at[8 + j] + c), d3 = *(const lanes *)(at[12 + j] + c);
            t[0][j] = d0 - d2;
            t[1][j] = d1 + d2;
            t[2][j] = d2 - d1;
            t[3][j] = d1 - d3;
        }
        for (int i = 0; i < 4; i++) {
            const lanes all[] = {t[i][0] - t[i][2], t[i][1] + t[i][2], t[i][2] - t[i][1], t[i][1] - t[i][3]};
            for (int j = 0; j < 4; j++)
                if (4 * i + j >= from && 4 * i + j < to) *(lanes *)(v + (4 * i + j) * place + c) = all[j];
        }
    }
}

/* Places [from, to) of A dy A'. */
ENI_ALWAYS_INLINE void dy_places(float *v, int64_t place, const float *const *at, int64_t channels, int from,
                                 int to)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        lanes t[4][2];
        for (int j = 0; j < 2; j++) {
            const lanes d0 = *(const lanes *)(at[j] + c), d1 = *(const lanes *)(at[2 + j] + c);
            t[0][j] = d0;
            t[1][j] = d0 + d1;
            t[2][j] = d0 - d1;
            t[3][j] = -d1;
        }
        for (int i = 0; i < 4; i++) {
            const lanes all[] = {t[i][0], t[i][0] + t[i][1], t[i][0] - t[i][1], -t[i][1]};
            for (int j = 0; j < 4; j++)
                if (4 * i + j >= from && 4 * i + j < to) *(lanes *)(v + (4 * i + j) * place + c) = all[j];
        }
    }
}

/* The ranges of one thread and of two are constants to the compiler. */
ENI_MULTIVERSION static void transform_input(float *v, int64_t place, const float *const *at,
                                             int64_t channels, int from, int to)
{
    if (from == 0 && to == PLACES)
        input_places(v, place, at, channels, 0, PLACES);
    else if (from == 0 && to == PLACES / 2)
        input_places(v, place, at, channels, 0, PLACES / 2);
    else if (from == PLACES / 2 && to == PLACES)
        input_places(v, place, at, channels, PLACES / 2, PLACES);
    else
        input_places(v, place, at, channels, from, to);
}

ENI_MULTIVERSION static void transform_dy(float *v, int64_t place, const float *const *at, int64_t channels,
                                          int from, int to)
{
    if (from == 0 && to == PLACES)
        dy_places(v, place, at, channels, 0, PLACES);
    else if (from == 0 && to == PLACES / 2)
        dy_places(v, place, at, channels, 0, PLACES / 2);
    else if (from == PLACES / 2 && to == PLACES)
        dy_places(v, place, at, channels, PLACES / 2, PLACES);
    else
        dy_places(v, place, at, channels, from, to);
}

/* A' M A, and the bias */
ENI_MULTIVERSION static void transform_output(float *const *at, const float *m, int64_t place,
                                              const float *bias, int64_t channels)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        lanes t[2][4];
        for (int j = 0; j < 4; j++) {
            const float *from = m + j * place + c;
            const lanes m0 = *(const lanes *)from, m1 = *(const lanes *)(from + 4 * place);
            const lanes m2 = *(const lanes *)(from + 8 * place), m3 = *(const lanes *)(from + 12 * place);
            t[0][j] = m0 + m1 + m2;
            t[1][j] = m1 - m2 - m3;
        }
        const lanes b = *(const lanes *)(bias + c);
        for (int i = 0; i < 2; i++) {
            *(lanes *)(at[2 * i] + c) = t[i][0] + t[i][1] + t[i][2] + b;
            *(lanes *)(at[2 * i + 1] + c) = t[i][1] - t[i][2] - t[i][3] + b;
        }
    }
}

/* The pixels of a square of `side` that starts at (top, left) of a map; outside the map `edge`. */
static void point(float **at, int side, float *map, en_extent e, int64_t top, int64_t left, float *edge)
{
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            const int64_t h = top + i, w = left + j;
            const bool is_inside = h >= 0 && h < e.h && w >= 0 && w < e.w;
            at[side * i + j] = is_inside ? map + (h * e.w + w) * e.c : edge;
        }
}

/* Some rows of tiles, and some places of each. */
typedef struct chunk {
    int64_t first, rows;
    int from, to;
} chunk;

/* V = B' x B of a chunk; `place` floats from one place to the next. */
static void transform_input_rows(const grid *g, const chunk *k, const float *x, float *zeros, float *v,
                                 int64_t place)
{
    float *at[PLACES];
    for (int64_t row = k->first; row < k->first + k->rows; row++) {
        float *map = (float *)(uintptr_t)x + row / g->high * g->from.h * g->from.w * g->from.c;
        for (int64_t i = 0; i < g->wide; i++, v += stride(g->from.c)) {
            point(at, 4, map, g->from, 2 * (row % g->high) - g->pad, 2 * i - g->pad, zeros);
            transform_input(v, place, (const float *const *)at, g->from.c, k->from, k->to);
        }
    }
}

static void transform_dy_rows(const grid *g, const chunk *k, const float *dy, float *zeros, float *v,
                              int64_t place)
{
    float *at[4];
    for (int64_t row = k->first; row < k->first + k->rows; row++) {
        float *map = (float *)(uintptr_t)dy + row / g->high * g->to.h * g->to.w * g->to.c;
        for (int64_t i = 0; i < g->wide; i++, v += stride(g->to.c)) {
            point(at, 2, map, g->to, 2 * (row % g->high), 2 * i, zeros);
            transform_dy(v, place, (const float *const *)at, g->to.c, k->from, k->to);
        }
    }
}

static void transform_output_rows(const grid *g, const chunk *k, float *y, float *unread, const float *m,
                                  int64_t place, const float *bias)
{
    float *at[4];
    for (int64_t row = k->first; row < k->first + k->rows; row++) {
        float *map = y + row / g->high * g->to.h * g->to.w * g->to.c;
        for (int64_t i = 0; i < g->wide; i++, m += stride(g->to.c)) {
            point(at, 2, map, g->to, 2 * (row % g->high), 2 * i, unread);
            transform_output(at, m, place, bias, g->to.c);
        }
    }
}

/* ---- weights: (O, C, 3, 3) to 16 matrices and back --------------------------------------------------------- */

/* LANES numbers, `apart` floats from one to the next. */
ENI_ALWAYS_INLINE void gather(lanes *to, const float *w, int64_t apart)
{
    *to = (lanes){w[0],         w[apart],     w[2 * apart], w[3 * apart],
                  w[4 * apart], w[5 * apart], w[6 * apart], w[7 * apart]};
}

/* G w G' of LANES columns: 16 numbers of each, `place` floats apart. */
ENI_ALWAYS_INLINE void transform_taps(float *u, int64_t place, const lanes g[9])
{
    lanes t[4][3];
    for (int j = 0; j < 3; j++) {
        const lanes outer = 0.5f * (g[j] + g[6 + j]), inner = 0.5f * g[3 + j];
        t[0][j] = g[j];
        t[1][j] = outer + inner;
        t[2][j] = outer - inner;
        t[3][j] = g[6 + j];
    }
    for (int i = 0; i < 4; i++) {
        const lanes outer = 0.5f * (t[i][0] + t[i][2]), inner = 0.5f * t[i][1];
        float *at = u + 4 * i * place;
        *(lanes *)at = t[i][0];
        *(lanes *)(at + place) = outer + inner;
        *(lanes *)(at + 2 * place) = outer - inner;
        *(lanes *)(at + 3 * place) = t[i][2];
    }
}

/* U = G w G', 16 x (rows, columns), for columns [from, to): `row` and `column` floats from one to the next in
 * w; `turned`: rotated by 180 degrees. A few rows at a time, since w is in order by rows or by columns, and
 * the lines of U are in the cache until they are full. */
ENI_MULTIVERSION static void transform_weights(float *u, const float *w, int64_t rows, int64_t columns,
                                               int64_t row, int64_t column, int turned, int64_t from,
                                               int64_t to)
{
    const int64_t place = rows * stride(columns);
    for (int64_t first = 0; first < rows; first += ROWS)
        for (int64_t k = from; k < to; k += LANES)
            for (int64_t r = first; r < rows && r < first + ROWS; r++) {
                lanes g[9];
                for (int tap = 0; tap < 9; tap++)
                    gather(&g[turned ? 8 - tap : tap], w + r * row + k * column + tap, column);
                transform_taps(u + r * stride(columns) + k, place, g);
            }
}

/* dw = G' U G, of outputs [from, to). */
ENI_MULTIVERSION static void transform_dw(float *dw, const float *u, int64_t outputs, int64_t channels,
                                          int64_t from, int64_t to)
{
    const int64_t place = outputs * stride(channels);
    for (int64_t o = from; o < to; o++)
        for (int64_t c = 0; c < channels; c += LANES) {
            union {
                float one[9][LANES];
                lanes all[9];
            } g;
            lanes t[3][4];
            for (int j = 0; j < 4; j++) {
                const float *at = u + j * place + o * stride(channels) + c;
                const lanes u1 = *(const lanes *)(at + 4 * place), u2 = *(const lanes *)(at + 8 * place);
                const lanes half = 0.5f * (u1 + u2);
                t[0][j] = *(const lanes *)at + half;
                t[1][j] = 0.5f * (u1 - u2);
                t[2][j] = half + *(const lanes *)(at + 12 * place);
            }
            for (int i = 0; i < 3; i++) {
                const lanes half = 0.5f * (t[i][1] + t[i][2]);
                g.all[3 * i] = t[i][0] + half;
                g.all[3 * i + 1] = 0.5f * (t[i][1] - t[i][2]);
                g.all[3 * i + 2] = half + t[i][3];
            }
            for (int l = 0; l < LANES; l++)
                for (int tap = 0; tap < 9; tap++)
                    dw[(o * channels + c + l) * 9 + tap] = g.one[tap][l];
        }
}

static void weights_in(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.x.c, o = plan->op.channels;
    transform_weights(weights_of(plan, args, ENI_FORWARD), args->w, c, o, 9, 9 * c, 0, from, to);
}

static void turned_weights_in(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const int64_t c = plan->op.x.c, o = plan->op.channels;
    transform_weights(weights_of(plan, args, ENI_BACKWARD_DATA), args->w, o, c, 9 * c, 9, 1, from, to);
}

static void dw_out(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    transform_dw(args->dw, sums_of(plan, args), plan->op.channels, plan->op.x.c, from, to);
}

/* ---- a pass ------------------------------------------------------------------------------------------------ */

/* The facts of a pass that its parts need, behind the arguments, which eni_cpu_split hands on. */
typedef struct pass {
    en_args args; /* first */
    grid g;
    int which;
    const float *x, *bias; /* forward and backward data: the input, the addend, the output */
    float *y;
    eni_cpu_products *products;
} pass;

static const pass *pass_of(const en_args *args)
{
    return (const pass *)(const void *)args;
}

/* Zeroes the row that is read beyond the edges. */
static void begin(const en_plan *plan, pass *p)
{
    memset(zeros_of(&p->args), 0, (size_t)edge_floats(plan) * sizeof(float));
    eni_cpu_products_begin(p->products);
}

/* c (m, n) = a b, or with `adds` += a' b, a (k, m); rows with their gap. */
static void multiply(const pass *p, bool adds, int64_t m, int64_t n, int64_t k, const float *a,
                     const float *b, float *c, bool is_turned)
{
    const eni_cpu_factor left = {a, stride(is_turned ? m : k), is_turned}, right = {b, stride(n), false};
    eni_cpu_multiply(p->products, m, n, k, left, right, c, stride(n), adds);
}

/* ---- forward and backward data: each thread has chunks of its own ------------------------------------------ */

/* Chunk i of a pass, with places [from, to). */
static chunk chunk_at(const grid *g, int64_t i, int from, int to)
{
    const int64_t first = i * g->at_once;
    return (chunk){first, first + g->at_once < g->rows ? g->at_once : g->rows - first, from, to};
}

static void convolve(const en_plan *plan, const pass *p, int64_t i, float *v)
{
    const grid *g = &p->g;
    const chunk k = chunk_at(g, i, 0, PLACES);
    const int64_t c = g->from.c, o = g->to.c, tiles = k.rows * g->wide;
    float *m = v + chunk_floats(g, c), *unread = m + chunk_floats(g, o);
    const float *u = weights_of(plan, &p->args, p->which);
    transform_input_rows(g, &k, p->x, zeros_of(&p->args), v, tiles * stride(c));
    for (int at = 0; at < PLACES; at++)
        multiply(p, false, tiles, o, c, v + at * tiles * stride(c), u + at * c * stride(o),
                 m + at * tiles * stride(o), false);
    transform_output_rows(g, &k, p->y, unread, m, tiles * stride(o), p->bias);
}

/* The chunks of threads [from, to). */
static void convolve_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const pass *p = pass_of(args);
    const int64_t chunks = eni_cpu_parts(p->g.rows, p->g.at_once), threads = plan->ctx->threads;
    for (int64_t thread = from; thread < to; thread++)
        for (int64_t i = chunks * thread / threads; i < chunks * (thread + 1) / threads; i++)
            convolve(plan, p, i, chunk_of(plan, &p->g, args, thread));
}

/* y = x * w, with the weights of that pass unless they are there already, and the bias. */
static en_status convolve_all(const en_plan *plan, const en_args *args, int which, const float *x,
                              const float *bias, float *y)
{
    eni_cpu_products products;
    pass p = {.args = *args,
              .g = grid_of(plan, which),
              .which = which,
              .x = x,
              .bias = bias,
              .y = y,
              .products = &products};
    begin(plan, &p);
    if (!eni_cpu_is_same_w(args) || eni_cpu_kept(args) == NULL)
        eni_cpu_split(plan, args, p.g.to.c, LANES, which == ENI_FORWARD ? weights_in : turned_weights_in);
    eni_cpu_split(plan, &p.args, plan->ctx->threads, 1, convolve_part);
    return eni_cpu_products_end(&products);
}

static en_status winograd_forward(en_plan *plan, const en_args *args)
{
    const float *bias = plan->op.flags & EN_OP_BIAS ? args->b : zeros_of(args);
    EN_TRY(convolve_all(plan, args, ENI_FORWARD, args->x, bias, args->y));
    eni_cpu_relu_in_place(plan, args);
    return EN_OK;
}

static en_status winograd_backward_data(en_plan *plan, const en_args *args)
{
    return convolve_all(plan, args, ENI_BACKWARD_DATA, args->dy, zeros_of(args), args->dx);
}

/* ---- backward weights: each thread has some places of all chunks, and waits for nobody --------------------- */

/* Place (1, 1) of a tile of W has the sum of its pixels. */
enum { SUM_OF_PIXELS = 5 };

static void add_bias(const pass *p, const chunk *k, const float *sums)
{
    const int64_t tiles = k->rows * p->g.wide, o = p->g.to.c;
    float *db = p->args.db;
    if (k->first == 0) memset(db, 0, (size_t)o * sizeof *db);
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t i = 0; i < o; i++)
            db[i] += sums[t * stride(o) + i];
}

/* Places [from, to). They lie where they do in a full chunk, even in the last one: other threads may be in
 * another chunk. */
static void sum_part(const en_plan *plan, const en_args *args, int64_t from, int64_t to)
{
    const pass *p = pass_of(args);
    const grid *g = &p->g;
    const int64_t c = g->from.c, o = g->to.c, most = g->at_once * g->wide;
    float *u = sums_of(plan, args), *v = chunk_of(plan, g, args, 0), *w = v + chunk_floats(g, c);
    for (int64_t i = 0; i < eni_cpu_parts(g->rows, g->at_once); i++) {
        const chunk k = chunk_at(g, i, (int)from, (int)to);
        transform_input_rows(g, &k, args->x, zeros_of(args), v, most * stride(c));
        transform_dy_rows(g, &k, args->dy, zeros_of(args), w, most * stride(o));
        for (int64_t at = from; at < to; at++)
            multiply(p, i > 0, o, c, k.rows * g->wide, w + at * most * stride(o), v + at * most * stride(c),
                     u + at * o * stride(c), true);
        if (plan->op.flags & EN_OP_BIAS && from <= SUM_OF_PIXELS && SUM_OF_PIXELS < to)
            add_bias(p, &k, w + SUM_OF_PIXELS * most * stride(o));
    }
}

static en_status winograd_backward_weights(en_plan *plan, const en_args *args)
{
    eni_cpu_products products;
    pass p = {.args = *args, .g = grid_of(plan, ENI_BACKWARD_WEIGHTS), .products = &products};
    eni_cpu_relu_mask(plan, args);
    begin(plan, &p);
    eni_cpu_split(plan, &p.args, PLACES, 1, sum_part);
    eni_cpu_split(plan, args, plan->op.channels, 1, dw_out);
    return eni_cpu_products_end(&products);
}

/* device.c recognises products that allocate in each call by "gemm:jit". */
static en_status winograd_prepare(en_plan *plan)
{
    for (int which = 0; which < eni_cpu_passes(plan); which++)
        eni_cpu_describe_pass(plan, which, "winograd:", "gemm:jit", workspace_bytes(plan, which));
    const uint64_t each = (uint64_t)weights_floats(plan) * sizeof(float);
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY))
        plan->info.kept_bytes = (plan->op.flags & EN_OP_NO_DX ? 1 : 2) * each;
    return EN_OK;
}

const eni_cpu_kernel eni_cpu_winograd = {
    .forward = winograd_forward,
    .backward_weights = winograd_backward_weights,
    .backward_data = winograd_backward_data,
    .prepare = winograd_prepare,
};
