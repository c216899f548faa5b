"""Rehearsal: learners that keep samples of earlier tasks, and training that draws from them."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.baselines.base import DenseLearner, DenseSettings, DenseTrainer, DenseTraining
from tinysubnets.errors import SettingError
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.augment import augment
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task


@dataclass(frozen=True)
class RehearsalSettings(DenseSettings):
    """What methods with a memory have in common: `memory` is the number of samples in all."""

    buffer_size: int = 500

    def __post_init__(self) -> None:
        check_buffer("buffer_size", self.buffer_size)


class RehearsalTraining(DenseTraining):
    """Dense training with the samples of earlier tasks at hand, normalized, on the device."""

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
        return chosen if self.augmentation is None else augment(chosen, self.augmentation), labels[
            where
        ]

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
    def buffer(self) -> ReplayBuffer | None:
        """The samples that are kept."""
        return buffer_of(self.extra_state)

    def _capacity(self, num_tasks: int) -> int:
        return self.settings.buffer_size

    def _updated(self, task: Task) -> ReplayBuffer:
        """The memory once a task, labeled by output columns, has been learned."""
        number = len(self.learned)
        capacity = self._capacity(number + 1)
        return updated(self.buffer, task, number, capacity, self.settings.seed)

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        training: RehearsalTraining = self._plain_training(self.training_class, module, task)
        buffer = self.buffer
        if buffer is not None:
            rules = [self.normalization(t) for t in self.learned.values()]
            training.remember_(buffer.normalized(rules), buffer.labels)
        return training

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        task = self.relabelled(trainer.task, trainer.columns[0])
        self.extra_state = self._updated(task).tensors()
        return tensors


def check_buffer(name: str, value: int) -> None:
    """Refuse a memory that can hold nothing."""
    if value < 1:
        raise SettingError(f"{name} = {value!r} is not allowed; give a number of at least 1.")


# --------------------------------------------------------------------------------------------------
# A replay memory: some raw samples of every task, balanced over tasks and classes.


INSIDE = "memory/"


@dataclass(frozen=True)
class ReplayBuffer:
    """Raw samples with their output columns and the numbers of their tasks."""

    inputs: Tensor
    labels: Tensor
    tasks: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def tensors(self) -> dict[str, Tensor]:
        """The memory as a learner keeps it, by name."""
        return {
            f"{INSIDE}inputs": self.inputs,
            f"{INSIDE}labels": self.labels.to(torch.int16),
            f"{INSIDE}tasks": self.tasks.to(torch.int16),
        }

    def normalized(self, rules: Sequence[Normalization]) -> Tensor:
        """What the network sees of the samples, each by the rule of its task."""
        out: Tensor | None = None
        for number in self.tasks.unique().tolist():
            at = self.tasks == number
            values = rules[number](self.inputs[at])
            if out is None:
                out = values.new_empty(len(self), *values.shape[1:])
            out[at] = values
        assert out is not None
        return out


def buffer_of(extra_state: Mapping[str, Tensor]) -> ReplayBuffer | None:
    """The memory among what a learner keeps, if it has one."""
    if f"{INSIDE}inputs" not in extra_state:
        return None
    labels, tasks = extra_state[f"{INSIDE}labels"].long(), extra_state[f"{INSIDE}tasks"].long()
    return ReplayBuffer(extra_state[f"{INSIDE}inputs"], labels, tasks)


def updated(
    old: ReplayBuffer | None, task: Task, number: int, capacity: int, seed: int
) -> ReplayBuffer:
    """The memory with room made for a task's training samples; labels are output columns.

    Of every task and class as many samples are kept as of any other, up to one, and never more than
    `capacity` in all. Which ones is random, by the portable generator; what is dropped later is the
    end of a class, so that a memory only shrinks per class.
    """
    labels = task.train.labels
    order = torch.from_numpy(seeds.uniform(len(labels), seed, "replay", number, task.name)).argsort(
        stable=True
    )
    mine = order[_first(labels[order], capacity)]
    inputs, labels = task.train.inputs(mine), labels[mine]
    tasks = torch.full_like(labels, number)
    if old is not None:
        inputs = torch.cat([old.inputs, inputs])
        labels, tasks = torch.cat([old.labels, labels]), torch.cat([old.tasks, tasks])
    extra_state = _first(tasks * (int(labels.max()) + 1) + labels, capacity)
    return ReplayBuffer(inputs[extra_state], labels[extra_state], tasks[extra_state])


def _first(groups: Tensor, count: int) -> Tensor:
    """Positions of `count` entries, as many of each group as can be, the first of each; sorted."""
    rank = torch.zeros_like(groups)
    for group in groups.unique().tolist():
        at = groups == group
        rank[at] = torch.arange(int(at.sum()))
    order = torch.argsort(rank * (int(groups.max()) + 1) + groups, stable=True)
    return order[:count].sort().values


# --------------------------------------------------------------------------------------------------
# Replay: every batch of a task is joined by one from a small balanced memory of earlier tasks.
#
# A. Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019.


class ReplayTraining(RehearsalTraining):
    """Training on batches of which one half is new and one half remembered."""

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step on the joined batch; gives the loss without waiting for it."""
        if self.past is not None:
            old_inputs, old_labels = self.drawn(len(labels))
            inputs, labels = torch.cat([inputs, old_inputs]), torch.cat([labels, old_labels])
        return super().step(inputs, labels)


class Replay(RehearsalLearner):
    """A learner that rehearses earlier tasks beside the new one."""

    name: ClassVar[str] = "replay"
    training_class: ClassVar[type[RehearsalTraining]] = ReplayTraining


# --------------------------------------------------------------------------------------------------
# GDumb: a balanced memory of all tasks, and a fresh network trained on nothing else.
#
# A. Prabhu, P. Torr, P. Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual
# Learning, ECCV 2020.


class GDumb(RehearsalLearner):
    """A learner that trains from scratch on its memory; an epoch has at least others' steps."""

    name: ClassVar[str] = "gdumb"

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        return DenseModule(self.architecture, self.fresh(outputs.num), outputs)

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        buffer = self._updated(task)
        rules = [self.normalization(t) for t in self.learned.values()] + [task.normalization]
        # The memory over and over, up to the task's own length: the same budget of steps.
        index = torch.arange(max(len(task.train), len(buffer))) % len(buffer)
        train = Split(buffer.normalized(rules), buffer.labels[index], index)
        inputs = task.valid.inputs()
        valid = Split(task.normalization(inputs), task.valid.labels)
        rehearsed = dataclasses.replace(
            task, train=train, valid=valid, normalization=Normalization()
        )
        return self._plain_training(RehearsalTraining, module, rehearsed)
