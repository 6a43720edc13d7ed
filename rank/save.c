/* save.c - when a run is saved, and the thread that writes; see save.h. */
#include "rank/save.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/checkpoint_name.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/try.h"
#include "rank/shutdown.h"
#include "runtime/store/store.h"

struct eni_saver {
    uint64_t every, next; /* global samples */
    uint64_t last;        /* samples of the last boundary that was saved, here or in the past */
    char dir[1024];
    int folder; /* rank 0: open, and locked against a second run; -1 */

    /* the write under way: the thread's until it is joined */
    pthread_t thread;
    bool is_writing;
    eni_checkpoint job;
    const en_schema *schema;
    en_status status;
    uint64_t next_try; /* for the message of a failure */
};

/* ---- obstacles ---- */

/* Why a checkpoint cannot hold the strategy's state. NULL: it can. */
static const char *obstacle(const eni_rank *self)
{
    const en_strategy *s = self->job.strategy;
    if (s->partition_state > 0) return "its store keeps state besides the weights";
    if (s->peer_vecs > 0) return "its store keeps vectors for every worker";
    if (s->flags & EN_STORE_ON_RANKS) return "its ranks keep stores of their own";
    if (self->job.is_claiming && s->state > 0) return "its ranks keep state but share no common step";
    if (self->job.is_claiming && self->job.has_own)
        return "its program keeps memories of each rank (EN_MEMORY_EACH), but its ranks share no common step";
    if (!(s->flags & EN_STORE_ON_SERVERS) || self->job.is_claiming ||
        eni_options_are_synchronous(s, self->job.options))
        return NULL;
    return s->flags & EN_SYNCHRONOUS_BY_DEFAULT
               ? "with options of its own its ranks share no common step: omit them"
               : "with --assign=fixed its ranks share no common step: omit --assign";
}

static en_status refuse(const eni_rank *self, const char *why)
{
    if (why == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "save", "--checkpoint-every=%lld: %s cannot be saved: %s",
                    (long long)self->saving.asked.every, self->job.strategy->name, why);
}

static en_status refuse_mixing(const char *dir)
{
    return eni_fail(EN_EINVAL, "save",
                    "%s holds checkpoints of an earlier run: use --resume=auto to resume the newest, or "
                    "another --checkpoint-dir or --out to start over",
                    dir);
}

en_status eni_save_check(const eni_rank *self)
{
    const eni_save_options *asked = &self->saving.asked;
    const char *dir = asked->dir;
    uint64_t newest;
    if (asked->every == 0) return EN_OK;
    if (dir[0] == 0)
        return eni_fail(
            EN_EINVAL, "save",
            "--checkpoint-every=%lld: no folder for them; use --checkpoint-dir=FOLDER, or --out=FOLDER",
            (long long)asked->every);
    EN_TRY(refuse(self, obstacle(self)));
    if (eni_checkpoint_list(dir, "", &newest, 1) == 0) return EN_OK;
    if (self->saving.is_resumed &&
        (newest <= self->saving.past.samples || strcmp(asked->resume, "auto") == 0))
        return EN_OK;
    if (self->saving.is_resumed)
        return eni_fail(
            EN_EINVAL, "save",
            "%s holds a newer checkpoint (sample %llu) than the one to resume (%llu), which the next "
            "--resume=auto would take: use another --checkpoint-dir or --out, or remove the newer ones",
            dir, (unsigned long long)newest, (unsigned long long)self->saving.past.samples);
    return asked->may_replace ? EN_OK : refuse_mixing(dir);
}

/* ---- open ---- */

/* A lock on the folder itself leaves no file behind, and is gone with its process. */
static en_status take_folder(eni_saver *s)
{
    s->folder = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0 || access(s->dir, W_OK) != 0)
        return eni_fail(EN_EINVAL, "save", "cannot write into %s: %s; choose another --checkpoint-dir",
                        s->dir, strerror(errno));
    if (flock(s->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return eni_fail(EN_EINVAL, "save",
                        "another run writes its checkpoints into %s: choose another --checkpoint-dir",
                        s->dir);
    int swept = eni_checkpoint_sweep(s->dir);
    if (swept > 0) eni_info("save", "%d unfinished file(s) of a killed run removed from %s", swept, s->dir);
    return EN_OK;
}

en_status eni_save_open(eni_rank *self)
{
    if (self->saving.asked.every == 0) return EN_OK;
    eni_saver *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    self->saving.saver = s;
    s->folder = -1;
    s->schema = &self->job.schema;
    s->every = self->saving.asked.every;
    s->last = self->saving.is_resumed ? self->saving.past.samples : 0;
    s->next = (s->last / s->every + 1) * s->every;
    memcpy(s->dir, self->saving.asked.dir, sizeof s->dir);
    if (self->world.rank != 0) return EN_OK;
    uint64_t left; /* not removed from behind a link */
    if (!self->saving.is_resumed && eni_checkpoint_list(s->dir, "", &left, 1) > 0)
        return refuse_mixing(s->dir);
    return take_folder(s);
}

/* ---- the write ---- */

/* Training goes on whatever happens here; the older ones stay until this one is durable. */
static void *write_main(void *user)
{
    eni_saver *s = user;
    char why[ENI_ST_WHY];
    s->status = eni_checkpoint_write(&s->job, s->schema, s->dir, why);
    if (s->status == EN_OK) {
        eni_checkpoint_retire(s->dir, s->job.samples);
        return NULL;
    }
    const char *remedy = s->status == EN_ENONFINITE
                             ? "training has diverged: resume an earlier one with a smaller --lr"
                             : "free space there, or choose another --checkpoint-dir";
    eni_warn("save",
             "no checkpoint at sample %llu: %s; training goes on, earlier checkpoints are kept, the next is "
             "tried at sample %llu; %s",
             (unsigned long long)s->job.samples, why, (unsigned long long)s->next_try, remedy);
    return NULL;
}

/* Waits for the write under way, and counts it. */
static void end_write(eni_saving *saving)
{
    eni_saver *s = saving->saver;
    if (!s->is_writing) return;
    pthread_join(s->thread, NULL);
    s->is_writing = false;
    if (s->status == EN_OK) {
        saving->nwritten++;
        eni_checkpoint_path(s->dir, s->job.samples, saving->last_path, sizeof saving->last_path);
    } else {
        saving->nfailed++;
    }
    eni_checkpoint_fini(&s->job);
}

static void begin_write(eni_saving *saving)
{
    eni_saver *s = saving->saver;
    s->next_try = s->next;
    int code = eni_thread_start(&s->thread, write_main, s);
    s->is_writing = code == 0;
    if (code == 0) return;
    eni_warn("save", "no checkpoint at sample %llu: cannot start a thread to write it: %s",
             (unsigned long long)s->job.samples, strerror(code));
    saving->nfailed++;
    eni_checkpoint_fini(&s->job);
}

/* ---- a boundary ---- */

en_status eni_save_check_strategy(const eni_rank *self)
{
    return self->saving.asked.every == 0 ? EN_OK : refuse(self, eni_collect_obstacle(self));
}

/* Makes points of the curve whole, too, since this moves tensors anyway. At the end of a run that is stopped,
 * which has little time, only after the checkpoint; else before it, so that a run that resumes it has them
 * all. */
static en_status save_at(eni_rank *self, uint64_t samples, bool is_end)
{
    eni_saver *s = self->saving.saver;
    const bool is_first = self->world.rank == 0;
    eni_member_note(self->member, (int64_t)self->records.stats.sum.steps, "checkpoint");
    EN_TRY(eni_save_check_strategy(self)); /* it may have changed since its first step */
    EN_TRY(eni_step_settle(self, true));
    EN_TRY(eni_trainer_bring(&self->trainer, true));
    /* before rank 0 can have it all: a kill loses no step behind a checkpoint */
    eni_recorder_flush(self->records.recorder);
    if (is_first) end_write(&self->saving);
    s->last = samples;
    if (is_first || !self->job.is_claiming) { /* claimed: rank 0 asks the store, nobody else is needed */
        const int64_t begin = eni_now_ns();
        EN_TRY(eni_collect_moment(self, samples, &s->job));
        eni_debug("save", "sample %llu copied in %.1f ms", (unsigned long long)samples,
                  (double)(eni_now_ns() - begin) * 1e-6);
    }
    if (is_first && is_end) begin_write(&self->saving), end_write(&self->saving);
    const en_status st = eni_snapshots_finish(self, false);
    if (is_first) eni_curve_keep(self->records.curve);
    if (is_first && !is_end) begin_write(&self->saving); /* whatever became of the points */
    return st;
}

en_status eni_save_step(eni_rank *self, uint64_t samples)
{
    eni_saver *s = self->saving.saver;
    const bool has_shown = self->records.stats.sum.steps == self->records.stats.begin_steps + 1;
    if (has_shown) EN_TRY(eni_save_check_strategy(self)); /* its first step shows what it did not declare */
    if (s == NULL || samples < s->next) return EN_OK;
    s->next = (samples / s->every + 1) * s->every;
    return save_at(self, samples, false);
}

/* The samples at which the run was stopped: all ranks are at the same step, or done with the store. */
static uint64_t end_samples(const eni_rank *self)
{
    return self->job.is_claiming ? 0
                                 : eni_plan_samples_before(&self->job.plan, self->records.stats.sum.steps);
}

en_status eni_save_wish(eni_rank *self)
{
    const eni_saver *s = self->saving.saver;
    const uint64_t samples = end_samples(self);
    if (self->job.is_claiming && self->world.rank != 0) return EN_OK;
    if (s == NULL && self->world.rank == 0)
        eni_warn("save", "a signal requested a checkpoint: without --checkpoint-every this run writes none");
    if (s == NULL || (!self->job.is_claiming && samples == s->last)) return EN_OK; /* it is there */
    if (self->world.rank == 0)
        eni_info("save", "writing a checkpoint, requested by a signal: training goes on");
    return save_at(self, samples, false);
}

en_status eni_save_finish(eni_rank *self)
{
    eni_saver *s = self->saving.saver;
    if (s == NULL) return EN_OK;
    uint64_t samples = end_samples(self);
    const bool is_early = self->job.is_claiming ? eni_shutdown_is_asked(self->shutdown)
                                                : samples < self->job.plan.samples && samples > s->last;
    if (is_early) EN_TRY(save_at(self, samples, true));
    if (self->world.rank == 0) end_write(&self->saving);
    return EN_OK;
}

void eni_save_close(eni_rank *self)
{
    eni_saver *s = self->saving.saver;
    if (s != NULL) end_write(&self->saving);
    if (s != NULL && s->folder >= 0) close(s->folder);
    eni_free(s);
    self->saving.saver = NULL;
    eni_checkpoint_fini(&self->saving.past);
}
