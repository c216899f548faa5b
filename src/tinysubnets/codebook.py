"""Codebooks: nearly optimal one-dimensional k-means, deterministic.

`fit` makes a final codebook and `assign` its codes. In training `snap` puts each value of a flat
vector on the nearest centre of its segment; those centres come from `refresh`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinysubnets import kmeans
from tinysubnets.errors import SettingError
from tinysubnets.masks import spread

_CELLS = 1 << 16  # cells of the fine histogram; up to so many values are their own cells
_LLOYD_STEPS = 30
_STEPS = 4096  # steps of the lookup table

Lookup = tuple[Tensor, Tensor, Tensor]  # start, steps per unit, centre of each step


def fit(values: Tensor, k: int, *, bins: int | None = None) -> Tensor:
    """The codebook of a vector: sorted float32 centres with nearly the least squared error.

    `k` centres, or the distinct values themselves where there are no more than `k`. `bins` is the
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
            centres = atoms.place
        else:
            centres = kmeans.lloyd(atoms, kmeans.centres(atoms, borders, splits, k), _LLOYD_STEPS)
        books[k] = torch.from_numpy(np.unique(centres.astype(np.float32)))
    return books


def assign(values: Tensor, centres: Tensor) -> Tensor:
    """The index (int64) of the nearest of the sorted `centres` [k], ties to the lower one."""
    return torch.bucketize(values.detach().contiguous(), _middles(centres))


def quantize(values: Tensor, centres: Tensor) -> Tensor:
    """Each value replaced by the nearest of the sorted `centres` [k], ties to the lower one."""
    return centres[assign(values, centres)]


def round_centres(centres: Tensor) -> Tensor:
    """Sorted centres [..., k] rounded to float16 where that loses next to nothing; float32.

    A codebook is rounded as a whole if every error is at most 2**-11 of its spread and distinct
    centres stay distinct; else it stays as it is.
    """
    centres = centres.float()
    half = centres.half().float()
    spread = centres[..., -1:] - centres[..., :1]
    fine = half.isfinite() & ((half - centres).abs() <= spread * 2.0**-11)
    merged = (half[..., 1:] == half[..., :-1]) & (centres[..., 1:] != centres[..., :-1])
    whole = fine.all(-1, keepdim=True) & ~merged.any(-1, keepdim=True)
    return torch.where(whole, half, centres)


def snap(
    values: Tensor,
    centres: Tensor,
    segments: Sequence[tuple[int, int]],
    lookup: Lookup | None = None,
) -> Tensor:
    """Each value of each segment as the nearest centre of that segment; forward only.

    Always exactly one of the segment's `centres` [..., segments, k], found in a table over equal
    steps between the outermost borders: within half a step of a border it may be the neighbour,
    farther away than the nearest centre by less than one step, that is 1/4096 of the spread
    (1/16384 for k > 32). Final codes come from `assign`. Outside the segments values stay.
    `lookup` is the table of these centres, where it was made before.
    """
    values, size = values.detach(), values.shape[-1]
    flat = values.reshape(-1, size)
    low, rate, table = lookup_of(centres.detach()) if lookup is None else lookup
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


def _middles(centres: Tensor) -> Tensor:
    """The borders between neighbours, rounded down so that x <= border is exact in float32."""
    exact = (centres[..., 1:].double() + centres[..., :-1].double()) / 2
    border = exact.float()
    below = torch.nextafter(border, torch.full_like(border, -torch.inf))
    return torch.where(border.double() > exact, below, border)


def num_steps(k: int) -> int:
    """The length of the table for a codebook of `k` centres."""
    return _STEPS if k <= 32 else 4 * _STEPS


def lookup_of(centres: Tensor) -> Lookup:
    """The start, the steps per unit, and the centre of each of many equal steps, per codebook.

    The first and the last step also stand for everything beyond.
    """
    steps = num_steps(centres.shape[-1])
    border = _middles(centres)
    if border.shape[-1] == 0:
        border = centres
    low = border[..., :1]
    width, spare = border[..., -1:] - low, centres[..., -1:] - centres[..., :1]
    width = torch.where(width > 0, width, torch.where(spare > 0, spare, 1.0))
    rate = (steps - 2) / width
    low = low - 1 / rate
    cell = ((border - low) * rate + 0.5).long().clamp(0, steps - 1)
    ahead = torch.zeros(*cell.shape[:-1], steps, dtype=torch.int64, device=cell.device)
    ahead.scatter_add_(-1, cell, torch.ones_like(cell))
    code = ahead.cumsum(-1).clamp_max(centres.shape[-1] - 1)
    return low[..., 0], rate[..., 0], centres.gather(-1, code)


def _snap_fixed(
    flat: Tensor, low: Tensor, rate: Tensor, table: Tensor, segments: Sequence[tuple[int, int]]
) -> Tensor:
    """`snap` in fixed shapes, for all segments at once."""
    size, steps = flat.shape[-1], table.shape[-1]
    slot = torch.arange(low.numel(), device=flat.device).reshape(low.shape) * steps
    step = (flat - spread(low, segments, size, 0)) * spread(rate, segments, size, 0)
    cell = step.clamp(0, steps - 1).nan_to_num(0).long() + spread(slot, segments, size, 0)
    inside = spread(torch.ones_like(slot), segments, size, 0).bool()
    return torch.where(inside, table.flatten()[cell], flat)
