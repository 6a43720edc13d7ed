/* message.c - the bytes of the control messages; see message.h. */
#include "runtime/net/message.h"

#include <string.h>

enum { SMALL_MAX = 4096, PAIRS_MAX = 1024, KEY_MAX = 255, JOIN_FIELDS = 12 };

/* Readers refuse control characters in texts, because texts end up in logs: ours have none. */
static void put_text(eni_pack *out, const char *text)
{
    char clean[ENI_REASON_MAX];
    size_t n = 0;
    for (; text[n] != '\0' && n < sizeof clean - 1; n++)
        clean[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    clean[n] = '\0';
    eni_pack_str(out, clean);
}

static void put_pairs(eni_pack *out, const eni_pair_list *list)
{
    eni_pack_array(out, (uint32_t)list->n * 2);
    for (size_t i = 0; i < list->n; i++) {
        eni_pack_str(out, list->pair[i].key);
        eni_pack_str(out, list->pair[i].value);
    }
}

static void put_head(eni_pack *out, uint32_t fields, uint32_t type)
{
    eni_pack_array(out, fields);
    eni_pack_uint(out, type);
}

static void put_join(eni_pack *out, const eni_message *m)
{
    put_head(out, JOIN_FIELDS, m->type);
    eni_pack_uint(out, ENI_CONTROL_MAGIC);
    eni_pack_uint(out, ENI_CONTROL_VERSION);
    eni_pack_bin(out, m->token.bytes, sizeof m->token.bytes);
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->nranks);
    eni_pack_int(out, m->pid);
    put_text(out, m->host);
    put_text(out, m->host_id);
    eni_pack_uint(out, m->incarnation);
    put_pairs(out, &m->pairs);
    put_pairs(out, &m->privates);
}

static void put_peer(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->pid);
    put_text(out, m->host);
    put_text(out, m->host_id);
    put_pairs(out, &m->privates);
}

static void put_welcome(eni_pack *out, const eni_message *m)
{
    put_head(out, 11, m->type);
    eni_pack_uint(out, m->index); /* the receiver's rank: `rank` below is the leader's */
    eni_pack_int(out, m->nranks);
    eni_pack_uint(out, m->epoch);
    eni_pack_uint(out, m->incarnation);
    eni_pack_uint(out, m->budget);
    put_peer(out, m);
}

static void put_dead(eni_pack *out, const eni_message *m)
{
    put_head(out, 7, m->type);
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->pid);
    eni_pack_int(out, m->step);
    put_text(out, m->host);
    put_text(out, m->phase);
    put_text(out, m->reason);
}

static void put(eni_pack *out, const eni_message *m)
{
    switch (m->type) {
    case ENI_CTL_JOIN: put_join(out, m); return;
    case ENI_CTL_HEARTBEAT:
        put_head(out, 4, m->type);
        eni_pack_int(out, m->step);
        put_text(out, m->phase);
        eni_pack_uint(out, m->samples);
        return;
    case ENI_CTL_GATHER:
        put_head(out, 3, m->type);
        put_text(out, m->tag);
        eni_pack_bin(out, m->blob.data, m->blob.bytes);
        return;
    case ENI_CTL_ABORT:
        put_head(out, 2, m->type);
        put_text(out, m->reason);
        return;
    case ENI_CTL_PEER:
        put_head(out, 6, m->type);
        put_peer(out, m);
        return;
    case ENI_CTL_WELCOME: put_welcome(out, m); return;
    case ENI_CTL_CLAIMED:
        put_head(out, 3, m->type);
        eni_pack_uint(out, m->has_index);
        eni_pack_uint(out, m->index);
        return;
    case ENI_CTL_GATHERED:
        put_head(out, 5, m->type);
        put_text(out, m->tag);
        eni_pack_uint(out, m->index);
        eni_pack_uint(out, m->count);
        eni_pack_bin(out, m->blob.data, m->blob.bytes);
        return;
    case ENI_CTL_DEAD: put_dead(out, m); return;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED:
        put_head(out, 3, m->type);
        eni_pack_uint(out, m->status);
        put_text(out, m->reason);
        return;
    default: put_head(out, 1, m->type); return; /* CLAIM, BYE */
    }
}

en_status eni_message_put(eni_link *link, const eni_message *message)
{
    size_t begin = eni_link_begin(link);
    put(&link->out, message);
    return eni_link_end(link, begin);
}

/* Walks over the pairs to check them; eni_pairs_take copies them later. */
static void get_pairs(eni_cursor *in, eni_pair_list *list)
{
    uint32_t n = eni_unpack_array(in, 0, 2 * PAIRS_MAX);
    const uint8_t *begin = in->at;
    if (n % 2 != 0) eni_cursor_refuse(in, "a key without a value");
    for (uint32_t i = 0; i < n && in->why == NULL; i += 2) {
        eni_unpack_str(in, KEY_MAX, "a key is too long");
        eni_unpack_str(in, ENI_BLOB_MAX, "a value is too long");
    }
    *list = (eni_pair_list){NULL, n / 2, {begin, (size_t)(in->at - begin)}};
}

static void get_peer(eni_cursor *in, eni_message *m)
{
    m->rank = (int32_t)eni_unpack_int(in, -1, ENI_RANKS_MAX - 1, "the rank is out of range");
    m->pid = eni_unpack_int(in, 0, INT64_MAX, "the process id is out of range");
    eni_unpack_text(in, m->host, sizeof m->host, "the host's name is too long");
    eni_unpack_text(in, m->host_id, sizeof m->host_id, "the host's id is too long");
    get_pairs(in, &m->privates);
}

static void get_join(eni_cursor *in, eni_message *m)
{
    eni_span token = eni_unpack_bin(in, sizeof m->token.bytes, "the token is too long");
    if (token.bytes == sizeof m->token.bytes)
        memcpy(m->token.bytes, token.data, token.bytes);
    else
        eni_cursor_refuse(in, "the token is too short");
    m->rank = (int32_t)eni_unpack_int(in, -1, INT32_MAX, "the rank is out of range");
    m->nranks = (int32_t)eni_unpack_int(in, 1, INT32_MAX, "the world size is out of range");
    m->pid = eni_unpack_int(in, 0, INT64_MAX, "the process id is out of range");
    eni_unpack_text(in, m->host, sizeof m->host, "the host's name is too long");
    eni_unpack_text(in, m->host_id, sizeof m->host_id, "the host's id is too long");
    m->incarnation = eni_unpack_uint(in, UINT64_MAX, "the incarnation is out of range");
    get_pairs(in, &m->pairs);
    get_pairs(in, &m->privates);
}

static void get_welcome(eni_cursor *in, eni_message *m)
{
    m->index = eni_unpack_uint(in, ENI_RANKS_MAX - 1, "the rank is out of range");
    m->nranks = (int32_t)eni_unpack_int(in, 1, ENI_RANKS_MAX, "the world size is out of range");
    m->epoch = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the epoch is out of range");
    m->incarnation = eni_unpack_uint(in, UINT64_MAX, "the incarnation is out of range");
    m->budget = eni_unpack_uint(in, UINT64_MAX, "the budget is out of range");
    get_peer(in, m);
}

static void get_dead(eni_cursor *in, eni_message *m)
{
    m->rank = (int32_t)eni_unpack_int(in, -1, ENI_RANKS_MAX - 1, "the rank is out of range");
    m->pid = eni_unpack_int(in, 0, INT64_MAX, "the process id is out of range");
    m->step = eni_unpack_int(in, -1, INT64_MAX, "the step is out of range");
    eni_unpack_text(in, m->host, sizeof m->host, "the host's name is too long");
    eni_unpack_text(in, m->phase, sizeof m->phase, "the phase is too long");
    eni_unpack_text(in, m->reason, sizeof m->reason, "the cause is too long");
}

static void get_tagged(eni_cursor *in, eni_message *m)
{
    eni_unpack_text(in, m->tag, sizeof m->tag, "the tag is too long");
    if (m->type == ENI_CTL_GATHERED) {
        m->index = eni_unpack_uint(in, ENI_RANKS_MAX, "the blob's index is out of range");
        m->count = (uint32_t)eni_unpack_uint(in, ENI_RANKS_MAX + 1, "the number of blobs is out of range");
        if (m->index >= m->count) eni_cursor_refuse(in, "the blob's index is not below their number");
    }
    m->blob = eni_unpack_bin(in, ENI_BLOB_MAX, "the blob is over the limit");
}

/* Elements of each type's array; 0: no such type. */
static uint32_t fields(uint32_t type)
{
    switch (type) {
    case ENI_CTL_JOIN: return JOIN_FIELDS;
    case ENI_CTL_HEARTBEAT: return 4;
    case ENI_CTL_CLAIM: return 1;
    case ENI_CTL_GATHER: return 3;
    case ENI_CTL_BYE: return 1;
    case ENI_CTL_ABORT: return 2;
    case ENI_CTL_REFUSED: return 3;
    case ENI_CTL_PEER: return 6;
    case ENI_CTL_WELCOME: return 11;
    case ENI_CTL_CLAIMED: return 3;
    case ENI_CTL_GATHERED: return 5;
    case ENI_CTL_DEAD: return 7;
    case ENI_CTL_ENDED: return 3;
    default: return 0;
    }
}

static void get(eni_cursor *in, eni_message *m)
{
    switch (m->type) {
    case ENI_CTL_JOIN: get_join(in, m); break;
    case ENI_CTL_HEARTBEAT:
        m->step = eni_unpack_int(in, -1, INT64_MAX, "the step is out of range");
        eni_unpack_text(in, m->phase, sizeof m->phase, "the phase is too long");
        m->samples = eni_unpack_uint(in, UINT64_MAX, "the number of samples is out of range");
        break;
    case ENI_CTL_GATHER:
    case ENI_CTL_GATHERED: get_tagged(in, m); break;
    case ENI_CTL_ABORT: eni_unpack_text(in, m->reason, sizeof m->reason, "the reason is too long"); break;
    case ENI_CTL_PEER: get_peer(in, m); break;
    case ENI_CTL_WELCOME: get_welcome(in, m); break;
    case ENI_CTL_CLAIMED:
        m->has_index = eni_unpack_uint(in, 1, "a truth value is due") != 0;
        m->index = eni_unpack_uint(in, UINT64_MAX, "the index is out of range");
        break;
    case ENI_CTL_DEAD: get_dead(in, m); break;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED:
        m->status = (uint32_t)eni_unpack_uint(in, 255, "the status is out of range");
        eni_unpack_text(in, m->reason, sizeof m->reason, "the reason is too long");
        break;
    default: break; /* CLAIM, BYE: the type says it all */
    }
}

/* Only these may be longer than SMALL_MAX. */
static bool may_be_long(uint32_t type)
{
    return type == ENI_CTL_JOIN || type == ENI_CTL_GATHER || type == ENI_CTL_GATHERED ||
           type == ENI_CTL_PEER || type == ENI_CTL_WELCOME;
}

en_status eni_message_get(const uint8_t *bytes, size_t length, eni_message *out, const char **why_out)
{
    eni_cursor in = eni_cursor_make(bytes, length);
    *out = (eni_message){0};
    en_status st = EN_EPROTO;
    uint32_t n = eni_unpack_array(&in, 1, 64);
    out->type = (uint32_t)eni_unpack_uint(&in, 255, "the type is unknown");
    if (in.why == NULL &&
        out->type == ENI_CTL_JOIN) { /* before the length: another version may have another */
        if (eni_unpack_uint(&in, UINT32_MAX, "the magic is not a number") != ENI_CONTROL_MAGIC)
            eni_cursor_refuse(&in, "it does not start with Entrain's magic number");
        uint64_t version = eni_unpack_uint(&in, UINT32_MAX, "the version is not a number");
        if (in.why == NULL && version != ENI_CONTROL_VERSION) {
            eni_cursor_refuse(&in, "it was made by another version of Entrain");
            st = EN_EVERSION;
        }
    }
    if (fields(out->type) == 0 || n != fields(out->type))
        eni_cursor_refuse(&in, "the type or its length is unknown");
    if (length > SMALL_MAX && !may_be_long(out->type))
        eni_cursor_refuse(&in, "it is longer than its type may be");
    if (in.why == NULL) get(&in, out);
    if (eni_cursor_finish(&in)) return EN_OK;
    if (why_out != NULL) *why_out = in.why;
    return st;
}
