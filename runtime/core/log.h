/* log.h - one line per event, to stderr or to a sink of the caller's.
 *
 * 12:00:01.123 W a:1 ring: peer 0 closed the connection after 4096 of 65536 bytes
 *
 * Levels: error (this run cannot go on), warn (odd, goes on), info (a few lines per run), debug (per
 * connection or epoch), trace (per message). Texts are lower case, name the exact cause, and carry no '='.
 * The subsystem is the noun of the file that logs. All calls are thread-safe and may be made from any
 * thread; the setters are for main, before the first thread starts. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <stddef.h>

enum { ENI_LOG_ERROR, ENI_LOG_WARN, ENI_LOG_INFO, ENI_LOG_DEBUG, ENI_LOG_TRACE };

typedef void (*eni_log_sink)(void *user, int level, const char *subsystem, const char *text);

/* Replaces the sink (NULL: stderr). The texts passed are valid during the call only. */
void eni_log_set_sink(eni_log_sink sink, void *user);

/* Lines above `level` are dropped. Default ENI_LOG_INFO. */
void eni_log_set_level(int level);

/* Who speaks: "host:rank", "psd", ... Copied, truncated to 63 bytes. */
void eni_log_set_who(const char *who);

/* Parses error|warn|info|debug|trace; -1 if it is none of them. */
int eni_log_level_parse(const char *name);

/* The text of the last error that this process logged, without its subsystem: what to tell the other
 * processes when this one gives up. Whatever the level and the sink. Returns 0, and "", when there was none;
 * any thread. */
int eni_log_last_error(char *text_out, size_t bytes);

void eni_log(int level, const char *subsystem, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define eni_error(subsystem, ...) eni_log(ENI_LOG_ERROR, subsystem, __VA_ARGS__)
#define eni_warn(subsystem, ...)  eni_log(ENI_LOG_WARN, subsystem, __VA_ARGS__)
#define eni_info(subsystem, ...)  eni_log(ENI_LOG_INFO, subsystem, __VA_ARGS__)
#define eni_debug(subsystem, ...) eni_log(ENI_LOG_DEBUG, subsystem, __VA_ARGS__)

#endif
