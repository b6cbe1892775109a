#!/usr/bin/env python3
"""No function outside of a region has a vector instruction of one: regions_test.py COMPILER INCLUDE

Kernels are compiled for instruction sets that a processor may not have, in namespaces of their own (ops/host/simd/each_isa.hpp). A function
that another part of the program shares must not be compiled for them. Without and with optimization.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = ("bounds", "element_rows", "gates", "listing", "lowest", "norms", "pool", "products", "residual", "rope", "select", "slots", "softmax",
           "transpose")
TABLES = {"pool": "pools", "rope": "ropes"}  # whose tables have other names than their headers
OF_ROWS = ("softmax", "products")  # their tables are of blocks of 4, 16 and 32 rows
OWN = re.compile(r"\d(avx2|avx512|avx512_bf16)\d|amx_(products|sweeps|rows|blocks)")  # names of regions in mangled names, and functions with a target of their own
WIDE = re.compile(r"%[yz]mm|%k[0-7]|\tv[a-z]")


def functions_with_vectors(compiler, include, level, folder):
    source, made = folder / "kernels.cpp", folder / f"kernels{level}.o"
    tables = [(name, rows) for name in KERNELS for rows in (("<4>", "<16>", "<32>") if name in OF_ROWS else ("",))]
    source.write_text("".join(f"#include <kvpolicy/ops/host/kernels/{name}.hpp>\n" for name in KERNELS) +
                      "".join(f"auto const& table_{i}(kvpolicy::isa level) {{ return kvpolicy::detail::{TABLES.get(name, name)}_of_isa{rows}[level]; }}\n"
                              for i, (name, rows) in enumerate(tables)))
    subprocess.run([compiler, "-std=c++20", level, "-I", include, "-c", source, "-o", made], check=True)
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
    compiler, include = sys.argv[1:]
    if subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout.split("-")[0] != "x86_64":
        print("skipped: there are regions on x86 only")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for level in ("-O0", "-O2"):
            found = functions_with_vectors(compiler, include, level, Path(folder))
            wrong = {name: line for name, line in found.items() if not OWN.search(name)}
            for name, line in wrong.items():
                print(f"{level}: {name} has an instruction of a region: {line}")
            if wrong:
                return 1
            if not any("6avx512" in name for name in found) or not any("4avx2" in name for name in found):
                print(f"{level}: no function of a region was found")
                return 1
            print(f"{level}: {len(found)} functions with vectors, all in their regions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
