# SPDX-License-Identifier: Apache-2.0
"""Scores of entries that are written in Python."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

Score = Callable[["Layer"], Any]


@dataclass(frozen=True)
class Layer:
    """What a score sees of one layer of one sequence. Arrays are of the library that the keys came from.

    - `index`: the layer, counted from 0 among those that are cut.
    - `keys`, `values`: the entries that the layer holds, [KV head, entry, channel], after RoPE. `values` may be None.
    - `queries`: the rows of the last tokens, [query head, row, channel], after RoPE; None if none were asked for.
    - `positions`: the positions of the entries, [KV head, entry]. In a cache that another policy has cut, or in a copy
      of a cut one, those entries count from 0, since what was dropped between them is not known. Where the heads of a
      layer hold unequal numbers, -1 stands after the last entry of a head, and what is scored there does not count.
    - `last_position`: the position of the newest token, to which the last query row belongs.
    - `scale`: the factor of q.k; `soft_cap`: the cap of logits, 0 for none.
    """

    index: int
    keys: Any
    values: Any
    queries: Any
    positions: Any
    last_position: int
    scale: float
    soft_cap: float = 0.0

    def probabilities(self) -> Any:
        """The attention of the query rows to the entries, [query head, row, entry], float32. Later entries have 0."""
        if self.queries is None:
            raise ValueError("Layer.probabilities: queries = none, but probabilities are of query rows: ask for rows=")
        group, rows = self.queries.shape[0] // self.keys.shape[0], self.queries.shape[1]
        newest = self.last_position - rows + 1 + np.arange(rows)
        if isinstance(self.keys, np.ndarray):
            keys, positions = (np.repeat(one, group, axis=0) for one in (self.keys.astype(np.float32), self.positions))
            logits = self.scale * self.queries.astype(np.float32) @ keys.transpose(0, 2, 1)
            logits = self.soft_cap * np.tanh(logits / self.soft_cap) if self.soft_cap > 0 else logits
            logits = np.where((positions[:, None, :] <= newest[:, None]) & (positions >= 0)[:, None, :], logits, -np.inf)
            made = np.exp(logits - logits.max(axis=-1, keepdims=True))
            return made / made.sum(axis=-1, keepdims=True)
        keys, positions = (one.repeat_interleave(group, dim=0) for one in (self.keys.float(), self.positions))
        logits = self.scale * self.queries.float() @ keys.transpose(1, 2)
        logits = self.soft_cap * (logits / self.soft_cap).tanh() if self.soft_cap > 0 else logits
        later = (positions[:, None, :] > positions.new_tensor(newest)[:, None]) | (positions < 0)[:, None, :]
        return logits.masked_fill(later, float("-inf")).softmax(dim=-1)


def name_of(score: Any) -> str:
    return getattr(score, "__name__", type(score).__name__)


def spec_of(call: str, policy: "str | Score", parts: str | None, budget: int | float | None) -> str:
    """The text of a policy. A score in Python is the scorer `external`; a budget below 1 is the part that is dropped."""
    if not isinstance(policy, str) and not callable(policy):
        raise ValueError(f"{call}: policy = {type(policy).__name__}, but it is a text, or a function that scores a layer")
    begin = policy if isinstance(policy, str) else "external"
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, numbers.Real) or budget < 0 or 1 <= budget != int(budget)):
        raise ValueError(f"{call}: budget = {budget!r}, but it is a number of entries, or below 1 the part that is dropped")
    size = None if budget is None else f"budget({int(budget)})" if budget >= 1 or budget == 0 and isinstance(budget, numbers.Integral) else f"budget(ratio={budget})"
    return " | ".join(one for one in (begin, parts, size) if one)


def _numbers_like(keys: Any, made: Any) -> Any:
    """float32 numbers of the library, and on the device, of the keys."""
    if hasattr(keys, "new_tensor"):
        return made.detach().to(keys.device).float() if hasattr(made, "detach") else keys.float().new_tensor(np.asarray(made, dtype=np.float32))
    return np.asarray(made.detach().float().cpu() if hasattr(made, "detach") else made, dtype=np.float32)


def no_scores(keys: Any, shape: tuple[int, ...]) -> Any:
    """Zeros float32, of the library and on the device of the keys."""
    return keys[..., :0].float().new_zeros(shape) if hasattr(keys, "new_zeros") else np.zeros(shape, np.float32)


def scores_of(call: str, score: Score, layer: Layer) -> Any:
    """The scores [KV head, entry], float32. What is wrong with them is one sentence."""
    shape = (layer.keys.shape[0], layer.keys.shape[1])
    try:
        made = score(layer)
    except Exception as error:
        raise ValueError(f"{call}: score = {name_of(score)}, but for layer {layer.index} it raised {type(error).__name__}: {error}") from error
    try:
        numbers = _numbers_like(layer.keys, made)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{call}: score = {name_of(score)}, but for layer {layer.index} it gave a {type(made).__name__} and no array of numbers") from error
    if tuple(numbers.shape) != shape:
        raise ValueError(f"{call}: score = {name_of(score)}, but for layer {layer.index} it gave the shape {tuple(numbers.shape)}, and [KV head, entry] is {shape}")
    bad = int((numbers != numbers)[layer.positions >= 0].sum())
    if bad > 0:
        raise ValueError(f"{call}: score = {name_of(score)}, but for layer {layer.index} it gave NaN for {bad} entries")
    return numbers
