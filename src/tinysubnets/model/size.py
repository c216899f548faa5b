"""The ledger: what a model weighs, line by line, and the four views of its size.

- **file**: bytes on disk over 4·|Θ|, the number that counts.
- **paper**: codes + codebooks + masks + task-specific parameters (+ samples where kept) over
  32·|Θ|, heads left out, as in the paper, whose networks have no other such parameters.
- **worked example**: the arithmetic of the paper's case study.
- **printed**: the paper's CAP_t by its letter. It has one codebook per layer for all tasks, and one
  bit of mask for each weight in use, whatever the number of tasks; so no file can be as small.
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
    - `num_layers`: how many tensors of shared weights there are, |L|.
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
    num_layers: int = 1
    file_bytes: int | None = None

    @property
    def total(self) -> Entry:
        """The sum of all entries."""
        return sum(self.tasks.values(), self.common)

    @property
    def paper(self) -> float:
        """The paper view: all but heads, routing and metadata over 32 bits per shared weight.

        Of task memory, samples count, as in the paper, and statistics do not.
        """
        t = self.total
        samples = t.memory if self.samples_kept else 0
        counted = t.codes + t.codebooks + t.masks + t.task_params + samples
        return counted / (32 * self.num_weights)

    @property
    def file(self) -> float | None:
        """The file view: bytes on disk over 4 bytes per shared weight; None before saving."""
        return None if self.file_bytes is None else self.file_bytes / (4 * self.num_weights)

    @property
    def worked_example(self) -> float:
        """The case study's view over 32 bits per shared weight."""
        bits = worked_example_bits(list(zip(self.new_weights, self.bits, strict=True)))
        return bits / (32 * self.num_weights)

    @property
    def printed(self) -> float:
        """The paper's CAP_t by its letter over 32 bits per shared weight."""
        tasks = list(zip(self.new_weights, self.bits, strict=True))
        return printed_bits(tasks, self.num_layers) / (32 * self.num_weights)

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
            "printed": self.printed,
        }


def worked_example_bits(tasks: Sequence[tuple[int, int]]) -> int:
    """The paper's case study: Σ new·ψ + 2^ψ·(32 + ψ) over (new weights, bit-width) per task.

    >>> worked_example_bits([(8, 2)]), worked_example_bits([(8, 2), (2, 1)])
    (152, 220)
    """
    return sum(
        new * bits + (2**bits * (32 + bits) if bits < 32 else 0) for new, bits in tasks if new > 0
    )


def printed_bits(tasks: Sequence[tuple[int, int]], num_layers: int) -> int:
    """The paper's CAP_t: Σ_i (1 − Υ_i)·|θ_i|·b + |L|·2^b·(32 + b) + Σ_i (1 − Υ_i)·|M_i|.

    Over (new weights, bit-width b) per task: together they are the weights in use. Where tasks
    have different widths, each weight has its own and the codebooks the largest. 32 bits are no
    codes and have no codebook.

    >>> printed_bits([(8, 2)], 2)  # the first step of the case study
    296
    """
    widths = [bits for new, bits in tasks if 0 < new and bits < 32]
    codebooks = num_layers * 2 ** max(widths) * (32 + max(widths)) if widths else 0
    return sum(new * bits for new, bits in tasks) + codebooks + sum(new for new, _ in tasks)
