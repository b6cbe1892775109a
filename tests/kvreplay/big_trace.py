#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures kvreplay on a trace of many GB: what it needs in memory, and where its time goes.

    big_trace.py write FILE [--layers 36] [--heads 8] [--entries 30000] [--dims 128] [--gates]
    big_trace.py measure [--cold] PROGRAM FILE [kvreplay's options]

`write` makes keys and values (BF16), the last 32 query rows of 4 heads a KV head (BF16), and attention mass (F32), with --gates also write
gates of 0.0005 to 0.002 (F32), of random bytes. `measure` prints the peak of RssAnon (memory that is no mapped page of a file), the wall time,
and the parts of it; with --cold none of the trace is in memory at the start.
"""

import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

GROUP, ROWS = 4, 32
BLOCK = 1 << 24
HIGH = bytes(random.Random(1).choice((0x3D, 0x3E, 0x3F, 0x40, 0xBD, 0xBE, 0xBF, 0xC0)) for _ in range(256))
MASS = bytes(random.Random(2).choice((0x3A, 0x3B, 0x3C, 0x3D)) for _ in range(256))


def numbers(seed, size, wide):
    """Random bytes whose high ones make numbers of ordinary size: 0.03 to 4, or 0.0005 to 0.1 for F32."""
    block = bytearray(random.Random(seed).randbytes(size))
    block[wide - 1 :: wide] = bytes(block[wide - 1 :: wide]).translate(HIGH if wide == 2 else MASS)
    return block


def write(path, layers, heads, entries, dims, gates):
    shapes = {
        "keys": ("BF16", [layers, heads, entries, dims]),
        "values": ("BF16", [layers, heads, entries, dims]),
        "recent_queries": ("BF16", [layers, heads * GROUP, ROWS, dims]),
        "attention_mass": ("F32", [layers, heads, entries]),
    }
    if gates:
        shapes["gate"] = ("F32", [layers, heads, entries])
    header, at = {"__metadata__": {"model": "random"}}, 0
    for name, (dtype, shape) in shapes.items():
        end = at + math.prod(shape) * (2 if dtype == "BF16" else 4)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    blocks = {"BF16": [numbers(i, BLOCK + 2 * 1009 * i, 2) for i in range(5)], "F32": [numbers(9, BLOCK, 4)]}
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (dtype, _) in shapes.items():
            left, turn = header[name]["data_offsets"][1] - header[name]["data_offsets"][0], 0
            while left > 0:  # blocks of odd lengths in turn, so that no two layers are alike
                block = blocks[dtype][turn % len(blocks[dtype])]
                file.write(memoryview(block)[: min(left, len(block))])
                left, turn = left - len(block), turn + 1
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


class Peaks:
    """The highest RssAnon and RssFile of a process, asked 200 times a second."""

    def __init__(self, process):
        self.peak = {"RssAnon": 0, "RssFile": 0}
        self.thread = threading.Thread(target=self.watch, args=(process,))
        self.thread.start()

    def watch(self, process):
        while process.poll() is None:
            try:
                for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name in self.peak and value.split():
                        self.peak[name] = max(self.peak[name], int(value.split()[0]) * 1024)
            except (OSError, ProcessLookupError):
                return
            time.sleep(0.005)


def forget(path):
    """The system's copy of a file's pages is given back."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def measure(program, trace, options):
    begin = time.monotonic()
    process = subprocess.Popen([program, trace, "--json", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks = Peaks(process)
    out, errors = process.communicate()
    wall = 1e3 * (time.monotonic() - begin)
    peaks.thread.join()
    if process.returncode != 0:
        sys.exit(errors.strip())
    ms = json.loads(out)["ms"]
    print(f"{' '.join(options)}")
    print(f"  wall {wall:.0f} ms: " + ", ".join(f"{name} {value:.0f}" for name, value in ms.items()))
    print(f"  decide + apply {100 * (ms['decide'] + ms['apply']) / wall:.1f} % of the wall time")
    print(f"  peak RssAnon {peaks.peak['RssAnon'] / 1e6:.0f} MB, RssFile {peaks.peak['RssFile'] / 1e6:.0f} MB")


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "measure":
        cold = sys.argv[2] == "--cold"
        program, trace, *options = sys.argv[2 + cold :]
        if cold:
            forget(trace)
        return measure(program, trace, options)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "measure"])
    parser.add_argument("file", type=Path)
    for name, value in (("layers", 36), ("heads", 8), ("entries", 30000), ("dims", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--gates", action="store_true")
    given = parser.parse_args()
    if given.what != "write":
        parser.error("measure takes a program, a trace and options")
    write(given.file, given.layers, given.heads, given.entries, given.dims, given.gates)
    return None


if __name__ == "__main__":
    main()
