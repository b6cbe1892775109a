# SPDX-License-Identifier: Apache-2.0
"""tinylm's weights in transformers: the logits that PyTorch gave, and recall with a sixteenth of the cache."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvpolicy.hf
import tinylm_model

WEIGHTS = tinylm_model.ROOT / "examples" / "tinylm" / "weights"
pytestmark = pytest.mark.skipif(not WEIGHTS.exists(), reason="only a checkout has the weights")


@pytest.fixture(scope="module")
def model():
    return tinylm_model.Tinylm(WEIGHTS)


def test_logits_are_those_of_pytorch(model):
    golden, _ = tinylm_model.tensors_in(WEIGHTS / "golden.safetensors")
    for name in ("text", "recall"):
        made = model.logits(golden[f"{name}.ids"].tobytes())
        assert (made - torch.from_numpy(golden[f"{name}.logits"].copy())).abs().max() < 2e-4


def test_random_numbers_are_those_of_the_standard_library():
    draw = tinylm_model.Mt19937_64(5489)
    assert [draw() for _ in range(10000)][-1] == 9981545732273789042  # [rand.predef] of the C++ standard


def test_a_sixteenth_of_the_cache_answers(model):
    cases = tinylm_model.recall_cases((WEIGHTS / "held_out.txt").read_bytes(), 12)
    right = {}
    for policy in (None, "snapkv(window=16, pool=max:15) | budget(64)", "streaming_llm | budget(64)"):
        right[policy] = 0
        for case in cases:
            cache = tinylm_model.new_cache(model)
            if policy is None:
                right[policy] += tinylm_model.answered(model, case, cache)
                continue
            with kvpolicy.hf.evict(model.llama, policy):
                right[policy] += tinylm_model.answered(model, case, cache)
            assert cache.layers[0].keys.shape[2] <= 64 + 5
    full, snapkv, streaming = right.values()
    assert snapkv >= full - 1 >= 10
    assert streaming < snapkv


def test_trained_gates_answer(model):
    """TRIM-KV and WG-KV with tinylm's gates: with a tenth of the cache they answer nearly all."""
    cases = tinylm_model.recall_cases((WEIGHTS / "held_out.txt").read_bytes(), 12)
    for policy, gates in (("trim_kv | budget(96)", "retention_gate"), ("admit: write_gate | window(16) | at_least(0.1)", "write_gate")):
        right = 0
        for case in cases:
            cache = tinylm_model.new_cache(model)
            with kvpolicy.hf.evict(model.llama, policy, gates=WEIGHTS / f"{gates}.safetensors", when="forward") as eviction:
                right += tinylm_model.answered(model, case, cache)
            assert eviction.decisions > 0 and eviction.kept.counts.mean() < 105
        assert right >= 10, policy
