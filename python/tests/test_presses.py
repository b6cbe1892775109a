# SPDX-License-Identifier: Apache-2.0
"""The presses of kvpress as policies."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import kvpolicy
from kvpolicy.presses import PRESSES, AdaKVPress, CapPress, ChunkKVPress, CompactorPress, CriticalAdaKVPress, CriticalKVPress, CURPress, DMSPress, DuoAttentionPress, ExpectedAttentionPress, ExpectedAttentionStatsPress, FastKVzipPress, FinchPress, KeyDiffPress, KnormPress, KVComposePress, KVzapPress, KVzipPress, LagKVPress, LeverageScorePress, NonCausalAttnPress, ObservedAttentionPress, PyramidKVPress, QFilterPress, SimLayerKVPress, SnapKVPress, TOVAPress

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
    assert CompactorPress(0.25).scorer() == "compactor(sinks=8, recent=4, chunk=256, blend=0.25, sketch=48, padding=kvpress)"
    assert CompactorPress(0.25, 1, 2, 3, 4, 0.5).scorer() == "compactor(sinks=1, recent=2, chunk=3, blend=0.5, sketch=4, padding=kvpress)"
    assert LeverageScorePress(0.25, 6).scorer() == "leverage(sketch=6)"
    assert NonCausalAttnPress(0.25, 64).scorer() == "compactor(sinks=0, recent=0, chunk=64, blend=0, sketch=1, padding=kvpress)"
    assert FinchPress(0.25, window_size=9).policy() == "finch(window=9, counts=kvpress) | budget(ratio=0.25, rounding=kvpress)"
    assert FinchPress(0.25, normalize_scores=False, window_size=9).policy() == "snapkv(window=9, pool=none, rows=mean) | budget(ratio=0.25, rounding=kvpress)"
    assert KVzipPress(0.25).policy() == "kvzip(sinks=4, plus=false) | budget(ratio=0.25, rounding=kvpress, scope=global)"
    assert KVzipPress(0.25, True, 2, True).policy() == "kvzip(sinks=2, plus=true) | budget(ratio=0.25, rounding=kvpress, scope=layer)"
    assert FastKVzipPress(0.25, True).policy() == "fast_kvzip(sinks=4, window=-1) | budget(ratio=0.25, rounding=kvpress, scope=layer)"
    assert KVComposePress(True, 0.25, "mean", add_v_norm=True).policy() == "kvcompose(rows=mean, group=mean, add_mean=true, values=true) | budget(ratio=0.25, rounding=kvpress, by=ranks)"
    assert KVComposePress(False, 0.25, keep_token_lower_bound=3).policy() == "kvcompose(rows=max, group=mean, add_mean=true, values=false) | budget(ratio=0.25, rounding=kvpress, by=fixed, scope=global, floor_tokens=3)"
    for one in (CURPress(0.5), LagKVPress(0.5), SimLayerKVPress(0.9), CompactorPress(0.5), FinchPress(0.5, window_size=9), KVzipPress(0.5), KVzipPress(0.5, True, 2, True), FastKVzipPress(0.5), KVComposePress(True, 0.5), KVComposePress(False, 0.5)):
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
    with pytest.raises(ImportError, match="RestoreKVPress = a press of kvpress 0.5.5 that is not here, because it adds entries to the cache, and a policy drops some"):
        from kvpolicy.presses import RestoreKVPress  # noqa: F401
    with pytest.raises(ImportError, match="KVgradPress = .* because it goes by gradients, and a policy by what a forward shows"):
        from kvpolicy.presses import KVgradPress  # noqa: F401
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
    (lambda: CompactorPress(0.5, blending=-1).scorer(), "CompactorPress: blending = -1, but it is the weight of leverages, 0 or more"),
    (lambda: AdaKVPress(FinchPress(0.5)), "AdaKVPress: press = FinchPress, but"),
    (lambda: AdaKVPress(KVzipPress(0.5)), "AdaKVPress: press = KVzipPress, but"),
    (lambda: FinchPress(0.5).policy(), "FinchPress: window_size = None, but it is the number of the question's tokens, with which the prompt ends"),
    (lambda: FinchPress(0.5, 512, window_size=9).policy(), "FinchPress: chunk_length = 512, but each chunk of a prompt would have a budget of its own"),
    (lambda: FinchPress(0.5, rerotate_keys=True, window_size=9).policy(), "FinchPress: rerotate_keys = True, but entries keep their positions"),
    (lambda: FastKVzipPress(0.5, window_size=64).policy(), "FastKVzipPress: window_size, window_ratio = 64, 0.02, but the last int(0.02 N) of N tokens always stay"),
    (lambda: KVComposePress(agg_task="sum").policy(), "KVComposePress: agg_task = sum, but it is max or mean"),
    (lambda: KVComposePress(agg_head="max").policy(), "KVComposePress: agg_head = max, but layers are compared by the mean over their heads"),
    (lambda: KVComposePress(keep_token_lower_bound=3).policy(), "KVComposePress: keep_token_lower_bound = 3, but it is one of heads that keep unequal numbers: structured=False"),
    (lambda: ExpectedAttentionStatsPress(0.5)(None), "ExpectedAttentionStatsPress: stats_folder = None, but without mu and cov they are read from there, and none are downloaded"),
    (lambda: ExpectedAttentionStatsPress(0.5, stats_folder="x", mu=1, cov=1).given(None), "ExpectedAttentionStatsPress: mu = given, but the file of stats_folder has the mean and the covariance"),
    (lambda: ExpectedAttentionStatsPress(0.5, stats_folder="nowhere").given(None), "ExpectedAttentionStatsPress: stats_folder = nowhere, but it has a file model.safetensors"),
    (lambda: DMSPress(SnapKVPress(), 0.1), "DMSPress: press = SnapKVPress, but a threshold asks about each entry by itself"),
    (lambda: DMSPress(KnormPress()).policy(), "DMSPress: threshold = None, but entries that score below it are dropped"),
    (lambda: DuoAttentionPress(0.5).retrieval_heads(), "DuoAttentionPress: head_scores = None, but heads are chosen by them"),
    (lambda: DuoAttentionPress(0.5, [0.5]).retrieval_heads(), "DuoAttentionPress: head_scores = of 1 axes, but they are"),
], ids=["pyramid", "tova", "observed", "safeguard", "window", "length", "filters", "rows", "critical", "first", "leverage", "random", "blending", "finch", "kvzip", "window-size", "chunks", "rotated", "gate-window", "task", "head", "bound", "stats", "twice", "nowhere", "snapkv", "threshold", "scores", "axes"])
def test_a_press_that_does_not_fit_is_refused(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(text)
