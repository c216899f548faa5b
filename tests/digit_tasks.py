"""Small digit tasks for the tests of methods: permuted (the same classes) and split (two each)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

NUM_TRAIN = 700


@lru_cache(maxsize=1)
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data.astype(np.uint8)[order], data.target[order]


@lru_cache(maxsize=4)
def permuted(num_tasks: int = 3, num_train: int = NUM_TRAIN) -> tuple[Task, ...]:
    x, y = digits()
    tasks = []
    for number in range(num_tasks):
        order = np.random.default_rng(number).permutation(64) if number else np.arange(64)
        z = x[:, order]
        test = (z[-400:], y[-400:])
        tasks.append(Task.from_arrays(f"p{number}", z[:num_train], y[:num_train], test=test))
    return tuple(tasks)


@lru_cache(maxsize=4)
def split(num_tasks: int = 5) -> tuple[Task, ...]:
    x, y = digits()
    tasks = []
    for number in range(num_tasks):
        train = (y[:1200] // 2) == number
        rest = (y[1200:] // 2) == number
        test = (x[1200:][rest], y[1200:][rest])
        tasks.append(Task.from_arrays(f"s{number}", x[:1200][train], y[:1200][train], test=test))
    return tuple(tasks)


def small_net(norm: bool = False, width: int = 64) -> Architecture:
    net = nn.Sequential()
    net.append(nn.Linear(64, width))
    if norm:
        net.append(nn.BatchNorm1d(width))
    net.append(nn.ReLU())
    net.append(nn.Linear(width, width))
    net.append(nn.ReLU())
    net.add_module("fc", nn.Linear(width, 10))
    return Architecture(net)


def accuracy(learner, task: Task) -> float:
    """The share of test samples answered rightly, the task told only where it is known."""
    inputs, labels = task.test.inputs(), task.test.labels
    if learner.scenario_type == "task-IL":
        return float((learner.logits(task.name, inputs).argmax(1) == labels).float().mean())
    first = learner.columns(task.name)[0]
    return float((learner.logits(None, inputs).argmax(1) == labels + first).float().mean())


def run(learner, tasks) -> tuple[list[float], list[float]]:
    """Accuracies just after each task was learned, and all of them at the end."""
    fresh = []
    for task in tasks:
        learner.learn(task)
        fresh.append(accuracy(learner, task))
    return fresh, [accuracy(learner, task) for task in tasks]


def backward_transfer(fresh: list[float], final: list[float]) -> float:
    """How much the tasks before the last changed since they were learned."""
    return float(np.mean(np.subtract(final[:-1], fresh[:-1])))
