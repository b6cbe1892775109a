#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries every causal language model of transformers under kvpolicy.hf, and writes what became of each to a page.

    python3 python/architectures.py [--out docs/transformers_models.md] [--only llama,gemma2] [--seconds 60] [--jobs 2]

Every model is a tiny one with random weights, in a process of its own. What it generates after a cut is compared with the same
model and its whole cache, where an attention function masks the entries that the policy drops. Nothing is downloaded.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import multiprocessing
import platform
import re
import sys
import textwrap
import warnings
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import kvpolicy.hf

PAGE = Path(__file__).resolve().parent.parent / "docs" / "transformers_models.md"
SINKS, BUDGET, PROMPT, NEW, ROWS = 4, 24, 60, 4, 4
POLICY = f"streaming_llm(sinks={SINKS}) | budget({BUDGET})"
DROPPED = slice(SINKS, PROMPT - (BUDGET - SINKS))
TOLERANCE = 1e-3  # of logits, and of probabilities
EFFECT = 1e-2  # so much the dropped entries change the logits at least, or a comparison shows nothing
MOST_WEIGHTS = 50_000_000
REFUSAL = "hf.evict: "
# What is set in a configuration, where it has such a field.
SIZES = {
    128: "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab",
    64: "hidden_size d_model n_embd dim emb_dim embed_dim embedding_size word_embed_proj_dim hidden_size_global",
    96: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner d_inner dff d_ff ffn_hidden_size intermediate_size_mlp dense_intermediate_size",
    32: "moe_intermediate_size expert_ffn_hidden_size shared_intermediate_size q_lora_rank kv_lora_rank",
    16: "head_dim attention_head_dim qk_rope_head_dim qk_nope_head_dim index_head_dim hidden_size_per_layer_input sliding_window attention_chunk_size",
    8: "v_head_dim",
    4: "num_attention_heads num_heads n_head n_heads decoder_attention_heads encoder_attention_heads num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
       "num_experts num_local_experts n_routed_experts index_n_heads",
    2: "num_key_value_heads num_kv_heads num_experts_per_tok moe_topk top_k_experts n_group zero_expert_num type_vocab_size eos_token_id",
    512: "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions",
    1: "n_shared_experts topk_group bos_token_id decoder_start_token_id",
    0: "pad_token_id",
}
SIZES = {name: value for value, names in SIZES.items() for name in names.split()} | {"use_cache": True, "is_decoder": True}
DERIVED = ("pad_token_id", "head_dim", "num_key_value_heads")  # set even where the default is None
# What the sizes do not say, or what makes layers of each kind that published models have.
SPECIAL = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "beam": {"num_experts": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 32, "swa_kv_lora_rank": 32},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "gemma4_text": {"global_head_dim": 32},
    "gemma4_unified_text": {"global_head_dim": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4},
    "reformer": {"axial_pos_embds": False},
    "zaya": {"num_experts_per_tok": 1},
}
# What published models of an architecture have, and its defaults have not.
MIXED, FULL = {"layer_types": ["sliding_attention", "full_attention"] * 2}, {"layer_types": ["full_attention"] * 4}
VARIANTS = {
    "gemma4_text": {"`attention_k_eq_v=True`": {"attention_k_eq_v": True, "global_head_dim": 32}},
    "granitemoehybrid": {"attention layers only": FULL},
    "laguna": {"some sliding-window layers": MIXED},
    "mellum": {"some sliding-window layers": MIXED},
    "minimax_m3_vl_text": {"some sparse layers": {"layer_types": ["minimax_m3_sparse", "full_attention"] * 2}},
    "ministral": {"some full-attention layers": MIXED},
    "mistral": {"`sliding_window=None`": {"sliding_window": None}},
    "starcoder2": {"`sliding_window`": {"sliding_window": 16}},
}
DRAFTS = "it drafts for another model, and does not generate by itself"
UNTRIED = {"gemma4_assistant": DRAFTS, "gemma4_unified_assistant": DRAFTS}

TEXT = """# Models of transformers

This page lists every architecture for which transformers has a causal language model, and what becomes of it under
`kvpolicy.hf.evict` ([python/README.md](../python/README.md)). Each one was built with random weights and tiny sizes, of
the kinds of layers that the defaults of its configuration class have, and ran on a processor in float32. So the page
says which code can be cut, and nothing about the quality of answers. A name in brackets is the `model_type` of the
configuration. A note that begins with "with" says what becomes of published models that have other layers.

- *cut*: every layer attends to all tokens, and is cut. After a prompt of {PROMPT} tokens the policy
  `{POLICY}` drops {dropped} of them, and the model generates {NEW} tokens. Their logits agree
  within {TOLERANCE} with those of the same model and its whole cache, where a mask hides the dropped entries; these change
  the logits by more than {EFFECT}. The attention that a policy sees of the last {ROWS} query rows agrees within {TOLERANCE} with what
  the model gives out as its attention, and `h2o`, which decides after every forward, runs without an error. A note says
  what did not agree.
- *partly*: the same, for a model whose other layers are left alone: they have a sliding window or chunks, or
  no keys and values (linear attention, convolutions).
- *refused*: kvpolicy refuses the model, and the note is its sentence, shortened.
- *not tried*: the tiny model could not be built, or cannot generate without a policy.
- *wrong*: something else happened, which is an error of kvpolicy.

`{command}` made this page, with transformers {versions[0]}, PyTorch {versions[1]} and Python {versions[2]}.

Of {total} architectures {counts}.

| Architecture | what | note |
| --- | --- | --- |
{rows}
"""


class Skipped(Exception):
    """Why an architecture could not be tried."""


def tiny(kind, more=None):
    """A configuration of the class `kind` that makes a small model."""
    default = kind()
    default.allow_global_per_layer_attribute_access = True
    layers = next((getattr(default, one) for one in ("num_hidden_layers", "n_layer", "decoder_layers", "num_layers") if isinstance(getattr(default, one, None), int)), 0)
    names = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set(vars(default))
    given = {name: value for name, value in SIZES.items() if name in names and (getattr(default, name, None) is not None or name in DERIVED)}
    for name in names:
        value = getattr(default, name, None)
        if isinstance(value, list) and layers > 0 and len(value) == layers and name not in SIZES:  # one for each layer: every kind of them
            kinds = list(dict.fromkeys(value)) if all(isinstance(one, str) for one in value) else value
            given[name] = [kinds[index % len(kinds)] for index in range(4)]
    given |= SPECIAL.get(default.model_type, {}) | (more or {})
    for name in getattr(default, "sub_configs", None) or {}:
        if name not in given and isinstance(getattr(default, name, None), transformers.PreTrainedConfig):
            given[name] = tiny(type(getattr(default, name)))
    return kind(**given)


def built(kind, more=None):
    """The model of a configuration's class, with random weights that are large enough for attention to matter."""
    def made(base):
        config, options = tiny(kind, more), {"attn_implementation": base, "dtype": torch.float32}
        if config.model_type.startswith("musicgen"):  # its class is made of the decoder's part
            return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])._from_config(config.decoder, **options)
        return AutoModelForCausalLM.from_config(config, **options)

    try:
        with torch.device("meta"):
            weights = sum(one.numel() for one in made("eager").parameters())
        if weights > MOST_WEIGHTS:
            raise ValueError(f"it has {weights:,} weights")
        try:
            model = made("sdpa").eval()
        except (ValueError, ImportError):  # it has no such attention
            model = made("eager").eval()
    except Exception as error:
        raise Skipped(f"no tiny model could be made: {line_of(error)}") from error
    torch.manual_seed(1)
    for one in model.parameters():
        if one.dim() > 1:
            torch.nn.init.normal_(one, std=1.5 * one.shape[-1] ** -0.5)
        else:
            one.data += 0.1 * torch.randn(one.shape)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id, model.generation_config.cache_implementation = None, 0, None
    return model


def prompt_of():
    return torch.randint(3, SIZES["vocab_size"], (1, PROMPT), generator=torch.Generator().manual_seed(2))


def generated(model):
    """The logits of each step, [step, vocabulary], and the cache."""
    prompt = prompt_of()
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True)
    return torch.cat(made.logits), made.past_key_values


def masked(base):
    """The attention function `base` for the whole cache: a decoding step does not see the dropped entries of a full layer."""
    def attend(module, query, key, value, attention_mask, **kwargs):
        if query.shape[2] == 1 and key.shape[2] > PROMPT:
            dead = torch.zeros(1, 1, 1, key.shape[2], dtype=torch.bool)
            dead[..., DROPPED] = True
            attention_mask = torch.zeros(dead.shape) if attention_mask is None else attention_mask
            attention_mask = attention_mask & ~dead if attention_mask.dtype == torch.bool else attention_mask.masked_fill(dead, torch.finfo(torch.float32).min)
        function = sys.modules[type(module).__module__].eager_attention_forward if base == "eager" else ALL_ATTENTION_FUNCTIONS[base]
        return function(module, query, key, value, attention_mask, **kwargs)
    return attend


def with_function(model, name, call):
    """Calls `call` while the attention of the whole model is the function `name`."""
    before = {id(one.config): (one.config, one.config._attn_implementation) for one in model.modules() if hasattr(one, "config")}
    for config, _ in before.values():
        config._attn_implementation = name
    try:
        return call()
    finally:
        for config, previous in before.values():
            config._attn_implementation = previous


def tried(kind, more=None):
    """What becomes of an architecture, and a note."""
    model = built(kind, more)
    try:
        eviction = kvpolicy.hf.evict(model, POLICY)
    except Exception as error:
        if str(error).startswith(REFUSAL):
            return "refused", sentence_of(error)
        plain(model)
        raise
    whole, _ = plain(model)
    kinds = [type(one) for one in DynamicCache(config=model.config).layers]
    full = [index for index, one in enumerate(kinds) if one is DynamicLayer]
    with eviction:
        cut, cache = generated(model)
    rows = {cache.layers[index].keys.shape[2] for index in full}
    if eviction.decisions != 1 or rows != {BUDGET + NEW - 1}:
        return "wrong", f"{eviction.decisions} decisions, after which full layers hold {sorted(rows)} rows"
    expected = with_function(model, f"masked_{model.config._attn_implementation}", lambda: generated(model))[0]
    apart, effect = float((cut - expected).abs().max()), float((whole[1] - expected[1]).abs().max())
    if not apart <= TOLERANCE:
        return "wrong", f"its logits are {apart:.2g} from those of the masked cache, and the dropped entries change them by {effect:.2g}"
    notes = ["ran, not compared: the dropped entries do not change its logits"] if effect < EFFECT else []
    with kvpolicy.hf.evict(model, f"h2o | budget({BUDGET})", when="forward"):
        generated(model)
    return "cut" if len(full) == len(kinds) else "partly", "; ".join(notes + seen(model, kinds, full))


def plain(model):
    try:
        return generated(model)
    except Exception as error:
        raise Skipped(f"the tiny model does not generate without a policy: {line_of(error)}") from error


def seen(model, kinds, full):
    """A note if the attention that a policy sees is not the one that the model computes."""
    shown = {}

    def score(layer):
        shown[layer.index] = layer.probabilities()
        return -layer.positions.float()

    given = with_function(model, "eager", lambda: model(prompt_of(), output_attentions=True).attentions)
    given = [one for one in given or [] if one is not None]
    attends = [index for index, one in enumerate(kinds) if one in (DynamicLayer, DynamicSlidingWindowLayer)]
    if len(given) != len(attends):
        return ["the attention that policies see was not compared"]
    with kvpolicy.hf.evict(model, score, budget=BUDGET, rows=ROWS):
        model(prompt_of())
    apart = max(float((shown[place] - one[0, :, -ROWS:]).abs().max()) for place, one in enumerate(given[attends.index(index)] for index in full))
    return [] if apart <= TOLERANCE else [f"the attention that policies see is {apart:.2g} from the model's"]


def sentence_of(error):
    """The sentence of a refusal, without the name of the model."""
    return re.sub(r"^hf.evict: (model = \w+(, but |, whose |, )?)?", lambda match: "its " if "whose" in match[0] else "", str(error)).strip()


def outcome(kind, more=None):
    try:
        return tried(kind, more)
    except Skipped as error:
        return "not tried", str(error)
    except Exception as error:
        if str(error).startswith(REFUSAL):
            return "refused", f"not by `evict`, but while it generates: {sentence_of(error)}"
        return "wrong", f"under the policy it raised {line_of(error)}"


def line_of(error):
    return textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")


def child(model_type, pipe):
    warnings.filterwarnings("ignore")
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    if model_type in UNTRIED:
        pipe.send(("not tried", UNTRIED[model_type]))
        return
    kind = CONFIG_MAPPING[model_type]
    what, note = outcome(kind)
    notes = [note] if note else []
    for text, more in VARIANTS.get(model_type, {}).items():
        other, why = outcome(kind, more)
        notes.append(f"with {text} {other}" + (f" ({why})" if why else ""))
    pipe.send((what, "; ".join(notes)))


def in_a_process(model_type, seconds):
    """The outcome of one architecture, of which neither a crash nor a loop stops the others."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(model_type, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else ("not tried", f"it took more than {seconds} seconds")
    except EOFError:
        process.join()
        return "wrong", f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def page(found):
    """The page, of the outcomes by model type."""
    number = collections.Counter(what for what, _ in found.values())
    said = {"cut": "are cut", "partly": "are cut partly", "refused": "are refused", "not tried": "were not tried", "wrong": "went wrong"}
    counts = [f"{number[what]} {words}" for what, words in said.items() if number[what] > 0]
    names = sorted(found, key=lambda one: (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[one].lower(), one))
    rows = [f"| {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[one]} (`{one}`) | {found[one][0]} | {found[one][1].replace('|', ' ')} |" for one in names]
    versions = (transformers.__version__, torch.__version__.split("+")[0], platform.python_version())
    return TEXT.format(**globals(), versions=versions, command="python3 python/architectures.py", total=len(found), dropped=PROMPT - BUDGET,
                       counts=", ".join(counts[:-1]) + " and " + counts[-1], rows="\n".join(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    parser.add_argument("--only", help="model types, with commas between them; prints what becomes of them, and writes no page")
    parser.add_argument("--seconds", type=int, default=60, help="the most that one architecture may take")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for base in kvpolicy.hf.BASES:
        ALL_ATTENTION_FUNCTIONS.register(f"masked_{base}", masked(base))
        ALL_MASK_ATTENTION_FUNCTIONS.register(f"masked_{base}", ALL_MASK_ATTENTION_FUNCTIONS[base])
    names = given.only.split(",") if given.only else list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    found = {}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for name, result in zip(names, pool.map(lambda one: in_a_process(one, given.seconds), names)):
            found[name] = result
            print(f"{name:24} {result[0]:10} {result[1]}", flush=True)
    if not given.only:
        given.out.write_text(page(found))


if __name__ == "__main__":
    main()
