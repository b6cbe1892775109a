# SPDX-License-Identifier: Apache-2.0
"""The presses of kvpress as policies."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import kvpolicy
from kvpolicy.presses import PRESSES, AdaKVPress, CapPress, ChunkKVPress, CriticalAdaKVPress, CriticalKVPress, CURPress, DMSPress, DuoAttentionPress, ExpectedAttentionPress, KeyDiffPress, KnormPress, KVzapPress, LagKVPress, ObservedAttentionPress, PyramidKVPress, QFilterPress, SimLayerKVPress, SnapKVPress, TOVAPress

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not (ROOT / "make_presses.py").exists(), reason="only a checkout has the table")
def test_the_module_is_what_the_table_says():
    spec = importlib.util.spec_from_file_location("make_presses", ROOT / "make_presses.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.module_of((ROOT / "presses.txt").read_text()) == (ROOT / "src" / "kvpolicy" / "presses.py").read_text()


@pytest.mark.parametrize("name", PRESSES)
def test_every_press_is_a_policy(name):
    facts = kvpolicy.policy_facts(PRESSES[name](compression_ratio=0.5).policy())
    assert "budget(ratio=0.5, rounding=kvpress" in facts.text


def test_parameters_reach_the_scorer():
    assert SnapKVPress(0.25, window_size=32, kernel_size=7).policy() == "snapkv(window=32, pool=avg:7, rows=mean) | budget(ratio=0.25, rounding=kvpress)"
    assert CURPress(0.5, leverage_type="kv_avg", local_window_size=8).policy() == "cur(sinks=4, block=8, of=mean) | budget(ratio=0.5, rounding=kvpress)"
    assert CURPress(0.5, 2, "key", use_local_approximation=False).scorer() == "cur(sinks=2, block=0, of=key)"
    assert LagKVPress(0.5, 2, 16, True).policy() == "lag_kv(lag=16, sinks=2, cross=true) | budget(ratio=0.5, rounding=kvpress)"
    assert CapPress(0.5).scorer() == "cap_kv(tau=5.0, future=512, sinks=4, epsilon=1e-06)"
    assert SimLayerKVPress(0.9, n_recent=64).policy() == "simlayer_kv(threshold=0.9, initial=4, recent=64, last=1)"
    for one in (CURPress(0.5), LagKVPress(0.5), SimLayerKVPress(0.9)):
        assert kvpolicy.policy_facts(one.policy()).text


def test_a_ratio_counts_as_kvpress_counts():
    keys = np.random.default_rng(0).standard_normal((2, 101, 8), dtype=np.float32)
    for ratio in (0.0, 0.1, 0.3, 0.5, 0.99):
        made = kvpolicy.decide(KnormPress(ratio).policy(), keys=keys)
        assert (made.counts == max(1, int(101 * (1 - ratio)))).all()


@pytest.mark.parametrize("tokens, chunk", [(101, 20), (100, 20), (20, 20), (41, 3), (7, 1), (64, 32)])
def test_chunks_count_as_kvpress_counts(tokens, chunk):
    """The whole chunks with the highest means of what the heads' scores add up to, max(1, int(chunks * (1 - ratio))) of them."""
    keys = np.random.default_rng(tokens).standard_normal((2, tokens, 8), dtype=np.float32)
    scores = -np.linalg.norm(keys.astype(float), axis=-1).sum(axis=0)
    chunks = np.array_split(np.arange(tokens), np.arange(chunk, tokens, chunk))
    means = np.array([scores[one].mean() for one in chunks])
    for ratio in (0.0, 0.1, 0.3, 0.5, 0.99):
        made = kvpolicy.decide(ChunkKVPress(KnormPress(ratio), chunk).policy(), keys=keys)
        best = np.argsort(-means)[: max(1, int(len(chunks) * (1 - ratio)))]
        expected = sorted(np.concatenate([chunks[one] for one in best]).tolist())
        for head in (0, 1):
            assert made.lane(head=head).tolist() == expected, ratio


def test_a_press_that_is_not_here_says_why():
    with pytest.raises(ImportError, match="NonCausalAttnPress = a press of kvpress 0.5.5 that is not here, because its score is none of kvpolicy's"):
        from kvpolicy.presses import NonCausalAttnPress  # noqa: F401
    with pytest.raises(ImportError, match="CompactorPress = .* because its policy, compactor, reads keys before RoPE, and Python gives a policy none"):
        from kvpolicy.presses import CompactorPress  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'NoPress'"):
        kvpolicy.presses.NoPress


def test_presses_around_presses_are_policies():
    assert AdaKVPress(SnapKVPress(0.25, 32), 0.5).policy() == "snapkv(window=32, pool=avg:5, rows=mean) | budget(ratio=0.25, rounding=kvpress, scope=layer, floor=0.5)"
    assert ChunkKVPress(KeyDiffPress(0.25), 8).policy() == "keydiff | reduce_lanes(layer, sum) | blocks(8) | budget(ratio=0.25, rounding=kvpress) | when(prefill)"
    assert DMSPress(KVzapPress(), -4.0, 64).policy() == "carried(name=kvzap) | recent(64) | at_least(-4.0)"
    assert CriticalKVPress(KnormPress(0.25)).policy() == "knorm | critical(first=0.5, epsilon=0.0001) | budget(ratio=0.25, rounding=kvpress)"
    assert CriticalAdaKVPress(KnormPress(0.25)).policy() == "knorm | critical(first=0.5, epsilon=0.0001, sure=0.2) | budget(ratio=0.25, rounding=kvpress, by=pool, scope=layer, floor=0.2, floor_tokens=1)"
    assert ExpectedAttentionPress(0.5, use_vnorm=False).scorer() == "expected_attention(future=512, sinks=4, epsilon=0.0, covariance=true, values=false)"
    for one in (CriticalKVPress(ExpectedAttentionPress(0.25)), CriticalAdaKVPress(SnapKVPress(0.25)), AdaKVPress(SnapKVPress(0.25)), ChunkKVPress(KnormPress(0.25)), ChunkKVPress(KVzapPress(0.25)), DMSPress(KnormPress(), -4.0)):
        assert kvpolicy.policy_facts(one.policy()).text
    assert DuoAttentionPress(0.5, [[0.1, 0.4], [0.3, 0.2]]).retrieval_heads().tolist() == [[False, True], [True, False]]


def test_presses_are_equal_if_all_their_parameters_are():
    ours = CriticalAdaKVPress(KnormPress(0.25), 0.1)
    assert ours == CriticalAdaKVPress(KnormPress(0.25), 0.1) != CriticalAdaKVPress(KnormPress(0.25), 0.5)
    assert "alpha_safeguard=0.1" in repr(ours)


@pytest.mark.parametrize("make, text", [
    (lambda: AdaKVPress(PyramidKVPress()), "AdaKVPress: press = PyramidKVPress, but its heads score for themselves and have equal budgets, as those of KnormPress"),
    (lambda: AdaKVPress(TOVAPress()), "AdaKVPress: press = TOVAPress, but"),
    (lambda: AdaKVPress(ObservedAttentionPress()), "AdaKVPress: press = ObservedAttentionPress, but"),
    (lambda: AdaKVPress(KnormPress(), 1.5), "AdaKVPress: alpha_safeguard = 1.5, but it is a part of the budget, 0 to 1"),
    (lambda: ChunkKVPress(SnapKVPress()), "ChunkKVPress: press = SnapKVPress, but chunks compete by their scores alone, as those of KnormPress"),
    (lambda: ChunkKVPress(KnormPress(), 0), "ChunkKVPress: chunk_length = 0, but a chunk has at least one entry"),
    (lambda: QFilterPress(0.5)(None), "QFilterPress: q_filters = None, but keys are scored by them, and none are downloaded"),
    (lambda: QFilterPress(0.5, [[1.0]])(None), "QFilterPress: q_filters = of 2 axes, but they are [layer, KV head, channel]"),
    (lambda: CriticalKVPress(TOVAPress()), "CriticalKVPress: press = TOVAPress, but its heads score for themselves"),
    (lambda: CriticalAdaKVPress(KnormPress(), first_stage_ratio=2), "CriticalAdaKVPress: first_stage_ratio = 2, but it is a part of the budget, 0 to 1"),
    (lambda: CURPress(leverage_type="keys").policy(), "CURPress: leverage_type = keys, but it is key, value, kv_avg or kv_product"),
    (lambda: CURPress(use_random_leverage=True).policy(), "CURPress: use_random_leverage = True, but the random numbers of kvpress are not those of kvpolicy"),
    (lambda: DMSPress(SnapKVPress(), 0.1), "DMSPress: press = SnapKVPress, but a threshold asks about each entry by itself"),
    (lambda: DMSPress(KnormPress()).policy(), "DMSPress: threshold = None, but entries that score below it are dropped"),
    (lambda: DuoAttentionPress(0.5).retrieval_heads(), "DuoAttentionPress: head_scores = None, but heads are chosen by them"),
    (lambda: DuoAttentionPress(0.5, [0.5]).retrieval_heads(), "DuoAttentionPress: head_scores = of 1 axes, but they are"),
], ids=["pyramid", "tova", "observed", "safeguard", "window", "length", "filters", "rows", "critical", "first", "leverage", "random", "snapkv", "threshold", "scores", "axes"])
def test_a_press_that_does_not_fit_is_refused(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(text)
