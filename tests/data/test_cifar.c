/* test_cifar.c - files of CIFAR: what is read, as which pixels, and what is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/log.h"
#include "data/dataset_make.h"
#include "tests/heard.h"
#include "tests/mentions.h"

/* Promise: Crops and mirrors are a function of seed, epoch and sample: 64 samples match an independent
 * Philox in numpy, each channel.
 * Promise: A damaged CIFAR file is refused with file, record and number; pickles and archives are refused
 * with the remedy. */

enum { SIDE = 32, VALUES = SIDE * SIDE * 3, RECORDS = 70, TESTS = 9 };

/* That of test_pixels.py. */
static uint8_t pixel(int i, int c, int y, int x)
{
    return (uint8_t)((i * 37 + c * 85 + y * 7 + x * 3 + i * c * y % 11) % 256);
}

static char folder[128];

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* Records [first, first + n), with so many labels each. */
static void write_records(const char *name, int first, int n, int labels)
{
    static uint8_t bytes[RECORDS * (VALUES + 2)];
    uint8_t *to = bytes;
    for (int i = first; i < first + n; i++) {
        if (labels == 2) *to++ = 77;
        *to++ = (uint8_t)(i % 10);
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++)
                    *to++ = pixel(i, c, y, x);
    }
    write_file(name, bytes, (size_t)(to - bytes));
}

/* A new folder; the files are of different lengths. */
static int make_folder(void **state)
{
    static const int counts[5] = {20, 13, 17, 9, 11};
    char name[32];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/entrain-cifar-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    for (int f = 0, first = 0; f < 5; first += counts[f++]) {
        snprintf(name, sizeof name, "data_batch_%d.bin", f + 1);
        write_records(name, first, counts[f], 1);
    }
    write_records("test_batch.bin", 5, TESTS, 1);
    return 0;
}

static int remove_folder(void **state)
{
    char command[200];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static eni_dataset *open_as(const char *name, eni_transform transform, uint64_t holdout)
{
    eni_dataset *set;
    const eni_data_options options = {
        .name = name, .folder = folder, .seed = 7, .transform = transform, .holdout = holdout};
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    return set;
}

static float normalised(int byte, int c)
{
    static const float mean[3] = {0.4914f, 0.4822f, 0.4465f}, deviation[3] = {0.2023f, 0.1994f, 0.2010f};
    const float unit = (float)byte / 255.0f, centred = unit - mean[c];
    return centred / deviation[c];
}

/* What a cut of image i is, from the formula. */
static void expect_cut(const float *got, int i, int top, int left, bool is_flipped)
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < 3; c++) {
                const int from_y = y + top - 4, from_x = (is_flipped ? SIDE - 1 - x : x) + left - 4;
                const bool is_in = from_y >= 0 && from_y < SIDE && from_x >= 0 && from_x < SIDE;
                const float expected = normalised(is_in ? pixel(i, c, from_y, from_x) : 0, c);
                const float found = got[(y * SIDE + x) * 3 + c];
                if (memcmp(&found, &expected, sizeof found) != 0)
                    fail_msg("sample %d, cut at %d, %d%s, (%d, %d, %d): %g, expected %g", i, top, left,
                             is_flipped ? ", mirrored" : "", c, y, x, (double)found, (double)expected);
            }
}

/* ---- what is read ---- */

static void a_set_in_files(void **state)
{
    (void)state;
    static float x[VALUES];
    int32_t label;
    eni_dataset *set = open_as("cifar10", (eni_transform){0}, 7);
    assert_string_equal(set->name, "cifar10-form"); /* CIFAR-10's own has 50,000 */
    assert_true(set->split[ENI_TRAIN].count == RECORDS - 7 && set->split[ENI_TEST].count == TESTS &&
                set->split[ENI_HOLDOUT].count == 7);
    assert_int_equal(eni_dataset_bytes(set), (RECORDS + TESTS) * (VALUES + 1));
    for (uint64_t i = 0; i < RECORDS; i++) {
        const bool is_held = i >= RECORDS - 7;
        eni_dataset_range(set, is_held ? ENI_HOLDOUT : ENI_TRAIN, is_held ? i - (RECORDS - 7) : i, 1, x,
                          &label);
        expect_cut(x, (int)i, 4, 4, false);
        assert_int_equal(label, i % 10);
    }
    eni_dataset_range(set, ENI_TEST, TESTS - 1, 1, x, &label);
    expect_cut(x, 5 + TESTS - 1, 4, 4, false);
    eni_dataset_close(set);
}

/* FUSE with direct_io and 9p without a cache refuse shared mappings of files; others refuse all. */
static int refused_maps; /* flags of a mapping of a file that fails */
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fd < 0 || (flags & refused_maps) == 0) return __real_mmap(at, bytes, protection, flags, fd, offset);
    errno = ENODEV;
    return MAP_FAILED;
}

static void a_file_system_without_mappings(void **state)
{
    static const int refused[] = {MAP_SHARED, MAP_SHARED | MAP_PRIVATE};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        refused_maps = refused[i];
        a_set_in_files(state);
        refused_maps = 0;
    }
}

/* The hash is about samples, limits and labels: one changed byte shows, a mapped and a lent set have the same. */
static void hashes_and_lending(void **state)
{
    (void)state;
    static float x[2][VALUES];
    char hash[4][ENI_DIGEST_HEX], path[200];
    int fd = -1;
    eni_data_options options = {
        .name = folder, .identity = "", .holdout = 3, .transform = {.has_flip = true}};
    eni_dataset *set, *lent;
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_string_equal(set->name, "folder");
    assert_int_equal(eni_dataset_sha256(set, hash[0]), EN_OK);
    eni_dataset_gather(set, ENI_TRAIN, 3, (const uint32_t[]){40}, 1, x[0], NULL);
    assert_int_equal(eni_dataset_share(set, "", &fd), EN_OK);
    options.share_fd = &fd;
    assert_int_equal(eni_dataset_open(&options, &lent), EN_OK);
    assert_string_equal(lent->sha256, hash[0]);
    assert_int_equal(lent->map_bytes, 4096); /* the files themselves are mapped */
    eni_dataset_gather(lent, ENI_TRAIN, 3, (const uint32_t[]){40}, 1, x[1], NULL);
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    lent->sha256[0] = 0;
    assert_int_equal(eni_dataset_sha256(lent, hash[1]), EN_OK);
    assert_string_equal(hash[0], hash[1]);
    eni_dataset_close(lent);
    assert_int_equal(eni_dataset_identity(&options, "run", hash[2]), EN_OK);
    write_records("data_batch_3.bin", 34, 17, 1); /* another file with another first image */
    assert_int_equal(eni_dataset_identity(&options, "run", hash[3]), EN_OK);
    assert_string_not_equal(hash[2], hash[3]);
    snprintf(path, sizeof path, "%s/set-name.txt", folder);
    write_file("set-name.txt", "mine\n", 5); /* and another name */
    assert_int_equal(eni_dataset_identity(&options, "run", hash[2]), EN_OK);
    assert_string_not_equal(hash[2], hash[3]);
    unlink(path);
    options.share_fd = NULL;
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_int_equal(eni_dataset_sha256(set, hash[1]), EN_OK);
    assert_string_not_equal(hash[0], hash[1]);
    eni_dataset_close(set);
    close(fd);
    write_records("data_batch_3.bin", 33, 17, 1);
}

/* CIFAR-100: the second label counts. In a folder within the one that is named, as the archive puts it. */
static void cifar_100(void **state)
{
    (void)state;
    static float x[VALUES];
    char outer[64], inner[100];
    int32_t label;
    snprintf(outer, sizeof outer, "%.60s", folder);
    snprintf(inner, sizeof inner, "%s/cifar-100-binary", outer);
    assert_int_equal(mkdir(inner, 0700), 0);
    snprintf(folder, sizeof folder, "%s", inner);
    write_records("train.bin", 0, 12, 2);
    write_records("test.bin", 12, 3, 2);
    write_file("set-name.txt", "hundred\n", 8);
    eni_dataset *set = open_as("cifar100", (eni_transform){.nchannels = 1, .deviation = {1}}, 0);
    assert_string_equal(set->name, "hundred");
    assert_int_equal(set->classes, 100);
    eni_dataset_range(set, ENI_TEST, 2, 1, x, &label);
    assert_int_equal(label, 14 % 10);
    assert_true(x[3 * 33 + 1] == (float)pixel(14, 1, 1, 1) / 255.0f);
    eni_dataset_close(set);
    snprintf(folder, sizeof folder, "%s", outer); /* which holds CIFAR-10's files, too */
    set = open_as("cifar100", (eni_transform){.nchannels = 1, .deviation = {1}}, 0);
    assert_int_equal(set->classes, 100);
    eni_dataset_close(set);
}

/* ---- what is drawn ---- */

static void draws_are_the_golden_ones(void **state)
{
    (void)state;
    static float x[VALUES], again[VALUES];
    eni_dataset *set = open_as("cifar10", (eni_transform){.pad = 4, .crop = 32, .has_flip = true}, 0);
    json_t *golden = json_load_file(EN_SOURCE_DIR "/tests/goldens/pixels.json", 0, NULL), *one, *point;
    size_t k, p;
    assert_int_equal(json_array_size(json_object_get(golden, "samples")), 64);
    json_array_foreach(json_object_get(golden, "samples"), k, one)
    {
        int epoch, i, top, left, flip, c, px, py;
        double value;
        json_t *points;
        assert_int_equal(json_unpack(one, "[i, i, i, i, i, o]", &epoch, &i, &top, &left, &flip, &points), 0);
        eni_dataset_gather(set, ENI_TRAIN, (uint64_t)epoch, (const uint32_t[]){(uint32_t)i}, 1, x, NULL);
        expect_cut(x, i, top, left, flip == 1);
        json_array_foreach(points, p, point)
        {
            assert_int_equal(json_unpack(point, "[i, i, i, F]", &c, &py, &px, &value), 0);
            assert_true((double)x[(py * SIDE + px) * 3 + c] == value);
        }
        eni_dataset_gather(set, ENI_TRAIN, (uint64_t)epoch + 1, (const uint32_t[]){(uint32_t)i}, 1, again,
                           NULL);
        if (k == 0) assert_memory_not_equal(x, again, sizeof x);
        eni_dataset_range(set, ENI_TRAIN, (uint64_t)i, 1, x, NULL); /* as they are */
        expect_cut(x, i, 4, 4, false);
    }
    json_decref(golden);
    eni_dataset_close(set);
}

/* Test images are cut from the middle; with --augment-test they are drawn for, the same way each time. */
static void test_images(void **state)
{
    (void)state;
    static float x[2][TESTS * VALUES];
    eni_transform t = {.pad = 4, .crop = 32, .has_flip = true};
    eni_dataset *set = open_as("cifar10", t, 0);
    eni_dataset_range(set, ENI_TEST, 0, TESTS, x[0], NULL);
    for (int i = 0; i < TESTS; i++)
        expect_cut(x[0] + i * VALUES, 5 + i, 4, 4, false);
    eni_dataset_close(set);
    t.is_test_drawn = true;
    set = open_as("cifar10", t, 0);
    eni_dataset_range(set, ENI_TEST, 0, TESTS, x[0], NULL);
    eni_dataset_range(set, ENI_TEST, 0, TESTS, x[1], NULL);
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    int moved = 0;
    for (uint64_t i = 0; i < TESTS; i++) {
        const eni_crop cut = eni_pixels_draw(&set->pixels, 7, true, 3, i);
        expect_cut(x[0] + i * VALUES, 5 + (int)i, cut.top, cut.left, cut.is_flipped);
        moved += cut.top != 4 || cut.left != 4 || cut.is_flipped;
    }
    assert_true(moved > TESTS / 2);
    eni_dataset_close(set);
    set = open_as("cifar10", (eni_transform){.pad = 0, .crop = 20}, 0);
    eni_dataset_range(set, ENI_TEST, 0, 1, x[0], NULL);
    assert_int_equal(set->sample_floats, 20 * 20 * 3);
    assert_true(x[0][2] == normalised(pixel(5, 2, 6, 6), 2)); /* (32 - 20) / 2 */
    eni_dataset_close(set);
}

static void facts_in_words(void **state)
{
    (void)state;
    eni_pixel_facts facts;
    eni_transform t = {.nchannels = 3,
                       .mean = {0.4914f, 0.4822f, 0.4465f},
                       .deviation = {0.2023f, 0.1994f, 0.123456789f},
                       .resize = 224,
                       .crop = 200,
                       .pad = 8};
    eni_pixels_describe(&t, &facts);
    assert_string_equal(facts.normalize, "0.4914,0.4822,0.4465:0.2023,0.1994,0.12345679");
    assert_string_equal(facts.resize, "224");
    assert_string_equal(facts.augment, "crop:200:8");
    t = (eni_transform){
        .nchannels = 1, .mean = {0.1307f}, .deviation = {0.3081f}, .has_flip = true, .is_test_drawn = true};
    eni_pixels_describe(&t, &facts);
    assert_string_equal(facts.normalize, ENI_NORMALIZE_GREY); /* what checkpoints that say nothing had */
    assert_string_equal(facts.augment, "flip");
    assert_string_equal(facts.augment_test, "on");
    eni_pixels_describe(&(eni_transform){0}, &facts);
    assert_string_equal(facts.augment, "none");
}

/* ---- what is refused ---- */

static void refused(const eni_data_options *options, en_status expected, const char *words)
{
    heard h = {0};
    eni_dataset *set;
    eni_log_set_sink(hear, &h);
    const en_status st = eni_dataset_open(options, &set);
    eni_log_set_sink(NULL, NULL);
    if (st != expected || h.lines != 1 || !mentions(h.text, words))
        fail_msg("status %d, %d lines, \"%s\"; expected %d and \"%s\"", st, h.lines, h.text, expected, words);
}

static void damaged_files(void **state)
{
    (void)state;
    static uint8_t bytes[2 * (VALUES + 1) + 5];
    char path[200];
    const eni_data_options options = {.name = folder};
    write_file("data_batch_2.bin", bytes, sizeof bytes);
    refused(&options, EN_EFORMAT, "data_batch_2.bin|CIFAR-10|record 2|5 of 3073 bytes");
    bytes[VALUES + 1] = 10;
    write_file("data_batch_2.bin", bytes, sizeof bytes - 5);
    refused(&options, EN_EFORMAT, "data_batch_2.bin: record 1 has label 10|CIFAR-10|0 to 9");
    write_file("data_batch_2.bin", bytes, 0);
    refused(&options, EN_EFORMAT, "data_batch_2.bin is empty");
    snprintf(path, sizeof path, "%s/data_batch_2.bin", folder);
    unlink(path);
    refused(&options, EN_ENOENT,
            "data_batch_2.bin|CIFAR-10|data_batch_1.bin|"
            "data_batch_5.bin|test_batch.bin");
    assert_int_equal(mkdir(path, 0700), 0);
    refused(&options, EN_EFORMAT, "regular file");
    rmdir(path);
    write_records("data_batch_2.bin", 20, 13, 1);
    write_file("set-name.txt", "my set!\n", 8);
    refused(&options, EN_EFORMAT, "set-name.txt|one line");
    write_file("set-name.txt", "mine\0hidden\n", 12);
    refused(&options, EN_EFORMAT, "set-name.txt|one line");
    write_file("set-name.txt", "mine\nsecond\n", 12);
    refused(&options, EN_EFORMAT, "set-name.txt|one line");
    write_file("set-name.txt", "CIFAR-10\n", 9);
    refused(&options, EN_EFORMAT, "set-name.txt|CIFAR-10");
    snprintf(path, sizeof path, "%s/set-name.txt", folder);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for a writer */
    refused(&options, EN_EFORMAT, "set-name.txt|one line");
    unlink(path);
    refused(&(eni_data_options){.name = "cifar100", .folder = folder}, EN_EFORMAT, "cifar10|cifar100");
}

/* A label beyond the limits is nobody's, and 300 GB behind them are not read: they lie in no page of this process. */
static void beyond_the_limits_nothing_is_read(void **state)
{
    (void)state;
    char path[200];
    eni_data_options options = {.name = "cifar10", .folder = folder, .limit_train = 15, .limit_test = 1};
    eni_dataset *set;
    uint8_t wrong = 10;
    snprintf(path, sizeof path, "%s/data_batch_5.bin", folder);
    FILE *file = fopen(path, "rb+");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const off_t before = ftell(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)(VALUES + 1) * 100000000), 0);
    assert_int_equal(fseek(file, 0, SEEK_SET), 0);
    const int first = fgetc(file);
    rewind(file);
    assert_int_equal(fwrite(&wrong, 1, 1, file), 1);
    fflush(file);
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_int_equal(eni_dataset_bytes(set), 16 * (VALUES + 1));
    eni_dataset_close(set);
    options.limit_train = RECORDS - 1;
    refused(&options, EN_EFORMAT, "data_batch_5.bin: record 0 has label 10");
    rewind(file);
    assert_int_equal(fputc(first, file), first);
    assert_int_equal(ftruncate(fileno(file), before), 0);
    fclose(file);
}

static void transforms_that_do_not_fit(void **state)
{
    (void)state;
    const eni_data_options crop = {.name = folder, .transform = {.pad = 2, .crop = 40}},
                           two = {.name = folder, .transform = {.nchannels = 2, .deviation = {1, 1}}},
                           toy = {.name = "synthetic",
                                  .transform = {.has_flip = true},
                                  .want = {.height = 1, .width = 1, .channels = 10, .targets = 5}},
                           vector = {.name = "synthetic",
                                     .transform = {.has_flip = true},
                                     .limit_train = 10,
                                     .want = {.height = 1, .width = 1, .channels = 10, .classes = 5}};
    refused(&crop, EN_EINVAL, "--augment=crop:40:2|40 x 40|32 x 32|36 x 36");
    refused(&two, EN_EINVAL, "--normalize|2 channels| 3");
    refused(&toy, EN_EINVAL, "--resize|--augment|--normalize|images");
    refused(&vector, EN_EINVAL, "channels");
}

/* Forms that are known and not read, each with its remedy. */
static void other_forms(void **state)
{
    (void)state;
    static const struct {
        const char *file, *name, *words;
    } cases[] = {
        {"py/data_batch_1", "py", "tools/cifar_py2bin.py"},
        {"at/cifar-10-batches-py/data_batch_1", "at", "/at/cifar-10-batches-py "},
        {"hundred/train", "hundred", "tools/cifar_py2bin.py"},
        {"tar/cifar-10-binary.tar.gz", "tar", "tar -xzf"},
        {"tar/cifar-10-binary.tar.gz", "tar/cifar-10-binary.tar.gz", "archive|tar -xf"},
        {"training.pt", "training.pt", "tools/pt2idx.py"},
        {"some.bin", "some.bin", "folder"},
    };
    char path[200], command[600];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command,
                 "mkdir -p $(dirname %s/%s) && touch %s/%s %s/hundred/meta 2>/dev/null; true", folder,
                 cases[i].file, folder, cases[i].file, folder);
        assert_int_equal(system(command), 0);
        snprintf(path, sizeof path, "%s/%s", folder, cases[i].name);
        refused(&(eni_data_options){.name = path}, EN_EFORMAT, cases[i].words);
        refused(&(eni_data_options){.name = "cifar10", .folder = path}, EN_EFORMAT, cases[i].words);
    }
    refused(&(eni_data_options){.name = "cifar10", .folder = "/nonexistent"}, EN_ENOENT,
            "/nonexistent|data_batch_1.bin");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_in_files),
        cmocka_unit_test(a_file_system_without_mappings),
        cmocka_unit_test(hashes_and_lending),
        cmocka_unit_test(draws_are_the_golden_ones),
        cmocka_unit_test(test_images),
        cmocka_unit_test(facts_in_words),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(beyond_the_limits_nothing_is_read),
        cmocka_unit_test(transforms_that_do_not_fit),
        cmocka_unit_test(other_forms),
        cmocka_unit_test(cifar_100),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
