# SPDX-License-Identifier: Apache-2.0
"""One decision about arrays, without a state."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Sequence

import numpy as np

from ._admission import SECTION, admission_of
from ._device import on_device, placement
from ._native import Evictor, PolicyFacts, policy_facts
from ._score import Layer, Score, no_scores, scores_of, spec_of

ELEMENTS = ("float32", "float16", "bfloat16")
NUMBERS = {"retention": "log_beta", "carried_score": "birth_score"}  # what a policy reads, and the numbers of tokens that it is


def available_threads() -> int:
    """The number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def reads_every_row(facts: PolicyFacts) -> bool:
    """Whether a policy goes by the query rows of all tokens, whatever column holds what it sums or notes of them."""
    return facts.every_row or "attention_mass" in facts.needs


@dataclass(frozen=True)
class Kept:
    """What each lane of a cache keeps. A lane is one KV head of one layer of one sequence.

    `indptr` (int64) and `indices` (int32) list the kept entries of all lanes, ascending in each lane, in the order of
    sequence, layer, KV head: lane i keeps `indices[indptr[i]:indptr[i + 1]]`. If the decision was made on a device,
    `indices` are a tensor of that device.
    """

    indptr: np.ndarray
    indices: Any
    sequences: int
    layers: int
    heads: int
    report: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> np.ndarray:
        """The number of kept entries of each lane, [layer, sequence, KV head]."""
        lanes = np.diff(self.indptr).reshape(self.sequences, self.layers, self.heads)
        return lanes.transpose(1, 0, 2)

    def lane(self, layer: int = 0, sequence: int = 0, head: int = 0) -> Any:
        """The kept entries of one lane, ascending."""
        for name, value, size in (("layer", layer, self.layers), ("sequence", sequence, self.sequences), ("head", head, self.heads)):
            if not 0 <= value < size:
                raise ValueError(f"lane: {name} = {value}, but the decision is about {size}")
        at = (sequence * self.layers + layer) * self.heads + head
        return self.indices[self.indptr[at] : self.indptr[at + 1]]

    def array(self) -> Any:
        """The kept entries of all lanes, [layer, sequence, KV head, kept], if all lanes keep equally many."""
        counts = np.unique(np.diff(self.indptr))
        if len(counts) != 1:
            raise ValueError(f"array: counts = {counts[0]} to {counts[-1]}, but an array has equally many entries in all lanes: use lane()")
        shape = (self.sequences, self.layers, self.heads, int(counts[0]))
        return self.indices.reshape(shape).swapaxes(0, 1)


def _check_array(name: str, given: Any, elements: Sequence[str] = ELEMENTS) -> None:
    """Refuses what is no array of these elements in the byte order of this machine."""
    if not hasattr(given, "shape") or not hasattr(given, "dtype"):
        raise ValueError(f"decide: {name} = {type(given).__name__}, but it is an array, or a list of the arrays of layers")
    element = str(given.dtype).removeprefix("torch.")
    if element not in elements:
        raise ValueError(f"decide: {name}.dtype = {element}, but the elements are {' or '.join(elements)}, in the machine's byte order")


def _by_entry(name: str, given: Any, axes: int) -> Any:
    """Numbers [layer, sequence, KV head, entry]. As with keys, the first axes may be missing."""
    _check_array(name, given, ELEMENTS[:1])
    if len(given.shape) not in (2, 3, 4) or len(given.shape) == 3 and axes == 5:
        raise ValueError(f"decide: {name}.shape = {tuple(given.shape)}, but the axes are [[layer,] sequence,] KV head and entry")
    return given if len(given.shape) == 4 else given[None] if len(given.shape) == 3 else given[None, None]


def _by_layer(name: str, given: Any) -> list[Any]:
    """The arrays [sequence, head, row, channel] of all layers."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        layers = list(given)
        for index, one in enumerate(layers):
            _check_array(f"{name}[{index}]", one)
            if len(one.shape) not in (3, 4):
                raise ValueError(f"decide: {name}[{index}].shape = {tuple(one.shape)}, but the axes are [sequence,] head, row and channel")
    else:
        _check_array(name, given)
        axes = len(given.shape)
        if axes not in (3, 4, 5):
            raise ValueError(f"decide: {name}.shape = {tuple(given.shape)}, but the axes are [layer, [sequence,]] head, row and channel")
        layers = list(given) if axes == 5 else [given]
    return [one[None] if len(one.shape) == 3 else one for one in layers]


def _scored(score: Score, keys: list[Any], values: list[Any], queries: list[Any], counts: list[int], scale: float | None, soft_cap: float) -> Any:
    """The scores [layer, sequence, KV head, entry] that a function of Python gives."""
    sequences, heads, rows, channels = keys[0].shape
    made = no_scores(keys[0], (len(keys), sequences, heads, max(rows, 1)))
    for layer, all_keys in enumerate(keys):
        for sequence, count in enumerate(counts):
            if count == 0:
                continue
            own = lambda arrays: arrays[layer][sequence][:, rows - count :] if arrays else None
            asked = queries[layer][sequence] if queries else None
            positions = np.broadcast_to(np.arange(count), (heads, count))
            if not isinstance(all_keys, np.ndarray) and hasattr(all_keys, "new_tensor"):
                positions = all_keys.new_tensor(positions.copy()).long()
            seen = Layer(layer, own(keys), own(values), None if asked is None else asked[:, max(asked.shape[1] - count, 0) :], positions, count - 1,
                         channels**-0.5 if scale is None else scale, soft_cap)
            made[layer, sequence, :, :count] = scores_of("decide", score, seen)
    return made


def _sections(policy: str | Score, parts: str | None, budget: int | float | None) -> tuple[str, str | None]:
    """The text of an eviction that decides, and that of a selection. An eviction that leaves what an admission does decides for it."""
    section = SECTION.match(policy) if isinstance(policy, str) else None
    if section is None:
        return spec_of("decide", policy, parts, budget), None
    if section[1] == "select" and parts is None and budget is None:
        return "full", str(policy)
    admission = admission_of("decide", policy, parts, budget)
    assert admission is not None
    return admission.eviction, None


def decide(
    policy: str | Score,
    *,
    parts: str | None = None,
    budget: int | float | None = None,
    keys: Any = None,
    values: Any = None,
    queries: Any = None,
    scores: Any = None,
    log_beta: Any = None,
    birth_score: Any = None,
    lengths: Sequence[int] | None = None,
    entries: int | None = None,
    scale: float | None = None,
    soft_cap: float = 0.0,
    threads: int | None = None,
) -> Kept:
    """Says which entries of a KV cache a policy keeps, as at the end of a prefill.

    `policy` is a text such as "snapkv(window=32) | budget(1024)" or "knorm | budget(ratio=0.5)"; the ratio is the part
    that is dropped. It may also be a function of your own, `score(layer) -> array [KV head, entry]`: the entries with
    the highest scores are kept, and `kvpolicy.Layer` says what it sees. `parts` is a text of the parts after a scorer,
    such as "sinks(4) | recent(16)", and `budget` a number of entries, or below 1 the part that is dropped.

    With "admit: write_gate | window(256) | at_least(0.1)" the kept entries are those that an admission leaves in the cache:
    its window, and what `birth_score` admits. With "select: quest(page=16) | budget(512)" what is kept are the *pages* that
    the newest query rows read.

    Arrays are of NumPy, PyTorch, JAX or any library with DLPack, in host memory, float32, float16 or bfloat16, with any
    strides (the channels of query rows are contiguous); nothing is copied. Where the package was built for CUDA, they may
    be tensors of PyTorch on one device, on whose current stream the decision is made. Each is [layer, sequence, head, row,
    channel], or without the first axis, or without the first two, or a list of arrays of layers.

    - `keys`, `values`: after RoPE, as attention reads them, one row for each entry.
    - `queries`: the rows of the last tokens, after RoPE, not scaled. Policies that sum over all rows (h2o) need all, and so do
      those that read a whole prompt's (late_attention). For intent_kv they are the rows of the turn.
    - `scores`: float32 [layer, sequence, KV head, entry], or without the first axes, for the policy "external".
      `log_beta` (trim_kv) and `birth_score` (carried, fast_kvzip, ...) likewise: what a gate gave for each entry.
    - `lengths`: the entries of each sequence, which are its *last* rows; by default all rows.
    - `entries`: the number of entries if neither keys nor values are given.
    - `scale`: the factor of q.k, 1 / sqrt(channels) by default; `soft_cap`: the cap of logits, 0 for none.
    - `threads`: of the host; by default one for each processor. The result does not depend on it.

    Raises ValueError in one line: `call: argument = value, but rule`.
    """
    score = None if isinstance(policy, str) else policy
    policy, selection = _sections(policy, parts, budget)
    facts = policy_facts(policy)
    numbers = {"log_beta": log_beta, "birth_score": birth_score}
    read = {NUMBERS[need] for need in facts.needs if need in NUMBERS}
    for name, one in numbers.items():
        if (one is not None) != (name in read):
            raise ValueError(f"decide: {name} = {'none' if one is None else 'given'}, but {facts.scorer} {'reads it' if one is None else 'does not read it'}")
    if queries is None and (facts.window_rows > 0 or reads_every_row(facts) or facts.turn_rows > 0):
        raise ValueError(f"decide: queries = none, but {facts.scorer} reads query rows")
    key_layers, value_layers, query_layers = (_by_layer(name, one) for name, one in (("keys", keys), ("values", values), ("queries", queries)))
    given = key_layers or value_layers
    axes = 0 if isinstance(keys, (list, tuple)) or keys is None else len(keys.shape)
    scores = None if scores is None else _by_entry("scores", scores, axes)
    numbers = {name: _by_entry(name, one, axes) for name, one in numbers.items() if one is not None}
    sized = scores if scores is not None else next(iter(numbers.values()), None)
    if score is not None and (not key_layers or scores is not None):
        raise ValueError(f"decide: {'keys = none' if not key_layers else 'scores = given'}, but a score in Python is made from keys")
    if given:
        layers, (sequences, heads, rows, head_dim) = len(given), given[0].shape
    elif sized is not None:
        layers, sequences, heads, rows = sized.shape
        head_dim = 1
    else:
        if entries is None:
            raise ValueError("decide: keys = none, but without keys, values and scores entries says how many entries there are")
        layers, sequences, heads, rows, head_dim = 1, 1, 1, entries, 1
        if query_layers:  # the evictor names what else it reads
            layers, sequences, head_dim = len(query_layers), query_layers[0].shape[0], query_layers[0].shape[3]
    if selection is not None and not (key_layers and query_layers):
        raise ValueError(f"decide: {'keys' if not key_layers else 'queries'} = none, but a selection reads keys and the newest query rows")
    if value_layers and not key_layers and query_layers:
        head_dim = query_layers[0].shape[3]
    query_heads = query_layers[0].shape[1] if query_layers else heads
    if query_layers and len(query_layers) != layers:
        raise ValueError(f"decide: queries = {len(query_layers)} layers, but there are {layers}")
    counts = [int(one) for one in lengths] if lengths is not None else [int(rows)] * sequences
    for one in counts:
        if not 0 <= one <= rows:
            raise ValueError(f"decide: lengths = {one}, but the arrays have {rows} rows")
    for sequence, count in enumerate(counts if reads_every_row(facts) and query_layers else []):  # a device does not notice it
        missing = count - query_layers[0].shape[2]
        if missing > 0:
            raise ValueError(f"decide: queries = missing of {missing} entries of layer 0 of sequence {sequence}, but {facts.scorer} {'sums over' if 'attention_mass' in facts.needs else 'goes by'} the rows of all tokens: observe them")
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
        **placement([*key_layers, *value_layers, *query_layers, *(one for one in (scores, *numbers.values()) if one is not None)]),
    )
    if score is not None:
        scores = _scored(score, key_layers, value_layers, query_layers, counts, scale, soft_cap)
        query_layers = []
    decider.append(counts)
    for name, one in numbers.items():
        if tuple(one.shape) != (layers, sequences, heads, rows):
            raise ValueError(f"decide: {name}.shape = {tuple(one.shape)}, but layers, sequences, KV heads and entries are {(layers, sequences, heads, int(rows))}")
        for layer in range(layers):
            decider.observe(layer, **{name: one[layer]})
    turn = []
    if facts.turn_rows > 0:
        turn, query_layers = [one[:, :, max(one.shape[2] - facts.turn_rows, 0) :] for one in query_layers], []
        for layer, one in enumerate(turn):
            decider.observe(layer, turn_queries=one)
    for layer, one in enumerate(query_layers if selection is None else []):
        decider.observe(layer, one, *(every[layer] if every else None for every in (key_layers, value_layers)))
    if selection is not None:
        indptr, indices, report = decider.select(selection, key_layers, query_layers)
    else:
        of_prompt: dict[str, Any] = {"queries": query_layers} if "queries" in facts.needs else {}
        indptr, indices, report = decider.decide(key_layers, value_layers, scores, turn, **of_prompt)
    return Kept(indptr, on_device(indices), sequences, layers, heads, report)
