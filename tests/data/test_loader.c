/* test_loader.c - the loader's threads: every sample once, in order, with claims, ends, aborts and deadlines. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "data/loader.h"
#include "data/plan.h"

/* Promise: Crops and mirrors do not depend on the number of ranks or loader threads. */

enum { N = 501, SEED = 3 };

static eni_dataset *set;

static int open_set(void **state)
{
    (void)state;
    eni_data_options options = {.name = "synthetic",
                                .limit_train = N,
                                .limit_test = 1,
                                .want = {4, 4, 1, 10, 0},
                                .seed = SEED,
                                .transform = {.pad = 1, .crop = 4, .has_flip = true}}; /* epochs differ */
    return eni_dataset_open(&options, &set);
}

static int close_set(void **state)
{
    (void)state;
    eni_dataset_close(set);
    return 0;
}

static eni_plan plan_of(uint64_t world, uint64_t batch, uint64_t epochs)
{
    eni_plan plan;
    eni_plan_options options = {.train_samples = N, .world = world, .batch = batch, .epochs = epochs};
    assert_int_equal(eni_plan_make(&options, &plan), EN_OK);
    return plan;
}

static int64_t soon(void)
{
    return eni_now_ns() + 20 * ENI_SECOND;
}

/* A batch holds exactly the samples that the sampler names for it. */
static void check_batch(const eni_batch *batch)
{
    static eni_sampler *sampler;
    uint32_t indices[64];
    float x[64 * 16];
    int32_t labels[64];
    sampler = eni_sampler_new(N, SEED, ENI_ORDER_EACH_EPOCH);
    eni_sampler_indices(sampler, &batch->micro, indices);
    eni_dataset_gather(set, ENI_TRAIN, batch->micro.epoch, indices, batch->micro.count, x, labels);
    assert_memory_equal(x, batch->x, batch->micro.count * 16 * sizeof *x);
    assert_memory_equal(labels, batch->target, batch->micro.count * sizeof *labels);
    eni_sampler_free(sampler);
}

/* Consumes to the end; returns batches, adds samples. */
static uint64_t drain(eni_loader *loader, uint64_t first, uint64_t stride, uint64_t *samples)
{
    const eni_batch *batch;
    uint64_t count = 0;
    en_status st;
    while ((st = eni_loader_next(loader, soon(), &batch)) == EN_OK) {
        assert_int_equal(batch->micro.index, first + count * stride);
        check_batch(batch);
        *samples += batch->micro.count;
        count++;
    }
    assert_int_equal(st, EN_ESTOP);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_ESTOP); /* and stays so */
    return count;
}

static void fixed_ranks_cover_every_epoch(void **state)
{
    (void)state;
    eni_plan plan = plan_of(3, 16, 2);
    for (int depth = 1; depth <= 4; depth++) {
        uint64_t samples = 0;
        for (uint64_t rank = 0; rank < 3; rank++) {
            eni_loader *loader;
            eni_loader_options options = {.dataset = set,
                                          .plan = &plan,
                                          .seed = SEED,
                                          .order = ENI_ORDER_EACH_EPOCH,
                                          .depth = depth,
                                          .threads = 5 - depth, /* more than there are buffers, too */
                                          .first = rank,
                                          .stride = 3};
            assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
            assert_int_equal(drain(loader, rank, 3, &samples), plan.steps);
            eni_loader_stop(loader);
        }
        assert_int_equal(samples, 2 * N);
    }
}

/* solo --accumulate=W runs all micro-batches in order; a resumed run starts in the middle. */
static void solo_runs_all_from_anywhere(void **state)
{
    (void)state;
    eni_plan plan = plan_of(4, 8, 1);
    uint64_t samples = 0;
    eni_loader *loader;
    eni_loader_options options = {.dataset = set,
                                  .plan = &plan,
                                  .seed = SEED,
                                  .order = ENI_ORDER_EACH_EPOCH,
                                  .depth = 2,
                                  .first = 5,
                                  .stride = 1};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    assert_int_equal(drain(loader, 5, 1, &samples), plan.micro_batches - 5);
    assert_int_equal(samples, N - 5 * 8);
    eni_loader_stop(loader);
}

static en_status claim(void *user, uint64_t *micro_batch_out)
{
    atomic_ullong *next = user;
    *micro_batch_out = atomic_fetch_add(next, 1);
    return EN_OK;
}

typedef struct consumer {
    atomic_ullong *next;
    const eni_plan *plan;
    uint64_t samples, empty;
    en_status end;
} consumer;

static void *consume(void *user)
{
    consumer *c = user;
    const eni_batch *batch;
    eni_loader *loader;
    eni_loader_options options = {.dataset = set,
                                  .plan = c->plan,
                                  .seed = SEED,
                                  .order = ENI_ORDER_EACH_EPOCH,
                                  .depth = 2,
                                  .threads = 3,
                                  .claim = claim,
                                  .user = c->next};
    c->end = eni_loader_start(&options, &loader);
    if (c->end != EN_OK) return NULL;
    while ((c->end = eni_loader_next(loader, soon(), &batch)) == EN_OK) {
        c->samples += batch->micro.count;
        c->empty += batch->micro.count == 0;
    }
    eni_loader_stop(loader);
    return NULL;
}

/* Three workers that claim share the run without gaps or repeats, and are never given an empty batch. */
static void claims_share_the_run(void **state)
{
    (void)state;
    eni_plan plan = plan_of(4, 5, 3); /* the last step of an epoch has one sample for four workers */
    atomic_ullong next = 0;
    consumer c[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        c[i] = (consumer){.next = &next, .plan = &plan};
        assert_int_equal(pthread_create(&thread[i], NULL, consume, &c[i]), 0);
    }
    uint64_t samples = 0;
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(c[i].end, EN_ESTOP);
        assert_int_equal(c[i].empty, 0);
        samples += c[i].samples;
    }
    assert_int_equal(samples, 3 * N);
}

typedef struct counted {
    atomic_ullong claimed, taken;
    atomic_bool is_hoarding;
} counted;

static en_status claim_counted(void *user, uint64_t *micro_batch_out)
{
    counted *c = user;
    const unsigned long long taken = atomic_load(&c->taken);
    *micro_batch_out = atomic_fetch_add(&c->claimed, 1);
    if (*micro_batch_out >= taken + 2) atomic_store(&c->is_hoarding, true);
    return EN_OK;
}

/* What waits here no other rank can take: two batches, whatever the threads. */
static void claims_are_not_hoarded(void **state)
{
    (void)state;
    eni_plan plan = plan_of(1, 1, 1);
    counted c = {0};
    const eni_batch *batch;
    eni_loader *loader;
    eni_loader_options options = {
        .dataset = set, .plan = &plan, .threads = 8, .claim = claim_counted, .user = &c};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    for (int i = 0; i < 20; i++) {
        atomic_fetch_add(&c.taken, 1);
        assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_OK);
    }
    assert_false(atomic_load(&c.is_hoarding));
    eni_loader_stop(loader);
}

static en_status claim_two(void *user, uint64_t *micro_batch_out)
{
    uint64_t *next = user;
    *micro_batch_out = *next;
    return (*next)++ < 2 ? EN_OK : EN_EPEER;
}

/* What the claim says is what the consumer hears, after the batches that were ready. */
static void a_failed_claim_reaches_the_consumer(void **state)
{
    (void)state;
    eni_plan plan = plan_of(2, 8, 1);
    uint64_t next = 0;
    const eni_batch *batch;
    eni_loader *loader;
    eni_loader_options options = {
        .dataset = set, .plan = &plan, .depth = 2, .threads = 4, .claim = claim_two, .user = &next};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_OK);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_OK);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_EPEER);
    eni_loader_stop(loader);
}

/* A claim that waits until the test opens the gate. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    int is_open;
} gate;

static en_status claim_behind_gate(void *user, uint64_t *micro_batch_out)
{
    gate *g = user;
    pthread_mutex_lock(&g->mutex);
    while (!g->is_open)
        pthread_cond_wait(&g->opened, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    *micro_batch_out = 0;
    return EN_OK;
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->mutex);
    g->is_open = 1;
    pthread_cond_signal(&g->opened);
    pthread_mutex_unlock(&g->mutex);
}

static void *abort_it(void *loader)
{
    eni_loader_abort(loader);
    return NULL;
}

static void deadlines_and_aborts_end_a_wait(void **state)
{
    (void)state;
    eni_plan plan = plan_of(2, 8, 1);
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    const eni_batch *batch;
    eni_loader *loader;
    eni_loader_options options = {
        .dataset = set, .plan = &plan, .depth = 2, .claim = claim_behind_gate, .user = &g};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    int64_t begin = eni_now_ns();
    assert_int_equal(eni_loader_next(loader, begin + 5 * ENI_MILLI, &batch), EN_ETIMEOUT);
    assert_true(eni_now_ns() - begin >= 5 * ENI_MILLI);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, abort_it, loader), 0);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_EINTR);
    pthread_join(thread, NULL);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_EINTR);
    open_gate(&g);
    eni_loader_stop(loader);
}

/* A consumer that never asks again does not keep stop from returning. */
static void stop_ends_a_full_loader(void **state)
{
    (void)state;
    eni_plan plan = plan_of(2, 8, 1000);
    eni_loader *loader;
    const eni_batch *batch;
    eni_loader_options options = {.dataset = set, .plan = &plan, .depth = 3, .first = 1, .stride = 2};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    assert_int_equal(eni_loader_next(loader, soon(), &batch), EN_OK);
    eni_loader_stop(loader);
    eni_loader_stop(NULL);
    eni_loader_halt(NULL);
}

/* ---- for a GPU ---- */

/* With two in hand the one before stays as it is while the next is used, however far the thread is ahead. */
static void held_batches_stay(void **state)
{
    (void)state;
    eni_plan plan = plan_of(1, 8, 2);
    for (int hold = 2; hold <= 3; hold++) {
        const eni_batch *held[3] = {NULL, NULL, NULL};
        eni_loader *loader;
        eni_loader_options options = {.dataset = set,
                                      .plan = &plan,
                                      .seed = SEED,
                                      .order = ENI_ORDER_EACH_EPOCH,
                                      .depth = 1,
                                      .stride = 1,
                                      .hold = hold};
        assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
        uint64_t samples = 0, count = 0;
        while (eni_loader_next(loader, soon(), &held[count % (uint64_t)hold]) == EN_OK) {
            samples += held[count % (uint64_t)hold]->micro.count;
            for (uint64_t back = 0; back < (uint64_t)hold && back <= count; back++) {
                const eni_batch *batch = held[(count - back) % (uint64_t)hold];
                assert_int_equal(batch->micro.index, count - back);
                check_batch(batch);
            }
            count++;
        }
        assert_int_equal(samples, 2 * N);
        eni_loader_stop(loader);
    }
}

enum { PINS = 8 };

typedef struct registers {
    struct {
        const char *memory;
        uint64_t bytes;
    } at[PINS];
    int n, all, limit;
    pthread_t owner;
} registers;

static en_status register_memory(void *user, void *memory, uint64_t bytes)
{
    registers *p = user;
    assert_true(pthread_equal(p->owner, pthread_self()));
    assert_int_equal((uintptr_t)memory % 4096, 0);
    if (p->n == p->limit) return EN_EUNSUPPORTED;
    p->at[p->n].memory = memory;
    p->at[p->n++].bytes = bytes;
    p->all++;
    return EN_OK;
}

static void unregister_memory(void *user, void *memory)
{
    registers *p = user;
    int i = 0;
    assert_true(pthread_equal(p->owner, pthread_self()));
    while (i < p->n && p->at[i].memory != memory)
        i++;
    assert_true(i < p->n); /* registered, and not unregistered yet */
    p->at[i] = p->at[--p->n];
}

static int is_registered(const registers *p, const void *from, uint64_t bytes)
{
    for (int i = 0; i < p->n; i++)
        if ((const char *)from >= p->at[i].memory &&
            (const char *)from + bytes <= p->at[i].memory + p->at[i].bytes)
            return 1;
    return 0;
}

static void every_buffer_is_registered(void **state)
{
    (void)state;
    eni_plan plan = plan_of(1, 8, 1);
    registers p = {.limit = PINS, .owner = pthread_self()};
    const eni_batch *batch;
    eni_loader *loader;
    eni_loader_options options = {.dataset = set,
                                  .plan = &plan,
                                  .seed = SEED,
                                  .order = ENI_ORDER_EACH_EPOCH,
                                  .depth = 2,
                                  .stride = 1,
                                  .hold = 2,
                                  .register_memory = register_memory,
                                  .unregister_memory = unregister_memory,
                                  .pin_user = &p};
    assert_int_equal(eni_loader_start(&options, &loader), EN_OK);
    assert_int_equal(p.n, 4);
    while (eni_loader_next(loader, soon(), &batch) == EN_OK) {
        check_batch(batch);
        assert_true(is_registered(&p, batch->x, batch->micro.count * 16 * sizeof *batch->x));
        assert_true(is_registered(&p, batch->target, batch->micro.count * sizeof(int32_t)));
    }
    eni_loader_stop(loader);
    assert_int_equal(p.n, 0);
    assert_int_equal(p.all, 4);

    p.limit = 2; /* what cannot be registered ends the start, and what was registered is given back */
    assert_int_equal(eni_loader_start(&options, &loader), EN_EUNSUPPORTED);
    assert_int_equal(p.n, 0);
    assert_int_equal(p.all, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_ranks_cover_every_epoch),
        cmocka_unit_test(solo_runs_all_from_anywhere),
        cmocka_unit_test(claims_share_the_run),
        cmocka_unit_test(claims_are_not_hoarded),
        cmocka_unit_test(a_failed_claim_reaches_the_consumer),
        cmocka_unit_test(deadlines_and_aborts_end_a_wait),
        cmocka_unit_test(stop_ends_a_full_loader),
        cmocka_unit_test(held_batches_stay),
        cmocka_unit_test(every_buffer_is_registered),
    };
    return cmocka_run_group_tests(tests, open_set, close_set);
}
