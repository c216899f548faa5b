"""EWC: weights are held to what earlier tasks need, as firmly as their Fisher information says.

J. Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017.

After each task t the diagonal Fisher information F_t of the weights w_t is estimated. Later tasks
pay for moving weights that mattered:

    loss = cross-entropy + λ/2 · Σ_t F_t·(w − w_t)²

The sum over tasks is one quadratic again, up to a constant: kept are the importance F = Σ F_t and
the anchor Σ F_t·w_t / F, so that the method's state does not grow with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tinysubnets.baselines.base import DenseLearner, DenseSettings, DenseTrainer, check_at_least
from tinysubnets.baselines.dense_file import tensors_with_prefix
from tinysubnets.baselines.penalty import ProtectedModule, quadratic
from tinysubnets.method.base import ScenarioType
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule
from tinysubnets.tasks.task import Task

# The log-probabilities [classes] of one sample, with these weights in place of the network's.
Answers = Callable[[dict[str, Tensor], Tensor], Tensor]
Sums = dict[str, Tensor]

_CHUNK_VALUES = 1 << 25  # how many entries of per-sample Jacobians are held at a time


@dataclass(frozen=True)
class EWCSettings(DenseSettings):
    """EWC's settings.

    - `penalty_weight`: λ, how strongly weights are held.
    - `fisher_samples`: how many training samples the Fisher information is the mean of.
    - `fisher`: "exact" takes the expectation over the network's own answers, as the Fisher
      information is defined; "empirical" the given labels, as many implementations do.
    """

    penalty_weight: float = 30.0
    fisher_samples: int = 200
    fisher: Literal["exact", "empirical"] = "exact"

    def __post_init__(self) -> None:
        check_at_least(self, penalty_weight=0, fisher_samples=1)


class EWCModule(ProtectedModule):
    """A dense network that pays for leaving what earlier tasks need."""

    def penalty(self) -> Tensor:
        """λ/2 · Σ importance·(w − anchor)²."""
        distance = quadratic(self.weights(), self.importance, self.anchor)
        return 0.5 * self.penalty_weight * distance

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy plus the quadratic penalty."""
        return super().loss(inputs, labels, class_weights) + self.penalty()


class EWC(DenseLearner):
    """A learner with one quadratic penalty for all earlier tasks."""

    name: ClassVar[str] = "ewc"
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = EWCSettings
    settings: EWCSettings

    def make_module(self, task: Task) -> DenseModule:
        """The network so far, held to the anchor."""
        outputs = self.outputs(task)
        return EWCModule(
            self.architecture,
            self.start(task),
            outputs,
            num_old=self.num_old(outputs),
            same_classes=self.scenario_type == "domain-IL",
            penalty_weight=self.settings.penalty_weight,
            importance=tensors_with_prefix(self.extra_state, "importance/"),
            anchor=tensors_with_prefix(self.extra_state, "anchor/"),
        )

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the task's Fisher information to the importance, and move the anchor to it."""
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
        importance = tensors_with_prefix(self.extra_state, "importance/")
        anchor = tensors_with_prefix(self.extra_state, "anchor/")
        for name, value in new.items():
            own, here = value.cpu(), tensors[name]
            before = anchor.get(name, here)
            total = importance.get(name, torch.zeros_like(own)) + own
            # The mean of old anchor and new weights, weighted by their importances.
            moved = own / torch.where(total > 0, total, 1.0) * (here - before)
            self.extra_state[f"importance/{name}"] = total
            self.extra_state[f"anchor/{name}"] = before + moved
        return tensors


# --------------------------------------------------------------------------------------------------
# The diagonal Fisher information.


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
    output columns: F = mean over x of Σ_y p(y|x)·(∂ log p(y|x) / ∂w)².

    - `tensors`: the whole network, by name.
    - `names`: those of them whose information is wanted.
    - `inputs`: normalized samples [n, ...].
    - `columns`: the task's output columns, the first and the one behind the last.
    - `labels`: output columns [n]; given, the Fisher information is the empirical one, the squared
      gradient at that label.
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
        jacobian = torch.func.jacrev(answers)(moving, sample)  # of each tensor [classes, *shape]
        return {n: torch.tensordot(chance, j.square(), 1) for n, j in jacobian.items()}

    chunk = max(1, _CHUNK_VALUES // (chances.shape[1] * sum(t.numel() for t in moving.values())))
    total = {n: torch.zeros_like(t) for n, t in moving.items()}
    # Of the kinds of attention only the plain one can be mapped over samples.
    with sdpa_kernel(SDPBackend.MATH):
        for part, share in zip(inputs.split(chunk), chances.split(chunk), strict=True):
            for name, value in torch.func.vmap(squared)(part, share).items():
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
                gradients = torch.autograd.grad(
                    answer, list(leaves.values()), retain_graph=True, materialize_grads=True
                )  # 0 for what an answer does not depend on
                for name, gradient in zip(leaves, gradients, strict=True):
                    total[name] += share * gradient.square()
    return total
