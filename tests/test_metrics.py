"""Metrics on hand-made matrices, and the matrix measured through a learner that can be counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tinysubnets.errors import SettingError
from tinysubnets.experiments import metrics
from tinysubnets.tasks.task import Task

MATRIX = [
    [0.9, 0.2, 0.4],
    [0.8, 0.7, 0.1],
    [0.6, 0.8, 0.5],
]


def test_hand_made_matrix() -> None:
    found = metrics.summary(MATRIX, [2, 4, 5])
    assert found == {
        "average_accuracy": pytest.approx((0.6 + 0.8 + 0.5) / 3),
        "average_accuracy_over_time": pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.8 + 0.5) / 6),
        "backward_transfer": pytest.approx(((0.8 - 0.9) + (0.6 - 0.9) + (0.8 - 0.7)) / 3),
        "forward_transfer": pytest.approx((0.2 + 0.4 + 0.1) / 3),
        "forward_transfer_minus_chance": pytest.approx((-0.05 + 0.2 - 0.1) / 3),
        "forgetting": pytest.approx((0.3 - 0.1) / 2),
    }


def test_a_perfect_memory_has_no_backward_transfer_and_no_forgetting() -> None:
    matrix = [[0.9, 0.1], [0.9, 0.8]]
    assert metrics.backward_transfer(matrix) == 0.0
    assert metrics.forgetting(matrix) == 0.0


def test_null_cells_are_left_out_of_forward_transfer_only() -> None:
    matrix = [[0.9, None, 0.3], [0.9, 0.7, None], [0.9, 0.7, 0.5]]
    assert metrics.forward_transfer(matrix) == pytest.approx(0.3)
    assert metrics.average_accuracy(matrix) == pytest.approx(0.7)
    assert metrics.forward_transfer([[0.9, None], [0.9, 0.5]]) is None


def test_one_task_has_no_transfer() -> None:
    found = metrics.summary([[0.5]], [2])
    assert found["average_accuracy"] == 0.5
    assert found["backward_transfer"] is found["forward_transfer"] is found["forgetting"] is None


@pytest.mark.parametrize("matrix", [[], [[0.5, 0.5]], [[0.5, 0.1], [None, 0.5]]])
def test_matrices_that_cannot_be_summarised(matrix: list) -> None:
    with pytest.raises(SettingError):
        metrics.summary(matrix, [2, 2])


class Oracle:
    """A stand-in learner that knows for which tasks it is right, and what it was asked."""

    store = None

    def __init__(self, scenario_type: str | None = None) -> None:
        self.asked: list[str | None] = []
        self.scenario_type = scenario_type or "task-IL"

    def logits(self, task: str | None, inputs: torch.Tensor) -> torch.Tensor:
        self.asked.append(task)
        return torch.nn.functional.one_hot(inputs[:, 0].long(), 2).float()

    def predict(self, task: str | None, inputs: torch.Tensor) -> np.ndarray:
        labels = {"a": ("x", "y"), "b": ("p", "q"), "c": ("k", "l", "m")}[task or "a"]
        return np.array(labels)[self.logits(task, inputs).argmax(1).numpy()]


def make(name: str, labels: list[str], right: int) -> Task:
    """A task of ten test samples of which the oracle gets `right` right."""
    numbers = np.arange(10) % len(labels)
    said = np.where(np.arange(10) < right, numbers, 1 - np.minimum(numbers, 1))
    inputs = np.stack([said, said], 1).astype(np.float32)
    names = np.array(labels)[numbers]
    return Task.from_arrays(name, inputs, names, valid=0.2, test=(inputs, names))


def test_row_is_measured_anew_and_looks_ahead_by_class_index() -> None:
    tasks = [make("a", ["x", "y"], 8), make("b", ["p", "q"], 6), make("c", ["k", "l", "m"], 6)]
    probes = [metrics.Probe.of(t) for t in tasks]
    oracle = Oracle()
    assert metrics.measure_row(oracle, probes, 0) == [0.8, 0.6, None]
    assert oracle.asked == ["a", "a"]
    oracle.asked.clear()
    assert metrics.measure_row(oracle, probes, 1) == [0.8, 0.6, None]
    assert oracle.asked == ["a", "b"]


def test_transfer_is_not_defined_between_tasks_of_different_classes() -> None:
    matrix = [[0.9, 0.0, 0.6], [0.9, 0.8, 0.0], [0.9, 0.8, 0.7]]
    some = metrics.comparable(matrix, [("x", "y"), ("p", "q"), ("x", "y")])
    assert some == [[0.9, None, 0.6], [0.9, 0.8, None], [0.9, 0.8, 0.7]]
    assert metrics.forward_transfer(some) == 0.6
    none = metrics.comparable(matrix, [("x", "y"), ("p", "q"), ("k", "l")])
    found = metrics.summary(none, [2, 2, 2])
    assert found["forward_transfer"] is found["forward_transfer_minus_chance"] is None
    assert found["backward_transfer"] == 0.0 and found["average_accuracy"] == pytest.approx(0.8)
    assert metrics.comparable(matrix, [None, None, None]) == matrix


def test_unknown_task_is_asked_as_none() -> None:
    oracle = Oracle("domain-IL")
    probes = [metrics.Probe.of(make(n, ["x", "y"], r)) for n, r in (("a", 8), ("b", 5))]
    assert metrics.measure_row(oracle, probes, 0) == [0.8, 0.5]
    assert oracle.asked == [None, None]


def test_validation_data_stand_in_for_missing_test_data() -> None:
    task = Task.from_arrays("a", np.eye(10, dtype=np.float32), np.arange(10) % 2, valid=0.2)
    assert metrics.Probe.of(task).measured_on == "valid"


NEEDS_ALL = ("average_accuracy_over_time", "backward_transfer", "forward_transfer", "forgetting")


@pytest.mark.parametrize(
    ("kind", "rows", "asked"),
    [
        ("diagonal", [[0.8, None, None], [None, 0.6, None], [0.8, 0.6, 0.4]], 5),
        ("last", [[None] * 3, [None] * 3, [0.8, 0.6, 0.4]], 3),
    ],
)
def test_cells_that_are_not_measured_are_none_and_so_is_what_needs_them(
    kind: metrics.MatrixKind, rows: list, asked: int
) -> None:
    tasks = [make("a", ["x", "y"], 8), make("b", ["p", "q"], 6), make("a", ["x", "y"], 4)]
    oracle, probes = Oracle(), [metrics.Probe.of(t) for t in tasks]
    assert [metrics.measure_row(oracle, probes, i, kind) for i in range(3)] == rows
    assert len(oracle.asked) == asked
    found = metrics.summary(rows, [2, 2, 2])
    assert found["average_accuracy"] == pytest.approx(0.6)
    assert [found[name] for name in NEEDS_ALL] == [None] * len(NEEDS_ALL)
