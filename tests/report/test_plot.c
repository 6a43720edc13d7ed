/* test_plot.c - gnuplot as a child: its picture, its failures, its deadline; embedding; quoting. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "report/plot.h"
#include "tests/heard.h"
#include "tests/report/fixture.h"

/* Promise: A slow rank's sleeps are told apart from its computing and its waiting. */

static bool has_gnuplot(void)
{
    return system("gnuplot --version > /dev/null 2>&1") == 0;
}

static char *draw(const char *gnuplot, const char *script, int64_t timeout_ns, char *reason, size_t bytes)
{
    return eni_plot_run(gnuplot, script, strlen(script), "<svg", timeout_ns, reason, bytes).data;
}

static void gnuplot_draws(void **state)
{
    (void)state;
    if (!has_gnuplot()) skip();
    const char script[] = "set terminal svg\nplot x\n";
    char reason[512] = "";
    char *svg = draw("gnuplot", script, 20 * ENI_SECOND, reason, sizeof reason);
    assert_non_null(svg);
    assert_non_null(strstr(svg, "</svg>"));
    eni_free(svg);
}

static void a_bad_script_is_a_reason(void **state)
{
    (void)state;
    if (!has_gnuplot()) skip();
    const char script[] = "set terminal svg\nplot nonsense(\n";
    char reason[512] = "";
    assert_null(draw("gnuplot", script, 20 * ENI_SECOND, reason, sizeof reason));
    assert_non_null(strstr(reason, "gnuplot"));
    assert_non_null(strstr(reason, "picture"));
}

static void a_missing_program_is_a_reason(void **state)
{
    (void)state;
    char reason[512] = "";
    assert_null(draw("no-such-gnuplot", "", ENI_SECOND, reason, sizeof reason));
    assert_non_null(strstr(reason, "no-such-gnuplot"));
    assert_non_null(strstr(reason, strerror(ENOENT)));
}

static void a_child_that_hangs_is_ended(void **state)
{
    (void)state;
    char dir[64], path[128], reason[512] = "";
    fixture_folder(dir);
    fixture_text(dir, "slow", "#!/bin/sh\nexec sleep 60\n");
    snprintf(path, sizeof path, "%s/slow", dir);
    assert_int_equal(chmod(path, 0700), 0);
    int64_t begin = eni_now_ns();
    assert_null(draw(path, "", 200 * ENI_MILLI, reason, sizeof reason));
    assert_true(eni_now_ns() - begin < 10 * ENI_SECOND);
    assert_non_null(strstr(reason, "0.2 s"));
    fixture_remove(dir);
}

/* Names of arms and settings come from a user's command line, and from files of other people. */
static void a_quoted_text_stays_a_text(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    FILE *script = open_memstream(&text, &bytes);
    eni_plot_quote(script, "it's `touch x`\n\\\"é", 99);
    eni_plot_quote(script, "ééé", 2);
    fclose(script);
    assert_string_equal(text, "'it''s ?touch x??\\\"é''éé…'");
    free(text);
}

static void a_quoted_text_runs_nothing(void **state)
{
    (void)state;
    if (!has_gnuplot()) skip();
    char dir[64], script[512], *text, reason[512];
    size_t bytes;
    fixture_folder(dir);
    char hostile[256];
    snprintf(hostile, sizeof hostile, "`touch %s/a`'; system('touch %s/b') #<script>", dir, dir);
    FILE *out = open_memstream(&text, &bytes);
    eni_plot_quote(out, hostile, 400);
    fclose(out);
    snprintf(script, sizeof script, "set terminal svg noenhanced\nset title %s\nplot x\n", text);
    char *svg = draw("gnuplot", script, 20 * ENI_SECOND, reason, sizeof reason);
    assert_non_null(svg);
    assert_null(strstr(svg, "<script"));
    assert_null(fixture_read(dir, "a"));
    assert_null(fixture_read(dir, "b"));
    eni_free(svg);
    free(text);
    fixture_remove(dir);
}

static void embedding_renames_ids_and_drops_titles(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    FILE *page = open_memstream(&text, &bytes);
    eni_plot_embed(
        page,
        "<?xml version=\"1.0\"?>\n<svg viewBox=\"0 0 1 1\"><title>t</title><desc>d</desc><g id=\"a\"/>"
        "<path id='b'/><use xlink:href='#b' fill='url(#c)'/></svg>",
        "p-0", "two \"lines\"");
    fclose(page);
    assert_string_equal(
        text, "<svg role=\"img\" aria-label=\"two &quot;lines&quot;\" viewBox=\"0 0 1 1\"><g id=\"p-0-a\"/>"
              "<path id='p-0-b'/><use xlink:href='#p-0-b' fill='url(#p-0-c)'/></svg>");
    free(text);
}

/* A picture leaves no arm out silently. */
static void rows_that_do_not_fit_are_counted(void **state)
{
    (void)state;
    char dir[64], *page;
    size_t bytes;
    static eni_study study;
    fixture_folder(dir);
    for (size_t n = 128; n <= 130; n += 2) {
        eni_canvas canvas = {.study = &study, .dir = dir, .page = open_memstream(&page, &bytes)};
        eni_plot plot;
        assert_int_equal(eni_plot_open(&plot, &canvas, "rows-%zu", n), EN_OK);
        for (size_t i = 0; i < n; i++)
            eni_plot_add_row(&plot, "arm %zu", i);
        assert_int_equal(eni_plot_close(&plot, "plot NaN\n"), EN_OK);
        fclose(canvas.page);
        assert_int_equal(strstr(page, "The first 128 of 130 rows") != NULL, n > 128);
        free(page);
    }
    fixture_remove(dir);
}

static void csv_quotes_what_it_must(void **state)
{
    (void)state;
    char dir[64], *page, *file;
    size_t bytes;
    fixture_folder(dir);
    eni_canvas canvas = {.dir = dir, .page = open_memstream(&page, &bytes)};
    eni_csv csv;
    assert_int_equal(eni_csv_open(&csv, "a,b"), EN_OK);
    eni_csv_text(&csv, "x,\"y\"");
    ENI_CSV_PUT(&csv, 0.25, 12345678901.0);
    fputc(',', csv.file);
    eni_csv_name(&csv, "ssp:bound=2,lr=\"a b\"");
    assert_int_equal(eni_csv_close(&csv, dir, "data", canvas.page), EN_OK);
    fclose(canvas.page);
    file = fixture_read(dir, "data.csv");
    assert_string_equal(file, "a,b\n\"x,\"\"y\"\"\",0.25,12345678901,ssp:bound=2;lr=_a_b_");
    assert_non_null(strstr(page, "href=\"data:text/csv;base64,YSxiCiJ4"));
    free(file);
    free(page);
    fixture_remove(dir);
}

/* Steps of 10, 20 and 30 ms and a start-up step: the one of median length, servers below workers. */
static void the_median_step_is_cut_out(void **state)
{
    (void)state;
    char dir[64], path[128];
    fixture_folder(dir);
    fixture_text(
        dir, "trace.json",
        "{\"traceEvents\":["
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":9,\"args\":{\"name\":\"psd\"}},"
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":10,\"args\":{\"name\":\"rank 0\"}},"
        "{\"name\":\"forward\",\"ph\":\"X\",\"ts\":0,\"dur\":90000,\"pid\":10,\"tid\":0,\"args\":{"
        "\"step\":0}},"
        "{\"name\":\"forward\",\"ph\":\"X\",\"ts\":100000,\"dur\":10000,\"pid\":10,\"tid\":0,"
        "\"args\":{\"step\":2}},"
        "{\"name\":\"forward\",\"ph\":\"X\",\"ts\":200000,\"dur\":20000,\"pid\":10,\"tid\":0,"
        "\"args\":{\"step\":3}},"
        "{\"name\":\"backward 3\",\"ph\":\"X\",\"ts\":201000,\"dur\":500,\"pid\":10,\"tid\":301,\"args\":{"
        "\"step\":3}},"
        "{\"name\":\"absorb\",\"ph\":\"X\",\"ts\":215000,\"dur\":1000,\"pid\":9,\"tid\":10,\"args\":"
        "{\"step\":7}},"
        "{\"name\":\"forward\",\"ph\":\"X\",\"ts\":300000,\"dur\":30000,\"pid\":10,\"tid\":0,"
        "\"args\":{\"step\":4}}]}");
    snprintf(path, sizeof path, "%s/trace.json", dir);
    eni_trace_step step;
    assert_int_equal(eni_trace_step_load(path, &step), EN_OK);
    assert_int_equal(step.step, 3);
    assert_true(step.ms == 20);
    assert_int_equal(step.nlanes, 3);
    assert_string_equal(step.lanes[0].name, "rank 0");
    assert_string_equal(step.lanes[1].name, "rank 0 stage 1");
    assert_string_equal(step.lanes[2].name, "psd shard 0");
    assert_int_equal(step.nparts, 3);
    assert_true(step.parts[2].phase == ENI_PHASE_COMPUTE);
    assert_true(step.parts[1].begin == 15 && step.parts[1].phase == ENI_PHASE_UPDATE);
    eni_trace_step_fini(&step);
    fixture_remove(dir);
}

/* A slow rank computes for 14 ms, sleeps for 3 and waits for 3, while another of its threads sends from 10 to 19. */
static void hidden_exchange_and_sleep_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int begin, ms, tid;
    } spans[] = {{"backward", 0, 14, 0}, {"sleep", 14, 3, 0}, {"wait", 17, 3, 0}, {"send", 10, 9, 1}};
    static const struct {
        double begin, end;
        int phase;
    } expected[] = {{0, 14, ENI_PHASE_COMPUTE}, {10, 14, ENI_PHASE_HIDDEN}, {14, 17, ENI_PHASE_SLEEP},
                    {14, 17, ENI_PHASE_HIDDEN}, {17, 20, ENI_PHASE_WAIT},   {17, 19, ENI_PHASE_EXCHANGE}};
    enum { PARTS = sizeof expected / sizeof *expected };
    char dir[64], path[128], text[1200];
    int n = snprintf(text, sizeof text,
                     "{\"traceEvents\":[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":10,\"args\":{"
                     "\"name\":\"rank 0\"}}");
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      ",{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%d,\"dur\":%d,\"pid\":10,\"tid\":%d,\"args\":{"
                      "\"step\":0}}",
                      spans[i].name, 1000 * spans[i].begin, 1000 * spans[i].ms, spans[i].tid);
    snprintf(text + n, sizeof text - (size_t)n, "]}");
    fixture_folder(dir);
    fixture_text(dir, "trace.json", text);
    snprintf(path, sizeof path, "%s/trace.json", dir);
    eni_trace_step step;
    assert_int_equal(eni_trace_step_load(path, &step), EN_OK);
    assert_int_equal(step.nparts, PARTS);
    for (int e = 0; e < PARTS; e++) {
        int found = 0;
        for (size_t i = 0; i < step.nparts; i++)
            found += step.parts[i].phase == expected[e].phase && step.parts[i].begin == expected[e].begin &&
                     step.parts[i].end == expected[e].end;
        assert_int_equal(found, 1);
    }
    eni_trace_step_fini(&step);
    fixture_remove(dir);
}

static void a_broken_trace_is_refused(void **state)
{
    (void)state;
    char dir[64], path[128];
    heard said = {0};
    fixture_folder(dir);
    snprintf(path, sizeof path, "%s/trace.json", dir);
    eni_trace_step step;
    assert_int_equal(eni_trace_step_load(path, &step), EN_ENOENT);
    fixture_text(dir, "trace.json", "{\"traceEvents\":[{\"name\":\"x\",\"ph\":\"X\",\"ts\":\"soon\"}]}");
    eni_log_set_sink(hear, &said);
    assert_int_equal(eni_trace_step_load(path, &step), EN_EFORMAT);
    eni_log_set_sink(NULL, NULL);
    assert_true(fixture_has(said.text, path) && fixture_has(said.text, "traceEvents[0].ts|number"));
    fixture_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gnuplot_draws),
                                       cmocka_unit_test(a_bad_script_is_a_reason),
                                       cmocka_unit_test(a_missing_program_is_a_reason),
                                       cmocka_unit_test(a_child_that_hangs_is_ended),
                                       cmocka_unit_test(a_quoted_text_stays_a_text),
                                       cmocka_unit_test(a_quoted_text_runs_nothing),
                                       cmocka_unit_test(embedding_renames_ids_and_drops_titles),
                                       cmocka_unit_test(rows_that_do_not_fit_are_counted),
                                       cmocka_unit_test(csv_quotes_what_it_must),
                                       cmocka_unit_test(the_median_step_is_cut_out),
                                       cmocka_unit_test(hidden_exchange_and_sleep_are_told_apart),
                                       cmocka_unit_test(a_broken_trace_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
