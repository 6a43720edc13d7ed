/* process.c - reads state and start time from /proc/PID/stat. */
#include "runtime/net/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* State and start time. The name (field 2) may contain anything, even a ')': the fields follow the last
 * one. */
static bool read_stat(int64_t pid, char *state_out, uint64_t *born_out)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = '\0';
    const char *at = strrchr(line, ')');
    return at != NULL && sscanf(at,
                                ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                "%" SCNu64,
                                state_out, born_out) == 2;
}

uint64_t eni_process_born(int64_t pid)
{
    char state;
    uint64_t born;
    return read_stat(pid, &state, &born) ? born : 0;
}

eni_process_state eni_process_look(int64_t pid, uint64_t born)
{
    char state;
    uint64_t now_born;
    if (born == 0) return ENI_PROCESS_UNKNOWN;
    if (!read_stat(pid, &state, &now_born)) /* EMFILE and similar errors say nothing about it */
        return errno == ENOENT || errno == ESRCH ? ENI_PROCESS_ENDED : ENI_PROCESS_UNKNOWN;
    if (now_born != born) return ENI_PROCESS_ENDED;
    if (state == 'T' || state == 't') return ENI_PROCESS_STOPPED;
    return state == 'Z' || state == 'X' ? ENI_PROCESS_ENDED : ENI_PROCESS_RUNS;
}

int eni_process_watch(int64_t pid, uint64_t born)
{
    if (born == 0) return -1;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0); /* close-on-exec by itself */
    if (fd < 0) return -1;
    /* Checked after the descriptor is open, so that it belongs to this process and not to a later one. */
    if (eni_process_look(pid, born) != ENI_PROCESS_ENDED) return fd;
    close(fd);
    return -1;
}
