"""The worker's side: it cuts the requests that are due, and shows attention the blocks that are left."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata, CPUAttentionMetadataBuilder

from .decision import Layer, carry_out, decide, newest
from .refusals import check_layout
from .requests import Cut, Requests
from .settings import check_block, settings_of
from .spec import CutSpec
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


@dataclass
class CutMetadata(CPUAttentionMetadata):
    capture: Capture | None = None


class CutMetadataBuilder(CPUAttentionMetadataBuilder):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.requests: Requests | None = None
        if not isinstance(kv_cache_spec, CutSpec):
            return
        check_layout(self.isa)
        self.settings = settings_of(kv_cache_spec.policy, kv_cache_spec.slack)
        check_block(self.settings, kv_cache_spec.block_size)
        self.layers_of = vllm_config.compilation_config.static_forward_context
        self.requests = Requests(kv_cache_spec.cuts, kv_cache_spec.window)
        self.windows = Windows(kv_cache_spec.window)
        self.threads = torch.get_num_threads()

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        if self.requests is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common, starts = common_attn_metadata, common_attn_metadata.query_start_loc_cpu.numpy()
        tables = common.block_table_tensor.numpy()
        ends, lengths = common.seq_lens.numpy().astype(np.int64), np.diff(starts).astype(np.int64)
        step = self.requests.begin(tables, ends, lengths, common.is_prefilling.numpy())
        if step.copies:
            self.windows.copy(step.copies, self.requests.slots)
        for cut in step.cuts:
            self._cut(cut)
        if step.skips.any():
            common = shifted(common, step.skips, self.block_size)
        made = super().build(common_prefix_len, common, fast_build)
        capture = None
        if step.captured is not None:
            capture = Capture(self.windows, *(torch.from_numpy(one) for one in step.captured), size=self.requests.slots)
        return CutMetadata(**{one.name: getattr(made, one.name) for one in fields(made)}, capture=capture)

    def _cut(self, cut: Cut) -> None:
        layers = self._layers()
        try:
            kept = decide(self.settings, cut, layers, self.windows, self.block_size, self.threads)
        except ValueError as why:  # the scheduler frees the head in any case
            logger.warning_once("kvpolicy: a request of %d tokens goes on with its newest blocks, because a decision failed: %s", cut.tokens, why)
            kept = newest(cut, self.num_kv_heads, len(layers), self.block_size)
        carry_out(cut, kept, layers, self.block_size)

    def _layers(self) -> list[Layer]:
        made = []
        for name in self.layer_names:
            layer = self.layers_of[name]
            made.append(Layer(name, layer.kv_cache, layer.impl.num_heads, layer.impl.scale, layer.impl.logits_soft_cap))
        return made


def shifted(common: Any, skips: np.ndarray, block: int) -> Any:
    """The batch as attention sees it: each row's table begins behind the blocks that have left, and its length is shorter by them."""
    table = common.block_table_tensor
    skip = torch.from_numpy(skips)
    columns = (torch.arange(table.shape[1])[None] + skip[:, None]).clamp_(max=table.shape[1] - 1)
    lengths = common.seq_lens - (skip * block).to(common.seq_lens.dtype)
    return common.replace(block_table_tensor=table.gather(1, columns), seq_lens=lengths, max_seq_len=int(lengths.max()), _num_computed_tokens_cache=None)
