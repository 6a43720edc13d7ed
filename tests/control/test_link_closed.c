/* test_link_closed.c - a heartbeat that is due when the connection has ended is not an error of its own: the
 * one line that matters names the dead process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "core/log.h"
#include "runtime/control/message.h"

static void count_errors(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem, (void)text;
    if (level == ENI_LOG_ERROR) ++*(int *)user;
}

static void put_frame(eni_link *link)
{
    assert_int_equal(eni_message_put(link, &(eni_message){.type = ENI_CTL_BYE}), EN_OK);
}

static void sending_on_a_closed_link_is_quiet(void **state)
{
    (void)state;
    int ends[2], errors = 0;
    eni_link link;
    eni_log_set_sink(count_errors, &errors);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    eni_link_init(&link, ends[0]);
    put_frame(&link);
    assert_int_equal(eni_link_flush(&link), EN_OK);
    assert_int_equal(link.out.bytes, 0);
    eni_link_fini(&link);
    assert_int_equal(eni_link_flush(&link), EN_OK); /* nothing to send */
    put_frame(&link);
    assert_int_equal(eni_link_flush(&link), EN_EPEER);
    assert_int_equal(errors, 0);
    eni_link_fini(&link);
    assert_int_equal(shutdown(ends[1], SHUT_RDWR), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sending_on_a_closed_link_is_quiet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
