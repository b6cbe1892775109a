#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies the pages of the project into one folder, from which mkdocs builds the site.

    stage.py FOLDER [--kept FILE]    FILE: the demo's report, which the page keep_map.md shows

docs/ keeps its names, README.md is index.md, and other pages are named in PAGES. Links are turned: a link to a page becomes one
to its copy, and a link to a file or folder of the sources becomes one to a page of the site that shows it, so that no link leaves
the site. What GitHub and Python's Markdown read differently is written so that both read the same. A link to nothing is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "SECURITY.md": "security.md", "python/README.md": "python.md", "examples/tinylm/README.md": "tinylm.md"}
LINK = re.compile(r"(!?\[(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FENCE = re.compile(r"^(\s*)(```+)(.*)$")
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".h": "c", ".c": "c", ".py": "python", ".sh": "bash",
             ".json": "json", ".cmake": "cmake"}


def sources():
    """The files of the tree; where git does not know them, as in an archive, those outside of build/."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                            check=False, capture_output=True, text=True)
    if listed.returncode == 0:
        return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    return {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and path.relative_to(ROOT).parts[0] != "build"}


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.files = sources()
        self.pages = {name: page for name, page in PAGES.items() if name in self.files}
        self.pages |= {name: name.removeprefix("docs/") for name in self.files if re.fullmatch(r"docs/.*\.(md|svg|png)", name)}
        self.sources, self.wrong = {}, []

    def source_page(self, path):
        """The page that shows a file or a folder of the sources."""
        page = f"source/{path}.md" if path in self.files else f"source/{path}/index.md"
        self.sources[path] = page
        return page

    def target(self, path, link, where):
        """A link from the page of a file, as the page's copy has it."""
        address, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not address:
            return link
        found = os.path.normpath(os.path.join(os.path.dirname(path), address))
        if found in self.pages:
            page = self.pages[found]
        elif found in self.files or any(name.startswith(found + "/") for name in self.files):
            page = self.source_page(found)
        else:
            self.wrong.append(f"{path}:{where}: there is no {found}")
            return link
        here = os.path.dirname(self.pages[path])
        return os.path.relpath(page, here or ".") + (f"#{anchor}" if anchor else "")

    def text_of(self, path):
        lines, fence, previous, offset = [], None, "", 0
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            mark = FENCE.match(line)
            if fence:
                lines.append(" " * offset + line if line.strip() else line)
                fence = None if mark and mark.group(2) == fence and not mark.group(3).strip() else fence
                previous = ""
                continue
            if re.fullmatch(r"\s*<!--.*-->\s*", line):
                continue
            if not line.strip():
                lines.append(line)
                previous = line
                continue
            item = re.match(r"^(\s*)([-*]|\d+\.)(\s+)", line)
            before = re.match(r"^\s*([-*]|\d+\.)\s", previous)
            inside = line.startswith(" ") and not item
            # A list begins after an empty line, and what belongs to an item is four columns to the right of it.
            if item and previous.strip() and not before and not previous.startswith(" "):
                lines.append("")
            if line.startswith("|") and previous.strip() and not previous.startswith("|"):
                lines.append("")
            indent = len(line) - len(line.lstrip())
            offset = (4 - indent) if (inside or mark) and indent in (2, 3) else (2 if item and indent == 2 else 0)
            if mark:
                fence = mark.group(2)
                if previous.strip():
                    lines.append("")
            elif line.startswith("|"):  # inside of code GitHub wants a bar to be escaped, and Python's Markdown does not
                line = re.sub(r"`[^`]*`", lambda code: code.group(0).replace("\\|", "|"), line)
            line = LINK.sub(lambda m: m.group(1) + self.target(path, m.group(2), number) + m.group(3), line)
            lines.append(" " * offset + line)
            previous = line
        return "\n".join(lines) + "\n"

    def write(self, page, text):
        out = self.folder / page
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")

    def write_sources(self):
        for path, page in list(self.sources.items()):
            if path in self.files:
                try:
                    text = (ROOT / path).read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    text = "This file holds bytes and no text.\n"
                language = LANGUAGES.get(Path(path).suffix, "text")
                ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
                self.write(page, f"# {Path(path).name}\n\n`{path}`\n\n{ticks}{language}\n{text.rstrip()}\n{ticks}\n")
            else:
                held = sorted(name for name in self.files if name.startswith(path + "/"))
                listed = "\n".join(f"- `{name.removeprefix(path + '/')}`" for name in held)
                self.write(page, f"# {path}\n\nThis folder of the sources holds {len(held)} files:\n\n{listed}\n")

    def keep_map(self, kept):
        if kept:
            self.folder.mkdir(parents=True, exist_ok=True)
            page = Path(kept).read_text(encoding="utf-8")  # its link to the pages of the sources becomes one to the site
            page = re.sub(r'href="(?:[^"]*/)?docs/(\w+)\.md', r'target="_top" href="\1.html', page)
            (self.folder / "kept.html").write_text(page, encoding="utf-8")
            shown = ('<p><a href="kept.html">The page by itself</a></p>\n'
                     '<iframe class="kept" src="kept.html" title="What each policy kept"></iframe>\n')
        else:
            shown = "This site was built without it: `./tools/demo.sh` makes `kept.html`, and `tools/site.sh` then shows it here.\n"
        self.write("keep_map.md", "# What each policy kept\n\n`./tools/demo.sh` writes this page: which bytes of a prompt each policy"
                   " kept, in how many\nlanes. [The demo](demo.md#the-report) says how to read it.\n\n" + shown)

    def stage(self, kept):
        shutil.rmtree(self.folder, ignore_errors=True)
        for path, page in sorted(self.pages.items()):
            if page.endswith(".md"):
                self.write(page, self.text_of(path))
            else:
                (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, self.folder / page)
        self.write_sources()
        self.keep_map(kept)
        return self.wrong


def main():
    arguments = sys.argv[1:]
    kept = None
    if "--kept" in arguments:
        at = arguments.index("--kept")
        kept = arguments[at + 1] if at + 1 < len(arguments) else None
        del arguments[at:at + 2]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    site = Site(Path(arguments[0]))
    wrong = site.stage(kept)
    for line in wrong:
        print(line)
    print(f"stage: {len(site.pages)} pages, {len(site.sources)} sources, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
