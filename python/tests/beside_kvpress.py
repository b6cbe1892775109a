# SPDX-License-Identifier: Apache-2.0
"""kvpolicy and kvpress in one process, imported in either order, with the transformers that kvpress asks for.

beside_kvpress.py first|last   kvpress is imported before kvpolicy, or after it
"""

import sys

if sys.argv[1] == "first":
    import kvpress
import kvpolicy.hf

if sys.argv[1] == "last":
    import kvpress

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128)).eval()
prompt = torch.randperm(128)[None, :100]  # no token twice: keys of the first layer would have equal norms


def kept_by_kvpress():
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpress.KnormPress(compression_ratio=0.5)(model):
        model(input_ids=prompt, past_key_values=cache)
    return [layer.keys for layer in cache.layers]


before = kept_by_kvpress()
cache = DynamicCache(config=model.config)
with torch.no_grad(), kvpolicy.hf.evict(model, "knorm | budget(ratio=0.5)") as eviction:
    model(input_ids=prompt, past_key_values=cache)
assert eviction.decisions == 1
for mine, theirs, again in zip([layer.keys for layer in cache.layers], before, kept_by_kvpress()):
    assert mine.shape == theirs.shape == (1, 2, 50, 16)
    order = lambda rows: rows[..., 0].sort(dim=-1).values  # kvpress keeps the order of its scores
    assert torch.equal(order(mine), order(theirs)) and torch.equal(theirs, again)
print(f"kvpress {sys.argv[1]}: both cut")
