"""EWC: weights are held to what earlier tasks need, as firmly as their Fisher information says.

J. Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tinysubnets.architecture import Architecture
from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.errors import SettingError
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import DenseSettings, Setting
from tinysubnets.learners.protected import ProtectedModule, kept_tensors, protected_module
from tinysubnets.task import Task

Answers = Callable[[dict[str, Tensor], Tensor], Tensor]
Sums = dict[str, Tensor]

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
    moving = {n: tensors[n].detach() for n in names}
    rest = {n: t for n, t in tensors.items() if n not in moving}

    def answers(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return architecture(rest | weights, sample[None])[0, slice(*columns)].log_softmax(0)

    if labels is None:
        with torch.no_grad():
            chances = torch.stack([answers(moving, x) for x in inputs]).exp()
    else:
        chances = functional.one_hot(labels - columns[0], columns[1] - columns[0]).float()
    recurrent = any(isinstance(m, nn.RNNBase) for m in architecture.code("eval").modules())
    total = (_one_by_one if recurrent else _mapped)(answers, moving, inputs, chances)
    return {n: t / len(inputs) for n, t in total.items()}


def _mapped(answers: Answers, moving: dict[str, Tensor], inputs: Tensor, chances: Tensor) -> Sums:
    """Σ over samples and answers of chance · gradient², many samples at a time."""

    def squared(sample: Tensor, chance: Tensor) -> Sums:
        jacobian = torch.func.jacrev(answers)(moving, sample)
        return {n: torch.tensordot(chance, j.square(), 1) for n, j in jacobian.items()}

    chunk = max(1, _CHUNK_VALUES // (chances.shape[1] * sum(t.numel() for t in moving.values())))
    total = {n: torch.zeros_like(t) for n, t in moving.items()}
    # Of the kinds of attention only the plain one can be mapped over samples.
    with sdpa_kernel(SDPBackend.MATH):
        for part, given in zip(inputs.split(chunk), chances.split(chunk), strict=True):
            for name, value in torch.func.vmap(squared)(part, given).items():
                total[name] += value.sum(0)
    return total


def _one_by_one(
    answers: Answers, moving: dict[str, Tensor], inputs: Tensor, chances: Tensor
) -> Sums:
    """The same sums by plain gradients: recurrent layers cannot be mapped over samples."""
    leaves = {n: t.clone().requires_grad_() for n, t in moving.items()}
    total = {n: torch.zeros_like(t) for n, t in moving.items()}
    # cuDNN's recurrent layers have no gradients in evaluation mode.
    with torch.backends.cudnn.flags(enabled=False):
        for sample, chance in zip(inputs, chances, strict=True):
            for share, answer in zip(chance, answers(leaves, sample), strict=True):
                gradients = torch.autograd.grad(answer, list(leaves.values()), retain_graph=True)
                for name, gradient in zip(leaves, gradients, strict=True):
                    total[name] += share * gradient.square()
    return total


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
