/* runs.c - the files that show runs to other processes (runs.h): their contents, how a leader writes and
 * others list them, and how a run is asked to end.
 *
 * A file is 8 bytes of magic and version, the time of writing, and msgpack: one array of the run's fields,
 * one of its attributes, and one for each rank. */
#include "runtime/control/runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/control/message.h"

enum {
    ATTRIBUTES_MAX = 64,
    FILE_MAX = 4 << 20,
    LEADERS_OF_A_PROCESS = 100,
    RUNS_MAX = 1024,
    NAME_BYTES = 40
};
static const int64_t refresh_ns = ENI_SECOND, silent_ns = 5 * ENI_SECOND;
static const char magic[8] = "ENTrun1", prefix[] = "status-";

/* ---- contents of a file ---- */

#define UINT(record, name, max, why)     ENI_FIELD(ENI_FIELD_UINT, record, name, 0, max, why)
#define INT(record, name, min, max, why) ENI_FIELD(ENI_FIELD_INT, record, name, min, max, why)
#define TEXT(record, name, why)          ENI_FIELD(ENI_FIELD_TEXT, record, name, 0, 0, why)

static const eni_field run_fields[] = {
    INT(eni_run_status, pid, 1, INT32_MAX, "the process id is out of range"),
    UINT(eni_run_status, born, UINT64_MAX, "the start time is out of range"),
    UINT(eni_run_status, pid_namespace, UINT64_MAX, "the namespace is out of range"),
    UINT(eni_run_status, stage, ENI_RUN_ENDING, "the stage is unknown"),
    INT(eni_run_status, nranks, 1, ENI_RANKS_MAX, "the world size is out of range"),
    INT(eni_run_status, nservers, 0, ENI_SERVERS_MAX, "the number of servers is out of range"),
    INT(eni_run_status, started_ns, 0, INT64_MAX, "the time is out of range"),
    UINT(eni_run_status, samples, UINT64_MAX, "the number of samples is out of range"),
    UINT(eni_run_status, claimed, UINT64_MAX, "the number of claims is out of range"),
    UINT(eni_run_status, budget, UINT64_MAX, "the budget is out of range"),
    UINT(eni_run_status, nrank, ENI_RANKS_MAX + ENI_SERVERS_MAX, "the number of ranks is out of range"),
};

static const eni_field rank_fields[] = {
    INT(eni_run_rank, rank, ENI_RANK_NONE, ENI_RANKS_MAX - 1, "the rank is out of range"),
    UINT(eni_run_rank, state, ENI_RANK_GONE, "the state is unknown"),
    INT(eni_run_rank, pid, 0, INT64_MAX, "the process id is out of range"),
    UINT(eni_run_rank, born, UINT64_MAX, "the start time is out of range"),
    INT(eni_run_rank, step, -1, INT64_MAX, "the step is out of range"),
    TEXT(eni_run_rank, host, "the host's name is too long"),
    TEXT(eni_run_rank, phase, "the phase is too long"),
};

enum { NRUN = sizeof run_fields / sizeof *run_fields, NRANK = sizeof rank_fields / sizeof *rank_fields };

/* All but magic and time. */
static void put_status(eni_pack *out, const eni_run_status *run)
{
    eni_record_put(out, run_fields, NRUN, run);
    eni_pack_array(out, (uint32_t)run->nattributes * 2);
    for (size_t i = 0; i < run->nattributes; i++) {
        eni_pack_text(out, run->attributes[i].key);
        eni_pack_text(out, run->attributes[i].value);
    }
    for (size_t i = 0; i < run->nrank; i++)
        eni_record_put(out, rank_fields, NRANK, &run->rank[i]);
}

static en_status get_attributes(eni_cursor *in, eni_run_status *run)
{
    char text[ENI_REASON_MAX];
    const uint32_t n = eni_unpack_array(in, 0, 2 * ATTRIBUTES_MAX);
    const uint8_t *begin = in->at;
    for (uint32_t i = 0; i < n; i++)
        eni_unpack_text(in, text, sizeof text, "an attribute is too long");
    if (n % 2 != 0) eni_cursor_refuse(in, "a key has no value");
    if (in->why != NULL) return EN_EPROTO;
    eni_key_value_list list = {NULL, n / 2, {begin, (size_t)(in->at - begin)}};
    EN_TRY(eni_key_values_take(&list, &run->attributes));
    run->nattributes = n / 2;
    return EN_OK;
}

static void run_fini(eni_run_status *run)
{
    eni_free(run->attributes);
    eni_free(run->rank);
    *run = (eni_run_status){0};
}

en_status eni_run_status_read(const uint8_t *bytes, size_t length, eni_run_status *run_out)
{
    eni_run_status run = {0};
    const size_t head = sizeof magic + sizeof run.written_ns;
    if (length < head || memcmp(bytes, magic, sizeof magic) != 0) return EN_EPROTO;
    memcpy(&run.written_ns, bytes + sizeof magic, sizeof run.written_ns);
    eni_cursor in = eni_cursor_make(bytes + head, length - head);
    eni_record_get(&in, run_fields, NRUN, &run);
    const size_t nrank = run.nrank; /* ranks that follow: each takes a byte at least */
    if (nrank > (size_t)(in.end - in.at)) eni_cursor_refuse(&in, "ranks are missing");
    en_status st = get_attributes(&in, &run);
    if (st == EN_OK && (run.rank = eni_alloc_array(nrank, sizeof *run.rank)) == NULL) st = EN_ENOMEM;
    for (size_t i = 0; st == EN_OK && i < nrank; i++)
        eni_record_get(&in, rank_fields, NRANK, &run.rank[i]);
    if (st == EN_OK && !eni_cursor_finish(&in)) st = EN_EPROTO;
    if (st == EN_OK)
        *run_out = run;
    else
        run_fini(&run);
    return st;
}

/* ---- the leader's side ---- */

/* A disk may take seconds for a rename, and the leader has heartbeats to send: so a thread writes. */
struct eni_run_writer {
    int folder;
    char name[NAME_BYTES], temporary[NAME_BYTES + 1]; /* in it */
    uint64_t pid_namespace;
    int64_t put_ns;
    eni_pack last; /* the last status, without the time: under the lock */
    bool is_new, is_closing, has_file, has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static uint64_t pid_namespace(void)
{
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
}

/* Not synchronised: a run does not survive a crash of the machine. */
static bool write_file(const eni_run_writer *w, const void *status, size_t bytes, int64_t now_ns)
{
    const eni_file_plan plan = {
        .folder = w->folder, .name = w->name, .temporary = w->temporary, .mode = 0600, .is_volatile = true};
    struct iovec parts[] = {{(void *)(uintptr_t)magic, sizeof magic},
                            {&now_ns, sizeof now_ns},
                            {(void *)(uintptr_t)status, bytes}};
    const char *doing;
    return eni_file_put(&plan, parts, sizeof parts / sizeof *parts, &doing) == 0;
}

/* Takes the first free name with an empty file, which is then replaced. */
static bool make_file(eni_run_writer *w, const char *folder)
{
    int fd = -1;
    w->folder = open(folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (int i = 0; w->folder >= 0 && fd < 0 && i < LEADERS_OF_A_PROCESS; i++) {
        char suffix[16] = "";
        if (i > 0) snprintf(suffix, sizeof suffix, ".%d", i);
        snprintf(w->name, sizeof w->name, "%s%d%s", prefix, (int)getpid(), suffix);
        fd = openat(w->folder, w->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST) return false;
    }
    if (fd < 0) return false;
    close(fd);
    w->has_file = true;
    snprintf(w->temporary, sizeof w->temporary, ".%s", w->name);
    return write_file(w, w->last.data, w->last.bytes, w->put_ns);
}

static void *write_what_is_put(void *argument)
{
    eni_run_writer *w = argument;
    bool has_warned = false;
    pthread_mutex_lock(&w->lock);
    while (!w->is_closing) {
        const size_t bytes = w->last.bytes;
        const int64_t put_ns = w->put_ns;
        void *status = w->is_new ? eni_alloc(bytes) : NULL;
        if (status != NULL) memcpy(status, w->last.data, bytes);
        w->is_new = false;
        if (status == NULL) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        const bool is_written = write_file(w, status, bytes, put_ns);
        if (!is_written && !has_warned)
            eni_warn("leader", "cannot write this run's file for `entrain ps`, %s: %s", w->name,
                     strerror(errno));
        has_warned = has_warned || !is_written;
        eni_free(status);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

eni_run_writer *eni_run_writer_open(const char *folder, const eni_run_status *run)
{
    char why[ENI_PRIVATE_WHY];
    eni_run_status *runs;
    size_t n;
    eni_run_writer *w = eni_alloc(sizeof *w);
    if (w == NULL) return NULL;
    w->folder = -1;
    eni_run_status with = *run;
    with.pid_namespace = w->pid_namespace = pid_namespace();
    put_status(&w->last, &with);
    w->put_ns = eni_now_ns();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    const bool is_safe = eni_private_folder(folder, why) == EN_OK;
    /* Files of killed leaders. */
    if (is_safe && eni_runs_list(folder, &runs, &n) == EN_OK) eni_runs_free(runs, n);
    const bool is_made = is_safe && !w->last.is_failed && make_file(w, folder);
    if (is_made) errno = eni_thread_start(&w->thread, write_what_is_put, w);
    w->has_thread = is_made && errno == 0;
    if (w->has_thread) return w;
    eni_warn("leader", "`entrain ps` will not see this run: %s", is_safe ? strerror(errno) : why);
    eni_run_writer_close(w);
    return NULL;
}

void eni_run_writer_put(eni_run_writer *w, const eni_run_status *run)
{
    const int64_t now_ns = eni_now_ns();
    eni_pack now = {0};
    eni_run_status with = *run;
    with.pid_namespace = w->pid_namespace;
    put_status(&now, &with);
    pthread_mutex_lock(&w->lock);
    const bool is_same = now.bytes == w->last.bytes && memcmp(now.data, w->last.data, now.bytes) == 0;
    const bool is_due = !now.is_failed && (!is_same || now_ns - w->put_ns >= refresh_ns);
    eni_pack before = w->last;
    if (is_due) {
        w->last = now;
        w->put_ns = now_ns;
        w->is_new = true;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    eni_pack_fini(is_due ? &before : &now);
}

void eni_run_writer_close(eni_run_writer *w)
{
    if (w == NULL) return;
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->is_closing = true;
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    if (w->has_file) unlinkat(w->folder, w->name, 0);
    if (w->folder >= 0) close(w->folder);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    eni_pack_fini(&w->last);
    eni_free(w);
}

/* ---- list ---- */

static uint8_t *read_file(int folder, const char *name, size_t *length_out)
{
    struct stat about;
    uint8_t *bytes = NULL;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        about.st_size <= FILE_MAX)
        bytes = eni_alloc((size_t)about.st_size);
    if (bytes != NULL && read(fd, bytes, (size_t)about.st_size) != about.st_size) {
        eni_free(bytes);
        bytes = NULL;
    }
    close(fd);
    *length_out = bytes == NULL ? 0 : (size_t)about.st_size;
    return bytes;
}

/* Finds stopped processes, which a leader cannot report of others, or of itself. */
static void look_at_processes(eni_run_status *run, eni_process_state leader)
{
    run->is_stopped = leader == ENI_PROCESS_STOPPED;
    for (size_t i = 0; i < run->nrank; i++) {
        eni_run_rank *r = &run->rank[i];
        if (r->state == ENI_RANK_MISSING || r->state == ENI_RANK_GONE) continue;
        if (eni_process_look(r->pid, r->born) == ENI_PROCESS_STOPPED) r->state = ENI_RANK_STOPPED;
    }
}

/* Whether the file is that of a running run. */
static bool look_at_file(int folder, const char *name, eni_run_status *run_out)
{
    size_t length;
    uint8_t *bytes = read_file(folder, name, &length);
    const en_status st = bytes == NULL ? EN_EIO : eni_run_status_read(bytes, length, run_out);
    eni_free(bytes);
    if (st != EN_OK) return false;
    const bool is_of_here = run_out->pid_namespace == pid_namespace();
    const eni_process_state leader =
        is_of_here ? eni_process_look(run_out->pid, run_out->born) : ENI_PROCESS_ENDED;
    if (leader != ENI_PROCESS_ENDED) {
        look_at_processes(run_out, leader);
        return true;
    }
    if (is_of_here) unlinkat(folder, name, 0);
    run_fini(run_out);
    return false;
}

static int by_pid(const void *a, const void *b)
{
    const eni_run_status *x = a, *y = b;
    return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid)
                            : (x->started_ns > y->started_ns) - (x->started_ns < y->started_ns);
}

en_status eni_runs_list(const char *folder, eni_run_status **runs_out, size_t *n_out)
{
    struct stat about;
    size_t n = 0;
    eni_run_status *runs = eni_alloc_array(RUNS_MAX, sizeof *runs);
    if (runs == NULL) return EN_ENOMEM;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const bool is_ours = fd >= 0 && fstat(fd, &about) == 0 && about.st_uid == geteuid();
    DIR *dir = is_ours ? fdopendir(fd) : NULL;
    for (const struct dirent *e; dir != NULL && n < RUNS_MAX && (e = readdir(dir)) != NULL;) {
        const bool is_temporary = e->d_name[0] == '.';
        const char *name = e->d_name + is_temporary;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        /* a file that a killed leader had not yet renamed, or filled */
        const bool is_left = is_temporary || (fstatat(fd, name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
                                              S_ISREG(about.st_mode) && about.st_size == 0);
        const long pid = is_left ? atol(name + sizeof prefix - 1) : 0;
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            unlinkat(fd, e->d_name, 0);
        else if (!is_temporary && look_at_file(fd, name, &runs[n]))
            n++;
    }
    if (dir != NULL)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    qsort(runs, n, sizeof *runs, by_pid);
    *runs_out = runs;
    *n_out = n;
    return EN_OK;
}

void eni_runs_free(eni_run_status *runs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        run_fini(&runs[i]);
    eni_free(runs);
}

int64_t eni_run_silent_ns(const eni_run_status *run, int64_t now_ns)
{
    const int64_t ns = now_ns - run->written_ns;
    return run->is_stopped || ns > silent_ns ? ns : 0;
}

/* ---- stop ---- */

en_status eni_runs_stop(const eni_run_status *run)
{
    const int fd = eni_process_watch(run->pid, run->born);
    if (fd < 0 && eni_process_look(run->pid, run->born) == ENI_PROCESS_ENDED) return EN_ENOENT;
    long rc = fd < 0 ? -1 : syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0);
    if (fd < 0 || (rc != 0 && errno != ESRCH)) /* old kernels and filters refuse both calls */
        rc = kill((pid_t)run->pid, SIGTERM);
    const int error = errno;
    if (fd >= 0) close(fd);
    if (rc == 0) return EN_OK;
    if (error == ESRCH) return EN_ENOENT;
    return eni_fail(EN_EDENIED, "runs", "cannot ask pid %lld to end: %s", (long long)run->pid,
                    strerror(error));
}
