"""Task similarity: small statistics of a task's inputs and the divergence between two tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.errors import TaskError

GRID = 8
GROUPS = 64
BINS = 64
HALVINGS = 16
VARIANCE_FLOOR = 1e-2
SMOOTHING = 0.5


@dataclass(frozen=True)
class Statistics:
    """What is kept of a task's samples: a diagonal Gaussian or a histogram, and its noise floor."""

    kind: Literal["gaussian", "histogram"]
    mean: Tensor
    variance: Tensor | None
    floor: float
    count: int


def summarise(samples: Tensor, *, tokens: bool, seed: int | Sequence[int | str] = 0) -> Statistics:
    """The statistics of raw inputs [n, ...]; `seed` (or key parts) draws the random halves."""
    if len(samples) < 2:
        raise TaskError(f"{len(samples)} samples were given; a divergence needs at least 2.")
    parts = (seed,) if isinstance(seed, int) else tuple(seed)
    features = _token_counts(samples) if tokens else _pool(samples)
    kind: Literal["gaussian", "histogram"] = "histogram" if tokens else "gaussian"
    mean, variance = _describe(features, kind)
    floors = []
    for i in range(HALVINGS):
        order = np.argsort(seeds.uniform(len(features), *parts, "halves", i), kind="stable")
        half = len(order) // 2
        one, two = torch.from_numpy(order[:half].copy()), torch.from_numpy(order[half:].copy())
        floors.append(_compare(_describe(features[one], kind), _describe(features[two], kind)))
    return Statistics(kind, mean, variance, sum(floors) / len(floors), len(samples))


def divergence(a: Statistics, b: Statistics) -> float:
    """The symmetrised KL divergence in units of the noise floor; about 1 for two like tasks."""
    if a.kind != b.kind or a.mean.shape != b.mean.shape:
        return inf
    floor = (a.floor + b.floor) / 2
    return _compare((a.mean, a.variance), (b.mean, b.variance)) / max(floor, 1e-12)


def _pool(samples: Tensor) -> Tensor:
    """Features [n, d]: images averaged to at most 8 x 8 per channel, vectors to 64 groups."""
    scaled = samples.float() / 255 if samples.dtype == torch.uint8 else samples.float()
    if scaled.ndim <= 2:
        flat = scaled.reshape(len(scaled), 1, -1)
        groups = min(GROUPS, flat.shape[-1])
        return torch.nn.functional.adaptive_avg_pool1d(flat, groups).flatten(1)
    for axis in range(2, scaled.ndim):
        moved = scaled.movedim(axis, -1)
        shape = moved.shape[:-1]
        size = min(GRID, moved.shape[-1])
        pooled = torch.nn.functional.adaptive_avg_pool1d(moved.reshape(1, -1, moved.shape[-1]), size)
        scaled = pooled.reshape(*shape, size).movedim(-1, axis)
    return scaled.flatten(1)


def _token_counts(samples: Tensor) -> Tensor:
    """Counts [n, 64] of hashed tokens."""
    hashed = (samples.flatten(1).long() * 0x9E3779B1 >> 16) % BINS
    return torch.zeros(len(samples), BINS).scatter_add_(1, hashed, torch.ones_like(hashed).float())


def _describe(features: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
    """Mean and variance, or smoothed frequencies, as numbers that float16 can hold."""
    if kind == "histogram":
        counts = features.sum(0) + SMOOTHING
        return (counts / counts.sum()).half().float(), None
    variance = features.var(0, correction=0)
    return features.mean(0).half().float(), variance.half().float()


def _compare(a: tuple[Tensor, Tensor | None], b: tuple[Tensor, Tensor | None]) -> float:
    """The symmetrised KL divergence, as a mean over dimensions."""
    (p, v), (q, w) = a, b
    if v is None or w is None:
        return float(((p - q) * (p / q).log()).sum() / p.numel())
    v, w = v + VARIANCE_FLOOR, w + VARIANCE_FLOOR
    gap = (p - q).square()
    return float(((v + gap) / w + (w + gap) / v - 2).mean() / 4)
