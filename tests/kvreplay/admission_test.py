#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares kvreplay's wg_kv, local_attention and duo_attention with admission written out, token by token.

    admission_test.py PROGRAM

Gates and thresholds are multiples of 1/16, which every type holds exactly, so that sets are compared and not nearly compared.
Needs numpy; without it only the examples by hand run, and it says so.
"""

import itertools
import unittest

from program import Runs, listed
from reference_test import as_dtype, np
from traces import main, ragged, write_arrays


class Small:
    """A trace of small multiples of 1/8, and gates that are multiples of 1/16."""

    def __init__(self, seed, entries, dtype="F32", gap=0, layers=None, kv_heads=None, nan=0.0):
        dice = np.random.default_rng(seed)
        self.layers, self.kv_heads = layers or int(dice.integers(1, 4)), kv_heads or int(dice.integers(1, 4))
        self.group, self.d, self.n = int(dice.choice([1, 2, 4])), int(dice.choice([4, 6, 16])), entries
        self.segments, self.stored = self.layers * self.kv_heads, {}
        for name, heads, width in (("keys", self.kv_heads, self.d), ("values", self.kv_heads, int(dice.integers(1, 9))),
                                   ("queries", self.kv_heads * self.group, self.d)):
            self.put(name, dice.integers(-24, 25, (self.layers, heads, entries, width)) / 8, dtype)
        gate = dice.integers(0, 17, (self.layers, self.kv_heads, entries)) / 16
        gate[dice.random(gate.shape) < nan] = np.nan
        self.put("gate", gate, dtype)
        if gap:
            self.stored["positions"] = ("I32", (np.arange(entries) + gap * (np.arange(entries) >= entries // 2)).astype(np.int32))

    def put(self, name, values, dtype):
        self.stored[name] = (dtype, as_dtype(values, dtype)[0])
        setattr(self, name, values)

    def lanes(self):
        return list(itertools.product(range(self.layers), range(self.kv_heads)))

    def attended(self, kept):
        """The attention of each query head's last row over what its lane has left."""
        made = []
        for layer, head in itertools.product(range(self.layers), range(self.kv_heads * self.group)):
            live = kept[layer * self.kv_heads + head // self.group]
            logits = self.keys[layer, head // self.group][live] @ self.queries[layer, head, -1] / np.sqrt(self.d)
            weights = np.exp(logits - logits.max())
            made.append(weights / weights.sum() @ self.values[layer, head // self.group][live])
        return np.array(made)

    def rows(self, name, kept):
        return np.concatenate([getattr(self, name)[lane][kept[s]] for s, lane in enumerate(self.lanes())])


# A lane, token by token -------------------------------------------------------------------------------------------------------
def admitted(gate, threshold, strict=False):
    """A NaN compares as false either way."""
    return [bool(g > threshold if strict else g >= threshold) for g in gate]


def visible(i, admit, window):
    return [j for j in range(i + 1) if i - j < window or admit[j]]


def run_lane(admit, window, cap=None, start=0):
    """(global, local, (step, ordinal) of who left and was not kept) after all tokens; the first `start` come at once."""
    ring, kept, gone = [], [], []
    for j in range(len(admit)):
        ring.append(j)
        if len(ring) <= window:
            continue
        victim = ring.pop(0)
        if admit[victim] and (cap is None or len(kept) < cap):
            kept.append(victim)
        else:
            gone.append((max(j, start - 1), victim))
    return kept, ring, gone


class Model(unittest.TestCase):
    """What the program is compared with, by hand."""

    def test_the_example(self):
        admit = [False, True, False, False, False, False]
        self.assertEqual([visible(i, admit, 2) for i in range(6)], [[0], [0, 1], [1, 2], [1, 2, 3], [1, 3, 4], [1, 4, 5]])
        self.assertEqual(run_lane(admit[:5], 2, start=5), ([1], [3, 4], [(4, 0), (4, 2)]))
        self.assertEqual(run_lane(admit, 2, start=5), ([1], [4, 5], [(4, 0), (4, 2), (5, 3)]))
        self.assertEqual(run_lane(admit, 2), ([1], [4, 5], [(2, 0), (4, 2), (5, 3)]))

    def test_ends(self):
        self.assertEqual(run_lane([True] * 3, 3), ([], [0, 1, 2], []))
        self.assertEqual(run_lane([False] * 4, 3), ([], [1, 2, 3], [(3, 0)]))
        self.assertEqual(run_lane([True] * 5, 1, cap=2), ([0, 1], [4], [(3, 2), (4, 3)]))
        self.assertEqual(run_lane([False, True, True, True, True], 1, cap=2), ([1, 2], [4], [(1, 0), (4, 3)]))
        self.assertEqual(run_lane([True, True], 1, cap=0), ([], [1], [(1, 0)]))

    def test_gates(self):
        self.assertEqual(admitted([.25, .5, .75, float("nan")], .5), [False, True, True, False])
        self.assertEqual(admitted([.25, .5, .75, float("nan")], .5, strict=True), [False, False, True, False])

    def test_what_is_held_is_the_row_of_the_mask(self):
        for window, count in itertools.product((1, 2, 3), range(9)):
            admit = [j % 3 == 1 for j in range(count)]
            kept, ring, _ = run_lane(admit, window)
            self.assertEqual(kept + ring, visible(count - 1, admit, window))


@unittest.skipIf(np is None, "there is no numpy")
class Admission(Runs):
    def run_program(self, policy, *arguments, **fields):
        return super().run_program("--policy", policy, *arguments, **fields)

    def same(self, trace, result, expected):
        """expected: (global, local, who went) of every lane."""
        kept = [glob + local for glob, local, _ in expected]
        self.assertEqual(ragged(result), kept)
        self.assertEqual(ragged(result, "local"), [local for _, local, _ in expected])
        total = sum(map(len, kept))
        self.assertEqual((self.told["logical_kept"], self.told["attended_length"]), (total, total))
        if self.told["mode"] == "decode":
            events = sorted((t, s, j) for s, (_, _, gone) in enumerate(expected) for t, j in gone)
            self.assertEqual([tuple(one) for one in np.array(result["events"][1], int).reshape(-1, 3).tolist()], events)
        found = np.array(result["output"][1]).reshape(result["output"][0])
        self.assertEqual(found.shape[:2], (trace.layers, trace.kv_heads * trace.group))
        np.testing.assert_allclose(found.reshape(-1, found.shape[2]), trace.attended(kept), rtol=1e-5, atol=1e-6)
        for name in ("keys", "values"):  # --layout compact, the default
            np.testing.assert_array_equal(stored(trace, result, name), trace.rows(name, kept))

    def both_modes(self, trace, policy, admits, window, cap=None, starts=(), **fields):
        """A prefill, and decoding from each of `starts`; admits: of every lane, of every entry."""
        more = () if cap is None else ("--budget", cap)
        result = self.replay(policy, "--attend", "--threads", 2, *more, window=window, **fields)
        self.same(trace, result, [run_lane(admit, window, cap) for admit in admits])
        for start in starts:
            result = self.replay(policy, "--mode", "decode", "--prefill", start, "--attend", *more, window=window, **fields)
            self.same(trace, result, [run_lane(admit, window, cap, start) for admit in admits])

    def test_the_example_of_five_tokens_and_the_step_after_them(self):
        for n in (5, 6):
            trace = Small(0, n, layers=1, kv_heads=1)
            trace.put("gate", (np.arange(n) == 1).reshape(1, 1, n) * 1.0, "F32")
            self.write(trace)
            result = self.replay("wg_kv", "--mode", "decode", "--prefill", 5, window=2, page=2)
            self.assertEqual(ragged(result), [[1, *range(n - 2, n)]])
            self.assertEqual(ragged(result, "local"), [[n - 2, n - 1]])
            events = np.array(result["events"][1]).reshape(-1, 3).tolist()
            self.assertEqual(events, [[4, 0, 0], [4, 0, 2]] + [[5, 0, 3]] * (n == 6))

    def test_a_window_need_not_be_full_pages(self):
        trace = Small(1, 12)
        self.write(trace)
        for window in (1, 3, 5):  # pages of 16
            self.both_modes(trace, "wg_kv", [admitted(trace.gate[lane], .5) for lane in trace.lanes()], window, starts=(6,), threshold=.5)

    def test_wg_kv_around_its_window(self):
        dice = np.random.default_rng(7)
        for seed, (window, page, extra) in enumerate(((4, 2, -1), (4, 4, 0), (8, 8, 1), (8, 4, 20), (1, 1, 7), (16, 16, 17), (2, 1, 30), (1, 1, 0))):
            n = window + extra
            trace = Small(seed, n, ("F32", "F16", "BF16", "F64")[seed % 4])
            self.write(trace)
            threshold, strict = (.5, .25, 1.0, 0.0)[seed // 2 % 4], seed % 2 == 1
            admits = [admitted(trace.gate[lane], threshold, strict) for lane in trace.lanes()]
            starts = {0 if seed % 2 else n, min(n, int(dice.choice([1, window - 1, window, window + 1])))}
            self.both_modes(trace, "wg_kv", admits, window, starts=sorted(starts), threshold=threshold, strict=strict, page=page)

    def test_a_strict_threshold_is_rounded_to_the_type_of_the_gates(self):
        """torch.tensor(gates, dtype) > threshold: the number becomes one of the tensor's type first."""
        near = (0.1, 0.3, 0.7, 0.0123, 0.9)
        for seed, dtype in enumerate(("F32", "F16", "BF16")):
            for threshold in near:
                rounded = np.float64(as_dtype(np.array([threshold]), dtype)[1][0])
                step = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}[dtype] * 2.0 ** np.floor(np.log2(threshold))
                trace = Small(70 + seed, 30, dtype)
                dice = np.random.default_rng(seed)
                exact = as_dtype(rounded + step * dice.integers(-2, 3, trace.gate.shape), dtype)[1]  # the threshold's neighbours
                trace.put("gate", exact, dtype)
                self.write(trace)
                admits = [admitted(exact[lane], rounded, strict=True) for lane in trace.lanes()]
                self.both_modes(trace, "wg_kv", admits, 4, starts=(9,), threshold=threshold, strict=True, page=4)
                paper = np.float64(np.float32(threshold))  # not strict: as before, in float32
                admits = [admitted(exact[lane], paper) for lane in trace.lanes()]
                self.both_modes(trace, "wg_kv", admits, 4, threshold=threshold, page=4)

    def test_threads_change_nothing(self):
        trace = Small(20, 40, layers=3, kv_heads=3)
        self.write(trace)
        for mode in (("--mode", "decode", "--prefill", 11), ()):
            self.replay_in_threads((1, 3), "wg_kv", *mode, "--attend", window=8, page=4, threshold=.5)

    def test_a_cap_keeps_who_came_first(self):
        trace = Small(21, 30, layers=2, kv_heads=2)
        self.write(trace)
        admits = [admitted(trace.gate[lane], .25) for lane in trace.lanes()]
        for cap in (0, 1, 5, 100):
            self.both_modes(trace, "wg_kv", admits, 4, cap, starts=(9 * (cap % 2),), threshold=.25, page=4)

    def test_the_window_counts_tokens_where_positions_jump(self):
        trace = Small(22, 24, gap=50)
        self.write(trace)
        admits = [admitted(trace.gate[lane], .75) for lane in trace.lanes()]
        self.both_modes(trace, "wg_kv", admits, 8, starts=(10,), threshold=.75, page=4)
        self.both_modes(trace, "local_attention", [[j < 3 for j in range(24)]] * trace.segments, 8, starts=(10,), sinks=3)

    def test_defaults(self):
        trace = Small(23, 300, layers=1, kv_heads=2)
        for value, kept in ((1 / 16, range(44, 300)), (1 / 8, range(300))):
            trace.put("gate", np.full((1, 2, 300), value), "F32")
            self.write(trace)
            self.assertEqual(ragged(self.replay("wg_kv")), [list(kept)] * 2)
        trace.put("gate", np.full((1, 2, 300), np.float32(0.1)), "F32")
        self.write(trace)
        self.assertEqual(ragged(self.replay("wg_kv")), [list(range(300))] * 2)  # a gate of 0.1 is at the threshold of 0.1
        self.assertEqual(ragged(self.replay("local_attention")), [list(range(44, 300))] * 2)

    def test_a_gate_that_is_nan_is_counted_and_never_admitted(self):
        for seed, threshold in ((24, 0.0), (25, .5)):
            trace = Small(seed, 30, ("F32", "BF16")[seed % 2], nan=.3)
            trace.gate[..., 26:] = 1.0  # none in the window, which nobody has asked yet
            trace.put("gate", trace.gate, trace.stored["gate"][0])
            self.write(trace)
            admits = [admitted(trace.gate[lane], threshold) for lane in trace.lanes()]
            self.assertGreater(np.isnan(trace.gate).sum(), 0)
            self.both_modes(trace, "wg_kv", admits, 4, starts=(0, 12), threshold=threshold, page=4)
            self.replay("wg_kv", window=4, page=4, threshold=threshold)
            self.assertEqual(self.told["nan_scores"], np.isnan(trace.gate).sum())

    def test_everything_admitted_and_nothing(self):
        trace = Small(26, 20)
        for value, kept in ((1.0, range(20)), (0.0, range(16, 20))):
            trace.put("gate", np.full(trace.gate.shape, value), "F32")
            self.write(trace)
            for mode in ((), ("--mode", "decode")):
                self.assertEqual(ragged(self.replay("wg_kv", *mode, window=4, page=4)), [list(kept)] * trace.segments)
        trace.put("gate", np.zeros(trace.gate.shape), "F32")
        self.write(trace)
        self.assertEqual(ragged(self.replay("wg_kv", window=4, page=4, threshold=0)), [list(range(20))] * trace.segments)
        self.assertEqual(ragged(self.replay("wg_kv", window=4, page=4, threshold=0, strict=True)), [list(range(16, 20))] * trace.segments)
        self.assertEqual(ragged(self.replay("wg_kv", window=4, page=4, threshold=-1, strict=True)), [list(range(20))] * trace.segments)
        self.assertEqual(ragged(self.replay("wg_kv", window=4, page=4, threshold=1.01)), [list(range(16, 20))] * trace.segments)

    def test_gates_are_all_that_wg_kv_needs(self):
        trace = Small(27, 20)
        self.write(trace)
        for mode in (("--mode", "decode", "--prefill", 7), ()):
            self.write(trace)
            whole = self.replay("wg_kv", *mode, window=4, page=4, threshold=.5)
            self.write(trace, without=("keys", "values", "queries"))
            alone = self.replay("wg_kv", *mode, window=4, page=4, threshold=.5)
            for name in ("keep.offsets", "keep.ordinals", "local.offsets", "local.ordinals", *(("events",) if mode else ())):
                self.assertEqual(alone[name], whole[name])

    def test_local_attention(self):
        for seed, (n, window, sinks) in enumerate(((20, 6, 3), (6, 6, 2), (7, 6, 0), (5, 6, 2), (9, 2, 20), (12, 1, 1))):
            trace = Small(30 + seed, n)
            self.write(trace, without=("gate",))
            admits = [[j < sinks for j in range(n)]] * trace.segments
            self.both_modes(trace, "local_attention", admits, window, starts=(n // 2 * (seed % 2),), sinks=sinks)

    def table(self, alpha, dtype="F32", name="alpha"):
        path = self.folder / "heads.safetensors"
        write_arrays(path, {name: (dtype, np.array(alpha, {"F32": np.float32, "I32": np.int32}[dtype]))})
        return path

    def test_duo_attention(self):
        trace, n = Small(40, 25, layers=2, kv_heads=3), 25
        self.write(trace, without=("gate",))
        for alpha, name in (([[.5, .51, 1], [0, .75, .25]], "alpha"), (np.ones((2, 3)), "retrieval"), (np.zeros((2, 3)), "x")):
            lanes = [a > .5 for layer in alpha for a in layer]
            admits = [[of or j < 3 for j in range(n)] for of in lanes]
            self.both_modes(trace, "duo_attention", admits, 5, starts=(0, 11), sinks=3, retrieval=self.table(alpha, name=name))
        result = self.replay("duo_attention", retrieval=self.table(np.zeros((2, 3))))  # a window of 256 holds them all
        self.assertEqual(ragged(result), [list(range(n))] * 6)

    def test_a_table_of_heads_that_does_not_fit_is_refused(self):
        self.write(Small(41, 9, layers=2, kv_heads=3))
        self.refused("retrieval", "duo_attention")
        self.refused("missing.safetensors", "duo_attention", retrieval=self.folder / "missing.safetensors")
        self.refused("[3, 2]", "duo_attention", retrieval=self.table(np.ones((3, 2))))
        self.refused("[6]", "duo_attention", retrieval=self.table(np.ones(6)))
        self.refused("I32", "duo_attention", retrieval=self.table(np.ones((2, 3)), "I32"))

    def test_bad_input(self):
        trace = Small(42, 9)
        self.write(trace, without=("gate",))
        for mode in ("prefill", "decode"):
            self.refused("gate", "wg_kv", "--mode", mode)
        self.write(trace, gate=("F32", np.ones((trace.layers, trace.kv_heads, 10), np.float32)))
        self.refused("tensor gate ", "wg_kv")
        self.write(trace)
        for threshold in ("nan", "inf", "x"):
            self.refused("threshold", "wg_kv", threshold=threshold)
        for policy in ("wg_kv", "local_attention", "duo_attention"):
            more = {"retrieval": self.table(np.ones((trace.layers, trace.kv_heads)))} if policy == "duo_attention" else {}
            for window in (0, -1, "x"):
                self.refused("window", policy, window=window, **more)
            self.refused("select", policy, "--mode", "select", **more)
            self.refused("windw", policy, windw=3, **more)
        for page in (0, -16):
            self.refused("page", "wg_kv", page=page)
        self.refused("strict", "wg_kv", strict="perhaps")
        self.refused("sinks", "local_attention", sinks=-1)

    def test_the_list_names_fields_and_modes(self):
        found = listed()
        for name, fields, signals in (("wg_kv", {"window": "256", "threshold": "0.1", "strict": "false", "page": "16"}, ["gate"]),
                                      ("local_attention", {"window": "256", "sinks": "0"}, []),
                                      ("duo_attention", {"window": "256", "sinks": "128", "retrieval": ""}, [])):
            self.assertEqual({one["name"]: one["default"] for one in found[name]["fields"]}, fields)
            self.assertEqual((found[name]["signals"], found[name]["granularity"]), (signals, "lane"))
            self.assertEqual(found[name]["modes"], ["prefill", "decode"])


def stored(trace, result, name):
    """Rows of the result as numbers: BF16 comes as its bits."""
    shape, values = result[name]
    made = np.array(values).reshape(shape)
    if trace.stored[name][0] == "BF16":
        made = (made.astype(np.uint32) << 16).view(np.float32)
    return made


if __name__ == "__main__":
    main()
