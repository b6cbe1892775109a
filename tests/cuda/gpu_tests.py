#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a folder on a GPU, or skips them and says how many there are.

    gpu_tests.py PROGRAM FOLDER

Exit status 77: there is no GPU, or the program was not built.
"""

import re
import subprocess
import sys
from pathlib import Path

SKIPPED = 77


def cases(folder):
    """Test cases of the sources, without building them."""
    texts = [path.read_text(encoding="utf-8") for path in Path(folder).glob("*_test.cpp")]
    return sum(len(re.findall(r"^\s*TEST_CASE\(", text, re.M)) for text in texts if "!defined(__CUDACC__)" not in text)


def has_gpu():
    try:
        return b"GPU 0" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout
    except FileNotFoundError:
        return False


def main():
    program, folder = sys.argv[1:]
    if not has_gpu():
        print(f"{cases(folder)} GPU tests skipped: there is no GPU")
        return SKIPPED
    if not Path(program).exists():
        print(f"{cases(folder)} GPU tests skipped: build kvpolicy_gpu_tests first")
        return SKIPPED
    return subprocess.run([program], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
