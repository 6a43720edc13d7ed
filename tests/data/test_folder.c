/* test_folder.c - IDX files: what is read, how fast, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "data/dataset_make.h"
#include "tests/heard.h"
#include "tests/mentions.h"

#define FASHION "/usr/share/datasets/fashion-mnist/"

#define IMAGES "\0\0\x08\3\0\0\0\2\0\0\0\1\0\0\0\3" /* 2 x 1 x 3 */
#define LABELS "\0\0\x08\1\0\0\0\4"                 /* 4 */

static const struct {
    const char *bytes;
    size_t count;
    const char *problem;
} bad[] = {
    {"", 0, "truncated|0 bytes of 4"},
    {"\0\0\x08", 3, "truncated|3 bytes of 4"},
    {LABELS, 7, "truncated|7 bytes of 8"},
    {LABELS "abc", 11, "truncated"},
    {"\0\0\x08\3\0\0\xff\xff\0\0\0\xff\0\0\0\xffx", 17, "truncated"}, /* 4 GB in 17 bytes */
    {IMAGES "abcdefg", 23, "last element"},
    {"\1\0\x08\1\0\0\0\1a", 9, "IDX"},
    {"\0\0\x0d\1\0\0\0\1aaaa", 12, "element type 0x0d"},
    {"\0\0\x08\2\0\0\0\1\0\0\0\1a", 13, "2 dimensions"},
    {"\0\0\x08\0", 4, "0 dimensions"},
    {"\0\0\x08\1\0\0\0\0", 8, "dimension 0"},
    {"\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16, "17179869184"},
    {"\x80\2\x8a\n", 4, "pt2idx.py"},
    {"PK\3\4aaaa", 8, "pt2idx.py"},
};

/* By plain file and by gzip file: refused each time, in one line. */
static en_status read_as(const char *bytes, size_t count, int as_gzip, eni_idx *idx)
{
    char path[] = "/tmp/entrain-idx-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    if (as_gzip) {
        gzFile file = gzdopen(fd, "wb");
        assert_int_equal(gzwrite(file, bytes, (unsigned)count), (int)count);
        gzclose(file);
    } else {
        assert_int_equal(write(fd, bytes, count), (ssize_t)count);
        close(fd);
    }
    en_status st = eni_idx_read(path, true, idx);
    unlink(path);
    return st;
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    heard h;
    eni_log_set_sink(hear, &h);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int way = 0; way < 2; way++) {
            eni_idx idx = {0};
            h.lines = 0;
            en_status st = read_as(bad[i].bytes, bad[i].count, way, &idx);
            if (st != EN_EFORMAT || h.lines != 1)
                fail_msg("case %zu way %d: status %d, %d lines", i, way, st, h.lines);
            if (!mentions(h.text, bad[i].problem))
                fail_msg("case %zu way %d: \"%s\" lacks \"%s\"", i, way, h.text, bad[i].problem);
            assert_null(idx.elements);
        }
    eni_log_set_sink(NULL, NULL);
}

static void good_files_are_read(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        eni_idx idx;
        static const char bytes[] = IMAGES "abcdef";
        en_status st = read_as(bytes, 22, way, &idx);
        assert_int_equal(st, EN_OK);
        assert_true(idx.ndims == 3 && idx.dim[0] == 2 && idx.dim[1] == 1 && idx.dim[2] == 3 &&
                    idx.bytes == 6);
        assert_memory_equal(idx.elements, "abcdef", 6);
        eni_idx_fini(&idx);
        eni_idx_fini(&idx);
    }
}

static void a_cut_gzip_is_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/entrain-idx-XXXXXX";
    uint8_t gz[4096];
    heard h = {0};
    FILE *file = fopen(FASHION "t10k-labels-idx1-ubyte.gz", "rb");
    if (file == NULL) skip();
    assert_int_equal(fread(gz, 1, sizeof gz, file), sizeof gz);
    fclose(file);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, gz, sizeof gz), sizeof gz);
    close(fd);
    eni_idx idx = {0};
    eni_log_set_sink(hear, &h);
    assert_int_equal(eni_idx_read(path, true, &idx), EN_EFORMAT);
    assert_int_equal(h.lines, 1);
    assert_int_equal(eni_idx_read("/nonexistent/x", true, &idx), EN_ENOENT);
    assert_int_equal(eni_idx_read("/tmp", true, &idx), EN_EFORMAT);
    eni_log_set_sink(NULL, NULL);
    assert_null(idx.elements);
    unlink(path);
}

static void a_flipped_bit_is_refused(void **state)
{
    (void)state;
    static uint8_t gz[8192];
    char path[] = "/tmp/entrain-idx-XXXXXX";
    heard h = {0};
    FILE *file = fopen(FASHION "t10k-labels-idx1-ubyte.gz", "rb");
    if (file == NULL) skip();
    size_t bytes = fread(gz, 1, sizeof gz, file);
    fclose(file);
    gz[bytes - 6] ^= 1; /* the CRC at the end */
    int fd = mkstemp(path);
    assert_int_equal(write(fd, gz, bytes), (ssize_t)bytes);
    close(fd);
    eni_idx idx = {0};
    eni_log_set_sink(hear, &h);
    assert_int_equal(eni_idx_read(path, true, &idx), EN_EFORMAT);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(h.lines, 1);
    unlink(path);
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * ENI_SECOND + t.tv_nsec;
}

/* A sanitizer's own work is not ours to promise. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMIT_NS (10 * ENI_SECOND)
#else
#define LIMIT_NS (ENI_SECOND / 2)
#endif

/* 60,000 images in under 0.5 s, best of three; of processor time, for the machine may be busy with others. */
static void sixty_thousand_images_are_fast(void **state)
{
    (void)state;
    if (access(FASHION "train-images-idx3-ubyte.gz", R_OK) != 0) skip();
    int64_t best = INT64_MAX, best_cpu = INT64_MAX;
    for (int i = 0; i < 3; i++) {
        eni_idx idx;
        int64_t begin = eni_now_ns(), cpu_begin = cpu_ns();
        assert_int_equal(eni_idx_read(FASHION "train-images-idx3-ubyte.gz", true, &idx), EN_OK);
        int64_t took = eni_now_ns() - begin, cpu = cpu_ns() - cpu_begin;
        if (took < best) best = took;
        if (cpu < best_cpu) best_cpu = cpu;
        assert_int_equal(idx.dim[0], 60000);
        eni_idx_fini(&idx);
    }
    printf("60,000 images from gzip: %.3f s, of which processor %.3f s\n", (double)best / 1e9,
           (double)best_cpu / 1e9);
    assert_true(best_cpu < LIMIT_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_are_refused),      cmocka_unit_test(good_files_are_read),
        cmocka_unit_test(a_cut_gzip_is_refused),          cmocka_unit_test(a_flipped_bit_is_refused),
        cmocka_unit_test(sixty_thousand_images_are_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
