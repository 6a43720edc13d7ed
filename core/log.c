/* log.c - see log.h. Its state is the tree's only mutable global. The sink may be replaced while other threads log: a
 * library's callers do so (entrain/sim.h). */
#include "core/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

static struct {
    int level;
    int launcher_fd;
    char who[64];
} log_state = {ENI_LOG_INFO, -1, "entrain"};

typedef struct log_output {
    eni_log_sink sink;
    void *user;
} log_output;

static struct {
    pthread_mutex_t lock;
    log_output output;
    char last_error[1200];
} shared = {PTHREAD_MUTEX_INITIALIZER, {NULL, NULL}, ""};

static const char level_letters[] = "EWIDT";

void eni_log_set_sink(eni_log_sink sink, void *user)
{
    pthread_mutex_lock(&shared.lock);
    shared.output = (log_output){sink, user};
    pthread_mutex_unlock(&shared.lock);
}

void eni_log_set_level(int level)
{
    log_state.level = level;
}

void eni_log_set_who(const char *who)
{
    snprintf(log_state.who, sizeof log_state.who, "%s", who);
}

void eni_log_set_launcher(int fd)
{
    log_state.launcher_fd = fd;
}

/* Shorter than PIPE_BUF, so the pipe takes all of it or nothing. */
static bool tell_launcher(int level, const char *subsystem, const char *line, int text_at)
{
    char told[1500];
    const int n = snprintf(told, sizeof told, "log %d %d %.60s %s\n", level, text_at, subsystem, line);
    return write(log_state.launcher_fd, told, (size_t)n) == n;
}

void eni_log_print(const char *line)
{
    char text[1500];
    const char *clear = isatty(STDERR_FILENO) ? "\r\033[K" : "";
    int n = snprintf(text, sizeof text, "%s%s\n", clear, line);
    if (n >= (int)sizeof text) {
        n = (int)sizeof text - 1;
        text[n - 1] = '\n';
    }
    (void)!write(STDERR_FILENO, text, (size_t)n);
}

/* Names the subsystem at level debug and above only. */
static void write_line(int level, const char *subsystem, const char *text)
{
    struct timespec now;
    struct tm local;
    char line[1400];
    const bool is_reported = level <= ENI_LOG_WARN && log_state.launcher_fd >= 0;
    const bool has_subsystem = log_state.level >= ENI_LOG_DEBUG;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %c %s%s%s%s", local.tm_hour, local.tm_min,
                     local.tm_sec, now.tv_nsec / 1000000, level_letters[level], log_state.who,
                     has_subsystem && log_state.who[0] != 0 ? " " : "", has_subsystem ? subsystem : "",
                     has_subsystem || log_state.who[0] != 0 ? ": " : "");
    const int text_at = n;
    snprintf(line + n, sizeof line - (size_t)n, "%s", text);
    if (!is_reported || !tell_launcher(level, subsystem, line, text_at)) eni_log_print(line);
}

/* Keeps an error; returns where the line goes. */
static log_output note(int level, const char *text)
{
    pthread_mutex_lock(&shared.lock);
    if (level == ENI_LOG_ERROR) snprintf(shared.last_error, sizeof shared.last_error, "%s", text);
    const log_output output = shared.output;
    pthread_mutex_unlock(&shared.lock);
    return output;
}

bool eni_log_last_error(char *text_out, size_t bytes)
{
    pthread_mutex_lock(&shared.lock);
    snprintf(text_out, bytes, "%s", shared.last_error);
    pthread_mutex_unlock(&shared.lock);
    return text_out[0] != '\0';
}

int eni_letter_bytes(const char *text)
{
    static const uint32_t least[] = {0x20, 0, 0x80, 0x800, 0x10000}; /* by length: rejects overlong forms */
    const unsigned char *at = (const unsigned char *)text;
    const int length = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t letter = length == 1 ? *at : *at & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if (at[i] >> 6 != 2) return 0;
        letter = letter << 6 | (at[i] & 0x3fu);
    }
    const bool is_surrogate = letter >= 0xd800 && letter < 0xe000;
    const bool is_letter = letter >= least[length == 1 ? 0 : length] && (letter < 0x7f || letter >= 0xa0) &&
                           !is_surrogate && letter <= 0x10ffff;
    return is_letter ? length : 0;
}

/* Escapes peers' data and file names ("\xff"), which must not look like a line of ours nor move a terminal's cursor. */
static void escape(const char *text, char *told_out, size_t bytes)
{
    enum { ESCAPED = 4 };
    size_t used = 0;
    while (*text != '\0' && used + ESCAPED < bytes) {
        const int length = eni_letter_bytes(text);
        if (length == 0)
            snprintf(told_out + used, ESCAPED + 1, "\\x%02x", (unsigned char)*text);
        else
            memcpy(told_out + used, text, (size_t)length);
        used += length == 0 ? ESCAPED : (size_t)length;
        text += length == 0 ? 1 : length;
    }
    told_out[used] = '\0';
}

void eni_log(int level, const char *subsystem, const char *fmt, ...)
{
    if (level > log_state.level && level != ENI_LOG_ERROR) return;
    const int cause = errno; /* preserved for `return eni_fail(errno == ENOENT ? ..)` */
    char said[1200], text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(said, sizeof said, fmt, args);
    va_end(args);
    escape(said, text, sizeof text);
    const log_output output = note(level, text);
    if (level <= log_state.level && output.sink != NULL)
        output.sink(output.user, level, subsystem, text);
    else if (level <= log_state.level)
        write_line(level, subsystem, text);
    errno = cause;
}

/* Whether this line may be written now. *held_out: lines suppressed before it. */
static bool may_write(eni_log_limit *limit, uint64_t *held_out)
{
    enum { FIRST = 5 };
    const int64_t now_ns = eni_now_ns();
    *held_out = 0;
    const uint64_t seen = atomic_fetch_add(&limit->seen, 1);
    if (seen + 1 == FIRST) atomic_store(&limit->next_ns, now_ns + 10 * ENI_SECOND);
    if (seen < FIRST) return true;
    int64_t due_ns = atomic_load(&limit->next_ns);
    if (now_ns < due_ns ||
        !atomic_compare_exchange_strong(&limit->next_ns, &due_ns, now_ns + 10 * ENI_SECOND)) {
        atomic_fetch_add(&limit->held, 1);
        return false;
    }
    *held_out = atomic_exchange(&limit->held, 0);
    return true;
}

int eni_terminal_columns(FILE *out)
{
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 10000;
}

void eni_log_every(eni_log_limit *limit, int level, const char *subsystem, const char *fmt, ...)
{
    uint64_t held;
    char text[1100], more[64] = "";
    va_list args;
    if (!may_write(limit, &held)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (held > 0) snprintf(more, sizeof more, " (and %llu like it)", (unsigned long long)held);
    eni_log(level, subsystem, "%s%s", text, more);
}
