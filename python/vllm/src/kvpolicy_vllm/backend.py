"""Attention on a processor, under a policy. Without a policy it is vLLM's own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from .builder import CutMetadataBuilder
from .refusals import check_configuration, check_layer, untested
from .settings import Settings, asked_for
from .spec import cut_spec

logger = init_logger("vllm.kvpolicy")


class CutImpl(CPUAttentionBackendImpl):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, alibi_slopes: Any, sliding_window: Any, kv_cache_dtype: str,
                 logits_soft_cap: float | None = None, attn_type: str = "decoder", kv_sharing_target_layer_name: str | None = None, sinks: Any = None) -> None:
        config = get_current_vllm_config()
        settings = CutBackend.settings = asked_for(config.additional_config)
        if settings is not None:
            import vllm

            check_configuration(config)
            check_layer(settings, sliding_window=sliding_window, alibi_slopes=alibi_slopes, sinks=sinks, attn_type=attn_type, kv_cache_dtype=kv_cache_dtype,
                        kv_sharing_target_layer_name=kv_sharing_target_layer_name, tensor_parallel_size=config.parallel_config.tensor_parallel_size)
            if why := untested(vllm.__version__):
                logger.warning_once(why)
        super().__init__(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type,
                         kv_sharing_target_layer_name, sinks)

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, attn_metadata: Any,
                output: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        capture = getattr(attn_metadata, "capture", None)
        if capture is not None:
            capture.keep(layer.layer_name, query)
        return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)


class CutBackend(CPUAttentionBackend):
    settings: ClassVar[Settings | None] = None  # of the engine that is being made: layers are made before their specs

    @staticmethod
    def get_impl_cls() -> type[CutImpl]:
        return CutImpl

    @staticmethod
    def get_builder_cls() -> type[CutMetadataBuilder]:
        return CutMetadataBuilder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        spec = super().customize_spec(spec)
        return spec if cls.settings is None else cut_spec(spec, cls.settings)
