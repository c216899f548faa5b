"""A full check of a model file: every hash, every section decoded, every task put together."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from tinysubnets.architecture import Architecture
from tinysubnets.artifact.container import ModelFile, model_path, places
from tinysubnets.artifact.folder import load
from tinysubnets.artifact.reader import read_contents
from tinysubnets.errors import DamageError


@dataclass(frozen=True)
class Checked:
    """What a check went through."""

    file_bytes: int
    num_sections: int
    num_tasks: int
    is_rebuilt: bool


def check(
    where: str | os.PathLike[str], net: nn.Module | Architecture | None = None
) -> Checked:
    """Check everything in a model; damage is an error that names its place.

    A network of the package is rebuilt and holds every task once, and so does one's own that is
    given as `net`; without it the names and shapes on record are all that can be looked at.
    """
    path = model_path(where)
    with ModelFile(path) as file:
        sections = places(file.num_tasks)
        for kind, task in sections:
            file.section(kind, task)
        contents = read_contents(file)
    for subnet in contents.subnets.values():
        for name, tensor in subnet.private_tensors().items():
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
    return Checked(file.file_bytes, len(sections), file.num_tasks, known or net is not None)
