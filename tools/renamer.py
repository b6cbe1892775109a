# SPDX-License-Identifier: Apache-2.0
"""What the scripts rename_OLD_NEW.py share: they read C++ as tokens, and give their tables to `main` as a `Renamer`.

It knows scopes, and the type that stands in front of a declared name. `auto` variables are judged by how they are used.
What it cannot judge it leaves alone; the compiler then says where.
"""

import argparse
import re
import sys
from pathlib import Path

SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".cc", ".hh", ".cxx", ".hxx"}
TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      |(?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      |(?P<include>\#[ \t]*include[ \t]*[<"][^>"\n]+[>"])
      |(?P<word>[A-Za-z_]\w*)
      |(?P<number>\.?\d(?:'?[\w.]|[eEpP][+-])*)
      |(?P<sign>::|->|<<=|<=>|&&|\|\||[^\s\w])
      |(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)
CLOSING = {"(": ")", "{": "}", "[": "]"}
NO_TYPE = {"return", "case", "else", "new", "delete", "throw", "co_return", "goto", "operator", "typename", "and", "or",
           "not", "sizeof", "using", "namespace", "if", "while", "do", "co_await", "co_yield", "requires", "struct", "class", "union", "enum",
           "concept", "public", "private", "friend", "explicit", "inline", "static", "extern", "mutable"}
ALIASES = {"kv", "kvpolicy"}


class Token:
    __slots__ = ("kind", "text", "new", "line")

    def __init__(self, kind, text, line):
        self.kind, self.text, self.new, self.line = kind, text, text, line


class Source:
    """The tokens of a C++ text, and what of its structure the rules ask for."""

    def __init__(self, text):
        self.all = []
        line = 1
        for match in TOKEN.finditer(text):
            kind = match.lastgroup if match.lastgroup != "mark" else "string"
            self.all.append(Token(kind, match.group(), line))
            line += match.group().count("\n")
        self.code = [t for t in self.all if t.kind in ("word", "sign", "number", "string", "include")]
        self.words = [t.text for t in self.code]
        self.close = self._brackets()
        self.kinds = self._kinds()
        self.declared = {}

    def _brackets(self):
        close, open_ = {}, []
        for i, token in enumerate(self.code):
            if token.kind != "sign":
                continue
            if token.text in CLOSING:
                open_.append(i)
            elif open_ and token.text in ")}]":
                # what does not fit is left open: the rest of a text that the preprocessor cuts
                if CLOSING[self.words[open_[-1]]] == token.text:
                    close[open_.pop()] = i
        for i in open_:
            close[i] = len(self.code)
        return close

    def _kinds(self):
        """Of each brace whether it is a class's, a namespace's or any other."""
        kinds = {}
        for i in self.close:
            if self.words[i] != "{":
                continue
            j, kind = i - 1, "other"
            depth = 0
            while j >= 0:
                word = self.words[j]
                if word in (")", "]", "}"):
                    depth += 1
                elif word in ("(", "[", "{"):
                    depth -= 1
                    if depth < 0:
                        break
                if depth == 0 and word in (";", "{", "}"):
                    break
                if depth == 0 and word in ("struct", "class", "union") and self.words[j - 1] not in ("<", ",", "enum"):
                    between = self.words[j + 1 : i]
                    if between and "=" not in between and not (")" in between and "alignas" not in between):
                        kind = "class"
                    break
                if depth == 0 and word in ("namespace", "enum"):
                    kind = word
                    break
                if depth == 0 and word in ("=", "return"):
                    break
                j -= 1
            kinds[i] = kind
        return kinds

    def type_before(self, i):
        """The type in front of a declared name: its last words, or None where there is none."""
        j = i - 1
        while j >= 0 and self.words[j] in ("const", "&", "*", "&&", "...", "constexpr"):
            j -= 1
        if j < 0:
            return None
        if self.words[j] == ">":
            depth, k = 0, j
            while k >= 0:
                depth += {">": 1, "<": -1}.get(self.words[k], 0)
                if depth == 0:
                    break
                if self.words[k] in (";", "{", "}"):
                    return None
                k -= 1
            if k < 1 or self.code[k - 1].kind != "word":
                return None
            return self.words[k - 1] + "<" + "".join(self.words[k + 1 : j])
        if self.code[j].kind != "word" or self.words[j] in NO_TYPE:
            return None
        return self.words[j]

    def body_end(self, close):
        """Where the scope of a parameter list that ends at `close` ends."""
        i = close + 1
        init = False
        while i < len(self.code):
            word = self.words[i]
            if word == ":":
                init = True
            if word == "{":
                before = self.words[i - 1]
                if init and (self.code[i - 1].kind == "word" or before == ">") and before not in ("noexcept", "const"):
                    i = self.close[i] + 1
                    continue
                return self.close[i]
            if word in ("(", "["):
                i = self.close[i] + 1
                continue
            if word in (";", ")", "}", "]"):
                return i
            i += 1
        return i

    def enclosing(self, i):
        inner = -1
        for at, end in self.close.items():
            if at < i < end and at > inner:
                inner = at
        return inner

    def declarations(self, name):
        """[(begin, end, type, is a member, index)] of a name."""
        if name in self.declared:
            return self.declared[name]
        found = self.declared[name] = []  # a name that is asked for while it is looked for is not there
        for i, word in enumerate(self.words):
            if word != name or self.code[i].kind != "word" or i == 0:
                continue
            following = self.words[i + 1] if i + 1 < len(self.words) else ";"
            if following not in (",", ")", ";", "=", "{", "(", "[", "]", ":", "..."):
                continue
            kind = self.type_before(i)
            if following in (",", "]") and self.words[i - 1] in ("[", ","):
                opening = self.enclosing(i)
                if opening > 1 and self.words[opening] == "[" and self.type_before(opening) == "auto":
                    found.append((i, self.close.get(self.enclosing(opening), len(self.code)), "auto", False, i))
                continue
            if kind is None or self.words[i - 1] in (".", "->", "::") or self.product(i):
                continue
            inner = self.enclosing(i)
            if inner < 0:
                found.append((i, len(self.code), kind, False, i))
            elif self.words[inner] == "{":
                member = self.kinds[inner] == "class"
                found.append((inner if member else i, self.close[inner], kind, member, i))
            elif self.words[inner] == "(":
                # `f(a * b)` and `f(x, &b)` are no declarations; a type is known by the rule that asks for it
                found.append((i, self.body_end(self.close[inner]), kind, False, i))
        self.declared[name] = found
        return found

    def product(self, i):
        """`a * b` and `a & b` of values, which read like a declaration of b."""
        j = i - 1
        if self.words[j] not in ("*", "&", "&&"):
            return False
        while self.words[j] in ("*", "&", "&&"):
            j -= 1
        if self.words[j] == "const" or self.words[j] == ">":
            return False
        before = self.words[j - 1]
        if before in ("*", "+", "-", "/", "%", "=", "return", ".", "->", "?", "!", "||"):
            return True
        return before != "::" and self.lookup(self.words[j], j) is not None

    def lookup(self, name, i):
        """The innermost declaration of a name that reaches a token."""
        best = None
        for one in self.declarations(name):
            if one[0] <= i < one[1] and (best is None or one[0] > best[0] or (one[0] == best[0] and one[4] < i)):
                best = one
        return best

    def plain(self, kind):
        return kind.split("<")[0] if kind else kind

    def object_type(self, i):
        """(name, type) of what stands before the `.` or `->` at i."""
        j = i - 1
        call = False
        if self.words[j] == ")" or self.words[j] == "]":
            opening = [at for at, end in self.close.items() if end == j]
            if not opening:
                return None, None
            call = self.words[j] == ")"
            j = opening[0] - 1
        if j < 0 or self.code[j].kind != "word":
            return None, None
        name = self.words[j]
        if name == "this":
            return name, None
        if call or (j > 0 and self.words[j - 1] in (".", "->", "::")):
            return name, None
        decl = self.lookup(name, j)
        return name, (self.plain(decl[2]) if decl else None)


class Renamer:
    """The tables of one version's names, and how a token is judged by them. A version whose names are harder to tell from
    other words overrides a method."""

    HEADERS = {}  # headers under kvpolicy/: {old: new}
    IDENTIFIERS = {}  # names that mean nothing else: renamed wherever they stand
    # Names that are also plain words, by where they stand: `kv::NAME`, or NAME as a type inside of kvpolicy's own namespace or
    # under `using namespace kvpolicy`. {(the namespace or type that qualifies, old): new}
    QUALIFIED = {}
    ONLY_QUALIFIED = set()  # those of them that are left alone where no `kv::` is in front
    # Members, found as `object.NAME`, `.NAME =`, and where a class declares them: {old: [(types of the object, new)]}
    MEMBERS = {}
    OBJECTS = {}  # objects by the names that everybody gives them, where no declaration tells: {type: names}
    BESIDE = {}  # whether the designators of braces are those of a type: {type: function of the set of designators}
    STRINGS = []  # texts in string literals, with --strings: the calls and arguments that errors name
    QUOTED = {}  # words that in comments and prose are names where they stand between backticks, with --comments

    def __init__(self, variables=False, comments=False, strings=False):
        self.variables, self.comments, self.strings = variables, comments, strings

    def headers(self, text):
        for old, new in self.HEADERS.items():
            text = re.sub(rf"(?<=kvpolicy/){re.escape(old)}(?=[>\"])", new, text)
        return text

    def run(self, text):
        source = Source(text)
        words, code = source.words, source.code
        own = "KVPOLICY_NAMESPACE" in words or bool(
            re.search(r"\bnamespace\s+kvpolicy\b(?!\s*;)|using\s+namespace\s+(?:kv|kvpolicy)\b", text)
        )
        qualify = []  # (begin, end, type name, index of the declaration): here it is hidden
        for i, token in enumerate(code):
            if token.kind == "include":
                token.new = self.headers(token.text)
            elif token.kind == "string" and self.strings:
                token.new = self.string(token.text)
            elif token.kind == "word":
                new = self.word(source, i, own, qualify)
                if new is not None:
                    token.new = new
        for begin, end, name, _ in qualify if own else ():  # elsewhere the types are qualified
            for i in range(begin, min(end, len(code))):
                if code[i].kind == "word" and code[i].text == name and code[i].new == name and self.is_type(words, code, i):
                    code[i].new = "kvpolicy::" + name
        if self.comments:
            for token in source.all:
                if token.kind == "comment":
                    token.new = self.prose(token.text)
        return "".join(t.new for t in source.all), [(t.line, t.text, t.new) for t in source.all if t.new != t.text]

    @staticmethod
    def is_type(words, code, i):
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        if before in (".", "->", "::") or before in ("struct", "class"):
            return False
        if code[i + 1].kind == "word" if i + 1 < len(code) else False:
            return True
        if before in ("&", "*", ">") or (code[i - 1].kind == "word" and before not in ("const", "return", "constexpr",
                                                                                       "static", "inline", "typename")):
            return False
        return after in ("&", "*", "{", ">", "<", "(", ",", ")", "&&", "::", "...")

    def word(self, source, i, own, qualify):
        words = source.words
        name = words[i]
        if i > 1 and words[i - 1] == "::" and words[i - 2] == "std":
            return None
        new = self.member(source, i, qualify) if name in self.MEMBERS else None
        if new is not None:
            return new
        if name in self.IDENTIFIERS:
            return self.IDENTIFIERS[name]
        return self.qualified(source, i, own)

    def qualified(self, source, i, own):
        words, code = source.words, source.code
        name = words[i]
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        for (space, old), new in self.QUALIFIED.items():
            if old != name:
                continue
            if before == "::":
                qualifier = words[i - 2]
                if qualifier in ALIASES if space == "" else qualifier == space:
                    return new
                continue
            if not own or space != "" or name in self.ONLY_QUALIFIED or before in (".", "->"):
                continue
            if before in ("struct", "class") and after in ("{", ":", ";"):
                return new
            hidden = source.lookup(name, i) is not None and after != "::"
            if hidden or source.kinds.get(source.enclosing(i)) == "enum":
                continue
            if self.is_type(words, code, i) or (before in ("&", "(", ",", "<", "==", "!=", "=", "return") and after == "::"):
                return new
        return None

    @staticmethod
    def local(source, name, i):
        """A variable or a member of the name hides the function."""
        decl = source.lookup(name, i)
        if decl is None:
            return False
        inner = source.enclosing(decl[4])
        return inner >= 0 and source.kinds.get(inner) != "namespace"

    def owner_of(self, source, i):
        """The name of the class whose braces enclose a token most closely."""
        inner = source.enclosing(i)
        if inner < 0 or source.kinds.get(inner) != "class":
            return None
        return self.class_name(source, inner)

    @staticmethod
    def class_name(source, brace):
        j = brace - 1
        while j > 0 and source.words[j] not in ("struct", "class", "union", ";", "}"):
            j -= 1
        j += 1
        while source.words[j] in ("alignas", "(", "[", "]", ")"):
            j = source.close.get(j + 1, j) + 1 if source.words[j] == "alignas" else j + 1
        return source.words[j]

    def member(self, source, i, qualify):
        """The new name of a member that is used or declared here, by the type of its object."""
        words = source.words
        name = words[i]
        rules = self.MEMBERS[name]
        if words[i - 1] not in (".", "->"):
            decl = source.lookup(name, i)  # inside of a class that declares it
            owner = self.owner_of(source, decl[4]) if decl is not None and decl[3] else None
            return next((new for types, new in rules if owner in types), None)
        obj, owner, designated = self.object_of(source, i)
        for types, new in rules:
            if owner in types:
                return new
            if owner in (None, "auto") and not designated and any(obj in self.OBJECTS.get(each, ()) for each in types):
                return new
            if owner is None and designated and any(self.is_braces_of(source, i, each) for each in types):
                return new
        return None

    def is_braces_of(self, source, i, kind):
        """Whether the designators of the braces around a token are those of a type."""
        if kind not in self.BESIDE:
            return False
        opening = source.enclosing(i)
        there, j = set(), opening + 1
        while j < source.close.get(opening, 0):
            if source.words[j] == "." and source.words[j - 1] in ("{", ","):
                there.add(source.words[j + 1])
            j = source.close[j] + 1 if j in source.close else j + 1
        return bool(self.BESIDE[kind](there))

    def object_of(self, source, i):
        """(name of the object before the `.` at i - 1, its type, whether it is a designator in braces of that type)"""
        words = source.words
        designated = words[i - 1] == "." and words[i - 2] in ("{", ",", "(") and words[i + 1 : i + 2] in (["="], ["{"])
        obj = None
        if designated:
            opening = source.enclosing(i)
            owner = words[opening - 1] if opening > 0 and source.code[opening - 1].kind == "word" else None
            if owner == "return" or owner is None:
                owner = None
            elif words[opening - 2] != "::" and source.lookup(owner, opening - 1):
                owner = source.plain(source.lookup(owner, opening - 1)[2])
        else:
            obj, owner = source.object_type(i - 1)
            if obj == "this":
                opening = [at for at, kind in source.kinds.items() if kind == "class" and at < i < source.close[at]]
                owner = self.class_name(source, max(opening)) if opening else None
        return obj, owner, designated

    @staticmethod
    def taken(source, new, decl):
        """A class whose own scope has something of the new name keeps the old one."""
        return any(
            begin < decl[1] and decl[0] < end and at != decl[4] and (not member or begin == decl[0])
            for begin, end, _, member, at in source.declarations(new)
        )

    @staticmethod
    def beside(source, i, names):
        opening = source.enclosing(i)
        end = source.close.get(opening, len(source.words))
        return any(
            source.words[j] in names and source.words[j - 1] == "." for j in range(opening + 1, end) if source.code[j].kind == "word"
        )

    def string(self, text):
        quote = text.find('"')
        if quote < 0:
            return text
        inner = text[quote + 1 : -1]
        for old, new in self.STRINGS:
            inner = re.sub(old, new, inner)
        return text[: quote + 1] + inner + text[-1]

    def prose(self, text):
        """Names in a comment or a paragraph: whole names that are nothing else, and words between backticks."""
        names = {old: new for old, new in self.IDENTIFIERS.items() if "_" in old.strip("_")}
        for (space, old), new in self.QUALIFIED.items():
            text = re.sub(rf"\b((?:kv|kvpolicy)::(?:v0::)?{space + '::' if space else ''}){old}\b", rf"\g<1>{new}", text)
            if space:
                text = re.sub(rf"\b{space}::{old}\b", f"{space}::{new}", text)
        text = re.sub(r"\b[A-Za-z]\w*_\w+\b", lambda m: names.get(m.group(), m.group()), text)
        known = {**names, **self.QUOTED}
        text = re.sub(r"`([A-Za-z_]\w*)`", lambda m: f"`{known.get(m.group(1), m.group(1))}`", text)
        return self.paths(text)

    def paths(self, text):
        for old, new in self.HEADERS.items():
            text = re.sub(rf"(?<![\w/]){re.escape(old)}(?!\w)|(?<=kvpolicy/){re.escape(old)}(?!\w)", new, text)
        return text

    def markdown(self, text):
        out, changes, line = [], [], 1
        for i, part in enumerate(re.split(r"(^```(?:cpp|c\+\+|cuda)\n.*?^```)", text, flags=re.MULTILINE | re.DOTALL)):
            new = part
            if i % 2:
                head, body = part.split("\n", 1)
                body, found = self.run(body[: -len("```")])
                changes += [(line + at, old, to) for at, old, to in found]
                new = head + "\n" + body + "```"
            elif self.comments:
                new = self.prose(part)
                if new != part:
                    changes += [(line + k, a, b) for k, (a, b) in enumerate(zip(part.split("\n"), new.split("\n"))) if a != b]
            out.append(new)
            line += part.count("\n")
        return "".join(out), changes


    @classmethod
    def new_names(cls):
        return set(cls.IDENTIFIERS.values()) | set(cls.QUALIFIED.values())


# The program ---------------------------------------------------------------------------------------------------------------

SKIPPED = {"build", ".git", "third_party", "node_modules", "__pycache__"}


def files_of(paths):
    for path in paths:
        if path.is_dir():
            for each in sorted(path.rglob("*")):
                wanted = each.suffix in SUFFIXES or each.suffix == ".md"
                if wanted and each.is_file() and not SKIPPED & set(each.relative_to(path).parts):
                    yield each
        else:
            yield path


def rename(path, renamer, check):
    text = path.read_text(encoding="utf-8")
    new, changes = renamer.markdown(text) if path.suffix == ".md" else renamer.run(text)
    if new == text:
        return 0
    counts = {}
    for _, old, to in changes:
        counts[(old, to)] = counts.get((old, to), 0) + 1
    print(f"{path}: {len(changes)} changes")
    for (old, to), count in sorted(counts.items(), key=lambda one: -one[1]):
        if "\n" not in old and len(old) < 60:
            print(f"    {count:4} {old} -> {to}")
    if not check:
        path.write_text(new, encoding="utf-8")
    return len(changes)

def rows(pairs):
    return "".join(f"| {old} | {new} |\n" for old, new in pairs)


def table(renamer, versions, members, kinds={}):
    """The table old -> new as Markdown. `members`: its rows for members, [(old, new)]. `kinds`: what some names are."""
    head = f"| {versions[0]} | {versions[1]} |\n| --- | --- |\n"
    headers = rows((f"`<kvpolicy/{old}>`", f"`<kvpolicy/{new}>`") for old, new in renamer.HEADERS.items()
                   if "ops/host" not in old and "ops/cuda" not in old)
    spaces = [(f"{space}::" if space else "", old, new) for (space, old), new in renamer.QUALIFIED.items()]
    names = [(f"`{space}{old}`" + kinds.get(old, ""), f"`{space}{new}`") for space, old, new in spaces if not old.endswith("_t")]
    names += [(f"`{old}`", f"`{new}`") for old, new in renamer.IDENTIFIERS.items() if not old.endswith("_t")]
    return f"{head}{rows(sorted(names))}{rows(members)}\nHeaders:\n\n{head}{headers}"


def self_test(make, cases, page):
    """`cases`: [(options, before, after)]. `page`: a Markdown text and what it becomes."""
    failed = 0
    for options, before, after in cases:
        renamer = make(**options)
        found = renamer.run(before)[0]
        if found != after:
            failed += 1
            print(f"{options}\n  of       {before}  expected {after}  found    {found}")
        again = renamer.run(found)[0]
        if again != found:
            failed += 1
            print(f"{options}: not idempotent\n  first  {found}  second {again}")
    found = make().markdown(page[0])[0]
    if found != page[1]:
        failed += 1
        print("markdown:\n" + found)
    for name in make.new_names() & set(make.IDENTIFIERS):
        failed += 1
        print(f"{name} is a new name and an old one: a second run would change it")
    print(f"{len(cases) + 1} cases, {failed} failed")
    return 1 if failed else 0


def main(make, about, printed, cases, page):
    """`make`: the class of the renamer; `about`: the script's own text; `printed`: its table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--check", "--dry-run", action="store_true")
    parser.add_argument("--comments", action="store_true")
    parser.add_argument("--strings", action="store_true")
    parser.add_argument("--variables", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    with_ = parser.parse_args()
    if with_.self_test:
        sys.exit(self_test(make, cases, page))
    if with_.table:
        print(printed(), end="")
        sys.exit(0)
    renamer = make(with_.variables, with_.comments, with_.strings)
    changed = sum(rename(path, renamer, with_.check) for path in files_of(with_.paths))
    print(f"{changed} changes" + (" to make" if with_.check else ""))
    sys.exit(1 if with_.check and changed else 0)
