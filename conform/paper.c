/* paper.c - the arithmetic that the references share: options, SGD, means, a server's step and answer. */
#include "conform/paper.h"

#include <stdlib.h>
#include <string.h>

/* The value of a key in "key=value,key": "" where it has none; NULL where it was not given. */
static const char *value_of(const char *options, const char *key)
{
    const size_t length = strlen(key);
    for (const char *at = options; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, key, length) == 0 && strchr("=,", at[length]) != NULL)
            return at[length] == '=' ? at + length + 1 : "";
    return NULL;
}

double eni_paper_num(const eni_paper *p, const char *key, double otherwise)
{
    const char *value = value_of(p->options, key);
    if (value == NULL) return otherwise;
    char *unit;
    double number = strtod(value, &unit);
    if (unit == value)
        number = *unit == 'W' || *unit == '\0' || strncmp(value, "on", 2) == 0; /* W; a key alone; on */
    if (*unit == 'W') return number * p->nranks;
    return strncmp(unit, "/W", 2) == 0 ? number / p->nranks : number;
}

bool eni_paper_is(const eni_paper *p, const char *key, const char *text, const char *otherwise)
{
    const char *value = value_of(p->options, key);
    if (value == NULL) value = otherwise;
    return strcspn(value, ",") == strlen(text) && strncmp(value, text, strlen(text)) == 0;
}

double eni_paper_rate(const eni_paper *p, uint64_t samples)
{
    return p->rates.lr * (p->rates.falls ? 1 - (double)samples / (double)p->rates.total : 1);
}

void eni_paper_descend(const eni_paper *p, double rate, double *w, double *m, const double *g)
{
    const double momentum = p->rates.momentum;
    for (uint64_t e = 0; e < p->n; e++) {
        const double d = g[e] + p->rates.decay * w[e];
        m[e] = momentum * m[e] + d;
        w[e] -= rate * (p->rates.is_nesterov ? d + momentum * m[e] : m[e]);
    }
}

void eni_paper_apply(eni_paper *p, const double *g, double weight, uint64_t samples)
{
    eni_paper_vec scaled;
    for (uint64_t e = 0; e < p->n; e++)
        scaled[e] = weight * g[e];
    if (samples > 0) eni_paper_descend(p, eni_paper_rate(p, p->applied), p->w, p->m, scaled);
    p->version++;
    p->applied += samples;
    p->weight = weight;
}

void eni_paper_answer(eni_paper *p, int r)
{
    for (int i = r; i < r + p->per_host && i < p->nranks; i++)
        memcpy(p->worker[i].x, p->w, sizeof p->w);
    p->worker[r].base = p->version;
    p->worker[r].waits = false;
    p->answered |= eni_paper_one(r);
}

uint32_t eni_paper_group(const eni_paper *p, int r)
{
    uint32_t who = 0;
    for (int i = 0; i < p->nranks; i++)
        if (p->group[i] == p->group[r]) who |= eni_paper_one(i);
    return who;
}

uint64_t eni_paper_mean_gradient(const eni_paper *p, uint32_t who, double *mean_out)
{
    uint64_t samples = 0;
    memset(mean_out, 0, sizeof(eni_paper_vec));
    for (int r = 0; r < p->nranks; r++) {
        if (!(who & eni_paper_one(r))) continue;
        samples += p->worker[r].samples;
        for (uint64_t e = 0; e < p->n; e++)
            mean_out[e] += (double)p->worker[r].samples * p->worker[r].g[e];
    }
    for (uint64_t e = 0; e < p->n && samples > 0; e++)
        mean_out[e] /= (double)samples;
    return samples;
}

void eni_paper_mean_weights(const eni_paper *p, uint32_t who, double *mean_out)
{
    int n = 0;
    memset(mean_out, 0, sizeof(eni_paper_vec));
    for (int r = 0; r < p->nranks; r++) {
        if (!(who & eni_paper_one(r))) continue;
        n++;
        for (uint64_t e = 0; e < p->n; e++)
            mean_out[e] += p->worker[r].x[e];
    }
    for (uint64_t e = 0; e < p->n; e++)
        mean_out[e] /= n;
}
