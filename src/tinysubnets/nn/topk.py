"""Masks: exact top-k selection, and its straight-through gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import SettingError

Bounds = Sequence[tuple[int, int, int]]  # (start, stop, k) of each segment

_SMALL = 4096  # a segment so small is ranked at once
_NEAR = 1 / 256  # half-width of the window around a hint, as a share of the hint
_SAMPLE = 1 << 14  # entries that stand for a large segment without a (good) hint
_LARGEST = 2**31 - 1
_DIGITS = (8, 8, 8, 7)  # bits per pass of the radix search: few counters, in shared memory


def straight_through(hard: Tensor, scores: Tensor) -> Tensor:
    """The mask `hard` as float, exactly, with the gradient of |scores|: sign(scores) per element.

    Without the absolute value negative scores would move away from what the loss asks for.
    """
    size = scores.abs()
    return hard.to(scores.dtype) + (size - size.detach())


def top_k(values: Tensor, k: int, allowed: Tensor | None = None) -> Tensor:
    """The boolean mask [..., n] of exactly the `k` largest `values` (all >= 0).

    Ties go to the lower index. `allowed` restricts the candidates.
    """
    return top_k_segments(values, [(0, values.shape[-1], k)], allowed=allowed)[0]


def top_k_segments(
    values: Tensor, bounds: Bounds, hints: Tensor | None = None, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exact top-k in every segment (start, stop, k) of a flat vector [..., NB] of numbers >= 0.

    Returns the boolean mask [..., NB] and the k-th largest value of each segment [..., segments]
    (infinity where k is 0), which are good `hints` for the next call: hints decide how fast the
    answer comes, never what it is. Segments ascend and do not overlap; what lies outside all of
    them is not selected. Ties go to the lower index. No gradient flows through the result.

    On a CPU a search near the hint; on other devices, and inside `torch.compile`, a search of
    fixed shape without host synchronization, for which every segment must have k allowed entries.
    """
    for start, stop, k in bounds:
        if not 0 <= k <= stop - start:
            raise SettingError(f"cannot select {k} of the {stop - start} blocks of a segment.")
    with torch.no_grad():
        kernels = kernels_for(values)
        if kernels is not None:
            return kernels.top_k_segments(values, bounds, allowed)
        if values.device.type != "cpu" or torch.compiler.is_compiling():
            return _select_fixed(values, bounds, allowed)
        return _select_near(values, bounds, hints, allowed)


def kernels_for(values: Tensor) -> ModuleType | None:
    """The Triton kernels, if they can work on these values and no compiler is at work."""
    fits = values.is_cuda and values.dtype == torch.float32
    return _kernels() if fits and not torch.compiler.is_compiling() else None


@cache
def _kernels() -> ModuleType | None:
    try:
        return import_module("tinysubnets.kernels")
    except ImportError:
        return None


def _select_near(
    values: Tensor, bounds: Bounds, hints: Tensor | None, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`top_k_segments` on a CPU, segment by segment.

    In numpy, whose comparisons, counts and `flatnonzero` on one thread beat torch on several.
    """
    size = values.shape[-1]
    exact = values.detach() if values.dtype == torch.float64 else values.detach().float()
    table = exact.reshape(-1, size).numpy()
    usable = None if allowed is None else allowed.expand(values.shape).reshape(-1, size).numpy()
    near = None if hints is None else hints.detach().reshape(len(table), -1).numpy()
    mask = np.zeros(table.shape, dtype=np.bool_)
    levels = np.full((len(table), len(bounds)), np.inf, dtype=table.dtype)
    for row in range(len(table)):
        for i, (start, stop, k) in enumerate(bounds):
            if k:
                part = slice(start, stop)
                free = None if usable is None else usable[row, part]
                hint = 0.0 if near is None else float(near[row, i])
                levels[row, i] = _select(table[row, part], k, hint, free, mask[row, part])
    thresholds = torch.from_numpy(levels).reshape(*values.shape[:-1], -1).to(values.dtype)
    return torch.from_numpy(mask).reshape(values.shape), thresholds


def _select(
    values: np.ndarray, k: int, hint: float, allowed: np.ndarray | None, out: np.ndarray
) -> float:
    """Write the mask of the `k` largest values into `out`; return the k-th largest.

    Counts what lies above a window of values and ranks only what lies inside it. A window that
    misses the threshold costs time: the next one is wider, and the last holds everything.
    """
    for low, high in _windows(values, k, hint, allowed):
        np.greater(values, high, out=out)
        inside = values >= low
        if allowed is not None:
            out &= allowed
            inside &= allowed
        inside ^= out
        need = k - int(np.count_nonzero(out))
        if need < 1:
            continue
        index = np.flatnonzero(inside)
        if need <= len(index):
            return _take(values[index], index, need, out)
    raise SettingError(
        f"cannot select {k} of {len(values)} blocks: fewer are allowed, or some scores are NaN."
    )


def _take(window: np.ndarray, index: np.ndarray, need: int, out: np.ndarray) -> float:
    """Set `out` at the `need` largest of `window`, ties by lower index; return the smallest."""
    level = np.partition(window, len(window) - need)[len(window) - need]
    above = window > level
    out[index[above]] = True
    ties = index[window == level]
    out[ties[: need - int(np.count_nonzero(above))]] = True
    return float(level)


def _windows(
    values: np.ndarray, k: int, hint: float, allowed: np.ndarray | None
) -> Iterator[tuple[np.floating, np.floating]]:
    """Ever wider windows (low, high) in which to look for the k-th largest value."""
    kind = values.dtype.type
    if len(values) > _SMALL:
        if 0.0 < hint < np.inf:
            yield kind(hint * (1 - _NEAR)), kind(hint * (1 + _NEAR))
        step = len(values) // _SAMPLE + 1
        sample = values[::step] if allowed is None else values[::step][allowed[::step]]
        total = len(values) if allowed is None else int(np.count_nonzero(allowed))
        rank = len(sample) * (1 - k / max(total, 1))
        slack = 5 * (len(sample) * k / max(total, 1) * (1 - k / max(total, 1))) ** 0.5 + 5
        if 2 * slack < len(sample):
            first = int(max(rank - slack, 0))
            last = int(min(rank + slack, len(sample) - 1))
            ordered = np.partition(sample, (first, last))
            low = ordered[first] if rank > slack else kind(-np.inf)
            high = ordered[last] if rank + slack < len(sample) else kind(np.inf)
            yield low, high
    yield kind(-np.inf), kind(np.inf)


def _select_fixed(values: Tensor, bounds: Bounds, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """`top_k_segments` by radix search, in fixed shapes and without host synchronization.

    The bits of a non-negative float32 sort like the number. Each pass counts the next digit among
    the candidates that agree with the digits found so far, and so fixes the threshold's digit;
    after 31 bits the threshold is exact, and the first `need` of the blocks equal to it are taken.
    """
    size = values.shape[-1]
    bits = values.detach().float().reshape(-1, size).contiguous().view(torch.int32) & _LARGEST
    if allowed is not None:
        bits = torch.where(allowed.expand(values.shape).reshape(-1, size), bits, -1)
    num = len(bits) * len(bounds)
    # filled on the device: a copy from the host could not be captured in a graph
    need = torch.cat([bits.new_full((len(bits), 1), k) for _, _, k in bounds], -1)
    slot = torch.arange(num, dtype=torch.int32, device=bits.device).reshape(len(bits), -1)
    slots = spread(slot, bounds, size, 0)
    found, shift = torch.zeros_like(slot), 31
    for width in _DIGITS:
        shift -= width
        digit = (bits >> shift) - spread(found << width, bounds, size, _LARGEST)
        agrees = (digit >= 0) & (digit < 1 << width)
        code = torch.where(agrees, digit + (slots << width), -1)
        counts = _count(code, num << width).reshape(*slot.shape, -1)
        reach = counts.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
        chosen = (reach >= need[..., None]).sum(-1, keepdim=True).sub(1).clamp_min(0)
        need = need - (reach - counts).gather(-1, chosen)[..., 0]
        found = (found << width) + chosen[..., 0].int()
    mask = _fill(bits, found, need, bounds)
    levels = torch.where(found == _LARGEST, torch.inf, found.view(torch.float32))
    lead = values.shape[:-1]
    return mask.reshape(values.shape), levels.reshape(*lead, len(bounds)).to(values.dtype)


def _fill(bits: Tensor, found: Tensor, need: Tensor, bounds: Bounds) -> Tensor:
    """The mask of what exceeds each segment's threshold and of the first `need` equal to it."""
    size = bits.shape[-1]
    level = spread(found, bounds, size, _LARGEST)
    tie = bits == level
    order = tie.cumsum(-1, dtype=torch.int32)
    before = [order[:, max(start - 1, 0)] if start else need[:, 0] * 0 for start, _, _ in bounds]
    limit = spread(need + torch.stack(before, -1), bounds, size, 0)
    return (bits > level) | (tie & (order <= limit))


def spread(table: Tensor, segments: Sequence[tuple[int, ...]], size: int, gap: int) -> Tensor:
    """One value per block, [rows, size], from one per segment, [rows, segments]; `gap` elsewhere.

    A concatenation of expanded columns: no index tensor to read, and a compiler can fuse it.
    """
    parts, end = [], 0
    for i, (start, stop, *_) in enumerate(segments):
        if start > end:
            parts.append(table.new_full((1, 1), gap).expand(len(table), start - end))
        parts.append(table[:, i : i + 1].expand(-1, stop - start))
        end = stop
    if size > end:
        parts.append(table.new_full((1, 1), gap).expand(len(table), size - end))
    return torch.cat(parts, -1)


def _count(code: Tensor, bins: int) -> Tensor:
    """How often each of 0 .. bins - 1 occurs in `code`, int32 [bins]; -1 is not counted."""
    if code.is_cuda and bins < 1 << 15:  # counts in shared memory; larger products could overflow
        return torch.histc(code, bins, 0, bins).int()
    counts = torch.zeros(bins + 1, dtype=torch.int32, device=code.device)
    index = code.flatten().long() + 1
    return counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))[1:]
