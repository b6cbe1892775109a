# SPDX-License-Identifier: Apache-2.0
"""Where decisions are made: in host memory, or on the CUDA device of the arrays."""

from __future__ import annotations

import sys
from typing import Any, Iterable

import numpy as np

from ._native import has_device  # type: ignore[attr-defined]  # the stub has no names of Python's own


def placement(arrays: Iterable[Any]) -> dict[str, int]:
    """The device and the stream of an Evictor for these arrays; empty for host memory.

    Only tensors of PyTorch say on which stream they are made, which is PyTorch's current one. Tensors on several devices,
    and those on a device for which the package was not built, get an Evictor of host memory, which refuses what was not
    copied there.
    """
    devices = {getattr(one, "device", None) for one in arrays}
    device: Any = devices.pop() if len(devices) == 1 else None
    if not has_device or getattr(device, "type", None) != "cuda":
        return {}
    torch = sys.modules["torch"]
    return {"device": device.index, "stream": torch.cuda.current_stream(device).cuda_stream}


def on_device(indices: Any) -> Any:
    """The kept entries as an array: of NumPy from host memory, of PyTorch from a device."""
    return indices if isinstance(indices, np.ndarray) else sys.modules["torch"].from_dlpack(indices)
