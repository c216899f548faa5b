# mypy: disallow-untyped-defs=False
"""Training codebooks on a GPU: one pass that bins the weights, and Lloyd steps on the bins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels.select import plan

TILE = 1024
UNIT = 2.0**30  # sums are kept in integers, in units of reach / 2**30, so that order is nothing
FAR = 64.0  # values beyond so many times the reach count as much: integers must not overflow


@triton.jit
def _asinh(x):
    size = tl.abs(x)
    root = tl.log(size + tl.sqrt(size * size + 1.0))
    return tl.where(x < 0, -root, root)


@triton.jit
def _bin(
    values, kept, tiles, scale, reach, counts, sums, num_values, num_segments,
    BINS: tl.constexpr, TILE: tl.constexpr, UNIT: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Add one tile's kept values to the counts and sums of their bins."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    is_kept = tl.load(kept + row * num_values + offset, mask=inside, other=0) != 0
    value = tl.load(values + row * num_values + offset, mask=is_kept, other=0.0)
    unit, most = tl.load(scale + segment), tl.load(reach + segment)
    rate = (BINS / 2 - 0.5) / _asinh(most / unit)
    place = tl.minimum(tl.maximum(_asinh(value / unit) * rate + BINS / 2, 0.0), BINS - 1.0)
    cell = segment * BINS + place.to(tl.int32)
    share = tl.minimum(tl.maximum(value / most, -FAR), FAR)
    amount = (share.to(tl.float64) * UNIT).to(tl.int64)
    tl.atomic_add(counts + cell, tl.full([TILE], 1, tl.int64), mask=is_kept, sem="relaxed")
    tl.atomic_add(sums + cell, amount, mask=is_kept, sem="relaxed")


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


def histogram(
    values: Tensor,
    kept: Tensor,
    segments: Sequence[tuple[int, int]],
    bins: int,
    extent: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Counts and sums [rows, segments, bins] in float64 of the kept values [rows, N]."""
    rows, size = values.shape
    scale, reach = (x.contiguous() for x in extent)
    bounds = tuple((i, j, 0) for i, j in segments)
    tiles, *_ = plan(bounds, rows, size, values.device, TILE)
    sums = torch.zeros(2, rows, len(segments), bins, dtype=torch.int64, device=values.device)
    _bin[(len(tiles), rows)](
        values.contiguous(), kept.contiguous().view(torch.uint8), tiles, scale, reach, sums[0],
        sums[1], size, len(segments), BINS=bins, TILE=TILE, UNIT=UNIT, FAR=FAR,
    )  # fmt: skip
    count, total = sums.double()
    return count, total * (reach.double() / UNIT)[..., None]


def settle(count: Tensor, total: Tensor, centres: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Sorted centres [..., k], k a power of two, after Lloyd steps, and which are used."""
    means, used = torch.empty_like(centres), torch.empty_like(centres, dtype=torch.bool)
    k, bins = centres.shape[-1], count.shape[-1]
    _settle[(centres.numel() // k,)](
        count.contiguous(), total.contiguous(), centres.contiguous(), means,
        used.view(torch.uint8), STEPS=steps, BINS=bins, K=k, num_warps=8,
    )  # fmt: skip
    return means, used
