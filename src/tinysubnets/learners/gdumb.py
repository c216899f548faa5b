"""GDumb: a balanced memory of all tasks, and a fresh network trained on nothing else.

A. Prabhu, P. Torr, P. Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual
Learning, ECCV 2020.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.learners.rehearsal import RehearsalLearner, RehearsalTraining
from tinysubnets.normalisation import Normalisation
from tinysubnets.task import Split, Task


class GDumb(RehearsalLearner):
    """A learner that trains from scratch on its memory; an epoch has at least others' steps."""

    name: ClassVar[str] = "gdumb"

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        return DenseModule(self.architecture, self.fresh(outputs.num), outputs)

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        memory = self._remembered(task)
        rules = [self.normalisation(t) for t in self.learned.values()] + [task.normalisation]
        # The memory over and over, up to the task's own length: the same budget of steps.
        index = torch.arange(max(len(task.train), len(memory))) % len(memory)
        train = Split(memory.normalised(rules), memory.labels[index], index)
        inputs = task.valid.inputs()
        valid = Split(task.normalisation(inputs), task.valid.labels)
        rehearsed = dataclasses.replace(
            task, train=train, valid=valid, normalisation=Normalisation()
        )
        return self._plain_training(RehearsalTraining, module, rehearsed)
