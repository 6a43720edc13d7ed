/* elf_file.h - a file that is handed to dlopen, and may it be? dlopen believes what a file's headers and tables say: one
 * that was cut off or damaged ends the process with SIGBUS or SIGSEGV. So every plugin is looked at here
 * first. */
#ifndef PLUGIN_ELF_FILE_H
#define PLUGIN_ELF_FILE_H

#include "entrain/status.h"

/* Who asks, for the log. */
typedef struct eni_elf_words {
    const char *subsystem; /* "plugin" */
    const char *what;      /* "strategy" */
    const char *place;     /* remedy where there is no such file: "give the path of .." */
    const char *build;     /* remedy where the file is none that can be loaded: "build one: cc .." */
} eni_elf_words;

/* Checks that `path` is a regular, readable, complete ELF shared object for this machine: header, segments
 * and sections lie inside the file; segments, and the symbols that the dynamic section names, where the
 * loader will look for them. What code, data and relocations hold is not looked at. EN_ENOENT; EN_EINVAL: no
 * regular file, or not readable; EN_EFORMAT: another format, an executable or object file, cut off, damaged;
 * EN_EVERSION: for another machine. Logged with the remedy. Blocks on the disk, never on a pipe. */
en_status eni_elf_check(const char *path, const eni_elf_words *words);

/* Checks, loads and finds `symbol`, which `declaration` ("const en_strategy *en_strategy_entry(..)") is to end the
 * file with. It stays until the process ends. A path without a slash is one in the working folder. As above;
 * EN_EFORMAT: the loader refuses it, or it has no such symbol. */
en_status eni_elf_open(const char *path, const eni_elf_words *words, const char *symbol,
                       const char *declaration, void **symbol_out);

#endif
