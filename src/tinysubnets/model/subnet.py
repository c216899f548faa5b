"""A subnet: what one learned task consists of, and the coded values it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.coding.bits import pack_mask, unpack_mask
from tinysubnets.coding.grids import Grid, check_grid, grid_values, round_to_grid
from tinysubnets.errors import TaskError
from tinysubnets.nn.codebook import assign, fit, round_centroids
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors
from tinysubnets.tasks.checks import (
    channels_first,
    check_numbers,
    layout_hint,
    picture_pixels,
)
from tinysubnets.tasks.divergence import InputStatistics, divergences, statistics_of
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.preprocessing import MAX_VALUES, Preprocessing
from tinysubnets.tasks.rotations import ROTATIONS
from tinysubnets.tasks.task import Label


@dataclass(frozen=True)
class CodebookTensor:
    """Values as they are stored: codes into a few centroids, or the values themselves.

    `values` holds the centroids, or without `codes` the values in order. They take 16 bits each
    where all of them are exact in float16, else 32; values on a `grid` take as many as it needs,
    see `coding.grids`. Codes of 0 bits stand for one value everywhere; see `constant`.
    """

    values: Tensor
    codes: Tensor | None = None
    bits: int = 0
    grid: Grid | None = None

    def decode(self) -> Tensor:
        """The values that the codes stand for, as a float32 vector."""
        if self.codes is None:
            return self.values
        return torch.index_select(self.values, 0, self.codes.int())

    def __len__(self) -> int:
        return len(self.values) if self.codes is None else len(self.codes)

    @property
    def value_bits(self) -> int:
        """16 where every value survives float16 unchanged, else 32."""
        return 16 if torch.equal(self.values.half().float(), self.values) else 32


def code(values: Tensor, bits: int, *, centroids: Tensor | None = None) -> CodebookTensor:
    """Values coded with `bits` bits each: 32 keeps them, 16 rounds them, fewer use a codebook.

    Where there are no more values than centroids, the values themselves are kept.
    """
    values = values.detach().float().cpu()
    if bits >= 32:
        return CodebookTensor(values.clone())
    if bits >= 16 or len(values) <= 2**bits:
        return CodebookTensor(round_centroids(values) if bits < 16 else _halved(values))
    if centroids is None:
        centroids = fit(values, 2**bits)
    centroids = round_centroids(centroids)
    return CodebookTensor(centroids, assign(values, centroids).to(torch.uint8), bits)


def rounded(values: Tensor, grid: Grid) -> CodebookTensor:
    """Finite values rounded to the nearest numbers of a grid."""
    check_grid(grid)
    numbers = values.detach().float().cpu().numpy()
    return CodebookTensor(
        torch.from_numpy(grid_values(round_to_grid(numbers, grid), grid)), grid=grid
    )


def constant(value: float, count: int) -> CodebookTensor:
    """A task-specific parameter that is one number everywhere; a file keeps no values of it."""
    # Expanded, so that no count takes memory before it is decoded.
    codes = torch.zeros(1, dtype=torch.uint8).expand(count)
    return CodebookTensor(torch.tensor([value], dtype=torch.float32), codes, 0)


def _halved(values: Tensor) -> Tensor:
    """Values rounded to float16, or unchanged where one of them would overflow."""
    halves = values.half().float()
    return halves if bool(torch.isfinite(halves).all()) else values.clone()


@dataclass(frozen=True)
class Sample:
    """What one raw input of a task looks like: its type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, batch: Tensor) -> Sample | None:
        """The type and shape of the samples in a batch; None where no file may record so large."""
        made = cls(batch.dtype, tuple(batch.shape[1:]))
        return None if made.is_large else made

    @property
    def is_large(self) -> bool:
        """Whether a sample has more values than a reader accepts a file to describe."""
        return math.prod(self.shape) > MAX_VALUES


@dataclass(frozen=True)
class BankDecision:
    """Which bank a task went to, and why.

    - `bank`: its number.
    - `reason`: in words; a task in it is named as `repr` writes its name.
    - `nearest`: the name of the earlier task whose inputs were most alike, where there is one.
    """

    bank: int
    reason: str
    nearest: str | None = None


@dataclass(frozen=True)
class CodedMask:
    """A mask as it is stored: bytes that code its difference from a reference mask.

    `reference` is one of the constants below, or `FIRST_MEMBER` plus the place of an earlier entry
    among those of the bank. A reference made of scores names its seed and, per tensor, the least
    magnitude of a score that the reference mask holds; see `mask_references`.
    """

    reference: int
    data: bytes
    seed: int = 0
    magnitudes: tuple[int, ...] = ()


NO_REFERENCE, OWNED, SCORES, FREE_SCORES, FIRST_MEMBER = range(5)
NO_BANK = -1  # of a subnet that shares no values: its codes are all there is under its mask
BASE = -1  # as a reference: the pretrained weights that the model names
MAX_CHAIN = 16  # subnets that one adds its own weights to, one behind the other


def task_number(reference: int | None) -> int | None:
    """The number of the subnet that a reference names; None for the base, and for no reference."""
    return None if reference == BASE else reference


@dataclass(frozen=True)
class PackedMask:
    """Booleans at one bit each, so that the masks of many tasks fit in memory.

    - `bits`: uint8, the first boolean in the lowest bit of the first byte.
    - `num`: how many booleans there are.
    """

    bits: np.ndarray
    num: int

    @classmethod
    def of(cls, mask: Tensor) -> PackedMask:
        """The packed form of a boolean vector."""
        if not bool(mask.any()):
            return cls.none(len(mask))
        return cls(pack_mask(mask.detach().cpu().numpy()), len(mask))

    @classmethod
    def none(cls, num: int) -> PackedMask:
        """So many booleans that are all false; they take no memory."""
        return cls(np.broadcast_to(np.uint8(0), -(-num // 8)), num)

    def unpack(self) -> Tensor:
        """The boolean vector on the CPU, made anew."""
        return torch.from_numpy(unpack_mask(self.bits, self.num))


@dataclass(frozen=True)
class Subnet:
    """One learned task: its bank, mask, own coded weights, task-specific parameters and memory.

    A subnet without a name is what is left of a removed task: a mask, and the weights that the task
    owned and others still use.

    - `classes`: the user's own labels, in the order of the logits.
    - `bank`: where the weights under its mask stand; `NO_BANK` where all of them are its own.
    - `packed_mask`: one bit per block of shared weights: whether the task uses it.
    - `bits`: the width of the codes of `own`; 32 where values stand as themselves.
    - `own`: the weights that this task was the first of its bank to use, in the order of the flat
      vector; one entry per shared tensor, or one for all.
    - `task_params`, `shapes`: the task-specific parameters, flat, and their shapes.
    - `memory`: what later tasks are compared with: statistics of the inputs, samples, or nothing.
    - `decision`: why the task went to its bank.
    - `valid_accuracy`: on validation data, measured as stored; NaN where unknown.
    - `owned_before_pruning`: the share of the bank that tasks owned before post-pruning.
    - `coded_mask`: the mask as the file has it; made once, when the store takes the subnet.
    - `sample`: what raw inputs look like.
    - `number`: counts tasks in the order of learning and is never used twice; the store gives it.
    - `isolated`: whether it has its bank alone and nothing of it entered a later task.
    - `preprocessing`: how an image becomes a raw input, as plain data; None where unknown.
    - `routing`: what tells the task's inputs from others without its name: float32 vectors by name.
    - `reference`: the number of an earlier subnet, or `BASE`: what the mask holds is added to the
      decoded weights of that one. None where the weights are what the mask holds, and 0 elsewhere.
    - `adds_to_base`: whether task-specific parameters that the base has too are added to its own.
    - `rank`: above 0 there is no bank, the mask is empty, and `own` has the factors of a difference
      of that rank to what `reference` names; see `nn.low_rank`.
    - `rotations`: 0 where the head has an output per class. Else it has one per class and rotation
      of an image, and a known task is answered by so many of them, 1 or 4; see `tasks.rotations`.
    """

    name: str
    classes: tuple[Label, ...]
    normalization: Normalization
    bank: int
    packed_mask: PackedMask
    bits: int
    own: tuple[CodebookTensor, ...]
    task_params: Mapping[str, CodebookTensor] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    memory: InputStatistics | Tensor | None = None
    decision: BankDecision | None = None
    valid_accuracy: float = float("nan")
    owned_before_pruning: float = float("nan")
    coded_mask: CodedMask | None = None
    sample: Sample | None = None
    number: int = -1
    isolated: bool = False
    preprocessing: Mapping[str, Any] | None = None
    routing: Mapping[str, Tensor] = field(default_factory=dict)
    reference: int | None = None
    adds_to_base: bool = False
    rank: int = 0
    rotations: int = 0

    def __repr__(self) -> str:
        return (
            f"Subnet({self.name!r}, {len(self.classes)} classes, bank {self.bank}, "
            f"{self.bits} bits, {self.num_new:,} new weights, "
            f"valid_accuracy={self.valid_accuracy:.4f})"
        )

    @property
    def mask(self) -> Tensor:
        """Which blocks of shared weights the task uses, bool [num_blocks]; unpacked anew."""
        return self.packed_mask.unpack()

    @property
    def num_outputs(self) -> int:
        """How many outputs the head has."""
        return len(self.classes) * self.num_turns

    @property
    def num_turns(self) -> int:
        """In how many rotations its network sees an input whose task is not told."""
        return ROTATIONS if self.rotations else 1

    @property
    def num_new(self) -> int:
        """How many weights this task has of its own."""
        return sum(len(c) for c in self.own)

    def pixels(self, picture: Any) -> np.ndarray:
        """A picture of Pillow as one raw input: preprocessed as recorded, else as it is."""
        if self.preprocessing is None:
            return picture_pixels(picture)
        done = Preprocessing.from_dict(self.preprocessing).for_any_size().apply(picture)
        fits = self.sample is not None and done.size == math.prod(self.sample.shape)
        return done.reshape(self.sample.shape) if fits and self.sample is not None else done

    @property
    def adds_nothing(self) -> bool:
        """Whether it has no bank and an empty mask: its weights are those that it refers to."""
        return self.bank == NO_BANK and self.num_new == 0

    @property
    def uses_base(self) -> bool:
        """Whether it is added to the base, or uses task-specific parameters of it."""
        return self.reference == BASE or self.adds_to_base or bool(self.from_base())

    @property
    def has_mask(self) -> bool:
        """Whether a mask says where its own weights are; others may be coded against it."""
        return not self.adds_nothing and not self.rank

    def low_rank_sum(self, weights: Tensor, layout: Layout) -> Tensor:
        """The flat weights that it refers to, and what its factors add to them."""
        return Factors(layout, self.rank).sum(weights, torch.cat([c.decode() for c in self.own]))

    def check_inputs(self, inputs: Tensor) -> None:
        """Refuse a batch of raw inputs that a network would take for something else."""
        check_numbers(self.name, inputs)
        given, hint = tuple(inputs.shape), self.layout_hint(inputs)
        sample = None if self.sample is None else self.sample.shape
        # These a network may well take, and answer nonsense; others it refuses itself.
        known = (given, channels_first(given), channels_first(given[1:]))
        if hint and sample and sample in known:
            raise TaskError(
                f"the network of task {self.name!r} takes inputs of shape (samples, "
                f"{', '.join(map(str, sample))}), not {given}. {hint}"
            )
        self.normalization.check(self.name, inputs)

    def layout_hint(self, inputs: Tensor) -> str:
        """What to do about a batch of another shape than was learned from, where that is known."""
        return "" if self.sample is None else layout_hint(tuple(inputs.shape), self.sample.shape)

    @contextmanager
    def explained(self, inputs: Tensor) -> Iterator[None]:
        """Turn an error of the network inside into one that names the task and its raw inputs."""
        try:
            yield
        except (RuntimeError, IndexError, ValueError) as error:
            raise TaskError(
                f"the network of task {self.name!r} cannot take {inputs.dtype} inputs of shape "
                f"{tuple(inputs.shape)}: {error}. {self.layout_hint(inputs)}".rstrip()
            ) from error

    def check_scale(self, inputs: Tensor) -> None:
        """Refuse inputs scaled to fractions of 1 where the task was learned from raw pixels."""
        if self.sample is not None:
            self.normalization.check_scale(self.name, inputs, self.sample.dtype)

    def task_tensors(self) -> dict[str, Tensor]:
        """The task-specific parameters as the network takes them, by name."""
        return {n: c.decode().reshape(self.shapes[n]) for n, c in self.task_params.items()}

    def chain(self, by_number: Mapping[int, Subnet]) -> list[Subnet]:
        """This subnet, the one it adds its weights to, and so on; the base is not among them.

        - `by_number`: all subnets, those without a name too.
        """
        chain = [self]
        while (number := task_number(chain[-1].reference)) is not None:
            chain.append(by_number[number])
        return chain

    def from_base(self) -> tuple[str, ...]:
        """The task-specific parameters that are the base's own."""
        return tuple(n for n in self.shapes if n not in self.task_params)


def distances(
    memory: InputStatistics | Tensor, subnets: Iterable[Subnet], seed: int
) -> dict[str, float]:
    """The divergence of a task's inputs from those of each subnet that has a memory, by name.

    - `memory`: that of the task.
    - `seed`: the learner's, which draws the statistics of samples.
    """
    kept = {s.name: statistics_of(s.memory, seed) for s in subnets if s.memory is not None}
    found = divergences(statistics_of(memory, seed), list(kept.values()))
    return dict(zip(kept, found, strict=True))
