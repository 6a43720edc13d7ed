/* test_durable.c - in which order a file becomes durable, and what an error of fsync means: asked of the
 * linker's
 * --wrap, so that every call is seen. (Pillai'14: most broken files come from a missing sync of the folder;
 * Rebello'20: an fsync that fails has dropped the pages, so the next one lies.) */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/files.h"
#include "core/log.h"
#include "models/formats/safetensors.h"
#include "server/state.h"

/* Promise: A folder that cannot be synced does not fail a checkpoint; an error of the disk does. */

/* What happened, a letter each: f a file was synchronised, F that failed, r a file renamed, d a folder
 * synchronised. */
static struct {
    char calls[64];
    size_t n;
    int fail_file;                  /* the next fsync of a file fails, once */
    int folder_error, folder_fails; /* the next so many of a folder fail so */
} seen;

static void note(char what)
{
    if (seen.n + 1 < sizeof seen.calls) seen.calls[seen.n++] = what;
    seen.calls[seen.n] = 0;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat s;
    assert_int_equal(fstat(fd, &s), 0);
    if (S_ISDIR(s.st_mode)) {
        note('d');
        if (seen.folder_fails > 0) {
            seen.folder_fails--;
            errno = seen.folder_error;
            return -1;
        }
    } else if (seen.fail_file) {
        seen.fail_file = 0;
        note('F');
        errno = EIO;
        return -1;
    } else {
        note('f');
    }
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    note('r');
    return __real_rename(from, to);
}

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    note('r');
    return __real_renameat(from_fd, from, to_fd, to);
}

static void forget(int fail_file)
{
    memset(&seen, 0, sizeof seen);
    seen.fail_file = fail_file;
}

/* ---- psd's states -------------------------------------------------------------------------------------- */

static void a_state_is_written_synced_renamed_and_its_folder_synced(void **state)
{
    char folder[] = "/tmp/entrain-test-durable-XXXXXX";
    eni_state *s;
    eni_state_stamp stamp = {.kind = ENI_STATE_SHARD, .shard = 0, .nshards = 1, .run = 7, .generation = 1},
                    found;
    uint8_t *bytes;
    size_t n;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(eni_state_open(folder, &s), EN_OK);
    forget(0);
    assert_int_equal(eni_state_write(s, &stamp, "one", 3), EN_OK);
    assert_string_equal(seen.calls, "frd");
    stamp.generation = 2;
    forget(1);
    assert_int_equal(eni_state_write(s, &stamp, "two", 3), EN_EIO);
    assert_string_equal(seen.calls, "F"); /* no second try, no rename */
    assert_int_equal(eni_state_read(s, ENI_STATE_SHARD, 0, &found, &bytes, &n), EN_OK);
    assert_int_equal(found.generation, 1);
    assert_memory_equal(bytes, "one", 3);
    free(bytes);
    eni_state_clear(s);
    eni_state_close(s);
    rmdir(folder);
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static en_status write_weights(const char *path, float value)
{
    const eni_st_tensor tensor = {
        .name = "w", .dtype = EN_F32, .ndim = 1, .shape = {1}, .count = 1, .data = &value};
    char digest[ENI_DIGEST_HEX], why[ENI_ST_WHY];
    return eni_st_write_sealed(path, &tensor, 1, NULL, 0, digest, why);
}

static float read_weight(const char *path)
{
    eni_st_file file;
    assert_int_equal(eni_st_read(path, 4096, &file), EN_OK);
    float value;
    memcpy(&value, eni_st_find(&file, "w")->data, sizeof value);
    eni_st_close(&file);
    return value;
}

static void a_checkpoint_is_written_synced_renamed_and_its_folder_synced(void **state)
{
    char folder[] = "/tmp/entrain-test-durable-XXXXXX", path[128];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/w.safetensors", folder);
    forget(0);
    assert_int_equal(write_weights(path, 1), EN_OK);
    assert_string_equal(seen.calls, "frd");
    forget(1);
    assert_int_equal(write_weights(path, 2), EN_EIO);
    assert_string_equal(seen.calls, "F");
    assert_true(read_weight(path) == 1);
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* and nothing else was left */
}

/* Some file systems know no sync of folders: what is whole counts. An error of the disk is told once, and counts too. */
static void a_folder_that_cannot_be_synced_is_no_failure(void **state)
{
    static const struct {
        int error, times;
        en_status expected;
    } cases[] = {
        {EINVAL, 1, EN_OK}, {ENOTSUP, 1, EN_OK}, {EIO, 9, EN_OK}, {EIO, 1, EN_EIO}, {ENOSPC, 9, EN_EIO}};
    char folder[] = "/tmp/entrain-test-durable-XXXXXX", path[128];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/w.safetensors", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        forget(0);
        seen.folder_error = cases[i].error;
        seen.folder_fails = cases[i].times;
        assert_int_equal(write_weights(path, (float)i), cases[i].expected);
        assert_memory_equal(seen.calls, "frd", 3);
        assert_true(read_weight(path) == (float)i);
    }
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- results ------------------------------------------------------------------------------------------- */

/* result.json, compare.json: the old one is there until the new one is. */
static void a_result_is_replaced_as_a_checkpoint_is(void **state)
{
    char folder[] = "/tmp/entrain-test-durable-XXXXXX", path[128], text[16] = "";
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/result.json", folder);
    forget(0);
    assert_int_equal(eni_file_replace_text("test", path, "old"), EN_OK);
    assert_string_equal(seen.calls, "frd");
    forget(1);
    assert_int_equal(eni_file_replace_text("test", path, "new"), EN_EIO);
    assert_string_equal(seen.calls, "F");
    FILE *file = fopen(path, "re");
    assert_int_equal(fread(text, 1, sizeof text, file), 3);
    fclose(file);
    assert_string_equal(text, "old");
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing unfinished is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_written_synced_renamed_and_its_folder_synced),
        cmocka_unit_test(a_checkpoint_is_written_synced_renamed_and_its_folder_synced),
        cmocka_unit_test(a_folder_that_cannot_be_synced_is_no_failure),
        cmocka_unit_test(a_result_is_replaced_as_a_checkpoint_is),
    };
    eni_log_set_level(ENI_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
