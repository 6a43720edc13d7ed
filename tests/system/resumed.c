/* resumed.c - see resumed.h. */
#include "tests/system/resumed.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int list_checkpoints(const char *out, uint64_t found[16])
{
    char dir[200];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/checkpoints", out);
    DIR *folder = opendir(dir);
    for (struct dirent *e; folder != NULL && n < 16 && (e = readdir(folder)) != NULL;) {
        unsigned long long samples;
        char rest[32];
        if (sscanf(e->d_name, "checkpoint-%llu%31s", &samples, rest) != 2 ||
            strcmp(rest, ".safetensors") != 0)
            continue;
        int at = n++;
        for (; at > 0 && found[at - 1] < samples; at--)
            found[at] = found[at - 1];
        found[at] = samples;
    }
    if (folder != NULL) closedir(folder);
    return n;
}

uint64_t newest_checkpoint(const char *out)
{
    uint64_t found[16];
    return list_checkpoints(out, found) > 0 ? found[0] : 0;
}

int temporary_files(const char *out)
{
    char dir[200];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/checkpoints", out);
    DIR *folder = opendir(dir);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;)
        n += strstr(e->d_name, ".tmp") != NULL;
    if (folder != NULL) closedir(folder);
    return n;
}

void begin_run(process *p, const char *out, const char *flags)
{
    process_start(p, "entrain", NULL, "run --quiet --log-level=warn --threads=1 --out=%s %s", out, flags);
}

void kill_everything(process *p)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        char path[300], line[512] = "";
        int parent;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *stat = fopen(path, "re");
        if (stat == NULL) continue;
        const char *after = fgets(line, sizeof line, stat) != NULL ? strrchr(line, ')') : NULL;
        if (after != NULL && sscanf(after + 1, " %*c %d", &parent) == 1 && parent == p->pid)
            kill(atoi(e->d_name), SIGKILL);
        fclose(stat);
    }
    closedir(proc);
    process_kill(p, SIGKILL);
    process_wait(p, 10);
    process_nobody_left(10);
}

int wait_for_checkpoint(const process *p, const char *out, uint64_t samples)
{
    double deadline = now_seconds() + 60 * SLOWNESS;
    while (newest_checkpoint(out) < samples) {
        struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};
        if (poll(&ended, 1, 1) > 0) return 0;
        if (now_seconds() > deadline) fail_msg("no checkpoint at sample %d in %s", (int)samples, out);
    }
    return 1;
}

json_t *result_of(const char *out)
{
    char path[200];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    return result;
}

json_t *finish_run(const char *out, const char *expected, const char *flags)
{
    process p;
    begin_run(&p, out, flags);
    int code = process_wait(&p, 60);
    if (code != 0) fail_msg("entrain run %s: exit %d\n%s", flags, code, process_err(&p));
    json_t *result = result_of(out);
    char hashes[HASHES];
    hashes_of(result, hashes);
    if (strcmp(hashes, expected) != 0)
        fail_msg("%s: resumed from sample %s, it ends with %s, undisturbed with %s", flags,
                 json_string_value(json_array_get(json_object_get(result, "resumed_from"), 0)), hashes,
                 expected);
    assert_int_equal(temporary_files(out), 0);
    return result;
}

void folder_for(char out[160], const char *name)
{
    static int n;
    snprintf(out, 160, "%s/%s%d", system_folder(), name, n++);
}

void half_way(char out[160], const char *flags, uint64_t samples)
{
    process p;
    char text[512];
    folder_for(out, "half");
    snprintf(text, sizeof text, SLOWLY "%s --checkpoint-every=%d", flags, EVERY);
    begin_run(&p, out, text);
    assert_int_equal(wait_for_checkpoint(&p, out, samples), 1);
    kill_everything(&p);
}

void hashes_by_hand(const char *flags, const int *workers, const json_t *paths, char hashes_out[HASHES])
{
    char out[160], text[700];
    process p;
    folder_for(out, "by_hand");
    for (size_t i = 0; i <= json_array_size(paths); i++) {
        unsigned long long samples = 1000000000; /* more than any */
        const char *path = json_string_value(json_array_get(paths, i));
        if (path != NULL && sscanf(strrchr(path, '/'), "/checkpoint-%llu", &samples) != 1)
            fail_msg("%s", path);
        snprintf(text, sizeof text, "-n %d %s --resume=auto --max-samples=%llu --checkpoint-every=%llu",
                 workers[i], flags, samples, samples);
        begin_run(&p, out, text);
        const int code = process_wait(&p, GUARD);
        if (code != 0) fail_msg("%s: exit %d\n%s", text, code, process_err(&p));
    }
    json_t *result = result_of(out);
    hashes_of(result, hashes_out);
    json_decref(result);
}

void path_of_newest(const char *out, char path[256])
{
    snprintf(path, 256, "%s/checkpoints/checkpoint-%012llu.safetensors", out,
             (unsigned long long)newest_checkpoint(out));
}

void build_plugin(const char *source, const char *plugin_file)
{
    process cc;
    process_start(&cc, "cc", NULL, "-shared -fPIC -I" EN_SOURCE_DIR "/include " EN_SOURCE_DIR "/%s -o %s",
                  source, plugin_file);
    int code = process_wait(&cc, 60);
    if (code == 127) system_skip("no program cc to build a plugin with");
    if (code != 0) fail_msg("%s: cc ended with %d\n%s", source, code, process_err(&cc));
}
