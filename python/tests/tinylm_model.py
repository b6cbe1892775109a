# SPDX-License-Identifier: Apache-2.0
"""tinylm, the decoder of examples/tinylm, as a Llama of transformers, and the demo's recall questions.

    model = load(ROOT / "examples/tinylm/weights")
    ask(model, case, budget)

The n-gram embeddings of tinylm are added outside of the model: it is given `inputs_embeds`.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = {"F16": np.float16, "F32": np.float32, "U8": np.uint8}


def tensors_in(path):
    """The tensors and the metadata of a safetensors file."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    about = header.pop("__metadata__", {})
    made = {name: np.frombuffer(data[slice(*one["data_offsets"])], TYPES[one["dtype"]]).reshape(one["shape"]) for name, one in header.items()}
    return made, about


class Tinylm(torch.nn.Module):
    """A Llama of transformers, and the embedding that is added up outside of it."""

    def __init__(self, folder, attention="sdpa"):
        super().__init__()
        found, about = tensors_in(Path(folder) / "weights.safetensors")
        found = {name: torch.from_numpy(one.astype(np.float32)) for name, one in found.items()}
        size = {name: int(about[name]) for name in ("vocab", "width", "layers", "q_heads", "kv_heads", "head_dim", "hidden", "ngrams", "ngram_buckets")}
        config = LlamaConfig(vocab_size=size["vocab"], hidden_size=size["width"], num_hidden_layers=size["layers"], num_attention_heads=size["q_heads"],
                             num_key_value_heads=size["kv_heads"], head_dim=size["head_dim"], intermediate_size=size["hidden"],
                             rms_norm_eps=float(about["norm_eps"]), rope_theta=float(about["rope_theta"]), max_position_embeddings=1280,
                             tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
        self.llama = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
        self.llama.load_state_dict(self._renamed(found, size["layers"]))
        self.tables = [found[f"ngrams.{index}.weight"] for index in range(size["ngrams"])]
        self.bits = size["ngram_buckets"].bit_length() - 1

    @staticmethod
    def _renamed(found, layers):
        made = {"model.embed_tokens.weight": found["embedding.weight"], "model.norm.weight": found["norm.weight"], "lm_head.weight": found["head.weight"]}
        names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "wq": "self_attn.q_proj", "wk": "self_attn.k_proj",
                 "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
        for layer in range(layers):
            for name, theirs in names.items():
                made[f"model.layers.{layer}.{theirs}.weight"] = found[f"blocks.{layer}.{name}.weight"]
        return made

    def embedded(self, text, begin=0):
        """[1, byte, width] of the bytes text[begin:]; an n-gram reaches back to the bytes before."""
        ids = torch.tensor(list(text))[None]
        hashed, past, parts = ids, ids, []
        for table in self.tables:
            past = torch.nn.functional.pad(past, (1, 0))[:, :-1]
            hashed = (hashed * 257 + past + 1) & 0xFFFFFFFF
            parts.append(torch.nn.functional.embedding((hashed * 2654435761 & 0xFFFFFFFF) >> (32 - self.bits), table))
        return (self.llama.model.embed_tokens(ids) + torch.cat(parts, dim=-1))[:, begin:]

    @torch.no_grad()
    def logits(self, text, begin=0, cache=None):
        """[byte, vocabulary] of the bytes text[begin:]."""
        return self.llama(inputs_embeds=self.embedded(text, begin), past_key_values=cache, use_cache=cache is not None).logits[0]


class Mt19937_64:
    """std::mt19937_64, which makes the demo's cases."""

    SIZE, SHIFT, MASK = 312, 156, (1 << 64) - 1

    def __init__(self, seed):
        self.state = [seed]
        for i in range(1, self.SIZE):
            last = self.state[-1]
            self.state.append((6364136223846793005 * (last ^ (last >> 62)) + i) & self.MASK)
        self.at = self.SIZE

    def __call__(self):
        if self.at == self.SIZE:
            for i in range(self.SIZE):
                x = (self.state[i] & 0xFFFFFFFF80000000) | (self.state[(i + 1) % self.SIZE] & 0x7FFFFFFF)
                self.state[i] = self.state[(i + self.SHIFT) % self.SIZE] ^ (x >> 1) ^ (0xB5026F5AA96619E9 if x & 1 else 0)
            self.at = 0
        x = self.state[self.at]
        self.at += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        return x ^ (x >> 43)


@dataclass
class Case:
    prompt: bytes  # the question included
    answer: bytes


def recall_cases(text, count, context=1024, seed=7):
    """The demo's recall questions: six facts between passages of text, and a question about one of them."""
    draw, made = Mt19937_64(seed), []
    alphabet = b"abcdefghijklmnopqrstuvwxyz0123456789"
    word = lambda length: bytes(alphabet[draw() % 36] for _ in range(length))

    def stretch(length):
        begin = draw() % (len(text) - length + 1)
        return text[begin : begin + length]

    for index in range(count):
        capacity, prompt = context - 6 * 17 - 10, b""
        for fact in range(6):
            prompt += stretch(capacity // 20 if fact == 0 else capacity * 3 // 20)
            key, value = word(4), word(6)
            if fact == index % 6:
                question, answer = b"\nget " + key + b"=", value
            prompt += b"\nset " + key + b"=" + value + b"\n"
        made.append(Case(prompt + stretch(context - 10 - len(prompt)) + question, answer))
    return made


def answered(model, case, cache):
    """Whether every byte of the greedy answer is right. The prompt is read into the cache first."""
    text = case.prompt
    logits = model.logits(text, 0, cache)[-1]
    for index, byte in enumerate(case.answer):
        if int(logits.argmax()) != byte:
            return False
        text += bytes([byte])
        if index + 1 < len(case.answer):
            logits = model.logits(text, len(text) - 1, cache)[-1]
    return True


def new_cache(model):
    return DynamicCache(config=model.llama.config)
