/* pack.c - see pack.h. */
#include "runtime/net/pack.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

void eni_pack_fini(eni_pack *pack)
{
    if (!pack->is_fixed) free(pack->data);
    *pack = (eni_pack){0};
}

static bool reserve(eni_pack *pack, size_t bytes)
{
    if (pack->capacity - pack->bytes >= bytes) return true;
    if (pack->is_fixed) return false;
    size_t capacity = pack->capacity == 0 ? 256 : pack->capacity;
    while (capacity - pack->bytes < bytes)
        capacity *= 2;
    uint8_t *data = realloc(pack->data, capacity);
    if (data == NULL) return false;
    pack->data = data;
    pack->capacity = capacity;
    return true;
}

void eni_pack_raw(eni_pack *pack, const void *data, size_t bytes)
{
    if (pack->is_failed || bytes == 0) return;
    if (!reserve(pack, bytes)) {
        pack->is_failed = true;
        return;
    }
    memcpy(pack->data + pack->bytes, data, bytes);
    pack->bytes += bytes;
}

void eni_pack_drop(eni_pack *pack, size_t bytes)
{
    if (bytes == 0) return;
    memmove(pack->data, pack->data + bytes, pack->bytes - bytes);
    pack->bytes -= bytes;
}

static int write_raw(void *pack, const char *data, size_t bytes)
{
    eni_pack_raw(pack, data, bytes);
    return 0;
}

static msgpack_packer packer(eni_pack *pack)
{
    return (msgpack_packer){pack, write_raw};
}

void eni_pack_array(eni_pack *pack, uint32_t n)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_array(&p, n);
}

void eni_pack_uint(eni_pack *pack, uint64_t value)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_uint64(&p, value);
}

void eni_pack_int(eni_pack *pack, int64_t value)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_int64(&p, value);
}

void eni_pack_str(eni_pack *pack, const char *text)
{
    msgpack_packer p = packer(pack);
    size_t bytes = strlen(text);
    msgpack_pack_str(&p, bytes);
    msgpack_pack_str_body(&p, text, bytes);
}

void eni_pack_text(eni_pack *pack, const char *text)
{
    char clean[512];
    size_t n = 0;
    for (; text[n] != '\0' && n < sizeof clean - 1; n++)
        clean[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    clean[n] = '\0';
    eni_pack_str(pack, clean);
}

void eni_pack_bin(eni_pack *pack, const void *data, size_t bytes)
{
    msgpack_packer p = packer(pack);
    msgpack_pack_bin(&p, bytes);
    msgpack_pack_bin_body(&p, data, bytes);
}
