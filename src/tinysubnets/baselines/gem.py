"""GEM and A-GEM: gradients turned so that the loss on remembered samples does not rise.

GEM (D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning, NeurIPS 2017) keeps
samples of every task. For each step it takes the gradient g of the batch and the gradient g_t of
every earlier task's samples, and goes along the vector nearest to g that goes against none of them:

    minimize ½·|z − g|²   subject to   z·g_t ≥ 0 for every earlier task t

A-GEM (A. Chaudhry et al.: Efficient Lifelong Learning with A-GEM, ICLR 2019) has one constraint
instead, the gradient r of a random batch of all remembered samples, and with it a closed form:

    z = g − (g·r / r·r)·r   where g·r < 0,   else   z = g
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from tinysubnets.baselines.base import (
    DenseLearner,
    DenseSettings,
    DenseTrainer,
    DenseTraining,
    check_at_least,
)
from tinysubnets.baselines.replay import rehearse_, updated_buffer
from tinysubnets.method.base import ScenarioType
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.task import Task


def averaged_projection(gradient: Tensor, reference: Tensor) -> Tensor:
    """A-GEM's update: the gradient, less its part against the reference where it has one.

    Both are flat [P]; a reference of zeros changes nothing.
    """
    along = gradient @ reference
    size = reference @ reference
    part = torch.where(along < 0, along / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    return gradient - part * reference


def projection(gradient: Tensor, references: Tensor, margin: float = 0.0) -> Tensor:
    """GEM's update: the nearest vector to the gradient that goes against no reference.

    Solved in the dual: z = g + Σ v_t·g_t with the T numbers v_t ≥ margin that minimize |z|².

    - `gradient`: of the batch [P].
    - `references`: of the T earlier tasks [T, P].
    - `margin`: γ of the paper, its "memory strength"; above 0 it favors old tasks.
    """
    along = references @ gradient
    if not bool((along < 0).any()):
        return gradient
    gram = (references.double() @ references.double().T).cpu().numpy()
    if not (np.isfinite(gram).all() and bool(along.isfinite().all())):
        return gradient  # training has diverged, and there is nothing left to protect
    linear = along.double().cpu().numpy() + gram @ np.full(len(gram), margin)
    dual = nonnegative_minimum(gram, linear) + margin
    return gradient + references.T @ torch.from_numpy(dual).to(gradient)


def nonnegative_minimum(gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """The v ≥ 0 that minimizes ½ v'Gv + q'v, for G [T, T] positive semidefinite and q [T].

    With G = LL' this is the least-squares problem min |L'v + L⁻¹q| over v ≥ 0.
    """
    scale = max(float(np.abs(linear).max()), float(np.abs(gram).max()), 1e-300)
    ridge = 1e-12 * scale * np.eye(len(gram))  # parallel references make G singular
    factor = np.linalg.cholesky(gram + ridge)
    root = np.linalg.solve(factor, linear)
    minimum: np.ndarray = nnls(factor.T, -root, maxiter=100 * len(gram))[0]
    return minimum


def flat_gradient(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The gradients of all parameters as one vector [P]; zeros where there is none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([part.flatten() for part in parts])


def set_gradients_(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Set the gradients of all parameters from one vector [P]."""
    parts = gradient.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


# --------------------------------------------------------------------------------------------------
# GEM: one constraint per earlier task.


@dataclass(frozen=True)
class GEMSettings(DenseSettings):
    """GEM's settings.

    - `buffer_per_task`: how many samples of every task are kept.
    - `margin`: γ, the least each dual variable may be; above 0 it favors old tasks.
    """

    buffer_per_task: int = 256
    margin: float = 0.5

    def __post_init__(self) -> None:
        check_at_least(self, buffer_per_task=1, margin=0)


class GEMTraining(DenseTraining):
    """Training along gradients that go against those of no earlier task."""

    def __init__(self, learner: GEM, module: DenseModule, task: Task) -> None:
        super().__init__(learner, module, task)
        self.margin = learner.settings.margin
        self.past = rehearse_(learner, self)
        numbers = range(len(learner.learned))
        # Where the samples of each earlier task stand in the buffer.
        self.parts = (
            ()
            if self.past is None
            else tuple((self.past.tasks == t).nonzero().flatten() for t in numbers)
        )

    @property
    def can_capture(self) -> bool:
        """No: the small quadratic program of each step is solved on the host."""
        return False

    def references(self) -> Tensor:
        """The gradients of the loss on the samples of each of the T earlier tasks [T, P]."""
        assert self.past is not None
        found = []
        for at in self.parts:
            self.backward_(self.past.inputs[at], self.past.labels[at])
            found.append(flat_gradient(self.network.groups()["dense"]))
        return torch.stack(found)

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss."""
        if self.past is None:
            return super().step(inputs, labels)
        references, parameters = self.references(), self.network.groups()["dense"]
        loss = self.backward_(inputs, labels)
        set_gradients_(parameters, projection(flat_gradient(parameters), references, self.margin))
        self.optimizer.step()
        return loss


class GEM(DenseLearner):
    """A learner whose steps never raise the loss on any earlier task's samples, to first order."""

    name: ClassVar[str] = "gem"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = GEMSettings
    training_class: ClassVar[type[DenseTraining]] = GEMTraining
    trains_old_heads: ClassVar[bool] = True
    settings: GEMSettings

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remember some samples of the task."""
        capacity = self.settings.buffer_per_task * (len(self.learned) + 1)
        self.extra_state = updated_buffer(self, trainer.labeled, capacity).tensors()
        return tensors


# --------------------------------------------------------------------------------------------------
# A-GEM: one constraint in all.


@dataclass(frozen=True)
class AGEMSettings(DenseSettings):
    """A-GEM's settings.

    - `buffer_per_task`: how many samples of every task are kept.
    - `reference_batch`: how many of all of them are drawn for each reference gradient.
    """

    buffer_per_task: int = 250
    reference_batch: int = 256

    def __post_init__(self) -> None:
        check_at_least(self, buffer_per_task=1, reference_batch=1)


class AGEMTraining(DenseTraining):
    """Training along gradients that do not go against that of a random remembered batch."""

    def __init__(self, learner: AGEM, module: DenseModule, task: Task) -> None:
        super().__init__(learner, module, task)
        self.reference_batch = learner.settings.reference_batch
        self.past = rehearse_(learner, self)

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss without waiting for it."""
        if self.past is None:
            return super().step(inputs, labels)
        parameters = self.network.groups()["dense"]
        self.backward_(*self.past.draw(self.reference_batch))
        reference = flat_gradient(parameters)
        loss = self.backward_(inputs, labels)
        set_gradients_(parameters, averaged_projection(flat_gradient(parameters), reference))
        self.optimizer.step()
        return loss


class AGEM(DenseLearner):
    """A learner whose steps never raise the mean loss on remembered samples, to first order."""

    name: ClassVar[str] = "a-gem"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = AGEMSettings
    training_class: ClassVar[type[DenseTraining]] = AGEMTraining
    trains_old_heads: ClassVar[bool] = True
    settings: AGEMSettings

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remember some samples of the task."""
        capacity = self.settings.buffer_per_task * (len(self.learned) + 1)
        self.extra_state = updated_buffer(self, trainer.labeled, capacity).tensors()
        return tensors
