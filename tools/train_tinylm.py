#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train tinylm, the small decoder of examples/tinylm, on two CPU cores.

The model must do two things: predict text well enough that bits per byte mean something, and look back over its whole
context for one fact among several. Both are learnt from a stream that mixes real text with facts and questions:

    set k3f9=q0zt7a        a fact: four random characters name it, six random characters are its value
    get k3f9=q0zt7a        later, a question about an earlier fact, and its answer (weighted 3 and more in the loss)

Phases go from short to long context: recall forms suddenly after a few MB at context 256, then survives lengthening.
Matrices are trained by Muon (orthogonalised momentum), everything else by AdamW.

    python3 tools/train_tinylm.py --out build/tinylm.pt              # all phases, from scratch
    python3 tools/train_tinylm.py --out build/tinylm.pt --resume     # continue after the last finished chunk
    python3 tools/export_tinylm.py build/tinylm.pt examples/tinylm/weights

Text: Python's standard library and the C++ standard headers, as Debian 12 packages them (libpython3.11-stdlib,
libstdc++-12-dev). Files whose path hashes into the held-out part are never read here; see corpus().
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = b"abcdefghijklmnopqrstuvwxyz0123456789"
PYTHON_ROOT = pathlib.Path("/usr/lib/python3.11")
CXX_ROOT = pathlib.Path("/usr/include/c++/12")
CONFIG = dict(vocab=256, width=256, layers=4, q_heads=8, kv_heads=2, head_dim=64, hidden=680, rope_theta=10000.0, norm_eps=1e-5,
              ngrams=4, ngram_buckets=8192)

# context, rows of one batch, steps, share of [facts, questions, text], weight of an answer's bytes in the loss, learning-rate
# scale at the start and at the end
PHASES = [
    dict(context=256, rows=32, steps=1400, mix=(0.25, 0.30, 0.45), answer=3, lr=(1.0, 1.0)),
    dict(context=512, rows=16, steps=300, mix=(0.08, 0.12, 0.80), answer=3, lr=(1.0, 1.0)),
    dict(context=1024, rows=8, steps=100, mix=(0.12, 0.18, 0.70), answer=3, lr=(1.0, 0.97)),
    dict(context=1024, rows=8, steps=175, mix=(0.22, 0.33, 0.45), answer=3, lr=(0.69, 0.5)),
    dict(context=1280, rows=6, steps=325, mix=(0.25, 0.40, 0.35), answer=8, lr=(0.6, 0.02)),
    dict(context=1280, rows=6, steps=175, mix=(0.16, 0.30, 0.54), answer=8, lr=(0.3, 0.01)),
]


def is_held_out(path: pathlib.Path) -> bool:
    """One Python file in twenty-four, chosen by the hash of its name: the same files on every machine."""
    return int(hashlib.sha256(path.name.encode()).hexdigest(), 16) % 24 == 5


def corpus(held_out: bool = False):
    """(python bytes, c++ bytes): the training text, or the held-out Python text."""
    tables = {"site-packages", "dist-packages", "encodings", "pydoc_data"}  # not code, or not the package's
    python = sorted(p for p in PYTHON_ROOT.rglob("*.py") if p.is_file() and not tables & set(p.parts) and not p.name.startswith("_sysconfig"))
    python = [p for p in python if is_held_out(p) == held_out]
    cxx = [] if held_out else sorted(p for p in CXX_ROOT.rglob("*") if p.is_file())
    return [p.read_bytes() for p in python], [p.read_bytes() for p in cxx]


class Words:
    """Words of the facts, and stretches of a text: the same from the same seed."""

    def __init__(self, text: bytes, seed: int):
        self.text, self.random = text, random.Random(seed)

    def word(self, n: int) -> bytes:
        return bytes(self.random.choices(ALPHABET, k=n))

    def stretch(self, n: int) -> bytes:
        begin = self.random.randrange(len(self.text) - n)
        return self.text[begin:begin + n]


class Stream:
    """An endless mixture of facts, questions and text; every sample has facts of its own."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        python, cxx = corpus()
        self.random.shuffle(python)
        self.random.shuffle(cxx)
        self.python, self.cxx = b"\n".join(python), b"\n".join(cxx)

    def word(self, n: int) -> bytes:
        return bytes(self.random.choices(ALPHABET, k=n))

    def text(self, n: int) -> bytes:
        source = self.python if self.random.random() < 0.85 else self.cxx
        begin = self.random.randrange(len(source) - n)
        return source[begin:begin + n]

    def sample(self, context: int, mix, answer: float = 3):
        """(bytes of length context + 1, weight of each as a target). Stretches of text are cut so that the *shares of
        bytes* follow the mix."""
        out, weight, facts = bytearray(), [], []
        p_fact, p_question, p_text = mix
        mean_text = max(40, context // 10)
        # a fact is 16 bytes: how often each kind is drawn follows from its length
        draw = (p_fact / 16, p_question / 16, p_text / mean_text)
        if self.random.random() < 0.15 and context > 256:
            draw = (0, 0, 1)  # a sample of text alone
        while len(out) <= context:
            kind = self.random.choices((0, 1, 2), draw)[0]
            if kind == 1 and not facts:
                kind = 0
            if kind == 2 or draw[0] == 0:
                n = context + 1 if draw[0] == 0 else self.random.randrange(20, 2 * mean_text)
                out += self.text(n)
                weight += [1.0] * n
            elif kind == 0:
                key, value = self.word(4), self.word(6)
                facts.append((key, value))
                out += (b"set " if out[-1:] in (b"", b"\n") else b"\nset ") + key + b"=" + value + b"\n"
                weight += [0.3] * (len(out) - len(weight))  # its characters are random: nothing to learn there
            else:
                # half of the questions go to the older half of the facts
                half = facts[:(len(facts) + 1) // 2] if self.random.random() < 0.5 else facts
                key, value = self.random.choice(half)
                head = b"get " if out[-1:] == b"\n" else b"\nget "
                out += head + key + b"=" + value + b"\n"
                weight += [0.3] * (len(head) + 5) + [float(answer)] * 7
        return bytes(out[:context + 1]), weight[:context + 1]

    def batch(self, rows: int, context: int, mix, answer: float):
        samples = [self.sample(context, mix, answer) for _ in range(rows)]
        ids = torch.tensor([list(s) for s, _ in samples], dtype=torch.long)
        weights = torch.tensor([w for _, w in samples])
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["norm_eps"]) * self.weight


def rotate(x, cos, sin):
    """RoPE with halves paired (NeoX)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(q, k, v, block=256):
    """Causal attention, rows of queries in blocks so that half of the logits are never made. [rows, heads, n, head_dim]"""
    n = q.shape[2]
    q = q * q.shape[3] ** -0.5
    size = min(block, n)
    mask = torch.triu(torch.full((size, size), float("-inf"), dtype=q.dtype), 1)
    out = []
    for begin in range(0, n, block):
        rows = min(block, n - begin)
        past = q[:, :, begin:begin + rows] @ k[:, :, :begin].transpose(-1, -2)
        own = q[:, :, begin:begin + rows] @ k[:, :, begin:begin + rows].transpose(-1, -2) + mask[:rows, :rows]
        out.append(torch.softmax(torch.cat((past, own), -1), -1) @ v[:, :, :begin + rows])
    return torch.cat(out, 2)


class NgramEmbedding(nn.Module):
    """What the last 2, 3, 4 and 5 bytes spell: one hashed table for each length, each owning a quarter of the channels.
    It spares a small decoder the layer that would learn to look one byte back."""

    def __init__(self, c):
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(c["ngram_buckets"], c["width"] // c["ngrams"]) * 0.02) for _ in range(c["ngrams"]))
        self.bits = c["ngram_buckets"].bit_length() - 1

    def forward(self, ids):
        out, h, past = [], ids, ids
        for table in self.tables:
            past = F.pad(past, (1, 0))[:, :-1]  # before the start: byte 0
            h = (h * 257 + past + 1) & 0xFFFFFFFF
            out.append(F.embedding((h * 2654435761 & 0xFFFFFFFF) >> (32 - self.bits), table))
        return torch.cat(out, -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h = c["width"], c["head_dim"]
        self.attention_norm, self.mlp_norm = RMSNorm(d), RMSNorm(d)
        self.wq = nn.Linear(d, c["q_heads"] * h, bias=False)
        self.wk = nn.Linear(d, c["kv_heads"] * h, bias=False)
        self.wv = nn.Linear(d, c["kv_heads"] * h, bias=False)
        self.wo = nn.Linear(c["q_heads"] * h, d, bias=False)
        self.gate = nn.Linear(d, c["hidden"], bias=False)
        self.up = nn.Linear(d, c["hidden"], bias=False)
        self.down = nn.Linear(c["hidden"], d, bias=False)
        self.c = c

    def forward(self, x, cos, sin):
        c, (rows, n, _) = self.c, x.shape
        y = self.attention_norm(x)
        q = self.wq(y).view(rows, n, c["q_heads"], c["head_dim"]).transpose(1, 2)
        k = self.wk(y).view(rows, n, c["kv_heads"], c["head_dim"]).transpose(1, 2)
        v = self.wv(y).view(rows, n, c["kv_heads"], c["head_dim"]).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = c["q_heads"] // c["kv_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        a = attention(q.to(v.dtype), k.to(v.dtype), v)
        x = x + self.wo(a.transpose(1, 2).reshape(rows, n, -1))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TinyLM(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c["vocab"], c["width"])
        self.ngrams = NgramEmbedding(c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = RMSNorm(c["width"])
        self.head = nn.Linear(c["width"], c["vocab"], bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 if "embedding" in name or "head" in name else p.shape[1] ** -0.5)
            if name.endswith(("wo.weight", "down.weight")):
                p.data.zero_()

    def forward(self, ids):
        half = self.c["head_dim"] // 2
        angle = torch.arange(ids.shape[1])[:, None] * self.c["rope_theta"] ** (-torch.arange(half) / half)[None, :]
        x = self.embedding(ids) + self.ngrams(ids)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return self.head(self.norm(x)).float()


@torch.no_grad()
def orthogonalise(g, steps=5):
    """The Newton-Schulz iteration of Muon: pushes every singular value of g towards 1."""
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    flip = x.shape[0] > x.shape[1]
    if flip:
        x = x.T
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if flip else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(m, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


@torch.no_grad()
def bits_per_byte(model, data: bytes, context: int, limit: int):
    """Mean over windows of `context` bytes, each predicted from the window's own past."""
    total = count = 0
    for begin in range(0, min(limit, len(data)) - context, context):
        ids = torch.tensor(list(data[begin:begin + context + 1]))[None]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids[:, :-1])
        total += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item() / math.log(2)
        count += context
    return total / count


@torch.no_grad()
def recall(model, stream, context: int, cases: int, held: bytes):
    """Share of whole six-byte answers, one question about a fact in the first fifth of the context, six facts in all."""
    right = 0
    for _ in range(cases):
        facts = [(stream.word(4), stream.word(6)) for _ in range(6)]
        gaps = [context * f // 100 for f in (2, 15, 15, 15, 15, 15)]
        prompt = bytearray()
        for (key, value), gap in zip(facts, gaps):
            begin = stream.random.randrange(len(held) - gap - 1)
            prompt += held[begin:begin + gap] + b"\nset " + key + b"=" + value + b"\n"
        tail = max(0, context - len(prompt) - 16)
        begin = stream.random.randrange(len(held) - tail - 1)
        prompt += held[begin:begin + tail] + b"\nget " + facts[0][0] + b"="
        ids = torch.tensor(list(prompt + facts[0][1]))[None]
        with torch.autocast("cpu", torch.bfloat16):
            guess = model(ids[:, :-1])[0, -6:].argmax(-1)
        right += bool((guess == ids[0, -6:]).all())
    return right / cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="checkpoint, written after every chunk")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--chunk", type=int, default=100, help="steps between reports and checkpoints")
    parser.add_argument("--phases", help="JSON list that replaces PHASES")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="torch.compile: faster after a minute of warm-up")
    arguments = parser.parse_args()
    phases = json.loads(arguments.phases) if arguments.phases else PHASES
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    model = TinyLM()
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks")]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and n.startswith("blocks"))]
    optimisers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)]
    base = [o.param_groups[0]["lr"] for o in optimisers]
    phase, step, seen = 0, 0, 0
    if arguments.resume:
        saved = torch.load(arguments.out, weights_only=False)
        model.load_state_dict(saved["model"])
        for o, s in zip(optimisers, saved["optimisers"]):
            o.load_state_dict(s)
        phase, step, seen = saved["phase"], saved["step"], saved["seen"]
    stream = Stream(seed=seen + 1)
    held = b"\n".join(corpus(held_out=True)[0])
    run = torch.compile(model) if arguments.compile else model
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(stream.python):,} + {len(stream.cxx):,} bytes of text, {len(held):,} held out", flush=True)
    while phase < len(phases):
        p = phases[phase]
        begin, total = time.time(), 0.0
        for local in range(arguments.chunk):
            at = (step + local) / p["steps"]
            scale = (p["lr"][0] + (p["lr"][1] - p["lr"][0]) * at) * min(1.0, (seen / 8192 + 1) / 100)
            for o, lr in zip(optimisers, base):
                o.param_groups[0]["lr"] = lr * scale
            x, y, w = stream.batch(p["rows"], p["context"], p["mix"], p["answer"])
            with torch.autocast("cpu", torch.bfloat16):
                logits = run(x)
            loss = (F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none") * w.flatten()).sum() / w.sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for o in optimisers:
                o.step()
                o.zero_grad(set_to_none=True)
            seen += x.numel()
            total += loss.item()
        step += arguments.chunk
        rate = arguments.chunk * p["rows"] * p["context"] / (time.time() - begin)
        context = max(256, min(1024, p["context"]))
        print(f"phase {phase} step {step}/{p['steps']} seen {seen / 1e6:.1f} MB loss {total / arguments.chunk:.3f} "
              f"bpb {bits_per_byte(model, held, context, 40 * 1024):.3f} recall {recall(model, stream, context, 24, held):.2f} {rate / 1e3:.1f} kB/s", flush=True)
        if step >= p["steps"]:
            phase, step = phase + 1, 0
        torch.save(dict(model=model.state_dict(), optimisers=[o.state_dict() for o in optimisers], phase=phase, step=step, seen=seen), arguments.out + ".tmp")
        os.replace(arguments.out + ".tmp", arguments.out)


if __name__ == "__main__":
    main()
