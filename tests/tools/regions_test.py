#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No function outside of a region has a vector instruction of one: regions_test.py COMPILER INCLUDE KERNELS OBJECT

Kernels are compiled for instruction sets that a processor may not have, in namespaces of their own (ops/host/simd/each_isa.hpp). A function
that another part of the program shares must not be compiled for them. KERNELS is the source that has all of them, which is compiled without
optimization here, and OBJECT is what the build made of it.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

OWN = re.compile(r"\d(avx2|avx512|avx512_bf16)\d|amx_(products|sweeps|rows|blocks)")  # names of regions in mangled names, and functions with a target of their own
WIDE = re.compile(r"%[yz]mm|%k[0-7]|\tv[a-z]")


def functions_with_vectors(made):
    shown = subprocess.run(["objdump", "-d", "--no-show-raw-insn", made], check=True, capture_output=True, text=True).stdout
    name, found = "", {}
    for line in shown.splitlines():
        begins = re.match(r"[0-9a-f]+ <(.*)>:", line)
        if begins:
            name = begins[1]
        elif WIDE.search(line):
            found[name] = line.strip()
    return found


def main():
    compiler, include, kernels, built = sys.argv[1:]
    if subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout.split("-")[0] != "x86_64":
        print("skipped: there are regions on x86 only")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernels.o"
        subprocess.run([compiler, "-std=c++20", "-O0", "-I", include, "-c", kernels, "-o", made], check=True)
        for which, made in (("-O0", made), ("built", built)):
            found = functions_with_vectors(made)
            wrong = {name: line for name, line in found.items() if not OWN.search(name)}
            for name, line in wrong.items():
                print(f"{which}: {name} has an instruction of a region: {line}")
            if wrong:
                return 1
            if not any("6avx512" in name for name in found) or not any("4avx2" in name for name in found):
                print(f"{which}: no function of a region was found")
                return 1
            print(f"{which}: {len(found)} functions with vectors, all in their regions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
