/* runs.c - see runs.h. The names are found in /proc/net/unix, which lists abstract sockets of this network
 * namespace with an '@'. */
#include "runtime/control/runs.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/runs_wire.h"
#include "runtime/net/tcp.h"

enum { RUNS_MAX = 1024 };
static const int64_t one_run_ns = 500 * ENI_MILLI; /* a leader that is stopped must not hide the others */

/* ---- one connection ---- */

/* A listener whose queue is full would block: it is asked again until the deadline. */
static en_status call(const char *name, int64_t deadline_ns, int *fd_out)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    if (n > sizeof to.sun_path - 1) return EN_ENOENT;
    memcpy(to.sun_path + 1, name, n);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return EN_EIO;
    en_status st = EN_OK;
    while (connect(fd, (struct sockaddr *)&to, bytes) != 0 && st == EN_OK) {
        st = errno == EAGAIN ? EN_OK : EN_ENOENT;
        if (st == EN_OK && eni_now_ns() > deadline_ns) st = EN_ETIMEOUT;
        if (st == EN_OK) eni_sleep_until(eni_now_ns() + 5 * ENI_MILLI);
    }
    if (st == EN_OK && !eni_runs_is_own_user(fd)) st = EN_ENOENT;
    if (st == EN_OK)
        *fd_out = fd;
    else
        close(fd);
    return st;
}

static en_status receive(int fd, int64_t deadline_ns, uint8_t *memory, size_t *length_out)
{
    for (;;) {
        ssize_t n = recv(fd, memory, ENI_RUNS_MESSAGE_MAX, 0);
        if (n > 0) {
            *length_out = (size_t)n;
            return EN_OK;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) return EN_EIO;
        EN_TRY(eni_tcp_wait(fd, POLLIN, deadline_ns, -1));
    }
}

/* ---- status ---- */

static void run_fini(eni_run *run)
{
    eni_free(run->attributes);
    eni_free(run->rank);
    *run = (eni_run){0};
}

static en_status read_ranks(int fd, int64_t deadline_ns, eni_run *run)
{
    uint8_t memory[ENI_RUNS_MESSAGE_MAX];
    size_t length;
    run->rank = eni_alloc_array(run->nrank, sizeof *run->rank);
    if (run->rank == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < run->nrank; i++) {
        EN_TRY(receive(fd, deadline_ns, memory, &length));
        EN_TRY(eni_runs_get_rank(memory, length, &run->rank[i]));
    }
    return EN_OK;
}

static en_status ask(const char *name, int64_t deadline_ns, eni_run *run)
{
    static const uint8_t question[] = {0x91, ENI_RUNS_STATUS};
    uint8_t memory[ENI_RUNS_MESSAGE_MAX];
    size_t length;
    int fd;
    *run = (eni_run){0};
    EN_TRY(call(name, deadline_ns, &fd));
    en_status st = send(fd, question, sizeof question, MSG_NOSIGNAL) < 0 ? EN_EIO : EN_OK;
    if (st == EN_OK) st = receive(fd, deadline_ns, memory, &length);
    if (st == EN_OK) st = eni_runs_get_run(memory, length, run);
    if (st == EN_OK) st = read_ranks(fd, deadline_ns, run);
    close(fd);
    snprintf(run->name, sizeof run->name, "%s", name);
    if (st != EN_OK) run_fini(run);
    return st;
}

static int by_pid(const void *a, const void *b)
{
    const eni_run *x = a, *y = b;
    return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid) : strcmp(x->name, y->name);
}

/* A name appears once for the listener and once for every connection that it has accepted. */
static bool is_listed(const eni_run *runs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(runs[i].name, name) == 0) return true;
    return false;
}

/* All names at once, before anybody is asked: the list changes with every connection, and a line may be
 * missed when it does so between two reads. */
static en_status read_names(eni_run *runs, size_t *n_out)
{
    char line[512];
    size_t n = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    if (file == NULL) {
        eni_error("runs", "cannot read /proc/net/unix: %s", strerror(errno));
        return EN_EIO;
    }
    while (n < RUNS_MAX && fgets(line, sizeof line, file) != NULL) {
        char *name = strstr(line, "@" ENI_RUNS_NAME);
        if (name == NULL) continue;
        name++;
        name[strcspn(name, "\n")] = '\0';
        if (strlen(name) >= sizeof runs->name || is_listed(runs, n, name)) continue;
        memcpy(runs[n++].name, name, strlen(name) + 1);
    }
    fclose(file);
    *n_out = n;
    return EN_OK;
}

en_status eni_runs_list(int64_t deadline_ns, eni_run **runs_out, size_t *n_out)
{
    size_t nnames, n = 0;
    eni_run *runs = eni_alloc_array(RUNS_MAX, sizeof *runs);
    if (runs == NULL) return EN_ENOMEM;
    const en_status st = read_names(runs, &nnames);
    if (st != EN_OK) {
        eni_free(runs);
        return st;
    }
    for (size_t i = 0; i < nnames; i++) {
        char name[sizeof runs->name];
        memcpy(name, runs[i].name, sizeof name);
        int64_t until_ns = eni_now_ns() + one_run_ns;
        if (ask(name, until_ns < deadline_ns ? until_ns : deadline_ns, &runs[n]) == EN_OK) n++;
    }
    qsort(runs, n, sizeof *runs, by_pid);
    *runs_out = runs;
    *n_out = n;
    return EN_OK;
}

void eni_runs_free(eni_run *runs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        run_fini(&runs[i]);
    eni_free(runs);
}

/* ---- stop ---- */

en_status eni_runs_stop(const eni_run *run, const char *why, int64_t deadline_ns)
{
    uint8_t memory[ENI_RUNS_MESSAGE_MAX];
    size_t length;
    int fd;
    eni_pack out = eni_pack_over(memory, sizeof memory);
    eni_pack_array(&out, 2);
    eni_pack_uint(&out, ENI_RUNS_STOP);
    eni_pack_str(&out, why);
    if (out.is_failed || strlen(why) >= ENI_REASON_MAX) return EN_EINVAL;
    EN_TRY(call(run->name, deadline_ns, &fd));
    en_status st = send(fd, out.data, out.bytes, MSG_NOSIGNAL) < 0 ? EN_EIO : EN_OK;
    if (st == EN_OK) st = receive(fd, deadline_ns, memory, &length);
    close(fd);
    if (st != EN_OK)
        eni_error("runs", "the run of pid %lld did not answer: %s", (long long)run->pid, en_status_str(st));
    return st;
}
