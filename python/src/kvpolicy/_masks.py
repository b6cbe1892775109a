# SPDX-License-Identifier: Apache-2.0
"""Masks of one layer whose lanes hold unequal numbers of entries, or that has an admission.

A model makes one mask for all layers, as if no lane had padding and all layers had as many rows as the first. Of this
mask the part about the new tokens stays; what is known of a layer's rows replaces the other part.
"""

from __future__ import annotations

from typing import Any

import torch

from ._admission import Admission
from ._cache import EvictedLayer


def of_entries(layer: EvictedLayer, query: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mask [sequence, head, new token, row]: of new tokens as the model says, of rows those that are entries."""
    new = query.shape[2]
    if mask is None:
        mask = torch.ones(new, new, dtype=torch.bool, device=query.device).tril()[None, None]
    valid = layer.valid_rows()
    if valid is None:
        valid = torch.ones(1, 1, layer.rows, dtype=torch.bool, device=query.device)
    held = valid[..., : layer.rows - new].to(query.device)
    if held.shape[1] > 1:
        held = held.repeat_interleave(query.shape[1] // held.shape[1], dim=1)
    held = held[:, :, None, :]
    if mask.dtype != torch.bool:
        held = torch.zeros(held.shape, dtype=mask.dtype, device=mask.device).masked_fill(~held, torch.finfo(mask.dtype).min)
    of_new = mask[..., mask.shape[-1] - new :]
    shape = (max(held.shape[0], of_new.shape[0]), max(held.shape[1], of_new.shape[1]), new)
    return torch.cat((held.expand(*shape, -1), of_new.expand(*shape, -1)), dim=-1)


def of_admitted(admission: Admission, admitted: torch.Tensor, query: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mask [sequence, head, new token, row]: what the mask given shows, if it is in the row's window or was admitted."""
    new, rows = query.shape[2], admitted.shape[2]
    if mask is None:
        mask = torch.ones(new, rows, dtype=torch.bool, device=query.device).tril(rows - new)[None, None]
    seen = admission.visible(admitted, new).repeat_interleave(query.shape[1] // admitted.shape[1], dim=1)
    return seen & mask if mask.dtype == torch.bool else mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def of_padding(layer: EvictedLayer, query: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask [sequence, row] of flash attention, where the heads of a sequence hold equally many entries."""
    valid = layer.valid_rows()
    if valid is None:
        return mask
    new = query.shape[2]
    of_new = torch.ones(valid.shape[0], new, dtype=torch.bool, device=query.device) if mask is None else mask[:, mask.shape[1] - new :].bool()
    made = torch.cat((valid[:, 0, : layer.rows - new].to(query.device), of_new), dim=1)
    return None if bool(made.all()) else made


def shown(mask: Any, device: torch.device) -> torch.Tensor:
    """The mask [sequence, 1, new token, row] of a BlockMask that a model has made, which is the same for all heads."""
    from torch.nn.attention.flex_attention import create_mask

    sequences, _, new, rows = mask.shape
    return create_mask(mask.mask_mod, sequences, 1, new, rows, device=device)


def of_blocks(seen: torch.Tensor) -> Any:
    """The BlockMask of flex attention, from a mask [sequence, 1 or head, new token, row]."""
    from torch.nn.attention.flex_attention import create_block_mask

    sequences, heads, new, rows = seen.shape
    of_head = lambda sequence, head, row, entry: seen[sequence, head, row, entry]
    of_all = lambda sequence, head, row, entry: seen[sequence, 0, row, entry]
    return create_block_mask(of_all if heads == 1 else of_head, sequences, None if heads == 1 else heads, new, rows, device=seen.device)
