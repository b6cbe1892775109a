#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of examples/serving in its quick form.

    serving_test.py PROGRAM [--twice]

--twice makes the table again, and only the times may differ.
"""

import json
import subprocess
import sys

TIMES = {"seconds", "tokens_per_second"}
LIMIT = 10 << 20  # bytes, of the quick table
BLOCK = 16 * 8 * 2 * 64 * 4  # bytes of the keys and values of 16 tokens in 8 lanes of 64 channels


def run(*arguments):
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, check=False)


def rows(*arguments):
    done = run("--quick", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_refusals():
    for arguments, wanted in [
        (["--memory", "9"], "serving: --memory = 9, but an engine holds 10 to 8192 MiB\n"),
        (["--answer", "5"], "serving: --answer = 5, but 6 to 256 bytes\n"),
        (["--weights", "/nowhere"], "serving: --weights = /nowhere/held_out.txt, but it cannot be read\n"),
    ]:
        done = run(*arguments)
        assert done.returncode == 2 and done.stderr == wanted, (arguments, done.stderr)


def main():
    all_rows = rows()
    full, *policies = all_rows
    assert [row["policy"] for row in all_rows] == ["full", "snapkv", "trim_kv"]
    for row in all_rows:
        held = row["held_bytes"]
        assert sum(held.values()) == row["total_bytes"], row
        # Equal memory: at most what is given, and less than another block below it.
        assert LIMIT - 2 * BLOCK < row["total_bytes"] <= LIMIT, row
        assert held["rows"] == (row["blocks"] + 1) * BLOCK and row["peak_blocks"] <= row["blocks"], row
        assert row["asked"] == full["asked"] and row["hit_tokens"] > 0 and row["forks"] > 0 and row["accepted"] > 0, row
    for row in policies:
        assert row["mean_running"] >= 2 * full["mean_running"], (full, row)
        assert row["held_bytes"]["state"] > 0 and row["held_bytes"]["plans"] > 0, row
        assert row["right"] >= full["right"] - 1, (full, row)
        assert row["copied_blocks"] > full["copied_blocks"], (full, row)  # a policy moves entries in blocks of its own
    if "--twice" in sys.argv[2:]:
        for first, second in zip(all_rows, rows(), strict=True):
            for name in first.keys() - TIMES:
                assert first[name] == second[name], (name, first, second)
    check_refusals()


main()
