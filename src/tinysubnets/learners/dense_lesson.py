"""One task being learned by a dense network, one epoch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinysubnets.learners.dense_settings import Learned
from tinysubnets.learners.dense_training import DenseTraining
from tinysubnets.learners.lesson import TaskReport
from tinysubnets.task import Task
from tinysubnets.training import EpochReport

if TYPE_CHECKING:
    from tinysubnets.learners.dense import DenseLearner


class DenseLesson:
    """One task being learned by a dense network, one epoch at a time."""

    def __init__(self, learner: DenseLearner, task: Task) -> None:
        self.learner, self.task = learner, task
        self.outputs = learner.outputs(task)
        self.columns = self.outputs.columns[-1]
        self.module = learner._module(task, self.outputs)
        raw = task.train.inputs(torch.arange(min(2, len(task.train))))
        learner.architecture.check(
            self.module.measured_tensors(), learner.normalisation(task)(raw), self.outputs.num
        )
        labelled = learner.relabelled(task, self.columns[0])
        self.training: DenseTraining = learner._training(self.module, labelled)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""
        return self.training.finished

    def epoch(self) -> EpochReport:
        """Train one epoch."""
        return self.training.epoch()

    def finish(self) -> TaskReport:
        """Take the best epoch and let the learner keep it."""
        self.training.restore_best_()
        tensors = self.training.settled(self.module.measured_tensors())
        constants = self.learner.architecture.constants
        plain = {n: t.cpu().clone() for n, t in tensors.items() if n not in constants}
        learner, task = self.learner, self.task
        learner.tensors = learner._keep_(self, plain)
        learner.learned[task.name] = Learned(
            task.name, task.classes, task.normalisation, self.columns
        )
        report = dense_report(task.name, self.training)
        learner.reports[task.name] = report
        return report

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on with this lesson later, taken between two epochs."""
        return self.training.state()

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a lesson on the same task and the same learner."""
        self.training.restore_(tensors, numbers)


def dense_report(name: str, training: DenseTraining) -> TaskReport:
    """What learning a task came to, in the words that all methods use."""
    progress = training.progress
    return TaskReport(
        name=name,
        bank=0,
        reason="one dense network",
        bits=32,
        density=1.0,
        owned_before_pruning=1.0,
        owned_after_pruning=1.0,
        valid_accuracy=progress.best_accuracy,
        best_epoch=progress.best_epoch,
        training_seconds=progress.seconds,
        pruning_seconds=0.0,
    )
