/* product.cc - blocks of 4 columns and 16 rows stay in registers while p runs. */
#pragma GCC optimize("O3") /* whole training runs go through here */

#include "tests/fake_gpu/product.h"

#include <algorithm>

#include "ops/clones.h"

static const int64_t ROWS = 16, COLUMNS = 4;

ENI_CLONES static void whole_block(float *d, const float *a, const float *b, int64_t m, int64_t k,
                                   int64_t from, int64_t to)
{
    float sum[COLUMNS][ROWS] = {};
    for (int64_t p = from; p < to; p++)
        for (int64_t j = 0; j < COLUMNS; j++)
            for (int64_t i = 0; i < ROWS; i++)
                sum[j][i] += a[p * m + i] * b[j * k + p];
    for (int64_t j = 0; j < COLUMNS; j++)
        for (int64_t i = 0; i < ROWS; i++)
            d[j * m + i] = sum[j][i];
}

static void edge_block(float *d, const float *a, const float *b, int64_t m, int64_t k, int64_t from,
                       int64_t to, int64_t rows, int64_t columns)
{
    for (int64_t j = 0; j < columns; j++) {
        float sum[ROWS] = {};
        for (int64_t p = from; p < to; p++)
            for (int64_t i = 0; i < rows; i++)
                sum[i] += a[p * m + i] * b[j * k + p];
        for (int64_t i = 0; i < rows; i++)
            d[j * m + i] = sum[i];
    }
}

void fake_gpu::multiply(float *d, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                        int64_t from, int64_t to)
{
    for (int64_t j = 0; j < n; j += COLUMNS)
        for (int64_t i = 0; i < m; i += ROWS) {
            const int64_t rows = std::min<int64_t>(m - i, ROWS), columns = std::min<int64_t>(n - j, COLUMNS);
            if (rows == ROWS && columns == COLUMNS)
                whole_block(d + j * m + i, a + i, b + j * k, m, k, from, to);
            else
                edge_block(d + j * m + i, a + i, b + j * k, m, k, from, to, rows, columns);
        }
}
