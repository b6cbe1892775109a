# SPDX-License-Identifier: Apache-2.0
"""Flash and flex attention in models of transformers, whose masks have other forms. Both run on a processor here.

The package flash-attn needs a GPU. Its two functions are replaced by ones that compute what they document, and
transformers calls them as it calls those. Flex attention is PyTorch's own, without its compiler.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers.integrations.flex_attention as flex
import transformers.masking_utils as masking
import transformers.modeling_flash_attention_utils as flash
from masked import Masked
from test_hf import HYBRIDS, MODELS, SNAPKV, UNEQUAL, check_rows, check_turn, drop, generated, model_of, tokens
from test_hf_admission import CLOSE, POLICY, gate
from test_hf_admission import check as check_admission
from transformers import DynamicCache

import kvpolicy.hf

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
H2O = "h2o(heavy=12, recent=12) | budget(24)"


def attended(q, k, v, causal, softmax_scale, softcap, window_size):
    """Attention of [token, head, channel]; the last query row belongs to the last key."""
    group = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(group, dim=1) for one in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * softmax_scale
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    if causal:
        behind = torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None] - torch.arange(k.shape[0])
        logits = logits.masked_fill((behind < 0) | (behind > window_size[0]) & (window_size[0] >= 0), float("-inf"))
    return torch.einsum("hqk,khd->qhd", logits.softmax(dim=-1), v)


@pytest.fixture
def flash_attention(monkeypatch):
    """flash_attn_func and flash_attn_varlen_func, and how often each was called."""
    calls = {"flash": 0, "varlen": 0}

    def function(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, softcap=0.0, window_size=(-1, -1)):
        calls["flash"] += 1
        return torch.stack([attended(*one, causal, softmax_scale, softcap, window_size) for one in zip(q, k, v)])

    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, softcap=0.0, window_size=(-1, -1)):
        calls["varlen"] += 1
        made = []
        for one in range(len(cu_seqlens_q) - 1):
            rows, entries = (slice(int(ends[one]), int(ends[one + 1])) for ends in (cu_seqlens_q, cu_seqlens_k))
            made.append(attended(q[rows], k[entries], v[entries], causal, softmax_scale, softcap, window_size))
        return torch.cat(made)

    for name, value in {
        "_loaded_implementation": "flash_attention_2", "_flash_fn": function, "_flash_varlen_fn": varlen, "_flash_with_kvcache_fn": None,
        "_pad_fn": flash._pad_input, "_unpad_fn": flash._unpad_input, "_process_flash_kwargs_fn": flash._lazy_define_process_function(varlen),
    }.items():
        monkeypatch.setattr(flash, name, value, raising=False)
    return calls


@pytest.fixture
def flex_attention(monkeypatch):
    """PyTorch's flex attention, not compiled, and the masks that it was given."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    given = []

    def function(query, key, value, training=False, **kwargs):
        given.append(tuple(kwargs["block_mask"].shape))
        return flex_attention(query, key, value, **kwargs)

    monkeypatch.setattr(flex, "compile_friendly_flex_attention", function)
    monkeypatch.setattr(masking, "create_block_mask", lambda *args, _compile=False, **kwargs: create_block_mask(*args, **kwargs))
    return given


def model_with(attention, name="Llama", **more):
    model = model_of(name, "sdpa", **more)
    model.config._attn_implementation = attention  # the constructor asks for the package
    return model


def padded(*lengths, total=80):
    ids = tokens(len(lengths), total)
    mask = torch.ones_like(ids)
    for sequence, length in enumerate(lengths):
        mask[sequence, : total - length] = 0
    return ids, mask


def check_turns(model, policy, lengths, when="prefill", turns=2):
    """Turns of a padded batch, each against the reference."""
    ids, mask = padded(*lengths)
    engine, cache = Masked(model), DynamicCache(config=model.config)
    for turn in range(turns):
        with kvpolicy.hf.evict(model, policy, when=when) as eviction:
            sequences, logits, cache = generated(model, ids, 5, cache=cache, mask=mask)
        assert eviction.decisions > 0 and eviction.kept.report["unobserved"] == 0
        if when == "prefill":
            engine.evict = lambda: drop(engine, eviction.kept)
            check_turn(engine, ids, mask, sequences, logits)
            check_rows(engine, cache)
        ids = torch.cat((sequences, tokens(len(lengths), 12, seed=turn)), dim=1)
        mask = torch.cat((mask, torch.ones(len(lengths), 17, dtype=mask.dtype)), dim=1)
    return cache


MORE = [MODELS[0], MODELS[3], MODELS[8]]


@pytest.mark.parametrize("name, _, more", MORE, ids=[one[0] for one in MORE])
@pytest.mark.parametrize("policy", [SNAPKV, "snapkv(window=8) | budget(ratio=0.5)"])
def test_flash_attention_reads_equal_heads(name, _, more, policy, flash_attention):
    model = model_with("flash_attention_2", name, **more)
    check_turns(model, policy, (80,))
    assert flash_attention["flash"] > 0 and flash_attention["varlen"] == 0
    check_turns(model, policy, (80, 50, 20))  # with a ratio each sequence keeps another number
    assert flash_attention["varlen"] > 0
    assert model.config._attn_implementation == "flash_attention_2"


def test_flash_attention_decides_as_sdpa_does(flash_attention):
    ids, mask = padded(80, 50)
    for policy, when in ((H2O, "forward"), ("tova | budget(24)", "forward"), ("intent_kv(tail=8) | budget(24)", "prefill")):
        made = []
        for attention in ("sdpa", "flash_attention_2"):
            model = model_with(attention)
            with kvpolicy.hf.evict(model, policy, when=when) as eviction:
                _, logits, _ = generated(model, ids, 6, mask=mask)
                _, chunked, _ = generated(model, ids[:1], 6, prefill_chunk_size=16)
            made.append((logits, chunked, eviction.kept.indices.tolist()))
        assert (made[0][0] - made[1][0]).abs().max() < CLOSE and (made[0][1] - made[1][1]).abs().max() < CLOSE
        assert made[0][2] == made[1][2]


def test_flash_attention_of_a_hybrid_cuts_the_full_layers(flash_attention):
    name, more = HYBRIDS[0]
    check_turns(model_with("flash_attention_2", name, **more), SNAPKV, (80,))


@pytest.mark.parametrize("policy, more", [*((one, {}) for one in UNEQUAL), (POLICY, dict(gates=gate)), ("pyramid_kv | budget(24)", {}), ("knorm | budget(ratio=0.5, scope=global)", {})])
def test_flash_attention_is_refused_at_once_where_heads_differ(policy, more):
    model = model_with("flash_attention_2")
    with pytest.raises(ValueError) as error:
        kvpolicy.hf.evict(model, policy, **more)
    assert str(error.value).startswith("hf.evict: attention implementation = flash_attention_2, but lanes may hold unequal numbers of entries under ")
    assert str(error.value).endswith(", and masks of lanes are taken by sdpa, eager and flex_attention")


def test_a_score_in_python_may_have_a_threshold_elsewhere(flash_attention):
    model = model_with("flash_attention_2")
    kvpolicy.hf.evict(model, lambda layer: layer.keys[..., 0], budget=24)
    kvpolicy.hf.evict(model, "knorm | budget(ratio=0.5, by=seen)")
    with pytest.raises(ValueError, match="flash_attention_2, but lanes may hold unequal"):
        kvpolicy.hf.evict(model, lambda layer: layer.keys[..., 0], parts="at_least(0)")


@pytest.mark.parametrize("name, _, more", MORE[::2], ids=[one[0] for one in MORE[::2]])
@pytest.mark.parametrize("policy", [SNAPKV, "snapkv(window=8) | budget(ratio=0.5)", *UNEQUAL[:2]])
def test_flex_attention_reads_every_lane(name, _, more, policy, flex_attention):
    model = model_with("flex_attention", name, **more)
    check_turns(model, policy, (80, 50, 20))
    assert len(flex_attention) > 0


def test_flex_attention_takes_the_mask_of_an_admission(flex_attention):
    model, ids = model_with("flex_attention"), tokens(2, 90)
    mask = torch.ones_like(ids)
    mask[1, :21] = 0
    check_admission(model, ids, mask, (60, 1, 20, 1, 8))
    assert (2, 4, 60, 60) in flex_attention


def test_another_attention_is_refused():
    with pytest.raises(ValueError, match="attention implementation = paged, but the known ones are sdpa, eager, flex_attention and flash_attention_2"):
        kvpolicy.hf.evict(model_with("paged"), SNAPKV)
