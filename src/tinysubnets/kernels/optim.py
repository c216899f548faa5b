# mypy: disallow-untyped-defs=False
"""Optimizer updates of long vectors on a GPU: all processors at work on one vector.

One program updates UPDATE neighboring values. Hyperparameters are compiled in; the learning rate
and the number of the step are read from the device, so that a captured graph follows them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

UPDATE = 1024  # values per program


@triton.jit
def _power(BASE: tl.constexpr, exponent):
    """BASE to the power of an integer below 2^22, in float64, by squaring."""
    result = tl.full((), 1.0, tl.float64)
    base = tl.full((), BASE, tl.float64)
    for bit in tl.static_range(22):
        result = tl.where(((exponent >> bit) & 1) == 1, result * base, result)
        base = base * base
    return result


@triton.jit
def _adam(
    parameter, gradient, first, second, step, rate, count,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One Adam update of SIZE values; `step` counts this update already.

    `first` and `second` are the moments m and v, `count` the length of the vector.
    """
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    p = tl.load(parameter + place, mask=inside)
    g = tl.load(gradient + place, mask=inside)
    lr = tl.load(rate)
    number = tl.load(step).to(tl.int32)
    if DECAY != 0.0:
        if DECOUPLED:
            p = p * (1.0 - lr * DECAY)
        else:
            g = g + DECAY * p
    m = tl.load(first + place, mask=inside)
    v = tl.load(second + place, mask=inside)
    m = m + (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    size = lr / (1.0 - _power(BETA1, number)).to(tl.float32)
    root = tl.sqrt((1.0 - _power(BETA2, number)).to(tl.float32))
    p = p - size * m / (tl.sqrt(v) / root + EPSILON)
    tl.store(parameter + place, p, mask=inside)
    tl.store(first + place, m, mask=inside)
    tl.store(second + place, v, mask=inside)


@triton.jit
def _sgd(
    parameter, gradient, buffer, rate, count, MOMENTUM: tl.constexpr, DECAY: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """One update by gradient descent with momentum of SIZE values."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    p = tl.load(parameter + place, mask=inside)
    g = tl.load(gradient + place, mask=inside) + DECAY * p
    if MOMENTUM != 0.0:
        g = MOMENTUM * tl.load(buffer + place, mask=inside) + g
        tl.store(buffer + place, g, mask=inside)
    tl.store(parameter + place, p - tl.load(rate) * g, mask=inside)


def adam_(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """An update by Adam or AdamW in place, by the state and group of the torch optimizer.

    The group's learning rate is a tensor on the device, so that a captured graph reads the rate of
    each step.
    """
    state["step"].add_(1)
    count = parameter.numel()
    _adam[(-(-count // UPDATE),)](
        parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"],
        group["lr"], count, BETA1=group["betas"][0], BETA2=group["betas"][1],
        EPSILON=group["eps"], DECAY=group["weight_decay"],
        DECOUPLED=group["decoupled_weight_decay"], SIZE=UPDATE,
    )  # fmt: skip


def sgd_(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """An update by SGD with momentum in place, by the state and group of the torch optimizer.

    The learning rate is a tensor, as for `adam_`.
    """
    count = parameter.numel()
    _sgd[(-(-count // UPDATE),)](
        parameter, parameter.grad, state["momentum_buffer"], group["lr"], count,
        MOMENTUM=group["momentum"], DECAY=group["weight_decay"], SIZE=UPDATE,
    )  # fmt: skip
