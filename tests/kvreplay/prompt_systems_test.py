#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the systems of kvreplay that decide once for a prompt with prompt_oracles.py and budget_oracles.py, on random traces.

    prompt_systems_test.py PROGRAM [SYSTEM ... | all]        those of systems.txt if none is named; the others are skipped

Keep sets and scores are compared as in systems_test.py. Where a count or who is put first hangs on numbers that are nearly equal, the
case is left out; of no test a quarter is. Needs numpy; without it nothing runs, and it says so.
"""

import sys
import unittest

import systems_test  # before `program`: it takes the systems' names
import admission_test
import budget_oracles as budgets
import oracles
import prompt_oracles as prompt
from admission_test import run_lane
from oracles import NEAR, behind_forced, budget_of, first_ones, last_ones, np
from systems_test import GROUPS, KNOWN, NAMED, Contract, Decision, System, how_much, put, small, tests_of
from traces import main, ragged


class AtOnce(System):
    """Systems that decide once. `usual` are their fields; `decision` says what is right of all that they are given.

    `reads` are tensors that a trace needs not have; `says` are models whose logits are made otherwise; `by_layer` those that decide for layers.
    """
    usual, says, without, by_layer, sinks_besides = {}, ({"scale": 0.3, "cap": 4.0}, {"sinks": "F32"}), (), False, False
    budgets, ratios = (0, 1, 8, 30, 33, 50), (0.0, 0.34, 0.75, 1.0)
    compared = left_out = 0

    def tearDown(self):
        self.assertLessEqual(4 * self.left_out, self.compared, "many near ties: choose another seed")

    def tensors(self, trace, dice):
        """Stores what the system reads besides keys, values and queries; returns metadata."""
        return {}

    def given(self, trace, **says):
        metadata = self.tensors(trace, np.random.default_rng(trace.n)) or {}
        self.write(trace, {**metadata, **(trace.model_says(8, **says) if says else {})}, without=self.without)
        return trace

    def near(self, margin, needed=2 * NEAR):
        """A margin that is too small leaves the case out."""
        self.clear = self.clear and margin > needed

    def decision(self, trace, allowed, sinks, **how):
        raise NotImplementedError

    def same(self, trace, budget=None, ratio=None, sinks=0, mode=(), **fields):
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, mode=mode, **fields):
            self.clear, self.compared = True, self.compared + 1
            expected = self.decision(trace, budget_of(trace.n, budget, ratio), sinks, **{**self.usual, **fields})
            expected.copies = trace.kv_heads if self.by_layer else 1
            self.left_out += not self.clear
            if self.clear:
                self.decides(expected, *how_much(budget, ratio, sinks), *mode, **fields)

    def same_result(self, decision, result):
        super().same_result(decision, result)
        for name, values in getattr(decision, "besides", {}).items():
            self.assertIn(name, result)
            self.assertEqual(result[name][0], list(np.shape(values)), name)
            np.testing.assert_allclose(np.array(result[name][1], float).reshape(np.shape(values)), values, rtol=5 * NEAR, err_msg=name)
        if getattr(decision, "scoreless", False):
            self.assertNotIn("scores", result)

    def whole(self, trace, scores, forced):
        """Nothing has to be dropped."""
        return Decision(scores, [forced] * len(scores), [trace.n] * len(scores))

    def same_sizes(self, trace, **fields):
        for budget in self.budgets and sorted({*self.budgets, trace.n - 1, trace.n, trace.n + 7}):
            self.same(trace, budget, **fields)
        for ratio in self.ratios:
            self.same(trace, ratio=ratio, **fields)
        if self.sinks_besides:
            self.same(trace, 40, sinks=4, **fields)
        if not self.budgets:
            self.same(trace, **fields)

    def test_every_group_and_type(self):
        for seed, heads in enumerate((*GROUPS, (4, 4))):
            self.same_sizes(self.given(small(seed, (200, 97, 64, 150)[seed], heads, dtype=("F32", "F16", "BF16", "F64")[seed], gap=3 * (seed % 2))))

    def test_8_bits(self):
        self.same_sizes(self.given(small(40, 64, (8, 2), dtype="F8_E4M3")))

    def test_few_entries(self):
        for n in (1, 2, 5, 31, 32, 33):
            trace = self.given(small(50 + n, n, (8, 2)))
            for budget in sorted({0, 1, n - 1, n}) if self.budgets else (None,):
                self.same(trace, budget)

    def test_a_model_of_its_own(self):
        for says in self.says:
            self.same_sizes(self.given(small(60, 90, (8, 2)), **says))


class ByWindow(AtOnce):
    """Those of them that observe by the last rows, which they keep."""

    def test_rows_that_are_recent_only(self):
        trace = small(61, 90, (8, 2))
        self.tensors(trace, np.random.default_rng(90))
        trace.stored["recent_queries"] = (trace.dtype, np.ascontiguousarray(trace.stored["queries"][1][:, :, -40:]))
        self.write(trace, without=("queries",))
        self.same(trace, 50)

    def test_a_window_of_all_entries(self):
        trace = self.given(small(62, 40, (8, 2)))
        for window in (40, 41, 500):
            self.same(trace, 20, window=window)


def projected(trace, dice, width=12):
    trace.output_projection = put(trace, "output_projection", dice.normal(0, 1, (trace.layers, width, trace.query_heads * trace.values.shape[3])), trace.dtype)


def heads_of_layer(trace, layer, window):
    return np.concatenate([prompt.prefix_attention(trace, layer, head, window) for head in range(trace.kv_heads)])


def of_lanes(trace, values):
    """Of each layer's lanes, the layer's."""
    return [int(one) for one in values for _ in range(trace.kv_heads)]


def layer_pools(trace):
    return [list(range(layer * trace.kv_heads, (layer + 1) * trace.kv_heads)) for layer in range(trace.layers)]


class Cake(ByWindow):
    usual = {"window": 32, "pool": "avg:5", "gamma": 200, "tau1": 1, "tau2": 1, "rounding": "largest"}
    policy, sinks_besides = "cake", True

    def decision(self, trace, allowed, sinks, window, pool, gamma, tau1, tau2, rounding, layered=False):
        forced = last_ones(trace.n, window) | first_ones(trace, sinks)
        if trace.n <= max(window, allowed):
            made = self.whole(trace, np.zeros((len(trace.lanes()), trace.n)), forced)
            if layered:
                made.besides = {"layer.kept": self.after_each_layer(trace, [[trace.n] * (1 + m) for m in range(trace.layers)], forced)}
            return made
        scores = [behind_forced(prompt.cake(prompt.prefix_attention(trace, *lane, window), gamma, pool), trace.n) for lane in trace.lanes()]
        statistics = budgets.cake_statistics([heads_of_layer(trace, layer, window) for layer in range(trace.layers)], tau1, tau2)
        shares, margin = budgets.cake_shares(statistics[:, 2], trace.n, allowed, window, rounding, layered)
        self.near(margin, 2e-3)
        made = Decision(scores, [forced] * len(scores), of_lanes(trace, shares), shares=of_lanes(trace, shares))
        made.besides = {"layer.statistics": statistics}
        if layered:
            after, margin = budgets.cake_cascade(statistics[:, 2], trace.n, allowed, window, rounding)
            self.near(margin, 2e-3)
            made.besides["layer.kept"] = self.after_each_layer(trace, after, forced)
            for s, kept in enumerate(made.kept()):
                layer = s // trace.kv_heads
                self.assertEqual(budgets.cut_again(scores[s], forced, [shares[layer] for shares in after[layer:]]), kept)
        return made

    @staticmethod
    def after_each_layer(trace, shares, forced):
        """How many each segment holds when a layer has come; what has not come holds nothing."""
        made = np.zeros((trace.layers, trace.layers * trace.kv_heads))
        for came, each in enumerate(shares):
            for layer, share in enumerate(each):
                made[came, layer * trace.kv_heads : (layer + 1) * trace.kv_heads] = min(trace.n, max(share, forced.sum()))
        return made

    def test_layers_one_by_one_end_as_one_decision(self):
        """With exact rounding nothing tells them apart but how many there were on the way."""
        trace = self.given(small(72, 130, (8, 2), layers=6))
        for fields in ({}, {"tau1": 1.6, "tau2": 0.4}, {"tau2": 4, "window": 8}):
            for arguments in (("--budget", 40), ("--budget", 60, "--sinks", 3), ("--ratio", 0.5), ("--budget", 60, "--layout", "mask")):
                by_layer = self.replay(*arguments, "--mode", "layers", "--attend", **fields)
                steps = np.array(by_layer["layer.kept"][1]).reshape(by_layer.pop("layer.kept")[0])
                self.assertEqual(by_layer, self.replay(*arguments, "--attend", **fields), (fields, arguments))
                self.assertTrue((np.diff(steps, axis=0) < 0).any(), "an earlier layer is cut again")
        spec = "cake(window=8) | budget(40, by=moments, tau2=4)"
        cascade = self.replay_spec(spec + " | when(layer)", "--mode", "layers")
        self.assertIn("layer.kept", cascade)
        self.assertNotIn("layer.kept", self.replay_spec(spec, "--mode", "layers"))
        self.assertNotIn("layer.kept", self.replay_spec(spec + " | when(layer)"))

    def replay_spec(self, spec, *mode):
        return self.result_of(self.run_program("--spec", spec, *mode), spec)

    def test_keys_that_turn(self):
        self.write(self.given(small(73, 60, (8, 2))), {"rope_theta": "10000"})
        self.refused("layers that are cut again", "--policy", "cake", "--budget", 40, "--mode", "layers", "--layout", "compact_rerotated")

    def same(self, trace, *arguments, **fields):
        """Layers that come one by one, too."""
        super().same(trace, *arguments, **fields)
        plain = self.decision
        self.decision = lambda *all_of, **how: plain(*all_of, layered=True, **how)
        super().same(trace, *arguments, mode=("--mode", "layers"), **fields)
        del self.decision

    def test_fields(self):
        trace = self.given(small(70, 120, (8, 2), layers=5))
        for fields in ({"window": 2}, {"window": 8, "pool": "none"}, {"pool": "max:3", "gamma": 0}, {"gamma": 1000}, {"tau1": 1.6, "tau2": 0.4}, {"tau1": 0.5, "tau2": 3}):
            for rounding in ("largest", "release"):
                for budget in (10, 40, 60, 100):
                    self.same(trace, budget, rounding=rounding, **fields)

    def test_layers_that_are_full(self):
        """Keys of some layers are small, so that their attention is spread and they want all."""
        trace = small(71, 80, (8, 2), layers=4)
        trace.keys = trace.keys * np.array([0.05, 1, 3, 0.2]).reshape(4, 1, 1, 1)
        put(trace, "keys", trace.keys)
        trace.keys = trace.keys.astype(np.float32).astype(float)
        self.given(trace)
        for rounding in ("largest", "release"):
            for budget in (20, 40, 60, 70, 78, 79):
                self.same(trace, budget, rounding=rounding, window=16, tau2=4)


class DefensiveKv(ByWindow):
    policy, together = "defensive_kv", False
    usual = {"window": 32, "pool": "avg:5", "cover": 0.9, "bias": "window", "norm_axis": "heads"}

    def tensors(self, trace, dice):
        projected(trace, dice)

    def decision(self, trace, allowed, sinks, window, **how):
        forced, lanes = last_ones(trace.n, window), trace.lanes()
        if trace.n <= max(window, allowed):
            return self.whole(trace, np.zeros((len(lanes), trace.n)), forced)
        scores = []
        for layer in range(trace.layers):
            made, gap = prompt.defensive_kv(trace, layer, allowed, window, **how)
            scores += made
            self.near(gap)
        pools = [list(range(len(lanes)))] if self.together else layer_pools(trace)
        return Decision(scores, [forced] * len(lanes), [allowed] * len(lanes), pools, "unsaid")

    def test_fields(self):
        trace = self.given(small(71, 90, (8, 4)))
        for norm_axis in ("heads", "tokens", "none"):
            for bias in ("window", "release"):
                for fields in ({}, {"window": 5, "pool": "none"}, {"window": 1, "pool": "max:7", "cover": 0.3}, {"window": 60, "cover": 1}, {"cover": 0}):
                    for budget in (20, 45, 70):
                        self.same(trace, budget, norm_axis=norm_axis, bias=bias, **fields)

    def test_norms_that_the_trace_has(self):
        """They win over a projection."""
        trace = self.given(small(72, 80, (8, 2)))
        trace.value_norms = put(trace, "value_norms", np.random.default_rng(72).uniform(0, 2, (3, 2, 80)))
        for without in ((), ("values", "output_projection")):
            self.write(trace, without=without)
            self.same(trace, 45)
        trace.value_norms[:, :, 3:9] = 0
        put(trace, "value_norms", trace.value_norms)
        self.write(trace)
        self.same(trace, 45)


class LayerDefensiveKv(DefensiveKv):
    policy, together = "layer_defensive_kv", True


class CompressKv(ByWindow):
    policy, by_layer, sinks_besides = "compress_kv", True, True
    usual = {"window": 8, "pool": "avg:5", "voters": "voters", "importance": "importance", "floor": 32, "cap": 3}
    allotted = True

    def tensors(self, trace, dice, voters="voters", importance="importance"):
        trace.votes = put(trace, f"table.{voters}", dice.integers(1, 4, (trace.layers, trace.query_heads)) / 2)
        trace.weights_of_layers = None
        if self.allotted:
            trace.weights_of_layers = put(trace, f"table.{importance}", dice.uniform(0, 2, trace.layers))

    def decision(self, trace, allowed, sinks, window, pool, voters, importance, floor, cap):
        forced = last_ones(trace.n, window) | first_ones(trace, sinks)
        scores = [behind_forced(prompt.compressed(heads_of_layer(trace, layer, window), trace.votes[layer], pool), trace.n) for layer in range(trace.layers)]
        if trace.n <= max(window, allowed):
            return self.whole(trace, scores, forced)
        if trace.weights_of_layers is None:
            return Decision(scores, [forced] * len(scores), [allowed] * len(scores), shares="unsaid")
        shares, margin = budgets.importance_shares(trace.weights_of_layers, trace.n, allowed, floor, cap)
        self.near(margin, 1e-3)
        return Decision(scores, [forced] * len(scores), shares, shares=shares)

    def test_fields(self):
        trace = small(70, 150, (8, 2), layers=5)
        self.tensors(trace, np.random.default_rng(3), "heads", "depth")
        self.write(trace)
        for fields in ({}, {"window": 20, "pool": "none"}, {"floor": 0}, {"floor": 10, "cap": 1.5}, {"cap": 1}, {"floor": 1000}, {"pool": "max:7", "cap": 2.25}):
            for budget in (5, 20, 47, 100):
                self.same(trace, budget, voters="heads", importance="depth", **fields)

    def test_layers_that_are_alike(self):
        self.allotted = False
        trace = self.given(small(73, 90, (8, 2)))
        self.same_sizes(trace)
        trace.votes[1] = 0
        trace.votes[2, 1:] = 0
        put(trace, "table.voters", trace.votes)
        self.write(trace)
        self.same(trace, 30)

    def test_layers_without_importance(self):
        trace = self.given(small(74, 90, (8, 2), layers=4))
        for values in ((0, 0, 0, 0), (0, 1, 0, 0), (5, 5, 1, 0)):
            trace.weights_of_layers = put(trace, "table.importance", np.array(values, float))
            self.write(trace)
            for budget in (10, 40, 60):
                self.same(trace, budget)


class DynamicKv(ByWindow):
    policy, sinks_besides = "dynamic_kv", True
    usual = {"window": 32, "pool": "max:7", "rows": "sum", "group": "mean"}

    def decision(self, trace, allowed, sinks, window, **how):
        forced = last_ones(trace.n, window) | first_ones(trace, sinks)
        scores = [oracles.window_scores(trace, *lane, window, **how) for lane in trace.lanes()]
        if trace.n <= max(window, allowed):
            return self.whole(trace, scores, forced)
        each = [one[: trace.n - window] for one in scores]
        shares, margin = budgets.dynamic_shares([each[pool[0] : pool[-1] + 1] for pool in layer_pools(trace)], trace.n, allowed, window)
        self.near(margin)
        return Decision(scores, [forced] * len(scores), of_lanes(trace, shares), shares=of_lanes(trace, shares))

    def test_fields(self):
        trace = small(70, 100, (8, 2), layers=4)
        for fields in ({"window": 1}, {"window": 8, "pool": "none"}, {"pool": "avg:5", "rows": "max"}, {"rows": "mean", "group": "max", "window": 16}):
            self.given(trace)
            for budget in (5, 20, 40, 70, 98):
                self.same(trace, budget, **fields)

    def test_a_layer_that_has_all_the_best(self):
        trace = small(71, 60, (8, 2), layers=3)
        trace.queries[1:, :, :, :] = trace.queries[1:] * 0.01
        trace.queries = put(trace, "queries", trace.queries)
        self.given(trace)
        for budget in (12, 30, 50):
            self.same(trace, budget, window=8, rows="max")


class Finch(ByWindow):
    policy, usual, sinks_besides = "finch", {"window": 32, "counts": "exact", "group": "mean"}, True

    def decision(self, trace, allowed, sinks, window, counts, group):
        forced = last_ones(trace.n, window) | first_ones(trace, sinks)
        scores = [behind_forced(prompt.finch(prompt.prefix_attention(trace, *lane, window), trace.n, counts, group), trace.n) for lane in trace.lanes()]
        return Decision(scores, [forced] * len(scores), [allowed] * len(scores))

    def test_fields(self):
        trace = self.given(small(70, 90, (8, 2), gap=7))
        for counts in ("exact", "kvpress"):
            for window, group in ((1, "mean"), (8, "sum"), (32, "max"), (70, "mean")):
                self.same(trace, 75, window=window, counts=counts, group=group)


class CriticalKv(ByWindow):
    policy, sinks_besides = "critical_kv", True
    usual = {"first": 0.5, "epsilon": 0.0001, "window": 32, "pool": "avg:5", "scores": ""}

    def tensors(self, trace, dice):
        projected(trace, dice)

    def base(self, trace, window, pool, scores, sinks):
        if scores:
            given = np.broadcast_to(trace.given, (trace.layers, trace.kv_heads, trace.n))
            return [given[lane] for lane in trace.lanes()], first_ones(trace, sinks)
        return ([oracles.window_scores(trace, *lane, window, pool, "mean", "mean") for lane in trace.lanes()],
                last_ones(trace.n, window) | first_ones(trace, sinks))

    def decision(self, trace, allowed, sinks, first, epsilon, window, pool, scores):
        base, forced = self.base(trace, window, pool, scores, sinks)
        if trace.n <= allowed or forced.all():
            return self.whole(trace, base, forced)
        made = []
        for lane, one in zip(trace.lanes(), base):
            ranked, gap = prompt.critical(one, prompt.projected_norms(trace, *lane), forced, allowed, prompt.first_places(first, allowed), epsilon)
            made.append(ranked)
            self.near(gap)
        return Decision(made, [forced] * len(made), [allowed] * len(made))

    def test_fields(self):
        trace = self.given(small(70, 100, (8, 2)))
        for fields in ({"first": 0}, {"first": 0.29}, {"first": 0.9}, {"first": 1}, {"epsilon": 0}, {"epsilon": 1}, {"window": 1, "pool": "none"}, {"window": 60, "pool": "max:7"}):
            for budget in (10, 40, 70, 99):
                self.same(trace, budget, **fields)

    def test_scores_that_are_given(self):
        """They force nothing; of the first many are equal."""
        for seed, (shape, steps) in enumerate((((3, 2, 60), 5), ((60,), 4), ((3, 2, 60), None))):
            trace, dice = small(80 + seed, 60, (8, 2)), np.random.default_rng(seed)
            trace.given = put(trace, "external.mine", dice.integers(1, steps, shape) / 4 if steps else dice.uniform(0.5, 4, shape))
            trace.value_norms = put(trace, "value_norms", dice.integers(1, 4, (3, 2, 60)) / 2)
            self.write(trace, without=("queries",))
            for budget in (0, 1, 2, 14, 30, 59, 60):
                for first in (0, 0.01, 0.5, 1):
                    self.same(trace, budget, scores="mine", first=first, epsilon=0.25)
            self.same(trace, 30, sinks=3, scores="mine")
            self.same(trace, ratio=0.5, scores="mine")

    def test_given_scores_that_are_missing(self):
        self.given(small(84, 60))
        self.refused("external.mine", "--policy", self.policy, "--budget", 20, scores="mine")

    def test_norms_that_the_trace_has(self):
        trace = self.given(small(85, 80, (8, 2)))
        trace.value_norms = put(trace, "value_norms", np.random.default_rng(85).uniform(0, 2, (3, 2, 80)))
        for without in ((), ("values", "output_projection")):
            self.write(trace, without=without)
            self.same(trace, 45)


class CriticalAdaKv(CriticalKv):
    policy, usual = "critical_ada_kv", {**CriticalKv.usual, "floor": 0.2}

    def decision(self, trace, allowed, sinks, first, epsilon, window, pool, scores, floor):
        base, forced = self.base(trace, window, pool, scores, sinks)
        if trace.n <= allowed or forced.all():
            return self.whole(trace, base, forced)
        made, shares = [], []
        for lanes in layer_pools(trace):
            each, gap = budgets.lane_budgets([base[s] for s in lanes], [forced] * len(lanes), allowed, floor)
            self.near(gap)
            shares += each
        for lane, one, share in zip(trace.lanes(), base, shares):
            count = max(budgets.sure_places(allowed, floor), int(first * share))
            ranked, gap = prompt.critical(one, prompt.projected_norms(trace, *lane), forced, share, count, epsilon)
            made.append(ranked)
            self.near(gap if share < trace.n else np.inf)
        return Decision(made, [forced] * len(made), shares, shares=shares)

    def test_floors(self):
        trace = self.given(small(90, 100, (8, 4)))
        for floor in (0, 0.01, 0.5, 1):
            for budget in (1, 20, 40, 70, 99):
                self.same(trace, budget, floor=floor)
                self.same(trace, budget, floor=floor, window=1)


class OwnSinks:
    """Systems with a field of that name, which is no option here."""

    def same(self, trace, budget=None, ratio=None, mode=(), **fields):
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, mode=mode, **fields):
            self.clear, self.compared = True, self.compared + 1
            expected = self.decision(trace, budget_of(trace.n, budget, ratio), **{**self.usual, **fields})
            self.left_out += not self.clear
            if self.clear:
                self.decides(expected, *how_much(budget, ratio), *mode, **fields)


class KvZip(OwnSinks, AtOnce):
    policy, usual, without, scope = "kvzip", {"sinks": 4, "plus": False}, ("queries",), "global"
    own = True

    def tensors(self, trace, dice):
        """Chunks of different lengths, with as many rows and some more; one that comes twice, and entries in none."""
        n = trace.n
        cuts = sorted({0, min(n, 3), n // 3, n // 2, max(0, n - 2)})
        about = [(a, b) for a, b in zip(cuts, cuts[1:]) if a < b] or [(0, n)]
        about += [about[0]] * (len(about) > 1)
        rows = [pair for i, pair in enumerate(about) for _ in range(1 + min(5, pair[1] - pair[0]) + i % 2)]
        trace.row_begin, trace.row_end = np.array(rows).T
        trace.stored["row_begin"], trace.stored["row_end"] = (("I32", one.astype(np.int32)) for one in (trace.row_begin, trace.row_end))
        trace.query_rows = put(trace, "query_rows", dice.normal(0, 1.2, (trace.layers, trace.query_heads, len(rows), trace.d)), trace.dtype)
        trace.stored["query_positions"] = ("I64", np.arange(n, n + len(rows)))
        trace.query_keys = put(trace, "query_keys", dice.normal(0, 1.2, (trace.layers, trace.kv_heads, len(rows), trace.d)), trace.dtype) if self.own else None
        trace.hidden_norm = put(trace, "query_hidden_norm", dice.uniform(0.5, 2, (trace.layers, len(rows))))
        projected(trace, dice)

    def decision(self, trace, allowed, sinks, plus):
        lanes = trace.lanes()
        scores, forced = [prompt.kvzip(trace, *lane, sinks, plus) for lane in lanes], first_ones(trace, sinks)
        pools = {"lane": None, "layer": layer_pools(trace), "global": [list(range(len(lanes)))]}[self.scope]
        return Decision(scores, [forced] * len(lanes), [allowed] * len(lanes), pools, "unsaid")

    def test_scopes(self):
        trace = self.given(small(71, 90, (8, 2)))
        for self.scope in ("lane", "layer", "global"):
            for budget in (0, 20, 60):
                self.same(trace, budget, mode=("--budget-scope", self.scope))

    def test_fields(self):
        trace = self.given(small(70, 90, (8, 2)))
        for sinks in (0, 1, 4, 40, 90):
            for plus in (False, True):
                self.same(trace, 33, sinks=sinks, plus=plus)

    def test_rows_without_keys_of_their_own(self):
        self.own = False
        trace = self.given(small(72, 90, (8, 2)))
        self.same(trace, 40)
        self.same(trace, 40, plus=True)

    def test_norms_that_the_trace_has(self):
        trace = self.given(small(73, 60, (8, 2)))
        trace.value_norms = put(trace, "value_norms", np.random.default_rng(73).uniform(0, 2, (3, 2, 60)))
        self.write(trace, without=("values", "output_projection", "queries"))
        self.same(trace, 30, plus=True)


class KvCompose(AtOnce):
    policy, without = "kvcompose", ("queries",)
    usual = {"rows": "max", "group": "mean", "add_mean": True, "values": False, "first_layer": True}

    def tensors(self, trace, dice, rows=5):
        trace.query_rows = put(trace, "query_rows", dice.normal(0, 1.2, (trace.layers, trace.query_heads, rows, trace.d)), trace.dtype)
        trace.stored["query_positions"] = ("I32", np.arange(trace.n, trace.n + rows, dtype=np.int32))
        trace.lse = None

    def decision(self, trace, allowed, sinks, rows, group, add_mean, values, first_layer):
        scores = [prompt.kvcompose(trace, layer, rows, group, add_mean, values, trace.lse) for layer in range(trace.layers)]
        lanes, none = [one for layer in scores for one in layer], np.zeros(trace.n, bool)
        if trace.n <= allowed:
            return self.whole(trace, lanes, none)
        counts, gap, _ = budgets.composite_counts(scores, allowed, first_layer)
        self.near(gap)
        return Decision(lanes, [none] * len(lanes), of_lanes(trace, counts), shares=of_lanes(trace, counts))

    def test_fields(self):
        trace = self.given(small(70, 80, (8, 2), layers=4))
        for add_mean in (False, True):
            for values in (False, True):
                for first_layer in (False, True):
                    for rows, group in (("max", "mean"), ("mean", "max"), ("sum", "sum")):
                        self.same(trace, 30, add_mean=add_mean, values=values, first_layer=first_layer, rows=rows, group=group)

    def test_sums_that_the_model_gives(self):
        trace = self.given(small(71, 70, (8, 2)))
        logits = trace.logits_of(np.einsum("lhrd,lhjd->lhrj", trace.query_rows, trace.keys.repeat(trace.group, axis=1)))
        trace.lse = put(trace, "query_lse", np.log(np.exp(logits).sum(axis=-1)) + np.random.default_rng(71).uniform(0, 1, logits.shape[:3]))
        self.write(trace, without=("queries",))
        self.same(trace, 30)

    def test_a_layer_that_has_nothing_of_the_best(self):
        trace = self.given(small(72, 60, (8, 2), layers=3))
        trace.query_rows[1] *= 0.001
        trace.query_rows = put(trace, "query_rows", trace.query_rows)
        self.write(trace, without=("queries",))
        for budget in (1, 2, 20):
            self.same(trace, budget, values=False, first_layer=False)
        self.assertEqual(len(self.expected.shares), 6)


class OfQueries(AtOnce):
    """By what queries are like: rows before RoPE, or a model of them."""
    theta, style, square = 10000.0, "neox", True

    def tensors(self, trace, dice):
        trace.turns, trace.style = self.theta ** (-2 * np.arange(trace.d // 2) / trace.d), self.style
        trace.pre_rope_queries = put(trace, "pre_rope_queries", dice.normal(0.3, 0.8, (trace.layers, trace.query_heads, trace.n, trace.d)), trace.dtype)
        return {"rope_theta": repr(self.theta), "rope_style": self.style}

    def modelled(self, trace):
        """A model instead of rows."""
        dice, heads = np.random.default_rng(trace.n), (trace.layers, trace.query_heads)
        root = dice.normal(0, 0.3, (*heads, trace.d, trace.d))
        metadata = self.tensors(trace, dice)
        trace.query_mean = put(trace, "query_model.mean", dice.normal(0, 1, (*heads, trace.d)))
        trace.query_square = put(trace, "query_model.square", root @ root.swapaxes(-1, -2))
        self.write(trace, metadata, without=("queries", "pre_rope_queries"))
        return trace

    def test_a_model_of_queries(self):
        for seed, heads in enumerate(GROUPS):
            self.style = ("neox", "gptj")[seed % 2]
            self.same_sizes(self.modelled(small(70 + seed, (60, 97, 40)[seed], heads, gap=5 * seed)))

    def test_rope(self):
        for self.theta, self.style, gap in ((500.0, "gptj", 0), (1e6, "neox", 300000)):
            trace = self.given(small(74, 50, (8, 2), gap=gap))
            for future in (0, 1, 7, 600):
                self.same(trace, 20, future=future)

    def test_sinks(self):
        trace = self.given(small(75, 40, (8, 2)))
        for sinks in (0, 1, 12, 39, 40, 50):
            self.same(trace, 20, **{"sinks": sinks})


class ExpectedAttention(OwnSinks, OfQueries):
    policy, without = "expected_attention", ("queries",)
    usual = {"future": 512, "sinks": 4, "epsilon": 0, "covariance": True, "values": True}
    says = ({"scale": 0.3}, {"scale": 0.3, "cap": 4.0}, {"sinks": "F32"})

    def decision(self, trace, allowed, sinks, **how):
        scores = [prompt.expected_attention(trace, *lane, sinks=sinks, **how) for lane in trace.lanes()]
        return Decision(scores, [first_ones(trace, sinks)] * len(scores), [allowed] * len(scores))

    def test_fields(self):
        trace = self.given(small(76, 80, (8, 2)))
        for covariance in (False, True):
            for values in (False, True):
                for epsilon in (0, 0.02):
                    self.same(trace, 30, covariance=covariance, values=values, epsilon=epsilon, future=20)

    def test_a_model_without_a_covariance(self):
        trace = self.modelled(small(77, 50, (8, 2)))
        self.write(trace, {"rope_theta": "10000"}, without=("queries", "pre_rope_queries", "query_model.square"))
        self.same(trace, 20, covariance=False)
        self.refused("query_model.square", "--policy", self.policy, "--budget", 20)


class CapKv(OwnSinks, OfQueries):
    policy, without, says = "cap_kv", ("queries",), ()
    usual = {"tau": 5, "future": 512, "sinks": 4, "epsilon": 0.000001}

    def decision(self, trace, allowed, sinks, **how):
        scores = [prompt.cap_kv(trace, *lane, sinks=sinks, **how) for lane in trace.lanes()]
        return Decision(scores, [first_ones(trace, sinks)] * len(scores), [allowed] * len(scores))

    def test_fields(self):
        trace = self.given(small(76, 80, (8, 2)))
        for tau, epsilon in ((0, 0), (1, 0.5), (20, 1e-6), (5, 0)):
            self.same(trace, 30, tau=tau, epsilon=epsilon, future=20)


class LagKv(OwnSinks, AtOnce):
    policy, without, says = "lag_kv", ("queries",), ()
    usual = {"lag": 128, "sinks": 4, "cross": False}

    def decision(self, trace, allowed, sinks, lag, cross):
        made = [prompt.lag_kv(trace.keys[lane], trace.values[lane], lag, sinks, cross) for lane in trace.lanes()]
        if trace.n > allowed:
            self.near(min(gap for _, _, gap in made), 2e-6)
        return Decision([one for one, _, _ in made], [forced for _, forced, _ in made], [allowed] * len(made), near=NEAR if cross else 0)

    def test_fields(self):
        for seed, n in enumerate((100, 97, 61)):
            trace = self.given(small(70 + seed, n, GROUPS[seed], dtype=("F32", "F16", "F64")[seed]))
            for cross in (False, True):
                for lag, sinks in ((1, 0), (2, 3), (8, 4), (20, 0), (20, 21), (n // 2, 0), (n // 2, 1), (n, 4), (8, n), (8, n + 5)):
                    for budget in (10, n // 2, n - 3):
                        self.same(trace, budget, lag=lag, sinks=sinks, cross=cross)

    def test_blocks_of_the_usual_size(self):
        trace = self.given(small(73, 400, layers=2))
        for budget in (100, 200, 399):
            self.same(trace, budget, cross=True)
        self.same(trace, 250)

    def test_channels_of_one_number(self):
        """Their range is nothing, whatever others have there; and rows that are alike."""
        trace = small(74, 60, (8, 2))
        trace.keys[:, :, 20:30, 5] = 0.25
        trace.values[:, :, 30:40] = 0.5
        trace.keys[:, :, 12:20] = trace.keys[:, :, 12:13]
        trace.values[:, :, 12:20] = trace.values[:, :, 12:13]
        for name in ("keys", "values"):
            setattr(trace, name, put(trace, name, getattr(trace, name)))
        self.given(trace)
        for cross in (False, True):
            self.same(trace, 30, lag=10, sinks=0, cross=cross)


class Cur(OwnSinks, AtOnce):
    policy, without, says = "cur", ("queries",), ()
    usual = {"sinks": 4, "block": 16, "of": "product"}

    def decision(self, trace, allowed, sinks, block, of):
        scores = [prompt.cur(trace.keys[lane], trace.values[lane], block, of) for lane in trace.lanes()]
        return Decision(scores, [first_ones(trace, sinks)] * len(scores), [allowed] * len(scores))

    def test_fields(self):
        for seed, n in enumerate((90, 61)):
            trace = self.given(small(70 + seed, n, GROUPS[1 + seed]))
            for of in ("product", "key", "value", "mean"):
                for block, sinks in ((0, 0), (1, 4), (7, 4), (16, 0), (n, 1), (500, 4), (16, n)):
                    self.same(trace, 30, of=of, block=block, sinks=sinks)

    def test_rows_of_zeros(self):
        trace = small(72, 64, (8, 2))
        trace.keys[:, :, 16:32] = trace.values[1] = 0
        for name in ("keys", "values"):
            put(trace, name, getattr(trace, name))
        self.given(trace)
        for of in ("product", "key", "value", "mean"):
            self.same(trace, 30, of=of)


class Leverage(AtOnce):
    policy, usual, without, sinks_besides, says = "leverage", {"sketch": 48, "seed": 42, "jitter": 0.01}, ("queries",), True, ()

    def tensors(self, trace, dice):
        trace.pre_rope_keys = put(trace, "pre_rope_keys", dice.normal(0.5, 1, (trace.layers, trace.kv_heads, trace.n, trace.d)), trace.dtype)

    def decision(self, trace, allowed, sinks, **how):
        scores = [one for layer in range(trace.layers) for one in prompt.leverage(trace, layer, np.arange(trace.n), **how)]
        made = Decision(scores, [first_ones(trace, sinks)] * len(scores), [allowed] * len(scores))
        made.size = 1.0
        return made

    def test_fields(self):
        trace = self.given(small(70, 80, (8, 2)))
        for sketch, seed, jitter in ((0, 42, 0.01), (1, 7, 0.01), (8, 0, 1), (16, 42, 10), (40, 3, 0.001)):
            self.same(trace, 30, sketch=sketch, seed=seed, jitter=jitter)

    def test_a_sketch_that_is_given(self):
        for shape in ((16, 5), (3, 2, 16, 5), (16, 16), (3, 2, 16, 1)):
            trace = small(71, 60, (8, 2))
            trace.sketch = put(trace, "table.sketch", np.random.default_rng(5).normal(0, 0.3, shape))
            self.given(trace)
            self.same(trace, 25)
            self.same(trace, 25, sketch=7)


class Compactor(OwnSinks, Leverage):
    policy, without, sinks_besides, says = "compactor", (), False, ({"cap": 4.0}, {"sinks": "F32"}, {"scale": 0.3})
    usual = {"sinks": 8, "recent": 4, "chunk": 256, "blend": -1, "sketch": 48, "seed": 42, "jitter": 0.01, "padding": "none"}

    def decision(self, trace, allowed, sinks, recent, **how):
        scores = [one for layer in range(trace.layers) for one in prompt.compactor(trace, layer, allowed, sinks, recent, **how)]
        forced = np.ones(trace.n, bool)
        forced[prompt.compactor_middle(trace.n, sinks, recent)] = False
        made = Decision(scores, [forced] * len(scores), [allowed] * len(scores))
        made.size = 1.0
        return made

    def test_fields(self):
        for seed, n in enumerate((80, 61)):
            trace = self.given(small(72 + seed, n, GROUPS[1 + seed]))
            for padding in ("none", "kvpress"):
                for sinks, recent, chunk, blend in ((8, 4, 16, -1), (0, 0, 20, 0.5), (3, 40, 7, 0), (0, 1, 500, 2), (n, 4, 16, -1), (n - 1, 4, 16, -1), (n - 2, 1, 16, -1)):
                    self.same(trace, 30, sinks=sinks, recent=recent, chunk=chunk, blend=blend, padding=padding, sketch=8)


class NoBudget:
    """Systems that say themselves how much stays."""
    budgets, ratios = (), ()

    def test_a_budget_is_refused(self):
        self.given(small(80, 64))
        for more in (("--budget", 10), ("--ratio", 0.5)):
            self.refused(f"{more[0]} = {more[1]}", "--policy", self.policy, *more)


class PyramidInfer(NoBudget, AtOnce):
    policy, by_layer = "pyramid_infer", True
    usual = {"rows": 0.2, "ramp": 1.2, "first": 0.9, "last": 0.3, "curve": "cosine", "least": 64, "sinks": 4}

    def same(self, trace, budget=None, **fields):
        how = {**self.usual, **fields}
        with self.subTest(n=trace.n, **fields):
            rows = max(1, budgets.part_of(how["rows"], trace.n))
            scores = [budgets.weighted_rows(prompt.all_heads(trace, layer, rows), how["ramp"]) for layer in range(trace.layers)]
            shares = budgets.pyramid_infer_shares(trace.layers, trace.n, how["first"], how["last"], how["curve"], how["least"])
            forced = [last_ones(trace.n, rows) | first_ones(trace, how["sinks"])] * trace.layers
            expected = Decision(scores, forced, shares, shares=shares if min(shares) < trace.n else "unsaid")
            expected.copies = trace.kv_heads
            self.decides(expected, **fields)

    def test_fields(self):
        for seed, (n, layers) in enumerate(((150, 5), (97, 1), (64, 2), (100, 4))):
            trace = self.given(small(70 + seed, n, GROUPS[seed % 3], layers))
            for curve in ("cosine", "linear"):
                for rows, first, last, least, sinks in ((0.2, 0.9, 0.3, 8, 4), (0.01, 1, 0, 1, 0), (0.3, 0.7, 0.29, 0, 9), (1, 0.5, 0.5, 10, 4), (0, 0.2, 0.8, 5, 0)):
                    self.same(trace, curve=curve, rows=rows, first=first, last=last, least=least, sinks=sinks)
            self.same(trace, least=10, ramp=1)
            self.same(trace, least=10, ramp=5)


class Recipes(NoBudget, AtOnce):
    """Those that take one of a few keep sets by what it would keep."""

    def chosen_of(self, trace, **how):
        """Of each segment: which, who stays, and how near another is."""
        raise NotImplementedError

    def same(self, trace, budget=None, **fields):
        with self.subTest(n=trace.n, **fields):
            made = self.chosen_of(trace, **{**self.usual, **fields})
            self.compared += 1
            if min(margin for *_, margin in made) <= 2 * NEAR:
                self.left_out += 1
                return
            segments = len(made)
            expected = Decision(np.zeros((segments, trace.n)), [np.ones(trace.n, bool)] * segments, [trace.n] * segments)
            expected.fixed = [np.flatnonzero(stays).tolist() for _, stays, _ in made]
            expected.besides, expected.scoreless = {"recipe": [int(one) for one, _, _ in made]}, True
            expected.copies = trace.kv_heads if self.by_layer else 1
            self.decides(expected, **fields)


class FastGen(Recipes):
    policy, usual = "fastgen", {"recover": 0.95, "recent": 0.3, "frequent": 0.3}

    def tensors(self, trace, dice):
        trace.classes = dice.choice([0, 0, 0, 1, 2, 2, 5], trace.n)
        trace.stored["token_class"] = ("I32", trace.classes.astype(np.int32))

    def chosen_of(self, trace, **how):
        live, made = np.arange(trace.n), []
        for layer, head in trace.lanes():
            mass = np.sum([trace.softmax(layer, h, live, live).sum(axis=0) for h in trace.heads_of(head)], axis=0)
            made.append(budgets.fastgen(mass, trace.classes, **how))
        return made

    def test_fields(self):
        found = set()
        for seed, n in enumerate((100, 61, 40)):
            trace = self.given(small(70 + seed, n, GROUPS[seed]))
            for recover in (0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 0.99, 1):
                for recent, frequent in ((0.3, 0.3), (0, 0), (0.7, 0.1), (0.1, 0.7), (1, 0)):
                    self.same(trace, recover=recover, recent=recent, frequent=frequent)
                    found |= set(self.expected.besides["recipe"])
        self.assertEqual(found, {0, 1, 2, 3, 4})


class SimLayerKv(Recipes):
    policy, by_layer = "simlayer_kv", True
    usual = {"threshold": 1, "initial": 4, "recent": 1024, "last": 1}

    def chosen_of(self, trace, **how):
        return [budgets.simlayer_kv(prompt.all_heads(trace, layer, how["last"]), trace.n, **how) for layer in range(trace.layers)]

    def test_fields(self):
        found = set()
        for seed, n in enumerate((100, 61, 40)):
            trace = self.given(small(70 + seed, n, GROUPS[seed], layers=5))
            for threshold in (0, 0.1, 0.2, 0.3, 0.5, 0.99, 1, 2):
                for initial, recent, last in ((4, 8, 1), (0, 20, 5), (10, 2, 6), (1, n - 3, 1), (1, n - 2, 1), (4, 1, 1)):
                    self.same(trace, threshold=threshold, initial=initial, recent=recent, last=last)
                    found |= set(self.expected.besides["recipe"])
        self.assertEqual(found, {0, 1})


class MpCachePrompt(NoBudget, AtOnce):
    policy, by_layer = "mp_cache_prompt", True
    usual = {"rows": 0.2, "long_rows": 0.1, "long": 24000, "threshold": 0.001}

    def same(self, trace, budget=None, **fields):
        how = {**self.usual, **fields}
        with self.subTest(n=trace.n, **fields):
            rows = max(1, budgets.part_of(how["long_rows"] if trace.n > how["long"] else how["rows"], trace.n))
            scores = [budgets.mp_cache_prompt(prompt.all_heads(trace, layer, rows)) for layer in range(trace.layers)]
            forced = last_ones(trace.n, rows)
            kept = [np.flatnonzero(forced | (one >= how["threshold"])).tolist() for one in scores]
            self.compared += 1
            if min([abs(one[~forced] / how["threshold"] - 1).min(initial=1) for one in scores]) <= 2 * NEAR:
                self.left_out += 1
                return
            expected = Decision(scores, [forced] * len(scores), [len(one) for one in kept])
            expected.fixed, expected.copies = kept, trace.kv_heads
            self.decides(expected, **fields)

    def test_fields(self):
        for seed, n in enumerate((100, 61, 40)):
            trace = self.given(small(70 + seed, n, GROUPS[seed]))
            for rows, long_rows, long in ((0.2, 0.1, 24000), (0.5, 0.05, n), (0.5, 0.05, n - 1), (0, 0, 0), (1, 1, 5), (0.29, 0.7, 1)):
                for threshold in (1e-6, 0.01, 0.03, 0.1, 2):
                    self.same(trace, rows=rows, long_rows=long_rows, long=long, threshold=threshold)


class EpiCache(AtOnce):
    policy, without, usual = "epi_cache", ("queries",), {"table": "drift", "power": 1.1, "floor": 0.25}

    def tensors(self, trace, dice, rows=4, name="drift"):
        trace.query_rows = put(trace, "query_rows", dice.normal(0, 1.2, (trace.layers, trace.query_heads, rows, trace.d)), trace.dtype)
        trace.stored["query_positions"] = ("I32", np.arange(trace.n, trace.n + rows, dtype=np.int32))
        trace.drift = put(trace, f"table.{name}", dice.uniform(0.05, 1, trace.layers))

    def decision(self, trace, allowed, sinks, table, power, floor):
        scores, none = [prompt.epi_cache(trace, *lane) for lane in trace.lanes()], np.zeros(trace.n, bool)
        if trace.n <= allowed:
            return self.whole(trace, scores, none)
        shares, margin = budgets.drift_shares(trace.drift, power, floor, trace.n, trace.kv_heads, allowed)
        self.near(margin, 1e-3)
        per_lane = [share if head == 0 else 0 for share in shares for head in range(trace.kv_heads)]
        return Decision(scores, [none] * len(scores), per_lane, layer_pools(trace), "unsaid")

    def test_fields(self):
        trace = small(70, 90, (8, 2), layers=5)
        self.tensors(trace, np.random.default_rng(70), 3, "mine")
        self.write(trace, without=self.without)
        for power in (0, 0.5, 1, 3, 20):
            for floor in (0, 0.25, 0.5, 1):
                for budget in (5, 31, 60, 85):
                    self.same(trace, budget, power=power, floor=floor, table="mine")

    def test_chunks(self):
        """Entries come in parts, and the layers share what they may keep whenever they have more of it."""
        for seed, (budget, chunk) in enumerate(((16, 8), (5, 16), (40, 13))):
            trace = self.given(small(71 + seed, 60, GROUPS[seed]))
            kept, events, there, scores, gap = budgets.epi_cache_in_chunks(trace, budget, [*range(chunk, trace.n, chunk), trace.n], 1.1, 0.25)
            self.compared += 1
            if gap <= 2 * NEAR:
                self.left_out += 1
                continue
            expected = Decision(scores, [np.zeros(trace.n, bool)] * len(kept), [len(one) for one in kept], layer_pools(trace), "unsaid")
            expected.live, expected.fixed, expected.events = there, kept, events
            with self.subTest(budget=budget, chunk=chunk):
                self.decides(expected, "--budget", budget, "--mode", "chunks", "--chunk", chunk)


class AdaEa(admission_test.Admission):
    """An admission by thresholds of query heads."""
    policy, told = "ada_ea", {"nan_scores": None}
    usual = {"window": 256, "sinks": 4, "covariance": True, "thresholds": "thresholds"}

    def modelled(self, seed, entries, dtype="F32", name="thresholds", **more):
        trace = admission_test.Small(seed, entries, dtype, **more)
        dice, heads = np.random.default_rng(seed), (trace.layers, trace.kv_heads * trace.group)
        root = dice.normal(0, 0.3, (*heads, trace.d, trace.d))
        trace.query_mean = put(trace, "query_model.mean", dice.normal(0, 0.5, (*heads, trace.d)))
        trace.query_square = put(trace, "query_model.square", root @ root.swapaxes(-1, -2))
        trace.thresholds = put(trace, f"table.{name}", dice.normal(0.5, 1, heads))
        trace.scale, trace.cap = None, 0.0
        trace.heads_of = lambda head: range(head * trace.group, (head + 1) * trace.group)
        del trace.stored["gate"]
        self.write(trace)
        return trace

    def admits(self, trace, sinks, covariance):
        made = [prompt.ada_ea(trace, *lane, covariance) for lane in trace.lanes()]
        self.assertGreater(min(margin for _, margin in made), NEAR, "near a threshold: choose another seed")
        return [[j < sinks or bool(fine) for j, fine in enumerate(one)] for one, _ in made]

    def same_lists(self, result, expected):
        self.assertEqual(ragged(result), [glob + local for glob, local, _ in expected])
        self.assertEqual(ragged(result, "local"), [local for _, local, _ in expected])

    def everywhere(self, trace, window, sinks=0, covariance=True, cap=None, starts=(), **fields):
        with self.subTest(n=trace.n, window=window, sinks=sinks, covariance=covariance, cap=cap):
            admits = self.admits(trace, sinks, covariance)
            self.both_modes(trace, self.policy, admits, window, cap, starts, sinks=sinks, covariance=covariance, **fields)

    def test_around_the_window_in_every_type(self):
        for seed, (window, extra) in enumerate(((4, -1), (4, 0), (8, 1), (1, 0), (1, 7), (8, 20), (16, 17), (2, 30), (128, 20))):
            n = window + extra
            trace = self.modelled(seed, n, ("F32", "F16", "BF16", "F64")[seed % 4], gap=50 * (seed % 2))
            self.everywhere(trace, window, starts=sorted({0, n // 2, max(0, n - 1), n}))
            self.everywhere(trace, window, covariance=False, starts=(n // 2,))

    def test_sinks_and_caps(self):
        for sinks, window, cap in ((3, 4, None), (9, 1, 5), (40, 4, 0), (2, 40, None), (0, 2, 100)):
            trace = self.modelled(30 + sinks, 30)
            self.everywhere(trace, window, sinks, cap=cap, starts=(0, 13))

    def test_a_table_of_another_name(self):
        self.everywhere(self.modelled(50, 30, name="mine"), 4, starts=(9,), thresholds="mine")

    def test_the_usual_fields(self):
        trace = self.modelled(51, 290, layers=1, kv_heads=2)
        expected = [run_lane(one, 256) for one in self.admits(trace, 4, True)]
        self.same(trace, self.replay(self.policy, "--attend"), expected)

    def test_a_model_of_its_own_scale(self):
        trace = self.modelled(52, 40)
        trace.scale = 0.3
        self.write(trace, {"attention_scale": "0.3"})
        self.same_lists(self.replay(self.policy, window=4, sinks=0), [run_lane(one, 4) for one in self.admits(trace, 0, True)])


SYSTEMS = {one.policy: one for one in (Cake, DefensiveKv, LayerDefensiveKv, CompressKv, DynamicKv, PyramidInfer, FastGen, SimLayerKv, Finch, KvCompose, CriticalKv,
                                       CriticalAdaKv, KvZip, ExpectedAttention, CapKv, AdaEa, LagKv, Cur, MpCachePrompt, EpiCache, Leverage, Compactor)}


# As in systems_test.py: fields and defaults, modes, what it decides for, a tensor it cannot do without, values it refuses
CONTRACTS = {
    "cake": ("window=32 pool=avg:5 gamma=200 tau1=1 tau2=1 rounding=largest", "prefill", "lane", "queries", "window=-1 window=1 pool=max:2 gamma=nan tau1=0 rounding=up"),
    "defensive_kv": ("window=32 pool=avg:5 cover=0.9 bias=window norm_axis=heads", "prefill", "lane", "output_projection", "window=-1 pool=max:2 cover=nan bias=none norm_axis=rows"),
    "layer_defensive_kv": ("window=32 pool=avg:5 cover=0.9 bias=window norm_axis=heads", "prefill", "lane", "output_projection", "window=-1 pool=max:2 bias=none norm_axis=rows"),
    "compress_kv": ("window=8 pool=avg:5 voters=voters importance=importance floor=32 cap=3", "prefill", "layer", "table.voters", "window=-1 pool=max:2 floor=-1 cap=nan"),
    "dynamic_kv": ("window=32 pool=max:7 rows=sum group=mean", "prefill", "lane", "queries", "window=-1 pool=max:2 rows=median group=median"),
    "pyramid_infer": ("rows=0.2 ramp=1.2 first=0.9 last=0.3 curve=cosine least=64 sinks=4", "prefill", "layer", "queries", "rows=-1 ramp=nan first=nan curve=steep least=-1 sinks=-1"),
    "fastgen": ("recover=0.95 recent=0.3 frequent=0.3", "prefill", "lane", "token_class", "recover=nan recent=-1 frequent=2"),
    "simlayer_kv": ("threshold=1 initial=4 recent=1024 last=1", "prefill", "layer", "queries", "threshold=nan initial=-1 recent=-1 last=0"),
    "finch": ("window=32 counts=exact group=mean", "prefill", "lane", "queries", "window=-1 counts=none group=median"),
    "kvcompose": ("rows=max group=mean add_mean=true values=false first_layer=true", "prefill", "lane", "query_rows", "rows=median group=median add_mean=perhaps"),
    "critical_kv": ("first=0.5 epsilon=0.0001 window=32 pool=avg:5 scores=", "prefill", "lane", "output_projection", "first=-0.5 first=1.5 epsilon=nan window=-1 pool=max:2"),
    "critical_ada_kv": ("first=0.5 epsilon=0.0001 window=32 pool=avg:5 scores= floor=0.2", "prefill", "lane", "output_projection", "first=1.5 epsilon=nan window=-1 floor=1.5 floor=-1"),
    "kvzip": ("sinks=4 plus=false", "prefill", "lane", "row_begin", "sinks=-1 plus=perhaps"),
    "expected_attention": ("future=512 sinks=4 epsilon=0 covariance=true values=true", "prefill", "lane", "pre_rope_queries", "future=-1 sinks=-1 epsilon=nan covariance=perhaps"),
    "cap_kv": ("tau=5 future=512 sinks=4 epsilon=0.000001", "prefill", "lane", "pre_rope_queries", "tau=nan future=-1 sinks=-1 epsilon=nan"),
    "ada_ea": ("window=256 sinks=4 covariance=true thresholds=thresholds", "prefill decode", "lane", "table.thresholds", "window=-1 sinks=-1 covariance=perhaps"),
    "lag_kv": ("lag=128 sinks=4 cross=false", "prefill", "lane", "values", "lag=0 sinks=-1 cross=perhaps"),
    "cur": ("sinks=4 block=16 of=product", "prefill", "lane", "values", "sinks=-1 block=-1 of=sum"),
    "mp_cache_prompt": ("rows=0.2 long_rows=0.1 long=24000 threshold=0.001", "prefill", "layer", "queries", "rows=-1 long_rows=2 long=-1 threshold=nan"),
    "epi_cache": ("table=drift power=1.1 floor=0.25", "prefill chunks", "lane", "table.drift", "power=nan floor=-1 floor=1.5"),
    "leverage": ("sketch=48 seed=42 jitter=0.01", "prefill", "lane", "pre_rope_keys", "sketch=-1 jitter=nan"),
    "compactor": ("sinks=8 recent=4 chunk=256 blend=-1 sketch=48 seed=42 jitter=0.01 padding=none", "prefill", "lane", "pre_rope_keys", "sinks=-1 recent=-1 chunk=0 blend=nan padding=all"),
}


class PromptContract(Contract):
    contracts = CONTRACTS

    def a_trace(self, without=()):
        trace, cases = small(0, 40), SYSTEMS[self.system]
        if self.system == "ada_ea":
            for name, values in (("table.thresholds", np.ones((3, 2))), ("query_model.mean", np.ones((3, 2, 16))), ("query_model.square", np.ones((3, 2, 16, 16)))):
                put(trace, name, values)
        else:
            cases("test_every_group_and_type").tensors(trace, np.random.default_rng(0))
        trace.stored["turn_end"] = ("I32", np.array([20, 40], np.int32))
        self.write(trace, {"rope_theta": "10000"}, without=without)
        self.budget = () if cases is AdaEa or issubclass(cases, NoBudget) else ("--budget", 20)
        self.mode = ()


class Unlisted(unittest.TestCase):
    """A system that is not in systems.txt."""
    system = None

    def runTest(self):
        self.skipTest(f"{self.system} is not in systems.txt")


def named():
    return list(SYSTEMS) if NAMED == ["all"] else NAMED or [name for name in SYSTEMS if name in KNOWN]


def load_tests(loader, _, __):
    suite = unittest.TestSuite()
    for name in named():
        suite.addTest(tests_of(loader, SYSTEMS[name]))
        suite.addTest(tests_of(loader, type(f"Contract_{name}", (PromptContract,), {"system": name})))
    if not NAMED:
        suite.addTests(type(f"Unlisted_{name}", (Unlisted,), {"system": name})() for name in SYSTEMS if name not in KNOWN)
    return suite


if __name__ == "__main__":
    unknown = [name for name in named() if name not in SYSTEMS]
    if unknown:
        sys.exit(f"prompt_systems_test.py knows no {', '.join(unknown)}; it knows {', '.join(SYSTEMS)}")
    main()
