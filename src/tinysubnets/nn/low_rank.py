"""A difference of low rank: what is added to a weight matrix is the product of two thin ones.

A tensor of shape (rows, …) counts as a matrix of so many rows. Its difference is up · down, with up
[rows, rank] and down [rank, columns]: the LoRA of Hu et al. (2021), added to the weights instead of
being computed beside them. All factors of a network form one vector [F]: first the ups of all
tensors that have some, then the downs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState, InitKey
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.magnitude import (
    QUANTIZED_FROM,
    MagnitudeModule,
    MagnitudePruning,
    StraightThrough,
)

PIECE = 1 << 20  # products at a time
LARGEST_EXPONENT = 127  # of a float32
SPREAD = 2.0  # of the first downs, in units of 1 / √columns: a LoRA whose alpha is twice its rank


class Factors:
    """Where the factors of each tensor stand in their vector [F].

    A tensor has factors if they are at most half as many numbers as itself: no vector, no small
    matrix, and no convolution of which each channel has its own.

    - `layout`: of the shared weights that the product is added to.
    - `rank`: how many columns an up has.
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self.layout, self.rank = layout, rank
        self.places = [  # of a tensor among the shared ones, with its rows and columns
            (place, spec.shape[0], prod(spec.shape[1:]))
            for place, spec in enumerate(layout.shared)
            if has_factors(spec.shape, rank)
        ]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many numbers each factor has, in order; named by the place of its tensor."""
        ups = {f"{place}.up": rows * self.rank for place, rows, _ in self.places}
        return ups | {f"{place}.down": self.rank * columns for place, _, columns in self.places}

    @property
    def num(self) -> int:
        """How many numbers all factors have."""
        return sum(self.sizes.values())

    def split(self, values: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The place, up [rows, rank] and down [rank, columns] of each tensor that has them."""
        parts = dict(zip(self.sizes, values.split(list(self.sizes.values())), strict=True))
        for place, rows, columns in self.places:
            up = parts[f"{place}.up"].view(rows, self.rank)
            yield place, up, parts[f"{place}.down"].view(self.rank, columns)

    def sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """Weights [N] and the products, the same to the bit on every machine.

        Row by row in pieces, so that little memory is taken beside the sum.
        """
        out = weights.clone()
        for place, up, down in self.split(values):
            i, j = self.layout.segments[place]
            tensor, rows = out[i:j].view(len(up), -1), max(1, PIECE // down.shape[1])
            for piece, part in zip(tensor.split(rows), up.split(rows), strict=True):
                piece += product(part, down)
        return out

    def trained_sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """The same but for the last bits, as training differentiates through it."""
        parts = list(weights.split([j - i for i, j in self.layout.segments]))
        for place, up, down in self.split(values):
            parts[place] = parts[place] + (up @ down).flatten()
        return torch.cat(parts)

    def start(self, key: InitKey) -> Tensor:
        """What training begins with [F]: ups of 0, so that nothing is added, and random downs."""
        out = [torch.zeros(sum(rows * self.rank for _, rows, _ in self.places))]
        for place, _, columns in self.places:
            name, shape = self.layout.shared[place].name, (self.rank, columns)
            out.append(key.uniform("down", name, shape, SPREAD / columns**0.5))
        return torch.cat(out)


def product(up: Tensor, down: Tensor) -> Tensor:
    """up [rows, rank] times down [rank, columns], with sums in the order of the rank.

    So it is the same to the bit on every machine, as a matrix product is not.
    """
    total = up[:, :1] * down[:1]
    for k in range(1, up.shape[1]):
        total += up[:, k : k + 1] * down[k : k + 1]
    return total


def has_factors(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a tensor is large enough for a difference of this rank.

    >>> has_factors((64, 64, 1, 1), 4), has_factors((64, 1, 3, 3), 4), has_factors((64,), 4)
    (True, False, False)
    """
    if len(shape) < 2:
        return False
    rows, columns = shape[0], prod(shape[1:])
    return 2 * rank * (rows + columns) <= rows * columns


def step_of(values: Tensor, bits: int) -> int:
    """The exponent of the steps that a matrix is rounded to, by its root mean square.

    That has 2 to 4 steps at 4 bits, and half as many for each bit less. No step is more than a
    float32 can be, however far training has diverged.
    """
    exponent = math.frexp(float(values.double().square().mean().sqrt()))[1] - 1 - (bits - 3)
    return min(exponent, LARGEST_EXPONENT)


class LowRankModule(MagnitudeModule):
    """One task in training over a frozen base as a difference of low rank to a reference.

    In the second half of all steps factors are rounded as they will be stored.

    - `start`: what training begins with; it has no values of its own.
    - `reference`: the weights [N] that the product is added to.
    - `factors`: those of training's begin [F], and where they stand.
    - `own_params`: the names of the task-specific parameters that the task has for itself.
    - `bits`: how finely factors are rounded, see `step_of`.
    """

    steps: Tensor  # [F]: what factors are rounded to multiples of; 0 where they are not, yet

    def __init__(
        self,
        architecture: Architecture,
        layout: Layout,
        start: InitialState,
        reference: Tensor,
        factors: tuple[Factors, Tensor],
        own_params: Collection[str],
        bits: int,
    ) -> None:
        nothing = InitialState(start.scores, torch.zeros(layout.num_weights), start.task_params)
        super().__init__(
            architecture, layout, nothing, reference, MagnitudePruning(0.0, bits=bits), own_params
        )
        self.mode = "frozen"
        self.places = factors[0]
        self.factors = nn.Parameter(factors[1].clone())
        self.register_buffer("steps", torch.zeros_like(factors[1]))

    @property
    def settled(self) -> bool:
        """Whether factors are already what they will be stored as."""
        return self.share_done >= QUANTIZED_FROM

    @torch.no_grad()
    def update_codebooks_(self, share: float = 1.0) -> None:
        """Fit the steps of each factor anew, once the time to round has come.

        - `share`: that of all steps of training which is done, 0 to 1.
        """
        self.share_done = share
        if self.settled:
            steps = [
                torch.full((f.numel(),), 2.0 ** step_of(f, self.pruning.bits) if f.any() else 0.0)
                for f in self.named_factors().values()
            ]
            self.steps.copy_(torch.cat(steps))

    @torch.no_grad()
    def rounded(self) -> Tensor:
        """The factors as they are used [F]: multiples of their steps, where these are known."""
        factors = self.factors.detach()
        return torch.where(self.steps > 0, (factors / self.steps).round() * self.steps, factors)

    def effective(self, mask: Tensor | None = None) -> Tensor:
        """The effective weights [N] that training differentiates through."""
        used = StraightThrough.apply(self.factors, self.rounded())
        return self.places.trained_sum(self.reference, used)

    @torch.no_grad()
    def final_weights(self, mask: Tensor | None = None) -> Tensor:
        """The weights [N] of the task as it is evaluated."""
        return self.with_factors(self.rounded())

    def with_factors(self, values: Tensor) -> Tensor:
        """The weights [N] with other factors [F], such as rounded ones."""
        return self.places.sum(self.reference, values.to(self.reference))

    @torch.no_grad()
    def difference(self) -> Tensor:
        """What is added to the reference [N]."""
        return self.final_weights() - self.reference

    def named_factors(self) -> Mapping[str, Tensor]:
        """Each factor as a matrix, by its name in `Factors.sizes`."""
        ups, downs = {}, {}
        for place, up, down in self.places.split(self.factors.detach()):
            ups[f"{place}.up"], downs[f"{place}.down"] = up, down
        return ups | downs

    def exponents(self) -> list[int]:
        """The exponent of each factor's steps; by its size where it was not rounded in training."""
        named = self.named_factors()
        steps = self.steps.split([f.numel() for f in named.values()])
        return [
            round(math.log2(float(s[0]))) if s[0] > 0 else step_of(f, self.pruning.bits)
            for s, f in zip(steps, named.values(), strict=True)
        ]

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves: factors are matrices."""
        out = super().groups()
        return out | {"matrices": [*out["matrices"], self.factors]}
