#include "tests/fuzz/mutate.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES = 256, DEPTH = 3 };

typedef struct piece { /* one msgpack value */
    const uint8_t *at;
    size_t bytes;
} piece;

typedef struct output {
    uint8_t *at;
    size_t bytes, room;
} output;

unsigned fuzz_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

uint64_t fuzz_number(unsigned *state)
{
    const unsigned bit = fuzz_random(state) % 65; /* a power of two, or one of its neighbours */
    const uint64_t power = bit == 64 ? 0 : UINT64_C(1) << bit;
    return power + fuzz_random(state) % 3 - 1;
}

static uint64_t big_endian(const uint8_t *at, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | at[i];
    return value;
}

/* The head of a value: its own bytes with the body of a text, and how many values follow inside. 0: cut off.
 */
static size_t head_bytes(const uint8_t *at, size_t room, uint64_t *inside_out)
{
    static const uint8_t width[32] = {1, 1, 1, 1, 2, 3, 5, 2,  3,  5, 5, 9, 2, 3, 5, 9,
                                      2, 3, 5, 9, 3, 4, 6, 10, 18, 2, 3, 5, 3, 5, 3, 5};
    const uint8_t format = *at;
    *inside_out = 0;
    if (format >= 0xe0 || format < 0x80) return 1;
    if (format < 0x90) *inside_out = 2 * (format & 15u);
    if (format >= 0x90 && format < 0xa0) *inside_out = format & 15u;
    if (format < 0xa0) return 1;
    if (format < 0xc0) return 1 + (format & 31u);
    const size_t bytes = width[format - 0xc0];
    if (bytes > room) return 0;
    const uint64_t length = big_endian(at + 1, bytes - 1);
    if (format >= 0xdc) *inside_out = length << (format >= 0xde);
    const int has_body = (format >= 0xc4 && format <= 0xc9) || (format >= 0xd9 && format <= 0xdb);
    return has_body ? bytes + (size_t)(length & 0xffffffff) : bytes;
}

/* The bytes of a whole value; 0: cut off. */
static size_t value_bytes(const uint8_t *at, size_t room)
{
    size_t done = 0;
    for (uint64_t due = 1; due > 0; due--) {
        uint64_t inside;
        if (done >= room) return 0;
        const size_t bytes = head_bytes(at + done, room - done, &inside);
        if (bytes == 0 || bytes > room - done || inside > room) return 0;
        done += bytes;
        due += inside;
    }
    return done;
}

/* The elements of an array; 0 for anything else. */
static size_t split(const uint8_t *at, size_t bytes, piece *pieces)
{
    uint64_t n = 0;
    if (bytes == 0 || ((*at & 0xf0) != 0x90 && *at != 0xdc && *at != 0xdd)) return 0;
    size_t done = head_bytes(at, bytes, &n);
    if (done == 0 || n > PIECES) return 0;
    for (uint64_t i = 0; i < n; i++) {
        const size_t length = value_bytes(at + done, bytes - done);
        if (length == 0) return 0;
        pieces[i] = (piece){at + done, length};
        done += length;
    }
    return (size_t)n;
}

static void put(output *out, const void *bytes, size_t n)
{
    if (n > out->room - out->bytes) n = out->room - out->bytes;
    if (n > 0) memcpy(out->at + out->bytes, bytes, n);
    out->bytes += n;
}

static void put_head(output *out, uint8_t format, uint64_t value, int width)
{
    uint8_t bytes[9] = {format};
    for (int i = 0; i < width; i++)
        bytes[1 + i] = (uint8_t)(value >> 8 * (width - 1 - i));
    put(out, bytes, 1 + (size_t)width);
}

static void put_array(output *out, size_t n)
{
    if (n < 16)
        put_head(out, (uint8_t)(0x90 | n), 0, 0);
    else
        put_head(out, 0xdc, n, 2);
}

/* Another value of any kind. */
static void put_other(output *out, unsigned *state)
{
    static const uint8_t odd[] = {0xc0, 0xc1, 0xc2, 0xc3, 0x80, 0x90, 0xca, 0xdf, 0xdd, 0xd6, 0xc9};
    char text[320];
    const unsigned choice = fuzz_random(state) % 8, length = fuzz_random(state) % sizeof text;
    const uint64_t number = fuzz_number(state);
    for (unsigned i = 0; i < length; i++)
        text[i] = (char)(fuzz_random(state) % 64 == 0 ? fuzz_random(state) : ' ' + fuzz_random(state) % 95);
    switch (choice) {
    case 0: put_head(out, (uint8_t)(number & 0x7f), 0, 0); break;
    case 1: put_head(out, 0xce, number, 4); break;
    case 2: put_head(out, 0xcf, number, 8); break;
    case 3: put_head(out, (uint8_t)(0xd0 + (number & 3)), number, 1 << (number & 3)); break;
    case 4: put_head(out, 0xd3, 0 - number, 8); break;
    case 5:
        put_head(out, 0xda, length, 2);
        put(out, text, length);
        break;
    case 6:
        put_head(out, 0xc5, length, 2);
        put(out, text, length);
        break;
    default: put(out, &odd[fuzz_random(state) % sizeof odd], 1);
    }
}

static void mutate_value(const piece *value, output *out, unsigned *state, int depth);

/* The array with one element changed, gone, doubled or exchanged. */
static void mutate_pieces(piece *pieces, size_t n, output *out, unsigned *state, int depth)
{
    const size_t at = fuzz_random(state) % n, other = fuzz_random(state) % n;
    const unsigned choice = fuzz_random(state) % 16;
    const size_t count = choice == 0 ? n - 1 : choice == 1 ? n + 1 : n;
    if (choice == 2) {
        const piece swapped = pieces[at];
        pieces[at] = pieces[other];
        pieces[other] = swapped;
    }
    if (choice == 3) pieces[at] = pieces[other];
    put_array(out, count);
    for (size_t i = 0; i < n; i++) {
        if (i == at && choice == 0) continue;
        if (i == at && choice == 1) put(out, pieces[i].at, pieces[i].bytes);
        if (i == at && choice > 3)
            mutate_value(&pieces[i], out, state, depth);
        else
            put(out, pieces[i].at, pieces[i].bytes);
    }
}

static void mutate_value(const piece *value, output *out, unsigned *state, int depth)
{
    piece *inside = depth < DEPTH ? malloc(PIECES * sizeof *inside) : NULL;
    const size_t n = inside != NULL ? split(value->at, value->bytes, inside) : 0;
    if (n > 0 && fuzz_random(state) % 4 != 0)
        mutate_pieces(inside, n, out, state, depth + 1);
    else
        put_other(out, state);
    free(inside);
}

size_t fuzz_mutate_array(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    unsigned state = seed;
    piece pieces[PIECES];
    const size_t n = split(data, bytes, pieces);
    if (n == 0 || fuzz_random(&state) % 4 == 0) return LLVMFuzzerMutate(data, bytes, max_bytes);
    output out = {malloc(max_bytes), 0, max_bytes};
    if (out.at == NULL) return bytes;
    mutate_pieces(pieces, n, &out, &state, 0);
    memcpy(data, out.at, out.bytes);
    bytes = out.bytes;
    free(out.at);
    return bytes;
}
