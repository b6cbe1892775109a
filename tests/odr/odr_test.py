#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Source files that include different parts of the library give one program, in whichever order they are linked.

    odr_test.py COMPILER INCLUDE [--all] [PART ...]

Compiles each PART.cpp of this folder under the address sanitizer, links every pair in both orders and runs it. A function
of a header whose body depends on what else was included is one body for the whole program, that of the file linked first.
Four parts are six pairs; --all takes every part.
"""

import itertools
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
USUAL = ["streaming_llm", "snapkv", "random", "h2o"]
FLAGS = ["-std=c++20", "-O0", "-g1", "-fsanitize=address", "-fno-omit-frame-pointer"]


def main():
    compiler, include, *parts = sys.argv[1:]
    if "--all" in parts:
        parts = sorted(each.stem for each in HERE.glob("*.cpp"))
    parts = parts or USUAL
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder)

        def compile_part(part):
            command = [compiler, *FLAGS, "-I", include, "-c", str(HERE / f"{part}.cpp"), "-o", str(into / f"{part}.o")]
            return part, subprocess.run(command, capture_output=True, text=True)

        with ThreadPoolExecutor(2) as pool:
            for part, done in pool.map(compile_part, parts):
                if done.returncode != 0:
                    print(f"{part}.cpp does not compile:\n{done.stderr}")
                    return 1
        for first, second in itertools.permutations(parts, 2):
            program = into / "both"
            calls = f"int run_{first}();\nint run_{second}();\nint main() {{ return run_{first}() + 2 * run_{second}(); }}\n"
            (into / "main.cpp").write_text(calls)
            objects = [str(into / f"{each}.o") for each in (first, second)]
            command = [compiler, *FLAGS, *objects, str(into / "main.cpp"), "-o", str(program), "-pthread"]
            subprocess.run(command, check=True)
            done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
            good = done.returncode == 0
            failed += not good
            if not good:
                print(f"{first}, then {second}: exit status {done.returncode}")
                print(done.stdout + done.stderr)
    pairs = len(parts) * (len(parts) - 1) // 2
    print(f"{pairs} pairs of parts, in both orders: {'ok' if failed == 0 else f'{failed} failed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
