/* bad_files.c - see bad_files.h. */
#include "tests/system/bad_files.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *at(const char *name)
{
    static char paths[8][160];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", system_folder(), name);
    return path;
}

void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

void copy_file(const char *from, const char *name, size_t most)
{
    FILE *in = fopen(from, "r");
    if (in == NULL) fail_msg("cannot read %s", from);
    char *bytes = malloc(1 << 22);
    assert_non_null(bytes);
    size_t n = fread(bytes, 1, most < 1 << 22 ? most : 1 << 22, in);
    fclose(in);
    write_bytes(name, bytes, n);
    free(bytes);
}

void patch_file(const char *name, long offset, const void *bytes, size_t n)
{
    FILE *file = fopen(at(name), "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

void write_idx(const char *name, int ndims, unsigned count, size_t elements, int value)
{
    uint8_t *bytes = calloc(16 + elements, 1);
    assert_non_null(bytes);
    size_t head = 4 + 4 * (size_t)ndims;
    bytes[2] = 8;
    bytes[3] = (uint8_t)ndims;
    bytes[6] = (uint8_t)(count >> 8);
    bytes[7] = (uint8_t)count;
    if (ndims == 3) bytes[11] = bytes[15] = 28;
    memset(bytes + head, value, elements);
    write_bytes(name, bytes, head + elements);
    free(bytes);
}

void write_set(const char *folder)
{
    char name[64];
    assert_int_equal(mkdir(at(folder), 0700), 0);
    snprintf(name, sizeof name, "%s/train-images-idx3-ubyte", folder);
    write_idx(name, 3, 4, 4 * 784, 7);
    snprintf(name, sizeof name, "%s/train-labels-idx1-ubyte", folder);
    write_idx(name, 1, 4, 4, 3);
    snprintf(name, sizeof name, "%s/t10k-images-idx3-ubyte", folder);
    write_idx(name, 3, 2, 2 * 784, 7);
    snprintf(name, sizeof name, "%s/t10k-labels-idx1-ubyte", folder);
    write_idx(name, 1, 2, 2, 3);
}

static void write_batch(const char *name, int first, int n)
{
    enum { IMAGE = 3072 };
    uint8_t *bytes = calloc((size_t)n, IMAGE + 1), *to = bytes;
    assert_non_null(bytes);
    for (int i = first; i < first + n; i++) {
        *to++ = (uint8_t)(i % 10);
        for (int k = 0; k < IMAGE; k++)
            *to++ =
                (uint8_t)(i % 10 * 23 + k / 1024 * 70 + k % 1024 / 32 * 3 + k % 32 * (i % 7) + i * k % 17);
    }
    write_bytes(name, bytes, (size_t)(to - bytes));
    free(bytes);
}

void write_cifar(const char *folder, int train, int test)
{
    char name[80];
    assert_int_equal(mkdir(at(folder), 0700), 0);
    for (int f = 0, first = 0; f < 5; f++) {
        const int n = train / 5 + (f < train % 5);
        snprintf(name, sizeof name, "%s/data_batch_%d.bin", folder, f + 1);
        write_batch(name, first, n);
        first += n;
    }
    snprintf(name, sizeof name, "%s/test_batch.bin", folder);
    write_batch(name, 3, test);
}

void write_safetensors(const char *name, const char *header, size_t bytes, float value)
{
    const uint64_t length = strlen(header);
    char *all = malloc(8 + length + bytes);
    assert_non_null(all);
    memcpy(all, &length, 8);
    memcpy(all + 8, header, length);
    for (size_t i = 0; i + sizeof value <= bytes; i += sizeof value)
        memcpy(all + 8 + length + i, &value, sizeof value);
    write_bytes(name, all, 8 + length + bytes);
    free(all);
}
