#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kvreplay's options mean to admissions and selections: forced entries, layouts, caps, ratios, and what they have no use for.

    admission_options_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import unittest

import admission_test
import selection_test
from admission_test import Small, admitted, run_lane
from program import called
from reference_test import np
from traces import main, ragged, write_arrays


@unittest.skipIf(np is None, "there is no numpy")
class Options(admission_test.Admission):
    """Only what is named here: not the inherited tests again."""

    def test_forced_entries_are_admitted_whatever_their_gate(self):
        for gap, forced in ((0, {0, 1, 7, 8}), (50, {0, 1, 7, 8})):
            trace = Small(50, 30, layers=2, kv_heads=2, gap=gap)  # positions jump at entry 15
            self.write(trace)
            admits = [[gate or j in forced for j, gate in enumerate(admitted(trace.gate[lane], .75))] for lane in trace.lanes()]
            for mode in ((), ("--mode", "decode", "--prefill", 12)):
                result = self.replay("wg_kv", *mode, "--sinks", 2, "--protect", "7:9", "--attend", window=5, page=4, threshold=.75)
                self.same(trace, result, [run_lane(admit, 5, None, 12) for admit in admits])
                self.assertIn("| sinks(2) | span(7, 9)", self.told["spec"])
        result = self.replay("local_attention", "--sinks", 4, "--protect", "70:71", "--attend", window=5, sinks=2)
        self.same(trace, result, [run_lane([j < 4 or j == 20 for j in range(30)], 5)] * 4)

    def test_layouts_differ_in_what_is_free_and_written(self):
        trace = Small(51, 40, layers=2, kv_heads=2)
        self.write(trace)
        lanes = [run_lane(admitted(trace.gate[lane], .5), 8) for lane in trace.lanes()]
        pages = sum(-(-len(glob) // 4) for glob, _, _ in lanes)
        kept = sum(len(glob) + len(local) for glob, local, _ in lanes)
        for mode in ((), ("--mode", "decode")):
            for layout, freed in (("compact", 160 - kept), ("lane_pages", 160 - 4 * 8 - 4 * pages), ("mask", 0)):
                result = self.replay("wg_kv", *mode, "--layout", layout, window=8, page=4, threshold=.5)
                self.assertEqual(ragged(result), [glob + local for glob, local, _ in lanes])
                self.assertEqual(ragged(result, "local"), [local for _, local, _ in lanes])
                self.assertEqual((self.told["physical_freed"], self.told["pages"], self.told["admitted"]), (freed, pages, kept - 32))
                self.assertEqual("keys" in result, layout == "compact")

    def test_a_cap_tells_what_it_dropped(self):
        trace = Small(52, 30, layers=1, kv_heads=2)
        self.write(trace)
        picked = [sum(admitted(trace.gate[lane], .25)[:26]) for lane in trace.lanes()]
        for mode in ((), ("--mode", "decode", "--prefill", 9)):
            self.replay("wg_kv", *mode, "--budget", 3, window=4, page=2, threshold=.25)
            self.assertEqual((self.told["admitted"], self.told["over_cap"], self.told["pages"]), (6, sum(picked) - 6, 4))
            self.assertIn("| cap(3)", self.told["spec"])

    def test_options_without_a_meaning_are_refused(self):
        trace = Small(53, 12, layers=2, kv_heads=2)
        self.write(trace)
        for policy, more in (("wg_kv", ()), ("local_attention", ()), ("quest", ("--mode", "select", "--budget", 8))):
            for option, value in (("--recent", 4), ("--granularity", "token"), ("--reduce", "sum"), ("--budget-scope", "layer"),
                                  ("--floor", .5), ("--layout", "compact_rerotated"), ("--layout", "dead_slot")):
                self.refused(option, policy, *more, option, value)
        for option, value in (("--ratio", .5), ("--budget", -1), ("--budget", "x"), ("--sinks", -1), ("--sinks", "x"), ("--protect", "3"),
                              ("--protect", "5:3")):
            self.refused(option, "wg_kv", option, value)
        for option, value in (("--sinks", 4), ("--protect", "0:4"), ("--ratio", .5)):
            self.refused(option, "quest", "--mode", "select", "--budget", 8, option, value)
        self.refused("--budget", "quest", "--mode", "select")
        self.refused("ratio", "quest", "--mode", "select", "--ratio", 1.5)
        self.refused("did you mean wg_kv?", "wg_k")
        self.refused("the modes prefill and decode", "wg_kv", "--mode", "turns")
        self.refused("--prefill", "wg_kv", "--mode", "decode", "--prefill", 13)
        self.refused("given before", "wg_kv", "--set", "window=3", "--set", "window=3")
        self.refused("page", "wg_kv", page=65537)

    def test_a_table_of_heads_among_others_is_named_retrieval(self):
        trace = Small(54, 12, layers=1, kv_heads=2)
        self.write(trace)
        path = self.folder / "heads of a model (1), or none.safetensors"
        heads, other = ("F64", np.array([[1.0, 0.0]])), ("F32", np.zeros((3,), np.float32))
        write_arrays(path, {"other": other, "retrieval": heads})
        result = self.replay("duo_attention", "--set", f"retrieval={path}", "--attend", window=3, sinks=1)
        self.same(trace, result, [run_lane([True] * 12, 3), run_lane([j < 1 for j in range(12)], 3)])
        write_arrays(path, {"other": other, "heads": heads})
        self.refused("2 tensors", "duo_attention", "--set", f"retrieval={path}")
        write_arrays(path, {"retrieval": ("F32", np.array([[1, np.nan]], np.float32))})
        self.refused("nan", "duo_attention", "--set", f"retrieval={path}")

    def test_attention_needs_what_it_reads(self):
        trace = Small(55, 12, layers=1, kv_heads=1)
        self.write(trace, without=("queries",))
        self.refused("--attend", "wg_kv", "--attend", window=4)
        self.write(trace, without=("values",))
        self.refused("--attend", "wg_kv", "--attend", window=4)

    def test_a_table_is_printed_too(self):
        trace = Small(56, 12, layers=1, kv_heads=1)
        self.write(trace)
        done = called(self.path, "--policy", "wg_kv")
        self.assertEqual(done.returncode, 0)
        self.assertIn("wg_kv(window=256, threshold=0.1, strict=false, page=16)\n", done.stdout)
        self.assertIn("\nover_cap             0\n", done.stdout)


@unittest.skipIf(np is None, "there is no numpy")
class Reading(selection_test.Selection):
    """The same of a selection."""

    def test_a_ratio_drops_that_part_of_the_pages(self):
        trace = Small(60, 40, layers=2)
        self.write(trace)
        for ratio, budget in ((.5, 20), (.9, 4), (0, 40), (1, 0)):
            result = self.replay("--ratio", ratio, page=4, dense_layers=1)
            self.assertEqual(self.pages(result), self.pages(self.replay("--budget", budget, page=4, dense_layers=1)))

    def test_rows_that_are_read_are_written_and_nothing_is_dropped(self):
        trace = Small(61, 37, layers=3)
        self.write(trace)
        for layout in ("compact", "lane_pages", "mask"):
            result = self.replay("--budget", 12, "--layout", layout, page=4, dense_layers=1)
            kept = ragged(result)
            self.assertEqual((self.told["logical_kept"], self.told["physical_freed"]), (37 * trace.segments, 0))
            self.assertEqual("keys" in result, layout == "compact")
            for name in ("keys", "values") if "keys" in result else ():
                np.testing.assert_array_equal(admission_test.stored(trace, result, name), trace.rows(name, kept))

    def test_a_query_that_is_looked_with_is_finite(self):
        trace = Small(62, 20, layers=1, kv_heads=1)
        for row, good in ((5, True), (19, False)):
            rows = trace.queries.copy()
            rows[0, 0, row, 0] = np.nan
            self.write(trace, queries=("F32", rows.astype(np.float32)))
            if good:
                self.replay("--budget", 8, page=4)
            else:
                self.refused("tensor queries = nan in row 19", "--budget", 8, page=4)


def load_tests(loader, _, __):
    """The tests of this file alone."""
    suite = unittest.TestSuite()
    for case in (Options, Reading):
        suite.addTests(case(name) for name in loader.getTestCaseNames(case) if name in vars(case))
    return suite


if __name__ == "__main__":
    main()
