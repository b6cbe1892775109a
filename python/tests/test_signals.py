# SPDX-License-Identifier: Apache-2.0
"""A signal that nobody gave is refused by its name, for every policy that the library has."""

import functools
import re

import numpy as np
import pytest

import kvpolicy

ENTRIES = 256  # after which those that decide every 32 or 256 tokens decide, too
BUDGET = 64  # more than every window
# The arguments that observe and decide have for signals, by the names of these.
OBSERVED = {one: one for one in ("keys", "values", "queries", "turn_queries", "log_beta", "birth_score")}
DECIDED = {"keys": "keys", "values": "values", "turn_queries": "turn_queries", "external": "scores", "value_norms": "value_norms", "query_model": "query_mean",
           "pre_rope_keys": "pre_rope_keys", "external_queries": "external_queries", "output_projection": "output_projection"}
LISTS = ("keys", "values", "turn_queries", "queries", "pre_rope_keys")  # of the arrays of layers


def arrays(entries=ENTRIES):
    random = np.random.default_rng(1)
    keys = random.standard_normal((2, 1, 2, entries, 8)).astype(np.float32)
    queries = random.standard_normal((2, 1, 4, entries, 8)).astype(np.float32)
    return keys, queries


@functools.cache
def every_array():
    """An array for each argument of observe and decide."""
    random = np.random.default_rng(2)
    keys, queries = arrays()
    numbers = {one: -random.random((2, 1, 2, ENTRIES)).astype(np.float32) for one in ("log_beta", "birth_score", "scores")}
    mean = random.standard_normal((2, 1, 4, 8)).astype(np.float32)
    more = dict(pre_rope_keys=keys[:, :, :, ::-1].copy(), external_queries=queries[:, :, :, :16], output_projection=random.standard_normal((2, 16, 4, 8)).astype(np.float32))
    return dict(**more, keys=keys, values=keys[..., ::-1].copy(), queries=queries, turn_queries=queries[:, :, :, -32:], value_norms=-numbers["scores"], query_mean=mean, **numbers)


def by_steps(spec, given):
    """The report of an Evictor's decision by the signals in `given`."""
    evictor = kvpolicy.Evictor(spec, layers=2, query_heads=4, kv_heads=2, head_dim=8)
    evictor.append([ENTRIES])
    show(evictor, given)
    return evictor.decide(**to_decide(spec, given))[2]


def decided_by(spec):
    """The arguments of decide for the signals that a policy reads there: of some they are the query rows of a prompt, too."""
    return {**DECIDED, **({"queries": "queries"} if "queries" in kvpolicy.policy_facts(spec).needs else {})}


def show(evictor, given):
    observed = [one for one in given if one in OBSERVED]
    for layer in range(2 if observed else 0):
        evictor.observe(layer, **{one: every_array()[one][layer] for one in observed})


def to_decide(spec, given):
    taken = decided_by(spec)
    made = {taken[one]: every_array()[taken[one]] for one in given if one in taken}
    if "query_mean" in made:
        made |= dict(query_square=np.tile(np.eye(8, dtype=np.float32), (2, 1, 4, 1, 1)), frequencies=[1.0, 0.1])
    return {name: list(one) if name in LISTS else one for name, one in made.items()}


def at_once(spec, given):
    """The report of kvpolicy.decide, which has no norms and no model of queries. The rows of a turn are its query rows."""
    names = {one: "queries" if one == "turn_queries" else DECIDED.get(one, one) for one in given}
    return kvpolicy.decide(spec, entries=ENTRIES, **{name: every_array()[name] for name in names.values()}).report


TAKEN = {by_steps: {**OBSERVED, **DECIDED}.keys(), at_once: OBSERVED.keys() | {"external"}}


def refusal(call, *given):
    with pytest.raises(ValueError) as raised:
        call(*given)
    return str(raised.value)


def named_in(message):
    """The signals that a refusal says are missing: `call: argument = value, but rule`."""
    argument, rule = message.split(": ", 1)[1].split(", but ", 1)
    name = argument.split(" = ")[0]
    return re.findall(r"\w+", re.split(r"needs (?:the )?signal |was shown: ", rule)[-1]) if name in ("signals", "policy") else [name.split(".")[0]]


def spec_of(scorer):
    """The scorer with a budget, or without one where its own parts leave no place for it. None where it has a table."""
    for spec in (f"{scorer} | budget({BUDGET})", scorer):
        try:
            return kvpolicy.policy_facts(spec).text and spec
        except ValueError as error:
            refused = str(error)
    assert re.search(r"(its table is|the table) \w+,? .*is given to the registry by its name$", refused), refused
    return None


SPECS = {scorer: spec for scorer in kvpolicy.scorers() if (spec := spec_of(scorer)) is not None}  # a table is refused by its name


@functools.cache
def asked_for(call, spec):
    """The signals for which the refusals ask one after another, and the last refusal: of one that arrays do not have."""
    given = []
    while True:
        try:
            return given, call(spec, given)
        except ValueError as error:
            message = str(error)
        missing = [one for one in named_in(message) if one in TAKEN[call] and one not in given]
        if not missing:
            return given, message
        given.append(missing[0])


@pytest.mark.parametrize("call", [by_steps, at_once])
@pytest.mark.parametrize("scorer", SPECS)
def test_a_policy_decides_by_what_was_given_or_not_at_all(scorer, call):
    spec = SPECS[scorer]
    needs = kvpolicy.policy_facts(spec).needs
    given, last = asked_for(call, spec)
    if isinstance(last, str):  # it reads what this call has no argument for
        takes = DECIDED if last.startswith("decide: ") else OBSERVED
        assert set(named_in(last)) & {one for each in needs for one in each.split(" or ")}, last
        assert " = null, but " in last or not set(named_in(last)) & set(given) & takes.keys(), last
        return
    assert last["unobserved"] == 0 and bool(given) == bool(needs), (given, needs)
    for one in given:
        message = refusal(call, spec, [each for each in given if each != one])
        assert one in named_in(message), message


@pytest.mark.parametrize("scorer", SPECS)
def test_a_decision_without_observe_is_refused_and_there_is_none(scorer):
    given, last = asked_for(by_steps, SPECS[scorer])
    if isinstance(last, str) or not set(given) - decided_by(SPECS[scorer]).keys() and "turn_queries" not in given:
        return
    evictor = kvpolicy.Evictor(SPECS[scorer], layers=2, query_heads=4, kv_heads=2, head_dim=8)
    evictor.append([ENTRIES])
    if last["triggered"] > 0:  # others keep everything
        message = refusal(lambda: evictor.decide(**to_decide(SPECS[scorer], given)))
        assert re.match("decide: (queries = missing|signals = nothing observed)", message) and set(named_in(message)) & set(given), message
        with pytest.raises(ValueError, match="apply"):
            evictor.apply()
    show(evictor, given)
    indptr, _, report = evictor.decide(**to_decide(SPECS[scorer], given))
    assert report["unobserved"] == 0
    evictor.apply()
    assert evictor.lane_counts.ravel().tolist() == np.diff(indptr).tolist()


@pytest.mark.parametrize("scorer", [one for one in SPECS if "queries" in asked_for(at_once, SPECS[one])[0]])
def test_the_last_rows_are_enough_unless_all_are_summed(scorer):
    facts = kvpolicy.policy_facts(SPECS[scorer])
    given = {one: every_array()[one] for one in asked_for(at_once, SPECS[scorer])[0]}
    decide = lambda: kvpolicy.decide(SPECS[scorer], **{**given, "queries": given["queries"][:, :, :, -BUDGET:]})
    if "attention_mass" in facts.needs:
        missed = f"queries = missing of {ENTRIES - BUDGET} entries of layer 0 of sequence 0, but .* sums over the rows of all tokens"
        with pytest.raises(ValueError, match=missed):
            decide()
    elif facts.window_rows > 0 and not isinstance(asked_for(at_once, SPECS[scorer])[1], str):
        assert decide().report["unobserved"] == 0


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
    with pytest.raises(ValueError, match=f"log_beta.shape = .3, 1, 2, {ENTRIES}., but layers, sequences, KV heads and entries are .2, 1, 2, {ENTRIES}."):
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


def test_query_rows_of_a_prompt_are_those_of_every_layer():
    keys, queries = arrays()
    evictor = kvpolicy.Evictor("late_attention | budget(110)", layers=2, query_heads=4, kv_heads=2, head_dim=8)
    evictor.append([ENTRIES])
    indptr, listed, _ = evictor.decide(list(keys), queries=list(queries))
    at_once = kvpolicy.decide("late_attention | budget(110)", keys=keys, queries=queries)
    assert np.array_equal(indptr, at_once.indptr) and np.array_equal(listed, at_once.indices)
    with pytest.raises(ValueError, match="decide: queries = 1, but the model has 2 layers"):
        evictor.decide(list(keys), queries=list(queries[:1]))


def kvzip_evictor():
    evictor = kvpolicy.Evictor("kvzip(sinks=2) | budget(20)", layers=2, query_heads=4, kv_heads=2, head_dim=8)
    evictor.append([40])
    random = np.random.default_rng(4)
    rows = lambda heads, count: random.standard_normal((2, 1, heads, count, 8)).astype(np.float32)
    return evictor, list(rows(2, 40)), rows(4, 10), rows(2, 10)


def test_rows_that_are_no_entries_say_which_entries_they_are_about():
    """KVzip's formula: rows 0 to 5 repeat entries 0 to 24, and rows 6 to 9 the others."""
    evictor, keys, queries, own = kvzip_evictor()
    spans = [(0, 25)] * 6 + [(25, 40)] * 4
    indptr, listed, _ = evictor.decide(keys, external_queries=queries, external_keys=own, external_spans=spans)
    scores = np.zeros((2, 2, 40))
    for layer, head, (begin, end, first, last) in ((a, b, c) for a in range(2) for b in range(2) for c in ((0, 25, 0, 6), (25, 40, 6, 10))):
        sinks = list(range(min(2, begin)))
        for row in range(first, last):
            seen = np.concatenate([keys[layer][0, head, sinks], keys[layer][0, head, begin:end], own[layer, 0, head, first : row + 1]])
            for query_head in (2 * head, 2 * head + 1):
                logits = seen @ queries[layer, 0, query_head, row] / np.sqrt(8)
                weights = np.exp(logits - logits.max())
                of_span = (weights / weights.sum())[len(sinks) : len(sinks) + end - begin]
                scores[layer, head, begin:end] = np.maximum(scores[layer, head, begin:end], of_span)
    scores[:, :, :2] = 2  # forced
    best = np.zeros(160, bool)
    best[np.argsort(-scores.ravel(), kind="stable")[:80]] = True
    for lane, kept in enumerate(best.reshape(4, 40)):
        assert listed[indptr[lane] : indptr[lane + 1]].tolist() == np.flatnonzero(kept).tolist()


@pytest.mark.parametrize("more, text", [
    (lambda queries, own: dict(external_keys=own), "decide: external_queries = none, but the rest of what is external is of its rows"),
    (lambda queries, own: dict(external_queries=queries[:, :, :3]), "decide: external_queries.shape = (2, 1, 3, 10, 8), but it is (2, 1, 4, 10, 8)"),
    (lambda queries, own: dict(external_queries=queries[0]), "decide: external_queries.shape = (1, 4, 10, 8), but it is (2, 1, 4, 0, 8)"),
    (lambda queries, own: dict(external_queries=queries, external_keys=own[:, :, :, :9]), "decide: external_keys.shape = (2, 1, 2, 9, 8), but it is (2, 1, 2, 10, 8)"),
    (lambda queries, own: dict(external_queries=queries, external_spans=[(0, 9)]), "decide: external_spans = 1, but there are 10 rows"),
    (lambda queries, own: dict(external_queries=queries, external_spans=[(0, 41)] * 10), "decide: external_queries.spans.end = 41 of row 0, but its span begins at 0, and there are 40 entries"),
    (lambda queries, own: dict(external_queries=queries, external_hidden_norms=np.ones((2, 1, 9), np.float32)), "decide: external_hidden_norms.shape = (2, 1, 9), but it is (2, 1, 10)"),
    (lambda queries, own: dict(external_queries=queries, external_log_sum_exps=np.ones((2, 1, 2, 10), np.float32)), "decide: external_log_sum_exps.shape = (2, 1, 2, 10), but it is (2, 1, 4, 10)"),
    (lambda queries, own: dict(external_queries=queries, output_projection=np.ones((2, 6, 2, 8), np.float32)), "decide: output_projection.shape = (2, 6, 2, 8), but it is (2, 6, 4, 8)"),
], ids=["alone", "heads", "axes", "keys", "spans", "end", "norms", "sums", "projection"])
def test_rows_that_do_not_fit_are_refused(more, text):
    evictor, keys, queries, own = kvzip_evictor()
    with pytest.raises(ValueError) as refused:
        evictor.decide(keys, **more(queries, own))
    assert str(refused.value).startswith(text)
    assert evictor.decide(keys, external_queries=queries)[2]["triggered"] > 0


def test_a_profile_with_radii_is_refused_when_the_evictor_is_made():
    with pytest.raises(ValueError, match="Evictor: policy = tri_attention, but it reads the radii of a query_model, and arrays have its mean and its covariance alone"):
        kvpolicy.Evictor("tri_attention | budget(20)", layers=1, query_heads=1, kv_heads=1, head_dim=8)


def test_stamps_are_of_the_rows_of_all_tokens():
    keys, queries = arrays(entries=64)
    decide = lambda rows: kvpolicy.decide("lazy_eviction | budget(40)", keys=keys, queries=rows)
    assert (decide(queries).counts == 40).all()
    with pytest.raises(ValueError, match="decide: queries = missing of 32 entries of layer 0 of sequence 0, but lazy_eviction goes by the rows of all tokens: observe them"):
        decide(queries[:, :, :, 32:])
