#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""small_test.py DEMO: the seven rows, the progress, and the refusals that name the command that has more."""
import re
import sys

from programs import expect, finish, refused, run

demo = sys.argv[1]
FEW = ["--cases", "2", "--windows", "1", "--length", "16", "--context", "512"]
TITLES = ["full", "StreamingLLM", "SnapKV", "H2O", "TRIM-KV", "WG-KV", "IntentKV"]
ROW = re.compile(r"^(\S+) +(\S.*\S) +([012]/2 \(\d+-\d+ %\)) +([012]/2 \(\d+-\d+ %\)) +(\d+\.\d{3}) +([\d,]+) +(\d+\.\d\d)$")


def table(text: str) -> list[tuple]:
    return [found.groups() for line in text.splitlines() if (found := ROW.match(line))]


ran = run(demo, *FEW, "--progress", "0", "--threads", "2")
rows = table(ran.stdout)
expect(ran.returncode == 0, f"status {ran.returncode}, {ran.stderr}")
expect([row[0] for row in rows] == TITLES, f"the rows are {[row[0] for row in rows]}")
expect(all(len(line) <= 110 for line in ran.stdout.splitlines()), "no line is wider than 110 columns")
expect("(34-100 %)" in ran.stdout, "2 of 2 has the interval from 34 to 100 %")
kept = {row[0]: int(row[5].replace(",", "")) for row in rows}
expect(kept["full"] == 528, f"the full cache holds all of 512 + 16 bytes: {kept}")
expect(kept["StreamingLLM"] == 64 and kept["H2O"] == 64 and kept["TRIM-KV"] == 64, f"an eighth is 64: {kept}")
expect(kept["SnapKV"] == 80 and kept["IntentKV"] == 80, f"an eighth and the 16 bytes that follow are 80: {kept}")
expect("in place" in dict((row[0], row[1]) for row in rows)["IntentKV"], "IntentKV's row says that it drops in place")

lines = ran.stderr.splitlines()
expect(lines[0] == "demo: 2 recall questions and 1 stretches of text, each under 7 rows", f"first line {lines[0]!r}")
expect(len(lines) == 1 + 3 * 7, f"with --progress 0 there is a line for each row of each case: {len(lines)}")
expect(all(re.fullmatch(r"(recall: question [12] of 2|text: stretch 1 of 1), \d+ % done, \d+ s", line) for line in lines[1:]),
       f"lines of progress: {lines[1:]}")
expect(lines[-1:] != [] and ", 100 % done," in lines[-1], f"the last line is {lines[-1:]}")
expect(len(run(demo, *FEW, "--progress", "1e6").stderr.splitlines()) == 1, "progress waits for its interval")

alone = table(run(demo, *FEW, "--threads", "1").stdout)
expect([row[:6] for row in alone] == [row[:6] for row in rows], "the figures do not depend on the number of threads")

several = run(demo, "--cases", "1", "--windows", "0", "--context", "512", "--shares", "8,4", "--policies", "full,snapkv").stdout
expect(all(f"\n{name} " in several for name in ("full", "SnapKV 1/8", "SnapKV 1/4")), f"two budgets are told apart:\n{several}")

HAS_MORE = "but this program has seven policies and one table: ./tools/demo.sh --full"
for option, value in (("--policy", "knorm | budget(64)"), ("--layout", "mask")):
    refused(demo, [option, value], f"demo: {option} = {value}, {HAS_MORE}", f"--full {option}")
refused(demo, ["--check"], f"demo: --check = given, {HAS_MORE}", "--full --check")
refused(demo, ["--full"], f"demo: --full = given, {HAS_MORE}", "--full")
refused(demo, ["--policies", "knorm"], "demo: --policies = knorm, but there are full, streaming_llm,", "; ./tools/demo.sh --full has more")
refused(demo, ["--shares", "0"], "demo: --shares = 0, but ", "a context is divided by at least 1")
refused(demo, ["--threads", "0"], "demo: --threads = 0, but ", "1 to 256 threads")
refused(demo, ["--progress", "-1"], "demo: --progress = -1, but ", "a time is at least 0")

told = run(demo, "--help").stdout
expect("./tools/demo.sh --full" in told and "--check" not in told, "--help names the command that has more")
finish()
