/* said.h - what was written to a pipe or a pseudo terminal, whole: a terminal hands over what it has just then, which
 * may be a line, and may forget its text when nobody holds it any more. */
#ifndef TESTS_SAID_H
#define TESTS_SAID_H

#include <poll.h>
#include <string.h>
#include <unistd.h>

/* All that was written to `to` and comes out of `from`, as a text; its length. Both stay open. Writes a mark behind it and
 * reads until it has come: ten seconds at most between two parts. */
static inline size_t said_all(int to, int from, char *text_out, size_t room)
{
    static const char mark[] = "<all was said>";
    const size_t length = sizeof mark - 1;
    struct pollfd p = {.fd = from, .events = POLLIN};
    size_t used = 0;
    assert_int_equal(write(to, mark, length), length);
    while (used < length || memcmp(text_out + used - length, mark, length) != 0) {
        assert_int_equal(poll(&p, 1, 10000), 1);
        const ssize_t n = read(from, text_out + used, room - used);
        assert_true(n > 0);
        used += (size_t)n;
    }
    text_out[used - length] = 0;
    return used - length;
}

#endif
