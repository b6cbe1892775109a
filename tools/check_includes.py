#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure of the sources: who includes whom, cycles, sizes, what verbs promise, leftovers.

    check_includes.py [ROOT]      prints one line per violation, file:line: text; exit status 1 if there is any
    check_includes.py --self-test plants violations in a temporary tree and proves that each is caught

A room is a folder under include/kvpolicy. ROOMS says what each room may include besides itself, version.hpp and std.
"""

import re
import sys
import tempfile
from pathlib import Path

LIBRARY = Path("include/kvpolicy")
MAX_LINES = 300

# What every decision is made of may include these. Of the scorers it knows the concept, not one scorer.
_PARTS = {"core", "ops", "parts", "scorers/concept.hpp", "scorers/scorer_traits.hpp", "recorders/recorder_hooks.hpp"}
_DECISION = _PARTS | {"decision"}
_EVERYTHING = {
    "core", "ops", "ops/host", "ops/cuda", "recorders", "parts", "scorers", "scorers/stages", "decision", "admission", "selection", "layout",
    "lifecycle", "groups", "step", "session", "accounting", "io", "by_name", "engines", "policies",
}  # fmt: skip

# An entry is a room or one file of it.
ROOMS = {
    "version": set(),
    "core": set(),
    "ops": {"core"},
    "ops/host": {"ops", "core"},
    "ops/cuda": {"ops", "core"},
    "recorders": {"ops", "core"},
    "parts": {"core", "ops"},
    "scorers": {"ops", "core", "recorders", "parts"},
    "scorers/stages": {"core", "ops", "recorders", "scorers", "parts"},
    "decision": _PARTS,
    "admission": _DECISION | {"layout"},
    "selection": _DECISION,
    "layout": {"core", "ops"},
    "lifecycle": {"core", "ops", "decision"},
    "groups": {"core", "ops", "decision", "layout", "lifecycle", "step"},
    "step": _DECISION | {"admission", "selection", "layout", "scorers/full.hpp", "scorers/with_recorders.hpp"},
    "session": {"core", "ops", "recorders"},
    "accounting": _DECISION | {"admission", "selection", "layout"},
    "io": {"core", "ops", "recorders", "scorers", "session", "parts"},
    "by_name": _EVERYTHING - {"engines", "policies"},
    "engines": _EVERYTHING - {"policies"},
    "policies": _EVERYTHING - {"engines"},
    "umbrella": _EVERYTHING | {"bench"},
    "bench": _EVERYTHING | {"umbrella"},
}

# Who may include a foreign library; std is not foreign.
FOREIGN = [
    (re.compile(r"^(unsupported/)?Eigen/"), "Eigen", {"ops/host"}),
    (re.compile(r"^(cub|thrust|cuda|nv|cooperative_groups)/|^(cuda|cublas|curand|cooperative_groups)\w*\.h$|^mma\.h$"), "CUDA", {"ops/cuda"}),
    (re.compile(r"^(iostream|ranges|random)$"), "costly", {"ops/host", "accounting", "io", "engines", "policies"}),
]  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Comments and literals, so that a comment sign inside a literal starts no comment.
TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
LEFTOVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")


def includes_of(path):
    """Yields (line number, '<' or '"', name) for each include directive that is not in a comment."""

    def blank(match):
        token = match.group()
        return token if token[0] == '"' else "\n" * token.count("\n")

    for number, line in enumerate(TOKENS.sub(blank, path.read_text(encoding="utf-8")).split("\n"), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1), match.group(2)


def room_of(inside):
    """The room of a path relative to include/kvpolicy."""
    folders = inside.parts[:-1]
    if not folders:
        return "version" if inside.name == "version.hpp" else "umbrella"
    two = "/".join(folders[:2])
    return two if two in ROOMS else folders[0]


# A path that a header had before: one line for sources of users, which no header of ours includes.
LICENCE = "SPDX-License-Identifier: Apache-2.0\n"
FORWARDING = re.compile(
    r"// SPDX-License-Identifier: Apache-2.0\n// The header has moved; this path goes with \d+\.\d+\.\n#pragma once\n\n#include <kvpolicy/([\w/]+\.hpp)>  // IWYU pragma: export\n"
)


def forwards_to(header):
    """The header of ours that this path stands for, if it is an old path."""
    match = FORWARDING.fullmatch(header.read_text(encoding="utf-8")) if header.suffix == ".hpp" and header.is_file() else None
    return match and match.group(1)


def may_include(room, target, target_room):
    allowed = ROOMS.get(room, set())
    return target_room in {room, "version"} or target_room in allowed or target.as_posix() in allowed


def target_of(root, header, quote, name):
    """The header of ours that an include names, relative to include/kvpolicy, or None if it is not ours."""
    base = (root / LIBRARY).resolve()
    candidates = [root / "include" / name] + ([header.parent / name] if quote == '"' else [])
    for candidate in candidates:
        resolved = candidate.resolve()
        if resolved.is_relative_to(base):
            return resolved.relative_to(base)
    return None


def check_foreign(room, header, quote, name):
    """Says why a header of this room may not include this foreign or std header, or returns None."""
    if header.suffix == ".cuh" and name.startswith("Eigen/"):
        return "a .cuh may not include Eigen"
    for pattern, what, allowed in FOREIGN:
        if pattern.match(name) and room not in allowed and not (what == "CUDA" and header.suffix == ".cuh" and room == "umbrella"):
            return f"room '{room}' may not include <{name}> ({what})"
    if room in {"version", "core"} and (quote == '"' or not re.fullmatch(r"[a-z0-9_]+", name)):
        return f"room '{room}' includes only core and std, not '{name}'"
    return None


def check_headers(root):
    graph = {}
    base = root / LIBRARY
    for header in sorted([*base.rglob("*.hpp"), *base.rglob("*.cuh")]):
        inside = header.relative_to(base)
        room = room_of(inside)
        shown = header.relative_to(root)
        if new := forwards_to(header):
            if not (base / new).is_file() or forwards_to(base / new):
                yield f"{shown}:4: '{new}' is no header that this old path can stand for"
            continue
        if room not in ROOMS:
            yield f"{shown}:1: room '{room}' is not in the table of tools/check_includes.py"
        lines = header.read_text(encoding="utf-8").removeprefix(f"// {LICENCE}").count("\n")
        if lines > MAX_LINES:
            yield f"{shown}:{lines}: {lines} lines, but a header has at most {MAX_LINES}"
        graph[inside] = []
        for number, quote, name in includes_of(header):
            target = target_of(root, header, quote, name)
            if target is None:
                if text := check_foreign(room, header, quote, name):
                    yield f"{shown}:{number}: {text}"
                continue
            target_room = room_of(target)
            if not (base / target).is_file():
                yield f"{shown}:{number}: there is no header '{name}'"
            elif new := forwards_to(base / target):
                yield f"{shown}:{number}: '{name}' is an old path of {new}"
            elif not may_include(room, target, target_room):
                yield f"{shown}:{number}: room '{room}' may not include '{target_room}' ({target})"
            elif target.suffix == ".cuh" and header.suffix == ".hpp":
                yield f"{shown}:{number}: a .hpp compiles without nvcc and may not include '{name}'"
            graph[inside].append((number, target))
    yield from cycles(graph)


def check_licences(root):
    """Every source says its licence, in its first lines."""
    if not (root / "LICENSE").is_file():
        return
    marks = {".hpp": "//", ".cpp": "//", ".cuh": "//", ".cu": "//", ".h": "//", ".c": "//", ".py": "#", ".sh": "#", ".cmake": "#"}
    for folder in ("include", "src", "examples", "tests", "bench", "tools", "python", "cmake"):
        for source in sorted((root / folder).rglob("*")):
            mark = "#" if source.name == "CMakeLists.txt" else marks.get(source.suffix)
            if mark is None or not source.is_file() or {"build", "__pycache__", "corpus"} & set(source.parts):
                continue
            if f"{mark} {LICENCE}" not in source.read_text(encoding="utf-8")[:1000]:
                yield f"{source.relative_to(root)}:1: there is no line '{mark} {LICENCE.strip()}'"


def cycles(graph):
    """Yields one line for each include that closes a cycle."""
    finished, stack = set(), []

    def visit(header):
        stack.append(header)
        for number, target in graph.get(header, []):
            if target in stack:
                ring = [*stack[stack.index(target) :], target]
                yield f"{LIBRARY / header}:{number}: cycle: {' -> '.join(map(str, ring))}"
            elif target not in finished:
                yield from visit(target)
        stack.pop()
        finished.add(header)

    for header in graph:
        if header not in finished:
            yield from visit(header)


def check_reference(root):
    """The reference is an oracle only if it shares nothing with the library."""
    folder = root / "tests" / "reference"
    for source in sorted(path for path in folder.rglob("*") if path.suffix in {".hpp", ".cpp", ".h", ".cuh", ".cu"}):
        for number, quote, name in includes_of(source):
            near = [(source.parent / name).resolve(), (root / "tests" / name).resolve()]
            inside = any(path.is_relative_to(folder.resolve()) for path in near)
            if "kvpolicy" in name or (not inside and (quote == '"' or ".." in Path(name).parts)):
                yield f"{source.relative_to(root)}:{number}: the reference may include only std and itself, not '{name}'"


def check_leftovers(root):
    for folder in ("include", "tests", "examples", "bench", "fuzz", "cmake"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".hpp", ".cuh", ".cpp", ".cu", ".cmake"} and path.name != "CMakeLists.txt" or not path.is_file():
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
                if match := LEFTOVER.search(line):
                    yield f"{path.relative_to(root)}:{number}: {match.group()}: finish it or write it down elsewhere"


# Kernels serve verbs; none says whose.
POLICY = re.compile(r"\b(snapkv|h2o|tova|knorm|intent_?kv|trim_?kv|wg_?kv|quest|streaming_?llm|duo_?attention)\b", re.IGNORECASE)


def composed_verbs(root):
    """Verbs whose own header implements them by other verbs, for every backend that runs no kernels."""
    texts = ((path, path.read_text(encoding="utf-8")) for path in sorted((root / LIBRARY / "ops").glob("*.hpp")))
    return {verb: path for path, text in texts for verb in re.findall(r"struct implementation<ops::(\w+), Backend>", text)}


def check_backends(root):
    """Every verb that the host has, kernels have, and no other; and no kernel names a policy."""
    has = {}
    for room, backend in (("host", "host"), ("cuda", "Backend")):
        folder = root / LIBRARY / "ops" / room
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.hpp"))}
        has[room] = {verb: path for path, text in texts.items() for verb in re.findall(rf"struct implementation<ops::(\w+), {backend}>", text)}
        for path, text in texts.items() if room == "cuda" else ():
            for number, line in enumerate(text.split("\n"), 1):
                if match := POLICY.search(line):
                    yield f"{path.relative_to(root)}:{number}: a kernel serves a verb, not '{match.group()}'"
    has["host"] |= composed_verbs(root)
    for verb in sorted(has["host"].keys() ^ has["cuda"].keys()):
        room, other = ("host", "cuda") if verb in has["host"] else ("cuda", "host")
        yield f"{has[room][verb].relative_to(root)}:1: '{verb}' has no implementation in ops/{other}"


def check_promises(root):
    """ops/BACKEND/F.hpp provides every verb that ops/F.hpp declares: there, or by what it includes of its own folder."""
    ops = root / LIBRARY / "ops"
    composed = composed_verbs(root)
    for contract in sorted(ops.glob("*.hpp")):
        declared = re.findall(r"^struct (\w+) : verb<\1>", contract.read_text(encoding="utf-8"), re.MULTILINE)
        for room, backend in (("host", "host"), ("cuda", "Backend")):
            verbs = [verb for verb in declared if room != "host" or verb not in composed]
            if not verbs:
                continue
            promised = ops / room / contract.name
            shown = promised.relative_to(root)
            if not promised.is_file():
                yield f"{shown}:1: there is no such header, but {contract.relative_to(root)} declares verbs"
                continue
            text = "".join(path.read_text(encoding="utf-8") for path in reached(root, promised))
            for verb in verbs:
                if not re.search(rf"struct implementation<(ops::)?{verb}, {backend}>", text):
                    yield f"{shown}:1: does not provide '{verb}', which {contract.relative_to(root)} declares"


# A verb's contract begins `name(exec, first, second)`, and its check has the arguments behind `exec`.
CONTRACT = re.compile(r"^/// `(\w+)\(exec(?:, ([^`]*))?\)`.*?^struct \1_t : verb<\1_t> \{(.*?)^\};", re.MULTILINE | re.DOTALL)


def check_contracts(root):
    """A verb's comment names as many arguments as the verb takes."""
    for contract in sorted((root / LIBRARY / "ops").glob("*.hpp")):
        text = contract.read_text(encoding="utf-8")
        for match in CONTRACT.finditer(text):
            verb, said, body = match.groups()
            told = count_arguments(re.sub(r"\n///", "", said or ""))
            takes = [count_arguments(found) for found in re.findall(r"\bvoid check\(([^{]*)\)[^{;()]*\{", body)]
            if takes and told not in takes:
                line = text[: match.start()].count("\n") + 1
                yield f"{contract.relative_to(root)}:{line}: the comment of '{verb}' names {told} arguments, but it takes {takes[0]}"


def count_arguments(text):
    text = re.sub(r"\{[^{}]*\}|\([^()]*\)", "", text)
    while re.search(r"<[^<>]*>", text):
        text = re.sub(r"<[^<>]*>", "", text)
    return len(text.split(",")) if text.strip() else 0


def reached(root, header):
    """The header and those of its own folder and the folders in it that it includes, directly or by others of them."""
    found, waiting = set(), [header]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        targets = (target_of(root, path, quote, name) for _, quote, name in includes_of(path))
        waiting += [root / LIBRARY / target for target in targets if target and header.relative_to(root / LIBRARY).parent in target.parents]
    return sorted(found)


def check(root):
    checks = (check_headers, check_reference, check_backends, check_promises, check_contracts, check_leftovers, check_licences)
    return [violation for each in checks for violation in each(root)]


CONTRACT_OF_SORT = """/// `sort(exec, scores, how)`: sorts them.
struct sort_t : verb<sort_t> {
  static void check(std::pair<int, int> const& scores, options<int, int> const&) {
    expects(scores.first > 0);
  }
};
"""

FORWARD = f"// {LICENCE}" + "// The header has moved; this path goes with 0.4.\n#pragma once\n\n#include <kvpolicy/{}>  // IWYU pragma: export\n"

CLEAN = {
    "include/kvpolicy/attic/scores.hpp": FORWARD.format("core/scores.hpp"),
    "include/kvpolicy/ops/sort.hpp": CONTRACT_OF_SORT,
    "include/kvpolicy/ops/host/sort.hpp": "#include <kvpolicy/ops/host/order.hpp>  // IWYU pragma: export\n",
    "include/kvpolicy/ops/host/order.hpp": "struct implementation<ops::sort_t, host> {\n",
    "include/kvpolicy/ops/cuda/sort.hpp": "struct implementation<ops::sort_t, Backend> {\n",
    "include/kvpolicy/kvpolicy.hpp": '#include <kvpolicy/scorers/knorm.hpp>\n#include "ops/host/top_k.hpp"\n',
    "include/kvpolicy/version.hpp": "",
    "include/kvpolicy/core/scores.hpp": '#include <span>\n// #include <kvpolicy/scorers/knorm.hpp>\n/*\n#include <iostream>\n*/\nauto s = "/*";\n',
    "include/kvpolicy/ops/top_k.hpp": '#include "../core/scores.hpp"\n',
    "include/kvpolicy/ops/host/top_k.hpp": "#include <Eigen/Core>\n#include <kvpolicy/ops/top_k.hpp>\n#include <thread>\n",
    "include/kvpolicy/ops/cuda/top_k.cuh": "#include <cub/device/device_radix_sort.cuh>\n#include <kvpolicy/ops/top_k.hpp>\n",
    "include/kvpolicy/scorers/concept.hpp": "#include <kvpolicy/core/scores.hpp>\n",
    "include/kvpolicy/scorers/knorm.hpp": '#include "concept.hpp"\n#include <kvpolicy/ops/top_k.hpp>\n',
    "include/kvpolicy/decision/decide.hpp": "#include <kvpolicy/scorers/concept.hpp>\n",
    "tests/reference/top_k.hpp": '#include <vector>\n#include "reference/sort.hpp"\n',
    "tests/reference/sort.hpp": "",
    "tests/ops/top_k_test.cpp": "#include <kvpolicy/kvpolicy.hpp>\n",
}  # fmt: skip

PLANTED = [
    ("include/kvpolicy/core/lane.hpp", "\n#include <kvpolicy/scorers/knorm.hpp>\n", ":2: room 'core' may not include 'scorers'"),
    ("include/kvpolicy/core/lane.hpp", '#include "../scorers/knorm.hpp"\n', ":1: room 'core' may not include 'scorers'"),
    ("include/kvpolicy/core/lane.hpp", "#include <Eigen/Core>\n", ":1: room 'core' may not include <Eigen/Core>"),
    ("include/kvpolicy/core/lane.hpp", "#include <iostream>\n", ":1: room 'core' may not include <iostream>"),
    ("include/kvpolicy/core/lane.hpp", "#include <fmt/core.h>\n", ":1: room 'core' includes only core and std"),
    ("include/kvpolicy/core/lane.hpp", "#include <kvpolicy/core/gone.hpp>\n", ":1: there is no header"),
    ("include/kvpolicy/core/long.hpp", "\n" * 301, ":301: 301 lines"),
    ("include/kvpolicy/core/detail/lane.hpp", "int x;  // TO" + "DO\n", ":1: TO" + "DO"),
    ("include/kvpolicy/core/a.hpp", '#include "a.hpp"\n', ":1: cycle: core/a.hpp -> core/a.hpp"),
    ("include/kvpolicy/core/scores.hpp", "#include <kvpolicy/ops/top_k.hpp>\n", "cycle: core/scores.hpp -> ops/top_k.hpp -> core/scores.hpp"),
    ("include/kvpolicy/scorers/snapkv.hpp", "#include <kvpolicy/ops/host/top_k.hpp>\n", ":1: room 'scorers' may not include 'ops/host'"),
    ("include/kvpolicy/scorers/snapkv.hpp", "#include <cub/cub.cuh>\n", ":1: room 'scorers' may not include <cub/cub.cuh>"),
    ("include/kvpolicy/scorers/snapkv.hpp", "#include <kvpolicy/kvpolicy.hpp>\n", ":1: room 'scorers' may not include 'umbrella'"),
    ("include/kvpolicy/decision/evict.hpp", "#include <kvpolicy/scorers/knorm.hpp>\n", ":1: room 'decision' may not include 'scorers'"),
    ("include/kvpolicy/cuda.hpp", "#include <kvpolicy/ops/cuda/top_k.cuh>\n", ":1: a .hpp compiles without nvcc"),
    ("include/kvpolicy/ops/cuda/map.cuh", "#include <Eigen/Core>\n", ":1: a .cuh may not include Eigen"),
    ("include/kvpolicy/ops/host/fold.hpp", "struct implementation<ops::fold_t, host> {\n", ":1: 'fold_t' has no implementation in ops/cuda"),
    ("include/kvpolicy/ops/cuda/fold.hpp", "struct implementation<ops::fold_t, Backend> {\n", ":1: 'fold_t' has no implementation in ops/host"),
    ("include/kvpolicy/ops/cuda/fold.hpp", "\n// as SnapKV has it\n", ":2: a kernel serves a verb, not 'SnapKV'"),
    ("include/kvpolicy/ops/host/sort.hpp", "", ":1: does not provide 'sort_t', which include/kvpolicy/ops/sort.hpp declares"),
    ("include/kvpolicy/ops/host/sort.hpp", "// #include <kvpolicy/ops/host/order.hpp>\n", ":1: does not provide 'sort_t'"),
    ("include/kvpolicy/ops/cuda/sort.hpp", "#include <kvpolicy/ops/host/order.hpp>\n", ":1: does not provide 'sort_t'"),
    ("include/kvpolicy/ops/map.hpp", "struct map_t : verb<map_t> {};\n", "include/kvpolicy/ops/host/map.hpp:1: there is no such header, but include/kvpolicy/ops/map.hpp declares"),
    ("include/kvpolicy/ops/sort.hpp", CONTRACT_OF_SORT.replace(", how", ""), ":1: the comment of 'sort' names 1 arguments, but it takes 2"),
    ("include/kvpolicy/ops/sort.hpp", CONTRACT_OF_SORT.replace(", how", ",\n/// how, other"), ":1: the comment of 'sort' names 3 arguments"),
    ("include/kvpolicy/attic/gone.hpp", FORWARD.format("core/gone.hpp"), ":4: 'core/gone.hpp' is no header"),
    ("include/kvpolicy/attic/twice.hpp", FORWARD.format("attic/scores.hpp"), ":4: 'attic/scores.hpp' is no header"),
    ("include/kvpolicy/scorers/tova.hpp", "#include <kvpolicy/attic/scores.hpp>\n", ":1: 'kvpolicy/attic/scores.hpp' is an old path of core/scores.hpp"),
    ("include/kvpolicy/attic/old.hpp", "", ":1: room 'attic' is not in the table"),
    ("tests/reference/bad.hpp", "#include <kvpolicy/core/scores.hpp>\n", ":1: the reference may include only std and itself"),
    ("tests/reference/bad.hpp", '#include "../../include/kvpolicy/core/scores.hpp"\n', ":1: the reference may include only"),
    ("tests/reference/bad.hpp", '#include "../support/rows.hpp"\n', ":1: the reference may include only"),
]  # fmt: skip


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def self_test():
    failures = 0
    for name, text, expected in [(None, None, None), *PLANTED]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            write(root, CLEAN | ({name: text} if name else {}))
            found = check(root)
        good = not found if name is None else any(expected in line for line in found) and name in "\n".join(found)
        failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {name or 'clean tree'}: {expected or 'no violation'}")
        if not good:
            print(*(f"       found {line}" for line in found), sep="\n")
    print(f"self-test: {len(PLANTED) + 1 - failures} ok, {failures} failed")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    root = Path(arguments[0] if arguments else Path(__file__).parent.parent).resolve()
    if not (root / LIBRARY).is_dir():
        print(f"{root}: there is no {LIBRARY} here")
        return 2
    violations = check(root)
    print(*violations, sep="\n", end="\n" if violations else "")
    print(f"check_includes: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
