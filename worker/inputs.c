/* inputs.c - what a rank can find wrong by itself, before it meets anybody: whoever waits for it would learn
 * it later, and from somebody else. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/units.h"
#include "models/weights.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "worker/worker.h"

static en_status check_stragglers(const eni_worker *w)
{
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank < w->world.nranks)
            continue;
        eni_error("worker", "--straggler=%s: write RANK:FACTOR with a rank below %d, such as 1:3",
                  w->config->straggler.item[i], w->world.nranks);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* Made if it is not there; ranks may race to make it. */
static en_status check_folder(const char *flag, const char *path)
{
    struct stat is;
    if (path == NULL) return EN_OK;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        eni_error("worker", "%s=%s: cannot create it: %s; name a folder in one that exists and is writable",
                  flag, path, strerror(errno));
        return EN_EINVAL;
    }
    if (stat(path, &is) == 0 && !S_ISDIR(is.st_mode)) {
        eni_error("worker", "%s=%s: that is a file; name a folder", flag, path);
        return EN_EINVAL;
    }
    if (access(path, W_OK | X_OK) == 0) return EN_OK;
    eni_error("worker", "%s=%s: cannot write into it: %s; name another folder", flag, path, strerror(errno));
    return EN_EINVAL;
}

/* A file that is written at the end must be writable at the start, or the run is lost. */
static en_status check_target(const char *flag, const char *path)
{
    char folder[1024];
    struct stat is;
    if (path == NULL) return EN_OK;
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder - 16) {
        eni_error("worker", "%s: a path of %zu characters is too long; name a shorter one", flag,
                  strlen(path));
        return EN_EINVAL;
    }
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = 0;
    if (stat(path, &is) == 0 && !S_ISREG(is.st_mode)) {
        eni_error("worker", "%s=%s: that is no regular file; name a file", flag, path);
        return EN_EINVAL;
    }
    if (access(folder, W_OK) == 0) return EN_OK;
    eni_error("worker", "%s=%s: cannot write into %s: %s; name a file in a folder that is there", flag, path,
              folder, strerror(errno));
    return EN_EINVAL;
}

/* Rank 0's weights become everybody's. A rank that has none yet may become rank 0. */
static en_status read_init(eni_worker *w)
{
    if (w->config->init == NULL || w->world.rank > 0 || w->config->resume != NULL) return EN_OK;
    w->init = eni_alloc_array(w->schema.count, sizeof *w->init);
    if (w->init == NULL) return EN_ENOMEM;
    return eni_weights_load(w->config->init, &w->schema, w->init);
}

en_status eni_inputs_check(eni_worker *w)
{
    EN_TRY(check_stragglers(w));
    EN_TRY(check_folder("--out", w->config->out));
    if (w->world.rank <= 0) {
        EN_TRY(check_target("--save", w->config->save));
        EN_TRY(check_target("--trace", w->config->trace)); /* may lie in --out */
    }
    return read_init(w);
}
