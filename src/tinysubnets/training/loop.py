"""Training one task in visible steps: one epoch at a time, its whole state at hand in between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tinysubnets import seeds
from tinysubnets.errors import ArchitectureError, SettingError, TaskError, TinySubNetsError
from tinysubnets.nn.dense import DenseModule
from tinysubnets.nn.masked import TaskModule
from tinysubnets.tasks.loader import DeviceLoader
from tinysubnets.tasks.task import FEW_VALID, Task
from tinysubnets.training import distributed
from tinysubnets.training.cuda_graphs import CapturedFunction, CapturedStep
from tinysubnets.training.evaluate import (
    BATCHNORM_SAMPLES,
    EvalResult,
    cause_of_nan,
    count_correct,
    evaluate,
    recalibrate_batchnorm,
)
from tinysubnets.training.optim import fused_update, make_optimizer
from tinysubnets.training.precision import arithmetic, seeded
from tinysubnets.training.settings import TrainingSettings

PATIENCE = 6  # epochs without a lower validation loss after which "plateau" halves the rate


@dataclass(frozen=True)
class EpochReport:
    """What one epoch did: mean training loss, validation, the last learning rate, the time.

    - `stage`: which part of learning it belongs to, such as a rung of a ladder; empty where there
      is but one. Epochs are counted over all of them, as far as they have begun.
    """

    task: str
    epoch: int
    epochs: int
    loss: float
    valid_loss: float
    valid_accuracy: float
    lr: float
    seconds: float
    is_best: bool
    stage: str = ""


@dataclass
class Progress:
    """Where training stands between two epochs, in plain numbers."""

    epoch: int = 0  # epochs done
    best_epoch: int = 0
    best_accuracy: float = -1.0  # on validation data, as all below
    best_loss: float = math.inf  # that of the best epoch
    lowest_loss: float = math.inf  # of all epochs
    settled: bool = True  # whether the best epoch was of the kind that is stored
    waited: int = 0  # epochs since the lowest loss or the last halving
    halvings: int = 0  # of the learning rate
    seconds: float = 0.0


class Training:
    """One task in training: `epoch()` advances it, `state()` and `restore_()` carry it.

    Every gradient comes from a call of `module`. Before the first epoch it may be replaced by a
    wrapper around it; in a process group it is a DistributedDataParallel, and each process trains
    on its part of every batch (see `distributed`). State, codebooks and validation are those of the
    `unwrapped` module. `seed` and `number`, that of the task, decide the order of samples and what
    dropout and augmentation draw.
    """

    def __init__(
        self,
        module: TaskModule | DenseModule,
        task: Task,
        settings: TrainingSettings,
        *,
        seed: int,
        number: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.unwrapped: TaskModule | DenseModule = module.to(device)
        self.module: nn.Module = self.unwrapped
        self.task, self.settings = task, settings
        self.device, self.path = torch.device(device), (seed, "training", number)
        self.train = DeviceLoader(task.train, task.normalization, device)
        self.valid = DeviceLoader(task.valid, task.normalization, device)
        self.class_weights = (
            None
            if task.class_weights is None
            else torch.tensor(task.class_weights, dtype=torch.float32, device=device)
        )
        self.optimizer = make_optimizer(module.groups(), settings, self.device, module.lr_factors)
        self.augmentation = settings.augmentation if settings.augmentation.active else None
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}  # the module's state after its best epoch
        self._loss = compiled_loss() if settings.engine == "compiled" else loss_of
        self._update: Callable[[], object] = self.optimizer.step
        self._captured_step: CapturedStep | None = None
        self._validation: Callable[[], Tensor] | None = None
        self._captured_function: CapturedFunction | None = None
        self.rank_noise: distributed.RankNoise | None = None
        if distributed.is_active():
            self._train_in_parallel_()
        self.train.prefer_channels_last_(self._try)
        if min(len(self.train), len(self.valid)) > 1:  # tried with as many images: the same answer
            self.valid.memory_format = self.train.memory_format
        else:
            self.valid.prefer_channels_last_(self._try)

    def _try(self, inputs: Tensor) -> Tensor:
        """Send inputs through the network as it is evaluated and trained; nothing is changed."""
        module, tensors = self.unwrapped, self.unwrapped.eval_tensors()
        architecture = module.architecture
        own = {n: tensors[n].clone() for n in architecture.running_stats}  # written by training
        with seeds.global_generators_kept([self.device] if self.device.type == "cuda" else []):
            architecture({**tensors, **own}, inputs, module.mode)
        return architecture(tensors, inputs)

    def _train_in_parallel_(self) -> None:
        """Take part in a training of several processes."""
        if self.settings.micro_batch is not None:
            raise SettingError(
                "training.micro_batch is for one process; of several, each has a part of the batch."
            )
        distributed.check_batch(
            min(self.settings.batch_size, len(self.train)),
            self.unwrapped.architecture.has_running_stats,
        )
        self.module = distributed.parallel(distributed.LossOf(self.unwrapped, self._loss))
        self._loss = loss_of
        self.rank_noise = distributed.RankNoise(self.device)

    @property
    def finished(self) -> bool:
        """Whether the last epoch is done, or the plateau rule has ended training."""
        stopped = self.settings.schedule == "plateau" and self._lr(0) < self.settings.min_lr
        return self.progress.epoch >= self.settings.epochs or stopped

    def epoch(self) -> EpochReport:
        """Train one epoch, validate, and keep the state if it is the best so far."""
        begin = time.perf_counter()
        lrs, codebook_steps = self.epoch_schedule()
        path = (*self.path, self.progress.epoch)
        if self.rank_noise is not None:
            self.rank_noise.seed_(*path, "noise")
        # Dropout and augmentation draw from the global generators: a graph knows no others.
        with (
            seeded(self.device, seeds.key(*path, "noise") >> 1),
            arithmetic(self.settings.precision, self.settings.deterministic),
        ):
            try:
                total = self._train_epoch(lrs, codebook_steps)
                loss = distributed.mean(float(total)) / self.num_steps
            except SettingError:  # no mask can be drawn from scores that are not numbers
                loss = math.nan
        if not math.isfinite(loss):
            where = f"training on {self.task.name!r} diverged in epoch {self.progress.epoch + 1}"
            cause = f"Lower training.lr (now {lrs[0]:g}) or score_lr."
            if self.unwrapped.architecture.weight_norms():
                cause = cause_of_nan(self.unwrapped.architecture)
            raise TaskError(f"{where}: the loss is {loss}. {cause}")
        return self._conclude_epoch(loss, lrs[-1], begin)

    def epoch_schedule(self) -> tuple[list[float], set[int]]:
        """The next epoch: the learning rate of each step, and the steps that update codebooks."""
        steps, done = self.num_steps, self.progress.epoch
        last = max(1, self.settings.epochs * steps - 1)
        warmup = max(1.0, self.settings.warmup_epochs * steps)
        lrs = [
            self._lr((done * steps + step) / last) * min(1.0, (done * steps + step + 1) / warmup)
            for step in range(steps)
        ]
        count = self.settings.codebook_updates_per_epoch
        return lrs, {round(i * steps / count) for i in range(count)}

    def order(self) -> Tensor:
        """The order of the next epoch's samples, from seed, task and epoch."""
        return self.train.order(*self.path, self.progress.epoch, "order")

    def _train_epoch(self, lrs: list[float], codebook_steps: set[int]) -> Tensor:
        """All steps of an epoch, by a CUDA graph where they can be; gives the sum of losses."""
        order = self.order()
        if self.can_capture:
            batches = self.train.full_batches(order, self.settings.batch_size)
            self._captured_step = self._captured_step or CapturedStep(self, batches.shape[1])
            return self._captured_step.run(batches, lrs, codebook_steps)
        total = torch.zeros((), device=self.device)
        epoch = self.train.epoch(order, self.settings.batch_size, self.augmentation)
        for step, (inputs, labels) in enumerate(epoch):
            if step in codebook_steps:
                self.update_codebooks_(step)
            for group in self.optimizer.param_groups:
                group["lr"] = lrs[step] * group["factor"]
            total += self.step(inputs, labels)
        return total

    @property
    def can_capture(self) -> bool:
        """Whether steps and evaluations can be captured as CUDA graphs."""
        resident = self.train.resident is not None and self.valid.resident is not None
        # Gradients that travel over the host cannot be part of a graph.
        alone = distributed.backend() in ("", "nccl")
        return self.device.type == "cuda" and self.settings.engine != "eager" and resident and alone

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        return -(-len(self.train) // min(self.settings.batch_size, len(self.train)))

    def share_done(self, step: int) -> float:
        """The share of all steps that is done before this one of the next epoch."""
        return (self.progress.epoch + step / self.num_steps) / self.settings.epochs

    def update_codebooks_(self, step: int = 0) -> None:
        """Fit the training codebooks anew before a step of the next epoch.

        By a CUDA graph where one was captured.
        """
        if self._captured_step is not None:
            self._captured_step.update_codebooks_(step)
        else:
            self.unwrapped.update_codebooks_(self.share_done(step))

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; gives the loss without waiting for it."""
        loss = self.backward_(inputs, labels)
        self._update()
        return loss

    def backward_(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Put the gradients of a batch's loss in the place of the last ones; gives the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        bfloat16 = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            try:
                loss = self._backward_in_parts(inputs, labels)
            except (RuntimeError, IndexError, ValueError) as error:
                if isinstance(error, (TinySubNetsError, torch.OutOfMemoryError)):
                    raise
                if distributed.is_lost(error):
                    raise distributed.lost() from error
                raise ArchitectureError(
                    f"the network fails in training on {self.task.name!r}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                # What a batch did not reach, as in stochastic depth, has a gradient of 0, as its
                # shared weights have anyhow; torch's fused SGD fails where there is none.
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return loss.detach()

    def _backward_in_parts(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Add up the gradients of a batch, in parts of `micro_batch` samples; gives its loss."""
        num, weights = len(labels), self.class_weights
        parts = -(-num // (self.settings.micro_batch or num))
        if parts == 1:
            loss = self._batch_loss(inputs, labels)
            loss.backward()
            return loss
        total = torch.zeros((), device=self.device)
        for part in range(parts):  # of nearly equal sizes
            where = slice(part * num // parts, (part + 1) * num // parts)
            share: Tensor | float = (where.stop - where.start) / num
            if weights is not None:  # the mean of a batch is a weighted one
                share = weights[labels[where]].sum() / weights[labels].sum()
            loss = self._batch_loss(inputs[where], labels[where]) * share
            loss.backward()
            total += loss.detach()
        return total

    def _batch_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch; of several processes, this one's part of it."""
        weights = self.class_weights
        if self.rank_noise is None:
            return self._loss(self.module, inputs, labels, weights)
        part, factor = distributed.part_of(labels, weights)
        with self.rank_noise:
            loss = self._loss(self.module, inputs[part], labels[part], weights)
        return loss * factor

    def use_fused_update_(self) -> None:
        """Update long vectors by a kernel of our own from now on, where there is one."""
        self._update = fused_update(self.optimizer) or self._update

    def validate(self) -> EvalResult:
        """Accuracy and loss on validation data of the network as it stands."""
        if self._validation is None:
            self._validation = self.captured(self.validation_counts)
        return EvalResult.of(self._validation(), len(self.valid))

    def validation_counts(self) -> Tensor:
        """What `validate` counts: [correct answers, sum of losses], float64 [2].

        In the precision of training: epochs are only compared with one another.
        """
        tensors = self.unwrapped.eval_tensors()
        return self.count_correct(tensors, precision=self.settings.precision)

    def evaluate(self, tensors: Mapping[str, Tensor], *, recalibrate: bool = True) -> EvalResult:
        """Accuracy and loss on validation data of the network with these tensors.

        BatchNorm statistics are estimated anew, unless they are final already.
        """
        if not recalibrate:
            return evaluate(self.unwrapped.architecture, tensors, self.valid)
        return EvalResult.of(self.count_correct(tensors), len(self.valid))

    def count_correct(
        self,
        tensors: Mapping[str, Tensor],
        samples: int = BATCHNORM_SAMPLES,
        precision: str = "float32",
    ) -> Tensor:
        """What `evaluate` counts, [2]; BatchNorm statistics are those of so many `samples`.

        Those of a frozen base stay as they are.
        """
        architecture, own = self.unwrapped.architecture, tensors
        if self.unwrapped.recalibrates:
            own = recalibrate_batchnorm(
                architecture, tensors, self.train, samples, precision=precision
            )
        return count_correct(architecture, own, self.valid, precision=precision)

    def captured(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function as a CUDA graph, where it can be; the next one shares its memory."""
        if not self.can_capture:
            return function
        self._captured_function = CapturedFunction(function, self._captured_function)
        return self._captured_function

    def restore_best_(self) -> None:
        """Go back to the best epoch by validation; masks follow from the restored scores.

        Captured steps and their memory are let go: training is over.
        """
        self._captured_step = self._validation = None
        if self.best:
            self.unwrapped.load_state_dict(self.best)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on from here: tensors by name, and plain numbers."""
        own = self.unwrapped.state_dict()
        tensors = {f"module.{n}": t.detach().clone() for n, t in own.items()}
        tensors |= {f"best.{n}": t.clone() for n, t in self.best.items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{k}": v.detach().clone()
                for k, v in values.items()
                if isinstance(v, Tensor)
            }
        return tensors, asdict(self.progress)

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state taken at an epoch boundary, as if never interrupted."""
        pick = {
            p: {n[len(p) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{p}.")}
            for p in ("module", "best", "optimizer")
        }
        self.unwrapped.load_state_dict(pick["module"])
        self.best = {n: t.to(self.device) for n, t in pick["best"].items()}
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in pick["optimizer"].items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.progress = Progress(**numbers)

    def _conclude_epoch(self, loss: float, lr: float, begin: float) -> EpochReport:
        """Validate after an epoch and update what is best, the plateau and the clock."""
        progress, result = self.progress, self.validate()
        progress.epoch += 1
        best = EvalResult(progress.best_accuracy, progress.best_loss)
        settled = self.unwrapped.settled
        rank, top = (settled, *self._rank(result)), (progress.settled, *self._rank(best))
        is_last = self._keeps_last and settled >= progress.settled
        is_best = not self.best or is_last or rank > top
        if is_best:
            progress.settled = settled
            self.best = {n: t.detach().clone() for n, t in self.unwrapped.state_dict().items()}
            progress.best_epoch, progress.best_accuracy = progress.epoch, result.accuracy
            progress.best_loss = result.loss
        self._watch_plateau(result.loss)
        seconds = time.perf_counter() - begin
        progress.seconds += seconds
        return EpochReport(
            self.task.name,
            progress.epoch,
            self.settings.epochs,
            loss,
            result.loss,
            result.accuracy,
            lr,
            seconds,
            is_best,
        )

    @property
    def _keeps_last(self) -> bool:
        """Whether the last epoch is kept, however it does on validation data."""
        is_unsure = self.settings.kept_epoch == "auto" and len(self.valid) < FEW_VALID
        return is_unsure or self.settings.kept_epoch == "last"

    def _rank(self, result: EvalResult) -> tuple[float, float]:
        """What epochs are ordered by, the best one highest."""
        if self.settings.kept_epoch == "loss":
            loss = result.loss if math.isfinite(result.loss) else math.inf
            return -loss, result.ranked_accuracy
        return result.ranked_accuracy, -result.loss

    def _watch_plateau(self, loss: float) -> None:
        progress = self.progress
        if loss < progress.lowest_loss:
            progress.lowest_loss, progress.waited = loss, 0
            return
        progress.waited += 1
        if progress.waited >= PATIENCE:
            progress.halvings, progress.waited = progress.halvings + 1, 0

    def _lr(self, share: float) -> float:
        """The learning rate after a share (0 to 1) of all steps."""
        high, low = self.settings.lr, self.settings.min_lr
        if self.settings.schedule == "cosine":
            return low + (high - low) * (1 + math.cos(math.pi * share)) / 2
        return high * 0.5**self.progress.halvings if self.settings.schedule == "plateau" else high


def loss_of(module: nn.Module, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """The loss of a module, or of a wrapper around it, on a batch."""
    return module(inputs, labels, weights)


@cache
def compiled_loss() -> Callable[..., Tensor]:
    """The one compiled form of `loss_of`: modules of equal shapes share its graph over all tasks.

    Made when first asked for, because to load the compiler takes seconds.
    """
    return torch.compile(loss_of, dynamic=False)
