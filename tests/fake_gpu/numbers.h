/* numbers.h - the three types of number that the libraries take, widened to float and rounded back.
 *
 *     F32    1 sign,  8 exponent, 23 fraction
 *     TF32   1 sign,  8 exponent, 10 fraction, 13 ignored: only inside a product, never in memory
 *     BF16   1 sign,  8 exponent,  7 fraction
 *     F16    1 sign,  5 exponent, 10 fraction
 *
 * Rounding is to nearest, ties to even, as NVIDIA's conversions are; to TF32 ties go away from zero
 * (PTX cvt.rna.tf32.f32). */
#ifndef FAKE_GPU_NUMBERS_H
#define FAKE_GPU_NUMBERS_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace fake_gpu
{

enum class Number { F32, BF16, F16 };

inline size_t size_of(Number type)
{
    return type == Number::F32 ? 4 : 2;
}

inline float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float load(const void *array, Number type, int64_t i)
{
    if (type == Number::F32) {
        float value;
        memcpy(&value, (const char *)array + 4 * i, 4);
        return value;
    }
    uint16_t half;
    memcpy(&half, (const char *)array + 2 * i, 2);
    if (type == Number::BF16) return bits_to_float((uint32_t)half << 16);
    __half_raw raw;
    raw.x = half;
    return __half2float(__half(raw));
}

inline void store(void *array, Number type, int64_t i, float value)
{
    if (type == Number::F32) {
        memcpy((char *)array + 4 * i, &value, 4);
        return;
    }
    const uint16_t half = type == Number::BF16 ? __nv_bfloat16_raw(__float2bfloat16_rn(value)).x
                                               : __half_raw(__float2half_rn(value)).x;
    memcpy((char *)array + 2 * i, &half, 2);
}

inline float round_tf32(float value)
{
    const uint32_t bits = float_to_bits(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return value; /* infinite, or not a number */
    return bits_to_float((bits + 0x1000u) & ~0x1fffu);
}

} // namespace fake_gpu

#endif
