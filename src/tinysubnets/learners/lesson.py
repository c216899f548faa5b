"""A lesson: one task taught to TinySubNets step by step, epoch by epoch, then kept for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinysubnets.bank import Bank
from tinysubnets.errors import TaskError
from tinysubnets.learners.banks import choose_bank, remember
from tinysubnets.learners.compress import compress
from tinysubnets.start import Origin, Start, starting_point, warm_scores
from tinysubnets.subnet import BankDecision, Subnet
from tinysubnets.task import Task
from tinysubnets.task_module import Compression, TaskModule
from tinysubnets.training import EpochReport, Training
from tinysubnets.training_settings import TrainingSettings

if TYPE_CHECKING:
    from tinysubnets.learners.tsn import TinySubNets


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


class Lesson:
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
        self.module.is_fresh = self.training.progress.epoch == 0

    def _module(self, bank: Bank) -> TaskModule:
        """What is trained: masked weights over the bank."""
        settings, store = self.learner.settings, self.learner.store
        keep, free = store.layout.keep(settings.density, settings.balance), bank.free_per_tensor()
        if settings.sharing == "none":
            keep = tuple(min(k, f) for k, f in zip(keep, free, strict=True))
        elif sum(free) == 0:
            self.learner._warn_once(self.decision.bank)
        compression = Compression(
            keep,
            settings.width_in_training,
            settings.sharing == "values",
            settings.codebooks,
            settings.distillation,
        )
        architecture = self.learner.architecture
        return TaskModule(architecture, store.layout, bank, self._start(), compression)

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

    def _start(self) -> Start:
        learner, settings = self.learner, self.learner.settings
        origin = Origin(settings.seed, self.decision.bank, self.number, settings.scale)
        start = starting_point(
            learner.architecture, learner.store.layout, origin, self.task.num_classes, learner.given
        )
        members = learner.store.members(self.decision.bank)
        if settings.scores == "cold" or not members:
            return start
        example = members[-1]
        if settings.warm_from == "similar" and self.decision.nearest is not None:
            near = learner.store.subnet(self.decision.nearest)
            example = near if near.bank == self.decision.bank else example
        return Start(
            warm_scores(start.scores, example.mask, learner.store.layout), start.free, start.private
        )

    def _try_network(self) -> None:
        """Fail now, with an explanation, if the network cannot take this task's inputs."""
        raw = self.task.train.inputs(torch.arange(min(2, len(self.task.train))))
        tensors = {n: t.detach() for n, t in self.module.tensors(self.module.free.detach()).items()}
        self.learner.architecture.check(
            tensors, self.task.normalisation(raw), self.task.num_classes
        )
