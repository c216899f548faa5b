# mypy: disallow-untyped-defs=False
"""Exact top-k of every segment on a GPU: a radix search in Triton, without host synchronisation.

Each number gets a key that no other has: the bits of its non-negative float, then its index counted
from the end, so that of equal numbers the earlier is larger. A search finds the k-th largest key
of each segment digit by digit, from the top. One pass counts the next digit of all keys that agree
with what is found so far, and a small kernel then picks the digit. Passes over the index return at
once where the numbers alone decide.

The state of a segment is five int32: the float bits found, the index digits found, how many more
are needed, whether all is decided, and how many keys are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
FLOAT_DIGITS = (11, 10, 10)  # 31 bits: the sign of a non-negative float is not coded
INDEX_DIGIT = 11
BINS = 1 << 11
STATE = 5

Bounds = Sequence[tuple[int, int, int]]


@triton.jit
def _count(
    values, allowed, tiles, state, counts, num_values, num_segments,
    shift, width, HAS_ALLOWED: tl.constexpr, ON_INDEX: tl.constexpr, INDEX_BITS: tl.constexpr,
    TILE: tl.constexpr, BINS: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """Add the digits of one tile's agreeing keys to the counts of its segment."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = tl.load(tiles + 3 * tile)
    start = tl.load(tiles + 3 * tile + 1)
    stop = tl.load(tiles + 3 * tile + 2)
    mine = state + (row * num_segments + segment) * STATE
    if tl.load(mine + 3) == 0:
        offset = start + tl.arange(0, TILE)
        inside = offset < stop
        place = row * num_values + offset
        bits = tl.load(values + place, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        bits = bits & 0x7FFFFFFF
        if HAS_ALLOWED:
            inside = inside & (tl.load(allowed + place, mask=inside, other=0) != 0)
        found = tl.load(mine)
        if ON_INDEX:
            rest = (1 << INDEX_BITS) - 1 - offset
            agrees = inside & (bits == found) & ((rest >> (shift + width)) == tl.load(mine + 1))
            digit = (rest >> shift) & ((1 << width) - 1)
        else:
            agrees = inside & ((bits >> (shift + width)) == found)
            digit = (bits >> shift) & ((1 << width) - 1)
        local = tl.histogram(digit, BINS, mask=agrees)
        bins = tl.arange(0, BINS)
        target = counts + (row * num_segments + segment) * BINS + bins
        tl.atomic_add(target, local, mask=local > 0, sem="relaxed")


@triton.jit
def _choose(
    state, counts, width, LAST: tl.constexpr, ON_INDEX: tl.constexpr,
    BINS: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """Pick the digit of the k-th largest key of one segment, and clear its counts."""
    mine = state + tl.program_id(0) * STATE
    bins = tl.arange(0, BINS)
    place = counts + tl.program_id(0) * BINS + bins
    if tl.load(mine + 3) == 0:
        need = tl.load(mine + 2)
        count = tl.load(place)
        reach = tl.cumsum(count, 0, reverse=True)
        digit = tl.maximum(tl.sum((reach >= need).to(tl.int32), 0) - 1, 0)
        above = tl.sum(tl.where(bins > digit, count, 0), 0)
        left = tl.sum(tl.where(bins == digit, count, 0), 0)
        index = 1 if ON_INDEX else 0
        tl.store(mine + index, (tl.load(mine + index) << width) + digit)
        tl.store(mine + 2, need - above)
        if (
            LAST
        ):  # all float bits are known: equal numbers that are all needed need no further search
            tl.store(mine + 3, (left <= need - above).to(tl.int32))
        tl.store(place, tl.zeros([BINS], tl.int32))


@triton.jit
def _fill(
    values, allowed, tiles, state, mask, num_values, num_segments,
    HAS_ALLOWED: tl.constexpr, INDEX_BITS: tl.constexpr, TILE: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """The mask of one tile: every key not below the k-th largest of its segment."""
    tile, row = tl.program_id(0), tl.program_id(1)
    segment = tl.load(tiles + 3 * tile)
    start = tl.load(tiles + 3 * tile + 1)
    stop = tl.load(tiles + 3 * tile + 2)
    mine = state + (row * num_segments + segment) * STATE
    offset = start + tl.arange(0, TILE)
    inside = offset < stop
    place = row * num_values + offset
    bits = tl.load(values + place, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    level = tl.load(mine)
    rest = (1 << INDEX_BITS) - 1 - offset
    early = (rest >= tl.load(mine + 1)) | (tl.load(mine + 3) != 0)
    kept = (bits > level) | ((bits == level) & early)
    if HAS_ALLOWED:
        kept = kept & (tl.load(allowed + place, mask=inside, other=0) != 0)
    kept = kept & (tl.load(mine + 4) > 0)
    tl.store(mask + place, kept, mask=inside)


def top_k_segments(
    values: Tensor, bounds: Bounds, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mask [..., n] and thresholds [..., segments] of `masks.top_k_segments`, on a GPU.

    Signs are ignored: the largest are those of the largest magnitude.
    """
    mask, state = select(values, bounds, allowed)
    levels = torch.where(state[:, 4] > 0, state[:, 0].contiguous().view(torch.float32), torch.inf)
    return mask, levels.reshape(*values.shape[:-1], len(bounds))


def select(values: Tensor, bounds: Bounds, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mask of the k largest magnitudes of each segment, and the state of the search."""
    size = values.shape[-1]
    table = values.detach().float().reshape(-1, size).contiguous()
    permits = (
        table if allowed is None else allowed.expand(values.shape).contiguous().view(torch.uint8)
    )
    rows, num = len(table), len(bounds)
    tiles, first, counts, covered = plan(tuple(bounds), rows, size, values.device, TILE)
    state = first.clone()
    index_bits = max(size - 1, 1).bit_length()
    grid, shift = (len(tiles), rows), 31
    common = {
        "HAS_ALLOWED": allowed is not None,
        "INDEX_BITS": index_bits,
        "TILE": TILE,
        "STATE": STATE,
    }
    for number, width in enumerate(FLOAT_DIGITS):
        shift -= width
        _count[grid](
            table,
            permits,
            tiles,
            state,
            counts,
            size,
            num,
            shift,
            width,
            ON_INDEX=False,
            BINS=BINS,
            **common,
        )
        _choose[(rows * num,)](
            state,
            counts,
            width,
            LAST=number == len(FLOAT_DIGITS) - 1,
            ON_INDEX=False,
            BINS=BINS,
            STATE=STATE,
        )
    shift = index_bits
    while shift > 0:
        width = min(INDEX_DIGIT, shift)
        shift -= width
        _count[grid](
            table,
            permits,
            tiles,
            state,
            counts,
            size,
            num,
            shift,
            width,
            ON_INDEX=True,
            BINS=BINS,
            **common,
        )
        _choose[(rows * num,)](
            state, counts, width, LAST=False, ON_INDEX=True, BINS=BINS, STATE=STATE
        )
    empty = torch.empty if covered else torch.zeros
    mask = empty(rows, size, dtype=torch.bool, device=values.device)
    _fill[grid](table, permits, tiles, state, mask.view(torch.uint8), size, num, **common)
    return mask.reshape(values.shape), state


@lru_cache(maxsize=64)
def plan(
    bounds: tuple[tuple[int, int, int], ...], rows: int, size: int, device: torch.device, tile: int
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Tiles (segment, start, stop) that cross no border, first states, counters, full cover.

    The counters are zero before and after every search.
    """
    tiles = [
        (i, at, min(at + tile, stop))
        for i, (start, stop, _) in enumerate(bounds)
        for at in range(start, stop, tile)
    ]
    state = [[0, 0, k, int(k == 0), k] for _, _, k in bounds] * rows
    to = partial(torch.tensor, dtype=torch.int32, device=device)
    counts = torch.zeros(rows * len(bounds), BINS, dtype=torch.int32, device=device)
    return to(tiles), to(state), counts, sum(j - i for i, j, _ in bounds) == size
