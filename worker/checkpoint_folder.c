/* checkpoint_folder.c - which checkpoints a folder holds, and which of them may go; see checkpoint.h. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#include "worker/checkpoint.h"

enum { DIGITS = 12, GENERATIONS = 2, LISTED = 4096 };
#define PREFIX "checkpoint-"
#define SUFFIX ".safetensors"

void eni_checkpoint_path(const char *dir, uint64_t samples, char *path_out, size_t bytes)
{
    snprintf(path_out, bytes, "%s/" PREFIX "%0*" PRIu64 SUFFIX, dir, DIGITS, samples);
}

/* 1 if `name` is a checkpoint's; its samples. `rest_out` is what follows the number. */
static int is_ours(const char *name, uint64_t *samples_out, const char **rest_out)
{
    char *end;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0) return 0;
    const char *digits = name + sizeof PREFIX - 1;
    if (strspn(digits, "0123456789") < DIGITS) return 0;
    *samples_out = strtoull(digits, &end, 10);
    *rest_out = end;
    return strncmp(end, SUFFIX, sizeof SUFFIX - 1) == 0;
}

/* Puts one into a list that has the newest first, where the oldest falls out of a full one. */
static size_t insert(uint64_t *list, size_t n, size_t room, uint64_t samples)
{
    size_t at = n < room ? n : room - 1;
    if (n == room && samples <= list[at]) return n;
    for (; at > 0 && list[at - 1] < samples; at--)
        list[at] = list[at - 1];
    list[at] = samples;
    return n < room ? n + 1 : n;
}

size_t eni_checkpoint_list(const char *dir, uint64_t *samples_out, size_t room)
{
    DIR *folder = opendir(dir);
    size_t n = 0;
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *rest;
        uint64_t samples;
        if (is_ours(entry->d_name, &samples, &rest) && strcmp(rest, SUFFIX) == 0)
            n = insert(samples_out, n, room, samples);
    }
    closedir(folder);
    return n;
}

int eni_checkpoint_sweep(const char *dir)
{
    DIR *folder = opendir(dir);
    int swept = 0;
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        uint64_t samples;
        const char *rest;
        size_t length = strlen(entry->d_name);
        if (!is_ours(entry->d_name, &samples, &rest) || length < 4 ||
            strcmp(entry->d_name + length - 4, ".tmp") != 0)
            continue;
        swept += unlinkat(dirfd(folder), entry->d_name, 0) == 0;
    }
    closedir(folder);
    return swept;
}

void eni_checkpoint_retire(const char *dir, uint64_t samples)
{
    uint64_t *found = eni_alloc_array(LISTED, sizeof *found);
    char path[1024];
    int kept = 0;
    if (found == NULL) return; /* they stay until the next time */
    size_t n = eni_checkpoint_list(dir, found, LISTED);
    for (size_t i = 0; i < n; i++) {
        if (found[i] > samples || kept++ < GENERATIONS) continue;
        eni_checkpoint_path(dir, found[i], path, sizeof path);
        unlink(path);
    }
    eni_free(found);
}
