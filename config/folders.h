/* folders.h - the folders of installed programs and plugins, and checks of outputs. */
#ifndef CONFIG_FOLDERS_H
#define CONFIG_FOLDERS_H

#include <stddef.h>

#include "entrain/status.h"

/* The folder of strategies and devices: $ENTRAIN_PLUGIN_PATH, else `plugins` beside this executable (a build folder), else
 * ../libexec/entrain/plugins (installed). EN_ENOENT, logged with all tried folders. */
en_status eni_folder_plugins(char *path_out, size_t bytes);

/* The same for a library: beside the file that holds this code, without the environment. EN_ENOENT, logged. */
en_status eni_folder_plugins_of_library(char *path_out, size_t bytes);

/* The path of a program of Entrain ("psd", "worker"): beside this executable, else ../libexec/entrain.
 * EN_ENOENT, logged. */
en_status eni_folder_program(const char *name, char *path_out, size_t bytes);

/* An absolute `path`, for other processes; "" for NULL, and if it does not fit. It need not exist. */
void eni_folder_absolute(const char *path, char *path_out, size_t bytes);

/* Checks before a run begins that it can write its outputs: a mistake that shows at the end has cost the run. The message names
 * `flag` ("--out"); a NULL path is fine. EN_EINVAL, logged.
 *
 * Makes the folder and its parents if they are absent; processes may race to make them. */
en_status eni_folder_check(const char *flag, const char *path);
/* The same for a file in an existing folder. */
en_status eni_target_check(const char *flag, const char *path);

#endif
