/* product.h - the one loop under blas.cc and dnn.cc. */
#ifndef FAKE_GPU_PRODUCT_H
#define FAKE_GPU_PRODUCT_H

#include <cstdint>

namespace fake_gpu
{

/* d[j][i] = sum over p in [from, to) of a[p][i] * b[j][p]; d (n, m), a (k, m), b (n, k), all packed. The sum
 * runs upward in p, one float rounding each. */
void multiply(float *d, const float *a, const float *b, int64_t m, int64_t n, int64_t k, int64_t from,
              int64_t to);

} // namespace fake_gpu

#endif
