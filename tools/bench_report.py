#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every row of docs/performance.md, prints a line for each, and writes the page's tables and plot anew.

    cmake --build build/release --target bench_report
    bench_report.py --programs DIR [--torch-python PYTHON] [--out DIR] [--from DIR] [--no-page]

Runs the benchmarks named `report/...`, in which everything that is compared runs in turn, and tools/bench_peers.py in turn with
bench_policies_snapkv; all of it three times, because where a process's pages come to lie moves its figures, and the median counts.
Then every verb and every applier against a floor of its own, as tools/bench_rows.json lists them: those that are judged three times,
the others once, as is what headers cost a compiler (tools/compile_times.py). `--from DIR` takes the JSON of an earlier run instead. The last line is `N met, N missed, N n/a`,
of the must column; rows that this machine cannot answer are n/a, with the reason. Rows below their must for which bench_rows.json
argues are counted apart. Exit status 1 if a program failed, a result was wrong, a verb or applier has no row, or nothing was
measured. A program that is not built is told before anything is measured.
"""
import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import bench_verbs
import compile_times

ROOT = Path(__file__).resolve().parent.parent
ELEMENTS = {"0": "f32", "1": "f16", "2": "bf16"}
ROUNDS = 3
FAILED = "failed: "
COMMAND = "cmake --build build/release --target bench_report"
TORCH_COMMAND = "cmake -B build/release -DKVPOLICY_TORCH_PYTHON=<a python with PyTorch>"


# Measuring -------------------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """Google Benchmark's JSON of several programs, by the name of the benchmark."""

    context: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)  # name -> counters
    refused: dict = field(default_factory=dict)  # name -> why

    def add(self, text: dict) -> None:
        self.context = self.context or text["context"]
        for run in text["benchmarks"]:
            name = re.sub(r"/(iterations:\d+|manual_time)", "", run["name"])
            if run.get("error_occurred"):
                self.refused[name] = run["error_message"]
            else:
                self.runs[name] = run

    @classmethod
    def median(cls, rounds: list["Results"]) -> "Results":
        """Of every number of every benchmark, the median over rounds that have it."""
        made = cls(rounds[0].context)
        for one in rounds:
            made.refused.update(one.refused)
        for name, first in rounds[0].runs.items():
            runs = [one.runs[name] for one in rounds if name in one.runs]
            made.runs[name] = {key: statistics.median(run[key] for run in runs) if isinstance(value, (int, float)) else value
                               for key, value in first.items()}
        return made

    def matching(self, pattern: str) -> list[tuple[re.Match, dict]]:
        found = [(re.fullmatch(pattern, name), run) for name, run in self.runs.items()]
        return [(match, run) for match, run in found if match]

    def why_not(self, pattern: str) -> str:
        reasons = [why for name, why in self.refused.items() if re.fullmatch(pattern, name)]
        wrong = [why for why in reasons if not why.startswith("n/a: ")]
        if wrong:
            return FAILED + wrong[0]
        return reasons[0].removeprefix("n/a: ") if reasons else "not measured"


def run_program(program: Path, pattern: str, to: Path, *more: str) -> None:
    ran = subprocess.run(
        [program, f"--benchmark_filter={pattern}", f"--benchmark_out={to}", "--benchmark_out_format=json", *more],
        capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{ran.stdout}{ran.stderr}\nbench_report: {program.name} failed, exit status {ran.returncode}")


def torch_python(asked: str) -> tuple[str, str]:
    """A Python that imports torch, or why there is none."""
    for python in filter(None, [asked, os.environ.get("KVPOLICY_TORCH_PYTHON", ""), shutil.which("python3") or ""]):
        try:
            if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
                return python, ""
        except OSError as wrong:
            print(f"bench_report: {python}: {wrong.strerror}", file=sys.stderr)
    return "", f"no Python with PyTorch; pip install torch, then {TORCH_COMMAND}"


def measure(programs: Path, python: str, to: Path, verbs: bench_verbs.Table, only_verbs: bool) -> None:
    if missing := verbs.missing(programs, only_verbs):
        sys.exit(f"bench_report: {programs} has no {', '.join(missing)}: nothing was measured; {COMMAND} builds what it needs")
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("*.json"):
        old.unlink()
    for i in range(ROUNDS):
        for name, pattern in verbs.programs(only_judged=i > 0).items():
            print(f"bench_report: bench_{name}, its verbs, {i + 1} of {ROUNDS}", flush=True)
            run_program(programs / f"bench_{name}", pattern, to / f"verb.{name}.{i}.json")
        if only_verbs:
            continue
        for name, pattern in verbs.reported.items():
            print(f"bench_report: bench_{name}, {i + 1} of {ROUNDS}", flush=True)
            run_program(programs / f"bench_{name}", pattern, to / f"{name}.{i}.json")
        print(f"bench_report: SnapKV, here and in PyTorch, {i + 1} of {ROUNDS}", flush=True)
        run_program(programs / "bench_policies_snapkv", "^report/snapkv", to / f"snapkv.{i}.json")
        if i == 0 and (programs / "serving").exists():
            print("bench_report: examples/serving", flush=True)
            ran = subprocess.run([programs / "serving", "--json"], capture_output=True, text=True, check=True)
            (to / "serving.json").write_text(ran.stdout)
        if i == 0:
            print("bench_report: compile times", flush=True)
            times = compile_times.measure(os.environ.get("CXX", "g++"), 3, compile_times.BEFORE)
            (to / "compile_times.json").write_text(json.dumps(times))
        run_program(programs / "bench_ops_top_k", "^top_k/lanes:288/entries:32768/one_in:4/threads:./like:0/",
                    to / f"top_k_288.{i}.json", "--benchmark_min_time=0.3")
        if python:
            subprocess.run([python, ROOT / "tools/bench_peers.py", "--rounds", "2", "--out", to / f"torch.{i}.json"],
                           check=True)


# Judging ---------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One line of the table. `low`: smaller is better."""

    what: str
    must: float
    goal: float
    low: bool
    unit: str = "x"
    measured: float | None = None
    beside: str = ""  # the other figures of the same row
    why_not: str = ""
    argued: str = ""  # why it does not matter that the row is below its must
    argued_least: float = math.inf
    judged: bool = True  # operations are, and verbs that are a tenth of one

    def passes(self, limit: float) -> bool:
        return self.measured is not None and (self.measured <= limit if self.low else self.measured >= limit)

    def is_argued(self) -> bool:
        enough = self.measured is not None and not self.passes(self.must) and not self.low and self.measured >= self.argued_least
        return bool(self.argued) and enough

    def limit(self, value: float) -> str:
        if not self.judged:
            return "–"
        return f"{'≤' if self.low else '≥'} {number(value)}{self.suffix()}"

    def suffix(self) -> str:
        return {"x": " ×", "share": "", "floats": " floats an entry"}[self.unit]

    def figure(self) -> str:
        return "n/a" if self.measured is None else number(self.measured) + self.suffix()

    def answered(self) -> bool:
        """A wrong result is an answer: the row is missed."""
        return self.measured is not None or self.why_not.startswith(FAILED)

    def verdict(self) -> str:
        if self.measured is None:
            return ("missed, " if self.answered() else "n/a: ") + self.why_not
        if not self.judged:
            return ""
        if self.is_argued():
            return "argued: " + self.argued
        if not self.passes(self.must):
            return "missed"
        return "met, goal met" if self.passes(self.goal) else "met, goal missed"


def number(value: float) -> str:
    if value == int(value) and abs(value) >= 1:
        return str(int(value))
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def worst_of(row: Row, figures: list[tuple[str, float]], why_not: str) -> Row:
    """The row is judged by its worst figure; the others stand beside it."""
    if not figures:
        row.why_not = why_not
        return row
    row.measured = (max if row.low else min)(value for _, value in figures)
    row.beside = ", ".join(f"{name} {number(value)}" for name, value in figures) if len(figures) > 1 else ""
    return row


# What introselect is done with after a partition or two: no scores of an attention are like them.
EASY = ("all_equal", "sorted", "reverse", "inf_90_percent")


def top_k_rows(of: Results) -> list[Row]:
    rows = [Row("top-k, 2304 lanes × 32k f32 from memory, over the read floor", 6, 4, True),
            Row("the same, against nth_element on values, of scores that no order or tie makes easy for it", 8, 13, False)]
    runs = of.matching(r"report/top_k/like:\d+")
    for row, counter in zip(rows, ("over_read", "nth_over")):
        if not runs:
            row.why_not = of.why_not(r"report/top_k/.*")
            continue
        both = [(run["label"], run[f"{counter}_2"]) for _, run in runs]
        counted = [value for name, value in both if row.low or name not in EASY]
        row.measured = statistics.median(counted)
        name, value = (max if row.low else min)(both, key=lambda one: one[1])
        row.beside = f"worst distribution {number(value)} ({name.replace('_', ' ')})"
        if row.low:
            row.beside += f"; one thread {number(statistics.median(run['over_read_1'] for _, run in runs))}"
    return rows


def mass_rows(of: Results) -> list[Row]:
    made = []
    kinds = [("logits_of_peak", "logits of 32 rows × 32k keys, D 128, {}, of the peak of {}", 0.70, 0.85, False, "share"),
             ("lse_over_logits", "attention mass with the rows' log-sum-exp given, {}, over its logits alone", 1.6, 1.3, True, "x"),
             ("over_logits", "attention mass without it, {}, over its logits alone", 2.6, 2.1, True, "x")]
    for counter, text, must, goal, low, unit in kinds:
        for code in ("0", "2"):
            runs = of.matching(rf"report/attention_mass/element:{code}/threads:(\d)")
            loop = runs[0][1]["label"] if runs else "the multiply-add"
            row = Row(text.format(ELEMENTS[code], loop), must, goal, low, unit)
            figures = [(f"{match[1]} thread{'s' if match[1] != '1' else ''}", run[counter])
                       for match, run in runs if counter in run]
            cold = [f"{match[1]}: {number(run['from_memory_of_peak'])}" for match, run in runs if counter == "logits_of_peak"]
            why = of.why_not(rf"report/attention_mass/element:{code}/.*")
            made.append(worst_of(row, figures, why))
            if cold:
                made[-1].beside += f"; keys and logits of eight lanes, which are in memory: {', '.join(cold)}"
    return made


def torch_rows(ours: list[Results], theirs: list[dict], why_not: str) -> list[Row]:
    made = []
    for code, must in (("0", 10), ("2", 12)):
        row = Row(f"SnapKV decide + apply, one layer, 8 lanes × 32k, W 32, {ELEMENTS[code]}, against eager PyTorch",
                  must, 20, False)
        ratios, pairs = [], []
        for mine, peer in zip(ours, theirs):
            here = [run["decide_apply_ms"] for _, run in mine.matching(rf"report/snapkv/element:{code}/threads:\d")]
            there = [one["ms"] for one in peer["rows"] if one["name"] == "snapkv" and one["element"] == ELEMENTS[code]]
            if here and there:
                pairs.append((min(here), min(there)))
                ratios.append(min(there) / min(here))
        if ratios:
            row.measured = statistics.median(ratios)
            here, there = (statistics.median(column) for column in zip(*pairs))
            row.beside = f"{number(here)} ms against {number(there)} ms, each at its better number of threads"
        else:
            row.why_not = why_not or (ours[0].why_not(r"report/snapkv/.*") if ours else "not measured")
        made.append(row)
    return made


def gather_row(of: Results) -> Row:
    pattern = r"report/gather_rows/entries:\d+/arrays:(\d)/one_in:(\d)/threads:(\d)"
    runs = [(match, run["over_memcpy"]) for match, run in of.matching(pattern)]
    figures = [(f"{match[1]} arrays, 1 in {match[2]}", value) for match, value in runs if match[3] == "2"]
    row = Row("gather in place, 256-byte rows, over memcpy of the kept bytes, two threads each", 1.5, 1.15, True)
    row = worst_of(row, figures, of.why_not(pattern))
    alone = [number(value) for match, value in runs if match[3] == "1"]
    if alone:
        row.beside += f"; one thread each {', '.join(alone)}"
    return row


def thread_rows(of: Results) -> list[Row]:
    made = []
    for name, pattern, floor in (("top-k", "top_k", "copy"), ("gather", "gather_rows", "copy"),
                                 ("attention mass f32", "attention_mass/element:0", "multiply-add loop"),
                                 ("attention mass bf16", "attention_mass/element:2", "multiply-add loop")):
        row = Row(f"two threads against one, {name}: share of what a {floor} gains", 0.9, 0.97, False, "share")
        runs = of.matching(f"report/threads/{pattern}")
        if runs:
            run = runs[0][1]
            row.measured = run["share"]
            row.beside = f"gains {number(run['gain'])}, the {floor} {number(run['floor_gain'])}"
        else:
            row.why_not = of.why_not(f"report/threads/{pattern}")
        made.append(row)
    return made


def scratch_row(of: Results) -> Row:
    # Must: one float an entry, and rows x entries of one head: 32 rows here.
    row = Row("scratch of a thread in a SnapKV decision, W 32", 1 + 32, 1, True, "floats")
    runs = of.matching(r"report/scratch/element:(\d)")
    if not runs:
        row.why_not = of.why_not("report/scratch/.*")
        return row
    match, run = max(runs, key=lambda one: one[1]["floats_an_entry"])
    row.measured = run["floats_an_entry"]
    row.beside = (f"at 32k: stated {run['stated_bytes'] / 1024:.0f} KiB, reserved {run['reserved_bytes'] / 1024:.0f} KiB, "
                  f"written {run['written_bytes'] / 1024:.0f} KiB; {run['constant_bytes'] / 1024:.1f} KiB whatever the entries")
    return row


def slot_rows(of: Results) -> list[Row]:
    step = Row("a step of 8 of 64 slots in random order, over the same 8 sequences alone", 1.1, 1.02, True)
    runs = of.matching(r"report/slots/step/policy:(\w+)")
    made = [worst_of(step, [(match[1], run["over_alone"]) for match, run in runs], of.why_not(r"report/slots/step/.*"))]
    runs = of.matching(r"report/slots/copies")
    for call in ("fork", "save", "load"):
        row = Row(f"{call} of a slot of 75 MB and more, share of memcpy's speed", 0.6, 0.9, False, "share")
        made.append(worst_of(row, [(call, run[f"{call}_of_memcpy"]) for _, run in runs], of.why_not(r"report/slots/copies")))
    turns = Row("a decision in turns, over the same decision at once", 1.1, 1.03, True)
    runs = of.matching(r"report/slots/turns")
    made.append(worst_of(turns, [("turns", run["over_at_once"]) for _, run in runs], of.why_not(r"report/slots/turns")))
    return made


def serving_row(found: list[dict]) -> Row:
    row = Row("examples/serving, equal memory, all of it counted: requests at once over the full cache's, recall within 2 points",
              3, 4, False)
    if not found:
        row.why_not = "examples/serving was not built"
        return row
    full = found[0]
    recall = lambda one: one["right"] / one["asked"]
    lost = [one["policy"] for one in found[1:] if recall(one) < recall(full) - 0.02]
    if lost:
        row.why_not = FAILED + f"{', '.join(lost)} loses more than 2 points of recall"
        return row
    served = [(one["policy"], one["mean_running"] / full["mean_running"]) for one in found[1:]]
    row.measured = min(value for _, value in served)
    row.beside = ", ".join(f"{name} {number(value)}" for name, value in served) + "; " + ", ".join(
        f"{one['policy']} holds {one['total_bytes'] / 2**20:.2f} MiB, recalls {one['right']} of {one['asked']}" for one in found)
    return row


def compile_rows(found: dict[str, float]) -> list[Row]:
    first = Row("compile time of examples/first.cpp at -O2, less its standard headers: against kvpolicy::compiled, of from headers",
                0.55, 0.40, True)
    umbrella = Row(f"parsing kvpolicy.hpp alone, of what it took at {compile_times.BEFORE}", 1, 0.6, True)
    for row, there, of in ((first, "compiled", "headers"), (umbrella, "parse", "parse before")):
        if there in found and of in found:
            row.measured = found[there] / found[of]
            row.beside = f"{found[there]:.2f} s of {found[of]:.2f} s"
        else:
            row.why_not = f"there is no commit {compile_times.BEFORE} here" if found else "not measured"
    return [first, umbrella]


def verb_rows(verbs: bench_verbs.Table, of: Results) -> list[Row]:
    """A row for each of the table that no other part of the report makes."""
    made = []
    for asked in verbs.rows:
        if asked.present:
            continue
        unit = "share" if asked.counter == "share" else "x"
        row = Row(asked.what, asked.must, asked.goal, asked.low, unit, argued=asked.argued, argued_least=verbs.argued_least,
                  judged=verbs.judges(asked))
        runs = [(match[0], run[asked.counter]) for match, run in of.matching(asked.runs) if asked.counter in run]
        wrong = [why for name, why in of.refused.items() if re.fullmatch(asked.runs, name) and not why.startswith("n/a: ")]
        if runs and not wrong:
            name, row.measured = (max if row.low else min)(runs, key=lambda one: one[1])
            row.beside = f"worst: {bench_verbs.short_name(name)}"
            if len(runs) > 1:
                best = (min if row.low else max)(value for _, value in runs)
                row.beside += f"; best {number(best)}"
        else:
            row.why_not = of.why_not(asked.runs)
        made.append(row)
    return made


# Writing ---------------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def main_table(rows: list[Row]) -> str:
    return table(["operation", "measured", "must", "goal", "", "beside it"],
                 [[row.what, row.figure(), row.limit(row.must), row.limit(row.goal), row.verdict(), row.beside]
                  for row in rows])


def distribution_table(of: Results) -> str:
    runs = of.matching(r"report/top_k/like:\d+")
    if not runs:
        return ""
    body = [[run["label"].replace("_", " "), f"{run['top_k_1_ms']:.1f}", f"{run['top_k_2_ms']:.1f}",
             *(number(run[name]) for name in ("over_read_1", "over_read_2", "nth_over_2", "radix_over_2"))]
            for _, run in runs]
    head = ["scores", "ms, 1 thread", "ms, 2 threads", "over read, 1", "over read, 2", "nth_element over it, 2",
            "radix select over it, 2"]
    return "\nTop-k by distribution, 2304 lanes × 32k f32, a quarter kept:\n\n" + table(head, body)


def peer_table(of: Results, ours: list[Results], theirs: list[dict]) -> str:
    body = [[f"Eigen, attention mass, {ELEMENTS[match[1]]}, {match[2]} thr.", number(run["eigen_over"]) + " ×"]
            for match, run in of.matching(r"report/attention_mass/element:(\d)/threads:(\d)")]
    ratios = []
    for mine, peer in zip(ours, theirs):
        here = [run["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1}[run["time_unit"]]
                for _, run in mine.matching(r"top_k/lanes:288/.*")]
        there = [one["ms"] for one in peer["rows"] if one["name"] == "topk_sort"]
        if here and there:
            ratios.append(min(there) / min(here))
    if ratios:
        body.append(["PyTorch, topk + sort, 288 lanes × 32k f32", number(statistics.median(ratios)) + " ×"])
    return "\nOther peers, time over that of the verb:\n\n" + table(["peer", "slower by"], body) if body else ""


def floors_text(context: dict) -> str:
    return "; ".join(f"{name} {value}" for name, value in context.items()
                     if isinstance(value, str) and ("thread" in name or name == "last-level cache"))


def about(of: Results, asked: argparse.Namespace, theirs: list[dict]) -> str:
    def told(*command: str) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    changed = [line for line in told("git", "status", "--porcelain", "-uno").splitlines() if "docs/performance" not in line]
    commit = told("git", "rev-parse", "--short", "HEAD") or "none"
    load = of.context.get("load_avg", [])
    lines = [f"- Machine: {cpu[1] if cpu else 'unknown'}, {os.cpu_count()} cores; load when it began {number(load[0]) if load else '?'}",
             f"- Commit: {commit}{', with changes' if changed else ''}, {of.context.get('date', '')[:10]}",
             f"- Command: `{COMMAND}`",
             f"- Compiler: {asked.compiler or 'not told'} ({asked.build_type or 'build type not told'})",
             f"- PyTorch: {theirs[0]['torch'] if theirs else 'none'}",
             f"- Floors: {floors_text(of.context)}"]
    return "\n".join(lines) + "\n"


def plot(rows: list[Row]) -> str:
    """Bars on a log scale: how many times better than the must column, with a tick where the goal is."""
    left, width, step, top = 470, 420, 26, 44
    low, high = 1 / 8, 8
    height = top + step * len(rows) + 34

    def x(ratio: float) -> float:
        return left + width * math.log(min(max(ratio, low), high) / low) / math.log(high / low)

    def text(at: float, line: float, words: str, anchor: str = "start", colour: str = "#222") -> str:
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        return f'<text x="{at:.0f}" y="{line:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" '
             f'font-family="sans-serif" font-size="12">',
             f'<rect width="{left + width + 90}" height="{height}" fill="#fff"/>',
             text(left + width / 2, 16, "times better than must; the tick is the goal", "middle")]
    for mark in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8):
        parts.append(f'<line x1="{x(mark):.0f}" x2="{x(mark):.0f}" y1="{top - 12}" y2="{height - 26}" '
                     f'stroke="{"#222" if mark == 1 else "#ddd"}"/>')
        parts.append(text(x(mark), height - 10, f"1/{round(1 / mark)}" if mark < 1 else str(mark), "middle", "#666"))
    for i, row in enumerate(rows):
        line = top + step * i
        words = row.what if len(row.what) <= 72 else row.what[:71] + "…"
        parts.append(text(left - 8, line + 11, words, "end"))
        if row.measured is None:
            parts.append(text(x(1) + 6, line + 11, "n/a", "start", "#888"))
            continue
        better = row.must / max(row.measured, 1e-9) if row.low else row.measured / row.must
        goal = row.must / row.goal if row.low else row.goal / row.must
        colour = "#2a7f4f" if row.passes(row.goal) else "#4f81bd" if row.passes(row.must) else "#c0392b"
        begin, end = sorted((x(1), x(better)))
        parts.append(f'<rect x="{begin:.1f}" y="{line}" width="{max(end - begin, 1):.1f}" height="15" fill="{colour}"/>')
        parts.append(f'<line x1="{x(goal):.1f}" x2="{x(goal):.1f}" y1="{line - 3}" y2="{line + 18}" stroke="#222" '
                     f'stroke-width="2"/>')
        parts.append(text(left + width + 8, line + 11, number(row.measured) + (" ×" if row.unit == "x" else ""), "start", colour))
    return "\n".join(parts + ["</svg>"]) + "\n"


def write_page(page: Path, blocks: dict[str, str]) -> None:
    text = page.read_text()
    for name, body in blocks.items():
        begin, end = f"<!-- {name}: written by bench_report -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            sys.exit(f"bench_report: {page}: no markers of {name}")
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + body + end + rest.split(end, 1)[1]
    page.write_text(text)


# ------------------------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description="Measures and writes docs/performance.md.")
    asked.add_argument("--programs", type=Path, help="where the benchmarks are")
    asked.add_argument("--torch-python", default="", help="a Python that has PyTorch")
    asked.add_argument("--out", type=Path, help="where the JSON goes; beside the programs if not given")
    asked.add_argument("--from", dest="earlier", type=Path, help="the JSON of an earlier run")
    asked.add_argument("--compiler", default="")
    asked.add_argument("--build-type", default="")
    asked.add_argument("--no-page", action="store_true", help="print only")
    asked.add_argument("--only-verbs", action="store_true", help="measure and print only the rows of verbs and appliers")
    given = asked.parse_args()
    if not given.earlier and not given.programs:
        asked.error("--programs or --from")
    return given


def verb_results(to: Path, verbs: bench_verbs.Table) -> Results:
    rounds = []
    for i in range(ROUNDS):
        found = [to / f"verb.{name}.{i}.json" for name in verbs.programs()]
        if not all(path.exists() for path in found):
            continue
        rounds.append(Results())
        for path in found:
            rounds[-1].add(json.loads(path.read_text()))
    return Results.median(rounds) if rounds else Results()


def told(rows: list[Row], more: list[Row], measured: list[Results], verbs: bench_verbs.Table) -> int:
    """Prints every row and the counts; returns the exit status."""
    wrong = [f"{name}: {why}" for one in measured for name, why in one.refused.items() if not why.startswith("n/a")]
    present = [row.what for row in rows] if rows else [row.present for row in verbs.rows]
    wrong += verbs.faults(present)
    for row in rows + more:
        limits = f", must {row.limit(row.must)}, goal {row.limit(row.goal)}: " if row.judged else " "
        print(f"{row.what}: {row.figure()}{limits}{row.verdict()}"
              + (f" [{row.beside}]" if row.beside else ""))
    for line in wrong:
        print(f"bench_report: {line}", file=sys.stderr)
    judged = [row for row in rows + more if row.judged or row.why_not.startswith(FAILED)]
    answered = [row for row in judged if row.answered()]
    argued = sum(row.is_argued() for row in answered)
    met = sum(row.passes(row.must) for row in answered)
    reached = sum(row.passes(row.goal) for row in answered)
    print(f"goals: {reached} met, {len(answered) - reached} missed")
    print(f"argued: {argued}")
    print(f"{met} met, {len(answered) - met - argued} missed, {len(judged) - len(answered)} n/a")
    return 1 if wrong or not answered else 0


def main() -> int:
    asked = arguments()
    python, why_not = ("", "the earlier run had no PyTorch") if asked.earlier else torch_python(asked.torch_python)
    to = asked.earlier or asked.out or asked.programs.parent / "bench_report"
    verbs = bench_verbs.Table()
    if not asked.earlier:
        measure(asked.programs, python, to, verbs, asked.only_verbs)
    of_verbs = verb_results(to, verbs)
    if asked.only_verbs:
        return told([], verb_rows(verbs, of_verbs), [of_verbs], verbs)
    rounds, ours = [], []
    for i in range(len(list(to.glob("snapkv.*.json")))):
        rounds.append(Results())
        ours.append(Results())
        for name in verbs.reported:
            rounds[-1].add(json.loads((to / f"{name}.{i}.json").read_text()))
        for name in ("snapkv", "top_k_288"):
            ours[-1].add(json.loads((to / f"{name}.{i}.json").read_text()))
    if not rounds:
        sys.exit(f"bench_report: {to} has no results")
    results = Results.median(rounds)
    theirs = [json.loads(path.read_text()) for path in sorted(to.glob("torch.*.json"))]

    rows = top_k_rows(results) + mass_rows(results) + torch_rows(ours, theirs, why_not)
    rows += [gather_row(results)] + thread_rows(results) + [scratch_row(results)] + slot_rows(results)
    served, compiles = to / "serving.json", to / "compile_times.json"
    rows.append(serving_row(json.loads(served.read_text()) if served.exists() else []))
    rows += compile_rows(json.loads(compiles.read_text()) if compiles.exists() else {})
    print(about(results, asked, theirs))
    more = verb_rows(verbs, of_verbs)
    status = told(rows, more, [results, *ours, of_verbs], verbs)
    if not asked.no_page:
        write_page(ROOT / "docs/performance.md",
                   {"machine": about(results, asked, theirs),
                    "table": main_table(rows) + "\nEvery verb and applier:\n\n" + main_table(more)
                    + distribution_table(results) + peer_table(results, ours, theirs)})
        (ROOT / "docs/performance.svg").write_text(plot(rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
