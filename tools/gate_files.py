# SPDX-License-Identifier: Apache-2.0
"""Reads the tensors of published gates and writes gate files: what convert_wg_kv.py and convert_trim_kv.py share.

A gate file is safetensors, all tensors F32, the layers of a model stacked along the first axis. numpy is enough, but for a
checkpoint of PyTorch (.pt, .pth), which needs torch.
"""
import argparse
import json
import math
import pathlib
import re
import sys

import numpy as np

from replace_file import CannotReplace, check_replaceable, replace_file

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


class Refused(Exception):
    """What a user can change: told in one line."""


def expects(ok, what):
    if not ok:
        raise Refused(what)


def read_safetensors(path):
    """Name -> (dtype, shape, bytes); refuses a file that is cut or lies about its size."""
    raw = memoryview(path.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    expects(8 <= len(raw) and size <= len(raw) - 8, "it is no safetensors file, or cut short")
    try:
        header = json.loads(bytes(raw[8:8 + size]))
        header.pop("__metadata__", None)
        found = {name: (one["dtype"], tuple(map(int, one["shape"])), tuple(map(int, one["data_offsets"]))) for name, one in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("its header is not that of a safetensors file") from None
    data = raw[8 + size:]
    for name, (_, _, span) in found.items():
        expects(len(span) == 2 and 0 <= span[0] <= span[1] <= len(data), f"{name} lies outside of the file")
    return {name: (dtype, shape, data[span[0]:span[1]]) for name, (dtype, shape, span) in found.items()}


def as_f32(name, dtype, shape, data):
    expects(dtype in DTYPES, f"{name} has dtype {dtype}, expected one of {', '.join(DTYPES)}")
    kind = np.dtype(DTYPES[dtype])
    expects(len(data) == kind.itemsize * math.prod(shape), f"{name} has {len(data)} bytes, which is not what its shape {list(shape)} takes")
    values = np.frombuffer(data, kind)
    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32).reshape(shape)


def read_checkpoint(path):
    """Name -> tensor of a checkpoint of PyTorch."""
    try:
        import torch
    except ImportError:
        raise Refused("a checkpoint of PyTorch needs torch, which is not installed") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        raise Refused("it is no checkpoint of PyTorch") from None
    expects(isinstance(state, dict) and all(isinstance(v, torch.Tensor) for v in state.values()), "it does not map names to tensors")
    return {name: (lambda t=tensor: t.detach().float().numpy()) for name, tensor in state.items()}


def read_tensors(path):
    """Name -> a function that gives it as f32."""
    expects(path.is_file(), "there is no such file")
    if path.suffix in (".pt", ".pth", ".bin"):
        return read_checkpoint(path)
    return {name: (lambda n=name, t=one: as_f32(n, *t)) for name, one in read_safetensors(path).items()}


def gather(tensors, pattern, names, layers=None):
    """[{name: array} for each layer] of the tensors whose name is `pattern`, {layer} a number, and one of `names`."""
    expects(pattern.count("{layer}") == 1, f"--pattern {pattern} does not name {{layer}} once")
    before, after = pattern.split("{layer}")
    form, found = re.compile(re.escape(before) + r"(\d+)" + re.escape(after) + "(.+)"), {}
    for name, load in tensors.items():
        if match := form.fullmatch(name):
            expects(match[2] in names, f"{name} is unknown: the gate has another form than {', '.join(names)}")
            found.setdefault(int(match[1]), {})[match[2]] = load
    expects(found, f"no tensor is named {pattern}{names[0]}; --pattern says how they are named")
    made = []
    for layer in range(max(layers or 0, max(found) + 1)):
        expects(layer in found, f"layer {layer} is missing")
        expects(not layers or layer < layers, f"layer {layer} is one too many for --layers {layers}")
        for name in names:
            expects(name in found[layer], f"layer {layer} has no {name}")
        made.append({name: found[layer][name]() for name in names})
    return made


def shaped(layers, expected):
    """Checks every tensor of every layer against the shapes of `expected`, and that its numbers are finite."""
    for i, layer in enumerate(layers):
        for name, shape in expected.items():
            expects(layer[name].shape == shape, f"layer {i}: {name} has shape {list(layer[name].shape)}, expected {list(shape)}")
            expects(np.isfinite(layer[name]).all(), f"layer {i}: {name} is not finite")


def stack(layers, name, *shape):
    """[L,*shape]"""
    return np.stack([layer[name].reshape(shape) for layer in layers])


def write(path, tensors, metadata, inputs=()):
    """The gate file, whole or not at all."""
    header, at = {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with replace_file(path, inputs) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for values in tensors.values():
                file.write(np.ascontiguousarray(values, "<f4").tobytes())
    except OSError as failed:
        raise Refused(f"{path} cannot be written: {failed.strerror}") from None


def main(about, prefix, pattern, convert):
    """The program: convert(layers) gives the tensors without `prefix`, from what gather() found under convert.names."""
    program = pathlib.Path(sys.argv[0]).name
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="safetensors, or a checkpoint of PyTorch (.pt, .pth)")
    parser.add_argument("out", type=pathlib.Path, help="the gate file")
    parser.add_argument("--pattern", default=pattern, help="what stands before a gate's names (default: %(default)s)")
    parser.add_argument("--layers", type=int, help="how many there must be; without it those up to the last that is found")
    o = parser.parse_args()
    try:
        check_replaceable(o.out, [o.source])
        try:
            made = convert(gather(read_tensors(o.source), o.pattern, convert.names, o.layers))
        except Refused as refused:
            raise Refused(f"{o.source}: {refused}") from None
        write(o.out, {prefix + name: values for name, values in made.items()}, {"format": prefix.rstrip("."), "source": o.source.name}, [o.source])
    except CannotReplace as refused:
        print(f"{program}: {refused}", file=sys.stderr)
        sys.exit(2)
    except Refused as refused:
        sys.exit(f"{program}: {refused}")
    print(f"{o.out}: {sum(v.size for v in made.values()):,} parameters of {len(made['fc1.weight'])} layers")
