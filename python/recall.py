#!/usr/bin/env python3
"""Asks tinylm's recall questions in transformers, under several policies: those that the demo and tinylm are asked.

    python3 python/recall.py [--cases 60] [--keep FILE] [POLICY ...]

Prints for each policy how many whole answers are right, the rows that a layer keeps, and the tokens decoded in a second.
--keep writes what every lane keeps, a line for each: policy, case, layer, KV head, and the kept ordinals.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tests"))

import tinylm_model
import torch

import kvpolicy.hf

POLICIES = ["full", "snapkv(window=16, pool=max:15) | budget(64)", "h2o | budget(64)", "tova | budget(64)", "knorm | budget(64)", "streaming_llm | budget(64)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=POLICIES, metavar="POLICY")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch and of the policy")
    parser.add_argument("--keep", type=Path, help="the file of the keep sets")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    weights = tinylm_model.ROOT / "examples" / "tinylm" / "weights"
    model = tinylm_model.Tinylm(weights)
    cases = tinylm_model.recall_cases((weights / "held_out.txt").read_bytes(), given.cases)
    print(f"{'policy':48} {'right':>10} {'rows':>6} {'tokens/s':>9}")
    with given.keep.open("w") if given.keep else contextlib.nullcontext() as keep:
        for policy in given.policies:
            ask(model, cases, policy, given.threads, keep)


def ask(model, cases, policy, threads, keep):
    right = rows = tokens = 0
    seconds = 0.0
    for index, case in enumerate(cases):
        cache = tinylm_model.new_cache(model)
        with kvpolicy.hf.evict(model.llama, policy, threads=threads) as eviction:
            logits = model.logits(case.prompt, 0, cache)[-1]
            rows += cache.layers[0].keys.shape[2]
            answer = bytes([int(logits.argmax())])
            begin = time.perf_counter()
            for _ in case.answer[1:]:
                text = case.prompt + answer
                answer += bytes([int(model.logits(text, len(text) - 1, cache)[-1].argmax())])
            seconds += time.perf_counter() - begin
            tokens += len(case.answer) - 1
        right += answer == case.answer
        if keep is not None and eviction.kept is not None:
            for layer, heads in enumerate(eviction.kept.array()[:, 0]):
                for head, kept in enumerate(heads):
                    print(policy, index, layer, head, " ".join(str(one) for one in kept), sep="\t", file=keep)
    print(f"{policy:48} {right:4} of {len(cases)} {rows / len(cases):6.0f} {tokens / seconds:9.1f}", flush=True)


if __name__ == "__main__":
    main()
