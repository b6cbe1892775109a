# SPDX-License-Identifier: Apache-2.0
"""The page of what policies keep: keep_map.html, filled in, and written as a whole or not at all."""

from __future__ import annotations

import base64
import html
import json
import os
import platform
import secrets
import stat
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from ._native import __version__  # type: ignore[attr-defined]

TEMPLATE = Path(__file__).with_name("keep_map.html")
KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISCHR, "a device"),
         (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))  # fmt: skip


class History:
    """What each lane holds of a text, step by step. Step 0 is the first decision; entries that have not arrived count as held."""

    def __init__(self, lanes: int, entries: int) -> None:
        self.arrived: list[int] = []
        self._bits = np.ones((lanes, entries), dtype=bool)
        self._first = self._bits
        self._ends: list[int] = []
        self._gone: list[np.ndarray] = []

    def look(self, held: Sequence[np.ndarray], arrived: int) -> None:
        """Notes which of the first `arrived` entries each lane holds: first at step 0, and then after each step."""
        now = np.zeros_like(self._bits)
        for lane, positions in enumerate(held):
            now[lane, positions] = True
        now[:, arrived:] = True
        if self.arrived:
            self._gone.append(np.argwhere(self._bits & ~now).astype("<u4"))
        else:
            self._first = now
        self._ends.append(sum(len(one) for one in self._gone))
        self._bits = now
        self.arrived.append(arrived)

    def json(self) -> dict[str, Any]:
        packed = np.packbits(self._first, axis=1, bitorder="little")
        gone = np.concatenate(self._gone) if self._gone else np.zeros((0, 2), dtype="<u4")
        return {"kept": _base64(packed.tobytes()), "ends": self._ends, "gone": _base64(gone.tobytes())}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def machine(device: str) -> str:
    """The processor of this machine, as Linux names it, its cores, and the model's device."""
    name = platform.machine()
    try:
        names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        name = names[0] if names else name
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores" + ("" if device == "cpu" else f"; {device}")


def table_html(columns: Sequence[tuple[str, str]], rows: Sequence[tuple[str | None, Sequence[str]]]) -> str:
    """A table: of each column its name and unit, and of each row its budget, if it has one, and its cells."""
    head = "".join(f'<th scope="col">{html.escape(name)}{f" <small>{html.escape(unit)}</small>" if unit else ""}</th>' for name, unit in columns)
    body = ""
    for budget, cells in rows:
        of = f' data-budget="{html.escape(budget)}"' if budget else ""
        first, *others = (html.escape(cell) for cell in cells)
        body += f'<tr{of}><th scope="row">{first}</th>' + "".join(f"<td>{one}</td>" for one in others) + "</tr>\n"
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"


def page(*, title: str, sentence: str, made: dict[str, str], docs: str, numbers: str, table: str, data: dict[str, Any]) -> str:
    """The page as HTML. All texts but the table are plain."""
    about = {**made, "kvpolicy": __version__}
    line = "".join(f"{html.escape(name)}: {html.escape(value)} · " for name, value in about.items())
    link = html.escape(docs)
    parts = {"title": html.escape(title), "sentence": html.escape(sentence), "made": f'{line}how to read it: <a href="{link}">{link}</a>',
             "numbers": html.escape(numbers), "table": table, "data": json.dumps(data).replace("<", "\\u003c")}
    text, written = TEMPLATE.read_text(encoding="utf-8"), ""
    while "{{" in text:  # what is put in is not searched
        before, _, rest = text.partition("{{")
        name, _, text = rest.partition("}}")
        written += before + parts[name]
    return written + text


def check_replaceable(path: str) -> os.stat_result | None:
    """What is known of the regular file at `path`, or None if there is none. Raises ValueError for what may not be replaced."""
    if not path:
        raise ValueError("it cannot be written: a file has a name")
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        there = None
    except OSError as failed:
        raise ValueError(f"it cannot be written: {failed.strerror}") from None
    for is_kind, kind in KINDS:
        if there is not None and is_kind(there.st_mode):
            raise ValueError(f"it cannot be written: it is {kind}")
    descriptor, temporary = _created_beside(path, there)
    os.close(descriptor)
    os.unlink(temporary)
    return there


def _created_beside(path: str, old: os.stat_result | None) -> tuple[int, str]:
    """A new file in the folder of `path`: its descriptor and its name."""
    name = f"{path}.{secrets.token_hex(8)}.unfinished"
    try:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if old else 0o666), name
    except OSError as failed:
        raise ValueError(f"it cannot be written: {failed.strerror}") from None


def replace(path: str, text: str) -> None:
    """Writes the file under another name beside `path`, whose place it takes when it is whole."""
    old = check_replaceable(path)
    descriptor, temporary = _created_beside(path, old)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if old is not None:
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
