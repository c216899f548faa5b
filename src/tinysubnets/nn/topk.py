"""Exact top-k in every segment of a vector: how a mask follows from its scores.

One answer, three ways to it. `top_k_reference` sorts: plain, on any device, inside `torch.compile`
and in a captured CUDA graph. On a CPU a search of the few values around the threshold is several
times as fast; on a GPU the Triton kernels of the same name in `kernels/topk.py` are.
"""

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

_SMALL = 4096  # values: a segment so small is ranked at once
_WINDOW = 1 / 256  # half-width of the window around the last threshold, as a share of it
_SAMPLE = 1 << 14  # values that stand for a large segment without a (good) last threshold
_DEVIATIONS = 5  # half-width of the window that a sample gives, in standard deviations of its rank


def top_k_segments(
    values: Tensor,
    bounds: Bounds,
    last_thresholds: Tensor | None = None,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Exact top-k in every segment (start, stop, k) of a vector [N] of numbers >= 0.

    Returns the boolean mask [N] and the threshold of each segment [segments]: its k-th largest
    value, infinity where k is 0. Segments ascend and do not overlap; what lies outside all of them
    is not selected. Ties go to the lower index. No gradient flows through the result.

    `allowed` [N] restricts the candidates; on other devices than a CPU every segment must have k
    of them. `last_thresholds` are those of an earlier call on similar values: they decide how fast
    the answer comes, never what it is.
    """
    for start, stop, k in bounds:
        if not 0 <= k <= stop - start:
            raise SettingError(f"cannot select {k} of the {stop - start} blocks of a segment.")
    with torch.no_grad():
        kernels = kernels_for(values)
        if kernels is not None:
            return kernels.top_k_segments(values, bounds, allowed)
        if values.device.type != "cpu" or torch.compiler.is_compiling():
            return top_k_reference(values, bounds, allowed)
        return _top_k_window(values, bounds, last_thresholds, allowed)


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


def top_k_reference(
    values: Tensor, bounds: Bounds, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`top_k_segments` of vectors [..., N] by a stable sort of each segment.

    Shapes are fixed and the host never waits, so that it can be compiled and captured.
    """
    if allowed is not None:
        values = torch.where(allowed, values, -1.0)  # below all that is allowed
    mask = torch.zeros_like(values, dtype=torch.bool)
    thresholds = []
    for start, stop, k in bounds:
        # Stable: of equal values the one with the lower index stays in front.
        ordered, index = values[..., start:stop].sort(dim=-1, descending=True, stable=True)
        mask[..., start:stop].scatter_(-1, index[..., :k], True)
        infinity = values.new_full(values.shape[:-1], torch.inf)
        thresholds.append(ordered[..., k - 1] if k else infinity)
    return mask, torch.stack(thresholds, -1)


def _top_k_window(
    values: Tensor, bounds: Bounds, last_thresholds: Tensor | None, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`top_k_segments` on a CPU, segment by segment.

    In numpy, whose comparisons, counts and `flatnonzero` on one thread beat torch on several.
    """
    exact = values.detach() if values.dtype == torch.float64 else values.detach().float()
    numbers = exact.numpy()
    usable = None if allowed is None else allowed.numpy()
    last = [0.0] * len(bounds) if last_thresholds is None else last_thresholds.tolist()
    mask = np.zeros(numbers.shape, dtype=np.bool_)
    thresholds = np.full(len(bounds), np.inf, dtype=numbers.dtype)
    for i, (start, stop, k) in enumerate(bounds):
        if k:
            part = slice(start, stop)
            free = None if usable is None else usable[part]
            thresholds[i] = _select(numbers[part], k, last[i], free, mask[part])
    return torch.from_numpy(mask), torch.from_numpy(thresholds).to(values.dtype)


def _select(
    values: np.ndarray, k: int, last: float, allowed: np.ndarray | None, out: np.ndarray
) -> float:
    """Write the mask of the `k` largest values into `out`; return the k-th largest.

    Counts what lies above a window of values and ranks only what lies inside it. A window that
    misses the threshold costs time: the next one is wider, and the last holds everything.
    """
    for low, high in _windows(values, k, last, allowed):
        np.greater(values, high, out=out)
        inside = values >= low
        if allowed is not None:
            out &= allowed
            inside &= allowed
        inside ^= out
        need = k - int(np.count_nonzero(out))  # so many of those inside are selected too
        if need < 1:
            continue
        index = np.flatnonzero(inside)
        if need <= len(index):
            return _take(values[index], index, need, out)
    raise SettingError(
        f"cannot select {k} of {len(values)} blocks: fewer are allowed, or some scores are NaN."
    )


def _take(window: np.ndarray, index: np.ndarray, need: int, out: np.ndarray) -> float:
    """Set `out` at the `need` largest of `window`, ties by lower index; return the smallest.

    `index` tells where the values of the window stand in the segment, ascending.
    """
    threshold = np.partition(window, len(window) - need)[len(window) - need]
    above = window > threshold
    out[index[above]] = True
    ties = index[window == threshold]
    out[ties[: need - int(np.count_nonzero(above))]] = True
    return float(threshold)


def _windows(
    values: np.ndarray, k: int, last: float, allowed: np.ndarray | None
) -> Iterator[tuple[np.floating, np.floating]]:
    """Ever wider windows (low, high) in which to look for the k-th largest value."""
    kind = values.dtype.type
    if len(values) > _SMALL:
        if 0.0 < last < np.inf:
            yield kind(last * (1 - _WINDOW)), kind(last * (1 + _WINDOW))
        step = len(values) // _SAMPLE + 1
        sample = values[::step] if allowed is None else values[::step][allowed[::step]]
        total = len(values) if allowed is None else int(np.count_nonzero(allowed))
        # Where the threshold is expected in the ordered sample: the number of sampled values above
        # it is about binomial, with the chance k / total.
        rank = len(sample) * (1 - k / max(total, 1))
        deviation = (len(sample) * k / max(total, 1) * (1 - k / max(total, 1))) ** 0.5
        slack = _DEVIATIONS * deviation + 5
        if 2 * slack < len(sample):
            first = int(max(rank - slack, 0))
            final = int(min(rank + slack, len(sample) - 1))
            ordered = np.partition(sample, (first, final))
            low = ordered[first] if rank > slack else kind(-np.inf)
            high = ordered[final] if rank + slack < len(sample) else kind(np.inf)
            yield low, high
    yield kind(-np.inf), kind(np.inf)
