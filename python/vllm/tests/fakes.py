# SPDX-License-Identifier: Apache-2.0
"""What the manager and the builder see of vLLM, as little as they need."""

from __future__ import annotations

import importlib
import sys
import types
from collections import defaultdict
from dataclasses import dataclass, replace


@dataclass(eq=False)
class Block:
    block_id: int
    ref_cnt: int = 0
    block_hash: object = None
    is_null: bool = False


class Pool:
    """Blocks with reference counts, and the hashes of those that may be shared."""

    def __init__(self, count):
        self.blocks = [Block(index) for index in range(count)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free = self.blocks[1:]
        self.hashes = {}

    def get_num_free_blocks(self):
        return len(self.free)

    def get_new_blocks(self, count):
        assert count <= len(self.free)
        made, self.free = self.free[:count], self.free[count:]
        for block in made:
            assert block.ref_cnt == 0
            self.hashes.pop(block.block_hash, None)
            block.block_hash, block.ref_cnt = None, 1
        return made

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            if not block.is_null:
                block.ref_cnt -= 1
                assert block.ref_cnt >= 0
                if block.ref_cnt == 0:
                    self.free.append(block)


@dataclass
class Spec:
    block_size: int
    cuts: object
    window: int = 0


@dataclass
class Request:
    request_id: str
    tokens: list
    num_prompt_tokens: int
    computed: int = 0

    @property
    def num_tokens(self):
        return len(self.tokens)


class FullAttentionManager:
    def __init__(self, kv_cache_spec, block_pool, enable_caching=True, **_):
        self.kv_cache_spec, self.block_pool, self.enable_caching = kv_cache_spec, block_pool, enable_caching
        self.block_size = kv_cache_spec.block_size
        self._null_block = block_pool.null_block
        self.req_to_blocks = defaultdict(list)
        self.num_cached_block = {}

    def add_local_computed_blocks(self, request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens):
        self.block_pool.touch(new_computed_blocks)
        self.req_to_blocks[request_id].extend(new_computed_blocks)
        self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_new_blocks(self, request_id, num_tokens, num_tokens_main_model):
        blocks = self.req_to_blocks[request_id]
        made = self.block_pool.get_new_blocks(max(0, -(-num_tokens // self.block_size) - len(blocks)))
        blocks.extend(made)
        return made

    def cache_blocks(self, request, num_tokens, retention_interval=None, *, replay_boundaries=()):
        full = num_tokens // self.block_size
        for index in range(self.num_cached_block.get(request.request_id, 0), full):
            block = self.req_to_blocks[request.request_id][index]
            if not block.is_null:
                block.block_hash = tuple(request.tokens[: (index + 1) * self.block_size])
                self.block_pool.hashes[block.block_hash] = block
        self.num_cached_block[request.request_id] = max(full, self.num_cached_block.get(request.request_id, 0))

    def _remove_blocks_in_range(self, request_id, first, last):
        blocks, freed = self.req_to_blocks[request_id], []
        for index in range(min(last, len(blocks)) - 1, first - 1, -1):
            if blocks[index].is_null:
                break
            freed.append(blocks[index])
            blocks[index] = self._null_block
        self.block_pool.free_blocks(freed)

    def pop_blocks_for_free(self, request_id):
        self.num_cached_block.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, [])

    @classmethod
    def find_longest_cache_hit(cls, block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, *args, **kwargs):
        size, found = kv_cache_spec.block_size, []
        while (len(found) + 1) * size <= max_length and tuple(block_hashes[: (len(found) + 1) * size]) in block_pool.hashes:
            found.append(block_pool.hashes[tuple(block_hashes[: (len(found) + 1) * size])])
        return (found,), len(found) * size


class Scheduler:
    """`allocate_slots` and `free` of vLLM's cache manager."""

    def __init__(self, manager):
        self.manager = manager

    def allocate(self, request, new):
        manager, pool = self.manager, self.manager.block_pool
        first = request.request_id not in manager.req_to_blocks
        hits = []
        if first:
            (hits,), length = manager.find_longest_cache_hit(request.tokens, request.num_tokens - 1, [0], pool, manager.kv_cache_spec)
            request.computed = length
            new = min(new, request.num_tokens - length)
        manager.remove_skipped_blocks(request.request_id, request.computed, request.num_prompt_tokens)
        needed = -(-(request.computed + new) // manager.block_size) - len(manager.req_to_blocks.get(request.request_id, hits))
        if needed + sum(block.ref_cnt == 0 for block in hits) > pool.get_num_free_blocks():
            return None
        if first and hits:
            manager.add_local_computed_blocks(request.request_id, hits, request.computed, 0)
        manager.allocate_new_blocks(request.request_id, request.computed + new, request.computed + new)
        manager.cache_blocks(request, min(request.computed + new, request.num_tokens), replay_boundaries=())
        return new

    def release(self, request):
        self.manager.block_pool.free_blocks(reversed(self.manager.pop_blocks_for_free(request.request_id)))
        request.computed = 0


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int = 2
    head_size: int = 8
    head_size_v: int = 8
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False
    dtype: object = None
    page_size_bytes: int = 100

    def max_memory_usage_bytes(self, vllm_config):
        return 1000 * self.page_size_bytes

    @classmethod
    def merge(cls, specs):
        return specs[0]


@dataclass
class Metadata:
    """What attention reads."""

    block_table: object
    seq_lens: object
    max_seq_len: int


class DeviceMetadataBuilder:
    """A backend's on a GPU."""

    supports_update_block_table = True

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.layer_names = layer_names

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return "always"

    def build(self, common_prefix_len, common, fast_build=False):
        return Metadata(common.block_table_tensor, common.seq_lens, common.max_seq_len)


class MetadataBuilder(DeviceMetadataBuilder):
    """A backend's on a processor. `isa` is how it lays rows out."""

    supports_update_block_table = False
    isa = "vec"


@dataclass
class Common:
    """What the runner says of a batch."""

    query_start_loc_cpu: object
    seq_lens: object
    block_table_tensor: object
    is_prefilling: object
    max_seq_len: int = 0
    seq_lens_cpu_upper_bound: object = None
    _num_computed_tokens_cache: object = None

    def replace(self, **changes):
        return replace(self, **changes)


def write_by_formula(key, value, keys, values, slots, isa):
    """What attention on a processor does with the rows of new tokens, [token, KV head, channel], number by number."""
    tokens, heads, channels = key.shape
    blocks, _, size, _ = keys.shape
    t, d = slots[:, None] % size, _range(channels)[None]
    if isa == "amx":
        of_key = t // 16 * 16 * channels + d // 2 * 32 + t % 16 * 2 + d % 2
        of_value = d // 16 * 16 * size + t // 2 * 32 + d % 16 * 2 + t % 2
    else:
        of_key, of_value = d * size + t, t * channels + d
    for head in range(heads):
        for rows, cache, number in ((key, keys, of_key), (value, values, of_value)):
            cache[slots[:, None] // size, head, number // channels, number % channels] = rows[:, head]


def _range(count):
    import torch

    return torch.arange(count)


class Registry:
    registered: dict = {}

    @classmethod
    def _ensure_registered(cls):
        cls.registered.setdefault(FullAttentionSpec, FullAttentionManager)

    @classmethod
    def register(cls, spec, manager, uniform_type_base_spec):
        assert cls.registered, "vLLM's own come first"
        cls.registered[spec] = manager


class Logger:
    warnings: list = []

    def warning_once(self, text, *values):
        self.warnings.append(text % values)


VLLM = {
    "vllm": {},
    "vllm._custom_ops": {"cpu_attn_reshape_and_cache": write_by_formula},
    "vllm.logger": {"init_logger": lambda name: Logger()},
    "vllm.v1": {},
    "vllm.v1.attention": {},
    "vllm.v1.attention.backend": {"AttentionCGSupport": types.SimpleNamespace(NEVER="never")},
    "vllm.v1.core": {},
    "vllm.v1.core.single_type_kv_cache_manager": {"FullAttentionManager": FullAttentionManager},
    "vllm.v1.kv_cache_interface": {"FullAttentionSpec": FullAttentionSpec},
    "vllm.v1.kv_cache_spec_registry": {"KVCacheSpecRegistry": Registry},
}


def over_fakes(*names):
    """Modules of the package, imported anew over these fakes. What was imported before is as it was afterwards."""
    mine = [name for name in sys.modules if name.split(".")[0] in ("vllm", "kvpolicy_vllm")]
    before = {name: sys.modules.pop(name) for name in mine}
    try:
        for name, members in VLLM.items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(members)
        return [importlib.import_module(f"kvpolicy_vllm.{name}") for name in names]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "kvpolicy_vllm")]:
            del sys.modules[name]
        sys.modules.update(before)
