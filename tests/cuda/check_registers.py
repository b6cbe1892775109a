# SPDX-License-Identifier: Apache-2.0
"""Compiles a CUDA source, and fails if a kernel spills registers or has more of them than its threads can have.

check_registers.py NVCC ARGUMENTS...    runs the command, which must have -Xptxas=-v, and reads what ptxas says
check_registers.py --read FILE          reads what ptxas said

A multiprocessor has 65,536 registers. The threads of a kernel are in its name: run_kernel<..., static_threads<256>, ...>.

kernel_limits.json says of some kernels how many blocks must fit on a multiprocessor of compute capability 9.0, by their
registers and by the shared memory that they are launched with, and how many bytes of code they may have. The code is read
from the object, where a cuobjdump is in PATH. Toolkits without it: it is in PyPI's nvidia-cuda-cuobjdump.
"""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

REGISTERS = 65536
UNIT = 8  # a thread has a multiple of so many
SHARED = 228 * 1024  # bytes of a multiprocessor, of which each block takes RESERVED more than it asks for
RESERVED = 1024
THREADS = 2048
LIMITS = pathlib.Path(__file__).with_name("kernel_limits.json")


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


def limits_of(name, limits):
    return [each for each in limits if re.search(each["kernel"], name)]


def fitting(registers, threads, shared):
    """How many blocks fit on a multiprocessor."""
    of_registers = REGISTERS // (-(-registers // UNIT) * UNIT * threads)
    return min(of_registers, SHARED // (shared + RESERVED), THREADS // threads)


def too_few_blocks(found, limits):
    for arch, name, _, registers in found:
        threads = threads_of(name)
        for limit in limits_of(name, limits) if arch == "sm_90" and threads else []:
            blocks = fitting(registers, threads, limit.get("shared", 0))
            if blocks < limit.get("blocks", 0):
                must = f"but {limit['blocks']} must fit ({limit['what']})"
                yield f"{arch}: {blocks} blocks on a multiprocessor, {must}: {name}"


def too_much_code(sizes, limits):
    for name, size in sorted(sizes.items()):
        for limit in limits_of(name, limits):
            if size > limit.get("code", size):
                yield f"{size} bytes of code, but at most {limit['code']} are wanted ({limit['what']}): {name}"


def code_sizes(elf):
    """The bytes of each kernel's code in a cubin, which is an ELF file of 64 bits."""
    begin, size, count, names = (struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58))
    heads = [struct.unpack_from("<IIQQQQ", elf, begin + i * size) for i in range(count)]
    found = {}
    for name, _, _, _, _, length in heads:
        at = heads[names][4] + name
        text = elf[at : elf.index(b"\0", at)].decode()
        if text.startswith(".text."):
            found[text[len(".text.") :]] = length
    return found


def object_of(arguments):
    """The object that the compiler was asked for, if there is one and a cuobjdump can read it."""
    if "-o" not in arguments[:-1] or not shutil.which("cuobjdump"):
        return None
    made = pathlib.Path(arguments[arguments.index("-o") + 1])
    return made.resolve() if made.suffix == ".o" and made.exists() else None


def sizes_in(made):
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cuobjdump", "-xelf", "sm_90", made], cwd=folder, capture_output=True, check=False)
        for cubin in pathlib.Path(folder).glob("*.cubin"):
            found |= code_sizes(cubin.read_bytes())
    return found


def judge(text, sizes=None):
    found = kernels(text)
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    if not found:
        print("check_registers: ptxas says nothing of any kernel", file=sys.stderr)
        return 1
    wrong = [*complaints(found), *too_few_blocks(found, limits), *too_much_code(sizes or {}, limits)]
    for line in wrong:
        print(f"check_registers: {line}", file=sys.stderr)
    most = max(registers for _, _, _, registers in found)
    limited = sum(bool(limits_of(name, limits)) for _, name, _, _ in found)
    code = f"code of {len(sizes)}" if sizes else "code of none, for want of a cuobjdump,"
    print(f"check_registers: {len(found)} kernels, at most {most} registers, {len(wrong)} complaints")
    print(f"check_registers: limits of {limited} kernels and {code} were read")
    return 1 if wrong else 0


def main(arguments):
    if arguments[:1] == ["--read"]:
        with open(arguments[1], encoding="utf-8") as file:
            return judge(file.read())
    run = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False)
    told = [line for line in run.stderr.splitlines() if not re.match(r"ptxas info\s*:|\s+\d+ bytes stack frame", line)]
    if told:
        print("\n".join(told), file=sys.stderr)
    made = object_of(arguments) if run.returncode == 0 else None
    return run.returncode or judge(run.stderr, made and sizes_in(made))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
