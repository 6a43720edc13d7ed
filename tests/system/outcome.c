/* outcome.c - see outcome.h. */
#include "tests/system/outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *device = "ref";

void outcome_on(const char *name)
{
    device = name;
}

/* Behind the header of a safetensors file, whose own length is its first eight bytes. */
static void read_vectors(const char *path, outcome *o)
{
    uint64_t header = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL || fread(&header, sizeof header, 1, file) != 1) fail_msg("no checkpoint %s", path);
    fseek(file, 0, SEEK_END);
    o->bytes = (size_t)ftell(file) - sizeof header - header;
    o->vectors = malloc(o->bytes);
    fseek(file, (long)(sizeof header + header), SEEK_SET);
    assert_int_equal(fread(o->vectors, 1, o->bytes, file), o->bytes);
    fclose(file);
    unlink(path); /* many megabytes, of many runs */
}

static json_t *losses_of(int nranks)
{
    char path[160];
    size_t i;
    json_t *line, *losses = json_array();
    for (int r = 0; r < nranks; r++) {
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", train_out(), r);
        json_t *lines = read_lines(path);
        json_array_foreach(lines, i, line)
        {
            json_array_append(losses, json_object_get(line, "loss"));
            json_array_append(losses, json_object_get(line, "accuracy"));
        }
        assert_true(json_array_size(lines) > 0);
        json_decref(lines);
    }
    return losses;
}

outcome outcome_of(int w, int nstages, const char *job, const char *flags)
{
    outcome o;
    char path[256];
    json_t *r = train(120, "-n %d --device=%s --checkpoint-every=2epochs %s %s", w, device, job, flags);
    hashes_of(r, o.hashes);
    o.test_loss =
        number_at(r, "test_loss"); /* of batches that were under way together, the last one ragged */
    const json_t *pipeline = json_object_get(r, "pipeline");
    const int found = (int)json_integer_value(json_object_get(pipeline, "stages"));
    if (found != nstages) fail_msg("%s: %d stages, not %d", flags, found, nstages);
    size_t i;
    json_t *stage; /* each says where its part begins, the name of a layer or its kind */
    json_array_foreach(json_object_get(pipeline, "stage"), i, stage)
        assert_true(json_string_length(json_object_get(stage, "first")) > 0);
    json_array_foreach(json_object_get(pipeline, "cuts"), i, stage)
        assert_true(json_string_length(stage) > 0);
    json_decref(r);
    path_of_newest(train_out(), path);
    read_vectors(path, &o);
    o.losses = losses_of(w);
    return o;
}

void outcome_forget(outcome *o)
{
    free(o->vectors);
    json_decref(o->losses);
}

void expect_vectors(const outcome *base, outcome *o, const char *what)
{
    if (strcmp(base->hashes, o->hashes) != 0)
        fail_msg("%s, %s: it ends with %s, and should with %s", device, what, o->hashes, base->hashes);
    if (base->bytes != o->bytes || memcmp(base->vectors, o->vectors, o->bytes) != 0)
        fail_msg("%s, %s: the same weights, and another checkpoint", device, what);
    if (base->test_loss != o->test_loss)
        fail_msg("%s, %s: the test loss is %.9g, and should be %.9g", device, what, o->test_loss,
                 base->test_loss);
    outcome_forget(o);
}

void expect_same(const outcome *base, outcome *o, const char *what)
{
    if (!json_equal(base->losses, o->losses))
        fail_msg("%s, %s: its losses are\n%s\nand should be\n%s", device, what, json_dumps(o->losses, 0),
                 json_dumps(base->losses, 0));
    expect_vectors(base, o, what);
}
