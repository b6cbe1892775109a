"""One decision about arrays, without a state."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Sequence

import numpy as np

from ._native import Evictor, policy_facts


def available_threads() -> int:
    """The number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@dataclass(frozen=True)
class Kept:
    """What each lane of a cache keeps. A lane is one KV head of one layer of one sequence.

    `indptr` (int64) and `indices` (int32) list the kept entries of all lanes, ascending in each lane, in the order of
    sequence, layer, KV head: lane i keeps `indices[indptr[i]:indptr[i + 1]]`.
    """

    indptr: np.ndarray
    indices: np.ndarray
    sequences: int
    layers: int
    heads: int
    report: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> np.ndarray:
        """The number of kept entries of each lane, [layer, sequence, KV head]."""
        lanes = np.diff(self.indptr).reshape(self.sequences, self.layers, self.heads)
        return lanes.transpose(1, 0, 2)

    def lane(self, layer: int = 0, sequence: int = 0, head: int = 0) -> np.ndarray:
        """The kept entries of one lane, ascending."""
        for name, value, size in (("layer", layer, self.layers), ("sequence", sequence, self.sequences), ("head", head, self.heads)):
            if not 0 <= value < size:
                raise ValueError(f"lane: {name} = {value}, but the decision is about {size}")
        at = (sequence * self.layers + layer) * self.heads + head
        return self.indices[self.indptr[at] : self.indptr[at + 1]]

    def array(self) -> np.ndarray:
        """The kept entries of all lanes, [layer, sequence, KV head, kept], if all lanes keep equally many."""
        counts = np.unique(np.diff(self.indptr))
        if len(counts) != 1:
            raise ValueError(f"array: counts = {counts[0]} to {counts[-1]}, but an array has equally many entries in all lanes: use lane()")
        shape = (self.sequences, self.layers, self.heads, int(counts[0]))
        return self.indices.reshape(shape).transpose(1, 0, 2, 3)


def _by_layer(name: str, given: Any) -> list[Any]:
    """The arrays [sequence, head, row, channel] of all layers."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        layers = list(given)
    else:
        axes = len(given.shape)
        if axes not in (3, 4, 5):
            raise ValueError(f"decide: {name}.shape = {tuple(given.shape)}, but the axes are [layer, [sequence,]] head, row and channel")
        layers = list(given) if axes == 5 else [given]
    return [one[None] if len(one.shape) == 3 else one for one in layers]


def decide(
    policy: str,
    *,
    keys: Any = None,
    values: Any = None,
    queries: Any = None,
    scores: Any = None,
    lengths: Sequence[int] | None = None,
    entries: int | None = None,
    scale: float | None = None,
    soft_cap: float = 0.0,
    threads: int | None = None,
) -> Kept:
    """Says which entries of a KV cache a policy keeps, as at the end of a prefill.

    `policy` is a text such as "snapkv(window=32) | budget(1024)" or "knorm | budget(ratio=0.5)"; the ratio is the part
    that is dropped.

    Arrays are of NumPy, PyTorch, JAX or any library with DLPack, in host memory, float32, float16 or bfloat16, with any
    strides (the channels of query rows are contiguous); nothing is copied. Each is [layer, sequence, head, row, channel],
    or without the first axis, or without the first two, or a list of arrays of layers.

    - `keys`, `values`: after RoPE, as attention reads them, one row for each entry.
    - `queries`: the rows of the last tokens, after RoPE, not scaled. Policies that sum over all rows (h2o) need all.
    - `scores`: float32 [layer, sequence, KV head, entry], for the policy "external".
    - `lengths`: the entries of each sequence, which are its *last* rows; by default all rows.
    - `entries`: the number of entries if neither keys nor values are given.
    - `scale`: the factor of q.k, 1 / sqrt(channels) by default; `soft_cap`: the cap of logits, 0 for none.
    - `threads`: of the host; by default one for each processor. The result does not depend on it.

    Raises ValueError in one line: `call: argument = value, but rule`.
    """
    facts = policy_facts(policy)
    if queries is None and (facts.window_rows > 0 or facts.every_row):
        raise ValueError(f"decide: queries = none, but {facts.scorer} reads query rows")
    key_layers, value_layers, query_layers = (_by_layer(name, one) for name, one in (("keys", keys), ("values", values), ("queries", queries)))
    given = key_layers or value_layers
    if given:
        layers, (sequences, heads, rows, head_dim) = len(given), given[0].shape
    elif scores is not None:
        layers, sequences, heads, rows = scores.shape
        head_dim = 1
    else:
        if entries is None:
            raise ValueError("decide: keys = none, but without keys, values and scores entries says how many entries there are")
        layers, sequences, heads, rows, head_dim = 1, 1, 1, entries, 1
    if value_layers and not key_layers and query_layers:
        head_dim = query_layers[0].shape[3]
    query_heads = query_layers[0].shape[1] if query_layers else heads
    if query_layers and len(query_layers) != layers:
        raise ValueError(f"decide: queries = {len(query_layers)} layers, but there are {layers}")
    counts = [int(one) for one in lengths] if lengths is not None else [int(rows)] * sequences
    for one in counts:
        if not 0 <= one <= rows:
            raise ValueError(f"decide: lengths = {one}, but the arrays have {rows} rows")
    decider = Evictor(
        policy,
        layers=layers,
        query_heads=query_heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=value_layers[0].shape[3] if value_layers else 0,
        sequences=sequences,
        capacity=max(int(rows), 1),
        scale=scale,
        soft_cap=soft_cap,
        threads=available_threads() if threads is None else threads,
    )
    decider.append(counts)
    for layer, one in enumerate(query_layers):
        decider.observe(layer, one, key_layers[layer] if key_layers else None)
    indptr, indices, report = decider.decide(key_layers, value_layers, scores)
    return Kept(indptr, indices, sequences, layers, heads, report)
