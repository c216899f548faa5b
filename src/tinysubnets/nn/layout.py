"""The flat layout of shared weights: where each tensor and its mask blocks stand in one vector.

All shared weights of a network form one vector [N], tensor after tensor; scores, masks and
ownership form one vector [blocks]. With `block=1` the two coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import check_setting
from tinysubnets.nn.architecture import TensorSpec


class Layout:
    """Positions of tensors and of their mask blocks in the flat vectors of one architecture.

    `segments` and `block_segments` hold the start and the stop of each of the `shared` tensors in
    the vector of weights and in that of blocks. `block` is how many neighboring weights a block
    has, see `blocks_of`; `kernels` how many a kernel of each tensor has, 1 where there are none.
    """

    def __init__(self, shared: Sequence[TensorSpec], block: int = 1) -> None:
        is_fine = isinstance(block, int) and block >= 1
        check_setting("block", block, is_fine, "an integer of at least 1")
        self.shared, self.block = tuple(shared), block
        self.blocks: tuple[Blocks, ...] = tuple(blocks_of(s.shape, block) for s in shared)
        self.segments = _segments([s.numel for s in shared])
        self.block_segments = _segments([b.num for b in self.blocks])
        self.num_weights = self.segments[-1][1]
        self.num_blocks = self.block_segments[-1][1]
        self.is_identity = all(b.width == 1 for b in self.blocks)
        self.kernels = tuple(kernel_of(s.shape) for s in shared)

    def expand(self, blocks: Tensor) -> Tensor:
        """A value per weight [..., N] from a value per block [..., blocks]."""
        if self.is_identity:
            return blocks
        parts = [
            b.expand(blocks[..., i:j])
            for b, (i, j) in zip(self.blocks, self.block_segments, strict=True)
        ]
        return torch.cat(parts, -1)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over each block [..., blocks] of a value per weight [..., N]."""
        if self.is_identity:
            return values
        parts = [
            b.sum(values[..., i:j]) for b, (i, j) in zip(self.blocks, self.segments, strict=True)
        ]
        return torch.cat(parts, -1)

    @cached_property
    def block_sizes(self) -> Tensor:
        """How many weights each block holds, int64 [blocks]."""
        return torch.cat([b.sizes() for b in self.blocks])

    def count(self, blocks: Tensor) -> int:
        """How many weights the chosen blocks hold; `blocks` is a mask, bool [blocks]."""
        if self.is_identity:
            return int(blocks.count_nonzero())
        parts = [
            b.count(blocks[i:j]) for b, (i, j) in zip(self.blocks, self.block_segments, strict=True)
        ]
        return int(torch.stack(parts).sum())

    def follows_in_kernel(self, positions: np.ndarray) -> np.ndarray:
        """Which of some sorted positions in the flat vector are in the kernel of the one before."""
        starts, stops = (np.array(ends) for ends in zip(*self.segments, strict=True))
        tensor = np.searchsorted(stops, positions, side="right")
        kernel = (positions - starts[tensor]) // np.array(self.kernels)[tensor]
        same = (np.diff(tensor) == 0) & (np.diff(kernel) == 0)
        return np.concatenate([np.zeros(min(1, len(positions)), np.bool_), same])

    def keep(self, density: float, density_exponent: float = 0.0) -> tuple[int, ...]:
        """How many blocks of each tensor a mask of this density holds; at least one.

        A tensor's own density falls with its size to the power of `density_exponent`: with 0 all
        have the same, with 1 all hold equally many blocks as long as there are so many.
        """
        sizes = [b.num for b in self.blocks]
        shares = [n ** (1 - density_exponent) for n in sizes]
        left, open_ones = density * sum(sizes), set(range(len(sizes)))
        keep = [0.0] * len(sizes)
        while open_ones:  # tensors that would hold more than they have are full; others share on
            unit = left / sum(shares[i] for i in open_ones)
            full = {i for i in open_ones if unit * shares[i] >= sizes[i]}
            for i in full or open_ones:
                keep[i] = min(sizes[i], unit * shares[i])
            left -= sum(sizes[i] for i in full)
            open_ones = open_ones - full if full else set()
        return tuple(max(1, round(k)) for k in keep)


def _segments(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Start and stop of consecutive parts with the given sizes."""
    out, start = [], 0
    for size in sizes:
        out.append((start, start + size))
        start += size
    return tuple(out)


@dataclass(frozen=True)
class Blocks:
    """The mask blocks of one tensor, seen as `rows` x `cols`: `width` neighbors along a row each.

    A block is what one bit of a mask stands for. The last block of a row is shorter where `width`
    does not divide `cols`.
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

    def count(self, blocks: Tensor) -> Tensor:
        """How many elements the chosen blocks hold, int64 []; `blocks` is a mask, bool [num].

        Counting is many times faster than adding up sizes: those at the ends of rows are apart.
        """
        per_row = -(-self.cols // self.width)
        missing = per_row * self.width - self.cols
        total = blocks.count_nonzero() * self.width
        if missing:
            total -= blocks.view(self.rows, per_row)[:, -1].count_nonzero() * missing
        return total

    def sizes(self) -> Tensor:
        """Number of elements in each block, int64 [num]."""
        per_row = -(-self.cols // self.width)
        row = torch.full((per_row,), self.width)
        row[-1] = self.cols - self.width * (per_row - 1)
        return row.repeat(self.rows)


def kernel_of(shape: Sequence[int]) -> int:
    """How many weights a kernel of a tensor has: its trailing dimensions, if they are 2 to 64."""
    trailing = prod(shape[2:])
    return trailing if len(shape) > 2 and 1 < trailing <= 64 else 1


def blocks_of(shape: Sequence[int], block: int) -> Blocks:
    """The blocks of a tensor: `block` neighbors along a row, or one whole convolution kernel.

    Matrices and 1x1 convolutions have rows of `shape[1]` elements. Trailing dimensions with a
    product of 2 to 64 are a kernel, and a kernel is one block. Other tensors have rows of their
    last dimension. `block=1` always means one element per block.
    """
    numel = prod(shape)
    if len(shape) < 2:
        return Blocks(1, numel, min(block, max(numel, 1)))
    if block == 1:
        return Blocks(numel // max(shape[1], 1), shape[1], 1)
    if (kernel := kernel_of(shape)) > 1:
        return Blocks(numel // kernel, kernel, kernel)
    cols = shape[1] if prod(shape[2:]) == 1 else shape[-1]
    return Blocks(numel // cols, cols, min(block, cols))
