#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/release.sh makes of a commit, in a small repository of its own."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CHANGES = """# Changelog

## 1.2.3, 2026-01-31

What users gain.

They must change this.

### Added

- A line.

## 1.2.2, 2026-01-01

Older.
"""


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class Release(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree, self.out = self.folder / "tree", self.folder / "out"
        for name in ("tools/release.sh", "tools/single_header.py"):
            self.put(name, (ROOT / name).read_text())
            (self.tree / name).chmod(0o755)
        self.put("include/kvpolicy/version.hpp", '#pragma once\ninline constexpr char const version[] = "1.2.3";\n')
        self.put("include/kvpolicy/kvpolicy.hpp", "#pragma once\n#include <kvpolicy/version.hpp>\nint library();\n")
        self.put("CHANGELOG.md", CHANGES)
        self.git("init", "-q")
        self.commit()

    def put(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self.tree, check=True, capture_output=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "all")

    def released(self, *arguments, out=None):
        return subprocess.run(["tools/release.sh", *arguments, str(out or self.out)], cwd=self.tree, capture_output=True, text=True, check=False)

    def refused(self, said, *arguments, **more):
        done = self.released(*arguments, **more)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(said, done.stderr)

    def test_the_files_are_of_the_commit_and_their_sums_are_right(self):
        self.put("uncommitted.txt", "not released")
        done = self.released("--from", "HEAD", "--no-python")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(each.name for each in self.out.iterdir()),
                         ["SHA256SUMS", "SHA512SUMS", "changes.md", "kvpolicy-1.2.3.hpp", "kvpolicy-1.2.3.tar.gz", "tag.txt"])
        for sums, how in (("SHA256SUMS", hashlib.sha256), ("SHA512SUMS", hashlib.sha512)):
            for line in (self.out / sums).read_text().splitlines():
                told, name = line.split()
                self.assertEqual(how((self.out / name).read_bytes()).hexdigest(), told, name)
        self.assertEqual(len((self.out / "SHA256SUMS").read_text().splitlines()), 4)
        with tarfile.open(self.out / "kvpolicy-1.2.3.tar.gz") as archive:
            names = archive.getnames()
        self.assertIn("kvpolicy-1.2.3/include/kvpolicy/kvpolicy.hpp", names)
        self.assertFalse([name for name in names if "uncommitted" in name])
        self.assertIn("int library();", (self.out / "kvpolicy-1.2.3.hpp").read_text())

    def test_the_text_of_the_tag_and_the_section_are_the_changelogs(self):
        self.assertEqual(self.released("--from", "HEAD", "--no-python").returncode, 0)
        self.assertEqual((self.out / "tag.txt").read_text(), "kvpolicy 1.2.3\n\nWhat users gain.\n\nThey must change this.\n")
        self.assertEqual((self.out / "changes.md").read_text().strip(), CHANGES[CHANGES.index("## 1.2.3"):CHANGES.index("## 1.2.2")].strip())

    def test_a_commit_gives_the_same_bytes_again_and_a_tag_needs_no_name(self):
        self.git("tag", "-a", "v1.2.3", "-m", "it")
        again = self.folder / "again"
        self.assertEqual(self.released("--from", "HEAD", "--no-python").returncode, 0)
        self.assertEqual(self.released("--no-python", out=again).returncode, 0)
        self.assertEqual((self.out / "SHA256SUMS").read_text(), (again / "SHA256SUMS").read_text())

    def test_what_cannot_be_released_is_refused_and_nothing_is_written(self):
        self.refused("--from = v1.2.3, but there is no such commit or tag", "--no-python")
        self.refused("--from = nope, but there is no such commit or tag", "--from", "nope", "--no-python")
        self.refused("argument = --fast, but there are --from COMMIT and --no-python", "--fast")
        for heading in ("## 1.2.3, unreleased", "## 1.2.4, 2026-01-31"):
            self.put("CHANGELOG.md", CHANGES.replace("## 1.2.3, 2026-01-31", heading))
            self.commit()
            self.refused("but a release has its day: ## 1.2.3, YYYY-MM-DD", "--from", "HEAD", "--no-python")
        self.assertFalse(self.out.exists())
        self.out.mkdir()
        (self.out / "mine").write_text("kept")
        self.refused("but it is there and not empty", "--from", "HEAD", "--no-python")
        self.assertEqual([each.name for each in self.out.iterdir()], ["mine"])


if __name__ == "__main__":
    unittest.main()
