#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the code in README.md and docs/, with its folders, is the code that is built, and that links lead somewhere.

    check_readme.py [ROOT]            prints one line for each block that is wrong; exit status 1 if there is any
    check_readme.py --write [ROOT]    puts the files' text into the pages
    check_readme.py --compile [ROOT]  also compiles each whole program as a page shows it, with the command that the page shows
                                      below it, runs it, and compares what it prints with the block that follows

A block of code follows `<!-- from FILE -->`. It holds what stands in FILE between `// example-begin` and `// example-end`,
without the common indentation, or all of FILE if it has no such marks; with FILE#NAME it is what stands between
`// example-begin NAME` and `// example-end NAME`. FILE is one that the build knows. A whole program is a block with `int main(`.
Blocks of sh, Python and JSON must be ones that bash, Python and JSON can read, and the scripts of this tree that they run must be
there. Each relative link leads to a file or folder, and its anchor to a heading of the page. This holds for the other pages that
readers are sent to, too. The README has at most 200 lines of at most 120 columns. A bold number in the list at its top stands
in a page that its line links to. Files that name the version name that of include/kvpolicy/version.hpp.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

BLOCK = re.compile(r"(<!-- from (\S+) -->\n```(\w*)\n)(.*?)(```\n)", re.DOTALL)
COMMAND = re.compile(r"\s*```sh\n([^`]*?)```\n")
OUTPUT = re.compile(r"\s*<!-- from (\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)
FENCED = re.compile(r"^([ \t]*)```+(\w*)[^\n`]*\n(.*?)^\1```+[ \t]*$", re.DOTALL | re.MULTILINE)
MOST_LINES, MOST_COLUMNS = 200, 120
# How files other than the header name the version.
VERSIONS = {
    "CITATION.cff": r"^version: ([\d.]+)$",
    "packaging/vcpkg/ports/kvpolicy/vcpkg.json": r'"version": "([\d.]+)"',
    "python/vllm/pyproject.toml": r'^version = "([\d.]+)"$',
    "python/vllm/src/kvpolicy_vllm/__init__.py": r'^__version__ = "([\d.]+)"$',
}
# Pages outside of docs/ to which readers are sent.
OTHER_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "python/README.md", "examples/tinylm/README.md")


def source_of(root: Path, name: str) -> str | None:
    """What a block from `name` holds, without the line of the licence, or None if there is no such file or part of it."""
    file, _, part = name.partition("#")
    if not (root / file).is_file():
        return None
    text = (root / file).read_text()
    mark = rf" {re.escape(part)}\n" if part else r"[^\n]*\n"
    marked = re.search(rf"[^\n]*// example-begin{mark}(.*?)[^\n]*// example-end{mark}", text, re.DOTALL)
    if marked:
        return textwrap.dedent(marked.group(1))
    return None if part else text.removeprefix("// SPDX-License-Identifier: Apache-2.0\n")


def is_built(root: Path, name: str) -> bool:
    """True if a CMakeLists.txt names the file's stem, or a source that one names includes it. Every header of the library is included."""
    path = root / name.partition("#")[0]
    if name.startswith("include/kvpolicy/") or re.fullmatch(r"tests/.*_test\.cpp", name.partition("#")[0]):  # tests/CMakeLists.txt builds all of them
        return True
    lists = "\n".join(f.read_text() for f in root.glob("*/**/CMakeLists.txt") if "build" not in f.relative_to(root).parts)
    if re.search(rf"\b{re.escape(path.stem)}\b", lists):
        return True
    sources = (s for s in path.parent.rglob("*.c*") if re.search(rf"\b{re.escape(s.stem)}\b", lists))
    return any(f'"{path.name}"' in s.read_text() for s in sources)


def failure_of_program(root: Path, page_text: str, block: re.Match) -> str:
    """What is wrong with a whole program: its command is missing or fails, or it prints something else. Empty if nothing is."""
    command = COMMAND.match(page_text, block.end())
    if not command:
        return "a whole program without the command that compiles it, in a block of sh below it"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "include").symlink_to((root / "include").resolve())
        program = Path(folder) / block.group(2)
        program.parent.mkdir(parents=True)
        program.write_text(block.group(4))
        ran = subprocess.run(["bash", "-c", command.group(1)], cwd=folder, capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        return f"`{command.group(1).strip()}` fails: {ran.stderr[:2000]}"
    output = OUTPUT.match(page_text, command.end())
    if not output:
        return "a whole program without what it prints"
    return "" if ran.stdout == output.group(2) else f"the program prints something else: {ran.stdout}"


def too_long(root: Path) -> list[str]:
    lines = (root / "README.md").read_text().splitlines()
    wrong = [f"README.md:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS]
    return wrong + ([f"README.md: {len(lines)} lines"] if len(lines) > MOST_LINES else [])


def unsupported_numbers(root: Path) -> list[str]:
    """The bold numbers of the README's first list that stand in no page which their line links to."""
    wrong, top = [], (root / "README.md").read_text().split("\n## ")[0]
    for number, line in enumerate(top.splitlines(), 1):
        if line.startswith("- "):
            pages = [root / link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", line)]
            text = "\n".join(page.read_text() for page in pages if page.is_file())
            for figure in re.findall(r"\*\*([\d.]+)[^*]*\*\*", line):
                if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", text):
                    wrong.append(f"README.md:{number}: {figure} stands in none of the pages that this line links to")
    return wrong


def failure_of_text(root: Path, language: str, code: str) -> str:
    """What is wrong with a block of sh, Python or JSON, which is not run here. Empty if nothing is."""
    if language in ("sh", "bash"):
        read = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        if read.returncode != 0:
            return f"bash cannot read this: {read.stderr.strip()}"
        for script in re.findall(r"(?:^|[\s;&(])(?:\./)?((?:tools|python|bench|examples|tests)/[\w./]+\.(?:sh|py|cpp))", code):
            if not (root / script).is_file():
                return f"there is no {script}"
    elif language == "python":
        try:
            compile(code, "block", "exec")
        except SyntaxError as error:
            return f"Python cannot read this: {error}"
    elif language == "json":
        try:
            json.loads(code)
        except ValueError as error:
            return f"this is no JSON: {error}"
    return ""


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", FENCED.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        base = anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{base}-{number}"
        found.add(anchor)
    return found


def broken_links(root: Path, page: Path, text: str) -> list[tuple[int, str]]:
    """Where links lead to no file of the tree, or to no heading of a page."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))  # so that places stay what they are
    shown = re.sub(r"`[^`\n]*`", blank, FENCED.sub(blank, text))
    wrong = []
    for link in re.finditer(r"\]\(([^()\s]+)\)", shown):
        address, _, anchor = link.group(1).partition("#")
        if re.match(r"[a-z]+:", link.group(1)):
            continue
        target = Path(os.path.normpath(page.parent / address)) if address else page
        if not target.exists() or not target.is_relative_to(root):
            wrong.append((link.start(), f"there is no {link.group(1)}"))
        elif anchor and (target.suffix != ".md" or anchor not in anchors_of(target.read_text())):
            wrong.append((link.start(), f"{link.group(1)} names no heading"))
    return wrong


def other_versions(root: Path) -> list[str]:
    """The files that name another version than the library's header."""
    header = root / "include/kvpolicy/version.hpp"
    found = re.search(r'version\[\] = "([\d.]+)"', header.read_text()) if header.is_file() else None
    wrong = []
    for name, pattern in VERSIONS.items():
        if found and (root / name).is_file():
            named = re.search(pattern, (root / name).read_text(), re.MULTILINE)
            if not named or named.group(1) != found.group(1):
                wrong.append(f"{name}: version = {named.group(1) if named else 'none'}, but the library's is {found.group(1)}")
    return wrong


def check_page(root: Path, page: Path, write: bool, compiles: bool) -> tuple[int, int, list[str]]:
    """The numbers of blocks and of whole programs that were compiled, and a line for each thing that is wrong."""
    text = page.read_text()
    wrong, blocks, programs = [], 0, 0
    at = lambda start: f"{page.relative_to(root)}:{text[:start].count(chr(10)) + 1}"
    for block in BLOCK.finditer(text):
        blocks += 1
        source = source_of(root, block.group(2))
        if source is None:
            wrong.append(f"{at(block.start())}: there is no {block.group(2)}")
            continue
        if not write and block.group(4) != source:
            wrong.append(f"{at(block.start())}: differs from {block.group(2)}")
        if block.group(3) in ("cpp", "c++") and not is_built(root, block.group(2)):
            wrong.append(f"{at(block.start())}: {block.group(2)} is not built")
        if compiles and "int main(" in block.group(4):
            programs += 1
            failure = failure_of_program(root, text, block)
            wrong += [f"{at(block.start())}: {failure}"] if failure else []
    for code in re.finditer(r"(?<!-->\n)^```(cpp|c\+\+)$", text, re.MULTILINE):
        wrong.append(f"{at(code.start())}: code that no example builds")
    for block in FENCED.finditer(text):
        failure = failure_of_text(root, block.group(2), textwrap.dedent(block.group(3)))
        wrong += [f"{at(block.start())}: {failure}"] if failure else []
    wrong += [f"{at(start)}: {failure}" for start, failure in broken_links(root, page, text)]
    if write:
        replaced = lambda m, source: m.group(0) if source is None else m.group(1) + source + m.group(5)
        page.write_text(BLOCK.sub(lambda m: replaced(m, source_of(root, m.group(2))), text))
    return blocks, programs, wrong


def main() -> int:
    options = {a for a in sys.argv[1:] if a.startswith("--")}
    if options - {"--write", "--compile"}:
        print(__doc__)
        return 2
    roots = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = Path(roots[0]).resolve() if roots else Path(__file__).resolve().parent.parent
    blocks, programs, wrong = 0, 0, []
    others = [root / name for name in OTHER_PAGES if (root / name).is_file()]
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md")), *others]:
        more_blocks, more_programs, more_wrong = check_page(root, page, "--write" in options, "--compile" in options)
        blocks, programs, wrong = blocks + more_blocks, programs + more_programs, wrong + more_wrong
    wrong += too_long(root) + unsupported_numbers(root) + other_versions(root)
    for line in wrong:
        print(line)
    if blocks == 0:
        print("check_readme: no block found")
        return 1
    compiled = f", {programs} whole programs compiled and run" if "--compile" in options else ""
    print(f"check_readme: {blocks} blocks{compiled}, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
