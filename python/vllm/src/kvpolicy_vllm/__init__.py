"""KV-cache policies of kvpolicy in vLLM: after the prompt a request keeps what its policy chooses, and its blocks go back to the pool."""

from __future__ import annotations

__version__ = "0.2.0"


def register() -> None:
    """The entry point of vLLM's general plugins. Every process of vLLM calls it."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from .settings import VARIABLE, asked_for

    if asked_for(None) is not None and not current_platform.is_cpu():  # a mistake in the variable is found here, too
        raise ValueError(f"kvpolicy: {VARIABLE} is set, but the plugin cuts requests on processors only, and the platform is {current_platform.device_type}")
    register_backend(AttentionBackendEnum.CPU_ATTN, "kvpolicy_vllm.backend.CutBackend")
    register_backend(AttentionBackendEnum.CPU_MLA, "kvpolicy_vllm.mla.UncutCPUMLABackend")
    register_backend(AttentionBackendEnum.AMX_MLA, "kvpolicy_vllm.mla.UncutAMXMLABackend")
