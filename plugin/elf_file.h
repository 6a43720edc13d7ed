/* elf_file.h - checks a plugin's file before it is opened; private to plugin.c (tools/check_layers.sh). */
#ifndef PLUGIN_ELF_FILE_H
#define PLUGIN_ELF_FILE_H

#include "plugin/plugin.h"

/* Checks that `path` is a regular, readable, complete ELF shared object for this machine: header, segments and sections lie
 * inside the file; segments, and the symbols that the dynamic section names, lie where the loader expects them. Does not
 * check code, data and relocations. Errors as in eni_plugin_load, logged with the kind's remedies. Blocks on the disk,
 * never on a pipe. */
en_status eni_elf_check(const eni_plugin_kind *kind, const char *path);

#endif
