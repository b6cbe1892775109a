# SPDX-License-Identifier: Apache-2.0
"""The worker's side over fakes of vLLM: the blocks that attention reads hold what each lane keeps. It needs PyTorch, not vLLM."""

import random
from types import SimpleNamespace
from typing import Any

import fakes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
kvpolicy = pytest.importorskip("kvpolicy")

builder, spec, layout, settings, decision, tables = fakes.over_fakes("builder", "spec", "layout", "settings", "decision", "tables")
HEADS, GROUP, CHANNELS, LAYERS = 2, 2, 16, 3


class OnProcessor(builder.CutBuilding, fakes.MetadataBuilder):
    on_device = False


class WithAmx(OnProcessor):
    isa = "amx"


class OnDevice(builder.CutBuilding, fakes.DeviceMetadataBuilder):
    """Tables and lengths are read as those of a device. They are in host memory here."""


def new_builder(policy, slack, block, blocks=80, kind=OnProcessor, during_prefill=False):
    caches = [torch.full((blocks, HEADS, block, 2 * CHANNELS), 1e6) for _ in range(LAYERS)]
    layers = {f"layer {index}": SimpleNamespace(kv_cache=cache, impl=SimpleNamespace(num_heads=HEADS * GROUP, scale=0.3, logits_soft_cap=0)) for index, cache in enumerate(caches)}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers), cache_config=SimpleNamespace(block_size=block))
    made = spec.cut_spec(spec_of(block), settings.settings_of(policy, slack, during_prefill))
    return kind(spec.CutSpec.merge([made] * LAYERS), list(layers), config, None), caches


def spec_of(block, **changes):
    return fakes.FullAttentionSpec(**dict(block_size=block, num_kv_heads=HEADS, head_size=CHANNELS, head_size_v=CHANNELS, dtype=torch.float32) | changes)


class Request:
    def __init__(self, prompt):
        self.prompt, self.tokens, self.blocks = prompt, 0, []
        self.keys, self.values, self.queries = ([torch.empty(0, heads, CHANNELS) for _ in range(LAYERS)] for heads in (HEADS, HEADS, HEADS * GROUP))
        self.alive = [[list(range(0)) for _ in range(HEADS)] for _ in range(LAYERS)]
        self.skip, self.given_back, self.began = 0, 0, False


def cut(request, policy, budget, slack, block, window, during_prefill):
    """The reference: what is alive after this step begins, by `kvpolicy.decide` about the request's own rows."""
    held, most, prefills = request.tokens - request.skip * block, max(1, budget // block), request.tokens < request.prompt
    due = not prefills and not request.began or (during_prefill or not prefills) and slack > 0 and held >= (most + slack) * block
    request.began = not prefills
    newest = request.tokens % block
    kept = max(1, (budget - newest) // block) * block + newest
    if not due or held <= budget or kept >= held:
        return False
    request.skip = (request.tokens - kept) // block
    for layer in range(LAYERS):
        for head in range(HEADS):
            alive = request.alive[layer][head]
            of_lane = lambda rows: rows[layer][alive, head][None].contiguous()
            queries = request.queries[layer][-window:, GROUP * head : GROUP * (head + 1)].permute(1, 0, 2).contiguous() if window else None
            text = policy.replace(f"budget({budget})", f"budget({kept})" + (f" | recent({newest})" if newest else ""))
            chosen = kvpolicy.decide(text, keys=of_lane(request.keys), values=of_lane(request.values), queries=queries, scale=0.3, threads=1)
            request.alive[layer][head] = [alive[at] for at in chosen.lane(0, 0, 0)]
    return True


@pytest.mark.parametrize("policy, budget, window", [("snapkv(window=5) | budget(24)", 24, 5), ("streaming_llm | budget(20)", 20, 0), ("knorm | budget(33)", 33, 0),
                                                    ("tova | budget(24)", 24, 1), ("snapkv(window=4) | reduce_lanes(layer, mean) | budget(24)", 24, 4)])
@pytest.mark.parametrize("slack, during_prefill, kind, block", [(0, False, OnProcessor, 8), (2, False, OnProcessor, 8), (2, True, OnProcessor, 8), (1, False, WithAmx, 16),
                                                                (2, True, OnDevice, 8)])
def test_attention_reads_what_each_lane_keeps(policy, budget, window, slack, during_prefill, kind, block):
    if "reduce_lanes" in policy or "tova" in policy:
        global HEADS
        HEADS, before = 1, HEADS  # the reference decides about one lane at a time
    try:
        draw = random.Random(budget + slack)
        torch.manual_seed(slack)
        made, caches = new_builder(policy, slack, block, kind=kind, during_prefill=during_prefill)
        free, running, cuts = list(range(1, 80)), [], 0
        for _ in range(400):
            if len(running) < 4 and draw.random() < 0.3:
                running.append(Request(draw.randrange(1, 70)))
            draw.shuffle(running)
            batch = running[: draw.randint(0, len(running))]
            if not batch:
                continue
            table, starts, ends, prefilling, queries = torch.zeros(len(batch), 40, dtype=torch.int32), [0], [], [], [[] for _ in range(LAYERS)]
            for row, request in enumerate(batch):
                prefilling.append(request.tokens < request.prompt)
                new = draw.randint(1, request.prompt - request.tokens) if prefilling[-1] else 1
                cuts += cut(request, policy, budget, slack, block, window, during_prefill)
                while len(request.blocks) * block < request.tokens + new:
                    request.blocks.append(free.pop(0))
                table[row, : len(request.blocks)] = torch.tensor(request.blocks)
                starts.append(starts[-1] + new)
                request.tokens += new
                ends.append(request.tokens)
            common = fakes.Common(torch.tensor(starts, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32), table, torch.tensor(prefilling), max(ends),
                                  torch.tensor(ends, dtype=torch.int32))
            step = made.build(0, common)
            for row, request in enumerate(batch):
                new = starts[row + 1] - starts[row]
                blocks, written = torch.tensor(request.blocks), torch.arange(request.tokens - new, request.tokens).expand(HEADS, -1)
                for layer, cache in enumerate(caches):
                    for rows, mine in zip(layout.rows_of(cache, made.layout), (request.keys, request.values)):
                        fresh = torch.randn(new, HEADS, CHANNELS)
                        mine[layer] = torch.cat((mine[layer], fresh))
                        rows[layout.at(rows, blocks, written)] = fresh.transpose(0, 1).reshape(HEADS, new, *rows.shape[4:])
                    queries[layer].append(torch.randn(new, HEADS * GROUP, CHANNELS))
                    request.queries[layer] = torch.cat((request.queries[layer], queries[layer][-1]))
                    for head in range(HEADS):
                        request.alive[layer][head] += range(request.tokens - new, request.tokens)
            for layer in range(LAYERS if step.capture is not None else 0):
                step.capture.keep(f"layer {layer}", torch.cat(queries[layer]))
            for row, request in enumerate(batch):
                count = int(step.seq_lens[row])
                assert count == request.tokens - request.skip * block
                read = step.block_table[row, : -(-count // block)].long()
                for layer, cache in enumerate(caches):
                    for rows, mine in zip(layout.rows_of(cache, made.layout), (request.keys, request.values)):
                        seen = layout.copied(rows, read, count)[0]
                        for head in range(HEADS):
                            assert torch.equal(seen[head], mine[layer][request.alive[layer][head], head])
            assert step.max_seq_len == int(step.seq_lens.max())
            for request in list(running):
                if request.tokens > 0 and draw.random() < 0.04 or request.tokens > 250:
                    running.remove(request)
                    free += request.blocks[request.given_back :]
                else:  # their numbers stay in the table
                    free += request.blocks[request.given_back : request.skip]
                    request.given_back = request.skip
        assert cuts > 20
    finally:
        if "reduce_lanes" in policy or "tova" in policy:
            HEADS = before
    assert fakes.Logger.warnings == []


def test_a_decision_that_fails_moves_nothing_and_says_so(monkeypatch):
    made, caches = new_builder("knorm | budget(24)", 0, 8)
    table = torch.arange(1, 11, dtype=torch.int32)[None]
    for cache in caches:
        cache.copy_(torch.randn_like(cache))
    before = [cache.clone() for cache in caches]
    batch = lambda new, end, prefilling: fakes.Common(torch.tensor([0, new]), torch.tensor([end], dtype=torch.int32), table, torch.tensor([prefilling]), end)
    made.build(0, batch(71, 71, True))

    def fails(*_):
        raise ValueError("so it is")

    monkeypatch.setattr(builder, "decide", fails)
    monkeypatch.setattr(fakes.Logger, "warnings", [])
    step = made.build(0, batch(1, 72, False))
    assert fakes.Logger.warnings == ["kvpolicy: a request of 71 tokens goes on with its newest blocks, because a decision failed: so it is"]
    assert all(torch.equal(*pair) for pair in zip(before, caches))
    assert step.seq_lens.tolist() == [24] and step.block_table[0, :3].tolist() == [7, 8, 9]


def test_a_request_that_takes_the_prefix_of_another_one_gets_its_query_rows():
    made, _ = new_builder("snapkv(window=5) | budget(24)", 0, 8)
    table = torch.arange(1, 11, dtype=torch.int32)[None].repeat(2, 1)
    table[1, 2:] += 10

    def step(starts, ends):
        rows = len(ends)
        common = fakes.Common(torch.tensor(starts), torch.tensor(ends, dtype=torch.int32), table[:rows], torch.tensor([True] * rows), max(ends))
        capture = made.build(0, common).capture
        for name in made.layer_names:
            capture.keep(name, torch.randn(starts[-1], HEADS * GROUP, CHANNELS))

    step([0, 16], [16])
    first = made.requests.named[2].slot
    before = made.windows.rows("layer 1", first, 16, 5)
    step([0, 1, 2], [17, 17])
    slots = [made.requests.named[block].slot for block in (3, 13)]
    assert first in slots and slots[0] != slots[1]
    for slot in slots:
        assert torch.equal(made.windows.rows("layer 1", slot, 17, 5)[:, :, :4], before[:, :, 1:])


def test_a_run_without_requests_is_passed_on():
    made, _ = new_builder("knorm | budget(24)", 0, 8)
    common = fakes.Common(torch.tensor([0, 1]), torch.tensor([72], dtype=torch.int32), torch.zeros(1, 10, dtype=torch.int32), torch.tensor([False]), 72)
    step = made.build(0, common)
    assert step.seq_lens.tolist() == [72] and step.capture is None


def test_without_a_policy_the_builder_is_vllms():
    made = OnProcessor(fakes.FullAttentionSpec(block_size=8), ["layer 0"], None, None)
    common = fakes.Common(torch.tensor([0, 1]), torch.tensor([72], dtype=torch.int32), torch.ones(1, 10, dtype=torch.int32), torch.tensor([False]), 72)
    assert type(made.build(0, common)) is fakes.Metadata


def test_layers_of_a_group_have_one_policy():
    of = lambda policy: spec.cut_spec(fakes.FullAttentionSpec(block_size=8), settings.settings_of(policy))
    assert spec.CutSpec.merge([of("knorm | budget(24)")] * 2).slack == 3
    with pytest.raises(ValueError, match="the layers of a group have one"):
        spec.CutSpec.merge([of("knorm | budget(24)"), of("knorm | budget(32)")])


@pytest.mark.parametrize("changes, sentence", [(dict(sliding_window=64), "a window or a chunk"), (dict(attention_chunk_size=64), "a window or a chunk"),
                                               (dict(non_causal=True), "is not causal"), (dict(head_size_v=4), "values have 4 channels")])
def test_specs_that_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=f"kvpolicy: .*{sentence}"):
        spec.cut_spec(fakes.FullAttentionSpec(block_size=8, **changes), settings.settings_of("knorm | budget(24)"))


@pytest.mark.parametrize("isa", ["neon", "rvv"])
def test_a_layout_that_is_not_known_is_refused(isa, monkeypatch):
    monkeypatch.setattr(fakes.MetadataBuilder, "isa", isa)
    with pytest.raises(ValueError, match=f"the memory's layout is {isa}, but rows of it are not known"):
        new_builder("knorm | budget(24)", 0, 8)


@pytest.mark.parametrize("layout_name, other", [("vec", "amx"), ("amx", "vec")])
def test_a_processor_that_writes_rows_elsewhere_is_refused(layout_name, other):
    """What vLLM's own function writes is read back at the start."""
    write = lambda key, value, keys, values, slots, _: fakes.write_by_formula(key, value, keys, values, slots, other)
    layout.check(layout_name, 2, 32, 64, torch.bfloat16, fakes.write_by_formula)
    with pytest.raises(ValueError, match=f"layout is {layout_name}, but this processor's rows lie elsewhere"):
        layout.check(layout_name, 2, 32, 64, torch.bfloat16, write)


def test_blocks_of_another_size_are_refused():
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=64))
    with pytest.raises(ValueError, match="attention reads blocks of 16 tokens, but the scheduler gives blocks of 64: --block-size 16"):
        OnDevice(spec.cut_spec(spec_of(16), settings.settings_of("knorm | budget(24)")), ["layer 0"], config, None)


def test_steps_of_requests_that_are_cut_are_in_no_graph():
    of = spec.cut_spec(spec_of(8), settings.settings_of("knorm | budget(24)"))
    assert OnDevice.get_cudagraph_support(None, of) == "never"
    assert OnDevice.get_cudagraph_support(None, spec_of(8)) == "always"
    assert new_builder("knorm | budget(24)", 0, 8, kind=OnDevice)[0].supports_update_block_table is False
    assert OnDevice(spec_of(8), ["layer 0"], None, None).supports_update_block_table is True


def test_a_device_table_is_read_as_an_array():
    draw = np.random.default_rng(3)
    table = draw.integers(1, 1000, (5, 60), dtype=np.int32)
    for _ in range(200):
        ends = draw.integers(1, 400, 5)
        lengths = np.minimum(draw.integers(0, 40, 5), ends)
        device = tables.DeviceTables(torch.from_numpy(table), ends, lengths, 8)
        for row, (end, begin) in enumerate(zip(ends, ends - lengths)):
            assert device[row, (end - 1) // 8] == table[row, (end - 1) // 8]
            if begin > 0:
                assert device[row, (begin - 1) // 8] == table[row, (begin - 1) // 8]
            for part in (slice(begin // 8, (end - 1) // 8 + 1), slice(draw.integers(0, 4), -(-begin // 8))):
                assert np.array_equal(device[row, part], table[row, part])


def test_what_the_pool_must_hold_is_bounded_if_prompts_are_cut():
    for during, blocks in ((False, 1000), (True, 8 + 8 + 2 * 512 // 16 + 1)):
        of = spec.cut_spec(spec_of(16), settings.settings_of("knorm | budget(128)", None, during), tokens_in_flight=512)
        assert of.max_memory_usage_bytes(None) == blocks * of.page_size_bytes
