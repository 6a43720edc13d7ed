/* files.c - see files.h. */
#include "runtime/core/files.h"

#include <sys/resource.h>

#include "runtime/core/log.h"

en_status eni_files_need(size_t needed, const char *who)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return EN_OK;
    if (files.rlim_max >= needed) {
        files.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &files) == 0) return EN_OK;
    }
    eni_error("files", "%s needs %zu open files, and this process may have %llu: raise it with ulimit -n %zu",
              who, needed, (unsigned long long)files.rlim_cur, needed);
    return EN_EUNSUPPORTED;
}
