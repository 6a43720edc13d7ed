/* log.h - one line per event, to stderr or to the caller's sink.
 *
 * 12:00:01.123 W a:1: peer 0 closed the connection after 4096 of 65536 bytes
 *
 * Levels: error (this run cannot go on), warn (odd, goes on), info (a few lines per run), debug (per
 * connection or epoch), trace (per message). Texts are lower case, name the exact cause, and carry no '='.
 * The subsystem is the noun of the file that logs; it is shown from level debug on. All calls are thread-safe and may
 * come from any thread, except the setters of level, speaker and launcher: those are for main, before the first thread
 * starts. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ENI_LOG_ERROR, ENI_LOG_WARN, ENI_LOG_INFO, ENI_LOG_DEBUG, ENI_LOG_TRACE };

typedef void (*eni_log_sink)(void *user, int level, const char *subsystem, const char *text);

/* Replaces the sink (NULL: stderr); any thread, and another may be in the old one still. The texts passed are valid during
 * the call only. */
void eni_log_set_sink(eni_log_sink sink, void *user);

/* Lines above `level` are dropped. Default: ENI_LOG_INFO. */
void eni_log_set_level(int level);

/* The speaker that lines name: "host:rank", "psd", ... Copied, truncated to 63 bytes. Default "entrain". */
void eni_log_set_who(const char *who);

/* From now on errors and warnings go to a launcher through this pipe; it prints what several processes report only
 * once. A line is "log LEVEL N SUBSYSTEM LINE", N being where LINE's text begins. A line that does not fit into the pipe
 * goes to stderr. -1: everything to stderr. */
void eni_log_set_launcher(int fd);

/* The text of the last error that this process logged, without its subsystem, whatever the level and the sink: for the
 * other processes when this one gives up. Returns false, and "", without an error; any thread. */
bool eni_log_last_error(char *text_out, size_t bytes);

/* One line to stderr in one write(2), so that lines of several processes do not mix; on a terminal it overwrites a
 * progress bar. */
void eni_log_print(const char *line);

/* Bytes of the UTF-8 character at `text`, which is not empty; 0 if it is invalid or a control character. */
int eni_letter_bytes(const char *text);

/* Columns of the terminal `out`; a very large number if it is not a terminal. */
int eni_terminal_columns(FILE *out);

void eni_log(int level, const char *subsystem, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* For lines that an unauthenticated peer can cause at will: the first five are written, then one every 10 s with the
 * number suppressed since. Zeroed memory is a valid limit; any thread. */
typedef struct eni_log_limit {
    _Atomic uint64_t seen, held;
    _Atomic int64_t next_ns;
} eni_log_limit;

void eni_log_every(eni_log_limit *limit, int level, const char *subsystem, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define eni_error(subsystem, ...) eni_log(ENI_LOG_ERROR, subsystem, __VA_ARGS__)
/* Logs an error and yields the status: `return eni_fail(EN_EINVAL, "plan", ..);` */
#define eni_fail(status, subsystem, ...) (eni_error(subsystem, __VA_ARGS__), (status))
#define eni_warn(subsystem, ...)         eni_log(ENI_LOG_WARN, subsystem, __VA_ARGS__)
#define eni_info(subsystem, ...)         eni_log(ENI_LOG_INFO, subsystem, __VA_ARGS__)
#define eni_debug(subsystem, ...)        eni_log(ENI_LOG_DEBUG, subsystem, __VA_ARGS__)

#endif
