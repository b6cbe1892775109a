#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a profile of tinylm's queries on its held-out text: what tri_attention and q_filters are told of a model.

    tools/profile_tinylm.py profile.safetensors
    tools/profile_tinylm.py profile.safetensors --bytes 16384 --context 512

The file is safetensors, all tensors F32, of L layers, Hq query heads on Hkv KV heads of D channels:

    query_model.mean [L,Hq,D]       the mean query of each query head before RoPE
    query_model.radius [L,Hq,D/2]   the mean length of each pair of channels (i and i + D/2) that RoPE turns
    table.q_filters [L,Hkv,D]       the direction of each KV head, for kvreplay
    rows.q_filters [L,Hkv,D]        the same, for kvpolicy::read_tables

and `rope_theta` and `rope_style` in its metadata, as docs/kvreplay.md has them. A direction is the first right-singular vector of the
rows, after RoPE, of all query heads that read the KV head. Its product with their mean is below 0, because q_filters keeps the keys
whose products are low: those to which such queries attend. The text is read in windows of --context bytes. numpy is all that it needs.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

from gate_files import Refused, as_f32, expects, read_safetensors, write
from replace_file import CannotReplace, check_replaceable

WEIGHTS = pathlib.Path(__file__).resolve().parent.parent / "examples/tinylm/weights"
LONGEST = 1280  # the longest context that tinylm was trained on
SIZES = ("layers", "q_heads", "kv_heads", "head_dim", "ngrams", "ngram_buckets")


class Tinylm:
    """The forward of examples/tinylm. It calls seen(layer, q, turned) with the query rows [head, row, D] before and after RoPE."""

    def __init__(self, path):
        expects(path.is_file(), f"{path}: there is no such file")
        try:
            self.found = {name: as_f32(name, *one) for name, one in read_safetensors(path).items()}
        except Refused as refused:
            raise Refused(f"{path}: {refused}") from None
        raw = path.read_bytes()
        about = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
        for name in (*SIZES, "rope_theta", "norm_eps"):
            expects(name in about, f"{path}: its metadata has no {name}: it is not tinylm")
        self.layers, self.q_heads, self.kv_heads, self.dims, self.ngrams, buckets = (int(about[name]) for name in SIZES)
        self.bits = buckets.bit_length() - 1
        self.theta, self.eps = float(about["rope_theta"]), float(about["norm_eps"])

    def embedded(self, text):
        hashed = past = text.astype(np.int64)
        parts = []
        for index in range(self.ngrams):
            past = np.concatenate(([0], past[:-1]))
            hashed = (hashed * 257 + past + 1) & 0xFFFFFFFF
            places = ((hashed.astype(np.uint64) * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - self.bits)
            parts.append(self.found[f"ngrams.{index}.weight"][places])
        return self.found["embedding.weight"][text] + np.concatenate(parts, axis=-1)

    def normed(self, x, name):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.found[name]

    def turned(self, x):
        """RoPE with halves paired: x [head, row, D] at positions from 0 on."""
        half = self.dims // 2
        angle = np.arange(x.shape[1])[:, None] * self.theta ** (-np.arange(half) / half)
        a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def attended(self, q, k, v):
        """Causal attention, [row, head x D]."""
        rows, group, made = q.shape[1], self.q_heads // self.kv_heads, []
        later = np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
        for head in range(self.q_heads):
            logits = q[head] @ k[head // group].T * np.float32(self.dims ** -0.5) + later
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            made.append(weights / weights.sum(axis=-1, keepdims=True) @ v[head // group])
        return np.concatenate(made, axis=-1)

    def forward(self, text, seen):
        """The logits of each byte. text: uint8."""
        x = self.embedded(text)
        for layer in range(self.layers):
            at = f"blocks.{layer}."
            times = lambda y, name: y @ self.found[f"{at}{name}.weight"].T
            heads = lambda y: y.reshape(len(text), -1, self.dims).transpose(1, 0, 2)
            y = self.normed(x, at + "attention_norm.weight")
            q, k, v = (heads(times(y, name)) for name in ("wq", "wk", "wv"))
            turned = self.turned(q)
            seen(layer, q, turned)
            x = x + times(self.attended(turned, self.turned(k), v), "wo")
            y = self.normed(x, at + "mlp_norm.weight")
            gate = times(y, "gate")
            x = x + times(gate / (1 + np.exp(-gate)) * times(y, "up"), "down")
        return self.normed(x, "norm.weight") @ self.found["head.weight"].T


def profile(model, text, context):
    """The tensors of the file, of a text that is read in windows of so many bytes."""
    half, group = model.dims // 2, model.q_heads // model.kv_heads
    mean, radius = np.zeros((model.layers, model.q_heads, model.dims)), np.zeros((model.layers, model.q_heads, half))
    products = np.zeros((model.layers, model.kv_heads, model.dims, model.dims))
    sums = np.zeros((model.layers, model.kv_heads, model.dims))

    def seen(layer, q, turned):
        q = q.astype(np.float64)
        mean[layer] += q.sum(axis=1)
        radius[layer] += np.hypot(q[..., :half], q[..., half:]).sum(axis=1)
        rows = turned.astype(np.float64).reshape(model.kv_heads, group * turned.shape[1], model.dims)
        products[layer] += rows.transpose(0, 2, 1) @ rows
        sums[layer] += rows.sum(axis=1)

    for begin in range(0, len(text), context):
        model.forward(text[begin:begin + context], seen)
    directions = np.linalg.eigh(products)[1][..., -1]  # of Q'Q the vector of the largest value
    directions *= np.where((directions * sums).sum(axis=-1, keepdims=True) > 0, -1, 1)
    made = {"query_model.mean": mean / len(text), "query_model.radius": radius / len(text), "table.q_filters": directions, "rows.q_filters": directions}
    return {name: values.astype(np.float32) for name, values in made.items()}


def run(o):
    expects(1 <= o.context <= LONGEST, f"--context = {o.context}, but it is 1 to {LONGEST}, the longest that tinylm knows")
    expects(o.bytes >= 1, f"--bytes = {o.bytes}, but at least one byte is read")
    text_at = o.text if o.text is not None else o.weights / "held_out.txt"
    expects(text_at.is_file(), f"{text_at}: there is no such file")
    inputs = [o.weights / "weights.safetensors", text_at]
    check_replaceable(o.out, inputs)
    model = Tinylm(inputs[0])
    text = np.frombuffer(text_at.read_bytes()[:o.bytes], np.uint8)
    expects(len(text) > 0, f"{text_at}: it is empty")
    about = {"model": "tinylm", "rope_theta": repr(model.theta), "rope_style": "neox", "bytes": str(len(text)), "context": str(o.context)}
    write(o.out, profile(model, text, o.context), about, inputs)
    print(f"{o.out}: {len(text):,} query rows of each of {model.layers * model.q_heads} query heads")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the file to write")
    parser.add_argument("--bytes", type=int, default=65536, help="how much of the text is read, from its beginning (default: %(default)s)")
    parser.add_argument("--context", type=int, default=1024, help="bytes of a window (default: %(default)s)")
    parser.add_argument("--text", type=pathlib.Path, help="another text than the held-out one")
    parser.add_argument("--weights", type=pathlib.Path, default=WEIGHTS, help="the folder of weights.safetensors and held_out.txt")
    try:
        run(parser.parse_args())
    except CannotReplace as refused:
        print(f"profile_tinylm.py: {refused}", file=sys.stderr)
        sys.exit(2)
    except Refused as refused:
        sys.exit(f"profile_tinylm.py: {refused}")


if __name__ == "__main__":
    main()
