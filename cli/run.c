/* run.c - `entrain run`: one run on this host, and one trace of it out of those that its processes have left.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/launch.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"

/* Adds the events of a part, and what it had no room for. */
static en_status append(json_t *events, const char *path, json_int_t *dropped)
{
    json_error_t error;
    if (access(path, R_OK) != 0) return EN_OK;
    json_t *part = json_load_file(path, 0, &error);
    if (part == NULL) return eni_fail(EN_EFORMAT, "trace", "%s:%d: %s", path, error.line, error.text);
    int failed = json_array_extend(events, json_object_get(part, "traceEvents"));
    *dropped += json_integer_value(json_object_get(part, "dropped"));
    json_decref(part);
    if (failed == 0) return EN_OK;
    return eni_fail(EN_EFORMAT, "trace", "%s has no list \"traceEvents\"", path);
}

/* Part `i` of a run of `nranks`: 0 is rank 0's, nranks is psd's. */
static void name_part(const char *path, int i, int nranks, char *part, size_t bytes)
{
    if (i == 0)
        snprintf(part, bytes, "%s", path);
    else if (i < nranks)
        snprintf(part, bytes, "%s.rank%d", path, i);
    else
        snprintf(part, bytes, "%s.psd", path);
}

en_status eni_merge_trace(const char *path, int nranks)
{
    char part[1200];
    json_t *all = json_object(), *events = json_array();
    json_int_t dropped = 0;
    en_status st = EN_OK;
    json_object_set_new(all, "traceEvents", events);
    for (int i = 0; st == EN_OK && i <= nranks; i++) {
        name_part(path, i, nranks, part, sizeof part);
        st = append(events, part, &dropped);
    }
    json_object_set_new(all, "dropped", json_integer(dropped));
    if (st == EN_OK && json_dump_file(all, path, JSON_COMPACT) != 0) {
        eni_error("trace", "cannot write %s: %s", path, strerror(errno));
        st = EN_EIO;
    }
    json_decref(all);
    for (int i = 1; st == EN_OK && i <= nranks; i++) { /* only now: a failure leaves the parts as they are */
        name_part(path, i, nranks, part, sizeof part);
        unlink(part);
    }
    return st;
}

en_status eni_command_run(const eni_command_context *context)
{
    int64_t begin = eni_now_ns();
    eni_launch launch = {
        .config = context->config, .plugin_dir = context->plugin_dir, .signal_fd = context->signal_fd};
    const en_status st = eni_launch_run(&launch);
    if (st == EN_ESTOP) return EN_OK; /* it was finished before */
    EN_TRY(st);
    if (context->config->trace != NULL &&
        context->config->node_rank == 0) /* its own ranks; others stay apart */
        EN_TRY(eni_merge_trace(context->config->trace, (int)context->config->workers));
    if (!context->config->quiet) printf("Time elapsed: %.2f s\n", (double)(eni_now_ns() - begin) * 1e-9);
    return EN_OK;
}
