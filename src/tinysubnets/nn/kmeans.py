"""One-dimensional k-means, nearly optimal and deterministic: histogram, dynamic programme, Lloyd.

The values become a fine histogram, uniform in asinh(x / scale) so that tails cost few cells. Its
cells are merged into some hundred groups, dense as the cube root of the density, and dynamic
programming finds the best division of the groups for every k at once. Lloyd steps on the fine
histogram then move each border to where it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Atoms:
    """Ascending places that stand for the values, with cumulative counts and sums before each."""

    place: np.ndarray
    count: np.ndarray
    total: np.ndarray


def atoms(numbers: np.ndarray, cells: int, k: int) -> Atoms:
    """The values as at most `cells` atoms, or as themselves where that is as cheap or safer."""
    if len(numbers) > cells:
        sample = numbers[:: len(numbers) // cells + 1]
        middle = np.median(sample)
        ends = np.array([numbers.min(), numbers.max()]) - middle
        scale = np.median(np.abs(sample - middle)) or np.std(sample)
        scale = max(scale, np.float32(1e-12) * np.abs(ends).max(), np.float32(1e-30))
        low, high = np.arcsinh(ends / scale)
        curve = numbers - middle
        curve /= scale
        np.arcsinh(curve, out=curve)
        curve -= low
        curve *= np.float32((cells - 0.5) / max(high - low, 1e-30))
        np.clip(curve, 0, cells - 1, out=curve)
        cell = curve.astype(np.intp)
        count = np.bincount(cell, minlength=cells)
        used = count > 0
        if np.count_nonzero(used) >= 16 * k:
            total = np.bincount(cell, weights=numbers, minlength=cells)[used]
            count = count[used]
            return Atoms(np.maximum.accumulate(total / count), _sums(count), _sums(total))
    place, count = np.unique(numbers, return_counts=True)
    place = place.astype(np.float64)
    return Atoms(place, _sums(count), _sums(place * count))


def _sums(values: np.ndarray) -> np.ndarray:
    """Cumulative sums with a leading zero, in float64."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def borders(atoms: Atoms, bins: int) -> np.ndarray:
    """Where to cut the atoms into about `bins` groups, dense as density ** (1/3).

    The best centroids lie with that density, so that every cluster gets a like number of groups.
    """
    num = len(atoms.place)
    if num <= bins:
        return np.arange(num + 1)
    width = np.gradient(atoms.place)
    share = np.cbrt(np.diff(atoms.count) * width * width)
    fair = share.sum() / bins
    alone = np.flatnonzero(share >= fair)  # beside a gap: cut on both sides, but use up no more
    share = np.minimum(share, fair)
    level = _sums(share + 0.1 * share.mean())
    even = np.searchsorted(level, np.linspace(0, level[-1], bins + 1)[:-1])
    return np.unique(np.concatenate([even, alone, alone + 1, [num]]))


def divide(atoms: Atoms, borders: np.ndarray, k: int) -> list[np.ndarray]:
    """The best last border before each border, for 2, 3, ... k clusters, by dynamic programming.

    The error of a division is a constant minus the sum over clusters of (sum of values)^2 / count;
    that gain is maximised. The best last border ascends with the end, so it is found for ever
    finer sets of ends, each between the answers of its neighbors.
    """
    count = atoms.count[borders]
    total = atoms.total[borders] - count * (atoms.total[-1] / atoms.count[-1])
    num = len(borders)
    best = np.zeros(num)
    best[1:] = total[1:] ** 2 / count[1:]
    splits = []
    for _ in range(k - 1):
        best, split = _add_cluster(best, count, total)
        splits.append(split)
    return splits


def _add_cluster(
    best: np.ndarray, count: np.ndarray, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best gain up to each border with one more cluster, and where that cluster begins."""
    num = len(best)
    gain = np.zeros(num)
    split = np.zeros(num + 1, dtype=np.int64)
    split[num] = num - 1
    step = 1 << (num - 1).bit_length()
    while step > 1:
        step //= 2
        ends = np.arange(step, num, 2 * step)
        low = split[ends - step]
        size = np.minimum(split[np.minimum(ends + step, num)], ends - 1) - low + 1
        start = np.cumsum(size) - size
        end = np.repeat(ends, size)
        last = np.arange(len(end)) - np.repeat(start - low, size)
        value = total[end] - total[last]
        value *= value
        value /= count[end] - count[last]
        value += best[last]
        gain[ends] = np.maximum.reduceat(value, start)
        hit = np.flatnonzero(value == gain[end])[::-1]  # of equal ones the lowest is written last
        split[end[hit]] = last[hit]
    return gain, split


def centroids(atoms: Atoms, borders: np.ndarray, splits: list[np.ndarray], k: int) -> np.ndarray:
    """The cluster means of the best division into `k`."""
    end = len(borders) - 1
    cuts = [end]
    for split in splits[: k - 1][::-1]:
        end = int(split[end])
        cuts.append(end)
    cut = borders[np.unique([0, *cuts])]
    return np.diff(atoms.total[cut]) / np.diff(atoms.count[cut])


def lloyd(atoms: Atoms, centroids: np.ndarray, steps: int) -> np.ndarray:
    """Lloyd steps on the atoms until nothing changes; centroids without values are dropped."""
    old = np.zeros(0)
    for _ in range(steps):
        cut = np.searchsorted(atoms.place, (centroids[1:] + centroids[:-1]) / 2, side="right")
        if np.array_equal(cut, old):
            break
        old = cut
        cut = np.unique(np.concatenate([[0], cut, [len(atoms.place)]]))
        centroids = np.diff(atoms.total[cut]) / np.diff(atoms.count[cut])
    return centroids
