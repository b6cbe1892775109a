# SPDX-License-Identifier: Apache-2.0
"""What the user may ask for, and what is refused in one sentence. It needs NumPy and kvpolicy, and neither vLLM nor PyTorch."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

kvpolicy = pytest.importorskip("kvpolicy")

from kvpolicy_vllm.refusals import check_configuration, check_layer, untested
from kvpolicy_vllm.settings import asked_for, check_block, settings_of

PACKAGE = Path(__file__).resolve().parent.parent


def test_a_policy_is_asked_for_by_the_configuration_or_the_variable(monkeypatch):
    monkeypatch.delenv("KVPOLICY_VLLM", raising=False)
    assert asked_for({}) is None and asked_for(None) is None and asked_for({"other": 1}) is None
    made = asked_for({"kvpolicy": {"policy": "snapkv(window=16) | budget(100)", "slack": 3}})
    assert (made.budget, made.window, made.cuts(32).slack) == (100, 16, 3)
    assert asked_for({"kvpolicy": "knorm | budget(100)"}).cuts(32).slack == 3  # the budget's blocks
    monkeypatch.setenv("KVPOLICY_VLLM", "knorm | budget(40)")
    assert asked_for({}).budget == 40 and asked_for({"kvpolicy": "knorm | budget(50)"}).budget == 50
    monkeypatch.setenv("KVPOLICY_VLLM", '{"policy": "knorm | budget(41)", "slack": 0}')
    assert asked_for(None).cuts(32).slack == 0


@pytest.mark.parametrize("policy, sentence", [
    ("h2o | budget(64)", "h2o reads the query rows of every token"),
    ("observed_attention | budget(64)", "reads the query rows of every token"),
    ("intent_kv | budget(64)", "reads turns"),
    ("trim_kv | budget(64)", "reads the signal retention"),
    ("external | budget(64)", "reads the signal external"),
    ("lookahead_kv | budget(64)", "reads the signal external_queries"),
    ("full", "full drops nothing"),
    ("knorm | budget(64, scope=layer)", "budget(scope=layer) lets lanes keep unequal numbers"),
    ("pyramid_kv | budget(64)", "budget(64, by=ramp, beta=20) is not a number of entries"),
    ("knorm | budget(ratio=0.5)", "is not a number of entries such as budget(1024)"),
    ("knorm | budget(bytes=4000)", "is not a number of entries"),
    ("knorm | unlimited", "does not leave every lane"),
    ("knorm | at_least(0.5)", "does not leave every lane"),
    ("knorm | budget(64) | over_budget(8)", "does not leave every lane"),
    ("knorm | span(10, 20) | budget(64)", "does not leave every lane"),
    ("knrm | budget(64)", "kvpolicy: parse: column 1 = knrm"),
])
def test_policies_that_are_refused(policy, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as raised:
        settings_of(policy)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("given, sentence", [
    ({"policy": "knorm | budget(64)", "slak": 1}, "has 'slak', but there are policy, slack, during_prefill"),
    ({"policy": "knorm | budget(64)", "slack": -1}, "slack = -1"),
    ({"policy": "knorm | budget(64)", "slack": "2"}, "slack = 2"),
    ({"policy": "knorm | budget(64)", "during_prefill": 1}, "during_prefill = 1, but it is true or false"),
    ({"policy": "knorm | budget(64)", "during_prefill": True, "slack": 0}, "during_prefill = true, but with slack = 0"),
    ({"slack": 2}, "it is a policy's text"),
    (["knorm"], "it is a policy's text"),
    ('{"policy": ', "it is no JSON object"),
])
def test_settings_that_are_refused(given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        asked_for({"kvpolicy": given})


@pytest.mark.parametrize("policy", ["knorm | budget(64)", "snapkv(window=16) | budget(100)", "streaming_llm | budget(33)", "tova | budget(64)", "random | budget(64)",
                                    "snapkv(window=8) | safe(sinks=4, recent=16) | budget(96)", "nacl | budget(96)", "knorm | reduce_lanes(token, mean) | budget(70)"])
@pytest.mark.parametrize("block", [16, 32])
def test_a_policy_keeps_what_the_arithmetic_says_for_every_tail(policy, block):
    check_block(settings_of(policy), block)


@pytest.mark.parametrize("policy", ["knorm | sinks(60) | budget(64)", "knorm | safe(sinks=4, recent=60) | budget(64)", "snapkv(window=50) | budget(40)"])
def test_what_protects_more_than_whole_blocks_leave_is_refused(policy):
    with pytest.raises(ValueError, match="kvpolicy: policy = "):
        check_block(settings_of(policy), 32)


def configuration(**changes):
    made = SimpleNamespace(speculative_config=None, kv_transfer_config=None, use_v2_model_runner=False,
                           parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=1),
                           model_config=SimpleNamespace(is_hybrid=False, is_encoder_decoder=False), scheduler_config=SimpleNamespace(async_scheduling=False))
    for name, value in changes.items():
        for at in (made, made.parallel_config, made.model_config, made.scheduler_config):
            if hasattr(at, name):
                setattr(at, name, value)
    return made


@pytest.mark.parametrize("changes, sentence", [
    (dict(speculative_config=1), "speculative_config is given"),
    (dict(kv_transfer_config=1), "kv_transfer_config is given"),
    (dict(decode_context_parallel_size=2), "decode_context_parallel_size = 2"),
    (dict(prefill_context_parallel_size=2), "prefill_context_parallel_size = 2"),
    (dict(pipeline_parallel_size=2), "pipeline_parallel_size = 2"),
    (dict(use_v2_model_runner=True), "the model runner is V2"),
    (dict(async_scheduling=True), "async_scheduling is on"),
    (dict(is_hybrid=True), "layers that keep a state"),
    (dict(is_encoder_decoder=True), "the model has an encoder"),
])
def test_configurations_that_are_refused(changes, sentence):
    check_configuration(configuration())
    with pytest.raises(ValueError, match=f"kvpolicy: .*{sentence}.*, but "):
        check_configuration(configuration(**changes))


LAYER = dict(sliding_window=None, alibi_slopes=None, sinks=None, attn_type="decoder", kv_cache_dtype="auto", kv_sharing_target_layer_name=None)


@pytest.mark.parametrize("changes, sentence", [
    (dict(sliding_window=128), "a sliding window of 128"),
    (dict(alibi_slopes=[1.0]), "alibi slopes"),
    (dict(sinks=[1.0]), "learned attention sinks"),
    (dict(attn_type="encoder_only"), "attention is encoder_only"),
    (dict(kv_cache_dtype="fp8_e4m3"), "kv_cache_dtype = fp8_e4m3"),
    (dict(kv_sharing_target_layer_name="layer 3"), "reads the cache of layer 3"),
])
def test_layers_that_are_refused(changes, sentence):
    check_layer(settings_of("knorm | budget(64)"), LAYER, 1)
    with pytest.raises(ValueError, match=f"kvpolicy: .*{sentence}.*, but "):
        check_layer(settings_of("knorm | budget(64)"), LAYER | changes, 1)


def test_a_package_without_cuda_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(kvpolicy, "has_device", False)
    with pytest.raises(ValueError, match="kvpolicy was built without CUDA"):
        check_configuration(configuration(), on_device=True)
    monkeypatch.setattr(kvpolicy, "has_device", True)
    check_configuration(configuration(), on_device=True)


def test_lanes_that_decide_together_are_refused_on_ranks():
    with pytest.raises(ValueError, match="2 ranks have the heads"):
        check_layer(settings_of("tova | budget(64)"), LAYER, 2)


def test_a_version_that_was_not_tested_is_a_warning_with_both():
    assert untested("0.32.0") is None and untested("0.32.0+cpu") is None
    assert untested("0.99.1") == "kvpolicy: vLLM is 0.99.1, but the plugin was tested with 0.32.0"


def test_the_version_is_kvpolicys():
    if not (PACKAGE / "../../include/kvpolicy/version.hpp").exists():
        pytest.skip("only a checkout has the headers")
    import kvpolicy_vllm

    header = (PACKAGE / "../../include/kvpolicy/version.hpp").read_text()
    numbers = re.search(r'version\[\] = "(.*)"', header).group(1)
    written = re.search(r'^version = "(.*)"', (PACKAGE / "pyproject.toml").read_text(), re.M).group(1)
    assert written == kvpolicy_vllm.__version__ == numbers


@pytest.mark.parametrize("slack, during_prefill, told", [
    (None, False, "kvpolicy: a request keeps 64 entries in each lane (knorm | budget(64)), cut after its prompt, and again whenever it has its budget more"),
    (0, False, "kvpolicy: a request keeps 64 entries in each lane (knorm | budget(64)), cut after its prompt, and never again"),
    (2, True, "kvpolicy: a request keeps 64 entries in each lane (knorm | budget(64)), cut between chunks of its prompt, after it, and again whenever it has 2 blocks more"),
])
def test_an_engine_that_starts_says_what_it_does(slack, during_prefill, told):
    assert settings_of("knorm | budget(64)", slack, during_prefill).told == told
