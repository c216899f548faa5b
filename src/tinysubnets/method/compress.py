"""From a trained task to a subnet: bit-width, post-pruning, codebooks, task-specific parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.method.pruning import Candidate, Pruned, post_prune
from tinysubnets.model.subnet import CodebookTensor, Sample, Subnet, code
from tinysubnets.nn.masked import TaskModule
from tinysubnets.training.evaluate import EvalResult, recalibrate_batchnorm

if TYPE_CHECKING:
    from tinysubnets.method.learner import TaskTrainer


MAX_BITS = 8
TASK_PARAM_LEVELS = (4, 5, 6, 8, 16, 32)


def compress(trainer: TaskTrainer) -> tuple[Subnet, float]:
    """The subnet of a trained lesson, and the seconds that post-pruning took."""
    work = Compressor(trainer)
    bits, own = work.choose_bits(work.mask)
    begin = time.perf_counter()
    mask = work.mask
    if trainer.learner.settings.post_pruning:
        mask = work.prune(own, bits).mask
        own = work.coded(mask, bits)  # the codebooks fit what is left
    seconds = time.perf_counter() - begin
    assert trainer.learner.settings.bits in ("auto", bits)
    return work.subnet(mask, bits, own), seconds


class Compressor:
    """The trained module of a lesson, and ways to measure it with other weights."""

    def __init__(self, trainer: TaskTrainer) -> None:
        self.trainer, self.settings = trainer, trainer.learner.settings
        self.module: TaskModule = trainer.module
        self.layout = trainer.module.layout
        self.free = self.module.free.detach()
        self.mask = self.module.mask()

    def own_weights(self, mask: Tensor) -> Tensor:
        """Which weights of the flat vector the task would add to its bank."""
        return self.layout.expand(mask & ~self.module.owned)

    def owned_share(self, mask: Tensor) -> float:
        """The share of weights owned once this task is claimed."""
        return self.layout.count(mask | self.module.owned) / self.layout.num_weights

    def coded(self, mask: Tensor, bits: int) -> tuple[CodebookTensor, ...]:
        """The task's own weights as codes, one codebook per layer or one for all."""
        own = self.own_weights(mask)
        return tuple(code(self.free[i:j][own[i:j]], bits) for i, j in self.module.codebook_segments)

    def weights(self, mask: Tensor, own: tuple[CodebookTensor, ...] | None) -> Tensor:
        """The flat weights under a mask: owned values, and own ones decoded or as trained."""
        values = self.free
        if own is not None:
            decoded = torch.cat([c.decode() for c in own]).to(self.free)
            values = self.free.masked_scatter(self.own_weights(mask), decoded)
        values = torch.where(self.module.owned_weights, self.module.bank_values, values)
        return torch.where(self.layout.expand(mask), values, torch.zeros((), device=values.device))

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """All tensors of the network with these shared weights and the trained private ones."""
        return {n: t.detach() for n, t in self.module.tensors(weights).items()}

    def accuracy(self, weights: Tensor) -> float:
        """The validation accuracy with these shared weights."""
        return self.trainer.training.evaluate(self.tensors(weights)).accuracy

    def choose_bits(self, mask: Tensor) -> tuple[int, tuple[CodebookTensor, ...]]:
        """The fixed bit-width, or the least that keeps accuracy within the tolerance."""
        if self.settings.bits != "auto":
            bits = int(self.settings.bits)
            return bits, self.coded(mask, bits)
        target = self.accuracy(self.weights(mask, None)) - self.settings.tolerance
        for bits in range(self.settings.first_bits, MAX_BITS + 1):
            own = self.coded(mask, bits)
            if self.accuracy(self.weights(mask, own)) >= target:
                break
        return bits, own

    def prune(self, own: tuple[CodebookTensor, ...], bits: int) -> Pruned:
        """Algorithm 2 on the quantized subnet."""
        values, settings = self.weights(self.mask, own), self.trainer.learner.pruning
        training, current = self.trainer.training, self.mask.clone()

        def count() -> Tensor:
            kept = torch.where(self.layout.expand(current), values, 0.0)
            precision = training.settings.precision  # candidates are only compared
            return training.count_correct(self.tensors(kept), settings.samples, precision)

        counts = training.captured(count)

        def measure(mask: Tensor) -> float:
            current.copy_(mask)
            return EvalResult.of(counts(), len(training.valid)).accuracy

        members = self.trainer.learner.store.members(self.trainer.decision.bank)
        masks = members if settings.objective == "bytes" else ()  # to bring them here takes time
        references = tuple(s.mask.to(self.mask.device) for s in masks)
        candidate = Candidate(self.mask, values, self.module.owned, bits, references)
        path = (self.settings.seed, "task", self.trainer.number)
        return post_prune(candidate, self.layout, settings, measure, path)

    def subnet(self, mask: Tensor, bits: int, own: tuple[CodebookTensor, ...]) -> Subnet:
        """The task with this mask and these codes, its task-specific parameters final."""
        task_params, accuracy = self.store_task_params(mask, own)
        trainer = self.trainer
        return Subnet(
            name=trainer.task.name,
            classes=trainer.task.classes,
            normalization=trainer.task.normalization,
            bank=trainer.decision.bank,
            mask=mask.cpu(),
            bits=bits,
            own=own,
            task_params=task_params,
            shapes=trainer.learner.architecture.task_param_shapes(trainer.task.num_classes),
            memory=trainer.memory,
            decision=trainer.decision,
            valid_accuracy=accuracy,
            owned_before_pruning=self.owned_share(self.mask),
            sample=Sample.of(trainer.task.train.inputs(torch.arange(1))),
        )

    def store_task_params(
        self, mask: Tensor, own: tuple[CodebookTensor, ...]
    ) -> tuple[dict[str, CodebookTensor], float]:
        """The task-specific parameters as stored, with final statistics, and the accuracy then."""
        training, architecture = self.trainer.training, self.trainer.learner.architecture
        tensors = recalibrate_batchnorm(
            architecture, self.tensors(self.weights(mask, own)), training.train, None
        )
        names = [s.name for s in architecture.task_params]

        def accuracy(coded: dict[str, CodebookTensor]) -> float:
            stored = {
                n: c.decode().reshape(tensors[n].shape).to(tensors[n]) for n, c in coded.items()
            }
            return training.evaluate(tensors | stored, recalibrate=False).accuracy

        return _narrowest(
            {n: tensors[n] for n in names},
            self.settings.task_param_bits,
            self.settings.task_param_tolerance,
            accuracy,
        )


def _narrowest(
    tensors: dict[str, Tensor],
    bits: int | str,
    tolerance: float,
    accuracy: Callable[[dict[str, CodebookTensor]], float],
) -> tuple[dict[str, CodebookTensor], float]:
    """The narrowest stored form that loses at most the tolerance, or the given one."""
    if bits != "auto":
        coded = {n: _smaller(t, int(bits)) for n, t in tensors.items()}
        return coded, accuracy(coded)
    target = accuracy({n: code(t.flatten(), 32) for n, t in tensors.items()}) - tolerance
    for level in TASK_PARAM_LEVELS:
        coded = {n: _smaller(t, level) for n, t in tensors.items()}
        reached = accuracy(coded)
        if reached >= target:
            break
    return coded, reached


def _smaller(tensor: Tensor, bits: int) -> CodebookTensor:
    """A tensor's codes, or its values in float16 where codes and codebook would take more."""
    coded = code(tensor.flatten(), bits)
    if coded.codes is None:
        return coded
    plain = code(tensor.flatten(), 16)
    return plain if plain.size_bits <= coded.size_bits else coded
