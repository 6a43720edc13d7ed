/* runs_wire.c - see runs_wire.h. */
#include "runtime/control/runs_wire.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/message.h"

enum { LEADERS_OF_A_PROCESS = 100, BACKLOG = 16, ATTRIBUTES_MAX = 32 };

int eni_runs_listen(pid_t pid)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    for (int i = 0; fd >= 0 && i < LEADERS_OF_A_PROCESS; i++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        char suffix[16] = "";
        if (i > 0) snprintf(suffix, sizeof suffix, ".%d", i);
        int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, ENI_RUNS_NAME "%d%s", (int)pid, suffix);
        socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
        if (bind(fd, (struct sockaddr *)&name, bytes) == 0) {
            if (listen(fd, BACKLOG) == 0) return fd;
            break;
        }
        if (errno != EADDRINUSE) break;
    }
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    return -1;
}

bool eni_runs_is_own_user(int fd)
{
    struct ucred other;
    socklen_t bytes = sizeof other;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == geteuid();
}

/* ---- writing ---- */

void eni_runs_put_run(eni_pack *out, const eni_run *run)
{
    eni_pack_array(out, 11);
    eni_pack_uint(out, ENI_RUNS_RUN);
    eni_pack_int(out, run->pid);
    eni_pack_uint(out, run->stage);
    eni_pack_int(out, run->nranks);
    eni_pack_int(out, run->nservers);
    eni_pack_int(out, run->elapsed_ns);
    eni_pack_uint(out, run->samples);
    eni_pack_uint(out, run->claimed);
    eni_pack_uint(out, run->budget);
    eni_pack_uint(out, run->nrank);
    eni_pack_array(out, (uint32_t)run->nattributes * 2);
    for (size_t i = 0; i < run->nattributes; i++) {
        eni_pack_text(out, run->attributes[i].key);
        eni_pack_text(out, run->attributes[i].value);
    }
}

void eni_runs_put_rank(eni_pack *out, const eni_run_rank *rank)
{
    eni_pack_array(out, 7);
    eni_pack_uint(out, ENI_RUNS_RANK);
    eni_pack_int(out, rank->rank);
    eni_pack_int(out, rank->pid);
    eni_pack_int(out, rank->step);
    eni_pack_uint(out, rank->state);
    eni_pack_text(out, rank->host);
    eni_pack_text(out, rank->phase);
}

/* ---- reading ---- */

uint32_t eni_runs_get_question(const uint8_t *bytes, size_t length, char why_out[ENI_REASON_MAX])
{
    eni_cursor in = eni_cursor_make(bytes, length);
    uint32_t n = eni_unpack_array(&in, 1, 2);
    uint32_t question = (uint32_t)eni_unpack_uint(&in, ENI_RUNS_STOP, "the question is unknown");
    why_out[0] = '\0';
    if (question == ENI_RUNS_STOP && n == 2)
        eni_unpack_text(&in, why_out, ENI_REASON_MAX, "the reason is too long");
    else if (question != ENI_RUNS_STATUS || n != 1)
        eni_cursor_refuse(&in, "the question is unknown");
    return eni_cursor_finish(&in) ? question : 0;
}

/* Copied as eni_key_values_take copies: one block. */
static en_status get_attributes(eni_cursor *in, eni_run *run)
{
    uint32_t n = eni_unpack_array(in, 0, 2 * ATTRIBUTES_MAX);
    const uint8_t *begin = in->at;
    for (uint32_t i = 0; i < n; i++)
        eni_unpack_str(in, ENI_REASON_MAX, "a fact is too long");
    if (n % 2 != 0) eni_cursor_refuse(in, "a key without a value");
    if (!eni_cursor_finish(in)) return EN_EPROTO;
    const eni_key_value *attributes;
    eni_key_value_list list = {NULL, n / 2, {begin, (size_t)(in->at - begin)}};
    EN_TRY(eni_key_values_take(&list, &attributes));
    run->attributes = (eni_key_value *)(uintptr_t)attributes;
    run->nattributes = n / 2;
    return EN_OK;
}

en_status eni_runs_get_run(const uint8_t *bytes, size_t length, eni_run *run)
{
    eni_cursor in = eni_cursor_make(bytes, length);
    *run = (eni_run){0};
    eni_unpack_array(&in, 11, 11);
    if (eni_unpack_uint(&in, 255, "the answer is unknown") != ENI_RUNS_RUN)
        eni_cursor_refuse(&in, "the answer is unknown");
    run->pid = eni_unpack_int(&in, 1, INT32_MAX, "the process id is out of range");
    run->stage = (eni_run_stage)eni_unpack_uint(&in, ENI_RUN_ENDING, "the stage is unknown");
    run->nranks = (int32_t)eni_unpack_int(&in, 1, ENI_RANKS_MAX, "the world size is out of range");
    run->nservers = (int32_t)eni_unpack_int(&in, 0, ENI_SERVERS_MAX, "the number of servers is out of range");
    run->elapsed_ns = eni_unpack_int(&in, 0, INT64_MAX, "the time is out of range");
    run->samples = eni_unpack_uint(&in, UINT64_MAX, "the number of samples is out of range");
    run->claimed = eni_unpack_uint(&in, UINT64_MAX, "the number of claims is out of range");
    run->budget = eni_unpack_uint(&in, UINT64_MAX, "the budget is out of range");
    run->nrank =
        (size_t)eni_unpack_uint(&in, ENI_RANKS_MAX + ENI_SERVERS_MAX, "the number of ranks is out of range");
    return get_attributes(&in, run);
}

en_status eni_runs_get_rank(const uint8_t *bytes, size_t length, eni_run_rank *rank)
{
    eni_cursor in = eni_cursor_make(bytes, length);
    *rank = (eni_run_rank){0};
    eni_unpack_array(&in, 7, 7);
    if (eni_unpack_uint(&in, 255, "the answer is unknown") != ENI_RUNS_RANK)
        eni_cursor_refuse(&in, "the answer is unknown");
    rank->rank = (int32_t)eni_unpack_int(&in, ENI_RANK_NONE, ENI_RANKS_MAX - 1, "the rank is out of range");
    rank->pid = eni_unpack_int(&in, 0, INT64_MAX, "the process id is out of range");
    rank->step = eni_unpack_int(&in, -1, INT64_MAX, "the step is out of range");
    rank->state = (eni_rank_state)eni_unpack_uint(&in, ENI_RANK_GONE, "the state is unknown");
    eni_unpack_text(&in, rank->host, sizeof rank->host, "the host's name is too long");
    eni_unpack_text(&in, rank->phase, sizeof rank->phase, "the phase is too long");
    return eni_cursor_finish(&in) ? EN_OK : EN_EPROTO;
}
