/* test_cache.c - copies of objects on this host: who may use the folder, when a copy is the object's, and
 * what is removed. tests/system/test_buckets.py downloads from a service. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/json.h"
#include "core/log.h"
#include "remote/cache.h"
#include "tests/heard.h"

/* Promise: The cache is never in a folder that other users can write. */

#define URL  "s3://bucket/data"
#define ETAG "\"d41d8\""

enum { DEADLINE_MS = 60000 };

static char root[64];
static heard said;
static eni_cache cache;

static int begin(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/entrain-cache-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    cache = (eni_cache){.fd = -1, .lock_fd = -1};
    said = (heard){0};
    eni_log_set_sink(hear, &said);
    return 0;
}

static int end(void **state)
{
    char command[96];
    (void)state;
    eni_cache_close(&cache);
    eni_log_set_sink(NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void open_cache(void)
{
    if (eni_cache_open(root, URL, NULL, &cache) != EN_OK) fail_msg("%s", said.text);
}

static const char *in_cache(const char *name)
{
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", cache.path, name);
    return path;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static bool is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static unsigned mode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (unsigned)info.st_mode & 07777;
}

/* ---- the folder ---- */

static void a_folder_for_its_user_alone(void **state)
{
    (void)state;
    char below[96];
    snprintf(below, sizeof below, "%s/a/b", root);
    assert_int_equal(eni_cache_open(below, URL, NULL, &cache), EN_OK);
    assert_memory_equal(cache.path, below, strlen(below));
    assert_memory_equal(cache.path + strlen(below), "/s3-bucket-", strlen("/s3-bucket-"));
    assert_int_equal(strlen(cache.path), strlen(below) + strlen("/s3-bucket-") + 16);
    assert_int_equal(mode_of(below), 0700);
    assert_int_equal(mode_of(cache.path), 0700);
    assert_int_equal(mode_of(in_cache(".lock")), 0600);
    snprintf(below, sizeof below, "%s/a", root);
    assert_int_equal(mode_of(below), 0700);
    assert_int_equal(said.lines, 0);
}

static void a_folder_for_each_url_and_endpoint(void **state)
{
    (void)state;
    static const char *const places[][2] = {{URL, NULL},
                                            {URL "/", NULL},
                                            {"s3://bucket", NULL},
                                            {URL, "https://minio.example.com"},
                                            {URL "h", NULL},
                                            {URL, "https://minio.example.co"},
                                            {"oss://bucket.oss-cn-hangzhou.aliyuncs.com/data", NULL}};
    enum { N = sizeof places / sizeof places[0] };
    char path[N][PATH_MAX];
    for (int i = 0; i < N; i++)
        for (int time = 0; time < 2; time++) {
            assert_int_equal(eni_cache_open(root, places[i][0], places[i][1], &cache), EN_OK);
            if (time == 1) assert_string_equal(path[i], cache.path); /* the same each time */
            snprintf(path[i], sizeof path[i], "%s", cache.path);
            for (int k = 0; k < i; k++)
                assert_string_not_equal(path[k], path[i]);
            eni_cache_close(&cache);
        }
    assert_non_null(strstr(path[N - 1], "/oss-bucket.oss-cn-hangzhou.aliyuncs.com-"));
}

/* A folder that others may write to is not trusted; one that they may read is closed to them. */
static void modes_of_a_folder(void **state)
{
    (void)state;
    static const mode_t refused[] = {0777, 0770, 0702, 0720, 01777}, closed[] = {0755, 0750, 0705, 0711};
    open_cache();
    for (int which = 0; which < 2; which++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s", which == 0 ? root : cache.path);
        eni_cache_close(&cache);
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
            char mode[8];
            snprintf(mode, sizeof mode, "%04o", (unsigned)refused[i]);
            assert_int_equal(chmod(path, refused[i]), 0);
            assert_int_equal(eni_cache_open(root, URL, NULL, &cache), EN_EINVAL);
            assert_int_equal(said.lines, 1);
            assert_non_null(strstr(said.text, path));
            assert_non_null(strstr(said.text, mode));
            assert_non_null(strstr(said.text, "XDG_CACHE_HOME"));
            assert_true(cache.fd < 0 && cache.lock_fd < 0);
            said = (heard){0};
        }
        for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
            assert_int_equal(chmod(path, closed[i]), 0);
            open_cache();
            assert_int_equal(mode_of(path), 0700);
            eni_cache_close(&cache);
        }
        open_cache();
    }
    assert_int_equal(said.lines, 0);
}

static void a_folder_of_another_user(void **state)
{
    (void)state;
    uint64_t bytes;
    if (geteuid() != 0 || chown(root, 12345, 12345) != 0) skip(); /* only root can make one */
    assert_int_equal(eni_cache_open(root, URL, NULL, &cache), EN_EINVAL);
    assert_non_null(strstr(said.text, root));
    assert_int_equal(eni_cache_clear(root, &bytes), EN_EINVAL);
}

static void what_is_no_folder(void **state)
{
    (void)state;
    char path[96], target[96];
    snprintf(path, sizeof path, "%s/there", root);
    snprintf(target, sizeof target, "%s/target", root);
    write_text(path, "");
    assert_int_equal(eni_cache_open(path, URL, NULL, &cache), EN_EINVAL);
    assert_non_null(strstr(said.text, path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(eni_cache_open(path, URL, NULL, &cache), EN_EINVAL);
    assert_int_equal(said.lines, 2);
    assert_int_equal(rmdir(target), 0); /* nothing was put there */
}

/* A lock that is a link to a file that does not exist. */
static void a_lock_that_is_a_link(void **state)
{
    (void)state;
    char target[96];
    snprintf(target, sizeof target, "%s/target", root);
    open_cache();
    eni_cache_close(&cache);
    assert_int_equal(unlink(in_cache(".lock")), 0);
    assert_int_equal(symlink(target, in_cache(".lock")), 0);
    assert_int_equal(eni_cache_open(root, URL, NULL, &cache), EN_EIO);
    assert_false(is_there(target));
}

/* ---- one process fetches ---- */

/* A line of the log goes to the pipe `user`. */
static void tell(void *user, int level, const char *subsystem, const char *text)
{
    const int fd = *(const int *)user;
    (void)level, (void)subsystem;
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void expect_from(int fd, const char *part)
{
    char text[1024] = "";
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    if (strstr(text, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", text, part);
}

typedef struct elsewhere {
    pid_t child;
    int go, fd; /* the pipes to it and from it */
} elsewhere;

/* Another process that opens the same folder on command, reports when it waits and when it has it, and then
 * ends. It is forked before the folder is open here: a child shares its parent's lock. */
static elsewhere begin_elsewhere(void)
{
    int go[2], ends[2];
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        eni_cache other;
        char byte;
        alarm(DEADLINE_MS / 1000); /* whatever becomes of the test */
        eni_log_set_sink(tell, &ends[1]);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        const en_status st = eni_cache_open(root, URL, NULL, &other);
        struct stat info;
        const bool is_named = st == EN_OK && fstat(other.lock_fd, &info) == 0 && info.st_nlink == 1;
        if (write(ends[1], is_named ? "has it" : "fails", 6) != 6) _exit(1);
        _exit(0);
    }
    close(go[0]);
    close(ends[1]);
    return (elsewhere){.child = child, .go = go[1], .fd = ends[0]};
}

static void go(const elsewhere *e)
{
    assert_int_equal(write(e->go, "x", 1), 1);
}

static void end_elsewhere(const elsewhere *e)
{
    int status;
    assert_int_equal(waitpid(e->child, &status, 0), e->child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(e->go);
    close(e->fd);
}

static void a_second_process_waits(void **state)
{
    (void)state;
    const elsewhere e = begin_elsewhere();
    open_cache();
    go(&e);
    expect_from(e.fd, URL);
    eni_cache_close(&cache);
    expect_from(e.fd, "has it");
    end_elsewhere(&e);
}

/* A process that waits for a folder that is removed makes it again. */
static void a_folder_that_is_removed_meanwhile(void **state)
{
    (void)state;
    const elsewhere e = begin_elsewhere();
    open_cache();
    go(&e);
    expect_from(e.fd, URL);
    assert_int_equal(unlink(in_cache(".lock")), 0);
    assert_int_equal(rmdir(cache.path), 0);
    eni_cache_close(&cache);
    expect_from(e.fd, "has it");
    end_elsewhere(&e);
    assert_true(is_there(in_cache(".lock")));
}

/* The lock ends with its holder. */
static void a_process_that_is_killed(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        eni_cache other;
        alarm(DEADLINE_MS / 1000);
        if (eni_cache_open(root, URL, NULL, &other) != EN_OK || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    open_cache();
}

/* ---- finding copies ---- */

static const eni_object object = {.key = "data/train.bin", .etag = ETAG, .size = 5};

/* A copy, and its metadata; then a test's change to that. */
static void write_copy(const char *name, const char *text, json_t *changed)
{
    char path[PATH_MAX + 64];
    struct stat info;
    snprintf(path, sizeof path, "%s", in_cache(name));
    write_text(path, text);
    assert_int_equal(stat(path, &info), 0);
    json_t *known = json_object();
    eni_json_set_text(known, "key", object.key);
    eni_json_set_text(known, "etag", object.etag);
    ENI_JSON_SET_INTS(
        known, {"size", (uint64_t)info.st_size},
        {"time_ns", (uint64_t)info.st_mtim.tv_sec * 1000000000u + (uint64_t)info.st_mtim.tv_nsec},
        {"inode", info.st_ino});
    if (changed != NULL) assert_int_equal(json_object_update(known, changed), 0);
    json_decref(changed);
    strcat(path, ".entrain");
    assert_int_equal(json_dump_file(known, path, 0), 0);
    json_decref(known);
}

static bool is_here(const eni_object *of)
{
    eni_cache_file file = {.object = of, .name = "train.bin"};
    assert_int_equal(eni_cache_look(&cache, &file, 1), EN_OK);
    assert_int_equal(file.have, file.is_here ? of->size : 0);
    assert_int_equal(said.lines, 0);
    return file.is_here;
}

static void a_copy_is_known_again(void **state)
{
    (void)state;
    open_cache();
    assert_false(is_here(&object));
    write_copy("train.bin", "hello", NULL);
    assert_true(is_here(&object));
    assert_true(is_here(&object)); /* looking changes nothing */
}

static void what_makes_a_copy_another(void **state)
{
    (void)state;
    open_cache();
    static const struct {
        const char *name, *text;
    } texts[] = {{"etag", "\"d41d9\""}, {"key", "data/train"}, {"etag", NULL}, {"key", NULL}};
    static const char *const numbers[] = {"time_ns", "inode"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_copy("train.bin", "hello", json_pack("{s:s?}", texts[i].name, texts[i].text));
        assert_false(is_here(&object));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        write_copy("train.bin", "hello", json_pack("{s:i}", numbers[i], 1));
        assert_false(is_here(&object));
        write_copy("train.bin", "hello", json_pack("{s:s}", numbers[i], "x"));
        assert_false(is_here(&object));
    }
    write_copy("train.bin", "hello!", NULL); /* another size */
    assert_false(is_here(&object));
    write_copy("train.bin", "hello", NULL);
    eni_object other = object;
    other.size++; /* in the bucket */
    assert_false(is_here(&other));
    other = object;
    other.etag[1]++;
    assert_false(is_here(&other));
    assert_true(is_here(&object));
}

static void a_copy_that_was_changed_here(void **state)
{
    (void)state;
    struct stat info;
    char path[PATH_MAX + 64];
    open_cache();
    write_copy("train.bin", "hello", NULL);
    snprintf(path, sizeof path, "%s", in_cache("train.bin"));
    assert_int_equal(stat(path, &info), 0);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    const struct timespec later[2] = {info.st_atim,
                                      {info.st_mtim.tv_sec, (info.st_mtim.tv_nsec + 1) % 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0); /* by a nanosecond */
    assert_false(is_here(&object));
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_true(is_here(&object));
    write_text(in_cache("new"), "jello"); /* another file of that size and time */
    assert_int_equal(utimensat(AT_FDCWD, in_cache("new"), times, 0), 0);
    char new[PATH_MAX + 64];
    snprintf(new, sizeof new, "%s", in_cache("new"));
    assert_int_equal(rename(new, path), 0);
    assert_false(is_here(&object));
    write_copy("train.bin", "hello", NULL);
    assert_int_equal(rename(path, new), 0); /* a link to that very file */
    assert_int_equal(symlink(new, path), 0);
    assert_false(is_here(&object));
}

/* The metadata may be anything after a crash. */
static void what_is_known_is_damaged(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "{", "[]", "null", "{}", "{\"etag\": 1}", "\xff", "{\"etag\": \"\\\"d41d8\\\"\"}"};
    open_cache();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_copy("train.bin", "hello", NULL);
        write_text(in_cache("train.bin.entrain"), texts[i]);
        assert_false(is_here(&object));
    }
    write_copy("train.bin", "hello", NULL);
    assert_int_equal(unlink(in_cache("train.bin.entrain")), 0);
    assert_false(is_here(&object));
    assert_int_equal(mkdir(in_cache("train.bin.entrain"), 0700), 0);
    assert_false(is_here(&object));
}

static void a_part_that_is_here(void **state)
{
    (void)state;
    static const struct {
        const char *of, *part;
        uint64_t have;
    } parts[] = {
        {"{\"etag\": \"\\\"d41d8\\\"\", \"size\": 5, \"boot\": \"%s\"}", "hel", 3},
        {"{\"etag\": \"\\\"d41d8\\\"\", \"size\": 5, \"boot\": \"%s\"}", "hello", 5},
        {"{\"etag\": \"\\\"d41d8\\\"\", \"size\": 5, \"boot\": \"an earlier one\"}", "hello", 0},
        {"{\"etag\": \"\\\"d41d8\\\"\", \"size\": 5, \"boot\": \"%s\"}", "hello!",
         0}, /* more than there is */
        {"{\"etag\": \"\\\"d41d9\\\"\", \"size\": 5, \"boot\": \"%s\"}", "hel", 0},
        {"{\"etag\": \"\\\"d41d8\\\"\", \"size\": 6, \"boot\": \"%s\"}", "hel", 0},
        {"{\"size\": 5, \"boot\": \"%s\"}", "hel", 0},
        {"{", "hel", 0},
    };
    char of[200], boot[64] = "";
    FILE *file_of_boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    assert_non_null(file_of_boot);
    assert_int_equal(fscanf(file_of_boot, "%63s", boot), 1);
    fclose(file_of_boot);
    open_cache();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        eni_cache_file file = {.object = &object, .name = "train.bin"};
        snprintf(of, sizeof of, parts[i].of, boot);
        write_text(in_cache(".train.bin.of"), of);
        write_text(in_cache(".train.bin.part"), parts[i].part);
        assert_int_equal(eni_cache_look(&cache, &file, 1), EN_OK);
        assert_false(file.is_here);
        assert_int_equal(file.have, parts[i].have);
        assert_int_equal(is_there(in_cache(".train.bin.part")), parts[i].have > 0); /* useless, so removed */
        assert_int_equal(is_there(in_cache(".train.bin.of")), parts[i].have > 0);
    }
    char target[PATH_MAX + 64];
    snprintf(target, sizeof target, "%s", in_cache("elsewhere"));
    eni_cache_file file = {.object = &object, .name = "train.bin"};
    write_text(target, "hel");
    write_text(in_cache(".train.bin.of"), parts[0].of);
    assert_int_equal(symlink(target, in_cache(".train.bin.part")), 0);
    assert_int_equal(eni_cache_look(&cache, &file, 1), EN_OK);
    assert_int_equal(file.have, 0);
    assert_true(is_there(target));
}

static void what_does_not_fit_is_said_before(void **state)
{
    (void)state;
    const eni_object huge[2] = {{.key = "a", .etag = ETAG, .size = UINT64_C(1) << 60},
                                {.key = "b", .etag = ETAG, .size = 1000}};
    eni_cache_file files[2] = {{.object = &huge[1], .name = "b"}, {.object = &huge[0], .name = "a"}};
    open_cache();
    assert_int_equal(eni_cache_look(&cache, files, 1), EN_OK);
    assert_int_equal(eni_cache_look(&cache, files, 2), EN_EINVAL);
    assert_int_equal(said.lines, 1);
    assert_non_null(strstr(said.text, "1152921504606.8 MB"));
    assert_non_null(strstr(said.text, URL));
    assert_non_null(strstr(said.text, "--clear-cache"));
}

/* ---- removing ---- */

static void what_is_not_among_them_goes(void **state)
{
    (void)state;
    static const char *const stays[] = {"train.bin", "train.bin.entrain", ".lock", "not-ours", ".entrain"};
    open_cache();
    const eni_cache_file files[] = {{.object = &object, .name = "train.bin"}};
    write_copy("train.bin", "hello", NULL);
    write_copy("test.bin", "hello", NULL);
    write_copy("train.bin.entrain.old", "hello", NULL);
    write_text(in_cache("not-ours"), "");
    write_text(in_cache(".entrain"), "");
    write_text(in_cache("alone.entrain"), "{}");
    write_text(in_cache(".test.bin.part"), "hel");
    write_text(in_cache(".test.bin.of"), "{}");
    eni_cache_tidy(&cache, files, 1);
    for (size_t i = 0; i < sizeof stays / sizeof stays[0]; i++)
        if (!is_there(in_cache(stays[i]))) fail_msg("%s is gone", stays[i]);
    assert_false(is_there(in_cache("test.bin")));
    assert_false(is_there(in_cache(".test.bin.part")) || is_there(in_cache(".test.bin.of")));
    assert_false(is_there(in_cache("test.bin.entrain")));
    assert_false(is_there(in_cache("train.bin.entrain.old")));
    assert_false(is_there(in_cache("alone.entrain")));
    assert_true(is_here(&object));
}

static void clear_leaves_what_is_fetched(void **state)
{
    (void)state;
    char held[PATH_MAX], other[PATH_MAX];
    uint64_t bytes;
    eni_cache second = {0};
    assert_int_equal(eni_cache_open(root, "oss://bucket.h/data", NULL, &second), EN_OK);
    snprintf(other, sizeof other, "%s", second.path);
    cache = second;
    write_text(in_cache("train.bin"), "hello");
    write_text(in_cache(".train.bin.part"), "hel");
    assert_int_equal(mkdir(in_cache("folder"), 0700), 0);
    write_text(in_cache("folder/file"), "12");
    assert_int_equal(symlink("/etc", in_cache("link")), 0);
    eni_cache_close(&second);
    open_cache();
    snprintf(held, sizeof held, "%s", cache.path);
    write_text(in_cache("train.bin"), "hello");
    assert_int_equal(eni_cache_clear(root, &bytes), EN_OK);
    assert_int_equal(bytes, 5 + 3 + 2);
    assert_false(is_there(other));
    assert_true(is_there("/etc"));
    assert_true(is_there(in_cache("train.bin")));
    assert_int_equal(said.lines, 1);
    assert_non_null(strstr(said.text, held));
    assert_non_null(strstr(said.text, "another process"));
    eni_cache_close(&cache);
    assert_int_equal(eni_cache_clear(root, &bytes), EN_OK);
    assert_int_equal(bytes, 5);
    assert_false(is_there(held));
    assert_true(is_there(root));
    assert_int_equal(eni_cache_clear(root, &bytes), EN_OK); /* nothing is left */
    assert_int_equal(bytes, 0);
    snprintf(cache.path, sizeof cache.path, "%s/.gone-12345", root); /* left by a process that was killed */
    assert_int_equal(mkdir(cache.path, 0700), 0);
    write_text(in_cache("train.bin"), "hello");
    assert_int_equal(eni_cache_clear(root, &bytes), EN_OK);
    assert_int_equal(bytes, 5);
    assert_false(is_there(cache.path));
}

/* Only folders below the cache are its own. */
static void clear_follows_no_link(void **state)
{
    (void)state;
    char outside[] = "/tmp/entrain-cache-XXXXXX", path[128];
    uint64_t bytes;
    assert_non_null(mkdtemp(outside));
    snprintf(path, sizeof path, "%s/file", outside);
    write_text(path, "hello");
    char link[96];
    snprintf(link, sizeof link, "%s/s3-bucket-0123456789abcdef", root);
    assert_int_equal(symlink(outside, link), 0);
    open_cache();
    assert_int_equal(symlink(outside, in_cache("inside")), 0);
    eni_cache_close(&cache);
    assert_int_equal(eni_cache_clear(root, &bytes), EN_OK);
    assert_true(is_there(path));
    assert_int_equal(bytes, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(outside), 0);
}

/* Our parent may have closed stdin. */
static void descriptor_0_is_one(void **state)
{
    (void)state;
    const int kept = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    open_cache();
    const bool has_it = cache.fd == STDIN_FILENO || cache.lock_fd == STDIN_FILENO;
    eni_cache_close(&cache);
    const bool is_open = fcntl(STDIN_FILENO, F_GETFD) >= 0;
    if (kept >= 0) dup2(kept, STDIN_FILENO), close(kept);
    assert_true(has_it);
    assert_false(is_open);
}

static void clear_of_what_is_not_there(void **state)
{
    (void)state;
    char path[96];
    uint64_t bytes = 1;
    snprintf(path, sizeof path, "%s/none", root);
    assert_int_equal(eni_cache_clear(path, &bytes), EN_OK);
    assert_int_equal(bytes, 0);
    assert_false(is_there(path));
    assert_int_equal(chmod(root, 0777), 0);
    assert_int_equal(eni_cache_clear(root, &bytes), EN_EINVAL);
    assert_non_null(strstr(said.text, "0777"));
}

#define A_TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {A_TEST(a_folder_for_its_user_alone),
                                       A_TEST(a_folder_for_each_url_and_endpoint),
                                       A_TEST(modes_of_a_folder),
                                       A_TEST(a_folder_of_another_user),
                                       A_TEST(what_is_no_folder),
                                       A_TEST(a_lock_that_is_a_link),
                                       A_TEST(a_second_process_waits),
                                       A_TEST(a_folder_that_is_removed_meanwhile),
                                       A_TEST(a_process_that_is_killed),
                                       A_TEST(a_copy_is_known_again),
                                       A_TEST(what_makes_a_copy_another),
                                       A_TEST(a_copy_that_was_changed_here),
                                       A_TEST(what_is_known_is_damaged),
                                       A_TEST(a_part_that_is_here),
                                       A_TEST(what_does_not_fit_is_said_before),
                                       A_TEST(what_is_not_among_them_goes),
                                       A_TEST(clear_leaves_what_is_fetched),
                                       A_TEST(clear_follows_no_link),
                                       A_TEST(descriptor_0_is_one),
                                       A_TEST(clear_of_what_is_not_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
