/* merge_trace.c - see merge_trace.h. */
#include "cli/merge_trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/log.h"
#include "runtime/core/try.h"

static en_status append(json_t *events, const char *path)
{
    json_error_t error;
    if (access(path, R_OK) != 0) return EN_OK;
    json_t *part = json_load_file(path, 0, &error);
    if (part == NULL) {
        eni_error("trace", "%s:%d: %s", path, error.line, error.text);
        return EN_EFORMAT;
    }
    json_array_extend(events, json_object_get(part, "traceEvents"));
    json_decref(part);
    return EN_OK;
}

en_status eni_merge_trace(const char *path, int nranks)
{
    char part[1200];
    json_t *all = json_object(), *events = json_array();
    json_object_set_new(all, "traceEvents", events);
    en_status st = append(events, path);
    for (int r = 1; st == EN_OK && r <= nranks; r++) {
        if (r < nranks)
            snprintf(part, sizeof part, "%s.rank%d", path, r);
        else
            snprintf(part, sizeof part, "%s.psd", path);
        st = append(events, part);
        if (st == EN_OK) unlink(part);
    }
    if (st == EN_OK && json_dump_file(all, path, JSON_COMPACT) != 0) {
        eni_error("trace", "cannot write %s: %s", path, strerror(errno));
        st = EN_EIO;
    }
    json_decref(all);
    return st;
}
