/* trace.h - spans of one process in Chrome's trace format (chrome://tracing, Perfetto), for --trace=FILE.
 *
 * Times are absolute on the monotonic clock, so that the files of all processes of one host line up when
 * `entrain run` merges them. Recording costs two stores and no system call; when the buffer is full, later
 * spans are dropped and counted. */
#ifndef CORE_TRACE_H
#define CORE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_trace eni_trace;

/* Threads within a process, as rows of the picture. psd has up to 256 shards, a rank up to 64 stages. */
enum {
    ENI_TRACE_COMPUTE = 0,
    ENI_TRACE_COMM = 1,
    ENI_TRACE_LOADER = 2,
    ENI_TRACE_SHARD0 = 10,
    ENI_TRACE_STAGE0 = 300,
    ENI_TRACE_ROWS = 400
};

/* A row's name: "compute", "comm", "loader", "shard 3", "stage 0"; "thread 7" for an unnamed row. */
enum { ENI_TRACE_ROW_TEXT = 24 };
const char *eni_trace_row(int thread, char text_out[ENI_TRACE_ROW_TEXT]);

/* A recorder for `max_spans` spans of the process `role` ("rank 0", "psd"), shown as process number `pid`.
 * NULL when out of memory. */
eni_trace *eni_trace_new(const char *role, int pid, uint64_t max_spans);

/* Records [begin_ns, end_ns). `name` must live as long as the trace (a literal). Negative bucket: no bucket.
 * Any thread; a NULL trace records nothing. */
void eni_trace_span(eni_trace *trace, int thread, const char *name, int64_t begin_ns, int64_t end_ns,
                    int64_t step, int bucket, uint64_t bytes);

/* Writes {"traceEvents": [...]} to path: names of the process and its rows, then its spans. Call after recording has
 * ended. */
en_status eni_trace_write(const eni_trace *trace, const char *path);

void eni_trace_free(eni_trace *trace);

#endif
