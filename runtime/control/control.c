/* control.c - copies of what control messages carry, and the text of a death; see control.h and message.h. */
#include "runtime/control/control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/message.h"

en_status eni_key_values_take(const eni_key_value_list *list, const eni_key_value **key_values_out)
{
    /* Every string is preceded by at least one byte of msgpack, which makes room for its terminator. */
    eni_key_value *key_values = eni_alloc(list->n * sizeof *key_values + list->raw.bytes + 1);
    if (key_values == NULL) return EN_ENOMEM;
    char *text = (char *)(key_values + list->n);
    eni_cursor in = eni_cursor_make(list->raw.data, list->raw.bytes);
    for (size_t i = 0; i < 2 * list->n; i++) {
        eni_span span = eni_unpack_str(&in, ENI_BLOB_MAX, "a value is too long");
        memcpy(text, span.data, span.bytes);
        text[span.bytes] = '\0';
        if (i % 2 == 0)
            key_values[i / 2].key = text;
        else
            key_values[i / 2].value = text;
        text += span.bytes + 1;
    }
    *key_values_out = key_values;
    return EN_OK;
}

en_status eni_key_values_copy(const eni_key_value *given, size_t n, const eni_key_value **key_values_out)
{
    size_t bytes = n * sizeof *given;
    for (size_t i = 0; i < n; i++)
        bytes += strlen(given[i].key) + strlen(given[i].value) + 2;
    eni_key_value *key_values = eni_alloc(bytes);
    if (key_values == NULL) return EN_ENOMEM;
    char *text = (char *)(key_values + n);
    for (size_t i = 0; i < n; i++) {
        key_values[i].key = strcpy(text, given[i].key);
        text += strlen(text) + 1;
        key_values[i].value = strcpy(text, given[i].value);
        text += strlen(text) + 1;
    }
    *key_values_out = key_values;
    return EN_OK;
}

/* `has_data`: the status of copying its member data. */
static en_status name_peer(eni_peer *peer, const char *host, const char *host_id, en_status has_data)
{
    peer->host = eni_strdup(host);
    peer->host_id = eni_strdup(host_id);
    if (peer->host != NULL && peer->host_id != NULL && has_data == EN_OK) return EN_OK;
    eni_peer_fini(peer);
    return EN_ENOMEM;
}

en_status eni_peer_init(eni_peer *peer, const eni_message *message)
{
    *peer = (eni_peer){.rank = message->rank,
                       .pid = message->pid,
                       .born = message->born,
                       .nmember_data = message->member_data.n};
    return name_peer(peer, message->host, message->host_id,
                     eni_key_values_take(&message->member_data, &peer->member_data));
}

en_status eni_peer_copy(eni_peer *peer, const eni_peer *of)
{
    *peer = (eni_peer){.rank = of->rank, .pid = of->pid, .born = of->born, .nmember_data = of->nmember_data};
    return name_peer(peer, of->host, of->host_id,
                     eni_key_values_copy(of->member_data, of->nmember_data, &peer->member_data));
}

void eni_peer_fini(eni_peer *peer)
{
    eni_free(peer->host);
    eni_free(peer->host_id);
    eni_free(peer->member_data);
    *peer = (eni_peer){0};
}

bool eni_kept_fill(eni_kept *kept, const eni_message *m)
{
    eni_kept_fini(kept);
    kept->data = eni_alloc(m->blob.bytes);
    if (kept->data == NULL) return false;
    memcpy(kept->data, m->blob.data, m->blob.bytes);
    memcpy(kept->tag, m->tag, sizeof kept->tag);
    kept->bytes = m->blob.bytes;
    kept->number = m->number;
    return true;
}

void eni_kept_fini(eni_kept *kept)
{
    eni_free(kept->data);
    *kept = (eni_kept){0};
}

const char *eni_key_value_find(const eni_key_value *key_values, size_t nkey_values, const char *key)
{
    for (size_t i = 0; i < nkey_values; i++)
        if (strcmp(key_values[i].key, key) == 0) return key_values[i].value;
    return NULL;
}

void eni_blobs_fini(eni_blobs *blobs)
{
    for (size_t i = 0; i < blobs->count && blobs->blob != NULL; i++)
        eni_free(blobs->blob[i].data);
    eni_free(blobs->blob);
    *blobs = (eni_blobs){0};
}

void eni_peer_name(int32_t rank, char name_out[32])
{
    if (rank >= 0)
        snprintf(name_out, 32, "rank %d", rank);
    else if (rank == -1)
        snprintf(name_out, 32, "psd");
    else if (rank > ENI_RANK_NONE)
        snprintf(name_out, 32, "psd %d", -1 - rank);
    else
        snprintf(name_out, 32, "a worker without a rank");
}

void eni_death_text(const eni_death *death, char text_out[ENI_REASON_MAX])
{
    char who[32], where[80] = "";
    eni_peer_name(death->rank, who);
    if (death->step >= 0)
        snprintf(where, sizeof where, " at step %lld%s%.31s", (long long)death->step,
                 death->phase[0] ? " in " : "", death->phase);
    else if (death->phase[0])
        snprintf(where, sizeof where, " in %.31s", death->phase);
    if (death->is_stopped)
        snprintf(text_out, ENI_REASON_MAX, "%s (pid %lld on host %.100s) was %.200s%s", who,
                 (long long)death->pid, death->host, death->cause, where);
    else
        snprintf(text_out, ENI_REASON_MAX, "%s (pid %lld on host %.100s) died%s: %.200s", who,
                 (long long)death->pid, death->host, where, death->cause);
}

/* ---- the line to the launcher ---- */

enum { FIELDS = 8, END_TRIES = 50, END_WAIT_MS = 100 };

void eni_failure_write(int fd, const eni_death *death)
{
    char line[1100];
    int n = snprintf(line, sizeof line, "death\t%d\t%lld\t%lld\t%d\t%s\t%s\t%s\n", (int)death->rank,
                     (long long)death->pid, (long long)death->step, death->is_stopped, death->host,
                     death->phase, death->cause);
    if (n > 0 && n < (int)sizeof line) (void)!write(fd, line, (size_t)n);
}

/* Waits a few seconds for room in the pipe. */
static void write_line(int fd, const char *line)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    for (int tries = 0; tries < END_TRIES && write(fd, line, strlen(line)) < 0; tries++) {
        if (errno != EAGAIN && errno != EINTR) return;
        poll(&room, 1, END_WAIT_MS);
    }
}

void eni_cause_tell(void *fd_, const char *sentence)
{
    char line[ENI_REASON_MAX + 40];
    const int fd = (int)*(const int64_t *)fd_;
    snprintf(line, sizeof line, "cause\t%lld\t%.*s\n", (long long)getpgrp(), (int)ENI_REASON_MAX, sentence);
    if (fd >= 0)
        write_line(fd, line);
    else
        eni_error("plugin", "%s", sentence);
}

void eni_end_write(int fd, en_status st)
{
    char line[40];
    snprintf(line, sizeof line, "end\t%lld\t%d\n", (long long)getpgrp(), st);
    if (fd >= 0) write_line(fd, line);
}

void eni_resize_write(int fd, int32_t workers, const char *why)
{
    char line[ENI_REASON_MAX + 40];
    const int n = snprintf(line, sizeof line, "resize\t%d\t%.*s\n", (int)workers, (int)ENI_REASON_MAX, why);
    (void)!write(fd, line, (size_t)n);
}

static bool read_number(const char *text, long long *number_out)
{
    char *end;
    *number_out = strtoll(text, &end, 10);
    return end != text && *end == 0;
}

static bool fits(char *copy, size_t bytes, const char *text)
{
    return (size_t)snprintf(copy, bytes, "%s", text) < bytes;
}

bool eni_end_read(const char *line, int64_t *pid_out, en_status *st_out)
{
    long long pid;
    int st;
    if (sscanf(line, "end\t%lld\t%d", &pid, &st) != 2) return false;
    *pid_out = pid;
    *st_out = st;
    return true;
}

bool eni_cause_read(const char *line, int64_t *pid_out, const char **sentence_out)
{
    int used = 0;
    long long pid;
    if (sscanf(line, "cause\t%lld\t%n", &pid, &used) != 1 || used == 0) return false;
    *pid_out = pid;
    *sentence_out = line + used;
    return true;
}

bool eni_resize_read(const char *line, int32_t *workers_out, const char **why_out)
{
    int used = 0, workers;
    if (sscanf(line, "resize\t%d\t%n", &workers, &used) != 1 || used == 0 || workers < 1) return false;
    *workers_out = workers;
    *why_out = line + used;
    return true;
}

bool eni_failure_read(char *line, eni_death *death_out)
{
    char *field[FIELDS], *rest = line;
    long long rank, pid, step, is_stopped;
    int n = 0;
    while (n < FIELDS && rest != NULL)
        field[n++] = strsep(&rest, "\t");
    if (n != FIELDS || rest != NULL || strcmp(field[0], "death") != 0) return false;
    if (!read_number(field[1], &rank) || !read_number(field[2], &pid) || !read_number(field[3], &step) ||
        !read_number(field[4], &is_stopped))
        return false;
    eni_death death = {.rank = (int32_t)rank, .pid = pid, .step = step, .is_stopped = is_stopped != 0};
    if (!fits(death.host, sizeof death.host, field[5]) || !fits(death.phase, sizeof death.phase, field[6]) ||
        !fits(death.cause, sizeof death.cause, field[7]))
        return false;
    *death_out = death;
    return true;
}
