#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts what one part of the acceptance on a GPU found into the file that holds all of it, for tools/gpu_report.py.

    gpu_results.py RESULTS FOLDER

FOLDER holds the JSON of Google Benchmark and of bench/cuda/torch_peers.py as NAME.json, or as NAME.1.json, NAME.2.json
for cells that were measured one after the other. It also holds PART.steps, a line for each step: verdict, seconds and
name, with tabs between them. Of a program that was killed the runs that it had written are kept. RESULTS keeps what it
holds of other names.
"""
import json
import os
import re
import sys
from pathlib import Path

KEY = '"%s":'


def value_after(text, key, at=0):
    """The value that follows a key, or None if it is not whole."""
    found = text.find(KEY % key, at)
    if found < 0:
        return None
    begin = re.compile(r"\s*").match(text, found + len(KEY % key)).end()
    try:
        return json.JSONDecoder().raw_decode(text, begin)[0]
    except ValueError:
        return None


def whole_runs(text):
    """The benchmarks of a file that breaks off, as far as they are whole."""
    found = text.find(KEY % "benchmarks")
    at = text.find("[", found) + 1 if found >= 0 else 0
    runs = []
    while at > 0:
        at = re.compile(r"[\s,]*").match(text, at).end()
        try:
            run, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            break
        runs.append(run)
    return runs


def read(path):
    """What a program wrote; None if nothing of it can be used."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        made = json.loads(text)
    except ValueError:
        made = {"context": value_after(text, "context") or {}, "benchmarks": whole_runs(text)}
        return made if made["benchmarks"] else None
    return made if isinstance(made, dict) else None


def measured(folder):
    """By name, the runs of all its files: of two of the same name the later one."""
    made = {}
    for path in sorted(folder.glob("*.json")):
        found = read(path)
        if found is None:
            continue
        name = path.name.split(".")[0]
        if name not in made or "benchmarks" not in made[name]:
            made[name] = found
            continue
        runs = {run.get("name"): run for run in made[name]["benchmarks"] + found.get("benchmarks", [])}
        made[name] = {"context": found.get("context", {}), "benchmarks": list(runs.values())}
    return made


def steps(folder):
    """By part, its steps in their order."""
    made = {}
    for path in sorted(folder.glob("*.steps")):
        lines = [line.split("\t", 2) for line in path.read_text(encoding="utf-8").splitlines()]
        made[path.stem] = [{"name": name, "verdict": how, "seconds": int(seconds)} for how, seconds, name in lines]
    return made


def main():
    results, folder = (Path(argument) for argument in sys.argv[1:])
    try:
        made = json.loads(results.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        made = {}
    made.update(measured(folder))
    made["steps"] = made.get("steps", {}) | steps(folder)
    unfinished = results.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(made), encoding="utf-8")
    os.replace(unfinished, results)  # whoever is killed here leaves the old file or the new one
    return 0


if __name__ == "__main__":
    sys.exit(main())
