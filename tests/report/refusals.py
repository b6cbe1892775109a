#!/usr/bin/env python3
"""refusals.py DEMO FOLDER: a report that cannot be written is refused before the run; a run that fails writes none."""
import subprocess
import sys
from pathlib import Path

demo, folder = sys.argv[1], Path(sys.argv[2])
report = folder / "refused.html"
report.unlink(missing_ok=True)
short = folder / "short.txt"
short.write_text("short")
CASES = [
    (["--report", f"{folder}/none/r.html"], f"demo: --report = {folder}/none/r.html, but its folder is not there"),
    (["--report", f"{folder}"], f"demo: --report = {folder}, but it cannot be written"),
    (["--report", ""], "demo: --report = , but it cannot be written"),
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
if report.exists():
    wrong += 1
    print(f"{report} was written")
print(f"refusals: {len(CASES)} cases, {wrong} wrong")
sys.exit(1 if wrong else 0)
