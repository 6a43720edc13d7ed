/* test_rows.c - orders of dimensions: each element is where the order says, in both directions, for every size of an element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "models/formats/rows.h"

static void equal_layouts_have_equal_orders(void **state)
{
    (void)state;
    static const struct {
        int64_t shape[3];
        uint8_t given[3], taken[3];
    } cases[] = {{{4, 5, 6}, {2, 0, 1}, {2, 0, 1}}, {{4, 5, 6}, {0, 1, 2}, {0, 0, 0}},
                 {{4, 5, 6}, {0, 0, 0}, {0, 0, 0}}, {{4, 1, 6}, {1, 0, 2}, {0, 0, 0}},
                 {{4, 1, 6}, {1, 2, 0}, {2, 0, 1}}, {{4, 1, 6}, {2, 0, 1}, {2, 0, 1}},
                 {{1, 1, 6}, {2, 1, 0}, {0, 0, 0}}};
    en_model_tensor t = {.ndim = 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(t.shape, cases[i].shape, sizeof cases[i].shape);
        assert_true(eni_rows_set_order(
            &t, (const uint8_t[EN_MAX_DIMS]){cases[i].given[0], cases[i].given[1], cases[i].given[2]}));
        assert_memory_equal(t.order, cases[i].taken, sizeof cases[i].taken);
    }
    assert_false(eni_rows_set_order(&t, (const uint8_t[EN_MAX_DIMS]){1, 1, 0}));
    assert_false(eni_rows_set_order(&t, (const uint8_t[EN_MAX_DIMS]){1, 2, 3}));
}

/* (2, 3, 4) in the order 1, 2, 0: element (i, j, k) lies at (j * 4 + k) * 2 + i. */
static void elements_lie_where_the_order_says(void **state)
{
    (void)state;
    static const uint32_t types[] = {EN_U8, EN_F16, EN_F32, EN_I64};
    unsigned char own[24 * 8], back[24 * 8];
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        en_model_tensor t = {.ndim = 3, .shape = {2, 3, 4}, .count = 24, .dtype = types[type]};
        const size_t size = en_dtype_bytes(t.dtype);
        void *copy;
        for (size_t i = 0; i < 24 * size; i++)
            own[i] = (unsigned char)(i + 1);
        assert_ptr_equal(eni_rows_of(&t, own, &copy), own); /* row-major: itself */
        assert_null(copy);
        assert_true(eni_rows_set_order(&t, (const uint8_t[EN_MAX_DIMS]){1, 2, 0}));
        const unsigned char *rows = eni_rows_of(&t, own, &copy);
        assert_ptr_equal(rows, copy);
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < 3; j++)
                for (size_t k = 0; k < 4; k++)
                    assert_memory_equal(rows + ((i * 3 + j) * 4 + k) * size,
                                        own + ((j * 4 + k) * 2 + i) * size, size);
        memset(back, 0, sizeof back);
        eni_rows_to(&t, rows, back);
        assert_memory_equal(back, own, 24 * size);
        eni_free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_layouts_have_equal_orders),
                                       cmocka_unit_test(elements_lie_where_the_order_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
