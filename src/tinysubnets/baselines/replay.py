"""Methods that keep samples of earlier tasks in a small balanced buffer and train on them.

Replay (A. Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019): every batch of
a task is joined by one of the same size, drawn from the samples of earlier tasks.

GDumb (A. Prabhu, P. Torr, P. Dokania: GDumb: A Simple Approach that Questions Our Progress in
Continual Learning, ECCV 2020): fill a balanced buffer, then train a fresh network on nothing else.

After each task both update the buffer: of every task and class it holds as many samples as of any
other, up to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.baselines.base import (
    DenseLearner,
    DenseSettings,
    DenseTrainer,
    DenseTraining,
    check_at_least,
)
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.augment import augment
from tinysubnets.tasks.checks import class_balanced
from tinysubnets.tasks.loader import DeviceLoader
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task


@dataclass(frozen=True)
class ReplaySettings(DenseSettings):
    """Replay's and GDumb's settings.

    - `buffer_size`: how many samples are kept of all tasks together.
    """

    buffer_size: int = 500

    def __post_init__(self) -> None:
        check_at_least(self, buffer_size=1)


# --------------------------------------------------------------------------------------------------
# The buffer: some raw samples of every task, balanced over tasks and classes.


@dataclass(frozen=True)
class ReplayBuffer:
    """Raw samples of learned tasks.

    - `inputs`: as the user gave them [n, ...].
    - `labels`: their output columns [n].
    - `tasks`: the numbers of their tasks, in the order of learning [n].
    """

    inputs: Tensor
    labels: Tensor
    tasks: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def tensors(self) -> dict[str, Tensor]:
        """The buffer as a learner keeps it in `extra_state`, by name."""
        return {
            "memory/inputs": self.inputs,
            "memory/labels": self.labels.to(torch.int16),
            "memory/tasks": self.tasks.to(torch.int16),
        }

    @classmethod
    def of(cls, extra_state: Mapping[str, Tensor]) -> ReplayBuffer | None:
        """The buffer among what a learner keeps; None before its first task."""
        if "memory/inputs" not in extra_state:
            return None
        labels, tasks = (extra_state[f"memory/{n}"].long() for n in ("labels", "tasks"))
        return cls(extra_state["memory/inputs"], labels, tasks)

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


def updated_buffer(learner: DenseLearner, task: Task, capacity: int) -> ReplayBuffer:
    """The learner's buffer with room made for the training samples of one more task.

    Samples are drawn by the portable generator. When room is made for later tasks, the end of each
    class is dropped, so that the samples of a class only ever become fewer.

    - `task`: with output columns as labels; not learned yet.
    - `capacity`: the most samples in all.
    """
    number, labels = len(learner.learned), task.train.labels
    draws = seeds.uniform(len(labels), learner.settings.seed, "replay", number, task.name)
    order = torch.from_numpy(draws).argsort(stable=True)
    mine = order[_balanced(labels[order], capacity)]
    inputs, labels = task.train.inputs(mine), labels[mine]
    tasks = torch.full_like(labels, number)
    old = ReplayBuffer.of(learner.extra_state)
    if old is not None:
        inputs = torch.cat([old.inputs, inputs])
        labels, tasks = torch.cat([old.labels, labels]), torch.cat([old.tasks, tasks])
    kept = _balanced(tasks * (int(labels.max()) + 1) + labels, capacity)
    return ReplayBuffer(inputs[kept], labels[kept], tasks[kept])


def _balanced(groups: Tensor, count: int) -> Tensor:
    """Sorted positions, as many of each group as can be; what is left over goes to lower groups."""
    order = groups.argsort(stable=True)
    return order[class_balanced(groups[order], count)].sort().values


# --------------------------------------------------------------------------------------------------
# The buffer in training: drawn from, and mixed into what BatchNorm's statistics are taken of.


class Rehearsal:
    """The samples of earlier tasks during the training on another: normalized, on its device."""

    def __init__(
        self, learner: DenseLearner, buffer: ReplayBuffer, training: DenseTraining
    ) -> None:
        rules = [learner.normalization(t) for t in learner.learned.values()]
        self.inputs = buffer.normalized(rules).to(training.device)
        self.labels, self.tasks = (t.to(training.device) for t in (buffer.labels, buffer.tasks))
        self.augmentation = training.augmentation

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Random samples with replacement, augmented like others; seeded by the epoch."""
        where = torch.randint(len(self.labels), (count,), device=self.labels.device)
        inputs, labels = self.inputs[where], self.labels[where]
        return inputs if self.augmentation is None else augment(inputs, self.augmentation), labels


@dataclass(frozen=True)
class Mixture:
    """A task's data and as many samples of earlier tasks, these repeated as need be."""

    train: DeviceLoader
    past: Rehearsal

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the task in its own order, each followed by one of earlier tasks.

        `limit` bounds the samples of the task; with those of earlier ones it is twice as many.
        """
        count = 0
        for inputs, labels in self.train.chunks(batch_size, limit):
            yield inputs, labels
            where = torch.arange(count, count + len(labels), device=labels.device)
            where %= len(self.past.labels)
            yield self.past.inputs[where], self.past.labels[where]
            count += len(labels)


def rehearse_(learner: DenseLearner, training: DenseTraining) -> Rehearsal | None:
    """Put the learner's buffer at the side of a training; None with the first task."""
    buffer = ReplayBuffer.of(learner.extra_state)
    if buffer is None:
        return None
    past = Rehearsal(learner, buffer, training)
    training.calibration = Mixture(training.train, past)
    return past


# --------------------------------------------------------------------------------------------------
# Replay: every batch of a task is joined by one from the buffer.


class ReplayTraining(DenseTraining):
    """Training on batches of which one half is new and one half remembered."""

    def __init__(self, learner: DenseLearner, module: DenseModule, task: Task) -> None:
        super().__init__(learner, module, task)
        self.past = rehearse_(learner, self)

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step on the joined batch; gives the loss without waiting for it."""
        if self.past is not None:
            old_inputs, old_labels = self.past.draw(len(labels))
            inputs, labels = torch.cat([inputs, old_inputs]), torch.cat([labels, old_labels])
        return super().step(inputs, labels)


class Replay(DenseLearner):
    """A learner that rehearses earlier tasks beside the new one."""

    name: ClassVar[str] = "replay"
    settings_class: ClassVar[type[DenseSettings]] = ReplaySettings
    training_class: ClassVar[type[DenseTraining]] = ReplayTraining
    trains_old_heads: ClassVar[bool] = True
    settings: ReplaySettings

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remember some samples of the task."""
        buffer = updated_buffer(self, trainer.labeled, self.settings.buffer_size)
        self.extra_state = buffer.tensors()
        return tensors


# --------------------------------------------------------------------------------------------------
# GDumb: a balanced buffer of all tasks, and a fresh network trained on nothing else.


class GDumb(DenseLearner):
    """A learner that trains from scratch on its buffer."""

    name: ClassVar[str] = "gdumb"
    takes_norms: ClassVar[bool] = False
    settings_class: ClassVar[type[DenseSettings]] = ReplaySettings
    settings: ReplaySettings

    def make_module(self, task: Task) -> DenseModule:
        """A fresh network for the classes of all tasks."""
        outputs = self.outputs(task)
        return DenseModule(self.architecture, self.fresh(outputs.num), outputs)

    def make_training(self, module: DenseModule, task: Task) -> DenseTraining:
        """Plain training on the buffer, in which the task has its place already.

        An epoch shows the buffer over and over, up to the task's own length: others' number of
        steps at least.
        """
        buffer = updated_buffer(self, task, self.settings.buffer_size)
        rules = [self.normalization(t) for t in self.learned.values()] + [task.normalization]
        index = torch.arange(max(len(task.train), len(buffer))) % len(buffer)
        train = Split(buffer.normalized(rules), buffer.labels[index], index)
        valid = Split(task.normalization(task.valid.inputs()), task.valid.labels)
        rehearsed = dataclasses.replace(
            task, train=train, valid=valid, normalization=Normalization()
        )
        return DenseTraining(self, module, rehearsed)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep the buffer that was trained on."""
        buffer = updated_buffer(self, trainer.labeled, self.settings.buffer_size)
        self.extra_state = buffer.tensors()
        return tensors
