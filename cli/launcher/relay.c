/* relay.c - reads log lines from the ranks' pipe, drops repeated ones, holds back the control plane's. */
#include "cli/launcher/relay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/control.h"

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* "log LEVEL N SUBSYSTEM LINE": returns LINE; *text_out is its text after the speaker. */
static const char *parse(const char *line, int *level_out, char subsystem_out[64], const char **text_out)
{
    int at = 0, used = 0;
    if (sscanf(line, "log %d %d %63s %n", level_out, &at, subsystem_out, &used) != 3 || used == 0 || at < 0 ||
        (size_t)at > strlen(line + used))
        return NULL;
    *text_out = line + used + at;
    return line + used;
}

/* The leader and each member wrap the same cause in different words. */
static const char *cause_in(const char *text)
{
    static const char *const around[] = {
        "the run is broken: ", "the run ends: ", "the run ends before it began: "};
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        if (begins(text, around[i])) return text + strlen(around[i]);
    return text;
}

/* The survivors describe what the launcher knows better. */
static bool is_of_the_failed(const eni_relay *relay, const char *cause)
{
    if (relay->failed[0] == 0 || !begins(cause, relay->failed)) return false;
    cause += strlen(relay->failed);
    return begins(cause, "died") || begins(cause, "was");
}

/* A full disk is one cause, whichever files of whichever ranks meet it. */
static const char *disk_in(const char *cause)
{
    const char *full = strstr(cause, strerror(ENOSPC));
    return full != NULL ? full : cause;
}

static bool was_said(eni_relay *relay, const char *cause)
{
    if (is_of_the_failed(relay, cause)) return true;
    for (unsigned i = 0; i < ENI_RELAY_SAID; i++)
        if (strcmp(relay->said[i], cause) == 0) return true;
    snprintf(relay->said[relay->nsaid++ % ENI_RELAY_SAID], ENI_RELAY_LINE, "%s", cause);
    return false;
}

bool eni_relay_take(eni_relay *relay, const char *line)
{
    int level;
    char subsystem[64];
    const char *text, *shown = parse(line, &level, subsystem, &text);
    if (shown == NULL) return false;
    const bool is_error = level == ENI_LOG_ERROR;
    if (is_error && relay->first_error[0] == 0 && !relay->is_muted)
        snprintf(relay->first_error, sizeof relay->first_error, "%s", cause_in(text));
    const bool is_of_the_end =
        is_error && (strcmp(subsystem, "member") == 0 || strcmp(subsystem, "leader") == 0);
    if (is_of_the_end && relay->is_muted) return true;
    if (is_of_the_end && !relay->is_open && relay->nheld < ENI_RELAY_HELD)
        snprintf(relay->held[relay->nheld++], ENI_RELAY_LINE, "%s", line);
    else if (!was_said(relay, is_error ? disk_in(cause_in(text)) : cause_in(text)))
        eni_log_print(shown);
    return true;
}

void eni_relay_file(int fd, en_status *st_out, char first_error_out[ENI_RELAY_LINE])
{
    char *line = NULL;
    size_t room = 0;
    int64_t pid;
    (void)lseek(fd, 0, SEEK_SET); /* a pipe has no beginning */
    eni_relay *relay = eni_alloc(sizeof *relay);
    FILE *file = fdopen(fd, "r");
    for (ssize_t n; relay != NULL && file != NULL && (n = getline(&line, &room, file)) > 0;) {
        line[n - (line[n - 1] == '\n')] = 0;
        if (!eni_relay_take(relay, line)) (void)eni_end_read(line, &pid, st_out);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    else
        close(fd);
    snprintf(first_error_out, ENI_RELAY_LINE, "%s", relay != NULL ? relay->first_error : "");
    eni_free(relay);
}

void eni_relay_open(eni_relay *relay, const char *failure, bool is_quiet)
{
    int level;
    char subsystem[64];
    const char *text;
    relay->is_open = true;
    const char *end = strstr(failure, ") ");
    if (end != NULL) snprintf(relay->failed, sizeof relay->failed, "%.*s", (int)(end + 2 - failure), failure);
    for (unsigned i = 0; i < relay->nheld; i++) {
        const char *shown = parse(relay->held[i], &level, subsystem, &text);
        if (shown != NULL && !is_quiet && !was_said(relay, disk_in(cause_in(text)))) eni_log_print(shown);
    }
    relay->nheld = 0;
}
