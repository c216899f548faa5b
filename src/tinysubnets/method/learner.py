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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import config
from tinysubnets.errors import (
    ArchitectureError,
    CapacityWarning,
    FormatError,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.method.banks import choose_bank, remember
from tinysubnets.method.compress import compress
from tinysubnets.method.pruning import PruningSettings
from tinysubnets.method.settings import TSNSettings
from tinysubnets.model.bank import Bank
from tinysubnets.model.size import Ledger
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BankDecision, Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState, InitKey, initial_state, scores_from_mask
from tinysubnets.nn.masked import Compression, TaskModule
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.precision import pick_device
from tinysubnets.training.settings import TrainingSettings


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
        self.pretrained = _pretrained(architecture) if self.settings.init == "pretrained" else None
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
        overrides: Iterable[str] = (),
    ) -> TinySubNets:
        """The learner of a saved model, which goes on exactly as the live one would have.

        `overrides` are `key=value` assignments to its settings, such as "training.epochs=5".
        """
        store = SubnetStore.load(folder, net, device=pick_device(device))
        if "tsn" not in store.settings:
            raise MismatchError("this model was not made by TinySubNets; it can only be used.")
        overrides = list(overrides)
        recorded = config.override(config.modernized(store.settings), overrides)
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
            if overrides and isinstance(error, SettingError):
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

    def begin(self, task: Task) -> TaskTrainer:
        """Check a task, choose its bank, and set up its training; nothing is learned yet."""
        if not isinstance(task, Task):
            raise TaskError(f"a Task is needed, not {type(task).__name__}; see Task.from_arrays.")
        self.check_name(task.name)
        return self._trainer(task)

    def check_name(self, name: str) -> None:
        """Refuse the name of a task that has been learned."""
        if name in self.store.subnets:
            raise TaskError(
                f"a task named {name!r} has been learned already; "
                "learned tasks never change, so choose another name."
            )

    def learn(self, task: Task) -> Subnet:
        """Learn a task to its end and keep it for ever."""
        trainer = self.begin(task)
        while not trainer.finished:
            trainer.epoch()
        return trainer.finish()

    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits of a learned task for raw inputs."""
        if task is None:
            raise TaskError("this method needs to know the task of its inputs: give its name.")
        return self.store.logits(task, inputs)

    def predict(self, task: str, inputs: Any) -> np.ndarray:
        """The user's own labels for raw inputs of a learned task."""
        return self.store.predict(task, inputs)

    def _trainer(self, task: Task) -> TaskTrainer:
        return TaskTrainer(self, task)

    def _recorded_settings(self) -> dict[str, Any]:
        """What a saved store keeps of the learner, so that learning can go on from it."""
        recorded: dict[str, Any] = {
            "tsn": config.to_dict(self.settings),
            "training": config.to_dict(self.training),
            "pruning": config.to_dict(self.pruning),
        }
        if self.pretrained is not None:
            recorded["given"] = _hash(self.pretrained)
        return recorded

    def _check_store(self) -> None:
        """Refuse to go on from a store that was made in another way."""
        block = self.store.layout.block
        if block != self.settings.block:
            raise SettingError(
                f"block = {self.settings.block}, but the store has masks of block {block}; "
                f"give block={block}."
            )
        if self.store.subnets and self.pretrained is not None:
            if self.store.settings.get("given") != _hash(self.pretrained):
                raise MismatchError(
                    "init = 'pretrained', but these are not the weights that learning began with; "
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


def _pretrained(architecture: Architecture) -> dict[str, Tensor]:
    """A copy of the weights of the network as the user gave it."""
    return {n: t.detach().float().cpu().clone() for n, t in architecture.pretrained.items()}


def _hash(tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].numpy().tobytes())
    return sha.hexdigest()


# --------------------------------------------------------------------------------------------------
# A lesson: one task taught to TinySubNets step by step, epoch by epoch, then kept for ever.


@dataclass(frozen=True)
class TaskReport:
    """What learning one task came to."""

    name: str
    bank: int
    reason: str
    bits: int
    density: float
    owned_before_pruning: float
    owned_after_pruning: float
    valid_accuracy: float
    best_epoch: int
    training_seconds: float
    pruning_seconds: float


class TaskTrainer:
    """One task being learned: epochs one at a time, then `finish()`, which keeps it for ever."""

    def __init__(self, learner: TinySubNets, task: Task) -> None:
        self.learner, self.task = learner, task
        store = learner.store
        self.number = len(store.subnets)
        self.memory = remember(task, learner.settings)
        self.decision: BankDecision = choose_bank(store, self.memory, learner.settings)
        is_new = self.decision.bank >= len(store.banks)
        self.module = self._module(
            Bank(store.layout) if is_new else store.banks[self.decision.bank]
        )
        self._try_network()
        self.training = self._train(learner.training)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""
        return self.training.finished

    def epoch(self) -> EpochReport:
        """Train one epoch."""
        return self.training.epoch()

    def finish(self) -> Subnet:
        """Take the best epoch, quantize, prune and claim it; the task is learned."""
        if len(self.learner.store.subnets) != self.number:
            raise TaskError(
                f"the store has changed since the lesson on {self.task.name!r} began, and with it "
                "what the lesson started from; begin it again."
            )
        self.training.restore_best_()
        subnet, seconds = self._compress()
        self.learner.store.add_(subnet)
        bank = self.learner.store.banks[subnet.bank]
        kept = self.learner.store.layout.block_sizes[subnet.mask].sum()
        self.learner.reports[subnet.name] = TaskReport(
            subnet.name,
            subnet.bank,
            self.decision.reason,
            subnet.bits,
            float(kept) / bank.layout.num_weights,
            subnet.owned_before_pruning,
            bank.owned_share(),
            subnet.valid_accuracy,
            self.training.progress.best_epoch,
            self.training.progress.seconds,
            seconds,
        )
        return subnet

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on with this lesson later, taken between two epochs."""
        return self.training.state()

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a lesson on the same task and the same store."""
        self.training.restore_(tensors, numbers)

    def _module(self, bank: Bank) -> TaskModule:
        """What is trained: masked weights over the bank."""
        settings, store = self.learner.settings, self.learner.store
        keep, free = (
            store.layout.keep(settings.density, settings.density_exponent),
            bank.free_per_tensor(),
        )
        if settings.sharing == "none":
            keep = tuple(min(k, f) for k, f in zip(keep, free, strict=True))
        elif sum(free) == 0:
            self.learner._warn_once(self.decision.bank)
        compression = Compression(
            keep,
            settings.width_in_training,
            settings.sharing == "values",
            settings.codebooks,
            settings.layer_loss_weight,
        )
        architecture = self.learner.architecture
        return TaskModule(
            architecture, store.layout, bank.values, bank.owned, self._initial_state(), compression
        )

    def _train(self, settings: TrainingSettings) -> Training:
        """The training of the module with these settings."""
        learner = self.learner
        return Training(
            self.module,
            self.task,
            settings,
            seed=learner.settings.seed,
            number=self.number,
            device=learner.device,
        )

    def _compress(self) -> tuple[Subnet, float]:
        """The subnet of the trained module, and the seconds that post-pruning took."""
        return compress(self)

    def _initial_state(self) -> InitialState:
        learner, settings = self.learner, self.learner.settings
        init_key = InitKey(settings.seed, self.decision.bank, self.number, settings.scale)
        start = initial_state(
            learner.architecture,
            learner.store.layout,
            init_key,
            self.task.num_classes,
            learner.pretrained,
        )
        members = learner.store.members(self.decision.bank)
        if settings.score_init == "random" or not members:
            return start
        example = members[-1]
        if settings.previous_mask_of == "similar" and self.decision.nearest is not None:
            near = learner.store.subnet(self.decision.nearest)
            example = near if near.bank == self.decision.bank else example
        return InitialState(
            scores_from_mask(start.scores, example.mask, learner.store.layout),
            start.free,
            start.task_params,
        )

    def _try_network(self) -> None:
        """Fail now, with an explanation, if the network cannot take this task's inputs."""
        raw = self.task.train.inputs(torch.arange(min(2, len(self.task.train))))
        tensors = {n: t.detach() for n, t in self.module.tensors(self.module.free.detach()).items()}
        self.learner.architecture.check(
            tensors, self.task.normalization(raw), self.task.num_classes
        )
