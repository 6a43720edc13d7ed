/* plot_pdf.c - figures for papers: vector graphics, the page's pixels at 96 to the inch. */
#include <stdlib.h>

#include "report/plot.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"

static FILE *open_script(char **text, size_t *bytes, int width, int height)
{
    FILE *script = open_memstream(text, bytes);
    if (script != NULL)
        fprintf(script,
                "set terminal pdfcairo size %.3fin,%.3fin noenhanced font 'sans,10.5' linewidth 1 butt\n",
                width / 96.0, height / 96.0);
    return script;
}

/* Closes and frees the script. */
static en_status draw(const eni_canvas *canvas, const char *name, FILE *script, char **text, size_t *bytes)
{
    char reason[512];
    fclose(script);
    eni_picture pdf =
        eni_plot_run(canvas->gnuplot, *text, *bytes, "%PDF", 20 * ENI_SECOND, reason, sizeof reason);
    free(*text);
    if (pdf.data == NULL) {
        eni_error("plot", "--figures=pdf: no %s.pdf: %s", name, reason);
        return EN_EIO;
    }
    en_status st = eni_plot_file(canvas->dir, name, "pdf", pdf.data, pdf.bytes);
    free(pdf.data);
    return st;
}

en_status eni_plot_pdf(const eni_plot *plot)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *script = open_script(&text, &bytes, plot->width, plot->height);
    if (script == NULL) return EN_ENOMEM;
    fwrite(plot->text + plot->body, 1, plot->bytes - plot->body, script);
    return draw(plot->canvas, plot->name, script, &text, &bytes);
}

/* Nothing but a key, a line a name. */
static FILE *open_legend(char **text, size_t *bytes, size_t lines)
{
    FILE *script = open_script(text, bytes, 180, 16 + 20 * (int)lines);
    if (script != NULL)
        fputs("set encoding utf8\nunset border\nunset tics\nset margins 0,0,0,0\n"
              "set key left Left reverse center width 2\nplot [0:1] [0:1]",
              script);
    return script;
}

static en_status draw_arms(const eni_canvas *canvas)
{
    const eni_study *study = canvas->study;
    char *text = NULL;
    size_t bytes = 0;
    FILE *script = open_legend(&text, &bytes, study->narms);
    if (script == NULL) return EN_ENOMEM;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_arm *arm = &study->arms[a];
        fprintf(script, "%s NaN with linespoints lw 2 dt %s pt %d ps 0.8 lc rgb '%s' title ",
                a > 0 ? "," : "", eni_plot_dash(arm), eni_plot_marker(arm, true), eni_plot_colour(arm));
        eni_plot_quote(script, arm->name, 40);
    }
    fputc('\n', script);
    return draw(canvas, "legend-arms", script, &text, &bytes);
}

static en_status draw_phases(const eni_canvas *canvas)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *script = open_legend(&text, &bytes, ENI_PHASES);
    if (script == NULL) return EN_ENOMEM;
    for (int p = 0; p < ENI_PHASES; p++)
        fprintf(script, "%s NaN with boxes fs solid lc rgb '%s' title '%s'", p > 0 ? "," : "",
                eni_plot_phase_colour(p), eni_plot_phase_name(p));
    fputc('\n', script);
    return draw(canvas, "legend-phases", script, &text, &bytes);
}

en_status eni_plot_pdf_legends(const eni_canvas *canvas)
{
    EN_TRY(draw_arms(canvas));
    return draw_phases(canvas);
}
