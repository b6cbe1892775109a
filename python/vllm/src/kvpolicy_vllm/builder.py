# SPDX-License-Identifier: Apache-2.0
"""The worker's side: it cuts the requests that are due, and shows attention the blocks that are left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from vllm._custom_ops import cpu_attn_reshape_and_cache
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionCGSupport

from .decision import Layer, carry_out, decide, newest
from .layout import check
from .refusals import check_blocks
from .requests import Cut, Requests
from .settings import check_block, settings_of
from .spec import CutSpec
from .tables import DeviceTables
from .windows import Windows

logger = init_logger("vllm.kvpolicy")


@dataclass
class Capture:
    """The query rows of a step that are kept: token in the batch, slot, place."""

    windows: Windows
    tokens: torch.Tensor
    slots: torch.Tensor
    places: torch.Tensor
    size: int

    def keep(self, layer: str, query: torch.Tensor) -> None:
        self.windows.keep(layer, query, self.tokens, self.slots, self.places, self.size)


class CutBuilding:
    """A metadata builder under a policy, before the class of one of vLLM's backends in a class's bases.

    What it makes has the query rows to keep as `capture`. Attention then runs outside of CUDA graphs of whole steps, and
    its metadata are always built anew.
    """

    on_device: ClassVar[bool] = True  # whether block tables are in a device's memory
    requests: Requests | None = None

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # type: ignore[call-arg]  # vLLM's
        if not isinstance(kv_cache_spec, CutSpec):
            return
        self.spec, self.supports_update_block_table = kv_cache_spec, False
        check_blocks(kv_cache_spec.block_size, vllm_config.cache_config.block_size)
        self.layout = getattr(self, "isa", "rows")  # attention on a processor says how it lays rows out
        if not self.on_device:
            check(self.layout, kv_cache_spec.num_kv_heads, kv_cache_spec.block_size, kv_cache_spec.head_size, kv_cache_spec.dtype, cpu_attn_reshape_and_cache)
        self.settings = settings_of(kv_cache_spec.policy, kv_cache_spec.slack, kv_cache_spec.during_prefill)
        check_block(self.settings, kv_cache_spec.block_size)
        self.names, self.layers_of = layer_names, vllm_config.compilation_config.static_forward_context
        self.requests = Requests(kv_cache_spec.cuts, kv_cache_spec.window)
        self.windows = Windows(kv_cache_spec.window)
        self.threads = torch.get_num_threads()

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """A graph of whole steps would replay reads of old tables, and no query row would be kept."""
        if isinstance(kv_cache_spec, CutSpec):
            return AttentionCGSupport.NEVER
        return super().get_cudagraph_support(vllm_config, kv_cache_spec)  # type: ignore[misc]  # vLLM's

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        build, common = super().build, common_attn_metadata  # type: ignore[misc]  # vLLM's
        if self.requests is None:
            return build(common_prefix_len, common, fast_build)
        known = common.seq_lens_cpu_upper_bound if self.on_device else common.seq_lens
        ends, lengths = known.numpy().astype(np.int64), np.diff(common.query_start_loc_cpu.numpy()).astype(np.int64)
        table, block = common.block_table_tensor, self.spec.block_size
        step = self.requests.begin(DeviceTables(table, ends, lengths, block) if self.on_device else table.numpy(), ends, lengths, common.is_prefilling.numpy())
        if step.copies:
            self.windows.copy(step.copies, self.requests.slots)
        for cut in step.cuts:
            self._cut(cut)
        if step.skips.any():
            common = shifted(common, step.skips, ends, block)
        made = build(common_prefix_len, common, fast_build)
        made.capture = None
        if step.captured is not None:
            tokens, slots, places = (torch.from_numpy(one).to(table.device, non_blocking=True) for one in step.captured)
            made.capture = Capture(self.windows, tokens, slots, places, self.requests.slots)
        return made

    def _cut(self, cut: Cut) -> None:
        layers = self._layers()
        try:
            kept = decide(self.settings, cut, layers, self.windows, self.spec.block_size, self.threads)
        except ValueError as why:  # the scheduler frees the head in any case
            logger.warning_once("kvpolicy: a request of %d tokens goes on with its newest blocks, because a decision failed: %s", cut.tokens, why)
            kept = newest(cut, self.spec.num_kv_heads, len(layers), self.spec.block_size)
        carry_out(cut, kept, layers, self.spec.block_size)

    def _layers(self) -> list[Layer]:
        made = []
        for name in self.names:
            layer = self.layers_of[name]
            made.append(Layer(name, layer.kv_cache, self.layout, layer.impl.num_heads, layer.impl.scale, layer.impl.logits_soft_cap or 0.0))
        return made


def shifted(common: Any, skips: np.ndarray, ends: np.ndarray, block: int) -> Any:
    """The batch as attention sees it: each row's table begins behind the blocks that have left, and its length is shorter by them."""
    table = common.block_table_tensor
    skip = torch.from_numpy(skips).to(table.device, non_blocking=True)
    columns = (torch.arange(table.shape[1], device=table.device)[None] + skip[:, None]).clamp_(max=table.shape[1] - 1)
    left = torch.from_numpy(ends - skips * block)
    changes = {"seq_lens": common.seq_lens - (skip * block).to(common.seq_lens.dtype), "max_seq_len": int(left.max())}
    if common.seq_lens_cpu_upper_bound is not None:
        changes["seq_lens_cpu_upper_bound"] = left.to(common.seq_lens_cpu_upper_bound.dtype)
    return common.replace(block_table_tensor=table.gather(1, columns), _num_computed_tokens_cache=None, **changes)
