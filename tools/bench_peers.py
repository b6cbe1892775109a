#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what users run today, in eager PyTorch on the CPU: the peer of `bench_report`.

    bench_peers.py [--out FILE] [--rounds N] [--only NAME]     JSON, on standard output if no file is given

- snapkv: SnapKV's score, selection and compaction of one layer of 8 KV heads x 32768 entries, 32 query heads, D 128, window 32,
  a quarter kept, step by step as kvpress writes it: keys repeated for the group, all logits of the window, a mask, softmax in
  float32, mean of the rows, average pool of five, mean of the group, topk, gather of keys and of values. In f32 and bf16.
- topk_sort: topk of 288 lanes x 32768 scores in f32, a quarter kept, and the sort of its indices that puts them in order.

Each on one and on two threads; the median of some rounds after one for warmth. Needs PyTorch: `pip install torch`.
"""
import argparse
import json
import math
import platform
import statistics
import sys
import time

KV_HEADS, GROUP, ENTRIES, DIMS, WINDOW, KEPT = 8, 4, 32768, 128, 32, 8192


def snapkv_inputs(torch, dtype):
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.rand(1, KV_HEADS, ENTRIES, DIMS, generator=generator).mul_(2).sub_(1).to(dtype) for _ in range(2))
    queries = torch.rand(1, KV_HEADS * GROUP, WINDOW, DIMS, generator=generator).mul_(12).sub_(6).to(dtype)
    return keys, values, queries


def snapkv_scores(torch, keys, queries):
    repeated = keys[:, :, None].expand(1, KV_HEADS, GROUP, ENTRIES, DIMS).reshape(1, KV_HEADS * GROUP, ENTRIES, DIMS)
    weights = torch.matmul(queries, repeated.transpose(2, 3)) / math.sqrt(DIMS)
    mask = torch.ones_like(weights) * float("-inf")
    weights += torch.triu(mask, diagonal=ENTRIES - WINDOW + 1)
    weights = torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(queries.dtype)
    scores = weights[..., :-WINDOW].mean(dim=-2)
    scores = torch.nn.functional.avg_pool1d(scores, kernel_size=5, padding=2, stride=1)
    scores = scores.view(1, KV_HEADS, GROUP, ENTRIES - WINDOW).mean(2)
    return torch.nn.functional.pad(scores, (0, WINDOW), value=scores.max().item())


def snapkv(torch, inputs):
    keys, values, queries = inputs
    indices = snapkv_scores(torch, keys, queries).topk(KEPT, dim=-1).indices
    indices = indices.unsqueeze(-1).expand(-1, -1, -1, DIMS)
    return keys.gather(2, indices).contiguous(), values.gather(2, indices).contiguous()


def topk_sort_inputs(torch, _):
    return torch.randn(288, ENTRIES, generator=torch.Generator().manual_seed(1))


def topk_sort(torch, scores):
    return scores.topk(KEPT, dim=-1).indices.sort(dim=-1).values


WORKS = {"snapkv": (snapkv_inputs, snapkv, ("f32", "bf16")), "topk_sort": (topk_sort_inputs, topk_sort, ("f32",))}


def milliseconds(work, rounds):
    taken = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[1:])


def main():
    asked = argparse.ArgumentParser(description="Times eager PyTorch on the CPU.")
    asked.add_argument("--out")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--only", choices=sorted(WORKS))
    asked = asked.parse_args()
    try:
        import torch
    except ImportError as missing:
        print(f"bench_peers: {missing}; pip install torch", file=sys.stderr)
        return 1
    rows = []
    with torch.inference_mode():
        for name, (make, work, elements) in WORKS.items():
            if asked.only not in (None, name):
                continue
            for element in elements:
                inputs = make(torch, {"f32": torch.float32, "bf16": torch.bfloat16}[element])
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    took = milliseconds(lambda: work(torch, inputs), asked.rounds)
                    rows.append({"name": name, "element": element, "threads": threads, "ms": took})
    text = json.dumps({"torch": torch.__version__, "python": platform.python_version(), "rows": rows}, indent=1)
    if asked.out:
        with open(asked.out, "w") as file:
            file.write(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
