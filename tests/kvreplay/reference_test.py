#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares kvreplay with the methods written out in numpy, in double precision, on traces of 300 entries.

    reference_test.py PROGRAM

A keep set may differ from the reference's only in entries whose scores are within NEAR of the score at the cut, relatively;
scores themselves agree to the same. Needs numpy; without it every test is skipped, and says so.
"""

import itertools
import json
import unittest

from program import Runs
from traces import main, ragged

try:
    import numpy as np
except ImportError:
    np = None

NEAR = 2e-5  # float32 sums of 300 rows of logits of 64 products, against double


def float8_numbers():
    """The numbers of the codes 0 to 126 of F8_E4M3: a sign, four bits of an exponent of bias 7, three of a mantissa; code 127 is a NaN."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def as_dtype(values, dtype):
    """The bytes' array, and the same numbers in double."""
    if dtype == "F8_E4M3":
        numbers = float8_numbers()
        code = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(values)).astype(np.uint8)
        return code | np.where(values < 0, 128, 0).astype(np.uint8), np.where(values < 0, -1, 1) * numbers[code]
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    stored = values.astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype])
    return stored, stored.astype(np.float32).astype(np.float64)


class Trace:
    scale, cap, sinks = None, 0.0, None  # how the model makes logits; `model_says` sets them

    def __init__(self, seed, dtype="F32", layers=3, query_heads=8, kv_heads=2, entries=300, dims=64, value_dims=64, gap=0, growth=1.0):
        dice = np.random.default_rng(seed)
        self.layers, self.query_heads, self.kv_heads, self.n, self.d = layers, query_heads, kv_heads, entries, dims
        self.group, self.dtype = query_heads // kv_heads, dtype
        self.stored = {}
        for name, heads, width in (("keys", kv_heads, dims), ("values", kv_heads, value_dims), ("queries", query_heads, dims)):
            values = dice.normal(0, 1.2, (layers, heads, entries, width))
            if name == "keys":  # later keys that draw more attention, so that who is heavy changes
                values *= np.geomspace(1, growth, entries)[:, None]
            stored, exact = as_dtype(values, dtype)
            self.stored[name] = (dtype, stored)
            setattr(self, name, exact)
        self.positions = np.arange(entries) + gap * (np.arange(entries) >= entries // 2)
        if gap:
            self.stored["positions"] = ("I64", self.positions.astype(np.int64))

    def lanes(self):
        return list(itertools.product(range(self.layers), range(self.kv_heads)))

    def model_says(self, seed, scale=None, cap=0.0, sinks=None):
        """Metadata that say so; the dtype `sinks` names stores a sink for each query head."""
        self.scale, self.cap, metadata = scale, cap, {}
        if sinks:
            stored, self.sinks = as_dtype(np.random.default_rng(seed).normal(1, 3, (self.layers, self.query_heads)), sinks)
            self.stored["sink_logits"] = (sinks, stored)
        if scale is not None:
            metadata["attention_scale"] = repr(scale)
        if cap:
            metadata["logit_cap"] = repr(cap)
        return metadata

    def logits_of(self, products):
        scaled = products / np.sqrt(self.d) if self.scale is None else products * self.scale
        return self.cap * np.tanh(scaled / self.cap) if self.cap else scaled

    def sink(self, layer, query_head):
        return -np.inf if self.sinks is None else self.sinks[layer, query_head]

    def weights(self, layer, query_head, logits):
        """Softmax over the last axis and the head's sink."""
        top = np.maximum(logits.max(axis=-1, keepdims=True), self.sink(layer, query_head))
        weights = np.exp(logits - top)
        return weights / (weights.sum(axis=-1, keepdims=True) + np.exp(self.sink(layer, query_head) - top))

    def logits(self, layer, query_head, rows, live):
        scaled = self.logits_of(self.queries[layer, query_head][rows] @ self.keys[layer, query_head // self.group][live].T)
        seen = self.positions[live][None, :] <= self.positions[rows][:, None]
        return np.where(seen, scaled, -np.inf)

    def softmax(self, layer, query_head, rows, live):
        return self.weights(layer, query_head, self.logits(layer, query_head, rows, live))

    def heads_of(self, head):
        return range(head * self.group, (head + 1) * self.group)


REDUCE = {"sum": lambda x: x.sum(axis=0), "mean": lambda x: x.mean(axis=0), "max": lambda x: x.max(axis=0)} if np else {}


# Scores of one lane over its live entries -------------------------------------------------------------------------------------
def snapkv_scores(trace, layer, head, rows, live, window, pool="max:7", row="sum", group="mean"):
    mass = np.array([REDUCE[row](trace.softmax(layer, h, rows[-window:], live)) for h in trace.heads_of(head)])
    prefix = REDUCE[group](mass)[: max(0, len(live) - window)]
    kind, _, width = pool.partition(":")
    if kind == "none" or not len(prefix):
        return np.concatenate([prefix, np.zeros(len(live) - len(prefix))])
    half = int(width) // 2
    padded = np.pad(prefix, half, constant_values=-np.inf if kind == "max" else 0.0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, int(width))
    pooled = windows.max(axis=1) if kind == "max" else windows.sum(axis=1) / int(width)
    return np.concatenate([pooled, np.zeros(len(live) - len(prefix))])


def h2o_scores(trace, layer, head, rows, live, group="sum"):
    return REDUCE[group](np.array([trace.softmax(layer, h, rows, live).sum(axis=0) for h in trace.heads_of(head)]))


def tova_scores(trace, layer, live):
    return np.mean([trace.softmax(layer, h, live[-1:], live)[0] for h in range(trace.query_heads)], axis=0)


def knorm_scores(trace, layer, head):
    return -np.sqrt((trace.keys[layer, head] ** 2).sum(axis=1))


def best(score, forced, budget):
    """Ordinals that stay of one segment, and the score at the cut."""
    candidates = [j for j in range(len(score)) if not forced[j]]
    order = sorted(candidates, key=lambda j: (-score[j], j))
    room = max(0, budget - int(np.sum(forced)))
    kept = sorted(order[:room] + [j for j in range(len(score)) if forced[j]])
    return kept, score[order[room - 1]] if 0 < room < len(order) else None, score[order[room]] if 0 < room < len(order) else None


def forced_of(trace, live, sinks=0, recent=0, spans=()):
    position = trace.positions[live]
    made = position < sinks
    made[len(live) - min(recent, len(live)) :] = True
    for begin, end in spans:
        made |= (position >= begin) & (position < end)
    return made


@unittest.skipIf(np is None, "there is no numpy")
class Reference(Runs):
    def replay(self, *arguments):
        return self.replay_in_threads((1, 2), *arguments)

    def same_set(self, found, score, forced, budget):
        kept, inside, _ = best(score, forced, budget)
        for j in set(found) ^ set(kept):
            self.assertIsNotNone(inside, (found, kept))
            self.assertLessEqual(abs(score[j] - inside), NEAR * abs(inside), (j, score[j], inside))
        self.assertEqual(len(found), len(kept))
        self.assertEqual(found, sorted(set(found)))

    def same_scores(self, result, segment, score, forced):
        found = np.array(result["scores"][1]).reshape(result["scores"][0])[segment]
        self.assertTrue(np.all(np.isneginf(found[forced])))
        np.testing.assert_allclose(found[~forced], score[~forced], rtol=NEAR, atol=1e-7)

    def check_lanes(self, trace, result, scores, forced, budget):
        for s, kept in enumerate(ragged(result)):
            self.same_set(kept, scores[s], forced, budget)
            self.same_scores(result, s, scores[s], forced)

    def test_snapkv_in_every_type_and_reduction(self):
        live = np.arange(300)
        for seed, (dtype, pool, row, group) in enumerate((("F32", "max:7", "sum", "mean"), ("F16", "avg:5", "mean", "max"),
                                                          ("BF16", "none", "max", "sum"), ("F64", "max:3", "sum", "mean"))):
            trace = Trace(seed, dtype, gap=5 * (seed % 2))
            self.write(trace)
            result = self.replay("--policy", "snapkv", "--set", f"pool={pool}", "--set", f"rows={row}", "--set", f"group={group}", "--budget", 80)
            scores = [snapkv_scores(trace, *lane, live, live, 32, pool, row, group) for lane in trace.lanes()]
            self.check_lanes(trace, result, scores, forced_of(trace, live, recent=32), 80)

    def test_row_lse_that_is_true_changes_nothing_and_another_changes_scores(self):
        trace = Trace(4)
        live = np.arange(300)
        logits = np.array([[trace.logits(layer, h, live[-40:], live) for h in range(8)] for layer in range(3)])
        lse = np.log(np.exp(logits).sum(axis=-1))
        arguments = ("--policy", "snapkv", "--budget", 80)
        scores = [snapkv_scores(trace, *lane, live, live, 32) for lane in trace.lanes()]
        for dtype, with_queries in (("F32", True), ("F64", True), ("F32", False)):
            more = {"row_lse": (dtype, lse.astype({"F32": np.float32, "F64": np.float64}[dtype]))}
            if not with_queries:
                more["recent_queries"] = (trace.dtype, trace.stored["queries"][1][:, :, -40:])
            self.write(trace, without=() if with_queries else ("queries",), **more)
            self.check_lanes(trace, self.replay(*arguments), scores, forced_of(trace, live, recent=32), 80)
        self.write(trace, row_lse=("F32", (lse + 1).astype(np.float32)))
        self.check_lanes(trace, self.replay(*arguments, "--set", "pool=none"),
                         [snapkv_scores(trace, *lane, live, live, 32, "none") / np.e for lane in trace.lanes()],
                         forced_of(trace, live, recent=32), 80)

    def test_scale_cap_and_sinks_of_a_model(self):
        live, differing = np.arange(300), 0
        for seed, (dtype, scale, cap, sinks) in enumerate((("F32", 1 / 14.0, 0.0, None), ("F16", None, 2.5, None), ("BF16", None, 0.0, "BF16"), ("F32", 0.3, 4.0, "F64"),
                                                           ("F32", 0.05, 50.0, "F32"))):
            trace = Trace(30 + seed, dtype, gap=3 * (seed % 2))
            metadata = trace.model_says(seed, scale, cap, sinks)
            self.write(trace, metadata)
            result = self.replay("--policy", "snapkv", "--budget", 80, "--attend")
            scores = [snapkv_scores(trace, *lane, live, live, 32) for lane in trace.lanes()]
            self.check_lanes(trace, result, scores, forced_of(trace, live, recent=32), 80)
            np.testing.assert_allclose(np.array(result["output"][1]).reshape(24, -1), self.attended(trace, ragged(result)), rtol=1e-5, atol=1e-6)
            result = self.replay("--policy", "h2o", "--budget", 100)
            scores = [h2o_scores(trace, *lane, live, live) for lane in trace.lanes()]
            self.check_lanes(trace, result, scores, forced_of(trace, live, recent=50), 100)
            kept = ragged(result)
            result = self.replay("--policy", "tova", "--budget", 40)
            scores = [tova_scores(trace, layer, live) for layer in range(3)]
            self.check_lanes(trace, result, scores, np.zeros(300, bool), 40)
            if sinks:  # a sum of the softmax that the engine gives has the sink
                logits = np.array([[trace.logits(layer, h, live[-40:], live) for h in range(8)] for layer in range(3)])
                lse = np.log(np.exp(logits).sum(axis=-1) + np.exp(trace.sinks)[..., None])
                self.write(trace, metadata, row_lse=("F32", lse.astype(np.float32)))
                result = self.replay("--policy", "snapkv", "--budget", 80)
                scores = [snapkv_scores(trace, *lane, live, live, 32) for lane in trace.lanes()]
                self.check_lanes(trace, result, scores, forced_of(trace, live, recent=32), 80)
            self.write(trace, without=("sink_logits",))
            differing += ragged(self.replay("--policy", "h2o", "--budget", 100)) != kept
        self.assertEqual(differing, 5, "a trace that does not say so decides otherwise")

    def test_a_cap_and_sinks_while_decoding(self):
        trace = Trace(36, entries=120)
        self.write(trace, trace.model_says(36, 0.2, 3.0, "F32"))
        mass = [np.array([])] * 6

        def score(s, fresh, live):
            mass[s] = np.concatenate([mass[s], np.zeros(len(fresh))]) + h2o_scores(trace, *trace.lanes()[s], fresh, live)
            return mass[s]

        def forget(s, kept):
            mass[s] = mass[s][kept]

        expected = self.decode(trace, 90, score, lambda live: forced_of(trace, live, recent=30), 60, 6, forget)
        for layout in ("compact", "mask"):
            self.check_decode(trace, ("--policy", "h2o", "--layout", layout), 60, 90, expected)

    def test_fewer_rows_than_the_window_are_warned_of(self):
        trace = Trace(5)
        self.write(trace, without=("queries",), recent_queries=("F32", trace.stored["queries"][1][:, :, -8:]))
        self.replay("--policy", "snapkv", "--budget", 80)
        self.assertIn("recent_queries has 8 rows", self.told["warnings"][0])

    def test_h2o_from_queries_and_from_the_mass_of_heads(self):
        trace, live = Trace(6), np.arange(300)
        whole = np.array([[trace.softmax(layer, h, live, live).sum(axis=0) for h in range(8)] for layer in range(3)])
        for group in ("sum", "mean", "max"):
            forced = forced_of(trace, live, recent=50)
            scores = [h2o_scores(trace, *lane, live, live, group) for lane in trace.lanes()]
            arguments = ("--policy", "h2o", "--set", f"group={group}", "--budget", 100)
            self.write(trace)
            self.check_lanes(trace, self.replay(*arguments), scores, forced, 100)
            self.write(trace, attention_mass=("F64", whole), without=("queries",))
            self.check_lanes(trace, self.replay(*arguments), scores, forced, 100)
        by_lane = np.array(scores).reshape(3, 2, 300) / 7  # another mass than the queries would give: it wins
        self.write(trace, attention_mass=("F32", by_lane.astype(np.float32)))
        self.check_lanes(trace, self.replay("--policy", "h2o", "--set", "heavy=30", "--budget", 100),
                         [by_lane[lane] for lane in trace.lanes()], forced_of(trace, live, recent=70), 100)

    def test_tova_and_forced_entries(self):
        trace, live = Trace(7, gap=3), np.arange(300)
        self.write(trace)
        spans = ("--sinks", 4, "--recent", 6, "--protect", "20:30", "--protect", "149:156")
        forced = forced_of(trace, live, 4, 6, ((20, 30), (149, 156)))
        result = self.replay("--policy", "tova", "--budget", 40, *spans)
        self.check_lanes(trace, result, [tova_scores(trace, layer, live) for layer in range(3)], forced, 40)
        result = self.replay("--policy", "knorm", "--budget", 10, *spans)
        self.assertEqual(ragged(result), [list(np.flatnonzero(forced))] * 6)
        self.assertEqual(self.told["forced_over_budget"], 6)

    def test_mass_and_a_window_of_many_rows_together(self):
        trace, live = Trace(8), np.arange(300)
        self.write(trace, attention_mass=("F32", np.ones((3, 2, 300), np.float32)))
        result = self.replay("--policy", "snapkv", "--set", "window=200", "--set", "pool=none", "--budget", 250)
        scores = [snapkv_scores(trace, *lane, live, live, 200, "none") for lane in trace.lanes()]
        self.check_lanes(trace, result, scores, forced_of(trace, live, recent=200), 250)

    def test_granularity_and_reductions(self):
        trace, live = Trace(9), np.arange(300)
        self.write(trace)
        lane = np.array([snapkv_scores(trace, *one, live, live, 32) for one in trace.lanes()]).reshape(3, 2, 300)
        for how in ("sum", "mean", "max"):
            for granularity, parts in (("layer", list(lane)), ("token", [lane.reshape(6, 300)])):
                result = self.replay("--policy", "snapkv", "--budget", 64, "--granularity", granularity, "--reduce", how)
                scores = [REDUCE[how](one) for one in parts]
                self.check_lanes(trace, result, scores, forced_of(trace, live, recent=32), 64)
                rows = [trace.stored["keys"][1][at] for s, kept in enumerate(ragged(result)) for at in
                        ([(s, h, kept) for h in range(2)] if granularity == "layer" else [(*one, kept) for one in trace.lanes()])]
                np.testing.assert_array_equal(np.array(result["keys"][1], np.float32).reshape(-1, 64), np.concatenate(rows))

    def test_pools_floors_and_ratios(self):
        trace = Trace(10)
        trace.keys[:, 0] *= 1.05  # so that heads differ
        trace.stored["keys"] = ("F32", trace.keys.astype(np.float32))
        trace.keys = trace.stored["keys"][1].astype(np.float64)
        self.write(trace)
        norms = np.array([knorm_scores(trace, *lane) for lane in trace.lanes()])
        for scope, groups in (("layer", [(0, 1), (2, 3), (4, 5)]), ("global", [range(6)])):
            for floor in (0.0, 0.3, 0.999, 1.0):
                result = self.replay("--policy", "knorm", "--budget", 50, "--budget-scope", scope, "--floor", floor)
                for group in groups:
                    sure = {(s, int(j)) for s in group for j in sorted(range(300), key=lambda j: (-norms[s][j], j))[: int(floor * 50)]}
                    rest = sorted(((-norms[s][j], s, j) for s in group for j in range(300) if (s, j) not in sure))
                    kept = sure | {(s, j) for _, s, j in rest[: 50 * len(group) - len(sure)]}
                    self.assertEqual({(s, j) for s in group for j in ragged(result)[s]}, kept)
        for ratio, rounding, count in ((0.9, "exact", 30), (0.9, "kvpress", 29), (0.34, "exact", 198), (0.34, "kvpress", 197), (0.25, "exact", 225)):
            result = self.replay("--policy", "knorm", "--ratio", ratio, "--rounding", rounding)
            self.assertEqual(count, int(300 * (1 - ratio)) if rounding == "kvpress" else round(300 * (1 - ratio)))
            for s, kept in enumerate(ragged(result)):
                self.same_set(kept, norms[s], np.zeros(300, bool), count)

    def test_kvpress_keeps_at_least_one_entry_of_a_ratio(self):
        """compute_n_kept and AdaKVPress.compress of kvpress 0.5.5, and what the releases before it had, with (head, ordinal) breaking ties."""
        trace = Trace(10, entries=40)
        self.write(trace)
        norms = np.array([knorm_scores(trace, *lane) for lane in trace.lanes()])
        for ratio in (0.0, 0.5, 0.9, 0.95, 0.975, 0.98, 0.999, 1.0):
            truncated = int(40 * (1 - ratio))
            for rounding, count in (("kvpress", 0 if ratio >= 1 else max(1, truncated)), ("kvpress_0_5_4", truncated)):
                result = self.replay("--policy", "knorm", "--ratio", ratio, "--rounding", rounding)
                self.assertEqual([len(kept) for kept in ragged(result)], [count] * 6)
                for floor in (0.0, 0.2, 0.6, 1.0):
                    result = self.replay("--policy", "knorm", "--ratio", ratio, "--rounding", rounding, "--budget-scope", "layer", "--floor", floor)
                    sure = int(count * floor)
                    if rounding == "kvpress" and floor > 0:
                        sure = max(1, sure) if count > 0 else 0
                    for layer in range(3):
                        lanes = (2 * layer, 2 * layer + 1)
                        ranked = {s: sorted(range(40), key=lambda j: (-norms[s][j], j)) for s in lanes}
                        kept = {(s, j) for s in lanes for j in ranked[s][:sure]}
                        rest = sorted((-norms[s][j], s, j) for s in lanes for j in ranked[s][sure:])
                        kept |= {(s, j) for _, s, j in rest[: 2 * count - len(kept)]}
                        self.assertEqual({(s, j) for s in lanes for j in ragged(result)[s]}, kept)

    def test_what_is_freed_is_the_memory_of_what_is_not_kept(self):
        trace = Trace(13, entries=50, gap=3)
        self.write(trace)
        decode = ("--mode", "decode", "--prefill", 20)
        for mode in ((), decode):
            for budget in (0, 1, 16, 17, 33, 49, 50, 60):
                for layout, more, granularity in (("compact", (), "lane"), ("lane_pages", (), "lane"), ("mask", (), "lane"), ("dead_slot", (), "token")):
                    result = self.replay("--policy", "knorm", "--budget", budget, "--layout", layout, "--granularity", granularity, *mode, *more)
                    kept = [len(one) for one in ragged(result)] * (1 if granularity == "lane" else 6)
                    pages = max(0, 6 * 50 - sum(-(-one // 16) * 16 for one in kept))
                    freed = {"compact": 6 * 50 - sum(kept), "lane_pages": pages, "mask": 0, "dead_slot": 6 * 50 - sum(kept)}[layout]
                    with self.subTest(mode=mode, budget=budget, layout=layout):
                        self.assertEqual((self.told["logical_kept"], self.told["physical_freed"]), (sum(kept), freed))

    def test_the_memory_of_an_eviction_is_that_of_an_admission(self):
        """A window and sinks, as what is dropped and as what is never admitted: the same entries are left, and the same memory is free."""
        trace = Trace(14, entries=45)
        self.write(trace)
        for layout in ("compact", "mask"):
            told = []
            for policy in (("local_attention", "--set", "window=6", "--set", "sinks=3"), ("streaming_llm", "--set", "sinks=3", "--budget", 9)):
                result = self.replay("--policy", *policy, "--layout", layout)
                self.assertEqual(ragged(result), [[0, 1, 2, *range(39, 45)]] * 6)
                told.append(self.told["physical_freed"])
            self.assertEqual(told, [6 * 36 if layout == "compact" else 0] * 2)

    def attended(self, trace, kept, keys=None, queries=None):
        keys = trace.keys if keys is None else keys
        made = []
        for layer, h in itertools.product(range(trace.layers), range(trace.query_heads)):
            head = h // trace.group
            live = kept[layer * trace.kv_heads + head]
            query = (trace.queries if queries is None else queries)[layer, h, -1]
            made.append(trace.weights(layer, h, trace.logits_of(keys[layer, head][live] @ query)) @ trace.values[layer, head][live])
        return np.array(made)

    def test_layouts_keep_rows_and_attention(self):
        for dtype in ("F32", "F16", "BF16"):
            trace = Trace(11, dtype, gap=2, value_dims=48)
            self.write(trace)
            for layout, policy in itertools.product(("compact", "lane_pages", "mask", "dead_slot"), ("snapkv", "knorm")):
                token = ("--granularity", "token") if layout == "dead_slot" else ()
                result = self.replay("--policy", policy, "--budget", 70, "--layout", layout, "--attend", *token)
                kept = ragged(result) * (6 if token else 1)
                found = np.array(result["output"][1]).reshape(-1, 48)
                np.testing.assert_allclose(found, self.attended(trace, kept), rtol=1e-5, atol=1e-6)
                self.assertEqual("keys" in result, layout == "compact")
                if layout != "compact":
                    continue
                for name in ("keys", "values"):
                    rows = np.concatenate([trace.stored[name][1][lane][kept[s]] for s, lane in enumerate(trace.lanes())])
                    self.assertEqual(result[name][0], list(rows.shape))
                    found = np.array(result[name][1], rows.dtype).reshape(rows.shape)
                    np.testing.assert_array_equal(found, rows)

    def test_rerotated_keys_stand_at_their_ordinals(self):
        for dtype, style, theta, near, layers in (("F32", "neox", 10000.0, 1e-4, 3), ("F32", "gptj", 500.0, 1e-4, 3), ("F16", "neox", 1e6, 4e-3, 5)):
            trace = Trace(12, dtype, layers, gap=4)
            self.write(trace, {"rope_theta": str(theta), "rope_style": style})
            result = self.replay("--policy", "streaming_llm", "--budget", 90, "--layout", "compact_rerotated", "--attend")
            self.assertEqual(ragged(result), [[0, 1, 2, 3, *range(214, 300)]] * (2 * layers))
            kept = np.array(ragged(result)[0])
            turns = np.arange(len(kept)) - trace.positions[kept]
            keys = trace.keys.copy()
            keys[:, :, kept] = rotate(trace.keys[:, :, kept], turns, theta, style)
            rows = np.concatenate([keys[lane][kept] for lane in trace.lanes()])
            np.testing.assert_allclose(np.array(result["keys"][1], np.float64).reshape(-1, 64), rows, atol=near, rtol=near)
            queries = trace.queries.copy()
            queries[:, :, -1] = rotate(queries[:, :, -1:], np.array([len(kept) - 1 - trace.positions[-1]]), theta, style)[:, :, 0]
            expected = self.attended(trace, [list(kept)] * (2 * layers), keys, queries)
            np.testing.assert_allclose(np.array(result["output"][1]).reshape(-1, 64), expected, atol=10 * near)

    def test_keys_of_a_scaled_rope_turn_by_its_frequencies(self):
        pairs = np.arange(32)
        plain = 500000.0 ** (-pairs / 32)
        smooth = np.clip((8192 / (2 * np.pi / plain) - 1) / 3, 0, 1)  # Llama 3's: factor 8, 1 to 4 wavelengths of 8192
        for frequencies, style, spell in ((plain / 4, "neox", lambda f: json.dumps(f)), (smooth * plain + (1 - smooth) * plain / 8, "gptj", lambda f: ",".join(map(repr, f))),
                                          (plain * (pairs < 20), "neox", lambda f: " ".join(map(repr, f)))):
            trace = Trace(16, gap=4)
            self.write(trace, {"rope_frequencies": spell(frequencies.tolist()), "rope_style": style, "rope_theta": "7"})
            result = self.replay("--policy", "streaming_llm", "--budget", 90, "--layout", "compact_rerotated", "--attend")
            kept = np.array(ragged(result)[0])
            keys, queries = trace.keys.copy(), trace.queries.copy()
            keys[:, :, kept] = rotate(trace.keys[:, :, kept], np.arange(len(kept)) - trace.positions[kept], frequencies, style)
            rows = np.concatenate([keys[lane][kept] for lane in trace.lanes()])
            np.testing.assert_allclose(np.array(result["keys"][1], np.float64).reshape(-1, 64), rows, atol=1e-4, rtol=1e-4)
            queries[:, :, -1] = rotate(queries[:, :, -1:], np.array([len(kept) - 1 - trace.positions[-1]]), frequencies, style)[:, :, 0]
            expected = self.attended(trace, [list(kept)] * 6, keys, queries)
            np.testing.assert_allclose(np.array(result["output"][1]).reshape(-1, 64), expected, atol=1e-3)

    def test_keys_turn_only_where_the_trace_says_how(self):
        trace = Trace(17)
        arguments = ("--policy", "streaming_llm", "--budget", 90, "--layout", "compact_rerotated")
        for metadata in (None, {"model": "none"}, {"rope_style": "neox"}):
            self.write(trace, metadata)
            done = self.run_program(*arguments)
            self.fails(done, "rope_frequencies")
            self.assertTrue(done.stderr.startswith("kvreplay: --layout = compact_rerotated, but the trace does not say how its keys were rotated"))
            self.replay("--policy", "streaming_llm", "--budget", 90)  # other layouts do not turn keys

    def decode(self, trace, prefill, score, forced, budget, segments, forget):
        """Runs a method step by step: what each segment holds, and who went when; no cut is a near tie."""
        held, events = [np.array([], int)] * segments, []
        for t in [prefill - 1] * (prefill > 0) + list(range(prefill, trace.n)):
            fresh = np.arange(prefill) if t == prefill - 1 else np.array([t])
            for s in range(segments):
                live = np.concatenate([held[s], fresh])
                value = score(s, fresh, live)
                held[s] = live
                if len(live) <= budget:
                    continue
                kept, inside, outside = best(value, forced(live), budget)
                if inside is not None:
                    self.assertGreater(abs(inside - outside), NEAR * abs(inside), "a near tie: choose another seed")
                events += [(t, s, int(j)) for j in np.delete(live, kept)]
                held[s] = live[kept]
                forget(s, kept)
        return [list(map(int, one)) for one in held], sorted(events)

    def check_decode(self, trace, arguments, budget, prefill, expected):
        result = self.replay(*arguments, "--budget", budget, "--mode", "decode", "--prefill", prefill, "--attend")
        held, events = expected
        lanes = [one for one in held for _ in range(6 // len(held))]
        np.testing.assert_allclose(np.array(result["output"][1]).reshape(24, -1), self.attended(trace, lanes), rtol=1e-5, atol=1e-6)
        self.assertEqual(ragged(result), held)
        found = result["events"][1]
        self.assertEqual(list(zip(found[0::3], found[1::3], found[2::3])), events)
        return result

    def test_h2o_decodes(self):
        for seed, prefill, budget, group in ((13, 0, 24, "sum"), (14, 200, 60, "max"), (15, 299, 100, "mean")):
            trace = Trace(seed, ("F32", "F16", "BF16")[seed % 3], entries=300 if prefill else 120, gap=seed % 2, growth=6.0)
            self.write(trace)
            mass = [np.array([])] * 6

            def score(s, fresh, live, trace=trace, mass=mass, group=group):
                lane = trace.lanes()[s]
                mass[s] = np.concatenate([mass[s], np.zeros(len(fresh))]) + h2o_scores(trace, *lane, fresh, live, group)
                return mass[s]

            def forget(s, kept, mass=mass):
                mass[s] = mass[s][kept]

            def forced(live, trace=trace, budget=budget):
                return forced_of(trace, live, sinks=2, recent=budget - budget // 2)

            expected = self.decode(trace, prefill, score, forced, budget, 6, forget)
            result = self.check_decode(trace, ("--policy", "h2o", "--set", f"group={group}", "--sinks", 2), budget, prefill, expected)
            scores = np.array(result["scores"][1]).reshape(6, -1)
            for s in range(6):  # the last step's: over what was held then, and who went
                last = sorted(expected[0][s] + [j for t, of, j in expected[1] if (t, of) == (trace.n - 1, s)])
                ranked = np.array(last)[~forced(np.array(last))]
                self.assertEqual(list(np.flatnonzero(~np.isneginf(scores[s]))), list(ranked))

    def test_tova_and_streaming_llm_decode(self):
        trace = Trace(16, gap=1)
        self.write(trace)
        expected = self.decode(trace, 150, lambda s, _, live: tova_scores(trace, s, live), lambda live: np.zeros(len(live), bool), 60, 3,
                               lambda s, kept: None)
        self.check_decode(trace, ("--policy", "tova"), 60, 150, expected)
        expected = self.decode(trace, 0, lambda s, _, live: live.astype(float), lambda live: forced_of(trace, live, sinks=4), 33, 6,
                               lambda s, kept: None)
        self.check_decode(trace, ("--policy", "streaming_llm"), 33, 0, expected)

    def test_snapkv_turns(self):
        trace = Trace(17)
        ends = [90, 100, 101, 210, 300]
        self.write(trace, turn_end=("I32", np.array(ends, np.int32)))
        result = self.replay("--policy", "snapkv", "--set", "window=16", "--budget", 48, "--mode", "turns", "--sinks", 3)
        after = ragged(result, "turn")
        self.assertEqual(len(after), 5 * 6)
        self.assertEqual(after[-6:], ragged(result))
        for s, lane in enumerate(trace.lanes()):
            held, begin = np.array([], int), 0
            for t, end in enumerate(ends):
                live = np.concatenate([held, np.arange(begin, end)])
                score = snapkv_scores(trace, *lane, np.arange(max(0, end - 16), end), live, 16)
                forced = forced_of(trace, live, 3, 16)
                found = [int(np.searchsorted(live, j)) for j in after[t * 6 + s]]
                self.same_set(found, score, forced, 48)
                held, begin = np.array(after[t * 6 + s]), end  # what was kept on a tie's other side is followed


def rotate(rows, steps, theta, style):
    """`theta`: one base, or the radians per position of each pair."""
    half = rows.shape[-1] // 2
    speed = theta ** (-np.arange(half) / half) if np.ndim(theta) == 0 else theta
    angle = steps[:, None] * speed[None, :]
    a, b = (rows[..., :half], rows[..., half:]) if style == "neox" else (rows[..., 0::2], rows[..., 1::2])
    x, y = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return np.concatenate([x, y], axis=-1) if style == "neox" else np.stack([x, y], axis=-1).reshape(rows.shape)


if __name__ == "__main__":
    main()
