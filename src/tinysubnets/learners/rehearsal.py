"""Rehearsal: learners that keep samples of earlier tasks, and training that draws from them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets.augment import augment
from tinysubnets.dense_module import DenseModule
from tinysubnets.errors import SettingError
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import DenseSettings
from tinysubnets.learners.dense_training import DenseTraining
from tinysubnets.learners.memory import Memory, recall, remembered
from tinysubnets.task import Task


@dataclass(frozen=True)
class RehearsalSettings(DenseSettings):
    """What methods with a memory have in common: `memory` is the number of samples in all."""

    memory: int = 500

    def __post_init__(self) -> None:
        check_memory("memory", self.memory)


class RehearsalTraining(DenseTraining):
    """Dense training with the samples of earlier tasks at hand, normalised, on the device."""

    past: tuple[Tensor, Tensor] | None = None

    def remember_(self, inputs: Tensor, labels: Tensor) -> None:
        """Put the samples of earlier tasks at hand; labels are output columns."""
        self.past = (inputs.to(self.device), labels.to(self.device))

    def drawn(self, count: int) -> tuple[Tensor, Tensor]:
        """Random samples of the memory, augmented like others; seeded by the epoch."""
        assert self.past is not None
        inputs, labels = self.past
        where = torch.randint(len(labels), (count,), device=self.device)
        chosen = inputs[where]
        return chosen if self.changes is None else augment(chosen, self.changes), labels[where]

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The task's data and as many samples of the memory, repeated as need be."""
        count = 0
        for inputs, labels in self.train.chunks(batch_size, limit):
            yield inputs, labels
            if self.past is not None:
                where = torch.arange(count, count + len(labels), device=self.device)
                where %= len(self.past[1])
                yield self.past[0][where], self.past[1][where]
            count += len(labels)


class RehearsalLearner(DenseLearner, ABC):
    """A dense learner with a replay memory; `_capacity` says how large after so many tasks."""

    settings_class: ClassVar[type[DenseSettings]] = RehearsalSettings
    training_class: ClassVar[type[RehearsalTraining]] = RehearsalTraining
    trains_old_heads: ClassVar[bool] = True

    @property
    def memory(self) -> Memory | None:
        """The samples that are kept."""
        return recall(self.kept)

    def _capacity(self, num_tasks: int) -> int:
        return self.settings.memory

    def _remembered(self, task: Task) -> Memory:
        """The memory once a task, labelled by output columns, has been learned."""
        number = len(self.learned)
        capacity = self._capacity(number + 1)
        return remembered(self.memory, task, number, capacity, self.settings.seed)

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        training: RehearsalTraining = self._plain_training(self.training_class, module, task)
        memory = self.memory
        if memory is not None:
            rules = [self.normalisation(t) for t in self.learned.values()]
            training.remember_(memory.normalised(rules), memory.labels)
        return training

    def _keep_(self, lesson: DenseLesson, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        task = self.relabelled(lesson.task, lesson.columns[0])
        self.kept = self._remembered(task).tensors()
        return tensors


def check_memory(name: str, value: int) -> None:
    """Refuse a memory that can hold nothing."""
    if value < 1:
        raise SettingError(f"{name} = {value!r} is not allowed; give a number of at least 1.")
