/* test_arena.c - shared vectors: one memory in two processes, and nothing that an unauthenticated peer passes
 * is believed.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "runtime/collective/arena.h"

/* In place of the C library's, for arena.c: the pages of another kernel. */
static long page_bytes = 4096;
long sysconf(int name)
{
    return name == _SC_PAGESIZE ? page_bytes : -1;
}

/* What arm64's kernels with 16 and 64 KiB a page take: a place to map at that is a multiple of one, so that nothing else lies
 * on it. */
static void every_slot_has_pages_of_its_own(void **state)
{
    (void)state;
    for (page_bytes = 4096; page_bytes <= 65536; page_bytes *= 4)
        for (int shared = 0; shared < 2; shared++) {
            eni_arena *arena;
            assert_int_equal(eni_arena_open(1001, 3, shared, &arena), EN_OK);
            for (uint32_t slot = 0; slot < 3; slot++) {
                assert_int_equal((uintptr_t)eni_arena_at(arena, slot, 0) % (uintptr_t)page_bytes, 0);
                eni_arena_touch(arena, slot);
            }
            assert_int_equal(arena->bytes % (uint64_t)page_bytes, 0);
            eni_arena_close(arena);
        }
    page_bytes = 4096;
}

static void vectors_are_zero_apart_and_aligned(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        eni_arena *arena;
        assert_int_equal(eni_arena_open(1001, 3, shared, &arena), EN_OK);
        assert_int_equal(eni_arena_count(arena), 1001);
        assert_int_equal(eni_arena_nslots(arena), 3);
        assert_int_equal(eni_arena_fd(arena) >= 0, shared);
        for (uint32_t slot = 0; slot < 3; slot++) {
            float *vector = eni_arena_at(arena, slot, 0);
            assert_int_equal((uintptr_t)vector % 64, 0);
            assert_ptr_equal(eni_arena_at(arena, slot, 16), vector + 16);
            for (int i = 0; i < 1001; i++) {
                assert_true(vector[i] == 0);
                vector[i] = (float)slot + 1;
            }
        }
        for (int area = 0; area < ENI_ARENA_AREAS; area++) {
            uint8_t *bytes = eni_arena_area(arena, area);
            assert_int_equal((uintptr_t)bytes % 4096, 0);
            assert_int_equal(bytes[0] | bytes[ENI_AREA_BYTES - 1], 0);
        }
        assert_true(eni_arena_at(arena, 0, 0)[1000] == 1);
        eni_arena_close(arena);
    }
}

static void two_processes_see_one_memory(void **state)
{
    (void)state;
    eni_arena *own;
    assert_int_equal(eni_arena_open(3 << 20, 2, 1, &own), EN_OK); /* large enough for huge pages */
    const pid_t child = fork();
    if (child == 0) {
        eni_arena *theirs;
        if (eni_arena_map(eni_arena_fd(own), 3 << 20, &theirs) != EN_OK) _exit(1);
        *eni_arena_at(theirs, 1, (3 << 20) - 1) = 42;
        *(int *)eni_arena_area(theirs, 3) = 7;
        eni_arena_close(theirs);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(*eni_arena_at(own, 1, (3 << 20) - 1) == 42);
    assert_int_equal(*(int *)eni_arena_area(own, 3), 7);
    eni_arena_close(own);
}

static int memfd(size_t bytes, int seals, const char *begin)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (begin) assert_int_equal(write(fd, begin, 8), 8);
    if (seals) assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void refuses(int fd)
{
    eni_arena *arena = NULL;
    assert_int_equal(eni_arena_map(fd, 1000, &arena), EN_EPROTO);
    assert_null(arena);
    close(fd);
}

/* Mapped and touched, each of these would end in SIGBUS or in somebody else's bytes. */
static void unauthenticated_are_refused(void **state)
{
    (void)state;
    eni_log_set_level(-1);
    refuses(open("/dev/null", O_RDWR | O_CLOEXEC));
    refuses(memfd(1 << 20, 0, "enarena1"));             /* could be cut off under us */
    refuses(memfd(1 << 20, F_SEAL_SHRINK, NULL));       /* no header */
    refuses(memfd(1 << 20, F_SEAL_SHRINK, "enarena1")); /* a header of zeroes */
    refuses(memfd(4, F_SEAL_SHRINK, NULL));             /* not even a header */
    eni_arena *other;
    assert_int_equal(eni_arena_open(999, 2, 1, &other), EN_OK);
    refuses(dup(eni_arena_fd(other))); /* another model */
    eni_arena_close(other);
    eni_log_set_level(ENI_LOG_INFO);
}

static void absurd_sizes_are_refused(void **state)
{
    (void)state;
    eni_arena *arena = NULL;
    eni_log_set_level(-1);
    assert_int_equal(eni_arena_open(1000, 0, 1, &arena), EN_EINVAL);
    assert_int_equal(eni_arena_open(UINT64_MAX / 4, 1, 1, &arena), EN_EINVAL);
    assert_int_equal(eni_arena_open(UINT64_C(1) << 43, 3, 0, &arena), EN_EINVAL);
    assert_null(arena);
    eni_log_set_level(ENI_LOG_INFO);
}

static void a_reserved_vector_costs_nothing(void **state)
{
    (void)state;
    eni_arena *arena; /* 32 vectors of 1 GB; the machine has less */
    assert_int_equal(eni_arena_open(UINT64_C(1) << 28, ENI_ARENA_NSLOTS, 1, &arena), EN_OK);
    *eni_arena_at(arena, 31, (UINT64_C(1) << 28) - 1) = 1;
    eni_arena_close(arena);
}

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

/* What is touched costs nothing later, in the own process and where another has it mapped. */
static void a_touched_vector_faults_no_more(void **state)
{
    (void)state;
    enum { COUNT = 100 << 10, PAGE_FLOATS = 1024 };
    for (int shared = 0; shared < 2; shared++) {
        eni_arena *arena, *mapped = NULL;
        assert_int_equal(eni_arena_open(COUNT, 3, shared, &arena), EN_OK);
        *eni_arena_at(arena, 1, 7) = 42;
        eni_arena_touch(arena, 1);
        if (shared) {
            assert_int_equal(eni_arena_map(eni_arena_fd(arena), COUNT, &mapped), EN_OK);
            eni_arena_touch(mapped, 1);
        }
        volatile float *own = eni_arena_at(arena, 1, 0),
                       *other = mapped != NULL ? eni_arena_at(mapped, 1, 0) : own;
        const long before = faults();
        for (int i = 0; i < COUNT; i += PAGE_FLOATS) {
            own[i] = 1;
            other[i] += 1;
        }
        assert_true(faults() - before <= 2); /* of the test's own */
        assert_true(own[7] == 42 && own[0] == 2);
        eni_arena_close(mapped);
        eni_arena_close(arena);
    }
}

/* psd's weights lie over a slot, and then not any more. */
static void a_slot_is_covered_and_uncovered(void **state)
{
    (void)state;
    enum { N = 3000 };
    eni_arena *arena, *seen;
    assert_int_equal(eni_arena_open(N, 3, 1, &arena), EN_OK);
    assert_int_equal(eni_arena_map(eni_arena_fd(arena), N, &seen), EN_OK);
    const int fd = memfd(3 * 4096, F_SEAL_SHRINK, NULL);
    float *theirs = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(theirs != MAP_FAILED);
    for (uint32_t s = 0; s < 3; s++)
        *eni_arena_at(arena, s, N - 1) = (float)s;
    assert_int_equal(eni_arena_cover(arena, 1, fd), EN_OK);
    close(fd);
    theirs[0] = 5;
    theirs[N - 1] = 6;
    assert_true(*eni_arena_at(arena, 1, 0) == 5 && *eni_arena_at(arena, 1, N - 1) == 6);
    assert_true(*eni_arena_at(seen, 1, N - 1) == 1); /* others see what lies below */
    assert_true(*eni_arena_at(arena, 0, N - 1) == 0 && *eni_arena_at(arena, 2, N - 1) == 2);
    const pid_t child = fork(); /* it can only be read */
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka would go on with the next test */
        *eni_arena_at(arena, 1, 0) = 9;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(eni_arena_uncover(arena, 1), EN_OK);
    theirs[0] = 7;
    assert_true(*eni_arena_at(arena, 1, 0) == 5 && *eni_arena_at(arena, 1, N - 1) == 6);
    *eni_arena_at(arena, 1, 1) = 8; /* our own again, and everybody's who maps us */
    assert_true(*eni_arena_at(seen, 1, 1) == 8 && *eni_arena_at(seen, 1, 0) == 5);
    munmap(theirs, 3 * 4096);
    eni_arena_close(seen);
    eni_arena_close(arena);
}

static void no_unauthenticated_covers_a_slot(void **state)
{
    (void)state;
    eni_arena *arena;
    const int fds[] = {open("/dev/zero", O_RDWR | O_CLOEXEC), memfd(3 * 4096, 0, NULL),
                       memfd(2 * 4096, F_SEAL_SHRINK, NULL)};
    assert_int_equal(eni_arena_open(3000, 3, 1, &arena), EN_OK);
    *eni_arena_at(arena, 1, 0) = 1;
    eni_log_set_level(-1);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        assert_int_equal(eni_arena_cover(arena, 1, fds[i]), EN_EPROTO);
        close(fds[i]);
    }
    eni_log_set_level(ENI_LOG_INFO);
    assert_true(*eni_arena_at(arena, 1, 0) == 1);
    eni_arena_close(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_has_pages_of_its_own),
        cmocka_unit_test(vectors_are_zero_apart_and_aligned),
        cmocka_unit_test(two_processes_see_one_memory),
        cmocka_unit_test(unauthenticated_are_refused),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(a_reserved_vector_costs_nothing),
        cmocka_unit_test(a_touched_vector_faults_no_more),
        cmocka_unit_test(a_slot_is_covered_and_uncovered),
        cmocka_unit_test(no_unauthenticated_covers_a_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
