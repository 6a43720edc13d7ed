/* link.c - see link.h. */
#include "runtime/control/link.h"

#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

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

static uint32_t get_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

en_status eni_link_next(eni_link *link, eni_span *frame_out)
{
    size_t have = link->in.bytes - link->in_at;
    if (have < LENGTH_BYTES) return EN_ETIMEOUT;
    uint32_t length = get_u32(link->in.data + link->in_at);
    if (length == 0 || length > ENI_FRAME_MAX) return EN_EPROTO;
    if (have - LENGTH_BYTES < length) return EN_ETIMEOUT;
    *frame_out = (eni_span){link->in.data + link->in_at + LENGTH_BYTES, length};
    link->in_at += LENGTH_BYTES + length;
    return EN_OK;
}

size_t eni_link_begin(eni_link *link)
{
    static const uint8_t zero[LENGTH_BYTES];
    size_t begin = link->out.bytes;
    eni_pack_raw(&link->out, zero, sizeof zero);
    return begin;
}

en_status eni_link_end(eni_link *link, size_t begin)
{
    if (link->out.is_failed) {
        eni_error("link", "out of memory with %zu bytes still to be sent", link->out.bytes);
        return EN_ENOMEM;
    }
    size_t length = link->out.bytes - begin - LENGTH_BYTES;
    if (length > ENI_FRAME_MAX) {
        link->out.bytes = begin;
        eni_error("link", "a control message of %zu bytes is over the limit of %u", length, ENI_FRAME_MAX);
        return EN_EINVAL;
    }
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        link->out.data[begin + i] = (uint8_t)(length >> (8 * i));
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
