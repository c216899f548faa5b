"""Split scenarios: one data set, some of its classes for each task."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from tinysubnets import seeds
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.errors import SettingError
from tinysubnets.scenarios.sets import load_set, make_task
from tinysubnets.scenarios.settings import SplitSettings
from tinysubnets.tasks.task import Task


class Split:
    """Tasks of disjoint classes, in an order drawn from the seed."""

    def __init__(
        self,
        settings: SplitSettings,
        *,
        seed: int = 0,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        with_test: bool = True,
    ) -> None:
        self.settings, self.seed, self.root, self.cache = settings, seed, root, cache
        self.with_test = with_test

    @cached_property
    def _sets(self) -> tuple[DecodedSet, DecodedSet | None]:
        name, size = self.settings.dataset, self.settings.image_size
        train = load_set(name, "train", self.root, self.cache, size)
        if not self.with_test:
            return train, None
        return train, load_set(name, "test", self.root, self.cache, size)

    @cached_property
    def groups(self) -> list[list[int]]:
        """The numbers of the classes of each task."""
        width, wanted = self.settings.classes_per_task, self.settings.num_tasks
        present = np.unique(self._sets[0].labels)
        possible = len(present) // width
        if possible == 0 or (wanted or 0) > possible:
            raise SettingError(
                f"data.num_tasks = {wanted or 'none'} with classes_per_task = {width}: "
                f"{self.settings.dataset} has {len(present)} classes, enough for {possible} tasks."
            )
        if self.settings.class_order == "seeded":
            draws = seeds.uniform(len(present), self.seed, "classes")
            present = present[np.argsort(draws, kind="stable")]
        count = possible if wanted is None else wanted
        return [present[i * width : (i + 1) * width].tolist() for i in range(count)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(f"classes-{i}" for i in range(len(self.groups)))

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        numbers = self.groups[index]
        return make_task(self.names[index], *self._sets, numbers, self.settings, self.seed)
