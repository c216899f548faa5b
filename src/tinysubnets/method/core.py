"""The masked core: one store, and what it takes to train a subnet over it and to claim it.

Every method that gives a task a mask holds one: TinySubNets, WSN, PackNet, Ada-QPackNet. They
differ in which module they train, for how long, and how they compress it.
"""

from __future__ import annotations

import io
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets import config
from tinysubnets.errors import (
    CapacityWarning,
    FormatError,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.format.container import ModelFile
from tinysubnets.format.io import encode, read_contents
from tinysubnets.method.base import (
    ScenarioType,
    State,
    TaskReport,
    TaskTrainer,
    Turn,
    check_architecture,
    check_method,
    check_task,
    learn,
)
from tinysubnets.method.compress import Compressed, Compressor, TaskParamSettings
from tinysubnets.model.bank import Bank
from tinysubnets.model.size import Ledger
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import NO_BANK, BankDecision, PackedMask, Sample, Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState, InitKey, initial_state, weights_hash
from tinysubnets.nn.masked import TaskModule
from tinysubnets.tasks.divergence import InputStatistics
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.precision import pick_device
from tinysubnets.training.settings import TrainingSettings


@dataclass(frozen=True)
class SubnetReport(TaskReport):
    """What learning one task as a subnet came to.

    - `bank`, `reason`: the bank the task went to, -1 for none, and why.
    - `bits`: the width of its codes.
    - `density`: the share of the shared weights that its mask keeps.
    - `owned_before_pruning`, `owned_after_pruning`: the share of the bank that tasks own, this one
      included.
    - `pruning_seconds`: what post-pruning took.
    """

    bank: int
    reason: str
    bits: int
    density: float
    owned_before_pruning: float
    owned_after_pruning: float
    pruning_seconds: float


class CoreSettings(Protocol):
    """What the core needs of a method's settings."""

    @property
    def init(self) -> Literal["seeded", "pretrained"]: ...
    @property
    def scale(self) -> Literal["kaiming", "xavier"]: ...
    @property
    def seed(self) -> int: ...


class MaskedCore:
    """One store and the means to train over it; held by every method of masked subnets.

    - `architecture`: the network as code.
    - `settings`: where values start from, and the seed.
    - `training`: how every task is trained.
    - `store`: what was learned so far; a new one with masks of `block` where None.
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: CoreSettings,
        training: TrainingSettings,
        *,
        block: int = 1,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
    ) -> None:
        check_architecture(architecture)
        self.architecture, self.settings, self.training = architecture, settings, training
        self.device = pick_device(device)
        self.store = store or SubnetStore(architecture, block=block, device=self.device)
        self.store.seed = settings.seed
        if self.store.layout.block != block:
            raise SettingError(
                f"block = {block}, but the store has masks of block {self.store.layout.block}; "
                f"give block={self.store.layout.block}."
            )
        self.pretrained: dict[str, Tensor] | None = None
        if settings.init == "pretrained":
            self.pretrained = {
                n: t.detach().float().cpu().clone() for n, t in architecture.pretrained.items()
            }
            self._check_pretrained()
        self._has_warned = False
        self.turn = Turn()

    def _check_pretrained(self) -> None:
        """Refuse to go on from other weights than those learning began with."""
        if self.store.subnets and self.store.settings.get("given") != self.pretrained_hash():
            raise MismatchError(
                "init = 'pretrained', but these are not the weights that learning began with; "
                "pass the same pretrained network."
            )

    def pretrained_hash(self) -> str:
        """The SHA-256 of the names and values that learning starts from."""
        return weights_hash(self.pretrained or {})

    def bank(self, number: int) -> Bank:
        """The bank of that number, or an empty one that the store does not have yet."""
        banks = self.store.banks
        return banks[number] if number < len(banks) else Bank(self.store.layout)

    def initial_state(self, task: Task, bank: int) -> InitialState:
        """What the next task starts from: a function of the seed, the bank and its number alone."""
        key = InitKey(self.settings.seed, bank, self.store.next_number, self.settings.scale)
        layout, num_classes = self.store.layout, task.num_classes
        return initial_state(self.architecture, layout, key, num_classes, self.pretrained)

    def check_network(self, module: TaskModule, task: Task) -> None:
        """Fail now, with an explanation, if the network cannot take this task's inputs."""
        batch = min(2, len(task.train), self.training.batch_size)
        raw = task.train.inputs(torch.arange(batch))
        tensors = {n: t.detach() for n, t in module.tensors(module.free.detach()).items()}
        self.architecture.check(tensors, task.normalization(raw), task.num_classes)

    def train(self, module: TaskModule, task: Task, settings: TrainingSettings) -> Training:
        """The training of the next task's module."""
        number, seed = self.store.next_number, self.settings.seed
        return Training(module, task, settings, seed=seed, number=number, device=self.device)

    def warn_full(self, bank: int) -> None:
        """Tell once that a bank has no free weights left."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"bank {bank} has no free weights left; later tasks are learned by mask "
                "alone, from the values that earlier tasks own.",
                CapacityWarning,
                stacklevel=4,
            )


Compress = Callable[[Compressor], Compressed]


class SubnetTrainer:
    """One task being learned as a subnet: a module trained over a bank, compressed and claimed.

    - `decision`: the bank, and why.
    - `module`: what is trained.
    - `compress`: how the method gets from the trained module to a mask and codes.
    - `task_params`: how the task-specific parameters are stored.
    - `memory`: what is kept of the task's inputs to compare later tasks with.
    - `isolated`: whether the task has its bank for itself, for ever.
    - `reference`: the number of the task that its weights are added to, where there is one.
    """

    def __init__(
        self,
        core: MaskedCore,
        task: Task,
        decision: BankDecision,
        module: TaskModule,
        compress: Compress,
        *,
        task_params: TaskParamSettings,
        reports: dict[str, SubnetReport],
        memory: InputStatistics | Tensor | None = None,
        training: TrainingSettings | None = None,
        isolated: bool = False,
        reference: int | None = None,
    ) -> None:
        self.isolated, self.reference = isolated, reference
        self.core, self.task, self.decision, self.module = core, task, decision, module
        self.compress, self.task_params, self.memory = compress, task_params, memory
        self.reports = reports
        self._entries = [s.number for s in core.store.entries()]
        core.check_network(module, task)
        self.training = core.train(module, task, training or core.training)

    @property
    def epochs_done(self) -> int:
        """How many epochs have been trained."""
        return self.training.progress.epoch

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""
        return self.training.finished

    def epoch(self) -> EpochReport:
        """Train one epoch and validate."""
        with self.core.turn.taken(self):
            return self.training.epoch()

    def finish(self) -> SubnetReport:
        """Take the best epoch, compress it and claim it; the task is learned."""
        with self.core.turn.taken(self, is_last=True):
            return self._finish()

    def _finish(self) -> SubnetReport:
        if [s.number for s in self.core.store.entries()] != self._entries:
            raise TaskError(
                f"the store has changed since training on {self.task.name!r} began, and with it "
                "what the task started from; begin it again."
            )
        self.training.restore_best_()
        work = Compressor(self.module, self.training)
        compressed = self.compress(work)
        coded, accuracy = work.task_params(compressed, self.task_params)
        work.check_finite(compressed, coded)
        subnet = Subnet(
            name=self.task.name,
            classes=self.task.classes,
            normalization=self.task.normalization,
            bank=self.decision.bank,
            packed_mask=PackedMask.of(compressed.mask),
            bits=compressed.bits,
            own=compressed.own,
            task_params=coded,
            shapes=self.core.architecture.task_param_shapes(self.task.num_classes),
            memory=self.memory,
            decision=self.decision,
            valid_accuracy=accuracy,
            owned_before_pruning=work.owned_share(work.mask),
            sample=Sample.of(self.task.train.inputs(torch.arange(1))),
            isolated=self.isolated,
            reference=self.reference,
        )
        self.core.store.add_(subnet)
        report = self._report(subnet, compressed.seconds)
        self.reports[subnet.name] = report
        return report

    def _report(self, subnet: Subnet, pruning_seconds: float) -> SubnetReport:
        store, progress = self.core.store, self.training.progress
        density = store.density(subnet.name)
        return SubnetReport(
            name=subnet.name,
            valid_accuracy=subnet.valid_accuracy,
            best_epoch=progress.best_epoch,
            training_seconds=progress.seconds,
            bank=subnet.bank,
            reason=self.decision.reason,
            bits=subnet.bits,
            density=density,
            owned_before_pruning=subnet.owned_before_pruning,
            owned_after_pruning=(
                density if subnet.bank == NO_BANK else store.banks[subnet.bank].owned_share()
            ),
            pruning_seconds=pruning_seconds,
        )

    def state(self) -> State:
        """Everything needed to go on with this trainer later, taken between two epochs."""
        return self.training.state()

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a trainer of the same task and the same store."""
        self.training.restore_(tensors, numbers)


class MaskedLearner(ABC):
    """What learners with a masked core have in common: they answer, save and resume by its store.

    A method adds its settings and `_begin`.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type]
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL",)

    def __init__(self, core: MaskedCore, settings: Any, recorded: Mapping[str, Any]) -> None:
        self.core, self.settings = core, settings
        self.reports: dict[str, SubnetReport] = {}
        # What a saved store keeps of the learner, so that learning can go on from it.
        self.store.settings = {"method": self.name, **recorded}
        if core.pretrained is not None:
            self.store.settings["given"] = core.pretrained_hash()

    def begin(self, task: Task) -> TaskTrainer:
        """Check a task and set up its training; nothing is learned yet."""
        with self.core.turn.taken():
            check_task(task, self.tasks)
            return self._begin(task)

    @abstractmethod
    def _begin(self, task: Task) -> TaskTrainer:
        """Set up the training of a task that was checked."""

    @classmethod
    @abstractmethod
    def _from_record(
        cls, store: SubnetStore, record: Mapping[str, Any], device: str | torch.device
    ) -> Self:
        """A learner with the recorded settings that goes on from a store."""

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike[str],
        net: nn.Module | Architecture | None = None,
        *,
        device: str | torch.device = "cpu",
        overrides: Iterable[str] = (),
    ) -> Self:
        """The learner of a saved model, which goes on exactly as the live one would have.

        - `net`: your own network again; networks of the package are rebuilt by name.
        - `overrides`: `key=value` assignments to its settings, such as "training.epochs=5".
        """
        store = SubnetStore.load(folder, net, device=pick_device(device))
        made_by = method_of(store.settings)
        if made_by != cls.name:
            raise MismatchError(
                f"this model was made by {made_by or 'no method of this package'}, not by "
                f"{cls.name}; it can be used, and learned on by the method that made it alone."
            )
        assignments = list(overrides)
        record = config.override(config.modernized(store.settings), assignments)
        try:
            return cls._from_record(store, record, device)
        except (SettingError, TypeError, KeyError) as error:
            if assignments and isinstance(error, SettingError):
                raise  # it names the setting, and most likely the assignment is what is wrong
            raise FormatError(f"the recorded settings are not of this version: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    @property
    def store(self) -> SubnetStore:
        """All banks and subnets: the learned model."""
        return self.core.store

    @property
    def architecture(self) -> Architecture:
        """The network as code."""
        return self.core.architecture

    @property
    def training(self) -> TrainingSettings:
        """How every task is trained."""
        return self.core.training

    @property
    def device(self) -> torch.device:
        """Where tasks are trained."""
        return self.core.device

    @property
    def scenario_type(self) -> ScenarioType:
        """Whether the task of an input is known when predicting: it is."""
        return "task-IL"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return self.store.tasks

    def learn(self, task: Task) -> SubnetReport:
        """Learn a task to its end and keep it for ever."""
        learn(self, task)
        return self.reports[task.name]

    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits of a learned task for raw inputs."""
        return self.store.logits(self._told(task), inputs)

    def predict(self, task: str | None, inputs: Any) -> np.ndarray:
        """The user's own labels for raw inputs of a learned task."""
        return self.store.predict(self._told(task), inputs)

    def _told(self, task: str | None) -> str:
        if task is None:
            raise TaskError("this method needs to know the task of its inputs: give its name.")
        return task

    def columns(self, task: str) -> tuple[int, int]:
        """The task's logits: all that its head has."""
        return 0, len(self.store.subnet(task).classes)

    def revisit_(self, task: Task) -> None:  # noqa: B027 (nothing is the right thing here)
        """Nothing: no data of earlier tasks is needed."""

    def state(self) -> State:
        """The store as the bytes of its file, and the reports."""
        data = b"".join(encode(self.store).parts)
        file = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        reports = [asdict(r) for r in self.reports.values()]
        return {"model": file}, {"method": self.name, "reports": reports}

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""
        check_method(numbers, self.name)
        with ModelFile(io.BytesIO(tensors["model"].numpy().tobytes())) as file:
            contents = read_contents(file)
        contents.put_into(self.store)
        self.reports = {r["name"]: SubnetReport(**r) for r in numbers["reports"]}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a folder, atomically; gives the path of its file."""
        return self.store.save(folder)

    def ledger(self) -> Ledger:
        """What the model weighs, in bits, line by line and task by task."""
        return self.store.ledger()

    def capacity(self) -> Mapping[str, float]:
        """Nothing beside the views of the ledger."""
        return {}


def method_of(settings: Mapping[str, Any]) -> str | None:
    """The method that made a model, from what its store recorded.

    Models of version 0.1 do not say it, but hold a table of each method's settings; those of WSN
    hold TSN's with 32 bits, and TSN with these settings goes on exactly as WSN did.
    """
    if "method" in settings:
        return str(settings["method"])
    known = ("packnet", "ada-qpacknet", "tsn")
    return next((name for name in known if name in settings), None)
