/* test_checkpoint.c - a checkpoint comes back as it was written, or not at all: every flipped bit and every
 * cut is found; the folder keeps two generations; a disk that fails loses nothing that was good. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/checkpoint_name.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "models/formats/rows.h"
#include "models/formats/weights.h"
#include "rank/checkpoint.h"
#include "tests/heard.h"
#include "tests/network.h"

/* Promise: A damaged checkpoint is never used: every flipped bit and every truncation is found. */

static char dir[64];
static en_schema schema;

static int open_folder(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/entrain-test-checkpoint-XXXXXX");
    eni_log_set_level(-1);
    return mkdtemp(dir) == NULL || en_schema_init(network_named("toy"), &schema) != EN_OK;
}

static int close_folder(void **state)
{
    (void)state;
    char command[128];
    en_schema_fini(&schema);
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static void fill(float *flat, float base)
{
    for (uint32_t t = 0; t < schema.ntensors; t++)
        for (uint64_t i = 0; i < schema.tensors[t].count; i++)
            flat[schema.tensors[t].offset + i] = base + (float)i * 0.25f;
}

/* Two ranks with a vector and a state each. */
static eni_checkpoint made_up(uint64_t samples)
{
    eni_checkpoint c = {.samples = samples,
                        .step = 7,
                        .epoch = 1,
                        .micro = 14,
                        .plan_samples = 1000,
                        .nfacts = 2,
                        .facts = {{"model", "toy"}, {"seed", "3"}},
                        .version = "1.2.3",
                        .strategy = "ring",
                        .options = "period=8",
                        .device = "ref",
                        .world = 2,
                        .accumulate = 1,
                        .batch = 4,
                        .shards = 3,
                        .updates = 9,
                        .dropped = 1,
                        .train_ns = 123456789012,
                        .eval_ns = 5};
    strcpy(c.order_sha256, "abc");
    strcpy(c.init_sha256, "def");
    fill(eni_checkpoint_add(&c, &schema, "")->flat, 1);
    fill(eni_checkpoint_add(&c, &schema, "optimizer.momentum_buffer")->flat, -3);
    fill(eni_checkpoint_add(&c, &schema, "rank.1/center")->flat, 100);
    c.spans = eni_alloc_array(2, sizeof *c.spans);
    c.spans[0] = (eni_saved_span){0, 16, 7, 7, samples};
    c.spans[1] = (eni_saved_span){16, schema.count, 8, 7, samples + 1};
    c.nspans = 2;
    c.ranks = eni_alloc_array(2, sizeof *c.ranks);
    c.nranks = 2;
    for (uint8_t r = 0; r < 2; r++) {
        c.ranks[r] = (eni_rank_facts){{7, 28, 3, 2, 0.1 + r}, eni_alloc(5), 5, {0, 0, 0, 0}};
        if (r == 1) c.ranks[r].scale = (eni_scale_facts){32768, 1999, 4, 61};
        memcpy(c.ranks[r].state, (uint8_t[]){r, 0, 255, 1, 2}, 5);
    }
    c.history = eni_alloc_array(1, sizeof *c.history);
    c.history[0] = eni_strdup("/a \"b\"/c");
    c.nhistory = 1;
    return c;
}

static void write_one(uint64_t samples)
{
    char why[ENI_ST_WHY];
    eni_checkpoint c = made_up(samples);
    if (eni_checkpoint_write(&c, &schema, dir, why) != EN_OK) fail_msg("%s", why);
    eni_checkpoint_fini(&c);
}

static unsigned char *contents(uint64_t samples, size_t *size_out)
{
    char path[256], why[ENI_ST_WHY];
    unsigned char *bytes;
    eni_checkpoint_path(dir, samples, path, sizeof path);
    assert_int_equal(eni_st_contents(path, 1 << 20, &bytes, size_out, why), EN_OK);
    return bytes;
}

static void it_comes_back_as_it_was(void **state)
{
    (void)state;
    char path[256], why[ENI_ST_WHY];
    eni_checkpoint a = made_up(12800), b;
    assert_int_equal(eni_checkpoint_write(&a, &schema, dir, why), EN_OK);
    snprintf(path, sizeof path, "%s/checkpoint-000000012800.safetensors", dir);
    if (eni_checkpoint_read(path, &schema, &b, why) != EN_OK) fail_msg("%s", why);
    char *facts_a = eni_checkpoint_facts(&a), *facts_b = eni_checkpoint_facts(&b);
    assert_string_equal(facts_a, facts_b);
    assert_string_equal(a.digest, b.digest);
    for (uint32_t i = 0; i < a.nvectors; i++)
        assert_memory_equal(a.vectors[i].flat, eni_checkpoint_find(&b, a.vectors[i].name)->flat,
                            schema.count * sizeof(float));
    assert_memory_equal(a.ranks[1].state, b.ranks[1].state, 5);
    assert_true(b.ranks[0].scale.scale == 0 && b.ranks[1].scale.scale == 32768);
    assert_true(b.ranks[1].scale.good == 1999 && b.ranks[1].scale.overflows == 4 &&
                b.ranks[1].scale.samples == 61);
    assert_true(b.ranks[1].sum.last_loss == 1.1 && b.spans[1].samples == 12801);
    assert_string_equal(b.history[0], "/a \"b\"/c");
    free(facts_a);
    free(facts_b);
    eni_checkpoint_fini(&a);
    eni_checkpoint_fini(&b);
}

/* A run whose tensors lie in another order resumes it, and the reverse: the file is row-major. */
static void it_is_read_in_any_order(void **state)
{
    (void)state;
    char path[256], why[ENI_ST_WHY];
    en_model_tensor *t = &schema.tensors[0];
    const uint64_t rows = (uint64_t)t->shape[0], columns = (uint64_t)t->shape[1];
    eni_checkpoint a = made_up(6), b, again;
    eni_checkpoint_path(dir, 6, path, sizeof path);
    assert_int_equal(eni_checkpoint_write(&a, &schema, dir, why), EN_OK);
    assert_true(t->ndim == 2 && eni_rows_set_order(t, (const uint8_t[EN_MAX_DIMS]){1, 0}));
    if (eni_checkpoint_read(path, &schema, &b, why) != EN_OK) fail_msg("%s", why);
    for (uint32_t v = 0; v < a.nvectors; v++)
        for (uint64_t i = 0; i < t->count; i++)
            assert_true(b.vectors[v].flat[t->offset + i % columns * rows + i / columns] ==
                        a.vectors[v].flat[t->offset + i]);
    assert_int_equal(eni_checkpoint_write(&b, &schema, dir, why), EN_OK);
    assert_string_equal(b.digest, a.digest);
    memset(t->order, 0, sizeof t->order);
    if (eni_checkpoint_read(path, &schema, &again, why) != EN_OK) fail_msg("%s", why);
    for (uint32_t v = 0; v < a.nvectors; v++)
        assert_memory_equal(again.vectors[v].flat, a.vectors[v].flat, schema.count * sizeof(float));
    eni_checkpoint_fini(&a);
    eni_checkpoint_fini(&b);
    eni_checkpoint_fini(&again);
}

/* --init=CHECKPOINT and `entrain eval` take its weights. */
static void its_weights_are_read_as_weights(void **state)
{
    (void)state;
    char path[256];
    write_one(3);
    eni_checkpoint_path(dir, 3, path, sizeof path);
    eni_checkpoint c = made_up(3);
    float *flat = eni_alloc_array(schema.count, sizeof *flat);
    assert_int_equal(eni_weights_load(path, &schema, flat, NULL), EN_OK);
    assert_memory_equal(flat, eni_checkpoint_find(&c, "")->flat, schema.count * sizeof *flat);
    eni_free(flat);
    eni_checkpoint_fini(&c);
}

/* Running statistics lie beside the weights, under their own names, and nowhere else. */
static void a_state_comes_back_with_the_weights(void **state)
{
    (void)state;
    static const en_data_shape shape = {8, 8, 3, 10};
    char path[256], why[ENI_ST_WHY];
    en_schema normed, toy = schema;
    eni_st_file file;
    eni_checkpoint b;
    assert_int_equal(eni_network_schema("--model", "resnet18:width=2", &shape, &normed), EN_OK);
    schema = normed; /* of which made_up takes its vectors */
    eni_checkpoint a = made_up(5);
    schema = toy;
    snprintf(a.facts[0].value, sizeof a.facts[0].value, "%s", normed.spec);
    a.state = eni_alloc_array(normed.nstate, sizeof *a.state);
    en_schema_init_state(&normed, a.state);
    a.state[normed.buffers[0].offset] = 5;
    if (eni_checkpoint_write(&a, &normed, dir, why) != EN_OK) fail_msg("%s", why);
    eni_checkpoint_path(dir, 5, path, sizeof path);
    if (eni_checkpoint_read(path, &normed, &b, why) != EN_OK) fail_msg("%s", why);
    assert_memory_equal(a.state, b.state, normed.nstate * sizeof *a.state);
    assert_int_equal(eni_st_read(path, 1 << 22, &file), EN_OK);
    assert_non_null(eni_st_find(&file, "layer1.0.bn1.running_var"));
    assert_int_equal(file.ntensors, 3 * normed.ntensors + normed.nbuffers + 2);
    eni_st_close(&file);
    eni_checkpoint_fini(&b);
    float *flat = eni_alloc_array(normed.count, sizeof *flat),
          *stats = eni_alloc_array(normed.nstate, sizeof *stats);
    assert_int_equal(eni_weights_load(path, &normed, flat, stats), EN_OK);
    assert_memory_equal(a.state, stats, normed.nstate * sizeof *stats);
    eni_free(flat);
    eni_free(stats);
    eni_checkpoint_fini(&a);
    en_schema_fini(&normed);
}

static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    char why[ENI_ST_WHY];
    size_t size;
    eni_checkpoint c;
    write_one(1);
    unsigned char *bytes = contents(1, &size);
    assert_int_equal(eni_checkpoint_parse("f", bytes, size, &schema, &c, why), EN_OK);
    eni_checkpoint_fini(&c);
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (eni_checkpoint_parse("f", bytes, size, &schema, &c, why) != EN_EFORMAT)
            fail_msg("bit %zu of %zu was flipped and nobody saw it", bit, size * 8);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    printf("PROMISE a checkpoint of %zu bytes: all %zu flipped bits are found\n", size, size * 8);
    eni_free(bytes);
}

/* The cut file lies at the end of its own block: reading on is found by ASan. */
static void every_cut_is_found(void **state)
{
    (void)state;
    char why[ENI_ST_WHY];
    size_t size;
    eni_checkpoint c;
    write_one(1);
    unsigned char *bytes = contents(1, &size);
    for (size_t length = 0; length < size; length++) {
        unsigned char *cut = malloc(length > 0 ? length : 1);
        memcpy(cut, bytes, length);
        if (eni_checkpoint_parse("f", cut, length, &schema, &c, why) != EN_EFORMAT)
            fail_msg("the file was cut to %zu of %zu bytes and nobody saw it", length, size);
        free(cut);
    }
    printf("PROMISE a checkpoint of %zu bytes: all %zu truncations are found\n", size, size);
    eni_free(bytes);
}

/* Facts that a seal would cover all the same: whoever wrote them, they are checked. */
static void facts_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const char *const changes[][3] = {
        {"\"format\":2", "\"format\":3", "format 3"},
        {"\"samples\":5,", "\"samples\":-5,", "its facts: samples"},
        {"\"samples\":5,", "\"samples\":0.5,", "samples"},
        {"[0,16,", "[0,0,", "spans[0], 0 to 0"},
        {"[0,16,", "[0,999999,", "spans[0], 0 to 999999"},
        {"[0,16,", "[0,16,7,", "spans[0]"},
        {"[16,", "[15,", "spans[1], 15 to"},
        {"\"vectors\":[\"\",", "\"vectors\":[", "vectors"},
        {"\"state\":5", "\"state\":99999999", "99999999"},
        {"\"steps\":7", "\"steps\":\"7\"", "ranks[0].steps"},
        {"\"loss_scale\":[32768.0", "\"loss_scale\":[3.0", "ranks[1].loss_scale"},
        {"\"seed\":\"3\"", "\"seed\":3", "same.seed"},
        {"\"ranks\":[", "\"ranks\":3,\"x\":[", "ranks"},
        {"\"history\":[", "\"history\":[1,", "history[0]"},
        {"\"strategy\":\"ring\"", "\"strategy\":null", "strategy"}};
    eni_checkpoint c = made_up(5), got;
    char *facts = eni_checkpoint_facts(&c), why[ENI_ST_WHY];
    assert_int_equal(eni_checkpoint_take_facts(facts, &schema, &got, why), EN_OK);
    eni_checkpoint_fini(&got);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char changed[4096];
        const char *at = strstr(facts, changes[i][0]);
        if (at == NULL) fail_msg("%s is not in %s", changes[i][0], facts);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - facts), facts, changes[i][1],
                 at + strlen(changes[i][0]));
        if (eni_checkpoint_take_facts(changed, &schema, &got, why) == EN_OK)
            fail_msg("%s was taken", changes[i][1]);
        if (strstr(why, changes[i][2]) == NULL) fail_msg("%s: %s", changes[i][1], why);
    }
    assert_int_equal(eni_checkpoint_take_facts("[]", &schema, &got, why), EN_EFORMAT);
    free(facts);
    eni_checkpoint_fini(&c);
}

static void of_another_model_it_says_which(void **state)
{
    (void)state;
    char path[256], why[ENI_ST_WHY];
    en_schema other;
    eni_checkpoint c;
    write_one(1);
    eni_checkpoint_path(dir, 1, path, sizeof path);
    assert_int_equal(en_schema_init(network_named("mlp"), &other), EN_OK);
    assert_int_equal(eni_checkpoint_read(path, &other, &c, why), EN_EMISMATCH);
    assert_non_null(strstr(why, "--model=toy"));
    en_schema_fini(&other);
}

static void what_is_not_finite_is_not_written(void **state)
{
    (void)state;
    char why[ENI_ST_WHY];
    eni_checkpoint c = made_up(77);
    c.vectors[1].flat[0] = 1.0f / 0.0f;
    assert_int_equal(eni_checkpoint_write(&c, &schema, dir, why), EN_ENONFINITE);
    assert_non_null(strstr(why, "optimizer.momentum_buffer/"));
    eni_checkpoint_fini(&c);
    uint64_t found[8];
    size_t n = eni_checkpoint_list(dir, "", found, 8);
    for (size_t i = 0; i < n; i++)
        assert_true(found[i] != 77);
}

static void touch(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

/* One definition for who writes, uploads, resumes and removes them: nothing of a user's is taken for one. */
static void its_name_is_no_other(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_one, is_left;
    } names[] = {{"checkpoint-000000012800.safetensors", true, false},
                 {"checkpoint-1000000000000.safetensors", true, false}, /* thirteen digits */
                 {"checkpoint-000000012800.safetensors.tmp", false, true},
                 {"checkpoint-000000012800.safetensors.01ab.tmp", false, true},
                 {"checkpoint-000000012800.safetensors" ENI_RETIRED, false, true},
                 {"checkpoint-000000012800.safetensors-mine.tmp", false, false},
                 {"checkpoint-000000012800.safetensors.bak", false, false},
                 {"checkpoint-000000012800.pt", false, false},
                 {"checkpoint-12800.safetensors", false, false},
                 {"checkpoint-best.safetensors", false, false},
                 {"my-checkpoint-000000012800.safetensors", false, false}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t samples;
        if (eni_checkpoint_is(names[i].name, &samples) != names[i].is_one ||
            eni_checkpoint_is_left(names[i].name) != names[i].is_left)
            fail_msg("%s", names[i].name);
    }
}

static void the_folder_keeps_two_generations(void **state)
{
    (void)state;
    uint64_t found[8];
    for (uint64_t samples = 100; samples <= 500; samples += 100)
        write_one(samples);
    touch("checkpoint-000000000300.safetensors.0123456789abcdef.tmp");
    touch("checkpoint-12.safetensors");
    touch("notes.tmp");
    assert_int_equal(eni_checkpoint_sweep(dir), 1);
    assert_int_equal(eni_checkpoint_sweep(dir), 0);
    eni_checkpoint_retire(dir, 400); /* 500 is of another past: left alone */
    size_t n = eni_checkpoint_list(dir, "", found, 8);
    assert_int_equal(n, 4);
    assert_int_equal(found[0], 12800);
    assert_int_equal(found[1], 500);
    assert_int_equal(found[2], 400);
    assert_int_equal(found[3], 300);
    assert_int_equal(eni_checkpoint_list(dir, "", found, 2), 2); /* room for the newest only */
    assert_int_equal(found[0], 12800);
    assert_int_equal(found[1], 500);
    assert_int_equal(eni_checkpoint_list("/nowhere/at/all", "", found, 8), 0);
}

static bool is_there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static int lock(const char *name)
{
    char path[256];
    touch(name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    return fd;
}

/* A bucket that takes nothing: the one that is going up stays, the next ones make room, each with a word. */
static void at_most_eight_wait_for_the_bucket(void **state)
{
    (void)state;
    char name[64];
    heard h = {0};
    const int mirror = lock(ENI_MIRROR_LOCK);
    for (int n = 1; n <= 12; n++) {
        snprintf(name, sizeof name, "checkpoint-%012d.safetensors", 20000 + n);
        touch(name);
    }
    const int going_up = lock("checkpoint-000000020000.safetensors");
    eni_log_set_level(ENI_LOG_WARN);
    eni_log_set_sink(hear, &h);
    eni_checkpoint_retire(dir, 20012);
    eni_log_set_sink(NULL, NULL);
    eni_log_set_level(-1);
    for (int n = 0; n <= 12; n++) {
        const bool is_kept = n == 0 || n >= 11 - 7; /* 7 beside the one that goes up */
        snprintf(name, sizeof name, "checkpoint-%012d.safetensors%s", 20000 + n, n < 11 ? ENI_RETIRED : "");
        if (is_there(name) != is_kept) fail_msg("%s is %s", name, is_kept ? "gone" : "kept");
    }
    close(going_up);
    close(mirror);
    char command[200];
    snprintf(command, sizeof command, "rm %s/" ENI_MIRROR_LOCK " %s/checkpoint-0000000200*", dir, dir);
    assert_int_equal(system(command), 0);
    assert_true(h.lines > 0 && strstr(h.text, "--checkpoint-every") != NULL);
}

/* A folder that is gone stands for every disk that fails: the cause is told, nothing is left. */
static void a_write_that_fails_says_why(void **state)
{
    (void)state;
    char why[ENI_ST_WHY];
    eni_checkpoint c = made_up(1);
    assert_int_equal(eni_checkpoint_write(&c, &schema, "/nowhere/at/all", why), EN_ENOENT);
    assert_non_null(strstr(why, "/nowhere/at/all/checkpoint-000000000001"));
    eni_checkpoint_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_as_it_was),
        cmocka_unit_test(it_is_read_in_any_order),
        cmocka_unit_test(its_weights_are_read_as_weights),
        cmocka_unit_test(a_state_comes_back_with_the_weights),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(every_cut_is_found),
        cmocka_unit_test(facts_that_make_no_sense_are_refused),
        cmocka_unit_test(of_another_model_it_says_which),
        cmocka_unit_test(what_is_not_finite_is_not_written),
        cmocka_unit_test(its_name_is_no_other),
        cmocka_unit_test(the_folder_keeps_two_generations),
        cmocka_unit_test(at_most_eight_wait_for_the_bucket),
        cmocka_unit_test(a_write_that_fails_says_why),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
