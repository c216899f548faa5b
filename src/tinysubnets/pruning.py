"""Post-pruning: the paper's Algorithm 2, a greedy search for weights a task does not need.

Nothing is retrained. Each step drops a few of the task's own new weights, the smallest first, and
is kept only if the objective rises; else it is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.capacity import entropy_bits
from tinysubnets.errors import SettingError
from tinysubnets.layout import Layout


@dataclass(frozen=True)
class PruningSettings:
    """How post-pruning searches: γ = α·accuracy + β·spare rises, or the step is undone.

    "sparsity" takes the share of weights nobody owns as `spare`, as the paper does; "bytes" the
    share of the dense size that codes and mask of the task leave over. Each step estimates its
    normalisation statistics on `samples` training samples.
    """

    iterations: int = 50
    step: float = 0.01
    alpha: float = 0.95
    beta: float = 0.05
    objective: Literal["sparsity", "bytes"] = "sparsity"
    samples: int = 500

    def __post_init__(self) -> None:
        fine = self.iterations >= 0 and 0 < self.step <= 1 and self.samples >= 2
        if not fine or self.alpha < 0 or self.beta < 0:
            raise SettingError(
                f"pruning settings {self} are not allowed; iterations >= 0, 0 < step <= 1, "
                "alpha >= 0, beta >= 0 and samples >= 2 are needed."
            )


@dataclass(frozen=True)
class Candidate:
    """What post-pruning starts from: a mask, the weights' values, and what others own already.

    `bits` is the width of a code; `references` are masks that the task's own may be coded against.
    """

    mask: Tensor
    values: Tensor
    owned: Tensor
    bits: int
    references: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Pruned:
    """The mask after post-pruning, how many steps were kept, and its accuracy."""

    mask: Tensor
    num_kept: int
    accuracy: float


def post_prune(
    candidate: Candidate,
    layout: Layout,
    settings: PruningSettings,
    measure: Callable[[Tensor], float],
    path: tuple[int | str, ...],
) -> Pruned:
    """Drop own new weights while γ rises; `measure` gives the validation accuracy under a mask."""
    best = candidate.mask
    accuracy = measure(best)
    gamma = settings.alpha * accuracy + settings.beta * spare(best, candidate, layout, settings)
    magnitude = layout.sum(candidate.values.abs())
    picks = seeds.uniform(settings.iterations, *path, "pruning")
    kept = 0
    undone: set[int] = set()  # layers whose step would be the same as one that was undone
    for pick in picks:
        tensor = int(pick * len(layout.block_segments))
        if tensor in undone:
            continue
        trial = _dropped(
            best, candidate.owned, magnitude, layout.block_segments[tensor], settings.step
        )
        if trial is None:
            continue
        trial_accuracy = measure(trial)
        trial_gamma = settings.alpha * trial_accuracy + settings.beta * spare(
            trial, candidate, layout, settings
        )
        if trial_gamma > gamma:
            best, gamma, accuracy, kept = trial, trial_gamma, trial_accuracy, kept + 1
            undone.clear()
        else:
            undone.add(tensor)
    return Pruned(best, kept, accuracy)


def spare(mask: Tensor, candidate: Candidate, layout: Layout, settings: PruningSettings) -> float:
    """What the objective rewards: the share of weights, or of dense bytes, that stays unused."""
    sizes = layout.block_sizes.to(mask.device)
    if settings.objective == "sparsity":
        return 1.0 - float(sizes[candidate.owned | mask].sum()) / layout.num_weights
    own = float(sizes[mask & ~candidate.owned].sum()) * candidate.bits
    masks = min(entropy_bits(mask, r) for r in (None, *candidate.references))
    return 1.0 - (own + masks) / (32 * layout.num_weights)


def _dropped(
    mask: Tensor, owned: Tensor, magnitude: Tensor, segment: tuple[int, int], step: float
) -> Tensor | None:
    """The mask without the smallest own new blocks of one tensor; None where it has none."""
    i, j = segment
    own = (mask[i:j] & ~owned[i:j]).nonzero().flatten()
    count = min(max(1, round(step * (j - i))), len(own))
    if count == 0:
        return None
    smallest = own[torch.argsort(magnitude[i:j][own], stable=True)[:count]]
    trial = mask.clone()
    trial[i + smallest] = False
    return trial
