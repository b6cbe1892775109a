# SPDX-License-Identifier: Apache-2.0
"""What the user asks for: a policy as text, and the slack. It is read and checked before a model is loaded."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

import kvpolicy

from .arithmetic import Cuts

VARIABLE = "KVPOLICY_VLLM"
KEYS = ("policy", "slack", "during_prefill")
SIGNALS = {"keys", "values", "recent_queries"}  # what the plugin can show to a policy
PARTS = {"sinks", "recent", "safe", "put_first", "reduce_lanes"}  # the parts beside the budget that leave every lane the same number


@dataclass(frozen=True)
class Settings:
    """A policy that leaves every lane of a request `budget` entries, and reads the last `window` query rows."""

    policy: str
    budget: int
    window: int
    reads: frozenset[str]
    decides: str
    slack: int | None = None  # in blocks; None: the budget's blocks
    during_prefill: bool = False

    def cuts(self, block: int) -> Cuts:
        """The arithmetic for blocks of `block` tokens."""
        cuts = Cuts(self.budget, block)
        return Cuts(self.budget, block, cuts.whole if self.slack is None else self.slack, self.during_prefill)

    @property
    def told(self) -> str:
        """One line for the log of an engine that starts."""
        again = "and never again" if self.slack == 0 else f"and again whenever it has {'its budget' if self.slack is None else f'{self.slack} blocks'} more"
        when = "between chunks of its prompt, after it, " if self.during_prefill else "after its prompt, "
        return f"kvpolicy: a request keeps {self.budget} entries in each lane ({self.policy}), cut {when}{again}"

    def at(self, kept: int, newest: int) -> str:
        """The policy that keeps `kept` entries, the `newest` ones among them."""
        return re.sub(r"\bbudget\(\d+\)", f"budget({kept})" + (f" | recent({newest})" if newest > 0 else ""), self.policy)


def settings_of(policy: str, slack: int | None = None, during_prefill: bool = False) -> Settings:
    """Reads a policy. Raises ValueError in one sentence if the plugin cannot carry it out."""
    try:
        facts = kvpolicy.policy_facts(policy)
    except ValueError as why:
        raise ValueError(f"kvpolicy: {why}") from None
    refuse = lambda why: ValueError(f"kvpolicy: policy = {policy}, but {why}")
    if slack is not None and (not isinstance(slack, int) or isinstance(slack, bool) or slack < 0):
        raise ValueError(f"kvpolicy: slack = {slack}, but it is a number of blocks: 0 for no cut while decoding")
    if not isinstance(during_prefill, bool):
        raise ValueError(f"kvpolicy: during_prefill = {during_prefill}, but it is true or false")
    if during_prefill and slack == 0:
        raise ValueError("kvpolicy: during_prefill = true, but with slack = 0 a request is cut after its prompt only: leave slack out, or give it 1 or more")
    if facts.every_row:
        raise refuse(f"{facts.scorer} reads the query rows of every token, and the plugin records the last ones")
    if facts.session or facts.turn_rows > 0:
        raise refuse(f"{facts.scorer} reads turns, and a request of vLLM is one turn")
    unknown = sorted(set(facts.needs) - SIGNALS)
    if unknown:
        raise refuse(f"{facts.scorer} reads the signal {unknown[0]}, which vLLM does not give")
    if facts.scorer == "full":
        raise refuse("full drops nothing")
    if facts.scope != "lane":
        raise refuse(f"budget(scope={facts.scope}) lets lanes keep unequal numbers, and vLLM has one length for all lanes of a request")
    budget = None
    for part in facts.text.split(" | ")[1:]:
        name = part.split("(")[0]
        if name == "budget" and re.fullmatch(r"budget\(\d+\)", part):
            budget = int(part[len("budget(") : -1])
        elif name == "budget":
            raise refuse(f"{part} is not a number of entries such as budget(1024), from which scheduler and workers know what a request keeps")
        elif name not in PARTS:
            raise refuse(f"{part} does not leave every lane of a request the same number of entries, known from its length")
    if budget is None:
        raise refuse("it has no budget, which is a number of entries")
    return Settings(facts.text, budget, facts.window_rows, frozenset(facts.needs), facts.decides, slack, during_prefill)


def check_block(settings: Settings, block: int) -> None:
    """Refuses a policy that keeps other numbers than the arithmetic says, because of what it protects: it is tried for every tail."""
    import numpy as np

    cuts = settings.cuts(block)
    for tail in range(block):
        tokens = (cuts.whole + 2) * block + tail
        rows = np.zeros((1, tokens, 1), np.float32)
        queries = rows[:, :settings.window] if settings.window else None
        try:
            kept = kvpolicy.decide(settings.at(cuts.kept(tokens), tail), keys=rows, values=rows, queries=queries, threads=1)
        except ValueError as why:
            raise ValueError(f"kvpolicy: policy = {settings.policy}, but a request of {tokens} tokens in blocks of {block} cannot be cut: {why}") from None
        count = int(kept.counts[0, 0, 0])
        if count != cuts.kept(tokens):
            raise ValueError(f"kvpolicy: policy = {settings.policy}, but of {tokens} tokens it protects {count}, and whole blocks of {block} leave {cuts.kept(tokens)}")


def parsed(given: Any, name: str) -> Settings | None:
    """The settings in a policy's text, in a JSON object as text, or in a dict with `policy`, `slack` and `during_prefill`."""
    if given is None or given == "" or given == {}:
        return None
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except ValueError as why:
            raise ValueError(f"kvpolicy: {name} = {given}, but it is no JSON object: {why}") from None
    if isinstance(given, str):
        given = {"policy": given}
    if not isinstance(given, dict) or not isinstance(given.get("policy"), str):
        raise ValueError(f"kvpolicy: {name} = {given!r}, but it is a policy's text, or an object with a policy")
    for key in given:
        if key not in KEYS:
            raise ValueError(f"kvpolicy: {name} has {key!r}, but there are {', '.join(KEYS)}")
    return settings_of(given["policy"], given.get("slack"), given.get("during_prefill", False))


def asked_for(additional_config: Any) -> Settings | None:
    """The settings of a configuration of vLLM; those of the variable KVPOLICY_VLLM if it has none; None without a policy."""
    given = additional_config.get("kvpolicy") if isinstance(additional_config, dict) else None
    return parsed(given, 'additional_config["kvpolicy"]') or parsed(os.environ.get(VARIABLE), VARIABLE)
