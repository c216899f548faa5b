"""Optimizers by name, and a fused update of long vectors on a GPU.

A new optimizer is one entry of `OPTIMIZERS` and its name in `TrainingSettings.optimizer`; with a
kernel in `kernels/optim.py` its long vectors are updated faster. The state is that of the torch
optimizer itself, under the same names, so that an update by either is an update of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from tinysubnets.errors import SettingError, unknown
from tinysubnets.training.settings import TrainingSettings

ADAM_EPS = 1e-8  # torch's own default, for all but mask scores
LONG = 1 << 14  # values: shorter parameters are left to torch, which updates many in one launch


# Torch wraps the methods of its optimizers so that `torch.compile` goes around them. The wrappers
# load the compiler: seconds in every run, although nothing here compiles an optimizer.


def _plain_step(torch_class: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The `step` of an optimizer of torch without what torch wraps around it."""
    step = unwrap(torch_class.step)

    def plain_step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        """One update of all parameters."""
        with torch.no_grad():
            return step(self, closure)

    return plain_step


class _Plain(torch.optim.Optimizer):
    """What all optimizers have beside their step, without what torch wraps around it."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(_Plain, torch.optim.Adam):
    """Torch's Adam, which loads no compiler."""

    step = _plain_step(torch.optim.Adam)


class AdamW(_Plain, torch.optim.AdamW):
    """Torch's AdamW, which loads no compiler."""

    step = _plain_step(torch.optim.AdamW)


class SGD(_Plain, torch.optim.SGD):
    """Torch's SGD, which loads no compiler."""

    step = _plain_step(torch.optim.SGD)


@dataclass(frozen=True)
class OptimizerKind:
    """One optimizer: its torch class, the arguments it is made with, and its kernel.

    `made` is the class above that is made of it. `arguments` makes its arguments from the settings
    and the device. `kernel` names a function of `tinysubnets.kernels` that updates one parameter in
    place, given its state and its group, None where there is none; `initial_state` is the state
    that this kernel begins with, as torch's first step would make it, and `unsupported` the options
    of a group that the kernel does not know.
    """

    torch_class: type[torch.optim.Optimizer]
    made: type[torch.optim.Optimizer]
    arguments: Callable[[TrainingSettings, torch.device], dict[str, Any]]
    kernel: str | None = None
    initial_state: Callable[[Tensor], dict[str, Tensor]] | None = None
    unsupported: tuple[str, ...] = ()


def _adam_arguments(settings: TrainingSettings, device: torch.device) -> dict[str, Any]:
    return {"lr": settings.lr, "fused": True, "capturable": device.type == "cuda"}


def _adam_state(parameter: Tensor) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def _sgd_arguments(settings: TrainingSettings, device: torch.device) -> dict[str, Any]:
    momentum = {"momentum": settings.momentum, "nesterov": settings.nesterov}
    return {"lr": settings.lr, **momentum, "fused": True}


def _sgd_state(parameter: Tensor) -> dict[str, Tensor]:
    return {"momentum_buffer": torch.zeros_like(parameter)}


_ADAM: dict[str, Any] = {
    "arguments": _adam_arguments,
    "kernel": "adam_",  # the group says whether weight decay is decoupled
    "initial_state": _adam_state,
    "unsupported": ("amsgrad", "maximize"),
}
OPTIMIZERS: dict[str, OptimizerKind] = {
    "adam": OptimizerKind(torch.optim.Adam, Adam, **_ADAM),
    "adamw": OptimizerKind(torch.optim.AdamW, AdamW, **_ADAM),
    "sgd": OptimizerKind(
        torch.optim.SGD,
        SGD,
        arguments=_sgd_arguments,
        kernel="sgd_",
        initial_state=_sgd_state,
        unsupported=("nesterov", "dampening", "maximize"),
    ),
}


def make_optimizer(
    groups: dict[str, list[nn.Parameter]],
    settings: TrainingSettings,
    device: torch.device,
    factors: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of a module's parameters, by kind; see `TaskModule.groups`.

    Mask scores have a rate of their own and are never decayed, nor are "vectors". Every group has a
    `factor`, by which the learning rate of a step is multiplied.

    - `factors`: by kind, where it is not 1.
    """
    if settings.optimizer not in OPTIMIZERS:
        raise SettingError(unknown("optimizer", settings.optimizer, OPTIMIZERS))
    factor = 1.0 if settings.score_lr is None else settings.score_lr / settings.lr
    table: dict[tuple[float, ...], dict[str, Any]] = {}
    for name, parameters in groups.items():
        own = (factors or {}).get(name, 1.0)
        options = {"factor": own, "weight_decay": settings.weight_decay, "eps": ADAM_EPS}
        if name == "vectors":
            options["weight_decay"] = 0.0
        if name == "scores":
            options = {"factor": factor, "weight_decay": 0.0, "eps": settings.score_eps}
        # Groups with the same options are updated together: every group costs launches.
        row = table.setdefault(tuple(options.values()), options | {"params": []})
        row["params"].extend(parameters)
    rows = [r for r in table.values() if r["params"]]
    kind = OPTIMIZERS[settings.optimizer]
    make: Any = kind.made
    return make(rows, **kind.arguments(settings, device))


def fused_update(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """`optimizer.step()` with a kernel of our own for long vectors; None where there is no kernel.

    Torch's fused optimizers give each 65,536 values to one block of threads, so that a vector of
    a hundred thousand keeps two of a GPU's many processors busy. There is no kernel without Triton,
    for other optimizers, and for the options that a kernel does not know.
    """
    # Exactly these classes: a subclass, as AdamW is of Adam, may update otherwise.
    kinds = [k for k in OPTIMIZERS.values() if type(optimizer) in (k.torch_class, k.made)]
    if not kinds or kinds[0].kernel is None or find_spec("triton") is None:
        return None
    kind = kinds[0]
    if any(group.get(name) for name in kind.unsupported for group in optimizer.param_groups):
        return None
    from tinysubnets import kernels

    kernel = getattr(kernels, str(kind.kernel))
    long = [(p, g) for g in optimizer.param_groups for p in g["params"] if p.numel() >= LONG]
    for parameter, _ in long:
        if not optimizer.state[parameter] and kind.initial_state is not None:
            optimizer.state[parameter] = kind.initial_state(parameter)
    groups = [
        g | {"params": [p for p in g["params"] if p.numel() < LONG]} for g in optimizer.param_groups
    ]
    short = [g for g in groups if g["params"]]
    make: Any = type(optimizer)
    rest = make(short) if short else None
    if rest is not None:
        rest.state = optimizer.state  # one state for both, whichever updates it

    def update() -> None:
        if rest is not None:
            rest.step()
        for parameter, group in long:
            kernel(parameter, optimizer.state[parameter], group)

    return update
