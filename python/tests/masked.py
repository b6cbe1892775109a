# SPDX-License-Identifier: Apache-2.0
"""The reference of eviction in transformers: a full cache, and a mask of what each lane has dropped."""

import numpy as np
import reference
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_running = []


def _attend(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
    group = query.shape[1] // key.shape[1]
    keys, values = (one.repeat_interleave(group, dim=1) for one in (key, value))
    logits = query @ keys.transpose(2, 3) * scaling
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if attention_mask is not None:
        logits = logits + attention_mask
    engine = _running[-1]
    alive = engine.seen(module.layer_idx, query, key)
    if alive is not None:
        dead = ~alive.repeat_interleave(group, dim=1)[:, :, None, :]
        logits = logits.masked_fill(dead, torch.finfo(logits.dtype).min)
    made = logits.softmax(dim=-1) @ values
    return made.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("masked_reference", _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register("masked_reference", eager_mask)


class Masked:
    """A model with its full cache. `evict` marks what SnapKV drops; attention no longer sees it."""

    def __init__(self, model, window=8, width=7, budget=24, ratio=None):
        self.model, self.window, self.width, self.budget, self.ratio = model, window, width, budget, ratio
        self.cache = DynamicCache(config=model.config)
        self.full = [index for index, layer in enumerate(self.cache.layers) if type(layer) is DynamicLayer]
        self.alive, self.queries, self.keys, self.real = {}, {}, {}, None

    def seen(self, layer, query, key):
        if layer not in self.full:
            return None
        heads = key.shape[1]
        new = self.real[:, None, :].expand(-1, heads, -1)
        before = self.alive.get(layer)
        self.alive[layer] = new if before is None else torch.cat((before, new), dim=2)
        self.queries[layer] = query if layer not in self.queries else torch.cat((self.queries[layer], query), dim=2)
        self.keys[layer] = key
        return self.alive[layer]

    def forward(self, ids, mask=None):
        """The logits after the last token, [sequence, vocabulary]. `mask` is of all tokens so far."""
        previous = self.model.config._attn_implementation
        self.model.config._attn_implementation = "masked_reference"
        self.real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask[:, -ids.shape[1] :].bool()
        positions = None if mask is None else (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        _running.append(self)
        try:
            with torch.no_grad():
                made = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache)
            return made.logits[:, -1]
        finally:
            _running.pop()
            self.model.config._attn_implementation = previous

    def evict(self):
        for layer in self.full:
            keys, queries = self.keys[layer].float().numpy(), self.queries[layer].float().numpy()
            alive = self.alive[layer].clone()
            scaling = next(one.scaling for one in self.model.modules() if getattr(one, "layer_idx", None) == layer and hasattr(one, "scaling"))
            group = queries.shape[1] // keys.shape[1]
            for sequence in range(keys.shape[0]):
                for head in range(keys.shape[1]):
                    at = np.flatnonzero(alive[sequence, head].numpy())
                    budget = self.budget if self.ratio is None else len(at) - int(len(at) * self.ratio)
                    kept = reference.snapkv(keys[sequence, head][None, at], queries[sequence, head * group : (head + 1) * group], self.window, self.width,
                                            min(budget, len(at)), scale=scaling)[0]
                    alive[sequence, head] = False
                    alive[sequence, head, at[kept]] = True
            self.alive[layer] = alive

    def kept_keys(self, layer, sequence, head):
        return self.keys[layer][sequence, head, self.alive[layer][sequence, head]]
