#include "ops/device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

enum { MAX_NAME = 15 };

static void log_for_device(int level, const char *subsystem, const char *text)
{
    eni_log(level, subsystem, "%s", text);
}

static const en_device_host host = {.abi = EN_DEVICE_ABI, .size = sizeof host, .log = log_for_device};

/* "cuda:1" to name "cuda" and index 1. */
static en_status parse_spec(const char *spec, char name_out[MAX_NAME + 1], int *index_out)
{
    const size_t length = strcspn(spec, ":");
    const int letters = (int)strspn(spec, "abcdefghijklmnopqrstuvwxyz0123456789_");
    char *end = "";
    long index = 0;
    if (spec[length] == ':') index = strtol(spec + length + 1, &end, 10);
    if (length == 0 || length > MAX_NAME || letters != (int)length || *end != '\0' || index < 0 ||
        index > 1023 || spec[strlen(spec) - 1] == ':') {
        eni_error("device", "\"%s\" is not a device; write ref, cpu, cuda or cuda:0", spec);
        return EN_EINVAL;
    }
    memcpy(name_out, spec, length);
    name_out[length] = '\0';
    *index_out = (int)index;
    return EN_OK;
}

/* See device.h: OpenMP reads these when it is loaded, so they must be set before. */
static en_status set_thread_environment(int threads)
{
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    if (setenv("OMP_NUM_THREADS", text, 1) != 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) {
        eni_error("device", "setting OMP_NUM_THREADS and OMP_WAIT_POLICY failed: out of memory");
        return EN_ENOMEM;
    }
    return EN_OK;
}

static const char *remedy(const char *name)
{
    if (strcmp(name, "cpu") == 0)
        return "install the package libdnnl-dev and build again, or use --device=ref";
    if (strcmp(name, "cuda") == 0) return "this build has no GPU library; use --device=cpu or --device=ref";
    return "known are ref, cpu and cuda";
}

/* The version check comes before any other field of the table is believed. */
static en_status check_table(const en_device *table, const char *path)
{
    if (!table) {
        eni_error("device", "%s cannot serve ABI %u of this program: rebuild it", path, EN_DEVICE_ABI);
        return EN_EVERSION;
    }
    if (table->abi != EN_DEVICE_ABI || table->size < sizeof *table) {
        eni_error(
            "device",
            "%s has ABI %u and a table of %u bytes, this program needs ABI %u and %zu bytes: rebuild it",
            path, table->abi, table->size, EN_DEVICE_ABI, sizeof *table);
        return EN_EVERSION;
    }
    return EN_OK;
}

static en_status load(const char *name, const char *plugin_dir, const en_device **table_out)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/device_%s.so", plugin_dir, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        eni_error("device", "the path of the plugin folder is too long: %zu bytes", strlen(plugin_dir));
        return EN_EINVAL;
    }
    if (access(path, F_OK) != 0) {
        eni_error("device", "there is no device \"%s\": %s is absent; %s", name, path, remedy(name));
        return EN_ENOENT;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        eni_error("device", "loading failed: %s", dlerror());
        return EN_EUNSUPPORTED;
    }
    en_device_entry_fn entry;
    *(void **)&entry = dlsym(library, EN_DEVICE_ENTRY); /* POSIX's way around ISO C's function pointers */
    if (!entry) {
        eni_error("device", "%s has no symbol %s: it is not a device library", path, EN_DEVICE_ENTRY);
        return EN_EVERSION;
    }
    const en_device *table = entry(EN_DEVICE_ABI);
    EN_TRY(check_table(table, path));
    *table_out = table;
    return EN_OK;
}

const en_device_host *eni_device_host(void)
{
    return &host;
}

en_status eni_device_load(const char *name, const char *plugin_dir, const en_device **table_out)
{
    *table_out = eni_ref_device();
    return strcmp(name, (*table_out)->name) == 0 ? EN_OK : load(name, plugin_dir, table_out);
}

/* "auto": the cpu device where it was built, else the one that is always there. */
static const char *best_of(const char *plugin_dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/device_cpu.so", plugin_dir);
    return access(path, R_OK) == 0 ? "cpu" : "ref";
}

en_status eni_device_open(const char *spec, const char *plugin_dir, int threads, eni_device *device_out)
{
    char name[MAX_NAME + 1];
    en_device_config config = {.size = sizeof config, .threads = threads, .host = &host};
    EN_TRY(parse_spec(strcmp(spec, "auto") == 0 ? best_of(plugin_dir) : spec, name, &config.index));
    if (threads < 1) {
        eni_error("device", "%d threads for device %s: at least one is needed", threads, name);
        return EN_EINVAL;
    }

    const en_device *table = eni_ref_device();
    if (strcmp(name, table->name) != 0) {
        EN_TRY(set_thread_environment(threads));
        EN_TRY(load(name, plugin_dir, &table));
    }
    en_ctx *ctx;
    EN_TRY(table->open(&config, &ctx));
    *device_out = (eni_device){.ops = table, .ctx = ctx};
    return EN_OK;
}

void eni_device_close(eni_device *device)
{
    if (device->ctx) device->ops->close(device->ctx);
    *device = (eni_device){0};
}
