"""Lessons of methods that prune by magnitude: train, prune once, train what is left."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from tinysubnets.architecture import Architecture
from tinysubnets.bank import Bank
from tinysubnets.layout import Layout
from tinysubnets.learners.lesson import Lesson
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.masks import top_k_segments
from tinysubnets.start import Start
from tinysubnets.subnet import Subnet
from tinysubnets.task import Task
from tinysubnets.task_module import Compression, TaskModule
from tinysubnets.training import EpochReport, Training
from tinysubnets.training_settings import TrainingSettings


class FixedMaskModule(TaskModule):
    """A task in training whose mask is given from outside, not learned by scores."""

    fixed: Tensor

    def __init__(
        self, architecture: Architecture, layout: Layout, bank: Bank, start: Start, mask: Tensor
    ) -> None:
        keep = tuple(j - i for i, j in layout.block_segments)
        super().__init__(architecture, layout, bank, start, Compression(keep, bits=32))
        self.register_buffer("fixed", mask.clone())

    def mask(self) -> Tensor:
        """The given mask."""
        return self.fixed

    def effective(self, mask: Tensor | None = None) -> Tensor:
        """The flat weights: owned values as they are, free ones trained, both under the mask."""
        values = torch.where(self.owned_weights, self.bank_values, self.free)
        return torch.where(self.layout.expand(self.fixed), values, 0.0)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves: there are no scores."""
        return {"free": [self.free], "private": list(self.private)}

    @torch.no_grad()
    def largest(self, keep: tuple[int, ...]) -> Tensor:
        """The mask of the largest free blocks by the sum of |w|, so many of each tensor."""
        bounds = [(i, j, k) for (i, j), k in zip(self.layout.block_segments, keep, strict=True)]
        magnitude = self.layout.sum(self.free.detach().abs())
        return top_k_segments(magnitude, bounds, None, ~self.owned)[0]


class MagnitudeLesson(Lesson, ABC):
    """One task learned in two phases of the same budget of epochs: before and after pruning.

    `share` of the epochs follow the pruning, at `factor` times the learning rate.
    """

    module: FixedMaskModule

    def __init__(self, learner: TinySubNets, task: Task, *, share: float, factor: float) -> None:
        epochs = learner.training.epochs
        self.late_epochs = min(max(1, round(share * epochs)), epochs - 1)
        self.factor, self.is_pruned, self.early_seconds = factor, False, 0.0
        super().__init__(learner, task)

    @abstractmethod
    def first_mask(self, bank: Bank) -> Tensor:
        """The blocks that are used before pruning."""

    @abstractmethod
    def prune_(self) -> None:
        """Set the module's mask to what is kept."""

    @property
    def finished(self) -> bool:
        """Whether all epochs of both phases are done, so that `finish()` is next."""
        return self.training.finished and (self.is_pruned or self.late_epochs == 0)

    def epoch(self) -> EpochReport:
        """Train one epoch; the first one after the early phase prunes before it trains."""
        if self.training.finished:
            self._turn_()
        report = self.training.epoch()
        early = self.learner.training.epochs - self.late_epochs
        done = report.epoch + (early if self.is_pruned else 0)
        return dataclasses.replace(report, epoch=done, epochs=self.learner.training.epochs)

    def finish(self) -> Subnet:
        """Take the best epoch after pruning and claim it; the task is learned."""
        if not self.is_pruned:
            self._turn_()
        self.training.progress.seconds += self.early_seconds
        return super().finish()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on with this lesson later, taken between two epochs."""
        tensors, numbers = self.training.state()
        return tensors, numbers | {"pruned": self.is_pruned, "early_seconds": self.early_seconds}

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a lesson on the same task and the same store."""
        numbers = dict(numbers)
        self.is_pruned = numbers.pop("pruned")
        self.early_seconds = numbers.pop("early_seconds")
        self.training = self._train(self.learner.training)
        super().restore_(tensors, numbers)

    def _turn_(self) -> None:
        """Prune the best network of the early phase and set up the late one."""
        self.training.restore_best_()
        self.early_seconds = self.training.progress.seconds
        self.prune_()
        self.is_pruned = True
        self.training = self._train(self.learner.training)

    def _module(self, bank: Bank) -> FixedMaskModule:
        learner = self.learner
        start, mask = self._start(), self.first_mask(bank)
        return FixedMaskModule(learner.architecture, learner.store.layout, bank, start, mask)

    def _train(self, settings: TrainingSettings) -> Training:
        early = settings.epochs - self.late_epochs
        if self.is_pruned:
            settings = dataclasses.replace(
                settings,
                epochs=max(self.late_epochs, 1),
                learning_rate=settings.learning_rate * self.factor,
                final_rate=min(settings.final_rate, settings.learning_rate * self.factor),
            )
        else:
            settings = dataclasses.replace(settings, epochs=early)
        return super()._train(settings)
