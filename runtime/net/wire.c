/* wire.c - see wire.h. The header is one array of HEADER_FIELDS elements, in the order of encode below. */
#include "runtime/net/wire.h"

#include "entrain/strategy.h"
#include "runtime/net/pack.h"
#include "runtime/net/unpack.h"

enum {
    HEADER_FIELDS = 28,
    RANK_MAX = 65535,
    FLAGS_ALL =
        ENI_FLAG_SHM | ENI_FLAG_CRC | ENI_FLAG_REPEAT | ENI_FLAG_DATA | ENI_FLAG_REPLAY | ENI_FLAG_MAPPED,
};

size_t eni_header_encode(const eni_header *header, uint8_t buffer[ENI_HEADER_MAX])
{
    eni_pack pack = eni_pack_over(buffer, ENI_HEADER_MAX);
    eni_pack_array(&pack, HEADER_FIELDS);
    eni_pack_uint(&pack, ENI_WIRE_MAGIC);
    eni_pack_uint(&pack, ENI_WIRE_VERSION);
    eni_pack_uint(&pack, header->type);
    eni_pack_uint(&pack, header->flags);
    eni_pack_uint(&pack, header->epoch);
    eni_pack_int(&pack, header->rank);
    eni_pack_uint(&pack, header->bucket);
    eni_pack_uint(&pack, header->shard);
    eni_pack_uint(&pack, header->kind);
    eni_pack_uint(&pack, header->what);
    eni_pack_uint(&pack, header->dtype);
    eni_pack_uint(&pack, header->codec);
    eni_pack_uint(&pack, header->incarnation);
    eni_pack_uint(&pack, header->seq);
    eni_pack_uint(&pack, header->base_version);
    eni_pack_uint(&pack, header->version);
    eni_pack_uint(&pack, header->stable);
    eni_pack_uint(&pack, header->nsamples);
    eni_pack_uint(&pack, header->covered);
    eni_pack_uint(&pack, header->count);
    eni_pack_uint(&pack, header->bytes);
    eni_pack_uint(&pack, header->step);
    eni_pack_int(&pack, header->deliver_ns);
    eni_pack_uint(&pack, header->crc);
    eni_pack_uint(&pack, header->slot);
    eni_pack_uint(&pack, header->into);
    eni_pack_uint(&pack, header->status);
    eni_pack_str(&pack, header->text);
    return pack.bytes;
}

/* Magic and version come first and alone decide whether the rest can be read at all. */
static void decode_preamble(eni_cursor *in)
{
    const uint32_t n = eni_unpack_array(in, 2, UINT16_MAX);
    if (eni_unpack_uint(in, UINT32_MAX, "the magic is not a number") != ENI_WIRE_MAGIC)
        eni_cursor_refuse(in, "it does not start with Entrain's magic number");
    if (eni_unpack_uint(in, UINT32_MAX, "the version is not a number") != ENI_WIRE_VERSION)
        eni_cursor_refuse(in, "it was made by another version of the protocol");
    if (n != HEADER_FIELDS) eni_cursor_refuse(in, "it has not the fields of this version");
}

static void decode_fields(eni_cursor *in, eni_header *h)
{
    h->type = (uint32_t)eni_unpack_uint(in, ENI_MSG_TYPES - 1, "the type is unknown");
    h->flags = (uint32_t)eni_unpack_uint(in, FLAGS_ALL, "a flag is unknown");
    h->epoch = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the epoch is out of range");
    h->rank = (int32_t)eni_unpack_int(in, -1, RANK_MAX, "the rank is out of range");
    h->bucket = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the bucket is out of range");
    h->shard = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the shard is out of range");
    h->kind = (uint32_t)eni_unpack_uint(in, 255, "the kind is out of range");
    h->what = (uint32_t)eni_unpack_uint(in, EN_WEIGHTS, "what it carries is unknown");
    h->dtype = (uint32_t)eni_unpack_uint(in, ENI_DTYPE_F32, "the dtype is unknown");
    h->codec = (uint32_t)eni_unpack_uint(in, ENI_CODEC_NONE, "the codec is unknown");
    h->incarnation = eni_unpack_uint(in, UINT64_MAX, "the incarnation is out of range");
    h->seq = eni_unpack_uint(in, UINT64_MAX, "the sequence number is out of range");
    h->base_version = eni_unpack_uint(in, UINT64_MAX, "the base version is out of range");
    h->version = eni_unpack_uint(in, UINT64_MAX, "the version is out of range");
    h->stable = eni_unpack_uint(in, UINT64_MAX, "the stable sequence number is out of range");
    h->nsamples = eni_unpack_uint(in, UINT64_MAX, "the number of samples is out of range");
    h->covered = eni_unpack_uint(in, UINT64_MAX, "the number of covered samples is out of range");
    h->count = eni_unpack_uint(in, ENI_BUCKET_MAX / sizeof(float), "the element count is over the limit");
    h->bytes = eni_unpack_uint(in, ENI_BUCKET_MAX, "the payload is over the limit");
    h->step = eni_unpack_uint(in, UINT64_MAX, "the step is out of range");
    h->deliver_ns = eni_unpack_int(in, 0, INT64_MAX, "the delivery time is negative");
    h->crc = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the checksum is out of range");
    h->slot = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the slot is out of range");
    h->into = (uint32_t)eni_unpack_uint(in, UINT32_MAX, "the slot of the answer is out of range");
    h->status = (uint32_t)eni_unpack_uint(in, 255, "the status is out of range");
    eni_unpack_text(in, h->text, sizeof h->text, "the text is too long");
}

/* What must hold between the fields. */
static void check_fields(eni_cursor *in, const eni_header *h)
{
    if (h->type == 0) eni_cursor_refuse(in, "the type is unknown");
    if (h->bytes != 0 && h->dtype != ENI_DTYPE_F32) eni_cursor_refuse(in, "a payload without a dtype");
    if (h->bytes != 0 && h->codec == ENI_CODEC_NONE && h->bytes != h->count * sizeof(float))
        eni_cursor_refuse(in, "the payload's bytes do not fit its element count");
}

en_status eni_header_decode(const uint8_t *bytes, size_t length, eni_header *header_out, const char **why_out)
{
    eni_header header;
    eni_cursor in = eni_cursor_make(bytes, length);
    if (length > ENI_HEADER_MAX) eni_cursor_refuse(&in, "the header is over the limit");
    decode_preamble(&in);
    decode_fields(&in, &header);
    check_fields(&in, &header);
    if (!eni_cursor_finish(&in)) {
        if (why_out != NULL) *why_out = in.why;
        return EN_EPROTO;
    }
    *header_out = header;
    return EN_OK;
}
