#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records a trace for kvreplay from a causal language model of Hugging Face transformers.

    tools/capture_trace.py MODEL --text FILE --out TRACE.safetensors [options]

Runs the model once over the text and writes, layer by layer, keys before and after RoPE, values, queries, positions and token
ids; with --mass the attention that each entry has received, with --lse W the log-sum-exp of the last W rows. It hooks the q, k
and v projections (and the norms of queries and keys where there are some) and turns them with the model's own rotary function:
Llama, Qwen2, Qwen3, Mistral, Gemma, gpt-oss and models built alike. Of latent attention (DeepSeek-V3) it writes what an engine
keeps of a token: one row of the latent and the turned part of the key, which every query head reads. Queries are those that
meet such rows (the key's projection is absorbed into them), and values are the latent alone.

What the model makes of q k is in the trace: its scale where that is not 1 / sqrt(D), as the metadata attention_scale; a soft cap
of logits, as logit_cap; learned sinks, as the tensor sink_logits. Where layers have different scales, the trace names none, and
their queries are scaled to match 1 / sqrt(D). Layers with different caps are refused. Where the configuration names several
kinds of attention layers (layer_types), the tensor layer_group has each layer's kind, and the metadata layer_types their names.
"""

import argparse
import contextlib
import json
import math
import struct
import sys
from pathlib import Path

from replace_file import CannotReplace, check_replaceable, replace_file

MARGIN = "capture_trace: "


class Refused(Exception):
    """What a user can change: told in one line."""


def expects(ok, what):
    if not ok:
        raise Refused(what)


def imports():
    try:
        import torch
        import transformers
    except ImportError as missing:
        raise Refused(f"{missing.name} is not installed; a trace is recorded with torch and transformers") from None
    return torch, transformers


# Writing: every tensor has its place before the first layer has run ------------------------------------------------------------
DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2), "int32": ("I32", 4), "int64": ("I64", 8)}


class TraceFile:
    """A safetensors file that is filled layer by layer; it appears under its name when it is whole."""

    def __init__(self, path, tensors, metadata):
        self.replacing = replace_file(path)
        header, at = {"__metadata__": {name: str(value) for name, value in metadata.items()}}, 0
        self.begin, self.size = {}, {}
        for name, (dtype, shape) in tensors.items():
            code, width = DTYPES[dtype]
            self.begin[name], self.size[name] = at, width * math.prod(shape)
            header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, at + self.size[name]]}
            at += self.size[name]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.data = 8 + len(text)
        try:
            self.file = self.replacing.__enter__()
        except CannotReplace as why:
            raise Refused(f"--out {why}") from None
        self.file.write(struct.pack("<Q", len(text)) + text)
        self.file.truncate(self.data + at)

    def put(self, name, tensor, layer=0, layers=1):
        """Writes one layer's part of a tensor, or all of it."""
        import torch

        raw = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        part = self.size[name] // layers
        assert len(raw) == part, (name, len(raw), part)
        self.file.seek(self.data + self.begin[name] + layer * part)
        self.file.write(raw)

    def close(self, whole):
        if whole:
            self.replacing.__exit__(None, None, None)
        else:
            failed = Refused("the trace is not whole")
            self.replacing.__exit__(Refused, failed, None)


# Reading the model --------------------------------------------------------------------------------------------------------------
def attentions(model):
    """The attention modules, in the order of layers."""
    plain = [module for module in model.modules() if all(hasattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))]
    latent = [module for module in model.modules() if is_latent(module)]
    expects(plain or latent, f"model {type(model).__name__} has no module with q_proj, k_proj, v_proj and o_proj; fused projections are not known")
    expects(not plain or not latent, "some layers have latent attention and some have not; their rows have different sizes")
    return plain or latent


def is_latent(module):
    """Whether keys and values are made of one compressed row, as DeepSeek-V3 does."""
    return all(hasattr(module, name) for name in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"))


def rotary_of(attention):
    adjacent = is_latent(attention) and getattr(attention.config, "rope_interleave", False)
    name = "apply_rotary_pos_emb_interleave" if adjacent else "apply_rotary_pos_emb"
    function = getattr(sys.modules[type(attention).__module__], name, None)
    expects(function is not None, f"{type(attention).__module__} has no {name}; only models with RoPE are known")
    return function


class Shape:
    """Sizes that all layers must share."""

    def __init__(self, found, text_config):
        self.layers, self.config, self.latent = len(found), text_config, is_latent(found[0])
        self.latent_sizes(found) if self.latent else self.plain_sizes(found)

    def latent_sizes(self, found):
        sizes = {(one.num_heads, one.kv_lora_rank, one.qk_rope_head_dim) for one in found}
        expects(len(sizes) == 1, f"layers have latent rows of different sizes: {sorted(sizes)}")
        self.query_heads, self.value_dims, rope = sizes.pop()
        self.kv_heads, self.dims = 1, self.value_dims + rope

    def plain_sizes(self, found):
        dims = {getattr(one, "head_dim", None) for one in found}
        expects(len(dims) == 1 and None not in dims, f"layers have heads of different sizes: {sorted(map(str, dims))}")
        self.dims = dims.pop()
        sizes = {(one.q_proj.out_features, one.k_proj.out_features, one.v_proj.out_features) for one in found}
        expects(len(sizes) == 1, f"layers have different numbers of heads: {sorted(sizes)}")
        query, key, value = sizes.pop()
        expects(query % self.dims == 0 and key % self.dims == 0, f"projections of {query} and {key} channels are no heads of {self.dims}")
        self.query_heads, self.kv_heads = query // self.dims, key // self.dims
        self.value_dims = value // self.kv_heads


class Logits:
    """What the layers make of q k: a scale if all have one that is not 1 / sqrt(D), a cap if there is one, sinks if there are some."""

    def __init__(self, found, shape):
        scales = {getattr(one, "scaling", None) for one in found}
        usual = any(one is None or math.isclose(one, shape.dims**-0.5, rel_tol=1e-9) for one in scales)
        self.scale = None if len(scales) > 1 or usual else float(scales.pop())
        caps = {float(self.cap_of(one, shape.config) or 0) for one in found}
        expects(len(caps) == 1, f"layers cap their logits at different values: {sorted(caps)}; a trace names one")
        self.cap = caps.pop()
        self.sinks = [getattr(one, "sinks", None) for one in found]

    @staticmethod
    def cap_of(attention, config):
        return getattr(attention, "attn_logit_softcapping", getattr(config, "attn_logit_softcapping", None))

    def has_sinks(self):
        return any(one is not None for one in self.sinks)

    def metadata(self):
        made = {} if self.scale is None else {"attention_scale": repr(self.scale)}
        return {**made, "logit_cap": repr(self.cap)} if self.cap else made

    def sinks_of(self, torch, layer, query_heads):
        """[Hq] in float32; -inf in a layer without sinks."""
        sinks = self.sinks[layer]
        if sinks is None:
            return torch.full((query_heads,), -math.inf)
        expects(sinks.numel() == query_heads, f"layer {layer} has {sinks.numel()} sinks for {query_heads} query heads")
        return sinks.detach().float().reshape(-1).cpu()

    def of(self, torch, products, dims):
        """The logits of products q k."""
        scaled = products * (dims**-0.5 if self.scale is None else self.scale)
        return self.cap * torch.tanh(scaled / self.cap) if self.cap else scaled


class Recorder:
    """Hooks of one forward: what the projections and norms said last, turned when the attention is done."""

    def __init__(self, found, shape, visit):
        self.shape, self.visit, self.last, self.handles = shape, visit, {}, []
        self.named = Logits(found, shape).scale is not None
        for layer, attention in enumerate(found):
            self.handles.append(attention.register_forward_pre_hook(self.entering, with_kwargs=True))
            for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm"):
                module = getattr(attention, name, None)
                if module is not None:
                    self.handles.append(module.register_forward_hook(self.keeping(name)))
            self.handles.append(attention.register_forward_hook(self.leaving(layer)))

    def keeping(self, name):
        def hook(_module, _inputs, output):
            self.last[name] = output

        return hook

    def entering(self, _module, args, kwargs):
        self.last.clear()
        pair = kwargs.get("position_embeddings", next((one for one in args if isinstance(one, tuple) and len(one) == 2), None))
        expects(pair is not None, "the attention is not given position_embeddings (cos, sin); this version of transformers is not known")
        self.last["rotary"] = pair

    def rows(self, name, heads, dims):
        """[1, heads, N, dims], normed where the model does."""
        made = self.last.get(name + "_norm")
        if made is None:
            made = self.last[name + "_proj"]
        if made.dim() == 4 and made.shape[1] == heads and made.shape[2] != heads:
            return made  # a norm after the heads were put first
        return made.reshape(1, -1, heads, dims).transpose(1, 2)

    def called(self, layer, *names):
        for name in names:
            expects(name in self.last, f"layer {layer} did not call its {name}: its weights are used in another way")

    def plain_rows(self, module, layer, cos, sin):
        """The turned queries and keys, the keys before that, and the values: [1, heads, N, dims]."""
        self.called(layer, "q_proj", "k_proj", "v_proj")
        shape = self.shape
        query, key = self.rows("q", shape.query_heads, shape.dims), self.rows("k", shape.kv_heads, shape.dims)
        value = self.last["v_proj"].reshape(1, -1, shape.kv_heads, shape.value_dims).transpose(1, 2)
        return *rotary_of(module)(query, key, cos, sin), key, value

    def latent_rows(self, module, layer, cos, sin):
        """As plain_rows. q (W_k c) = (q W_k) c, so that a query that has taken in W_k meets the latent c itself."""
        import torch

        query_name = "q_b_proj" if getattr(module, "q_b_proj", None) is not None else "q_proj"
        self.called(layer, query_name, "kv_a_proj_with_mqa", "kv_a_layernorm")
        heads, rank, turning = module.num_heads, module.kv_lora_rank, module.qk_rope_head_dim
        still = module.qk_nope_head_dim
        query = self.last[query_name].reshape(1, -1, heads, still + turning).transpose(1, 2)
        latent = self.last["kv_a_layernorm"].reshape(1, 1, -1, rank)
        key_turning = self.last["kv_a_proj_with_mqa"].reshape(1, 1, -1, rank + turning)[..., rank:]
        turned_query, turned_key = rotary_of(module)(query[..., still:], key_turning, cos, sin)
        to_keys = module.kv_b_proj.weight.reshape(heads, still + module.v_head_dim, rank)[:, :still]
        absorbed = query[..., :still] @ to_keys
        join = lambda one, other: torch.cat((one, other), dim=-1)
        return join(absorbed, turned_query), join(latent, turned_key), join(latent, key_turning), latent

    def leaving(self, layer):
        def hook(module, _inputs, output):
            cos, sin = self.last["rotary"]
            shape = self.shape
            turned_query, turned_key, key, value = (self.latent_rows if shape.latent else self.plain_rows)(module, layer, cos, sin)
            scale = getattr(module, "scaling", None)
            if scale is not None and not self.named:
                turned_query = turned_query * (scale * math.sqrt(shape.dims))
            attended = output[0] if isinstance(output, tuple) else output
            self.visit(layer, {"queries": turned_query[0], "keys": turned_key[0], "pre_rope_keys": key[0], "values": value[0]},
                       attended, (cos, sin))
            self.last.clear()

        return hook

    def remove(self):
        for handle in self.handles:
            handle.remove()


@contextlib.contextmanager
def recording(found, shape, visit):
    recorder = Recorder(found, shape, visit)
    try:
        yield
    finally:
        recorder.remove()


# What a trace tells of a forward ------------------------------------------------------------------------------------------------
def mass_and_lse(torch, query, key, lse_rows, how, layer, chunk=256):
    """Of one layer, as kvreplay sees it: every entry at or before a row is visible, and the sink of its head. Sums in double."""
    heads, count, dims = query.shape
    key = key.float().repeat_interleave(heads // key.shape[0], dim=0)
    mass = torch.zeros(heads, count, dtype=torch.float64)
    lse, sinks = [], how.sinks_of(torch, layer, heads).to(query.device)
    for begin in range(0, count, chunk):
        rows = query[:, begin : begin + chunk].float()
        logits = how.of(torch, rows @ key.transpose(1, 2), dims)
        seen = torch.arange(count)[None, :] <= torch.arange(begin, begin + rows.shape[1])[:, None]
        logits = logits.masked_fill(~seen.to(logits.device), -math.inf)
        total = torch.logaddexp(logits.logsumexp(dim=-1), sinks[:, None])
        lse.append(total)
        mass += (logits - total[..., None]).exp().sum(dim=1, dtype=torch.float64).cpu()
    return mass.float(), torch.cat(lse, dim=1)[:, count - lse_rows :].float()


def rope_theta_of(config):
    """The base of the angles; of several kinds of layers that of full attention."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" not in parameters and any(isinstance(one, dict) for one in parameters.values()):
        parameters = parameters.get("full_attention") or next(one for one in parameters.values() if isinstance(one, dict))
    theta = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    return None if theta is None else float(theta)


def rope_style_of(torch, attention, dims, cos, sin):
    """Which channel turns with the first one: "neox" for the one half a head away, "gptj" for its neighbour; None otherwise."""
    unit = torch.zeros(1, 1, cos.shape[-2], dims, dtype=cos.dtype, device=cos.device)
    unit[..., 0] = 1
    turned, _ = rotary_of(attention)(unit, unit, cos, sin)
    where = [d for d in range(1, dims) if turned[0, 0, :, d].abs().max() > 1e-3]
    return {(dims // 2,): "neox", (1,): "gptj"}.get(tuple(where))


def theta_is_true(torch, theta, style, dims, cos):
    """Whether cos is that of position x theta^(-2 i / D), for every pair: no scaling, no part of a head left out."""
    steps = torch.arange(cos.shape[-2], dtype=torch.float64)[:, None] * theta ** (-torch.arange(dims // 2, dtype=torch.float64) * 2 / dims)
    given = cos[0].double().cpu()
    given = given[..., : dims // 2] if style == "neox" or given.shape[-1] == dims // 2 else given[..., 0::2]
    return given.shape == steps.shape and bool((given - steps.cos()).abs().max() < (1e-3 if cos.dtype == torch.float32 else 2e-2))


def warn(text):
    print(f"{MARGIN}warning: {text}", file=sys.stderr)


def check_attention(shape, count):
    """What a trace cannot say about attention is refused, or warned of."""
    config = shape.config
    window = getattr(config, "sliding_window", None)
    if window and count > window and getattr(config, "use_sliding_window", True):
        warn(f"some layers attend to the last {window} of {count} tokens only; kvreplay lets every row see all before it "
             "(--no-policy leaves the group of these layers alone)")


def groups_of(config, found):
    """Each layer's group and the names of the groups, where the configuration names several kinds of attention layers.
    A hybrid model names other layers too, so each attention module is looked up by its own number."""
    named = list(getattr(config, "layer_types", None) or [])
    numbers = [getattr(one, "layer_idx", None) for one in found]
    if not all(number is not None and number < len(named) for number in numbers):
        return [], []
    kinds = [named[number] for number in numbers]
    names = list(dict.fromkeys(kinds))
    return ([names.index(one) for one in kinds], names) if len(names) > 1 else ([], [])


def capture(model, token_ids, out, name="", mass=False, lse=0, dtype=None, recent=0, pre_rope=True, visit=None, texts=None):
    """Runs the model over the tokens and writes the trace. `visit(layer, parts, attended)` is called with what was recorded.

    `texts` are those of the tokens, which kvreplay's page shows.
    """
    torch, _ = imports()
    found = attentions(model)
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    shape, count = Shape(found, config), len(token_ids)
    expects(count >= 1, "there are no tokens")
    expects(0 <= lse <= count, f"--lse {lse}: there are {count} tokens")
    expects(0 <= recent <= count, f"--recent {recent}: there are {count} tokens")
    check_attention(shape, count)
    how = Logits(found, shape)
    kind = str(dtype or next(model.parameters()).dtype).rpartition(".")[2]
    expects(kind in DTYPES, f"--dtype {kind}: there are float32, float16 and bfloat16")
    layers, query_heads, kv_heads = shape.layers, shape.query_heads, shape.kv_heads
    tensors = {"keys": (kind, (layers, kv_heads, count, shape.dims)), "values": (kind, (layers, kv_heads, count, shape.value_dims))}
    if pre_rope:
        tensors["pre_rope_keys"] = tensors["keys"]
    queries = "recent_queries" if recent else "queries"
    tensors[queries] = (kind, (layers, query_heads, recent or count, shape.dims))
    if mass:
        tensors["attention_mass"] = ("float32", (layers, query_heads, count))
    if lse:
        expects(not recent or recent == lse, f"--lse {lse}: both count the last rows, and --recent is {recent}")
        tensors["row_lse"] = ("float32", (layers, query_heads, lse))
    if how.has_sinks():
        tensors["sink_logits"] = ("float32", (layers, query_heads))
    group, group_names = groups_of(config, found)
    if group:
        tensors["layer_group"] = ("int32", (layers,))
    tensors["positions"] = tensors["token_ids"] = ("int64", (count,))

    metadata = {"model": name or type(model).__name__, "transformers": imports()[1].__version__, **how.metadata(),
                **({"layer_types": ", ".join(group_names)} if group else {}), **({"token_texts": json.dumps(texts)} if texts else {}), **rope_metadata(torch, model, found, shape, token_ids)}
    file, seen = TraceFile(out, tensors, metadata), []

    def keep(layer, parts, attended, _rotary):
        seen.append(layer)
        if mass or lse:
            added, rows = mass_and_lse(torch, parts["queries"], parts["keys"], lse, how, layer)
        if how.has_sinks():
            file.put("sink_logits", how.sinks_of(torch, layer, query_heads), layer, layers)
        for one in ("keys", "values") + (("pre_rope_keys",) if pre_rope else ()):
            file.put(one, parts[one].to(getattr(torch, kind)), layer, layers)
        file.put(queries, parts["queries"][:, count - recent if recent else 0 :].to(getattr(torch, kind)), layer, layers)
        if mass:
            file.put("attention_mass", added, layer, layers)
        if lse:
            file.put("row_lse", rows, layer, layers)
        if visit:
            visit(layer, parts, attended)

    whole = False
    try:
        forward(torch, model, found, shape, token_ids, keep)
        expects(seen == list(range(layers)), f"layers ran in the order {seen}")
        file.put("positions", torch.arange(count))
        if group:
            file.put("layer_group", torch.tensor(group, dtype=torch.int32))
        file.put("token_ids", torch.tensor(token_ids, dtype=torch.int64))
        whole = True
    finally:
        file.close(whole)
    return shape


def forward(torch, model, found, shape, token_ids, visit):
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad(), recording(found, shape, visit):
        body = getattr(model, "model", model)  # without the head: no logits of the vocabulary
        body(input_ids=torch.tensor([token_ids], device=device), use_cache=False)


def rope_metadata(torch, model, found, shape, token_ids):
    """rope_theta and rope_style, where they are all that there is to say; asked of the model by a few tokens."""
    angles = []
    forward(torch, model, found, shape, (list(token_ids) * 2)[: max(2, min(64, len(token_ids)))], lambda _layer, _parts, _out, rotary: angles.append(rotary))
    cos, sin = angles[-1]
    if shape.latent:
        warn("RoPE turns a part of each latent row only; the trace does not name it, and --layout compact_rerotated is void")
        return {}
    style = rope_style_of(torch, found[-1], shape.dims, cos, sin)
    theta = rope_theta_of(shape.config)
    plain = style is not None and theta is not None
    plain = plain and all(one.shape == cos.shape and theta_is_true(torch, theta, style, shape.dims, one) for one, _ in angles)
    if not plain:
        warn("RoPE is not one base for all layers and channels; the trace does not name it, and --layout compact_rerotated is void")
    return {"rope_theta": theta, "rope_style": style} if plain else {}


# The command ----------------------------------------------------------------------------------------------------------------------
def arguments():
    parser = argparse.ArgumentParser(prog="capture_trace.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name on the hub, or a folder")
    parser.add_argument("--out", required=True, help="the trace to write")
    parser.add_argument("--text", type=Path, help="a file of text (UTF-8)")
    parser.add_argument("--token-ids", type=Path, help="a JSON array of token ids instead")
    parser.add_argument("--tokens", type=int, help="take at most so many")
    parser.add_argument("--mass", action="store_true", help="also attention_mass [L, Hq, N]")
    parser.add_argument("--lse", type=int, default=0, metavar="W", help="also row_lse of the last W rows")
    parser.add_argument("--recent", type=int, default=0, metavar="W", help="only the last W query rows, as recent_queries")
    parser.add_argument("--no-pre-rope", action="store_true", help="leave pre_rope_keys out")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], help="of what is written; the model's if not given")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("--random", action="store_true", help="random weights from the model's configuration")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    return parser.parse_args()


def read_tokens(transformers, given):
    """The tokens that the model reads, and their texts if a tokenizer made them."""
    expects((given.text is None) != (given.token_ids is None), "--text or --token-ids: one of them says what the model reads")
    tokenizer = None
    try:
        if given.token_ids is not None:
            tokens = json.loads(given.token_ids.read_text())
            good = isinstance(tokens, list) and all(isinstance(one, int) and one >= 0 for one in tokens)
            expects(good, f"--token-ids {given.token_ids}: it is no array of token ids")
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
            tokens = tokenizer(given.text.read_text(encoding="utf-8"))["input_ids"]
    except (OSError, ValueError) as failed:
        raise Refused(f"the text cannot be read: {failed}") from None
    expects(given.tokens is None or given.tokens >= 1, f"--tokens {given.tokens}: at least one")
    tokens = tokens[: given.tokens]
    return tokens, [text_of(tokenizer, one) for one in tokens] if tokenizer else None


def text_of(tokenizer, token):
    """The text of a token. SentencePiece marks a blank in front of a word, which its decoder leaves out."""
    text = tokenizer.decode([token])
    return f" {text}" if str(tokenizer.convert_ids_to_tokens(token)).startswith("\u2581") and not text.startswith(" ") else text


def load(torch, transformers, given):
    try:
        if given.random:
            torch.manual_seed(given.seed)
            return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(given.model)).to(given.device)
        return transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype="auto").to(given.device)
    except (OSError, ValueError, RuntimeError) as failed:
        raise Refused(f"model {given.model} cannot be loaded: {failed}") from None


def main():
    given = arguments()
    try:
        try:
            check_replaceable(given.out, [one for one in (given.text, given.token_ids) if one])
        except CannotReplace as why:
            raise Refused(f"--out {why}") from None
        torch, transformers = imports()
        tokens, texts = read_tokens(transformers, given)
        model = load(torch, transformers, given)
        vocabulary = model.get_input_embeddings().num_embeddings
        expects(not tokens or max(tokens) < vocabulary, f"token id {max(tokens, default=0)}: the model has {vocabulary}")
        shape = capture(model, tokens, given.out, given.model, given.mass, given.lse, given.dtype, given.recent, not given.no_pre_rope, texts=texts)
    except Refused as why:
        print(MARGIN + " ".join(str(why).split()), file=sys.stderr)
        return 2
    print(f"{given.out}: {shape.layers} layers, {shape.query_heads} query heads, {shape.kv_heads} KV heads, {len(tokens)} entries of {shape.dims}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
