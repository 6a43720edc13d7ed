/* shaper.h - emulates a slower network in our own transport: --net=rate:200MB,delay:1ms.
 *
 * A process has one NIC with a rate in bytes per second each way and a delay. It is arithmetic on time
 * stamps: no thread, no sleep, no queue. The sender stamps every message with the moment of its last byte's
 * arrival (eni_header.deliver_ns), the receiver holds the message until then. The bucket has zero depth: no
 * burst is ever free.
 *
 *     send:     egress_free  = max(now, egress_free) + bytes / rate;   deliver = egress_free + delay
 *     receive:  ingress_free = max(ingress_free, deliver - bytes / rate) + bytes / rate;   ready at ingress_free
 *
 * So a lone message is ready at `deliver`: its bytes come in while they go out, and are not paid for twice.
 * When k senders hit one receiver at once (in-cast) its own rate serialises them. Messages are charged in the
 * order of the calls of eni_shaper_recv: a receiver of several senders calls it when a message's first byte
 * arrives, so that one who sends ahead does not overtake the others. Stamps are on the monotonic clock, so all processes must share
 * one machine; network namespaces are fine. Thread-safe: the shards of one process share its NIC. */
#ifndef NET_SHAPER_H
#define NET_SHAPER_H

#include <stddef.h>
#include <stdint.h>

typedef struct eni_shaper eni_shaper;

/* NULL when out of memory. bytes_per_s 0: unlimited. */
eni_shaper *eni_shaper_new(uint64_t bytes_per_s, int64_t delay_ns);
void eni_shaper_free(eni_shaper *shaper); /* NULL is fine */

/* Describes the emulated network for people: "125 MB/s (1000 Mbit/s) each way, 50 us more latency". */
void eni_net_describe(uint64_t bytes_per_s, int64_t delay_ns, char *text_out, size_t bytes);

/* Charges the sender's NIC at `now_ns` and returns deliver_ns. A NULL shaper returns 0: at once. */
int64_t eni_shaper_send(eni_shaper *shaper, int64_t now_ns, uint64_t bytes);

/* When the first byte of a message arrives at an idle NIC. The shaper is not NULL. */
int64_t eni_shaper_first(const eni_shaper *shaper, int64_t deliver_ns, uint64_t bytes);

/* Charges the receiver's NIC and returns when the message may be used. A NULL shaper or deliver_ns 0 returns
 * deliver_ns. Call once per message. */
int64_t eni_shaper_recv(eni_shaper *shaper, int64_t deliver_ns, uint64_t bytes);

#endif
