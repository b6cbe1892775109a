#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges what the benchmarks of bench/cuda measured: a line for each row of the table of docs/gpu.md.

    gpu_report.py RESULTS [--markdown FILE]

RESULTS is a folder with the JSON of Google Benchmark of top_k, attention_mass, gather_rows, decode_steps and host_cost, and with
torch.json of bench/cuda/torch_peers.py; or one file, an object that holds them by these names, as tools/gpu_results.py writes it,
with how the steps of each part ended. A row that no file answers is n/a, with the reason. A row is judged by its worst
figure. After them come the rows as bench/cuda/rows.json restates them, in which a small call is compared with a copy of the
same bytes, by the median of their runs; they begin with `restated:`, and the constants of the card that gpu_machine measured count. The last two lines are
`restated: N met, N missed` and `N met, N missed`, of the must column; a wrong result is a miss. Exit status 1 if a row was
missed, 2 if nothing was measured.
"""
import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import gpu_keep
import gpu_model
import gpu_model_files

FILES = ("top_k", "attention_mass", "gather_rows", "decode_steps", "host_cost")
ELEMENTS = {"0": "f32", "1": "f16", "2": "bf16"}
FAILED = "failed: "


@dataclass
class Row:
    """One line of the table. `low`: smaller is better."""

    what: str
    must: float
    goal: float
    low: bool
    unit: str
    measured: float | None = None
    beside: str = ""
    why_not: str = ""

    def passes(self, limit: float) -> bool:
        return self.measured is not None and (self.measured <= limit if self.low else self.measured >= limit)

    def answered(self) -> bool:
        """A wrong result is an answer: the row is missed."""
        return self.measured is not None or self.why_not.startswith(FAILED)

    def verdict(self) -> str:
        if self.measured is None or self.why_not.startswith(FAILED):
            return ("missed, " if self.answered() else "n/a: ") + self.why_not
        if not self.passes(self.must):
            return "missed"
        return "met, goal met" if self.passes(self.goal) else "met, goal missed"

    def cells(self) -> list[str]:
        sign = "≤" if self.low else "≥"
        figure = "n/a" if self.measured is None else number(self.measured) + self.unit
        limits = [f"{sign} {number(value)}{self.unit}" for value in (self.must, self.goal)]
        return [self.what, figure, *limits, self.verdict(), self.beside]


class Results:
    """Runs of all files by file and name; what was refused; what could not be read."""

    def __init__(self, results: Path) -> None:
        self.context: dict = {}
        self.runs: dict = {}  # (file, name) -> run
        self.refused: dict = {}
        self.broken: dict = {}
        self.torch: list = []
        self.why_no_torch = ""
        for name in FILES:
            self.read(name, *of_name(results, name))
        text, why = of_name(results, "torch")
        if text is None or not isinstance(text.get("rows"), list):
            self.why_no_torch = why or "torch.json has no rows"
        else:
            self.torch = text["rows"]
        self.steps: dict = of_name(results, "steps")[0] or {}

    def read(self, file: str, text: dict | None, why: str) -> None:
        if text is None or not isinstance(text.get("benchmarks"), list):
            self.broken[file] = why or f"{file}.json holds no benchmarks"
            return
        self.context = self.context or text.get("context", {})
        for run in text["benchmarks"]:
            if run.get("run_type") == "aggregate":
                continue
            name = re.sub(r"/(iterations:\d+|manual_time|repeats:\d+)", "", run["name"])
            if run.get("error_occurred"):
                self.refused[file, name] = run.get("error_message", "")
            else:
                self.runs[file, name] = run

    def matching(self, file: str, pattern: str) -> list:
        """(groups, run) of each run of that name; and what stands in the way of judging by them."""
        found = [(re.fullmatch(pattern, name), run) for (of, name), run in self.runs.items() if of == file]
        return [(match.groups(), run) for match, run in found if match]

    def why_not(self, file: str, pattern: str) -> str:
        """Why a row has no figure; or, with FAILED before it, why those that it has do not count."""
        reasons = [why for (of, name), why in self.refused.items() if of == file and re.fullmatch(pattern, name)]
        wrong = [why for why in reasons if not why.startswith("n/a: ")]
        if wrong:
            return FAILED + wrong[0]
        return reasons[0].removeprefix("n/a: ") if reasons else self.broken.get(file, "not measured")


def load(path: Path) -> tuple:
    """A JSON object, or None and why there is none."""
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"there is no {path.name}"
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as wrong:
        return None, f"{path.name} cannot be read: {wrong}"
    return (text, "") if isinstance(text, dict) else (None, f"{path.name} is no object")


def of_name(results: Path, name: str) -> tuple:
    """One of the results, from the folder or the file that holds them all."""
    if results.is_dir():
        return load(results / f"{name}.json")
    text, why = load(results)
    if text is not None and name not in text:
        return None, f"there is no {name}.json"
    return (text[name], "") if text is not None and isinstance(text[name], dict) else (None, why or f"{name} is no object")


def number(value: float) -> str:
    if value == int(value) and 1 <= abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


# Rows ------------------------------------------------------------------------------------------------------------------


def judged(row: Row, of: Results, file: str, pattern: str, figure, label) -> Row:
    """The row by the worst of its figures. One wrong result, and it is missed."""
    figures = [(label(groups, run), figure(groups, run)) for groups, run in of.matching(file, pattern)]
    return worst_of(row, figures, of.why_not(file, pattern))


def worst_of(row: Row, figures: list, why_not: str) -> Row:
    figures = [(name, value) for name, value in figures if value is not None]
    if why_not.startswith(FAILED) or not figures:
        row.why_not = why_not
    if figures:
        name, row.measured = (max if row.low else min)(figures, key=lambda one: one[1])
        best = (min if row.low else max)(value for _, value in figures)
        row.beside = f"worst of {len(figures)}: {name}; best {number(best)}{row.unit}"
    return row


TOP_K = r"top_k/lanes:(\d+)/entries:(8192|32768|131072)/keep:(\d+)/like:(\d+)"


def top_k_cells(of: Results) -> dict:
    """Runs of all distributions, by lanes, entries and how many are kept."""
    cells: dict = {}
    for (lanes, entries, keep, _), run in of.matching("top_k", TOP_K):
        cells.setdefault((int(lanes), int(entries), "N/4" if keep == "0" else keep), []).append(run)
    return cells


def cell_name(cell: tuple) -> str:
    return f"{cell[0]} × {cell[1] // 1024}k, k {cell[2]}"


def top_k_rows(of: Results) -> list:
    copy = Row("top-k, ≥ 264 segments × 8k–128k f32, of the copy roofline", 0.45, 0.60, False, "")
    torch = Row("the same, against torch.topk + sort", 5, 10, False, " ×")
    layer = Row("top-k, one layer (8 × 32k) in a graph", 12, 8, True, " µs")
    worst = Row("worst distribution against the median", 2.0, 1.5, True, " ×")
    cells, why = top_k_cells(of), of.why_not("top_k", TOP_K)
    worst_of(copy, [(cell_name(cell), statistics.median(run["of_copy"] for run in runs)) for cell, runs in cells.items()], why)
    peers = {(one["lanes"], one["entries"]): one["us"] for one in of.torch if one.get("name") == "topk_sort"}
    against = [(cell_name(cell), peers[cell[:2]] / statistics.median(run["us"] for run in runs))
               for cell, runs in cells.items() if cell[2] == "N/4" and cell[:2] in peers]
    worst_of(torch, against, why if not cells or why.startswith(FAILED) else of.why_no_torch or "PyTorch did not measure it")
    judged(layer, of, "top_k", r"top_k_layer/keep:(\d+)/like:\d+", lambda _, run: run["us"],
           lambda groups, run: f"k {'N/4' if groups[0] == '0' else groups[0]}, {said(run)}")
    spread = []
    for cell, runs in cells.items():
        if len(runs) >= 5:
            slowest = max(runs, key=lambda run: run["us"])
            spread.append((f"{cell_name(cell)}, {said(slowest)}",
                           slowest["us"] / statistics.median(run["us"] for run in runs)))
    worst_of(worst, spread, why)
    return [copy, torch, layer, worst]


def said(run: dict) -> str:
    return run.get("label", "").replace("_", " ")


def mass_rows(of: Results) -> list:
    def pattern(rows: str, elements: str) -> str:
        return rf"attention_mass/rows:{rows}/entries:(\d+)/element:({elements})/lse:1"

    def label(groups, _) -> str:
        return f"{int(groups[0]) // 1024}k, {ELEMENTS[groups[1]]}"

    wide = Row("attention mass, W 32, N ≥ 32k of 16-bit keys, LSE given, of the K-read roofline", 0.50, 0.65, False, "")
    eager = Row("the same, against the eager formulation", 10, 20, False, " ×")
    narrow = Row("attention mass, W 8, 16-bit keys, LSE given, of the K-read roofline", 0.70, 0.80, False, "")
    for row, rows in ((wide, "32"), (narrow, "8")):
        judged(row, of, "attention_mass", pattern(rows, "[12]"), lambda _, run: run["of_read"], label)
        f32 = [number(run["of_read"]) for _, run in of.matching("attention_mass", pattern(rows, "0"))]
        row.beside += f"; f32 {', '.join(f32)}" if f32 else ""
    peers = {(one["entries"], one["element"]): one["us"] for one in of.torch if one.get("name") == "eager_mass"}

    def over(groups, run):
        peer = peers.get((int(groups[0]), ELEMENTS[groups[1]]))
        if peers:
            return peer / run["us"] if peer else None
        return run["eager_over"]

    judged(eager, of, "attention_mass", pattern("32", "[12]"), over, label)
    if eager.measured is not None:
        eager.beside += "; " + ("PyTorch's" if peers else "plain kernels, PyTorch's was not measured")
    return [wide, eager, narrow]


def other_rows(of: Results) -> list:
    gather = Row("compaction, 256-byte rows, ≥ 64 MB, of a copy", 0.80, 0.88, False, "")
    argmin = Row("TRIM-KV argmin 288 × 4096, one launch", 8, 5, True, " µs")
    promotion = Row("WG-KV promotion, all layers, one launch", 6, 4, True, " µs")
    pages = Row("Quest page scores, ≥ 32 MB, of a copy", 0.70, 0.80, False, "")
    cost = Row("host cost of a planned decision", 5, 3, True, " µs")
    judged(gather, of, "gather_rows", r"gather_rows/entries:(\d+)/one_in:(\d)/runs:\d", lambda _, run: run["of_copy"],
           lambda groups, run: f"{groups[0]} entries, 1 in {groups[1]}, {said(run)}")
    judged(argmin, of, "decode_steps", r"argmin/entries:4096", lambda _, run: run["us"], lambda *_: "64 in a graph")
    judged(promotion, of, "decode_steps", r"promotion/percent:(\d+)", lambda _, run: run["us"],
           lambda groups, _: f"{groups[0]} % admitted")
    judged(pages, of, "decode_steps", r"page_scores/layers:(\d+)/element:(\d)", lambda _, run: run["of_copy"],
           lambda groups, _: f"{groups[0]} layers, {ELEMENTS[groups[1]]}")
    judged(cost, of, "host_cost", r"host_cost/(\w+)", lambda _, run: run["us"], lambda groups, _: groups[0])
    for row, file, pattern in ((argmin, "decode_steps", r"argmin/entries:4096"),
                               (promotion, "decode_steps", r"promotion/percent:\d+")):
        launches = {int(run["launches"]) for _, run in of.matching(file, pattern) if "launches" in run}
        if launches:
            row.beside += f"; {max(launches)} launch{'es' if max(launches) != 1 else ''}"
    empty = [f"{groups[0]} {number(run['empty_us'])}" for groups, run in of.matching("host_cost", r"host_cost/(\w+)")
             if "empty_us" in run]
    if empty:
        cost.beside += f"; as many empty launches, µs: {', '.join(empty)}"
    graphs = [f"{groups[0]} {number(run['graph_us'])}" for groups, run in of.matching("host_cost", r"host_cost/(\w+)")
              if "graph_us" in run]
    if graphs:
        cost.beside += f"; as a graph, µs: {', '.join(graphs)}"
    return [gather, argmin, promotion, pages, cost]


def all_rows(of: Results) -> list:
    """In the order of the table."""
    copy, torch, layer, worst = top_k_rows(of)
    gather, argmin, promotion, pages, cost = other_rows(of)
    return [copy, torch, layer, *mass_rows(of), gather, argmin, promotion, pages, worst, cost]


# Rows, restated --------------------------------------------------------------------------------------------------------


def texts_of(results: Path) -> dict:
    """All results by their names."""
    if not results.is_dir():
        return load(results)[0] or {}
    texts = {name: of_name(results, name)[0] for name in (*FILES, "torch", "machine")}
    return {name: text for name, text in texts.items() if text is not None}


def restated_rows(results: Path, seen: Results) -> list:
    texts = texts_of(results)
    machine = gpu_keep.about_card(texts)["machine"]
    of = gpu_model_files.values_of(gpu_model_files.read_constants(gpu_model.FILES / "machine.json"), {"machine": machine})
    rows = gpu_model_files.read_rows(gpu_model.FILES / "rows.json")
    made = []
    for row in rows.values():
        if "runs" not in row or row.get("must") is None:
            continue
        unit = {"us": " µs", "times_peer": " ×", "times_row": " ×"}.get(row["unit"], "")
        line = Row(f"restated: {row['table']}, {row['what']}", row["must"], row["goal"], row["unit"] in gpu_model.LOW, unit)
        line.measured = gpu_model.measured_figure(of, rows, row, gpu_keep.kept_row(texts, row))
        line.why_not = seen.why_not(row["runs"]["file"], row["runs"]["name"])
        if line.measured is not None and not line.why_not.startswith(FAILED):
            line.why_not = ""
        made.append(line)
    return made


# Writing ---------------------------------------------------------------------------------------------------------------


def told(steps: list) -> str:
    """How the steps of a part ended, with the names of those that failed."""
    def named(verdict: str) -> list:
        return [step["name"] for step in steps if step["verdict"] == verdict]

    failed = named("failed")
    text = f"{len(named('passed'))} passed, {len(failed)} failed, {len(named('skipped'))} skipped"
    return text + (f" (failed: {', '.join(failed)})" if failed else "")


def about(of: Results) -> list:
    shown = ("device", "compute capability", "multiprocessors", "clock", "memory clock", "L2", "ECC", "driver", "runtime",
             "copy, read and written", "copy, median", "read", "read, median", "launch numbers")
    parts = [f"{part}: {told(of.steps[part])}" for part in ("tests", "sanitizers", "bench") if part in of.steps]
    return [f"{name}: {of.context[name]}" for name in shown if name in of.context] + parts


def markdown(of: Results, rows: list) -> str:
    head = ["operation", "measured", "must", "goal", "", "beside it"]
    lines = ["- " + line for line in about(of)] + [""]
    lines += ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *(row.cells() for row in rows))]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    of = Results(asked.results)
    rows, restated = all_rows(of), restated_rows(asked.results, of)
    for line in about(of):
        print(line)
    for row in [*rows, *restated]:
        what, figure, must, goal, verdict, beside = row.cells()
        print(f"{what}: {figure} (must {must}, goal {goal}): {verdict}" + (f" [{beside}]" if beside else ""))
    if asked.markdown:
        asked.markdown.write_text(markdown(of, [*rows, *restated]), encoding="utf-8")
    (met, missed), (met_anew, missed_anew) = verdicts(rows), verdicts(restated)
    print(f"restated: {met_anew} met, {missed_anew} missed")
    print(f"{met} met, {missed} missed")
    return 2 if met + missed + met_anew + missed_anew == 0 else 1 if missed + missed_anew else 0


def verdicts(rows: list) -> tuple:
    met = sum(row.verdict().startswith("met") for row in rows)
    return met, sum(row.answered() for row in rows) - met


if __name__ == "__main__":
    sys.exit(main())
