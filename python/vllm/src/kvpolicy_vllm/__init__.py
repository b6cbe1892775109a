# SPDX-License-Identifier: Apache-2.0
"""KV-cache policies of kvpolicy in vLLM: after the prompt a request keeps what its policy chooses, and its blocks go back to the pool."""

from __future__ import annotations

__version__ = "0.3.0"

SERVED = ("CPU_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")  # backends of vLLM's attention


def register() -> None:
    """The entry point of vLLM's general plugins. Every process of vLLM calls it."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from .settings import VARIABLE, asked_for

    if asked_for(None) is not None and not (current_platform.is_cpu() or current_platform.is_cuda()):  # a mistake in the variable is found here, too
        raise ValueError(f"kvpolicy: {VARIABLE} is set, but the plugin serves processors and CUDA, and the platform is {current_platform.device_type}")
    for one in AttentionBackendEnum:
        if one.name in SERVED or "MLA" in one.name:
            register_backend(one, f"kvpolicy_vllm.backends.{one.name}")
