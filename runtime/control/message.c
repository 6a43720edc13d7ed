/* message.c - the bytes of the control messages; see message.h. */
#include "runtime/control/message.h"

#include <string.h>

enum { SMALL_MAX = 4096, PAIRS_MAX = 1024, KEY_MAX = 255 };

static void put_key_values(eni_pack *out, const eni_key_value_list *list)
{
    eni_pack_array(out, (uint32_t)list->n * 2);
    for (size_t i = 0; i < list->n; i++) {
        eni_pack_str(out, list->pair[i].key);
        eni_pack_str(out, list->pair[i].value);
    }
}

static void put_join(eni_pack *out, const eni_message *m)
{
    eni_pack_uint(out, ENI_CONTROL_MAGIC);
    eni_pack_uint(out, ENI_CONTROL_VERSION);
    eni_pack_bin(out, m->token.bytes, sizeof m->token.bytes);
    eni_pack_int(out, m->server);
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->nranks);
    eni_pack_int(out, m->nservers);
    eni_pack_int(out, m->pid);
    eni_pack_uint(out, m->born);
    eni_pack_text(out, m->host);
    eni_pack_text(out, m->host_id);
    eni_pack_uint(out, m->incarnation);
    eni_pack_uint(out, m->number);
    eni_pack_uint(out, m->index);
    eni_pack_uint(out, m->done);
    put_key_values(out, &m->key_values);
    put_key_values(out, &m->member_data);
}

static void put_heartbeat(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->step);
    eni_pack_uint(out, m->op);
    eni_pack_text(out, m->phase);
    eni_pack_uint(out, m->waits);
    eni_pack_uint(out, m->moves);
    eni_pack_uint(out, m->samples);
}

static void put_waiting(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->step);
    eni_pack_uint(out, m->op);
    eni_pack_text(out, m->what);
    eni_pack_text(out, m->name);
    eni_pack_uint(out, m->bytes);
    eni_pack_int(out, m->waited_ns);
}

static void put_peer(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->pid);
    eni_pack_uint(out, m->born);
    eni_pack_text(out, m->host);
    eni_pack_text(out, m->host_id);
    put_key_values(out, &m->member_data);
}

static void put_world(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->nranks);
    eni_pack_int(out, m->nservers);
    eni_pack_uint(out, m->epoch);
    eni_pack_uint(out, m->incarnation);
    eni_pack_uint(out, m->budget);
}

static void put_death(eni_pack *out, const eni_message *m)
{
    eni_pack_int(out, m->rank);
    eni_pack_int(out, m->pid);
    eni_pack_int(out, m->step);
    eni_pack_uint(out, m->is_stopped);
    eni_pack_text(out, m->host);
    eni_pack_text(out, m->phase);
    eni_pack_text(out, m->reason);
}

static void put_tagged(eni_pack *out, const eni_message *m)
{
    eni_pack_uint(out, m->number);
    eni_pack_text(out, m->tag);
    if (m->type == ENI_CTL_ASK) return;
    if (m->type == ENI_CTL_GATHERED) {
        eni_pack_uint(out, m->index);
        eni_pack_uint(out, m->count);
    }
    eni_pack_bin(out, m->blob.data, m->blob.bytes);
}

/* Elements of each type's array, the type included; 0: no such type. */
static uint32_t fields(uint32_t type)
{
    static const uint8_t table[] = {
        [ENI_CTL_JOIN] = 18,    [ENI_CTL_HEARTBEAT] = 7, [ENI_CTL_CLAIM] = 2,    [ENI_CTL_GATHER] = 4,
        [ENI_CTL_BYE] = 1,      [ENI_CTL_ABORT] = 2,     [ENI_CTL_DONE] = 2,     [ENI_CTL_WAITING] = 7,
        [ENI_CTL_STOP] = 2,     [ENI_CTL_PAUSED] = 2,    [ENI_CTL_READY] = 2,    [ENI_CTL_ADDED] = 4,
        [ENI_CTL_REFUSED] = 3,  [ENI_CTL_PEER] = 7,      [ENI_CTL_WELCOME] = 13, [ENI_CTL_CLAIMED] = 4,
        [ENI_CTL_GATHERED] = 6, [ENI_CTL_DEAD] = 8,      [ENI_CTL_ENDED] = 3,    [ENI_CTL_LEADER] = 7,
        [ENI_CTL_NOTICE] = 2,   [ENI_CTL_PAUSE] = 2,     [ENI_CTL_STOPPING] = 3, [ENI_CTL_LEFT] = 8,
        [ENI_CTL_SERVE] = 7,    [ENI_CTL_RENEWED] = 8,   [ENI_CTL_ASK] = 3};
    return type < sizeof table ? table[type] : 0;
}

static void put(eni_pack *out, const eni_message *m)
{
    eni_pack_array(out, fields(m->type));
    eni_pack_uint(out, m->type);
    switch (m->type) {
    case ENI_CTL_JOIN: put_join(out, m); return;
    case ENI_CTL_HEARTBEAT: put_heartbeat(out, m); return;
    case ENI_CTL_CLAIM:
    case ENI_CTL_DONE: eni_pack_uint(out, m->number); return;
    case ENI_CTL_WAITING: put_waiting(out, m); return;
    case ENI_CTL_ABORT:
    case ENI_CTL_STOP:
    case ENI_CTL_NOTICE:
    case ENI_CTL_PAUSE: eni_pack_text(out, m->reason); return;
    case ENI_CTL_PAUSED: eni_pack_int(out, m->step); return;
    case ENI_CTL_READY: put_key_values(out, &m->member_data); return;
    case ENI_CTL_GATHER:
    case ENI_CTL_GATHERED:
    case ENI_CTL_ASK:
    case ENI_CTL_ADDED: put_tagged(out, m); return;
    case ENI_CTL_LEADER:
    case ENI_CTL_PEER: put_peer(out, m); return;
    case ENI_CTL_WELCOME:
        eni_pack_int(out, m->to); /* the receiver's number: `rank` below is the leader's */
        put_world(out, m);
        put_peer(out, m);
        return;
    case ENI_CTL_SERVE:
        put_world(out, m);
        put_key_values(out, &m->key_values);
        return;
    case ENI_CTL_RENEWED:
        eni_pack_uint(out, m->epoch);
        put_peer(out, m);
        return;
    case ENI_CTL_CLAIMED:
        eni_pack_uint(out, m->number);
        eni_pack_uint(out, m->has_index);
        eni_pack_uint(out, m->index);
        return;
    case ENI_CTL_STOPPING:
        eni_pack_uint(out, m->index);
        eni_pack_text(out, m->reason);
        return;
    case ENI_CTL_DEAD:
    case ENI_CTL_LEFT: put_death(out, m); return;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED:
        eni_pack_uint(out, m->status);
        eni_pack_text(out, m->reason);
        return;
    default: return; /* BYE: the type says it all */
    }
}

en_status eni_message_put(eni_link *link, const eni_message *message)
{
    size_t begin = eni_link_begin(link);
    put(&link->out, message);
    return eni_link_end(link, begin);
}

/* Walks over the key-values to check them; eni_key_values_take copies them later. */
static void get_key_values(eni_cursor *in, eni_key_value_list *list)
{
    uint32_t n = eni_unpack_array(in, 0, 2 * PAIRS_MAX);
    const uint8_t *begin = in->at;
    if (n % 2 != 0) eni_cursor_refuse(in, "a key without a value");
    for (uint32_t i = 0; i < n && in->why == NULL; i += 2) {
        eni_unpack_str(in, KEY_MAX, "a key is too long");
        eni_unpack_str(in, ENI_BLOB_MAX, "a value is too long");
    }
    *list = (eni_key_value_list){NULL, n / 2, {begin, (size_t)(in->at - begin)}};
}

static void get_process(eni_cursor *in, eni_message *m)
{
    m->pid = eni_unpack_int(in, 0, INT64_MAX, "the process id is out of range");
    m->born = eni_unpack_uint(in, UINT64_MAX, "the time of birth is out of range");
    eni_unpack_text(in, m->host, sizeof m->host, "the host's name is too long");
    eni_unpack_text(in, m->host_id, sizeof m->host_id, "the host's id is too long");
}

static int32_t get_number(eni_cursor *in)
{
    return (int32_t)eni_unpack_int(in, ENI_RANK_NONE, ENI_RANKS_MAX - 1, "the rank is out of range");
}

static void get_peer(eni_cursor *in, eni_message *m)
{
    m->rank = get_number(in);
    get_process(in, m);
    get_key_values(in, &m->member_data);
}

static void get_join(eni_cursor *in, eni_message *m)
{
    eni_span token = eni_unpack_bin(in, sizeof m->token.bytes, "the token is too long");
    if (token.bytes == sizeof m->token.bytes)
        memcpy(m->token.bytes, token.data, token.bytes);
    else
        eni_cursor_refuse(in, "the token is too short");
    m->server = (int32_t)eni_unpack_int(in, 0, ENI_SERVERS_MAX - 1, "the server's number is out of range");
    m->rank = (int32_t)eni_unpack_int(in, -1, INT32_MAX, "the rank is out of range");
    m->nranks = (int32_t)eni_unpack_int(in, 1, INT32_MAX, "the world size is out of range");
    m->nservers = (int32_t)eni_unpack_int(in, 0, INT32_MAX, "the number of servers is out of range");
    get_process(in, m);
    m->incarnation = eni_unpack_uint(in, UINT64_MAX, "the incarnation is out of range");
    m->number = eni_unpack_uint(in, UINT64_MAX, "the claim's number is out of range");
    m->index = eni_unpack_uint(in, UINT64_MAX, "the claim's index is out of range");
    m->done = eni_unpack_uint(in, UINT64_MAX, "the number of gathers is out of range");
    get_key_values(in, &m->key_values);
    get_key_values(in, &m->member_data);
}

static void get_heartbeat(eni_cursor *in, eni_message *m)
{
    m->step = eni_unpack_int(in, -1, INT64_MAX, "the step is out of range");
    m->op = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the operation is out of range");
    eni_unpack_text(in, m->phase, sizeof m->phase, "the phase is too long");
    m->waits = (uint32_t)eni_unpack_uint(in, ENI_WAITS_SLOWED, "the word on waiting is unknown");
    m->moves = eni_unpack_uint(in, UINT64_MAX, "the number of moves is out of range");
    m->samples = eni_unpack_uint(in, UINT64_MAX, "the number of samples is out of range");
}

static void get_waiting(eni_cursor *in, eni_message *m)
{
    m->step = eni_unpack_int(in, -1, INT64_MAX, "the step is out of range");
    m->op = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the operation is out of range");
    eni_unpack_text(in, m->what, sizeof m->what, "the operation's kind is too long");
    eni_unpack_text(in, m->name, sizeof m->name, "the tensor's name is too long");
    m->bytes = eni_unpack_uint(in, UINT64_MAX, "the number of bytes is out of range");
    m->waited_ns = eni_unpack_int(in, 0, INT64_MAX, "the time waited is out of range");
}

static void get_world(eni_cursor *in, eni_message *m)
{
    m->nranks = (int32_t)eni_unpack_int(in, 1, ENI_RANKS_MAX, "the world size is out of range");
    m->nservers = (int32_t)eni_unpack_int(in, 0, ENI_SERVERS_MAX, "the number of servers is out of range");
    m->epoch = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the epoch is out of range");
    m->incarnation = eni_unpack_uint(in, UINT64_MAX, "the incarnation is out of range");
    m->budget = eni_unpack_uint(in, UINT64_MAX, "the budget is out of range");
}

static void get_death(eni_cursor *in, eni_message *m)
{
    m->rank = get_number(in);
    m->pid = eni_unpack_int(in, 0, INT64_MAX, "the process id is out of range");
    m->step = eni_unpack_int(in, -1, INT64_MAX, "the step is out of range");
    m->is_stopped = eni_unpack_uint(in, 1, "a truth value is due") != 0;
    eni_unpack_text(in, m->host, sizeof m->host, "the host's name is too long");
    eni_unpack_text(in, m->phase, sizeof m->phase, "the phase is too long");
    eni_unpack_text(in, m->reason, sizeof m->reason, "the cause is too long");
}

static void get_tagged(eni_cursor *in, eni_message *m)
{
    m->number = eni_unpack_uint(in, UINT64_MAX, "the gather's number is out of range");
    eni_unpack_text(in, m->tag, sizeof m->tag, "the tag is too long");
    if (m->type == ENI_CTL_ASK) return;
    if (m->type == ENI_CTL_GATHERED) {
        m->index = eni_unpack_uint(in, ENI_RANKS_MAX, "the blob's index is out of range");
        m->count = (uint32_t)eni_unpack_uint(in, ENI_RANKS_MAX + 1, "the number of blobs is out of range");
        if (m->index >= m->count) eni_cursor_refuse(in, "the blob's index is not below their number");
    }
    m->blob = eni_unpack_bin(in, ENI_BLOB_MAX, "the blob is over the limit");
}

static void get_text(eni_cursor *in, eni_message *m)
{
    eni_unpack_text(in, m->reason, sizeof m->reason, "the reason is too long");
}

static void get(eni_cursor *in, eni_message *m)
{
    switch (m->type) {
    case ENI_CTL_JOIN: get_join(in, m); return;
    case ENI_CTL_HEARTBEAT: get_heartbeat(in, m); return;
    case ENI_CTL_CLAIM:
    case ENI_CTL_DONE: m->number = eni_unpack_uint(in, UINT64_MAX, "the number is out of range"); return;
    case ENI_CTL_WAITING: get_waiting(in, m); return;
    case ENI_CTL_ABORT:
    case ENI_CTL_STOP:
    case ENI_CTL_NOTICE:
    case ENI_CTL_PAUSE: get_text(in, m); return;
    case ENI_CTL_PAUSED: m->step = eni_unpack_int(in, -1, INT64_MAX - 1, "the step is out of range"); return;
    case ENI_CTL_READY: get_key_values(in, &m->member_data); return;
    case ENI_CTL_GATHER:
    case ENI_CTL_GATHERED:
    case ENI_CTL_ASK:
    case ENI_CTL_ADDED: get_tagged(in, m); return;
    case ENI_CTL_LEADER:
    case ENI_CTL_PEER: get_peer(in, m); return;
    case ENI_CTL_WELCOME:
        m->to = get_number(in);
        get_world(in, m);
        get_peer(in, m);
        return;
    case ENI_CTL_SERVE:
        get_world(in, m);
        get_key_values(in, &m->key_values);
        return;
    case ENI_CTL_RENEWED:
        m->epoch = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the epoch is out of range");
        get_peer(in, m);
        return;
    case ENI_CTL_CLAIMED:
        m->number = eni_unpack_uint(in, UINT64_MAX, "the number is out of range");
        m->has_index = eni_unpack_uint(in, 1, "a truth value is due") != 0;
        m->index = eni_unpack_uint(in, UINT64_MAX, "the index is out of range");
        return;
    case ENI_CTL_STOPPING:
        m->index = eni_unpack_uint(in, UINT64_MAX, "the step is out of range");
        get_text(in, m);
        return;
    case ENI_CTL_DEAD:
    case ENI_CTL_LEFT: get_death(in, m); return;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED:
        m->status = (uint32_t)eni_unpack_uint(in, 255, "the status is out of range");
        get_text(in, m);
        return;
    default: return; /* BYE: the type says it all */
    }
}

/* Only these may be longer than SMALL_MAX. */
static bool may_be_long(uint32_t type)
{
    static const uint32_t long_ones[] = {ENI_CTL_JOIN,  ENI_CTL_GATHER,  ENI_CTL_GATHERED,
                                         ENI_CTL_PEER,  ENI_CTL_WELCOME, ENI_CTL_READY,
                                         ENI_CTL_ADDED, ENI_CTL_SERVE,   ENI_CTL_RENEWED};
    for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++)
        if (type == long_ones[i]) return true;
    return false;
}

eni_message eni_death_message(uint32_t type, const eni_death *death)
{
    eni_message m = {.type = type,
                     .rank = death->rank,
                     .pid = death->pid,
                     .step = death->step,
                     .is_stopped = death->is_stopped};
    memcpy(m.host, death->host, sizeof m.host);
    memcpy(m.phase, death->phase, sizeof m.phase);
    memcpy(m.reason, death->cause, sizeof m.reason);
    return m;
}

eni_death eni_death_of(const eni_message *m)
{
    eni_death death = {.rank = m->rank, .pid = m->pid, .step = m->step, .is_stopped = m->is_stopped};
    memcpy(death.host, m->host, sizeof death.host);
    memcpy(death.phase, m->phase, sizeof death.phase);
    memcpy(death.cause, m->reason, sizeof death.cause);
    return death;
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
