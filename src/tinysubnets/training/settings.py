"""The settings of training, the same for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tinysubnets.errors import check_setting
from tinysubnets.tasks.augment import Augmentation


@dataclass(frozen=True)
class TrainingSettings:
    """How every task is trained.

    - `epochs`: at most so many per task, or per rung of a ladder (twice as many for its first
      difference to a base).
    - `kept_epoch`: the epoch that is kept: of the best validation "accuracy", of equal ones that of
      the lowest loss; of the lowest validation "loss"; or the "last". "auto" keeps the last one
      where fewer than 60 validation samples could not tell which is best, else by accuracy. A rung
      of low rank keeps the last one unless this says "loss".
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
        micro, lr, min_lr = self.micro_batch, self.lr, self.min_lr
        for name in ("epochs", "batch_size", "codebook_updates_per_epoch"):
            value = getattr(self, name)
            check_setting(f"training.{name}", value, value >= 1, "an integer of at least 1")
        is_fine = micro is None or micro >= 1
        check_setting("training.micro_batch", micro, is_fine, "an integer of at least 1")
        check_setting("training.lr", lr, 0 < lr < math.inf, "more than 0")
        allowed = f"more than 0, at most lr (now {lr:g})"
        check_setting("training.min_lr", min_lr, 0 < min_lr <= lr, allowed)
        is_fine, allowed = 0 <= self.momentum < 1, "a number of at least 0, below 1"
        check_setting("training.momentum", self.momentum, is_fine, allowed)
        for name in ("warmup_epochs", "weight_decay", "score_lr", "score_eps"):
            value = getattr(self, name)
            is_fine = value is None or 0 <= value < math.inf
            check_setting(f"training.{name}", value, is_fine, "a number of at least 0")
