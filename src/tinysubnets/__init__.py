"""TinySubNets: one network, many tasks, not one bit forgotten.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what a type checker sees; tests compare it with the table below
    from tinysubnets.errors import ArchitectureError as ArchitectureError
    from tinysubnets.errors import ArtifactError as ArtifactError
    from tinysubnets.errors import CapacityError as CapacityError
    from tinysubnets.errors import CapacityWarning as CapacityWarning
    from tinysubnets.errors import ConflictError as ConflictError
    from tinysubnets.errors import DamageError as DamageError
    from tinysubnets.errors import DataError as DataError
    from tinysubnets.errors import FewSamplesWarning as FewSamplesWarning
    from tinysubnets.errors import FormatError as FormatError
    from tinysubnets.errors import MismatchError as MismatchError
    from tinysubnets.errors import RunError as RunError
    from tinysubnets.errors import SettingError as SettingError
    from tinysubnets.errors import TaskError as TaskError
    from tinysubnets.errors import TinySubNetsError as TinySubNetsError
    from tinysubnets.experiments.recipe import Plan as Plan
    from tinysubnets.experiments.recipe import Recipe as Recipe
    from tinysubnets.experiments.run import Experiment as Experiment
    from tinysubnets.experiments.run_dir import RunDir as RunDir
    from tinysubnets.method.base import Learner as Learner
    from tinysubnets.method.base import TaskReport as TaskReport
    from tinysubnets.method.base import TaskTrainer as TaskTrainer
    from tinysubnets.method.core import SubnetReport as SubnetReport
    from tinysubnets.method.learner import TinySubNets as TinySubNets
    from tinysubnets.method.pruning import PruningSettings as PruningSettings
    from tinysubnets.method.settings import TSNSettings as TSNSettings
    from tinysubnets.model.bank import Bank as Bank
    from tinysubnets.model.evaluation import Evaluation as Evaluation
    from tinysubnets.model.evaluation import UnknownEvaluation as UnknownEvaluation
    from tinysubnets.model.routing import Prediction as Prediction
    from tinysubnets.model.routing import Routing as Routing
    from tinysubnets.model.routing import RoutingSettings as RoutingSettings
    from tinysubnets.model.size import Ledger as Ledger
    from tinysubnets.model.store import SubnetStore as SubnetStore
    from tinysubnets.model.subnet import Subnet as Subnet
    from tinysubnets.nn.architecture import Architecture as Architecture
    from tinysubnets.tasks.augment import Augmentation as Augmentation
    from tinysubnets.tasks.normalization import Normalization as Normalization
    from tinysubnets.tasks.task import Task as Task
    from tinysubnets.training.loop import EpochReport as EpochReport
    from tinysubnets.training.settings import TrainingSettings as TrainingSettings

# module -> the public names that live there
_PUBLIC = {
    "errors": "ArchitectureError ArtifactError CapacityError CapacityWarning ConflictError "
    "DamageError DataError FewSamplesWarning FormatError MismatchError RunError SettingError "
    "TaskError TinySubNetsError",
    "experiments.recipe": "Plan Recipe",
    "experiments.run": "Experiment",
    "experiments.run_dir": "RunDir",
    "method.base": "Learner TaskReport TaskTrainer",
    "method.core": "SubnetReport",
    "method.learner": "TinySubNets",
    "method.pruning": "PruningSettings",
    "method.settings": "TSNSettings",
    "model.bank": "Bank",
    "model.evaluation": "Evaluation UnknownEvaluation",
    "model.routing": "Prediction Routing RoutingSettings",
    "model.size": "Ledger",
    "model.store": "SubnetStore",
    "model.subnet": "Subnet",
    "nn.architecture": "Architecture",
    "tasks.augment": "Augmentation",
    "tasks.normalization": "Normalization",
    "tasks.task": "Task",
    "training.loop": "EpochReport",
    "training.settings": "TrainingSettings",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
