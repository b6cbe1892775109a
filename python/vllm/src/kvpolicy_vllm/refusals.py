# SPDX-License-Identifier: Apache-2.0
"""What cannot be cut: a configuration or a layer of vLLM is refused in one sentence, before weights are loaded."""

from __future__ import annotations

from typing import Any, Mapping

import kvpolicy

TESTED = ("0.32.0",)  # versions of vLLM


def _refuse(what: str, why: str) -> None:
    raise ValueError(f"kvpolicy: {what}, but {why}")


def check_configuration(config: Any, *, on_device: bool = False) -> None:
    """Raises ValueError if requests under this configuration of vLLM cannot be cut."""
    if on_device and not kvpolicy.has_device:
        _refuse("the package kvpolicy was built without CUDA", "decisions are made where the cache is: python/README.md says how it is built with CUDA")
    parallel, model = config.parallel_config, config.model_config
    if getattr(config, "speculative_config", None) is not None:
        _refuse("speculative_config is given", "drafts that are refused would shorten a request that was cut")
    if getattr(config, "kv_transfer_config", None) is not None:
        _refuse("kv_transfer_config is given", "a connector would read blocks whose rows have moved")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            _refuse(f"{name} = {getattr(parallel, name)}", "a rank would see a part of each request only")
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        _refuse(f"pipeline_parallel_size = {parallel.pipeline_parallel_size}", "the plugin was never run with stages of layers")
    if getattr(config, "use_v2_model_runner", False):
        _refuse("the model runner is V2", "the plugin knows V1: VLLM_USE_V2_MODEL_RUNNER=0")
    if getattr(getattr(config, "scheduler_config", None), "async_scheduling", False):
        _refuse("async_scheduling is on", "scheduler and workers would count the tokens of a step that still runs in different ways: --no-async-scheduling")
    if getattr(model, "is_hybrid", False):
        _refuse("the model mixes attention with layers that keep a state", "the plugin cuts models of full attention only")
    if getattr(model, "is_encoder_decoder", False):
        _refuse("the model has an encoder", "the plugin cuts decoders only")


def check_layer(settings: Any, layer: Mapping[str, Any], tensor_parallel_size: int) -> None:
    """Raises ValueError if a layer of attention, made with these arguments, cannot be cut."""
    attn_type, window, shared, dtype = (layer.get(name) for name in ("attn_type", "sliding_window", "kv_sharing_target_layer_name", "kv_cache_dtype"))
    if str(attn_type).rsplit(".", 1)[-1].lower() != "decoder":
        _refuse(f"a layer's attention is {attn_type}", "the plugin cuts decoders only")
    if window is not None and window != -1:
        _refuse(f"a layer has a sliding window of {window}", "its distances would change when blocks leave")
    if layer.get("alibi_slopes") is not None:
        _refuse("a layer has alibi slopes", "its distances would change when blocks leave")
    if layer.get("sinks") is not None:
        _refuse("a layer has learned attention sinks", "no policy here knows them")
    if shared is not None:
        _refuse(f"a layer reads the cache of {shared}", "its query rows would not be seen")
    if str(dtype).startswith(("fp8", "int", "nvfp4", "turbo")):
        _refuse(f"kv_cache_dtype = {dtype}", "quantised rows are not scored")
    if tensor_parallel_size > 1 and settings.decides != "lane":
        _refuse(f"policy = {settings.policy}", f"its lanes decide together by {settings.decides}, and {tensor_parallel_size} ranks have the heads")


def check_blocks(of_worker: int, of_scheduler: int) -> None:
    """Raises ValueError if attention reads other blocks than the scheduler gives."""
    if of_worker != of_scheduler:
        _refuse(f"attention reads blocks of {of_worker} tokens", f"the scheduler gives blocks of {of_scheduler}: --block-size {of_worker} makes them one")


def untested(version: str) -> str | None:
    """A warning about a version of vLLM that was not tested."""
    return None if version.split("+")[0] in TESTED else f"kvpolicy: vLLM is {version}, but the plugin was tested with {', '.join(TESTED)}"
