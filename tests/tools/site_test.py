#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tools of the site make of pages and headers: tools/site/stage.py and tools/site/reference.py."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools/site"
sys.path.insert(0, str(TOOLS))

import reference  # noqa: E402
import stage  # noqa: E402


class Stage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "tree"
        self.out = Path(folder.name) / "pages"
        self.before = stage.ROOT
        stage.ROOT = self.root
        self.addCleanup(setattr, stage, "ROOT", self.before)
        self.put("README.md", "# Title\n")
        self.put("src/a.cpp", "int a;\n")

    def put(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def staged(self, text, kept=None):
        self.put("docs/deep/page.md", text)
        wrong = stage.Site(self.out).stage(kept)
        return (self.out / "deep/page.md").read_text(), wrong

    def test_links_lead_to_copies_of_pages_and_sources(self):
        text, wrong = self.staged("[up](../../README.md#title) [file](../../src/a.cpp) [folder](../../src) [out](https://a.b/c)\n")
        self.assertEqual(text, "[up](../index.md#title) [file](../source/src/a.cpp.md) [folder](../source/src/index.md)"
                               " [out](https://a.b/c)\n")
        self.assertEqual(wrong, [])
        self.assertIn("```cpp\nint a;\n```", (self.out / "source/src/a.cpp.md").read_text())
        self.assertIn("- `a.cpp`", (self.out / "source/src/index.md").read_text())

    def test_a_link_to_nothing_is_a_fault(self):
        self.assertEqual(self.staged("one\n[gone](other.md)\n")[1], ["docs/deep/page.md:2: there is no docs/deep/other.md"])

    def test_code_is_left_as_it_is(self):
        code = "```\n[gone](other.md)\n<!-- a -->\n- item\n```\n"
        self.assertEqual(self.staged(code), (code, []))

    def test_lists_and_tables_begin_after_an_empty_line_and_comments_go(self):
        self.assertEqual(self.staged("Text:\n- one\n- two\n<!-- from a -->\n")[0], "Text:\n\n- one\n- two\n")
        self.assertEqual(self.staged("Text:\n| `a \\| b` |\n| --- |\n")[0], "Text:\n\n| `a | b` |\n| --- |\n")

    def test_what_belongs_to_an_item_is_four_columns_to_the_right(self):
        self.assertEqual(self.staged("1. One\n\n   more\n\n   ```sh\n   a\n   ```\n")[0], "1. One\n\n    more\n\n    ```sh\n    a\n    ```\n")

    def test_the_report_of_the_demo_is_shown_if_there_is_one(self):
        self.staged("")
        self.assertIn("built without it", (self.out / "keep_map.md").read_text())
        self.put("kept.html", '<a href="docs/demo.md#the-report">kept</a>')
        self.staged("", self.root / "kept.html")
        self.assertIn('src="kept.html"', (self.out / "keep_map.md").read_text())
        self.assertEqual((self.out / "kept.html").read_text(), '<a target="_top" href="demo.html#the-report">kept</a>')


GROUPS = "= First thing\nWhen one wants\nit.\n\nb\ncore/*\n\n= Second\nElse.\n\ncore/x.hpp\n"


class Reference(unittest.TestCase):
    def sorted(self, *entries):
        groups = reference.read_groups(GROUPS)
        wrong = reference.sort_into(groups, [reference.Entry(name, header, 1) for name, header in entries])
        return [[entry.name for entry in group.entries] for group in groups], wrong

    def test_a_group_has_a_title_a_purpose_and_lines(self):
        first, second = reference.read_groups("# a comment\n" + GROUPS)
        self.assertEqual((first.title, first.purpose, first.lines), ("First thing", "When one wants it.", ["b", "core/*"]))
        self.assertEqual((second.page, second.lines), ("second.md", ["core/x.hpp"]))

    def test_a_name_goes_before_a_header_and_a_header_before_a_pattern(self):
        self.assertEqual(self.sorted(("a", "core/x.hpp"), ("b", "core/x.hpp"), ("c", "core/y.hpp")), ([["b", "c"], ["a"]], []))

    def test_a_name_in_no_group_and_a_line_without_names_are_faults(self):
        wrong = self.sorted(("a", "core/deep/y.hpp"), ("b", "ops/x.hpp"), ("c", "core/x.hpp"))[1]
        self.assertEqual(wrong, ["docs/reference.txt: no group has a, which include/kvpolicy/core/deep/y.hpp:1 declares",
                                 "docs/reference.txt: core/* in the group 'First thing' names nothing"])

    @unittest.skipUnless(shutil.which("doxygen"), "there is no doxygen")
    def test_pages_have_declarations_and_comments(self):
        with tempfile.TemporaryDirectory() as folder:
            header = Path(folder) / "include/kvpolicy/core/x.hpp"
            header.parent.mkdir(parents=True)
            header.write_text("namespace kvpolicy {\n/// A limit.\n///\n///     a = b\n///\nstruct limit {\n  int tokens = 4;  ///< how many\n"
                              "  bool operator==(limit const&) const = default;\n};\n/// Doubles it (Li et al. 2024).\n/// More of it.\ntemplate <class T>\n"
                              "T twice(T const& of, int times = 2);\nnamespace detail { struct hidden {}; }\n}\n")
            settings = f"INPUT={folder}/include\nRECURSIVE=YES\nGENERATE_XML=YES\nGENERATE_HTML=NO\nGENERATE_LATEX=NO\nQUIET=YES\n" \
                       f"OUTPUT_DIRECTORY={folder}\nJAVADOC_AUTOBRIEF=YES\nEXTRACT_ALL=YES\nEXCLUDE_SYMBOLS=*::detail::*\n"
            subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, capture_output=True)
            entries = reference.public_entries(Path(folder) / "xml")
            self.assertEqual([entry.name for entry in entries], ["limit", "twice"])
            self.assertEqual(entries[0].code, ["struct limit {", "  int tokens = 4;", "};"])
            self.assertEqual(entries[1].code, ["template <class T>", "T twice(T const& of, int times=2);"])
            text = "\n".join(entries[0].text)
            self.assertIn("A limit.", text)
            self.assertIn("Doubles it (Li et al. 2024). More of it.", entries[1].text)
            self.assertIn("```text\na = b\n```", text)
            self.assertIn("- `tokens`: how many", text)


if __name__ == "__main__":
    unittest.main()
