"""From a store to the parts of its file, and the ledger of what each part takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.artifact.config import config_of
from tinysubnets.artifact.container import (
    COMMON,
    HASH_BYTES,
    KINDS,
    Sections,
    assemble,
)
from tinysubnets.artifact.manifest import FEW
from tinysubnets.artifact.masks import write_coded_mask
from tinysubnets.artifact.memory import raw_bytes, write_memory
from tinysubnets.artifact.records import write_records
from tinysubnets.artifact.values import write_own, write_tensor
from tinysubnets.artifact.wire import Writer
from tinysubnets.capacity import Entry, Ledger
from tinysubnets.errors import ArtifactError
from tinysubnets.layout import Layout
from tinysubnets.subnet import Subnet

if TYPE_CHECKING:
    from tinysubnets.store import SubnetStore


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
        heads, private = _private(store, subnet)
        coded = subnet.coded_mask
        if coded is None:
            raise ArtifactError(f"task {subnet.name!r} has no coded mask; add it with `add_`.")
        divergences = {} if subnet.decision is None else subnet.decision.divergences
        memory = write_memory(subnet.memory, divergences, numbers)
        parts = (codes, books, write_coded_mask(coded), heads, private, memory)
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
            **{kind: 8 * sizes[kind][i] for kind in KINDS},
            metadata=8 * sum(_index_bytes(sizes[kind][i]) for kind in KINDS),
        )
        for i, subnet in enumerate(subnets)
    }
    index = sum(_index_bytes(sizes[kind][0]) for kind in COMMON)
    common = Entry(
        private=8 * sizes["constants"][0], metadata=8 * (header + index + sizes["records"][0])
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


def _private(store: SubnetStore, subnet: Subnet) -> tuple[bytes, bytes]:
    """The head, and the other private tensors behind a long normalisation."""
    architecture = store.architecture
    shapes = architecture.private_shapes(len(subnet.classes))
    if set(subnet.private) != set(shapes) or dict(subnet.shapes) != shapes:
        raise ArtifactError(
            f"task {subnet.name!r} has the private tensors {dict(subnet.shapes)}; "
            f"its network has {shapes}."
        )
    head, other = Writer(), Writer()
    normalisation = subnet.normalisation
    if len(normalisation.mean) > FEW:
        other.floats(torch.tensor(normalisation.mean), 32)
        other.floats(torch.tensor(normalisation.std), 32)
    for spec in architecture.private:
        inside = spec.name.startswith(f"{architecture.head}.")
        write_tensor(head if inside else other, subnet.private[spec.name])
    return head.bytes(), other.bytes()
