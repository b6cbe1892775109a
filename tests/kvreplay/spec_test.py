#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `--spec` with `--policy` and its options: an eviction, an admission and a selection decide alike by either.

    spec_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import json
import unittest

import admission_test
from admission_test import Small, admitted, run_lane
from program import Runs
from reference_test import np
from traces import main, ragged, write_arrays

EVICTIONS = (
    ("snapkv", "snapkv | budget(12)", ("--budget", 12), {}),
    ("snapkv", "evict: snapkv(window=3, pool=avg:3) | sinks(2) | budget(12, scope=layer, floor=0.2)",
     ("--budget", 12, "--sinks", 2, "--budget-scope", "layer", "--floor", 0.2), {"window": 3, "pool": "avg:3"}),
    ("h2o", "h2o(recent=4) | budget(ratio=0.5)", ("--ratio", 0.5), {"recent": 4}),
    ("knorm", "knorm | budget(9) | span(5, 7)", ("--budget", 9, "--protect", "5:7"), {}),
    ("tova", "tova | budget(9) | reduce_lanes(layer, mean)", ("--budget", 9, "--granularity", "layer", "--reduce", "mean"), {}),
    ("pyramid_kv", "snapkv(window=4, pool=max:7) | budget(10, by=ramp, beta=20)", ("--budget", 10), {"window": 4}),
    ("fast_kvzip", "carried(name=fast_kvzip) | safe(sinks=4, recent=2) | budget(10, scope=global)", ("--budget", 10), {"window": 2}),
    ("nacl", "snapkv(window=4, pool=none) | put_first(part=0.75, then=random) | budget(10)", ("--budget", 10), {"window": 4}),
)


@unittest.skipIf(np is None, "there is no numpy")
class Spec(admission_test.Admission):
    """Only what is named here: not the inherited tests again."""

    def trace(self, seed, entries=40):
        made = Small(seed, entries, layers=3, kv_heads=2)
        for name in ("kvzap", "fast_kvzip"):
            values = np.random.default_rng(seed).integers(-96, 97, (3, 2, entries)) / 16
            made.stored[f"birth.{name}"] = ("F32", values.astype(np.float32))
        made.stored["table.heads"] = ("F32", np.random.default_rng(seed + 1).integers(0, 2, (3, 2)).astype(np.float32))
        self.write(made)
        return made

    def by_spec(self, spec, *arguments):
        return self.result_of(self.run_spec(spec, *arguments), spec)

    def run_spec(self, spec, *arguments):
        return Runs.run_program(self, "--spec", spec, *arguments)

    def alike(self, policy, spec, *mode, options=(), **fields):
        by_policy = self.replay(policy, *mode, *options, **fields)
        by_spec = self.by_spec(spec, *mode)
        self.assertEqual(by_policy, by_spec, (policy, spec, mode))

    def test_an_eviction(self):
        self.trace(1)
        for policy, spec, options, fields in EVICTIONS:
            self.alike(policy, spec, "--attend", options=options, **fields)
        self.alike("h2o", "evict: h2o | budget(8)", "--mode", "decode", "--prefill", 5, options=("--budget", 8))

    def test_an_admission(self):
        trace = self.trace(2)
        for mode in (("--attend",), ("--mode", "decode", "--prefill", 9, "--attend")):
            self.alike("wg_kv", "admit: write_gate | window(8) | at_least(0.5)", *mode, window=8, threshold=0.5)
            self.alike("wg_kv", "admit: write_gate | at_least(0.25, strict=true) | sinks(2) | window(3) | cap(5)", *mode,
                       options=("--sinks", 2, "--budget", 5), window=3, threshold=0.25, strict=True)
            self.alike("kvzap", "admit: carried(name=kvzap) | sinks(4) | window(6) | at_least(-4)", *mode, window=6, sinks=4)
            self.alike("kvzap", "admit: kvzap(window=6) | sinks(4) | cap(9)", *mode, options=("--sinks", 4, "--budget", 9), window=6)
            self.assertIn("carried(name=kvzap, decay=1) | sinks(4) | at_least(least=-4,", self.told["spec"])
            self.alike("attention_gate", "admit: write_gate | window(1) | at_least(0.5, strict=true)", *mode)
            self.alike("attention_gate", "admit: attention_gate(threshold=0.25) | span(3, 5)", *mode,
                       options=("--protect", "3:5"), threshold=0.25)
            write_arrays(self.folder / "heads.safetensors", {"retrieval": trace.stored["table.heads"]})
            self.alike("duo_attention", "admit: head_table(table=heads) | sinks(3) | window(7)", *mode,
                       window=7, sinks=3, retrieval=self.folder / "heads.safetensors")
            self.alike("local_attention", "admit: head_table | sinks(3) | window(7)", *mode, window=7, sinks=3)

    def test_an_admission_token_by_token(self):
        trace = self.trace(3)
        result = self.by_spec("admit: write_gate | window(5) | at_least(0.75)", "--mode", "decode")
        lanes = [run_lane(admitted(trace.gate[lane], .75), 5) for lane in trace.lanes()]
        self.assertEqual(ragged(result), [glob + local for glob, local, _ in lanes])

    def test_a_selection(self):
        self.trace(4, 100)
        for dense in (0, 2):
            self.alike("quest", f"select: quest(page=8) | budget(24) | dense({dense})", "--mode", "select", "--attend",
                       options=("--budget", 24), page=8, dense_layers=dense)
        self.alike("quest", "select: quest | budget(ratio=0.5) | dense(2)", "--mode", "select", options=("--ratio", 0.5))

    def test_specs_of_published_systems(self):
        """Those whose scorers are there run and print as they were read; the others are refused by what is missing."""
        trace = self.trace(6)
        trace.stored["birth.surprise"] = ("F32", np.random.default_rng(6).uniform(0, 1, 40).astype(np.float32))
        trace.stored["external.x"] = ("F32", np.random.default_rng(7).uniform(0, 1, (3, 2, 40)).astype(np.float32))
        dice = np.random.default_rng(8)
        square = dice.normal(0, 0.3, (3, 2 * trace.group, trace.d, trace.d))
        for name, numbers in (("pre_rope_queries", dice.normal(0, 1, (3, 2 * trace.group, 40, trace.d))), ("query_model.mean", square[..., 0]),
                              ("query_model.square", square @ square.swapaxes(2, 3)), ("table.mine", dice.normal(0, 1, (3, 2 * trace.group)))):
            trace.stored[name] = ("F32", numbers.astype(np.float32))
        trace.stored["value_norms"] = ("F32", np.random.default_rng(8).uniform(0, 4, (3, 2, 40)).astype(np.float32))
        self.write(trace)
        for spec in ("evict: snapkv(window=32, pool=max:7) | budget(20, by=ramp, beta=20)",
                     "evict: expected_attention(future=0, epsilon=0.02) | recent(1) | budget(20)",
                     "evict: expected_margin(thresholds=mine) | budget(20)",
                     "evict: cake(window=8, gamma=200) | budget(20, by=moments, tau1=1.6, tau2=0.4) | when(layer)",
                     "evict: snapkv(window=8) | budget(20, by=hits)",
                     "admit: expected_margin(true, mine) | sinks(4) | window(8) | at_least(0, strict=true)",
                     "evict: carried(name=fast_kvzip) | safe(sinks=4, recent=8) | budget(20, scope=global)",
                     "evict: carried(name=surprise) | sinks(4) | put_first(tokens=10, then=recency) | budget(20) | when(turn)",
                     "evict: snapkv(window=8, pool=none) | put_first(part=0.75, then=random) | budget(20)",
                     "evict: r_kv(window=8, lambda=0.07) | sinks(4) | budget(20) | over_budget(5)",
                     "evict: external(name=x) | reduce_lanes(layer, sum) | blocks(20, mean) | budget(20)",
                     "evict: external(name=x) | critical(first=0.5, epsilon=0.0001) | budget(20)",
                     "admit: carried(name=kvzap) | sinks(4) | window(8) | at_least(-4)"):
            first = self.by_spec(spec)
            self.out.unlink()
            done = self.run_spec(spec)
            text = json.loads(done.stdout)["spec"]
            text = text if spec.startswith("evict") else "admit: " + text
            self.assertEqual(self.by_spec(text), first, text)
        for spec, missing in (
            ("evict: tri_attention | prompt | budget(4096) | over_budget(127)", "prompt_end"),
            ("evict: lu_kv | budget(12)", "lu_kv"),
        ):
            done = self.run_spec(spec)
            self.fails(done)
            self.assertIn(f" {missing} = ", done.stderr.replace(f"= {missing},", f" {missing} = "), spec)

    def test_frozen_scores(self):
        """A decision by the scores of its own observe is that of the scorer itself."""
        trace = self.trace(12)
        rows = np.random.default_rng(12).integers(-24, 25, (3, 2 * trace.group, 4, trace.d)) / 8
        trace.stored["query_rows"] = ("F32", rows.astype(np.float32))
        trace.stored["query_positions"] = ("I32", np.arange(40, 44, dtype=np.int32))
        self.write(trace)
        for scorer in ("lookahead_kv(recent=4)", "knorm"):
            plain, frozen = self.by_spec(f"{scorer} | budget(9)"), self.by_spec(f"{scorer} | frozen | budget(9)")
            self.assertEqual(ragged(plain), ragged(frozen), scorer)

    def test_a_prompt_and_classes_of_tokens(self):
        trace = self.trace(11)
        norms = np.linalg.norm(np.asarray(trace.keys, np.float64), axis=-1).reshape(-1, 40)
        classes = np.random.default_rng(11).integers(0, 3, 40).astype(np.int32)
        trace.stored["token_class"] = ("I32", classes)
        for end in (0, 5, 40):
            trace.stored["prompt_end"] = ("I64", np.asarray([end], np.int64))
            self.write(trace)
            for spec, forced in (("knorm | prompt | budget(20)", range(end)),
                                 ("knorm | marks(class=2) | budget(20)", np.flatnonzero(classes == 2).tolist())):
                for lane, kept in enumerate(ragged(self.by_spec(spec))):
                    rest = [e for e in sorted(range(40), key=lambda e: (norms[lane, e], e)) if e not in forced]
                    self.assertEqual(kept, sorted([*forced, *rest[: max(0, 20 - len(forced))]]), (spec, end, lane))
        for name, wrong, said in (("prompt_end", np.asarray(41, np.int32), "tensor prompt_end = 41, but the trace has 40 entries"),
                                  ("token_class", np.full(40, 32, np.int32), "tensor token_class = 32, but there are 32 classes")):
            kept = trace.stored.pop(name)
            self.write(trace)
            self.fails(self.run_spec("knorm | prompt | marks | budget(20)"), f"tensor {name} = missing")
            trace.stored[name] = ("I32", wrong)
            self.write(trace)
            self.assertIn(said, self.run_spec("knorm | prompt | marks | budget(20)").stderr)
            trace.stored[name] = kept

    def test_a_budget_by_importance(self):
        """CompressKV's rule of shares, against `fit` and `round_shares` in whole numbers and fractions."""
        from fractions import Fraction

        def fit(weights, total, low, high):
            if sum(high) <= total:
                return high
            if sum(low) >= total:
                return low
            weights = weights if sum(weights) else [Fraction(1)] * len(weights)
            shares = [a + (total - sum(low)) * w / sum(weights) for a, w in zip(low, weights)]
            full = [False] * len(shares)
            while any(x > h for x, h in zip(shares, high)):
                over = [l for l, x in enumerate(shares) if x > high[l]]
                excess = sum(shares[l] - high[l] for l in over)
                for l in over:
                    shares[l], full[l] = Fraction(high[l]), True
                free = [l for l in range(len(shares)) if not full[l]]
                weight = sum(weights[l] for l in free)
                for l in free:
                    shares[l] += excess * weights[l] / weight if weight else Fraction(excess, len(free))
            whole = [int(x) for x in shares]
            order = sorted(range(len(shares)), key=lambda l: (whole[l] - shares[l], l))
            for l in order[: total - sum(whole)]:
                whole[l] += 1
            return whole

        trace = self.trace(9)
        norms = np.linalg.norm(np.asarray(trace.keys, np.float64), axis=-1).reshape(-1, 40)
        for seed, weights in enumerate(([3, 1, 4], [0, 8, 0], [0, 0, 0], [1, 1, 30], [5, 2, 2])):
            shape = (3,) if seed % 2 else (3, 2)
            table = np.zeros(shape, np.float32)
            table[...] = np.asarray(weights, np.float32).reshape((3,) + (1,) * (len(shape) - 1)) / 8
            trace.stored["table.importance"] = ("F32", table)
            self.write(trace)
            for tokens, least, cap in ((12, 4, 2), (9, 32, 3), (20, 0, 1.5), (1, 32, 3), (39, 3, 3)):
                spec = f"knorm | budget({tokens}, by=importance, table=importance, least={least}, cap={cap})"
                found = self.by_spec(spec)
                high = [min(40, int(cap * tokens))] * 3
                shares = fit([Fraction(w, 8) for w in weights], 3 * tokens, [min(least, tokens, h) for h in high], high)
                self.assertEqual(found["shares"], ([6], [s for s in shares for _ in range(2)]), spec)
                for lane, kept in enumerate(ragged(found)):
                    best = sorted(range(40), key=lambda e: (norms[lane, e], e))[: shares[lane // 2]]
                    self.assertEqual(kept, sorted(best), (spec, lane))
        done = self.run_spec("knorm | budget(8, by=importance, table=other)")
        self.assertIn("tensor table.other = missing, but the budget reads it", done.stderr)
        trace.stored["table.importance"] = ("F32", np.zeros(4, np.float32))
        self.write(trace)
        self.fails(self.run_spec("knorm | budget(8, by=importance, table=importance)"), "table.importance")

    def test_thresholds_of_a_table(self):
        """Each lane, or each layer, has a threshold of its own; scores are of a few values, so that some are equal to one."""
        trace, dice = self.trace(13), np.random.default_rng(13)
        scores, gates = dice.integers(0, 9, (3, 2, 40)) / 8, dice.integers(0, 65, (3, 2, 40)) / 64
        pages = dice.integers(0, 9, (3, 2, 5)) / 8
        for name, values in (("external.x", scores), ("gate", gates), ("page_gate.x", pages)):
            trace.stored[name] = ("F32", values.astype(np.float32))
        for shape in ((3, 2), (3,)):
            table = dice.integers(0, 9, shape) / 8
            trace.stored["table.mine"] = ("F32", table.astype(np.float32))
            self.write(trace)
            least = np.broadcast_to(table.reshape((3, -1)), (3, 2)).ravel()
            for strict, over in ((False, np.greater_equal), (True, np.greater)):
                pick = f"at_least_table(mine, strict={str(strict).lower()})"
                for lane, kept in enumerate(ragged(self.by_spec(f"external(name=x) | sinks(2) | {pick}"))):
                    stays = over(scores.reshape(6, 40)[lane], least[lane])
                    stays[:2] = True
                    self.assertEqual(kept, np.flatnonzero(stays).tolist(), (shape, strict, lane))
                together = self.by_spec(f"external(name=x) | reduce_lanes(layer, max) | {pick}")
                for layer, kept in enumerate(ragged(together)):
                    self.assertEqual(kept, np.flatnonzero(over(scores[layer].max(axis=0), least[2 * layer])).tolist(), (shape, layer))
                for mode in ((), ("--mode", "decode", "--prefill", 9)):
                    found = self.by_spec(f"admit: write_gate | window(5) | {pick}", *mode)
                    lanes = [run_lane(over(gates.reshape(6, 40)[lane], least[lane]).tolist(), 5) for lane in range(6)]
                    self.assertEqual(ragged(found), [glob + local for glob, local, _ in lanes], (shape, strict, mode))
                found = self.by_spec(f"select: page_gates(x, page=8) | dense(1) | {pick}", "--mode", "select")
                for lane, read in enumerate(self.pages_of(found)):
                    stays = over(pages.reshape(6, 5)[lane], least[lane]) | (lane < 2)
                    stays[4] = True
                    self.assertEqual(read, np.flatnonzero(stays).tolist(), (shape, strict, lane))
        for spec, mode in (("external(name=x) | at_least_table(other)", ()), ("admit: write_gate | at_least_table(other)", ()),
                           ("select: page_gates(x, page=8) | at_least_table(table=other)", ("--mode", "select"))):
            self.fails(self.run_spec(spec, *mode), "tensor table.other = missing, but the pick reads it", spec=spec)
        self.fails(self.run_spec("knorm | at_least_table"), "at_least_table, but it says which table of the registry it reads")
        self.fails(self.run_spec("knorm | at_least_table(mine) | budget(9)"), "budget, but at_least_table keeps however many entries there are")

    @staticmethod
    def pages_of(found):
        offsets, ids = found["pages.offsets"][1], found["pages.ids"][1]
        return [ids[a:b] for a, b in zip(offsets, offsets[1:])]

    def test_the_last_chunk_of_locret_has_the_shares_of_its_group(self):
        """Of equally important layers each has the plain budget."""
        trace = self.trace(11)
        numbers = np.random.default_rng(11).integers(-96, 97, (3, 2, 40)) / 16
        trace.stored["birth.locret"] = ("F32", numbers.astype(np.float32))
        trace.stored["table.importance"] = ("F32", np.ones(3, np.float32))
        self.write(trace)
        plain = self.by_spec("locret(local=0) | budget(20)")
        shared = self.by_spec("locret(local=0) | budget(20, by=importance, table=importance)")
        self.assertEqual(ragged(shared), ragged(plain))

    def test_a_budget_of_what_was_seen(self):
        """While decoding it grows with the sequence: half of all tokens so far, by the newest position."""
        self.trace(10)
        found = self.by_spec("streaming_llm(sinks=1) | budget(ratio=0.5, by=seen)", "--mode", "decode", "--prefill", 8)
        for kept in ragged(found):
            self.assertEqual(kept, [0, *range(21, 40)])

    def test_layers_one_by_one_and_chunks(self):
        trace = self.trace(7)
        self.assertEqual(self.replay("knorm", "--mode", "layers", "--budget", 9), self.replay("knorm", "--budget", 9))
        found = self.replay("knorm", "--mode", "chunks", "--chunk", 13, "--budget", 9)
        norms = np.linalg.norm(np.asarray(trace.keys, np.float64), axis=-1).reshape(-1, 40)
        for lane, kept in enumerate(ragged(found)):
            held = []
            for end in (13, 26, 39, 40):
                held += range(held[-1] + 1 if held and end == 13 else max(0, end - 13 if end < 40 else 39), end)
                held = sorted(sorted(held, key=lambda e: (norms[lane, e], e))[:9])
            self.assertEqual(kept, held, lane)

    def test_lowest_one_is_of_engines(self):
        self.trace(8)
        self.fails(self.run_spec("knorm | budget(9) | lowest_one"), "lowest_one lists what is dropped")

    def test_a_wrong_spec_is_refused(self):
        trace = self.trace(5)
        for spec, mode, said in (
            ("admit: write_gate; evict: knorm | budget(8)", (), "one section is replayed: admit, select or evict"),
            ("admit: write_gate", ("--mode", "turns"), "an admission has the modes prefill and decode"),
            ("select: quest | budget(8)", (), "a selection has the mode select"),
            ("admit: write_gates", (), "did you mean write_gate?"),
            ("admit: write_gate | at_least(2)", (), "at_least.least = 2"),
            ("admit: head_table(table=none)", (), "tensor table.none = missing, but the admission reads it"),
            ("admit: carried(name=other)", (), "tensor birth.other = missing"),
            ("admit: kvzap(name=other)", (), "tensor birth.other = missing"),
            ("admit: kvzap | window(4)", (), "parse: column 16 = window, but kvzap has one of its own"),
            ("admit: write_gate", ("--layout", "dead_slot"), "of write_gate there are compact, lane_pages and mask"),
            ("admit: write_gate", ("--budget", 8), "--spec says the whole policy"),
            ("select: quest | budget(8) | dense(-1)", ("--mode", "select"), "dense"),
        ):
            self.fails(self.run_spec(spec, *mode), said, spec=spec, mode=mode)
        self.write(trace, without=("gate",))
        self.assertIn("tensor gate = missing, but write_gate admits by it", self.run_spec("admit: write_gate").stderr)


def load_tests(loader, _, __):
    """The tests of this file alone."""
    return unittest.TestSuite(Spec(name) for name in loader.getTestCaseNames(Spec) if name in vars(Spec))


if __name__ == "__main__":
    main()
