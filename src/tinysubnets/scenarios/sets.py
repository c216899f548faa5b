"""From decoded data sets to tasks: some classes of a set, by index, without copying images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.datasets.loaders import DecodedSet, load
from tinysubnets.errors import TaskError
from tinysubnets.scenarios.settings import DataSettings
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.preprocessing import Preprocessing
from tinysubnets.tasks.rearranged import RearrangedInputs
from tinysubnets.tasks.task import Split, Task, fitted_normalization, stratified

DIGITS_TEST_SHARE = 0.2
_NORMALIZED_VALUES = 1 << 22  # enough for mean and deviation; whole sets may not fit in memory


def load_set(
    name: str,
    split: str,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    size: int | None = None,
    *,
    with_test: bool = True,
) -> DecodedSet:
    """A data set by name, scikit-learn's bundled `digits` among them; arguments as for `load`."""
    if name == "digits":
        return digits(split)
    return load(name, split, root, cache, size, with_test=with_test)


def digits(split: str) -> DecodedSet:
    """The 1,797 bundled digits as 1x8x8 images; every fifth of a class, in a fixed order, is test.

    The test part does not depend on the run's seed, so that all runs are measured on the same data.
    Pixels go from 0 to 255 as in image files, so that a picture of a digit can be predicted.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # bundled as 0 to 16
    labels = bunch.target.astype(np.int64)
    order = np.argsort(seeds.uniform(len(labels), "digits", "test"), kind="stable")
    test = np.zeros(len(labels), dtype=bool)
    for number in range(10):
        mine = order[labels[order] == number]
        test[mine[: round(DIGITS_TEST_SHARE * len(mine))]] = True
    part = test if split == "test" else ~test
    names = tuple("0123456789")
    return DecodedSet(
        inputs[part], labels[part], names, preprocessing=Preprocessing("L", *inputs.shape[2:])
    )


@dataclass(frozen=True)
class Sets:
    """The data sets of a scenario, and how its tasks are cut out of them.

    - `settings`: those of the scenario.
    - `seed`: of all that is drawn.
    - `root`, `cache`: where data sets lie, and where decoded ones are kept.
    - `with_test`: without it no test data are read at all, and tasks have none.
    """

    settings: DataSettings
    seed: int = 0
    root: str | Path | None = None
    cache: str | Path | None = None
    with_test: bool = True
    _known: dict[str, Normalization] = field(default_factory=dict)  # by task, each fitted once

    def load(self, name: str, split: str, size: int | None = None) -> DecodedSet:
        """One split of a data set, its images resized to `size`, if that is given."""
        return load_set(name, split, self.root, self.cache, size, with_test=self.with_test)

    def both(self, name: str, size: int | None = None) -> tuple[DecodedSet, DecodedSet | None]:
        """The training and the test split of a data set; None for test data that are not wanted."""
        train = self.load(name, "train", size)
        return train, self.load(name, "test", size) if self.with_test else None

    def task(
        self, name: str, train: DecodedSet, test: DecodedSet | None, numbers: Sequence[int]
    ) -> Task:
        """A task of the classes with the given numbers, in that order; no image is copied."""
        settings, seed = self.settings, self.seed
        classes = tuple(train.classes[n] for n in numbers)
        whole = _part(train, numbers, settings.train_limit, (seed, "train", name))
        present = {classes[int(i)] for i in whole.labels.unique()}
        if missing := sorted(set(classes) - present):
            raise TaskError(f"task {name!r}: no training data of the classes {', '.join(missing)}.")
        train_at, valid_at = stratified(name, whole.labels, settings.valid, seed)
        assert whole.index is not None
        learned = Split(whole.source, whole.labels[train_at], whole.index[train_at])
        valid = Split(whole.source, whole.labels[valid_at], whole.index[valid_at])
        tested = None
        if test is not None:
            own = [test.classes.index(c) for c in classes]
            tested = _part(test, own, settings.test_limit, (seed, "test", name))
            if len(tested) == 0:
                raise TaskError(f"task {name!r}: its test set has no sample of its classes.")
            if len(tested) == len(test.labels):  # all of them, in their order: they need no copy
                tested = replace(tested, index=None)
        if name not in self._known:
            self._known[name] = _normalization(name, learned)
        normalization, done = self._known[name], train.preprocessing
        return Task(name, classes, learned, valid, tested, normalization, preprocessing=done)


def _part(
    source: DecodedSet, numbers: Sequence[int], limit: int | None, path: tuple[int | str, ...]
) -> Split:
    """The samples of some classes, with new class numbers; at most `limit`, evenly over classes."""
    place = torch.full((len(source.classes),), -1, dtype=torch.int64)
    place[torch.tensor(list(numbers), dtype=torch.int64)] = torch.arange(len(numbers))
    labels = place[torch.from_numpy(np.ascontiguousarray(source.labels))]
    index = (labels >= 0).nonzero().flatten()
    labels = labels[index]
    if limit is not None and len(index) > limit:
        kept = _evenly(labels, limit, path)
        index, labels = index[kept], labels[kept]
    # A tensor shares the array's memory; others are read piece by piece.
    inputs = source.inputs
    is_read = isinstance(inputs, (np.memmap, RearrangedInputs))
    return Split(inputs if is_read else torch.from_numpy(inputs), labels, index)


def _evenly(labels: Tensor, limit: int, path: tuple[int | str, ...]) -> Tensor:
    """Sorted positions of `limit` samples, as many of each class as possible, drawn by the seed."""
    order = torch.from_numpy(seeds.uniform(len(labels), *path, "limit")).argsort(stable=True)
    rank = torch.empty_like(labels)
    for number in labels.unique():
        mine = order[labels[order] == number]
        rank[mine] = torch.arange(len(mine))
    return order[rank[order].argsort(stable=True)[:limit]].sort().values


def _normalization(name: str, train: Split) -> Normalization:
    """Mean and deviation per channel, from as many samples as are read in a moment."""
    sample = train.inputs(slice(0, 1)).numel()
    step = -(-len(train) * sample // _NORMALIZED_VALUES)
    if step > 1:
        assert train.index is not None
        train = Split(train.source, train.labels[::step], train.index[::step])
    return fitted_normalization(name, train, "auto")
