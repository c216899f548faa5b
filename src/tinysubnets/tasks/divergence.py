"""Task similarity: small statistics of a task's inputs and the divergence between two tasks.

A task is summed up by a diagonal Gaussian over pooled inputs or a histogram over hashed tokens. The
divergence is the symmetrized Kullback-Leibler divergence, as a mean over dimensions, in units of
what two samples of one task show by chance: about 1 means "as alike as one task is to itself".
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d
from torch.utils.weak import WeakTensorKeyDictionary

from tinysubnets import seeds
from tinysubnets.errors import TaskError
from tinysubnets.tasks.checks import is_tokens

GRID = 8  # cells per spatial axis of an image
GROUPS = 64  # groups of a vector
BINS = 64  # bins for hashed tokens
HALVINGS = 16  # random halvings that the noise floor is averaged over
VARIANCE_FLOOR = 0.05  # share of the typical variance that every variance is raised by
SMOOTHING = 0.5  # added to every count of a histogram
LARGEST_HALF = 65504.0

Kind = Literal["gaussian", "histogram"]
Description = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """What is kept of a task's samples: their distribution and its noise floor.

    `mean` holds the means of a Gaussian or the probabilities of a histogram; it and `variance` are
    float32 tensors of numbers that float16 can hold. `floor` is the divergence to expect between
    two samples of this size from one source: half the mean divergence between random halves,
    because a half has twice the sampling noise.
    """

    kind: Kind
    mean: Tensor
    variance: Tensor | None
    floor: float
    count: int


# Statistics of kept samples, by the tensor that holds them and the seed: every later task asks.
_SUMMARIES: MutableMapping[Tensor, dict[int, InputStatistics]] = WeakTensorKeyDictionary()


def summarize(
    samples: Tensor, *, tokens: bool, seed: int | Sequence[int | str] = 0
) -> InputStatistics:
    """The statistics of raw inputs [n, ...]; the path `seed` draws the random halves.

    Bytes count as fractions of 255. Images [n, channels, ...] are averaged to at most 8 cells per
    spatial axis, vectors to at most 64 groups; tokens are counted in 64 hashed bins.
    """
    if len(samples) < 2:
        raise TaskError(
            f"a task cannot be compared by {len(samples)} samples: give at least 2,"
            " or keep no task memory."
        )
    path = (seed,) if isinstance(seed, int) else tuple(seed)
    kind: Kind = "histogram" if tokens else "gaussian"
    features = _token_counts(samples.cpu()) if tokens else _pool(samples.cpu())
    half, noise = len(features) // 2, 0.0
    for i in range(HALVINGS):
        ranks = seeds.uniform(len(features), *path, "half", i)
        order = torch.from_numpy(np.argsort(ranks, kind="stable"))
        one, other = features[order[:half]], features[order[half:]]
        noise += float(_compare(_describe(one, kind), _describe(other, kind)))
    return InputStatistics(kind, *_describe(features, kind), noise / HALVINGS / 2, len(samples))


def statistics_of(memory: InputStatistics | Tensor, seed: int) -> InputStatistics:
    """The statistics that a task's memory is or gives.

    Those of samples are computed once, for as long as these live.
    """
    if isinstance(memory, InputStatistics):
        return memory
    known = _SUMMARIES.setdefault(memory, {})
    if seed not in known:
        known[seed] = summarize(memory, tokens=is_tokens(memory), seed=(seed, "halves"))
    return known[seed]


def divergences(a: InputStatistics, others: Sequence[InputStatistics]) -> list[float]:
    """The divergence of one task from each of the others, in units of their noise floors.

    All of one shape are compared at once; infinite where shapes differ.
    """
    out = [inf] * len(others)
    alike = [i for i, b in enumerate(others) if a.kind == b.kind and a.mean.shape == b.mean.shape]
    if not alike:
        return out
    mean = torch.stack([others[i].mean for i in alike])
    variances = [v for i in alike if (v := others[i].variance) is not None]
    spread = torch.stack(variances) if a.variance is not None else None
    floors = torch.tensor([others[i].floor for i in alike], dtype=torch.float64)
    unit = ((a.floor + floors) / 2).clamp_min(1e-12)
    found = _compare((a.mean, a.variance), (mean, spread)) / unit
    for i, value in zip(alike, found.tolist(), strict=True):
        out[i] = value
    return out


def _pool(samples: Tensor) -> Tensor:
    """Features [n, dimensions]: averages over cells, with large numbers drawn together.

    x becomes 2 (sqrt(1 + |x|) - 1) with its sign: the same near 0, yet squares of unscaled columns
    still fit in float16.
    """
    cells = samples.double() / (255 if samples.dtype == torch.uint8 else 1)
    if cells.ndim <= 2:
        cells, sizes = cells.reshape(len(cells), 1, -1), [GROUPS]
    else:
        sizes = [GRID] * (cells.ndim - 2)
    for axis, size in enumerate(sizes, start=2):
        line = cells.movedim(axis, -1)
        if line.shape[-1] > size:
            pooled = adaptive_avg_pool1d(line.reshape(1, -1, line.shape[-1]), size)
            cells = pooled.reshape(*line.shape[:-1], size).movedim(-1, axis)
    flat = cells.flatten(1)
    return flat.sign() * 2 * ((1 + flat.abs()).sqrt() - 1)


def _token_counts(samples: Tensor) -> Tensor:
    """Counts [n, 64] of each sample's tokens in hashed bins."""
    hashed = (samples.long().reshape(len(samples), -1) * 0x9E3779B1 >> 16) % BINS
    counts = torch.zeros(len(samples), BINS, dtype=torch.float64)
    return counts.scatter_add_(1, hashed, torch.ones_like(hashed, dtype=torch.float64))


def _describe(features: Tensor, kind: Kind) -> Description:
    """Means and variances, or smoothed probabilities, as numbers that float16 can hold."""
    if kind == "histogram":
        counts = features.sum(0) + SMOOTHING
        return _half(counts / counts.sum()).clamp_min(2.0**-24), None
    return _half(features.mean(0)), _half(features.var(0, correction=0))


def _half(values: Tensor) -> Tensor:
    """Rounded to the nearest finite float16."""
    return values.clamp(-LARGEST_HALF, LARGEST_HALF).half().float()


def _compare(a: Description, b: Description) -> Tensor:
    """The symmetrized Kullback-Leibler divergence, as a mean over dimensions, float64 [...].

    Descriptions are [..., dimensions] and broadcast. Variances are raised by a share of the
    dimension's and of the typical variance of both tasks: a pixel that never changes must not
    decide alone, whatever the unit of the inputs.
    """
    (p, v), (q, w) = ((m.double(), None if s is None else s.double()) for m, s in (a, b))
    if v is None or w is None:
        return ((p - q) * (p / q).log()).mean(-1) / 2
    pooled = (v + w) / 2
    raised = VARIANCE_FLOOR * (pooled + pooled.median(-1, keepdim=True).values) + 1e-12
    v, w, gap = v + raised, w + raised, (p - q).square()
    return ((v + gap) / w + (w + gap) / v - 2).mean(-1) / 4
