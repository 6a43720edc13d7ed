/* file_rendezvous.c - the file's text, writing it under a lock, and waiting for that of a live leader. */
#include "runtime/control/file_rendezvous.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#define FIRST_LINE "entrain-rendezvous 1"
enum { FILE_BYTES = 8192, PATH_BYTES = 4096 };
static const int64_t look_ns = 50 * ENI_MILLI;
static const int64_t answer_ns = ENI_SECOND; /* for one address: a live leader answers at once */

en_status eni_file_rendezvous_parse(const char *text, char *path_out, size_t bytes, uint16_t *port_out)
{
    static const char scheme[] = "file://";
    bool is_file = strncmp(text, scheme, strlen(scheme)) == 0;
    const char *path = is_file ? text + strlen(scheme) : "", *query = strchr(path, '?');
    size_t length = query == NULL ? strlen(path) : (size_t)(query - path);
    unsigned port = 0;
    int end = 0;
    is_file = path[0] == '/' && length > 1 && path[length - 1] != '/';
    if (is_file && query != NULL)
        is_file = sscanf(query, "?port=%5u%n", &port, &end) == 1 && query[end] == '\0' && port <= UINT16_MAX;
    if (!is_file || length >= bytes)
        return eni_fail(EN_EINVAL, "rendezvous",
                        "'%.300s' is invalid: expected file:///PATH, or file:///PATH?port=N for a fixed port",
                        text);
    memcpy(path_out, path, length);
    path_out[length] = '\0';
    *port_out = (uint16_t)port;
    return EN_OK;
}

/* ---- the text of the file ---- */

static void format(const eni_file_rendezvous *m, char text_out[FILE_BYTES])
{
    char hex[ENI_TOKEN_HEX], address[ENI_ADDRESS_TEXT];
    eni_token_hex(&m->token, hex);
    snprintf(text_out, FILE_BYTES, FIRST_LINE "\ntoken %s\nhost %s\nhost_id %s\npid %" PRId64 "\n", hex,
             m->host, m->host_id, m->pid);
    for (int i = 0; i < m->naddresses; i++) {
        eni_address_format(&m->address[i], address);
        eni_text_add(text_out, FILE_BYTES, "at %s\n", address);
    }
    eni_text_add(text_out, FILE_BYTES, "end\n");
}

static bool take_line(eni_file_rendezvous *m, const char *key, const char *value)
{
    if (strcmp(key, "token") == 0) return eni_token_parse(value, &m->token) == EN_OK;
    if (strcmp(key, "host") == 0) return snprintf(m->host, sizeof m->host, "%s", value) < (int)sizeof m->host;
    if (strcmp(key, "host_id") == 0)
        return snprintf(m->host_id, sizeof m->host_id, "%s", value) < (int)sizeof m->host_id;
    if (strcmp(key, "pid") == 0) return sscanf(value, "%" SCNd64, &m->pid) == 1 && m->pid > 0;
    if (strcmp(key, "at") == 0)
        return m->naddresses < ENI_FILE_RENDEZVOUS_ADDRESSES &&
               eni_address_parse(value, &m->address[m->naddresses++]) == EN_OK;
    return false;
}

/* Every line once, the last one "end": a truncated file is refused. */
static bool parse(char *text, eni_file_rendezvous *rendezvous_out)
{
    char *rest = text, *line = strsep(&rest, "\n");
    if (strcmp(line, FIRST_LINE) != 0) return false;
    *rendezvous_out = (eni_file_rendezvous){0};
    while ((line = strsep(&rest, "\n")) != NULL && strcmp(line, "end") != 0) {
        char *value = strchr(line, ' ');
        if (value == NULL) return false;
        *value++ = '\0';
        for (const char *c = value; *c != '\0'; c++)
            if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
        if (!take_line(rendezvous_out, line, value)) return false;
    }
    return line != NULL && rendezvous_out->naddresses > 0 && rendezvous_out->pid > 0 &&
           rendezvous_out->host_id[0] != '\0';
}

/* ---- the file ---- */

en_status eni_file_rendezvous_read(const char *path, eni_file_rendezvous *rendezvous_out)
{
    char text[FILE_BYTES];
    int fd;
    EN_TRY(eni_secret_open("rendezvous", path, &fd));
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes < 0 && errno == ESTALE) return EN_ENOENT; /* replaced, on a network file system */
    text[bytes < 0 ? 0 : bytes] = '\0';
    if (bytes >= 0 && parse(text, rendezvous_out)) return EN_OK;
    return eni_fail(EN_EFORMAT, "rendezvous", "%s was not written by rank 0 of a run: give another path",
                    path);
}

/* Whether a leader listens at one of the addresses that can be reached from here. */
static bool answers(const eni_file_rendezvous *m, const char *host_id, int64_t deadline_ns,
                    eni_address *address_out, int *error_out)
{
    bool is_here = strcmp(m->host_id, host_id) == 0;
    for (int i = 0; i < m->naddresses; i++) {
        int fd;
        int64_t until = eni_now_ns() + answer_ns;
        if (!is_here && eni_address_is_loopback(&m->address[i])) continue;
        if (eni_tcp_attempt(&m->address[i], until < deadline_ns ? until : deadline_ns, -1, &fd, error_out) !=
            EN_OK)
            continue;
        close(fd);
        *address_out = m->address[i];
        return true;
    }
    return false;
}

static en_status check_folder(const char *path)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (access(folder[0] == '\0' ? "/" : folder, W_OK | X_OK) == 0) return EN_OK;
    return eni_fail(EN_EINVAL, "rendezvous",
                    "cannot write %s: %s; its folder must exist, and be the same on all hosts", path,
                    strerror(errno));
}

en_status eni_file_rendezvous_check_free(const char *path, const char *host_id)
{
    eni_file_rendezvous old;
    eni_address address;
    int error = 0;
    EN_TRY(check_folder(path)); /* before any rank is admitted */
    en_status st = eni_file_rendezvous_read(path, &old);
    if (st == EN_ENOENT) return EN_OK;
    EN_TRY(st);
    bool is_here = strcmp(old.host_id, host_id) == 0;
    /* A lock is always visible on the writer's host, but not always on others. */
    bool is_alive = is_here ? eni_writer_look(path) == ENI_WRITER_LIVES
                            : answers(&old, host_id, eni_now_ns() + answer_ns, &address, &error);
    if (!is_alive) return EN_OK;
    return eni_fail(EN_EINVAL, "rendezvous",
                    "%s belongs to a running run (rank 0 is pid %" PRId64
                    " on %s): give another path, or end that run",
                    path, old.pid, old.host);
}

en_status eni_file_rendezvous_write(const eni_file_rendezvous *rendezvous, const char *path, int *lock_out)
{
    char text[FILE_BYTES], why[PATH_BYTES + 256];
    format(rendezvous, text);
    const en_status st = eni_file_hold(path, text, strlen(text), false, lock_out, why, sizeof why);
    return st == EN_OK ? st : eni_fail(st, "rendezvous", "%s", why);
}

/* ---- waiting for it ---- */

static en_status look(const char *path, const char *host_id, int64_t deadline_ns, eni_file_rendezvous *m,
                      eni_address *leader_out, int *error_out)
{
    EN_TRY(eni_file_rendezvous_read(path, m));
    bool is_here = strcmp(m->host_id, host_id) == 0;
    if (is_here && eni_writer_look(path) != ENI_WRITER_LIVES) return EN_ENOENT; /* a dead run's */
    /* A leader that listens on its loopback only is never reached from another host. */
    bool can_reach = is_here;
    for (int i = 0; i < m->naddresses; i++)
        can_reach = can_reach || !eni_address_is_loopback(&m->address[i]);
    if (!can_reach)
        return eni_fail(EN_EINVAL, "rendezvous",
                        "rank 0 is on another host (%s) and listens on its loopback only (%s): start all "
                        "ranks with --insecure, on a network you trust",
                        m->host, m->address[0].host);
    return answers(m, host_id, deadline_ns, leader_out, error_out) ? EN_OK : EN_EIO;
}

/* The last look found no live leader (EN_ENOENT), or one that does not answer (EN_EIO). */
static void say_why(int level, en_status st, const char *path, const eni_file_rendezvous *m, int error,
                    int tries, int64_t begin_ns)
{
    if (st == EN_EIO)
        eni_tcp_explain(level, &m->address[0], error, tries, begin_ns);
    else
        eni_log(
            level, "rendezvous",
            "rank 0 has not written %s for %.1f s: is it running, and is the folder the same on this host?",
            path, (double)(eni_now_ns() - begin_ns) / (double)ENI_SECOND);
}

en_status eni_file_rendezvous_find(const char *path, const char *host_id, int64_t deadline_ns,
                                   eni_file_rendezvous_alive alive, void *user, eni_token *token_out,
                                   eni_address *leader_out)
{
    eni_file_rendezvous m;
    int64_t begin = eni_now_ns(), say = begin + 5 * ENI_SECOND;
    for (int tries = 1;; tries++) {
        int error = 0;
        EN_TRY(alive(user));
        en_status st = look(path, host_id, deadline_ns, &m, leader_out, &error);
        if (st == EN_OK) {
            *token_out = m.token;
            return EN_OK;
        }
        if (st != EN_ENOENT && st != EN_EIO) return st;
        int64_t now = eni_now_ns();
        if (now + look_ns >= deadline_ns) {
            say_why(ENI_LOG_ERROR, st, path, &m, error, tries, begin);
            return EN_ETIMEOUT;
        }
        if (now > say) {
            say_why(ENI_LOG_WARN, st, path, &m, error, tries, begin);
            say = now + 30 * ENI_SECOND;
        }
        eni_sleep_until(now + look_ns);
    }
}
