#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tools may replace, and what they leave behind when they are interrupted or the disk is full: replace_file_test.py"""
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

from replace_file import CannotReplace, check_replaceable, replace_file  # noqa: E402

# A process that writes "new", says so, and waits for a line before it ends.
WRITER = """
import sys
from replace_file import replace_file
with replace_file(sys.argv[1]) as file:
    file.write(b"new")
    print("written", flush=True)
    sys.stdin.readline()
"""


class ReplaceFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def replace(self, content=b"new", inputs=()):
        with replace_file(self.out, inputs) as file:
            file.write(content)

    def start_writer(self):
        run = subprocess.Popen([sys.executable, "-B", "-c", WRITER, self.out], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(TOOLS)})
        self.assertEqual(run.stdout.readline(), b"written\n")
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.stdin.close)
        return run

    def test_a_file_has_its_name_when_it_is_whole(self):
        self.out.write_bytes(b"old")
        with replace_file(self.out) as file:
            file.write(b"new")
            self.assertEqual(self.out.read_bytes(), b"old")
            self.assertEqual(len(self.names()), 2)
        self.assertEqual((self.out.read_bytes(), self.names()), (b"new", ["out"]))

    def test_an_exception_leaves_what_was_there(self):
        self.out.write_bytes(b"old")
        for kind in (ValueError, KeyboardInterrupt):
            with self.assertRaises(kind), replace_file(self.out) as file:
                file.write(b"new")
                raise kind
            self.assertEqual((self.out.read_bytes(), self.names()), (b"old", ["out"]))

    def test_modes(self):
        before = os.umask(0o027)
        self.addCleanup(os.umask, before)
        self.replace()
        self.assertEqual(stat.S_IMODE(self.out.stat().st_mode), 0o640)
        for mode in (0o600, 0o644, 0o400):
            self.out.chmod(mode)
            self.replace()
            self.assertEqual(stat.S_IMODE(self.out.stat().st_mode), mode)

    def test_what_may_not_be_replaced_is_refused_and_stays(self):
        source = self.folder / "source"
        source.write_bytes(b"mine")
        (self.folder / "inner").mkdir()
        (self.folder / "link").symlink_to("source")
        os.link(source, self.folder / "hard")
        os.mkfifo(self.folder / "fifo")
        before = self.names()
        for path, why in (("", "a file has a name"), (self.folder / "inner", "it is a directory"), (self.folder / "link", "it is a symbolic link"),
                          (self.folder / "fifo", "it is a FIFO"), (source, "this run reads it"), (self.folder / "hard", "this run reads it"),
                          (source / "out", "Not a directory"), (self.folder / "none" / "out", "No such file or directory")):
            with self.subTest(path=path), self.assertRaisesRegex(CannotReplace, why), replace_file(path, [source]):
                self.fail("the block ran")
            self.assertEqual((self.names(), source.read_bytes()), (before, b"mine"))
        with self.assertRaisesRegex(CannotReplace, "it is a device"):
            check_replaceable("/dev/null")  # asked only: nothing can happen to it

    def test_of_two_writers_the_file_is_wholly_the_last_ones(self):
        run = self.start_writer()
        self.replace(b"mine")
        self.assertEqual(self.out.read_bytes(), b"mine")
        run.communicate(b"\n", timeout=60)
        self.assertEqual((run.returncode, self.out.read_bytes(), self.names()), (0, b"new", ["out"]))

    def test_signals_leave_what_was_there(self):
        self.out.write_bytes(b"old")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = self.start_writer()
            run.send_signal(number)
            self.assertEqual(run.wait(60), -number)
            self.assertEqual((self.out.read_bytes(), self.names()), (b"old", ["out"]))

    def test_what_a_killed_writer_leaves_is_in_nobodys_way(self):
        run = self.start_writer()
        run.kill()
        run.wait(60)
        self.assertEqual(len(self.names()), 1)
        self.replace()
        self.assertEqual((self.out.read_bytes(), len(self.names())), (b"new", 2))

    def test_a_disk_that_is_full_leaves_what_was_there(self):
        self.out.write_bytes(b"old")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with self.assertRaises(OSError):
                self.replace(b"new" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual((self.out.read_bytes(), self.names()), (b"old", ["out"]))

    def test_other_threads_may_write_too(self):
        other = threading.Thread(target=self.replace)
        other.start()
        other.join()
        self.assertEqual(self.out.read_bytes(), b"new")


if __name__ == "__main__":
    unittest.main()
