/* paper.h - a strategy as its paper states it: what `entrain conform` compares a plugin with.
 *
 * A reference is sequential and in double. It is written from the paper's equations and shares no line with
 * strategies/, runtime/ or ops/: optimizer, mean and learning rate below are its own. It reads inputs only (whose
 * gradient, of which samples, and the order in which messages arrived) and derives what follows from them: every step,
 * drop, hold, answer, staleness and weight.
 *
 *     servers.c   push(r): a message of worker r has arrived         rounds.c   round(): all workers have a gradient
 *                 gone(r): worker r makes no more calls
 *                 finish(r): worker r ends its step
 *
 * All of these strategies are elementwise and decide for each partition (bucket x shard) alone, so a reference sees one
 * partition of a run at a time, as if it were the whole model. In rounds the partition is the bucket. */
#ifndef CONFORM_PAPER_H
#define CONFORM_PAPER_H

#include <stdbool.h>
#include <stdint.h>

enum { ENI_PAPER_RANKS = 8, ENI_PAPER_ELEMENTS = 64 };
typedef double eni_paper_vec[ENI_PAPER_ELEMENTS];

typedef struct eni_paper_worker {
    eni_paper_vec x;   /* the weights on which its next gradient is computed */
    eni_paper_vec g;   /* the mean gradient over the samples of its step */
    eni_paper_vec m;   /* the momentum of its own optimizer */
    eni_paper_vec own; /* the strategy's: begins as the initial weights */
    uint64_t samples, step;
    double rate;           /* of its step */
    uint64_t clock, base;  /* messages so far; the version of the weights that it last received */
    bool is_client, waits; /* for an answer */
} eni_paper_worker;

typedef struct eni_paper eni_paper;

/* Facts about a reference, for the draw of schedules. */
enum {
    ENI_PAPER_MOMENTUM = 1, /* the paper's optimizer may have momentum and weight decay */
    ENI_PAPER_SCHEDULE = 2, /* .. and the rate may change within a run */
    ENI_PAPER_HOSTS = 4,    /* several ranks per host */
    ENI_PAPER_GROUPS = 8,   /* groups of one size */
    ENI_PAPER_UNEQUAL = 16, /* .. or of several */
};

typedef struct eni_reference {
    const char *name;           /* of the strategy */
    const char *source;         /* "author'year, equation" */
    const char *const *options; /* what a schedule draws from; ends with NULL. "" is the defaults */
    uint32_t flags;
    int32_t least_ranks;
    double rounding; /* how much of it the paper's formula amplifies; 0: 1 */
    /* Server: whether worker r sends a message in its step (NULL: in each); see above. Hooks but push may be NULL. */
    bool (*calls)(const eni_paper *, int r);
    void (*push)(eni_paper *, int r);
    void (*gone)(eni_paper *, int r);
    void (*finish)(eni_paper *, int r);
    void (*round)(eni_paper *);
    /* The model that the paper evaluates, or NULL while it has none. Default: the server's w, the mean of all x. */
    const double *(*model)(eni_paper *);
} eni_reference;

/* SGD as in PyTorch. */
typedef struct eni_paper_rates {
    double lr, momentum, decay;
    bool is_nesterov;
    bool falls;     /* linearly to 0 .. */
    uint64_t total; /* .. over this many samples */
} eni_paper_rates;

struct eni_paper {
    const eni_reference *reference;
    const char *options; /* "bound=3,..": as given */
    eni_paper_rates rates;
    int nranks, per_host;
    int32_t group[ENI_PAPER_RANKS]; /* of a rank: the lowest rank of its group */
    uint64_t n;                     /* elements */
    eni_paper_worker worker[ENI_PAPER_RANKS];
    eni_paper_vec w, m, own,
        before; /* the server's weights and its momentum; two of the strategy's, 0 and initial */
    uint64_t version, applied;      /* updates, and samples behind them */
    uint64_t collected, ncollected; /* samples and gradients in own */
    /* The decision on the current event. */
    uint32_t answered; /* bit r: worker r goes on */
    bool drops;
    double weight;
    char why[96]; /* the deciding inequality, for people */
};

/* The options of a reference. */
#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* All references; ends with an entry without a name. */
extern const eni_reference eni_paper_servers[], eni_paper_rounds[];

/* The number of an option, such as 3, inf, 2W, 0.9/W or on; `otherwise` where it was not given. is: whether it has that text. */
double eni_paper_num(const eni_paper *p, const char *key, double otherwise);
bool eni_paper_is(const eni_paper *p, const char *key, const char *text, const char *otherwise);

/* The learning rate when `samples` samples have been applied. */
double eni_paper_rate(const eni_paper *p, uint64_t samples);

/* One step: d = g + decay w; m = momentum m + d; w -= rate (m, or d + momentum m by Nesterov). */
void eni_paper_descend(const eni_paper *p, double rate, double *w, double *m, const double *g);

/* The server's step along weight * g: w, version and samples. Without samples only the version changes. */
void eni_paper_apply(eni_paper *p, const double *g, double weight, uint64_t samples);

/* Worker r (and the ranks of its host) goes on from the server's weights. */
void eni_paper_answer(eni_paper *p, int r);

/* Means over the workers of a set (bit r: worker r): of gradients, by samples, returning their sum; of weights. */
uint64_t eni_paper_mean_gradient(const eni_paper *p, uint32_t who, double *mean_out);
void eni_paper_mean_weights(const eni_paper *p, uint32_t who, double *mean_out);

/* Worker r as a set; those of its group; all. */
static inline uint32_t eni_paper_one(int r)
{
    return UINT32_C(1) << r;
}
uint32_t eni_paper_group(const eni_paper *p, int r);
static inline uint32_t eni_paper_all(const eni_paper *p)
{
    return (UINT32_C(1) << p->nranks) - 1;
}

#endif
