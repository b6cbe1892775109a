#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of 2k to 16k tokens in vLLM on processors, with and without a policy, in the same memory.

    python3 bench/engines/vllm_serving.py [--policy POLICY] [--requests 12] [--new 64] [--blocks 160] [--out FILE.json] [--only serving|decoding]

It needs vLLM, kvpolicy and kvpolicy-vllm: `tools/engines.sh vllm_bench` installs them and runs it. Weights are random, so that nothing
is downloaded, and no policy's quality is measured here: docs/vllm.md has the recall of tinylm.

Serving: the same requests, whose first 1,024 tokens are common, come at once to a pool of blocks of 128 tokens that holds the longest of
them and little more. A model of 2 layers with 8 query and 2 KV heads of 64 channels.
- `at once`: the most requests in one step, and the mean over all steps.
- `steps`, `seconds`, `new tokens/s`: until all are answered.
- `hits`: prompt tokens that came from the prefix cache.
Without a policy; cut after the prompt; and with `during_prefill`, cut between chunks of 1,024 tokens, too.

Decoding: one request of 16,000 tokens, float32, in a small model (4 layers, 8 query and 2 KV heads of 64 channels, width 256) and in a larger
one (16 layers, 8 query and 8 KV heads of 128 channels, width 1,024).
- `step`: the median milliseconds of a decode step.
- `first`: the milliseconds that the first one, in which a request is cut, takes more than the median.
- `of bytes`: step / step of the whole cache, over (weights + kept cache) / (weights + whole cache) in bytes. 1 says that a step became
  shorter as the bytes that it reads did.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "python" / "vllm" / "tests"))

import engine

BLOCK, CHUNK, SHARED = 128, 1024, 1024
LENGTHS = (16000, 2000, 8000, 4000, 12000, 2500, 6000, 3000, 10000, 5000, 2000, 7000)
SHAPES = (dict(layers=4, query_heads=8, kv_heads=2, head_dim=64, width=256, longest=16512),
          dict(layers=16, query_heads=8, kv_heads=8, head_dim=128, width=1024, longest=16512))
BYTES = 4  # of a float


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="snapkv(window=32) | budget(1024)")
    parser.add_argument("--requests", type=int, default=len(LENGTHS))
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--blocks", type=int, default=160, help="of the pool, each of 128 tokens")
    parser.add_argument("--length", type=int, default=16000, help="of the prompt that is decoded")
    parser.add_argument("--only", choices=("serving", "decoding"))
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    made = {}
    if given.only != "decoding":
        made["serving"] = serving(given)
    if given.only != "serving":
        made["decoding"] = [row for shape in SHAPES for row in decoding(given, shape)]
    if given.out:
        given.out.write_text(json.dumps(made, indent=1))


def kinds(policy):
    return {"no policy": {}, "after the prompt": dict(policy=policy), "between chunks, too": dict(policy=policy, during_prefill=True)}


def serving(given):
    folder = engine.model_folder(layers=2, longest=16512)
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(given.requests)]
    head, rows = engine.prompt(SHARED, 99), []
    prompts = [head + engine.prompt(length - SHARED, index) for index, length in enumerate(lengths)]
    print(f"{'requests in ' + str(given.blocks) + ' blocks':24} {'at once':>14} {'steps':>6} {'seconds':>8} {'new tokens/s':>13} {'hits':>6}")
    for name, options in kinds(given.policy).items():
        llm = engine.engine(folder, block_size=BLOCK, max_model_len=max(LENGTHS) + given.new, max_num_batched_tokens=CHUNK, num_gpu_blocks_override=given.blocks + 1,
                            kv_cache_memory_bytes=(given.blocks + 1) * BLOCK * 2 * 2 * 2 * 64 * BYTES, enable_prefix_caching=True, **options)
        steps, running = engine.Steps(llm), []
        for index, prompt in enumerate(prompts):
            steps.add(str(index), prompt, given.new, logprobs=None)
        begin = time.perf_counter()
        steps.all(lambda: running.append(len(steps.scheduler.running)))
        seconds = time.perf_counter() - begin
        hits = sum(one.num_cached_tokens or 0 for one in steps.done.values())
        rows.append(dict(name=name, most=max(running), mean=statistics.mean(running), steps=steps.count, seconds=seconds, tokens=given.new * len(prompts), hits=hits))
        print(f"{name:24} {rows[-1]['most']:6} ({rows[-1]['mean']:5.2f}) {steps.count:6} {seconds:8.1f} {rows[-1]['tokens'] / seconds:13.1f} {hits:6}", flush=True)
        engine.close(llm)
    return rows


def decoding(given, shape):
    folder, prompt, rows = engine.model_folder(**shape), engine.prompt(given.length, 6), []
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) - engine.VOCABULARY * shape["width"] * BYTES  # one row of the embedding is read
    row = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * BYTES
    print(f"{given.length} tokens; {weights / 2**20:.0f} MiB of weights, {row / 2**10:.0f} KiB of cache for each token\n{'':36} {'step':>8} {'first':>8} {'kept':>6} {'of bytes':>9}")
    for name, policy in (("no policy", None), (given.policy, given.policy)):
        blocks = -(-given.length // BLOCK) + 4
        llm = engine.engine(folder, policy, 0 if policy else None, block_size=BLOCK, max_model_len=given.length + 64, max_num_batched_tokens=4096,
                            kv_cache_memory_bytes=blocks * BLOCK * row, max_num_seqs=1)
        steps, times = engine.Steps(llm), []
        steps.add("long", prompt, 26, logprobs=None)
        while steps.engine.has_unfinished_requests():
            begin = time.perf_counter()
            steps.step()
            times.append(1000 * (time.perf_counter() - begin))
        decode = times[-25:]
        median, kept = statistics.median(decode[1:]), given.length
        if policy:
            from kvpolicy_vllm.settings import settings_of

            kept = settings_of(policy).cuts(BLOCK).kept(given.length)
        whole = rows[0] if rows else dict(step=median, kept=kept)
        of_bytes = median / whole["step"] / ((weights + kept * row) / (weights + whole["kept"] * row))
        rows.append(dict(name=name, step=median, first=decode[0] - median, kept=kept, of_bytes=of_bytes))
        print(f"{name:36} {median:8.1f} {decode[0] - median:+8.1f} {kept:6} {of_bytes:9.2f}", flush=True)
        engine.close(llm)
    return rows


if __name__ == "__main__":
    main()
