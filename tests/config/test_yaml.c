/* test_yaml.c - the file, the environment, who wins, and the ways back to text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/config.h"
#include "config/env.h"
#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "tests/heard.h"
#include "tests/mentions.h"

static const struct {
    const char *yaml, *place, *problem;
} bad[] = {
    {"lr: 0.1\nmomentun: 3\n", "f.yaml:2:1:", "nearest is momentum"},
    {"lr: 0.1\nmomentum:  nan\n", "f.yaml:2:12: momentum:", "\"nan\""},
    {"lr: 0.1\nlr: 0.2\n", "f.yaml:2:1:", "twice"},
    {"batch-size: 8\nbatch_size: 8\n", "f.yaml:2:1:", "twice"},
    {"lr:\n", "f.yaml:1:4:", "value"},
    {"lr: ~\n", "f.yaml:1:5:", "value"},
    {"lr: \"\"\n", "f.yaml:1:5: lr:", "empty"},
    {"lr: [1, 2]\n", "f.yaml:1:5:", "list"},
    {"lr: {a: 1}\n", "f.yaml:1:5:", "nested"},
    {"straggler: [[1, 2]]\n", "f.yaml:1:13:", "list"},
    {"straggler: [\"1:3\", \"x\"]\n", "f.yaml:1:20: straggler:", "\"x\""},
    {"a: &x 1\n", "f.yaml:1:1:", "key"},
    {"lr: &x 1\n", "f.yaml:1:5:", "anchors"},
    {"lr: 1\nmomentum: *x\n", "f.yaml:2:11:", "aliases"},
    {"- lr\n", "f.yaml:1:1:", "`key: value`"},
    {"lr\n", "f.yaml:1:1:", "`key: value`"},
    {"lr: 1\n--- \nlr: 2\n", "f.yaml:2:1:", "document"},
    {"lr: \"1\n", "f.yaml:", "unexpected end of stream"},
    {"lr: 1\n\tx: 2\n", "f.yaml:2:1:", ""},
    {"[a]: 1\n", "f.yaml:1:1:", "`key: value`"},
    {"config: x\n", "f.yaml:1:1:", "\"config\""},
    {"token-fd: 3\n", "f.yaml:1:1:", "\"token-fd\""},
    {"data: \"a\\0b\"\n", "f.yaml:1:7:", "zero byte"},
    {"backend: gloo\n", "f.yaml:1:10: backend:", "--backend=host"},
};

static void a_bad_file_is_one_sentence_with_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        heard h = {0};
        eni_config config;
        assert_int_equal(eni_config_init(ENI_RUN, &config), EN_OK);
        eni_log_set_sink(hear, &h);
        en_status st = eni_config_yaml(&config, bad[i].yaml, strlen(bad[i].yaml), "f.yaml");
        eni_log_set_sink(NULL, NULL);
        if (st != EN_EINVAL || h.lines != 1) fail_msg("%s: status %d, %d lines", bad[i].yaml, st, h.lines);
        if (strstr(h.text, bad[i].place) == NULL || strstr(h.text, bad[i].problem) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\" or \"%s\"", bad[i].yaml, h.text, bad[i].place, bad[i].problem);
        eni_config_fini(&config);
    }
}

static void a_good_file_is_read(void **state)
{
    (void)state;
    static const char yaml[] =
        "# a comment\nlr: 0.25\nnesterov: yes\nstraggler: [1:3, '0:2']\nbatch_size: 16\n"
        "shards: 3\nlisten: tcp://127.0.0.1:1 # of psd: skipped by run\n";
    eni_config config;
    assert_int_equal(eni_config_init(ENI_RUN, &config), EN_OK);
    assert_int_equal(eni_config_yaml(&config, yaml, strlen(yaml), "f.yaml"), EN_OK);
    assert_true(config.lr == 0.25 && config.nesterov && config.batch_size == 16 && config.shards == 3);
    assert_int_equal(config.straggler.count, 2);
    assert_string_equal(config.straggler.item[0], "1:3");
    assert_string_equal(config.listen, "tcp://127.0.0.1:5555"); /* its default */
    assert_true(eni_config_is_given(&config, "lr") && !eni_config_is_given(&config, "momentum"));
    eni_config_fini(&config);
    static const char storm[] = "storm: on\nseeds: 9\nlr: 0.25\nmodel: toy # of run: skipped by sim\n";
    assert_int_equal(eni_config_init(ENI_SIM, &config), EN_OK);
    assert_int_equal(eni_config_yaml(&config, storm, strlen(storm), "f.yaml"), EN_OK);
    assert_true(config.storm && config.storms == 9 && config.lr == 0.25 && config.seeds.count == 0);
    eni_config_fini(&config);
}

static void write_file(char path[], const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* Flags over file over environment over default. */
static void the_stronger_origin_wins(void **state)
{
    (void)state;
    char path[] = "/tmp/entrain-test-XXXXXX", flag[64];
    write_file(path, "lr: 0.3\nmomentum: 0.8\nrank: 2\nstraggler: [0:2]\n");
    snprintf(flag, sizeof flag, "--config=%s", path);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    char *argv[] = {"worker", "--lr=0.5", flag, "--straggler=3:4", "--straggler=2:4", NULL};
    eni_config config;
    assert_int_equal(eni_config_parse(ENI_WORKER, 5, argv, &config), EN_OK);
    assert_true(config.lr == 0.5 && config.momentum == 0.8);
    assert_int_equal(config.rank, 2);
    assert_int_equal(config.world_size, 4);
    assert_int_equal(config.straggler.count, 2);
    assert_string_equal(config.straggler.item[0], "3:4");
    eni_config_fini(&config);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unlink(path);
}

static void torchrun_is_understood(void **state)
{
    (void)state;
    heard h = {0};
    eni_config config;
    char *argv[] = {"worker", "--init-method=env://", NULL}, *launched[] = {"worker", "--result-fd=3", NULL};
    setenv("RANK", "3", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "node0", 1);
    setenv("MASTER_PORT", "29500", 1);
    assert_int_equal(eni_config_parse(ENI_WORKER, 2, argv, &config), EN_OK);
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.local_rank, 1);
    assert_int_equal(config.world_size, 4);
    assert_int_equal(config.local_size, 2);
    assert_string_equal(config.rendezvous, "tcp://node0:29500");
    eni_config_fini(&config);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); /* the agent listens on 29500 itself */
    assert_int_equal(eni_config_parse(ENI_WORKER, 1, argv, &config), EN_OK);
    assert_string_equal(config.rendezvous, "tcp://node0:29501");
    eni_config_fini(&config);
    assert_int_equal(eni_config_parse(ENI_EVAL, 2, (char *[]){"eval", "--init=x"}, &config), EN_OK);
    assert_int_equal(config.rank, -1); /* not a worker: not asked */
    eni_config_fini(&config);

    assert_int_equal(eni_config_parse(ENI_WORKER, 2, launched, &config), EN_OK);
    assert_int_equal(config.rank, -1);
    eni_config_fini(&config);

    eni_log_set_sink(hear, &h);
    setenv("RANK", "three", 1);
    assert_int_equal(eni_config_parse(ENI_WORKER, 1, argv, &config), EN_EINVAL);
    assert_non_null(strstr(h.text, "RANK in the environment: \"three\""));
    setenv("RANK", "3", 1);
    unsetenv("MASTER_PORT");
    assert_int_equal(eni_config_parse(ENI_WORKER, 1, argv, &config), EN_EINVAL);
    assert_true(mentions(h.text, "MASTER_ADDR|MASTER_PORT"));
    assert_int_equal(h.lines, 2);
    eni_log_set_sink(NULL, NULL);
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

static char *dump(const eni_config *config)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    assert_int_equal(eni_config_dump(config, stream, "memory"), EN_OK);
    fclose(stream);
    return text;
}

/* The text without the comments, which name the origins. */
static void strip(char *text)
{
    char *to = text;
    for (char *from = text; *from != '\0';) {
        char *end = from + strcspn(from, "\n"), *comment = strstr(from, " # ");
        char *stop = comment != NULL && comment < end ? comment : end;
        if (*from != '#') {
            memmove(to, from, (size_t)(stop - from));
            to += stop - from;
            *to++ = '\n';
        }
        from = *end == '\0' ? end : end + 1;
    }
    *to = '\0';
}

static void a_dump_reads_back(void **state)
{
    (void)state;
    char *argv[] = {"run",          "--lr=0.1",          "--straggler=1:3",    "--net=rate:1Gbit,delay:50us",
                    "--nesterov",   "--data=a \"b\" #c", "--no-shuffle",       "--peer-timeout=1500ms",
                    "--seed=12345", "--init=\xc3\xa9",   "--max_samples=99",   "--out=runs/a",
                    "--quiet",      "--overwrite",       "--resume",           "--save=b",
                    "--trace=c",    "--tensorboard",     "--checkpoint-dir=d", NULL};
    eni_config config, again;
    assert_int_equal(eni_config_parse(ENI_RUN, 19, argv, &config), EN_OK);
    char *text = dump(&config);
    assert_int_equal(eni_config_init(ENI_RUN, &again), EN_OK);
    assert_int_equal(eni_config_yaml(&again, text, strlen(text), "dump"), EN_OK);
    char *text_again = dump(&again);
    strip(text);
    strip(text_again);
    assert_string_equal(text, text_again);
    assert_string_equal(again.data, "a \"b\" #c");
    assert_true(again.out == NULL && again.save == NULL && again.resume == NULL && again.trace == NULL);
    assert_true(!again.quiet && !again.overwrite); /* what was about that call is not recorded */
    /* the schedule of a pipeline that there was none of is no reason to refuse the file, nor told */
    assert_int_equal(eni_config_is_given(&again, "pipeline"), 1);
    assert_int_equal(eni_config_resolve(&again), EN_OK);
    assert_int_equal(eni_config_is_given(&again, "pipeline"), 0);
    free(text);
    free(text_again);
    eni_config_fini(&config);
    eni_config_fini(&again);
}

/* What the launcher tells a worker makes the worker resolve to the same. */
static void a_child_comes_to_the_same(void **state)
{
    (void)state;
    char *argv[] = {"compare",   "--lr=0.1",     "--momentum=0.30000000000000004", "--straggler=1:3",
                    "--steps=7", "--no-shuffle", "--global-batch-size=64",         NULL};
    eni_config config, child;
    assert_int_equal(eni_config_parse(ENI_COMPARE, 7, argv, &config), EN_OK);
    config.rank = 1;
    config.world_size = 2;
    config.token_fd = 7;
    setenv("RANK", "5", 1); /* left over from something else: the arguments win */
    setenv("MASTER_ADDR", "elsewhere", 1);
    setenv("MASTER_PORT", "1", 1);
    char **words = eni_config_argv(&config, ENI_WORKER, "libexec/worker");
    int argc = 0;
    while (words[argc] != NULL)
        argc++;
    assert_string_equal(words[0], "libexec/worker");
    assert_int_equal(eni_config_parse(ENI_WORKER, argc, words, &child), EN_OK);
    unsetenv("RANK");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    assert_string_equal(child.rendezvous, config.rendezvous);
    assert_true(child.lr == 0.1 && child.momentum == config.momentum && child.steps == 7 && !child.shuffle);
    assert_int_equal(child.epochs, 0);
    assert_int_equal(child.batch_size, 32);
    assert_int_equal(child.rank, 1);
    assert_int_equal(child.world_size, 2);
    assert_int_equal(child.token_fd, 7);
    assert_int_equal(child.lr_scale, ENI_SCALE_LINEAR);
    assert_int_equal(child.straggler.count, 1);
    eni_free(words);
    eni_config_fini(&config);
    eni_config_fini(&child);
}

static en_status count_key(void *user, const char *key, const char *value, bool is_reported)
{
    (void)is_reported;
    char *all = user;
    snprintf(all + strlen(all), 4096 - strlen(all), "%s=%s;", key, value);
    return EN_OK;
}

/* A default that another key moves: what was given is told though it equals the table's. */
static void what_was_given_is_told(void **state)
{
    (void)state;
    char *argv[] = {"run", "--model=toy", "--data=fashion-mnist", NULL};
    eni_config config, child;
    assert_int_equal(eni_config_parse(ENI_RUN, 3, argv, &config), EN_OK);
    char **words = eni_config_argv(&config, ENI_WORKER, "worker");
    int argc = 0;
    while (words[argc] != NULL)
        argc++;
    assert_int_equal(eni_config_parse(ENI_WORKER, argc, words, &child), EN_OK);
    assert_string_equal(child.data, "fashion-mnist");
    eni_free(words);
    eni_config_fini(&child);
    eni_config_fini(&config);
}

static en_status stop_at_once(void *user, const char *key, const char *value, bool is_reported)
{
    (void)is_reported;
    (void)user;
    (void)key;
    (void)value;
    return EN_EMISMATCH;
}

static void keys_that_must_match(void **state)
{
    (void)state;
    char all[4096] = "";
    eni_config config;
    assert_int_equal(eni_config_init(ENI_WORKER, &config), EN_OK);
    assert_int_equal(eni_config_each_match(&config, count_key, all), EN_OK);
    static const char *const in[] = {"lr=0.01;",    "momentum=0.5;", "model=convnet;", "batch-size=64;",
                                     "shuffle=on;", "seed=1;",       "nesterov=off;",  "allreduce=auto;"};
    static const char *const out[] = {";rank=", ";out=", ";device=", ";save=", ";server=", ";local-rank="};
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        assert_non_null(strstr(all, in[i]));
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        assert_null(strstr(all, out[i]));
    assert_int_equal(eni_config_each_match(&config, stop_at_once, NULL), EN_EMISMATCH);
    eni_config_fini(&config);
}

static void a_copy_is_its_own(void **state)
{
    (void)state;
    eni_config config, copy;
    assert_int_equal(eni_config_init(ENI_RUN, &config), EN_OK);
    assert_int_equal(eni_config_set(&config, "straggler", "1:2", "here"), EN_OK);
    assert_int_equal(eni_config_copy(&config, &copy), EN_OK);
    assert_int_equal(eni_config_set(&copy, "model", "mlp", "here"), EN_OK);
    assert_string_equal(config.model, "convnet");
    assert_ptr_not_equal(copy.straggler.item, config.straggler.item);
    eni_config_fini(&config);
    assert_string_equal(copy.straggler.item[0], "1:2");
    eni_config_fini(&copy);
    eni_config_fini(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_file_is_one_sentence_with_its_place),
        cmocka_unit_test(a_good_file_is_read),
        cmocka_unit_test(the_stronger_origin_wins),
        cmocka_unit_test(torchrun_is_understood),
        cmocka_unit_test(a_dump_reads_back),
        cmocka_unit_test(a_child_comes_to_the_same),
        cmocka_unit_test(what_was_given_is_told),
        cmocka_unit_test(keys_that_must_match),
        cmocka_unit_test(a_copy_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
