#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks a trace in every way: each is refused in one line that names the tensor, and leaves no file.

    bad_traces_test.py PROGRAM
"""

import copy
import json
import math
import struct
import unittest

from program import Runs, called, listed
from traces import flat, write

# The whole table: two layers, two KV heads, four query heads, six entries, two channels, three recent rows.
EXTENT = {"L": 2, "K": 2, "Q": 4, "N": 6, "D": 2, "V": 2, "W": 3, "R": 5, "T": 2, "c": 3, "f": 4, "p": 7, "j": 10, "o": 1, "a": 1, "P": 1, "E": 3, "O": 8}
NUMBERS = {
    "keys": "LKND", "values": "LKNV", "pre_rope_keys": "LKND", "pre_rope_queries": "LQND", "queries": "LQND", "recent_queries": "LQWD", "query_rows": "LQRD", "query_keys": "LKRD",
    "attention_mass": "LQN", "row_lse": "LQW", "sink_logits": "LQ", "log_beta": "LKN", "gate": "LKN", "value_norms": "LKN", "external.one": "N", "external.all": "LKN",
    "query_model.mean": "LQD", "query_model.radius": "LQP", "query_model.square": "LQDD",
    "residual.w_q.weight": "cp", "residual.w_q.bias": "c", "residual.w_k.weight": "cD", "residual.w_k.bias": "c",
    "residual.w_v.weight": "cD", "residual.w_v.bias": "c", "residual.fc1.weight": "fj", "residual.fc1.bias": "f",
    "residual.fc2.weight": "of", "residual.fc2.bias": "o", "residual.alpha": "a",
}
INTEGERS = {
    "positions": [0, 1, 2, 5, 6, 9], "token_ids": [7, 7, 1, 0, 3, 3], "query_positions": [3, 4, 5, 6, 7], "row_begin": [0, 0, 3, 3, 3], "row_end": [3, 3, 6, 6, 6], "turn_end": [3, 6],
    "span_begin": [1, 5], "span_end": [3, 5],
}
MAY_BE_NAN = {"keys", "values", "pre_rope_keys", "pre_rope_queries", "gate", "external.one", "external.all"}
LONE = {"V", "P"}  # letters that one tensor alone has: any number will do


def filled(letters, value=0.5):
    return value if not letters else [filled(letters[1:], value) for _ in range(EXTENT[letters[0]])]


def good():
    made = {name: ("F32", filled(letters)) for name, letters in NUMBERS.items()}
    made.update({name: ("I32", list(values)) for name, values in INTEGERS.items()})
    return made


def grown(values, axis):
    """One more along an axis."""
    return values + [copy.deepcopy(values[-1])] if axis == 0 else [grown(one, axis - 1) for one in values]


def with_last(values, value):
    made = copy.deepcopy(values)
    at = made
    while isinstance(at[-1], list):
        at = at[-1]
    at[-1] = value
    return made


class BadTraces(Runs):
    def replay(self, *arguments):
        done = called(self.path, "--policy", "snapkv", "--set", "window=2", "--budget", 3, "--out", self.out,
                      *arguments)
        return done, [path.name for path in self.folder.iterdir() if path.name.startswith("out")]

    def refused(self, what, found, *arguments):
        done, left = self.replay(*arguments)
        self.fails(done, what, found, what=what, found=found)
        self.assertEqual((done.stdout, left), ("", []))

    def broken(self, name, tensor, found, *arguments):
        """The trace with another tensor of this name, or without it; the line names it and tells what was found."""
        tensors = good()
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
        write(self.path, tensors)
        self.refused(f"tensor {name} ", found, *arguments)

    def test_the_whole_trace_is_good(self):
        write(self.path, good())
        done, left = self.replay()
        self.assertEqual((done.returncode, done.stderr, left), (0, "", ["out.safetensors"]))

    def test_rank(self):
        for name, (dtype, values) in good().items():
            if name not in ("external.one", "residual.alpha", "residual.fc2.bias") and isinstance(values[0], list):
                self.broken(name, (dtype, values[0]), "shape [")
            self.broken(name, (dtype, [values, values]), "shape [")
            self.broken(name, (dtype, []), "shape [0]")

    def test_shape(self):
        for name, letters in NUMBERS.items():
            for axis, letter in enumerate(letters):
                if letter in LONE:
                    continue
                tensors = good()
                tensors[name] = ("F32", grown(tensors[name][1], axis))
                write(self.path, tensors)
                done, left = self.replay()
                with self.subTest(tensor=name, axis=axis, said=done.stderr):
                    self.assertEqual((done.returncode, done.stderr.count("\n"), left), (2, 1, []))
                    self.assertIn(f"tensor {name} ", done.stderr)
        for name, values in INTEGERS.items():
            tensors = good()
            tensors[name] = ("I32", [*values, 99])
            write(self.path, tensors)
            self.refused(f"tensor {name} ", "")

    def test_dtype(self):
        for name in NUMBERS:
            letters = NUMBERS[name]
            self.broken(name, ("I32", filled(letters, 1)), "dtype I32")
            self.broken(name, ("I64", filled(letters, 1)), "dtype I64")
        for name, values in INTEGERS.items():
            self.broken(name, ("F32", [float(x) for x in values]), "dtype F32")
        for dtype in ("F8_E3M4", "", 4, None):
            write(self.path, good(), edit=lambda header, to=dtype: header["keys"].update(dtype=to))
            self.refused("tensor keys dtype", "" if not isinstance(dtype, str) else dtype)

    def test_numbers_that_were_computed_are_finite(self):
        for name, letters in NUMBERS.items():
            for dtype in ("F32", "F16", "BF16", "F64"):
                for value, text in ((math.nan, "nan"), (-math.inf, "-inf"), (math.inf, "inf")):
                    if name in MAY_BE_NAN or (name, value) == ("sink_logits", -math.inf):  # that is no sink
                        continue
                    self.broken(name, (dtype, with_last(filled(letters), value)), text)

    def test_nan_in_keys_values_gates_and_external_scores_goes_through(self):
        for name in MAY_BE_NAN:
            for value in (math.nan, -math.inf):
                tensors = good()
                tensors[name] = ("F32", with_last(tensors[name][1], value))
                del tensors["row_lse"]  # with that key it would not be finite
                write(self.path, tensors)
                done, _ = self.replay("--json")
                self.assertEqual(done.returncode, 0, (name, done.stderr))
                if math.isnan(value):  # a key makes NaN of its lane: the four entries before the window
                    self.assertEqual(json.loads(done.stdout)["nan_scores"], 4 if name == "keys" else 0)

    def test_external_nan_is_counted(self):
        tensors = good()
        tensors["external.one"] = ("F32", [1.0, math.nan, 2.0, -math.inf, 3.0, math.nan])
        write(self.path, {name: tensors[name] for name in ("external.one", "positions")})
        done = self.run_program("--policy", "external", "--budget", 4, name="one")
        self.assertEqual((done.returncode, json.loads(done.stdout)["nan_scores"]), (0, 2))

    def test_integers(self):
        for name, values in INTEGERS.items():
            for value in (-1, -(2**31)):
                self.broken(name, ("I32", [*values[:-1], value]), str(value))
            for value in (2**31, 2**40, -(2**63)):
                self.broken(name, ("I64", [*values[:-1], value]), str(value))
        self.broken("positions", ("I32", [0, 1, 2, 2, 6, 9]), "= 2")
        self.broken("positions", ("I32", [0, 1, 2, 5, 4, 9]), "= 4")
        self.broken("positions", ("I64", [9, 6, 5, 2, 1, 0]), "= 6")
        self.broken("turn_end", ("I32", [6, 3]), "= 3")
        self.broken("turn_end", ("I32", [3, 3]), "= 3")
        self.broken("turn_end", ("I32", [0, 6]), "= 0")
        self.broken("turn_end", ("I32", [3, 7]), "= 7")
        self.broken("span_begin", ("I32", [4, 5]), "= 4")
        self.broken("span_end", ("I32", [0, 5]), "= 0")
        self.broken("span_end", ("I32", [3, 7]), "= 7")

    def test_each_signal_of_each_policy(self):
        """Without one of the signals that --list names, a policy is refused in one line that names what is missing."""
        sources = {"recent_queries": ("queries", "recent_queries", "row_lse"), "queries": ("queries", "recent_queries", "row_lse"),
                   "attention_mass": ("attention_mass", "queries", "recent_queries", "row_lse"), "turn_queries": ("queries",),
                   "query_rows": ("query_rows", "query_positions", "query_keys", "query_hidden_norm", "row_begin", "row_end"), "value_norms or values": ("value_norms", "values"),
                   "value_norms or output_projection": ("value_norms", "output_projection"),
                   "pre_rope_queries or query_model.mean": ("pre_rope_queries", "query_model.mean", "query_model.square")}
        words = {"pre_rope_queries or query_model.mean": "pre_rope_queries", "recent_queries": "queries", "attention_mass": "queries", "query_rows": "external_queries"}
        fields = {"external": {"name": "one"}, "carried": {"name": "x"}, "lu_kv": {"scores": "x"}}
        for policy in listed().values():
            for signal in policy["signals"]:
                begins = signal.removesuffix("NAME")
                there = {**good(), "output_projection": ("F32", filled("LEO")), "query_hidden_norm": ("F32", filled("LR"))}
                tensors = {name: one for name, one in there.items() if name not in sources.get(signal, (signal,)) and not name.startswith(begins)}
                tensors["table.q_filters"], tensors["table.thresholds"] = ("F32", filled("LKD")), ("F32", filled("LQ"))
                tensors["table.voters"], tensors["table.drift"] = ("F32", filled("LQ")), ("F32", filled("L"))
                tensors["token_class"] = ("I32", [0] * EXTENT["N"])
                if policy["modes"] == ["decode"]:
                    del tensors["attention_mass"]  # while decoding there is none of all rows
                write(self.path, tensors, {"rope_theta": "10000.0"})
                budget = () if policy["name"] in ("side_quest", "neural_gc", "simlayer_kv", "fastgen", "pyramid_infer", "mp_cache_prompt") else ("--budget", "3")
                mode = ("--mode", policy["modes"][0])
                done = self.run_program("--policy", policy["name"], *budget, *mode, **fields.get(policy["name"], {}))
                named = () if policy["name"] == "lu_kv" else (words.get(signal, begins),)
                self.fails(done, *named, policy=policy["name"], signal=signal)

    def test_what_a_profile_lacks(self):
        """Expected Attention reads rows where a profile has no covariance, and names it where there are no rows."""
        for policy in ("expected_attention", "ada_ea"):
            tensors = good()
            tensors["table.thresholds"] = ("F32", filled("LQ"))
            for name in ("query_model.square", "pre_rope_queries"):
                write(self.path, {each: one for each, one in tensors.items() if each != name}, {"rope_theta": "10000.0"})
                done = self.run_program("--policy", policy, "--budget", 3)
                if (policy, name) != ("ada_ea", "query_model.square"):
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.out.unlink(missing_ok=True)
            for name in ("query_model.square", "pre_rope_queries"):
                del tensors[name]
            write(self.path, tensors, {"rope_theta": "10000.0"})
            self.fails(self.run_program("--policy", policy, "--budget", 3), "tensor query_model.square = missing")
            done = self.run_program("--policy", policy, "--budget", 3, covariance="false")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.out.unlink(missing_ok=True)
        write(self.path, good())
        self.fails(self.run_program("--policy", "expected_attention", "--budget", 3), "metadata rope_theta = missing")
        self.assertEqual(self.run_program("--policy", "expected_attention", "--budget", 3, future=0).returncode, 0)
        self.fails(self.run_program("--policy", "ada_ea", "--budget", 3), "tensor table.thresholds = missing")

    def test_an_output_projection(self):
        """Its columns are those of all query heads, whose number it tells where no other tensor does."""
        heads, width = EXTENT["Q"], EXTENT["V"]
        tensors = {name: good()[name] for name in ("keys", "values", "external.one")}
        for columns, queries, said in ((heads * width, True, ""), (heads * width + 1, True, f"= {heads * width + 1} columns"),
                                       (2 * EXTENT["K"] * width, False, ""), (2 * EXTENT["K"] * width - 1, False, "columns")):
            tensors["output_projection"] = ("F32", [[[0.5] * columns for _ in range(5)] for _ in range(EXTENT["L"])])
            write(self.path, {**tensors, **({"queries": good()["queries"]} if queries else {})})
            done = self.run_program("--policy", "critical_kv", "--budget", 3, scores="one")
            if said:
                self.fails(done, "tensor output_projection ", said)
            else:
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        for missing in ("values", "output_projection"):
            write(self.path, {name: one for name, one in good().items() if name not in (missing, "value_norms")})
            self.fails(self.run_program("--policy", "critical_kv", "--budget", 3, scores="one"), missing)

    def test_missing(self):
        for name in ("query_rows", "query_positions", "row_begin", "row_end", "span_begin", "span_end", *(n for n in NUMBERS if n.startswith("residual."))):
            self.broken(name, None, "missing")
        tensors = good()
        del tensors["turn_end"]
        write(self.path, tensors)
        self.refused("tensor turn_end ", "missing")
        write(self.path, {name: tensor for name, tensor in good().items() if name.startswith("span")})
        self.refused("trace", "without entries")
        write(self.path, {name: tensor for name, tensor in good().items() if name in ("span_begin", "span_end", "positions")})
        self.refused("tensor turn_end ", "missing")
        for policy, signals, lacks in (("knorm", ("values", "queries"), "keys"), ("snapkv", ("values", "queries"), "keys"),
                                       ("snapkv", ("keys", "values"), "queries"), ("h2o", ("keys",), "queries"),
                                       ("tova", ("keys",), "queries")):
            write(self.path, {name: good()[name] for name in signals})
            self.fails(self.run_program("--policy", policy, "--budget", 3), f"needs signal {lacks}")
        write(self.path, {"keys": good()["keys"]})
        done = self.run_program("--policy", "external", "--budget", 3, name="other")
        self.fails(done, "tensor external.other = missing")

    def test_modes_ask_for_what_they_read(self):
        write(self.path, {"keys": good()["keys"], "queries": good()["queries"]})
        self.refused("tensor turn_end ", "missing", "--mode", "turns")
        tensors = good()
        write(self.path, tensors)
        self.refused("tensor attention_mass ", "given", "--mode", "decode")

    def test_metadata(self):
        for key, value in (("rope_theta", "-1"), ("rope_theta", "much"), ("rope_theta", "nan"), ("rope_theta", "inf"), ("rope_style", "round")):
            write(self.path, good(), {key: value})
            self.refused(f"metadata {key}", value)
        for key, values in (("attention_scale", ("0", "-0.125", "1/8", "nan", "inf", "1e-60")), ("logit_cap", ("-50", "none", "nan", "inf", "1e39"))):
            for value in values:
                write(self.path, good(), {key: value})
                self.refused(f"metadata {key} = {value}, but it is a positive number", value)
        pairs = EXTENT["D"] // 2
        for value, found in (("", "0 numbers"), ("[]", "0 numbers"), ("1 x", "x"), ("1," * pairs + "1", f"{pairs + 1} numbers"), ("1 " * (pairs - 1), f"{pairs - 1} numbers"),
                             ("-1 " * pairs, "-1"), ("nan " * pairs, "nan"), ("inf " * pairs, "inf"), ("[1, [2]" + ", 3x" * pairs, "3x")):
            write(self.path, good(), {"rope_frequencies": value})
            self.refused("metadata rope_frequencies", found)
        write(self.path, good(), edit=lambda header: header.update(__metadata__={"rope_theta": 1e4}))
        self.refused("metadata rope_theta", "number")
        write(self.path, good(), edit=lambda header: header.update(__metadata__=[]))
        self.refused("__metadata__", "array")

    def test_headers(self):
        def edited(name, found, **changes):
            write(self.path, good(), edit=lambda header: header["values"].update(changes))
            self.refused(f"tensor values {name}", found)

        write(self.path, good())
        text = self.path.read_bytes()
        size = struct.unpack("<Q", text[:8])[0]
        offsets = json.loads(text[8 : 8 + size])["values"]["data_offsets"]
        edited("data_offsets", "", data_offsets=[offsets[0] - 8, offsets[1] - 8])  # overlaps
        edited("data_offsets", "", data_offsets=[offsets[1], offsets[0]])
        edited("data_offsets", "", data_offsets=[offsets[0] + 2**40, offsets[1] + 2**40])
        edited("data_offsets", "-1", data_offsets=[-1, offsets[1]])
        edited("data_offsets", "0.5", data_offsets=[0.5, offsets[1]])
        edited("data_offsets", "", data_offsets=[offsets[0]])
        edited("data_offsets", "null", data_offsets=None)
        edited("shape", "-2", shape=[-2, 2, 6, 2])
        edited("shape", "", shape=[2**40, 2**40, 6, 2])
        edited("bytes", "", shape=[2, 2, 6, 3])
        edited("shape", "string", shape="wide")

    def test_files(self):
        write(self.path, good())
        text = self.path.read_bytes()
        size = struct.unpack("<Q", text[:8])[0]
        body, data = text[8 : 8 + size], text[8 + size :]

        def holds(content, what, found):
            self.path.write_bytes(content)
            self.refused(what, found)

        for length in (0, 1, 7):
            holds(text[:length], "size", str(length))
        for length in (8, 9, 8 + size - 1):
            holds(text[:length], "header length", str(size))
        for length in (8 + size, 8 + size + 1, len(text) - 1):
            holds(text[:length], "tensor ", "data_offsets")
        holds(text + b"\0", "data", str(len(data) + 1))
        for claimed in (1 << 32, (1 << 64) - 1, size + len(data) + 1):
            holds(struct.pack("<Q", claimed) + text[8:], "header length", str(claimed))
        for header in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{]", body[:-1], b"[" * 100000):
            holds(struct.pack("<Q", len(header)) + header, "header", str(len(header)))
        double = body[:-1] + b', "keys": ' + json.dumps(json.loads(body)["keys"]).encode() + b"}"
        holds(struct.pack("<Q", len(double)) + double + data, "tensor = keys", "twice")
        for field, more in (("shape", "[1]"), ("dtype", '"F32"'), ("data_offsets", "[0, 4]")):
            double = body.replace(b'"dtype"', f'"{field}": {more}, "dtype"'.encode(), 1)
            holds(struct.pack("<Q", len(double)) + double + data, f"header = {field}", "twice")
        strange = body.replace(b'"gate"', b'"a\\nb\\u001b"').replace(b'"F32"', b'"F9\\n"', 1)
        holds(struct.pack("<Q", len(strange)) + strange + data, "F9", "")
        self.path.unlink()
        self.refused("cannot be opened", "trace.safetensors")
        self.path.mkdir()
        self.refused("cannot be", "trace.safetensors")

    def test_out_that_cannot_be_written(self):
        write(self.path, good())
        self.out = self.folder / "none" / "o"
        self.fails(self.run_program("--policy", "knorm", "--budget", 2), "--out")

    def test_the_table_has_no_element_that_is_not_a_number(self):
        self.assertTrue(all(math.isfinite(x) for _, values in good().values() for x in flat(values)))


if __name__ == "__main__":
    unittest.main()
