#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the Python package on a processor: crossings into C++, a decision, and a prefill of transformers.

    python3 python/measure.py

- Crossing into C++, microseconds for each tensor: a call that only describes its arrays is made with and without the keys
  of 64 layers. NumPy is measured always, PyTorch if it is installed. The best of 200 calls counts.
- A SnapKV decision about 4 layers of 32 query heads, 8 KV heads and 128 channels in float32, window 64: `Evictor.observe`
  and `decide`, and what kvpress 0.5.5 computes for it, written out in PyTorch (scores and the sorted choice; neither
  moves rows). The best of 5 turns counts, the two in turn, with as many threads.
- The prefill of 4,096 tokens by `generate`, plain and inside of `hf.evict` with SnapKV: a decoder of 2 layers with the
  sizes of Llama 3.2 1B. The ratio is the median of 5 turns, and its range is that of the turns.
"""

import math
import statistics
import time

import numpy as np

import kvpolicy

LAYERS = 64


def best(call, repeats=200):
    if repeats > 1:
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def crossing(make):
    """Microseconds for each tensor: a decision about one entry of each of `LAYERS` layers, with and without its keys."""

    def seconds(policy, given):
        evictor = kvpolicy.Evictor(policy, layers=LAYERS, query_heads=1, kv_heads=1, head_dim=4)
        evictor.append([1])
        keys = [make((1, 1, 1, 4)) for _ in range(LAYERS)] if given else []
        assert len(evictor.decide(keys)[1]) == LAYERS
        return best(lambda: evictor.decide(keys))

    policy = "streaming_llm | budget(8)"  # it reads no keys, so that only the crossing differs
    return (seconds(policy, True) - seconds(policy, False)) / LAYERS * 1e6


def kvpress_snapkv(torch, queries, keys, window, width, kept):
    """The choice of kvpress's SnapKVPress for one layer, from query rows after RoPE."""
    group, rows = queries.shape[1] // keys.shape[1], keys.shape[2]
    logits = queries @ keys.repeat_interleave(group, dim=1).transpose(2, 3) / math.sqrt(keys.shape[3])
    logits += torch.triu(torch.full_like(logits, float("-inf")), diagonal=rows - window + 1)
    weights = logits.softmax(dim=-1)[..., :-window].mean(dim=-2)
    pooled = torch.nn.functional.avg_pool1d(weights, kernel_size=width, padding=width // 2, stride=1)
    scores = pooled.view(1, keys.shape[1], group, -1).mean(2)
    scores = torch.nn.functional.pad(scores, (0, window), value=scores.max().item() + 1)
    return scores.topk(kept, dim=-1).indices.sort(dim=-1).values


def decision(torch, rows, layers=4, window=64, width=5):
    """The seconds of a decision by kvpress's operations and by kvpolicy's."""
    queries = [torch.randn(1, 32, window, 128) for _ in range(layers)]
    keys = [torch.randn(1, 8, rows, 128) for _ in range(layers)]
    kept = rows // 16
    policy = f"snapkv(window={window}, pool=avg:{width}) | budget({kept})"
    evictor = kvpolicy.Evictor(policy, layers=layers, query_heads=32, kv_heads=8, head_dim=128, capacity=rows, threads=torch.get_num_threads())

    def ours():
        evictor.remove_last(evictor.tokens)
        evictor.append([rows])
        for layer, one in enumerate(queries):
            evictor.observe(layer, one)
        return evictor.decide(keys)

    theirs = lambda: [kvpress_snapkv(torch, one, of, window, width, kept) for one, of in zip(queries, keys)]
    same = ours()[1].reshape(layers, 8, kept) == np.stack([one[0].numpy() for one in theirs()])
    assert same.mean() > 0.9, same.mean()  # kvpress adds up in another order
    turns = [[best(call, 1) for call in (theirs, ours)] for _ in range(5)]
    return [min(times) for times in zip(*turns)]


def prefill(torch, tokens=4096, turns=5):
    """How many times as long a prefill takes with SnapKV, of each turn."""
    from transformers import LlamaConfig, LlamaForCausalLM

    import kvpolicy.hf

    config = LlamaConfig(vocab_size=256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=64, max_position_embeddings=2 * tokens, pad_token_id=0, eos_token_id=None)
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(0, 256, (1, tokens))
    plain = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)

    def cut():
        with kvpolicy.hf.evict(model, "snapkv(window=64) | budget(256)", progress=False) as eviction:
            plain()
        assert eviction.decisions == 1

    plain(), cut()
    return [best(cut, 1) / best(plain, 1) for _ in range(turns)]


def main():
    print(f"kvpolicy {kvpolicy.__version__}, crossing into C++, microseconds a tensor")
    print(f"numpy {np.__version__}: {crossing(lambda shape: np.ones(shape, np.float32)):.2f}")
    try:
        import torch
    except ImportError:
        return
    print(f"torch {torch.__version__}: {crossing(lambda shape: torch.ones(shape)):.2f}")
    for rows in (4096, 32768):
        theirs, ours = decision(torch, rows)
        print(f"SnapKV about {rows} entries, {torch.get_num_threads()} threads: kvpress's operations {theirs * 1e3:.1f} ms, kvpolicy {ours * 1e3:.1f} ms, {theirs / ours:.1f} x")
    try:
        ratios = prefill(torch)
    except ImportError:
        return
    print(f"prefill of 4096 tokens with SnapKV over plain: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
