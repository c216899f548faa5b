"""Codebooks: optimal one-dimensional k-means by a histogram and dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fit(values: Tensor, k: int, *, bins: int | None = None) -> Tensor:
    """The codebook of `values`: at most `k` sorted float32 centres with nearly the least error."""
    return fit_many(values, [k], bins=bins)[k]


def fit_many(values: Tensor, ks: Sequence[int], *, bins: int | None = None) -> dict[int, Tensor]:
    """The codebooks of `values` for several sizes, from one run of the dynamic programme."""
    ordered = values.detach().to("cpu", torch.float64).flatten().sort().values
    return {k: _lloyd(ordered, _quantile_dp(ordered, k, bins or 512)) for k in ks}


def assign(values: Tensor, centres: Tensor) -> Tensor:
    """The index of the nearest of the sorted `centres`, ties to the lower one; int64."""
    return torch.bucketize(values, (centres[1:] + centres[:-1]) / 2)


def quantize(values: Tensor, centres: Tensor) -> Tensor:
    """Each value replaced by its nearest centre."""
    return centres[assign(values, centres)]


def round_centres(centres: Tensor) -> Tensor:
    """Centres rounded to float16 where that loses next to nothing, else unchanged; float32."""
    centres = centres.float()
    half = centres.half().float()
    spread = centres[..., -1:] - centres[..., :1]
    close = ((half - centres).abs() <= spread * 2.0**-11).all(-1, keepdim=True)
    merged = (half[..., 1:] == half[..., :-1]) & (centres[..., 1:] != centres[..., :-1])
    fine = close & half.isfinite().all(-1, keepdim=True) & ~merged.any(-1, keepdim=True)
    return torch.where(fine, half, centres)


def refresh(
    values: Tensor,
    weights: Tensor,
    segments: Sequence[tuple[int, int]],
    k: int,
    previous: Tensor | None = None,
) -> Tensor:
    """Training centres [..., L, K] of every segment, from the values where `weights` is true."""
    lead = values.shape[:-1]
    flat, chosen = values.reshape(-1, values.shape[-1]), weights.reshape(-1, values.shape[-1])
    rows = []
    for row, keep in zip(flat, chosen, strict=True):
        for start, stop in segments:
            part = row[start:stop][keep[start:stop]]
            centres = fit(part, k) if part.numel() else torch.zeros(1)
            rows.append(torch.cat([centres, centres[-1:].expand(k - centres.numel())]))
    return round_centres(torch.stack(rows)).reshape(*lead, len(segments), k).to(values.device)


def snap(values: Tensor, centres: Tensor, segments: Sequence[tuple[int, int]]) -> Tensor:
    """Each value of each segment replaced by the nearest centre of that segment."""
    out = values.detach().clone()
    lead = values.shape[:-1]
    for i, (start, stop) in enumerate(segments):
        table = centres[..., i, :].contiguous()
        middle = (table[..., 1:] + table[..., :-1]) / 2
        part = values.detach()[..., start:stop].contiguous()
        code = torch.searchsorted(middle.expand(*lead, -1).contiguous(), part)
        out[..., start:stop] = table.expand(*lead, -1).gather(-1, code)
    return out


def _quantile_dp(ordered: Tensor, k: int, bins: int) -> Tensor:
    """Start centres: the exact optimum over `bins` groups of the sorted values."""
    distinct = ordered.unique_consecutive()
    if distinct.numel() <= k:
        return distinct
    scale = ordered.std().clamp_min(1e-30)
    edge = torch.asinh(ordered[[0, -1]] / scale)
    edges = torch.sinh(torch.linspace(float(edge[0]), float(edge[1]), bins + 1, dtype=ordered.dtype))
    cut = torch.searchsorted(ordered, edges * scale).clamp(0, ordered.numel())
    cut[0], cut[-1] = 0, ordered.numel()
    total = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])[cut]
    square = torch.cat([ordered.new_zeros(1), ordered.square().cumsum(0)])[cut]
    count = cut.to(ordered.dtype)

    def cost(table: Tensor) -> Tensor:
        return table[None, :] - table[:, None]

    spread = cost(square) - cost(total).square() / cost(count).clamp_min(1)
    spread = torch.where(torch.ones_like(spread).triu().bool(), spread.clamp_min(0), torch.inf)
    best, splits = spread[0], []
    for _ in range(k - 1):
        best, split = (best[:, None] + spread).min(0)
        splits.append(split)
    end, means = bins, []
    for split in reversed(splits):
        start = int(split[end])
        means.append((start, end))
        end = start
    means.append((0, end))
    return torch.stack([(total[b] - total[a]) / (count[b] - count[a]) for a, b in means[::-1] if cut[b] > cut[a]])


def _lloyd(ordered: Tensor, centres: Tensor, steps: int = 2) -> Tensor:
    """Full Lloyd steps on sorted values."""
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    for _ in range(steps):
        cut = torch.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        cut = torch.cat([cut.new_zeros(1), cut, cut.new_full((1,), ordered.numel())])
        count = cut.diff()
        centres = torch.where(count > 0, sums[cut].diff() / count.clamp_min(1), centres)
    return centres.float().unique()
