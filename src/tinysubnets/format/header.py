"""The config in a model's header: the network, the tasks, and how to begin reading.

`config_of` writes it; `manifest_of` reads it and checks every entry before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinysubnets import __version__
from tinysubnets.errors import ArtifactError, DamageError, TaskError
from tinysubnets.format import limits
from tinysubnets.format.container import VERSION
from tinysubnets.format.sections import DTYPES, MAX_DIMENSIONS
from tinysubnets.model.subnet import Sample, Subnet
from tinysubnets.nn.architecture import Architecture, TensorSpec
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Label

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


MAX_NUMEL = 1 << 40
FEW = 4  # a normalization of so many channels stands in the config, a longer one in its section


@dataclass(frozen=True)
class TaskEntry:
    """What the config says of one task; `channels` counts a normalization kept in its section."""

    name: str
    classes: tuple[Label, ...]
    bank: int
    bits: int
    normalization: Normalization
    channels: int
    one_codebook: bool
    sample: Sample | None


@dataclass(frozen=True)
class Manifest:
    """The config, checked: the network's tensors and the tasks.

    - `head`: the name of the head's module.
    - `layout`: the shared tensors and the blocks that masks divide them into.
    - `seed`: the learner's, if it has one.
    - `task_params`: the task-specific parameters; a first dimension of 0 counts a task's classes.
    - `outputs`: those of them that have such a dimension.
    - `constants`: name, type and shape of the buffers that no task changes.
    - `rebuild`: how a network of the package is built again, None for the user's own.
    - `file_bytes`: the size of the file, which bounds what may be made of it.
    """

    head: str
    layout: Layout
    seed: int | None
    task_params: tuple[TensorSpec, ...]
    outputs: frozenset[str]
    constants: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    rebuild: dict[str, Any] | None
    tasks: tuple[TaskEntry, ...]
    file_bytes: int = 0

    def task_param_shapes(self, num_classes: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's task-specific parameters."""
        return {
            s.name: (num_classes, *s.shape[1:]) if s.name in self.outputs else s.shape
            for s in self.task_params
        }

    def in_head(self, name: str) -> bool:
        """Whether a task-specific parameter belongs to the head."""
        return name.startswith(f"{self.head}.")

    @property
    def num_banks(self) -> int:
        """How many banks the tasks use."""
        return 1 + max((t.bank for t in self.tasks), default=-1)


# Reading.


def manifest_of(config: Mapping[str, Any], file_bytes: int) -> Manifest:
    """The checked config of a file of that size; damage is named by its place."""
    architecture = _table(config.get("architecture"), "architecture")
    shared = _tensor_specs(architecture.get("shared"), "shared")
    task_params = _tensor_specs(architecture.get("private"), "private")
    if not shared or len({s.name for s in (*shared, *task_params)}) != len(shared) + len(
        task_params
    ):
        raise DamageError("config: the names of the network's tensors are not distinct.")
    if any(0 in s.shape for s in shared):
        raise DamageError("config: a shared tensor without values.")
    rebuild = architecture.get("rebuild")
    classes = [_classes(c) for c in _list(config.get("classes"), "classes")]
    inputs = [_sample(s) for s in _list(config.get("inputs", []), "inputs")]
    tasks = [_read_task(t, classes, inputs, i) for i, t in enumerate(config["tasks"])]
    manifest = Manifest(
        head=_string(architecture.get("head"), "head"),
        layout=Layout(shared, _integer(config.get("block"), "block", 1, 1 << 31)),
        seed=_seed(config.get("seed")),
        task_params=task_params,
        outputs=frozenset(s.name for s in task_params if s.shape and s.shape[0] == 0),
        constants=_constants(architecture.get("constants", [])),
        rebuild=None if rebuild is None else _table(rebuild, "rebuild"),
        tasks=tuple(tasks),
        file_bytes=file_bytes,
    )
    _check_tasks(manifest)
    limits.check_budget(manifest, file_bytes)
    return manifest


def _check_tasks(manifest: Manifest) -> None:
    names = [t.name for t in manifest.tasks]
    if len(set(names)) != len(names):
        raise DamageError("config: two tasks have the same name.")
    opened = 0
    for task in manifest.tasks:
        if task.bank > opened:
            raise DamageError(f"config: task {task.name!r} is in bank {task.bank} of {opened}.")
        opened = max(opened, task.bank + 1)


def _read_task(
    value: Any, classes: list[tuple[Label, ...]], inputs: list[Sample], number: int
) -> TaskEntry:
    where = f"task {number}"
    entry = _table(value, where)
    trailing = _integer(entry.get("trailing", 0), f"{where}, trailing", 0, MAX_DIMENSIONS)
    channels = _integer(entry.get("channels", 0), f"{where}, channels", 0, 1 << 24)
    mean, std = (_float32s(entry.get(k, []), f"{where}, {k}") for k in ("mean", "std"))
    if len(mean) != len(std) or (mean and channels):
        raise DamageError(f"config: {where}: {len(mean)} means and {len(std)} deviations.")
    known = len(classes) - 1
    kind = entry.get("inputs")
    if kind is not None:
        kind = inputs[_integer(kind, f"{where}, inputs", 0, len(inputs) - 1)]
    return TaskEntry(
        name=_string(entry.get("name"), f"{where}, name"),
        classes=classes[_integer(entry.get("classes"), f"{where}, classes", 0, known)],
        bank=_integer(entry.get("bank"), f"{where}, bank", 0, 1 << 16),
        bits=_integer(entry.get("bits"), f"{where}, bits", 1, 32),
        normalization=normalization_of(mean, std, trailing),
        channels=channels,
        one_codebook=_integer(entry.get("codebooks", 0), f"{where}, codebooks", 0, 1) == 1,
        sample=kind,
    )


def normalization_of(
    mean: tuple[float, ...], std: tuple[float, ...], trailing: int
) -> Normalization:
    """A normalization as read; numbers that cannot be one are damage."""
    try:
        return Normalization(mean, std, trailing)
    except TaskError as error:
        raise DamageError(str(error)) from None


def _tensor_specs(value: Any, where: str) -> tuple[TensorSpec, ...]:
    out = []
    for item in _list(value, where):
        parts = _list(item, where)
        if len(parts) not in (2, 3):
            raise DamageError(f"config: {where}: a name and a shape are needed.")
        constant = None
        if len(parts) == 3:
            constant = float(_float32s([parts[2]], where, exact=False)[0])
        out.append(TensorSpec(_string(parts[0], where), _shape(parts[1], where), constant))
    return tuple(out)


def _constants(value: Any) -> tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]:
    out = []
    for item in _list(value, "constants"):
        name, *rest = _list(item, "constants") or [None]
        kind = _sample(rest)
        out.append((_string(name, "constants"), kind.dtype, kind.shape))
    if len({name for name, _, _ in out}) != len(out):
        raise DamageError("config: constants: a name occurs twice.")
    return tuple(out)


def _sample(value: Any) -> Sample:
    parts = _list(value, "a type and shape")
    if len(parts) != 2 or not isinstance(parts[0], str) or parts[0] not in DTYPES:
        raise DamageError(f"config: a type and a shape are needed, not {str(value)[:80]}.")
    return Sample(DTYPES[parts[0]], _shape(parts[1], "a shape"))


def _classes(value: Any) -> tuple[Label, ...]:
    labels = _list(value, "classes")
    kinds = {type(v) for v in labels}
    if not labels or len(kinds) != 1 or not kinds <= {int, str} or len(set(labels)) != len(labels):
        raise DamageError("config: classes are distinct strings, or distinct integers.")
    if kinds == {int} and not all(-(1 << 63) <= v < 1 << 63 for v in labels):
        raise DamageError("config: a class number has more than 64 bits.")
    return tuple(labels)


def _seed(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise DamageError(f"config: seed is {str(value)[:80]!r}; it is an integer.")
    return value


def _shape(value: Any, where: str) -> tuple[int, ...]:
    shape = tuple(_integer(v, where, 0, MAX_NUMEL) for v in _list(value, where))
    if len(shape) > MAX_DIMENSIONS or math.prod(max(v, 1) for v in shape) > MAX_NUMEL:
        raise DamageError(f"config: {where}: the shape {shape} is too large.")
    return shape


def _float32s(value: Any, where: str, exact: bool = True) -> tuple[float, ...]:
    numbers = _list(value, where)
    if len(numbers) > FEW or not all(type(v) in (int, float) and abs(v) < 3.4e38 for v in numbers):
        raise DamageError(f"config: {where}: up to {FEW} numbers are needed.")
    return tuple(float(np.float32(v)) if exact else float(v) for v in numbers)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamageError(f"config: {where} is not a table.")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DamageError(f"config: {where} is not a list.")
    return value


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise DamageError(f"config: {where} is not a string.")
    return value


def _integer(value: Any, where: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise DamageError(f"config: {where} is {str(value)[:80]}; expected {least} to {most}.")
    return value


# Writing.


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
        "architecture": architecture_table(store.architecture),
        "classes": classes,
        "tasks": tasks,
    }
    if inputs:
        config["inputs"] = inputs
    return config if store.seed is None else config | {"seed": store.seed}


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


def _task_entry(subnet: Subnet, num_shared: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": subnet.name, "bank": subnet.bank, "bits": subnet.bits}
    if len(subnet.own) == 1 and num_shared > 1:
        entry["codebooks"] = 1
    normalization = subnet.normalization
    if len(normalization.mean) > FEW:
        entry["channels"] = len(normalization.mean)
    elif normalization.mean:
        # The shortest decimal that gives the same float32.
        for key in ("mean", "std"):
            entry[key] = [float(str(np.float32(v))) for v in getattr(normalization, key)]
    if normalization.trailing:
        entry["trailing"] = normalization.trailing
    return entry


def architecture_table(architecture: Architecture) -> dict[str, Any]:
    """What a file says of the network: its tensors, its head, and how to rebuild it by name."""
    task_params = []
    for s in architecture.task_params:
        shape = [0, *s.shape[1:]] if s.name in architecture.output else list(s.shape)
        task_params.append([s.name, shape] if s.constant is None else [s.name, shape, s.constant])
    out: dict[str, Any] = {
        "head": architecture.head,
        "shared": [[s.name, list(s.shape)] for s in architecture.shared],
        "private": task_params,
    }
    if architecture.constants:
        out["constants"] = [
            [n, _type_name(t.dtype), list(t.shape)] for n, t in architecture.constants.items()
        ]
    if architecture.rebuild is not None:
        out["rebuild"] = architecture.rebuild
    return out
