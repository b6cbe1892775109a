#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks tinylm's recall questions in vLLM, under several policies, as python/recall.py does in transformers.

    python3 python/vllm/recall.py [--cases 60] --out FILE [POLICY ...]

The file is JSON, as that of python/recall.py. Policies that vLLM cannot carry out are left out, and the reason is printed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "tests"), str(HERE.parent / "tests")]

import engine
import tinylm_model
import tinylm_vllm

from kvpolicy_vllm import decision
from kvpolicy_vllm.settings import settings_of

FULL = "full"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", metavar="POLICY")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    given = parser.parse_args()
    model = tinylm_model.Tinylm(tinylm_vllm.WEIGHTS)
    cases, folder, runs = tinylm_model.recall_cases((tinylm_vllm.WEIGHTS / "held_out.txt").read_bytes(), given.cases), tinylm_vllm.folder_of(model), []
    for policy in given.policies:
        try:
            if policy != FULL:
                settings_of(policy)
        except ValueError as why:
            print(why, flush=True)
            continue
        runs.append(ask(model, folder, cases, policy))
        print(f"{policy}: {runs[-1]['right']} of {len(cases)}", flush=True)
    given.out.write_text(json.dumps(runs))


def ask(model, folder, cases, policy):
    """Of every question whether its whole answer is right, and what each lane keeps; `held` are the blocks in use after each step."""
    llm = engine.engine(folder, None if policy == FULL else policy, None if policy == FULL else 0, max_model_len=tinylm_vllm.LONGEST, max_num_seqs=1, max_logprobs=5)
    assert llm.llm_engine.model_config.architectures == ["TinylmInVllm"]
    run, steps, cuts = {"engine": "vLLM", "policy": policy, "right": 0, "steps": 0, "rows": 0, "seconds": 0.0, "kept": []}, engine.Steps(llm), []
    held = run["held"] = []
    decision.watchers.append(cuts.append)
    try:
        for index, case in enumerate(cases):
            cuts.clear()
            steps.add(str(index), list(case.prompt), len(case.answer), logprobs=None)
            steps.step()  # the prompt, and the first byte of the answer
            begin, before = time.perf_counter(), steps.count
            steps.all(lambda: held.append(steps.pool.num_gpu_blocks - 1 - steps.pool.get_num_free_blocks()))
            run["seconds"] += time.perf_counter() - begin
            made, entries = steps.count - before, cuts[0].kept[0].shape[1] if cuts else len(case.prompt)
            run["steps"] += made
            run["rows"] += sum(range(entries + 1, entries + 1 + made))
            run["kept"].append([lane.tolist() for layer in cuts[0].kept for lane in layer] if cuts else [list(range(len(case.prompt)))] * lanes(model))
            run["right"] += bytes(steps.done[str(index)].outputs[0].token_ids) == case.answer
    finally:
        decision.watchers.clear()
        engine.close(llm)
    return run


def lanes(model):
    return model.llama.config.num_hidden_layers * model.llama.config.num_key_value_heads


if __name__ == "__main__":
    main()
