"""What is in a model file, as plain data, and whether everything in it is as it was written.

`inspect` needs no network to look. `check` goes through every hash, decodes every section and puts
every task together.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tinysubnets.coding.seven_task_huffman import seven_tasks_size
from tinysubnets.errors import DamageError
from tinysubnets.format.container import ModelFile, model_path
from tinysubnets.format.folder import load
from tinysubnets.format.io import Contents, ledger_of_sizes, read_contents
from tinysubnets.model.size import Ledger
from tinysubnets.model.subnet import FIRST_MEMBER, Subnet
from tinysubnets.nn.architecture import Architecture

REFERENCES = ("nothing", "what the bank owns", "first scores", "free first scores")


def inspect(where: str | os.PathLike[str]) -> dict[str, Any]:
    """Tasks, banks, sizes and overlaps of a model, everything in the file checked on the way."""
    path = model_path(where)
    with ModelFile(path) as file:
        contents = read_contents(file)
        ledger = _ledger(file, contents)
    subnets = list(contents.subnets.values())
    layout, manifest = contents.manifest.layout, contents.manifest
    return {
        "path": str(path),
        "format": file.config["format"],
        "library": file.config.get("library"),
        "network": manifest.rebuild or "given by the user",
        "num_weights": layout.num_weights,
        "num_blocks": layout.num_blocks,
        "block": layout.block,
        "settings": contents.settings,
        "tasks": [_task(s, contents, ledger) for s in subnets],
        "tensors": _tensors(subnets, contents),
        "banks": [_bank(i, contents) for i in range(len(contents.banks))],
        "free_share": _free_share(contents),
        "ledger": ledger.as_dict(),
        "masks": _mask_sizes(subnets, ledger),
        "overlap": _overlap(subnets),
        "room": _room(contents, ledger),
    }


def _ledger(file: ModelFile, contents: Contents) -> Ledger:
    scheme, count = file.scheme, file.num_tasks
    sizes = {kind: [file.size(kind)] for kind in scheme.common}
    sizes |= {kind: [file.size(kind, i) for i in range(count)] for kind in scheme.kinds}
    layout = contents.manifest.layout
    return ledger_of_sizes(sizes, file.header_bytes, _entries(contents), layout, file.version)


def _entries(contents: Contents) -> list[Subnet]:
    """All subnets in the order of learning, those without a name too."""
    found = [*contents.subnets.values(), *contents.nameless.values()]
    return sorted(found, key=lambda s: s.number)


def _task(subnet: Subnet, contents: Contents, ledger: Ledger) -> dict[str, Any]:
    layout = contents.manifest.layout
    kept = int(layout.expand(subnet.mask).count_nonzero())
    accuracy = subnet.valid_accuracy
    return {
        "name": subnet.name,
        "number": subnet.number,
        "isolated": subnet.isolated,
        "classes": list(subnet.classes),
        "bank": subnet.bank,
        "reason": None if subnet.decision is None else subnet.decision.reason,
        "bits": subnet.bits,
        "density": kept / layout.num_weights,
        "new_weights": subnet.num_new,
        "valid_accuracy": None if math.isnan(accuracy) else accuracy,
        "bytes": round(ledger.tasks[subnet.name].total) // 8,
        "mask_against": _reference(subnet, contents),
        "inputs": None
        if subnet.sample is None
        else [str(subnet.sample.dtype).removeprefix("torch."), list(subnet.sample.shape)],
    }


def _tensors(subnets: list[Subnet], contents: Contents) -> list[dict[str, Any]]:
    """Each shared tensor: its size, the share that is free, and that each task's mask keeps."""
    layout = contents.manifest.layout
    masks = [layout.expand(s.mask) for s in subnets]
    owned = [layout.expand(bank.owned) for bank in contents.banks]
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "densities": [float(m[i:j].float().mean()) for m in masks],
            "free_shares": [1 - float(o[i:j].float().mean()) for o in owned],
        }
        for tensor, (i, j) in zip(layout.shared, layout.segments, strict=True)
    ]


def _reference(subnet: Subnet, contents: Contents) -> str:
    """What the task's mask is coded against, in words."""
    kind = 0 if subnet.coded_mask is None else subnet.coded_mask.reference
    if kind < FIRST_MEMBER:
        return REFERENCES[kind]
    members = [s.name for s in _entries(contents) if s.bank == subnet.bank]
    name = members[kind - FIRST_MEMBER]
    return f"the mask of {name!r}" if name else "what a removed task left"


def _bank(number: int, contents: Contents) -> dict[str, Any]:
    layout = contents.manifest.layout
    owned = int(layout.expand(contents.banks[number].owned).count_nonzero())
    members = [s.name for s in contents.subnets.values() if s.bank == number]
    free = layout.num_weights - owned
    nameless = sum(s.num_new for s in contents.nameless.values() if s.bank == number)
    return {
        "tasks": members,
        "owned_weights": owned,
        "nameless_weights": nameless,
        "free_share": free / layout.num_weights,
    }


def _free_share(contents: Contents) -> float:
    banks = [_bank(i, contents)["free_share"] for i in range(len(contents.banks))]
    return sum(banks) / len(banks) if banks else 1.0


def _mask_sizes(subnets: list[Subnet], ledger: Ledger) -> dict[str, int]:
    """The masks' bytes as stored, as the seven-task Huffman code has them, and raw."""
    masks = [s.mask.numpy() for s in subnets]
    return {
        "stored_bytes": round(ledger.total.masks) // 8,
        "seven_task_huffman_bytes": seven_tasks_size(masks) if masks else 0,
        "raw_bytes": sum(s.packed_mask.bits.nbytes for s in subnets),
    }


def _overlap(subnets: list[Subnet]) -> list[list[float]]:
    """For tasks i and j the share of the blocks that either mask holds which both hold."""
    table = []
    for one in subnets:
        mine, row = one.mask, []
        for two in subnets:
            other = two.mask
            either = int((mine | other).count_nonzero())
            row.append(int((mine & other).count_nonzero()) / either if either else 1.0)
        table.append(row)
    return table


def _room(contents: Contents, ledger: Ledger) -> dict[str, Any]:
    """How many more tasks like the last one would fit: by free weights, and by bytes."""
    if not contents.subnets:
        return {"bytes_per_task": None, "until_no_free_weights": None, "until_dense_size": None}
    last = list(contents.subnets.values())[-1]
    free = sum(
        contents.manifest.layout.num_weights - _bank(i, contents)["owned_weights"]
        for i in range(len(contents.banks))
    )
    step = round(ledger.tasks[last.name].total) // 8
    left = 4 * ledger.num_weights - (ledger.file_bytes or 0)
    return {
        "bytes_per_task": step,
        "until_no_free_weights": free // last.num_new if last.num_new else None,
        "until_dense_size": max(left // step, 0),
    }


@dataclass(frozen=True)
class Checked:
    """What a check went through."""

    file_bytes: int
    num_sections: int
    num_tasks: int
    is_rebuilt: bool


def check(where: str | os.PathLike[str], net: nn.Module | Architecture | None = None) -> Checked:
    """Check everything in a model; damage is an error that names its place.

    A network of the package is rebuilt and holds every task once, and so does one's own that is
    given as `net`; without it the names and shapes on record are all that can be looked at.
    """
    path = model_path(where)
    with ModelFile(path) as file:
        for kind in file.scheme.common:
            file.section(kind)
        for task in range(file.num_tasks):
            for kind in file.scheme.kinds:
                file.section(kind, task)
        num_sections = len(file.scheme.common) + file.num_tasks * len(file.scheme.kinds)
        contents = read_contents(file)
    for subnet in contents.subnets.values():
        for name, tensor in subnet.task_tensors().items():
            if not bool(torch.isfinite(tensor).all()):
                raise DamageError(f"task {subnet.name!r}: {name} is not finite everywhere.")
    for number, bank in enumerate(contents.banks):
        if not bool(torch.isfinite(bank.values).all()):
            raise DamageError(f"bank {number} is not finite everywhere.")
    rebuild = contents.manifest.rebuild
    known = rebuild is not None and ":" not in str(rebuild.get("network", ":"))
    if known or net is not None:
        store = load(path, net)
        for name in store.tasks:
            store.tensors(name)
    return Checked(file.file_bytes, num_sections, len(contents.subnets), known or net is not None)
