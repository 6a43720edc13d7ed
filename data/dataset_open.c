/* dataset_open.c - finds a set by name, opens it from its source (dataset_make.h: files or synthetic; or shared by another
 * process, dataset_share.c), and checks it against the model and the options. */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "data/dataset_make.h"

/* The source of a set. */
enum { FROM_IDX, FROM_CIFAR, FROM_SEED };
enum { MNIST_CLASSES = 10 };

static const struct named {
    const char *name, *folder, *remedy, *help;
    int from, kind;
} table[] = {
    {"fashion-mnist", "/usr/share/datasets/fashion-mnist",
     "apt-get install dataset-fashion-mnist, or name the folder that holds it with --data-dir",
     "60,000 + 10,000 images of clothes, 28 x 28 grey, 10 classes (Debian: dataset-fashion-mnist)", FROM_IDX,
     0},
    {"mnist", "/usr/share/datasets/mnist",
     "Debian does not package it: name the folder that holds its four IDX files with --data-dir",
     "60,000 + 10,000 handwritten digits, 28 x 28 grey, 10 classes", FROM_IDX, 0},
    {"cifar10", "/usr/share/datasets/cifar-10-batches-bin",
     "Debian does not package it: unpack cifar-10-binary.tar.gz (tar -xzf) and name the folder that has its "
     "six .bin files with --data-dir",
     "50,000 + 10,000 colour images, 32 x 32, 10 classes (binary files, --data-dir)", FROM_CIFAR,
     ENI_CIFAR_10},
    {"cifar100", "/usr/share/datasets/cifar-100-binary",
     "Debian does not package it: unpack cifar-100-binary.tar.gz (tar -xzf) and name the folder that has "
     "train.bin and test.bin with --data-dir",
     "50,000 + 10,000 colour images, 32 x 32, 100 classes (binary files, --data-dir)", FROM_CIFAR,
     ENI_CIFAR_100},
    {"synthetic", NULL, NULL, "made up from --seed in the shape that the model asks for", FROM_SEED, 0},
};
enum { NAMED = sizeof table / sizeof table[0] };

const char *eni_dataset_name_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].name : NULL;
}

const char *eni_dataset_help_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].help : NULL;
}

static const char *const idx_files[] = {
    "train-images-idx3-ubyte",    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte",
    "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte",     "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte",     "t10k-labels-idx1-ubyte.gz",  "train-images.idx3-ubyte",
    "train-images.idx3-ubyte.gz", "train-labels.idx1-ubyte",    "train-labels.idx1-ubyte.gz",
    "t10k-images.idx3-ubyte",     "t10k-images.idx3-ubyte.gz",  "t10k-labels.idx1-ubyte",
    "t10k-labels.idx1-ubyte.gz"};
enum { IDX_FILES = sizeof idx_files / sizeof *idx_files };

const char *eni_dataset_file_at(int i)
{
    if (i < 0) return NULL;
    if (i < IDX_FILES) return idx_files[i];
    if (i == IDX_FILES) return ENI_CIFAR_NAME;
    int nfirst = 0;
    while (eni_cifar_file(ENI_CIFAR_10, nfirst) != NULL)
        nfirst++;
    i -= IDX_FILES + 1;
    return i < nfirst ? eni_cifar_file(ENI_CIFAR_10, i) : eni_cifar_file(ENI_CIFAR_100, i - nfirst);
}

static const struct named *find_named(const char *name)
{
    for (int i = 0; i < NAMED; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

eni_data_want eni_data_want_of(const en_schema *schema)
{
    const en_extent *input = &schema->input;
    const int is_regression = schema->loss == EN_OP_MSE, outputs = (int)schema->outputs;
    return (eni_data_want){.height = (int)input->h,
                           .width = (int)input->w,
                           .channels = (int)input->c,
                           .classes = is_regression ? 0 : outputs,
                           .targets = is_regression ? outputs : 0};
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The source that the options resolve to. */
typedef struct set_source {
    const char *name; /* "folder": an unnamed set */
    const char *remedy;
    int from, kind;        /* of FROM_CIFAR: its form */
    int classes;           /* of FROM_IDX; 0: given by its labels */
    char folder[PATH_MAX]; /* "": synthetic */
} set_source;

static en_status refuse_unknown(const eni_data_options *options)
{
    char names[256] = "";
    EN_TRY(eni_cifar_refuse_other(options->name));
    for (int i = 0; i < NAMED; i++)
        eni_text_add(names, sizeof names, "%s, ", table[i].name);
    return eni_fail(EN_ENOENT, "dataset",
                    "no set or folder \"%s\": --data takes %sor a folder with the four IDX files of MNIST or "
                    "the .bin files of CIFAR",
                    options->name, names);
}

/* The folder of its files; NULL if it has none. */
static const char *folder_of(const struct named *named, const eni_data_options *options)
{
    if (named == NULL) return eni_is_url(options->name) ? options->folder : options->name;
    return named->folder != NULL && options->folder != NULL ? options->folder : named->folder;
}

static en_status find_set(const eni_data_options *options, set_source *source_out)
{
    const struct named *named = find_named(options->name);
    if (named == NULL && eni_is_url(options->name) &&
        (options->folder == NULL || !is_folder(options->folder)))
        return eni_fail(EN_ENOENT, "dataset", "%s: no folder %s with a local copy; name it with --data-dir",
                        options->name, options->folder != NULL ? options->folder : "(none was named)");
    if (named == NULL && !eni_is_url(options->name) && !is_folder(options->name))
        return refuse_unknown(options);
    set_source *s = source_out;
    *s = (set_source){.name = "folder",
                      .remedy = "a set is four files, {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or "
                                ".gz; or the .bin files of CIFAR"};
    if (named != NULL)
        s->name = named->name, s->remedy = named->remedy, s->from = named->from, s->classes = MNIST_CLASSES;
    if (s->from == FROM_SEED) return EN_OK;
    const char *folder = folder_of(named, options);
    const int found =
        eni_cifar_find(folder, named != NULL && s->from == FROM_CIFAR ? named->kind : -1, s->folder);
    if (named == NULL && found >= 0) s->from = FROM_CIFAR;
    if (s->from == FROM_IDX) snprintf(s->folder, sizeof s->folder, "%s", folder);
    s->kind = named == NULL ? found : named->kind;
    if (found >= 0 && s->from == FROM_CIFAR && found == s->kind) return EN_OK;
    if (s->from == FROM_CIFAR && found >= 0)
        return eni_fail(EN_EFORMAT, "dataset", "%s has the files of %s, not of %s: give --data=%s", s->folder,
                        found == ENI_CIFAR_10 ? "cifar10" : "cifar100", named->name,
                        found == ENI_CIFAR_10 ? "cifar10" : "cifar100");
    if (s->from == FROM_CIFAR || named == NULL) EN_TRY(eni_cifar_refuse_other(folder));
    if (s->from == FROM_IDX) return EN_OK;
    return eni_fail(EN_ENOENT, "dataset", "%s has no file %s: %s", folder, eni_cifar_file(s->kind, 0),
                    s->remedy);
}

/* Only CIFAR is called CIFAR: a set of its form but another size gets the form's name. */
static void name_by_size(const set_source *source, eni_dataset *set)
{
    if (source->from != FROM_CIFAR || strcmp(set->name, source->name) != 0 || find_named(set->name) == NULL)
        return;
    if (set->split[ENI_TRAIN].count == 50000 && set->split[ENI_TEST].count == 10000) return;
    eni_text_add(set->name, sizeof set->name, "-form");
}

static en_status read_set(const eni_data_options *options, const set_source *source, eni_dataset *set)
{
    snprintf(set->name, sizeof set->name, "%s", source->name);
    eni_debug("dataset", "reading %s", set->name);
    if (source->from == FROM_SEED) return eni_dataset_make(options, set);
    if (source->from == FROM_IDX)
        return eni_dataset_read_folder(source->folder, source->remedy, source->classes, set);
    EN_TRY(eni_cifar_read(source->kind, source->folder, set));
    name_by_size(source, set);
    return EN_OK;
}

en_status eni_dataset_train_size(const eni_data_options *options, uint64_t *size_out)
{
    set_source source;
    EN_TRY(find_set(options, &source));
    *size_out = eni_dataset_made_size(options);
    return source.from == FROM_IDX     ? eni_dataset_folder_size(source.folder, source.remedy, size_out)
           : source.from == FROM_CIFAR ? eni_cifar_size(source.kind, source.folder, size_out)
                                       : EN_OK;
}

en_status eni_dataset_shape(const eni_data_options *options, en_data_shape *shape_out)
{
    set_source source;
    *shape_out = (en_data_shape){0};
    EN_TRY(find_set(options, &source));
    if (source.from == FROM_IDX)
        EN_TRY(eni_dataset_folder_shape(source.folder, source.remedy, source.classes, shape_out));
    if (source.from == FROM_CIFAR) eni_cifar_shape(source.kind, shape_out);
    if (source.from == FROM_SEED) shape_out->height = shape_out->width = eni_dataset_made_side(options);
    return shape_out->height == 0 ? EN_OK : eni_pixels_shape(&options->transform, shape_out);
}

static en_status refuse_limit(const eni_data_options *options, int split, uint64_t limit, uint64_t count)
{
    return eni_fail(EN_EINVAL, "dataset",
                    "--limit-%s-samples %llu exceeds the %llu samples of %s%s: give at most that many",
                    split == ENI_TRAIN ? "train" : "test", (ull)limit, (ull)count, options->name,
                    split == ENI_TRAIN && options->holdout > 0 ? " that --holdout leaves" : "");
}

/* Before anything is read: the rest must be worth training on. */
static en_status check_holdout(const eni_data_options *options)
{
    uint64_t size;
    if (options->holdout == 0) return EN_OK;
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->holdout <= eni_dataset_most_held_out(size)) return EN_OK;
    return eni_fail(EN_EINVAL, "dataset",
                    "--holdout=%llu exceeds a tenth of the %llu training samples of %s: give at most %llu",
                    (ull)options->holdout, (ull)size, options->name, (ull)eni_dataset_most_held_out(size));
}

en_status eni_dataset_check(const eni_data_options *options)
{
    uint64_t size;
    EN_TRY(check_holdout(options));
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->limit_train <= size - options->holdout) return EN_OK;
    return refuse_limit(options, ENI_TRAIN, options->limit_train, size - options->holdout);
}

/* Holds out the last samples; they stay in the training samples' memory. */
static void hold_out(uint64_t n, eni_dataset *set)
{
    eni_split *train = &set->split[ENI_TRAIN], *held = &set->split[ENI_HOLDOUT];
    const uint64_t rest = train->count - n;
    train->count = rest;
    held->count = n;
    held->first = rest;
    if (set->records != NULL) return;
    held->x = (uint8_t *)train->x + rest * eni_stored_x_bytes(set);
    held->target = (uint8_t *)train->target + rest * eni_stored_target_bytes(set);
}

/* Truncates real sets to their limit; synthetic ones were made at it. */
static en_status apply_limits(const eni_data_options *options, eni_dataset *set)
{
    const uint64_t limit[2] = {options->limit_train, options->limit_test};
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++)
        set->split[s].read = set->split[s].count;
    if (options->holdout > set->split[ENI_TRAIN].count)
        return EN_EPROTO; /* the shared set is a different one */
    if (options->holdout > 0) hold_out(options->holdout, set);
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        if (limit[s] > set->split[s].count) return refuse_limit(options, s, limit[s], set->split[s].count);
        if (limit[s] > 0) set->split[s].count = limit[s];
    }
    return EN_OK;
}

static en_status check_labels(const eni_dataset *set)
{
    for (int s = 0; s < ENI_SPLITS && set->records != NULL; s++)
        EN_TRY(eni_cifar_check_labels(set->records, s == ENI_TEST, set->split[s].first, set->split[s].count));
    for (int s = 0; s < ENI_SPLITS && set->classes > 0 && set->records == NULL; s++) {
        const uint8_t *labels = set->split[s].target;
        for (uint64_t i = 0; i < set->split[s].count; i++) {
            if (labels[i] < set->classes) continue;
            return eni_fail(EN_EFORMAT, "dataset", "%s: label %u of %s sample %llu is outside 0 .. %d%s",
                            set->name, labels[i],
                            s == ENI_TRAIN  ? "training"
                            : s == ENI_TEST ? "test"
                                            : "held-out",
                            (ull)i, set->classes - 1,
                            find_named(set->name) != NULL ? ""
                                                          : ", the gap-free classes of its training samples");
        }
    }
    return EN_OK;
}

static en_status fit_want(const eni_data_want *want, eni_dataset *set)
{
    const eni_pixels *p = &set->pixels;
    /* outputs beyond the classes are never the label */
    const bool fits_classes = want->classes == 0 || (set->classes > 0 && set->classes <= want->classes);
    const bool same = (want->height == 0 || want->height == p->height) &&
                      (want->width == 0 || want->width == p->width) &&
                      (want->channels == 0 || want->channels == set->channels * p->repeat) &&
                      (want->targets == 0 || want->targets == set->targets);
    /* a vector model accepts an image of as many values, flattened */
    const bool flat = want->height == 1 && want->width == 1 && want->targets == 0 &&
                      (size_t)want->channels == set->sample_floats;
    if (fits_classes && (same || flat)) return EN_OK;
    return eni_fail(EN_EMISMATCH, "dataset",
                    "%s has samples of %d x %d x %d with %d classes and %d targets, but the model needs %d x "
                    "%d x %d with %d and %d: choose another --data or --model",
                    set->name, p->height, p->width, set->channels, set->classes, set->targets, want->height,
                    want->width, want->channels, want->classes, want->targets);
}

/* Plans the pixels' transform, and checks that the model accepts its output. */
static en_status plan_pixels(const eni_data_options *options, eni_dataset *set)
{
    /* The customary constants: PyTorch's MNIST example for every grey set, including Fashion-MNIST (as in the peer of that
     * benchmark), and for synthetic ones; means over the training images for CIFAR. */
    static const eni_transform grey = {.nchannels = 1, .mean = {0.1307f}, .deviation = {0.3081f}};
    static const eni_transform cifar_10 = {
        .nchannels = 3, .mean = {0.4914f, 0.4822f, 0.4465f}, .deviation = {0.2023f, 0.1994f, 0.2010f}};
    static const eni_transform cifar_100 = {
        .nchannels = 3, .mean = {0.5071f, 0.4867f, 0.4408f}, .deviation = {0.2675f, 0.2565f, 0.2761f}};
    eni_transform t = options->transform;
    const eni_data_want *want = &options->want;
    const eni_image_layout stored = {set->height, set->width, set->channels, set->records != NULL};
    const eni_transform *own = set->records == NULL ? &grey : set->classes == 10 ? &cifar_10 : &cifar_100;
    if (set->classes == 0 && (t.resize > 0 || t.crop > 0 || t.has_flip || t.nchannels > 0))
        return eni_fail(
            EN_EINVAL, "dataset",
            "--resize, --augment and --normalize are for images, which %s does not have here: omit them",
            set->name);
    if (t.nchannels == 0) {
        t.nchannels = own->nchannels;
        memcpy(t.mean, own->mean, sizeof t.mean);
        memcpy(t.deviation, own->deviation, sizeof t.deviation);
    }
    set->seed = options->seed;
    const bool is_grey = want->channels == 3 && set->channels == 1 && set->classes > 0 && want->height != 1;
    const int repeat = is_grey ? 3 : 1; /* grey for a colour model */
    EN_TRY(eni_pixels_init(&t, &stored, repeat, &set->pixels));
    set->sample_floats =
        (size_t)set->pixels.height * (size_t)set->pixels.width * (size_t)set->channels * (size_t)repeat;
    return fit_want(want, set);
}

/* ---- lifetime ---- */

/* For records the sharing process stored only their number: every process maps the files itself. */
static en_status open_shared(const eni_data_options *options, eni_dataset *set)
{
    bool has_records;
    set_source source;
    EN_TRY(eni_dataset_map(*options->share_fd, options->identity, set, &has_records));
    if (!has_records) return EN_OK;
    const uint64_t train = set->split[ENI_TRAIN].count, test = set->split[ENI_TEST].count;
    set->split[ENI_TRAIN] = set->split[ENI_TEST] = (eni_split){0}; /* counted again from the files */
    EN_TRY(find_set(options, &source));
    if (source.from != FROM_CIFAR) return EN_EPROTO;
    EN_TRY(read_set(options, &source, set));
    return set->split[ENI_TRAIN].count == train && set->split[ENI_TEST].count == test ? EN_OK : EN_EPROTO;
}

static en_status fill(const eni_data_options *options, eni_dataset *set)
{
    set_source source;
    if (options->share_fd != NULL) return open_shared(options, set);
    EN_TRY(find_set(options, &source));
    return read_set(options, &source, set);
}

en_status eni_dataset_open(const eni_data_options *options, eni_dataset **dataset_out)
{
    en_status st;
    eni_dataset *set = eni_alloc(sizeof *set);
    if (set == NULL) return EN_ENOMEM;
    EN_TRY_GOTO(check_holdout(options), close_set);
    EN_TRY_GOTO(fill(options, set), close_set);
    EN_TRY_GOTO(plan_pixels(options, set), close_set);
    EN_TRY_GOTO(apply_limits(options, set), close_set);
    EN_TRY_GOTO(check_labels(set), close_set);
    *dataset_out = set;
    return EN_OK;
close_set:
    eni_dataset_close(set);
    return st;
}

/* ---- identity ---- */

/* The file's state now, or that it is absent. */
static int describe_file(const char *folder, const char *name, char *text_out, size_t bytes)
{
    char path[PATH_MAX];
    struct stat s;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path || stat(path, &s) != 0)
        return 0;
    return snprintf(text_out, bytes, "%s %llu %llu %lld %lld.%09ld %lld.%09ld\n", name, (ull)s.st_dev,
                    (ull)s.st_ino, (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec,
                    (long long)s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
}

/* The i-th of all files that it may be read from; NULL after the last. */
static const char *file_of(const set_source *source, int i)
{
    if (source->from == FROM_SEED) return NULL;
    if (source->from == FROM_IDX) return i < IDX_FILES ? idx_files[i] : NULL;
    return i == 0 ? ENI_CIFAR_NAME : eni_cifar_file(source->kind, i - 1);
}

en_status eni_dataset_identity(const eni_data_options *options, const char *scope,
                               char hex_out[ENI_DIGEST_HEX])
{
    const eni_data_want *want = &options->want;
    set_source source;
    char text[8192];
    EN_TRY(find_set(options, &source));
    size_t at = (size_t)snprintf(text, 2048, "%.512s %u\n%.256s %llu %llu %llu %llu %d %d %d %d %d %d\n",
                                 scope, (unsigned)geteuid(), options->name, (ull)options->seed,
                                 (ull)options->holdout, (ull)options->limit_train, (ull)options->limit_test,
                                 want->height, want->width, want->channels, want->classes, want->targets,
                                 source.from == FROM_SEED ? eni_dataset_made_side(options) : 0);
    for (int i = 0; file_of(&source, i) != NULL; i++)
        at += (size_t)describe_file(source.folder, file_of(&source, i), text + at, sizeof text - at);
    eni_digest_of(text, at, hex_out);
    return EN_OK;
}
