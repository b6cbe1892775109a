# SPDX-License-Identifier: Apache-2.0
"""Decisions as an operator of PyTorch, for functions that torch.compile compiles.

    import kvpolicy.torch_ops

    rows = torch.ops.kvpolicy.kept("snapkv(window=32) | budget(1024)", keys, values, queries)
    keys = keys.gather(3, rows[..., None].expand(-1, -1, -1, -1, keys.shape[-1]))
"""

from typing import Optional

import torch

from ._decide import decide

__all__ = ["kept"]


# PyTorch makes the operator's schema from the annotations, so that they are no texts here.
@torch.library.custom_op("kvpolicy::kept", mutates_args=())
def kept(
    policy: str, keys: torch.Tensor, values: Optional[torch.Tensor] = None, queries: Optional[torch.Tensor] = None,
    scores: Optional[torch.Tensor] = None, scale: Optional[float] = None, soft_cap: float = 0.0,
) -> torch.Tensor:
    """The entries that a policy keeps, int64 [layer, sequence, KV head, kept], ascending, as `torch.ops.kvpolicy.kept`.

    `keys`, `values` and `queries` are [layer, sequence, head, row, channel], or without the first axis, or without the
    first two, as `kvpolicy.decide` reads them. The number of kept entries is known when the operator has run. It raises
    ValueError as `decide` does, and if lanes keep unequal numbers of entries. The operator has no gradient.
    """
    made = decide(policy, keys=keys, values=values, queries=queries, scores=scores, scale=scale, soft_cap=soft_cap)
    return torch.as_tensor(made.array()).to(keys.device, torch.int64)


@kept.register_fake
def _(policy, keys, values=None, queries=None, scores=None, scale=None, soft_cap=0.0):  # type: ignore[no-untyped-def]
    lanes = (1,) * (5 - keys.dim()) + tuple(keys.shape[: keys.dim() - 2])
    return keys.new_empty((*lanes, torch.library.get_ctx().new_dynamic_size()), dtype=torch.int64)
