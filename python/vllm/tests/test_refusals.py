# SPDX-License-Identifier: Apache-2.0
"""What vLLM is asked for and the plugin refuses, in one sentence at the start.

It is a file of its own, because vLLM does not start again in a process in which it failed to start.
"""

import os

import pytest

pytest.importorskip("vllm")

import engine as e

REFUSED = [
    ({"policy": "h2o | budget(64)"}, {}, "h2o reads the query rows of every token"),
    ({"policy": "knorm | budget(64, scope=layer)"}, {}, "lets lanes keep unequal numbers"),
    ({"policy": "knorm | budget(ratio=0.5)"}, {}, "is not a number of entries"),
    ({"policy": "trim_kv | budget(64)"}, {}, "reads the signal retention"),
    ({"policy": "knrm | budget(64)"}, {}, "kvpolicy: parse: column 1 = knrm"),
    ({"policy": "knorm | budget(64)", "slak": 1}, {}, "has 'slak'"),
    ({"policy": "knorm | budget(64)", "slack": -1}, {}, "slack = -1"),
    ({"policy": "knorm | sinks(60) | budget(64)"}, {}, "it protects"),
    ({"policy": "knorm | budget(64)"}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}}, "speculative_config is given"),
]


@pytest.mark.parametrize("asked, options, sentence", REFUSED)
def test_what_cannot_be_cut_is_refused_at_the_start(asked, options, sentence):
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    try:
        with pytest.raises(ValueError, match=sentence) as raised:
            e.engine(e.model_folder(), additional_config={"kvpolicy": asked}, **options)
        assert "\n" not in str(raised.value)
    finally:
        cleanup_dist_env_and_memory()


@pytest.mark.parametrize("name", ["CPU_MLA", "AMX_MLA"])
def test_latent_attention_is_refused(name):
    from types import SimpleNamespace

    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    import kvpolicy_vllm
    from kvpolicy_vllm import backends

    kvpolicy_vllm.register()
    backend, asked = AttentionBackendEnum[name].get_class(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "get_current_vllm_config", lambda: SimpleNamespace(additional_config=asked))
        assert backend.get_impl_cls() is backend.__mro__[1].get_impl_cls()
        asked["kvpolicy"] = {"policy": "knorm | budget(64)"}
        with pytest.raises(ValueError, match="the model has latent attention"):
            backend.get_impl_cls()
