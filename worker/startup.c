/* startup.c - how long it took until the first step was over, from the start of the first of our processes.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "worker/worker.h"

enum {
    START_FIELD = 22,
    STAT_BYTES = 1024
}; /* proc(5): starttime, in clock ticks since the machine started */

/* Nanoseconds since the machine started, on a grid of 10 ms; 0: cannot be told. */
static int64_t process_start_ns(pid_t pid)
{
    char path[64], text[STAT_BYTES];
    unsigned long long ticks;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *at = strrchr(text, ')'); /* the end of field 2, which may hold anything */
    for (int field = 2; at != NULL && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || sscanf(at, "%llu", &ticks) != 1) return 0;
    return (int64_t)ticks * (ENI_SECOND / sysconf(_SC_CLK_TCK));
}

int64_t eni_startup_ns(bool is_launched)
{
    struct timespec now;
    const int64_t begin = process_start_ns(is_launched ? getppid() : getpid());
    clock_gettime(CLOCK_BOOTTIME, &now); /* what starttime counts in */
    return begin == 0 ? 0 : (int64_t)now.tv_sec * ENI_SECOND + now.tv_nsec - begin;
}
