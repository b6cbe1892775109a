#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of kvreplay --html against the results of --out, and what becomes of one that cannot be written.

    html_test.py PROGRAM
"""

import base64
import json
import os
import random
import re
import stat
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from program import PROGRAM, called
from traces import ragged, read, write

LAYERS, HEADS, ENTRIES = 3, 2, 37
WORDS = [f"w{index}" if index % 5 else "</script><!-- é\n" for index in range(ENTRIES)]


def write_trace(path, metadata=None, **more):
    dice = random.Random(3)
    rows = lambda: [[[[dice.gauss(0, 1) for _ in range(4)] for _ in range(ENTRIES)] for _ in range(HEADS)] for _ in range(LAYERS)]
    write(path, {"keys": ("F32", rows()), "values": ("F32", rows()), "queries": ("F32", rows()), **more}, metadata)


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S).group(1))


def held(data, step):
    """The entries of each lane after a step, read by hand."""
    (text,) = data["texts"]
    row, stride = text["rows"][0], (text["length"] + 7) // 8
    bits, gone = bytearray(base64.b64decode(row["kept"])), base64.b64decode(row["gone"])
    pairs = struct.unpack(f"<{len(gone) // 4}I", gone)
    for i in range(row["ends"][step]):
        segment, entry = pairs[2 * i : 2 * i + 2]
        assert bits[segment * stride + entry // 8] >> entry % 8 & 1, "an entry goes once"
        bits[segment * stride + entry // 8] ^= 1 << entry % 8
    segments = data.get("segment", range(LAYERS * HEADS))
    return [[e for e in range(text["arrived"][step]) if bits[s * stride + e // 8] >> e % 8 & 1] for s in segments]


class Page(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.trace, self.page, self.out = (self.folder / name for name in ("trace.safetensors", "kept.html", "out.safetensors"))
        write_trace(self.trace)

    def replayed(self, *arguments):
        done = called(self.trace, "--out", self.out, "--html", self.page, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return data_of(self.page), read(self.out)

    def check_end(self, data, result):
        """The last step is what is kept at the end."""
        segments = data.get("segment", range(LAYERS * HEADS))
        self.assertEqual(held(data, len(data["texts"][0]["arrived"]) - 1), [ragged(result)[s] for s in segments])

    def test_a_prefill_is_one_step(self):
        for policy in (["knorm", "--budget", "9"], ["full"], ["snapkv", "--ratio", "0.5", "--budget-scope", "global", "--set", "window=4"]):
            data, result = self.replayed("--policy", *policy)
            self.assertEqual(data["texts"][0]["arrived"], [ENTRIES])
            self.check_end(data, result)
            self.assertNotIn("segment", data)

    def test_decoding_has_a_step_for_each_entry(self):
        for prefill in (0, 1, 10, ENTRIES):
            data, result = self.replayed("--policy", "h2o", "--budget", "8", "--mode", "decode", "--prefill", prefill)
            arrived = data["texts"][0]["arrived"]
            self.assertEqual(arrived, list(range(max(1, prefill), ENTRIES + 1)))
            self.check_end(data, result)
            rows = result["events"][1]
            gone = {(segment, entry): step for step, segment, entry in zip(rows[::3], rows[1::3], rows[2::3])}
            for step, count in enumerate(arrived):
                expected = [[e for e in range(count) if gone.get((s, e), ENTRIES) >= count] for s in range(LAYERS * HEADS)]
                self.assertEqual(held(data, step), expected, (prefill, step))

    def test_an_admission_is_followed_too(self):
        data, result = self.replayed("--policy", "local_attention", "--set", "window=6", "--set", "sinks=2", "--mode", "decode", "--prefill", "9")
        self.check_end(data, result)
        self.assertEqual(held(data, 3), [[0, 1, 6, 7, 8, 9, 10, 11]] * (LAYERS * HEADS))

    def test_chunks_and_turns_are_steps(self):
        data, result = self.replayed("--policy", "knorm", "--budget", "7", "--mode", "chunks", "--chunk", "10")
        self.assertEqual(data["texts"][0]["arrived"], [10, 20, 30, 37])
        self.assertEqual(data["texts"][0]["steps"][1], "after 20 entries")
        self.check_end(data, result)
        write_trace(self.trace, turn_end=("I32", [12, 30, 37]))
        data, result = self.replayed("--policy", "streaming_llm", "--budget", "8", "--mode", "turns")
        self.assertEqual((data["texts"][0]["arrived"], data["texts"][0]["steps"][2]), ([12, 30, 37], "after turn 3"))
        for turn in range(3):
            self.assertEqual(held(data, turn), ragged(result, "turn")[turn * LAYERS * HEADS : (turn + 1) * LAYERS * HEADS])

    def test_a_selection_shows_what_is_read(self):
        data, result = self.replayed("--policy", "quest", "--set", "page=4", "--set", "dense_layers=0", "--budget", "12", "--mode", "select")
        self.check_end(data, result)
        self.assertIn("each lane reads at the end", self.page.read_text())

    def test_lanes_that_decide_together_share_a_segment(self):
        for granularity, segments in (("layer", [0, 0, 1, 1, 2, 2]), ("token", [0] * 6)):
            data, result = self.replayed("--policy", "knorm", "--budget", "9", "--granularity", granularity)
            self.assertEqual(data["segment"], segments)
            self.check_end(data, result)

    def test_groups_of_layers_are_merged(self):
        write_trace(self.trace, layer_group=("I32", [1, 0, 1]))
        data, result = self.replayed("--policy", "knorm", "--budget", "9", "--mode", "decode", "--prefill", "20", "--no-policy", "0")
        self.check_end(data, result)
        self.assertEqual([len(lane) for lane in held(data, 0)], [9, 9, 20, 20, 9, 9])

    def test_the_page_has_the_texts_of_tokens_and_what_made_it(self):
        write_trace(self.trace, {"token_texts": json.dumps(WORDS)}, positions=("I32", [3 * index for index in range(ENTRIES)]))
        data, _ = self.replayed("--policy", "knorm", "--budget", "9", "--docs", "../docs/?a&b")
        text, html = data["texts"][0], self.page.read_text()
        self.assertEqual((text["words"], text["positions"][2], data["entry"]), (WORDS, 6, "token"))
        self.assertEqual(data["rows"][0]["spelt"], "knorm | budget(9)")
        for part in ("trace: trace.safetensors", "machine: ", "kvpolicy: ", 'href="../docs/?a&amp;b"', "What knorm keeps of trace.safetensors"):
            self.assertIn(part, html)
        self.assertNotIn(str(self.folder), html)
        self.assertEqual(html.count("</script>"), 2)
        self.assertEqual(html.count("<tr><th scope=\"row\">"), LAYERS)

    def test_a_page_that_cannot_be_written_is_refused_and_nothing_is_written(self):
        link, fifo = self.folder / "link.html", self.folder / "fifo.html"
        link.symlink_to("nothing")
        os.mkfifo(fifo)
        wrong = {"strings": {"token_texts": "[1]"}, "count": {"token_texts": '["a"]'}, "json": {"token_texts": "[\"a"}}
        for name, metadata in wrong.items():
            write_trace(self.folder / f"{name}.safetensors", metadata)
        before = {path.name for path in self.folder.iterdir()}
        trace = self.trace.read_bytes()
        of = lambda name: ["--html", self.page, "--trace-is", self.folder / f"{name}.safetensors"]
        for arguments, text in (
            (["--html", self.folder], "but it cannot be written: it is a directory"),
            (["--html", link], "but it cannot be written: it is a symbolic link"),
            (["--html", fifo], "but it cannot be written: it is a FIFO"),
            (["--html", ""], "--html = , but it cannot be written: a file has a name"),
            (["--html", self.folder / "none" / "kept.html"], "kept.html, but it cannot be written: No such file or directory"),
            (["--html", "/proc/kept.html"], "--html = /proc/kept.html, but it cannot be written"),
            (["--html", self.trace], "but it cannot be written: this run reads it"),
            (["--html", self.out, "--out", self.out], "but the results of --out are written there"),
            (["--html", self.page, "--budget", "x"], "--budget"),
            (of("strings"), "metadata token_texts = [1], but it is a JSON list of strings"),
            (of("json"), "metadata token_texts = [\"a, but it is a JSON list of strings"),
            (of("count"), "metadata token_texts = 1 strings, but the trace has 37 entries"),
        ):
            path = arguments[3] if "--trace-is" in arguments else self.trace
            more = [] if "--budget" in arguments else ["--budget", "9"]
            done = called(path, "--policy", "knorm", *more, *arguments[: 2 if "--trace-is" in arguments else None])
            with self.subTest(arguments=arguments, said=done.stderr):
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
                self.assertIn(text, done.stderr)
                self.assertTrue(done.stderr.startswith("kvreplay: "))
                self.assertEqual({one.name for one in self.folder.iterdir()}, before)
        self.assertEqual(self.trace.read_bytes(), trace)

    def test_a_run_whose_output_does_not_arrive_writes_neither_file(self):
        with open("/dev/full", "w") as full:
            command = [PROGRAM, str(self.trace), "--policy", "knorm", "--budget", "9", "--html", str(self.page), "--out", str(self.out)]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertEqual([path.name for path in self.folder.iterdir()], [self.trace.name])

    def test_a_page_that_is_replaced_keeps_its_mode(self):
        self.page.write_text("old")
        self.page.chmod(0o604)
        self.replayed("--policy", "knorm", "--budget", "9")
        self.assertEqual(stat.S_IMODE(self.page.stat().st_mode), 0o604)


if __name__ == "__main__":
    unittest.main()
