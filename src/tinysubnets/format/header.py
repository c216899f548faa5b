"""The config of a model file: the network, the tasks, and how to begin reading.

`config_of` writes it; `manifest_of` reads it and checks every entry before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from tinysubnets import __version__
from tinysubnets.errors import ArtifactError, DamageError, TaskError
from tinysubnets.format import limits
from tinysubnets.format.container import VERSION, canonical
from tinysubnets.format.sections import DTYPES, MAX_DIMENSIONS, RECORD_TYPES, is_record
from tinysubnets.model.bank import Base
from tinysubnets.model.subnet import BASE, MAX_CHAIN, NO_BANK, Sample, Subnet, task_number
from tinysubnets.nn import MAX_RANK
from tinysubnets.nn.architecture import Architecture, TensorSpec
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.rotations import ROTATIONS
from tinysubnets.tasks.task import Label

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


MAX_NUMEL = 1 << 40
MAX_NUMBER = 1 << 40  # of a task
MAX_BANKS = 1 << 16
MAX_PREPROCESSING = 16  # values of a task's preprocessing, and of a list in it
MAX_WORD = 64  # characters of a name or value in it
MAX_CHANNELS = 1 << 24  # of a normalization


Item = TypeVar("Item")


@dataclass(frozen=True)
class Absent:
    """Task-specific parameters that have no bytes: which they are, and their values.

    - `runs`: places in `specs`, as (first, count, step, value); the value is one number everywhere,
      or None for the base's values.
    - `specs`: all task-specific parameters.
    """

    runs: tuple[tuple[int, int, int, float | None], ...] = ()
    specs: tuple[TensorSpec, ...] = ()

    @cached_property
    def values(self) -> Mapping[str, float | None]:
        """The value of each by name. Made when first asked for, and not for every small entry."""
        out: dict[str, float | None] = {}
        for first, count, step, value in self.runs:
            for place in range(first, first + count * step, step):
                out[self.specs[place].name] = value
        if len(out) != sum(count for _, count, _, _ in self.runs):
            raise DamageError("config: absent: a place occurs twice.")
        return out


NOTHING_ABSENT = Absent()


@dataclass(frozen=True)
class TaskEntry:
    """What the config says of one entry, as in `Subnet`; without a name it holds weights alone.

    - `channels`: counts a normalization kept in the section of task-specific parameters, which only
      format 1 may also have in the config.
    - `record`: the accuracy and what else is known of it, in the words of the config.
    """

    number: int
    name: str
    classes: tuple[Label, ...]
    bank: int
    bits: int
    normalization: Normalization
    channels: int
    one_codebook: bool
    sample: Sample | None
    isolated: bool = False
    preprocessing: Mapping[str, Any] | None = None
    reference: int | None = None
    adds_to_base: bool = False
    rotations: int = 0
    is_empty: bool = False
    rank: int = 0
    absent: Absent = NOTHING_ABSENT
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_mask(self) -> bool:
        """Whether it has a mask: neither is it empty nor of low rank."""
        return not self.is_empty and not self.rank

    @property
    def num_outputs(self) -> int:
        """How many outputs the head has."""
        return len(self.classes) * (ROTATIONS if self.rotations else 1)


@dataclass(frozen=True)
class Manifest:
    """The config, checked: the network's tensors and the tasks.

    - `head`: the name of the head's module.
    - `layout`: the shared tensors and the blocks that masks divide them into.
    - `seed`: the learner's, if it has one.
    - `task_params`: the task-specific parameters; a first dimension of 0 counts a task's outputs.
    - `outputs`: those of them that have such a dimension.
    - `constants`: name, type and shape of the buffers that no task changes.
    - `rebuild`: how a network of the package is built again, None for the user's own.
    - `tasks`: the entries, in the order of learning.
    - `method`: the one that made the model, where it is known.
    - `next_number`: that of the next task.
    - `num_banks`: how many there are, empty ones too.
    - `base`: the pretrained weights that tasks refer to, without their values.
    - `settings`: the learner's, for going on; format 1 has them elsewhere.
    - `file_bytes`: the size of the file, which bounds what may be made of it.
    - `text_bytes`: the size of the config as text.
    """

    head: str
    layout: Layout
    seed: int | None
    task_params: tuple[TensorSpec, ...]
    outputs: frozenset[str]
    constants: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    rebuild: dict[str, Any] | None
    tasks: tuple[TaskEntry, ...]
    method: str | None
    next_number: int
    num_banks: int
    base: Base | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    file_bytes: int = 0
    text_bytes: int = 0

    def task_param_shapes(self, num_outputs: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's task-specific parameters."""
        return {
            s.name: (num_outputs, *s.shape[1:]) if s.name in self.outputs else s.shape
            for s in self.task_params
        }

    def in_head(self, name: str) -> bool:
        """Whether a task-specific parameter belongs to the head."""
        return name.startswith(f"{self.head}.")


# Reading.


def manifest_of(config: Mapping[str, Any], file_bytes: int, text_bytes: int = 0) -> Manifest:
    """The checked config of a file of that size; damage is named by its place.

    - `text_bytes`: the size of the config as text, which counts as decoded.
    """
    is_first = config["format"] == 1
    config = _as_second(config) if is_first else config
    architecture = _table(config.get("architecture"), "architecture")
    shared = _tensor_specs(architecture.get("shared"), "shared")
    task_params = _tensor_specs(architecture.get("task_params"), "task_params")
    if not shared or len({s.name for s in (*shared, *task_params)}) != len(shared) + len(
        task_params
    ):
        raise DamageError("config: the names of the network's tensors are not distinct.")
    if any(0 in s.shape for s in shared):
        raise DamageError("config: a shared tensor without values.")
    rebuild, method = architecture.get("rebuild"), config.get("method")
    ways = _list(config.get("preprocessing", []), "preprocessing")
    lists = _Lists(
        classes=[classes_of(c) for c in _list(config.get("classes"), "classes")],
        inputs=[_sample(s) for s in _list(config.get("inputs", []), "inputs")],
        preprocessing=[_preprocessing(p) for p in ways],
        absent=[_absent(a, task_params) for a in _list(config.get("absent", []), "absent")],
    )
    manifest = Manifest(
        head=_string(architecture.get("head"), "head"),
        layout=Layout(shared, _integer(config.get("block"), "block", 1, 1 << 31)),
        seed=_seed(config.get("seed")),
        task_params=task_params,
        outputs=frozenset(s.name for s in task_params if s.shape and s.shape[0] == 0),
        constants=_constants(architecture.get("constants", [])),
        rebuild=None if rebuild is None else _table(rebuild, "rebuild"),
        tasks=_read_tasks(config["tasks"], lists, is_first),
        method=None if method is None else _string(method, "method"),
        next_number=_integer(config.get("next"), "next", 0, MAX_NUMBER),
        num_banks=_integer(config.get("banks"), "banks", 0, MAX_BANKS),
        base=_base(config.get("base")),
        settings=_table(config.get("settings"), "settings"),
        file_bytes=file_bytes,
        text_bytes=text_bytes,
    )
    limits.check_budget(manifest, file_bytes)
    _check_tasks(manifest)
    return manifest


def _as_second(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of format 1 as format 2 would have it, with nothing that format 1 does not know.

    Every task of format 1 is in a bank, tasks are numbered from 0 on, and banks are opened in
    order. Settings and records are sections of their own.
    """
    architecture = _table(config.get("architecture"), "architecture")
    tasks: list[dict[str, Any]] = []
    banks = 0
    for place, value in enumerate(config["tasks"]):
        task = _table(value, f"task {place}")
        bank = _integer(task.get("bank"), f"task {place}, bank", 0, banks)
        banks = max(banks, bank + 1)
        own = {key: task[key] for key in _OF_FIRST if key in task}
        tasks.append({"name": None} | own)  # format 2 has entries that need no name
    known = ("block", "seed", "classes", "inputs", "preprocessing")
    return {
        **{key: config[key] for key in known if key in config},
        "architecture": architecture | {"task_params": architecture.get("private")},
        "tasks": tasks,
        "next": len(tasks),
        "banks": banks,
        "settings": {},
    }


_OF_FIRST = ("name", "bank", "bits", "codebooks", "classes", "inputs", "trailing", "channels",
             "mean", "std")  # fmt: skip


@dataclass(frozen=True)
class _Lists:
    """What entries refer to by place."""

    classes: list[tuple[Label, ...]]
    inputs: list[Sample]
    preprocessing: list[dict[str, Any]]
    absent: list[Absent]


def _check_tasks(manifest: Manifest) -> None:
    """Refuse entries that do not go together: names, numbers, banks and references."""
    tasks = manifest.tasks
    names = [t.name for t in tasks if t.name]
    if len(set(names)) != len(names):
        raise DamageError("config: two tasks have the same name.")
    known: dict[int, TaskEntry] = {}  # the entries so far, by number
    depths: dict[int, int] = {}  # by number: how many subnets it adds its weights to
    alone: dict[int, bool] = {}  # by bank: whether its first entry is isolated
    from_base = {
        id(t.absent): frozenset(n for n, value in t.absent.values.items() if value is None)
        for t in {id(t.absent): t for t in tasks}.values()
    }
    for task in tasks:
        where = f"config: task number {task.number}"
        if task.bank >= manifest.num_banks:
            raise DamageError(f"{where} is in bank {task.bank} of {manifest.num_banks}.")
        if task.number >= manifest.next_number:
            raise DamageError(f"{where}, but the next one is {manifest.next_number}.")
        if task.bank != NO_BANK:
            if task.bank in alone and (alone[task.bank] or task.isolated):
                raise DamageError(f"{where} shares bank {task.bank} with an isolated task.")
            alone[task.bank] = task.isolated
        if task.reference is None and task.bank == NO_BANK:
            raise DamageError(f"{where} has neither a bank nor a reference.")
        of_base = from_base[id(task.absent)]
        refers = task.reference == BASE or task.adds_to_base or of_base
        if refers and manifest.base is None:
            raise DamageError(f"{where} refers to a base, and there is none.")
        if (number := task_number(task.reference)) is not None:
            other = known.get(number)
            if other is None or other.isolated or task.isolated:
                raise DamageError(f"{where} refers to number {task.reference}.")
            depths[task.number] = 1 + depths.get(other.number, 0)
            if depths[task.number] > MAX_CHAIN:
                raise DamageError(f"{where} adds up more than {MAX_CHAIN} subnets.")
        if not manifest.outputs.isdisjoint(of_base):
            raise DamageError(f"{where} takes its head from the base.")
        known[task.number] = task


def _read_tasks(values: list[Any], lists: _Lists, is_first: bool) -> tuple[TaskEntry, ...]:
    out: list[TaskEntry] = []
    for place, value in enumerate(values):
        least = out[-1].number + 1 if out else 0
        out.append(_read_task(value, lists, f"task {place}", least, is_first))
    return tuple(out)


def _read_weights(entry: Mapping[str, Any], where: str, least: int) -> dict[str, Any]:
    """What an entry says of its weights, checked; the arguments are those of `_read_task`."""
    number = _integer(entry.get("number", least), f"{where}, number", least, MAX_NUMBER)
    reference = entry.get("reference")
    if reference == "base":
        reference = BASE
    elif reference is not None:
        reference = _integer(reference, f"{where}, reference", 0, number - 1)
    bank, rank = NO_BANK, 0
    if "bank" in entry:
        bank = _integer(entry["bank"], f"{where}, bank", 0, MAX_BANKS)
    if "rank" in entry:
        rank = _integer(entry["rank"], f"{where}, rank", 1, MAX_RANK)
    if rank and (bank != NO_BANK or reference is None):
        raise DamageError(f"config: {where} is of rank {rank}, but has a bank or no reference.")
    return {
        "rank": rank,
        "number": number,
        "bank": bank,
        "bits": _integer(entry.get("bits"), f"{where}, bits", 1, 32),
        "one_codebook": _integer(entry.get("codebooks", 0), f"{where}, codebooks", 0, 1) == 1,
        "reference": reference,
    }


def _read_task(value: Any, lists: _Lists, where: str, least: int, is_first: bool) -> TaskEntry:
    """An entry, checked.

    - `where`: what it is called in errors.
    - `least`: the least number that it may have, and has where it gives none.
    - `is_first`: whether the file is of format 1.
    """
    entry = _table(value, where)
    weights = _read_weights(entry, where, least)
    if "name" not in entry:
        if unknown := sorted(set(entry) - _OF_WEIGHTS):
            raise DamageError(f"config: {where} has no name, but {', '.join(unknown)[:80]}.")
        return TaskEntry(
            name="", classes=(), normalization=Normalization(), channels=0, sample=None, **weights
        )
    trailing = _integer(entry.get("trailing", 0), f"{where}, trailing", 0, MAX_DIMENSIONS)
    channels = _integer(entry.get("channels", 0), f"{where}, channels", 0, MAX_CHANNELS)
    names = ("mean", "std") if is_first else ()
    mean, std = [_float32s(entry.get(k, []), f"{where}, {k}") for k in names] or ((), ())
    if len(mean) != len(std) or (mean and channels):
        raise DamageError(f"config: {where}: {len(mean)} means and {len(std)} deviations.")
    flags = [entry.get(key, False) for key in ("isolated", "adds", "empty")]
    isolated, adds, empty = flags
    if not all(isinstance(flag, bool) for flag in flags):
        wrong = f"isolated is {isolated!r}, adds is {adds!r}, empty is {empty!r}"
        raise DamageError(f"config: {where}, {wrong[:80]}: true or false is needed.")
    bank, rank = weights["bank"], weights["rank"]
    if empty and (bank != NO_BANK or rank):
        raise DamageError(f"config: {where} is empty, but in bank {bank} or of rank {rank}.")
    rotations = _integer(entry.get("rotations", 0), f"{where}, rotations", 0, ROTATIONS)
    sample = None
    if entry.get("inputs") is not None:
        sample = _of(lists.inputs, entry["inputs"], f"{where}, inputs")
        sample = None if sample.is_large else sample
    square = sample is not None and len(sample.shape) == 3 and sample.shape[1] == sample.shape[2]
    if rotations not in (0, 1, ROTATIONS) or (rotations and not square):
        raise DamageError(f"config: {where}, rotations is {rotations}; 1 or {ROTATIONS} of square "
                          "images are allowed.")  # fmt: skip
    preprocessing, absent = None, NOTHING_ABSENT
    if "preprocessing" in entry:
        way = entry["preprocessing"]
        preprocessing = _of(lists.preprocessing, way, f"{where}, preprocessing")
    if "absent" in entry:
        absent = _of(lists.absent, entry["absent"], f"{where}, absent")
    return TaskEntry(
        name=_string(entry.get("name"), f"{where}, name"),
        classes=_of(lists.classes, entry.get("classes"), f"{where}, classes"),
        normalization=normalization_of(mean, std, trailing),
        channels=channels,
        sample=sample,
        isolated=isolated,
        adds_to_base=adds,
        rotations=rotations,
        is_empty=empty,
        preprocessing=preprocessing,
        absent=absent,
        record=_record(entry, where),
        **weights,
    )


_OF_WEIGHTS = frozenset(("number", "bank", "bits", "codebooks", "reference", "rank"))


def _of(items: Sequence[Item], value: Any, where: str) -> Item:
    """The item that an entry refers to by its place."""
    return items[_integer(value, where, 0, len(items) - 1)]


def _record(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is known of a task beside its tensors."""
    record = {key: entry[key] for key in RECORD_TYPES if key in entry}
    if not is_record(record):
        raise DamageError(f"config: {where}: the accuracy, or what else is known of it, is not.")
    return record


def _absent(value: Any, specs: tuple[TensorSpec, ...]) -> Absent:
    """A list of task-specific parameters without bytes, as runs of places."""
    runs = []
    for item in _list(value, "absent"):
        parts = _list(item, "absent")
        if len(parts) not in (3, 4):
            raise DamageError("config: absent: a place, a count and a step are needed.")
        first = _integer(parts[0], "absent", 0, len(specs) - 1)
        count = _integer(parts[1], "absent", 1, len(specs))
        step = _integer(parts[2], "absent", 1, len(specs))
        if first + (count - 1) * step >= len(specs):
            raise DamageError(f"config: absent: {count} places from {first} on are not there.")
        numbers = _float32s(parts[3:], "absent")
        runs.append((first, count, step, numbers[0] if numbers else None))
    if sum(count for _, count, _, _ in runs) > len(specs):
        raise DamageError("config: absent: a place occurs twice.")
    return Absent(tuple(runs), specs)


def check_preprocessing(value: Mapping[str, Any]) -> None:
    """Refuse what cannot be kept as a task's preprocessing: few plain values by short names."""
    if not isinstance(value, Mapping) or not 0 < len(value) <= MAX_PREPROCESSING:
        raise ArtifactError(
            f"preprocessing: a table of 1 to {MAX_PREPROCESSING} values is needed, not "
            f"{str(value)[:80]}."
        )
    for key, item in value.items():
        parts = item if isinstance(item, list) else [item]
        fine = isinstance(key, str) and key.isidentifier() and len(key) <= MAX_WORD
        fine = fine and len(parts) <= MAX_PREPROCESSING
        for part in parts:
            plain = isinstance(part, (bool, int, float)) and abs(part) < 3.4e38
            fine = fine and (plain or (isinstance(part, str) and len(part) <= MAX_WORD))
        if not fine:
            raise ArtifactError(
                f"preprocessing: {str(key)[:80]!r} is {str(item)[:80]!r}; numbers, truth values, "
                f"strings of up to {MAX_WORD} characters and short lists of them are allowed."
            )


def _preprocessing(value: Any) -> dict[str, Any]:
    table = _table(value, "preprocessing")
    try:
        check_preprocessing(table)
    except ArtifactError as error:
        raise DamageError(f"config: {error}") from None
    return table


def _base(value: Any) -> Base | None:
    if value is None:
        return None
    table = _table(value, "base")
    name, source, sha256 = (
        _string(table.get(k), f"base, {k}") for k in ("name", "source", "sha256")
    )
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise DamageError("config: base, sha256 is not a hash.")
    return Base(name, source, sha256)


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


def classes_of(value: Any) -> tuple[Label, ...]:
    """The labels of a task as read; others than a task may have are damage."""
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
    if len(numbers) > 4 or not all(type(v) in (int, float) and abs(v) < 3.4e38 for v in numbers):
        raise DamageError(f"config: {where}: up to 4 numbers are needed.")
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
    """The config of a store."""
    classes, inputs, preprocessing, absent = (_Distinct() for _ in range(4))
    tasks: list[dict[str, Any]] = []
    expected, entries, base = 0, store.entries(), store.base
    numbers = {s.name: s.number for s in entries if s.name}
    for subnet in entries:
        entry = _weights_entry(subnet, len(store.layout.shared), expected)
        expected = subnet.number + 1
        if subnet.name:
            entry |= _task_entry(subnet) | _record_entry(subnet, numbers)
            if without := absent_of(subnet, store.architecture):
                entry["absent"] = absent.place(_absent_runs(without))
            entry["classes"] = classes.place(list(subnet.classes))
            if subnet.sample is not None:
                kind, shape = _type_name(subnet.sample.dtype), list(subnet.sample.shape)
                entry["inputs"] = inputs.place([kind, shape])
            if subnet.preprocessing is not None:
                check_preprocessing(subnet.preprocessing)
                entry["preprocessing"] = preprocessing.place(dict(subnet.preprocessing))
        tasks.append(entry)
    config = {
        "format": VERSION,
        "absent": absent.items or None,
        "library": __version__,
        "method": store.settings.get("method"),
        "settings": {k: v for k, v in store.settings.items() if k != "method"},
        "block": store.layout.block,
        "seed": store.seed,
        "next": store.next_number,
        "banks": len(store.banks),
        "architecture": architecture_table(store.architecture),
        "base": base and {"name": base.name, "source": base.source, "sha256": base.sha256},
        "classes": classes.items,
        "inputs": inputs.items or None,
        "preprocessing": preprocessing.items or None,
        "tasks": tasks,
    }
    return {key: value for key, value in config.items() if value is not None}


class _Distinct:
    """A list of distinct items that entries refer to by place."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, item: Any) -> int:
        """The place of an item, put at the end if it is new."""
        key = canonical(item)
        if key not in self._places:
            self._places[key] = len(self.items)
            self.items.append(item)
        return self._places[key]


def _type_name(dtype: torch.dtype) -> str:
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ArtifactError(f"tensors of type {dtype} cannot be stored; allowed: {', '.join(DTYPES)}.")


def _weights_entry(subnet: Subnet, num_shared: int, expected: int) -> dict[str, Any]:
    """What the config says of an entry's weights.

    - `expected`: the number of an entry that does not give one.
    """
    one_codebook = len(subnet.own) == 1 and num_shared > 1 and not subnet.rank
    entry = {
        "bits": subnet.bits,
        "bank": None if subnet.bank == NO_BANK else subnet.bank,
        "number": None if subnet.number == expected else subnet.number,
        "reference": "base" if subnet.reference == BASE else subnet.reference,
        "rank": subnet.rank or None,
        "codebooks": 1 if one_codebook else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _task_entry(subnet: Subnet) -> dict[str, Any]:
    """What the config says of a task beside its weights; nothing of what is false or 0."""
    entry = {
        "name": subnet.name,
        "isolated": bool(subnet.isolated),
        "adds": subnet.adds_to_base,
        "rotations": subnet.rotations,
        "empty": subnet.adds_nothing,
        "channels": len(subnet.normalization.mean),
        "trailing": subnet.normalization.trailing,
    }
    return {key: value for key, value in entry.items() if value}


def _record_entry(subnet: Subnet, numbers: Mapping[str, int]) -> dict[str, Any]:
    """What is known of a task beside its tensors.

    - `numbers`: those of all tasks by name.
    """
    entry: dict[str, Any] = {}
    if not math.isnan(subnet.valid_accuracy):
        entry["accuracy"] = subnet.valid_accuracy
    if not math.isnan(subnet.owned_before_pruning):
        entry["owned"] = subnet.owned_before_pruning
    if subnet.decision is not None:
        entry["reason"] = subnet.decision.reason
        if (nearest := subnet.decision.nearest) is not None:
            entry["nearest"] = numbers[nearest]
    return entry


def absent_of(subnet: Subnet, architecture: Architecture) -> dict[int, float | None]:
    """The task-specific parameters that have no bytes, by their places.

    The value is one number that all of a parameter's values are, or None for the base's values.
    """
    out: dict[int, float | None] = {}
    for place, spec in enumerate(architecture.task_params):
        coded = subnet.task_params.get(spec.name)
        if coded is None:
            out[place] = None
        elif coded.codes is not None and coded.bits == 0:
            # The shortest decimal that gives the same float32.
            out[place] = float(str(np.float32(coded.values[0])))
    return out


def _absent_runs(absent: Mapping[int, float | None]) -> list[list[Any]]:
    """The same as runs of places that are equally far apart: first, count, step and number."""
    out: list[list[Any]] = []
    for value in dict.fromkeys(absent.values()):
        places = [place for place, other in absent.items() if other == value]
        while places:
            step = places[1] - places[0] if len(places) > 1 else 1
            count = 1
            while count < len(places) and places[count] - places[count - 1] == step:
                count += 1
            out.append([places[0], count, step, *([] if value is None else [value])])
            places = places[count:]
    return out


def architecture_table(architecture: Architecture) -> dict[str, Any]:
    """What a file says of the network: its tensors, its head, and how to rebuild it by name."""
    task_params = []
    for s in architecture.task_params:
        shape = [0, *s.shape[1:]] if s.name in architecture.output else list(s.shape)
        task_params.append([s.name, shape] if s.constant is None else [s.name, shape, s.constant])
    out: dict[str, Any] = {
        "head": architecture.head,
        "shared": [[s.name, list(s.shape)] for s in architecture.shared],
        "task_params": task_params,
    }
    if architecture.constants:
        out["constants"] = [
            [n, _type_name(t.dtype), list(t.shape)] for n, t in architecture.constants.items()
        ]
    if architecture.rebuild is not None:
        out["rebuild"] = architecture.rebuild
    return out
