"""Optimizers, and faster forms of their updates for steps that wait on launches.

The state is that of the torch optimizer itself, under the same names, so that an update by either
is an update of both.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor, nn

EPSILON = 1e-8  # Adam's own


class Rates(Protocol):
    """What an optimizer needs of the training settings."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def score_lr(self) -> float | None: ...
    @property
    def score_eps(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def make_optimizer(
    groups: dict[str, list[nn.Parameter]], settings: Rates, device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer; mask scores have a rate of their own and are never decayed."""
    factor = 1.0 if settings.score_lr is None else settings.score_lr / settings.lr
    table: dict[tuple[float, ...], dict[str, Any]] = {}
    for name, parameters in groups.items():
        options = {"factor": 1.0, "weight_decay": settings.weight_decay, "eps": EPSILON}
        if name == "scores":
            options = {"factor": factor, "weight_decay": 0.0, "eps": settings.score_eps}
        # Groups with the same options are updated together: every group costs launches.
        row = table.setdefault(tuple(options.values()), options | {"params": []})
        row["params"].extend(parameters)
    rows = [r for r in table.values() if r["params"]]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(rows, settings.lr, settings.momentum, fused=True)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(rows, settings.lr, fused=True, capturable=device.type == "cuda")


LARGE = 1 << 14


def has_kernels() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def fused_update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """`optimizer.step()` with a kernel of our own for large vectors.

    Torch's fused optimizers give each 65,536 values to one block of threads, so that a vector of
    a hundred thousand keeps two of a GPU's many processors busy.
    """
    from tinysubnets import kernels

    rows = [(p, g) for g in optimizer.param_groups for p in g["params"]]
    large = [(p, g) for p, g in rows if p.numel() >= LARGE]
    for parameter, _ in large:
        _prepare_(optimizer, parameter)
    groups = [
        g | {"params": [p for p in g["params"] if p.numel() < LARGE]}
        for g in optimizer.param_groups
    ]
    small = [g for g in groups if g["params"]]
    make: Any = type(optimizer)
    rest = make(small) if small else None
    if rest is not None:
        rest.state = optimizer.state  # one state for both, whichever updates it

    def update() -> None:
        if rest is not None:
            rest.step()
        for parameter, group in large:
            state = optimizer.state[parameter]
            if isinstance(optimizer, torch.optim.SGD):
                kernels.sgd_(parameter, state, group)
            else:
                kernels.adam_(parameter, state, group, isinstance(optimizer, torch.optim.AdamW))

    return update


def _prepare_(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """Give a parameter its first state, as the optimizer would on its first step."""
    if optimizer.state[parameter]:
        return
    if isinstance(optimizer, torch.optim.SGD):
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        return
    optimizer.state[parameter] = {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
