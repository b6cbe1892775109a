# SPDX-License-Identifier: Apache-2.0
"""Every block of Python in python/README.md runs, with a small random model in place of the one that it names."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import save_file
from test_hf import SIZES, model_of, tokens
from transformers import DynamicCache

import kvpolicy
import kvpolicy.hf

README = Path(__file__).parents[1] / "README.md"
# The blocks that cannot run here, by the heading above them: why.
NOT_RUN: dict[str, str] = {}
PROMPT = 1100  # tokens, more than the budgets of the page


def blocks():
    """The blocks of Python, by the nearest heading above each."""
    made, heading = {}, ""
    for title, language, text in re.findall(r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$", README.read_text(), re.M | re.S):
        heading = title or heading
        if language == "python":
            assert heading not in made, f"two blocks under {heading}"
            made[heading] = text
    return made


def save_gates(folder):
    """Files of random weights for the small model, under the names that the page has."""
    layers, heads, channels, width = SIZES["num_hidden_layers"], SIZES["num_key_value_heads"], SIZES["hidden_size"], 3
    dims = channels // SIZES["num_attention_heads"]
    retention = {"fc1.weight": (width, channels), "fc1.bias": (width,), "fc2.weight": (heads, width), "fc2.bias": (heads,)}
    write = {"pre_norm.weight": (dims,), "post_norm.weight": (dims,), "fc1.weight": (heads, width, 2 * dims), "fc1.bias": (heads, width),
             "fc2.weight": (heads, width), "fc2.bias": (heads,)}
    random = torch.Generator().manual_seed(3)
    for gate, shapes in (("retention_gate", retention), ("write_gate", write)):
        save_file({f"{gate}.{name}": torch.randn(layers, *shape, generator=random) for name, shape in shapes.items()}, folder / f"{gate}.safetensors")


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the text around the blocks says is there."""
    save_gates(tmp_path)
    monkeypatch.chdir(tmp_path)
    model, ids = model_of("Llama"), tokens(1, PROMPT)
    inputs = transformers.BatchEncoding(dict(input_ids=ids, attention_mask=torch.ones_like(ids)))
    for loads, made in ((transformers.AutoModelForCausalLM, model), (transformers.AutoTokenizer, lambda text, return_tensors: inputs)):
        monkeypatch.setattr(loads, "from_pretrained", lambda name, made=made: made)  # whatever the name
    return {"kvpolicy": kvpolicy, "model": model, "inputs": inputs, "cache": DynamicCache(config=model.config)}


@pytest.mark.parametrize("heading", [one for one in blocks() if one not in NOT_RUN])
def test_a_block_of_the_readme_runs(heading, names):
    exec(compile(blocks()[heading], f"{README.name}: {heading}", "exec"), names)
    if "kept" in names:  # the comments of the block say it
        assert len(names["kept"].lane(head=1)) == 64 and names["kept"].array().shape == (1, 1, 2, 64)
        assert (np.diff(names["kept"].lane(head=1)) > 0).all()
    if "output" in names:
        assert names["output"].shape == (1, PROMPT + 100)


def test_what_does_not_run_is_on_the_page():
    assert NOT_RUN.keys() <= blocks().keys() and len(blocks()) > len(NOT_RUN)


def test_the_refusals_of_the_page_are_those_of_the_package():
    keys, queries = np.zeros((1, 2, 500, 64), np.float32), np.zeros((1, 8, 32, 64), np.float32)
    evictor = kvpolicy.Evictor("h2o | budget(64)", layers=1, query_heads=8, kv_heads=2, head_dim=64)
    evictor.append([500])
    calls = [lambda: evictor.observe(0, queries, keys)]
    calls += [lambda policy=policy: kvpolicy.decide(f"{policy} | budget(64)", keys=keys) for policy in ("snapkv(windw=32)", "not_stale", "trim_kv")]
    for call in calls:
        with pytest.raises(ValueError) as refused:
            call()
        assert f"\n{refused.value}\n" in README.read_text(), refused.value
