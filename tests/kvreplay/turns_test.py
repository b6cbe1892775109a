#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `kvreplay --policy intent_kv --mode turns` with IntentKV written out in numpy, in double precision.

    turns_test.py PROGRAM

A keep set may differ from the reference's only in entries whose scores are within NEAR of the score at the cut, relatively;
scores and the memory agree to the same. Needs numpy; without it every test is skipped, and says so.
"""

import math
import unittest

import reference_test
from program import Runs, listed
from reference_test import Trace, best, forced_of, np
from traces import main, ragged, write_arrays

NEAR = 2e-5
NO_EXTRA = {"sinks": 0, "recent": 0, "spans": ()}


# IntentKV, plainly ----------------------------------------------------------------------------------------------------------
def unit(rows):
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def remember(memory, span_rows, how):
    """span_rows [L,Hq,n,D]; the mode `query` starts anew at each turn."""
    encoding = span_rows.mean(axis=2)
    if how.get("normalize_encoding"):
        encoding = unit(encoding)
    kept = 0.0 if how.get("mode") == "query" else math.exp(-how.get("lambda", 0.5))
    return unit(kept * memory + encoding)


def rule_of(trace, memory, candidates):
    """Softmax over the candidates alone, summed over layers and query heads."""
    total = np.zeros(len(candidates))
    for layer in range(trace.layers):
        for h in range(trace.query_heads):
            if len(candidates):
                total += trace.weights(layer, h, trace.logits_of(trace.keys[layer, h // trace.group][candidates] @ memory[layer, h]))
    return total


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def residual_of(trace, weights, memory, rule, candidates, span):
    """MLP(phi ++ c): span are the live entries of the query span."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    mean_key = trace.keys.mean(axis=(0, 1))
    mean_memory = np.broadcast_to(memory.mean(axis=(0, 1)), (len(candidates), trace.d))
    key = mean_key[candidates]
    phi = np.concatenate([key, mean_memory, key * mean_memory, rule[:, None]], axis=1)
    width = len(w["w_q.bias"])
    context = np.zeros((len(candidates), width))
    if len(span):
        q = phi @ w["w_q.weight"].T + w["w_q.bias"]
        k = mean_key[span] @ w["w_k.weight"].T + w["w_k.bias"]
        v = mean_key[span] @ w["w_v.weight"].T + w["w_v.bias"]
        for head in range(4):
            part = slice(head * width // 4, (head + 1) * width // 4)
            logits = q[:, part] @ k[:, part].T / math.sqrt(width // 4)
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            context[:, part] = p / p.sum(axis=1, keepdims=True) @ v[:, part]
    hidden = gelu(np.concatenate([phi, context], axis=1) @ w["fc1.weight"].T + w["fc1.bias"])
    return np.clip(float(w["alpha"].reshape(())), -5, 5) * (hidden @ w["fc2.weight"][0] + w["fc2.bias"][0])


def turn_of(trace, live, memory, end, span, how, extra):
    """What one turn says: the memory, who is forced, the scores of the live entries (0 where forced)."""
    begin, stop = span if span[0] != span[1] else (max(0, end - how.get("tail", 32)), end)
    inside = (live >= begin) & (live < stop)
    if inside.any():  # of a span that is dead altogether nothing is remembered
        memory = remember(memory, trace.queries[:, :, begin:stop], how)
    forced = inside | (trace.positions[live] < how.get("prefix", 0)) | forced_of(trace, live, **extra)
    score = np.zeros(len(live))
    rule = rule_of(trace, memory, live[~forced])
    score[~forced] = rule
    if how.get("mode") == "learnable":
        score[~forced] += residual_of(trace, how["residual"], memory, rule, live[~forced], live[inside])
    return memory, forced, score


def a_head(seed, dims, width=8, hidden=6, alpha=1.0, shape=(), size=0.2):
    dice = np.random.default_rng(seed)
    sizes = {"w_q.weight": (width, 3 * dims + 1), "w_q.bias": (width,), "w_k.weight": (width, dims), "w_k.bias": (width,),
             "w_v.weight": (width, dims), "w_v.bias": (width,), "fc1.weight": (hidden, 3 * dims + 1 + width), "fc1.bias": (hidden,),
             "fc2.weight": (1, hidden), "fc2.bias": (1,)}
    made = {name: dice.normal(0, size, of).astype(np.float32) for name, of in sizes.items()}
    made["alpha"] = np.full(shape, alpha, np.float32)
    return made


ENDS = (70, 71, 130, 200, 203, 300)
SPANS = ((60, 70), (70, 71), (100, 110), (0, 0), (150, 203), (299, 300))  # in the middle; unresolved; into earlier turns


@unittest.skipIf(np is None, "there is no numpy")
class Turns(Runs):
    def write(self, trace, ends=ENDS, spans=SPANS, residual=None, without=(), dtype="I32", metadata=None):
        as_integers = np.int32 if dtype == "I32" else np.int64
        tensors = {**trace.stored, "turn_end": (dtype, np.array(ends, as_integers))}
        if spans is not None:
            tensors["span_begin"] = (dtype, np.array([a for a, _ in spans], as_integers))
            tensors["span_end"] = (dtype, np.array([b for _, b in spans], as_integers))
        for name, values in (residual or {}).items():
            tensors["residual." + name] = ("F32", values)
        write_arrays(self.path, {name: one for name, one in tensors.items() if name not in without}, metadata)

    def run_program(self, *arguments, **fields):
        return super().run_program("--policy", "intent_kv", *arguments, **fields)

    def replay(self, budget, how=None, *arguments, mode="turns"):
        fields = {name: value for name, value in (how or {}).items() if name != "residual"}
        result = self.replay_in_threads((1, 3), "--budget", budget, "--mode", mode, *arguments, **fields)
        self.assertEqual(self.warnings, "")
        return result

    def same_set(self, found, score, forced, budget):
        kept, inside, _ = best(score, forced, budget)
        self.assertEqual(len(found), len(kept))
        self.assertEqual(found, sorted(set(found)))
        scale = np.abs(score).max(initial=0)
        for j in set(found) ^ set(kept):
            self.assertIsNotNone(inside, (found, kept))
            self.assertFalse(forced[j])
            self.assertLessEqual(abs(score[j] - inside), NEAR * scale, (j, score[j], inside))

    def follow(self, trace, result, budget, how, ends=ENDS, spans=SPANS, extra=None):
        """Every turn's keep set, the last one's scores and the memory; sets differ on ties only, and are followed."""
        after = ragged(result, "turn")
        self.assertEqual(len(after), len(ends))
        self.assertEqual(ragged(result), after[-1:])
        memory = np.zeros((trace.layers, trace.query_heads, trace.d))
        held, begin, decided = np.array([], int), 0, 0
        for end, span, kept in zip(ends, spans, after):
            live = np.concatenate([held, np.arange(begin, end)])
            memory, forced, score = turn_of(trace, live, memory, end, span, how, extra or NO_EXTRA)
            self.assertEqual(sorted(set(kept) - set(live.tolist())), [], "what was dropped stays dropped")
            fires = len(live) - budget >= max(1, how.get("min_growth", 0))
            decided += fires
            if fires:
                self.same_set([int(np.searchsorted(live, j)) for j in kept], score, forced, budget)
            else:
                self.assertEqual(kept, live.tolist())
            held, begin = np.array(kept, int), end
        self.assertGreater(decided, 0)
        if fires:
            self.same_scores(trace, result, live, forced, score)
        self.assertEqual(result["memory"][0], list(memory.shape))
        np.testing.assert_allclose(np.array(result["memory"][1]).reshape(memory.shape), memory, rtol=NEAR, atol=1e-6)

    def same_scores(self, trace, result, live, forced, score):
        if forced.all():
            self.assertNotIn("scores", result, "nothing was ranked")
            return
        self.assertEqual(result["scores"][0], [1, trace.n])
        found = np.array(result["scores"][1])
        unranked = np.ones(trace.n, bool)
        unranked[live[~forced]] = False
        self.assertTrue(np.all(np.isneginf(found[unranked])), "forced, dead and later entries are not ranked")
        np.testing.assert_allclose(found[live[~forced]], score[~forced], rtol=NEAR, atol=NEAR * np.abs(score).max(initial=1e-3))

    def test_memory_and_query_modes_in_every_type(self):
        for seed, dtype in enumerate(("F32", "F16", "BF16", "F64")):
            trace = Trace(seed, dtype, gap=7 * (seed % 2), growth=3.0)
            self.write(trace, dtype="I64" if seed % 2 else "I32")
            for how in ({}, {"mode": "query"}, {"mode": "memory", "lambda": 0.1, "normalize_encoding": True}):
                self.follow(trace, self.replay(80, how), 80, how)
                self.assertEqual((self.told["nan_scores"], self.told["forced_over_budget"]), (0, 0))

    def test_groups_of_heads_and_sizes_of_them(self):
        for seed, (heads, kv_heads, dims) in enumerate(((4, 4, 80), (8, 1, 128), (8, 2, 256), (2, 1, 6))):
            trace = Trace(20 + seed, layers=2, query_heads=heads, kv_heads=kv_heads, dims=dims, value_dims=16)
            self.write(trace)
            self.follow(trace, self.replay(64), 64, {})

    def test_scale_cap_and_sinks_of_a_model(self):
        for seed, (scale, cap, sinks) in enumerate(((3.0, 0.0, None), (4.0, 0.25, "F32"))):
            trace = Trace(50 + seed, gap=2)
            self.write(trace, metadata=trace.model_says(seed, scale, cap, sinks))
            self.follow(trace, self.replay(80), 80, {})
        scores = np.array(self.replay(80)["scores"][1])
        self.assertLess(scores[np.isfinite(scores)].sum(), 3 * 8 - 0.01, "sinks take a part")

    def test_the_rule_of_a_turn_sums_to_one_for_each_layer_and_head(self):
        trace = Trace(30)
        self.write(trace)
        scores = np.array(self.replay(80)["scores"][1])
        self.assertAlmostEqual(scores[np.isfinite(scores)].sum(), 3 * 8, delta=1e-4)

    def test_spans_that_nobody_resolved_are_the_last_entries(self):
        trace = Trace(31, gap=4)
        unresolved = [(end, end) for end in ENDS]
        for how in ({}, {"tail": 5}, {"tail": 400}):
            self.write(trace, spans=unresolved)
            result = self.replay(60, how)
            self.follow(trace, result, 60, how, spans=unresolved)
            self.write(trace, spans=[(0, 0)] * len(ENDS))
            self.assertEqual(self.replay(60, how), result)
            self.write(trace, spans=None)
            self.assertEqual(self.replay(60, how), result)

    def test_a_prefill_is_one_turn_whose_span_nobody_resolved(self):
        trace = Trace(51, gap=4)
        self.write(trace, ends=(300,), spans=((300, 300),))
        turn = self.replay(60, {"prefix": 3, "tail": 9})
        write_arrays(self.path, trace.stored)
        prefill = self.replay(60, {"prefix": 3, "tail": 9}, mode="prefill")
        for name in ("keep.offsets", "keep.ordinals", "scores"):
            self.assertEqual(prefill[name], turn[name])

    def test_a_prefill_or_a_first_chunk_has_the_span_of_the_turn_that_ends_with_it(self):
        trace = Trace(52)
        names = ("keep.offsets", "keep.ordinals", "scores")
        self.write(trace, ends=(300,), spans=((280, 290),))
        turn = self.replay(60)
        self.write(trace, ends=(70, 300), spans=((10, 20), (280, 290)))
        prefill = self.replay(60, mode="prefill")
        self.write(trace, ends=(70, 120), spans=((10, 20), (100, 110)))  # no turn ends at 300: the last rows stand for it
        tail = self.replay(60, mode="prefill")
        self.write(trace, ends=(300,), spans=((300, 300),))
        unresolved = self.replay(60)
        for name in names:
            self.assertEqual(prefill[name], turn[name])
            self.assertEqual(tail[name], unresolved[name])
        self.write(trace, ends=(70, 120), spans=((10, 20), (100, 110)))
        for first in (4, 70, 0):
            result = self.replay(60, None, "--prefill", first, mode="decode")
            gone = {tuple(one)[0] for one in np.array(result["events"][1]).reshape(-1, 3).tolist()}
            self.assertEqual(gone, {69} if first == 70 else set())
            if first == 70:
                self.assertLessEqual(set(range(10, 20)), set(ragged(result)[0]))

    def test_mass_beside_the_queries_does_not_take_them_away(self):
        trace = Trace(53)
        write_arrays(self.path, trace.stored)
        names = ("keep.ordinals", "scores")
        plain = self.replay(60, mode="prefill")
        write_arrays(self.path, {**trace.stored, "attention_mass": ("F32", np.ones((3, 2, 300), np.float32))})
        with_mass = self.replay(60, mode="prefill")
        for name in names:
            self.assertEqual(plain[name], with_mass[name])

    def test_the_prefix_is_in_positions_and_the_same_as_protect(self):
        trace = Trace(32, gap=9)
        trace.positions = trace.positions * 2
        trace.stored["positions"] = ("I64", trace.positions.astype(np.int64))
        self.write(trace)
        how = {"prefix": 25}
        result = self.replay(90, how)
        self.follow(trace, result, 90, how)
        self.assertTrue(set(range(13)) <= set(ragged(result)[0]))
        self.assertEqual(self.replay(90, {}, "--protect", "0:25"), result)

    def test_every_forced_entry_is_outside_the_softmax(self):
        trace = Trace(33, gap=2)
        self.write(trace)
        extra = {"sinks": 4, "recent": 6, "spans": ((20, 30), (149, 156))}
        arguments = ("--sinks", 4, "--recent", 6, "--protect", "20:30", "--protect", "149:156")
        self.follow(trace, self.replay(90, {"prefix": 6}, *arguments), 90, {"prefix": 6}, extra=extra)

    def test_a_forced_set_above_the_budget_stays_whole(self):
        trace = Trace(34)
        self.write(trace)
        for budget in (0, 1, 12, 13):
            result = self.replay(budget, {"prefix": 12})
            self.follow(trace, result, budget, {"prefix": 12})
            self.assertEqual(ragged(result)[0], [*range(12), 299])
            self.assertEqual(self.told["forced_over_budget"], int(budget < 13))

    def test_nothing_goes_up_to_the_budget_and_below_the_growth_but_turns_are_remembered(self):
        trace = Trace(35)
        self.write(trace)
        whole = self.replay(300)
        self.assertEqual(ragged(whole), [list(range(300))])
        memory = np.zeros((3, 8, 64))
        for end, span in zip(ENDS, SPANS):
            memory, _, _ = turn_of(trace, np.arange(end), memory, end, span, {}, NO_EXTRA)
        np.testing.assert_allclose(np.array(whole["memory"][1]).reshape(memory.shape), memory, rtol=NEAR, atol=1e-6)
        for growth in (1, 2, 97, 100, 101):
            self.follow(trace, self.replay(103, {"min_growth": growth}), 103, {"min_growth": growth})

    def test_one_budget_decides_for_all_layers_and_layouts_agree(self):
        trace = Trace(36, gap=3)
        for residual in (None, a_head(36, 64)):
            how = {} if residual is None else {"mode": "learnable", "residual": residual}
            self.write(trace, residual=residual)
            first = self.replay(75, how, "--attend")
            self.follow(trace, first, 75, how)
            kept = ragged(first)[0]
            expected = reference_test.Reference.attended(self, trace, [kept] * 6)
            for layout in ("compact", "dead_slot", "mask", "lane_pages"):
                result = self.replay(75, how, "--attend", "--layout", layout)
                for name in ("keep.offsets", "keep.ordinals", "turn.offsets", "turn.ordinals", "scores", "memory"):
                    self.assertEqual(result[name], first[name], (layout, name))
                np.testing.assert_allclose(np.array(result["output"][1]).reshape(-1, 64), expected, rtol=1e-5, atol=1e-6)
            rows = np.array(first["keys"][1], np.float32).reshape(-1, 64)
            wanted = [trace.stored["keys"][1][lane][kept] for lane in trace.lanes()]
            np.testing.assert_array_equal(rows, np.concatenate(wanted))

    def test_the_learned_residual(self):
        for seed, (width, hidden, alpha, shape) in enumerate(((8, 6, 1.0, ()), (128, 256, -0.7, (1,)), (4, 1, 9.0, ()))):
            trace = Trace(40 + seed, ("F32", "BF16", "F16")[seed], layers=2, gap=seed)
            head = a_head(seed, 64, width, hidden, alpha, shape, size=0.1)
            self.write(trace, residual=head)
            how = {"mode": "learnable", "residual": head, "prefix": 3}
            self.follow(trace, self.replay(70, how), 70, how)

    def test_a_residual_of_nothing_is_the_memory_mode_bit_for_bit(self):
        trace = Trace(45)
        head = a_head(45, 64)
        self.write(trace, residual=head)
        rule = self.replay(70)
        self.assertNotEqual(self.replay(70, {"mode": "learnable"})["scores"], rule["scores"])
        none = {"alpha": np.float32(0) * head["alpha"]}
        last = {name: np.zeros_like(head[name]) for name in ("fc2.weight", "fc2.bias")}
        for change in (none, last):
            self.write(trace, residual={**head, **change})
            self.assertEqual(self.replay(70, {"mode": "learnable"}), rule)

    def test_a_span_that_is_dead_altogether_leaves_no_context_and_no_memory(self):
        trace = Trace(46)
        head = a_head(46, 64, size=0.3)
        ends, spans = (200, 300), ((190, 200), (20, 60))
        self.write(trace, ends=ends, spans=spans, residual=head)
        how = {"mode": "learnable", "residual": head}
        result = self.replay(10, how)
        first = ragged(result, "turn")[0]
        self.assertEqual(first, list(range(190, 200)))
        memory, live = np.zeros((3, 8, 64)), np.arange(200)
        memory, _, _ = turn_of(trace, live, memory, 200, spans[0], how, NO_EXTRA)
        live = np.concatenate([np.array(first), np.arange(200, 300)])
        before = memory
        memory, forced, score = turn_of(trace, live, memory, 300, spans[1], how, NO_EXTRA)
        self.assertFalse(forced.any())
        self.assertIs(memory, before)
        np.testing.assert_allclose(np.array(result["memory"][1]).reshape(memory.shape), memory, atol=1e-6)
        self.same_set([int(np.searchsorted(live, j)) for j in ragged(result)[0]], score, forced, 10)
        self.same_scores(trace, result, live, forced, score)

    def test_nan_in_a_key(self):
        trace = Trace(47)

        def with_nan(at):
            keys = trace.stored["keys"][1].copy()
            keys[1, 0, at, 5] = np.nan
            self.write_with(trace, keys, (300,), ((290, 300),))
            return self.replay(40)

        result = with_nan(120)  # a candidate: every score is NaN, and the lowest stay
        self.assertEqual(ragged(result), [[*range(30), *range(290, 300)]])
        self.assertEqual(self.told["nan_scores"], 290)
        clean = with_nan(295)  # a forced one is in no softmax
        self.assertEqual(self.told["nan_scores"], 0)
        _, forced, score = turn_of(trace, np.arange(300), np.zeros((3, 8, 64)), 300, (290, 300), {}, NO_EXTRA)
        self.same_set(ragged(clean)[0], score, forced, 40)

    def test_nan_in_a_key_that_is_dead_is_seen_no_more(self):
        trace = Trace(48)
        keys = trace.stored["keys"][1].copy()
        keys[0, 1, 150, 0] = np.nan
        self.write_with(trace, keys, (200, 300), ((190, 200), (290, 300)))
        result = self.replay(40)
        self.assertEqual(ragged(result, "turn")[0], [*range(30), *range(190, 200)])
        self.assertEqual(self.told["nan_scores"], 0)

    def write_with(self, trace, keys, ends, spans):
        kept = trace.stored["keys"]
        trace.stored["keys"] = ("F32", keys)
        self.write(trace, ends=ends, spans=spans)
        trace.stored["keys"] = kept

    def test_the_list_names_the_fields_and_their_defaults(self):
        one = listed()["intent_kv"]
        defaults = {field["name"]: field["default"] for field in one["fields"]}
        self.assertLessEqual({"mode": "memory", "lambda": "0.5", "prefix": "0", "tail": "32", "normalize_encoding": "false",
                              "min_growth": "0"}.items(), defaults.items())
        self.assertEqual(one["granularity"], "token")

    def test_bad_input_is_refused_in_one_line(self):
        trace = Trace(49, layers=1, entries=60)
        ends, spans = (30, 60), ((20, 30), (50, 60))
        turns = ("--mode", "turns", "--budget", 20)
        learned = ("--set", "mode=learnable", *turns)
        self.write(trace, ends, spans)
        self.refused("residual", *learned)
        for name, value in (("mode", "both"), ("lambda", "nan"), ("lambda", "much"), ("prefix", -1), ("tail", -1), ("min_growth", -1),
                            ("normalize_encoding", "maybe"), ("window", 3)):
            self.refused(name, "--set", f"{name}={value}", *turns)
        self.refused("--budget", "--mode", "turns")
        for broken in (((20, 31), (50, 60)), ((20, 30), (50, 61))):  # past the turn, past the end
            self.write(trace, ends, broken)
            self.refused("tensor span_end ", *turns)
        self.write(trace, ends, ((20, 30), (55, 50)))
        self.refused("tensor span_", *turns)
        self.write(trace, ends, ((-1, 30), (50, 60)))
        self.refused("tensor span_begin ", *turns)
        for lost in ("span_begin", "span_end", "turn_end"):
            self.write(trace, ends, spans, without=(lost,))
            self.refused(f"tensor {lost} ", *turns)
        self.write(trace, ends, spans, without=("queries",))
        self.refused("queries", *turns)
        self.write(trace, ends, spans, without=("keys",))
        self.refused("keys", *turns)

    def test_bad_residual_heads_are_refused_in_one_line(self):
        trace = Trace(50, layers=1, entries=60)
        ends, spans = (30, 60), ((20, 30), (50, 60))
        learned = ("--set", "mode=learnable", "--mode", "turns", "--budget", 20)
        for name in a_head(1, 64):
            head = a_head(1, 64)
            del head[name]
            self.write(trace, ends, spans, residual=head)
            self.refused(f"tensor residual.{name} ", *learned)
            head = a_head(1, 64)
            head[name] = np.full_like(head[name], np.nan)
            self.write(trace, ends, spans, residual=head)
            self.refused(f"tensor residual.{name} ", *learned)
        self.write(trace, ends, spans, residual=a_head(1, 128))  # another model's
        self.refused("tensor residual.", *learned)
        self.write(trace, ends, spans, residual=a_head(1, 64, width=6))  # four heads do not fit
        self.refused("residual", *learned)


if __name__ == "__main__":
    main()
