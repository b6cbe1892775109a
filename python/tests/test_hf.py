# SPDX-License-Identifier: Apache-2.0
"""Eviction in small random models of transformers, against a full cache under a mask of the same keep sets."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from masked import Masked
from test_signals import SPECS
from transformers import DynamicCache

import kvpolicy.hf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SIZES = dict(vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
             max_position_embeddings=4096, initializer_range=0.15, pad_token_id=0, bos_token_id=1, eos_token_id=None)
SNAPKV = "snapkv(window=8) | budget(24)"
TOLERANCE = 1e-3  # of logits: sums in another order


def model_of(name, attention="sdpa", **more):
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    torch.manual_seed(0)
    made = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")
    return made._from_config(config, attn_implementation=attention).eval()


def tokens(*shape, seed=1):
    return torch.randint(2, 128, shape, generator=torch.Generator().manual_seed(seed))


def generated(model, ids, steps, cache=None, mask=None, **more):
    cache = DynamicCache(config=model.config) if cache is None else cache
    made = model.generate(ids, attention_mask=torch.ones_like(ids) if mask is None else mask, max_new_tokens=steps, do_sample=False,
                          past_key_values=cache, output_logits=True, return_dict_in_generate=True, **more)
    return made.sequences, torch.stack(made.logits, dim=1), cache


def check_turn(engine, ids, mask, sequences, logits):
    """Goes through one turn with the reference, and holds each step's logits against it."""
    length = ids.shape[1]
    known = engine.cache.get_seq_length()
    expected = engine.forward(ids[:, known:], mask)
    for step in range(logits.shape[1]):
        if step == 1:
            engine.evict()
        if step > 0:
            mask = None if mask is None else torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
            expected = engine.forward(sequences[:, length + step - 1, None], mask)
        assert (logits[:, step] - expected).abs().max() < TOLERANCE, step


def check_rows(engine, cache):
    for layer in engine.full:
        keys = cache.layers[layer].keys
        for sequence in range(keys.shape[0]):
            for head in range(keys.shape[1]):
                kept = engine.kept_keys(layer, sequence, head)
                assert torch.allclose(keys[sequence, head, keys.shape[2] - len(kept) :], kept, atol=1e-4), (layer, sequence, head)


MODELS = [("Llama", "sdpa", {}), ("Llama", "eager", {}), ("Qwen2", "sdpa", {}), ("Qwen3", "sdpa", dict(head_dim=32)),
          ("Mistral", "sdpa", dict(sliding_window=None)), ("Phi3", "sdpa", {}), ("Gemma", "sdpa", dict(head_dim=16)),
          ("Gemma2", "eager", dict(head_dim=16, sliding_window=16, query_pre_attn_scalar=24, num_hidden_layers=4)),
          ("Gemma3Text", "sdpa", dict(head_dim=16, sliding_window=16, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2))]


@pytest.mark.parametrize("name, attention, more", MODELS, ids=[f"{name}-{attention}" for name, attention, _ in MODELS])
def test_logits_are_those_of_a_mask(name, attention, more):
    model, ids = model_of(name, attention, **more), tokens(1, 80)
    # The softmax of a capped logit is not in the reference's SnapKV, so that model keeps the last entries.
    policy = SNAPKV if name != "Gemma2" else "streaming_llm(sinks=4) | budget(24)"
    with kvpolicy.hf.evict(model, policy) as eviction:
        sequences, logits, cache = generated(model, ids, 8)
    assert eviction.decisions == 1 and eviction.kept.report["unobserved"] == 0
    engine = Masked(model)
    if name == "Gemma2":
        engine.evict = lambda: [engine.alive[layer][:, :, 4:60].fill_(False) for layer in engine.full]
        engine.seen, plain = lambda *args: made if (made := plain(*args)) is None else made.clone(), engine.seen
    check_turn(engine, ids, None, sequences, logits)
    check_rows(engine, cache)
    assert cache.get_seq_length() == 87
    for layer in engine.full:
        assert cache.layers[layer].keys.shape[2] == 24 + 7
    assert model.config._attn_implementation == attention


def test_a_batch_is_padded_on_the_left():
    model, ids = model_of("Llama"), tokens(3, 80)
    mask = torch.ones_like(ids)
    for sequence, length in enumerate((80, 50, 20)):
        ids[sequence, : 80 - length] = 0
        mask[sequence, : 80 - length] = 0
    for policy, engine in ((SNAPKV, Masked(model)), ("snapkv(window=8) | budget(ratio=0.5)", Masked(model, ratio=0.5))):
        with kvpolicy.hf.evict(model, policy):
            sequences, logits, cache = generated(model, ids, 8, mask=mask)
        check_turn(engine, ids, mask, sequences, logits)
        check_rows(engine, cache)


def test_turns_evict_again():
    model = model_of("Llama")
    cache, ids, turns = DynamicCache(config=model.config), tokens(1, 60), []
    with kvpolicy.hf.evict(model, SNAPKV) as eviction:
        for turn in range(3):
            sequences, logits, cache = generated(model, ids, 6, cache=cache)
            turns.append((ids, sequences, logits))
            ids = torch.cat((sequences, tokens(1, 20, seed=turn + 2)), dim=1)
    assert eviction.decisions == 3
    assert cache.get_seq_length() == 60 + 6 + 20 + 6 + 20 + 5
    engine = Masked(model)
    for before, sequences, logits in turns:
        check_turn(engine, before, None, sequences, logits)
    check_rows(engine, cache)
    # A block of its own for a turn continues with what the earlier block recorded.
    with kvpolicy.hf.evict(model, SNAPKV) as later:
        sequences, logits, cache = generated(model, ids, 6, cache=cache)
    check_turn(engine, ids, None, sequences, logits)
    assert later.decisions == 1 and later.kept.report["unobserved"] == 0


def test_another_policy_may_take_over():
    """A padded batch of three turns, each under a policy of its own in a block of its own."""
    model, ids = model_of("Llama"), tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[1, :45] = 0
    engine, cache = Masked(model), DynamicCache(config=model.config)
    for budget in (24, 16, 24):
        with kvpolicy.hf.evict(model, f"snapkv(window=8) | budget({budget})") as eviction:
            sequences, logits, cache = generated(model, ids, 6, cache=cache, mask=mask)
        engine.budget = budget
        check_turn(engine, ids, mask, sequences, logits)
        check_rows(engine, cache)
        assert eviction.decisions == 1
        ids = torch.cat((sequences, tokens(2, 12, seed=9)), dim=1)
        mask = torch.cat((mask, torch.ones(2, 18, dtype=mask.dtype)), dim=1)


def test_a_prefill_in_chunks_decides_once():
    model, ids = model_of("Llama"), tokens(1, 80)
    plain, in_chunks = generated(model, ids, 8)[1], generated(model, ids, 8, prefill_chunk_size=16)[1]
    if (plain - in_chunks).abs().max() > TOLERANCE:
        pytest.skip(f"the chunked prefill of transformers {transformers.__version__} gives other logits without any eviction, too")
    with kvpolicy.hf.evict(model, SNAPKV) as whole:
        _, expected, _ = generated(model, ids, 8)
    with kvpolicy.hf.evict(model, SNAPKV) as chunked:
        _, logits, _ = generated(model, ids, 8, prefill_chunk_size=16)
    assert whole.decisions == chunked.decisions == 1
    assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("policy", ["h2o(heavy=12, recent=12) | budget(24)", "tova | budget(24)", "streaming_llm | budget(24)"])
def test_every_forward_can_decide(policy):
    model, ids = model_of("Llama"), tokens(1, 80)
    with kvpolicy.hf.evict(model, policy, when="forward") as eviction:
        _, logits, cache = generated(model, ids, 8)
    assert eviction.decisions == 8 and eviction.kept.report["unobserved"] == 0
    assert {layer.keys.shape[2] for layer in cache.layers} == {24}
    assert cache.get_seq_length() == 87
    if policy.startswith("streaming"):
        keys = cache.layers[1].keys[0, 0]
        full = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, past_key_values=full)
        assert torch.equal(keys[:4], full.layers[1].keys[0, 0, :4])


@pytest.mark.parametrize("policy", ["h2o(heavy=12, recent=12) | budget(24)", "tova | budget(24)", "knorm | recent(4) | budget(ratio=0.5)"])
def test_a_sequence_decides_in_a_batch_as_alone(policy):
    model, ids = model_of("Llama"), tokens(2, 60)
    when = "prefill" if "ratio" in policy else "forward"
    mask = torch.ones_like(ids)
    mask[1, :25] = 0
    with kvpolicy.hf.evict(model, policy, when=when):
        sequences, logits, cache = generated(model, ids, 6, mask=mask)
    for sequence, begin in ((0, 0), (1, 25)):
        with kvpolicy.hf.evict(model, policy, when=when):
            alone, expected, own = generated(model, ids[sequence : sequence + 1, begin:], 6)
        assert (logits[sequence] - expected[0]).abs().max() < TOLERANCE
        assert alone[0, -6:].tolist() == sequences[sequence, -6:].tolist()
        rows = own.layers[0].keys.shape[2]
        assert torch.allclose(cache.layers[2].values[sequence, :, -rows:], own.layers[2].values[0], atol=1e-4)


def test_beams_are_cut_once():
    model, ids = model_of("Llama"), tokens(1, 80)
    beams = dict(max_new_tokens=6, num_beams=3, do_sample=False)
    expected = model.generate(ids, **beams)
    with kvpolicy.hf.evict(model, "snapkv(window=8) | budget(1000)"):
        assert torch.equal(model.generate(ids, **beams), expected)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV) as eviction:
        made = model.generate(ids, past_key_values=cache, **beams)
        assert eviction.decisions == 1 and cache.layers[0].keys.shape[2] == 24 + 5
        with pytest.raises(ValueError, match="cache = reordered, but a beam search has moved its sequences"):
            model(torch.cat((made, made), dim=1).expand(3, -1), past_key_values=cache)


def test_a_full_budget_changes_nothing():
    model, ids = model_of("Llama"), tokens(1, 50)
    _, expected, _ = generated(model, ids, 8)
    with kvpolicy.hf.evict(model, "snapkv | budget(1000)") as eviction:
        _, logits, cache = generated(model, ids, 8)
    assert eviction.decisions == 0 and torch.equal(logits, expected)
    assert cache.layers[0].keys.shape[2] == 57


def test_tensors_own_no_more_than_they_hold():
    model, ids = model_of("Llama"), tokens(1, 80)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV), torch.no_grad():
        model(ids, past_key_values=cache)
    for layer in cache.layers:
        assert layer.keys.untyped_storage().nbytes() == 2 * 24 * 16 * 4


def test_bfloat16_is_read_as_it_is():
    model, ids = model_of("Llama").to(torch.bfloat16), tokens(1, 80)
    with kvpolicy.hf.evict(model, SNAPKV):
        _, _, cache = generated(model, ids, 2)
    engine = Masked(model)
    engine.forward(ids)
    engine.evict()
    for head in range(2):  # of layer 0, since later layers differ in the last bit of their attention
        assert torch.equal(cache.layers[0].keys[0, head, :24], engine.kept_keys(0, 0, head))


def test_tensors_of_torch_are_decided_about():
    keys, queries = torch.randn(2, 1, 2, 60, 16), torch.randn(2, 1, 4, 8, 16)
    made = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys, queries=queries)
    expected = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys.numpy(), queries=queries.numpy())
    assert (made.array() == expected.array()).all()
    brain = keys.to(torch.bfloat16)
    made = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=brain.transpose(0, 1).contiguous().transpose(0, 1), queries=queries)
    expected = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=brain.float().numpy(), queries=queries.numpy())
    assert (made.array() == expected.array()).all()


def refused(model, text, policy=SNAPKV, when="prefill", **inputs):
    before = model.config._attn_implementation
    with pytest.raises(ValueError) as error:
        with kvpolicy.hf.evict(model, policy, when=when), torch.no_grad():
            model(tokens(1, 40), **inputs) if "input_ids" not in inputs else model(**inputs)
    assert str(error.value) == text
    assert model.config._attn_implementation == before and "_prefill" not in model.__dict__
    assert not model._forward_pre_hooks and not model.model._forward_pre_hooks and not model.model._forward_hooks


def test_refusals_are_one_line_and_leave_the_model():
    model = model_of("Llama")
    static = transformers.StaticCache(config=model.config, max_cache_len=64)
    refused(model, "hf.evict: cache = StaticCache, but only a DynamicCache can be cut", past_key_values=static)
    refused(model, "hf.evict: cache = offloaded, but its rows are not where the policy reads them",
            past_key_values=DynamicCache(config=model.config, offloading=True) if torch.cuda.is_available() else _offloaded(model))
    quantised = DynamicCache(config=model.config)
    quantised.layers[1] = _Quantised()
    refused(model, "hf.evict: cache layer 1 = _Quantised, but it is a DynamicLayer or EvictedLayer", past_key_values=quantised)
    refused(model, "hf.evict: gates = None, but trim_kv reads the log_beta of a gate: give gates=", policy="trim_kv | budget(8)")
    refused(model, "hf.evict: policy = not_stale | unlimited | at_least(least=0.5, strict=false, unbounded=false), but it reads stale_spans, which models of transformers do not give", policy="side_quest")
    *most, last = kvpolicy.scorers()
    refused(model, f"parse: column 1 = snapkw, but a policy begins with its scorer; there are {', '.join(most)} and {last}; did you mean snapkv?", policy="snapkw")
    refused(model, "hf.evict: when = always, but a policy decides after each prefill or after each forward", when="always")
    refused(model, "hf.evict: attention_mask = a hole or padding on the right, but sequences are padded on the left",
            attention_mask=torch.tensor([[1] * 39 + [0]]))
    refused(model_of("Mistral", sliding_window=16), "hf.evict: model = MistralForCausalLM with a sliding window in every layer, but only layers that attend to all tokens are cut")


@pytest.mark.parametrize("scorer", SPECS)
def test_what_a_model_does_not_give_is_refused_before_a_prompt(scorer):
    model, ids = model_of("Llama"), tokens(1, 300)
    try:
        block = kvpolicy.hf.evict(model, SPECS[scorer])
    except ValueError as refused_at_once:
        assert str(refused_at_once).startswith("hf.evict: ")
        return
    with block:
        generated(model, ids, 2)


class _Quantised(transformers.cache_utils.DynamicLayer):
    pass


def _offloaded(model):
    made = DynamicCache(config=model.config)
    made.offloading = True
    return made


def test_a_failed_forward_takes_its_tokens_back():
    model, ids = model_of("Llama"), tokens(1, 40)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV), torch.no_grad():
        norm = model.model.norm
        model.model.norm = None
        with pytest.raises(TypeError):
            model(ids, past_key_values=cache)
        model.model.norm, last = norm, model.model.layers[2].mlp
        model.model.layers[2].mlp, lazy = None, DynamicCache()  # whose layers are made when they are first written
        with pytest.raises(TypeError):
            model(ids, past_key_values=lazy)
        model.model.layers[2].mlp = last
        assert (model(ids, past_key_values=lazy).logits - model(ids).logits).abs().max() < TOLERANCE
        record = kvpolicy.hf._records[cache]
        assert [one.evictor.counts for one in record.values()] == [[0]]
        assert cache.get_seq_length() == 0
        assert (model(ids, past_key_values=cache).logits - model(ids).logits).abs().max() < TOLERANCE


def test_dropped_tokens_cannot_be_taken_back():
    model, ids = model_of("Llama"), tokens(1, 40)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV), torch.no_grad():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        with pytest.raises(ValueError, match="only the 1 tokens after the last eviction"):
            cache.crop(-2)
        cache.crop(-1)
        model(ids[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == 41 and cache.layers[0].keys.shape[2] == 25


def test_blocks_do_not_nest():
    model = model_of("Llama")
    with kvpolicy.hf.evict(model, SNAPKV):
        with pytest.raises(ValueError, match="inside another block"):
            with kvpolicy.hf.evict(model, SNAPKV):
                pass
        assert model.config._attn_implementation == "kvpolicy_sdpa"
    assert model.config._attn_implementation == "sdpa"


def test_a_bar_shows_a_prefill(capsys):
    model, ids = model_of("Llama"), tokens(1, 80)
    with kvpolicy.hf.evict(model, SNAPKV, progress=True):
        generated(model, ids, 2)
    assert "prefill of 80 tokens" in capsys.readouterr().err


# Traps ------------------------------------------------------------------------------------------------------------------
def test_an_attention_function_may_be_wrapped_as_kvpress_wraps_all():
    """kvpress puts a function around every attention function, which gives dropout by its place."""

    def wrapped(function):
        return lambda module, query, key, value, attention_mask, dropout, **kwargs: function(module, query, key, value, attention_mask, dropout, **kwargs)

    model, ids = model_of("Llama"), tokens(1, 80)
    with kvpolicy.hf.evict(model, SNAPKV):
        _, expected, _ = generated(model, ids, 8)
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    try:
        for name, function in before.items():
            ALL_ATTENTION_FUNCTIONS[name] = wrapped(function)
        with kvpolicy.hf.evict(model, SNAPKV) as eviction:
            _, logits, _ = generated(model, ids, 8)
    finally:
        for name, function in before.items():
            ALL_ATTENTION_FUNCTIONS[name] = function
    assert eviction.decisions == 1 and torch.equal(logits, expected)


def test_the_scale_is_the_one_of_the_call():
    """OPT scales its query rows itself, and calls attention with the factor 1."""
    config = transformers.OPTConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=96, max_position_embeddings=256,
                                    word_embed_proj_dim=64, init_std=0.6, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model, ids = transformers.OPTForCausalLM._from_config(config, attn_implementation="sdpa").eval(), tokens(1, 80)
    rows, full = [], DynamicCache(config=model.config)
    hooks = [one.q_proj.register_forward_hook(lambda _module, _args, made: rows.append(made)) for one in model.modules() if hasattr(one, "q_proj")]
    with torch.no_grad():
        model(ids, past_key_values=full)
    for hook in hooks:
        hook.remove()
    queries = [one.view(1, 80, 4, 16).transpose(1, 2)[:, :, -8:].contiguous() * 16**-0.5 for one in rows]
    expected = kvpolicy.decide(SNAPKV, keys=[one.keys for one in full.layers], queries=queries, scale=1.0)
    with kvpolicy.hf.evict(model, SNAPKV) as eviction, torch.no_grad():
        model(ids)
    assert (eviction.kept.array() == expected.array()).all()


def assistant_of(model):
    """A model whose drafts the other one never accepts."""
    import copy

    made = copy.deepcopy(model)
    made.lm_head = torch.nn.Linear(64, 128, bias=False)
    made.lm_head.weight.data = -model.lm_head.weight.data.clone()
    return made


@pytest.mark.parametrize("policy, when", [(SNAPKV, "prefill"), ("h2o(heavy=12, recent=12) | budget(24)", "forward"), ("tova | budget(24)", "forward")])
def test_refused_drafts_leave_nothing(policy, when):
    """With drafts that are all refused, each forward adds the token that it adds without speculation."""
    model, ids = model_of("Llama"), tokens(1, 80)
    with kvpolicy.hf.evict(model, policy, when=when):
        expected, logits, plain = generated(model, ids, 8)
    assistant = assistant_of(model)
    with kvpolicy.hf.evict(model, policy, when=when) as eviction:
        made, drafted, cache = generated(model, ids, 8, assistant_model=assistant)
    assert torch.equal(made, expected) and (drafted - logits).abs().max() < TOLERANCE
    assert eviction.decisions >= 1 and "generate" not in model.__dict__
    assert cache.get_seq_length() == plain.get_seq_length()
    for one, other in zip(cache.layers, plain.layers):
        assert torch.allclose(one.keys, other.keys, atol=1e-4)


def test_accepted_drafts_are_tokens():
    model, ids = model_of("Llama"), tokens(1, 80)
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    for policy, when in (("snapkv(window=8) | budget(1000)", "prefill"), ("h2o(heavy=500, recent=500) | budget(1000)", "forward")):
        with kvpolicy.hf.evict(model, policy, when=when):
            assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, assistant_model=model_of("Llama")), expected)
    with kvpolicy.hf.evict(model, SNAPKV) as eviction:
        repeated = torch.cat((ids, ids), dim=1)
        cache = DynamicCache(config=model.config)
        model.generate(repeated, max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=4, past_key_values=cache)
    assert eviction.decisions == 1 and eviction.kept.report["unobserved"] == 0
    assert cache.layers[0].keys.shape[2] < 24 + 13


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "torch"])
def test_a_copy_of_a_cut_cache_knows_its_padding(copied, tmp_path):
    import copy
    import pickle

    model, ids = model_of("Llama"), tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[1, :45] = 0
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV):
        sequences, _, _ = generated(model, ids, 4, cache=cache, mask=mask)
    if copied == "deepcopy":
        twin = copy.deepcopy(cache)
    elif copied == "pickle":
        twin = pickle.loads(pickle.dumps(cache))
    else:
        torch.save(cache, tmp_path / "cache.pt")
        twin = torch.load(tmp_path / "cache.pt", weights_only=False)
    ids = torch.cat((sequences, tokens(2, 12, seed=9)), dim=1)
    mask = torch.cat((mask, torch.ones(2, 16, dtype=mask.dtype)), dim=1)
    made = []
    for one in (cache, twin):
        with kvpolicy.hf.evict(model, SNAPKV):
            made.append(generated(model, ids, 4, cache=one, mask=mask)[1])
    assert (made[0] - made[1]).abs().max() < 1e-5


def test_crop_is_that_of_transformers():
    model, ids = model_of("Llama"), tokens(1, 40)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, SNAPKV), torch.no_grad():
        expected = model(ids, past_key_values=cache).logits
        if kvpolicy._cache.CROPS_TO_LENGTH:
            cache.crop(0)
        else:
            cache.crop(0)
            assert cache.get_seq_length() == 40
            with pytest.raises(ValueError, match="crop: tokens = 3, but a number of tokens to remove"):
                cache.crop(3)
            cache.crop(-40)
        assert cache.get_seq_length() == 0
        assert torch.equal(model(ids, past_key_values=cache).logits, expected)
    assert cache.layers[0].keys.shape[2] == 24


def test_refusals_come_before_the_prompt():
    model = model_of("Llama")

    def refused_at_once(text, of, policy=SNAPKV):
        with pytest.raises(ValueError) as error:
            kvpolicy.hf.evict(of, policy)
        assert text in str(error.value)

    with pytest.raises(ValueError, match="hf.evict: rows = 8, but a policy by name says itself"):
        kvpolicy.hf.evict(model, SNAPKV, rows=8)
    refused_at_once("but lowest_one leaves a hole where an entry was", model, "tova | budget(24) | lowest_one")
    sizes = dict(vocab_size=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    gptj = transformers.GPTJForCausalLM(transformers.GPTJConfig(n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, **sizes))
    refused_at_once("hf.evict: model = GPTJForCausalLM, but ", gptj)
    neox = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64, **sizes))
    refused_at_once("model = GPTNeoXForCausalLM with fused projections (query_key_value)", neox)
    with pytest.raises(ValueError, match="gates = given, but Phi3ForCausalLM has a fused projection, which shows no keys before RoPE"):
        kvpolicy.hf.evict(model_of("Phi3"), "trim_kv | budget(24)", gates=made_up_gate)
    xglm = transformers.XGLMForCausalLM(transformers.XGLMConfig(d_model=64, ffn_dim=96, num_layers=2, attention_heads=4, max_position_embeddings=64, **sizes))
    refused_at_once("hf.evict: model = XGLMForCausalLM, but ", xglm)


# Scores in Python -------------------------------------------------------------------------------------------------------
def far_from_the_mean(layer):
    unit = torch.nn.functional.normalize(layer.keys.float(), dim=-1)
    return -(unit * unit.mean(dim=1, keepdim=True)).sum(dim=-1)


def test_a_score_in_python_decides_in_a_model_as_about_arrays():
    model, ids = model_of("Llama"), tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    full = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), past_key_values=full)
    expected = kvpolicy.decide(far_from_the_mean, parts="sinks(2) | recent(4)", budget=24, keys=[one.keys for one in full.layers], lengths=[60, 40])
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, far_from_the_mean, parts="sinks(2) | recent(4)", budget=24) as eviction:
        generated(model, ids, 4, cache=cache, mask=mask)
    assert (eviction.kept.array() == expected.array()).all()
    assert cache.layers[0].keys.shape[2] == 24 + 3


def test_a_score_in_python_sees_rows_and_positions():
    """SnapKV without pooling, as a function, over two turns."""
    model, ids = model_of("Llama"), tokens(1, 60)

    def mass(layer):
        made = layer.probabilities()
        return made.reshape(2, 2, *made.shape[1:]).sum(dim=2).mean(dim=1)

    kept = []
    for policy, more in (("snapkv(window=8, pool=none)", {}), (mass, dict(rows=8, parts="recent(8)"))):
        cache = DynamicCache(config=model.config)
        with kvpolicy.hf.evict(model, policy, budget=24, **more) as eviction:
            sequences, _, _ = generated(model, ids, 4, cache=cache)
            first = eviction.kept.array()
            generated(model, torch.cat((sequences, tokens(1, 20, seed=4)), dim=1), 4, cache=cache)
        kept.append((first, eviction.kept.array()))
        assert eviction.decisions == 2
    assert (kept[0][0] == kept[1][0]).all() and (kept[0][1] == kept[1][1]).all()


def test_a_score_sees_no_rows_of_a_forward_that_failed():
    model, ids = model_of("Llama"), tokens(1, 60)
    seen = []

    def newest(layer):
        seen.append(layer.queries)
        return layer.positions

    cache, norm = DynamicCache(config=model.config), model.model.norm
    with kvpolicy.hf.evict(model, newest, budget=24, rows=8), torch.no_grad():
        model(ids, past_key_values=cache)
        for fails in (True, False):
            model.model.norm = None if fails else norm
            try:
                model(ids[:, :1], past_key_values=cache)
            except TypeError:
                assert cache.get_seq_length() == 60
        record = next(iter(kvpolicy.hf._records[cache].values()))
        assert torch.equal(record.queries[0][:, :, :7], seen[0][None, :, 1:])


def test_a_ratio_of_seen_tokens_is_served():
    model, ids = model_of("Llama"), tokens(1, 60)
    with kvpolicy.hf.evict(model, "knorm | budget(ratio=0.5, by=seen)") as eviction:
        generated(model, ids, 4)
    assert (eviction.kept.counts == 30).all()


def test_a_score_that_fails_leaves_the_cache():
    model, ids = model_of("Llama"), tokens(1, 40)
    for score, text in ((lambda layer: layer.keys[..., 0] * float("nan"), "it gave NaN for 80 entries"), (lambda layer: layer.keys, "it gave the shape"),
                        (lambda layer: layer.nothing, "it raised AttributeError")):
        cache = DynamicCache(config=model.config)
        with kvpolicy.hf.evict(model, score, budget=24), torch.no_grad():
            with pytest.raises(ValueError, match=text):
                model(ids, past_key_values=cache)
        assert cache.get_seq_length() == 40 and {one.keys.shape[2] for one in cache.layers} == {40}
        with torch.no_grad():
            made = model(ids[:, :1], past_key_values=cache).logits
            expected = model(torch.cat((ids, ids[:, :1]), dim=1)).logits[:, -1:]
        assert (made - expected).abs().max() < TOLERANCE


def drop(engine, kept):
    """Marks in the reference what a decision has dropped."""
    for place, layer in enumerate(engine.full):
        alive = engine.alive[layer].clone()
        for sequence in range(alive.shape[0]):
            for head in range(alive.shape[1]):
                at = alive[sequence, head].nonzero().flatten()
                alive[sequence, head] = False
                alive[sequence, head, at[torch.from_numpy(kept.lane(place, sequence, head).astype("int64"))]] = True
        engine.alive[layer] = alive


UNEQUAL = ["snapkv(window=8) | budget(24, by=ramp)", "snapkv(window=8) | budget(24, scope=layer)", "snapkv(window=8) | budget(24, scope=global)",
           "random | sinks(2) | at_least(0.4)"]


@pytest.mark.parametrize("name, attention, more", [MODELS[0], MODELS[1], MODELS[6], MODELS[8]], ids=["Llama", "Llama-eager", "Gemma", "Gemma3"])
@pytest.mark.parametrize("policy", UNEQUAL)
def test_lanes_of_unequal_lengths_are_masked(policy, name, attention, more):
    """Three turns of a padded batch: layers hold other numbers of rows, and heads have padding in front."""
    model, ids = model_of(name, attention, **more), tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[1, :21] = 0
    engine, cache = Masked(model), DynamicCache(config=model.config)
    for turn in range(3):
        with kvpolicy.hf.evict(model, policy) as eviction:
            sequences, logits, cache = generated(model, ids, 6, cache=cache, mask=mask)
        engine.evict = lambda: drop(engine, eviction.kept)
        check_turn(engine, ids, mask, sequences, logits)
        check_rows(engine, cache)
        assert eviction.decisions == 1 and eviction.kept.counts.min() < eviction.kept.counts.max()
        ids = torch.cat((sequences, tokens(2, 12, seed=turn)), dim=1)
        mask = torch.cat((mask, torch.ones(2, 18, dtype=mask.dtype)), dim=1)


def test_unequal_lanes_keep_what_arrays_keep():
    model, ids = model_of("Llama"), tokens(1, 70)
    full = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=full)
    arrays = torch.stack([layer.keys for layer in full.layers])
    for policy in ("knorm | budget(24, by=ramp)", "knorm | budget(24, scope=layer)", "knorm | at_least(-5)"):
        with kvpolicy.hf.evict(model, policy) as eviction:
            generated(model, ids, 2)
        expected = kvpolicy.decide(policy, keys=arrays)
        assert (eviction.kept.indptr == expected.indptr).all() and (eviction.kept.indices == expected.indices).all(), policy


@pytest.mark.parametrize("policy", ["h2o(recent=4) | budget(16, scope=layer)", "tova | budget(16, by=ramp)"])
def test_unequal_lanes_decide_in_every_forward(policy):
    model, ids = model_of("Llama"), tokens(1, 40)
    engine = Masked(model)
    cache = DynamicCache(config=model.config)
    for begin, end in ((0, 40), (40, 41), (41, 42), (42, 45), (45, 46)):
        more = ids if begin == 0 else tokens(1, end - begin, seed=end)
        with kvpolicy.hf.evict(model, policy, when="forward") as eviction, torch.no_grad():
            made = model(more, past_key_values=cache).logits[:, -1]
        assert (made - engine.forward(more)).abs().max() < TOLERANCE
        assert eviction.decisions == 1
        drop(engine, eviction.kept)
        check_rows(engine, cache)


def test_drafts_in_lanes_of_unequal_lengths():
    model, ids = model_of("Llama"), tokens(1, 60)
    for policy in ("snapkv(window=8) | budget(24, scope=layer)", "snapkv(window=8) | budget(24, by=ramp)"):
        with kvpolicy.hf.evict(model, policy):
            expected = generated(model, ids, 12)[0]
        assistant = assistant_of(model)
        with kvpolicy.hf.evict(model, policy):
            made = generated(model, ids, 12, assistant_model=assistant)[0]
        assert (made == expected).all()


def test_a_cache_of_unequal_lanes_stays_in_a_block():
    model, ids = model_of("Llama"), tokens(1, 60)
    with kvpolicy.hf.evict(model, "snapkv(window=8) | budget(24, scope=layer)"):
        sequences, _, cache = generated(model, ids, 3)
    more = torch.cat((sequences, tokens(1, 4)), dim=1)
    with pytest.raises(ValueError, match="only a model inside of a block masks their padding"):
        generated(model, more, 2, cache=cache)
    with kvpolicy.hf.evict(model, SNAPKV):
        with pytest.raises(ValueError, match="only the policy that has cut it knows them"):
            generated(model, more, 2, cache=cache)


def test_a_score_in_python_sees_unequal_heads():
    model, ids = model_of("Llama"), tokens(2, 60)
    sizes = []

    def newest_of_first_head(layer):
        sizes.append(((layer.positions >= 0).sum(dim=1).tolist(), tuple(layer.keys.shape[:2])))
        scores = layer.positions.float()
        scores[1:] -= 30
        return scores

    with kvpolicy.hf.evict(model, newest_of_first_head, parts="budget(20, scope=layer)") as eviction:
        sequences, _, cache = generated(model, ids, 3)
        assert eviction.kept.counts[0].tolist() == [[35, 5]] * 2
        generated(model, torch.cat((sequences, tokens(2, 9)), dim=1), 3, cache=cache)
    assert sizes[-1] == ([47, 17], (2, 47))
    assert eviction.kept.counts[0].tolist() == [[35, 5]] * 2
    assert eviction.kept.lane(0, 1, 1).tolist() == list(range(12, 17))


def made_up_gate(fresh):
    """A number of a token that depends on what a gate may see, and on nothing else of the forward."""
    rows = fresh.keys.float().sum(dim=-1) - fresh.keys_before.float().sum(dim=-1) + fresh.hidden.float().mean(dim=-1)[:, None]
    return -torch.sigmoid(4 * rows + fresh.layer)


@pytest.mark.parametrize("name, more", [("Llama", {}), ("Qwen3", dict(head_dim=32)), MODELS[8][::2]], ids=["Llama", "Qwen3", "Gemma3"])
def test_a_gate_sees_the_new_tokens_of_a_layer(name, more):
    """A batch with padding, decided in every forward: the numbers and their positions, against TRIM-KV's equation."""
    model, ids = model_of(name, **more), tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    seen = {}

    def gate(fresh):
        made = made_up_gate(fresh)
        seen.setdefault(fresh.layer, []).append(made)
        return made

    cache = DynamicCache(config=model.config)
    positions = {}
    with kvpolicy.hf.evict(model, "trim_kv | budget(24)", gates=gate, when="forward") as eviction, torch.no_grad():
        for tokens_now in (40, 1, 1, 5):
            if tokens_now < 40:
                ids = tokens(2, tokens_now, seed=tokens_now)
                mask = torch.cat((mask, torch.ones(2, tokens_now, dtype=mask.dtype)), dim=1)
            model(ids, attention_mask=mask, past_key_values=cache, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens_now:])
            total = mask.shape[1]
            for place, layer in enumerate(eviction._layers.cut):
                numbers = torch.cat(seen[layer], dim=2)
                for sequence, padding in enumerate((0, 11)):
                    for head in range(numbers.shape[1]):
                        held = positions.get((place, sequence, head), []) + list(range(total - tokens_now - padding if total > tokens_now else 0, total - padding))
                        score = [(held[-1] - p) * float(numbers[sequence, head, p + padding]) for p in held]
                        kept = sorted(sorted(range(len(held)), key=lambda e: -score[e])[:24])
                        assert eviction.kept.lane(place, sequence, head).tolist() == kept
                        positions[place, sequence, head] = [held[e] for e in kept]


def test_a_gate_in_speculative_decoding():
    model, ids = model_of("Llama"), tokens(1, 60)
    policy, assistant = "trim_kv | budget(24)", assistant_of(model)
    with kvpolicy.hf.evict(model, policy, gates=made_up_gate):
        expected = generated(model, ids, 12)
    with kvpolicy.hf.evict(model, policy, gates=made_up_gate):
        made = generated(model, ids, 12, assistant_model=assistant)
    assert (made[0] == expected[0]).all()


@pytest.mark.parametrize("gate, text", [
    (lambda fresh: torch.zeros(1, 2), "for layer 0 it gave .1, 2., and .sequence, KV head, token. is .1, 2, 40."),
    (lambda fresh: torch.full(fresh.keys.shape[:3], float("nan")), "for layer 0 it gave NaN"),
])
def test_a_gate_that_fails_leaves_the_cache(gate, text):
    model, ids = model_of("Llama"), tokens(1, 40)
    cache = DynamicCache(config=model.config)
    with kvpolicy.hf.evict(model, "trim_kv | budget(24)", gates=gate) as eviction:
        with pytest.raises(ValueError, match=text):
            generated(model, ids, 3, cache=cache)
    assert eviction.decisions == 0
    assert all(not module._forward_pre_hooks and not module._forward_hooks for module in model.modules())


def test_a_file_of_no_gate_and_a_gate_of_another_model_are_refused(tmp_path):
    from safetensors.torch import save_file

    model = model_of("Llama")
    save_file({"other.weight": torch.zeros(2)}, tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="tensors of other, but a gate is a retention_gate or a write_gate"):
        kvpolicy.hf.evict(model, "trim_kv | budget(24)", gates=tmp_path / "none.safetensors")
    shapes = {"fc1.weight": (5, 3, 64), "fc1.bias": (5, 3), "fc2.weight": (5, 2, 3), "fc2.bias": (5, 2)}
    save_file({f"retention_gate.{name}": torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="gates = of 5 layers, but the model has 3"):
        kvpolicy.hf.evict(model, "trim_kv | budget(24)", gates=str(tmp_path / "other.safetensors"))
    with pytest.raises(ValueError, match="gates = given, but snapkv reads no gate"):
        kvpolicy.hf.evict(model, SNAPKV, gates=made_up_gate)


def test_intent_kv_remembers_the_turns_of_a_chat():
    """Two turns: the memory is that of both, and the rows of an answer are of no turn."""
    model, ids = model_of("Llama"), tokens(1, 60)
    cache, shown = DynamicCache(config=model.config), []
    policy = "intent_kv(tail=8) | budget(24)"
    engine = Masked(model)
    with kvpolicy.hf.evict(model, policy) as eviction:
        sequences, logits, cache = generated(model, ids, 6, cache=cache)
        first = eviction.kept
        more = torch.cat((sequences, tokens(1, 20)), dim=1)
        generated(model, more, 6, cache=cache)
    assert eviction.decisions == 2
    engine.forward(ids)
    memory, kept = {}, None
    for turn, decided in enumerate((first, eviction.kept)):
        if turn == 1:
            drop(engine, first)
            for step in range(5):
                engine.forward(sequences[:, 60 + step, None])
            engine.forward(more[:, 65:])
        total = torch.zeros(int(engine.alive[0][0, 0].sum()))
        for layer in engine.full:
            group = engine.queries[layer].shape[1] // engine.keys[layer].shape[1]
            for head in range(engine.queries[layer].shape[1]):
                mean = engine.queries[layer][0, head, -8:].mean(dim=0)
                old = memory.get((layer, head))
                new = mean if old is None else torch.exp(torch.tensor(-0.5)) * old + mean
                memory[layer, head] = new / new.norm()
                total += (engine.kept_keys(layer, 0, head // group) @ memory[layer, head] / 4).softmax(dim=0)
        count = len(total)
        best = total[: count - 8].topk(16).indices.sort().values.tolist()
        assert decided.lane(1, 0, 1).tolist() == best + list(range(count - 8, count))


HYBRIDS = [
    ("Qwen3Next", dict(head_dim=16, layer_types=["linear_attention", "full_attention"] * 2, num_hidden_layers=4, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32,
                       shared_expert_intermediate_size=32, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)),
    ("Lfm2", dict(layer_types=["conv", "full_attention"] * 2, num_hidden_layers=4)),
]


@pytest.mark.parametrize("name, more", HYBRIDS, ids=[name for name, _ in HYBRIDS])
@pytest.mark.parametrize("policy", [SNAPKV, "snapkv(window=8) | budget(24, by=ramp)"])
def test_only_the_attention_layers_of_a_hybrid_are_cut(name, more, policy):
    model, ids = model_of(name, **more), tokens(1, 60)
    engine, cache = Masked(model), DynamicCache(config=model.config)
    for turn in range(2):
        with kvpolicy.hf.evict(model, policy) as eviction:
            sequences, logits, cache = generated(model, ids, 6, cache=cache)
        engine.evict = lambda: drop(engine, eviction.kept)
        check_turn(engine, ids, None, sequences, logits)
        check_rows(engine, cache)
        assert eviction.decisions == 1 and eviction.kept.counts.shape[0] == 2
        ids = torch.cat((sequences, tokens(1, 12, seed=turn)), dim=1)


def test_a_model_of_text_and_images_reads_text():
    """Gemma 3 gives its decoder a mask for each kind of layer."""
    text = dict(SIZES, head_dim=16, sliding_window=16, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
    vision = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=127, boi_token_index=126, eoi_token_index=125)
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="sdpa").eval()
    plain = transformers.Gemma3ForCausalLM._from_config(config.text_config, attn_implementation="sdpa").eval()
    plain.model.load_state_dict(model.model.language_model.state_dict())
    plain.lm_head.load_state_dict(model.lm_head.state_dict())
    ids = torch.randint(2, 120, (2, 60), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :25] = 0
    made = []
    for one in (model, plain):
        with kvpolicy.hf.evict(one, "snapkv(window=8) | budget(24, scope=layer)") as eviction:
            made.append(generated(one, ids, 6, mask=mask, cache=DynamicCache(config=one.config.get_text_config()))[1])
        assert eviction.decisions == 1
    assert (made[0] - made[1]).abs().max() < TOLERANCE


def test_models_that_attend_otherwise_are_refused():
    with pytest.raises(ValueError, match="DiffLlamaForCausalLM with differential attention, but each of its layers attends twice"):
        kvpolicy.hf.evict(model_of("DiffLlama"), SNAPKV)
    with pytest.raises(ValueError, match="DogeForCausalLM with a dynamic mask, but each of its layers chooses keys by a mask that a policy does not see"):
        kvpolicy.hf.evict(model_of("Doge"), SNAPKV)
    with pytest.raises(ValueError, match="MiniMaxForCausalLM, but it has a cache of its own"):
        kvpolicy.hf.evict(model_of("MiniMax", head_dim=16, num_local_experts=2, layer_types=["linear_attention", "full_attention", "full_attention"]), SNAPKV)
