"""The settings of training, the same for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tinysubnets.errors import SettingError
from tinysubnets.tasks.augment import Augmentation


@dataclass(frozen=True)
class TrainingSettings:
    """How every task is trained.

    - `epochs`: at most so many per task, or per rung of a ladder (twice as many for its first
      difference to a base).
    - `kept_epoch`: the epoch that is kept: of the best validation "accuracy", of equal ones that of
      the lowest loss; of the lowest validation "loss"; or the "last". "auto" keeps the last one
      where fewer than 60 validation samples could not tell which is best, else by accuracy. A rung
      of low rank keeps the last one instead of that of the best accuracy.
    - `batch_size`: samples per step; the last batch of an epoch is filled up from its beginning.
    - `micro_batch`: at most so many samples of a batch pass the network at once, and gradients add
      up to those of the batch; for large images where memory is short. BatchNorm that is not frozen
      takes its statistics from each part.
    - `optimizer`: the rule of each step.
    - `lr`, `min_lr`, `schedule`: the learning rate falls from `lr` to `min_lr` by a "cosine", is
      halved after six epochs without a better validation loss ("plateau", which ends training below
      `min_lr`), or stays "constant".
    - `warmup_epochs`: within the first so many epochs the learning rate rises from 0.
    - `score_lr`: the rate of mask scores, by default the same.
    - `score_eps`: a large one makes Adam move scores by their gradients: those that hardly matter
      stay, and masks cost fewer bytes.
    - `momentum`, `nesterov`: of the optimizer "sgd", and whether it looks ahead by it.
    - `weight_decay`: of all but mask scores.
    - `codebook_updates_per_epoch`: how often training codebooks are fitted anew.
    - `augmentation`: what is changed in training images at random.
    - `engine`: "eager" runs step by step, "graph" captures steps as CUDA graphs where there is a
      GPU, "auto" does too, "compiled" compiles them by `torch.compile` besides.
    - `precision`: of training on a GPU, see `precision.arithmetic`; "bfloat16" is by autocast, on a
      CPU too. Evaluation is in float32.
    - `deterministic`: only algorithms of cuDNN that give the same bits every time, at some cost.
    """

    epochs: int = 40
    kept_epoch: Literal["accuracy", "loss", "last", "auto"] = "accuracy"
    batch_size: int = 32
    micro_batch: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 3e-3
    min_lr: float = 1e-5
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    score_lr: float | None = None
    score_eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False
    warmup_epochs: float = 0.0
    weight_decay: float = 0.0
    codebook_updates_per_epoch: int = 3
    augmentation: Augmentation = field(default_factory=Augmentation)
    engine: Literal["auto", "eager", "graph", "compiled"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("codebook_updates_per_epoch", 1)):
            if getattr(self, name) < least:
                raise SettingError(
                    f"training.{name} = {getattr(self, name)} is not allowed; "
                    f"give an integer of at least {least}."
                )
        if self.micro_batch is not None and self.micro_batch < 1:
            raise SettingError(
                f"training.micro_batch = {self.micro_batch} is not allowed; give an integer of at "
                "least 1."
            )
        if not 0 < self.lr < math.inf:
            raise SettingError(f"training.lr = {self.lr} is not allowed; give more than 0.")
        if not 0 < self.min_lr <= self.lr:
            raise SettingError(
                f"training.min_lr = {self.min_lr} is not allowed; give more than 0, at most lr "
                f"(now {self.lr:g})."
            )
        for name, limit in (
            ("momentum", 1),
            ("warmup_epochs", math.inf),
            ("weight_decay", math.inf),
            ("score_lr", math.inf),
            ("score_eps", math.inf),
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < limit:
                raise SettingError(
                    f"training.{name} = {value} is not allowed; give a number of at least 0"
                    + (f", below {limit}." if limit == 1 else ".")
                )
