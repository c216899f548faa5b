"""CWR*: the body is learned once; output rows are trained per task and merged by running means.

V. Lomonaco, D. Maltoni, L. Pellegrini: Rehearsal-Free Continual Learning over Small Non-I.I.D.
Batches, CVPR Workshops 2020.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets.baselines.base import DenseLearner, DenseTrainer
from tinysubnets.nn.architecture import Mode
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.task import Task

PAST = "past"


def merged(stored: Tensor, trained: Tensor, past: Tensor, current: Tensor) -> Tensor:
    """Output rows after a task: stored and centered new ones in the ratio √(past / current).

    `past` and `current` count the samples per class; a class never seen before has past 0.
    """
    centred = trained - trained.mean()
    weight = (past / current.clamp(min=1)).sqrt().reshape(-1, *(1,) * (trained.ndim - 1))
    return (stored * weight + centred) / (weight + 1)


class CWRStar(DenseLearner):
    """A learner whose body is frozen after the first task; only its output layer goes on."""

    name: ClassVar[str] = "cwr-star"

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        start = self.start(task)
        first, stop = outputs.columns[-1]
        for name in self.architecture.output:
            # Rows of this task's classes go on from what is stored; all others rest at zero.
            rows = torch.zeros_like(start[name])
            if self.learned:
                known = min(stop, len(self.tensors[name]))
                rows[first:known] = self.tensors[name][first:known]
            start[name] = rows
        mode: Mode = "eval" if self.learned else "train"
        return DenseModule(self.architecture, start, outputs, num_old=first, mode=mode)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        first, stop = trainer.columns
        current = torch.bincount(trainer.task.train.labels, minlength=stop - first).float()
        past = torch.zeros(trainer.outputs.num)
        if PAST in self.extra_state:
            past[: len(self.extra_state[PAST])] = self.extra_state[PAST]
        out = dict(tensors)
        for name in self.architecture.output:
            rows = torch.zeros_like(tensors[name])
            if self.learned:
                rows[: len(self.tensors[name])] = self.tensors[name]
            trained = tensors[name][first:stop]
            rows[first:stop] = merged(rows[first:stop], trained, past[first:stop], current)
            out[name] = rows
        past[first:stop] += current
        self.extra_state[PAST] = past
        return out
