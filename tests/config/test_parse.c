/* test_parse.c - the command line: what it sets, what it refuses, and in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"
#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "report/may_differ.h"
#include "tests/heard.h"
#include "tests/mentions.h"

enum { WORDS = 16 };

/* Parses blank-separated words. */
static en_status parse(eni_program program, const char *words, eni_config *config, heard *h)
{
    char copy[512];
    char *argv[WORDS + 1] = {"program"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL && argc < WORDS; word = strtok(NULL, " "))
        argv[argc++] = word;
    *h = (heard){0};
    eni_log_set_sink(hear, h);
    en_status st = eni_config_parse(program, argc, argv, config);
    eni_log_set_sink(NULL, NULL);
    return st;
}

/* Value, place and remedy: all of them must stand in one line. */
static const struct {
    eni_program program;
    const char *words;
    const char *part[3];
} bad[] = {
    {ENI_RUN, "--lr=fast", {"--lr:", "\"fast\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=nan", {"--lr:", "\"nan\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=inf", {"--lr:", "\"inf\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=1e400", {"--lr:", "\"1e400\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=0x1p3", {"--lr:", "\"0x1p3\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=-0.1", {"--lr:", "\"-0.1\"", "0 to 1000000"}},
    {ENI_RUN, "--lr=", {"--lr:", "is empty", "0 to 1000000"}},
    {ENI_RUN, "--lr", {"--lr", "value", "--lr=REAL"}},
    {ENI_RUN, "--lr --momentum=0", {"--lr", "value", "--lr=REAL"}},
    {ENI_RUN, "--bucket-cap-mb=much", {"--bucket-cap-mb:", "\"much\"", "0.001 to 4096, or auto"}},
    {ENI_RUN, "--momentum=1.5", {"--momentum:", "\"1.5\"", "from 0 to 1"}},
    {ENI_RUN, "--batch-size=0", {"--batch-size:", "\"0\"", "from 1 to 16777216"}},
    {ENI_RUN, "--batch_size=64.5", {"--batch-size:", "\"64.5\"", "from 1"}},
    {ENI_RUN, "--steps=-1", {"--steps:", "\"-1\"", "from 1 to 4000000000000000000"}},
    {ENI_RUN,
     "--steps=99999999999999999999",
     {"--steps:", "\"99999999999999999999\"", "from 1 to 4000000000000000000"}},
    {ENI_RUN, "--epochs=0", {"--epochs:", "\"0\"", "from 1"}},
    {ENI_COMPARE, "--arm=a!=ring", {"--arm:", "40 letters", "tuned=ring:lr=0.1"}},
    {ENI_COMPARE, "--arm=ring,lr=0.1", {"--arm:", "colon", "ssp:bound=3"}},
    {ENI_RUN, "--seed=abc", {"--seed:", "\"abc\"", "from 0 to 9000000000000000000"}},
    {ENI_RUN, "-n 0", {"--workers:", "\"0\"", "from 1 to 1024"}},
    {ENI_RUN, "--overlap=maybe", {"--overlap:", "\"maybe\"", "on or off"}},
    {ENI_RUN, "--no-overlap=on", {"--no-overlap=on", "\"on\"", "--overlap=off"}},
    {ENI_RUN, "--no-lr", {"--no-lr", "entrain run", "--help"}},
    {ENI_RUN, "--allreduce=rinng", {"--allreduce:", "nearest is ring", "auto|direct|ring|naive"}},
    {ENI_RUN, "--backend=gloo", {"--backend:", "\"gloo\"", "--backend=host"}},
    {ENI_RUN, "--backend=mpi", {"--backend:", "\"mpi\"", "--backend=host"}},
    {ENI_RUN, "--device=gpu", {"--device:", "\"gpu\"", "--device=cuda"}},
    {ENI_RUN, "--device=cuda:x", {"--device:", "\"cuda:x\"", "cuda:INDEX"}},
    {ENI_RUN, "--device=tpu", {"--device:", "\"tpu\"", "auto, ref, cpu, cuda"}},
    {ENI_RUN, "--device=cpu:0,cuda:0", {"--device:", "\"cpu:0,cuda:0\"", "one kind"}},
    {ENI_RUN, "--clip-norm=2", {"--clip-norm:", "\"2\"", "behind --"}},
    {ENI_RUN, "--device=cpu:0,cpu:0", {"--device:", "\"cpu:0,cpu:0\"", "once"}},
    {ENI_RUN,
     "--device=cuda:0,cuda:1",
     {"--device:", "\"cuda:0,cuda:1\"", "--parallel=data, --parallel=model or --parallel=pipeline"}},
    {ENI_RUN, "--device=cuda:all", {"--device:", "\"cuda:all\"", "--parallel=pipeline"}},
    {ENI_EVAL, "--init=a --device=cpu:0,cpu:1", {"--device:", "\"cpu:0,cpu:1\"", "entrain eval"}},
    {ENI_CHECK, "--device=cuda:0,cuda:1", {"--device:", "\"cuda:0,cuda:1\"", "entrain check"}},
    {ENI_ADVISE, "--net=delay:1us --device=cpu:0,cpu:1", {"--device:", "\"cpu:0,cpu:1\"", "entrain advise"}},
    {ENI_RUN, "--stages=2", {"--stages:", "\"2\"", "--parallel=pipeline"}},
    {ENI_RUN, "--split=a", {"--split:", "\"a\"", "--parallel=pipeline"}},
    {ENI_WORKER, "--split=a", {"--split:", "\"a\"", "--parallel=pipeline"}},
    {ENI_RUN, "--stages=65", {"--stages:", "\"65\"", "from 1 to 64"}},
    {ENI_RUN, "--split=a,,b", {"--split:", "\"a,,b\"", "NAME,.."}},
    {ENI_RUN, "--split=a,b,", {"--split:", "\"a,b,\"", "NAME,.."}},
    {ENI_RUN, "--split=ab,b,b", {"--split:", "\"ab,b,b\"", "once"}},
    {ENI_RUN,
     "--parallel=data --device=cpu:0,cpu:1 --stages=2",
     {"--stages:", "\"2\"|--parallel=data", "--parallel=pipeline"}},
    {ENI_RUN, "--parallel=pipeline", {"--parallel:", "\"pipeline\"", "--stages=2"}},
    {ENI_RUN, "--parallel=model --device=cuda", {"--parallel:", "\"model\"", "--stages=2"}},
    {ENI_RUN, "--parallel=tensor", {"--parallel:", "\"tensor\"", "none|data|model|pipeline"}},
    {ENI_RUN, "--parallel=model --stages=1", {"--parallel:", "\"model\"", "--stages=2"}},
    {ENI_RUN, "--parallel=model --device=cpu:0", {"--parallel:", "\"model\"", "--stages=2"}},
    {ENI_RUN, "--parallel=pipeline --stages=3 --split=a", {"--stages:", "\"3\"", "--split=a"}},
    {ENI_RUN,
     "--parallel=pipeline --stages=3 --device=ref:0,ref:1",
     {"--device:", "\"ref:0,ref:1\"", "2 devices for 3 stages|--device=ref "}},
    {ENI_RUN,
     "--parallel=pipeline --split=a,b --device=cuda:1",
     {"--device:", "\"cuda:1\"", "1 device for 3 stages"}},
    {ENI_RUN,
     "--parallel=model --stages=2 --micro-batches=2",
     {"--micro-batches:", "\"2\"", "--parallel=pipeline"}},
    {ENI_RUN,
     "--parallel=data --device=cpu:0,cpu:1 --micro-batches=2",
     {"--micro-batches:", "\"2\"", "--parallel=data"}},
    {ENI_RUN, "--parallel=data --device=cpu", {"--parallel:", "\"data\"", "--device=cpu:0,cpu:1"}},
    {ENI_RUN,
     "--parallel=data --device=cpu:0,cpu:1 -b 1",
     {"--device:", "2 devices for a batch of 1", "--batch-size"}},
    {ENI_RUN, "--pipeline=gpipe", {"--pipeline:", "\"gpipe\"", "--parallel=pipeline"}},
    {ENI_RUN, "--pipeline=1f1b", {"--pipeline:", "\"1f1b\"", "--parallel=pipeline"}},
    {ENI_RUN, "--micro-batches=9 -b 8", {"--micro-batches:", "\"9\"", " 8 samples"}},
    {ENI_RUN, "--micro-batches=9 --global-batch-size=16 -n 2", {"--micro-batches:", "\"9\"", " 8 samples"}},
    {ENI_SCALE,
     "-n 1,2 --global-batch-size=80 --micro-batches=41",
     {"--micro-batches:", "\"41\"", " 40 samples"}},
    {ENI_RUN, "--micro-batches=0", {"--micro-batches:", "\"0\"", "from 1 to 1024"}},
    {ENI_RUN, "--precision=fp16 --micro-batches=2", {"--precision:", "\"fp16\"", "--micro-batches"}},
    {ENI_RUN, "--precision=fp16 --parallel=pipeline --stages=2", {"--precision:", "\"fp16\"", "--parallel"}},
    {ENI_RUN, "--gpu-sharing --device=cpu", {"--gpu-sharing", "--device=cpu", "--device=cuda"}},
    {ENI_RUN, "--data-on-device=on --device=cpu", {"--data-on-device", "--device=cpu", "--device=cuda"}},
    {ENI_RUN, "--data-on-device=on --device=cuda --resize=28", {"--data-on-device", "--resize", "omit one"}},
    {ENI_RUN,
     "--data-on-device=on --device=cuda --micro-batches=2",
     {"--data-on-device", "--micro-batches", "omit one"}},
    {ENI_COMPARE, "--arm=ring --stages=2", {"--stages:", "\"2\"", "--parallel=pipeline"}},
    {ENI_RUN, "--learnin-rate=1", {"--learnin-rate=1", "entrain run", "--help"}},
    {ENI_RUN, "--momentun=1", {"--momentun=1", "entrain run", "nearest is --momentum"}},
    {ENI_RUN, "--batchsize=1", {"--batchsize=1", "entrain run", "nearest is --batch-size"}},
    {ENI_RUN, "--bath_size=1", {"--bath_size=1", "entrain run", "nearest is --batch-size"}},
    {ENI_RUN, "--n=3", {"--n=3", "entrain run", "--help"}},
    {ENI_RUN, "-z", {"-z", "entrain run", "--help"}},
    {ENI_SIM, "--server=tcp://a:1", {"--server=tcp://a:1", "entrain sim", "worker"}},
    {ENI_SIM, "--lrate=3", {"--lrate=3", "entrain sim", "nearest is --lr"}},
    {ENI_SIM, "--promise=all", {"--promise:", "\"all\"", "ends"}},
    {ENI_SIM, "--seeds=1,2", {"--seeds:", "\"1,2\"", "from 1"}},
    {ENI_SIM, "--straggler=4:3", {"--straggler:", "\"4:3\"", "0 to 3"}},
    {ENI_RUN, "--lrate=3", {"--lrate=3", "entrain run", "nearest is --lr,"}},
    {ENI_RUN, "--rtace=x", {"--rtace=x", "entrain run", "--help"}},
    {ENI_RUN, "ring", {"\"ring\"", "entrain run", "--key=value"}},
    {ENI_RUN, "--strategy=:bound=3", {"--strategy:", "\":bound=3\"", "NAME or ./FILE.so"}},
    {ENI_RUN, "--strategy=ssp:=3", {"--strategy:", "\"ssp:=3\"", "KEY=VALUE"}},
    {ENI_RUN, "--strategy=ssp:bound=", {"--strategy:", "\"ssp:bound=\"", "KEY=VALUE"}},
    {ENI_RUN, "--strategy=ssp:bound=3,,", {"--strategy:", "\"ssp:bound=3,,\"", "KEY=VALUE"}},
    {ENI_RUN, "--bn-stats=sync", {"--bn-stats:", "\"sync\"", "rank0, mean, or recompute:N"}},
    {ENI_RUN, "--bn-stats=recompute:0", {"--bn-stats:", "\"recompute:0\"", "rank0, mean, or recompute:N"}},
    {ENI_RUN, "--straggler=1", {"--straggler:", "\"1\"", "RANK:FACTOR"}},
    {ENI_RUN, "--straggler=1:0.5", {"--straggler:", "\"1:0.5\"", "1 to 1000"}},
    {ENI_RUN, "--straggler=1:nan", {"--straggler:", "\"1:nan\"", "1 to 1000"}},
    {ENI_RUN, "--straggler=2:3", {"--straggler:", "\"2:3\"", "0 to 1"}},
    {ENI_RUN, "--straggler=1:2,1:3", {"--straggler:", "\"1:3\"", "rank 1|once"}},
    {ENI_COMPARE, "--arm=ring --seeds=1,2,01", {"--seeds:", "\"01\"", "once"}},
    {ENI_ADVISE, "--straggler=1:3", {"--straggler=1:3", "entrain advise", "entrain run"}},
    {ENI_ADVISE, "--allreduce=naive", {"--allreduce=naive", "entrain advise", "entrain scale"}},
    {ENI_ADVISE, "--shards=3", {"--shards=3", "entrain advise", "entrain scale"}},
    {ENI_COMPARE, "--local-size=1", {"--local-size=1", "entrain compare", "worker"}},
    {ENI_RUN, "--net=fast", {"--net:", "\"fast\"", "rate:200MB"}},
    {ENI_RUN, "--net=rate:0MB", {"--net:", "\"rate:0MB\"", "rate:RATE,delay:TIME"}},
    {ENI_RUN, "--net=rate:1MB,rate:2MB", {"--net:", "\"rate:1MB,rate:2MB\"", "rate:RATE"}},
    {ENI_RUN, "--peer-timeout=0", {"--peer-timeout:", "\"0\"", "from 0.1s to 86400s"}},
    {ENI_RUN, "--peer-timeout=5x", {"--peer-timeout:", "\"5x\"", "from 0.1s"}},
    {ENI_RUN, "--global-batch-size=65 -n 2", {"--global-batch-size:", "\"65\"", "multiple"}},
    {ENI_RUN, "--global-batch-size=64 --batch=64", {"--global-batch-size:", "\"64\"", "--batch-size 64"}},
    {ENI_RUN, "--lr-schedule=step", {"--lr-schedule:", "\"step\"", "--lr-step"}},
    {ENI_RUN, "--nesterov --momentum=0", {"--nesterov:", "--momentum", "--no-nesterov"}},
    {ENI_RUN, "--config=/nonexistent/a.yaml", {"--config:", "\"/nonexistent/a.yaml\"", "YAML"}},
    {ENI_PSD, "--lr=1", {"--lr=1", " psd", "entrain run"}},
    {ENI_PSD, "--listen=127.0.0.1:5555", {"--listen:", "\"127.0.0.1:5555\"", "tcp://HOST:PORT"}},
    {ENI_PSD, "--listen=tcp://*:70000", {"--listen:", "\"tcp://*:70000\"", "0 to 65535"}},
    {ENI_PSD, "--listen=tcp://::1:5555", {"--listen:", "\"tcp://::1:5555\"", "[::1]"}},
    {ENI_WORKER, "--arm=ring", {"--arm=ring", " worker", "entrain compare"}},
    {ENI_WORKER, "--rank=2 --world-size=2", {"--rank:", "\"2\"", "--world-size 2"}},
    {ENI_WORKER, "--init-method=file://x", {"--rendezvous:", "\"file://x\"", "tcp://HOST:PORT"}},
    {ENI_WORKER, "--rendezvous=env://", {"--rendezvous:", "env://", "MASTER_ADDR"}},
    {ENI_RUN, "--node-rank=1", {"--node-rank", "host", "--nnodes=N"}},
    {ENI_RUN, "--master-addr=a", {"--master-addr", "host", "--nnodes=N"}},
    {ENI_RUN, "--nnodes=2 --node-rank=2", {"--node-rank:", "\"2\"", "--nnodes 2"}},
    {ENI_COMPARE, "--nnodes=2 --arm=ring", {"--nnodes:", "entrain compare", "`entrain run`"}},
    {ENI_SCALE, "--nnodes=2", {"--nnodes:", "entrain scale", "`entrain run`"}},
    {ENI_EVAL, "--init=x --nnodes=2", {"--nnodes:", "entrain eval", "`entrain run`"}},
    {ENI_CHECK, "--init-method=file:///x", {"--init-method:", "\"file:///x\"", "tcp://HOST:PORT"}},
    {ENI_RUN,
     "--nnodes=2 --init-method=tcp://a:1 --master-port=2",
     {"--init-method:", "\"tcp://a:1\"", "--master-port"}},
    {ENI_RUN, "--nnodes=2 -n 2 --straggler=4:3", {"--straggler:", "\"4:3\"", "0 to 3"}},
    {ENI_COMPARE, "--seeds=1,,2", {"--seeds:", "\"\"", "at least one"}},
    {ENI_COMPARE, "--seeds=1,two", {"--seeds:", "\"two\"", "as 1,2,3"}},
    {ENI_COMPARE, "--settings=even,slwo", {"--settings:", "\"slwo\"", "even, slow"}},
    {ENI_COMPARE, "--primary=even:1", {"--primary:", "\"even:1\"", "as even:1:2"}},
    {ENI_COMPARE, "--primary=even:2:2", {"--primary:", "\"even:2:2\"", "even:1:2"}},
    {ENI_COMPARE, "--primary=even:0:1", {"--primary:", "\"even:0:1\"", "from 1"}},
    {ENI_COMPARE, "--strategies=ring,ssp:bound=3", {"--strategies:", "\"ssp:bound=3\"", "--arm=NAME"}},
    {ENI_COMPARE, "--target=101", {"--target:", "\"101\"", "from 0 to 100"}},
    {ENI_COMPARE, "--target=loss:", {"--target:", "\"loss:\"", "loss:VALUE"}},
    {ENI_COMPARE, "--target=loss:nan", {"--target:", "\"loss:nan\"", "loss:VALUE"}},
    {ENI_COMPARE, "--set.width=3", {"--set:", "\"width=3\"", "behind --"}},
    {ENI_RUN, "--set==3 -- program", {"--set:", "\"=3\"", "--set.NAME=VALUE"}},
    {ENI_RUN, "--set.width -- program", {"--set:", "\"width\"", "--set.NAME=VALUE"}},
    {ENI_WORKER, "--set.a=3", {"--set.a=3", "not a flag of worker", "entrain compare"}},
    {ENI_EVAL, "", {"entrain eval", "weights", "--init=FILE"}},
    {ENI_REPORT, "", {"entrain report", "FOLDER", "FOLDER"}},
};

static void a_bad_line_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        heard h;
        eni_config config;
        en_status st = parse(bad[i].program, bad[i].words, &config, &h);
        for (int p = 0; p < 3; p++)
            if (!mentions(h.text, bad[i].part[p]))
                fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].words, h.text, bad[i].part[p]);
        if (h.lines != 1) fail_msg("%s: %d lines", bad[i].words, h.lines);
        if (st != EN_EINVAL && st != EN_ENOENT) fail_msg("%s: status %d", bad[i].words, st);
        assert_null(strchr(h.text, '\n'));
    }
    printf("%zu bad command lines, each refused in one sentence\n", sizeof bad / sizeof bad[0]);
}

static void forms_of_a_flag(void **state)
{
    (void)state;
    static const char *const forms[] = {"--batch-size=32",
                                        "--batch_size=32",
                                        "--batch-size 32",
                                        "--batch=32",
                                        "--batch_size 32",
                                        "-b 32",
                                        "-b32",
                                        "-b=32",
                                        "--batch=16 -b 32",
                                        "--global-batch-size=64"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        heard h;
        eni_config config;
        assert_int_equal(parse(ENI_RUN, forms[i], &config, &h), EN_OK);
        assert_int_equal(config.batch_size, 32);
        assert_int_equal(h.lines, 0);
        eni_config_fini(&config);
    }
}

static void devices_of_a_rank(void **state)
{
    static const struct {
        const char *words;
        int n;
    } good[] = {
        {"", 1},
        {"--device=cpu:0", 1},
        {"--device=cuda:3 --micro-batches=64", 1},
        {"--parallel=none --device=cuda", 1},
        {"--parallel=pipeline --stages=3", 3},
        {"--parallel=pipeline --split=layer2.0,layer3.0,fc --micro-batches=8 --pipeline=gpipe", 4},
        {"--parallel=pipeline --split=net2 --stages=2 --device=cpu:0,cpu:1 --pipeline=1f1b", 2},
        {"--parallel=model --device=ref:0,ref:1,ref:2 --micro-batches=1", 3},
        {"--parallel=model --stages=2 --device=cuda --gpu-sharing", 2},
        {"--parallel=pipeline --stages=2 --device=cuda:all", 2},
        {"--parallel=pipeline --device=cuda:all", 0},
        {"--parallel=pipeline --stages=2 --precision=bf16 --device=cuda", 2},
        {"--parallel=data --device=cuda", 0},
        {"--parallel=data --device=cuda:all", 0},
        {"--parallel=data --device=cuda:1", 1},
        {"--parallel=data --device=cpu:0,cpu:1 -b 2", 2},
        {"--parallel=data --device=cpu:0+cpu:1 -b 2", 2}, /* as in an arm */
        {"--parallel=pipeline --split=a+b", 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (int is_worker = 0; is_worker < 2; is_worker++) {
            heard h;
            eni_config config;
            const eni_program program = is_worker ? ENI_WORKER : ENI_RUN;
            if (parse(program, good[i].words, &config, &h) != EN_OK)
                fail_msg("%s: %s", good[i].words, h.text);
            if (eni_config_ndevices(&config) != good[i].n)
                fail_msg("%s: %d devices, not %d", good[i].words, eni_config_ndevices(&config), good[i].n);
            eni_config_fini(&config);
        }
    heard h;
    eni_config config; /* 40 for each of two workers */
    assert_int_equal(parse(ENI_SCALE, "-n 1,2 --global-batch-size=80 --micro-batches=40", &config, &h),
                     EN_OK);
    eni_config_fini(&config);
}

static void booleans(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    assert_int_equal(parse(ENI_RUN, "--nesterov --no-shuffle --overlap=off --drop_last=on", &config, &h),
                     EN_OK);
    assert_true(config.nesterov && !config.shuffle && !config.overlap && config.drop_last);
    eni_config_fini(&config);
    assert_int_equal(parse(ENI_RUN, "--no_overlap --no-nesterov --shuffle", &config, &h), EN_OK);
    assert_true(!config.nesterov && config.shuffle && !config.overlap);
    eni_config_fini(&config);
}

static void defaults_depend_on_the_program(void **state)
{
    (void)state;
    heard h;
    eni_config run, compare, psd, sim;
    assert_int_equal(parse(ENI_RUN, "", &run, &h), EN_OK);
    assert_int_equal(parse(ENI_COMPARE, "", &compare, &h), EN_OK);
    assert_int_equal(parse(ENI_PSD, "", &psd, &h), EN_OK);
    assert_int_equal(parse(ENI_SIM, "-n 3 --seeds=7 --local_size 0 --storm=off", &sim, &h), EN_OK);
    assert_true(sim.workers == 3 && sim.storms == 7 && sim.seeds.count == 0 && sim.steps == 100);
    assert_true(sim.momentum == 0 && sim.local_size == 0 && sim.promise == ENI_PROMISES_AUTO && !sim.storm);
    eni_config_fini(&sim);
    assert_int_equal(run.lr_scale, ENI_SCALE_NONE);
    assert_int_equal(compare.lr_scale, ENI_SCALE_LINEAR);
    assert_string_equal(run.strategy, "ring");
    assert_string_equal(psd.strategy, "ps-sync");
    assert_int_equal(run.epochs, 1);
    assert_int_equal(run.peer_timeout_ns, 5000000000);
    assert_int_equal(run.rank, -1);
    assert_true(run.shuffle && run.overlap && !run.drop_last);
    eni_config_fini(&run);
    eni_config_fini(&compare);
    eni_config_fini(&psd);
}

static void keys_that_follow_from_others(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    assert_int_equal(parse(ENI_RUN, "--steps=10 --model=toy --strategy=solo --resume", &config, &h), EN_OK);
    assert_int_equal(config.epochs, 0);
    assert_string_equal(config.data, "synthetic");
    assert_int_equal(config.workers, 1);
    assert_string_equal(config.resume, "auto");
    eni_config_fini(&config);
    assert_int_equal(parse(ENI_RUN, "--strategy=solo -n 3 --model=toy --data=mnist", &config, &h), EN_OK);
    assert_int_equal(config.workers, 3);
    assert_string_equal(config.data, "mnist");
    eni_config_fini(&config);
}

static void lists_collect(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    assert_int_equal(parse(ENI_COMPARE,
                           "--arm=ring --arm ssp:bound=2,lr=0.005 --seeds=3,4 -n 4 --straggler=1:3,2:1.5",
                           &config, &h),
                     EN_OK);
    assert_int_equal(config.arm.count, 2);
    assert_string_equal(config.arm.item[1], "ssp:bound=2,lr=0.005");
    assert_int_equal(config.seeds.count, 2);
    assert_int_equal(eni_config_seed(&config, 1), 4);
    assert_int_equal(config.straggler.count, 2);
    eni_config_fini(&config);
}

static void an_arm_is_a_strategy_and_keys(void **state)
{
    (void)state;
    heard h;
    eni_config base, run;
    assert_int_equal(parse(ENI_COMPARE, "--lr=0.1 --momentum=0.9", &base, &h), EN_OK);
    assert_int_equal(eni_config_arm(&base, "./mine/x.so:bound=2,lr=0.005,round=on,batch_size=8", &run),
                     EN_OK);
    assert_string_equal(run.strategy, "./mine/x.so:bound=2,round=on");
    assert_true(run.lr == 0.005 && run.momentum == 0.9 && run.batch_size == 8);
    assert_int_equal(run.lr_scale, ENI_SCALE_LINEAR);
    assert_int_equal(run.program, ENI_RUN);
    eni_config_fini(&run);
    assert_int_equal(eni_config_arm(&base, "ring:lr=0.2", &run), EN_OK);
    assert_string_equal(run.strategy, "ring");
    assert_true(base.lr == 0.1 && run.lr == 0.2);
    eni_config_fini(&run);
    eni_log_set_sink(hear, &h);
    h.lines = 0;
    assert_int_equal(eni_config_arm(&base, "ring:lr=no", &run), EN_EINVAL);
    assert_int_equal(h.lines, 1);
    assert_non_null(strstr(h.text, "--arm=ring:lr=no: lr: \"no\""));
    eni_log_set_sink(NULL, NULL);
    eni_config_fini(&base);
}

static bool is_reported(const eni_config *run, eni_program program, const char *word)
{
    bool found = false;
    char **argv = eni_config_argv(run, program, "program");
    for (int i = 1; argv[i] != NULL; i++)
        found = found || strcmp(argv[i], word) == 0;
    eni_free(argv);
    return found;
}

/* An arm's are added to the study's, of which it may replace one. The study's own defaults are told to a program. */
static void a_program_has_settings_of_its_own(void **state)
{
    (void)state;
    heard h;
    eni_config base, run;
    assert_int_equal(parse(ENI_COMPARE,
                           "--set.width=32 --set depth=2 --set.width=a=b -- python3 train.py --lr=1", &base,
                           &h),
                     EN_OK);
    assert_int_equal(base.command.count, 3);
    assert_string_equal(base.command.item[2], "--lr=1");
    assert_int_equal(base.set.count, 2);
    assert_string_equal(base.set.item[0], "width=a=b");
    assert_string_equal(base.set.item[1], "depth=2");
    assert_int_equal(eni_config_become(&base, ENI_RUN), EN_OK);
    assert_int_equal(eni_config_arm(&base, "x=ring:set.depth=3,lr=0.5", &run), EN_OK);
    assert_string_equal(run.strategy, "ring");
    static const char *const told[] = {"--set=width=a=b", "--set=depth=3", "--lr=0.5", "--lr-scale=linear",
                                       "--target=75"};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (!is_reported(&run, ENI_RANK, told[i])) fail_msg("%s is not told", told[i]);
    assert_false(is_reported(&run, ENI_RANK, "--epochs=1")); /* the program's own may be others */
    eni_config_fini(&run);
    eni_config_fini(&base);
}

static void help_shows_the_keys_of_its_program(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes;
    for (int p = 0; p < ENI_PROGRAMS; p++) {
        FILE *stream = open_memstream(&text, &bytes);
        eni_config_help((eni_program)p, false, stream);
        fclose(stream);
        int lines = 0;
        for (const char *c = text; *c != '\0'; c++)
            lines += *c == '\n';
        assert_in_range(lines, 3, 64); /* about a page */
        free(text);
        stream = open_memstream(&text, &bytes);
        eni_config_help((eni_program)p, true, stream);
        fclose(stream);
        assert_non_null(strstr(text, eni_program_name((eni_program)p)));
        assert_true((strstr(text, "--lr=REAL") != NULL) ==
                    (p == ENI_RUN || p == ENI_COMPARE || p == ENI_WORKER || p == ENI_ADVISE ||
                     p == ENI_RANK || p == ENI_SCALE || p == ENI_SIM));
        assert_null(strstr(text, "token-fd"));
        for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
            assert_true(strlen(line) <= 100);
        free(text);
    }
}

static void help_needs_no_complete_line(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    assert_int_equal(parse(ENI_WORKER, "--strategy=ssp:bound=3 --lr-schedule=step --help", &config, &h),
                     EN_OK);
    assert_string_equal(config.help, "page");
    assert_string_equal(config.strategy, "ssp:bound=3");
    eni_config_fini(&config);
    assert_int_equal(parse(ENI_REPORT, "-h", &config, &h), EN_OK);
    eni_config_fini(&config);
}

/* ---- what a command is given reaches its runs ---- */

/* A value that is no key's default. */
static const char *another_value(const eni_key *key)
{
    static const char *const texts[][2] = {
        {"model", "mlp"},          {"data", "mnist"},    {"data-dir", "/d"},
        {"init", "/w.st"},         {"device", "cpu"},    {"net", "rate:1MB,delay:1ms"},
        {"straggler", "0:12"},     {"momentum", "0.25"}, {"lr-schedule", "cosine"},
        {"optimizer", "other"},    {"beta1", "0.25"},    {"beta2", "0.25"},
        {"lr-milestones", "6,8"},  {"bn-stats", "mean"}, {"augment", "crop:32:4,flip"},
        {"normalize", "0.5:0.25"}, {"split", "net2"},    {"target", "loss:12"},
        {"set", "width=12"}};
    static char word[32];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(texts[i][0], key->name) == 0) return texts[i][1];
    switch (key->type) {
    case ENI_KEY_BOOL: return strcmp(key->fallback, "on") == 0 ? "off" : "on";
    case ENI_KEY_INT:
    case ENI_KEY_REAL: return "12";
    case ENI_KEY_AMOUNT: return "12epochs";
    case ENI_KEY_TIME: return "12s";
    case ENI_KEY_CHOICE:
        snprintf(word, sizeof word, "%s", strchr(key->words, '|') + 1);
        word[strcspn(word, "|")] = '\0';
        return word;
    default: fail_msg("%s: give this test a value for it", key->name); return NULL;
    }
}

/* The flags without which a key is refused. */
static const char *what_it_needs(const char *key)
{
    static const char *const needs[][2] = {{"beta1", "--optimizer=adam "},
                                           {"beta2", "--optimizer=adam "},
                                           {"eps", "--optimizer=adam "},
                                           {"lr-milestones", "--lr-schedule=multistep "},
                                           {"lr-step", "--lr-schedule=step "},
                                           {"lr-gamma", "--lr-schedule=step --lr-step=9 "},
                                           {"data-on-device", "--device=cuda "},
                                           {"parallel", "--device=cuda "},
                                           {"stages", "--parallel=model "},
                                           {"split", "--parallel=model "},
                                           {"pipeline", "--parallel=pipeline --stages=2 "},
                                           {"gpu-sharing", "--device=cuda "}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (strcmp(needs[i][0], key) == 0) return needs[i][1];
    return "";
}

/* What a command is given, the processes of each of its runs are told. */
static int tell_all(eni_program program)
{
    int told = 0;
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        char flag[128], command[192];
        heard h;
        eni_config config, run;
        const uint32_t others = ENI_KEY_HIDDEN | ENI_KEY_FLAG_ONLY;
        if (!eni_key_applies(key, program) || !eni_key_applies(key, ENI_RUN) || (key->flags & others) != 0 ||
            eni_who_may_differ(key->name) == ENI_ANYBODY)
            continue;
        snprintf(flag, sizeof flag, "--%s=%s", key->name, another_value(key));
        snprintf(command, sizeof command, "%s%s%s", what_it_needs(key->name), flag,
                 strcmp(key->name, "set") == 0 || strcmp(key->name, "clip-norm") == 0 ? " -- program" : "");
        assert_int_equal(parse(program, command, &config, &h), EN_OK);
        assert_int_equal(eni_config_arm(&config, "ring", &run), EN_OK);
        const bool is_the_launchers =
            strcmp(key->name, "workers") == 0 || strcmp(key->name, "server-restarts") == 0;
        const bool is_there = eni_key_applies(key, ENI_WORKER) ? is_reported(&run, ENI_WORKER, flag)
                              : eni_key_applies(key, ENI_RANK) ? is_reported(&run, ENI_RANK, flag)
                              : eni_key_applies(key, ENI_PSD)  ? is_reported(&run, ENI_PSD, flag)
                              : is_the_launchers ? run.workers == 12 || run.server_restarts == 12
                                                 : false;
        if (!is_there) fail_msg("%s of %s reaches no process of a run", flag, eni_program_name(program));
        told++;
        eni_config_fini(&run);
        eni_config_fini(&config);
    }
    return told;
}

static void no_key_vanishes(void **state)
{
    (void)state;
    assert_true(tell_all(ENI_COMPARE) > 45);
    assert_true(tell_all(ENI_SCALE) > 40);
    assert_true(tell_all(ENI_ADVISE) > 35);
}

/* PyTorch's, unless somebody has said otherwise; what does not fit the optimizer is refused. */
static void rates_follow_the_optimizer(void **state)
{
    (void)state;
    heard h;
    eni_config config, run;
    assert_int_equal(parse(ENI_COMPARE, "--optimizer=adamw", &config, &h), EN_OK);
    assert_true(config.lr == 0.001 && config.weight_decay == 0.01);
    assert_true(is_reported(&config, ENI_WORKER, "--lr=0.001") &&
                is_reported(&config, ENI_WORKER, "--weight-decay=0.01"));
    assert_int_equal(eni_config_arm(&config, "ring:optimizer=sgd", &run), EN_OK);
    assert_true(run.lr == 0.01 && run.weight_decay == 0);
    eni_config_fini(&run);
    assert_int_equal(eni_config_arm(&config, "ring:optimizer=adam,beta2=0.99", &run), EN_OK);
    assert_true(run.lr == 0.001 && run.weight_decay == 0 && run.beta2 == 0.99);
    eni_config_fini(&run);
    assert_int_equal(eni_config_arm(&config, "ring:momentum=0.9", &run), EN_EINVAL);
    eni_config_fini(&config);
    assert_int_equal(parse(ENI_RUN, "--optimizer=adam --lr=0.01 --momentum=0.5", &config, &h), EN_OK);
    assert_true(config.lr == 0.01 &&
                is_reported(&config, ENI_WORKER, "--lr=0.01")); /* though it is sgd's default */
    eni_config_fini(&config);
}

/* Given to an arm, a key has an effect or is refused; given to all, it is for those that it fits. */
static void a_schedule_may_be_an_arms(void **state)
{
    (void)state;
    heard h;
    eni_config base, run;
    assert_int_equal(parse(ENI_COMPARE, "--arm=ring:lr-schedule=cosine", &base, &h), EN_OK);
    assert_int_equal(eni_config_arm(&base, "ring:lr-gamma=0.5", &run), EN_EINVAL);
    assert_int_equal(eni_config_arm(&base, "ring:lr-step=64", &run), EN_EINVAL);
    eni_config_fini(&base);
    assert_int_equal(
        parse(ENI_COMPARE, "--lr-gamma=0.2 --lr-step=64 --arm=ring --arm=ring:lr-schedule=step", &base, &h),
        EN_OK);
    assert_int_equal(eni_config_arm(&base, base.arm.item[0], &run), EN_OK);
    assert_true(run.lr_step == 0 && !is_reported(&run, ENI_WORKER, "--lr-gamma=0.2"));
    eni_config_fini(&run);
    assert_int_equal(eni_config_arm(&base, base.arm.item[1], &run), EN_OK);
    assert_true(run.lr_step == 64 && is_reported(&run, ENI_WORKER, "--lr-gamma=0.2"));
    eni_config_fini(&run);
    eni_config_fini(&base);
    assert_int_equal(parse(ENI_COMPARE, "--lr-step=64 --arm=ring", &base, &h), EN_EINVAL);
}

static void batches_of_advise_are_the_workers_share(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    assert_int_equal(parse(ENI_ADVISE, "-n 4 --global-batch-size=64", &config, &h), EN_OK);
    assert_int_equal(config.batch_size, 16);
    eni_config_fini(&config);
}

static en_status note_key(void *user, const char *key, const char *value, bool is_reported)
{
    char *text = user;
    size_t used = strlen(text);
    if (is_reported) snprintf(text + used, 512 - used, "%s=%s;", key, value == NULL ? "none" : value);
    return EN_OK;
}

static void keys_are_told_with_their_texts(void **state)
{
    (void)state;
    heard h;
    eni_config config;
    char text[512] = "";
    assert_int_equal(
        parse(ENI_RUN, "--straggler=0:2,1:3 --lr=0.5 --threads=0 --no-overlap --log-every=3", &config, &h),
        EN_OK);
    config.eval_every = 7; /* chosen, not given */
    assert_int_equal(eni_config_each(&config, note_key, text), EN_OK);
    assert_string_equal(text,
                        "lr=0.5;epochs=1;threads=0;overlap=off;straggler=0:2,1:3;log-every=3;eval-every=7;");
    eni_config_fini(&config);
}

/* One word for one thing, with '-' or '_', in all that starts processes. */
static void launch_flags_mean_the_same(void **state)
{
    (void)state;
    static const eni_program programs[] = {ENI_RUN, ENI_CHECK, ENI_COMPARE, ENI_SCALE, ENI_EVAL, ENI_PREDICT};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        eni_config c;
        char *const argv[] = {
            "x",       "--nnodes=1", "--node_rank=0", "--init_method=tcp://a:7", "--local_world_size=3",
            "--init=x"};
        const bool is_eval = programs[i] == ENI_EVAL || programs[i] == ENI_PREDICT;
        assert_int_equal(eni_config_parse(programs[i], is_eval ? 6 : 5, argv, &c), EN_OK);
        assert_int_equal(c.node_rank, 0);
        assert_string_equal(c.init_method, "tcp://a:7");
        if (is_eval)
            assert_int_equal(c.processes, 3);
        else if (programs[i] == ENI_SCALE)
            assert_string_equal(c.ranks.item[0], "3");
        else
            assert_int_equal(c.workers, 3);
        eni_config_fini(&c);
    }
}

/* `visible`: CUDA_VISIBLE_DEVICES of a machine with six GPUs (tests/fake_nvml). */
static void expect_workers(eni_program program, const char *visible, const char *words, int n)
{
    eni_config config;
    heard h;
    setenv("FAKE_GPUS", "6", 1);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    assert_int_equal(parse(program, words, &config, &h), EN_OK);
    if (config.workers != n)
        fail_msg("%s, visible %s: %d workers, not %d", words, visible, (int)config.workers, n);
    eni_config_fini(&config);
}

static void on_gpus_there_is_a_worker_for_each(void **state)
{
    static const eni_program programs[] = {ENI_RUN, ENI_COMPARE, ENI_CHECK};
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        expect_workers(programs[i], "0,1,2,3,4,5", "--device=cuda", 6);
        expect_workers(programs[i], "4,2,5", "--device=cuda", 3);
        expect_workers(programs[i], "4,2,5", "--device=cuda -n 2", 2);
        expect_workers(programs[i], "4,2,5", "--device=cuda:1", 1);
        expect_workers(programs[i], "4,2,5", "--device=cpu", 2);
        expect_workers(programs[i], "", "--device=cuda", 2); /* refused when it starts */
    }
    expect_workers(ENI_RUN, "4,2,5", "--device=cuda --strategy=solo", 1);
    expect_workers(ENI_RUN, "0,1,2,3,4", "--device=cuda --parallel=pipeline --stages=2", 2);
    expect_workers(ENI_RUN, "0", "--device=cuda --parallel=pipeline --stages=2", 1);
    expect_workers(ENI_RUN, "0,1,2,3", "--device=cuda:0,cuda:1 --parallel=model", 1);
    expect_workers(ENI_RUN, "0,1,2,3", "--device=cuda:all --parallel=data", 2);
    expect_workers(ENI_RUN, "0,1,2", "--device=cuda --global-batch-size=96", 3);
    eni_config config;
    heard h;
    setenv("CUDA_VISIBLE_DEVICES", "0,1,2", 1);
    assert_int_equal(parse(ENI_RUN, "--device=cuda --global-batch-size=64", &config, &h), EN_EINVAL);
    assert_non_null(strstr(h.text, "multiple of the 3"));
    unsetenv("FAKE_GPUS"), unsetenv("CUDA_VISIBLE_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_gpus_there_is_a_worker_for_each),
        cmocka_unit_test(a_bad_line_is_one_sentence),
        cmocka_unit_test(forms_of_a_flag),
        cmocka_unit_test(devices_of_a_rank),
        cmocka_unit_test(booleans),
        cmocka_unit_test(defaults_depend_on_the_program),
        cmocka_unit_test(keys_that_follow_from_others),
        cmocka_unit_test(lists_collect),
        cmocka_unit_test(an_arm_is_a_strategy_and_keys),
        cmocka_unit_test(a_program_has_settings_of_its_own),
        cmocka_unit_test(help_shows_the_keys_of_its_program),
        cmocka_unit_test(help_needs_no_complete_line),
        cmocka_unit_test(no_key_vanishes),
        cmocka_unit_test(rates_follow_the_optimizer),
        cmocka_unit_test(a_schedule_may_be_an_arms),
        cmocka_unit_test(batches_of_advise_are_the_workers_share),
        cmocka_unit_test(keys_are_told_with_their_texts),
        cmocka_unit_test(launch_flags_mean_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
