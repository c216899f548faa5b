"""Validation: the accuracy of a candidate network, with statistics of that very network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.loader import Chunks, DeviceLoader
from tinysubnets.training.precision import arithmetic

BATCHNORM_SAMPLES = 2000
CHUNK = 2000


@dataclass(frozen=True)
class EvalResult:
    """How well a network did on a set: the share of correct answers and the mean cross-entropy."""

    accuracy: float
    loss: float

    @classmethod
    def of(cls, counts: Tensor, num_samples: int) -> EvalResult:
        """The score from what `count` gives."""
        correct, loss = counts.tolist()
        return cls(correct / num_samples, loss / num_samples)


@torch.no_grad()
def count(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    batches: DeviceLoader,
    *,
    chunk: int = CHUNK,
    answer: Callable[[Tensor, Tensor], Tensor] | None = None,
    precision: str = "float32",
) -> Tensor:
    """How many answers are right, and the sum of losses, of the network in evaluation mode.

    `answer` may change logits, given the labels, before they count.
    """
    found = torch.zeros(2, dtype=torch.float64, device=batches.device)
    for inputs, labels in batches.chunks(chunk):
        with arithmetic(precision, deterministic=True):
            logits = architecture(tensors, inputs).float()
        if answer is not None:
            logits = answer(logits, labels)
        right = (logits.argmax(1) == labels).sum()
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        found += torch.stack([right.double(), loss.double()])
    return found


def score(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    batches: DeviceLoader,
    chunk: int = CHUNK,
) -> EvalResult:
    """Accuracy and loss of the network with these tensors, in evaluation mode."""
    return EvalResult.of(count(architecture, tensors, batches, chunk=chunk), len(batches))


@torch.no_grad()
def recalibrate_batchnorm(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    batches: Chunks,
    limit: int | None = BATCHNORM_SAMPLES,
    chunk: int = CHUNK,
    precision: str = "float32",
) -> dict[str, Tensor]:
    """The tensors with normalization statistics estimated anew on training data, dropout off.

    Means and variances are pooled over chunks; `limit` bounds the samples, None takes all.
    """
    if not architecture.has_running_stats:
        return dict(tensors)
    found: list[tuple[int, dict[str, Tensor]]] = []
    for inputs, _ in batches.chunks(chunk, limit):
        own = {n: tensors[n].clone() for n in architecture.running_stats}
        with arithmetic(precision, deterministic=True):
            architecture({**tensors, **own}, inputs, "calibrate")
        found.append((len(inputs), own))
    return {**tensors, **(found[0][1] if len(found) == 1 else _pooled(found))}


def _pooled(found: list[tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Means and variances of all samples together, from those of several chunks."""
    out, total = {}, sum(size for size, _ in found)
    for name in (n for n in found[0][1] if n.endswith("running_mean")):
        spread = name.replace("running_mean", "running_var")
        mean, square = (torch.zeros_like(found[0][1][n]).double() for n in (name, spread))
        for size, own in found:
            part = own[name].double()
            mean += size / total * part
            square += size / total * (own[spread].double() + part.square())
        out[name] = mean.float()
        out[spread] = (square - mean.square()).clamp(min=0).float()
    return out


class Validator:
    """A task's validation set, and the training subset that statistics are estimated on."""

    def __init__(
        self, architecture: Architecture, train: DeviceLoader, valid: DeviceLoader
    ) -> None:
        self.architecture, self.train, self.valid = architecture, train, valid

    def __call__(self, tensors: Mapping[str, Tensor], *, calibrate: bool = True) -> EvalResult:
        """The validation score; statistics are estimated anew unless they are final already."""
        if not calibrate:
            return score(self.architecture, tensors, self.valid)
        return EvalResult.of(self.count(tensors), len(self.valid))

    def count(
        self,
        tensors: Mapping[str, Tensor],
        samples: int = BATCHNORM_SAMPLES,
        precision: str = "float32",
    ) -> Tensor:
        """Right answers and sum of losses, with statistics of so many training samples."""
        own = recalibrate_batchnorm(
            self.architecture, tensors, self.train, samples, precision=precision
        )
        return count(self.architecture, own, self.valid, precision=precision)
