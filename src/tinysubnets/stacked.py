"""Several seeds of one task trained at once on one device: stacked weights, one set of launches.

A small network leaves a GPU idle between launches, so five runs cost little more than one. Each run
keeps its own data, order, scores and optimizer state along a leading axis; sums over batches may
round differently than alone, and dropout and augmentation draw other numbers. Bit-width and
post-pruning are chosen per run afterwards, by each lesson's own `finish()`.

    trainings = [learner.begin(task).training for learner, task in runs]
    together = StackedTraining(trainings)
    while not together.finished:
        reports = together.epoch()            # one report per run
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinysubnets import seeds
from tinysubnets.augment import Augmentation, augment
from tinysubnets.batches import Batches
from tinysubnets.capture import CapturedStep
from tinysubnets.errors import SettingError
from tinysubnets.normalisation import Normalisation
from tinysubnets.numerics import arithmetic, seeded
from tinysubnets.task_module import LOOKUP, TaskModule
from tinysubnets.training import EpochReport, Training
from tinysubnets.updates import flat_update, has_kernels, make_optimizer


class StackedModule(TaskModule):
    """Task modules of equal shapes as one, every tensor with a leading axis of runs."""

    def __init__(self, modules: Sequence[TaskModule]) -> None:
        nn.Module.__init__(self)
        first = modules[0]
        for name in ("architecture", "layout", "compression", "names", "constant_names", "bounds"):
            setattr(self, name, getattr(first, name))
        self.code_segments = first.code_segments
        for name in ("free", "scores"):
            stacked = torch.stack([getattr(m, name).detach() for m in modules])
            setattr(self, name, nn.Parameter(stacked))
        for name, trained in (("private", True), ("statistics", False)):
            rows = zip(*(getattr(m, name) for m in modules), strict=True)
            stacks = [nn.Parameter(torch.stack([r.detach() for r in row]), trained) for row in rows]
            setattr(self, name, nn.ParameterList(stacks))
        for name in ("bank_values", "owned", "owned_weights", "centres", "hints", *LOOKUP):
            self.register_buffer(name, torch.stack([getattr(m, name) for m in modules]))
        for i in range(len(self.constant_names)):
            self.register_buffer(f"constant_{i}", getattr(first, f"constant_{i}"))
        self.is_fresh = first.is_fresh
        self.has_owned = any(m.has_owned for m in modules)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class scores [runs, batch, classes] of normalised inputs [runs, batch, …]."""
        tensors = self.tensors(self.effective(mask))
        axes = {n: None if n in self.architecture.constants else 0 for n in tensors}

        def one(own: dict[str, Tensor], batch: Tensor) -> Tensor:
            return self.architecture(own, batch, "train")

        return torch.vmap(one, in_dims=(axes, 0), randomness="different")(tensors, inputs)

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """The sum over runs of their mean cross-entropies: each run gets its own gradient."""
        logits = self(inputs, self.mask())
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return total / labels.shape[1]

    @torch.no_grad()
    def unstack_(self, modules: Sequence[TaskModule]) -> None:
        """Copy each run's tensors back into its own module."""
        for run, module in enumerate(modules):
            for mine, own in zip(self._kept(), StackedModule._kept(module), strict=True):
                own.copy_(mine[run])
            module.is_fresh = self.is_fresh
            module.index_()

    def _kept(self: TaskModule) -> list[Tensor]:
        """The tensors that training changes."""
        return [self.free, self.scores, *self.private, *self.statistics, self.centres, self.hints]


class StackedBatches:
    """The resident data of several runs, served in batches [runs, size, …]."""

    def __init__(self, runs: Sequence[Batches]) -> None:
        residents = [b.resident for b in runs if b.resident is not None]
        if len(residents) < len(runs) or len({r.shape for r in residents}) > 1:
            raise SettingError("runs trained together need equally many samples, all in memory.")
        self.num_runs, self.device = len(runs), runs[0].device
        self.resident = torch.cat(residents)
        self.labels = torch.cat([b.labels for b in runs])
        pairs = [b.affine for b in runs]
        lead = (self.num_runs, *(1,) * residents[0].ndim)
        self.mean, self.factor = (
            torch.stack([p[i] for p in pairs]).reshape(*lead[:2], *_tail(pairs[0][i], lead))
            for i in range(2)
        )
        self.offset = torch.arange(self.num_runs, device=self.device)[:, None] * len(residents[0])

    def batch(self, where: Tensor, changes: Augmentation | None = None) -> tuple[Tensor, Tensor]:
        """One batch per run from a flat vector of positions, run after run."""
        index = (where.view(self.num_runs, -1) + self.offset).flatten()
        raw = self.resident[index]
        raw = raw if changes is None else augment(raw, changes, None)
        shaped = raw.view(self.num_runs, -1, *raw.shape[1:])
        labels = self.labels[index].view(self.num_runs, -1)
        return Normalisation.apply(shaped, self.mean, self.factor), labels


def _tail(affine: Tensor, lead: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a run's mean behind the axes of runs and samples."""
    return tuple(affine.shape) if affine.ndim else (1,) * (len(lead) - 2)


class StackedTraining:
    """The trainings of several runs of one task, advanced together."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings, first = list(trainings), trainings[0]
        self._check()
        self.settings, self.device, self.num_steps = first.settings, first.device, first.num_steps
        self.module = StackedModule([t.module for t in trainings]).to(self.device)
        self.optimizer = make_optimizer(self.module.groups(), self.settings, self.device)
        self.train = StackedBatches([t.train for t in trainings])
        self.changes = first.changes
        self._update: Callable[[], object] = self.optimizer.step
        self._captured: CapturedStep | None = None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return all(t.finished for t in self.trainings)

    def epoch(self) -> list[EpochReport]:
        """Train all runs for one epoch, then validate each by itself."""
        begin, first = time.perf_counter(), self.trainings[0]
        rates, due = first.plan()
        orders = [t.train.filled(t.order(), self.settings.batch_size) for t in self.trainings]
        order = torch.stack(orders, 1).flatten(1)  # [steps, runs · batch]
        with seeded(self.device, seeds.key(*first.path, first.progress.epoch, "noise") >> 1):
            with arithmetic(self.settings.precision, self.settings.deterministic):
                total = self._run(order, rates, due)
        self.module.unstack_([t.module for t in self.trainings])
        loss = float(total) / (len(self.trainings) * self.num_steps)
        return [t.conclude(loss, rates[-1], begin) for t in self.trainings]

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step of all runs; gives the sum of their losses."""
        self.optimizer.zero_grad(set_to_none=True)
        bfloat16 = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            loss = self.module.loss(inputs, labels)
        loss.backward()
        self._update()
        return loss.detach()

    def use_flat_update_(self) -> None:
        """Update large vectors by a kernel of our own from now on, where it can be had."""
        if has_kernels():
            self._update = flat_update(self.optimizer)

    def _run(self, order: Tensor, rates: list[float], due: set[int]) -> Tensor:
        if self.device.type == "cuda" and self.settings.engine != "eager":
            self._captured = self._captured or CapturedStep(self, order.shape[1])
            return self._captured.run(order, rates, due)
        total = torch.zeros((), device=self.device)
        for step, where in enumerate(order):
            if step in due:
                self.module.refresh_()
            for group in self.optimizer.param_groups:
                group["lr"] = rates[step] * group["factor"]
            total += self.step(*self.train.batch(where, self.changes))
        return total

    def _check(self) -> None:
        first = self.trainings[0]
        for other in self.trainings[1:]:
            if other.settings != first.settings or len(other.train) != len(first.train):
                raise SettingError("runs trained together need equal settings and sample counts.")
        if first.settings.schedule == "plateau" or first.class_weights is not None:
            raise SettingError(
                "runs trained together cannot have a plateau schedule or class "
                "weights: their rates and losses would differ."
            )
