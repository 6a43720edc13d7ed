/* sim_command.h - a strategy tried on the virtual host from a command line: `entrain sim`.
 *
 *     entrain sim --strategy=./mine.so:period=8 --workers=4 --straggler=1:4 --events=20 */
#ifndef CLI_SIM_COMMAND_H
#define CLI_SIM_COMMAND_H

#include <stdio.h>

#include "entrain/status.h"

/* Runs the quadratic problem of quadratic.h as the words say (argv[0] is skipped; --help lists them) and
 * writes to `out` what was measured beside what the strategy promised. `plugin_folder` is where the built-in
 * strategies are. EN_EINVAL, logged: a word that is none; else as eni_sim_run. */
en_status eni_sim_cli(int argc, char **argv, const char *plugin_folder, FILE *out);

#endif
