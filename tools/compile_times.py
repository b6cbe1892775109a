#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what kvpolicy costs a compiler: user seconds, the least of several runs, and ratios inside one run.

    compile_times.py [--compiler COMPILER] [--runs RUNS] [--before COMMIT]

1. The README's first program (examples/first.cpp) at -O2, less an empty main with the same standard headers: from headers,
   and against kvpolicy::compiled, which defines KVPOLICY_COMPILED.
2. Parsing the umbrella header alone, here and as of a commit (3dca91d), with the same compiler and flags; and with
   KVPOLICY_COMPILED. The second part needs the repository's history, and is skipped without it.
It judges nothing: the exit status is 0 if the compiler ran. Runs alternate, so that another load of the machine meets all
of them alike.
"""

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "3dca91d"  # what parsing the umbrella header is compared with
UMBRELLA = "#include <kvpolicy/kvpolicy.hpp>\n"


def user_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def least(commands, runs):
    """The least user seconds of each command, which take turns."""
    found = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            found[name].append(user_seconds(command))
    return {name: min(times) for name, times in found.items()}


def headers_of(commit, folder):
    """Unpacks include/ of a commit, or returns False where there is no such commit."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit, "include"], capture_output=True)
    if archive.returncode != 0:
        return False
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return True


def measure(compiler, runs, before):
    """User seconds: `headers` and `compiled` of the first program, less `empty`; `parse`, `parse compiled`, and, if the
    history has the commit, `parse before`."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        first = ROOT / "examples" / "first.cpp"
        standard = re.findall(r"^#include <\w+>$", first.read_text(encoding="utf-8"), re.MULTILINE)
        empty, umbrella = scratch / "empty.cpp", scratch / "umbrella.cpp"
        empty.write_text("\n".join(standard) + "\nint main() {}\n", encoding="utf-8")
        umbrella.write_text(UMBRELLA, encoding="utf-8")

        compiler = [compiler, "-std=c++20"]
        here, compiled = ["-I", ROOT / "include"], ["-D", "KVPOLICY_COMPILED"]
        objects = [*compiler, "-O2", "-c", "-o", scratch / "out.o"]
        parses = [*compiler, "-fsyntax-only", umbrella]
        commands = {
            "empty": [*objects, empty],
            "headers": [*objects, *here, first],
            "compiled": [*objects, *here, *compiled, first],
            "parse": [*parses, *here],
            "parse compiled": [*parses, *here, *compiled],
        }
        if headers_of(before, scratch / "before"):
            commands["parse before"] = [*parses, "-I", scratch / "before" / "include"]
        least(commands, 1)  # reads every file once
        times = least(commands, runs)
    for name in ("headers", "compiled"):
        times[name] -= times["empty"]
    return times


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--compiler", default="g++")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--before", default=BEFORE)
    given = arguments.parse_args()

    times = measure(given.compiler, given.runs, given.before)
    print(f"{given.compiler}, user seconds, the least of {given.runs} runs")
    print(f"first program at -O2, less {times['empty']:.2f} s of its standard headers: {times['headers']:.2f} from headers, "
          f"{times['compiled']:.2f} against kvpolicy::compiled: {times['compiled'] / times['headers']:.2f} of it")
    print(f"umbrella alone: {times['parse']:.2f}, with KVPOLICY_COMPILED {times['parse compiled']:.2f}")
    if "parse before" in times:
        ratios = [times[name] / times["parse before"] for name in ("parse", "parse compiled")]
        print(f"umbrella alone at {given.before}: {times['parse before']:.2f}; {ratios[0]:.2f} of it now, "
              f"{ratios[1]:.2f} with KVPOLICY_COMPILED")
    else:
        print(f"there is no commit {given.before} here, so parsing is not compared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
