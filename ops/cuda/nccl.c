/* nccl.c - finds each function of libnccl by its name; see nccl.h. */
#include "ops/cuda/nccl.h"

#include <dlfcn.h>
#include <stddef.h>

const char *eni_nccl_load(eni_nccl *nccl_out)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"ncclGetVersion", &nccl_out->get_version},
        {"ncclGetUniqueId", &nccl_out->get_unique_id},
        {"ncclGetErrorString", &nccl_out->get_error_string},
        {"ncclGetLastError", &nccl_out->get_last_error},
        {"ncclCommInitRankConfig", &nccl_out->comm_init},
        {"ncclCommGetAsyncError", &nccl_out->comm_get_async_error},
        {"ncclCommFinalize", &nccl_out->comm_finalize},
        {"ncclCommDestroy", &nccl_out->comm_destroy},
        {"ncclCommAbort", &nccl_out->comm_abort},
        {"ncclAllReduce", &nccl_out->all_reduce},
        {"ncclBroadcast", &nccl_out->broadcast},
        {"ncclRedOpCreatePreMulSum", &nccl_out->create_scaled_sum},
        {"ncclRedOpDestroy", &nccl_out->destroy_op},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found) return "libnccl.so.2 is older than 2.14";
        *(void **)wanted[i].where = found; /* POSIX's way around ISO C's function pointers */
    }
    return NULL;
}
