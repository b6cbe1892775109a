#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the agent replay must show whatever its policies answer: agent_replay_test.py PROGRAM."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
SMALL = ["--sessions", "2", "--turns", "6", "--rounds", "1", "--budget", "200"]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=600)


def rows_of(*arguments):
    done = run("--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class AgentReplay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = rows_of(*SMALL)
        cls.rows = cls.whole["rows"]
        cls.full = cls.rows[0]

    def named(self, policy, layout="dead slot"):
        return [row for row in self.rows if row["name"].startswith(policy) and row["layout"] == layout]

    def test_nobody_leaks_a_slot_or_frees_one_twice_or_is_refused(self):
        for row in self.rows:
            self.assertEqual((row["slots_leaked"], row["double_frees"], row["refused_turns"]), (0, 0, 0), row["name"])

    def test_every_question_is_asked_of_everybody(self):
        for row in self.rows:
            self.assertEqual(row["answers"]["of"], 12, row["name"])
            self.assertEqual(row["prompt_tokens"], self.full["prompt_tokens"], row["name"])

    def test_effective_reads_are_at_most_raw_reads_and_are_all_of_them_for_the_full_cache(self):
        self.assertEqual(self.full["raw_kv_reads"], self.full["effective_kv_reads"])
        for row in self.rows:
            self.assertLessEqual(row["effective_kv_reads"], row["raw_kv_reads"], row["name"])
        for row in self.rows[1:]:
            self.assertLess(row["effective_kv_reads"], self.full["raw_kv_reads"], row["name"])

    def test_the_cost_is_what_was_prefilled_and_a_share_of_what_was_read(self):
        for row in self.rows:
            prefilled = row["prompt_tokens"] - row["prefix_hit_tokens"]
            self.assertAlmostEqual(row["prefill_token_equivalents"], prefilled + 0.01 * row["effective_kv_reads"], places=6)
        best = min(self.rows, key=lambda row: row["prefill_token_equivalents"])
        self.assertNotEqual(best["layout"], "compact")  # what must be read again costs more than what is not read

    def test_on_dead_slots_the_prefix_cache_goes_on_matching_and_after_compaction_it_does_not(self):
        self.assertGreater(self.full["prefix_hit_rate"], 0.5)
        for policy in ("intent_kv", "snapkv", "h2o", "streaming_llm"):
            for row in self.named(policy):
                self.assertGreaterEqual(row["prefix_hit_rate"], 0.95 * self.full["prefix_hit_rate"], policy)
        for row in self.rows:
            if row["layout"] == "compact":
                self.assertEqual(row["prefix_hit_tokens"], 0, row["name"])
            if row["layout"] == "compact, spared":
                self.assertGreater(row["prefix_hit_tokens"], 0, row["name"])
                self.assertLess(row["prefix_hit_rate"], 0.3 * self.full["prefix_hit_rate"], row["name"])

    def test_the_live_set_stays_at_the_budget_over_all_turns(self):
        for row in self.rows[1:]:
            self.assertEqual(len(row["live_by_turn"]), 6)
            self.assertLessEqual(max(row["live_by_turn"]), 200, row["name"])
            self.assertLessEqual(row["effective_live_kv"], 200 + 5, row["name"])
        self.assertGreater(self.full["live_by_turn"][-1], 600)

    def test_a_redirecting_request_holds_no_more_than_budget_turn_and_answer(self):
        for row in self.named("intent_kv"):
            self.assertLessEqual(row["peak_request_tokens"], 200 + 5 + 100)
        self.assertGreater(self.full["peak_request_tokens"], 600)

    def test_all_three_modes_of_intent_kv_are_there(self):
        names = [row["name"] for row in self.named("intent_kv")]
        self.assertEqual(names, ["intent_kv query", "intent_kv memory", "intent_kv learnable"])

    def test_the_same_seed_gives_the_same_figures_but_for_time(self):
        def timeless(whole):
            for row in whole["rows"]:
                row.pop("first_token_ms_median")
            return whole
        first = rows_of("--sessions", "2", "--turns", "3", "--rounds", "1", "--budget", "150", "--only", "h2o")
        again = rows_of("--sessions", "2", "--turns", "3", "--rounds", "1", "--budget", "150", "--only", "h2o")
        self.assertEqual(timeless(first), timeless(again))

    def test_maps_with_holes_that_stay_out_of_the_tree_lose_hits_and_no_slot(self):
        row = rows_of(*SMALL, "--no-holes", "--only", "intent_kv memory")["rows"][0]
        self.assertLess(row["prefix_hit_rate"], 0.8 * self.full["prefix_hit_rate"])
        self.assertEqual((row["slots_leaked"], row["double_frees"]), (0, 0))

    def test_a_pool_that_is_too_small_evicts_and_refuses_and_leaks_nothing(self):
        tight = rows_of(*SMALL, "--slots", "700", "--only", "full")["rows"][0]
        self.assertEqual((tight["slots_leaked"], tight["double_frees"]), (0, 0))
        self.assertLess(tight["prefix_hit_rate"], self.full["prefix_hit_rate"])
        none = rows_of(*SMALL, "--slots", "100", "--only", "full")["rows"][0]
        self.assertEqual((none["refused_turns"], none["slots_leaked"]), (12, 0))

    def test_the_page_is_whole_and_has_a_line_for_each_row(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "live.html"
            done = run("--sessions", "1", "--turns", "2", "--rounds", "1", "--only", "intent", "--html", str(page))
            self.assertEqual(done.returncode, 0, done.stderr)
            text = page.read_text()
        self.assertEqual(text.count("<polyline"), 3)
        self.assertTrue(text.endswith("</html>\n"))
        self.assertNotIn("http", text)

    def test_the_page_takes_the_place_of_a_file_and_keeps_its_mode(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "live.html"
            page.write_text("old")
            page.chmod(0o600)
            tiny = ["--sessions", "1", "--turns", "1", "--rounds", "1", "--only", "full", "--html", str(page)]
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *tiny], stdout=full, stderr=subprocess.PIPE, timeout=600)
            self.assertEqual((done.returncode, done.stderr.count(b"\n"), page.read_text()), (1, 1, "old"), done.stderr)
            self.assertEqual(run(*tiny).returncode, 0)
            self.assertEqual((oct(page.stat().st_mode & 0o7777), page.read_text()[-8:]), (oct(0o600), "</html>\n"))
            self.assertEqual([path.name for path in pathlib.Path(folder).iterdir()], ["live.html"])

    def test_a_page_that_would_replace_what_it_should_not_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            text, link = pathlib.Path(folder) / "text.txt", pathlib.Path(folder) / "link"
            text.write_text("words " * 100)
            link.symlink_to(text)
            for page, why in ((folder, "it is a directory"), (str(link), "it is a symbolic link"), ("", "a file has a name"),
                              (str(text), "this run reads it")):
                done = run("--text", str(text), "--html", page)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertTrue(done.stderr.startswith(f"agent_replay: --html = {page}, but it cannot be written: {why}"), done.stderr)
                self.assertEqual((text.read_text(), link.is_symlink()), ("words " * 100, True))

    def test_what_cannot_be_run_is_refused_in_one_line(self):
        for arguments, line in (
                (["--turns", "13"], "agent_replay: --turns = 13, but the model was trained on contexts of up to 1280 bytes"),
                (["--only", "nobody"], "agent_replay: --only = nobody, but no policy's name begins so"),
                (["--span", "all"], "agent_replay: --span = all, but it is message or question"),
                (["--text", "/nowhere"], "agent_replay: --text = /nowhere, but it cannot be read"),
                (["--html", "/nowhere/a.html"], "agent_replay: --html = /nowhere/a.html, but it cannot be written"),
                (["--budget", "0"], "agent_replay: --budget = 0, but a session keeps at least one token")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertTrue(done.stderr.startswith(line), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
