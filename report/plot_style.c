/* plot_style.c - one colour and one shape per strategy, and a colour per phase, the same in every figure. */
#include "report/html.h"
#include "report/plot.h"

/* Okabe & Ito 2008, without the yellow (unreadable as a line on white). In the order of choose_colours in
 * report_study.c: ring, ps-sync, ps-async, ssp, solo, then strategies from outside. */
static const char *const colours[] = {"#0072b2", "#009e73", "#d55e00", "#cc79a7",
                                      "#000000", "#e69f00", "#56b4e9"};
static const char *const dashes[] = {"1", "'_'", "'-'", "'_.'", "'.'", "'_..'", "'- '"};
static const int markers[] = {7, 5, 9, 13, 15, 11}; /* filled; one less is the same shape, open */
enum { COLOURS = 7, MARKERS = 6 };

static const char *colour_of(const eni_arm *arm)
{
    return colours[arm->colour % COLOURS];
}

static int marker_of(const eni_arm *arm)
{
    return markers[(arm->colour + arm->variant) % MARKERS];
}

const eni_plot_phase eni_plot_phases[ENI_PHASES] = {{"data", "#a9b7c4"},
                                                    {"compute", "#2f3d4c"},
                                                    {"sleep (emulated)", "#2f3d4c"},
                                                    {"exposed exchange", "#d8b95c"},
                                                    {"wait", "#e4e8ec"},
                                                    {"update", "#6f8598"}};

void eni_plot_style(const eni_study *study, FILE *variables)
{
    fprintf(variables,
            "arms = %zu\narray colour[arms]\narray dash[arms]\narray marker[arms]\narray phase[%d]\n",
            study->narms, ENI_PHASES);
    for (size_t a = 0; a < study->narms; a++) {
        const eni_arm *arm = &study->arms[a];
        fprintf(variables, "colour[%zu] = '%s'\ndash[%zu] = %s\nmarker[%zu] = %d\n", a + 1, colour_of(arm),
                a + 1, dashes[(arm->colour + arm->variant) % COLOURS], a + 1, marker_of(arm));
    }
    for (int p = 0; p < ENI_PHASES; p++)
        fprintf(variables, "phase[%d] = '%s'\n", p + 1, eni_plot_phases[p].colour);
}

void eni_plot_swatch(FILE *page, const eni_arm *arm, bool is_real)
{
    const char *colour = colour_of(arm);
    fprintf(page,
            "<svg class=\"swatch\" viewBox=\"-7 -7 14 14\" aria-hidden=\"true\"><g fill=\"%s\" stroke=\"%s\" "
            "stroke-width=\"2\">",
            is_real ? colour : "#fff", colour);
    switch (marker_of(arm)) {
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
    static const char hatch[] =
        "repeating-linear-gradient(135deg,#2f3d4c 0 1px,#fff 1px 4px)"; /* gnuplot's pattern 4 */
    fputs("<ul class=\"legend\">", canvas->page);
    for (int p = 0; p < ENI_PHASES; p++)
        if (shown == NULL || shown[p])
            fprintf(canvas->page, "<li><span class=\"box\" style=\"background:%s\"></span>%s</li>",
                    p == ENI_PHASE_SLEEP ? hatch : eni_plot_phases[p].colour, eni_plot_phases[p].name);
    if (with_hidden)
        fputs("<li><span class=\"box\" style=\"background:linear-gradient(#2f3d4c 62%,#d8b95c 62%)\"></span>"
              "exchange hidden by compute</li>",
              canvas->page);
    fputs("</ul>\n", canvas->page);
}
