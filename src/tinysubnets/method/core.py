"""The masked core: one store, and what it takes to train a subnet over it and to claim it.

Every method that gives a task a mask holds one: TinySubNets, WSN, PackNet, Ada-QPackNet. They
differ in which module they train, for how long, and how they compress it.
"""

from __future__ import annotations

import io
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

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
from tinysubnets.method.progress import OnEpoch
from tinysubnets.method.pruning import PruningSettings, PruningStep, result_of
from tinysubnets.model.bank import Bank, Base, BaseSource, base_values, check_base
from tinysubnets.model.evaluation import Evaluation, UnknownEvaluation
from tinysubnets.model.removal import become_, copied
from tinysubnets.model.routing import RoutingSettings, routing_of
from tinysubnets.model.size import Ledger
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import (
    NO_BANK,
    BankDecision,
    CodebookTensor,
    PackedMask,
    Sample,
    Subnet,
)
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import (
    InitialState,
    InitKey,
    initial_state,
    old_weights_hash,
    weights_hash,
)
from tinysubnets.nn.magnitude import MagnitudeModule
from tinysubnets.nn.masked import TaskModule
from tinysubnets.nn.trial import PassError
from tinysubnets.tasks.divergence import InputStatistics
from tinysubnets.tasks.expected import shape_hint
from tinysubnets.tasks.rotations import ROTATIONS, rotated_task
from tinysubnets.tasks.task import Task
from tinysubnets.training import distributed
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.precision import pick_device
from tinysubnets.training.settings import TrainingSettings


@dataclass(frozen=True)
class RungReport:
    """What one rung of a ladder gave, beside the last one that was climbed.

    - `name`: as in the setting `rungs`.
    - `valid_accuracy`: of the task as it would be kept with this rung; 0 where its logits would
      not be finite.
    - `file_bytes`: what the task would add to the file.
    - `gain`, `extra_bytes`: points of validation accuracy more, and bytes more.
    - `taken`: whether the gain is worth the bytes, so that the rung was climbed.
    - `epochs`, `best_epoch`, `seconds`: what its training took, and the epoch that was taken.
    - `valid_loss`: of that epoch; None where it is not on record.
    """

    name: str
    valid_accuracy: float
    file_bytes: int
    gain: float
    extra_bytes: int
    taken: bool
    epochs: int
    best_epoch: int
    seconds: float
    valid_loss: float | None = None


@dataclass(frozen=True)
class SubnetReport(TaskReport):
    """What learning one task as a subnet came to.

    - `bank`, `reason`: the bank the task went to, -1 for none, and why.
    - `bits`: the width of its codes.
    - `density`: the share of the shared weights that its mask keeps.
    - `owned_before_pruning`, `owned_after_pruning`: the share of the bank that tasks own, this one
      included.
    - `pruning_seconds`: what post-pruning took.
    - `rungs`: what each rung of the ladder gave, where the task climbed one.
    """

    bank: int
    reason: str
    bits: int
    density: float
    owned_before_pruning: float
    owned_after_pruning: float
    pruning_seconds: float
    rungs: tuple[RungReport, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SubnetReport:
        """The report that `dataclasses.asdict` made plain data of."""
        rungs = tuple(RungReport(**r) for r in values.get("rungs", ()))
        return cls(**{**values, "rungs": rungs})


class CoreSettings(Protocol):
    """What the core needs of a method's settings."""

    @property
    def init(self) -> Literal["seeded", "pretrained"]: ...
    @property
    def scale(self) -> Literal["kaiming", "xavier", "he"]: ...
    @property
    def seed(self) -> int: ...


class MaskedCore:
    """One store and the means to train over it; held by every method of masked subnets.

    - `architecture`: the network as code.
    - `settings`: where values start from, and the seed.
    - `training`: how every task is trained.
    - `store`: what was learned so far; a new one with masks of `block` where None.
    - `routing`: what is kept with a task to recognize its inputs without its name.
    - `takes_base`: whether the method learns tasks over a frozen base.

    `frozen_base` tells whether tasks are differences to the store's base. Where values start from
    pretrained ones instead, these are on record as the store's base too.
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: CoreSettings,
        training: TrainingSettings,
        *,
        block: int = 1,
        device: str | torch.device = "auto",
        store: SubnetStore | None = None,
        routing: RoutingSettings | Mapping | None = None,
        takes_base: bool = False,
    ) -> None:
        check_architecture(architecture, takes_base=takes_base)
        self.routing = config.build(RoutingSettings, routing, "routing")
        self.architecture, self.settings, self.training = architecture, settings, training
        self.device = pick_device(device)
        self.store = store or SubnetStore(architecture, block=block, device=self.device)
        self.store.seed = settings.seed
        if self.store.layout.block != block:
            raise SettingError(
                f"block = {block}, but the store has masks of block {self.store.layout.block}; "
                f"give block={self.store.layout.block}."
            )
        recorded = self.store.settings.get("base") == "frozen"
        self.frozen_base = architecture.base == "frozen" or recorded
        if self.frozen_base or settings.init == "pretrained":
            self._take_base_()
        self._has_warned = False
        self.turn = Turn()

    def _take_base_(self) -> None:
        """Make the network's weights the store's base, or insist that they are."""
        store, architecture = self.store, self.architecture
        if store.base is not None and store.base.values is not None:
            known = architecture is store.architecture or store.base.embedded
            if architecture.pretrained and not known:
                values = base_values(architecture, architecture.pretrained)
                store.base = store.base.filled(values, "the network given")
        elif store.subnets and not self._is_old_record():
            self.check_base()
        else:
            if self.frozen_base:
                check_base(architecture)
            store.base = Base.of(architecture)

    def check_base(self) -> None:
        """Refuse to learn on without the weights that learning began with."""
        base = self.store.base
        if base is None and self.frozen_base:
            raise MismatchError(
                "base = 'frozen', but the tasks of this model were not learned over a base; give "
                "the architecture without one."
            )
        what = "base = 'frozen'" if self.frozen_base else "init = 'pretrained'"
        if base is None or base.values is None:
            told = ""
            if base is not None:
                told = f" ({base.name}, SHA-256 {base.sha256})"
                if given := self.architecture.pretrained:
                    told += f", but {weights_hash(base_values(self.architecture, given))}"
            raise MismatchError(
                f"{what}, but these are not the weights that learning began with{told}; pass the "
                "same pretrained network."
            )

    def _is_old_record(self) -> bool:
        """Whether the store was begun from this network's weights by an earlier version."""
        given = self.store.settings.get("given")
        tensors = self.architecture.pretrained
        return given is not None and bool(tensors) and given == old_weights_hash(tensors)

    def bank(self, number: int) -> Bank:
        """The bank of that number, or an empty one that the store does not have yet."""
        banks = self.store.banks
        return banks[number] if number < len(banks) else Bank(self.store.layout)

    def initial_state(self, task: Task, bank: int) -> InitialState:
        """What the next task starts from: a function of the seed, the bank and its number alone."""
        key = InitKey(self.settings.seed, bank, self.store.next_number, self.settings.scale)
        layout, num_outputs = self.store.layout, self.num_outputs(task)
        base = self.store.base
        started = base is not None and (self.frozen_base or self.settings.init == "pretrained")
        values = base.values if base is not None and started else None
        return initial_state(self.architecture, layout, key, num_outputs, values)

    def num_outputs(self, task: Task) -> int:
        """How many outputs the head of a task has: one per class, or per class and rotation."""
        return task.num_classes * (ROTATIONS if self.routing.passes else 1)

    def learned_data(self, task: Task) -> Task:
        """What is trained on for a task: itself, or its images in four rotations."""
        return rotated_task(task) if self.routing.passes else task

    def check_network(self, module: TaskModule, task: Task) -> None:
        """Fail now, with an explanation, if the network cannot take this task's inputs."""
        weights = module.free.detach()
        if isinstance(module, MagnitudeModule):
            weights = weights + module.reference  # as a difference it starts from nothing
        self.check_tensors({n: t.detach() for n, t in module.tensors(weights).items()}, task)

    def check_tensors(self, tensors: Mapping[str, Tensor], task: Task) -> None:
        """The same with all tensors of the network by name, on the CPU."""
        batch = min(2, len(task.train), self.training.batch_size)
        raw = task.train.inputs(torch.arange(batch))
        try:
            self.architecture.check(tensors, task.normalization(raw), self.num_outputs(task))
        except PassError as error:
            hint = shape_hint(self.architecture.expected_inputs, tuple(raw.shape[1:]))
            if not hint:
                raise
            raise ArchitectureError(f"{error} {hint}") from error

    def train(self, module: TaskModule, task: Task, settings: TrainingSettings) -> Training:
        """The training of the next task's module."""
        number, seed = self.store.next_number, self.settings.seed
        return Training(module, task, settings, seed=seed, number=number, device=self.device)

    def entry_marks(self) -> list[tuple[int, str, int]]:
        """Number, name and count of own weights of all entries: equal while the store is the same.

        What a removed task leaves behind keeps its number, but neither its name nor all weights.
        """
        return [(s.number, s.name, s.num_new) for s in self.store.entries()]

    def check_entries(self, marks: list[tuple[int, str, int]], task: Task) -> None:
        """Refuse to keep a task where others were learned, removed or renamed since it began.

        - `marks`: those of the store's entries when it began.
        """
        if self.entry_marks() != marks:
            raise TaskError(
                "tasks were learned, removed or renamed since training on "
                f"{task.name!r} began, which started from them; begin it again."
            )

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


class Continued:
    """With `score_init = "continue"`, the scores and free values that the next task goes on from.

    - `scores` [blocks], `free` [N]: of the best epoch of a bank's last task, on the CPU, by the
      number of the bank.
    - `entries`: number and name of every entry of the store at that time. If the store has others
      now, these values do not belong to it.
    """

    def __init__(self) -> None:
        self.scores: dict[int, Tensor] = {}
        self.free: dict[int, Tensor] = {}
        self.entries: list[list[Any]] = []

    def keep_(self, bank: int, module: TaskModule, store: SubnetStore) -> None:
        """Take what a task has trained, once it is claimed."""
        self.scores[bank] = module.scores.detach().cpu().clone()
        self.free[bank] = module.free.detach().cpu().clone()
        self.entries = entries_of(store)

    def start(self, bank: int, fresh: InitialState) -> InitialState:
        """What the next task of a bank starts from: fresh values where it is the bank's first."""
        if bank not in self.scores:
            return fresh
        return InitialState(self.scores[bank], self.free[bank], fresh.task_params)

    def check(self, store: SubnetStore) -> None:
        """Refuse to go on over a store that other tasks were learned in, or removed from.

        Tasks may have got other names since; what a removed one left behind has none.
        """
        now = {number: bool(name) for number, name in entries_of(store)}
        if now == {number: bool(name) for number, name in self.entries}:
            return
        removed = [name for number, name in self.entries if name and not now.get(number)]
        cause = (
            f"what they come from has changed: {', '.join(map(repr, removed))} was removed"
            if removed
            else "they are not part of a model file, but lie in the checkpoint of its run"
        )
        raise SettingError(
            "score_init = 'continue' goes on from the scores and free values of the last task, and "
            f"{cause}. Learn on with score_init = 'previous_mask' or 'random' (on the command line "
            "--set tsn.score_init=previous_mask), or learn all tasks in one run."
        )

    def state(self) -> State:
        """All of it as tensors by name and plain data."""
        kinds = {"scores": self.scores, "free": self.free}
        tensors = {f"continued.{k}.{b}": t for k, own in kinds.items() for b, t in own.items()}
        return tensors, {"continued": self.entries}

    def restore_(self, tensors: Mapping[str, Tensor], entries: Sequence[Sequence[Any]]) -> None:
        """Go on from a state."""
        self.scores, self.free = {}, {}  # a learner at work may have others
        for name, tensor in tensors.items():
            if name.startswith("continued."):
                _, kind, bank = name.split(".")
                (self.scores if kind == "scores" else self.free)[int(bank)] = tensor
        self.entries = [list(e) for e in entries]


def entries_of(store: SubnetStore) -> list[list[Any]]:
    """Number and name of every entry of a store, in order."""
    return [[s.number, s.name] for s in store.entries()]


Compress = Callable[[Compressor], Generator[PruningStep, None, Compressed]]


def at_once(compress: Callable[[Compressor], Compressed]) -> Compress:
    """A compression that has no steps to show, as a generator like those that have."""

    def steps(work: Compressor) -> Generator[PruningStep, None, Compressed]:
        yield from ()
        return compress(work)

    return steps


class SubnetTrainer:
    """One task being learned as a subnet: a module trained over a bank, compressed and claimed.

    - `decision`: the bank, and why.
    - `module`: what is trained.
    - `compress`: how the method gets from the trained module to a mask and codes, in visible steps.
    - `task_params`: how the task-specific parameters are stored.
    - `memory`: what is kept of the task's inputs to compare later tasks with.
    - `isolated`: whether the task has its bank for itself, for ever.
    - `reference`: the number of the task that its weights are added to, or `BASE`; None where
      there is none.
    - `data`: what is trained on, by default `core.learned_data(task)`; its features, where only the
      head is trained.
    - `taken_over`: task-specific parameters that are those of another task.
    - `continued`: where the trained scores and free values are kept for the next task, with
      `score_init = "continue"`.
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
        data: Task | None = None,
        taken_over: Mapping[str, CodebookTensor] | None = None,
        continued: Continued | None = None,
    ) -> None:
        self.isolated, self.reference, self.taken_over = isolated, reference, taken_over or {}
        self.continued = continued
        self.core, self.task, self.decision, self.module = core, task, decision, module
        self.compress, self.task_params, self.memory = compress, task_params, memory
        self.reports = reports
        self._entries = core.entry_marks()
        self.data = data or core.learned_data(task)
        core.check_network(module, task)
        self.training = core.train(module, self.data, training or core.training)

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
        return result_of(self.finishing())

    def finishing(self) -> Generator[PruningStep, None, SubnetReport]:
        """What `finish` does, in visible steps: those of post-pruning; the generator returns the
        report.
        """
        steps = self._finish()
        while True:
            with self.core.turn.taken(self):
                try:
                    step = next(steps)
                except StopIteration as end:
                    report: SubnetReport = end.value
                    break
            yield step
        with self.core.turn.taken(self, is_last=True):
            return report

    def _finish(self) -> Generator[PruningStep, None, SubnetReport]:
        self.core.check_entries(self._entries, self.task)
        subnet, seconds = yield from self.candidate()
        return self.keep(subnet, seconds)

    def candidate(self) -> Generator[PruningStep, None, tuple[Subnet, float]]:
        """The best epoch, compressed in visible steps: what the store would keep.

        The generator returns it, and the seconds that post-pruning took.
        """
        self.training.restore_best_()
        base = self.core.store.base
        over_base = base is not None and self.core.frozen_base
        values = base.values if base is not None and over_base else None
        work = Compressor(self.module, self.training, values)
        compressed = yield from self.compress(work)
        # Between two steps anything may have happened.
        self.core.check_entries(self._entries, self.task)
        coded, accuracy = work.task_params(compressed, self.task_params)
        work.check_finite(compressed, coded)
        if passes := self.core.routing.passes:  # measured so far: images and how they are turned
            accuracy = work.class_accuracy(compressed, coded, passes)
        preprocessing = self.task.preprocessing
        decision = self.decision
        if self.reference is not None and not compressed.mask.any():
            decision = replace(decision, bank=NO_BANK)  # nothing of it is in any bank
        subnet = Subnet(
            name=self.task.name,
            classes=self.task.classes,
            normalization=self.task.normalization,
            bank=decision.bank,
            packed_mask=PackedMask.of(compressed.mask),
            bits=compressed.bits,
            own=compressed.own,
            task_params={**self.taken_over, **coded},
            shapes=self.core.architecture.task_param_shapes(self.core.num_outputs(self.task)),
            memory=self.memory,
            decision=decision,
            valid_accuracy=accuracy,
            owned_before_pruning=work.owned_share(work.mask),
            sample=Sample.of(self.task.train.inputs(torch.arange(1))),
            isolated=self.isolated,
            preprocessing=None if preprocessing is None else preprocessing.as_dict(),
            reference=self.reference,
            adds_to_base=over_base,
            rank=compressed.rank,
            rotations=self.core.routing.passes,
        )
        return subnet, compressed.seconds

    def keep(self, subnet: Subnet, pruning_seconds: float) -> SubnetReport:
        """Claim a subnet: the task is learned."""
        store, marks = self.core.store, self.core.entry_marks()
        whole = copied(store)  # so that an error, or Ctrl-C, leaves the store without the task
        whole.add_(subnet)
        # Measured on the network as it is stored.
        whole.keep_routing_(subnet.name, routing_of(whole, self.task, self.core.routing))
        # What another thread has removed meanwhile must not come back.
        self.core.check_entries(marks, self.task)
        become_(store, whole)
        if self.continued is not None:
            self.continued.keep_(subnet.bank, self.module, store)
        if distributed.is_active():
            digest = store.digest(subnet.name)
            distributed.check_same(f"task {subnet.name!r}", digest, subnet.bank, subnet.bits)
        report = self._report(subnet, pruning_seconds)
        self.reports[subnet.name] = report
        return report

    def _report(self, subnet: Subnet, pruning_seconds: float) -> SubnetReport:
        """What learning the task came to, once it is in the store."""
        store, progress = self.core.store, self.training.progress
        density = store.density(subnet.name)
        return SubnetReport(
            name=subnet.name,
            valid_accuracy=subnet.valid_accuracy,
            best_epoch=progress.best_epoch,
            training_seconds=progress.seconds,
            bank=subnet.bank,
            reason=self.decision.reason if subnet.decision is None else subnet.decision.reason,
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
    # Their papers define the first; the others are by routing.
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "class-IL", "domain-IL")
    pruning: PruningSettings | None = None

    def __init__(self, core: MaskedCore, settings: Any, recorded: Mapping[str, Any]) -> None:
        self.core, self.settings = core, settings
        self.reports: dict[str, SubnetReport] = {}
        # What a saved store keeps of the learner, so that learning can go on from it.
        routing = config.to_dict(core.routing)
        self.store.settings = {"method": self.name, **recorded, "routing": routing}
        if core.frozen_base:
            self.store.settings["base"] = "frozen"

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
        device: str | torch.device = "auto",
        overrides: Iterable[str] = (),
        base: BaseSource | None = None,
    ) -> Self:
        """The learner of a saved model, which goes on exactly as the live one would have.

        - `net`: your own network again; networks of the package are rebuilt by name.
        - `device`: where it computes from now on, "auto" for a GPU if there is one.
        - `overrides`: `key=value` assignments to its settings, such as "training.epochs=5".
        - `base`: the pretrained weights that tasks were learned over; see `SubnetStore.load`.
        """
        store = SubnetStore.load(folder, net, device=pick_device(device), base=base)
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
        """Whether the task of an input is known when accuracy is measured."""
        found: ScenarioType = self.settings.scenario_type
        return found

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return self.store.tasks

    def learn(
        self,
        task: Task,
        *,
        progress: bool | None = None,
        on_epoch: OnEpoch | None = None,
        threads: int | None = None,
    ) -> SubnetReport:
        """Learn a task to its end and keep it for ever.

        - `progress`: whether epochs are shown, live on a terminal and as plain lines elsewhere;
          None shows them on a terminal alone.
        - `on_epoch`: called with every epoch's `EpochReport`, say to log it. What it raises ends
          learning, and the task is not kept.
        - `threads`: of torch on the CPU meanwhile; None takes one for networks of fewer than
          250,000 shared weights, as `tsn run` does, and else leaves the number as it is.
        """
        learn(self, task, progress=progress, on_epoch=on_epoch, threads=threads)
        return self.reports[task.name]

    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits of a learned task for raw inputs."""
        return self.store.logits(self._told(task), inputs)

    def predict(
        self,
        task: Any = None,
        inputs: Any = None,
        *,
        among: Sequence[str] | None = None,
        together: bool = False,
    ) -> Any:
        """The user's own labels for raw inputs, with or without the name of their task.

        `predict(task, inputs)` gives an array, `predict(inputs)` a `Prediction`; see
        `SubnetStore.predict`.
        """
        return self.store.predict(task, inputs, among=among, together=together)

    def predict_proba(self, task: str | None, inputs: Any) -> np.ndarray:
        """The probability of each class of a learned task for raw inputs."""
        return self.store.predict_proba(self._told(task), inputs)

    def evaluate(self, task: str | Task, data: Any = None, labels: Any = None) -> Evaluation:
        """How well a learned task is answered: by `evaluate(name, "a/folder")`, on held-out images.

        Without a folder, arrays or a data set, by a `Task`; see `SubnetStore.evaluate`.
        """
        return self.store.evaluate(task, data, labels)

    def evaluate_unknown(
        self, known: Any, unknown: Any, *, among: Sequence[str] | None = None
    ) -> UnknownEvaluation:
        """How well foreign inputs are told from own; see `SubnetStore.evaluate_unknown`."""
        return self.store.evaluate_unknown(known, unknown, among=among)

    def _told(self, task: str | None) -> str:
        if task is None:
            raise TaskError(
                "logits and probabilities are those of one task: give its name. Without it, "
                "predict(inputs) tells labels and tasks."
            )
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
        if self.core.frozen_base:
            self.core.check_base()
        self.reports = {r["name"]: SubnetReport.from_dict(r) for r in numbers["reports"]}

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the model into a folder, atomically; gives the path of its file.

        - `overwrite`: whether an earlier model there may be replaced; see `SubnetStore.save`.
        """
        return self.store.save(folder, overwrite=overwrite)

    def reserve(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Check now that the model can be saved in a folder later; see `SubnetStore.reserve`."""
        self.store.reserve(folder, overwrite=overwrite)

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
