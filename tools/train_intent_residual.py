#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train IntentKV's residual head for tinylm, and measure what it gains over the rule.

    python3 -m venv venv && venv/bin/pip install numpy torch safetensors
    venv/bin/python tools/train_intent_residual.py --out examples/agent_replay/weights/residual.safetensors

tinylm stays frozen. Sessions of 10 to 12 turns fill its context of 1,280 bytes: a turn's message is a tool's output (text with
facts `set k3f9=q0zt7a` in it), a question (`get k3f9=`) about a fact of an earlier turn, or both; the call that follows a
question is its answer. A row is one decision: the history before a turn's message, each byte positive if it is part of a literal
match of an argument `k3f9=q0zt7a` that one of the next five turns' calls will use, this turn's own first among them.

Post-RoPE queries and keys are caught where attention takes them. Memory, rule, features and loss are those of the paper
(arXiv:2606.09916, equations 2 to 6 and 8); docs/training_intent_residual.md states what it leaves open.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import train_tinylm
from replace_file import CannotReplace, check_replaceable, replace_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "examples/tinylm/weights"
CONTEXT = 1280
LAMBDA, HEADS, WIDTH, HIDDEN, CLIP = 0.5, 4, 128, 256, 5.0
LOOKAHEAD, HARD_NEGATIVES = 5, 64
RHO, GAMMA, ETA = 0.05, 0.01, 0.001
SYSTEM = (b"# You are an agent. Tools print facts; get asks for one.\n", b"# system: answer from what the tools have printed so far.\n",
          b"# Tools: search, read, get. Call one tool a turn, then wait.\n")
MARKERS = (b"", b"\n# tool\n", b"\n> result\n")


# The method ------------------------------------------------------------------------------------------------------------------
def unit(x):
    """Each row by its length; rows of zeros stay."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def remember(memory, span_queries, decay=LAMBDA, normalize=False):
    """The memory after one more turn: memory [L,Hq,D], span_queries [L,Hq,n,D]; an empty span leaves it (equation 2)."""
    if span_queries.shape[2] == 0:
        return memory
    encoding = span_queries.mean(2)
    return unit(math.exp(-decay) * memory + (unit(encoding) if normalize else encoding))


def rule_scores(memory, keys):
    """[N]: attention of the memory over the candidates alone, summed over layers and query heads; keys [L,Hkv,N,D] (3)."""
    group = memory.shape[1] // keys.shape[1]
    logits = (memory[:, :, None] @ keys.repeat_interleave(group, 1).transpose(-1, -2))[:, :, 0] / math.sqrt(keys.shape[-1])
    return torch.softmax(logits, -1).sum((0, 1))


def parameter_count(dims, width, hidden):
    """Of the head: five linear layers with a bias each, no output projection, and alpha."""
    features = 3 * dims + 1
    return (features + 1) * width + 2 * (dims + 1) * width + (features + width + 1) * hidden + hidden + 1 + 1


assert parameter_count(128, 128, 256) == 214_274  # the paper's number


class ResidualHead(nn.Module):
    """alpha * MLP(features + cross-attention to the span's keys) for each candidate; zero at the start (4 to 6)."""

    def __init__(self, dims, width=WIDTH, hidden=HIDDEN):
        super().__init__()
        self.w_q = nn.Linear(3 * dims + 1, width)
        self.w_k = nn.Linear(dims, width)
        self.w_v = nn.Linear(dims, width)
        self.fc1 = nn.Linear(3 * dims + 1 + width, hidden)
        self.fc2 = nn.Linear(hidden, 1)
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)
        self.alpha = nn.Parameter(torch.tensor(1.0))
        assert sum(p.numel() for p in self.parameters()) == parameter_count(dims, width, hidden)

    def attend(self, features, span_keys):
        """[N,width]: four heads, no output projection; zeros where the span is empty."""
        n, rows, size = features.shape[0], span_keys.shape[0], self.w_k.out_features // HEADS
        if rows == 0:
            return features.new_zeros(n, HEADS * size)
        q = self.w_q(features).view(n, HEADS, size).transpose(0, 1)
        k = self.w_k(span_keys).view(rows, HEADS, size).transpose(0, 1)
        v = self.w_v(span_keys).view(rows, HEADS, size).transpose(0, 1)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(size), -1)
        return (weights @ v).transpose(0, 1).reshape(n, HEADS * size)

    def mlp(self, rule, mean_keys, mean_memory, span_keys, attend=True):
        """[N]: rule [N], mean_keys [N,D], mean_memory [D], span_keys [n,D]."""
        m = mean_memory.expand_as(mean_keys)
        features = torch.cat((mean_keys, m, mean_keys * m, rule[:, None]), 1)
        c = self.attend(features, span_keys if attend else span_keys[:0])
        return self.fc2(F.gelu(self.fc1(torch.cat((features, c), 1))))[:, 0]

    def forward(self, rule, *features, **switches):
        """[N]: the score as training sees it."""
        return rule + self.alpha * self.mlp(rule, *features, **switches)

    @torch.no_grad()
    def score(self, rule, *features, **switches):
        """[N]: the score as inference computes it, alpha clipped to +-5."""
        return rule + self.alpha.clamp(-CLIP, CLIP) * self.mlp(rule, *features, **switches)

    def tensors(self):
        """By the names of a residual file."""
        return {"residual." + name: value.detach().clone().contiguous() for name, value in self.state_dict().items()}


def objective(scores, labels, memory):
    """Equation 8 of one row: scores and labels (0 or 1) of its labelled candidates."""
    rate = labels.mean().clamp(0.02, 0.5)
    bce = F.binary_cross_entropy_with_logits(scores, labels, pos_weight=(1 - rate) / rate)
    positive, negative = scores[labels == 1], scores[labels == 0]
    hard = negative.topk(min(HARD_NEGATIVES, len(negative))).values
    rank = F.softplus(hard[None] - positive[:, None]).mean()
    norm = (memory.norm(dim=-1) - 1).square().mean()  # a constant: nothing in the memory is trained
    return bce + RHO * rank + GAMMA * torch.sigmoid(scores).mean() + ETA * norm


# Sessions --------------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Turn:
    begin: int  # the message, which is the span: [begin, end)
    end: int
    asked: bytes = b""  # b"k3f9=q0zt7a", the argument of the call that follows; empty where none follows


@dataclasses.dataclass
class Session:
    data: bytes
    prefix: int  # the system prompt, protected
    turns: list
    template: np.ndarray  # bool, one a byte
    facts: list  # b"k3f9=q0zt7a" of each set line


class SessionMaker(train_tinylm.Words):
    """The same sessions from the same text and seed."""

    def message(self, room, facts):
        """A tool's output of `room` bytes: the facts at random places of a stretch of text."""
        room -= sum(len(f) + 6 for f in facts)
        cuts = sorted(self.random.randrange(room + 1) for _ in facts)
        out = bytearray()
        for begin, end, fact in zip([0, *cuts], [*cuts, room], [*facts, None]):
            out += self.stretch(end - begin) if end > begin else b""
            if fact:
                out += (b"set " if out[-1:] in (b"", b"\n") else b"\nset ") + fact + b"\n"
        return bytes(out)

    def question(self, known):
        """Half of the questions go to the older half of the facts."""
        old = known[:(len(known) + 1) // 2]
        return self.random.choice(old if self.random.random() < 0.5 else known)

    def session(self):
        count, marker = self.random.randint(10, 12), self.random.choice(MARKERS)
        data, turns, known = bytearray(self.random.choice(SYSTEM)), [], []
        prefix, template = len(data), [(0, len(data))]
        kinds = ["output"] + self.random.choices(("output", "both", "question"), (2, 5, 3), k=count - 1)
        questions = kinds.count("question")
        each = (CONTEXT - prefix - questions * (len(marker) + 18)) // (count - questions)
        for kind in kinds:
            template.append((len(data), len(data) + len(marker)))
            begin, facts, asked = len(data), [], b""
            data += marker
            if kind != "question":
                facts = [self.word(4) + b"=" + self.word(6) for _ in range(self.random.choice((0, 1, 1, 2)) if known else 2)]
                data += self.message(each - len(marker) - 18 * (kind == "both"), facts)
            if kind != "output":
                asked = self.question(known)
                data += (b"get " if data[-1:] == b"\n" else b"\nget ") + asked[:5]
            turns.append(Turn(begin, len(data), asked))
            data += asked[5:] + b"\n" if asked else b""
            known += facts
        assert len(data) <= CONTEXT
        mask = np.zeros(len(data), bool)
        for a, b in template:
            mask[a:b] = True
        return Session(bytes(data), prefix, turns, mask, known)


def needed(session, t):
    """What the next calls will use: (arguments of this turn's call, of the LOOKAHEAD - 1 turns after it)."""
    now = {session.turns[t].asked} - {b""}
    return now, {turn.asked for turn in session.turns[t + 1:t + LOOKAHEAD]} - {b""} - now


def matches(session, end, arguments):
    """[(begin, end)] of every literal match in the history [prefix, end)."""
    found = []
    for argument in sorted(arguments):
        at = session.data.find(argument, session.prefix, end)
        while at >= 0:
            found.append((at, at + len(argument)))
            at = session.data.find(argument, at + 1, end)
    return found


def mask_of(session, end, arguments):
    """bool of the history [prefix, end): the bytes of these arguments."""
    out = np.zeros(end - session.prefix, bool)
    for a, b in matches(session, end, arguments):
        out[a - session.prefix:b - session.prefix] = True
    return out


def labels(session, t):
    """int8 of the history [prefix, begin of turn t): 1 needed, 0 not, -100 template."""
    begin, end = session.prefix, session.turns[t].begin
    out = mask_of(session, end, set.union(*needed(session, t))).astype(np.int8)
    out[session.template[begin:end]] = -100
    return out


# Features --------------------------------------------------------------------------------------------------------------------
class RopeHook:
    """Catches what rotate() gives to attention: queries, then keys, of each layer."""

    def __init__(self, model):
        self.model, self.caught, self.rotate = model, [], train_tinylm.rotate

    def catch(self, *arguments):
        self.caught.append(self.rotate(*arguments)[0])
        return self.caught[-1][None]

    @torch.no_grad()
    def __call__(self, data):
        """(queries [L,Hq,n,D], keys [L,Hkv,n,D])"""
        self.caught.clear()
        train_tinylm.rotate = self.catch
        try:
            self.model(torch.tensor(list(data))[None])
        finally:
            train_tinylm.rotate = self.rotate
        return torch.stack(self.caught[::2]), torch.stack(self.caught[1::2])


def load_tinylm(path):
    """tinylm as it is committed: 16-bit weights, computed in f32."""
    from safetensors.torch import load_file

    state = {}
    for name, tensor in load_file(path).items():
        state["ngrams.tables." + name.split(".")[1] if name.startswith("ngrams.") else name] = tensor.float()
    model = train_tinylm.TinyLM()
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


@dataclasses.dataclass
class Row:
    """One decision over the whole history: what the head reads, and what it should say."""

    turn: int
    begin: int  # candidates are [prefix, begin)
    end: int
    state: dict  # of mode `memory` and `query`, and the span's last row, [L,Hq,D]
    rule: dict  # likewise, [candidates]
    labels: np.ndarray
    encoding: float = 0.0  # length of the span's mean query, mean over layers and heads


@dataclasses.dataclass
class Recorded:
    """A session as the frozen model sees it."""

    session: Session
    mean_keys: torch.Tensor  # [n,D], over layers and KV heads
    rows: list
    keys: torch.Tensor | None = None  # kept for sessions that are replayed


def record(session, hook, keep_keys):
    """Runs the model over a session and replays its memory in turn order."""
    queries, keys = hook(session.data)
    made = Recorded(session, keys.mean((0, 1)), [], keys if keep_keys else None)
    memory = queries.new_zeros(queries.shape[0], queries.shape[1], queries.shape[3])
    for t, turn in enumerate(session.turns):
        span = queries[:, :, turn.begin:turn.end]
        memory = remember(memory, span)
        state = {"memory": memory, "query": unit(span.mean(2))}
        truth = labels(session, t)
        if (truth == 1).any() or keep_keys:
            history = keys[:, :, session.prefix:turn.begin]
            state["last row"] = queries[:, :, turn.end - 1].clone()
            rule = {mode: rule_scores(m, history) for mode, m in state.items()} if len(truth) else {}
            made.rows.append(Row(t, turn.begin, turn.end, state, rule, truth, span.mean(2).norm(dim=-1).mean().item()))
    return made


def head_inputs(recorded, row, mode="memory"):
    """What ResidualHead takes, for the candidates of a row."""
    keys = recorded.mean_keys
    return row.rule[mode], keys[recorded.session.prefix:row.begin], row.state[mode].mean((0, 1)), keys[row.begin:row.end]


# Training --------------------------------------------------------------------------------------------------------------------
def reservoir(items, size, dice):
    """`size` items of a stream, each equally likely (algorithm R)."""
    kept = []
    for i, item in enumerate(items):
        if i < size:
            kept.append(item)
        elif (j := dice.randrange(i + 1)) < size:
            kept[j] = item
    return kept


def epoch_rows(recorded, size, dice):
    """The sampled rows: sessions in random order, the turns of one in ascending order."""
    chosen = reservoir(((s, r) for s, one in enumerate(recorded) for r, row in enumerate(one.rows) if (row.labels == 1).any()), size, dice)
    order = list(range(len(recorded)))
    dice.shuffle(order)
    rank = {s: i for i, s in enumerate(order)}
    return sorted(chosen, key=lambda pair: (rank[pair[0]], pair[1]))


def train(head, recorded, arguments):
    """Returns the mean loss of every hundred rows."""
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01)
    dice, losses, means = random.Random(arguments.seed), [], []
    for epoch in range(arguments.epochs):
        for s, r in epoch_rows(recorded, arguments.rows, dice):
            row = recorded[s].rows[r]
            known = torch.from_numpy(row.labels >= 0)
            scores = head(*head_inputs(recorded[s], row))[known]
            loss = objective(scores, torch.from_numpy(row.labels).float()[known], row.state["memory"])
            (loss / arguments.accumulate).backward()
            losses.append(loss.item())
            if len(losses) % arguments.accumulate == 0:
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            if len(losses) % 500 == 0:
                means.append(float(np.mean(losses[-500:])))
                print(f"epoch {epoch} row {len(losses):5} loss {means[-1]:.4f} alpha {head.alpha.item():.4f}", flush=True)
    return means


# What it gains ---------------------------------------------------------------------------------------------------------------
def scorers(head):
    """name -> scores [candidates] of a row."""
    def learned(mode="memory", **switches):
        return lambda one, row: head.score(*head_inputs(one, row, mode), **switches)

    return {
        "rule, query": lambda one, row: row.rule["query"],
        "rule, memory": lambda one, row: row.rule["memory"],
        "rule + residual": learned(),
        "- memory": learned("query"),
        "- cross-attention": learned(attend=False),
        "residual alone": lambda one, row: head.score(*head_inputs(one, row)) - row.rule["memory"],
        "all facts alike": lambda one, row: torch.from_numpy(mask_of(one.session, row.begin, one.session.facts)).float(),
        "last row": lambda one, row: row.rule["last row"],
        "last row, pooled": lambda one, row: F.max_pool1d(row.rule["last row"][None], 15, 1, 7)[0],
    }


def ranks_above(scores, truth):
    """AUC: the chance that a positive scores above a negative, ties half."""
    values, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    p = int(truth.sum())
    return (rank[truth].sum() - p * (p + 1) / 2) / (p * (len(truth) - p))


def top(scores, count):
    """bool [N]: the best `count`, ties to the lower position."""
    kept = np.zeros(len(scores), bool)
    kept[np.argsort(-scores, kind="stable")[:count]] = True
    return kept


def whole_facts(one, row, kept, arguments):
    """(facts of which one copy is kept whole, facts in the history)"""
    first, whole, there = one.session.prefix, 0, 0
    for argument in arguments:
        copies = matches(one.session, row.begin, {argument})
        there += bool(copies)
        whole += any(kept[a - first:b - first].all() for a, b in copies)
    return whole, there


def measure_session(one, scorer, shares):
    """Sums over the rows of a session: name -> (kept, of)."""
    sums = {}

    def add(name, got, of):
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + got, before[1] + of)

    for row in one.rows:
        truth = row.labels == 1
        if not truth.any():
            continue
        scores = scorer(one, row).numpy().astype(np.float64)
        known = row.labels >= 0
        add("AUC", ranks_above(scores[known], truth[known]), 1)
        facts = mask_of(one.session, row.begin, one.session.facts)
        if (facts & ~truth).any():
            add("AUC among facts", ranks_above(scores[facts], truth[facts]), 1)
        now, later = needed(one.session, row.turn)
        for share in shares:
            kept = top(scores, int(len(scores) * share))
            add(f"bytes {share}", (kept & truth).sum(), truth.sum())
            add(f"facts {share}", *whole_facts(one, row, kept, now | later))
            add(f"now {share}", *whole_facts(one, row, kept, now))
            add(f"later {share}", *whole_facts(one, row, kept, later))
    return sums


def replay_session(one, head, mode, budget):
    """(answerable, asked): eviction turn after turn at a budget of live bytes, what was dropped stays dropped. A question is
    answerable if one copy of its fact is live and whole after its turn's decision. Mode `learnable` is `memory` and the head."""
    session, live = one.session, np.zeros(0, bool)
    answerable = asked = 0
    for row in one.rows:
        live = np.concatenate((live, np.ones(row.end - len(live), bool)))
        forced = np.arange(row.end) < session.prefix
        forced[row.begin:row.end] = True
        candidates = np.flatnonzero(live & ~forced)
        if live.sum() > budget and len(candidates):
            state = row.state["query" if mode == "query" else "memory"]
            chosen = torch.from_numpy(candidates)
            scores = rule_scores(state, one.keys[:, :, chosen])
            if mode == "learnable":
                scores = head.score(scores, one.mean_keys[chosen], state.mean((0, 1)), one.mean_keys[row.begin:row.end])
            kept = top(scores.numpy().astype(np.float64), max(0, budget - int((live & forced).sum())))
            live[candidates[~kept]] = False
        if argument := session.turns[row.turn].asked:
            asked += 1
            answerable += any(live[a:b].all() for a, b in matches(session, row.begin, {argument}))
    return answerable, asked


def interval(pairs, base=None, draws=4000, seed=42):
    """(ratio of sums, lower, upper): 95 % bootstrap over sessions, of the difference where `base` is given."""
    pairs, dice = np.array(pairs, float), np.random.default_rng(seed)
    pick = dice.integers(0, len(pairs), (draws, len(pairs)))

    def ratios(table):
        table = np.array(table, float)
        total = table[pick].sum(1)
        return table[:, 0].sum() / table[:, 1].sum(), total[:, 0] / total[:, 1]

    value, drawn = ratios(pairs)
    if base is not None:
        other, other_drawn = ratios(base)
        value, drawn = value - other, drawn - other_drawn
    return float(value), float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def tabulate(tables, base, out):
    """Prints, and adds to `out`, each quantity of each scorer and its difference to `base`."""
    for name in next(iter(tables.values())):
        print(f"\n{name}")
        for scorer, quantities in tables.items():
            value = interval(quantities[name])
            gain = interval(quantities[name], tables[base][name])
            out.setdefault(name, {})[scorer] = dict(value=value, gain=gain)
            print(f"  {scorer:18} {value[0]:.4f} [{value[1]:.4f}, {value[2]:.4f}]   against {base} {gain[0]:+.4f} [{gain[1]:+.4f}, {gain[2]:+.4f}]")


def validate(head, held, shares=(0.125, 0.25, 0.5), budgets=(256, 384, 640)):
    """Every figure of the report, from sessions that training has not seen."""
    out, once = {}, {}
    for name, scorer in scorers(head).items():
        sums = [measure_session(one, scorer, shares) for one in held]
        once[name] = {q: [s.get(q, (0, 0)) for s in sums] for q in sums[0]}
    print("\n-- one decision over the whole history")
    tabulate(once, "rule, memory", out)
    print("\n-- eviction turn after turn: questions whose fact is live and whole")
    turns = {}
    for mode in ("query", "memory", "learnable"):
        turns[mode] = {f"live at most {budget}": [replay_session(one, head, mode, budget) for one in held] for budget in budgets}
    tabulate(turns, "memory", out)
    print("\n-- scales")
    spread = [(one, row) for one in held for row in one.rows if (row.labels == 1).any()]
    rule = np.concatenate([row.rule["memory"].numpy() for _, row in spread])
    extra = np.concatenate([(head.score(*head_inputs(one, row)) - row.rule["memory"]).numpy() for one, row in spread])
    out["scales"] = dict(rule_mean=float(rule.mean()), rule_std=float(rule.std()), residual_mean=float(extra.mean()), residual_std=float(extra.std()),
                         correlation=float(np.corrcoef(rule, extra)[0, 1]), encoding_length=float(np.mean([row.encoding for _, row in spread])))
    print(" ".join(f"{k} {v:.4f}" for k, v in out["scales"].items()))
    return out


# Its own test ----------------------------------------------------------------------------------------------------------------
def near(values, expected):
    return torch.allclose(values, torch.tensor(expected), atol=2e-6, rtol=0)


def test_method():
    """A worked example of memory and rule; and a head that is zero at the start, of which fc2 alone then moves."""
    memory = torch.zeros(1, 2, 4)
    for span in ([[1.0, 1, 0, 0], [0, 0, 2, 0]], [[0, 0, 0, 1.0], [1, 0, 0, 0]]):
        memory = remember(memory, torch.tensor(span)[None, :, None])
    assert near(memory[0], [[0.366702, 0.366702, 0, 0.855020], [0.855020, 0, 0.518596, 0]])
    keys = torch.tensor([[0.0, 0, 2, 0], [0, 0, 0, 3], [-1, 0, 0, 1]])
    rule = rule_scores(memory, keys[None, None])
    assert near(rule, [0.674134, 0.913122, 0.412745])
    head = ResidualHead(4, 8, 16)
    inputs = (rule, keys, memory.mean((0, 1)), torch.tensor([[1.0, 1, 0, 0], [4, 0, 0, 0]]))
    assert torch.equal(head.score(*inputs), rule)
    objective(head(*inputs), torch.tensor([1.0, 0, 0]), memory).backward()
    assert {n for n, p in head.named_parameters() if p.grad is not None and p.grad.any()} == {"fc2.weight", "fc2.bias"}
    nn.init.ones_(head.fc2.weight)
    with torch.no_grad():
        head.alpha.fill_(5.0)
        at_5 = head.score(*inputs)
        head.alpha.fill_(7.0)
    assert torch.equal(head.score(*inputs), at_5) and not torch.equal(at_5, rule)


def test_objective():
    """Every term of equation 8, written out."""
    scores, truth = torch.tensor([2.0, -1.0, 0.5, 0.0]), torch.tensor([1.0, 0, 0, 1])
    def softplus(x):
        return math.log1p(math.exp(x))
    bce = (softplus(-2) + softplus(-1) + softplus(0.5) + softplus(0)) / 4  # half are positive: weight 1
    rank = (softplus(-3) + softplus(-1.5) + softplus(-1) + softplus(0.5)) / 4
    mean = sum(1 / (1 + math.exp(-x)) for x in scores.tolist()) / 4
    memory = torch.tensor([[[2.0, 0]]])
    assert abs(objective(scores, truth, memory).item() - (bce + 0.05 * rank + 0.01 * mean + 0.001)) < 1e-6


def test_labels():
    """Needed within five turns: positive; template: ignored; the rest, later questions included: negative."""
    data = b"SYS\n\nset aaaa=111111\nset bbbb=222222\n" + b"\nget aaaa=111111\n" * 3
    at = [4, 37, 54, 71]
    turns = [Turn(4, 37)] + [Turn(a, a + 10, b"aaaa=111111") for a in at[1:]]
    template = np.zeros(len(data), bool)
    template[[0, 1, 2, 3, *at]] = True
    session = Session(data, 4, turns, template, [b"aaaa=111111", b"bbbb=222222"])
    got = labels(session, 2)
    positive = set(range(9, 20)) | set(range(42, 53))  # the set line, and what answered it once
    assert {4 + int(i) for i in np.flatnonzero(got == 1)} == positive
    assert {4 + int(i) for i in np.flatnonzero(got == -100)} == {4, 37}
    session.turns += [Turn(88 + i, 88 + i) for i in range(4)] + [Turn(92, 92, b"bbbb=222222")]
    assert not (labels(session, 3)[21:32] == 1).any()  # asked in the sixth
    assert (labels(session, 4)[21:32] == 1).all()  # asked in the fifth
    assert whole_facts(session_rows(session, 3), session_rows(session, 3).rows[0], got >= 0, {b"aaaa=111111", b"cccc=3"}) == (1, 1)


def session_rows(session, t):
    turn = session.turns[t]
    return Recorded(session, torch.zeros(len(session.data), 1), [Row(t, turn.begin, turn.end, {}, {}, labels(session, t))])


def test_sessions():
    """Made sessions hold what their turns say, within the context."""
    maker = SessionMaker(bytes(range(97, 123)) * 100, 1)
    for _ in range(50):
        one, known = maker.session(), set()
        assert one.prefix < len(one.data) <= CONTEXT and 10 <= len(one.turns) <= 12
        for turn, after in zip(one.turns, [*one.turns[1:], Turn(len(one.data), 0)]):
            if turn.asked:
                assert turn.asked in known
                assert one.data[turn.end - 9:after.begin] == b"get " + turn.asked + b"\n"
            known |= {fact for fact in one.facts if b"set " + fact + b"\n" in one.data[turn.begin:turn.end]}
        assert known == set(one.facts)
    assert maker.session() != maker.session()


def test_measures():
    assert ranks_above(np.array([3.0, 1, 2, 2]), np.array([True, False, True, False])) == 3.5 / 4
    assert top(np.array([1.0, 2, 2, 0, 0]), 1).tolist() == [False, True, False, False, False]
    low, high = interval([(1, 1)] * 30 + [(0, 1)] * 30)[1:]
    assert 0.33 < low < 0.42 and 0.58 < high < 0.67  # half, give or take 0.126
    assert interval([(1, 2)] * 5, [(1, 2)] * 5) == (0.0, 0.0, 0.0)
    counts = np.bincount([i for seed in range(2000) for i in reservoir(range(10), 3, random.Random(seed))], minlength=10)
    assert counts.sum() == 6000 and counts.min() > 500 and counts.max() < 700


def self_test():
    tests = [test_method, test_objective, test_labels, test_sessions, test_measures]
    for test in tests:
        test()
    print(f"{len(tests)} tests passed")


# The program -----------------------------------------------------------------------------------------------------------------
def record_all(maker, count, hook, keep_keys):
    begin, recorded = time.time(), []
    for _ in range(count):
        recorded.append(record(maker.session(), hook, keep_keys))
    rows = [row for one in recorded for row in one.rows if (row.labels == 1).any()]
    rate = np.mean([(row.labels == 1).sum() / (row.labels >= 0).sum() for row in rows])
    print(f"{count} sessions, {len(rows)} rows with a positive, {100 * rate:.2f} % of their bytes positive, {time.time() - begin:.0f} s", flush=True)
    return recorded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the head, as safetensors (F32)")
    parser.add_argument("--load", type=pathlib.Path, help="a head to measure; nothing is trained")
    parser.add_argument("--report", type=pathlib.Path, help="all figures, as JSON")
    parser.add_argument("--sessions", type=int, default=450, help="to train on")
    parser.add_argument("--held", type=int, default=150, help="sessions to measure on")
    parser.add_argument("--rows", type=int, default=3000, help="drawn from those sessions for an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--self-test", action="store_true", help="check the method, the labels and the measures, and stop")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    from safetensors.torch import load_file, save

    if arguments.out:  # refused before the training, not after it
        try:
            check_replaceable(arguments.out, [arguments.load] if arguments.load else [])
        except CannotReplace as refused:
            parser.error(f"--out {refused}")

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    begin = time.time()
    model = load_tinylm(WEIGHTS / "weights.safetensors")
    hook, head = RopeHook(model), ResidualHead(train_tinylm.CONFIG["head_dim"])
    print(f"{sum(p.numel() for p in head.parameters()):,} parameters", flush=True)
    report = {}
    if arguments.load:
        head.load_state_dict({name.removeprefix("residual."): t for name, t in load_file(arguments.load).items()})
    else:
        text = b"\n".join(b"\n".join(part) for part in train_tinylm.corpus())
        recorded = record_all(SessionMaker(text, arguments.seed), arguments.sessions, hook, False)
        started = time.time()
        report["loss"] = train(head, recorded, arguments)
        report["train_seconds"] = time.time() - started
        print(f"trained in {report['train_seconds']:.0f} s")
        del recorded
    report["alpha"] = head.alpha.item()
    if arguments.out:
        notes = dict(format="intent_kv residual head", model="tinylm", dims=head.w_k.in_features, width=WIDTH, hidden=HIDDEN, decay=LAMBDA,
                     sessions=arguments.sessions, rows=arguments.rows, epochs=arguments.epochs, seed=arguments.seed)
        with replace_file(arguments.out) as file:
            file.write(save(head.tensors(), {k: str(v) for k, v in notes.items()}))
        print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")
    held = record_all(SessionMaker((WEIGHTS / "held_out.txt").read_bytes(), arguments.seed + 1), arguments.held, hook, True)
    report.update(validate(head, held), seconds=time.time() - begin)
    print(f"\nwall time {report['seconds']:.0f} s")
    if arguments.report:
        arguments.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
