"""How well a task is answered: its accuracy, that of each class, and what is taken for what."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tinysubnets.errors import TaskError
from tinysubnets.tasks.checks import DatasetInputs, Label, Pixels, as_array, as_tensor
from tinysubnets.tasks.sources import is_dataset, labeled
from tinysubnets.tasks.task import Task

if TYPE_CHECKING:
    from tinysubnets.model.subnet import Subnet

CHUNK = 2000  # raw inputs at a time, so that large sets stay where they are


@dataclass(frozen=True)
class Evaluation:
    """What a task answered on data whose labels are known.

    - `task`: its name.
    - `classes`: the user's own labels, in the order of rows and columns.
    - `confusion`: how many samples of each class (row) got which answer (column), int64 [n, n].
    - `loss`: the mean cross-entropy.
    - `measured_on`: the part of a `Task` that was measured, "test" or "valid"; "data" for others.
    """

    task: str
    classes: tuple[Label, ...]
    confusion: np.ndarray
    loss: float
    measured_on: str

    @property
    def num_samples(self) -> int:
        """How many samples were measured."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(np.trace(self.confusion)) / self.num_samples

    @property
    def chance(self) -> float:
        """What always naming the commonest class would get."""
        return int(self.confusion.sum(1).max()) / self.num_samples

    @property
    def is_at_chance(self) -> bool:
        """Whether the accuracy is not beyond chance by more than its standard error."""
        error = math.sqrt(self.chance * (1 - self.chance) / self.num_samples)
        return self.accuracy <= self.chance + error

    @property
    def per_class(self) -> dict[Label, float]:
        """The share of right answers of each class; NaN for a class without samples."""
        right, counts = np.diagonal(self.confusion), self.confusion.sum(1)
        return {
            c: float(r) / int(n) if n else math.nan
            for c, r, n in zip(self.classes, right, counts, strict=True)
        }

    def __str__(self) -> str:
        """The accuracy, and a line for each class with what it is most often taken for."""
        words = {"test": "test samples", "valid": "validation samples"}
        what = words.get(self.measured_on, "samples")
        lines = [
            f"{self.task}: {100 * self.accuracy:.2f} % right of {self.num_samples:,} {what}, "
            f"loss {self.loss:.4f}"
        ]
        width = max(len(str(c)) for c in self.classes)
        for number, (label, share) in enumerate(self.per_class.items()):
            row = self.confusion[number].copy()
            count, row[number] = int(row.sum()), 0
            shown = f"{100 * share:6.2f} % of {count:,}" if count else "no sample"
            if row.any():
                worst = int(row.argmax())
                shown += f"; {row[worst]:,} taken for {self.classes[worst]}"
            lines.append(f"  {label!s:<{width}}  {shown}")
        return "\n".join(lines)


@dataclass(frozen=True)
class UnknownEvaluation:
    """How well inputs that belong to no task are told from those that do.

    - `auroc`: the area under the ROC curve: the chance that an input of a task is more typical of
      the task that claims it than a foreign one. One half tells nothing: foreign inputs that look
      like those of a learned task cannot be told.
    - `refused`, `own_refused`: the shares of foreign and of own inputs that are taken for unknown.
    - `num_unknown`, `num_known`: how many of them there were.
    """

    auroc: float
    refused: float
    own_refused: float
    num_unknown: int
    num_known: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"area under the ROC curve {100 * self.auroc:.2f} %, of which 50 % is chance; taken "
            "for unknown: "
            f"{100 * self.refused:.2f} % of {self.num_unknown:,} foreign inputs, "
            f"{100 * self.own_refused:.2f} % of {self.num_known:,} of the tasks"
        )


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """The area under the ROC curve: the chance that a known input ranks above an unknown one.

    >>> auroc(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    0.875
    """
    others = np.sort(unknown)
    below, not_above = (np.searchsorted(others, known, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(known) * len(unknown)))


def evaluate(
    logits: Callable[[Any], Tensor],
    task: str,
    classes: Sequence[Label],
    data: Any,
    labels: Any = None,
    subnet: Subnet | None = None,
) -> Evaluation:
    """What a task's network answers on data with labels.

    - `logits`: gives the task's logits for raw inputs.
    - `classes`: the labels of these logits, in order.
    - `data`: a `Task`, of which the test part is measured, or the validation part where there is
      none; inputs, with their `labels`; a data set or loader, which bring their own; or the path of
      a folder of images per class or of an .npz, of which `test/` is measured, or else all.
    - `subnet`: what the model records of the task, which says how files and pictures of Pillow
      become inputs; without it pictures are taken as they are.
    """
    of_file = None
    if isinstance(data, (str, os.PathLike)):
        of_file, data, labels = _read(task, os.fspath(data), labels, subnet)
    pixels = None if subnet is None else subnet.pixels
    measured_on, chunks = _chunks(task, classes, data, labels, pixels)
    confusion, loss = np.zeros((len(classes), len(classes)), np.int64), 0.0
    for inputs, numbers in chunks:
        found = logits(inputs)
        np.add.at(confusion, (numbers.numpy(), found.argmax(1).numpy()), 1)
        loss += float(functional.cross_entropy(found, numbers, reduction="sum"))
    if confusion.sum() == 0:
        raise TaskError(f"task {task!r}: no samples are given to measure it on.")
    loss /= confusion.sum()
    return Evaluation(task, tuple(classes), confusion, loss, of_file or measured_on)


def probabilities(logits: Tensor) -> np.ndarray:
    """The probability of each class, float32 [samples, classes]."""
    return torch.softmax(logits, 1).numpy()


def _read(
    task: str, path: str, labels: Any, subnet: Subnet | None
) -> tuple[str, np.ndarray, np.ndarray]:
    """What is measured of a folder or an .npz, its raw inputs and its labels."""
    from tinysubnets.datasets.user_files import read_labeled

    if labels is not None:
        raise TaskError(f"task {task!r}: {path} brings its labels; give none beside it.")
    if subnet is None:
        raise TaskError(
            f"task {task!r}: this method does not record how pictures become its inputs; give "
            "inputs and labels, or a Task with a test part, in the place of a path."
        )
    measured, training = read_labeled(path, subnet)
    return "data" if measured is training else "test", measured.inputs, measured.labels


def _chunks(
    task: str, classes: Sequence[Label], data: Any, labels: Any, pixels: Pixels | None
) -> tuple[str, Iterator[tuple[Any, Tensor]]]:
    """What is measured, and batches of raw inputs with the numbers of their classes."""
    if isinstance(data, Task):
        split, part = (data.valid, "valid") if data.test is None else (data.test, "test")
        own = [data.classes[number] for number in split.labels.tolist()]
        return part, _batches(split.inputs, _numbers(task, classes, own))
    if labels is None:
        if not is_dataset(data):
            raise TaskError(
                f"task {task!r}: labels are needed to measure it: evaluate(task, inputs, labels), "
                "or a Task, a data set or a loader, which bring their own."
            )
        data, labels = labeled(data, pixels=pixels)
    source = data if isinstance(data, DatasetInputs) else as_tensor(data, pixels)
    found = as_array(labels)
    if found.shape != (len(source),):
        raise TaskError(
            f"task {task!r}: {len(source)} inputs but labels of shape {found.shape}; one label per "
            "sample is needed."
        )
    return "data", _batches(source.__getitem__, _numbers(task, classes, found.tolist()))


def _batches(inputs: Callable[[slice], Tensor], numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(numbers), CHUNK):
        where = slice(start, start + CHUNK)
        yield inputs(where), numbers[where]


def _numbers(task: str, classes: Sequence[Label], labels: Sequence[Any]) -> Tensor:
    """The place of each label among the classes; one that is no class is an error."""
    number = {c: i for i, c in enumerate(classes)}
    labels = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in labels]
    strange = sorted({str(v) for v in labels if v not in number})
    if strange:
        cure = ""
        if isinstance(classes[0], str) and all(isinstance(v, int) for v in labels):
            cure = (
                " Labels are numbers here and names there: give names as labels, or say what the "
                "numbers are called by Task.from_datasets(…, classes=[…]), and evaluate that."
            )
        raise TaskError(
            f"task {task!r}: {_some(strange)} are no classes of the task, which knows "
            f"{_some(list(map(str, classes)))}.{cure}"
        )
    return torch.tensor([number[v] for v in labels], dtype=torch.int64)


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
