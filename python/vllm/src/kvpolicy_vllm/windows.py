# SPDX-License-Identifier: Apache-2.0
"""The last query rows of requests, in a tensor [slot, place, query head, channel] for each layer."""

from __future__ import annotations

from typing import Any

import torch


class Windows:
    def __init__(self, window: int):
        self.window = window
        self.kept: dict[str, torch.Tensor] = {}

    def keep(self, layer: str, query: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor, places: torch.Tensor, size: int) -> None:
        """Keeps rows of `query`, [token, query head, channel]; there are `size` slots."""
        held = self.kept.get(layer)
        if held is None or held.shape[0] < size:
            larger = query.new_empty((size, self.window, *query.shape[1:]))
            if held is not None:
                larger[: held.shape[0]] = held
            held = self.kept[layer] = larger
        held[slots, places] = query[tokens]

    def copy(self, pairs: list[tuple[int, int]], size: int) -> None:
        """Slots that begin as copies of others, each a pair of from and to."""
        for layer, held in self.kept.items():
            if held.shape[0] < size:
                larger = held.new_empty((size, *held.shape[1:]))
                larger[: held.shape[0]] = held
                held = self.kept[layer] = larger
            for source, target in pairs:
                held[target] = held[source]

    def rows(self, layer: str, slot: int, tokens: int, count: int) -> Any:
        """The last `count` query rows of a request that has `tokens` tokens, [1, query head, row, channel]."""
        places = torch.arange(tokens - count, tokens) % self.window
        return self.kept[layer][slot][places].permute(1, 0, 2).contiguous()[None]
