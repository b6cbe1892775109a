#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert the retention gates that TRIM-KV's authors publish to a gate file.

    tools/convert_trim_kv.py trimkv_weights.pth retention_gate.safetensors

A layer of theirs, model.layers.N.self_attn.retention_gate., is an MLP of the normed hidden row, of width d, with one output for
each of Hkv heads:

    linear1.weight [E,d]    linear1.bias [E]    linear2.weight [Hkv,E]    bias [Hkv]

The gate file has retention_gate.fc1.weight [L,E,d], fc1.bias [L,E], fc2.weight [L,Hkv,E], fc2.bias [L,Hkv], all F32. Gates of their
other forms (rg2 and rg3, of keys and values) are refused only where their names differ: rg2 has the same names, but another d.
"""
from gate_files import expects, main, shaped, stack

PATTERN = "model.layers.{layer}.self_attn.retention_gate."


def convert(layers):
    first, second = layers[0]["linear1.weight"].shape, layers[0]["linear2.weight"].shape
    expects(len(first) == 2, f"layer 0: linear1.weight has shape {list(first)}, expected [E, d]")
    expects(len(second) == 2, f"layer 0: linear2.weight has shape {list(second)}, expected [Hkv, E]")
    (hidden, width), heads = first, second[0]
    shaped(layers, {"linear1.weight": (hidden, width), "linear1.bias": (hidden,), "linear2.weight": (heads, hidden), "bias": (heads,)})
    return {
        "fc1.weight": stack(layers, "linear1.weight", hidden, width),
        "fc1.bias": stack(layers, "linear1.bias", hidden),
        "fc2.weight": stack(layers, "linear2.weight", heads, hidden),
        "fc2.bias": stack(layers, "bias", heads),
    }


convert.names = ("linear1.weight", "linear1.bias", "linear2.weight", "bias")

if __name__ == "__main__":
    main(__doc__, "retention_gate.", PATTERN, convert)
