"""A replay memory: some raw samples of every task, balanced over tasks and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.normalisation import Normalisation
from tinysubnets.task import Task

INSIDE = "memory/"


@dataclass(frozen=True)
class Memory:
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

    def normalised(self, rules: Sequence[Normalisation]) -> Tensor:
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


def recall(kept: Mapping[str, Tensor]) -> Memory | None:
    """The memory among what a learner keeps, if it has one."""
    if f"{INSIDE}inputs" not in kept:
        return None
    labels, tasks = kept[f"{INSIDE}labels"].long(), kept[f"{INSIDE}tasks"].long()
    return Memory(kept[f"{INSIDE}inputs"], labels, tasks)


def remembered(old: Memory | None, task: Task, number: int, capacity: int, seed: int) -> Memory:
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
    kept = _first(tasks * (int(labels.max()) + 1) + labels, capacity)
    return Memory(inputs[kept], labels[kept], tasks[kept])


def _first(groups: Tensor, count: int) -> Tensor:
    """Positions of `count` entries, as many of each group as can be, the first of each; sorted."""
    rank = torch.zeros_like(groups)
    for group in groups.unique().tolist():
        at = groups == group
        rank[at] = torch.arange(int(at.sum()))
    order = torch.argsort(rank * (int(groups.max()) + 1) + groups, stable=True)
    return order[:count].sort().values
