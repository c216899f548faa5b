"""Prediction without the task's name: how strongly each task claims an input, and which one wins.

    found = store.predict(inputs)      # labels, and the task each of them came from
    routed = store.route(inputs)       # the scores of all tasks

A task's score for an input is a weighted sum of parts, each a logarithm of how likely its own
inputs look so:

- energy: log Σ exp(logits) of the task's network, standardized by its own validation data;
- inputs: the density of the raw input, by a Gaussian over a seeded projection to few dimensions
  that all tasks share, so that one product serves all of them; if wanted with a mean and deviations
  for each class, and the lowest frequencies of images among the dimensions;
- base: where tasks have a pretrained base, the same of what its head would see, with a mean for
  each class; one pass of the base serves all tasks;
- features: the same of what the task's own head sees; standardized;
- rotation: where images were learned in rotations, how surely the task's network tells how the
  image is turned; standardized.

What is kept for this with a task, `Subnet.routing`, is made when it is learned and never changes:
from its own data, and from what the networks of earlier tasks say to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import seeds
from tinysubnets.errors import SettingError, TaskError, unknown
from tinysubnets.model.subnet import Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.checks import Label, Pixels, as_tensor, is_tokens
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.rotations import ROTATIONS, joined, rotation_evidence, turned
from tinysubnets.tasks.sources import batches, is_dataset
from tinysubnets.tasks.task import Split, Task
from tinysubnets.training.precision import arithmetic

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore

# The weight of each part where no earlier task has told a better one. Log-densities of dependent
# dimensions say too much, so that those of inputs and features count for less than they are.
PARTS = {"energy": 1.0, "inputs": 0.3, "base": 0.3, "features": 0.3, "rotation": 1.0}
DENSITIES = ("inputs", "base", "features")  # parts that are the density of a Gaussian
COMMON = ("inputs", "base")  # parts in coordinates that all tasks share: comparable as they are
RULES = ("energy", "entropy")  # beside what tasks keep: these need nothing that is kept
FIT_SAMPLES, VALID_SAMPLES = 5000, 2000  # training data of a Gaussian; validation data
CALIBRATION_SAMPLES, CALIBRATION_TASKS = 1000, 8  # what weights are fitted to, and against
PRIOR = 0.01  # how strongly fitted weights are held, in nats per squared logarithm
SHRINKAGE = 0.02  # of a covariance, to the mean of its variances
STEP = 2.0**-5  # that logarithms and means, in deviations, are rounded to
CLASS_STEP = 2.0**-3  # the same where they are many: those of classes
ROW_STEPS = 4  # at least so many to the typical entry below a whitening matrix's diagonal
BITS = 5  # of class means
SPREAD_SAMPLES = 10  # so many samples speak against a class that spreads unlike the others
BATCH = 500  # samples in a pass
CLASS_VALUES = 1 << 24  # of differences to classes' means that are computed at once
# Of streamed inputs that all tasks see before more are read: they wait in the host's memory,
# whatever the device has for decoded tasks.
CHUNK_BYTES = 48 << 20
COPIED_BYTES = 96 << 20  # of raw inputs that are brought to the device in one piece
MAX_DIMS = 256


@dataclass(frozen=True)
class RoutingSettings:
    """What is kept with a task to recognize its inputs without its name.

    - `parts`: what scores are made of, of "energy", "inputs", "base" (with a pretrained base),
      "features" and "rotation" (where rotations are learned); empty keeps nothing.
    - `dims`: the dimensions of the projections of inputs and features: bytes grow with its square.
    - `frequencies`: so many dimensions of inputs are the lowest frequencies where they are images,
      the others of the projection.
    - `per_class`: whether the density of inputs has a mean and deviations for each class: two more
      numbers per class and dimension.
    - `calibrate`: whether the weights of the parts are fitted to the task's validation data against
      the scores that earlier tasks have for them.
    - `unknown_share`: the share of a task's own inputs that may be taken for unknown ones.
    - `rotations`: whether images are learned in four rotations, each of them a class apart: four
      times the outputs and the steps of training. Where the task is told, "one-pass" answers by the
      upright image alone, "four-pass" by the mean over an image's rotations. Where it is not told,
      four passes answer with both. "none" learns images as they are.
    """

    parts: tuple[Literal["energy", "inputs", "base", "features", "rotation"], ...] = (
        "energy",
        "inputs",
    )
    dims: int = 24
    frequencies: int = 0
    per_class: bool = False
    calibrate: bool = True
    unknown_share: float = 0.05
    rotations: Literal["none", "one-pass", "four-pass"] = "none"

    def __post_init__(self) -> None:
        if len(set(self.parts)) != len(self.parts):
            raise SettingError(f"routing.parts = {self.parts!r} is not allowed; name each once.")
        if not 1 <= self.dims <= MAX_DIMS:
            raise SettingError(
                f"routing.dims = {self.dims!r} is not allowed; give 1 to {MAX_DIMS}."
            )
        if not 0 <= self.frequencies <= self.dims:
            raise SettingError(
                f"routing.frequencies = {self.frequencies!r} is not allowed; give 0 to "
                f"{self.dims}, which is routing.dims."
            )
        if not 0 <= self.unknown_share < 1:
            raise SettingError(
                f"routing.unknown_share = {self.unknown_share!r} is not allowed; give a share of "
                "at least 0, below 1."
            )

    @property
    def passes(self) -> int:
        """How many rotations of an image answer for a task that is told; 0 learns none."""
        return {"none": 0, "one-pass": 1, "four-pass": ROTATIONS}[self.rotations]


# What a user gets.


@dataclass(frozen=True, eq=False)
class Routing:
    """Which task claims each input.

    - `candidates`: the tasks that could, in the order of learning: the columns of `scores`.
    - `scores`: float32 [samples, candidates], larger is stronger; -∞ where a task was not asked.
    - `typicality`: float32 [samples]: how typical an input is of the task that claims it most; 0 is
      the mean of its own inputs, in their standard deviations. NaN where nothing is kept for it.
    - `unknown`: bool [samples]: no task claims the input; the strongest claim is one that fewer of
      the task's own inputs have than its `unknown_share`.
    - `rule`: what scores are made of.
    """

    candidates: tuple[str, ...]
    scores: np.ndarray
    typicality: np.ndarray
    unknown: np.ndarray
    rule: str

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def chosen(self) -> np.ndarray:
        """The place among the candidates of each input's task, int64 [samples]."""
        return self.scores.argmax(1)

    @property
    def tasks(self) -> np.ndarray:
        """The name of each input's task, unknown or not."""
        return np.array(self.candidates)[self.chosen]

    @property
    def confidence(self) -> np.ndarray:
        """The probability that it is this one of the candidates, float32 [samples]."""
        powers = np.exp(self.scores - self.scores.max(1, keepdims=True))
        return (1 / powers.sum(1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Labels for inputs whose task nobody told, and where each of them came from.

    - `labels`: the user's own labels, those of the task that claims the input most, unknown or not.
    - `probability`: that of the label among the classes of its task, float32 [samples].
    - `routing`: the scores of all tasks.
    """

    labels: np.ndarray
    probability: np.ndarray
    routing: Routing

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def tasks(self) -> np.ndarray:
        """The name of the task that each label came from."""
        return self.routing.tasks

    @property
    def confidence(self) -> np.ndarray:
        """The probability that it is this task, float32 [samples]."""
        return self.routing.confidence

    @property
    def unknown(self) -> np.ndarray:
        """Where no task claims the input, bool [samples]."""
        return self.routing.unknown

    def __str__(self) -> str:
        """A line for each of the first inputs."""
        rows = zip(self.labels, self.tasks, self.confidence, self.unknown, strict=True)
        shown = [
            "unknown" if missing else f"{label} ({task}, {share:.2f})"
            for label, task, share, missing in list(rows)[:10]
        ]
        return "\n".join([*shown, *([f"… {len(self)} in all"] if len(self) > 10 else [])])


# What is kept with a task.


@dataclass(frozen=True)
class Gaussian:
    """Normal distributions, in the coordinates in which the covariance they share is white.

    - `whiten`: lower-triangular [d, d]; it takes points to coordinates of variance 1.
    - `means`: [classes, d], there.
    - `level`: the logarithm of the density at a mean, less a constant: that of its determinant.
    - `spreads`: logarithms of the deviations of each class there, [classes, d]; None where all
      of them are 1.
    - `frequencies`: how many of the first coordinates are lowest frequencies of an image.
    """

    whiten: Tensor
    means: Tensor
    level: float
    spreads: Tensor | None = None
    frequencies: int = 0

    @classmethod
    def fit(
        cls, points: Tensor, groups: Tensor, num_groups: int, *, spreads: bool = False
    ) -> Gaussian:
        """The means of points [n, d] by group [n], and the covariance around them.

        - `spreads`: whether each group has deviations of its own.
        """
        points, dims = points.double().cpu(), points.shape[1]
        counts = torch.zeros(num_groups, dtype=torch.float64)
        counts.index_add_(0, groups, torch.ones(len(groups), dtype=torch.float64))
        means = torch.zeros(num_groups, dims, dtype=torch.float64).index_add_(0, groups, points)
        means /= counts.clamp(min=1)[:, None]
        rest = points - means[groups]
        covariance = rest.T @ rest / len(rest)
        # A floor that an input which never changes does not break.
        variance = covariance.trace() / dims
        covariance += (SHRINKAGE * variance + 1e-30) * torch.eye(dims, dtype=torch.float64)
        whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
        level = float(whiten.diagonal().log().sum())
        found = cls(whiten.float(), (means @ whiten.T).float(), level)
        if not spreads:
            return found
        squares = torch.zeros_like(means).index_add_(0, groups, (rest @ whiten.T).square())
        variances = (squares + SPREAD_SAMPLES) / (counts[:, None] + SPREAD_SAMPLES)
        return replace(found, spreads=(variances.log() / 2).float())

    @property
    def dims(self) -> int:
        """How many dimensions points have."""
        return self.whiten.shape[0]

    def rows(self) -> Tensor:
        """The rows of the whitening matrix below its diagonal, over that row's diagonal."""
        return (self.whiten / self.whiten.diagonal()[:, None])[_below(self.dims)]

    @classmethod
    def of(
        cls, logs: Tensor, rows: Tensor | None, means: Tensor, spreads: Tensor | None = None
    ) -> Gaussian | None:
        """The Gaussian from logarithms of its diagonal, `rows()` and means; None if none is.

        - `spreads`: as many as there are means, where classes have deviations of their own.
        """
        dims, below = len(logs), torch.zeros(0) if rows is None else rows
        fits = 1 <= dims <= MAX_DIMS and len(below) == dims * (dims - 1) // 2
        if not fits or not len(means) or len(means) % dims:
            return None
        if spreads is not None:
            if len(spreads) != len(means):
                return None
            spreads = spreads.reshape(-1, dims)
        matrix = torch.eye(dims)
        matrix[_below(dims)] = below
        level = float(logs.double().sum())
        return cls(logs.exp()[:, None] * matrix, means.reshape(-1, dims), level, spreads)

    def to(self, device: torch.device) -> Gaussian:
        """The same on a device."""
        spreads = None if self.spreads is None else self.spreads.to(device)
        means = self.means.to(device)
        return replace(self, whiten=self.whiten.to(device), means=means, spreads=spreads)

    def log_density(self, points: Tensor) -> Tensor:
        """The logarithm of the density of points [n, d], less a constant.

        It is that of one class, the one under which it is largest.
        """
        white = points @ self.whiten.T
        num = max(1, CLASS_VALUES // (BATCH * self.dims))
        spreads = [None] * len(self.means) if self.spreads is None else self.spreads.split(num)
        found: list[Tensor] = []
        for means, own in zip(self.means.split(num), spreads, strict=False):
            rest = white[:, None] - means  # [n, classes, d]
            if own is None:
                found.append(rest.square().sum(2).amin(1) / 2)  # at the nearest mean
            else:
                squares = (rest * (-own).exp()).square().sum(2)
                found.append((squares / 2 + own.sum(1)).amin(1))
        return self.level - (found[0] if len(found) == 1 else torch.stack(found).amin(0))


@dataclass(frozen=True)
class Record:
    """What a task keeps to recognize its inputs, read from its vectors.

    - `weights`: of its parts, by name.
    - `spreads`: mean and deviation of the parts that are standardized, on its own validation data.
    - `score`: mean and deviation there of its score with these weights, and the least typicality.
    - `gaussians`: those of its parts, by name.

    The vectors, of which those of the parts it has not are left out:

    - "score": the three numbers;
    - "energy", "features", "rotation": weight, mean and deviation;
    - "base": weight; "inputs": weight, and the number of frequencies where there are any;
    - "inputs.diagonal" and so on, for each density: logarithms of the whitening matrix's diagonal,
      for "inputs" with the mean behind them, or with the classes' means and then the logarithms of
      their deviations;
    - "inputs.rows" and so on: `Gaussian.rows()`;
    - "base.means", "features.means": the classes' means.
    """

    weights: dict[str, float]
    spreads: dict[str, tuple[float, float]]
    score: tuple[float, float, float] = (0.0, 1.0, 0.0)
    gaussians: dict[str, Gaussian] = field(default_factory=dict)

    @classmethod
    def read(cls, vectors: Mapping[str, Tensor]) -> Record | None:
        """The record in a task's vectors; None where there is none that can be read."""
        heads = {p: vectors[p] for p in PARTS if p in vectors}
        score = vectors.get("score", torch.zeros(0))
        if not heads or len(score) != 3:
            return None
        gaussians = {}
        for part, head in heads.items():
            size = 1 if part in COMMON else 3  # the weight, and a spread
            if len(head) not in ((1, 2) if part == "inputs" else (size,)):
                return None
            if part not in DENSITIES:
                continue
            logs = vectors.get(f"{part}.diagonal", torch.zeros(0))
            means = vectors.get(f"{part}.means", torch.zeros(0))
            rows, spreads = vectors.get(f"{part}.rows"), None
            if part == "inputs":
                dims = _dims(rows)
                logs, means = logs[:dims], logs[dims:]
                if len(means) > dims:
                    means, spreads = means.tensor_split(2)
            found = Gaussian.of(logs, rows, means, spreads)
            if found is None:
                return None
            if part == "inputs" and len(head) == 2:
                if float(head[1]) not in range(found.dims + 1):
                    return None
                found = replace(found, frequencies=int(head[1]))
            gaussians[part] = found
        return cls(
            {p: float(v[0]) for p, v in heads.items()},
            {p: (float(v[1]), float(v[2])) for p, v in heads.items() if p not in COMMON},
            (float(score[0]), float(score[1]), float(score[2])),
            gaussians,
        )

    def vectors(self) -> dict[str, Tensor]:
        """The vectors, rounded as they are stored."""
        out = {"score": _halves(self.score)}
        for part, weight in self.weights.items():
            gaussian = self.gaussians.get(part)
            behind = list(self.spreads.get(part, ()))
            if gaussian is not None and gaussian.frequencies:
                behind.append(gaussian.frequencies)
            out[part] = _halves([weight, *behind])
            if gaussian is None:
                continue
            diagonal = _in_steps(gaussian.whiten.diagonal().log(), STEP)
            means, spreads = gaussian.means.flatten(), gaussian.spreads
            if part != "inputs":
                out[f"{part}.means"] = code(means, BITS).decode()
            elif spreads is None:
                diagonal = torch.cat([diagonal, _in_steps(means, STEP)])
            else:
                classes = torch.cat([means, spreads.flatten()])
                diagonal = torch.cat([diagonal, _in_steps(classes, CLASS_STEP)])
            out[f"{part}.diagonal"] = diagonal
            if gaussian.dims > 1:
                rows = gaussian.rows()
                typical = float(rows.double().square().mean().sqrt())
                # The power of two below, so that a file can keep integers.
                step = 2.0 ** math.floor(math.log2(max(typical, 1e-6))) / ROW_STEPS
                out[f"{part}.rows"] = _in_steps(rows, step)
        return out

    def rounded(self) -> Record:
        """The record as it will be read."""
        found = Record.read(self.vectors())
        assert found is not None
        return found

    def to(self, device: torch.device) -> Record:
        """The same with its Gaussians on a device."""
        return replace(self, gaussians={p: g.to(device) for p, g in self.gaussians.items()})


def _below(dims: int) -> tuple[Tensor, Tensor]:
    """Where a square matrix stands below its diagonal, row by row."""
    rows, columns = torch.tril_indices(dims, dims, -1)
    return rows, columns


def _dims(rows: Tensor | None) -> int:
    """The dimensions of a matrix that has so many values below its diagonal."""
    return 1 if rows is None else (1 + math.isqrt(1 + 8 * len(rows))) // 2


def _in_steps(values: Tensor, step: float) -> Tensor:
    """Values rounded to multiples of a power of two, which a file keeps as small integers."""
    return (values.cpu() / step).round() * step + 0.0  # no zero is a negative one


def _halves(values: Any) -> Tensor:
    """Numbers rounded to float16, which a file keeps as such; unchanged where that is too coarse.

    All of them are logarithms, weights, or in standard deviations, so that 0.02 are little.
    """
    exact = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    rounded = exact.half().float()
    return rounded if bool(((rounded - exact).abs() <= 0.02).all()) else exact


def projection(width: int, dims: int) -> Tensor:
    """A seeded projection of `width` values to fewer: signs [dims, width], over √width.

    The same on every machine, so that no model stores it. No more than `dims` values stay as they
    are.
    """
    return torch.from_numpy(_signs(width, dims)) if dims < width else torch.eye(width)


@lru_cache(maxsize=8)
def _signs(width: int, dims: int) -> np.ndarray:
    count = dims * width
    words = seeds.splitmix64(seeds.key("projection", width, dims), -(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=count)
    signs = (bits.astype(np.float32) * 2 - 1).reshape(dims, width)
    return np.asarray(signs / np.float32(math.sqrt(width)))


def input_projection(shape: Sequence[int], dims: int, frequencies: int) -> Tensor:
    """What takes raw inputs of a shape to the coordinates of "inputs": [dims, values].

    - `frequencies`: so many coordinates are the lowest frequencies, if inputs are images.
    """
    width = math.prod(shape)
    if not frequencies or len(shape) != 3 or dims >= width:
        return projection(width, dims)
    channels, height, wide = shape
    lowest = torch.from_numpy(_lowest(channels, height, wide, frequencies))
    return torch.cat([lowest, projection(width, dims - frequencies)])


@lru_cache(maxsize=8)
def _lowest(channels: int, height: int, width: int, count: int) -> np.ndarray:
    """The lowest frequencies of images: products of cosines, [count, values].

    Those of the channels' mean, and up to half as high of how the channels differ. An eighth of
    their length, since images vary most in these: numbers of equal steps are as fine for them as
    for the other coordinates. Rounded, so that they are the same on every machine.
    """
    mixed = _contrasts(channels, count)
    down, across = _cosines(height, count), _cosines(width, count)
    # Before a place come all those of no later channel, row and column, so that it is none of the
    # lowest where these are too many.
    places = sorted(
        ((4 if channel else 1) * (i * i + j * j), channel, i, j)
        for channel in range(min(channels, count))
        for i in range(min(height, count // (channel + 1)))
        for j in range(min(width, count // ((channel + 1) * (i + 1))))
    )
    rows = np.empty((count, channels * height * width), np.float32)
    for row, (_, channel, i, j) in zip(rows, places[:count], strict=True):
        wave = np.multiply.outer(mixed[channel], np.outer(down[i], across[j])).reshape(-1)
        row[:] = (wave * 2**17).round() / 2**20
    return rows


def _cosines(size: int, count: int) -> np.ndarray:
    """The first `count` of an orthonormal basis of cosines, [frequencies, places], from low on."""
    steps = np.arange(size)
    waves = np.cos(np.pi / size * np.outer(steps[:count], steps + 0.5)) * math.sqrt(2 / size)
    waves[0] = math.sqrt(1 / size)
    return waves


def _contrasts(channels: int, count: int) -> np.ndarray:
    """The first `count` of an orthonormal basis: the channels' mean, and how each differs."""
    rows = np.full((min(channels, count), channels), 1 / math.sqrt(channels))
    for k in range(1, len(rows)):
        rows[k] = [1.0] * k + [-float(k)] + [0.0] * (channels - k - 1)
        rows[k] /= math.sqrt(k * (k + 1))
    return rows


# Scores.


@dataclass(frozen=True)
class Claims:
    """What some tasks say to inputs: [samples, tasks] each, on the CPU.

    - `parts`: by name; as they are summed up, that is, standardized where they are to be.
    - `answers`: the class that each task's network would give, and `probability` of that.
    """

    parts: Mapping[str, Tensor]
    answers: Tensor
    probability: Tensor

    @classmethod
    def joined(cls, found: Sequence[Claims]) -> Claims:
        """Claims of the same tasks on inputs one behind the other."""
        return cls(
            {n: torch.cat([c.parts[n] for c in found]) for n in found[0].parts},
            torch.cat([c.answers for c in found]),
            torch.cat([c.probability for c in found]),
        )

    def of(self, columns: Sequence[int]) -> Claims:
        """The claims of some of the tasks."""
        where: Tensor | slice = torch.tensor(columns)
        if list(columns) == list(range(len(columns))):
            where = slice(len(columns))  # the first tasks: nothing needs to be copied
        parts = {n: p[:, where] for n, p in self.parts.items()}
        return Claims(parts, self.answers[:, where], self.probability[:, where])

    def score(self, weights: Mapping[str, float]) -> Tensor:
        """The sum of the parts with these weights."""
        return sum(
            (w * self.parts[p] for p, w in weights.items()), torch.zeros_like(self.probability)
        )


class Router:
    """Some tasks of a store, and what their scores for raw inputs are made of.

    - `subnets`: the tasks, in the order of learning.
    - `rule`: one of `RULES`; None takes what all of these tasks keep, and "energy" where one of
      them keeps nothing.
    - `stacked`: whether networks of equal shapes run in one pass, which is faster on a GPU; last
      bits of scores then depend on which tasks are asked together.
    - `also`: further parts that claims are to have, beside those that scores are made of.
    """

    def __init__(
        self,
        store: SubnetStore,
        subnets: Sequence[Subnet],
        rule: str | None = None,
        *,
        stacked: bool = False,
        also: Sequence[str] = (),
    ) -> None:
        if rule is not None and rule not in RULES:
            raise SettingError(unknown("rule", str(rule), RULES))
        self.store, self.subnets, self.stacked = store, list(subnets), stacked
        self.records: list[Record] = []
        self.weights: dict[str, float] = {rule or "energy": 1.0}
        read = [store.record(s) for s in self.subnets] if rule is None else []
        records = [r for r in read if r is not None]
        shared = [p for p in PARTS if _have(records, p)]
        if records and len(records) == len(self.subnets) and shared:
            self.records = records
            # Of the task that has seen the most others.
            seen = [r for s, r in zip(self.subnets, records, strict=True) if not s.isolated]
            self.weights = {p: (seen or records)[-1].weights[p] for p in shared}
        self.rule = " + ".join(self.weights)
        self.parts = tuple(dict.fromkeys((*self.weights, *also)))
        # The last batch as a network saw it: the next task often normalizes alike.
        self._last: tuple[Normalization, Tensor, Tensor] | None = None

    @property
    def common(self) -> list[str]:
        """The parts of scores that need no task's network."""
        return [p for p in self.weights if p in COMMON]

    @property
    def whole(self) -> bool:
        """Whether scores have every part that each task keeps, so that thresholds hold."""
        return bool(self.records) and all(set(r.weights) == set(self.weights) for r in self.records)

    def claims(
        self,
        inputs: Any,
        *,
        batch_size: int,
        shortlist: int | None = None,
        answers: bool = True,
    ) -> Claims:
        """What the tasks say to raw inputs, batch by batch.

        Every task is decoded once at most for inputs that are in memory. Of those that are read
        from elsewhere, tasks that do not stay decoded are decoded again for every `CHUNK_BYTES`.

        - `inputs`: as for `SubnetStore.logits`, or an iterator over raw batches.
        - `shortlist`: ask only the networks of so many tasks per input: those with the largest
          score without them.
        - `answers`: whether classes are wanted as well; else they are 0.
        """
        if shortlist is not None and (not self.common or shortlist < 1):
            raise TaskError(
                f"shortlist = {shortlist}: give a number of tasks from 1, where all candidates "
                f"keep one of the routing parts {', '.join(map(repr, COMMON))}."
            )
        is_streamed = isinstance(inputs, Iterator) or is_dataset(inputs)
        most = CHUNK_BYTES if is_streamed else None
        given = (
            inputs
            if isinstance(inputs, Iterator)
            else batches(inputs, batch_size, _common_pixels(self.subnets))
        )
        empty = torch.zeros(0, len(self.subnets))
        found = [Claims(dict.fromkeys(self.parts, empty), empty.long(), empty)]
        for chunk in _chunks(given, self.subnets, most):
            found.append(self._chunk(chunk, shortlist, answers))
            del chunk  # before more inputs are read
        return Claims.joined(found)

    def passes(self, *, all_answers: bool = False) -> int:
        """How many passes of networks an input takes until it has a label.

        Heads over one base share a pass, and the base's part needs no other.

        - `all_answers`: whether every task gives one, be the winner told by common parts alone.
        """
        shared = {(s.normalization, 0) for s in self.subnets if "base" in self.common}
        own = []  # the passes of each task
        for subnet in self.subnets:
            whose = subnet.normalization if self.store.is_head_alone(subnet) else subnet.name
            own.append({(whose, turn) for turn in range(subnet.num_turns)})
        if set(self.weights) <= set(COMMON) and not all_answers:  # only the winner's network
            return max(len(shared | passes) for passes in own)
        return len(set().union(shared, *own))

    @arithmetic("float32", deterministic=True)
    @torch.no_grad()
    def _chunk(self, chunk: Sequence[Tensor], shortlist: int | None, with_answers: bool) -> Claims:
        """The claims on some batches: every task is decoded once for all of them."""
        size, count = sum(map(len, chunk)), len(self.subnets)
        parts = {n: torch.full((size, count), -math.inf) for n in self.parts}
        answers = torch.zeros(size, count, dtype=torch.int64)
        probability = torch.zeros(size, count)
        asked = torch.ones(size, count, dtype=torch.bool)
        by_networks = [n for n in parts if n not in COMMON]

        waiting: list[tuple[int, Tensor, Tensor]] = []  # columns, rows, and what is on the device

        def note(column: int, rows: Tensor, told: Told) -> None:
            record = self.records[column] if self.records else None
            numbers = [network_part(name, record, told) for name in by_networks]
            if with_answers:
                chance = told.logits.softmax(1).max(1)
                numbers += [chance.values, chance.indices]
            waiting.append((column, rows, torch.stack([n.to(probability.dtype) for n in numbers])))
            if len(waiting) >= len(chunk):  # those of one task, or as many
                bring()

        def bring() -> None:
            """All in one piece: each way from a GPU waits for all that was launched."""
            if not waiting:
                return
            pieces = torch.cat([found for _, _, found in waiting], 1).cpu()
            split = pieces.split([len(rows) for _, rows, _ in waiting], 1)
            for (column, rows, _), found in zip(waiting, split, strict=True):
                if shortlist is not None:
                    wanted = asked[rows, column]
                    rows, found = rows[wanted], found[:, wanted]
                for name, values in zip(by_networks, found, strict=False):
                    parts[name][rows, column] = values
                if with_answers:
                    probability[rows, column], answers[rows, column] = found[-2], found[-1].long()
            waiting.clear()

        networks = list(range(count)) if by_networks or with_answers else []
        heads = self._heads(networks)
        base = self._base_pass(heads)
        if sum(raw.nbytes for raw in chunk) <= COPIED_BYTES:  # one copy serves all tasks
            chunk = [raw.to(self.store.device) for raw in chunk]
        placed = list(zip(torch.arange(size).split([*map(len, chunk)]), chunk, strict=True))
        for rows, raw in placed:
            for name in self.common:
                parts[name][rows] = self._densities(name, raw, base)
            if shortlist is not None and shortlist < count:
                asked[rows] = self._shortlisted({n: parts[n][rows] for n in self.common}, shortlist)
            for column, head in heads.items():
                assert base is not None
                subnet = self.subnets[column]
                turns = range(subnet.num_turns)
                outputs = [base.outputs(subnet, head, raw, k) for k in turns]
                note(column, rows, told_by(subnet, outputs))
        others = [c for c in networks if c not in heads]
        for columns, rows, found in self._outputs(placed, asked, others):
            for column, told in zip(columns, found, strict=True):
                note(column, rows, told)
        bring()
        self._last = None
        return Claims(parts, answers, probability)

    def _shortlisted(self, parts: Mapping[str, Tensor], num: int) -> Tensor:
        """So many tasks per input with the largest score by common parts, bool [n, tasks]."""
        score = sum((self.weights[n] * parts[n] for n in self.common), torch.zeros(()))
        score = score.nan_to_num(-math.inf, math.inf, -math.inf)  # as `decide` does
        # Of equal ones the first, as for the task that wins.
        best = score.argsort(dim=1, descending=True, stable=True)[:, :num]
        return torch.zeros_like(score, dtype=torch.bool).scatter_(1, best, True)

    def _heads(self, columns: Sequence[int]) -> dict[int, dict[str, Tensor]]:
        """The tensors of the heads of tasks that are heads over the base, by column."""
        store, head = self.store, f"{self.store.architecture.head}."
        found = {}
        for column in columns:
            subnet = self.subnets[column]
            if store.is_head_alone(subnet):
                own = store.task_tensors(subnet).items()
                tensors = {n: t.to(store.device) for n, t in own if n.startswith(head)}
                found[column] = self._with_features(column, tensors)
        return found

    def _base_pass(self, heads: Mapping[int, object]) -> BasePass | None:
        """The pass of the base, where a part or a task is made of nothing else."""
        architecture = self.store.architecture
        if heads:
            name = self.subnets[next(iter(heads))].name
            return BasePass(architecture, self.store.tensors(name))
        if "base" in self.common:
            dims = self.records[0].gaussians["base"].dims
            return BasePass(architecture, base_tensors(self.store, dims))
        return None

    def _densities(self, name: str, raw: Tensor, base: BasePass | None) -> Tensor:
        """A part in common coordinates, of all tasks for a batch [n, tasks]."""
        points: dict[Normalization | None, Tensor] = {}
        found = []
        for subnet, record in zip(self.subnets, self.records, strict=True):
            gaussian = record.gaussians[name]
            seen = None if name == "inputs" else subnet.normalization  # most often one for all
            if seen not in points:
                points[seen] = common_points(
                    self.store, subnet, name, raw, gaussian.dims, gaussian.frequencies, base
                )
            found.append(gaussian.log_density(points[seen]))
        return torch.stack(found, 1).cpu()

    def _outputs(
        self, placed: Sequence[tuple[Tensor, Tensor]], asked: Tensor, columns: Sequence[int]
    ) -> Iterator[tuple[list[int], Tensor, list[Told]]]:
        """Columns, rows, and per column what its network tells of a batch, in some order.

        - `placed`: the rows of each raw batch, and the batch.
        - `asked`: whose networks are wanted, bool [samples, tasks].
        """
        groups = self._groups(columns) if self.stacked else [[c] for c in columns]
        for group in groups:
            run = self._prepared(group)
            for rows, raw in placed:
                wanted = asked[rows][:, group].any(1).nonzero().flatten()
                if len(wanted):
                    part = raw if len(wanted) == len(raw) else raw[wanted]
                    yield group, rows[wanted], run(part)

    def _groups(self, columns: Sequence[int]) -> list[list[int]]:
        """Columns whose networks have tensors of equal shapes, and can run in one pass."""
        kinds: dict[Any, list[int]] = {}
        for column in columns:
            subnet = self.subnets[column]
            shapes = tuple(sorted(subnet.shapes.items()))
            kind = shapes, bool(subnet.normalization.mean), bool(subnet.rotations)
            kinds.setdefault(kind, []).append(column)
        return list(kinds.values())

    def _prepared(self, group: Sequence[int]) -> Callable[[Tensor], list[Told]]:
        """What computes, for a raw batch, what the network of each task of a group tells of it."""
        tensors_of = [self.store.tensors(self.subnets[c].name) for c in group]
        networks = [self._with_features(c, t) for c, t in zip(group, tensors_of, strict=True)]
        subnets = [self.subnets[c] for c in group]
        if len(group) > 1:
            return self._stack(subnets, networks)
        return lambda raw: [self._one(subnets[0], networks[0], raw)]

    def _one(self, subnet: Subnet, tensors: Mapping[str, Tensor], raw: Tensor) -> Told:
        """What a task's network tells of a raw batch."""
        seen = self._seen(subnet.normalization, raw)
        turns = range(subnet.num_turns)
        outputs = [self.store.outputs(subnet, tensors, raw, turned(seen, k)) for k in turns]
        return told_by(subnet, outputs)

    def _seen(self, normalization: Normalization, raw: Tensor) -> Tensor:
        """A raw batch as a network sees it."""
        last = self._last
        if last is None or last[0] != normalization or last[1] is not raw:
            last = self._last = normalization, raw, self.store.seen(normalization, raw)
        return last[2]

    def _with_features(self, column: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A task's tensors, with rows for the projected features where they are wanted."""
        if "features" not in self.weights:
            return tensors
        dims = self.records[column].gaussians["features"].dims
        return with_features(self.store.architecture, tensors, dims)

    def _stack(
        self, subnets: Sequence[Subnet], networks: Sequence[dict[str, Tensor]]
    ) -> Callable[[Tensor], list[Told]]:
        """All tasks of a group in one pass over stacked tensors, or one by one where that fails."""
        store = self.store
        if "features" in self.weights:  # rows that not all uses of a task have
            stacked = {n: torch.stack([t[n] for t in networks]) for n in networks[0]}
        else:
            stacked = store.stacked(subnets, networks)
        same = len({s.normalization for s in subnets}) == 1
        network = torch.func.vmap(store.architecture, in_dims=(0, None if same else 0))

        def together(raw: Tensor) -> list[Told]:
            raw = raw.to(store.device)
            seen = store.seen(subnets[0].normalization, raw)
            if not same:
                seen = torch.stack([store.seen(s.normalization, raw) for s in subnets])
            try:
                outputs = [network(stacked, turned(seen, k)) for k in range(subnets[0].num_turns)]
            except RuntimeError:  # a layer that vmap does not know
                return [self._one(s, t, raw) for s, t in zip(subnets, networks, strict=True)]
            return [told_by(s, [o[i] for o in outputs]) for i, s in enumerate(subnets)]

        return together


class BasePass:
    """One pass of a frozen base, from which every head over it gives its outputs.

    What reaches the head is kept for one batch at a time, in each normalization and rotation.

    - `tensors`: those of the base, with any head.
    """

    def __init__(self, architecture: Architecture, tensors: Mapping[str, Tensor]) -> None:
        self.architecture, self.tensors = architecture, dict(tensors)
        self.from_head = architecture.from_head()
        self._raw: Tensor | None = None
        self._reached: dict[tuple[Normalization, int], tuple[Tensor, Tensor | None]] = {}

    def outputs(
        self, subnet: Subnet, head: Mapping[str, Tensor], raw: Tensor, turn: int = 0
    ) -> Tensor:
        """What the base gives with another head for raw inputs, the bits of a whole pass.

        - `subnet`: the task whose normalization the base sees.
        - `turn`: how images are turned, see `tasks.rotations`.
        """
        if raw is not self._raw:
            self._raw, self._reached = raw, {}
        key = subnet.normalization, turn
        with subnet.explained(raw):
            if key not in self._reached:
                device = next(iter(self.tensors.values())).device
                seen = turned(subnet.normalization(raw.to(device)), turn)
                self._reached[key] = seen, self.architecture.head_input(self.tensors, seen)
            seen, reached = self._reached[key]
            if reached is None:  # a network whose head cannot be told from it
                return self.architecture(self.tensors | dict(head), seen)
            return self.from_head(self.tensors | dict(head), reached)


def _have(records: Sequence[Record], part: str) -> bool:
    """Whether all records have a part, and where it is a common one, in the same coordinates."""
    having = [r for r in records if part in r.weights]
    if len(having) < len(records) or not having:
        return False
    if part not in COMMON:
        return True
    found = [r.gaussians[part] for r in having]
    return len({(g.dims, g.frequencies) for g in found}) == 1


class Told(NamedTuple):
    """What a task's network tells of a batch.

    - `logits`: [n, classes]; where rotations were learned, the mean over those of an image.
    - `features`: [n, dims], the head's projected inputs; of dimension 0 where nobody wants them.
    - `rotation`: [n], how surely it tells how images are turned; None where none were learned.
    """

    logits: Tensor
    features: Tensor
    rotation: Tensor | None


def told_by(subnet: Subnet, outputs: Sequence[Tensor]) -> Told:
    """What a network tells by its outputs for a batch, or for each rotation of it."""
    num = subnet.num_outputs
    heads, features = [o[:, :num] for o in outputs], outputs[0][:, num:]
    if not subnet.rotations:
        return Told(heads[0], features, None)
    return Told(joined(heads), features, rotation_evidence(heads))


def network_part(name: str, record: Record | None, told: Told) -> Tensor:
    """A part of a task's score by its network [n], standardized by what the task keeps, if it does.

    "entropy" is the negative one: more is surer, as with all others.
    """
    if name == "energy":
        values = told.logits.logsumexp(1)
    elif name == "entropy":
        shares = told.logits.log_softmax(1)
        values = (shares.exp() * shares).sum(1)
    elif name == "rotation":
        assert told.rotation is not None
        values = told.rotation
    else:
        assert name == "features" and record is not None
        values = record.gaussians[name].log_density(told.features)
    if record is None or name == "entropy":
        return values
    mean, deviation = record.spreads[name]
    return (values - mean) / deviation


def common_points(
    store: SubnetStore,
    subnet: Subnet,
    part: str,
    raw: Tensor,
    dims: int,
    frequencies: int = 0,
    base: BasePass | None = None,
) -> Tensor:
    """Raw inputs in the coordinates of a common part, before whitening, on the store's device.

    - `subnet`: the task whose normalization the base sees.
    - `dims`: how many coordinates there are at most, and `frequencies`: how many of those of images
      are lowest frequencies.
    - `base`: a pass of the base, where others need it too.
    """
    if part == "inputs":
        flat = raw.to(store.device).flatten(1).float()
        rows = input_projection(raw.shape[1:], dims, frequencies)
        return flat @ rows.to(flat.device).T
    if base is not None:
        return base.outputs(subnet, base_head(store, dims), raw)
    return store.outputs(subnet, base_tensors(store, dims), raw)


def base_tensors(store: SubnetStore, dims: int) -> dict[str, Tensor]:
    """The tensors of the base, with a head that gives its projected inputs."""
    values = {n: t.to(store.device) for n, t in store.base_values().items()}
    constants = {n: t.to(store.device) for n, t in store.architecture.constants.items()}
    return values | constants | base_head(store, dims)


def base_head(store: SubnetStore, dims: int) -> dict[str, Tensor]:
    """The tensors of that head."""
    architecture, head = store.architecture, f"{store.architecture.head}."
    shapes = {s.name: s.shape for s in architecture.task_params}
    weight = next(n for n in architecture.output if n.endswith("weight"))
    rows = projection(shapes[weight][1], dims).to(store.device)
    empty = {n: rows.new_zeros(0, *shapes[n][1:]) for n in architecture.output}
    base = {n: t.to(store.device) for n, t in store.base_values().items() if n.startswith(head)}
    return base | with_rows(architecture, empty, rows)


def with_features(
    architecture: Architecture, tensors: Mapping[str, Tensor], dims: int
) -> dict[str, Tensor]:
    """The tensors with rows behind those of the head that give its projected inputs.

    So one pass gives logits and features, for any network whose head ends with a linear layer.
    """
    weight = next(n for n in architecture.output if n.endswith("weight"))
    rows = projection(tensors[weight].shape[1], dims).to(tensors[weight])
    return with_rows(architecture, tensors, rows)


def with_rows(
    architecture: Architecture, tensors: Mapping[str, Tensor], rows: Tensor
) -> dict[str, Tensor]:
    """The tensors with more rows [dims, inputs of the head] behind those of the head's weight."""
    wider = dict(tensors)
    for name in architecture.output:
        more = rows if name.endswith("weight") else tensors[name].new_zeros(len(rows))
        wider[name] = torch.cat([tensors[name], more])
    return wider


def has_features(architecture: Architecture) -> bool:
    """Whether the head ends with a linear layer, whose inputs `with_features` can give."""
    names = {n.rpartition(".")[2] for n in architecture.output}
    layer = architecture.code("eval").get_submodule(architecture.output[0].rpartition(".")[0])
    return type(layer) is nn.Linear and names <= {"weight", "bias"} and "weight" in names


def _chunks(
    given: Iterator[Tensor], subnets: Sequence[Subnet], most_bytes: int | None
) -> Iterator[list[Tensor]]:
    """Batches of raw inputs, checked: all at once, or about so many bytes of them at a time."""
    chunk: list[Tensor] = []
    size = 0
    for raw in given:
        for subnet in subnets:
            subnet.check_inputs(raw)
        chunk.append(raw)
        size += raw.numel() * raw.element_size()
        if most_bytes is not None and size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# Routing.


def chosen_among(store: SubnetStore, among: Iterable[str] | None) -> list[Subnet]:
    """The tasks of these names, each once, in the order of learning; None takes all tasks."""
    if isinstance(among, str) or not (among is None or isinstance(among, Iterable)):
        raise TaskError(f"among = {among!r}: give a list of tasks' names.")
    found = (store.subnet(name) for name in (store.tasks if among is None else among))
    return [s for _, s in sorted({s.number: s for s in found}.items())]


def candidates(
    store: SubnetStore, inputs: Any, among: Sequence[str] | None
) -> tuple[list[Subnet], Any]:
    """The tasks that inputs may belong to, by shape and kind, and the inputs again.

    - `among`: only these; None takes all tasks.
    """
    subnets = chosen_among(store, among)
    if not subnets:
        raise TaskError("there is no task to choose from; learn one, or name some in `among`.")
    first, inputs = _first(inputs, _common_pixels(subnets))
    fitting = [s for s in subnets if _fits(s, first)]
    if not fitting:
        samples = sorted({str(s.sample.shape) for s in subnets if s.sample is not None})
        hint = next((h for s in subnets if (h := s.layout_hint(first))), "")
        raise TaskError(
            f"no task takes {first.dtype} inputs of shape {tuple(first.shape)}; tasks take samples "
            f"of shape {', '.join(samples)}, raw as they were learned from. {hint}".rstrip()
        )
    return fitting, inputs


def _common_pixels(subnets: Sequence[Subnet]) -> Pixels:
    """What makes a raw input of a picture of Pillow, where it may be of any of these tasks."""
    recorded = {str(s.preprocessing): s for s in subnets if s.preprocessing is not None}
    kinds = list(recorded.values()) or list(subnets)[:1]

    def common(picture: Any) -> np.ndarray:
        made, *others = (s.pixels(picture) for s in kinds)
        if not all(np.array_equal(made, other) for other in others):
            names = " and ".join(repr(s.name) for s in kinds[:2])
            raise TaskError(
                f"pictures become other inputs for task {names}, so none says which is meant; name "
                "the task, or in `among` tasks that take pictures alike."
            )
        return made

    return common


def _first(inputs: Any, pixels: Pixels) -> tuple[Tensor, Any]:
    """Some first inputs, to see what they are, and inputs that still hold them."""
    if is_dataset(inputs):
        return next(batches(inputs, 1, pixels), torch.zeros(0)), inputs
    try:
        raw = as_tensor(inputs, pixels)
    except TypeError as error:
        raise TaskError(f"arrays or tensors of numbers are needed: {error}") from error
    return raw[:256] if raw.ndim else raw, raw


def _fits(subnet: Subnet, raw: Tensor) -> bool:
    """Whether raw inputs can be of a task: of its shape, tokens or numbers, and in its scale."""
    if subnet.sample is None:
        return True
    tokens = not subnet.sample.dtype.is_floating_point and subnet.sample.dtype != torch.uint8
    if tuple(raw.shape[1:]) != subnet.sample.shape or is_tokens(raw) != tokens:
        return False
    try:
        subnet.check_scale(raw)
    except TaskError:
        return False
    return True


def route(
    store: SubnetStore,
    inputs: Any,
    *,
    among: Sequence[str] | None,
    together: bool,
    rule: str | None,
    shortlist: int | None,
    stacked: bool,
    batch_size: int,
    answers: bool = False,
) -> tuple[Routing, Claims, list[Subnet]]:
    """The scores of the tasks that inputs may belong to; see `SubnetStore.route`.

    - `answers`: whether the claims tell classes as well.
    """
    if together and shortlist is not None:
        raise TaskError("shortlist and together: inputs of one task are told by all networks.")
    subnets, inputs = candidates(store, inputs, among)
    router = Router(store, subnets, rule, stacked=stacked)
    if answers and not together and set(router.parts) <= set(COMMON):
        shortlist = 1  # the network of the task that wins is all that is needed
    claims = router.claims(inputs, batch_size=batch_size, shortlist=shortlist, answers=answers)
    return decide(router, claims, together), claims, subnets


def decide(router: Router, claims: Claims, together: bool = False) -> Routing:
    """Which task wins each input, or all of them together.

    - `together`: whether all inputs are of one task, whose scores then add up. They are unknown if
      more than half of them would be.
    """
    scores = claims.score(router.weights).nan_to_num(-math.inf, math.inf, -math.inf)
    hopeless = (scores == -math.inf).all(1).nonzero().flatten().tolist()
    if hopeless:
        raise TaskError(
            f"no task can say anything to {len(hopeless)} of the inputs (first: sample "
            f"{hopeless[0]}); look for NaN or infinite values in them."
        )
    if together and len(scores):
        scores = scores.sum(0, keepdim=True).expand_as(scores)
    chosen = scores.argmax(1)
    typicality = torch.full((len(scores),), math.nan)
    unknown = torch.zeros(len(scores), dtype=torch.bool)
    if router.whole:
        claim = _claim_of(router, claims, chosen)
        mean, deviation, least = (torch.tensor([r.score for r in router.records])[chosen]).unbind(1)
        typicality = (claim - mean) / deviation
        unknown = typicality < least
    if together and len(unknown):
        unknown = (unknown.float().mean() > 0.5).expand_as(unknown)
    names = tuple(s.name for s in router.subnets)
    return Routing(
        names, scores.numpy().copy(), typicality.numpy(), unknown.numpy().copy(), router.rule
    )


def _claim_of(router: Router, claims: Claims, chosen: Tensor) -> Tensor:
    """The score [samples] that each input's task gives by its own weights.

    - `chosen`: int64 [samples], the place of that task.
    """
    claim = torch.zeros_like(claims.probability[:, 0])
    for part in router.weights:  # those of every record, whose scores add them up in this order
        weights = torch.tensor([r.weights[part] for r in router.records])
        claim += weights[chosen] * claims.parts[part].gather(1, chosen[:, None])[:, 0]
    return claim


def predict(
    store: SubnetStore,
    inputs: Any,
    *,
    among: Sequence[str] | None,
    together: bool,
    batch_size: int,
) -> Prediction:
    """Labels for inputs whose task is not told; see `SubnetStore.predict`."""
    routing, claims, subnets = route(
        store,
        inputs,
        among=among,
        together=together,
        rule=None,
        shortlist=None,
        stacked=False,
        batch_size=batch_size,
        answers=True,
    )
    chosen = torch.from_numpy(routing.chosen)[:, None]
    answers = claims.answers.gather(1, chosen)[:, 0].tolist()
    labels = [subnets[t].classes[a] for t, a in zip(routing.chosen, answers, strict=True)]
    probability = claims.probability.gather(1, chosen)[:, 0].numpy()
    return Prediction(_as_labels(labels), probability, routing)


def _as_labels(labels: Sequence[Label]) -> np.ndarray:
    """Labels as an array: of strings or of integers, or of objects where both occur."""
    if len({isinstance(v, str) for v in labels}) > 1:
        return np.array(labels, dtype=object)
    return np.array(labels)


# Learning: what is kept with a new task.


def routing_of(store: SubnetStore, task: Task, settings: RoutingSettings) -> dict[str, Tensor]:
    """What a task that the store has just taken keeps, so that its inputs are recognized.

    It is measured on the network as it is stored. Nothing of isolated tasks enters it, and where
    the task itself is isolated, nothing of any other task does.
    """
    subnet = store.subnet(task.name)
    raw = _some(task.valid, VALID_SAMPLES)
    wanted = [p for p in PARTS if p in settings.parts and _can_have(store, subnet, p, raw)]
    if not wanted:
        return {}
    record = Record(
        {p: PARTS[p] for p in wanted},
        {p: (0.0, 1.0) for p in wanted if p not in COMMON},
        gaussians={
            p: _gaussian(store, subnet, task, p, settings) for p in wanted if p in DENSITIES
        },
    ).rounded()
    own = _claims(store, [replace(subnet, routing=record.vectors())], raw)
    spreads = {p: _spread(own.parts[p]) for p in record.spreads}
    record = replace(record, spreads=spreads).rounded()
    if settings.calibrate and not subnet.isolated:
        some = _some(task.valid, CALIBRATION_SAMPLES)
        record = replace(record, weights=_weights(store, subnet, record, some)).rounded()
    own = _claims(store, [replace(subnet, routing=record.vectors())], raw)
    score = own.score(record.weights)
    mean, deviation = _spread(score)
    least = torch.quantile((score - mean) / deviation, settings.unknown_share)
    return replace(record, score=(mean, deviation, float(least))).vectors()


def _can_have(store: SubnetStore, subnet: Subnet, part: str, raw: Tensor) -> bool:
    """Whether a part is defined for a task with such inputs."""
    if part == "rotation":
        return bool(subnet.rotations)
    if part == "inputs":
        return not is_tokens(raw)
    if part == "base" and (store.base is None or store.base.values is None):
        return False
    return part == "energy" or has_features(store.architecture)


def _some(split: Split, count: int) -> Tensor:
    """At most so many raw inputs of a split, spread over the whole of it."""
    return split.inputs(_places(split, count))


def _places(split: Split, count: int) -> Tensor:
    return torch.arange(min(count, len(split))) * len(split) // min(count, len(split))


def _gaussian(
    store: SubnetStore, subnet: Subnet, task: Task, part: str, settings: RoutingSettings
) -> Gaussian:
    """The Gaussian of a task's training inputs, or of its features or the base's."""
    dims = settings.dims
    places, num = _places(task.train, FIT_SAMPLES), task.num_classes
    labels, points = task.train.labels[places], []
    tensors = store.tensors(subnet.name)
    if part == "features":
        tensors = with_features(store.architecture, tensors, dims)
    with torch.no_grad(), arithmetic("float32", deterministic=True):
        for where in places.split(BATCH):
            raw = task.train.inputs(where)
            if part in COMMON:
                seen = common_points(store, subnet, part, raw, dims, settings.frequencies)
                points.append(seen.cpu())
            else:
                outputs = store.outputs(subnet, tensors, raw)
                points.append(told_by(subnet, [outputs]).features.cpu())
    spreads = part == "inputs" and settings.per_class
    if spreads:  # of classes that occur
        labels = labels.unique(return_inverse=True)[1]
        num = int(labels.max()) + 1
    elif part == "inputs":  # classes of inputs overlap: one mean is nearly as good
        labels, num = torch.zeros_like(labels), 1
    found = Gaussian.fit(torch.cat(points), labels, num, spreads=spreads)
    if part == "inputs" and raw.ndim == 4 and found.dims < raw[0].numel():
        found = replace(found, frequencies=settings.frequencies)
    return found


def _claims(store: SubnetStore, subnets: Sequence[Subnet], raw: Tensor) -> Claims:
    """What tasks say to raw inputs, [samples, tasks]."""
    return Router(store, subnets).claims(raw, batch_size=BATCH)


def _spread(values: Tensor) -> tuple[float, float]:
    """Mean and deviation, the latter large enough to divide by."""
    return float(values.double().mean()), max(1e-3, float(values.double().std(unbiased=False)))


def _weights(store: SubnetStore, subnet: Subnet, record: Record, raw: Tensor) -> dict[str, float]:
    """The weights under which raw inputs of a task are most likely given to it, by part.

    Against the last earlier tasks that keep the same parts. All tasks have the same weights, so
    that a task's own data are enough: nothing can be won by claiming more of everything.
    """
    latest = (
        s
        for s in reversed(store.subnets.values())
        if s.number < subnet.number and not s.isolated and _fits(s, raw)
    )
    earlier = list(islice(latest, CALIBRATION_TASKS))[::-1]
    router = Router(store, [*earlier, replace(subnet, routing=record.vectors())])
    if not earlier or set(router.weights) != set(record.weights):
        return record.weights
    claims = router.claims(raw, batch_size=BATCH)
    parts = list(record.weights)
    table = torch.stack([claims.parts[p] for p in parts], 2).double()  # [samples, tasks, parts]
    return dict(zip(parts, fitted_weights(table, [PARTS[p] for p in parts]), strict=True))


def fitted_weights(table: Tensor, prior: Sequence[float]) -> list[float]:
    """The weights of parts [samples, tasks, parts] under which the last task is most likely.

    Maximum likelihood, held near the logarithms of `prior`; float64 throughout.
    """
    values, start = table.numpy(), np.log(np.array(prior))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        weights = np.exp(logs)
        scores = values @ weights
        top = scores.max(1, keepdims=True)
        powers = np.exp(scores - top)
        total = powers.sum(1)
        lost = np.log(total) + top[:, 0] - scores[:, -1]
        shares = powers / total[:, None]
        slope = ((shares[:, :, None] * values).sum(1) - values[:, -1]).mean(0) * weights
        held = logs - start
        return float(lost.mean() + PRIOR * (held**2).sum()), slope + 2 * PRIOR * held

    bounds = [(v - 5, v + 5) for v in start]
    from scipy.optimize import minimize  # takes memory and time that a reader has no use for

    with np.errstate(over="ignore", invalid="ignore"):  # scores that overflow: the prior stays
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return [float(w) for w in np.exp(found.x)]
