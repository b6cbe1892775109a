# SPDX-License-Identifier: Apache-2.0
"""What each lane of a request keeps, and the rows that move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch

import kvpolicy
from kvpolicy._device import on_device, placement

from .layout import copied, move, rows_of
from .requests import Cut
from .settings import Settings
from .windows import Windows


@dataclass(frozen=True)
class Layer:
    """A layer of attention: its name, its cache, and how its logits are made."""

    name: str
    cache: torch.Tensor
    layout: str
    query_heads: int
    scale: float
    soft_cap: float


@dataclass(frozen=True)
class Made:
    """A cut that was carried out. `kept` are the entries that each layer kept, [KV head, entry], counted among those it held."""

    tokens: int
    entries: int
    kept: list[torch.Tensor]


watchers: list[Callable[[Made], None]] = []  # functions of yours that see every cut of this process


def decide(settings: Settings, cut: Cut, layers: list[Layer], windows: Windows, block: int, threads: int) -> list[torch.Tensor]:
    """The kept entries of every layer, [KV head, entry], ascending. Nothing is moved."""
    kept, newest = cut.entries - cut.leave * block, cut.tokens % block
    if cut.rows < min(settings.window, cut.tokens):
        raise ValueError(f"the query rows of {min(settings.window, cut.tokens) - cut.rows} tokens came from the prefix cache")
    policy = settings.at(kept, newest)
    alone = settings.decides != "token" and not policy.startswith("random")  # layers whose decisions do not touch
    blocks = torch.from_numpy(cut.held.astype(np.int32)).to(layers[0].cache.device)
    made: list[torch.Tensor] = []
    for group in [[layer] for layer in layers] if alone else [layers]:
        heads, channels = group[0].cache.shape[1], group[0].cache.shape[3] // 2
        evictor = kvpolicy.Evictor(policy, layers=len(group), query_heads=group[0].query_heads, kv_heads=heads, head_dim=channels, value_dim=channels,
                                   capacity=cut.entries, scale=group[0].scale, soft_cap=group[0].soft_cap, threads=threads,
                                   **placement([layer.cache for layer in group]))
        evictor.append([cut.entries])
        if cut.slot is not None and cut.rows > 0:
            for index, layer in enumerate(group):
                evictor.observe(index, windows.rows(layer.name, cut.slot, cut.tokens, cut.rows))
        keys, values, held = _shown(settings, group, blocks, cut.entries)
        _, indices, _ = evictor.decide(keys, values, blocks=held)
        if len(indices) != len(group) * heads * kept:
            raise ValueError(f"its lanes keep {len(indices)} entries together, and {len(group) * heads} times {kept} have room")
        made += torch.as_tensor(on_device(indices)).long().view(len(group), heads, kept).unbind(0)
    return made


def _shown(settings: Settings, group: list[Layer], blocks: torch.Tensor, entries: int) -> tuple[Any, Any, Any]:
    """The keys and the values that a policy reads: the pool's, in these blocks, or copies where tiles of tokens hide the rows."""
    tiled = group[0].layout == "amx"
    made: list[list[torch.Tensor]] = []
    for which, name in enumerate(("keys", "values")):
        pools = [rows_of(layer.cache, layer.layout)[which] for layer in group] if name in settings.reads else []
        made.append([copied(pool, blocks.long(), entries) if tiled else pool[:, 0] for pool in pools])
    return made[0], made[1], None if tiled else blocks[None]


def carry_out(cut: Cut, kept: list[torch.Tensor], layers: list[Layer], block: int) -> None:
    """Moves the kept rows of every layer into the blocks that stay."""
    blocks = torch.from_numpy(cut.held).to(layers[0].cache.device, torch.int64)
    for layer, mine in zip(layers, kept):
        for rows in rows_of(layer.cache, layer.layout):
            move(rows, blocks, mine.to(blocks.device), cut.leave * block)
    for watcher in watchers:
        watcher(Made(cut.tokens, cut.entries, kept))


def newest(cut: Cut, heads: int, layers: int, block: int) -> list[torch.Tensor]:
    """What stays where a decision fails: the newest entries, which lie in the blocks that stay."""
    return [torch.arange(cut.leave * block, cut.entries).expand(heads, -1)] * layers
