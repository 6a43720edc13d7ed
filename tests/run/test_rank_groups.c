/* test_rank_groups.c - a cut of the ranks into groups: read, refused with the rank that is wrong, written, and a rank
 * placed in it. */
#include "run/rank_groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/heard.h"
#include "tests/mentions.h"

enum { MOST = 1024 };

static heard said;

static void equal_cuts_are_equal(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t nranks;
        const char *shortest;
        int32_t first[8];
    } cuts[] = {
        {"0-1;2-3", 4, "0-1;2-3", {0, 0, 2, 2}},
        {"2", 4, "0-1;2-3", {0, 0, 2, 2}},
        {"3,2;1,0", 4, "0-1;2-3", {0, 0, 2, 2}},
        {"1", 3, "0-2", {0, 0, 0}},
        {"3", 3, "0;1;2", {0, 1, 2}},
        {"0", 1, "0", {0}},
        {"0,2;1,3", 4, "0,2;1,3", {0, 1, 0, 1}},
        {"1+3;2+0", 4, "0,2;1,3", {0, 1, 0, 1}},
        {"4;0-2,6;3,5", 7, "0-2,6;3,5;4", {0, 0, 0, 3, 4, 3, 0}},
        {"3", 7, "0-2;3-4;5-6", {0, 0, 0, 3, 3, 5, 5}},
    };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int32_t first[8];
        char text[64];
        assert_null(eni_rank_groups_check(cuts[i].text));
        assert_int_equal(eni_rank_groups_read(cuts[i].text, cuts[i].nranks, first), EN_OK);
        assert_memory_equal(first, cuts[i].first, (size_t)cuts[i].nranks * sizeof *first);
        eni_rank_groups_text(first, cuts[i].nranks, text, sizeof text);
        assert_string_equal(text, cuts[i].shortest);
    }
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        int has_form;
    } bad[] = {{"0-1;1-3", "rank 1 twice", 1},
               {"0,0;1-3", "rank 0 twice", 1},
               {"0-1;3", "rank 2", 1},
               {"0-1;2-4", "rank 4|4 workers", 1},
               {"0-99999", "rank 4", 1},
               {"5", "\"5\"|4 workers", 1},
               {"", "0-1;2-3", 0},
               {"0", "rank 1", 1},
               {"-1", "0-1;2-3", 0},
               {"0-1;", "0-1;2-3", 0},
               {";0-3", "0-1;2-3", 0},
               {"0--3", "0-1;2-3", 0},
               {"3-1;0", "0-1;2-3", 0},
               {"0-3 ", "0-1;2-3", 0},
               {"0-1;;2-3", "0-1;2-3", 0},
               {"0-1;2-3x", "0-1;2-3", 0},
               {"12345678", "0-1;2-3", 0},
               {"0-12345678", "0-1;2-3", 0},
               {"0x1", "0-1;2-3", 0},
               {"0-", "0-1;2-3", 0}};
    eni_log_set_sink(hear, &said);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t first[4];
        assert_int_equal(eni_rank_groups_check(bad[i].text) == NULL, bad[i].has_form);
        assert_int_equal(eni_rank_groups_read(bad[i].text, 4, first), EN_EINVAL);
        if (!mentions(said.text, bad[i].says) || !mentions(said.text, "--groups"))
            fail_msg("\"%s\": %s", bad[i].text, said.text);
    }
    eni_log_set_sink(NULL, NULL);
}

/* Every second rank: the longest text that there is. It reads back. */
static void the_longest_text_fits(void **state)
{
    (void)state;
    static int32_t first[MOST], again[MOST];
    char text[ENI_RANK_GROUPS_TEXT];
    for (int32_t r = 0; r < MOST; r++)
        first[r] = r % 2;
    eni_rank_groups_text(first, MOST, text, sizeof text);
    assert_true(strlen(text) > 3900 && strlen(text) < sizeof text - 1);
    assert_int_equal(eni_rank_groups_read(text, MOST, again), EN_OK);
    assert_memory_equal(first, again, sizeof first);
    eni_rank_groups_text(first, MOST, text, 10);
    assert_int_equal(strlen(text), 9);
}

/* As many ranks as virtual time may have: pairs of ranks would take minutes. */
static void a_million_ranks_take_no_time(void **state)
{
    (void)state;
    enum { MANY = 1000000 };
    static int32_t first[MANY];
    assert_int_equal(eni_rank_groups_read("2", MANY, first), EN_OK);
    assert_true(first[MANY / 2 - 1] == 0 && first[MANY / 2] == MANY / 2 && first[MANY - 1] == MANY / 2);
    assert_int_equal(eni_rank_groups_read("500000-999999;0-499999", MANY, first), EN_OK);
    assert_true(first[MANY / 2 - 1] == 0 && first[MANY / 2] == MANY / 2 && first[MANY - 1] == MANY / 2);
}

static void a_rank_knows_its_place(void **state)
{
    (void)state;
    static const int32_t hosts[] = {0, 0, 0, 3, 3, 3}, groups[] = {0, 1, 1, 0, 4, 1};
    en_world w = {.rank = 5, .nranks = 6};
    eni_rank_groups_place(hosts, groups, &w);
    assert_true(w.local_rank == 2 && w.nlocal == 3 && w.nhosts == 2);
    assert_true(w.group == 1 && w.group_rank == 2 && w.ngroup == 3 && w.ngroups == 3);
    w = (en_world){.rank = 4, .nranks = 6};
    eni_rank_groups_place(hosts, groups, &w);
    assert_true(w.local_rank == 1 && w.group == 2 && w.group_rank == 0 && w.ngroup == 1 && w.ngroups == 3);
    en_world all[6] = {{0}};
    for (int32_t r = 0; r < 6; r++)
        all[r] = (en_world){.rank = r, .nranks = 6};
    eni_rank_groups_place_all(hosts, groups, 6, all);
    for (int32_t r = 0; r < 6; r++) {
        w = (en_world){.rank = r, .nranks = 6};
        eni_rank_groups_place(hosts, groups, &w);
        assert_memory_equal(&w, &all[r], sizeof w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_cuts_are_equal), cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(the_longest_text_fits), cmocka_unit_test(a_million_ranks_take_no_time),
        cmocka_unit_test(a_rank_knows_its_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
