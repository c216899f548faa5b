"""A store as the bytes of its file, and a file as banks and subnets.

`encode` gives the parts of a file and the ledger of what each takes. `read_contents` reads a file
without a network, task after task as they were learned, or only what one task needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.coding.bits import pack_mask, unpack_mask
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import ArtifactError, DamageError, TaskError, unknown
from tinysubnets.format.container import (
    COMMON,
    HASH_BYTES,
    KINDS,
    ModelFile,
    Sections,
    assemble,
)
from tinysubnets.format.header import (
    FEW,
    Manifest,
    TaskEntry,
    config_of,
    manifest_of,
    normalization_of,
)
from tinysubnets.format.sections import (
    MAX_REFERENCE,
    raw_bytes,
    read_coded_mask,
    read_memory,
    read_own,
    read_raw,
    read_records,
    read_tensor,
    write_coded_mask,
    write_memory,
    write_own,
    write_records,
    write_tensor,
)
from tinysubnets.model.bank import Bank
from tinysubnets.model.mask_references import MAX_SCORE_REFERENCES, MaskContext, read_mask
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.model.subnet import (
    FIRST_MEMBER,
    FREE_SCORES,
    SCORES,
    BankDecision,
    CodebookTensor,
    CodedMask,
    PackedMask,
    Subnet,
)
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.normalization import Normalization

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


_PIECE = 1 << 17  # bytes of a mask looked at together

# Lines of the ledger whose sections have an older word, which is part of the format.
LEDGER_LINES = {"private": "task_params"}


# Writing.


@dataclass(frozen=True)
class Encoded:
    """A store as bytes: the parts of its file, in order, and the ledger of what each takes."""

    parts: list[bytes]
    ledger: Ledger


def encode(store: SubnetStore) -> Encoded:
    """The file of a store, and its ledger to the byte."""
    sections = sections_of(store)
    parts = assemble(config_of(store), sections, len(store.subnets))
    return Encoded(parts, _ledger(store, sections, parts))


def sections_of(store: SubnetStore) -> Sections:
    """All sections of a store: one of every kind for each task, and the common ones."""
    out: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    numbers = {name: i for i, name in enumerate(store.subnets)}
    for subnet in store.subnets.values():
        codes, books = write_own(subnet.own)
        heads, task_params = _task_params(store, subnet)
        coded = subnet.coded_mask
        if coded is None:
            raise ArtifactError(f"task {subnet.name!r} has no coded mask; add it with `add_`.")
        divergences = {} if subnet.decision is None else subnet.decision.divergences
        memory = write_memory(subnet.memory, divergences, numbers)
        parts = (codes, books, write_coded_mask(coded), heads, task_params, memory)
        for kind, data in zip(KINDS, parts, strict=True):
            out[kind].append(data)
    records = write_records(store.settings, store.subnets.values())
    constants = b"".join(raw_bytes(t) for t in store.architecture.constants.values())
    return out | {"records": [records], "constants": [constants]}


def _ledger(store: SubnetStore, sections: Sections, parts: list[bytes]) -> Ledger:
    sizes = {kind: [len(part) for part in sections[kind]] for kind in sections}
    return ledger_of_sizes(sizes, len(parts[0]), list(store.subnets.values()), store.layout)


def ledger_of_sizes(
    sizes: Mapping[str, Sequence[int]], header: int, subnets: Sequence[Subnet], layout: Layout
) -> Ledger:
    """The ledger of a file, to the byte, from the lengths of its header and sections."""
    entries = {
        subnet.name: Entry(
            **{LEDGER_LINES.get(kind, kind): 8 * sizes[kind][i] for kind in KINDS},
            metadata=8 * sum(_index_bytes(sizes[kind][i]) for kind in KINDS),
        )
        for i, subnet in enumerate(subnets)
    }
    index = sum(_index_bytes(sizes[kind][0]) for kind in COMMON)
    common = Entry(
        task_params=8 * sizes["constants"][0], metadata=8 * (header + index + sizes["records"][0])
    )
    return Ledger(
        tasks=entries,
        common=common,
        num_weights=layout.num_weights,
        new_weights=tuple(s.num_new for s in subnets),
        bits=tuple(s.bits for s in subnets),
        raw_mask_bits=layout.num_blocks * len(subnets),
        samples_kept=any(isinstance(s.memory, Tensor) for s in subnets),
        masks_from="coded",
        file_bytes=round(sum(entries.values(), common).total) // 8,
    )


def _index_bytes(size: int) -> int:
    """What a section of that length takes in the index."""
    entry = Writer()
    entry.varint(size)
    return len(entry.bytes()) + (HASH_BYTES if size else 0)


def _task_params(store: SubnetStore, subnet: Subnet) -> tuple[bytes, bytes]:
    """The head, and the other task-specific parameters behind a long normalization."""
    architecture = store.architecture
    shapes = architecture.task_param_shapes(len(subnet.classes))
    if set(subnet.task_params) != set(shapes) or dict(subnet.shapes) != shapes:
        raise ArtifactError(
            f"task {subnet.name!r} has the task-specific parameters {dict(subnet.shapes)}; "
            f"its network has {shapes}."
        )
    head, other = Writer(), Writer()
    normalization = subnet.normalization
    if len(normalization.mean) > FEW:
        other.floats(torch.tensor(normalization.mean), 32)
        other.floats(torch.tensor(normalization.std), 32)
    for spec in architecture.task_params:
        in_head = spec.name.startswith(f"{architecture.head}.")
        write_tensor(head if in_head else other, subnet.task_params[spec.name])
    return head.bytes(), other.bytes()


# Reading.


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
    walk = _Walk(file, manifest, ReadPlan(file, manifest, only), records)
    for number in walk.plan.numbers:
        walk.task(number)
    banks = [
        walk.banks[i].finished(only is not None) if i in walk.banks else _absent(manifest.layout)
        for i in range(manifest.num_banks)
    ]
    return Contents(manifest, settings, constants, banks, walk.subnets)


def read_settings(file: ModelFile) -> dict[str, Any]:
    """What the learner recorded in a file: its method and settings."""
    with _at("the records"):
        data = Reader(file.section("records"), "records")
        return read_records(data, file.num_tasks)[0]


class _GrowingBank:
    """A bank being read: its values, its owned set, and the masks that others are coded against.

    Masks are packed, one bit per block. `members` has those still needed by their number in the
    bank, `last` is the one read last, and `recent` the same with its number, as booleans.
    """

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
            blocks = torch.from_numpy(unpack_mask(new, self.layout.num_blocks))
            return np.flatnonzero(self.layout.expand(blocks).numpy())
        # Mostly few are new: look at the bytes that hold some, not at every bit. In pieces, since
        # positions are large beside the values they are for.
        where = np.flatnonzero(new != 0)
        kind = np.int32 if self.layout.num_weights < 1 << 31 else np.int64
        pieces = [np.empty(0, kind)]
        for start in range(0, len(where), _PIECE):
            piece = where[start : start + _PIECE]
            bits = np.flatnonzero(np.unpackbits(new[piece], bitorder="little").view(np.bool_))
            pieces.append((piece[bits >> 3] * 8 + (bits & 7)).astype(kind))
        return np.concatenate(pieces)

    def finished(self, last_only: bool) -> Bank:
        """The bank; with nothing in it but the last mask's weights where only that is wanted."""
        kept = self.last if last_only else self.owned
        owned = torch.from_numpy(unpack_mask(kept, self.layout.num_blocks))
        if last_only:
            np.copyto(self.values, 0, where=~self.layout.expand(owned).numpy())
        return Bank(self.layout, torch.from_numpy(self.values), owned)


def _absent(layout: Layout) -> Bank:
    """A bank that nothing was read of; it takes no memory."""
    values, owned = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    return Bank(layout, values.expand(layout.num_weights), owned.expand(layout.num_blocks))


class _Walk:
    """The tasks of a file read one after the other, as they were learned."""

    def __init__(
        self, file: ModelFile, manifest: Manifest, plan: ReadPlan, records: list[dict[str, Any]]
    ) -> None:
        self.file, self.manifest, self.plan, self.records = file, manifest, plan, records
        self.layout = manifest.layout
        self._stops = np.array([stop for _, stop in self.layout.segments])
        self._none_new = [0] * len(self.layout.shared)
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}  # by the number of classes
        self.banks: dict[int, _GrowingBank] = {}
        self.subnets: dict[str, Subnet] = {}

    def task(self, number: int) -> None:
        """Read a task's mask and own weights; its task-specific parts and a subnet where wanted."""
        entry = self.manifest.tasks[number]
        if entry.bank not in self.banks:
            self.banks[entry.bank] = _GrowingBank(self.layout)
        bank = self.banks[entry.bank]
        with _at(f"task {entry.name!r}"):
            coded, mask = self._mask(number, entry, bank)
            packed = pack_mask(mask)
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
        context = MaskContext(
            self.layout, entry.bank, number, bank.members, bank.owned, bank.recent
        )
        return coded, read_mask(coded, context)

    def _own(
        self, number: int, entry: TaskEntry, bank: _GrowingBank, packed: np.ndarray
    ) -> tuple[CodebookTensor, ...]:
        """The task's own weights, which go to their places in the bank."""
        new = bank.new_weights(packed)
        counts = self._none_new
        if entry.one_codebook or len(new):
            ends = np.searchsorted(new, self._stops) if not entry.one_codebook else [len(new)]
            counts = np.diff(ends, prepend=0).tolist()
        data = self.file.section("codes", number), self.file.section("codebooks", number)
        own = read_own(data, counts)
        if len(new):
            bank.values[new] = torch.cat([c.decode() for c in own]).numpy()
        return own

    def _subnet(
        self, number: int, coded: CodedMask, packed: np.ndarray, own: tuple[CodebookTensor, ...]
    ) -> Subnet:
        entry, record = self.manifest.tasks[number], self.records[number]
        normalization, task_params = self._task_params(number, entry)
        data = Reader(self.file.section("memory", number), "memory")
        memory, divergences = read_memory(data, self.plan.names, number)
        decision = None
        if "reason" in record:
            nearest = record.get("nearest")
            decision = BankDecision(entry.bank, record["reason"], divergences, nearest)
        return Subnet(
            name=entry.name,
            classes=entry.classes,
            normalization=normalization,
            bank=entry.bank,
            packed_mask=PackedMask(packed, self.layout.num_blocks),
            bits=entry.bits,
            own=own,
            task_params=task_params,
            shapes=self._task_param_shapes(entry),
            memory=memory,
            decision=decision,
            valid_accuracy=record.get("accuracy", math.nan),
            owned_before_pruning=record.get("owned", math.nan),
            coded_mask=coded,
            sample=entry.sample,
        )

    def _task_param_shapes(self, entry: TaskEntry) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's task-specific parameters, one table for all of equal width."""
        width = len(entry.classes)
        if width not in self._shapes:
            self._shapes[width] = self.manifest.task_param_shapes(width)
        return self._shapes[width]

    def _task_params(
        self, number: int, entry: TaskEntry
    ) -> tuple[Normalization, dict[str, CodebookTensor]]:
        head = Reader(self.file.section("heads", number), "head")
        other = Reader(self.file.section("private", number), "task-specific parameters")
        normalization = entry.normalization
        if entry.channels:
            mean, std = (tuple(other.floats(entry.channels, 32).tolist()) for _ in range(2))
            normalization = normalization_of(mean, std, entry.normalization.trailing)
        shapes = self._task_param_shapes(entry)
        tensors = {
            name: read_tensor(head if self.manifest.in_head(name) else other, math.prod(shape))
            for name, shape in shapes.items()
        }
        head.done()
        other.done()
        return normalization, tensors


class ReadPlan:
    """Which tasks are read, in order, and how long each mask has to be kept.

    For one task alone these are the tasks of its bank that brought weights of their own, and the
    masks that others are coded against.
    """

    def __init__(self, file: ModelFile, manifest: Manifest, only: str | None) -> None:
        tasks = manifest.tasks
        self.only, self.names = only, [t.name for t in tasks]
        self.members: list[int] = []
        banks: dict[int, list[int]] = {}
        for number, entry in enumerate(tasks):
            self.members.append(len(banks.setdefault(entry.bank, [])))
            banks[entry.bank].append(number)
        self.numbers = list(range(len(tasks)))
        self._last_uses: dict[int, list[int]] = {}  # the tasks that each is the last to need
        if only is None:
            return
        last_use: dict[int, int] = {}
        target = self.names.index(only)
        group = [n for n in banks[tasks[target].bank] if n <= target]
        needed = {target}
        for number in reversed(group):
            if number in needed or file.size("codes", number):
                needed.add(number)
                last_use.setdefault(number, number)
                with_reference = _reference(file, number) - FIRST_MEMBER
                if 0 <= with_reference < self.members[number]:
                    needed.add(group[with_reference])
                    last_use.setdefault(group[with_reference], number)
        self.numbers = sorted(needed)
        for task, last in last_use.items():
            self._last_uses.setdefault(last, []).append(task)

    def is_wanted(self, number: int) -> bool:
        """Whether the task itself is asked for, not only its mask and weights."""
        return self.only is None or self.names[number] == self.only

    def done_with(self, number: int) -> Iterator[int]:
        """The members of the bank whose masks nobody needs after this task."""
        yield from (self.members[task] for task in self._last_uses.get(number, ()))


def _reference(file: ModelFile, number: int) -> int:
    """The reference of a task's mask, read without its hash: a wrong one is found out later."""
    try:
        return Reader(file.peek("masks", number, 4), "mask").varint(MAX_REFERENCE)
    except DamageError:
        return 0


@contextmanager
def _at(context: str) -> Iterator[None]:
    """Name the place in any damage found inside."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{context}: {error}") from None
