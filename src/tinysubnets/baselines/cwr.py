"""CWR*: the body is learned once; output rows are trained per task and merged by running means.

V. Lomonaco, D. Maltoni, L. Pellegrini: Rehearsal-Free Continual Learning over Small Non-I.I.D.
Batches, CVPR Workshops 2020.

The whole network is trained on the first task; then its body is frozen. With every task the output
rows of its classes go on from what is stored, or from zero, while all others rest at zero. After it
they are merged into the stored ones by how often each class was seen, before and now:

    stored ← (stored·w + trained − mean) / (w + 1)   with   w = √(past samples / current samples)

with the mean over all trained values. Biases are treated like rows, with a mean of their own.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets.baselines.base import DenseLearner, DenseTrainer
from tinysubnets.nn.architecture import Mode
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.task import Task

PAST = "past"  # in extra_state: how many samples of each output column were seen [columns]


def merged(stored: Tensor, trained: Tensor, past: Tensor, current: Tensor) -> Tensor:
    """Output rows after a task: stored and centered new ones in the ratio √(past / current).

    - `stored`, `trained`: weight rows [classes, features] or biases [classes].
    - `past`, `current`: samples per class, before and in this task [classes]; past is 0 for a class
      never seen before.
    """
    centered = trained - trained.mean()
    weight = (past / current.clamp(min=1)).sqrt().reshape(-1, *(1,) * (trained.ndim - 1))
    return (stored * weight + centered) / (weight + 1)


class CWRStar(DenseLearner):
    """A learner whose body is frozen after the first task; only its output layer goes on."""

    name: ClassVar[str] = "cwr-star"

    def make_module(self, task: Task) -> DenseModule:
        """The whole network with the first task, only its output layer with later ones."""
        start, outputs = self.start(task), self.outputs(task)
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
        """Merge the trained rows into the stored ones, and count the samples of each class."""
        first, stop = trainer.columns
        current = torch.bincount(trainer.task.train.labels, minlength=stop - first).float()
        past = torch.zeros(trainer.module.outputs.num)
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
