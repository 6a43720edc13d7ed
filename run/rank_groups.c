/* rank_groups.c - reads and writes a grouping of the ranks, and locates a rank in it. */
#include "run/rank_groups.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"

/* ---- reading ------------------------------------------------------------------------------------------- */

typedef struct cut_reader {
    const char *at;
    int32_t nranks;
    int32_t *first; /* NULL: only the syntax is checked. While reading: the group's number, or -1 */
} cut_reader;

typedef enum verdict { GOOD, NO_FORM, FAR, TWICE, MISSING, TOO_MANY } verdict;

static bool number(cut_reader *r, int32_t *value_out)
{
    const size_t digits = strspn(r->at, "0123456789");
    if (digits == 0 || digits > 7) return false;
    *value_out = (int32_t)strtol(r->at, NULL, 10);
    r->at += digits;
    return true;
}

/* "3" or "4-6"; *rank_out is the last rank read. */
static verdict range(cut_reader *r, int32_t group, int32_t *rank_out)
{
    int32_t lo, hi;
    if (!number(r, &lo)) return NO_FORM;
    hi = lo;
    if (*r->at == '-') {
        r->at++;
        if (!number(r, &hi) || hi < lo) return NO_FORM;
    }
    for (*rank_out = lo; r->first != NULL && *rank_out <= hi; ++*rank_out) {
        if (*rank_out >= r->nranks) return FAR;
        if (r->first[*rank_out] >= 0) return TWICE;
        r->first[*rank_out] = group;
    }
    return GOOD;
}

/* "0-1;2,4-5;3", with '+' for ',' in an arm of a comparison, where commas separate options. */
static verdict lists(cut_reader *r, int32_t *rank_out)
{
    for (int32_t group = 0;; r->at++) {
        const verdict found = range(r, group, rank_out);
        if (found != GOOD) return found;
        if (*r->at == '\0') break;
        if (*r->at == ';')
            group++;
        else if (*r->at != ',' && *r->at != '+')
            return NO_FORM;
    }
    for (*rank_out = 0; r->first != NULL && *rank_out < r->nranks; ++*rank_out)
        if (r->first[*rank_out] < 0) return MISSING;
    return GOOD;
}

/* Group sizes differ by at most one. */
static verdict neighbours(cut_reader *r, int32_t n)
{
    if (r->first != NULL && n > r->nranks) return TOO_MANY;
    for (int64_t i = 0; r->first != NULL && i < r->nranks; i++)
        r->first[i] = (int32_t)(i * n / r->nranks);
    return GOOD;
}

/* Replaces each rank's group number, which is below nranks, by the group's first rank. */
static en_status lead(int32_t *first, int32_t nranks)
{
    int32_t *behind =
        eni_alloc_array((size_t)nranks, sizeof *behind); /* the first rank of a group + 1; 0: not seen yet */
    if (behind == NULL) return EN_ENOMEM;
    for (int32_t i = 0; i < nranks; i++) {
        int32_t *of_group = &behind[first[i]];
        if (*of_group == 0) *of_group = i + 1;
        first[i] = *of_group - 1;
    }
    eni_free(behind);
    return EN_OK;
}

/* A single number is a count of groups, except "0", which is a rank. */
static verdict read(cut_reader *r, int32_t *rank_out)
{
    int32_t n = 0;
    const char *text = r->at;
    for (int32_t i = 0; r->first != NULL && i < r->nranks; i++)
        r->first[i] = -1;
    const bool is_count = number(r, &n) && *r->at == '\0' && n > 0;
    if (!is_count) r->at = text;
    return is_count ? neighbours(r, n) : lists(r, rank_out);
}

static const char form[] =
    "groups of ranks separated by ';', as '0-1;2-3' or '0,2;1,3', or a number of groups of neighbours";

const char *eni_rank_groups_check(const char *text)
{
    cut_reader r = {.at = text};
    int32_t rank;
    return read(&r, &rank) == GOOD ? NULL : form;
}

en_status eni_rank_groups_read(const char *text, int32_t nranks, int32_t *first_out)
{
    cut_reader r = {text, nranks, first_out};
    int32_t rank = 0;
    switch (read(&r, &rank)) {
    case GOOD: return lead(first_out, nranks);
    case FAR:
        return eni_fail(EN_EINVAL, "groups",
                        "--groups: \"%.200s\" names rank %d, but the run has %d worker%s; give "
                        "each rank from 0 to %d once",
                        text, rank, nranks, nranks == 1 ? "" : "s", nranks - 1);
    case TWICE:
        return eni_fail(EN_EINVAL, "groups", "--groups: \"%.200s\" names rank %d twice; give each rank once",
                        text, rank);
    case MISSING:
        return eni_fail(EN_EINVAL, "groups",
                        "--groups: \"%.200s\" lacks rank %d; give each rank from 0 to %d once", text, rank,
                        nranks - 1);
    case TOO_MANY:
        return eni_fail(EN_EINVAL, "groups",
                        "--groups: \"%.200s\" is more groups than the run's %d worker%s; give %d at most",
                        text, nranks, nranks == 1 ? "" : "s", nranks);
    default: return eni_fail(EN_EINVAL, "groups", "--groups: \"%.200s\" is invalid; give %s", text, form);
    }
}

/* ---- writing, locating --------------------------------------------------------------------------------- */

void eni_rank_groups_text(const int32_t *first, int32_t nranks, char *text_out, size_t bytes)
{
    size_t at = 0;
    text_out[0] = '\0';
    for (int32_t g = 0; g < nranks; g++) {
        const char *mark = g > 0 ? ";" : "";
        for (int32_t lo = g, hi; first[g] == g && lo < nranks; lo = hi + 1) {
            hi = lo;
            if (first[lo] != g) continue;
            while (hi + 1 < nranks && first[hi + 1] == g)
                hi++;
            at += (size_t)snprintf(text_out + at, bytes - at, hi > lo ? "%s%d-%d" : "%s%d", mark, lo, hi);
            if (at >= bytes) return;
            mark = ",";
        }
    }
}

/* The rank's position in its group, the group's size, and the number of groups. */
static void place(const int32_t *first, const en_world *world, int32_t *rank_out, int32_t *n_out,
                  int32_t *groups_out)
{
    *rank_out = *n_out = *groups_out = 0;
    for (int32_t r = 0; r < world->nranks; r++) {
        *groups_out += first[r] == r;
        if (first[r] != first[world->rank]) continue;
        *rank_out += r < world->rank;
        ++*n_out;
    }
}

void eni_rank_groups_place(const int32_t *hosts, const int32_t *groups, en_world *world)
{
    place(hosts, world, &world->local_rank, &world->nlocal, &world->nhosts);
    place(groups, world, &world->group_rank, &world->ngroup, &world->ngroups);
    world->group = 0;
    for (int32_t r = 0; r < groups[world->rank]; r++)
        world->group += groups[r] == r;
}

/* Two passes: the first counts in the fields of each leader, so that a million ranks take no longer than they must. */
void eni_rank_groups_place_all(const int32_t *hosts, const int32_t *groups, int32_t nranks, en_world *worlds)
{
    int32_t nhosts = 0, ngroups = 0;
    for (int32_t r = 0; r < nranks; r++) {
        nhosts += hosts[r] == r;
        if (groups[r] == r) worlds[r].group = ngroups++;
        worlds[r].local_rank = worlds[hosts[r]].nlocal++;
        worlds[r].group_rank = worlds[groups[r]].ngroup++;
    }
    for (int32_t r = 0; r < nranks; r++) {
        worlds[r].nlocal = worlds[hosts[r]].nlocal;
        worlds[r].ngroup = worlds[groups[r]].ngroup;
        worlds[r].group = worlds[groups[r]].group;
        worlds[r].nhosts = nhosts;
        worlds[r].ngroups = ngroups;
    }
}
