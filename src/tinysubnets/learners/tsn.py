"""TinySubNets: the learner of many tasks.

learner = TinySubNets(Architecture(net, head="fc"), density=0.1)
learner.learn(task)                       # or, in visible steps:

lesson = learner.begin(task)
while not lesson.finished:
    print(lesson.epoch())
lesson.finish()
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import config
from tinysubnets.architecture import Architecture
from tinysubnets.capacity import Ledger
from tinysubnets.errors import (
    ArchitectureError,
    CapacityWarning,
    FormatError,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.learners.lesson import Lesson, TaskReport
from tinysubnets.learners.settings import TSNSettings
from tinysubnets.numerics import pick_device
from tinysubnets.pruning import PruningSettings
from tinysubnets.store import SubnetStore
from tinysubnets.subnet import Subnet
from tinysubnets.task import Task
from tinysubnets.training_settings import TrainingSettings


class TinySubNets:
    """A learner of many tasks in one network that forgets nothing; see `TSNSettings`."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: PruningSettings | Mapping | None = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(architecture, Architecture):
            raise ArchitectureError(
                f"an Architecture is needed, not {type(architecture).__name__}; wrap the network: "
                'Architecture(net, head="the name of its last layer").'
            )
        self.settings = config.build(TSNSettings, settings)
        self.training = config.build(TrainingSettings, training, "training")
        self.pruning = config.build(PruningSettings, pruning, "pruning")
        self.device = pick_device(device)
        self.architecture = architecture
        self.given = _given(architecture) if self.settings.init == "given" else None
        if store is None:
            store = SubnetStore(architecture, block=self.settings.block, device=self.device)
        self.store = store
        self._check_store()
        self.store.settings = self._recorded_settings()
        self.reports: dict[str, TaskReport] = {}
        self._has_warned = False

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike[str],
        net: nn.Module | Architecture | None = None,
        *,
        device: str | torch.device = "cpu",
        changes: Iterable[str] = (),
    ) -> TinySubNets:
        """The learner of a saved model, which goes on exactly as the live one would have.

        `changes` are `key=value` assignments to its settings, such as "training.epochs=5".
        """
        store = SubnetStore.load(folder, net, device=pick_device(device))
        if "tsn" not in store.settings:
            raise MismatchError("this model was not made by TinySubNets; it can only be used.")
        changes = list(changes)
        recorded = config.override(store.settings, changes)
        try:
            return cls(
                store.architecture,
                training=recorded.get("training"),
                pruning=recorded.get("pruning"),
                device=device,
                store=store,
                **recorded["tsn"],
            )
        except (SettingError, TypeError) as error:
            if changes and isinstance(error, SettingError):
                raise  # it names the setting, and most likely the change is what is wrong
            raise FormatError(f"the recorded settings are not of this version: {error}") from error

    def __repr__(self) -> str:
        return f"TinySubNets({self.store!r})"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return self.store.tasks

    def ledger(self) -> Ledger:
        """What the model weighs, in bits, line by line and task by task."""
        return self.store.ledger()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a folder, atomically; returns the path of its file."""
        return self.store.save(folder)

    def begin(self, task: Task) -> Lesson:
        """Check a task, choose its bank, and set up its training; nothing is learned yet."""
        if not isinstance(task, Task):
            raise TaskError(f"a Task is needed, not {type(task).__name__}; see Task.from_arrays.")
        self.check_name(task.name)
        return self._lesson(task)

    def check_name(self, name: str) -> None:
        """Refuse the name of a task that has been learned."""
        if name in self.store.subnets:
            raise TaskError(
                f"a task named {name!r} has been learned already; "
                "learned tasks never change, so choose another name."
            )

    def learn(self, task: Task) -> Subnet:
        """Learn a task to its end and keep it for ever."""
        lesson = self.begin(task)
        while not lesson.finished:
            lesson.epoch()
        return lesson.finish()

    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The class scores of a learned task for raw inputs."""
        if task is None:
            raise TaskError("this method needs to know the task of its inputs: give its name.")
        return self.store.logits(task, inputs)

    def predict(self, task: str, inputs: Any) -> np.ndarray:
        """The user's own labels for raw inputs of a learned task."""
        return self.store.predict(task, inputs)

    def _lesson(self, task: Task) -> Lesson:
        return Lesson(self, task)

    def _recorded_settings(self) -> dict[str, Any]:
        """What a saved store keeps of the learner, so that learning can go on from it."""
        recorded: dict[str, Any] = {
            "tsn": config.to_dict(self.settings),
            "training": config.to_dict(self.training),
            "pruning": config.to_dict(self.pruning),
        }
        if self.given is not None:
            recorded["given"] = _hash(self.given)
        return recorded

    def _check_store(self) -> None:
        """Refuse to go on from a store that was made in another way."""
        block = self.store.layout.block
        if block != self.settings.block:
            raise SettingError(
                f"block = {self.settings.block}, but the store has masks of block {block}; "
                f"give block={block}."
            )
        if self.store.subnets and self.given is not None:
            if self.store.settings.get("given") != _hash(self.given):
                raise MismatchError(
                    "init = 'given', but these are not the weights that learning began with; "
                    "pass the same pretrained network."
                )

    def _warn_once(self, bank: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"bank {bank} has no free weights left; later tasks are learned by mask "
                "alone, from the values that earlier tasks own.",
                CapacityWarning,
                stacklevel=4,
            )


def _given(architecture: Architecture) -> dict[str, Tensor]:
    """A copy of the weights of the network as the user gave it."""
    return {n: t.detach().float().cpu().clone() for n, t in architecture.given.items()}


def _hash(tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].numpy().tobytes())
    return sha.hexdigest()
