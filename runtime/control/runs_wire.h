/* runs_wire.h - the messages of the status socket, for its two sides: leader_door.c and runs.c. Each is one
 * msgpack array in one SOCK_SEQPACKET message. Private to them and their tests. */
#ifndef CONTROL_RUNS_WIRE_H
#define CONTROL_RUNS_WIRE_H

#include <stdbool.h>
#include <sys/types.h>

#include "runtime/control/runs.h"
#include "runtime/net/pack.h"
#include "runtime/net/unpack.h"

#define ENI_RUNS_MESSAGE_MAX 8192u
#define ENI_RUNS_NAME        "entrain-run-"

/* The first element: a question, or what an answer is about. */
enum { ENI_RUNS_STATUS = 1, ENI_RUNS_STOP = 2, ENI_RUNS_RUN = 3, ENI_RUNS_RANK = 4 };

/* Listens under the first free name of this pid; -1: errno says why. */
int eni_runs_listen(pid_t pid);

/* Whether the other side of a connected AF_UNIX socket is a process of this user. */
bool eni_runs_is_own_user(int fd);

void eni_runs_put_run(eni_pack *out, const eni_run *run);
void eni_runs_put_rank(eni_pack *out, const eni_run_rank *rank);

/* The question in untrusted bytes, 0: none. `why_out` is STOP's. */
uint32_t eni_runs_get_question(const uint8_t *bytes, size_t length, char why_out[ENI_REASON_MAX]);

/* EN_EPROTO: not such a message. Facts are copied: eni_runs_free frees them. */
en_status eni_runs_get_run(const uint8_t *bytes, size_t length, eni_run *run_out);
en_status eni_runs_get_rank(const uint8_t *bytes, size_t length, eni_run_rank *rank_out);

#endif
