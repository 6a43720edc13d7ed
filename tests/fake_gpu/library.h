/* library.h - what blas.cc, dnn.cc and nccl.cc share: how a library says no, and which memory it takes.
 *
 * The real libraries refuse what they can see at the call, and fault later on what they cannot. The fake
 * refuses both at the call, where the mistake is; FAKE_GPU_VERBOSE=1 prints one line for each refusal. */
#ifndef FAKE_GPU_LIBRARY_H
#define FAKE_GPU_LIBRARY_H

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/fake_gpu/fake_gpu.h"

namespace fake_gpu
{

inline bool is_verbose()
{
    return option_number("FAKE_GPU_VERBOSE", 0) != 0;
}

/* Whether a comma-separated switch of the environment names this word. */
inline bool switched_on(const char *variable, const char *word)
{
    const char *list = getenv(variable);
    const size_t length = strlen(word);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : nullptr)
        if (!strncmp(at, word, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

inline bool is_aligned(const void *memory, uint64_t bytes)
{
    return (uintptr_t)memory % bytes == 0;
}

/* The largest power of two up to 256 on which this address lies: what a heuristic sees of a pointer. */
inline uint32_t alignment_of(const void *memory)
{
    uint32_t alignment = 256;
    while ((uintptr_t)memory % alignment)
        alignment /= 2;
    return alignment;
}

inline bool overlaps(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

} // namespace fake_gpu

#endif
