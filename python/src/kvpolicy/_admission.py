# SPDX-License-Identifier: Apache-2.0
"""Admissions by name: `admit: write_gate | window(256) | at_least(0.1)`, which is WG-KV, for models of transformers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._native import cache_policy_text

if TYPE_CHECKING:
    import torch

SECTION = re.compile(r"(?:^|.*;)\s*(admit|select)\s*:", re.DOTALL)
GATED = ("write_gate", "carried")  # scorers whose numbers a gate gives


@dataclass(frozen=True)
class Admission:
    """Which entries a query row sees: those of the last `window` tokens, and of older ones those that were admitted.

    `eviction` leaves in the cache what a later row may see, where it decides after every forward.
    """

    text: str
    scorer: str
    eviction: str
    window: int
    sinks: int
    least: float
    strict: bool

    def admits(self, numbers: torch.Tensor, first: list[int]) -> torch.Tensor:
        """Which new tokens are admitted, by the numbers [sequence, KV head, token] of a gate. `first` are the positions of the first ones."""
        import torch  # `kvpolicy.decide` reads admissions without it

        least = torch.tensor(self.least, dtype=torch.float32, device=numbers.device)
        positions = torch.tensor(first, device=numbers.device)[:, None] + torch.arange(numbers.shape[2], device=numbers.device)
        return (numbers > least if self.strict else numbers >= least) | (positions < self.sinks)[:, None]

    def visible(self, admitted: torch.Tensor, new: int) -> torch.Tensor:
        """Which rows [sequence, KV head, new token, row] the last `new` ones see, apart from causality and padding.

        A lane holds its last `window` tokens before a forward, so that the distance of two rows below `window` is that of
        their positions.
        """
        import torch

        rows = admitted.shape[2]
        at = torch.arange(rows, device=admitted.device)
        return (at[rows - new :, None] - at < self.window) | admitted[:, :, None]


def admission_of(call: str, policy: object, parts: str | None, budget: int | float | None) -> Admission | None:
    """The admission that a text describes; None for an eviction. What a model cannot serve is refused."""
    if not isinstance(policy, str) or SECTION.match(policy) is None:
        return None

    def expects(ok: bool, name: str, value: object, rule: str) -> None:
        if not ok:
            raise ValueError(f"{call}: {name} = {value}, but {rule}")

    text = cache_policy_text(policy)
    expects(text.startswith("admit: ") and "; " not in text, "policy", text, "one section is served, an admission or an eviction")
    expects(parts is None and budget is None, "parts" if parts is not None else "budget", parts if parts is not None else budget, "an admission has its parts in its text, and no budget")
    scorer, *others = text.removeprefix("admit: ").split(" | ")
    name = scorer.split("(")[0]
    expects(name in GATED and "decay=" not in scorer.replace("decay=1)", ""), "policy", text, f"tokens are admitted by the numbers of a gate as they are: {' or '.join(GATED)}")
    window, sinks, pick = 0, 0, {"least": "0", "strict": "false"}
    for one in others:
        part, _, given = one.removesuffix(")").partition("(")
        expects(part in ("window", "sinks", "at_least"), "policy", text, f"{part} is not served beside an admission: there are window, sinks and at_least")
        if part == "at_least":
            pick = dict(each.split("=") for each in given.split(", "))
        elif part == "window":
            window = int(given)
        else:
            sinks = max(sinks, int(given))
    kept = " | ".join(one for one in others if not one.startswith("window("))
    eviction = f"{'carried' if name == 'write_gate' else scorer} | recent({window}) | {kept}"
    return Admission(text, name, eviction, window, sinks, float(pick["least"]), pick["strict"] == "true")
