# SPDX-License-Identifier: Apache-2.0
"""What a layer tells the scheduler: the cache of full attention, and when a request is cut.

This module registers the spec and its manager when it is imported: the engine's core meets the spec when it unpickles it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from .arithmetic import Cuts
from .manager import CutManager
from .settings import Settings


@dataclass(frozen=True, kw_only=True)
class CutSpec(FullAttentionSpec):
    policy: str = ""
    budget: int = 0
    slack: int = 0
    during_prefill: bool = False
    window: int = 0
    tokens_in_flight: int = 0  # of all steps at once

    @property
    def cuts(self) -> Cuts:
        return Cuts(self.budget, self.block_size, self.slack, self.during_prefill)

    @property
    def most_held(self) -> int:
        return self.cuts.most_held(self.tokens_in_flight)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """What the pool has to hold at least. A prompt is held as a whole, unless it is cut between its chunks."""
        whole = super().max_memory_usage_bytes(vllm_config)
        return min(whole, self.most_held * self.page_size_bytes) if self.during_prefill else whole

    @classmethod
    def merge(cls, specs: list[Any]) -> CutSpec:
        merged, first = super().merge(specs), specs[0]
        mine = {name: getattr(first, name) for name in ("policy", "budget", "slack", "during_prefill", "window", "tokens_in_flight")}
        for spec in specs:
            if any(getattr(spec, name) != value for name, value in mine.items()):
                raise ValueError(f"kvpolicy: policy = {spec.policy} in one layer and {first.policy} in another, but the layers of a group have one")
        return replace(merged, **mine)


def cut_spec(spec: FullAttentionSpec, settings: Settings, tokens_in_flight: int = 0) -> CutSpec:
    """The spec of a layer whose requests are cut. All steps at once have at most `tokens_in_flight` tokens."""
    if type(spec) is not FullAttentionSpec:
        raise ValueError(f"kvpolicy: a layer's cache is {type(spec).__name__}, but the plugin cuts full attention only")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        raise ValueError("kvpolicy: a layer reads a window or a chunk only, but the plugin cuts full attention only")
    if spec.non_causal:
        raise ValueError("kvpolicy: a layer's attention is not causal, but blocks that leave would be read again")
    if spec.head_size_v != spec.head_size:
        raise ValueError(f"kvpolicy: a layer's values have {spec.head_size_v} channels, but its keys have {spec.head_size}")
    given = {one.name: getattr(spec, one.name) for one in fields(spec) if one.init}
    cuts = settings.cuts(spec.block_size)
    return CutSpec(**given, policy=settings.policy, budget=settings.budget, slack=cuts.slack, during_prefill=cuts.during_prefill, window=settings.window,
                   tokens_in_flight=tokens_in_flight)


KVCacheSpecRegistry._ensure_registered()  # it returns if anything is registered, so that a spec that comes first would hide vLLM's own
KVCacheSpecRegistry.register(CutSpec, CutManager, uniform_type_base_spec=FullAttentionSpec)
