"""Ada-QPackNet: disjoint weights per task, as few and as narrow as accuracy allows.

M. Pietroń, D. Żurek, K. Faber, R. Corizzo: Ada-QPackNet: Adaptive Pruning with Bit Width Reduction
as an Efficient Continual Learning Method without Forgetting, ECAI 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tinysubnets import config
from tinysubnets.architecture import Architecture
from tinysubnets.bank import Bank
from tinysubnets.errors import SettingError
from tinysubnets.learners.compress import Compressor
from tinysubnets.learners.dense_settings import check_setting
from tinysubnets.learners.lesson import Lesson
from tinysubnets.learners.magnitude import MagnitudeLesson
from tinysubnets.learners.packnet import check_shares
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.store import SubnetStore
from tinysubnets.subnet import Coded, Subnet
from tinysubnets.task import Task
from tinysubnets.training_settings import TrainingSettings

LEAST_BITS = 2


@dataclass(frozen=True)
class AdaQPackNetSettings:
    """What Ada-QPackNet does with each task.

    - `density`: the largest share of a layer's weights a task may keep; it keeps fewer, by steps of
      `shrink`, while validation accuracy loses at most `pruning_tolerance`.
    - `retrain`: the share of all epochs that the kept weights are trained for, from the values they
      started with.
    - `first_bits`, `tolerance`: codes shrink from that width while the validation accuracy lost
      stays within the tolerance.
    """

    density: float = 0.1
    shrink: float = 0.8
    pruning_tolerance: float = 0.02
    retrain: float = 0.5
    first_bits: int = 6
    tolerance: float = 0.02
    max_banks: int = 1
    block: int = 1
    init: Literal["seeded", "given"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    setting: Literal["task", "class", "domain"] = "task"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, 1.0)
        check_setting("ada-qpacknet", self.setting, ("task",))
        if not 0 < self.shrink < 1:
            raise SettingError(f"shrink = {self.shrink!r} is not allowed; give a share below 1.")
        if not 2 <= self.first_bits <= 8:
            raise SettingError(f"first_bits = {self.first_bits!r} is not allowed; give 2 to 8.")


class AdaQPackNet(TinySubNets):
    """A learner that gives every task few weights of its own; it forgets nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        self.own = config.build(AdaQPackNetSettings, settings)
        names = ("density", "max_banks", "block", "init", "scale", "seed")
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            sharing="none",
            memory=None,
            post_pruning=False,
            private_bits=32,
            **{n: getattr(self.own, n) for n in names},
        )
        self.store.settings["ada-qpacknet"] = config.to_dict(self.own)

    def _lesson(self, task: Task) -> Lesson:
        return AdaQPackNetLesson(self, task, share=self.own.retrain, factor=1.0)


class AdaQPackNetLesson(MagnitudeLesson):
    """One task being learned: a lottery ticket among the free weights, then narrow codes."""

    learner: AdaQPackNet

    def first_mask(self, bank: Bank) -> Tensor:
        """The free blocks: nothing of other tasks is used."""
        return ~bank.owned

    def prune_(self) -> None:
        """Keep the sparsest of ever smaller masks that is accurate enough, and start it anew."""
        module, validator = self.module, self.training.validator
        least = validator(module.measured_tensors()).accuracy - self.learner.own.pruning_tolerance
        free = [int((~module.owned[i:j]).sum()) for i, j in module.layout.block_segments]
        density = self.learner.own.density
        best = module.largest(tuple(map(min, free, module.layout.keep(density))))
        while True:
            density *= self.learner.own.shrink
            keep = tuple(map(min, free, module.layout.keep(density)))
            trial = module.largest(keep)
            if torch.equal(trial, best) or self._accuracy(trial) < least:
                break
            best = trial
        module.fixed.copy_(best)
        start = self._start()
        with torch.no_grad():
            module.free.copy_(start.free)
            for name, parameter in zip(module.names, module.private, strict=True):
                parameter.copy_(start.private[name])

    def _accuracy(self, mask: Tensor) -> float:
        tensors = self.module.tensors(self.module.final_weights(mask))
        return self.training.validator({n: t.detach() for n, t in tensors.items()}).accuracy

    def _compress(self) -> tuple[Subnet, float]:
        work = Compressor(self)
        bits, own = shrunk(work, self.learner.own)
        return work.subnet(work.mask, bits, own), 0.0


def shrunk(work: Compressor, settings: AdaQPackNetSettings) -> tuple[int, tuple[Coded, ...]]:
    """The codes of a trained subnet, narrowed while validation accuracy stays within tolerance."""
    least = work.accuracy(work.weights(work.mask, None)) - settings.tolerance
    bits, own = settings.first_bits, work.coded(work.mask, settings.first_bits)
    for narrower in range(settings.first_bits - 1, LEAST_BITS - 1, -1):
        trial = work.coded(work.mask, narrower)
        if work.accuracy(work.weights(work.mask, trial)) < least:
            break
        bits, own = narrower, trial
    return bits, own
