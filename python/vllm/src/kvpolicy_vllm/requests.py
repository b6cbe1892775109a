# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of its requests from one step to the next.

A step shows rows: lengths and block tables, no names of requests. A request is recognised by the block that it wrote last and
by its number of tokens, because only its owner writes there. If two rows agree in both, one of them took the other's prefix
from the cache, and their query rows agree so far: each gets them. One that decodes is continued by a row of one token
behind its prompt only: another row took what it left in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import Course, Cuts


@dataclass
class Request:
    course: Course
    row: int = -1  # where it stood in the latest step
    block: int = -1  # the block that it wrote last
    tokens: int = 0
    slot: int | None = None  # of its query rows
    rows_from: int = 0  # the slot has the query rows since this position, of them the last ones


@dataclass
class Cut:
    """A request that is cut at the begin of a step. Its entries are in `held` blocks, of which the first `leave` leave."""

    row: int
    tokens: int
    held: np.ndarray
    leave: int
    entries: int
    slot: int | None
    rows: int  # how many of the last query rows the slot has


@dataclass
class Step:
    skips: np.ndarray  # the blocks at the head of each row that are void
    cuts: list[Cut] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # from slot, to slot
    captured: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # of the query rows to keep: token in the batch, slot, place


class Requests:
    """The requests of a worker, and the slots that hold their last `window` query rows: that of position p is at p % window."""

    def __init__(self, cuts: Cuts, window: int):
        self.cuts, self.window = cuts, window
        self.named: dict[int, Request] = {}  # by the block that a request wrote last; one that ended stays until its block is written again
        self.free: list[int] = []
        self.slots = 0

    def begin(self, tables: Any, ends: np.ndarray, lengths: np.ndarray, prefilling: np.ndarray) -> Step:
        """A step: row i of the batch brings the last `lengths[i]` of `ends[i]` tokens; `tables[i, b]` is its block b."""
        step = Step(np.zeros(len(ends), np.int64))
        found = self._recognised(tables, ends, lengths, prefilling, step)
        taken: list[list[np.ndarray]] = []
        starts = np.concatenate(([0], np.cumsum(lengths)))
        for row, request in found:
            end, new = int(ends[row]), int(lengths[row])
            begin, before, course = end - new, request.course.skip, request.course
            if course.step(begin, not prefilling[row] and new == 1):
                held = tables[row, before : -(-begin // self.cuts.block)].copy()
                rows = min(self.window, begin - request.rows_from) if request.slot is not None else 0
                step.cuts.append(Cut(row, begin, held, course.skip - before, begin - before * self.cuts.block, request.slot, rows))
            step.skips[row] = course.skip
            if self._to_capture(course, end):
                first = max(begin, end - self.window)
                if request.slot is None:
                    request.slot, request.rows_from = self._take(), begin
                positions = np.arange(first, end)
                taken.append([starts[row] + positions - begin, np.full(end - first, request.slot), positions % self.window])
            else:
                self._release(request)
            self._name(request, row, tables[row, begin // self.cuts.block : (end - 1) // self.cuts.block + 1].tolist(), end)
        if taken:
            tokens, slots, places = (np.concatenate(one) for one in zip(*taken))
            step.captured = (tokens, slots, places)
        return step

    def _to_capture(self, course: Course, end: int) -> bool:
        """Whether the query rows of the last tokens may be read by the next cut."""
        if self.window == 0:
            return False
        return not course.began or course.due is not None and end > course.due - self.window

    def _recognised(self, tables: Any, ends: np.ndarray, lengths: np.ndarray, prefilling: np.ndarray, step: Step) -> list[tuple[int, Request]]:
        """The rows that are requests, each with what is known of it."""
        rows: list[tuple[int, int, Request | None]] = []
        claims: dict[int, list[int]] = {}
        for row in range(len(ends)):
            end, begin = int(ends[row]), int(ends[row] - lengths[row])
            if end == begin or tables[row, (end - 1) // self.cuts.block] == 0:
                continue  # padding, or a run without requests: block 0 is written by none
            known = self.named.get(int(tables[row, (begin - 1) // self.cuts.block])) if begin > 0 else None
            known = known if known is not None and known.tokens == begin else None
            rows.append((row, begin, known))
            if known is not None and (not known.course.began or end == begin + 1 and not prefilling[row]):
                claims.setdefault(id(known), []).append(row)
        made = []
        for row, begin, known in rows:
            if known is None:
                made.append((row, Request(Course(self.cuts, shared=begin // self.cuts.block), rows_from=begin)))
                continue
            claimants = claims.get(id(known), [-1])
            owner = known.row if known.row in claimants else claimants[0]
            made.append((row, known if row == owner else self._like(known, begin, step)))
        return made

    def _like(self, known: Request, begin: int, step: Step) -> Request:
        """A request that took the prefix of another one from the cache."""
        made = Request(Course(self.cuts, shared=begin // self.cuts.block), rows_from=begin)
        if known.slot is not None:
            made.slot, made.rows_from = self._take(), known.rows_from
            step.copies.append((known.slot, made.slot))
        return made

    def _name(self, request: Request, row: int, written: list[int], tokens: int) -> None:
        """Its names from now on. A request whose last block another one writes has ended."""
        if self.named.get(request.block) is request:
            del self.named[request.block]
        for block in written:
            if block in self.named:
                self._release(self.named.pop(block))
        request.row, request.block, request.tokens = row, written[-1], tokens
        self.named[request.block] = request

    def _take(self) -> int:
        if not self.free:
            self.free = list(range(2 * self.slots, self.slots - 1, -1))
            self.slots = 2 * self.slots + 1
        return self.free.pop()

    def _release(self, request: Request) -> None:
        if request.slot is not None:
            self.free.append(request.slot)
            request.slot = None
