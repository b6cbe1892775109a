# SPDX-License-Identifier: Apache-2.0
"""The blocks of a batch's rows, where the table is in a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class DeviceTables:
    """Reads `table[row, index]` and `table[row, from:to]` as of an array. One copy to the host brings the blocks that a step writes.

    A row's last `lengths[row]` of `ends[row]` tokens are written in this step. Others are copied when they are asked for.
    """

    def __init__(self, table: torch.Tensor, ends: np.ndarray, lengths: np.ndarray, block: int):
        self.table = table
        begins = np.maximum(ends - lengths - 1, 0) // block  # with the block that was written last
        count = int((np.maximum(ends - 1, 0) // block - begins).max(initial=0)) + 1
        columns = torch.from_numpy(begins).to(table.device, non_blocking=True)[:, None] + torch.arange(count, device=table.device)
        self.first = begins
        self.copied = table[: len(ends)].gather(1, columns.clamp_(max=table.shape[1] - 1)).cpu().numpy()

    def __getitem__(self, place: tuple[int, Any]) -> Any:
        row, asked = place
        if not isinstance(asked, slice):
            return self.copied[row, asked - self.first[row]]
        if asked.start >= self.first[row] and asked.stop - self.first[row] <= self.copied.shape[1]:
            return self.copied[row, asked.start - self.first[row] : asked.stop - self.first[row]]
        return self.table[row, asked].cpu().numpy()
