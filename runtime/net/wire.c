/* wire.c - the header of a message as one msgpack array: magic, version, and the fields of one table, in its order. */
#include "runtime/net/wire.h"

#include "entrain/strategy.h"
#include "runtime/net/pack.h"

enum {
    RANK_MAX = 65535,
    FLAGS_ALL =
        ENI_FLAG_SHM | ENI_FLAG_CRC | ENI_FLAG_REPEAT | ENI_FLAG_DATA | ENI_FLAG_REPLAY | ENI_FLAG_MAPPED,
};

#define UINT(name, max, why)     ENI_FIELD(ENI_FIELD_UINT, eni_header, name, 0, max, why)
#define INT(name, min, max, why) ENI_FIELD(ENI_FIELD_INT, eni_header, name, min, max, why)

static const eni_field fields[] = {
    UINT(type, ENI_MSG_TYPES - 1, "the type is unknown"),
    UINT(flags, FLAGS_ALL, "a flag is unknown"),
    UINT(epoch, UINT32_MAX, "the epoch is out of range"),
    INT(rank, -1, RANK_MAX, "the rank is out of range"),
    UINT(bucket, UINT32_MAX, "the bucket is out of range"),
    UINT(shard, UINT32_MAX, "the shard is out of range"),
    UINT(kind, 255, "the kind is out of range"),
    UINT(what, EN_WEIGHTS, "the type of the payload is unknown"),
    UINT(dtype, ENI_DTYPE_F32, "the dtype is unknown"),
    UINT(codec, ENI_CODEC_NONE, "the codec is unknown"),
    UINT(incarnation, UINT64_MAX, "the incarnation is out of range"),
    UINT(seq, UINT64_MAX, "the sequence number is out of range"),
    UINT(base_version, UINT64_MAX, "the base version is out of range"),
    UINT(version, UINT64_MAX, "the version is out of range"),
    UINT(stable, UINT64_MAX, "the stable sequence number is out of range"),
    UINT(nsamples, UINT64_MAX, "the number of samples is out of range"),
    UINT(covered, UINT64_MAX, "the number of covered samples is out of range"),
    UINT(count, ENI_BUCKET_MAX / sizeof(float), "the element count is over the limit"),
    UINT(bytes, ENI_BUCKET_MAX, "the payload is over the limit"),
    UINT(step, UINT64_MAX, "the step is out of range"),
    INT(deliver_ns, 0, INT64_MAX, "the delivery time is negative"),
    UINT(crc, UINT32_MAX, "the checksum is out of range"),
    UINT(slot, UINT32_MAX, "the slot is out of range"),
    UINT(into, UINT32_MAX, "the slot of the answer is out of range"),
    UINT(status, 255, "the status is out of range"),
    ENI_FIELD(ENI_FIELD_TEXT, eni_header, text, 0, 0, "the text is too long"),
};

enum { NFIELDS = sizeof fields / sizeof *fields, HEADER_FIELDS = 2 + NFIELDS };

size_t eni_header_encode(const eni_header *header, uint8_t buffer[ENI_HEADER_MAX])
{
    eni_pack pack = eni_pack_over(buffer, ENI_HEADER_MAX);
    eni_pack_array(&pack, HEADER_FIELDS);
    eni_pack_uint(&pack, ENI_WIRE_MAGIC);
    eni_pack_uint(&pack, ENI_WIRE_VERSION);
    eni_fields_put(&pack, fields, NFIELDS, header);
    return pack.bytes;
}

/* Magic and version come first and alone decide whether the rest can be read at all. */
static void decode_preamble(eni_cursor *in)
{
    const uint32_t n = eni_unpack_array(in, 2, UINT16_MAX);
    if (eni_unpack_uint(in, UINT32_MAX, "the magic is not a number") != ENI_WIRE_MAGIC)
        eni_cursor_refuse(in, "it does not start with Entrain's magic number");
    if (eni_unpack_uint(in, UINT32_MAX, "the version is not a number") != ENI_WIRE_VERSION)
        eni_cursor_refuse(in, "it has another version of the protocol");
    if (n != HEADER_FIELDS) eni_cursor_refuse(in, "the number of its fields is not this version's");
}

/* Checks the relations between fields. */
static void check_fields(eni_cursor *in, const eni_header *h)
{
    if (h->type == 0) eni_cursor_refuse(in, "the type is unknown");
    if (h->bytes != 0 && h->dtype != ENI_DTYPE_F32) eni_cursor_refuse(in, "a payload has no dtype");
    if (h->bytes != 0 && h->codec == ENI_CODEC_NONE && h->bytes != h->count * sizeof(float))
        eni_cursor_refuse(in, "the payload's length does not match its element count");
}

en_status eni_header_decode(const uint8_t *bytes, size_t length, eni_header *header_out, const char **why_out)
{
    eni_header header;
    eni_cursor in = eni_cursor_make(bytes, length);
    if (length > ENI_HEADER_MAX) eni_cursor_refuse(&in, "the header is over the limit");
    decode_preamble(&in);
    eni_fields_get(&in, fields, NFIELDS, &header);
    check_fields(&in, &header);
    if (!eni_cursor_finish(&in)) {
        if (why_out != NULL) *why_out = in.why;
        return EN_EPROTO;
    }
    *header_out = header;
    return EN_OK;
}
