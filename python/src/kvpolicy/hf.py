# SPDX-License-Identifier: Apache-2.0
"""Eviction in models of Hugging Face transformers.

    with kvpolicy.hf.evict(model, "snapkv(window=32) | budget(ratio=0.25)"):
        model.generate(**inputs)

The keys and values of a model's full-attention layers are cut after each prefill, or after each forward; layers with a
sliding window, or of linear attention, are left alone. The model's code is not changed: its attention function is
replaced by one that shows the query rows to the policy and then calls the model's own, and a hook shortens the cache.
"""

from __future__ import annotations

import re
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import _masks
from ._admission import admission_of
from ._cache import EvictedLayer, tracked
from ._decide import NUMBERS, Kept, available_threads, reads_every_row
from ._device import on_device, placement
from ._model import LEFT_ALONE, Layers, expects
from ._native import Evictor, PolicyFacts, policy_facts
from ._passes import Pass, Passes, Reading, Repeated, passes_after, shorten
from ._projections import Moments, Turning, known_moments, moments_of, norm_read_by, norms_of_entries, output_weights, rows_of_heads
from ._record import Record
from ._rows import aligned, kept_rows, picked
from ._score import Layer, Score, name_of, no_scores, scores_of, spec_of
from .gates import FreshTokens, Gate, load

__all__ = ["EvictedLayer", "Eviction", "Pass", "Repeated", "evict"]

BASES = ("sdpa", "eager", "flex_attention", "flash_attention_2")
UNMASKED = ("flash_attention_2",)  # takes no mask but that of padding
PREFIX = "kvpolicy_"
SIGNALS = {"keys", "values", "recent_queries", "attention_mass", "turn_queries", "value_norms", "queries", "pre_rope_keys", "external_queries"}
OF_PROMPTS = ("queries", "pre_rope_keys")  # rows of a whole prompt, which are kept until it is decided about
MOMENTS = {"pre_rope_queries", "query_model"}  # what reads either is given the moments of a prompt's rows; a profile of a model is none
LONG_PROMPT = 4096  # tokens from which a progress bar is shown
MOST_DRAFTS = 1024  # tokens that a verification may refuse: so many more query rows are kept until it is known


# The record of every cache and the text of its policy, so that a later block continues with the same cache.
_records: "weakref.WeakKeyDictionary[DynamicCache, dict[str, Record]]" = weakref.WeakKeyDictionary()
# The eviction of each configuration whose attention function is replaced.
_active: dict[int, "Eviction"] = {}


def _attention(base: str) -> Any:
    """An attention function that shows the query rows, and then calls the function `base`."""

    # kvpress wraps every attention function, and gives dropout by its place.
    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, dropout: float = 0.0, **kwargs: Any
    ) -> Any:
        eviction = _active.get(id(module.config))
        if eviction is not None:
            eviction._observe(module, query, key, value, kwargs.get("scaling"))
            attention_mask = eviction._mask_of(base, module, query, key, attention_mask)
        own = sys.modules[type(module).__module__]
        function = own.eager_attention_forward if base == "eager" else ALL_ATTENTION_FUNCTIONS[base]
        if base not in UNMASKED:
            return function(module, query, key, value, attention_mask, dropout=dropout, **kwargs)
        replaced, module.config._attn_implementation = module.config._attn_implementation, base  # which function reads
        try:
            return function(module, query, key, value, attention_mask, dropout=dropout, **kwargs)
        finally:
            module.config._attn_implementation = replaced

    return attend


for _base in BASES:
    ALL_ATTENTION_FUNCTIONS.register(PREFIX + _base, _attention(_base))
    ALL_MASK_ATTENTION_FUNCTIONS.register(PREFIX + _base, ALL_MASK_ATTENTION_FUNCTIONS[_base])


@dataclass
class _Shown:
    """What a forward showed of a layer. Of drafts it counts once it is known which of them stay."""

    query: torch.Tensor  # the last rows
    tokens: int
    numbers: torch.Tensor | None  # of a gate, [sequence, KV head, token]


class Eviction:
    """An eviction in progress: what `evict` returns.

    `decisions` counts the cuts. `kept` is what the last one kept, by the ordinals of the entries before it; `kept.report`
    counts what only the data shows (NaN, forced entries over the budget, lanes of which no query row was seen).
    """

    def __init__(
        self, model: PreTrainedModel, policy: str | Score, parts: str | None, budget: int | float | None, rows: int,
        gates: Gate | str | Path | None, *, when: str | None, progress: bool | None, threads: int | None,
        passes: Passes | None = None, query_model: tuple[Any, Any] | None = None,
    ) -> None:
        expects(isinstance(rows, int) and rows >= 0, "rows", rows, "it is a number of query rows")
        self._score: Any = None if isinstance(policy, str) else policy
        expects(rows == 0 or self._score is not None, "rows", rows, "a policy by name says itself how many query rows it reads")
        self._rows = rows
        self._admission = admission_of("hf.evict", policy, parts, budget)
        self.facts: PolicyFacts = policy_facts(self._admission.eviction if self._admission is not None else spec_of("hf.evict", policy, parts, budget))
        self.policy = self._admission.text if self._admission is not None else self.facts.text
        self._scorer = self._admission.scorer if self._admission is not None else self.facts.scorer
        self.decisions = 0
        self.kept: Kept | None = None
        model = _without_adapters(model)
        self._model: Any = model
        when = ("prefill" if self._admission is None else "forward") if when is None else when
        self._when, self._progress = when, progress
        # A ratio is one of the entries held where the policy decides after a prefill, and of the tokens seen elsewhere.
        says_phase = "ratio=" in self.policy and "| when(" not in self.policy
        self._timed = f"{self.facts.text} | when({'prefill' if when == 'prefill' else 'step'})" if says_phase else self.facts.text
        self._known_as = self._timed if self._admission is None else self.policy  # among the records of a cache
        self._threads = available_threads() if threads is None else threads
        self._gate: Any = load(gates) if isinstance(gates, (str, Path)) else gates
        self._every_row = reads_every_row(self.facts)
        self._of_prompts = tuple(one for one in OF_PROMPTS if one in self.facts.needs)
        self._passes = passes
        self._reading: Reading | None = None  # while the model reads what comes after a prompt
        self._projects = passes is not None and any("output_projection" in one for one in self.facts.needs)
        self._number = next((NUMBERS[one] for one in self.facts.needs if one in NUMBERS), None)
        self._check(model, when)
        self._layers = Layers(model)
        self._check_gate()
        self._norm = None if self._projects else norm_read_by(self.facts.text, self.facts.needs)
        self._weights = [] if self._norm is None and not self._projects else output_weights(self._layers)
        self._turning = Turning(self._layers, type(model).__name__) if self._reads_moments() else None
        self._query_model = None if query_model is None else known_moments(query_model, self._layers, self._reads_moments(), self.facts.scorer)
        self._check_prompts()
        self._sinks = int(next(iter(re.findall(r"\bsinks=(\d+)", self.facts.text)), 0))
        self._inputs: dict[int, dict[str, torch.Tensor]] = {}  # of the gate, by layer, while a forward runs
        self._handles: list[Any] = []
        self._previous: list[tuple[Any, str]] = []
        self._forward: tuple[Record, DynamicCache, int, list[int], torch.Tensor | None] | None = None
        self._verifies = False  # tokens are drafts until the cache is cropped
        self._first = False  # the first verification holds the prompt
        self._drafts: tuple[Record, DynamicCache, dict[int, "_Shown"], bool] | None = None
        self._shown: dict[int, _Shown] = {}
        self._noted: dict[int, Moments] = {}  # of a forward that runs
        self._newest: dict[str, dict[int, torch.Tensor]] = {}  # rows of a prompt, likewise
        self._admitted: dict[int, torch.Tensor] = {}  # which new tokens of a layer are, while a forward runs
        self._in_prefill = False
        self._pending: tuple[Record, DynamicCache] | None = None
        self._bar: Any = None

    def _check(self, model: PreTrainedModel, when: str) -> None:
        expects(when in ("prefill", "forward"), "when", when, "a policy decides after each prefill or after each forward")
        expects(self._admission is None or when == "forward", "when", when, "an admission decides about each token when it leaves the window, in every forward")
        base = model.config._attn_implementation
        expects(not str(base).startswith(PREFIX), "model", type(model).__name__, "it is inside another block already")
        expects(base in BASES, "attention implementation", base, f"the known ones are {', '.join(BASES[:-1])} and {BASES[-1]}")
        masked = [one for one in BASES if one not in UNMASKED]
        expects(base in masked or not self._may_be_unequal(), "attention implementation", base,
                f"lanes may hold unequal numbers of entries under {self.policy}, and masks of lanes are taken by {', '.join(masked[:-1])} and {masked[-1]}")
        known = {*NUMBERS, *(["external"] if self._score is not None else [])}
        missing = [one for one in self.facts.needs if SIGNALS.isdisjoint(one.split(" or ")) and one not in known and not _is_of_moments(one)]
        expects(not missing, "policy", self.policy, f"it reads {', '.join(missing)}, which models of transformers do not give")
        expects("turn_queries" not in self.facts.needs or when == "prefill", "when", when, f"{self.facts.scorer} decides once for each turn, after its prefill")
        once = self._reads_moments() or self._of_prompts or self._passes is not None
        expects(not once or when == "prefill", "when", when, f"{self.facts.scorer} decides once for each prompt, after its prefill")
        external = "external_queries" in self.facts.needs
        expects(not external or self._passes is not None, "passes", None, f"{self.facts.scorer} goes by the query rows of what a model reads after a prompt: give passes=")
        expects(external or self._passes is None, "passes", "given", f"{self.facts.scorer} does not go by what a model reads after a prompt")
        expects(self.facts.decides == "lane" or self.facts.scope == "lane", "policy", self.policy, f"what decides by {self.facts.decides} has one budget already")
        for part in self.policy.split(" | ")[1:]:
            expects(part != "lowest_one", "policy", self.policy, "lowest_one leaves a hole where an entry was, and a DynamicCache has none")

    def _check_prompts(self) -> None:
        """Refuses models of which a whole prompt is not shown, or that cannot take back what they read after it."""
        fused = any(hasattr(one, "qkv_proj") for one in self._layers.modules)
        expects(not fused or "pre_rope_keys" not in self._of_prompts, "model", type(self._model).__name__, "it has a fused projection, which shows no keys before RoPE")
        whole = len(self._layers.cut) == self._layers.total
        expects(whole or self._passes is None, "model", type(self._model).__name__, "its layers with a sliding window or linear attention cannot take back what they read after a prompt")

    def _reads_moments(self) -> bool:
        """Whether the policy reads the moments of query rows before RoPE."""
        return any(_is_of_moments(one) for one in self.facts.needs)

    def _may_be_unequal(self) -> bool:
        """Whether heads or layers may keep unequal numbers of entries, or see other ones than a row before them."""
        shares = re.search(r"\bby=(?!seen)", self.facts.text) is not None
        return self._admission is not None or shares or self.facts.scope != "lane" or "| at_least(" in self.facts.text

    def _check_gate(self) -> None:
        expects(self._number is None or self._gate is not None, "gates", self._gate, f"{self._scorer} reads the {self._number} of a gate: give gates=")
        expects(self._number is not None or self._gate is None, "gates", "given", f"{self.facts.scorer} reads no gate")
        fused = any(hasattr(one, "qkv_proj") for one in self._layers.modules)
        expects(self._gate is None or not fused, "gates", "given", f"{type(self._model).__name__} has a fused projection, which shows no keys before RoPE")
        expects(self._gate is None or callable(self._gate), "gates", type(self._gate).__name__, "it is a file of weights, or a function of fresh tokens")
        gives = getattr(self._gate, "gives", self._number)
        expects(gives == self._number, "gates", type(self._gate).__name__, f"it gives {gives}, and {self._scorer} reads {self._number}")
        model = {"layers": self._layers.total, "KV heads": self._layers.shape["kv_heads"], "channels of a key": self._layers.shape["head_dim"],
                 "channels of a hidden row": getattr(self._layers.config, "hidden_size", None)}
        for name, size in getattr(self._gate, "sizes", {}).items():
            expects(model[name] in (None, size), "gates", f"of {size} {name}", f"the model has {model[name]}")

    # The block ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> "Eviction":
        self._check(self._model, self._when)
        name = PREFIX + self._model.config._attn_implementation
        for config in {id(one): one for one in (*self._layers.configs, self._layers.config)}.values():
            self._previous.append((config, config._attn_implementation))
            config._attn_implementation = name
            _active[id(config)] = self
        decoder = self._layers.decoder
        self._handles.append(decoder.register_forward_pre_hook(self._before, with_kwargs=True))
        self._handles.append(decoder.register_forward_hook(self._after, with_kwargs=True, always_call=True))
        for module in self._layers.modules if self._gate is not None or self._projects else []:
            self._handles.append(module.register_forward_pre_hook(self._keep_hidden, with_kwargs=True))
        for module in self._layers.modules if self._gate is not None or "pre_rope_keys" in self._of_prompts else []:
            keys: Any = next(one for one in (getattr(module, name, None) for name in ("k_norm", "k_layernorm", "k_proj")) if one is not None)
            self._handles.append(keys.register_forward_hook(lambda _, args, output, of=module: self._keep_keys(of, args[0], output)))
        for module in self._layers.modules if self._turning is not None else []:
            query: Any = next(one for one in (getattr(module, name, None) for name in ("q_norm", "q_layernorm", "q_proj")) if one is not None)
            self._handles.append(query.register_forward_hook(lambda _, args, output, of=module: self._keep_queries(of, args[0], output)))
        if hasattr(self._model, "_prefill"):
            self._model._prefill = self._whole_prefill
        if hasattr(self._model, "_get_candidate_generator"):
            self._model._get_candidate_generator = self._begin_drafts
            self._model.generate = self._generate
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self._handles:
            handle.remove()
        for config, previous in self._previous:
            config._attn_implementation = previous
            _active.pop(id(config), None)
        for name in ("_prefill", "_get_candidate_generator", "generate"):
            self._model.__dict__.pop(name, None)
        self._shown, self._inputs, self._admitted, self._noted, self._newest = {}, {}, {}, {}, {}
        self._handles, self._previous, self._forward, self._pending, self._drafts = [], [], None, None, None

    def _whole_prefill(self, *args: Any, **kwargs: Any) -> Any:
        """The prefill of `generate`, of which all chunks are shown before the policy decides."""
        within, self._in_prefill = self._in_prefill, True
        self._pending = self._pending if within else None
        try:
            output = type(self._model)._prefill(self._model, *args, **kwargs)
        finally:
            self._in_prefill = within
        if not within:
            self._decide_pending()
        return output

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Forwards inside of this block are chunks of one prompt, after whose last one the policy decides.

            with kvpolicy.hf.evict(model, policy) as eviction:
                with eviction.prompt():
                    for chunk in prompt.split(512, dim=1):
                        model(input_ids=chunk, past_key_values=cache)
        """
        self._in_prefill, self._pending = True, None
        try:
            yield
        except BaseException:
            self._pending = None
            raise
        finally:
            self._in_prefill = False
        self._decide_pending()

    def positions(self, cache: DynamicCache, sequence: int = 0) -> list[np.ndarray]:
        """The positions that each lane of a sequence holds, ascending: layer by layer of those that are cut, head by head.

        The cache is one that was used inside of this block.
        """
        record = _records.get(cache, {}).get(self._known_as)
        expects(record is not None, "cache", "one without a record", f"the positions under {self.policy} are known of caches that it has read")
        assert record is not None
        lanes = [lane for place in range(len(self._layers.cut)) for lane in record.evictor.positions(place)[sequence]]
        return [lane[lane >= 0] for lane in lanes]

    def _decide_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._evict(*pending)

    def _begin_drafts(self, *args: Any, **kwargs: Any) -> Any:
        """Speculative decoding begins. Which tokens of a forward stay is known when the next one begins."""
        settled = self._turning is None and not self._of_prompts and self._passes is None
        expects(settled, "drafts", "speculative decoding", f"{self.facts.scorer} reads all rows of a prompt, and which of them are drafts is known later")
        self._verifies = self._first = True
        return type(self._model)._get_candidate_generator(self._model, *args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            output = type(self._model).generate(self._model, *args, **kwargs)
            self._settle()
        finally:
            self._verifies, self._drafts = False, None
        return output

    def _settle(self) -> None:
        """Notes the tokens of a verification that the model accepted, and decides if it was a prefill."""
        if self._drafts is None:
            return
        (record, cache, shown, decides), self._drafts = self._drafts, None
        accepted = self._layers.cut_of(cache)[0].get_seq_length() - record.seen
        refused = max((one.tokens - accepted for one in shown.values()), default=0)
        expects(refused <= MOST_DRAFTS, "drafts", f"{refused} that were refused", f"query rows are kept for {MOST_DRAFTS}")
        record.evictor.append([accepted])
        record.seen += accepted
        for place, one in shown.items():
            layer = self._layers.cut_of(cache)[place]
            rows = one.query[:, :, : one.query.shape[2] - (one.tokens - accepted)]
            self._show(record, place, rows, layer.keys, layer.values, None if one.numbers is None else one.numbers[:, :, :accepted])
            self._keep_rows(record, place, rows, decides)
        if decides:
            self._evict(record, cache)

    # A forward ------------------------------------------------------------------------------------------------------
    def _before(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._forward = None
        if self._reading is not None:
            return None
        self._settle()
        cache = kwargs.get("past_key_values")
        wanted = kwargs.get("use_cache")
        if cache is None:
            if not (self._layers.config.use_cache if wanted is None else wanted):
                return None
            cache = kwargs["past_key_values"] = DynamicCache(config=self._layers.config)
        self._check_cache(cache)
        given = args[0] if args else kwargs.get("input_ids")
        ids = given
        given = given if given is not None else kwargs["inputs_embeds"]
        sequences, tokens = given.shape[0], given.shape[1]
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        mask = self._token_mask(mask)
        record = self._record_of(cache, sequences, tokens, mask)
        new = mask[:, -tokens:] if mask is not None else None
        self._check_prompt(record, ids, sequences, tokens, new)
        counts = self._new_tokens(record, new, sequences, tokens)
        if not self._verifies:
            record.evictor.append(counts)
        self._shown, self._inputs, self._admitted, self._noted, self._newest = {}, {}, {}, {}, {}
        if self._passes is not None and (tokens > 1 or self._in_prefill):
            self._newest["tokens"] = {0: given.detach()[:, None, :, None]}
        self._forward = (record, cache, tokens, counts, new)
        self._mark(cache, True)
        self._open_bar(tokens)
        return args, kwargs

    def _check_prompt(self, record: Record, ids: torch.Tensor | None, sequences: int, tokens: int, new: torch.Tensor | None) -> None:
        """Refuses a prompt of which the policy cannot see all that it reads."""
        if tokens == 1 and not self._in_prefill or not self._of_prompts and self._passes is None:
            return
        expects(record.gathered == record.seen, "cache", f"{record.seen} tokens before this prompt", f"{self.facts.scorer} decides once, about a prompt that it has seen from its first token on")
        if self._passes is not None:
            expects(ids is not None, "inputs_embeds", "given", "a model reads the tokens of a prompt again: give input_ids")
            whole = sequences == 1 and (new is None or bool(new.all()))
            expects(whole, "batch", f"{sequences} sequences" if sequences > 1 else "padded", "a model reads something after the prompt of one sequence without padding")

    def _check_cache(self, cache: Any) -> None:
        expects(type(cache) is DynamicCache, "cache", type(cache).__name__, "only a DynamicCache can be cut")
        expects(not cache.offloading, "cache", "offloaded", "its rows are not where the policy reads them")
        for index, layer in enumerate(cache.layers):
            known = (DynamicLayer, EvictedLayer) if index in self._layers.place else (DynamicLayer, *LEFT_ALONE)
            expects(type(layer) in known, f"cache layer {index}", type(layer).__name__, f"it is a {' or '.join(one.__name__ for one in known)}")

    @staticmethod
    def _token_mask(mask: Any) -> torch.Tensor | None:
        if isinstance(mask, dict):  # a mask for each kind of layer, as models of text and images make them
            mask = mask.get("full_attention")
            if isinstance(mask, torch.Tensor) and mask.dim() == 4:  # the last token sees all that is no padding
                mask = mask[:, 0, -1] if mask.dtype == torch.bool else mask[:, 0, -1] > torch.finfo(mask.dtype).min / 2
        if mask is None:
            return None
        axes = f"{len(mask.shape)} axes" if isinstance(mask, torch.Tensor) else type(mask).__name__
        expects(axes == "2 axes", "attention_mask", axes, "it says which tokens are padding, [sequence, token]")
        return mask.to(torch.bool)

    def _record_of(self, cache: DynamicCache, sequences: int, tokens: int, mask: torch.Tensor | None) -> Record:
        """The record of a cache, in step with what happened to the cache outside of these hooks."""
        layers = self._layers.cut_of(cache) if len(cache.layers) > self._layers.cut[-1] else []
        seen = layers[0].get_seq_length() if layers else 0
        known = _records.setdefault(cache, {})
        record = known.get(self._known_as)
        reordered = any(getattr(one, "reordered", False) for one in layers)
        expects(not reordered or record is None or self._when == "prefill" and tokens == 1, "cache", "reordered",
                 "a beam search has moved its sequences: evict once, after the prefill")
        if record is None or seen == 0 and record.seen > 0:
            record = self._new_record(layers, seen, sequences, tokens, mask)
            known.clear()  # another policy's record would not learn of this one's cuts
            known[self._known_as] = record
        expects(len(record.evictor.counts) == sequences, "batch", f"{sequences} sequences", f"the cache has {len(record.evictor.counts)}")
        if seen < record.seen:
            record.remove_last(record.seen - seen)
        elif seen > record.seen:
            more = seen - record.seen
            past = mask.shape[1] - tokens if mask is not None else 0
            self._catch_up(record, more, more, sequences, mask[:, past - more : past] if mask is not None and past >= more else None)
        return record

    def _new_record(self, layers: list[Any], seen: int, sequences: int, tokens: int, mask: torch.Tensor | None) -> Record:
        """A record of a cache that is empty, that was filled outside of a block, or that another policy has cut."""
        cut = [one for one in layers if isinstance(one, EvictedLayer)]
        rows = max((one.rows for one in cut), default=seen)
        evictor = Evictor(self._timed, sequences=sequences, capacity=max(rows + tokens + 64, 256), threads=self._threads,
                          **self._layers.shape, **placement(next(one.parameters()) for one in self._layers.modules))
        record = Record(evictor)
        valid = [one.valid_rows() for one in cut]
        first = valid[0] if valid else None
        alike = all(one is None if first is None else one is not None and torch.equal(one, first) for one in valid)
        uneven = not alike or any(one.rows != rows for one in cut) or first is not None and first.shape[1] > 1
        expects(not uneven, "cache", "one whose lanes hold unequal numbers of entries", f"only the policy that has cut it knows them, and {self.policy} is another one, or this is a copy")
        past = mask.shape[1] - tokens if mask is not None else 0
        held = first[:, 0] if first is not None else mask[:, past - rows : past] if mask is not None and past >= rows == seen else None
        if seen > 0:
            self._catch_up(record, seen, rows, sequences, held)
        return record

    def _catch_up(self, record: Record, tokens: int, rows: int, sequences: int, mask: torch.Tensor | None) -> None:
        """Notes tokens of which no query row was shown, because they were written outside of a block. `rows` are still there."""
        if rows > 0:
            expects(not self._every_row, "cache", f"{rows} tokens that were not observed", f"{self.facts.scorer} reads the query rows of every token")
            expects(self._gate is None, "cache", f"{rows} tokens that were not observed", f"{self._scorer} reads the {self._number} of every token")
        record.evictor.append([rows] * sequences if mask is None else [int(one) for one in mask.sum(dim=1)])
        record.seen += tokens

    def _new_tokens(self, record: Record, new: torch.Tensor | None, sequences: int, tokens: int) -> list[int]:
        if new is None or bool(new.all()):
            return [tokens] * sequences
        expects(bool((new[:, 1:] >= new[:, :-1]).all()), "attention_mask", "a hole or padding on the right", "sequences are padded on the left")
        counts = [int(one) for one in new.sum(dim=1)]
        for sequence, count in enumerate(counts):
            fits = count == tokens or record.evictor.counts[sequence] == 0
            expects(fits, "attention_mask", f"a hole in sequence {sequence}", "padding stands before a sequence's first token")
        return counts

    def _observe(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> None:
        place = self._layers.place.get(module.layer_idx)
        if self._reading is not None and place is not None:
            hidden = self._inputs.pop(module.layer_idx)["hidden"] if self._projects else None
            self._reading.note(place, query, key, hidden)
        if self._forward is None or place is None:
            return
        if self._bar is not None:
            self._bar.update(query.shape[2])
        scale = self._layers.shape["scale"]
        if scaling is not None and scaling != scale:  # the model scales its query rows itself (OPT)
            query = query.detach().float() * (scaling / scale)
        tokens = query.shape[2]
        if self._turning is not None:
            self._note_moments(self._forward[0], module, place, query)
        if self._of_prompts and (tokens > 1 or self._in_prefill):
            before = self._inputs[module.layer_idx].pop("keys_before") if "pre_rope_keys" in self._of_prompts else query
            for name, rows in (("queries", query), ("pre_rope_keys", before)):
                if name in self._of_prompts:
                    self._newest.setdefault(name, {})[place] = rows.detach()
        numbers = self._numbers(self._forward[0].evictor, module, key[:, :, key.shape[2] - tokens :]) if self._gate is not None else None
        if self._admission is not None and numbers is not None:
            ends = self._forward[0].evictor.tokens  # drafts are not among them yet
            first = [one if self._verifies else one - tokens for one in ends]
            self._admitted[place] = self._admission.admits(numbers, first).to(key.device)
        if self._verifies:
            wanted = max(self.facts.window_rows, self.facts.turn_rows, self._rows)
            wanted = tokens if self._every_row else wanted + MOST_DRAFTS if wanted > 0 else 0
        else:
            self._show(self._forward[0], place, query, key, value, numbers)
            wanted = max(self.facts.turn_rows, self._rows)  # they count once the forward has not failed
        if wanted > 0 or self._verifies and numbers is not None:
            self._shown[place] = _Shown(query[:, :, max(tokens - wanted, 0) :].detach().clone(), tokens, numbers)

    def _note_moments(self, record: Record, module: Any, place: int, query: torch.Tensor) -> None:
        """Notes the moments of a prompt's query rows before RoPE, which the model has turned to `query`."""
        before = self._inputs[module.layer_idx].pop("queries_before")
        tokens = query.shape[2]
        if self._turning is None or tokens == 1 and not self._in_prefill:
            return
        ends = record.evictor.tokens
        self._turning.check(before[:, :, -1], query[:, :, -1].detach(), [end - 1 for end in ends])
        if self._query_model is not None:
            return
        self._noted[place] = moments_of(before, [end - tokens for end in ends], self._sinks)

    def _show(self, record: Record, place: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, numbers: Any) -> None:
        """Shows what the policy reads of a layer's newest tokens."""
        if numbers is not None and self._number is not None:
            record.evictor.observe(place, **{self._number: numbers})
        if self._every_row:
            counts = record.evictor.lane_counts[:, place : place + 1]
            record.evictor.observe(place, *(_given(record.evictor, one) for one in (query, *(aligned([each], counts)[0] for each in (key, value)))))
        elif self.facts.window_rows > 0:
            record.evictor.observe(place, _given(record.evictor, query[:, :, max(query.shape[2] - self.facts.window_rows, 0) :]))

    def _keep_hidden(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep_input(module.layer_idx, "hidden", args[0] if args else kwargs["hidden_states"])

    def _keep_keys(self, module: Any, given: torch.Tensor, output: torch.Tensor) -> None:
        """Keeps the keys before RoPE as [sequence, KV head, token, channel]."""
        rows = rows_of_heads(output, given, self._layers.shape["kv_heads"], self._layers.shape["head_dim"])
        self._keep_input(module.layer_idx, "keys_before", rows)

    def _keep_queries(self, module: Any, given: torch.Tensor, output: torch.Tensor) -> None:
        rows = rows_of_heads(output, given, self._layers.shape["query_heads"], self._layers.shape["head_dim"])
        self._keep_input(module.layer_idx, "queries_before", rows)

    def _keep_input(self, layer: int, name: str, rows: torch.Tensor) -> None:
        if self._forward is not None or self._reading is not None:
            self._inputs.setdefault(layer, {})[name] = rows.detach()

    def _numbers(self, evictor: Evictor, module: Any, keys: torch.Tensor) -> torch.Tensor:
        """The gate's numbers of a layer's new tokens, [sequence, KV head, token], where the evictor reads them."""
        given = self._inputs.pop(module.layer_idx)
        with torch.no_grad():
            try:
                made = self._gate(FreshTokens(module.layer_idx, given["hidden"], given["keys_before"], keys.detach()))
            except Exception as error:
                raise ValueError(f"hf.evict: gates = {name_of(self._gate)}, but for layer {module.layer_idx} it raised {type(error).__name__}: {error}") from error
        wanted = tuple(keys.shape[:3])
        shape = tuple(made.shape) if isinstance(made, torch.Tensor) and not made.is_complex() else f"a {getattr(made, 'dtype', type(made).__name__)}"
        expects(shape == wanted, "gates", name_of(self._gate), f"for layer {module.layer_idx} it gave {shape}, and [sequence, KV head, token] is {wanted}")
        expects(not bool(made.isnan().any()), "gates", name_of(self._gate), f"for layer {module.layer_idx} it gave NaN")
        return _given(evictor, made.float()).contiguous()

    def _keep_rows(self, record: Record, place: int, query: torch.Tensor, of_turn: bool) -> None:
        """Keeps the last query rows of a layer for a score in Python, and those of a turn."""
        for kept, wanted in ((record.queries, self._rows), (record.turn, self.facts.turn_rows if of_turn else 0)):
            if wanted > 0:
                known = kept.get(place)
                rows = query if known is None else torch.cat((known, query.to(known.dtype)), dim=2)
                kept[place] = rows[:, :, max(rows.shape[2] - wanted, 0) :].clone()

    def _mask_of(self, base: str, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any) -> Any:
        """The mask that the attention function `base` takes: the model's own, or one of this layer's rows."""
        place = self._layers.place.get(module.layer_idx)
        if self._forward is None or place is None:
            return mask
        held = self._forward[1].layers[module.layer_idx]
        layer = held if isinstance(held, EvictedLayer) and held.masked else None
        admitted = self._admitted.get(place) if self._admission is not None and key.shape[2] > self._admission.window else None
        if admitted is not None and getattr(held, "admitted", None) is not None:
            admitted = torch.cat((held.admitted, admitted), dim=2)
        if layer is None and admitted is None:
            return mask
        mask = _masks.shown(mask, query.device) if base == "flex_attention" else mask
        if layer is not None:
            mask = (_masks.of_padding if base in UNMASKED else _masks.of_entries)(layer, query, mask)
        if admitted is not None and self._admission is not None:
            mask = _masks.of_admitted(self._admission, admitted, query, mask)
        return _masks.of_blocks(mask) if base == "flex_attention" else mask

    def _mark(self, cache: DynamicCache, runs: bool) -> None:
        for one in self._layers.cut_of(cache) if len(cache.layers) > self._layers.cut[-1] else []:
            one.in_block = runs

    def _after(self, _module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        self._close_bar()
        if self._forward is None:
            return
        record, cache, tokens, counts, new = self._forward
        self._forward, shown, self._shown, self._inputs = None, self._shown, {}, {}
        admitted, self._admitted = self._admitted, {}
        self._mark(cache, False)
        if output is None:  # the forward failed
            if not self._verifies:
                record.evictor.remove_last(counts)
            restored: list[Any] = cache.layers
            if all(type(one) in (DynamicLayer, EvictedLayer) for one in restored):  # a window has lost what it cannot have again
                shorten(cache, record.seen)
            return
        for index in self._layers.cut:
            layer = cache.layers[index]
            if type(layer) is DynamicLayer:
                cache.layers[index] = tracked(layer)
        for place, flags in admitted.items():
            self._layers.cut_of(cache)[place].note_admitted(flags)
        if self._verifies:
            self._drafts = (record, cache, shown, self._when == "forward" or self._first)
            self._first = False
            return
        if not record.moments:
            record.moments_from = record.seen
        record.seen += tokens
        if new is not None and not bool(new.all()):
            for one in self._layers.cut_of(cache):
                one.note_padding(new)
        for place, one in shown.items():
            self._keep_rows(record, place, one.query, tokens > 1 or self._in_prefill)
        for place, noted in self._noted.items():
            record.moments[place] = record.moments[place].merged(noted) if place in record.moments else noted
        newest, self._newest = self._newest, {}
        for name, found in newest.items():
            for place, rows in found.items():
                record.gather(name, place, rows, 1 if name == "tokens" else len(self._layers.cut))
        record.gathered += tokens if newest else 0
        if self._when == "forward" or tokens > 1 and not self._in_prefill:
            self._evict(record, cache)
        elif self._in_prefill:
            self._pending = (record, cache)

    # A decision -----------------------------------------------------------------------------------------------------
    def _evict(self, record: Record, cache: DynamicCache) -> None:
        """Decides about the whole cache, and then cuts it. If anything is refused, the cache stays as it was."""
        layers = self._layers.cut_of(cache)
        read = lambda tensors: [_given(record.evictor, one) for one in tensors]
        turn = list(torch.stack(read(record.turn[place] for place in sorted(record.turn)))) if record.turn else []  # layers in one memory
        for place, one in enumerate(turn):
            record.evictor.observe(place, turn_queries=one)
        record.turn = {}
        before = record.evictor.lane_counts
        is_read = lambda name: name in self.facts.needs or self._projects and name == "values"
        needed = lambda name: read(aligned([getattr(one, name) for one in layers], before)) if is_read(name) else []
        keys, values = needed("keys"), needed("values")
        scores = self._scores(record, layers, before) if self._score is not None else None
        more = {**self._of_projections(record, layers, before), **self._of_prompt(record), **self._of_passes(record, cache)}
        indptr, listed, report = record.evictor.decide(keys, values, scores, turn, **more)
        record.moments, record.rows = {}, {}
        record.gathered = -1 if record.gathered > 0 else 0
        indices = on_device(listed)
        kept = np.diff(indptr).reshape(before.shape)
        if bool((kept == before).all()):
            return
        most = kept.max(axis=(0, 2))
        chosen = kept_rows(indptr, indices, kept, before, [one.rows for one in layers])
        made = [tuple(picked(one, rows) for one in (layer.keys, layer.values)) for layer, rows in zip(layers, chosen)]
        record.evictor.apply()
        for place, (layer, (new_keys, new_values)) in enumerate(zip(layers, made)):
            layer.dropped += layer.rows - int(most[place])
            layer.keys, layer.values = new_keys, new_values
            layer.admitted = None if self._admission is None or layer.admitted is None else layer.admitted.gather(2, chosen[place].to(layer.admitted.device))
            layer.kept, layer.uneven, layer.valid = int(most[place]), len(set(most)) > 1, None
            if int(kept[:, place].min()) < layer.kept:
                of_heads = kept[:, place] if bool((kept[:, place] != kept[:, place, :1]).any()) else kept[:, place, :1]
                layer.valid = torch.from_numpy(np.arange(layer.kept) >= (layer.kept - of_heads)[..., None]).to(layer.keys.device)
        self.decisions += 1
        self.kept = Kept(indptr, indices, len(before), len(layers), self._layers.shape["kv_heads"], report)

    def _of_projections(self, record: Record, layers: list[Any], counts: np.ndarray) -> dict[str, Any]:
        """What a policy reads of the model's projections, as the evictor takes it."""
        made: dict[str, Any] = {}
        if self._norm is not None:
            norms = norms_of_entries(aligned([one.values for one in layers], counts), self._weights, self._norm, counts)
            made["value_norms"] = _given(record.evictor, norms)
        if self._projects:
            rows = [one.view(one.shape[0], -1, one.shape[3]) for one in self._weights]
            made["output_projection"] = _given(record.evictor, torch.stack([one.to(rows[0].device) for one in rows]))
        if self._turning is not None and self._query_model is not None:
            sequences = len(record.evictor.counts)
            each = [one[:, None].expand(-1, sequences, *one.shape[1:]).to(layers[0].keys.device).contiguous() for one in self._query_model]
            made.update(query_mean=_given(record.evictor, each[0]), query_square=_given(record.evictor, each[1]), frequencies=self._turning.frequencies.double().tolist())
        elif self._turning is not None:
            known = [record.moments[place] for place in sorted(record.moments)]
            expects(len(known) == len(layers), "cache", "a prompt that was read outside of a block", f"{self.facts.scorer} reads its query rows")
            stacked = lambda parts: _given(record.evictor, torch.stack([one.to(known[0].mean.device) for one in parts]))
            made.update(query_mean=stacked([one.mean for one in known]), query_square=stacked([one.covariance for one in known]),
                        frequencies=self._turning.frequencies.double().tolist())
        return made

    def _of_prompt(self, record: Record) -> dict[str, Any]:
        """The rows of a whole prompt, as the evictor takes them."""
        return {name: list(_given(record.evictor, record.stacked(name))) for name in self._of_prompts}

    def _of_passes(self, record: Record, cache: DynamicCache) -> dict[str, Any]:
        """The rows of what the model reads after a prompt. The cache is then as it was."""
        if self._passes is None:
            return {}
        prompt = record.whole("tokens")[0].flatten()
        sums = not self.facts.scorer.startswith("kvzip")  # which has a softmax of its own
        reading = Reading(self._layers, sums, self._projects)
        passes = passes_after(self._passes, prompt.tolist())
        self._reading = reading
        try:
            for one in passes:
                reading.begin(one, len(prompt))
                with torch.no_grad():
                    self._layers.decoder(input_ids=prompt.new_tensor([list(one.tokens)]), past_key_values=cache, use_cache=True)
                if not one.stays:
                    shorten(cache, record.seen)
        finally:
            self._reading, self._inputs = None, {}
            shorten(cache, record.seen)
        given = reading.given()
        return {name: one if name == "external_spans" else _given(record.evictor, one) for name, one in given.items()}

    def _scores(self, record: Record, layers: list[Any], counts: np.ndarray) -> Any:
        """The scores [layer, sequence, KV head, entry] of a function of Python."""
        shape, longest = self._layers.shape, counts.max(axis=2)  # [sequence, layer]
        made = no_scores(_given(record.evictor, layers[0].keys[..., :0]), (len(layers), len(counts), shape["kv_heads"], max(counts.max(initial=0), 1)))
        tensors = [aligned(one, counts) for one in ([layer.keys for layer in layers], [layer.values for layer in layers])]
        for place, (keys, values) in enumerate(zip(*tensors)):
            shown, positions = record.queries.get(place), record.evictor.positions(place)
            for sequence, count in enumerate(longest[:, place]):
                if count == 0:
                    continue
                end = record.evictor.tokens[sequence]
                own = lambda rows: rows[sequence][:, rows.shape[2] - count :].detach()
                queries = None if shown is None else shown[sequence][:, max(shown.shape[2] - end, 0) :]
                held = torch.from_numpy(positions[sequence, :, :count].astype(np.int64)).to(keys.device)
                seen = Layer(place, own(keys), own(values), queries, held, end - 1, shape["scale"], shape["soft_cap"])
                made[place, sequence, :, :count] = scores_of("hf.evict", self._score, seen)
        return made

    # The progress bar -----------------------------------------------------------------------------------------------
    def _open_bar(self, tokens: int) -> None:
        wanted = tokens >= LONG_PROMPT and sys.stderr.isatty() if self._progress is None else self._progress and tokens > 1
        if wanted:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(total=tokens * len(self._layers.cut), desc=f"prefill of {tokens} tokens", unit="row", leave=False)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _is_of_moments(need: str) -> bool:
    return MOMENTS <= set(need.split(" or "))


def _without_adapters(model: Any) -> Any:
    """The model that PEFT has put adapters into, whose `generate` and prefill PEFT calls."""
    if not hasattr(model, "get_base_model"):
        return model
    virtual = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    expects(not virtual, "model", type(model).__name__, "it puts rows of its own into the cache, which are no tokens")
    return model.get_base_model()


def _given(evictor: Evictor, tensor: torch.Tensor) -> Any:
    """A tensor where the evictor reads it: on its device, or in host memory."""
    return tensor.detach() if evictor.device.startswith("cuda") else tensor.detach().cpu()


def evict(
    model: PreTrainedModel, policy: str | Score, *, parts: str | None = None, budget: int | float | None = None, rows: int = 0,
    gates: Gate | str | Path | None = None, when: str | None = None, progress: bool | None = None, threads: int | None = None,
    passes: Passes | None = None, query_model: tuple[Any, Any] | None = None,
) -> Eviction:
    """Evicts entries of the model's KV cache by a policy, inside of a `with` block.

    - `policy`: a text such as "snapkv(window=32) | sinks(4) | budget(1024)". `budget(ratio=0.25)` drops a quarter:
      of the entries that are there, or with "forward" of all tokens so far. It may also be a function of your own,
      `score(layer) -> tensor [KV head, entry]`: the entries with the highest scores are kept. `kvpolicy.Layer` says what
      it sees. An admission, "admit: write_gate | window(256) | at_least(0.1)", also masks the attention of a prompt.
    - `parts`: a text of the parts after the scorer, such as "sinks(4) | recent(16)".
    - `budget`: a number of entries, or below 1 the part that is dropped.
    - `rows`: how many of the last query rows a score in Python sees.
    - `gates`: where the policy reads a gate's numbers (`trim_kv`, `carried`, `write_gate`): a safetensors file of its
      weights, or a function of the new tokens (`kvpolicy.gates`).
    - `when`: "prefill", the default, decides once after each prefill: the prompt, and every later message of a
      conversation. "forward" decides after every forward, as H2O, TOVA and StreamingLLM do, and admissions always.
    - `passes`: what the model reads after a prompt, for policies that go by the query rows of it (`kvzip`, `kvcompose`,
      `dapq`, `lookahead_kv`): a function that makes passes (`kvpolicy.hf.Pass`) of the tokens of a prompt, such as
      `kvpolicy.hf.Repeated.by(tokenizer)`. The decision then comes after them, and the cache keeps none of their tokens.
    - `query_model`: for `expected_attention` and `cap_kv` the mean [layer, query head, channel] and the covariance [layer,
      query head, channel, channel] of query rows before RoPE, of many texts. Without it they are those of the prompt.
    - `progress`: whether a bar shows the layers of a prefill; by default for 4,096 tokens and more, on a terminal.
    - `threads`: threads that decide; by default one for each processor.

    The cache is the `DynamicCache` that `generate` makes, or one of yours (`past_key_values`), which you keep for several
    turns. Batches are padded on the left. A cache on a GPU is decided about there, if the package was
    built for it; else it is copied to host memory for a decision.

    Raises ValueError in one line, and leaves model and cache as they were, for a policy that is not sound, one whose
    signals a model does not give, models without a layer that attends to all tokens, and caches that are static, quantised
    or offloaded.
    """
    return Eviction(model, policy, parts, budget, rows, gates, when=when, progress=progress, threads=threads, passes=passes, query_model=query_model)


