/* test_log.c - levels, the sink, and one write(2) per line. */
#include "core/log.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/said.h"

struct heard {
    int count, level;
    char subsystem[32], text[4096];
};

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    struct heard *heard = user;
    heard->count++;
    heard->level = level;
    snprintf(heard->subsystem, sizeof heard->subsystem, "%s", subsystem);
    snprintf(heard->text, sizeof heard->text, "%s", text);
}

static void test_sink_hears_what_the_level_lets_through(void **state)
{
    (void)state;
    struct heard heard = {0};
    eni_log_set_sink(listen_in, &heard);
    eni_debug("ring", "not at the default level");
    assert_int_equal(heard.count, 0);
    eni_info("ring", "%s %d", "peer", 3);
    assert_int_equal(heard.count, 1);
    assert_int_equal(heard.level, ENI_LOG_INFO);
    assert_string_equal(heard.subsystem, "ring");
    assert_string_equal(heard.text, "peer 3");
    eni_info("ring", "from a peer: %s",
             "a\n09:00:00.000 E psd leader: no line of ours\x1b[2J\x7f"); /* forged */
    assert_string_equal(heard.text,
                        "from a peer: a\\x0a09:00:00.000 E psd leader: no line of ours\\x1b[2J\\x7f");
    /* no letter, one of too many bytes, C1's CSI, half a letter at the end; and letters of 2, 3 and 4 bytes */
    eni_info("ring", "%s",
             "a\xff \xc0\xaf \xc2\x9b"
             "2J \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \xe4\xb8");
    assert_string_equal(heard.text,
                        "a\\xff \\xc0\\xaf \\xc2\\x9b2J \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \\xe4\\xb8");
    char last[8];
    eni_error("store", "\xff\xff");
    assert_true(eni_log_last_error(last, sizeof last) && strcmp(last, "\\xff\\xf") == 0);
    eni_log_set_level(ENI_LOG_ERROR);
    eni_warn("ring", "dropped");
    assert_int_equal(heard.count, 4);
    eni_error("store", "kept");
    assert_int_equal(heard.count, 5);
    eni_log_set_level(ENI_LOG_TRACE);
    eni_log(ENI_LOG_TRACE, "store", "kept too");
    assert_int_equal(heard.count, 6);
    eni_log_set_level(ENI_LOG_INFO);
    eni_log_set_sink(NULL, NULL);
}

/* stderr becomes a socket that keeps the borders between writes. */
struct wire {
    int saved, end;
};

static struct wire wire_open(void)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
    struct wire wire = {.saved = dup(STDERR_FILENO), .end = pair[0]};
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    return wire;
}

static void wire_close(struct wire *wire)
{
    dup2(wire->saved, STDERR_FILENO);
    close(wire->saved);
    close(wire->end);
}

static void test_one_write_per_line(void **state)
{
    (void)state;
    char line[4096];
    struct wire wire = wire_open();
    eni_log_set_who("a:1");
    eni_warn("mesh", "dropped %d of %d", 1, 2);
    eni_log_set_who("");
    eni_error("mesh", "gone");
    ssize_t first = recv(wire.end, line, sizeof line - 1, 0);
    char second[4096];
    ssize_t n = recv(wire.end, second, sizeof second - 1, 0);
    ssize_t rest = recv(wire.end, second + n + 1, 16, 0);
    wire_close(&wire);
    assert_true(first > 0 && n > 0);
    line[first] = second[n] = 0;
    assert_int_equal(rest, -1); /* nothing more: two lines, two writes */
    int hours, minutes, seconds, millis;
    assert_int_equal(sscanf(line, "%2d:%2d:%2d.%3d ", &hours, &minutes, &seconds, &millis), 4);
    assert_string_equal(line + strlen("00:00:00.000 "), "W a:1: dropped 1 of 2\n");
    assert_string_equal(second + strlen("00:00:00.000 "), "E gone\n");
}

/* The bar of a run that a line interrupts would stand in front of it. */
static void test_a_line_takes_the_place_of_a_bar(void **state)
{
    (void)state;
    char said[256];
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0) skip(); /* no /dev/pts here */
    const int saved = dup(STDERR_FILENO);
    dup2(slave, STDERR_FILENO);
    eni_error("member", "rank 1 died");
    dup2(saved, STDERR_FILENO);
    close(saved);
    said_all(slave, master, said, sizeof said);
    close(slave);
    close(master);
    assert_memory_equal(said, "\r\033[K", 4);
    assert_non_null(strstr(said, "rank 1 died\r\n"));
}

/* Longer than any buffer: cut, but still one line with its end. */
static void test_long_line_keeps_its_newline(void **state)
{
    (void)state;
    char line[8192], text[5000], who[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    memset(who, 'w', sizeof who - 1);
    who[sizeof who - 1] = 0;
    struct wire wire = wire_open();
    eni_log_set_who(who);
    eni_info("a-subsystem-with-a-name-that-is-far-too-long-for-anybody-to-like-it-or-to-read-it-through"
             "-to-its-very-end-which-comes-here-and-not-before-it-has-filled-the-line",
             "%s", text);
    eni_log_set_who("");
    ssize_t n = recv(wire.end, line, sizeof line, 0);
    char none;
    ssize_t rest = recv(wire.end, &none, 1, 0);
    wire_close(&wire);
    assert_true(n > 1000);
    assert_int_equal(rest, -1);
    assert_ptr_equal(memchr(line, '\n', (size_t)n), line + n - 1); /* one newline, and it is the last byte */
    assert_null(memchr(line, 0, (size_t)n));
}

/* What an unauthenticated peer causes fills no disk: five lines, then none for 10 s, but counted. */
static void test_many_lines_of_one_kind_are_few(void **state)
{
    (void)state;
    struct heard heard = {0};
    eni_log_limit limit = {0};
    eni_log_set_sink(listen_in, &heard);
    for (int i = 0; i < 100000; i++)
        eni_log_every(&limit, ENI_LOG_WARN, "door", "refused %d", i);
    assert_int_equal(heard.count, 5);
    assert_string_equal(heard.text, "refused 4");
    atomic_store(&limit.next_ns, 0); /* as if 10 s had gone by */
    eni_log_every(&limit, ENI_LOG_WARN, "door", "refused %d", 7);
    assert_int_equal(heard.count, 6);
    assert_string_equal(heard.text, "refused 7 (and 99995 like it)");
    eni_log_every(&limit, ENI_LOG_WARN, "door", "refused");
    assert_int_equal(heard.count, 6);
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sink_hears_what_the_level_lets_through),
        cmocka_unit_test(test_one_write_per_line),
        cmocka_unit_test(test_a_line_takes_the_place_of_a_bar),
        cmocka_unit_test(test_long_line_keeps_its_newline),
        cmocka_unit_test(test_many_lines_of_one_kind_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
