#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what tools/gpu_acceptance.sh measured in the form of bench/cuda/measured, for tools/gpu_model.py.

    gpu_keep.py RESULTS COMMIT DATE OUT

RESULTS is results.json of the acceptance, COMMIT the measured commit, DATE its day (2026-11-26), and OUT the file to
write. The rows are those of bench/cuda/rows.json that say by `runs` which runs of which benchmark are theirs. Exit status
2 if a file or an argument is wrong, or if nothing of a row was measured; then nothing is written.
"""
import json
import re
import statistics
import sys
from pathlib import Path

from gpu_model_files import Wrong, is_number, load, read_rows

ROWS = Path(__file__).resolve().parents[1] / "bench" / "cuda" / "rows.json"


def runs_of(results, asked):
    """The runs of a benchmark whose names fit."""
    made = results.get(asked["file"], {})
    runs = made.get("benchmarks", []) if isinstance(made, dict) else []
    plain = [(re.sub(r"/(iterations:\d+|manual_time|repeats:\d+)", "", str(run.get("name"))), run) for run in runs
             if run.get("run_type") != "aggregate" and not run.get("error_occurred")]
    return [run for name, run in plain if re.fullmatch(asked["name"], name)]


def times_of(runs, asked):
    """µs of every run, or of the slowest one."""
    us = [run[asked.get("counter", "us")] for run in runs if is_number(run.get(asked.get("counter", "us")))]
    return [max(us)] if us and asked.get("take") == "most" else us


def peer_us(results, wanted):
    """What PyTorch took for the same."""
    made = results.get("torch", {})
    found = [each.get("us") for each in (made.get("rows") or [] if isinstance(made, dict) else [])
             if all(each.get(key) == value for key, value in wanted.items())]
    return found[0] if found else None


def kept_row(results, row):
    """The row in the form of bench/cuda/measured; None if nothing of it was measured."""
    asked = row["runs"]
    runs = runs_of(results, asked)
    us = times_of(runs, asked)
    if not us:
        return None
    launches = {run["launches"] for run in runs if is_number(run.get("launches"))}
    made = {"name": row["name"], "us": us, "bytes": row.get("bytes"), "launches": max(launches) if launches else None,
            "share": None, "of": row.get("floor")}
    if asked.get("take") == "most_over_median":
        made["times"] = max(us) / statistics.median(us)
    if "peer" in asked:
        peer = peer_us(results, asked["peer"])
        made |= {"peer": asked["peer"]["name"], "peer_us": peer, "times": peer / statistics.median(us) if peer else None}
    return made


def about_card(results):
    """Card, driver and clocks, as the benchmarks and gpu_machine say them."""
    contexts = [made.get("context") for made in results.values() if isinstance(made, dict)]
    told = next((context for context in contexts if isinstance(context, dict) and "device" in context), {})
    machine = results.get("machine") if isinstance(results.get("machine"), dict) else {}
    multiprocessors = told.get("multiprocessors")
    return {"card": {"name": told.get("device") or machine.get("name"),
                     "multiprocessors": int(multiprocessors) if multiprocessors else None, "host": None},
            "driver": told.get("driver"), "cuda": told.get("runtime"), "clocks": {"sm_mhz": None, "memory_mhz": None},
            "machine": {name: value for name, value in machine.items() if not isinstance(value, str)}}


def kept(results, rows, commit, day):
    found = [kept_row(results, row) for row in rows.values() if "runs" in row]
    made = {"form": 1, **about_card(results), "commit": commit, "commit_date": day, "raw_kept": True,
            "rows": [row for row in found if row], "variants": [], "kernels": []}
    if not made["rows"] or not made["card"]["name"]:
        raise Wrong("nothing was measured of any row of bench/cuda/rows.json, or no card is named")
    return made


def main(arguments):
    if len(arguments) != 4 or not re.fullmatch(r"\d{4}-\d\d-\d\d", arguments[2]):
        print("gpu_keep: it takes RESULTS COMMIT DATE OUT, where DATE is as in 2026-11-26", file=sys.stderr)
        return 2
    try:
        made = kept(load(arguments[0]), read_rows(ROWS), *arguments[1:3])
        Path(arguments[3]).write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except Wrong as why:
        print(f"gpu_keep: {why}", file=sys.stderr)
        return 2
    except OSError as why:
        print(f"gpu_keep: {arguments[3]}: {why.strerror}", file=sys.stderr)
        return 2
    print(f"{arguments[3]}: {len(made['rows'])} rows, {len(made['machine'])} constants")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
