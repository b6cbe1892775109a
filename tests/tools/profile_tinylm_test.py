#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The profile of tinylm's queries: its forward has PyTorch's logits, and means, lengths and directions are those of all rows."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS, WEIGHTS = HERE.parent.parent / "tools", HERE.parent.parent / "examples/tinylm/weights"
sys.path.insert(0, str(HERE.parent / "kvreplay"))

from traces import main  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None
else:
    sys.path.insert(0, str(TOOLS))
    import profile_tinylm
    from gate_files import as_f32, read_safetensors

BYTES, CONTEXT = 300, 128


@unittest.skipIf(np is None, "there is no numpy")
class Profile(unittest.TestCase):
    def run_tool(self, *options):
        return subprocess.run([sys.executable, "-B", TOOLS / "profile_tinylm.py", *map(str, options)], capture_output=True, text=True)

    def test_the_forward_has_the_logits_of_pytorch(self):
        golden = read_safetensors(WEIGHTS / "golden.safetensors")
        model = profile_tinylm.Tinylm(WEIGHTS / "weights.safetensors")
        for name in ("text", "recall"):
            found = model.forward(np.frombuffer(golden[f"{name}.ids"][2], np.uint8), lambda *_: None)
            self.assertLess(np.abs(found - as_f32(name, *golden[f"{name}.logits"])).max(), 2e-3)

    def test_a_mean_is_the_mean_and_a_direction_the_first_singular_vector(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "profile.safetensors"
            done = self.run_tool(out, "--bytes", BYTES, "--context", CONTEXT)
            self.assertEqual(done.returncode, 0, done.stderr)
            made = {name: as_f32(name, *one) for name, one in read_safetensors(out).items()}
            raw = out.read_bytes()
        about = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
        self.assertEqual((about["rope_theta"], about["rope_style"]), ("10000.0", "neox"))
        shapes = {"query_model.mean": (4, 8, 64), "query_model.radius": (4, 8, 32), "table.q_filters": (4, 2, 64), "rows.q_filters": (4, 2, 64)}
        self.assertEqual({name: one.shape for name, one in made.items()}, shapes)
        model, before, after = profile_tinylm.Tinylm(WEIGHTS / "weights.safetensors"), [[] for _ in range(4)], [[] for _ in range(4)]

        def seen(layer, q, turned):
            before[layer].append(q.astype(float))
            after[layer].append(turned.astype(float))

        text = np.frombuffer((WEIGHTS / "held_out.txt").read_bytes()[:BYTES], np.uint8)
        for begin in range(0, BYTES, CONTEXT):
            model.forward(text[begin:begin + CONTEXT], seen)
        for layer in range(4):
            q, turned = np.concatenate(before[layer], axis=1), np.concatenate(after[layer], axis=1)
            self.assertEqual(q.shape, (8, BYTES, 64))
            np.testing.assert_allclose(made["query_model.mean"][layer], q.mean(axis=1), atol=1e-5)
            np.testing.assert_allclose(made["query_model.radius"][layer], np.hypot(q[..., :32], q[..., 32:]).mean(axis=1), atol=1e-5)
            for head in range(2):
                rows = turned[4 * head:4 * head + 4].reshape(-1, 64)
                first, found = np.linalg.svd(rows, full_matrices=False)[2][0], made["rows.q_filters"][layer, head].astype(float)
                self.assertGreater(abs(found @ first), 1 - 1e-5)
                self.assertLess(found @ rows.mean(axis=0), 0)
        np.testing.assert_array_equal(made["rows.q_filters"], made["table.q_filters"])

    def test_what_cannot_be_is_refused_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            out, empty = Path(folder) / "profile.safetensors", Path(folder) / "empty.txt"
            empty.touch()
            for options, line in (
                (("--context", 0), "--context = 0, but it is 1 to 1280, the longest that tinylm knows"),
                (("--bytes", 0), "--bytes = 0, but at least one byte is read"),
                (("--text", empty), f"{empty}: it is empty"),
                (("--text", out), f"{out}: there is no such file"),
                (("--weights", folder), f"{folder}/held_out.txt: there is no such file"),
            ):
                done = self.run_tool(out, *options)
                self.assertEqual((done.returncode, done.stderr), (1, f"profile_tinylm.py: {line}\n"))
                self.assertFalse(out.exists())


if __name__ == "__main__":
    main()
