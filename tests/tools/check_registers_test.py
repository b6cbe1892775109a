# SPDX-License-Identifier: Apache-2.0
"""What tests/cuda/check_registers.py says of made-up words of ptxas, and of a made-up compiler."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[1] / "cuda" / "check_registers.py"
sys.path.insert(0, str(SCRIPT.parent))
import check_registers  # noqa: E402

KERNEL = "_ZN8kvpolicy6detail10run_kernelINS0_5plainENS_14static_threadsILi{threads}EEEJLi900EEEEvT_"


def words(registers, spills=0, threads=256, name=KERNEL):
    name = name.format(threads=threads)
    return (f"ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function '{name}' for 'sm_90'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {spills} bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers\n")


def cubin(name, size):
    """An ELF file of two sections: the names, and a kernel's code of so many bytes, which is left out."""
    names = b"\0.shstrtab\0.text." + name.encode() + b"\0"
    head = b"\x7fELF" + bytes(36) + struct.pack("<Q", 64) + bytes(10) + struct.pack("<HHH", 64, 2, 0)
    sections = struct.pack("<IIQQQQ", 1, 3, 0, 0, 192, len(names)) + bytes(24)
    sections += struct.pack("<IIQQQQ", 11, 1, 0, 0, 0, size) + bytes(24)
    return head + sections + names


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

    SELECTION = ("_ZN8kvpolicy2v06detail10run_kernelINS1_13select_kernelINS1_13decision_ruleINS0_7nothingES4_EELNS1_"
                 "7selectsE0EEENS0_14static_threadsILi{threads}EEEJLi900EEEEvT_")

    def test_as_many_blocks_as_the_limits_say_must_fit(self):
        good = self.read(words(80, name=self.SELECTION))
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("limits of 1 kernels", good.stdout)
        bad = self.read(words(81, name=self.SELECTION))
        self.assertEqual(bad.returncode, 1)
        self.assertIn("2 blocks on a multiprocessor, but 3 must fit (top_k of 288 lanes", bad.stderr)

    def test_bytes_of_code_are_read_from_a_cubin_and_judged(self):
        name = self.SELECTION.format(threads=256)
        for size, complaints in ((61440, 0), (61441, 1)):
            sizes = check_registers.code_sizes(cubin(name, size))
            self.assertEqual(sizes, {name: size})
            limits = json.loads(check_registers.LIMITS.read_text(encoding="utf-8"))
            self.assertEqual(len(list(check_registers.too_much_code(sizes, limits))), complaints)

    def test_shared_memory_and_threads_limit_blocks_too(self):
        self.assertEqual(check_registers.fitting(32, 256, 0), 8)
        self.assertEqual(check_registers.fitting(32, 256, 227 * 1024), 1)
        self.assertEqual(check_registers.fitting(84, 256, 0), 2)

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
