#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the library as one header, for programs that take a file and no folder.

    single_header.py [--header NAME] OUT     NAME is a header of include/kvpolicy: kvpolicy.hpp if it is not given

Headers of the library are put in the place of their first include; kernels, which have no guard, in that of each. What another
package ships is included as before.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "include"
INCLUDE = re.compile(r'\s*#\s*include\s+(?:<(kvpolicy/[^>]+)>|"([^"]+)")')
KERNELS = re.compile(r"\s*#\s*include\s+KVPOLICY_KERNELS_OF\(KVPOLICY_FAMILY\)")
FAMILY = re.compile(r"\s*#\s*define\s+KVPOLICY_FAMILY\s+(\w+)")
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


class Writer:
    """What was written, and where: `seen` has, for each condition that is open around the headers that are being added, the headers
    that stand inside of it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[set[Path]] = [set()]
        self.family = ""

    def add(self, header: Path) -> None:
        text = header.read_text().removeprefix(LICENCE)
        once = "#pragma once\n" in text
        if once and any(header in known for known in self.seen):
            return
        guard = "KVPOLICY_SINGLE_" + re.sub(r"\W", "_", str(header.relative_to(ROOT))).upper()
        if once:
            self.seen[-1].add(header)
            self.lines += [f"#if !defined({guard})\n", f"#define {guard}\n"]
        for line in text.splitlines(keepends=True):
            self.add_line(line, header)
        if once:
            self.lines.append("#endif\n")

    def add_line(self, line: str, header: Path) -> None:
        if re.match(r"\s*#\s*if", line):
            self.seen.append(set())
        elif re.match(r"\s*#\s*(el|endif)", line):
            self.seen.pop()
            if "endif" not in line:
                self.seen.append(set())
        if found := FAMILY.match(line):
            self.family = found.group(1)
        if KERNELS.match(line):
            self.add(ROOT / f"kvpolicy/ops/host/kernels/{self.family}.kernel.hpp")
        elif found := INCLUDE.match(line):
            self.add(ROOT / found.group(1) if found.group(1) else header.parent / found.group(2))
        elif line != "#pragma once\n":
            self.lines.append(line)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the library as one header.")
    parser.add_argument("--header", default="kvpolicy.hpp")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    header = ROOT / "kvpolicy" / asked.header
    if not header.is_file():
        print(f"single_header.py: --header = {asked.header}, but there is no such header in include/kvpolicy", file=sys.stderr)
        return 2
    version = re.search(r'version\[\] = "([^"]+)"', (ROOT / "kvpolicy/version.hpp").read_text()).group(1)
    writer = Writer()
    writer.add(header)
    try:
        asked.out.write_text(f"{LICENCE}// kvpolicy {version}, as one header: written by tools/single_header.py.\n#pragma once\n" + "".join(writer.lines))
    except OSError as wrong:
        print(f"single_header.py: OUT = {asked.out}, but it cannot be written: {wrong.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
