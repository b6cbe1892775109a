#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_acceptance.sh on made-up bundles: scripts stand in for nvidia-smi, compute-sanitizer and our programs."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
TOOL = SOURCE / "tools/gpu_acceptance.sh"
BENCHMARKS = ("top_k", "attention_mass", "gather_rows", "decode_steps", "host_cost")
# Of a suite called "fails" the tests fail.
TESTS = """case "$*" in
  *--list-test-suites*) printf '[doctest] listing\\n=====\\n%s\\n=====\\n[doctest] in all\\n' "$SUITES" ;;
  *fails*) echo 'a check failed'; exit 1 ;;
  *) echo "$KVPOLICY_TINYLM_WEIGHTS" ;;
esac"""
# Writes a file as Google Benchmark does, from its head to its last line.
BENCHMARK = """for each in "$@"; do
  case $each in --benchmark_out=*) out=${each#*=} ;; --benchmark_filter=*) filter=${each#*=} ;; esac
done
name=host_cost/knorm
printf '{ "context": {"device": "made up"},\\n"benchmarks": [\\n{"name": "%s", "us": 4.0}' "$name" > "$out"
"""
WHOLE = 'printf "\\n]}\\n" >> "$out"'


class Acceptance(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        self.bundle = self.at / "bundle"
        for part in ("bundle/bin", "bundle/bench/cuda", "path"):
            (self.at / part).mkdir(parents=True)
        (self.bundle / "MANIFEST").write_text("commit 1234567, 2026-01-01\nsuite device/a\n")
        (self.bundle / "bench/cuda/torch_peers.py").write_text("print('there is no PyTorch')\nraise SystemExit(77)\n")

    def program(self, path, text="echo done"):
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def ours(self, *names, text="echo done"):
        for name in names:
            self.program(self.bundle / "bin" / name, text)

    def gpu(self):
        self.program(self.at / "path/nvidia-smi", "echo 'GPU 0: made up'")

    def environment(self, suites="device/a"):
        return {**os.environ, "PATH": f"{self.at / 'path'}:{os.environ['PATH']}", "SUITES": suites}

    def run_tool(self, *arguments, **environment):
        """Exit status, lines, and results.json."""
        done = subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, cwd=self.at,
                              env=self.environment(**environment))
        results = self.at / "out/results.json"
        lines = (done.stdout + done.stderr).splitlines()
        return done.returncode, lines, json.loads(results.read_text()) if results.exists() else {}

    def part(self, part, *more, **environment):
        return self.run_tool("--bundle", "bundle", *more, part, "out", **environment)

    def verdicts(self, results, part):
        return {step["name"]: step["verdict"] for step in results["steps"][part]}

    def test_without_a_gpu_everything_is_skipped(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("there is a GPU")
        self.ours("own_scorer_cuda", "gpu_repeat", "gpu_machine", *(f"gpu_{name}" for name in BENCHMARKS))
        self.ours("kvpolicy_gpu_tests", text=TESTS)
        for part, skipped in (("tests", 3), ("sanitizers", 2), ("bench", 12)):
            status, lines, results = self.part(part)
            self.assertEqual((status, lines[-1]), (77, f"0 passed, 0 failed, {skipped} skipped"))
            self.assertIn("there is no GPU", lines[0])
            self.assertEqual(set(self.verdicts(results, part).values()), {"skipped"})

    def test_a_gpu_and_nothing_of_ours_is_a_failure(self):
        self.gpu()
        for part in ("tests", "sanitizers", "bench"):
            status, lines, _ = self.part(part)
            self.assertEqual(status, 1, lines)
            self.assertIn("nothing of ours ran, although there is a GPU", lines)
            self.assertIn(" 0 failed, ", lines[-1])

    def test_what_builds_in_place_fails_too_if_it_could_build_nothing(self):
        self.gpu()
        self.program(self.at / "path/cmake", "echo 'doctest was not found'; exit 1")
        self.program(self.at / "path/nvcc")
        python = f'exec {shutil.which("python3")} "$@"'
        self.program(self.at / "path/python3", f"case $* in *torch_peers*) exit 77 ;; *) {python} ;; esac")
        os.environ["KVPOLICY_GPU_BUILD"] = str(self.at / "tree")
        self.addCleanup(os.environ.pop, "KVPOLICY_GPU_BUILD")
        status, lines, results = self.run_tool("out")
        self.assertEqual(status, 1, lines)
        self.assertIn("== build kvpolicy_gpu_tests: skipped, doctest was not found", lines)
        self.assertIn("nothing of ours ran, although there is a GPU", lines)
        self.assertEqual(set(results["steps"]), {"build", "tests", "sanitizers", "bench"})

    def test_each_suite_is_a_process_and_a_step(self):
        self.gpu()
        self.ours("own_scorer_cuda", "gpu_repeat")
        self.ours("kvpolicy_gpu_tests", text=TESTS)
        status, lines, results = self.part("tests", suites="device/a\nanother, with a comma")
        self.assertEqual((status, lines[-1]), (0, "4 passed, 0 failed, 0 skipped"), lines)
        self.assertIn("device/a", self.verdicts(results, "tests"))
        log = (self.at / "out/tests.log").read_text()
        self.assertIn("--test-suite=another\\, with a comma", log)
        self.assertIn(f"{self.bundle}/weights", log)
        status, lines, results = self.part("tests", suites="device/a\ndevice/fails\ndevice/b")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"), lines)
        self.assertEqual(self.verdicts(results, "tests")["device/fails"], "failed")
        self.assertIn("a check failed", (self.at / "out/tests.log").read_text())
        report = (self.at / "out/report.txt").read_text()
        self.assertIn("tests: 4 passed, 1 failed, 0 skipped (failed: device/fails)", report)

    def test_a_program_that_finds_no_gpu_where_there_is_one_fails(self):
        self.gpu()
        self.ours("own_scorer_cuda", text="echo 'there is no GPU'; exit 77")
        status, lines, _ = self.part("tests")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 2 skipped"), lines)

    def test_a_program_without_suites_fails(self):
        self.gpu()
        self.ours("kvpolicy_gpu_tests", text="exit 1")
        status, lines, _ = self.part("tests")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 2 skipped"), lines)

    def test_parts_merge_in_one_file(self):
        self.gpu()
        self.ours("own_scorer_cuda", "gpu_repeat")
        self.ours("kvpolicy_gpu_tests", text=TESTS)
        self.ours("gpu_host_cost", text=BENCHMARK + WHOLE)
        self.ours("gpu_machine", text="""echo '{"launch": 1.5}' > "${1#--out=}" """)
        self.program(self.at / "path/compute-sanitizer", "[[ $* != *racecheck*top_k* ]] || exit 9")
        self.assertEqual(self.part("tests")[0], 0)
        status, lines, _ = self.part("sanitizers")
        self.assertEqual((status, lines[-1]), (1, "55 passed, 1 failed, 0 skipped"), lines)
        status, lines, results = self.part("bench")
        self.assertEqual((status, lines[-1]), (0, "3 passed, 0 failed, 9 skipped"), lines)
        self.assertEqual(set(results["steps"]), {"tests", "sanitizers", "bench"})
        self.assertEqual(self.verdicts(results, "sanitizers")["racecheck device/top_k"], "failed")
        self.assertEqual(results["host_cost"]["benchmarks"], [{"name": "host_cost/knorm", "us": 4.0}])
        self.assertEqual(results["machine"], {"launch": 1.5})
        report = (self.at / "out/report.txt").read_text()
        self.assertIn("host cost of a planned decision: 4 µs (must ≤ 5 µs, goal ≤ 3 µs): met, goal missed", report)
        for told in ("tests: 3 passed, 0 failed, 0 skipped",
                     "sanitizers: 55 passed, 1 failed, 0 skipped (failed: racecheck device/top_k)"):
            self.assertIn(told, report)
            self.assertIn(told, (self.at / "out/report.md").read_text())
        self.assertLessEqual(len(list((self.at / "out").iterdir())), 8)

    def test_a_benchmark_that_is_killed_keeps_what_it_had(self):
        self.gpu()
        half = """printf ',{"name": "host_cost/snapkv", "us"' >> "$out"; kill -9 $$"""
        self.ours("gpu_host_cost", text=BENCHMARK + half)
        status, lines, results = self.part("bench")
        self.assertEqual(status, 1, lines)
        self.assertEqual(results["host_cost"]["context"], {"device": "made up"})
        self.assertEqual([run["name"] for run in results["host_cost"]["benchmarks"]], ["host_cost/knorm"])
        self.assertTrue(any(line.startswith("host cost of a planned decision: 4 µs") for line in lines), lines)

    def test_first_cells_and_the_others_are_one_list(self):
        self.gpu()
        self.ours("gpu_gather_rows", text=BENCHMARK.replace("host_cost/knorm", "gather_rows/$filter") + WHOLE)
        _, lines, results = self.part("bench")
        names = [run["name"] for run in results["gather_rows"]["benchmarks"]]
        self.assertEqual(names, ["gather_rows/entries:4096/one_in:4/", "gather_rows/-entries:4096/one_in:4/"], lines)

    def test_a_part_that_is_stopped_keeps_what_it_had(self):
        self.gpu()
        self.ours("gpu_host_cost", text=BENCHMARK + "touch started; sleep 60")
        with subprocess.Popen([TOOL, "--bundle", "bundle", "bench", "out"], cwd=self.at, env=self.environment(),
                              stdout=subprocess.PIPE, text=True) as tool:
            until = time.monotonic() + 20
            while not (self.at / "started").exists() and time.monotonic() < until:
                time.sleep(0.05)
            tool.send_signal(signal.SIGTERM)
            lines = tool.communicate(timeout=20)[0].splitlines()
        self.assertEqual((tool.returncode, lines[-1]), (1, "0 passed, 1 failed, 1 skipped"))
        results = json.loads((self.at / "out/results.json").read_text())
        self.assertEqual([run["name"] for run in results["host_cost"]["benchmarks"]], ["host_cost/knorm"])

    def test_a_part_ends_in_its_time(self):
        self.gpu()
        self.ours("own_scorer_cuda", "gpu_repeat", text="sleep 60")
        began = time.monotonic()
        status, lines, _ = self.part("tests", "--seconds", "1")
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual((status, lines[-1]), (1, "0 passed, 2 failed, 1 skipped"), lines)
        self.assertIn("== own scorer: FAILED, ran past 1 s", lines)
        self.assertIn("== 20 runs and a replay: FAILED, the part had no time left", lines)

    def test_the_suites_for_sanitizers_are_there(self):
        named = re.search(r"^sanitized=\((.*?)\)", TOOL.read_text(), re.S | re.M).group(1).split()
        sources = "".join(path.read_text() for path in (SOURCE / "tests/device").glob("*_test.cpp"))
        self.assertGreater(len(named), 5)
        self.assertEqual([name for name in named if f'TEST_SUITE("{name}")' not in sources], [])

    def test_bad_arguments_are_one_line_that_names_them(self):
        for arguments, named in (("--bundle bundle everything", "everything"), ("--bundle bundle", "''"),
                                 ("--bundle nowhere tests", "nowhere"), ("--bundle", "--bundle"), ("--fast", "--fast"),
                                 ("--bundle bundle --seconds soon tests", "soon"), ("out more", "more"),
                                 ("--bundle bundle tests bundle/MANIFEST", "bundle/MANIFEST")):
            status, lines, _ = self.run_tool(*arguments.split())
            self.assertEqual((status, len(lines)), (2, 1), lines)
            self.assertIn(named, lines[0])


if __name__ == "__main__":
    unittest.main()
