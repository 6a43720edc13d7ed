/* guard.h - watches the connections of a ROUTER that have not shown the job token. Private to runtime/net.
 *
 * ZeroMQ bounds the size of a frame and the number of whole messages, but neither the frames of a message
 * that never ends nor the lifetime of a connection that sends nothing of ours. So each connection has
 * ENI_GUARD_TIMEOUT_NS and ENI_GUARD_BYTES until the shard admits it, and ENI_GUARD_MAX of them may wait
 * (fewer where ulimit -n is low). While any wait, a thread looks every few milliseconds and shuts down those
 * over a limit; ZeroMQ then frees what it holds of them. */
#ifndef NET_GUARD_H
#define NET_GUARD_H

#include <stdint.h>

#include "entrain/status.h"

#define ENI_GUARD_TIMEOUT_NS INT64_C(5000000000)
enum { ENI_GUARD_BYTES = 4096, ENI_GUARD_MAX = 256 };

typedef struct eni_guard eni_guard;

/* Begins to watch a bound ROUTER of this context; connections that exist already are not watched. `nrouters`
 * of this process share its descriptors. From the socket's thread. */
en_status eni_guard_start(void *context, void *router, uint32_t nrouters, eni_guard **guard_out);

/* The connection with this descriptor has shown the token: it is no longer watched. Any thread. */
void eni_guard_admit(eni_guard *guard, int fd);

/* Connections shut down so far. Any thread. */
uint64_t eni_guard_evicted(const eni_guard *guard);

/* Before the ROUTER is closed, from its thread. NULL is fine. */
void eni_guard_stop(eni_guard *guard);

#endif
