/* message.h - the messages of the control connection, one struct for all. Each is one msgpack array whose
 * first element is the type; docs/wire.md has the bytes. Private to leader and member, and to their fuzz
 * target. */
#ifndef NET_MESSAGE_H
#define NET_MESSAGE_H

#include <stdbool.h>

#include "runtime/net/control.h"
#include "runtime/net/link.h"
#include "runtime/net/token.h"

enum {
    ENI_CTL_JOIN = 1,      /* member: who I am, what must match, what to tell the others */
    ENI_CTL_HEARTBEAT = 2, /* both: step, phase, samples */
    ENI_CTL_CLAIM = 3,     /* member: the next micro-batch, please; answered by CLAIMED */
    ENI_CTL_GATHER = 4,    /* member: tag, blob; answered by nranks + 1 GATHERED */
    ENI_CTL_BYE = 5,       /* member: leaving in good order; the leader says the same back */
    ENI_CTL_ABORT = 6,     /* member: the run cannot go on: reason */
    ENI_CTL_REFUSED = 16,  /* leader, instead of WELCOME: status, reason */
    ENI_CTL_PEER = 17,     /* leader, before WELCOME: one for every rank */
    ENI_CTL_WELCOME = 18,  /* leader: the run begins */
    ENI_CTL_CLAIMED = 19,  /* leader: an index, or none: the budget is used up */
    ENI_CTL_GATHERED = 20, /* leader: tag, index of count, blob */
    ENI_CTL_DEAD = 21,     /* leader: the first victim */
    ENI_CTL_ENDED = 22,    /* leader: status, reason */
};

/* Key-value pairs: `pair` when encoding, `raw` (checked, not yet copied) after decoding. */
typedef struct eni_pair_list {
    const eni_pair *pair;
    size_t n;
    eni_span raw;
} eni_pair_list;

/* Which fields count depends on the type: see fields() in message.c. */
typedef struct eni_message {
    uint32_t type;
    eni_token token;
    int32_t rank, nranks;
    int64_t pid, step;
    uint32_t epoch, status, count;
    uint64_t incarnation, budget, index, samples;
    bool has_index;
    char host[256], host_id[128], tag[ENI_TAG_MAX], phase[ENI_PHASE_MAX], reason[ENI_REASON_MAX];
    eni_pair_list pairs, privates;
    eni_span blob;
} eni_message;

/* Appends the message as a frame to what the link will send. */
en_status eni_message_put(eni_link *link, const eni_message *message);

/* Decodes untrusted bytes into *out; spans are borrowed from them. EN_EPROTO, or EN_EVERSION for a JOIN of
 * another version; `why_out` (may be NULL) gets a static sentence. No allocation. */
en_status eni_message_get(const uint8_t *bytes, size_t length, eni_message *out, const char **why_out);

/* Copies decoded / given pairs into one block, freed with eni_free. */
en_status eni_pairs_take(const eni_pair_list *list, const eni_pair **pairs_out);
en_status eni_pairs_copy(const eni_pair *pairs, size_t n, const eni_pair **pairs_out);

/* Fills a peer with copies of host, host_id and privates; fini frees them. */
en_status eni_peer_init(eni_peer *peer, const eni_message *message);
void eni_peer_fini(eni_peer *peer);

#endif
