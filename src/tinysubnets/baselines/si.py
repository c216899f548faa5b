"""SI: weights are held by how much their path through training has lowered earlier losses.

F. Zenke, B. Poole, S. Ganguli: Continual Learning Through Synaptic Intelligence, ICML 2017.

During a task every weight adds up how much its own movement has lowered the task's loss, the path
integral ω = −Σ gradient·movement over all steps. After the task, with Δ how far the weight has come
in all, its importance grows:

    Ω ← Ω + max(0, ω / (Δ² + ξ))

and the next task pays c·Σ Ω·(w − w_before)² for moving it, with w_before the weights as the task
found them. The path integral is that of the task's own loss, so that the penalty enters each step
as a gradient of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinysubnets.baselines.base import (
    DenseLearner,
    DenseSettings,
    DenseTrainer,
    DenseTraining,
    check_at_least,
)
from tinysubnets.baselines.dense_file import tensors_with_prefix
from tinysubnets.baselines.penalty import ProtectedModule
from tinysubnets.errors import SettingError
from tinysubnets.method.base import ScenarioType
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.task import Task


@dataclass(frozen=True)
class SISettings(DenseSettings):
    """SI's settings.

    - `penalty_weight`: c, how strongly weights are held.
    - `damping`: ξ, which keeps the importance of weights that hardly moved finite.
    """

    penalty_weight: float = 5.0
    damping: float = 0.1

    def __post_init__(self) -> None:
        check_at_least(self, penalty_weight=0)
        if self.damping <= 0:
            raise SettingError(f"damping = {self.damping!r} is not allowed; give more than 0.")


class SIModule(ProtectedModule):
    """A dense network that counts how much each weight's own path has lowered the loss.

    `path` holds the path integrals, as a list in the order of the names in `protected`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zeros = [torch.zeros_like(w) for w in self.weights()]
        self.path = nn.ParameterList([nn.Parameter(z, requires_grad=False) for z in zeros])


class SITraining(DenseTraining):
    """Training that adds up −gradient · movement, with the gradient of the task's own loss."""

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss without the penalty."""
        module = self.network
        assert isinstance(module, SIModule)
        loss = self.backward_(inputs, labels)
        table = list(zip(module.weights(), module.importance, module.anchor, strict=True))
        with torch.no_grad():
            own = [w.grad.clone() for w, _, _ in table]  # type: ignore[union-attr]
            before = [w.clone() for w, _, _ in table]
            for w, importance, anchor in table:
                # ∂/∂w of c·Ω·(w − anchor)²
                w.grad.add_(2 * module.penalty_weight * importance * (w - anchor))  # type: ignore[union-attr]
            self.optimizer.step()
            for path, gradient, old, (w, _, _) in zip(module.path, own, before, table, strict=True):
                path.sub_(gradient * (w - old))
        return loss


def consolidated(path: Tensor, movement: Tensor, damping: float) -> Tensor:
    """A task's importances: the loss that each weight's path took off, per squared distance.

    Negative ones, of weights whose path raised the loss, count as zero: a penalty must not reward
    leaving the anchor.

    - `path`: ω.
    - `movement`: Δ, from the first to the last weights of the task.
    - `damping`: ξ.
    """
    return (path / (movement.square() + damping)).clamp(min=0)


class SI(DenseLearner):
    """A learner that holds weights by their path integrals."""

    name: ClassVar[str] = "si"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = SISettings
    training_class: ClassVar[type[DenseTraining]] = SITraining
    settings: SISettings

    def make_module(self, task: Task) -> DenseModule:
        """The network so far, held to where it stands now."""
        outputs = self.outputs(task)
        return SIModule(
            self.architecture,
            self.start(task),
            outputs,
            num_old=self.num_old(outputs),
            same_classes=self.scenario_type == "domain-IL",
            penalty_weight=self.settings.penalty_weight,
            importance=tensors_with_prefix(self.extra_state, "importance/"),
            anchor={},  # held to where it stands now
        )

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turn the path integrals into importances, added to those of earlier tasks."""
        module = trainer.module
        assert isinstance(module, SIModule)
        for name, path, anchor in zip(module.protected, module.path, module.anchor, strict=True):
            moved = tensors[name] - anchor.cpu()
            new = consolidated(path.detach().cpu(), moved, self.settings.damping)
            key = f"importance/{name}"
            self.extra_state[key] = self.extra_state.get(key, torch.zeros_like(new)) + new
        return tensors
