# SPDX-License-Identifier: Apache-2.0
"""A backend of vLLM's attention under a policy. Without a policy it is vLLM's own."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger

from .builder import CutBuilding
from .refusals import check_configuration, check_layer, untested
from .settings import Settings, asked_for
from .spec import cut_spec

logger = init_logger("vllm.kvpolicy")


def under_policy(base: Any, *, on_device: bool) -> Any:
    """The backend `base` for requests that are cut. `on_device`: its block tables are in a device's memory."""
    parameters = inspect.signature(base.get_impl_cls().__init__)

    class Impl(base.get_impl_cls()):  # type: ignore[misc]  # vLLM's
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            config = get_current_vllm_config()
            settings = Backend.settings = asked_for(config.additional_config)
            Backend.tokens_in_flight = getattr(config, "max_in_flight_tokens", 0)
            if settings is not None:
                import vllm

                check_configuration(config, on_device=on_device)
                given = parameters.bind(self, *args, **kwargs)
                given.apply_defaults()
                check_layer(settings, given.arguments, config.parallel_config.tensor_parallel_size)
                logger.info_once(settings.told)
                if why := untested(vllm.__version__):
                    logger.warning_once(why)
            super().__init__(*args, **kwargs)

        def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, attn_metadata: Any,
                    output: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            capture = getattr(attn_metadata, "capture", None)
            if capture is not None:
                capture.keep(layer.layer_name, query)
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)

    class Builder(CutBuilding, base.get_builder_cls()):  # type: ignore[misc]  # vLLM's
        pass

    Builder.on_device = on_device

    class Backend(base):  # type: ignore[misc]  # vLLM's
        settings: ClassVar[Settings | None] = None  # of the engine that is being made: layers are made before their specs
        tokens_in_flight: ClassVar[int] = 0

        @staticmethod
        def get_impl_cls() -> type[Impl]:
            return Impl

        @staticmethod
        def get_builder_cls() -> type[Builder]:
            return Builder

        @classmethod
        def customize_spec(cls, spec: Any) -> Any:
            spec = super().customize_spec(spec)
            return spec if cls.settings is None else cut_spec(spec, cls.settings, cls.tokens_in_flight)

    return Backend
