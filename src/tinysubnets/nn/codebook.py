"""Codebooks: the few values that weights are rounded to, fitted, assigned and looked up.

`fit` gives the codebook that is stored; `update_codebooks` those that training uses, for all
segments of a flat vector at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tinysubnets.errors import SettingError
from tinysubnets.nn import kmeans
from tinysubnets.nn.topk import kernels_for, spread

# --------------------------------------------------------------------------------------------------
# Codebooks: nearly optimal one-dimensional k-means, deterministic.
#
# `fit` makes a final codebook and `assign` its codes. In training `snap` puts each value of a flat
# vector on the nearest centroid of its segment; those centroids come from `refresh`.


_CELLS = 1 << 16  # cells of the fine histogram; up to so many values are their own cells
_LLOYD_STEPS = 30
_STEPS = 4096  # steps of the lookup table

Lookup = tuple[Tensor, Tensor, Tensor]  # start, steps per unit, centroid of each step


def fit(values: Tensor, k: int, *, bins: int | None = None) -> Tensor:
    """The codebook of a vector: sorted float32 centroids with nearly the least squared error.

    `k` centroids, or the distinct values themselves where there are no more than `k`. `bins` is the
    number of groups for the dynamic programme; by default enough for an error within 0.1 % of the
    optimum for k up to 32 and within 2 % for k up to 256.
    """
    return fit_many(values, [k], bins=bins)[k]


def fit_many(values: Tensor, ks: Sequence[int], *, bins: int | None = None) -> dict[int, Tensor]:
    """The codebooks of a vector for several sizes, from one run of the dynamic programme."""
    if min(ks) < 1:
        raise SettingError(f"codebook sizes {list(ks)} were asked for; a codebook needs k >= 1.")
    numbers = values.detach().flatten().to("cpu", torch.float32).numpy()
    if not len(numbers):
        raise SettingError("a codebook needs at least one value, and none was given.")
    if not np.isfinite(numbers).all():
        raise SettingError("a codebook needs finite values; some given are NaN or infinite.")
    top = max(ks)
    atoms = kmeans.atoms(numbers, _CELLS, top)
    borders = kmeans.borders(atoms, bins or min(512 if top <= 32 else 16 * top, 4096))
    splits = kmeans.divide(atoms, borders, min(top, len(borders) - 1))
    books = {}
    for k in ks:
        if len(atoms.place) <= k:
            centroids = atoms.place
        else:
            centroids = kmeans.lloyd(
                atoms, kmeans.centroids(atoms, borders, splits, k), _LLOYD_STEPS
            )
        books[k] = torch.from_numpy(np.unique(centroids.astype(np.float32)))
    return books


def assign(values: Tensor, centroids: Tensor) -> Tensor:
    """The index (int64) of the nearest of the sorted `centroids` [k], ties to the lower one."""
    return torch.bucketize(values.detach().contiguous(), _middles(centroids))


def quantize(values: Tensor, centroids: Tensor) -> Tensor:
    """Each value replaced by the nearest of the sorted `centroids` [k], ties to the lower one."""
    return centroids[assign(values, centroids)]


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


def nearest_centroid(
    values: Tensor,
    centroids: Tensor,
    segments: Sequence[tuple[int, int]],
    lookup: Lookup | None = None,
) -> Tensor:
    """Each value of each segment as the nearest centroid of that segment; forward only.

    Always exactly one of the segment's `centroids` [..., segments, k], found in a table over equal
    steps between the outermost borders: within half a step of a border it may be the neighbor,
    farther away than the nearest centroid by less than one step, that is 1/4096 of the spread
    (1/16384 for k > 32). Final codes come from `assign`. Outside the segments values stay.
    `lookup` is the table of these centroids, where it was made before.
    """
    values, size = values.detach(), values.shape[-1]
    flat = values.reshape(-1, size)
    low, rate, table = lookup_of(centroids.detach()) if lookup is None else lookup
    low, rate = (x.reshape(len(flat), len(segments)) for x in (low, rate))
    table = table.reshape(len(flat), len(segments), -1)
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return _snap_fixed(flat, low, rate, table, segments).reshape(values.shape)
    out = flat.float().clone()
    for row in range(len(flat)):
        for i, (start, stop) in enumerate(segments):
            step = (out[row, start:stop] - low[row, i]).mul_(rate[row, i])
            cell = step.clamp_(0, table.shape[-1] - 1).nan_to_num_(0).int()
            torch.index_select(table[row, i], 0, cell, out=out[row, start:stop])
    return out.reshape(values.shape).to(values.dtype)


def _middles(centroids: Tensor) -> Tensor:
    """The borders between neighbors, rounded down so that x <= border is exact in float32."""
    exact = (centroids[..., 1:].double() + centroids[..., :-1].double()) / 2
    border = exact.float()
    below = torch.nextafter(border, torch.full_like(border, -torch.inf))
    return torch.where(border.double() > exact, below, border)


def num_steps(k: int) -> int:
    """The length of the table for a codebook of `k` centroids."""
    return _STEPS if k <= 32 else 4 * _STEPS


def lookup_of(centroids: Tensor) -> Lookup:
    """The start, the steps per unit, and the centroid of each of many equal steps, per codebook.

    The first and the last step also stand for everything beyond.
    """
    steps = num_steps(centroids.shape[-1])
    border = _middles(centroids)
    if border.shape[-1] == 0:
        border = centroids
    low = border[..., :1]
    width, spare = border[..., -1:] - low, centroids[..., -1:] - centroids[..., :1]
    width = torch.where(width > 0, width, torch.where(spare > 0, spare, 1.0))
    rate = (steps - 2) / width
    low = low - 1 / rate
    cell = ((border - low) * rate + 0.5).long().clamp(0, steps - 1)
    ahead = torch.zeros(*cell.shape[:-1], steps, dtype=torch.int64, device=cell.device)
    ahead.scatter_add_(-1, cell, torch.ones_like(cell))
    code = ahead.cumsum(-1).clamp_max(centroids.shape[-1] - 1)
    return low[..., 0], rate[..., 0], centroids.gather(-1, code)


def _snap_fixed(
    flat: Tensor, low: Tensor, rate: Tensor, table: Tensor, segments: Sequence[tuple[int, int]]
) -> Tensor:
    """`nearest_centroid` in fixed shapes, for all segments at once."""
    size, steps = flat.shape[-1], table.shape[-1]
    slot = torch.arange(low.numel(), device=flat.device).reshape(low.shape) * steps
    step = (flat - spread(low, segments, size, 0)) * spread(rate, segments, size, 0)
    cell = step.clamp(0, steps - 1).nan_to_num(0).long() + spread(slot, segments, size, 0)
    inside = spread(torch.ones_like(slot), segments, size, 0).bool()
    return torch.where(inside, table.flatten()[cell], flat)


# --------------------------------------------------------------------------------------------------
# Codebooks in training: centroids of all segments of a flat vector at once, from histograms.


_TRAINING_CELLS = 1 << 13
_WARM_STEPS = 4  # Lloyd steps of a refresh from the previous centroids
_UNKNOWN = (
    1e-4,
    10.0,
)  # the mean and the largest magnitude to expect where no centroid tells of them


def update_codebooks(
    values: Tensor,
    weights: Tensor,
    segments: Sequence[tuple[int, int]],
    k: int,
    previous: Tensor | None = None,
) -> Tensor:
    """Training centroids [..., segments, k] of a flat vector [..., N], where `weights` is true.

    Optimal over a histogram, or, from `previous` centroids, a few Lloyd steps on it. Rounded like
    `round_centroids`, sorted; a segment with fewer than `k` values repeats its last centroid, an
    empty one has zeros. On a CPU only the chosen values are touched; elsewhere shapes are fixed and
    the host never waits, and values are only counted, so that the result is deterministic.
    """
    values, weights = values.detach(), weights.expand(values.shape)
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return _update_fixed(values, weights, segments, k, previous)
    table = values.reshape(-1, values.shape[-1]).float().numpy()
    chosen = weights.reshape(-1, values.shape[-1]).numpy()
    out = np.zeros((len(table), len(segments), k), dtype=np.float32)
    olds = None if previous is None else previous.detach().reshape(out.shape).double().numpy()
    for row, (numbers, keep) in enumerate(zip(table, chosen, strict=True)):
        for i, (start, stop) in enumerate(segments):
            part = numbers[start:stop][keep[start:stop]]
            part = part[np.isfinite(part)]
            if len(part):
                centroids = _train(part, k, None if olds is None else np.unique(olds[row, i]))
                out[row, i] = np.pad(centroids, (0, k - len(centroids)), mode="edge")
    return round_centroids(torch.from_numpy(out)).reshape(*values.shape[:-1], len(segments), k)


def _train(numbers: np.ndarray, k: int, old: np.ndarray | None) -> np.ndarray:
    """Training centroids of one segment on a CPU, from `old` ones while all of them are used."""
    atoms = kmeans.atoms(numbers, _TRAINING_CELLS, k)
    if len(atoms.place) <= k:
        return atoms.place
    if old is not None and len(old) == k:
        centroids = kmeans.lloyd(atoms, old, _WARM_STEPS)
        if len(centroids) == k:
            return centroids
    borders = kmeans.borders(atoms, max(256, 4 * k))
    splits = kmeans.divide(atoms, borders, min(k, len(borders) - 1))
    return kmeans.lloyd(atoms, kmeans.centroids(atoms, borders, splits, k), _WARM_STEPS)


def _update_fixed(
    values: Tensor,
    weights: Tensor,
    segments: Sequence[tuple[int, int]],
    k: int,
    previous: Tensor | None,
) -> Tensor:
    """`update_codebooks` in fixed shapes, for all segments at once."""
    flat, keep = (x.reshape(-1, values.shape[-1]) for x in (values.float(), weights))
    kernels = kernels_for(flat)
    old = None if previous is None else previous.detach().reshape(len(flat), len(segments), k)
    measure = _extent if kernels is None else kernels.extent
    tally = _histogram if kernels is None else kernels.histogram
    extent = measure(flat, keep, segments) if old is None else _extent_of(old)
    count, total = tally(flat, keep, segments, max(256, 4 * k), extent)
    divide, settle = _divide, _settle
    if kernels is not None and k <= 32:
        divide, settle = kernels.divide, kernels.settle
    centroids = divide(count, total, k) if old is None else settle(count, total, old, _WARM_STEPS)
    return centroids.reshape(*values.shape[:-1], len(segments), k)


def _extent(
    flat: Tensor, keep: Tensor, segments: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """The mean and the largest magnitude [rows, segments] of the kept values."""
    sizes = torch.where(keep, flat, 0.0).abs()
    parts = [sizes[:, start:stop] for start, stop in segments]
    amounts = torch.stack([keep[:, start:stop].sum(-1) for start, stop in segments], -1)
    scale = torch.stack([part.sum(-1) for part in parts], -1) / amounts.clamp_min(1)
    reach = torch.stack([part.amax(-1) for part in parts], -1)
    return scale.clamp_min(1e-30), reach.clamp_min(1e-30)


def _extent_of(centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Much the same from the last centroids, with room for values to have moved outwards.

    A codebook that was empty has zeros, which say nothing of values that come later.
    """
    sizes = centroids.abs()
    scale, reach = sizes.mean(-1), 2 * sizes.amax(-1)
    known = reach > 1e-30
    return torch.where(known, scale, _UNKNOWN[0]), torch.where(known, reach, _UNKNOWN[1])


def _histogram(
    flat: Tensor,
    keep: Tensor,
    segments: Sequence[tuple[int, int]],
    bins: int,
    extent: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Counts and sums [rows, segments, bins] of the kept values, bins uniform in asinh(x / scale).

    Each bin has 64 cells, and a value counts as the middle of its cell.
    """
    cells = 64 * bins
    counts = _count_cells(flat, keep, segments, cells, extent).double()
    scale, reach = (x.double()[..., None] for x in extent)
    middles = torch.arange(cells, device=flat.device, dtype=torch.float64) + (0.5 - cells / 2)
    places = scale * torch.sinh(middles * torch.asinh(reach / scale) / (cells / 2))
    pair = torch.stack([counts, counts * places]).unflatten(-1, (bins, 64)).sum(-1)
    return pair[0], pair[1]


def _count_cells(
    flat: Tensor,
    keep: Tensor,
    segments: Sequence[tuple[int, int]],
    cells: int,
    extent: tuple[Tensor, Tensor],
) -> Tensor:
    """How many kept values lie in each cell [rows, segments, cells].

    Dropped values are counted in spare cells, many of them: one for all would be a bottleneck.
    """
    size, num = flat.shape[-1], len(flat) * len(segments)
    scale, reach = extent
    rate = cells / 2 / torch.asinh(reach / scale)
    slot = torch.arange(num, device=flat.device).reshape(len(flat), -1)
    wide = [spread(x, segments, size, 1) for x in (1 / scale, rate)]
    kept = torch.where(keep, flat, 0.0)
    place = (torch.asinh(kept * wide[0]) * wide[1] + cells / 2).long().clamp(0, cells - 1)
    spare = num * cells + torch.arange(size, device=flat.device) % 4096
    inside = keep & spread(torch.ones_like(slot), segments, size, 0).bool()
    cell = torch.where(inside, place + spread(slot * cells, segments, size, 0), spare).flatten()
    counts = torch.zeros(num * cells + 4096, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, cell, torch.ones_like(cell))
    return counts[: num * cells].reshape(len(flat), len(segments), cells)


def _divide(count: Tensor, total: Tensor, k: int) -> Tensor:
    """The centroids of the best division of the bins into `k`."""
    count, total = pad(count.cumsum(-1), (1, 0)), pad(total.cumsum(-1), (1, 0))
    # gain[..., j, i] of the bins from i to j: along the last axis a maximum is fastest.
    gain = (total[..., None] - total[..., None, :]).square()
    gain = (gain / (count[..., None] - count[..., None, :]).clamp_min(1)).float()
    above = torch.ones(gain.shape[-2:], dtype=torch.bool, device=gain.device).triu(1)
    gain = gain.masked_fill(above, -torch.inf)
    best, splits = gain[..., 0], []
    for _ in range(k - 1):
        best, split = (best[..., None, :] + gain).max(-1)
        splits.append(split)
    cuts = [torch.full_like(count[..., :1], count.shape[-1] - 1, dtype=torch.int64)]
    for split in splits[::-1]:
        cuts.append(split.gather(-1, cuts[-1]))
    cuts.append(torch.zeros_like(cuts[0]))
    cut = torch.cat(cuts[::-1], -1)
    return _sorted(*_means(count, total, cut))


def _settle(count: Tensor, total: Tensor, centroids: Tensor, steps: int) -> Tensor:
    """The centroids after Lloyd steps on the bins; meanwhile unused ones stay where they are."""
    for _ in range(steps):
        means, used = _lloyd_fixed(count, total, centroids)
        centroids = torch.where(used, means, centroids).sort(-1).values
    return _sorted(means, used)


def _lloyd_fixed(count: Tensor, total: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The means after one Lloyd step on the bins, and which of them hold values."""
    places = torch.where(count > 0, total / count.clamp_min(1), -torch.inf).cummax(-1).values
    border = (centroids[..., 1:] + centroids[..., :-1]).double() / 2
    cut = torch.searchsorted(places, border, right=True)
    ends = torch.full_like(cut[..., :1], count.shape[-1])
    cut = torch.cat([torch.zeros_like(ends), cut, ends], -1)
    return _means(pad(count.cumsum(-1), (1, 0)), pad(total.cumsum(-1), (1, 0)), cut)


def _means(count: Tensor, total: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
    """The mean between neighboring cuts of cumulative counts and sums, and where one exists."""
    amount = count.gather(-1, cut).diff(dim=-1)
    return (total.gather(-1, cut).diff(dim=-1) / amount.clamp_min(1)).float(), amount > 0


def _sorted(means: Tensor, used: Tensor) -> Tensor:
    """Means as centroids: sorted, rounded, the last one in the place of those without values."""
    centroids = torch.where(used, means, torch.inf).sort(-1).values
    last = centroids.masked_fill(centroids.isinf(), -torch.inf).amax(-1, keepdim=True)
    return round_centroids(torch.minimum(centroids, last).masked_fill(last.isinf(), 0.0))
