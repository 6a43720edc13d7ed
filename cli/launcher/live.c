/* live.c - one line per arm: redrawn in place on a terminal, printed per finished run elsewhere. */
#include "cli/launcher/live.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "run/units.h"
#include "runtime/net/shaper.h"

enum { BAR = 24, BAR_LEAST = 6 };

void eni_live_network(const eni_config *config, const char *tail)
{
    char text[96];
    uint64_t rate;
    int64_t delay_ns;
    if (config->net == NULL || !eni_net_parse(config->net, &rate, &delay_ns)) return;
    eni_net_describe(rate, delay_ns, text, sizeof text);
    printf("Emulated network: %s\n%s", text, tail);
}

void eni_live_init(eni_live *live, bool is_quiet)
{
    *live = (eni_live){.is_tty = isatty(STDERR_FILENO), .is_quiet = is_quiet, .active = -1};
}

int eni_live_add(eni_live *live, const char *setting, const char *arm, int runs)
{
    if (live->is_drawn) live->n = 0; /* below the output since then */
    live->is_drawn = false;
    if (live->n == ENI_LIVE_MAX) return -1;
    eni_live_line *l = &live->line[live->n];
    *l = (eni_live_line){.runs = runs, .accuracy = -1, .loss = NAN};
    snprintf(l->setting, sizeof l->setting, "%s", setting);
    snprintf(l->arm, sizeof l->arm, "%s", arm);
    return live->n++;
}

static double share_done(const eni_live_line *l, bool is_active)
{
    double part = is_active && l->now.total > 0 ? (double)l->now.samples / (double)l->now.total : 0;
    return ((double)l->runs_done + (part < 1 ? part : 1)) / (double)(l->runs > 0 ? l->runs : 1);
}

static int longer(int width, const char *text)
{
    return (int)strlen(text) > width ? (int)strlen(text) : width;
}

/* The bar takes the columns of the terminal that the rest of a full line leaves; figures that do not fit are
 * left out, the test's last. */
static void draw_line(const eni_live *live, const eni_live_line *l, bool is_active, const char *end)
{
    char bar[BAR * 3 + 1] = "", runs[24], rate[32] = "", loss[32] = "", test[32] = "";
    const int columns = eni_terminal_columns(stderr);
    int setting = 6, arm = 0;
    for (int i = 0; i < live->n; i++) { /* align the bars */
        setting = longer(setting, live->line[i].setting);
        arm = longer(arm, live->line[i].arm);
    }
    const int most = columns - 1 - (setting + 2 + BAR_LEAST + 1 + 5);
    if (arm > most) arm = most > 0 ? most : 0;
    const int left = columns - 1 - (setting + 1 + arm + 1 + 4 + 19 + 12 + 13);
    const int width = !live->is_tty || left < BAR_LEAST ? BAR_LEAST : left > BAR ? BAR : left;
    const int filled = (int)(share_done(l, is_active) * width + 0.5);
    for (int i = 0; i < width; i++)
        strcat(bar, i < filled ? "█" : "░");
    snprintf(runs, sizeof runs, "%d/%d", l->runs_done, l->runs);
    if (l->now.rate > 0) snprintf(rate, sizeof rate, "  %7.0f samples/s", l->now.rate);
    if (l->now.rate > 0 && !isnan(l->now.loss)) snprintf(loss, sizeof loss, "  loss %.3f", l->now.loss);
    if (l->accuracy >= 0)
        snprintf(test, sizeof test, "  test %.1f %%", l->accuracy * 100);
    else if (!isnan(l->loss))
        snprintf(test, sizeof test, "  test %.3g", l->loss);
    int room = columns - 1 - (setting + 1 + arm + 1 + width + 1 + (int)(strlen(runs) + strlen(test)));
    if ((room -= (int)strlen(rate)) < 0) rate[0] = 0;
    if ((room -= (int)strlen(loss)) < 0) loss[0] = 0;
    fprintf(stderr, "%-*s %-*.*s %s %s%s%s%s%s", setting, l->setting, arm, arm, l->arm, bar, runs, rate, loss,
            test, end);
}

/* On a terminal too narrow for the shortest form, lines are truncated, not wrapped, as a redraw goes up by
 * lines. */
static void redraw(eni_live *live)
{
    if (live->is_quiet || !live->is_tty) return;
    fputs("\033[?7l", stderr);
    if (live->is_drawn) fprintf(stderr, "\033[%dA", live->n);
    for (int i = 0; i < live->n; i++)
        draw_line(live, &live->line[i], i == live->active, "\033[K\n");
    fputs("\033[?7h", stderr);
    live->is_drawn = true;
    live->drawn_ns = eni_now_ns();
}

void eni_live_begin(eni_live *live, int line)
{
    live->active = line;
    live->line[line].now = (eni_launch_progress){0};
    redraw(live);
}

void eni_live_progress(void *user, const eni_launch_progress *progress)
{
    eni_live *live = user;
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
    if (!live->is_quiet && !live->is_tty) draw_line(live, l, false, "\n");
    redraw(live);
}
