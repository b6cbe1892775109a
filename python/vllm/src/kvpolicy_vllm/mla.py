"""Latent attention on a processor: it is vLLM's own, and a policy is refused."""

from __future__ import annotations

from typing import Any

from vllm.config import get_current_vllm_config
from vllm.v1.attention.backends.mla.amx_mla import AMXMLABackend
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

from .settings import asked_for


def check() -> None:
    """Raises ValueError if the engine that is being made has a policy."""
    if asked_for(get_current_vllm_config().additional_config) is not None:
        raise ValueError("kvpolicy: the model has latent attention (MLA), but the plugin cuts keys and values")


class UncutCPUMLABackend(CPUMLABackend):
    @staticmethod
    def get_impl_cls() -> Any:
        check()
        return CPUMLABackend.get_impl_cls()


class UncutAMXMLABackend(AMXMLABackend):
    @staticmethod
    def get_impl_cls() -> Any:
        check()
        return AMXMLABackend.get_impl_cls()
