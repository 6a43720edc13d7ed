/* test_traces.c - replays the golden traces: what happened, when and in which order, in runs small enough to
 * follow by hand. A line is  ns TYPE rank peer bucket clock version base  (eni_sim_event).
 *
 * After a change that is meant:  test_strategies_traces --write tests/goldens/traces  and read the diff. */
#include "tests/strategies/sim_rig.h"

static const struct {
    const char *name, *spec;
    int nranks, nshards;
    uint64_t micro_batches;
    double slow;
    int local_size;
} traces[] = {
    {"ring", "ring", 2, 1, 4, 1.5},
    {"ps-sync", "ps-sync", 2, 2, 4, 1.5},
    {"ps-async", "ps-async", 2, 1, 6, 2.5},
    {"ssp", "ssp:bound=1", 2, 1, 8, 4},
    {"hybrid", "hybrid:ps=c", 2, 2, 4, 1.5},
    {"hierarchical", "hierarchical", 4, 1, 8, 1.5, 2},
    {"localsgd", RIG_PLUGINS "/localsgd.so:period=2", 2, 1, 8, 1.5},
    {"grouped", "grouped:period=2", 4, 1, 8, 1.5, 2},
};
enum { TRACES = sizeof traces / sizeof *traces };

typedef struct text {
    char line[8192];
    size_t length;
} text;

static void write_line(void *user, const eni_sim_event *e)
{
    static const char *const types[] = {"", "step", "push", "reply", "coll", "sendrecv", "finished"};
    text *t = user;
    t->length += (size_t)snprintf(t->line + t->length, sizeof t->line - t->length,
                                  "%lld %s %d %d %u %llu %llu %llu\n", (long long)e->at_ns, types[e->type],
                                  e->rank, e->peer, e->bucket, (unsigned long long)e->clock,
                                  (unsigned long long)e->version, (unsigned long long)e->base);
    assert_true(t->length < sizeof t->line);
}

static void make_trace(int i, text *out)
{
    rig r;
    memset(out, 0, sizeof *out);
    rig_init(&r, traces[i].spec, traces[i].nranks, traces[i].micro_batches);
    r.config.nshards = traces[i].nshards;
    r.config.local_size = traces[i].local_size;
    r.config.bucket_cap_bytes = 512; /* two buckets */
    rig_slow(&r, 1, traces[i].slow);
    r.config.trace = write_line;
    r.config.trace_user = out;
    rig_run(&r);
    rig_fini(&r);
}

static FILE *open_trace(const char *folder, int i, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.txt", folder, traces[i].name);
    FILE *file = fopen(path, mode);
    if (!file) fprintf(stderr, "cannot open %s\n", path);
    return file;
}

static void goldens_are_replayed(void **state)
{
    (void)state;
    for (int i = 0; i < TRACES; i++) {
        static text now, golden;
        make_trace(i, &now);
        FILE *file = open_trace(EN_SOURCE_DIR "/tests/goldens/traces", i, "r");
        assert_non_null(file);
        golden.length = fread(golden.line, 1, sizeof golden.line - 1, file);
        golden.line[golden.length] = 0;
        fclose(file);
        assert_true(golden.length > 100);
        assert_string_equal(golden.line, now.line);
    }
}

static int write_goldens(const char *folder)
{
    for (int i = 0; i < TRACES; i++) {
        static text now;
        make_trace(i, &now);
        FILE *file = open_trace(folder, i, "w");
        if (!file) return 1;
        fputs(now.line, file);
        if (fclose(file) != 0) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_goldens(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(goldens_are_replayed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
