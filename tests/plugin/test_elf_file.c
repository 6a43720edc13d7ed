/* test_elf_file.c - a plugin cut at any length, with holes, or with any byte of its headers changed: refused
 * in one sentence or accepted, and never a crash. The strategy `solo` is the plugin. Nothing is loaded here.
 */
#include <elf.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/rng.h"
#include "plugin/elf_file.h"
#include "tests/mentions.h"

#define PLUGIN EN_BUILD_DIR "/plugins/strategy_solo.so"

enum { CUTS = 64, FLIPS = 4, BYTES_MAX = 1 << 22 };

static const eni_plugin_kind kind = {.what = "plugin", .remedy = "name another"};

static struct {
    uint8_t *good, *bad; /* (bytes) */
    size_t bytes;
    int fd; /* the file under test lies in memory */
    char path[32];
    char said[1024];
    int sentences;
} t;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    snprintf(t.said, sizeof t.said, "%s", text);
    t.sentences++;
}

static int setup(void **state)
{
    (void)state;
    FILE *file = fopen(PLUGIN, "re");
    t.good = malloc(BYTES_MAX);
    t.bad = malloc(BYTES_MAX);
    t.fd = memfd_create("plugin", MFD_CLOEXEC);
    if (file == NULL || t.good == NULL || t.bad == NULL || t.fd < 0) return -1;
    t.bytes = fread(t.good, 1, BYTES_MAX, file);
    fclose(file);
    snprintf(t.path, sizeof t.path, "/proc/self/fd/%d", t.fd);
    eni_log_set_sink(listen_in, NULL);
    return t.bytes > sizeof(ElfW(Ehdr)) && t.bytes < BYTES_MAX ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    close(t.fd);
    free(t.good);
    free(t.bad);
    return 0;
}

/* What the check says of a file of these bytes: one sentence where it refuses, none where it does not. */
static en_status check(const uint8_t *bytes, size_t n)
{
    assert_int_equal(ftruncate(t.fd, (off_t)n), 0);
    assert_int_equal(pwrite(t.fd, bytes, n, 0), n);
    t.sentences = 0;
    t.said[0] = 0;
    const en_status st = eni_elf_check(&kind, t.path);
    assert_int_equal(t.sentences, st != EN_OK);
    return st;
}

static const ElfW(Ehdr) * header(void)
{
    return (const ElfW(Ehdr) *)(const void *)t.good;
}

static const ElfW(Phdr) * segment_of(uint32_t type)
{
    const ElfW(Phdr) *s = (const ElfW(Phdr) *)(const void *)(t.good + header()->e_phoff);
    for (int i = 0; i < header()->e_phnum; i++)
        if (s[i].p_type == type) return &s[i];
    fail_msg("%s has no segment of type %u", PLUGIN, type);
    return NULL;
}

/* ---- cut off ------------------------------------------------------------------------------------------- */

static void a_whole_one_is_accepted(void **state)
{
    (void)state;
    assert_int_equal(check(t.good, t.bytes), EN_OK);
}

/* Linkers put the table of sections last, so every cut shows. */
static void every_cut_is_refused(void **state)
{
    (void)state;
    const size_t end = header()->e_shoff + (size_t)header()->e_shnum * header()->e_shentsize;
    for (size_t i = 0; i < CUTS; i++) {
        const size_t n = i * (end - 1) / (CUTS - 1); /* from 0 to all but one */
        assert_int_equal(check(t.good, n), EN_EFORMAT);
        if (n >= 4 && strstr(t.said, "truncated") == NULL) fail_msg("truncated at %zu: %s", n, t.said);
    }
    for (size_t n = 0; n <= sizeof(ElfW(Ehdr)); n++)
        assert_int_equal(check(t.good, n), EN_EFORMAT);
}

/* As a copy that was broken off leaves it, where the room was reserved before. */
static void a_file_that_ends_in_zeros_is_refused(void **state)
{
    (void)state;
    const size_t most = t.bytes - sizeof(ElfW(Shdr));
    for (size_t i = 0; i < CUTS; i++) {
        const size_t n = i * most / (CUTS - 1);
        memset(t.bad, 0, t.bytes);
        memcpy(t.bad, t.good, n);
        if (check(t.bad, t.bytes) == EN_OK) fail_msg("zeros from %zu of %zu are accepted", n, t.bytes);
    }
}

static void noise_behind_a_good_header_is_refused(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= CUTS; seed++) {
        const eni_rng_key noise = {.seed = seed, .purpose = ENI_RNG_TEST};
        for (size_t i = 0; i < t.bytes; i++)
            t.bad[i] = (uint8_t)eni_rng_u64(&noise, i);
        memcpy(t.bad, t.good, sizeof(ElfW(Ehdr)));
        if (check(t.bad, t.bytes) == EN_OK) fail_msg("noise of seed %d is accepted", (int)seed);
    }
}

/* ---- changed ------------------------------------------------------------------------------------------- */

/* Changes each byte of [from, from + bytes) in a few ways; how many of the changes are refused. */
static int change_each(size_t from, size_t bytes)
{
    int refused = 0;
    const eni_rng_key changes = {.seed = from, .purpose = ENI_RNG_TEST};
    memcpy(t.bad, t.good, t.bytes);
    for (size_t at = from; at < from + bytes; at++) {
        for (int i = 0; i < FLIPS; i++) {
            t.bad[at] = (uint8_t)(t.good[at] ^ (1 + eni_rng_below(&changes, at * FLIPS + (size_t)i, 255)));
            const en_status st = check(t.bad, t.bytes);
            assert_true(st == EN_OK || st == EN_EFORMAT || st == EN_EVERSION);
            refused += st != EN_OK;
        }
        t.bad[at] = t.good[at];
    }
    return refused;
}

static void any_change_is_survived(void **state)
{
    (void)state;
    const ElfW(Phdr) *dynamic = segment_of(PT_DYNAMIC);
    assert_in_range(change_each(0, sizeof *header()), 20, FLIPS * sizeof *header());
    assert_in_range(change_each(header()->e_phoff, header()->e_phnum * sizeof *dynamic), 100, SIZE_MAX);
    assert_in_range(change_each(dynamic->p_offset, dynamic->p_filesz), 20, SIZE_MAX);
}

/* The same plugin with one number of a segment or of the dynamic section changed. */
static void refuses(size_t at, uint64_t value, const char *says)
{
    memcpy(t.bad, t.good, t.bytes);
    memcpy(t.bad + at, &value, sizeof value);
    assert_int_equal(check(t.bad, t.bytes), EN_EFORMAT);
    if (!mentions(t.said, says)) fail_msg("\"%s\" does not say \"%s\"", t.said, says);
}

static size_t place_of(const void *in_good)
{
    return (size_t)((const uint8_t *)in_good - t.good);
}

static void what_the_loader_would_follow_is_refused(void **state)
{
    (void)state;
    const ElfW(Phdr) *load = segment_of(PT_LOAD), *dynamic = segment_of(PT_DYNAMIC);
    refuses(place_of(&load->p_filesz), UINT64_MAX, "truncated|segment");
    refuses(place_of(&load->p_offset), t.bytes, "truncated|segment");
    refuses(place_of(&load->p_memsz), 1, "segment|memory");
    refuses(place_of(&load->p_memsz), UINT64_MAX, "segment|memory");
    refuses(place_of(&load->p_vaddr), UINT32_MAX, "overlap");
    refuses(place_of(&dynamic->p_vaddr), 0, "dynamic section");
    refuses(place_of(&dynamic->p_vaddr), UINT64_MAX - 8, "dynamic section");
    refuses(place_of(&dynamic->p_filesz), sizeof(ElfW(Dyn)), "dynamic section");
    for (size_t at = dynamic->p_offset;; at += sizeof(ElfW(Dyn))) {
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(const void *)(t.good + at);
        if (entry->d_tag == DT_NULL) break;
        if (entry->d_tag == DT_STRTAB || entry->d_tag == DT_SYMTAB || entry->d_tag == DT_STRSZ ||
            entry->d_tag == DT_GNU_HASH)
            refuses(place_of(&entry->d_un), UINT64_MAX / 2, "symbol");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_one_is_accepted),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(a_file_that_ends_in_zeros_is_refused),
        cmocka_unit_test(noise_behind_a_good_header_is_refused),
        cmocka_unit_test(any_change_is_survived),
        cmocka_unit_test(what_the_loader_would_follow_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
