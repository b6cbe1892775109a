# SPDX-License-Identifier: Apache-2.0
"""An OpenAI server under the policy of the variable KVPOLICY_VLLM, asked twice for the same prompt."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import engine as e
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SECONDS = 400  # until a server answers, on a busy machine


def with_tokenizer(folder: Path) -> Path:
    """The model reads bytes."""
    made = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="!").save_pretrained(folder)
    return folder


def asked(address: str, given: dict | None = None) -> str:
    body = None if given is None else json.dumps(given).encode()
    with urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"}), timeout=120) as answer:
        return answer.read().decode()


def test_a_server(tmp_path):
    folder = with_tokenizer(e.model_folder(layers=2))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        at = f"http://localhost:{free.getsockname()[1]}"
    options = ["--model", str(folder), "--port", at.rsplit(":", 1)[1], "--dtype", "float32", "--max-model-len", "2048", "--block-size", "32", "--enforce-eager",
               "--kv-cache-memory-bytes", str(64 << 20), "--gpu-memory-utilization", "0.2"]
    log = tmp_path / "log"
    with log.open("w") as to:
        server = subprocess.Popen([sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options], stdout=to, stderr=to,
                                  env=os.environ | {"KVPOLICY_VLLM": "snapkv(window=32) | budget(256)", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    try:
        for _ in range(SECONDS):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                asked(f"{at}/health")
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        question = {"model": str(folder), "prompt": ("kv-cache-" * 150)[:1200], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        answers = [json.loads(asked(f"{at}/v1/completions", question)) for _ in range(2)]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        assert answers[1]["usage"] | {"prompt_tokens": 1200, "completion_tokens": 20} == answers[1]["usage"]
        hits = [line.split()[-1] for line in asked(f"{at}/metrics").splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
        assert [float(one) for one in hits] == [960]  # the 30 blocks that leave; without a policy it would be 1,184 tokens
    finally:
        server.terminate()
        server.wait(60)
