/* folders.c - see folders.h. */
#include "config/folders.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "runtime/core/log.h"
#include "runtime/core/try.h"

static en_status executable_dir(char dir_out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir_out, PATH_MAX - 1);
    if (n <= 0) {
        eni_error("folders", "cannot read /proc/self/exe: is /proc mounted?");
        return EN_ENOENT;
    }
    dir_out[n] = 0;
    char *slash = strrchr(dir_out, '/');
    if (slash != NULL) *slash = 0;
    return EN_OK;
}

/* The first of DIR/near and DIR/../libexec/entrain/name that exists. */
static en_status find_near(const char *near, char *path_out, size_t bytes)
{
    char dir[PATH_MAX];
    EN_TRY(executable_dir(dir));
    static const char *const between[] = {"/", "/../libexec/entrain/"};
    for (size_t i = 0; i < 2; i++) {
        int n = snprintf(path_out, bytes, "%s%s%s", dir, between[i], near);
        if (n > 0 && (size_t)n < bytes && access(path_out, F_OK) == 0) return EN_OK;
    }
    eni_error("folders",
              "%s is neither in %s nor in %s/../libexec/entrain: build it with make, or install again", near,
              dir, dir);
    return EN_ENOENT;
}

en_status eni_folder_plugins(char *path_out, size_t bytes)
{
    const char *given = eni_env_plugin_path();
    if (given == NULL) return find_near("plugins", path_out, bytes);
    if (snprintf(path_out, bytes, "%s", given) < (int)bytes && access(path_out, F_OK) == 0) return EN_OK;
    eni_error("folders", "ENTRAIN_PLUGIN_PATH=%s: there is no such folder", given);
    return EN_ENOENT;
}

en_status eni_folder_program(const char *name, char *path_out, size_t bytes)
{
    return find_near(name, path_out, bytes);
}

void eni_folder_absolute(const char *path, char *path_out, size_t bytes)
{
    char here[4096] = "";
    path_out[0] = 0;
    if (path == NULL || (path[0] != '/' && getcwd(here, sizeof here) == NULL)) return;
    const int n = path[0] == '/' ? snprintf(path_out, bytes, "%s", path)
                                 : snprintf(path_out, bytes, "%s/%s", here, path);
    if (n < 0 || (size_t)n >= bytes) path_out[0] = 0;
}
