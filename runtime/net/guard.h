/* guard.h - watches the connections of a ROUTER that have not shown the job token. Private to runtime/net.
 *
 * ZeroMQ bounds the size of a frame and the number of whole messages, but not the frames of a message that
 * never ends, nor how long a connection may stay that says nothing of ours. So each connection has
 * ENI_GUARD_TIMEOUT_NS and ENI_GUARD_BYTES until the shard lets it in, and ENI_GUARD_MAX of them may wait (fewer where ulimit -n is low); a
 * thread looks every few milliseconds while there are any, and shuts down what is over. What ZeroMQ holds of
 * such a connection goes with it. */
#ifndef NET_GUARD_H
#define NET_GUARD_H

#include <stdint.h>

#include "entrain/status.h"

#define ENI_GUARD_TIMEOUT_NS INT64_C(5000000000)
enum { ENI_GUARD_BYTES = 4096, ENI_GUARD_MAX = 256 };

typedef struct eni_guard eni_guard;

/* Begins to watch a bound ROUTER of this context; before that, who is connected already is not watched. `nrouters`
 * of this process share its descriptors. From the socket's thread. */
en_status eni_guard_start(void *context, void *router, uint32_t nrouters, eni_guard **guard_out);

/* The connection with this descriptor has shown the token: it is not watched any more. Any thread. */
void eni_guard_admit(eni_guard *guard, int fd);

/* Connections shut down so far. Any thread. */
uint64_t eni_guard_evicted(const eni_guard *guard);

/* Before the ROUTER is closed, from its thread. NULL is fine. */
void eni_guard_stop(eni_guard *guard);

#endif
