"""The settings of TinySubNets: one main dial, `density`, and the choices the paper leaves open."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from tinysubnets.errors import SettingError
from tinysubnets.nn import MAX_RANK

# Cheaper than any share of the weights, in this order; differences of low rank come behind.
FREE_RUNGS = {"head": -3.0, "reuse": -2.0, "norms": -1.0}
# Those tried where none are given. Over a base few: each is one more that validation data may
# overrate, and a difference of low rank does as well as norms and sparse ones together.
OVER_BASE, OVER_TASK = ("head", "reuse", "rank 4"), ("0.5%", "2%", "5%")


@dataclass(frozen=True)
class Rung:
    """One rung of a ladder.

    - `name`: as in the setting `rungs`.
    - `density`: of the difference; 0 where there is none.
    - `rank`: that of a difference of low rank; 0 where there is none.
    - `has_norms`: whether the task gets scales, shifts and biases of its own.
    - `reuses`: whether it starts from what an earlier task has added to the base.
    - `first`: the density that pruning begins with, that of a denser rung before it.
    - `is_first_difference`: whether it is the densest of a ladder.
    """

    name: str
    density: float = 0.0
    rank: int = 0
    has_norms: bool = False
    reuses: bool = False
    first: float = 1.0
    is_first_difference: bool = False


def _share(name: str) -> float:
    """What a share such as "0.5%" says; NaN where it is no number."""
    try:
        return float(name.removesuffix("%")) / 100
    except ValueError:
        return math.nan


def parse_rungs(names: tuple[str, ...]) -> tuple[Rung, ...]:
    """The rungs of that names, from the cheapest to the dearest.

    >>> [(r.rank, r.density) for r in parse_rungs(("head", "norms", "rank 4", "0.5%"))]
    [(0, 0.0), (0, 0.0), (4, 0.0), (0, 0.005)]
    """
    out: list[Rung] = []
    order: list[tuple[int, float]] = []  # kinds from the cheapest on, and within them
    fine = True
    for name in names:
        kind, number = 0, FREE_RUNGS.get(name, math.nan)
        rung = Rung(name, has_norms=name == "norms", reuses=name == "reuse")
        if rank := re.fullmatch(r"rank ([0-9]{1,2})", name):
            kind, number = 1, int(rank[1])
            rung = replace(rung, rank=int(rank[1]))
            fine = fine and 1 <= number <= MAX_RANK
        elif name.endswith("%"):
            kind, number = 2, _share(name)
            rung = replace(rung, density=number)
            fine = fine and 0 < number <= 1
        out.append(rung)
        order.append((kind, number))
    fine = fine and not any(math.isnan(number) for _, number in order)
    fine = fine and any(not r.reuses for r in out) and all(a < b for a, b in pairwise(order))
    allowed = (
        '"head", "reuse", "norms", ranks such as "rank 4" and shares such as "0.5%", each dearer '
        "than the last"
    )
    _require(fine, "rungs", list(names), allowed)
    return tuple(out)


@dataclass(frozen=True)
class TSNSettings:
    """What TinySubNets does with each task.

    - `density`: the share of shared weights a task's mask keeps.
    - `density_exponent`: 0 gives every tensor that density; above, small tensors are denser, by
      their size to this power, and large ones sparser, so that the whole has it.
    - `selection`: "scores" learns a mask by a score for each weight over a bank, as the paper does;
      "magnitude" trains all weights of a task and prunes them gradually down to `density`, the
      smallest first: no scores, no bank, the task's values are its own.
    - `reference`: with "magnitude", what a task's own values are added to: the weights of the
      "previous" task or of the most "similar" one, so that it stores where and how it differs; or
      "none".
    - `first_density`, `difference_decay`, `difference_lr`: the density of a task without a
      reference, by default `density`; the weight decay of a task with one, and the learning rate of
      what it adds to its weights, by default those of training (over a base, a tenth of that rate).
    - `price`: how many points of validation accuracy a kilobyte must gain. A task then climbs a
      ladder of `rungs`, each only if it is worth its bytes. 0 trains every task at `density`. By
      default 0.02 over a frozen base, else 0.
    - `rungs`: over a base the "head" alone; "reuse", a head over what an earlier task has added to
      the base; "norms", own scales, shifts and biases; differences of low rank, such as "rank 4",
      and sparse ones of a density, such as "0.5%", which come in their place. Over an earlier task
      head and norms are one, and there are no low ranks. By default "head", "reuse" and "rank 4"
      over a base, "0.5%", "2%" and "5%" over an earlier task.
    - `bits`: the width of a code; "auto" takes the least of `first_bits`…8 that loses at most
      `tolerance` of validation accuracy; 32 stores weights as they are.
    - `first_bits`: the least width that "auto" tries.
    - `training_bits`: the width while training with bits "auto".
    - `tolerance`: the share of validation accuracy that "auto" may lose.
    - `sharing`: "values" lets a task use what earlier tasks own, "none" keeps tasks disjoint.
    - `block`: mask bits cover this many neighbors of a row, or a whole convolution kernel.
    - `max_banks`, `threshold`: a task farther than `threshold` from all others opens a new bank
      (1 = as alike as two halves of one task) while there are fewer than `max_banks`.
    - `memory`, `memory_samples`: what is kept of how many samples to tell tasks apart.
    - `post_pruning`: whether Algorithm 2 runs after training.
    - `score_init`, `previous_mask_of`: mask scores start "random", or with the "previous_mask" on
      top: that of the bank's last or most similar task; or they "continue", and free values with
      them, from the best epoch of the bank's last task, as the paper's Algorithm 1 has it. What
      they go on from lies in a run's checkpoint, not in a model.
    - `init`, `scale`: where free values start from, and how wide the random ones are spread. With
      "pretrained" they are the network's own, and mask scores start from their magnitudes.
    - `codebooks`: one per "layer" or one per "task".
    - `task_param_bits`, `task_param_tolerance`: how finely heads, biases and norms are rounded,
      from 4 to 8 bits, or 16 or 32: see `TaskParamSettings`. "auto" takes the coarsest form that
      loses at most that share of validation accuracy, or a few samples more with the same loss.
    - `quantization`: "straight_through" trains values that are rounded to centroids in every step;
      "in_place" overwrites a task's own values by their centroids where codebooks are updated, and
      trains them as floats in between, as the paper does.
    - `layer_loss_weight`, `layer_loss`: the weight λ of the layer-wise loss, and its form: "both"
      sides of each layer get gradients, the compressed and the full one, as in the paper; or the
      full side, under the task's own mask, is made to "commit" to the compressed one, relative to
      the size of its output.
    - `isolated`: whether every task gets a bank for itself, not counted by `max_banks`, so that it
      can be removed exactly at any time.
    - `scenario_type`: how accuracy is measured: "task-IL" tells the task of an input, "class-IL"
      (classes of all tasks) and "domain-IL" (the same classes in every task) do not. Learning is
      the same.
    """

    density: float = 0.3
    density_exponent: float = 0.0
    selection: Literal["scores", "magnitude"] = "scores"
    reference: Literal["none", "previous", "similar"] = "none"
    first_density: float | None = None
    difference_decay: float | None = None
    difference_lr: float | None = None
    price: float | None = None
    rungs: tuple[str, ...] | None = None
    bits: Literal["auto"] | int = "auto"
    first_bits: int = 2
    training_bits: int = 4
    tolerance: float = 0.005
    sharing: Literal["values", "none"] = "values"
    block: int = 1
    max_banks: int = 2
    threshold: float = 3.0
    memory: Literal["statistics", "samples"] | None = "statistics"
    memory_samples: int = 50
    post_pruning: bool = True
    score_init: Literal["random", "previous_mask", "continue"] = "random"
    previous_mask_of: Literal["last", "similar"] = "last"
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier", "he"] = "kaiming"
    codebooks: Literal["layer", "task"] = "layer"
    task_param_bits: Literal["auto"] | int = "auto"
    task_param_tolerance: float = 0.002
    quantization: Literal["straight_through", "in_place"] = "straight_through"
    layer_loss_weight: float = 0.0
    layer_loss: Literal["both", "commit"] = "both"
    isolated: bool = False
    scenario_type: Literal["task-IL", "class-IL", "domain-IL"] = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(0 < self.density <= 1, "density", self.density, "a share above 0, at most 1")
        _require(
            0 <= self.density_exponent <= 1,
            "density_exponent",
            self.density_exponent,
            "a number from 0 to 1",
        )
        _require(
            self.bits == "auto" or self.bits in (*range(1, 9), 32),
            "bits",
            self.bits,
            "'auto', 1 to 8, or 32",
        )
        _require(1 <= self.first_bits <= 8, "first_bits", self.first_bits, "1 to 8")
        _require(
            self.training_bits in (*range(1, 9), 32),
            "training_bits",
            self.training_bits,
            "1 to 8, or 32",
        )
        _require(self.block >= 1, "block", self.block, "an integer of at least 1")
        _require(self.max_banks >= 1, "max_banks", self.max_banks, "an integer of at least 1")
        _require(self.threshold >= 0, "threshold", self.threshold, "a number of at least 0")
        _require(self.memory_samples >= 4, "memory_samples", self.memory_samples, "at least 4")
        for name in ("tolerance", "task_param_tolerance"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _require(
            self.task_param_bits == "auto" or self.task_param_bits in (4, 5, 6, 7, 8, 16, 32),
            "task_param_bits",
            self.task_param_bits,
            "'auto', 4 to 8, 16, or 32",
        )
        weight = self.layer_loss_weight
        _require(weight >= 0, "layer_loss_weight", weight, "at least 0")
        if self.selection == "magnitude":
            _require(weight == 0, "layer_loss_weight", weight, "0 where selection = 'magnitude'")
            there = "where selection = 'magnitude'"
            goes_on, in_place = self.score_init == "continue", self.quantization == "in_place"
            others = "'random' or 'previous_mask'"
            _require(not goes_on, "score_init", self.score_init, f"{others} {there}")
            _require(not in_place, "quantization", "in_place", f"'straight_through' {there}")
        else:
            allowed = "'none' where selection = 'scores'"
            _require(self.reference == "none", "reference", self.reference, allowed)
        if self.isolated:
            _require(
                self.score_init != "continue",
                "score_init",
                self.score_init,
                "'random' or 'previous_mask' where isolated = true: nothing of an isolated task "
                "may enter another",
            )
        first, decay = self.first_density, self.difference_decay
        _require(first is None or 0 < first <= 1, "first_density", first, "a share above 0")
        _require(decay is None or decay >= 0, "difference_decay", decay, "a number of at least 0")
        rate, price = self.difference_lr, self.price
        _require(rate is None or 0 < rate < math.inf, "difference_lr", rate, "a number above 0")
        _require(price is None or 0 <= price < math.inf, "price", price, "a number of at least 0")
        if self.rungs is not None:
            parse_rungs(self.rungs)
        _require(
            self.memory is not None or self.max_banks == 1 or self.sharing == "none",
            "memory",
            self.memory,
            "'statistics' or 'samples' where max_banks > 1, to tell tasks apart",
        )

    @property
    def width_in_training(self) -> int:
        """The width of a code while training: the fixed one, else `training_bits`."""
        return self.training_bits if self.bits == "auto" else int(self.bits)


VARIANTS: dict[str, dict[str, Any]] = {
    "tsn": {},
    "tsn-wr": {"max_banks": 1, "memory": None},
    "tsn-wr-wpp": {"max_banks": 1, "memory": None, "post_pruning": False},
}


def _require(fine: bool, name: str, value: object, allowed: str) -> None:
    if not fine:
        raise SettingError(f"{name} = {value!r} is not allowed; give {allowed}.")
