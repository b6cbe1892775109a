#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs kvreplay on small traces and compares every result with the methods written out plainly.

    kvreplay_test.py PROGRAM
"""

import json
import math
import random
import struct
import unittest

from program import Runs, called, listed
from traces import ragged, read, write


# The methods, plainly -------------------------------------------------------------------------------------------------------
def softmax_row(query, keys, visible):
    logits = [sum(a * b for a, b in zip(query, keys[j])) / math.sqrt(len(query)) for j in visible]
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return {j: w / sum(weights) for j, w in zip(visible, weights)}


def best(scores, candidates, count):
    return sorted(sorted(candidates, key=lambda j: (-scores[j], j))[: max(0, count)])


class Trace:
    def __init__(self, seed, layers=2, groups=2, heads=2, entries=24, dims=8):
        dice = random.Random(seed)
        self.layers, self.heads, self.group, self.entries, self.dims = layers, heads, groups, entries, dims
        row = lambda: [struct.unpack("<f", struct.pack("<f", dice.gauss(0, 1.5)))[0] for _ in range(dims)]
        rows = lambda count: [[[row() for _ in range(entries)] for _ in range(count)] for _ in range(layers)]
        self.keys, self.values, self.queries = rows(heads), rows(heads), rows(heads * groups)

    def tensors(self, dtype="F32"):
        return {"keys": (dtype, self.keys), "values": (dtype, self.values), "queries": (dtype, self.queries)}

    def lanes(self):
        return [(layer, head) for layer in range(self.layers) for head in range(self.heads)]

    def rows_of(self, layer, head):
        return self.queries[layer][head * self.group : (head + 1) * self.group]


def snapkv(trace, layer, head, budget, window, pool):
    n = trace.entries
    prefix = range(n - window)
    score = [0.0] * n
    for rows in trace.rows_of(layer, head):
        for i in range(n - window, n):
            for j, p in softmax_row(rows[i], trace.keys[layer][head], range(i + 1)).items():
                score[j] += p / trace.group
    half = pool // 2
    pooled = [max(score[max(0, j - half) : min(n - window, j + half + 1)]) for j in prefix]
    return best(pooled, list(prefix), budget - window) + list(range(n - window, n)), pooled


def h2o_decode(trace, layer, head, prefill, budget):
    """Real drop: mass is added over what is there, then the lightest outside the recent half go."""
    held, mass, events = [], {}, []

    def forward(fresh):
        held.extend(fresh)
        mass.update({j: 0.0 for j in fresh})
        for rows in trace.rows_of(layer, head):
            for i in fresh:
                for j, p in softmax_row(rows[i], trace.keys[layer][head], [j for j in held if j <= i]).items():
                    mass[j] += p

    def decide(step):
        if len(held) <= budget:
            return
        heavy = budget // 2
        recent = held[len(held) - (budget - heavy) :]
        kept = sorted(best(mass, [j for j in held if j not in recent], heavy) + recent)
        for j in [j for j in held if j not in kept]:
            events.append((step, j))
        held[:] = kept

    if prefill:
        forward(list(range(prefill)))
        decide(prefill - 1)
    for t in range(prefill, trace.entries):
        forward([t])
        decide(t)
    return held, events


def tova_decode(trace, layer, prefill, budget):
    held = []

    def decide():
        if len(held) <= budget:
            return
        score = {j: 0.0 for j in held}
        for head in range(trace.heads):
            for rows in trace.rows_of(layer, head):
                for j, p in softmax_row(rows[held[-1]], trace.keys[layer][head], held).items():
                    score[j] += p / (trace.heads * trace.group)
        held[:] = best(score, held, budget)

    if prefill:
        held.extend(range(prefill))
        decide()
    for t in range(prefill, trace.entries):
        held.append(t)
        decide()
    return held


# The tests ------------------------------------------------------------------------------------------------------------------
class Replay(Runs):
    def replay(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read(self.out), json.loads(done.stdout)

    def refused(self, text, *arguments):
        self.fails(self.run_program(*(arguments or ("--policy", "knorm", "--budget", 4))), text)

    def test_streaming_llm_keeps_sinks_and_the_newest(self):
        write(self.path, {"positions": ("I32", list(range(10)))})
        result, told = self.replay("--policy", "streaming_llm", "--set", "sinks=2", "--budget", "5")
        self.assertEqual(ragged(result), [[0, 1, 7, 8, 9]])
        self.assertEqual((told["entries"], told["logical_kept"], told["attended_length"]), (10, 5, 5))
        self.assertEqual(told["fields"]["sinks"], "2")

    def test_snapkv_keeps_the_window_and_the_pooled_best(self):
        for seed in range(6):
            trace = Trace(seed, groups=[1, 2, 4][seed % 3])
            write(self.path, trace.tensors())
            arguments = ("--policy", "snapkv", "--set", "window=4", "--set", "pool=max:3", "--budget", "9")
            result, _ = self.replay(*arguments)
            for s, (layer, head) in enumerate(trace.lanes()):
                kept, pooled = snapkv(trace, layer, head, 9, 4, 3)
                self.assertEqual(ragged(result)[s], kept)
                scores = result["scores"][1][s * 24 : (s + 1) * 24]
                for j, expected in enumerate(pooled):
                    self.assertAlmostEqual(scores[j], expected, delta=1e-5 * expected + 1e-7)
                self.assertTrue(all(x == -math.inf for x in scores[20:]))

    def test_recent_queries_alone_are_enough_for_a_window(self):
        trace = Trace(3)
        write(self.path, trace.tensors())
        arguments = ("--policy", "snapkv", "--set", "window=4", "--budget", "9")
        whole, _ = self.replay(*arguments)
        tensors = trace.tensors()
        tensors["recent_queries"] = ("F32", [[head[-6:] for head in layer] for layer in trace.queries])
        del tensors["queries"]
        write(self.path, tensors)
        self.assertEqual(ragged(self.replay(*arguments)[0]), ragged(whole))

    def test_h2o_and_tova_decode_over_what_is_left(self):
        for seed, prefill in ((1, 0), (2, 9), (3, 24)):
            trace = Trace(seed)
            write(self.path, trace.tensors())
            result, _ = self.replay("--policy", "h2o", "--budget", "7", "--mode", "decode", "--prefill", prefill)
            events = []
            for s, (layer, head) in enumerate(trace.lanes()):
                held, gone = h2o_decode(trace, layer, head, prefill, 7)
                self.assertEqual(ragged(result)[s], held)
                events += [(step, s, j) for step, j in gone]
            found = result["events"][1]
            self.assertEqual(sorted(events), list(zip(found[0::3], found[1::3], found[2::3])))
            result, _ = self.replay("--policy", "tova", "--budget", "6", "--mode", "decode", "--prefill", prefill)
            self.assertEqual(ragged(result), [tova_decode(trace, layer, prefill, 6) for layer in range(2)])

    def test_layouts_agree_on_the_keep_set_and_the_output(self):
        trace = Trace(5)
        write(self.path, trace.tensors())
        arguments = ("--policy", "h2o", "--granularity", "token", "--budget", "8", "--mode", "decode", "--prefill", "5", "--attend")
        first, _ = self.replay(*arguments)
        for layout in ("dead_slot", "mask", "lane_pages"):
            other, _ = self.replay(*arguments, "--layout", layout)
            self.assertEqual(ragged(other), ragged(first))
            for a, b in zip(first["output"][1], other["output"][1]):
                self.assertAlmostEqual(a, b, delta=1e-6)

    def test_attend_is_attention_over_what_was_kept(self):
        trace = Trace(6)
        write(self.path, trace.tensors())
        result, _ = self.replay("--policy", "knorm", "--budget", "6", "--attend")
        kept = ragged(result)
        for s, (layer, head) in enumerate(trace.lanes()):
            norms = [-math.sqrt(sum(x * x for x in key)) for key in trace.keys[layer][head]]
            self.assertEqual(kept[s], best(norms, list(range(24)), 6))
            for g, rows in enumerate(trace.rows_of(layer, head)):
                weights = softmax_row(rows[-1], trace.keys[layer][head], kept[s])
                for d in range(8):
                    expected = sum(w * trace.values[layer][head][j][d] for j, w in weights.items())
                    at = ((layer * 4 + head * 2 + g) * 8) + d
                    self.assertAlmostEqual(result["output"][1][at], expected, delta=1e-5)
        rows = [x for s, (layer, head) in enumerate(trace.lanes()) for j in kept[s] for x in trace.keys[layer][head][j]]
        self.assertEqual(result["keys"], ([len(rows) // 8, 8], rows))

    def test_budgets_ratios_and_pools(self):
        trace = Trace(7)
        write(self.path, trace.tensors())
        norms = {(s, j): -math.sqrt(sum(x * x for x in trace.keys[layer][head][j])) for s, (layer, head) in enumerate(trace.lanes()) for j in range(24)}
        result, _ = self.replay("--policy", "knorm", "--budget", "5", "--budget-scope", "layer")
        for layer in range(2):
            pool = [(s, j) for s in (2 * layer, 2 * layer + 1) for j in range(24)]
            kept = set(sorted(pool, key=lambda at: (-norms[at], at))[:10])
            for s in (2 * layer, 2 * layer + 1):
                self.assertEqual(ragged(result)[s], [j for j in range(24) if (s, j) in kept])
        result, _ = self.replay("--policy", "knorm", "--ratio", "0.9", "--rounding", "exact")
        self.assertEqual([len(kept) for kept in ragged(result)], [2] * 4)

    def test_a_floor_is_a_product_of_doubles_that_is_cut(self):
        write(self.path, {"external.u": ("F32", [[[1000.0 + j for j in range(200)], [float(j) for j in range(200)]]])})
        for budget, floor, weak in ((100, 0.29, 28), (100, 0.57, 56), (50, 0.58, 28), (50, 0.5, 25)):
            result, _ = self.replay("--policy", "external", "--set", "name=u", "--budget", budget, "--budget-scope", "layer", "--floor", floor)
            self.assertEqual([len(kept) for kept in ragged(result)], [2 * budget - weak, weak])

    def test_a_lane_that_loses_nothing_of_a_pool_was_ranked(self):
        write(self.path, {"external.u": ("F32", [[[5.0, 4.0, 3.0, math.nan], [math.nan, math.nan, math.nan, -2.0]]] * 2)})
        for scope in ("layer", "global"):
            result, told = self.replay("--policy", "external", "--set", "name=u", "--budget", 3, "--budget-scope", scope)
            self.assertEqual(sum(len(kept) for kept in ragged(result)), 12)
            scores = result["scores"][1]
            self.assertEqual((sum(math.isnan(x) for x in scores), told["nan_scores"]), (8, 8))
            self.assertEqual([x for x in scores if x == x], [5.0, 4.0, 3.0, -2.0] * 2)

    def test_what_arrives_after_the_last_decision_is_counted(self):
        trace = Trace(12)
        write(self.path, trace.tensors())
        for policy, prefill, kept in ((("snapkv", "--set", "window=2", "--budget", 6), 10, 6 + 14), (("full",), 10, 24), (("full",), 0, 24)):
            for layout in ("compact", "mask"):
                result, told = self.replay("--policy", *policy, "--mode", "decode", "--prefill", prefill, "--layout", layout)
                self.assertEqual([len(each) for each in ragged(result)], [kept] * 4)
                self.assertEqual((told["logical_kept"], told["attended_length"]), (4 * kept, 4 * (kept if layout == "compact" else 24)))

    def test_turns_decide_after_each(self):
        trace = Trace(8)
        write(self.path, {**trace.tensors(), "turn_end": ("I64", [10, 24])})
        result, _ = self.replay("--policy", "streaming_llm", "--set", "sinks=1", "--budget", "4", "--mode", "turns")
        self.assertEqual(ragged(result, "turn"), [[0, 7, 8, 9]] * 4 + [[0, 21, 22, 23]] * 4)

    def test_external_scores_follow_their_entries(self):
        dice = random.Random(9)
        scores = [dice.random() for _ in range(12)]
        write(self.path, {"external.surprise": ("F64", scores), "positions": ("I64", [2 * i for i in range(12)])})
        for mode in ("prefill", "decode"):
            result, _ = self.replay("--policy", "external", "--set", "name=surprise", "--budget", "4", "--mode", mode)
            self.assertEqual(ragged(result), [best(scores, list(range(12)), 4)])
        self.refused("tensor external.other = missing", "--policy", "external", "--set", "name=other", "--budget", "4")

    def test_other_types_and_nan(self):
        trace = Trace(10)
        for dtype in ("F16", "BF16", "F64"):
            write(self.path, trace.tensors(dtype))
            self.replay("--policy", "snapkv", "--set", "window=4", "--budget", "9")
        trace.keys[1][0][3][0] = math.nan
        write(self.path, trace.tensors())
        result, told = self.replay("--policy", "snapkv", "--set", "window=4", "--budget", "9")
        self.assertEqual(ragged(result)[2], [0, 1, 2, 3, 4, 20, 21, 22, 23])
        self.assertEqual(told["nan_scores"], 20)

    def test_errors_name_the_option_that_was_typed(self):
        """A spec is made of the options, but nobody has typed it: its columns mean nothing to them."""
        write(self.path, Trace(1).tensors())
        snapkv = ("--policy", "snapkv", "--budget", "4")
        for expected, arguments in (
                ("--set window = abc, but snapkv's window is an integer", (*snapkv, "--set", "window=abc")),
                ("--set window = -1, but at least one row observes", (*snapkv, "--set", "window=-1")),
                ("--set pool = max:4, but a pool has an odd width", (*snapkv, "--set", "window=2", "--set", "pool=max:4")),
                ("--set pool = best:7, but snapkv's pool is", (*snapkv, "--set", "pool=best:7", "--set", "window=2")),
                ("--set group = last, but query heads have no order", (*snapkv, "--set", "group=last")),
                ("--set windw = 3, but snapkv has the fields window, pool, rows and group; did you mean window?", (*snapkv, "--set", "windw=3")),
                ("--set window = 4, but that field was given before", (*snapkv, "--set", "window=3", "--set", "window=4")),
                ("--set window = 3), but a value has none of the characters , ( ) | =", (*snapkv, "--set", "window=3)")),
                ("--set window = 3) | sinks(40, but a value has none of the characters , ( ) | =", (*snapkv, "--set", "window=3) | sinks(40")),
                ("--set window = 3, pool=none, but a value has none of the characters , ( ) | =", (*snapkv, "--set", "window=3, pool=none")),
                ("--set pool = none), heavy(x=3, but a value has none of the characters , ( ) | =", (*snapkv, "--set", "pool=none), heavy(x=3")),
                ("--set = window, x=3, but it is FIELD=VALUE", (*snapkv, "--set", "window, x=3")),
                ("--ratio = 0.5, scope=layer, but a value has none of the characters , ( ) | =", ("--policy", "knorm", "--ratio", "0.5, scope=layer")),
                ("--rounding = exact) | sinks(4, but a value has none", ("--policy", "knorm", "--ratio", "0.5", "--rounding", "exact) | sinks(4")),
                ("--budget-scope = layer, floor=0.5, but a value has none", ("--policy", "knorm", "--budget", "4", "--budget-scope", "layer, floor=0.5")),
                ("--floor = 0.5) | everything | full_buffer(1, but a value has none", ("--policy", "knorm", "--budget", "4", "--budget-scope", "layer", "--floor", "0.5) | everything | full_buffer(1")),
                ("--reduce = max) | put_first(3, but a value has none", ("--policy", "knorm", "--budget", "4", "--reduce", "max) | put_first(3")),
                ("--set window = 3=4, but a value has none of the characters , ( ) | =", (*snapkv, "--set", "window=3=4")),
                ("--set window = , but snapkv's window is an integer", (*snapkv, "--set", "window=")),
                ("--set = =3, but it is FIELD=VALUE", (*snapkv, "--set", "=3")),
                ("--set = window, but it is FIELD=VALUE", (*snapkv, "--set", "window")),
                ("--set x = 1, but knorm has no fields", ("--policy", "knorm", "--budget", "4", "--set", "x=1")),
                ("--set buffer = 0, but at the budget nothing moves", ("--policy", "trim_kv", "--budget", "4", "--set", "window=1", "--set", " buffer=0")),
                ("--ratio = x, but budget's ratio is a number", ("--policy", "knorm", "--ratio", "x")),
                ("--ratio = 1.5, but a part is dropped, 0 to 1", ("--policy", "knorm", "--ratio", "1.5")),
                ("--floor = 2, but a floor is a part of the budget, 0 to 1", ("--policy", "knorm", "--budget", "4", "--budget-scope", "layer", "--floor", "2")),
                ("--floor = 0.5, but a lane that shares with nobody has no floor", ("--policy", "knorm", "--budget", "4", "--floor", "0.5")),
                ("--budget-scope = all, but budget's scope is lane, layer or global", ("--policy", "knorm", "--budget", "4", "--budget-scope", "all")),
                ("--rounding = kvpress, but only a ratio is rounded", ("--policy", "knorm", "--budget", "4", "--rounding", "kvpress")),
                ("--rounding = up, but budget's rounding is at_least_one, exact, kvpress or kvpress_0_5_4", ("--policy", "knorm", "--ratio", "0.5", "--rounding", "up")),
                ("--reduce = last, but lanes have no order", ("--policy", "knorm", "--budget", "4", "--granularity", "token", "--reduce", "last")),
                ("--reduce = most, but reduce_lanes's how is sum, mean, max or last", ("--policy", "knorm", "--budget", "4", "--reduce", "most")),
                ("--granularity = lane, but the scorer decides by layer already, which is coarser", ("--policy", "tova", "--budget", "4", "--granularity", "lane")),
                ("--protect = 8:9, but at most eight protections are joined",
                 ("--policy", "knorm", "--budget", "4", *(part for i in range(9) for part in ("--protect", f"{i}:{i + 1}")))),
                ("--set page = abc, but quest's page is an integer", ("--policy", "quest", "--mode", "select", "--budget", "4", "--set", "page=abc")),
                ("--set windw = 1, but local_attention has the fields window and sinks; did you mean window?", ("--policy", "local_attention", "--set", "windw=1")),
                ("--set sinks = 4, but that field was given before", ("--policy", "local_attention", "--set", "sinks=2", "--set", "sinks=4"))):
            done = self.run_program(*arguments)
            self.fails(done, arguments=arguments)
            with self.subTest(arguments=arguments, said=done.stderr):
                self.assertTrue(done.stderr.startswith("kvreplay: " + expected))
                self.assertNotIn("column", done.stderr)

    def test_listing_and_description(self):
        names = listed()
        self.assertLessEqual({"full", "streaming_llm", "snapkv", "h2o", "tova", "knorm", "random", "external"}, set(names))
        self.assertEqual([(f["name"], f["default"]) for f in names["snapkv"]["fields"]][:2], [("window", "32"), ("pool", "max:7")])
        lines = called("--list").stdout.splitlines()
        for name, one in names.items():
            at = lines.index(name)
            self.assertEqual(lines[at + 1].split("; modes ")[1], ", ".join(one["modes"]))
            self.assertEqual(lines[at + 2 : at + 2 + len(one["fields"])], [f'  {f["name"]}={f["default"]} ({f["type"]})' for f in one["fields"]])
        write(self.path, Trace(1).tensors(), {"model": "none"})
        told = json.loads(called(self.path, "--describe", "--json").stdout)
        self.assertEqual((told["layers"], told["kv_heads"], told["entries"]), (2, 2, 24))

    def test_bad_traces_are_refused_in_one_line(self):
        good = Trace(1).tensors()

        def broken(text, tensors=None, edit=None, arguments=()):
            write(self.path, tensors or good, edit=edit)
            self.refused(text, *arguments)

        for name in ("keys", "values", "queries"):
            broken(f"tensor {name}", {**good, name: ("F32", good[name][1][0])})
            broken(f"tensor {name}", {**good, name: ("I32", [[[[1] * 8] * 24] * len(good[name][1][0])] * 2)})
            broken(f"tensor {name}", {**good, name: ("F32", [[[[1.0] * 8] * 23] * len(good[name][1][0])] * 2)})
        broken("tensor positions", {**good, "positions": ("I32", [0] * 24)})
        broken("tensor positions", {**good, "positions": ("I64", [-1] + list(range(23)))})
        broken("tensor positions", {**good, "positions": ("F32", [float(i) for i in range(24)])})
        broken("tensor turn_end", {**good, "turn_end": ("I32", [30])})
        broken("tensor queries", {**good, "queries": ("F32", [[[[1.0] * 8] * 24] * 3] * 2)})
        broken("tensor attention_mass", {**good, "attention_mass": ("F32", [[[1.0] * 24] * 3] * 2)})
        broken("data_offsets", edit=lambda header: header["values"].update(data_offsets=header["keys"]["data_offsets"]))
        broken("shape", edit=lambda header: header["keys"].update(shape=[2, 2, 24, 9]))
        broken("dtype", edit=lambda header: header["keys"].update(dtype="F8"))
        self.path.write_bytes(self.path.read_bytes()[:100])
        self.refused("header length")
        self.path.write_bytes(struct.pack("<Q", 4 << 30) + b"{}")
        self.refused("header length")
        self.path.unlink()
        self.refused("cannot be opened")
        broken("needs signal keys", {"positions": ("I32", list(range(9)))})
        broken("needs signal queries", {"keys": good["keys"]}, arguments=("--policy", "h2o", "--budget", "4"))
        broken("did you mean knorm", arguments=("--policy", "knrm", "--budget", "4"))
        broken("--budget = missing", arguments=("--policy", "knorm"))
        broken("--layout = dead_slot", arguments=("--policy", "knorm", "--budget", "4", "--layout", "dead_slot"))
        broken("--layout = compact_rerotated", arguments=("--policy", "knorm", "--budget", "4", "--budget-scope", "layer", "--layout", "compact_rerotated"))
        broken("--granularity = lane", arguments=("--policy", "tova", "--budget", "4", "--granularity", "lane"))
        broken("--granularity = row", arguments=("--policy", "knorm", "--budget", "4", "--granularity", "row"))
        for option, value in (("--budget", "-1"), ("--sinks", "x"), ("--recent", "-2"), ("--protect", "5:3"), ("--protect", "a:b")):
            budget = () if option == "--budget" else ("--budget", "4")
            broken(f"{option} = {value}", arguments=("--policy", "knorm", *budget, option, value))
        broken("tensor positions = 2147483647", {**good, "positions": ("I64", [*range(23), 2**31 - 1])})
        broken("--mode", arguments=("--policy", "knorm", "--budget", "4", "--mode", "walk"))
        broken("attention_mass", {**good, "attention_mass": ("F32", [[[1.0] * 24] * 2] * 2)},
               arguments=("--policy", "h2o", "--budget", "4", "--mode", "decode"))


if __name__ == "__main__":
    unittest.main()
