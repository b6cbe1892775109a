# SPDX-License-Identifier: Apache-2.0
"""Trained gates in PyTorch: numbers of new tokens, for `kvpolicy.hf.evict(model, policy, gates=...)`.

A gate is a function `gate(fresh) -> tensor [sequence, KV head, token]`, where `fresh` is a `FreshTokens`. The gates of
TRIM-KV, WG-KV and KVzap come from safetensors files (`load`); a function of your own serves as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
from safetensors.torch import load_file

__all__ = ["FreshTokens", "Gate", "KVzapGate", "RetentionGate", "WriteGate", "load"]


@dataclass(frozen=True)
class FreshTokens:
    """What a gate sees of the new tokens of one layer.

    - `layer`: the index of the layer in the model.
    - `hidden`: the rows that the attention of the layer reads, after the layer's input norm, [sequence, token, channel].
    - `keys_before`, `keys`: the keys before and after RoPE, [sequence, KV head, token, channel].
    """

    layer: int
    hidden: torch.Tensor
    keys_before: torch.Tensor
    keys: torch.Tensor


Gate = Callable[[FreshTokens], torch.Tensor]


def _read(path: str | Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(str(path))
    except Exception as error:
        raise ValueError(f"gates: {path} = unreadable, but it is a safetensors file: {error}") from error


class _Tensors:
    """The tensors of a file that begin with one name. Letters stand for sizes, which are the same in all of them."""

    def __init__(self, path: str | Path, name: str, shapes: dict[str, str]) -> None:
        found = _read(path)
        self._all: dict[str, torch.Tensor] = {}
        self.size: dict[str, int] = {}
        for one, letters in shapes.items():
            tensor = found.get(f"{name}.{one}")
            if tensor is None:
                raise ValueError(f"gates: {path} = without {name}.{one}, but a {name} has {', '.join(shapes)}")
            shape = tuple(tensor.shape)
            fits = len(shape) == len(letters) and all(self.size.setdefault(letter, size) == size for letter, size in zip(letters, shape))
            if not fits:
                raise ValueError(f"gates: {name}.{one}.shape = {shape} in {path}, but it is [{', '.join(letters)}] with {self.size}")
            self._all[one] = tensor.float()

    def of(self, name: str, layer: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor of a layer, where `like` is."""
        if self._all[name].device != like.device:
            self._all = {one: tensor.to(like.device) for one, tensor in self._all.items()}
        return self._all[name][layer]


class RetentionGate:
    """TRIM-KV's gate (arXiv:2512.03324, section 4): one perceptron for each layer, with an output for each KV head.

        log beta = logsigmoid(fc2 silu(fc1 x + b1) + b2)      x: the hidden row after the layer's input norm

    `path` is a safetensors file with retention_gate.fc1.weight [L, E, d], fc1.bias [L, E], fc2.weight [L, KV heads, E] and
    fc2.bias [L, KV heads]. Raises ValueError for a file without one of them, or with another shape.
    """

    gives = "log_beta"

    def __init__(self, path: str | Path) -> None:
        self._weights = _Tensors(path, "retention_gate", {"fc1.weight": "LEd", "fc1.bias": "LE", "fc2.weight": "LHE", "fc2.bias": "LH"})
        size = self._weights.size
        self.sizes = {"layers": size["L"], "KV heads": size["H"], "channels of a hidden row": size["d"]}

    def __call__(self, fresh: FreshTokens) -> torch.Tensor:
        x = fresh.hidden.float()
        of = lambda name: self._weights.of(name, fresh.layer, x)
        inner = torch.nn.functional.silu(x @ of("fc1.weight").T + of("fc1.bias"))
        return torch.nn.functional.logsigmoid(inner @ of("fc2.weight").T + of("fc2.bias")).transpose(1, 2)


class WriteGate:
    """WG-KV's gate (arXiv:2512.17452, section 3): one perceptron for each KV head of each layer.

        x = [ RMS(k_pre) w_pre | RMS(k_post) w_post ]      RMS(u) = u / sqrt(mean u^2 + 1e-6); k: before and after RoPE
        g = sigmoid(fc2 gelu(fc1 x + b1) + b2)

    `path` is a safetensors file with write_gate.pre_norm.weight and post_norm.weight [L, D], fc1.weight [L, KV heads, E,
    2 D], fc1.bias and fc2.weight [L, KV heads, E] and fc2.bias [L, KV heads]. Raises ValueError for one without them.
    """

    gives = "birth_score"

    def __init__(self, path: str | Path) -> None:
        shapes = {"pre_norm.weight": "LD", "post_norm.weight": "LD", "fc1.weight": "LHEX", "fc1.bias": "LHE", "fc2.weight": "LHE", "fc2.bias": "LH"}
        self._weights = _Tensors(path, "write_gate", shapes)
        size = self._weights.size
        if size["X"] != 2 * size["D"]:
            raise ValueError(f"gates: write_gate.fc1.weight.shape = {size['X']} inputs in {path}, but there are 2 x {size['D']}")
        self.sizes = {"layers": size["L"], "KV heads": size["H"], "channels of a key": size["D"]}

    def __call__(self, fresh: FreshTokens) -> torch.Tensor:
        pre, post = fresh.keys_before.float(), fresh.keys.float()
        of = lambda name: self._weights.of(name, fresh.layer, pre)
        rms = lambda u: u / (u.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        x = torch.cat((rms(pre) * of("pre_norm.weight"), rms(post) * of("post_norm.weight")), dim=-1)
        inner = torch.nn.functional.gelu(torch.einsum("shtd,hed->shte", x, of("fc1.weight")) + of("fc1.bias")[:, None])
        return torch.sigmoid(torch.einsum("shte,he->sht", inner, of("fc2.weight")) + of("fc2.bias")[:, None])


class KVzapGate:
    """KVzap's surrogate (arXiv:2601.07891), in the form of kvpress's files: for each layer a linear map, or a perceptron.

        s = W x + b,  or  W2 gelu(W1 x + b1) + b2      x: the hidden row after the layer's input norm

    `path` is a safetensors file with layers.L.weight [KV heads, d] and layers.L.bias, or with layers.L.0.weight [E, d],
    layers.L.0.bias, layers.L.2.weight [KV heads, E] and layers.L.2.bias, for each layer L. Raises ValueError for one
    without them, or with other shapes.
    """

    gives = "birth_score"

    def __init__(self, path: str | Path) -> None:
        found = {name: tensor.float() for name, tensor in _read(path).items()}
        ends = ("0.weight", "0.bias", "2.weight", "2.bias") if "layers.0.0.weight" in found else ("weight", "bias")
        layers = len({name.split(".")[1] for name in found if name.startswith("layers.")})
        wanted = [[f"layers.{layer}.{end}" for end in ends] for layer in range(layers)]
        lacks = [name for names in wanted for name in names if name not in found]
        if layers == 0 or lacks:
            raise ValueError(f"gates: {path} = without {lacks[0] if lacks else 'layers.0.weight'}, but each layer of KVzap has {' and '.join(ends)}")
        self._layers = [[found[name] for name in names] for names in wanted]
        for names, tensors in zip(wanted, self._layers):
            fits = all(weight.dim() == 2 and bias.shape == weight.shape[:1] for weight, bias in zip(tensors[::2], tensors[1::2]))
            fits = fits and all(one.shape == first.shape for one, first in zip(tensors, self._layers[0]))
            fits = fits and (len(ends) == 2 or tensors[2].shape[1] == tensors[0].shape[0])
            if not fits:
                raise ValueError(f"gates: {names[0]}.shape = {tuple(tensors[0].shape)} in {path}, but the maps of a layer fit each other and those of all layers are alike")
        self.sizes = {"layers": layers, "KV heads": len(self._layers[0][-1]), "channels of a hidden row": self._layers[0][0].shape[1]}

    def __call__(self, fresh: FreshTokens) -> torch.Tensor:
        tensors = self._layers[fresh.layer] = [one.to(fresh.hidden.device) for one in self._layers[fresh.layer]]
        x = torch.nn.functional.linear(fresh.hidden.float(), tensors[0], tensors[1])
        if len(tensors) == 4:
            x = torch.nn.functional.linear(torch.nn.functional.gelu(x), tensors[2], tensors[3])
        return x.transpose(1, 2)


def load(path: str | Path) -> Any:
    """The gate of a safetensors file: a RetentionGate, a WriteGate or a KVzapGate. Raises ValueError for a file of something else."""
    names = {one.split(".")[0] for one in _read(path)}
    kinds = {"retention_gate": RetentionGate, "write_gate": WriteGate, "layers": KVzapGate}
    found = [kind for name, kind in kinds.items() if name in names]
    if len(found) != 1:
        raise ValueError(f"gates: {path} = tensors of {', '.join(sorted(names))}, but a gate is a retention_gate or a write_gate, or has the layers of KVzap")
    return found[0](path)
