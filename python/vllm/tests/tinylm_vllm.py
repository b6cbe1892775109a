# SPDX-License-Identifier: Apache-2.0
"""tinylm as a Llama in vLLM. Its n-gram embeddings need the bytes before a token, so that the model notes token ids by position.

One request at a time, eager, in one process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from vllm import ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM

PYTHON = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(PYTHON / "tests"), str(PYTHON)]

import tinylm_model

WEIGHTS = tinylm_model.ROOT / "examples" / "tinylm" / "weights"
LONGEST = 1280


class TinylmInVllm(LlamaForCausalLM):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        found, about = tinylm_model.tensors_in(WEIGHTS / "weights.safetensors")
        self.tables = [torch.from_numpy(found[f"ngrams.{index}.weight"].astype("float32")) for index in range(int(about["ngrams"]))]
        self.bits = int(about["ngram_buckets"]).bit_length() - 1
        self.text = torch.zeros(LONGEST, dtype=torch.long)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        self.text[positions] = input_ids.long()
        hashed, parts = self.text[positions], []
        for back, table in enumerate(self.tables, 1):
            past = torch.where(positions >= back, self.text[(positions - back).clamp(min=0)], 0)
            hashed = (hashed * 257 + past + 1) & 0xFFFFFFFF
            parts.append(torch.nn.functional.embedding((hashed * 2654435761 & 0xFFFFFFFF) >> (32 - self.bits), table))
        embedded = self.model.embed_input_ids(input_ids) + torch.cat(parts, dim=-1)
        return super().forward(input_ids, positions, intermediate_tensors, embedded)


def folder_of(model: tinylm_model.Tinylm) -> Path:
    """Writes the Llama's weights as vLLM reads them."""
    folder = Path(tempfile.gettempdir()) / "kvpolicy_tinylm_vllm"
    model.llama.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["TinylmInVllm"]}))
    ModelRegistry.register_model("TinylmInVllm", TinylmInVllm)
    return folder
