/* folders.h - where the programs find what was installed with them. */
#ifndef CONFIG_FOLDERS_H
#define CONFIG_FOLDERS_H

#include <stddef.h>

#include "entrain/status.h"

/* The folder of strategies and devices: $ENTRAIN_PLUGIN_PATH, else `plugins` beside this executable (a build
 * folder), else ../libexec/entrain/plugins (installed). EN_ENOENT, logged with all places that were tried. */
en_status eni_folder_plugins(char *path_out, size_t bytes);

/* The path of a program of Entrain ("psd", "worker"): beside this executable, else ../libexec/entrain.
 * EN_ENOENT, logged. */
en_status eni_folder_program(const char *name, char *path_out, size_t bytes);

/* `path` as other processes can name it; "" for NULL, and for one that does not fit. It need not exist. */
void eni_folder_absolute(const char *path, char *path_out, size_t bytes);

/* Whether what a run writes can be written, told before it begins: a mistake that shows at the end has cost
 * the run. `flag` ("--out") stands in the message; a NULL path is fine. EN_EINVAL, logged.
 *
 * The folder is made if it is not there, and so are its parents; processes may race to make them. */
en_status eni_folder_check(const char *flag, const char *path);
/* A file, in a folder that is there. */
en_status eni_target_check(const char *flag, const char *path);

#endif
