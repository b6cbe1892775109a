"""The memory of vLLM's CPU attention.

A layer's cache is [block, KV head, block size, 2 * channels], but inside of a block and head lie all keys, then all values.
Keys are transposed there: number `channel * block size + token` is that of a key, `token * channels + channel` that of a value.
"""

from __future__ import annotations

from typing import Any

import torch


def rows_of(cache: Any) -> tuple[Any, Any]:
    """The keys and the values of a layer's cache, each a view [block, token, KV head, channel] of its memory."""
    blocks, heads, size, both = cache.shape
    keys, values = cache.view(blocks, heads, 2, size * both // 2).unbind(2)
    channels = both // 2
    return keys.view(blocks, heads, channels, size).permute(0, 3, 1, 2), values.view(blocks, heads, size, channels).permute(0, 2, 1, 3)


def move(rows: Any, blocks: Any, kept: Any, first: int) -> None:
    """Moves row kept[h, j] of each head h to row first + j, where rows are counted over all of the request's blocks."""
    size = rows.shape[1]
    heads, count = kept.shape
    to = first + torch.arange(count)
    stays = (kept == to).all(dim=0)
    kept, to = kept[:, ~stays], to[~stays]
    head = torch.arange(heads)[:, None]
    moved = rows[blocks[kept // size], kept % size, head]  # a copy, so that rows may move over each other
    rows[blocks[to // size], to % size, head] = moved

