"""PackNet: train all free weights, keep the largest, train them again, freeze them.

A. Mallya, S. Lazebnik: PackNet: Adding Multiple Tasks to a Single Network by Iterative Pruning,
CVPR 2018. A task uses its own weights and all earlier ones.
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
from tinysubnets.learners.dense_settings import check_setting
from tinysubnets.learners.lesson import Lesson
from tinysubnets.learners.magnitude import MagnitudeLesson
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.store import SubnetStore
from tinysubnets.task import Task
from tinysubnets.training_settings import TrainingSettings


@dataclass(frozen=True)
class PackNetSettings:
    """What PackNet does with each task.

    - `density`: the share a task keeps, `of` "all" weights of a layer or, as in the paper, of those
      still "free".
    - `retrain`: the share of all epochs that follows pruning; `retrain_factor` scales their rate.
    """

    density: float = 0.1
    of: Literal["all", "free"] = "all"
    retrain: float = 0.25
    retrain_factor: float = 0.1
    block: int = 1
    init: Literal["seeded", "given"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    setting: Literal["task", "class", "domain"] = "task"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, self.retrain_factor)
        check_setting("packnet", self.setting, ("task",))


class PackNet(TinySubNets):
    """A learner that packs tasks into one network by pruning; it forgets nothing."""

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
        self.own = config.build(PackNetSettings, settings)
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            density=self.own.density,
            bits=32,
            max_banks=1,
            memory=None,
            post_pruning=False,
            private_bits=32,
            **{n: getattr(self.own, n) for n in ("block", "init", "scale", "seed")},
        )
        self.store.settings["packnet"] = config.to_dict(self.own)

    def _lesson(self, task: Task) -> Lesson:
        return PackNetLesson(self, task, share=self.own.retrain, factor=self.own.retrain_factor)


class PackNetLesson(MagnitudeLesson):
    """One task being packed: all weights at first, then its own largest and all owned ones."""

    learner: PackNet

    def first_mask(self, bank: Bank) -> Tensor:
        """All blocks: owned ones as they are, free ones in training."""
        if not bool((~bank.owned).any()):
            self.learner._warn_once(self.decision.bank)
        return torch.ones_like(bank.owned)

    def prune_(self) -> None:
        """Keep the task's share of the free blocks, by magnitude, and everything owned."""
        module, own = self.module, self.learner.own
        free = [int((~module.owned[i:j]).sum()) for i, j in module.layout.block_segments]
        if own.of == "free":
            keep = tuple(min(f, max(1, round(own.density * f))) for f in free)
        else:
            keep = tuple(map(min, free, module.layout.keep(own.density)))
        module.fixed.copy_(module.largest(keep) | module.owned)


def check_shares(density: float, retrain: float, factor: float) -> None:
    """Refuse shares that are none."""
    for name, value in (("density", density), ("retrain_factor", factor)):
        if not 0 < value <= 1:
            raise SettingError(f"{name} = {value!r} is not allowed; give more than 0, at most 1.")
    if not 0 <= retrain < 1:
        raise SettingError(f"retrain = {retrain!r} is not allowed; give a share from 0 to below 1.")
