# mypy: disallow-untyped-defs=False
"""Training codebooks on a GPU: counting values in cells, Lloyd steps on bins, lookup tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels.select import plan

TILE = 1024
TABLE = 1024  # steps of a lookup table per program
ENOUGH = 1 << 20  # of longer segments about so many places are looked at, evenly spread


@triton.jit
def _asinh(x):
    size = tl.abs(x)
    root = tl.log(size + tl.sqrt(size * size + 1.0))
    return tl.where(x < 0, -root, root)


@triton.jit
def _count(
    values, kept, tiles, scale, reach, counts, num_values, num_segments, CELLS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Count one tile's kept values in their cells."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    is_kept = tl.load(kept + row * num_values + offset, mask=inside, other=0) != 0
    value = tl.load(values + row * num_values + offset, mask=inside, other=0.0)
    value = tl.where(is_kept, value, 0.0)
    unit = tl.load(scale + segment)
    rate = CELLS / 2 / _asinh(tl.load(reach + segment) / unit)
    place = tl.minimum(tl.maximum(_asinh(value / unit) * rate + CELLS / 2, 0.0), CELLS - 1.0)
    cell = segment * CELLS + place.to(tl.int32)
    tl.atomic_add(counts + cell, tl.full([TILE], 1, tl.int32), mask=is_kept, sem="relaxed")


@triton.jit
def _settle(
    counts, totals, centres, means, used, STEPS: tl.constexpr, BINS: tl.constexpr, K: tl.constexpr
):
    """Lloyd steps of one codebook on its bins; unused centres stay where they are."""
    book = tl.program_id(0)
    bins, number = tl.arange(0, BINS), tl.arange(0, K)
    count = tl.load(counts + book * BINS + bins)
    total = tl.load(totals + book * BINS + bins)
    place = (total / tl.maximum(count, 1.0)).to(tl.float32)
    centre = tl.load(centres + book * K + number)
    amount = tl.zeros([K], tl.float64)
    for _ in tl.static_range(STEPS):
        code = tl.argmin(tl.abs(place[:, None] - centre[None, :]), 1)
        member = code[:, None] == number[None, :]
        amount = tl.sum(tl.where(member, count[:, None], 0.0), 0)
        whole = tl.sum(tl.where(member, total[:, None], 0.0), 0)
        mean = (whole / tl.maximum(amount, 1.0)).to(tl.float32)
        centre = tl.where(amount > 0, mean, centre)
    tl.store(means + book * K + number, centre)
    tl.store(used + book * K + number, amount > 0)


@triton.jit
def _border(centres, at):
    """The middle between a centre and the next, rounded down so that x <= border is exact."""
    exact = (tl.load(centres + at).to(tl.float64) + tl.load(centres + at + 1).to(tl.float64)) / 2
    near = exact.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    below = tl.where(near > 0, bits - 1, tl.where(near < 0, bits + 1, -0x7FFFFFFF))
    return tl.where(near.to(tl.float64) > exact, below.to(tl.float32, bitcast=True), near)


@triton.jit
def _tabulate(
    centres, low, rate, table, steps, K: tl.constexpr, TABLE: tl.constexpr
):  # fmt: skip
    """A part of the lookup table of one codebook: the centre of each step."""
    book = tl.program_id(0)
    mine = centres + book * K
    first = _border(mine, 0)
    width = _border(mine, K - 2) - first
    spare = tl.load(mine + K - 1) - tl.load(mine)
    width = tl.where(width > 0, width, tl.where(spare > 0, spare, 1.0))
    pace = (steps - 2) / width
    start = first - 1 / pace
    step = tl.program_id(1) * TABLE + tl.arange(0, TABLE)
    code = tl.zeros([TABLE], tl.int32)
    for i in range(K - 1):
        cell = ((_border(mine, i) - start) * pace + 0.5).to(tl.int32)
        code += (tl.minimum(tl.maximum(cell, 0), steps - 1) <= step).to(tl.int32)
    tl.store(table + book * steps + step, tl.load(mine + code), mask=step < steps)
    tl.store(low + book, start)
    tl.store(rate + book, pace)


def count_cells(
    values: Tensor,
    kept: Tensor,
    segments: Sequence[tuple[int, int]],
    cells: int,
    extent: tuple[Tensor, Tensor],
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


@lru_cache(maxsize=64)
def _sample(
    segments: tuple[tuple[int, int], ...], rows: int, size: int, device: torch.device
) -> Tensor:
    """The tiles of short segments, and every n-th of long ones."""
    tiles, *_ = plan(tuple((i, j, 0) for i, j in segments), rows, size, device, TILE)
    chosen = []
    for number, (start, stop) in enumerate(segments):
        own = tiles[tiles[:, 0] == number]
        chosen.append(own[:: max(1, round((stop - start) / ENOUGH))])
    return torch.cat(chosen).contiguous()


def settle(count: Tensor, total: Tensor, centres: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Sorted centres [..., k], k a power of two, after Lloyd steps, and which are used."""
    means, used = torch.empty_like(centres), torch.empty_like(centres, dtype=torch.bool)
    k, bins = centres.shape[-1], count.shape[-1]
    _settle[(centres.numel() // k,)](
        count.contiguous(), total.contiguous(), centres.contiguous(), means,
        used.view(torch.uint8), STEPS=steps, BINS=bins, K=k, num_warps=8,
    )  # fmt: skip
    return means, used


def tabulate_(centres: Tensor, low: Tensor, rate: Tensor, table: Tensor) -> None:
    """Write the lookup tables of codebooks [..., k], k at least 2, as `codebook.lookup_of`."""
    k, steps = centres.shape[-1], table.shape[-1]
    _tabulate[(centres.numel() // k, -(-steps // TABLE))](
        centres, low, rate, table, steps, K=k, TABLE=TABLE
    )
