#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of one's own in kvreplay: the plugin of the examples, and libraries that are none.

    plugin_test.py PROGRAM PLUGIN
"""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

PLUGIN = Path(sys.argv.pop(2))

import html_test  # noqa: E402
from program import Runs, called  # noqa: E402
from traces import ragged  # noqa: E402

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

    def test_its_policy_is_on_the_page(self):
        page = self.folder / "kept.html"
        done = self.with_plugin("--policy", "value_aware", "--budget", 12, "--html", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("value_aware | budget(12)", page.read_text())

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
