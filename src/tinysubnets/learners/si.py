"""SI: weights are held by how much their path through training has lowered earlier losses.

F. Zenke, B. Poole, S. Ganguli: Continual Learning Through Synaptic Intelligence, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.errors import SettingError
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import DenseSettings, Setting
from tinysubnets.learners.dense_training import DenseTraining
from tinysubnets.learners.protected import ProtectedModule, kept_tensors, protected_module
from tinysubnets.task import Task


@dataclass(frozen=True)
class SISettings(DenseSettings):
    """SI's settings: the strength c, and the damping ξ of weights that hardly moved."""

    strength: float = 5.0
    damping: float = 0.1

    def __post_init__(self) -> None:
        if self.strength < 0 or self.damping <= 0:
            raise SettingError(
                f"strength = {self.strength!r} and damping = {self.damping!r} are not allowed; "
                "give at least 0 and more than 0."
            )


class SIModule(ProtectedModule):
    """A dense network that counts how much each weight's own path has lowered the loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zeros: Mapping[str, Tensor] = {
            n: torch.zeros_like(a) for n, a in zip(self.protected, self.anchor, strict=True)
        }
        self.path = self._like(zeros)


class SITraining(DenseTraining):
    """Training that adds up −gradient · movement, with the gradient of the task's own loss."""

    network: SIModule

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss without the penalty."""
        loss = self.backward_(inputs, labels)
        module = self.network
        table = list(zip(module.weights(), module.importance, module.anchor, strict=True))
        with torch.no_grad():
            own = [w.grad.clone() for w, _, _ in table]  # type: ignore[union-attr]
            before = [w.clone() for w, _, _ in table]
            for w, importance, anchor in table:
                # ∂/∂w of c·Ω·(w − anchor)²
                w.grad.add_(2 * module.strength * importance * (w - anchor))  # type: ignore[union-attr]
            self.optimizer.step()
            for path, gradient, old, (w, _, _) in zip(module.path, own, before, table, strict=True):
                path.sub_(gradient * (w - old))
        return loss


def consolidated(path: Tensor, movement: Tensor, damping: float) -> Tensor:
    """A task's importances: the loss that each weight's path took off, per squared distance.

    Negative ones, of weights whose path raised the loss, count as zero: a penalty must not reward
    leaving the anchor.
    """
    return (path / (movement.square() + damping)).clamp(min=0)


class SI(DenseLearner):
    """A learner that holds weights by their path integrals."""

    name: ClassVar[str] = "si"
    allowed: ClassVar[tuple[Setting, ...]] = ("task", "domain")
    settings_class: ClassVar[type[DenseSettings]] = SISettings

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        module = protected_module(SIModule, self, task, outputs)
        if self.kept:
            module.protect_(kept_tensors(self.kept, "importance"), self.tensors)
        return module

    def _training(self, module: DenseModule, task: Task) -> DenseTraining:
        return self._plain_training(SITraining, module, task)

    def _keep_(self, lesson: DenseLesson, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        module = lesson.module
        assert isinstance(module, SIModule)
        table = zip(module.protected, module.path, module.anchor, strict=True)
        for name, path, anchor in table:
            moved = tensors[name] - anchor.cpu()
            new = consolidated(path.detach().cpu(), moved, self.settings.damping)
            key = f"importance/{name}"
            self.kept[key] = self.kept.get(key, torch.zeros_like(new)) + new
        return tensors
