#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks oracles.py against numbers worked by hand and against plain loops, and rehearses systems_test.py without kvreplay.

In the rehearsal each oracle answers its own cases, rounded to float32, so that every case can be written and compared; and an answer
that is wrong in one entry, score or share is found. Needs numpy; without it every test is skipped, and says so.
"""

import itertools
import math
import unittest

import oracles
import reference_test
import systems_test
from oracles import np, pyramid_shares, round_shares
from systems_test import SYSTEMS, Decision, small
from traces import main


class Shape:
    """One layer and KV head, with logits that are products."""

    layers, kv_heads, d, cap, sinks, scale = 1, 1, 1, 0.0, None, 1.0

    def __init__(self, keys, queries):
        self.keys, self.queries = np.array(keys, float), np.array(queries, float)
        self.query_heads = self.group = self.queries.shape[1]
        self.n = self.keys.shape[2]
        self.positions = np.arange(self.n)


for name in ("logits_of", "sink", "weights", "logits", "softmax", "heads_of"):
    setattr(Shape, name, getattr(systems_test.Trace, name))


def close(self, found, expected, digits=6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.6 * 10.0**-digits)


@unittest.skipIf(np is None, "there is no numpy")
class Worked(unittest.TestCase):
    def test_shares_of_a_pyramid(self):
        self.assertEqual(pyramid_shares(4, 2000, 512, 8, 20, "exact"), [991, 672, 352, 33])
        self.assertEqual(pyramid_shares(4, 2000, 512, 8, 20, "factory"), [983 + 8, 664 + 8, 345 + 8, 26 + 8])
        self.assertEqual(pyramid_shares(4, 2000, 512, 8, 20, "kvpress"), [998, 674, 350, 26])  # 512/20 = 25.6 to 998.4
        self.assertEqual(pyramid_shares(1, 100, 40, 8, 20, "exact"), [40])
        self.assertEqual(pyramid_shares(1, 100, 40, 8, 20, "factory"), [40])
        self.assertEqual(pyramid_shares(3, 100, 4, 8, 20, "exact"), [8, 8, 8])
        self.assertEqual(pyramid_shares(3, 60, 50, 8, 20, "exact"), [60, 50, 40])  # 2·42 − 2.1 is more than the prefix of 52
        self.assertEqual(pyramid_shares(3, 60, 50, 8, 20, "factory"), [60, 50, 40])
        self.assertEqual(pyramid_shares(2, 300, 40, 32, 20, "kvpress"), [40, 40])  # 40/20 is no window

    def test_every_pyramid_holds_its_total(self):
        for layers, n, window, beta in itertools.product(range(1, 9), (40, 97, 300), (1, 8, 31), (1, 2, 20, 33)):
            for budget in range(window, n):
                shares = pyramid_shares(layers, n, budget, window, beta, "exact")
                self.assertEqual(sum(shares), layers * budget)
                self.assertTrue(all(window <= one <= n for one in shares))

    def test_rounding(self):
        self.assertEqual(round_shares([990.8, 671.6, 352.4, 33.2], 2048), [991, 672, 352, 33])
        self.assertEqual(round_shares([1.5, 1.5, 1.0], 4), [2, 1, 1])
        self.assertEqual(round_shares([2.9999999999, 1.0], 4), [3, 1])

    def test_scores_of_a_window(self):
        """The worked example of one head, a window of 2 and 8 entries."""
        keys = np.array([0, 1, 2, 0, 3, 1, 0, 1], float).reshape(1, 1, 8, 1)
        queries = np.array([0, 0, 0, 0, 0, 0, 1, .5]).reshape(1, 1, 8, 1)
        trace = Shape(keys, queries)
        raw = [.093870, .184549, .385230, .093870, .855208, .184549]
        for pool, expected in (("none", raw), ("avg:3", [.092806, .221216, .221216, .444769, .377876, .346586]),
                               ("max:3", [.184549, .385230, .385230, .855208, .855208, .855208])):
            found = oracles.window_scores(trace, 0, 0, 2, pool, "sum", "mean")
            close(self, found[:6], expected)
            self.assertEqual(found[6:].tolist(), [0, 0])
        self.assertEqual([Decision([oracles.window_scores(trace, 0, 0, 2, pool, "sum", "mean")], [oracles.last_ones(8, 2)], [4]).kept()[0]
                          for pool in ("none", "avg:3", "max:3")], [[2, 4, 6, 7], [3, 4, 6, 7], [3, 4, 6, 7]])

    def test_scores_of_a_window_are_those_of_reference_test(self):
        for seed, heads in enumerate(systems_test.GROUPS):
            trace, live = small(seed, 60, heads, layers=1), np.arange(60)
            for pool, rows, group in (("max:7", "sum", "mean"), ("avg:5", "mean", "max"), ("none", "max", "sum")):
                for head in range(heads[1]):
                    close(self, oracles.window_scores(trace, 0, head, 9, pool, rows, group),
                          reference_test.snapkv_scores(trace, 0, head, live, live, 9, pool, rows, group), 12)

    def test_observed_attention_of_three_entries(self):
        third = math.log(2)
        trace = Shape(np.array([0, third, 0]).reshape(1, 1, 3, 1), np.ones((1, 1, 3, 1)))
        # rows (1), (1/3 2/3), (1/4 1/2 1/4)
        close(self, oracles.observed_attention(trace, 0, 0, "mean"), [(1 + 1 / 3 + 1 / 4) / 3, (2 / 3 + 1 / 2) / 2, 1 / 4], 12)
        mass = np.array([[[3.0, 4.0, 5.0]]])
        close(self, oracles.observed_attention(trace, 0, 0, "mean", mass), [1, 2, 5], 12)

    def test_put_first(self):
        none = np.zeros(5, bool)
        made, gap = oracles.put_first(np.array([.4, .1, .3, .05, .2]), none, 3, [0.0] * 5)
        self.assertEqual(np.flatnonzero(np.isinf(made)).tolist(), [0, 2, 4])
        self.assertAlmostEqual(gap, .5)
        norms, scores = np.array([1, 1, 4, 2]), np.array([.5, .3, .15, .05])
        made, _ = oracles.put_first(scores, none[:4], 1, (scores + 1e-4) * norms)
        self.assertEqual(Decision([made], [none[:4]], [2]).kept(), [[0, 2]])

    def test_pools_ties_and_nan(self):
        nan, none = float("nan"), np.zeros(3, bool)
        both = [[0, 1]]
        self.assertEqual(Decision([[3, 1, 0], [2, 5, 4]], [none] * 2, [1, 1], both).kept(), [[], [1, 2]])
        self.assertEqual(Decision([[3, 1, 0], [2, 5, 4]], [none] * 2, [1, 1]).kept(), [[0], [1]])
        self.assertEqual(Decision([[3, 1, 0], [2, 5, 4]], [np.array([False, False, True])] * 2, [2, 1], both).kept(), [[2], [1, 2]])
        self.assertEqual(Decision([[1, 1, 1], [1, 1, 1]], [none] * 2, [2, 2], both).kept(), [[0, 1, 2], [0]])
        self.assertEqual(Decision([[nan, -np.inf, nan], [nan, nan, 0]], [none] * 2, [2, 1], both).kept(), [[0, 1], [2]])
        self.assertEqual(Decision([[3, 1, 0]], [np.ones(3, bool)], [1]).kept(), [[0, 1, 2]])  # forced beyond what it may keep

    def test_numbers(self):
        self.assertEqual(oracles.mix(0), 0xE220A8397B1DCDAF)  # the generator's first number of the seed 0
        self.assertEqual(oracles.mix(1234567), 6457827717110365317)

    def test_keydiff(self):
        np.testing.assert_allclose(oracles.keydiff(np.array([[1.0, 0], [2, 0], [0, 3]])), [-0.894427, -0.894427, -0.447214], rtol=1e-5)
        self.assertEqual(list(oracles.keydiff(np.array([[1.0, 0], [0, 0]]))), [-1, 0])

    def test_a_lane_that_grows(self):
        class Older(oracles.Lane):
            def score(self, live):
                return -live.astype(float)

        def kept_of(*arguments, **fields):
            kept, events, there, forced, scores, gap = oracles.in_parts(Older(small(0, 6), 0, 0, **fields), *arguments)
            return kept, events, there.tolist(), np.flatnonzero(forced).tolist(), scores.tolist(), gap

        self.assertEqual(kept_of([2, 3, 4], 2), ([0, 1], [(2, 2), (3, 3)], [0, 1, 3], [], [0, -1, -3], 1))
        self.assertEqual(kept_of([2, 3, 4, 5, 6], 2, 1, 4.0), ([0, 1], [(3, 2), (3, 3), (5, 4), (5, 5)], [0, 1, 4, 5], [], [0, -1, -4, -5], 1 / 4))
        self.assertEqual(kept_of([3, 4, 5], 3, 0, 1.0, tail=2), ([0, 3, 4], [(3, 1), (4, 2)], [0, 2, 3, 4], [2, 3], [0, -2, -3, -4], 1))
        self.assertEqual(kept_of([4], 1, 0, 1.0, sinks=2)[0], [0, 1])

    def test_redundancy(self):
        keys = np.array([[1, 0], [1, .1], [0, 1], [1, 0], [.6, .8]])
        found, margin = oracles.redundancy(keys)
        close(self, found, [.236448, .244682, .168447, .209710, .140713])
        close(self, np.log(found / found[4]), [.519007, .553241, .179901, .399007, 0])
        close(self, [margin], [.1], 6)  # 0.6 is the least cosine that is taken
        close(self, .07 * np.array([.05, .10, .30, .05, .50]) - .93 * found, [-.21640, -.22055, -.13566, -.19153, -.09586], 5)
        self.assertEqual(oracles.redundancy(np.eye(3))[0].tolist(), [1 / 3] * 3)
        every, _ = oracles.redundancy(np.array([[1.0, 0], [2, 0], [0, 3]]), retain="none")
        close(self, every, np.array([math.exp(1 / 3)] * 2 + [1]) / (2 * math.exp(1 / 3) + 1), 6)

    def test_r_kv_of_two_heads(self):
        """The larger logit of the two rules: (0 1 2), of rows that are alike; the window is no part of its softmax."""
        trace = Shape(np.array([0, 1, 2, 5]).reshape(1, 1, 4, 1), np.array([[1.0] * 4, [-1.0] * 4]).reshape(1, 2, 4, 1))
        trace.heads_of = lambda head: (0, 1)
        lane = oracles.RKv(trace, 0, 0, window=1, pool="none", **{"lambda": 1})
        lane.observe(np.arange(4), np.arange(4))
        self.assertEqual(lane.forced(np.arange(4)).tolist(), [False, False, False, True])
        close(self, lane.score(np.arange(4)), [*np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), 0])

    def test_q_filters(self):
        trace = Shape(np.array([[1, 2], [0, -1], [3, 0]]).reshape(1, 1, 3, 2), np.ones((1, 1, 3, 2)))
        trace.filters = np.array([[[1.0, -2.0]]])
        self.assertEqual(oracles.QFilters(trace, 0, 0).score(np.array([0, 2])).tolist(), [3, -3])

    def test_tri_attention(self):
        """Two pairs that turn by 1 and 0.1, keys before RoPE at 2, 5 and 9, offsets 1, 2 and 4 from 10."""
        raw, positions, turns = np.array([[1.0, .2, .3, -.5], [-.4, 1.0, .6, .2], [.1, .1, -1.2, .9]]), np.array([2, 5, 9]), np.array([1, .1])
        mean, radius = np.array([1.0, -.3, .5, .8]), np.array([1.3, 1.0])
        expected = {"mean": [-.276727, -.210791, 1.033318], "max": [1.170128, .068795, 1.845519]}
        for style, order in (("neox", [0, 1, 2, 3]), ("gptj", [0, 2, 1, 3])):
            turned = oracles.pairs_of(raw, "neox") * np.exp(1j * positions[:, None] * turns)
            keys = np.concatenate([turned.real, turned.imag], axis=1)[:, order]
            for aggregate, scores in expected.items():
                close(self, oracles.tri_attention(keys, mean[order], radius, turns, 10, 3, style, aggregate), scores)
            trace = Shape(keys.reshape(1, 1, 3, 4), np.ones((1, 1, 3, 4)))
            trace.query_mean, trace.query_radius, trace.turns = mean[order].reshape(1, 1, 4), radius.reshape(1, 1, 2), turns
            trace.positions, trace.style, trace.prompt = positions, style, 0
            lane = oracles.TriAttention(trace, 0, 0, offsets=3)
            close(self, lane.score(np.arange(3)), [-.761109, -.651693, 1.412802])
            trace.prompt = 3
            close(self, lane.score(np.arange(3))[1:], [-1, 1])  # of who is not forced
            self.assertEqual(lane.forced(np.arange(3)).tolist(), [True, False, False])

    def test_a_union_of_heads_is_the_best_of_the_maximum(self):
        dice = np.random.default_rng(1)
        for _ in range(2000):
            heads, n = dice.integers(1, 7), dice.integers(1, 13)
            kept, scores = dice.integers(1, n + 1), dice.random((heads, n))
            union = {j for one in scores for j in oracles.ranking(one, range(n))[:kept]}
            best = scores.max(axis=0)
            self.assertEqual(oracles.ranking(best, sorted(union))[:kept], oracles.ranking(best, range(n))[:kept])

    def test_a_ring_of_rows(self):
        trace, rows = Shape(np.zeros((1, 1, 4, 1)), np.zeros((1, 1, 4, 1))), ([.6, .4], [.2, .3, .5], [.1, .1, .2, .6])
        for history, expected in ((2, [.3, .4, .7, .6]), (3, [.9, .8, .7, .6]), (9, [.9, .8, .7, .6]), (1, rows[2])):
            lane = oracles.Scissorhands(trace, 0, 0, history=history, recent=1)
            for t, row in enumerate(rows, 1):
                lane.see(t, np.arange(t + 1), np.array(row))
            close(self, lane.score(np.arange(4)), expected)
            self.assertEqual(lane.forced(np.arange(4)).tolist(), [False, False, False, True])

    def test_a_ring_of_all_rows_is_the_mass(self):
        trace, live = small(1, 40, (8, 2)), np.arange(40)
        lane = oracles.Scissorhands(trace, 1, 1, history=40)
        lane.observe(live, live)
        close(self, lane.score(live), reference_test.h2o_scores(trace, 1, 1, live, live), 12)

    def test_when_an_entry_was_last_looked_at(self):
        trace, live = Shape(np.zeros((1, 1, 7, 1)), np.zeros((1, 1, 7, 1))), np.arange(3)
        for combine, expected in (("product", [.696991, .900332, .128234]), ("sum", [1.669719, 1.900332, .776289])):
            lane = oracles.LazyEviction(trace, 0, 0, alpha=.1, window=2, combine=combine)
            for t, row in enumerate(([.5, .05, .2], [.05, .05, .3], [.2, .05, .02], [.01, .4, .05]), 3):
                lane.see(t, live, np.array(row))
            self.assertEqual((lane.last[:3].tolist(), lane.interval[:3].tolist()), ([5, 6, 4], [3, 5, 1]))
            close(self, [lane.margin], [.5])
            close(self, lane.score(np.array([0, 1, 2, 6]))[:3], expected)  # at the position 6
        self.assertEqual([lane.due(np.arange(n)) for n in (2, 3, 4)], [True, False, True])

    def test_a_measure_of_keys_and_values(self):
        """Rows (1), (.5 .5), (.25 .25 .5) over values of the norms 1, 2 and 0: (1), (1/3 2/3), (1/3 2/3 0)."""
        trace, live = Shape(np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 1))), np.arange(3)
        trace.values, trace.positions = np.array([1.0, -2, 0]).reshape(1, 1, 3, 1), np.array([0, 1, 5])
        for fields, expected in (({}, [1.75, .75, .5]), ({"values": True}, [5 / 3, 4 / 3, 0]), ({"by_age": True}, [1.75 / 6, .15, .5]),
                                 ({"values": True, "by_age": True}, [5 / 18, 4 / 15, 0])):
            lane = oracles.KeysValues(trace, 0, 0, grace=1, **fields)
            for t, row in enumerate(([1], [.5, .5], [.25, .25, .5])):
                lane.see(t, live[: t + 1], np.array(row))
            close(self, lane.score(live), expected)
            self.assertEqual(lane.forced(live).tolist(), [False, False, True])

    def test_blocks(self):
        close(self, oracles.block_means(np.array([.9, .1, .4, .5, .2]), 2), [.5, .5, .45, .45, .2])
        self.assertEqual(oracles.with_their_blocks(np.array([False, True, False, False, True]), 2).tolist(), [True, True, False, False, True])

    def test_blocks_that_go(self):
        """Seven entries in blocks of two, the last of them protected: of the logits 3 0, 1 1 and 0 2 the middle one goes; of six, half of two."""
        trace = Shape(np.array([3, 0, 1, 1, 0, 2, 0]).reshape(1, 1, 7, 1), np.ones((1, 1, 7, 1)))
        lane, live = oracles.NeuralGc(trace, 0, block=2, window=1, every=7), np.arange(7)
        lane.observe(live, live)
        e = np.exp([3, 0, 1, 1, 0, 2, 0])
        close(self, lane.score(live)[::2], [one / e.sum() for one in ((e[0] + 1) / 2, e[2], (1 + e[5]) / 2, 1)])
        self.assertEqual([lane.room(np.arange(n), None) for n in range(1, 8)], [0, 0, 2, 2, 2, 2, 4])
        self.assertEqual(oracles.in_parts(oracles.NeuralGc(trace, 0, block=2, window=1, every=7), [3, 7], None)[:2], ([0, 1, 4, 5, 6], [(6, 2), (6, 3)]))

    def test_chunks_that_stay(self):
        """.9 .1 .4 .5 .2 in chunks of two: a half of three is one, and it may be the shorter one."""
        trace, live = Shape(np.zeros((1, 1, 5, 1)), np.zeros((1, 1, 5, 1))), np.arange(5)
        for last, scores, kept in ((.2, [.5, .5, .45, .45, .2], [0, 1]), (.8, [.5, .5, .45, .45, .8], [4])):
            trace.given = np.array([.9, .1, .4, .5, last])
            lane = oracles.ChunkKv(trace, 0, chunk=2, scores="mine")
            close(self, lane.score(live), scores)
            self.assertEqual(Decision([lane.score(live)], [lane.forced(live)], [lane.room(live, 2, 0.5)]).kept(), [kept])
            self.assertEqual([lane.room(live, budget) for budget in range(6)], {4: [1, 1, 1, 1, 3, 5], 0: [2, 2, 2, 2, 4, 5]}[kept[0]])
        lane = oracles.ChunkKv(trace, 0, sinks=1, chunk=2, scores="mine")
        close(self, lane.score(live)[:2], [.05, .05])
        self.assertEqual(lane.forced(live).tolist(), [True, True, False, False, False])

    def test_blocks_that_represent_those_that_go(self):
        """Twelve entries in blocks of two, of which the scores keep 0 and 2: the words of six ones are 10 11 11 00 01 00, their anchor 00."""
        trace, live = Shape(np.zeros((1, 1, 12, 1)), np.zeros((1, 1, 12, 1))), np.arange(12)

        def lane(**fields):
            made = oracles.OpenVino(trace, 0, start=0, recent=0, block=2, **fields)
            made.mass = np.array([.9, .1, .5, .4, .8, .7, .2, .3, .05, .6, .02, .01])
            return made

        def blocks(entries):
            self.assertEqual(entries, sorted([2 * (j // 2) for j in entries[::2]] + [2 * (j // 2) + 1 for j in entries[::2]]))
            return [j // 2 for j in entries[::2]]

        one, pairs = lane(crush=2), live.reshape(6, 2)
        close(self, one.score(live, 4)[::2], [1, .9, 1.5, .5, .65, .03])
        words = one.words(pairs)
        self.assertEqual(words.astype(int).tolist(), [[1, 0], [1, 1], [1, 1], [0, 0], [0, 1], [0, 0]])
        self.assertEqual([one.anchor(words).tolist(), lane(anchor="alternating").anchor(words).tolist()], [[False, False], [False, True]])
        self.assertEqual(one.anchor(words[:3]).tolist(), [True, True])  # 3 and 2 of 3
        for crush, expected in enumerate(([0, 2], [0, 2, 3], [0, 2, 3, 4], [0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 2])):  # of four no five represent them
            self.assertEqual(blocks(lane(crush=crush).kept(live, 4)), expected)
        self.assertEqual([one.representatives(pairs, [4]), lane(crush=1).representatives(pairs, [4, 5])], [[], [5]])
        for anchor, expected in (("mean", [3, 4]), ("zeros", [3, 4]), ("ones", [1, 3]), ("alternating", [4, 3])):
            self.assertEqual(lane(crush=2, anchor=anchor).representatives(pairs, [1, 3, 4, 5]), expected)
        for seed in range(8):
            ones = [oracles.uniform(seed, 0, 0, 0, place) >= 0.5 for place in (0, 1)]
            self.assertEqual(lane(anchor="random", seed=seed).anchor(words).tolist(), ones)
        for budget, expected in ((0, []), (1, []), (2, [2]), (5, [0, 2]), (11, [0, 1, 2, 3, 4]), (12, [*range(6)]), (20, [*range(6)])):
            self.assertEqual(blocks(lane().kept(live, budget)), expected)
        held = oracles.OpenVino(trace, 0, sinks=1, start=1, recent=4, block=3)
        self.assertEqual([held.blocks(live).tolist(), held.room(live, 8), held.room(live, 12), held.room(live, 0)], [[[3, 4, 5]], 0, 3, 0])

    def test_blocks_that_cover(self):
        """Of 4.58 the sums 1.5 1 .9 .65 .5 .03 reach 1.5 2.5 3.4 4.05 4.55; keys that point away from each other or nowhere."""
        trace, live = Shape(np.zeros((1, 1, 12, 1)), np.zeros((1, 1, 12, 1))), np.arange(12)
        for cover, budget, first in ((.3, 8, [2]), (.33, 8, [0, 2]), (.5, 8, [0, 2]), (.9, 12, [0, 1, 2, 3, 4]), (.9, 8, [0, 1, 2, 4]), (.9, 5, [0, 2]),
                                     (.9, 1, []), (1, 10, [0, 1, 2, 3, 4])):
            lane = oracles.OpenVino(trace, 0, start=0, recent=0, block=2, adaptive=True, cover=cover)
            lane.mass = np.array([.9, .1, .5, .4, .8, .7, .2, .3, .05, .6, .02, .01])
            self.assertEqual(np.flatnonzero(np.isinf(lane.score(live, budget)[::2])).tolist(), first)
        close(self, [lane.margin], [1 - 4.05 / 4.58])  # the last reached before the fifth, which comes first whether it reaches the cover or not
        trace = Shape(np.array([[1, 0], [1, 0], [-1, 0], [0, 0]]).reshape(1, 1, 4, 2), np.zeros((1, 1, 4, 1)))
        lane = oracles.OpenVino(trace, 0, start=0, recent=0, block=2, adaptive=True)
        close(self, lane.diversity(np.arange(4).reshape(2, 2)), [-2 / 4, 0])  # of 0 1 -1 0, 1 0 -1 0 and -1 -1 0 0 nothing counts below 0, 0 and -1/2

    def test_diversity_against_loops(self):
        for seed, (heads, size) in enumerate((((2, 2), 1), ((8, 2), 4), ((8, 1), 5))):
            trace = small(seed, 40, heads, layers=2)
            lane = oracles.OpenVino(trace, 1, start=3, recent=6, block=size, adaptive=True)
            entries = [j for j in range(40) if j // size * size >= 3 and (j // size + 1) * size <= 34]
            self.assertEqual(lane.blocks(np.arange(40)).ravel().tolist(), entries)
            expected = dict.fromkeys(range(len(entries) // size), 0.0)
            for head in range(trace.kv_heads):
                keys = trace.keys[1, head]
                for i in entries:
                    row = [0.0 if i == j else sum(keys[i] * keys[j]) / math.sqrt(sum(keys[i] ** 2) * sum(keys[j] ** 2)) for j in entries]
                    for place, one in enumerate(row):
                        if one >= sum(row) / len(row):
                            expected[place // size] -= one / len(entries) / trace.kv_heads
            close(self, lane.diversity(lane.blocks(np.arange(40))), list(expected.values()), 12)

    def test_masses_of_all_heads(self):
        trace, live = small(3, 30, (8, 2)), np.arange(30)
        for score, rows in (("sum", 1), ("norm_sum", 30 - live)):
            lane = oracles.OpenVino(trace, 2, start=2, recent=2, block=1, score=score)
            lane.observe(live, live)
            mass = sum(reference_test.h2o_scores(trace, 2, head, live, live) for head in (0, 1)) / rows
            close(self, lane.score(live, 20)[2:28], mass[2:28], 12)
            close(self, [(lane.mass * rows).sum()], [8 * 30], 9)

    def test_surprise_of_two_turns(self):
        """2.0 .5 1.5, then 1.6 1.0: decayed 1.8 .45 1.35; two are put first, and one is the most recent."""
        turns = oracles.sir_llm([2.0, .5, 1.5, 1.6, 1.0], [3, 5], 3, 0, 2, 0.9, np.arange(5))
        self.assertEqual([kept for _, _, _, kept, _ in turns], [[0, 1, 2], [0, 3, 4]])
        self.assertEqual(turns[1][2].tolist(), [np.inf, 1, 2, np.inf, 4])
        turns = oracles.sir_llm([2.0, .5, 1.5, 1.6, 1.0], [3, 5], 3, 1, 2, 0.5, np.arange(5))
        self.assertEqual(turns[1][3], [0, 3, 4])  # a sink, 1.6 and 1.0 before .75 and .25
        turns = oracles.sir_llm([2.0, .5, 1.5, 1.6, 1.0], [5], 2, 0, 0, 1, np.arange(5))
        self.assertEqual(turns[0][3], [3, 4])

    def test_a_proxy_and_a_number_drawn(self):
        """Four places of which one is drawn: the best three of .4 .1 .3 .05 .2, then one of two by its number."""
        trace = Shape(np.log([.4, .1, .3, .05, .2]).reshape(1, 1, 5, 1), np.ones((1, 1, 5, 1)))
        scores, _ = oracles.nacl(trace, 0, 0, 4, 1, 0.25, "mean", 42, np.zeros(5, bool))
        drawn = [oracles.uniform(42, 0, 0, 0, j) for j in range(5)]
        self.assertEqual(scores.tolist(), [np.inf, drawn[1], np.inf, drawn[3], np.inf])
        self.assertEqual(Decision([scores], [np.zeros(5, bool)], [4]).kept(), [sorted([0, 2, 4, max((1, 3), key=lambda j: drawn[j])])])

    def test_windows_of_fast_kvzip(self):
        self.assertEqual([oracles.fast_kvzip_window(n) for n in (1, 49, 50, 99, 100, 31999, 32000, 10**6)], [0, 0, 1, 1, 2, 639, 4096, 4096])
        self.assertEqual(oracles.fast_kvzip_window(40000, 7), 7)

    def test_shares_of_a_table(self):
        self.assertEqual(oracles.lu_kv_shares([[.5, .5], [.5, 0], [.9, .95], [1, 1], [-1, 2]], 5), [3, 2, 3, 5, 1, 1, 1, 1, 5, 1])
        self.assertEqual(oracles.lu_kv_shares([[.25, .5, .75]], 10), [8, 5, 2])  # 7.5 5 2.5 of 15: the lower half
        self.assertEqual([oracles.lu_kv_row(ratio) for ratio in (0, .004, .01, .015, .025, .5, .99, 1)], [0, 0, 0, 1, 1, 49, 98, 98])

    def test_locret_by_hand(self):
        numbers = [5, 1, 4, 2, 3, 9, 0]
        self.assertEqual(oracles.locret(numbers, 2, 1, 2), ([0, 2, 5, 6], [(4, 1), (4, 3), (4, 4)], [0, 1, 2, 3, 4]))
        # {0 1}, then 2 3 with 3 forced: {0 3}, then 4 by number alone: {0 4}
        self.assertEqual(oracles.locret(numbers, 2, 1, 2, 2), ([0, 4, 5, 6], [(3, 1), (3, 2), (4, 3)], [0, 3, 4]))
        self.assertEqual(oracles.locret(numbers, 2, 1, 7), (list(range(7)), [], None))
        self.assertEqual(oracles.locret(numbers, 1, 3, 0, 3), ([5], [(5, 0), (5, 1), (5, 2), (6, 3), (6, 4), (6, 6)], [3, 4, 5, 6]))

    def test_external_rows_against_loops(self):
        for seed, (heads, recent, pool) in enumerate((((8, 2), 6, "max:7"), ((2, 2), 0, "none"), ((8, 1), 30, "avg:3"))):
            trace = small(seed, 40, heads, layers=1)
            rows = np.random.default_rng(seed).normal(0, 1.2, (1, heads[0], 3, trace.d))
            trace.query_rows = rows
            for head in range(heads[1]):
                mean = [0.0] * 40
                for h in trace.heads_of(head):
                    for r in range(3):
                        z = [sum(rows[0, h, r, d] * trace.keys[0, head, j, d] for d in range(trace.d)) / math.sqrt(trace.d) for j in range(40)]
                        total = sum(map(math.exp, z))
                        mean = [m + math.exp(one) / total / 3 / trace.group for m, one in zip(mean, z)]
                kept = mean[: 40 - recent]
                kind, _, width = pool.partition(":")
                half = int(width or 1) // 2
                near = [[kept[i] for i in range(j - half, j + half + 1) if 0 <= i < len(kept)] for j in range(len(kept))]
                expected = [max(one) if kind == "max" else sum(one) / int(width or 1) for one in near]
                found = oracles.external_row_scores(trace, 0, head, recent, pool, "mean", "mean")
                close(self, found, expected + [0.0] * recent, 12)
                lse = np.log(np.exp(np.einsum("lhrd,ljd->lhrj", rows, trace.keys[:, head]) / math.sqrt(trace.d)).sum(axis=-1))
                close(self, oracles.external_row_scores(trace, 0, head, recent, pool, "mean", "mean", lse), found, 12)


# The rehearsal ----------------------------------------------------------------------------------------------------------------
def answer(decision):
    """The result that the program would give, of numbers in float32."""
    kept = decision.kept()
    result = {"keep.offsets": ([len(kept) + 1], [0, *itertools.accumulate(map(len, kept))]), "keep.ordinals": ([sum(map(len, kept))], sum(kept, []))}
    scores = np.array([np.where(live & ~forced, one, -np.inf) for one, live, forced in zip(decision.scores, decision.live, decision.forced)])
    result["scores"] = (list(scores.shape), scores.astype(np.float32).ravel().tolist())
    if isinstance(decision.shares, list):
        result["shares"] = ([len(decision.shares)], list(decision.shares))
    if decision.events is not None:
        result["events"] = ([len(decision.events), 3], [number for event in decision.events for number in event])
    if decision.turns is not None:
        result["turn.offsets"] = ([], [0, *itertools.accumulate(map(len, decision.turns))])
        result["turn.ordinals"] = ([], sum(decision.turns, []))
    return result, {"logical_kept": sum(map(len, kept)) * decision.copies, "nan_scores": int(np.isnan(scores).sum())}


def another_entry(decision, result):
    """One entry of a segment goes, and the worst that was dropped comes; none if all cuts are ties."""
    kept = decision.kept()
    for s, one in enumerate(kept):
        out = [j for j in np.flatnonzero(decision.live[s]).tolist() if j not in one and np.isfinite(decision.scores[s][j])]
        free = [j for j in one if not decision.forced[s][j] and np.isfinite(decision.scores[s][j])]
        if not out or not free:
            continue
        worst, best = min(out, key=lambda j: decision.scores[s][j]), max(free, key=lambda j: decision.scores[s][j])
        if decision.scores[s][best] - decision.scores[s][worst] < 1e-3 * abs(decision.scores[s][best]):
            continue
        at = result["keep.offsets"][1][s]
        result["keep.ordinals"][1][at : at + len(one)] = sorted(set(one) - {best} | {worst})
        return True
    return False


def another_score(decision, result):
    for s in decision.specified(decision.kept()):
        for j in np.flatnonzero(decision.live[s] & ~decision.forced[s]).tolist():
            if abs(decision.scores[s][j]) > 1e-2 and np.isfinite(decision.scores[s][j]):
                result["scores"][1][s * decision.entries + j] += 1e-4 * max(abs(decision.scores[s][j]), decision.size)
                return True
    return False


def another_share(decision, result):
    if decision.shares is not None and "shares" in result and any(decision.forced[s].sum() < share for s, share in enumerate(decision.shares)):
        result["shares"] = (result["shares"][0], [one + 1 for one in result["shares"][1]])
        return True
    return False


def a_turn(decision, result):
    """After the first turn that lost something the last entry is gone."""
    if decision.turns is None or not decision.turns[0]:
        return False
    offsets, ordinals = result["turn.offsets"][1], result["turn.ordinals"][1]
    result["turn.offsets"] = ([], offsets[:1] + [at - 1 for at in offsets[1:]])
    result["turn.ordinals"] = ([], ordinals[: offsets[1] - 1] + ordinals[offsets[1] :])
    return True


def an_event(decision, result):
    """The first that goes does so a step later."""
    if not decision.events:
        return False
    result["events"][1][0] += 1
    return True


SPOILS = (another_entry, another_score, another_share, a_turn, an_event)
AT_ONCE = {name for name, one in SYSTEMS.items() if name != "locret" and not getattr(one, "steps", ())}
WITHOUT = {another_share: set(SYSTEMS) - {"pyramid_kv", "lu_kv"}, a_turn: set(SYSTEMS) - {"sir_llm"}, an_event: AT_ONCE}  # no result of theirs has it


def a_rehearsal(system, spoils=SPOILS, answer=answer):
    """The system's cases, answered by the oracle, and how often each spoiled answer was found."""
    found = dict.fromkeys(spoils, 0)

    class Rehearsal(system):
        rehearsed, expected = True, None

        def run_program(self, *arguments, **fields):
            self.skipTest("only the program can answer")

        def replay(self, *arguments, **fields):
            if self.expected is None:
                self.skipTest("the oracle is not asked")
            result, self.told = answer(self.expected)
            return result

        def decides(self, decision, *arguments, **fields):
            super().decides(decision, *arguments, **fields)
            for spoil in spoils:
                result, _ = answer(decision)
                if spoil(decision, result):
                    with self.assertRaises(AssertionError, msg=f"{spoil.__name__} was not found"):
                        self.same_result(decision, result)
                    found[spoil] += 1

    return Rehearsal, found


def an_entry_of_the_window(result):
    """The first local entry of the first lane is said to be admitted."""
    if result["local.offsets"][1][1] == 0:
        return False
    result["local.ordinals"][1].pop(0)
    result["local.offsets"] = ([], [0] + [at - 1 for at in result["local.offsets"][1][1:]])
    return True


def an_admitted_entry(result):
    if result["keep.offsets"][1][1] == 0:
        return False
    result["keep.ordinals"][1][0] += 1
    return True


def a_late_event(result):
    if not result.get("events", ([], []))[1]:
        return False
    result["events"][1][0] += 1
    return True


def offered(of):
    return ([], [0, *itertools.accumulate(map(len, of))]), ([], sum(of, []))


def an_admission_rehearsed(system):
    found = dict.fromkeys((an_entry_of_the_window, an_admitted_entry, a_late_event), 0)

    class Rehearsal(system):
        def replay(self, policy, *arguments, **fields):
            self.assertEqual(policy, self.policy)
            self.told = {"mode": "decode" if "decode" in arguments else "prefill"}

        def counted(self, count):
            self.assertGreater(count, 0)

        def lists(self, expected):
            self.told["logical_kept"] = self.told["attended_length"] = sum(len(glob) + len(local) for glob, local, _ in expected)
            result = {}
            result["keep.offsets"], result["keep.ordinals"] = offered([glob + local for glob, local, _ in expected])
            result["local.offsets"], result["local.ordinals"] = offered([local for _, local, _ in expected])
            return result

        def same_lists(self, _, expected):
            super().same_lists(self.lists(expected), expected)

        def same(self, trace, _, expected):
            result, kept = self.lists(expected), [glob + local for glob, local, _ in expected]
            if self.told["mode"] == "decode":
                events = sorted((t, s, j) for s, (_, _, gone) in enumerate(expected) for t, j in gone)
                result["events"] = ([len(events), 3], [number for event in events for number in event])
            output = trace.attended(kept)
            result["output"] = ([trace.layers, len(output) // trace.layers, output.shape[1]], output.astype(np.float32).ravel().tolist())
            for name in ("keys", "values"):
                rows = trace.rows(name, kept)
                bits = trace.stored[name][0] == "BF16"
                result[name] = (list(rows.shape), (rows.astype(np.float32).view(np.uint32) >> 16 if bits else rows).ravel().tolist())
            super().same(trace, result, expected)
            for spoil in found:
                wrong = {name: (shape, list(values)) for name, (shape, values) in result.items()}
                if spoil(wrong):
                    with self.assertRaises(AssertionError, msg=spoil.__name__):
                        super().same(trace, wrong, expected)
                    found[spoil] += 1

    return Rehearsal, found


@unittest.skipIf(np is None, "there is no numpy")
class Rehearsed(unittest.TestCase):
    def test_every_system_has_a_contract(self):
        self.assertEqual(set(systems_test.CONTRACTS), set(SYSTEMS))

    def test_every_case_agrees_with_its_oracle_and_with_nothing_else(self):
        for system in sorted(set(SYSTEMS) - {"side_quest"}):  # its cases say themselves what is right
            with self.subTest(system=system):
                admits = issubclass(SYSTEMS[system], systems_test.Admitted)
                rehearsal, found = an_admission_rehearsed(SYSTEMS[system]) if admits else a_rehearsal(SYSTEMS[system])
                result = unittest.TestResult()
                systems_test.tests_of(unittest.defaultTestLoader, rehearsal).run(result)
                self.assertGreater(result.testsRun, 2)
                self.assertEqual([f"{case}: {told}" for case, told in result.errors + result.failures], [])
                for spoil, count in found.items():
                    self.assertEqual(count > 0, system not in WITHOUT.get(spoil, ()), spoil.__name__)


if __name__ == "__main__":
    main()
