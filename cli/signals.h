/* signals.h - SIGINT and SIGTERM as a descriptor: no handler, no global. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

/* Blocks both for this thread and those it starts, ignores SIGPIPE, and returns a signalfd; -1 if the system
 * has none. Main thread, before any other starts. */
int eni_signals_open(void);

/* The number of the signal that waits there, or 0. Takes it. */
int eni_signals_take(int signal_fd);

#endif
