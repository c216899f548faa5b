"""Scenarios: sequences of tasks by name, made when asked for, from the seed alone.

The table here needs no torch, so that scenarios can be listed at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tinysubnets import config
from tinysubnets.errors import SettingError, unknown
from tinysubnets.scenarios import settings as kinds

if TYPE_CHECKING:
    from tinysubnets.tasks.task import Task

__all__ = ["SCENARIOS", "Entry", "Scenario", "build", "entry", "settings"]


class Scenario(Protocol):
    """Tasks in order: their names are known at once, their data are made when asked for."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of learning."""
        ...

    def task(self, index: int) -> Task:
        """The task at a place of the sequence, with its test data if these were asked for."""
        ...


@dataclass(frozen=True)
class Entry:
    """One scenario: a line about it, its tasks and network in words, its data, its code.

    `defaults` are settings of this scenario where they differ from those of its kind.
    """

    line: str
    tasks: str
    network: str
    datasets: tuple[str, ...]
    code: str
    kind: type[kinds.DataSettings]
    defaults: Mapping[str, Any] = field(default_factory=dict)


_PERMUTED, _SPLIT = "tinysubnets.scenarios.permuted:Permuted", "tinysubnets.scenarios.split:Split"
_SEQUENCE, _OWN = "tinysubnets.scenarios.sequence:Sequence", "tinysubnets.scenarios.own:Own"

SCENARIOS: dict[str, Entry] = {
    "permuted-digits": Entry(
        "8x8 handwritten digits, pixels permuted for each task",
        "5 x 10", "MLP 64-100-100", ("digits",), _PERMUTED, kinds.PermutedSettings,
        {"dataset": "digits", "num_tasks": 5},
    ),
    "split-digits": Entry(
        "8x8 handwritten digits, two of them per task",
        "5 x 2", "MLP 64-100-100", ("digits",), _SPLIT, kinds.SplitSettings,
        {"dataset": "digits", "classes_per_task": 2},
    ),
    "permuted-mnist": Entry(
        "MNIST, pixels permuted for each task; any number of tasks",
        "10 x 10", "MLP 784-100-100", ("mnist",), _PERMUTED, kinds.PermutedSettings,
    ),
    "split-cifar100": Entry(
        "CIFAR-100, ten classes per task; other splits too",
        "10 x 10", "AlexNet-like", ("cifar100",), _SPLIT, kinds.SplitSettings,
    ),
    "five-datasets": Entry(
        "MNIST, SVHN, Fashion-MNIST, CIFAR-10 and notMNIST as 3x32x32",
        "5 x 10", "ResNet-18, width 20",
        ("mnist", "svhn", "fashion-mnist", "cifar10", "notmnist"),
        _SEQUENCE, kinds.SequenceSettings,
    ),
    "tiny-imagenet": Entry(
        "Tiny-ImageNet, five classes per task",
        "40 x 5", "TinyNet", ("tiny-imagenet",), _SPLIT, kinds.SplitSettings,
        {"dataset": "tiny-imagenet", "classes_per_task": 5},
    ),
    "imagenet100": Entry(
        "ImageNet-100 at 224 pixels, ten classes per task",
        "10 x 10", "ResNet-18, width 64", ("imagenet100",), _SPLIT, kinds.SplitSettings,
        {"dataset": "imagenet100"},
    ),
    "own": Entry(
        "your own tasks: a TOML file with a table [tasks.NAME] for each",
        "any", "any", (), _OWN, kinds.OwnSettings,
    ),
}  # fmt: skip


def entry(name: str) -> Entry:
    """The entry of a scenario."""
    if name not in SCENARIOS:
        raise SettingError(unknown("scenario", name, SCENARIOS))
    return SCENARIOS[name]


def settings(name: str, values: Mapping[str, Any] | None = None) -> Any:
    """The settings of a scenario: its defaults with the given values over them, checked."""
    found = entry(name)
    return config.build(found.kind, config.merge(found.defaults, values or {}), "data")


def build(
    name: str,
    values: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    with_test: bool = True,
) -> Scenario:
    """The scenario of that name.

    - `values`: settings of the scenario where they differ from its defaults.
    - `seed`: of all that is drawn: permutations, the order of classes, validation data; the
      setting `seed` of the scenario goes before it.
    - `root`, `cache`: where data sets lie, and where decoded ones are kept.
    - `with_test`: without it no test data are read at all, and tasks have none.
    """
    from tinysubnets.scenarios.sets import Sets

    module, _, attribute = entry(name).code.partition(":")
    own = settings(name, values)
    sets = Sets(own, seed if own.seed is None else own.seed, root, cache, with_test and own.test)
    made: Scenario = getattr(importlib.import_module(module), attribute)(own, sets)
    return made
