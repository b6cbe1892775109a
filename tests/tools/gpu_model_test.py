#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_model.py on rows made by hand, on bad files and on a made-up cuobjdump; and on the rows of docs/gpu.md."""
import copy
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "gpu_model.py"
sys.path.insert(0, str(TOOL.parent))
import gpu_model  # noqa: E402
import gpu_model_files  # noqa: E402

# Round numbers: ten multiprocessors of 4,000 instructions a µs, 2 TB/s, and a µs for everything that is waited for.
OF = {"processors": 10, "schedulers": 4, "clock": 1.0, "issue_share": 1.0, "copy": 2.0, "read": 1.0, "dependent_load": 1.0,
      "barrier": 0.25, "barrier_of_16": 0.5, "barrier_of_32": 2.0, "cluster_barrier": 3.0, "empty_call": 5.0, "launch": 1.0,
      "ticket": 0.5, "overlap_saves": 0.75, "end": 0.0, "host_launch": 4.0, "host_graph": 2.0, "host_graph_launch": 0.25,
      "tensor_cores": 8.192, "tensor_cores_by_mma": 0.5}  # a thousand products of 16 x 8 x 16 in a µs
KERNEL = {"what": "made up", "kernel": "made_up", "blocks": 10, "threads": 512, "registers": 128}
ROW = {"name": "one", "when": "c0", "table": "a row", "harness": "events", "unit": "us", "kernels": [KERNEL]}
MEASURED = {"card": {"name": "made up"}, "commit": "c0", "machine": {}, "rows": [{"name": "one", "us": [6.0, 4.0, 5.0]}]}
MACHINE = {"constants": [{"name": name, "value": value, "unit": "", "state": "assumed"} for name, value in OF.items()]}


def us(row=None, **kernel):
    return gpu_model.predicted_us(OF, ROW | (row or {}) | {"kernels": [KERNEL | kernel]})


def lines_under(heading):
    """The cells of the first table below a heading of docs/gpu.md."""
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split(f"{heading}\n")[1]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


class Arithmetic(unittest.TestCase):
    def test_an_empty_kernel_is_an_empty_call_and_in_a_graph_a_launch(self):
        self.assertEqual(us(), 5.0)
        self.assertEqual(us({"harness": "graph"}), 1.0)
        self.assertEqual(us({"above_empty_call": True}), 0.0)

    def test_loads_and_barriers_of_a_path_add_up(self):
        self.assertEqual(us(loads=3, barriers=2, cluster_barriers=1), 5 + 3 + 2 * 0.5 + 3)
        self.assertEqual(us(barriers=4, threads=256), 5 + 4 * 0.25)
        self.assertEqual(us(barriers=4, threads=1024, registers=32), 5 + 4 * 2.0)

    def test_the_first_and_the_last_wave_show_their_paths_and_those_between_a_part(self):
        self.assertEqual(us(loads=2, blocks=11), 5 + 2 * 2)  # one block of 512 threads and 128 registers fits
        self.assertEqual(us(loads=2, blocks=40), 5 + 2 * 4)
        self.assertEqual(us(loads=2, blocks=40, registers=64), 5 + 2 * 2)
        self.assertEqual(us(loads=2, blocks=60, registers=64), 5 + 2 * 2.5)
        self.assertEqual(us(loads=2, blocks=11, registers=64), 5 + 2)

    def test_bytes_take_as_long_as_a_read_or_a_copy(self):
        self.assertAlmostEqual(us(traffic=8e6), 5 + 8)
        self.assertAlmostEqual(us(traffic=8e6, rate="copy"), 5 + 4)

    def test_instructions_take_as_long_as_on_the_busiest_multiprocessor(self):
        self.assertAlmostEqual(us(instructions=10, groups=40000), 5 + 10)
        self.assertAlmostEqual(us(instructions=10, groups=40000, blocks=15, registers=64), 5 + 10 * 20 / 15)
        self.assertAlmostEqual(us(instructions=10, groups=40000, blocks=5), 5 + 10 * 2)

    def test_of_bytes_and_instructions_the_smaller_is_hidden_but_for_a_warps_part(self):
        self.assertAlmostEqual(us(instructions=10, groups=40000, traffic=8e6), 5 + 10 + 8 / 4)
        self.assertAlmostEqual(us(instructions=10, groups=40000, traffic=16e6), 5 + 16 + 10 / 4)

    def test_products_are_a_third_time_that_is_hidden_alike(self):
        self.assertAlmostEqual(us(products=2, groups=4000), 5 + 8)
        self.assertAlmostEqual(us(products=2, groups=4000, instructions=10, traffic=16e6), 5 + 16 + (8 + 1) / 4)

    def test_loads_of_several_steps_hide_as_those_of_as_many_times_as_many_warps(self):
        self.assertAlmostEqual(us(instructions=10, groups=40000, traffic=8e6, stages=2), 5 + 10 + 8 / 8)

    def test_later_launches_tickets_and_overlap(self):
        def two(**later):
            return gpu_model.predicted_us(OF, ROW | {"kernels": [KERNEL, KERNEL | later]})

        self.assertEqual(two(), 5 + 1)
        self.assertEqual(two(ticket=True), 5 + 1.5)
        self.assertEqual(two(overlapped=True), 5 + 0.25)
        self.assertEqual(us(overlapped=True), 5)  # nothing is before it
        self.assertEqual(us({"harness": "graph"}, overlapped=True), 0.25)

    def test_the_host_pays_for_launches_whatever_they_do(self):
        self.assertEqual(gpu_model.predicted_us(OF, {"harness": "host", "launches": 3, "kernels": []}), 12)
        self.assertEqual(gpu_model.predicted_us(OF, {"harness": "host_graph", "launches": 4, "kernels": []}), 3)

    def test_figures_of_a_time(self):
        def figure(row, at, peer=None):
            return gpu_model.figure(OF, {"one": ROW}, ROW | row, at, peer)

        self.assertEqual(figure({}, 7.0), 7.0)
        self.assertAlmostEqual(figure({"unit": "share", "floor": "copy", "bytes": 8e6}, 8.0), 0.5)
        self.assertAlmostEqual(figure({"unit": "share_of_equal", "bytes": 8e6}, 20.0), (5 + 1 + 4) / 20)
        self.assertEqual(figure({"unit": "times_peer"}, 5.0, 20.0), 4.0)
        self.assertIsNone(figure({"unit": "times_peer"}, 5.0))
        self.assertEqual(figure({"unit": "times_row", "against": "one"}, 10.0), 2.0)

    def test_the_ratio_is_that_of_times_whatever_the_unit(self):
        self.assertEqual(gpu_model.off({"unit": "us"}, 3.0, 6.0), 0.5)
        self.assertEqual(gpu_model.off({"unit": "share"}, 0.6, 0.3), 0.5)
        self.assertTrue(gpu_model.is_missed(0.66) and gpu_model.is_missed(1.51))
        self.assertFalse(gpu_model.is_missed(0.67) or gpu_model.is_missed(1.5) or gpu_model.is_missed(None))

    def test_what_a_card_measured_counts_more_than_the_constants(self):
        constants = {name: {"value": value} for name, value in OF.items()}
        made = gpu_model_files.values_of(constants, {"machine": {"copy": 9.0, "read": None}})
        self.assertEqual((made["copy"], made["read"]), (9.0, 1.0))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = Path(self.folder.name)
        self.files = copy.deepcopy({"measured": MEASURED, "machine": MACHINE, "rows": {"rows": [ROW]}})

    def run_tool(self, *more):
        command = [sys.executable, "-B", str(TOOL), *more]
        for name, made in self.files.items():
            path = self.at / f"{name}.json"
            path.write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")
            command += [f"--{name}", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refused(self, text, *more):
        done = self.run_tool(*more)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(text, done.stderr)

    def test_a_row_is_printed_beside_what_was_measured(self):
        done = self.run_tool()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\none +5\.0 µs +5\.0 µs +1\.00 +5\.0 µs\n")
        self.assertIn("1 of 1 predictions are within 1.5", done.stdout)

    def test_a_miss_is_listed_with_its_reason_and_fails_without_one(self):
        self.files["measured"]["rows"][0]["us"] = [8.0]
        done = self.run_tool()
        self.assertEqual(done.returncode, 1)
        self.assertIn("missed: one, 0.62: no reason is known", done.stdout)
        self.assertIn("0 of 1 predictions", done.stdout)
        self.files["rows"]["rows"][0]["reason"] = "it is made up"
        done = self.run_tool()
        self.assertEqual(done.returncode, 0)
        self.assertIn("missed: one, 0.62: it is made up", done.stdout)

    def test_a_row_that_gave_a_constant_is_not_counted(self):
        self.files["rows"]["rows"][0]["source"] = True
        self.assertIn("0 of 0 predictions", self.run_tool().stdout)

    def test_a_present_row_is_judged_by_its_limits(self):
        self.files["rows"]["rows"][0] |= {"when": "present", "must": 6, "goal": 4}
        self.assertRegex(self.run_tool().stdout, r"\none +5\.0 µs +6\.0 µs +4\.0 µs +5\.0 µs +must +5\.0 µs +1\.00\n")
        self.files["measured"]["rows"] = []
        self.assertRegex(self.run_tool().stdout, r"not run:\n.*\none +5\.0 µs +6\.0 µs +4\.0 µs +5\.0 µs +must\n")

    def test_files_that_are_no_json_or_no_object_or_missing(self):
        self.files["rows"] = "{"
        self.refused("is no JSON")
        self.files["rows"] = "[]"
        self.refused("holds no object")
        del self.files["rows"]
        self.refused("No such file", "--rows", str(self.at / "none.json"))

    def test_constants_that_are_missing_or_without_state_or_commit(self):
        first = self.files["machine"]["constants"][0]
        first["state"] = "believed"
        self.refused("processors is neither measured, nor assumed")
        first["state"] = "measured"
        self.refused("processors is measured, but no commit is named")
        first |= {"state": "unknown", "value": None}
        self.refused("the constant processors is missing")
        first |= {"state": "given", "value": "many"}
        self.refused("processors has no number")
        first["name"] = "clock"
        self.refused("two of the name clock")

    def test_rows_that_are_incomplete(self):
        row = self.files["rows"]["rows"][0]
        for change, text in (({"unit": "miles"}, "one must have a unit"), ({"kernels": []}, "one launches nothing"),
                             ({"harness": "host"}, "one launches nothing"), ({"unit": "share"}, "says no bytes"),
                             ({"unit": "share", "bytes": 1}, "neither a copy nor a read"),
                             ({"unit": "times_row"}, "compared with no row"), ({"kernels": {}}, "must be a list")):
            self.files["rows"]["rows"] = [row | change]
            self.refused(text)

    def test_kernels_that_no_card_could_have(self):
        for change, text in (({"loads": -1}, "loads = -1"), ({"blocks": 0}, "must say its blocks"),
                             ({"threads": 100}, "warps of 32"),
                             ({"registers": 255}, "no block of a kernel fits"), ({"rate": "write"}, "rate = 'write'"),
                             ({"barriers": True}, "barriers = True"), ({"traffic": "1"}, "traffic = '1'")):
            self.files["rows"]["rows"] = [ROW | {"kernels": [KERNEL | change]}]
            self.refused(text)

    def test_what_was_measured_must_be_times(self):
        for change, text in (({"us": 5}, "'us' must be a list of times"), ({"us": []}, "'us' must be"),
                             ({"share": 0}, "share = 0")):
            self.files["measured"] = MEASURED | {"rows": [{"name": "one"} | change]}
            self.refused(text)
        self.files["measured"] = MEASURED | {"commit": None}
        self.refused("must name the card and the commit")
        self.files["measured"] = MEASURED | {"machine": {"copy": "fast"}}
        self.refused("machine: copy = 'fast'")

    def test_an_unknown_row_is_refused_and_a_known_one_explained(self):
        self.refused("no such row", "--explain", "two")
        self.assertIn("together 5.00 µs", self.run_tool("--explain", "one").stdout)

    def cuobjdump(self, registers, barriers):
        """A program that prints what cuobjdump would of a kernel."""
        code = "".join(f"        /*{16 * i:04x}*/   {op} ;\n" for i, op in enumerate(
            ["LDG.E R0, [R2]", *["@!P0 BAR.SYNC.DEFER_BLOCKING 0x0"] * barriers, "EXIT", "NOP"]))
        said = {"-res-usage": f" Function _Z7made_upv:\n  REG:{registers} STACK:0\n",
                "-sass": f"\t\tFunction : _Z7made_upv\n{code}"}
        program = self.at / "cuobjdump"
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r}[sys.argv[1]])\n", encoding="utf-8")
        program.chmod(0o755)
        return ["--cuobjdump", str(program), "--cubin", "made.cubin"]

    def test_compiled_code_gives_registers_and_barriers_of_present_kernels(self):
        row = self.files["rows"]["rows"][0]
        noted = {"blocks": 15, "registers": 64, "loads": 1, "barriers": 2, "barriers_in_code": 3}
        row |= {"when": "present", "kernels": [KERNEL | noted]}
        self.files["measured"]["rows"] = []
        done = self.run_tool(*self.cuobjdump(registers=72, barriers=5))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("one: registers = 72, where the file says 64", done.stdout)
        self.assertIn("one: barriers = 4, where the file says 2", done.stdout)
        self.assertIn("one: instructions_in_code = 7, where", done.stdout)
        self.assertRegex(done.stdout, r"\none +11\.0 µs")  # two waves of a load and four barriers

    def test_code_that_holds_no_kernel_of_a_row_or_that_nothing_can_read(self):
        self.refused("made.cubin: no kernel of a row", *self.cuobjdump(72, 5))
        self.refused("No such file", "--cubin", "made.cubin", "--cuobjdump", str(self.at / "no_program"))
        self.refused("cannot read made.cubin: no reason given", "--cubin", "made.cubin", "--cuobjdump", "false")


def run(name, **counters):
    return {"name": f"{name}/iterations:11/manual_time", "run_type": "iteration", **counters}


class Kept(unittest.TestCase):
    """tools/gpu_keep.py on made-up results of the acceptance."""

    RESULTS = {"machine": {"name": "made up", "launch": 1.5, "overlap_saves": -0.25},
               "top_k": {"context": {"device": "a card", "multiprocessors": "99", "driver": "13.0"}, "benchmarks": [
                   run("top_k/lanes:288/entries:8192/keep:0/like:0", us=20.0, launches=1),
                   run("top_k/lanes:288/entries:8192/keep:0/like:1", us=30.0, launches=1),
                   run("top_k/lanes:288/entries:8192/keep:0/like:2", us=22.0, launches=1),
                   run("top_k/lanes:288/entries:8192/keep:0/like:3", us=1.0, error_occurred=True),
                   run("top_k/lanes:288/entries:8192/keep:1024/like:0", us=2.0),
                   run("top_k_layer/keep:0/like:0", us=9.0), run("top_k_layer/keep:1024/like:4", us=12.0)]},
               "decode_steps": {"context": {}, "benchmarks": [run("argmin/entries:4096", us=6.0)]},
               "host_cost": {"benchmarks": [run("host_cost/knorm", us=20.0, graph_us=3.0)]},
               "torch": {"rows": [{"name": "topk_sort", "lanes": 288, "entries": 8192, "us": 220.0}]},
               "steps": {}}

    def keep(self, results, *more):
        with tempfile.TemporaryDirectory() as folder:
            at, out = Path(folder) / "results.json", Path(folder) / "kept.json"
            at.write_text(json.dumps(results), encoding="utf-8")
            about = more or ("c0ffee1", "2027-01-02")
            command = [sys.executable, "-B", str(TOOL.parent / "gpu_keep.py"), str(at), *about, str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done, gpu_model_files.read_measured(out) if out.exists() else None

    def test_rows_are_those_whose_runs_were_measured(self):
        done, made = self.keep(self.RESULTS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((made["commit"], made["card"]["name"], made["card"]["multiprocessors"]), ("c0ffee1", "a card", 99))
        self.assertEqual(made["machine"], {"launch": 1.5, "overlap_saves": -0.25})
        rows = made["rows"]
        self.assertEqual(len(rows), 6)
        self.assertEqual((rows["now: top_k/288x8k"]["us"], rows["now: top_k/288x8k"]["launches"]), ([20.0, 30.0, 22.0], 1))
        self.assertEqual(rows["now: top_k_layer"]["us"], [12.0])
        over_torch = rows["now: top_k/288x8k over torch"]
        self.assertEqual((over_torch["peer_us"], over_torch["times"]), (220.0, 10.0))
        self.assertAlmostEqual(rows["now: top_k/288x8k worst distribution"]["times"], 30 / 22)
        self.assertEqual(rows["now: decision in a graph"]["us"], [3.0])

    def test_the_model_reads_what_was_kept_beside_its_predictions(self):
        of = gpu_model_files.read_constants(gpu_model.FILES / "machine.json")
        described = gpu_model_files.read_rows(gpu_model.FILES / "rows.json")
        _, made = self.keep(self.RESULTS)
        values = gpu_model_files.values_of(of, made)
        self.assertEqual(values["launch"], 1.5)
        judged = {row["name"]: (then, ratio) for row, _, _, then, ratio in gpu_model.judged(values, described, made)}
        self.assertEqual(judged["now: argmin/4096"][0], 6.0)
        self.assertAlmostEqual(judged["now: top_k/288x8k"][0], gpu_model.equal_copy_us(values, 288 * 8192 * 5) / 22)
        self.assertEqual(judged["now: top_k/288x8k over torch"][0], 10.0)
        self.assertIsNone(judged["now: promotion"][0])
        self.assertIsNone(judged["argmin/4096"][0])

    def test_nothing_is_written_of_nothing_or_under_a_wrong_date(self):
        done, made = self.keep({"steps": {}})
        self.assertEqual((done.returncode, made, len(done.stderr.splitlines())), (2, None, 1))
        self.assertIn("nothing was measured", done.stderr)
        done, made = self.keep(self.RESULTS, "c0ffee1", "yesterday")
        self.assertEqual((done.returncode, made, len(done.stderr.splitlines())), (2, None, 1))


class Repository(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.measured = gpu_model_files.read_measured(gpu_model.FILES / "measured" / "h100-355b27c.json")
        cls.of = gpu_model_files.values_of(gpu_model_files.read_constants(gpu_model.FILES / "machine.json"), cls.measured)
        cls.rows = gpu_model_files.read_rows(gpu_model.FILES / "rows.json")
        cls.judged = gpu_model.judged(cls.of, cls.rows, cls.measured)

    def test_every_row_that_docs_gpu_has_is_described_and_predicted(self):
        cells = [line[0] for line in lines_under("## What an H100 measured")]
        self.assertEqual(len(cells), 13)
        for cell in cells:
            found = [each for each in self.judged if each[0]["table"] == cell and each[0]["when"] == "355b27c"]
            self.assertTrue(found, f"no row of rows.json is about: {cell}")
            for row, now, _, then, ratio in found:
                self.assertTrue(now and then and ratio, f"{row['name']} has no prediction, or nothing measured")

    def test_every_restated_row_is_predicted_and_says_what_docs_gpu_says(self):
        lines = lines_under("### Rows, restated")
        for row, now, _, _, _ in self.judged:
            if row["when"] == "present":
                wanted = [gpu_model.number(value, row["unit"]) for value in (row["must"], row["goal"], now)]
                wanted = [row["table"], row["what"], *wanted[:2], f"*{wanted[2]}*", gpu_model.against_limits(row, now)]
                self.assertIn(wanted, [line[:6] for line in lines], row["name"])
        predicted = {row["table"] for row in self.rows.values() if row["when"] == "present"}
        self.assertEqual({line[0] for line in lines if line[4] != "no prediction"}, predicted)

    def test_every_file_of_measurements_can_be_read(self):
        self.assertTrue(gpu_model_files.read_measured(gpu_model_files.newest(gpu_model.FILES / "measured"))["rows"])

    def test_everything_that_was_measured_is_described(self):
        self.assertEqual(set(self.measured["rows"]) - set(self.rows), set())

    def test_every_miss_has_a_reason(self):
        for row, _, _, _, ratio in self.judged:
            self.assertTrue(row.get("reason") or not gpu_model.is_missed(ratio), row["name"])


if __name__ == "__main__":
    unittest.main()
