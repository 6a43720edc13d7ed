/* process.c - see process.h. */
#include "tests/system/process.h"

#include <ctype.h>
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

static char folder[80], plugins[4096];
static int nstarted;

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int ms_until(double deadline)
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

/* Variables of an outer launcher would change the behaviour of the programs. */
static void clean_environment(void)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "SLURM_STEP_ID",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MV2_COMM_WORLD_RANK",
                                        "MV2_COMM_WORLD_SIZE",
                                        "OMP_NUM_THREADS",
                                        "ENTRAIN_PLUGIN_PATH",
                                        "ENTRAIN_TOKEN_FILE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    setenv("XDG_RUNTIME_DIR", folder, 1);
    if (plugins[0] != 0) setenv("ENTRAIN_PLUGIN_PATH", plugins, 1);
}

void system_use_plugins(const char *plugin_folder)
{
    snprintf(plugins, sizeof plugins, "%s", plugin_folder);
}

int system_begin(void)
{
    sigset_t set;
    if (folder[0] != 0) return 1;
    strcpy(folder, "/tmp/entrain-test-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        perror("mkdtemp");
        return 0;
    }
    atexit(leave);
    clean_environment();
    signal(SIGINT, SIG_DFL); /* whatever started the tests */
    signal(SIGHUP, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL); /* process_nobody_left() waits for it */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return 1;
}

int system_run(const char *name, const struct CMUnitTest *tests, size_t n)
{
    return system_begin() ? _cmocka_run_group_tests(name, tests, n, NULL, NULL) : 1;
}

void system_enter(const char *name)
{
    const size_t used = strlen(folder);
    snprintf(folder + used, sizeof folder - used, "/%s", name);
    assert_int_equal(mkdir(folder, 0700), 0);
    setenv("XDG_RUNTIME_DIR", folder, 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    nstarted = 0;
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
    /* A path, or the compiler, which looks for its parts beside argv[0]; else a program of the build
     * folder. */
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

/* The kernel function in which the process sleeps. */
static void describe_wait(pid_t pid, char *text, int bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/wchan", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(text, bytes, file) == NULL) snprintf(text, (size_t)bytes, "nothing known");
    if (file != NULL) fclose(file);
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
        char waits_in[64];
        describe_wait(p->pid, waits_in, sizeof waits_in);
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
        fprintf(stderr, "%s%s\n", process_out(p), process_err(p)); /* whole: a message of cmocka's is cut */
        fail_msg("%s has not ended in %g s (it waits in %s)", p->name, seconds * SLOWNESS, waits_in);
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

int text_has(const char *text, const char *word)
{
    const size_t n = strlen(word);
    if (n == 0) return 1;
    const int is_bare_first = isalnum((unsigned char)word[0]),
              is_bare_last = isalnum((unsigned char)word[n - 1]);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
        const char *end = at + n;
        const int is_inside = at > text && (isalnum((unsigned char)at[-1]) ||
                                            (at[-1] == '.' && isdigit((unsigned char)word[0]))),
                  goes_on = isalnum((unsigned char)*end) || (*end == '.' && isdigit((unsigned char)end[1]));
        if (!(is_bare_first && is_inside) && !(is_bare_last && goes_on)) return 1;
    }
    return 0;
}

const char *log_message(const char *line)
{
    const int is_log =
        strlen(line) > 15 && line[2] == ':' && line[5] == ':' && line[12] == ' ' && line[14] == ' ';
    const char *end = is_log ? strstr(line + 15, ": ") : NULL;
    return end == NULL ? line : end + 2;
}

int process_names(const process *p, const char *first, const char *second, const char *third)
{
    static char text[MAX_TEXT];
    int n = 0;
    read_text(p->err, text);
    for (char *save, *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        const char *said = log_message(line);
        n += text_has(said, first) && text_has(said, second) && text_has(said, third);
    }
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
