# SPDX-License-Identifier: Apache-2.0
"""Reads the files of tools/gpu_model.py: constants, rows, what was measured, and compiled code.

What is wrong with one is said in one line.
"""
import json
import math
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cuda"))
from check_registers import fitting  # noqa: E402

WARP = 32
RATES = ("copy", "read")
UNITS = {"us", "share", "share_of_equal", "times_peer", "times_row"}
HARNESSES = {"events", "graph", "host", "host_graph"}
NUMBERS = ("blocks", "threads", "registers", "shared", "loads", "barriers", "cluster_barriers", "instructions", "groups",
           "products", "traffic", "stages")
CONSTANTS = ("processors", "schedulers", "clock", "issue_share", "tensor_cores", "tensor_cores_by_mma", "copy", "read", "dependent_load", "barrier", "barrier_of_16",
             "barrier_of_32", "cluster_barrier", "empty_call", "launch", "ticket", "overlap_saves", "end", "host_launch",
             "host_graph", "host_graph_launch")


class Wrong(Exception):
    """What is wrong with a file or an argument, in one line."""


# Files -----------------------------------------------------------------------------------------------------------------


def load(path):
    try:
        made = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as why:
        raise Wrong(f"{path}: {why.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as why:
        raise Wrong(f"{path} is no JSON: {why}") from None
    if not isinstance(made, dict):
        raise Wrong(f"{path} holds no object")
    return made


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def listed(made, key, path):
    """The objects of a list, by their names."""
    found = {}
    for each in made[key] if isinstance(made.get(key), list) else [None]:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise Wrong(f"{path}: '{key}' must be a list of objects that have names")
        if each["name"] in found:
            raise Wrong(f"{path}: '{key}' has two of the name {each['name']}")
        found[each["name"]] = each
    return found


def read_constants(path):
    found = listed(load(path), "constants", path)
    for name, each in found.items():
        if each.get("state") not in ("measured", "assumed", "given", "unknown"):
            raise Wrong(f"{path}: {name} is neither measured, nor assumed, nor given, nor unknown")
        if not is_number(each.get("value")) and each["state"] != "unknown":
            raise Wrong(f"{path}: {name} has no number")
        if each["state"] == "measured" and not each.get("commit"):
            raise Wrong(f"{path}: {name} is measured, but no commit is named")
    for name in CONSTANTS:
        if name not in found or found[name]["state"] == "unknown":
            raise Wrong(f"{path}: the constant {name} is missing")
    return found


def read_kernel(kernel, row, path):
    if not isinstance(kernel, dict):
        raise Wrong(f"{path}: {row}: a kernel must be an object")
    for name in NUMBERS:
        if not is_number(kernel.get(name, 0)):
            raise Wrong(f"{path}: {row}: {name} = {kernel[name]!r}, but a number of at least 0 is wanted")
    for name, otherwise in (("blocks", 0), ("threads", 0), ("registers", 0), ("stages", 1)):
        if kernel.get(name, otherwise) < 1:
            raise Wrong(f"{path}: {row}: a kernel must say its {name}")
    if kernel["threads"] % WARP != 0:
        raise Wrong(f"{path}: {row}: threads = {kernel['threads']}, but threads come in warps of {WARP}")
    if kernel.get("rate", "read") not in RATES:
        raise Wrong(f"{path}: {row}: rate = {kernel['rate']!r}, but bytes pass at the rate of a copy or of a read")
    if fitting(kernel["registers"], kernel["threads"], kernel.get("shared", 0)) < 1:
        raise Wrong(f"{path}: {row}: no block of a kernel fits on a multiprocessor")


def read_row(row, path):
    name = row["name"]
    if row.get("unit") not in UNITS or row.get("harness") not in HARNESSES or not isinstance(row.get("when"), str):
        raise Wrong(f"{path}: {name} must have a unit, a harness and the commit that it is about")
    if not isinstance(row.get("kernels"), list):
        raise Wrong(f"{path}: {name}: 'kernels' must be a list")
    for kernel in row["kernels"]:
        read_kernel(kernel, name, path)
    by_host = row["harness"].startswith("host")
    if by_host and not is_number(row.get("launches")) or not by_host and not row["kernels"]:
        raise Wrong(f"{path}: {name} launches nothing")
    if row["unit"].startswith("share") and not (is_number(row.get("bytes")) and row["bytes"] > 0):
        raise Wrong(f"{path}: {name} is a share, but says no bytes")
    if row["unit"] == "share" and row.get("floor") not in RATES:
        raise Wrong(f"{path}: {name} is a share of neither a copy nor a read")


def read_rows(path):
    found = listed(load(path), "rows", path)
    for name, row in found.items():
        read_row(row, path)
        if row["unit"] == "times_row" and row.get("against") not in found:
            raise Wrong(f"{path}: {name} is compared with no row of the file")
    return found


def newest(folder):
    """The file of the newest commit."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (str(load(path).get("commit_date")), path.name))
    if not paths:
        raise Wrong(f"{folder} has no measured file")
    return paths[-1]


def read_measured(path):
    made = load(path)
    if not isinstance(made.get("card"), dict) or not made["card"].get("name") or not made.get("commit"):
        raise Wrong(f"{path} must name the card and the commit")
    if not isinstance(made.setdefault("machine", {}), dict):
        raise Wrong(f"{path}: 'machine' must be an object")
    made["rows"] = listed(made, "rows", path)
    for name, row in made["rows"].items():
        runs = row.get("us")
        if runs is not None and not (isinstance(runs, list) and runs and all(is_number(run) and run > 0 for run in runs)):
            raise Wrong(f"{path}: {name}: 'us' must be a list of times, or null")
        for key in ("bytes", "launches", "share", "times", "peer_us"):
            if row.get(key) is not None and not (is_number(row[key]) and row[key] > 0):
                raise Wrong(f"{path}: {name}: {key} = {row[key]!r}, but a number above 0 or null is wanted")
    for name, value in made["machine"].items():
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise Wrong(f"{path}: machine: {name} = {value!r}, but a number or null is wanted")
    return made


def values_of(constants, measured):
    """By name, the constants; a measured file's own ones count more."""
    made = {name: each["value"] for name, each in constants.items()}
    return made | {name: value for name, value in measured["machine"].items() if value is not None}


# Compiled code ---------------------------------------------------------------------------------------------------------


def output_of(program, option, cubin):
    try:
        run = subprocess.run([program, option, str(cubin)], capture_output=True, text=True, check=False)
    except OSError as why:
        raise Wrong(f"{program}: {why.strerror}; PyPI's nvidia-cuda-cuobjdump has one") from None
    if run.returncode != 0:
        raise Wrong(f"{program} cannot read {cubin}: {(run.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return run.stdout


def registers_in(text):
    """By mangled name, what `cuobjdump -res-usage` says."""
    return {name: int(used) for name, used in re.findall(r"Function (\S+):\s*\n\s*REG:(\d+)", text)}


def instructions_in(text):
    """By mangled name, the opcodes that `cuobjdump -sass` prints, without the empty ones that fill up the code."""
    found, name = {}, None
    for line in text.splitlines():
        if begin := re.match(r"\s*Function : (\S+)", line):
            name = begin[1]
            found[name] = []
        elif name and (one := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", line)):
            found[name] += [one[1]] if one[1] != "NOP" else []
    return found


def counts_in(registers, code):
    """By mangled name, what the model uses of a kernel."""
    return {name: {"registers": registers[name], "instructions_in_code": len(code[name]),
                   "barriers_in_code": sum(op.startswith("BAR.") for op in code[name]),
                   "cluster_barriers_in_code": sum(op == "UCGABAR_WAIT" for op in code[name])}
            for name in registers if name in code}


def compiled_as(kernel, counts):
    """What was counted of a row's kernel in compiled code; None if it is not there, or not alone."""
    found = [each for name, each in counts.items() if kernel.get("kernel") and re.search(kernel["kernel"], name)]
    return found[0] if len(found) == 1 else None


def with_code(kernel, counts):
    """The kernel as compiled: its registers, and on its path as many more barriers as its code has."""
    found = compiled_as(kernel, counts)
    if found is None:
        return kernel
    made = kernel | found
    for name in ("barriers", "cluster_barriers"):
        noted = kernel.get(f"{name}_in_code")
        if noted is not None and found[f"{name}_in_code"] != noted:
            made[name] = max(0, kernel.get(name, 0) + found[f"{name}_in_code"] - noted)
    return made


def rows_with_code(rows, cubins, program):
    """The rows, with what compiled code says of the present kernels."""
    counts = {}
    for cubin in cubins:
        registers = registers_in(output_of(program, "-res-usage", cubin))
        counts |= counts_in(registers, instructions_in(output_of(program, "-sass", cubin)))
    made = dict(rows)
    for name, row in rows.items():
        if row["when"] == "present":
            made[name] = row | {"kernels": [with_code(kernel, counts) for kernel in row["kernels"]]}
    present = [kernel for row in made.values() if row["when"] == "present" for kernel in row["kernels"]]
    if cubins and not any(compiled_as(kernel, counts) for kernel in present):
        raise Wrong(f"{cubins[-1]}: no kernel of a row is in compiled code")
    return made


def changes(before, after):
    """A line for each number of a kernel that compiled code replaced."""
    for name, row in after.items():
        for old, new in zip(before[name]["kernels"], row["kernels"]):
            for key in sorted(key for key in new if new[key] != old.get(key)):
                yield f"{name}: {key} = {new[key]}, where the file says {old.get(key, 'nothing')}"
