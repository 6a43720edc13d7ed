/* store_save.h - the whole state of a store as bytes, and back.
 *
 * A store that is saved after event n and loaded into a new store of the same configuration goes on as if
 * nothing had happened: the same events from n + 1 on give the same actions and the same bytes. So psd can be
 * killed: its saved past comes from here, its clients send later calls again (retained pushes), and the dedupe
 * entries, which lie in the same state as their effect, show which of these are new.
 *
 * Saved: partitions (weights, initial weights of peer vectors, optimizer slots, versions, steps, samples,
 * strategy state, timers), dedupe entries and peer vectors, staged and held calls with their payloads and
 * tickets, clients, statistics, the index of the strategy's random numbers. Not saved: values that follow from
 * these (counts, least clocks), idle buffers, and stats.detached's future: a loaded payload is the store's
 * own memory.
 *
 *     [header] [text] [store] [client] x world [partition] x buckets "END\n"       all numbers little-endian
 *
 *     header    0  8  "ENSTATE\n"
 *               8  4  version, 2
 *              12  4  bytes of text that follow
 *              16     text: the configuration, which must be the loading store's, in lines "key=value\n":
 *                     (groups, lr-points,) strategy, options, optimizer, momentum, weight-decay, nesterov, (adam, adamw:
 *                     beta1, beta2, eps,) lr, lr-schedule (0 constant, 1 step, 2 cosine, 3 multistep,
 *                     4 linear, 5 points), lr-gamma, (3: lr-milestones,) lr-step, lr-warmup, total-samples, sum-order
 *                     (0 rank, 1 ring), shard, shards, world, seed, stream, buckets (element counts, comma
 *                     separated). Reals as "%.17g".
 *
 * The bytes have no digest of their own: the writer of the file adds one (server/state.h). Load checks all
 * that memory safety and the store's invariants rest on: lengths, ranges, counts, references. It cannot detect
 * a flipped bit in a weight.
 *
 * After a load, in this order:
 *     TIMER    the first due time is eni_store_timer(): loading appends no TIMER_AT
 *     MEMBER   JOINED with its incarnation for every client that is here again (known ones change nothing),
 *              LEFT for those that are not
 *     CALL     from the last stable one on, with is_replay (store.h), each after the answer to the one before.
 *              The stable one itself is a repeat and needs no payload, but its answer must be waited for: the
 *              store may have it staged or held in a round that it must repeat, and an earlier new call would
 *              get into that round (ps-sync then sums two pushes of one rank; found by the fault test). New
 *              calls come after the last replay is answered, and keep is_replay while their base_version is
 *              from an earlier incarnation.
 *     Held calls keep their tickets, or what old_ticket makes of them; a repeat brings the new one. */
#ifndef STORE_STORE_SAVE_H
#define STORE_STORE_SAVE_H

#include "runtime/store/store.h"

enum { ENI_STATE_VERSION = 2 };

/* Takes the bytes: a file, a running hash, memory. */
typedef en_status (*eni_store_write)(void *user, const void *data, size_t bytes);

/* Passes the state to write(user, data, bytes), in pieces of at most 64 KiB. Between two events, not while a
 * step is in progress; actions of the last step stay valid. Changes nothing. Blocks as long as write does.
 * Returns the first status of write that is not EN_OK, and stops there; EN_ENOMEM. */
en_status eni_store_save(const eni_store *store, eni_store_write write, void *user);

/* Loads a saved state into a new store (eni_store_new), which has seen no event. The bytes are only read during
 * the call. Timers continue with the time they had left: due at now_ns + rest (pass the time of the last event
 * before the save to get the same deadlines).
 *
 * EN_EFORMAT: truncated, too long, or an invalid value; EN_EVERSION: of another version; EN_EMISMATCH: of
 * another configuration, the first line that differs is logged with both values; EN_ENOMEM; EN_EBUG: the store
 * is not new. All logged with the reason. On failure the store is good for eni_store_free only. */
en_status eni_store_load(eni_store *store, const void *bytes, size_t length, int64_t now_ns);

/* The configuration as the lines of a header; not terminated, freed with eni_free. NULL: out of memory. */
char *eni_store_config_text(const eni_store_config *config, size_t *bytes_out);

/* The seq of the last call of this client on this partition that was taken in; 0: none, or no such partition
 * or client. Those of a saved state are what `stable` on the wire promises once that state is safe on disk. */
uint64_t eni_store_seq(const eni_store *store, int32_t client, uint32_t bucket);

/* The incarnation with which a client joined last; 0: it never has. */
uint64_t eni_store_incarnation(const eni_store *store, int32_t client);

/* Whether that incarnation has finished. */
bool eni_store_has_finished(const eni_store *store, int32_t client);

/* When the next TIMER event is due; INT64_MAX: none. */
int64_t eni_store_timer(const eni_store *store);

/* Optimizer steps and samples behind a partition's weights; 0: no such partition. */
void eni_store_past(const eni_store *store, uint32_t bucket, uint64_t *steps_out, uint64_t *samples_out);

#endif
