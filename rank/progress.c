/* progress.c - see progress.h. The plain line is the form that PyTorch's MNIST example made familiar. */
#include "rank/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

enum { BAR_WIDTH = 20 }; /* the line fits into 80 columns: a longer one would not be overwritten */

void eni_progress_init(eni_progress *progress, int fd, int quiet, uint64_t total, uint64_t per_epoch,
                       uint64_t log_every)
{
    *progress = (eni_progress){.fd = fd,
                               .quiet = quiet,
                               .tty = isatty(STDERR_FILENO),
                               .total = total,
                               .per_epoch = per_epoch,
                               .log_every = log_every,
                               .begin_ns = eni_now_ns()};
}

/* "12.3 s", "4:05 min" */
static void format_left(double seconds, char text[32])
{
    if (seconds < 60)
        snprintf(text, 32, "%.1f s", seconds);
    else
        snprintf(text, 32, "%d:%02d min", (int)(seconds / 60), (int)seconds % 60);
}

static void draw_bar(const eni_progress *progress, uint64_t samples, float loss, double rate)
{
    char bar[BAR_WIDTH * 3 + 1] = "", left[32];
    double done = progress->total > 0 ? (double)samples / (double)progress->total : 1;
    if (done > 1) done = 1;
    for (int i = 0; i < BAR_WIDTH; i++)
        strcat(bar, i < (int)(done * BAR_WIDTH) ? "█" : "░");
    format_left(rate > 0 ? (1 - done) * (double)progress->total / rate : 0, left);
    fprintf(stderr, "\r%s %3.0f %%  %8.0f samples/s  loss %.4f  %s left \033[K", bar, done * 100, rate,
            (double)loss, left);
}

static void print_line(const eni_progress *progress, uint64_t samples, float loss)
{
    uint64_t per_epoch = progress->per_epoch > 0 ? progress->per_epoch : 1;
    uint64_t epoch = samples > 0 ? (samples - 1) / per_epoch : 0, in_epoch = samples - epoch * per_epoch;
    fprintf(stderr, "Train Epoch: %" PRIu64 " [%" PRIu64 "/%" PRIu64 " (%.0f%%)]  Loss: %.6f\n", epoch + 1,
            in_epoch, per_epoch, 100.0 * (double)in_epoch / (double)per_epoch, (double)loss);
}

/* Not dprintf: glibc's leaks its buffer when the launcher has gone. */
static void tell_launcher(const eni_progress *progress, uint64_t samples, double rate, float loss)
{
    char line[160];
    int n = snprintf(line, sizeof line, "progress %" PRIu64 " %" PRIu64 " %.1f %.6g\n", samples,
                     progress->total, rate, (double)loss);
    ssize_t ignored = write(progress->fd, line, (size_t)n);
    (void)ignored;
}

void eni_progress_step(eni_progress *progress, uint64_t step, uint64_t samples, float loss)
{
    int64_t now = eni_now_ns();
    int due = now - progress->last_ns >= ENI_SECOND / 10 || samples >= progress->total;
    double seconds = (double)(now - progress->begin_ns) * 1e-9;
    double rate = seconds > 0 ? (double)samples / seconds : 0;
    if (due && progress->fd >= 0) tell_launcher(progress, samples, rate, loss);
    if (!progress->quiet && !progress->tty && progress->log_every > 0 && step % progress->log_every == 0)
        print_line(progress, samples, loss);
    if (due && !progress->quiet && progress->tty) draw_bar(progress, samples, loss, rate);
    if (due) progress->last_ns = now;
}

void eni_progress_done(eni_progress *progress)
{
    if (!progress->quiet && progress->tty) fputc('\n', stderr);
}
