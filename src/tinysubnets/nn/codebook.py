"""Codebooks: the few values that weights are rounded to, fitted, assigned and looked up.

`fit` makes the codebook that is stored, and `assign` its codes. In training `update_codebooks` fits
those of all segments of a flat vector, from time to time, and `nearest_centroid` puts each value on
a centroid of its segment, in every step, by a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import SettingError
from tinysubnets.nn import kmeans
from tinysubnets.nn.topk import kernels_for

Segments = Sequence[tuple[int, int]]  # (start, stop) of each part of a vector with a codebook

# Cells of the histogram, up to which every value has one of its own, and Lloyd steps on it: for the
# codebook that is stored, and for those of training, which are to be quick.
_CELLS, _LLOYD_STEPS = 1 << 16, 30
_TRAINING_CELLS, _TRAINING_LLOYD_STEPS = 1 << 13, 4
_KERNEL_CENTROIDS = 32  # the kernels hold a codebook in registers: no more than 5 bits fit

# The codebook that is stored.


def fit(values: Tensor, k: int) -> Tensor:
    """The codebook of a vector: sorted float32 centroids with nearly the least squared error.

    `k` centroids, or the distinct values themselves where there are no more than `k`. The error is
    within 0.1 % of the optimum for k up to 32 and within 2 % for k up to 256.
    """
    if k < 1:
        raise SettingError(f"a codebook of {k} centroids was asked for; it needs k >= 1.")
    numbers = values.detach().flatten().to("cpu", torch.float32).numpy()
    if not len(numbers):
        raise SettingError("a codebook needs at least one value, and none was given.")
    if not np.isfinite(numbers).all():
        raise SettingError("a codebook needs finite values; some given are NaN or infinite.")
    cells = kmeans.histogram(numbers, _CELLS, k)
    centroids = cells.means
    if len(cells) > k:
        # So many groups of cells that the error stays within the bounds above.
        split = kmeans.optimal_split(cells, k, 512 if k <= 32 else min(16 * k, 4096))
        centroids = kmeans.lloyd(cells, split, _LLOYD_STEPS)
    return torch.from_numpy(np.unique(centroids.astype(np.float32)))


def assign(values: Tensor, centroids: Tensor) -> Tensor:
    """The index (int64) of the nearest of the sorted `centroids` [k], ties to the lower one."""
    return torch.bucketize(values.detach().contiguous(), _borders(centroids))


def _borders(centroids: Tensor) -> Tensor:
    """The middles [..., k - 1] between neighboring centroids [..., k], in float32.

    Rounded down, so that x <= border is exact for every float32 x.
    """
    exact = (centroids[..., 1:].double() + centroids[..., :-1].double()) / 2
    border = exact.float()
    below = torch.nextafter(border, torch.full_like(border, -torch.inf))
    return torch.where(border.double() > exact, below, border)


def round_centroids(centroids: Tensor) -> Tensor:
    """Sorted centroids [..., k] rounded to float16 where that loses next to nothing; float32.

    A codebook is rounded as a whole if every error is at most 2**-11 of its spread and distinct
    centroids stay distinct; else it stays as it is.
    """
    centroids = centroids.float()
    half = centroids.half().float()
    spread = centroids[..., -1:] - centroids[..., :1]
    fine = half.isfinite() & ((half - centroids).abs() <= spread * 2.0**-11)
    merged = (half[..., 1:] == half[..., :-1]) & (centroids[..., 1:] != centroids[..., :-1])
    whole = fine.all(-1, keepdim=True) & ~merged.any(-1, keepdim=True)
    return torch.where(whole, half, centroids)


# Codebooks in training.


def update_codebooks(
    values: Tensor, kept: Tensor, segments: Segments, k: int, previous: Tensor | None = None
) -> Tensor:
    """Training centroids [segments, k] of those values of a flat vector [N] that are `kept` [N].

    Optimal over a histogram or, from `previous` centroids, a few Lloyd steps on it. Rounded like
    `round_centroids`, sorted; a segment with fewer than `k` values repeats its last centroid, an
    empty one has zeros. By kernels where `has_codebook_kernels`, else by `kmeans` on the host, for
    which a device has to wait.
    """
    values = values.detach()
    if has_codebook_kernels(values, k):
        kernels = kernels_for(values)
        assert kernels is not None
        return kernels.update_codebooks(values, kept, segments, k, previous, _TRAINING_LLOYD_STEPS)
    numbers, chosen = values.float().cpu().numpy(), kept.cpu().numpy()
    last = None if previous is None else previous.detach().double().cpu().numpy()
    out = np.zeros((len(segments), k), dtype=np.float32)
    for i, (start, stop) in enumerate(segments):
        own = numbers[start:stop][chosen[start:stop]]
        own = own[np.isfinite(own)]
        if len(own):
            centroids = _training_centroids(own, k, None if last is None else np.unique(last[i]))
            out[i] = np.pad(centroids, (0, k - len(centroids)), mode="edge")
    return round_centroids(torch.from_numpy(out)).to(values.device)


def has_codebook_kernels(values: Tensor, k: int) -> bool:
    """Whether `update_codebooks` runs on the device alone, so that a CUDA graph can hold it."""
    return kernels_for(values) is not None and k <= _KERNEL_CENTROIDS


def _training_centroids(values: np.ndarray, k: int, previous: np.ndarray | None) -> np.ndarray:
    """Training centroids of one segment, from `previous` ones while all of them are used."""
    cells = kmeans.histogram(values, _TRAINING_CELLS, k)
    if len(cells) <= k:
        return cells.means
    if previous is not None and len(previous) == k:
        centroids = kmeans.lloyd(cells, previous, _TRAINING_LLOYD_STEPS)
        if len(centroids) == k:
            return centroids
    split = kmeans.optimal_split(cells, k, max(256, 4 * k))
    return kmeans.lloyd(cells, split, _TRAINING_LLOYD_STEPS)


class LookupTable(NamedTuple):
    """The centroid of each of many equal steps, per codebook: rounding without a search.

    The step of a value x is (x - low) * rate, cut to an integer from 0 to steps - 1; the first
    and the last step also stand for everything beyond.
    """

    low: Tensor  # [...]: where the first step begins
    rate: Tensor  # [...]: steps per unit
    centroids: Tensor  # [..., steps]: what values in that step are rounded to


def num_steps(k: int) -> int:
    """The length of the lookup table for a codebook of `k` centroids."""
    return 4096 if k <= 32 else 16384


def lookup_table(centroids: Tensor) -> LookupTable:
    """The lookup table of sorted centroids [..., k]."""
    steps = num_steps(centroids.shape[-1])
    border = _borders(centroids)
    if border.shape[-1] == 0:  # k is 1: one centroid for all
        border = centroids
    # The borders span steps 1 to steps - 1; of equal ones the centroids' distance is taken, or 1.
    low = border[..., :1]
    width, spare = border[..., -1:] - low, centroids[..., -1:] - centroids[..., :1]
    width = torch.where(width > 0, width, torch.where(spare > 0, spare, 1.0))
    rate = (steps - 2) / width
    low = low - 1 / rate
    # The code of a step is the number of borders up to it, each border being at its nearest step.
    step = ((border - low) * rate + 0.5).long().clamp(0, steps - 1)
    passed = torch.zeros(*step.shape[:-1], steps, dtype=torch.int64, device=step.device)
    passed.scatter_add_(-1, step, torch.ones_like(step))
    code = passed.cumsum(-1).clamp_max(centroids.shape[-1] - 1)
    return LookupTable(low[..., 0], rate[..., 0], centroids.gather(-1, code))


def nearest_centroid(values: Tensor, table: LookupTable, segments: Segments) -> Tensor:
    """Each value of a flat vector [N] as the nearest centroid of its segment; forward only.

    The segments cover the vector, and `table` has one row for each. The result is always exactly
    one of the segment's centroids: within half a step of a border it may be the neighbor, farther
    away than the nearest centroid by less than one step, that is 1/4096 of the spread (1/16384 for
    k > 32). Final codes come from `assign`.
    """
    values = values.detach()
    if (kernels := kernels_for(values)) is not None:
        return kernels.nearest_centroid(values, table, segments)
    out = torch.empty_like(values, dtype=torch.float32)
    for i, (start, stop) in enumerate(segments):
        position = (values[start:stop].float() - table.low[i]).mul_(table.rate[i])
        step = position.clamp_(0, table.centroids.shape[-1] - 1).nan_to_num_(0).int()
        torch.index_select(table.centroids[i], 0, step, out=out[start:stop])
    return out.to(values.dtype)
