#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train WG-KV's write gate or TRIM-KV's retention gate for tinylm, and measure it beside static policies.

    python3 -m venv venv && venv/bin/pip install numpy torch safetensors
    venv/bin/python tools/train_gates.py --kind write --out examples/tinylm/weights/write_gate.safetensors
    venv/bin/python tools/train_gates.py --kind retention --out examples/tinylm/weights/retention_gate.safetensors

tinylm stays frozen. A sample is text with three to eight facts `set k3f9=q0zt7a` in it, then questions `get k3f9=` about three to six
of them with their answers. The teacher is the full cache; the student's attention is softened by what the gate says of each entry.

Gates, soft attention and losses are those of the papers (WG-KV, arXiv:2512.17452, section 4; TRIM-KV, arXiv:2512.03324, section 4)
but for what docs/training_gates.md lists. Measuring decides hard, as a cache does.
"""
import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import train_tinylm
from export_tinylm import write_safetensors as save
from replace_file import CannotReplace, check_replaceable
from train_intent_residual import load_tinylm

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "examples/tinylm/weights"
CONTEXT, BLOCK = 1280, 256
RMS_EPS, FLOOR = 1e-6, math.log(1e-3)
OPEN, REMEMBERING = 1.0, 8.0  # what the gates' last biases start at

class Weights(nn.Module):
    """A weight and, where a shape is given for it, a bias."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self.weight = nn.Parameter(weight)
        if bias is not None:
            self.bias = nn.Parameter(bias)


def fan_in(*shape):
    """Normal numbers whose variance is that of nn.Linear's."""
    return torch.randn(shape) / math.sqrt(3 * shape[-1])


class WriteGate(nn.Module):
    """WG-KV's: for each lane, an MLP of the key before and after RoPE (section 4.1 of the paper)."""

    prefix = "write_gate."

    def __init__(self, layers, kv_heads, dims, hidden):
        super().__init__()
        self.pre_norm, self.post_norm = Weights(torch.ones(layers, dims)), Weights(torch.ones(layers, dims))
        self.fc1 = Weights(fan_in(layers, kv_heads, hidden, 2 * dims), torch.zeros(layers, kv_heads, hidden))
        self.fc2 = Weights(fan_in(layers, kv_heads, hidden), torch.full((layers, kv_heads), OPEN))

    def forward(self, layer, pre, post):
        """Logit of g, [..,Hkv,N], of the keys pre and post [..,Hkv,N,D]."""
        x = torch.cat((rms(pre) * self.pre_norm.weight[layer], rms(post) * self.post_norm.weight[layer]), -1)
        h = F.gelu(x @ self.fc1.weight[layer].transpose(1, 2) + self.fc1.bias[layer][:, None])
        return (h @ self.fc2.weight[layer][:, :, None])[..., 0] + self.fc2.bias[layer][:, None]


class RetentionGate(nn.Module):
    """TRIM-KV's: for each layer, an MLP of the normed hidden row, with one output for each KV head."""

    prefix = "retention_gate."

    def __init__(self, layers, kv_heads, width, hidden):
        super().__init__()
        self.fc1 = Weights(fan_in(layers, hidden, width), torch.zeros(layers, hidden))
        self.fc2 = Weights(fan_in(layers, kv_heads, hidden), torch.full((layers, kv_heads), REMEMBERING))

    def forward(self, layer, hidden):
        """log beta, [..,Hkv,N], of the rows [..,N,d] that go into attention."""
        h = F.silu(hidden @ self.fc1.weight[layer].T + self.fc1.bias[layer])
        return F.logsigmoid(h @ self.fc2.weight[layer].T + self.fc2.bias[layer]).transpose(-1, -2)


def rms(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPS)


def tensors_of(gate):
    """By the names of a gate file."""
    return {gate.prefix + name: value.detach().clone().contiguous() for name, value in gate.state_dict().items()}


# Golden files ----------------------------------------------------------------------------------------------------------------
def numbers(bits, spread, *shape):
    """f32, uniform in [-spread / 2, spread / 2), of a raw bit generator, whose output no version of numpy changes."""
    raw = bits.random_raw(math.prod(shape))
    return torch.from_numpy(((raw >> np.uint64(40)) * 2.0**-24 - 0.5).astype(np.float32).reshape(shape) * np.float32(spread))


@torch.no_grad()
def refill(gate, bits):
    """Random weights, of spreads at which the outputs span their range."""
    for name, value in gate.named_parameters():
        value.copy_(numbers(bits, 2.0 if "bias" in name or "norm" in name else 12 / math.sqrt(value.shape[-1]), *value.shape))


@torch.no_grad()
def write_goldens(folder):
    """What PyTorch computes from small gates: weights, inputs and outputs in one file for each kind."""
    (layers, heads, dims, hidden, width, rows), bits = (2, 2, 8, 12, 16, 5), np.random.PCG64(70)
    write = WriteGate(layers, heads, dims, hidden)
    refill(write, bits)
    pre, post = (numbers(bits, 4.0, layers, heads, rows, dims) for _ in range(2))
    pre[:, :, 1] *= 2.0**-11  # rows beside which eps is not small
    post[0, :, 2] = 0
    pre[1, :, 3] *= 1000
    g = torch.stack([torch.sigmoid(write(layer, pre[layer], post[layer])) for layer in range(layers)])
    retention = RetentionGate(layers, heads, width, hidden)
    refill(retention, bits)
    retention.fc2.bias[0, 0], retention.fc2.bias[1, 1] = 8.0, 20.0  # 1 - beta is about 3e-4, and below the spacing of f32
    rest = numbers(bits, 4.0, layers, rows, width)
    rest[0, 2] = 0
    rest[1, 3] *= 50
    log_beta = torch.stack([retention(layer, rest[layer]) for layer in range(layers)])
    about = {"torch": torch.__version__}
    save(folder / "write_gate.safetensors", tensors_of(write) | dict(pre=pre, post=post, g=g), about)
    save(folder / "retention_gate.safetensors", tensors_of(retention) | dict(hidden=rest, log_beta=log_beta), about)
    print("g", g, "log beta", log_beta)


# The model under a gate ------------------------------------------------------------------------------------------------------
def angles(config, positions):
    half = config["head_dim"] // 2
    angle = positions[:, None] * config["rope_theta"] ** (-torch.arange(half) / half)[None, :]
    return angle.cos(), angle.sin()


def split(x, heads):
    """[R,n,heads*D] -> [R,heads,n,D]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def forward(model, ids, attend):
    """Normed last hidden rows [R,n,d]; attend(layer, hidden, q, pre, post, v) -> [R,Hkv,G,n,D]."""
    c, (rows, n) = model.c, ids.shape
    cos, sin = angles(c, torch.arange(n))
    x = model.embedding(ids) + model.ngrams(ids)
    for layer, block in enumerate(model.blocks):
        y = block.attention_norm(x)
        q, pre, v = split(block.wq(y), c["q_heads"]), split(block.wk(y), c["kv_heads"]), split(block.wv(y), c["kv_heads"])
        q, post = train_tinylm.rotate(q, cos, sin) * c["head_dim"] ** -0.5, train_tinylm.rotate(pre, cos, sin)
        out = attend(layer, y, q.unflatten(1, (c["kv_heads"], -1)), pre, post, v)
        x = x + block.wo(out.flatten(1, 2).transpose(1, 2).reshape(rows, n, -1))
        y = block.mlp_norm(x)
        x = x + block.down(F.silu(block.gate(y)) * block.up(y))
    return model.norm(x)


def attention(q, k, v, change=None):
    """[R,Hkv,G,n,D] of q [R,Hkv,G,n,D], already scaled, and k, v [R,Hkv,n,D]. change(logits, i, end) makes the logits of the
    rows i [b,1] with the columns below end what they are to be; blocks of rows, so that half of them are never made."""
    n, out = q.shape[3], []
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        logits = (q[..., begin:end, :].flatten(2, 3) @ k[:, :, :end].transpose(-1, -2)).unflatten(2, (q.shape[2], -1))
        i, j = torch.arange(begin, end)[:, None], torch.arange(end)[None]
        if change:
            logits = change(logits, i, j)
        weights = torch.softmax(logits.masked_fill(i < j, float("-inf")), -1)
        out.append((weights.flatten(2, 3) @ v[:, :, :end]).unflatten(2, (q.shape[2], -1)))
    return torch.cat(out, 3)


class Full:
    """Everything is visible."""

    def __call__(self, layer, hidden, q, pre, post, v):
        return attention(q, post, v)


class SoftWrites:
    """WG-KV in training: what the window left gets scales[layer] log g added to its logit (equation 4 where the scale is 1).
    Keeps the logits of every g."""

    def __init__(self, gate, window, scales):
        self.gate, self.window, self.scales, self.logits = gate, window, scales, []

    def __call__(self, layer, hidden, q, pre, post, v):
        z = self.gate(layer, pre, post)
        self.logits.append(z)
        bias = F.logsigmoid(z).clamp_min(FLOOR)[:, :, None, None] * self.scales[layer][..., None, None]
        return attention(q, post, v, lambda x, i, j: x + torch.where(i - j >= self.window, bias[..., :j.shape[1]], 0))

    def sparsity(self, form):
        """Mean of g (`linear`), or of g + g (1 - g) (`binary`, the paper's: its slope is zero at 1, where a lane then stays)."""
        g = torch.sigmoid(torch.stack(self.logits))
        return g.mean() if form == "linear" else (g * (2 - g)).mean()


@torch.no_grad()
def logit_scales(model, ids):
    """[L,Hkv,G]: the range of a row's logits, mean over the rows of ids, over log 10; at least 1. With it a g of 0.1 pushes an
    entry below about every other of the row. tinylm's logits reach hundreds: a weight of 1e-3 alone hides nothing."""
    made = []

    def attend(layer, hidden, q, pre, post, v):
        x, n = q @ post[:, :, None].transpose(-1, -2), q.shape[3]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        span = x.masked_fill(later, -math.inf).amax(-1) - x.masked_fill(later, math.inf).amin(-1)
        made.append((span.mean((0, 3)) / math.log(10)).clamp_min(1))
        return attention(q, post, v)

    forward(model, ids, attend)
    return torch.stack(made)


class SoftRetention:
    """TRIM-KV in training: beta^age times the logit (`multiply`, the paper's), or age log(beta) added to it (`add`)."""

    def __init__(self, gate, capacity, form):
        self.gate, self.capacity, self.form, self.losses, self.log_betas = gate, capacity, form, [], []

    def __call__(self, layer, hidden, q, pre, post, v):
        log_beta = self.gate(layer, hidden)
        self.log_betas.append(log_beta)
        held, n = [], hidden.shape[1]

        def change(x, i, j):
            age = (i - j).clamp_min(0)
            log_decay = age * log_beta[:, :, None, :j.shape[1]]
            decay = torch.exp(log_decay)
            held.append((decay * (i >= j)).sum(-1))
            return x * decay[:, :, None] if self.form == "multiply" else x + log_decay[:, :, None]

        out = attention(q, post, v, change)
        over = (torch.cat(held, -1) - self.capacity).clamp_min(0)
        self.losses.append(over.sum(-1).mean() / (n * (n - self.capacity)))
        return out

    def loss(self):
        """Equation 5, mean over lanes."""
        return torch.stack(self.losses).mean()


# Samples ---------------------------------------------------------------------------------------------------------------------
class Samples(train_tinylm.Words):
    """Text with facts, then questions about some of them with short stretches of text between."""

    def sample(self, length, answer):
        """(bytes of length + 1, weight of each as a target): `answer` for those of an answer, 1 for the rest."""
        dice, out, weight = self.random, bytearray(), []

        def add(what, w=1.0):
            out.extend(what)
            weight.extend([w] * len(what))

        facts = [(self.word(4), self.word(6)) for _ in range(dice.randint(3, 8))]
        asked = dice.sample(facts, min(len(facts), dice.randint(3, 6)))
        between = [dice.choice((0, 0, dice.randrange(60))) for _ in asked]
        room = length + 1 - 17 * (len(facts) + len(asked)) - sum(between)
        cuts = sorted(dice.randrange(room) for _ in facts)
        for begin, end, fact in zip([0, *cuts], [*cuts, room], [*facts, None]):
            add(self.stretch(end - begin))
            if fact:
                add(b"\nset " + fact[0] + b"=" + fact[1] + b"\n")
        for (key, value), gap in zip(asked, between):
            add(b"\nget " + key + b"=")
            add(value, answer)
            add(b"\n" + self.stretch(gap))
        assert len(out) == length + 1
        return bytes(out), weight

    def batch(self, rows, length, answer):
        made = [self.sample(length, answer) for _ in range(rows)]
        ids, weights = torch.tensor([list(s) for s, _ in made]), torch.tensor([w for _, w in made])
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]


# Training --------------------------------------------------------------------------------------------------------------------
def distillation(kind, model, student, teacher, weights):
    """Weighted mean over positions of the squared error of the last hidden rows, relative to their size (`hidden`), or of
    KL(teacher || student) over the next byte (`kl`)."""
    if kind == "hidden":
        each = (student - teacher).square().mean(-1) / teacher.square().mean()
    else:
        p, q = (F.log_softmax(model.head(rows).float(), -1) for rows in (teacher, student))
        each = (p.exp() * (p - q)).sum(-1)
    return (weights * each).sum() / weights.sum()


def rate(step, steps):
    """Of the learning rate: linear over the first tenth, then a cosine to zero."""
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def train_write(gate, model, samples, o):
    c = model.c
    scales = torch.ones(c["layers"], c["kv_heads"], c["q_heads"] // c["kv_heads"])
    if o.scale == "logits":
        scales = logit_scales(model, samples.batch(2, max(o.lengths), o.answer)[0])
    print("scales of log g:", scales.round().int().tolist(), flush=True)

    def loss_of(x, y, w, teacher):
        soft = SoftWrites(gate, o.window, scales)
        student = run(model, x, soft)
        sparsity = soft.sparsity(o.sparsity)
        loss = distillation(o.distill, model, student, teacher, w)
        share = (torch.sigmoid(torch.stack(soft.logits)) >= o.tau).float().mean()
        return loss + o.penalty * sparsity, dict(distill=loss, sparsity=sparsity, share=share, answers=answers(model, student, y, w))

    return train(gate, model, samples, loss_of, o)


def train_retention(gate, model, samples, o):
    def loss_of(x, y, w, teacher):
        soft = SoftRetention(gate, o.capacity, o.form)
        student = run(model, x, soft)
        kl, over = distillation("kl", model, student, teacher, w), soft.loss()
        each = F.cross_entropy(model.head(student).float().transpose(1, 2), y, reduction="none")
        entropy = (w * each).sum() / w.sum()
        half = (torch.stack(soft.log_betas) > -math.log(2) / 256).float().mean()  # that keep half of their weight for 256 bytes
        return kl + entropy + o.penalty * over, dict(kl=kl, ce=entropy, capacity=over, long=half, answers=answers(model, student, y, w))

    return train(gate, model, samples, loss_of, o)


def run(model, x, attend):
    with torch.autocast("cpu", torch.bfloat16):
        return forward(model, x, attend)


def answers(model, hidden, y, w):
    """Share of the answers' bytes that are guessed."""
    return (model.head(hidden.detach()).argmax(-1) == y)[w > 1].float().mean()


def train(gate, model, samples, loss_of, o):
    optimiser = torch.optim.AdamW(gate.parameters(), lr=o.lr, weight_decay=0.01)
    begin, sums = time.time(), {}
    for step in range(o.steps):
        optimiser.param_groups[0]["lr"] = o.lr * rate(step, o.steps)
        x, y, w = samples.batch(o.rows, samples.random.choice(o.lengths), o.answer)
        with torch.no_grad():
            teacher = run(model, x, Full())
        loss, parts = loss_of(x, y, w, teacher)
        loss.backward()
        nn.utils.clip_grad_norm_(gate.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value.item() / o.every
        if (step + 1) % o.every == 0:
            print(f"step {step + 1:4}", *(f"{name} {value:.4f}" for name, value in sums.items()), f"{time.time() - begin:.0f} s", flush=True)
            sums = {}


# Hard decisions --------------------------------------------------------------------------------------------------------------
class Admitting:
    """The exact vertical-slash mask: j is visible to i if i - j < window or it was admitted. `admit(layer, pre, post)` gives
    bits [R,Hkv,n]. Keeps them."""

    def __init__(self, window, admit):
        self.window, self.admit, self.bits = window, admit, []

    def __call__(self, layer, hidden, q, pre, post, v):
        bits = self.admit(layer, pre, post)
        self.bits.append(bits)
        hide = ~bits[:, :, None, None]
        return attention(q, post, v, lambda x, i, j: x.masked_fill(hide[..., :j.shape[1]] & (i - j >= self.window), float("-inf")))

    def live(self, length):
        """[L,R,Hkv]: entries of each lane after `length` bytes."""
        left = max(0, length - self.window)
        return torch.stack(self.bits)[..., :left].sum(-1) + min(length, self.window)


def by_gate(gate, tau):
    """WG-KV's admission: g >= tau. Keeps what it has seen of g in `seen`."""
    def admit(layer, pre, post):
        g = torch.sigmoid(gate(layer, pre, post))
        admit.seen.append(g)
        return g >= tau

    admit.seen = []
    return admit


def by_sink(sinks):
    """Local attention's admission: the first `sinks` positions."""
    return lambda layer, pre, post: (torch.arange(post.shape[2]) < sinks).expand(post.shape[:3])


class Lanes:
    """The cache of a batch of sequences under eviction: after each byte every lane drops what scores least until `budget`
    remain. score(position, log_beta, t) [R,Hkv,n]; larger stays. A byte's own attention sees all rows of its lane."""

    def __init__(self, model, gate, ids, budget, score):
        c, self.rows = model.c, ids.shape[0]
        self.model, self.gate, self.budget, self.score, self.ids = model, gate, budget, score, ids
        self.embedded = model.embedding(ids) + model.ngrams(ids)
        self.cos, self.sin = angles(c, torch.arange(ids.shape[1]))
        lanes = (c["layers"], self.rows, c["kv_heads"], budget + 1)
        self.k, self.v = torch.zeros(*lanes, c["head_dim"]), torch.zeros(*lanes, c["head_dim"])
        self.log_beta, self.position, self.count = torch.zeros(lanes), torch.zeros(lanes), 0

    def prefill(self, length):
        """The full cache of the first bytes, cut once to the budget. Returns the normed last rows [R,n,d]."""
        kept = []

        def attend(layer, hidden, q, pre, post, v):
            log_beta = self.gate(layer, hidden)
            position = torch.arange(length).float().expand(log_beta.shape)
            best = self.score(position, log_beta, length - 1).topk(min(self.budget, length), -1).indices
            kept.append([x.gather(2, best[..., None].expand(*best.shape, x.shape[-1])) for x in (post, v)] + [x.gather(2, best) for x in (log_beta, position)])
            return attention(q, post, v)

        rows = forward(self.model, self.ids[:, :length], attend)
        self.count = min(self.budget, length)
        for layer, parts in enumerate(kept):
            for to, part in zip((self.k, self.v, self.log_beta, self.position), parts):
                to[layer, :, :, :self.count] = part
        return rows

    def step(self, t):
        """Byte t. Returns its normed last row [R,d]."""
        c, x, n = self.model.c, self.embedded[:, t:t + 1], self.count
        cos, sin = self.cos[t:t + 1], self.sin[t:t + 1]
        for layer, block in enumerate(self.model.blocks):
            y = block.attention_norm(x)
            q, k, v = split(block.wq(y), c["q_heads"]), split(block.wk(y), c["kv_heads"]), split(block.wv(y), c["kv_heads"])
            self.k[layer, :, :, n], self.v[layer, :, :, n] = train_tinylm.rotate(k, cos, sin)[:, :, 0], v[:, :, 0]
            self.log_beta[layer, :, :, n], self.position[layer, :, :, n] = self.gate(layer, y)[..., 0], t
            q = (train_tinylm.rotate(q, cos, sin) * c["head_dim"] ** -0.5)[:, :, 0].unflatten(1, (c["kv_heads"], -1))
            weights = torch.softmax(q @ self.k[layer, :, :, :n + 1].transpose(-1, -2), -1)
            x = x + block.wo((weights @ self.v[layer, :, :, :n + 1]).reshape(self.rows, 1, -1))
            y = block.mlp_norm(x)
            x = x + block.down(F.silu(block.gate(y)) * block.up(y))
        self.evict(t)
        return self.model.norm(x)[:, 0]

    def evict(self, t):
        """The least entry of each full lane is overwritten by the newest."""
        if self.count < self.budget:
            self.count += 1
            return
        least = self.score(self.position, self.log_beta, t).argmin(-1, keepdim=True)
        for x in (self.log_beta, self.position):
            x.scatter_(-1, least, x[..., -1:].clone())
        for x in (self.k, self.v):
            x.scatter_(-2, least[..., None].expand(*least.shape, x.shape[-1]), x[..., -1:, :].clone())


def by_retention(position, log_beta, t):
    """TRIM-KV's score, log(beta^age)."""
    return (t - position) * log_beta


def by_recency(sinks):
    """StreamingLLM's: sinks first, then the newest."""
    return lambda position, log_beta, t: torch.where(position < sinks, math.inf, position)


# Measures --------------------------------------------------------------------------------------------------------------------
FACTS, QUESTION, ANSWER, TEXT = 6, 10, 6, 256


class Cases(Samples):
    """The recall task of examples/demo: six facts between stretches of text, then a question about one of them."""

    def case(self, asked, context=1024):
        out, room = bytearray(), context - FACTS * 17 - QUESTION
        facts = [(self.word(4), self.word(6)) for _ in range(FACTS)]
        for i, (key, value) in enumerate(facts):
            out += self.stretch(room // 20 if i == 0 else room * 3 // 20) + b"\nset " + key + b"=" + value + b"\n"
        out += self.stretch(context - QUESTION - len(out)) + b"\nget " + facts[asked][0] + b"=" + facts[asked][1]
        return list(out)

    def cases(self, count, context=1024):
        """[count, context + 6], the answers among them; asked in turn."""
        return torch.tensor([self.case(i % FACTS, context) for i in range(count)])


def whole_answers(model, rows, ids):
    """bool [R]: all six bytes guessed, rows [R,6,d] being those before each byte of the answer."""
    return (model.head(rows).argmax(-1) == ids[:, -ANSWER:]).all(-1)


def wilson(right, of, z=1.959964):
    """(share, lower, upper): the 95 % interval of Wilson."""
    p, n = right / of, of
    middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, middle - half), min(1.0, middle + half)


@torch.no_grad()
def measure_admission(model, ids, window, admit, chunk=8):
    """(right answers, mean live entries of a lane when the question has been read, those of each lane [L,Hkv])"""
    right, live = 0, []
    for some in ids.split(chunk):
        rule = Admitting(window, admit)
        rows = forward(model, some[:, :-1], rule)
        right += int(whole_answers(model, rows[:, -ANSWER:], some).sum())
        live.append(rule.live(some.shape[1] - ANSWER).float())
    live = torch.cat(live, 1).mean(1)
    return right, live.mean().item(), live


@torch.no_grad()
def measure_eviction(model, gate, ids, budget, score, prefill=0):
    """Right answers where lanes are cut after each byte; the first `prefill` bytes are read with the full cache and cut once."""
    right = 0
    for some in ids.split(12 if prefill else 96):  # a full prefill takes more memory
        lanes = Lanes(model, gate, some, budget, score)
        rows = [lanes.prefill(prefill)[:, -1]] if prefill else []
        for t in range(prefill, some.shape[1] - 1):
            rows.append(lanes.step(t))
        right += int(whole_answers(model, torch.stack(rows[-ANSWER:], 1), some).sum())
    return right


@torch.no_grad()
def bits_per_byte(model, rows, ids):
    """Of the last TEXT bytes of ids [R,n], from all rows but the last."""
    logits = model.head(rows[:, -TEXT:])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, -TEXT:]).item() / math.log(2)


@torch.no_grad()
def stepped(lanes):
    """The normed last rows [R,TEXT,d] before the last TEXT bytes, every byte a step."""
    return torch.stack([lanes.step(t) for t in range(lanes.ids.shape[1] - 1)][-TEXT:], 1)


@torch.no_grad()
def calibrate(gate, model, ids, window, live, rounds=4):
    """(tau, live): the threshold at which a lane has about `live` entries on average; what is admitted changes the rows that
    later gates read, so it is found again until it stands."""
    tau = 0.1
    for _ in range(rounds):
        admit = by_gate(gate, tau)
        _, got, _ = measure_admission(model, ids, window, admit)
        left = ids.shape[1] - ANSWER - window
        found = torch.cat([g[..., :left].flatten() for g in admit.seen])
        before, tau = tau, torch.quantile(found[torch.randperm(len(found))[:1 << 20]], 1 - (live - window) / left).item()
    return before, got


def shown(right, of):
    share, low, high = wilson(right, of)
    return f"{right:3} of {of} = {100 * share:5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def measure_write(gate, model, held, text, o):
    """The curve over tau, then each budget with its tau beside the static policies, then bits per byte."""
    cases, curve = Cases(held, o.seed).cases(o.cases), []
    texts = windows(held, o.texts)
    for tau in o.taus:
        right, live, lanes = measure_admission(model, cases[:o.curve], o.window, by_gate(gate, tau))
        share = (live - o.window) / (cases.shape[1] - ANSWER - o.window)
        curve.append(dict(tau=tau, share=share, live=live, right=right, of=o.curve))
        print(f"tau {tau:<6} share {100 * share:5.1f} %  live {live:6.1f}  {shown(right, o.curve)}  by lane {lanes.int().tolist()}", flush=True)
    rows = []
    for budget in o.budgets:
        tau, _ = calibrate(gate, model, Cases(text, o.seed + 1).cases(12), o.window, 0.97 * budget)
        rules = {f"wg_kv tau {tau:.4g}": (o.window, by_gate(gate, tau)), "local attention": (o.window, by_sink(budget - o.window)),
                 "streaming_llm": (budget - 4, by_sink(4))}
        for name, (window, admit) in rules.items():
            right, live, _ = measure_admission(model, cases, window, admit)
            bits = bits_per_byte(model, forward(model, texts[:, :-1], Admitting(window, admit)), texts)
            rows.append(dict(budget=budget, policy=name, live=live, right=right, of=len(cases), bits=bits))
            print(f"budget {budget:3} {name:22} live {live:6.1f}  {shown(right, len(cases))}  {bits:.3f} bits per byte", flush=True)
    return dict(curve=curve, budgets=rows)


def measure_retention(gate, model, held, text, o):
    """Each budget beside StreamingLLM: cut after each byte; and cut once after the prompt, with the question in it and before it."""
    cases, rows, texts = Cases(held, o.seed).cases(o.cases), [], windows(held, o.texts)
    prompt = cases.shape[1] - ANSWER
    for budget in o.budgets:
        for name, score, times in (("trim_kv", by_retention, (("each byte", 0), ("inside", prompt), ("later", prompt - QUESTION))),
                                   ("streaming_llm", by_recency(4), (("each byte", 0),))):
            right = {when: measure_eviction(model, gate, cases, budget, score, prefill) for when, prefill in times}
            bits = bits_per_byte(model, stepped(Lanes(model, gate, texts, budget, score)), texts)
            rows.append(dict(budget=budget, policy=name, right=right, of=len(cases), bits=bits))
            print(f"budget {budget:3} {name:14}", *(f"{when}: {shown(n, len(cases))} " for when, n in right.items()), f"{bits:.3f} bits per byte", flush=True)
    return dict(budgets=rows)


def windows(held, count):
    """[count, CONTEXT + 1] stretches of the held-out text, evenly spread."""
    step = (len(held) - CONTEXT - 1) // count
    return torch.tensor([list(held[i * step:i * step + CONTEXT + 1]) for i in range(count)])


@torch.no_grad()
def measure_full(model, held, o):
    cases, texts = Cases(held, o.seed).cases(o.cases), windows(held, o.texts)
    right = sum(int(whole_answers(model, forward(model, some[:, :-1], Full())[:, -ANSWER:], some).sum()) for some in cases.split(8))
    bits = bits_per_byte(model, forward(model, texts[:, :-1], Full()), texts)
    print(f"full cache {shown(right, len(cases))}  {bits:.3f} bits per byte", flush=True)
    return dict(right=right, of=len(cases), bits=bits)


# Its own test ----------------------------------------------------------------------------------------------------------------
SMALL = dict(train_tinylm.CONFIG, width=32, layers=2, q_heads=4, kv_heads=2, head_dim=8, hidden=32, ngram_buckets=64)


def small_model():
    """A random model, and a row of ids [2,40] for it."""
    torch.manual_seed(3)
    model = train_tinylm.TinyLM(SMALL).eval().requires_grad_(False)
    for value in model.parameters():
        if value.ndim == 2:
            value.normal_(std=1.5 * value.shape[1] ** -0.5)
    return model, torch.randint(0, 256, (2, 40))


def test_parameters():
    """Numbers of the papers' models, for one layer."""
    def count(gate):
        return sum(p.numel() for p in gate.parameters())

    assert count(WriteGate(1, 8, 128, 512)) == 1_057_032  # Llama-3.1-8B
    assert count(WriteGate(1, 8, 128, 192)) == 396_552  # Qwen3-4B
    assert count(RetentionGate(1, 8, 2560, 512)) == 1_315_336
    assert set(tensors_of(WriteGate(1, 1, 4, 2))) == {"write_gate." + n for n in (
        "pre_norm.weight", "post_norm.weight", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")}


def test_forward():
    """The model's own logits; everything admitted, and lanes with room for all, are the full cache."""
    model, ids = small_model()
    rows = forward(model, ids, Full())
    assert torch.allclose(model.head(rows), model(ids), atol=1e-5)
    assert torch.equal(forward(model, ids, Admitting(3, by_sink(40))), rows)
    gate = RetentionGate(2, 2, 32, 8)
    for prefill in (0, 17):
        lanes = Lanes(model, gate, ids, 40, by_retention)
        first = list(lanes.prefill(prefill)[:, -1:].unbind(1)) if prefill else []
        last = torch.stack(first + [lanes.step(t) for t in range(prefill, 40)], 1)
        assert torch.allclose(last, rows[:, prefill - 1 if prefill else 0:], atol=1e-4)


def test_lanes():
    """A sliding window as a mask and as eviction: a byte sees the budget's entries and itself."""
    model, ids = small_model()
    gate = RetentionGate(2, 2, 32, 8)
    masked = forward(model, ids, Admitting(10, by_sink(3)))
    lanes = Lanes(model, gate, ids, 12, by_recency(3))
    assert torch.allclose(torch.stack([lanes.step(t) for t in range(40)], 1), masked, atol=1e-4)
    assert not torch.allclose(masked, forward(model, ids, Full()), atol=1e-2)
    lanes = Lanes(model, gate, ids[:1], 2, by_retention)
    lanes.count = 2
    lanes.log_beta[:], lanes.position[:] = torch.tensor([0.9, 0.5, 0.3]).log(), torch.tensor([0.0, 1, 2])
    lanes.evict(2)  # 0.81, 0.5, 1
    assert (lanes.position[..., :2] == torch.tensor([0.0, 2])).all()


def one_query(change, q, k, v):
    """Of the last row, one head, written out in Python's double."""
    n = k.shape[0]
    logits = [change(float(q[-1] @ k[j]), n - 1, j) for j in range(n)]
    e = [math.exp(x - max(logits)) for x in logits]
    return sum((w / sum(e)) * v[j] for j, w in enumerate(e))


def test_soft_rules():
    """Soft attention, sparsity and capacity against their definitions."""
    torch.manual_seed(5)
    q, k, v, hidden = torch.randn(1, 2, 3, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 9, 16)
    gate = WriteGate(1, 2, 8, 6)
    gate.fc2.bias.data[0, 1] = -9.0
    for scales in (torch.ones(1, 2, 3), 1 + torch.rand(1, 2, 3)):
        soft = SoftWrites(gate, 4, scales)
        out, g = soft(0, hidden, q, k, k, v), torch.sigmoid(gate(0, k, k))
        for head in range(2):
            by = scales[0, head, 1].item()
            expected = one_query(lambda x, i, j: x + (by * math.log(max(g[0, head, j].item(), 1e-3)) if i - j >= 4 else 0), q[0, head, 1], k[0, head], v[0, head])
            assert torch.allclose(out[0, head, 1, -1], expected, atol=1e-5)
    assert abs(soft.sparsity("binary").item() - (g + g * (1 - g)).mean().item()) < 1e-6
    assert abs(soft.sparsity("linear").item() - g.mean().item()) < 1e-6
    gate = RetentionGate(1, 2, 16, 6)
    gate.fc2.bias.data[:] = 1.0
    log_beta = gate(0, hidden)[0]
    for form in ("multiply", "add"):
        soft = SoftRetention(gate, 2, form)
        out = soft(0, hidden, q, k, k, v)
        for head in range(2):
            def change(x, i, j):
                decay = (i - j) * log_beta[head, j].item()
                return x * math.exp(decay) if form == "multiply" else x + decay
            assert torch.allclose(out[0, head, 2, -1], one_query(change, q[0, head, 2], k[0, head], v[0, head]), atol=1e-5)
        over = [[max(0.0, sum(math.exp((t - i) * log_beta[h, i].item()) for i in range(t + 1)) - 2) for t in range(9)] for h in range(2)]
        assert abs(soft.loss().item() - sum(map(sum, over)) / 2 / (9 * 7)) < 1e-6


def test_samples():
    maker = Samples(bytes(range(65, 91)) * 100, 1)
    for _ in range(30):
        data, weight = maker.sample(700, 20.0)
        answers = "".join(chr(b) if w == 20 else " " for b, w in zip(data, weight)).split()
        assert len(data) == len(weight) == 701 and 3 <= len(answers) <= 6
        for answer in answers:
            at = data.index(b"=" + answer.encode())  # in its set line
            assert data[at - 9:at - 4] == b"\nset " and data.count(data[at - 4:at + 7]) == 2
    for i, ids in enumerate(Cases(bytes(range(65, 91)) * 100, 1).cases(6, 600)):
        data = bytes(ids.tolist())
        assert len(data) == 606 and data.count(b"\nset ") == 6 and data[-16:-11] == b"\nget "
        assert data.split(b"\nset ")[i + 1][:11] == data[-11:]
    low, high = wilson(8, 10)[1:]
    assert abs(low - 0.4902) < 1e-4 and abs(high - 0.9433) < 1e-4


def self_test():
    tests = [test_parameters, test_forward, test_lanes, test_soft_rules, test_samples]
    with torch.no_grad():
        for test in tests:
            test()
    print(f"{len(tests)} tests passed")


# The program -----------------------------------------------------------------------------------------------------------------
KINDS = {"write": (train_write, measure_write, dict(penalty=2.0, answer=40.0, hidden=96, steps=160, lr=3e-3, lengths=[640, 1024])),
         "retention": (train_retention, measure_retention, dict(penalty=1.0, answer=20.0, hidden=128, steps=250, lr=2e-3, lengths=[768, 1024]))}


def make_gate(kind, hidden):
    c = train_tinylm.CONFIG
    return (WriteGate(c["layers"], c["kv_heads"], c["head_dim"], hidden) if kind == "write" else
            RetentionGate(c["layers"], c["kv_heads"], c["width"], hidden))


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--out", type=pathlib.Path, help="the gate file")
    parser.add_argument("--load", type=pathlib.Path, help="a gate file to measure; nothing is trained")
    parser.add_argument("--report", type=pathlib.Path, help="all figures, as JSON")
    parser.add_argument("--steps", type=int, help="(write: 160, retention: 250)")
    parser.add_argument("--rows", type=int, default=2, help="samples of a step")
    parser.add_argument("--lengths", type=int, nargs="+", help="bytes of a sample, one of these (write: 640 1024, retention: 768 1024)")
    parser.add_argument("--answer", type=float, help="weight of an answer's byte in the loss (write: 40, retention: 20)")
    parser.add_argument("--lr", type=float, help="at its highest (write: 3e-3, retention: 2e-3)")
    parser.add_argument("--hidden", type=int, help="E (write: 96, retention: 128)")
    parser.add_argument("--penalty", type=float, help="lambda of the sparsity or capacity loss (write: 2, retention: 1)")
    parser.add_argument("--window", type=int, default=16, help="write: bytes that are always visible")
    parser.add_argument("--scale", choices=("logits", "none"), default="logits", help="write: of log g in the soft mask; none in the paper")
    parser.add_argument("--sparsity", choices=("linear", "binary"), default="linear", help="write: the form of its loss; binary in the paper")
    parser.add_argument("--distill", choices=("hidden", "kl"), default="hidden", help="write: the loss")
    parser.add_argument("--capacity", type=float, default=96, help="retention: M of the capacity loss")
    parser.add_argument("--form", choices=("multiply", "add"), default="multiply", help="retention: how beta^age enters attention")
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256], help="entries of a lane, to measure at")
    parser.add_argument("--taus", type=float, nargs="+", default=[0.01, 0.1, 0.5, 0.9])
    parser.add_argument("--cases", type=int, default=84)
    parser.add_argument("--curve", type=int, default=24, help="cases of the curve over tau")
    parser.add_argument("--texts", type=int, default=16, help="stretches of text for bits per byte")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=int, default=20, help="steps between lines")
    parser.add_argument("--goldens", type=pathlib.Path, help="write the small gates that the C++ side is compared with into this folder, and stop")
    parser.add_argument("--self-test", action="store_true", help="check gates, rules and measures, and stop")
    o = parser.parse_args()
    if not (o.self_test or o.goldens) and not (o.kind and (o.out or o.load)):
        parser.error("--kind and --out or --load are needed")
    if o.out:  # refused before the training, not after it
        try:
            check_replaceable(o.out, [o.load] if o.load else [])
        except CannotReplace as refused:
            parser.error(f"--out {refused}")
    for name, value in KINDS[o.kind][2].items() if o.kind else ():
        setattr(o, name, value if getattr(o, name) is None else getattr(o, name))
    o.tau = 0.1  # of the share that training prints
    return o


def main():
    o = options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    if o.self_test:
        return self_test()
    if o.goldens:
        return write_goldens(o.goldens)
    begin = time.time()
    model = load_tinylm(WEIGHTS / "weights.safetensors")
    text, held = b"\n".join(b"\n".join(part) for part in train_tinylm.corpus()), (WEIGHTS / "held_out.txt").read_bytes()
    train_it, measure_it, _ = KINDS[o.kind]
    if o.load:
        from safetensors.torch import load_file

        state = {name.split(".", 1)[1]: tensor for name, tensor in load_file(o.load).items()}
        gate = make_gate(o.kind, state["fc1.bias"].shape[-1])
        gate.load_state_dict(state)
    else:
        gate = make_gate(o.kind, o.hidden)
        print(f"{sum(p.numel() for p in gate.parameters()):,} parameters", flush=True)
        train_it(gate, model, Samples(text, o.seed), o)
        save(o.out, tensors_of(gate), {"format": gate.prefix.rstrip("."), "model": "tinylm"})
    trained = time.time() - begin
    gate.requires_grad_(False)
    report = dict(options={k: str(v) for k, v in vars(o).items()}, full=measure_full(model, held, o), **measure_it(gate, model, held, text, o))
    print(f"{trained:.0f} s for the gate, {time.time() - begin - trained:.0f} s to measure")
    if o.report:
        o.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
