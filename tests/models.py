"""Small models made without training: every kind of section, the same on every machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import networks
from tinysubnets.coding.grids import Grid
from tinysubnets.model.bank import Base
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import (
    BASE,
    NO_BANK,
    BankDecision,
    CodebookTensor,
    PackedMask,
    Sample,
    Subnet,
    code,
    constant,
    rounded,
)
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitKey, initial_scores, weights_hash
from tinysubnets.nn.low_rank import Factors
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.divergence import InputStatistics
from tinysubnets.tasks.normalization import Normalization

SEED = 7
ON_GRIDS = (4, 5, 9, 13)  # tasks whose task-specific parameters are rounded to grids
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


def kernel_network() -> nn.Module:
    """A network with kernels of two sizes, and a matrix between them and the head."""
    return nn.Sequential(
        OrderedDict(
            one=nn.Conv2d(2, 6, 3),
            two=nn.Conv2d(6, 8, 3, bias=False),
            relu=nn.ReLU(),
            three=nn.Conv2d(8, 4, 1),
            flat=nn.Flatten(),
            four=nn.Linear(16, 12),
            fc=nn.Linear(12, 3),
        )
    )


def network_of(name: str) -> nn.Module | None:
    """The network of a model that is called by its kind, where it is not one of the package."""
    if "kernels" in name:
        return kernel_network()
    return own_network() if "own" in name or "whole" in name else None


def architecture(kind: str = "named") -> Architecture:
    """The package's smallest network with its name recorded, or a user's own."""
    if kind != "named":
        net = network_of(kind)
        assert net is not None
        return Architecture(net)
    settings = {"in_features": 6, "hidden": [12, 10], "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    return Architecture(networks.build("mlp", **settings), rebuild=record)


def add_task(store: SubnetStore, number: int, bank: int = 0, **changes: Any) -> Subnet:
    """Add a task with a random mask and random values, drawn from its number."""
    rng = np.random.default_rng(1000 + number)
    layout = store.layout
    if bank < len(store.banks) and number % 2 and store.members(bank):
        last = store.members(bank)[-1].mask.numpy()
        mask = last ^ (rng.random(layout.num_blocks) < 0.1)
    else:
        mask = rng.random(layout.num_blocks) < 0.3
    is_there = 0 <= bank < len(store.banks)
    owned = store.banks[bank].owned.numpy() if is_there else np.zeros_like(mask)
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
    if number in ON_GRIDS:
        task_params = {n: rounded(c.decode(), _grid(number, n)) for n, c in task_params.items()}
    for name in task_params:
        if name.endswith("running_var"):
            positive = task_params[name].decode().abs() + 1
            grid = task_params[name].grid
            task_params[name] = rounded(positive, grid) if grid else CodebookTensor(positive)
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


def _grid(number: int, name: str) -> Grid:
    """Grids of every kind: floats, steps of one size, one for all of a kind or one for each."""
    if number == 5:
        return Grid(3, -2)
    return Grid(2 + len(name) % 3, -1 - len(name) % 4)


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
    return BankDecision(bank, "as the test says", made.tasks[0])


def whole_store() -> SubnetStore:
    """A store with everything that a life of many tasks leaves behind.

    A nameless owner, an empty bank, an isolated task, tensors that take no bytes, preprocessing,
    routing, differences from another task, in its weights and its task-specific parameters, and
    from a base whose values are in the file.
    """
    rng = np.random.default_rng(17)
    network = architecture("own")
    specs = (*network.shared, *(s for s in network.task_params if s.name not in network.output))
    values = {
        s.name: torch.from_numpy(rng.normal(size=s.shape).astype(np.float32)).abs() for s in specs
    }
    base = Base("small", "tests", weights_hash(values), values, embedded=True)
    settings = {"method": "tsn", **SETTINGS}
    made = SubnetStore(network, settings=settings, seed=SEED, base=base)
    preprocessing = {"resize": 36, "crop": [32, 32], "mode": "RGB", "mean": [0.5, 0.25]}
    add_task(made, 0, routing={"energy": torch.tensor([1.5, -2.25]), "count": torch.ones(1)})
    add_task(made, 2, bank=1)
    energy = {"count": torch.ones(1), "energy": torch.tensor([0.5, 2.0])}
    add_task(made, 5, preprocessing=preprocessing, routing=energy)
    add_task(made, 6, bank=2, isolated=True, memory=None)
    folded = {
        "norm.running_mean": constant(0.0, 12),
        "norm.running_var": constant(1 - 1e-5, 12),
    }
    add_task(made, 7, preprocessing=preprocessing, **without(made, 7, folded))
    add_task(made, 8, bank=NO_BANK, reference=made.subnet("task 5").number, **differences(made, 8))
    last = made.subnet("task 8").number
    add_task(made, 9, bank=NO_BANK, reference=last, **differences(made, 9))
    near = {
        n: rounded(c.decode() * 1.01 + 0.01, Grid(3, -2))
        for n, c in made.subnet("task 9").task_params.items()
    }
    reference = made.subnet("task 9").number
    changes = {"classes": made.subnet("task 9").classes, "task_params": near}
    add_task(made, 13, bank=NO_BANK, reference=reference, **differences(made, 13) | changes)
    norms = dict.fromkeys(n for n in network.running_stats)
    add_task(made, 11, bank=0, reference=BASE, **(without(made, 11, norms)))
    over_base = without(made, 15, norms) | differences(made, 15)
    add_task(made, 15, bank=NO_BANK, reference=BASE, adds_to_base=True, **over_base)
    for name in ("task 0", "task 2", "task 8"):
        made.remove(name)
    return made


def low_rank_store() -> SubnetStore:
    """A store of differences of low rank: to a base in the file, to one another, and masks beside.

    One of them is removed, and stays without a name for the task that is added to it.
    """
    rng = np.random.default_rng(18)
    network = architecture()
    specs = (*network.shared, *(s for s in network.task_params if s.name not in network.output))
    values = {s.name: torch.from_numpy(rng.normal(size=s.shape).astype(np.float32)) for s in specs}
    base = Base("small", "tests", weights_hash(values), values, embedded=True)
    made = SubnetStore(network, settings={"method": "tsn", **SETTINGS}, seed=SEED, base=base)
    reference = BASE
    for number, rank in ((1, 1), (2, 2), (4, 1), (5, 1)):
        subnet = add_low_rank(made, number, rank, reference)
        reference = subnet.number if number == 2 else BASE
    over_base = {"reference": BASE, "adds_to_base": True} | differences(made, 7)
    add_task(made, 7, bank=NO_BANK, **over_base)
    made.remove("task 2")
    return made


def add_low_rank(made: SubnetStore, number: int, rank: int, reference: int) -> Subnet:
    """Add a task as a difference of low rank to what a reference names, drawn from its number."""
    rng = np.random.default_rng(5000 + number)
    sizes = Factors(made.layout, rank).sizes.values()
    drawn = [torch.from_numpy(rng.normal(size=n).astype(np.float32)) for n in sizes]
    own = tuple(code(d, 2) if number % 4 else rounded(d, Grid(number, -2)) for d in drawn)
    added = {"packed_mask": PackedMask.none(made.layout.num_blocks), "own": own, "rank": rank}
    changes = added | {"bits": 2, "reference": reference, "adds_to_base": True}
    return add_task(made, number, bank=NO_BANK, **changes)


def chain_store() -> SubnetStore:
    """Tasks each of which refers to the one before, half of them without weights of their own."""
    made = low_rank_store()
    for name in made.tasks:
        made.remove(name)
    nothing: dict[str, Any] = {"packed_mask": PackedMask.none(made.layout.num_blocks), "bits": 2}
    nothing["own"] = (CodebookTensor(torch.zeros(0)),) * len(made.layout.shared)
    reference = BASE
    for number, rank in ((1, 0), (3, 2), (5, 0), (7, 0), (9, 0), (11, 1)):
        if rank:
            subnet = add_low_rank(made, number, rank, reference)
        else:
            own = differences(made, number) if number == 7 else nothing
            changes = own | {"reference": reference, "adds_to_base": True}
            subnet = add_task(made, number, bank=NO_BANK, **changes)
        reference = subnet.number
    return made


def differences(made: SubnetStore, number: int) -> dict[str, Any]:
    """A mask and own weights for all of it: what a task adds to the one it refers to."""
    rng = np.random.default_rng(2000 + number)
    mask = torch.from_numpy(rng.random(made.layout.num_blocks) < 0.1)
    values = torch.from_numpy(rng.normal(size=made.layout.num_weights).astype(np.float32))
    chosen = made.layout.expand(mask)
    own = tuple(code(values[i:j][chosen[i:j]], 2) for i, j in made.layout.segments)
    return {"packed_mask": PackedMask.of(mask), "own": own, "bits": 2}


def without(
    made: SubnetStore, number: int, absent: Mapping[str, CodebookTensor | None]
) -> dict[str, Any]:
    """Task-specific parameters of which some are constants, or the base's."""
    classes = 3 if number % 2 else 2 + number % 3
    rng = np.random.default_rng(3000 + number)
    shapes = made.architecture.task_param_shapes(classes)
    kept = {n: s for n, s in shapes.items() if absent.get(n, "") is not None}
    return {
        "task_params": {
            n: absent.get(n) or code(torch.from_numpy(rng.random(int(np.prod(s)))).float(), 16)
            for n, s in kept.items()
        }
    }


def kernel_store() -> SubnetStore:
    """A store of one-bit differences whose weights come in kernels, their signs alike there."""
    made = SubnetStore(architecture("kernels"), settings=SETTINGS, seed=SEED)
    for number in range(4):
        rng = np.random.default_rng(4000 + number)
        layout = made.layout
        masks, values = [], []
        for spec, width in zip(layout.shared, layout.kernels, strict=True):
            kept = np.repeat(rng.random(spec.numel // width) < (0.5, 0.2)[number > 0], width)
            masks.append(kept & (rng.random(spec.numel) < 0.8))
            signs = np.repeat(rng.choice([-1.0, 1.0], spec.numel // width), width)
            signs *= np.where(rng.random(spec.numel) < 0.05, -1, 1)
            values.append(signs * (1 + 0.01 * rng.random(spec.numel)) / 8)
        mask = torch.from_numpy(np.concatenate(masks))
        flat = torch.from_numpy(np.concatenate(values)).float()
        own = tuple(code(flat[i:j][mask[i:j]], 1) for i, j in layout.segments)
        changes = {} if not number else {"bank": NO_BANK, "reference": number - 1}
        add_task(
            made, 4 + number, packed_mask=PackedMask.of(mask), own=own, bits=1,
            sample=Sample(torch.float32, (2, 6, 6)), **changes,
        )  # fmt: skip
    return made


def matrix_store() -> SubnetStore:
    """A store whose masks hold much of some inputs and rows, and little of others."""
    settings = {"in_features": 120, "hidden": [40, 12], "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    made = SubnetStore(
        Architecture(networks.build("mlp", **settings), rebuild=record),
        settings=SETTINGS,
        seed=SEED,
    )
    for number in range(3):
        rng = np.random.default_rng(5000 + number)
        masks = []
        for spec in made.layout.shared:
            rows, columns = (rng.gamma(0.4, size=n) for n in spec.shape)
            chances = 0.1 * rows[:, None] * columns / (rows.mean() * columns.mean())
            masks.append((rng.random(spec.shape) < chances).reshape(-1))
        mask = torch.from_numpy(np.concatenate(masks))
        fresh = mask & ~made.banks[0].owned if number == 2 else mask  # the third is of bank 0 too
        flat = torch.from_numpy(rng.choice([-0.5, 0.25], made.layout.num_weights)).float()
        own = tuple(code(flat[i:j][fresh[i:j]], 1) for i, j in made.layout.segments)
        add_task(
            made, 20 + number, bank=number % 2, packed_mask=PackedMask.of(mask), own=own, bits=1,
            sample=Sample(torch.float32, (120,)),
        )  # fmt: skip
    return made


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
