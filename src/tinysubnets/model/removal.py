"""Taking tasks away: what becomes of the weights that a removed task owned."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tinysubnets.coding.bits import unpack_mask
from tinysubnets.model.subnet import NO_BANK, CodebookTensor, PackedMask, Subnet
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.normalization import Normalization

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


@dataclass(frozen=True)
class Removal:
    """What removing tasks came to.

    - `freed`: how many weights that removed tasks owned are free again.
    - `kept`: how many stay, without a name, because other tasks use them.
    - `used_by`: the tasks that use those.
    - `names`: the tasks that were removed.
    - `exact`: whether nothing is left in the model that depends on the first one's data.
    """

    freed: int
    kept: int
    used_by: tuple[str, ...]
    names: tuple[str, ...] = ()
    exact: bool = False


def without(store: SubnetStore, numbers: Collection[int]) -> SubnetStore:
    """A copy of the store without the tasks of these numbers; the store itself stays as it is."""
    out = copied(store)
    if numbers:
        remove_(out, numbers)
        out.drop_caches_()
    return out


def copied(store: SubnetStore) -> SubnetStore:
    """A copy of the store, to which tasks can be added, or taken away from it, by itself.

    The copy shares what the store keeps of decoded tasks and written entries.
    """
    out = copy.copy(store)
    out.subnets, out.nameless = dict(store.subnets), dict(store.nameless)
    out.banks = [copy.copy(bank) for bank in store.banks]
    return out


def become_(store: SubnetStore, other: SubnetStore) -> None:
    """Put what a copy of the store has come to in its place, with what was decoded of it."""
    store.banks, store.nameless, store.subnets = other.banks, other.nameless, other.subnets
    store.next_number = other.next_number
    store._by_number, store._decoded = other._by_number, other._decoded


def remove_(store: SubnetStore, numbers: Iterable[int]) -> Removal:
    """Remove the tasks of these numbers; every other task decodes to the same bits.

    A removed task's weights that other tasks use stay, as an entry without a name at the same place
    in the order: a weight belongs to the first mask of its bank that holds it. Entries that earlier
    removals left shrink in the same way. Masks that were coded against a mask that changed are
    coded anew. Empty banks stay, so that no bank changes its number. But where an isolated task is
    removed, empty banks at the end go too: whether it had one depends on its data.
    """
    gone = set(numbers)
    names = {s.name for s in store.subnets.values() if s.number in gone}
    is_isolated = any(store.subnets[name].isolated for name in names)
    before = _referring_past(store.entries(), gone)
    needed = _referred_to(before, gone)
    freed = kept = 0
    users: set[int] = set()
    entries: dict[int, Subnet] = {}
    kept_blocks: dict[int, torch.Tensor] = {}  # of banks that change
    for number in [NO_BANK, *range(len(store.banks))]:
        members = [s for s in before if s.bank == number]
        whole = [s for s in members if _stays(s, gone) or s.number in needed]
        used = union(whole, store.layout)
        # Without a bank nothing is shared: all weights under a mask are the subnet's own.
        owned, shared = np.zeros_like(used), np.zeros_like(used) if number == NO_BANK else used
        pairs: list[tuple[Subnet, Subnet | None]] = []  # entries as they were, and what stays
        for subnet in members:
            bits = subnet.packed_mask.bits
            new = bits if number == NO_BANK else bits & ~owned
            owned |= bits
            left: Subnet | None = subnet
            if not _stays(subnet, gone):
                left = _left_of(store, subnet, new, shared, is_needed=subnet.number in needed)
            pairs.append((subnet, left))
            if subnet.number in gone:
                num = 0 if left is None else left.num_new
                kept, freed = kept + num, freed + subnet.num_new - num
                users |= {s.number for s in whole if np.any(s.packed_mask.bits & new & shared)}
        entries |= {s.number: s for s in _with_coded_masks(store, pairs)}
        if number != NO_BANK and any(_differ(subnet, left) for subnet, left in pairs):
            kept_blocks[number] = torch.from_numpy(unpack_mask(used, store.layout.num_blocks))
    staying = {n: s.number for n, s in store.subnets.items() if s.number not in gone}
    chains = {
        name: {s.number for s in entries[number].chain(entries)} for name, number in staying.items()
    }
    for number, blocks in kept_blocks.items():
        store.banks[number].keep_(blocks)
    store.subnets = {n: _without_names(entries[number], names) for n, number in staying.items()}
    store.nameless = {n: s for n, s in sorted(entries.items()) if not s.name}
    if is_isolated:
        del store.banks[1 + max((s.bank for s in entries.values()), default=NO_BANK) :]
    used_by = tuple(n for n, chain in chains.items() if chain & (users | gone))
    return Removal(freed, kept, used_by)


def _left_of(
    store: SubnetStore, subnet: Subnet, new: np.ndarray, shared: np.ndarray, *, is_needed: bool
) -> Subnet | None:
    """What stays of a removed task's weights: those that other tasks use; None if there are none.

    - `new`: the blocks whose values the subnet has, at one bit per block.
    - `shared`: the blocks of its bank that other tasks use.
    - `is_needed`: whether another task adds its own weights to all of the subnet's.
    """
    if is_needed and (subnet.rank or not subnet.packed_mask.bits.any()):
        return _weights(subnet)
    return _nameless(store, subnet, new, subnet.packed_mask.bits if is_needed else new & shared)


def _differ(subnet: Subnet, left: Subnet | None) -> bool:
    """Whether less than its whole mask stays of a subnet."""
    return left is None or not np.array_equal(left.packed_mask.bits, subnet.packed_mask.bits)


def _with_coded_masks(
    store: SubnetStore, pairs: Iterable[tuple[Subnet, Subnet | None]]
) -> list[Subnet]:
    """What stays of a bank's entries, with masks coded anew from the first that changed on.

    - `pairs`: entries as they were, and what stays of each.
    """
    out: list[Subnet] = []
    owned, changed = union((), store.layout), False
    for subnet, left in pairs:
        changed |= _differ(subnet, left)
        if left is not None:
            if changed or left.coded_mask is None:
                left = replace(left, coded_mask=store.coded_mask(left, out, owned))
            out.append(left)
            owned = owned | left.packed_mask.bits
    return out


def _referring_past(entries: Iterable[Subnet], gone: set[int]) -> list[Subnet]:
    """The entries, none of which refers to a task that goes and has no weights of its own.

    Such a task's weights are those that it refers to, so its successors refer to these instead.
    Entries without a name do, too: a later task may need one of them.
    """
    out: list[Subnet] = []
    past: dict[int, int | None] = {}
    for subnet in entries:  # in order, so that what a reference leads to is known
        reference = subnet.reference
        if reference in past:
            subnet = replace(subnet, reference=past[reference])
        if subnet.number in gone and subnet.adds_nothing:
            past[subnet.number] = subnet.reference
        out.append(subnet)
    return out


def union(subnets: Iterable[Subnet], layout: Layout) -> np.ndarray:
    """What any of some masks holds, at one bit per block."""
    found = np.zeros(-(-layout.num_blocks // 8), np.uint8)
    for subnet in subnets:
        found |= subnet.packed_mask.bits
    return found


def _stays(subnet: Subnet, gone: set[int]) -> bool:
    """Whether it is a task that is not removed."""
    return bool(subnet.name) and subnet.number not in gone


def _referred_to(entries: list[Subnet], gone: set[int]) -> set[int]:
    """The numbers of all entries that a task which stays adds its own weights to."""
    by_number = {s.number: s for s in entries}
    staying = (s for s in entries if _stays(s, gone))
    return {entry.number for s in staying for entry in s.chain(by_number)[1:]}


def _nameless(
    store: SubnetStore, subnet: Subnet, new: np.ndarray, left: np.ndarray
) -> Subnet | None:
    """What is left of a removed task: the blocks `left` of its mask, with its own weights there.

    `new` are the blocks whose values the subnet has; both at one bit per block.
    """
    if not left.any():
        return None
    layout = store.layout
    had, has = (
        layout.expand(torch.from_numpy(unpack_mask(bits, layout.num_blocks)))
        for bits in (new, left & new)
    )
    segments = layout.segments
    if len(subnet.own) == 1:
        segments = ((0, layout.num_weights),)
    own = tuple(
        _chosen(coded, has[i:j][had[i:j]])
        for coded, (i, j) in zip(subnet.own, segments, strict=True)
    )
    return replace(_weights(subnet), packed_mask=PackedMask(left, layout.num_blocks), own=own,
                   coded_mask=None)  # fmt: skip


def _weights(subnet: Subnet) -> Subnet:
    """A subnet's mask and own weights alone, without a name."""
    return Subnet(
        "",
        (),
        Normalization(),
        bank=subnet.bank,
        packed_mask=subnet.packed_mask,
        bits=subnet.bits,
        own=subnet.own,
        number=subnet.number,
        coded_mask=subnet.coded_mask,
        reference=subnet.reference,
        rank=subnet.rank,
    )


def _chosen(coded: CodebookTensor, which: torch.Tensor) -> CodebookTensor:
    """Some of the values, with no centroid that none of them has."""
    if coded.codes is None:
        return CodebookTensor(coded.values[which])
    codes = coded.codes[which]
    used, places = torch.unique(codes, return_inverse=True)
    if len(codes) <= len(used):
        return CodebookTensor(coded.values[codes.long()])
    return CodebookTensor(coded.values[used.long()], places.to(coded.codes.dtype), coded.bits)


def _without_names(subnet: Subnet, names: set[str]) -> Subnet:
    """The subnet with a decision that does not mention the removed tasks of these names."""
    decision = subnet.decision
    if decision is None or decision.nearest not in names:
        return subnet
    reason = "the task most alike has been removed"
    return replace(subnet, decision=replace(decision, reason=reason, nearest=None))
