"""From a trained task to a subnet: bit-width, post-pruning, codebooks, private tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.method.pruning import Candidate, Pruned, post_prune
from tinysubnets.model.subnet import Coded, Sample, Subnet, code
from tinysubnets.nn.masked import TaskModule
from tinysubnets.training.evaluate import Score, calibrated

if TYPE_CHECKING:
    from tinysubnets.method.learner import Lesson


MAX_BITS = 8
PRIVATE_LEVELS = (4, 5, 6, 8, 16, 32)


def compress(lesson: Lesson) -> tuple[Subnet, float]:
    """The subnet of a trained lesson, and the seconds that post-pruning took."""
    work = Compressor(lesson)
    bits, own = work.choose_bits(work.mask)
    begin = time.perf_counter()
    mask = work.mask
    if lesson.learner.settings.post_pruning:
        mask = work.prune(own, bits).mask
        own = work.coded(mask, bits)  # the codebooks fit what is left
    seconds = time.perf_counter() - begin
    assert lesson.learner.settings.bits in ("auto", bits)
    return work.subnet(mask, bits, own), seconds


class Compressor:
    """The trained module of a lesson, and ways to measure it with other weights."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson, self.settings = lesson, lesson.learner.settings
        self.module: TaskModule = lesson.module
        self.layout = lesson.module.layout
        self.free = self.module.free.detach()
        self.mask = self.module.mask()

    def own_weights(self, mask: Tensor) -> Tensor:
        """Which weights of the flat vector the task would add to its bank."""
        return self.layout.expand(mask & ~self.module.owned)

    def owned_share(self, mask: Tensor) -> float:
        """The share of weights owned once this task is claimed."""
        return self.layout.count(mask | self.module.owned) / self.layout.num_weights

    def coded(self, mask: Tensor, bits: int) -> tuple[Coded, ...]:
        """The task's own weights as codes, one codebook per layer or one for all."""
        own = self.own_weights(mask)
        return tuple(code(self.free[i:j][own[i:j]], bits) for i, j in self.module.code_segments)

    def weights(self, mask: Tensor, own: tuple[Coded, ...] | None) -> Tensor:
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
        return self.lesson.training.validator(self.tensors(weights)).accuracy

    def choose_bits(self, mask: Tensor) -> tuple[int, tuple[Coded, ...]]:
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

    def prune(self, own: tuple[Coded, ...], bits: int) -> Pruned:
        """Algorithm 2 on the quantized subnet."""
        values, settings = self.weights(self.mask, own), self.lesson.learner.pruning
        training, current = self.lesson.training, self.mask.clone()

        def count() -> Tensor:
            kept = torch.where(self.layout.expand(current), values, 0.0)
            precision = training.settings.precision  # candidates are only compared
            return training.validator.count(self.tensors(kept), settings.samples, precision)

        counts = training.recorded(count)

        def measure(mask: Tensor) -> float:
            current.copy_(mask)
            return Score.of(counts(), len(training.valid)).accuracy

        members = self.lesson.learner.store.members(self.lesson.decision.bank)
        masks = members if settings.objective == "bytes" else ()  # to bring them here takes time
        references = tuple(s.mask.to(self.mask.device) for s in masks)
        candidate = Candidate(self.mask, values, self.module.owned, bits, references)
        path = (self.settings.seed, "task", self.lesson.number)
        return post_prune(candidate, self.layout, settings, measure, path)

    def subnet(self, mask: Tensor, bits: int, own: tuple[Coded, ...]) -> Subnet:
        """The task with this mask and these codes, its private tensors final."""
        private, accuracy = self.store_private(mask, own)
        lesson = self.lesson
        return Subnet(
            name=lesson.task.name,
            classes=lesson.task.classes,
            normalisation=lesson.task.normalisation,
            bank=lesson.decision.bank,
            mask=mask.cpu(),
            bits=bits,
            own=own,
            private=private,
            shapes=lesson.learner.architecture.private_shapes(lesson.task.num_classes),
            memory=lesson.memory,
            decision=lesson.decision,
            valid_accuracy=accuracy,
            owned_before_pruning=self.owned_share(self.mask),
            sample=Sample.of(lesson.task.train.inputs(torch.arange(1))),
        )

    def store_private(self, mask: Tensor, own: tuple[Coded, ...]) -> tuple[dict[str, Coded], float]:
        """The private tensors as stored, with final statistics, and the accuracy then."""
        training, architecture = self.lesson.training, self.lesson.learner.architecture
        tensors = calibrated(
            architecture, self.tensors(self.weights(mask, own)), training.train, None
        )
        names = [s.name for s in architecture.private]

        def accuracy(coded: dict[str, Coded]) -> float:
            stored = {
                n: c.decode().reshape(tensors[n].shape).to(tensors[n]) for n, c in coded.items()
            }
            return training.validator(tensors | stored, calibrate=False).accuracy

        return _narrowest(
            {n: tensors[n] for n in names},
            self.settings.private_bits,
            self.settings.private_tolerance,
            accuracy,
        )


def _narrowest(
    tensors: dict[str, Tensor],
    bits: int | str,
    tolerance: float,
    accuracy: Callable[[dict[str, Coded]], float],
) -> tuple[dict[str, Coded], float]:
    """The narrowest stored form that loses at most the tolerance, or the given one."""
    if bits != "auto":
        coded = {n: _smaller(t, int(bits)) for n, t in tensors.items()}
        return coded, accuracy(coded)
    target = accuracy({n: code(t.flatten(), 32) for n, t in tensors.items()}) - tolerance
    for level in PRIVATE_LEVELS:
        coded = {n: _smaller(t, level) for n, t in tensors.items()}
        reached = accuracy(coded)
        if reached >= target:
            break
    return coded, reached


def _smaller(tensor: Tensor, bits: int) -> Coded:
    """A tensor's codes, or its values in float16 where codes and codebook would take more."""
    coded = code(tensor.flatten(), bits)
    if coded.codes is None:
        return coded
    plain = code(tensor.flatten(), 16)
    return plain if plain.size_bits <= coded.size_bits else coded
