/* plot.c - a figure, from its first line to the picture in the page, the same for papers, and its data as
 * CSV; see plot.h. gnuplot runs as a child process. */
#include "report/plot.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/units.h"
#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "report/html.h"

extern char **environ;

enum { PLOT_TIMEOUT_S = 20, PLOT_MAX_BYTES = 16 << 20 };

/* ---- gnuplot ------------------------------------------------------------------------------------------- */

/* A file in memory that holds `bytes` of text; -1 on failure. No writer of it ever waits for its reader. */
static int file_of(const char *text, size_t bytes)
{
    const int fd = memfd_create("gnuplot", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, text, bytes, 0) == (ssize_t)bytes) return fd;
    close(fd);
    return -1;
}

static pid_t spawn(const char *program, const int files[3])
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) return -1;
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&actions, files[i], i);
    char name[] = "gnuplot", defaults[] = "-d"; /* no ~/.gnuplot: the same picture for everybody */
    char *argv[] = {name, defaults, NULL};
    pid_t pid;
    int failed = posix_spawnp(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == 0) return pid;
    errno = failed;
    return -1;
}

/* Whether the child ended in time, and how; else, or when it writes too much, it is killed. */
static bool has_ended(pid_t pid, int picture_fd, int64_t timeout_ns, int *code_out)
{
    const int64_t deadline_ns = eni_now_ns() + timeout_ns;
    struct stat so_far = {0};
    for (int64_t now_ns; (now_ns = eni_now_ns()) < deadline_ns && so_far.st_size <= PLOT_MAX_BYTES;) {
        const int64_t look_ns = now_ns + 100 * ENI_MILLI;
        if (eni_signals_await(pid, -1, look_ns < deadline_ns ? look_ns : deadline_ns, code_out) == EN_OK)
            return true;
        fstat(picture_fd, &so_far);
    }
    kill(pid, SIGKILL);
    (void)eni_signals_await(pid, -1, INT64_MAX, code_out);
    return false;
}

/* What a file in memory holds; no data if that is too much, or there is no memory for it. */
static eni_picture contents(int fd)
{
    const off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = bytes < 0 || bytes > PLOT_MAX_BYTES ? NULL : eni_alloc((size_t)bytes + 1);
    if (text == NULL || pread(fd, text, (size_t)bytes, 0) == bytes) return (eni_picture){text, (size_t)bytes};
    eni_free(text);
    return (eni_picture){NULL, 0};
}

eni_picture eni_plot_run(const char *gnuplot, const char *script, size_t bytes, const char *mark,
                         int64_t timeout_ns, char *reason_out, size_t reason_size)
{
    const int files[3] = {file_of(script, bytes), file_of("", 0), file_of("", 0)};
    const bool has_files = files[0] >= 0 && files[1] >= 0 && files[2] >= 0;
    const pid_t pid = has_files ? spawn(gnuplot, files) : -1;
    int code;
    eni_picture picture = {NULL, 0};
    if (pid < 0) {
        snprintf(reason_out, reason_size, "cannot start %s: %s", gnuplot, strerror(errno));
    } else if (!has_ended(pid, files[1], timeout_ns, &code)) {
        snprintf(reason_out, reason_size, "%s did not finish in %.1f s", gnuplot, (double)timeout_ns / 1e9);
    } else {
        char words[200] = "";
        const ssize_t ignored = pread(files[2], words, sizeof words - 1, 0);
        (void)ignored;
        for (char *at = words; (at = strpbrk(at, "\n\t")) != NULL;)
            *at = ' ';
        picture = contents(files[1]);
        if (code != 0 || picture.data == NULL ||
            memmem(picture.data, picture.bytes, mark, strlen(mark)) == NULL) {
            snprintf(reason_out, reason_size, "%s gave no picture: %s", gnuplot,
                     words[0] ? words : "no reason");
            eni_free(picture.data);
            picture = (eni_picture){NULL, 0};
        }
    }
    for (int i = 0; i < 3; i++)
        if (files[i] >= 0) close(files[i]);
    return picture;
}

/* ---- the picture in the page --------------------------------------------------------------------------- */

static bool starts_with(const char *text, const char *head)
{
    return strncmp(text, head, strlen(head)) == 0;
}

/* The end of <tag>…</tag> at `at`, or NULL. */
static const char *skip_element(const char *at, const char *open, const char *close)
{
    if (!starts_with(at, open)) return NULL;
    const char *end = strstr(at, close);
    return end == NULL ? NULL : end + strlen(close);
}

void eni_plot_embed(FILE *page, const char *svg, const char *prefix, const char *label)
{
    static const char *const references[] = {"id='", "id=\"", "url(#", "href='#", "href=\"#"};
    const char *at = strstr(svg, "<svg");
    if (at == NULL) return;
    eni_html_put(page, "<svg role=\"img\" aria-label=\"%s\"", label);
    at += strlen("<svg");
    while (*at != 0) {
        const char *end = skip_element(at, "<title>", "</title>");
        if (end == NULL) end = skip_element(at, "<desc>", "</desc>");
        if (end != NULL) {
            at = end;
            continue;
        }
        size_t taken = 0;
        for (size_t i = 0; i < sizeof references / sizeof references[0] && taken == 0; i++)
            if (starts_with(at, references[i])) taken = strlen(references[i]);
        if (taken == 0) {
            fputc(*at++, page);
            continue;
        }
        fprintf(page, "%.*s%s-", (int)taken, at, prefix);
        at += taken;
    }
}

/* ---- a figure ------------------------------------------------------------------------------------------ */

en_status eni_plot_open(eni_plot *plot, eni_canvas *canvas, int width, int height, const char *name, ...)
{
    *plot = (eni_plot){.canvas = canvas, .width = width, .height = height};
    va_list args;
    va_start(args, name);
    vsnprintf(plot->name, sizeof plot->name, name, args);
    va_end(args);
    plot->script = open_memstream(&plot->text, &plot->bytes);
    if (plot->script == NULL)
        return eni_fail(EN_ENOMEM, "plot", "cannot allocate the script of %s", plot->name);
    fprintf(plot->script, "set terminal svg size %d,%d dynamic noenhanced font 'sans,14' linewidth 1 butt\n",
            width, height);
    fflush(plot->script);
    plot->body = plot->bytes;
    fputs("set encoding utf8\n"
          "set border 3 lc rgb '#8a94a0'\n"
          "set tics nomirror scale 0.4 tc rgb '#3d4853'\n"
          "set xlabel tc rgb '#3d4853'\nset ylabel tc rgb '#3d4853'\n"
          "set grid ytics lc rgb '#e4e8ec' lt 1 lw 1\n"
          "set key off\n",
          plot->script);
    return EN_OK;
}

void eni_plot_label(eni_plot *plot, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(plot->label, sizeof plot->label, fmt, args);
    va_end(args);
}

void eni_plot_title(eni_plot *plot, const char *what, size_t setting, const eni_arm *arm)
{
    const eni_study *study = plot->canvas->study;
    char kind[256], title[400];
    eni_study_kind(study, setting, kind, sizeof kind);
    snprintf(title, sizeof title, "%.60s%s%.60s (%.250s)", arm == NULL ? "" : arm->name,
             arm == NULL ? "" : ", ", study->settings[setting].name, kind);
    eni_plot_label(plot, "%s: %.360s", what, title);
    fputs("set tmargin 2\nset label 99 ", plot->script);
    eni_plot_quote(plot->script, title, 58);
    fputs(" at graph 0, graph 1 left offset 0,0.9 tc rgb '#1c2733' font ',15'\n", plot->script);
}

/* Writes DIR/NAME.SUFFIX. EN_EIO, logged. */
static en_status write_file(const char *dir, const char *name, const char *suffix, const char *text,
                            size_t bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s.%s", dir, name, suffix);
    FILE *file = eni_file_open(path, "w");
    bool is_written = file != NULL && fwrite(text, 1, bytes, file) == bytes;
    if (file != NULL && fclose(file) != 0) is_written = false;
    if (is_written) return EN_OK;
    return eni_fail(EN_EIO, "plot", "cannot write %s: %s", path, strerror(errno));
}

/* ---- the same for papers: vector graphics, the page's pixels at 96 to the inch ------------------------- */

static const struct {
    const char *name, *mark;
} formats[ENI_PLOT_FORMATS] = {[ENI_PLOT_PDF] = {"pdf", "%PDF"}, [ENI_PLOT_PNG] = {"png", "PNG"}};

/* DIR/NAME.pdf or .png of what a script has behind its `set terminal`. EN_EIO, logged. */
static en_status draw_as(const eni_canvas *canvas, int format, const char *name, int width, int height,
                         const char *body)
{
    char reason[512], *text = NULL;
    size_t bytes = 0;
    FILE *script = open_memstream(&text, &bytes);
    if (script == NULL) return EN_ENOMEM;
    if (format == ENI_PLOT_PDF)
        fprintf(script, "set terminal pdfcairo size %.3fin,%.3fin linewidth 1", width / 96.0, height / 96.0);
    else /* for a screen that has two pixels where the page has one */
        fprintf(script, "set terminal pngcairo size %d,%d fontscale 2 linewidth 2 pointscale 2", 2 * width,
                2 * height);
    fprintf(script, " noenhanced font 'sans,10.5' butt\n%s", body);
    fclose(script);
    eni_picture picture = eni_plot_run(canvas->gnuplot, text, bytes, formats[format].mark,
                                       PLOT_TIMEOUT_S * ENI_SECOND, reason, sizeof reason);
    free(text);
    if (picture.data == NULL)
        return eni_fail(EN_EIO, "plot", "--figures=%s: no %s.%s: %s", formats[format].name, name,
                        formats[format].name, reason);
    en_status st = write_file(canvas->dir, name, formats[format].name, picture.data, picture.bytes);
    eni_free(picture.data);
    return st;
}

/* In every format that is asked for. */
static en_status draw_more(const eni_canvas *canvas, const char *name, int width, int height,
                           const char *body)
{
    for (int i = 0; i < ENI_PLOT_FORMATS; i++)
        if (canvas->formats[i]) EN_TRY(draw_as(canvas, i, name, width, height, body));
    return EN_OK;
}

/* Nothing but a key, a line a name: of the arms, or of the phases. */
static en_status draw_legend(const eni_canvas *canvas, const char *name, size_t lines, bool is_of_arms)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *script = open_memstream(&text, &bytes);
    if (script == NULL) return EN_ENOMEM;
    fputs("set encoding utf8\nunset border\nunset tics\nset margins 0,0,0,0\n"
          "set key left Left reverse center width 2\nplot [0:1] [0:1]",
          script);
    for (size_t i = 0; i < lines; i++) {
        const eni_arm *arm = &canvas->study->arms[i];
        fputs(i > 0 ? "," : "", script);
        if (is_of_arms)
            fprintf(script, " NaN with linespoints lw 2 dt %s pt %d ps 0.8 lc rgb '%s' title ",
                    eni_plot_dash(arm), eni_plot_marker(arm, true), eni_plot_colour(arm));
        else
            fprintf(script, " NaN with boxes fs solid lc rgb '%s' title ", eni_plot_phases[i].colour);
        eni_plot_quote(script, is_of_arms ? arm->name : eni_plot_phases[i].name, 40);
    }
    fputc('\n', script);
    fclose(script);
    const en_status st = draw_more(canvas, name, 180, 16 + 20 * (int)lines, text);
    free(text);
    return st;
}

en_status eni_plot_legends(const eni_canvas *canvas)
{
    EN_TRY(draw_legend(canvas, "legend-arms", canvas->study->narms, true));
    return draw_legend(canvas, "legend-phases", ENI_PHASES, false);
}

/* ---- the end of a figure ------------------------------------------------------------------------------- */

en_status eni_plot_close(eni_plot *plot)
{
    eni_canvas *canvas = plot->canvas;
    en_status st = EN_OK;
    fclose(plot->script);
    EN_TRY_GOTO(write_file(canvas->dir, plot->name, "gp", plot->text, plot->bytes), drop);

    char reason[512] = "gnuplot does not run here";
    eni_picture svg = {NULL, 0};
    if (canvas->gnuplot != NULL)
        svg = eni_plot_run(canvas->gnuplot, plot->text, plot->bytes, "<svg", PLOT_TIMEOUT_S * ENI_SECOND,
                           reason, sizeof reason);
    if (svg.data != NULL) {
        st = draw_more(canvas, plot->name, plot->width, plot->height, plot->text + plot->body);
        fputs("<div class=\"panel\">", canvas->page);
        eni_plot_embed(canvas->page, svg.data, plot->name, plot->label);
        fputs("</div>\n", canvas->page);
    } else {
        if (canvas->nfailed++ == 0)
            eni_warn("plot", "%s: %s; the page has the data instead", plot->name, reason);
        if (strstr(reason, "gave no picture") == NULL) canvas->gnuplot = NULL; /* wait for it once only */
        eni_html_put(canvas->page,
                     "<p class=\"absent\">No picture here: %s. The data is in the CSV below.</p>\n", reason);
    }
    eni_free(svg.data);
drop:
    free(plot->text);
    *plot = (eni_plot){0};
    return st;
}

/* ---- CSV ----------------------------------------------------------------------------------------------- */

en_status eni_csv_open(eni_csv *csv, const char *head)
{
    *csv = (eni_csv){0};
    csv->file = open_memstream(&csv->text, &csv->bytes);
    if (csv->file == NULL) return eni_fail(EN_ENOMEM, "plot", "cannot allocate a CSV");
    fprintf(csv->file, "%s\n", head);
    return EN_OK;
}

void eni_csv_text(eni_csv *csv, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, csv->file);
        return;
    }
    fputc('"', csv->file);
    for (; *text != 0; text++) {
        if (*text == '"') fputc('"', csv->file);
        fputc(*text, csv->file);
    }
    fputc('"', csv->file);
}

void eni_csv_name(eni_csv *csv, const char *name)
{
    for (; *name != 0; name++)
        fputc(*name == ',' ? ';' : strchr(" \t\r\n\"", *name) != NULL ? '_' : *name, csv->file);
}

void eni_csv_number(eni_csv *csv, double value)
{
    if (isnan(value) || csv->is_blank) return;
    const bool is_whole = isfinite(value) && value == nearbyint(value) && fabs(value) < 0x1p53;
    fprintf(csv->file, is_whole ? "%.0f" : "%.9g", value);
}

void eni_csv_put(eni_csv *csv, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fputc(',', csv->file);
        eni_csv_number(csv, values[i]);
    }
}

/* Slow ranks and their factors, one list each, and the network. */
static void put_emulated(eni_csv *csv, const json_t *emulated)
{
    static const char straggler[] = "straggler ", net[] = "net ";
    char ranks[2048] = "", factors[2048] = "";
    uint64_t rate = 0;
    int64_t delay = 0, rank;
    double factor;
    size_t i;
    json_t *item;
    json_array_foreach(emulated, i, item)
    {
        const char *text = json_string_value(item);
        if (text == NULL) continue;
        if (starts_with(text, straggler) &&
            eni_straggler_parse(text + sizeof straggler - 1, &rank, &factor)) {
            eni_text_add(ranks, sizeof ranks, "%s%lld", ranks[0] != 0 ? ";" : "", (long long)rank);
            eni_text_add(factors, sizeof factors, "%s%.9g", factors[0] != 0 ? ";" : "", factor);
        }
        if (starts_with(text, net) && !eni_net_parse(text + sizeof net - 1, &rate, &delay))
            rate = 0, delay = 0;
    }
    fprintf(csv->file, ",%s,%s", ranks, factors);
    ENI_CSV_PUT(csv, rate > 0 ? (double)rate : NAN, delay > 0 ? (double)delay * 1e-9 : NAN);
}

void eni_csv_run(eni_csv *csv, const eni_study *study, const eni_run *run)
{
    const json_t *emulated = json_object_get(json_object_get(run->result, "environment"), "emulated");
    eni_csv_name(csv, study->settings[run->setting].name);
    fputc(',', csv->file);
    eni_csv_name(csv, study->arms[run->arm].name);
    const bool is_real = run->emulated == NULL && eni_study_is_real(study, run->setting);
    fprintf(csv->file, ",%lld,%s", (long long)run->seed, is_real ? "real" : "emulated");
    put_emulated(csv, emulated);
}

en_status eni_csv_close(eni_csv *csv, const char *dir, const char *name, FILE *page)
{
    fclose(csv->file);
    en_status st = write_file(dir, name, "csv", csv->text, csv->bytes);
    if (st == EN_OK && page != NULL) {
        fprintf(page, "<p class=\"csv\"><a download=\"%s.csv\" href=\"", name);
        eni_html_data_uri(page, "text/csv", csv->text, csv->bytes);
        fprintf(page, "\">Data of this figure: %s.csv</a></p>\n", name);
    }
    free(csv->text);
    *csv = (eni_csv){0};
    return st;
}
