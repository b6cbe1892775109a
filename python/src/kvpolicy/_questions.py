# SPDX-License-Identifier: Apache-2.0
"""Questions about facts that stand in a text, as tokens, and the interval of a share of right answers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

FACTS = 6
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ANSWER = 6  # characters
LEAST_TEXT = 60  # tokens between the facts


@dataclass
class Question:
    """Tokens of a text with six facts, and of a question about one of them."""

    name: str
    prompt: list[int]
    question: list[int]
    answer: str
    spans: list[dict[str, Any]] = field(default_factory=list)  # what the page marks, by the numbers of tokens

    @property
    def asked(self) -> list[int]:
        return self.prompt + self.question


class Tasks:
    """Makes questions and stretches of a text. The same text, tokenizer and seed make the same ones."""

    def __init__(self, tokenizer: Any, text: str, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self.first = self._first_tokens()
        self.tokens: list[int] = self._encoded(text)

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _first_tokens(self) -> list[int]:
        """What the tokenizer puts before every text, such as the token of a beginning."""
        whole, plain = list(self._tokenizer.encode("a")), self._encoded("a")
        at = next((i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain), 0)
        return whole[:at]

    def stretch(self, length: int) -> list[int]:
        begin = self._random.randrange(len(self.tokens) - length + 1)
        return self.tokens[begin : begin + length]

    def continuation(self, context: int, length: int) -> tuple[list[int], list[int]]:
        """A prompt of `context` tokens, and the tokens that follow it."""
        own = context - len(self.first)
        all_of_it = self.stretch(own + length)
        return self.first + all_of_it[:own], all_of_it[own:]

    def question(self, asked: int, context: int) -> Question:
        """Six facts between stretches of the text, `context` tokens with the question, which is about fact `asked`."""
        word = lambda length: "".join(self._random.choice(LETTERS) for _ in range(length))
        facts = [(word(4), word(ANSWER)) for _ in range(FACTS)]
        pieces = [self._encoded(f"\nset {key}={value}\n") for key, value in facts]
        key, answer = facts[asked]
        question = self._encoded(f"\nget {key}=")
        free = context - len(self.first) - len(question) - sum(len(one) for one in pieces)
        if free < LEAST_TEXT:
            raise ValueError(f"six facts and a question take {context - free} of its tokens, and some text stands between them")
        made = Question(f"get {key}=", list(self.first), question, answer)
        for index, piece in enumerate(pieces):
            made.prompt += self.stretch(free // 20 if index == 0 else free * 3 // 20)
            made.spans.append(self._span(index, asked, len(made.prompt), piece, facts[index][0]))
            made.prompt += piece
        made.prompt += self.stretch(context - len(question) - len(made.prompt))
        made.name += f", about fact {asked + 1} of {FACTS}, {context - made.spans[asked]['begin']} tokens back"
        begin = len(made.prompt) + self._newlines(question)
        made.spans.append({"begin": begin, "end": context, "kind": "question", "name": "the question"})
        return made

    def _newlines(self, piece: list[int]) -> int:
        """How many tokens in front of a piece are a newline and nothing else."""
        line = self._encoded("\n")
        return len(line) if piece[: len(line)] == line else 0

    def _span(self, index: int, asked: int, at: int, piece: list[int], key: str) -> dict[str, Any]:
        """What the page marks of a fact whose first token is number `at`: the fact, without newlines that are tokens of their own."""
        line = self._encoded("\n")
        begin = at + self._newlines(piece)
        end = at + len(piece) - (len(line) if piece[-len(line) :] == line else 0)
        if index != asked:
            return {"begin": begin, "end": end, "kind": "fact", "name": "another fact"}
        before = self._encoded(f"\nset {key}=")
        same = next((i for i, (a, b) in enumerate(zip(before, piece)) if a != b), min(len(before), len(piece)))
        return {"begin": begin, "end": end, "kind": "asked", "name": "the fact that is asked for", "value": [at + same, end]}


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    z = 1.959964
    n = max(1, of)
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
