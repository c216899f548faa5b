"""The mask section of a task, and which masks have to be read to get at one of them."""

from __future__ import annotations

from collections.abc import Iterator

from tinysubnets.artifact.container import ModelFile
from tinysubnets.artifact.manifest import Manifest
from tinysubnets.artifact.wire import Reader, Writer
from tinysubnets.errors import DamageError
from tinysubnets.mask_references import MAX_MAGNITUDE
from tinysubnets.subnet import FIRST_MEMBER, FREE_SCORES, SCORES, CodedMask

MAX_REFERENCE = 1 << 20


def write_coded_mask(coded: CodedMask) -> bytes:
    """The section: the reference, what regenerates the reference, and the code."""
    out = Writer()
    out.varint(coded.reference)
    if coded.reference in (SCORES, FREE_SCORES):
        out.raw(coded.seed.to_bytes(8, "little"))
        for magnitude in coded.magnitudes:
            out.raw(magnitude.to_bytes(4, "little"))
    out.raw(coded.data)
    return out.bytes()


def read_coded_mask(data: Reader, num_tensors: int) -> CodedMask:
    """A mask that is still coded."""
    kind = data.varint(MAX_REFERENCE)
    if kind not in (SCORES, FREE_SCORES):
        return CodedMask(kind, data.rest())
    seed = int.from_bytes(data.raw(8), "little")
    magnitudes = tuple(int.from_bytes(data.raw(4), "little") for _ in range(num_tensors))
    if max(magnitudes) > MAX_MAGNITUDE + 1:
        raise data.damage("a score larger than any there is.")
    return CodedMask(kind, data.rest(), seed, magnitudes)


class Plan:
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
        self._last_use: dict[int, int] = {}
        if only is None:
            return
        target = self.names.index(only)
        group = [n for n in banks[tasks[target].bank] if n <= target]
        needed = {target}
        for number in reversed(group):
            if number in needed or file.size("codes", number):
                needed.add(number)
                self._last_use.setdefault(number, number)
                with_reference = _reference(file, number) - FIRST_MEMBER
                if 0 <= with_reference < self.members[number]:
                    needed.add(group[with_reference])
                    self._last_use.setdefault(group[with_reference], number)
        self.numbers = sorted(needed)

    def is_wanted(self, number: int) -> bool:
        """Whether the task itself is asked for, not only its mask and weights."""
        return self.only is None or self.names[number] == self.only

    def done_with(self, number: int) -> Iterator[int]:
        """The members of the bank whose masks nobody needs after this task."""
        for task, last in self._last_use.items():
            if last == number:
                yield self.members[task]


def _reference(file: ModelFile, number: int) -> int:
    """The reference of a task's mask, read without its hash: a wrong one is found out later."""
    try:
        return Reader(file.peek("masks", number, 4), "mask").varint(MAX_REFERENCE)
    except DamageError:
        return 0
