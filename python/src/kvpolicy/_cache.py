# SPDX-License-Identifier: Apache-2.0
"""A layer of a cache of transformers from which entries were dropped."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch
from transformers.cache_utils import DynamicLayer

# Until transformers 5.3 `crop` took the number of tokens that stay, below 0 of those that go; later only the latter.
CROPS_TO_LENGTH = "max_length" in inspect.signature(DynamicLayer.crop).parameters


class EvictedLayer(DynamicLayer):
    """A layer of a DynamicCache from which entries were dropped.

    Its tensors hold the kept entries and the tokens after them. `get_seq_length` still counts every token, so that
    `generate` continues at the right position. A lane that keeps fewer entries than the longest one of its layer has
    padding in front of them.
    """

    keys: Any
    values: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropped = 0  # tokens that are no longer in the tensors
        self.kept = 0  # rows that the last eviction left
        self.reordered = False  # sequences changed their places
        self.uneven = False  # other layers have other numbers of rows
        self.in_block = False  # a forward runs that knows the mask of this layer
        self.valid: torch.Tensor | None = None  # [sequence, 1 or KV head, row] of the first rows; None: no row is padding
        self.admitted: torch.Tensor | None = None  # [sequence, KV head, row], under an admission

    @property
    def rows(self) -> int:
        return 0 if self.keys is None or self.keys.numel() == 0 else self.keys.shape[-2]

    @property
    def masked(self) -> bool:
        """Whether the mask that a model makes is not the one of this layer's rows."""
        return self.uneven or self.valid is not None

    def valid_rows(self) -> torch.Tensor | None:
        """Which rows are entries, [sequence, 1 or KV head, row]; None: all of them."""
        more = 0 if self.valid is None else self.rows - self.valid.shape[-1]
        return self.valid if self.valid is None or more == 0 else torch.nn.functional.pad(self.valid, (0, more), value=True)

    def note_padding(self, new: torch.Tensor) -> None:
        """Notes which of the newest rows are tokens, [sequence, row]. Before a cut the model's own mask says it."""
        if self.masked:
            held = self.valid_rows()
            held = torch.ones(new.shape[0], 1, self.rows, dtype=torch.bool, device=new.device) if held is None else held.clone()
            held[..., held.shape[-1] - new.shape[1] :] &= new[:, None, :].to(held.device)
            self.valid = held

    def note_admitted(self, new: torch.Tensor) -> None:
        """Notes which of the newest rows an admission admits, [sequence, KV head, row]."""
        self.admitted = new if self.admitted is None else torch.cat((self.admitted, new), dim=2)

    def _move(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Moves what is known of rows as the rows move."""
        self.valid = None if self.valid is None else move(self.valid)
        self.admitted = None if self.admitted is None else move(self.admitted)

    def get_seq_length(self, *_: Any) -> int:
        return self.rows + self.dropped

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.masked and not self.in_block:
            raise ValueError("hf.evict: cache = one whose lanes hold unequal numbers of entries, but only a model inside of a block masks their padding")
        return super().update(key_states, value_states, *args, **kwargs)

    def get_mask_sizes(self, query_length: Any, *_: Any) -> tuple[int, int]:
        # Before transformers 5.3 the argument is the tensor of positions.
        new = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return self.rows + new, self.dropped

    def crop(self, tokens: int) -> None:
        if tokens > 0 and not CROPS_TO_LENGTH:
            raise ValueError(f"crop: tokens = {tokens}, but a number of tokens to remove is given as a negative one")
        length = self.get_seq_length()
        remove = -tokens if tokens < 0 or not CROPS_TO_LENGTH else max(length - tokens, 0)
        if remove == 0:
            return
        if remove >= length:
            self.keys, self.values = self.keys[..., :0, :], self.values[..., :0, :]
            self.dropped = self.kept = 0
            self.uneven, self.valid, self.admitted = False, None, None
            return
        if remove > self.rows - self.kept:
            raise ValueError(
                f"crop: tokens = {remove}, but only the {self.rows - self.kept} tokens after the last eviction can be removed"
            )
        self.keys = self.keys[..., :-remove, :]
        self.values = self.values[..., :-remove, :]
        self._move(lambda rows: rows[..., : self.rows])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.reordered = True
        self._move(lambda rows: rows[beam_idx.to(rows.device)])
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reordered = True
        self._move(lambda rows: rows.repeat_interleave(repeats, dim=0))
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reordered = True
        self._move(lambda rows: rows[indices.to(rows.device)])
        super().batch_select_indices(indices)

    def reset(self) -> None:
        super().reset()
        self.dropped = self.kept = 0
        self.reordered, self.uneven, self.valid, self.admitted = False, False, None, None


def tracked(layer: DynamicLayer) -> EvictedLayer:
    made = EvictedLayer()
    made.__dict__.update(layer.__dict__)
    return made
