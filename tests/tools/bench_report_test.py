#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench_verbs.py and the rows that tools/bench_report.py makes of it, on made-up results. No time of this machine is in it."""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import bench_report  # noqa: E402
import bench_verbs  # noqa: E402

RULES = {"must": 0.5, "goal": 0.8, "argued_least": 0.25, "argued_most": 1}


def table(*rows: dict) -> bench_verbs.Table:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as to:
        json.dump({**RULES, "rows": rows}, to)
        to.flush()
        return bench_verbs.Table(Path(to.name))


def results(**shares: float) -> bench_report.Results:
    made = bench_report.Results()
    made.add({"context": {}, "benchmarks": [{"name": f"fold/{name.replace('_', ':')}/iterations:9/manual_time", "share": share}
                                             for name, share in shares.items()]})
    return made


FOLD = {"verb": "fold", "tenth_of": "a decision", "program": "ops_fold", "runs": r"fold/threads:[12]"}


class Names(unittest.TestCase):
    def headers(self, folder: Path, verbs: str, appliers: str) -> Path:
        for name, text in (("include/kvpolicy/ops/a.hpp", verbs), (bench_verbs.PARTS, appliers)):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(text)
        return folder

    def test_every_verb_and_applier_of_the_headers_has_a_row(self):
        asked = bench_verbs.Table()
        self.assertEqual(asked.faults([row.present for row in asked.rows if row.present]), [])
        self.assertIn("top_k", bench_verbs.verbs_of())
        self.assertIn("dead_slot", bench_verbs.appliers_of())

    def test_a_verb_without_a_row_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.headers(Path(folder), "struct fold_t : verb<fold_t> {\n};\ninline constexpr fold_t fold{};\n"
                                "struct new_one_t : verb<new_one_t> {\n};\ninline constexpr new_one_t new_one{};\n",
                                "static_assert(applier<compact>);\n")
            self.assertEqual(table(FOLD).faults([], root),
                             ["compact: no row in bench_rows.json", "new_one: no row in bench_rows.json"])

    def test_a_row_without_a_verb_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.headers(Path(folder), "", "")
            self.assertEqual(table(FOLD).faults([], root), ["fold: a row, but no such verb or applier"])

    def test_a_present_row_must_be_there(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.headers(Path(folder), "struct fold_t\n};\ninline constexpr fold_t fold{};\n", "")
            asked = table({"verb": "fold", "present": "fold of"})
            self.assertEqual(asked.faults(["fold of a model"], root), [])
            self.assertEqual(asked.faults(["a fold"], root), ["fold: no row of the report begins with 'fold of'"])

    def test_too_many_arguments_are_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.headers(Path(folder), "struct fold_t\n};\ninline constexpr fold_t fold{};\n", "")
            asked = table({**FOLD, "argued": "a"}, {**FOLD, "argued": "b"})
            self.assertEqual(asked.faults([], root), ["2 rows are argued, at most 1 may be"])


class Programs(unittest.TestCase):
    def test_the_build_makes_just_the_programs_that_are_run(self):
        asked = bench_verbs.Table()
        script = (f'include("{ROOT}/cmake/bench_programs.cmake")\n'
                  f'kvpolicy_bench_programs(names "{bench_verbs.TABLE}")\nmessage("${{names}}")\n')
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as to:
            to.write(script)
            to.flush()
            ran = subprocess.run(["cmake", "-P", to.name], capture_output=True, text=True)
        self.assertEqual((ran.returncode, ran.stderr.strip().split(";")), (0, asked.missing(Path("/nowhere"))))

    def test_each_of_them_is_a_benchmark_of_the_build(self):
        there = re.findall(r"^ *kvpolicy_bench\((\S+?)[ )]", (ROOT / "bench/CMakeLists.txt").read_text(), re.M)
        names = {"bench_" + path.replace("/", "_") for path in there}
        self.assertEqual(set(bench_verbs.Table().missing(Path("/nowhere"))) - names, set())

    def test_what_is_not_built_is_told_before_anything_is_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = Path(folder) / "bin"
            programs.mkdir()
            for name in bench_verbs.Table().missing(programs):
                (programs / name).write_text("#!/bin/sh\ntouch $(dirname $0)/measured\nexit 1\n")
                (programs / name).chmod(0o755)
            (programs / "bench_policies_erased").unlink()
            ran = subprocess.run([sys.executable, "-B", ROOT / "tools/bench_report.py", "--programs", programs, "--no-page"],
                                 capture_output=True, text=True)
            self.assertEqual(ran.returncode, 1)
            self.assertIn("has no bench_policies_erased: nothing was measured", ran.stderr)
            self.assertFalse((programs / "measured").exists())
            self.assertFalse((Path(folder) / "bench_report").exists())


class Verdicts(unittest.TestCase):
    def verdict(self, found: bench_report.Results, **more) -> str:
        return bench_report.verb_rows(table({**FOLD, **more}), found)[0].verdict()

    def test_the_worst_number_of_threads_counts(self):
        row = bench_report.verb_rows(table(FOLD), results(threads_1=0.9, threads_2=0.6))[0]
        self.assertEqual((row.measured, row.verdict()), (0.6, "met, goal missed"))
        self.assertIn("2 threads", row.beside)

    def test_verdicts(self):
        self.assertEqual(self.verdict(results(threads_1=0.8)), "met, goal met")
        self.assertEqual(self.verdict(results(threads_1=0.49)), "missed")
        self.assertEqual(self.verdict(results(threads_1=0.49), argued="once a session"), "argued: once a session")
        self.assertEqual(self.verdict(results(threads_1=0.24), argued="once a session"), "missed")
        self.assertEqual(self.verdict(results(threads_1=0.6), argued="once a session"), "met, goal missed")

    def test_a_verb_that_is_no_tenth_of_an_operation_has_no_verdict(self):
        row = bench_report.verb_rows(table({**FOLD, "tenth_of": ""}), results(threads_1=0.1))[0]
        self.assertEqual((row.limit(row.must), row.verdict()), ("–", ""))

    def test_a_row_that_was_not_measured_is_not_met(self):
        self.assertEqual(self.verdict(results(threads_7=0.9)), "n/a: not measured")

    def test_a_wrong_result_is_missed_whatever_the_others_are(self):
        found = results(threads_1=0.9)
        found.refused["fold/threads:2"] = "wrong result"
        self.assertEqual(self.verdict(found), "missed, failed: wrong result")

    def test_a_ratio_that_must_be_low(self):
        found = bench_report.Results()
        found.add({"context": {}, "benchmarks": [{"name": "fold/threads:1", "over": 1.2}, {"name": "fold/threads:2", "over": 1.4}]})
        rule = {"counter": "over", "must": 1.3, "goal": 1.15, "low": True}
        self.assertEqual(self.verdict(found, **rule), "missed")

    def test_compile_times(self):
        times = {"headers": 8.0, "compiled": 3.0, "parse": 3.0, "parse before": 2.5}
        first, umbrella = bench_report.compile_rows(times)
        self.assertEqual((first.measured, first.verdict()), (0.375, "met, goal met"))
        self.assertEqual((umbrella.measured, umbrella.verdict()), (1.2, "missed"))
        del times["parse before"]
        self.assertTrue(bench_report.compile_rows(times)[1].verdict().startswith("n/a: there is no commit"))
        self.assertEqual([row.verdict() for row in bench_report.compile_rows({})], ["n/a: not measured"] * 2)

    def test_unknown_fields_are_refused(self):
        with self.assertRaises(SystemExit):
            table({**FOLD, "muts": 1})


if __name__ == "__main__":
    unittest.main()
