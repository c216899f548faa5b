"""Metrics of continual learning: the accuracy matrix, measured anew, and what follows from it.

Cell (i, j) is the accuracy on task j after task i was learned. For j <= i it is measured through
what the learner holds for task j. For j > i it is task i's own network on task j's data, class
index against class index; None where the two do not have the same number of classes. Where classes
differ, such a cell says nothing of transfer: `comparable` leaves it out.

Long runs measure fewer cells: see `MATRICES`. A cell that was not measured is None, never a number
that it ought to have, and a metric that needs such a cell is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tinysubnets.errors import SettingError

if TYPE_CHECKING:
    from tinysubnets.method.base import Learner
    from tinysubnets.tasks.task import Label, Split, Task


Row = list[float | None]
Matrix = Sequence[Sequence[float | None]]

MATRICES = {  # which cells of the accuracy matrix are measured
    "full": "every cell",
    "diagonal": "each task when it was learned, and all tasks at the end",
    "last": "all tasks at the end",
}
MatrixKind = Literal["full", "diagonal", "last"]
MAX_FULL = 50  # tasks up to which every cell is measured by default: cells grow with their square
CHUNK = 2000  # raw inputs at a time, so that large test sets stay on disk


@dataclass(frozen=True)
class Probe:
    """What a task is measured on: its test data, or its validation data where it has no test."""

    name: str
    classes: tuple[Label, ...]
    data: Split
    measured_on: str

    @classmethod
    def of(cls, task: Task) -> Probe:
        """The probe of a task."""
        if task.test is not None:
            return cls(task.name, task.classes, task.test, "test")
        return cls(task.name, task.classes, task.valid, "valid")


def parts_told(parts: Sequence[str]) -> str:
    """The parts of data that accuracies were measured on, in words.

    >>> parts_told(["test"]), parts_told(["test", "valid"])
    ('test', 'test and validation')
    """
    return " and ".join({"valid": "validation"}.get(part, part) for part in parts)


def where_not_test(parts: Sequence[str]) -> str:
    """The words behind an accuracy that say which data it is of; none if test data alone.

    >>> where_not_test(["test"]), where_not_test(["valid"])
    ('', ' on validation data')
    """
    return "" if set(parts) <= {"test"} else f" on {parts_told(parts)} data"


def measure_row(
    learner: Learner, probes: Sequence[Probe], learned: int, matrix: MatrixKind = "full"
) -> Row:
    """Row `learned` of the accuracy matrix: the tasks' accuracies now, as far as they are measured.

    `matrix` says which cells are: one of `MATRICES`.
    """
    row: Row
    if matrix != "full" and learned < len(probes) - 1:
        row = [None] * len(probes)
        if matrix == "diagonal":
            row[learned] = accuracy(learner, probes[learned])
        return row
    row = [accuracy(learner, probe) for probe in probes[: learned + 1]]
    current = probes[learned]
    return row + [accuracy_ahead(learner, current, probe) for probe in probes[learned + 1 :]]


def accuracy(learner: Learner, probe: Probe) -> float:
    """The share of a learned task's samples whose predicted class is their own.

    With the task unknown and classes of all tasks to choose from, a class of another task is wrong,
    even one of the same label.
    """
    return share_right(confusion(learner, probe))


def confusion(learner: Learner, probe: Probe) -> np.ndarray:
    """How often each class of a learned task is taken for each: counts [true, answered].

    With the task unknown there is one more column: answers that are classes of other tasks.
    """
    counts = np.zeros((len(probe.classes), len(probe.classes) + 1), dtype=np.int64)
    for start in range(0, len(probe.data), CHUNK):
        part = slice(start, start + CHUNK)
        chosen = _answers(learner, probe, probe.data.inputs(part))
        is_own = (chosen >= 0) & (chosen < len(probe.classes))
        np.add.at(counts, (probe.data.labels[part].numpy(), np.where(is_own, chosen, -1)), 1)
    return counts[:, :-1] if learner.scenario_type == "task-IL" else counts


def _answers(learner: Learner, probe: Probe, inputs: Any) -> np.ndarray:
    """The number, among a task's classes, of what is answered; others are out of their range.

    Methods with subnets find the task of an input by routing where they are not told it.
    """
    number = {label: i for i, label in enumerate(probe.classes)}
    if learner.scenario_type != "task-IL" and learner.store is not None:
        found = learner.store.predict(inputs)
        anywhere = learner.scenario_type == "domain-IL"
        return np.array(
            [
                number.get(label, -1) if anywhere or task == probe.name else -1
                for label, task in zip(found.labels.tolist(), found.tasks, strict=True)
            ]
        )
    if learner.scenario_type == "class-IL":
        return learner.logits(None, inputs).argmax(1).numpy() - learner.columns(probe.name)[0]
    if learner.scenario_type == "task-IL":  # logits stand in the order of the task's classes
        return learner.logits(probe.name, inputs).argmax(1).numpy()
    return np.array([number.get(v, -1) for v in learner.predict(None, inputs).tolist()])


def share_right(counts: np.ndarray) -> float:
    """The accuracy of a task, from its counts [true, answered]."""
    return int(counts.trace()) / int(counts.sum())


def class_accuracies(counts: np.ndarray) -> list[float | None]:
    """The accuracy on each class; None where no sample is of it."""
    totals = counts.sum(1).tolist()
    right = counts.diagonal().tolist()
    return [r / n if n else None for r, n in zip(right, totals, strict=True)]


def accuracy_ahead(learner: Learner, current: Probe, ahead: Probe) -> float | None:
    """How the current task's network does on a task not yet learned, by class index."""
    if learner.scenario_type == "class-IL":
        return None  # classes that were never seen cannot be answered
    if learner.scenario_type != "task-IL":
        # One head answers with labels it has seen: right only if the classes are the same.
        return accuracy(learner, ahead) if current.classes == ahead.classes else None
    same_shape = current.data.inputs(slice(0, 1)).shape == ahead.data.inputs(slice(0, 1)).shape
    if len(current.classes) != len(ahead.classes) or not same_shape:
        return None
    correct = 0
    for start in range(0, len(ahead.data), CHUNK):
        part = slice(start, start + CHUNK)
        logits = learner.logits(current.name, ahead.data.inputs(part))
        correct += int((logits.argmax(1) == ahead.data.labels[part]).sum())
    return correct / len(ahead.data)


def comparable(matrix: Matrix, classes: Sequence[Sequence[Label] | None]) -> list[Row]:
    """The matrix without cells above the diagonal whose two tasks have different classes.

    A network that never saw a class cannot name it: the index of another one is right or wrong by
    chance, which is neither transfer nor harm.

    - `classes`: of each task; None where they are not known, and nothing is left out.
    """
    known = [None if found is None else list(found) for found in classes]
    return [
        [
            value if j <= i or known[i] is None or known[i] == known[j] else None
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(matrix)
    ]


def summary(matrix: Matrix, num_classes: Sequence[int]) -> dict[str, float | None]:
    """All metrics of an accuracy matrix, as fractions of 1; None where one is not defined."""
    return {
        "average_accuracy": average_accuracy(matrix),
        "average_accuracy_over_time": average_accuracy_over_time(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(matrix),
        "forward_transfer_minus_chance": forward_transfer(matrix, num_classes),
        "forgetting": forgetting(matrix),
    }


def average_accuracy(matrix: Matrix) -> float:
    """ACC: the mean of the last row.

    >>> average_accuracy([[1.0, 0.5], [0.8, 0.6]])
    0.7
    """
    return _mean([_known(value) for value in _square(matrix)[-1]])


def average_accuracy_over_time(matrix: Matrix) -> float | None:
    """A of Díaz-Rodríguez et al.: the mean of the lower triangle with its diagonal."""
    rows = _lower_triangle(matrix)
    return None if rows is None else _mean([value for row in rows for value in row])


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT of Díaz-Rodríguez et al.: the mean change R[i, j] - R[j, j] below the diagonal."""
    rows = _lower_triangle(matrix) or []
    changes = [rows[i][j] - rows[j][j] for i in range(1, len(rows)) for j in range(i)]
    return _mean(changes) if changes else None


def forward_transfer(matrix: Matrix, num_classes: Sequence[int] | None = None) -> float | None:
    """FWT of Díaz-Rodríguez et al.: the mean above the diagonal, over the cells there are.

    None where there are none: with one task, or where all tasks differ in classes (`comparable`).

    With `num_classes` the chance of task j, one over its classes, is taken off each cell.
    """
    rows = _square(matrix)
    cells = []
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            value = rows[i][j]
            if value is not None:
                cells.append(value - (0.0 if num_classes is None else 1.0 / num_classes[j]))
    return _mean(cells) if cells else None


def forgetting(matrix: Matrix) -> float | None:
    """The mean, over all tasks but the last, of how far accuracy fell from its earlier best."""
    rows = _lower_triangle(matrix) or []
    last = len(rows) - 1
    falls = [max(rows[i][j] for i in range(j, last)) - rows[last][j] for j in range(last)]
    return _mean(falls) if falls else None


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


def _square(matrix: Matrix) -> Matrix:
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise SettingError(
            f"an accuracy matrix is square and not empty; this one has {len(matrix)} rows of "
            f"{sorted({len(row) for row in matrix})} cells."
        )
    return matrix


def _lower_triangle(matrix: Matrix) -> list[list[float]] | None:
    """The cells up to the diagonal; None where some of them were not measured."""
    rows = [list(row[: i + 1]) for i, row in enumerate(_square(matrix))]
    known = [[value for value in row if value is not None] for row in rows]
    return known if [len(row) for row in known] == [len(row) for row in rows] else None


def _known(value: float | None) -> float:
    if value is None:
        raise SettingError("an accuracy matrix has a number in every cell of its last row.")
    return value
