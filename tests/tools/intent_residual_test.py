#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares kvreplay's IntentKV with a residual head, and the same in numpy, with what PyTorch computed.

    intent_residual_test.py [PROGRAM]            PROGRAM: kvreplay; without it, or $KVREPLAY, that part is skipped
    intent_residual_test.py --remake             writes the golden file again; needs torch

intent_residual_golden.safetensors holds PyTorch's scores, memory and keep sets for the cases below, computed in f32 by the code
that trains the head (tools/train_intent_residual.py). What goes in is made of a counter-based stream, so that a head of the
paper's size takes no room; one case reads the head that is committed for tinylm. Scores and memory agree to NEAR, relative to
max(1, |score|); the cut of each turn is at least GAP wide, so that keep sets agree exactly.
"""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "kvreplay"))

from traces import ragged, read, write_arrays  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

GOLDEN = HERE / "intent_residual_golden.safetensors"
COMMITTED = HERE.parent.parent / "examples/agent_replay/weights/residual.safetensors"
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else os.environ.get("KVREPLAY", "")
NEAR, GAP = 1e-5, 2e-4
HEADS, CLIP = 4, 5.0
LINEAR = ("w_q", "w_k", "w_v", "fc1", "fc2")


@dataclasses.dataclass
class Case:
    """A trace of random keys and queries, and the head that scores it."""

    name: str
    seed: int
    layers: int
    query_heads: int
    kv_heads: int
    dims: int
    width: int
    hidden: int
    ends: tuple  # length after each turn
    spans: tuple  # [begin, end) of each turn; an empty one is unresolved
    budget: int
    prefix: int = 0
    tail: int = 32
    alpha: float = 1.0
    normalize: bool = False
    attends: bool = True  # false: without cross-attention
    committed: bool = False

    def parameters(self):
        """The number of the head's parameters: five layers with a bias, and alpha."""
        features = 3 * self.dims + 1
        attention = (features + 1) * self.width + 2 * (self.dims + 1) * self.width
        return attention + (features + self.width + 1) * self.hidden + self.hidden + 2

    def span(self, turn):
        """[begin, end) of a turn: the last `tail` entries where none was resolved."""
        begin, end = self.spans[turn]
        return (begin, end) if begin < end else (max(0, self.ends[turn] - self.tail), self.ends[turn])

    def inputs(self):
        """Everything of the trace, as f32."""
        stream, n, d, f = Stream(self.seed), self.ends[-1], self.dims, 3 * self.dims + 1
        made = {
            "keys": stream.numbers(6.0, self.layers, self.kv_heads, n, d),
            "queries": stream.numbers(4.0, self.layers, self.query_heads, n, d),
        }
        if self.committed:
            return made | {name: values for name, values in arrays(COMMITTED).items()}
        shapes = {"w_q": (self.width, f), "w_k": (self.width, d), "w_v": (self.width, d)}
        shapes |= {"fc1": (self.hidden, f + self.width), "fc2": (1, self.hidden)}
        for name, (out, into) in shapes.items():
            made[f"residual.{name}.weight"] = stream.numbers(4.0 / math.sqrt(into), out, into)
            made[f"residual.{name}.bias"] = stream.numbers(0.5, out)
        return made | {"residual.alpha": np.full((), self.alpha, np.float32)}


CASES = (
    Case("small", 11, 2, 4, 2, 16, 16, 32, (40, 70, 96), ((30, 40), (70, 70), (80, 96)), 36, prefix=3, tail=8),
    Case("one_head", 12, 1, 1, 1, 16, 8, 16, (50, 90), ((44, 50), (71, 85)), 30, normalize=True),
    Case("clipped", 13, 2, 4, 1, 16, 16, 32, (64, 96), ((60, 64), (95, 96)), 40, alpha=-7.5),
    Case("no_attention", 16, 2, 4, 2, 16, 16, 32, (64, 96), ((58, 64), (90, 96)), 40, attends=False),
    Case("paper", 14, 2, 4, 2, 128, 128, 256, (70, 130, 180), ((60, 70), (105, 130), (170, 178)), 64, prefix=8),
    Case("tinylm", 15, 4, 8, 2, 64, 128, 256, (90, 150, 210, 260), ((70, 90), (120, 150), (190, 210), (230, 260)), 100, prefix=20, committed=True),
)


class Stream:
    """Numbers of a raw bit generator, whose output no version of numpy changes."""

    def __init__(self, seed):
        self.bits = np.random.PCG64(seed)

    def numbers(self, spread, *shape):
        """f32, uniform in [-spread / 2, spread / 2)."""
        raw = self.bits.random_raw(math.prod(shape))
        return ((raw >> np.uint64(40)) * 2.0**-24 - 0.5).astype(np.float32).reshape(shape) * np.float32(spread)


def arrays(path):
    """The F32 tensors of a file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(raw[8 + size + one["data_offsets"][0] : 8 + size + one["data_offsets"][1]], np.float32).reshape(one["shape"])
        for name, one in header.items()
    }


def digest(path):
    """sha256, as 32 integers."""
    return list(hashlib.sha256(path.read_bytes()).digest())


# The method in double --------------------------------------------------------------------------------------------------------
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Oracle:
    """IntentKV in numpy, written apart from the library and from the training code."""

    def __init__(self, case, inputs):
        self.case = case
        self.x = {name: values.astype(np.float64) for name, values in inputs.items()}
        self.memory = np.zeros((case.layers, case.query_heads, case.dims))

    def remember(self, begin, end):
        encoding = self.x["queries"][:, :, begin:end].mean(2)
        if self.case.normalize:
            encoding = unit(encoding)
        self.memory = unit(math.exp(-0.5) * self.memory + encoding)

    def rule(self, candidates):
        total = np.zeros(len(candidates))
        for layer in range(self.case.layers):
            for head in range(self.case.query_heads):
                keys = self.x["keys"][layer, head // (self.case.query_heads // self.case.kv_heads)][candidates]
                total += softmax(keys @ self.memory[layer, head] / math.sqrt(self.case.dims))
        return total

    def linear(self, name, values):
        return values @ self.x[f"residual.{name}.weight"].T + self.x[f"residual.{name}.bias"]

    def residual(self, candidates, span, rule):
        mean = self.x["keys"].mean((0, 1))
        k, m, size = mean[candidates], self.memory.mean((0, 1)), self.case.width // HEADS
        phi = np.concatenate((k, np.broadcast_to(m, k.shape), k * m, rule[:, None]), 1)
        q, keys, values = self.linear("w_q", phi), self.linear("w_k", mean[span]), self.linear("w_v", mean[span])
        parts = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            parts.append(softmax(q[:, part] @ keys[:, part].T / math.sqrt(size)) @ values[:, part])
        context = np.concatenate(parts, 1) * self.case.attends
        hidden = self.linear("fc1", np.concatenate((phi, context), 1))
        gelu = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        return np.clip(self.x["residual.alpha"], -CLIP, CLIP) * self.linear("fc2", gelu)[:, 0]

    def scores(self, candidates, span):
        rule = self.rule(candidates)
        return rule + self.residual(candidates, span, rule)


def replay(case, scorer):
    """Scores of the last decision, and the keep set after each turn; `scorer` has remember(begin, end) and scores(candidates, span)."""
    live, last, kept = np.zeros(0, bool), None, []
    for turn, length in enumerate(case.ends):
        live = np.concatenate((live, np.ones(length - len(live), bool)))
        begin, end = case.span(turn)
        scorer.remember(begin, end)
        at = np.arange(length)
        forced = live & ((at < case.prefix) | ((at >= begin) & (at < end)))
        candidates = np.flatnonzero(live & ~forced)
        if live.sum() > case.budget:
            scores = np.asarray(scorer.scores(candidates, np.flatnonzero(live & (at >= begin) & (at < end))), np.float64)
            room = max(0, case.budget - int(forced.sum()))
            order = np.argsort(-scores, kind="stable")
            if 0 < room < len(order):
                assert scores[order[room - 1]] - scores[order[room]] > GAP, (case.name, turn, "the cut is too narrow: take another seed")
            live[candidates[order[room:]]] = False
            last = np.full(case.ends[-1], -np.inf)
            last[candidates] = scores
        kept.append(np.flatnonzero(live).tolist())
    return last, kept


# Making it -------------------------------------------------------------------------------------------------------------------
def remake():
    """Writes GOLDEN with the training code's own functions, in f32."""
    sys.path.insert(0, str(HERE.parent.parent / "tools"))
    import torch
    import train_intent_residual as tool

    torch.set_num_threads(1)

    class Trained:
        def __init__(self, case, inputs):
            x = {name: torch.from_numpy(values.copy()) for name, values in inputs.items()}
            self.case, self.keys, self.queries = case, x["keys"], x["queries"]
            self.head = tool.ResidualHead(case.dims, case.width, case.hidden)
            self.head.load_state_dict({name.removeprefix("residual."): t for name, t in x.items() if name.startswith("residual.")})
            assert sum(p.numel() for p in self.head.parameters()) == case.parameters()
            self.memory = torch.zeros(case.layers, case.query_heads, case.dims)

        def remember(self, begin, end):
            self.memory = tool.remember(self.memory, self.queries[:, :, begin:end], normalize=self.case.normalize)

        def scores(self, candidates, span):
            rule = tool.rule_scores(self.memory, self.keys[:, :, candidates])
            mean = self.keys.mean((0, 1))
            return self.head.score(rule, mean[candidates], self.memory.mean((0, 1)), mean[span], attend=self.case.attends).numpy()

    tensors = {"sha256": ("I64", np.array(digest(COMMITTED)))}
    for case in CASES:
        scorer = Trained(case, case.inputs())
        scores, kept = replay(case, scorer)
        tensors[case.name + ".scores"] = ("F32", scores.astype(np.float32))
        tensors[case.name + ".memory"] = ("F32", scorer.memory.numpy())
        tensors[case.name + ".turn.offsets"] = ("I64", np.cumsum([0] + [len(one) for one in kept]))
        tensors[case.name + ".turn.ordinals"] = ("I64", np.array(sum(kept, [])))
        ranked = scores[np.isfinite(scores)]
        print(f"{case.name}: {case.parameters():,} parameters, scores {ranked.min():.3f} to {ranked.max():.3f}")
    write_arrays(GOLDEN, tensors)
    print(f"torch {torch.__version__}, {GOLDEN.name}: {GOLDEN.stat().st_size:,} bytes")


# Tests -----------------------------------------------------------------------------------------------------------------------
@unittest.skipIf(np is None, "there is no numpy")
class IntentResidual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = read(GOLDEN)

    def near(self, what, ours, theirs):
        ours, theirs = np.array(ours, np.float64).ravel(), np.array(theirs, np.float64).ravel()
        self.assertEqual(ours.shape, theirs.shape, what)
        ranked = np.isfinite(theirs)
        self.assertTrue((np.isfinite(ours) == ranked).all(), f"{what}: other entries are ranked")
        self.assertGreater(ranked.sum(), 0, what)
        error = np.abs(ours[ranked] - theirs[ranked]) / np.maximum(1, np.abs(theirs[ranked]))
        self.assertLess(error.max(), NEAR, what)

    def test_the_golden_file_is_of_the_committed_head(self):
        self.assertEqual(self.golden["sha256"][1], digest(COMMITTED), "run intent_residual_test.py --remake")

    def test_the_committed_head_has_the_shape_of_tinylm(self):
        case, head = CASES[-1], arrays(COMMITTED)
        self.assertEqual(set(head), {f"residual.{n}.{part}" for n in LINEAR for part in ("weight", "bias")} | {"residual.alpha"})
        self.assertEqual(sum(values.size for values in head.values()), case.parameters())
        self.assertTrue(all(np.isfinite(values).all() for values in head.values()))
        self.assertLessEqual(abs(float(head["residual.alpha"])), CLIP)

    def test_a_head_of_the_paper_has_its_number_of_parameters(self):
        case = next(one for one in CASES if one.name == "paper")
        self.assertEqual(case.parameters(), 214274)
        self.assertEqual(sum(v.size for name, v in case.inputs().items() if name.startswith("residual.")), 214274)

    def test_pytorch_computes_the_equations(self):
        for case in CASES:
            with self.subTest(case.name):
                oracle = Oracle(case, case.inputs())
                scores, kept = replay(case, oracle)
                self.near("scores", scores, self.golden[case.name + ".scores"][1])
                self.near("memory", oracle.memory, self.golden[case.name + ".memory"][1])
                self.assertEqual(kept, ragged(self.golden, case.name + ".turn"))

    @unittest.skipIf(not PROGRAM, "there is no kvreplay")
    def test_kvreplay_computes_what_pytorch_did(self):
        for case in CASES:
            with self.subTest(case.name), tempfile.TemporaryDirectory() as folder:
                result = self.run_program(case, Path(folder))
                self.near("scores", result["scores"][1], self.golden[case.name + ".scores"][1])
                self.near("memory", result["memory"][1], self.golden[case.name + ".memory"][1])
                self.assertEqual(ragged(result, "turn"), ragged(self.golden, case.name + ".turn"))

    def run_program(self, case, folder):
        trace, out = folder / "trace.safetensors", folder / "out.safetensors"
        tensors = {name: ("F32", np.ascontiguousarray(values)) for name, values in case.inputs().items()}
        tensors["turn_end"] = ("I64", np.array(case.ends))
        tensors["span_begin"] = ("I64", np.array([a for a, _ in case.spans]))
        tensors["span_end"] = ("I64", np.array([b for _, b in case.spans]))
        write_arrays(trace, tensors)
        fields = ["mode=learnable", f"prefix={case.prefix}", f"tail={case.tail}"]
        fields += [f"normalize_encoding={str(case.normalize).lower()}", f"cross_attention={str(case.attends).lower()}"]
        command = [PROGRAM, trace, "--policy", "intent_kv", "--mode", "turns", "--layout", "mask", "--budget", str(case.budget), "--out", out]
        done = subprocess.run(command + [word for field in fields for word in ("--set", field)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read(out)


if __name__ == "__main__":
    if sys.argv[1:] == ["--remake"]:
        remake()
    else:
        unittest.main()
