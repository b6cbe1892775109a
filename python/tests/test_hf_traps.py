# SPDX-License-Identifier: Apache-2.0
"""What once went wrong in a model without a word, or was refused too late: one test each."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from masked import Masked
from test_hf import MODELS, SNAPKV, TOLERANCE, drop, generated, made_up_gate, model_of, tokens
from transformers import DynamicCache

import kvpolicy.hf

UNKNOWN = "only the policy that has cut it knows them"


def forward(model, policy, ids, cache, **more):
    with kvpolicy.hf.evict(model, policy, **more) as eviction, torch.no_grad():
        model(ids, past_key_values=cache)
    return eviction


def newest(per_layer):
    """A score of the newest entries of each lane: per_layer[layer][head] of them have 1."""

    def score(layer):
        last = layer.positions.max()
        return torch.stack([(of_head > last - wanted).float() for of_head, wanted in zip(layer.positions, per_layer[layer.index])])

    return score


def cut(model, per_layer, length=60):
    cache = DynamicCache(config=model.config)
    forward(model, newest(per_layer), tokens(1, length), cache, parts="at_least(0.5)")
    return cache


@pytest.mark.parametrize("per_layer", [[(20, 20), (20, 5), (20, 5)], [(0, 0), (10, 10), (10, 10)], [(20, 20), (20, 20), (9, 9)]])
def test_unequal_lanes_of_any_layer_belong_to_their_policy(per_layer):
    model = model_of("Llama")
    for of in (lambda cache: cache, copy.deepcopy):
        with pytest.raises(ValueError, match=UNKNOWN):
            forward(model, "streaming_llm(sinks=2) | budget(30)", tokens(1, 12), of(cut(model, per_layer)))


def test_a_layer_without_entries_takes_part_in_crop_and_reset():
    model, per_layer = model_of("Llama"), [(0, 0), (10, 10), (10, 10)]
    score = newest(per_layer)

    def counts(cache):
        forward(model, score, tokens(1, 3), cache, parts="at_least(0.5)")
        (record,) = kvpolicy.hf._records[cache].values()
        return record.evictor.lane_counts[0].tolist(), record.evictor.tokens

    cache = cut(model, per_layer)
    forward(model, "full", tokens(1, 1), DynamicCache(config=model.config))
    with kvpolicy.hf.evict(model, score, parts="at_least(0.5)"), torch.no_grad():
        model(tokens(1, 1), past_key_values=cache)
    cache.crop(-1)
    assert counts(cache) == ([[0, 0], [10, 10], [10, 10]], [63])
    for empty in (lambda cache: cache.crop(-60), lambda cache: cache.reset()):
        cache = cut(model, per_layer)
        empty(cache)
        assert counts(cache) == ([[0, 0], [3, 3], [3, 3]], [3])


def test_mass_is_of_the_rows_of_each_head():
    """H2O under a threshold: each head has its number of entries, and sums what it is paid in every forward."""
    model, cache, masses = model_of("Llama"), DynamicCache(config=model_of("Llama").config), {}
    for block in model.model.layers:
        with torch.no_grad():
            block.self_attn.q_proj.weight[:32] *= 3
            block.self_attn.q_proj.weight[32:] *= 0.1
    engine = Masked(model)
    unequal = 0
    for step, new in enumerate((80, 20, 20, 1, 1, 20)):
        ids = tokens(1, new, seed=step + 5)
        eviction = forward(model, "h2o(heavy=0, recent=0) | at_least(2.3)", ids, cache, when="forward")
        engine.forward(ids)
        for layer in engine.full:
            for head in range(2):
                queries, keys, alive = engine.queries[layer][0, 2 * head : 2 * head + 2, -new:], engine.keys[layer][0, head], engine.alive[layer][0, head]
                total = len(keys)
                later = torch.arange(total)[None, :] > torch.arange(total - new, total)[:, None]
                made = (queries @ keys.T / 4).masked_fill(later | ~alive, float("-inf")).softmax(dim=-1).sum(dim=(0, 1))
                mass = masses[layer, head] = torch.nn.functional.pad(masses.get((layer, head), torch.zeros(0)), (0, new)) + made
                at = alive.nonzero().flatten()
                kept = set(eviction.kept.lane(layer, 0, head).tolist())
                clear = [(e, float(mass[i]) >= 2.3) for e, i in enumerate(at.tolist()) if abs(float(mass[i]) - 2.3) > 1e-3]
                assert all((e in kept) == wanted for e, wanted in clear), (step, layer, head)
        drop(engine, eviction.kept)
        unequal += len(set(eviction.kept.counts.flatten().tolist())) > 1
    assert unequal > 3


def test_a_turn_in_chunks_is_a_turn():
    model, ids = model_of("Llama"), tokens(1, 64)
    kept = []
    for more in ({}, dict(prefill_chunk_size=8), dict(prefill_chunk_size=20)):
        with kvpolicy.hf.evict(model, "intent_kv(tail=16) | budget(24)") as eviction:
            generated(model, ids, 4, **more)
        kept.append(eviction.kept.indices.tolist())
    assert kept[0] == kept[1] == kept[2]


WITH_KEYS = [one for one in MODELS if one[0] != "Phi3"]  # its projection is fused


@pytest.mark.parametrize("name, attention, more", WITH_KEYS, ids=[f"{name}-{attention}" for name, attention, _ in WITH_KEYS])
def test_a_gate_sees_keys_before_rope(name, attention, more):
    """At position 0 RoPE changes nothing. As many tokens as KV heads, and more."""
    model = model_of(name, attention, **more)
    for length in (1, 2, 30):
        seen = []

        def gate(fresh):
            seen.append((fresh.keys - fresh.keys_before).abs())
            return -torch.ones(fresh.keys.shape[:3])

        forward(model, "trim_kv | budget(24)", tokens(1, length), DynamicCache(config=model.config), gates=gate)
        assert seen and all(one[:, :, 0].max() < 1e-5 for one in seen)
        assert length == 1 or all(one[:, :, 1].max() > 1e-3 for one in seen)


def test_the_block_of_another_model_is_no_block_of_this_one():
    model, other = model_of("Llama"), model_of("Qwen2")
    cache = cut(model, [(20, 20), (20, 5), (20, 5)])
    with kvpolicy.hf.evict(other, SNAPKV), torch.no_grad():
        with pytest.raises(ValueError, match="only a model inside of a block masks their padding"):
            model(tokens(1, 1), past_key_values=cache)
    with torch.no_grad(), pytest.raises(ValueError, match="only a model inside of a block masks their padding"):
        model(tokens(1, 1), past_key_values=cut(model, [(20, 20), (20, 5), (20, 5)]))


def test_a_refusal_leaves_the_record_of_the_policy_that_was_there():
    model, ids, cache = model_of("Llama"), tokens(1, 60), DynamicCache(config=model_of("Llama").config)
    policy = "h2o(heavy=12, recent=12) | budget(24)"
    forward(model, policy, ids, cache, when="forward")
    with pytest.raises(ValueError, match="24 tokens that were not observed"):
        forward(model, "trim_kv | budget(24)", ids[:, :1], cache, gates=made_up_gate)
    assert forward(model, policy, ids[:, :1], cache, when="forward").decisions == 1


def test_what_is_scored_after_the_last_entry_of_a_head_does_not_count():
    model, ids = model_of("Llama"), tokens(1, 60)
    score = lambda layer: (layer.positions.float() + 1e-3).sqrt() - torch.tensor([[0.0], [4.0]])
    with kvpolicy.hf.evict(model, score, parts="budget(20, scope=layer)") as eviction:
        sequences, _, cache = generated(model, ids, 3)
        generated(model, torch.cat((sequences, tokens(1, 9)), dim=1), 3, cache=cache)
    assert eviction.decisions == 2


def test_a_shared_budget_of_heads_that_decide_together_is_refused_at_once():
    with pytest.raises(ValueError, match="what decides by layer has one budget already"):
        kvpolicy.hf.evict(model_of("Llama"), "tova | budget(16, scope=layer)")


def test_a_gate_that_raises_leaves_the_cache_for_the_next_forward():
    model, ids, cache = model_of("Llama"), tokens(1, 60), DynamicCache(config=model_of("Llama").config)
    broken = [False]

    def gate(fresh):
        if broken[0] and fresh.layer == 2:
            raise RuntimeError("no more")
        return made_up_gate(fresh)

    forward(model, "trim_kv | budget(24)", ids, cache, gates=gate, when="forward")
    broken[0] = True
    with pytest.raises(ValueError, match="hf.evict: gates = gate, but for layer 2 it raised RuntimeError: no more"):
        forward(model, "trim_kv | budget(24)", ids[:, :1], cache, gates=gate, when="forward")
    assert [layer.rows for layer in cache.layers] == [24, 24, 24] and cache.get_seq_length() == 60
    broken[0] = False
    assert forward(model, "trim_kv | budget(24)", ids[:, :1], cache, gates=gate, when="forward").decisions == 1


def test_nothing_of_a_forward_is_kept():
    model, ids = model_of("Llama"), tokens(1, 60)
    with kvpolicy.hf.evict(model, "trim_kv | budget(24)", gates=made_up_gate) as eviction, torch.no_grad():
        model(ids, use_cache=False)
        model(ids)
    assert not eviction._inputs and not eviction._shown
    forward(model, "intent_kv | budget(24)", ids, DynamicCache(config=model.config))


@pytest.mark.parametrize("what, text", [
    ("text", "unreadable, but it is a safetensors file"),
    ("folder", "unreadable, but it is a safetensors file"),
    ("one axis", r"retention_gate.fc2.bias.shape = \(3,\) in .*, but it is \[L, H\]"),
    ("two widths", r"retention_gate.fc1.bias.shape = \(3, 5\) in"),
    ("another width", "gates = of 32 channels of a hidden row, but the model has 64"),
    ("write gate", "gates = WriteGate, but it gives birth_score, and trim_kv reads log_beta"),
])
def test_a_file_that_is_not_the_gate_is_refused_in_a_sentence(what, text, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "gate"
    shapes = {"fc1.weight": (3, 4, 64), "fc1.bias": (3, 4), "fc2.weight": (3, 2, 4), "fc2.bias": (3, 2)}
    shapes |= {"one axis": {"fc2.bias": (3,)}, "two widths": {"fc1.bias": (3, 5)}, "another width": {"fc1.weight": (3, 4, 32)}}.get(what, {})
    name = "retention_gate"
    if what == "write gate":
        name, shapes = "write_gate", {"pre_norm.weight": (3, 16), "post_norm.weight": (3, 16), "fc1.weight": (3, 2, 4, 32), "fc1.bias": (3, 2, 4), "fc2.weight": (3, 2, 4), "fc2.bias": (3, 2)}
    if what == "folder":
        path.mkdir()
    elif what == "text":
        path.write_text("no tensors")
    else:
        save_file({f"{name}.{one}": torch.zeros(shape) for one, shape in shapes.items()}, path)
    with pytest.raises(ValueError, match=text):
        kvpolicy.hf.evict(model_of("Llama"), "trim_kv | budget(24)", gates=path)


KVZAP = {"layers.0.0.weight": (6, 64), "layers.0.0.bias": (6,), "layers.0.2.weight": (2, 6), "layers.0.2.bias": (2,)}


@pytest.mark.parametrize("more, text", [
    ({"layers.1.0.weight": (6, 64)}, "without layers.1.0.bias, but each layer of KVzap has 0.weight and 0.bias and 2.weight and 2.bias"),
    ({"layers.0.2.weight": (2, 5)}, r"layers.0.0.weight.shape = \(6, 64\) in .*, but the maps of a layer fit each other"),
    ({"layers.0.0.bias": (1,)}, "but the maps of a layer fit each other"),
    ({}, "gates = of 1 layers, but the model has 3"),
    ({one.replace(".0", f".{layer}", 1): shape for layer in range(3) for one, shape in KVZAP.items()} | {"layers.2.2.weight": (3, 6), "layers.2.2.bias": (3,)}, "those of all layers are alike"),
])
def test_a_file_that_is_not_kvzap_is_refused_in_a_sentence(more, text, tmp_path):
    from safetensors.torch import save_file

    save_file({name: torch.zeros(shape) for name, shape in (KVZAP | more).items()}, tmp_path / "gate")
    with pytest.raises(ValueError, match=text):
        kvpolicy.hf.evict(model_of("Llama"), "carried(name=kvzap) | budget(24)", gates=tmp_path / "gate")


def test_numbers_have_the_shape_of_the_keys():
    keys = np.random.default_rng(0).standard_normal((1, 1, 2, 30, 8)).astype(np.float32)
    beta = -abs(keys[..., 0])
    for wrong in (beta[..., 10:], np.concatenate((beta, beta), axis=3), beta[:, :, :1]):
        with pytest.raises(ValueError, match="decide: log_beta.shape = "):
            kvpolicy.decide("trim_kv | budget(8)", keys=keys, log_beta=wrong)
    for policy, more in (("trim_kv | budget(8)", {"log_beta": beta}), ("snapkv(window=4) | budget(8)", {"queries": keys}), ("knorm | budget(8)", {})):
        with pytest.raises(ValueError, match="decide: birth_score = given, but .* does not read it"):
            kvpolicy.decide(policy, keys=keys, birth_score=beta, **more)


def test_chunks_made_by_hand_are_one_prompt_if_it_is_said():
    model, ids = model_of("Llama"), tokens(1, 90)
    whole, chunked, failed = (DynamicCache(config=model.config) for _ in range(3))
    forward(model, SNAPKV, ids, whole)
    with kvpolicy.hf.evict(model, SNAPKV) as eviction, torch.no_grad():
        with eviction.prompt():
            for chunk in (*ids[:, :89].split(40, dim=1), ids[:, 89:]):  # the last one has one token
                model(chunk, past_key_values=chunked)
        assert eviction.decisions == 1
        for a, b in zip(whole.layers, chunked.layers):
            assert a.keys.shape == b.keys.shape and (a.keys - b.keys).abs().max() < TOLERANCE
        with pytest.raises(RuntimeError), eviction.prompt():
            model(ids, past_key_values=failed)
            raise RuntimeError
        assert eviction.decisions == 1 and failed.layers[0].keys.shape[2] == 90
        model(ids, past_key_values=DynamicCache(config=model.config))  # what failed is not decided about later
        assert eviction.decisions == 2


def test_a_model_with_adapters_decides_once_after_the_chunks_of_its_prefill():
    peft = pytest.importorskip("peft")
    ids = tokens(1, 90)
    model = copy.deepcopy(model_of("Llama"))
    with kvpolicy.hf.evict(model, SNAPKV):
        wanted = model.generate(ids, max_new_tokens=8, do_sample=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    with kvpolicy.hf.evict(adapted, SNAPKV) as eviction:
        made = adapted.generate(input_ids=ids, max_new_tokens=8, do_sample=False, prefill_chunk_size=32)
    assert eviction.decisions == 1 and torch.equal(made, wanted)  # fresh adapters change nothing
    prefix = peft.get_peft_model(copy.deepcopy(model_of("Llama")), peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    with pytest.raises(ValueError, match="it puts rows of its own into the cache"):
        kvpolicy.hf.evict(prefix, SNAPKV)
