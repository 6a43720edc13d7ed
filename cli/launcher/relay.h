/* relay.h - what the processes of a run complain about, each cause once.
 *
 * All ranks find the same wrong flag, and all survivors hear of the same death. Their errors and warnings
 * come over the pipe of their reports (log.h), and a text that one of them has said already is dropped. What
 * the control plane says of the run's end is held back until the launcher has named the first failed rank,
 * who may be the same. */
#ifndef CLI_LAUNCHER_RELAY_H
#define CLI_LAUNCHER_RELAY_H

#include <stdbool.h>

enum { ENI_RELAY_SAID = 64, ENI_RELAY_HELD = 16, ENI_RELAY_LINE = 1440 };

typedef struct eni_relay {
    char said[ENI_RELAY_SAID][ENI_RELAY_LINE]; /* the last texts, in a ring */
    unsigned nsaid;
    char held[ENI_RELAY_HELD][ENI_RELAY_LINE];
    unsigned nheld;
    char failed[ENI_RELAY_LINE];      /* "rank 1 (pid 4121 on host b) ": it has been named */
    char first_error[ENI_RELAY_LINE]; /* the text of the first that was complained of; "": none */
    bool is_open;                     /* nothing is held any more */
    bool is_muted; /* the launcher ends the rest itself: what they say of that is no news */
} eni_relay;

/* A line as log.h has it, without its newline: prints it, holds it or drops it. False: it is no such line. */
bool eni_relay_take(eni_relay *relay, const char *line);

/* The cause is known and `failure` ("": nobody died) was printed: prints what was held and says something
 * else. With `is_quiet` it is dropped: the user ended the run. */
void eni_relay_open(eni_relay *relay, const char *failure, bool is_quiet);

#endif
