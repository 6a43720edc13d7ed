/* share.c - reads and hashes the data set once per host: the first rank there does it for all, however they
 * were started. The first is the one that has the abstract unix socket whose name follows from the set
 * (eni_dataset_identity). It gives the others a sealed memfd. Nothing is written to disk; the name is gone
 * with the process that has it, the memory with its last user. Another user can take the name, but gains
 * nothing: both sides check the other's user (SO_PEERCRED), and a rank that finds an unauthenticated peer
 * reads the set itself. The launcher of an elastic run keeps that memory: the first attempt fills a memfd
 * that all ranks inherit (--data-fd), and the ranks of the next find it sealed and need no peer. The memory
 * names the files it was read from; if they have changed, it is read again. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/fdpass.h"
#include "runtime/net/process.h"
#include "worker/worker.h"

/* The process that was to read it may have ended, once per try; the seconds suffice for many gigabytes. */
enum { TRIES = 16, TIMEOUT_S = 60 };
static const int64_t LOOK_NS = ENI_SECOND / 10;

struct eni_share {
    int listen_fd, set_fd, stop_fd;
    pthread_t thread;
};

static void *serve(void *user)
{
    const eni_share *share = user;
    eni_fdpass_serve(share->listen_fd, share->set_fd, share->stop_fd);
    return NULL;
}

static en_status start_serving(int listen_fd, int set_fd, eni_share **share_out)
{
    eni_share *share = eni_alloc(sizeof *share);
    if (share == NULL) return EN_ENOMEM;
    *share = (eni_share){
        .listen_fd = listen_fd, .set_fd = set_fd, .stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    const int cause = share->stop_fd < 0 ? errno : pthread_create(&share->thread, NULL, serve, share);
    if (cause == 0) {
        *share_out = share;
        return EN_OK;
    }
    eni_error("share", "cannot start the thread that shares the data set: %s", strerror(cause));
    if (share->stop_fd >= 0) close(share->stop_fd);
    eni_free(share);
    return EN_EIO;
}

/* This rank is the first. It owns listen_fd, whatever the result. */
static en_status read_for_all(eni_worker *w, const eni_data_options *options, int listen_fd)
{
    int set_fd = (int)w->config->data_fd;
    eni_dataset *set = NULL;
    en_status st = eni_dataset_open(options, &set);
    if (st == EN_OK) st = eni_dataset_share(set, options->identity, &set_fd);
    eni_data_options shared = *options;
    shared.share_fd = &set_fd;
    if (st == EN_OK) st = eni_dataset_open(&shared, &w->dataset);
    if (st == EN_OK) st = start_serving(listen_fd, set_fd, &w->share);
    if (st == EN_OK) return EN_OK;
    if (set_fd >= 0) close(set_fd);
    close(listen_fd);
    return st == EN_EUNSUPPORTED ? eni_dataset_open(options, &w->dataset) : st;
}

/* EN_ETIMEOUT, logged: the first rank takes longer than this one waits. EN_ESTOP, logged: it is stopped, as
 * repeated looks at it show; a clock would run on while this process itself is stopped. */
static en_status wait_for_first(const eni_worker *w, const char *name, int *set_fd_out)
{
    const int64_t until = eni_now_ns() + TIMEOUT_S * ENI_SECOND, peer_timeout = w->config->peer_timeout_ns;
    int64_t pid, stopped_ns = 0;
    en_status st;
    do {
        st = eni_fdpass_ask(name, eni_now_ns() + LOOK_NS, w->rank.abort_fd, set_fd_out, &pid);
        if (st != EN_ETIMEOUT) return st;
        const bool is_stopped = eni_process_look(pid, eni_process_born(pid)) == ENI_PROCESS_STOPPED;
        stopped_ns = is_stopped ? stopped_ns + LOOK_NS : 0;
    } while (stopped_ns < peer_timeout && eni_now_ns() < until);
    if (stopped_ns < peer_timeout) {
        eni_warn("share",
                 "the process %lld, which reads the data set for all ranks here, has not finished after %d "
                 "s: this rank reads it itself",
                 (long long)pid, TIMEOUT_S);
        return st;
    }
    return eni_fail(EN_ESTOP, "share",
                    "the process %lld, which reads the data set for all ranks here, was stopped (SIGSTOP or "
                    "Ctrl-Z) for %.1f s",
                    (long long)pid, (double)stopped_ns * 1e-9);
}

/* EN_ENOENT: there is nobody (any more) to take it from. */
static en_status take_from_first(eni_worker *w, const eni_data_options *options, const char *name)
{
    int set_fd;
    eni_data_options shared = *options;
    shared.share_fd = &set_fd;
    en_status st = wait_for_first(w, name, &set_fd);
    if (st == EN_EPEER) return eni_shutdown_is_asked(w->rank.shutdown) ? EN_EINTR : EN_ENOENT;
    EN_TRY(st);
    st = eni_dataset_open(&shared, &w->dataset);
    close(set_fd);
    return st;
}

/* EN_EPROTO: nobody has read it yet, or the memory holds another set. */
static en_status take_kept(eni_worker *w, const eni_data_options *options)
{
    const int fd = (int)w->config->data_fd;
    eni_data_options kept = *options;
    kept.share_fd = &fd;
    if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return EN_EPROTO;
    return eni_dataset_open(&kept, &w->dataset);
}

static en_status share(eni_worker *w, const eni_data_options *options)
{
    const eni_config *c = w->config;
    char scope[512], identity[ENI_DIGEST_HEX], name[ENI_FDPASS_NAME];
    const en_status kept = take_kept(w, options);
    if (kept != EN_EPROTO) return kept;
    /* Only ranks of this run, as far as the command names it: others may be stopped, or late. */
    snprintf(scope, sizeof scope, "%s %.200s %.200s", w->rank.version, c->server != NULL ? c->server : "",
             c->rendezvous != NULL ? c->rendezvous : "");
    EN_TRY(eni_dataset_identity(options, scope, identity));
    snprintf(name, sizeof name, "entrain-data-%.32s", identity);
    for (int i = 0; i < TRIES; i++) {
        int listen_fd;
        EN_TRY(eni_fdpass_claim(name, &listen_fd));
        if (listen_fd >= 0) return read_for_all(w, options, listen_fd);
        const en_status st = take_from_first(w, options, name);
        if (st == EN_ESTOP) return EN_EPEER;
        if (st == EN_OK || st == EN_EINTR || st == EN_EINVAL || st == EN_EMISMATCH || st == EN_EFORMAT)
            return st;
        if (st != EN_ENOENT) break;
    }
    return eni_dataset_open(options, &w->dataset);
}

en_status eni_share_open(eni_worker *w, const eni_data_options *options)
{
    char identity[ENI_DIGEST_HEX];
    eni_data_options known = *options;
    EN_TRY(eni_dataset_identity(options, w->rank.version, identity));
    known.identity = identity;
    return share(w, &known);
}

void eni_share_close(eni_share *share)
{
    if (share == NULL) return;
    eventfd_write(share->stop_fd, 1);
    pthread_join(share->thread, NULL);
    close(share->stop_fd);
    close(share->listen_fd);
    close(share->set_fd);
    eni_free(share);
}
