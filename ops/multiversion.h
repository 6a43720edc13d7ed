/* multiversion.h - several machine versions of one loop, chosen when the program is loaded. ENI_MULTIVERSION
 * before a function compiles it for plain x86-64, AVX2 and AVX-512; on arm64 once, for NEON, which all arm64
 * has. The bits do not change with the version: the loops are elementwise, and -ffp-contract=off forbids the
 * fused multiply-add, the only thing that a wider machine would round differently.
 * tests/ops/test_multiversion.c checks that. Off under sanitizers (the loader resolves the versions before
 * their runtime is up), with clang, and where the C library has no indirect functions. */
#ifndef OPS_MULTIVERSION_H
#define OPS_MULTIVERSION_H

#include <stdint.h> /* defines __GLIBC__ */

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                 \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(ENI_NO_MULTIVERSION)
#define ENI_MULTIVERSION __attribute__((target_clones("default", "avx2", "avx512f")))
/* For inner loops of a few channels. */
#define ENI_MULTIVERSION_SHORT __attribute__((target_clones("default", "avx2")))
#else
#define ENI_MULTIVERSION
#define ENI_MULTIVERSION_SHORT
#endif

/* For their parts: inlined into each version of the caller, where arguments may be constants. */
#define ENI_ALWAYS_INLINE static inline __attribute__((always_inline))

/* The unit such a function computes on: a register on AVX-512, two or four elsewhere. */
typedef float eni_line __attribute__((vector_size(64), aligned(4), may_alias));

#endif
