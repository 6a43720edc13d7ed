/* test_weights.c - safetensors: what is written is read back, and what the format does not promise is
 * refused. */
#include "rig.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "models/formats/rows.h"
#include "models/formats/safetensors.h"
#include "models/formats/weights.h"
#include "tests/network.h"
#include "tests/mentions.h"

/* ---- a folder, a schema, the last line of the log ------------------------------------------------------ */

typedef struct fixture {
    char folder[64], path[80];
    en_schema schema;
    float *flat, *back;
    char line[512];
} fixture;

static void keep_line(void *user, int level, const char *subsystem, const char *text)
{
    (void)level;
    (void)subsystem;
    snprintf(user, sizeof((fixture *)NULL)->line, "%s", text);
}

static int open_fixture(void **state)
{
    static fixture f;
    f = (fixture){.folder = "/tmp/entrain-weights-XXXXXX"};
    if (mkdtemp(f.folder) == NULL) return -1;
    snprintf(f.path, sizeof f.path, "%s/w.safetensors", f.folder);
    assert_int_equal(en_schema_init(network_named("toy"), &f.schema), EN_OK);
    f.flat = eni_alloc_array(f.schema.count, sizeof *f.flat);
    f.back = eni_alloc_array(f.schema.count, sizeof *f.back);
    en_schema_init_param(&f.schema, 3, f.flat);
    eni_log_set_sink(keep_line, f.line);
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    eni_log_set_sink(NULL, NULL);
    unlink(f->path);
    const int left = rmdir(f->folder); /* fails if a temporary file was left behind */
    en_schema_fini(&f->schema);
    eni_free(f->flat);
    eni_free(f->back);
    return left;
}

static void says(const fixture *f, const char *words)
{
    if (!mentions(f->line, words)) fail_msg("\"%s\" is not in \"%s\"", words, f->line);
}

/* ---- round trip -------------------------------------------------------------------------------------- */

static void what_is_saved_is_loaded(void **state)
{
    fixture *f = *state;
    char before[ENI_DIGEST_HEX], after[ENI_DIGEST_HEX];
    memset(f->back, 0xff, f->schema.count * sizeof *f->back);
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_OK);
    assert_memory_equal(f->flat, f->back, f->schema.count * sizeof *f->flat);
    assert_int_equal(eni_weights_digest(&f->schema, f->flat, before), EN_OK);
    assert_int_equal(eni_weights_digest(&f->schema, f->back, after), EN_OK);
    assert_string_equal(before, after);
}

/* params_sha256 is the hash of the file's data, which follows its header without a gap. */
static void the_digest_is_of_the_files_data(void **state)
{
    fixture *f = *state;
    unsigned char bytes[4096];
    char of_file[ENI_DIGEST_HEX], of_flat[ENI_DIGEST_HEX];
    uint64_t header;
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);
    FILE *file = fopen(f->path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    memcpy(&header, bytes, sizeof header);
    assert_int_equal(size - 8 - header, 165 * sizeof(float)); /* 10 x 10 + 10 + 10 x 5 + 5 */
    assert_true(strstr((char *)bytes + 8, "\"__metadata__\":{\"format\":\"pt\"}") != NULL);
    assert_true(header % 8 == 0);
    eni_digest_of(bytes + 8 + header, size - 8 - header, of_file);
    assert_int_equal(eni_weights_digest(&f->schema, f->flat, of_flat), EN_OK);
    assert_string_equal(of_file, of_flat);
    f->flat[f->schema.tensors[1].offset + 10] = 5; /* padding is not part of it */
    assert_int_equal(eni_weights_digest(&f->schema, f->flat, of_flat), EN_OK);
    assert_string_equal(of_file, of_flat);
}

static void saving_replaces_whole_files(void **state)
{
    fixture *f = *state;
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);
    const float w = f->flat[0];
    f->flat[0] = NAN;
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_ENONFINITE);
    says(f, "net1.weight");
    f->flat[0] = w + 1;
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_OK);
    assert_true(f->back[0] == w); /* the old file is still there */
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_OK);
    assert_true(f->back[0] == w + 1);
}

/* A folder of that name is in the way: nothing is left behind (close_fixture looks). */
static void a_failed_save_leaves_nothing(void **state)
{
    fixture *f = *state;
    assert_int_equal(mkdir(f->path, 0700), 0);
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_EIO);
    says(f, f->path);
    assert_int_equal(rmdir(f->path), 0);
}

/* ---- a network with running statistics ------------------------------------------------------------------ */

typedef struct normed {
    en_schema schema;
    float *flat, *state, *flat_back, *state_back;
} normed;

static normed open_normed(void)
{
    static const en_data_shape shape = {8, 8, 3, 10};
    normed n = {0};
    assert_int_equal(eni_network_schema("--model", "resnet18:width=2,stem=cifar", &shape, &n.schema), EN_OK);
    n.flat = eni_alloc_array(n.schema.count, sizeof *n.flat);
    n.flat_back = eni_alloc_array(n.schema.count, sizeof *n.flat);
    n.state = eni_alloc_array(n.schema.nstate, sizeof *n.state);
    n.state_back = eni_alloc_array(n.schema.nstate, sizeof *n.state);
    en_schema_init_param(&n.schema, 3, n.flat);
    en_schema_init_state(&n.schema, n.state);
    return n;
}

static void close_normed(normed *n)
{
    en_schema_fini(&n->schema);
    eni_free(n->flat);
    eni_free(n->flat_back);
    eni_free(n->state);
    eni_free(n->state_back);
}

/* Of the first batch normalisation. */
static float *buffer_of(const normed *n, float *state, const char *name)
{
    for (uint32_t b = 0; b < n->schema.nbuffers; b++)
        if (strcmp(n->schema.buffers[b].name, name) == 0) return state + n->schema.buffers[b].offset;
    fail_msg("no buffer %s", name);
    return NULL;
}

/* Batch-norm statistics are in the file and have a hash of their own; that of the weights is not of them. */
static void buffers_are_saved_but_not_hashed(void **state)
{
    fixture *f = *state;
    normed n = open_normed();
    const int64_t batches = INT64_C(1) << 53;
    char params[2][ENI_DIGEST_HEX], buffers[2][ENI_DIGEST_HEX];
    assert_int_equal(n.schema.ntensors + n.schema.nbuffers, 122);
    assert_int_equal(eni_weights_digest(&n.schema, n.flat, params[0]), EN_OK);
    eni_buffers_digest(&n.schema, n.state, buffers[0]);
    memcpy(buffer_of(&n, n.state, "bn1.num_batches_tracked"), &batches, sizeof batches);
    eni_buffers_digest(&n.schema, n.state, buffers[1]);
    assert_string_not_equal(buffers[0], buffers[1]);
    buffer_of(&n, n.state, "bn1.running_mean")[1] = 4;
    assert_int_equal(eni_weights_save(f->path, &n.schema, n.flat, n.state), EN_OK);
    memset(n.flat_back, 0x5a, n.schema.count * sizeof *n.flat);
    memset(n.state_back, 0x5a, n.schema.nstate * sizeof *n.state);
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_OK);
    assert_memory_equal(n.flat, n.flat_back, n.schema.count * sizeof *n.flat);
    assert_memory_equal(n.state, n.state_back, n.schema.nstate * sizeof *n.state);
    assert_int_equal(eni_weights_digest(&n.schema, n.flat_back, params[1]), EN_OK);
    assert_string_equal(params[0], params[1]);
    buffer_of(&n, n.state, "bn1.running_var")[1] = -0.25f;
    assert_int_equal(eni_weights_save(f->path, &n.schema, n.flat, n.state), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_EFORMAT);
    says(f, "bn1.running_var|element 1|-0.25");
    buffer_of(&n, n.state, "bn1.running_var")[0] = NAN;
    assert_int_equal(eni_weights_save(f->path, &n.schema, n.flat, n.state), EN_ENONFINITE);
    says(f, "bn1.running_var");
    close_normed(&n);
}

/* ---- another order of dimensions ------------------------------------------------------------------------ */

/* The same weights with those of the first convolution as PyTorch's channels_last has them. */
static void lay_channels_last(const normed *n, const float *flat, float *own_out)
{
    en_model_tensor *t = &n->schema.tensors[0];
    const int64_t *size = t->shape;
    assert_true(t->ndim == 4 && size[1] == 3 && size[2] == 3);
    assert_true(eni_rows_set_order(t, (const uint8_t[EN_MAX_DIMS]){0, 2, 3, 1}));
    memcpy(own_out, flat, n->schema.count * sizeof *flat);
    for (int64_t i = 0; i < (int64_t)t->count; i++) {
        const int64_t w = i % size[3], h = i / size[3] % size[2], c = i / size[3] / size[2] % size[1],
                      o = i / size[3] / size[2] / size[1];
        own_out[(int64_t)t->offset + ((o * size[2] + h) * size[3] + w) * size[1] + c] =
            flat[(int64_t)t->offset + i];
    }
}

static void files_are_row_major(void **state)
{
    fixture *f = *state;
    normed n = open_normed();
    const size_t bytes = n.schema.count * sizeof *n.flat;
    float *own = eni_alloc(bytes);
    char sha[2][ENI_DIGEST_HEX];
    assert_int_equal(eni_weights_digest(&n.schema, n.flat, sha[0]), EN_OK);
    lay_channels_last(&n, n.flat, own);
    assert_memory_not_equal(own, n.flat, bytes);
    assert_int_equal(eni_weights_digest(&n.schema, own, sha[1]), EN_OK);
    assert_string_equal(sha[0], sha[1]);
    assert_int_equal(eni_weights_save(f->path, &n.schema, own, n.state), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_OK);
    assert_memory_equal(n.flat_back, own, bytes);
    memset(n.schema.tensors[0].order, 0, EN_MAX_DIMS);
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_OK);
    assert_memory_equal(n.flat_back, n.flat, bytes);
    eni_free(own);
    close_normed(&n);
}

/* torch refuses an int64 that does not lie on 8 bytes of the file. */
static void int64_lies_on_eight_bytes(void **state)
{
    fixture *f = *state;
    normed n = open_normed();
    eni_st_file file;
    uint32_t counts = 0;
    assert_int_equal(eni_weights_save(f->path, &n.schema, n.flat, n.state), EN_OK);
    assert_int_equal(eni_st_read(f->path, 1 << 20, &file), EN_OK);
    for (uint32_t t = 0; t < file.ntensors; t++) {
        if (file.tensors[t].dtype != EN_I64) continue;
        assert_int_equal(((const char *)file.tensors[t].data - (const char *)file.bytes) % 8, 0);
        counts++;
    }
    assert_int_equal(counts, 20);
    eni_st_close(&file);
    close_normed(&n);
}

/* All of the network but the buffers whose names end so. */
static void save_without(const char *path, const normed *n, const char *end)
{
    eni_st_tensor entries[128];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n->schema.ntensors + n->schema.nbuffers; i++) {
        assert_int_equal(eni_weights_entry(&n->schema, i, n->flat, n->state, &entries[kept]), EN_OK);
        const char *name = entries[kept].name;
        const size_t length = strlen(name), n_end = strlen(end);
        if (length < n_end || strcmp(name + length - n_end, end) != 0) kept++;
    }
    assert_int_equal(eni_st_write(path, entries, kept, NULL, 0), EN_OK);
}

static void a_file_without_statistics_is_refused(void **state)
{
    fixture *f = *state;
    normed n = open_normed();
    int64_t batches = 7;
    save_without(f->path, &n, "layer1.0.bn2.running_var");
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_EMISMATCH);
    says(f, "layer1.0.bn2.running_var|resnet18|(2)");
    memcpy(buffer_of(&n, n.state_back, "bn1.num_batches_tracked"), &batches, sizeof batches);
    save_without(f->path, &n, "num_batches_tracked"); /* as converters leave it out */
    assert_int_equal(eni_weights_load(f->path, &n.schema, n.flat_back, n.state_back), EN_OK);
    memcpy(&batches, buffer_of(&n, n.state_back, "bn1.num_batches_tracked"), sizeof batches);
    assert_int_equal(batches, 0);
    close_normed(&n);
}

static void files_that_cannot_be_are_named(void **state)
{
    fixture *f = *state;
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_ENOENT);
    says(f, f->path);
    assert_int_equal(eni_weights_save("/nowhere/at/all.safetensors", &f->schema, f->flat, NULL), EN_ENOENT);
    says(f, "/nowhere/at/all.safetensors");
    assert_int_equal(eni_weights_load("/dev/null", &f->schema, f->back, NULL), EN_EIO);
    says(f, "regular file");
    assert_int_equal(mkfifo(f->path, 0600), 0);
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_EIO); /* and does not wait */
    unlink(f->path);
    const int fd = open(f->path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0); /* sparse: a terabyte of nothing */
    close(fd);
    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_EFORMAT);
    says(f, "at most");
}

/* ---- another network --------------------------------------------------------------------------------- */

static const en_layer wider_layers[] = {EN_LINEAR_RELU("net1", 12), EN_LINEAR("net2", 5), EN_MSE, EN_END};
static const en_layer longer_layers[] = {EN_LINEAR_RELU("net1", 10), EN_LINEAR_RELU("net2", 5),
                                         EN_LINEAR("net3", 5), EN_MSE, EN_END};
static const en_network wider = {.abi = EN_NETWORK_ABI,
                                 .size = sizeof(en_network),
                                 .name = "wider",
                                 .help = "",
                                 .input = {1, 1, 1, 10},
                                 .layers = wider_layers};
static const en_network longer = {.abi = EN_NETWORK_ABI,
                                  .size = sizeof(en_network),
                                  .name = "longer",
                                  .help = "",
                                  .input = {1, 1, 1, 10},
                                  .layers = longer_layers};

static void another_network_is_refused_with_both_shapes(void **state)
{
    fixture *f = *state;
    en_schema other;
    float weights[1024];
    memset(weights, 0x5a, sizeof weights);
    const float untouched = weights[0];
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);

    assert_int_equal(en_schema_init(&wider, &other), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &other, weights, NULL), EN_EMISMATCH);
    says(f, "net1.weight|(10, 10)|wider|(12, 10)");
    en_schema_fini(&other);

    assert_int_equal(en_schema_init(&longer, &other), EN_OK);
    assert_int_equal(eni_weights_load(f->path, &other, weights, NULL), EN_EMISMATCH);
    says(f, "net3.weight|longer|(5, 5)");
    for (int i = 0; i < 1024; i++)
        assert_true(weights[i] == untouched);
    en_schema_init_param(&other, 1, weights);
    assert_int_equal(eni_weights_save(f->path, &other, weights, NULL), EN_OK);
    en_schema_fini(&other);

    assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_EMISMATCH);
    says(f, "net3.weight|(5, 5)|toy");
}

/* What DistributedDataParallel, torch.compile and both put in front of every name; and what neither does. */
static void wrapped_names_are_told(void **state)
{
    fixture *f = *state;
    static const char *const prefixes[] = {"module.", "_orig_mod.", "module._orig_mod.", "backbone.",
                                           "module.backbone."};
    char names[8][64], expected[100];
    for (size_t p = 0; p < 5; p++) {
        eni_st_tensor entries[8];
        for (uint32_t i = 0; i < f->schema.ntensors; i++) {
            assert_int_equal(eni_weights_entry(&f->schema, i, f->flat, NULL, &entries[i]), EN_OK);
            snprintf(names[i], sizeof names[i], "%s%.40s", prefixes[p], entries[i].name);
            entries[i].name = names[i];
        }
        assert_int_equal(eni_st_write(f->path, entries, f->schema.ntensors, NULL, 0), EN_OK);
        assert_int_equal(eni_weights_load(f->path, &f->schema, f->back, NULL), EN_EMISMATCH);
        if (p > 2) {
            says(f, "net1.weight|toy|(10, 10)");
            continue;
        }
        snprintf(expected, sizeof expected, "net1.weight|%snet1.weight", prefixes[p]);
        says(f, expected);
        says(f, "model.module.state_dict()");
    }
}

/* ---- malformed --------------------------------------------------------------------------------------- */

#define ENTRY(name, shape, begin, end)                                                                       \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

#define INT64(name, shape) "\"" name "\":{\"dtype\":\"I64\",\"shape\":" shape ",\"data_offsets\":[0,8]}"

/* A file with this header and so many bytes of zeros. */
static en_status parse(const char *header, size_t data_bytes, uint64_t claimed)
{
    unsigned char bytes[1024] = {0};
    const size_t length = strlen(header);
    eni_st_file file = {0};
    memcpy(bytes, &claimed, sizeof claimed);
    memcpy(bytes + 8, header, length);
    const en_status st = eni_st_parse("f", bytes, 8 + length + data_bytes, &file);
    eni_st_close(&file);
    return st;
}

static void malformed_files_are_refused(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("a", "[2]", "0", "8") "}", 8, "header|duplicate"},
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("b", "[2]", "4", "12") "}", 12, "tensor b|overlap"},
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("b", "[1]", "12", "16") "}", 16, "tensor b|hole"},
        {"{" ENTRY("a", "[1]", "4", "8") "}", 8, "tensor a|hole"},
        {"{" ENTRY("a", "[2]", "0", "8") "}", 12, "4 bytes|last tensor"},
        {"{" ENTRY("a", "[2]", "0", "8") "}", 4, "[0, 8]|4 bytes of data"},
        {"{" ENTRY("a", "[2]", "8", "0") "}", 8, "data_offsets"},
        {"{" ENTRY("a", "[2]", "-8", "0") "}", 8, "data_offsets"},
        {"{" ENTRY("a", "[2]", "0", "8.0") "}", 8, "data_offsets"},
        {"{" ENTRY("a", "[2]", "0", "8,9") "}", 8, "data_offsets"},
        {"{" ENTRY("a", "[3]", "0", "8") "}", 8, "(3)|8 bytes"},
        {"{" ENTRY("a", "[1]", "0", "5") "}", 5, "(1)|5 bytes"},
        {"{" ENTRY("a", "[-2]", "0", "8") "}", 8, "side 0"},
        {"{" ENTRY("a", "[2.0]", "0", "8") "}", 8, "side 0"},
        {"{" ENTRY("a", "[4294967296,4294967296]", "0", "0") "}", 0, "side 1"},
        {"{" ENTRY("a", "[4611686018427387905]", "0", "4") "}", 4, "(4611686018427387905)|4 bytes"},
        {"{" ENTRY("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "8 sides"},
        {"{" ENTRY("a", "7", "0", "4") "}", 4, "shape|list"},
        {"{" ENTRY("a\\u001b[2J", "[1]", "0", "4") "}", 4, "control characters"},
        {"{" ENTRY("", "[1]", "0", "4") "}", 4, "empty"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "dtype F16"},
        {"{" INT64("a", "[]") "}", 8, "tensor a|dtype I64|F32|num_batches_tracked|.float()"},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "BF16|F32|.float()"},
        {"{" INT64("a.num_batches_tracked", "[1]") "}", 8, "num_batches_tracked|(1)|()"},
        {"{" INT64("xnum_batches_tracked", "[]") "}", 8, "dtype I64"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "dtype, shape and data_offsets"},
        {"{\"a\":[]}", 0, "dtype, shape and data_offsets"},
        {"{\"__metadata__\":7}", 0, "__metadata__|object"},
        {"{\"__metadata__\":{\"a\":7}}", 0, "__metadata__|text"},
        {"[\"a\"]", 0, "header|{"},
        {"{\"a\"", 0, "header|byte"},
        {"{} x", 0, "header|byte"},
        {"", 0, "safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f->line[0] = '\0';
        assert_int_equal(parse(cases[i].header, cases[i].data, strlen(cases[i].header)), EN_EFORMAT);
        if (!mentions(f->line, cases[i].says)) fail_msg("case %zu says \"%s\"", i, f->line);
    }
}

static void lengths_that_lie_are_refused(void **state)
{
    (void)state;
    static const uint64_t lies[] = {
        0, 1, 3, 1000, ENI_ST_MAX_HEADER + 1, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++)
        assert_int_equal(parse("{}  ", 0, lies[i]), EN_EFORMAT);
    assert_int_equal(parse("{}  ", 0, 4), EN_OK); /* padding is spaces */
    eni_st_file file;
    const uint64_t longest = ENI_ST_MAX_HEADER;
    char *bytes = malloc(8 + longest + 1);
    memset(bytes, ' ', 8 + longest + 1);
    memcpy(bytes, &(uint64_t){longest + 1}, 8);
    memcpy(bytes + 8, "{}", 2);
    assert_int_equal(eni_st_parse("f", bytes, 8 + longest + 1, &file), EN_EFORMAT);
    memcpy(bytes, &longest, 8);
    assert_int_equal(eni_st_parse("f", bytes, 8 + longest, &file), EN_OK);
    eni_st_close(&file);
    free(bytes);
    assert_int_equal(eni_st_parse("f", "1234567", 7, &file), EN_EFORMAT);
    assert_int_equal(eni_st_parse("f", "", 0, &file), EN_EFORMAT);
}

static void values_that_are_not_finite_are_refused(void **state)
{
    fixture *f = *state;
    static const char header[] = "{" ENTRY("a", "[2]", "0", "8") "}";
    unsigned char bytes[128] = {sizeof header - 1};
    eni_st_file file;
    memcpy(bytes + 8, header, sizeof header - 1);
    const float values[] = {1, INFINITY};
    memcpy(bytes + 8 + sizeof header - 1, values, sizeof values);
    assert_int_equal(eni_st_parse("f", bytes, 8 + sizeof header - 1 + 8, &file), EN_ENONFINITE);
    says(f, "tensor a|element 1|inf");
}

static void numbers_of_batches_are_checked(void **state)
{
    fixture *f = *state;
    static const char header[] = "{" INT64("bn.num_batches_tracked", "[]") "}";
    static const int64_t cases[] = {0, INT64_C(1) << 53, -1, (INT64_C(1) << 53) + 1};
    unsigned char bytes[128] = {sizeof header - 1};
    memcpy(bytes + 8, header, sizeof header - 1);
    for (int i = 0; i < 4; i++) {
        eni_st_file file = {0};
        memcpy(bytes + 8 + sizeof header - 1, &cases[i], 8);
        const en_status st = eni_st_parse("f", bytes, 8 + sizeof header - 1 + 8, &file);
        assert_int_equal(st, i < 2 ? EN_OK : EN_EFORMAT);
        eni_st_close(&file);
    }
    says(f, "bn.num_batches_tracked|9007199254740993|2^53");
}

/* Scalars, empty tensors and any order of names are part of the format. */
static void what_the_format_allows_is_read(void **state)
{
    (void)state;
    static const char header[] = "{" ENTRY("z", "[]", "4", "8") "," ENTRY(
        "empty", "[3,0]", "4", "4") "," ENTRY("a", "[1,1]", "0", "4") ",\"__metadata__\":{\"k\":\"v\"}}";
    unsigned char bytes[512] = {sizeof header - 1};
    const float values[] = {1.5f, -2.5f};
    eni_st_file file;
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + 8 + sizeof header - 1, values, sizeof values);
    assert_int_equal(eni_st_parse("f", bytes, 8 + sizeof header - 1 + 8, &file), EN_OK);
    assert_int_equal(file.ntensors, 3);
    assert_string_equal(file.tensors[0].name, "a");
    assert_string_equal(file.tensors[1].name, "empty");
    assert_int_equal(eni_st_find(&file, "z")->count, 1);
    assert_int_equal(eni_st_find(&file, "z")->ndim, 0);
    assert_memory_equal(eni_st_find(&file, "z")->data, &values[1], sizeof values[1]);
    assert_string_equal(eni_st_find_meta(&file, "k"), "v");
    assert_null(eni_st_find_meta(&file, "format"));
    assert_null(eni_st_find(&file, "y"));
    eni_st_close(&file);
    eni_st_close(&file);
}

/* Every cut of a good file is refused. */
static void every_cut_is_refused(void **state)
{
    fixture *f = *state;
    unsigned char bytes[4096];
    assert_int_equal(eni_weights_save(f->path, &f->schema, f->flat, NULL), EN_OK);
    FILE *file = fopen(f->path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_int_equal(eni_weights_parse("f", bytes, size, &f->schema, f->back, NULL), EN_OK);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(eni_weights_parse("f", bytes, cut, &f->schema, f->back, NULL), EN_EFORMAT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(what_is_saved_is_loaded),
        TEST(the_digest_is_of_the_files_data),
        TEST(saving_replaces_whole_files),
        TEST(a_failed_save_leaves_nothing),
        TEST(buffers_are_saved_but_not_hashed),
        TEST(files_are_row_major),
        TEST(int64_lies_on_eight_bytes),
        TEST(a_file_without_statistics_is_refused),
        TEST(numbers_of_batches_are_checked),
        TEST(files_that_cannot_be_are_named),
        TEST(another_network_is_refused_with_both_shapes),
        TEST(wrapped_names_are_told),
        TEST(malformed_files_are_refused),
        TEST(lengths_that_lie_are_refused),
        TEST(values_that_are_not_finite_are_refused),
        TEST(what_the_format_allows_is_read),
        TEST(every_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
