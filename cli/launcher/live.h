/* live.h - one live line per arm of a comparison: redrawn in place on a terminal, printed per finished run
 * elsewhere. */
#ifndef CLI_LAUNCHER_LIVE_H
#define CLI_LAUNCHER_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/launcher/launch.h"

enum { ENI_LIVE_MAX = 64 };

/* Prints, before the first run, what --net emulates, followed by `tail`. Nothing without --net. */
void eni_live_network(const eni_config *config, const char *tail);

typedef struct eni_live_line {
    char setting[24], arm[64];
    int runs, runs_done; /* seeds */
    eni_launch_progress now;
    double accuracy, loss; /* of the last finished run on the test set; negative, NAN: none */
} eni_live_line;

typedef struct eni_live {
    eni_live_line line[ENI_LIVE_MAX];
    int n, active; /* active: the line of the current run; -1: none */
    bool is_tty, is_quiet, is_drawn;
    int64_t drawn_ns;
} eni_live;

void eni_live_init(eni_live *live, bool is_quiet);

/* Returns the index of the new line, or -1 when there are too many. */
int eni_live_add(eni_live *live, const char *setting, const char *arm, int runs);

void eni_live_begin(eni_live *live, int line);
/* An eni_launch.on_progress, with the live lines as its user. */
void eni_live_progress(void *live, const eni_launch_progress *progress);
/* accuracy, loss: on the test set; negative, NAN: none. */
void eni_live_end(eni_live *live, double samples_per_s, double accuracy, double loss);

#endif
