# SPDX-License-Identifier: Apache-2.0
"""Rows of a layer's tensors, by what lanes hold and keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def aligned(tensors: list[torch.Tensor], counts: np.ndarray) -> list[torch.Tensor]:
    """The tensors as `Evictor.decide` reads them: of one shape, and the lanes of a sequence begin where the longest does.

    `counts` [sequence, layer, KV head] has the entries of each lane, which are its last rows. Tensors that are so already
    are not copied.
    """
    rows = [one.shape[2] for one in tensors]
    if len(set(rows)) == 1 and bool((counts == counts[:, :, :1]).all()):
        return tensors
    most, made = int(counts.max()), []
    for place, one in enumerate(tensors):
        held = counts[:, place, :, None]
        ordinal = np.arange(most) - (most - held.max(axis=1, keepdims=True))  # of the entry that stands in a row
        chosen = np.minimum(np.clip(ordinal, 0, np.maximum(held - 1, 0)) + rows[place] - held, rows[place] - 1)
        made.append(picked(one, torch.from_numpy(chosen)))
    return made


def kept_rows(indptr: np.ndarray, indices: Any, kept: np.ndarray, before: np.ndarray, rows: list[int]) -> list[torch.Tensor]:
    """The kept rows of every layer's tensors, [sequence, KV head, kept], where `indices` are.

    `kept` and `before` [sequence, layer, KV head] count the entries of lanes, and `rows` those of the layers' tensors. A lane
    that keeps fewer than the longest one of its layer has padding in front of them.
    """
    most = kept.max(axis=(0, 2))
    first = indptr[:-1].reshape(kept.shape)
    shift = np.asarray(rows, np.int64)[None, :, None] - before
    if not isinstance(indices, np.ndarray):
        return _kept_on_device(first, indices, kept, shift)
    made = [np.zeros((kept.shape[0], kept.shape[2], int(one)), np.int64) for one in most]
    for sequence, place, head in np.ndindex(kept.shape):
        count, begin = kept[sequence, place, head], first[sequence, place, head]
        made[place][sequence, head, most[place] - count :] = indices[begin : begin + count] + shift[sequence, place, head]
    return [torch.from_numpy(one) for one in made]


def _kept_on_device(first: np.ndarray, indices: torch.Tensor, kept: np.ndarray, shift: np.ndarray) -> list[torch.Tensor]:
    """The same in a few launches for all layers, without a copy to the host. There a loop over lanes takes a sixth of the time."""
    most = int(kept.max())
    of_lanes = lambda numbers: torch.from_numpy(np.ascontiguousarray(numbers))[..., None].to(indices.device)
    padding, column = of_lanes(most - kept), torch.arange(most, device=indices.device)
    made = indices[(of_lanes(first) - padding + column).clamp_(min=0)] + of_lanes(shift)
    made.masked_fill_(column < padding, 0)
    return [made[:, place, :, most - int(kept[:, place].max()) :] for place in range(kept.shape[1])]


def picked(tensor: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The rows `chosen` [sequence, head, kept] of a tensor [sequence, head, row, channel], in memory of their own."""
    return tensor.gather(2, chosen.to(tensor.device)[..., None].expand(-1, -1, -1, tensor.shape[-1]))
