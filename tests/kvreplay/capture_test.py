#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records tiny random models of each family, and checks that the trace is what their attention computed.

    capture_test.py [PROGRAM]        PROGRAM: kvreplay, to run a policy on what was recorded

Needs torch, transformers and numpy.
"""

import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import capture_trace  # noqa: E402

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 97, "max_position_embeddings": 256}
FAMILIES = {
    "Llama": {},
    "Mistral": {"head_dim": 16, "sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Gemma": {"head_dim": 16},
    "Gemma3Text": {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]},
    "Cohere": {},
    "Gemma2": {"head_dim": 16, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "sliding_window": 128},
    "GptOss": {"head_dim": 16, "sliding_window": 128, "num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 4,
          "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
SAYS = {"Gemma3Text": {"attention_scale": 24**-0.5}, "Gemma2": {"attention_scale": 24**-0.5, "logit_cap": 2.0}}  # the others nothing


def model_of(family, **more):
    torch.manual_seed(1)
    config = getattr(transformers, family + "Config")(**{**SIZES, **FAMILIES.get(family, {}), **more})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, one in model.named_parameters():  # norms and biases that do something
        if "norm" in name or "bias" in name:
            one.data += 0.3 * torch.randn_like(one)
        elif "proj" in name:
            one.data *= 6  # attention that is not flat
        elif name.endswith("sinks"):
            one.data = 2 * torch.randn_like(one)
    return model


def load(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    types = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64}
    made = {}
    for name, one in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in one["data_offsets"])
            made[name] = np.frombuffer(raw[begin:end], types[one["dtype"]]).reshape(one["shape"])
    return made, header["__metadata__"]


def rotate(rows, theta, style):
    count, dims = rows.shape[-2:]
    angle = np.arange(count)[:, None] * theta ** (-np.arange(dims // 2) * 2 / dims)
    a, b = (rows[..., : dims // 2], rows[..., dims // 2 :]) if style == "neox" else (rows[..., 0::2], rows[..., 1::2])
    x, y = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return np.concatenate([x, y], axis=-1) if style == "neox" else np.stack([x, y], axis=-1).reshape(rows.shape)


class Capture(unittest.TestCase):
    def setUp(self):
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "trace.safetensors"
        self.tokens = np.random.default_rng(3).integers(0, 97, 40).tolist()

    def record(self, model, **how):
        attended = []
        capture_trace.capture(model, self.tokens, self.path, visit=lambda layer, parts, out: attended.append(out[0].float().numpy()), **how)
        made, metadata = load(self.path)
        return made, metadata, attended

    @staticmethod
    def weights(made, metadata, layer):
        keys = np.repeat(made["keys"][layer].astype(np.float64), made["queries"].shape[1] // made["keys"].shape[1], axis=0)
        logits = made["queries"][layer].astype(np.float64) @ keys.transpose(0, 2, 1) * float(metadata.get("attention_scale", keys.shape[-1] ** -0.5))
        cap = float(metadata.get("logit_cap", 0))
        logits = cap * np.tanh(logits / cap) if cap else logits
        logits = np.where(np.tri(logits.shape[1], dtype=bool), logits, -np.inf)
        sinks = np.exp(made["sink_logits"][layer].astype(np.float64)) if "sink_logits" in made else np.zeros(len(logits))
        lse = np.log(np.exp(logits).sum(axis=-1) + sinks[:, None])
        return np.exp(logits - lse[..., None]), lse

    def test_every_family_s_attention_follows_from_its_trace(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                model = model_of(family)
                made, metadata, attended = self.record(model, mass=True, lse=8)
                self.assertEqual(made["keys"].shape[:3], (2, 2, 40))
                self.assertEqual(made["queries"].shape[:3], (2, 4, 40))
                for layer, attention in enumerate(capture_trace.attentions(model)):
                    weights, lse = self.weights(made, metadata, layer)
                    values = np.repeat(made["values"][layer].astype(np.float64), 2, axis=0)
                    mixed = torch.tensor((weights @ values).transpose(1, 0, 2).reshape(40, -1), dtype=torch.float32)
                    with torch.no_grad():
                        expected = attention.o_proj(mixed).numpy()
                    self.assertGreater(np.abs(expected).max(), 0.05)
                    np.testing.assert_allclose(attended[layer], expected, rtol=2e-4, atol=2e-5)
                    np.testing.assert_allclose(made["attention_mass"][layer], weights.sum(axis=1), rtol=1e-4, atol=1e-6)
                    np.testing.assert_allclose(made["row_lse"][layer], lse[:, -8:], rtol=1e-5, atol=1e-5)
                self.assertEqual(made["positions"].tolist(), list(range(40)))
                self.assertEqual(made["token_ids"].tolist(), self.tokens)
                said = {name: float(metadata[name]) for name in ("attention_scale", "logit_cap") if name in metadata}
                self.assertEqual((said, "sink_logits" in made), (SAYS.get(family, {}), family == "GptOss"))
                kinds = getattr(model.config, "layer_types", None) or []
                groups = [0, 1] if len(set(kinds)) > 1 else None
                self.assertEqual(made["layer_group"].tolist() if "layer_group" in made else None, groups)
                self.assertEqual(metadata.get("layer_types"), ", ".join(kinds) if groups else None)
                self.assertEqual(groups is not None, family in ("Gemma2", "Gemma3Text", "GptOss"))
                if family == "Gemma3Text":  # two bases: none is named
                    self.assertNotIn("rope_theta", metadata)
                    continue
                self.assertEqual(metadata["rope_style"], "gptj" if family == "Cohere" else "neox")
                turned = rotate(made["pre_rope_keys"].astype(np.float64), float(metadata["rope_theta"]), metadata["rope_style"])
                np.testing.assert_allclose(made["keys"], turned, rtol=1e-3, atol=1e-3)

    def test_latent_attention_is_one_row_for_all_heads(self):
        plain = {"rope_type": "default", "rope_theta": 10000.0}
        yarn = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0,
                "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
        for more in ({"rope_parameters": plain}, {"q_lora_rank": None, "rope_interleave": False, "rope_parameters": plain}, {"rope_parameters": yarn}):
            with self.subTest(**more):
                model = model_of("DeepseekV3", **{**LATENT, **more})
                made, metadata, attended = self.record(model, mass=True, lse=8)
                shapes = {name: made[name].shape for name in ("keys", "pre_rope_keys", "values", "queries")}
                self.assertEqual(shapes, {"keys": (2, 1, 40, 40), "pre_rope_keys": (2, 1, 40, 40), "values": (2, 1, 40, 32), "queries": (2, 4, 40, 40)})
                np.testing.assert_array_equal(made["keys"][..., :32], made["values"])
                for layer, attention in enumerate(capture_trace.attentions(model)):
                    self.assertEqual(float(metadata["attention_scale"]), attention.scaling)
                    weights, lse = self.weights(made, metadata, layer)
                    to_values = attention.kv_b_proj.weight.detach().double().numpy().reshape(4, 28, 32)[:, 16:]
                    mixed = (weights @ made["values"][layer].astype(np.float64)) @ to_values.transpose(0, 2, 1)
                    with torch.no_grad():
                        expected = attention.o_proj(torch.tensor(mixed.transpose(1, 0, 2).reshape(40, -1), dtype=torch.float32)).numpy()
                    self.assertGreater(np.abs(expected).max(), 0.05)
                    np.testing.assert_allclose(attended[layer], expected, rtol=2e-4, atol=2e-5)
                    np.testing.assert_allclose(made["attention_mass"][layer], weights.sum(axis=1), rtol=1e-4, atol=1e-6)
                    np.testing.assert_allclose(made["row_lse"][layer], lse[:, -8:], rtol=1e-5, atol=1e-5)
                self.assertNotIn("rope_theta", metadata)
                if PROGRAM:
                    done = subprocess.run([PROGRAM, self.path, "--policy", "h2o", "--budget", "16", "--json", "--attend"],
                                          capture_output=True, text=True, check=False)
                    self.assertEqual(json.loads(done.stdout)["logical_kept"], 32, done.stderr)

    def test_scaled_rope_is_not_named(self):
        model = model_of("Llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
        _, metadata, _ = self.record(model)
        self.assertNotIn("rope_theta", metadata)

    def test_texts_of_tokens_are_metadata(self):
        _, metadata, _ = self.record(model_of("Llama"))
        self.assertNotIn("token_texts", metadata)
        texts = [f" {token}\n" for token in self.tokens]
        _, metadata, _ = self.record(model_of("Llama"), texts=texts)
        self.assertEqual(json.loads(metadata["token_texts"]), texts)

    def test_recent_rows_and_other_types(self):
        model = model_of("Llama")
        whole, _, _ = self.record(model)
        some, _, _ = self.record(model, recent=8, lse=8, dtype="float16", pre_rope=False)
        self.assertEqual(set(some), {"keys", "values", "recent_queries", "row_lse", "positions", "token_ids"})
        np.testing.assert_allclose(some["recent_queries"], whole["queries"][:, :, -8:], rtol=1e-3, atol=1e-3)

    def test_what_a_trace_cannot_say_is_refused(self):
        def refused(text, model, **how):
            with self.assertRaisesRegex(capture_trace.Refused, text):
                self.record(model, **how)
            self.assertEqual(list(self.path.parent.iterdir()), [])

        refused("q_proj", transformers.AutoModelForCausalLM.from_config(
            transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=97)))
        refused("--lse 41", model_of("Llama"), lse=41)
        refused("--recent is 4", model_of("Llama"), lse=8, recent=4)

    def test_the_command(self):
        folder = self.path.parent
        model_of("Qwen3").config.save_pretrained(folder / "model")
        (folder / "ids.json").write_text(json.dumps(self.tokens))
        tool = [sys.executable, capture_trace.__file__]

        def run(*arguments):
            return subprocess.run([*tool, *map(str, arguments)], capture_output=True, text=True, check=False)

        done = run(folder / "model", "--random", "--token-ids", folder / "ids.json", "--out", self.path, "--mass", "--lse", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 layers, 4 query heads, 2 KV heads, 40 entries of 16", done.stdout)
        for arguments in ((folder / "model", "--random", "--out", self.path), (folder / "none", "--token-ids", folder / "ids.json", "--out", self.path),
                          (folder / "model", "--random", "--token-ids", folder / "ids.json", "--out", folder / "no" / "trace")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stderr.splitlines()[-1][:15]), (2, "capture_trace: "), done.stderr)
        self.assertEqual(run("--help").returncode, 0)
        if PROGRAM:
            done = subprocess.run([PROGRAM, self.path, "--policy", "snapkv", "--set", "window=8", "--budget", "16", "--json"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(json.loads(done.stdout)["logical_kept"], 64, done.stderr)


if __name__ == "__main__":
    unittest.main()
