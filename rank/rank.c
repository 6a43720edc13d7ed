/* rank.c - shared by the files of a rank: whether the run may go on, deadlines, the time since its start; and
 * one operation on all buckets. */
#include "rank/rank.h"

#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/try.h"
#include "runtime/net/process.h"

void eni_rank_init(eni_rank *self)
{
    self->mesh = (eni_mesh){.tcp_fd = -1, .unix_fd = -1};
    self->token.lock = self->records.out_fd = -1;
    self->abort_fd = eni_shutdown_fd(self->shutdown);
}

en_status eni_rank_alive(void *rank)
{
    const eni_rank *self = rank;
    return (en_status)atomic_load_explicit(&self->ended, memory_order_acquire);
}

int64_t eni_rank_answer_by(const eni_rank *self, int64_t timeout_ns)
{
    return eni_now_ns() + self->asked.server_timeout_ns + timeout_ns;
}

en_status eni_rank_collect(eni_rank *self, eni_coll *coll, const eni_coll_op *like)
{
    eni_coll_op op = *like;
    for (op.bucket = 0; op.bucket < self->job.buckets->n && coll != NULL; op.bucket++) {
        const eni_bucket_range *range = &self->job.buckets->bucket[op.bucket];
        op.offset = range->lo;
        op.count = range->hi - range->lo;
        EN_TRY(eni_coll_run(coll, &op));
    }
    return EN_OK;
}

en_status eni_rank_call_store(eni_rank *self, uint32_t message, uint32_t kind, uint32_t from, uint32_t to)
{
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        EN_TRY(eni_client_call(self->exchange.client, b, from, to,
                               &(eni_header){.type = message, .kind = kind, .what = EN_WEIGHTS}));
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        EN_TRY(eni_client_wait(self->exchange.client, b));
    return EN_OK;
}

/* ---- the time since its start ---- */

int64_t eni_startup_ns(int64_t begin_ns)
{
    struct timespec now;
    if (begin_ns > 0) return eni_now_ns() - begin_ns;
    begin_ns = (int64_t)eni_process_born(getpid()) * (ENI_SECOND / sysconf(_SC_CLK_TCK));
    clock_gettime(CLOCK_BOOTTIME, &now); /* the clock of starttime */
    return begin_ns == 0 ? 0 : (int64_t)now.tv_sec * ENI_SECOND + now.tv_nsec - begin_ns;
}
