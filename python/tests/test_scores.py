# SPDX-License-Identifier: Apache-2.0
"""Scores that are written in Python, about arrays."""

import numpy as np
import pytest
import reference

import kvpolicy


def arrays(entries=100, heads=2, group=3, dims=16, sequences=2, layers=2):
    random = np.random.default_rng(5)
    keys, values = (random.standard_normal((layers, sequences, heads, entries, dims), dtype=np.float32) for _ in range(2))
    return keys, values, random.standard_normal((layers, sequences, heads * group, 8, dims), dtype=np.float32)


def far_from_the_mean(layer):
    """Entries whose keys point away from the mean key score high."""
    unit = layer.keys / np.linalg.norm(layer.keys, axis=-1, keepdims=True)
    return -(unit * unit.mean(axis=1, keepdims=True)).sum(axis=-1)


def test_the_highest_scores_are_kept():
    keys, _, _ = arrays()
    made = kvpolicy.decide(far_from_the_mean, keys=keys, budget=np.int64(20))
    for layer, sequence, head in np.ndindex(2, 2, 2):
        unit = keys[layer, sequence, head] / np.linalg.norm(keys[layer, sequence, head], axis=-1, keepdims=True)
        assert made.lane(layer, sequence, head).tolist() == reference.top(-(unit @ unit.mean(axis=0)), 20)


def test_protections_and_ratios_join_it():
    keys, _, _ = arrays()
    made = kvpolicy.decide(far_from_the_mean, parts="sinks(4) | recent(6)", budget=0.75, keys=keys)
    assert (made.counts == 25).all()
    for lane in made.array().reshape(-1, 25).tolist():
        assert lane[:4] == [0, 1, 2, 3] and lane[-6:] == list(range(94, 100))


def test_a_shorter_sequence_is_its_last_rows():
    keys, values, queries = arrays()
    seen = {}

    def newest(layer):
        seen[layer.index, layer.keys.shape[1]] = layer
        return layer.positions

    made = kvpolicy.decide(newest, keys=keys, values=values, queries=queries, lengths=[100, 5], budget=3)
    assert made.lane(1, 0).tolist() == [97, 98, 99] and made.lane(1, 1).tolist() == [2, 3, 4]
    short = seen[1, 5]
    assert (short.keys == keys[1, 1, :, 95:]).all() and (short.values == values[1, 1, :, 95:]).all()
    assert (short.queries == queries[1, 1, :, 3:]).all() and short.last_position == 4


def test_probabilities_are_those_of_attention():
    keys, _, queries = arrays(entries=30)
    kept = []

    def attended(layer):
        made = layer.probabilities()
        kept.append(made)
        return made.reshape(2, 3, 8, -1).sum(axis=(1, 2))

    made = kvpolicy.decide(attended, keys=keys, queries=queries, budget=10)
    expected = reference.probabilities(keys[0, 0], queries[0, 0])
    assert np.abs(kept[0] - expected).max() < 1e-5
    assert made.lane().tolist() == reference.top(expected[:3].sum(axis=(0, 1)), 10)


def test_probabilities_have_the_models_scale_and_cap():
    keys, _, queries = arrays(entries=30)
    kept = []

    def attended(layer):
        kept.append(layer.probabilities())
        return layer.positions

    kvpolicy.decide(attended, keys=keys, queries=queries, budget=10, scale=2.0, soft_cap=1.5)
    logits = 1.5 * np.tanh(2.0 * queries[0, 0, 4, 7].astype(np.float64) @ keys[0, 0, 1].T.astype(np.float64) / 1.5)
    assert np.abs(kept[0][4, 7] - np.exp(logits) / np.exp(logits).sum()).max() < 1e-5


def test_an_empty_sequence_is_not_asked_about():
    keys, _, _ = arrays()
    made = kvpolicy.decide(far_from_the_mean, keys=keys, lengths=[100, 0], budget=20)
    assert made.counts[0].tolist() == [[20, 20], [0, 0]]


def refused(text, score, **given):
    with pytest.raises(ValueError) as error:
        kvpolicy.decide(score, **{"keys": arrays()[0], "budget": 20, **given})
    assert str(error.value) == text


def test_what_is_wrong_is_one_sentence():
    def raises(layer):
        raise KeyError("gate")

    def nan(layer):
        return np.where(layer.positions == 3, np.nan, 1.0)

    def flat(layer):
        return layer.keys.sum()

    def text(layer):
        return "high"

    refused("decide: score = raises, but for layer 0 it raised KeyError: 'gate'", raises)
    refused("decide: score = nan, but for layer 0 it gave NaN for 2 entries", nan)
    refused("decide: score = flat, but for layer 0 it gave the shape (), and [KV head, entry] is (2, 100)", flat)
    refused("decide: score = text, but for layer 0 it gave a str and no array of numbers", text)
    refused("decide: keys = none, but a score in Python is made from keys", nan, keys=None, entries=5)
    refused("decide: budget = -1, but it is a number of entries, or below 1 the part that is dropped", nan, budget=-1)
    refused("decide: policy = int, but it is a text, or a function that scores a layer", 7)
    refused("decide: score = <lambda>, but for layer 0 it raised ValueError: Layer.probabilities: queries = none, but probabilities are of query rows: ask for rows=",
            lambda layer: layer.probabilities())
