#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of every row of docs/gpu.md from counts and constants of the card, and prints it beside the measured one.

    gpu_model.py                    what was predicted and measured, then what is predicted for the present kernels
    gpu_model.py --explain NAME     the parts of one prediction
    gpu_model.py --cubin FILE       registers and barriers of the present kernels are read from compiled code

bench/cuda/machine.json has the constants, bench/cuda/rows.json what each row does, and bench/cuda/measured what cards
measured; the README there describes the files. No constant is fitted to a row. Reading a cubin needs cuobjdump, which is in
most CUDA toolkits and in PyPI's nvidia-cuda-cuobjdump.

The time of a kernel is the sum of these parts:
- its launch, more if the last block of it is found by a ticket;
- the path: loads of memory that depend on one another, and barriers. Blocks that do not fit on the card at once are waves.
  The first and the last wave show their paths. Of a wave between, the other resident blocks hide all but their share;
- the work: the longest of the times that its bytes, its instructions and its products on tensor cores take on the busiest
  multiprocessor, and of the others the part that the warps of a scheduler cannot hide from one another. A kernel with several
  stages loads as many steps ahead;
- the end: the last stores and the last block.

A call between two events costs an empty call beside that, and a call in a graph does not. Exit status: 1 if a prediction is
more than 1.5 times too high or too low and its row gives no reason; 2 if a file or an argument is wrong.
"""
import argparse
import math
import statistics
import sys
from pathlib import Path

from gpu_model_files import (WARP, Wrong, changes, fitting, newest, read_constants, read_measured, read_rows, rows_with_code,
                             values_of)

FILES = Path(__file__).resolve().parents[1] / "bench" / "cuda"
MOST_OFF = 1.5
LOW = {"us", "times_row"}  # units of which less is better

# A kernel --------------------------------------------------------------------------------------------------------------


def barrier_us(of, threads):
    """A barrier of 8 warps, of 16 or of 32."""
    warps = threads / WARP
    return of["barrier" if warps <= 8 else "barrier_of_16" if warps <= 16 else "barrier_of_32"]


def path_us(of, kernel):
    """What a block waits for, one thing after another."""
    return (kernel.get("loads", 0) * of["dependent_load"] + kernel.get("barriers", 0) * barrier_us(of, kernel["threads"])
            + kernel.get("cluster_barriers", 0) * of["cluster_barrier"])


def fits(kernel):
    return fitting(kernel["registers"], kernel["threads"], kernel.get("shared", 0))


def waves(of, kernel):
    return math.ceil(kernel["blocks"] / (of["processors"] * fits(kernel)))


def seen_paths(number, fit):
    """How many times a path is seen in so many waves."""
    return 1 if number == 1 else 2 + (number - 2) / fit


def stream_us(of, kernel):
    return kernel.get("traffic", 0) / of[kernel.get("rate", "read")] / 1e6  # TB/s are bytes for 1e-6 µs


def busiest(of, kernel):
    """The blocks of the busiest multiprocessor over the mean."""
    return math.ceil(kernel["blocks"] / of["processors"]) * of["processors"] / kernel["blocks"]


def issue_us(of, kernel):
    rate = of["processors"] * of["schedulers"] * of["clock"] * of["issue_share"]  # thousands of instructions for a µs
    return kernel.get("instructions", 0) * kernel.get("groups", 0) / rate / 1e3 * busiest(of, kernel)


def warps_of_scheduler(of, kernel):
    resident = min(fits(kernel), math.ceil(kernel["blocks"] / of["processors"]))
    return max(1.0, resident * kernel["threads"] / WARP / of["schedulers"])


def tensor_us(of, kernel):
    """Products of 16 x 8 x 16 by mma.sync."""
    rate = of["tensor_cores"] * of["tensor_cores_by_mma"] * 1e6  # of multiplications and additions in a µs
    return kernel.get("products", 0) * kernel.get("groups", 0) * 2 * 16 * 8 * 16 / rate * busiest(of, kernel)


def work_us(of, kernel):
    """Loads that are begun several steps ahead hide like those of so many times as many warps."""
    longest, *others = sorted([stream_us(of, kernel), issue_us(of, kernel), tensor_us(of, kernel)], reverse=True)
    return longest + sum(others) / (warps_of_scheduler(of, kernel) * kernel.get("stages", 1))


def launch_us(of, kernel, first, in_graph):
    """The first launch between two events is part of the empty call. A launch after another one may overlap it, and in
    a graph each follows another."""
    own = of["launch"] if in_graph or not first else 0
    if kernel.get("overlapped") and (in_graph or not first):
        own -= of["overlap_saves"]
    return own + (of["ticket"] if kernel.get("ticket") else 0)


def parts_of(of, kernel, first, in_graph):
    return {"launch": launch_us(of, kernel, first, in_graph),
            "path": path_us(of, kernel) * seen_paths(waves(of, kernel), fits(kernel)),
            "work": work_us(of, kernel), "end": of["end"]}


# A row -----------------------------------------------------------------------------------------------------------------


def host_us(of, row):
    """What the host pays for launches, or for the launch of a graph of them."""
    if row["harness"] == "host":
        return row["launches"] * of["host_launch"]
    return of["host_graph"] + row["launches"] * of["host_graph_launch"]


def predicted_us(of, row):
    if row["harness"].startswith("host"):
        return host_us(of, row)
    in_graph = row["harness"] == "graph"
    call = 0 if in_graph or row.get("above_empty_call") else of["empty_call"]
    kernels = [parts_of(of, kernel, i == 0, in_graph) for i, kernel in enumerate(row["kernels"])]
    return call + sum(sum(parts.values()) for parts in kernels)


def equal_copy_us(of, count):
    """A copy of so many bytes, by events: the empty call, the first bytes, all of them, and the end."""
    return of["empty_call"] + of["dependent_load"] + count / of["copy"] / 1e6 + of["end"]


def figure(of, rows, row, us, peer_us):
    """What the table of docs/gpu.md prints for that time. None: it needs a peer that was not measured."""
    if row["unit"] == "us":
        return us
    if row["unit"] == "share":
        return row["bytes"] / of[row["floor"]] / 1e6 / us
    if row["unit"] == "share_of_equal":
        return equal_copy_us(of, row["bytes"]) / us
    if row["unit"] == "times_row":
        return us / predicted_us(of, rows[row["against"]])
    return peer_us / us if peer_us else None


def measured_figure(of, rows, row, found):
    """What was measured of a row, as its table prints it. None: nothing was."""
    if found is None:
        return None
    if row["unit"].startswith("times"):
        return found.get("times")
    if row["unit"] == "share" and found.get("share"):
        return found["share"]
    if not found.get("us"):
        return None
    us = statistics.median(found["us"]) - (of["empty_call"] if row.get("above_empty_call") else 0)
    return figure(of, rows, row, us, None)


def off(row, predicted, measured):
    """The predicted time over the measured one."""
    return predicted / measured if row["unit"] in LOW else measured / predicted


def judged(of, rows, measured):
    """For every row (row, predicted figure, predicted µs, measured figure, predicted over measured time)."""
    made = []
    for name, row in rows.items():
        found = measured["rows"].get(name)
        peer = measured["rows"].get(row.get("peer", name), {}).get("peer_us")
        us = predicted_us(of, row)
        now = figure(of, rows, row, us, peer)
        then = measured_figure(of, rows, row, found)
        made.append((row, now, us, then, off(row, now, then) if now and then else None))
    return made


def is_missed(ratio):
    return ratio is not None and not 1 / MOST_OFF <= ratio <= MOST_OFF


# Printing --------------------------------------------------------------------------------------------------------------


def number(value, unit):
    if value is None:
        return ""
    sign = {"us": " µs", "times_peer": " ×", "times_row": " ×"}.get(unit, "")
    digits = 2 if abs(value) < 10 and sign != " µs" else 1 if abs(value) < 1000 else 0
    return f"{value:.{digits}f}{sign}"


def against_limits(row, now):
    """Whether a prediction reaches what is asked."""
    if now is None or row.get("must") is None:
        return ""
    good = [now <= row[key] if row["unit"] in LOW else now >= row[key] for key in ("must", "goal")]
    return "goal" if good[1] else "must" if good[0] else "missed"


def measured_cells(judgement):
    row, now, us, then, ratio = judgement
    return [row["name"], number(now, row["unit"]), number(then, row["unit"]), "" if ratio is None else f"{ratio:.2f}",
            number(us, "us"), "gives a constant" if row.get("source") else "missed, see below" if is_missed(ratio) else ""]


def predicted_cells(judgement):
    row, now, us, then, ratio = judgement
    limits = [number(row.get(key), row["unit"]) for key in ("must", "goal")]
    return [row["name"], number(now, row["unit"]), *limits, number(us, "us"), against_limits(row, now),
            number(then, row["unit"]), "" if ratio is None else f"{ratio:.2f}"]


def table(head, lines):
    cells = [head, *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells)


def report(judgements, measured):
    old = [each for each in judgements if each[0]["when"] == measured["commit"]]
    new = [each for each in judgements if each[0]["when"] == "present"]
    print(f"Measured on {measured['card']['name']} at commit {measured['commit']}, and predicted for its kernels:")
    print(table(["row", "predicted", "measured", "over measured", "time", ""], [measured_cells(each) for each in old]))
    compared = [each for each in old + new if each[4] is not None and not each[0].get("source")]
    missed = [each for each in compared if is_missed(each[4])]
    for row, _, _, _, ratio in missed:
        print(f"missed: {row['name']}, {ratio:.2f}: {row.get('reason', 'no reason is known')}")
    print(f"{len(compared) - len(missed)} of {len(compared)} predictions are within {MOST_OFF} of what was measured\n")
    is_run = any(each[4] is not None for each in new)
    print("Predicted for the present kernels:" if is_run else "Predicted for the present kernels, not run:")
    measured_heads = ["measured", "over measured"] if is_run else ["", ""]
    head = ["row", "predicted", "must", "goal", "time", "reaches", *measured_heads]
    print(table(head, [predicted_cells(each) for each in new]))
    return 1 if any(not row.get("reason") for row, _, _, _, _ in missed) else 0


def explain(of, row):
    print(f"{row['name']}, {row['when']}: {row.get('counted', '')}")
    in_graph = row["harness"] == "graph"
    for i, kernel in enumerate(row["kernels"]):
        parts = ", ".join(f"{name} {value:.2f}" for name, value in parts_of(of, kernel, i == 0, in_graph).items())
        print(f"  {kernel.get('what', 'kernel')}: {fits(kernel)} blocks on a multiprocessor, {waves(of, kernel)} waves, "
              f"bytes {stream_us(of, kernel):.2f}, instructions {issue_us(of, kernel):.2f}, products {tensor_us(of, kernel):.2f}; µs: {parts}")
    print(f"  together {predicted_us(of, row):.2f} µs")


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="a file of bench/cuda/measured; the newest unless told otherwise")
    parser.add_argument("--machine", type=Path, default=FILES / "machine.json")
    parser.add_argument("--rows", type=Path, default=FILES / "rows.json")
    parser.add_argument("--cubin", type=Path, action="append", default=[], help="compiled code of the present kernels")
    parser.add_argument("--cuobjdump", default="cuobjdump", help="the program that reads cubins")
    parser.add_argument("--explain", metavar="NAME", help="a row whose parts are printed")
    return parser.parse_args(arguments)


def main(arguments):
    asked = parsed(arguments)
    try:
        measured = read_measured(asked.measured or newest(FILES / "measured"))
        of = values_of(read_constants(asked.machine), measured)
        noted = read_rows(asked.rows)
        rows = rows_with_code(noted, asked.cubin, asked.cuobjdump)
        if asked.explain is not None and asked.explain not in rows:
            raise Wrong(f"--explain {asked.explain}, but {asked.rows} has no such row")
    except Wrong as why:
        print(f"gpu_model: {why}", file=sys.stderr)
        return 2
    if asked.explain is not None:
        explain(of, rows[asked.explain])
        return 0
    for line in changes(noted, rows):
        print(line)
    return report(judged(of, rows, measured), measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
