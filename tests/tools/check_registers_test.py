# SPDX-License-Identifier: Apache-2.0
"""What tests/cuda/check_registers.py says of made-up words of ptxas, and of a made-up compiler."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[1] / "cuda" / "check_registers.py"
KERNEL = "_ZN8kvpolicy6detail10run_kernelINS0_5plainENS_14static_threadsILi{threads}EEEJLi900EEEEvT_"


def words(registers, spills=0, threads=256, name=KERNEL):
    name = name.format(threads=threads)
    return (f"ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function '{name}' for 'sm_90'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {spills} bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers\n")


class Registers(unittest.TestCase):
    def read(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(text)
            file.flush()
            command = [sys.executable, "-B", SCRIPT, "--read", file.name]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_a_kernel_may_have_what_its_threads_can_have(self):
        good = self.read(words(255) + words(128, threads=512))
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("2 kernels, at most 255 registers, 0 complaints", good.stdout)

    def test_more_registers_than_the_threads_can_have(self):
        bad = self.read(words(40) + words(129, threads=512))
        self.assertEqual(bad.returncode, 1)
        self.assertIn("sm_90: 129 registers, but 512 threads have 128 each: _ZN8kvpolicy", bad.stderr)

    def test_spills_of_any_kernel(self):
        bad = self.read(words(40, spills=8, name="_ZN3cub6select"))
        self.assertEqual(bad.returncode, 1)
        self.assertIn("sm_90: spills 16 bytes: _ZN3cub6select", bad.stderr)

    def test_a_kernel_of_others_has_no_threads_in_its_name(self):
        self.assertEqual(self.read(words(255, name="_ZN3cub6selectILi1024EEvv")).returncode, 0)

    def test_no_kernel_is_an_error(self):
        self.assertEqual(self.read("ptxas info    : 0 bytes gmem\n").returncode, 1)

    def run_compiler(self, text, status=0):
        program = f"import sys; sys.stderr.write({text!r}); sys.exit({status})"
        command = [sys.executable, "-B", SCRIPT, sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_the_compiler_is_run_and_its_own_words_are_shown(self):
        good = self.run_compiler(words(40) + "x.cu: warning: odd\n")
        self.assertEqual((good.returncode, good.stderr), (0, "x.cu: warning: odd\n"))
        self.assertEqual(self.run_compiler(words(40, spills=4)).returncode, 1)
        self.assertEqual(self.run_compiler("no\n", status=3).returncode, 3)


if __name__ == "__main__":
    unittest.main()
