"""KV-cache policies of kvpolicy in vLLM: after the prompt a request keeps what its policy chooses, and its blocks go back to the pool."""

from __future__ import annotations

__version__ = "0.2.0"


def register() -> None:
    """The entry point of vLLM's general plugins. Every process of vLLM calls it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from .settings import asked_for

    asked_for(None)  # a mistake in the variable KVPOLICY_VLLM is found here
    register_backend(AttentionBackendEnum.CPU_ATTN, "kvpolicy_vllm.backend.CutBackend")
