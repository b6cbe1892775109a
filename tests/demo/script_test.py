#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""script_test.py DEMO_SH: which program it runs with which arguments, what it says meanwhile, and how it ends.

The script runs in a folder of its own. What it starts are stubs: tools/setup.sh, cmake, and the two programs.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from programs import expect, finish

PROGRAM = '#!/bin/sh\necho "$(basename "$0")"\nfor a in "$@"; do echo "<$a>"; done\nexit "${DEMO_STATUS:-0}"\n'
CMAKE = """#!/bin/sh
echo "$*" >> calls
case "$*" in
*--build*) echo '[1/4] Building CXX object a'; echo "$$" > building
  [ -z "$SLOW" ] || sleep "$SLOW"
  [ -z "$BROKEN" ] || { echo 'a.cpp:1: error: planted'; exit 1; }
  echo '[4/4] Linking CXX executable b' ;;
esac
"""


def write(path: Path, text: str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def start(top: Path, *arguments: str, **variables: str):
    return subprocess.Popen([top / "tools/demo.sh", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PATH": f"{top}/bin:{os.environ['PATH']}", **variables})


def run(top: Path, *arguments: str, **variables: str):
    (top / "calls").unlink(missing_ok=True)
    process = start(top, *arguments, **variables)
    out, said = process.communicate(timeout=60)
    return process.returncode, out.splitlines(), said.splitlines()


def check_choice(top: Path):
    spec = "snapkv | budget(64)"
    for arguments, expected in (
        ([], ["demo", "<--report>", "<kept.html>"]),
        (["--cases", "3"], ["demo", "<--report>", "<kept.html>", "<--cases>", "<3>"]),
        (["--report", "a b.html"], ["demo", "<--report>", "<a b.html>"]),
        (["--report=x.html", "--quick"], ["demo", "<--report=x.html>", "<--quick>"]),
        (["--full"], ["demo_full", "<--full>"]),
        (["--full", "--report", "x.html"], ["demo_full", "<--full>", "<--report>", "<x.html>"]),
        (["--policy", spec], ["demo_full", "<--policy>", f"<{spec}>"]),
        ([f"--policy={spec}"], ["demo_full", f"<--policy={spec}>"]),
        (["--plugin", "./mine.so"], ["demo_full", "<--plugin>", "<./mine.so>"]),
        (["--policies", "full,knorm"], ["demo_full", "<--policies>", "<full,knorm>"]),
        (["--shares=4"], ["demo_full", "<--shares=4>"]),
        (["--layout", "mask"], ["demo_full", "<--layout>", "<mask>"]),
        (["--check"], ["demo_full", "<--check>"]),
    ):
        status, out, said = run(top, *arguments)
        expect((status, out) == (0, expected), f"{arguments}: status {status}, {out}, expected {expected}")
        expect(len(said) == 1 and said[0].startswith("Building"), f"{arguments}: said {said}")
        built = (top / "calls").read_text().splitlines()[-1].split()[-1]
        expect(built == expected[0], f"{arguments}: built {built}")
    expect(run(top, DEMO_STATUS="2")[0] == 2, "the status is that of the program")


def check_help(top: Path):
    for option in ("--help", "-h"):
        status, out, said = run(top, option)
        expect(status == 0 and not said and not (top / "calls").exists(), f"{option} builds nothing: {status}, {said}")
        expect(any("--full" in line for line in out) and all(len(line) <= 100 for line in out), f"{option}: {out}")


def check_failure(top: Path):
    status, out, said = run(top, BROKEN="1")
    expect(status == 1 and not out, f"a build that fails: status {status}, {out}")
    expect("a.cpp:1: error: planted" in said and said[-1] == "tools/demo.sh: building failed (status 1)", f"said {said}")


def check_progress(top: Path):
    status, out, said = run(top, SLOW="6.5")
    expect(status == 0 and said[1:] == ["building, 5 s: 1 of 4 parts are done"], f"a slow build: status {status}, said {said}")


def check_interruption(top: Path):
    for wanted, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        (top / "building").unlink(missing_ok=True)
        process = start(top, SLOW="120")
        while not ((top / "building").exists() and (top / "building").read_text().endswith("\n")):
            time.sleep(0.05)
        child = int((top / "building").read_text())
        process.send_signal(wanted)
        process.communicate(timeout=30)
        expect(process.returncode == expected, f"{wanted.name}: status {process.returncode}")
        gone = not Path(f"/proc/{child}").exists()
        expect(gone, f"{wanted.name} ends the build too")
        if not gone:
            os.kill(child, signal.SIGKILL)


with tempfile.TemporaryDirectory() as folder:
    here = Path(folder).resolve()
    write(here / "tools/demo.sh", Path(sys.argv[1]).read_text())
    write(here / "tools/setup.sh", "#!/bin/sh\n")
    write(here / "bin/cmake", CMAKE)
    for name in ("demo", "demo_full"):
        write(here / "build/release/bin" / name, PROGRAM)
    if shutil.which("setsid") is None:
        print("there is no setsid")
        sys.exit(1)
    for check in (check_help, check_choice, check_failure, check_progress, check_interruption):
        check(here)
finish()
