#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the table of docs/engines.md: one set of weights in three engines, under the same policies.

    table.py --versions TEXT [--write PAGE] RESULTS.json...

The files are what examples/llama_cpp/recall_engines and python/recall.py have written. `--write` puts the table into a page,
between the lines `<!-- recall: written by tools/engines.sh table -->` and `<!-- end of recall -->`; otherwise it is printed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

BEGIN, END = "<!-- recall: written by tools/engines.sh table -->\n", "<!-- end of recall -->\n"
PLAIN = "tinylm"  # the engine with which keep sets are compared
FULL = "full"


def same_lanes(one, other):
    """The part of lanes, of all questions, that keep the same entries."""
    pairs = [(a, b) for mine, theirs in zip(one["kept"], other["kept"]) for a, b in zip(mine, theirs)]
    return sum(a == b for a, b in pairs) / len(pairs)


def row(run, runs):
    plain = next(one for one in runs if one["engine"] == PLAIN and one["policy"] == run["policy"])
    lanes = "" if run is plain or run["policy"] == FULL else f"{100 * same_lanes(run, plain):.1f} %"
    steps = max(1, run["steps"])
    policy = run["policy"].replace("|", "\\|")  # a bar ends a cell, also in code
    return (f"| `{policy}` | {run['engine']} | {run['right']} of {len(run['kept'])} | {lanes} | {run['rows'] / steps:.0f} | "
            f"{steps / run['seconds']:.0f} |\n")


def table(runs, versions):
    policies = list(dict.fromkeys(one["policy"] for one in runs))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    made = f"Commit {commit}; {versions}; command `tools/engines.sh table`.\n\n"
    made += "| policy | engine | right | lanes that keep what tinylm's keep | cache rows that a layer reads for a token | tokens a second |\n"
    made += "| --- | --- | --- | --- | --- | --- |\n"
    for policy in policies:
        made += "".join(row(one, runs) for one in runs if one["policy"] == policy)
    return made


def main():
    parser = argparse.ArgumentParser(prog="table.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--versions", required=True, help="the versions of the engines")
    parser.add_argument("--write", type=Path, help="the page that has the table")
    given = parser.parse_args()
    runs = [run for path in given.results for run in json.loads(path.read_text())]
    for run in runs:
        run["policy"] = run["policy"] or FULL
    made = table(runs, given.versions)
    if given.write is None:
        print(made, end="")
        return 0
    page = given.write.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        print(f"table.py: --write = {given.write}, but it has no place for the table", file=sys.stderr)
        return 2
    before, rest = page.split(BEGIN)
    given.write.write_text(before + BEGIN + made + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
