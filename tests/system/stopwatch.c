/* stopwatch.c - the test's own time; see process.h. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/system/process.h"

/* Reads /proc/PID/stat after the name, which may hold anything: the parent, and the CPU time of the process
 * and of the children it has waited for; 0 without such a process. */
static int look_at(const char *pid, int *parent_out, double *seconds_out)
{
    char path[300], text[1024] = "";
    unsigned long user, kernel;
    long child_user, child_kernel;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *end = strrchr(text, ')');
    if (end == NULL || sscanf(end + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld",
                              parent_out, &user, &kernel, &child_user, &child_kernel) != 5)
        return 0;
    *seconds_out = ((double)user + (double)kernel + (double)child_user + (double)child_kernel) /
                   (double)sysconf(_SC_CLK_TCK);
    return 1;
}

static int descends_from_us(int parent)
{
    char pid[16];
    double seconds;
    while (parent > 1 && parent != getpid()) {
        snprintf(pid, sizeof pid, "%d", parent);
        if (!look_at(pid, &parent, &seconds)) return 0;
    }
    return parent == getpid();
}

static double of_usage(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec);
}

/* CPU seconds of this process and of all that descend from it, living and dead. */
static double own_cpu(void)
{
    double sum = of_usage(RUSAGE_SELF) + of_usage(RUSAGE_CHILDREN);
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int parent;
        double seconds;
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !look_at(e->d_name, &parent, &seconds)) continue;
        if (descends_from_us(parent)) sum += seconds;
    }
    if (dir != NULL) closedir(dir);
    return sum;
}

/* CPU seconds of all processes of this machine, and those that its host took from it. */
static double all_cpu(void)
{
    unsigned long long user = 0, nice = 0, kernel = 0, interrupts = 0, soft = 0, stolen = 0;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL) return 0;
    const int n = fscanf(file, "cpu %llu %llu %llu %*u %*u %llu %llu %llu", &user, &nice, &kernel,
                         &interrupts, &soft, &stolen);
    fclose(file);
    return n < 3 ? 0
                 : (double)(user + nice + kernel + interrupts + soft + stolen) / (double)sysconf(_SC_CLK_TCK);
}

stopwatch stopwatch_start(void)
{
    const double others = all_cpu() - own_cpu();
    return (stopwatch){.others_before = others, .begin = now_seconds()};
}

double stopwatch_read(stopwatch *watch)
{
    const double took = now_seconds() - watch->begin;
    const double others = all_cpu() - own_cpu() - watch->others_before;
    watch->others = others < 0 ? 0 : others;
    return took;
}

void stopwatch_expect(const stopwatch *watch, double took, double bound, const char *what)
{
    if (took - watch->others > bound * SLOWNESS)
        fail_msg("%s after %.2f s, of which others had at most %.2f s; the bound is %g s", what, took,
                 watch->others, bound * SLOWNESS);
}
