"""A store as the bytes of its file, and a file as banks and subnets.

`encode` gives the parts of a file and the ledger of what each takes. `read_contents` reads a file
without a network, task after task as they were learned, or only what one task needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.coding.bits import pack_mask, unpack_mask
from tinysubnets.coding.byte_io import Reader, Writer, varint_bytes
from tinysubnets.errors import ArtifactError, DamageError, TaskError, unknown
from tinysubnets.format import limits
from tinysubnets.format.container import (
    COMMON,
    HASH_BYTES,
    KINDS,
    SCHEMES,
    VERSION,
    ModelFile,
    Sections,
    assemble,
    canonical,
    check_front,
    index_of,
    parse,
)
from tinysubnets.format.header import (
    Manifest,
    TaskEntry,
    absent_of,
    config_of,
    manifest_of,
    normalization_of,
)
from tinysubnets.format.sections import (
    MAX_REFERENCE,
    raw_bytes,
    read_coded_mask,
    read_factors,
    read_first_own,
    read_first_tensors,
    read_memory,
    read_own,
    read_raw,
    read_records,
    read_routing,
    read_tensors,
    write_coded_mask,
    write_factors,
    write_memory,
    write_own,
    write_routing,
    write_tensors,
)
from tinysubnets.model.bank import Bank, Base
from tinysubnets.model.mask_references import (
    MAX_BY_MATRIX,
    MAX_SCORE_REFERENCES,
    MaskContext,
    is_by_matrix,
    read_mask,
)
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.model.subnet import (
    FIRST_MEMBER,
    FREE_SCORES,
    NO_BANK,
    NO_REFERENCE,
    OWNED,
    SCORES,
    BankDecision,
    CodebookTensor,
    CodedMask,
    PackedMask,
    Subnet,
    constant,
    task_number,
)
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import weights_hash
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors
from tinysubnets.tasks.normalization import Normalization

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


_PIECE = 1 << 17  # bytes of a mask looked at together

# Lines of the ledger whose sections have another word in format 1.
LEDGER_LINES = {"private": "task_params"}


# Writing.


@dataclass(frozen=True)
class Encoded:
    """A store as bytes: the parts of its file, in order, and the ledger of what each takes.

    - `config`: what the file says of itself.
    - `own_weights`: how many weights stand under masks of no bank.
    """

    parts: list[bytes]
    ledger: Ledger
    config: Mapping[str, Any]
    own_weights: int

    def check_readable(self) -> None:
        """Refuse a model that no reader would accept, before it replaces one that they do."""
        text, file_bytes = canonical(self.config), sum(map(len, self.parts))
        try:
            config = parse(text, "config")
            limits.check_task_tables(config["tasks"], VERSION)
            manifest = manifest_of(config, file_bytes, len(text.encode()))
            most = limits.most_own_weights(manifest, file_bytes)
            limits.check_own_weights(self.own_weights, most, file_bytes)
        except DamageError as error:
            raise ArtifactError(
                f"nothing was saved, because no reader would accept this model: {error} Remove "
                "tasks from it, and learn further ones in a model of their own."
            ) from None


def encode(store: SubnetStore) -> Encoded:
    """The file of a store, and its ledger to the byte."""
    sections = sections_of(store)
    config = config_of(store)
    parts = assemble(config, sections, len(sections["masks"]))
    check_front(parts[1])
    own = sum(s.num_new for s in store.entries() if s.bank == NO_BANK and s.has_mask)
    return Encoded(parts, _ledger(store, sections, parts), config, own)


def sections_of(store: SubnetStore) -> Sections:
    """All sections of a store: one of every kind for each entry, and the common ones."""
    entries = store.entries()
    # What is written of an entry depends on it and on those before it alone.
    pairs = zip(store.written, entries, strict=False)
    written = [one for one, _ in takewhile(lambda pair: pair[0][0] is pair[1], pairs)]
    known = len(written)
    numbers = {s.number: s.task_params for s in entries if s.name}
    owned: dict[int, Any] = {}  # by bank: what the entries so far own, at one bit per block
    for place, subnet in enumerate(entries):
        before = owned.get(subnet.bank, np.uint8(0))
        if subnet.bank != NO_BANK and known < len(entries):
            owned[subnet.bank] = before | subnet.packed_mask.bits
        if place >= known:
            reference = None if subnet.reference is None else numbers.get(subnet.reference)
            written.append((subnet, _entry_sections(store, subnet, before, reference)))
    store.written = tuple(written)  # another thread may write too
    out = {kind: [parts[i] for _, parts in written] for i, kind in enumerate(KINDS)}
    constants = b"".join(raw_bytes(t) for t in store.architecture.constants.values())
    common = (constants, _write_base(store))
    return out | {kind: [data] for kind, data in zip(COMMON, common, strict=True)}


def _entry_sections(
    store: SubnetStore,
    subnet: Subnet,
    owned: Any,
    reference: Mapping[str, CodebookTensor] | None,
) -> tuple[bytes, ...]:
    """The sections of one entry, one of every kind.

    - `owned`: what earlier entries of its bank own, at one bit per block.
    - `reference`: the task-specific parameters of the task referred to; None where there is none.
    """
    coded = subnet.coded_mask
    if coded is None:
        raise ArtifactError(f"task {subnet.name!r} has no coded mask; add it with `add_`.")
    follows = None
    if subnet.has_mask and any(c.bits == 1 for c in subnet.own):
        new = weight_positions(store.layout, subnet.packed_mask.bits & ~owned)
        follows = store.layout.follows_in_kernel(new)
    if subnet.rank:
        codes, books = write_factors(subnet.own, Factors(store.layout, subnet.rank)), b""
    else:
        codes, books = write_own(subnet.own, follows)
    heads, task_params = b"", b""
    if subnet.name:
        heads, task_params = _task_params(store, subnet, reference)
    memory, routing = write_memory(subnet.memory), write_routing(subnet.routing)
    masks = write_coded_mask(coded) if subnet.has_mask else b""
    return codes, books, masks, heads, task_params, memory, routing


def _write_base(store: SubnetStore) -> bytes:
    """The base's values where the store embeds them: shared, then task-specific tensors."""
    if store.base is None or store.base.values is None or not store.base.embedded:
        return b""
    values = store.base.values
    return b"".join(raw_bytes(values[name].float()) for name, _ in base_shapes(store.architecture))


def base_shapes(
    network: Architecture | Manifest,
) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors of a base: all shared ones, and those of tasks that no class count shapes."""
    if isinstance(network, Manifest):
        shared, outputs = network.layout.shared, network.outputs
    else:
        shared, outputs = network.shared, frozenset(network.output)
    specs = (*shared, *(s for s in network.task_params if s.name not in outputs))
    return [(s.name, s.shape) for s in specs]


def _ledger(store: SubnetStore, sections: Sections, parts: list[bytes]) -> Ledger:
    sizes = {kind: [len(part) for part in sections[kind]] for kind in sections}
    index = index_of(sections, len(sections["masks"]))
    before = len(parts[0]) + len(parts[1]) - len(index)
    return ledger_of_sizes(sizes, before, store.entries(), store.layout)


def ledger_of_sizes(
    sizes: Mapping[str, Sequence[int]],
    before: int,
    subnets: Sequence[Subnet],
    layout: Layout,
    version: int = VERSION,
) -> Ledger:
    """The ledger of a file, to the byte, from the lengths of its sections.

    Weights without a name count among what belongs to no single task.

    - `sizes`: the bytes of the sections, by kind.
    - `before`: the bytes before the sections: the header and the config, but not the index.
    """
    scheme = SCHEMES[version]
    index = sum(
        varint_bytes(sizes[kind][0]) + (HASH_BYTES if sizes[kind][0] else 0)
        for kind in scheme.common
    )
    common = Entry(
        task_params=8 * (sizes["constants"][0] + sum(sizes.get("base", ()))),
        metadata=8 * (before + index + sum(sizes.get("records", ()))),
    )
    entries = {}
    for i, subnet in enumerate(subnets):
        own = {kind: sizes[kind][i] for kind in scheme.kinds}
        entry = Entry(
            **{LEDGER_LINES.get(kind, kind): 8 * size for kind, size in own.items()},
            metadata=8 * scheme.index_bytes(own),
        )
        if subnet.name:
            entries[subnet.name] = entry
        else:
            common += entry
    return Ledger(
        tasks=entries,
        common=common,
        num_weights=layout.num_weights,
        new_weights=tuple(s.num_new for s in subnets),
        bits=tuple(s.bits for s in subnets),
        raw_mask_bits=layout.num_blocks * len(subnets),
        samples_kept=any(isinstance(s.memory, Tensor) for s in subnets),
        masks_from="coded",
        num_layers=len(layout.segments),
        file_bytes=round(sum(entries.values(), common).total) // 8,
    )


def _task_params(
    store: SubnetStore, subnet: Subnet, reference: Mapping[str, CodebookTensor] | None
) -> tuple[bytes, bytes]:
    """The head, and the other task-specific parameters behind the normalization.

    - `reference`: those of the task referred to; None where there is none.
    """
    architecture = store.architecture
    shapes = architecture.task_param_shapes(subnet.num_outputs)
    absent = {architecture.task_params[place].name for place in absent_of(subnet, architecture)}
    of_base = subnet.from_base()
    lacking = of_base if store.base is None else [n for n in of_base if n in architecture.output]
    if lacking or set(subnet.task_params) - set(shapes) or dict(subnet.shapes) != shapes:
        raise ArtifactError(
            f"task {subnet.name!r} has the task-specific parameters {dict(subnet.shapes)}; "
            f"its network has {shapes}."
        )
    head, other = Writer(), Writer()
    other.floats(torch.tensor(subnet.normalization.mean), 32)
    other.floats(torch.tensor(subnet.normalization.std), 32)
    stored = {
        s.name: subnet.task_params[s.name] for s in architecture.task_params if s.name not in absent
    }
    in_head = architecture.in_head
    write_tensors(head, {n: c for n, c in stored.items() if in_head(n)}, None)
    write_tensors(other, {n: c for n, c in stored.items() if not in_head(n)}, reference)
    return head.bytes(), other.bytes()


# Reading.


@dataclass
class Contents:
    """What a file holds: the checked config, settings, constants, base, banks and subnets."""

    manifest: Manifest
    settings: dict[str, Any]
    constants: dict[str, Tensor]
    base: Base | None
    banks: list[Bank]
    subnets: dict[str, Subnet]
    nameless: dict[int, Subnet]

    def put_into(self, store: SubnetStore) -> None:
        """Put banks and subnets in place of those of a store over the same network."""
        store.banks, store.subnets, store.nameless = self.banks, self.subnets, self.nameless
        store.next_number, store.base = self.manifest.next_number, self._base_for(store)
        for bank in store.banks:
            bank.layout = store.layout
        store.drop_caches_()  # a store at work may have had others of the same numbers

    def _base_for(self, store: SubnetStore) -> Base | None:
        """The base, with values that the store has already where the file has none."""
        mine, known = self.base, store.base
        if mine is None or mine.values is not None or known is None or known.values is None:
            return mine
        return replace(mine, values=known.values) if known.sha256 == mine.sha256 else mine


def read_contents(file: ModelFile, only: str | None = None) -> Contents:
    """Everything in a file, or only what one task needs."""
    manifest = manifest_of(file.config, file.file_bytes, file.text_bytes)
    names = [t.name for t in manifest.tasks if t.name]
    if only is not None and only not in names:
        raise TaskError(unknown("task", only, names))
    settings, records = dict(manifest.settings), [t.record for t in manifest.tasks]
    if file.version == 1:
        settings, records = _first_records(file)
    with _at("the constants"):
        data = Reader(file.section("constants"), "constants")
        constants = {name: read_raw(data, kind, shape) for name, kind, shape in manifest.constants}
        data.done()
    reader = _EntryReader(file, manifest, ReadPlan(file, manifest, only), records)
    for place in reader.plan.places:
        reader.entry(place)
    empty = _absent_bank(manifest.layout)
    banks = [
        reader.banks[i].finished(only is not None)
        if i in reader.banks
        else Bank(manifest.layout, empty.values, empty.owned)
        for i in range(manifest.num_banks)
    ]
    if manifest.method is not None:
        settings = {"method": manifest.method} | settings
    base = _read_base(file, manifest)
    return Contents(manifest, settings, constants, base, banks, reader.subnets, reader.nameless)


def _read_base(file: ModelFile, manifest: Manifest) -> Base | None:
    """The base, with its values where the file has them."""
    size = file.size("base")
    if manifest.base is None or not size:
        if size:
            raise DamageError("values of a base that the config does not name.")
        return manifest.base
    with _at("the base"):
        data = Reader(file.section("base"), "base")
        shapes = base_shapes(manifest)
        values = {name: read_raw(data, torch.float32, shape) for name, shape in shapes}
        data.done()
        if weights_hash(values) != manifest.base.sha256:
            raise data.damage("the values are not those that the config names.")
    return replace(manifest.base, values=values, embedded=True)


def _first_records(file: ModelFile) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """The settings, and what is known of each task, from the section that format 1 has for them."""
    with _at("the records"):
        return read_records(Reader(file.section("records"), "records"), file.num_tasks)


def read_settings(file: ModelFile) -> dict[str, Any]:
    """What the learner recorded in a file: its method and settings."""
    if file.version == 1:
        return _first_records(file)[0]
    settings, method = file.config.get("settings"), file.config.get("method")
    if not isinstance(settings, dict):
        raise DamageError("config: the settings are not a table.")
    return settings if not isinstance(method, str) else {"method": method} | settings


def weight_positions(layout: Layout, packed: np.ndarray) -> np.ndarray:
    """Where the weights of some blocks stand in the flat vector; one bit per block."""
    if not layout.is_identity:
        blocks = torch.from_numpy(unpack_mask(packed, layout.num_blocks))
        return np.flatnonzero(layout.expand(blocks).numpy())
    # Mostly they are few: look at the bytes that hold some, not at every bit. In pieces, since
    # positions are large beside the values they are for.
    where = np.flatnonzero(packed != 0)
    kind = np.int32 if layout.num_weights < 1 << 31 else np.int64
    pieces = [np.empty(0, kind)]
    for start in range(0, len(where), _PIECE):
        piece = where[start : start + _PIECE]
        bits = np.flatnonzero(np.unpackbits(packed[piece], bitorder="little").view(np.bool_))
        pieces.append((piece[bits >> 3] * 8 + (bits & 7)).astype(kind))
    return np.concatenate(pieces)


class _GrowingBank:
    """A bank being read: its values, its owned set, and the masks that others are coded against.

    Masks are packed, one bit per block. `members` are the masks that are still needed, by their
    place in the bank; `wanted` are the blocks that the tasks to be read use; `recent` is the mask
    read last with its place, as booleans. Subnets without a bank are read as one, too, in which
    nothing is shared.
    """

    def __init__(self, layout: Layout, number: int) -> None:
        self.layout = layout
        self.values = np.zeros(layout.num_weights if number != NO_BANK else 0, np.float32)
        self.number = number
        self.owned = np.zeros(-(-layout.num_blocks // 8), np.uint8)
        self.wanted = np.zeros_like(self.owned)
        self.members: dict[int, np.ndarray] = {}
        self.num_score_references = 0
        self.recent: tuple[int, np.ndarray] | None = None

    def new_weights(self, packed: np.ndarray) -> np.ndarray:
        """The positions of the weights that a mask takes and nobody owns yet."""
        new = packed if self.number == NO_BANK else packed & ~self.owned
        return weight_positions(self.layout, new)

    def finished(self, wanted_only: bool) -> Bank:
        """The bank; with nothing in it but the wanted weights where only those are asked for."""
        kept = self.wanted if wanted_only else self.owned
        owned = torch.from_numpy(unpack_mask(kept, self.layout.num_blocks))
        if wanted_only:
            np.copyto(self.values, 0, where=~self.layout.expand(owned).numpy())
        return Bank(self.layout, torch.from_numpy(self.values), owned)


def _absent_bank(layout: Layout) -> Bank:
    """A bank that nothing was read of; it takes no memory."""
    values, owned = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    return Bank(layout, values.expand(layout.num_weights), owned.expand(layout.num_blocks))


# An entry's mask, still coded and at one bit per block, and its own weights.
Weights = tuple[CodedMask, np.ndarray, tuple[CodebookTensor, ...]]


class _EntryReader:
    """Reads the entries of a file one after the other, in the order of learning."""

    def __init__(
        self,
        file: ModelFile,
        manifest: Manifest,
        plan: ReadPlan,
        records: Sequence[Mapping[str, Any]],
    ) -> None:
        self.file, self.manifest, self.plan, self.records = file, manifest, plan, records
        self.layout = manifest.layout
        self._stops = np.array([stop for _, stop in self.layout.segments])
        self._none_new = [0] * len(self.layout.shared)
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}  # by the number of outputs
        self.banks: dict[int, _GrowingBank] = {}
        self.subnets: dict[str, Subnet] = {}
        self.nameless: dict[int, Subnet] = {}
        self.num_by_matrix = 0
        self.num_own = 0  # weights under masks of no bank
        self._names = {t.number: t.name for t in manifest.tasks if t.name}
        # Task-specific parameters by number, which those of later tasks may be coded against.
        self._task_params: dict[int, dict[str, CodebookTensor]] = {}

    @cached_property
    def _most_own(self) -> int:
        return limits.most_own_weights(self.manifest, self.file.file_bytes)

    def entry(self, place: int) -> None:
        """Read an entry's mask and own weights; its task-specific parts where it is wanted."""
        entry, plan = self.manifest.tasks[place], self.plan
        with _at(f"task {entry.name!r}" if entry.name else f"entry {place}"):
            coded, packed, own = (self._with_mask if entry.has_mask else self._without_mask)(place)
            weights = Subnet(
                "",
                (),
                Normalization(),
                bank=entry.bank,
                packed_mask=PackedMask(packed, self.layout.num_blocks),
                bits=entry.bits,
                own=own,
                number=entry.number,
                coded_mask=coded,
                reference=entry.reference,
                rank=entry.rank,
            )
            if entry.name and plan.is_wanted(place):
                self.subnets[entry.name] = self._subnet(place, weights)
            elif plan.is_kept(place):
                if entry.name:
                    self._read_task_params(place, entry)
                else:
                    self._check_empty(place)
                self.nameless[entry.number] = weights

    def _with_mask(self, place: int) -> Weights:
        """Read a mask, and own weights, which go to their places in the bank."""
        entry, plan = self.manifest.tasks[place], self.plan
        if entry.bank not in self.banks:
            self.banks[entry.bank] = _GrowingBank(self.layout, entry.bank)
        bank = self.banks[entry.bank]
        coded, mask = self._mask(place, entry, bank)
        packed = pack_mask(mask)
        own = self._own(place, entry, bank, packed)
        bank.owned = bank.owned | packed
        bank.members[plan.members[place]] = packed
        bank.recent = plan.members[place], mask
        for member in plan.done_with(place):
            del bank.members[member]
        if plan.is_kept(place):
            bank.wanted |= packed
        return coded, packed, own

    def _without_mask(self, place: int) -> Weights:
        """Read an entry that adds nothing to what it refers to, or a difference of low rank.

        It takes no memory per weight.
        """
        entry = self.manifest.tasks[place]
        for kind in ("codebooks", "masks", *(() if entry.rank else ("codes",))):
            if self.file.size(kind, place):
                raise DamageError(f"{kind} of an entry that has none.")
        if entry.rank:
            data = Reader(self.file.section("codes", place), "factors")
            own = read_factors(data, Factors(self.layout, entry.rank))
        else:
            counts = [0] if entry.one_codebook else self._none_new
            own = read_own((b"", b""), counts, self.layout, np.empty(0, np.int64))
        return CodedMask(NO_REFERENCE, b""), PackedMask.none(self.layout.num_blocks).bits, own

    def _check_empty(self, place: int) -> None:
        """Refuse sections of a task behind an entry that has no name."""
        for kind in self.file.scheme.kinds[3:]:
            if self.file.size(kind, place):
                raise DamageError(f"{kind} of an entry without a name.")

    def _mask(
        self, place: int, entry: TaskEntry, bank: _GrowingBank
    ) -> tuple[CodedMask, np.ndarray]:
        """An entry's mask, still coded and as booleans, within what a reader accepts."""
        data = Reader(self.file.section("masks", place), "mask")
        coded = read_coded_mask(data, len(self.layout.shared))
        bank.num_score_references += coded.reference in (SCORES, FREE_SCORES)
        if bank.num_score_references > MAX_SCORE_REFERENCES:
            raise data.damage(f"more than {MAX_SCORE_REFERENCES} masks refer to scores.")
        self.num_by_matrix += is_by_matrix(coded)
        if self.num_by_matrix > MAX_BY_MATRIX:
            raise data.damage(f"more than {MAX_BY_MATRIX} masks are coded by matrix.")
        if entry.bank == NO_BANK and bank.num_score_references:
            raise data.damage("a mask of no bank refers to scores.")
        context = MaskContext(
            self.layout, entry.bank, entry.number, bank.members, bank.owned, bank.recent
        )
        return coded, read_mask(coded, context)

    def _own(
        self, place: int, entry: TaskEntry, bank: _GrowingBank, packed: np.ndarray
    ) -> tuple[CodebookTensor, ...]:
        """The task's own weights, which go to their places in the bank."""
        new = bank.new_weights(packed)
        if entry.bank == NO_BANK:
            self.num_own += len(new)
            limits.check_own_weights(self.num_own, self._most_own, self.file.file_bytes)
        counts = self._none_new
        if entry.one_codebook or len(new):
            ends = np.searchsorted(new, self._stops) if not entry.one_codebook else [len(new)]
            counts = np.diff(ends, prepend=0).tolist()
        data = self.file.section("codes", place), self.file.section("codebooks", place)
        if self.file.version == 1:
            own = read_first_own(data, counts)
        else:
            own = read_own(data, counts, self.layout, new)
        if len(new) and entry.bank != NO_BANK:
            bank.values[new] = torch.cat([c.decode() for c in own]).numpy()
        return own

    def _subnet(self, place: int, weights: Subnet) -> Subnet:
        """The whole task, whose mask and own weights were read before."""
        entry, record = self.manifest.tasks[place], self.records[place]
        normalization, task_params = self._read_task_params(place, entry)
        data = Reader(self.file.section("memory", place), "memory")
        memory = read_memory(data, place if self.file.version == 1 else None)
        decision = None
        if "reason" in record:
            nearest = self._named(record.get("nearest"), place)
            decision = BankDecision(entry.bank, record["reason"], nearest)
        return replace(
            weights,
            name=entry.name,
            classes=entry.classes,
            normalization=normalization,
            task_params=task_params,
            shapes=self._task_param_shapes(entry),
            memory=memory,
            decision=decision,
            valid_accuracy=record.get("accuracy", math.nan),
            owned_before_pruning=record.get("owned", math.nan),
            sample=entry.sample,
            isolated=entry.isolated,
            adds_to_base=entry.adds_to_base,
            rotations=entry.rotations,
            preprocessing=entry.preprocessing,
            routing=read_routing(Reader(self.file.section("routing", place), "routing")),
        )

    def _task_param_shapes(self, entry: TaskEntry) -> dict[str, tuple[int, ...]]:
        """The shapes of a task's task-specific parameters, one table for all of equal width."""
        width = entry.num_outputs
        if width not in self._shapes:
            self._shapes[width] = self.manifest.task_param_shapes(width)
        return self._shapes[width]

    def _named(self, nearest: int | str | None, place: int) -> str | None:
        """The name of the task that a record calls the nearest: by name in format 1."""
        if nearest is None or (isinstance(nearest, str) and self.file.version == 1):
            return nearest
        earlier = self.manifest.tasks[place]
        if nearest not in self._names or not int(nearest) < earlier.number:
            raise DamageError(f"the nearest task is {str(nearest)[:80]!r}, which is not there.")
        return self._names[int(nearest)]

    def _read_task_params(
        self, place: int, entry: TaskEntry
    ) -> tuple[Normalization, dict[str, CodebookTensor]]:
        """A task's normalization and task-specific parameters, which are kept for later tasks."""
        head = Reader(self.file.section("heads", place), "head")
        kind = self.file.scheme.task_params
        other = Reader(self.file.section(kind, place), "task-specific parameters")
        normalization = entry.normalization
        if entry.channels:
            mean, std = (tuple(other.floats(entry.channels, 32).tolist()) for _ in range(2))
            normalization = normalization_of(mean, std, entry.normalization.trailing)
        absent, in_head = entry.absent.values, self.manifest.in_head
        shapes = self._task_param_shapes(entry)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        stored = {name: size for name, size in sizes.items() if name not in absent}
        found = {n: constant(v, sizes[n]) for n, v in absent.items() if v is not None}
        of_head = {n: size for n, size in stored.items() if in_head(n)}
        rest = {n: size for n, size in stored.items() if n not in of_head}
        if self.file.version == 1:
            found |= read_first_tensors(head, of_head) | read_first_tensors(other, rest)
        else:
            reference = None if entry.reference is None else self._task_params.get(entry.reference)
            found |= read_tensors(head, of_head, None) | read_tensors(other, rest, reference)
        head.done()
        other.done()
        tensors = {name: found[name] for name in shapes if name in found}
        self._task_params[entry.number] = tensors
        return normalization, tensors


class ReadPlan:
    """Which entries are read, in order, and how long each mask has to be kept.

    For one task alone these are the entries it adds up, and in the bank of each the entries that
    brought weights of their own, and the masks that others are coded against: one, or all of those
    before it.
    """

    def __init__(self, file: ModelFile, manifest: Manifest, only: str | None) -> None:
        tasks = manifest.tasks
        self.only, self.names = only, [t.name for t in tasks]
        self.members: list[int] = []  # the place of each entry in its bank
        banks: dict[int, list[int]] = {}
        for place, entry in enumerate(tasks):
            self.members.append(len(banks.setdefault(entry.bank, [])))
            banks[entry.bank].append(place)
        self.places = list(range(len(tasks)))
        self._last_uses: dict[int, list[int]] = {}  # the entries that each is the last to need
        self.chain = set(self.places)
        if only is None:
            return
        last_use: dict[int, int] = {}
        numbers = {t.number: place for place, t in enumerate(tasks)}
        self.chain = {self.names.index(only)}
        number = task_number(tasks[self.names.index(only)].reference)
        while number is not None:
            self.chain.add(numbers[number])
            number = task_number(tasks[numbers[number]].reference)
        needed = set(self.chain)
        for bank in {tasks[place].bank for place in self.chain}:
            last = max(place for place in self.chain if tasks[place].bank == bank)
            group = [place for place in banks[bank] if place <= last]
            for place in reversed(group):
                if not tasks[place].has_mask:
                    continue  # no mask is coded against its own
                if place in needed or (bank != NO_BANK and file.size("codes", place)):
                    needed.add(place)
                    last_use.setdefault(place, place)
                    against = _reference(file, place)
                    if 0 <= against - FIRST_MEMBER < self.members[place]:
                        member = group[against - FIRST_MEMBER]
                        needed.add(member)
                        last_use.setdefault(member, place)
                    elif against == OWNED and bank == NO_BANK:
                        # All masks before it; in a bank those that count have codes as well.
                        needed |= {p for p in group[: self.members[place]] if tasks[p].has_mask}
        self.places = sorted(needed)
        for place, last in last_use.items():
            self._last_uses.setdefault(last, []).append(place)

    def is_wanted(self, place: int) -> bool:
        """Whether the task itself is asked for, not only its mask and weights."""
        return self.only is None or self.names[place] == self.only

    def is_kept(self, place: int) -> bool:
        """Whether the entry's weights are part of what is asked for."""
        return place in self.chain

    def done_with(self, place: int) -> Iterator[int]:
        """The members of the bank whose masks nobody needs after this entry."""
        yield from (self.members[other] for other in self._last_uses.get(place, ()))


def _reference(file: ModelFile, number: int) -> int:
    """The reference of a task's mask, read without its hash: a wrong one is found out later."""
    try:
        return Reader(file.peek("masks", number, 4), "mask").varint(MAX_REFERENCE)
    except DamageError:
        return 0


@contextmanager
def _at(context: str) -> Iterator[None]:
    """Put the place in front of the error for damage that is found inside."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{context}: {error}") from None
