/* lines.h - files of one JSON object a line, opened for a new run or for one that goes on. */
#ifndef WORKER_LINES_H
#define WORKER_LINES_H

#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"

/* Opens `path` for writing at its end. resumed 0: it begins empty. Else the lines whose "samples" are at most
 * that stay, and the rest (a killed run's, perhaps torn) goes: so the file is one run's. A file that is not
 * there begins empty. EN_EIO, logged. */
en_status eni_lines_open(const char *path, uint64_t resumed, FILE **file_out);

#endif
