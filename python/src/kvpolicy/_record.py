# SPDX-License-Identifier: Apache-2.0
"""What is known of a cache beside its rows."""

from __future__ import annotations

import torch

from ._native import Evictor
from ._projections import Moments


class Record:
    """What is known of a cache: the entries of its sequences, and how many tokens it has had."""

    def __init__(self, evictor: Evictor) -> None:
        self.evictor = evictor
        self.seen = 0  # tokens that every layer has had, dropped ones included
        self.queries: dict[int, torch.Tensor] = {}  # the last rows of each layer, for scores in Python
        self.turn: dict[int, torch.Tensor] = {}  # the last rows of each layer in this turn, until it is decided about
        self.moments: dict[int, Moments] = {}  # of each layer's query rows before RoPE in this turn, likewise
        self.moments_from = 0  # the tokens before the first of these rows
        self.rows: dict[str, list[list[torch.Tensor]]] = {}  # rows and tokens of a whole prompt, of each layer and chunk
        self.gathered = 0  # tokens from the first one on of which these are there; below 0: they were decided about

    def remove_last(self, removed: int) -> None:
        self.evictor.remove_last([removed] * len(self.evictor.counts))
        self.seen -= removed
        shorter = lambda rows: {place: one[:, :, : max(one.shape[2] - removed, 0)] for place, one in rows.items()}
        self.queries, self.turn = shorter(self.queries), shorter(self.turn)
        if self.seen <= self.moments_from:
            self.moments = {}
        if self.gathered > self.seen:
            self.rows = {name: [[one[..., : self.seen, :]] for one in self.whole(name)] for name in self.rows}
            self.gathered = self.seen

    def gather(self, name: str, place: int, rows: torch.Tensor, layers: int = 1) -> None:
        """Keeps rows [sequence, head, row, channel] of a prompt's newest tokens."""
        self.rows.setdefault(name, [[] for _ in range(layers)])[place].append(rows)

    def whole(self, name: str) -> list[torch.Tensor]:
        """The rows of all tokens of a prompt, of each layer."""
        return [one[0] if len(one) == 1 else torch.cat(one, dim=2) for one in self.rows.get(name, [])]

    def stacked(self, name: str) -> torch.Tensor:
        """The same, with all layers in one memory."""
        rows = self.whole(name)
        return torch.stack([one.to(rows[0].device) for one in rows])
