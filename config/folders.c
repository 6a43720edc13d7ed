/* folders.c - the folder of this program and of installed files, and checks of output folders. */
#include "config/folders.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/env.h"
#include "core/log.h"
#include "core/try.h"

static en_status executable_dir(char dir_out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir_out, PATH_MAX - 1);
    if (n <= 0) return eni_fail(EN_ENOENT, "folders", "cannot read /proc/self/exe: is /proc mounted?");
    dir_out[n] = 0;
    char *slash = strrchr(dir_out, '/');
    if (slash != NULL) *slash = 0;
    return EN_OK;
}

/* The first of DIR/name and DIR/../libexec/entrain/name that exists. */
en_status eni_folder_program(const char *name, char *path_out, size_t bytes)
{
    char dir[PATH_MAX];
    EN_TRY(executable_dir(dir));
    static const char *const between[] = {"/", "/../libexec/entrain/"};
    for (size_t i = 0; i < 2; i++) {
        int n = snprintf(path_out, bytes, "%s%s%s", dir, between[i], name);
        if (n > 0 && (size_t)n < bytes && access(path_out, F_OK) == 0) return EN_OK;
    }
    return eni_fail(EN_ENOENT, "folders",
                    "%s is neither in %s nor in %s/../libexec/entrain: build it with make, or reinstall",
                    name, dir, dir);
}

en_status eni_folder_plugins(char *path_out, size_t bytes)
{
    const char *given = eni_env("ENTRAIN_PLUGIN_PATH");
    if (given == NULL) return eni_folder_program("plugins", path_out, bytes);
    if (snprintf(path_out, bytes, "%s", given) < (int)bytes && access(path_out, F_OK) == 0) return EN_OK;
    return eni_fail(EN_ENOENT, "folders", "ENTRAIN_PLUGIN_PATH=%s: no such folder; correct or unset it",
                    given);
}

en_status eni_folder_plugins_of_library(char *path_out, size_t bytes)
{
    static const char *const places[] = {"plugins", "../libexec/entrain/plugins",
                                         "../../libexec/entrain/plugins"};
    Dl_info info;
    char dir[PATH_MAX] = "";
    /* The address of an exported function may lie in the program, that of a static one does not. */
    if (dladdr((void *)(uintptr_t)executable_dir, &info) != 0 && info.dli_fname != NULL)
        snprintf(dir, sizeof dir, "%s", info.dli_fname);
    char *slash = strrchr(dir, '/');
    if (slash != NULL) *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const int n = snprintf(path_out, bytes, "%s/%s", slash != NULL ? dir : ".", places[i]);
        if (n > 0 && (size_t)n < bytes && access(path_out, F_OK) == 0) return EN_OK;
    }
    return eni_fail(EN_ENOENT, "folders",
                    "no folder of strategies beside the library (%s/plugins): name one in "
                    "options.plugins",
                    dir);
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

/* As mkdir -p; errno as mkdir left it. */
static int make_with_parents(const char *path)
{
    char part[PATH_MAX];
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return 0;
    if (errno != ENOENT || snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) return -1;
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return -1;
        *slash = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : -1;
}

en_status eni_folder_check(const char *flag, const char *path)
{
    struct stat is;
    if (path == NULL) return EN_OK;
    if (make_with_parents(path) != 0)
        return eni_fail(EN_EINVAL, "folders",
                        "%s=%s: cannot create the folder: %s; name one in a writable folder", flag, path,
                        strerror(errno));
    if (stat(path, &is) == 0 && !S_ISDIR(is.st_mode))
        return eni_fail(EN_EINVAL, "folders", "%s=%s is a file; name a folder", flag, path);
    if (access(path, W_OK | X_OK) == 0) return EN_OK;
    return eni_fail(EN_EINVAL, "folders", "%s=%s: cannot write to this folder: %s; name another", flag, path,
                    strerror(errno));
}

en_status eni_target_check(const char *flag, const char *path)
{
    char folder[1024];
    struct stat is;
    if (path == NULL) return EN_OK;
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder - 16)
        return eni_fail(EN_EINVAL, "folders", "%s: the path is too long (%zu characters); name a shorter one",
                        flag, strlen(path));
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = 0;
    if (stat(path, &is) == 0 && !S_ISREG(is.st_mode))
        return eni_fail(EN_EINVAL, "folders", "%s=%s is not a regular file; name a file", flag, path);
    if (access(folder, W_OK) == 0) return EN_OK;
    return eni_fail(EN_EINVAL, "folders", "%s=%s: cannot write to %s: %s; name a file in an existing folder",
                    flag, path, folder, strerror(errno));
}
