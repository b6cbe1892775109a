# SPDX-License-Identifier: Apache-2.0
"""Compiles a CUDA source, and fails if a kernel spills registers or has more of them than its threads can have.

check_registers.py NVCC ARGUMENTS...    runs the command, which must have -Xptxas=-v, and reads what ptxas says
check_registers.py --read FILE          reads what ptxas said

A multiprocessor has 65,536 registers. The threads of a kernel are in its name: run_kernel<..., static_threads<256>, ...>.
"""

import re
import subprocess
import sys

REGISTERS = 65536
UNIT = 8  # a thread has a multiple of so many


def kernels(text):
    """What ptxas says of each kernel: (architecture, mangled name, bytes of spills, registers)."""
    found = []
    arch, name, spills = "", "", 0
    for line in text.splitlines():
        if begin := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            name, arch = begin.groups()
            spills = 0
        elif spilled := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills += int(spilled[1]) + int(spilled[2])
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            found.append((arch, name, spills, int(used[1])))
            name = ""
    return found


def threads_of(name):
    """The threads of a kernel of the library: the last ones in its mangled name. None: it is not one."""
    counts = re.findall(r"(?:static_threads|threads_up_to)ILi(\d+)E", name)
    return int(counts[-1]) if "run_kernel" in name and counts else None


def complaints(found):
    for arch, name, spills, registers in found:
        if spills:
            yield f"{arch}: spills {spills} bytes: {name}"
        threads = threads_of(name)
        if threads and -(-registers // UNIT) * UNIT * threads > REGISTERS:
            most = REGISTERS // threads // UNIT * UNIT
            yield f"{arch}: {registers} registers, but {threads} threads have {most} each: {name}"


def judge(text):
    found = kernels(text)
    if not found:
        print("check_registers: ptxas says nothing of any kernel", file=sys.stderr)
        return 1
    wrong = list(complaints(found))
    for line in wrong:
        print(f"check_registers: {line}", file=sys.stderr)
    most = max(registers for _, _, _, registers in found)
    print(f"check_registers: {len(found)} kernels, at most {most} registers, {len(wrong)} complaints")
    return 1 if wrong else 0


def main(arguments):
    if arguments[:1] == ["--read"]:
        with open(arguments[1], encoding="utf-8") as file:
            return judge(file.read())
    run = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False)
    told = [line for line in run.stderr.splitlines() if not re.match(r"ptxas info\s*:|\s+\d+ bytes stack frame", line)]
    if told:
        print("\n".join(told), file=sys.stderr)
    return run.returncode or judge(run.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
