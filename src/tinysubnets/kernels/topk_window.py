# mypy: disallow-untyped-defs=False
"""The k-th largest number of each segment near where it was last: two passes over the numbers.

Numbers around the last threshold fall into a thousand narrow bins; the first pass fills them and
counts what lies above. If the k-th largest is in one of them, the second pass gathers the few
numbers of that bin, among which it is found exactly, ties to the lower index. Else, or where a bin
holds too many, the segment is left to the radix search of `topk`. State and tiles are laid out as
described there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 8  # bits of a number below its bin: a bin is 256 floats wide, the window 3 % of the number
BINS = 1024
MOST = 2048  # candidates of a segment: one program ranks them all


@triton.jit
def bits_of(values, allowed, place, inside, HAS_ALLOWED: tl.constexpr):
    """The bits of magnitudes; -1 where a number may not be taken."""
    bits = tl.load(values + place, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if HAS_ALLOWED:
        inside = inside & (tl.load(allowed + place, mask=inside, other=0) != 0)
    return tl.where(inside, bits, -1)


@triton.jit
def _lowest_bin(last_thresholds, segment, WIDTH: tl.constexpr, BINS: tl.constexpr):
    """The first bin of the window around the last threshold, in units of a bin."""
    last = tl.load(last_thresholds + segment).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.maximum((last >> WIDTH) - BINS // 2, 0)


@triton.jit
def _tally(
    values, allowed, tiles, state, last_thresholds, counts, above, num_values, num_segments,
    HAS_ALLOWED: tl.constexpr, TILE: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr,
    BINS: tl.constexpr,
):  # fmt: skip
    """Count one tile's numbers above the window and in each of its bins."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    if tl.load(state + segment * STATE + 3) == 0:
        offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
        inside = offset < tl.load(tiles + 3 * tile + 2)
        bits = bits_of(values, allowed, row * num_values + offset, inside, HAS_ALLOWED)
        place = (bits >> WIDTH) - _lowest_bin(last_thresholds, segment, WIDTH, BINS)
        within = (bits >= 0) & (place >= 0) & (place < BINS)
        ones = tl.full([TILE], 1, tl.int32)
        tl.atomic_add(counts + segment * BINS + place, ones, mask=within, sem="relaxed")
        tl.atomic_add(above + segment, tl.sum((place >= BINS).to(tl.int32), 0), sem="relaxed")


@triton.jit
def _narrow(
    state, last_thresholds, counts, above, cursor, STATE: tl.constexpr, WIDTH: tl.constexpr,
    BINS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Pick the bin of one segment that holds its k-th largest number, and clear the counts."""
    segment = tl.program_id(0)
    mine = state + segment * STATE
    if tl.load(mine + 3) == 0:
        bins = tl.arange(0, BINS)
        count = tl.load(counts + segment * BINS + bins)
        need = tl.load(mine + 2) - tl.load(above + segment)  # of those in the window
        reach = tl.cumsum(count, 0, reverse=True)
        chosen = tl.maximum(tl.sum((reach >= need).to(tl.int32), 0) - 1, 0)
        many = tl.sum(tl.where(bins == chosen, count, 0), 0)
        if (need > 0) & (need <= tl.sum(count, 0)) & (many <= MOST):
            # The prefix of all numbers of the bin; what lies above it is selected already.
            tl.store(mine, chosen + _lowest_bin(last_thresholds, segment, WIDTH, BINS))
            tl.store(mine + 2, need - tl.sum(tl.where(bins > chosen, count, 0), 0))
            tl.store(mine + 3, 2)
        tl.store(counts + segment * BINS + bins, tl.zeros([BINS], tl.int32))
        tl.store(above + segment, 0)
        tl.store(cursor + segment, 0)


@triton.jit
def _gather(
    values, allowed, tiles, state, cursor, candidates, places, num_values, num_segments,
    HAS_ALLOWED: tl.constexpr, TILE: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """Put one tile's numbers of the chosen bin among the candidates of its segment."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    if tl.load(state + segment * STATE + 3) == 2:
        offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
        inside = offset < tl.load(tiles + 3 * tile + 2)
        bits = bits_of(values, allowed, row * num_values + offset, inside, HAS_ALLOWED)
        match = (bits >> WIDTH) == tl.load(state + segment * STATE)
        number = tl.sum(match.to(tl.int32), 0)
        if number > 0:  # candidates come in any order: their positions decide about ties
            start = tl.atomic_add(cursor + segment, number, sem="relaxed")
            at = segment * MOST + start + tl.cumsum(match.to(tl.int32), 0) - 1
            tl.store(candidates + at, bits & ((1 << WIDTH) - 1), mask=match)
            tl.store(places + at, offset, mask=match)


@triton.jit
def _finish(
    state, cursor, candidates, places, STATE: tl.constexpr, WIDTH: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """Find the k-th largest number of one segment among its candidates, and the last equal."""
    segment = tl.program_id(0)
    mine = state + segment * STATE
    if tl.load(mine + 3) == 2:
        at = tl.arange(0, MOST)
        filled = at < tl.load(cursor + segment)
        rest = tl.load(candidates + segment * MOST + at, mask=filled, other=0)
        need = tl.load(mine + 2)
        digits = tl.arange(0, 1 << WIDTH)
        count = tl.histogram(rest, 1 << WIDTH, mask=filled)
        reach = tl.cumsum(count, 0, reverse=True)
        digit = tl.maximum(tl.sum((reach >= need).to(tl.int32), 0) - 1, 0)
        need -= tl.sum(tl.where(digits > digit, count, 0), 0)
        equal = filled & (rest == digit)
        if tl.sum(equal.to(tl.int32), 0) > need:  # the need-th place of an equal, bit by bit
            place = tl.load(places + segment * MOST + at, mask=equal, other=0)
            last = need * 0
            for bit in tl.static_range(30, -1, -1):
                below = tl.sum((equal & (place < last + (1 << bit))).to(tl.int32), 0)
                last += tl.where(below < need, 1 << bit, 0)
            tl.store(mine + 1, last)
        tl.store(mine, (tl.load(mine) << WIDTH) + digit)
        tl.store(mine + 2, 0)
        tl.store(mine + 3, 1)


def search_(
    table: Tensor,
    permits: Tensor,
    tiles: Tensor,
    state: Tensor,
    last_thresholds: Tensor,
    num: int,
    how: dict[str, Any],
) -> None:
    """End the searches of all segments whose k-th largest number lies near its last threshold.

    `table` is [rows, N], `permits` what is allowed, uint8 of the same shape, or anything else where
    `how` says that all is; `num` is the number of segments.
    """
    rows, size = table.shape
    counts, above, cursor, candidates, places = _buffers(rows * num, table.device)
    grid, small = (len(tiles), rows), {"STATE": how["STATE"], "WIDTH": WIDTH}
    _tally[grid](table, permits, tiles, state, last_thresholds, counts, above, size, num,
                 WIDTH=WIDTH, BINS=BINS, num_warps=8, **how)  # fmt: skip
    _narrow[(rows * num,)](
        state, last_thresholds, counts, above, cursor, BINS=BINS, MOST=MOST, **small
    )
    _gather[grid](table, permits, tiles, state, cursor, candidates, places, size, num, WIDTH=WIDTH,
                  MOST=MOST, num_warps=8, **how)  # fmt: skip
    _finish[(rows * num,)](state, cursor, candidates, places, MOST=MOST, num_warps=8, **small)


@cache  # captured graphs read these tensors: none may be dropped
def _buffers(num: int, device: torch.device) -> tuple[Tensor, ...]:
    """Counters of `num` segments, zero before and after every search, and room for candidates.

    Numbers per bin, numbers above the window, candidates so far; the low bits of each candidate,
    and its position.
    """
    sizes = (num * BINS, num, num, num * MOST, num * MOST)
    return tuple(torch.zeros(n, dtype=torch.int32, device=device) for n in sizes)
