"""From a file to banks and subnets, without a network; a task alone where only one is wanted."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tinysubnets.artifact.container import ModelFile, parse
from tinysubnets.artifact.manifest import DTYPES, Manifest, TaskEntry, manifest_of
from tinysubnets.artifact.values import read_own, read_tensor
from tinysubnets.artifact.wire import Reader
from tinysubnets.artifact.writer import MEMORY_KINDS, SAMPLES
from tinysubnets.bank import Bank
from tinysubnets.divergence import Statistics
from tinysubnets.errors import DamageError, TaskError, unknown
from tinysubnets.mask_references import MAX_MAGNITUDE, MAX_SCORE_REFERENCES, Place, read_mask
from tinysubnets.subnet import FREE_SCORES, SCORES, BankDecision, Coded, CodedMask, Subnet
from tinysubnets.task import Normalisation


@dataclass
class Contents:
    """What a file holds: the checked config, settings, constants, banks and subnets."""

    manifest: Manifest
    settings: dict[str, Any]
    constants: dict[str, Tensor]
    banks: list[Bank]
    subnets: dict[str, Subnet]


def read_contents(file: ModelFile, only: str | None = None) -> Contents:
    """Everything in a file, or only what one task needs."""
    manifest = manifest_of(file.config, file.file_bytes)
    names = [t.name for t in manifest.tasks]
    if only is not None and only not in names:
        raise TaskError(unknown("task", only, names))
    last = len(names) if only is None else names.index(only) + 1
    with _at("the records"):
        records = _records(file.section("records"), len(names))
    bank = None if only is None else manifest.tasks[last - 1].bank
    walk = _Walk(file, manifest, records["tasks"])
    for number in range(last):
        if bank is None or manifest.tasks[number].bank == bank:
            walk.task(number, private=only is None or number == last - 1)
    banks = [walk.bank(i) for i in range(manifest.num_banks)]
    if only is not None:
        kept = walk.subnets[only]
        values = manifest.layout.expand(kept.mask)
        mine = banks[kept.bank]
        mine.values = torch.where(values, mine.values, torch.zeros(()))
        mine.owned = kept.mask
    with _at("the constants"):
        constants = _constants(Reader(file.section("constants"), "constants"), manifest)
    return Contents(manifest, records["settings"], constants, banks, walk.subnets)


class _Walk:
    """The tasks of a file read one after the other, as they were learned."""

    def __init__(self, file: ModelFile, manifest: Manifest, records: list[dict[str, Any]]) -> None:
        self.file, self.manifest, self.records = file, manifest, records
        self.layout = manifest.layout
        self.values: dict[int, np.ndarray] = {}
        self.owned: dict[int, np.ndarray] = {}
        self.members: dict[int, list[np.ndarray]] = {}
        self.score_references: dict[int, int] = {}
        self.subnets: dict[str, Subnet] = {}

    def task(self, number: int, private: bool) -> None:
        """Read a task's mask and own weights; its private parts and a subnet where wanted."""
        entry = self.manifest.tasks[number]
        bank = entry.bank
        if bank not in self.values:
            self.values[bank] = np.zeros(self.layout.num_weights, np.float32)
            self.owned[bank] = np.zeros(self.layout.num_blocks, np.bool_)
            self.members[bank] = []
        with _at(f"task {entry.name!r}"):
            coded, mask = self._mask(number, entry)
            own = self._own(number, entry, mask)
            self.members[bank].append(np.packbits(mask, bitorder="little"))
            self.owned[bank] |= mask
            if private:
                self.subnets[entry.name] = self._subnet(number, entry, coded, mask, own)

    def bank(self, number: int) -> Bank:
        """A bank with what has been read; one that no task read needs takes no memory."""
        bank = Bank.__new__(Bank)
        bank.layout = self.layout
        if number in self.values:
            bank.values = torch.from_numpy(self.values[number])
            bank.owned = torch.from_numpy(self.owned[number])
        else:
            bank.values = torch.zeros(1).expand(self.layout.num_weights)
            bank.owned = torch.zeros(1, dtype=torch.bool).expand(self.layout.num_blocks)
        return bank

    def _mask(self, number: int, entry: TaskEntry) -> tuple[CodedMask, np.ndarray]:
        data = Reader(self.file.section("masks", number), "mask")
        kind = data.varint(1 << 20)
        seed, magnitudes = 0, []
        if kind in (SCORES, FREE_SCORES):
            used = self.score_references.get(entry.bank, 0) + 1
            if used > MAX_SCORE_REFERENCES:
                raise data.damage(f"more than {MAX_SCORE_REFERENCES} masks refer to scores.")
            self.score_references[entry.bank] = used
            seed = int.from_bytes(data.raw(8), "little")
            for _ in self.layout.shared:
                magnitudes.append(int.from_bytes(data.raw(4), "little"))
            if max(magnitudes) > MAX_MAGNITUDE + 1:
                raise data.damage("a score larger than any there is.")
        coded = CodedMask(kind, data.rest(), seed, tuple(magnitudes))
        place = Place(
            self.layout, entry.bank, number, self.members[entry.bank], self.owned[entry.bank]
        )
        return coded, read_mask(coded, place)

    def _own(self, number: int, entry: TaskEntry, mask: np.ndarray) -> tuple[Coded, ...]:
        """The task's own weights, which go to their places in the bank."""
        new = self.layout.expand(torch.from_numpy(mask & ~self.owned[entry.bank])).numpy()
        counts = [int(np.count_nonzero(new[i:j])) for i, j in self.layout.segments]
        if entry.one_codebook:
            counts = [sum(counts)]
        data = self.file.section("codes", number), self.file.section("codebooks", number)
        own = read_own(data, counts, f"task {number}")
        if sum(counts):
            self.values[entry.bank][new] = torch.cat([c.decode() for c in own]).numpy()
        return own

    def _subnet(
        self,
        number: int,
        entry: TaskEntry,
        coded: CodedMask,
        mask: np.ndarray,
        own: tuple[Coded, ...],
    ) -> Subnet:
        normalisation, private = self._private(number, entry)
        data = Reader(self.file.section("memory", number), "memory")
        memory, divergences = _memory(data, [t.name for t in self.manifest.tasks[:number]])
        record = self.records[number]
        decision = None
        if "reason" in record:
            decision = BankDecision(
                entry.bank, record["reason"], divergences, record.get("nearest")
            )
        return Subnet(
            name=entry.name,
            classes=entry.classes,
            normalisation=normalisation,
            bank=entry.bank,
            mask=torch.from_numpy(mask),
            bits=entry.bits,
            own=own,
            private=private,
            shapes=self.manifest.private_shapes(len(entry.classes)),
            memory=memory,
            decision=decision,
            valid_accuracy=record.get("accuracy", math.nan),
            owned_before_pruning=record.get("owned", math.nan),
            coded_mask=coded,
        )

    def _private(self, number: int, entry: TaskEntry) -> tuple[Normalisation, dict[str, Coded]]:
        head = Reader(self.file.section("heads", number), "head")
        other = Reader(self.file.section("private", number), "private tensors")
        normalisation = entry.normalisation
        if entry.channels:
            mean, std = (tuple(other.floats(entry.channels, 32).tolist()) for _ in range(2))
            normalisation = Normalisation(mean, std, entry.normalisation.trailing)
        shapes = self.manifest.private_shapes(len(entry.classes))
        tensors = {
            name: read_tensor(head if self.manifest.in_head(name) else other, math.prod(shape))
            for name, shape in shapes.items()
        }
        head.done()
        other.done()
        return normalisation, tensors


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Name the place in any damage found inside."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{place}: {error}") from None


def _memory(
    data: Reader, earlier: list[str]
) -> tuple[Statistics | Tensor | None, dict[str, float]]:
    """A task's memory, and its divergences from earlier tasks by name."""
    if not data.data:
        return None, {}
    kind = data.byte()
    memory: Statistics | Tensor | None = None
    if kind == SAMPLES:
        memory = _samples(data)
    elif 1 <= kind <= len(MEMORY_KINDS):
        memory = _statistics(data, MEMORY_KINDS[kind - 1])  # type: ignore[arg-type]
    elif kind:
        raise data.damage(f"unknown kind {kind} of memory.")
    divergences: dict[str, float] = {}
    while data.position < len(data.data):
        task = data.varint(len(earlier) - 1)
        divergences[earlier[task]] = float(data.floats(1, 32))
    return memory, divergences


def _statistics(data: Reader, kind: Literal["gaussian", "histogram"]) -> Statistics:
    count = data.varint(1 << 40)
    floor = float(np.frombuffer(data.raw(8), "<f8")[0])
    size = data.varint(len(data.data))
    parts = [
        data.floats(size, 32 if data.byte() else 16) for _ in range(2 if kind == "gaussian" else 1)
    ]
    return Statistics(kind, parts[0], parts[1] if len(parts) > 1 else None, floor, count)


def _samples(data: Reader) -> Tensor:
    types = list(DTYPES.values())
    number, dimensions = data.byte(), data.byte()
    if number >= len(types) or dimensions > 8:
        raise data.damage("samples of an unknown type.")
    shape = [data.varint(1 << 31) for _ in range(dimensions)]
    return tensor_of(data, types[number], shape)


def tensor_of(data: Reader, dtype: torch.dtype, shape: list[int] | tuple[int, ...]) -> Tensor:
    """The next values of a section as a tensor."""
    raw = bytearray(data.raw(math.prod(shape) * dtype.itemsize))
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def _constants(data: Reader, manifest: Manifest) -> dict[str, Tensor]:
    out = {name: tensor_of(data, dtype, shape) for name, dtype, shape in manifest.constants}
    data.done()
    return out


def _records(data: bytes, num_tasks: int) -> dict[str, Any]:
    """The settings and what is known of each task."""
    reader = Reader(data, "the records")
    size = reader.varint((1 << 16) + (num_tasks << 13))
    decoder = zlib.decompressobj(-15)
    try:
        text = decoder.decompress(reader.rest(), size + 1)
    except zlib.error as error:
        raise reader.damage(f"{error}.") from None
    if len(text) != size or not decoder.eof or decoder.unused_data:
        raise reader.damage(f"{size} bytes of text were expected.")
    value = parse(text, "text of the records")
    if not isinstance(value, dict) or not isinstance(value.get("settings"), dict):
        raise reader.damage("no settings.")
    tasks = value.get("tasks")
    if not isinstance(tasks, list) or len(tasks) != num_tasks or not all(map(_is_record, tasks)):
        raise reader.damage("not one valid record per task.")
    return value


def _is_record(value: Any) -> bool:
    kinds: Mapping[str, Any] = {
        "accuracy": (int, float),
        "owned": (int, float),
        "reason": str,
        "nearest": str,
    }
    return isinstance(value, dict) and all(
        k in kinds and isinstance(v, kinds[k]) and not isinstance(v, bool)
        for k, v in value.items()
    )
