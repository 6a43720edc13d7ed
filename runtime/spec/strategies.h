/* strategies.h - finds strategies: the built-in ones by name, anybody's by path.
 *
 * A strategy file is a shared object with the one symbol en_strategy_entry. The built-in ones are no
 * different: they lie as strategy_*.so in a folder that the caller knows (plugins/ beside the executables
 * of the build folder, libexec/entrain/plugins when installed) and use nothing that a file of yours cannot
 * use. One file may hold several tables, chained by `next`.
 *
 * A table or an option of an older plugin of this ABI, which ends before this host's does, is completed with
 * zeros; one of another ABI is refused.
 *
 * A file is checked before any hook of it is called: magic, entry, both ABI numbers, size, names, hooks and
 * options of every table. What is refused is refused in one logged sentence with value, place and remedy. A
 * file that was loaded stays mapped until the process ends, so a table may be kept for as long.
 *
 * A path is code that will run: callers take it from the command line or the user's configuration file,
 * never from the network. A JOIN carries a name and options, never a path. */
#ifndef SPEC_STRATEGIES_H
#define SPEC_STRATEGIES_H

#include <stdio.h>

#include "entrain/strategy.h"

enum {
    ENI_STRATEGY_NAME_MAX = 32,  /* [a-z0-9-]+, longest name of a strategy */
    ENI_STRATEGY_WORD_MAX = 4096 /* longest name or path of a --strategy, the terminating 0 included */
};

/* Splits the value of --strategy, "ssp:bound=3" or "./mine.so:period=8", at the ':' that eni_spec_head
 * finds. word_out gets what stands before it; *options_out points into spec, at the text behind it ("" if
 * there is none). EN_EINVAL, logged: no word, or one that does not fit. */
en_status eni_plugin_split(const char *spec, char word_out[ENI_STRATEGY_WORD_MAX], const char **options_out);

/* 1 if `word` is a path and not the name of a built-in: it contains '/' or ends in ".so". */
int eni_plugin_is_path(const char *word);

/* The strategy that `spec` names in `folder`, or in the file that it names; its options are not looked at. Of a
 * file with several tables a path takes the first, "FILE.so@name" the one so called. *strategy_out is valid
 * until the process ends.
 * EN_ENOENT: no such file or name (the nearest name is told); EN_EFORMAT: not a strategy file; EN_EVERSION:
 * built for another ABI; EN_EINVAL: a table that breaks the contract. Logged. Main thread; may block on the
 * file system, and runs the file's constructors. */
en_status eni_strategy_find(const char *folder, const char *spec, const en_strategy **strategy_out);

/* Calls visit for every built-in, sorted by file, in the order of the file: for `entrain strategies` and
 * --help. `path` is valid during the call. A file that does not load is logged and ends the list with its
 * status. EN_ENOENT: the folder does not exist or holds no strategy. */
typedef void (*eni_strategy_visit)(void *user, const en_strategy *strategy, const char *path);
en_status eni_strategy_list(const char *folder, eni_strategy_visit visit, void *user);

/* Whether --groups, NULL: not given, can be with it: EN_EINVAL, and a sentence that says why not. */
en_status eni_strategy_groups(const en_strategy *strategy, const char *groups);

/* The lines of `entrain strategies` and `worker --strategy=NAME --help` for one strategy: name, help, paper,
 * then an option a line with type, default, range and help. */
void eni_strategy_show(FILE *out, const en_strategy *strategy);

#endif
