/* test_dataset.c - sets: real and made up, normalised as PyTorch does, refused when their parts disagree. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "data/dataset.h"
#include "tests/mentions.h"

/* Promise: The last training samples are held out, the same ones for every limit.
 * Promise: The data set is read and hashed once per host, and no other process can replace it. */

typedef struct heard {
    int lines;
    char text[2048]; /* all lines */
} heard;

static void hear(void *user, int level, const char *subsystem, const char *text)
{
    heard *h = user;
    (void)level;
    (void)subsystem;
    h->lines++;
    snprintf(h->text + strlen(h->text), sizeof h->text - strlen(h->text), "%s\n", text);
}

static void fashion_mnist(void **state)
{
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK) != 0) skip();
    eni_dataset *set;
    eni_data_options options = {.name = "fashion-mnist", .want = {28, 28, 1, 10, 0}};
    int64_t begin = eni_now_ns();
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    printf("fashion-mnist, four files, opened in %.3f s", (double)(eni_now_ns() - begin) / 1e9);
    assert_true(set->split[ENI_TRAIN].count == 60000 && set->split[ENI_TEST].count == 10000);
    assert_true(eni_dataset_bytes(set) == 70000 * (28 * 28 + 1));
    int per_class[10] = {0};
    const uint8_t *file_labels = set->split[ENI_TRAIN].target, *images = set->split[ENI_TRAIN].x;
    for (int i = 0; i < 60000; i++)
        per_class[file_labels[i]]++;
    for (int c = 0; c < 10; c++)
        assert_int_equal(per_class[c], 6000);
    char hash[ENI_DIGEST_HEX], limited[ENI_DIGEST_HEX];
    begin = eni_now_ns();
    assert_int_equal(eni_dataset_sha256(set, hash), EN_OK);
    printf(", hashed in %.3f s\n", (double)(eni_now_ns() - begin) / 1e9);

    static float x[2 * 784];
    int32_t labels[2];
    uint32_t indices[2] = {59999, 0};
    eni_dataset_gather(set, ENI_TRAIN, ENI_NO_EPOCH, indices, 2, x, labels);
    assert_int_equal(labels[1], 9); /* the first image is an ankle boot */
    assert_int_equal(labels[0], file_labels[59999]);
    for (int k = 0; k < 784; k++) {
        float unit = (float)images[k] / 255.0f;
        float expected = (unit - 0.1307f) / 0.3081f;
        assert_true(x[784 + k] == expected);
    }
    eni_dataset_close(set);

    options.limit_train = 1000;
    options.limit_test = 10;
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_true(set->split[ENI_TRAIN].count == 1000 && set->split[ENI_TEST].count == 10);
    assert_true(eni_dataset_bytes(set) == 70000 * (28 * 28 + 1)); /* a limit frees nothing */
    assert_int_equal(eni_dataset_sha256(set, limited), EN_OK);
    assert_string_not_equal(hash, limited);
    eni_dataset_close(set);
}

static void absent_sets_say_what_to_do(void **state)
{
    (void)state;
    heard h = {0};
    eni_dataset *set;
    eni_log_set_sink(hear, &h);
    eni_data_options options = {.name = "fashion-mnist", .folder = "/nonexistent"};
    assert_int_equal(eni_dataset_open(&options, &set), EN_ENOENT);
    assert_non_null(strstr(h.text, "apt-get install dataset-fashion-mnist"));
    assert_int_equal(h.lines, 1);
    options = (eni_data_options){.name = "imagenet"};
    assert_int_equal(eni_dataset_open(&options, &set), EN_ENOENT);
    assert_non_null(strstr(h.text, "\"imagenet\""));
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(h.lines, 2);
}

static void write_file(const char *folder, const char *name, const char *bytes, size_t count)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

#define IMAGES_2x1x3 "\0\0\x08\3\0\0\0\2\0\0\0\1\0\0\0\3abcdef"
#define IMAGES_1x3x1 "\0\0\x08\3\0\0\0\1\0\0\0\3\0\0\0\1abc"
#define IMAGES_1x1x3 "\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\3abc"
#define LABELS_2     "\0\0\x08\1\0\0\0\2\1\2"
#define LABELS_1     "\0\0\x08\1\0\0\0\1\3"
#define LABELS_BAD   "\0\0\x08\1\0\0\0\1\x0a"

/* A new folder in `folder` with the four files. */
static void make_folder(char *folder, const char *images, size_t images_bytes, const char *labels,
                        size_t labels_bytes, const char *test_images, const char *test_labels)
{
    assert_non_null(mkdtemp(folder));
    write_file(folder, "train-images-idx3-ubyte", images, images_bytes);
    write_file(folder, "train-labels-idx1-ubyte", labels, labels_bytes);
    write_file(folder, "t10k-images-idx3-ubyte", test_images, sizeof IMAGES_1x1x3 - 1);
    write_file(folder, "t10k-labels-idx1-ubyte", test_labels, sizeof LABELS_1 - 1);
}

static void remove_folder(const char *folder)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static en_status open_folder(const char *images, size_t images_bytes, const char *labels, size_t labels_bytes,
                             const char *test_images, const char *test_labels, heard *h)
{
    char folder[] = "/tmp/entrain-set-XXXXXX";
    eni_dataset *set = NULL;
    make_folder(folder, images, images_bytes, labels, labels_bytes, test_images, test_labels);
    *h = (heard){0};
    eni_log_set_sink(hear, h);
    en_status st = eni_dataset_open(&(eni_data_options){.name = folder}, &set);
    eni_log_set_sink(NULL, NULL);
    if (st == EN_OK)
        assert_true(set->height == 1 && set->width == 3 && ((uint8_t *)set->split[ENI_TRAIN].target)[1] == 2);
    eni_dataset_close(st == EN_OK ? set : NULL);
    remove_folder(folder);
    return st;
}

#define BYTES(text) text, sizeof text - 1

static void a_folder_must_agree_with_itself(void **state)
{
    (void)state;
    heard h;
    assert_int_equal(open_folder(BYTES(IMAGES_2x1x3), BYTES(LABELS_2), IMAGES_1x1x3, LABELS_1, &h), EN_OK);
    assert_int_equal(open_folder(BYTES(IMAGES_2x1x3), BYTES(LABELS_1), IMAGES_1x1x3, LABELS_1, &h),
                     EN_EFORMAT);
    assert_true(mentions(h.text, "2 train|1 label"));
    assert_int_equal(open_folder(BYTES(IMAGES_2x1x3), BYTES(LABELS_2), IMAGES_1x3x1, LABELS_1, &h),
                     EN_EFORMAT);
    assert_true(mentions(h.text, "1 x 3|3 x 1"));
    assert_int_equal(open_folder(BYTES(IMAGES_2x1x3), BYTES(LABELS_2), IMAGES_1x1x3, LABELS_BAD, &h),
                     EN_EFORMAT);
    assert_true(mentions(h.text, "label 10|test sample 0|0 .. 9"));
    assert_int_equal(open_folder(BYTES(LABELS_2), BYTES(LABELS_2), IMAGES_1x1x3, LABELS_1, &h), EN_EFORMAT);
    assert_non_null(strstr(h.text, "swapped"));
    assert_int_equal(h.lines, 1);
}

/* Letters have 26 classes, kuzushiji 49, EMNIST's count from 1; MNIST has ten, whatever a damaged label says. */
static void classes_come_from_the_labels(void **state)
{
    static const struct {
        int first, last, classes, test;
    } cases[] = {{0, 2, 3, 1},  {0, 25, 26, 7}, {1, 26, 27, 26}, {0, 48, 49, 0},
                 {0, 9, 0, 10}, {0, 25, 0, 26}, {3, 3, 4, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[] = "/tmp/entrain-set-XXXXXX", images[16 + 64] = {0, 0, 8, 3},
             labels[8 + 64] = {0, 0, 8, 1}, test[] = LABELS_1;
        const int n = cases[i].last - cases[i].first + 1;
        images[7] = labels[7] = (char)n;
        images[11] = 1, images[15] = 3;
        char wide[16 + 64 * 3] = {0};
        memcpy(wide, images, 16);
        for (int k = 0; k < n; k++)
            labels[8 + k] = (char)(cases[i].first + k);
        test[8] = (char)cases[i].test;
        make_folder(folder, wide, (size_t)(16 + 3 * n), labels, (size_t)(8 + n), IMAGES_1x1x3, test);
        const eni_data_options options = {.name = folder};
        en_data_shape shape;
        eni_dataset *set = NULL;
        heard h = {0};
        eni_log_set_sink(hear, &h);
        const en_status st = eni_dataset_open(&options, &set);
        assert_int_equal(st, cases[i].classes > 0 ? EN_OK : EN_EFORMAT);
        eni_log_set_sink(NULL, NULL);
        if (st == EN_OK) {
            assert_int_equal(set->classes, cases[i].classes);
            assert_int_equal(eni_dataset_shape(&options, &shape), EN_OK);
            assert_int_equal(shape.classes, cases[i].classes);
            eni_dataset_close(set);
        } else {
            assert_non_null(strstr(h.text, " 0 .. "));
            assert_non_null(strstr(h.text, "gap"));
        }
        const eni_data_options named = {.name = "mnist", .folder = folder};
        h = (heard){0};
        eni_log_set_sink(hear, &h);
        assert_int_equal(eni_dataset_open(&named, &set),
                         cases[i].last < 10 && cases[i].test < 10 ? EN_OK : EN_EFORMAT);
        eni_log_set_sink(NULL, NULL);
        if (cases[i].last < 10 && cases[i].test < 10)
            eni_dataset_close(set);
        else
            assert_true(strstr(h.text, " 0 .. 9") != NULL && strstr(h.text, "gap") == NULL);
        remove_folder(folder);
    }
}

/* As some archives write them, with a folder of each file's name beside it; and what is no set at all. */
static void other_spellings(void **state)
{
    char folder[] = "/tmp/entrain-set-XXXXXX", command[400];
    eni_dataset *set;
    heard h = {0};
    (void)state;
    make_folder(folder, BYTES(IMAGES_2x1x3), BYTES(LABELS_2), IMAGES_1x1x3, LABELS_1);
    snprintf(command, sizeof command,
             "cd %s && for f in *-idx*; do mv $f $(echo $f | sed s/-idx/.idx/) && mkdir $f; done", folder);
    assert_int_equal(system(command), 0);
    const eni_data_options options = {.name = folder};
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_int_equal(set->split[ENI_TRAIN].count, 2);
    eni_dataset_close(set);
    snprintf(command, sizeof command, "cd %s && rm -r * && touch training.pt test.pt", folder);
    assert_int_equal(system(command), 0);
    eni_log_set_sink(hear, &h);
    assert_int_equal(eni_dataset_open(&options, &set), EN_EFORMAT);
    eni_log_set_sink(NULL, NULL);
    assert_non_null(strstr(h.text, "training.pt"));
    assert_non_null(strstr(h.text, "tools/pt2idx.py"));
    remove_folder(folder);
}

/* A vector model takes images, flattened; another shape is refused, and so is a limit over the size. */
static void what_the_model_wants(void **state)
{
    (void)state;
    char folder[] = "/tmp/entrain-set-XXXXXX";
    heard h = {0};
    eni_dataset *set;
    make_folder(folder, BYTES(IMAGES_2x1x3), BYTES(LABELS_2), IMAGES_1x1x3, LABELS_1);
    eni_data_options options = {.name = folder, .want = {1, 1, 3, 10, 0}};
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    eni_dataset_close(set);
    eni_log_set_sink(hear, &h);
    options.want = (eni_data_want){32, 32, 3, 10, 0};
    assert_int_equal(eni_dataset_open(&options, &set), EN_EMISMATCH);
    options.want = (eni_data_want){1, 1, 10, 0, 5};
    assert_int_equal(eni_dataset_open(&options, &set), EN_EMISMATCH);
    options = (eni_data_options){.name = folder, .limit_train = 3};
    assert_int_equal(eni_dataset_open(&options, &set), EN_EINVAL);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(h.lines, 3);
    assert_non_null(strstr(h.text, "1 x 3 x 1"));
    assert_true(mentions(h.text, "--limit-train-samples 3| 2 "));
    remove_folder(folder);
}

/* targets = M x features with some fixed M: the first samples determine it, the rest must agree. */
static void the_toy_set_is_linear(void **state)
{
    (void)state;
    eni_dataset *set;
    eni_data_options options = {.name = "synthetic", .seed = 5, .limit_train = 300, .want = {1, 1, 10, 0, 5}};
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    const eni_split *train = &set->split[ENI_TRAIN], *test = &set->split[ENI_TEST];
    const float *features = train->x, *targets = train->target;
    assert_int_equal(set->classes, 0);
    assert_true(memcmp(features, test->x, 40) != 0);
    double m[10], a[10][11]; /* row 0 of M by Gauss elimination */
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < 11; k++)
            a[i][k] = k < 10 ? (double)features[i * 10 + k] : (double)targets[i * 5];
    for (int p = 0; p < 10; p++) {
        int best = p;
        for (int i = p + 1; i < 10; i++)
            if (fabs(a[i][p]) > fabs(a[best][p])) best = i;
        for (int k = 0; k < 11; k++) {
            double swap = a[p][k];
            a[p][k] = a[best][k];
            a[best][k] = swap;
        }
        for (int i = 0; i < 10; i++)
            for (int k = 10; k >= p && i != p; k--)
                a[i][k] -= a[p][k] * a[i][p] / a[p][p];
    }
    for (int k = 0; k < 10; k++)
        m[k] = a[k][10] / a[k][k];
    for (int i = 10; i < 300; i++) {
        double y = 0;
        for (int k = 0; k < 10; k++)
            y += m[k] * (double)features[i * 10 + k];
        assert_true(fabs(y - (double)targets[i * 5]) < 1e-4);
    }
    eni_dataset_close(set);
}

static void made_up_images_depend_on_the_seed_only(void **state)
{
    (void)state;
    char hash[3][ENI_DIGEST_HEX];
    for (int i = 0; i < 3; i++) {
        eni_dataset *set;
        eni_data_options options = {.name = "synthetic",
                                    .seed = i == 2,
                                    .limit_train = 200,
                                    .limit_test = 50,
                                    .want = {8, 8, 3, 10, 0}};
        assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
        assert_true(set->sample_floats == 192 && set->split[ENI_TEST].count == 50);
        assert_true(eni_dataset_bytes(set) == 250 * (192 + 1));
        assert_int_equal(eni_dataset_sha256(set, hash[i]), EN_OK);
        float x[2 * 192], y[2 * 192];
        int32_t labels[2];
        uint32_t indices[2] = {7, 8};
        eni_dataset_gather(set, ENI_TEST, ENI_NO_EPOCH, indices, 2, x, labels);
        eni_dataset_range(set, ENI_TEST, 7, 2, y, NULL);
        assert_memory_equal(x, y, sizeof x);
        assert_int_equal(labels[1], 8);
        eni_dataset_close(set);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
}

/* What another rank of this host sees. */
static void a_lent_set_is_the_same_one(void **state)
{
    (void)state;
    static const eni_data_want wants[] = {{8, 8, 3, 10, 0}, {1, 1, 6, 0, 3}};
    for (int i = 0; i < 2; i++) {
        eni_data_options options = {
            .name = "synthetic", .holdout = 30, .limit_train = 200, .limit_test = 50, .want = wants[i]};
        eni_dataset *own, *lent;
        char expected[ENI_DIGEST_HEX], hash[ENI_DIGEST_HEX];
        int fd = -1;
        assert_int_equal(eni_dataset_open(&options, &own), EN_OK);
        const uint64_t bytes = eni_dataset_bytes(own);
        assert_int_equal(eni_dataset_sha256(own, expected), EN_OK);
        assert_int_equal(eni_dataset_share(own, "mine", &fd), EN_OK);
        options.share_fd = &fd;
        options.identity = "another"; /* it was read from other files */
        assert_int_equal(eni_dataset_open(&options, &lent), EN_EPROTO);
        options.identity = "mine";
        assert_int_equal(eni_dataset_open(&options, &lent), EN_OK);
        assert_string_equal(lent->name, "synthetic");
        assert_true(eni_dataset_bytes(lent) == bytes);
        assert_int_equal(eni_dataset_sha256(lent, hash), EN_OK);
        assert_string_equal(hash, expected);
        memset(lent->sha256, 0, sizeof lent->sha256);
        assert_int_equal(eni_dataset_sha256(lent, hash), EN_OK); /* computed, now */
        assert_string_equal(hash, expected);
        eni_dataset_close(lent);

        options.limit_train = 20; /* another limit, another hash */
        assert_int_equal(eni_dataset_open(&options, &lent), EN_OK);
        assert_int_equal(eni_dataset_sha256(lent, hash), EN_OK);
        assert_string_not_equal(hash, expected);
        eni_dataset_close(lent);
        options.want.height++; /* checked as ever */
        assert_int_equal(eni_dataset_open(&options, &lent), EN_EMISMATCH);

        assert_int_equal(pwrite(fd, "x", 1, 5000), -1); /* nobody changes it */
        assert_int_equal(ftruncate(fd, 0), -1);
        close(fd);
    }
}

static void what_was_not_lent_is_refused(void **state)
{
    (void)state;
    static char text[3 * 4096];
    const int fd = memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    eni_data_options options = {
        .name = "synthetic", .want = {8, 8, 3, 10, 0}, .share_fd = &fd, .identity = ""};
    eni_dataset *set;
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    assert_int_equal(eni_dataset_open(&options, &set), EN_EPROTO); /* it could change, or shrink */
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    assert_int_equal(eni_dataset_open(&options, &set), EN_EPROTO); /* and is no set */
    close(fd);
}

/* Where it lies then. */
static ino_t lend_into(int fd)
{
    const eni_data_options options = {
        .name = "synthetic", .limit_train = 20, .limit_test = 10, .want = {8, 8, 3, 10, 0}};
    eni_data_options lent_options = options;
    eni_dataset *set, *lent;
    struct stat file;
    lent_options.share_fd = &fd;
    lent_options.identity = "mine";
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    assert_int_equal(eni_dataset_share(set, "mine", &fd), EN_OK);
    assert_int_equal(eni_dataset_open(&lent_options, &lent), EN_OK);
    eni_dataset_close(lent);
    assert_int_equal(fstat(fd, &file), 0);
    close(fd);
    return file.st_ino;
}

/* As the launcher of an elastic run has it: what a killed rank has begun is begun anew, what another one has finished
 * stays. */
static void memory_that_is_kept_is_filled_once(void **state)
{
    (void)state;
    static char half[9999];
    const int kept = memfd_create("kept", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct stat file;
    int go[2];
    assert_int_equal(fstat(kept, &file), 0);
    assert_int_equal(write(kept, half, sizeof half), sizeof half);
    assert_int_equal(pipe(go), 0);
    const pid_t other = fork(); /* is at it */
    if (other == 0) {
        const int is_its = lockf(kept, F_TLOCK, 0) == 0 && write(go[1], "", 1) == 1;
        for (;; pause())
            if (!is_its) _exit(1);
    }
    assert_int_equal(read(go[0], half, 1), 1);
    assert_true(lend_into(dup(kept)) != file.st_ino);
    kill(other, SIGKILL);
    assert_int_equal(waitpid(other, NULL, 0), other);
    assert_true(lend_into(dup(kept)) == file.st_ino);
    assert_true(lend_into(dup(kept)) != file.st_ino);
    close(go[0]), close(go[1]), close(kept);
}

static void who_reads_something_else_does_not_share(void **state)
{
    (void)state;
    char folder[] = "/tmp/entrain-dataset-XXXXXX", path[64], hash[8][ENI_DIGEST_HEX];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", folder);
    eni_data_options options = {.name = folder};
    assert_int_equal(eni_dataset_identity(&options, "run", hash[0]), EN_OK);
    assert_int_equal(eni_dataset_identity(&options, "run", hash[1]), EN_OK);
    assert_string_equal(hash[0], hash[1]);
    FILE *file = fopen(path, "we");
    fputs("1", file);
    fclose(file);
    assert_int_equal(eni_dataset_identity(&options, "run", hash[1]), EN_OK);
    file = fopen(path, "ae");
    fputs("2", file);
    fclose(file);
    assert_int_equal(eni_dataset_identity(&options, "run", hash[2]), EN_OK);
    assert_int_equal(eni_dataset_identity(&options, "another run", hash[3]), EN_OK);
    options.limit_test = 3;
    assert_int_equal(eni_dataset_identity(&options, "run", hash[4]), EN_OK);
    options.seed = 3;
    assert_int_equal(eni_dataset_identity(&options, "run", hash[5]), EN_OK);
    options.name = "synthetic"; /* is made with the sides that a transform asks for */
    assert_int_equal(eni_dataset_identity(&options, "run", hash[6]), EN_OK);
    options.transform.resize = 8;
    assert_int_equal(eni_dataset_identity(&options, "run", hash[7]), EN_OK);
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(hash[a], hash[b]);
    options.name = "/tmp/entrain-nowhere";
    assert_int_equal(eni_dataset_identity(&options, "run", hash[0]), EN_ENOENT);
    unlink(path);
    rmdir(folder);
}

/* The set with so many held out of it; `limit` of the rest to train on. */
static eni_dataset *hold_out(const char *name, uint64_t holdout, uint64_t limit, eni_data_want want)
{
    eni_dataset *set;
    const eni_data_options options = {.name = name, .holdout = holdout, .limit_train = limit, .want = want};
    assert_int_equal(eni_dataset_open(&options, &set), EN_OK);
    return set;
}

/* Sample `a` of a split of one set is sample `b` of a split of another. */
static void expect_same(const eni_dataset *x, int split_x, uint64_t a, const eni_dataset *y, int split_y,
                        uint64_t b)
{
    static float pixels[2][784];
    float targets[2][8] = {{0}}; /* or a label */
    eni_dataset_range(x, split_x, a, 1, pixels[0], targets[0]);
    eni_dataset_range(y, split_y, b, 1, pixels[1], targets[1]);
    assert_memory_equal(pixels[0], pixels[1], x->sample_floats * sizeof(float));
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
}

/* The last `held` of `size` training samples: the same ones whatever the limit, which counts after them. */
static void expect_last_held(const char *name, uint64_t size, uint64_t held, eni_data_want want)
{
    char hash[4][ENI_DIGEST_HEX];
    eni_dataset *all = hold_out(name, 0, 0, want), *most = hold_out(name, held, 0, want),
                *few = hold_out(name, held, 60, want), *fewer_held = hold_out(name, held - 1, 60, want);
    const eni_dataset *sets[] = {all, most, few, fewer_held};
    assert_true(all->split[ENI_TRAIN].count == size && all->split[ENI_HOLDOUT].count == 0);
    assert_true(most->split[ENI_TRAIN].count == size - held && most->split[ENI_HOLDOUT].count == held);
    assert_true(few->split[ENI_TRAIN].count == 60 && few->split[ENI_HOLDOUT].count == held);
    assert_true(eni_dataset_bytes(most) == eni_dataset_bytes(all));
    for (uint64_t i = 0; i < held; i++) {
        expect_same(most, ENI_HOLDOUT, i, all, ENI_TRAIN, size - held + i);
        expect_same(few, ENI_HOLDOUT, i, all, ENI_TRAIN, size - held + i);
    }
    for (uint64_t i = 0; i < 60; i++)
        expect_same(few, ENI_TRAIN, i, all, ENI_TRAIN, i);
    for (int i = 0; i < 4; i++)
        assert_int_equal(eni_dataset_sha256(sets[i], hash[i]), EN_OK);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hash[i], hash[k]);
    float x[784], same[784];
    float target[8], same_target[8];
    eni_dataset_fill_holdout(few, 3, 1, x, target);
    eni_dataset_range(few, ENI_HOLDOUT, 3, 1, same, same_target);
    assert_memory_equal(x, same, few->sample_floats * sizeof(float));
    for (int i = 0; i < 4; i++)
        eni_dataset_close((eni_dataset *)(uintptr_t)sets[i]);
}

static void the_last_training_samples_are_held_out(void **state)
{
    (void)state;
    const eni_data_want image = {8, 8, 1, 10, 0}, line = {1, 1, 10, 0, 5};
    char images[16 + 3 * 200] = "\0\0\x08\3\0\0\0\xc8\0\0\0\1\0\0\0\3",
                         labels[8 + 200] = "\0\0\x08\1\0\0\0\xc8", folder[] = "/tmp/entrain-set-XXXXXX";
    for (int i = 0; i < 200; i++) {
        images[16 + 3 * i] = (char)i;
        labels[8 + i] = (char)(i % 10);
    }
    expect_last_held("synthetic", 10000, 100, image);
    expect_last_held("synthetic", 10000, 100, line);
    eni_dataset *large = hold_out("synthetic", 1200, 12000, image); /* as large as it has to be */
    assert_true(large->split[ENI_TRAIN].count == 12000 && large->split[ENI_HOLDOUT].count == 1200);
    eni_dataset_close(large);
    make_folder(folder, images, sizeof images, labels, sizeof labels, IMAGES_1x1x3, LABELS_1);
    expect_last_held(folder, 200, 20, (eni_data_want){0});
    remove_folder(folder);
}

static void more_than_a_tenth_is_refused(void **state)
{
    (void)state;
    heard h = {0};
    eni_dataset *set = NULL;
    eni_data_options options = {.name = "synthetic", .holdout = 1001, .want = {8, 8, 1, 10, 0}};
    uint64_t size = 0;
    eni_log_set_sink(hear, &h);
    assert_int_equal(eni_dataset_open(&options, &set), EN_EINVAL);
    assert_non_null(strstr(h.text, "--holdout=1001"));
    assert_true(mentions(h.text, "10000 training samples|synthetic| 1000"));
    eni_log_set_sink(NULL, NULL);
    options.holdout = 0;
    assert_int_equal(eni_dataset_train_size(&options, &size), EN_OK);
    assert_true(size == 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lent_set_is_the_same_one),
        cmocka_unit_test(what_was_not_lent_is_refused),
        cmocka_unit_test(memory_that_is_kept_is_filled_once),
        cmocka_unit_test(who_reads_something_else_does_not_share),
        cmocka_unit_test(fashion_mnist),
        cmocka_unit_test(absent_sets_say_what_to_do),
        cmocka_unit_test(a_folder_must_agree_with_itself),
        cmocka_unit_test(classes_come_from_the_labels),
        cmocka_unit_test(other_spellings),
        cmocka_unit_test(what_the_model_wants),
        cmocka_unit_test(the_toy_set_is_linear),
        cmocka_unit_test(made_up_images_depend_on_the_seed_only),
        cmocka_unit_test(the_last_training_samples_are_held_out),
        cmocka_unit_test(more_than_a_tenth_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
