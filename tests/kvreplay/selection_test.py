#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `kvreplay --mode select` with Quest written out, and with pages chosen by given numbers.

    selection_test.py PROGRAM

Keys and queries are small multiples of 1/8, so that bounds are exact in float32 and equal scores are equal.
Needs numpy; without it only the examples by hand run, and it says so.
"""

import unittest

from admission_test import Small
from program import Runs, listed
from reference_test import np
from traces import main, ragged, write_arrays


# A lane's pages, by hand ------------------------------------------------------------------------------------------------------
def bounds(keys, page):
    return [([min(channel) for channel in zip(*keys[a : a + page])], [max(channel) for channel in zip(*keys[a : a + page])])
            for a in range(0, len(keys), page)]


def page_scores(keys, queries, page):
    """The most that any query of the group can make of a page: sum of max(q low, q high)."""
    return [max(sum(max(q * a, q * b) for q, a, b in zip(query, low, high)) for query in queries) for low, high in bounds(keys, page)]


def choose(scores, budget, page, dense=False):
    """The last page and the best others, max(1, budget div page) in all; of equal scores the lower page."""
    count = len(scores)
    if dense:
        return list(range(count))
    others = sorted(range(count - 1), key=lambda p: (-scores[p], p))
    return sorted([*others[: max(0, budget // page - 1)], count - 1])


def chooser(layer, dense, inherit):
    """The layer whose pages a layer reads: behind the dense ones, the first of every `inherit` layers."""
    return layer if layer < dense else max(range(dense, layer + 1, inherit))


def entries(pages, page, count):
    return [j for p in pages for j in range(p * page, min(count, (p + 1) * page))]


class Model(unittest.TestCase):
    """What the program is compared with, by hand."""

    def test_the_example(self):
        keys = [(1, -1), (0, 2), (-2, 0), (3, 1)]
        self.assertEqual(bounds(keys, 2), [([0, -1], [1, 2]), ([-2, 0], [3, 1])])
        self.assertEqual(page_scores(keys, [(1, -1)], 2), [2, 3])
        self.assertEqual(choose([2, 3], 2, 2), [1])
        self.assertEqual(page_scores(keys, [(1, -1), (-1, 0)], 2), [2, 3])
        self.assertEqual(page_scores(keys[:3], [(-1, 1)], 2), [2, 2])

    def test_choices(self):
        scores = [1, 4, 4, 0, 4, 2]
        for budget, chosen in ((0, [5]), (7, [5]), (8, [1, 5]), (12, [1, 2, 5]), (15, [1, 2, 5]), (16, [1, 2, 4, 5]), (99, [0, 1, 2, 3, 4, 5])):
            self.assertEqual(choose(scores, budget, 4), chosen)
        self.assertEqual(choose([0, 0, 0], 4, 4, dense=True), [0, 1, 2])
        self.assertEqual(entries([0, 2], 4, 10), [0, 1, 2, 3, 8, 9])
        self.assertEqual([chooser(layer, 2, 3) for layer in range(9)], [0, 1, 2, 2, 2, 5, 5, 5, 8])
        self.assertEqual([chooser(layer, 0, 1) for layer in range(4)], [0, 1, 2, 3])


class Selecting(Runs):
    """What the tests of all selections do with the program."""

    policy = None

    def write(self, trace, names=("keys", "values", "queries", "positions"), **more):
        write_arrays(self.path, {**{name: one for name, one in trace.stored.items() if name in names}, **more})

    def run_program(self, *arguments, policy=None, mode="select", **fields):
        return super().run_program("--policy", policy or self.policy, "--mode", mode, *arguments, **fields)

    def replay(self, *arguments, **fields):
        self.attends = "--attend" in arguments
        return super().replay(*arguments, **fields)

    def by_spec(self, spec, *arguments):
        return self.result_of(Runs.run_program(self, "--spec", spec, "--mode", "select", *arguments), spec)

    def pages(self, result):
        offsets, ids = result["pages.offsets"][1], result["pages.ids"][1]
        return [ids[a:b] for a, b in zip(offsets, offsets[1:])]


@unittest.skipIf(np is None, "there is no numpy")
class Selection(Selecting):
    policy = "quest"

    def same(self, trace, result, budget, page, dense_layers):
        scores, chosen = [], []
        for layer, head in trace.lanes():
            queries = trace.queries[layer, head * trace.group : (head + 1) * trace.group, -1]
            scores.append(page_scores(trace.keys[layer, head].tolist(), queries.tolist(), page))
            chosen.append(choose(scores[-1], budget, page, layer < dense_layers))
        self.assertEqual(self.pages(result), chosen)
        kept = [entries(pages, page, trace.n) for pages in chosen]
        self.assertEqual(ragged(result), kept)
        self.assertEqual(self.told["attended_length"], sum(map(len, kept)))
        if max(map(len, chosen)) < len(scores[0]) or dense_layers == 0:
            self.same_scores(trace, result, scores, dense_layers)
        self.assertEqual("output" in result, self.attends)
        if self.attends:
            found = np.array(result["output"][1]).reshape(result["output"][0])
            self.assertEqual(found.shape[:2], (trace.layers, trace.kv_heads * trace.group))
            np.testing.assert_allclose(found.reshape(-1, found.shape[2]), trace.attended(kept), rtol=1e-5, atol=1e-6)

    def same_scores(self, trace, result, scores, dense_layers):
        """Of the pages that had to compete: not those of dense layers, and not the last."""
        ranked = [s for s, (layer, _) in enumerate(trace.lanes()) if layer >= dense_layers]
        if not ranked or len(scores[0]) == 1:
            self.assertNotIn("scores", result, "nothing was ranked")
            return
        self.assertEqual(result["scores"][0], [trace.segments, len(scores[0])])
        expected = np.full((trace.segments, len(scores[0])), -np.inf)
        expected[ranked, :-1] = np.array(scores)[ranked, :-1]
        np.testing.assert_array_equal(np.array(result["scores"][1]).reshape(expected.shape), expected)

    def test_the_example(self):
        trace = Small(0, 4, layers=1, kv_heads=1)
        trace.group, trace.d = 1, 2
        trace.put("keys", np.array([[[[1, -1], [0, 2], [-2, 0], [3, 1]]]], float), "F32")
        trace.put("queries", np.array([[[[9, 9], [9, 9], [9, 9], [1, -1]]]], float), "F32")
        trace.put("values", np.arange(4.0).reshape(1, 1, 4, 1), "F32")
        self.write(trace)
        result = self.replay("--budget", 2, page=2, dense_layers=0)
        self.assertEqual((self.pages(result), ragged(result)), ([[1]], [[2, 3]]))
        self.assertEqual(result["scores"][0], [1, 2])
        self.assertEqual(result["scores"][1], [2.0, -np.inf])

    def test_small_traces_in_every_type(self):
        for seed, (n, page, budget, dense) in enumerate(((40, 4, 16, 1), (41, 4, 12, 0), (17, 16, 16, 2), (16, 16, 16, 0), (33, 8, 20, 2),
                                                         (7, 1, 3, 0), (30, 7, 15, 1), (64, 2, 9, 2), (5, 8, 16, 0), (100, 4, 3, 1))):
            trace = Small(seed, n, ("F32", "F16", "BF16", "F64")[seed % 4])
            self.write(trace)
            result = self.replay("--budget", budget, "--attend", "--threads", 1 + seed % 3, page=page, dense_layers=dense)
            if budget // page < -(-n // page):
                self.same(trace, result, budget, page, dense)
            else:  # everything is read: whether it was ranked first does not matter
                self.assertEqual(self.pages(result), [list(range(-(-n // page)))] * trace.segments)
                self.assertEqual(ragged(result), [list(range(n))] * trace.segments)

    def test_ties_go_to_the_lower_page(self):
        trace = Small(20, 48, layers=3, kv_heads=2)
        trace.put("keys", np.sign(trace.keys), "F32")
        trace.put("queries", np.sign(trace.queries), "F32")
        self.write(trace)
        for budget in (4, 16, 28, 47):
            self.same(trace, self.replay("--budget", budget, page=4, dense_layers=1), budget, 4, 1)

    def test_threads_change_nothing(self):
        self.write(Small(21, 60, layers=3, kv_heads=3))
        self.replay_in_threads((1, 3), "--budget", 24, "--attend", page=4, dense_layers=1)

    def test_the_maximum_is_over_the_group_and_a_product_has_a_sign(self):
        """One head wants page 0, the other page 2; a sum or a mean over the group would prefer page 1; its largest |k| is page 3."""
        trace = Small(22, 5, layers=1, kv_heads=1)
        trace.group, trace.d = 2, 2
        trace.put("keys", np.array([[[[4, -1], [2, 2], [-1, 4], [-8, -8], [0, 0]]]], float), "F32")
        trace.put("queries", np.array([[[[0, 0]] * 4 + [[1, 0]], [[0, 0]] * 4 + [[0, 1]]]], float), "F32")
        trace.put("values", np.ones((1, 1, 5, 1)), "F32")
        self.write(trace)
        for group in ({}, {"group": "max"}):
            result = self.replay("--budget", 3, page=1, dense_layers=0, **group)
            self.assertEqual(self.pages(result), [[0, 2, 4]])
            self.assertEqual(result["scores"][1], [4.0, 2.0, 4.0, -8.0, -np.inf])

    def test_pages_of_one_entry_are_the_best_entries(self):
        trace = Small(23, 30, layers=1)
        self.write(trace)
        for s, kept in enumerate(ragged(self.replay("--budget", 8, page=1, dense_layers=0))):
            products = (trace.queries[0, s * trace.group : (s + 1) * trace.group, -1] @ trace.keys[0, s].T).max(axis=0)
            self.assertEqual(kept, sorted([*sorted(range(29), key=lambda j: (-products[j], j))[:7], 29]))

    def test_defaults(self):
        trace = Small(24, 100, layers=3, kv_heads=1)
        self.write(trace)
        self.same(trace, self.replay("--budget", 48), 48, 16, 2)
        self.assertEqual(self.told["fields"], {"page": "16", "dense_layers": "2", "group": "max"})

    def test_dense_layers_rank_nothing(self):
        trace = Small(25, 40, layers=2)
        self.write(trace)
        result = self.replay("--budget", 8, "--attend", page=4)
        self.assertEqual(ragged(result), [list(range(40))] * trace.segments)
        self.assertNotIn("scores", result)
        np.testing.assert_allclose(np.array(result["output"][1]).reshape(2 * trace.kv_heads * trace.group, -1),
                                   trace.attended([list(range(40))] * trace.segments), rtol=1e-5, atol=1e-6)

    def test_positions_that_jump_change_no_page(self):
        trace = Small(26, 37, gap=100)
        self.write(trace)
        self.same(trace, self.replay("--budget", 12, "--attend", page=4, dense_layers=0), 12, 4, 0)

    def test_the_last_query_row_is_all_that_is_asked_for(self):
        trace = Small(27, 40)
        self.write(trace)
        whole = self.replay("--budget", 12, "--attend", page=4, dense_layers=0)
        dtype, rows = trace.stored["queries"]
        self.write(trace, ("keys", "values"), recent_queries=(dtype, np.ascontiguousarray(rows[:, :, -3:])))
        self.assertEqual(self.replay("--budget", 12, "--attend", page=4, dense_layers=0), whole)
        other = rows.copy()
        other[:, :, :-1] = 0
        self.write(trace, ("keys", "values"), queries=(dtype, other))
        self.assertEqual(self.replay("--budget", 12, "--attend", page=4, dense_layers=0), whole)

    def test_a_page_with_a_key_that_is_nan_is_not_chosen(self):
        trace = Small(28, 20, layers=1, kv_heads=1)
        clean = trace.keys.copy()
        trace.keys[0, 0, 5] = np.nan
        trace.put("keys", trace.keys, "F32")
        self.write(trace)
        chosen = self.pages(self.replay("--budget", 16, page=4, dense_layers=0))[0]
        self.assertEqual(chosen, [0, 2, 3, 4])
        self.assertEqual(self.told["nan_scores"], 1)
        trace.put("keys", clean, "F32")
        self.write(trace)
        self.replay("--budget", 16, page=4, dense_layers=0)
        self.assertEqual(self.told["nan_scores"], 0)

    def test_layers_that_inherit_read_the_pages_of_the_layer_that_chooses(self):
        n, page = 61, 4
        trace = Small(40, n, layers=7, kv_heads=2)
        self.write(trace)
        scores = [page_scores(trace.keys[layer, head].tolist(), trace.queries[layer, head * trace.group : (head + 1) * trace.group, -1].tolist(), page)
                  for layer, head in trace.lanes()]
        for dense, inherit, budget, threads in ((0, 2, 16, 1), (1, 3, 12, 2), (2, 4, 20, 1), (2, 9, 8, 3), (1, 1, 16, 1), (7, 2, 8, 1)):
            result = self.by_spec(f"select: quest | page({page}) | dense({dense}) | inherit({inherit}) | budget({budget})", "--attend", "--threads", threads)
            from_lane = [chooser(layer, dense, inherit) * trace.kv_heads + head for layer, head in trace.lanes()]
            expected = [choose(scores[from_lane[lane]], budget, page, layer < dense) for lane, (layer, _) in enumerate(trace.lanes())]
            self.assertEqual(self.pages(result), expected, (dense, inherit))
            kept = [entries(pages, page, n) for pages in expected]
            self.assertEqual(ragged(result), kept)
            found = np.array(result["output"][1]).reshape(-1, result["output"][0][2])
            np.testing.assert_allclose(found, trace.attended(kept), rtol=1e-5, atol=1e-6)
            if dense == 7:
                continue
            wanted = np.full((trace.segments, len(scores[0])), -np.inf)
            for lane, (layer, _) in enumerate(trace.lanes()):
                if layer >= dense:
                    wanted[lane, :-1] = scores[from_lane[lane]][:-1]
            np.testing.assert_array_equal(np.array(result["scores"][1]).reshape(wanted.shape), wanted)

    def test_inherit_is_refused_where_it_means_nothing(self):
        self.write(Small(41, 12))
        for spec, said in (("select: quest | inherit(0) | budget(8)", "column 17: inherit = 0, but"),
                           ("select: quest | inherit(2) | inherit(3) | budget(8)", "column 30 = inherit, but there is one before, at column 17"),
                           ("select: quest | inherit(x) | budget(8)", "inherit's layers is an integer"),
                           ("evict: knorm | inherit(2)", "column 16 = inherit, but")):
            mode = ("--mode", "select") if spec.startswith("select") else ()
            self.fails(Runs.run_program(self, "--spec", spec, *mode), said, spec=spec)

    def test_bad_input(self):
        trace = Small(29, 12)
        self.write(trace, trace.stored)
        for mode in ("prefill", "decode"):
            self.refused(mode, "--budget", 8, mode=mode)
        for page in (0, -1, "x"):
            self.refused("page", "--budget", 8, page=page)
        self.refused("dense_layers", "--budget", 8, dense_layers=-1)
        self.refused("group", "--budget", 8, group="median")
        self.refused("pages", "--budget", 8, pages=4)
        self.refused("budget", "--budget", -1)
        for policy in ("snapkv", "wg_kv", "streaming_llm"):
            self.refused("select", "--budget", 8, policy=policy)
        self.write(trace, ("keys", "values"))
        self.refused("quer", "--budget", 8)
        self.write(trace, ("values", "queries"))
        self.refused("keys", "--budget", 8)

    def test_the_list_names_fields_and_modes(self):
        found = listed()["quest"]
        self.assertEqual({one["name"]: one["default"] for one in found["fields"]}, {"page": "16", "dense_layers": "2", "group": "max"})
        self.assertEqual(found["modes"], ["select"])


@unittest.skipIf(np is None, "there is no numpy")
class Gates(Selecting):
    """Pages by the numbers of a tensor: SeerAttention-R, MoBA, NSA, and with pages of one entry DSA."""

    policy = "page_gates"

    def gated(self, seed, n, page, dtype="F32", name="page_gates", **shape):
        trace = Small(seed, n, **shape)
        pages = -(-n // page)
        self.gates = np.random.default_rng(seed).integers(-8, 9, (trace.layers, trace.kv_heads, pages)) / 8
        trace.put(f"page_gate.{name}", self.gates, dtype)
        self.write(trace, trace.stored)
        return trace

    def expected(self, trace, budget, page, dense):
        return [choose(self.gates[layer, head].tolist(), budget, page, layer < dense) for layer, head in trace.lanes()]

    def test_the_example(self):
        trace = self.gated(0, 10, 4, layers=1, kv_heads=1)
        trace.put("page_gate.page_gates", np.array([[[.25, .5, .125]]]), "F32")
        self.write(trace, trace.stored)
        result = self.replay("--budget", 8, page=4)
        self.assertEqual((self.pages(result), ragged(result)), ([[1, 2]], [[4, 5, 6, 7, 8, 9]]))
        self.assertEqual(result["scores"], ([1, 3], [.25, .5, -np.inf]))

    def test_small_traces_in_every_type(self):
        for seed, (n, page, budget, dense) in enumerate(((40, 4, 16, 1), (41, 4, 12, 0), (33, 8, 20, 2), (7, 1, 3, 0), (64, 2, 9, 2), (100, 4, 3, 1), (130, 64, 64, 0))):
            trace = self.gated(seed, n, page, ("F32", "F16", "BF16", "F64")[seed % 4], name="mine")
            result = self.replay("--budget", budget, "--attend", "--threads", 1 + seed % 3, name="mine", page=page, dense_layers=dense)
            expected = self.expected(trace, budget, page, dense)
            self.assertEqual(self.pages(result), expected)
            kept = [entries(pages, page, n) for pages in expected]
            self.assertEqual(ragged(result), kept)
            found = np.array(result["output"][1]).reshape(-1, result["output"][0][2])
            np.testing.assert_allclose(found, trace.attended(kept), rtol=1e-5, atol=1e-6)

    def test_ties_go_to_the_lower_page(self):
        trace = self.gated(20, 48, 4, layers=3, kv_heads=2)
        for budget in (4, 16, 28, 47):
            self.assertEqual(self.pages(self.replay("--budget", budget, page=4, dense_layers=1)), self.expected(trace, budget, 4, 1))

    def test_threads_change_nothing(self):
        self.gated(21, 60, 4, layers=3, kv_heads=3)
        self.replay_in_threads((1, 3), "--budget", 24, "--attend", page=4)

    def test_pages_of_one_entry_are_the_best_entries(self):
        trace = self.gated(23, 30, 1, layers=2)
        self.assertEqual(ragged(self.replay("--budget", 8, page=1)), self.expected(trace, 8, 1, 0))

    def test_a_page_with_infinity_is_always_read(self):
        trace = self.gated(24, 40, 4, layers=1, kv_heads=1)
        self.gates[0, 0, 0] = np.inf
        trace.put("page_gate.page_gates", self.gates, "F32")
        self.write(trace, trace.stored)
        self.assertEqual(self.pages(self.replay("--budget", 8, page=4)), [[0, 9]])

    def test_a_spec_and_a_ratio(self):
        trace = self.gated(25, 100, 64, name="seer")
        by_name = self.replay("--budget", 64, name="seer", page=64, dense_layers=1)
        self.assertEqual(self.by_spec("select: page_gates(seer, page=64) | budget(64) | dense(1)"), by_name)
        trace = self.gated(26, 64, 4)
        self.assertEqual(self.pages(self.replay("--ratio", .5, page=4)), self.expected(trace, 32, 4, 0))

    def test_a_threshold_and_protected_pages(self):
        n, page = 58, 4
        trace = self.gated(32, n, page, name="mine", layers=3)
        gates = self.gates.reshape(-1, self.gates.shape[-1])
        last = gates.shape[1] - 1
        protected = {"": [], " | sinks(5)": [0, 1], " | recent(3)": [last - 1, last], " | span(9, 13)": [2, 3]}
        for text, forced in protected.items():
            for least in (-1e9, 0.25, 1e9):
                done = self.by_spec(f"select: page_gates(mine, page={page}) | at_least({least}){text} | dense(1)")
                expected = [sorted({p for p in range(last + 1) if lane < trace.kv_heads or gates[lane, p] >= least or p == last or p in forced})
                            for lane in range(len(gates))]
                self.assertEqual(self.pages(done), expected, (text, least))
            budget = 6 * page
            done = self.by_spec(f"select: page_gates(mine, page={page}) | budget({budget}){text} | dense(0)")
            for lane, pages in enumerate(self.pages(done)):
                always = sorted({*forced, last})
                others = sorted((p for p in range(last + 1) if p not in always), key=lambda p: (-gates[lane, p], p))
                self.assertEqual(pages, sorted([*always, *others[:6 - len(always)]]), (text, lane))

    def test_defaults(self):
        trace = self.gated(27, 200, 64)
        self.assertEqual(self.pages(self.replay("--budget", 128)), self.expected(trace, 128, 64, 0))
        self.assertEqual(self.told["fields"], {"name": "page_gates", "page": "64", "dense_layers": "0"})

    def test_bad_input(self):
        self.gated(29, 12, 4)
        self.refused("tensor page_gate.other = missing", "--budget", 8, name="other", page=4)
        self.refused("tensor page_gate.page_gates = 3 pages, but 12 entries are 4 pages of 3", "--budget", 8, page=3)
        self.refused("--set page", "--budget", 8, page=0)
        self.refused("dense_layers", "--budget", 8, page=4, dense_layers=-1)
        self.refused("--budget", page=4)
        for mode in ("prefill", "decode"):
            self.refused("the mode select", "--budget", 8, mode=mode)
        trace = Small(30, 12)
        trace.put("page_gate.page_gates", np.zeros((trace.layers, trace.kv_heads + 1, 3)), "F32")
        self.write(trace, trace.stored)
        self.refused("page_gate.page_gates", "--budget", 8, page=4)

    def test_without_keys(self):
        trace = self.gated(31, 40, 4)
        whole = self.pages(self.replay("--budget", 12, page=4))
        self.write(trace, ("page_gate.page_gates",), positions=("I32", np.arange(40, dtype=np.int32)))
        self.assertEqual(self.pages(self.replay("--budget", 12, page=4)), whole)

    def test_the_list_names_fields_and_modes(self):
        found = listed()["page_gates"]
        self.assertEqual({one["name"]: one["default"] for one in found["fields"]}, {"name": "page_gates", "page": "64", "dense_layers": "0"})
        self.assertEqual((found["modes"], found["signals"]), (["select"], ["page_gate.NAME"]))


if __name__ == "__main__":
    main()
