# SPDX-License-Identifier: Apache-2.0
"""What the presses of kvpress have in common, and those that are not a line of presses.txt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


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

    def given(self, model: Any) -> dict[str, Any]:
        """What `kvpolicy.hf.evict` is given beside the policy."""
        return {}

    def __call__(self, model: Any) -> Any:
        """A `with` block in which the model's cache is cut."""
        from .hf import evict

        return evict(model, self.policy(), **self.given(model))


@dataclass
class KVzapPress(Press):
    """Scores a token by its hidden row. `gates` is a file of weights in kvpress's form, or a function (`kvpolicy.gates`)."""

    gates: Any = field(default=None, repr=False)

    def scorer(self) -> str:
        return "carried(name=kvzap)"

    def given(self, model: Any) -> dict[str, Any]:
        return {"gates": self.gates}


def _expects(ok: bool, press: str, name: str, value: Any, rule: str) -> None:
    if not ok:
        raise ValueError(f"{press}: {name} = {value}, but {rule}")


@dataclass
class AdaKVPress:
    """The heads of a layer share its budget, and each keeps the part `alpha_safeguard` of its own one at least."""

    press: Any
    alpha_safeguard: float = 0.20

    def __post_init__(self) -> None:
        shares = isinstance(self.press, Press) and self.press.shares() == "" and not self.press.scorer().startswith(("observed_attention", "tova"))
        _expects(shares, "AdaKVPress", "press", type(self.press).__name__, "its heads score for themselves and have equal budgets, as those of KnormPress, KeyDiffPress, SnapKVPress, StreamingLLMPress and KVzapPress")
        _expects(0 <= self.alpha_safeguard <= 1, "AdaKVPress", "alpha_safeguard", self.alpha_safeguard, "it is a part of the budget, 0 to 1")

    @property
    def compression_ratio(self) -> float:
        return float(self.press.compression_ratio)

    def policy(self) -> str:
        return f"{self.press.scorer()} | budget(ratio={self.compression_ratio}, rounding=kvpress, scope=layer, floor={self.alpha_safeguard})"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy(), **self.press.given(model))


@dataclass
class ChunkKVPress:
    """All heads of a layer keep the same chunks of a prompt, those with the highest mean of the scores of `press`."""

    press: Any
    chunk_length: int = 20

    def __post_init__(self) -> None:
        alone = isinstance(self.press, Press) and self.press.shares() == "" and self.press.scorer().startswith(("knorm", "keydiff", "random", "carried"))
        _expects(alone, "ChunkKVPress", "press", type(self.press).__name__, "chunks compete by their scores alone, as those of KnormPress, KeyDiffPress, RandomPress and KVzapPress do; by the scores of a window they are the policy chunk_kv")
        _expects(isinstance(self.chunk_length, int) and self.chunk_length >= 1, "ChunkKVPress", "chunk_length", self.chunk_length, "a chunk has at least one entry")

    @property
    def compression_ratio(self) -> float:
        return float(self.press.compression_ratio)

    def policy(self) -> str:
        return f"{self.press.scorer()} | reduce_lanes(layer, sum) | blocks({self.chunk_length}) | budget(ratio={self.compression_ratio}, rounding=kvpress) | when(prefill)"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy(), **self.press.given(model))


def _check_critical(press: Any, name: str, epsilon: float, first: float) -> None:
    alone = isinstance(press, Press) and press.shares() == "" and not press.scorer().startswith("tova")
    _expects(alone, name, "press", type(press).__name__, "its heads score for themselves and have equal budgets, as those of KnormPress, SnapKVPress and ExpectedAttentionPress")
    _expects(epsilon >= 0, name, "epsilon", epsilon, "it is added to every score, 0 or more")
    _expects(0 <= first <= 1, name, "first_stage_ratio", first, "it is a part of the budget, 0 to 1")


@dataclass
class CriticalKVPress:
    """The part `first_stage_ratio` of the budget goes by the scores of `press`, the rest by these times the norms of projected values."""

    press: Any
    epsilon: float = 1e-4
    first_stage_ratio: float = 0.5

    def __post_init__(self) -> None:
        _check_critical(self.press, type(self).__name__, self.epsilon, self.first_stage_ratio)

    @property
    def compression_ratio(self) -> float:
        return float(self.press.compression_ratio)

    def stage(self) -> str:
        return f"critical(first={self.first_stage_ratio}, epsilon={self.epsilon})"

    def shares(self) -> str:
        return ""

    def policy(self) -> str:
        return f"{self.press.scorer()} | {self.stage()} | budget(ratio={self.compression_ratio}, rounding=kvpress{self.shares()})"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy(), **self.press.given(model))


@dataclass
class CriticalAdaKVPress(CriticalKVPress):
    """The same in each head of a layer, after these have shared the layer's budget by the scores of `press`, as in AdaKVPress."""

    alpha_safeguard: float = 0.20

    def __init__(self, press: Any = None, alpha_safeguard: float = 0.20, epsilon: float = 1e-4, first_stage_ratio: float = 0.5) -> None:
        super().__init__(press, epsilon, first_stage_ratio)
        _expects(0 <= alpha_safeguard <= 1, "CriticalAdaKVPress", "alpha_safeguard", alpha_safeguard, "it is a part of the budget, 0 to 1")
        self.alpha_safeguard = alpha_safeguard

    def stage(self) -> str:
        return f"critical(first={self.first_stage_ratio}, epsilon={self.epsilon}, sure={self.alpha_safeguard})"

    def shares(self) -> str:
        return f", by=pool, scope=layer, floor={self.alpha_safeguard}, floor_tokens={int(self.alpha_safeguard > 0)}"


@dataclass
class DMSPress:
    """Drops what scores below `threshold`, but for the last `sliding_window_size` tokens. With `decoding` it does so in every forward."""

    press: Any
    threshold: float | None = None
    sliding_window_size: int = 128
    decoding: bool = False

    def __post_init__(self) -> None:
        alone = isinstance(self.press, Press) and self.press.scorer().startswith(("knorm", "carried"))
        _expects(alone, "DMSPress", "press", type(self.press).__name__, "a threshold asks about each entry by itself, as KnormPress and KVzapPress score it")

    def policy(self) -> str:
        _expects(self.threshold is not None, "DMSPress", "threshold", self.threshold, "entries that score below it are dropped")
        return f"{self.press.scorer()} | recent({self.sliding_window_size}) | at_least({self.threshold})"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy(), **self.press.given(model), when="forward" if self.decoding else "prefill")


@dataclass
class DuoAttentionPress:
    """Retrieval heads keep everything, and the others their first and last tokens.

    `head_scores` has a number of each head, [layer, KV head]. The part `head_compression_ratio` of all heads, those with
    the lowest numbers, are not retrieval heads.
    """

    head_compression_ratio: float = 0.0
    head_scores: Any = field(default=None, repr=False)
    sink_size: int = 128
    recent_size: int = 256

    def retrieval_heads(self) -> np.ndarray:
        """Which heads keep everything, [layer, KV head]."""
        _expects(self.head_scores is not None, "DuoAttentionPress", "head_scores", None, "heads are chosen by them, and none are downloaded")
        scores = np.asarray(self.head_scores, dtype=float)
        _expects(scores.ndim == 2, "DuoAttentionPress", "head_scores", f"of {scores.ndim} axes", "they are [layer, KV head]")
        made = np.ones(scores.shape, dtype=bool)
        lowest = np.argsort(scores, axis=None)[: round(scores.size * self.head_compression_ratio)]
        made[np.unravel_index(lowest, scores.shape)] = False
        return made

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        retrieval = self.retrieval_heads()

        def of_retrieval_heads(layer: Any) -> Any:
            heads = layer.keys.new_tensor(retrieval[layer.index].astype(float))
            return heads[:, None].expand(layer.keys.shape[:2])

        return evict(model, of_retrieval_heads, parts=f"sinks({self.sink_size}) | recent({self.recent_size}) | at_least(0.5)")


@dataclass
class QFilterPress:
    """Scores a key by how little it points along the filter of its KV head. `q_filters` are the rows of a model, [layer, KV head, channel]."""

    compression_ratio: float = 0.0
    q_filters: Any = field(default=None, repr=False)

    def __call__(self, model: Any) -> Any:
        _expects(self.q_filters is not None, "QFilterPress", "q_filters", None, "keys are scored by them, and none are downloaded")
        filters = np.asarray(self.q_filters.detach().float().cpu() if hasattr(self.q_filters, "detach") else self.q_filters, dtype=np.float32)
        _expects(filters.ndim == 3, "QFilterPress", "q_filters", f"of {filters.ndim} axes", "they are [layer, KV head, channel]")
        from .hf import evict

        def along_filters(layer: Any) -> Any:
            rows = layer.keys.float()
            _expects(layer.index < filters.shape[0] and filters.shape[1:] == (rows.shape[0], rows.shape[2]), "QFilterPress", "q_filters", f"of shape {list(filters.shape)}", f"layer {layer.index} has {rows.shape[0]} KV heads of {rows.shape[2]} channels")
            return -(rows * rows.new_tensor(filters[layer.index])[:, None]).sum(dim=-1)

        return evict(model, along_filters, parts=f"budget(ratio={self.compression_ratio}, rounding=kvpress)")


@dataclass
class CURPress(Press):
    """Scores a token by approximate leverages of its key and value. Random leverages are not here."""

    num_sinks: int = 4
    leverage_type: str = "kv_product"
    use_random_leverage: bool = False
    use_local_approximation: bool = True
    local_window_size: int = 16

    def scorer(self) -> str:
        names = {"key": "key", "value": "value", "kv_avg": "mean", "kv_product": "product"}
        _expects(self.leverage_type in names, "CURPress", "leverage_type", self.leverage_type, "it is key, value, kv_avg or kv_product")
        _expects(not self.use_random_leverage, "CURPress", "use_random_leverage", True, "the random numbers of kvpress are not those of kvpolicy")
        block = self.local_window_size if self.use_local_approximation else 0
        return f"cur(sinks={self.num_sinks}, block={block}, of={names[self.leverage_type]})"


@dataclass
class ExpectedAttentionPress(Press):
    """Scores a token by the attention that queries of later positions pay on average, if they are distributed as those of the prompt."""

    n_future_positions: int = 512
    n_sink: int = 4
    use_covariance: bool = True
    use_vnorm: bool = True
    epsilon: float = 0.0

    def scorer(self) -> str:
        flags = f"covariance={str(bool(self.use_covariance)).lower()}, values={str(bool(self.use_vnorm)).lower()}"
        return f"expected_attention(future={self.n_future_positions}, sinks={self.n_sink}, epsilon={self.epsilon}, {flags})"


@dataclass
class LagKVPress(Press):
    """Scores a token by how unevenly its channels lie in the range of the next `lag_size` tokens, among those of its own `lag_size`."""

    n_sink: int = 4
    lag_size: int = 128
    cross_scoring: bool = False

    def scorer(self) -> str:
        return f"lag_kv(lag={self.lag_size}, sinks={self.n_sink}, cross={str(bool(self.cross_scoring)).lower()})"


@dataclass
class SimLayerKVPress:
    """A layer whose last `n_last` tokens attend to its ends by more than `lazy_threshold` keeps these, and any other everything."""

    lazy_threshold: float = 1.0
    n_last: int = 1
    n_recent: int = 1024
    n_initial: int = 4

    def policy(self) -> str:
        return f"simlayer_kv(threshold={self.lazy_threshold}, initial={self.n_initial}, recent={self.n_recent}, last={self.n_last})"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy())


_MERGES = "it changes rows that stay, and a policy only drops entries"
_DECODES = "a policy decides after each prefill or after each forward, and not every few steps"
_WRAPS = "it joins other presses, and a block has one policy"
# Why a press of kvpress 0.5.5 is not here.
MISSING = {
    "BlockPress": "it decides again and again about blocks of one prompt", "CAMPress": _MERGES, "ChunkPress": "each chunk of a prompt has a budget of its own, and those of a policy are of lanes",
    "ComposedPress": _WRAPS, "CompressionRatioDecodingPress": _DECODES, "DecodingPress": _DECODES, "EntropyGatedChunkKVPress": "it keeps a part of some chunks, and a policy whole ones",
    "KVgradPress": "it goes by gradients, and a policy by what a forward shows", "KeyRerotationPress": "entries keep their positions, and it gives them others",
    "LUKVPress": "Python gives a policy no table of budgets", "MergingPress": _MERGES,
    "PerLayerCompressionPress": "Python gives a policy no table of budgets", "PrefillDecodingPress": _WRAPS, "RestoreKVPress": "it adds entries to the cache, and a policy drops some",
    "ThinKPress": "it drops channels, and a policy drops entries",
}


def missing(name: str) -> Any:
    """What a module that has no `name` does: a press of kvpress is refused with what it needs."""
    if name in MISSING:
        raise ImportError(f"kvpolicy.presses: {name} = a press of kvpress 0.5.5 that is not here, because {MISSING[name]}")
    raise AttributeError(f"module 'kvpolicy.presses' has no attribute {name!r}")
