# SPDX-License-Identifier: Apache-2.0
"""The backends of vLLM's attention, each made when vLLM asks for it by its name: those that serve a policy, and latent attention, which refuses one.

CPU_ATTN has run. The others that serve a policy have not been run on a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm.config import get_current_vllm_config
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from . import SERVED
from .backend import under_policy
from .settings import asked_for


def __getattr__(name: str) -> Any:
    if name not in SERVED and "MLA" not in name:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module, base = AttentionBackendEnum[name].value.rsplit(".", 1)  # vLLM's own: what is registered lies beside it
    theirs = getattr(import_module(module), base)
    globals()[name] = made = under_policy(theirs, on_device=name != "CPU_ATTN") if name in SERVED else latent(theirs)
    return made


def latent(base: Any) -> Any:
    """The backend `base` of latent attention, which refuses a policy."""

    class Backend(base):  # type: ignore[misc]  # vLLM's
        @staticmethod
        def get_impl_cls() -> Any:
            if asked_for(get_current_vllm_config().additional_config) is not None:
                raise ValueError("kvpolicy: the model has latent attention (MLA), but the plugin cuts keys and values")
            return base.get_impl_cls()

    return Backend
