#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups of layers: a trace with `layer_group` is replayed as one trace for each group, and as the methods say.

    groups_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import json
import unittest

from program import Runs, called
from reference_test import Trace, as_dtype, np
from traces import ragged, read, write_arrays

GROUPS = [0, 1, 0, 0, 2, 1]  # groups 0 and 1 are not adjacent, and group 2 is one layer
LAYERS = len(GROUPS)


def members(group):
    return [layer for layer, each in enumerate(GROUPS) if each == group]


@unittest.skipIf(np is None, "there is no numpy")
class Groups(Runs):
    def setUp(self):
        super().setUp()
        self.trace = Trace(7, layers=LAYERS, query_heads=4, kv_heads=2, entries=120, dims=8, value_dims=8)
        self.dice = np.random.default_rng(8)

    def tensors(self, dtype="F32", **more):
        """The trace's tensors, of which those over the layers have them first."""
        trace = self.trace if dtype == "F32" else Trace(7, dtype, LAYERS, 4, 2, 120, 8, 8)
        made = dict(trace.stored)
        for name, heads in (("log_beta", 2), ("gate", 2), ("external.mine", 2)):
            values = self.dice.random((LAYERS, heads, trace.n))
            made[name] = (dtype, as_dtype(values - 1 if name == "log_beta" else values, dtype)[0])
        made["sink_logits"] = ("F32", self.dice.normal(size=(LAYERS, 4)).astype(np.float32))
        made["turn_end"] = ("I32", np.array([50, 80, 120], np.int32))
        return {**made, **more}

    def write(self, tensors, name="all", layers=None):
        """Writes a trace; of some layers, these alone."""
        path = self.folder / f"{name}.safetensors"
        if layers is None:
            tensors = {**tensors, "layer_group": ("I32", np.array(GROUPS, np.int32))}
        else:
            axis = lambda name, each: 1 if name.startswith("table.") and each[1].ndim == 3 else 0
            cut = lambda name, each: (each[0], np.ascontiguousarray(np.take(each[1], layers, axis(name, each))))
            tensors = {n: cut(n, each) if each[1].ndim > 1 else each for n, each in tensors.items()}
        write_arrays(path, tensors)
        return path

    def replay(self, path, *arguments, policy, without=()):
        out = path.with_suffix(".out")
        kept = [word for group in without for word in ("--no-policy", str(group))]
        done = called(path, "--policy", policy, *arguments, *kept, "--json", "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read(out), json.loads(done.stdout)

    def same_as_alone(self, tensors, *arguments, policy, decides="lane"):
        """Every segment, row and number is that of a trace with the layers of its group alone."""
        whole, said = self.replay(self.write(tensors), *arguments, policy=policy)
        parts = [self.replay(self.write(tensors, f"g{g}", members(g)), *arguments, policy=policy) for g in range(3)]
        place = {layer: (g, i) for g in range(3) for i, layer in enumerate(members(g))}
        if decides == "token":
            segments = [(g, 0) for g in range(3)]
        else:
            heads = 2 if decides == "lane" else 1
            segments = [(place[layer][0], place[layer][1] * heads + h) for layer in range(LAYERS) for h in range(heads)]
        self.assertEqual(set(whole), set().union(*(part for part, _ in parts)))
        for name in ("keep", "local", "pages"):
            lists = {"pages": "pages.ids"}.get(name, f"{name}.ordinals")
            if lists not in whole:
                continue
            alike = lambda result: {f"{name}.offsets": result[f"{name}.offsets"], f"{name}.ordinals": result[lists]}
            found = ragged(alike(whole), name)
            self.assertEqual(found, [ragged(alike(parts[g][0]), name)[s] for g, s in segments], name)
        self.same_rest(whole, [part for part, _ in parts], segments, place, decides)
        for name in ("logical_kept", "physical_freed", "attended_length", "segments", "nan_scores", "forced_over_budget"):
            self.assertEqual(said[name], sum(part[name] for _, part in parts), name)
        for name in set(said) & {"admitted", "over_cap", "pages"}:
            self.assertEqual(said[name], sum(part[name] for _, part in parts), name)
        return whole

    def same_rest(self, whole, parts, segments, place, decides):
        def rows(result, name):
            shape, values = result[name]
            return np.array(values).reshape(shape)

        if "scores" in whole:
            for row, (g, s) in zip(rows(whole, "scores"), segments):
                np.testing.assert_array_equal(row, rows(parts[g], "scores")[s] if "scores" in parts[g] else -np.inf)
        if "shares" in whole:
            shares = [part["shares"][1] if "shares" in part else None for part in parts]
            self.assertEqual(list(whole["shares"][1]), [shares[g][s] if shares[g] is not None else self.trace.n for g, s in segments])
        for name in {"output", "memory"} & set(whole):
            for layer, (g, i) in place.items():
                np.testing.assert_array_equal(rows(whole, name)[layer], rows(parts[g], name)[i])
        if "events" in whole:
            back = {where: number for number, where in enumerate(segments)}
            moved = [(t, back[g, s], e) for g in range(3) for t, s, e in rows(parts[g], "events").tolist()]
            self.assertEqual(list(map(tuple, rows(whole, "events").tolist())), sorted(moved))
        if "turn.ordinals" in whole:
            turns = [ragged(part, "turn") for part in parts]
            count = [len(each) // 3 for each in turns]
            self.assertEqual(ragged(whole, "turn"), [turns[g][t * count[g] + s] for t in range(3) for g, s in segments])
        for name in {"keys", "values"} & set(whole):
            self.same_rows(whole, parts, name, place, decides)

    def same_rows(self, whole, parts, name, place, decides):
        """The rows of each lane, which are as many as its segment keeps."""
        def lanes(result, layers, segment):
            kept = [len(each) for each in ragged(result)]
            counts = [kept[segment(layer, head)] for layer in range(layers) for head in range(2)]
            values = np.array(result[name][1]).reshape(result[name][0])
            return np.split(values, np.cumsum(counts)[:-1])

        local = {"lane": lambda layer, head: 2 * layer + head, "layer": lambda layer, head: layer, "token": lambda layer, head: 0}
        of_all = local[decides] if decides != "token" else lambda layer, head: GROUPS[layer]
        found = lanes(whole, LAYERS, of_all)
        alone = [lanes(part, len(members(g)), local[decides]) for g, part in enumerate(parts)]
        for layer, (g, i) in place.items():
            for head in range(2):
                np.testing.assert_array_equal(found[2 * layer + head], alone[g][2 * i + head])

    def test_evictions_are_those_of_each_group(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            tensors = self.tensors(dtype)
            self.same_as_alone(tensors, "--budget", 30, "--attend", policy="snapkv")
            self.same_as_alone(tensors, "--budget", 30, "--budget-scope", "global", "--layout", "mask", policy="knorm")
            self.same_as_alone(tensors, "--budget", 30, "--granularity", "layer", "--threads", 3, policy="h2o", decides="layer")
            self.same_as_alone(tensors, "--budget", 30, "--granularity", "token", policy="tova", decides="token")
        tensors = self.tensors()
        self.same_as_alone(tensors, "--ratio", 0.5, "--granularity", "token", "--layout", "dead_slot", policy="knorm", decides="token")
        self.same_as_alone(tensors, "--budget", 9, "--set", "name=mine", policy="external")
        self.same_as_alone(tensors, "--budget", 9, policy="trim_kv")

    def test_budgets_that_differ_between_layers(self):
        made = self.tensors()
        whole = self.same_as_alone(made, "--budget", 40, policy="pyramid_kv")
        self.assertIn("shares", whole)
        self.same_as_alone(made, "--budget", 40, "--granularity", "layer", policy="pyramid_kv", decides="layer")
        made["birth.mine"] = ("F32", self.dice.random((LAYERS, 2, self.trace.n)).astype(np.float32))
        self.same_as_alone(made, "--ratio", 0.5, "--set", "name=mine", policy="fast_kvzip")
        for rows in ((), (99,)):
            made["table.lu_kv"] = ("F32", self.dice.uniform(0.3, 0.7, (*rows, LAYERS, 2)).astype(np.float32))
            whole = self.same_as_alone(made, "--ratio", 0.5, "--set", "scores=mine", policy="lu_kv")
            self.assertIn("shares", whole)
        # A group without the policy keeps everything, and so do its shares say.
        path = self.write(made)
        found, _ = self.replay(path, "--ratio", 0.5, "--set", "scores=mine", policy="lu_kv", without=[1])
        of_group = [self.trace.n if GROUPS[lane // 2] == 1 else whole["shares"][1][lane] for lane in range(12)]
        self.assertEqual(list(found["shares"][1]), of_group)

    def test_decoding_and_turns(self):
        tensors = self.tensors()
        self.same_as_alone(tensors, "--budget", 30, "--mode", "decode", "--prefill", 60, policy="h2o")
        token = ("--granularity", "token", "--mode", "decode", "--prefill", 40)
        self.same_as_alone(tensors, "--budget", 20, *token, policy="tova", decides="token")
        whole = self.same_as_alone(tensors, "--budget", 30, "--mode", "turns", policy="intent_kv", decides="token")
        self.assertIn("memory", whole)

    def test_admissions_and_selections(self):
        tensors = self.tensors()
        for mode in (("--mode", "prefill", "--attend"), ("--mode", "decode", "--prefill", 33)):
            self.same_as_alone(tensors, "--set", "window=16", "--set", "threshold=0.5", "--budget", 20, *mode, policy="wg_kv")
        self.same_as_alone(tensors, "--mode", "select", "--budget", 32, "--set", "dense_layers=0", policy="quest")
        heads = self.folder / "heads.safetensors"
        write_arrays(heads, {"retrieval": ("F32", (np.arange(12).reshape(6, 2) % 3 == 0).astype(np.float32))})
        result, _ = self.replay(self.write(tensors), "--set", f"retrieval={heads}", "--set", "window=8", "--set", "sinks=2", policy="duo_attention")
        self.assertEqual([len(each) for each in ragged(result)], [120 if lane % 3 == 0 else 10 for lane in range(12)])

    def test_a_global_budget_is_of_the_group(self):
        """Written out: the lanes of one group share their budget, and those of another have none of it."""
        norms = -np.linalg.norm(self.trace.keys, axis=-1)
        norms[members(1)] += 100.0  # they would take everything from others
        keys = self.trace.keys.copy()
        keys[members(1)] *= 1e-3
        result, _ = self.replay(self.write({"keys": ("F32", keys.astype(np.float32))}), "--budget", 30, "--budget-scope", "global", policy="knorm")
        found = ragged(result)
        for g in range(3):
            lanes = [(layer, head) for layer in members(g) for head in range(2)]
            score = np.concatenate([norms[lane] for lane in lanes])
            best = sorted(np.argsort(-score, kind="stable")[: 30 * len(lanes)].tolist())
            self.assertEqual(best, [i * 120 + e for i, (layer, head) in enumerate(lanes) for e in found[2 * layer + head]])

    def test_a_group_without_a_policy_keeps_everything(self):
        tensors = self.tensors()
        everything = list(range(120))
        some = (
            (("--budget", 20, "--attend"), "snapkv", 2),
            (("--budget", 20, "--granularity", "token"), "tova", 0),
            (("--budget", 20, "--mode", "decode", "--prefill", 50, "--granularity", "layer"), "h2o", 1),
            (("--budget", 20, "--mode", "turns"), "intent_kv", 0),
            (("--set", "window=8", "--set", "threshold=0.9"), "wg_kv", 2),
            (("--mode", "select", "--budget", 32, "--set", "dense_layers=0"), "quest", 2),
        )
        for arguments, policy, lanes in some:
            path = self.write(tensors)
            plain, _ = self.replay(path, *arguments, policy=policy)
            found, said = self.replay(path, *arguments, policy=policy, without=[1])
            segments = range(said["segments"])
            group = (lambda s: s) if lanes == 0 else (lambda s: GROUPS[s // lanes])
            for s in segments:
                self.assertEqual(ragged(found)[s], everything if group(s) == 1 else ragged(plain)[s], (policy, s))
            self.assertTrue(any(ragged(plain)[s] != everything for s in segments if group(s) == 1))
        found, _ = self.replay(path, "--budget", 5, policy="knorm", without=[0, 1, 2])
        self.assertEqual(ragged(found), [everything] * 12)

    def test_one_group_is_a_trace_without_groups(self):
        tensors = self.tensors()
        plain = self.write(tensors, "plain", list(range(LAYERS)))
        one = self.folder / "one.safetensors"
        write_arrays(one, {**tensors, "layer_group": ("I64", np.zeros(LAYERS, np.int64))})
        arguments = ("--budget", 30, "--budget-scope", "global", "--attend")
        self.assertEqual(self.replay(plain, *arguments, policy="h2o")[0], self.replay(one, *arguments, policy="h2o")[0])

    def refused(self, text, tensors, *arguments):
        write_arrays(self.path, tensors)
        done = called(self.path, "--policy", "knorm", "--budget", 4, "--out", self.out, *arguments)
        self.fails(done, text)
        self.assertEqual(done.stdout, "")

    def test_bad_groups(self):
        tensors = self.tensors()
        named = lambda values, dtype=np.int32: {**tensors, "layer_group": ("I32", np.array(values, dtype))}
        self.refused("tensor layer_group = 2, but no layer is in group 1", named([0, 2, 0, 0, 2, 2]))
        self.refused("tensor layer_group = 6, but there are not so many layers", named([0, 1, 2, 3, 4, 6]))
        self.refused("tensor layer_group = -1, but it has numbers of 0", named([0, 0, 0, 0, 0, -1]))
        self.refused("tensor layer_group = shape [5], but tensor keys has 6 layers", named([0] * 5))
        self.refused("tensor layer_group = dtype F32", {**tensors, "layer_group": ("F32", np.zeros(6, np.float32))})
        good = named(GROUPS)
        self.refused("--no-policy = 3, but the groups of the trace are 0 to 2", good, "--no-policy", 3)
        self.refused("--no-policy = x, but it is a count", good, "--no-policy", "x")
        self.refused("--no-policy = 0, but the trace has no tensor layer_group", tensors, "--no-policy", 0)


if __name__ == "__main__":
    unittest.main()
