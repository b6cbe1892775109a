# SPDX-License-Identifier: Apache-2.0
"""What policies read of a model's projections: norms of projected values, and moments of query rows before RoPE."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_hf import model_of, tokens
from transformers import DynamicCache

import kvpolicy
import kvpolicy.hf
from kvpolicy._cache import CROPS_TO_LENGTH
from kvpolicy._projections import moments_of, norms_of_entries, projected_norms

EXPECTED = "expected_attention(future=32) | budget(20)"
CRITICAL = "snapkv(window=4, pool=none) | critical | budget(20)"


def test_moments_of_chunks_are_those_of_all_rows(monkeypatch):
    rows = torch.randn(2, 3, 37, 8, generator=torch.Generator().manual_seed(1)) + 5
    first, sinks = [0, -6], 4  # the second sequence has six rows of padding
    monkeypatch.setattr("kvpolicy._projections.ROWS", 7)
    made = moments_of(rows[:, :, :20], first, sinks).merged(moments_of(rows[:, :, 20:], [one + 20 for one in first], sinks))
    for sequence, begin in enumerate((4, 10)):
        counted = rows[sequence, :, begin:].double()
        mean = counted.mean(dim=1)
        apart = counted - mean[:, None]
        assert (made.mean[sequence] - mean).abs().max() < 1e-5
        assert (made.covariance[sequence] - apart.transpose(1, 2) @ apart / counted.shape[1]).abs().max() < 1e-4


@pytest.mark.parametrize("norm", [1, 2])
def test_projected_norms_are_means_over_the_group(norm):
    values, weight = torch.randn(1, 2, 9, 4), torch.randn(6, 2, 3, 4)
    made = projected_norms(values, weight, norm)
    for head in range(2):
        for row in range(9):
            each = [torch.linalg.vector_norm(weight[:, head, one] @ values[0, head, row], ord=norm) for one in range(3)]
            assert abs(made[0, head, row] - sum(each) / 3) < 1e-4
    shifted = norms_of_entries([values], [weight], norm, np.array([[[5, 3]]]))
    assert torch.equal(shifted[0, 0], made[0, :, 4:])


def kept_of(model, ids, policy, chunks=(), mask=None):
    cache = DynamicCache(config=model.config)
    begins = [0, *chunks]
    with torch.no_grad(), kvpolicy.hf.evict(model, policy) as eviction, eviction.prompt():
        for begin, end in zip(begins, [*chunks, ids.shape[1]]):
            positions = {} if mask is None else {"attention_mask": mask[:, :end], "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, begin:end]}
            model(input_ids=ids[:, begin:end], past_key_values=cache, **positions)
    return eviction


@pytest.mark.parametrize("policy", [EXPECTED, CRITICAL])
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2"])
def test_chunks_of_a_prompt_and_padding_change_nothing(name, policy):
    model, ids = model_of(name, "eager" if name == "Gemma2" else "sdpa"), tokens(1, 60)
    whole = kept_of(model, ids, policy).kept
    assert whole.array().shape[-1] == 20
    in_chunks = kept_of(model, ids, policy, chunks=(13, 41)).kept
    assert np.array_equal(whole.array(), in_chunks.array())
    padded = torch.cat((torch.cat((tokens(1, 9, seed=5), ids), dim=1), tokens(1, 69, seed=6)))
    mask = torch.ones_like(padded)
    mask[0, :9] = 0
    beside = kept_of(model, padded, policy, mask=mask).kept
    assert np.array_equal(whole.array()[:, 0], beside.array()[:, 0])


def test_expected_attention_goes_by_the_covariance():
    model, ids = model_of("Llama"), tokens(1, 200)
    sets = [kept_of(model, ids, f"expected_attention(future=32{more}) | budget(50)").kept.array() for more in ("", ", covariance=false", ", values=false")]
    assert not np.array_equal(sets[0], sets[1]) and not np.array_equal(sets[0], sets[2])


def test_a_message_is_decided_about_by_its_own_rows():
    model, ids = model_of("Llama"), tokens(1, 90)
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, "expected_attention | budget(20)") as eviction:
        model(input_ids=ids[:, :60], past_key_values=cache)
        for at in range(60, 64):
            model(input_ids=ids[:, at : at + 1], past_key_values=cache)
        model(input_ids=ids[:, 64:], past_key_values=cache)
    assert eviction.decisions == 2 and cache.layers[0].keys.shape[2] == 20


class Refusing:
    """An evictor that refuses to decide."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        return getattr(self.of, name)

    def decide(self, *_, **__):
        raise ValueError("refused")


@pytest.mark.parametrize("cropped", [False, True])
def test_a_prompt_whose_decision_was_refused_is_decided_about_later(cropped):
    """With the next rows, unless its tokens are taken back."""
    model, ids, kept = model_of("Llama"), tokens(1, 90), []
    for refused in (False, True):
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), kvpolicy.hf.evict(model, EXPECTED) as eviction:
            model(input_ids=ids[:, :10], past_key_values=cache)  # all of it stays
            if refused:
                (record,) = kvpolicy.hf._records[cache].values()
                evictor, record.evictor = record.evictor, Refusing(record.evictor)
                with pytest.raises(ValueError, match="refused"):
                    model(input_ids=ids[:, 10:60], past_key_values=cache)
                record.evictor = evictor
            if refused and cropped:
                cache.crop(10 if CROPS_TO_LENGTH else -50)
            model(input_ids=ids[:, 60 if refused or cropped else 10 :], past_key_values=cache)
        assert cache.layers[0].keys.shape[2] == 20
        kept.append(eviction.kept.array())
    assert np.array_equal(*kept)


@pytest.mark.parametrize("change, text", [
    (lambda model: model.model.rotary_emb.register_buffer("inv_freq", model.model.rotary_emb.inv_freq.flip(0)), None),
    (lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.5), "hf.evict: model = LlamaForCausalLM, but its rotary embedding scales rows by 1.5"),
])
def test_frequencies_are_those_of_the_model(change, text):
    model, ids = model_of("Llama"), tokens(1, 40)
    change(model)
    if text is None:
        assert kept_of(model, ids, EXPECTED).decisions == 1
        return
    with pytest.raises(ValueError, match=text):
        kvpolicy.hf.evict(model, EXPECTED)


def test_rows_that_turn_in_another_way_are_refused():
    model, ids = model_of("Llama"), tokens(1, 40)
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, EXPECTED):
        with pytest.raises(ValueError, match="hf.evict: model = LlamaForCausalLM, but its query rows are not those"):
            model(input_ids=ids, past_key_values=cache, position_ids=torch.arange(100, 140)[None])
    with pytest.raises(ValueError, match="hf.evict: when = forward, but expected_attention decides once for each prompt"):
        kvpolicy.hf.evict(model, EXPECTED, when="forward")


def test_a_profile_of_a_model_is_refused_before_a_prompt():
    with pytest.raises(ValueError, match="it reads query_model, which models of transformers do not give"):
        kvpolicy.hf.evict(model_of("Llama"), "tri_attention | budget(20)")


class WithAdapter(torch.nn.Module):
    """What PEFT puts in the place of a projection: its `weight` is that of the projection inside."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, rows):
        return self.base_layer(rows)


def test_an_adapter_on_the_output_projection_is_refused():
    model, ids = copy.deepcopy(model_of("Llama")), tokens(1, 40)
    attention = model.model.layers[1].self_attn
    attention.q_proj = WithAdapter(attention.q_proj)
    assert kept_of(model, ids, CRITICAL).decisions == 1
    attention.o_proj = WithAdapter(attention.o_proj)
    with pytest.raises(ValueError, match="hf.evict: LlamaAttention.o_proj = WithAdapter with an adapter, but the policy reads its weight"):
        kvpolicy.hf.evict(model, CRITICAL)
    assert kept_of(model, ids, EXPECTED).decisions == 1  # it reads no output projection


def test_norms_are_of_one_kind():
    model = model_of("Llama")
    with pytest.raises(ValueError, match="values are projected for one norm, l1 or l2"):
        kvpolicy.hf.evict(model, "knorm | times_norm(of=projected, norm=l2) | critical | budget(20)")
    assert kvpolicy.hf.evict(model, "knorm | times_norm(of=projected, norm=l2) | budget(20)")._norm == 2
