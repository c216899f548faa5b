"""GEM and A-GEM: gradients turned so that the loss on remembered samples does not rise.

D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning, NeurIPS 2017;
A. Chaudhry et al.: Efficient Lifelong Learning with A-GEM, ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tinysubnets.baselines.base import DenseSettings, ScenarioType
from tinysubnets.baselines.replay import RehearsalLearner, RehearsalTraining, check_buffer
from tinysubnets.errors import SettingError
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.task import Task

_TOLERANCE = 1e-12


def averaged_projection(gradient: Tensor, reference: Tensor) -> Tensor:
    """A-GEM's update: the gradient, less its part against the reference where it has one."""
    along = gradient @ reference
    size = reference @ reference
    part = torch.where(along < 0, along / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    return gradient - part * reference


def projection(gradient: Tensor, references: Tensor, margin: float = 0.0) -> Tensor:
    """GEM's update: the nearest vector to the gradient that goes against no reference [T, P].

    Solved in the dual, v ≥ margin for T numbers v; a margin above 0 favors old tasks.
    """
    along = references @ gradient
    if not bool((along < 0).any()):
        return gradient
    gram = (references.double() @ references.double().T).cpu().numpy()
    linear = along.double().cpu().numpy() + gram @ np.full(len(gram), margin)
    dual = nonnegative_minimum(gram, linear) + margin
    return gradient + references.T @ torch.from_numpy(dual).to(gradient)


def nonnegative_minimum(gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """The v ≥ 0 that minimizes ½ v'Gv + q'v, G positive semidefinite, by an active-set method.

    Lawson and Hanson's algorithm on the normal equations: exact up to rounding.
    """
    size = len(linear)
    scale = max(float(np.abs(linear).max()), float(np.abs(gram).max()), 1e-300)
    ridge = 1e-12 * scale * np.eye(size)  # parallel references
    free, v = np.zeros(size, dtype=bool), np.zeros(size)
    for _ in range(10 * size):
        slope = -(gram @ v + linear)
        slope[free] = -np.inf
        if slope.max() <= _TOLERANCE * scale:
            break
        free[int(slope.argmax())] = True
        while True:
            trial = np.zeros(size)
            prefix = np.ix_(free, free)
            trial[free] = np.linalg.solve(gram[prefix] + ridge[prefix], -linear[free])
            below = free & (trial <= 0)
            if not below.any():
                break
            step = (v[below] / (v[below] - trial[below])).min()
            v += step * (trial - v)
            free &= v > _TOLERANCE
            v[~free] = 0.0
        v = trial
    return v


@dataclass(frozen=True)
class AGEMSettings(DenseSettings):
    """A-GEM's settings: samples kept per task, and drawn for the reference gradient."""

    buffer_per_task: int = 250
    reference_batch: int = 256

    def __post_init__(self) -> None:
        check_buffer("buffer_per_task", self.buffer_per_task)
        check_buffer("reference_batch", self.reference_batch)


@dataclass(frozen=True)
class GEMSettings(DenseSettings):
    """GEM's settings: samples kept per task, and the margin γ ("memory strength")."""

    buffer_per_task: int = 256
    margin: float = 0.5

    def __post_init__(self) -> None:
        check_buffer("buffer_per_task", self.buffer_per_task)
        if self.margin < 0:
            raise SettingError(f"margin = {self.margin!r} is not allowed; give at least 0.")


class GradientTraining(RehearsalTraining):
    """Training in which gradients are read, changed and put back before the optimizer steps."""

    def gradient(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The flat gradient of a batch's loss, put in place as well."""
        self.backward_(inputs, labels)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                for p in self.network.groups()["dense"]
            ]
        )

    def put_(self, gradient: Tensor) -> None:
        """Set the gradients of all parameters from a flat vector."""
        parameters = self.network.groups()["dense"]
        parts = gradient.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)


class AGEMTraining(GradientTraining):
    """Training along gradients that do not go against that of a random batch of the memory."""

    reference_batch = 256

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss without waiting for it."""
        if self.past is None:
            return super().step(inputs, labels)
        reference = self.gradient(*self.drawn(self.reference_batch))
        loss = self.backward_(inputs, labels)
        own = torch.cat([p.grad.flatten() for p in self.network.groups()["dense"]])  # type: ignore
        self.put_(averaged_projection(own, reference))
        self.optimizer.step()
        return loss


class GEMTraining(GradientTraining):
    """Training along gradients that go against those of no earlier task."""

    margin = 0.5
    parts: tuple[Tensor, ...] = ()

    @property
    def can_capture(self) -> bool:
        """No: each step asks the host."""
        return False  # the small quadratic programme is solved on the host

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss."""
        if self.past is None:
            return super().step(inputs, labels)
        samples, columns = self.past
        references = torch.stack([self.gradient(samples[at], columns[at]) for at in self.parts])
        loss = self.backward_(inputs, labels)
        own = torch.cat([p.grad.flatten() for p in self.network.groups()["dense"]])  # type: ignore
        self.put_(projection(own, references, self.margin))
        self.optimizer.step()
        return loss


class AGEM(RehearsalLearner):
    """A learner whose steps never raise the average loss on its memory, to first order."""

    name: ClassVar[str] = "a-gem"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = AGEMSettings
    training_class: ClassVar[type[RehearsalTraining]] = AGEMTraining

    def _capacity(self, num_tasks: int) -> int:
        return self.settings.buffer_per_task * num_tasks

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        training = super()._training(module, task)
        assert isinstance(training, AGEMTraining)
        training.reference_batch = self.settings.reference_batch
        return training


class GEM(RehearsalLearner):
    """A learner whose steps never raise the loss on any earlier task's memory, to first order."""

    name: ClassVar[str] = "gem"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = GEMSettings
    training_class: ClassVar[type[RehearsalTraining]] = GEMTraining

    def _capacity(self, num_tasks: int) -> int:
        return self.settings.buffer_per_task * num_tasks

    def _training(self, module: DenseModule, task: Task) -> RehearsalTraining:
        training = super()._training(module, task)
        assert isinstance(training, GEMTraining)
        training.margin = self.settings.margin
        if self.buffer is not None:
            numbers = self.buffer.tasks.to(self.device)
            training.parts = tuple(
                (numbers == i).nonzero().flatten() for i in range(len(self.learned))
            )
        return training
