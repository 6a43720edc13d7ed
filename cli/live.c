/* live.c - an arm a line: redrawn in place on a terminal, one line per finished run elsewhere. */
#include "cli/live.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "config/units.h"
#include "core/clock.h"
#include "runtime/net/shaper.h"

enum { BAR = 24, BAR_LEAST = 6, COLUMNS = 80 }; /* COLUMNS: of no terminal */

void eni_live_network(const eni_config *config, const char *tail)
{
    char text[96];
    uint64_t rate;
    int64_t delay_ns;
    if (config->net == NULL || !eni_net_parse(config->net, &rate, &delay_ns)) return;
    eni_net_describe(rate, delay_ns, text, sizeof text);
    printf("Emulated network: %s\n%s", text, tail);
}

void eni_live_init(eni_live *live, int is_quiet)
{
    memset(live, 0, sizeof *live);
    live->is_tty = isatty(STDERR_FILENO);
    live->is_quiet = is_quiet;
    live->active = -1;
}

int eni_live_add(eni_live *live, const char *setting, const char *arm, int runs)
{
    if (live->n == ENI_LIVE_MAX) return -1;
    eni_live_line *l = &live->line[live->n];
    snprintf(l->setting, sizeof l->setting, "%s", setting);
    snprintf(l->arm, sizeof l->arm, "%s", arm);
    l->runs = runs;
    l->accuracy = -1;
    l->loss = NAN;
    return live->n++;
}

static double share_done(const eni_live_line *l, int is_active)
{
    double part = is_active && l->now.total > 0 ? (double)l->now.samples / (double)l->now.total : 0;
    return ((double)l->runs_done + (part < 1 ? part : 1)) / (double)(l->runs > 0 ? l->runs : 1);
}

/* Columns of the longest arm: bars stand below one another. */
static int arm_width(const eni_live *live)
{
    size_t widest = 0;
    for (int i = 0; i < live->n; i++)
        if (strlen(live->line[i].arm) > widest) widest = strlen(live->line[i].arm);
    return (int)widest;
}

/* The bar takes what the rest of a full line leaves of the terminal. */
static int bar_width(const eni_live *live)
{
    const int rest = 6 + 1 + arm_width(live) + 1 + 4 + 19 + 12 + 13;
    struct winsize size;
    int columns = COLUMNS;
    if (live->is_tty && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        columns = size.ws_col;
    if (columns <= rest + BAR_LEAST) return BAR_LEAST;
    return columns - rest - 1 < BAR ? columns - rest - 1 : BAR;
}

static void draw_line(const eni_live *live, const eni_live_line *l, int is_active, const char *end)
{
    char bar[BAR * 3 + 1] = "";
    const int width = bar_width(live);
    const int filled = (int)(share_done(l, is_active) * width + 0.5);
    for (int i = 0; i < width; i++)
        strcat(bar, i < filled ? "█" : "░");
    fprintf(stderr, "%-6s %-*s %s %d/%d", l->setting, arm_width(live), l->arm, bar, l->runs_done, l->runs);
    if (l->now.rate > 0) fprintf(stderr, "  %7.0f samples/s  loss %.3f", l->now.rate, l->now.loss);
    if (l->accuracy >= 0)
        fprintf(stderr, "  test %.1f %%", l->accuracy * 100);
    else if (!isnan(l->loss))
        fprintf(stderr, "  test %.3g", l->loss);
    fputs(end, stderr);
}

/* A line that is too long all the same is cut by the terminal, not wrapped: the next redraw goes up by lines.
 */
static void redraw(eni_live *live)
{
    if (live->is_quiet || !live->is_tty) return;
    fputs("\033[?7l", stderr);
    if (live->drawn) fprintf(stderr, "\033[%dA", live->n);
    for (int i = 0; i < live->n; i++)
        draw_line(live, &live->line[i], i == live->active, "\033[K\n");
    fputs("\033[?7h", stderr);
    live->drawn = 1;
    live->drawn_ns = eni_now_ns();
}

void eni_live_begin(eni_live *live, int line)
{
    live->active = line;
    live->line[line].now = (eni_launch_progress){0};
    redraw(live);
}

void eni_live_progress(eni_live *live, const eni_launch_progress *progress)
{
    if (live->active < 0) return;
    live->line[live->active].now = *progress;
    if (eni_now_ns() - live->drawn_ns > ENI_SECOND / 10) redraw(live);
}

void eni_live_end(eni_live *live, double samples_per_s, double accuracy, double loss)
{
    if (live->active < 0) return;
    eni_live_line *l = &live->line[live->active];
    l->runs_done++;
    l->now.rate = samples_per_s;
    l->accuracy = accuracy;
    l->loss = loss;
    live->active = -1;
    if (!live->is_quiet && !live->is_tty) draw_line(live, l, 0, "\n");
    redraw(live);
}
