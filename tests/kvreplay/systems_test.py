#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the systems of kvreplay with oracles.py, on random traces: keep sets, scores, shares and events.

    systems_test.py PROGRAM [SYSTEM ... | all]        those of systems.txt if none is named

A keep set may differ from the oracle's only in entries whose scores are within NEAR of the score at the cut, relatively; scores
themselves agree to the same. A system that the program does not know fails. Needs numpy; without it nothing runs, and it says so.
"""

import json
import sys
import unittest
from pathlib import Path

NAMED = [sys.argv.pop(2) for _ in sys.argv[2:]]  # before `program` takes the program
KNOWN = [line for line in (Path(__file__).parent / "systems.txt").read_text().split("\n") if line and not line.startswith("#")]

import admission_test
import oracles
from admission_test import admitted, run_lane
from oracles import NEAR, budget_of, first_ones, last_ones, np, ranking
from program import Runs, listed
from reference_test import Trace, as_dtype
from traces import ragged, read, write_arrays


class Decision:
    """Of each segment: its scores, who is forced, how many it may keep. Segments of one pool share what they may keep."""

    def __init__(self, scores, forced, budgets, pools=None, shares=None, near=NEAR):
        self.scores, self.forced, self.budgets = [np.asarray(one, float) for one in scores], forced, budgets
        self.segments, self.entries = len(scores), len(scores[0])
        self.pools = pools or [[s] for s in range(self.segments)]
        self.shares, self.near = shares, near
        self.size = 0.0  # how large the numbers are whose sums the scores are, where they cancel
        self.live = [np.ones(self.entries, bool)] * self.segments
        self.copies = 1  # lanes that a segment stands for
        self.turns = None  # the keep sets after each turn, of a single segment
        self.events = None  # (step, segment, ordinal) of who went
        self.fixed, self.silent = None, False  # keep sets that are not the best of the scores; whether scores may be absent

    def keep(self, pool):
        """Who stays of a pool as (segment, ordinal), and the score at the cut, if one was made."""
        forced = {(s, j) for s in pool for j in np.flatnonzero(self.live[s] & self.forced[s]).tolist()}
        free = [(s, j) for s in pool for j in np.flatnonzero(self.live[s] & ~self.forced[s]).tolist()]
        order = ranking({one: self.scores[one[0]][one[1]] for one in free}, free)
        room = max(0, sum(self.budgets[s] for s in pool) - len(forced))
        at = order[room - 1] if 0 < room < len(order) else None
        return forced | set(order[:room]), None if at is None else self.scores[at[0]][at[1]]

    def kept(self):
        if self.fixed is not None:
            return self.fixed
        every = set().union(*(self.keep(pool)[0] for pool in self.pools))
        return [sorted(j for s, j in every if s == segment) for segment in range(self.segments)]

    def specified(self, kept):
        """Segments whose scores are said: they lose something, and their pool has a place that is not forced."""
        free = {s for pool in self.pools for s in pool
                if sum(self.budgets[s] for s in pool) > sum(int((self.live[s] & self.forced[s]).sum()) for s in pool)}
        return [s for s in range(self.segments) if s in free and self.live[s][kept[s]].sum() < self.live[s].sum()]


@unittest.skipIf(np is None, "there is no numpy")
class System(Runs):
    policy, told = None, {"nan_scores": None}
    rehearsed = False  # True where the oracle answers instead of the program

    def replay(self, *arguments, **fields):
        return self.replay_in_threads((1, 2), "--policy", self.policy, *arguments, **fields)

    def decides(self, decision, *arguments, **fields):
        """Runs the program, and compares what it decided."""
        self.expected = decision
        self.same_result(decision, self.replay(*arguments, **fields))

    def same_result(self, decision, result):
        found = ragged(result)
        self.assertEqual(len(found), decision.segments)
        if decision.fixed is not None:
            self.assertEqual(found, decision.fixed)
        for pool in decision.pools if decision.fixed is None else ():
            self.same_pool(decision, pool, {(s, j) for s in pool for j in found[s]})
        for one in found:
            self.assertEqual(one, sorted(set(one)))
        if decision.turns is not None:
            self.assertEqual(ragged(result, "turn"), decision.turns)
        if decision.events is not None:
            self.assertEqual(list(map(tuple, np.array(result["events"][1], int).reshape(-1, 3).tolist())), decision.events)
        self.assertEqual(self.told["logical_kept"], sum(map(len, found)) * decision.copies)
        self.same_scores(decision, result)
        self.same_shares(decision, result)

    def same_pool(self, decision, pool, found):
        kept, cut = decision.keep(pool)
        if decision.near == 0:
            self.assertEqual(sorted(found ^ kept), [], pool)
        self.assertEqual(len(found), len(kept), (sorted(found ^ kept), pool))
        for s, j in found ^ kept:
            self.assertIsNotNone(cut, (s, j))
            self.assertTrue(np.isfinite(cut), (s, j, cut))
            score = decision.scores[s][j]
            self.assertFalse(decision.forced[s][j], (s, j))
            self.assertLessEqual(abs(score - cut), decision.near * max(abs(cut), decision.size), (s, j, score, cut))

    def same_scores(self, decision, result):
        said = decision.specified(decision.kept())
        if not said or (decision.silent and "scores" not in result):
            return
        self.assertIn("scores", result)
        self.assertEqual(result["scores"][0], [decision.segments, decision.entries])
        found = np.array(result["scores"][1]).reshape(result["scores"][0])
        for s in said:
            ranked = decision.live[s] & ~decision.forced[s]
            self.assertTrue(np.all(np.isneginf(found[s][~ranked])), "who is forced, dead or not there is not ranked")
            np.testing.assert_allclose(found[s][ranked], decision.scores[s][ranked], rtol=NEAR, atol=1e-7 + NEAR * decision.size)

    def same_shares(self, decision, result):
        """Of a segment with more forced entries than its share nothing is said."""
        if isinstance(decision.shares, str):
            return
        if decision.shares is None:
            self.assertNotIn("shares", result)
            return
        self.assertIn("shares", result)
        self.assertEqual(result["shares"][0], [decision.segments])
        for s, (found, share) in enumerate(zip(result["shares"][1], decision.shares)):
            if decision.forced[s].sum() < share:
                self.assertEqual(found, share, s)


def put(trace, name, values, dtype="F32"):
    """Stores a tensor, and returns its numbers as the program reads them."""
    stored, exact = as_dtype(np.asarray(values), dtype)
    trace.stored[name] = (dtype, stored)
    return exact


def small(seed, entries, heads=(2, 2), layers=3, dtype="F32", **more):
    return Trace(seed, dtype, layers, heads[0], heads[1], entries, **{"dims": 16, "value_dims": 8, **more})


def how_much(budget, ratio, sinks=0, recent=0):
    """The options that say what may be kept, and what is forced besides."""
    limit = ("--ratio", ratio) if ratio is not None else ("--budget", budget) if budget is not None else ()
    return (*limit, *(("--sinks", sinks) if sinks else ()), *(("--recent", recent) if recent else ()))


GROUPS = ((2, 2), (8, 2), (8, 1))  # groups of 1, 4 and 8 query heads


class Windowed(System):
    """Systems that observe by the last rows, which they keep."""

    def write_recent(self, trace, rows):
        """The trace, of whose query rows only the last are told."""
        trace.stored["recent_queries"] = (trace.dtype, np.ascontiguousarray(trace.stored["queries"][1][:, :, -rows:]))
        self.write(trace, without=("queries",))

    def test_a_window_of_all_entries_scores_nothing(self):
        for n in (1, 20, 32):
            trace = small(30, n)
            self.write(trace)
            for budget in (0, n - 1, n):
                self.same(trace, budget)
        self.same(trace, 16, window=50)

    def test_a_model_of_its_own_scale_cap_and_sinks(self):
        trace = small(31, 90, (8, 2))
        self.write(trace, trace.model_says(8, 0.3, 4.0, "F32"))
        self.same(trace, 50)

    def test_rows_that_are_recent_only(self):
        trace = small(32, 90, (8, 2))
        self.write_recent(trace, 40)
        self.same(trace, 50)


class PyramidKv(Windowed):
    policy = "pyramid_kv"

    def pyramid(self, trace, budget=None, ratio=None, window=32, pool="max:7", rows="sum", group="mean", beta=20, rule="exact", sinks=0):
        allowed = budget_of(trace.n, budget, ratio)
        w = min(window, trace.n)
        forced = last_ones(trace.n, w) | first_ones(trace, sinks)
        scores = [oracles.window_scores(trace, *lane, window, pool, rows, group) for lane in trace.lanes()]
        if trace.n <= allowed or trace.n <= window:
            return Decision(scores, [forced] * len(scores), [trace.n] * len(scores))
        average = trace.n * (1 - ratio) if rule == "kvpress" and ratio is not None else allowed  # it rounds the shares alone
        shares = np.repeat(oracles.pyramid_shares(trace.layers, trace.n, average, w, beta, rule), trace.kv_heads).tolist()
        return Decision(scores, [forced] * len(scores), shares, shares=shares)

    def same(self, trace, budget=None, ratio=None, sinks=0, **fields):
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, **fields):
            self.decides(self.pyramid(trace, budget, ratio, sinks=sinks, **fields), *how_much(budget, ratio, sinks), **fields)

    def test_rules_in_every_group_and_type(self):
        for seed, heads in enumerate(GROUPS):
            trace = small(seed, (300, 150, 97)[seed], heads, layers=(4, 5, 3)[seed], dtype=("F32", "BF16", "F16")[seed], gap=3 * (seed % 2))
            self.write(trace)
            for rule in ("exact", "kvpress", "factory"):
                for budget in (33, 40, 60, 80, trace.n - 1):
                    self.same(trace, budget, rule=rule)
            for rule in ("exact", "kvpress"):
                for ratio in (0.23, 0.415):
                    self.same(trace, ratio=ratio, rule=rule)
            self.same(trace, 60)

    def test_reductions_and_pools(self):
        trace = small(3, 200, (8, 2), layers=4)
        self.write(trace)
        for pool, rows, group in (("none", "sum", "sum"), ("avg:5", "mean", "max"), ("max:3", "max", "mean")):
            self.same(trace, 50, window=8, pool=pool, rows=rows, group=group)

    def test_windows_and_slopes(self):
        for seed, (n, layers) in enumerate(((200, 6), (64, 2), (128, 1), (33, 7))):
            trace = small(10 + seed, n, GROUPS[seed % 3], layers)
            self.write(trace)
            for window, beta in ((1, 2), (8, 20), (16, 7), (31, 1)):
                for rule in ("exact", "kvpress", "factory"):
                    self.same(trace, n // 2 + 1, window=window, beta=beta, rule=rule)

    def test_budgets_at_the_ends_and_ratios(self):
        trace = small(20, 120, (8, 2), layers=3)
        self.write(trace)
        for rule in ("exact", "kvpress", "factory"):
            for budget in (0, 1, 7, 8, 9, 10, 119, 120, 500):
                self.same(trace, budget, window=8, rule=rule)
            for ratio in (0.0, 0.1, 0.34, 0.5, 0.75, 0.9, 1.0):
                self.same(trace, ratio=ratio, window=8, rule=rule)

    def test_entries_that_are_forced_besides(self):
        trace = small(31, 150, (8, 2), layers=4)
        self.write(trace)
        for rule in ("exact", "kvpress", "factory"):
            self.same(trace, 40, sinks=4, rule=rule, window=16)

    def test_rows_that_are_recent_only_by_another_rule(self):
        trace = small(33, 100, (8, 2))
        self.write_recent(trace, 40)
        self.same(trace, 50, window=8, rule="kvpress")

    def test_fewer_rows_than_the_window(self):
        trace = small(34, 100, (8, 2))
        self.write_recent(trace, 8)
        self.decides(self.pyramid(trace, 50, window=8), "--budget", 50, window=32)  # the window is of the rows there are


class ObservedAttention(System):
    policy = "observed_attention"

    def observed(self, trace, budget=None, ratio=None, mass=None, group="mean", sinks=0, recent=0):
        scores = [oracles.observed_attention(trace, *lane, group, mass) for lane in trace.lanes()]
        forced = first_ones(trace, sinks) | last_ones(trace.n, recent)
        return Decision(scores, [forced] * len(scores), [budget_of(trace.n, budget, ratio)] * len(scores))

    def same(self, trace, budget=None, ratio=None, mass=None, sinks=0, recent=0, **fields):
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, **fields):
            decision = self.observed(trace, budget, ratio, mass, sinks=sinks, recent=recent, **fields)
            self.decides(decision, *how_much(budget, ratio, sinks, recent), **fields)

    def test_queries_in_every_group_and_type(self):
        for seed, heads in enumerate((*GROUPS, (8, 2))):
            trace = small(seed, (200, 97, 64, 33)[seed], heads, dtype=("F32", "F16", "BF16", "F64")[seed], gap=3 * (seed % 2))
            self.write(trace)
            for group in ("mean", "sum", "max"):
                self.same(trace, 30, group=group)
            for budget in (0, 1, trace.n - 1, trace.n, trace.n + 7):
                self.same(trace, budget)
            for ratio in (0.0, 0.34, 0.9, 1.0):
                self.same(trace, ratio=ratio)
            self.same(trace, 20, sinks=4, recent=6)
            self.same(trace, 5, sinks=4, recent=6)

    def test_one_entry(self):
        trace = small(9, 1)
        self.write(trace)
        for budget in (0, 1):
            self.same(trace, budget)

    def test_a_model_of_its_own_scale_cap_and_sinks(self):
        trace = small(10, 80, (8, 2))
        self.write(trace, trace.model_says(6, 0.3, 4.0, "F32"))
        self.same(trace, 30)

    def test_mass_of_query_heads_and_of_lanes(self):
        for seed, heads in enumerate(GROUPS):
            trace = small(20 + seed, 90, heads)
            dice = np.random.default_rng(seed)
            for count in {trace.query_heads, trace.kv_heads}:
                mass = put(trace, "attention_mass", dice.random((3, count, 90)) * np.arange(90, 0, -1), ("F32", "F64", "F16")[seed])
                for without in ((), ("queries",)):  # it wins over queries
                    self.write(trace, without=without)
                    for budget in (0, 1, 40, 90):
                        self.same(trace, budget, mass=mass)
                    if count == trace.query_heads:
                        self.same(trace, 40, mass=mass, group="max")
                self.same(trace, ratio=0.75, mass=mass)

    def test_mass_that_is_the_queries_says_the_same(self):
        trace, live = small(23, 60, (8, 2)), np.arange(60)
        put(trace, "attention_mass", np.array([[trace.softmax(layer, h, live, live).sum(axis=0) for h in range(8)] for layer in range(3)]))
        self.write(trace, without=("queries",))
        self.same(trace, 25)

    def test_ties(self):
        trace, left = small(24, 64, (8, 2)), np.arange(64, 0, -1)
        dice = np.random.default_rng(24)
        mass = dice.integers(0, 4, (3, 2, 64)) * 64.0  # divided exactly where the rows are a power of two
        mass[2] = 3.0 * left
        mass = put(trace, "attention_mass", mass)
        self.write(trace)
        for budget in (1, 20, 60, 63):
            self.same(trace, budget, mass=mass)

    def test_a_key_that_is_nan_leaves_the_lowest_ordinals(self):
        trace = small(25, 50, (8, 2))
        trace.keys[1, 0, 20, 3] = np.nan
        trace.stored["keys"][1][1, 0, 20, 3] = np.nan
        self.write(trace)
        self.same(trace, 17)
        self.assertEqual(self.told["nan_scores"], 50)


class ExternalRows(System):
    """lookahead_kv and dapq differ in the pooling that is there when none is named."""
    pool = None

    def given(self, trace, rows=5, lse=None):
        """Rows whose positions lie among the entries: they see all of them nevertheless."""
        dice = np.random.default_rng(trace.n + rows)
        shape = (trace.layers, trace.query_heads, rows, trace.d)
        trace.query_rows = put(trace, "query_rows", dice.normal(0, 1.2, shape), trace.dtype)
        trace.stored["query_positions"] = ("I32", dice.integers(0, trace.n + 9, rows).astype(np.int32))
        trace.lse = None
        if lse is not None:
            logits = np.array([[trace.logits_of(trace.query_rows[layer, h] @ trace.keys[layer, h // trace.group].T)
                                for h in range(trace.query_heads)] for layer in range(trace.layers)])
            trace.lse = put(trace, "query_lse", np.log(np.exp(logits).sum(axis=-1)) + dice.uniform(0, 1, shape[:3]), lse)
        return trace

    def same(self, trace, budget=None, ratio=None, sinks=0, **fields):
        how = {"recent": 32, "pool": self.pool, "rows": "mean", "group": "mean", **fields}
        scores = [oracles.external_row_scores(trace, *lane, lse=trace.lse, **how) for lane in trace.lanes()]
        forced = last_ones(trace.n, how["recent"]) | first_ones(trace, sinks)
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, **fields):
            decision = Decision(scores, [forced] * len(scores), [budget_of(trace.n, budget, ratio)] * len(scores))
            self.decides(decision, *how_much(budget, ratio, sinks), **fields)

    def test_every_group_and_type(self):
        for seed, heads in enumerate((*GROUPS, (8, 2))):
            trace = self.given(small(seed, (200, 97, 64, 150)[seed], heads, dtype=("F32", "F16", "BF16", "F64")[seed], gap=3 * (seed % 2)), (5, 1, 32, 3)[seed])
            self.write(trace, without=("queries",))
            for budget in (0, 1, 31, 32, 33, 50, trace.n - 1, trace.n, trace.n + 5):
                self.same(trace, budget)
            for ratio in (0.0, 0.34, 0.5, 0.9, 1.0):
                self.same(trace, ratio=ratio)
            self.same(trace, 50, sinks=4)

    def test_reductions_and_pools(self):
        trace = self.given(small(10, 120, (8, 2)), 6)
        self.write(trace)
        for pool, rows, group in (("none", "mean", "mean"), ("max:7", "mean", "mean"), ("avg:5", "sum", "max"), ("max:3", "max", "sum")):
            for recent in (0, 1, 10):
                self.same(trace, 40, pool=pool, rows=rows, group=group, recent=recent)

    def test_sums_that_the_model_gives(self):
        for seed, heads in enumerate(GROUPS):
            trace = self.given(small(20 + seed, 100, heads), 4, ("F32", "F64", "F32")[seed])
            self.write(trace)
            for recent in (0, 32):
                self.same(trace, 50, recent=recent)

    def test_everything_is_recent(self):
        for n in (1, 20, 32):
            trace = self.given(small(30, n))
            self.write(trace)
            for budget in (0, n - 1, n):
                self.same(trace, budget)
        self.same(trace, 16, recent=50)

    def test_a_model_of_its_own_scale_cap_and_sinks(self):
        trace = small(31, 90, (8, 2))
        metadata = trace.model_says(7, 0.3, 4.0, "F32")
        self.write(self.given(trace), metadata)
        self.same(trace, 50)

    def test_a_key_that_is_nan_leaves_the_lowest_ordinals(self):
        trace = self.given(small(32, 50, (8, 2)))
        trace.keys[1, 0, 20, 3] = np.nan
        trace.stored["keys"][1][1, 0, 20, 3] = np.nan
        self.write(trace)
        self.same(trace, 17, recent=5, pool="none")
        self.assertEqual(self.told["nan_scores"], 45)


class LookaheadKv(ExternalRows):
    policy, pool = "lookahead_kv", "none"


class Dapq(ExternalRows):
    policy, pool = "dapq", "max:7"


def numbers_of(trace, name, seed, dtype="F32", shape=None, low=0.0, steps=None):
    """Numbers that entries are born with: uniform, or of a few steps so that many are equal."""
    dice = np.random.default_rng(seed)
    shape = shape or (trace.layers, trace.kv_heads, trace.n)
    values = dice.integers(0, steps, shape) / 8 + low if steps else dice.uniform(low, low + 4, shape)
    return put(trace, f"birth.{name}", values, dtype)


class Stepped(System):
    """Systems that decide while a lane grows.

    `lane` is the oracle's class of their lanes, and `steps` are (seed, entries, prefill, budget, slack, fields): seeds without near ties.
    Of the fields, `tail` is the option --recent, and `sinks` that of its name.
    """
    lane, slack, size, steps, layers = None, 0, 0.0, (), False  # whether they decide for layers

    def lanes(self, trace, sinks=0, tail=0, **fields):
        lanes = [(layer, None) for layer in range(trace.layers)] if self.layers else trace.lanes()
        return [self.lane(trace, *lane, sinks, tail, **fields) for lane in lanes]

    def same_in_parts(self, trace, budget, ends, *mode, slack=None, sinks=0, tail=0, **fields):
        """A decision after each part: `mode` and `ends` say which."""
        lanes = self.lanes(trace, sinks, tail, **fields)
        made = [oracles.in_parts(one, ends, budget, self.slack if slack is None else slack, self.size) for one in lanes]
        with self.subTest(n=trace.n, budget=budget, mode=mode, slack=slack, sinks=sinks, tail=tail, **fields):
            self.assertGreater(min(gap for *_, gap in made), NEAR / 2, "a near tie: choose another seed")
            self.assertGreater(min(one.margin for one in lanes), NEAR / 2, "near a threshold: choose another seed")
            decision = Decision(np.zeros((len(lanes), trace.n)), np.zeros((len(lanes), trace.n), bool), [len(kept) for kept, *_ in made])
            decision.live, decision.size, decision.fixed = np.zeros((len(lanes), trace.n), bool), self.size, [kept for kept, *_ in made]
            decision.copies = len(trace.lanes()) // len(lanes)
            for s, (_, _, there, forced, scores, _) in enumerate(made):
                decision.live[s][there], decision.forced[s][there], decision.scores[s][there] = True, forced, scores
            decision.events = sorted((t, s, j) for s, (_, events, *_) in enumerate(made) for t, j in events)
            arguments = *how_much(budget, None, sinks, tail), *mode, *(() if slack is None else ("--slack", slack))
            self.decides(decision, *arguments, **fields)

    def same_in_steps(self, trace, budget, prefill, slack=0, **fields):
        steps = ([prefill] if prefill else []) + list(range(prefill + 1, trace.n + 1))
        self.same_in_parts(trace, budget, steps, "--mode", "decode", "--prefill", prefill, slack=slack, **fields)

    def given(self, trace):
        """The trace with all that the system reads of it."""
        self.write(trace)
        return trace

    def stepped(self, i, seed, n, prefill, budget, slack, fields):
        trace = self.given(small(seed, n, GROUPS[i % 3], layers=2, dtype=("F32", "F16", "BF16")[i % 3], gap=3 * (i % 2)))
        self.same_in_steps(trace, budget, prefill, slack, **fields)

    def test_steps(self):
        for i, case in enumerate(self.steps):
            self.stepped(i, *case)


class Prompted(Stepped):
    """Those of them that decide for a prompt too; `seed` is the first prompt's."""
    seed = 0

    def same(self, trace, budget=None, ratio=None, sinks=0, tail=0, **fields):
        lanes, live = self.lanes(trace, sinks, tail, **fields), np.arange(trace.n)
        for one in lanes:
            one.observe(live, live)
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, tail=tail, **fields):
            forced, allowed = [one.forced(live) for one in lanes], budget_of(trace.n, budget, ratio)
            kept = [int(forced[s].sum()) + one.room(live, allowed, ratio) for s, one in enumerate(lanes)]
            decision = Decision([one.score(live) for one in lanes], forced, kept)
            self.assertGreater(min(one.margin for one in lanes), NEAR / 2, "near a threshold: choose another seed")
            decision.size, decision.copies = self.size, len(trace.lanes()) // len(lanes)
            self.decides(decision, *how_much(budget, ratio, sinks, tail), **fields)

    def test_a_prompt_in_every_group_and_type(self):
        for seed, heads in enumerate((*GROUPS, (4, 4))):
            trace = self.given(small(self.seed + seed, (200, 97, 64, 33)[seed], heads, dtype=("F32", "F16", "BF16", "F64")[seed], gap=3 * (seed % 2)))
            self.same_sizes(trace)

    def test_a_prompt_of_8_bits(self):
        self.same_sizes(self.given(small(self.seed + 40, 64, (8, 2), dtype="F8_E4M3")))

    def same_sizes(self, trace):
        for budget in (0, 1, 8, 30, trace.n - 1, trace.n, trace.n + 7):
            self.same(trace, budget)
        for ratio in (0.0, 0.34, 0.9, 1.0):
            self.same(trace, ratio=ratio)
        self.same(trace, 20, sinks=4)
        self.same(trace, 25, sinks=3, tail=12)

    def test_one_entry(self):
        self.same_sizes(self.given(small(9, 1)))


class Keydiff(Prompted):
    policy, lane, size = "keydiff", oracles.Keydiff, 1.0
    steps = ((20, 48, 20, 16, None, {}), (21, 48, 0, 5, 0, {}), (22, 48, 47, 40, None, {}), (23, 48, 10, 16, 7, {"sinks": 2, "tail": 3}))

    def test_keys_of_zeros(self):
        trace = small(10, 40)
        trace.keys[:, :, 3] = 0
        put(trace, "keys", trace.keys)
        self.same(self.given(trace), 20)

    def test_chunks(self):
        for seed, (budget, chunk) in enumerate(((16, 8), (5, 16), (40, 13))):
            trace = self.given(small(20 + seed, 48, GROUPS[seed], dtype=("F32", "BF16", "F16")[seed]))
            self.same_in_parts(trace, budget, [*range(chunk, trace.n, chunk), trace.n], "--mode", "chunks", "--chunk", chunk)


class OfAModel:
    """Of systems that observe rows; `model` is (seed, budget, prefill, slack, fields) of a trace of 64 entries."""

    def test_a_model_of_its_own(self):
        seed, budget, prefill, slack, fields = self.model
        for says in ({"scale": 0.3, "cap": 4.0}, {"sinks": "F32"}):
            trace = small(seed, 64, (8, 2), layers=2)
            self.write(trace, trace.model_says(8, **says))
            if isinstance(self, Prompted):
                self.same(trace, budget, **fields)
            self.same_in_steps(trace, budget, prefill, slack, **fields)

    def test_steps_of_8_bits(self):
        seed, budget, prefill, slack, fields = self.model
        self.same_in_steps(self.given(small(seed + 1, 64, (8, 2), layers=2, dtype="F8_E4M3")), budget, prefill, slack, **fields)

class RKv(OfAModel, Prompted):
    policy, lane, slack, size, seed, model = "r_kv", oracles.RKv, 127, 1e-2, 3, (30, 30, 40, 8, {})
    steps = ((20, 48, 20, 16, 5, {}), (21, 30, 0, 12, 0, {"window": 4, "pool": "none", "lambda": 0.5}), (22, 40, 38, 20, 0, {"sinks": 2}),
             (23, 200, 150, 40, None, {}), (24, 30, 20, 5, 0, {}))

    def test_fields(self):
        trace = self.given(small(10, 60, (8, 2)))
        for fields in ({"window": 1}, {"window": 20, "pool": "none"}, {"lambda": 1, "pool": "avg:5"}, {"lambda": 0}, {"lambda": 0.5, "pool": "max:3"},
                       {"retain": "none"}, {"threshold": 0.2}, {"threshold": 0.9, "lambda": 0.3}):
            self.same(trace, 30, **fields)

    def test_a_window_of_all_entries_scores_nothing(self):
        for n in (1, 7, 8):
            trace = self.given(small(11, n))
            for budget in (0, n - 1, n):
                self.same(trace, budget)
        self.same(trace, 4, window=50)

    def test_keys_that_are_alike_and_keys_of_zeros(self):
        trace = small(12, 40, (8, 2))
        trace.keys[:, :, 5:40:7] = trace.keys[:, :, 5:6]
        trace.keys[:, :, 3] = 0
        put(trace, "keys", trace.keys)
        self.given(trace)
        self.same(trace, 20)
        self.same(trace, 20, retain="none")


class QFilters(Prompted):
    policy, lane, size = "q_filters", oracles.QFilters, 1.0
    steps = ((20, 48, 20, 16, None, {}), (21, 48, 0, 5, 0, {}), (22, 48, 47, 40, None, {}), (23, 48, 10, 16, 7, {"sinks": 2, "tail": 3}))

    def given(self, trace, name="q_filters", dtype=None):
        values = np.random.default_rng(trace.n).normal(0, 0.5, (trace.layers, trace.kv_heads, trace.d))
        trace.filters = put(trace, f"table.{name}", values, dtype or trace.dtype)
        self.write(trace, without=("queries",))
        return trace

    def test_a_table_of_another_name_and_type(self):
        for seed, dtype in enumerate(("F32", "F16", "BF16", "F64")):
            trace = self.given(small(30 + seed, 50, (8, 2)), "profile", dtype)
            self.same(trace, 20, table="profile")

    def test_a_table_of_another_shape(self):
        trace = self.given(small(34, 50, (8, 2)))
        for shape in ((3, 2), (3, 8, 16), (3, 2, 8)):
            put(trace, "table.q_filters", np.ones(shape))
            self.write(trace)
            self.refused("table.q_filters", "--policy", self.policy, "--budget", 20)

    def test_a_filter_of_zeros(self):
        trace = self.given(small(35, 50, (8, 2)))
        trace.filters[1] = 0
        put(trace, "table.q_filters", trace.filters)
        self.write(trace)
        self.same(trace, 20)


class TriAttention(Prompted):
    policy, lane, slack, size = "tri_attention", oracles.TriAttention, 127, 1.0
    steps = ((20, 48, 20, 16, 0, {}), (21, 48, 0, 5, 5, {"sinks": 2}), (22, 48, 47, 40, 0, {"aggregate": "max"}),
             (23, 200, 40, 30, None, {}), (24, 48, 8, 12, 3, {"normalise": "none", "tail": 2}))

    def given(self, trace, theta=10000.0, style="neox", prompt=None, dtype=None):
        dice, shape = np.random.default_rng(trace.n), (trace.layers, trace.query_heads, trace.d)
        trace.query_mean = put(trace, "query_model.mean", dice.normal(0, 1, shape), dtype or trace.dtype)
        far = abs(oracles.pairs_of(trace.query_mean, style)) * dice.uniform(1, 2, (*shape[:2], trace.d // 2))
        trace.query_radius = put(trace, "query_model.radius", far, dtype or trace.dtype)
        trace.turns, trace.style, trace.prompt = theta ** (-2 * np.arange(trace.d // 2) / trace.d), style, prompt or 0
        if prompt is not None:
            trace.stored["prompt_end"] = ("I32", np.array([prompt], np.int32))
        self.write(trace, {"rope_theta": repr(theta), **({"rope_style": style} if style != "neox" else {})}, without=("queries",))
        return trace

    def test_fields(self):
        trace = self.given(small(30, 60, (8, 2)), 500.0, "gptj")
        for fields in ({"aggregate": "max"}, {"normalise": "none"}, {"aggregate": "max", "normalise": "none"}, {"group": "mean"}, {"group": "sum"}, {"offsets": 1}, {"offsets": 5}):
            self.same(trace, 25, **fields)

    def test_positions_that_are_large(self):
        """Angles of these in single precision are wrong by hundredths."""
        for style, dtype in (("neox", "F32"), ("gptj", "F64")):
            trace = self.given(small(31, 50, (8, 2), gap=300000), style=style, dtype=dtype)
            self.same(trace, 20)
            self.same(trace, 20, offsets=20, normalise="none")

    def test_a_prompt_that_stays(self):
        for prompt in (0, 1, 12, 40):
            trace = self.given(small(32, 40, (8, 2)), prompt=prompt)
            for budget in (5, 12, 20):
                self.same(trace, budget)
                self.same(trace, budget, sinks=2, tail=4)
        for seed, prompt in ((33, 12), (34, 3)):
            trace = self.given(small(seed, 48, (8, 2)), prompt=prompt)
            for budget in (10, 20):
                self.same_in_steps(trace, budget, 12, 3)

    def test_the_union_of_heads(self):
        """One set for all: the best of the largest score of any lane."""
        trace, live = self.given(small(35, 60, (8, 2))), np.arange(60)
        for sinks, budget in ((0, 20), (4, 33)):
            lanes = self.lanes(trace, sinks)
            decision = Decision([np.max([one.score(live) for one in lanes], axis=0)], [lanes[0].forced(live)], [budget])
            decision.size, decision.copies = self.size, len(lanes)
            self.decides(decision, *how_much(budget, None, sinks), "--granularity", "token", "--reduce", "max")

    def test_a_trace_that_does_not_say_how_keys_turn(self):
        self.write(self.given(small(36, 40)))
        self.refused("rope_theta", "--policy", self.policy, "--budget", 20)


class Scissorhands(OfAModel, Prompted):
    policy, lane, model = "scissorhands", oracles.Scissorhands, (30, 40, 40, 2, {})
    steps = ((20, 80, 50, 40, None, {}), (21, 40, 0, 10, 0, {"history": 8, "recent": 4}), (22, 40, 30, 20, 3, {"history": 12, "recent": 5, "sinks": 2, "group": "mean"}),
             (23, 40, 39, 10, 0, {"history": 100, "recent": 0}), (24, 48, 8, 20, 7, {"history": 1, "recent": 3}), (25, 60, 20, 20, 0, {"recent": 8}))

    def test_fields(self):
        trace = self.given(small(10, 90, (8, 2)))
        for history, recent, group in ((1, 0, "sum"), (5, 8, "sum"), (90, 20, "mean"), (1000, 3, "sum"), (32, 0, "mean")):
            self.same(trace, 40, history=history, recent=recent, group=group)

    def test_the_largest_of_a_group(self):
        """Of each row."""
        trace = self.given(small(11, 60, (8, 2)))
        self.same(trace, 40, history=10, recent=4, group="max")
        self.same_in_steps(trace, 30, 50, 0, history=10, recent=4, group="max")


class LazyEviction(OfAModel, Stepped):
    """Scores below `size` are too small for a float."""
    policy, lane, size, model = "lazy_eviction", oracles.LazyEviction, 1e-25, (30, 40, 40, None, {})
    steps = ((21, 160, 50, 40, None, {}), (21, 61, 0, 12, None, {"window": 8, "combine": "sum"}), (22, 64, 40, 16, None, {"window": 8, "alpha": 0.03, "sinks": 2}),
             (23, 93, 92, 50, None, {"group": "max", "alpha": 0.1}), (25, 64, 32, 40, None, {"window": 16, "tail": 20}), (25, 61, 5, 6, None, {"window": 8}),
             (26, 48, 20, 10, None, {"window": 1, "alpha": 0.02, "group": "sum"}), (27, 77, 40, 20, None, {"window": 8}), (28, 31, 8, 4, None, {"window": 32}))

    def test_rows_that_look_at_all_and_at_nothing(self):
        trace = self.given(small(30, 40, (8, 2), layers=2))
        self.same_in_steps(trace, 15, 16, None, window=8, alpha=1e-30)  # all are equal
        self.assertEqual(self.expected.fixed[0], [*range(7), *range(32, 40)])
        self.same_in_steps(trace, 15, 16, None, window=8, alpha=0.999)  # the newest wait the shortest
        self.assertEqual(self.expected.fixed[0], list(range(25, 40)))


class KeysValues(OfAModel, Prompted):
    policy, lane, model = "keys_values", oracles.KeysValues, (30, 30, 40, 2, {})
    steps = ((20, 60, 40, 24, None, {}), (21, 40, 0, 10, 0, {"by_age": True}), (22, 40, 30, 20, 3, {"values": True, "sinks": 2, "group": "mean"}),
             (23, 40, 39, 10, 0, {"grace": 4, "values": True, "by_age": True}), (24, 48, 8, 20, 7, {"grace": 3, "tail": 2}),
             (25, 40, 20, 20, 0, {"values": True}))

    def test_fields(self):
        trace = self.given(small(10, 90, (8, 2), gap=7))
        for values in (False, True):
            for by_age in (False, True):
                for grace, group in ((0, "sum"), (8, "mean"), (100, "sum")):
                    self.same(trace, 40, values=values, by_age=by_age, grace=grace, group=group)

    def test_the_largest_of_a_group(self):
        """Of each row."""
        trace = self.given(small(11, 60, (8, 2)))
        self.same(trace, 40, group="max")
        self.same(trace, 40, group="max", values=True)

    def test_values_of_zeros(self):
        trace = small(12, 40, (8, 2))
        trace.values[:, :, 3:9] = trace.values[1] = 0
        put(trace, "values", trace.values)
        self.same(self.given(trace), 20, values=True)

    def test_values_are_read_where_they_count(self):
        trace = small(13, 40, (8, 2))
        self.write(trace, without=("values",))
        self.same(trace, 20, by_age=True)
        self.refused("values", "--policy", self.policy, "--budget", 20, values=True)


class NeuralGc(OfAModel, Prompted):
    policy, lane, layers, model = "neural_gc", oracles.NeuralGc, True, (30, None, 40, None, {"block": 4, "every": 16})
    steps = ((20, 256, 100, None, None, {}), (21, 69, 0, None, None, {"block": 4, "every": 8}), (22, 64, 24, None, None, {"block": 3, "every": 8, "drop": 0.3}),
             (23, 61, 60, None, None, {"block": 8, "every": 16, "window": 1}), (24, 70, 32, None, None, {"block": 5, "every": 10, "drop": 1, "window": 20}),
             (25, 61, 16, None, None, {"block": 1, "every": 4, "window": 2, "drop": 0.7}), (26, 48, 20, None, None, {"block": 4, "every": 12, "drop": 0}))

    def same_sizes(self, trace):
        self.same(trace)
        for block, window, drop in ((1, 5, 0.5), (4, 1, 0.5), (7, 5, 0.25), (16, 40, 0.9), (16, 5, 1), (8, 5, 0), (200, 5, 0.5)):
            self.same(trace, block=block, window=window, drop=drop)

    def test_parts_that_are_whole(self):
        trace = self.given(small(10, 61, (8, 2)))
        for drop in (0.1, 0.3, 0.7, 0.29, 0.9):  # of 10 blocks beside the last
            self.same(trace, block=6, drop=drop)

    def test_entries_that_are_forced_besides(self):
        trace = self.given(small(11, 64, (8, 2)))
        for sinks, tail in ((1, 0), (6, 0), (0, 9), (5, 12)):
            self.same(trace, sinks=sinks, tail=tail, block=4)

    def test_a_budget_is_refused(self):
        self.given(small(12, 64))
        for more in (("--budget", 10), ("--ratio", 0.5)):
            self.refused(f"{more[0]} = {more[1]}", "--policy", self.policy, *more)


class ChunkKv(Prompted):
    policy, lane, layers = "chunk_kv", oracles.ChunkKv, True

    def test_chunks_and_windows(self):
        for seed, n in enumerate((100, 97, 61)):
            trace = self.given(small(10 + seed, n, GROUPS[seed]))
            for chunk, window, pool in ((8, 8, "avg:5"), (7, 1, "none"), (1, 4, "max:3"), (10, 2, "avg:3"), (n, 8, "avg:5"),
                                        (n + 1, 8, "none"), (200, 32, "avg:5")):
                for budget in (0, 7, 25, 30, 40, n - 1, n):
                    self.same(trace, budget, chunk=chunk, window=window, pool=pool)
                for ratio in (0.1, 0.5, 0.75, 1.0):
                    self.same(trace, ratio=ratio, chunk=chunk, window=window, pool=pool)

    def test_entries_that_are_forced_besides(self):
        trace = self.given(small(20, 90, (8, 2)))
        for sinks, tail in ((1, 0), (9, 0), (0, 20), (3, 11)):
            self.same(trace, 50, sinks=sinks, tail=tail, chunk=6, window=8)
            self.same(trace, 20, sinks=sinks, tail=tail, chunk=100, window=8)

    def test_a_window_of_all_entries_scores_nothing(self):
        for n in (1, 20, 32):
            trace = self.given(small(21, n))
            for budget in (0, n - 1, n):
                self.same(trace, budget)
                self.same(trace, budget, chunk=4)

    def test_a_model_of_its_own_scale_cap_and_sinks(self):
        trace = small(22, 90, (8, 2))
        self.write(trace, trace.model_says(8, 0.3, 4.0, "F32"))
        self.same(trace, 50, chunk=5)

    def test_rows_that_are_recent_only(self):
        trace = small(23, 90, (8, 2))
        trace.stored["recent_queries"] = (trace.dtype, np.ascontiguousarray(trace.stored["queries"][1][:, :, -40:]))
        self.write(trace, without=("queries",))
        self.same(trace, 50, chunk=5)

    def test_scores_that_are_given(self):
        """They force nothing; many chunks of the first two traces are equal."""
        for seed, (shape, steps) in enumerate((((3, 2, 60), 4), ((60,), 4), ((3, 2, 60), None))):
            trace, dice = small(30 + seed, 60, (8, 2)), np.random.default_rng(seed)
            trace.given = put(trace, "external.mine", dice.integers(1, steps, shape) / 4 if steps else dice.uniform(0.5, 4, shape))
            self.write(trace, without=("queries",))
            for chunk in (1, 4, 6, 60, 61) if steps else (1, 7, 11, 59):
                for budget in (0, 3, 14, 30, 59, 60):
                    self.same(trace, budget, chunk=chunk, scores="mine")
                self.same(trace, ratio=0.5, chunk=chunk, scores="mine")
            self.same(trace, 30, sinks=3, tail=5, chunk=4, scores="mine")

    def test_given_scores_that_are_missing(self):
        self.write(small(33, 60))
        self.refused("external.mine", "--policy", self.policy, "--budget", 20, scores="mine")


class OpenVino(Prompted):
    """EDGE is what a cosine in single precision may be wrong by, generously."""
    policy, lane, layers, EDGE = "openvino", oracles.OpenVino, True, 1e-6

    def same(self, trace, budget=None, ratio=None, sinks=0, tail=0, spans=(), **fields):
        """Representatives depend on who is dropped, so that with them there may be no near tie."""
        lanes, live, allowed = self.lanes(trace, sinks, tail, **fields), np.arange(trace.n), budget_of(trace.n, budget, ratio)
        for one in lanes:
            one.spans = spans
            one.observe(live, live)
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, tail=tail, spans=spans, **fields):
            forced = [one.forced(live) for one in lanes]
            decision = Decision([one.score(live, allowed) for one in lanes], forced, [int(f.sum()) + one.room(live, allowed) for f, one in zip(forced, lanes)])
            if fields.get("crush"):
                decision.fixed = [one.kept(live, allowed) for one in lanes]
            self.assertGreater(min(one.margin for one in lanes), NEAR / 2, "a near tie or near the cover: choose another seed")
            self.assertGreater(min(one.edge for one in lanes), self.EDGE, "near the mean of a row: choose another seed")
            decision.size, decision.copies = oracles.OpenVino.size if fields.get("adaptive") else 0.0, trace.kv_heads
            protect = [part for first, last in spans for part in ("--protect", f"{first}:{last}")]
            self.decides(decision, *how_much(budget, ratio, sinks, tail), *protect, **fields)

    def same_sizes(self, trace, **fields):
        fields = fields or {"start": 4, "recent": 8, "block": 4}
        for budget in (0, 1, 13, 30, trace.n - 1, trace.n, trace.n + 7):
            self.same(trace, budget, **fields)
        for ratio in (0.0, 0.34, 0.9, 1.0):
            self.same(trace, ratio=ratio, **fields)
        self.same(trace, 20, sinks=4, **fields)
        self.same(trace, 35, sinks=5, tail=12, **fields)

    def test_the_usual_fields(self):
        for seed, n in enumerate((300, 224, 192, 191)):  # four blocks, two, one and none
            trace = self.given(small(10 + seed, n, GROUPS[seed % 3], layers=2))
            for budget in (0, 160, n // 2 + 75, n - 1):
                self.same(trace, budget)

    def test_blocks_and_ends(self):
        for seed, n in enumerate((97, 64, 33)):
            trace = self.given(small(20 + seed, n, GROUPS[seed], layers=2, dtype=("BF16", "F32", "F16")[seed]))
            for start, recent, block in ((0, 0, 1), (0, 0, 4), (5, 3, 1), (5, 3, 8), (8, 9, 8), (3, 10, 5), (0, n, 4), (n, 0, 1), (n + 9, n + 9, 4), (0, 0, n),
                                         (0, 0, n + 1), (0, 1, n - 1), (n // 2 + 2, 0, 3)):
                for budget in (seed, n // 2, n - 1):
                    self.same(trace, budget, start=start, recent=recent, block=block)

    def test_places_that_are_not_positions(self):
        """The first are so many entries, and protected spans are positions."""
        trace = self.given(small(25, 64, (8, 2), gap=5))
        for start in (32, 34, 37, 60):
            self.same(trace, 60, start=start, recent=0, block=2)
        self.same(trace, 30, start=0, recent=6, block=2, spans=((34, 45),))
        self.same(trace, 50, sinks=39, start=0, recent=6, block=2)

    def test_norm_sum(self):
        for seed, n in enumerate((90, 61)):
            trace = self.given(small(30 + seed, n, GROUPS[1 + seed]))
            for block in (1, 4, 8):
                for recent in (0, 7):
                    self.same(trace, n // 2, start=4, recent=recent, block=block, score="norm_sum")
                    self.same(trace, ratio=0.7, start=4, recent=recent, block=block, score="norm_sum", crush=2)

    def test_entries_that_are_forced_besides(self):
        trace = self.given(small(42, 96, (8, 2)))
        for sinks, tail, spans in ((1, 0, ()), (9, 0, ()), (0, 20, ()), (3, 11, ()), (0, 0, ((20, 21), (38, 51))), (5, 9, ((31, 33),)), (0, 0, ((0, 96),))):
            for fields in ({"start": 0, "recent": 0, "block": 4}, {"start": 6, "recent": 10, "block": 8}, {"start": 6, "recent": 10, "block": 4, "crush": 2},
                           {"start": 2, "recent": 5, "block": 4, "adaptive": True, "cover": 0.4}):
                self.same(trace, 60, sinks=sinks, tail=tail, spans=spans, **fields)

    def test_covers(self):
        for seed, n in enumerate((97, 64, 50)):
            trace = self.given(small(50 + seed, n, GROUPS[seed], layers=2, dtype=("F32", "BF16", "F16")[seed]))
            for block in (1, 4, 8):
                for cover in (1e-6, 0.25, 0.5, 0.9, 1):
                    for budget in (n // 2, n - 10):
                        self.same(trace, budget, start=4, recent=5, block=block, adaptive=True, cover=cover)
            self.same_sizes(trace, start=0, recent=0, block=4, adaptive=True, cover=0.3)
            self.same(trace, n // 2, start=4, recent=5, block=4, adaptive=True, score="norm_sum", cover=0.3)

    def test_few_keys_that_may_go(self):
        """One is like no other; of two, each is like the other or not."""
        trace = self.given(small(55, 12, (8, 2)))
        for recent, budget in ((11, 11), (10, 10), (10, 11), (9, 10)):
            self.same(trace, budget, start=0, recent=recent, block=1, adaptive=True, cover=0.01)

    def test_keys_that_are_alike_and_keys_of_zeros(self):
        trace = small(56, 50, (8, 2))
        trace.keys[:, :, 5:40:7] = trace.keys[:, :, 5:6]
        trace.keys[:, :, [8, 9, 31]] = 0
        put(trace, "keys", trace.keys)
        self.given(trace)
        for block in (1, 2, 4):
            self.same(trace, 25, start=0, recent=2, block=block, adaptive=True, cover=0.2)

    def test_representatives_of_every_anchor(self):
        for seed, n in enumerate((97, 64, 50)):
            trace = self.given(small(60 + seed, n, GROUPS[seed], layers=2, dtype=("F16", "F32", "BF16")[seed]))
            for block in (1, 4, 8):
                for crush in (1, 2, 3):
                    for anchor in ("mean", "zeros", "ones", "alternating", "random"):
                        self.same(trace, n // 2, start=4, recent=5, block=block, crush=crush, anchor=anchor, seed=seed)
            for draw in (7, 42):
                self.same(trace, 20, start=4, recent=5, block=8, crush=2, anchor="random", seed=draw)

    def test_as_many_representatives_as_go_or_more(self):
        trace = self.given(small(70, 64, (8, 2)))
        for crush in (1, 4, 5, 7, 8, 9, 100):  # of 16 blocks 8 go where the half stays
            for budget in (0, 3, 32, 60, 63, 64):
                self.same(trace, budget, start=0, recent=0, block=4, crush=crush)

    def test_words_that_are_long(self):
        trace = self.given(small(71, 300, layers=2))
        for anchor in ("mean", "alternating", "random"):
            self.same(trace, 130, start=0, recent=0, block=60, crush=1, anchor=anchor)
            self.same(trace, 100, start=0, recent=0, block=70, crush=1, anchor=anchor)

    def test_covers_and_representatives(self):
        for seed, n in enumerate((97, 64)):
            trace = self.given(small(80 + seed, n, GROUPS[1 + seed], layers=2))
            for block in (1, 4, 8):
                for crush, anchor, cover in ((1, "mean", 0.3), (2, "ones", 0.9), (3, "zeros", 0.2), (2, "random", 0.01)):
                    for score in ("sum", "norm_sum"):
                        self.same(trace, n // 2, start=4, recent=5, block=block, adaptive=True, cover=cover, crush=crush, anchor=anchor, score=score)

    def test_a_model_of_its_own_scale_cap_and_sinks(self):
        for says in ({"scale": 0.3, "cap": 4.0}, {"sinks": "F32"}, {"scale": 0.3, "cap": 4.0, "sinks": "F32"}):
            trace = small(90, 64, (8, 2), layers=2)
            self.write(trace, trace.model_says(8, **says))
            for fields in ({}, {"score": "norm_sum"}, {"adaptive": True, "cover": 0.3}, {"crush": 2}):
                self.same(trace, 30, start=4, recent=5, block=4, **fields)

    def test_a_key_that_is_nan_leaves_the_lowest_blocks(self):
        trace = small(91, 50, (8, 2))
        trace.keys[1, 0, 20, 3] = np.nan
        trace.stored["keys"][1][1, 0, 20, 3] = np.nan
        self.write(trace)
        self.same(trace, 17, start=4, recent=3, block=4)
        self.assertEqual(self.told["nan_scores"], 40)
        self.same(trace, 17, start=4, recent=3, block=4, crush=2)


class FastKvzip(System):
    policy = "fast_kvzip"

    def same(self, trace, numbers, budget=None, ratio=None, scope=None, sinks=4, window=-1, **fields):
        allowed = budget_of(trace.n, budget, ratio)
        forced = first_ones(trace, sinks) | last_ones(trace.n, oracles.fast_kvzip_window(trace.n, window))
        lanes, heads = trace.lanes(), trace.kv_heads
        pools = {"lane": [[s] for s in range(len(lanes))], "layer": [list(range(layer * heads, (layer + 1) * heads)) for layer in range(trace.layers)]}
        pools = pools.get(scope, [list(range(len(lanes)))])
        scores = [numbers if numbers.ndim == 1 else numbers[lane] for lane in lanes]
        more = ("--budget-scope", scope) if scope else ()
        if sinks != 4:
            fields["sinks"] = sinks
        if window != -1:
            fields["window"] = window
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, scope=scope, **fields):
            decision = Decision(scores, [forced] * len(lanes), [allowed] * len(lanes), pools, "unsaid", near=0)
            self.decides(decision, *how_much(budget, ratio), *more, **fields)

    def test_one_pool_of_all_lanes(self):
        for seed, heads in enumerate((*GROUPS, (4, 4))):
            trace = small(seed, (300, 97, 50, 149)[seed], heads, dtype=("F32", "BF16", "F16", "F64")[seed], gap=3 * (seed % 2))
            numbers = numbers_of(trace, "fast_kvzip", seed, trace.dtype)
            self.write(trace)
            for budget in (0, 1, 4, 9, 10, 20, trace.n - 1, trace.n, trace.n + 5):
                self.same(trace, numbers, budget)
            for ratio in (0.0, 0.1, 0.34, 0.9, 1.0):
                self.same(trace, numbers, ratio=ratio)

    def test_scopes_that_are_named(self):
        trace = small(10, 90, (8, 2))
        numbers = numbers_of(trace, "fast_kvzip", 10) * 1.0
        numbers[:, 0] *= 1.5  # lanes that get more of a pool
        numbers[2] *= 0.5
        numbers = put(trace, "birth.fast_kvzip", numbers)
        self.write(trace)
        for scope in ("lane", "layer", "global"):
            for budget in (0, 5, 30, 89):
                self.same(trace, numbers, budget, scope=scope)

    def test_forced_entries(self):
        trace = small(11, 60)
        numbers = numbers_of(trace, "fast_kvzip", 11)
        self.write(trace)
        for sinks, window in ((0, 0), (0, -1), (4, 0), (1, 10), (30, 30), (40, 30), (0, 60), (4, 100)):
            for budget in (0, 20, 59):
                self.same(trace, numbers, budget, sinks=sinks, window=window)

    def test_ties_infinities_and_nan(self):
        trace = small(12, 64, (8, 4))
        numbers = numbers_of(trace, "fast_kvzip", 12, steps=5, low=-1.0)
        numbers[:, :, 3::7] = -np.inf
        numbers[:, :, 5::13] = np.inf
        numbers[1, 1, 6::9] = np.nan
        numbers = put(trace, "birth.fast_kvzip", numbers)
        self.write(trace)
        for budget in (1, 10, 30, 60, 62, 63):
            self.same(trace, numbers, budget)
            self.same(trace, numbers, budget, scope="lane")

    def test_numbers_of_tokens_and_of_another_name(self):
        trace = small(13, 80, (8, 2))
        numbers = numbers_of(trace, "mine", 13, shape=(80,), steps=9)
        self.write(trace)
        self.same(trace, numbers, 33, name="mine")
        numbers = numbers_of(trace, "fast_kvzip", 14)
        self.write(trace)
        self.same(trace, numbers, 33)

    def test_numbers_are_all_it_needs(self):
        trace = small(14, 70)
        numbers = numbers_of(trace, "fast_kvzip", 14)
        self.write(trace, without=("keys", "values", "queries"))
        self.same(trace, numbers, 25)

    def test_a_window_of_long_prompts(self):
        for n in (31999, 32000):
            trace = small(15, n, (1, 1), layers=1, dims=4, value_dims=4)
            numbers = numbers_of(trace, "fast_kvzip", n)
            self.write(trace, without=("queries",))
            self.same(trace, numbers, 5000)

    def test_short_prompts(self):
        for n in (1, 3, 4, 5, 49, 51):
            trace = small(16, n)
            numbers = numbers_of(trace, "fast_kvzip", n)
            self.write(trace)
            for budget in (0, 2, n - 1, n):
                self.same(trace, numbers, budget)


class Nacl(Windowed):
    policy = "nacl"

    def same(self, trace, budget=None, ratio=None, sinks=0, **fields):
        how = {"window": 32, "random": 0.25, "group": "mean", "seed": 42, **fields}
        allowed = budget_of(trace.n, budget, ratio)
        forced = last_ones(trace.n, how["window"]) | first_ones(trace, sinks)
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, sinks=sinks, **fields):
            made = [oracles.nacl(trace, *lane, allowed, how["window"], how["random"], how["group"], how["seed"], forced) for lane in trace.lanes()]
            if trace.n > allowed:
                self.assertGreater(min(gap for _, gap in made), 2 * NEAR, "a near tie: choose another seed")
            decision = Decision([scores for scores, _ in made], [forced] * len(made), [allowed] * len(made))
            self.decides(decision, *how_much(budget, ratio, sinks), **fields)

    def test_every_group_and_type(self):
        for seed, heads in enumerate((*GROUPS, (8, 2))):
            trace = small(seed, (200, 97, 64, 150)[seed], heads, dtype=("F32", "F16", "BF16", "F64")[seed], gap=3 * (seed % 2))
            self.write(trace)
            for budget in (0, 1, 31, 32, 33, 34, 50, trace.n - 1, trace.n, trace.n + 5):
                self.same(trace, budget)
            for ratio in (0.0, 0.34, 0.5, 0.9, 1.0):
                self.same(trace, ratio=ratio)
            self.same(trace, 50, sinks=4)

    def test_parts_that_are_drawn(self):
        trace = small(10, 120, (8, 2))
        self.write(trace)
        for random in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1):  # 0.7 of 10 is 7, as 0.3 of 10 is 3
            for budget in (18, 28, 41):
                self.same(trace, budget, window=8, random=random)

    def test_seeds_and_groups(self):
        trace = small(11, 100, (8, 2))
        self.write(trace)
        for seed, group in ((0, "mean"), (1, "sum"), (4294967295, "max"), (42, "mean")):
            self.same(trace, 60, seed=seed, group=group, random=0.5)


class SirLlm(System):
    policy = "sir_llm"

    def same(self, trace, numbers, budget=None, ratio=None, ends=None, exact=False, **fields):
        how = {"sinks": 4, "entropy": 1000, "decay": 1, **{name: value for name, value in fields.items() if name != "name"}}
        allowed = budget_of(trace.n, budget, ratio)
        turns = oracles.sir_llm(numbers, ends or [trace.n], allowed, how["sinks"], how["entropy"], how["decay"] if ends else 1, trace.positions)
        live, forced, scores, _, _ = turns[-1]
        decision = Decision([scores], [forced], [allowed], near=0)
        decision.live, decision.copies = [live], len(trace.lanes())
        if ends:
            decision.turns = [kept for _, _, _, kept, _ in turns]
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, ends=ends, **fields):
            if not exact:
                self.assertGreater(min(gap for *_, gap in turns), 2 * NEAR, "a near tie: choose another seed")
            self.assertEqual(decision.kept()[0], turns[-1][3])
            self.decides(decision, *how_much(budget, ratio), *(("--mode", "turns") if ends else ()), **fields)

    def with_turns(self, trace, ends):
        trace.stored["turn_end"] = ("I32", np.array(ends, np.int32))
        self.write(trace)
        return ends

    def test_a_prompt(self):
        for seed, heads in enumerate((*GROUPS, (4, 4))):
            trace = small(seed, (200, 97, 50, 40)[seed], heads, dtype=("F32", "BF16", "F16", "F64")[seed], gap=3 * (seed % 2))
            numbers = numbers_of(trace, "surprise", seed, shape=(trace.n,))
            self.write(trace)
            for budget in (0, 1, 3, 4, 5, 20, trace.n - 1, trace.n, trace.n + 5):
                for entropy in (0, 1, 7, 1000):
                    self.same(trace, numbers, budget, entropy=entropy)
            for ratio in (0.0, 0.34, 0.9, 1.0):
                self.same(trace, numbers, ratio=ratio)
                self.same(trace, numbers, ratio=ratio, entropy=9, sinks=0)

    def test_a_prompt_does_not_decay(self):
        trace = small(10, 60)
        numbers = numbers_of(trace, "surprise", 10, shape=(60,))
        self.write(trace)
        self.same(trace, numbers, 30, entropy=10, decay=0.5)

    def test_ties_infinities_and_nan(self):
        trace = small(11, 60)
        numbers = numbers_of(trace, "other", 11, shape=(60,), steps=4)
        numbers[5::9] = np.inf
        numbers[7::10] = -np.inf
        numbers[6::8] = np.nan
        numbers = put(trace, "birth.other", numbers)
        self.write(trace)
        for budget, entropy in ((10, 3), (20, 9), (40, 20), (55, 30), (59, 41)):
            self.same(trace, numbers, budget, entropy=entropy, name="other", exact=True)

    def test_the_example_of_two_turns(self):
        trace = small(12, 5)
        numbers = put(trace, "birth.surprise", np.array([2.0, .5, 1.5, 1.6, 1.0]))
        ends = self.with_turns(trace, [3, 5])
        self.same(trace, numbers, 3, ends=ends, sinks=0, entropy=2, decay=0.9)
        self.assertEqual(self.expected.turns, [[0, 1, 2], [0, 3, 4]])

    def test_turns(self):
        for seed, ends in enumerate(([30, 31, 60, 90, 120], [10, 50, 97], [64], [1, 2, 3, 4, 40, 44])):
            trace = small(20 + seed, ends[-1], (*GROUPS, (8, 2))[seed], dtype=("F32", "BF16", "F16", "F64")[seed], gap=2 * (seed % 2))
            numbers = numbers_of(trace, "surprise", seed, shape=(trace.n,), low=0.1)
            self.with_turns(trace, ends)
            for budget in (0, 1, 4, 8, 25, trace.n - 1, trace.n):
                for entropy, decay in ((5, 1), (12, 0.9), (1000, 0.7)):
                    self.same(trace, numbers, budget, ends=ends, entropy=entropy, decay=decay)
            self.same(trace, numbers, ratio=0.75, ends=ends, entropy=7, decay=0.9)
            self.same(trace, numbers, 20, ends=ends, entropy=7, decay=0.9, sinks=0)

    def test_ties_of_turns(self):
        trace = small(30, 80)
        numbers = put(trace, "birth.surprise", 2.0 ** np.random.default_rng(30).integers(-2, 3, 80))  # halves of halves are equal too
        ends = self.with_turns(trace, [20, 40, 41, 80])
        for budget, entropy in ((10, 4), (25, 14), (39, 30)):
            for decay in (1, 0.5):
                self.same(trace, numbers, budget, ends=ends, entropy=entropy, decay=decay, exact=True)


class LuKv(System):
    """With scores that the trace gives."""
    policy = "lu_kv"

    def same(self, trace, scores, prunes, budget=None, ratio=None, sinks=4, window=1, **fields):
        fields = {**fields, **({"sinks": sinks} if sinks != 4 else {}), **({"window": window} if window != 1 else {})}
        row = prunes if prunes.ndim == 2 else prunes[oracles.lu_kv_row(ratio)]
        allowed = budget_of(trace.n, budget, ratio)
        lanes = [scores if scores.ndim == 1 else scores[lane] for lane in trace.lanes()]
        forced = [first_ones(trace, sinks) | last_ones(trace.n, window)] * len(lanes)
        shares = oracles.lu_kv_shares(row, trace.n) if trace.n > allowed else None
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, **fields):
            decision = Decision(lanes, forced, shares or [trace.n] * len(lanes), shares=shares, near=0)
            self.decides(decision, *how_much(budget, ratio), **{"scores": "mine", **fields})

    def given(self, trace, seed, steps=None, shape=None):
        dice, shape = np.random.default_rng(seed), shape or (trace.layers, trace.kv_heads, trace.n)
        return put(trace, "external.mine", dice.integers(0, steps, shape) / 4 if steps else dice.normal(0, 1, shape), trace.dtype)

    def test_a_row_for_each_ratio(self):
        for seed, (heads, n) in enumerate((((2, 2), 100), ((8, 2), 57), ((8, 1), 200), ((4, 4), 31))):
            trace = small(seed, n, heads, dtype=("F32", "F16", "BF16", "F64")[seed])
            scores = self.given(trace, seed)
            dice = np.random.default_rng(100 + seed)
            row = np.arange(1, 100)[:, None, None] / 100
            table = put(trace, "table.lu_kv", np.clip(row * dice.uniform(0.5, 1.5, (99, 3, heads[1])), 0, 1), ("F32", "F64")[seed % 2])
            self.write(trace)
            for ratio in (0.004, 0.01, 0.015, 0.025, 0.1, 0.29, 0.34, 0.5, 0.505, 0.515, 0.75, 0.9, 0.99, 0.999, 1.0):
                self.same(trace, scores, table, ratio=ratio)
            self.same(trace, scores, table, ratio=0.0)  # nothing has to be dropped

    def test_a_table_that_is_one_row(self):
        for seed, heads in enumerate(((8, 2), (8, 8), (8, 1))):
            trace = small(10 + seed, 90, heads)
            scores = self.given(trace, seed)
            for values in (np.random.default_rng(seed).integers(0, 129, (3, heads[1])) / 128, np.full((3, heads[1]), 0.5), np.full((3, heads[1]), 1 / 3),
                           np.full((3, heads[1]), 1.0), np.zeros((3, heads[1])), np.full((3, heads[1]), 0.999), np.linspace(-0.5, 1.5, 3 * heads[1]).reshape(3, -1)):
                table = put(trace, "table.lu_kv", values)
                self.write(trace)
                self.same(trace, scores, table, ratio=0.3)
                self.same(trace, scores, table, ratio=0.9)
                self.same(trace, scores, table, 40)
                self.same(trace, scores, table, 90)  # nothing has to be dropped

    def test_halves_go_to_the_even_total_and_the_lower_head(self):
        trace = small(20, 5, (4, 4), layers=4)
        scores = self.given(trace, 20)
        table = put(trace, "table.lu_kv", np.array([[.5, .5, .5, .5], [.5, 0, 0, 0], [.5, 1, 1, 1], [.875, .125, .75, .25]]))
        self.write(trace)
        self.same(trace, scores, table, ratio=0.5)
        self.assertEqual(self.expected.shares, [3, 3, 2, 2, 3, 5, 5, 5, 3, 1, 1, 1, 1, 4, 1, 4])

    def test_ties_infinities_and_nan(self):
        trace = small(21, 64, (8, 2))
        scores = self.given(trace, 21, steps=3)
        scores[:, :, 3::7], scores[:, :, 5::13] = -np.inf, np.inf
        scores[1, 1, 6::9] = np.nan
        scores = put(trace, "external.mine", scores)
        table = put(trace, "table.lu_kv", np.linspace(0.02, 0.95, 6).reshape(3, 2))
        self.write(trace)
        self.same(trace, scores, table, ratio=0.5)

    def test_other_names_and_one_entry(self):
        trace = small(22, 40, (8, 2))
        scores = self.given(trace, 22, shape=(40,))
        table = put(trace, "table.profile", np.linspace(0.1, 0.9, 6).reshape(3, 2))
        self.write(trace)
        self.same(trace, scores, table, ratio=0.5, table="profile")
        for sinks, window in ((0, 0), (0, 7), (9, 0), (3, 40)):
            self.same(trace, scores, table, ratio=0.5, table="profile", sinks=sinks, window=window)
        trace = small(23, 1)
        scores = self.given(trace, 23)
        table = put(trace, "table.lu_kv", np.full((3, 2), 0.5))
        self.write(trace)
        for ratio in (0.0, 1.0):
            self.same(trace, scores, table, ratio=ratio)


class Locret(System):
    policy = "locret"

    def same(self, trace, numbers, budget=None, ratio=None, chunk=None, name="locret", stabilizers=2500, local=100):
        allowed = budget_of(trace.n, budget, ratio)
        lanes = [numbers if numbers.ndim == 1 else numbers[lane] for lane in trace.lanes()]
        made = [oracles.locret(one, allowed, stabilizers, local, chunk) for one in lanes]
        decision = Decision(lanes, [], [allowed] * len(lanes), near=0)
        last = [np.isin(np.arange(trace.n), ranked if ranked is not None else []) for _, _, ranked in made]
        decision.live, decision.forced = last, [np.zeros(trace.n, bool)] * len(lanes)  # who was ranked at the end
        decision.fixed, decision.silent = [kept for kept, _, _ in made], chunk is not None
        if chunk is not None:
            decision.events = sorted((t, s, j) for s, (_, events, _) in enumerate(made) for t, j in events)
        fields = {field: value for field, value, usual in (("name", name, "locret"), ("stabilizers", stabilizers, 2500), ("local", local, 100)) if value != usual}
        mode = ("--mode", "chunks", "--chunk", chunk) if chunk else ()
        with self.subTest(n=trace.n, budget=budget, ratio=ratio, chunk=chunk, **fields):
            self.decides(decision, *how_much(budget, ratio), *mode, **fields)
            if self.rehearsed:
                return
            by_policy, text = self.out.read_bytes(), self.told["spec"]
            self.assertEqual(text, f"locret(name={name}, stabilizers={stabilizers}, local={local}) | budget({allowed})")
            done = self.run_program("--spec", text, *mode)
            self.assertEqual((done.returncode, json.loads(done.stdout)["spec"]), (0, text), done.stderr)
            self.assertEqual(self.out.read_bytes(), by_policy, "what it prints is not what it does")

    def test_a_prompt_at_once(self):
        for seed, heads in enumerate((*GROUPS, (4, 4))):
            trace = small(seed, (200, 130, 101, 150)[seed], heads, dtype=("F32", "BF16", "F16", "F64")[seed], gap=3 * (seed % 2))
            numbers = numbers_of(trace, "locret", seed, trace.dtype)
            self.write(trace)
            for budget in (0, 1, 20, 30, 50, trace.n - 100, trace.n - 1, trace.n):
                self.same(trace, numbers, budget)
                self.same(trace, numbers, budget, stabilizers=3, local=10)
                self.same(trace, numbers, budget, local=0)
            self.same(trace, numbers, ratio=0.75, local=10)

    def test_chunks(self):
        for seed, heads in enumerate(GROUPS):
            trace = small(10 + seed, (120, 97, 64)[seed], heads, dtype=("F32", "BF16", "F16")[seed])
            numbers = numbers_of(trace, "locret", seed, trace.dtype)
            self.write(trace)
            for chunk in (1, 7, 16, 40, 200):
                for budget, stabilizers, local in ((20, 5, 10), (1, 0, 8), (0, 4, 8), (30, 30, 0), (10, 25, 16), (trace.n, 5, 10), (25, 2500, 20)):
                    self.same(trace, numbers, budget, chunk=chunk, stabilizers=stabilizers, local=local)

    def test_a_spec_that_says_where_it_ends(self):
        """`local` is taken out of the text, and nothing else moves: an error names the column that the user typed."""
        trace = small(30, 60)
        self.write(trace)
        numbers_of(trace, "locret", 30)
        self.write(trace)
        kept = [self.run_program("--spec", text).returncode or self.out.read_bytes() for text in (
            "locret(local=9, stabilizers=3) | budget(9)", "evict: locret(stabilizers=3, local=9)|budget(9)",
            "locret(locret, 3, 9) | budget(9)", "locret( stabilizers = 3 , local = 9 ) | budget(9)")]
        self.assertEqual(kept, [kept[0]] * 4)
        self.assertEqual(len(ragged(read(self.out))[0]), 18)
        for text, said in (("locret(local=9) | bugdet(9)", "column 19 = bugdet"), ("locret(local=x) | budget(9)", "column 14 = x"),
                           ("locret(local=-9) | budget(9)", "locret.local = -9"), ("locret(stabilizers=-1)", "stabilizers = -1"),
                           ("locret(9, local=3, local=4) | budget(9)", "given before")):
            done = self.run_program("--spec", text)
            self.assertEqual((done.returncode, self.out.exists()), (2, False), text)
            self.assertIn(said, done.stderr)

    def test_a_prompt_that_is_local(self):
        for n in (1, 60, 100):
            trace = small(20, n)
            numbers = numbers_of(trace, "locret", 20)
            self.write(trace)
            for chunk in (None, 16):
                self.same(trace, numbers, 10, chunk=chunk)
                self.same(trace, numbers, 0, chunk=chunk)

    def test_ties_infinities_and_nan(self):
        trace = small(21, 80, (8, 4))
        numbers = numbers_of(trace, "mine", 21, steps=4)
        numbers[:, :, 3::7], numbers[:, :, 5::13] = -np.inf, np.inf
        numbers[1, 1, 6::9] = np.nan
        numbers = put(trace, "birth.mine", numbers)
        self.write(trace)
        for chunk in (None, 8, 33):
            for budget in (5, 30, 60):
                self.same(trace, numbers, budget, chunk=chunk, name="mine", stabilizers=4, local=12)

    def test_numbers_of_tokens(self):
        trace = small(22, 80, (8, 2))
        numbers = numbers_of(trace, "locret", 22, shape=(80,))
        self.write(trace)
        for chunk in (None, 12):
            self.same(trace, numbers, 20, chunk=chunk, stabilizers=6, local=10)


class Admitted(admission_test.Admission):
    """Admissions by a number of each entry. The numbers and thresholds are multiples of 1/16."""
    policy, told = None, {"nan_scores": None}

    def numbered(self, seed, entries, dtype="F32", name=None, **more):
        raise NotImplementedError

    def same_lists(self, result, expected):
        self.assertEqual(ragged(result), [glob + local for glob, local, _ in expected])
        self.assertEqual(ragged(result, "local"), [local for _, local, _ in expected])

    def counted(self, count):
        self.assertEqual(self.told["nan_scores"], count)

    def everywhere(self, trace, numbers, window, threshold, strict, cap=None, starts=(), sinks=0, **fields):
        admits = [[j < sinks or fine for j, fine in enumerate(admitted(numbers if numbers.ndim == 1 else numbers[lane], threshold, strict))]
                  for lane in trace.lanes()]
        fields = {"threshold": threshold, "strict": strict, **({"sinks": sinks} if sinks else {}), **fields}
        with self.subTest(n=trace.n, window=window, cap=cap, **fields):
            self.both_modes(trace, self.policy, admits, window, cap, starts, **fields)
        return admits

    def test_around_the_window(self):
        for seed, (window, extra) in enumerate(((4, -1), (4, 0), (8, 1), (1, 0), (1, 7), (8, 20), (16, 17), (2, 30), (128, 20))):
            n = window + extra
            trace, numbers = self.numbered(seed, n, ("F32", "F16", "BF16", "F64")[seed % 4])
            self.write(trace)
            for threshold in (self.middle, self.middle + 0.25):
                for strict in (False, True):
                    self.everywhere(trace, numbers, window, threshold, strict, starts=sorted({0, n // 2, max(0, n - 1), n}))

    def test_groups_of_query_heads(self):
        for seed, group in enumerate((1, 4, 8)):
            trace, numbers = self.numbered(20 + seed, 30, layers=2, kv_heads=2)
            trace.group = group
            trace.put("queries", np.random.default_rng(seed).integers(-24, 25, (2, 2 * group, 30, trace.d)) / 8, "F32")
            self.write(trace)
            self.everywhere(trace, numbers, 6, self.middle, True, starts=(11,))

    def test_sinks(self):
        for sinks, window, gap in ((3, 4, 0), (3, 1, 50), (9, 4, 0), (40, 4, 0), (2, 40, 0)):
            trace, numbers = self.numbered(30 + sinks, 30, gap=gap)
            self.write(trace)
            self.everywhere(trace, numbers, window, self.middle + 0.25, True, starts=(0, 13), sinks=sinks)

    def test_a_cap_of_who_is_admitted(self):
        trace, numbers = self.numbered(40, 30)
        self.write(trace)
        for cap in (0, 1, 5, 100):
            self.everywhere(trace, numbers, 4, self.middle, False, cap=cap, starts=(9,))

    def test_ends_and_nan(self):
        for seed, strict in enumerate((False, True)):
            trace, numbers = self.numbered(41 + seed, 30, "F32", nan=0.3)
            numbers[..., 2::5], numbers[..., 4::7], numbers[..., 26:] = *self.ends, 1.0  # none in the window is asked
            trace.put(self.tensor, numbers, "F32")
            self.write(trace)
            self.everywhere(trace, numbers, 4, self.middle, strict, starts=(0, 12))
            self.replay(self.policy, window=4, threshold=self.middle, strict=strict)
            self.counted(int(np.isnan(numbers).sum()))

    def test_everything_and_nothing(self):
        trace, numbers = self.numbered(43, 20)
        self.write(trace)
        for threshold in (-100, 100):
            self.everywhere(trace, numbers, 4, threshold, False, starts=(7,))
        trace.put(self.tensor, np.full(numbers.shape, self.middle), "F32")
        self.write(trace)
        for strict in (False, True):
            self.everywhere(trace, np.full(numbers.shape, self.middle), 4, self.middle, strict, starts=(7,))

    def test_the_usual_fields(self):
        trace, numbers = self.numbered(44, 150, layers=1, kv_heads=2)
        numbers[0, 0, ::3] = self.usual["threshold"]
        trace.put(self.tensor, numbers, "F32")
        self.write(trace)
        expected = [run_lane(admitted(numbers[lane], self.usual["threshold"], self.usual["strict"]), self.usual["window"]) for lane in trace.lanes()]
        self.same(trace, self.replay(self.policy, "--attend"), expected)

    def test_numbers_are_all_it_needs(self):
        trace, numbers = self.numbered(45, 25)
        self.write(trace, without=("keys", "values", "queries"))
        admits = [admitted(numbers[lane], self.middle) for lane in trace.lanes()]
        for mode in ((), ("--mode", "decode", "--prefill", 9)):
            self.same_lists(self.replay(self.policy, *mode, window=4, threshold=self.middle, strict=False), [run_lane(one, 4, None, 9) for one in admits])


class KvZap(Admitted):
    policy, middle, tensor, ends = "kvzap", -4.0, "birth.kvzap", (float("inf"), -float("inf"))
    usual = {"threshold": -4.0, "strict": False, "window": 128}

    def numbered(self, seed, entries, dtype="F32", name="kvzap", nan=0.0, shape=None, **more):
        trace = admission_test.Small(seed, entries, dtype, **more)
        dice = np.random.default_rng(seed)
        numbers = dice.integers(-128, 1, shape or (trace.layers, trace.kv_heads, entries)) / 16
        numbers[dice.random(numbers.shape) < 0.1] = self.middle
        numbers[dice.random(numbers.shape) < nan] = np.nan
        del trace.stored["gate"]
        trace.put(f"birth.{name}", numbers, dtype)
        return trace, numbers

    def test_numbers_of_tokens_and_of_another_name(self):
        trace, numbers = self.numbered(50, 30, name="mine")
        self.write(trace)
        self.everywhere(trace, numbers, 4, self.middle, False, starts=(12,), name="mine")
        trace, numbers = self.numbered(51, 30, shape=(30,))
        self.write(trace)
        self.everywhere(trace, numbers, 4, self.middle, False, starts=(12,))

    def test_sinks_of_the_composition(self):
        trace, numbers = self.numbered(52, 150)
        self.write(trace)
        self.everywhere(trace, numbers, 128, -4.0, False, starts=(140,), sinks=4)


class AttentionGate(Admitted):
    policy, middle, tensor, ends = "attention_gate", 0.5, "gate", (1.0, 0.0)
    usual = {"threshold": 0.5, "strict": True, "window": 1}

    def numbered(self, seed, entries, dtype="F32", name=None, nan=0.0, **more):
        trace = admission_test.Small(seed, entries, dtype, nan=nan, **more)
        return trace, trace.gate


class SideQuest(System):
    """What is in a stale span goes, and nothing else; a span ends before its end."""

    policy = "side_quest"

    def same(self, trace, spans, sinks=0, recent=0, *arguments):
        for i, name in enumerate(("stale_begin", "stale_end")):
            trace.stored[name] = ("I32", np.array([span[i] for span in spans], np.int32))
        self.write(trace, without=() if spans else ("stale_begin", "stale_end"))
        segments = len(trace.lanes())
        goes = [any(begin <= p < end for begin, end in spans) and sinks <= j < trace.n - recent for j, p in enumerate(trace.positions)]
        kept = [j for j in range(trace.n) if not goes[j]]
        decision = Decision([np.zeros(trace.n)] * segments, [np.ones(trace.n, bool)] * segments, [trace.n] * segments)
        decision.fixed = [kept] * segments
        more = [*(("--sinks", sinks) if sinks else ()), *(("--recent", recent) if recent else ())]
        with self.subTest(n=trace.n, spans=spans, sinks=sinks, recent=recent):
            result = self.replay(*more, *arguments)
            self.assertEqual(ragged(result), decision.fixed)
            self.assertEqual(self.told["logical_kept"], len(kept) * segments)
            if len(kept) < trace.n:
                found = np.array(result["scores"][1]).reshape(result["scores"][0])
                free = [j for j in range(sinks, trace.n - recent)]
                np.testing.assert_array_equal(found[:, free], [[float(not any(b <= trace.positions[j] < e for b, e in spans)) for j in free]] * segments)

    def test_spans(self):
        for seed, (n, gap) in enumerate(((40, 0), (97, 5), (1, 0), (33, 2))):
            trace = small(seed, n, GROUPS[seed % 3], dtype=("F32", "BF16", "F16", "F64")[seed], gap=gap)
            last = int(trace.positions[-1])
            for spans in ([(0, 1)], [(3, 9)], [(3, 9), (5, 20), (last, last + 1)], [(0, last)], [(0, last + 1)], [(7, 7)], [(last + 5, last + 9)]):
                self.same(trace, spans)

    def test_what_is_forced_stays(self):
        trace = small(4, 50)
        for sinks, recent in ((4, 0), (0, 8), (2, 3), (60, 0)):
            self.same(trace, [(0, 10), (40, 50)], sinks, recent)

    def test_positions_are_all_it_needs(self):
        trace = small(5, 30)
        trace.stored["stale_begin"] = trace.stored["stale_end"] = ("I32", np.array([4], np.int32))
        trace.stored["stale_end"] = ("I32", np.array([9], np.int32))
        trace.stored["positions"] = ("I32", np.array(trace.positions, np.int32))
        self.write(trace, without=("keys", "values", "queries"))
        self.assertEqual(ragged(self.replay())[0], [*range(4), *range(9, 30)])

    def test_spans_that_are_wrong(self):
        trace = small(6, 30)
        for begin, end, said in (([4], [3], "stale_end"), ([4, 5], [9], "stale_end"), ([4], None, "stale_end"), (None, [4], "stale_begin")):
            for name, values in (("stale_begin", begin), ("stale_end", end)):
                trace.stored.pop(name, None)
                if values is not None:
                    trace.stored[name] = ("I32", np.array(values, np.int32))
            self.write(trace)
            self.fails(self.run_program("--policy", self.policy), said, begin=begin, end=end)

    def test_a_budget_is_refused(self):
        trace = small(7, 30)
        trace.stored["stale_begin"] = trace.stored["stale_end"] = ("I32", np.array([4], np.int32))
        self.write(trace)
        for more in (("--budget", 10), ("--ratio", 0.5)):
            self.refused(f"{more[0]} = {more[1]}, but at_least keeps however many", "--policy", self.policy, *more)


SYSTEMS = {"pyramid_kv": PyramidKv, "observed_attention": ObservedAttention, "keydiff": Keydiff, "lookahead_kv": LookaheadKv, "dapq": Dapq,
           "fast_kvzip": FastKvzip, "nacl": Nacl, "sir_llm": SirLlm, "lu_kv": LuKv, "locret": Locret,
           "kvzap": KvZap, "attention_gate": AttentionGate, "side_quest": SideQuest,
           "r_kv": RKv, "q_filters": QFilters, "tri_attention": TriAttention, "scissorhands": Scissorhands,
           "lazy_eviction": LazyEviction, "keys_values": KeysValues, "neural_gc": NeuralGc, "chunk_kv": ChunkKv,
           "openvino": OpenVino}


# What each is besides its decisions: fields and defaults, modes, what it decides for, a tensor it cannot do without, values it refuses
CONTRACTS = {
    "pyramid_kv": ("window=32 pool=max:7 rows=sum group=mean beta=20 rule=exact", "prefill", "lane", "queries", "window=-1 beta=0 rule=steep pool=max:2"),
    "keydiff": ("", "prefill decode turns chunks", "lane", "keys", ""),
    "observed_attention": ("group=mean", "prefill", "lane", "queries", "group=median"),
    "lookahead_kv": ("recent=32 pool=none rows=mean group=mean", "prefill", "lane", "query_rows", "recent=-1 pool=max:2 rows=median"),
    "dapq": ("recent=32 pool=max:7 rows=mean group=mean", "prefill", "lane", "query_rows", "recent=-1 pool=max:2 rows=median"),
    "fast_kvzip": ("name=fast_kvzip sinks=4 window=-1", "prefill", "lane", "birth.fast_kvzip", "sinks=-1 window=-2"),
    "nacl": ("window=32 random=0.25 group=mean seed=42", "prefill", "lane", "queries", "window=-1 random=1.5 random=-0.5 group=median"),
    "sir_llm": ("name=surprise sinks=4 entropy=1000 decay=1", "prefill turns", "token", "birth.surprise", "sinks=-1 entropy=-1 decay=nan"),
    "lu_kv": ("table=lu_kv sinks=4 window=1 epsilon=0.02 scores=", "prefill", "lane", "table.lu_kv", "sinks=-1 window=-1"),
    "locret": ("name=locret stabilizers=2500 local=100", "prefill chunks", "lane", "birth.locret", "stabilizers=-1 local=-1"),
    "kvzap": ("name=kvzap window=128 sinks=0 threshold=-4 strict=false", "prefill decode", "lane", "birth.kvzap", "window=-1 sinks=-1 threshold=nan strict=perhaps"),
    "side_quest": ("", "prefill", "lane", "stale_begin", ""),
    "attention_gate": ("threshold=0.5 window=1 sinks=0 strict=true", "prefill decode", "lane", "gate", "window=-1 sinks=-1 threshold=nan strict=perhaps"),
    "r_kv": ("window=8 lambda=0.07 pool=max:7 threshold=0.5 retain=last", "prefill decode turns chunks", "lane", "queries",
             "window=-1 lambda=nan pool=max:2 threshold=nan retain=first"),
    "q_filters": ("table=q_filters", "prefill decode turns chunks", "lane", "table.q_filters", ""),
    "tri_attention": ("aggregate=mean normalise=z group=max offsets=17", "prefill decode turns chunks", "lane", "query_model.mean",
                      "aggregate=sum normalise=rank group=median offsets=0"),
    "scissorhands": ("history=32 recent=32 group=sum", "prefill decode turns chunks", "lane", "queries", "history=-1 recent=-1 group=median"),
    "lazy_eviction": ("alpha=0.01 window=32 combine=product group=mean", "decode", "lane", "queries", "alpha=nan window=0 window=-1 combine=max group=median"),
    "keys_values": ("grace=0 values=false by_age=false group=sum", "prefill decode turns chunks", "lane", "queries", "grace=-1 values=perhaps by_age=perhaps group=median"),
    "neural_gc": ("block=32 window=5 every=256 drop=0.5", "prefill decode turns chunks", "layer", "queries", "block=0 window=-1 every=0 drop=1.5 drop=-0.5"),
    "chunk_kv": ("chunk=20 window=32 pool=avg:5 scores=", "prefill", "layer", "queries", "chunk=0 window=-1 pool=max:2"),
    "openvino": ("start=32 recent=128 block=32 score=sum adaptive=false cover=0.9 crush=0 anchor=mean seed=0", "prefill", "layer", "queries",
                 "start=-1 recent=-1 block=0 score=median adaptive=perhaps cover=0 cover=1.5 crush=-1 anchor=median"),
}


class Contract(System):
    """A system's entry in the list, and what it refuses; `system` is set for each."""
    system, contracts = None, CONTRACTS

    def refused(self, text, *arguments):
        super().refused(text, "--policy", self.system, *arguments)

    def a_trace(self, without=()):
        trace = small(0, 40)
        for name in ("birth.kvzap", "birth.locret", "birth.fast_kvzip", "external.mine", "gate"):
            put(trace, name, np.random.default_rng(0).uniform(0, 1, (3, 2, 40)))
        put(trace, "birth.surprise", np.ones(40))
        put(trace, "table.lu_kv", np.full((3, 2), 0.5))
        put(trace, "table.q_filters", np.ones((3, 2, 16)))
        put(trace, "query_model.mean", np.ones((3, 2, 16)))
        put(trace, "query_model.radius", np.full((3, 2, 8), 2.0))
        put(trace, "query_rows", np.ones((3, 2, 4, 16)))
        trace.stored["query_positions"] = ("I32", np.arange(40, 44, dtype=np.int32))
        trace.stored["turn_end"] = ("I32", np.array([20, 40], np.int32))
        trace.stored["stale_begin"] = trace.stored["stale_end"] = ("I32", np.array([4], np.int32))
        self.write(trace, {"rope_theta": "10000"}, without=without)
        none = dict.fromkeys(("kvzap", "attention_gate", "side_quest", "neural_gc"), ())
        self.budget = {**none, "lu_kv": ("--ratio", 0.5, "--set", "scores=mine")}.get(self.system, ("--budget", 20))
        self.mode = ("--mode", "decode", "--prefill", 20) if "prefill" not in self.contracts[self.system][1].split() else ()

    def test_fields_defaults_modes_and_what_it_decides_for(self):
        known = listed()
        self.assertIn(self.system, known)
        fields, modes, granularity, _, _ = self.contracts[self.system]
        found = {one["name"]: as_number(one["default"]) for one in known[self.system]["fields"]}
        self.assertEqual(found, {name: as_number(value) for name, _, value in (one.partition("=") for one in fields.split())})
        self.assertEqual([mode for mode in known[self.system]["modes"] if mode in ("prefill", "decode", "turns", "chunks", "select")], modes.split())
        self.assertEqual(known[self.system]["granularity"], granularity)

    def test_a_tensor_that_is_missing_is_named(self):
        needed = self.contracts[self.system][3]
        self.a_trace((needed,))
        self.refused(needed, *self.budget, *self.mode)
        if self.system == "lu_kv":
            self.a_trace(("external.mine",))
            self.refused("external.mine", *self.budget)
            self.a_trace()
            write_arrays(self.path, {"external.mine": ("F32", np.ones((3, 2, 40), np.float32)), "table.lu_kv": ("F32", np.ones((99, 3, 2), np.float32))})
            self.refused("ratio", "--budget", 20, "--set", "scores=mine")  # which of the 99 rows

    def test_values_it_refuses(self):
        self.a_trace()
        for one in self.contracts[self.system][4].split():
            self.refused(one.partition("=")[0], *self.budget, *self.mode, "--set", one)
        self.refused("windw", *self.budget, *self.mode, "--set", "windw=3")

    def test_modes_it_has_not(self):
        self.a_trace()
        for mode, more in (("prefill", ()), ("decode", ("--prefill", 20)), ("turns", ()), ("chunks", ("--chunk", 8)), ("select", ())):
            if mode not in self.contracts[self.system][1].split():
                self.refused(mode, *self.budget, "--mode", mode, *more)


def as_number(value):
    try:
        return float(value)
    except ValueError:
        return value


def tests_of(loader, system):
    """Not those again that admission_test has."""
    return unittest.TestSuite(system(name) for name in loader.getTestCaseNames(system) if not hasattr(admission_test.Admission, name))


def chosen():
    return list(SYSTEMS) if NAMED == ["all"] else NAMED or [name for name in KNOWN if name in SYSTEMS]  # prompt_systems_test.py knows the others


def load_tests(loader, _, __):
    contracts = [type(f"Contract_{name}", (Contract,), {"system": name}) for name in chosen()]
    return unittest.TestSuite(tests_of(loader, one) for one in [SYSTEMS[name] for name in chosen()] + contracts)


if __name__ == "__main__":
    unknown = [name for name in chosen() if name not in SYSTEMS]
    if unknown:
        sys.exit(f"systems_test.py knows no {', '.join(unknown)}; it knows {', '.join(SYSTEMS)}")
    if not chosen():
        sys.exit(print("no system is named, and none is in systems.txt"))
    if np is None:
        print("there is no numpy")
    unittest.main(argv=sys.argv[:1])
