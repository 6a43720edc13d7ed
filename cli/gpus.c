/* gpus.c - `entrain gpus`: see gpus.h. */
#include "cli/gpus.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "ops/device.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* What /proc says the process is called; "" if it says nothing. */
static void name_program(int64_t pid, char *name_out, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", pid);
    FILE *file = fopen(path, "re");
    name_out[0] = 0;
    if (file == NULL) return;
    if (fgets(name_out, (int)bytes, file) == NULL) name_out[0] = 0;
    name_out[strcspn(name_out, "\n")] = 0;
    fclose(file);
}

static void ask_users(const en_gpu *gpu, int32_t index, eni_gpus_one *one)
{
    en_gpu_user users[ENI_GPUS_USERS];
    one->nusers = -1;
    if (gpu->users(index, users, ENI_GPUS_USERS, &one->nusers) != EN_OK) {
        one->nusers = -1;
        return;
    }
    for (int i = 0; i < one->nusers && i < ENI_GPUS_USERS; i++) {
        one->users[i].user = users[i];
        name_program(users[i].pid, one->users[i].program, sizeof one->users[i].program);
    }
}

static en_status ask(const en_gpu *gpu, eni_gpus *gpus)
{
    int32_t n = 0;
    EN_TRY(gpu->count(eni_device_host(), &n));
    gpus->n = n < ENI_GPUS_MAX ? (int)n : ENI_GPUS_MAX;
    for (int32_t i = 0; i < gpus->n; i++) {
        eni_gpus_one *one = &gpus->gpu[i];
        one->facts.size = sizeof one->facts;
        EN_TRY(gpu->facts(eni_device_host(), i, &one->facts));
        ask_users(gpu, i, one);
        for (int32_t j = 0; j < gpus->n; j++)
            gpus->link[i][j] = (uint8_t)gpu->link(i, j);
    }
    gpus->group = gpu->group_version();
    return EN_OK;
}

static en_status print_json(const eni_gpus *gpus)
{
    json_t *all = eni_gpus_json(gpus);
    if (all == NULL) return EN_ENOMEM;
    const int is_written = json_dumpf(all, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(all);
    if (is_written && fflush(stdout) == 0) return EN_OK;
    eni_error("gpus", "--json: stdout cannot be written: %s", strerror(errno));
    return EN_EIO;
}

en_status eni_command_gpus(const eni_command_context *context)
{
    const eni_config *c = context->config;
    const en_device *device;
    EN_TRY(eni_device_load("cuda", context->plugin_dir, &device));
    if (device->gpu == NULL) {
        eni_error("gpus", "the device cuda of %s is not one of GPUs", context->plugin_dir);
        return EN_EVERSION;
    }
    eni_gpus *gpus = eni_alloc(sizeof *gpus);
    if (gpus == NULL) return EN_ENOMEM;
    if (eni_config_is_given(c, "workers")) gpus->nranks = (int)c->workers;
    en_status st = ask(device->gpu, gpus);
    if (st == EN_OK && c->json)
        st = print_json(gpus);
    else if (st == EN_OK)
        eni_gpus_show(stdout, gpus);
    eni_free(gpus);
    return st == EN_EUNSUPPORTED ? EN_EINVAL : st; /* no GPU, no driver: said; the user's affair */
}
