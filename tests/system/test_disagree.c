/* test_disagree.c - ranks, and psd, that were started with different options are refused before step 0: one sentence
 * with the key, both values and both ranks, and exit 2 for every process. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/system/bad_files.h"
#include "tests/system/run.h"
#include "tests/system/side_by_side.h"

/* Promise: Ranks, or psd and workers, that differ in anything that matters never begin; they exit with 2
 * and name both values. */

#define JOB                                                                                                  \
    "--device=ref --threads=1 --quiet --steps=3 --limit-train-samples=16 --limit-test-samples=8 "            \
    "--log-level=error"

/* Flags for each of two ranks; '~' is the test's folder. `says` has the key and both values. */
typedef struct difference {
    const char *what;
    const char *flags[2];
    const char *says[3];
} difference;

static char files[64]; /* the test's folder, which all cases read */

static void expand(const char *args, char *out, size_t bytes)
{
    size_t n = 0;
    for (; *args != 0 && n + 1 < bytes; args++)
        n += (size_t)(*args == '~' ? snprintf(out + n, bytes - n, "%s", files)
                                   : snprintf(out + n, bytes - n, "%c", *args));
}

/* Whether a line has all the words, `who` and rank 0. */
static int tells(const process *p, const char *const *words, const char *who)
{
    const char *text = process_err(p);
    for (const char *line = text; *line != 0;) {
        char copy[2000];
        size_t length = strcspn(line, "\n");
        snprintf(copy, sizeof copy, "%.*s", (int)length, line);
        const char *said = log_message(copy);
        int missing = !text_has(said, who) || !text_has(said, "rank 0");
        for (int i = 0; i < 3 && words[i] != NULL; i++)
            missing += !text_has(said, words[i]);
        if (missing == 0) return 1;
        line += length + (line[length] == '\n');
    }
    return 0;
}

static void expect(process *all, int n, const difference *d, const char *who)
{
    for (int i = 0; i < n; i++) {
        int code = process_wait(&all[i], GUARD);
        if (code != 2 || !tells(&all[i], d->says, who))
            fail_msg("%s, process %d: exit %d; it should say %s, %s and %s with the ranks:\n%s", d->what, i,
                     code, d->says[0], d->says[1], d->says[2] != NULL ? d->says[2] : "",
                     process_err(&all[i]));
    }
    process_nobody_left(GUARD);
}

static void start_ranks(process *ranks, const difference *d, const char *common)
{
    for (int r = 0; r < 2; r++) {
        char flags[1200];
        expand(d->flags[r], flags, sizeof flags);
        process_start(&ranks[r], "worker", NULL, "%s --rank=%d --world-size=2 " JOB " %s", common, r, flags);
    }
}

/* Two workers of a ring. */
static void disagree(const void *cases, size_t i)
{
    const difference *d = (const difference *)cases + i;
    process ranks[2];
    char common[96];
    snprintf(common, sizeof common, "--rendezvous=tcp://127.0.0.1:%d", free_port());
    start_ranks(ranks, d, common);
    expect(ranks, 2, d, "rank 1");
}

typedef struct psd_difference {
    difference workers;
    const char *program, *flags, *who; /* psd's; the process that differs from rank 0 */
} psd_difference;

static void disagree_with_psd(const void *cases, size_t i)
{
    const psd_difference *d = (const psd_difference *)cases + i;
    process all[3];
    char common[160], address[64];
    process_start(&all[2], d->program, NULL, "--world-size=2 --listen=tcp://127.0.0.1:0 --log-level=error %s",
                  d->flags);
    const char *line = wait_for_line(&all[2], "--server=", GUARD);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=%63s", address), 1);
    snprintf(common, sizeof common, "--server=%s", address);
    start_ranks(all, &d->workers, common);
    expect(all, 3, &d->workers, d->who);
}

static void test_workers(void **state)
{
    (void)state;
    snprintf(files, sizeof files, "%s", system_folder());
    write_set("set");
    write_set("other");
    patch_file("other/train-images-idx3-ubyte", 16 + 784, "\x08", 1); /* one pixel */
    static const difference all[] = {
        {"model",
         {"--strategy=ring --model=toy", "--strategy=ring --model=mlp --data=synthetic"},
         {"model", "toy", "mlp"}},
        {"batch",
         {"--strategy=ring --model=toy --batch-size=2", "--strategy=ring --model=toy --batch-size=4"},
         {"batch-size", "2", "4"}},
        {"strategy",
         {"--strategy=ring --model=toy", "--strategy=" EN_BUILD_DIR "/plugins/localsgd.so --model=toy"},
         {"strategy-name", "ring", "localsgd"}},
        {"options",
         {"--strategy=" EN_BUILD_DIR "/plugins/localsgd.so:period=2 --model=toy",
          "--strategy=" EN_BUILD_DIR "/plugins/localsgd.so:period=3 --model=toy"},
         {"strategy-options", "period=2", "period=3"}},
        {"groups",
         {"--strategy=grouped --model=toy --groups=2", "--strategy=grouped --model=toy --groups=0-1"},
         {"rank-groups", "0;1", "0-1"}},
        {"groups and hosts",
         {"--strategy=grouped --model=toy --groups=0-1", "--strategy=grouped --model=toy"},
         {"rank-groups", "0-1", "hosts"}},
        {"rate",
         {"--strategy=ring --model=toy --lr=0.125", "--strategy=ring --model=toy --lr=0.25"},
         {"lr", "0.125", "0.25"}},
        {"momentum",
         {"--strategy=ring --model=toy --momentum=0.5", "--strategy=ring --model=toy --momentum=0.75"},
         {"momentum", "0.5", "0.75"}},
        {"nesterov",
         {"--strategy=ring --model=toy", "--strategy=ring --model=toy --nesterov"},
         {"nesterov", "0", "1"}},
        {"weight decay",
         {"--strategy=ring --model=toy --weight-decay=0.25", "--strategy=ring --model=toy"},
         {"weight-decay", "0.25", "0"}},
        {"schedule",
         {"--strategy=ring --model=toy --lr-schedule=cosine", "--strategy=ring --model=toy"},
         {"lr-schedule", "cosine", "constant"}},
        {"warm-up",
         {"--strategy=ring --model=toy --lr-warmup=8", "--strategy=ring --model=toy"},
         {"lr-warmup", "8", "0"}},
        {"gamma",
         {"--strategy=ring --model=toy --lr-schedule=step --lr-step=8 --lr-gamma=0.5",
          "--strategy=ring --model=toy --lr-schedule=step --lr-step=8"},
         {"lr-gamma", "0.5", "0.1"}},
        {"lr step",
         {"--strategy=ring --model=toy --lr-schedule=step --lr-step=8",
          "--strategy=ring --model=toy --lr-schedule=step --lr-step=16"},
         {"lr-step", "8", "16"}},
        {"lr scale",
         {"--strategy=ring --model=toy --lr-scale=linear", "--strategy=ring --model=toy"},
         {"lr-scale", "linear", "none"}},
        {"seed",
         {"--strategy=ring --model=toy --seed=9007199254740992",
          "--strategy=ring --model=toy --seed=9007199254740993"},
         {"seed", "9007199254740992", "9007199254740993"}},
        {"steps", {"--strategy=ring --model=toy --epochs=2", "--strategy=ring --model=toy"}, {"epochs", "2"}},
        {"limit",
         {"--strategy=ring --model=toy", "--strategy=ring --model=toy --limit-train-samples=8"},
         {"limit-train-samples", "16", "8"}},
        {"augmentation",
         {"--strategy=ring --model=mlp --data=synthetic --augment=crop:28:4,flip",
          "--strategy=ring --model=mlp --data=synthetic --augment=crop:28:4"},
         {"augment", "crop:28:4,flip", "crop:28:4"}},
        {"normalisation",
         {"--strategy=ring --model=mlp --data=synthetic",
          "--strategy=ring --model=mlp --data=synthetic --normalize=0:1"},
         {"normalize", "0:1"}},
        {"sides",
         {"--strategy=ring --model=resnet18:width=2 --data=synthetic --resize=16",
          "--strategy=ring --model=resnet18:width=2 --data=synthetic --resize=24"},
         {"resize", "16", "24"}},
        {"shuffle",
         {"--strategy=ring --model=toy", "--strategy=ring --model=toy --no-shuffle"},
         {"shuffle", "on", "off"}},
        {"drop last",
         {"--strategy=ring --model=toy --batch-size=2 --drop-last",
          "--strategy=ring --model=toy --batch-size=2"},
         {"drop-last", "on", "off"}},
        {"sum order",
         {"--strategy=ring --model=toy --sum-order=ring", "--strategy=ring --model=toy"},
         {"sum-order", "ring", "rank"}},
        {"all-reduce",
         {"--strategy=ring --model=toy --allreduce=naive", "--strategy=ring --model=toy --allreduce=ring"},
         {"allreduce", "naive", "ring"}},
        {"transport",
         {"--strategy=ring --model=toy --transport=tcp", "--strategy=ring --model=toy"},
         {"transport", "tcp", "auto"}},
        {"buckets",
         {"--strategy=ring --model=toy --bucket-cap-mb=2", "--strategy=ring --model=toy"},
         {"bucket-cap-mb", "2", "1"}},
        {"network",
         {"--strategy=ring --model=toy --net=rate:200B", "--strategy=ring --model=toy --net=rate:300B"},
         {"net-rate", "200", "300"}},
        {"evaluation",
         {"--strategy=ring --model=toy --eval-every=8", "--strategy=ring --model=toy"},
         {"eval-every", "8", "0"}},
        {"data's name",
         {"--strategy=ring --model=mlp --data=synthetic --limit-train-samples=4 --limit-test-samples=2",
          "--strategy=ring --model=mlp --data=~/set --limit-train-samples=4 --limit-test-samples=2"},
         {"data", "synthetic", "folder"}},
        {"data's bytes",
         {"--strategy=ring --model=mlp --data=mnist --data-dir=~/set --limit-train-samples=4 "
          "--limit-test-samples=2",
          "--strategy=ring --model=mlp --data=mnist --data-dir=~/other --limit-train-samples=4 "
          "--limit-test-samples=2"},
         {"data-sha256"}},
        {"device", /* the last: not everywhere */
         {"--strategy=ring --model=toy", "--strategy=ring --model=toy --device=cpu"},
         {"device-type", "ref", "cpu"}},
    };
    enum { ALL = sizeof all / sizeof *all };
    const int n = has_device("cpu") ? ALL : ALL - 1;
    side_by_side((size_t)n, disagree, all);
    promise("two ranks that differ in one thing: %d of %d are told what, both values and both ranks; exit 2 "
            "for both",
            n, n);
}

/* Data may lie under another path on each rank. */
static void test_paths_may_differ(void **state)
{
    (void)state;
    process ranks[2];
    write_set("here");
    write_set("there");
    int port = free_port();
    for (int r = 0; r < 2; r++)
        process_start(
            &ranks[r], "worker", NULL,
            "--strategy=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=2 --model=mlp " JOB
            " --limit-train-samples=4 --limit-test-samples=2 --data=%s",
            port, r, at(r == 0 ? "here" : "there"));
    for (int r = 0; r < 2; r++) {
        int code = process_wait(&ranks[r], GUARD);
        if (code != 0) fail_msg("rank %d: exit %d\n%s", r, code, process_err(&ranks[r]));
    }
}

#define SYNC "--strategy=ps-sync --model=toy"

/* Ranks compare the protocol number, not the build. */
static void test_builds_may_differ(void **state)
{
    (void)state;
    process all[3];
    const int port = free_port();
    process_start(&all[2], "psd_of_tomorrow", NULL,
                  "--world-size=2 --listen=tcp://127.0.0.1:%d --strategy=ps-sync --log-level=error", port);
    for (int r = 0; r < 2; r++)
        process_start(&all[r], r == 0 ? "worker" : "worker_of_tomorrow", NULL,
                      "--server=tcp://127.0.0.1:%d --rank=%d --world-size=2 " JOB " " SYNC, port, r);
    for (int i = 0; i < 3; i++)
        if (process_wait(&all[i], GUARD) != 0) fail_msg("process %d:\n%s", i, process_err(&all[i]));
}

static void test_psd(void **state)
{
    (void)state;
    static const psd_difference all[] = {
        {{"lr", {SYNC " --lr=0.125", SYNC " --lr=0.25"}, {"lr", "0.125", "0.25"}},
         "psd",
         "--strategy=ps-sync",
         "rank 1"},
        {{"psd's options",
          {"--strategy=ssp:bound=2 --model=toy", "--strategy=ssp:bound=2 --model=toy"},
          {"strategy-options", "bound=3", "bound=2"}},
         "psd",
         "--strategy=ssp:bound=3",
         "psd"},
        {{"psd's order", {SYNC, SYNC}, {"sum-order", "ring", "rank"}},
         "psd",
         "--strategy=ps-sync --sum-order=ring",
         "psd"},
        {{"psd's network",
          {SYNC " --net=rate:200MB", SYNC " --net=rate:200MB"},
          {"net", "rate:100000000B", "rate:200000000B"}},
         "psd",
         "--strategy=ps-sync --net=rate:100MB",
         "psd"},
        {{"psd's transport", {SYNC, SYNC}, {"transport", "tcp", "auto"}},
         "psd",
         "--strategy=ps-sync --transport=tcp",
         "psd"},
    };
    side_by_side(sizeof all / sizeof *all, disagree_with_psd, all);
    promise("psd and workers that differ in one thing: %d of 5 told; exit 2 for all three",
            (int)(sizeof all / sizeof *all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_workers),
                                       cmocka_unit_test(test_paths_may_differ), cmocka_unit_test(test_psd),
                                       cmocka_unit_test(test_builds_may_differ)};
    return system_main(tests);
}
