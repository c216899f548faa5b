# mypy: disallow-untyped-defs=False
"""Training codebooks on a GPU: histogram, optimal split, Lloyd steps, lookup tables.

The steps of `nn/kmeans.py` in fixed shapes and without host synchronization, so that a CUDA graph
can hold them. Values are only counted, in a histogram of even bins in asinh(x / scale), so that the
result is deterministic whatever the order of the threads.

Counts and sums of bins are float64 [books, BINS], centroids float32 [books, K]; one program works
for one codebook, or `book`. Triton needs BINS and K to be powers of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels.histograms import Segments, extent, extent_of, histogram

NUM_BINS = 256  # of the histogram that centroids are fitted to: eight for each of 32 centroids
TABLE = 1024  # steps of a lookup table per program
ROWS = 16  # ends of a cluster that are tried at once


@triton.jit
def _final(mean, used, K: tl.constexpr):
    """Sorted centroids [K], unused ones equal to the last used, as `round_centroids` rounds them.

    All zero where none is used.
    """
    centroid = tl.sort(tl.where(used, mean, float("inf")))
    last = tl.max(tl.where(centroid == float("inf"), float("-inf"), centroid), 0)
    centroid = tl.where(last == float("-inf"), 0.0, tl.minimum(centroid, last))
    half = tl.minimum(tl.maximum(centroid, -65504.0), 65504.0).to(tl.float16).to(tl.float32)
    near = (tl.max(centroid, 0) - tl.min(centroid, 0)) * 0.00048828125  # 2**-11 of the spread
    rough = (tl.abs(centroid) >= 65520.0) | (tl.abs(half - centroid) > near)  # the first: infinite
    merged = (half[:, None] == half[None, :]) & (centroid[:, None] != centroid[None, :])
    lost = tl.sum(rough.to(tl.int32), 0) + tl.sum(tl.sum(merged.to(tl.int32), 1), 0)
    return tl.where(lost == 0, half, centroid)


@triton.jit
def _gain(counts, totals, sums, gains, BINS: tl.constexpr, ROWS: tl.constexpr):
    """What a cluster of one codebook's bins gains, for a few ends and all beginnings.

    A cluster from behind bin i up to bin j takes (sum of values)^2 / count off the squared error:
    `gains` [books, BINS, BINS] holds that at [j, i], and -infinity where i is behind j. `sums`
    [books, 2, BINS] gets the cumulative counts and sums.
    """
    book = tl.program_id(0)
    bins = tl.arange(0, BINS)
    end = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    count = tl.cumsum(tl.load(counts + book * BINS + bins), 0)
    total = tl.cumsum(tl.load(totals + book * BINS + bins), 0)
    reached, summed = sums + 2 * book * BINS, sums + (2 * book + 1) * BINS
    tl.store(reached + bins, count)  # every program stores the same
    tl.store(summed + bins, total)
    tl.debug_barrier()
    whole = tl.load(summed + end)[:, None] - total[None, :]
    amount = tl.load(reached + end)[:, None] - count[None, :]
    gain = (whole * whole / tl.maximum(amount, 1.0)).to(tl.float32)
    gain = tl.where(bins[None, :] <= end[:, None], gain, float("-inf"))
    tl.store(gains + (book * BINS + end[:, None]) * BINS + bins[None, :], gain)


@triton.jit
def _optimal_split(
    sums, gains, bests, splits, centroids, BINS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr
):
    """The optimal split of one codebook's bins into K clusters, by dynamic programming.

    `bests` [K, BINS] holds the gain of the best split of all bins up to one, into 1, 2, ... K
    clusters, `splits` [K, BINS] the last bin before its last cluster. What one thread writes there
    others read after the barrier.
    """
    book = tl.program_id(0)
    bins, number = tl.arange(0, BINS), tl.arange(0, K)
    reached, summed = sums + 2 * book * BINS, sums + (2 * book + 1) * BINS
    total = tl.load(summed + bins)
    best = (total * total / tl.maximum(tl.load(reached + bins), 1.0)).to(tl.float32)
    gains += book * BINS * BINS
    bests += book * K * BINS
    splits += book * K * BINS
    tl.store(splits + bins, tl.full([BINS], -1, tl.int32))
    tl.debug_barrier()
    for part in range(1, K):
        for at in range(0, BINS, ROWS):
            end = at + tl.arange(0, ROWS)
            gain = best[None, :] + tl.load(gains + end[:, None] * BINS + bins[None, :])
            top, split = tl.max(gain, 1, return_indices=True)
            tl.store(bests + part * BINS + end, top)
            tl.store(splits + part * BINS + end, split)
        tl.debug_barrier()
        best = tl.load(bests + part * BINS + bins)
    mean, held = tl.zeros([K], tl.float32), tl.zeros([K], tl.float64)
    end = book * 0 + BINS - 1
    for i in range(K):  # back from the end, from the last cluster to the first
        split = tl.load(splits + (K - 1 - i) * BINS + end)
        amount = tl.load(reached + end) - tl.load(reached + split, mask=split >= 0, other=0.0)
        whole = tl.load(summed + end) - tl.load(summed + split, mask=split >= 0, other=0.0)
        own = (whole / tl.maximum(amount, 1.0)).to(tl.float32)
        mean = tl.where(number == i, own, mean)
        held = tl.where(number == i, amount, held)
        end = tl.maximum(split, 0)
    tl.store(centroids + book * K + number, _final(mean, held > 0, K))


@triton.jit
def _lloyd(
    counts, totals, olds, centroids, STEPS: tl.constexpr, BINS: tl.constexpr, K: tl.constexpr
):
    """Lloyd steps of one codebook on its bins; meanwhile unused centroids stay where they are.

    All bins of a cluster at once, as a table [BINS, K] of who belongs to whom, in registers: that
    is what limits K.
    """
    book = tl.program_id(0)
    bins, number = tl.arange(0, BINS), tl.arange(0, K)
    count = tl.load(counts + book * BINS + bins)
    total = tl.load(totals + book * BINS + bins)
    place = (total / tl.maximum(count, 1.0)).to(tl.float32)
    centroid = tl.load(olds + book * K + number)
    amount = tl.zeros([K], tl.float64)
    for _ in tl.static_range(STEPS):
        code = tl.argmin(tl.abs(place[:, None] - centroid[None, :]), 1)
        member = code[:, None] == number[None, :]
        amount = tl.sum(tl.where(member, count[:, None], 0.0), 0)
        whole = tl.sum(tl.where(member, total[:, None], 0.0), 0)
        mean = (whole / tl.maximum(amount, 1.0)).to(tl.float32)
        centroid = tl.where(amount > 0, mean, centroid)
    tl.store(centroids + book * K + number, _final(centroid, amount > 0, K))


@triton.jit
def _border(centroids, at):
    """The middle between a centroid and the next, rounded down so that x <= border is exact."""
    exact = (
        tl.load(centroids + at).to(tl.float64) + tl.load(centroids + at + 1).to(tl.float64)
    ) / 2
    near = exact.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    # The next float below: the bits of positive floats ascend with the number, those of negative
    # ones descend.
    below = tl.where(near > 0, bits - 1, tl.where(near < 0, bits + 1, -0x7FFFFFFF))
    return tl.where(near.to(tl.float64) > exact, below.to(tl.float32, bitcast=True), near)


@triton.jit
def _lookup_table(
    centroids, low, rate, table, steps, K: tl.constexpr, TABLE: tl.constexpr
):  # fmt: skip
    """A part of the lookup table of one codebook: the centroid of each step.

    The code of a step is the number of borders up to it, each border being at its nearest step.
    """
    book = tl.program_id(0)
    mine = centroids + book * K
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


def update_codebooks(
    values: Tensor,
    kept: Tensor,
    segments: Segments,
    k: int,
    previous: Tensor | None,
    lloyd_steps: int,
) -> Tensor:
    """Centroids [segments, k] of a vector [N] as `codebook.update_codebooks`; k is 2, 4, ... 32."""
    rows, kept = values[None], kept[None]
    if previous is None:
        bins = histogram(rows, kept, segments, NUM_BINS, extent(rows, kept, segments))
        return optimal_split(*bins, k)[0]
    last = previous.detach()[None]
    bins = histogram(rows, kept, segments, NUM_BINS, extent_of(last))
    return lloyd(*bins, last, lloyd_steps)[0]


def optimal_split(count: Tensor, total: Tensor, k: int) -> Tensor:
    """Centroids [..., k], k a power of two, of the optimal split of bins [..., bins].

    `count` and `total` hold the number and the sum of the values in each bin.
    """
    shape, bins = count.shape[:-1], count.shape[-1]
    sums = count.new_empty(*shape, 2, bins)
    gains, bests = (count.new_empty(*shape, n, bins, dtype=torch.float32) for n in (bins, k))
    splits = count.new_empty(*shape, k, bins, dtype=torch.int32)
    centroids = count.new_empty(*shape, k, dtype=torch.float32)
    _gain[(shape.numel(), bins // ROWS)](
        count.contiguous(), total.contiguous(), sums, gains, BINS=bins, ROWS=ROWS, num_warps=8
    )
    _optimal_split[(shape.numel(),)](
        sums, gains, bests, splits, centroids, BINS=bins, K=k, ROWS=ROWS, num_warps=16
    )
    return centroids


def lloyd(count: Tensor, total: Tensor, centroids: Tensor, steps: int) -> Tensor:
    """Centroids [..., k], k a power of two, after Lloyd steps on bins [..., bins].

    `centroids` are those that the steps begin with; unused ones end equal to the last used.
    """
    k, bins = centroids.shape[-1], count.shape[-1]
    moved = torch.empty_like(centroids)
    _lloyd[(centroids.numel() // k,)](
        count.contiguous(), total.contiguous(), centroids.contiguous(), moved, STEPS=steps,
        BINS=bins, K=k, num_warps=8,
    )  # fmt: skip
    return moved


def lookup_table_(centroids: Tensor, low: Tensor, rate: Tensor, table: Tensor) -> None:
    """Write the lookup tables of codebooks [..., k], k at least 2, as `codebook.lookup_table`."""
    k, steps = centroids.shape[-1], table.shape[-1]
    _lookup_table[(centroids.numel() // k, -(-steps // TABLE))](
        centroids, low, rate, table, steps, K=k, TABLE=TABLE
    )
