"""What a task starts from: scores, free values and task-specific parameters.

All of it is a pure function of the seed, the bank, the task's number and the store so far, made by
the portable generator, so that learning goes on from a file exactly as it would have gone on live.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout

Scale = Literal["kaiming", "xavier", "he"]
TOKEN_DEVIATION = 0.02  # class tokens and position embeddings, as is usual for transformers


@dataclass(frozen=True)
class InitialState:
    """What training begins with: flat scores and free values, task-specific parameters by name."""

    scores: Tensor  # [blocks]
    free: Tensor  # [N]
    task_params: dict[str, Tensor]


@dataclass(frozen=True)
class InitKey:
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


def initial_state(
    architecture: Architecture,
    layout: Layout,
    init_key: InitKey,
    num_classes: int,
    pretrained: Mapping[str, Tensor] | None = None,
) -> InitialState:
    """Fresh scores, free values and task-specific parameters.

    - `pretrained`: where given, free values and parameters are these, and scores their magnitudes,
      so that the first mask is the best of the pretrained network, not a random one.
    """
    task_params = initial_task_params(architecture, init_key, num_classes, pretrained)
    if pretrained is None:
        free = initial_values(architecture, init_key)
        return InitialState(initial_scores(architecture, layout, init_key), free, task_params)
    free = torch.cat([pretrained[s.name].flatten().float().cpu() for s in architecture.shared])
    return InitialState(magnitude_scores(layout, free), free, task_params)


def magnitude_scores(layout: Layout, values: Tensor) -> Tensor:
    """One score per mask block [blocks]: the mean magnitude of its values [N], and never 0.

    A score of 0 has no sign, and so no gradient: it would stay 0 for ever.
    """
    means = layout.sum(values.abs()) / layout.block_sizes
    return means.clamp_min(torch.finfo(torch.float32).tiny)


def bound_of(shape: tuple[int, ...], scale: Scale) -> float:
    """The half-width of the uniform distribution for a weight [out, in, *kernel] of that shape."""
    receptive = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * receptive, shape[0] * receptive
    if scale == "xavier":
        return math.sqrt(6 / (fan_in + fan_out))
    return math.sqrt((6 if scale == "he" else 3) / fan_in)


def initial_values(architecture: Architecture, init_key: InitKey) -> Tensor:
    """One flat vector of random values over all shared weights."""
    parts = [
        init_key.uniform("free", s.name, s.shape, bound_of(s.shape, init_key.scale))
        for s in architecture.shared
    ]
    return torch.cat(parts)


def initial_scores(architecture: Architecture, layout: Layout, init_key: InitKey) -> Tensor:
    """One random score per mask block, scaled like the weights of its tensor."""
    parts = [
        init_key.uniform("scores", s.name, (b.num,), bound_of(s.shape, init_key.scale))
        for s, b in zip(architecture.shared, layout.blocks, strict=True)
    ]
    return torch.cat(parts)


def initial_task_params(
    architecture: Architecture,
    init_key: InitKey,
    num_classes: int,
    pretrained: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The task-specific parameters of a fresh task, the head with exactly its classes."""
    shapes = architecture.task_param_shapes(num_classes)
    out = {}
    for spec in architecture.task_params:
        name, shape = spec.name, shapes[spec.name]
        given = None if pretrained is None else pretrained.get(name)
        if given is not None and tuple(given.shape) == shape:
            out[name] = given.detach().float().cpu().clone()
        elif name in architecture.running_stats:
            out[name] = torch.full(shape, 1.0 if name.endswith("running_var") else 0.0)
        elif len(shape) < 2:
            out[name] = torch.full(shape, _constant(name, spec.constant))
        else:
            token = shape[0] == 1 or math.prod(shape[1:]) == 1
            bound = TOKEN_DEVIATION * math.sqrt(3) if token else bound_of(shape, init_key.scale)
            out[name] = init_key.uniform("private", name, shape, bound).reshape(shape)
    return out


def _constant(name: str, constant: float | None) -> float:
    """What a vector starts from: the constant the user's network has there, else 0, or 1 for gains.

    A network's random or trained vectors are not taken over: they would not be a function of the
    seed.
    """
    if constant is not None:
        return constant
    return 0.0 if "bias" in name.rpartition(".")[2] else 1.0


def scores_from_mask(scores: Tensor, mask: Tensor, layout: Layout) -> Tensor:
    """The same scores re-ranked within each tensor so that an earlier mask is exactly on top.

    `scores` and `mask` are [blocks]. The magnitudes of a tensor stay as they are, and are dealt out
    anew, the largest to the blocks of the mask; within and outside it the order stays, as do signs.
    """
    out = scores.clone()
    for i, j in layout.block_segments:
        size = scores[i:j].abs()
        order = torch.argsort(size, descending=True, stable=True)
        on_top = mask[i:j][order]
        places = torch.cat([order[on_top], order[~on_top]])
        sign = torch.where(scores[i:j] < 0, -1.0, 1.0)
        out[i:j][places] = size[order] * sign[places]
    return out


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, types, shapes and values: by it pretrained weights are known again."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        sha.update(f"{name}\0{kind}\0{','.join(map(str, tensor.shape))}\0".encode())
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha.update(raw.numpy().tobytes())
    return sha.hexdigest()


def old_weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names and float32 values, by which earlier versions knew weights again."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(name.encode())
        sha.update(tensor.detach().float().cpu().numpy().tobytes())
    return sha.hexdigest()
