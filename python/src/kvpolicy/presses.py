# SPDX-License-Identifier: Apache-2.0
"""The presses of kvpress that kvpolicy has, under their names. make_presses.py writes this file from presses.txt.

    from kvpolicy.presses import SnapKVPress  # instead of: from kvpress import SnapKVPress

    with SnapKVPress(compression_ratio=0.5)(model):
        model.generate(**inputs)
"""

from __future__ import annotations

from dataclasses import dataclass

from ._press import AdaKVPress, ChunkKVPress, CriticalAdaKVPress, CriticalKVPress, CURPress, DMSPress, DuoAttentionPress, ExpectedAttentionPress, KVzapPress, LagKVPress, Press, QFilterPress, SimLayerKVPress
from ._press import missing as __getattr__
from ._prompt_presses import CompactorPress, ExpectedAttentionStatsPress, FastKVzipPress, FinchPress, KVComposePress, KVzipPress


@dataclass
class CapPress(Press):
    tau: float = 5.0
    n_future_positions: int = 512
    n_sink: int = 4
    epsilon: float = 1e-6

    def scorer(self) -> str:
        return f"cap_kv(tau={self.tau}, future={self.n_future_positions}, sinks={self.n_sink}, epsilon={self.epsilon})"


@dataclass
class KeyDiffPress(Press):
    def scorer(self) -> str:
        return "keydiff"


@dataclass
class KnormPress(Press):
    def scorer(self) -> str:
        return "knorm"


@dataclass
class LeverageScorePress(Press):
    sketch_dimension: int = 48

    def scorer(self) -> str:
        return f"leverage(sketch={self.sketch_dimension})"


@dataclass
class NonCausalAttnPress(Press):
    chunk_size: int = 256

    def scorer(self) -> str:
        return f"compactor(sinks=0, recent=0, chunk={self.chunk_size}, blend=0, sketch=1, padding=kvpress)"


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
        return f"snapkv(window={self.window_size}, pool=avg:{self.kernel_size}, rows=mean)"


@dataclass
class StreamingLLMPress(Press):
    n_sink: int = 4

    def scorer(self) -> str:
        return f"streaming_llm(sinks={self.n_sink})"


@dataclass
class TOVAPress(Press):
    def scorer(self) -> str:
        return "tova(force_last=true)"


PRESSES: dict[str, type[Press]] = {"CURPress": CURPress, "CapPress": CapPress, "CompactorPress": CompactorPress, "ExpectedAttentionPress": ExpectedAttentionPress, "KVzapPress": KVzapPress, "KeyDiffPress": KeyDiffPress, "KnormPress": KnormPress, "LagKVPress": LagKVPress, "LeverageScorePress": LeverageScorePress, "NonCausalAttnPress": NonCausalAttnPress, "ObservedAttentionPress": ObservedAttentionPress, "PyramidKVPress": PyramidKVPress, "RandomPress": RandomPress, "SnapKVPress": SnapKVPress, "StreamingLLMPress": StreamingLLMPress, "TOVAPress": TOVAPress}
__all__ = ["PRESSES", "AdaKVPress", "ChunkKVPress", "CompactorPress", "CriticalAdaKVPress", "CriticalKVPress", "CURPress", "DMSPress", "DuoAttentionPress", "ExpectedAttentionPress", "ExpectedAttentionStatsPress", "FastKVzipPress", "FinchPress", "KVComposePress", "KVzapPress", "KVzipPress", "LagKVPress", "Press", "QFilterPress", "SimLayerKVPress", "CapPress", "KeyDiffPress", "KnormPress", "LeverageScorePress", "NonCausalAttnPress", "ObservedAttentionPress", "PyramidKVPress", "RandomPress", "SnapKVPress", "StreamingLLMPress", "TOVAPress"]
