/* plot_style.c - one colour and one shape per strategy, the same on every figure; text that gnuplot cannot
 * take for anything else. */
#include <math.h>
#include <stdarg.h>

#include "report/html.h"
#include "report/plot.h"
#include "report/table.h"

/* Okabe & Ito 2008, without the yellow (unreadable as a line on white). In the order of choose_colours in
 * report_study.c: ring, ps-sync, ps-async, ssp, solo, then strategies from outside. */
static const char *const colours[] = {"#0072b2", "#009e73", "#d55e00", "#cc79a7",
                                      "#000000", "#e69f00", "#56b4e9"};
static const char *const dashes[] = {"1", "'_'", "'-'", "'_.'", "'.'", "'_..'", "'- '"};
static const int markers[] = {7, 5, 9, 13, 15, 11}; /* filled; one less is the same shape, open */
enum { COLOURS = 7, MARKERS = 6 };

const char *eni_plot_colour(const eni_arm *arm)
{
    return colours[arm->colour % COLOURS];
}

const char *eni_plot_dash(const eni_arm *arm)
{
    return dashes[(arm->colour + arm->variant) % COLOURS];
}

int eni_plot_marker(const eni_arm *arm, bool is_real)
{
    return markers[(arm->colour + arm->variant) % MARKERS] - (is_real ? 0 : 1);
}

/* As gnuplot's pattern 4 looks. */
#define ENI_HATCH "repeating-linear-gradient(135deg,#2f3d4c 0 1px,#fff 1px 4px)"

const eni_plot_phase eni_plot_phases[ENI_PHASES] = {
    {"data", "#a9b7c4", "solid 1.0", "background:#a9b7c4"},
    {"compute", "#2f3d4c", "solid 1.0", "background:#2f3d4c"},
    {"sleep (emulated)", "#2f3d4c", "pattern 4", "background:" ENI_HATCH},
    {"exposed exchange", "#d8b95c", "solid 1.0", "background:#d8b95c"},
    {"wait", "#e4e8ec", "solid 1.0", "background:#e4e8ec"},
    {"update", "#6f8598", "solid 1.0", "background:#6f8598"}};

void eni_plot_swatch(FILE *page, const eni_arm *arm, bool is_real)
{
    const char *colour = eni_plot_colour(arm);
    fprintf(page,
            "<svg class=\"swatch\" viewBox=\"-7 -7 14 14\" aria-hidden=\"true\"><g fill=\"%s\" stroke=\"%s\" "
            "stroke-width=\"2\">",
            is_real ? colour : "#fff", colour);
    switch (eni_plot_marker(arm, true)) {
    case 7: fputs("<circle r=\"5\"/>", page); break;
    case 5: fputs("<rect x=\"-4.5\" y=\"-4.5\" width=\"9\" height=\"9\"/>", page); break;
    case 9: fputs("<path d=\"M0-5.5 5.5 4.5H-5.5z\"/>", page); break;
    case 13: fputs("<path d=\"M0-6 6 0 0 6-6 0z\"/>", page); break;
    case 11: fputs("<path d=\"M0 5.5 5.5-4.5H-5.5z\"/>", page); break;
    default: fputs("<path d=\"M0-5.5 5.2-1.7 3.2 4.5H-3.2L-5.2-1.7z\"/>", page);
    }
    fputs("</g></svg>", page);
}

void eni_plot_arm_legend(const eni_canvas *canvas, const bool shown[])
{
    fputs("<ul class=\"legend\">", canvas->page);
    for (size_t a = 0; a < canvas->study->narms; a++) {
        if (shown != NULL && !shown[a]) continue;
        fputs("<li>", canvas->page);
        eni_plot_swatch(canvas->page, &canvas->study->arms[a], true);
        eni_html_put(canvas->page, "%s</li>", canvas->study->arms[a].name);
    }
    fputs("</ul>\n", canvas->page);
}

void eni_plot_phase_legend(const eni_canvas *canvas, const bool shown[], bool with_hidden)
{
    fputs("<ul class=\"legend\">", canvas->page);
    for (int p = 0; p < ENI_PHASES; p++)
        if (shown == NULL || shown[p])
            fprintf(canvas->page, "<li><span class=\"box\" style=\"%s\"></span>%s</li>",
                    eni_plot_phases[p].legend, eni_plot_phases[p].name);
    if (with_hidden)
        fputs("<li><span class=\"box\" style=\"background:linear-gradient(#2f3d4c 62%,#d8b95c 62%)\"></span>"
              "exchange under way behind compute</li>",
              canvas->page);
    fputs("</ul>\n", canvas->page);
}

void eni_plot_add_row(eni_plot_rows *rows, const char *fmt, ...)
{
    if (rows->n == sizeof rows->label / sizeof rows->label[0]) return;
    char *label = rows->label[rows->n++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(label, sizeof rows->label[0], fmt, args);
    va_end(args);
    eni_table_trim(label);
}

void eni_plot_quote(FILE *script, const char *text, size_t letters)
{
    fputc('\'', script);
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        bool is_start = (*at & 0xc0) != 0x80;
        if (is_start && letters-- == 0) {
            fputs("…", script);
            break;
        }
        if (*at == '\'')
            fputs("''", script);
        else
            fputc(*at < 0x20 || *at == 0x7f || *at == '`' ? '?' : *at, script);
    }
    fputc('\'', script);
}

enum { LABEL_LETTERS = 24 };

void eni_plot_set_rows(eni_plot *plot, const eni_plot_rows *rows)
{
    size_t widest = 0;
    fputs("set ytics (", plot->script);
    for (size_t i = 0; i < rows->n; i++) {
        if (i > 0) fputs(", ", plot->script);
        eni_plot_quote(plot->script, rows->label[i], LABEL_LETTERS);
        fprintf(plot->script, " %zu", i + 1);
        size_t width = eni_table_width(rows->label[i]);
        if (width > widest) widest = width;
    }
    if (widest > LABEL_LETTERS) widest = LABEL_LETTERS + 1;
    fprintf(plot->script,
            ") scale 0\nset yrange [%zu.6:0.4]\nset lmargin %zu\nset border 1\n"
            "set grid noytics\nset grid xtics lc rgb '#e4e8ec' lt 1 lw 1\n",
            rows->n, widest + 1);
}

void eni_plot_set_axis(eni_plot *plot, double low, double high)
{
    if (!(high > low)) high = low + 1; /* a single value, or none */
    double least = (high - low) / 6, unit = pow(10, floor(log10(least)));
    double step = least <= unit       ? unit
                  : least <= 2 * unit ? 2 * unit
                  : least <= 5 * unit ? 5 * unit
                                      : 10 * unit;
    fprintf(plot->script, "set xrange [%.9g:%.9g]\nset xtics %.9g\n", low, high, step);
}

void eni_plot_cut_axis(eni_plot *plot, bool is_x)
{
    for (int i = 0; i < 2; i++) {
        const double at = 0.025 + 0.02 * i;
        if (is_x)
            fprintf(plot->script, "set arrow from graph %.3f, graph -0.03 to graph %.3f, graph 0.03", at,
                    at + 0.012);
        else
            fprintf(plot->script, "set arrow from graph -0.014, graph %.3f to graph 0.014, graph %.3f", at,
                    at + 0.016);
        fputs(" nohead front lw 1.4 lc rgb '#3d4853'\n", plot->script);
    }
}

int eni_plot_row_height(size_t n, int each)
{
    return 86 + (int)n * each;
}
