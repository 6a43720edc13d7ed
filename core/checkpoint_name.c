/* checkpoint_name.c - see checkpoint_name.h. */
#include "core/checkpoint_name.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint-"
#define SUFFIX ".safetensors"
enum { DIGITS = 12 };

/* Returns what follows the checkpoint's name in `name`, or NULL if `name` does not begin with one. */
static const char *ending_of(const char *name, uint64_t *samples_out)
{
    char *end;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) return NULL;
    const char *digits = name + strlen(PREFIX);
    if (strspn(digits, "0123456789") < DIGITS) return NULL;
    *samples_out = strtoull(digits, &end, 10);
    return strncmp(end, SUFFIX, strlen(SUFFIX)) == 0 ? end + strlen(SUFFIX) : NULL;
}

bool eni_checkpoint_is(const char *name, uint64_t *samples_out)
{
    const char *ending = ending_of(name, samples_out);
    return ending != NULL && ending[0] == '\0';
}

bool eni_checkpoint_is_left(const char *name)
{
    uint64_t samples;
    const char *ending = ending_of(name, &samples);
    const size_t length = ending == NULL ? 0 : strlen(ending);
    return length >= 4 && ending[0] == '.' && strcmp(ending + length - 4, ".tmp") == 0;
}

void eni_checkpoint_path(const char *dir, uint64_t samples, char *path_out, size_t bytes)
{
    snprintf(path_out, bytes, "%s%s" PREFIX "%0*" PRIu64 SUFFIX, dir == NULL ? "" : dir,
             dir == NULL ? "" : "/", DIGITS, samples);
}

/* Inserts into a list with the newest first; a full list drops its oldest entry. */
static size_t insert(uint64_t *list, size_t n, size_t room, uint64_t samples)
{
    size_t at = n < room ? n : room - 1;
    if (n == room && samples <= list[at]) return n;
    for (; at > 0 && list[at - 1] < samples; at--)
        list[at] = list[at - 1];
    list[at] = samples;
    return n < room ? n + 1 : n;
}

size_t eni_checkpoint_list(const char *dir, const char *ending, uint64_t *samples_out, size_t room)
{
    DIR *folder = opendir(dir);
    size_t n = 0;
    for (const struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        uint64_t samples;
        const char *its = ending_of(e->d_name, &samples);
        if (its != NULL && strcmp(its, ending) == 0) n = insert(samples_out, n, room, samples);
    }
    if (folder != NULL) closedir(folder);
    return n;
}
