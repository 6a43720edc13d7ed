/* message.c - frames on the control connection, and the bytes of its messages: one table lists the fields of
 * each type, and writes and reads them. */
#include "runtime/control/message.h"

#include <stdio.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

/* ---- frames ---- */

enum { LENGTH_BYTES = 4, READ_BYTES = 65536 };

void eni_link_init(eni_link *link, int fd)
{
    *link = (eni_link){.fd = fd};
}

void eni_link_fini(eni_link *link)
{
    if (link->fd >= 0) close(link->fd);
    eni_pack_fini(&link->in);
    eni_pack_fini(&link->out);
    *link = (eni_link){.fd = -1};
}

en_status eni_link_read(eni_link *link)
{
    eni_pack_drop(&link->in, link->in_at);
    link->in_at = 0;
    while (link->in.bytes < ENI_FRAME_MAX + LENGTH_BYTES) {
        uint8_t buffer[READ_BYTES];
        size_t n = 0;
        EN_TRY(eni_tcp_recv_some(link->fd, buffer, sizeof buffer, &n));
        if (n == 0) break;
        eni_pack_raw(&link->in, buffer, n);
        if (link->in.is_failed) return EN_ENOMEM;
    }
    return EN_OK;
}

en_status eni_link_next(eni_link *link, eni_span *frame_out)
{
    size_t have = link->in.bytes - link->in_at;
    if (have < LENGTH_BYTES) return EN_ETIMEOUT;
    uint32_t length = 0;
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        length |= (uint32_t)link->in.data[link->in_at + i] << (8 * i);
    if (length == 0 || length > ENI_FRAME_MAX) return EN_EPROTO;
    if (have - LENGTH_BYTES < length) return EN_ETIMEOUT;
    *frame_out = (eni_span){link->in.data + link->in_at + LENGTH_BYTES, length};
    link->in_at += LENGTH_BYTES + length;
    return EN_OK;
}

en_status eni_link_flush(eni_link *link)
{
    size_t done = 0;
    if (link->fd < 0 && link->out.bytes > 0) return EN_EPEER;
    while (done < link->out.bytes) {
        size_t n = 0;
        EN_TRY(eni_tcp_send_some(link->fd, link->out.data + done, link->out.bytes - done, &n));
        if (n == 0) break;
        done += n;
    }
    eni_pack_drop(&link->out, done);
    return EN_OK;
}

enum { SMALL_MAX = 4096, PAIRS_MAX = 1024, KEY_MAX = 255 };

/* ---- the fields of every message, in the order in which they are written and read ---- */

#define UINT(name, max, why)     ENI_FIELD(ENI_FIELD_UINT, eni_message, name, 0, max, why)
#define U64(name, why)           UINT(name, UINT64_MAX, why)
#define INT(name, min, max, why) ENI_FIELD(ENI_FIELD_INT, eni_message, name, min, max, why)
#define BOOL(name)               ENI_FIELD(ENI_FIELD_BOOL, eni_message, name, 0, 1, "a truth value is due")
#define TEXT(name, why)          ENI_FIELD(ENI_FIELD_TEXT, eni_message, name, 0, 0, why)
#define KEY_VALUES(name)         ENI_FIELD(ENI_FIELD_OWN, eni_message, name, 0, 0, NULL)

#define MEMBER(name) INT(name, ENI_RANK_NONE, ENI_RANKS_MAX - 1, "the rank is out of range")
#define PID(name)    INT(name, 0, INT64_MAX, "the process id is out of range")
#define STEP(name)   INT(name, -1, INT64_MAX, "the step is out of range")
#define OP           UINT(op, UINT32_MAX, "the operation is out of range")
#define EPOCH        UINT(epoch, UINT32_MAX, "the epoch is out of range")
#define INCARNATION  U64(incarnation, "the incarnation is out of range")
#define HOST(name)   TEXT(name, "the host's name is too long")
#define PHASE(name)  TEXT(name, "the phase is too long")
#define REASON       TEXT(reason, "the reason is too long")
#define NUMBER       U64(number, "the number is out of range")
#define STATUS       UINT(status, 255, "the status is out of range")
#define PROCESS                                                                                              \
    PID(pid), U64(born, "the start time is out of range"), HOST(host),                                       \
        TEXT(host_id, "the host's id is too long")
#define PEER MEMBER(rank), PROCESS, KEY_VALUES(member_data)
#define WORLD                                                                                                \
    INT(nranks, 1, ENI_RANKS_MAX, "the world size is out of range"),                                         \
        INT(nservers, 0, ENI_SERVERS_MAX, "the number of servers is out of range"), EPOCH, INCARNATION,      \
        U64(budget, "the budget is out of range")
#define TAGGED U64(number, "the gather's number is out of range"), TEXT(tag, "the tag is too long")
#define BLOB   ENI_FIELD(ENI_FIELD_BLOB, eni_message, blob, 0, ENI_BLOB_MAX, "the blob is over the limit")

static const eni_field join[] = {
    /* after magic and version */
    ENI_FIELD(ENI_FIELD_BYTES, eni_message, token, 0, 0, "the token does not have 16 bytes"),
    INT(server, 0, ENI_SERVERS_MAX - 1, "the server's number is out of range"),
    INT(rank, ENI_RANK_NEW, INT32_MAX, "the rank is out of range"),
    INT(nranks, 1, INT32_MAX, "the world size is out of range"),
    INT(nservers, 0, INT32_MAX, "the number of servers is out of range"),
    PROCESS,
    INCARNATION,
    U64(number, "the claim's number is out of range"),
    U64(index, "the claim's index is out of range"),
    U64(done, "the number of gathers is out of range"),
    KEY_VALUES(key_values),
    KEY_VALUES(member_data),
};
static const eni_field heartbeat[] = {
    STEP(step),
    OP,
    PHASE(phase),
    UINT(waits, ENI_WAITS_SLOWED, "the kind of wait is unknown"),
    U64(moves, "the number of moves is out of range"),
    U64(samples, "the number of samples is out of range"),
};
static const eni_field waiting[] = {
    STEP(step),
    OP,
    TEXT(what, "the operation's kind is too long"),
    TEXT(name, "the tensor's name is too long"),
    U64(bytes, "the number of bytes is out of range"),
    INT(waited_ns, 0, INT64_MAX, "the time waited is out of range"),
};
static const eni_field score[] = {
    U64(score.step, "the step is out of range"),
    U64(score.total, "the number of samples is out of range"),
    U64(score.covered, "the number of samples is out of range"),
    U64(score.hits, "the number of hits is out of range"),
    U64(score.loss, "the loss is out of range"), /* its bits */
};
static const eni_field number[] = {NUMBER};
static const eni_field reason[] = {REASON};
static const eni_field wish[] = {
    ENI_FIELD(ENI_FIELD_BYTES, eni_message, token, 0, 0, "the token does not have 16 bytes"),
    UINT(kind, 255, "the kind is out of range"),
    INT(amount, -ENI_RANKS_MAX, ENI_RANKS_MAX, "the number is out of range"),
};
static const eni_field pausing[] = {REASON, BOOL(has_time)};
static const eni_field paused[] = {INT(step, -1, INT64_MAX - 1, "the step is out of range"),
                                   U64(index, "the step is out of range")};
static const eni_field saving[] = {U64(index, "the step is out of range")};
static const eni_field ready[] = {KEY_VALUES(member_data)};
static const eni_field ask[] = {TAGGED};
static const eni_field gather[] = {TAGGED, BLOB};
static const eni_field gathered[] = {TAGGED, UINT(index, ENI_RANKS_MAX, "the blob's index is out of range"),
                                     UINT(count, ENI_RANKS_MAX + 1, "the number of blobs is out of range"),
                                     BLOB};
static const eni_field peer[] = {PEER};
static const eni_field welcome[] = {/* to whom; `rank` is the leader's */
                                    MEMBER(to), WORLD, PEER,
                                    /* for a newcomer: gathers of the others, and their time of training */
                                    U64(done, "the number of gathers is out of range"),
                                    INT(waited_ns, 0, INT64_MAX, "the time of training is out of range")};
static const eni_field went[] = {MEMBER(rank)};
static const eni_field serve[] = {WORLD, KEY_VALUES(key_values)};
static const eni_field renewed[] = {EPOCH, PEER};
static const eni_field claimed[] = {NUMBER, BOOL(has_index), U64(index, "the index is out of range")};
static const eni_field stopping[] = {U64(index, "the step is out of range"), REASON, BOOL(has_time)};
static const eni_field died[] = {MEMBER(death.rank),
                                 PID(death.pid),
                                 STEP(death.step),
                                 BOOL(death.is_stopped),
                                 HOST(death.host),
                                 PHASE(death.phase),
                                 TEXT(death.cause, "the cause is too long")};
static const eni_field ended[] = {STATUS, REASON};

typedef struct layout {
    uint8_t is_known, nfields;
    bool is_long; /* may be longer than SMALL_MAX */
    const eni_field *fields;
} layout;

#define FIELDS(name) true, sizeof name / sizeof *name, false, name
#define LONG(name)   true, sizeof name / sizeof *name, true, name

static const layout layouts[] = {
    [ENI_CTL_JOIN] = {LONG(join)},
    [ENI_CTL_HEARTBEAT] = {FIELDS(heartbeat)},
    [ENI_CTL_CLAIM] = {FIELDS(number)},
    [ENI_CTL_GATHER] = {LONG(gather)},
    [ENI_CTL_BYE] = {true},
    [ENI_CTL_ABORT] = {FIELDS(reason)},
    [ENI_CTL_DONE] = {FIELDS(number)},
    [ENI_CTL_WAITING] = {FIELDS(waiting)},
    [ENI_CTL_STOP] = {FIELDS(reason)},
    [ENI_CTL_PAUSED] = {FIELDS(paused)},
    [ENI_CTL_READY] = {LONG(ready)},
    [ENI_CTL_ADDED] = {LONG(gather)},
    [ENI_CTL_SCORE] = {FIELDS(score)},
    [ENI_CTL_WISH] = {FIELDS(wish)},
    [ENI_CTL_REFUSED] = {FIELDS(ended)},
    [ENI_CTL_PEER] = {LONG(peer)},
    [ENI_CTL_WELCOME] = {LONG(welcome)},
    [ENI_CTL_CLAIMED] = {FIELDS(claimed)},
    [ENI_CTL_GATHERED] = {LONG(gathered)},
    [ENI_CTL_DEAD] = {FIELDS(died)},
    [ENI_CTL_ENDED] = {FIELDS(ended)},
    [ENI_CTL_LEADER] = {FIELDS(peer)},
    [ENI_CTL_NOTICE] = {FIELDS(reason)},
    [ENI_CTL_PAUSE] = {FIELDS(pausing)},
    [ENI_CTL_STOPPING] = {FIELDS(stopping)},
    [ENI_CTL_LEFT] = {FIELDS(died)},
    [ENI_CTL_SERVE] = {LONG(serve)},
    [ENI_CTL_RENEWED] = {LONG(renewed)},
    [ENI_CTL_ASK] = {FIELDS(ask)},
    [ENI_CTL_SCORED] = {FIELDS(score)},
    [ENI_CTL_CAME] = {LONG(peer)},
    [ENI_CTL_WENT] = {FIELDS(went)},
    [ENI_CTL_LEAVE] = {true},
    [ENI_CTL_SAVE] = {true},
    [ENI_CTL_SAVING] = {FIELDS(saving)},
};

/* NULL if the type is unknown. */
static const layout *layout_of(uint32_t type)
{
    return type < sizeof layouts / sizeof *layouts && layouts[type].is_known ? &layouts[type] : NULL;
}

/* Elements of the type's array: the type itself, magic and version of a JOIN, the fields. */
static uint32_t length_of(uint32_t type)
{
    return (type == ENI_CTL_JOIN ? 3u : 1u) + layouts[type].nfields;
}

/* ---- writing ---- */

static void put_key_values(eni_pack *out, const eni_key_value_list *list)
{
    eni_pack_array(out, (uint32_t)list->n * 2);
    for (size_t i = 0; i < list->n; i++) {
        eni_pack_str(out, list->pair[i].key);
        eni_pack_str(out, list->pair[i].value);
    }
}

static void put(eni_pack *out, const eni_message *m)
{
    const layout *l = layout_of(m->type);
    eni_pack_array(out, length_of(m->type));
    eni_pack_uint(out, m->type);
    if (m->type == ENI_CTL_JOIN) {
        eni_pack_uint(out, ENI_CONTROL_MAGIC);
        eni_pack_uint(out, ENI_CONTROL_VERSION);
    }
    for (int i = 0; i < l->nfields; i++) {
        const eni_field *field = &l->fields[i];
        if (field->kind == ENI_FIELD_OWN)
            put_key_values(out, (const eni_key_value_list *)((const char *)m + field->offset));
        else
            eni_field_put(out, field, m);
    }
}

en_status eni_message_put(eni_link *link, const eni_message *message)
{
    static const uint8_t zero[LENGTH_BYTES];
    const size_t begin = link->out.bytes;
    eni_pack_raw(&link->out, zero, sizeof zero);
    put(&link->out, message);
    if (link->out.is_failed)
        return eni_fail(EN_ENOMEM, "link", "out of memory with %zu bytes still to be sent", link->out.bytes);
    const size_t length = link->out.bytes - begin - LENGTH_BYTES;
    if (length > ENI_FRAME_MAX) {
        link->out.bytes = begin;
        return eni_fail(EN_EINVAL, "link", "a control message of %zu bytes is over the limit of %u", length,
                        ENI_FRAME_MAX);
    }
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        link->out.data[begin + i] = (uint8_t)(length >> (8 * i));
    return EN_OK;
}

/* ---- reading ---- */

/* Walks over the key-values to check them; eni_key_values_take copies them later. */
static void get_key_values(eni_cursor *in, eni_key_value_list *list)
{
    uint32_t n = eni_unpack_array(in, 0, 2 * PAIRS_MAX);
    const uint8_t *begin = in->at;
    if (n % 2 != 0) eni_cursor_refuse(in, "a key has no value");
    for (uint32_t i = 0; i < n && in->why == NULL; i += 2) {
        eni_unpack_str(in, KEY_MAX, "a key is too long");
        eni_unpack_str(in, ENI_BLOB_MAX, "a value is too long");
    }
    *list = (eni_key_value_list){NULL, n / 2, {begin, (size_t)(in->at - begin)}};
}

static void get(eni_cursor *in, eni_message *m)
{
    const layout *l = layout_of(m->type);
    for (int i = 0; i < l->nfields; i++) {
        const eni_field *field = &l->fields[i];
        if (field->kind == ENI_FIELD_OWN)
            get_key_values(in, (eni_key_value_list *)((char *)m + field->offset));
        else
            eni_field_get(in, field, m);
    }
    if (m->type == ENI_CTL_GATHERED && m->index >= m->count)
        eni_cursor_refuse(in, "the blob's index is not below the number of blobs");
}

en_status eni_message_get(const uint8_t *bytes, size_t length, eni_message *out, const char **why_out)
{
    eni_cursor in = eni_cursor_make(bytes, length);
    *out = (eni_message){0};
    en_status st = EN_EPROTO;
    uint32_t n = eni_unpack_array(&in, 1, 64);
    out->type = (uint32_t)eni_unpack_uint(&in, 255, "the type is unknown");
    /* Before the length: another version may have another length. */
    if (in.why == NULL && out->type == ENI_CTL_JOIN) {
        if (eni_unpack_uint(&in, UINT32_MAX, "the magic is not a number") != ENI_CONTROL_MAGIC)
            eni_cursor_refuse(&in, "it does not start with Entrain's magic number");
        uint64_t version = eni_unpack_uint(&in, UINT32_MAX, "the version is not a number");
        if (in.why == NULL && version != ENI_CONTROL_VERSION) {
            eni_cursor_refuse(&in, "it has another version of Entrain's protocol");
            out->number = version;
            st = EN_EVERSION;
        }
    }
    const layout *l = layout_of(out->type);
    if (l == NULL || n != length_of(out->type)) eni_cursor_refuse(&in, "the type or its length is unknown");
    if (length > SMALL_MAX && (l == NULL || !l->is_long))
        eni_cursor_refuse(&in, "it is longer than its type allows");
    if (in.why == NULL) get(&in, out);
    if (eni_cursor_finish(&in)) return EN_OK;
    if (why_out != NULL) *why_out = in.why;
    return st;
}

void eni_message_set_peer(eni_message *m, const eni_peer *of)
{
    m->rank = of->rank;
    m->pid = of->pid;
    m->born = of->born;
    snprintf(m->host, sizeof m->host, "%s", of->host);
    snprintf(m->host_id, sizeof m->host_id, "%s", of->host_id);
    m->member_data = (eni_key_value_list){.pair = of->member_data, .n = of->nmember_data};
}
