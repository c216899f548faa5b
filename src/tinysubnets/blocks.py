"""Blocks of weights: what one bit of a mask stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tinysubnets.errors import SettingError


@dataclass(frozen=True)
class Blocks:
    """The division of one tensor, seen as `rows` x `cols`, into blocks of `width` along its rows.

    The last block of a row is shorter where `width` does not divide `cols`.
    """

    rows: int
    cols: int
    width: int

    @property
    def num(self) -> int:
        """Number of blocks."""
        return self.rows * -(-self.cols // self.width)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.rows * self.cols

    def expand(self, blocks: Tensor) -> Tensor:
        """One value per element, [..., numel], from one per block, [..., num]."""
        if self.width == 1:
            return blocks
        lead = blocks.shape[:-1]
        per_row = -(-self.cols // self.width)
        wide = blocks.reshape(*lead, self.rows, per_row, 1).expand(*lead, -1, -1, self.width)
        wide = wide.reshape(*lead, self.rows, per_row * self.width)[..., : self.cols]
        return wide.reshape(*lead, self.numel)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over each block, [..., num], of one value per element, [..., numel]."""
        if self.width == 1:
            return values
        lead = values.shape[:-1]
        per_row = -(-self.cols // self.width)
        rows = values.reshape(*lead, self.rows, self.cols)
        rows = torch.nn.functional.pad(rows, (0, per_row * self.width - self.cols))
        return rows.reshape(*lead, self.num, self.width).sum(-1)

    def sizes(self) -> Tensor:
        """Number of elements in each block, int64 [num]."""
        per_row = -(-self.cols // self.width)
        row = torch.full((per_row,), self.width)
        row[-1] = self.cols - self.width * (per_row - 1)
        return row.repeat(self.rows)


def blocks_of(shape: Sequence[int], block: int) -> Blocks:
    """The blocks of a tensor: `block` neighbours along a row, or one whole convolution kernel.

    Matrices and 1x1 convolutions have rows of `shape[1]` elements. Trailing dimensions with a
    product of 2 to 64 are a kernel, and a kernel is one block. Other tensors have rows of their
    last dimension. `block=1` always means one element per block.
    """
    if block < 1:
        raise SettingError(f"block is {block}; it must be at least 1 (one mask bit per weight).")
    numel = prod(shape)
    if len(shape) < 2:
        return Blocks(1, numel, min(block, max(numel, 1)))
    kernel = prod(shape[2:])
    if block == 1:
        return Blocks(numel // max(shape[1], 1), shape[1], 1)
    if 1 < kernel <= 64:
        return Blocks(numel // kernel, kernel, kernel)
    cols = shape[1] if kernel == 1 else shape[-1]
    return Blocks(numel // cols, cols, min(block, cols))
