"""EWC: weights are held to what earlier tasks need, as firmly as their Fisher information says.

J. Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tinysubnets.architecture import Architecture
from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.errors import SettingError
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import DenseSettings, Setting
from tinysubnets.learners.protected import ProtectedModule, kept_tensors, protected_module
from tinysubnets.task import Task

_CHUNK_VALUES = 1 << 25  # how many entries of per-sample Jacobians are held at a time


@dataclass(frozen=True)
class EWCSettings(DenseSettings):
    """EWC's settings: the strength λ, and how the Fisher information is taken from some samples.

    "exact" takes the expectation over the network's own answers, as the Fisher information is
    defined; "empirical" the given labels, as many implementations do.
    """

    strength: float = 30.0
    fisher_samples: int = 200
    fisher: Literal["exact", "empirical"] = "exact"

    def __post_init__(self) -> None:
        if self.strength < 0 or self.fisher_samples < 1:
            raise SettingError(
                f"strength = {self.strength!r} and fisher_samples = {self.fisher_samples!r} are "
                "not allowed; give at least 0 and at least 1."
            )


def fisher(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    names: Sequence[str],
    inputs: Tensor,
    columns: tuple[int, int],
    labels: Tensor | None = None,
) -> dict[str, Tensor]:
    """The diagonal Fisher information of the named tensors, mean over normalised inputs.

    The expectation over labels is taken exactly, under the network's own distribution over its
    output columns: F = mean over x of Σ_y p(y|x)·(∂ log p(y|x) / ∂w)². With `labels` (output
    columns) given it is the empirical one: the squared gradient at that label.
    """
    moving = {n: tensors[n] for n in names}
    rest = {n: t for n, t in tensors.items() if n not in moving}

    def log_probabilities(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        scores = architecture(rest | weights, sample[None])[0, slice(*columns)]
        return scores.log_softmax(0)

    def squared(sample: Tensor, given: Tensor) -> dict[str, Tensor]:
        chance = log_probabilities(moving, sample).exp() if labels is None else given
        jacobian = torch.func.jacrev(log_probabilities)(moving, sample)
        return {n: torch.tensordot(chance, j.square(), 1) for n, j in jacobian.items()}

    num = columns[1] - columns[0]
    chances = torch.zeros(len(inputs), num, device=inputs.device)
    if labels is not None:
        chances[torch.arange(len(inputs), device=inputs.device), labels - columns[0]] = 1.0
    chunk = max(1, _CHUNK_VALUES // (num * sum(t.numel() for t in moving.values())))
    total = {n: torch.zeros_like(t) for n, t in moving.items()}
    for part, given in zip(inputs.split(chunk), chances.split(chunk), strict=True):
        for name, value in torch.func.vmap(squared)(part, given).items():
            total[name] += value.sum(0)
    return {n: t / len(inputs) for n, t in total.items()}


class EWCModule(ProtectedModule):
    """A dense network that pays for leaving what earlier tasks need."""

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy plus the quadratic penalty."""
        return super().loss(inputs, labels, class_weights) + self.penalty()


class EWC(DenseLearner):
    """A learner with one quadratic penalty per earlier task.

    Their sum is one quadratic: kept are the summed importances and the weighted mean anchor.
    """

    name: ClassVar[str] = "ewc"
    allowed: ClassVar[tuple[Setting, ...]] = ("task", "domain")
    settings_class: ClassVar[type[DenseSettings]] = EWCSettings

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        module = protected_module(EWCModule, self, task, outputs)
        if self.kept:
            module.protect_(
                kept_tensors(self.kept, "importance"), kept_tensors(self.kept, "anchor")
            )
        return module

    def _keep_(self, lesson: DenseLesson, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        module = lesson.module
        assert isinstance(module, EWCModule)
        samples = list(lesson.training.train.chunks(1000, self.settings.fisher_samples))
        inputs, labels = (torch.cat(parts) for parts in zip(*samples, strict=True))
        full = {n: t.to(self.device) for n, t in (tensors | self.architecture.constants).items()}
        new = fisher(
            self.architecture,
            full,
            module.protected,
            inputs,
            lesson.columns,
            labels if self.settings.fisher == "empirical" else None,
        )
        old, anchor = kept_tensors(self.kept, "importance"), kept_tensors(self.kept, "anchor")
        for name, value in new.items():
            own, here = value.cpu(), tensors[name]
            before = old.get(name, torch.zeros_like(own))
            total = before + own
            moved = own / torch.where(total > 0, total, 1.0) * (here - anchor.get(name, here))
            self.kept[f"importance/{name}"] = total
            self.kept[f"anchor/{name}"] = anchor.get(name, here) + moved
        return tensors
