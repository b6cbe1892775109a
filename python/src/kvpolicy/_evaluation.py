# SPDX-License-Identifier: Apache-2.0
"""Runs a model under several policies and budgets: recall, bits per byte, memory and time."""

from __future__ import annotations

import inspect
import math
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Callable, Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from . import _page
from ._model import Layers
from ._questions import FACTS, Question, Tasks, wilson
from .hf import Eviction, evict

# These are defined to decide after every forward, all others once, after a prefill.
AFTER_EVERY_FORWARD = ("streaming_llm", "h2o", "tova", "trim_kv", "db_trim_kv")
MAPPED = 4  # questions that the page shows


@dataclass
class Row:
    """A policy at a budget, and what was measured under it. Figures are lists of one number for each case."""

    policy: str  # as it was given
    budget: str  # as it was given; "all" of the full cache, and "own" of a policy that says its budget itself
    tokens: int  # the budget as a number of entries; 0 if the row has none
    text: str  # the whole policy; empty: the full cache
    when: str
    gates: Any = None
    inside: list[bool] = field(default_factory=list)  # whether each question with the prompt was answered right
    later: list[bool] = field(default_factory=list)  # the same, of questions after the decision
    bits: float = 0.0
    bytes: int = 0
    memory: list[int] = field(default_factory=list)  # bytes of keys and values after a stretch
    prefill: list[float] = field(default_factory=list)  # seconds, with the decision
    decode: list[float] = field(default_factory=list)  # seconds for a token

    @property
    def bits_per_byte(self) -> float:
        return self.bits / max(1, self.bytes)

    def eviction(self, model: PreTrainedModel, threads: int | None) -> Eviction:
        return evict(model, self.text, gates=self.gates, when=self.when, progress=False, threads=threads)


def rows_of(policies: Sequence[str], budgets: Sequence[str], context: int, gates: dict[str, Any] | None = None, when: str | None = None) -> list[Row]:
    """The rows of a table: the full cache, and each policy at each budget. A budget is a number of entries, or a part of the context."""
    made = [Row("full", "all", 0, "", "prefill")]
    for policy in policies:
        scorer = policy.removeprefix("admit:").strip().split("(")[0].split("|")[0].strip()
        phase = when or ("forward" if policy.startswith("admit:") or scorer in AFTER_EVERY_FORWARD else "prefill")
        mine = (gates or {}).get(scorer)
        if policy.startswith("admit:") or "budget(" in policy or "at_least(" in policy:
            made.append(Row(policy, "own", 0, policy, phase, mine))
            continue
        for budget in budgets:
            tokens = entries_of(budget, context)
            made.append(Row(policy, budget, tokens, f"{policy} | budget({tokens})", phase, mine))
    return made


def entries_of(budget: str, context: int) -> int:
    try:
        share = Fraction(budget.strip())
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    tokens = round(share * context) if share < 1 else int(share)
    if share <= 0 or share > 1 and share.denominator > 1 or not 0 < tokens < context:
        raise ValueError(f"budgets = {budget}, but a budget is a number of entries below the context of {context}, or a part of it such as 1/8")
    return tokens


class _Sequence:
    """One sequence under one policy: it is read, and then goes on token by token."""

    def __init__(self, model: Any, eviction: Eviction | None, layers: Layers) -> None:
        self._model, self._eviction, self._layers = model, eviction, layers
        self._device = next(model.parameters()).device
        self.cache = DynamicCache(config=model.config)
        self.seen = 0
        last = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._more: dict[str, Any] = {"logits_to_keep": 1} if last else {}
        self.logits: Any = None

    @torch.no_grad()
    def read(self, tokens: Sequence[int]) -> float:
        """Reads tokens; returns the seconds that it took."""
        ids = torch.tensor([list(tokens)], device=self._device)
        begin = self._now()
        self.logits = self._model(input_ids=ids, past_key_values=self.cache, use_cache=True, **self._more).logits[0, -1].float()
        seconds = self._now() - begin
        self.seen += len(tokens)
        return seconds

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @property
    def best(self) -> int:
        return int(self.logits.argmax())

    def held(self) -> list[np.ndarray]:
        """The positions that each lane holds, layer by layer and head by head."""
        if self._eviction is not None:
            return self._eviction.positions(self.cache)
        return [np.arange(self.seen)] * (len(self._layers.cut) * self._layers.shape["kv_heads"])

    def memory(self) -> int:
        tensors = [getattr(layer, name, None) for layer in self.cache.layers for name in ("keys", "values")]
        return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


class Evaluation:
    """An evaluation of a model: `run` fills the rows, and `table` and `page` show them.

    - `tokenizer`: one of transformers, or an object with `encode(text, add_special_tokens=)` and `decode(tokens)`.
    - `rows`: of `rows_of`. Every policy is tried out at once: ValueError says in one line what is wrong with one.
    - `text`: what prompts are made of. `context`: the tokens of a prompt; `length`: of a continuation.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, rows: Sequence[Row], text: str, *, context: int = 1024, questions: int = 12,
        stretches: int = 4, length: int = 64, seed: int = 7, threads: int | None = None, name: str = "", text_name: str = "",
    ) -> None:
        self.rows, self.context, self.length, self.name, self.text_name = list(rows), context, length, name, text_name
        self._model: Any = model
        self._tokenizer, self._threads = tokenizer, threads
        for row in self.rows[1:]:
            row.eviction(model, threads)
        self._layers = Layers(model)
        self._lanes = len(self._layers.cut) * self._layers.shape["kv_heads"]
        most = getattr(model.config, "max_position_embeddings", None)
        if most is not None and context + length > most:
            raise ValueError(f"context = {context}, but with {length} tokens that follow, the model has positions for {most}")
        tasks = Tasks(tokenizer, text, seed)
        if len(tasks.tokens) < context + length:
            raise ValueError(f"text = {text_name or 'given'}, but it has {len(tasks.tokens)} tokens, and a prompt with what follows it has {context + length}")
        try:
            self.questions = [tasks.question(index % FACTS, context) for index in range(questions)]
        except ValueError as wrong:
            raise ValueError(f"context = {context}, but {wrong}") from None
        self.stretches = [tasks.continuation(context, length) for _ in range(stretches)]
        self._texts: list[dict[str, Any]] = []

    # Running --------------------------------------------------------------------------------------------------------
    @property
    def steps(self) -> int:
        """How many times `run` calls `advance`."""
        return len(self.rows) * (len(self.questions) + len(self.stretches))

    def run(self, advance: Callable[[str], None] = lambda what: None) -> None:
        """Measures every row. `advance` is called after each case of each row, with words for it."""
        for index, one in enumerate(self.questions):
            with_map = index < MAPPED
            texts = [self._text_of(one, later) for later in (False, True)] if with_map else [None, None]
            for row in self.rows:
                row.inside.append(self._ask(row, one, False, texts[0]))
                row.later.append(self._ask(row, one, True, texts[1]))
                advance(f"question {index + 1}, {row.policy}")
            self._texts += [text for text in texts if text is not None]
        for index, (prompt, follows) in enumerate(self.stretches):
            text = self._text("a text without a question, and what follows it", prompt + follows, []) if index == 0 else None
            for row in self.rows:
                self._continue(row, prompt, follows, text)
                advance(f"stretch {index + 1}, {row.policy}")
            self._texts += [text] if text is not None else []

    def _sequence(self, row: Row) -> tuple[Any, _Sequence]:
        eviction = row.eviction(self._model, self._threads) if row.text else None
        return (eviction if eviction is not None else nullcontext()), _Sequence(self._model, eviction, self._layers)

    def _ask(self, row: Row, one: Question, later: bool, text: dict[str, Any] | None) -> bool:
        block, sequence = self._sequence(row)
        said: list[int] = []
        history = None
        with block:
            row.prefill.append(sequence.read(one.prompt if later else one.asked))
            if text is not None:
                history = _page.History(self._lanes, text["length"])
                history.look(sequence.held(), sequence.seen)
            for token in one.question if later else []:
                self._step(sequence, token, history)
            answer, right = "", False
            while len(said) < self._most_tokens(one):
                if said:
                    self._step(sequence, said[-1], history)
                said.append(sequence.best)
                answer = self._said(one.question, said).lstrip()
                right = answer.startswith(one.answer)
                if text is None and (right or not one.answer.startswith(answer)):
                    break  # a text of the page goes on, so that all rows have the same steps
        if text is not None and history is not None:
            self._note(text, history, said[:-1], {"said": answer[: len(one.answer)], "right": right})
        return right

    def _most_tokens(self, one: Question) -> int:
        return len(self._tokenizer.encode(one.answer, add_special_tokens=False)) + 2

    def _said(self, before: list[int], said: list[int]) -> str:
        known = self._tokenizer.decode(before)
        return str(self._tokenizer.decode(before + said))[len(known) :]

    @staticmethod
    def _step(sequence: _Sequence, token: int, history: _page.History | None) -> float:
        seconds = sequence.read([token])
        if history is not None:
            history.look(sequence.held(), sequence.seen)
        return seconds

    def _continue(self, row: Row, prompt: list[int], follows: list[int], text: dict[str, Any] | None) -> None:
        block, sequence = self._sequence(row)
        history = None
        with block:
            row.prefill.append(sequence.read(prompt))
            if text is not None:
                history = _page.History(self._lanes, text["length"])
                history.look(sequence.held(), sequence.seen)
            for token in follows:
                row.bits -= float(sequence.logits.log_softmax(dim=-1)[token]) / math.log(2)
                row.decode.append(self._step(sequence, token, history))
            row.memory.append(sequence.memory())
        known = len(str(self._tokenizer.decode(prompt)).encode())
        row.bytes += len(str(self._tokenizer.decode(prompt + follows)).encode()) - known
        if text is not None and history is not None:
            self._note(text, history, [], None)

    # The page -------------------------------------------------------------------------------------------------------
    def _words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token. SentencePiece marks a blank in front of a word, which its decoder leaves out."""
        name = getattr(self._tokenizer, "convert_ids_to_tokens", lambda token: "")
        made = [(str(name(one)), str(self._tokenizer.decode([one]))) for one in tokens]
        return [f" {text}" if token.startswith("\u2581") and not text.startswith(" ") else text for token, text in made]

    def _text(self, name: str, tokens: list[int], spans: list[dict[str, Any]], more: int = 0) -> dict[str, Any]:
        return {"name": name, "length": len(tokens) + more, "words": self._words(tokens), "spans": spans, "arrived": [], "rows": []}

    def _text_of(self, one: Question, later: bool) -> dict[str, Any]:
        name = f"{one.name}, asked {'later' if later else 'in the prompt'}"
        return self._text(name, one.asked, one.spans, self._most_tokens(one) - 1)

    def _note(self, text: dict[str, Any], history: _page.History, said: list[int], answer: dict[str, Any] | None) -> None:
        made = history.json()
        text["arrived"] = history.arrived
        if answer is not None:
            made["said"], made["answer"] = self._words(said), answer
        text["rows"].append(made)

    def page(self, docs: str = "docs/evaluate.md") -> str:
        """The table and what was kept, as one HTML file."""
        first = self.rows[0]
        shape, device = self._layers.shape, str(next(self._model.parameters()).device)
        data = {"layers": len(self._layers.cut), "heads": shape["kv_heads"], "entry": "token",
                "rows": [{"policy": row.policy, "budget": row.budget, "tokens": row.tokens, "spelt": row.text or "the whole cache"} for row in self.rows],
                "texts": self._texts}
        name = self.name or type(self._model).__name__
        return _page.page(
            title=f"What KV-cache policies keep in {name}",
            sentence="Each cell is one token of a text, in every lane (a KV head of a layer that is cut) of the model; the darker it is, the more lanes still "
                     "hold it after a policy has decided what to keep.",
            made={"model": f"{name}, {str(self._model.dtype).removeprefix('torch.')}", "prompts": f"{self.context} tokens", "text": self.text_name or "given", "machine": _page.machine(device)},
            docs=docs,
            numbers=f"Recall is the share of right answers to {len(first.inside)} questions about a fact in the prompt, with the 95 % Wilson interval in percent: “in prompt” with "
                    "the question at the end of the prompt, so that a policy sees it before it decides, and “later” with a question that comes after the decision. Bits per byte are "
                    f"the model's on {len(self.stretches)} stretches of {self.length} tokens of the text that follow other prompts; lower is better. Memory is that of keys and "
                    "values after such a stretch, in tensors of PyTorch.",
            table=_page.table_html(COLUMNS, [(row.budget if row.tokens else None, cells) for row, cells in zip(self.rows, self.cells())]), data=data)

    # The table ------------------------------------------------------------------------------------------------------
    def cells(self) -> list[list[str]]:
        """The text of each row's columns. A dash stands for what was not measured."""
        recall = lambda right: f"{sum(right)}/{len(right)} ({_percent(right)} %)" if right else "-"
        whole = max((statistics.mean(row.memory) for row in self.rows[:1] if row.memory), default=0)
        made = []
        for row in self.rows:
            held = statistics.mean(row.memory) if row.memory else 0
            made.append([row.policy, row.budget, recall(row.inside), recall(row.later), f"{row.bits_per_byte:.3f}" if row.bytes else "-",
                         f"{held / 2**20:.2f}" if row.memory else "-", f"{100 * held / whole:.0f} %" if row.memory and whole else "-",
                         f"{1e3 * statistics.median(row.prefill):.0f}" if row.prefill else "-", f"{1e3 * statistics.median(row.decode):.1f}" if row.decode else "-"])
        return made

    def table(self) -> str:
        """The table as lines of text, and what it says about which policy to take."""
        all_of_it = [[name for name, _ in COLUMNS], [unit for _, unit in COLUMNS], *self.cells()]
        wide = [max(len(line[i]) for line in all_of_it) for i in range(len(COLUMNS))]
        lines = ["  ".join(f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, wide))).rstrip() for line in all_of_it]
        return "\n".join(lines) + "\n\n" + "\n".join(self.advice())

    def advice(self) -> list[str]:
        """Which rows hold least without a loss of recall that the number of questions could show."""
        full = self.rows[0]
        if not full.inside or not full.memory:
            return []
        right = sum(full.inside)
        if 2 * right < len(full.inside):
            return [f"The model itself answers {right} of {len(full.inside)} questions with its whole cache, so recall says little about its policies."]
        lines = []
        for what, needed in (("If questions come with the prompt", ("inside",)), ("If questions come later, too", ("inside", "later"))):
            fit = [row for row in self.rows[1:] if all(_reaches(getattr(row, one), getattr(full, one)) for one in needed)]
            least = min(fit, key=lambda row: statistics.mean(row.memory), default=None)
            lines.append(f"{what}, the smallest cache whose interval contains the full cache's recall is {_named(least)}." if least else
                         f"{what}, no row's interval contains the full cache's recall.")
        return lines


COLUMNS = (("policy", ""), ("budget", ""), ("recall", "in prompt"), ("recall", "later"), ("bits/byte", ""), ("memory", "MiB"), ("memory", "of full"), ("prefill", "ms"), ("decode", "ms/token"))


def _percent(right: Sequence[bool]) -> str:
    low, high = wilson(sum(right), len(right))
    return f"{100 * low:.0f}-{100 * high:.0f}"


def _reaches(right: Sequence[bool], full: Sequence[bool]) -> bool:
    low, high = wilson(sum(right), len(right))
    return low - 1e-9 <= sum(full) / len(full) <= high + 1e-9


def _named(row: Row) -> str:
    share = "" if row.budget == "own" else f" at {row.budget}"
    return f"{row.policy}{share}"
