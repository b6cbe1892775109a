# SPDX-License-Identifier: Apache-2.0
"""The memory of vLLM's attention. A layer's cache is [block, KV head, block size, 2 * channels], but for what is inside of a block and head.

- "rows": the key and the value of a token lie side by side. FlashAttention, FlashInfer and Triton read it so.
- "vec", "vec16": all keys, transposed, and then all values. With B tokens of D channels, number `d * B + t` is that of
  channel d of the key of token t, and `t * D + d` that of its value.
- "amx": all keys, and then all values, as AMX multiplies pairs of 16 bits: keys in tiles of 16 tokens, values in tiles of
  16 channels. `(t / 16) * 16 D + (d / 2) * 32 + (t % 16) * 2 + d % 2` is that of a key, and
  `(d / 16) * 16 B + (t / 2) * 32 + (d % 16) * 2 + t % 2` that of a value.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

LAYOUTS = ("rows", "vec", "vec16", "amx")


def rows_of(cache: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and the values of a layer's cache: views [block, tile, token in the tile, KV head, channel ...] of its memory."""
    blocks, heads, size, both = cache.shape
    channels = both // 2
    if layout == "rows":
        keys, values = cache.transpose(1, 2)[:, None].split(channels, dim=-1)
        return keys, values
    keys, values = cache.view(blocks, heads, 2, size * channels).unbind(2)
    if layout == "amx":
        keys = keys.view(blocks, heads, size // 16, channels // 2, 16, 2).permute(0, 2, 4, 1, 3, 5)
        return keys, values.view(blocks, heads, channels // 16, size // 2, 16, 2).permute(0, 3, 5, 1, 2, 4)
    keys = keys.view(blocks, heads, 1, channels, size).permute(0, 2, 4, 1, 3)
    return keys, values.view(blocks, heads, 1, size, channels).permute(0, 2, 3, 1, 4)


def at(rows: torch.Tensor, blocks: torch.Tensor, entries: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Where entries [KV head, entry], counted over all of a request's blocks, lie in a view of `rows_of`."""
    tile, heads = rows.shape[2], torch.arange(len(entries), device=entries.device)[:, None]
    size = rows.shape[1] * tile
    return blocks[entries // size], entries % size // tile, entries % tile, heads


def move(rows: torch.Tensor, blocks: torch.Tensor, kept: torch.Tensor, first: int) -> None:
    """Moves entry kept[h, j] of each head h to entry first + j, counted over all of the request's blocks."""
    to = first + torch.arange(kept.shape[1], device=kept.device)
    moves = (kept != to).any(dim=0)
    kept, to = kept[:, moves], to[moves].expand(len(kept), -1)
    rows[at(rows, blocks, to)] = rows[at(rows, blocks, kept)]  # the right side is a copy, so that rows may move over each other


def copied(rows: torch.Tensor, blocks: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` entries of a request as an array [1, KV head, entry, channel] of its own."""
    entries = torch.arange(count, device=rows.device).expand(rows.shape[3], -1)
    return rows[at(rows, blocks, entries)].flatten(2)[None]


def check(layout: str, heads: int, size: int, channels: int, dtype: torch.dtype, write: Callable[..., None]) -> None:
    """Raises ValueError if `write(key, value, keys, values, slots, layout)`, vLLM's own, puts a row elsewhere than `rows_of` says."""
    refuse = lambda why: ValueError(f"kvpolicy: the memory's layout is {layout}, but {why}: the plugin knows {', '.join(LAYOUTS[1:])}")
    if layout not in LAYOUTS:
        raise refuse("rows of it are not known")
    cache = torch.zeros(2, heads, size, 2 * channels, dtype=dtype)
    key, value = (torch.arange(1, 1 + 2 * size * heads * channels).view(2 * size, heads, channels).remainder(prime).to(dtype) for prime in (241, 251))
    write(key, value, *cache.view(2, heads, 2 * size, channels).chunk(2, dim=2), torch.arange(2 * size), layout)
    for mine, theirs in zip(rows_of(cache, layout), (key, value)):
        if not torch.equal(copied(mine, torch.arange(2), 2 * size)[0], theirs.transpose(0, 1)):
            raise refuse("this processor's rows lie elsewhere")
