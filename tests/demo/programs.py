# SPDX-License-Identifier: Apache-2.0
"""Runs the demo's programs and counts what is not as expected."""
import subprocess
import sys

wrong = 0


def run(program: str, *arguments: str):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)


def expect(held: bool, what: str):
    global wrong
    if not held:
        wrong += 1
        print(f"not so: {what}")


def refused(program: str, arguments: list[str], start: str, end: str):
    """One line on standard error, nothing on standard output, status 2."""
    ran = run(program, *arguments)
    line = ran.stderr.rstrip("\n")
    held = ran.returncode == 2 and not ran.stdout and "\n" not in line and line.startswith(start) and line.endswith(end)
    expect(held, f"{arguments}: status {ran.returncode}, {ran.stderr!r}, expected {start!r} ... {end!r}")


def finish():
    print(f"{wrong} wrong")
    sys.exit(1 if wrong else 0)
