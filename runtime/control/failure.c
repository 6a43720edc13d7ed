/* failure.c - see failure.h. */
#include "runtime/control/failure.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIELDS = 8, END_TRIES = 50, END_WAIT_MS = 100 };

void eni_failure_write(int fd, const eni_death *death)
{
    char line[1100];
    int n = snprintf(line, sizeof line, "death\t%d\t%lld\t%lld\t%d\t%s\t%s\t%s\n", (int)death->rank,
                     (long long)death->pid, (long long)death->step, death->is_stopped, death->host,
                     death->phase, death->cause);
    if (n < 0 || n >= (int)sizeof line) return;
    ssize_t ignored = write(fd, line, (size_t)n);
    (void)ignored;
}

void eni_end_write(int fd)
{
    char line[40];
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    const int n = snprintf(line, sizeof line, "end\t%lld\n", (long long)getpid());
    for (int tries = 0; fd >= 0 && tries < END_TRIES && write(fd, line, (size_t)n) < 0; tries++) {
        if (errno != EAGAIN && errno != EINTR) return;
        poll(&room, 1, END_WAIT_MS);
    }
}

static bool read_number(const char *text, long long *number_out)
{
    char *end;
    *number_out = strtoll(text, &end, 10);
    return end != text && *end == 0;
}

static bool fits(char *copy, size_t bytes, const char *text)
{
    return (size_t)snprintf(copy, bytes, "%s", text) < bytes;
}

bool eni_end_read(const char *line, int64_t *pid_out)
{
    long long pid;
    if (strncmp(line, "end\t", 4) != 0 || !read_number(line + 4, &pid)) return false;
    *pid_out = pid;
    return true;
}

bool eni_failure_read(char *line, eni_death *death_out)
{
    char *field[FIELDS], *rest = line;
    long long rank, pid, step, is_stopped;
    int n = 0;
    while (n < FIELDS && rest != NULL)
        field[n++] = strsep(&rest, "\t");
    if (n != FIELDS || rest != NULL || strcmp(field[0], "death") != 0) return false;
    if (!read_number(field[1], &rank) || !read_number(field[2], &pid) || !read_number(field[3], &step) ||
        !read_number(field[4], &is_stopped))
        return false;
    eni_death death = {.rank = (int32_t)rank, .pid = pid, .step = step, .is_stopped = is_stopped != 0};
    if (!fits(death.host, sizeof death.host, field[5]) || !fits(death.phase, sizeof death.phase, field[6]) ||
        !fits(death.cause, sizeof death.cause, field[7]))
        return false;
    *death_out = death;
    return true;
}
