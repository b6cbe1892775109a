#!/usr/bin/env python3
"""Measures how long it takes to hand arrays to the C++ library: microseconds for each tensor.

    python3 python/measure.py

A call that only describes its arrays is made with 1 and with 65 layers; the difference is that of 64 tensors. NumPy is
measured always, PyTorch if it is installed. The best of 200 calls counts.
"""

import time

import numpy as np

import kvpolicy

LAYERS = 64


def best(call, repeats=200):
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


def main():
    print(f"kvpolicy {kvpolicy.__version__}, crossing into C++, microseconds a tensor")
    print(f"numpy {np.__version__}: {crossing(lambda shape: np.ones(shape, np.float32)):.2f}")
    try:
        import torch
    except ImportError:
        return
    print(f"torch {torch.__version__}: {crossing(lambda shape: torch.ones(shape)):.2f}")


if __name__ == "__main__":
    main()
