"""tinylm's recall questions of 1,024 bytes in vLLM: a sixteenth of the cache answers them, and its lanes keep what they keep in transformers."""

import pytest

pytest.importorskip("vllm")

import engine as e
import tinylm_vllm

if not tinylm_vllm.WEIGHTS.exists():
    pytest.skip("only a checkout has the weights", allow_module_level=True)

import recall
import tinylm_model

from kvpolicy_vllm import decision

POLICY = "snapkv(window=16, pool=max:15) | budget(64)"


def ask(model, folder, cases, policy):
    """Of every question whether its whole answer is right, what each lane keeps, and the blocks that are held while it answers."""
    llm = e.engine(folder, policy, 0 if policy else None, max_model_len=tinylm_vllm.LONGEST, max_num_seqs=1, max_logprobs=5)
    architecture = llm.llm_engine.model_config.architectures
    steps, right, kept, held = e.Steps(llm), 0, [], []
    decision.watchers.append(lambda made: kept.append([lane.tolist() for layer in made.kept for lane in layer]))
    try:
        for index, case in enumerate(cases):
            steps.add(str(index), list(case.prompt), len(case.answer), logprobs=None)
            steps.all(lambda: held.append(steps.pool.num_gpu_blocks - 1 - steps.pool.get_num_free_blocks()))
            right += bytes(steps.done[str(index)].outputs[0].token_ids) == case.answer
    finally:
        decision.watchers.clear()
        e.close(llm)
    assert architecture == ["TinylmInVllm"]
    return right, kept, held


def test_recall():
    model = tinylm_model.Tinylm(tinylm_vllm.WEIGHTS)
    cases = tinylm_model.recall_cases((tinylm_vllm.WEIGHTS / "held_out.txt").read_bytes(), 60)
    folder = tinylm_vllm.folder_of(model)
    full, none, _ = ask(model, folder, cases, None)
    right, kept, held = ask(model, folder, cases, POLICY)
    streaming, _, _ = ask(model, folder, cases, "streaming_llm | budget(64)")
    theirs = recall.ask(model, cases, POLICY, 2)
    same = sum(mine == other for one, two in zip(kept, theirs["kept"]) for mine, other in zip(one, two))
    lanes = sum(len(one) for one in kept)
    print(f"\nright: full {full}, {POLICY} {right}, streaming_llm {streaming}, of {len(cases)}; {same} of {lanes} lanes as in transformers; blocks {sorted(set(held))}")
    assert none == [] and full == 60 and right == 60 and streaming < 10
    assert lanes == 480 and same >= 475
    assert held[:4] == [32, 33, 3, 3]
