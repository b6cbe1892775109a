#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The umbrella header under an older standard is one error, which says what to do.

    standard_test.py COMPILER INCLUDE
"""

import re
import subprocess
import sys

WANTED = "kvpolicy needs C++20: -std=c++20"


def main():
    compiler, include = sys.argv[1:]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-fdiagnostics-color=never", "-I", include, "-x", "c++", "-"]
    ran = subprocess.run(command, input="#include <kvpolicy/kvpolicy.hpp>\n", capture_output=True, text=True)
    errors = [line for line in ran.stderr.splitlines() if re.search(r"\berror\b\s*:", line)]
    if ran.returncode != 0 and len(errors) == 1 and WANTED in errors[0]:
        return 0
    print(f"{len(errors)} errors, wanted one: {WANTED}")
    print("\n".join(errors[:20]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
