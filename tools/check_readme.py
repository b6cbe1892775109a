#!/usr/bin/env python3
"""Checks that the code in README.md and docs/, with its folders, is the code that is built.

    check_readme.py [ROOT]     prints one line for each block that differs; exit status 1 if there is any
    check_readme.py --write    puts the files' text into the pages

A block that follows `<!-- from FILE -->` holds what stands in FILE between `// example-begin` and `// example-end`, without the
common indentation, or all of FILE if it has no such marks.
"""
import re
import sys
import textwrap
from pathlib import Path

BLOCK = re.compile(r"(<!-- from (\S+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)


def source_of(path: Path) -> str:
    text = path.read_text()
    marked = re.search(r"[^\n]*// example-begin[^\n]*\n(.*?)[^\n]*// example-end", text, re.DOTALL)
    return textwrap.dedent(marked.group(1)) if marked else text


def main() -> int:
    write = "--write" in sys.argv[1:]
    roots = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = Path(roots[0]) if roots else Path(__file__).resolve().parent.parent
    wrong = blocks = loose = 0
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            blocks += 1
            if match.group(3) != source_of(root / match.group(2)):
                wrong += 1
                if not write:
                    line = text[: match.start()].count("\n") + 1
                    print(f"{page.relative_to(root)}:{line}: differs from {match.group(2)}")
        for code in re.finditer(r"(?<!-->\n)^```(cpp|c\+\+)$", text, re.MULTILINE):
            loose += 1
            print(f"{page.relative_to(root)}:{text[: code.start()].count(chr(10)) + 1}: code that no example builds")
        if write:
            page.write_text(BLOCK.sub(lambda m: m.group(1) + source_of(root / m.group(2)) + m.group(4), text))
    if blocks == 0:
        print("check_readme: no block found")
        return 1
    print(f"check_readme: {blocks} blocks, {wrong} {'rewritten' if write else 'differ'}")
    return 1 if loose or (wrong and not write) else 0


if __name__ == "__main__":
    sys.exit(main())
