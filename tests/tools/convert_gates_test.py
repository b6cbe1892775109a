#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts synthetic gates in the names and shapes of WG-KV's and TRIM-KV's authors; compares the goldens of io with numpy.

tests/io/golden/write_gate.safetensors and retention_gate.safetensors hold the tensors of a gate file, inputs, and what PyTorch
computes from them in f32; `tools/train_gates.py --goldens` writes them. Here they are taken apart into layers under the authors'
names, converted, and must come back bit by bit; the gates of numpy in double agree with PyTorch's to NEAR.
"""
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS, GOLDEN = HERE.parent.parent / "tools", HERE.parent / "io/golden"
COMMITTED = HERE.parent.parent / "examples/tinylm/weights"
sys.path.insert(0, str(HERE.parent / "kvreplay"))

from traces import write_arrays  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None
else:
    sys.path.insert(0, str(TOOLS))
    from gate_files import as_f32, read_safetensors

NEAR = 2e-6  # of max(1, |value|): f32 of PyTorch against double, sums of at most 16 products
ATTENTION = "model.layers.{}.self_attn."


def arrays(path):
    return {name: as_f32(name, *one) for name, one in read_safetensors(path).items()}


def parts(golden, prefix):
    return {name.removeprefix(prefix): values for name, values in golden.items() if name.startswith(prefix)}


def wg_kv(gate):
    """A write gate as its authors name and shape it."""
    made, (layers, heads, hidden, inputs) = {}, gate["fc1.weight"].shape
    for i in range(layers):
        at = ATTENTION.format(i) + "g_predictors."
        made[at + "pre_key_norm.weight"], made[at + "post_key_norm.weight"] = gate["pre_norm.weight"][i], gate["post_norm.weight"][i]
        made[at + "conv1.weight"] = gate["fc1.weight"][i].reshape(heads * hidden, inputs, 1)
        made[at + "conv1.bias"] = gate["fc1.bias"][i].reshape(heads * hidden)
        made[at + "conv2.weight"], made[at + "conv2.bias"] = gate["fc2.weight"][i].reshape(heads, hidden, 1), gate["fc2.bias"][i]
    return made


def trim_kv(gate):
    """A retention gate as its authors name and shape it."""
    made = {}
    for i in range(len(gate["fc1.weight"])):
        at = ATTENTION.format(i) + "retention_gate."
        made |= {at + "linear1.weight": gate["fc1.weight"][i], at + "linear1.bias": gate["fc1.bias"][i]}
        made |= {at + "linear2.weight": gate["fc2.weight"][i], at + "bias": gate["fc2.bias"][i]}
    return made


# The gates in double, one row at a time --------------------------------------------------------------------------------------
def write_gate(w, layer, head, pre, post):
    x = np.concatenate([k / math.sqrt(k @ k / len(k) + 1e-6) * w[n][layer] for k, n in ((pre, "pre_norm.weight"), (post, "post_norm.weight"))])
    h = w["fc1.weight"][layer, head] @ x + w["fc1.bias"][layer, head]
    z = sum(a * 0.5 * b * (1 + math.erf(b / math.sqrt(2))) for a, b in zip(w["fc2.weight"][layer, head], h)) + w["fc2.bias"][layer, head]
    return 1 / (1 + math.exp(-z))


def log_beta(w, layer, head, hidden):
    h = w["fc1.weight"][layer] @ hidden + w["fc1.bias"][layer]
    z = sum(a * b / (1 + math.exp(-b)) for a, b in zip(w["fc2.weight"][layer, head], h)) + w["fc2.bias"][layer, head]
    return -math.log1p(math.exp(-z)) if z > -30 else z - math.log1p(math.exp(z))


@unittest.skipIf(np is None, "there is no numpy")
class ConvertGates(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source, self.out = Path(self.folder.name) / "source.safetensors", Path(self.folder.name) / "out.safetensors"
        self.write, self.retention = arrays(GOLDEN / "write_gate.safetensors"), arrays(GOLDEN / "retention_gate.safetensors")
        self.write_names, self.retention_names = wg_kv(parts(self.write, "write_gate.")), trim_kv(parts(self.retention, "retention_gate."))

    def run_tool(self, name, tensors, *options, dtype="F32"):
        if tensors is not None:
            write_arrays(self.source, {n: (dtype, np.ascontiguousarray(v)) for n, v in tensors.items()})
        command = [sys.executable, "-B", TOOLS / name, self.source, self.out, *options]
        return subprocess.run(command, capture_output=True, text=True)

    def refused(self, name, tensors, what, *options):
        done = self.run_tool(name, tensors, *options)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr, f"{name}: {self.source}: {what}\n")
        self.assertFalse(self.out.exists())

    def converted(self, name, tensors, prefix, golden, *options):
        done = self.run_tool(name, tensors, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        made, expected = arrays(self.out), {n: v for n, v in golden.items() if n.startswith(prefix)}
        self.assertEqual(set(made), set(expected))
        for one, values in made.items():
            self.assertEqual(values.shape, expected[one].shape, one)
            self.assertEqual(values.tobytes(), expected[one].tobytes(), one)

    def test_wg_kv_comes_back_bit_by_bit(self):
        self.converted("convert_wg_kv.py", self.write_names, "write_gate.", self.write)

    def test_trim_kv_comes_back_bit_by_bit(self):
        self.converted("convert_trim_kv.py", self.retention_names, "retention_gate.", self.retention)

    def test_a_pattern_says_where_the_gates_are(self):
        renamed = {name.replace("model.layers.", "h.").replace(".self_attn.retention_gate.", ":"): v for name, v in self.retention_names.items()}
        self.converted("convert_trim_kv.py", renamed, "retention_gate.", self.retention, "--pattern", "h.{layer}:")
        done = self.run_tool("convert_trim_kv.py", renamed, "--pattern", "h.")
        self.assertIn("--pattern h. does not name {layer} once", done.stderr)

    def test_tensors_of_the_model_are_passed_over(self):
        with_model = self.write_names | {"model.layers.0.self_attn.k_proj.weight": np.zeros((4, 4), np.float32)}
        self.converted("convert_wg_kv.py", with_model, "write_gate.", self.write)

    def test_16_bits_are_widened(self):
        rounded = {name: (v.view(np.uint32) >> 16).astype(np.uint16) for name, v in self.retention_names.items()}
        self.assertEqual(self.run_tool("convert_trim_kv.py", rounded, dtype="BF16").returncode, 0)
        expected = (self.retention["retention_gate.fc2.weight"].view(np.uint32) & 0xFFFF0000).view(np.float32)
        self.assertEqual(arrays(self.out)["retention_gate.fc2.weight"].tobytes(), expected.tobytes())
        halves = {name: v.astype(np.float16) for name, v in self.retention_names.items()}
        self.assertEqual(self.run_tool("convert_trim_kv.py", halves, dtype="F16").returncode, 0)
        expected = self.retention["retention_gate.fc1.bias"].astype(np.float16).astype(np.float32)
        self.assertEqual(arrays(self.out)["retention_gate.fc1.bias"].tobytes(), expected.tobytes())

    def test_a_missing_layer_is_named(self):
        without = {name: v for name, v in self.write_names.items() if ".0." not in name}
        self.refused("convert_wg_kv.py", without, "layer 0 is missing")
        self.refused("convert_wg_kv.py", self.write_names, "layer 2 is missing", "--layers", "3")
        self.refused("convert_wg_kv.py", self.write_names, "layer 1 is one too many for --layers 1", "--layers", "1")

    def test_a_missing_tensor_is_named(self):
        gone = ATTENTION.format(1) + "retention_gate.bias"
        self.refused("convert_trim_kv.py", {n: v for n, v in self.retention_names.items() if n != gone}, "layer 1 has no bias")

    def test_a_wrong_shape_is_named(self):
        name = ATTENTION.format(1) + "g_predictors.conv1.weight"
        self.refused("convert_wg_kv.py", self.write_names | {name: self.write_names[name][:-1]},
                     "layer 1: conv1.weight has shape [23, 16, 1], expected [24, 16, 1]")
        turned = self.write_names[name].transpose(1, 0, 2)
        self.refused("convert_wg_kv.py", self.write_names | {name: turned}, "layer 1: conv1.weight has shape [16, 24, 1], expected [24, 16, 1]")
        name = ATTENTION.format(0) + "retention_gate.linear2.weight"
        self.refused("convert_trim_kv.py", self.retention_names | {name: self.retention_names[name].T},
                     "layer 0: linear2.weight has shape [12, 2], expected [12, 12]")

    def test_a_number_that_is_not_finite_is_refused(self):
        for value in (math.nan, math.inf):
            name = ATTENTION.format(1) + "g_predictors.conv2.bias"
            bad = self.write_names[name].copy()
            bad[1] = value
            self.refused("convert_wg_kv.py", self.write_names | {name: bad}, "layer 1: conv2.bias is not finite")

    def test_another_form_of_gate_is_refused(self):
        extra = ATTENTION.format(0) + "g_predictors.value_norm.weight"
        done = self.run_tool("convert_wg_kv.py", self.write_names | {extra: np.ones(8, np.float32)})
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{extra} is unknown: the gate has another form", done.stderr)

    def test_a_file_that_is_none_is_refused(self):
        self.refused("convert_wg_kv.py", None, "there is no such file")
        for content in (b"", b"\xff" * 40):
            self.source.write_bytes(content)
            self.refused("convert_wg_kv.py", None, "it is no safetensors file, or cut short")
        for content in (b"[]", b"{", b'{"a":1}', b"\xff\xff"):
            self.source.write_bytes(len(content).to_bytes(8, "little") + content)
            self.refused("convert_wg_kv.py", None, "its header is not that of a safetensors file")
        write_arrays(self.source, {n: ("F32", v) for n, v in self.write_names.items()})
        self.source.write_bytes(self.source.read_bytes()[:-4])
        self.refused("convert_wg_kv.py", None, f"{list(self.write_names)[-1]} lies outside of the file")

    def test_an_output_that_may_not_be_replaced_is_refused_with_status_2_and_stays(self):
        source, why = self.source, {"link": "it is a symbolic link", "inner": "it is a directory", "fifo": "it is a FIFO", "hard": "this run reads it"}
        self.assertEqual(self.run_tool("convert_wg_kv.py", self.write_names).returncode, 0)
        before, whole = source.read_bytes(), self.out.read_bytes()
        folder = source.parent
        (folder / "link").symlink_to("out.safetensors")
        (folder / "inner").mkdir()
        os.mkfifo(folder / "fifo")
        os.link(source, folder / "hard")
        for name, reason in why.items():
            self.out = folder / name
            done = self.run_tool("convert_wg_kv.py", None)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertIn(f"{self.out} cannot be written: {reason}", done.stderr)
            self.assertEqual((source.read_bytes(), (folder / "out.safetensors").read_bytes()), (before, whole))
            self.assertEqual(len(list(folder.iterdir())), 6)

    def test_a_header_that_nests_deeply_is_refused(self):
        header = b"[" * 200_000 + b"]" * 200_000
        self.source.write_bytes(len(header).to_bytes(8, "little") + header)
        self.refused("convert_wg_kv.py", None, "its header is not that of a safetensors file")

    def test_a_header_that_lies_is_refused(self):
        name = ATTENTION.format(0) + "retention_gate.bias"
        for dtype, what in (("I64", "has dtype I64, expected one of F32, F16, BF16, F64"), ("F64", "has 8 bytes, which is not what its shape [2] takes")):
            write_arrays(self.source, {n: (dtype if n == name else "F32", np.ascontiguousarray(v)) for n, v in self.retention_names.items()})
            self.refused("convert_trim_kv.py", None, f"{name} {what}")

    def test_no_gate_at_all_is_refused(self):
        self.refused("convert_trim_kv.py", self.write_names,
                     "no tensor is named model.layers.{layer}.self_attn.retention_gate.linear1.weight; --pattern says how they are named")

    def test_the_committed_gates_have_the_shape_of_tinylm(self):
        layers, heads, dims, width = 4, 2, 64, 256
        shapes = {
            "write_gate": {"pre_norm.weight": (layers, dims), "post_norm.weight": (layers, dims), "fc1.weight": (layers, heads, 96, 2 * dims),
                           "fc1.bias": (layers, heads, 96), "fc2.weight": (layers, heads, 96), "fc2.bias": (layers, heads)},
            "retention_gate": {"fc1.weight": (layers, 128, width), "fc1.bias": (layers, 128), "fc2.weight": (layers, heads, 128), "fc2.bias": (layers, heads)},
        }
        for kind, expected in shapes.items():
            found = arrays(COMMITTED / f"{kind}.safetensors")
            self.assertEqual({name: v.shape for name, v in found.items()}, {f"{kind}.{name}": shape for name, shape in expected.items()})
            self.assertTrue(all(np.isfinite(v).all() for v in found.values()))

    def near(self, ours, theirs):
        self.assertLess(abs(ours - theirs), NEAR * max(1, abs(ours)))

    def test_the_write_gates_of_the_golden_are_those_of_the_equations(self):
        w = {name: v.astype(np.float64) for name, v in parts(self.write, "write_gate.").items()}
        for layer, head, row in np.ndindex(self.write["g"].shape):
            pre, post = (self.write[name][layer, head, row].astype(np.float64) for name in ("pre", "post"))
            self.near(write_gate(w, layer, head, pre, post), self.write["g"][layer, head, row])

    def test_the_retention_gates_of_the_golden_are_those_of_the_equations(self):
        w = {name: v.astype(np.float64) for name, v in parts(self.retention, "retention_gate.").items()}
        for layer, head, row in np.ndindex(self.retention["log_beta"].shape):
            value = log_beta(w, layer, head, self.retention["hidden"][layer, row].astype(np.float64))
            self.near(value, self.retention["log_beta"][layer, head, row])
            self.assertLess(self.retention["log_beta"][layer, head, row], 0)


if __name__ == "__main__":
    unittest.main()
