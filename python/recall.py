#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks tinylm's recall questions in transformers, under several policies: those that the demo and tinylm are asked.

    python3 python/recall.py [--cases 60] [--keep FILE] [--out FILE] [POLICY ...]

Prints for each policy how many whole answers are right, the rows that a layer reads for a token, and the tokens decoded in a second.
--keep writes what every lane keeps, a line for each: policy, case, layer, KV head, and the kept ordinals; of a policy that drops
nothing, nothing. --out writes all of this as JSON, as examples/llama_cpp/recall_engines does of its engines.
"""

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tests"))

import tinylm_model
import torch

import kvpolicy.hf

WEIGHTS = tinylm_model.ROOT / "examples" / "tinylm" / "weights"
GATES = {"trim_kv": "retention_gate", "admit: write_gate": "write_gate"}
POLICIES = ["full", "snapkv(window=16, pool=max:15) | budget(64)", "h2o | budget(64)", "tova | budget(64)", "knorm | budget(64)", "streaming_llm | budget(64)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=POLICIES, metavar="POLICY")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch and of the policy")
    parser.add_argument("--keep", type=Path, help="the file of the keep sets")
    parser.add_argument("--out", type=Path, help="the JSON file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = tinylm_model.Tinylm(WEIGHTS)
    cases = tinylm_model.recall_cases((WEIGHTS / "held_out.txt").read_bytes(), given.cases)
    print(f"{'policy':48} {'right':>10} {'rows':>6} {'tokens/s':>9}")
    runs = []
    for policy in given.policies:
        run = ask(model, cases, policy, given.threads)
        steps = max(1, run["steps"])
        print(f"{policy:48} {run['right']:4} of {len(cases)} {run['rows'] / steps:6.0f} {steps / run['seconds']:9.1f}", flush=True)
        runs.append(run)
    if given.keep:
        given.keep.write_text("".join(lines_of(run, model.llama.config.num_key_value_heads) for run in runs))
    if given.out:
        given.out.write_text(json.dumps(runs))


def ask(model, cases, policy, threads):
    run = {"engine": "transformers", "policy": policy, "right": 0, "steps": 0, "rows": 0, "seconds": 0.0, "kept": []}
    for case in cases:
        cache = tinylm_model.new_cache(model)
        gates = next((WEIGHTS / f"{file}.safetensors" for name, file in GATES.items() if policy.startswith(name)), None)
        with kvpolicy.hf.evict(model.llama, policy, gates=gates, threads=threads) as eviction:
            logits = model.logits(case.prompt, 0, cache)[-1]
            run["kept"].append(lanes_of(eviction.kept, model.llama.config, len(case.prompt)))
            answer = bytes([int(logits.argmax())])
            begin = time.perf_counter()
            for _ in case.answer[1:]:
                text = case.prompt + answer
                answer += bytes([int(model.logits(text, len(text) - 1, cache)[-1].argmax())])
                run["rows"] += cache.layers[0].keys.shape[2]
                run["steps"] += 1
            run["seconds"] += time.perf_counter() - begin
        run["right"] += answer == case.answer
    return run


def lanes_of(kept, config, tokens):
    """What each lane keeps, layer by layer and head by head; everything if nothing was dropped."""
    if kept is None:
        return [list(range(tokens))] * (config.num_hidden_layers * config.num_key_value_heads)
    return [kept.lane(layer, 0, head).tolist() for layer in range(config.num_hidden_layers) for head in range(config.num_key_value_heads)]


def lines_of(run, heads):
    if run["policy"] == "full":
        return ""
    return "".join("\t".join(map(str, (run["policy"], case, lane // heads, lane % heads, " ".join(map(str, kept))))) + "\n"
                   for case, lanes in enumerate(run["kept"]) for lane, kept in enumerate(lanes))


if __name__ == "__main__":
    main()
