#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of the API reference from what doxygen found in the headers, in the groups of docs/reference.txt.

    reference.py XML           checks that every public name is in a group, and that every line of the file names something
    reference.py XML FOLDER    also writes FOLDER/index.md, one page for each group, and FOLDER/nav.yml with lines that name them

XML is the folder xml of a run of doxygen, as tools/check_docs.sh leaves it. The public names are those of the namespaces
kvpolicy, kvpolicy::ops, kvpolicy::engines, kvpolicy::policies and kvpolicy::bench. Exit status 1 if anything is wrong.
"""

import fnmatch
import re
import sys
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAMESPACES = ("kvpolicy", "kvpolicy::ops", "kvpolicy::engines", "kvpolicy::policies", "kvpolicy::bench")
HEADERS = "include/kvpolicy/"
# Members that say the same of every type: how it is compared, printed and checked.
SAME_IN_ALL = re.compile(r"operator|fields$|check$|name$|~")


@dataclass
class Entry:
    name: str  # without kvpolicy::
    header: str  # below include/kvpolicy
    line: int
    code: list = field(default_factory=list)
    text: list = field(default_factory=list)


@dataclass
class Group:
    title: str
    purpose: str = ""
    lines: list = field(default_factory=list)
    entries: list = field(default_factory=list)

    @property
    def page(self):
        return re.sub(r"[^a-z]+", "_", self.title.lower()).strip("_") + ".md"


# --- doxygen's descriptions as Markdown --------------------------------------------------------------------------------


def inline(node):
    """The text of a node, with code and emphasis marked."""
    text = node.text or ""
    for child in node:
        inside = inline(child)
        if child.tag == "computeroutput":
            inside = f"`{inside.strip()}`"
        elif child.tag == "emphasis":
            inside = f"*{inside}*"
        elif child.tag == "bold":
            inside = f"**{inside}**"
        elif child.tag == "sp":
            inside = " "
        elif child.tag == "ndash":
            inside = "–"
        text += inside + (child.tail or "")
    return text


def plain(node):
    """The text of a declaration, as C++ writes it."""
    text = re.sub(r"\s+", " ", "".join(node.itertext()) if node is not None else "").strip()
    return re.sub(r"< (.*?) >", r"<\1>", text.replace("kvpolicy::", "")).replace(" >", ">").replace("< ", "<")


def code_block(lines, indent=""):
    return ["", f"{indent}```text", *(indent + line for line in lines), f"{indent}```", ""]


def blocks(node, indent=""):
    """A description as lines of Markdown."""
    lines, text = [], node.text or ""

    def flush():
        nonlocal text
        if text.strip():
            lines.extend([indent + re.sub(r"\s+", " ", text).strip(), ""])
        text = ""

    for child in node:
        if child.tag in ("para", "sect1", "sect2"):
            flush()
            lines.extend(blocks(child, indent))
        elif child.tag in ("itemizedlist", "orderedlist"):
            flush()
            for item in child:
                inside = blocks(item, indent + "    ")
                mark = "- " if child.tag == "itemizedlist" else "1. "
                if inside:
                    inside[0] = indent + mark.ljust(4) + inside[0].lstrip()
                lines.extend(inside)
        elif child.tag in ("verbatim", "programlisting"):
            flush()
            rows = [inline(row) for row in child.iter("codeline")] or (child.text or "").strip("\n").split("\n")
            lines.extend(code_block(rows, indent))
        elif child.tag == "table":
            flush()
            for number, row in enumerate(child.iter("row")):
                cells = [" ".join("".join(blocks(cell)).split()) for cell in row.iter("entry")]
                lines.append(indent + "| " + " | ".join(cells) + " |")
                if number == 0:
                    lines.append(indent + "|" + " --- |" * len(cells))
            lines.append("")
        elif child.tag == "title":
            flush()
        else:
            holder = xml.Element("para")
            holder.append(child)
            text += inline(holder)
            continue
        text += child.tail or ""
    flush()
    return lines


def description(node):
    parts = [node.find("briefdescription"), node.find("detaileddescription")]
    lines = [line for part in parts if part is not None for line in blocks(part)]
    # The brief description ends at the first full stop, and so do the authors of a paper.
    if len(lines) > 2 and lines[0].endswith(" et al.") and not lines[1]:
        lines[:3] = [f"{lines[0]} {lines[2]}"]
    return lines


# --- declarations ------------------------------------------------------------------------------------------------------


def template_of(node):
    found = node.find("templateparamlist")
    if found is None:
        return ""
    shown = []
    for parameter in found.findall("param"):
        default = parameter.find("defval")
        name = parameter.find("declname")
        text = plain(parameter.find("type")) + (f" {plain(name)}" if name is not None else "")
        shown.append(text + (f" = {plain(default)}" if default is not None else ""))
    return f"template <{', '.join(shown)}>"


def function(node):
    text = " ".join(p for p in (plain(node.find("type")), plain(node.find("name")) + plain(node.find("argsstring"))) if p)
    text = re.sub(r"\s*=\s*(default|delete)$", "", text).replace(" &", "&").replace("& ", "& ").replace(" *", "*")
    text = re.sub(r"([&*])(\w)", r"\1 \2", text)
    text = re.sub(r"^((?:constexpr )?)detail::[\w:]+(?:<.*?>)? (?=\w+\()", r"\1auto ", text)
    return [line for line in (template_of(node), ("static " if node.get("static") == "yes" else "") + text + ";") if line]


def variable(node):
    initial = plain(node.find("initializer"))
    initial = f" {initial}" if initial and len(initial) < 80 and initial.startswith("=") else initial
    if len(initial) >= 80:
        initial = ""
    static = "static " if node.get("static") == "yes" else ""
    return f"{static}{plain(node.find('type'))} {plain(node.find('name'))}{plain(node.find('argsstring'))}{initial};"


def members(node):
    """The lines of a type's public members, and those of what is said about them."""
    lines, said = [], []
    kinds = {"public-type": [], "public-attrib": [], "public-static-attrib": [], "public-static-func": [], "public-func": []}
    for section in node.findall("sectiondef"):
        if section.get("kind") in kinds:
            kinds[section.get("kind")] += section.findall("memberdef")
    for kind in ("public-attrib", "public-static-attrib", "public-type", "public-static-func", "public-func"):
        for member in kinds[kind]:
            name = plain(member.find("name"))
            if SAME_IN_ALL.match(name):
                continue
            if member.get("kind") == "variable":
                lines.append(variable(member))
            elif member.get("kind") == "function":
                lines += function(member)
            elif member.get("kind") == "typedef":
                meant = "".join(member.find("type").itertext()).replace("kvpolicy::", "kv::")
                lines.append(f"using {name} = {meant.replace('< ', '<').replace(' >', '>')};")
            elif member.get("kind") == "enum":
                values = ", ".join(plain(value.find("name")) for value in member.findall("enumvalue"))
                lines.append(f"enum class {name} {{ {values} }};")
            told = description(member)
            if told:
                said += [f"- `{name}`: " + "\n".join(told).strip().replace("\n", "\n    "), ""]
    return lines, said


def entry_of_type(node):
    name = plain(node.find("compoundname"))
    place = node.find("location")
    entry = Entry(name, place.get("file").split(HEADERS, 1)[1], int(place.get("line")))
    if node.get("kind") == "concept":
        entry.code = [line for line in "".join(node.find("initializer").itertext()).replace("kvpolicy::", "").split("\n")]
        entry.code = [line.rstrip() for line in entry.code if "detail::" not in line and line.strip()]
        if not entry.code or len(entry.code) > 12:
            entry.code = [f"concept {name};"]
        entry.text = description(node)
        return entry
    lines, said = members(node)
    bases = ", ".join(plain(base) for base in node.findall("basecompoundref") if "detail" not in plain(base))
    head = f"{node.get('kind')} {name.split('::')[-1]}" + (f" : {bases}" if bases else "")
    template = template_of(node)
    entry.code = ([template] if template else []) + ([head + " {", *("  " + line for line in lines), "};"] if lines else [head + ";"])
    entry.text = description(node) + ([""] + said + [""] if said else [])
    return entry


def entry_of_member(node, namespace):
    inner = namespace.removeprefix("kvpolicy").removeprefix("::")
    name = (inner + "::" if inner else "") + plain(node.find("name"))
    place = node.find("location")
    entry = Entry(name, place.get("file").split(HEADERS, 1)[1], int(place.get("line")), text=description(node))
    kind = node.get("kind")
    if kind == "function":
        entry.code = function(node)
    elif kind == "enum":
        values = ", ".join(plain(value.find("name")) for value in node.findall("enumvalue"))
        entry.code = [f"enum class {plain(node.find('name'))} {{ {values} }};"]
        for value in node.findall("enumvalue"):
            told = description(value)
            if told:
                entry.text.append(f"- `{plain(value.find('name'))}`: {' '.join(told).strip()}")
    elif kind == "typedef":
        entry.code = [line for line in (template_of(node), f"using {plain(node.find('name'))} = {plain(node.find('type'))};") if line]
    else:
        entry.code = [line for line in (template_of(node), variable(node)) if line]
    return entry


def public_entries(folder):
    found = []
    for compound in xml.parse(folder / "index.xml").getroot().findall("compound"):
        kind, name = compound.get("kind"), compound.find("name").text
        space = name.rsplit("::", 1)[0] if "::" in name else ""
        is_type = kind in ("struct", "class", "concept") and space in NAMESPACES and "<" not in name
        if not is_type and not (kind == "namespace" and name in NAMESPACES):
            continue
        node = xml.parse(folder / f"{compound.get('refid')}.xml").getroot().find("compounddef")
        if is_type:
            if HEADERS in node.find("location").get("file"):
                found.append(entry_of_type(node))
            continue
        for section in node.findall("sectiondef"):
            for member in section.findall("memberdef"):
                if HEADERS in member.find("location").get("file"):
                    found.append(entry_of_member(member, name))
    verbs = {entry.name for entry in found if entry.name.startswith("ops::") and entry.name.endswith("_t")}
    found = [entry for entry in found if entry.name + "_t" not in verbs]  # a verb is an object; its type has the contract
    for entry in found:
        if entry.name in verbs:
            entry.name = entry.name.removesuffix("_t")
            entry.code = [f"inline constexpr {entry.name.removeprefix('ops::')}_t {entry.name.removeprefix('ops::')};"]
    return sorted(found, key=lambda entry: (entry.header, entry.line, entry.name))


# --- groups ------------------------------------------------------------------------------------------------------------


def read_groups(text):
    groups, in_purpose = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("= "):
            groups.append(Group(line[2:].strip()))
            in_purpose = True
        elif not line.strip():
            in_purpose = in_purpose and groups and not groups[-1].purpose
        elif in_purpose:
            groups[-1].purpose = (groups[-1].purpose + " " + line.strip()).strip()
        else:
            groups[-1].lines.append(line.strip())
    return groups


def matches(header, pattern):
    """A star stands for a part of one folder's or file's name."""
    parts, wanted = header.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def place_of(entry, places):
    """The group and the line that have an entry: by its name, else by its header, else by a pattern."""
    ways = (lambda line: line == entry.name, lambda line: line == entry.header, lambda line: matches(entry.header, line))
    return next((place for way in ways for place in places if way(place[1])), None)


def sort_into(groups, entries):
    """Puts every entry into its group. Returns a line for each that has none, and for each line that names nothing."""
    places = [(group, line) for group in groups for line in group.lines]
    wrong, held = [], {(group.title, line): [] for group, line in places}
    for entry in entries:
        place = place_of(entry, places)
        if place is None:
            wrong.append(f"docs/reference.txt: no group has {entry.name}, which {HEADERS}{entry.header}:{entry.line} declares")
        else:
            held[place[0].title, place[1]].append(entry)
    for group, line in places:
        group.entries += held[group.title, line]
        if not held[group.title, line]:
            wrong.append(f"docs/reference.txt: {line} in the group '{group.title}' names nothing")
    return wrong


def write_pages(groups, folder):
    folder.mkdir(parents=True, exist_ok=True)
    index = ["# API reference", "",
             "Every public name of the library, by what one wants to do. All names are in the namespace `kvpolicy`, which the pages",
             "of this site call `kv`. `#include <kvpolicy/kvpolicy.hpp>` has all of them but those of files and of CUDA.", "",
             "| I want to | names |", "| --- | --- |"]
    for group in groups:
        names = list(dict.fromkeys(entry.name for entry in group.entries))
        shown = ", ".join(f"`{name}`" for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        index.append(f"| [{group.title[0].lower() + group.title[1:]}]({group.page}) | {shown} |")
        page = [f"# {group.title}", "", group.purpose, ""]
        for name in names:
            together = [entry for entry in group.entries if entry.name == name]
            page += [f"## {name}", "", *(f"`<kvpolicy/{header}>`  " for header in dict.fromkeys(e.header for e in together)), ""]
            for entry in together:
                page += ["```cpp", *entry.code, "```", "", *entry.text, ""]
        (folder / group.page).write_text("\n".join(page) + "\n", encoding="utf-8")
    (folder / "index.md").write_text("\n".join(index) + "\n", encoding="utf-8")
    named = "".join(f"      - {group.title}: {folder.name}/{group.page}\n" for group in groups)
    (folder / "nav.yml").write_text(named, encoding="utf-8")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    entries = public_entries(Path(sys.argv[1]))
    groups = read_groups((ROOT / "docs/reference.txt").read_text(encoding="utf-8"))
    wrong = sort_into(groups, entries)
    if len(sys.argv) == 3:
        write_pages(groups, Path(sys.argv[2]))
    for line in wrong:
        print(line)
    print(f"reference: {len({entry.name for entry in entries})} names in {len(groups)} groups, {len(wrong)} faults")
    return 1 if wrong or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
