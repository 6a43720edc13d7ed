/* held.c - see held.h. */
#include "tests/system/held.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/process.h"

void held_begin(void)
{
    system_use_plugins(EN_BUILD_DIR "/test/held/plugins");
}

static const char *path_of(const char *word, pid_t pid, int device, const char *turn,
                           char path_out[HELD_PATH])
{
    snprintf(path_out, HELD_PATH, "%s/%s-%d-%d-%s", system_folder(), word, (int)pid, device, turn);
    return path_out;
}

static void write_file(const char *word, pid_t pid, int device, const char *turn)
{
    char path[HELD_PATH];
    FILE *file = fopen(path_of(word, pid, device, turn, path), "we");
    if (file == NULL) fail_msg("cannot write %s", path);
    fclose(file);
}

void held_stop(pid_t pid, int device, const char *turn)
{
    char path[HELD_PATH];
    const double deadline = now_seconds() + GUARD;
    write_file("hold", pid, device, turn);
    path_of("is-held", pid, device, turn, path);
    while (access(path, F_OK) != 0) {
        if (now_seconds() > deadline) fail_msg("device %d of %d is in no %s", device, (int)pid, turn);
        poll(NULL, 0, 1);
    }
    unlink(path);
}

void held_go_on(pid_t pid, int device, const char *turn)
{
    char path[HELD_PATH];
    unlink(path_of("hold", pid, device, turn, path));
}

void held_pace(bool is_paced)
{
    char path[HELD_PATH];
    snprintf(path, sizeof path, "%s/is-paced", system_folder());
    FILE *file = is_paced ? fopen(path, "we") : NULL;
    if (is_paced && file == NULL) fail_msg("cannot write %s", path);
    if (file != NULL) fclose(file);
    if (!is_paced) unlink(path);
}

void held_fail(pid_t pid, int device, const char *turn)
{
    write_file("fail", pid, device, turn);
}
