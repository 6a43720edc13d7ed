/* nvml.c - see nvml.h. NVIDIA's header of the library is not always installed, so its prototypes and structs are copied
 * here from the API reference; versioned ones never change. */
#include "core/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"

/* ---- the library --------------------------------------------------------------------------------------- */

typedef struct nvmlDevice_st *nvml_device;

enum { NVML_OK = 0, NVML_NO_ARGUMENT = 2 /* such as a link that does not exist */, NVML_NOT_LOADED = 9 };
enum { NVML_P2P_READ = 0, NVML_P2P_NVLINK = 2, NVML_P2P_OK = 0 };
enum { NVML_LINKS_MAX = 64, NVML_TO_SWITCH = 2 };
#define NVML_UNKNOWN UINT64_MAX /* NVML_VALUE_NOT_AVAILABLE */

typedef struct nvml_memory {
    unsigned long long total, free, used; /* nvmlMemory_t */
} nvml_memory;

typedef struct nvml_process {
    unsigned int pid; /* nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills */
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
} nvml_process;

typedef struct nvml_pci {
    char legacy[16]; /* nvmlPciInfo_t */
    unsigned int domain, bus, device, id, subsystem;
    char text[32];
} nvml_pci;

/* clang-format off */
/* Each function of the library: its result, our name, its own, its arguments. The first NEEDED ones are required; one that an old
 * driver lacks is NULL, and its answer is unknown. */
enum { NEEDED = 6 };
#define NVML_FUNCTIONS(F) \
    F(int, init, nvmlInit_v2, (void)) \
    F(int, shutdown, nvmlShutdown, (void)) \
    F(int, count, nvmlDeviceGetCount_v2, (unsigned int *n)) \
    F(int, by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvml_device *)) \
    F(int, name, nvmlDeviceGetName, (nvml_device, char *name, unsigned int bytes)) \
    F(int, uuid, nvmlDeviceGetUUID, (nvml_device, char *uuid, unsigned int bytes)) \
    F(const char *, error, nvmlErrorString, (int code)) \
    F(int, driver, nvmlSystemGetDriverVersion, (char *version, unsigned int bytes)) \
    F(int, by_uuid, nvmlDeviceGetHandleByUUID, (const char *uuid, nvml_device *)) \
    F(int, pci, nvmlDeviceGetPciInfo_v3, (nvml_device, nvml_pci *)) \
    F(int, memory, nvmlDeviceGetMemoryInfo, (nvml_device, nvml_memory *)) \
    F(int, capability, nvmlDeviceGetCudaComputeCapability, (nvml_device, int *major, int *minor)) \
    F(int, cpus, nvmlDeviceGetCpuAffinity, (nvml_device, unsigned int nwords, unsigned long *words)) \
    F(int, nodes, nvmlDeviceGetMemoryAffinity, (nvml_device, unsigned int nwords, unsigned long *words, int scope)) \
    F(int, processes, nvmlDeviceGetComputeRunningProcesses_v3, (nvml_device, unsigned int *count_inout, nvml_process *)) \
    F(int, ancestor, nvmlDeviceGetTopologyCommonAncestor, (nvml_device, nvml_device, int *level)) \
    F(int, p2p, nvmlDeviceGetP2PStatus, (nvml_device, nvml_device, int what, int *status)) \
    F(int, link_state, nvmlDeviceGetNvLinkState, (nvml_device, unsigned int link, int *is_active)) \
    F(int, link_type, nvmlDeviceGetNvLinkRemoteDeviceType, (nvml_device, unsigned int link, int *type)) \
    F(int, link_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvml_device, unsigned int link, nvml_pci *)) \
    F(int, mig_mode, nvmlDeviceGetMigMode, (nvml_device, unsigned int *current, unsigned int *pending)) \
    F(int, mig_max, nvmlDeviceGetMaxMigDeviceCount, (nvml_device, unsigned int *n)) \
    F(int, mig_by_index, nvmlDeviceGetMigDeviceHandleByIndex, (nvml_device, unsigned int index, nvml_device *))
#define MEMBER(result, name, symbol, arguments) result (*name) arguments;
#define ROW(result, name, symbol, arguments) {#symbol, offsetof(nvml_library, name)},
/* clang-format on */

typedef struct nvml_library {
    void *library;
    NVML_FUNCTIONS(MEMBER)
} nvml_library;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {NVML_FUNCTIONS(ROW)};

/* True if the library has `function` and it returned OK. */
#define ASK(function, ...) (nvml->function != NULL && nvml->function(__VA_ARGS__) == NVML_OK)

static void close_nvml(nvml_library *nvml)
{
    if (nvml->library == NULL) return;
    (void)nvml->shutdown();
    dlclose(nvml->library);
    *nvml = (nvml_library){0};
}

static const char *load(nvml_library *nvml)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(nvml->library, functions[i].name);
        if (found == NULL && i < NEEDED) return functions[i].name;
        memcpy((char *)nvml + functions[i].offset, &found, sizeof found); /* ISO C has no cast for it */
    }
    return NULL;
}

#define OR_CPU "--device=cpu works without a GPU"

/* On failure `why` has the reason. */
static bool open_nvml(nvml_library *nvml, char *why, size_t bytes)
{
    *nvml = (nvml_library){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (nvml->library == NULL) {
        snprintf(why, bytes,
                 "no NVIDIA driver is visible on this host or in this container (%s): install one, or start "
                 "the container with --gpus=all; " OR_CPU,
                 dlerror());
        return false;
    }
    const char *missing = load(nvml);
    const int code = missing == NULL ? nvml->init() : NVML_OK;
    if (missing == NULL && code == NVML_OK) return true;
    if (missing != NULL)
        snprintf(why, bytes,
                 "the NVIDIA driver is too old: its libnvidia-ml.so.1 lacks %s; install a newer one; " OR_CPU,
                 missing);
    else if (code == NVML_NOT_LOADED)
        snprintf(why, bytes,
                 "the NVIDIA driver of this host is installed but not loaded (see modprobe nvidia and dmesg "
                 "for the reason); " OR_CPU);
    else
        snprintf(why, bytes,
                 "the NVIDIA driver failed to list its GPUs: NVML error %d, %s; check that nvidia-smi "
                 "works; " OR_CPU,
                 code, nvml->error != NULL ? nvml->error(code) : "unknown");
    dlclose(nvml->library);
    *nvml = (nvml_library){0};
    return false;
}

/* ---- GPUs that CUDA shows ------------------------------------------------------------------------------- */

typedef struct shown {
    nvml_device device; /* the slice, if it is one */
    nvml_device whole;  /* the GPU on the bus */
} shown;

static bool is_sliced(const nvml_library *nvml, nvml_device whole)
{
    unsigned int current = 0, pending;
    return ASK(mig_mode, whole, &current, &pending) && current != 0;
}

/* The first slice whose uuid begins with `text`. */
static bool find_slice(const nvml_library *nvml, nvml_device whole, const char *text, size_t length,
                       nvml_device *slice_out)
{
    char uuid[96];
    unsigned int n = 0;
    if (!ASK(mig_max, whole, &n)) return false;
    for (unsigned int i = 0; i < n; i++)
        if (ASK(mig_by_index, whole, i, slice_out) && ASK(uuid, *slice_out, uuid, sizeof uuid) &&
            strncmp(uuid, text, length) == 0)
            return true;
    return false;
}

/* One item of CUDA_VISIBLE_DEVICES: an index, or the beginning of a uuid. */
static bool find_word(const nvml_library *nvml, const nvml_device *whole, int n, const char *word,
                      size_t length, shown *shown_out)
{
    char uuid[96], *end;
    const long index = strtol(word, &end, 10);
    if (end == word + length && end != word) {
        if (index < 0 || index >= n) return false;
        *shown_out = (shown){whole[index], whole[index]};
        return true;
    }
    for (int i = 0; i < n && length >= 4; i++) {
        *shown_out = (shown){whole[i], whole[i]};
        if (ASK(uuid, whole[i], uuid, sizeof uuid) && strncmp(uuid, word, length) == 0) return true;
        if (is_sliced(nvml, whole[i]) && find_slice(nvml, whole[i], word, length, &shown_out->device))
            return true;
    }
    return false;
}

/* A partitioned GPU stands for its first slice. True if it is a slice. */
static bool take_slice(const nvml_library *nvml, shown *one)
{
    return one->device != one->whole ||
           (is_sliced(nvml, one->whole) && find_slice(nvml, one->whole, "", 0, &one->device));
}

/* Skips GPUs of other containers: the library counts them, but cannot query them. */
static int find_whole(const nvml_library *nvml, nvml_device whole_out[ENI_GPUS_MAX])
{
    unsigned int count = 0;
    int n = 0;
    (void)nvml->count(&count);
    for (unsigned int i = 0; i < count && n < ENI_GPUS_MAX; i++)
        if (nvml->by_index(i, &whole_out[n]) == NVML_OK) n++;
    return n;
}

/* `word`: CUDA_VISIBLE_DEVICES; NULL: all. */
static int find_shown(const nvml_library *nvml, const char *word, shown all_out[ENI_GPUS_MAX])
{
    nvml_device whole[ENI_GPUS_MAX];
    const int nwhole = find_whole(nvml, whole);
    int n = 0, nkept = 0;
    for (int i = 0; word == NULL && i < nwhole; i++)
        all_out[n++] = (shown){whole[i], whole[i]};
    while (word != NULL && n < ENI_GPUS_MAX) { /* as CUDA does: the first invalid item ends the list */
        word += strspn(word, " ");
        const size_t length = strcspn(word, ", ");
        if (!find_word(nvml, whole, nwhole, word, length, &all_out[n])) break;
        n++;
        word = strchr(word, ',');
        if (word != NULL) word++;
    }
    for (int i = 0; i < n; i++) {
        if (take_slice(nvml, &all_out[i])) {
            all_out[0] = all_out[i];
            return 1;
        }
        if (!is_sliced(nvml, all_out[i].whole)) all_out[nkept++] = all_out[i];
    }
    return nkept;
}

/* ---- one GPU -------------------------------------------------------------------------------------------- */

/* "0-31,64-95", truncated to ".." if it is too long. Returns the lowest; -1 if the set is empty. */
static int write_set(const unsigned long *words, int nwords, char *text, size_t bytes)
{
    const int bits = 8 * (int)sizeof *words, n = nwords * bits;
    int first = -1;
    text[0] = 0;
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!(words[i / bits] >> i % bits & 1)) continue;
        while (end < n && words[end / bits] >> end % bits & 1)
            end++;
        if (strlen(text) + 16 > bytes) {
            eni_text_add(text, bytes, ",..");
            break;
        }
        eni_text_add(text, bytes, end - i > 1 ? "%s%d-%d" : "%s%d", first < 0 ? "" : ",", i, end - 1);
        if (first < 0) first = i;
    }
    return first;
}

static int find_users(const nvml_library *nvml, nvml_device device, eni_gpu_user *users_out, int max)
{
    enum { ROOM = 256 };
    nvml_process process[ROOM];
    unsigned int n = ROOM;
    if (!ASK(processes, device, &n, process)) return -1;
    for (int i = 0; i < (int)n && i < max; i++) {
        char path[64];
        eni_gpu_user *user = &users_out[i];
        *user = (eni_gpu_user){process[i].pid, process[i].bytes == NVML_UNKNOWN ? 0 : process[i].bytes, ""};
        snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", user->pid);
        if (!eni_file_line(path, user->program, sizeof user->program)) user->program[0] = 0;
    }
    return (int)n;
}

static void describe(const nvml_library *nvml, const shown *it, eni_gpu_seen *gpu)
{
    enum { WORDS = 64 };
    unsigned long cpus[WORDS] = {0}, nodes[WORDS] = {0};
    char unused[16];
    nvml_pci pci;
    nvml_memory memory;
    if (!ASK(name, it->device, gpu->name, sizeof gpu->name)) gpu->name[0] = 0;
    if (!ASK(uuid, it->device, gpu->uuid, sizeof gpu->uuid)) gpu->uuid[0] = 0;
    if (ASK(pci, it->whole, &pci))
        snprintf(gpu->bus, sizeof gpu->bus, "%04x:%02x:%02x.0", pci.domain & 0xffffff, pci.bus & 0xff,
                 pci.device & 0x1f);
    if (ASK(memory, it->device, &memory)) gpu->memory_bytes = memory.total, gpu->free_bytes = memory.free;
    if (!ASK(capability, it->whole, &gpu->major, &gpu->minor)) gpu->major = gpu->minor = 0;
    if (ASK(cpus, it->whole, WORDS, cpus)) write_set(cpus, WORDS, gpu->cpus, sizeof gpu->cpus);
    gpu->numa_node =
        ASK(nodes, it->whole, WORDS, nodes, 0) ? write_set(nodes, WORDS, unused, sizeof unused) : -1;
    gpu->nusers = find_users(nvml, it->device, gpu->users, ENI_GPU_USERS);
}

/* ---- links ---------------------------------------------------------------------------------------------- */

/* A GPU's working NVLinks: to other GPUs, and to NVSwitches, which connect it to all others. */
typedef struct nvlinks {
    nvml_pci self, remote[NVML_LINKS_MAX];
    int nremote, nswitch;
} nvlinks;

static void find_nvlinks(const nvml_library *nvml, nvml_device device, nvlinks *links)
{
    if (!ASK(pci, device, &links->self) || nvml->link_state == NULL) return;
    for (unsigned int l = 0; l < NVML_LINKS_MAX; l++) {
        int is_active = 0, type = -1;
        const int code = nvml->link_state(device, l, &is_active);
        if (code == NVML_NO_ARGUMENT) return;
        if (code != NVML_OK || is_active != 1) continue;
        if (ASK(link_type, device, l, &type) && type == NVML_TO_SWITCH)
            links->nswitch++;
        else if (ASK(link_pci, device, l, &links->remote[links->nremote]))
            links->nremote++;
    }
}

static int count_between(const nvlinks *a, const nvlinks *b)
{
    int n = 0;
    for (int i = 0; i < a->nremote; i++)
        n += a->remote[i].domain == b->self.domain && a->remote[i].bus == b->self.bus &&
             a->remote[i].device == b->self.device;
    return n;
}

static const char *path_of(int level)
{
    static const char *const paths[] = {"PIX", "PIX", "PXB", "PHB", "NODE", "SYS"}; /* 0: two on one board */
    return level >= 0 && level <= 50 && level % 10 == 0 ? paths[level / 10] : "";
}

/* Behind switches two GPUs are connected unless they are partitioned; the driver knows. */
static void judge(const nvml_library *nvml, const shown *a, const shown *b, const nvlinks *of_a,
                  const nvlinks *of_b, eni_gpu_link *link)
{
    int level = -1, by_nvlink = -1, by_bus = -1;
    if (!ASK(ancestor, a->whole, b->whole, &level)) level = -1;
    if (!ASK(p2p, a->whole, b->whole, NVML_P2P_NVLINK, &by_nvlink)) by_nvlink = -1;
    if (!ASK(p2p, a->whole, b->whole, NVML_P2P_READ, &by_bus)) by_bus = -1;
    int n = count_between(of_a, of_b);
    if (n == 0 && by_nvlink == NVML_P2P_OK) n = of_a->nswitch < of_b->nswitch ? of_a->nswitch : of_b->nswitch;
    if (n > 0)
        snprintf(link->path, sizeof link->path, "NV%d", n);
    else
        snprintf(link->path, sizeof link->path, "%s", path_of(level));
    if (n > 0 || by_nvlink == NVML_P2P_OK)
        link->way = ENI_LINK_NVLINK;
    else if (by_bus >= 0)
        link->way = by_bus == NVML_P2P_OK ? ENI_LINK_PCIE : ENI_LINK_HOST;
}

static en_status link_all(const nvml_library *nvml, const shown *all, eni_gpu_machine *machine)
{
    nvlinks *links = eni_alloc_array((size_t)machine->n, sizeof *links);
    if (links == NULL) return EN_ENOMEM;
    for (int i = 0; i < machine->n; i++)
        find_nvlinks(nvml, all[i].whole, &links[i]);
    for (int a = 0; a < machine->n; a++)
        for (int b = 0; b < machine->n; b++)
            if (a == b)
                machine->link[a][b] = (eni_gpu_link){ENI_LINK_SAME, "X"};
            else
                judge(nvml, &all[a], &all[b], &links[a], &links[b], &machine->link[a][b]);
    eni_free(links);
    return EN_OK;
}

/* ---- drivers that hang ---------------------------------------------------------------------------------- */

enum { TIMEOUT_S = 60 }; /* loading a driver takes seconds */

en_status eni_driver_ask(en_status (*ask)(void *user), void *user, int signal_fd)
{
    const pid_t pid = eni_signals_fork(SIGKILL);
    int status = 0;
    if (pid == 0) _exit(ask(user));
    if (pid < 0)
        return eni_fail(EN_EIO, "gpus", "cannot fork a process to query the GPUs: %s", strerror(errno));
    const en_status st = eni_signals_await(pid, signal_fd, eni_now_ns() + TIMEOUT_S * ENI_SECOND, &status);
    /* Ctrl-C reaches the child as it reaches us */
    if (st == EN_OK && !WIFEXITED(status)) return eni_signals_wait(signal_fd, 0) ? EN_EINTR : EN_EIO;
    if (st == EN_OK) return WEXITSTATUS(status);
    kill(pid, SIGKILL);
    waitpid(pid, &status, WNOHANG); /* a process stuck in the driver cannot be reaped */
    if (st == EN_EINTR) return st;
    return eni_fail(
        EN_EUNSUPPORTED, "gpus",
        "the NVIDIA driver did not list its GPUs within %d s; check that nvidia-smi answers; " OR_CPU,
        TIMEOUT_S);
}

typedef struct nvml_question {
    const char *visible;
    void *answer;
} nvml_question;

/* Runs ask in a child and copies back its answer of `bytes` bytes. */
static en_status ask_for(en_status (*ask)(void *user), const char *visible, void *answer_out, size_t bytes,
                         int signal_fd)
{
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return EN_ENOMEM;
    nvml_question question = {visible, shared};
    const en_status st = eni_driver_ask(ask, &question, signal_fd);
    memcpy(answer_out, shared, bytes);
    munmap(shared, bytes);
    return st;
}

/* ---- the calls ------------------------------------------------------------------------------------------ */

static en_status list_all(void *user)
{
    const nvml_question *question = user;
    eni_gpu_machine *machine = question->answer;
    char why[512];
    shown all[ENI_GPUS_MAX];
    nvml_library opened, *nvml = &opened;
    if (!open_nvml(nvml, why, sizeof why)) return eni_fail(EN_EUNSUPPORTED, "gpus", "%s", why);
    if (!ASK(driver, machine->driver, sizeof machine->driver)) machine->driver[0] = 0;
    machine->n = find_shown(nvml, question->visible, all);
    en_status st = EN_OK;
    for (int i = 0; i < machine->n; i++)
        describe(nvml, &all[i], &machine->gpu[i]);
    if (machine->n > 0)
        st = link_all(nvml, all, machine);
    else
        st = eni_fail(EN_EUNSUPPORTED, "gpus",
                      "this process sees no GPU: this machine has none, or CUDA_VISIBLE_DEVICES or the "
                      "container hides it (a container needs --gpus=all); " OR_CPU);
    close_nvml(nvml);
    return st;
}

en_status eni_nvml_list(const char *visible, int signal_fd, eni_gpu_machine *machine_out)
{
    const en_status st = ask_for(list_all, visible, machine_out, sizeof *machine_out, signal_fd);
    if (st != EN_EIO) return st;
    return eni_fail(EN_EUNSUPPORTED, "gpus",
                    "the NVIDIA driver's library crashed; check that nvidia-smi works; " OR_CPU);
}

static en_status count_all(void *user)
{
    const nvml_question *question = user;
    char why[512];
    shown all[ENI_GPUS_MAX];
    nvml_library nvml;
    if (!open_nvml(&nvml, why, sizeof why)) return EN_EUNSUPPORTED;
    *(int *)question->answer = find_shown(&nvml, question->visible, all);
    close_nvml(&nvml);
    return EN_OK;
}

int eni_nvml_count(const char *visible)
{
    int n;
    return ask_for(count_all, visible, &n, sizeof n, -1) == EN_OK ? n : 0;
}

en_status eni_nvml_look(const char *uuid, eni_gpu_user *users_out, int max, int *n_out,
                        uint64_t *free_bytes_out)
{
    char why[512];
    nvml_library opened, *nvml = &opened;
    nvml_device device;
    nvml_memory memory;
    *n_out = -1;
    *free_bytes_out = 0;
    if (!open_nvml(nvml, why, sizeof why)) return EN_EUNSUPPORTED;
    if (ASK(by_uuid, uuid, &device)) {
        if (ASK(memory, device, &memory)) *free_bytes_out = memory.free;
        *n_out = find_users(nvml, device, users_out, max);
    }
    close_nvml(nvml);
    return *n_out >= 0 ? EN_OK : EN_EUNSUPPORTED;
}
