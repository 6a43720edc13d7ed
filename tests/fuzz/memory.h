/* memory.h - what a writer under test writes, kept in memory. */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include <stdint.h>
#include <string.h>

#include "entrain/status.h"

typedef struct memory {
    uint8_t bytes[1 << 16];
    size_t n;
} memory;

/* Appends to the memory `user`; EN_ENOMEM when it is full. */
static inline en_status keep(void *user, const void *data, size_t bytes)
{
    memory *to = user;
    if (bytes > sizeof to->bytes - to->n) return EN_ENOMEM;
    if (bytes > 0) memcpy(to->bytes + to->n, data, bytes);
    to->n += bytes;
    return EN_OK;
}

#endif
