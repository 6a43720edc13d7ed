/* signals.h - SIGINT, SIGTERM and SIGHUP as a descriptor (no handler, no global), and exit codes. */
#ifndef CORE_SIGNALS_H
#define CORE_SIGNALS_H

#include "entrain/status.h"

/* Blocks them (SIGHUP: unless it is ignored, as under nohup) for this thread and those it starts, ignores
 * SIGPIPE and SIGXFSZ, and returns a signalfd; -1 if the system has none. Main thread, before any other starts. */
int eni_signals_open(void);

/* The exit code of a program that ended with `st`: 0; 2 where another command or file is needed (EN_EINVAL,
 * EN_ENOENT, EN_EFORMAT, EN_EVERSION, EN_EDENIED, EN_EMISMATCH, EN_ETIMEOUT, EN_EUNSUPPORTED); 128 + the
 * signal that waits in signal_fd, which is taken (none: SIGTERM, it was sent elsewhere), for EN_EINTR; 1 for
 * a run that failed.
 */
int eni_signals_exit_code(en_status st, int signal_fd);

#endif
