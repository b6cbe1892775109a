"""The presses keep what those of kvpress keep, in a model. Needs kvpress 0.5.5."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
kvpress = pytest.importorskip("kvpress")

from test_hf import model_of
from transformers import DynamicCache

import kvpolicy.presses

SAME_SETS = [one for one in kvpolicy.presses.PRESSES if one != "RandomPress"]  # its numbers are its own


def kept_rows(full, cut):
    """The rows of `full` that are in `cut`, for each layer and KV head."""
    made = []
    for layer, kept in zip(full.layers, cut.layers):
        for head in range(kept.keys.shape[1]):
            apart = torch.cdist(kept.keys[0, head].double(), layer.keys[0, head].double())
            assert apart.min(dim=1).values.max() < 1e-5
            made.append(sorted(apart.argmin(dim=1).tolist()))
    return made


@pytest.mark.parametrize("name", SAME_SETS)
def test_a_press_keeps_what_kvpress_keeps(name):
    """20 random prompts and ratios, most below 640 tokens."""
    random = np.random.default_rng(sum(name.encode()))
    windows = {"SnapKVPress": 64, "PyramidKVPress": 64}
    model = model_of("Llama", "eager" if name == "ObservedAttentionPress" else "sdpa")
    lanes = other = 0
    for case in range(20):
        # Rows that repeat no token: a token's keys in the first layer have one norm, and ties may go either way.
        rows = torch.randn(1, int(random.integers(80, 700)), 64, generator=torch.Generator().manual_seed(case))
        ratio = float(random.choice([0.1, 0.25, 0.3, 0.5, 0.75, 0.9, round(random.random(), 3)]))
        # With a budget below its window kvpress keeps any part of the window, and kvpolicy all of it.
        ratio = min(ratio, 1 - (windows.get(name, 0) + 1) / rows.shape[1])
        mine, theirs = getattr(kvpolicy.presses, name)(ratio), getattr(kvpress, name)(ratio)
        full, cut, expected = (DynamicCache(config=model.config) for _ in range(3))
        with torch.no_grad():
            model(inputs_embeds=rows, past_key_values=full)
            with mine(model):
                model(inputs_embeds=rows, past_key_values=cut)
            with theirs(model):
                model(inputs_embeds=rows, past_key_values=expected, cache_position=torch.arange(rows.shape[1]))  # its hook reads them
        found, wanted = kept_rows(full, cut), kept_rows(full, expected)
        assert [len(one) for one in found] == [len(one) for one in wanted], (case, rows.shape[1], ratio)
        lanes += len(found)
        other += sum(a != b for a, b in zip(found, wanted))
    assert other <= lanes // 100, (other, lanes)  # sums in another order turn a tie around
