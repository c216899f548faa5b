# mypy: disallow-untyped-defs=False
"""Effective weights and their gradients on a GPU, each in one pass over the weights.

The kernels run on a grid of (tiles, rows); tiles are those of `topk`, over the segments that have a
codebook each. All vectors are [rows, N], booleans as uint8; `low` and `rate` are [rows * segments],
`table` [rows * segments, steps], as `codebook.LookupTable` describes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels.topk import tiling
from tinysubnets.nn.codebook import LookupTable

TILE = 1024  # values per program


@triton.jit
def _rounded(value, low, rate, table, inside, codebook, steps):
    """The centroid of each value by its codebook's table; that of the first step for NaN."""
    step = (value - tl.load(low + codebook)) * tl.load(rate + codebook)
    step = tl.where(step >= 0.0, tl.minimum(step, steps - 1.0), 0.0)
    return tl.load(table + codebook * steps + step.to(tl.int32), mask=inside, other=0.0)


@triton.jit
def _nearest(values, low, rate, table, tiles, out, num_values, num_segments, steps,
             TILE: tl.constexpr):  # fmt: skip
    """Centroids of one tile."""
    tile, row = tl.program_id(0), tl.program_id(1)
    codebook = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    place = row * num_values + offset
    value = tl.load(values + place, mask=inside, other=0.0)
    rounded = _rounded(value, low, rate, table, inside, codebook, steps)
    tl.store(out + place, rounded, mask=inside)


def nearest_centroid(
    values: Tensor, table: LookupTable, segments: Sequence[tuple[int, int]]
) -> Tensor:
    """Each value of vectors [..., N] as the nearest centroid of its segment, in one kernel."""
    size = values.shape[-1]
    rows = values.numel() // size
    bounds = tuple((i, j, 0) for i, j in segments)
    tiles, *_ = tiling(bounds, rows, size, values.device, TILE)
    out = torch.empty_like(values)
    _nearest[(len(tiles), rows)](
        values.contiguous(), *table, tiles, out, size, len(segments), table.centroids.shape[-1],
        TILE=TILE,
    )  # fmt: skip
    return out


@triton.jit
def _valued(
    free, owned, bank, low, rate, table, place, inside, codebook, steps, QUANTIZED: tl.constexpr
):
    """The value of each weight: the bank's where owned, else the free one or its centroid."""
    value = tl.load(free + place, mask=inside, other=0.0)
    if QUANTIZED:
        value = _rounded(value, low, rate, table, inside, codebook, steps)
    is_owned = tl.load(owned + place, mask=inside, other=0) != 0
    return tl.where(is_owned, tl.load(bank + place, mask=inside, other=0.0), value), is_owned


@triton.jit
def _forward(
    free, kept, owned, bank, low, rate, table, tiles, out, num_values, num_segments, steps,
    QUANTIZED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Effective weights of one tile."""
    tile, row = tl.program_id(0), tl.program_id(1)
    codebook = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    place = row * num_values + offset
    # Everything is read at once: to read only what is kept would wait for the mask first.
    value, _ = _valued(
        free, owned, bank, low, rate, table, place, inside, codebook, steps, QUANTIZED
    )
    is_kept = tl.load(kept + place, mask=inside, other=0) != 0
    tl.store(out + place, tl.where(is_kept, value, 0.0), mask=inside)


@triton.jit
def _backward(
    gradient, free, scores, kept, owned, bank, low, rate, table, tiles, to_free, to_scores,
    num_values, num_segments, steps, QUANTIZED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Gradients of free values and scores of one tile, from that of the effective weights."""
    tile, row = tl.program_id(0), tl.program_id(1)
    codebook = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    place = row * num_values + offset
    value, is_owned = _valued(
        free, owned, bank, low, rate, table, place, inside, codebook, steps, QUANTIZED
    )
    is_kept = tl.load(kept + place, mask=inside, other=0) != 0
    slope = tl.load(gradient + place, mask=inside, other=0.0)
    score = tl.load(scores + place, mask=inside, other=0.0)
    sign = tl.where(score > 0, 1.0, tl.where(score < 0, -1.0, 0.0))
    tl.store(to_free + place, tl.where(is_kept & (is_owned == 0), slope, 0.0), mask=inside)
    tl.store(to_scores + place, slope * value * sign, mask=inside)


class FusedWeights(torch.autograd.Function):
    """`masked.EffectiveWeights` for one mask bit per weight, each direction in one kernel.

    Quantized values are looked up again going backward: that costs less than keeping them. Without
    a `lookup` table free values are used as they are. `segments` are those of the codebooks.
    """

    @staticmethod
    def forward(ctx, free, scores, mask, owned, bank, lookup, segments):
        size = free.shape[-1]
        bounds = tuple((i, j, 0) for i, j in segments)
        rows = free.numel() // size
        tiles, *_ = tiling(bounds, rows, size, free.device, TILE)
        ctx.size, ctx.num, ctx.grid = size, len(segments), (len(tiles), rows)
        ctx.quantized = lookup is not None
        low, rate, table = lookup if ctx.quantized else (free, free, free)
        ctx.save_for_backward(free, scores, mask, owned, bank, low, rate, table, tiles)
        out = torch.empty_like(free)
        _forward[ctx.grid](
            free, mask.view(torch.uint8), owned.view(torch.uint8), bank, low, rate, table, tiles,
            out, size, ctx.num, table.shape[-1], QUANTIZED=ctx.quantized, TILE=TILE,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx, gradient):
        free, scores, mask, owned, bank, low, rate, table, tiles = ctx.saved_tensors
        to_free, to_scores = torch.empty_like(free), torch.empty_like(scores)
        _backward[ctx.grid](
            gradient.contiguous(), free, scores, mask.view(torch.uint8), owned.view(torch.uint8),
            bank, low, rate, table, tiles, to_free, to_scores, ctx.size, ctx.num,
            table.shape[-1], QUANTIZED=ctx.quantized, TILE=TILE,
        )  # fmt: skip
        return to_free, to_scores, None, None, None, None, None
