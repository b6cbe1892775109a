#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times on a GPU what users run today, in eager PyTorch: a peer of the benchmarks of this folder.

    torch_peers.py [--out FILE] [--rounds N]     JSON, on standard output if no file is given

- topk_sort: topk of lanes x entries scores in f32, a quarter kept, and the sort of its indices that puts them in order.
- eager_mass: the attention mass of a window's 32 rows over one layer of 8 KV heads: keys repeated for the group, all logits, a mask,
  softmax in float32, the sum of the rows, the mean of the group.

CUDA events around each, L2 overwritten before; the median of some rounds after one for warmth. Exit status 77: no PyTorch, or it
has no GPU.
"""
import argparse
import json
import math
import statistics
import sys

SKIPPED = 77
LANES = (288, 2304)
ENTRIES = (8192, 32768, 131072)
MASS_ENTRIES = (32768, 131072)
KV_HEADS, GROUP, DIMS, ROWS = 8, 4, 128, 32


def topk_sort(scores):
    return scores.topk(scores.shape[1] // 4, dim=-1).indices.sort(dim=-1).values


def eager_mass(torch, keys, queries, mask):
    repeated = keys[:, None].expand(KV_HEADS, GROUP, *keys.shape[1:]).reshape(KV_HEADS * GROUP, *keys.shape[1:])
    weights = torch.matmul(queries, repeated.transpose(1, 2)) / math.sqrt(DIMS) + mask
    weights = torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32)
    return weights.sum(dim=1).view(KV_HEADS, GROUP, -1).mean(dim=1)


def median_us(torch, rounds, work):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(rounds + 1):
        flush.fill_(len(taken))
        begin.record()
        work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(taken[1:])


def measure(torch, rounds):
    rows = []
    for lanes in LANES:
        for entries in ENTRIES:
            if (lanes, entries) == (2304, 131072):
                continue  # its sort needs more than what is compared with it
            scores = torch.randn(lanes, entries, device="cuda")
            rows.append({"name": "topk_sort", "lanes": lanes, "entries": entries,
                         "us": median_us(torch, rounds, lambda: topk_sort(scores))})
            del scores
    for element, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
        for entries in MASS_ENTRIES:
            keys = torch.rand(KV_HEADS, entries, DIMS, device="cuda").mul_(2).sub_(1).to(dtype)
            queries = torch.rand(KV_HEADS * GROUP, ROWS, DIMS, device="cuda").mul_(12).sub_(6).to(dtype)
            mask = torch.full((ROWS, entries), -math.inf, device="cuda", dtype=dtype).triu(entries - ROWS + 1)
            rows.append({"name": "eager_mass", "element": element, "entries": entries, "rows": ROWS,
                         "us": median_us(torch, rounds, lambda: eager_mass(torch, keys, queries, mask))})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("there is no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("PyTorch has no GPU")
        return SKIPPED
    text = json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": measure(torch, asked.rounds)})
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
