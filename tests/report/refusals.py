#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""refusals.py DEMO FOLDER: a report that cannot be written is refused before the run; a run that fails writes none."""
import os
import subprocess
import sys
from pathlib import Path

demo, folder = sys.argv[1], Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
report = folder / "refused.html"
report.unlink(missing_ok=True)
short = folder / "short.txt"
short.write_text("short")
link, fifo = folder / "refused_link.html", folder / "refused_fifo.html"
link.unlink(missing_ok=True)
link.symlink_to("short.txt")
fifo.unlink(missing_ok=True)
os.mkfifo(fifo)
CASES = [
    (["--report", f"{folder}/none/r.html"], f"demo: --report = {folder}/none/r.html, but it cannot be written: No such file or directory"),
    (["--report", f"{folder}"], f"demo: --report = {folder}, but it cannot be written"),
    (["--report", ""], "demo: --report = , but it cannot be written: a file has a name"),
    (["--report", f"{link}"], f"demo: --report = {link}, but it cannot be written: it is a symbolic link"),
    (["--report", f"{fifo}"], f"demo: --report = {fifo}, but it cannot be written: it is a FIFO"),
    (["--report", f"{short}", "--text", f"{short}"], f"demo: --report = {short}, but it cannot be written: this run reads it"),
    (["--report", "/proc/none.html"], "demo: --report = /proc/none.html, but it cannot be written"),
    (["--report", "/proc/version"], "demo: --report = /proc/version, but it cannot be written"),
    (["--report", f"{report}", "--policies", "nope"], "demo: --policies = nope, but there are "),
    (["--report", f"{report}", "--text", f"{short}"], f"demo: --text = {short}, but it has 5 bytes"),
]

wrong = 0
for arguments, expected in CASES:
    ran = subprocess.run([demo, "--quick", *arguments], capture_output=True, text=True, timeout=300)
    if ran.returncode != 2 or not ran.stderr.startswith(expected) or ran.stderr.count("\n") != 1 or ran.stdout:
        wrong += 1
        print(f"{arguments}: status {ran.returncode}, {ran.stderr!r}, expected {expected!r}")
if short.read_text() != "short" or not link.is_symlink() or not fifo.is_fifo() or list(folder.glob("*.unfinished")):
    wrong += 1
    print("a run that was refused has changed a file")
if report.exists():
    wrong += 1
    print(f"{report} was written")
print(f"refusals: {len(CASES)} cases, {wrong} wrong")
sys.exit(1 if wrong else 0)
