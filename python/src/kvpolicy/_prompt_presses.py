# SPDX-License-Identifier: Apache-2.0
"""The presses of kvpress that read a whole prompt, a question behind it, or what a model reads after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._press import ExpectedAttentionPress, Press, _expects


@dataclass
class CompactorPress(Press):
    """Scores a token by the leverage of its key before RoPE and by the attention of the rows around it. The sketch of keys is drawn anew."""

    sink_size_start: int = 8
    sink_size_end: int = 4
    chunk_size: int = 256
    sketch_dimension: int = 48
    blending: float | None = None

    def scorer(self) -> str:
        blend = self.compression_ratio if self.blending is None else self.blending
        _expects(blend >= 0, "CompactorPress", "blending", blend, "it is the weight of leverages, 0 or more")
        return f"compactor(sinks={self.sink_size_start}, recent={self.sink_size_end}, chunk={self.chunk_size}, blend={blend}, sketch={self.sketch_dimension}, padding=kvpress)"


@dataclass
class ExpectedAttentionStatsPress(ExpectedAttentionPress):
    """The same by the query rows of many texts. `stats_folder` has kvpress's file of their mean and covariance, or they are `mu` and `cov`."""

    stats_folder: str | None = None
    mu: Any = field(default=None, repr=False)
    cov: Any = field(default=None, repr=False)

    def given(self, model: Any) -> dict[str, Any]:
        if self.stats_folder is None:
            known = self.mu is not None and self.cov is not None
            _expects(known, "ExpectedAttentionStatsPress", "stats_folder", None, "without mu and cov they are read from there, and none are downloaded")
            return {"query_model": (self.mu, self.cov)}
        _expects(self.mu is None and self.cov is None, "ExpectedAttentionStatsPress", "mu", "given", "the file of stats_folder has the mean and the covariance")
        from safetensors.torch import load_file

        path = Path(self.stats_folder) / "model.safetensors"
        _expects(path.is_file(), "ExpectedAttentionStatsPress", "stats_folder", self.stats_folder, "it has a file model.safetensors")
        found = load_file(path)
        missing = [one for one in ("query_mean", "query_cov") if one not in found]
        _expects(not missing, "ExpectedAttentionStatsPress", "stats_folder", self.stats_folder, f"its file has no tensor {' and no tensor '.join(missing)}")
        return {"query_model": (found["query_mean"], found["query_cov"])}


@dataclass
class FastKVzipPress:
    """Scores a token by the number that a gate gives it. `gates` is a function (`kvpolicy.gates`), and no weights are downloaded."""

    compression_ratio: float = 0.0
    layerwise: bool = False
    n_sink: int = 4
    window_size: int = 4096
    window_ratio: float = 0.02
    gates: Any = field(default=None, repr=False)

    def policy(self) -> str:
        usual = (self.window_size, self.window_ratio) == (4096, 0.02)
        _expects(usual, "FastKVzipPress", "window_size, window_ratio", f"{self.window_size}, {self.window_ratio}", "the last int(0.02 N) of N tokens always stay, and from 32,000 tokens on 4096: for a window of your own use the policy fast_kvzip")
        return f"fast_kvzip(sinks={self.n_sink}, window=-1) | budget(ratio={self.compression_ratio}, rounding=kvpress, scope={'layer' if self.layerwise else 'global'})"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy(), gates=self.gates)


@dataclass
class FinchPress:
    """Scores a token by the attention of the question, which is the last `window_size` tokens of the prompt. Entries keep their positions."""

    compression_ratio: float = 0.0
    chunk_length: int | None = None
    normalize_scores: bool = True
    rerotate_keys: bool = False
    window_size: int | None = None

    def policy(self) -> str:
        _expects(self.window_size is not None, "FinchPress", "window_size", None, "it is the number of the question's tokens, with which the prompt ends; there is no delimiter")
        _expects(self.chunk_length is None, "FinchPress", "chunk_length", self.chunk_length, "each chunk of a prompt would have a budget of its own, and those of a policy are of lanes")
        _expects(not self.rerotate_keys, "FinchPress", "rerotate_keys", True, "entries keep their positions")
        scorer = f"finch(window={self.window_size}, counts=kvpress)" if self.normalize_scores else f"snapkv(window={self.window_size}, pool=none, rows=mean)"
        return f"{scorer} | budget(ratio={self.compression_ratio}, rounding=kvpress)"

    def __call__(self, model: Any) -> Any:
        from .hf import evict

        return evict(model, self.policy())


@dataclass
class KVzipPress:
    """Scores a token by the attention that it gets while the model repeats the prompt, right after reading it.

    The request to repeat is in words, of which the model's tokenizer makes tokens: `tokenizer`, or the one that is loaded
    by the model's name.
    """

    compression_ratio: float = 0.0
    layerwise: bool = False
    n_sink: int = 4
    kvzip_plus_normalization: bool = False
    chunk_size: int = 2048
    tokenizer: Any = field(default=None, repr=False)

    def policy(self) -> str:
        plus, scope = str(bool(self.kvzip_plus_normalization)).lower(), "layer" if self.layerwise else "global"
        return f"kvzip(sinks={self.n_sink}, plus={plus}) | budget(ratio={self.compression_ratio}, rounding=kvpress, scope={scope})"

    def __call__(self, model: Any) -> Any:
        from .hf import Repeated, evict

        tokenizer = self.tokenizer
        if tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model.config.name_or_path)
        return evict(model, self.policy(), passes=Repeated.by(tokenizer, self.chunk_size))


@dataclass
class KVComposePress:
    """Scores a token by the attention that it gets while the model reads the prompt a second time.

    The heads of a layer keep equal numbers of entries, of which layers have more or fewer; those of `structured=False`
    keep what scores best of all heads and layers.
    """

    structured: bool = True
    compression_ratio: float = 0.0
    agg_task: str = "max"
    agg_group: str = "mean"
    agg_head: str = "mean"
    add_v_norm: bool = False
    add_mean_across_heads: bool = True
    keep_token_lower_bound: int = 0

    def policy(self) -> str:
        for name in ("agg_task", "agg_group", "agg_head"):
            _expects(getattr(self, name) in ("max", "mean"), "KVComposePress", name, getattr(self, name), "it is max or mean")
        _expects(self.agg_head == "mean" or not self.structured, "KVComposePress", "agg_head", self.agg_head, "layers are compared by the mean over their heads")
        bound = self.keep_token_lower_bound
        _expects(bound == 0 or not self.structured, "KVComposePress", "keep_token_lower_bound", bound, "it is one of heads that keep unequal numbers: structured=False")
        flag = lambda value: str(bool(value)).lower()
        scorer = f"kvcompose(rows={self.agg_task}, group={self.agg_group}, add_mean={flag(self.add_mean_across_heads)}, values={flag(self.add_v_norm)})"
        shares = "by=ranks" if self.structured else f"by=fixed, scope=global, floor_tokens={bound}"
        return f"{scorer} | budget(ratio={self.compression_ratio}, rounding=kvpress, {shares})"

    def __call__(self, model: Any) -> Any:
        from .hf import Pass, evict

        return evict(model, self.policy(), passes=lambda prompt: [Pass(prompt)])
