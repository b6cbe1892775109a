# SPDX-License-Identifier: Apache-2.0
"""When a request is cut and how many of its blocks leave, as scheduler and workers both compute it.

A request that has `tokens` tokens keeps, in every lane, whole blocks and the tail behind them:

    before   [b0 ........][b1 ........][b2 ........][b3 ........][b4 ..]
    after    [ given back ][given back ][b2 kept    ][b3 kept    ][b4 ..]

Kept rows move into the last whole blocks, so that the blocks at the head go back to the pool, as those before a sliding
window do. Both sides compute the same numbers from the same few facts, so that no message is needed between them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cuts:
    """How many blocks a cut leaves.

    - `budget`: the entries that a lane keeps at most; at least one block and the tail always stay.
    - `block`: the tokens of a block.
    - `slack`: while it decodes, a request is cut again when it holds so many whole blocks more than its budget has; 0:
      it is cut after its prompt only.
    - `during_prefill`: the same holds between two chunks of its prompt.
    """

    budget: int
    block: int
    slack: int = 0
    during_prefill: bool = False

    @property
    def whole(self) -> int:
        """The whole blocks that a request keeps at most."""
        return max(1, self.budget // self.block)

    def skipped(self, tokens: int) -> int:
        """The blocks at the head of a request that leave when it is cut at `tokens` tokens. It never falls as tokens grow."""
        if tokens <= self.budget:
            return 0
        return max(0, tokens // self.block - max(1, (self.budget - tokens % self.block) // self.block))

    def kept(self, tokens: int) -> int:
        """The entries of a lane after a cut at `tokens` tokens."""
        return tokens - self.skipped(tokens) * self.block

    def following(self, skip: int, shared: int) -> int | None:
        """The tokens at which a request is cut next, if `skip` of its blocks have left and its first `shared` are not its own."""
        return (max(skip + self.slack, shared) + self.whole) * self.block if self.slack > 0 else None

    def first(self, prompt: int, shared: int = 0) -> int:
        """The fewest tokens at which a request of `prompt` tokens can be cut first, if it is cut at all."""
        between = self.following(0, shared) if self.during_prefill else None
        return prompt if between is None else min(prompt, between)

    def most_held(self, tokens_in_flight: int) -> int:
        """The blocks that a request holds at most, if all cuts are made as they fall due.

        The step before a cut and the step that cuts bring tokens before any block is free: each at most `tokens_in_flight`.
        """
        return self.whole + self.slack + -(-2 * tokens_in_flight // self.block) + 1


@dataclass
class Course:
    """The cuts of one request. Its scheduler and its workers each follow one, step by step.

    The first step that decodes cuts, and others do when they are due. No cut moves rows into the request's first `shared`
    blocks, which came from the prefix cache: a cut that would is left out.
    """

    cuts: Cuts
    shared: int = 0
    skip: int = 0  # the blocks at the head that have left
    began: bool = False
    due: int | None = None  # the tokens at the next cut
    intact: int = 0  # the blocks at the head that left at the first cut: no row was ever moved into them

    def __post_init__(self) -> None:
        if self.cuts.during_prefill:
            self.due = self.cuts.following(0, self.shared)

    def step(self, tokens: int, decodes: bool) -> bool:
        """Whether the request is cut at the begin of a step, when it has `tokens` tokens."""
        if decodes and not self.began:
            self.began = True
        elif self.due is None or tokens < self.due:
            return False
        skip = self.cuts.skipped(tokens)
        cut = skip > self.skip and skip >= self.shared
        if cut:
            self.skip = skip
            self.intact = self.intact or skip
        self.due = self.cuts.following(self.skip, self.shared)
        return cut

    def never_written(self) -> int | None:
        """The blocks at the head into which no cut moves rows, once the request has begun to decode; None: there is no cut."""
        if self.intact > 0:
            return self.intact
        return None if self.due is None else self.cuts.skipped(self.due)


def first_cut(cuts: Cuts, prompt: int, shared: int = 0) -> int | None:
    """The fewest tokens of a request of `prompt` tokens when blocks can first leave it; None: they never do."""
    course, first = Course(cuts, shared), cuts.first(prompt, shared)
    return first if course.step(first, True) else course.due
