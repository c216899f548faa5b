"""What is in a model file, as plain data, and whether everything in it is as it was written.

`inspect` needs no network to look. `check` goes through every hash, decodes every section and puts
every task together.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.coding.bits import count_ones
from tinysubnets.coding.seven_task_huffman import GROUP, seven_tasks_size
from tinysubnets.errors import DamageError
from tinysubnets.format import limits
from tinysubnets.format.container import ModelFile, model_path
from tinysubnets.format.folder import store_of
from tinysubnets.format.io import Contents, ledger_of_sizes, read_contents
from tinysubnets.model.bank import Bank, Base, BaseSource
from tinysubnets.model.size import Ledger
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, FIRST_MEMBER, NO_BANK, Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout

MAX_OVERLAPS = 64  # tasks of which every pair is compared: more would take time with their square
REFERENCES = ("nothing", "what the bank owns", "first scores", "free first scores")


def inspect(where: str | os.PathLike[str]) -> dict[str, Any]:
    """Tasks, banks, sizes and overlaps of a model, everything in the file checked on the way.

    The overlap of every two masks is None where there are more than `MAX_OVERLAPS` tasks.
    """
    path = model_path(where)
    with limits.guarded(), ModelFile(path) as file:
        contents = read_contents(file)
        ledger = _ledger(file, contents)
        return {"path": str(path), **_summary(file, contents, ledger)}


def _summary(file: ModelFile, contents: Contents, ledger: Ledger) -> dict[str, Any]:
    """What `inspect` gives, but for the path."""
    subnets = list(contents.subnets.values())
    layout, manifest = contents.manifest.layout, contents.manifest
    groups: dict[int, list[Subnet]] = {}  # by bank, in the order of learning
    for subnet in _entries(contents):
        groups.setdefault(subnet.bank, []).append(subnet)
    members = {bank: [s.name for s in group] for bank, group in groups.items()}
    banks = [_bank(bank, groups.get(i, [])) for i, bank in enumerate(contents.banks)]
    shares = [bank["free_share"] for bank in banks]
    return {
        "format": file.config["format"],
        "library": file.config.get("library"),
        "network": manifest.rebuild or "given by the user",
        "num_weights": layout.num_weights,
        "num_blocks": layout.num_blocks,
        "block": layout.block,
        "base": _base(contents.base),
        "settings": contents.settings,
        "tasks": [
            _task(s, layout, members[s.bank], ledger) | {"added_to": _added_to(s, contents)}
            for s in subnets
        ],
        "tensors": _tensors(subnets, contents),
        "banks": banks,
        "free_share": sum(shares) / len(shares) if shares else 1.0,
        "ledger": ledger.as_dict(),
        "masks": _mask_sizes(subnets, ledger),
        "overlap": _overlap(subnets) if len(subnets) <= MAX_OVERLAPS else None,
        "room": _room(subnets, layout, banks, ledger),
    }


def _base(base: Base | None) -> dict[str, Any] | None:
    """What is said of the base: what it is called, and whether the file has its values."""
    if base is None:
        return None
    return {
        "name": base.name,
        "source": base.source,
        "sha256": base.sha256,
        "embedded": base.values is not None,
    }


def _ledger(file: ModelFile, contents: Contents) -> Ledger:
    scheme, count = file.scheme, file.num_tasks
    sizes = {kind: [file.size(kind)] for kind in scheme.common}
    sizes |= {kind: [file.size(kind, i) for i in range(count)] for kind in scheme.kinds}
    layout = contents.manifest.layout
    return ledger_of_sizes(sizes, file.metadata_bytes, _entries(contents), layout, file.version)


def _entries(contents: Contents) -> list[Subnet]:
    """All subnets in the order of learning, those without a name too."""
    found = [*contents.subnets.values(), *contents.nameless.values()]
    return sorted(found, key=lambda s: s.number)


def _task(subnet: Subnet, layout: Layout, members: list[str], ledger: Ledger) -> dict[str, Any]:
    """What is said of a task; `members` are the names of its bank's entries, "" for none."""
    # A mask that holds nothing is never unpacked: a short file may name a base of gigabytes.
    kept = int(layout.expand(subnet.mask).count_nonzero()) if subnet.has_mask else 0
    accuracy = subnet.valid_accuracy
    return {
        "name": subnet.name,
        "number": subnet.number,
        "isolated": subnet.isolated,
        "classes": list(subnet.classes),
        "rotations": subnet.rotations,
        "bank": subnet.bank,
        "reason": None if subnet.decision is None else subnet.decision.reason,
        "bits": subnet.bits,
        "density": kept / layout.num_weights,
        "rank": subnet.rank,
        "new_weights": subnet.num_new,
        "valid_accuracy": None if math.isnan(accuracy) else accuracy,
        "bytes": round(ledger.tasks[subnet.name].total) // 8,
        "mask_against": _reference(subnet, members),
        "inputs": None
        if subnet.sample is None
        else [str(subnet.sample.dtype).removeprefix("torch."), list(subnet.sample.shape)],
        "preprocessing": None if subnet.preprocessing is None else dict(subnet.preprocessing),
    }


def _added_to(subnet: Subnet, contents: Contents) -> str | None:
    """What a task's weights are added to, in words; None where they are all there is."""
    if subnet.reference is None:
        return None
    if subnet.reference == BASE:
        return "the base"
    names = [s.name for s in contents.subnets.values() if s.number == subnet.reference]
    return repr(names[0]) if names else "what a removed task left"


def _tensors(subnets: list[Subnet], contents: Contents) -> list[dict[str, Any]]:
    """Each shared tensor: its size, the share that is free, and that each task's mask keeps."""
    layout = contents.manifest.layout
    nothing = [0.0] * len(layout.shared)
    densities = [_shares(s.mask, layout) if s.has_mask else nothing for s in subnets]
    owned = [_shares(bank.owned, layout) for bank in contents.banks]
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "densities": [shares[i] for shares in densities],
            "free_shares": [1 - shares[i] for shares in owned],
        }
        for i, tensor in enumerate(layout.shared)
    ]


def _shares(blocks: Tensor, layout: Layout) -> list[float]:
    """The share of each shared tensor's weights that a mask holds."""
    held = layout.expand(blocks)
    return [float(held[i:j].float().mean()) for i, j in layout.segments]


def _reference(subnet: Subnet, members: list[str]) -> str:
    """What the task's mask is coded against, in words."""
    kind = 0 if subnet.coded_mask is None else subnet.coded_mask.reference
    if kind < FIRST_MEMBER:
        return REFERENCES[kind]
    name = members[kind - FIRST_MEMBER]
    return f"the mask of {name!r}" if name else "what a removed task left"


def _bank(bank: Bank, entries: list[Subnet]) -> dict[str, Any]:
    """What is said of a bank; `entries` are its subnets, those without a name too."""
    owned = int(bank.layout.expand(bank.owned).count_nonzero())
    free = bank.layout.num_weights - owned
    return {
        "tasks": [s.name for s in entries if s.name],
        "owned_weights": owned,
        "nameless_weights": sum(s.num_new for s in entries if not s.name),
        "free_share": free / bank.layout.num_weights,
    }


def _mask_sizes(subnets: list[Subnet], ledger: Ledger) -> dict[str, int]:
    """The masks' bytes as stored, as the seven-task Huffman code has them, and raw."""
    masked = [s for s in subnets if s.has_mask]
    groups = [masked[i : i + GROUP] for i in range(0, len(masked), GROUP)]
    return {
        "stored_bytes": round(ledger.total.masks) // 8,
        # Group by group: all masks as booleans would be larger than the model.
        "seven_task_huffman_bytes": sum(
            seven_tasks_size([s.mask.numpy() for s in group]) for group in groups
        ),
        "raw_bytes": sum(s.packed_mask.bits.nbytes for s in subnets),
    }


def _overlap(subnets: list[Subnet]) -> list[list[float]]:
    """For tasks i and j the share of the blocks that either mask holds which both hold."""
    none = np.zeros(1, np.uint8)
    masks = [s.packed_mask.bits if s.has_mask else none for s in subnets]
    table = [[1.0] * len(masks) for _ in masks]
    for one, mine in enumerate(masks):
        for two, other in enumerate(masks[:one]):
            either = count_ones(mine | other)
            share = count_ones(mine & other) / either if either else 1.0
            table[one][two] = table[two][one] = share
    return table


def _room(
    subnets: list[Subnet], layout: Layout, banks: list[dict[str, Any]], ledger: Ledger
) -> dict[str, Any]:
    """How many more tasks like the last one would fit: by free weights, and by bytes."""
    if not subnets:
        return {"bytes_per_task": None, "until_no_free_weights": None, "until_dense_size": None}
    last = subnets[-1]
    free = sum(layout.num_weights - bank["owned_weights"] for bank in banks)
    step = round(ledger.tasks[last.name].total) // 8
    left = 4 * ledger.num_weights - (ledger.file_bytes or 0)
    return {
        "bytes_per_task": step,
        "until_no_free_weights": free // last.num_new if last.num_new else None,
        "until_dense_size": max(left // step, 0),
    }


@dataclass(frozen=True)
class Checked:
    """What a check went through.

    - `is_rebuilt`: whether the network was at hand, to hold every task once.
    - `without_base`: the tasks that it could not hold, because the base's values were not; without
      the network itself, those that use the base.
    """

    file_bytes: int
    num_sections: int
    num_tasks: int
    is_rebuilt: bool
    without_base: tuple[str, ...] = ()


def check(
    where: str | os.PathLike[str],
    net: nn.Module | Architecture | None = None,
    base: BaseSource | None = None,
) -> Checked:
    """Check everything in a model; damage is an error that names its place.

    Every task is put into the network once: a network of the package is rebuilt, your own has to be
    given as `net`. Without it only the names and shapes on record can be checked. The same goes for
    the values of a base that the file only names, see `SubnetStore.load`.
    """
    with limits.guarded(), ModelFile(model_path(where)) as file:
        sections = 0
        for kind in file.scheme.common:
            file.section(kind)
            sections += 1
        for task in range(file.num_tasks):
            for kind in file.scheme.kinds:
                file.section(kind, task)
                sections += 1
        contents = read_contents(file)
        _check_finite(contents)
        rebuild = contents.manifest.rebuild
        known = rebuild is not None and ":" not in str(rebuild.get("network", ":"))
        is_rebuilt, lacking = known or net is not None or base is not None, []
        if is_rebuilt:
            store = store_of(contents, net, base=base)
            has_base = store.base is not None and store.base.values is not None
            checked: set[int] = set()
            for name in store.tasks:
                if has_base or not store.needs_base(name):
                    _check_weights(store, name, checked)
                else:
                    lacking.append(name)
        elif contents.base is not None and contents.base.values is None:
            lacking = [name for name, subnet in contents.subnets.items() if subnet.uses_base]
    num_tasks = len(contents.subnets)
    return Checked(file.file_bytes, sections, num_tasks, is_rebuilt, tuple(lacking))


def _check_weights(store: SubnetStore, task: str, checked: set[int]) -> None:
    """Refuse a task whose weights overflow where finite numbers are added up or multiplied.

    - `checked`: the entries whose weights were looked at, which any number of tasks may use again.
    """
    chain = store.chain(store.subnet(task))
    source = next((s.number for s in chain if not s.adds_nothing), BASE)
    if source in checked:
        return
    checked.add(source)
    tensors = store.tensors(task)
    for spec in store.layout.shared:
        if not bool(tensors[spec.name].isfinite().all()):
            raise DamageError(f"task {task!r}: weights of {spec.name} are not finite.")


def _check_finite(contents: Contents) -> None:
    """Refuse values that are NaN or infinite: of tasks, of the base, and of banks."""
    for subnet in contents.subnets.values():
        for name, tensor in subnet.task_tensors().items():
            if not bool(torch.isfinite(tensor).all()):
                raise DamageError(f"task {subnet.name!r}: {name} is not finite everywhere.")
    for subnet in _entries(contents):
        if subnet.bank == NO_BANK and not all(torch.isfinite(c.values).all() for c in subnet.own):
            raise DamageError(f"the weights of task number {subnet.number} are not finite.")
    if contents.base is not None and contents.base.values is not None:
        for name, tensor in contents.base.values.items():
            if not bool(torch.isfinite(tensor).all()):
                raise DamageError(f"the base: {name} is not finite everywhere.")
    for number, bank in enumerate(contents.banks):
        if not bool(torch.isfinite(bank.values).all()):
            raise DamageError(f"bank {number} is not finite everywhere.")
