/* test_bad_input.c - every wrong flag, file, weight, configuration and plugin ends a program with exit 2,
 * within a second or so, and with one sentence that has the value, the place and the remedy. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/bad_files.h"
#include "tests/system/run.h"
#include "tests/system/side_by_side.h"

/* Promise: Every bad flag, file, weight, configuration and plugin ends a program at once, with exit 2 and
 * one sentence. */

#define TOY                                                                                                  \
    "--strategy=solo --device=ref --model=toy --threads=1 --steps=1 --quiet --limit-train-samples=8 "        \
    "--limit-test-samples=8"
#define SOLO   "--strategy=solo --model=toy --threads=1 --steps=1 --quiet"
#define MLP    "--strategy=solo --device=ref --model=mlp --threads=1 --steps=1 --quiet"
#define COLOUR "--strategy=solo --device=ref --model=resnet18:width=2 --threads=1 --steps=1 --quiet"
#define RING   "--device=ref --model=toy --threads=1 --steps=1 --quiet"
#define BAD    EN_BUILD_DIR "/test/plugins/bad"

enum { WITHIN = 5 }; /* seconds, on a busy machine; each takes well below one */

/* '~' in `args` stands for the test's folder. The line must have all words: flags, values, names, places. */
typedef struct bad_case {
    const char *program, *args;
    const char *words[4];
} bad_case;

static char files[64]; /* the test's folder, which all cases read */

static void expand(const char *args, char *out, size_t bytes)
{
    size_t n = 0;
    for (; *args != 0 && n + 1 < bytes; args++)
        n += (size_t)(*args == '~' ? snprintf(out + n, bytes - n, "%s", files)
                                   : snprintf(out + n, bytes - n, "%c", *args));
}

/* Copies the first line of level error, truncated to the buffer; the number of such lines. */
static int error_lines(const char *err, char *first, size_t bytes)
{
    int n = 0;
    first[0] = 0;
    for (const char *line = err; *line != 0;) {
        size_t length = strcspn(line, "\n");
        if (length > 15 && strncmp(line + 12, " E ", 3) == 0 && n++ == 0)
            snprintf(first, bytes, "%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return n;
}

/* The exit code of the process that was just started. */
static int end_within(process *p, double seconds)
{
    stopwatch watch = stopwatch_start();
    const int code = process_wait(p, GUARD);
    stopwatch_expect(&watch, stopwatch_read(&watch), seconds, p->name);
    return code;
}

/* Expects at most `lines` sentences: every rank may have its own. */
static void refuse_in(const bad_case *c, const char *env, int lines)
{
    process p;
    char args[3000], line[2000];
    expand(c->args, args, sizeof args);
    process_start(&p, c->program, env, "%s", args);
    int code = end_within(&p, WITHIN);
    int n = error_lines(process_err(&p), line, sizeof line), missing = 0;
    for (int i = 0; i < 4 && c->words[i] != NULL; i++)
        missing += !text_has(log_message(line), c->words[i]);
    if (code != 2 || n < 1 || n > lines || missing > 0)
        fail_msg("%s %s: exit %d, %d sentences, %d words (\"%s\" ..) missing; it said:\n%s%s", c->program,
                 args, code, n, missing, c->words[0], process_out(&p), process_err(&p));
    process_nobody_left(GUARD);
}

static void refuse_one(const void *cases, size_t i)
{
    refuse_in((const bad_case *)cases + i, NULL, 1);
}

/* Each rank may say it. */
static void refuse_twice(const void *cases, size_t i)
{
    refuse_in((const bad_case *)cases + i, NULL, 2);
}

static void refuse_thrice(const void *cases, size_t i)
{
    refuse_in((const bad_case *)cases + i, NULL, 3);
}

static void refuse_all(const bad_case *cases, size_t n, const char *what)
{
    snprintf(files, sizeof files, "%s", system_folder());
    const double slowest = side_by_side(n, refuse_one, cases);
    promise("bad %s: %d of %d end with 2 and one sentence; the slowest took %.2f s", what, (int)n, (int)n,
            slowest);
}
#define REFUSE_ALL(cases, what) refuse_all(cases, sizeof(cases) / sizeof *(cases), what)

/* ---- workers that come later ---- */

#define PLACES "run -n 2 " RING " --max-workers=4 "

static void test_places(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"entrain", "run -n 3 " RING " --strategy=ps-async --max-workers=2", {"--max-workers", "2", "3"}},
        {"entrain", "run " RING " --max-workers=0", {"--max-workers", "0", "1024"}},
        {"entrain", "run " RING " --max-workers=1000000", {"--max-workers", "1000000", "1024"}},
        {"worker",
         RING " --strategy=ps-async --world-size=2 --rank=new --server=tcp://127.0.0.1:1",
         {"--rank", "new", "--max-workers=N"}},
        {"worker", RING " --strategy=ps-async --rank=newer", {"--rank", "newer"}},
        {"entrain", "sim -n 3 --strategy=ps-async --join=2", {"--join", "2", "RANK@TIME", "2@500ms"}},
        {"entrain", "sim -n 3 --strategy=ps-async --join=0@1s", {"--join", "0@1s", "RANK@TIME"}},
        {"entrain", "sim -n 3 --strategy=ps-async --join=3@1s", {"--join=3@1s", "2", "-n"}},
        {"entrain", "sim -n 3 --strategy=ps-async --leave=2@soon", {"--leave", "2@soon", "RANK@TIME"}},
        {"entrain", "sim -n 3 --strategy=ps-async --leave=7@1s", {"--leave=7@1s", "2"}},
    };
    REFUSE_ALL(cases, "places for workers that come later");
    static const bad_case started[] = {
        {"entrain", PLACES "--strategy=ring", {"--max-workers=4", "ring", "--elastic=2..4"}},
        {"entrain", PLACES "--strategy=ps-sync", {"--max-workers=4", "ps-sync", "ps-async"}},
        {"entrain", PLACES "--strategy=ps-async --assign=fixed", {"--max-workers=4", "--assign=fixed"}},
    };
    side_by_side(sizeof started / sizeof *started, refuse_twice, started);
}

/* ---- a run that is started again ---- */

#define ELASTIC "run " RING " --out=~/elastic --checkpoint-every=8 "

static void test_elastic(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"entrain", ELASTIC "--elastic=8..2", {"--elastic", "8..2", "2..8"}},
        {"entrain", ELASTIC "--elastic=0..4", {"--elastic", "0..4", "1024"}},
        {"entrain", ELASTIC "--elastic=x", {"--elastic", "x", "MIN..MAX"}},
        {"entrain", ELASTIC "--elastic=2..8:64", {"--elastic", "2..8:64", "--global-batch-size"}},
        {"entrain", ELASTIC "--elastic", {"--elastic", "MIN..MAX"}},
        {"entrain", ELASTIC "--elastic=2..4 -n 5", {"-n 5", "--elastic=2..4"}},
        {"entrain", ELASTIC "--elastic=2..4 -n 1", {"-n 1", "--elastic=2..4"}},
        {"entrain",
         ELASTIC "--elastic=3..3 -n 3 --global-batch-size=64",
         {"--global-batch-size", "64", "3", "--batch-size"}},
        {"entrain",
         "run " RING " --out=~/elastic --elastic=2..4",
         {"--elastic=2..4", "--checkpoint-every=SAMPLES"}},
        {"entrain", "run " RING " --checkpoint-every=8 --elastic=2..4", {"--elastic=2..4", "--out=FOLDER"}},
        {"entrain",
         ELASTIC "--elastic=2..4 --strategy=ps-async",
         {"--elastic=2..4", "ps-async", "--on-worker-loss=continue", "--max-workers=N"}},
        {"entrain",
         ELASTIC "--elastic=2..4 --strategy=ssp:bound=3",
         {"--elastic=2..4", "ssp", "--max-workers=N"}},
        {"entrain", ELASTIC "--elastic=1..4 --strategy=solo", {"--elastic=1..4", "solo", "--strategy=ring"}},
        {"entrain",
         ELASTIC "--elastic=2..4 --nnodes=2 --master-addr=127.0.0.1",
         {"--elastic=2..4", "--nnodes=2", "torchrun"}},
        {"entrain",
         ELASTIC "-n 4 --elastic=2..4 --strategy=grouped --groups=0-1;2-3",
         {"--groups=0-1;2-3", "--elastic=2..4", "--groups=N"}},
        {"entrain", "run " RING " --max-restarts=2", {"--max-restarts", "2", "--elastic=MIN..MAX"}},
        {"entrain", ELASTIC "--elastic=2..4 --max-restarts=-1", {"--max-restarts", "-1", "1000000"}},
        {"worker", "--elastic=2..4", {"--elastic", "worker", "entrain run"}},
        {"entrain", "compare --arm=ring:elastic=2..4 --arm=ps-sync", {"elastic"}},
        {"entrain", "join", {"entrain join", "RUN"}},
        {"entrain", "join 4194305", {"4194305", "entrain ps"}},
        {"entrain", "join x", {"x", "entrain ps"}},
        {"entrain", "join 1 -n 0", {"--workers", "0", "1024"}},
        {"entrain", "join 1 2", {"2", "entrain join"}},
        {"entrain", "leave 1", {"entrain leave", "RUN RANK"}},
        {"entrain", "leave 4194305 1", {"4194305", "entrain ps"}},
    };
    REFUSE_ALL(cases, "elastic runs");
}

/* ---- flags --------------------------------------------------------------------------------------------- */

static void test_flags(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        /* unknown */
        {"entrain", "run --stratgy=ring", {"--stratgy", "--strategy"}},
        {"entrain", "run --batchsize=4", {"--batchsize", "--batch-size"}},
        {"entrain", "run --xyzzy=1", {"--xyzzy", "--help"}},
        {"entrain", "run -x", {"-x", "--help"}},
        {"psd", "--lr=0.1", {"--lr", "psd", "entrain run"}},
        {"worker", "--arm=ring", {"--arm", "worker", "entrain compare"}},
        {"entrain", "run lr=0.1", {"lr=0.1", "--key=value"}},
        {"entrain", "run --lr", {"--lr=REAL"}},
        {"entrain", "run --no-shuffle=on", {"--no-shuffle", "--shuffle=off"}},
        /* numbers */
        {"worker", "--lr=fast", {"--lr", "fast", "1000000"}},
        {"worker", "--lr=nan", {"--lr", "nan", "1000000"}},
        {"worker", "--lr=inf", {"--lr", "inf", "1000000"}},
        {"worker", "--lr=-0.1", {"--lr", "-0.1", "1000000"}},
        {"worker", "--lr=", {"--lr", "1000000"}},
        {"worker", "--lr=0.1x", {"--lr", "0.1x", "1000000"}},
        {"worker", "--lr=0,1", {"--lr", "0,1", "1000000"}},
        {"worker", "--lr=0x10", {"--lr", "0x10", "1000000"}},
        {"worker", "--lr=+1", {"--lr", "+1", "1000000"}},
        {"worker", "--lr=1e999", {"--lr", "1e999", "1000000"}},
        {"worker", "--lr=1e-400", {"--lr", "1e-400", "1000000"}},
        {"worker", "--lr=1e7", {"--lr", "1e7", "1000000"}},
        {"worker", "--batch-size=0", {"--batch-size", "0", "16777216"}},
        {"worker", "--batch-size=-4", {"--batch-size", "-4", "16777216"}},
        {"worker", "--batch-size=1.5", {"--batch-size", "1.5", "16777216"}},
        {"worker", "--batch-size=1e3", {"--batch-size", "1e3", "16777216"}},
        {"worker", "--batch-size=", {"--batch-size", "16777216"}},
        {"worker", "--batch-size=64k", {"--batch-size", "64k", "16777216"}},
        {"worker", "--batch-size=99999999999999999999999", {"--batch-size", "99999999999999999999999"}},
        {"worker", "--seed=-1", {"--seed", "-1", "9000000000000000000"}},
        {"worker", "--seed=9223372036854775808", {"--seed", "9223372036854775808"}},
        {"worker", "--momentum=1.5", {"--momentum", "1.5"}},
        /* groups, as far as one rank knows them */
        {"entrain", "run -n 4 --strategy=grouped --groups=0-1;1-3", {"--groups", "0-1;1-3", "rank 1"}},
        {"worker", "--world-size=4 --groups=0-1;3", {"--groups", "rank 2", "3"}},
        {"entrain", "sim -n 4 --strategy=grouped --groups=0-4", {"--groups", "rank 4", "3"}},
        {"entrain", "run -n 4 --groups=5", {"--groups", "5", "4"}},
        {"entrain", "run -n 4 --groups=0-1;2-3;", {"--groups", "0-1;2-3;", "0-1;2-3"}},
        {"entrain",
         "run -n 2 --strategy=ring --groups=2",
         {"--groups", "ring", "EN_SHARED_PARAMS", "grouped"}},
        {"entrain",
         "run -n 2 --strategy=ps-sync --groups=2",
         {"--groups", "ps-sync", "EN_STORE_ON_SERVERS", "grouped"}},
        {"entrain",
         "run -n 2 --strategy=hierarchical --groups=2",
         {"--groups", "hierarchical", "EN_LEADERS_ARE_CLIENTS"}},
        {"entrain", "sim -n 2 --strategy=solo --groups=2", {"--groups", "solo", "EN_ALONE"}},
        /* times, choices, texts with a form */
        {"worker", "--join-timeout=0", {"--join-timeout", "0", "0.1s"}},
        {"worker", "--join-timeout=5parsecs", {"--join-timeout", "5parsecs", "500ms"}},
        {"worker", "--join-timeout=-1s", {"--join-timeout", "-1s"}},
        {"worker", "--allreduce=rng", {"--allreduce", "rng", "ring"}},
        {"worker", "--transport=udp", {"--transport", "udp", "auto|shm|tcp"}},
        {"worker", "--backend=gloo", {"--backend", "gloo", "--backend=host"}},
        {"worker", "--device=gpu", {"--device", "gpu", "--device=cuda"}},
        {"worker", "--device=tpu", {"--device", "tpu", "cuda:INDEX"}},
        {"worker", "--shuffle=maybe", {"--shuffle", "maybe", "off"}},
        {"worker", "--net=rate:0", {"--net", "rate:0", "rate:200MB"}},
        {"worker", "--net=rate:-1MB", {"--net", "rate:-1MB"}},
        {"worker", "--net=speed:1MB", {"--net", "speed:1MB"}},
        {"psd", "--net=delay:1x", {"--net", "delay:1x"}},
        {"worker", "--straggler=1", {"--straggler", "1", "RANK:FACTOR"}},
        {"worker", "--straggler=0:0.5", {"--straggler", "0:0.5", "1000"}},
        {"worker", "--server=localhost:1", {"--server", "localhost:1", "tcp://HOST:PORT"}},
        {"worker", "--server=tcp://a:70000", {"--server", "70000", "65535"}},
        {"worker", "--server=tcp://::1:5555", {"--server", "tcp://[::1]:5555"}},
        {"worker", "--strategy=", {"--strategy", "KEY=VALUE"}},
        {"worker", "--strategy=:bound=3", {"--strategy", ":bound=3", "ssp:bound=3"}},
        {"worker", "--strategy=ssp:", {"--strategy", "ssp:", "KEY=VALUE"}},
        {"worker", "--strategy=ssp:bound", {"bound", "ssp", "key=value"}},
        /* together */
        {"worker", "--rank=2 --world-size=2", {"--rank", "2", "--world-size"}},
        {"entrain", "run -n 2 --straggler=7:2", {"--straggler", "7:2", "1"}},
        {"worker", "--world-size=2 --global-batch-size=5", {"--global-batch-size", "5", "--batch-size"}},
        {"worker", "--batch-size=4 --global-batch-size=5", {"--global-batch-size", "5", "--batch-size", "4"}},
        {"worker", "--lr-schedule=step", {"--lr-schedule", "--lr-step"}},
        {"worker", "--lr-step=8", {"--lr-step", "8", "--lr-schedule=step"}},
        {"worker", "--lr-schedule=cosine --lr-gamma=0.5", {"--lr-gamma", "0.5", "multistep"}},
        {"worker",
         RING " --strategy=ring --world-size=2 --rank=0 --server=tcp://127.0.0.1:1",
         {"--server=tcp://127.0.0.1:1", "ring", "--rendezvous=tcp://HOST:PORT"}},
        {"worker",
         RING " --world-size=2 --rank=0 --strategy=" EN_BUILD_DIR "/test/plugins/zoo.so@visit",
         {"visit", "EN_STORE_ON_RANKS", "entrain sim"}},
        {"worker", "--nesterov --momentum=0", {"--nesterov", "--momentum"}},
        {"worker", TOY " --accumulate=1000000", {"--accumulate", "1000000", "1024"}},
        {"worker",
         RING " --strategy=ring --world-size=2 --rank=0 --accumulate=2",
         {"--accumulate=2", "solo"}},
        {"entrain",
         "run -n 2 --strategy=ps-async --device=ref --data=synthetic --model=resnet18:width=2 "
         "--bn-stats=mean",
         {"--bn-stats=mean", "ps-async", "recompute:N"}},
        {"entrain",
         "run -n 2 --strategy=hierarchical:bound=1 --device=ref --data=synthetic --model=resnet18:width=2 "
         "--bn-stats=mean",
         {"--bn-stats=mean", "hierarchical", "recompute:N"}},
        {"worker", RING " --strategy=ring --world-size=2 --rank=0 --assign=claim", {"--assign", "fixed"}},
        {"worker", RING " --strategy=solo --world-size=2 --rank=0", {"solo", "-n 1"}},
        {"worker", RING " --strategy=ps-sync --world-size=2 --rank=0", {"ps-sync", "psd", "--server="}},
        {"worker", TOY " --model=toi", {"--model=toi", "toy"}},
        {"worker", TOY " --model=toy:width=8", {"toy", "width"}},
        {"worker", TOY " --model=resnet18:widht=8", {"resnet18", "widht", "width"}},
        {"worker", TOY " --model=resnet18:width=0", {"width", "0", "4096"}},
        {"worker", TOY " --model=resnet18:stem=small", {"stem=small", "imagenet", "cifar"}},
        {"worker", TOY " --model=./nowhere.so", {"./nowhere.so", "No such file", "cc -shared"}},
        {"worker",
         "--strategy=solo --device=ref --model=resnet18:width=1 --threads=1 --epochs=1 --quiet "
         "--data=synthetic "
         "--limit-train-samples=5 --batch-size=4",
         {"layer4.0.bn1", "batchnorm", "1", "--drop-last"}},
        {"worker", TOY " --model=qqqqqq", {"--model=qqqqqq", "entrain models"}},
        {"worker", TOY " --optimizer=lion", {"--optimizer=lion", "adamw"}},
        {"worker", "--optimizer=adam --momentum=0.9", {"--momentum", "0.9", "--beta1"}},
        {"worker", "--optimizer=adamw --nesterov", {"--nesterov", "adamw"}},
        {"worker", "--eval-every=10weeks", {"--eval-every", "10weeks", "10epochs"}},
        {"worker", "--checkpoint-every=1.5epochs", {"--checkpoint-every", "1.5epochs", "10epochs"}},
        {"worker", "--lr-schedule=multistep", {"--lr-schedule", "--lr-milestones"}},
        {"worker",
         "--lr-milestones=8epochs,6epochs",
         {"--lr-milestones", "8epochs,6epochs", "60epochs,80epochs"}},
        {"worker", "--lr-milestones=6epochs", {"--lr-milestones", "--lr-schedule=multistep"}},
        {"worker", TOY " --lr-schedule=multistep --lr-milestones=1epoch,2", {"--lr-milestones=1epoch,2"}},
        {"worker", "--beta2=0.99", {"--beta2", "0.99", "--optimizer=adamw"}},
        {"worker", "--optimizer=adamw --beta2=1", {"--beta2", "1", "0.999999999"}},
        {"worker", TOY " --strategy=solos", {"solos", "solo"}},
        /* several devices */
        {"entrain", "run --device=cpu:0,cuda:0", {"--device", "cpu:0,cuda:0", "cuda:0,cuda:1"}},
        {"worker", "--device=ref:1,ref:1", {"--device", "ref:1,ref:1", "cpu:0,cpu:1"}},
        {"worker", "--device=cpu:0,cpu:1", {"--device", "cpu:0,cpu:1", "--parallel=model"}},
        {"entrain", "run --stages=2", {"--stages", "2", "--parallel=pipeline"}},
        {"worker", "--split=net2", {"--split", "net2", "--parallel=pipeline"}},
        {"worker", "--parallel=model", {"--parallel", "model", "--stages=2"}},
        {"worker", "--parallel=pipeline --stages=3 --device=ref:0,ref:1", {"--device", "2", "3"}},
        {"entrain",
         "run --parallel=pipeline --stages=3 --split=net2",
         {"--stages", "3", "--split=net2", "2"}},
        {"worker",
         "--parallel=model --stages=2 --micro-batches=4",
         {"--micro-batches", "4", "--parallel=pipeline"}},
        {"worker",
         "--parallel=data --device=ref:0,ref:1 --micro-batches=4",
         {"--micro-batches", "4", "--parallel=data"}},
        {"worker", "--parallel=data --device=ref", {"--parallel", "data", "--device=cpu:0,cpu:1"}},
        {"entrain",
         "run --parallel=data --device=ref:0,ref:1,ref:2 -b 2",
         {"--device", "3", "2", "--batch-size"}},
        {"worker", "--pipeline=gpipe", {"--pipeline", "gpipe", "--parallel=pipeline"}},
        {"worker", "--micro-batches=5 -b 4", {"--micro-batches", "5", "4"}},
        {"worker", "--micro-batches=1025", {"--micro-batches", "1025", "1024"}},
        {"worker", "--precision=fp16 --micro-batches=2", {"--precision", "fp16", "--micro-batches"}},
        {"worker",
         "--device=cuda --backend=nccl --parallel=data",
         {"--backend", "nccl", "--parallel", "--backend=host"}},
        {"worker", TOY " --parallel=pipeline --stages=3 -b 4", {"--stages=3", "toy", "--stages=2"}},
        {"entrain",
         "run -n 1 " TOY " --parallel=model --stages=64 -b 4",
         {"--stages=64", "toy", "--stages=2"}},
        {"worker",
         COLOUR " --data=synthetic --parallel=model --split=layer1.1.conv2",
         {"--split=layer1.1.conv2", "layer1.1.bn1", "layer1.0.bn2"}},
        {"worker", TOY " --parallel=model --split=net3", {"--split=net3", "net1", "entrain models MODEL"}},
        {"worker", TOY " --parallel=model --split=net1", {"--split=net1", "weights"}},
        {"worker",
         MLP " --model=convnet --data=synthetic --parallel=model --split=fc2,conv2",
         {"--split", "conv2", "fc2", "entrain models MODEL"}},
        {"worker", TOY " --parallel=model --split=net2 --device=ref:0,ref:1,ref:2", {"--device", "3", "2"}},
        {"worker", TOY " --gpu-sharing", {"--gpu-sharing", "--device=ref", "--device=cuda"}},
        {"entrain", "eval --init=a --device=ref:0,ref:1", {"--device", "ref:0,ref:1", "entrain eval"}},
        {"worker", TOY " --backend=nccl", {"--backend=nccl", "--backend=host"}},
        {"worker", TOY " --device=cuda", {"cuda", "--device=cpu"}},
        {"worker", TOY " --limit-train-samples=0x8", {"--limit-train-samples", "0x8"}},
    };
    REFUSE_ALL(cases, "flags");
}

static void test_commands(void **state)
{
    (void)state;
    write_text("plain", "x");
    write_text("empty", "");
    write_text("short", "0.1\n0.2\n");
    assert_int_equal(mkfifo(at("silent"), 0600), 0); /* nobody writes: it reads as empty */
    assert_int_equal(mkdir(at("empty-folder"), 0700), 0);
    assert_int_equal(mkdir(at("piped"), 0700), 0);
    assert_int_equal(mkfifo(at("piped/result.json"), 0600), 0);
    static const bad_case cases[] = {
        {"entrain", "rum", {"rum", "run", "--help"}},
        {"entrain", "eval", {"entrain eval", "--init=FILE"}},
        {"entrain", "eval --init=~/nowhere.st --model=toy", {"nowhere.st", "No such file"}},
        {"entrain", "report", {"entrain report", "FOLDER"}},
        {"entrain", "report ~/nowhere", {"nowhere", "--out"}},
        {"entrain", "report ~/empty-folder", {"empty-folder", "result.json"}},
        {"entrain", "report ~/empty-folder --out=~/plain", {"--out", "plain"}},
        {"entrain", "report ~/empty-folder --out=~/plain/below", {"--out", "plain/below", "Not a directory"}},
        {"entrain", "report a b", {"a", "compare.json"}},
        {"entrain", "report ~/piped", {"result.json", "regular file"}},
        {"entrain", "report a b c d e f g h i", {"i", "entrain report"}},
        {"entrain", "stop", {"entrain stop", "RUN"}},
        {"entrain", "stop 4194305", {"4194305", "entrain ps"}},
        {"entrain", "ps all", {"all", "entrain ps", "--key=value"}},
        {"entrain", "data nope", {"nope", "fashion-mnist"}},
        {"entrain", "models toi", {"toi", "toy"}},
        {"entrain", "strategies rong", {"rong", "ring"}},
        {"entrain", "compare", {"--strategies=ring,ps-async", "--arm=ring"}},
        {"entrain", "compare --strategies=ring,rong", {"rong", "ring"}},
        {"entrain", "compare --arm=ring --arm=ssp:bond=3", {"bond", "bound"}},
        {"entrain", "compare --arm=ring --arm=ring", {"--arm=ring", "--arm=b=ring"}},
        {"entrain", "compare --strategies=ring --settings=fast", {"--settings", "fast", "even,slow"}},
        {"entrain", "compare --strategies=ring --seeds=1,x", {"--seeds", "x"}},
        {"entrain", "compare --strategies=ring --out=~/plain", {"--out", "plain"}},
        {"entrain", "conform solo", {"\"solo\"", "ring", "--as"}},
        {"entrain", "conform ring --as=rong", {"--as", "rong", "ring"}},
        {"entrain", "conform ring ssp --as=ring", {"--as", "2"}},
        {"entrain", "conform ring --as=easgd:period=0", {"period", "easgd", "'0'"}},
        {"entrain", "conform ring --as=easgd:perod=4", {"perod", "easgd"}},
        {"entrain", "conform softsync:splits=9", {"softsync:splits=9", "workers"}},
        {"entrain", "conform ssp:bond=3", {"bond", "bound"}},
        {"entrain", "conform rong", {"rong", "ring"}},
        {"entrain", "sim --strategy", {"--strategy=NAME"}},
        {"entrain", "sim --strategy=ring --transport=tcp", {"--transport=tcp", "entrain sim", "entrain run"}},
        {"entrain", "sim --strategy=ring --servers=2", {"--servers=2", "entrain sim", "entrain run"}},
        {"entrain", "sim --strategy=ring --checkpoint-every=64", {"--checkpoint-every", "entrain sim"}},
        {"entrain", "sim --strategy=ring --strategy=ps-async", {"--strategy", "ring", "ps-async", "compare"}},
        {"entrain", "sim --strategy=ring --out=kept", {"--out", "--model"}},
        {"entrain",
         "sim --model=mlp --data=synthetic --bn-stats=recompute:16",
         {"--bn-stats=recompute:16", "rank0"}},
        {"entrain", "sim --strategy=ring --model=mlq", {"--model=mlq", "mlp"}},
        {"entrain", "sim --model=mlp --device=cuda --data=synthetic", {"--device=cuda", "cpu", "ref"}},
        {"entrain", "sim --compute=gauss:1ms", {"--compute", "gauss:1ms", "lognormal:"}},
        {"entrain", "sim --compute=exp:-1ms", {"--compute", "exp:-1ms", "exp:10ms"}},
        {"entrain", "sim --compute=lognorml:1ms,1", {"--compute", "lognorml:1ms,1", "lognormal:10ms,0.5"}},
        {"entrain",
         "sim --compute=lognormal:1ms,inf",
         {"--compute", "lognormal:1ms,inf", "sigma of 0 to 10"}},
        {"entrain", "sim --compute=pareto:nan,3", {"--compute", "pareto:nan,3", "mean of 0 or more"}},
        {"entrain",
         "sim -n 3 --compute=0-2=exp:1ms;1=exp:2ms",
         {"--compute=0-2=exp:1ms", "rank 1", "give it one"}},
        {"entrain", "sim --compute=trace:~/nowhere", {"--compute", "nowhere"}},
        {"entrain", "sim --compute=trace:~/silent", {"--compute=trace:", "silent", "0 times"}},
        {"entrain", "sim --compute=~", {"--compute", "directory"}},
        {"entrain", "sim --compute=trace:~/empty", {"--compute=trace:", "empty", "0 times"}},
        {"entrain", "sim -n 4 --compute=~/short", {"--compute=", "short", "2 times for 4", "trace:FILE"}},
        {"entrain",
         "sim --straggler=transient:4:2:10",
         {"--straggler", "transient:4:2:10", "transient:4:0.05:20"}},
        {"entrain", "sim --straggler=0-1:4,1:3", {"--straggler", "1:3", "rank 1", "once"}},
        {"entrain", "sim -n 4 --straggler=3-4=rotating:4:10", {"--straggler", "rotating", "0 to 3"}},
        {"entrain", "run --straggler=rotating:4:10", {"--straggler", "rotating:4:10", "1:3", "entrain sim"}},
        {"entrain", "run --net=machines=rate:1Gbit", {"--net", "rate:200MB", "entrain sim"}},
        {"entrain", "sim -n 4 --net=4=rate:1Gbit", {"--net=4=rate:1Gbit", "ranks 0 to 3"}},
        {"entrain",
         "sim --net=servers=rate:1Gbit;servers=none",
         {"--net=", "0 of the servers", "give it one"}},
        {"entrain", "sim --net=server=rate:1Gbit", {"--net", "server=rate:1Gbit", "servers=.."}},
        {"entrain", "sim --strategy=ps-async --server-time=20", {"--server-time", "20", "200us"}},
        {"entrain",
         "sim --strategy=ps-async --server-time=1=exp:1ms",
         {"--server-time=1=exp:1ms", "servers 0 to 0", "--shards"}},
        {"entrain", "sim --strategy=ring --server-time=1ms", {"--server-time=1ms", "ring", "omit"}},
        {"entrain", "run --server-time=1ms", {"--server-time", "entrain run", "entrain sim"}},
        {"entrain", "sim --strategy=ps-async -n 20000 --elements=90000000", {"20000", "14400.3 GB", "-n"}},
        {"entrain", "sim -n 2 --compute=0-2=exp:1ms", {"--compute=0-2=exp:1ms", "-n"}},
        {"entrain", "sim --compute=from:~/nowhere", {"--compute", "nowhere/metrics-0.jsonl"}},
        {"entrain", "sim --strategy=ring -n 0", {"--workers", "0", "1000000"}},
        {"entrain", "sim --strategy=ring --workers=2.5", {"--workers", "2.5"}},
        {"entrain", "sim --strategy=ring -z", {"-z", "--help"}},
        {"entrain", "sim --strategy=ps-sync --storm=never", {"--storm", "never", "off"}},
        {"entrain", "sim --storm --promise=all", {"--promise", "all", "at-once"}},
        {"entrain", "sim --storm --promise=ends --strategy=ring", {"EN_STORE_ON_SERVERS", "ring"}},
        {"entrain", "sim --strategy --storm", {"--strategy=NAME"}},
        {"entrain", "sim --strategy=ring --lr", {"--lr=REAL"}},
        {"entrain", "sim --strategy=ring --net=rate:10gb", {"--net", "rate:10gb", "1Gbit"}},
        {"entrain", "run --strategy=zzzzqq", {"zzzzqq", "entrain strategies"}},
        {"entrain", "run --epochs=0", {"--epochs", "0", "1000000000"}},
        {"entrain", "run --out=/tmp/caf\xe9", {"--out", "UTF-8"}},
        {"entrain", "sim --json --storm", {"--json", "--storm"}},
        {"entrain", "sim --json --events=3", {"--json", "--events"}},
        {"entrain", "compare --arm=ring --baseline=ps-sync", {"--baseline", "ps-sync", "ring"}},
        {"entrain", "compare --arm=ring --tune=momentum=0.1,0.5", {"--tune", "momentum=0.1,0.5", "lr=V1,V2"}},
        {"entrain", "compare --arm=ring --tune=lr=0.1", {"--tune", "lr=0.1", "lr=0.005,0.01"}},
        {"entrain", "compare --arm=ring --tune=lr=0.1,fast", {"--tune", "fast", "lr=0.005,0.01"}},
        {"entrain", "compare --arm=ring:lr=0.3 --tune=lr=0.1,0.2", {"--tune", "ring", "lr=0.3", "omit"}},
        {"entrain", "compare --arm=ring --holdout=0 --tune=lr=0.1,0.2", {"--holdout=0", "--tune"}},
        {"entrain", "compare --arm=ring,lr=0.1 --arm=ps-sync", {"ring,lr=0.1", "ssp:bound=3"}},
        {"entrain", "zzzz", {"zzzz", "--help"}},
        {"entrain", "predict", {"entrain predict", "--init=FILE"}},
        {"entrain", "predict --init=~/nowhere.st --data=synthetic -n 3", {"nowhere.st", "No such file"}},
        {"entrain", "predict --init=~/nowhere.st -n 65", {"--processes", "65", "64"}},
        {"entrain", "predict --init=~/nowhere.st --model=toy", {"--model=toy", "entrain eval"}},
        {"entrain", "predict --init=~/nowhere.st --precision=bf16", {"--precision", "fp32"}},
        {"entrain", "check -v -n 1", {"-v", "2", "16", "1"}},
        {"entrain", "advise --net=rate:0", {"--net", "rate:0", "rate:200MB"}},
        {"entrain", "advise --model=toi", {"toi", "toy"}},
        {"entrain", "advise -n 0", {"--workers", "0", "1024"}},
        {"entrain", "advise --seeds=2", {"--seeds", "entrain compare"}},
        {"entrain", "scale -n 1,x", {"--ranks", "x", "1,2,4"}},
        {"entrain", "scale -n 0", {"--ranks", "0", "1024"}},
        {"entrain", "scale -n 1,3 --global-batch-size=64", {"64", "3", "--global-batch-size"}},
        {"entrain", "scale --strategy=ring,rong", {"rong", "ring"}},
        {"entrain", "scale --out=~/plain", {"--out", "plain"}},
        {"entrain", "strategies gosip", {"gosip", "entrain strategies"}},
        {"entrain", "run -n 2 --strategy=ringmaster:threshold=0 " RING, {"threshold", "'0'", "default 2W"}},
        {"entrain", "run -n 2 --strategy=easgd:alpha=0 " RING, {"alpha", "'0'", "default 0.9/W"}},
        {"entrain", "run -n 2 --strategy=easgd:alpha=1 " RING, {"alpha", "'1'", "0.999999"}},
        {"entrain", "run -n 2 --strategy=easgd:period=0 " RING, {"period", "'0'", "default 10"}},
        {"entrain", "run -n 2 --strategy=local-sgd:period=0 " RING, {"period", "'0'", "default 8"}},
        {"entrain", "run -n 2 --strategy=diloco:perod=4 " RING, {"perod", "diloco", "nearest is period"}},
        {"entrain", "run -n 2 --strategy=dc-asgd:lamda=1 " RING, {"lamda", "dc-asgd", "nearest is lambda"}},
        {"entrain", "sim -n 4 --strategy=d-psgd:graph=star", {"graph=star", "ring, complete or exponential"}},
        {"entrain", "sim -n 4 --strategy=local-sgd --groups=2", {"--groups", "local-sgd", "grouped"}},
        {"psd", "--strategy=ps-sync", {"--world-size"}},
        {"psd", "--strategy=ring --world-size=2", {"ring", "psd"}},
        {"psd", "--strategy=ssp:bond=3 --world-size=2", {"bond", "bound"}},
        {"psd", "--strategy=ssp:bound=-1 --world-size=2", {"bound", "-1", "inf"}},
        {"psd", "--strategy=ssp:bound=1e400 --world-size=2", {"bound", "1e400"}},
        {"psd", "--strategy=ssp:bound=3,bound=4 --world-size=2", {"bound", "ssp"}},
        {"psd", "--strategy=ps-sync --world-size=2 --listen=tcp://0.0.0.0:0", {"0.0.0.0", "--insecure"}},
    };
    REFUSE_ALL(cases, "commands");
}

/* ---- configuration ------------------------------------------------------------------------------------- */

static void test_yaml(void **state)
{
    (void)state;
    write_text("a.yaml", "lr: 0.1\nlr: 0.2\n");
    write_text("b.yaml", "lr: 0.1\nmomentun: 0.5\n");
    write_text("c.yaml", "lr: fast\n");
    write_text("d.yaml", "model: toy\nlr: [0.1\n");
    write_text("e.yaml", "lr: [0.1, 0.2]\n");
    write_text("f.yaml", "- ring\n");
    write_text("g.yaml", "lr:\n");
    write_text("h.yaml", "lr: {a: 1}\n");
    write_text("i.yaml", "lr: &x 0.1\n");
    write_text("j.yaml", "lr: 0.1\n---\nlr: 0.2\n");
    write_text("k.yaml", "help: on\n");
    write_bytes("l.yaml", "\xff\xfe\x00\x01", 4);
    write_text("m.yaml", "batch-size: 64\nbatch_size: 32\n");
    static const bad_case cases[] = {
        {"worker", "--config=~/nowhere.yaml", {"--config", "nowhere.yaml", "No such file"}},
        {"worker", "--config=~", {"--config", "directory"}},
        {"worker", "--config=~/a.yaml", {"a.yaml:2:1", "lr"}},
        {"worker", "--config=~/b.yaml", {"b.yaml:2:1", "momentun", "momentum"}},
        {"worker", "--config=~/c.yaml", {"c.yaml:1:5", "lr", "fast", "1000000"}},
        {"worker", "--config=~/d.yaml", {"d.yaml:", "key: value"}},
        {"worker", "--config=~/e.yaml", {"e.yaml:1:5", "key: value"}},
        {"worker", "--config=~/f.yaml", {"f.yaml:1:1", "key: value"}},
        {"worker", "--config=~/g.yaml", {"g.yaml:1:4"}},
        {"worker", "--config=~/h.yaml", {"h.yaml:1:5", "nested"}},
        {"worker", "--config=~/i.yaml", {"i.yaml:1:5", "anchors"}},
        {"worker", "--config=~/j.yaml", {"j.yaml:2:1", "document"}},
        {"worker", "--config=~/k.yaml", {"k.yaml:1:1", "help"}},
        {"worker", "--config=~/l.yaml", {"l.yaml:"}},
        {"worker", "--config=~/m.yaml", {"m.yaml:2:1", "batch-size"}},
        {"entrain", "run --config=~/b.yaml", {"b.yaml:2:1", "momentun"}},
    };
    REFUSE_ALL(cases, "configurations");
}

/* ---- data ---------------------------------------------------------------------------------------------- */

#define IMAGES "/train-images-idx3-ubyte"
#define LABELS "/train-labels-idx1-ubyte"

static void test_data(void **state)
{
    (void)state;
    static const char *const sets[] = {"absent", "folder", "magic",   "cut",     "counts", "pickle",
                                       "zip",    "label",  "swapped", "type",    "zero",   "more",
                                       "gz",     "tiny",   "huge",    "noimages"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        write_set(sets[i]);
    unlink(at("absent" LABELS));
    unlink(at("folder" IMAGES));
    mkdir(at("folder" IMAGES), 0700);
    patch_file("magic" IMAGES, 0, "IDX3", 4);
    write_idx("cut" IMAGES, 3, 4, 4 * 784 - 1, 0);
    write_idx("counts" LABELS, 1, 3, 3, 0);
    write_bytes("pickle" IMAGES, "\x80\x02}q\x00.", 6);
    write_bytes("zip" IMAGES, "PK\x03\x04.............................", 33);
    write_idx("label" LABELS, 1, 4, 4, 10);
    write_idx("swapped" IMAGES, 1, 4, 4, 0);
    patch_file("type" IMAGES, 2, "\x0d", 1);
    patch_file("zero" IMAGES, 4, "\0\0\0\0", 4);
    write_idx("more" IMAGES, 3, 4, 4 * 784 + 5, 0);
    unlink(at("gz" IMAGES));
    write_bytes("gz" IMAGES ".gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03garbage", 17);
    write_bytes("tiny" IMAGES, "\0\0", 2);
    patch_file("huge" IMAGES, 4, "\x7f\xff\xff\xff", 4);
    unlink(at("noimages" IMAGES));
    write_set("good");
    write_cifar("cifar", 20, 4);
    write_cifar("ccut", 20, 4);
    copy_file(at("cifar/data_batch_1.bin"), "ccut/data_batch_4.bin", 3073 * 4 - 9);
    write_cifar("clabel", 20, 4);
    patch_file("clabel/test_batch.bin", 3073 * 2, "\x0a", 1);
    write_cifar("clacks", 20, 4);
    unlink(at("clacks/data_batch_5.bin"));
    write_text("cifar-10-binary.tar.gz", "");
    write_text("training.pt", "");
    assert_int_equal(mkdir(at("cifar-10-batches-py"), 0700), 0);
    write_text("cifar-10-batches-py/data_batch_1", "");
    static const bad_case cases[] = {
        {"worker", COLOUR " --data=~/ccut", {"ccut/data_batch_4.bin", "record 3", "3064", "3073"}},
        {"worker",
         COLOUR " --data=cifar10 --data-dir=~/clabel",
         {"clabel/test_batch.bin", "record 2", "label 10"}},
        {"worker", COLOUR " --data=~/clacks", {"clacks", "data_batch_5.bin"}},
        {"worker",
         COLOUR " --data=cifar10 --data-dir=~/absent",
         {"absent", "data_batch_1.bin", "--data-dir"}},
        {"worker", COLOUR " --data=cifar100 --data-dir=~/cifar", {"cifar10", "--data=cifar10"}},
        {"worker", COLOUR " --data=~/cifar-10-batches-py", {"cifar-10-batches-py", "tools/cifar_py2bin.py"}},
        {"worker", COLOUR " --data=~/cifar-10-binary.tar.gz", {"cifar-10-binary.tar.gz", "tar -xf"}},
        {"worker", COLOUR " --data=cifar10 --data-dir=~", {"cifar-10-batches-py", "tools/cifar_py2bin.py"}},
        {"worker", COLOUR " --data=~/training.pt", {"training.pt", "tools/pt2idx.py"}},
        {"worker",
         COLOUR " --data=~/cifar --augment=crop:41:4",
         {"crop:41:4", "32 x 32", "40 x 40", "crop:40:4"}},
        {"worker", COLOUR " --data=~/cifar --resize=8 --augment=crop:32:4", {"8 x 8", "16 x 16"}},
        {"worker", COLOUR " --data=~/cifar --normalize=0.5,0.5:1,1", {"--normalize", "2", "3"}},
        {"worker",
         COLOUR " --data=~/cifar --normalize=0.5,0.5,0.5:1,0,1",
         {"--normalize", "0.5,0.5,0.5:1,0,1"}},
        {"worker", COLOUR " --data=~/cifar --normalize=0.5,0.5:1", {"--normalize", "0.5,0.5:1"}},
        {"worker", COLOUR " --data=~/cifar --augment=crop:0:4", {"--augment", "crop:0:4", "4096"}},
        {"worker", COLOUR " --data=~/cifar --augment=flip,flip", {"--augment", "flip,flip"}},
        {"worker", COLOUR " --data=~/cifar --augment=rotate:9", {"--augment", "rotate:9", "crop:32:4,flip"}},
        {"worker", COLOUR " --data=~/cifar --resize=5000", {"--resize", "5000", "4096"}},
        {"worker", COLOUR " --data=~/cifar --loader-threads=65", {"--loader-threads", "65", "64"}},
        {"worker", TOY " --augment=flip", {"--augment", "synthetic"}},
        {"entrain",
         "eval --data=~/ccut --model=resnet18:width=2 --init=~/none",
         {"data_batch_4.bin", "record 3"}},
        {"worker", MLP " --data=nowhere", {"nowhere", "fashion-mnist", "IDX"}},
        {"worker", MLP " --data=~/absent", {"absent", "train-labels-idx1-ubyte", "images-idx3"}},
        {"worker", MLP " --data=~/noimages", {"noimages", "train-images-idx3-ubyte.gz", "images-idx3"}},
        {"worker",
         MLP " --data=fashion-mnist --data-dir=~/absent",
         {"absent", "apt-get install dataset-fashion-mnist"}},
        {"worker", MLP " --data=mnist --data-dir=~/absent", {"absent", "--data-dir"}},
        {"worker", MLP " --data=~/folder", {"folder/train-images"}},
        {"worker", MLP " --data=~/magic", {"magic/train-images", "49 44 58 33", "00 00 08"}},
        {"worker", MLP " --data=~/cut", {"cut/train-images", "3151", "3152"}},
        {"worker", MLP " --data=~/counts", {"counts", "4", "3"}},
        {"worker", MLP " --data=~/pickle", {"pickle/train-images", "tools/pt2idx.py"}},
        {"worker", MLP " --data=~/zip", {"zip/train-images", "tools/pt2idx.py"}},
        {"worker", MLP " --data=~/label", {"label 10", "sample 0", "9"}},
        {"worker", MLP " --data=~/swapped", {"swapped/train-images", "1", "3"}},
        {"worker", MLP " --data=~/type", {"type/train-images", "0x0d", "0x08"}},
        {"worker", MLP " --data=~/zero", {"zero/train-images", "dimension 0"}},
        {"worker", MLP " --data=~/more", {"more/train-images", "header"}},
        {"worker", MLP " --data=~/gz", {"gz/train-images-idx3-ubyte.gz", "decompress"}},
        {"worker", MLP " --data=~/tiny", {"tiny/train-images", "2", "4"}},
        {"worker", MLP " --data=~/huge", {"huge/train-images", "17179869184"}},
        {"worker", MLP " --data=~/good --limit-train-samples=5", {"--limit-train-samples", "5", "4"}},
        {"worker", TOY " --data=~/good", {"28 x 28", "1 x 1 x 10", "--model"}},
        {"entrain", "data ~/cut", {"cut/train-images", "3151", "3152"}},
        {"entrain", "run -n 1 " MLP " --data=~/counts", {"counts", "4", "3"}},
    };
    REFUSE_ALL(cases, "data files");
}

/* ---- weights ------------------------------------------------------------------------------------------- */

#define W1  "\"net1.weight\":{\"dtype\":\"F32\",\"shape\":[10,10],\"data_offsets\":[0,400]}"
#define B1  "\"net1.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[400,440]}"
#define W2  "\"net2.weight\":{\"dtype\":\"F32\",\"shape\":[5,10],\"data_offsets\":[440,640]}"
#define B2  "\"net2.bias\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[640,660]}"
#define ALL "{" W1 "," B1 "," W2 "," B2 "}"

static void write_weights(void)
{
    write_safetensors("good.st", ALL, 660, 0.5f);
    write_safetensors("missing.st", "{" W1 "," B1 "," W2 "}", 640, 0);
    write_safetensors("extra.st",
                      "{" W1 "," B1 "," W2 "," B2
                      ",\"net3.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[660,668]}}",
                      668, 0);
    write_safetensors("shape.st",
                      "{\"net1.weight\":{\"dtype\":\"F32\",\"shape\":[5,20],\"data_offsets\":[0,400]}," B1
                      "," W2 "," B2 "}",
                      660, 0);
    write_safetensors("hole.st",
                      "{" W1 ",\"net1.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[404,444]}}",
                      444, 0);
    write_safetensors("overlap.st",
                      "{" W1 ",\"net1.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[396,436]}}",
                      436, 0);
    write_safetensors("outside.st",
                      "{" W1 ",\"net1.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[400,440]}}",
                      436, 0);
    write_safetensors("nan.st", ALL, 660, NAN);
    write_safetensors("inf.st", ALL, 660, INFINITY);
    write_safetensors(
        "half.st", "{\"net1.weight\":{\"dtype\":\"F16\",\"shape\":[10,10],\"data_offsets\":[0,200]}," B1 "}",
        440, 0);
    write_safetensors("twice.st", "{" W1 "," W1 "}", 400, 0);
    write_safetensors("json.st", "{\"net1.weight\":", 16, 0);
    write_safetensors("tail.st", ALL, 664, 0);
    write_safetensors("list.st", "[1,2,3]", 16, 0);
    write_text("empty.st", "");
    write_text("text.st", "these are no weights at all, but a line of text\n");
    write_bytes("torch.pt", "PK\x03\x04................................................", 52);
    write_bytes("old.pt", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", 22);
    copy_file(at("good.st"), "cut.st", 500);
    copy_file(at("good.st"), "header.st", 60);
    char trained[200];
    process p;
    snprintf(trained, sizeof trained, "%s", at("mlp.st"));
    process_start(&p, "worker", NULL,
                  MLP " --data=synthetic --limit-train-samples=8 --limit-test-samples=8 --save=%s", trained);
    assert_int_equal(process_wait(&p, 30), 0);
    process_start(&p, "worker", NULL, TOY " --init=%s", at("good.st")); /* only what is bad is refused */
    assert_int_equal(process_wait(&p, 30), 0);
}

static void test_weights(void **state)
{
    (void)state;
    write_weights();
    static const bad_case cases[] = {
        {"worker", TOY " --init=~/nowhere.st", {"nowhere.st", "No such file"}},
        {"worker", TOY " --init=~", {"/tmp/entrain-test-", "file"}},
        {"worker", TOY " --init=~/missing.st", {"missing.st", "net2.bias", "(5)"}},
        {"worker", TOY " --init=~/extra.st", {"extra.st", "net3.bias", "2", "toy"}},
        {"worker", TOY " --init=~/shape.st", {"shape.st", "net1.weight", "(5, 20)", "(10, 10)"}},
        {"worker", TOY " --init=~/hole.st", {"hole.st", "net1.bias"}},
        {"worker", TOY " --init=~/overlap.st", {"overlap.st", "net1.bias", "overlaps"}},
        {"worker", TOY " --init=~/outside.st", {"outside.st", "[400, 440]", "436"}},
        {"worker", TOY " --init=~/nan.st", {"nan.st", "element 0", "nan"}},
        {"worker", TOY " --init=~/inf.st", {"inf.st", "element 0", "inf"}},
        {"worker", TOY " --init=~/half.st", {"half.st", "F16", ".float()"}},
        {"worker", TOY " --init=~/twice.st", {"twice.st", "83"}},
        {"worker", TOY " --init=~/json.st", {"json.st", "15"}},
        {"worker", TOY " --init=~/tail.st", {"tail.st", "4 bytes"}},
        {"worker", TOY " --init=~/list.st", {"list.st", "safetensors"}},
        {"worker", TOY " --init=~/empty.st", {"empty.st", "safetensors"}},
        {"worker", TOY " --init=~/text.st", {"text.st", "safetensors"}},
        {"worker", TOY " --init=~/cut.st", {"cut.st", "[0, 400]", "221"}},
        {"worker", TOY " --init=~/header.st", {"header.st", "271", "60"}},
        {"worker", TOY " --init=~/torch.pt", {"torch.pt", "save_file"}},
        {"worker", TOY " --init=~/old.pt", {"old.pt", "save_file"}},
        {"worker", TOY " --init=~/mlp.st", {"mlp.st", "toy"}},
        {"entrain", "eval --model=toy --init=~/nan.st", {"nan.st", "element 0"}},
        {"entrain", "eval --model=toy --init=~", {"/tmp/entrain-test-", "file"}},
        {"entrain", "eval --model=toy --init=~/shape.st", {"shape.st", "(5, 20)", "(10, 10)"}},
    };
    REFUSE_ALL(cases, "weights");
}

/* ---- plugins ------------------------------------------------------------------------------------------- */

static void test_plugins(void **state)
{
    (void)state;
    static const char plugin[] = EN_BUILD_DIR "/plugins/strategy_solo.so";
    struct stat is;
    assert_int_equal(stat(plugin, &is), 0);
    write_text("text.so", "this is no shared object\n");
    write_text("empty.so", "");
    copy_file(plugin, "head.so", 40);
    copy_file(plugin, "half.so", (size_t)is.st_size / 2);
    copy_file(plugin, "last.so", (size_t)is.st_size - 1);
    copy_file(plugin, "machine.so", (size_t)is.st_size);
    patch_file("machine.so", 18, "\x16\x00", 2); /* e_machine: S/390 */
    copy_file(plugin, "class.so", (size_t)is.st_size);
    patch_file("class.so", 4, "\x01", 1); /* 32 bits */
    copy_file(plugin, "kind.so", (size_t)is.st_size);
    patch_file("kind.so", 16, "\x01\x00", 2); /* ET_REL */
    copy_file(plugin, "noise.so", (size_t)is.st_size);
    for (long offset = 64; offset + 4 <= is.st_size; offset += 4)
        patch_file("noise.so", offset, "\x5a\xc3\x0f\x96", 4);
    /* each file is named with the bytes that it has */
    char half[24], last[24], whole[24];
    snprintf(half, sizeof half, "%lld", (long long)is.st_size / 2);
    snprintf(last, sizeof last, "%lld", (long long)is.st_size - 1);
    snprintf(whole, sizeof whole, "%lld", (long long)is.st_size);
    const bad_case cases[] = {
        {"worker", RING " --strategy=~/nowhere.so", {"nowhere.so", "No such file", "cc -shared"}},
        {"worker", RING " --strategy=~", {"/tmp/entrain-test-", "cc -shared"}},
        {"worker", RING " --strategy=~/text.so", {"text.so", "74 68 69 73", "cc -shared"}},
        {"worker", RING " --strategy=~/empty.so", {"empty.so", "cc -shared"}},
        {"worker", RING " --strategy=~/head.so", {"head.so", "40"}},
        {"worker", RING " --strategy=~/half.so", {"half.so", half}},
        {"worker", RING " --strategy=~/last.so", {"last.so", last}},
        {"worker", RING " --strategy=~/machine.so", {"machine.so", "22"}},
        {"worker", RING " --strategy=~/class.so", {"class.so", "class 1"}},
        {"worker", RING " --strategy=~/kind.so", {"kind.so", "ELF", "cc -shared"}},
        {"worker", RING " --strategy=~/noise.so", {"noise.so", whole}},
        {"worker", RING " --strategy=" EN_BUILD_DIR "/worker", {"/worker"}},
        {"worker", RING " --strategy=" BAD "1.so", {"bad1.so", "ABI 99", "2"}},
        {"worker", RING " --strategy=" BAD "2.so", {"bad2.so", "24 bytes", "sizeof(en_strategy)"}},
        {"worker", RING " --strategy=" BAD "3.so", {"bad3.so", "My Strategy", "a-z"}},
        {"worker", RING " --strategy=" BAD "4.so", {"bad4.so", "submit"}},
        {"worker", RING " --strategy=" BAD "5.so", {"bad5.so", "en_strategy_entry"}},
        {"worker", RING " --strategy=" BAD "6.so", {"bad6.so", "256"}},
        {"worker", RING " --strategy=" BAD "7.so", {"bad7.so", "0x40000000"}},
        {"worker", RING " --strategy=" BAD "8.so", {"bad8.so", "period", "range"}},
        {"worker", RING " --strategy=" BAD "9.so", {"bad9.so", "ABI 2"}},
        {"worker", RING " --strategy=" BAD "10.so", {"bad10.so", "period"}},
        {"worker", RING " --strategy=" BAD "11.so", {"bad11.so", "EN_USES_GROUPS", "EN_SHARED_PARAMS"}},
        {"worker", RING " --strategy=" EN_BUILD_DIR "/plugins/strategy_ps.so@sp", {"sp", "ssp"}},
        {"entrain", "run -n 2 " RING " --strategy=~/half.so", {"half.so", half}},
        {"entrain", "strategies ~/half.so", {"half.so", half}},
        {"psd", "--world-size=2 --strategy=~/half.so", {"half.so", half}},
        {"entrain", "compare --arm=ring --arm=~/half.so", {"half.so", half}},
    };
    REFUSE_ALL(cases, "plugins");

    /* a device's file, too */
    const bad_case device = {"worker", SOLO " --device=cpu", {"device_cpu.so", half}};
    char env[200];
    assert_int_equal(mkdir(at("plugins"), 0700), 0);
    copy_file(plugin, "plugins/strategy_solo.so", (size_t)is.st_size);
    copy_file(plugin, "plugins/device_cpu.so", (size_t)is.st_size / 2);
    snprintf(env, sizeof env, "ENTRAIN_PLUGIN_PATH=%s", at("plugins"));
    refuse_in(&device, env, 1);
}

/* ---- where things go ----------------------------------------------------------------------------------- */

static void test_outputs(void **state)
{
    (void)state;
    write_text("file", "kept");
    static const bad_case cases[] = {
        {"worker", TOY " --out=~/file", {"--out", "/file"}},
        {"worker", TOY " --out=~/file/out", {"--out", "file/out", "Not a directory"}},
        {"worker", TOY " --save=~/no/w.st", {"--save", "/no", "No such file"}},
        {"worker", TOY " --save=~", {"--save", "/tmp/entrain-test-", "file"}},
        {"worker", TOY " --trace=~/no/t.json", {"--trace", "/no"}},
        {"psd", "--strategy=ps-sync --world-size=1 --trace=~/no/t.json", {"--trace", "/no"}},
        {"worker", TOY " --checkpoint-every=8", {"--checkpoint-every", "--out"}},
        {"worker",
         TOY " --token-file=~/file --world-size=2 --rank=1 --strategy=ring",
         {"/file", "0600", "644"}},
    };
    REFUSE_ALL(cases, "outputs");
    char text[8] = "";
    FILE *file = fopen(at("file"), "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "kept");
}

/* Output that cannot be written is not a success. */
static void print_on_full_disk(const void *commands, size_t i)
{
    const char *command = ((const char *const *)commands)[i];
    char script[400];
    process p;
    snprintf(script, sizeof script, "exec " EN_BUILD_DIR "/entrain %s > /dev/full\n", command);
    write_text("full.sh", script);
    process_start(&p, "/bin/sh", NULL, "%s", at("full.sh"));
    const int code = end_within(&p, WITHIN);
    if (code != 1 || process_says(&p, "No space left", "") != 1)
        fail_msg("%s > /dev/full: exit %d\n%s", command, code, process_err(&p));
}

static void test_standard_output(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "strategies", "models", "data", "ps", "--help", "run --help", "sim --strategy=ring --steps=2"};
    enum { COMMANDS = sizeof commands / sizeof *commands };
    side_by_side(COMMANDS, print_on_full_disk, commands);
    promise("standard output on a full disk: %d of %d commands say so and end with 1", COMMANDS, COMMANDS);
}

/* A pipe without a writer is refused as a file after 5 s. */
static void test_silent_pipe(void **state)
{
    (void)state;
    process p;
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    process_start(&p, "entrain", NULL, "run --config=%s", at("pipe"));
    const double begin = now_seconds();
    const int code = end_within(&p, 5 + WITHIN);
    if (code != 2 || now_seconds() - begin < 4.5 || process_says(&p, "--config", at("pipe")) != 1)
        fail_msg("--config=PIPE: exit %d\n%s", code, process_err(&p));
}

/* File modes do not bind root: this child gives up those capabilities for good. */
static void test_permissions(void **state)
{
    (void)state;
    if (geteuid() == 0 &&
        (prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0 || prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) != 0)) {
        promise("unreadable files are not tried: root reads everything");
        return;
    }
    write_set("locked");
    write_safetensors("locked.st", ALL, 660, 0);
    copy_file(EN_BUILD_DIR "/plugins/strategy_solo.so", "locked.so", 1 << 22);
    mkdir(at("closed"), 0500);
    chmod(at("locked" IMAGES), 0);
    chmod(at("locked.st"), 0);
    chmod(at("locked.so"), 0);
    static const bad_case cases[] = {
        {"worker", MLP " --data=~/locked", {"locked/train-images", "Permission denied"}},
        {"worker", TOY " --init=~/locked.st", {"locked.st", "Permission denied"}},
        {"worker", RING " --strategy=~/locked.so", {"locked.so", "Permission denied"}},
        {"worker", TOY " --out=~/closed", {"--out", "Permission denied"}},
        {"worker", TOY " --save=~/closed/w.st", {"--save", "Permission denied"}},
    };
    REFUSE_ALL(cases, "permissions");
}

/* ---- the machine --------------------------------------------------------------------------------------- */

/* A tmpfs of a few pages in a mount namespace of its own, filled to the last byte. */
static void test_full_disk(void **state)
{
    (void)state;
    process p;
    char script[700];
    assert_int_equal(mkdir(at("disk"), 0700), 0);
    snprintf(script, sizeof script,
             "mount -t tmpfs -o size=16k tmpfs %s/disk || exit 77\n"
             "mkdir %s/disk/out; cat /dev/zero > %s/disk/fill 2> /dev/null\n"
             "exec " EN_BUILD_DIR "/worker " TOY " --out=%s/disk/out\n",
             system_folder(), system_folder(), system_folder(), system_folder());
    write_text("disk.sh", script);
    process_start(&p, "/usr/bin/unshare", NULL, "--map-root-user --mount /bin/sh %s", at("disk.sh"));
    int code = end_within(&p, WITHIN);
    if (code == 77 || code == 1 || code == 127) {
        promise("a full disk is not tried: no mount namespace here (%.80s)", process_err(&p));
        return;
    }
    char line[2000];
    int n = error_lines(process_err(&p), line, sizeof line);
    if (code != 2 || n < 1 || strstr(line, "No space left") == NULL || strstr(line, "/disk/out") == NULL)
        fail_msg("a full disk: exit %d\n%s", code, process_err(&p));
    promise("a full disk: exit 2, \"%.120s\"", line + 15);
}

/* Too little memory for the model, but enough to start and to report that. */
static void test_no_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    promise("no memory is not tried: a sanitizer's shadow needs more than any limit");
#else
    process p;
    char line[2000];
    process_start(&p, "/usr/bin/prlimit", NULL,
                  "--as=600000000 " EN_BUILD_DIR "/worker " MLP
                  " --data=synthetic --limit-test-samples=8 --limit-train-samples=2000000");
    int code = end_within(&p, WITHIN);
    if (code == 127) {
        promise("no memory is not tried: there is no prlimit");
        return;
    }
    int n = error_lines(process_err(&p), line, sizeof line);
    if (code != 2 || n < 1 || !text_has(line, "1568000000") || !text_has(line, "ulimit -v"))
        fail_msg("no memory: exit %d\n%s", code, process_err(&p));
    promise("no memory: exit 2, \"%.120s\"", line + 15);
#endif
}

/* From too little memory to start to enough to train: no library ends a process, each process reports its
 * need. */
static void test_little_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    int trained = 0, refused = 0;
    for (int mb = 110; mb <= 360 && trained < 2; mb += 11) {
        process p;
        process_start(&p, "/usr/bin/prlimit", NULL,
                      "--as=%d000000 " EN_BUILD_DIR
                      "/entrain run -n 2 --strategy=ps-async --model=mlp --data=synthetic --batch-size=64 "
                      "--limit-test-samples=200 --limit-train-samples=2000 --steps=3 --threads=1 --quiet",
                      mb);
        const int code = end_within(&p, 4 * WITHIN);
        if (code == 127) skip(); /* there is no prlimit */
        const char *err = process_err(&p);
        const int is_crash = strstr(err, "(SIG") != NULL || strstr(err, "called exit") != NULL;
        if (code > 2 || is_crash || (code != 0 && strstr(err, " E ") == NULL))
            fail_msg("%d MB: exit %d\n%s", mb, code, err);
        trained += code == 0;
        refused += code != 0;
        process_nobody_left(GUARD);
    }
    promise("ulimit -v: %d runs that had too little ended in a sentence, %d trained", refused, trained);
}

/* A stack that may grow does; each program refuses one that may not, in one sentence. */
static void test_little_stack(void **state)
{
    static const char *const programs[] = {"entrain run --strategy=ring", "psd --strategy=ps-sync",
                                           "worker --rank=0"};
    process p;
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        process_start(&p, "/usr/bin/prlimit", NULL, "--stack=65536:65536 " EN_BUILD_DIR "/%s", programs[i]);
        const int code = end_within(&p, WITHIN);
        if (code == 127) skip(); /* there is no prlimit */
        if (code != 2 || process_says(&p, "64 KiB", "ulimit -s 8192") != 1 || process_says(&p, "", "") != 1)
            fail_msg("%s: exit %d\n%s", programs[i], code, process_err(&p));
    }
    process_start(&p, "/usr/bin/prlimit", NULL,
                  "--stack=65536:1048576 " EN_BUILD_DIR
                  "/entrain run -n 2 --strategy=ps-async --model=convnet --data=synthetic --batch-size=8 "
                  "--limit-test-samples=20 --limit-train-samples=64 --steps=3 --threads=2 --quiet "
                  "--out=%s/little-stack",
                  system_folder());
    if (end_within(&p, 4 * WITHIN) != 0)
        fail_msg("a stack of 64 KiB that may grow to 1 MiB: %s", process_err(&p));
    process_nobody_left(GUARD);
    promise("ulimit -s 64: one sentence from each program, or training where the hard limit is higher");
}

/* Only the size of the world makes these wrong; ranks see it before the first step. */
static void test_strategies_in_this_world(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"entrain", "run -n 2 --strategy=softsync:splits=3 " RING, {"splits=3", "2 workers", "1 to 2"}},
        {"entrain", "run -n 2 --strategy=softsync:rate=stale " RING, {"rate=stale", "staleness or none"}},
        {"entrain", "run -n 2 --strategy=slowmo:buffer=kep " RING, {"buffer=kep", "keep, average or reset"}},
        {"entrain",
         "run -n 3 --strategy=d-psgd:graph=exponential " RING,
         {"exponential", "3", "power of two"}},
    };
    side_by_side(sizeof cases / sizeof *cases, refuse_thrice, cases);
}

/* The waiting process names the missing ranks. */
static void test_rank_that_never_comes(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"worker",
         RING " --strategy=ring --rendezvous=tcp://127.0.0.1:0 --rank=0 --world-size=3 --join-timeout=0.3s",
         {"1", "2", "3", "0.3"}},
        {"psd",
         "--strategy=ps-sync --world-size=2 --listen=tcp://127.0.0.1:0 --join-timeout=0.3s",
         {"0", "1", "2", "0.3"}},
    };
    side_by_side(sizeof cases / sizeof *cases, refuse_twice,
                 cases); /* rank 0 leads: as leader and as member */
    promise("a rank that never comes is named by worker and psd: 2 of 2");
}

/* All ranks find it alike, before the first step. */
static void test_too_many_buckets(void **state)
{
    (void)state;
    process p;
    process_start(
        &p, "entrain", NULL,
        "run -n 4 --strategy=hierarchical --data=synthetic --model=mlp --steps=2 --bucket-cap-mb=0.001");
    const int code = end_within(&p, 4 * WITHIN);
    if (code != 2 || process_says(&p, "--bucket-cap-mb=0.001", "256") == 0)
        fail_msg("too many buckets: exit %d\n%s", code, process_err(&p));
}

/* Flags of a run that have a meaning in virtual time work in each of their spellings. */
static void test_sim_takes_flags_of_run(void **state)
{
    (void)state;
    static const char *const flags[] = {"-n 2 --lr 0.1 --net=rate:1Gbit,delay:20us",
                                        "--workers=2 --lr=0.1 --net=rate:125MB,delay:20us",
                                        "--workers=2 --lr=0.1 --net=rate:125MB,delay:40us"};
    char log[3][72];
    double seconds[3];
    for (int i = 0; i < 3; i++) {
        process p;
        process_start(&p, "entrain", NULL, "sim --strategy=ring --steps=20 --json %s", flags[i]);
        assert_int_equal(end_within(&p, WITHIN), 0);
        json_t *sim = json_loads(process_out(&p), 0, NULL);
        assert_non_null(sim);
        snprintf(log[i], sizeof log[i], "%s", text_at(sim, "log_sha256"));
        seconds[i] = number_at(sim, "seconds");
        json_decref(sim);
    }
    assert_string_equal(log[0], log[1]);
    assert_true(seconds[0] == seconds[1] && seconds[1] < seconds[2]);
    process p;
    process_start(&p, "entrain", NULL,
                  "sim --storm --seed=3 --seeds=5 --strategy=ssp:bound=1 --promise=at-once");
    assert_int_equal(end_within(&p, WITHIN), 0);
    if (strstr(process_out(&p), "ssp:bound=1") == NULL) fail_msg("%s", process_out(&p));
}

/* -q prints the result, and no line of progress. */
static void test_quiet(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", NULL, "run -q -n 2 --strategy=ring --data=synthetic --model=toy --steps=20");
    assert_int_equal(end_within(&p, 4 * WITHIN), 0);
    const char *out = process_out(&p);
    if (strstr(out, "Train Epoch") != NULL || !text_has(out, "ring") || !text_has(out, "20"))
        fail_msg("-q prints\n%s", out);
}

int main(void)
{
    /* Lists of cases, and tests that are one case each. */
    const struct CMUnitTest lists[] = {
        cmocka_unit_test(test_places),         cmocka_unit_test(test_elastic), cmocka_unit_test(test_flags),
        cmocka_unit_test(test_commands),       cmocka_unit_test(test_yaml),    cmocka_unit_test(test_data),
        cmocka_unit_test(test_weights),        cmocka_unit_test(test_plugins), cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_standard_output)};
    const struct CMUnitTest cases[] = {cmocka_unit_test(test_little_memory),
                                       cmocka_unit_test(test_silent_pipe),
                                       cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_little_stack),
                                       cmocka_unit_test(test_strategies_in_this_world),
                                       cmocka_unit_test(test_rank_that_never_comes),
                                       cmocka_unit_test(test_permissions),
                                       cmocka_unit_test(test_too_many_buckets),
                                       cmocka_unit_test(test_quiet),
                                       cmocka_unit_test(test_sim_takes_flags_of_run)};
    return system_main(lists) + side_by_side_main(cases);
}
