"""Small models made without training: every kind of section, the same on every machine."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import networks
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BankDecision, CodebookTensor, PackedMask, Sample, Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitKey, initial_scores
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.divergence import InputStatistics
from tinysubnets.tasks.normalization import Normalization

SEED = 7
SETTINGS: dict[str, Any] = {"tsn": {"seed": SEED, "scale": "kaiming"}}


class Shift(nn.Module):
    """A layer with a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def own_network() -> nn.Module:
    """A network that is not of the package: a constant buffer, BatchNorm, a head named `fc`."""
    return nn.Sequential(
        OrderedDict(
            shift=Shift(),
            one=nn.Linear(6, 12),
            norm=nn.BatchNorm1d(12),
            relu=nn.ReLU(),
            two=nn.Linear(12, 12, bias=False),
            fc=nn.Linear(12, 3),
        )
    )


def architecture(kind: str = "named") -> Architecture:
    """The package's smallest network with its name recorded, or a user's own."""
    if kind == "own":
        return Architecture(own_network())
    settings = {"in_features": 6, "hidden": [12, 10], "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    return Architecture(networks.build("mlp", **settings), rebuild=record)


def add_task(store: SubnetStore, number: int, bank: int = 0, **changes: Any) -> Subnet:
    """Add a task with a random mask and random values, drawn from its number."""
    rng = np.random.default_rng(1000 + number)
    layout = store.layout
    if store.banks and bank < len(store.banks) and number % 2:
        last = store.members(bank)[-1].mask.numpy()
        mask = last ^ (rng.random(layout.num_blocks) < 0.1)
    else:
        mask = rng.random(layout.num_blocks) < 0.3
    owned = store.banks[bank].owned.numpy() if bank < len(store.banks) else np.zeros_like(mask)
    new = layout.expand(torch.from_numpy(mask & ~owned)).numpy()
    values = torch.from_numpy(rng.normal(size=layout.num_weights).astype(np.float32))
    segments = layout.segments if number != 2 else ((0, layout.num_weights),)
    bits = 32 if number == 3 else 2 + number % 3
    own = tuple(code(values[i:j][torch.from_numpy(new[i:j])], bits) for i, j in segments)
    classes = ("cat", "dog", "emu") if number % 2 else tuple(range(2 + number % 3))
    shapes = store.architecture.task_param_shapes(len(classes))
    task_params = {
        n: _task_param(torch.from_numpy(rng.normal(size=int(np.prod(s))).astype(np.float32)), i)
        for i, (n, s) in enumerate(shapes.items())
    }
    for name in task_params:
        if name.endswith("running_var"):
            task_params[name] = CodebookTensor(task_params[name].decode().abs() + 1)
    fields: dict[str, Any] = {
        "name": f"task {number}",
        "classes": classes,
        "normalization": Normalization((0.5,), (0.3,)) if number % 2 else _per_feature(rng),
        "bank": bank,
        "packed_mask": PackedMask.of(torch.from_numpy(mask)),
        "bits": bits,
        "own": own,
        "task_params": task_params,
        "shapes": shapes,
        "memory": _memory(number, rng),
        "decision": _decision(store, number, bank),
        "valid_accuracy": 0.5 + number / 64,
        "sample": None if number == 2 else Sample(torch.float32, (6,)),
    }
    subnet = Subnet(**(fields | changes))
    store.add_(subnet)
    return store.subnet(subnet.name)


def store(kind: str = "named", tasks: int = 4, block: int = 1) -> SubnetStore:
    """A store of some tasks in two banks."""
    made = SubnetStore(architecture(kind), block=block, settings=SETTINGS, seed=SEED)
    for number in range(tasks):
        add_task(made, number, bank=int(number == 2 or number == 4))
    return made


def inputs(count: int = 9) -> Tensor:
    """Raw inputs for these networks."""
    rng = np.random.default_rng(5)
    return torch.from_numpy(rng.normal(size=(count, 6)).astype(np.float32))


def _task_param(values: Tensor, number: int) -> CodebookTensor:
    return code(values, (4, 16, 32)[number % 3])


def _per_feature(rng: np.random.Generator) -> Normalization:
    mean, std = rng.normal(size=6), 0.5 + rng.random(6)
    return Normalization(tuple(mean.tolist()), tuple(std.tolist()))


def _memory(number: int, rng: np.random.Generator) -> InputStatistics | Tensor | None:
    numbers = torch.from_numpy(rng.normal(size=(2, 5))).float()
    if number == 1:
        return InputStatistics("gaussian", numbers[0].half().float(), numbers[1].abs(), 0.125, 50)
    if number == 2:
        return torch.from_numpy(rng.integers(0, 255, (4, 6), dtype=np.uint8))
    if number == 3:
        return InputStatistics("histogram", numbers[0].abs().half().float(), None, 1 / 3, 50)
    return None


def _decision(made: SubnetStore, number: int, bank: int) -> BankDecision | None:
    if not made.tasks:
        return None
    distances = {name: 1.5 + i / 3 for i, name in enumerate(made.tasks)}
    distances[made.tasks[-1]] = float("inf")
    return BankDecision(bank, "as the test says", distances, made.tasks[0])


def reference_store() -> SubnetStore:
    """A store whose masks are coded against every kind of reference there is."""
    settings = {"in_features": 64, "hidden": [64, 48], "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    made = SubnetStore(
        Architecture(networks.build("mlp", **settings), rebuild=record),
        settings=SETTINGS,
        seed=SEED,
    )
    rng = np.random.default_rng(3)
    layout = made.layout

    def scores(number: int) -> np.ndarray:
        values = initial_scores(made.architecture, layout, InitKey(7, 0, number)).abs()
        return top_k_segments(values, [(i, j, (j - i) // 8) for i, j in layout.block_segments])[0]

    def flipped(mask: np.ndarray, share: float) -> Tensor:
        return torch.from_numpy(mask ^ (rng.random(len(mask)) < share))

    owned = np.zeros(layout.num_blocks, np.bool_)
    for number in range(7):
        if number in (0, 1):
            mask = flipped(scores(number).numpy(), 0.004)
        elif number == 2:
            mask = flipped(scores(number).numpy() & ~owned, 0.004)
        elif number == 3:
            mask = flipped(owned, 0.002)
        elif number == 4:
            mask = flipped(made.subnet("task 10").mask.numpy(), 0.01)
        elif number == 5:  # drops many ones of its reference and adds few
            like = made.subnet("task 12").mask.numpy()
            mask = torch.from_numpy(like & (rng.random(len(like)) > 0.2))
        else:
            mask = torch.from_numpy(rng.random(layout.num_blocks) < 0.5)
        add_masked(made, 10 + 2 * number, mask)
        owned |= mask.numpy()
    return made


def add_masked(made: SubnetStore, number: int, mask: Tensor) -> None:
    """Add a task with the given mask to the first bank."""
    rng = np.random.default_rng(number)
    owned = made.banks[0].owned if made.banks else torch.zeros_like(mask)
    new = mask & ~owned
    own = tuple(
        code(torch.from_numpy(rng.normal(size=int(new[i:j].sum())) ** 3).float(), 4)
        for i, j in made.layout.segments
    )
    add_task(made, number, packed_mask=PackedMask.of(mask), own=own, bits=4)
