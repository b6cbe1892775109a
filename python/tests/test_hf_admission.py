# SPDX-License-Identifier: Apache-2.0
"""Admissions in models of transformers: WG-KV, against one forward without a cache under the exact mask of each KV head."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_hf import MODELS, SNAPKV, assistant_of, generated, model_of, tokens
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import kvpolicy.hf

WINDOW, LEAST = 12, 0.6
POLICY = f"admit: write_gate | window({WINDOW}) | at_least({LEAST})"
CLOSE = 1e-4


def numbers_of(layer, keys):
    return torch.sigmoid(2 * keys.float().sum(dim=-1) + layer - 1)


def gate(fresh):
    """A write gate that reads a key and nothing else, so that the reference can ask it about a whole text."""
    return numbers_of(fresh.layer, fresh.keys)


class Exact:
    """A full forward in which row i sees entry j if i - j < window, or j is admitted by its KV head."""

    def __init__(self, full, window=WINDOW, sinks=0, admits=lambda numbers: numbers >= LEAST):
        self.full, self.window, self.sinks, self.admits, self.kept, self.rejected = full, window, sinks, admits, {}, 0

    def attend(self, module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
        group, rows = query.shape[1] // key.shape[1], key.shape[2]
        keys, values = (one.repeat_interleave(group, dim=1) for one in (key, value))
        logits = query @ keys.transpose(2, 3) * scaling + attention_mask
        if module.layer_idx in self.full:
            at = torch.arange(rows)
            seen = (at[:, None] - at < self.window) | self.admits(numbers_of(module.layer_idx, key))[:, :, None]
            seen |= ((at - self.padding[:, None]).clamp(min=-1) < self.sinks)[:, None, None]
            self.kept[module.layer_idx] = seen[:, :, -1] & (at >= self.padding[:, None])[:, None]
            self.rejected += int((~seen & (at[:, None] >= at)).sum())
            logits = logits.masked_fill(~seen.repeat_interleave(group, dim=1), torch.finfo(logits.dtype).min)
        return (logits.softmax(dim=-1) @ values).transpose(1, 2).contiguous(), None

    def logits(self, model, ids, mask):
        self.padding = (mask == 0).sum(dim=1)
        before = model.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register("exact_reference", self.attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("exact_reference", eager_mask)
        model.config._attn_implementation = "exact_reference"
        try:
            with torch.no_grad():
                return model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False).logits
        finally:
            model.config._attn_implementation = before


def in_pieces(model, policy, ids, mask, pieces, cache=None, gates=gate):
    """The logits of all tokens, which are read in pieces of these lengths, each in a block of its own."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    made, end = [], 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for new in pieces:
        begin, end = end, end + new
        with kvpolicy.hf.evict(model, policy, gates=gates) as eviction, torch.no_grad():
            made.append(model(ids[:, begin:end], attention_mask=mask[:, :end], position_ids=positions[:, begin:end], past_key_values=cache).logits)
    return torch.cat(made, dim=1), cache, eviction


def check(model, ids, mask, pieces, policy=POLICY, gates=gate, **exact):
    full = [index for index, one in enumerate(DynamicCache(config=model.config).layers) if type(one).__name__ == "DynamicLayer"]
    reference = Exact(full, **exact)
    expected = reference.logits(model, ids, mask)
    made, cache, eviction = in_pieces(model, policy, ids, mask, pieces, gates=gates)
    real = mask.bool()
    assert (made - expected)[real].abs().max() < CLOSE
    assert reference.rejected > 1000 and (Exact(full, window=10**6).logits(model, ids, mask) - expected)[real].abs().max() > 0.01
    held = set()
    for place, layer in enumerate(full):
        one = cache.layers[layer]
        for sequence in range(ids.shape[0]):
            for head in range(one.keys.shape[1]):
                wanted = int(reference.kept[layer][sequence, head].sum())
                assert wanted == int(one.valid[sequence, min(head, one.valid.shape[1] - 1)].sum()) if one.valid is not None else wanted == one.rows
                held.add(wanted)
    return held, cache, eviction


@pytest.mark.parametrize("name, attention, more", [MODELS[0], MODELS[1], MODELS[8]], ids=["Llama-sdpa", "Llama-eager", "Gemma3"])
@pytest.mark.parametrize("pieces", [(90,), (60, 1, 1, 1, 17, 1, 1, 8), (16, 16, 16, 42)], ids=["prompt", "turns", "chunks"])
def test_every_row_sees_what_its_heads_admit(name, attention, more, pieces):
    """A prompt, three turns of a chat with tokens in between, and a prompt in chunks."""
    model, ids = model_of(name, attention, **more), tokens(1, 90)
    held, cache, _ = check(model, ids, torch.ones_like(ids), pieces)
    assert WINDOW < min(held) < max(held) < 90
    assert cache.get_seq_length() == 90


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_padded_batch(attention):
    model, ids = model_of("Llama", attention), tokens(3, 90)
    mask = torch.ones_like(ids)
    mask[1, :21] = 0
    mask[2, :40] = 0
    for pieces in ((90,), (60, 1, 1, 18, 1, 9)):
        check(model, ids, mask, pieces)


def test_chunks_that_are_shorter_than_the_padding():
    model, ids = model_of("Llama"), tokens(2, 90)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    check(model, ids, mask, (8, 8, 60, 14))


def test_sinks_are_admitted_and_strict_is_above():
    model, ids = model_of("Llama"), tokens(2, 90)
    mask = torch.ones_like(ids)
    mask[1, :21] = 0
    check(model, ids, mask, (50, 1, 30, 9), policy=f"{POLICY} | sinks(3)", sinks=3)
    steps = lambda numbers: numbers.mul(4).round().div(4)
    for strict in ("false", "true"):
        policy = f"admit: carried(name=any) | window({WINDOW}) | at_least(0.5, strict={strict})"
        admits = lambda numbers: steps(numbers) > 0.5 if strict == "true" else steps(numbers) >= 0.5
        check(model, ids, mask, (50, 1, 30, 9), policy=policy, gates=lambda fresh: steps(gate(fresh)), admits=admits)


def test_generate_reads_and_writes_under_the_mask():
    """What `generate` writes, with the prompt at once and in chunks, in one block and over three turns."""
    model, ids, cache = model_of("Llama"), tokens(1, 60), DynamicCache(config=model_of("Llama").config)
    exact = lambda text: Exact([0, 1, 2]).logits(model, text, torch.ones_like(text))
    with kvpolicy.hf.evict(model, POLICY, gates=gate) as eviction:
        for turn in range(3):
            sequences, logits, cache = generated(model, ids, 6, cache=cache)
            wanted = exact(sequences)[:, -7:-1]
            assert (logits - wanted).abs().max() < CLOSE
            if turn == 0:
                _, chunked, _ = generated(model, ids, 6, prefill_chunk_size=16)
                assert (chunked - logits).abs().max() < CLOSE
            ids = torch.cat((sequences, tokens(1, 20, seed=turn + 2)), dim=1)
    assert eviction.decisions > 3 and eviction.policy.startswith("admit: write_gate")


def test_drafts_are_decided_about_when_they_are_tokens():
    model, ids = model_of("Llama"), tokens(1, 60)
    with kvpolicy.hf.evict(model, POLICY, gates=gate):
        expected, logits, plain = generated(model, ids, 24)
    repeated = torch.cat((ids, ids), dim=1)
    with kvpolicy.hf.evict(model, POLICY, gates=gate):
        also = generated(model, repeated, 24)
    for more, of, (sequences, wanted, held) in (
        (dict(assistant_model=assistant_of(model)), ids, (expected, logits, plain)),  # every draft is refused
        (dict(assistant_model=copy.deepcopy(model)), ids, (expected, logits, plain)),
        (dict(prompt_lookup_num_tokens=4), repeated, also),
    ):
        with kvpolicy.hf.evict(model, POLICY, gates=gate):
            made, drafted, cache = generated(model, of, 24, **more)
        assert torch.equal(made, sequences)
        assert (drafted - wanted).abs().max() < CLOSE
        assert cache.get_seq_length() == held.get_seq_length()


def test_drafts_beside_entries_that_all_stay():
    model, ids = model_of("Llama"), tokens(1, 60)
    everything = lambda fresh: torch.ones(fresh.keys.shape[:3])
    expected, assistant = generated(model, ids, 12)[:2], assistant_of(model)
    with kvpolicy.hf.evict(model, POLICY, gates=everything) as eviction:
        made = generated(model, ids, 12, assistant_model=assistant)[:2]
    assert eviction.decisions == 0 and torch.equal(made[0], expected[0]) and (made[1] - expected[1]).abs().max() < CLOSE


def test_a_forward_that_fails_leaves_the_cache_for_the_next_one():
    model, ids = model_of("Llama"), tokens(1, 70)
    mask, cache = torch.ones_like(ids), DynamicCache(config=model.config)
    first, _, _ = in_pieces(model, POLICY, ids, mask, (60,), cache)
    norm, model.model.norm = model.model.norm, None
    with pytest.raises(TypeError), kvpolicy.hf.evict(model, POLICY, gates=gate), torch.no_grad():
        model(ids[:, 60:], past_key_values=cache)
    model.model.norm = norm
    with kvpolicy.hf.evict(model, POLICY, gates=gate), torch.no_grad():
        last = model(ids[:, 60:], past_key_values=cache).logits
    expected = Exact([0, 1, 2]).logits(model, ids, mask)
    assert (torch.cat((first, last), dim=1) - expected).abs().max() < CLOSE


def test_another_policy_takes_over_where_all_lanes_are_equal():
    model, ids, cache = model_of("Llama"), tokens(1, 60), DynamicCache(config=model_of("Llama").config)
    nothing = lambda fresh: torch.zeros(fresh.keys.shape[:3])
    with kvpolicy.hf.evict(model, POLICY, gates=nothing), torch.no_grad():
        model(ids, past_key_values=cache)
    assert {one.rows for one in cache.layers} == {WINDOW}
    with kvpolicy.hf.evict(model, SNAPKV), torch.no_grad():
        model(tokens(1, 40), past_key_values=cache)
    assert {one.rows for one in cache.layers} == {24}
    with pytest.raises(ValueError, match="24 tokens that were not observed, but write_gate reads the birth_score of every token"):
        with kvpolicy.hf.evict(model, POLICY, gates=nothing), torch.no_grad():
            model(tokens(1, 1), past_key_values=cache)
    with pytest.raises(ValueError, match="only the policy that has cut it knows them"):  # nor is an eviction by the same numbers the same policy
        in_pieces(model, f"carried | recent({WINDOW}) | at_least({LEAST}, unbounded=false)", ids, torch.ones_like(ids), (1,), in_pieces(model, POLICY, ids, torch.ones_like(ids), (60,))[1])


@pytest.mark.parametrize("policy, more, text", [
    (POLICY, {}, "hf.evict: gates = None, but write_gate reads the birth_score of a gate: give gates="),
    (POLICY, dict(gates=gate, when="prefill"), "hf.evict: when = prefill, but an admission decides about each token when it leaves the window, in every forward"),
    (POLICY, dict(gates=gate, budget=20), "hf.evict: budget = 20, but an admission has its parts in its text, and no budget"),
    (POLICY, dict(gates=gate, parts="sinks(4)"), "hf.evict: parts = sinks(4), but an admission has its parts in its text, and no budget"),
    (f"{POLICY}; evict: knorm | budget(20)", dict(gates=gate), "one section is served, an admission or an eviction"),
    ("select: quest | budget(64)", {}, "one section is served, an admission or an eviction"),
    (f"{POLICY} | cap(20)", dict(gates=gate), "cap is not served beside an admission: there are window, sinks and at_least"),
    (f"{POLICY} | recent(20)", dict(gates=gate), "recent is not served beside an admission: there are window, sinks and at_least"),
    ("admit: knorm | window(8)", {}, "tokens are admitted by the numbers of a gate as they are: write_gate or carried"),
    ("admit: carried(decay=0.5) | window(8)", dict(gates=gate), "tokens are admitted by the numbers of a gate as they are: write_gate or carried"),
    ("admit: write_gate | window(0)", dict(gates=gate), "but the newest token is always seen"),
    ("admit: write_gat | window(8)", dict(gates=gate), "parse: column 8 = write_gat, but an admission begins with its scorer"),
], ids=["no gate", "when", "budget", "parts", "two sections", "selection", "cap", "recent", "knorm", "decay", "window", "name"])
def test_what_is_not_served_is_refused_at_once(policy, more, text):
    with pytest.raises(ValueError) as error:
        kvpolicy.hf.evict(model_of("Llama"), policy, **more)
    assert text in str(error.value) and "\n" not in str(error.value)


def test_a_gate_of_the_other_kind_is_refused(tmp_path):
    from safetensors.torch import save_file

    shapes = {"fc1.weight": (3, 4, 64), "fc1.bias": (3, 4), "fc2.weight": (3, 2, 4), "fc2.bias": (3, 2)}
    save_file({f"retention_gate.{one}": torch.zeros(shape) for one, shape in shapes.items()}, tmp_path / "gate")
    with pytest.raises(ValueError, match="gates = RetentionGate, but it gives log_beta, and write_gate reads birth_score"):
        kvpolicy.hf.evict(model_of("Llama"), POLICY, gates=tmp_path / "gate")
