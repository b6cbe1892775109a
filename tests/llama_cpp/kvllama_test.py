#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kvllama says about options that it cannot serve, and what it prints with those that it can.

    kvllama_test.py PROGRAM
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)


class Kvllama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = f"{cls.folder.name}/tinylm.gguf"
        subprocess.run([PROGRAM, "--write-tinylm", cls.model], check=True, stdout=subprocess.DEVNULL)
        cls.text = f"{cls.folder.name}/prompt.txt"
        pathlib.Path(cls.text).write_text("one two three. " * 40)  # 600 bytes, a token each

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_it(self, *options):
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        return subprocess.run([PROGRAM, *map(str, options)], capture_output=True, text=True, errors="replace", env=environment)

    def refused(self, message, *options):
        """One line, nothing printed before it."""
        done = self.run_it(*options)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", message + "\n"))

    def test_files_that_are_none(self):
        at = self.folder.name
        self.refused(f"kvllama: model = {at}, but it is a folder", "-m", at)
        self.refused(f"kvllama: model = {at}/none, but there is no such file", "-m", f"{at}/none")
        self.refused(f"kvllama: model = {self.text}, but llama.cpp cannot load it; --verbose shows its messages", "-m", self.text)
        self.refused(f"kvllama: --file = {at}, but it is a folder", "-m", self.model, "-f", at)
        self.refused(f"kvllama: --file = {at}/none, but it cannot be read", "-m", self.model, "-f", f"{at}/none")
        self.refused("kvllama: --prompt = empty, but at least one token is read", "-m", self.model, "-p", "")

    def test_a_cache_that_is_too_small_is_refused_before_the_answer(self):
        given = ("-m", self.model, "-f", self.text)
        self.refused("kvllama: --cells = 100, but the prompt takes 600 cells, and 256 are free", *given, "-c", 100)
        self.refused("kvllama: --cells = 768, but the answer takes 300 cells, and 168 are free", *given, "-c", 768, "-n", 300, "--policy", "full")
        done = self.run_it(*given, "-c", 768, "-n", 300, "--policy", "knorm | budget(64)", "--compare")
        self.assertEqual(done.stderr, "kvllama: --cells = 768, but the full cache takes 900 cells for prompt and answer, and 768 are free\n")
        done = self.run_it(*given, "-c", 768, "-n", 300, "--policy", "knorm | budget(64)")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotEqual(self.run_it(*given, "-c", 0).returncode, 0)

    def test_policies_that_are_none(self):
        for policy, message in (("", "parse: column 1 = nothing"), ("knormm | budget(8)", "did you mean knorm?"),
                                ("trim_kv | budget(64)", "trim_kv needs signal log_beta"), ("snapkv | budget(8, scope=layer)", "one length for lanes")):
            done = self.run_it("-m", self.model, "-f", self.text, "--policy", policy)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_table_says_how_much_of_the_prompt_is_kept(self):
        given = ("-m", self.model, "-f", self.text, "-n", 4)
        self.assertIn("\nprompt: 600 tokens, of which the policy keeps 64\n", self.run_it(*given, "--policy", "knorm | budget(64)").stdout)
        self.assertIn("\nprompt: 600 tokens, of which the policy keeps 600\n", self.run_it(*given, "--policy", "knorm | budget(1000)").stdout)

    def test_a_text_longer_than_the_model_was_trained_with_is_pointed_out(self):
        done = self.run_it("-m", self.model, "-p", "hello", "-n", 100000, "--policy", "knorm | budget(0)", "--cells", 1)
        self.assertIn("tokens, but the model was trained with", done.stderr)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):  # it is built by its name
        sys.exit(f"skipped: there is no {PROGRAM}")
    unittest.main()
