/* strategies.h - finds strategies: the built-in ones by name, others by path (plugin/plugin.h says how it is loaded and
 * checked). The built-in ones lie as strategy_*.so in a folder that the caller knows: plugins/ beside the executables of
 * the build folder, libexec/entrain/plugins when installed. A JOIN carries a name and options, never a path. */
#ifndef SPEC_STRATEGIES_H
#define SPEC_STRATEGIES_H

#include <stdio.h>

#include "entrain/strategy.h"

enum { ENI_STRATEGY_NAME_MAX = 32 }; /* bytes of a name, the terminating 0 included */

/* The strategy that `spec` names in `folder`, or in the file that it names; its options are ignored. A path
 * finds a file's first table, "FILE.so@name" the one of that name. *strategy_out is valid until the process
 * ends. Errors as of eni_plugin_load; EN_ENOENT: no such name (the nearest one is suggested). */
en_status eni_strategy_find(const char *folder, const char *spec, const en_strategy **strategy_out);

/* Calls visit for every built-in, sorted by file, in the order of the file: for `entrain strategies` and
 * --help. `path` is valid during the call. A file that does not load is logged and ends the list with its
 * status. EN_ENOENT: the folder does not exist or holds no strategy. */
typedef void (*eni_strategy_visit)(void *user, const en_strategy *strategy, const char *path);
en_status eni_strategy_list(const char *folder, eni_strategy_visit visit, void *user);

/* Whether the strategy can run with --groups (NULL: not given): else EN_EINVAL, logged with the reason. */
en_status eni_strategy_groups(const en_strategy *strategy, const char *groups);

/* The lines of `entrain strategies` and `worker --strategy=NAME --help` for one strategy: name, help, paper,
 * then an option a line with type, default, range and help. */
void eni_strategy_show(FILE *out, const en_strategy *strategy);

#endif
