"""The bounds that other methods are measured against; none is a continual learner.

- Naive, the lower bound: train on one task after the other and do nothing against forgetting.
- Cumulative, joint training: keep the data of all tasks; with every task train a fresh network on
  all of them together. (Others go on from the last network and so train longer.)
- Independent, the upper bound in accuracy and in bytes: a network of its own for every task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinysubnets.baselines.base import DenseLearner, DenseTrainer, DenseTraining, network_bits
from tinysubnets.baselines.dense_file import CONSTANTS, EXTRA
from tinysubnets.errors import TaskError
from tinysubnets.method.base import ScenarioType
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task


class Naive(DenseLearner):
    """A learner that trains on one task after the other, and forgets."""

    name: ClassVar[str] = "naive"


# --------------------------------------------------------------------------------------------------
# Cumulative: joint training on the data of all tasks so far, anew with every task.


class Cumulative(DenseLearner):
    """A learner that keeps all data and trains one fresh network on them with every task.

    `seen` holds the tasks by name, with output columns as labels. They are no part of its state:
    after `restore_` or `resume` give them again by `revisit_`.
    """

    name: ClassVar[str] = "cumulative"
    takes_norms: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[str, Task] = {}

    def revisit_(self, task: Task) -> None:
        """Give the data of a learned task again, after the learner was restored."""
        self.seen[task.name] = self.relabeled(task, self.columns(task.name)[0])

    def make_module(self, task: Task) -> DenseModule:
        """A fresh network for the classes of all tasks."""
        missing = [name for name in self.learned if name not in self.seen]
        if missing:
            raise TaskError(
                f"cumulative needs the data of all tasks, and those of {missing} are not here; "
                "give them by revisit_(task) first."
            )
        outputs = self.outputs(task)
        return DenseModule(self.architecture, self.fresh(outputs.num), outputs)

    def make_training(self, module: DenseModule, task: Task) -> DenseTraining:
        """Plain training on the data of all tasks together."""
        tasks = [self.seen[name] for name in self.learned] + [task]
        return DenseTraining(self, module, joined(tasks, module.outputs))

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep the task's data."""
        self.seen[trainer.task.name] = trainer.labeled
        return tensors


def joined(tasks: Sequence[Task], outputs: Outputs) -> Task:
    """One task of the data of several, named like the last.

    - `tasks`: with output columns as labels.
    - `outputs`: which columns are whose.
    """
    rules = [t.normalization for t in tasks]
    same = all(r == rules[0] for r in rules)

    def join(splits: list[Split]) -> Split:
        source = JoinedInputs(splits, None if same else rules)
        return Split(source, torch.cat([s.labels for s in splits]))

    return dataclasses.replace(
        tasks[-1],
        train=join([t.train for t in tasks]),
        valid=join([t.valid for t in tasks]),
        test=None,
        normalization=rules[0] if same else Normalization(),
        class_weights=_class_weights(tasks, outputs),
    )


def _class_weights(tasks: Sequence[Task], outputs: Outputs) -> tuple[float, ...] | None:
    """Every column's weight from the last task that gives one; None where no task does."""
    if all(t.class_weights is None for t in tasks):
        return None
    weights = [1.0] * outputs.num
    for task, (start, stop) in zip(tasks, outputs.columns, strict=True):
        if task.class_weights is not None:
            weights[start:stop] = task.class_weights[start:stop]
    return tuple(weights)


class JoinedInputs:
    """The inputs of several splits one behind the other, read where they are.

    - `splits`: the parts.
    - `rules`: how to normalize each of them; None leaves raw inputs.
    """

    def __init__(self, splits: Sequence[Split], rules: Sequence[Normalization] | None) -> None:
        self.splits, self.rules = tuple(splits), rules
        self.ends = np.cumsum([len(s) for s in splits])  # the position behind each part's last

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Any, /) -> Tensor:
        where = np.atleast_1d(index)
        part = np.searchsorted(self.ends, where, side="right")  # the split of every position
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


# --------------------------------------------------------------------------------------------------
# Independent: one network per task, the upper bound in accuracy and in bytes.


class Independent(DenseLearner):
    """A learner that trains a network of its own for every task.

    It alone keeps several networks, their tensors named "task/tensor"; so `network` and `ledger`
    are its own too.
    """

    name: ClassVar[str] = "independent"
    takes_norms: ClassVar[bool] = False
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL",)

    def make_module(self, task: Task) -> DenseModule:
        """A fresh network for the task's own classes."""
        if task.name in (reserved := (EXTRA.strip("/"), CONSTANTS.strip("/"))):
            raise TaskError(
                f"a task of independent cannot be named {task.name!r}: its file has another use "
                f"for the names {', '.join(map(repr, reserved))}. Choose another name."
            )
        start = self.fresh(task.num_classes, len(self.learned))
        outputs = Outputs([(0, task.num_classes)], by_task=True)
        return DenseModule(self.architecture, start, outputs)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the task's network to the others."""
        return self.tensors | {f"{trainer.task.name}/{n}": t for n, t in tensors.items()}

    def network(self, task: str) -> dict[str, Tensor]:
        """The task's own network."""
        specs = (*self.architecture.shared, *self.architecture.task_params)
        names = {s.name: f"{task}/{s.name}" for s in specs}
        return {n: self.tensors[full] for n, full in names.items() if full in self.tensors}

    def ledger(self) -> Ledger:
        """What the networks weigh, in bits, task by task."""
        num, count = self.architecture.num_shared, len(self.learned)
        return Ledger(
            tasks={n: network_bits(self.architecture, self.network(n)) for n in self.learned},
            common=Entry(),
            num_weights=num,
            new_weights=(num,) * count,
            bits=(32,) * count,
            raw_mask_bits=0,
            samples_kept=False,
            num_layers=len(self.architecture.shared),
            file_bytes=self.file_bytes,
        )
