#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_report.py on made-up results: met, missed, wrong, missing, broken. No time of this machine is in it."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent.parent / "tools/gpu_report.py"
ROWS = 12


def run(name, **counters):
    return {"name": f"{name}/iterations:11/manual_time", "run_type": "iteration", **counters}


def top_k(scale=1.0):
    """Ten distributions of one cell: 100 us each and half a copy, but for the last, which takes `scale` times as long."""
    runs = [run(f"top_k/lanes:288/entries:32768/keep:0/like:{like}", us=100.0 * (scale if like == 9 else 1), of_copy=0.5,
                label=f"kind_{like}") for like in range(10)]
    return [*runs, run("top_k_layer/keep:0/like:0", us=9.0, label="normal")]


GOOD = {
    "top_k": top_k(1.25),
    "attention_mass": [
        run("attention_mass/rows:32/entries:32768/element:2/lse:1", us=30.0, of_read=0.7, eager_over=15.0),
        run("attention_mass/rows:32/entries:32768/element:0/lse:1", us=99.0, of_read=0.2, eager_over=3.0),
        run("attention_mass/rows:8/entries:32768/element:1/lse:1", us=30.0, of_read=0.75, eager_over=15.0),
        run("attention_mass/rows:8/entries:32768/element:1/lse:0", us=90.0, of_read=0.1, eager_over=1.0)],
    "gather_rows": [run("gather_rows/entries:4096/one_in:4/runs:0", us=50.0, of_copy=0.9, label="random"),
                    run("gather_rows/entries:4096/one_in:2/runs:1", us=50.0, of_copy=0.85, label="runs of 64")],
    "decode_steps": [run("argmin/entries:2048", us=99.0, launches=1), run("argmin/entries:4096", us=4.0, launches=1),
                     run("promotion/percent:100", us=7.0, launches=6), run("promotion/percent:25", us=3.0, launches=6),
                     run("page_scores/layers:1/element:2", us=9.0, of_copy=0.72)],
    "host_cost": [run("host_cost/knorm", us=4.0, graph_us=2.0)],
}
TORCH = {"rows": [{"name": "topk_sort", "lanes": 288, "entries": 32768, "us": 700.0},
                  {"name": "eager_mass", "entries": 32768, "element": "bf16", "us": 240.0}]}


class Report(unittest.TestCase):
    def report(self, files, torch=None, broken=None):
        """Exit status, lines, and the table."""
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            for name, runs in files.items():
                (at / f"{name}.json").write_text(json.dumps({"context": {"device": "made up"}, "benchmarks": runs}))
            if torch is not None:
                (at / "torch.json").write_text(json.dumps(torch))
            if broken is not None:
                (at / f"{broken}.json").write_text('{"benchmarks": [{"name"')
            done = subprocess.run([sys.executable, TOOL, at, "--markdown", at / "table.md"], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.stderr, "")
            return done.returncode, done.stdout.splitlines(), (at / "table.md").read_text()

    def line(self, lines, begins):
        found = [line for line in lines if line.startswith(begins)]
        self.assertEqual(len(found), 1, lines)
        return found[0]

    def test_rows_are_judged_by_their_worst_figure(self):
        status, lines, table = self.report(GOOD, TORCH)
        self.assertEqual(lines[-1], "10 met, 2 missed")
        self.assertEqual(status, 1)
        self.assertIn("device: made up", lines)
        expected = {
            "top-k, ≥ 264": "0.50 (must ≥ 0.45, goal ≥ 0.60): met, goal missed",
            "the same, against torch": "7 × (must ≥ 5 ×, goal ≥ 10 ×): met, goal missed",
            "top-k, one layer": "9 µs (must ≤ 12 µs, goal ≤ 8 µs): met, goal missed",
            "attention mass, W 32": "0.70 (must ≥ 0.50, goal ≥ 0.65): met, goal met",
            "the same, against the eager": "8 × (must ≥ 10 ×, goal ≥ 20 ×): missed",
            "attention mass, W 8": "0.75 (must ≥ 0.70, goal ≥ 0.80): met, goal missed",
            "compaction": "0.85 (must ≥ 0.80, goal ≥ 0.88): met, goal missed",
            "TRIM-KV argmin": "4 µs (must ≤ 8 µs, goal ≤ 5 µs): met, goal met",
            "WG-KV promotion": "7 µs (must ≤ 6 µs, goal ≤ 4 µs): missed",
            "Quest page scores": "0.72 (must ≥ 0.70, goal ≥ 0.80): met, goal missed",
            "worst distribution": "1.25 × (must ≤ 2 ×, goal ≤ 1.50 ×): met, goal met",
            "host cost": "4 µs (must ≤ 5 µs, goal ≤ 3 µs): met, goal missed",
        }
        self.assertEqual(len(expected), ROWS)
        for begins, figure in expected.items():
            self.assertIn(figure, self.line(lines, begins))
        self.assertIn("6 launches", self.line(lines, "WG-KV"))
        self.assertIn("f32 0.20", self.line(lines, "attention mass, W 32"))
        self.assertEqual(table.count("\n| "), ROWS + 2 + sum(line.startswith("restated: ") for line in lines[:-2]))

    def test_restated_rows_compare_a_small_call_with_a_copy_of_the_same_bytes(self):
        _, lines, _ = self.report(GOOD, TORCH)
        self.assertIn("0.16 (must ≥ 0.55, goal ≥ 0.70): missed", self.line(lines, "restated: top-k ≥ 288 × 32k, of a copy, 288"))
        self.assertIn("9 µs (must ≤ 10 µs, goal ≤ 7.50 µs): met, goal missed", self.line(lines, "restated: top-k, one layer"))
        self.assertIn("4.50 µs (must ≤ 6 µs", self.line(lines, "restated: promotion, above an empty call"))
        self.assertTrue(self.line(lines, "restated: top-k 288 × 8k, over").endswith("n/a: not measured"))
        self.assertRegex(lines[-2], r"^restated: \d+ met, \d+ missed$")

    def test_one_file_says_what_a_folder_says(self):
        _, lines, _ = self.report(GOOD, TORCH)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            files = {name: {"context": {"device": "made up"}, "benchmarks": runs} for name, runs in GOOD.items()}
            path.write_text(json.dumps({**files, "torch": TORCH}))
            done = subprocess.run([sys.executable, TOOL, path], capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.splitlines(), lines)
            path.write_text("[")
            done = subprocess.run([sys.executable, TOOL, path], capture_output=True, text=True, check=False)
            self.assertIn("n/a: results.json cannot be read", done.stdout)

    def test_a_slow_distribution_is_a_miss_and_says_which(self):
        _, lines, _ = self.report({"top_k": top_k(2.5)})
        self.assertIn("2.50 × (must ≤ 2 ×, goal ≤ 1.50 ×): missed [worst of 1: 288 × 32k, k N/4, kind 9",
                      self.line(lines, "worst distribution"))
        self.assertEqual(lines[-1], "2 met, 1 missed")

    def test_what_was_not_measured_is_neither(self):
        status, lines, _ = self.report({"host_cost": GOOD["host_cost"]})
        self.assertEqual((status, lines[-1]), (0, "1 met, 0 missed"))
        self.assertTrue(self.line(lines, "compaction").endswith("n/a: there is no gather_rows.json"))
        status, lines, _ = self.report({})
        self.assertEqual((status, lines[-1]), (2, "0 met, 0 missed"))

    def test_without_pytorch_plain_kernels_stand_in(self):
        _, lines, _ = self.report(GOOD)
        self.assertIn("15 × (must ≥ 10 ×, goal ≥ 20 ×): met, goal missed", self.line(lines, "the same, against the eager"))
        self.assertIn("plain kernels", self.line(lines, "the same, against the eager"))
        self.assertIn("n/a: there is no torch.json", self.line(lines, "the same, against torch"))

    def test_a_broken_file_is_said_to_be(self):
        status, lines, _ = self.report({}, broken="gather_rows")
        self.assertIn("n/a: gather_rows.json cannot be read", self.line(lines, "compaction"))
        self.assertEqual(status, 2)

    def test_a_wrong_result_is_a_miss_whatever_else_was_measured(self):
        wrong = {"name": "gather_rows/entries:4096/one_in:4/runs:1", "error_occurred": True, "error_message": "wrong result"}
        status, lines, _ = self.report({"gather_rows": [*GOOD["gather_rows"], wrong]})
        self.assertIn("missed, failed: wrong result", self.line(lines, "compaction"))
        self.assertEqual((status, lines[-1]), (1, "0 met, 1 missed"))

    def test_a_wrong_result_is_a_miss_of_the_restated_row_too(self):
        wrong = {"name": "argmin/entries:4096", "error_occurred": True, "error_message": "wrong result"}
        _, lines, _ = self.report({"decode_steps": [run("argmin/entries:4096", us=4.0), wrong]})
        self.assertIn("missed, failed: wrong result", self.line(lines, "restated: argmin in a graph"))

    def test_what_did_not_fit_says_so(self):
        small = {"name": "gather_rows/entries:4096/one_in:4/runs:0", "error_occurred": True,
                 "error_message": "n/a: needs 9.0 GB of the device's memory, 8.0 GB are free"}
        status, lines, _ = self.report({"gather_rows": [small]})
        self.assertTrue(self.line(lines, "compaction").endswith("): n/a: needs 9.0 GB of the device's memory, 8.0 GB are free"))
        self.assertEqual(status, 2)


if __name__ == "__main__":
    unittest.main()
