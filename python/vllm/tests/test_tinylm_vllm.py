# SPDX-License-Identifier: Apache-2.0
"""tinylm's recall questions of 1,024 bytes in vLLM: a sixteenth of the cache answers them, and its lanes keep what they keep in transformers."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import tinylm_vllm

if not tinylm_vllm.WEIGHTS.exists():
    pytest.skip("only a checkout has the weights", allow_module_level=True)

import recall
import tinylm_model

found = importlib.util.spec_from_file_location("recall_vllm", Path(__file__).resolve().parent.parent / "recall.py")
recall_vllm = importlib.util.module_from_spec(found)
found.loader.exec_module(recall_vllm)

POLICY = "snapkv(window=16, pool=max:15) | budget(64)"


def test_recall():
    model = tinylm_model.Tinylm(tinylm_vllm.WEIGHTS)
    cases = tinylm_model.recall_cases((tinylm_vllm.WEIGHTS / "held_out.txt").read_bytes(), 60)
    folder = tinylm_vllm.folder_of(model)
    full, cut, streaming = (recall_vllm.ask(model, folder, cases, policy) for policy in ("full", POLICY, "streaming_llm | budget(64)"))
    theirs = recall.ask(model, cases, POLICY, 2)
    pairs = [(mine, other) for one, two in zip(cut["kept"], theirs["kept"]) for mine, other in zip(one, two)]
    same = sum(mine == other for mine, other in pairs)
    print(f"\nright: full {full['right']}, {POLICY} {cut['right']}, streaming_llm {streaming['right']}, of {len(cases)}; {same} of {len(pairs)} lanes as in transformers")
    assert full["right"] == 60 and cut["right"] == 60 and streaming["right"] < 10
    assert len(pairs) == 480 and same >= 475
    assert cut["held"][:3] == [33, 3, 3] and cut["rows"] / cut["steps"] == theirs["rows"] / theirs["steps"]
