"""What a task starts from: scores, free values and private tensors.

All of it is a pure function of the seed, the bank, the task's number and the store so far, made by
the portable generator, so that learning goes on from a file exactly as it would have gone on live.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout

Scale = Literal["kaiming", "xavier"]
TOKEN_DEVIATION = 0.02  # class tokens and position embeddings, as is usual for transformers


@dataclass(frozen=True)
class Start:
    """What training begins with: flat scores and free values, private tensors by name."""

    scores: Tensor
    free: Tensor
    private: dict[str, Tensor]


@dataclass(frozen=True)
class Origin:
    """Where a task's first values come from: the seed, the bank, the task's number, the scale."""

    seed: int
    bank: int
    task: int
    scale: Scale = "kaiming"

    def uniform(self, what: str, name: str, shape: tuple[int, ...], bound: float) -> Tensor:
        """A flat vector of numbers in [-bound, bound) for the tensor of that name and shape."""
        count = math.prod(shape)
        unit = seeds.uniform(count, self.seed, what, self.bank, self.task, name)
        return torch.from_numpy((unit * 2 - 1) * unit.dtype.type(bound))


def starting_point(
    architecture: Architecture,
    layout: Layout,
    origin: Origin,
    num_classes: int,
    given: Mapping[str, Tensor] | None = None,
) -> Start:
    """Fresh scores, free values and private tensors; `given` values replace random ones."""
    free = initial_values(architecture, origin, "free")
    if given is not None:
        free = torch.cat([given[s.name].flatten().float().cpu() for s in architecture.shared])
    private = initial_private(architecture, origin, num_classes, given)
    return Start(initial_scores(architecture, layout, origin), free, private)


def bound_of(shape: tuple[int, ...], scale: Scale) -> float:
    """The half-width of the uniform distribution for a weight of that shape."""
    receptive = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * receptive, shape[0] * receptive
    return math.sqrt(6 / (fan_in + fan_out)) if scale == "xavier" else math.sqrt(3 / fan_in)


def initial_values(architecture: Architecture, origin: Origin, what: str) -> Tensor:
    """One flat vector of random values over all shared weights."""
    parts = [
        origin.uniform(what, s.name, s.shape, bound_of(s.shape, origin.scale))
        for s in architecture.shared
    ]
    return torch.cat(parts)


def initial_scores(architecture: Architecture, layout: Layout, origin: Origin) -> Tensor:
    """One random score per mask block, scaled like the weights of its tensor."""
    parts = [
        origin.uniform("scores", s.name, (b.num,), bound_of(s.shape, origin.scale))
        for s, b in zip(architecture.shared, layout.blocks, strict=True)
    ]
    return torch.cat(parts)


def initial_private(
    architecture: Architecture,
    origin: Origin,
    num_classes: int,
    given: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The private tensors of a fresh task, the head with exactly its classes."""
    shapes = architecture.private_shapes(num_classes)
    out = {}
    for spec in architecture.private:
        name, shape = spec.name, shapes[spec.name]
        if given is not None and tuple(given[name].shape) == shape:
            out[name] = given[name].detach().float().cpu().clone()
        elif name in architecture.statistics:
            out[name] = torch.full(shape, 1.0 if name.endswith("running_var") else 0.0)
        elif len(shape) < 2:
            out[name] = torch.full(shape, _constant(name, spec.constant))
        else:
            token = shape[0] == 1 or math.prod(shape[1:]) == 1
            bound = TOKEN_DEVIATION * math.sqrt(3) if token else bound_of(shape, origin.scale)
            out[name] = origin.uniform("private", name, shape, bound).reshape(shape)
    return out


def _constant(name: str, constant: float | None) -> float:
    """What a vector starts from: the constant the user's network has there, else 0, or 1 for gains.

    A network's random or trained vectors are not taken over: they would not be a function of the
    seed.
    """
    if constant is not None:
        return constant
    return 0.0 if "bias" in name.rpartition(".")[2] else 1.0


def warm_scores(scores: Tensor, mask: Tensor, layout: Layout) -> Tensor:
    """The same scores re-ranked within each tensor so that an earlier mask is exactly on top."""
    out = scores.clone()
    for i, j in layout.block_segments:
        size = scores[i:j].abs()
        order = torch.argsort(size, descending=True, stable=True)
        on_top = mask[i:j][order]
        places = torch.cat([order[on_top], order[~on_top]])
        sign = torch.where(scores[i:j] < 0, -1.0, 1.0)
        out[i:j][places] = size[order] * sign[places]
    return out
