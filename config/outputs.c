/* outputs.c - the folder of --out: its lock, the list of possible files, and what --overwrite removes. */
#include "config/outputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/folders.h"
#include "config/keys.h"
#include "core/checkpoint_name.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { LOCK_TRIES = 30, LOCK_WAIT_MS = 10, NAMED = 4 }; /* a killed process takes a moment to exit */

/* ---- file names ---------------------------------------------------------------------------------------- */

enum { OF_RUN = 1, OF_STUDY = 2, OURS = 4, FIGURE = 8, CHECKPOINT = 16, RUNS = 32 };

/* Patterns for fnmatch: all files that a run or study writes, apart from its folders, and those that show that one has
 * begun. */
static const struct {
    const char *pattern;
    unsigned kinds;
} known_files[] = {{"@(result.json|config.yaml|eval.jsonl|metrics-@(all|+([0-9])).jsonl)", OURS | OF_RUN},
                   {"@(compare|scale).json", OURS | OF_STUDY},
                   {"@(report.html|table.tex|@(result|compare|scale|report).json)?(.*).tmp", OURS},
                   {"trace.json?(.rank+([0-9])|.psd*([0-9]))", OURS},
                   {"@(snapshots|entrain-snapshots-*|report.html|report.json|table.tex|report.html.part|"
                    "events.out.tfevents.*)",
                    OURS},
                   {"@(scale|table|comparisons|runs).csv", OURS},
                   {"*.@(svg|pdf|gp|csv)", FIGURE}};

static bool is_of(const char *name, unsigned kind)
{
    uint64_t samples;
    for (size_t i = 0; i < sizeof known_files / sizeof *known_files; i++)
        if ((known_files[i].kinds & kind) != 0 && fnmatch(known_files[i].pattern, name, FNM_EXTMATCH) == 0)
            return true;
    return kind == CHECKPOINT && (eni_checkpoint_is(name, &samples) || eni_checkpoint_is_left(name));
}

/* ---- contents ------------------------------------------------------------------------------------------ */

typedef struct holding {
    bool is_run, is_study, is_finished;
    bool has_report, has_checkpoint;
    bool has_other_budget; /* a finished run with other --epochs, --steps or --max-samples */
    int nnamed;
    char named[200]; /* some of the files: "result.json, metrics-0.jsonl" */
} holding;

static void name_one(holding *h, const char *name)
{
    if (h->nnamed++ < NAMED)
        eni_text_add(h->named, sizeof h->named, "%s%.60s", h->named[0] != 0 ? ", " : "", name);
}

en_status eni_out_checkpoints(const eni_config *config, char *dir_out, size_t bytes)
{
    if (config->checkpoint_dir != NULL)
        snprintf(dir_out, bytes, "%s", config->checkpoint_dir);
    else if (config->out != NULL)
        snprintf(dir_out, bytes, "%s/checkpoints", config->out);
    else
        return EN_ENOENT;
    return EN_OK;
}

static bool has_checkpoint(const char *dir)
{
    uint64_t newest;
    return eni_checkpoint_list(dir, "", &newest, 1) > 0;
}

en_status eni_out_newest(const eni_config *config, char *path_out, size_t bytes)
{
    char dir[1200];
    uint64_t newest;
    EN_TRY(eni_out_checkpoints(config, dir, sizeof dir));
    if (eni_checkpoint_list(dir, "", &newest, 1) == 0) return EN_ENOENT;
    eni_checkpoint_path(dir, newest, path_out, bytes);
    return EN_OK;
}

static void look_at_run(int fd, const eni_config *config, holding *h)
{
    json_t *result = eni_json_load_at(fd, "result.json");
    const json_t *budget = json_object_get(result, "budget");
    h->is_finished = eni_json_says(result, "exit", "ok");
    h->has_other_budget =
        budget != NULL && (eni_json_int_of(budget, "epochs") != (uint64_t)config->epochs ||
                           eni_json_int_of(budget, "steps") != (uint64_t)config->steps ||
                           eni_json_int_of(budget, "max_samples") != (uint64_t)config->max_samples);
    json_decref(result);
}

static void look_at_study(int fd, holding *h)
{
    json_t *study = eni_json_load_at(fd, "compare.json"), *run;
    const json_t *planned = json_object_get(study, "planned");
    json_int_t done = 0;
    size_t i;
    json_array_foreach(json_object_get(study, "runs"), i, run)
    {
        const json_t *code = json_object_get(run, "exit");
        done += json_is_integer(code) && json_integer_value(code) == 0;
    }
    h->is_finished =
        study == NULL || (h->has_report && planned != NULL && done >= json_integer_value(planned));
    json_decref(study);
}

/* A duplicate of the folder's descriptor that reads from the start. */
static DIR *open_again(int fd)
{
    const int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (dir == NULL && copy >= 0) close(copy);
    return dir;
}

static void look_at_names(int fd, const char *path, holding *h)
{
    static const char *const telling[] = {"compare.json", "scale.json", "result.json", "config.yaml",
                                          "eval.jsonl"};
    char checkpoints[1200];
    struct stat is;
    bool has_metrics = false;
    *h = (holding){0};
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++) {
        if (fstatat(fd, telling[i], &is, AT_SYMLINK_NOFOLLOW) != 0) continue;
        h->is_study |= is_of(telling[i], OF_STUDY);
        h->is_run |= is_of(telling[i], OF_RUN);
        name_one(h, telling[i]);
    }
    h->has_report = fstatat(fd, "report.html", &is, 0) == 0;
    DIR *dir = open_again(fd);
    for (const struct dirent *e; dir != NULL && !has_metrics && (e = readdir(dir)) != NULL;)
        has_metrics = strncmp(e->d_name, "metrics-", 8) == 0 && is_of(e->d_name, OF_RUN);
    if (dir != NULL) closedir(dir);
    if (has_metrics) name_one(h, "metrics-*.jsonl");
    snprintf(checkpoints, sizeof checkpoints, "%.1000s/checkpoints", path);
    const bool has_saved = has_checkpoint(checkpoints);
    if (has_saved) name_one(h, "checkpoints");
    h->is_run |= has_metrics || has_saved;
}

static void look(int fd, const char *path, const eni_config *config, holding *h)
{
    char checkpoints[1200];
    look_at_names(fd, path, h);
    if (eni_out_checkpoints(config, checkpoints, sizeof checkpoints) == EN_OK)
        h->has_checkpoint = has_checkpoint(checkpoints);
    if (h->is_study)
        look_at_study(fd, h);
    else if (h->is_run)
        look_at_run(fd, config, h);
}

/* ---- permission to write ------------------------------------------------------------------------------- */

static bool is_auto(const eni_config *config)
{
    return config->resume != NULL && strcmp(config->resume, "auto") == 0;
}

/* Whether --resume=PATH is a checkpoint of this folder's run. */
static bool is_its_own(const eni_config *config)
{
    char dir[1200], path[1200];
    struct stat a, b;
    if (eni_out_checkpoints(config, dir, sizeof dir) != EN_OK) return false;
    snprintf(path, sizeof path, "%s", config->resume);
    return stat(dir, &a) == 0 && stat(dirname(path), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_over(const eni_config *config, const char *path, const holding *h)
{
    if (!is_auto(config) || !h->is_run || h->is_study || !h->is_finished || h->has_other_budget) return false;
    eni_info("out", "--resume=auto: the run in %s is finished; nothing is left to do", path);
    return true;
}

/* EN_EINVAL, logged with the contents and the remedies. */
static en_status refuse(const eni_config *config, const char *path, const holding *h)
{
    const bool may_resume = !h->is_finished && eni_config_takes(config, "resume");
    return eni_fail(EN_EINVAL, "out",
                    "--out=%s has %s %s (%s%s): %s--overwrite replaces it, another --out keeps it", path,
                    h->is_finished ? "a finished" : "an unfinished", h->is_study ? "study" : "run", h->named,
                    h->nnamed > NAMED ? ", .." : "", may_resume ? "--resume=auto resumes it, " : "");
}

static en_status refuse_resume(const eni_config *config, const char *path, const holding *h, eni_out_use use)
{
    if (h->is_study && use == ENI_OUT_RUN)
        eni_error("out", "--resume: --out=%s has a study (%s); resume it with `entrain compare --resume`",
                  path, h->named);
    else if (use == ENI_OUT_STUDY)
        eni_error("out", "--resume: --out=%s has a run (%s); resume it with `entrain run --resume`", path,
                  h->named);
    else if (is_auto(config))
        eni_error("out",
                  "--resume=auto: --out=%s has a finished run (%s) without a checkpoint to resume from: "
                  "--overwrite in place of --resume replaces it, another --out keeps it",
                  path, h->named);
    else
        eni_error("out",
                  "--resume=%s: --out=%s has %s run (%s), and the checkpoint is not from it: another --out "
                  "keeps it",
                  config->resume, path, h->is_finished ? "a finished" : "another", h->named);
    return EN_EINVAL;
}

static en_status decide_resume(const eni_config *config, const char *path, const holding *h, eni_out_use use)
{
    const bool is_longer = h->is_finished && h->has_other_budget && h->has_checkpoint;
    bool may = false;
    if (use == ENI_OUT_STUDY)
        may = h->is_study; /* compare.c checks that it is the same */
    else if (use == ENI_OUT_RUN && !h->is_study)
        may = (!h->is_finished || is_longer) && (is_auto(config) || is_its_own(config));
    return may ? EN_OK : refuse_resume(config, path, h, use);
}

static en_status decide(const eni_config *config, const char *path, const holding *h, eni_out_use use)
{
    if (config->resume != NULL && config->overwrite)
        return eni_fail(
            EN_EINVAL, "out",
            "--resume continues the run in --out=%s, but --overwrite replaces it: give only one of them",
            path);
    if ((!h->is_run && !h->is_study) || config->overwrite) return EN_OK;
    if (use == ENI_OUT_RUN && is_over(config, path, h)) return EN_ESTOP;
    return config->resume != NULL ? decide_resume(config, path, h, use) : refuse(config, path, h);
}

/* ---- locking ------------------------------------------------------------------------------------------- */

static bool lock(int fd)
{
    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
        poll(NULL, 0, LOCK_WAIT_MS);
    }
    return false;
}

en_status eni_out_take(const eni_config *config, const char *path, eni_out_use use, int *fd_out)
{
    holding h;
    EN_TRY(eni_folder_check("--out", path));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return eni_fail(EN_EINVAL, "out", "--out=%s: cannot open the folder: %s; name another", path,
                        strerror(errno));
    en_status st;
    if (!lock(fd)) {
        st = eni_fail(EN_EINVAL, "out",
                      "--out=%s: another run is writing there: wait until it ends (`entrain ps`), or give "
                      "another folder",
                      path);
    } else {
        look(fd, path, config, &h);
        st = decide(config, path, &h, use);
    }
    if (st == EN_OK)
        *fd_out = fd;
    else
        close(fd);
    return st;
}

en_status eni_out_ask(const eni_config *config, const char *path)
{
    holding h;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return EN_OK;
    look(fd, path, config, &h);
    close(fd);
    return is_over(config, path, &h) ? EN_ESTOP : EN_OK;
}

/* ---- clearing ------------------------------------------------------------------------------------------ */

static en_status clear(int fd, const char *path, unsigned kind);

/* Clears a folder inside ours, not a link to one, and removes it if nothing else is left in it. */
static en_status clear_inside(int fd, const char *path, const char *name, unsigned kind)
{
    const int inside = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inside < 0) return EN_OK;
    const en_status st = clear(inside, path, kind);
    close(inside);
    unlinkat(fd, name, AT_REMOVEDIR);
    return st;
}

static en_status clear(int fd, const char *path, unsigned kind)
{
    en_status st = kind == OURS ? clear_inside(fd, path, "checkpoints", CHECKPOINT) : EN_OK;
    DIR *dir = st == EN_OK ? open_again(fd) : NULL;
    for (const struct dirent *e; dir != NULL && st == EN_OK && (e = readdir(dir)) != NULL;)
        if (kind == RUNS && e->d_name[0] != '.')
            st = clear_inside(fd, path, e->d_name, OURS);
        else if (is_of(e->d_name, kind) && unlinkat(fd, e->d_name, 0) != 0 && errno != ENOENT &&
                 errno != EISDIR)
            st = eni_fail(EN_EIO, "out", "--overwrite: cannot remove %s/%s: %s", path, e->d_name,
                          strerror(errno));
    if (dir != NULL) closedir(dir);
    return st;
}

en_status eni_out_clear(int fd, const char *path)
{
    struct stat is;
    holding h;
    look_at_names(fd, path, &h);
    if (!h.is_run && !h.is_study) return EN_OK; /* a report.html alone may not be ours */
    if (fstatat(fd, "compare.json", &is, AT_SYMLINK_NOFOLLOW) == 0) {
        EN_TRY(clear_inside(fd, path, "runs", RUNS));
        EN_TRY(clear_inside(fd, path, "plots", FIGURE));
    }
    return clear(fd, path, OURS);
}
