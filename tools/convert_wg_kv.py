#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert the write gates that WG-KV's authors publish to a gate file.

    tools/convert_wg_kv.py llama-3.1-8b-instruct-0.16.pt write_gate.safetensors

A layer of theirs, model.layers.N.self_attn.g_predictors., has two norms and two convolutions of width 1 in a group for each KV head
(Hkv heads of D channels, hidden width E):

    pre_key_norm.weight [D]    conv1.weight [Hkv*E,2D,1]    conv2.weight [Hkv,E,1]
    post_key_norm.weight [D]   conv1.bias [Hkv*E]           conv2.bias [Hkv]

The gate file has write_gate.pre_norm.weight and post_norm.weight [L,D], fc1.weight [L,Hkv,E,2D], fc1.bias [L,Hkv,E],
fc2.weight [L,Hkv,E], fc2.bias [L,Hkv], all F32. What is assumed: inputs pre_k and post_k with norms (eps 1e-6), GELU in the erf form.
"""
from gate_files import expects, main, shaped, stack

PATTERN = "model.layers.{layer}.self_attn.g_predictors."


def convert(layers):
    norm, second = layers[0]["pre_key_norm.weight"].shape, layers[0]["conv2.weight"].shape
    expects(len(norm) == 1, f"layer 0: pre_key_norm.weight has shape {list(norm)}, expected [D]")
    expects(len(second) == 3 and second[2] == 1, f"layer 0: conv2.weight has shape {list(second)}, expected [Hkv, E, 1]")
    (dims,), (heads, hidden, _) = norm, second
    shaped(layers, {"pre_key_norm.weight": (dims,), "post_key_norm.weight": (dims,), "conv1.weight": (heads * hidden, 2 * dims, 1),
                    "conv1.bias": (heads * hidden,), "conv2.weight": (heads, hidden, 1), "conv2.bias": (heads,)})
    return {
        "pre_norm.weight": stack(layers, "pre_key_norm.weight", dims),
        "post_norm.weight": stack(layers, "post_key_norm.weight", dims),
        "fc1.weight": stack(layers, "conv1.weight", heads, hidden, 2 * dims),
        "fc1.bias": stack(layers, "conv1.bias", heads, hidden),
        "fc2.weight": stack(layers, "conv2.weight", heads, hidden),
        "fc2.bias": stack(layers, "conv2.bias", heads),
    }


convert.names = ("pre_key_norm.weight", "post_key_norm.weight", "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")

if __name__ == "__main__":
    main(__doc__, "write_gate.", PATTERN, convert)
