"""Post-pruning: the paper's Algorithm 2, a greedy search for weights a task does not need.

Nothing is retrained. Each step drops a few of the task's own new weights, the smallest first, and
is kept only if the objective rises; else it is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.coding.masks import entropy_bits
from tinysubnets.errors import SettingError
from tinysubnets.nn.layout import Layout

T = TypeVar("T")


@dataclass(frozen=True)
class PruningSettings:
    """How post-pruning searches: γ = α·accuracy + β·spare rises, or the step is undone.

    - `iterations`: how many steps are tried.
    - `step`: the share of a layer's weights that a step drops.
    - `alpha`, `beta`: what accuracy and what spare weights are worth.
    - `objective`: what is spare: with "sparsity" the share of weights nobody owns, as in the paper;
      with "bytes" the share of the dense size that codes and mask of the task leave over.
    - `samples`: training samples on which each step estimates its normalization statistics. It is
      measured in the precision of training.
    - `min_valid`: a task with fewer validation samples is not post-pruned: they could not tell what
      a weight is worth.
    """

    iterations: int = 50
    step: float = 0.01
    alpha: float = 0.95
    beta: float = 0.05
    objective: Literal["sparsity", "bytes"] = "sparsity"
    samples: int = 256
    min_valid: int = 0

    def __post_init__(self) -> None:
        for name, is_fine, allowed in (
            ("iterations", self.iterations >= 0, "an integer of at least 0"),
            ("step", 0 < self.step <= 1, "a share above 0, at most 1"),
            ("alpha", self.alpha >= 0, "at least 0"),
            ("beta", self.beta >= 0, "at least 0"),
            ("samples", self.samples >= 2, "an integer of at least 2"),
            ("min_valid", self.min_valid >= 0, "an integer of at least 0"),
        ):
            if not is_fine:
                raise SettingError(
                    f"pruning.{name} = {getattr(self, name)!r} is not allowed; give {allowed}."
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


@dataclass(frozen=True)
class PruningStep:
    """Where post-pruning stands: which step it is about to try, of how many, and what it reached.

    - `accuracy`: on validation data, with what has been dropped so far.
    - `num_kept`: how many steps were not undone.
    """

    step: int
    steps: int
    accuracy: float
    num_kept: int


def result_of(steps: Generator[Any, None, T]) -> T:
    """What a generator of visible steps returns at its end, its steps unseen."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def post_prune(
    candidate: Candidate,
    layout: Layout,
    settings: PruningSettings,
    measure: Callable[[Tensor], float],
    path: tuple[int | str, ...],
) -> Generator[PruningStep, None, Pruned]:
    """Drop own new weights while γ rises, step by step; the generator returns what is left.

    - `measure`: gives the validation accuracy under a mask.
    - `path`: the seed path that draws layers.
    """
    magnitude = layout.sum(candidate.values.abs())
    queues: dict[int, Queue] = {}
    mask, accuracy, kept = candidate.mask.clone(), measure(candidate.mask), 0
    total = layout.count(mask | candidate.owned)
    gamma = settings.alpha * accuracy + settings.beta * spare(
        mask, candidate, layout, settings, total
    )
    undone: set[int] = set()  # layers whose step would be the same as one that was undone
    for number, pick in enumerate(seeds.uniform(settings.iterations, *path, "pruning"), 1):
        yield PruningStep(number, settings.iterations, accuracy, kept)
        tensor = int(pick * len(layout.block_segments))
        if tensor in undone:
            continue
        if tensor not in queues:
            queues[tensor] = Queue.of(candidate, layout, magnitude, tensor)
        queue = queues[tensor]
        count = queue.next(settings.step)
        if count == 0:
            continue
        dropped = queue.blocks[queue.gone : queue.gone + count]
        mask.index_fill_(0, dropped, False)
        trial_total = total - queue.weights(count)
        trial_accuracy = measure(mask)
        trial_gamma = settings.alpha * trial_accuracy + settings.beta * spare(
            mask, candidate, layout, settings, trial_total
        )
        if trial_gamma > gamma:
            gamma, accuracy, total, kept = trial_gamma, trial_accuracy, trial_total, kept + 1
            queue.gone += count
            undone.clear()
        else:
            mask.index_fill_(0, dropped, True)
            undone.add(tensor)
    return Pruned(mask, kept, accuracy)


@dataclass
class Queue:
    """The own new blocks of one tensor in the order they are dropped in, the smallest first.

    Sorted once: no step changes a weight. `sizes` counts the weights of each block, on the host;
    None where a block is one weight.
    """

    blocks: Tensor
    sizes: Tensor | None
    num_blocks: int
    gone: int = 0

    @classmethod
    def of(cls, candidate: Candidate, layout: Layout, magnitude: Tensor, tensor: int) -> Queue:
        """The queue of one tensor."""
        i, j = layout.block_segments[tensor]
        own = (candidate.mask[i:j] & ~candidate.owned[i:j]).nonzero().flatten() + i
        order = own[torch.argsort(magnitude[own], stable=True)]
        sizes = None if layout.is_identity else layout.block_sizes[order.cpu()]
        return cls(order, sizes, j - i)

    def next(self, step: float) -> int:
        """How many blocks a step drops."""
        return min(max(1, round(step * self.num_blocks)), len(self.blocks) - self.gone)

    def weights(self, count: int) -> int:
        """How many weights the next blocks hold."""
        if self.sizes is None:
            return count
        return int(self.sizes[self.gone : self.gone + count].sum())


def spare(
    mask: Tensor,
    candidate: Candidate,
    layout: Layout,
    settings: PruningSettings,
    owned: int | None = None,
) -> float:
    """What the objective rewards: the share of weights, or of dense bytes, that stays unused.

    `owned` is the number of weights owned with this mask, where it is known.
    """
    if settings.objective == "sparsity":
        owned = layout.count(mask | candidate.owned) if owned is None else owned
        return 1.0 - owned / layout.num_weights
    own = layout.count(mask & ~candidate.owned) * candidate.bits
    differences = [mask, *(mask ^ r for r in candidate.references)]
    masks = min(entropy_bits(int(d.count_nonzero()), d.numel()) for d in differences)
    return 1.0 - (own + masks) / (32 * layout.num_weights)
