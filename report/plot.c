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

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "report/html.h"
#include "report/table.h"
#include "run/units.h"

extern char **environ;

enum { PLOT_TIMEOUT_S = 20, PLOT_MAX_BYTES = 16 << 20, MAX_ROWS = 128, ROW_LETTERS = 24 };

/* ---- gnuplot ------------------------------------------------------------------------------------------- */

/* A file in memory that holds `bytes` of text; -1 on failure. Its writer never waits for its reader. */
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
    char name[] = "gnuplot", defaults[] = "-d"; /* no ~/.gnuplot: the same picture for all users */
    char *argv[] = {name, defaults, NULL};
    pid_t pid;
    int failed = posix_spawnp(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == 0) return pid;
    errno = failed;
    return -1;
}

/* Whether the child ended in time, with its exit code; otherwise, or if it writes too much, it is killed. */
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

/* The content of a file in memory; no data if it is too large or memory is short. */
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
            snprintf(reason_out, reason_size, "%s drew no picture: %s", gnuplot,
                     words[0] ? words : "no message");
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

en_status eni_plot_open(eni_plot *plot, eni_canvas *canvas, const char *name, ...)
{
    va_list args;
    *plot = (eni_plot){.canvas = canvas};
    va_start(args, name);
    vsnprintf(plot->name, sizeof plot->name, name, args);
    va_end(args);
    plot->variables = open_memstream(&plot->text[0], &plot->bytes[0]);
    if (plot->variables != NULL) plot->data = open_memstream(&plot->text[1], &plot->bytes[1]);
    if (plot->data == NULL) {
        if (plot->variables != NULL) fclose(plot->variables);
        free(plot->text[0]);
        return eni_fail(EN_ENOMEM, "plot", "cannot allocate the script of %s", plot->name);
    }
    eni_plot_style(canvas->study, plot->variables);
    fprintf(plot->variables, "array label[%d]\n", MAX_ROWS);
    return EN_OK;
}

void eni_plot_label(eni_plot *plot, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(plot->label, sizeof plot->label, fmt, args);
    va_end(args);
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

void eni_plot_text(eni_plot *plot, const char *text, size_t letters, const char *variable, ...)
{
    va_list args;
    va_start(args, variable);
    vfprintf(plot->variables, variable, args);
    va_end(args);
    fputs(" = ", plot->variables);
    eni_plot_quote(plot->variables, text, letters);
    fputc('\n', plot->variables);
}

void eni_plot_title(eni_plot *plot, const char *what, size_t setting, const eni_arm *arm)
{
    const eni_study *study = plot->canvas->study;
    char kind[256], title[400];
    eni_study_kind(study, setting, kind, sizeof kind);
    if (study->settings[setting].simulated != NULL) kind[strcspn(kind, ":")] = 0;
    snprintf(title, sizeof title, "%.60s%s%.60s (%.250s)", arm == NULL ? "" : arm->name,
             arm == NULL ? "" : ", ", study->settings[setting].name, kind);
    eni_plot_label(plot, "%s: %.360s", what, title);
    eni_plot_text(plot, title, 58, "title");
}

void eni_plot_add_row(eni_plot *plot, const char *fmt, ...)
{
    char text[64];
    va_list args;
    if (plot->nrows++ >= MAX_ROWS) return; /* a note below the picture says so */
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_table_trim(text);
    if (eni_table_width(text) > plot->widest) plot->widest = eni_table_width(text);
    eni_plot_text(plot, text, ROW_LETTERS, "label[%zu]", plot->nrows);
}

/* Prints whole numbers exactly. */
static void put_number(FILE *file, double value, int digits)
{
    if (isfinite(value) && value == nearbyint(value) && fabs(value) < 0x1p53)
        fprintf(file, "%.0f", value);
    else
        fprintf(file, "%.*g", digits, value);
}

void eni_plot_put(eni_plot *plot, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        put_number(plot->data, values[i], 6); /* for a picture of a thousand pixels */
        fputc(i + 1 < n ? ' ' : '\n', plot->data);
    }
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

static const struct {
    const char *name, *mark;
} formats[] = {
    [ENI_PLOT_PDF] = {"pdf", "%PDF"}, [ENI_PLOT_PNG] = {"png", "PNG"}, [ENI_PLOT_SVG] = {"svg", "<svg"}};

/* Runs gnuplot on the whole script; that of the page's format is kept beside the page. No picture, and a
 * reason, if gnuplot fails. */
static en_status draw(const eni_plot *plot, int format, const char *figure, eni_picture *picture_out,
                      char *reason_out, size_t reason_size)
{
    const eni_canvas *canvas = plot->canvas;
    char *text = NULL;
    size_t bytes;
    FILE *script = open_memstream(&text, &bytes);
    if (script == NULL) return EN_ENOMEM;
    fprintf(script, "format = '%s'\n%srows = %zu\nmargin = %zu\n$d << EOD\n%sEOD\n\n%s\n%s",
            formats[format].name, plot->text[0], plot->nrows < MAX_ROWS ? plot->nrows : MAX_ROWS,
            (plot->widest > ROW_LETTERS ? ROW_LETTERS + 1 : plot->widest) + 1, plot->text[1],
            eni_figures_common_gp, figure);
    en_status st = fclose(script) == 0 ? EN_OK : EN_ENOMEM;
    *picture_out = (eni_picture){NULL, 0};
    snprintf(reason_out, reason_size, "gnuplot is not available");
    if (st == EN_OK && format == ENI_PLOT_SVG) st = write_file(canvas->dir, plot->name, "gp", text, bytes);
    if (st == EN_OK && canvas->gnuplot != NULL)
        *picture_out = eni_plot_run(canvas->gnuplot, text, bytes, formats[format].mark,
                                    PLOT_TIMEOUT_S * ENI_SECOND, reason_out, reason_size);
    free(text);
    return st;
}

/* Draws into the page, or writes a note in place of the picture. */
static en_status draw_in_page(eni_plot *plot, const char *figure)
{
    eni_canvas *canvas = plot->canvas;
    char reason[512];
    eni_picture svg;
    EN_TRY(draw(plot, ENI_PLOT_SVG, figure, &svg, reason, sizeof reason));
    if (plot->nrows > MAX_ROWS)
        eni_html_put(canvas->page, "<p class=\"note\">The first %d of %zu rows; the CSV has all.</p>\n",
                     MAX_ROWS, plot->nrows);
    if (svg.data == NULL) {
        if (canvas->nfailed++ == 0)
            eni_warn("plot", "%s: %s; the page has the data instead", plot->name, reason);
        /* wait for a timeout only once */
        if (strstr(reason, "drew no picture") == NULL) canvas->gnuplot = NULL;
        eni_html_put(canvas->page, "<p class=\"absent\">No picture: %s. The data is in the CSV below.</p>\n",
                     reason);
        return EN_OK;
    }
    fputs("<div class=\"panel\">", canvas->page);
    eni_plot_embed(canvas->page, svg.data, plot->name, plot->label);
    fputs("</div>\n", canvas->page);
    eni_free(svg.data);
    return EN_OK;
}

/* DIR/NAME.pdf or .png. EN_EIO, logged. */
static en_status draw_as(const eni_plot *plot, int format, const char *figure)
{
    const char *kind = formats[format].name;
    char reason[512];
    eni_picture picture;
    EN_TRY(draw(plot, format, figure, &picture, reason, sizeof reason));
    if (picture.data == NULL)
        return eni_fail(EN_EIO, "plot", "--figures=%s: no %s.%s: %s", kind, plot->name, kind, reason);
    const en_status st = write_file(plot->canvas->dir, plot->name, kind, picture.data, picture.bytes);
    eni_free(picture.data);
    return st;
}

en_status eni_plot_close(eni_plot *plot, const char *figure)
{
    const eni_canvas *canvas = plot->canvas;
    const size_t nfailed = canvas->nfailed;
    const bool is_cut = (fclose(plot->variables) | fclose(plot->data)) != 0;
    en_status st = is_cut ? EN_ENOMEM : EN_OK;
    if (st == EN_OK && figure != NULL && canvas->page != NULL) st = draw_in_page(plot, figure);
    for (int i = 0; i < ENI_PLOT_FORMATS && st == EN_OK && figure != NULL && canvas->nfailed == nfailed; i++)
        if (canvas->formats[i]) st = draw_as(plot, i, figure);
    free(plot->text[0]);
    free(plot->text[1]);
    return st;
}

/* Draws only a key, a line per name: of the arms, or of the phases. */
static en_status draw_legend(const eni_canvas *canvas, const char *name, size_t names, bool is_of_arms)
{
    eni_canvas no_page = *canvas;
    eni_plot plot;
    no_page.page = NULL;
    EN_TRY(eni_plot_open(&plot, &no_page, "%s", name));
    fprintf(plot.variables, "names = %zu\nis_of_arms = %d\n", names, is_of_arms);
    for (size_t i = 0; i < names; i++)
        eni_plot_text(&plot, is_of_arms ? canvas->study->arms[i].name : eni_plot_phases[i].name, 40,
                      "label[%zu]", i + 1);
    return eni_plot_close(&plot, eni_figures_legend_gp);
}

en_status eni_plot_legends(const eni_canvas *canvas)
{
    EN_TRY(draw_legend(canvas, "legend-arms", canvas->study->narms, true));
    return draw_legend(canvas, "legend-phases", ENI_PHASES, false);
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

void eni_csv_names(eni_csv *csv, const eni_study *study, size_t setting, size_t arm)
{
    if (csv->has_lines) fputc('\n', csv->file);
    csv->has_lines = true;
    eni_csv_name(csv, study->settings[setting].name);
    fputc(',', csv->file);
    eni_csv_name(csv, study->arms[arm].name);
}

void eni_csv_put(eni_csv *csv, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fputc(',', csv->file);
        if (!isnan(values[i]) && !csv->is_blank) put_number(csv->file, values[i], 9);
    }
}

/* Slow ranks and their factors, a list each, and the network. */
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
    eni_csv_names(csv, study, run->setting, run->arm);
    const char *word =
        run->emulated != NULL && run->simulated == NULL ? "emulated" : eni_study_word(study, run->setting);
    fprintf(csv->file, ",%lld,%s", (long long)run->seed, word);
    put_emulated(csv, emulated);
}

en_status eni_csv_close(eni_csv *csv, const char *dir, const char *name, FILE *page)
{
    if (csv->has_lines) fputc('\n', csv->file);
    en_status st = fclose(csv->file) == 0 ? EN_OK : EN_ENOMEM;
    if (st == EN_OK) st = write_file(dir, name, "csv", csv->text, csv->bytes);
    if (st == EN_OK && page != NULL) {
        fprintf(page, "<p class=\"csv\"><a download=\"%s.csv\" href=\"", name);
        eni_html_data_uri(page, "text/csv", csv->text, csv->bytes);
        fprintf(page, "\">Data of this figure: %s.csv</a></p>\n", name);
    }
    free(csv->text);
    *csv = (eni_csv){0};
    return st;
}

en_status eni_csv_write(const eni_canvas *canvas, const char *name, const char *head,
                        void (*put)(eni_csv *csv, const eni_study *study, const eni_run *run))
{
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, head));
    for (const eni_run *run = NULL; (run = eni_study_next(canvas->study, ENI_ANY, ENI_ANY, run)) != NULL;)
        put(&csv, canvas->study, run);
    return eni_csv_close(&csv, canvas->dir, name, canvas->page);
}
