"""Trained gates in PyTorch: numbers of new tokens, for `kvpolicy.hf.evict(model, policy, gates=...)`.

A gate is a function `gate(fresh) -> tensor [sequence, KV head, token]`, where `fresh` is a `FreshTokens`. The gates of
TRIM-KV and WG-KV come from safetensors files (`load`); a function of your own serves as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
from safetensors import safe_open

__all__ = ["FreshTokens", "Gate", "RetentionGate", "WriteGate", "load"]


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


class _Tensors:
    """The tensors of a file that begin with one name."""

    def __init__(self, path: str | Path, name: str, wanted: tuple[str, ...]) -> None:
        with safe_open(str(path), framework="pt") as file:
            missing = [one for one in wanted if f"{name}.{one}" not in file.keys()]
            if missing:
                raise ValueError(f"gates: {path} = without {name}.{missing[0]}, but a {name} has {', '.join(wanted)}")
            self._all = {one: file.get_tensor(f"{name}.{one}").float() for one in wanted}

    def of(self, name: str, layer: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor of a layer, where `like` is."""
        if self._all[name].device != like.device:
            self._all = {one: tensor.to(like.device) for one, tensor in self._all.items()}
        return self._all[name][layer]

    @property
    def sizes(self) -> tuple[int, int]:
        """The layers and KV heads that the gate has."""
        layers, heads = self._all["fc2.bias"].shape
        return layers, heads


class RetentionGate:
    """TRIM-KV's gate (arXiv:2512.03324, section 4): one perceptron for each layer, with an output for each KV head.

        log beta = logsigmoid(fc2 silu(fc1 x + b1) + b2)      x: the hidden row after the layer's input norm

    `path` is a safetensors file with retention_gate.fc1.weight [L, E, d], fc1.bias [L, E], fc2.weight [L, KV heads, E] and
    fc2.bias [L, KV heads]. Raises ValueError for a file without one of them.
    """

    def __init__(self, path: str | Path) -> None:
        self._weights = _Tensors(path, "retention_gate", ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"))
        self.sizes = self._weights.sizes

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

    def __init__(self, path: str | Path) -> None:
        self._weights = _Tensors(path, "write_gate", ("pre_norm.weight", "post_norm.weight", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"))
        self.sizes = self._weights.sizes

    def __call__(self, fresh: FreshTokens) -> torch.Tensor:
        pre, post = fresh.keys_before.float(), fresh.keys.float()
        of = lambda name: self._weights.of(name, fresh.layer, pre)
        rms = lambda u: u / (u.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        x = torch.cat((rms(pre) * of("pre_norm.weight"), rms(post) * of("post_norm.weight")), dim=-1)
        inner = torch.nn.functional.gelu(torch.einsum("shtd,hed->shte", x, of("fc1.weight")) + of("fc1.bias")[:, None])
        return torch.sigmoid(torch.einsum("shte,he->sht", inner, of("fc2.weight")) + of("fc2.bias")[:, None])


def load(path: str | Path) -> Any:
    """The gate of a safetensors file: a RetentionGate or a WriteGate. Raises ValueError for a file of something else."""
    with safe_open(str(path), framework="pt") as file:
        names = {one.split(".")[0] for one in file.keys()}
    kinds = {"retention_gate": RetentionGate, "write_gate": WriteGate}
    found = [kind for name, kind in kinds.items() if name in names]
    if len(found) != 1:
        raise ValueError(f"gates: {path} = tensors of {', '.join(sorted(names))}, but a gate is a retention_gate or a write_gate")
    return found[0](path)
