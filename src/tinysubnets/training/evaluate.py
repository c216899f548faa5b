"""Evaluation: accuracy and loss of a network with given tensors, BatchNorm statistics its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tinysubnets.errors import TaskError
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.loader import Chunks, DeviceLoader
from tinysubnets.training.precision import arithmetic

BATCHNORM_SAMPLES = 2000  # training samples that statistics are estimated on after an epoch
EVAL_BATCH = 2000  # samples per forward pass; fewer where inputs are large


@dataclass(frozen=True)
class EvalResult:
    """How well a network did on a set: the share of correct answers and the mean cross-entropy."""

    accuracy: float
    loss: float

    @classmethod
    def of(cls, counts: Tensor, num_samples: int) -> EvalResult:
        """The result from what `count_correct` gives; the host waits for it here."""
        correct, loss = counts.tolist()
        return cls(correct / num_samples, loss / num_samples)

    @property
    def ranked_accuracy(self) -> float:
        """The accuracy to choose by: below any other where a logit is no finite number."""
        return self.accuracy if math.isfinite(self.loss) else -math.inf


def evaluate(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    loader: DeviceLoader,
    batch_size: int = EVAL_BATCH,
) -> EvalResult:
    """Accuracy and loss of the network with these tensors, in evaluation mode."""
    counts = count_correct(architecture, tensors, loader, batch_size=batch_size)
    return EvalResult.of(counts, len(loader))


@torch.no_grad()
def count_correct(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    loader: DeviceLoader,
    *,
    batch_size: int = EVAL_BATCH,
    adjust_logits: Callable[[Tensor, Tensor], Tensor] | None = None,
    precision: str = "float32",
) -> Tensor:
    """The number of correct answers and the sum of losses, float64 [2], in evaluation mode.

    As a tensor on the device, which nobody waits for, so that a CUDA graph can hold it.
    `adjust_logits(logits, labels)` changes logits before they count; `precision` is that of
    `arithmetic`.
    """
    counts = torch.zeros(2, dtype=torch.float64, device=loader.device)
    for inputs, labels in loader.chunks(batch_size):
        with arithmetic(precision, deterministic=True):
            logits = architecture(tensors, inputs).float()
        if adjust_logits is not None:
            logits = adjust_logits(logits, labels)
        counts += count_answers(logits, labels)
    return counts


def count_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """The number of correct answers of a batch and the sum of its losses, float64 [2]."""
    correct = (logits.argmax(1) == labels).sum()
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([correct.double(), loss.double()])


@torch.no_grad()
def check_finite(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    loader: DeviceLoader,
    task: str,
) -> None:
    """Refuse to keep a task whose network gives logits that are no finite numbers.

    - `tensors`: the network as it would be kept.
    - `loader`: the task's validation data.
    """
    bad = torch.zeros((), dtype=torch.int64, device=loader.device)
    for inputs, _ in loader.chunks(EVAL_BATCH):
        with arithmetic("float32", deterministic=True):
            logits = architecture(tensors, inputs)
        bad += (~logits.isfinite()).any(1).sum()
    if count := int(bad):
        raise TaskError(
            f"task {task!r} is not kept: {count} of its {len(loader)} validation samples have "
            f"logits that are NaN or infinite. {cause_of_nan(architecture)}"
        )


def cause_of_nan(architecture: Architecture) -> str:
    """What most likely makes numbers of a network NaN, and what to do."""
    if names := architecture.weight_norms():
        return (
            f"Weight norm divides {names[0]!r} by the norm of each row, and a row of which a mask "
            "keeps nothing has none: raise density, or keep such weights out of the banks by "
            "Architecture(net, shared=lambda name, tensor: ...)."
        )
    return "Lower training.lr and score_lr, and look for divisions and logarithms in the network."


@torch.no_grad()
def recalibrate_batchnorm(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    loader: Chunks,
    limit: int | None = BATCHNORM_SAMPLES,
    batch_size: int = EVAL_BATCH,
    precision: str = "float32",
) -> dict[str, Tensor]:
    """The tensors with BatchNorm statistics estimated anew on training data, dropout off.

    Running averages of training are those of weights that have changed since; these are of the
    given ones, pooled over all batches. `limit` bounds the samples, None takes all.
    """
    if not architecture.has_running_stats:
        return dict(tensors)
    found: list[tuple[int, dict[str, Tensor]]] = []  # samples and statistics of each batch
    for inputs, _ in loader.chunks(batch_size, limit):
        own = {n: tensors[n].clone() for n in architecture.running_stats}
        with arithmetic(precision, deterministic=True):
            architecture({**tensors, **own}, inputs, "calibrate")  # written into `own`
        found.append((len(inputs), own))
    return {**tensors, **pooled_stats(found)}


def pooled_stats(found: list[tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Means and variances of all samples together, from the size and those of each batch.

    The variance of the whole is the mean of squares less the square of the mean.
    """
    if len(found) == 1:
        return found[0][1]
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
