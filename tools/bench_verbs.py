# SPDX-License-Identifier: Apache-2.0
"""The rows of bench_report for single verbs and appliers, and the programs of all of its rows: tools/bench_rows.json says which,
this code checks and judges them. The build reads the programs there, too (cmake/bench_programs.cmake).

A verb `struct NAME_t` of include/kvpolicy/ops/*.hpp, and an applier of include/kvpolicy/layout/*.hpp, must have a row, and every
row must be of one that exists.
"""
import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).resolve().parent / "bench_rows.json"


@dataclass(frozen=True)
class Asked:
    """One row of the table."""

    name: str  # of the verb or applier; empty: a row of something else
    is_applier: bool
    what: str
    program: str
    runs: str  # a regular expression of benchmarks
    counter: str
    must: float
    goal: float
    low: bool
    argued: str
    tenth_of: str  # the operation of which a verb is a tenth or more: others are not judged
    present: str  # how the row begins that another part of the report makes


class Table:
    def __init__(self, path: Path = TABLE) -> None:
        read = json.loads(path.read_text())
        self.argued_least: float = read["argued_least"]
        self.argued_most: int = read["argued_most"]
        self.reported: dict[str, str] = read.get("reported", {})  # for each program, the benchmarks of other rows
        self.rows = [self._row(one, read) for one in read["rows"]]

    @staticmethod
    def _row(one: dict, read: dict) -> Asked:
        known = {"verb", "applier", "what", "program", "runs", "counter", "must", "goal", "low", "argued", "tenth_of",
                 "present"}
        if unknown := set(one) - known:
            raise SystemExit(f"bench_rows.json: {one}: {sorted(unknown)} is not known")
        name = one.get("verb", one.get("applier", ""))
        kind = "apply with " if "applier" in one else ""
        what = one.get("what") or f"{kind}{name}"
        if "counter" not in one:
            what += ", of its floor"
        return Asked(name, "applier" in one, what, one.get("program", ""), one.get("runs", ""), one.get("counter", "share"),
                     one.get("must", read["must"]), one.get("goal", read["goal"]), one.get("low", False),
                     one.get("argued", ""), one.get("tenth_of", ""), one.get("present", ""))

    def judges(self, row: Asked) -> bool:
        return row.is_applier or not row.name or bool(row.tenth_of)

    def programs(self, only_judged: bool = False) -> dict[str, str]:
        """For each program, the benchmarks to run, as one regular expression."""
        patterns: dict[str, list[str]] = {}
        for row in self.rows:
            if row.program and (self.judges(row) or not only_judged):
                patterns.setdefault(row.program, []).append(f"({row.runs})")
        return {program: f"^({'|'.join(each)})(/|$)" for program, each in patterns.items()}

    def missing(self, folder: Path, only_verbs: bool = False) -> list[str]:
        """The programs that are not built."""
        names = set(self.programs()) | (set() if only_verbs else set(self.reported))
        return [f"bench_{name}" for name in sorted(names) if not (folder / f"bench_{name}").exists()]

    def faults(self, present: list[str], root: Path = ROOT) -> list[str]:
        """What is wrong with the table: names without a row, rows without a name, more arguments than allowed."""
        there = verbs_of(root) | appliers_of(root)
        named = {row.name for row in self.rows if row.name}
        found = [f"{name}: no row in bench_rows.json" for name in sorted(there - named)]
        found += [f"{name}: a row, but no such verb or applier" for name in sorted(named - there)]
        found += [f"{row.name}: no row of the report begins with {row.present!r}" for row in self.rows
                  if row.present and not any(text.startswith(row.present) for text in present)]
        found += [f"{row.name}: neither a benchmark nor a present row" for row in self.rows if not row.present and not row.runs]
        found += [f"{row.name}: argued, but it is not judged" for row in self.rows if row.argued and not self.judges(row)]
        argued = sum(bool(row.argued) for row in self.rows)
        if argued > self.argued_most:
            found.append(f"{argued} rows are argued, at most {self.argued_most} may be")
        return found


PARTS = "tests/core/shipped_parts_test.cpp"


def verbs_of(root: Path = ROOT) -> set[str]:
    """Names of the verbs that the headers of ops/ declare: `struct NAME_t` with an object NAME."""
    found = set()
    for header in sorted((root / "include/kvpolicy/ops").glob("*.hpp")):
        text = header.read_text()
        for name in re.findall(r"^struct (\w+)_t\b", text, re.M):
            if re.search(rf"\b{name}_t {name}\{{\}};", text):
                found.add(name)
    return found


def appliers_of(root: Path = ROOT) -> set[str]:
    """Names of the appliers that the test of all shipped parts lists."""
    return set(re.findall(r"static_assert\(applier<(\w+)", (root / PARTS).read_text()))


def short_name(benchmark: str) -> str:
    """The arguments of a benchmark, as a table shows them: `threads:2/element:0` becomes `threads 2, f32`."""
    elements = {"0": "f32", "1": "f16", "2": "bf16"}
    parts = []
    for each in benchmark.split("/")[1:]:
        key, _, value = each.partition(":")
        if key == "element":
            parts.append(elements.get(value, value))
        elif key == "threads":
            parts.append(f"{value} thread{'s' if value != '1' else ''}")
        elif value and key != "iterations":
            parts.append(f"{key} {value}")
    return ", ".join(parts)
