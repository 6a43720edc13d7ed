/* relay.h - prints each error of a run's processes once.
 *
 * All ranks find the same wrong flag, and all survivors learn of the same death. Their errors and warnings
 * come over the pipe of their reports (log.h), and a text that one of them has already logged is dropped. The
 * control plane's messages about the run's end are held back until the launcher has named the first failed
 * rank, which they may name as well. */
#ifndef CLI_LAUNCHER_RELAY_H
#define CLI_LAUNCHER_RELAY_H

#include <stdbool.h>

#include "entrain/status.h"

enum { ENI_RELAY_SAID = 64, ENI_RELAY_HELD = 16, ENI_RELAY_LINE = 1440 };

typedef struct eni_relay {
    char said[ENI_RELAY_SAID][ENI_RELAY_LINE]; /* the last texts, in a ring */
    unsigned nsaid;
    char held[ENI_RELAY_HELD][ENI_RELAY_LINE];
    unsigned nheld;
    char failed[ENI_RELAY_LINE];      /* "rank 1 (pid 4121 on host b) ": already named */
    char first_error[ENI_RELAY_LINE]; /* the text of the first error; "": none */
    bool is_open;                     /* messages are no longer held */
    bool is_muted; /* the launcher ends the rest itself: their messages about that are dropped */
} eni_relay;

/* Prints, holds or drops a line as log.h formats it, without its newline. False: not such a line. */
bool eni_relay_take(eni_relay *relay, const char *line);

/* The same for all lines that processes which have ended left in a pipe or file, from its beginning; closes it. *st_out is set
 * if one of them has reported its end (runtime/control/control.h). */
void eni_relay_file(int fd, en_status *st_out, char first_error_out[ENI_RELAY_LINE]);

/* The cause is known and `failure` ("": no process died) was printed: prints the held messages that say
 * something else. With `is_quiet` they are dropped: the user ended the run. */
void eni_relay_open(eni_relay *relay, const char *failure, bool is_quiet);

#endif
