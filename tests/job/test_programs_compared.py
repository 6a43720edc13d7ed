#!/usr/bin/env python3
"""test_programs_compared.py BUILD: `entrain compare .. -- PROGRAM` and `entrain scale .. -- PROGRAM`: the arms' settings reach the
program, and the report says what ran."""
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

try:
    import numpy  # noqa: F401
except ImportError:
    print("SKIP: no numpy")
    sys.exit(77)

# Promise: `entrain compare -- PROGRAM` gives a program the settings of each arm, and its fairness box says which program ran;
# data whose hash is not known, or a script that has changed, is no PASS.
# Promise: A target may be a loss: curves, tables, verdict and CSV are of the time to it, and there is no NaN in JSON.
# Promise: A program that stops its run early ends `entrain run` with its own exit code, under ring and ps-async; one that forgets
# Promise: rank.end() is told so. A run whose psd, or one of whose ranks, is ended by a signal does not end with 0, nor does one that
# Promise: has failed while its ranks end with 0.
# Promise: What entrain refuses ends a Python program, and `entrain run`, with 2.
# Promise: Rank 0's output goes through as it is printed; in a study, and for the other ranks, it is in OUT/rank-R.log.

build = pathlib.Path(sys.argv[1]).resolve()
source = pathlib.Path(__file__).resolve().parents[2]
LINE, NUMPY = str(build / "examples" / "rank_line"), [sys.executable, str(source / "examples" / "rank" / "numpy_only.py")]
os.environ.update(ENTRAIN_LIBRARY=str(build / "libentrain.so"), PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(source / "python"))
WAIT = 400


def entrain(*words, code=0):
    done = subprocess.run([build / "entrain", *map(str, words)], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == code, (words, done.returncode, done.stdout[-1500:], done.stderr[-3000:])
    return done.stdout, done.stderr


def load(*path):
    return json.loads(pathlib.Path(*path).read_text(), parse_constant=lambda word: sys.exit(f"{path} has {word}"))


def rules(out):
    return {rule["rule"]: (rule["mark"], rule["found"]) for rule in load(out, "report.json")["rules"]}


def test_arms(top):
    """Each arm's settings reach the program, over its own; a baseline of one process has the same bytes."""
    out, job = top / "study", ["--steps=12", "--momentum=0.5", "--quiet", "--target=60"]
    entrain("compare", "-n", 2, "--arm=ring", "--arm=solo", "--arm=ps-sync", "--arm=wide=ring:set.width=96,lr=0.02", *job,
            f"--out={out}", "--", *NUMPY)
    result = {arm: load(out, "runs", f"even-{arm}-s1", "result.json") for arm in ("ring", "solo", "ps-sync", "wide")}
    for arm, lr in (("ring", 0.05), ("solo", 0.05), ("ps-sync", 0.05), ("wide", 0.02)):  # 0.05 is the program's own
        assert result[arm]["lr"] == 2 * lr, (arm, result[arm]["lr"])  # --lr-scale=linear is compare's default
        assert result[arm]["momentum"] == 0.5 and result[arm]["budget"]["steps"] == 12
        assert result[arm]["program"]["file"] == "numpy_only.py" and result[arm]["program"]["weights"] == "private"
    assert result["wide"]["program"]["set"] == ["width=96"] and result["ring"]["program"]["set"] == []
    assert result["ring"]["params_sha256"] == result["ps-sync"]["params_sha256"] == result["solo"]["params_sha256"]
    assert result["wide"]["init_sha256"] != result["ring"]["init_sha256"]
    found = rules(out)
    assert found["same bytes"][0] == "PASS", found
    mark, said = found["initial weights"]
    assert mark == "PASS" and "settings of the program" in said, said  # another width is another model
    mark, said = found["same program"]
    assert mark == "WARN" and "numpy_only.py" in said and "native step" in said and "wide: width=96" in said, said
    assert found["same task"][0] == "WARN" and "hash is not known" in found["same task"][1], found
    for rank in (0, 1):
        assert "loss and accuracy" in (out / f"runs/even-ring-s1/rank-{rank}.log").read_text()
    assert load(out, "compare.json")["command"] == NUMPY
    print("PROMISE entrain compare -- numpy_only.py: solo, ring and ps-sync have the same bytes; an arm sets lr and the width")


def test_slow(top):
    """The setting "slow" slows a rank of a program, and changes no bytes."""
    out = top / "slow"
    entrain("compare", "-n", 2, "--arm=ring", "--arm=ps-async", "--settings=even,slow", "--steps=6", "--quiet", f"--out={out}", "--", *NUMPY)
    even, slow = (load(out, "runs", f"{setting}-ring-s1", "result.json") for setting in ("even", "slow"))
    assert slow["params_sha256"] == even["params_sha256"] and even["stragglers"] == []
    assert [(one["rank"], one["factor"]) for one in slow["stragglers"]] == [(1, 3)], slow["stragglers"]


def test_changed_script(top):
    out, script = top / "changed", top / "train.py"
    shutil.copy(NUMPY[1], script)
    flags = ["compare", "-n", 2, "--arm=ring", "--arm=ps-sync", "--steps=3", "--quiet", f"--out={out}"]
    entrain(*flags, "--", sys.executable, script)
    assert rules(out)["same program"][0] == "PASS"
    shutil.rmtree(out / "runs" / "even-ps-sync-s1")
    script.write_text(script.read_text() + "# changed\n")
    said = entrain(*flags, "--resume", "--", sys.executable, script, "more", code=2)[1]
    assert "command" in said and "another study" in said, said
    entrain(*flags, "--resume", "--", sys.executable, script)
    mark, said = rules(out)["same program"]
    assert mark == "FAIL" and "sha256" in said, said


def test_loss(top):
    """A program without an accuracy."""
    out = top / "line"
    said = entrain("compare", "-n", 2, "--arm=ring", "--arm=ps-async", "--seeds=1,2", "--target=loss:0.5", "--batch-size=20",
                   "--assign=fixed",  # a rank that starts late would find all batches taken, and rank 0 has the curve's points
                   "--steps=60", "--lr=0.05", "--quiet", f"--out={out}", "--", LINE)[0]
    assert "loss 0.5" in said and "a loss of 0.5" in said and "accuracy" not in said, said
    study = load(out, "report.json")
    assert study["target"] is None and study["target_loss"] == 0.5 and load(out, "compare.json")["target_loss"] == 0.5
    assert all(row["target_s"] > 0 and row["test_accuracy"] is None for row in study["table"]), study["table"]
    for run in (out / "runs").iterdir():
        result = load(run, "result.json")
        assert result["test_accuracy"] is None and result["train_accuracy"] is None and result["target_loss"] == 0.5
        points = [json.loads(line, parse_constant=sys.exit) for line in (run / "eval.jsonl").read_text().splitlines()]
        assert all(point["test_accuracy"] is None for point in points)
        assert any(point.get("bracket") for point in points) and points[0]["test_loss"] > 0.5 > points[-1]["test_loss"]
    page = (out / "report.html").read_text()
    assert "target loss 0.5" in page and "to loss 0.5" in page and "nan" not in page.lower().replace("finance", "")
    entrain("report", out, "--csv", "--latex", "--quiet")
    rows = list(csv.DictReader((out / "runs.csv").open()))
    assert len(rows) == 4 and all(float(row["target_s"]) > 0 and row["test_accuracy"] == "" for row in rows)
    said = entrain("report", out, "--target=loss:1e-9", "--quiet")[0]  # never reached, and named afterwards
    assert "loss 1e-09" in said and "no arm reached a loss of 1e-09" in said, said
    print("PROMISE --target=loss:0.5 of a program without accuracy: table, verdict, CSV, page; null in JSON")


def test_scale(top):
    out = top / "scale"
    entrain("scale", "-n", "1,2", "--arms=ring", "--global-batch-size=40", "--repeats=1", "--steps=20", "--quiet", f"--out={out}",
            "--set.unread=1", "--", LINE, "momentum=0.25")
    rows = load(out, "scale.json")["rows"]
    assert [(row["scaling"], row["workers"], row["batch_size"]) for row in rows] == \
        [("strong", 1, 40), ("strong", 2, 20), ("weak", 1, 40), ("weak", 2, 40)], rows
    result = load(out, "strong-ring-n2-0", "result.json")
    assert result["batch_size"] == 20 and result["momentum"] == 0.25 and result["program"]["set"] == ["unread=1"]


def test_refused(top):
    both = ["compare", "-n", 2, "--arm=ring", f"--out={top / 'refused'}", "--quiet"]
    (top / "plain").write_text("")
    for words, what, more in (([*both, "--virtual", "--", LINE], "--virtual", "entrain.simulate"),
                              (["run", "-n", 2, "--"], "behind --", "omit --"),
                              (["run", "-n", 2, "--", ""], "behind --", "omit --"),
                              (["run", "-n", 2, "--", top], str(top), "is a folder"),
                              (["run", "-n", 2, "--", top / "plain"], "plain", "chmod +x"),
                              (["run", "-n", 2, "--", "./none"], "./none", "is not there"),
                              ([*both, "--tune=lr=0.1,0.2", "--", LINE], "--tune", "held-out"),
                              ([*both, "--clip-norm=1"], "--clip-norm", "behind --"),
                              ([*both, "--model=mlp", "--", LINE], "--model", LINE),
                              ([*both, "--arm=x=ring:device=cpu", "--", LINE], "--device", "omit it"),
                              ([*both, "--set.width=3"], "--set", "behind --"),
                              ([*both, "--set.width", "--", LINE], "--set", "NAME=VALUE"),
                              ([*both, "--set.a/b=3", "--", LINE], "--set", "NAME=VALUE"),
                              ([*both, f"--set.a={'x' * 5000}", "--", LINE], "--set", "4,095 bytes"),
                              ([*both, "--target=loss:x", "--", LINE], "--target", "loss:VALUE")):
        said = entrain(*words, code=2)[1]
        assert any(what in line and more in line for line in said.splitlines()), (words, said)


def test_output(top):
    """Python's print would be kept back on a pipe. The last that a rank says is shown when it fails."""
    run = subprocess.Popen([build / "entrain", "run", "-n", "2", "--", sys.executable, "-c", "import time; print('here'); time.sleep(99)"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    began = time.monotonic()
    assert run.stdout.readline() == "here\n" and time.monotonic() - began < 60
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=WAIT)
    said = entrain("run", "-n", 2, f"--out={top / 'dies'}", "--", sys.executable, "-c",
                   "import os, time; os.environ['RANK'] == '1' and {}['no such layer']; time.sleep(99)", code=1)[1]
    assert "The last that rank 1 printed:" in said and "KeyError: 'no such layer'" in said, said
    assert "KeyError" in (top / "dies" / "rank-1.log").read_text()


def test_scripts(top):
    """A script of several lines; what entrain refuses ends it with 2, and what the program itself raises with 1."""
    for script, code, words in (("import entrain\nif True:\n\tprint('joins')\n\tentrain.Rank({'w': [1.0]}, 10, stratgy='ring')", 2, ("stratgy",)),
                                ("import entrain\nrank = entrain.Rank({'w': [1.0]}, 10, steps=9)\nrank.finish(1)", 2, ("no step has begun",)),
                                ("import entrain\nentrain.setting('a', 5)", 2, ("--set.a", "abc")),
                                ("import entrain\nentrain.Rank({'w': [1.0]}, 10, rates={'W': (1, 0)})", 2, ("rates", "'W'", "among w")),
                                ("import entrain\nrank = entrain.Rank({'w': [1.0]}, 10, steps=9)\nint('x')", 1, ("ValueError", "int()"))):
        said = entrain("run", "-n", 2, "--strategy=ring", "--quiet", "--set.a=abc", "--", sys.executable, "-c", script, code=code)[1]
        assert all(word in said for word in words), said


ENDS = """
import sys, entrain
rank = entrain.Rank({"w": [1.0]}, 100, batch_size=5, steps=1000)
for step, samples in enumerate(rank.batches()):
    rank.finish(1)
    if step == 5 and sys.argv[1] == "stops":
        rank.stop("enough")
    if step == 5 and sys.argv[1] == "breaks":
        break
    if step == 5 and sys.argv[1] == "raises":
        raise RuntimeError("loader 3 failed\\nTraceback\\n  line 7\\nno such image\\n")
if sys.argv[1] != "forgets":
    rank.end()
"""


SLEEPS = """
import time, entrain
rank = entrain.Rank({"w": [1.0]}, 100)
for step, samples in enumerate(rank.batches()):
    print("computes", flush=True)
    time.sleep(1000)
"""


ASKED = """
import os, time, entrain
rank = entrain.Rank({"w": [1.0]}, 100, batch_size=5, steps=1000000)
for step, samples in enumerate(rank.batches()):
    if step == 5: print(os.getpid(), flush=True)
    time.sleep(0.001)
    rank.finish(1)
rank.end()
print("has ended")
"""


LATE = """
import os, signal, entrain
is_over = False
def evaluate(weights):
    if is_over: os.kill(os.getpid(), signal.SIGTERM)
    return 1.0
rank = entrain.Rank({"w": [1.0]}, 100, batch_size=5, epochs=1, evaluate=evaluate)
for samples in rank.batches():
    rank.finish(1)
is_over = True
rank.end()
"""


HIDES = """
import entrain
try:
    with entrain.Rank({"w": [1.0]}, 100, batch_size=5, steps=1000000) as rank:
        for step, samples in enumerate(rank.batches()):
            rank.finish(1 if step < 5 else float("nan"))
except entrain.RunError:
    pass
"""


def psd_of(run):
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return next(int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text() == "psd\n")


def test_ends(top):
    """How a program ends the run early is what the command says, under every strategy."""
    script = top / "ends.py"
    script.write_text(ENDS)
    for strategy in "ring", "ps-async":
        for how, code, text in (("stops", 0, ""), ("forgets", 1, "ended without rank.end()"),
                                ("breaks", 2, "end() while the run has steps left"),
                                ("raises", 1, "RuntimeError: loader 3 failed .. no such image")):
            said = entrain("run", "-n", 2, f"--strategy={strategy}", "--quiet", "--", sys.executable, script, how, code=code)[1]
            assert any(text in line and "died" in line for line in said.splitlines()) or not text, (strategy, how, said)
    for strategy in "ps-sync", "ps-async":  # the ranks end with 0, but nobody has asked the run to end
        run = subprocess.Popen([build / "entrain", "run", "-n", "2", f"--strategy={strategy}", "--log-every=10", "--", LINE,
                                "steps=1000000000", "lr=0.001"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "Train Epoch" not in (line := run.stderr.readline()):
            assert line, (strategy, run.wait())
        psd = psd_of(run)
        os.kill(psd, signal.SIGTERM)
        said = run.communicate(timeout=WAIT)[1]
        assert run.returncode == 128 + signal.SIGTERM and f"pid {psd}) was ended by" in said, (strategy, run.returncode, said)
    # A signal to one rank's process ends the run in good order, and the command by the code of that signal.
    for strategy in "ring", "ps-sync":
        out = top / f"signalled-{strategy}"
        run = subprocess.Popen([build / "entrain", "run", "-n", "2", f"--strategy={strategy}", f"--out={out}", "--", sys.executable,
                                "-c", ASKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pid = int(next(line for line in run.stdout if line.strip().isdigit()))
        os.kill(pid, signal.SIGTERM)
        said = run.communicate(timeout=WAIT)
        assert run.returncode == 128 + signal.SIGTERM and "has ended" in said[0], (strategy, run.returncode, said)
        assert any(f"rank 0 (pid {pid}) was ended by a signal" in line for line in said[1].splitlines()), said
        assert load(out, "result.json")["exit"] == "interrupted", said
    for strategy in "ring", "ps-async":  # one that comes when all steps are done changes nothing
        entrain("run", "-n", 2, f"--strategy={strategy}", "--quiet", "--", sys.executable, "-c", LATE)
    said = entrain("run", "-n", 2, "--strategy=ring", "--quiet", "--", sys.executable, "-c", HIDES, code=1)[1]
    assert "diverged" in said, said
    # Stops psd during an endless step: the launcher kills all processes before one of them fails by itself.
    run = subprocess.Popen([build / "entrain", "run", "-n", "2", "--strategy=ps-sync", "--", sys.executable, "-c", SLEEPS],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "computes\n", run.communicate()
    os.kill(psd_of(run), signal.SIGSTOP)
    said = run.communicate(timeout=WAIT)[1]
    assert run.returncode == 1 and "psd" in said and "was stopped" in said, (run.returncode, said)
    script.write_text(ENDS.replace("steps=1000", "steps=9, strategy='solo'"))
    alone = subprocess.run([sys.executable, script, "forgets"], capture_output=True, text=True, timeout=WAIT)
    assert "ended without rank.end()" in alone.stderr, alone


with tempfile.TemporaryDirectory() as folder:
    for test in (test_refused, test_scripts, test_output, test_ends, test_arms, test_slow, test_changed_script, test_loss, test_scale):
        if len(sys.argv) < 3 or test.__name__ in sys.argv[2:]:
            test(pathlib.Path(folder))
