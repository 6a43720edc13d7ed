/* test_refusal.c - wrong use ends with one sentence that says what is wrong, and a code that says whose fault
 * it is: 2 for the user's command, 1 for a run that failed. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: Wrong use ends with one sentence: exit 2 for the command, 1 for a run that failed. */

#define SHORT "--device=ref --model=mlp --data=synthetic --limit-test-samples=8 --steps=5 --quiet"

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text != 0; text++)
        n += *text == '\n';
    return n;
}

/* One line on stderr that holds `cause` and `remedy`; nothing on stdout. */
static void refuse(const char *program, const char *flags, int code, const char *cause, const char *remedy)
{
    process p;
    process_start(&p, program, NULL, "%s", flags);
    int got = process_wait(&p, 20);
    if (got != code || count_lines(process_err(&p)) != 1 || process_says(&p, cause, remedy) != 1)
        fail_msg("%s %s: exit %d, expected %d and one line with \"%s\" and \"%s\"; it said:\n%s", program,
                 flags, got, code, cause, remedy, process_err(&p));
    assert_string_equal(process_out(&p), "");
    process_nobody_left(5);
}

static void test_flags(void **state)
{
    (void)state;
    refuse("entrain", "run --stratgy=ring", 2, "--stratgy", "--strategy");
    refuse("entrain", "run --lr=fast", 2, "--lr", "number");
    refuse("entrain", "run --batch-size=0", 2, "--batch-size", "1");
    refuse("entrain", "run --strategy=rng", 2, "rng", "ring");
    refuse("entrain", "run --strategy=ssp:bond=2 " SHORT, 2, "bond", "bound");
    refuse("entrain", "run --strategy=ssp:bound=-1 " SHORT, 2, "bound", "0");
    refuse("entrain", "run --straggler=7:2 " SHORT, 2, "7:2", "rank");
    refuse("entrain", "run --config=/nowhere.yaml", 2, "/nowhere.yaml", "");
    refuse("entrain", "rum", 2, "rum", "--help");
    refuse("psd", "--strategy=ps-sync", 2, "workers", "--world-size");
    refuse("psd", "--strategy=ring --world-size=2", 2, "ring", "psd");
    refuse("worker", "--strategy=ps-sync --rank=0 --world-size=2 " SHORT, 2, "ps-sync", "--server=");
    promise("wrong flags, options, files and commands end with 2 and one sentence: 12 of 12");
}

/* Every rank says it, and the leader may add that the run is over. */
static void test_too_many_buckets(void **state)
{
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring --bucket-cap-mb=0.001 " SHORT);
    assert_int_equal(process_wait(&p, 20), 2);
    assert_in_range(process_says(&p, "cuts the model into 796 buckets", "larger --bucket-cap-mb"), 1, 2);
}

/* What a worker finds out when it starts. After the cause the leader may add that the run is over. */
static void test_found_out_by_worker(void **state)
{
    process p;
    (void)state;
    refuse("entrain", "run -n 1 --strategy=solo --model=nope --quiet", 2, "nope", "entrain models");
    refuse("entrain", "run -n 1 --strategy=solo --data=/nowhere --quiet", 2, "/nowhere", "--data");
    process_start(&p, "entrain", NULL, "run -n 1 --strategy=solo --init=/nowhere.st " SHORT);
    assert_int_equal(process_wait(&p, 20), 2);
    assert_int_equal(process_says(&p, "/nowhere.st", "No such file"), 1);
    assert_int_equal(count_lines(process_err(&p)), 1 + process_says(&p, "the run ends", ""));
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_plugin(void **state)
{
    char path[128], flags[512];
    (void)state;
    snprintf(path, sizeof path, "%s/text.so", system_folder());
    write_file(path, "this is no shared object\n");
    snprintf(flags, sizeof flags, "run --strategy=%s " SHORT, path);
    refuse("entrain", flags, 2, path, "not a shared object");
    snprintf(flags, sizeof flags, "run --strategy=%s/absent.so " SHORT, system_folder());
    refuse("entrain", flags, 2, "absent.so", "No such file");
}

/* Nobody listens there. With a token that was copied, and without. */
static void test_absent_server(void **state)
{
    char path[128], flags[512], address[40];
    (void)state;
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", free_port());
    snprintf(flags, sizeof flags,
             "--strategy=ps-sync --rank=0 --world-size=2 --server=%s --join-timeout=0.5s " SHORT, address);
    refuse("worker", flags, 2, "no token", "is psd running");
    process p;
    snprintf(path, sizeof path, "%s/token", system_folder());
    write_file(path, "00112233445566778899aabbccddeeff");
    process_start(&p, "/bin/chmod", NULL, "600 %s", path);
    assert_int_equal(process_wait(&p, 10), 0);
    process_start(&p, "worker", NULL, "%s --token-file=%s", flags, path);
    int code = process_wait(&p, 20);
    if ((code != 1 && code != 2) || process_says(&p, "127.0.0.1", "") < 1)
        fail_msg("an absent server: exit %d:\n%s", code, process_err(&p));
    promise("a server that does not exist: exit %d, \"%.90s\"", code, strchr(process_err(&p), ' ') + 1);
}

/* Ranks that were given other options than rank 0 are refused with both values, and so are all the others. */
static void mismatch(const char *key, const char *zero, const char *one)
{
    process ranks[2];
    int port = free_port();
    const char *values[] = {zero, one};
    for (int r = 0; r < 2; r++)
        process_start(
            &ranks[r], "worker", NULL,
            "--strategy=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=2 --%s=%s " SHORT, port,
            r, key, values[r]);
    for (int r = 0; r < 2; r++) {
        int code = process_wait(&ranks[r], 20);
        if (code != 2) fail_msg("rank %d ended with %d", r, code);
        if (process_says(&ranks[r], key, zero) < 1 || process_says(&ranks[r], key, one) < 1)
            fail_msg("rank %d should name --%s, %s and %s:\n%s", r, key, zero, one, process_err(&ranks[r]));
    }
    process_nobody_left(5);
    assert_int_equal(files_left("entrain"), 0);
}

static void test_mismatch(void **state)
{
    (void)state;
    mismatch("lr", "0.125", "0.25");
    mismatch("batch-size", "16", "32");
    mismatch("seed", "1", "2");
    promise("ranks with another lr, batch size or seed than rank 0's are refused with both values");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),         cmocka_unit_test(test_found_out_by_worker),
        cmocka_unit_test(test_plugin),        cmocka_unit_test(test_too_many_buckets),
        cmocka_unit_test(test_absent_server), cmocka_unit_test(test_mismatch)};
    return system_main(tests);
}
