"""Sequences of whole data sets, all brought to one shape of images."""

from __future__ import annotations

from pathlib import Path

from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.scenarios.sets import load_set, make_task
from tinysubnets.scenarios.settings import SequenceSettings
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task


class Sequence:
    """One task per data set; gray images repeated over the channels, small ones framed."""

    def __init__(
        self,
        settings: SequenceSettings,
        *,
        seed: int = 0,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        with_test: bool = True,
    ) -> None:
        self.settings, self.seed, self.root, self.cache = settings, seed, root, cache
        self.with_test = with_test
        self._known: dict[str, Normalization] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return self.settings.datasets

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        train = self._fitted(index, "train")
        test = self._fitted(index, "test") if self.with_test else None
        numbers = range(len(train.classes))
        return make_task(
            self.names[index], train, test, numbers, self.settings, self.seed, self._known
        )

    def _fitted(self, index: int, split: str) -> DecodedSet:
        part = load_set(self.settings.datasets[index], split, self.root, self.cache)
        return part.fitted(self.settings.channels, self.settings.image_size)
