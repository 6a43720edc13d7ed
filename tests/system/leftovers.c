/* leftovers.c - children, sockets and files of processes, during their lives and after; see process.h. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/port.h"
#include "tests/system/process.h"

void process_nobody_left(double seconds)
{
    const double deadline = now_seconds() + seconds * SLOWNESS;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (;;) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0) return; /* ECHILD */
        int left = ms_until(deadline);
        struct timespec t = {left / 1000, left % 1000 * 1000000L};
        if (left == 0) fail_msg("a process is left after %g s", seconds * SLOWNESS);
        sigtimedwait(&set, NULL, &t);
    }
}

/* /proc/PID/stat: pid (name) state ppid ...; the name may hold anything. */
static pid_t parent_of(const char *pid)
{
    char path[300], text[512] = "";
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *end = strrchr(text, ')');
    int ppid = -1;
    return end != NULL && sscanf(end + 1, " %*c %d", &ppid) == 1 ? ppid : -1;
}

static int has_word(const char *pid, const char *word)
{
    char path[300], text[4096];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file), at = 0;
    fclose(file);
    text[n] = 0;
    const char *slash = strrchr(text, '/');
    if (strcmp(slash != NULL ? slash + 1 : text, word) == 0) return 1;
    for (; at < n; at += strlen(text + at) + 1)
        if (strcmp(text + at, word) == 0) return 1;
    return 0;
}

pid_t process_child(pid_t parent, const char *word)
{
    pid_t found = 0;
    DIR *dir = opendir("/proc");
    assert_non_null(dir);
    for (struct dirent *e; found == 0 && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && parent_of(e->d_name) == parent &&
            has_word(e->d_name, word))
            found = (pid_t)atoi(e->d_name);
    closedir(dir);
    return found;
}

/* Calls `each` with the inode and the name of every abstract socket called entrain-... of this machine. */
static void each_socket(void (*each)(void *user, unsigned long inode, const char *name), void *user)
{
    char line[512], name[256];
    unsigned long inode;
    FILE *file = fopen("/proc/net/unix", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %255s", &inode, name) == 2 &&
            strncmp(name, "@entrain-", 9) == 0)
            each(user, inode, name);
    fclose(file);
}

typedef struct socket_search {
    pid_t pid;
    char *names;
    size_t bytes;
    int n;
} socket_search;

static void add_if_held(void *user, unsigned long inode, const char *name)
{
    socket_search *s = user;
    char path[320], link[64], wanted[64];
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)s->pid, e->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length < 0) continue;
        link[length] = 0;
        if (strcmp(link, wanted) != 0) continue;
        size_t used = strlen(s->names);
        snprintf(s->names + used, s->bytes - used, "%s\n", name);
        s->n++;
        break;
    }
    if (dir != NULL) closedir(dir);
}

int process_sockets(pid_t pid, char *names_out, size_t bytes)
{
    socket_search search = {pid, names_out, bytes, 0};
    names_out[0] = 0;
    each_socket(add_if_held, &search);
    return search.n;
}

static void count_if_named(void *user, unsigned long inode, const char *name)
{
    socket_search *s = user;
    char line[260];
    (void)inode;
    snprintf(line, sizeof line, "%s\n", name);
    s->n += strstr(s->names, line) != NULL;
}

int sockets_left(const char *names)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", names);
    socket_search search = {.names = copy};
    each_socket(count_if_named, &search);
    return search.n;
}

int shared_memory_left(void)
{
    int n = 0;
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        n += strstr(e->d_name, "entrain") != NULL;
    if (dir != NULL) closedir(dir);
    return n;
}

int files_left(const char *name)
{
    char path[256];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", system_folder(), name);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.' && strncmp(e->d_name, "status-", 7) != 0;
    if (dir != NULL) closedir(dir);
    return n;
}

int free_port(void)
{
    int hold; /* as long as this process lives */
    const int port = port_take(&hold);
    assert_true(port > 0);
    return port;
}
