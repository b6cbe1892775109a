#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `kvreplay --policy trim_kv` and `db_trim_kv` with these methods written out in numpy, in double precision.

    retention_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import unittest

from program import Runs
from reference_test import as_dtype, best, np
from traces import main, ragged, read, write_arrays

LAYERS, HEADS, N, ROW = 2, 3, 90, 4


def positions_of(gap):
    return np.arange(N) + gap * (np.arange(N) >= N // 2)


def score_of(log_beta, positions, live, offset=0, steps=1):
    """Of several steps the log of the sum of the retention at each, which DBTrimKV has in closed form."""
    x = log_beta[live].astype(float)
    ages = positions[live[-1]] - positions[live] + offset
    if steps == 1:
        return ages * x
    return np.logaddexp.reduce([(ages + k) * x for k in range(steps)], axis=0)


def decode(log_beta, positions, start, budget, buffer, window, offset, steps=1):
    """What one lane holds at the end, the steps at which entries went, and the last decision's scores."""
    live, events, scores = [], [], np.full(N, -np.inf)
    for t in range(max(0, start - 1), N):
        live = [*live, *range(start)] if t == start - 1 else [*live, t]
        if len(live) < budget + buffer:
            continue
        score = score_of(log_beta, positions, np.array(live), offset, steps)
        forced = np.arange(len(live)) >= len(live) - window
        kept, _, _ = best(score, forced, budget)
        scores = np.full(N, -np.inf)
        scores[np.array(live)[~forced]] = score[~forced]
        events += [(t, live[j]) for j in range(len(live)) if j not in set(kept)]
        live = [live[j] for j in kept]
    return live, events, scores


def decode_pooled(log_beta, positions, start, budget, floor, buffer=1, offset=0, steps=1):
    """The same of lanes that share: every lane first keeps its best floor x budget, the best of the rest share what is left of the pool.
    The released code waits while lanes x (budget + buffer) is more than what the pool holds."""
    live, events = [[] for _ in log_beta], []
    for t in range(max(0, start - 1), N):
        for held in live:
            held += range(start) if t == start - 1 else [t]
        if (budget + buffer) * len(live) > sum(map(len, live)):
            continue
        ranked = [sorted((-one, s, j) for one, j in zip(score_of(log_beta[s], positions, np.array(held), offset, steps), held)) for s, held in enumerate(live)]
        first = int(floor * budget)
        kept = [one for lane in ranked for one in lane[:first]]
        kept += sorted(one for lane in ranked for one in lane[first:])[: budget * len(live) - len(kept)]
        kept = {(s, j) for _, s, j in kept}
        events += [(t, s, j) for s, held in enumerate(live) for j in held if (s, j) not in kept]
        live = [[j for j in held if (s, j) in kept] for s, held in enumerate(live)]
    return live, events


@unittest.skipIf(np is None, "there is no numpy")
class Retention(Runs):
    policy = "trim_kv"
    scope = ()  # options by which lanes share nothing

    def write(self, seed, dtype, gap=0, lanes=1):
        """`lanes`: what the retention of each is scaled by."""
        dice = np.random.default_rng(seed)
        stored, exact = as_dtype(-np.abs(dice.normal(0, 0.3, (LAYERS, HEADS, N))) * lanes, dtype)
        rows = dice.normal(0, 1, (LAYERS, HEADS, N, ROW)).astype(np.float32)
        write_arrays(self.path, {"log_beta": (dtype, stored), "keys": ("F32", rows), "values": ("F32", rows),
                                 "positions": ("I64", positions_of(gap).astype(np.int64))})
        return exact.astype(np.float32).reshape(LAYERS * HEADS, N)

    def run_program(self, *arguments, **fields):
        return super().run_program("--policy", self.policy, *arguments, **fields)

    def scores(self, result):
        return np.array(result["scores"][1]).reshape(result["scores"][0])

    def events(self, result):
        return list(map(tuple, np.array(result["events"][1]).reshape(-1, 3).tolist()))

    def same_prefill(self, log_beta, gap, budget, window, offset, near, atol=0, **fields):
        """Of a buffer of 50: the best of all entries are kept, and the scores are those of the rule."""
        live, forced, steps = np.arange(N), np.arange(N) >= N - window, fields.get("steps", 1)
        result = self.replay("--budget", budget, *self.scope, "--threads", 2, window=window, buffer=50, **fields)
        for s, kept in enumerate(ragged(result)):
            score = score_of(log_beta[s], positions_of(gap), live, offset, steps)
            self.assertEqual(kept, best(score, forced, budget)[0] if budget < N else list(range(N)))
            if budget < N:
                np.testing.assert_allclose(self.scores(result)[s][~forced], score[~forced], rtol=near, atol=atol)
                self.assertTrue(np.all(np.isneginf(self.scores(result)[s][forced])))

    def same_decoding(self, seed, start, budget, buffer, window, gap, offset, near, atol=0, **fields):
        log_beta, steps = self.write(seed, "F32", gap), fields.get("steps", 1)
        result = self.replay("--mode", "decode", "--prefill", start, "--budget", budget, *self.scope,
                             buffer=buffer, window=window, **fields)
        expected = []
        for s, kept in enumerate(ragged(result)):
            live, gone, scores = decode(log_beta[s], positions_of(gap), start, budget, buffer, window, offset, steps)
            self.assertEqual(kept, live)
            expected += [(t, s, j) for t, j in gone]
            np.testing.assert_allclose(self.scores(result)[s], scores, rtol=near, atol=atol)
        self.assertEqual(self.events(result), sorted(expected))

    def test_a_prefill_does_not_wait_for_the_buffer(self):
        for seed, (dtype, gap) in enumerate((("F32", 0), ("BF16", 7), ("F16", 0), ("F64", 3))):
            log_beta = self.write(seed, dtype, gap)
            for offset, window, budget in ((0, 0, 20), (2, 0, 20), (0, 5, 20), (0, 30, 20), (0, 0, 0), (0, 0, N), (0, 0, N - 1)):
                self.same_prefill(log_beta, gap, budget, window, offset, 1e-6, age_offset=offset)

    def test_decoding_ages_what_moves(self):
        for seed, (start, budget, buffer, window, offset, gap) in enumerate(
                ((30, 20, 1, 0, 0, 0), (0, 12, 1, 0, 0, 5), (40, 16, 8, 0, 2, 0), (10, 25, 1, 4, 0, 11), (90, 30, 1, 0, 0, 0))):
            self.same_decoding(seed, start, budget, buffer, window, gap, offset, 1e-6, age_offset=offset)

    def test_heads_that_share_a_budget(self):
        log_beta, positions, live = self.write(9, "F32"), positions_of(0), np.arange(N)
        result = self.replay("--budget", 15, "--budget-scope", "layer", "--floor", 0)
        for layer in range(LAYERS):
            lanes = range(layer * HEADS, (layer + 1) * HEADS)
            order = sorted(((-score_of(log_beta[s], positions, live)[j], s, j) for s in lanes for j in range(N)))
            kept = {(s, j) for _, s, j in order[: 15 * HEADS]}
            self.assertEqual({(s, j) for s in lanes for j in ragged(result)[s]}, kept)

    def test_lanes_that_share_a_budget_while_decoding(self):
        for seed, (scope, lanes) in enumerate((("layer", HEADS), ("global", LAYERS * HEADS))):
            for start, floor, buffer in ((0, 0, 1), (30, 0.5, 1), (0, 0, 2), (30, 0.5, 5), (10, 0.25, 8)):
                log_beta = self.write(20 + seed, "F32", 5, np.array([[[1], [4], [16]]]))  # the last would keep little of its own
                result = self.replay("--mode", "decode", "--prefill", start, "--budget", 9, "--budget-scope", scope, "--floor", floor, "--set", f"buffer={buffer}")
                kept, expected = [], []
                for first in range(0, LAYERS * HEADS, lanes):
                    live, gone = decode_pooled(log_beta[first : first + lanes], positions_of(5), start, 9, floor, buffer)
                    kept += live
                    expected += [(t, first + s, j) for t, s, j in gone]
                self.assertEqual(ragged(result), kept)
                self.assertEqual(self.events(result), sorted(expected))

    def test_a_buffer_that_is_none_is_refused_though_a_prefill_does_not_wait_for_it(self):
        self.write(3, "F32")
        for value in ("abc", "-7", "0"):
            self.fails(self.run_program("--budget", 5, buffer=value))
        result = self.replay("--budget", 5, "--budget-scope", "lane", "--set", " buffer=100")
        self.assertEqual([len(kept) for kept in ragged(result)], [5] * (LAYERS * HEADS))
        self.assertIn("buffer=100", self.told["spec"])

    def test_a_trace_without_log_beta_is_refused(self):
        rows = np.zeros((1, 1, 4, ROW), np.float32)
        write_arrays(self.path, {"keys": ("F32", rows), "values": ("F32", rows)})
        self.refused("log_beta", "--budget", 2)


@unittest.skipIf(np is None, "there is no numpy")
class OverSteps(Retention):
    """DBTrimKV: ages count from 1, retention is summed over steps, and all lanes share a budget."""

    policy = "db_trim_kv"
    scope = ("--budget-scope", "lane")
    STEPS = (1, 2, 7, 512)

    def test_a_prefill_does_not_wait_for_the_buffer(self):
        for seed, steps in enumerate(self.STEPS):
            gap = 3 * (seed % 2)
            log_beta = self.write(seed, ("F32", "BF16", "F16", "F64")[seed], gap)
            log_beta[:, ::7] = 0  # a beta of 1
            self.rewrite(log_beta)
            for window, budget in ((0, 20), (5, 20), (30, 20), (0, 0), (0, N), (0, N - 1)):
                self.same_prefill(log_beta, gap, budget, window, 1, 2e-6, 2e-6, steps=steps)

    def rewrite(self, log_beta):
        tensors = read(self.path)
        write_arrays(self.path, {"log_beta": ("F32", log_beta.reshape(LAYERS, HEADS, N).astype(np.float32)),
                                 "positions": ("I64", np.array(tensors["positions"][1], np.int64))})

    def test_decoding_ages_what_moves(self):
        for seed, (start, budget, buffer, window, steps, gap) in enumerate(
                ((30, 20, 1, 0, 1, 0), (0, 12, 1, 0, 16, 5), (40, 16, 8, 0, 2, 0), (10, 25, 1, 4, 512, 11), (90, 30, 1, 0, 3, 0))):
            self.same_decoding(seed, start, budget, buffer, window, gap, 1, 2e-6, 2e-6, steps=steps)

    def test_heads_that_share_a_budget(self):
        log_beta, positions, live = self.write(9, "F32"), positions_of(0), np.arange(N)
        result = self.replay("--budget", 15, "--set", "steps=16")
        order = sorted(((-one, s, j) for s in range(LAYERS * HEADS) for j, one in enumerate(score_of(log_beta[s], positions, live, 1, 16))))
        kept = {(s, j) for _, s, j in order[: 15 * LAYERS * HEADS]}
        self.assertEqual({(s, j) for s, lane in enumerate(ragged(result)) for j in lane}, kept)

    def test_lanes_that_share_a_budget_while_decoding(self):
        for start, floor, buffer, steps in ((0, 0, 1, 1), (30, 0.5, 1, 16), (0, 0, 2, 3), (10, 0.25, 8, 512)):
            log_beta = self.write(30 + start, "F32", 5, np.array([[[1], [4], [16]]]))
            result = self.replay("--mode", "decode", "--prefill", start, "--budget", 9, *(("--budget-scope", "global", "--floor", floor) if floor else ()),
                                 "--set", f"buffer={buffer}", "--set", f"steps={steps}")
            kept, gone = decode_pooled(log_beta, positions_of(5), start, 9, floor, buffer, 1, steps)
            self.assertEqual(ragged(result), kept)
            self.assertEqual(self.events(result), sorted(gone))

    def test_values_it_refuses(self):
        self.write(3, "F32")
        for value in ("steps=0", "steps=x", "buffer=0", "window=-1", "age_offset=2"):
            self.refused(value.partition("=")[0], "--budget", 5, "--set", value)


if __name__ == "__main__":
    main()
