# SPDX-License-Identifier: Apache-2.0
"""A signal that nobody gave is refused by its name, for every policy that the library has."""

import numpy as np
import pytest

import kvpolicy

ENTRIES = 40
# What each scorer that reads more than arrays needs; every other one decides from keys, query rows or scores.
NOT_ARRAYS = {"lookahead_kv": "external_queries", "dapq": "external_queries", "kvzip": "external_queries", "not_stale": "stale_spans", "side_quest": "stale_spans"}
NUMBERS = {"trim_kv": "log_beta", "db_trim_kv": "log_beta", "carried": "birth_score", "fast_kvzip": "birth_score", "sir_llm": "birth_score", "locret": "birth_score"}
WITHOUT_ROWS = {"full", "streaming_llm", "knorm", "random", "external"}
SUMS = {"h2o", "observed_attention"}


def arrays(entries=ENTRIES):
    random = np.random.default_rng(1)
    keys = random.standard_normal((2, 1, 2, entries, 8)).astype(np.float32)
    queries = random.standard_normal((2, 1, 4, entries, 8)).astype(np.float32)
    return keys, queries


def spec_of(scorer):
    if scorer in ("side_quest", "full"):
        return scorer
    return f"{scorer}(window=8) | budget(20)" if scorer in ("snapkv", "pyramid_kv", "nacl") else f"{scorer} | budget(20)"


def scorers():
    return [one for one in kvpolicy.scorers() if one != "lu_kv"]  # its table is not there


@pytest.mark.parametrize("scorer", scorers())
def test_a_policy_decides_by_what_was_given_or_not_at_all(scorer):
    keys, queries = arrays()
    spec = spec_of(scorer)
    if scorer in NOT_ARRAYS:
        for given in ({}, {"queries": queries}):
            with pytest.raises(ValueError, match=f"but it needs the signal {NOT_ARRAYS[scorer]}, which arrays do not have"):
                kvpolicy.decide(spec, keys=keys, **given)
        return
    if scorer in NUMBERS:
        with pytest.raises(ValueError, match=f"decide: {NUMBERS[scorer]} = none, but .* reads it"):
            kvpolicy.decide(spec, keys=keys)
        numbers = -np.random.default_rng(2).random((2, 1, 2, ENTRIES)).astype(np.float32)
        kept = kvpolicy.decide(spec, keys=keys, **{NUMBERS[scorer]: numbers})
        assert kept.report["unobserved"] == 0
        return
    scores = {"scores": np.zeros((2, 1, 2, ENTRIES), np.float32)} if scorer == "external" else {}
    rows = {} if scorer in WITHOUT_ROWS else {"queries": queries}
    assert kvpolicy.decide(spec, keys=keys, **rows, **scores).report["unobserved"] == 0
    if scorer not in ("full", "streaming_llm", "random"):
        with pytest.raises(ValueError, match="external|keys|query rows|queries"):
            kvpolicy.decide(spec, entries=ENTRIES)
    if rows:
        with pytest.raises(ValueError, match="queries = none, but"):
            kvpolicy.decide(spec, keys=keys)
        for shown in (20, ENTRIES):
            last = queries[:, :, :, -shown:]
            if scorer in SUMS and shown < ENTRIES:
                with pytest.raises(ValueError, match="queries = missing of 20 entries of layer 0 of sequence 0, but .* sums over the rows of all tokens"):
                    kvpolicy.decide(spec, keys=keys, queries=last)
            else:
                assert kvpolicy.decide(spec, keys=keys, queries=last).report["unobserved"] == 0


@pytest.mark.parametrize("scorer", [one for one in scorers() if one not in WITHOUT_ROWS and one not in NOT_ARRAYS and one not in NUMBERS and one != "intent_kv"])
def test_a_decision_without_observe_is_refused_and_there_is_none(scorer):
    keys, queries = arrays()
    evictor = kvpolicy.Evictor(spec_of(scorer), layers=2, query_heads=4, kv_heads=2, head_dim=8)
    evictor.append([ENTRIES])
    with pytest.raises(ValueError, match="^decide: (queries = missing|signals = nothing observed).*(queries|rows)"):
        evictor.decide(list(keys))
    with pytest.raises(ValueError, match="apply"):
        evictor.apply()
    for layer in range(2):
        evictor.observe(layer, queries[layer], keys[layer])
    assert evictor.decide(list(keys))[2]["unobserved"] == 0
    evictor.apply()
    assert evictor.counts[0] < ENTRIES


def test_h2o_takes_a_prompt_in_chunks_and_steps_but_no_gap():
    keys, queries = arrays()
    evictor = kvpolicy.Evictor("h2o | budget(40)", layers=1, query_heads=4, kv_heads=2, head_dim=8)
    show = lambda begin, end: evictor.observe(0, np.ascontiguousarray(queries[0, :, :, begin:end]), np.ascontiguousarray(keys[0, :, :, :end]))
    for begin, end in ((0, 16), (16, 30), (30, 31), (31, 32)):
        evictor.append([end - begin])
        show(begin, end)
        evictor.decide([np.ascontiguousarray(keys[0, :, :, :end])])
    evictor.append([8])
    with pytest.raises(ValueError, match="observe: queries = missing of 5 entries"):
        show(37, 40)
    with pytest.raises(ValueError, match="decide: queries = missing of 8 entries"):
        evictor.decide([keys[0]])
    show(32, 40)
    evictor.decide([keys[0]])


def test_a_ratio_counts_all_tokens_and_leaves_an_entry():
    keys, _ = arrays()
    evictor = kvpolicy.Evictor("streaming_llm | budget(ratio=0.5)", layers=1, query_heads=2, kv_heads=2, head_dim=8)
    for _ in range(412):
        evictor.append([1])
        evictor.decide()
        evictor.apply()
    assert evictor.counts == [206]
    assert kvpolicy.decide("knorm | budget(ratio=0.9)", keys=keys[:, :, :, :2]).counts.tolist() == [[[1, 1]], [[1, 1]]]
    assert kvpolicy.decide("knorm | budget(ratio=0.9, rounding=exact)", keys=keys[:, :, :, :2]).counts.sum() == 0


def test_lanes_that_a_threshold_empties_are_counted():
    keys, _ = arrays()
    assert kvpolicy.decide("knorm | at_least(100, unbounded=true)", keys=keys).report["emptied"] == 4
    assert kvpolicy.decide("knorm | sinks(1) | at_least(100, unbounded=true)", keys=keys).report["emptied"] == 0


def test_the_numbers_of_a_gate_decide_with_their_age():
    beta = -np.random.default_rng(3).random((2, 1, 2, ENTRIES)).astype(np.float32)
    made = kvpolicy.decide("trim_kv | budget(10)", log_beta=beta)
    age = ENTRIES - 1 - np.arange(ENTRIES)
    for layer in range(2):
        for head in range(2):
            score = age * beta[layer, 0, head]
            assert made.lane(layer, 0, head).tolist() == sorted(np.argsort(-score, kind="stable")[:10].tolist())
    carried = kvpolicy.decide("carried | recent(4) | at_least(0.5)", birth_score=-beta)
    kept = [e for e in range(ENTRIES) if e >= ENTRIES - 4 or -beta[1, 0, 1, e] >= 0.5]
    assert carried.lane(1, 0, 1).tolist() == kept
    with pytest.raises(ValueError, match="log_beta.shape = .3, 1, 2, 40., but layers, sequences, KV heads and entries are .2, 1, 2, 40."):
        kvpolicy.decide("trim_kv | budget(10)", keys=arrays()[0], log_beta=np.zeros((3, 1, 2, ENTRIES), np.float32))


def test_a_turn_decides_by_the_mean_of_its_last_rows():
    keys, queries = arrays()
    made = kvpolicy.decide("intent_kv(tail=8) | budget(10)", keys=keys, queries=queries)
    total = np.zeros(ENTRIES)
    for layer in range(2):
        for head in range(4):
            memory = queries[layer, 0, head, -8:].mean(axis=0)
            memory /= np.linalg.norm(memory)
            logits = keys[layer, 0, head // 2] @ memory / np.sqrt(8)
            weights = np.exp(logits - logits.max())
            total += weights / weights.sum()
    kept = made.array()
    assert (kept == kept[0, 0, 0]).all()
    free = [e for e in kept[0, 0, 0].tolist() if e < ENTRIES - 8]  # the span itself is forced
    assert len(kept[0, 0, 0]) == 10 and set(range(ENTRIES - 8, ENTRIES)) <= set(kept[0, 0, 0].tolist())
    assert free == sorted(np.argsort(-total[: ENTRIES - 8], kind="stable")[:2].tolist())
