"""Split scenarios: one data set, some of its classes for each task."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from tinysubnets import seeds
from tinysubnets.datasets import catalog
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.errors import SettingError
from tinysubnets.scenarios.sets import load_set, make_task
from tinysubnets.scenarios.settings import SplitSettings
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task


class Split:
    """Tasks of disjoint classes, or one for each superclass, in an order drawn from the seed."""

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
        self._known: dict[str, Normalization] = {}

    @cached_property
    def _sets(self) -> tuple[DecodedSet, DecodedSet | None]:
        name, size = self.settings.dataset, self.settings.image_size
        train = load_set(name, "train", self.root, self.cache, size)
        if not self.with_test:
            return train, None
        return train, load_set(name, "test", self.root, self.cache, size)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The numbers of the classes of each task, by the task's name."""
        wanted, order = self.settings.num_tasks, self.settings.class_order
        found = self._superclasses() if order == "superclasses" else self._classes()
        if not found or (wanted or 0) > len(found):
            raise SettingError(
                f"data.num_tasks = {wanted or 'none'} with classes_per_task = "
                f"{self.settings.classes_per_task}: {self.settings.dataset} has "
                f"{len(np.unique(self._sets[0].labels))} classes, enough for {len(found)} tasks."
            )
        return dict(list(found.items())[:wanted])

    def _classes(self) -> dict[str, list[int]]:
        """As many classes for each task as the settings say, without those that are left over."""
        present, width = np.unique(self._sets[0].labels), self.settings.classes_per_task
        if self.settings.class_order == "seeded":
            present = self._drawn(present)
        starts = range(0, len(present) - width + 1, width)
        return {f"classes-{n}": present[i : i + width].tolist() for n, i in enumerate(starts)}

    def _superclasses(self) -> dict[str, list[int]]:
        """The classes of each superclass."""
        entry, names = catalog.CATALOG.get(self.settings.dataset), self._sets[0].classes
        known = {} if entry is None else entry.superclasses
        if not known:
            having = [name for name, other in catalog.CATALOG.items() if other.superclasses]
            raise SettingError(
                f'data.class_order = "superclasses": {self.settings.dataset} has none; '
                f"{', '.join(having)} has them."
            )
        drawn = self._drawn(np.arange(len(known)))
        order = [list(known.items())[place] for place in drawn]
        return {group: [names.index(name) for name in text.split()] for group, text in order}

    def _drawn(self, numbers: np.ndarray) -> np.ndarray:
        draws = seeds.uniform(len(numbers), self.seed, "classes")
        return numbers[np.argsort(draws, kind="stable")]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.groups)

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        name = self.names[index]
        return make_task(
            name, *self._sets, self.groups[name], self.settings, self.seed, self._known
        )
