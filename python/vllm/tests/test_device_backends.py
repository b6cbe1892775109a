# SPDX-License-Identifier: Apache-2.0
"""The backends of GPUs over vLLM's own classes, with metadata in host memory: no kernel of attention runs here, and none has run on a GPU."""

import pytest

pytest.importorskip("vllm")

import engine as e
import torch
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

import kvpolicy

POLICY, BLOCK, TOKENS = "snapkv(window=16) | budget(128)", 32, 300


@pytest.fixture(scope="module")
def config():
    llm = e.engine(e.model_folder(layers=2))
    yield llm.llm_engine.vllm_config
    e.close(llm)


def metadata(new, tokens, prefills, table):
    lengths = torch.tensor([tokens], dtype=torch.int32)
    return CommonAttentionMetadata(query_start_loc=torch.tensor([0, new], dtype=torch.int32), query_start_loc_cpu=torch.tensor([0, new], dtype=torch.int32), seq_lens=lengths,
                                   num_reqs=1, num_actual_tokens=new, max_query_len=new, max_seq_len=tokens, block_table_tensor=table,
                                   slot_mapping=torch.arange(tokens - new, tokens), is_prefilling=torch.tensor([prefills]), seq_lens_cpu_upper_bound=lengths.clone())


@pytest.mark.parametrize("name, table_of", [("FLASH_ATTN", "block_table"), ("TRITON_ATTN", "block_table")])
def test_a_request_is_cut(config, name, table_of, monkeypatch):
    from vllm.config import set_current_vllm_config

    from kvpolicy_vllm import backends
    from kvpolicy_vllm.settings import settings_of

    backend, names = getattr(backends, name), list(config.compilation_config.static_forward_context)
    monkeypatch.setattr(backend, "settings", settings_of(POLICY, 0))
    spec = backend.customize_spec(FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32))
    layers = config.compilation_config.static_forward_context
    for layer in names:
        monkeypatch.setattr(layers[layer], "kv_cache", torch.randn(40, 2, BLOCK, 128))
    before = {layer: layers[layer].kv_cache.clone() for layer in names}
    with set_current_vllm_config(config):
        builder = backend.get_builder_cls()(spec, names, config, torch.device("cpu"))
    assert builder.get_cudagraph_support(config, spec) is AttentionCGSupport.NEVER and not builder.supports_update_block_table
    table = torch.randperm(39)[None, :12].to(torch.int32) + 1
    queries = {layer: torch.randn(TOKENS, 8, 64) for layer in names}
    for begin, end in ((0, 256), (256, TOKENS)):
        step = builder.build(0, metadata(end - begin, end, True, table))
        assert int(step.seq_lens[0]) == end and torch.equal(getattr(step, table_of), table)
        for layer in names:
            step.capture.keep(layer, queries[layer][begin:end])
    step = builder.build(0, metadata(1, TOKENS + 1, False, table))
    kept, newest = 128 - BLOCK + TOKENS % BLOCK, TOKENS % BLOCK
    assert int(step.seq_lens[0]) == kept + 1 and step.max_seq_len == kept + 1
    read = getattr(step, table_of)[0, : -(-(kept + 1) // BLOCK)]
    assert torch.equal(read, table[0, TOKENS // BLOCK - kept // BLOCK : TOKENS // BLOCK + 1])
    rows = lambda cache, blocks, count: cache[blocks.long()].transpose(0, 1).flatten(1, 2)[:, :count].split(64, dim=-1)
    for layer in names:
        keys, values = rows(before[layer], table[0], TOKENS)
        chosen = kvpolicy.decide(f"snapkv(window=16) | budget({kept}) | recent({newest})", keys=keys.contiguous(), queries=queries[layer][-16:].transpose(0, 1).contiguous())
        now = rows(layers[layer].kv_cache, read, kept)
        for head in range(2):
            for mine, theirs in zip(now, (keys, values)):
                assert torch.equal(mine[head], theirs[head, torch.from_numpy(chosen.lane(0, 0, head)).long()])


def test_without_a_policy_the_builder_is_vllms(config):
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

    from kvpolicy_vllm import backends

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32)
    builder = backends.FLASH_ATTN.get_builder_cls()
    assert builder.get_cudagraph_support(config, spec) is FlashAttentionMetadataBuilder.get_cudagraph_support(config, spec)
    assert builder.supports_update_block_table is FlashAttentionMetadataBuilder.supports_update_block_table
    assert backends.FLASH_ATTN.customize_spec(spec) is spec
