#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/check_readme.py refuses, each in a small tree of its own."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parent.parent.parent / "tools/check_readme.py"
PROGRAM = "// example-begin first\nint a;\n// example-end first\n// example-begin second\n  int b;\n// example-end second\n"
BLOCK = "<!-- from examples/two.cpp#second -->\n```cpp\nint b;\n```\n"


class CheckReadme(unittest.TestCase):
    def said_of(self, page, readme="# Title\n", **files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {"README.md": readme, "docs/page.md": page, "examples/two.cpp": PROGRAM,
                               "examples/CMakeLists.txt": "example(two two.cpp)\n", **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            ran = subprocess.run([sys.executable, "-B", CHECK, root], capture_output=True, text=True)
        self.assertEqual(ran.stderr, "")
        return ran.returncode, ran.stdout

    def refused(self, page, words, **more):
        status, said = self.said_of(BLOCK + page, **more)
        self.assertEqual(status, 1)
        self.assertIn(words, said)
        self.assertIn("1 faults", said)

    def test_a_page_without_a_fault_passes(self):
        page = BLOCK + "\n## What is *new* in `a_b`?\n\n[up](page.md#what-is-new-in-a_b), [file](../examples/two.cpp)\n\n```sh\nls\n```\n"
        self.assertEqual(self.said_of(page), (0, "check_readme: 1 blocks, 0 faults\n"))

    def test_a_fault_is_named(self):
        for what, page, words in (
            ("a block differs from the part that it names", "<!-- from examples/two.cpp#first -->\n```cpp\nint b;\n```\n", "differs from examples/two.cpp#first"),
            ("a part that is not there", "<!-- from examples/two.cpp#third -->\n```cpp\nint b;\n```\n", "there is no examples/two.cpp#third"),
            ("code that no example builds", "```cpp\nint c;\n```\n", "code that no example builds"),
            ("a link to no file", "[away](other.md)\n", "docs/page.md:5: there is no other.md"),
            ("a link out of the tree", "[away](../../other.md)\n", "there is no ../../other.md"),
            ("an anchor that no heading has", "## Here\n[there](page.md#there)\n", "page.md#there names no heading"),
            ("a heading inside of a block is none", "```sh\n# there\n```\n[there](#there)\n", "#there names no heading"),
            ("commands that bash cannot read", "```sh\nif true; then\n```\n", "bash cannot read this"),
            ("a script that is not there", "```sh\n./tools/nothing.sh --all\n```\n", "there is no tools/nothing.sh"),
            ("python that python cannot read", "- item\n\n  ```python\n  def f(:\n  ```\n", "Python cannot read this"),
        ):
            with self.subTest(what):
                self.refused(page, words)

    def test_a_link_inside_of_code_is_none(self):
        self.assertEqual(self.said_of(BLOCK + "`[a](b.md)`\n\n```\n[a](b.md)\n```\n")[0], 0)

    def test_a_file_that_names_another_version(self):
        files = {"include/kvpolicy/version.hpp": 'inline constexpr char const version[] = "0.3.0";\n'}
        self.refused("", "CITATION.cff: version = 0.2.0, but", **files, **{"CITATION.cff": "type: a\nversion: 0.2.0\n"})
        self.assertEqual(self.said_of(BLOCK, **files, **{"CITATION.cff": "version: 0.3.0\n"})[0], 0)

    def test_a_number_of_the_first_lines_that_its_page_lacks(self):
        readme = "- [door](docs/page.md): **4.2** times\n\n## Next\n"
        self.refused("It is 14.2 and 4.25 times.\n", "4.2 stands in none of the pages", readme=readme)
        self.assertEqual(self.said_of(BLOCK + "It is 4.2 times.\n", readme=readme)[0], 0)


if __name__ == "__main__":
    unittest.main()
