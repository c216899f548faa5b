"""From a file to banks and subnets, without a network; a task alone where only one is wanted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.artifact.container import ModelFile
from tinysubnets.artifact.manifest import Manifest, TaskEntry, manifest_of, normalisation_of
from tinysubnets.artifact.masks import Plan, read_coded_mask
from tinysubnets.artifact.memory import read_memory, read_raw
from tinysubnets.artifact.records import read_records
from tinysubnets.artifact.values import read_own, read_tensor
from tinysubnets.artifact.wire import Reader
from tinysubnets.bank import Bank
from tinysubnets.errors import DamageError, TaskError, unknown
from tinysubnets.layout import Layout
from tinysubnets.mask_references import MAX_SCORE_REFERENCES, Place, read_mask, unpack
from tinysubnets.normalisation import Normalisation
from tinysubnets.subnet import FREE_SCORES, SCORES, BankDecision, Coded, CodedMask, Packed, Subnet


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
    with _at("the records"):
        settings, records = read_records(Reader(file.section("records"), "records"), len(names))
    with _at("the constants"):
        data = Reader(file.section("constants"), "constants")
        constants = {name: read_raw(data, kind, shape) for name, kind, shape in manifest.constants}
        data.done()
    walk = _Walk(file, manifest, Plan(file, manifest, only), records)
    for number in walk.plan.numbers:
        walk.task(number)
    banks = [
        walk.banks[i].finished(only is not None) if i in walk.banks else _absent(manifest.layout)
        for i in range(manifest.num_banks)
    ]
    return Contents(manifest, settings, constants, banks, walk.subnets)


class _GrowingBank:
    """A bank being read: its values, its owned set and its masks, the masks one bit per block."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values = np.zeros(layout.num_weights, np.float32)
        self.owned = np.zeros(-(-layout.num_blocks // 8), np.uint8)
        self.members: dict[int, np.ndarray] = {}
        self.num_score_references = 0
        self.last = self.owned
        self.recent: tuple[int, np.ndarray] | None = None

    def new_weights(self, packed: np.ndarray) -> np.ndarray:
        """The positions of the weights that a mask takes and nobody owns yet."""
        new = packed & ~self.owned
        if not self.layout.is_identity:
            blocks = torch.from_numpy(unpack(new, self.layout.num_blocks))
            return np.flatnonzero(self.layout.expand(blocks).numpy())
        # Mostly few are new: look at the bytes that hold some, not at every bit.
        where = np.flatnonzero(new != 0)
        bits = np.flatnonzero(np.unpackbits(new[where], bitorder="little").view(np.bool_))
        return where[bits >> 3] * 8 + (bits & 7)

    def finished(self, last_only: bool) -> Bank:
        """The bank; with nothing in it but the last mask's weights where only that is wanted."""
        bank = Bank.__new__(Bank)
        bank.layout, bank.values = self.layout, torch.from_numpy(self.values)
        kept = self.last if last_only else self.owned
        bank.owned = torch.from_numpy(unpack(kept, self.layout.num_blocks))
        if last_only:
            np.copyto(self.values, 0, where=~self.layout.expand(bank.owned).numpy())
        return bank


def _absent(layout: Layout) -> Bank:
    """A bank that nothing was read of; it takes no memory."""
    bank = Bank.__new__(Bank)
    bank.layout, bank.values = layout, torch.zeros(1).expand(layout.num_weights)
    bank.owned = torch.zeros(1, dtype=torch.bool).expand(layout.num_blocks)
    return bank


class _Walk:
    """The tasks of a file read one after the other, as they were learned."""

    def __init__(
        self, file: ModelFile, manifest: Manifest, plan: Plan, records: list[dict[str, Any]]
    ) -> None:
        self.file, self.manifest, self.plan, self.records = file, manifest, plan, records
        self.layout = manifest.layout
        self.banks: dict[int, _GrowingBank] = {}
        self.subnets: dict[str, Subnet] = {}

    def task(self, number: int) -> None:
        """Read a task's mask and own weights; its private parts and a subnet where wanted."""
        entry = self.manifest.tasks[number]
        if entry.bank not in self.banks:
            self.banks[entry.bank] = _GrowingBank(self.layout)
        bank = self.banks[entry.bank]
        with _at(f"task {entry.name!r}"):
            coded, mask = self._mask(number, entry, bank)
            packed = np.packbits(mask, bitorder="little")
            own = self._own(number, entry, bank, packed)
            bank.last, bank.owned = packed, bank.owned | packed
            bank.members[self.plan.members[number]] = packed
            bank.recent = self.plan.members[number], mask
            for member in self.plan.done_with(number):
                del bank.members[member]
            if self.plan.is_wanted(number):
                self.subnets[entry.name] = self._subnet(number, coded, packed, own)

    def _mask(
        self, number: int, entry: TaskEntry, bank: _GrowingBank
    ) -> tuple[CodedMask, np.ndarray]:
        data = Reader(self.file.section("masks", number), "mask")
        coded = read_coded_mask(data, len(self.layout.shared))
        bank.num_score_references += coded.reference in (SCORES, FREE_SCORES)
        if bank.num_score_references > MAX_SCORE_REFERENCES:
            raise data.damage(f"more than {MAX_SCORE_REFERENCES} masks refer to scores.")
        place = Place(self.layout, entry.bank, number, bank.members, bank.owned, bank.recent)
        return coded, read_mask(coded, place)

    def _own(
        self, number: int, entry: TaskEntry, bank: _GrowingBank, packed: np.ndarray
    ) -> tuple[Coded, ...]:
        """The task's own weights, which go to their places in the bank."""
        new = bank.new_weights(packed)
        ends = np.searchsorted(new, [stop for _, stop in self.layout.segments])
        counts = [len(new)] if entry.one_codebook else np.diff(ends, prepend=0).tolist()
        data = self.file.section("codes", number), self.file.section("codebooks", number)
        own = read_own(data, counts)
        if len(new):
            bank.values[new] = torch.cat([c.decode() for c in own]).numpy()
        return own

    def _subnet(
        self, number: int, coded: CodedMask, packed: np.ndarray, own: tuple[Coded, ...]
    ) -> Subnet:
        entry, record = self.manifest.tasks[number], self.records[number]
        normalisation, private = self._private(number, entry)
        data = Reader(self.file.section("memory", number), "memory")
        memory, divergences = read_memory(data, [t.name for t in self.manifest.tasks[:number]])
        decision = None
        if "reason" in record:
            near = record.get("nearest")
            decision = BankDecision(entry.bank, record["reason"], divergences, near)
        return Subnet(
            name=entry.name,
            classes=entry.classes,
            normalisation=normalisation,
            bank=entry.bank,
            mask=Packed(packed, self.layout.num_blocks),  # type: ignore[arg-type]
            bits=entry.bits,
            own=own,
            private=private,
            shapes=self.manifest.private_shapes(len(entry.classes)),
            memory=memory,
            decision=decision,
            valid_accuracy=record.get("accuracy", math.nan),
            owned_before_pruning=record.get("owned", math.nan),
            coded_mask=coded,
            sample=entry.sample,
        )

    def _private(self, number: int, entry: TaskEntry) -> tuple[Normalisation, dict[str, Coded]]:
        head = Reader(self.file.section("heads", number), "head")
        other = Reader(self.file.section("private", number), "private tensors")
        normalisation = entry.normalisation
        if entry.channels:
            mean, std = (tuple(other.floats(entry.channels, 32).tolist()) for _ in range(2))
            normalisation = normalisation_of(mean, std, entry.normalisation.trailing)
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
