"""The ledger: what a model weighs, line by line, and the three views of its size.

- **file**: bytes on disk over 4·|Θ|, the number that counts.
- **paper**: codes + codebooks + masks (+ samples where kept) over 32·|Θ|, heads left out. The
  paper's own formula counts prefix and bank bits per weight and masks uncoded; ours has no prefix,
  because a weight's owner is the first task of the bank whose mask holds it.
- **worked example**: the arithmetic of the paper's case study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Entry:
    """The bits that one task takes, by what they are for."""

    codes: float = 0
    codebooks: float = 0
    masks: float = 0
    heads: float = 0
    task_params: float = 0
    memory: float = 0
    routing: float = 0
    metadata: float = 0

    @property
    def total(self) -> float:
        """All bits of the entry."""
        return sum(getattr(self, f.name) for f in fields(self))

    def __add__(self, other: Entry) -> Entry:
        return Entry(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Ledger:
    """The size of a model in bits: one entry per task, and what belongs to no single task.

    - `tasks`: an entry per task, in the order of learning; `common`: the rest.
    - `num_weights`: the shared weights |Θ|.
    - `new_weights`, `bits`: per task, the weights it was the first to own and their width.
    - `raw_mask_bits`: what all masks take at one bit per block.
    - `samples_kept`: whether `memory` holds samples, which the paper counts, or statistics.
    - `masks_from`: "coded" where masks are counted by their bytes; models without masks say
      "entropy".
    - `file_bytes`: the size of the saved file, where there is one.
    """

    tasks: dict[str, Entry]
    common: Entry
    num_weights: int
    new_weights: tuple[int, ...]
    bits: tuple[int, ...]
    raw_mask_bits: int
    samples_kept: bool
    masks_from: str = "entropy"
    file_bytes: int | None = None

    @property
    def total(self) -> Entry:
        """The sum of all entries."""
        return sum(self.tasks.values(), self.common)

    @property
    def paper(self) -> float:
        """The paper view: codes, codebooks, masks (and samples) over 32 bits per shared weight."""
        t = self.total
        samples = t.memory if self.samples_kept else 0
        return (t.codes + t.codebooks + t.masks + samples) / (32 * self.num_weights)

    @property
    def file(self) -> float | None:
        """The file view: bytes on disk over 4 bytes per shared weight; None before saving."""
        return None if self.file_bytes is None else self.file_bytes / (4 * self.num_weights)

    @property
    def worked_example(self) -> float:
        """The case study's view over 32 bits per shared weight."""
        bits = worked_example_bits(list(zip(self.new_weights, self.bits, strict=True)))
        return bits / (32 * self.num_weights)

    def as_dict(self) -> dict[str, object]:
        """The ledger as plain data for `result.json`."""
        return {
            "unit": "bits",
            "masks_from": self.masks_from,
            "tasks": {n: asdict(e) | {"total": e.total} for n, e in self.tasks.items()},
            "common": asdict(self.common),
            "total": asdict(self.total) | {"total": self.total.total},
            "raw_mask_bits": self.raw_mask_bits,
            "num_weights": self.num_weights,
            "paper": self.paper,
            "file": self.file,
            "file_bytes": self.file_bytes,
            "worked_example": self.worked_example,
        }


def worked_example_bits(tasks: Sequence[tuple[int, int]]) -> int:
    """The paper's case study: Σ new·ψ + 2^ψ·(32 + ψ) over (new weights, bit-width) per task.

    >>> worked_example_bits([(8, 2)]), worked_example_bits([(8, 2), (2, 1)])
    (152, 220)
    """
    return sum(
        new * bits + (2**bits * (32 + bits) if bits < 32 else 0) for new, bits in tasks if new > 0
    )
