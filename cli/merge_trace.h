/* merge_trace.h - one trace file out of those that the processes of a run have left. */
#ifndef CLI_MERGE_TRACE_H
#define CLI_MERGE_TRACE_H

#include "entrain/status.h"

/* PATH (rank 0's), PATH.rank1 .. and PATH.psd become PATH; the parts are removed. Missing parts are fine. */
en_status eni_merge_trace(const char *path, int nranks);

#endif
