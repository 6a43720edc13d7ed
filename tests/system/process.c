/* process.c - see process.h. */
#include "tests/system/process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 96, MAX_TEXT = 1 << 20 };

static char folder[64];
static int nstarted;

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ms_until(double deadline)
{
    double left = deadline - now_seconds();
    return left <= 0 ? 0 : left > 3600 ? 3600000 : (int)(left * 1000) + 1;
}

/* ---- the program --------------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void leave(void)
{
    if (folder[0] != 0) nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* What an outer launcher may have set would change what the programs do. */
static void clean_environment(void)
{
    static const char *const names[] = {
        "RANK",        "WORLD_SIZE",  "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "ENTRAIN_PLUGIN_PATH"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    setenv("XDG_RUNTIME_DIR", folder, 1);
}

int system_run(const char *name, const struct CMUnitTest *tests, size_t n)
{
    sigset_t set;
    strcpy(folder, "/tmp/entrain-test-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        perror("mkdtemp");
        return 1;
    }
    atexit(leave);
    clean_environment();
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL); /* process_nobody_left() waits for it */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

const char *system_folder(void)
{
    return folder;
}

void system_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("SKIP: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    exit(77);
}

void promise(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("PROMISE ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
}

/* ---- one process --------------------------------------------------------------------------------------- */

static void split(char *text, char **words, size_t max)
{
    size_t n = 0;
    for (char *save, *word = strtok_r(text, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        if (n + 1 == max) _exit(126);
        words[n++] = word;
    }
    words[n] = NULL;
}

static void become(const process *p, const char *program, const char *env, char *args)
{
    char path[4096], *argv[MAX_ARGS], *pairs[16], text[1024];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int in = open("/dev/null", O_RDONLY), out = open(p->out, O_WRONLY | O_CREAT | O_APPEND, 0600),
        err = open(p->err, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    snprintf(text, sizeof text, "%s", env == NULL ? "" : env);
    split(text, pairs, 16);
    for (int i = 0; pairs[i] != NULL; i++)
        putenv(pairs[i]);
    /* A path, or the compiler, which looks for its parts beside argv[0]; else a program of ours. */
    int is_installed = strchr(program, '/') != NULL || strcmp(program, "cc") == 0;
    snprintf(path, sizeof path, "%s%s", is_installed ? "" : EN_BUILD_DIR "/", program);
    argv[0] = path;
    split(args, argv + 1, MAX_ARGS - 1);
    execvp(argv[0], argv);
    _exit(127);
}

void process_start(process *p, const char *program, const char *env, const char *format, ...)
{
    char args[4096];
    va_list list;
    const char *slash = strrchr(program, '/');
    va_start(list, format);
    int length = vsnprintf(args, sizeof args, format, list);
    va_end(list);
    assert_in_range(length, 0, sizeof args - 1);
    snprintf(p->name, sizeof p->name, "%s", slash != NULL ? slash + 1 : program);
    snprintf(p->out, sizeof p->out, "%s/%d.out", folder, nstarted);
    snprintf(p->err, sizeof p->err, "%s/%d.err", folder, nstarted++);
    fflush(stdout);
    p->pid = fork();
    if (p->pid == 0) become(p, program, env, args);
    assert_true(p->pid > 0);
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    assert_true(p->pidfd >= 0);
}

int process_wait(process *p, double seconds)
{
    struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};
    const double deadline = now_seconds() + seconds * SLOWNESS;
    int status, ready;
    do
        ready = poll(&ended, 1, ms_until(deadline));
    while (ready < 0 && errno == EINTR);
    if (ready == 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
        fail_msg("%s has not ended in %g s; it said:\n%s%s", p->name, seconds * SLOWNESS, process_out(p),
                 process_err(p));
    }
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->pidfd);
    p->pidfd = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void process_kill(const process *p, int signal_number)
{
    assert_int_equal(kill(p->pid, signal_number), 0);
}

static const char *read_text(const char *path, char *text)
{
    text[0] = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return text;
    text[fread(text, 1, MAX_TEXT - 1, file)] = 0;
    fclose(file);
    return text;
}

const char *process_out(const process *p)
{
    static char text[MAX_TEXT];
    return read_text(p->out, text);
}

const char *process_err(const process *p)
{
    static char text[MAX_TEXT];
    return read_text(p->err, text);
}

int process_says(const process *p, const char *first, const char *second)
{
    static char text[MAX_TEXT];
    int n = 0;
    read_text(p->err, text);
    for (char *save, *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save))
        n += strstr(line, first) != NULL && strstr(line, second) != NULL;
    return n;
}

/* ---- what it writes ------------------------------------------------------------------------------------ */

static int has_line(const char *path, const char *text, char *line, int bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    int found = 0;
    while (!found && fgets(line, bytes, file) != NULL)
        found = strstr(line, text) != NULL && strchr(line, '\n') != NULL;
    fclose(file);
    if (found) *strchr(line, '\n') = 0;
    return found;
}

/* Looks again whenever something changes in the folder. */
const char *wait_for_line(const process *p, const char *text, double seconds)
{
    static char line[1024];
    char events[4096];
    const double deadline = now_seconds() + seconds * SLOWNESS;
    struct pollfd wait[2] = {{.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), .events = POLLIN},
                             {.fd = p->pidfd, .events = POLLIN}};
    assert_true(wait[0].fd >= 0);
    assert_true(inotify_add_watch(wait[0].fd, folder, IN_CREATE | IN_MODIFY) >= 0);
    while (!has_line(p->out, text, line, sizeof line) && !has_line(p->err, text, line, sizeof line)) {
        int ready =
            wait[1].revents != 0 ? 0 : poll(wait, 2, ms_until(deadline)); /* after its end, look once */
        if (ready == 0) {
            close(wait[0].fd);
            fail_msg("%s has not written \"%s\"; it said:\n%s%s", p->name, text, process_out(p),
                     process_err(p));
        }
        while (read(wait[0].fd, events, sizeof events) > 0)
            ;
    }
    close(wait[0].fd);
    return line;
}

/* ---- what is left -------------------------------------------------------------------------------------- */

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

int files_left(const char *name)
{
    char path[256];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.';
    if (dir != NULL) closedir(dir);
    return n;
}

int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}
