"""Sequences of whole data sets, all brought to one shape of images."""

from __future__ import annotations

from tinysubnets.scenarios.sets import Sets
from tinysubnets.scenarios.settings import SequenceSettings
from tinysubnets.tasks.task import Task


class Sequence:
    """One task per data set; gray images repeated over the channels, small ones framed."""

    def __init__(self, settings: SequenceSettings, sets: Sets) -> None:
        self.settings, self.sets = settings, sets

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return self.settings.datasets

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        train, test = self.sets.both(self.settings.datasets[index])
        shape = self.settings.channels, self.settings.image_size
        train, test = train.fitted(*shape), test and test.fitted(*shape)
        return self.sets.task(self.names[index], train, test, range(len(train.classes)))
