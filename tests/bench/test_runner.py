#!/usr/bin/env python3
"""The runner behind `make bench`: one cheap experiment with one turn, without peers; and its parts.

    test_runner.py BUILD

How fast anything is is not tested.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import report
import rows
import run
from rows import Experiment, Pick, Row

BUILD = sys.argv.pop()


class WholeRun(unittest.TestCase):
    """All-reduce between two ranks, without mpicc and torch."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as out:
            cls.said = subprocess.run(
                [sys.executable, ROOT / "bench/run.py", f"--build={BUILD}", "--quick", "--only=^allreduce-2$",
                 "--python=/nonexistent/python3", f"--out={out}"],
                env=dict(os.environ, PATH="/nonexistent"), capture_output=True, text=True, timeout=120)
            cls.result = json.loads(pathlib.Path(out, "RESULTS.json").read_text())
            cls.page = pathlib.Path(out, "RESULTS.md").read_text()

    def test_it_ends_well_and_says_what_it_skipped(self):
        self.assertEqual(self.said.returncode, 0, self.said.stderr)
        for peer in ("Open MPI", "Gloo"):
            self.assertIn(f"skipped: {peer}", self.said.stderr)
            self.assertTrue(any(why.startswith(peer) for why in self.result["skipped"]))
            self.assertIn(peer, self.page)

    def test_the_run_is_described(self):
        self.assertEqual(self.result["schema"], 1)
        self.assertEqual(self.result["repeat"], 1)
        for key in ("command", "date", "seconds", "commands", "rows"):
            self.assertIn(key, self.result)
        for key in ("cpu", "cores", "memory_gb", "kernel", "system", "compiler", "program", "packages", "load_before"):
            self.assertIn(key, self.result["machine"])
        self.assertTrue(any("bench_allreduce" in line for line in self.result["commands"]["allreduce-2"].values()))

    def test_every_row_has_a_verdict_and_what_it_needs(self):
        verdicts = set()
        for row in self.result["rows"]:
            verdicts.add(row["verdict"])
            if row["verdict"] == "skipped":
                self.assertRegex(row["why"], "Open MPI|Gloo")
                continue
            self.assertIn(row["verdict"], ("met", "missed", "reported"))
            self.assertGreater(row["ours"]["median"], 0)
            self.assertGreater(row["other"]["median"], 0)
            self.assertEqual(row["ratio"]["values"], [row["ratio"]["median"]])
            self.assertAlmostEqual(row["ratio"]["median"], row["ours"]["median"] / row["other"]["median"])
        self.assertIn("skipped", verdicts)
        self.assertTrue(verdicts & {"met", "missed"}, verdicts)
        self.assertEqual(self.page.count("\n| all-reduce"), len(self.result["rows"]))


class Peers(unittest.TestCase):
    """--list shows MXNet, and the target between hosts, which depends on the processor."""

    def listed(self, *flags):
        said = subprocess.run([sys.executable, ROOT / "bench/run.py", f"--build={BUILD}", "--only=^pushpull$",
                               "--python=/nonexistent/python3", "--list", *flags], capture_output=True, text=True, timeout=120)
        self.assertEqual(said.returncode, 0, said.stderr)
        return said.stdout

    def test_mxnet_is_skipped_with_a_word_or_run(self):
        self.assertRegex(self.listed(), r"mxnet 1724320: skipped: MXNet \(give --mxnet=PYTHON")
        self.assertIn("skipped: MXNet: /nonexistent/python3 has no mxnet", self.listed("--mxnet=/nonexistent/python3"))
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder, "python3")
            python.write_text("#!/bin/sh\n")  # it can import anything
            python.chmod(0o755)
            self.assertIn(f"{python} bench/peers/pushpull_mxnet.py --workers=2 60 1724320", self.listed(f"--mxnet={python}"))
        self.assertEqual(self.listed().count("beside MXNet's KVStore"), 4)

    def test_targets_between_hosts_go_by_avx512(self):
        class Machine:
            def __init__(self, has):
                self.has_avx512 = lambda: has

            def bench(self, name):
                return name

            def command(self, *words):
                return "none"

            between_hosts = command
        least = [[rows.allreduce_tcp(Machine(has), hosts).rows[1].at_least for hosts in (2, 4)] for has in (True, False)]
        self.assertEqual(least, [[1.4, 1], [1.2, 0.95]])


class Stages(unittest.TestCase):
    """bench/pipeline.py on a small network: the values that rows.py takes from it."""

    def measured(self, *flags):
        said = subprocess.run([sys.executable, ROOT / "bench/pipeline.py", f"--build={BUILD}", "--batch=8", "--steps=2",
                               "--model=resnet18:width=4,stem=cifar", "--limit-train-samples=64", *flags], capture_output=True, text=True, timeout=120)
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def test_stages_have_a_bubble_and_what_a_core_does_without_it(self):
        row = self.measured("--parallel=pipeline", "--stages=2", "--micro-batches=4", "--pipeline=gpipe")
        self.assertEqual((row["schedule"], row["micro_batches"], len(row["cuts"])), ("gpipe", 4, 1))
        self.assertAlmostEqual(row["bubble_ideal"], 1 / 5)
        self.assertAlmostEqual(row["bubble_off"], abs(row["bubble"] - row["bubble_predicted"]), delta=2e-4)
        own = [sum(pair) for pair in zip(row["forward_ms"], row["backward_ms"])]
        self.assertAlmostEqual(row["balance"], sum(own) / 2 / max(own), delta=0.01)
        self.assertAlmostEqual(row["core_samples_s"] * 2 * 4 / 5 * row["balance"], row["samples_s"], delta=row["samples_s"] / 100)

    def test_other_ways_have_samples_per_second(self):
        for flags in ([], ["-n", "2", "--strategy=ring"], ["--parallel=data", "--device=cpu:0,cpu:1"], ["--at-once=2"]):
            self.assertGreater(self.measured(*flags)["samples_s"], 0)


def has_torch():
    return subprocess.run([sys.executable, "-c", "import torch.distributed.pipelining, torchvision"], capture_output=True).returncode == 0


@unittest.skipUnless(has_torch(), "no torch 2.4 or later with torchvision")
class TorchProgram(unittest.TestCase):
    """bench/program.py with a few steps: the values that rows.py takes from it."""

    def measured(self, *flags):
        said = subprocess.run([sys.executable, ROOT / "bench/program.py", f"--build={BUILD}", "--batch=8", "--steps=3", "--turns=1",
                               "--warmup=2", *flags], capture_output=True, text=True, timeout=240)
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def test_a_run_ddp_and_a_rank_alone_have_steps_and_what_the_exchange_adds(self):
        for flags in (["--way=ring"], ["--way=ddp-tuned"], ["--way=solo", "-n1", "--model=chain", "--step=torch"]):
            row = self.measured("--alone", *flags)
            self.assertAlmostEqual(row["exposed_ms"], row["step_ms"] - row["alone_step_ms"], delta=0.002)
            self.assertAlmostEqual(row["exposed_percent"], 100 * row["exposed_ms"] / row["step_ms"], delta=0.1)
            for kind in ("", "alone_"):
                self.assertGreater(row[kind + "samples_s"], 0.99 * row["ranks"] * 8e3 / row[kind + "step_ms"])
            self.assertEqual(row.get("join_ms", 0) > 0, "--way=ddp-tuned" not in flags)

    def test_memory_and_import(self):
        row = self.measured("--memory")
        self.assertAlmostEqual(row["beyond_mb"], row["peak_mb"] - row["alone_peak_mb"], delta=0.2)
        self.assertGreater(self.measured("--import")["import_ms"], 0)


class Programs(unittest.TestCase):
    def test_objects_are_read_and_other_lines_are_not(self):
        objects, why = run.run_program(["/bin/sh", "-c", "echo words; echo '{\"a\":1}'; echo '{\"a\":2}'"], 20)
        self.assertIsNone(why)
        self.assertEqual(objects, [{"a": 1}, {"a": 2}])

    def test_a_failure_is_told_with_its_last_words(self):
        objects, why = run.run_program(["/bin/sh", "-c", "echo '{\"a\":1}'; echo no luck >&2; exit 3"], 20)
        self.assertEqual(objects, [])
        self.assertEqual(why, "exit code 3: no luck")
        self.assertIn("no figure", run.run_program(["/bin/true"], 20)[1])
        self.assertIn("/nonexistent", run.run_program(["/nonexistent"], 20)[1])

    def test_a_deadline_ends_all_that_was_started(self):
        with tempfile.TemporaryDirectory() as folder:
            note = pathlib.Path(folder, "pid")
            objects, why = run.run_program(["/bin/sh", "-c", f"sleep 600 & echo $! > {note}; wait"], 5)
            self.assertIn("did not end within", why)
            self.wait_for_end(pathlib.Path("/proc", note.read_text().strip(), "stat"))

    def wait_for_end(self, stat):
        for _ in range(2000):
            try:
                if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    return
            except OSError:
                return
            time.sleep(0.01)
        self.fail("the program's child is still running")


class Figures(unittest.TestCase):
    LINES = [{"rank": 0, "us": 4.0, "whole": 10.0, "part": 3.0}, {"rank": 1, "us": 5.0}]

    def test_a_pick_is_one_number(self):
        self.assertEqual(run.take(Pick("p", "us"), self.LINES), 5)
        self.assertEqual(run.take(Pick("p", "us", {"rank": 0}, scale=2), self.LINES), 8)
        self.assertEqual(run.take(Pick("p", "whole", minus="part"), self.LINES), 7)
        self.assertIsNone(run.take(Pick("p", "us", {"rank": 2}), self.LINES))

    def finish(self, row, ours, theirs, failed={}, skipped={}):
        outputs = {"a": [[{"x": x}] for x in ours], "b": [[{"x": x}] for x in theirs]}
        return run.finish_row(row, Experiment("e", {}, [row]), outputs, failed, skipped)

    def row(self, **more):
        return Row("f", Pick("a", "x"), "us", "b", Pick("b", "x"), **more)

    def test_a_ratio_is_the_median_of_pairs(self):
        done = self.finish(self.row(at_least=2), [4, 9, 8], [2, 3, 8])
        self.assertEqual(done["ratio"], {"median": 2, "least": 1, "most": 3, "values": [2, 3, 1]})
        self.assertEqual(done["verdict"], "met")
        self.assertEqual(self.finish(self.row(at_least=2.1), [4, 9, 8], [2, 3, 8])["verdict"], "missed")

    def test_of_times_the_smaller_is_faster(self):
        faster = self.finish(self.row(at_least=2, is_time=True), [1], [2])
        self.assertEqual((faster["ratio"]["median"], faster["verdict"]), (2, "met"))
        share = self.finish(self.row(at_most=0.4, is_time=True), [1], [2])
        self.assertEqual((share["ratio"]["median"], share["verdict"]), (0.5, "missed"))
        self.assertEqual(self.finish(self.row(), [1], [2])["verdict"], "reported")

    def test_what_is_not_there_says_why(self):
        failed = self.finish(self.row(), [], [], failed={"b": "exit code 3"})
        self.assertEqual((failed["verdict"], failed["why"]), ("failed", "b: exit code 3"))
        skipped = self.finish(self.row(), [1], [], skipped={"b": "no peer"})
        self.assertEqual((skipped["verdict"], skipped["why"]), ("skipped", "no peer"))
        self.assertIn("no peer", report.table([skipped]))


if __name__ == "__main__":
    unittest.main()
