"""LwF: on new data the outputs for earlier tasks are held to those of the network before.

Z. Li, D. Hoiem: Learning without Forgetting, ECCV 2016.

The network as it was before a task is the teacher of all earlier tasks; no old data are needed:

    loss = cross-entropy on the new task + λ · Σ_heads H(softmax(old / T), softmax(new / T))

with the logits `old` of the teacher and `new` of the network under every earlier head, both for the
new task's inputs, softened by the temperature T. Left out is the paper's warm-up of the new head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tinysubnets.baselines.base import DenseLearner, DenseSettings, check_at_least
from tinysubnets.errors import SettingError
from tinysubnets.method.base import ScenarioType
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.task import Task


@dataclass(frozen=True)
class LwFSettings(DenseSettings):
    """LwF's settings.

    - `distillation_weight`: λ, how much old answers count beside new labels.
    - `temperature`: T, which softens the answers that are compared.
    """

    distillation_weight: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        check_at_least(self, distillation_weight=0)
        if self.temperature <= 0:
            raise SettingError(
                f"temperature = {self.temperature!r} is not allowed; give more than 0."
            )


def distillation(
    new: Tensor, old: Tensor, columns: Sequence[tuple[int, int]], temperature: float
) -> Tensor:
    """The cross-entropy of new answers to old ones, both softened, summed over heads.

    Stationary where new and old logits are equal.

    - `new`, `old`: logits [n, at least as many as there are columns].
    - `columns`: the output columns of every head, the first and the one behind the last.
    - `temperature`: what logits are divided by.
    """
    total = new.new_zeros(())
    for start, stop in columns:
        target = (old[:, start:stop] / temperature).softmax(1)
        answer = (new[:, start:stop] / temperature).log_softmax(1)
        total = total - (target * answer).sum(1).mean()
    return total


class LwFModule(DenseModule):
    """A dense network beside a copy of what it was before this task.

    - `before`: the tensors of the teacher, by name; empty with the first task.
    - `past_columns`: the output columns of the heads that it teaches.
    - `distillation_weight`, `temperature`: λ and T.
    """

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
        outputs: Outputs,
        *,
        num_old: int,
        before: Mapping[str, Tensor],
        past_columns: Sequence[tuple[int, int]],
        distillation_weight: float,
        temperature: float,
    ) -> None:
        super().__init__(architecture, tensors, outputs, num_old=num_old)
        self.past_names = sorted(before)  # a restored learner may hold them in another order
        self.past = nn.ParameterList(
            [nn.Parameter(before[n].clone(), requires_grad=False) for n in self.past_names]
        )
        self.past_columns = tuple(past_columns)
        self.distillation_weight, self.temperature = distillation_weight, temperature

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
    settings: LwFSettings

    def make_module(self, task: Task) -> DenseModule:
        """The network so far beside a copy of itself; earlier heads are trained too."""
        outputs = self.outputs(task)
        heads = outputs.columns[:-1]
        return LwFModule(
            self.architecture,
            self.start(task),
            outputs,
            num_old=self.num_old(outputs),
            before=self.tensors,
            # With the same classes in all tasks there is one head.
            past_columns=heads[:1] if self.scenario_type == "domain-IL" else heads,
            distillation_weight=self.settings.distillation_weight,
            temperature=self.settings.temperature,
        )
