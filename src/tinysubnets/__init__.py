"""TinySubNets: one network, many tasks, not one bit forgotten.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinysubnets.version import __version__

if TYPE_CHECKING:
    from tinysubnets.errors import (
        ArchitectureError,
        ArtifactError,
        CapacityError,
        CapacityWarning,
        ConflictError,
        DamageError,
        DataError,
        FormatError,
        MismatchError,
        RunError,
        SettingError,
        TaskError,
        TinySubNetsError,
    )
    from tinysubnets.experiments.recipe import Plan, Recipe
    from tinysubnets.experiments.run import Experiment
    from tinysubnets.experiments.run_dir import RunFolder
    from tinysubnets.method.learner import Lesson, TaskReport, TinySubNets
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.method.settings import TSNSettings
    from tinysubnets.model.bank import Bank
    from tinysubnets.model.size import Ledger
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.model.subnet import Subnet
    from tinysubnets.nn.architecture import Architecture
    from tinysubnets.tasks.augment import Augmentation
    from tinysubnets.tasks.normalization import Normalisation
    from tinysubnets.tasks.task import Task
    from tinysubnets.training.loop import EpochReport
    from tinysubnets.training.settings import TrainingSettings

# module -> the public names that live there
_PUBLIC = {
    "nn.architecture": ("Architecture",),
    "tasks.augment": ("Augmentation",),
    "model.bank": ("Bank",),
    "model.size": ("Ledger",),
    "errors": (
        "ArchitectureError",
        "ArtifactError",
        "CapacityError",
        "CapacityWarning",
        "ConflictError",
        "DamageError",
        "DataError",
        "FormatError",
        "MismatchError",
        "RunError",
        "SettingError",
        "TaskError",
        "TinySubNetsError",
    ),
    "experiments.run": ("Experiment",),
    "method.settings": ("TSNSettings",),
    "method.learner": ("Lesson", "TaskReport", "TinySubNets"),
    "tasks.normalization": ("Normalisation",),
    "method.pruning": ("PruningSettings",),
    "experiments.recipe": ("Plan", "Recipe"),
    "experiments.run_dir": ("RunFolder",),
    "model.store": ("SubnetStore",),
    "model.subnet": ("Subnet",),
    "tasks.task": ("Task",),
    "training.loop": ("EpochReport",),
    "training.settings": ("TrainingSettings",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "Architecture",
    "ArchitectureError",
    "ArtifactError",
    "Augmentation",
    "Bank",
    "CapacityError",
    "CapacityWarning",
    "ConflictError",
    "DamageError",
    "DataError",
    "EpochReport",
    "Experiment",
    "FormatError",
    "Ledger",
    "Lesson",
    "MismatchError",
    "Normalisation",
    "Plan",
    "PruningSettings",
    "Recipe",
    "RunError",
    "RunFolder",
    "SettingError",
    "Subnet",
    "SubnetStore",
    "TSNSettings",
    "Task",
    "TaskError",
    "TaskReport",
    "TinySubNets",
    "TinySubNetsError",
    "TrainingSettings",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
