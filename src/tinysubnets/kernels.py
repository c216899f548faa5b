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
from typing import Any

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
    tiles, first, counts, covered = _plan(tuple(bounds), rows, size, values.device)
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
def _plan(
    bounds: tuple[tuple[int, int, int], ...], rows: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Tiles (segment, start, stop) that cross no border, first states, counters, full cover.

    The counters are zero before and after every search.
    """
    tiles = [
        (i, at, min(at + TILE, stop))
        for i, (start, stop, _) in enumerate(bounds)
        for at in range(start, stop, TILE)
    ]
    state = [[0, 0, k, int(k == 0), k] for _, _, k in bounds] * rows
    to = partial(torch.tensor, dtype=torch.int32, device=device)
    counts = torch.zeros(rows * len(bounds), BINS, dtype=torch.int32, device=device)
    return to(tiles), to(state), counts, sum(j - i for i, j, _ in bounds) == size


@triton.jit
def _snapped(free, owned, bank, low, rate, table, place, inside, codebook, steps):
    """The value of each weight: the bank's where owned, else the centre nearest to the free one."""
    value = tl.load(free + place, mask=inside, other=0.0)
    step = (value - tl.load(low + codebook)) * tl.load(rate + codebook)
    step = tl.minimum(tl.maximum(step, 0.0), steps - 1.0)
    near = tl.load(table + codebook * steps + step.to(tl.int32), mask=inside, other=0.0)
    is_owned = tl.load(owned + place, mask=inside, other=0) != 0
    return tl.where(is_owned, tl.load(bank + place, mask=inside, other=0.0), near), is_owned


@triton.jit
def _forward(
    free, kept, owned, bank, low, rate, table, tiles, out, num_values, num_segments, steps,
    TILE: tl.constexpr,
):  # fmt: skip
    """Effective weights of one tile."""
    tile, row = tl.program_id(0), tl.program_id(1)
    codebook = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    place = row * num_values + offset
    value, _ = _snapped(free, owned, bank, low, rate, table, place, inside, codebook, steps)
    is_kept = tl.load(kept + place, mask=inside, other=0) != 0
    tl.store(out + place, tl.where(is_kept, value, 0.0), mask=inside)


@triton.jit
def _backward(
    gradient, free, scores, kept, owned, bank, low, rate, table, tiles, to_free, to_scores,
    num_values, num_segments, steps, TILE: tl.constexpr,
):  # fmt: skip
    """Gradients of free values and scores of one tile."""
    tile, row = tl.program_id(0), tl.program_id(1)
    codebook = row * num_segments + tl.load(tiles + 3 * tile)
    offset = tl.load(tiles + 3 * tile + 1) + tl.arange(0, TILE)
    inside = offset < tl.load(tiles + 3 * tile + 2)
    place = row * num_values + offset
    value, is_owned = _snapped(free, owned, bank, low, rate, table, place, inside, codebook, steps)
    is_kept = tl.load(kept + place, mask=inside, other=0) != 0
    slope = tl.load(gradient + place, mask=inside, other=0.0)
    score = tl.load(scores + place, mask=inside, other=0.0)
    sign = tl.where(score > 0, 1.0, tl.where(score < 0, -1.0, 0.0))
    tl.store(to_free + place, tl.where(is_kept & (is_owned == 0), slope, 0.0), mask=inside)
    tl.store(to_scores + place, slope * value * sign, mask=inside)


class FusedWeights(torch.autograd.Function):
    """`EffectiveWeights` for one mask bit per weight, each direction in one kernel.

    Quantized values are looked up again going backward: that costs less than keeping them.
    """

    @staticmethod
    def forward(ctx, free, scores, mask, owned, bank, lookup, segments):
        size = free.shape[-1]
        bounds = tuple((i, j, 0) for i, j in segments)
        rows = free.numel() // size
        tiles, *_ = _plan(bounds, rows, size, free.device)
        ctx.size, ctx.num, ctx.grid = size, len(segments), (len(tiles), rows)
        low, rate, table = lookup
        ctx.save_for_backward(free, scores, mask, owned, bank, low, rate, table, tiles)
        out = torch.empty_like(free)
        _forward[ctx.grid](
            free, mask.view(torch.uint8), owned.view(torch.uint8), bank, low, rate, table, tiles,
            out, size, ctx.num, table.shape[-1], TILE=TILE,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx, gradient):
        free, scores, mask, owned, bank, low, rate, table, tiles = ctx.saved_tensors
        to_free, to_scores = torch.empty_like(free), torch.empty_like(scores)
        _backward[ctx.grid](
            gradient.contiguous(), free, scores, mask.view(torch.uint8), owned.view(torch.uint8),
            bank, low, rate, table, tiles, to_free, to_scores, ctx.size, ctx.num,
            table.shape[-1], TILE=TILE,
        )  # fmt: skip
        return to_free, to_scores, None, None, None, None, None


@triton.jit
def _power(BASE: tl.constexpr, exponent):
    """BASE to the power of a whole number below 2^22, in float64."""
    result = tl.full((), 1.0, tl.float64)
    base = tl.full((), BASE, tl.float64)
    for bit in tl.static_range(22):
        result = tl.where(((exponent >> bit) & 1) == 1, result * base, result)
        base = base * base
    return result


@triton.jit
def _adam(
    parameter, gradient, first, second, step, rate, count,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One Adam update of SIZE values; `step` counts this update already."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    p = tl.load(parameter + place, mask=inside)
    g = tl.load(gradient + place, mask=inside)
    lr = tl.load(rate)
    number = tl.load(step).to(tl.int32)
    if DECAY != 0.0:
        if DECOUPLED:
            p = p * (1.0 - lr * DECAY)
        else:
            g = g + DECAY * p
    m = tl.load(first + place, mask=inside)
    v = tl.load(second + place, mask=inside)
    m = m + (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    size = lr / (1.0 - _power(BETA1, number)).to(tl.float32)
    root = tl.sqrt((1.0 - _power(BETA2, number)).to(tl.float32))
    p = p - size * m / (tl.sqrt(v) / root + EPSILON)
    tl.store(parameter + place, p, mask=inside)
    tl.store(first + place, m, mask=inside)
    tl.store(second + place, v, mask=inside)


@triton.jit
def _sgd(
    parameter, gradient, buffer, rate, count, MOMENTUM: tl.constexpr, DECAY: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """One update by gradient descent with momentum of SIZE values."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    p = tl.load(parameter + place, mask=inside)
    g = tl.load(gradient + place, mask=inside) + DECAY * p
    if MOMENTUM != 0.0:
        g = MOMENTUM * tl.load(buffer + place, mask=inside) + g
        tl.store(buffer + place, g, mask=inside)
    tl.store(parameter + place, p - tl.load(rate) * g, mask=inside)


UPDATE = 1024  # values per program


def adam_(
    parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any], decoupled: bool
) -> None:
    """An Adam update in place, by the state and group of a torch optimizer; the rate a tensor."""
    state["step"].add_(1)
    count = parameter.numel()
    _adam[(-(-count // UPDATE),)](
        parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"],
        group["lr"], count, BETA1=group["betas"][0], BETA2=group["betas"][1],
        EPSILON=group["eps"], DECAY=group["weight_decay"], DECOUPLED=decoupled, SIZE=UPDATE,
    )  # fmt: skip


def sgd_(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """A gradient step in place, by the state and group of a torch optimizer; the rate a tensor."""
    count = parameter.numel()
    _sgd[(-(-count // UPDATE),)](
        parameter, parameter.grad, state["momentum_buffer"], group["lr"], count,
        MOMENTUM=group["momentum"], DECAY=group["weight_decay"], SIZE=UPDATE,
    )  # fmt: skip
