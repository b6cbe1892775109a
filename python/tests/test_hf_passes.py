# SPDX-License-Identifier: Apache-2.0
"""Policies that read a whole prompt, or what a model reads after it, in models of transformers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_hf import generated, model_of, tokens
from transformers import DynamicCache

import kvpolicy.hf
from kvpolicy._passes import log_sum_exps
from kvpolicy.hf import Pass, Repeated

REPEATED = Repeated([5, 6], [7, 8], [9], chunk=25)
WHOLE = ["compactor | budget(20)", "leverage(sketch=6) | budget(20)", "late_attention(rows=0.2) | budget(30)", "pyramid_infer"]
AFTER = ["kvzip | budget(20)", "kvzip(plus=true) | budget(20)", "kvcompose | budget(20)", "dapq(recent=4) | budget(20)", "lookahead_kv(recent=4) | budget(20)"]


def passes_of(policy):
    return None if policy in WHOLE else REPEATED if policy.startswith("kvzip") else lambda prompt: [Pass(prompt[-8:])]


def cut_by(model, ids, policy, chunks=(), mask=None, **more):
    cache, begins = DynamicCache(config=model.config), [0, *chunks]
    with torch.no_grad(), kvpolicy.hf.evict(model, policy, passes=passes_of(policy), **more) as eviction, eviction.prompt():
        for begin, end in zip(begins, [*chunks, ids.shape[1]]):
            positions = {} if mask is None else {"attention_mask": mask[:, :end], "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, begin:end]}
            model(input_ids=ids[:, begin:end], past_key_values=cache, **positions)
    return eviction, cache


def lanes_of(eviction):
    return [eviction.kept.lane(layer, 0, head).tolist() for layer in range(3) for head in range(2)]


@pytest.mark.parametrize("policy", WHOLE + AFTER)
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_chunks_of_a_prompt_are_one_prompt(name, policy):
    model, ids = model_of(name), tokens(1, 80)
    whole, _ = cut_by(model, ids, policy)
    in_chunks, _ = cut_by(model, ids, policy, chunks=(13, 14, 50))
    assert whole.decisions == in_chunks.decisions == 1 and whole.kept.counts.sum() < 6 * 80
    assert lanes_of(whole) == lanes_of(in_chunks)


@pytest.mark.parametrize("policy", WHOLE)
def test_padding_changes_nothing(policy):
    model, ids = model_of("Llama"), tokens(1, 80)
    padded = torch.cat((torch.cat((tokens(1, 9, seed=5), ids), dim=1), tokens(1, 89, seed=6)))
    mask = torch.ones_like(padded)
    mask[0, :9] = 0
    assert lanes_of(cut_by(model, ids, policy)[0]) == lanes_of(cut_by(model, padded, policy, mask=mask)[0])


@pytest.mark.parametrize("policy", AFTER)
def test_a_cache_that_keeps_all_is_as_without_passes(policy):
    model, ids = model_of("Llama"), tokens(1, 80)
    plain, expected, _ = generated(model, ids, 6)
    keeps = policy.replace("budget(20)", "budget(100)")
    with kvpolicy.hf.evict(model, keeps, passes=passes_of(policy)) as eviction:
        sequences, logits, cache = generated(model, ids, 6)
    assert eviction.decisions == 0 and torch.equal(sequences, plain) and cache.get_seq_length() == 85
    assert (logits - expected).abs().max() < 1e-4


def test_answers_go_on_with_what_is_left():
    """A prompt, and tokens behind the cut, under a mask of the lanes' entries: as with a full cache of which others are masked."""
    model, ids = model_of("Llama"), tokens(1, 90)
    with torch.no_grad(), kvpolicy.hf.evict(model, "kvzip | budget(30)", passes=REPEATED) as eviction:
        cache, full = (DynamicCache(config=model.config) for _ in range(2))
        model(input_ids=ids[:, :80], past_key_values=cache)
        made = torch.cat([model(input_ids=ids[:, at : at + 1], past_key_values=cache).logits for at in range(80, 90)], dim=1)
        held = eviction.positions(cache)
    assert eviction.decisions == 1 and {len(one) for one in held} != {40}
    seen = {layer: torch.zeros(1, 2, 90, dtype=torch.bool) for layer in range(3)}
    for lane, positions in enumerate(held):
        seen[lane // 2][0, lane % 2, torch.from_numpy(positions.astype(np.int64))] = True
    plain = model.config._attn_implementation
    with torch.no_grad():
        model(input_ids=ids[:, :80], past_key_values=full)
        hooks = [layer.self_attn.register_forward_pre_hook(lambda module, args, kwargs: (args, {**kwargs, "attention_mask": shown(seen[module.layer_idx], kwargs["hidden_states"].shape[1])}), with_kwargs=True)
                 for layer in model.model.layers]
        expected = model(input_ids=ids[:, 80:], past_key_values=full).logits
        for hook in hooks:
            hook.remove()
    assert model.config._attn_implementation == plain and (made - expected).abs().max() < 1e-3


def shown(seen, rows):
    """The mask [1, query head, row, entry] of the last rows, by what each of two KV heads has."""
    place = torch.arange(seen.shape[2])
    causal = place <= torch.arange(seen.shape[2] - rows, seen.shape[2])[:, None]
    return (seen[:, :, None] & causal).repeat_interleave(2, dim=1)


def test_log_sum_exps_are_of_all_keys_before_a_row(monkeypatch):
    monkeypatch.setattr("kvpolicy._passes.LOGITS", 300)
    query, key = torch.randn(1, 4, 7, 8), torch.randn(1, 2, 20, 8)
    for soft_cap in (0.0, 0.5):
        made = log_sum_exps(query, key, 0.3, soft_cap)
        for head in range(4):
            for row in range(7):
                logits = key[0, head // 2, : 14 + row].double() @ query[0, head, row].double() * 0.3
                logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap else logits
                assert abs(made[0, head, row] - logits.logsumexp(dim=0)) < 1e-5


def test_a_prompt_is_repeated_in_chunks():
    made = Repeated([1], [2], [3], skipped=2, chunk=3, overlap=2)(list(range(10, 20)))
    assert [list(one.tokens) for one in made] == [[1, 3, 12, 13, 14], [2, 13, 14, 3, 15, 16, 17], [2, 16, 17, 3, 18, 19]]
    assert [(one.begin, one.end) for one in made] == [(2, 5), (5, 8), (8, 10)]


def test_a_prompt_that_is_only_the_begin_of_a_chat_is_refused():
    with pytest.raises(ValueError, match="prompt = 2 tokens, but the first 2 are what a chat begins with"):
        Repeated([1], [2], [3], skipped=2)([10, 11])


class Failing(Exception):
    pass


def test_a_pass_that_fails_leaves_the_cache_as_it_was():
    model, ids = model_of("Llama"), tokens(1, 60)
    cache, plain = (DynamicCache(config=model.config) for _ in range(2))

    def stop(module, args):
        if cache.get_seq_length() > 60 or module.layer_idx == 2 and cache.layers[0].keys.shape[2] > 60:
            raise Failing

    handle = model.model.layers[2].self_attn.register_forward_pre_hook(stop)
    with torch.no_grad(), kvpolicy.hf.evict(model, "kvzip | budget(20)", passes=REPEATED) as eviction:
        with pytest.raises(Failing):
            model(input_ids=ids, past_key_values=cache)
        handle.remove()
        assert eviction.decisions == 0 and [one.keys.shape[2] for one in cache.layers] == [60] * 3
    with torch.no_grad():
        model(input_ids=ids, past_key_values=plain)
    assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, plain.layers))


def test_the_tokens_of_a_pass_may_be_seen_by_the_next_one():
    model, ids = model_of("Llama"), tokens(1, 60)
    kept = []
    for stays in (False, True):
        cache = DynamicCache(config=model.config)
        passes = lambda prompt: [Pass(prompt, stays=stays), Pass(prompt[:30], stays=stays)]
        with torch.no_grad(), kvpolicy.hf.evict(model, "kvcompose(rows=mean) | budget(ratio=0.5)", passes=passes) as eviction:
            model(input_ids=ids, past_key_values=cache)
        kept.append(lanes_of(eviction))
        assert cache.get_seq_length() == 60
    assert kept[0] != kept[1]


@pytest.mark.parametrize("policy", ["kvzip | budget(20)", "compactor | budget(20)"])
def test_a_second_prompt_is_refused_before_it_is_read(policy):
    model, ids = model_of("Llama"), tokens(1, 90)
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, policy, passes=passes_of(policy) if "kvzip" in policy else None):
        model(input_ids=ids[:, :60], past_key_values=cache)
        rows = [one.keys.shape[2] for one in cache.layers]
        with pytest.raises(ValueError, match="hf.evict: cache = 60 tokens before this prompt, but (kvzip|compactor) decides once, about a prompt that it has seen from its first token on"):
            model(input_ids=ids[:, 60:], past_key_values=cache)
        model(input_ids=ids[:, 60:61], past_key_values=cache)  # an answer goes on
    assert [one.keys.shape[2] for one in cache.layers] == [one + 1 for one in rows]


def test_what_was_taken_back_is_no_part_of_the_prompt():
    from kvpolicy._cache import CROPS_TO_LENGTH

    model, ids = model_of("Llama"), tokens(1, 90)
    for policy in ("leverage(sketch=6) | budget(20)", "kvzip | budget(20)"):
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), kvpolicy.hf.evict(model, policy, passes=passes_of(policy) if "kvzip" in policy else None) as eviction, eviction.prompt():
            model(input_ids=ids[:, :40], past_key_values=cache)
            model(input_ids=tokens(1, 20, seed=7), past_key_values=cache)
            cache.crop(40 if CROPS_TO_LENGTH else -20)
            model(input_ids=ids[:, 40:], past_key_values=cache)
        expected, _ = cut_by(model, ids, policy) if "kvzip" in policy else cut_whole(model, ids, policy)
        assert lanes_of(eviction) == lanes_of(expected)


def cut_whole(model, ids, policy):
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, policy) as eviction:
        model(input_ids=ids, past_key_values=cache)
    return eviction, cache


MEAN, COVARIANCE = torch.zeros(3, 4, 16), torch.eye(16).expand(3, 4, 16, 16)
REFUSED = {
    "no-passes": (dict(policy="kvzip | budget(20)"), "passes = None, but kvzip goes by the query rows of what a model reads after a prompt: give passes="),
    "unread": (dict(policy="knorm | budget(20)", passes=REPEATED), "passes = given, but knorm does not go by what a model reads after a prompt"),
    "when": (dict(policy="kvzip | budget(20)", passes=REPEATED, when="forward"), "when = forward, but kvzip decides once for each prompt, after its prefill"),
    "model-of-queries": (dict(policy="knorm | budget(20)", query_model=(MEAN, COVARIANCE)), "query_model = given, but knorm reads no query rows before RoPE"),
    "one": (dict(policy="cap_kv | budget(20)", query_model=MEAN), "query_model = Tensor, but it is a mean and a covariance"),
    "shape": (dict(policy="cap_kv | budget(20)", query_model=(MEAN[:2], COVARIANCE)), "query_model mean = of shape (2, 4, 16), but layers, query heads and channels are (3, 4, 16)"),
    "nan": (dict(policy="cap_kv | budget(20)", query_model=(MEAN, COVARIANCE / 0)), "query_model covariance = with NaN or infinity, but keys are multiplied by it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_a_policy_is_refused(name):
    how, text = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        kvpolicy.hf.evict(model_of("Llama"), **how)
    assert str(refused.value) == f"hf.evict: {text}"


def test_models_that_cannot_take_tokens_back_are_refused():
    model = model_of("Gemma3Text", head_dim=16, sliding_window=16, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
    with pytest.raises(ValueError, match="hf.evict: model = Gemma3ForCausalLM, but its layers with a sliding window or linear attention cannot take back"):
        kvpolicy.hf.evict(model, "kvzip | budget(20)", passes=REPEATED)
    with pytest.raises(ValueError, match="hf.evict: model = Phi3ForCausalLM, but it has a fused projection, which shows no keys before RoPE"):
        kvpolicy.hf.evict(model_of("Phi3"), "leverage | budget(20)")


@pytest.mark.parametrize("passes, text", [
    (lambda prompt: [], "passes = none, but the policy goes by their query rows"),
    (lambda prompt: [Pass([])], "passes = Pass(tokens=[], begin=0, end=None, stays=False), but each is a kvpolicy.hf.Pass of one token or more"),
    (lambda prompt: [prompt], "passes = ["),
    (lambda prompt: [Pass([3], 4, 61)], "passes = a span of 4 to 61, but the prompt has 60 tokens"),
], ids=["none", "empty", "list", "span"])
def test_passes_that_are_none_are_refused(passes, text):
    model, ids = model_of("Llama"), tokens(1, 60)
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, "kvzip | budget(20)", passes=passes) as eviction:
        with pytest.raises(ValueError) as refused:
            model(input_ids=ids, past_key_values=cache)
    assert str(refused.value).startswith(f"hf.evict: {text}") and eviction.decisions == 0 and cache.get_seq_length() == 60


@pytest.mark.parametrize("given, text", [
    (dict(input_ids=tokens(2, 60)), "batch = 2 sequences, but a model reads something after the prompt of one sequence without padding"),
    (dict(input_ids=tokens(1, 60), attention_mask=torch.arange(60)[None] >= 3), "batch = padded, but a model reads something after the prompt of one sequence without padding"),
    (dict(inputs_embeds=torch.zeros(1, 60, 64)), "inputs_embeds = given, but a model reads the tokens of a prompt again: give input_ids"),
], ids=["two", "padded", "rows"])
def test_prompts_that_cannot_be_read_again_are_refused(given, text):
    model = model_of("Llama")
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), kvpolicy.hf.evict(model, "kvzip | budget(20)", passes=REPEATED):
        with pytest.raises(ValueError) as refused:
            model(**given, past_key_values=cache)
    assert str(refused.value) == f"hf.evict: {text}" and cache.get_seq_length() == 0


def test_drafts_are_refused():
    model, ids = model_of("Llama"), tokens(1, 60)
    for policy in ("kvzip | budget(20)", "leverage | budget(20)"):
        with kvpolicy.hf.evict(model, policy, passes=REPEATED if "kvzip" in policy else None):
            with pytest.raises(ValueError, match="hf.evict: drafts = speculative decoding, but (kvzip|leverage) reads all rows of a prompt"):
                generated(model, ids, 4, prompt_lookup_num_tokens=3)
