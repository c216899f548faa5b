"""The config of a model as it is written: the network, the tasks, and how to begin reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinysubnets.architecture import Architecture
from tinysubnets.artifact.container import VERSION
from tinysubnets.artifact.manifest import FEW
from tinysubnets.artifact.memory import DTYPES
from tinysubnets.errors import ArtifactError
from tinysubnets.normalisation import Normalisation
from tinysubnets.subnet import Subnet
from tinysubnets.task import Label
from tinysubnets.version import __version__

if TYPE_CHECKING:
    from tinysubnets.store import SubnetStore


def config_of(store: SubnetStore) -> dict[str, Any]:
    """The config of a store, all but the hash of its index."""
    classes: list[list[Label]] = []
    inputs: list[list[Any]] = []
    tasks = []
    for subnet in store.subnets.values():
        entry = _task_entry(subnet, len(store.layout.shared))
        entry["classes"] = _number(classes, list(subnet.classes))
        if subnet.sample is not None:
            kind, shape = _type_name(subnet.sample.dtype), list(subnet.sample.shape)
            entry["inputs"] = _number(inputs, [kind, shape])
        tasks.append(entry)
    config = {
        "format": VERSION,
        "library": __version__,
        "block": store.layout.block,
        "architecture": _architecture(store.architecture),
        "classes": classes,
        "tasks": tasks,
    }
    if inputs:
        config["inputs"] = inputs
    seed = store.settings.get("tsn", {}).get("seed")
    return config if seed is None else config | {"seed": seed}


def _number(items: list[Any], item: Any) -> int:
    """The place of an item in a list of distinct ones, put there if it is new."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _type_name(dtype: torch.dtype) -> str:
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ArtifactError(f"tensors of type {dtype} cannot be stored; allowed: {', '.join(DTYPES)}.")


def _parts(normalisation: Normalisation) -> tuple[Sequence[float], Sequence[float]]:
    return normalisation.mean, normalisation.std


def _task_entry(subnet: Subnet, num_shared: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": subnet.name, "bank": subnet.bank, "bits": subnet.bits}
    if len(subnet.own) == 1 and num_shared > 1:
        entry["codebooks"] = 1
    normalisation = subnet.normalisation
    if len(normalisation.mean) > FEW:
        entry["channels"] = len(normalisation.mean)
    elif normalisation.mean:
        # The shortest decimal that gives the same float32.
        mean, std = ([float(str(np.float32(v))) for v in p] for p in _parts(normalisation))
        entry |= {"mean": mean, "std": std}
    if normalisation.trailing:
        entry["trailing"] = normalisation.trailing
    return entry


def _architecture(architecture: Architecture) -> dict[str, Any]:
    private = []
    for s in architecture.private:
        shape = [0, *s.shape[1:]] if s.name in architecture.output else list(s.shape)
        private.append([s.name, shape] if s.constant is None else [s.name, shape, s.constant])
    out: dict[str, Any] = {
        "head": architecture.head,
        "shared": [[s.name, list(s.shape)] for s in architecture.shared],
        "private": private,
    }
    if architecture.constants:
        out["constants"] = [
            [n, _type_name(t.dtype), list(t.shape)] for n, t in architecture.constants.items()
        ]
    if architecture.rebuild is not None:
        out["rebuild"] = architecture.rebuild
    return out
