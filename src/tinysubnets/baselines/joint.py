"""The bounds: naive training forgets, cumulative keeps all data, independent shares nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinysubnets.baselines.base import DenseLearner, DenseTrainer, DenseTraining, ScenarioType
from tinysubnets.errors import TaskError
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task

# --------------------------------------------------------------------------------------------------
# Naive: plain training on one task after the other, the lower bound.


class Naive(DenseLearner):
    """A learner that does nothing against forgetting."""

    name: ClassVar[str] = "naive"


# --------------------------------------------------------------------------------------------------
# Cumulative: joint training on the data of all tasks so far, anew with every task.


class JoinedInputs:
    """The inputs of several splits one behind the other, each normalized its own way if told so."""

    def __init__(self, splits: Sequence[Split], rules: Sequence[Normalization] | None) -> None:
        self.splits, self.rules = tuple(splits), rules
        self.ends = np.cumsum([len(s) for s in splits])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Any, /) -> Tensor:
        where = np.atleast_1d(index)
        part = np.searchsorted(self.ends, where, side="right")
        out: Tensor | None = None
        for number in np.unique(part).tolist():
            at = torch.from_numpy(np.flatnonzero(part == number))
            first = 0 if number == 0 else int(self.ends[number - 1])
            values = self.splits[number].inputs(torch.from_numpy(where[at.numpy()] - first))
            if self.rules is not None:
                values = self.rules[number](values)
            if out is None:
                out = values.new_empty(len(where), *values.shape[1:])
            out[at] = values
        assert out is not None
        return out


def joined(name: str, tasks: Sequence[Task]) -> Task:
    """One task of the data of several whose labels are output columns of one network."""
    rules = [t.normalization for t in tasks]
    same = all(r == rules[0] for r in rules)

    def join(splits: list[Split]) -> Split:
        source = JoinedInputs(splits, None if same else rules)
        return Split(source, torch.cat([s.labels for s in splits]))

    return dataclasses.replace(
        tasks[-1],
        name=name,
        train=join([t.train for t in tasks]),
        valid=join([t.valid for t in tasks]),
        test=None,
        normalization=rules[0] if same else Normalization(),
    )


class Cumulative(DenseLearner):
    """A learner that keeps all data and trains one fresh network on them with every task."""

    name: ClassVar[str] = "cumulative"
    trains_old_heads: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[str, Task] = {}

    def revisit_(self, task: Task) -> None:
        """Give the data of a learned task again, after the learner was restored."""
        self.seen[task.name] = self.relabelled(task, self.columns(task.name)[0])

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        missing = [name for name in self.learned if name not in self.seen]
        if missing:
            raise TaskError(
                f"cumulative needs the data of all tasks, and those of {missing} are not here; "
                "give them by revisit_(task) first."
            )
        return DenseModule(self.architecture, self.fresh(outputs.num), outputs)

    def _training(self, module: DenseModule, task: Task) -> DenseTraining:
        tasks = [self.seen[name] for name in self.learned] + [task]
        union = joined(task.name, tasks)
        weights = self._class_weights(tasks, module.outputs)
        union = dataclasses.replace(union, class_weights=weights)
        return self._plain_training(DenseTraining, module, union)

    def _class_weights(self, tasks: list[Task], outputs: Outputs) -> tuple[float, ...] | None:
        """Every column's weight from the last task that gives one; None where no task does."""
        if all(t.class_weights is None for t in tasks):
            return None
        weights = [1.0] * outputs.num
        for task, (start, stop) in zip(tasks, outputs.columns, strict=True):
            if task.class_weights is not None:
                weights[start:stop] = task.class_weights[start:stop]
        return tuple(weights)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        self.seen[trainer.task.name] = self.relabelled(trainer.task, trainer.columns[0])
        return tensors


# --------------------------------------------------------------------------------------------------
# Independent: one network per task, the upper bound in accuracy and in bytes.


class Independent(DenseLearner):
    """A learner that trains a network of its own for every task."""

    name: ClassVar[str] = "independent"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL",)

    def outputs(self, task: Task) -> Outputs:
        """The columns of the task's own network."""
        return Outputs([(0, task.num_classes)], by_task=True)

    def network(self, task: str) -> dict[str, Tensor]:
        """The task's own network."""
        prefix = f"{task}/"
        return {n[len(prefix) :]: t for n, t in self.tensors.items() if n.startswith(prefix)}

    def ledger(self) -> Ledger:
        """What the networks weigh, in bits, task by task."""
        num, head = self.architecture.num_shared, f"{self.architecture.head}."
        entries = {}
        for name in self.learned:
            network = self.network(name)
            total = sum(32 * t.numel() for t in network.values())
            heads = sum(32 * t.numel() for n, t in network.items() if n.startswith(head))
            entries[name] = Entry(codes=32 * num, heads=heads, task_params=total - heads - 32 * num)
        return Ledger(
            tasks=entries,
            common=Entry(),
            num_weights=num,
            new_weights=(num,) * len(entries),
            bits=(32,) * len(entries),
            raw_mask_bits=0,
            samples_kept=False,
            file_bytes=self.file_bytes,
        )

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        start = self.fresh(task.num_classes, len(self.learned))
        return DenseModule(self.architecture, start, outputs)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {f"{trainer.task.name}/{n}": t for n, t in tensors.items()}
        return self.tensors | own
