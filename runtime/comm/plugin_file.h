/* plugin_file.h - can this file be handed to dlopen? dlopen itself maps what the headers promise: a file that
 * was cut off ends the process with SIGBUS. */
#ifndef COMM_PLUGIN_FILE_H
#define COMM_PLUGIN_FILE_H

#include "entrain/status.h"

/* Checks that `path` is a regular, readable, complete ELF shared object for this machine: header, segments
 * and sections lie inside the file. EN_ENOENT; EN_EINVAL: no regular file, or not readable; EN_EFORMAT:
 * another format, an executable or object file, cut off; EN_EVERSION: for another machine. Logged with the
 * remedy. Blocks on the disk, never on a pipe. */
en_status eni_plugin_check_file(const char *path);

#endif
