"""LwF: on new data the outputs for earlier tasks are held to those of the network before.

Z. Li, D. Hoiem: Learning without Forgetting, ECCV 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tinysubnets.baselines.base import DenseLearner, DenseSettings, ScenarioType
from tinysubnets.errors import SettingError
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.task import Task


@dataclass(frozen=True)
class LwFSettings(DenseSettings):
    """LwF's settings: the weight λ of distillation and its temperature."""

    distillation_weight: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if self.distillation_weight < 0 or self.temperature <= 0:
            raise SettingError(
                f"distillation_weight = {self.distillation_weight!r} and temperature = "
                f"{self.temperature!r} are not allowed; give at least 0 and more than 0."
            )


def distillation(
    new: Tensor, old: Tensor, columns: Sequence[tuple[int, int]], temperature: float
) -> Tensor:
    """The cross-entropy of new answers to old ones, both softened, summed over heads.

    Stationary where new and old scores are equal.
    """
    total = new.new_zeros(())
    for start, stop in columns:
        target = (old[:, start:stop] / temperature).softmax(1)
        answer = (new[:, start:stop] / temperature).log_softmax(1)
        total = total - (target * answer).sum(1).mean()
    return total


class LwFModule(DenseModule):
    """A dense network beside a copy of what it was before this task."""

    distillation_weight, temperature = 1.0, 2.0
    past_columns: tuple[tuple[int, int], ...] = ()

    def remember_(self, before: Mapping[str, Tensor], columns: Sequence[tuple[int, int]]) -> None:
        """Keep the network as it was, for its answers under the given heads."""
        self.past_names = sorted(before)  # a restored learner may hold them in another order
        self.past = nn.ParameterList(
            [nn.Parameter(before[n].clone(), requires_grad=False) for n in self.past_names]
        )
        self.past_columns = tuple(columns)

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy on the new task plus λ times the distillation of the earlier ones."""
        scores = self(inputs)
        restricted = self.outputs.restrict(scores, labels)
        loss = nn.functional.cross_entropy(restricted, labels, class_weights)
        if not self.past_columns:
            return loss
        with torch.no_grad():
            old = self.architecture(self.past_tensors(), inputs)
        return loss + self.distillation_weight * distillation(
            scores, old, self.past_columns, self.temperature
        )

    def past_tensors(self) -> dict[str, Tensor]:
        """The network as it was before this task."""
        constants = {n: t for n, t in self.tensors().items() if n in self.constant_names}
        return dict(zip(self.past_names, self.past, strict=True)) | constants


class LwF(DenseLearner):
    """A learner that needs no old data: the network before the task is its teacher."""

    name: ClassVar[str] = "lwf"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = LwFSettings
    trains_old_heads: ClassVar[bool] = True

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        is_domain = self.settings.scenario_type == "domain-IL"
        num_old = self.num_old(outputs)
        module = LwFModule(self.architecture, self.start(task), outputs, num_old=num_old)
        module.distillation_weight = self.settings.distillation_weight
        module.temperature = self.settings.temperature
        if self.learned:
            columns = outputs.columns[:1] if is_domain else outputs.columns[:-1]
            module.remember_(self.tensors, columns)
        return module
