#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of one's own in kvreplay: the plugin of the examples, and libraries that are none.

    plugin_test.py PROGRAM PLUGIN OWN_APPLIERS
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

PLUGIN = Path(sys.argv.pop(2))
APPLIERS = Path(sys.argv.pop(2))

import html_test  # noqa: E402
from program import Runs, called  # noqa: E402
from traces import ragged, read  # noqa: E402

NOT_OURS = {
    "it exports no kvpolicy_plugin": "int nothing;",
    "it was built with kvpolicy 0.1.0, and this program with ": """
        static struct { char const* version; unsigned long bytes; int abi; void* add; } mine = {"0.1.0"};
        void* kvpolicy_plugin(void) { return &mine; }""",
    "it was built by another compiler or with another standard library": """
        static struct { char const* version; unsigned long bytes; int abi; void* add; } mine = {"VERSION", 1, 1};
        void* kvpolicy_plugin(void) { return &mine; }""",
}


class Plugins(Runs):
    def setUp(self):
        super().setUp()
        html_test.write_trace(self.path)

    def with_plugin(self, *arguments):
        return self.run_program("--plugin", PLUGIN, *arguments)

    def test_a_scorer_is_listed_and_decides_by_name_and_by_spec(self):
        names = [one["name"] for one in json.loads(called("--list", "--json", "--plugin", PLUGIN).stdout)]
        self.assertIn("value_aware", names)
        self.assertNotIn("value_aware", [one["name"] for one in json.loads(called("--list", "--json").stdout)])
        by_name = ragged(self.result_of(self.with_plugin("--policy", "value_aware", "--budget", 12)))
        self.assertEqual(self.told["spec"], "value_aware | budget(12)")
        self.assertEqual({len(one) for one in by_name}, {12})
        self.assertEqual(ragged(self.result_of(self.with_plugin("--spec", "value_aware | budget(12)"))), by_name)
        self.assertNotEqual(ragged(self.result_of(self.run_program("--spec", "knorm | budget(12)"))), by_name)

    def test_a_scorer_by_a_mean_of_keys_keeps_what_has_least_in_common_with_it(self):
        kept = ragged(self.result_of(self.with_plugin("--policy", "unlike_the_mean", "--budget", 12)))
        (_, _, entries, dims), numbers = read(self.path)["keys"]
        for lane, held in enumerate(kept):
            rows = [numbers[at:at + dims] for at in range(lane * entries * dims, (lane + 1) * entries * dims, dims)]
            mean = [sum(column) / entries for column in zip(*rows)]
            common = [sum(a * b for a, b in zip(row, mean)) for row in rows]
            self.assertEqual(held, sorted(sorted(range(entries), key=lambda e: common[e])[:12]), lane)

    def test_a_stage_wraps_what_the_library_ships(self):
        plain = ragged(self.result_of(self.run_program("--spec", "knorm | budget(12)")))
        squared = ragged(self.result_of(self.with_plugin("--spec", "knorm | squared | budget(12)")))
        self.assertEqual([sorted(one) for one in squared], [sorted(one) for one in squared])
        self.assertNotEqual(squared, plain)  # the norms are negated, so their squares rank the other way round
        for kept, others in zip(squared, plain):
            self.assertLess(len(set(kept) & set(others)), 12)

    def test_a_system_of_an_admission_is_listed_and_admits_by_name_and_by_spec(self):
        listed = {one["name"]: one for one in json.loads(called("--list", "--json", "--plugin", PLUGIN).stdout)}
        self.assertEqual(listed["sliding_window"]["modes"], ["prefill", "decode"])
        self.assertEqual(listed["sliding_window"]["fields"], [{"default": "64", "name": "window", "type": "an integer"}])
        by_name = ragged(self.result_of(self.with_plugin("--policy", "sliding_window", "--set", "window=5", "--sinks", 2)))
        self.assertEqual(self.told["spec"], "sliding_window(window=5) | sinks(2)")
        self.assertEqual({len(one) for one in by_name}, {7})
        self.assertEqual(ragged(self.result_of(self.with_plugin("--spec", "admit: sliding_window(5) | sinks(2)"))), by_name)
        self.assertEqual(self.told["spec"], "head_table | sinks(2) | at_least(least=0.5, strict=false, unbounded=false) | window(5)")
        self.refused("kvreplay: --set window = 0, but the newest token is always seen",
                     "--plugin", PLUGIN, "--policy", "sliding_window", "--set", "window=0")

    def test_an_applier_is_a_layout_that_leaves_the_rows_that_compact_leaves(self):
        for arguments in (["--spec", "value_aware | budget(12)"], ["--spec", "knorm | reduce_lanes(token, sum) | budget(12)"],
                          ["--spec", "knorm | sinks(2) | budget(9)", "--mode", "decode", "--prefill", 8]):
            plain = self.result_of(self.with_plugin(*arguments, "--attend"))
            compacted = dict(self.told)
            own = self.result_of(self.with_plugin(*arguments, "--attend", "--layout", "scrubbed"))
            self.assertEqual(set(own), set(plain))
            for name, tensor in plain.items():
                self.assertEqual(own[name], tensor, name)
            self.assertEqual(self.told["layout"], "scrubbed")
            for name in ("logical_kept", "physical_freed", "attended_length"):
                self.assertEqual(self.told[name], compacted[name], (name, arguments))

    def own_applier(self, name, *more):
        return self.run_program("--plugin", APPLIERS, "--layout", name, "--policy", "knorm", "--budget", 7, *more)

    def test_an_applier_of_lists_gets_the_lists_and_one_with_columns_its_columns(self):
        for mode in (["--mode", "prefill"], ["--mode", "decode", "--prefill", 8], ["--mode", "chunks", "--chunk", 10]):
            plain = self.result_of(self.run_program("--policy", "knorm", "--budget", 7, "--attend", *mode))
            for name in ("shortened", "counts_calls"):
                own = self.result_of(self.own_applier(name, "--attend", *mode))
                for each in ("keep.offsets", "keep.ordinals", "output"):
                    self.assertEqual(own[each], plain[each], (name, each, mode))

    def test_a_layout_of_an_applier_is_refused_in_one_line_and_nothing_is_written(self):
        for name, said in {
            "forgets": "forgets, but it left 37 entries in layer 0, head 0, where the decision keeps 7",
            "turned_round": "turned_round, but the entries that it left in layer 0, head 0 are others than the decision keeps, or in",
            "throws": "throws, but its lock is held",
            "throws_number": "throws_number, but it throws what is no exception",
            "drops": "drops, but an applier of a plugin gets rows of lanes, or lists of slots as its member `list`",
            "nope": "nope, but there are compact, compact_rerotated, dead_slot, mask and lane_pages and shortened and forgets",
        }.items():
            self.fails(self.own_applier(name), f"kvreplay: --layout = {said}", name=name)
        self.refused("kvreplay: --layout = scrubbed, but of sliding_window there are compact, lane_pages and mask",
                     "--plugin", PLUGIN, "--policy", "sliding_window", "--layout", "scrubbed")
        self.refused("kvreplay: --layout = scrubbed, but there are compact", "--policy", "knorm", "--budget", 4, "--layout", "scrubbed")

    def test_a_plugin_that_throws_adds_nothing(self):
        for asked, said in {"exception": "it adds nothing: it has no licence",
                            "number": "it adds nothing, and throws what is no exception",
                            "again": "it adds nothing: registry: name = forgets, but there is an applier of that name",
                            "mask": "it adds an applier mask, which is a layout already"}.items():
            with mock.patch.dict(os.environ, KVPOLICY_OWN_APPLIERS=asked):
                self.fails(self.own_applier("compact"), f"kvreplay: --plugin = {APPLIERS}, but {said}", asked=asked)

    def test_its_policy_is_on_the_page(self):
        page = self.folder / "kept.html"
        done = self.with_plugin("--policy", "value_aware", "--budget", 12, "--html", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("value_aware | budget(12)", page.read_text())
        done = self.with_plugin("--policy", "value_aware", "--budget", 12, "--layout", "scrubbed", "--html", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("scrubbed", page.read_text())

    def test_what_is_no_plugin_is_one_line_and_nothing_is_written(self):
        header = (Path(__file__).resolve().parents[2] / "include/kvpolicy/version.hpp").read_text()
        version = re.search(r'version\[\] = "(.*)"', header).group(1)
        for said, source in NOT_OURS.items():
            library = self.folder / "other.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source.replace("VERSION", version), text=True, check=True)
            self.refused(f"kvreplay: --plugin = {library}, but {said}", "--plugin", library, "--policy", "knorm", "--budget", 4)
        self.refused("kvreplay: --plugin = ./none.so, but it cannot be loaded: ", "--plugin", "./none.so", "--policy", "knorm", "--budget", 4)
        self.refused("--plugin", "--plugin", PLUGIN, "--plugin", PLUGIN, "--policy", "knorm", "--budget", 4)  # its names are taken
        self.refused("there are ", "--policy", "value_aware", "--budget", 4)

    def test_it_is_not_written_over(self):
        before = PLUGIN.read_bytes()
        done = called(self.path, "--plugin", PLUGIN, "--policy", "knorm", "--budget", 4, "--out", PLUGIN)
        self.assertEqual((done.returncode, done.stderr.count("\n"), PLUGIN.read_bytes()), (2, 1, before))


if __name__ == "__main__":
    unittest.main()
