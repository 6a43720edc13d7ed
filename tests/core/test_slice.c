/* Short slices are asked for, handed on to threads that are started, and given back. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
/* cmocka needs the four above */
#include <cmocka.h>

#include "core/slice.h"

/* The length of a slice in ns, as the kernel has it; 0: it has none to say. */
static uint64_t slice_ns(void)
{
    uint64_t attributes[7] = {0}; /* runtime is the fourth of eight bytes; see slice.c */
    if (syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) != 0) return 0;
    return attributes[3];
}

static void *note_slice(void *out)
{
    *(uint64_t *)out = slice_ns();
    return NULL;
}

static void short_slices_are_inherited_and_given_back(void **state)
{
    (void)state;
    const uint64_t usual = slice_ns();
    uint64_t child = 0;
    pthread_t thread;
    eni_slice_ask(1);
    const uint64_t after = slice_ns();
    assert_int_equal(pthread_create(&thread, NULL, note_slice, &child), 0);
    pthread_join(thread, NULL);
    eni_slice_ask(0);
    if (usual == 0) { /* an older kernel: nothing may have changed */
        assert_int_equal(after, 0);
        skip();
    }
    assert_true(after < usual);
    assert_int_equal(child, after);
    assert_int_equal(slice_ns(), usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_slices_are_inherited_and_given_back)};
    return cmocka_run_group_tests_name("core/slice", tests, NULL, NULL);
}
