#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policies inside of transformers on a GPU: prefill, decision, decoding and memory at long contexts.

    python3 bench/engines/transformers_cuda.py [--out FILE.json] [--lengths 32768 131072] [--batches 1 8] [--small]

It has not run on a GPU. It needs PyTorch with CUDA, transformers, and kvpolicy built for CUDA (python/README.md). The model is a decoder of the
sizes of Llama 3 8B with random weights in bf16, so that nothing is downloaded: what is measured does not depend on what the
weights say. Each case reads a prompt of random tokens with and without a policy that keeps a sixteenth of it, and decodes.

- `prefill`: seconds of the prompt's forward, with the decision about it and its cut.
- `decision`: milliseconds of that decision and cut alone, for all layers, with the device waited for before and after.
- `step`: milliseconds of a decode step, the median of those measured; `tokens/s` are those of the whole batch.
- `of bytes`: how near decoding comes to what memory allows: (weights + kept cache) / (weights + whole cache) in bytes, over
  step / step of the full cache. 1 says that a step became shorter as the bytes that it reads did.
- `cache`: GiB that keys and values hold after the cut. `peak`: GiB that PyTorch held at most.

H2O reads the query rows of every forward, so that it is measured at the shortest length alone. kvpress is measured beside it
where it is installed, with its SnapKVPress. A case that does not fit into the device's memory is said to.
--small takes a tiny model and short prompts, on any device: a rehearsal whose figures say nothing.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import kvpolicy
import kvpolicy.hf

PART = 16  # a policy keeps one in so many entries
STEPS = 24
GIB = 2**30
LLAMA_8B = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
SMALL = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=512)


def policies(length):
    """Names, texts, and when they decide."""
    budget = length // PART
    return {
        "full": (None, None),
        "snapkv": (f"snapkv(window=32) | budget({budget})", "prefill"),
        "streaming_llm": (f"streaming_llm | budget({budget})", "prefill"),
        "trim_kv": (f"trim_kv | budget({budget})", "prefill"),
        "h2o": (f"h2o | budget({budget})", "prefill"),
    }


def retention(fresh):
    """A gate of random weights would say as much: log beta of each new token."""
    return -torch.rand(fresh.keys.shape[:3], device=fresh.keys.device) / 100


class Clock:
    """Seconds, with the device waited for."""

    def __init__(self, device):
        self.wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def __call__(self, call):
        self.wait()
        begin = time.perf_counter()
        made = call()
        self.wait()
        return made, time.perf_counter() - begin


def cache_bytes(cache):
    return sum(one.numel() * one.element_size() for layer in cache.layers for one in (layer.keys, layer.values))


def cutting(model, name, length):
    """The block of a policy, and a list that receives the seconds of each of its decisions."""
    text, when = policies(length)[name]
    if text is None:
        return contextlib.nullcontext(), []
    eviction = kvpolicy.hf.evict(model, text, gates=retention if name == "trim_kv" else None, when=when, progress=False)
    seconds, clock, decide = [], Clock(model.device), eviction._evict

    def timed(*arguments):
        seconds.append(clock(lambda: decide(*arguments))[1])

    eviction._evict = timed
    return eviction, seconds


def measure(model, block, seconds, tokens):
    """One case: prompt, decision, decode steps."""
    clock, cache = Clock(model.device), DynamicCache(config=model.config)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode(), block:
        forward = lambda ids: model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)
        following, prefill = clock(lambda: forward(tokens))
        decision = sum(seconds)
        held = cache_bytes(cache)
        steps = []
        for _ in range(STEPS):
            following, step = clock(lambda: forward(following))
            steps.append(step)
    step = statistics.median(steps[STEPS // 4 :])
    peak = torch.cuda.max_memory_allocated() / GIB if model.device.type == "cuda" else None
    return {"prefill_s": prefill, "decision_ms": decision * 1e3, "step_ms": step * 1e3, "tokens_per_s": len(tokens) / step, "cache_bytes": held, "peak_gib": peak}


def kvpress_block(model):
    try:
        from kvpress import SnapKVPress
    except ImportError:
        return None
    return SnapKVPress(compression_ratio=1 - 1 / PART, window_size=32)(model)


def cases(model, lengths, batches):
    """Every case as a row, as soon as it is measured."""
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    generator = torch.Generator(device=model.device).manual_seed(1)
    for length in lengths:
        for batch in batches:
            tokens = torch.randint(model.config.vocab_size, (batch, length), device=model.device, generator=generator)
            full = None
            for name in [*policies(length), "kvpress snapkv"]:
                if name == "h2o" and length > min(lengths):
                    continue
                row = {"length": length, "batch": batch, "policy": name}
                try:
                    block, seconds = (kvpress_block(model), []) if name.startswith("kvpress") else cutting(model, name, length)
                    if block is None:
                        continue
                    row |= measure(model, block, seconds, tokens)
                except torch.cuda.OutOfMemoryError:
                    row["failed"] = "does not fit into memory"
                except Exception as error:
                    if not name.startswith("kvpress"):
                        raise
                    row["failed"] = f"{type(error).__name__} with transformers {transformers.__version__}"
                if name == "full" and "failed" not in row:
                    full = row
                if full is not None and "step_ms" in row:
                    bytes_ratio = (weights + row["cache_bytes"]) / (weights + full["cache_bytes"])
                    row["of_bytes"] = bytes_ratio / (row["step_ms"] / full["step_ms"])
                yield row
                if model.device.type == "cuda":
                    torch.cuda.empty_cache()


def printed(row):
    where = f"| {row['length']} | {row['batch']} | {row['policy']} |"
    if "failed" in row:
        return f"{where} {row['failed']} | | | | | | |"
    of_bytes = f"{row['of_bytes']:.2f}" if "of_bytes" in row else ""
    peak = f"{row['peak_gib']:.1f}" if row["peak_gib"] is not None else ""
    return (
        f"{where} {row['prefill_s']:.2f} | {row['decision_ms']:.1f} | {row['step_ms']:.2f} | {row['tokens_per_s']:.1f} | {of_bytes} | "
        f"{row['cache_bytes'] / GIB:.3f} | {peak} |"
    )


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", help="a JSON file that receives the rows")
    asked.add_argument("--lengths", type=int, nargs="+")
    asked.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    asked.add_argument("--small", action="store_true")
    given = asked.parse_args()
    if not given.small and not torch.cuda.is_available():
        print("there is no CUDA device: --small rehearses without one", file=sys.stderr)
        return 77
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and not kvpolicy.has_device:
        print("kvpolicy was built for host memory: its decisions would copy the cache (python/README.md says how to build it)", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = LlamaForCausalLM(LlamaConfig(**(SMALL if given.small else LLAMA_8B), max_position_embeddings=1 << 20, attn_implementation="sdpa"))
    model.eval()
    about = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__, "transformers": transformers.__version__, "kvpolicy": kvpolicy.__version__, "small": given.small}
    print(about)
    print("| length | batch | policy | prefill, s | decision, ms | step, ms | tokens/s | of bytes | cache, GiB | peak, GiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for row in cases(model, given.lengths or ([256, 512] if given.small else [32768, 131072]), given.batches):
        rows.append(row)
        print(printed(row), flush=True)
        if given.out:
            with open(given.out, "w") as file:
                json.dump(about | {"rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
