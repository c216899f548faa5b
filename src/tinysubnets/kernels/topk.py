# mypy: disallow-untyped-defs=False
"""Exact top-k of every segment on a GPU: a radix search in Triton, without host synchronization.

The bits of a non-negative float sort like the number. A search finds the k-th largest of each
segment digit by digit, from the top: one pass counts the next digit of all numbers that agree with
what is found so far, and a small kernel then picks the digit. Of numbers equal to the k-th the
earlier ones are taken; the search for the last of them returns at once where all are needed.

Digits have eight bits: a histogram in registers costs as much as it has bins.

Where the last threshold is known, `topk_window` looks around it first: two passes at the speed of
memory instead of four slow ones. The kernels here then find the search ended, and return at once.

Layout. Values are [rows, N]; every row has the same segments. The state is int32 [rows * segments,
5], for each segment:

    0  the bits found so far: a prefix of the k-th largest number, at the end all of them
    1  the last position at which a number equal to the k-th is taken
    2  how many numbers are still needed among those that agree with the prefix
    3  how far the search is: 0 going on, 1 ended, 2 candidates are being gathered
    4  k

Tiles are int32 [tiles, 3]: the segment, the first position and the one behind the last. None
crosses a border between segments, so that a program works for one segment. Most kernels run on a
grid of (tiles, rows); those that decide for a segment on one of rows * segments programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinysubnets.kernels import topk_window
from tinysubnets.kernels.topk_window import bits_of

TILE = 4096  # values per program
DIGITS = (8, 8, 8, 7)  # bits per pass: 31, as the sign of a non-negative float is not coded
BINS = 1 << 8  # counters of a segment, one for each value of a digit
STATE = 5  # int32 per segment
LONG = 1 << 20  # values: shorter vectors are faster without the window around the last threshold

Bounds = Sequence[tuple[int, int, int]]  # (start, stop, k) of each segment


@triton.jit
def _count(
    values, allowed, tiles, state, counts, num_values, num_segments, SHIFT: tl.constexpr,
    WIDTH: tl.constexpr, HAS_ALLOWED: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr,
    STATE: tl.constexpr,
):  # fmt: skip
    """Add the digits of one tile's agreeing numbers to the counts of its segment."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = row * num_segments + tl.load(tiles + 3 * tile)
    if tl.load(state + segment * STATE + 3) == 0:
        offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
        inside = offset < tl.load(tiles + 3 * tile + 2)
        bits = bits_of(values, allowed, row * num_values + offset, inside, HAS_ALLOWED)
        # What may not be taken has bits of -1, whose digits agree with no prefix.
        agrees = (bits >> (SHIFT + WIDTH)) == tl.load(state + segment * STATE)
        digit = (bits >> SHIFT) & ((1 << WIDTH) - 1)
        local = tl.histogram(digit, BINS, mask=agrees)
        target = counts + segment * BINS + tl.arange(0, BINS)
        tl.atomic_add(target, local, mask=local > 0, sem="relaxed")


@triton.jit
def _choose(state, counts, WIDTH: tl.constexpr, LAST: tl.constexpr, BINS: tl.constexpr,
            STATE: tl.constexpr):  # fmt: skip
    """Pick the digit of the k-th largest number of one segment, and clear its counts."""
    mine = state + tl.program_id(0) * STATE
    if tl.load(mine + 3) == 0:
        bins = tl.arange(0, BINS)
        place = counts + tl.program_id(0) * BINS + bins
        need = tl.load(mine + 2)
        count = tl.load(place)
        reach = tl.cumsum(count, 0, reverse=True)  # numbers with this digit or a larger one
        digit = tl.maximum(tl.sum((reach >= need).to(tl.int32), 0) - 1, 0)
        need -= tl.sum(tl.where(bins > digit, count, 0), 0)
        tl.store(mine, (tl.load(mine) << WIDTH) + digit)
        tl.store(mine + 2, need)
        if LAST:  # where all equal numbers are needed, none is the last
            equal = tl.sum(tl.where(bins == digit, count, 0), 0)
            tl.store(mine + 3, (equal <= need).to(tl.int32))
        tl.store(place, tl.zeros([BINS], tl.int32))


@triton.jit
def _last(
    values, allowed, borders, state, num_values, num_segments, HAS_ALLOWED: tl.constexpr,
    TILE: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """Find the last position at which a number equal to the k-th largest of a segment is taken."""
    segment, row = tl.program_id(0), tl.program_id(1)
    mine = state + (row * num_segments + segment) * STATE
    at = tl.load(borders + 2 * segment)
    stop = tl.load(borders + 2 * segment + 1)
    need = tl.load(mine + 2)
    level = tl.load(mine)
    if tl.load(mine + 3) != 0:
        need = need * 0  # nothing to look for: the loop ends before it begins
    while (need > 0) & (at < stop):
        offset = at + tl.arange(0, TILE)
        bits = bits_of(values, allowed, row * num_values + offset, offset < stop, HAS_ALLOWED)
        equal = (bits == level).to(tl.int32)
        found = tl.sum(equal, 0)
        if found >= need:
            before = tl.sum((tl.cumsum(equal, 0) < need).to(tl.int32), 0)
            tl.store(mine + 1, at + before)
        need -= found
        at += TILE


@triton.jit
def _fill(
    values, allowed, tiles, state, mask, thresholds, num_values, num_segments,
    HAS_ALLOWED: tl.constexpr, HAS_THRESHOLDS: tl.constexpr, TILE: tl.constexpr,
    STATE: tl.constexpr,
):  # fmt: skip
    """The mask of one tile: what exceeds the k-th largest, and the first of its equals."""
    tile, row = tl.program_id(0), tl.program_id(1)
    mine = state + (row * num_segments + tl.load(tiles + 3 * tile)) * STATE
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    bits = bits_of(values, allowed, row * num_values + offset, inside, HAS_ALLOWED)
    level = tl.load(mine)
    kept = (bits > level) | ((bits == level) & (offset <= tl.load(mine + 1)))
    kept = kept & (tl.load(mine + 4) > 0)
    tl.store(mask + row * num_values + offset, kept, mask=inside)
    if HAS_THRESHOLDS:  # all tiles of a segment write the same
        segment = row * num_segments + tl.load(tiles + 3 * tile)
        tl.store(thresholds + segment, level.to(tl.float32, bitcast=True))


def top_k_segments(
    values: Tensor, bounds: Bounds, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mask [..., N] and thresholds [..., segments] of `nn.topk.top_k_segments`, on a GPU."""
    mask, state = top_k_magnitudes(values, bounds, allowed)
    levels = torch.where(state[:, 4] > 0, state[:, 0].contiguous().view(torch.float32), torch.inf)
    return mask, levels.reshape(*values.shape[:-1], len(bounds))


def top_k_magnitudes(
    values: Tensor,
    bounds: Bounds,
    allowed: Tensor | None = None,
    last_thresholds: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The mask [..., N] of the k largest magnitudes of each segment, and the state of the search.

    Signs are ignored, so that mask scores need no pass for their absolute value. `last_thresholds`
    [..., segments], or anything else, change the time of a search of long vectors, never its
    result; the new ones take their place.
    """
    size = values.shape[-1]
    table = values.detach().float().reshape(-1, size).contiguous()
    permits = (
        table if allowed is None else allowed.expand(values.shape).contiguous().view(torch.uint8)
    )
    rows, num = len(table), len(bounds)
    tiles, borders, first, counts, covered = tiling(tuple(bounds), rows, size, values.device, TILE)
    state = first.clone()
    grid, shift = (len(tiles), rows), 31
    how: dict[str, Any] = {"HAS_ALLOWED": allowed is not None, "TILE": TILE, "STATE": STATE}
    if last_thresholds is not None and size >= LONG:
        topk_window.search_(table, permits, tiles, state, last_thresholds, num, how)
    for width in DIGITS:
        shift -= width
        _count[grid](table, permits, tiles, state, counts, size, num, SHIFT=shift, WIDTH=width,
                     BINS=BINS, num_warps=8, **how)  # fmt: skip
        _choose[(rows * num,)](state, counts, WIDTH=width, LAST=shift == 0, BINS=BINS, STATE=STATE)
    ties = how | {"TILE": 4 * TILE}  # one program walks a whole segment: in long strides
    _last[(num, rows)](table, permits, borders, state, size, num, num_warps=16, **ties)
    empty = torch.empty if covered else torch.zeros  # no program writes outside all segments
    mask = empty(rows, size, dtype=torch.bool, device=values.device)
    marks, levels = mask.view(torch.uint8), table if last_thresholds is None else last_thresholds
    _fill[grid](table, permits, tiles, state, marks, levels, size, num,
                HAS_THRESHOLDS=last_thresholds is not None, num_warps=8, **how)  # fmt: skip
    return mask.reshape(values.shape), state


@cache  # captured graphs read these tensors: none may be dropped
def tiling(
    bounds: tuple[tuple[int, int, int], ...],
    rows: int,
    size: int,
    device: torch.device,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """How vectors [rows, size] are cut into tiles of at most `tile` values, on the device.

    Gives the tiles [tiles, 3], the borders [segments, 2] (start and stop), the first states [rows *
    segments, STATE], the counters [rows * segments, BINS], which are zero before and after every
    search, and whether the segments cover the whole vector.
    """
    tiles = [
        (i, at, min(at + tile, stop))
        for i, (start, stop, _) in enumerate(bounds)
        for at in range(start, stop, tile)
    ]
    state = [[0, size, k, int(k == 0), k] for _, _, k in bounds] * rows
    to = partial(torch.tensor, dtype=torch.int32, device=device)
    counts = torch.zeros(rows * len(bounds), BINS, dtype=torch.int32, device=device)
    covered = sum(j - i for i, j, _ in bounds) == size
    return to(tiles), to([b[:2] for b in bounds]), to(state), counts, covered
