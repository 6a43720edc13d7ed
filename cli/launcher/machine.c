/* machine.c - the processor time of the whole machine minus our children's, and the load average. */
#include "cli/launcher/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"

static const double shortest = 1.2; /* seconds of all cores together */

static double seconds_of(int who)
{
    struct rusage usage;
    if (getrusage(who, &usage) != 0) return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* The first line is the sum over the cores: user nice system idle iowait irq softirq steal, in ticks; user
 * already includes guests. */
static void read_stat(eni_machine *machine)
{
    char line[512];
    double t[8];
    FILE *file = fopen("/proc/stat", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && strncmp(line, "cpu", 3) == 0) {
        if (line[3] != ' ') {
            machine->cores++;
        } else if (sscanf(line + 4, "%lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4],
                          &t[5], &t[6], &t[7]) == 8) {
            machine->used = (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
        }
    }
    if (file != NULL) fclose(file);
}

eni_machine eni_machine_now(void)
{
    eni_machine now = {.ns = eni_now_ns(), .own = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN)};
    read_stat(&now);
    return now;
}

double eni_machine_outside(const eni_machine *before, const eni_machine *after)
{
    const double all = 1e-9 * (double)(after->ns - before->ns) * before->cores;
    const double used = after->used - before->used, own = after->own - before->own;
    if (!(all >= shortest) || !(used > 0)) return NAN; /* a sandbox may show a /proc/stat that stands still */
    const double share = (used - own) / all;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

double eni_machine_load(void)
{
    double load[1];
    return getloadavg(load, 1) == 1 ? load[0] : -1;
}
