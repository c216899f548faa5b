"""TinySubNets: one network, many tasks, not one bit forgotten.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinysubnets.version import __version__

if TYPE_CHECKING:
    from tinysubnets.architecture import Architecture
    from tinysubnets.augment import Augmentation
    from tinysubnets.bank import Bank
    from tinysubnets.capacity import Ledger
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
    from tinysubnets.experiment import Experiment
    from tinysubnets.learners.lesson import Lesson, TaskReport
    from tinysubnets.learners.settings import TSNSettings
    from tinysubnets.learners.tsn import TinySubNets
    from tinysubnets.normalisation import Normalisation
    from tinysubnets.plan import Plan
    from tinysubnets.pruning import PruningSettings
    from tinysubnets.recipe import Recipe
    from tinysubnets.run_folder import RunFolder
    from tinysubnets.store import SubnetStore
    from tinysubnets.subnet import Subnet
    from tinysubnets.task import Task
    from tinysubnets.training import EpochReport
    from tinysubnets.training_settings import TrainingSettings

# module -> the public names that live there
_PUBLIC = {
    "architecture": ("Architecture",),
    "augment": ("Augmentation",),
    "bank": ("Bank",),
    "capacity": ("Ledger",),
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
    "experiment": ("Experiment",),
    "learners.settings": ("TSNSettings",),
    "learners.lesson": ("Lesson", "TaskReport"),
    "learners.tsn": ("TinySubNets",),
    "normalisation": ("Normalisation",),
    "plan": ("Plan",),
    "pruning": ("PruningSettings",),
    "recipe": ("Recipe",),
    "run_folder": ("RunFolder",),
    "store": ("SubnetStore",),
    "subnet": ("Subnet",),
    "task": ("Task",),
    "training": ("EpochReport",),
    "training_settings": ("TrainingSettings",),
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
