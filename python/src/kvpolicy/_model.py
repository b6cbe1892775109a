# SPDX-License-Identifier: Apache-2.0
"""What is known of a model of transformers: its attention layers, and which of them can be cut."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import DynamicCache, PreTrainedModel, cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

LEFT_ALONE = (DynamicSlidingWindowLayer, *((cache_utils.LinearAttentionLayer,) if hasattr(cache_utils, "LinearAttentionLayer") else ()))
FUSED = ("query_key_value", "Wqkv", "c_attn", "in_proj_qkv")


def expects(ok: bool, name: str, value: Any, rule: str) -> None:
    if not ok:
        raise ValueError(f"hf.evict: {name} = {value}, but {rule}")


class Layers:
    """The attention modules of a model, and which of them are cut."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else model
        found = {
            module.layer_idx: module
            for module in self.decoder.modules()
            if isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "head_dim") and hasattr(module, "config")
            and (hasattr(module, "qkv_proj") or all(hasattr(module, name) for name in ("q_proj", "k_proj", "v_proj")))
        }
        name = type(model).__name__
        fused = sorted({one for module in self.decoder.modules() for one in FUSED if hasattr(module, one)})
        expects(len(found) > 0 or not fused, "model", f"{name} with fused projections ({', '.join(fused)})", "q_proj, k_proj and v_proj say how many heads there are")
        expects(len(found) > 0, "model", name, "none of its modules has layer_idx, q_proj, k_proj, v_proj and head_dim")
        by_name = getattr(model, "_supports_attention_backend", False) or all("ALL_ATTENTION_FUNCTIONS" in inspect.getsource(type(one).forward) for one in found.values())
        expects(bool(by_name), "model", name, "its attention is not a function with a name, so query rows cannot be seen")
        fits = getattr(model, "_supports_default_dynamic_cache", lambda: True)()
        expects(bool(fits), "model", name, "it has a cache of its own, and only a DynamicCache can be cut")
        self.config: Any = self.decoder.config
        self.configs: list[Any] = list({id(one.config): one.config for one in found.values()}.values())
        shared = int(getattr(self.config, "num_kv_shared_layers", 0) or 0)
        expects(shared == 0, "model", f"{name} with {shared} layers that use the keys of another one", "the layers of a cache are cut one by one")
        kinds = [type(one) for one in DynamicCache(config=model.config).layers]
        others = sorted({one.__name__ for one in kinds if one not in (DynamicLayer, *LEFT_ALONE)})
        expects(not others, "model", f"{name}, whose cache has {' and '.join(others)}", "only layers of keys and values are known, with a sliding window or without, and those of linear attention")
        unknown = [index for index, kind in enumerate(kinds) if kind is DynamicLayer and index not in found]
        expects(not unknown, "model", f"{name} with keys of layer {unknown[:1]}", "none of its modules has q_proj, k_proj, v_proj and head_dim")
        crossed = list(getattr(self.config, "cross_attention_layers", None) or [])
        expects(not crossed, "model", f"{name} with cross-attention in layers {crossed}", "their keys are those of another input")
        chooses = any(hasattr(one, "keep_window_size") for one in found.values())
        expects(not chooses, "model", f"{name} with a dynamic mask", "each of its layers chooses keys by a mask that a policy does not see")
        twice = any(hasattr(one, "lambda_q1") for one in found.values())
        expects(not twice, "model", f"{name} with differential attention", "each of its layers attends twice")
        self.cut = [index for index, kind in enumerate(kinds) if kind is DynamicLayer]
        expects(len(self.cut) > 0, "model", f"{name} with a sliding window in every layer", "only layers that attend to all tokens are cut")
        self.place = {index: place for place, index in enumerate(self.cut)}
        self.modules = [found[index] for index in self.cut]
        self.total = len(kinds)
        self.shape = self._shape(self.modules)

    def cut_of(self, cache: DynamicCache) -> list[Any]:
        """The layers of a cache that are cut."""
        return [cache.layers[index] for index in self.cut]

    @staticmethod
    def _shape(modules: list[Any]) -> dict[str, Any]:
        shapes = []
        for one in modules:
            scaling: Any = getattr(one, "scaling", None)
            expects(isinstance(scaling, (int, float)), "model", f"{type(one).__name__} without scaling", "it is the factor of q.k")
            dims, fused = one.head_dim, hasattr(one, "qkv_proj")
            kv_heads = one.config.num_key_value_heads if fused else one.k_proj.out_features // dims
            group = getattr(one, "num_key_value_groups", None)  # q_proj may also give a gate (Qwen3-Next)
            made = {
                "query_heads": kv_heads * group if group else one.q_proj.out_features // dims,
                "kv_heads": kv_heads,
                "head_dim": dims,
                "value_dim": dims if fused else (one.v_proj or one.k_proj).out_features // kv_heads,
                "scale": float(scaling),
                "soft_cap": float(getattr(one, "attn_logit_softcapping", None) or 0),
            }
            expects(getattr(one, "sinks", None) is None, "model", type(one).__name__, "learned sinks are not shown to the policy yet")
            shapes.append(made)
        for index, one in enumerate(shapes):
            expects(one == shapes[0], f"full layer {index}", one, f"full layers are alike, and the first is {shapes[0]}")
        return {"layers": len(modules), **shapes[0]}
