/* rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as
 * easy as 1, 2, 3"). A number is a pure function of (seed, purpose, rank, step, index), so no order of
 * calls, no thread and no restart can change it. */
#ifndef CORE_RNG_H
#define CORE_RNG_H

#include <stdint.h>

/* The purpose of a number; two purposes never share a stream. Append only: runs must stay repeatable. */
enum {
    ENI_RNG_INIT = 1,      /* initial weights; rank 0, step = tensor */
    ENI_RNG_ORDER = 2,     /* the data order; step = epoch */
    ENI_RNG_STRATEGY = 3,  /* en_host.rand */
    ENI_RNG_STRAGGLER = 4, /* injected delays */
    ENI_RNG_SYNTHETIC = 5, /* made-up data sets */
    ENI_RNG_SIM = 6,       /* virtual time: compute and link noise */
    ENI_RNG_TEST = 7,
    /* Crops and mirrors; step = epoch, index = 4 * sample + the draw; test images: rank 1, step 0. */
    ENI_RNG_AUGMENT = 8,
};

typedef struct eni_rng_key {
    uint64_t seed;
    uint32_t purpose;
    uint32_t rank;
    uint64_t step;
} eni_rng_key;

/* The index-th 64-bit number of the stream. */
uint64_t eni_rng_u64(const eni_rng_key *key, uint64_t index);

/* Uniform in [0, bound) without bias (Lemire 2019; rejections draw from a sub-stream); bound > 0. */
uint64_t eni_rng_below(const eni_rng_key *key, uint64_t index, uint64_t bound);

/* Uniform in [0, 1), 53 bits. */
double eni_rng_unit(const eni_rng_key *key, uint64_t index);

#endif
