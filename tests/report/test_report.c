/* test_report.c - the whole command: the table line by line, the page's order, malformed files, hostile
 * names. */
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

#include "core/log.h"
#include "report/report.h"
#include "report/table.h"
#include "tests/report/fixture.h"

static char dir[64];
static char said[1024]; /* the errors of this test, one after the other */

static void listen(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level == ENI_LOG_ERROR) snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static int setup(void **state)
{
    (void)state;
    fixture spec = fixture_demo();
    fixture_folder(dir);
    fixture_write(dir, &spec);
    said[0] = 0;
    eni_log_set_sink(listen, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    fixture_remove(dir);
    return 0;
}

/* The command's output; freed by the caller. */
static char *report_with(int extras, en_status expected)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(eni_report((const char *const[]){dir}, 1, dir, (eni_target){0}, out, extras), expected);
    fclose(out);
    return text;
}

static char *report(en_status expected)
{
    return report_with(0, expected);
}

static void in_order(const char *text, const char *const parts[], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(text, parts[i]);
        if (at == NULL) fail_msg("missing, or too early: %s", parts[i]);
        text = at + strlen(parts[i]);
    }
}

static void the_table_has_the_columns_and_lines_up(void **state)
{
    (void)state;
    char *text = report(EN_OK);
    const char *const parts[] = {
        "setting",
        "strategy",
        "updates",
        "samples/s",
        "to 75 %",
        "test acc",
        "staleness mean/p50/p95/max",
        "wait",
        "payload/theory",
        "wire\n",
        "even     ring [direct, shm]",
        "468",
        "14,",
        " s  ",
        "[",
        "0/0/0/0",
        " %",
        "1.00",
        "0 MB\n",
        "even     ps-sync [shm]",
        "even     ps-async [shm]",
        "936",
        "1.0/1/1/2",
        "slow     ring [direct, shm]",
        "slow     ps-sync",
        "slow     ps-async",
        "ring = ps-sync byte for byte (sha256 ",
        "fairness: PASS, 1 warning",
        "\neven      to 75 %",
        "test acc",
        "samples/s",
        "differs from the first\n",
        "ring      ≈ 1.4 s [1.4 to 1.4 s]  80.7 [80.5 to 80.8]  14,900 [14,700 to 14,900]  -\n",
        "ps-async  ≈ 1.7 s",
        "too few seeds",
        "\neven: ring reached 75 % in 1.4 s, ps-sync in 1.6 s; too few seeds to say (3 of 7).\n",
        "\nslow: ps-async reached 75 % in ",
        "too few seeds to say (1 of 7).\n",
        "Too few seeds to claim anything: even has 3 of 7 (descriptive), slow has 1 of 7",
        "true median",
        "75 % (even)."};
    in_order(text, parts, sizeof parts / sizeof parts[0]);

    /* The last column is flush right: the table's lines are equally long, and have at most 140 letters. */
    size_t width = 0;
    const char *line = text;
    for (int i = 0; i < 7; i++) {
        size_t bytes = strcspn(line, "\n");
        char copy[512];
        assert_true(bytes < sizeof copy);
        memcpy(copy, line, bytes);
        copy[bytes] = 0;
        if (i == 0) width = eni_table_width(copy);
        assert_int_equal(eni_table_width(copy), width);
        line += bytes + 1;
    }
    assert_true(width <= 140);
    free(text);
}

static void the_page_is_in_the_order_asked_for(void **state)
{
    (void)state;
    free(report(EN_OK));
    char *page = fixture_read(dir, "report.html");
    assert_non_null(page);
    const char *const parts[] = {"<!DOCTYPE html>", "id=\"verdict\"", "id=\"fairness\"",  "id=\"table\"",
                                 "id=\"accuracy\"", "accuracy.csv",   "id=\"steps\"",     "steps.csv",
                                 "id=\"settings\"", "settings.csv",   "id=\"staleness\"", "staleness.csv",
                                 "id=\"bytes\"",    "bytes.csv",      "id=\"timeline\"",  "timeline.csv",
                                 "id=\"shares\"",   "shares.csv",     "id=\"reproduce\"", "entrain compare",
                                 "AMD EPYC",        "batch-size: 64", "</html>"};
    in_order(page, parts, sizeof parts / sizeof parts[0]);
    assert_null(strstr(page, "{{")); /* a slot that was not filled */
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "src="));
    assert_null(strstr(page, "href=\"http"));
    assert_null(strstr(page, "@import"));
    assert_null(fixture_read(dir, "report.html.part"));
    free(page);
}

/* The CSV beside the page carries what the curve shows, each line labelled real or emulated. */
static void csv_labels_every_point(void **state)
{
    (void)state;
    free(report(EN_OK));
    char *csv = fixture_read(dir, "plots/accuracy.csv");
    assert_non_null(csv);
    size_t lines = 0, real = 0, emulated = 0;
    for (char *line = strtok(csv, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        lines++;
        real += strstr(line, ",real,") != NULL;
        emulated += strstr(line, ",emulated,1,3,,,") != NULL;
    }
    assert_int_equal(lines, 1 + 12 * 18); /* 12 runs, 18 evaluations each */
    assert_int_equal(real, 9 * 18);
    assert_int_equal(emulated, 3 * 18);
    free(csv);
}

/* One line, which begins with the file and has the parts in "place|value". */
static void refuses(const char *file, const char *text, const char *parts)
{
    char begin[512];
    said[0] = 0;
    fixture_text(dir, file, text);
    free(report(EN_EFORMAT));
    snprintf(begin, sizeof begin, "%s/%s: ", dir, file);
    assert_memory_equal(said, begin, strlen(begin));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    if (!fixture_has(said + strlen(begin), parts)) fail_msg("%s lacks %s", said, parts);
}

static void a_malformed_index_ends_in_one_sentence(void **state)
{
    (void)state;
    refuses("compare.json", "{\"schema\":1,", "line 1|JSON|'}'");
    refuses("compare.json", "[]", "JSON object");
    refuses("compare.json", "{\"schema\":1}", "schema 1|2");
    refuses("compare.json", "{\"schema\":2,\"target\":75}", "target 75|0.75");
    refuses("compare.json", "{\"schema\":2,\"target\":0.75}", "settings|list");
    refuses("compare.json", "{\"schema\":2,\"target\":0.75,\"settings\":[]}", "settings|1 to 16|0");
    refuses("compare.json", "{\"schema\":2,\"target\":0.75,\"settings\":[{\"name\":7}]}",
            "settings[0].name|text");
#define HEAD                                                                                                 \
    "{\"schema\":2,\"target\":0.75,\"settings\":[{\"name\":\"even\"}],\"arms\":[{\"name\":\"a\","            \
    "\"strategy\":"                                                                                          \
    "\"ring\"}],"                                                                                            \
    "\"seeds\":[1],\"runs\":"
    refuses("compare.json",
            HEAD "[{\"setting\":\"odd\",\"arm\":\"a\",\"seed\":1,\"dir\":\"runs/x\",\"exit\":0}]}",
            "runs[0]|setting odd");
    refuses("compare.json",
            HEAD "[{\"setting\":\"even\",\"arm\":\"a\",\"seed\":1,\"dir\":\"runs/../../etc\",\"exit\":0}]}",
            "runs[0].dir runs/../../etc");
    refuses("compare.json",
            HEAD "[{\"setting\":\"even\",\"arm\":\"a\",\"seed\":\"1\",\"dir\":\"runs/x\",\"exit\":0}]}",
            "runs[0].seed|integer");
}

static void a_malformed_run_ends_in_one_sentence(void **state)
{
    (void)state;
    const char *const file = "runs/even-0-s1/eval.jsonl";
    char *good = fixture_read(dir, file);
    refuses(file, "{\"samples\":10,\"t\":1}\n{\"samples\":\n", "line 2|JSON object");
    refuses(file, "{\"samples\":10,\"t\":1,\"test_accuracy\":80.6}\n", "line 1.test_accuracy 80.6|0 to 1");
    refuses(file, "{\"samples\":10,\"t\":2}\n{\"samples\":20,\"t\":1}\n", "line 2 |samples|t");
    refuses(file, "{\"t\":2}\n", "line 1.samples|number");
    fixture_text(dir, file, good);
    free(good);
    refuses("runs/even-0-s1/metrics-0.jsonl", "{\"step_ns\":\"fast\"}\n", "line 1.step_ns|number");
    fixture_text(dir, "runs/even-0-s1/metrics-0.jsonl", "");
    refuses("runs/even-0-s1/metrics-all.jsonl", "{\"step_ns\":\"fast\"}\n", "line 1.step_ns|number");
    fixture_text(dir, "runs/even-0-s1/metrics-all.jsonl", "");
    refuses("runs/even-0-s1/result.json", "{\"schema\":1}", "schema 1|2");
    refuses("runs/even-0-s1/result.json", "{\"schema\":2,\"updates\":\"many\"}", "updates|number");
    refuses("runs/even-0-s1/result.json", "{\"schema\":2,\"staleness\":{\"histogram\":[[1]]}}",
            "staleness.histogram[0]|[staleness, pushes]");
    refuses("runs/even-0-s1/result.json", "{\"schema\":2,\"roles\":[{}]}", "roles[0].role|text");
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/runs/even-0-s1/result.json", dir);
    assert_int_equal(unlink(path), 0);
    free(report(EN_ENOENT));
    assert_true(fixture_has(said, path) && fixture_has(said, strerror(ENOENT)));
}

static void a_folder_without_a_comparison_is_named(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/compare.json", dir);
    assert_int_equal(unlink(path), 0);
    free(report(EN_ENOENT));
    assert_true(fixture_has(said, "compare.json|result.json"));
}

/* psd measures it. */
static void staleness_per_worker_comes_from_psd(void **state)
{
    (void)state;
    const char *const file = "runs/even-2-s1/result.json";
    fixture_set(dir, file, "staleness", json_pack("{s:f, s:[[i, i]]}", "mean", 1.0, "histogram", 1, 10));
    fixture_set(dir, file, "roles",
                json_pack("[{s:s, s:[{s:i, s:{s:f, s:[[i, i]]}}]}]", "role", "psd", "per_worker", "rank", 7,
                          "staleness", "mean", 1.0, "histogram", 3, 4444));
    free(report(EN_OK));
    char *csv = fixture_read(dir, "plots/staleness.csv");
    assert_non_null(strstr(csv, "even,ps-async,1,real,,,,,7,3,4444\n"));
    free(csv);
}

/* NCCL's bytes are unknown: the report shows no number instead of zero. */
static void unseen_bytes_are_not_none(void **state)
{
    (void)state;
    for (int seed = 1; seed <= 3; seed++) {
        char file[64];
        snprintf(file, sizeof file, "runs/even-0-s%d/result.json", seed);
        fixture_set(dir, file, "transport", json_string("nccl"));
        fixture_set(dir, file, "shm_bytes", json_integer(0));
    }
    char *text = report(EN_OK);
    const char *const table[] = {"even     ring [direct, nccl]", "1.00", " -\n"};
    in_order(text, table, 3);
    free(text);
    char *page = fixture_read(dir, "report.html"), *csv = fixture_read(dir, "plots/bytes.csv");
    assert_null(strstr(page, "socket: ring"));
    assert_non_null(strstr(page, "measured: ring."));
    const char *line = strstr(csv, "even,ring,1,real,");
    assert_non_null(line);
    assert_non_null(strstr(line, ",,,1\n"));
    assert_true(strstr(line, ",,,1\n") < strchr(line, '\n'));
    free(page);
    free(csv);
}

/* Two stages, two chunks, gpipe: 6 ms of which each stage computes 4. */
static void one_step_of_a_pipeline_is_drawn(void **state)
{
    (void)state;
    const char *const file = "runs/even-1-s1/result.json";
    free(report(EN_OK));
    char *page = fixture_read(dir, "report.html");
    assert_null(strstr(page, "id=\"pipeline\"")); /* no run has one */
    free(page);
    json_t *pipeline = json_pack("{s:s, s:i, s:s, s:i, s:[s], s:f, s:f, s:f}", "parallel", "pipeline",
                                 "stages", 2, "schedule", "gpipe", "micro_batches", 2, "cuts", "fc<1>",
                                 "bubble", 0.391, "bubble_predicted", 0.352, "bubble_ideal", 1.0 / 3);
    json_object_set_new(pipeline, "strip",
                        json_loads("[[0,0,0,0,1000],[0,0,1,1000,2000],[0,1,0,4000,5000],[0,1,1,5000,6000],"
                                   "[1,0,0,1000,2000],[1,0,1,2000,3000],[1,1,0,3000,4000],[1,1,1,4000,5000]]",
                                   0, NULL));
    fixture_set(dir, file, "pipeline", json_deep_copy(pipeline));
    free(report(EN_OK));
    page = fixture_read(dir, "report.html");
    const char *const parts[] = {
        "id=\"timeline\"",
        "id=\"pipeline\"",
        "bubble: measured 39.1 %</b>, predicted 35.2 %, ideal 33.3 %; of the step above 33.3 %.",
        "2 stages, 2 micro-batches, gpipe; cut before fc&lt;1&gt;.</p>",
        "pipeline.csv",
        "id=\"shares\""};
    in_order(page, parts, sizeof parts / sizeof *parts);
    char *csv = fixture_read(dir, "plots/pipeline.csv"), *script = fixture_read(dir, "plots/pipeline-0-1.gp");
    assert_non_null(strstr(csv, "even,ps-sync,1,real,,,,,1,backward,1,4,5\n"));
    assert_non_null(strstr(script, "\nms = 6\n"));
    assert_non_null(strstr(script, "label[2] = 'stage 1'\n"));
    assert_non_null(strstr(script, "\n2 4 5 1 1\nEOD\n")); /* stage 1, backward of chunk 1 */
    assert_non_null(strstr(page, ">B1</text>"));
    free(page);
    free(csv);
    free(script);

    json_array_append_new(json_object_get(pipeline, "strip"), json_pack("[i, i, i, i, i]", 2, 0, 0, 0, 1));
    fixture_set(dir, file, "pipeline", json_deep_copy(pipeline));
    free(report(EN_EFORMAT));
    assert_true(fixture_has(said, "/result.json: |pipeline.strip[8]|stage 2"));
    json_array_set_new(json_object_get(pipeline, "strip"), 8, json_string("F0"));
    fixture_set(dir, file, "pipeline", pipeline);
    free(report(EN_EFORMAT));
    assert_true(fixture_has(said, "pipeline.strip[8]|[stage, backward, chunk, begin, end]"));
}

/* One of each end. */
static void who_took_part_is_drawn(void **state)
{
    (void)state;
    const char *const file = "runs/even-2-s1/result.json";
    free(report(EN_OK));
    char *page = fixture_read(dir, "report.html");
    assert_null(strstr(page, "id=\"presence\"")); /* no run could have newcomers */
    free(page);
    json_t *presence =
        json_pack("[{s:i, s:f, s:f, s:s}, {s:i, s:f, s:f, s:s}, {s:i, s:f, s:f, s:s}]", "rank", 0, "from_s",
                  0.0, "to_s", 4.0, "end", "stayed", "rank", 1, "from_s", 0.0, "to_s", 1.5, "end", "lost",
                  "rank", 2, "from_s", 1.0, "to_s", 3.0, "end", "left");
    fixture_set(dir, file, "presence", json_deep_copy(presence));
    free(report(EN_OK));
    page = fixture_read(dir, "report.html");
    const char *const parts[] = {"id=\"timeline\"", "id=\"presence\"", "presence.csv", "id=\"shares\""};
    in_order(page, parts, sizeof parts / sizeof parts[0]);
    char *csv = fixture_read(dir, "plots/presence.csv"),
         *script = fixture_read(dir, "plots/presence-0-2-1.gp");
    assert_non_null(strstr(csv, "even,ps-async,1,real,,,,,0,0,4,stayed\n"));
    assert_non_null(strstr(csv, "even,ps-async,1,real,,,,,1,0,1.5,lost\n"));
    assert_non_null(strstr(csv, "even,ps-async,1,real,,,,,2,1,3,left\n"));
    assert_non_null(script);
    assert_non_null(strstr(script, "\n1 0 4 0\n2 0 1.5 2\n3 1 3 1\nEOD\n"));
    assert_non_null(strstr(script, "\nlast = 4\n"));
    free(page);
    free(csv);
    free(script);

    json_object_set_new(json_array_get(presence, 2), "to_s", json_real(0.5));
    fixture_set(dir, file, "presence", presence);
    free(report(EN_EFORMAT));
    assert_true(fixture_has(said, "presence[2]|to_s"));
}

/* Everything optional is gone; the report is thinner, not absent. */
static void a_bare_result_is_enough(void **state)
{
    (void)state;
    fixture_text(dir, "runs/even-0-s1/result.json", "{\"schema\":2}");
    fixture_text(dir, "runs/even-1-s1/result.json",
                 "{\"schema\":2,\"collective\":null,\"staleness\":null,\"roles\":null}");
    free(report(EN_OK));
    assert_string_equal(said, "");
}

static void one_run_folder_is_a_comparison_of_one(void **state)
{
    (void)state;
    snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/runs/slow-2-s1");
    char *text = report(EN_OK);
    const char *const parts[] = {"run      ps-async [shm]", "run: ps-async reached 75 % in ",
                                 "nothing to compare"};
    in_order(text, parts, 3);
    free(text);
    *strstr(dir, "/runs") = 0;
}

/* Too wide for a phone, it is broken where necessary; short names never are. */
static void a_long_name_has_lines_of_its_own(void **state)
{
    (void)state;
    const char *name = "hierarchical-with-a-name-that-nobody-has-room-for";
    char path[128];
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *index = json_load_file(path, 0, NULL), *runs = json_object_get(index, "runs"), *run;
    size_t i;
    json_object_set_new(json_array_get(json_object_get(index, "arms"), 2), "name", json_string(name));
    json_array_foreach(runs, i, run) if (strcmp(json_string_value(json_object_get(run, "arm")), "ps-async") ==
                                         0) json_object_set_new(run, "arm", json_string(name));
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
    free(report(EN_OK));
    char *page = fixture_read(dir, "report.html"), *long_name = strstr(page, "<b class=\"long\">");
    assert_non_null(long_name);
    assert_memory_equal(long_name + strlen("<b class=\"long\">"), name, strlen(name));
    assert_non_null(strstr(page, ".verdicts b.long { white-space: normal }"));
    assert_non_null(strstr(page, "<b>ring</b>"));
    free(page);
}

static void hostile_names_stay_names(void **state)
{
    (void)state;
    const char *evil = "</style><script>alert(1)</script>'`touch /tmp/x`\x1b[2J\"\\~^";
    char path[128];
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *index = json_load_file(path, 0, NULL), *runs = json_object_get(index, "runs"), *run;
    size_t i;
    json_object_set_new(json_array_get(json_object_get(index, "arms"), 2), "name", json_string(evil));
    json_object_set_new(json_array_get(json_object_get(index, "settings"), 1), "name",
                        json_string("<b>&amp;"));
    json_object_set_new(index, "plan", json_pack("{s:{s:i, s:i}}", "seeds", "even", 3, "<b>&amp;", 1));
    json_array_foreach(runs, i, run)
    {
        if (strcmp(json_string_value(json_object_get(run, "arm")), "ps-async") == 0)
            json_object_set_new(run, "arm", json_string(evil));
        if (strcmp(json_string_value(json_object_get(run, "setting")), "slow") == 0)
            json_object_set_new(run, "setting", json_string("<b>&amp;"));
    }
    json_array_append_new(json_object_get(index, "argv"), json_string("--x='<img src=x>'"));
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);

    char *text = report_with(ENI_REPORT_LATEX, EN_OK);
    assert_null(strchr(text, 0x1b));
    free(text);
    text = fixture_read(dir, "table.tex");
    assert_non_null(strstr(text, "$<$/style$>$"));
    assert_non_null(strstr(text, "\\textbackslash{}\\textasciitilde{}\\textasciicircum{} & "));
    char *page = fixture_read(dir, "report.html");
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<b>&amp;<"));
    assert_null(strchr(page, 0x1b));
    assert_non_null(strstr(page, "&lt;script&gt;alert(1)"));
    free(page);
    free(text);
    text = fixture_read(dir, "plots/settings-time.gp");
    assert_non_null(strstr(text, "\nlabel[5] = '</style><script>alert(1)…'\n"));
    free(text);
    text = fixture_read(dir, "plots/staleness-0-2.gp");
    assert_non_null(strstr(text, "\ntitle = '</style><script>alert(1)</script>''?touch /tmp/x"));
    free(text);
}

/* Every line of a CSV has as many fields as its head. None of these holds a comma in quotes. */
static size_t count_rows(const char *csv)
{
    size_t rows = 0, commas = 0, in_head = 0;
    for (; *csv != 0; csv++) {
        commas += *csv == ',';
        if (*csv != '\n') continue;
        if (rows == 0) in_head = commas;
        assert_int_equal(commas, in_head);
        commas = 0;
        rows++;
    }
    return rows;
}

/* For programs: the same claims, rules and medians. */
static void the_verdict_is_in_json(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/report.json", dir);
    json_t *all = json_load_file(path, 0, NULL);
    assert_non_null(all);
    assert_string_equal(json_string_value(json_object_get(all, "fairness")), "PASS");
    assert_int_equal(json_array_size(json_object_get(all, "table")), 6);
    assert_int_equal(json_array_size(json_object_get(all, "comparisons")), 6);
    assert_int_equal(json_object_size(json_object_get(all, "verdict")), 2);
    const json_t *comparison = json_array_get(json_object_get(all, "comparisons"), 0);
    assert_string_equal(json_string_value(json_object_get(comparison, "verdict")), "too few seeds");
    assert_true(json_is_null(json_object_get(comparison, "p_holm")) &&
                json_is_real(json_object_get(comparison, "p")));
    json_decref(all);
}

/* Characters that LaTeX would interpret are escaped. */
static void the_table_is_for_a_paper(void)
{
    char *text = fixture_read(dir, "table.tex");
    assert_non_null(text);
    assert_non_null(strstr(text, "\\begin{tabular}{llrrrrrrrr}"));
    assert_non_null(strstr(text, "\neven & ring & 468 & "));
    size_t rows = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        rows += strncmp(at, "\neven & ", 8) == 0 || strncmp(at, "\nslow & ", 8) == 0;
        const char *percent = strchr(at + 1, '%');
        if (percent != NULL) assert_int_equal(percent[-1], '\\');
    }
    assert_int_equal(rows, 6);
    free(text);
    fixture_set(dir, "compare.json", "target", json_real(0.83)); /* missed by all */
    free(report_with(ENI_REPORT_LATEX, EN_OK));
    text = fixture_read(dir, "table.tex");
    assert_non_null(strstr(text, " & $>$ 4 s {"));
    free(text);
}

static void the_numbers_come_as_csv_json_and_latex_too(void **state)
{
    (void)state;
    free(report(EN_OK));
    assert_null(fixture_read(dir, "table.csv"));
    assert_null(fixture_read(dir, "table.tex"));
    free(report_with(ENI_REPORT_CSV | ENI_REPORT_LATEX, EN_OK));
    the_verdict_is_in_json();
    the_table_is_for_a_paper();
    char *table = fixture_read(dir, "table.csv"), *runs = fixture_read(dir, "runs.csv");
    assert_non_null(table);
    assert_non_null(runs);
    fixture spec = fixture_demo();
    assert_int_equal(count_rows(table), 1 + 2 * spec.narms);
    assert_true(count_rows(runs) > count_rows(table));
    assert_non_null(strstr(table, "\neven,ring,3,"));
    assert_non_null(strstr(runs, ",emulated,1,3,,,"));
    assert_non_null(strstr(runs, ",59904,59904,96,")); /* whole numbers are exact */
    assert_null(strchr(table, '"'));
    free(table);
    free(runs);
}

/* Seven seeds in even, three in slow: only the comparisons planned before the first run are claimed. */
static void claims_are_those_of_the_plan(void **state)
{
    (void)state;
    fixture spec = fixture_demo();
    fixture_remove(dir);
    fixture_folder(dir);
    spec.nseeds[0] = 7;
    spec.nseeds[1] = 3;
    fixture_write(dir, &spec);
    fixture_set(dir, "compare.json", "plan", json_pack("{s:{s:i, s:i}}", "seeds", "even", 7, "slow", 3));
    char *text = report_with(ENI_REPORT_CSV, EN_OK);
    const char *const lines[] = {
        "ps-async  ≈ 1.7 s",
        "  yes",
        "\neven: ring reached 75 % in ",
        " s instead of 1.6 s for ps-sync (1.",
        "\nslow: ps-async reached 75 % in ",
        "too few seeds to say (3 of 7).\n",
        "3 comparisons need 7 seeds: even has 7, slow has 3 of 7 (descriptive). Least effect that "
        "could have been seen: even 1."};
    in_order(text, lines, sizeof lines / sizeof *lines);
    free(text);
    char *page = fixture_read(dir, "report.html"), *csv = fixture_read(dir, "comparisons.csv");
    const char *const parts[] = {"class=\"rank\"",
                                 "differs from the first",
                                 "<td>yes</td>",
                                 "s instead of 1.6 s for <b>ps-sync</b>",
                                 "too few seeds to say",
                                 "p (Holm)",
                                 "<td>0.0156</td><td>0.0469</td>"};
    in_order(page, parts, sizeof parts / sizeof *parts);
    assert_int_equal(count_rows(csv), 1 + 2 * 3);
    assert_non_null(strstr(csv, "\neven,ring,ps-async,7,7,0,0.015625,0.046875,1."));
    assert_non_null(strstr(csv, ",yes,ring\n"));
    assert_non_null(strstr(csv, "\nslow,ring,ps-async,3,0,3,0.25,,,too few seeds,\n"));
    free(page);
    free(csv);

    /* Planned with more seeds than it has: an unfinished study claims nothing. */
    fixture_set(dir, "compare.json", "plan",
                json_pack("{s:{s:i, s:i}, s:{s:s, s:[s, s]}}", "seeds", "even", 8, "slow", 3, "primary",
                          "setting", "even", "arms", "ring", "ps-async"));
    text = report(EN_OK);
    assert_non_null(strstr(text, "; not shown: runs failed or are missing.\n"));
    assert_non_null(strstr(
        text, "The primary comparison needs 6 seeds, then 2 other comparisons need 7 seeds: even has 8"));
    free(text);
    fixture_set(dir, "compare.json", "plan",
                json_pack("{s:{s:i, s:i}, s:{s:s, s:[s, s]}}", "seeds", "even", 7, "slow", 3, "primary",
                          "setting", "even", "arms", "ring", "ssp"));
    free(report(EN_EFORMAT));
    assert_true(fixture_has(said, "plan.primary"));
}

static void figures_come_as_png_too(void **state)
{
    (void)state;
    if (system("gnuplot -e 'set terminal pngcairo' > /dev/null 2>&1") != 0) skip();
    free(report_with(ENI_REPORT_PNG, EN_OK));
    char *png = fixture_read(dir, "plots/settings-time.png");
    if (png == NULL) fail_msg("settings-time.png is missing");
    assert_memory_equal(png, "\x89PNG", 4);
    free(png);
    char *script =
        fixture_read(dir, "plots/settings-time.gp"); /* an interval for each arm with several seeds */
    assert_non_null(strstr(script, " heads back size screen"));
    free(script);
}

/* `report --out`: all files go there, and the study's own page is not changed. */
static void a_report_goes_where_it_is_asked_to(void **state)
{
    char *text, place[64];
    size_t bytes;
    (void)state;
    free(report_with(0, EN_OK));
    fixture_text(dir, "report.html", "mine");
    fixture_folder(place);
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(
        eni_report((const char *const[]){dir}, 1, place, (eni_target){.value = 0.5}, out, ENI_REPORT_CSV),
        EN_OK);
    fclose(out);
    assert_non_null(strstr(text, "to 50 %"));
    free(text);
    static const char *const files[] = {"report.html", "table.csv", "comparisons.csv", "runs.csv",
                                        "plots/settings-time.gp"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        text = fixture_read(place, files[i]);
        if (text == NULL) fail_msg("there is no %s", files[i]);
        if (i == 0) assert_non_null(strstr(text, "target 50 %"));
        free(text);
    }
    text = fixture_read(dir, "report.html");
    assert_string_equal(text, "mine");
    free(text);
    assert_null(fixture_read(dir, "table.csv"));
    fixture_remove(place);
}

/* One sentence, and the study is unchanged. */
static void a_report_that_cannot_be_written_says_so(void **state)
{
    char place[64], path[128];
    char *text;
    size_t bytes;
    (void)state;
    free(report_with(0, EN_OK));
    fixture_text(dir, "report.html", "mine");
    fixture_folder(place);
    snprintf(path, sizeof path, "%s/report.html", place); /* a folder has its name */
    assert_int_equal(mkdir(path, 0700), 0);
    said[0] = '\0';
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(eni_report((const char *const[]){dir}, 1, place, (eni_target){.value = 0.5}, out, 0),
                     EN_EIO);
    fclose(out);
    free(text);
    assert_non_null(strstr(said, path));
    text = fixture_read(dir, "report.html");
    assert_string_equal(text, "mine");
    free(text);
    fixture_remove(place);
}

/* A regression: its loss takes the accuracy's place. */
static void a_model_without_classes_shows_its_loss(void **state)
{
    (void)state;
    fixture spec = fixture_demo();
    for (size_t i = 0; i < spec.narms; i++)
        spec.arms[i].has_no_classes = 1;
    fixture_remove(dir);
    fixture_folder(dir);
    fixture_write(dir, &spec);
    char *text = report(EN_OK);
    const char *const parts[] = {"test loss",
                                 "0.52 [0.52-0.52]",
                                 "test loss",
                                 "0.52 [0.52 to 0.52]",
                                 "ended with a test loss of 0.",
                                 "; without classes"};
    in_order(text, parts, sizeof parts / sizeof *parts);
    assert_null(strstr(text, "accuracy"));
    assert_null(strstr(text, "test acc"));
    free(text);
    text = fixture_read(dir, "report.html");
    assert_non_null(strstr(text, "test loss over the training clock"));
    assert_non_null(strstr(text, "final test loss"));
    assert_null(strstr(text, "test acc<"));
    free(text);
}

static void figures_come_as_pdf_too(void **state)
{
    (void)state;
    if (system("gnuplot -e 'set terminal pdfcairo' > /dev/null 2>&1") != 0) skip();
    free(report_with(ENI_REPORT_PDF, EN_OK));
    const char *const names[] = {"plots/legend-arms.pdf", "plots/legend-phases.pdf", "plots/steps-0.pdf",
                                 "plots/staleness-0-2.pdf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *pdf = fixture_read(dir, names[i]);
        if (pdf == NULL) fail_msg("there is no %s", names[i]);
        assert_memory_equal(pdf, "%PDF-", 5);
        free(pdf);
    }
}

#define WITH_STUDY(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {WITH_STUDY(the_table_has_the_columns_and_lines_up),
                                       WITH_STUDY(the_page_is_in_the_order_asked_for),
                                       WITH_STUDY(csv_labels_every_point),
                                       WITH_STUDY(a_malformed_index_ends_in_one_sentence),
                                       WITH_STUDY(a_malformed_run_ends_in_one_sentence),
                                       WITH_STUDY(a_missing_file_is_named),
                                       WITH_STUDY(a_folder_without_a_comparison_is_named),
                                       WITH_STUDY(staleness_per_worker_comes_from_psd),
                                       WITH_STUDY(unseen_bytes_are_not_none),
                                       WITH_STUDY(one_step_of_a_pipeline_is_drawn),
                                       WITH_STUDY(who_took_part_is_drawn),
                                       WITH_STUDY(a_bare_result_is_enough),
                                       WITH_STUDY(one_run_folder_is_a_comparison_of_one),
                                       WITH_STUDY(the_numbers_come_as_csv_json_and_latex_too),
                                       WITH_STUDY(claims_are_those_of_the_plan),
                                       WITH_STUDY(figures_come_as_pdf_too),
                                       WITH_STUDY(figures_come_as_png_too),
                                       WITH_STUDY(a_report_goes_where_it_is_asked_to),
                                       WITH_STUDY(a_report_that_cannot_be_written_says_so),
                                       WITH_STUDY(a_model_without_classes_shows_its_loss),
                                       WITH_STUDY(a_long_name_has_lines_of_its_own),
                                       WITH_STUDY(hostile_names_stay_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
