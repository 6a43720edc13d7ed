/* load.cc - the dlopen of the simulated plugin. libnccl is in this library itself; with FAKE_NCCL=none it is not to be
 * found. */
#include <cstring>
#include <dlfcn.h>
#include <string>

#include "tests/fake_gpu/fake_gpu.h"

extern "C" FAKE_GPU_API void *fake_gpu_dlopen(const char *file, int mode)
{
    if (!file || !strstr(file, "libnccl")) return dlopen(file, mode);
    if (strcmp(fake_gpu::option("FAKE_NCCL"), "none") == 0) /* so that dlerror has something to say */
        return dlopen((std::string(file) + ".is-not-here").c_str(), mode);
    Dl_info self;
    if (!dladdr((void *)fake_gpu_dlopen, &self)) return NULL;
    return dlopen(self.dli_fname, mode);
}
