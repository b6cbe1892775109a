# SPDX-License-Identifier: Apache-2.0
"""What a model reads after a prompt, so that a policy learns what it looks at: the prompt again, or a question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
from transformers import DynamicCache

from ._model import Layers, expects

LOGITS = 2**24  # numbers of which a log-sum-exp is computed at once


@dataclass(frozen=True)
class Pass:
    """Tokens that a model reads after a prompt, and of the prompt the tokens [begin, end) that they are about.

    `end` None is the prompt's end. With `stays` later passes see these tokens, too.
    """

    tokens: Sequence[int]
    begin: int = 0
    end: int | None = None
    stays: bool = False


Passes = Callable[[list[int]], Sequence[Pass]]


@dataclass(frozen=True)
class Repeated:
    """The passes of KVzip: a request to repeat the prompt, and then the prompt itself, chunk by chunk.

    In front of the first chunk stands `request`, and in front of any other one `later` and the last `overlap` tokens of
    the chunk before it; then come the tokens `answer`, with which an answer begins. The first `skipped` tokens of the
    prompt are not repeated.
    """

    request: Sequence[int] = ()
    later: Sequence[int] = ()
    answer: Sequence[int] = ()
    skipped: int = 0
    chunk: int = 2048
    overlap: int = 8

    def __post_init__(self) -> None:
        expects(self.chunk >= 1, "Repeated.chunk", self.chunk, "a chunk has at least one token")

    @classmethod
    def by(cls, tokenizer: Any, chunk: int = 2048) -> "Repeated":
        """The request in words, and of a chat what stands around a message, by the tokenizer of the model."""
        encoded = lambda text: list(tokenizer.encode(text, add_special_tokens=False))
        before, after = "", "\n"
        if getattr(tokenizer, "chat_template", None) is not None:
            message, end = "dummy context", "\n" + "#" * len("dummy context")
            chat = tokenizer.apply_chat_template([{"role": "user", "content": message + end}], add_generation_prompt=True, tokenize=False, enable_thinking=False)
            parts = chat.split(end)
            expects(len(parts) == 2 and message in parts[0], "tokenizer.chat_template", f"{len(parts) - 1} copies of a message", "a message stands in a chat once, as it is")
            before, after = parts[0].split(message)[0], parts[1]
        request = "\n\nRepeat the previous context exactly."
        later = "\n\nRepeat the part of the previous context exactly, starting with"
        return cls(encoded(request), encoded(later), encoded(after), len(encoded(before)), chunk)

    def __call__(self, prompt: list[int]) -> list[Pass]:
        made: list[Pass] = []
        expects(len(prompt) > self.skipped, "prompt", f"{len(prompt)} tokens", f"the first {self.skipped} are what a chat begins with, and are not read again: Repeated(..., skipped=0) reads all")
        for begin in range(self.skipped, len(prompt), self.chunk):
            chunk = prompt[begin : begin + self.chunk]
            first = begin == self.skipped
            asked = list(self.request) if first else [*self.later, *prompt[begin - min(self.overlap, self.chunk) : begin]]
            made.append(Pass([*asked, *self.answer, *chunk], begin, begin + len(chunk)))
        return made


def passes_after(passes: Passes, prompt: list[int]) -> list[Pass]:
    """The passes that a function makes of a prompt, or a refusal in one line."""
    made = list(passes(prompt))
    expects(len(made) > 0, "passes", "none", "the policy goes by their query rows")
    for one in made:
        expects(isinstance(one, Pass) and len(one.tokens) > 0, "passes", repr(one)[:80], "each is a kvpolicy.hf.Pass of one token or more")
        end = len(prompt) if one.end is None else one.end
        expects(0 <= one.begin <= end <= len(prompt), "passes", f"a span of {one.begin} to {one.end}", f"the prompt has {len(prompt)} tokens")
    return made


def log_sum_exps(query: torch.Tensor, key: torch.Tensor, scale: float, soft_cap: float) -> torch.Tensor:
    """Of the logits of rows [sequence, query head, row, channel], of which the last one sees all keys and each one before it a key less."""
    sequences, heads, rows, channels = query.shape
    keys = key.detach().float()[:, :, None]  # one for all query heads of a group
    asked = query.detach().float().view(sequences, key.shape[1], -1, rows, channels)
    place = torch.arange(key.shape[2], device=key.device)
    last = torch.arange(key.shape[2] - rows, key.shape[2], device=key.device)
    made, step = [], max(LOGITS // (heads * key.shape[2]), 1)
    for begin in range(0, rows, step):
        logits = asked[..., begin : begin + step, :] @ keys.transpose(-1, -2) * scale
        logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap > 0 else logits
        made.append(logits.masked_fill(place > last[begin : begin + step, None], -torch.inf).logsumexp(dim=-1))
    return torch.cat(made, dim=-1).view(sequences, heads, rows)


@dataclass
class Reading:
    """The rows of the tokens that a model reads after a prompt, of each layer."""

    layers: Layers
    sums: bool  # whether the policy reads the log-sum-exps of rows
    norms: bool  # whether it reads the norms of hidden rows
    found: dict[str, list[list[torch.Tensor]]] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, one: Pass, prompt: int) -> None:
        self.spans += [(one.begin, prompt if one.end is None else one.end)] * len(one.tokens)

    def note(self, place: int, query: torch.Tensor, key: torch.Tensor, hidden: torch.Tensor | None) -> None:
        rows, shape = query.shape[2], self.layers.shape
        self._add("external_queries", place, query.detach().clone())
        self._add("external_keys", place, key[:, :, key.shape[2] - rows :].detach().clone())
        if self.sums:
            self._add("external_log_sum_exps", place, log_sum_exps(query, key, shape["scale"], shape["soft_cap"]))
        if self.norms and hidden is not None:
            self._add("external_hidden_norms", place, hidden.float().norm(dim=-1))

    def _add(self, name: str, place: int, rows: torch.Tensor) -> None:
        self.found.setdefault(name, [[] for _ in self.layers.cut])[place].append(rows)

    def given(self) -> dict[str, Any]:
        """The rows of all layers in one memory, as the evictor takes them."""
        axis = {"external_queries": 2, "external_keys": 2, "external_log_sum_exps": 2, "external_hidden_norms": 1}
        device = self.found["external_queries"][0][0].device
        made: dict[str, Any] = {name: torch.stack([torch.cat(one, dim=axis[name]).to(device) for one in rows]) for name, rows in self.found.items()}
        return {**made, "external_spans": self.spans}


def shorten(cache: DynamicCache, tokens: int) -> None:
    """Takes the last tokens of a cache back, so that it has had so many."""
    layers: list[Any] = cache.layers
    for layer in layers:
        surplus = layer.get_seq_length() - tokens
        if surplus > 0:
            layer.keys, layer.values = layer.keys[..., :-surplus, :], layer.values[..., :-surplus, :]
