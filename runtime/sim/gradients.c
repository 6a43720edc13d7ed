/* gradients.c - computes the gradients of ranks, on as many threads as the problem allows.
 *
 * The inputs of a gradient are fixed when its step begins, so it may be computed at any time until the rank's first bucket
 * is ready: begin puts it into a queue that the threads empty, and the scheduler goes on with other events. Before anything
 * reads the gradient, or writes the weights or the gradient, await has it: from a thread, or by computing it right there.
 * So a run has the same bytes with any number of threads. */
#include <pthread.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/sim/world.h"

struct eni_sim_pool {
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    eni_sim_rank *first, *last; /* in the order in which their steps began */
    bool is_over;
    int n;
    pthread_t thread[];
};

/* A rank alone in the world takes the mean of its micro-batches (one, too) as a world of as many ranks would:
 * the same function, the same order, the same bytes. */
static en_status compute(eni_sim_rank *rank)
{
    const eni_sim *sim = rank->sim;
    const eni_sim_problem *problem = sim->config->problem;
    uint64_t samples[ENI_MEAN_MAX] = {0};
    for (uint64_t i = 0; i < rank->nbatches; i++) {
        float *to = sim->gradients.micro != NULL ? sim->gradients.micro[i] : rank->grad;
        samples[i] = problem->samples(problem->user, rank->first_batch + i);
        EN_TRY(problem->grad(problem->user, rank->world.rank, rank->first_batch + i, rank->param, to));
    }
    if (rank->nbatches == 0) memset(rank->grad, 0, problem->count * sizeof(float));
    if (sim->gradients.micro == NULL || rank->nbatches == 0) return EN_OK;
    /* Bucket by bucket: a ring's order of the sum depends on where a bucket begins. */
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const uint64_t lo = sim->buckets->bucket[b].lo, count = sim->buckets->bucket[b].hi - lo;
        const float *from[ENI_MEAN_MAX];
        for (uint64_t i = 0; i < sim->config->accumulate; i++)
            from[i] = sim->gradients.micro[i] + lo;
        eni_mean_ranks(rank->grad + lo, from, samples, (int)sim->config->accumulate, sim->config->sum_order,
                       count, 0, count);
    }
    return EN_OK;
}

/* ---- the queue: everything here with the lock ---- */

static void append(eni_sim_pool *pool, eni_sim_rank *rank)
{
    rank->job = (eni_sim_job){.previous = pool->last, .state = ENI_JOB_QUEUED};
    *(pool->last != NULL ? &pool->last->job.next : &pool->first) = rank;
    pool->last = rank;
    pthread_cond_signal(&pool->queued);
}

/* Takes a rank out, and computes without the lock. */
static void run(eni_sim_pool *pool, eni_sim_rank *rank)
{
    eni_sim_job *job = &rank->job;
    *(job->previous != NULL ? &job->previous->job.next : &pool->first) = job->next;
    *(job->next != NULL ? &job->next->job.previous : &pool->last) = job->previous;
    job->state = ENI_JOB_RUNNING;
    pthread_mutex_unlock(&pool->lock);
    const en_status st = compute(rank);
    pthread_mutex_lock(&pool->lock);
    job->status = st;
    job->state = ENI_JOB_DONE;
    pthread_cond_signal(&pool->done);
}

static void *work(void *pool_)
{
    eni_sim_pool *pool = pool_;
    pthread_mutex_lock(&pool->lock);
    while (!pool->is_over)
        if (pool->first != NULL)
            run(pool, pool->first);
        else
            pthread_cond_wait(&pool->queued, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- for the scheduler ---- */

en_status eni_gradients_begin(eni_sim_rank *rank)
{
    eni_sim_pool *pool = rank->sim->gradients.pool;
    if (pool == NULL) return compute(rank);
    pthread_mutex_lock(&pool->lock);
    append(pool, rank);
    pthread_mutex_unlock(&pool->lock);
    rank->job.is_computing = true;
    return EN_OK;
}

void eni_gradients_await(eni_sim_rank *rank)
{
    if (!rank->job.is_computing) return;
    eni_sim_pool *pool = rank->sim->gradients.pool;
    pthread_mutex_lock(&pool->lock);
    while (rank->job.state != ENI_JOB_DONE) {
        eni_sim_rank *next = rank->job.state == ENI_JOB_QUEUED ? rank : pool->first;
        if (next != NULL)
            run(pool, next);
        else
            pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    rank->job.is_computing = false;
    eni_sim_fail(rank->sim, rank->job.status);
}

void eni_gradients_await_all(eni_sim *sim)
{
    for (int32_t r = 0; r < sim->nranks; r++)
        eni_gradients_await(&sim->ranks[r]);
}

/* ---- open and close ---- */

en_status eni_gradients_open(eni_sim *sim)
{
    const int threads = sim->config->problem->threads;
    const int n = (threads < sim->nranks ? threads : sim->nranks) - 1; /* the scheduler is one of them */
    if (n <= 0) return EN_OK;
    eni_sim_pool *pool = eni_alloc(sizeof *pool + (size_t)n * sizeof *pool->thread);
    if (pool == NULL) return EN_ENOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->queued, NULL);
    pthread_cond_init(&pool->done, NULL);
    sim->gradients.pool = pool;
    for (; pool->n < n; pool->n++) {
        const int error = eni_thread_start(&pool->thread[pool->n], work, pool);
        if (error != 0) return eni_fail(EN_ENOMEM, "sim", "cannot start a thread: %s", strerror(error));
    }
    return EN_OK;
}

void eni_gradients_close(eni_sim *sim)
{
    eni_sim_pool *pool = sim->gradients.pool;
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->is_over = true;
    pthread_cond_broadcast(&pool->queued);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->queued);
    pthread_mutex_destroy(&pool->lock);
    eni_free(pool);
    sim->gradients.pool = NULL;
    for (int32_t r = 0; r < sim->nranks; r++) /* after a failure: nobody computes them any more */
        sim->ranks[r].job.is_computing = false;
}
