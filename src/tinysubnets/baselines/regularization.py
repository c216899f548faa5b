"""A dense module whose weights are held to earlier values, each by its importance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tinysubnets.baselines.base import (
    DenseLearner,
    DenseSettings,
    DenseTrainer,
    DenseTraining,
    ScenarioType,
)
from tinysubnets.errors import SettingError
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.task import Task


class QuadraticPenaltyModule(DenseModule):
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
        penalty_weight: float,
    ) -> None:
        super().__init__(architecture, tensors, outputs, num_old=num_old, train_old=same_classes)
        self.penalty_weight = penalty_weight
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
        return 0.5 * self.penalty_weight * torch.stack(parts).sum()


def penalty_module(
    kind: type[QuadraticPenaltyModule], learner: DenseLearner, task: Task, outputs: Outputs
) -> QuadraticPenaltyModule:
    """The module of a learner's next task, held to where the network stands now."""
    is_domain = learner.settings.scenario_type == "domain-IL"
    return kind(
        learner.architecture,
        learner.start(task),
        outputs,
        num_old=learner.num_old(outputs),
        same_classes=is_domain,
        penalty_weight=learner.settings.penalty_weight,
    )


def tensors_with_prefix(extra_state: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Those of the kept tensors that are named `what`/…, by the names of the weights."""
    prefix = f"{what}/"
    return {n[len(prefix) :]: t for n, t in extra_state.items() if n.startswith(prefix)}


# --------------------------------------------------------------------------------------------------
# EWC: weights are held to what earlier tasks need, as firmly as their Fisher information says.
#
# J. Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017.


Answers = Callable[[dict[str, Tensor], Tensor], Tensor]
Sums = dict[str, Tensor]

_CHUNK_VALUES = 1 << 25  # how many entries of per-sample Jacobians are held at a time


@dataclass(frozen=True)
class EWCSettings(DenseSettings):
    """EWC's settings: the strength λ, and how the Fisher information is taken from some samples.

    "exact" takes the expectation over the network's own answers, as the Fisher information is
    defined; "empirical" the given labels, as many implementations do.
    """

    penalty_weight: float = 30.0
    fisher_samples: int = 200
    fisher: Literal["exact", "empirical"] = "exact"

    def __post_init__(self) -> None:
        if self.penalty_weight < 0 or self.fisher_samples < 1:
            raise SettingError(
                f"penalty_weight = {self.penalty_weight!r} and fisher_samples = "
                f"{self.fisher_samples!r} are not allowed; give at least 0 and at least 1."
            )


def fisher(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    names: Sequence[str],
    inputs: Tensor,
    columns: tuple[int, int],
    labels: Tensor | None = None,
) -> dict[str, Tensor]:
    """The diagonal Fisher information of the named tensors, mean over normalized inputs.

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
        for part, pretrained in zip(inputs.split(chunk), chances.split(chunk), strict=True):
            for name, value in torch.func.vmap(squared)(part, pretrained).items():
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


class EWCModule(QuadraticPenaltyModule):
    """A dense network that pays for leaving what earlier tasks need."""

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy plus the quadratic penalty."""
        return super().loss(inputs, labels, class_weights) + self.penalty()


class EWC(DenseLearner):
    """A learner with one quadratic penalty per earlier task.

    Their sum is one quadratic: kept are the summed importances and the weighted mean anchor.
    """

    name: ClassVar[str] = "ewc"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = EWCSettings

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        module = penalty_module(EWCModule, self, task, outputs)
        if self.extra_state:
            module.protect_(
                tensors_with_prefix(self.extra_state, "importance"),
                tensors_with_prefix(self.extra_state, "anchor"),
            )
        return module

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        module = trainer.module
        assert isinstance(module, EWCModule)
        samples = list(trainer.training.train.chunks(1000, self.settings.fisher_samples))
        inputs, labels = (torch.cat(parts) for parts in zip(*samples, strict=True))
        full = {n: t.to(self.device) for n, t in (tensors | self.architecture.constants).items()}
        new = fisher(
            self.architecture,
            full,
            module.protected,
            inputs,
            trainer.columns,
            labels if self.settings.fisher == "empirical" else None,
        )
        old, anchor = (
            tensors_with_prefix(self.extra_state, "importance"),
            tensors_with_prefix(self.extra_state, "anchor"),
        )
        for name, value in new.items():
            own, here = value.cpu(), tensors[name]
            before = old.get(name, torch.zeros_like(own))
            total = before + own
            moved = own / torch.where(total > 0, total, 1.0) * (here - anchor.get(name, here))
            self.extra_state[f"importance/{name}"] = total
            self.extra_state[f"anchor/{name}"] = anchor.get(name, here) + moved
        return tensors


# --------------------------------------------------------------------------------------------------
# SI: weights are held by how much their path through training has lowered earlier losses.
#
# F. Zenke, B. Poole, S. Ganguli: Continual Learning Through Synaptic Intelligence, ICML 2017.


@dataclass(frozen=True)
class SISettings(DenseSettings):
    """SI's settings: the strength c, and the damping ξ of weights that hardly moved."""

    penalty_weight: float = 5.0
    damping: float = 0.1

    def __post_init__(self) -> None:
        if self.penalty_weight < 0 or self.damping <= 0:
            raise SettingError(
                f"penalty_weight = {self.penalty_weight!r} and damping = {self.damping!r} are not "
                "allowed; give at least 0 and more than 0."
            )


class SIModule(QuadraticPenaltyModule):
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
                w.grad.add_(2 * module.penalty_weight * importance * (w - anchor))  # type: ignore[union-attr]
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
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = SISettings

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        module = penalty_module(SIModule, self, task, outputs)
        if self.extra_state:
            module.protect_(tensors_with_prefix(self.extra_state, "importance"), self.tensors)
        return module

    def _training(self, module: DenseModule, task: Task) -> DenseTraining:
        return self._plain_training(SITraining, module, task)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        module = trainer.module
        assert isinstance(module, SIModule)
        table = zip(module.protected, module.path, module.anchor, strict=True)
        for name, path, anchor in table:
            moved = tensors[name] - anchor.cpu()
            new = consolidated(path.detach().cpu(), moved, self.settings.damping)
            key = f"importance/{name}"
            self.extra_state[key] = self.extra_state.get(key, torch.zeros_like(new)) + new
        return tensors
