#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a table of what llvm-cov says: tools/coverage_table.py HEADERS EXPORT.text EXPORT.lcov SHOWN [--missed]

Fails if a room with a bound is below it. Called by tools/coverage.sh."""

import collections
import json
import pathlib
import re
import sys

BOUND = {room: (95.0, 90.0) for room in ["core", "core/contract", "ops/host", "layout", "by_name"]}


def read_lines(export):
    """Of each file, how often each line ran: `SF:` names a file, `DA:line,count` tells."""
    files = collections.defaultdict(dict)
    for line in export.read_text().splitlines():
        kind, _, rest = line.partition(":")
        if kind == "SF":
            name = rest
        elif kind == "DA":
            number, count = map(int, rest.split(",")[:2])
            files[name][number] = max(count, files[name].get(number, 0))
    return files


def read_branches(export):
    """Of each file, how often each condition was true and false, summed over all instances of its template."""
    files = collections.defaultdict(lambda: collections.defaultdict(lambda: [0, 0]))
    for each in json.loads(export.read_text())["data"][0]["files"]:
        for line, column, line_end, column_end, true, false, *_ in each["branches"]:
            taken = files[each["filename"]][line, column, line_end, column_end]
            taken[0] += true
            taken[1] += false
    return files


def read_folded(shown):
    """Conditions that the compiler decides; the exports say 0 and 0 of them, `llvm-cov show` says what they are."""
    folded, name = set(), ""
    for line in shown.read_text().splitlines():
        if line.startswith("/") and line.endswith(":"):
            name = line[:-1]
        elif found := re.search(r"Branch \((\d+):(\d+)\): \[Folded - Ignored\]", line):
            folded.add((name, int(found[1]), int(found[2])))
    return folded


def percent(part):
    return 100.0 if part[1] == 0 else 100.0 * part[0] / part[1]


def main():
    headers, text, lcov, shown = map(pathlib.Path, sys.argv[1:5])
    lines, branches, folded = read_lines(lcov), read_branches(text), read_folded(shown)
    rooms = collections.defaultdict(lambda: ([0, 0], [0, 0]))
    missed = []
    for path in sorted(headers.resolve().rglob("*.hpp")):
        room = path.parent.relative_to(headers.resolve()).as_posix()
        source = path.read_text().split("\n")
        for number, count in sorted(lines.get(str(path), {}).items()):
            rooms[room][0][0] += count > 0
            rooms[room][0][1] += 1
            if count == 0:
                missed.append(f"{path}:{number}: never run: {source[number - 1].strip()}")
        for place, taken in sorted(branches.get(str(path), {}).items()):
            # Of a comparison that the compiler writes, and of a condition that it decides, there is nothing to test.
            if (str(path), *place[:2]) in folded and taken == [0, 0] or "= default;" in source[place[0] - 1]:
                continue
            rooms[room][1][0] += sum(count > 0 for count in taken)
            rooms[room][1][1] += 2
            condition = source[place[0] - 1][place[1] - 1:place[3] - 1 if place[2] == place[0] else None]
            missed += [f"{path}:{place[0]}:{place[1]}: never {when}: {condition}"
                       for when, count in zip(["true", "false"], taken) if count == 0]
    if "--missed" in sys.argv:
        print(*missed, "", sep="\n")

    below = 0
    print(f"{'room':<14} {'lines':>20} {'branches':>20}")
    for room, (of_lines, of_branches) in sorted(rooms.items()):
        line, branch = percent(of_lines), percent(of_branches)
        bad = room in BOUND and (line < BOUND[room][0] or branch < BOUND[room][1])
        below += bad
        verdict = "" if room not in BOUND else "BELOW" if bad else "ok"
        print(f"{room:<14} {of_lines[0]:>5} of {of_lines[1]:>4} {line:6.2f} % {of_branches[0]:>5} of {of_branches[1]:>4} "
              f"{branch:6.2f} % {verdict}".rstrip())
    absent = [room for room in BOUND if room not in rooms]
    print(*[f"{room}: nothing was measured" for room in absent], sep="\n", end="\n" if absent else "")
    print(f"bound: 95 % of lines, 90 % of branches; {below + len(absent)} of {len(BOUND)} rooms below it")
    return 1 if below + len(absent) > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
