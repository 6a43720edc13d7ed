/* test_net_links.c - links by rank, machine and server: read, and refused. */
#include "run/net_links.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/heard.h"

enum { RANKS = 8, MACHINES = 2, SERVERS = 3 };

static eni_net_link links_of[ENI_NET_OWNERS][RANKS];

static en_status read(const char *text, eni_net_links *links)
{
    *links = (eni_net_links){.n = {RANKS, MACHINES, SERVERS}, .of = {links_of[0], links_of[1], links_of[2]}};
    for (int o = 0; o < ENI_NET_OWNERS; o++)
        for (int i = 0; i < RANKS; i++)
            links_of[o][i] = (eni_net_link){7, 7};
    return eni_net_links_read(text, links);
}

static void the_more_exact_part_counts(void **state)
{
    (void)state;
    eni_net_links links;
    assert_int_equal(read("delay:1us", &links), EN_OK);
    for (int o = 0; o < ENI_NET_OWNERS; o++)
        for (int i = 0; i < links.n[o]; i++)
            assert_true(links_of[o][i].delay_ns == 1000 && links_of[o][i].bytes_per_s == 0);
    assert_false(links.has_machines);
    assert_int_equal(
        read("6-7=rate:1MB,delay:3us;ranks=delay:2us;machines:1=rate:2MB;servers=none;delay:1us", &links),
        EN_OK);
    assert_true(links.has_machines);
    for (int i = 0; i < RANKS; i++)
        assert_true(links_of[ENI_NET_RANKS][i].delay_ns == (i < 6 ? 2000 : 3000) &&
                    links_of[ENI_NET_RANKS][i].bytes_per_s == (i < 6 ? 0 : 1e6));
    assert_true(links_of[ENI_NET_MACHINES][0].delay_ns == 1000 &&
                links_of[ENI_NET_MACHINES][1].bytes_per_s == 2e6);
    assert_true(links_of[ENI_NET_SERVERS][2].delay_ns == 0);
    assert_int_equal(read("ranks:1=delay:1us", &links), EN_OK);
    assert_true(links_of[ENI_NET_RANKS][0].delay_ns == 7 && links_of[ENI_NET_RANKS][1].delay_ns == 1000);
}

static heard said;

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const forms[] = {"",
                                        "rate:1GB;",
                                        "x=rate:1GB",
                                        "rank=rate:1GB",
                                        "1=",
                                        "servers:=none",
                                        "servers:-1=none",
                                        "0-=none",
                                        "2-1=none",
                                        "serv=none",
                                        "machines:1-=none",
                                        "1=delay:5",
                                        "1=rate:1GB,rate:2GB",
                                        "=none",
                                        "servers:1:2=none"};
    static const char *const twice[][2] = {{"1=none;0-1=none", "1 of the ranks"},
                                           {"servers=none;servers=none", "0 of the servers"},
                                           {"none;delay:1us", "0 of the ranks"},
                                           {"8=none", "ranks 0 to 7"},
                                           {"machines:0-2=none", "machines 0 to 1"}};
    eni_net_links links;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (eni_net_links_check(forms[i]) == NULL) fail_msg("\"%s\" is taken", forms[i]);
    eni_log_set_sink(hear, &said);
    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        assert_null(eni_net_links_check(twice[i][0]));
        assert_int_equal(read(twice[i][0], &links), EN_EINVAL);
        if (strstr(said.text, twice[i][1]) == NULL) fail_msg("%s: %s", twice[i][0], said.text);
    }
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_more_exact_part_counts),
                                       cmocka_unit_test(other_texts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
