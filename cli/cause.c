/* cause.c - see cause.h. */
#include "cli/cause.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* The number behind `key` in a file of "key number" lines; -1: there is none. */
static int64_t count_in(const char *path, const char *key)
{
    char line[256], name[64];
    long long number;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    int64_t found = -1;
    while (found < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%63s %lld", name, &number) == 2 && strcmp(name, key) == 0) found = number;
    fclose(file);
    return found;
}

/* A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; version 2 has ID 0 and no controllers. */
static int64_t count_of_group(const char *line)
{
    char path[1400];
    const char *first = strchr(line, ':'), *second = first == NULL ? NULL : strchr(first + 1, ':');
    if (second == NULL) return -1;
    const int bytes = (int)strcspn(second + 1, "\n");
    if (second == first + 1) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/memory.events", bytes, second + 1);
        return count_in(path, "oom_kill");
    }
    if (strncmp(first, ":memory:", 8) != 0) return -1;
    snprintf(path, sizeof path, "/sys/fs/cgroup/memory%.*s/memory.oom_control", bytes, second + 1);
    return count_in(path, "oom_kill");
}

int64_t eni_oom_kills(void)
{
    char line[1024];
    int64_t found = -1;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (found < 0 && file != NULL && fgets(line, sizeof line, file) != NULL)
        found = count_of_group(line);
    if (file != NULL) fclose(file);
    return found >= 0 ? found : count_in("/proc/vmstat", "oom_kill");
}

bool eni_is_stopped(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *behind_name = strrchr(text, ')');
    return behind_name != NULL &&
           (strncmp(behind_name, ") T", 3) == 0 || strncmp(behind_name, ") t", 3) == 0);
}

void eni_signal_text(int signal_number, char *text_out, size_t bytes)
{
    const char *name = sigabbrev_np(signal_number);
    snprintf(text_out, bytes, "%s (SIG%s)", strsignal(signal_number), name == NULL ? "?" : name);
}
