"""Fixed point: the accuracy of a learned task with few bits for activations and weights.

What enters a layer with a weight matrix, and the matrix itself (so: the centroids of its codebook),
is rounded to integers of `bits` bits times a power of two, one power per tensor, chosen on
calibration data by the least squared error. Sums, biases, normalization, and what attention and
recurrent layers do inside stay in float32, as in hardware with wide accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinysubnets.errors import SettingError
from tinysubnets.model.store import SubnetStore
from tinysubnets.paper.operations import inner_layers_called
from tinysubnets.tasks.task import Split

BATCHNORM_SAMPLES = 500
BATCH = 500
CANDIDATES = 5  # powers of two below the one that just holds the largest value


@dataclass(frozen=True)
class Grid:
    """A set of fixed-point numbers: integers of `bits` bits times 2**exponent."""

    bits: int
    exponent: int
    signed: bool = True

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer."""
        half = 2 ** (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)

    def __call__(self, values: Tensor) -> Tensor:
        """The nearest number of the grid for every value.

        >>> Grid(4, -1)(torch.tensor([0.3, -9.0, 9.0])).tolist()
        [0.5, -4.0, 3.5]
        """
        scale = 2.0**self.exponent
        return (values / scale).round().clamp(*self.limits) * scale


def best_grid(values: Tensor, bits: int) -> Grid:
    """The grid with the least squared error; unsigned where no value is negative."""
    if bits not in range(2, 25):
        raise SettingError(f"bits = {bits!r} is not allowed; give 2 to 24.")
    signed = bool((values < 0).any())
    largest = float(values.abs().max()) if values.numel() else 0.0
    if largest == 0.0:
        return Grid(bits, 0, signed)
    top = math.ceil(math.log2(largest / Grid(bits, 0, signed).limits[1]))
    grids = [Grid(bits, top - i, signed) for i in range(CANDIDATES)]
    return min(grids, key=lambda g: float((g(values) - values).double().square().sum()))


def fixed_point_accuracy(
    store: SubnetStore, task: str, calibration: Tensor, split: Split, bits: int | None
) -> float:
    """The share of right answers on a split; raw calibration inputs set the scales.

    `bits` None measures the network as it is, for comparison.
    """
    if bits is None:
        return _accuracy(store, task, store.tensors(task), split)
    tensors = rounded_tensors(store, task, bits)
    code, layers = store.architecture.code("eval"), _layers(store)
    grids = _calibrate(store, task, calibration, layers, bits)

    def rounded(name: str, value: Tensor) -> Tensor:
        return grids[name](value) if name in grids else value

    with _entering(code, layers, rounded):
        return _accuracy(store, task, tensors, split)


def rounded_tensors(store: SubnetStore, task: str, bits: int) -> dict[str, Tensor]:
    """The task's tensors with shared weights and the head's matrices in fixed point."""
    shared = {s.name for s in store.architecture.shared}
    inside = f"{store.architecture.head}."
    return {
        n: best_grid(t, bits)(t) if n in shared or (n.startswith(inside) and t.ndim >= 2) else t
        for n, t in store.tensors(task).items()
    }


@torch.no_grad()
def _calibrate(
    store: SubnetStore, task: str, calibration: Tensor, layers: list[str], bits: int
) -> dict[str, Grid]:
    """A grid per layer for what enters it, from one pass of the network as it is."""
    grids: dict[str, Grid] = {}

    def observe(name: str, value: Tensor) -> Tensor:
        new = best_grid(value, bits)
        old = grids.get(name, new)
        grids[name] = Grid(bits, max(old.exponent, new.exponent), old.signed or new.signed)
        return value

    architecture, normalize = store.architecture, store.subnet(task).normalization
    inputs = normalize(calibration[:BATCHNORM_SAMPLES].to(store.device))
    with _entering(architecture.code("eval"), layers, observe):
        architecture(store.tensors(task), inputs)
    return grids


@contextmanager
def _entering(
    code: nn.Module, layers: list[str], change: Callable[[str, Tensor], Tensor]
) -> Iterator[None]:
    """Inside, every float tensor that enters one of the layers passes through `change` first."""

    def attach(name: str) -> Any:
        def hook(_: nn.Module, args: Any) -> Any:
            return tuple(
                change(name, a) if isinstance(a, Tensor) and a.is_floating_point() else a
                for a in args
            )

        return code.get_submodule(name).register_forward_pre_hook(hook)

    handles = [attach(name) for name in layers]
    try:
        with inner_layers_called():
            yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _accuracy(store: SubnetStore, task: str, tensors: dict[str, Tensor], split: Split) -> float:
    right = 0
    for where in torch.arange(len(split)).split(BATCH):
        raw = split.inputs(where).to(store.device)
        logits = store.task_logits(store.subnet(task), tensors, raw)
        right += int((logits.argmax(1).cpu() == split.labels[where]).sum())
    return right / len(split)


def _layers(store: SubnetStore) -> list[str]:
    """The layers that multiply by a rounded matrix, under every name it is tied to."""
    architecture = store.architecture
    names = {s.name for s in architecture.shared}
    names |= {a for a, n in architecture.aliases.items() if n in names}
    names |= {
        s.name
        for s in architecture.task_params
        if s.name.startswith(f"{architecture.head}.") and len(s.shape) >= 2
    }
    owners = {n.rpartition(".")[0].partition(".parametrizations")[0] for n in names}
    return sorted(owners)
