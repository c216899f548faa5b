"""One-dimensional k-means, nearly optimal and deterministic: histogram, optimal split, Lloyd.

The values become a fine histogram, uniform in asinh(x / scale) so that tails cost few cells. Its
cells are merged into some hundred groups, dense as the cube root of the density, and dynamic
programming finds the optimal split of the groups into k clusters. Lloyd steps on the fine histogram
then move each border to where it belongs.

This is the reference, in numpy on a CPU; `kernels/kmeans.py` has the same steps for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Histogram:
    """The values as n cells in ascending order: their means, and cumulative counts and sums.

    `means` [n] has the mean of the values in each cell; `counts` and `sums` [n + 1] have the number
    and the sum of all values before each cell, and of all values at the end. So the cells from i to
    below j hold counts[j] - counts[i] values with the sum sums[j] - sums[i]. All are float64.
    """

    means: np.ndarray
    counts: np.ndarray
    sums: np.ndarray

    def __len__(self) -> int:
        return len(self.means)

    def centroids(self, cuts: np.ndarray) -> np.ndarray:
        """The means of the clusters between neighboring `cuts`, ascending positions of cells."""
        return np.diff(self.sums[cuts]) / np.diff(self.counts[cuts])


def histogram(values: np.ndarray, num_cells: int, k: int) -> Histogram:
    """The histogram of finite values (float32 [n], n >= 1) with at most `num_cells` cells.

    Every distinct value has a cell of its own where that costs no more, and where `k` centroids
    would find fewer than 16 cells each.
    """
    if len(values) > num_cells:
        # The scale of asinh is the median distance from the median, both of an even sample; where
        # that is 0 the deviation, and never so small that the quotients overflow.
        sample = values[:: len(values) // num_cells + 1]
        middle = np.median(sample)
        ends = np.array([values.min(), values.max()]) - middle
        scale = np.median(np.abs(sample - middle)) or np.std(sample)
        scale = max(scale, np.float32(1e-12) * np.abs(ends).max(), np.float32(1e-30))
        low, high = np.arcsinh(ends / scale)
        # In place, in float32: for a million values this is most of the time of a fit.
        position = values - middle
        position /= scale
        np.arcsinh(position, out=position)
        position -= low
        position *= np.float32((num_cells - 0.5) / max(high - low, 1e-30))
        np.clip(position, 0, num_cells - 1, out=position)
        cell = position.astype(np.intp)
        count = np.bincount(cell, minlength=num_cells)
        used = count > 0
        if np.count_nonzero(used) >= 16 * k:
            total = np.bincount(cell, weights=values, minlength=num_cells)[used]
            count = count[used]
            means = np.maximum.accumulate(total / count)  # ascending, whatever sums rounded to
            return Histogram(means, _cumulative(count), _cumulative(total))
    means, count = np.unique(values, return_counts=True)
    means = means.astype(np.float64)
    return Histogram(means, _cumulative(count), _cumulative(means * count))


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Cumulative sums [n + 1] with a leading zero, in float64."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def optimal_split(cells: Histogram, k: int, num_groups: int) -> np.ndarray:
    """The centroids (float64, at most `k`) of the best split into k clusters.

    Best over about `num_groups` groups of cells, by dynamic programming. The squared error of a
    split is a constant minus the sum over clusters of (sum of values)^2 / count; that gain is
    maximized.
    """
    edges = _group_edges(cells, num_groups)
    k = min(k, len(edges) - 1)
    counts = cells.counts[edges]
    # The values less their mean: squares of large sums would lose the digits that matter.
    sums = cells.sums[edges] - counts * (cells.sums[-1] / cells.counts[-1])
    gain = np.zeros(len(edges))  # of the best split of all groups before each edge
    gain[1:] = sums[1:] ** 2 / counts[1:]
    starts = []  # of the last cluster in that split, for 2, 3, ... k clusters
    for _ in range(k - 1):
        gain, start = _add_cluster(gain, counts, sums)
        starts.append(start)
    cuts = [len(edges) - 1]
    for start in starts[::-1]:  # back from the end, from the last cluster to the second
        cuts.append(int(start[cuts[-1]]))
    return cells.centroids(edges[np.unique([0, *cuts])])


def _group_edges(cells: Histogram, num_groups: int) -> np.ndarray:
    """Where to cut the cells into about `num_groups` groups, dense as density ** (1/3).

    The best centroids lie with that density, so that every cluster gets a like number of groups.
    """
    num = len(cells)
    if num <= num_groups:
        return np.arange(num + 1)
    width = np.gradient(cells.means)
    share = np.cbrt(np.diff(cells.counts) * width * width)
    fair = share.sum() / num_groups
    alone = np.flatnonzero(share >= fair)  # beside a gap: cut on both sides, but use up no more
    share = np.minimum(share, fair)
    level = _cumulative(share + 0.1 * share.mean())  # a tenth by number: no group has many cells
    even = np.searchsorted(level, np.linspace(0, level[-1], num_groups + 1)[:-1])
    return np.unique(np.concatenate([even, alone, alone + 1, [num]]))


def _add_cluster(
    gain: np.ndarray, counts: np.ndarray, sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best gain up to each edge with one more cluster, and where that cluster begins.

    All arrays are [edges], the second result has one entry more. The best beginning ascends with
    the end, so it is found for ever finer sets of ends, each between the answers of its neighbors:
    about edges * log2(edges) pairs instead of edges^2 / 2.
    """
    num = len(gain)
    best = np.zeros(num)
    begin = np.zeros(num + 1, dtype=np.int64)
    begin[num] = num - 1
    step = 1 << (num - 1).bit_length()
    while step > 1:
        step //= 2
        ends = np.arange(step, num, 2 * step)
        # The candidates of every end stand one behind the other in flat arrays.
        low = begin[ends - step]
        size = np.minimum(begin[np.minimum(ends + step, num)], ends - 1) - low + 1
        offset = np.cumsum(size) - size
        end = np.repeat(ends, size)
        start = np.arange(len(end)) - np.repeat(offset - low, size)
        value = sums[end] - sums[start]
        value *= value
        value /= counts[end] - counts[start]
        value += gain[start]
        best[ends] = np.maximum.reduceat(value, offset)
        hit = np.flatnonzero(value == best[end])[::-1]  # of equal ones the lowest is written last
        begin[end[hit]] = start[hit]
    return best, begin


def lloyd(cells: Histogram, centroids: np.ndarray, steps: int) -> np.ndarray:
    """Lloyd steps on the cells until nothing changes; centroids without values are dropped."""
    last = np.zeros(0)
    for _ in range(steps):
        cuts = np.searchsorted(cells.means, (centroids[1:] + centroids[:-1]) / 2, side="right")
        if np.array_equal(cuts, last):
            break
        last = cuts
        centroids = cells.centroids(np.unique(np.concatenate([[0], cuts, [len(cells)]])))
    return centroids
