"""The presses of kvpress that kvpolicy has, under their names. make_presses.py writes this file from presses.txt.

    from kvpolicy.presses import SnapKVPress  # instead of: from kvpress import SnapKVPress

    with SnapKVPress(compression_ratio=0.5)(model):
        model.generate(**inputs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Press:
    """A policy with kvpress's way of counting: the part `compression_ratio` of the entries is dropped."""

    compression_ratio: float = 0.0

    def scorer(self) -> str:
        raise NotImplementedError

    def shares(self) -> str:
        """How the budget is shared out, if lanes do not all have the same one."""
        return ""

    def policy(self) -> str:
        """The policy as text, as `kvpolicy.decide` and `kvpolicy.hf.evict` read it."""
        return f"{self.scorer()} | budget(ratio={self.compression_ratio}, rounding=kvpress{self.shares()})"

    def __call__(self, model: Any) -> Any:
        """A `with` block in which the model's cache is cut."""
        from .hf import evict

        return evict(model, self.policy())


@dataclass
class KnormPress(Press):
    def scorer(self) -> str:
        return "knorm"


@dataclass
class ObservedAttentionPress(Press):
    def scorer(self) -> str:
        return "observed_attention"


@dataclass
class PyramidKVPress(Press):
    window_size: int = 64
    kernel_size: int = 5
    beta: int = 20

    def scorer(self) -> str:
        return f"snapkv(window={self.window_size}, pool=avg:{self.kernel_size})"

    def shares(self) -> str:
        return f", by=ramp, beta={self.beta}, rule=kvpress"


@dataclass
class RandomPress(Press):
    seed: int = 42

    def scorer(self) -> str:
        return f"random(seed={self.seed})"


@dataclass
class SnapKVPress(Press):
    window_size: int = 64
    kernel_size: int = 5

    def scorer(self) -> str:
        return f"snapkv(window={self.window_size}, pool=avg:{self.kernel_size})"


@dataclass
class StreamingLLMPress(Press):
    n_sink: int = 4

    def scorer(self) -> str:
        return f"streaming_llm(sinks={self.n_sink})"


@dataclass
class TOVAPress(Press):
    def scorer(self) -> str:
        return "tova(force_last=true)"


PRESSES: dict[str, type[Press]] = {"KnormPress": KnormPress, "ObservedAttentionPress": ObservedAttentionPress, "PyramidKVPress": PyramidKVPress, "RandomPress": RandomPress, "SnapKVPress": SnapKVPress, "StreamingLLMPress": StreamingLLMPress, "TOVAPress": TOVAPress}
__all__ = ["PRESSES", "Press", "KnormPress", "ObservedAttentionPress", "PyramidKVPress", "RandomPress", "SnapKVPress", "StreamingLLMPress", "TOVAPress"]
