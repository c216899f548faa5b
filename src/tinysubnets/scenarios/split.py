"""Split scenarios: one data set, some of its classes for each task."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tinysubnets import seeds
from tinysubnets.datasets import catalog
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.errors import SettingError
from tinysubnets.scenarios.sets import Sets
from tinysubnets.scenarios.settings import SplitSettings
from tinysubnets.tasks.task import Task


class Split:
    """Tasks of disjoint classes, or one for each superclass, in an order drawn from the seed."""

    def __init__(self, settings: SplitSettings, sets: Sets) -> None:
        self.settings, self.sets = settings, sets

    @cached_property
    def _parts(self) -> tuple[DecodedSet, DecodedSet | None]:
        return self.sets.both(self.settings.dataset, self.settings.image_size)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The numbers of the classes of each task, by the task's name."""
        wanted, order = self.settings.num_tasks, self.settings.class_order
        found = self._superclasses() if order == "superclasses" else self._classes()
        if not found or (wanted or 0) > len(found):
            raise SettingError(
                f"data.num_tasks = {wanted or 'none'} with classes_per_task = "
                f"{self.settings.classes_per_task}: {self.settings.dataset} has "
                f"{len(np.unique(self._parts[0].labels))} classes, enough for {len(found)} tasks."
            )
        return dict(list(found.items())[:wanted])

    def _classes(self) -> dict[str, list[int]]:
        """As many classes for each task as the settings say, without those that are left over."""
        present, width = np.unique(self._parts[0].labels), self.settings.classes_per_task
        if self.settings.class_order == "seeded":
            present = self._drawn(present)
        starts = range(0, len(present) - width + 1, width)
        return {f"classes-{n}": present[i : i + width].tolist() for n, i in enumerate(starts)}

    def _superclasses(self) -> dict[str, list[int]]:
        """The classes of each superclass."""
        entry, names = catalog.CATALOG.get(self.settings.dataset), self._parts[0].classes
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
        draws = seeds.uniform(len(numbers), self.sets.seed, "classes")
        return numbers[np.argsort(draws, kind="stable")]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.groups)

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        name = self.names[index]
        return self.sets.task(name, *self._parts, self.groups[name])
