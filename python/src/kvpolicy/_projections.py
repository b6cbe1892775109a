# SPDX-License-Identifier: Apache-2.0
"""What policies read of a layer's projections: norms of projected values, and the moments of query rows before RoPE."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ._model import Layers, expects

ROWS = 4096  # rows of which products are in memory at once


def norm_read_by(policy: str, needs: list[str]) -> int | None:
    """Which norm of projected values a policy reads: 1, 2, or None."""
    if not any(one.startswith("value_norms") for one in needs):
        return None
    found = {int(one) for one in re.findall(r"\| times_norm\([^)]*of=projected, norm=l([12])", policy)}
    found |= {1} if not found or "| critical(" in policy else set()
    expects(len(found) == 1, "policy", policy, "values are projected for one norm, l1 or l2")
    return found.pop()


def output_weights(layers: Layers) -> list[torch.Tensor]:
    """W_o of each layer, [channel of the output, KV head, query head of its group, channel of a value]."""
    heads, channels = layers.shape["kv_heads"], layers.shape["value_dim"]
    group, made = layers.shape["query_heads"] // heads, []
    for module in layers.modules:
        name = next((one for one in ("o_proj", "out_proj", "dense") if getattr(module, one, None) is not None), "o_proj")
        found = getattr(module, name, None)
        adapted = hasattr(found, "base_layer")
        expects(not adapted, f"{type(module).__name__}.{name}", f"{type(found).__name__} with an adapter", "the policy reads its weight, which is not what the adapter makes of it: merge the adapter into the model, and unload it")
        weight = getattr(found, "weight", None)
        fits = weight is not None and weight.is_floating_point() and weight.dim() == 2 and weight.shape[1] == heads * group * channels
        expects(fits, "model", type(module).__name__, "the policy reads its output projection, and it has no o_proj of the heads' channels")
        assert weight is not None
        made.append(weight.detach().view(weight.shape[0], heads, group, channels))
    return made


def projected_norms(values: torch.Tensor, weight: torch.Tensor, norm: int) -> torch.Tensor:
    """The norms of the values [sequence, KV head, row, channel] after W_o, the mean over a head's group: [sequence, KV head, row] in float32."""
    made = torch.zeros(values.shape[:3], device=values.device)
    _, heads, group, _ = weight.shape
    for head in range(heads):
        for one in range(group):
            columns = weight[:, head, one].to(values.device, values.dtype).T
            for begin in range(0, values.shape[2], ROWS):
                products = values[:, head, begin : begin + ROWS] @ columns
                made[:, head, begin : begin + ROWS] += products.float().norm(p=norm, dim=-1) / group
    return made


def norms_of_entries(values: list[torch.Tensor], weights: list[torch.Tensor], norm: int, counts: np.ndarray) -> torch.Tensor:
    """Norms [layer, sequence, KV head, entry] as the evictor reads them. Sequences' entries are the last rows of `values`, `counts` [sequence, layer, KV head]."""
    longest = counts.max(axis=2)
    sequences, heads = values[0].shape[:2]
    made = torch.zeros((len(values), sequences, heads, max(int(longest.max(initial=0)), 1)), device=values[0].device)
    for place, (rows, weight) in enumerate(zip(values, weights)):
        norms = projected_norms(rows.detach(), weight, norm)
        for sequence, count in enumerate(longest[:, place].tolist()):
            made[place, sequence, :, :count] = norms[sequence, :, norms.shape[2] - count :]
    return made


@dataclass
class Moments:
    """The mean [sequence, query head, channel] of query rows, and the sum of their products about it, [..., channel, channel]."""

    count: torch.Tensor  # rows of each sequence
    mean: torch.Tensor
    products: torch.Tensor

    def merged(self, more: "Moments") -> "Moments":
        total = self.count + more.count
        part = (more.count / total.clamp(min=1))[:, None, None]
        apart = more.mean - self.mean
        between = apart[..., :, None] * apart[..., None, :] * (self.count[:, None, None] * part)[..., None]
        return Moments(total, self.mean + apart * part, self.products + more.products + between)

    @property
    def covariance(self) -> torch.Tensor:
        return self.products / self.count.clamp(min=1)[:, None, None, None]


def moments_of(rows: torch.Tensor, first: list[int], sinks: int) -> Moments:
    """The moments of rows [sequence, query head, row, channel] at the positions `first`[sequence] and on, without those below `sinks`."""
    made = None
    for begin in range(0, rows.shape[2], ROWS):
        chunk = rows[:, :, begin : begin + ROWS].float()
        position = torch.tensor(first, device=rows.device)[:, None] + torch.arange(begin, begin + chunk.shape[2], device=rows.device)
        counted = (position >= sinks).float()
        count, of_rows = counted.sum(dim=1), counted[:, None, :, None]
        mean = (chunk * of_rows).sum(dim=2) / count.clamp(min=1)[:, None, None]
        apart = (chunk - mean[:, :, None]) * of_rows
        one = Moments(count, mean, apart.transpose(2, 3) @ apart)
        made = one if made is None else made.merged(one)
    assert made is not None
    return made


def known_moments(given: tuple[Any, Any], layers: Layers, is_read: bool, scorer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the covariance of the query rows before RoPE of many texts, in float32."""
    expects(is_read, "query_model", "given", f"{scorer} reads no query rows before RoPE")
    expects(isinstance(given, tuple) and len(given) == 2, "query_model", type(given).__name__, "it is a mean and a covariance")
    heads, channels = layers.shape["query_heads"], layers.shape["head_dim"]
    made = []
    for name, one, axes in (("mean", given[0], 1), ("covariance", given[1], 2)):
        rows = torch.as_tensor(one).detach().float()
        wanted = (layers.shape["layers"], heads, *[channels] * axes)
        expects(tuple(rows.shape) == wanted, f"query_model {name}", f"of shape {tuple(rows.shape)}", f"layers, query heads and channels are {wanted}")
        expects(bool(rows.isfinite().all()), f"query_model {name}", "with NaN or infinity", "keys are multiplied by it")
        made.append(rows)
    return made[0], made[1]


class Turning:
    """How a model turns query rows: channels i and i + half of the first ones, by the angle position * frequency[i]."""

    def __init__(self, layers: Layers, model: str) -> None:
        embedding = getattr(layers.decoder, "rotary_emb", None)
        found = getattr(embedding, "inv_freq", None)
        expects(isinstance(found, torch.Tensor) and found.dim() == 1, "model", model, "the policy reads query rows before RoPE, and its decoder has no rotary_emb with frequencies")
        fused = any(not hasattr(one, "q_proj") for one in layers.modules)
        expects(not fused, "model", model, "it has a fused projection, which shows no query rows before RoPE")
        scaling = getattr(embedding, "attention_scaling", 1.0)
        expects(scaling == 1.0, "model", model, f"its rotary embedding scales rows by {scaling}, which the policy does not know")
        self.frequencies: Any = found
        self._model = model

    def check(self, before: torch.Tensor, after: torch.Tensor, positions: list[int]) -> None:
        """Refuses a model that has turned rows [sequence, query head, channel] otherwise."""
        half = self.frequencies.shape[0]
        angle = torch.tensor(positions, device=before.device)[:, None, None] * self.frequencies.float().to(before.device)
        a, b = before[..., :half].float(), before[..., half : 2 * half].float()
        turned = torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), before[..., 2 * half :].float()), dim=-1)
        held = bool((turned - after.float()).norm() <= 0.05 * turned.norm())
        expects(held, "model", self._model, "its query rows are not those that the policy expects of its RoPE and of positions that count from a sequence's first token")


def rows_of_heads(output: torch.Tensor, given: torch.Tensor, heads: int, dims: int) -> torch.Tensor:
    """The output of a projection or of a norm behind it as [sequence, head, token, channel]. Some models norm rows before, some after they transpose."""
    is_transposed = output.dim() == 4 and output.shape[1] == heads and (output.shape[2] != heads or given.stride(1) < given.stride(2))
    return output if is_transposed else output.reshape(output.shape[0], -1, heads, dims).transpose(1, 2)
