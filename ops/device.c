/* device.c - finds a device library in the plugin folder and opens it; see device.h. */
#include "ops/device.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"
#include "plugin/plugin.h"

static void log_for_device(int level, const char *subsystem, const char *text)
{
    eni_log(level, subsystem, "%s", text);
}

static const en_device_host host = {.abi = EN_DEVICE_ABI, .size = sizeof host, .log = log_for_device};

bool eni_device_is_built(const char *name, const char *plugin_dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/device_%s.so", plugin_dir, name);
    return access(path, R_OK) == 0;
}

en_status eni_device_list_parse(const char *spec, const char *plugin_dir, eni_device_list *list_out)
{
    if (strcmp(spec, "auto") == 0) spec = eni_device_is_built("cpu", plugin_dir) ? "cpu" : "ref";
    const char *expected = eni_device_list_read(spec, list_out);
    if (expected == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "device", "\"%s\" is not a device; give %s", spec, expected);
}

bool eni_device_is_gpu(const char *spec)
{
    return strncmp(spec, "cuda", 4) == 0 && (spec[4] == '\0' || spec[4] == ':');
}

/* See device.h: OpenMP reads these when it is loaded, so they must be set before. */
static en_status set_thread_environment(int threads)
{
    static const char *const not_ours[] = {"GOMP_SPINCOUNT", "OMP_MAX_ACTIVE_LEVELS", "OMP_PROC_BIND",
                                           "OMP_PLACES",     "GOMP_CPU_AFFINITY",     "OMP_THREAD_LIMIT"};
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    for (size_t i = 0; i < sizeof not_ours / sizeof *not_ours; i++)
        unsetenv(not_ours[i]);
    if (setenv("OMP_NUM_THREADS", text, 1) != 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0)
        return eni_fail(EN_ENOMEM, "device",
                        "setting OMP_NUM_THREADS and OMP_WAIT_POLICY failed: out of memory");
    return EN_OK;
}

#ifdef EN_NO_CPU
#define NO_CPU "this build lacks it (" EN_NO_CPU "); "
#else
#define NO_CPU ""
#endif

static const char *remedy(const char *name)
{
    if (strcmp(name, "cpu") == 0)
        return NO_CPU "install the package libdnnl-dev and rebuild, or use --device=ref";
    if (strcmp(name, "cuda") == 0)
        return "this build lacks it (it needs the CUDA toolkit and cuDNN: -DENTRAIN_CUDA=ON shows what is "
               "missing); build it, or use --device=cpu";
    return "give ref, cpu or cuda";
}

static const char again[] = "build or install it again";

/* The remedy for a library that the system's loader could not find. */
static const char *missing(const char *why)
{
    static const struct {
        const char *library, *remedy;
    } known[] = {
        {"libcudnn", "install cuDNN 9 (package libcudnn9-cuda-13, or python3 -m pip install "
                     "nvidia-cudnn-cu13) and put its folder into LD_LIBRARY_PATH, or use --device=cpu"},
        {"libcublasLt", "install cuBLAS of the CUDA toolkit (package libcublas-13-0) and put its folder, "
                        "such as /usr/local/cuda/lib64, into LD_LIBRARY_PATH, or use --device=cpu"},
        {"libdnnl", "install the package that has it (libdnnl2 in Debian 12, libdnnl3.6 in Debian 13), or "
                    "use --device=ref"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(why, known[i].library)) return known[i].remedy;
    return again;
}

ENI_PLUGIN_KIND(en_device, EN_DEVICE, sizeof(en_device), .what = "device", .plural = "devices",
                .remedy = again, .missing = missing, .is_slow = true);

const en_device_host *eni_device_host(void)
{
    return &host;
}

en_status eni_device_load(const char *name, const char *plugin_dir, const en_device **table_out)
{
    char path[PATH_MAX];
    const void *loaded;
    *table_out = eni_ref_device();
    if (strcmp(name, (*table_out)->name) == 0) return EN_OK;
    snprintf(path, sizeof path, "%s/device_%s.so", plugin_dir, name);
    if (access(path, F_OK) != 0)
        return eni_fail(EN_ENOENT, "device", "device \"%s\" not found: %s does not exist; %s", name, path,
                        remedy(name));
    if (eni_device_is_gpu(name) && setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0) != 0)
        return eni_fail(EN_ENOMEM, "device", "setting CUDA_DEVICE_ORDER failed: out of memory");
    EN_TRY(eni_plugin_load(&kind, path, &loaded));
    const en_device *table = loaded;
    if (table->name == NULL || strcmp(table->name, name) != 0)
        return eni_fail(EN_EVERSION, "device",
                        "%s is the device \"%.40s\", not \"%s\": a file was copied or renamed; rebuild it",
                        path, table->name != NULL ? table->name : "", name);
    *table_out = table;
    return EN_OK;
}

en_status eni_device_open_with(const char *spec, const eni_device_options *options, eni_device *device_out)
{
    eni_device_list list;
    en_device_config config = {
        .size = sizeof config, .threads = options->threads, .host = &host, .flags = options->flags};
    EN_TRY(eni_device_list_parse(spec, options->plugin_dir, &list));
    if (list.n > 1)
        return eni_fail(EN_EINVAL, "device",
                        "--device=%s names %d devices, but only one can be opened: give one of them", spec,
                        list.n);
    config.index = list.n == 1 ? list.index[0] : options->index;
    if (options->threads < 1)
        return eni_fail(EN_EINVAL, "device", "%d threads for device %s, expected at least 1",
                        options->threads, list.kind);

    const en_device *table;
    en_ctx *ctx;
    if (strcmp(list.kind, "ref") != 0 && !eni_device_list_is_gpu(&list))
        EN_TRY(set_thread_environment(options->threads));
    EN_TRY(eni_device_load(list.kind, options->plugin_dir, &table));
    EN_TRY(table->open(&config, &ctx));
    *device_out = (eni_device){.ops = table, .ctx = ctx};
    return EN_OK;
}

en_status eni_device_open(const char *spec, const char *plugin_dir, int threads, eni_device *device_out)
{
    const eni_device_options options = {.plugin_dir = plugin_dir, .threads = threads};
    return eni_device_open_with(spec, &options, device_out);
}

void eni_device_close(eni_device *device)
{
    if (device->ctx != NULL) device->ops->close(device->ctx);
    *device = (eni_device){0};
}

/* ---- the GPUs of a rank ---------------------------------------------------------------------------------- */

static en_status refuse_index(const char *spec, int count)
{
    if (count == 1)
        return eni_fail(EN_EINVAL, "gpu",
                        "--device=%s: this host has one GPU, cuda:0 (`entrain gpus` lists it; "
                        "CUDA_VISIBLE_DEVICES hides others)",
                        spec);
    return eni_fail(EN_EINVAL, "gpu",
                    "--device=%s: this host has %d GPUs, cuda:0 to cuda:%d (`entrain gpus` lists them; "
                    "CUDA_VISIBLE_DEVICES hides others)",
                    spec, count, count - 1);
}

/* Fewer GPUs than one rank needs, or fewer slices than ranks. */
static en_status refuse_slice(const char *spec, int n, int count, int nlocal)
{
    if (count < n)
        return eni_fail(EN_EINVAL, "gpu",
                        "--device=%s: a rank needs %d GPUs, and this host has %d (`entrain gpus` lists them; "
                        "CUDA_VISIBLE_DEVICES hides others); give fewer --stages, or --device=cpu",
                        spec, n, count);
    return eni_fail(EN_EINVAL, "gpu",
                    "--device=%s: the %d GPU%s of this host are enough for %d of its %d ranks, with %d for "
                    "each; start no more of them, or give --gpu-sharing, which assigns the GPUs in turn",
                    spec, count, count == 1 ? "" : "s", count / n, nlocal, n);
}

static en_status pick_named(const eni_gpu_want *want, const eni_device_list *list, int count, int nlocal,
                            int32_t *index_out)
{
    for (int i = 0; i < list->n; i++) {
        if (list->index[i] >= count) return refuse_index(want->spec, count);
        index_out[i] = list->index[i];
    }
    if (list->n == 1 || nlocal <= 1 || want->is_shared) return EN_OK;
    return eni_fail(EN_EINVAL, "gpu",
                    "--device=%s names the GPUs of one rank, but this host has %d ranks; give -n 1, "
                    "--device=cuda, where each has its own, or --gpu-sharing",
                    want->spec, nlocal);
}

en_status eni_gpu_pick(const eni_gpu_want *want, int count, int local_rank, int nlocal,
                       int32_t index_out[ENI_DEVICES_MAX], int *n_out)
{
    eni_device_list list;
    EN_TRY(eni_device_list_parse(want->spec, "", &list));
    if (list.n > 0) {
        EN_TRY(pick_named(want, &list, count, nlocal, index_out));
        *n_out = list.n;
        return EN_OK;
    }
    int n = want->n;
    if (n == 0) n = nlocal > 0 && count > nlocal ? count / nlocal : 1;
    if (n > ENI_DEVICES_MAX) n = ENI_DEVICES_MAX;
    const int first = eni_gpu_slice(local_rank, nlocal, count, n, want->is_shared);
    if (first < 0)
        return count < 1 ? refuse_index(want->spec, count) : refuse_slice(want->spec, n, count, nlocal);
    for (int i = 0; i < n; i++)
        index_out[i] = first + i;
    *n_out = n;
    return EN_OK;
}

en_status eni_gpu_check(const eni_gpu_want *want, int nlocal, const en_device *device,
                        const en_device_host *its_host)
{
    int32_t count = 0, index[ENI_DEVICES_MAX];
    int n;
    EN_TRY(device->gpu->count(its_host, &count));
    return eni_gpu_pick(want, count, 0, nlocal, index, &n);
}
