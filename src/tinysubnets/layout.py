"""The flat layout of shared weights: where each tensor and its mask blocks stand in one vector.

All shared weights of a network form one vector of N values, tensor after tensor; scores, masks and
ownership form one vector of blocks. With `block=1` the two coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from tinysubnets.architecture import Specification
from tinysubnets.blocks import Blocks, blocks_of
from tinysubnets.errors import SettingError


class Layout:
    """Positions of tensors and of their mask blocks in the flat vectors of one architecture."""

    def __init__(self, shared: Sequence[Specification], block: int = 1) -> None:
        if not isinstance(block, int) or block < 1:
            raise SettingError(
                f"block = {block!r} is not allowed; give a whole number of at least 1."
            )
        self.shared, self.block = tuple(shared), block
        self.blocks: tuple[Blocks, ...] = tuple(blocks_of(s.shape, block) for s in shared)
        self.segments = _segments([s.numel for s in shared])
        self.block_segments = _segments([b.num for b in self.blocks])
        self.num_weights = self.segments[-1][1]
        self.num_blocks = self.block_segments[-1][1]
        self.is_identity = all(b.width == 1 for b in self.blocks)

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
        """How many weights each block holds."""
        return torch.cat([b.sizes() for b in self.blocks])

    def count(self, blocks: Tensor) -> int:
        """How many weights the chosen blocks hold."""
        if self.is_identity:
            return int(blocks.sum())
        return int(self.block_sizes.to(blocks.device)[blocks].sum())

    def keep(self, density: float, balance: float = 0.0) -> tuple[int, ...]:
        """How many blocks of each tensor a mask of this density holds; at least one.

        A tensor's own density falls with its size to the power of `balance`: with 0 all have the
        same, with 1 all hold equally many blocks as long as there are so many.
        """
        sizes = [b.num for b in self.blocks]
        shares = [n ** (1 - balance) for n in sizes]
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
