"""A dense module whose weights are held to earlier values, each by its importance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tinysubnets.architecture import Architecture
from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.task import Task


class ProtectedModule(DenseModule):
    """A dense network with the penalty ½·strength·Σ importance·(weight − anchor)².

    Protected is what all tasks use: everything but the output layer, and that too where all tasks
    have the same classes.
    """

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
        outputs: Outputs,
        *,
        num_old: int,
        same_classes: bool,
        strength: float,
    ) -> None:
        super().__init__(architecture, tensors, outputs, num_old=num_old, train_old=same_classes)
        self.strength = strength
        parts = self.trained()
        self.protected = [n for n in parts if n in set(self.body_names) or same_classes]
        self.anchor = self._like(tensors)
        self.importance = self._like({n: torch.zeros_like(tensors[n]) for n in self.protected})

    def _like(self, tensors: Mapping[str, Tensor]) -> nn.ParameterList:
        return nn.ParameterList(
            [nn.Parameter(tensors[n].clone(), requires_grad=False) for n in self.protected]
        )

    def weights(self) -> list[nn.Parameter]:
        """The protected parameters."""
        parts = self.trained()
        return [parts[n][0] for n in self.protected]

    @torch.no_grad()
    def protect_(self, importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> None:
        """Set what the weights are held to, and how firmly."""
        for name, own, other in zip(self.protected, self.importance, self.anchor, strict=True):
            own.copy_(importance[name])
            other.copy_(anchor[name])

    def penalty(self) -> Tensor:
        """What it costs to have left the anchor."""
        parts = [
            (i * (w - a).square()).sum()
            for w, i, a in zip(self.weights(), self.importance, self.anchor, strict=True)
        ]
        return 0.5 * self.strength * torch.stack(parts).sum()


def protected_module(
    kind: type[ProtectedModule], learner: DenseLearner, task: Task, outputs: Outputs
) -> ProtectedModule:
    """The module of a learner's next task, held to where the network stands now."""
    is_domain = learner.settings.setting == "domain"
    return kind(
        learner.architecture,
        learner.start(task),
        outputs,
        num_old=learner.num_old(outputs),
        same_classes=is_domain,
        strength=learner.settings.strength,
    )


def kept_tensors(kept: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Those of the kept tensors that are named `what`/…, by the names of the weights."""
    inside = f"{what}/"
    return {n[len(inside) :]: t for n, t in kept.items() if n.startswith(inside)}
