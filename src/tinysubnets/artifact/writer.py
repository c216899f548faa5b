"""From a store to the parts of its file, and the ledger of what each part takes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinysubnets.artifact.container import (
    COMMON,
    KINDS,
    Sections,
    assemble,
    canonical,
    index_of,
)
from tinysubnets.artifact.manifest import DTYPES, FEW, config_of
from tinysubnets.artifact.values import write_own, write_tensor
from tinysubnets.artifact.wire import Writer
from tinysubnets.capacity import Entry, Ledger
from tinysubnets.errors import ArtifactError
from tinysubnets.subnet import FREE_SCORES, SCORES, CodedMask, Subnet

if TYPE_CHECKING:
    from tinysubnets.store import SubnetStore

MEMORY_KINDS = ("gaussian", "histogram")  # 1 and 2; 0 is no memory, 3 samples
SAMPLES = 3


def file_parts(store: SubnetStore) -> list[bytes]:
    """The bytes of a store's file, in parts, in order."""
    return assemble(config_of(store), sections_of(store), len(store.subnets))


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
        parts = (codes, books, write_mask(coded), heads, private, _memory(subnet, numbers))
        for kind, data in zip(KINDS, parts, strict=True):
            out[kind].append(data)
    return out | {"records": [_records(store)], "constants": [_constants(store)]}


def ledger_of_file(store: SubnetStore) -> Ledger:
    """The ledger of a store as its file has it, to the byte."""
    sections = sections_of(store)
    parts = assemble(config_of(store), sections, len(store.subnets))
    index = _index_bytes(sections, len(store.subnets))
    entries = {}
    for i, name in enumerate(store.subnets):
        sizes = {kind: 8 * len(sections[kind][i]) for kind in KINDS}
        entries[name] = Entry(**sizes, metadata=8 * index[i])
    common = Entry(
        private=8 * len(sections["constants"][0]),
        metadata=8 * (len(parts[0]) + index[-1] + len(sections["records"][0])),
    )
    subnets = list(store.subnets.values())
    return Ledger(
        tasks=entries,
        common=common,
        num_weights=store.layout.num_weights,
        new_weights=tuple(s.num_new for s in subnets),
        bits=tuple(s.bits for s in subnets),
        raw_mask_bits=store.layout.num_blocks * len(subnets),
        samples_kept=any(isinstance(s.memory, Tensor) for s in subnets),
        masks_from="coded",
        file_bytes=sum(map(len, parts)),
    )


def _index_bytes(sections: Sections, num_tasks: int) -> list[int]:
    """What each task takes in the index, and at last what the common sections take."""
    common = {kind: sections[kind] for kind in COMMON}
    none = index_of(common | {kind: [] for kind in KINDS}, 0)
    sizes = []
    for i in range(num_tasks):
        one = index_of(common | {kind: [sections[kind][i]] for kind in KINDS}, 1)
        sizes.append(len(one) - len(none))
    return [*sizes, len(none)]


def write_mask(coded: CodedMask) -> bytes:
    """A coded mask: its reference, what regenerates the reference, and the code."""
    out = Writer()
    out.varint(coded.reference)
    if coded.reference in (SCORES, FREE_SCORES):
        out.raw(coded.seed.to_bytes(8, "little"))
        for magnitude in coded.magnitudes:
            out.raw(magnitude.to_bytes(4, "little"))
    out.raw(coded.data)
    return out.bytes()


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


def _memory(subnet: Subnet, numbers: dict[str, int]) -> bytes:
    """The task's memory, and how far the task was from earlier ones."""
    divergences = {} if subnet.decision is None else subnet.decision.divergences
    memory = subnet.memory
    if memory is None and not divergences:
        return b""
    out = Writer()
    if memory is None:
        out.byte(0)
    elif isinstance(memory, Tensor):
        out.byte(SAMPLES)
        _write_samples(out, memory)
    else:
        out.byte(1 + MEMORY_KINDS.index(memory.kind))
        out.varint(memory.count)
        out.raw(_float64(memory.floor))
        out.varint(len(memory.mean))
        for part in (memory.mean, memory.variance):
            if part is not None:
                exact = torch.equal(part.half().float(), part)
                out.byte(0 if exact else 1)
                out.floats(part, 16 if exact else 32)
    for name, value in divergences.items():
        out.varint(numbers[name])
        out.floats(torch.tensor([value]), 32)
    return out.bytes()


def _write_samples(out: Writer, samples: Tensor) -> None:
    out.byte(list(DTYPES.values()).index(samples.dtype))
    out.byte(samples.ndim)
    for size in samples.shape:
        out.varint(size)
    out.raw(raw_bytes(samples))


def raw_bytes(tensor: Tensor) -> bytes:
    """A tensor's values in order, little-endian."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _float64(value: float) -> bytes:
    return torch.tensor([value], dtype=torch.float64).numpy().astype("<f8").tobytes()


def _constants(store: SubnetStore) -> bytes:
    return b"".join(raw_bytes(t) for t in store.architecture.constants.values())


def _records(store: SubnetStore) -> bytes:
    """The settings for going on, and what is known of each task, as deflated JSON."""
    tasks = [_record(s) for s in store.subnets.values()]
    text = canonical({"settings": store.settings, "tasks": tasks}).encode()
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    out = Writer()
    out.varint(len(text))
    out.raw(coder.compress(text) + coder.flush())
    return out.bytes()


def _record(subnet: Subnet) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if subnet.valid_accuracy == subnet.valid_accuracy:  # not NaN
        record["accuracy"] = subnet.valid_accuracy
    if subnet.owned_before_pruning == subnet.owned_before_pruning:
        record["owned"] = subnet.owned_before_pruning
    if subnet.decision is not None:
        record["reason"] = subnet.decision.reason
        if subnet.decision.nearest is not None:
            record["nearest"] = subnet.decision.nearest
    return record
