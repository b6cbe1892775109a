#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kvreplay may replace, what it leaves behind when it is interrupted, and what it says when it cannot write.

    writing_test.py PROGRAM
"""

import json
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from traces import read, write

PROGRAM = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else "kvreplay"  # tests run in other folders too
KNORM = ["--policy", "knorm", "--budget", "5"]
WAIT = 120  # seconds after which a process that should have done something is held to be stuck


def small_trace(seed=1, entries=12):
    dice = random.Random(seed)
    rows = lambda: [[[[dice.gauss(0, 1) for _ in range(4)] for _ in range(entries)] for _ in range(2)] for _ in range(2)]
    return {"keys": ("F32", rows()), "values": ("F32", rows())}


def with_header(path, header, data=b""):
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


class Blocked:
    """A run whose standard output is a pipe that is full: it waits there, with its results in the temporary file."""

    def __init__(self, *arguments):
        self.outlet, inlet = os.pipe()
        os.set_blocking(inlet, False)
        try:
            while True:
                os.write(inlet, b"." * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(inlet, True)
        self.run = subprocess.Popen([PROGRAM, *map(str, arguments), "--json"], stdout=inlet, stderr=subprocess.PIPE, text=True)
        os.close(inlet)

    def wait_for_another_file(self, folder, before):
        """Returns the name of the first file in the folder that was not there before."""
        for _ in range(WAIT * 100):
            if more := {path.name for path in folder.iterdir()} - before:
                return more.pop()
            if self.run.poll() is not None:
                raise AssertionError(f"the run has ended: {self.run.stderr.read()}")
            try:
                self.run.wait(0.01)
            except subprocess.TimeoutExpired:
                pass
        raise AssertionError("there is no temporary file")

    def end(self, number):
        self.run.send_signal(number)
        self.run.wait(WAIT)
        os.close(self.outlet)
        self.run.stderr.close()
        return self.run.returncode

    def go_on(self):
        """Reads what the run prints; returns its exit status."""
        with os.fdopen(self.outlet, "rb") as outlet:
            printed = outlet.read()
        self.run.wait(WAIT)
        self.run.stderr.close()
        assert json.loads(printed.lstrip(b"."))["policy"]
        return self.run.returncode


class Writing(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.trace = self.folder / "trace.safetensors"
        self.out = self.folder / "out.safetensors"
        write(self.trace, small_trace())

    def replay(self, *arguments, policy=KNORM, program=PROGRAM, **more):
        return subprocess.run([program, *map(str, arguments), *policy], capture_output=True, text=True, check=False, timeout=WAIT, **more)

    def files(self):
        """Every file of the folder: what kind it is, its mode and what it holds."""
        about = {}
        for path in sorted(self.folder.rglob("*")):
            known = path.lstat()
            holds = path.read_bytes() if stat.S_ISREG(known.st_mode) else os.readlink(path) if path.is_symlink() else None
            about[str(path)] = (known.st_ino, known.st_mode, holds)
        return about

    def refused(self, out, why, **more):
        before = self.files()
        done = self.replay(self.trace, "--out", out, **more)
        with self.subTest(out=out, said=done.stderr):
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
            self.assertTrue(done.stderr.startswith(f"kvreplay: --out = {out}, but it cannot be written: {why}"), done.stderr)
        self.assertEqual(self.files(), before)

    # What may not be replaced ---------------------------------------------------------------------------------------------
    def test_the_trace_is_not_replaced_under_any_of_its_names(self):
        (self.folder / "in").mkdir()
        os.link(self.trace, self.folder / "hard")
        os.symlink(self.trace, self.folder / "soft")
        why = "this run reads it, as "
        for out in (self.trace, self.folder / "hard", self.folder / "in" / ".." / "trace.safetensors"):
            self.refused(out, why)
        self.trace, real = self.folder / "soft", self.trace
        self.refused(real, why)

    def test_a_file_that_the_policy_reads_is_not_replaced(self):
        heads = self.folder / "heads.safetensors"
        write(heads, {"retrieval": ("F32", [[0.0, 1.0], [1.0, 0.0]])})
        self.refused(heads, "this run reads it, as ",
                     policy=["--policy", "duo_attention", "--set", "window=4", "--set", f"retrieval={heads}"])

    def test_what_is_no_regular_file_is_not_replaced(self):
        (self.folder / "inner").mkdir()
        os.mkfifo(self.folder / "fifo")
        write(self.folder / "old", small_trace(2))
        os.symlink("old", self.folder / "link")
        os.symlink("nowhere", self.folder / "dangling")
        self.refused("", "a file has a name")
        self.refused(self.folder / "inner", "it is a directory")
        self.refused(str(self.folder / "inner") + "/", "it is a directory")
        self.refused(self.folder / "fifo", "it is a FIFO")
        self.refused(self.folder / "link", "it is a symbolic link")
        self.refused(self.folder / "dangling", "it is a symbolic link")

    def test_a_device_is_not_replaced(self):
        """Run by nobody in particular: if this test ever fails, the machine keeps its devices."""
        program, more = PROGRAM, {}
        if os.geteuid() == 0:
            program = shutil.copy(PROGRAM, self.folder)
            self.folder.chmod(0o755)
            more = {"user": 65534, "group": 65534, "extra_groups": []}
        for device in ("/dev/null", "/dev/full"):
            self.refused(device, "it is a device", program=program, **more)

    def test_where_no_file_can_be_made_nothing_is_written(self):
        self.refused(self.folder / "none" / "out", "No such file or directory")
        self.refused(self.trace / "out", "Not a directory")
        self.refused(self.folder / ("x" * 300), "File name too long")

    def test_a_trace_that_is_refused_leaves_the_old_results(self):
        self.out.write_bytes(b"old")
        with_header(self.trace, b"{}")
        before = self.files()
        self.assertEqual(self.replay(self.trace, "--out", self.out).returncode, 2)
        self.assertEqual(self.files(), before)

    # What is replaced -----------------------------------------------------------------------------------------------------
    def test_a_file_that_is_replaced_keeps_its_mode_and_whoever_has_it_open_keeps_the_old_one(self):
        self.assertEqual(self.replay(self.trace, "--out", self.out).returncode, 0)
        new = self.out.read_bytes()
        for mode in (0o600, 0o640, 0o664, 0o666, 0o400):
            self.out.unlink()
            self.out.write_bytes(b"old")
            self.out.chmod(mode)
            with self.out.open("rb") as reader:
                done = self.replay(self.trace, "--out", self.out, preexec_fn=lambda: os.umask(0o027))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(reader.read(), b"old")
            self.assertEqual((oct(stat.S_IMODE(self.out.stat().st_mode)), self.out.read_bytes()), (oct(mode), new))

    def test_a_new_file_has_the_mode_that_the_umask_leaves(self):
        for umask in (0o022, 0o077, 0o002, 0o137):
            self.out.unlink(missing_ok=True)
            self.assertEqual(self.replay(self.trace, "--out", self.out, preexec_fn=lambda mask=umask: os.umask(mask)).returncode, 0)
            self.assertEqual(oct(stat.S_IMODE(self.out.stat().st_mode)), oct(0o666 & ~umask))

    def test_a_name_as_long_as_the_file_system_allows_can_be_written(self):
        out = self.folder / ("x" * 255)
        self.assertEqual(self.replay(self.trace, "--out", out).stderr, "")
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"trace.safetensors", out.name})

    def test_a_name_without_a_folder_is_of_the_folder_that_the_program_runs_in(self):
        self.assertEqual(self.replay(self.trace, "--out", "here", cwd=self.folder).returncode, 0)
        self.assertIn("keep.ordinals", read(self.folder / "here"))

    # Two at once ----------------------------------------------------------------------------------------------------------
    def two_traces(self, entries=12):
        other = self.folder / "other.safetensors"
        write(self.trace, small_trace(1, entries))
        write(other, small_trace(2, entries))
        alone = []
        for trace in (self.trace, other):
            self.assertEqual(self.replay(trace, "--out", self.out).returncode, 0)
            alone.append(self.out.read_bytes())
            self.out.unlink()
        self.assertNotEqual(*alone)
        return other, alone

    def test_a_run_that_ends_during_another_does_not_touch_its_results(self):
        other, (first, second) = self.two_traces()
        before = {path.name for path in self.folder.iterdir()}
        slow = Blocked(self.trace, *KNORM, "--out", self.out)
        slow.wait_for_another_file(self.folder, before)
        self.assertEqual(self.replay(other, "--out", self.out).returncode, 0)
        self.assertEqual(self.out.read_bytes(), second)
        self.assertEqual(slow.go_on(), 0)
        self.assertEqual(self.out.read_bytes(), first)
        self.assertEqual({path.name for path in self.folder.iterdir()}, before | {self.out.name})

    def test_of_runs_at_once_the_file_is_wholly_one(self):
        other, alone = self.two_traces(600)
        for _ in range(8):
            self.out.unlink(missing_ok=True)
            runs = [subprocess.Popen([PROGRAM, trace, *KNORM, "--out", self.out], stdout=subprocess.DEVNULL)
                    for trace in (self.trace, other, self.trace, other)]
            self.assertEqual([run.wait(WAIT) for run in runs], [0] * 4)
            self.assertIn(self.out.read_bytes(), alone)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {self.trace.name, other.name, self.out.name})

    # Signals --------------------------------------------------------------------------------------------------------------
    def test_a_signal_ends_the_run_and_leaves_what_was_there(self):
        self.out.write_bytes(b"old")
        before = self.files()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = Blocked(self.trace, *KNORM, "--out", self.out)
            run.wait_for_another_file(self.folder, {self.trace.name, self.out.name})
            self.assertEqual(run.end(number), -number)
            self.assertEqual(self.files(), before)

    def test_a_signal_removes_results_and_page(self):
        page = self.folder / "page.html"
        before = self.files()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = Blocked(self.trace, *KNORM, "--out", self.out, "--html", page)
            first = run.wait_for_another_file(self.folder, {self.trace.name})
            run.wait_for_another_file(self.folder, {self.trace.name, first})
            self.assertEqual(run.end(number), -number)
            self.assertEqual(self.files(), before)

    def test_a_reader_of_the_output_that_goes_away_leaves_what_was_there(self):
        self.out.write_bytes(b"old")
        before = self.files()
        run = Blocked(self.trace, *KNORM, "--out", self.out)
        run.wait_for_another_file(self.folder, {self.trace.name, self.out.name})
        os.close(run.outlet)
        self.assertEqual(run.run.wait(WAIT), -signal.SIGPIPE)
        run.run.stderr.close()
        self.assertEqual(self.files(), before)

    def test_a_signal_that_is_ignored_stays_ignored(self):
        run = Blocked(self.trace, *KNORM, "--out", self.out)
        run.end(signal.SIGKILL)
        before = {path.name for path in self.folder.iterdir()}
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it
        try:
            run = Blocked(self.trace, *KNORM, "--out", self.out)
        finally:
            signal.signal(signal.SIGINT, ignored)
        run.wait_for_another_file(self.folder, before)
        run.run.send_signal(signal.SIGINT)
        self.assertEqual(run.go_on(), 0)
        self.assertIn("keep.ordinals", read(self.out))

    def test_what_a_killed_run_leaves_is_in_nobodys_way(self):
        run = Blocked(self.trace, *KNORM, "--out", self.out)
        left = run.wait_for_another_file(self.folder, {self.trace.name})
        self.assertEqual(run.end(signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {self.trace.name, left})
        self.assertTrue(left.startswith(self.out.name + ".") and left.endswith(".unfinished"), left)
        for _ in range(2):
            self.assertEqual(self.replay(self.trace, "--out", self.out).returncode, 0)
            self.assertIn("keep.ordinals", read(self.out))
        self.assertEqual({path.name for path in self.folder.iterdir()}, {self.trace.name, left, self.out.name})

    def test_files_under_the_names_of_earlier_releases_are_not_touched(self):
        beside = Path(str(self.out) + ".unfinished")
        beside.write_bytes(b"mine")
        self.assertEqual(self.replay(self.trace, "--out", self.out).returncode, 0)
        self.assertEqual(beside.read_bytes(), b"mine")

    # A disk that is full --------------------------------------------------------------------------------------------------
    def test_a_file_that_may_not_grow_is_an_error_that_leaves_the_old_one(self):
        self.out.write_bytes(b"old")
        before = self.files()
        for most in (0, 4, 200, 1000):
            done = self.replay(self.trace, "--out", self.out, preexec_fn=lambda size=most: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertTrue(done.stderr.startswith(f"kvreplay: --out = {self.out}, but it cannot be written to its end: "), done.stderr)
            self.assertEqual(self.files(), before)

    def test_what_is_printed_and_does_not_arrive_is_an_error_that_leaves_the_old_file(self):
        self.out.write_bytes(b"old")
        before = self.files()
        ways = ([self.trace, "--out", self.out, *KNORM], [self.trace, "--out", self.out, "--json", *KNORM], [self.trace, "--json", *KNORM],
                [self.trace, "--describe"], [self.trace, "--describe", "--json"], ["--list"], ["--list", "--json"], ["--help"])
        for arguments in ways:
            with open("/dev/full", "wb") as full, self.subTest(arguments=arguments):
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=WAIT)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                self.assertTrue(done.stderr.startswith("kvreplay: "), done.stderr)
            self.assertEqual(self.files(), before)

    def test_without_standard_output_nothing_is_printed_into_the_results(self):
        close = lambda *which: lambda: [os.close(one) for one in which]
        for arguments in ([*KNORM], [*KNORM, "--json"]):
            before = self.files()
            done = subprocess.run([PROGRAM, self.trace, *arguments, "--out", self.out], stderr=subprocess.PIPE, text=True, check=False,
                                  timeout=WAIT, preexec_fn=close(0, 1))
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertEqual(self.files(), before)

    def test_an_error_that_cannot_be_told_is_an_exit_status(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, self.trace, *KNORM, "--out", self.folder], stderr=full, check=False, timeout=WAIT)
        self.assertEqual(done.returncode, 2)

    # Headers --------------------------------------------------------------------------------------------------------------
    def test_brackets_that_nest_200000_deep_are_refused(self):
        deep = b"[" * 200_000 + b"]" * 200_000
        maps = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
        tensor = b'{"keys":{"dtype":"F32","shape":%s,"data_offsets":[0,4]}}'
        for header in (deep, tensor % deep, b'{"keys":' + deep + b"}", b'{"__metadata__":' + deep + b"}", maps, b'{"keys":' + deep[:200_000]):
            with_header(self.trace, header, b"\0" * 4)
            for arguments in (["--describe"], KNORM):
                done = subprocess.run([PROGRAM, self.trace, *arguments], capture_output=True, text=True, check=False, timeout=WAIT)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                self.assertIn("header = ", done.stderr)

    def test_brackets_inside_of_names_are_no_nesting(self):
        tensors = small_trace()
        tensors['external.[[[[[[[[[[[[[[[[[[[["{{{{{{{{\\'] = ("F32", [1.0] * 12)
        write(self.trace, tensors, {"[" * 100: '"' + "{" * 100})
        self.assertEqual(self.replay(self.trace, "--out", self.out).stderr, "")


if __name__ == "__main__":
    unittest.main()
