# SPDX-License-Identifier: Apache-2.0
"""What tests of kvreplay do with the program: they write a trace, run it, and look at what came of it."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from traces import read, write_arrays

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "kvreplay"


def called(*arguments, **more):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False, **more)


def listed():
    """What the program lists, by name."""
    return {one["name"]: one for one in json.loads(called("--list", "--json").stdout)}


class Runs(unittest.TestCase):
    """A trace and the results of the last run over it. `fields` are the policy's."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path, self.out = self.folder / "trace.safetensors", self.folder / "out.safetensors"

    def write(self, trace, metadata=None, without=(), **more):
        tensors = {**trace.stored, **more}
        write_arrays(self.path, {name: one for name, one in tensors.items() if name not in without}, metadata)

    def run_program(self, *arguments, **fields):
        self.out.unlink(missing_ok=True)
        sets = []
        for name, value in fields.items():
            sets += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return called(self.path, "--out", self.out, "--json", *arguments, *sets)

    def result_of(self, done, about=None):
        """The file that a run left which said nothing else."""
        self.assertEqual((done.returncode, done.stderr), (0, ""), about)
        self.told = json.loads(done.stdout)
        return read(self.out)

    def replay(self, *arguments, **fields):
        return self.result_of(self.run_program(*arguments, **fields), (arguments, fields))

    def replay_in_threads(self, threads, *arguments, **fields):
        """The result and the warnings by each number of threads, which must be the same."""
        results = []
        for count in threads:
            done = self.run_program(*arguments, "--threads", count, **fields)
            self.assertEqual(done.returncode, 0, (arguments, fields, done.stderr))
            results.append((self.out.read_bytes(), done.stderr))
        self.assertEqual(results, results[:1] * len(results), "threads change the result")
        self.told, self.warnings = json.loads(done.stdout), done.stderr
        return read(self.out)

    def fails(self, done, *texts, **about):
        """The run ended with one line, which has these texts, and left no file."""
        with self.subTest(said=done.stderr, **about):
            self.assertEqual((done.returncode, done.stderr.count("\n"), self.out.exists()), (2, 1, False))
            for text in texts:
                self.assertIn(text, done.stderr)

    def refused(self, text, *arguments, **fields):
        self.fails(self.run_program(*arguments, **fields), text, arguments=arguments, fields=fields)
