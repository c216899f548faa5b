# mypy: disallow-untyped-defs=False
"""Histograms of training codebooks on a GPU: the extent of kept values, cells, and bins.

The extent of a segment is the mean magnitude of its kept values (`scale`) and the largest one
(`reach`). Cells are even in asinh(x / scale) from -reach to reach: fine where most values are, and
coarse in the tails. Values and what is `kept` are [rows, N]; a codebook, or `book`, is a segment of
one row. Tiles are those of `topk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels.topk import tiling

TILE = 1024  # values that one program counts
WIDE = 4096  # values whose extent one program finds
CELLS = 64  # cells of a bin
ROWS = 16  # bins that one program sums up
ENOUGH = 1 << 20  # of longer segments about so many values are counted, evenly spread
UNKNOWN_SCALE, UNKNOWN_REACH = 1e-4, 10.0  # the extent to expect where no centroid tells of it

Segments = Sequence[tuple[int, int]]


@triton.jit
def _asinh(x):
    size = tl.abs(x)
    root = tl.log(size + tl.sqrt(size * size + 1.0))
    return tl.where(x < 0, -root, root)


@triton.jit
def _extent_of_tile(values, kept, tiles, parts, num_values, num_tiles, TILE: tl.constexpr):
    """How many values of one tile are kept, the sum of their magnitudes, and the largest.

    They go to `parts`, float32 [rows, tiles, 3].
    """
    tile, row = tl.program_id(0), tl.program_id(1)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    is_kept = tl.load(kept + row * num_values + offset, mask=inside, other=0) != 0
    size = tl.abs(tl.load(values + row * num_values + offset, mask=is_kept, other=0.0))
    mine = parts + 3 * (row * num_tiles + tile)
    tl.store(mine, tl.sum(is_kept.to(tl.float32), 0))
    tl.store(mine + 1, tl.sum(size, 0))
    tl.store(mine + 2, tl.max(size, 0))


@triton.jit
def _extent_of_segment(parts, firsts, scale, reach, num_tiles, num_segments, TILE: tl.constexpr):
    """The mean and the largest magnitude of one segment from its tiles, in a fixed order.

    `firsts` [segments + 1] tells where the tiles of each segment begin.
    """
    segment, row = tl.program_id(0), tl.program_id(1)
    at, stop = tl.load(firsts + segment), tl.load(firsts + segment + 1)
    place = tl.arange(0, TILE)
    amount, total = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    largest = tl.zeros([TILE], tl.float32)
    while at < stop:
        mine, inside = parts + 3 * (row * num_tiles + at + place), at + place < stop
        amount += tl.load(mine, mask=inside, other=0.0).to(tl.float64)
        total += tl.load(mine + 1, mask=inside, other=0.0).to(tl.float64)
        largest = tl.maximum(largest, tl.load(mine + 2, mask=inside, other=0.0))
        at += TILE
    mean = tl.sum(total, 0) / tl.maximum(tl.sum(amount, 0), 1.0)
    book = row * num_segments + segment
    tl.store(scale + book, tl.maximum(mean.to(tl.float32), 1e-30))
    tl.store(reach + book, tl.maximum(tl.max(largest, 0), 1e-30))


@triton.jit
def _count(
    values, kept, tiles, scale, reach, counts, num_values, num_segments, CELLS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Count one tile's kept values in their cells: `counts` is int32 [rows, segments, CELLS]."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    is_kept = tl.load(kept + row * num_values + offset, mask=inside, other=0) != 0
    value = tl.load(values + row * num_values + offset, mask=inside, other=0.0)
    value = tl.where(is_kept, value, 0.0)
    unit = tl.load(scale + segment)
    rate = CELLS / 2 / _asinh(tl.load(reach + segment) / unit)
    place = _asinh(value / unit) * rate + CELLS / 2
    place = tl.where(place >= 0.0, tl.minimum(place, CELLS - 1.0), 0.0)  # the first for NaN
    cell = segment * CELLS + place.to(tl.int32)
    tl.atomic_add(counts + cell, tl.full([TILE], 1, tl.int32), mask=is_kept, sem="relaxed")


@triton.jit
def _sum(
    cells, scale, reach, count, total, BINS: tl.constexpr, CELLS: tl.constexpr, ROWS: tl.constexpr
):
    """Counts and sums of a few bins of one codebook; a value counts as the middle of its cell.

    In float64, and always in the same order: integer counts are all that threads raced for.
    """
    book = tl.program_id(0)
    bins = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    cell = bins[:, None] * CELLS + tl.arange(0, CELLS)[None, :]
    number = tl.load(cells + book * BINS * CELLS + cell).to(tl.float64)
    unit = tl.load(scale + book).to(tl.float64)
    pace = _asinh(tl.load(reach + book).to(tl.float64) / unit) / (BINS * CELLS / 2)
    middle = (cell.to(tl.float64) + (0.5 - BINS * CELLS / 2)) * pace
    place = unit * (tl.exp(middle) - tl.exp(-middle)) / 2
    tl.store(count + book * BINS + bins, tl.sum(number, 1))
    tl.store(total + book * BINS + bins, tl.sum(number * place, 1))


def extent(values: Tensor, kept: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """The mean and the largest magnitude [rows, segments] of the kept values [rows, N]."""
    (rows, size), num = values.shape, len(segments)
    tiles, firsts = _wide(tuple(segments), rows, size, values.device)
    parts = values.new_empty(rows, len(tiles), 3, dtype=torch.float32)
    scale, reach = values.new_empty(2, rows, num, dtype=torch.float32)
    _extent_of_tile[(len(tiles), rows)](
        values.contiguous(), kept.contiguous().view(torch.uint8), tiles, parts, size, len(tiles),
        TILE=WIDE, num_warps=8,
    )  # fmt: skip
    _extent_of_segment[(num, rows)](parts, firsts, scale, reach, len(tiles), num, TILE=TILE)
    return scale, reach


def extent_of(centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Much the same from the last centroids [..., k], with room for values to have moved outwards.

    A codebook that was empty has zeros, which say nothing of values that come later.
    """
    sizes = centroids.abs()
    scale, reach = sizes.mean(-1), 2 * sizes.amax(-1)
    known = reach > 1e-30
    return torch.where(known, scale, UNKNOWN_SCALE), torch.where(known, reach, UNKNOWN_REACH)


def count_cells(
    values: Tensor, kept: Tensor, segments: Segments, cells: int, extent: tuple[Tensor, Tensor]
) -> Tensor:
    """How many kept values [rows, N] lie in each cell [rows, segments, cells]."""
    rows, size = values.shape
    scale, reach = (x.contiguous() for x in extent)
    tiles = _sample(tuple(segments), rows, size, values.device)
    counts = torch.zeros(rows, len(segments), cells, dtype=torch.int32, device=values.device)
    _count[(len(tiles), rows)](
        values.contiguous(), kept.contiguous().view(torch.uint8), tiles, scale, reach, counts,
        size, len(segments), CELLS=cells, TILE=TILE,
    )  # fmt: skip
    return counts


def histogram(
    values: Tensor, kept: Tensor, segments: Segments, bins: int, extent: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Counts and sums [rows, segments, bins] of the kept values.

    Bins are uniform in asinh(x / scale); each has 64 cells, and a value counts as the middle of its
    cell.
    """
    cells = count_cells(values, kept, segments, CELLS * bins, extent)
    scale, reach = (x.contiguous() for x in extent)
    count, total = cells.new_empty(2, *cells.shape[:2], bins, dtype=torch.float64)
    _sum[(scale.numel(), bins // ROWS)](
        cells, scale, reach, count, total, BINS=bins, CELLS=CELLS, ROWS=ROWS
    )
    return count, total


@cache  # captured graphs read these tensors: none may be dropped
def _wide(
    segments: tuple[tuple[int, int], ...], rows: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """All tiles in the order of their segments, and where the tiles of each begin."""
    tiles, *_ = tiling(tuple((i, j, 0) for i, j in segments), rows, size, device, WIDE)
    number = torch.arange(len(segments) + 1, device=device, dtype=torch.int32)
    return tiles, torch.searchsorted(tiles[:, 0].contiguous(), number).int()


@cache  # captured graphs read these tensors: none may be dropped
def _sample(
    segments: tuple[tuple[int, int], ...], rows: int, size: int, device: torch.device
) -> Tensor:
    """The tiles of short segments, and every n-th of long ones."""
    tiles, *_ = tiling(tuple((i, j, 0) for i, j in segments), rows, size, device, TILE)
    chosen = []
    for number, (start, stop) in enumerate(segments):
        own = tiles[tiles[:, 0] == number]
        chosen.append(own[:: max(1, round((stop - start) / ENOUGH))])
    return torch.cat(chosen).contiguous()
