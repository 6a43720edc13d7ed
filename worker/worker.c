/* worker.c - the life of a rank: open everything in order, train, report, close in reverse. */
#include "worker/save.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/env.h"
#include "config/outputs.h"
#include "config/units.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/sampler.h"
#include "models/registry.h"
#include "models/weights.h"
#include "ops/gpu_of_rank.h"
#include "runtime/control/failure.h"
#include "runtime/spec/plugin.h"
#include "worker/gpus.h"
#include "worker/vectors.h"
#include "worker/warmup.h"

enum { CURVE_BUDGET = 256 << 20, PREFETCH = 2, TRACE_SPANS = 1 << 18 };

en_status eni_worker_alive(void *worker)
{
    const eni_worker *w = worker;
    EN_TRY(eni_ending_status(w->ending));
    return w->member == NULL ? EN_OK : eni_member_status(w->member);
}

/* ---- what is trained ---- */

static en_status find_strategy(eni_worker *w)
{
    char word[ENI_STRATEGY_WORD_MAX];
    const char *given;
    EN_TRY(eni_plugin_split(w->config->strategy, word, &given));
    EN_TRY(eni_plugin_find(w->plugin_dir, word, &w->strategy));
    if (w->strategy->flags & EN_ALONE && w->world.nranks > 1) {
        eni_error("worker",
                  "%s trains in one process, here are %d workers: use -n 1, and --accumulate=%d for the "
                  "micro-batches of all",
                  w->strategy->name, w->world.nranks, w->world.nranks);
        return EN_EINVAL;
    }
    return eni_options_new(w->strategy, given, &w->options);
}

static en_status find_network(eni_worker *w)
{
    const en_network *network;
    EN_TRY(eni_network_get("--model", w->config->model, &network));
    EN_TRY(en_schema_init(network, &w->schema));
    return eni_schema_digest(&w->schema, w->schema_sha256);
}

static en_status open_data(eni_worker *w)
{
    eni_data_options options = {.name = w->config->data,
                                .folder = w->config->data_dir,
                                .holdout = (uint64_t)w->config->holdout,
                                .limit_train = (uint64_t)w->config->limit_train_samples,
                                .limit_test = (uint64_t)w->config->limit_test_samples,
                                .seed = (uint64_t)w->config->seed,
                                .want = eni_data_want_of(&w->schema)};
    const bool is_alone = w->world.nranks == 1 || w->config->local_size == 1;
    EN_TRY(is_alone ? eni_dataset_open(&options, &w->dataset) : eni_share_open(w, &options));
    return eni_dataset_sha256(w->dataset, w->data_sha256);
}

static en_status make_plan(eni_worker *w)
{
    const eni_config *c = w->config;
    int is_alone = w->world.nranks == 1 && !(w->strategy->flags & EN_STORE_ON_SERVERS);
    w->accumulate = c->accumulate;
    if (c->accumulate > 1 && !is_alone) {
        eni_error("worker",
                  "--accumulate=%lld is for one process without servers (solo); here %d workers run %s",
                  (long long)c->accumulate, w->world.nranks, w->strategy->name);
        return EN_EINVAL;
    }
    if (c->accumulate > ENI_MEAN_MAX) {
        eni_error("worker", "--accumulate=%lld: at most %d micro-batches make a step",
                  (long long)c->accumulate, ENI_MEAN_MAX);
        return EN_EINVAL;
    }
    /* Claiming suits whoever may make another number of steps than the others: a client of a store that waits
     * for nobody. Everybody else takes part in collectives, or in rounds. */
    int may_claim = w->strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) &&
                    !(w->strategy->flags & (EN_SYNCHRONOUS | EN_LEADERS_ARE_CLIENTS));
    w->is_claiming = may_claim && c->assign != ENI_ASSIGN_FIXED;
    if (c->assign == ENI_ASSIGN_CLAIM && !may_claim) {
        eni_error("worker", "--assign=claim: %s needs every rank in every step; use --assign=fixed",
                  w->strategy->name);
        return EN_EINVAL;
    }
    if (c->on_worker_loss == ENI_LOSS_CONTINUE && !may_claim) {
        eni_error("worker",
                  "--on-worker-loss=continue: %s needs every rank in every step, so it cannot go on without "
                  "one; ps-async and ssp can",
                  w->strategy->name);
        return EN_EINVAL;
    }
    eni_plan_options options = {.train_samples = w->dataset->split[ENI_TRAIN].count,
                                .world = (uint64_t)w->world.nranks * (uint64_t)w->accumulate,
                                .batch = (uint64_t)c->batch_size,
                                .epochs = (uint64_t)c->epochs,
                                .steps = (uint64_t)c->steps,
                                .max_samples = (uint64_t)c->max_samples,
                                .drop_last = c->drop_last};
    EN_TRY(eni_plan_make(&options, &w->plan));
    return eni_sampler_order_sha256(&w->plan, (uint64_t)c->seed, c->shuffle, w->order_sha256);
}

static en_status choose_optimizer(eni_worker *w)
{
    const eni_config *c = w->config;
    w->optimizer = eni_optimizer_find(c->optimizer);
    if (w->optimizer == NULL) {
        eni_error("worker", "--optimizer=%s: there is no such optimizer; sgd is there", c->optimizer);
        return EN_EINVAL;
    }
    w->hyper = (eni_hyper){
        .momentum = (float)c->momentum, .weight_decay = (float)c->weight_decay, .nesterov = c->nesterov};
    double scale = 1, world = (double)w->plan.world;
    if (w->strategy->flags & EN_SYNCHRONOUS)
        scale = c->lr_scale == ENI_SCALE_LINEAR ? world : c->lr_scale == ENI_SCALE_SQRT ? sqrt(world) : 1;
    static const eni_schedule_kind kinds[] = {ENI_LR_CONSTANT, ENI_LR_STEP, ENI_LR_COSINE};
    w->schedule = (eni_schedule){.kind = kinds[c->lr_schedule],
                                 .base = c->lr * scale,
                                 .gamma = c->lr_gamma,
                                 .step_samples = (uint64_t)c->lr_step,
                                 .warmup = (uint64_t)c->lr_warmup,
                                 .total = w->plan.samples};
    return EN_OK;
}

static en_status cut_buckets(eni_worker *w)
{
    const en_schema *s = &w->schema;
    eni_tensor_entry *table = eni_alloc_array(s->ntensors, sizeof *table);
    if (table == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < s->ntensors; i++) {
        const en_model_tensor *t = &s->tensors[i];
        uint64_t rows = t->ndim > 0 ? (uint64_t)t->shape[0] : 1;
        table[i] = (eni_tensor_entry){.name = t->name,
                                      .offset = t->offset,
                                      .count = t->count,
                                      .rows = rows,
                                      .cols = t->count / rows,
                                      .kind = t->kind};
    }
    en_status st = eni_buckets_new(table, s->ntensors, s->count,
                                   (uint64_t)(w->config->bucket_cap_mb * 1048576), &w->buckets);
    eni_free(table);
    return st;
}

/* ---- how it computes ---- */

/* A host's device is opened before anybody is met. Of a GPU only what can be known without its context: which
 * one it will be depends on who else is on this host. */
static en_status open_device(eni_worker *w)
{
    const eni_config *c = w->config;
    int local = c->local_size > 0 ? (int)c->local_size : w->world.nranks;
    int share = eni_host_info_cores() / (local > 0 ? local : 1);
    w->threads = c->threads > 0 ? (int)c->threads : share > 0 ? share : 1;
    if (eni_device_is_gpu(c->device)) {
        EN_TRY(eni_device_load("cuda", w->plugin_dir, &w->device.ops));
        return eni_gpu_check(c->device, w->device.ops, eni_device_host());
    }
    EN_TRY(eni_device_open(c->device, w->plugin_dir, w->threads, &w->device));
    return en_model_new(&w->schema, w->device.ops, w->device.ctx, NULL, &w->model);
}

/* Every batch size that the run will meet is planned before step 0: the step path allocates nothing. */
static en_status prepare_model(eni_worker *w)
{
    uint64_t sizes[ENI_BATCH_SIZES];
    const int nsizes = eni_batch_sizes(w, sizes);
    const int keep = w->device.ops->gpu != NULL ? EN_MODEL_KEEP : 0; /* graphs have its addresses */
    EN_TRY(en_model_prepare(w->model, (int64_t)w->plan.batch, EN_MODEL_TRAIN | keep));
    for (int i = 0; i < nsizes; i++)
        if (sizes[i] != w->plan.batch) EN_TRY(en_model_prepare(w->model, (int64_t)sizes[i], EN_MODEL_TRAIN));
    return w->world.rank == 0 ? eni_evaluate_open(w) : EN_OK;
}

static en_status open_vectors(eni_worker *w)
{
    int is_alone = w->world.nranks == 1 && !(w->strategy->flags & EN_STORE_ON_SERVERS);
    EN_TRY(eni_arena_open(w->schema.count, ENI_ARENA_NSLOTS, !is_alone, &w->arena));
    if (!is_alone || eni_worker_is_on_gpu(w)) return EN_OK;
    w->micro_grads = eni_alloc_array((size_t)w->accumulate, sizeof *w->micro_grads);
    if (w->micro_grads == NULL) return EN_ENOMEM;
    for (int64_t i = 0; i < w->accumulate; i++) {
        w->micro_grads[i] = eni_alloc_array(w->schema.count, sizeof(float));
        if (w->micro_grads[i] == NULL) return EN_ENOMEM;
    }
    return EN_OK;
}

/* ---- the run ---- */

/* By when an answer is due from a leader that answers within `timeout_ns`, once it is back. */
static int64_t answer_by(const eni_worker *w, int64_t timeout_ns)
{
    return eni_now_ns() + w->config->server_timeout_ns + timeout_ns;
}

static en_status claim(void *user, uint64_t *micro_batch_out)
{
    eni_worker *w = user;
    EN_TRY(eni_member_claim(w->member, micro_batch_out, answer_by(w, 60 * ENI_SECOND)));
    *micro_batch_out += w->first_micro; /* the budget is what was left (join.c) */
    return EN_OK;
}

static en_status start_loader(eni_worker *w)
{
    eni_loader_options options = {.dataset = w->dataset,
                                  .plan = &w->plan,
                                  .seed = (uint64_t)w->config->seed,
                                  .shuffle = w->config->shuffle,
                                  .depth = PREFETCH,
                                  .first = w->first_micro + (uint64_t)w->world.rank,
                                  .stride = (uint64_t)w->world.nranks,
                                  .user = w};
    if (w->is_claiming) options.claim = claim;
    eni_gpu_loader(w, &options);
    EN_TRY(eni_loader_start(&options, &w->loader));
    return eni_gpu_open_prefetch(w);
}

static void open_straggler(eni_worker *w)
{
    w->straggler = (eni_straggler){.factor = 1, .seed = (uint64_t)w->config->seed, .rank = w->world.rank};
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank == w->world.rank)
            w->straggler.factor = factor;
    }
    if (w->straggler.factor > 1)
        eni_info("worker", "emulated straggler: rank %d takes %.3g times as long to compute", w->world.rank,
                 w->straggler.factor);
    eni_straggler_open(&w->straggler);
}

static en_status dump_config(const eni_worker *w)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/config.yaml", w->config->out);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        eni_error("worker", "cannot create %s: %s", path, strerror(errno));
        return EN_EIO;
    }
    en_status st = eni_config_dump(w->config, file, path);
    if (fclose(file) != 0 && st == EN_OK) st = EN_EIO;
    return st;
}

static const char *curve_set_name(const eni_worker *w)
{
    return eni_evaluate_curve_set(w) == ENI_HOLDOUT ? "holdout" : "test";
}

static void show_point(void *user, const eni_point *point)
{
    const eni_worker *w = user;
    eni_board_point(w->board, curve_set_name(w), point);
}

/* "auto" is the run's own folder: it names the run in TensorBoard. */
static en_status open_board(eni_worker *w)
{
    const eni_config *c = w->config;
    if (c->tensorboard == NULL || w->world.rank != 0) return EN_OK;
    int is_own = strcmp(c->tensorboard, "auto") == 0;
    if (!is_own || c->out != NULL)
        return eni_board_open(is_own ? c->out : c->tensorboard, w->is_resumed ? w->past.samples : 0,
                              &w->board);
    eni_error("worker", "--tensorboard: in which folder? Give --tensorboard=FOLDER, or --out=FOLDER for the run");
    return EN_EINVAL;
}

/* The same in every arm of a comparison, whose runs have the same amount of work. */
static uint64_t samples_between_points(const eni_worker *w)
{
    const uint64_t every = (uint64_t)w->config->eval_every, points = (uint64_t)w->config->eval_points;
    return every > 0 || points == 0 ? every : (w->plan.samples + points - 1) / points;
}

/* Said before the run: such a curve reaches no target, whatever its accuracy. */
static void warn_of_few_points(const eni_worker *w, uint64_t every)
{
    const uint64_t all = w->plan.samples, points = every == 0 ? 1 : (all + every - 1) / every;
    const bool has_accuracy = w->dataset->classes > 0;
    if (w->world.rank != 0 || w->config->target <= 0 || !has_accuracy || points >= ENI_REACH_IN_A_ROW) return;
    eni_warn("worker",
             "--target=%g: to be reached takes %d points of the curve in a row, and this run has %llu: give "
             "--eval-every=%llu or less",
             w->config->target, ENI_REACH_IN_A_ROW, (unsigned long long)points,
             (unsigned long long)(all / ENI_REACH_IN_A_ROW));
}

/* With a target the initial weights are the first point. */
static en_status add_point_zero(eni_worker *w)
{
    if (w->world.rank != 0 || w->config->target <= 0 || w->is_resumed) return EN_OK;
    return eni_curve_add(w->curve, 0, 0, 0, eni_arena_at(w->arena, ENI_SLOT_PARAM, 0));
}

/* Nothing is refused any more: what the folder held makes room, before anybody writes there. */
static en_status begin_folder(eni_worker *w)
{
    const eni_config *c = w->config;
    if (w->out_fd < 0) EN_TRY(eni_out_take(c, c->out, ENI_OUT_RUN, &w->out_fd)); /* rank 0 since the join */
    if (w->is_resumed)
        eni_result_clear(w);
    else
        EN_TRY(eni_out_clear(w->out_fd, c->out));
    return dump_config(w);
}

/* A claimed batch that was done after the checkpoint may lie before others that are in it: then the clock says which
 * records are of steps that are lost. 0: the samples do. */
static double resumed_seconds(const eni_worker *w)
{
    return w->is_resumed && w->is_claiming ? (double)w->past.train_ns * 1e-9 : 0;
}

static en_status open_metrics(eni_worker *w)
{
    const char *dir = w->config->out;
    if (dir == NULL) return EN_OK;
    return eni_recorder_open(dir, w->world.rank, w->is_resumed ? w->past.samples : 0, resumed_seconds(w),
                             &w->recorder);
}

static en_status open_records(eni_worker *w)
{
    const eni_config *c = w->config;
    if (c->out != NULL && w->world.rank == 0) {
        EN_TRY(begin_folder(w));
        EN_TRY(open_metrics(w));
    }
    EN_TRY(open_board(w));
    eni_progress_init(&w->progress, (int)c->result_fd, c->quiet || w->world.rank != 0, w->plan.samples,
                      w->plan.epoch_samples, (uint64_t)c->log_every);
    const uint64_t every = samples_between_points(w);
    warn_of_few_points(w, every);
    eni_curve_config curve = {.dir = w->world.rank == 0 ? c->out : NULL,
                              .set = curve_set_name(w),
                              .count = w->schema.count,
                              .every = every,
                              .target = c->target / 100,
                              .budget = CURVE_BUDGET,
                              /* at the very end the last point is made again */
                              .resumed = w->is_resumed ? w->past.samples - (w->past.samples == w->plan.samples) : 0,
                              .resumed_t = resumed_seconds(w),
                              .evaluate = eni_evaluate_curve,
                              .on_point = show_point,
                              .user = w};
    if (w->world.rank == 0 && w->plan.dropped_per_epoch + w->plan.dropped_at_end > 0)
        eni_info("worker", "%llu of %llu samples dropped per epoch, %llu at the end (--drop-last)",
                 (unsigned long long)w->plan.dropped_per_epoch, (unsigned long long)w->plan.train_samples,
                 (unsigned long long)w->plan.dropped_at_end);
    return eni_curve_open(&curve, &w->curve);
}

/* A full disk shows when the last buffer is written: that fails the run. */
static en_status close_records(eni_worker *w)
{
    eni_recorder *recorder = w->recorder;
    w->recorder = NULL;
    EN_TRY(eni_recorder_close(recorder));
    eni_board *board = w->board;
    w->board = NULL;
    return eni_board_close(board);
}

static en_status open_trace(eni_worker *w)
{
    char role[32];
    if (w->config->trace == NULL) return EN_OK;
    snprintf(role, sizeof role, "rank %d", w->world.rank);
    w->trace = eni_trace_new(role, w->world.rank, TRACE_SPANS);
    return w->trace == NULL ? EN_ENOMEM : EN_OK;
}

/* FILE of rank 0, FILE.rankN of the others; `entrain run` merges them. */
static en_status write_trace(const eni_worker *w)
{
    char path[1024];
    if (w->trace == NULL) return EN_OK;
    if (w->world.rank == 0)
        snprintf(path, sizeof path, "%s", w->config->trace);
    else
        snprintf(path, sizeof path, "%s.rank%d", w->config->trace, w->world.rank);
    return eni_trace_write(w->trace, path);
}

static en_status prepare(eni_worker *w)
{
    w->world = (en_world){.size = sizeof w->world,
                          .rank = (int32_t)w->config->rank,
                          .nranks = (int32_t)(w->config->world_size > 0 ? w->config->world_size : 1)};
    if (w->world.nranks == 1 && w->world.rank < 0) w->world.rank = 0;
    EN_TRY(eni_refuse_without_gpu(w->config));
    EN_TRY(find_strategy(w));
    EN_TRY(find_network(w));
    EN_TRY(eni_inputs_check(w));
    EN_TRY(open_device(w)); /* before any thread starts: it sets OpenMP's environment */
    EN_TRY(open_data(w));   /* takes longest, so last of what may be refused */
    EN_TRY(make_plan(w));
    EN_TRY(choose_optimizer(w));
    EN_TRY(cut_buckets(w));
    EN_TRY(eni_resume_find(w));
    return eni_save_check(w);
}

static en_status run(eni_worker *w)
{
    const en_status st = prepare(w);
    if (st == EN_ESTOP) return EN_OK; /* --resume=auto of a run that is finished */
    EN_TRY(st);
    EN_TRY(eni_worker_join(w));
    eni_share_close(w->share); /* who has joined has the data */
    w->share = NULL;
    eni_ending_watch(w->ending, w->member);
    open_straggler(w);
    EN_TRY(eni_gpu_open(w));
    EN_TRY(open_vectors(w));
    EN_TRY(prepare_model(w));
    EN_TRY(open_trace(w));
    EN_TRY(open_records(w));
    EN_TRY(eni_save_open(w));
    EN_TRY(eni_exchange_open(w));
    if (w->world.rank != 0) EN_TRY(open_metrics(w)); /* rank 0's weights are here: the folder is its */
    if (w->config->check) {
        EN_TRY(eni_check(w));
    } else {
        EN_TRY(eni_warm_up(w));
        EN_TRY(start_loader(w));
        if (w->gpus != NULL) EN_TRY(eni_gpus_report(w->gpus));
        EN_TRY(add_point_zero(w));
        w->has_begun = 1;
        EN_TRY(eni_train(w));
        EN_TRY(eni_result(w));
        EN_TRY(write_trace(w));
    }
    EN_TRY(eni_vectors_leave(w));
    EN_TRY(close_records(w));
    EN_TRY(eni_member_bye(w->member, answer_by(w, 10 * ENI_SECOND)));
    /* The leader stays until the last has left: its end would look like a death to the others. */
    return w->leader == NULL ? EN_OK
                             : eni_leader_wait(w->leader, eni_now_ns() + 60 * ENI_SECOND, w->abort_fd);
}

static void close_all(eni_worker *w)
{
    eni_loader_halt(w->loader);
    eni_save_close(w);
    eni_exchange_close(w);
    eni_gpu_close(w);
    if (!w->is_stuck) eni_loader_stop(w->loader); /* a GPU may read its buffers until here */
    eni_curve_close(w->curve);
    eni_recorder_close(w->recorder);
    eni_board_close(w->board);
    eni_trace_free(w->trace);
    for (int64_t i = 0; w->micro_grads != NULL && !w->is_stuck && i < w->accumulate; i++)
        eni_free(w->micro_grads[i]);
    if (!w->is_stuck) eni_free(w->micro_grads);
    eni_free(w->init);
    if (!w->is_stuck) eni_arena_close(w->arena);
    eni_worker_leave(w);
    eni_evaluate_close(w);
    if (!w->is_stuck) en_model_free(w->model);
    if (!w->is_stuck) eni_device_close(&w->device);
    if (w->out_fd >= 0) close(w->out_fd);
    eni_gpus_close(w->gpus);
    eni_buckets_free(w->buckets);
    eni_share_close(w->share);
    eni_dataset_close(w->dataset);
    en_schema_fini(&w->schema);
    eni_options_free(w->options);
}

/* A wait ended because nobody is there any more. Somebody died: the leader knows who, and says so within the
 * time that a broken data socket is ahead of it. Or the user called all of us off, and we are not the first to
 * go. */
static en_status why_alone(eni_worker *w)
{
    if (w->member != NULL && !eni_ending_is_asked(w->ending))
        eni_member_verdict(w->member, eni_now_ns() + 2 * ENI_SECOND);
    return eni_ending_is_asked(w->ending) ? EN_EINTR : EN_EPEER;
}

/* What could not be reached or read may be what a dead process has left behind: then its death is the cause. */
static en_status unless_lost(eni_worker *w, en_status st)
{
    const int may_be = st == EN_ENOENT || st == EN_EIO || st == EN_EDENIED || st == EN_EPROTO;
    if (w->member == NULL || !may_be) return st;
    return eni_member_verdict(w->member, eni_now_ns() + 300 * ENI_MILLI) == EN_EPEER ? EN_EPEER : st;
}

/* Before anything is closed: the others hear the cause from us if we are the first to know, and what waits in
 * our threads and sockets is let go. */
static void give_up(eni_worker *w, en_status st)
{
    char reason[ENI_REASON_MAX] = "", said[ENI_REASON_MAX];
    eni_death death;
    /* The exact sentence that this rank has logged: the survivors hear the cause, not its class. */
    const char *why = st != EN_EINTR && eni_log_last_error(said, sizeof said) ? said : en_status_str(st);
    eni_ending_heard(w->ending);
    if (w->loader != NULL) eni_loader_abort(w->loader);
    eni_vectors_abort(w);
    if (w->net != NULL) eni_net_abort(w->net); /* nobody may take it: unsent messages would cost 2 s */
    if (w->member != NULL) {
        eni_member_reason(w->member, reason);
        if (reason[0] == 0) eni_member_abort(w->member, why);
    } else if (w->leader != NULL) {
        snprintf(reason, sizeof reason, "rank %d gave up: %.480s", w->world.rank, why);
        eni_leader_abort(w->leader, reason);
    }
    /* The leader names the one who gave up; to be stopped before it has would be the end that others hear. */
    if (w->leader != NULL) eni_leader_wait(w->leader, eni_now_ns() + 2 * ENI_SECOND, -1);
    if (w->leader != NULL && w->config->result_fd >= 0 && eni_leader_death(w->leader, &death) == EN_OK)
        eni_failure_write((int)w->config->result_fd, &death); /* there may be no member yet to know it */
    if (st == EN_EINTR)
        eni_result_cut_short(w, "interrupted", "");
    else
        eni_result_cut_short(w, "failed", reason[0] != 0 ? reason : why);
}

/* What ends a run before its first step is its command's, a file's or the machine's: another one is needed. */
static en_status as_refusal(const eni_worker *w, en_status st)
{
    const int is_ours = st == EN_EIO || st == EN_ENOMEM || st == EN_ETIMEOUT || st == EN_ENONFINITE;
    return !w->has_begun && is_ours ? EN_EINVAL : st;
}

en_status eni_worker_run(eni_worker *w)
{
    w->mesh = (eni_mesh){.tcp_fd = -1, .unix_fd = -1};
    w->token_lock = w->out_fd = -1;
    w->abort_fd = eni_ending_fd(w->ending);
    en_status st = run(w);
    st = st == EN_EPEER ? why_alone(w) : unless_lost(w, st);
    if (st != EN_OK) give_up(w, st);
    if (st == EN_OK && eni_ending_is_asked(w->ending)) st = EN_EINTR; /* early, and in good order */
    eni_ending_heard(w->ending);
    eni_ending_watch(w->ending, NULL);
    close_all(w);
    return as_refusal(w, st);
}

void eni_worker_abandon(eni_worker *w, int code)
{
    const bool is_failed = code == 1;
    eni_result_cut_short(w, is_failed ? "failed" : "interrupted", is_failed ? "a process was lost" : "");
    if (w->token_path[0] != 0) eni_token_remove(w->token_path);
}
