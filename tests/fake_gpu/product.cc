/* product.cc - blocks of 4 columns and 16 rows stay in registers while p runs; the 16 rows of A lie side by
 * side for all columns (in A itself, p and p + 1 are pages apart). */
#pragma GCC optimize("O3") /* whole training runs go through here */

#include "tests/fake_gpu/product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/multiversion.h"

static const int64_t ROWS = 16, COLUMNS = 4;
typedef float Rows __attribute__((vector_size(64)));

/* panel: rows of A, (to - from, ROWS) */
ENI_MULTIVERSION static void whole_block(float *d, const float *panel, const float *b, int64_t m, int64_t k,
                                         int64_t from, int64_t to)
{
    Rows s0 = {}, s1 = {}, s2 = {},
         s3 = {}; /* left to itself, gcc 12 turns the 4 into the vectors' direction */
    for (int64_t p = from; p < to; p++, panel += ROWS) {
        Rows rows;
        memcpy(&rows, panel, sizeof rows);
        s0 += rows * b[p];
        s1 += rows * b[k + p];
        s2 += rows * b[2 * k + p];
        s3 += rows * b[3 * k + p];
    }
    memcpy(d, &s0, sizeof s0);
    memcpy(d + m, &s1, sizeof s1);
    memcpy(d + 2 * m, &s2, sizeof s2);
    memcpy(d + 3 * m, &s3, sizeof s3);
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
    std::vector<float> panel((size_t)((to - from) * ROWS));
    for (int64_t i = 0; i < m; i += ROWS) {
        const int64_t rows = std::min<int64_t>(m - i, ROWS);
        for (int64_t p = from; rows == ROWS && p < to; p++)
            std::copy_n(a + p * m + i, ROWS, panel.begin() + (p - from) * ROWS);
        for (int64_t j = 0; j < n; j += COLUMNS) {
            const int64_t columns = std::min<int64_t>(n - j, COLUMNS);
            if (rows == ROWS && columns == COLUMNS)
                whole_block(d + j * m + i, panel.data(), b + j * k, m, k, from, to);
            else
                edge_block(d + j * m + i, a + i, b + j * k, m, k, from, to, rows, columns);
        }
    }
}
