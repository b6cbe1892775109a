#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks prompt_oracles.py and budget_oracles.py against numbers worked by hand and against plain loops, and rehearses
prompt_systems_test.py without kvreplay, as oracles_test.py does. Needs numpy; without it every test is skipped, and says so.
"""

import math
import unittest

import oracles_test  # before `program`
import budget_oracles as budgets
import oracles
import prompt_oracles as prompt
import prompt_systems_test
from oracles import np
from oracles_test import SPOILS, Shape, a_rehearsal, an_admission_rehearsed, another_entry, another_score, another_share, an_event, close
from prompt_systems_test import SYSTEMS, projected
from systems_test import Decision, small, tests_of
from traces import main



@unittest.skipIf(np is None, "there is no numpy")
class Worked(unittest.TestCase):
    def test_a_layer_of_cake(self):
        """One head, two rows over a prefix of four; of layer 0 the rows differ more."""
        rows = np.array([[[[.40, .30, .10, .10], [.10, .30, .20, .20]]], [[[.85, .05, .02, .03], [.70, .10, .05, .05]]]])
        for taus, preferences, parts in (((1.6, .4), [.001234, .000023], [3.92739, .07261]), ((1, 1), [.13329, .016449], [3.560597, .439403])):
            found = budgets.cake_statistics(rows, *taus)
            close(self, found[:, :2], [[2.423451, .055], [1.250869, .01315]])
            close(self, found[:, 2], preferences)
            close(self, budgets.fitted(found[:, 2], 4, [0, 0], [4, 4]), parts)
            self.assertEqual(budgets.cake_shares(found[:, 2], 6, 4, 2)[0], [2 + 4, 2])
            self.assertEqual(budgets.cake_shares(found[:, 2], 6, 4, 2, "release")[0], [2 + 4, 2])  # 3 and 0, and what is missing goes to the lowest
        close(self, prompt.cake(rows[0], 200, "none"), [9.25, .3, 1.15, 1.15])
        close(self, prompt.cake(rows[0], 200, "avg:3"), [3.183333, 3.566667, .866667, .766667])
        close(self, prompt.cake(rows[1], 200, "none"), [3.025, .325, .125, .08])
        close(self, prompt.cake(rows[1], 200, "avg:3"), [1.116667, 1.158333, .176667, .068333])

    def test_what_the_release_deals(self):
        self.assertEqual(budgets.released_shares([1, 1, 1], 10, 9)[0], [4, 3, 3])
        self.assertEqual(budgets.released_shares([8, 1, 1], 20, 10)[0], [10, 5, 5])  # 6 too much, dealt to two
        self.assertEqual(budgets.released_shares([8, 1, 1], 21, 10)[0], [10, 6, 5])  # 16 2 2: 6 dealt, and then 1
        self.assertEqual(budgets.released_shares([0, 0], 4, 5)[0], [2, 2])
        self.assertEqual(budgets.cake_shares([8, 1, 1], 12, 7, 2, "release", layered=True)[0], [12, 5, 4])  # 10; 10 5; 10 3 2
        self.assertEqual(budgets.cake_shares([8, 1, 1], 12, 7, 2, "release")[0], [12, 5, 4])
        self.assertEqual(budgets.cake_shares([1, 1, 8], 12, 7, 2, "release", layered=True)[0], [5, 4, 12])

    def test_a_cascade_ends_as_one_shot(self):
        dice = np.random.default_rng(0)
        for _ in range(3000):
            layers, n, window = int(dice.integers(1, 9)), int(dice.integers(2, 80)), int(dice.integers(1, 20))
            budget, preferences = int(dice.integers(0, n + 1)), dice.exponential(1, layers) ** 3 * (dice.random(layers) < .9)
            if n <= window:
                continue
            after, _ = budgets.cake_cascade(preferences, n, budget, window)
            left = [n] * layers
            for sizes in after:
                left[: len(sizes)] = [min(a, b) for a, b in zip(left, sizes)]
            self.assertEqual(left, budgets.cake_shares(preferences, n, budget, window)[0])

    def test_every_total_is_fitted(self):
        dice = np.random.default_rng(1)
        for _ in range(5000):
            count, high = int(dice.integers(1, 9)), int(dice.integers(1, 50))
            low = dice.choice([0, 1, high // 3, high / 7])
            total, weights = int(dice.integers(0, count * high + 9)), dice.integers(0, 5, count) * dice.choice([1, .37])
            made, _ = budgets.fit(weights, total, low, high)
            if count * low < total < count * high:
                self.assertEqual(sum(made), total)
                self.assertTrue(all(math.floor(low) <= one <= high for one in made), (weights, total, low, high, made))
                order = np.argsort(weights, kind="stable")
                self.assertTrue(all(made[a] <= made[b] + 1 for a, b in zip(order, order[1:])))
        self.assertEqual(budgets.fit([0, 0, 0], 7, 0, 5)[0], [3, 2, 2])
        self.assertEqual(budgets.fit([8, 1, 1], 10, 0, 5)[0], [5, 3, 2])  # 8 1 1: 3 too much
        self.assertEqual(budgets.fit([6, 3, 1], 10, 0, 4)[0], [4, 4, 2])  # 6 3 1, 4 4.5 1.5, 4 4 2
        self.assertEqual(budgets.fit([1, 0, 0], 10, 0, 4)[0], [4, 3, 3])
        self.assertEqual(budgets.fit([1, 3], 3, 2, 9)[0], [2, 2])
        self.assertEqual(budgets.fit([1, 3], 30, 2, 9)[0], [9, 9])
        close(self, [budgets.fit([2, 1], 4, 0, 9)[1]], [1 / 3])

    def test_a_defensive_score(self):
        """Two heads and two rows over a prefix of five."""
        mass = np.array([[[.50, .10, .05, .05, .10], [.20, .30, .10, .05, .05]], [[.05, .05, .40, .10, .20], [.10, .10, .10, .30, .20]]])
        found = prompt.defended(mass, "avg:3")
        close(self, found, [.266667, .288889, .242230, .260465, .242230])
        close(self, prompt.defended(mass, "none"), [.5, .34, .4, .34, .34])
        mean = mass.mean(axis=(0, 1))
        self.assertEqual(sorted(prompt.covering(mean, .9, 5)[0]), [0, 1, 2, 4])  # the one that crosses is left out
        self.assertEqual(prompt.covering(mean, .9, 1)[0], [0])
        close(self, [prompt.covering(mean, .9, 5)[1]], [.9 - (.274194 + .209677 + .177419 * 2)], 5)
        for norms, scores, with_first, without in (([1, 2, .5, 1, 4], [.266667, .577778, .121115, .260465, .968918], [0, 1, 4], [0, 1, 4]),
                                                   ([.1, 2, .5, 1, 4], [.026667, .577778, .121115, .260465, .968918], [0, 1, 4], [1, 3, 4])):
            made = found * np.array(norms)
            close(self, made, scores)
            first = made.copy()
            first[prompt.covering(mean, .9, 1)[0]] = np.inf
            for one, expected in ((first, with_first), (made, without)):
                self.assertEqual(Decision([one], [np.zeros(5, bool)], [3]).kept()[0], expected)
        close(self, prompt.defended(np.zeros((1, 2, 3)), "avg:3"), [0, 0, 0])

    def test_a_pool_loses_mass_at_its_ends(self):
        dice = np.random.default_rng(2)
        for n in range(5, 40):
            p = dice.random(n)
            self.assertAlmostEqual(oracles.pooled(p, "avg:5").sum(), p.sum() - (2 * p[0] + p[1] + p[-2] + 2 * p[-1]) / 5, 12)
            self.assertAlmostEqual((oracles.pooled(p, "avg:5") * prompt.quotient(p.sum(), oracles.pooled(p, "avg:5").sum())).sum(), p.sum(), 12)

    def test_a_part_put_first(self):
        scores, norms, none = np.array([.5, .3, .15, .05]), np.array([1, 1, 4, 2]), np.zeros(4, bool)
        made, gap = prompt.critical(scores, norms, none, 2, prompt.first_places(.5, 2), 1e-4)
        close(self, made[1:], [.3001, .6004, .1002])
        self.assertEqual((made[0], Decision([made], [none], [2]).kept()), (np.inf, [[0, 2]]))
        self.assertAlmostEqual(gap, .4)
        close(self, prompt.critical(scores, norms, none, 2, 0, 1e-4)[0], [.5001, .3001, .6004, .1002])
        self.assertEqual([prompt.first_places(part, 100) for part in (0, .001, .5, 1)], [0, 1, 50, 100])
        self.assertEqual(np.isinf(prompt.critical(scores, norms, none, 0, 1, 0)[0]).tolist(), [False] * 4)
        held = np.array([False, False, False, True])
        self.assertEqual(np.isinf(prompt.critical(scores, norms, held, 3, 2, 0)[0]).tolist(), [True, False, False, False])  # of two places one is taken

    def test_lanes_that_share(self):
        heads, none = [[.5, .3, .1, .05, .05], [.9, .02, .03, .03, .02]], [np.zeros(5, bool)] * 2
        self.assertEqual(budgets.lane_budgets(heads, none, 2, 0)[0], [3, 1])
        self.assertEqual(budgets.lane_budgets(heads, none, 2, .2)[0], [3, 1])  # one for sure, the 0 of the second
        self.assertEqual(budgets.lane_budgets(heads, none, 2, 1)[0], [2, 2])
        self.assertEqual(budgets.lane_budgets(heads, none, 0, .2)[0], [0, 0])
        last = [np.arange(5) >= 3] * 2
        self.assertEqual(budgets.lane_budgets(heads, last, 3, 0)[0], [3, 3])  # .9 and .5 beside four forced ones
        self.assertEqual(budgets.lane_budgets(heads, last, 3, 1)[0], [3, 3])
        self.assertEqual(budgets.lane_budgets(heads, last, 1, 1)[0], [2, 2])

    def test_hits_of_layers(self):
        scores = [[[.9, .8, .1, .05, .01]], [[.7, .2, .15, .12, .11]]]
        shares, gap = budgets.dynamic_shares(scores, 7, 4, 2)  # the best four: two of each
        self.assertEqual(shares, [4, 4])
        close(self, [gap], [.25])
        self.assertEqual(budgets.dynamic_shares(scores, 6, 2, 1)[0], [3, 1])  # .9 and .8
        self.assertEqual(budgets.dynamic_shares(scores, 6, 0, 1)[0], [1, 1])

    def test_ranks_of_lanes(self):
        scores = [[[.9, .5, .1], [.3, .8, .2]], [[.6, .4, .3], [.2, .1, .7]]]
        counts, _, composite = budgets.composite_counts(scores, 1, False)
        close(self, composite, [[.85, .4, .15], [.65, .3, .2]])
        self.assertEqual(counts, [1, 1])
        flat = composite.ravel()
        self.assertEqual(np.bincount(np.array(oracles.ranking(flat, range(6))[:3]) // 3).tolist(), [2, 1])  # of a total of three
        self.assertEqual(budgets.composite_counts(scores, 2, False)[0], [2, 2])
        self.assertEqual(budgets.composite_counts([[[.9, .8]], [[.1, .2]]], 1, False)[0], [2, 1])  # at least one
        close(self, budgets.composite_counts(scores, 1, True)[2], [[.85, .4, .2], [.65, .3, .2]])

    def test_shares_of_variances(self):
        """Masses whose variances are .2 .5 .3 of their sum."""
        masses = [np.array([0, 2 * math.sqrt(part)]) for part in (.2, .5, .3)]
        weights = np.exp(-np.array([.2, .5, .3]))
        close(self, weights / weights.sum(), [.377978, .280013, .342009])
        shares, _ = budgets.variance_shares(masses, 1000, 200)
        self.assertEqual(shares, oracles.round_shares([10 + 570 * part for part in (.377978, .280013, .342009)], 600))

    def test_what_is_recovered(self):
        row = np.array([[[.3, .05, .05, .1, .5]]])
        for threshold, lazy in ((.89, True), (.91, False), (1, False)):
            made = budgets.simlayer_kv(np.concatenate([row, [[[0.0]]]], axis=2), 6, threshold, 1, 2, 1)
            self.assertEqual((made[0], made[1].tolist()), (lazy, [True] + [not lazy] * 4 + [True]))
        close(self, [budgets.simlayer_kv(np.concatenate([row, [[[0.0]]]], axis=2), 6, .8, 1, 2, 1)[2]], [.1])
        self.assertFalse(budgets.simlayer_kv(row, 5, .1, 2, 2, 1)[0])  # too short
        classes = np.array([1, 0, 2, 0, 0])
        mass = row[0, 0] * 7
        for recover, recent, frequent, recipe, stays in ((.3, 0, 0, 0, [0]), (.34, 0, 0, 1, [0, 2]), (.8, .2, .2, 2, [0, 2, 4]), (.9, .4, .2, 3, [0, 2, 3, 4]),
                                                         (.96, .4, .2, 4, [0, 1, 2, 3, 4])):
            made = budgets.fastgen(mass, classes, recover, recent, frequent)
            self.assertEqual((made[0], np.flatnonzero(made[1]).tolist()), (recipe, stays))

    def test_rows_that_count_by_what_they_see(self):
        mass = np.array([[[.5, .3, .2, 0], [.4, .3, .2, .1]]])
        close(self, prompt.finch(mass, 4, "exact", "mean"), [1.55, 1.05, .7, .2])
        close(self, prompt.finch(mass, 4, "kvpress", "mean"), [(2 * .5 + 3 * .4) / 2, .75, .5, .15])
        close(self, prompt.finch(np.concatenate([mass, 3 * mass]), 4, "exact", "sum"), [6.2, 4.2, 2.8, .8])

    def test_rows_that_count_more_and_more(self):
        close(self, budgets.ramp(3, 1.2), [1, 1.1, 1.2])
        self.assertEqual(budgets.ramp(1, 1.2).tolist(), [1])
        close(self, budgets.weighted_rows(np.array([[[.6, .4], [.5, .5], [.1, .9]]]), 1.2), [.423333, .676667])
        self.assertEqual(budgets.pyramid_infer_shares(3, 100, .9, .3, "cosine", 10), [90, 60, 30])
        self.assertEqual(budgets.pyramid_infer_shares(5, 100, .9, .3, "linear", 40), [90, 75, 60, 45, 40])
        self.assertEqual(budgets.pyramid_infer_shares(5, 1000, 1, 0, "cosine", 0), [1000, 853, 500, 146, 0])
        self.assertEqual(budgets.pyramid_infer_shares(1, 50, .9, .3, "cosine", 64), [50])

    def test_votes_of_heads(self):
        masses = np.array([[[.6, .4]], [[.1, .9]], [[.1, .9]], [[.2, .8]]])
        close(self, prompt.compressed(masses, np.array([1.0, 0, 0, 1]), "none"), [.4, .6])
        close(self, prompt.compressed(masses, np.full(4, 2.5), "none"), [.25, .75])
        close(self, prompt.compressed(masses, np.zeros(4), "none"), [0, 0])
        self.assertEqual(budgets.importance_shares([3, 1], 100, 40, 10, 3)[0], [55, 25])
        self.assertEqual(budgets.importance_shares([3, 1], 100, 40, 10, 1.2)[0], [48, 32])

    def test_rows_that_repeat_a_chunk(self):
        """Of rows with (.1 .7), (.3 .2) and (.2 .6) of a chunk and the rest of a sink, the largest counts; the first of them comes twice."""
        rows = np.array([[.1, .7], [.3, .2], [.2, .6]])
        found = np.log(np.column_stack([1 - rows.sum(axis=1), rows]))  # logits over a sink and the chunk
        trace = Shape(np.eye(4)[[0, 3, 1, 2]].reshape(1, 1, 4, 4), np.zeros((1, 1, 4, 4)))
        trace.query_rows = np.pad(found, ((0, 0), (0, 1))).reshape(1, 1, 3, 4)
        trace.query_rows[..., 3] = 50  # the second entry is no part of it
        trace.row_begin, trace.row_end = np.array([2] * 3), np.array([4] * 3)
        close(self, prompt.kvzip(trace, 0, 0, 1, False), [0, 0, .3, .7])
        trace.row_begin, trace.row_end = np.array([2, 3, 2]), np.array([4, 4, 4])
        self.assertEqual([(a, b, list(r)) for a, b, r in prompt.chunks_of_rows(trace)], [(2, 4, [0]), (3, 4, [1]), (2, 4, [2])])
        close(self, prompt.kvzip(trace, 0, 0, 1, False), [0, 0, .2, .7])  # the middle row gives 3 only 2/7
        trace.row_begin = np.array([2] * 3)
        trace.hidden_norm, trace.value_norms = np.array([[2.0, 1, .5]]), np.array([[[1.0, 1, 3, 1]]])
        close(self, prompt.kvzip(trace, 0, 0, 1, True), [0, 0, 1.2, 1.2])

    def test_rows_that_see_their_own_keys(self):
        """All logits are 0: a row shares with two of the chunk, one sink, and the keys of rows up to its own."""
        trace = Shape(np.zeros((1, 1, 5, 2)), np.zeros((1, 1, 5, 2)))
        trace.query_rows, trace.query_keys = np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 3, 2))
        trace.row_begin, trace.row_end = np.array([1, 3, 3]), np.array([3, 5, 5])
        close(self, prompt.kvzip(trace, 0, 0, 4, False), [0, 1 / 4, 1 / 4, 1 / 6, 1 / 6])  # 3 sinks before the second chunk
        trace.query_keys = None
        close(self, prompt.kvzip(trace, 0, 0, 0, False), [0, .5, .5, .5, .5])

    def test_channels_in_the_measure_of_the_next_block(self):
        rows, reference = np.array([[0, 0], [1, 3.0]]), np.array([[1, 1], [2, 3.0]])
        close(self, prompt.spread_in_reference(rows, reference), [.412521, .587479])
        close(self, prompt.spread_in_reference(rows, np.array([[1, 1], [1, 3.0]])), np.exp([.353553, .707107]) / np.exp([.353553, .707107]).sum())  # 0 −.5, 0 1
        keys = np.concatenate([[[9, 9]], rows, reference, [[5, 5]]])
        scores, forced, _ = prompt.lag_kv(keys, keys, 2, 1, True)
        close(self, scores[1:3], [.412521, .587479])
        self.assertEqual(forced.tolist(), [True, False, False, True, True, True])
        self.assertEqual(prompt.lag_kv(keys, keys, 2, 1, False)[0][1:3].tolist(), [0, .5])
        self.assertEqual(prompt.lag_kv(keys[[0, 2, 2, 3, 4]], keys[[0, 2, 2, 3, 4]], 2, 1, False)[0][1:3].tolist(), [.5, 0])  # of equals the later is worse
        scores, forced, _ = prompt.lag_kv(keys, keys, 3, 1, False)
        close(self, scores, [0, 0, .2, .4, .6, .8])
        self.assertEqual(forced.tolist(), [True] + [False] * 5)

    def test_expected_logits(self):
        keys, mean, square = np.array([[1, 0], [0, 2], [-1, 1.0]]), np.array([1.0, 0]), np.diag([.5, .1])
        logits = prompt.expected_logits(keys, mean, square, 1 / math.sqrt(2))
        close(self, logits, [.832107, .1, -.557107])
        trace = Shape(keys.reshape(1, 1, 3, 2), np.zeros((1, 1, 3, 2)))
        trace.d, trace.scale = 2, None
        trace.query_mean, trace.query_square = mean.reshape(1, 1, 2), square.reshape(1, 1, 2, 2)
        trace.values = np.array([[1, 0], [0, 1], [2.0, 0]]).reshape(1, 1, 3, 2)
        close(self, prompt.expected_attention(trace, 0, 0, 0, 0, 0, True, True), [.577979, .277947, .288147])
        close(self, prompt.expected_attention(trace, 0, 0, 0, 0, .1, True, True), [.677979, .377947, .488147])
        close(self, prompt.expected_attention(trace, 0, 0, 0, 0, 0, True, False), [.577979, .277947, .144074])
        close(self, prompt.expected_attention(trace, 0, 0, 0, 1, 0, True, False), [0, .658609, .341391], 5)

    def test_queries_that_turn(self):
        """The mean of RoPE's matrices turns as the rows would on average, in both styles."""
        dice = np.random.default_rng(3)
        for style in ("neox", "gptj"):
            trace = small(0, 20, gap=9)
            trace.turns, trace.style = 100.0 ** (-np.arange(8) / 8), style
            row, begin = dice.normal(0, 1, 16), int(trace.positions[-1]) + 1
            turned = oracles.pairs_of(row, style) * np.exp(1j * np.arange(begin, begin + 5)[:, None] * trace.turns)
            made = prompt.turned_on_average(trace, 5) @ row
            np.testing.assert_allclose(oracles.pairs_of(made, style), turned.mean(axis=0), atol=1e-12)
            self.assertEqual(prompt.turned_on_average(trace, 0).tolist(), np.eye(16).tolist())
            trace.pre_rope_queries = dice.normal(0, 1, (3, 2, 20, 16))
            mean, square = prompt.query_model(trace, 1, 1, 4)
            rows = trace.pre_rope_queries[1, 1, 4:]
            close(self, mean, rows.mean(axis=0), 12)
            close(self, square, np.cov(rows.T, bias=True), 12)

    def test_directions_that_values_have(self):
        """Two values, of whose keys one points as queries do: weights 1 and e^(−5)."""
        trace = Shape(np.array([[1, 0], [0, 3.0]]).reshape(1, 1, 2, 2), np.zeros((1, 1, 2, 2)))
        trace.d, trace.values = 2, np.array([[2, 0], [0, 3.0]]).reshape(1, 1, 2, 2)
        trace.query_mean, trace.query_square = np.array([[[4.0, 0]]]), None
        close(self, prompt.cap_kv(trace, 0, 0, 5, 0, 0, 0), [4 / 5, 9 * math.exp(-5) / (1 + 9 * math.exp(-5))])
        close(self, prompt.cap_kv(trace, 0, 0, 5, 0, 1, .5), [0, 9 / (1 + 13.5)])

    def test_norms_of_rows(self):
        keys, values = np.array([[1.0], [2], [2], [4]]), np.array([[1.0], [1], [3], [0]])
        close(self, prompt.cur(keys, values, 0, "key"), np.array([1, 4, 4, 16]) / 25)
        close(self, prompt.cur(keys, values, 2, "key"), np.array([.2, .8, .2, .8]) / 2)
        close(self, prompt.cur(keys, values, 2, "product"), np.array([.1, .4, .2, 0]) / .7)
        close(self, prompt.cur(keys, values, 3, "mean"), np.array([1 / 9 + 1 / 11, 4 / 9 + 1 / 11, 4 / 9 + 9 / 11, 1]) / 3)
        close(self, prompt.cur(keys, 0 * values, 2, "value"), np.zeros(4))

    def test_keys_that_lead(self):
        keys = np.array([[1.0, 0], [-1, 0], [0, 2], [0, -2]])
        close(self, prompt.leverages(keys, None, 1), [1 / 3, 1 / 3, 4 / 9, 4 / 9])
        close(self, prompt.leverages(keys + 7, np.array([[2.0], [0]]), 0), [.5, .5, 0, 0])
        close(self, prompt.standard(np.array([[1.0, 2], [3, 6]])), (np.array([[1, 2], [3, 6]]) - 3) / math.sqrt(14 / 3))
        self.assertEqual(prompt.standard(np.array([[5.0]])).tolist(), [[0]])
        trace = small(0, 10)
        drawn = prompt.sketch_of(trace, 1, 1, 3, 7)
        u, v = 1 - oracles.uniform(7, 0, 1, 1, 2 * (2 * 3 + 1)), oracles.uniform(7, 0, 1, 1, 2 * (2 * 3 + 1) + 1)
        close(self, drawn[2, 1], math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v) / math.sqrt(3), 12)
        many = np.concatenate([prompt.sketch_of(trace, 0, head, 48, 42).ravel() for head in range(9)]) * math.sqrt(48)
        close(self, [many.mean(), many.std()], [0, 1], 1)

    def test_chunks_that_look_at_themselves(self):
        trace = Shape(np.array([0, 0, math.log(2), 0]).reshape(1, 1, 4, 1), np.ones((1, 1, 4, 1)))
        live = np.arange(4)
        close(self, prompt.mass_in_chunks(trace, 0, 0, live, 4, "none"), np.array([1, 1, 2, 1]) * 4 / 5)
        close(self, prompt.mass_in_chunks(trace, 0, 0, live, 3, "none"), [.75, .75, 1.5, 1])
        close(self, prompt.mass_in_chunks(trace, 0, 0, live, 3, "kvpress"), [.75, .75, 1.5, 1])  # every logit of the padded chunk is 0
        close(self, prompt.mass_in_chunks(trace, 0, 0, live[2:], 3, "kvpress"), [2 * .5 + 1 / 3, 2 * .25 + 1 / 3])
        self.assertEqual(prompt.compactor_middle(20, 8, 4).tolist(), list(range(8, 16)))
        self.assertEqual([len(prompt.compactor_middle(n, 8, 4)) for n in (1, 8, 10, 12, 13)], [0, 0, 0, 0, 1])

    def test_projected_norms_against_loops(self):
        trace = small(4, 6, (8, 2), layers=1)
        projected(trace, np.random.default_rng(4), 5)
        for head in (0, 1):
            expected = [0.0] * 6
            for h in trace.heads_of(head):
                for j in range(6):
                    row = [sum(trace.output_projection[0, e, 8 * h + d] * trace.values[0, head, j, d] for d in range(8)) for e in range(5)]
                    expected[j] += sum(map(abs, row)) / 4
                    close(self, prompt.head_norms(trace, 0, h, 2)[j], math.sqrt(sum(x * x for x in row)), 12)
            close(self, prompt.projected_norms(trace, 0, head), expected, 12)


# The rehearsal ----------------------------------------------------------------------------------------------------------------
def answer(decision):
    result, told = oracles_test.answer(decision)
    for name, values in getattr(decision, "besides", {}).items():
        result[name] = (list(np.shape(values)), np.ravel(values).tolist())
    if getattr(decision, "scoreless", False):
        del result["scores"]
    return result, told


def besides(decision, result):
    """The last number of a statistic or a recipe is another."""
    for name in getattr(decision, "besides", {}):
        result[name][1][-1] = result[name][1][-1] * 1.001 + (name == "recipe")
        return True
    return False


def one_less(decision, result):
    """Of what is said to stay and is no question of scores."""
    if decision.fixed is None or not decision.fixed[-1]:
        return False
    result["keep.ordinals"][1].pop()
    result["keep.offsets"][1][-1] -= 1
    return True


ALL = (another_entry, another_score, another_share, an_event, besides, one_less)
RECIPES = {name for name, one in SYSTEMS.items() if issubclass(one, prompt_systems_test.Recipes)}
HAS = {besides: {"cake"} | RECIPES, an_event: {"epi_cache"}, one_less: {"epi_cache", "mp_cache_prompt"} | RECIPES,
       another_share: {"cake", "compress_kv", "dynamic_kv", "pyramid_infer", "kvcompose", "critical_ada_kv"},
       another_entry: set(SYSTEMS) - RECIPES, another_score: set(SYSTEMS) - RECIPES}


@unittest.skipIf(np is None, "there is no numpy")
class Rehearsed(unittest.TestCase):
    def test_every_system_has_a_contract(self):
        self.assertEqual(set(prompt_systems_test.CONTRACTS), set(SYSTEMS))

    def test_every_case_agrees_with_its_oracle_and_with_nothing_else(self):
        for system, cases in SYSTEMS.items():
            with self.subTest(system=system):
                rehearsal, found = an_admission_rehearsed(cases) if system == "ada_ea" else a_rehearsal(cases, ALL, answer)
                result = unittest.TestResult()
                tests_of(unittest.defaultTestLoader, rehearsal).run(result)
                self.assertGreater(result.testsRun, 2)
                self.assertEqual([f"{case}: {told}" for case, told in result.errors + result.failures], [])
                for spoil, count in found.items():
                    self.assertEqual(count > 0, system in HAS.get(spoil, SYSTEMS), spoil.__name__)


if __name__ == "__main__":
    main()
