# SPDX-License-Identifier: Apache-2.0
"""Compiles a source as it is, and once for each form that must not compile.

    expect_forms.py [--first] COMMAND... SOURCE       --first: the source as it is, and its first form

A form is two lines of the source: a macro that it defines, and the text of the error, in which ' ... ' is any text.

    // form MEMBER: kv::sinks forces() { return {}; }
    //   this scorer's member `forces` is not const, but ... `forces() const`

The compiler must print exactly one error (of nvcc, which does not stop at it, the first counts), within the first 20
lines, and its text must be this one. Exit status 1 if any does not.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FORM = re.compile(r"^// form ([A-Z]+):[ ]?(.*)\n//   (.+)$", re.MULTILINE)
LINES = 20


def complaint(command, macro, text, wanted, one, folder):
    """What is wrong with the compiler's answer, or None."""
    form = Path(folder) / "form.hpp"  # nvcc takes a comma in an option for the end of it
    form.write_text(f"#define {macro} {text}\n", encoding="utf-8")
    define = [f"-D{macro}={text}"] if one else ["-include", str(form)]
    ran = subprocess.run([*command, *define], capture_output=True, text=True, check=False)
    said = (ran.stdout + ran.stderr).splitlines()
    if not one:  # nvcc prints a back quote as a question mark
        said = [line.replace("?", "`") for line in said]
    errors = [at for at, line in enumerate(said) if re.search(r"\berror\b\s*:", line)]
    if ran.returncode == 0:
        return "it compiled"
    if not errors or (one and len(errors) != 1):
        return f"{len(errors)} errors:\n" + "\n".join([said[at] for at in errors] or said[:LINES])
    if errors[0] >= LINES:
        return f"the error is line {errors[0] + 1} of the output"
    pattern = ".*".join(re.escape(part) for part in wanted.split(" ... "))
    if not re.search(pattern, said[errors[0]]):
        return "another error:\n" + said[errors[0]]
    return None


def precompiled(command, text, folder):
    """The command with the source's headers precompiled, which takes three quarters of the time away. If the command
    includes a header by itself, that one is precompiled already."""
    if "-include" in command:
        return command
    header = Path(folder) / "headers.hpp"
    header.write_text("".join(f"{line}\n" for line in re.findall(r"^#include .*$", text, re.MULTILINE)), encoding="utf-8")
    options = [each for each in command[:-1] if each != "-fsyntax-only"]
    clang = "clang" in command[0]
    made = folder + ("/headers.pch" if clang else "/headers.hpp.gch")
    ran = subprocess.run([*options, "-x", "c++-header", str(header), "-o", made], capture_output=True, check=False)
    use = ["-include-pch", made] if clang else ["-include", str(header)]
    return [*command[:-1], *use, command[-1]] if ran.returncode == 0 else command


def main(arguments):
    first = arguments[0] == "--first"
    *command, source = arguments[first:]
    text = Path(source).read_text(encoding="utf-8")
    forms = FORM.findall(text)
    if not forms:
        print(f"{source}: no forms")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        one = "nvcc" not in command[0]
        command = [*command, source]
        return refused(forms[:1] if first else forms, precompiled(command, text, folder) if one else command, one, folder)


def refused(forms, command, one, folder):
    """Compiles everything and prints what is wrong; the exit status."""
    source = command[-1]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = int(ran.returncode != 0)
    if failed:
        print(f"{source}: as it is, it does not compile\n{ran.stdout}{ran.stderr}"[:4000])
    for macro, text, wanted in forms:
        wrong = complaint(command, macro, text, wanted, one, folder)
        if wrong:
            failed += 1
            print(f"{source}: {macro}={text}\n  wanted: {wanted}\n  {wrong}\n")
    print(f"{len(forms)} forms, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
