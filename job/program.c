/* program.c - entrain/rank.h: a program of the user's is the trainer of a rank. It pushes its gradients, where a worker's
 * trainer is asked for them (rank/trainer.h). The calls are those of rank/run.h and rank/step.h.
 *
 *     idle -- begin -> in a step -- finish -> idle          next: at any time
 *      '-- EN_ESTOP -> over -- end -> left
 *
 * A wrong call is refused before it changes anything. Any other failure is the run's: the first call that meets it tells
 * the other ranks (fail). */
#include "entrain/rank.h"

#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "core/version.h"
#include "job/job.h"
#include "models/formats/rows.h"
#include "models/formats/weights.h"
#include "ops/mean.h"
#include "rank/run.h"
#include "rank/straggler.h"

_Static_assert((int)EN_RANK_NAME == (int)EN_MAX_TENSOR_NAME - 1, "names of tensors are too long");
_Static_assert((int)EN_RANK_DIMS == (int)EN_MAX_DIMS, "tensors have too many dimensions");

enum { LINE_FLOATS = 16 }; /* a tensor begins on a line of the cache */

typedef enum phase { IDLE, IN_STEP, OVER, LEFT } phase;

struct en_rank {
    eni_rank rank;
    eni_config config;
    en_rank_options given; /* flags and callbacks; the texts are: */
    char model[128], data[128], computes[128];
    char *argv[1];      /* of the result */
    json_t *about;      /* of the result: which program this is */
    en_network network; /* of the schema: only a name */
    en_rank_facts facts;
    const float **views; /* (ntensors), for `evaluate` */
    void **memories;     /* (nbuffers) the program's */
    float *kept;         /* (nstate) during `evaluate` */
    pid_t pid;           /* not a child's */
    locale_t plain;      /* numbers have a point, in records too; (locale_t)0: not yet */
    locale_t programs;   /* during a call: the program's own */
    atomic_bool is_in_call, is_signalled;
    bool is_cut; /* a run that claims ended early, by a signal */

    eni_micro ahead[EN_RANK_AHEAD]; /* ring of batches handed out and not begun */
    uint64_t nhanded, nbegun;
    uint64_t next_micro; /* if they are assigned */
    bool is_last;        /* no more batches */
    bool is_stepping;    /* EN_RANK_STEPS_ITSELF: the program may step until it calls begin or end */
    eni_sampler *sampler;
    uint32_t *samples; /* (batch) of the batch handed out last */

    phase phase;
    bool has_failed;
    eni_step_run run;
    eni_straggler straggler;
    eni_trainer_ops ops;
    uint32_t nstepped; /* buckets of the step that options.step has stepped */
    int64_t part;      /* of the step: the batch in progress of --accumulate */
    uint64_t nsamples[ENI_MEAN_MAX];
    uint64_t *ready; /* (ntensors) the batch, counted from 1, in which it was ready last */
    uint32_t low;    /* this tensor and all behind it are ready */
    int64_t idle_ns; /* when the last step ended */
};

/* ---- calls ---- */

static en_status left(en_rank *self, en_status st)
{
    uselocale(self->programs);
    atomic_store(&self->is_in_call, false);
    return st;
}

/* The run has failed: the other ranks learn why. Further calls return the same. */
static en_status fail(en_rank *self, en_status st)
{
    eni_rank *rank = &self->rank;
    self->has_failed = true;
    st = eni_rank_cause(rank, st);
    (void)eni_run_end(rank, st);
    eni_rank_give_up(rank, st);
    atomic_store(&rank->ended, (int)st);
    eni_end_write((int)self->config.result_fd, st);
    return st;
}

/* EN_OK if the rank takes calls; then numbers are printed with a point until `left`. */
static en_status entered(en_rank *self)
{
    if (self == NULL) return eni_fail(EN_EINVAL, "rank", "the rank is NULL: it is closed, or was not opened");
    if (getpid() != self->pid)
        return eni_fail(EN_EBUG, "rank", "rank %d belongs to process %d: a child made by fork cannot use it",
                        self->facts.rank, (int)self->pid);
    if (atomic_exchange(&self->is_in_call, true))
        return eni_fail(EN_EINVAL, "rank",
                        "rank %d is in another call: make one at a time, and none in `evaluate`",
                        self->facts.rank);
    self->programs = uselocale(self->plain);
    if (self->phase == LEFT)
        return left(self, eni_fail(EN_EINVAL, "rank", "rank %d has left the run", self->facts.rank));
    const en_status st = eni_rank_alive(&self->rank);
    return st == EN_OK ? EN_OK : left(self, self->has_failed ? st : fail(self, st));
}

static en_status done(en_rank *self, en_status st)
{
    if (st == EN_ESTOP) self->phase = OVER;
    return left(self, st == EN_OK || st == EN_ESTOP ? st : fail(self, st));
}

static en_status refuse(en_rank *self, const char *call, const char *why)
{
    return left(self, eni_fail(EN_EINVAL, "rank", "en_rank_%s: %s", call, why));
}

/* ---- the trainer ---- */

static size_t bytes_of(const en_model_tensor *tensor)
{
    return tensor->count * en_dtype_bytes(tensor->dtype);
}

/* Its room in a flat vector. */
static uint64_t bytes_in_lines(const en_model_tensor *tensor)
{
    return eni_round_up(bytes_of(tensor), LINE_FLOATS * sizeof(float));
}

static en_status read_memories(void *user, int64_t micro, float *state_out)
{
    const en_rank *self = user;
    const en_schema *schema = &self->rank.job.schema;
    (void)micro;
    memset(state_out, 0, schema->nstate * sizeof *state_out);
    for (uint32_t b = 0; b < schema->nbuffers; b++)
        memcpy(state_out + schema->buffers[b].offset, self->memories[b], bytes_of(&schema->buffers[b]));
    return EN_OK;
}

static void write_memories(const en_rank *self, const float *state, bool keeps_own)
{
    const en_schema *schema = &self->rank.job.schema;
    for (uint32_t b = 0; b < schema->nbuffers; b++)
        if (!keeps_own || schema->buffers[b].kind != EN_TENSOR_OWN)
            memcpy(self->memories[b], state + schema->buffers[b].offset, bytes_of(&schema->buffers[b]));
}

static en_status begin_memories(void *user, int64_t micro, const float *state)
{
    const en_rank *self = user;
    (void)micro; /* all of them have the same */
    write_memories(self, state, !self->rank.saving.is_resumed);
    return EN_OK;
}

/* The run ends with what a callback returned, except with what would not end it: an end in good order, a refused call. */
static en_status callback_failed(const char *name, en_status st)
{
    const bool goes_on = st == EN_ESTOP || st == EN_EINVAL || st == EN_EMEMBER;
    return eni_fail(goes_on ? EN_EBUG : st, "rank", "the %s callback failed: %s", name, en_status_str(st));
}

static en_status evaluate(void *user, eni_judged on, const float *flat, const float *state, double *loss_out,
                          double *accuracy_out)
{
    en_rank *self = user;
    const en_schema *schema = &self->rank.job.schema;
    en_rank_score score = {.size = sizeof score, .loss = NAN, .accuracy = NAN};
    (void)on;
    if (schema->nstate > 0) (void)read_memories(self, 0, self->kept);
    write_memories(self, state, false);
    for (uint32_t t = 0; t < schema->ntensors; t++)
        self->views[t] = flat + schema->tensors[t].offset;
    uselocale(self->programs);
    const en_status st = self->given.evaluate(self->given.user, self->views, &score);
    uselocale(self->plain);
    write_memories(self, self->kept, false);
    if (st != EN_OK) return callback_failed("evaluate", st);
    *loss_out = score.loss;
    *accuracy_out = (self->given.flags & EN_RANK_HAS_ACCURACY) != 0 ? score.accuracy : NAN;
    return EN_OK;
}

static void report_rank(void *user, json_t *report)
{
    const en_rank *self = user;
    eni_straggler_report(&self->straggler, report);
}

/* Also on the thread that ends a run early. */
static void report_run(void *user, const json_t *reports, json_t *result)
{
    const en_rank *self = user;
    (void)reports;
    json_object_set(result, "program", self->about);
}

/* The program's optimizer, in the strategy's own step. */
static en_status step_tensors(en_rank *self, uint32_t first, uint32_t n)
{
    uselocale(self->programs);
    const en_status st = self->given.step(self->given.user, first, n);
    uselocale(self->plain);
    self->nstepped++;
    return st == EN_OK ? EN_OK : callback_failed("step", st);
}

static en_status step_bucket(void *user, uint32_t bucket)
{
    en_rank *self = user;
    const eni_bucket_range *range = &self->rank.job.buckets->bucket[bucket];
    return step_tensors(self, range->first, range->last - range->first + 1);
}

/* ---- options ---- */

/* A caller's header may be older or newer than ours: what it does not have is 0, what we do not know is left. */
static const size_t FIRST_OPTIONS = offsetof(en_rank_options, user) + sizeof(void *);
static const size_t FIRST_TENSOR = offsetof(en_rank_tensor, initial) + sizeof(float *);
static const size_t FIRST_MEMORY = offsetof(en_rank_memory, data) + sizeof(void *);
static const size_t WITH_TENSOR_ORDER = offsetof(en_rank_tensor, order) + EN_RANK_DIMS;
static const size_t WITH_MEMORY_ORDER = offsetof(en_rank_memory, order) + EN_RANK_DIMS;
static const size_t FIRST_SCORE = offsetof(en_rank_score, accuracy) + sizeof(double);

static en_status check_options(const en_rank_options *o)
{
    if (o == NULL) return eni_fail(EN_EINVAL, "rank", "the options are NULL");
    if (o->abi != EN_RANK_ABI)
        return eni_fail(EN_EVERSION, "rank",
                        "the options have abi %u and this library %u: recompile the program", o->abi,
                        EN_RANK_ABI);
    if (o->size < FIRST_OPTIONS || o->ntensors == 0 || o->tensors == NULL || o->train_samples == 0 ||
        o->train_samples > UINT32_MAX)
        return eni_fail(
            EN_EINVAL, "rank",
            "the options need size, tensors, and train_samples of 1 to 2^32 - 1; they have size %u, "
            "%u tensors, %llu samples",
            o->size, o->ntensors, (unsigned long long)o->train_samples);
    return EN_OK;
}

static en_status take_text(const char *what, const char *given, const char *instead, char *text_out,
                           size_t bytes)
{
    const char *text = given != NULL ? given : instead;
    if (!eni_is_text(text))
        return eni_fail(
            EN_EINVAL, "rank",
            "options.%s has a line break or another control character, or is not UTF-8: give a plain name",
            what);
    if (snprintf(text_out, bytes, "%s", text) < (int)bytes) return EN_OK;
    return eni_fail(EN_EINVAL, "rank", "options.%s is longer than %zu bytes: \"%.80s\"", what, bytes - 1,
                    text);
}

static en_status take_options(en_rank *self, const en_rank_options *o)
{
    memcpy(&self->given, o, o->size < sizeof self->given ? o->size : sizeof self->given);
    EN_TRY(take_text("model", o->model, "program", self->model, sizeof self->model));
    EN_TRY(take_text("data", o->data, "data", self->data, sizeof self->data));
    EN_TRY(take_text("computes", o->computes, "a program", self->computes, sizeof self->computes));
    return take_text("data_sha256", o->data_sha256, "not known", self->rank.job.data_sha256,
                     sizeof self->rank.job.data_sha256);
}

/* "lr=0.1", "nesterov". */
static en_status take_setting(eni_config *config, const char *text, size_t bytes)
{
    char key[64], value[ENI_SETTING_BYTES];
    const size_t n = strcspn(text, "=\n"), begin = n < bytes ? n + 1 : n;
    const int length = snprintf(value, sizeof value, "%.*s", (int)(bytes - begin), text + begin);
    snprintf(key, sizeof key, "%.*s", (int)(n < 60 ? n : 60), text);
    if (length >= (int)sizeof value) return eni_fail(EN_EINVAL, "rank", "the value of %s is too long", key);
    return eni_config_set(config, key, n < bytes ? value : NULL, key);
}

int en_rank_setting(const char *name, char *text_out, size_t bytes)
{
    const size_t length = strlen(name);
    const char *line = eni_env(ENI_ENV_SETTINGS);
    for (; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "set=", 4) == 0 && strncmp(line + 4, name, length) == 0 &&
            line[4 + length] == '=') {
            const char *value = line + 4 + length + 1;
            const int n = (int)strcspn(value, "\n");
            snprintf(text_out, bytes, "%.*s", n, value);
            return n;
        }
    }
    return -1;
}

/* The launcher's settings win over the program's own. Its descriptors are not for the program's children. */
static en_status take_launchers(eni_config *c)
{
    const char *text = eni_env(ENI_ENV_SETTINGS);
    for (size_t n; text != NULL && *text != 0; text += n + 1) {
        n = strcspn(text, "\n");
        EN_TRY(take_setting(c, text, n));
        if (text[n] == 0) break;
    }
    const int64_t fds[] = {c->listen_fd, c->token_fd, c->result_fd, c->out_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0 && fcntl((int)fds[i], F_SETFD, FD_CLOEXEC) != 0)
            return eni_fail(
                EN_EINVAL, "rank",
                "descriptor %d of `entrain run` is closed: start the program without closing descriptors",
                (int)fds[i]);
    if (c->result_fd >= 0) return EN_OK; /* it has told all: stale variables must not leak in */
    EN_TRY(eni_config_env(c));
    return eni_env_check_tasks(c);
}

static en_status read_settings(en_rank *self, const char *const *settings, size_t n)
{
    eni_config *c = &self->config;
    EN_TRY(eni_config_init(ENI_RANK, c));
    for (size_t i = 0; i < n; i++)
        EN_TRY(settings[i] != NULL ? take_setting(c, settings[i], strlen(settings[i]))
                                   : eni_fail(EN_EINVAL, "rank",
                                              "setting %zu is NULL: nsettings (%zu) counts the texts", i, n));
    if ((self->given.flags & EN_RANK_ENVIRONMENT) != 0) EN_TRY(take_launchers(c));
    c->mute = c->mute || self->given.log != NULL;
    c->quiet = c->quiet || c->mute;
    if (eni_config_is_given(c, "log-level")) eni_log_set_level((int)c->log_level);
    if (self->given.log == NULL) eni_log_set_launcher((int)c->result_fd);
    return eni_config_resolve(c);
}

/* ---- what is trained ---- */

/* A tensor or a memory, which lies behind the `*end` elements of its flat vector. */
static en_status take_tensor(const char *name, const uint64_t *shape, const uint8_t *order, uint32_t dtype,
                             uint64_t *end, en_model_tensor *to)
{
    uint64_t count = 1;
    if (name == NULL || name[0] == 0 || !eni_is_text(name) || strlen(name) > EN_RANK_NAME)
        return eni_fail(
            EN_EINVAL, "rank",
            "\"%.80s\": a tensor needs a name of 1 to %d bytes of UTF-8, without control characters",
            name != NULL && eni_is_text(name) ? name : "", EN_RANK_NAME);
    const bool is_slot = strncmp(name, "optimizer.", 10) == 0 || strncmp(name, "rank.", 5) == 0;
    if ((strchr(name, '/') != NULL && is_slot) || strcmp(name, "__metadata__") == 0)
        return eni_fail(EN_EINVAL, "rank",
                        "tensor %s has the name of a checkpoint's own, optimizer.SLOT/NAME, rank.R/NAME or "
                        "__metadata__: choose another",
                        name);
    snprintf(to->name, sizeof to->name, "%s", name);
    for (uint32_t d = 0; d < EN_RANK_DIMS && shape[d] > 0; d++) {
        if (shape[d] > (UINT64_C(1) << 40) / count)
            return eni_fail(EN_EINVAL, "rank", "tensor %s has more than 2^40 elements", name);
        count *= shape[d];
        to->shape[to->ndim++] = (int64_t)shape[d];
    }
    if (order != NULL && !eni_rows_set_order(to, order))
        return eni_fail(EN_EINVAL, "rank",
                        "the order of tensor %s lacks one of its %u dimensions: give each once, from the "
                        "outermost to the innermost, or only zeros",
                        name, to->ndim);
    to->count = count;
    to->dtype = dtype;
    to->offset = *end;
    *end += bytes_in_lines(to) / sizeof(float);
    return EN_OK;
}

/* A caller's structs may be longer than ours: all have the size of the first. */
static const en_rank_tensor *tensor_at(const en_rank_options *o, uint32_t i)
{
    return (const en_rank_tensor *)((const char *)o->tensors + (size_t)i * o->tensors[0].size);
}

static en_status check_size(const char *what, uint32_t size, size_t least)
{
    if (size >= least) return EN_OK;
    return eni_fail(EN_EINVAL, "rank", "the %s have size %u: set it to sizeof in each", what, size);
}

static en_status check_names(const en_schema *s)
{
    const uint32_t n = s->ntensors + s->nbuffers;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(eni_schema_tensor(s, i)->name, eni_schema_tensor(s, k)->name) == 0)
                return eni_fail(EN_EINVAL, "rank",
                                "tensors %u and %u are both called %s: give each a name of its own", k, i,
                                eni_schema_tensor(s, k)->name);
    return EN_OK;
}

static en_status take_memories(en_rank *self)
{
    en_schema *s = &self->rank.job.schema;
    const en_rank_memory *first = self->given.memories;
    const uint32_t n = self->given.nmemories;
    if (n == 0) return EN_OK;
    if (first == NULL)
        return eni_fail(EN_EINVAL, "rank", "the options have %u memories, but options.memories is NULL", n);
    EN_TRY(check_size("memories", first->size, FIRST_MEMORY));
    s->buffers = eni_alloc_array(n, sizeof *s->buffers);
    self->memories = eni_alloc_array(n, sizeof *self->memories);
    if (s->buffers == NULL || self->memories == NULL) return EN_ENOMEM;
    for (; s->nbuffers < n; s->nbuffers++) {
        en_model_tensor *b = &s->buffers[s->nbuffers];
        const en_rank_memory *m =
            (const en_rank_memory *)((const char *)first + (size_t)s->nbuffers * first->size);
        EN_TRY(take_tensor(m->name, m->shape, first->size >= WITH_MEMORY_ORDER ? m->order : NULL, m->dtype,
                           &s->nstate, b));
        if (m->data == NULL || en_dtype_bytes(m->dtype) == 0)
            return eni_fail(EN_EINVAL, "rank", "memory %s needs data and a type of entrain/tensor.h, not %u",
                            b->name, m->dtype);
        b->kind = (m->flags & EN_MEMORY_EACH) != 0 ? EN_TENSOR_OWN : EN_TENSOR_BUFFER;
        self->memories[s->nbuffers] = m->data;
    }
    self->kept = eni_alloc_array(s->nstate, sizeof *self->kept);
    self->rank.job.state = eni_alloc_array(s->nstate, sizeof *self->rank.job.state);
    if (self->kept == NULL || self->rank.job.state == NULL) return EN_ENOMEM;
    return read_memories(self, 0, self->rank.job.state);
}

static en_status take_schema(en_rank *self, const en_rank_options *o)
{
    en_schema *s = &self->rank.job.schema;
    self->network = (en_network){.abi = EN_NETWORK_ABI, .size = sizeof self->network, .name = self->model};
    s->network = &self->network;
    EN_TRY(check_size("tensors", o->tensors[0].size, FIRST_TENSOR));
    s->spec = eni_strdup(self->model);
    s->tensors = eni_alloc_array(o->ntensors, sizeof *s->tensors);
    if (s->spec == NULL || s->tensors == NULL) return EN_ENOMEM;
    for (; s->ntensors < o->ntensors; s->ntensors++) {
        const en_rank_tensor *t = tensor_at(o, s->ntensors);
        EN_TRY(take_tensor(t->name, t->shape, o->tensors[0].size >= WITH_TENSOR_ORDER ? t->order : NULL,
                           EN_F32, &s->count, &s->tensors[s->ntensors]));
        s->nweights += s->tensors[s->ntensors].count;
    }
    EN_TRY(take_memories(self));
    EN_TRY(check_names(s));
    return eni_schema_digest(s, self->rank.job.schema_sha256);
}

/* Tensors with the same rates are a group; the first group has the run's. */
static en_status take_group(eni_job *job, const en_rank_rates *rates, const en_model_tensor *tensor)
{
    eni_param_groups *groups = job->groups;
    const eni_param_group asked =
        rates == NULL ? groups->group[0] /* not -0, which their text lacks */
                      : (eni_param_group){rates->lr_factor + 0.0f, rates->weight_decay + 0.0f};
    uint32_t g = 0;
    if (!(asked.lr_factor >= 0 && asked.lr_factor <= 1e6f && asked.weight_decay >= 0 &&
          asked.weight_decay <= 1e6f))
        return eni_fail(EN_EINVAL, "rank", "tensor %s has lr_factor %g and weight_decay %g: give 0 to 1e6",
                        tensor->name, (double)asked.lr_factor, (double)asked.weight_decay);
    while (g < groups->ngroups && (groups->group[g].lr_factor != asked.lr_factor ||
                                   groups->group[g].weight_decay != asked.weight_decay))
        g++;
    if (g == ENI_PARAM_GROUPS_MAX || !eni_groups_add(groups, tensor->offset, g))
        return eni_fail(EN_EINVAL, "rank",
                        "tensor %s has rates of its own beyond %d different ones, or %d changes between "
                        "tensors: give more tensors the same rates",
                        tensor->name, ENI_PARAM_GROUPS_MAX - 1, ENI_GROUP_EDGES);
    groups->group[g] = asked;
    if (g == groups->ngroups) groups->ngroups++;
    return EN_OK;
}

static en_status take_rates(en_rank *self, const en_rank_options *o)
{
    eni_job *job = &self->rank.job;
    const size_t with_rates = offsetof(en_rank_tensor, rates) + sizeof(en_rank_rates *);
    const uint32_t n = o->tensors[0].size >= with_rates ? o->ntensors : 0;
    uint32_t first = 0;
    while (first < n && tensor_at(o, first)->rates == NULL)
        first++;
    if (first == n) return EN_OK;
    if (self->config.decay != ENI_DECAY_ALL)
        return eni_fail(EN_EINVAL, "rank",
                        "tensor %s has rates of its own: omit decay=weights, and give each tensor its rates",
                        job->schema.tensors[first].name);
    job->groups = eni_groups_new();
    if (job->groups == NULL) return EN_ENOMEM;
    job->groups->ngroups = 1;
    job->groups->group[0] = (eni_param_group){1, (float)self->config.weight_decay};
    for (uint32_t t = 0; t < n; t++)
        EN_TRY(take_group(job, tensor_at(o, t)->rates, &job->schema.tensors[t]));
    return EN_OK;
}

/* Whether the strategy leaves the mean gradient, with which ranks step. */
static bool leaves_mean(const en_rank *self)
{
    return (self->rank.job.strategy->flags & (EN_SHARED_PARAMS | EN_ALONE)) != 0;
}

/* Whether the mean gradient can be clipped, and the program's own optimizer can run. */
static en_status check_steps(const en_rank *self)
{
    const en_strategy *strategy = self->rank.job.strategy;
    const uint32_t flags = self->given.flags & (EN_RANK_STEPS_ITSELF | EN_RANK_READS_WEIGHTS);
    const bool has_mean = leaves_mean(self);
    if (self->config.clip_norm > 0 && self->config.clip_norm < 1e-30)
        return eni_fail(
            EN_EINVAL, "rank",
            "clip-norm=%g makes zeros of all gradients: give at least 1e-30, or 0 to clip nothing",
            self->config.clip_norm);
    if (self->config.clip_norm > 0 && !has_mean)
        return eni_fail(
            EN_EINVAL, "rank",
            "clip-norm=%g: under %s no rank has the whole mean gradient before a weight is stepped, so "
            "nothing can clip it: give strategy=ring or solo, or omit clip-norm",
            self->config.clip_norm, strategy->name);
    if (flags == (EN_RANK_STEPS_ITSELF | EN_RANK_READS_WEIGHTS))
        return eni_fail(EN_EINVAL, "rank",
                        "a program that steps itself writes its weights: omit EN_RANK_READS_WEIGHTS");
    if ((flags & EN_RANK_STEPS_ITSELF) == 0 && self->given.step != NULL)
        return eni_fail(EN_EINVAL, "rank",
                        "options.step is called with EN_RANK_STEPS_ITSELF only: give both");
    if ((flags & EN_RANK_STEPS_ITSELF) != 0 && self->given.schedule != NULL)
        return eni_fail(EN_EINVAL, "rank",
                        "options.schedule is of the library's step, which EN_RANK_STEPS_ITSELF replaces: "
                        "schedule the rate of the program's own optimizer, and omit it here");
    if (flags != EN_RANK_STEPS_ITSELF) return EN_OK;
    const bool is_local = (strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS)) == 0;
    if (!has_mean && !(is_local && self->given.step != NULL))
        return eni_fail(
            EN_EINVAL, "rank",
            "%s does more than to hand the mean gradient to the ranks, so a program cannot step itself: give "
            "strategy=ring or solo%s, or omit EN_RANK_STEPS_ITSELF",
            strategy->name, is_local ? ", or options.step" : ", or one with local steps, such as local-sgd");
    if (self->config.checkpoint_every == 0 && self->config.resume == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "rank",
                    "checkpoint-every and resume: a checkpoint lacks the state of the program's own "
                    "optimizer; omit them, "
                    "or EN_RANK_STEPS_ITSELF");
}

static void describe(en_rank *self)
{
    eni_trainer *t = &self->rank.trainer;
    const bool is_own = (self->given.flags & EN_RANK_STEPS_ITSELF) != 0;
    self->ops = (eni_trainer_ops){.state = read_memories,
                                  .set_state = begin_memories,
                                  .evaluate = self->given.evaluate != NULL ? evaluate : NULL,
                                  .step = is_own && !leaves_mean(self) ? step_bucket : NULL,
                                  .report_rank = report_rank,
                                  .report_run = report_run};
    *t = (eni_trainer){.ops = &self->ops, .self = self};
    t->reads_arena = true;
    t->writes_arena = (self->given.flags & EN_RANK_READS_WEIGHTS) == 0 || self->config.clip_norm > 0;
    t->steps_itself = is_own && leaves_mean(self);
    t->about = (eni_about){.model = self->model,
                           .data = self->data,
                           .has_accuracy = (self->given.flags & EN_RANK_HAS_ACCURACY) != 0,
                           .set = "test",
                           .device = "program",
                           .computes = "program",
                           .machine = self->computes,
                           .threads = 1};
    self->about = eni_program_facts(self->given.program, &self->config.set);
    eni_json_set_text(self->about, "computes", self->computes);
    eni_json_set_text(self->about, "step", is_own ? "the program's own" : "native");
    eni_json_set_text(self->about, "weights", t->writes_arena ? "private" : "shared");
}

/* The program steps whole tensors, so none is divided. */
static void keep_tensors_whole(en_rank *self)
{
    const en_schema *s = &self->rank.job.schema;
    uint64_t cap = eni_job_bucket_cap(s, &self->config);
    for (uint32_t t = 0; t < s->ntensors; t++)
        if (bytes_in_lines(&s->tensors[t]) > cap) cap = bytes_in_lines(&s->tensors[t]);
    if (self->ops.step != NULL) self->config.bucket_cap_mb = (double)cap / 1048576;
}

static en_status prepare(en_rank *self, const en_rank_options *o)
{
    char plugins[PATH_MAX];
    eni_rank *rank = &self->rank;
    if (o->plugins != NULL)
        snprintf(plugins, sizeof plugins, "%s", o->plugins);
    else
        EN_TRY(eni_folder_plugins_of_library(plugins, sizeof plugins));
    EN_TRY(eni_job_open(rank, &self->config, plugins));
    if ((self->given.flags & EN_RANK_ENVIRONMENT) == 0)
        (void)eni_env_runtime_dir_in(NULL, rank->asked.private_folder, sizeof rank->asked.private_folder);
    EN_TRY(check_steps(self));
    EN_TRY(take_schema(self, o));
    EN_TRY(eni_job_check(rank, &self->config));
    describe(self);
    EN_TRY(eni_job_share(rank, &self->config, o->train_samples));
    EN_TRY(take_rates(self, o));
    keep_tensors_whole(self);
    EN_TRY(eni_program_schedule(&rank->job, &self->config, self->given.schedule, self->given.user));
    return eni_job_complete(rank, &self->config);
}

/* ---- opening ---- */

/* Rank 0's become everybody's; those of a checkpoint take their place. */
static void make_first_weights(const en_rank *self, const en_rank_options *o)
{
    const eni_job *job = &self->rank.job;
    float *param = eni_rank_flat(&self->rank, ENI_SLOT_PARAM);
    if (self->rank.world.rank != 0 || self->rank.saving.is_resumed) return;
    if (job->init != NULL) memcpy(param, job->init, job->schema.count * sizeof *param);
    for (uint32_t i = 0; job->init == NULL && i < job->schema.ntensors; i++) {
        const float *initial = tensor_at(o, i)->initial;
        const en_model_tensor *t = &job->schema.tensors[i];
        if (initial != NULL) memcpy(param + t->offset, initial, t->count * sizeof *param);
    }
}

static en_status open_batches(en_rank *self)
{
    const eni_job *job = &self->rank.job;
    const en_schema *schema = &job->schema;
    self->sampler = eni_sampler_new(job->plan.train_samples, job->seed, job->order);
    self->samples = eni_alloc_array(job->plan.batch, sizeof *self->samples);
    self->ready = eni_alloc_array(schema->ntensors, sizeof *self->ready);
    self->views = eni_alloc_array(schema->ntensors, sizeof *self->views);
    self->next_micro = self->rank.saving.first_micro + (uint64_t)self->rank.world.rank;
    return self->sampler != NULL && self->samples != NULL && self->ready != NULL && self->views != NULL
               ? EN_OK
               : EN_ENOMEM;
}

static void find_facts(en_rank *self)
{
    const eni_rank *r = &self->rank;
    const eni_job *job = &r->job;
    self->facts = (en_rank_facts){.size = sizeof self->facts,
                                  .rank = r->world.rank,
                                  .nranks = r->world.nranks,
                                  .local_rank = r->world.local_rank,
                                  .nlocal = r->world.nlocal,
                                  .is_claiming = job->is_claiming,
                                  .seed = job->seed,
                                  .batch = job->plan.batch,
                                  .global_batch = job->plan.global_batch,
                                  .samples = job->plan.samples,
                                  .steps = job->plan.steps,
                                  .first_step = r->saving.first_step,
                                  .lr = job->schedule.base,
                                  .strategy = job->strategy->name,
                                  .strategy_options = eni_options_canonical(job->options),
                                  .out = self->config.out};
}

static en_status open_all(en_rank *self, const en_rank_options *o)
{
    eni_rank *rank = &self->rank;
    EN_TRY(prepare(self, o));
    EN_TRY(eni_rank_join(rank));
    eni_shutdown_watch(rank->shutdown, rank->member);
    EN_TRY(eni_run_vectors(rank, 0, true));
    make_first_weights(self, o);
    EN_TRY(open_batches(self));
    EN_TRY(eni_job_folders(rank, &self->config));
    EN_TRY(eni_run_open(rank));
    find_facts(self);
    self->straggler = eni_straggler_of(rank);
    eni_straggler_open(&self->straggler);
    EN_TRY(eni_run_begin(rank));
    eni_member_note(rank->member, -1, "data");
    self->idle_ns = eni_now_ns();
    return EN_OK;
}

static void close_rank(eni_rank *rank)
{
    eni_shutdown_watch(rank->shutdown, NULL);
    eni_run_close_exchange(rank);
    eni_records_free(rank);
    eni_run_close_vectors(rank, false);
    eni_rank_leave(rank);
    eni_job_close(rank);
    eni_shutdown_stop(rank->shutdown);
}

static void free_all(en_rank *self)
{
    if (self->rank.shutdown != NULL) close_rank(&self->rank);
    eni_config_fini(&self->config);
    eni_sampler_free(self->sampler);
    eni_free(self->samples);
    eni_free(self->ready);
    eni_free(self->views);
    eni_free(self->memories);
    eni_free(self->kept);
    json_decref(self->about);
    freelocale(self->plain);
    eni_free(self);
}

static en_status open_rank(en_rank *self, const en_rank_options *o, const char *const *settings,
                           size_t nsettings)
{
    eni_rank *rank = &self->rank;
    EN_TRY(take_options(self, o));
    EN_TRY(read_settings(self, settings, nsettings));
    const int launcher_fd = (int)self->config.result_fd;
    const eni_shutdown_config shutdown = {.signal_fd = -1, .report_fd = launcher_fd, .ended = &rank->ended};
    EN_TRY(eni_shutdown_start(&shutdown, &rank->shutdown));
    eni_rank_init(rank);
    en_status st = open_all(self, o);
    if (st == EN_OK) return EN_OK;
    if (st != EN_ESTOP) st = eni_rank_cause(rank, st);
    if (st != EN_ESTOP) eni_rank_give_up(rank, st);
    return st;
}

en_status en_rank_open(const en_rank_options *options, const char *const *settings, size_t nsettings,
                       en_rank **rank_out)
{
    *rank_out = NULL;
    EN_TRY(check_options(options));
    if (options->log != NULL) eni_log_set_sink(options->log, options->user);
    en_rank *self = eni_alloc(sizeof *self);
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (self == NULL || plain == (locale_t)0) {
        if (plain != (locale_t)0) freelocale(plain);
        eni_free(self);
        return EN_ENOMEM;
    }
    self->pid = getpid();
    self->plain = plain;
    self->config.result_fd = -1;
    self->argv[0] = self->model;
    self->rank.version = eni_version;
    self->rank.records.asked = (eni_record_options){.argv = self->argv, .argc = 1};
    self->programs = uselocale(self->plain);
    const en_status st = open_rank(self, options, settings, nsettings);
    uselocale(self->programs);
    if (st == EN_OK) {
        *rank_out = self;
        return EN_OK;
    }
    eni_end_write((int)self->config.result_fd, st);
    free_all(self);
    return st;
}

const en_rank_facts *en_rank_about(const en_rank *rank)
{
    return &rank->facts;
}

static float *vector_of(const en_rank *self, uint32_t slot, uint32_t tensor)
{
    const en_schema *schema = &self->rank.job.schema;
    return tensor < schema->ntensors ? eni_rank_flat(&self->rank, slot) + schema->tensors[tensor].offset
                                     : NULL;
}

float *en_rank_weights(en_rank *rank, uint32_t tensor)
{
    return vector_of(rank, ENI_SLOT_PARAM, tensor);
}

float *en_rank_gradient(en_rank *rank, uint32_t tensor)
{
    return vector_of(rank, ENI_SLOT_GRAD, tensor);
}

/* ---- batches ---- */

/* As a loader chooses them (data/loader.c). */
static en_status choose(en_rank *self, eni_micro *micro_out)
{
    eni_rank *rank = &self->rank;
    if (!rank->job.is_claiming) {
        EN_TRY(eni_plan_micro(&rank->job.plan, self->next_micro, micro_out));
        self->next_micro += (uint64_t)rank->world.nranks;
        return EN_OK;
    }
    do {
        uint64_t m;
        EN_TRY(eni_run_claim(rank, &m));
        EN_TRY(eni_plan_micro(&rank->job.plan, m, micro_out));
    } while (micro_out->count == 0);
    return EN_OK;
}

en_status en_rank_next(en_rank *rank, en_rank_batch *batch_out)
{
    EN_TRY(entered(rank));
    if (rank->phase == OVER || rank->is_last) return left(rank, EN_ESTOP);
    if (rank->nhanded - rank->nbegun == EN_RANK_AHEAD)
        return refuse(rank, "next", "64 batches are handed out and not begun: begin the oldest one");
    eni_micro *micro = &rank->ahead[rank->nhanded % EN_RANK_AHEAD];
    const en_status st = choose(rank, micro);
    if (st == EN_ESTOP) {
        rank->is_last = true; /* those that are handed out are still to come */
        rank->is_cut = rank->rank.job.is_claiming && atomic_load(&rank->is_signalled);
        return left(rank, st);
    }
    if (st != EN_OK) return done(rank, st);
    eni_sampler_indices(rank->sampler, micro, rank->samples);
    rank->nhanded++;
    *batch_out = (en_rank_batch){micro->index, micro->epoch, micro->count, rank->samples};
    return left(rank, EN_OK);
}

/* ---- steps ---- */

/* The program has stepped. */
static en_status end_step(en_rank *self)
{
    const bool is_stepping = self->is_stepping;
    self->is_stepping = false;
    return is_stepping ? eni_run_stepped(&self->run) : EN_OK;
}

/* The program computes: on a slow rank it sleeps afterwards, as a worker does. */
static void compute_begins(en_rank *self)
{
    eni_straggler_begins(&self->straggler);
    eni_step_compute_begins(&self->run);
}

static void compute_ends(en_rank *self)
{
    const int64_t begin_ns = self->run.mark_ns;
    eni_step_compute_ends(&self->run, "compute");
    if (eni_straggler_ends(&self->straggler, begin_ns) > 0) eni_step_compute_ends(&self->run, "sleep");
}

static en_status begin(en_rank *self, const eni_micro *micro)
{
    eni_step_run *run = &self->run;
    EN_TRY(end_step(self));
    if (self->part == 0) {
        EN_TRY(eni_run_enter(&self->rank, run));
        run->begin_ns = self->idle_ns; /* the program has read data since */
        eni_straggler_begin_step(&self->straggler, run->step);
        self->nstepped = 0;
    }
    eni_step_take(run, micro, self->idle_ns);
    self->nsamples[self->part] = micro->count;
    if (self->rank.exchange.micros == NULL) EN_TRY(eni_step_begin(run, &micro->count, 1));
    self->nbegun++;
    self->low = self->rank.job.schema.ntensors;
    self->phase = IN_STEP;
    eni_member_note(self->rank.member, (int64_t)run->step, "gradient");
    compute_begins(self);
    return EN_OK;
}

en_status en_rank_begin(en_rank *rank, uint64_t nsamples)
{
    EN_TRY(entered(rank));
    if (rank->phase == OVER) return left(rank, EN_ESTOP);
    if (rank->phase == IN_STEP)
        return refuse(rank, "begin", "the last step is not finished: call en_rank_finish");
    if (rank->nhanded == rank->nbegun)
        return refuse(rank, "begin", "no batch is handed out: call en_rank_next before every step");
    const eni_micro *micro = &rank->ahead[rank->nbegun % EN_RANK_AHEAD];
    if (nsamples != micro->count)
        return refuse(rank, "begin", "nsamples is not the count of the oldest batch");
    return done(rank, begin(rank, micro));
}

/* Whether buckets leave during backward: not if the gradient is only a part of the step's, or counts for nothing. */
static bool may_leave(const en_rank *self)
{
    return self->rank.exchange.micros == NULL && self->nsamples[self->part] > 0 && self->config.overlap;
}

en_status en_rank_ready(en_rank *rank, uint32_t tensor)
{
    EN_TRY(entered(rank));
    if (rank->phase != IN_STEP) return refuse(rank, "ready", "no step has begun: call en_rank_begin");
    if (tensor >= rank->rank.job.schema.ntensors) return refuse(rank, "ready", "there is no such tensor");
    if (rank->ready[tensor] == rank->nbegun)
        return refuse(rank, "ready", "the tensor is ready already: did backward run twice in this step?");
    rank->ready[tensor] = rank->nbegun;
    while (rank->low > 0 && rank->ready[rank->low - 1] == rank->nbegun)
        rank->low--;
    const uint32_t complete = eni_step_complete(&rank->run, rank->low);
    if (!may_leave(rank) || complete == rank->run.submitted) return left(rank, EN_OK);
    compute_ends(rank);
    const en_status st = eni_step_submit(&rank->run, complete);
    compute_begins(rank);
    return done(rank, st);
}

/* This batch's gradient is in place. */
static void complete_gradient(en_rank *self)
{
    const en_schema *schema = &self->rank.job.schema;
    const bool is_empty = self->nsamples[self->part] == 0;
    for (uint32_t t = 0; t < schema->ntensors; t++)
        if (is_empty || self->ready[t] != self->nbegun)
            memset(vector_of(self, ENI_SLOT_GRAD, t), 0, schema->tensors[t].count * sizeof(float));
}

static en_status finish(en_rank *self, const en_rank_score *score)
{
    eni_rank *rank = &self->rank;
    eni_step_run *run = &self->run;
    const uint64_t n = self->nsamples[self->part];
    complete_gradient(self);
    compute_ends(self);
    self->phase = IDLE;
    run->nsamples += n;
    if (n > 0) {
        EN_TRY(eni_step_check_loss(rank, run->step, score->loss));
        run->loss += score->loss * (double)n;
        if (rank->trainer.about.has_accuracy) run->correct += (uint64_t)(score->accuracy * (double)n + 0.5);
    }
    if (rank->exchange.micros != NULL) {
        memcpy(rank->exchange.micros[self->part], eni_rank_flat(rank, ENI_SLOT_GRAD),
               rank->job.schema.count * sizeof(float));
        if (++self->part < rank->job.accumulate) return EN_OK;
        self->part = 0;
        eni_step_average(rank, self->nsamples);
        EN_TRY(eni_step_begin(run, self->nsamples, (int)rank->job.accumulate));
    }
    EN_TRY(eni_step_submit(run, rank->job.buckets->n));
    EN_TRY(eni_run_finish(run));
    self->is_stepping = rank->trainer.steps_itself;
    if (self->is_stepping && self->given.step != NULL)
        EN_TRY(step_tensors(self, 0, rank->job.schema.ntensors));
    if (self->ops.step == NULL || n == 0 || self->nstepped == rank->job.buckets->n) return EN_OK;
    return eni_fail(
        EN_EUNSUPPORTED, "rank",
        "%s has stepped %u of %u buckets by the program's optimizer, the others in a way of its own: omit "
        "EN_RANK_STEPS_ITSELF",
        rank->job.strategy->name, self->nstepped, rank->job.buckets->n);
}

en_status en_rank_finish(en_rank *rank, const en_rank_score *score)
{
    EN_TRY(entered(rank));
    if (rank->phase != IN_STEP) return refuse(rank, "finish", "no step has begun: call en_rank_begin");
    if (score == NULL || score->size < FIRST_SCORE || !(score->accuracy >= 0 && score->accuracy <= 1))
        return refuse(rank, "finish", "the score needs its size, and an accuracy of 0 to 1");
    const en_status st = finish(rank, score);
    eni_member_note(rank->rank.member, (int64_t)rank->run.step, "data");
    rank->idle_ns = eni_now_ns();
    return done(rank, st);
}

/* ---- the end ---- */

en_status en_rank_end(en_rank *rank)
{
    EN_TRY(entered(rank));
    const bool is_cut =
        rank->phase == OVER || rank->is_cut; /* a signal in the last step ends nothing early */
    const bool is_over =
        rank->phase == OVER || (rank->phase == IDLE && rank->is_last && rank->nhanded == rank->nbegun);
    if (!is_over)
        return refuse(rank, "end",
                      "the run has steps left: go on until EN_ESTOP, or call en_rank_stop before");
    en_status st = end_step(rank);
    if (st == EN_OK) st = eni_run_end(&rank->rank, EN_ESTOP);
    if (st == EN_OK) st = eni_run_leave(&rank->rank);
    if (st != EN_OK) return done(rank, st);
    rank->phase = LEFT;
    eni_end_write((int)rank->config.result_fd, is_cut && atomic_load(&rank->is_signalled) ? EN_EINTR : EN_OK);
    return left(rank, EN_OK);
}

void en_rank_stop(en_rank *rank, const char *why)
{
    if (rank == NULL || getpid() != rank->pid) return;
    if (why != NULL && (!strcmp(why, "SIGINT") || !strcmp(why, "SIGTERM") || !strcmp(why, "SIGHUP")))
        atomic_store(&rank->is_signalled, true);
    eni_member_stop(rank->rank.member, why != NULL ? why : "the program");
}

void en_rank_abort(en_rank *rank, const char *why)
{
    char text[ENI_REASON_MAX];
    if (getpid() != rank->pid) return;
    snprintf(text, sizeof text, "%s", why != NULL ? why : "the program has given up");
    for (char *c = text; *c != 0; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* one line */
    if (rank->config.result_fd >= 0) eni_cause_tell(&rank->config.result_fd, text);
    eni_member_abort(rank->rank.member, text);
    eni_shutdown_now(rank->rank.shutdown);
}

en_status en_rank_status(const en_rank *rank)
{
    if (getpid() != rank->pid) return EN_EBUG; /* not logged: it may be asked at any time */
    return eni_rank_alive((void *)(uintptr_t)&rank->rank);
}

void en_rank_why(char *text_out, size_t bytes)
{
    if (bytes > 0) (void)eni_log_last_error(text_out, bytes);
}

void en_rank_close(en_rank *rank)
{
    if (rank == NULL || getpid() != rank->pid) return;
    const en_status st = rank->phase == LEFT || rank->has_failed ? EN_ESTOP : eni_rank_alive(&rank->rank);
    if (st == EN_OK)
        eni_error("rank", "rank %d: the program closed its rank in step %llu, before the end of the run",
                  rank->facts.rank, (unsigned long long)rank->rank.step);
    if (st != EN_ESTOP) {
        rank->programs = uselocale(rank->plain); /* it also writes records */
        (void)left(rank, fail(rank, st == EN_OK ? EN_EBUG : st));
    }
    free_all(rank);
}
