"""Rivals with masks: WSN, PackNet and Ada-QPackNet, each over a masked core of its own.

None of them is TinySubNets; they share with it the store, the file and the training loop, so that a
comparison compares methods and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from tinysubnets import config
from tinysubnets.coding.seven_task_huffman import seven_tasks_size
from tinysubnets.errors import SettingError
from tinysubnets.method.banks import bank_with_room, last_bank
from tinysubnets.method.base import ScenarioType, State
from tinysubnets.method.compress import Compressed, Compressor, TaskParamSettings
from tinysubnets.method.core import (
    MaskedCore,
    MaskedLearner,
    SubnetReport,
    SubnetTrainer,
    at_once,
)
from tinysubnets.model.bank import Bank
from tinysubnets.model.routing import RoutingSettings
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BankDecision, CodebookTensor
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.masked import Compression, TaskModule
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.settings import TrainingSettings

LEAST_BITS = 2


class MaskedBaseline(MaskedLearner):
    """A rival over a masked core, built from its settings; it adds `_begin`.

    - `training`, `routing`: settings, as objects or as what a recipe has.
    - `pruning`: every method is built with the same arguments; this is TinySubNets' own.
    - `store`: a model to go on from.
    - `settings`: those of `settings_class`.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: object = None,
        routing: RoutingSettings | Mapping | None = None,
        device: str | torch.device = "auto",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        own, trained = config.build_with(
            self.settings_class, settings, training=(TrainingSettings, training)
        )
        recorded = config.to_dict(own)
        core = MaskedCore(
            architecture,
            own,
            trained,
            block=recorded.get("block", 1),
            device=device,
            store=store,
            routing=routing,
        )
        record = {self.name: recorded, "training": config.to_dict(trained)}
        super().__init__(core, own, record)

    @classmethod
    def _from_record(
        cls, store: SubnetStore, record: Mapping[str, Any], device: str | torch.device
    ) -> Self:
        return cls(
            store.architecture,
            training=record.get("training"),
            routing=record.get("routing"),
            device=device,
            store=store,
            **record[cls.name],
        )


# WSN ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WSNSettings:
    """What WSN does with each task.

    - `density`: the share of weights its mask keeps.
    - `density_exponent`: 0, as in the paper, gives every tensor that density; above, small tensors
      are denser, as in TinySubNets.
    - `bits`, `task_param_bits`: how weights, and heads, biases and norms, are stored: 32 as in the
      paper; fewer, or "auto" for the latter, by the codec of TinySubNets.
    - `init`, `scale`: where free values start from, and how wide the random ones are spread.
    - `scenario_type`: "task-IL": the task of an input is known.
    """

    density: float = 0.5
    density_exponent: float = 0.0
    bits: int = 32
    task_param_bits: Literal["auto"] | int = 32
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: ScenarioType = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise SettingError(
                f"density = {self.density!r} is not allowed; give a share above 0, at most 1."
            )
        if not 0 <= self.density_exponent <= 1:
            raise SettingError(
                f"density_exponent = {self.density_exponent!r} is not allowed; give 0 to 1."
            )
        check_stored(self.bits, self.task_param_bits)


class WSN(MaskedBaseline):
    """A learner of winning subnetworks; it forgets nothing.

    H. Kang et al.: Forget-free Continual Learning with Winning Subnetworks, ICML 2022. A mask per
    task, learned by scores together with the weights; weights keep their 32 bits. It is what
    TinySubNets grew from: no quantization, no post-pruning, one bank.
    """

    name: ClassVar[str] = "wsn"
    settings_class: ClassVar[type] = WSNSettings
    settings: WSNSettings

    def _begin(self, task: Task) -> SubnetTrainer:
        """Check a task and set up its training: scores and all free weights are learned."""
        decision, layout = last_bank(self.store), self.store.layout
        bank = self.core.bank(decision.bank)
        if bool(bank.owned.all()):
            self.core.warn_full(decision.bank)
        start = self.core.initial_state(task, decision.bank)
        settings = self.settings
        keep = layout.keep(settings.density, settings.density_exponent)
        compression = Compression(keep, bits=32)
        module = TaskModule(self.architecture, layout, bank.values, bank.owned, start, compression)
        return SubnetTrainer(
            self.core,
            task,
            decision,
            module,
            at_once(lambda trained: as_trained(trained, settings.bits)),
            task_params=stored_params(settings.task_param_bits),
            reports=self.reports,
        )

    def capacity(self) -> Mapping[str, float]:
        """The capacity of the WSN paper: (1 − S) + (1 − α)·T / 32, a share of 32·|Θ| bits.

        S is the share of weights that no task uses and α how much of the raw masks' bits the
        Huffman code over seven tasks saves.
        """
        subnets = list(self.store.subnets.values())
        if not subnets:
            return {"wsn": 0.0}
        masks = [self.store.layout.expand(s.mask).numpy() for s in subnets]
        num = self.store.layout.num_weights
        return {"wsn": 1 - self.store.free_share() + 8 * seven_tasks_size(masks) / (32 * num)}


def as_trained(trained: Compressor, bits: int) -> Compressed:
    """The mask and the weights as they were trained, in 32 bits, or rounded to fewer."""
    return Compressed(trained.mask, bits, trained.encode(trained.mask, bits))


def stored_params(bits: Literal["auto"] | int) -> TaskParamSettings:
    """How task-specific parameters are stored; "auto" loses as little as TinySubNets may."""
    return TaskParamSettings(bits, 0.002 if bits == "auto" else 0.0)


def check_stored(bits: int, task_param_bits: Literal["auto"] | int) -> None:
    """Refuse widths that the codec does not have."""
    if bits not in (*range(1, 9), 32):
        raise SettingError(f"bits = {bits!r} is not allowed; give 1 to 8, or 32.")
    if task_param_bits not in ("auto", 4, 5, 6, 7, 8, 16, 32):
        raise SettingError(
            f"task_param_bits = {task_param_bits!r} is not allowed; give 'auto', 4 to 8, 16 or 32."
        )


# Pruning by magnitude -----------------------------------------------------------------------------


class FixedMaskModule(TaskModule):
    """A task in training whose mask is given from outside, not learned by scores.

    - `mask`: the blocks that are used, owned or free.
    """

    fixed: Tensor

    def __init__(
        self,
        architecture: Architecture,
        layout: Layout,
        bank: Bank,
        start: InitialState,
        mask: Tensor,
    ) -> None:
        keep = tuple(j - i for i, j in layout.block_segments)
        compression = Compression(keep, bits=32)
        super().__init__(architecture, layout, bank.values, bank.owned, start, compression)
        self.register_buffer("fixed", mask.clone())

    def mask(self) -> Tensor:
        """The given mask."""
        return self.fixed

    def effective(self, mask: Tensor | None = None) -> Tensor:
        """The flat weights: owned values as they are, free ones trained, both under the mask."""
        values = torch.where(self.owned_weights, self.bank_values, self.free)
        return torch.where(self.layout.expand(self.fixed), values, 0.0)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves: there are no scores."""
        return {"free": [self.free], "task_params": list(self.task_params)}

    @torch.no_grad()
    def largest(self, keep: tuple[int, ...]) -> Tensor:
        """The mask of the largest free blocks by the sum of |w|, so many of each tensor."""
        bounds = [(i, j, k) for (i, j), k in zip(self.layout.block_segments, keep, strict=True)]
        magnitude = self.layout.sum(self.free.detach().abs())
        return top_k_segments(magnitude, bounds, None, ~self.owned)[0]

    def keep(self, density: float) -> tuple[int, ...]:
        """How many blocks of each tensor that density keeps, at most those that are free."""
        return tuple(map(min, self.free_blocks(), self.layout.keep(density)))

    def free_blocks(self) -> tuple[int, ...]:
        """How many blocks of each tensor nobody owns."""
        return tuple(int((~self.owned[i:j]).sum()) for i, j in self.layout.block_segments)


class PruneRetrainTrainer:
    """One task learned in two phases of one budget of epochs: train, prune once, train the rest.

    - `prune`: sets the module's mask to what is kept, given the trained module and its training.
    - `retrain`: the share of the epochs that follows pruning, at `factor` times the learning rate.
    Other arguments are those of `SubnetTrainer`, which this one runs twice over the same module.
    """

    def __init__(
        self,
        core: MaskedCore,
        task: Task,
        decision: BankDecision,
        module: FixedMaskModule,
        prune: Callable[[FixedMaskModule, Training], None],
        compress: Callable[[Compressor], Compressed],
        *,
        retrain: float,
        factor: float,
        task_params: TaskParamSettings,
        reports: dict[str, SubnetReport],
    ) -> None:
        self.core, self.task, self.module, self.prune = core, task, module, prune
        self.factor, self.reports = factor, reports
        epochs = core.training.epochs
        self.late_epochs = min(max(1, round(retrain * epochs)), epochs - 1)
        self.is_pruned, self.early_seconds = False, 0.0
        self.inner = SubnetTrainer(
            core,
            task,
            decision,
            module,
            at_once(compress),
            task_params=task_params,
            reports=reports,
            training=self._phase(),
        )

    @property
    def epochs_done(self) -> int:
        """How many epochs of both phases have been trained."""
        early = self.core.training.epochs - self.late_epochs
        return self.inner.epochs_done + (early if self.is_pruned else 0)

    @property
    def finished(self) -> bool:
        """Whether all epochs of both phases are done, so that `finish()` is next."""
        return self.inner.finished and (self.is_pruned or self.late_epochs == 0)

    def epoch(self) -> EpochReport:
        """Train one epoch; the first one after the early phase prunes before it trains."""
        if self.inner.finished:
            self._prune_()
        report = self.inner.epoch()
        epochs = self.core.training.epochs
        return dataclasses.replace(report, epoch=self.epochs_done, epochs=epochs)

    def finish(self) -> SubnetReport:
        """Take the best epoch after pruning and claim it; the task is learned."""
        if not self.is_pruned:
            self._prune_()
        self.inner.training.progress.seconds += self.early_seconds
        return self.inner.finish()

    def state(self) -> State:
        """Everything needed to go on with this trainer later, taken between two epochs."""
        tensors, numbers = self.inner.state()
        return tensors, numbers | {"pruned": self.is_pruned, "early_seconds": self.early_seconds}

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a trainer of the same task and the same store."""
        numbers = dict(numbers)
        self.is_pruned = numbers.pop("pruned")
        self.early_seconds = numbers.pop("early_seconds")
        self.inner.training = self.core.train(self.module, self.inner.data, self._phase())
        self.inner.restore_(tensors, numbers)

    def _prune_(self) -> None:
        """Prune the best network of the early phase and set up the late one."""
        training = self.inner.training
        training.restore_best_()
        self.early_seconds = training.progress.seconds
        self.prune(self.module, training)
        self.is_pruned = True
        self.inner.training = self.core.train(self.module, self.inner.data, self._phase())

    def _phase(self) -> TrainingSettings:
        """The training settings of the phase at hand."""
        settings = self.core.training
        if not self.is_pruned:
            return dataclasses.replace(settings, epochs=settings.epochs - self.late_epochs)
        lr = settings.lr * self.factor
        epochs, min_lr = max(self.late_epochs, 1), min(settings.min_lr, lr)
        return dataclasses.replace(settings, epochs=epochs, lr=lr, min_lr=min_lr)


# PackNet ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackNetSettings:
    """What PackNet does with each task.

    - `density`, `of`: the share a task keeps, of "all" weights of a layer or, as in the paper, of
      those still "free".
    - `retrain`, `retrain_factor`: the share of all epochs that follows pruning, and what scales
      their learning rate.
    - `bits`, `task_param_bits`: how weights, and heads, biases and norms, are stored: 32 as in the
      paper; fewer, or "auto" for the latter, by the codec of TinySubNets.
    - `block`: mask bits cover this many neighbors of a row, or a whole convolution kernel.
    - `init`, `scale`: where free values start from, and how wide the random ones are spread.
    - `scenario_type`: "task-IL": the task of an input is known.
    """

    density: float = 0.1
    of: Literal["all", "free"] = "all"
    retrain: float = 0.25
    retrain_factor: float = 0.1
    bits: int = 32
    task_param_bits: Literal["auto"] | int = 32
    block: int = 1
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: ScenarioType = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, self.retrain_factor)
        check_stored(self.bits, self.task_param_bits)


class PackNet(MaskedBaseline):
    """A learner that packs tasks into one network by pruning; it forgets nothing.

    A. Mallya, S. Lazebnik: PackNet: Adding Multiple Tasks to a Single Network by Iterative Pruning,
    CVPR 2018. Train all free weights, keep the largest, train them again, freeze them. A task uses
    its own weights and all earlier ones.
    """

    name: ClassVar[str] = "packnet"
    settings_class: ClassVar[type] = PackNetSettings
    settings: PackNetSettings

    def _begin(self, task: Task) -> PruneRetrainTrainer:
        """Check a task and set up its training: all blocks, owned ones as they are."""
        decision = last_bank(self.store)
        bank = self.core.bank(decision.bank)
        start = self.core.initial_state(task, decision.bank)
        if bool(bank.owned.all()):
            self.core.warn_full(decision.bank)
        everything = torch.ones_like(bank.owned)
        module = FixedMaskModule(self.architecture, self.store.layout, bank, start, everything)
        return PruneRetrainTrainer(
            self.core,
            task,
            decision,
            module,
            self._prune_,
            lambda trained: as_trained(trained, self.settings.bits),
            retrain=self.settings.retrain,
            factor=self.settings.retrain_factor,
            task_params=stored_params(self.settings.task_param_bits),
            reports=self.reports,
        )

    def _prune_(self, module: FixedMaskModule, _: Training) -> None:
        """Keep the task's share of the free blocks, by magnitude, and everything owned."""
        density = self.settings.density
        if self.settings.of == "free":
            keep = tuple(min(f, max(1, round(density * f))) for f in module.free_blocks())
        else:
            keep = module.keep(density)
        module.fixed.copy_(module.largest(keep) | module.owned)


def check_shares(density: float, retrain: float, factor: float) -> None:
    """Refuse shares that are none."""
    for name, value in (("density", density), ("retrain_factor", factor)):
        if not 0 < value <= 1:
            raise SettingError(f"{name} = {value!r} is not allowed; give more than 0, at most 1.")
    if not 0 <= retrain < 1:
        raise SettingError(f"retrain = {retrain!r} is not allowed; give a share from 0 to below 1.")


# Ada-QPackNet -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdaQPackNetSettings:
    """What Ada-QPackNet does with each task.

    - `density`, `shrink`, `pruning_tolerance`: the largest share of a layer's weights a task may
      keep; it keeps fewer, by steps of `shrink`, while validation accuracy loses at most that.
    - `retrain`: the share of all epochs that the kept weights are trained for, from the values they
      started with.
    - `first_bits`, `tolerance`: codes shrink from that width while the validation accuracy lost
      stays within the tolerance.
    - `task_param_bits`: how heads, biases and norms are stored: 32 as in the paper; fewer, or
      "auto", by the codec of TinySubNets.
    - `max_banks`: how many banks may be opened, one when the last is full.
    - `block`: mask bits cover this many neighbors of a row, or a whole convolution kernel.
    - `init`, `scale`: where free values start from, and how wide the random ones are spread.
    - `scenario_type`: "task-IL": the task of an input is known.
    """

    density: float = 0.1
    shrink: float = 0.8
    pruning_tolerance: float = 0.02
    retrain: float = 0.5
    first_bits: int = 6
    tolerance: float = 0.02
    task_param_bits: Literal["auto"] | int = 32
    max_banks: int = 1
    block: int = 1
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: ScenarioType = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, 1.0)
        if not 0 < self.shrink < 1:
            raise SettingError(f"shrink = {self.shrink!r} is not allowed; give a share below 1.")
        if not LEAST_BITS <= self.first_bits <= 8:
            raise SettingError(f"first_bits = {self.first_bits!r} is not allowed; give 2 to 8.")
        check_stored(self.first_bits, self.task_param_bits)


class AdaQPackNet(MaskedBaseline):
    """A learner that gives every task few weights of its own; it forgets nothing.

    M. Pietroń, D. Żurek, K. Faber, R. Corizzo: Ada-QPackNet: Adaptive Pruning with Bit Width
    Reduction as an Efficient Continual Learning Method without Forgetting, ECAI 2023. Disjoint
    weights per task, as few and as narrow as accuracy allows: a lottery ticket among the free
    weights, trained from its first values, then narrow codes.
    """

    name: ClassVar[str] = "ada-qpacknet"
    settings_class: ClassVar[type] = AdaQPackNetSettings
    settings: AdaQPackNetSettings

    def _begin(self, task: Task) -> PruneRetrainTrainer:
        """Check a task and set up its training: the free blocks of a bank with room alone."""
        decision = bank_with_room(self.store, last_bank(self.store), self.settings.max_banks)
        bank = self.core.bank(decision.bank)
        start = self.core.initial_state(task, decision.bank)
        module = FixedMaskModule(self.architecture, self.store.layout, bank, start, ~bank.owned)

        def prune_(module: FixedMaskModule, training: Training) -> None:
            self._prune_(module, training)
            _start_over_(module, start)

        return PruneRetrainTrainer(
            self.core,
            task,
            decision,
            module,
            prune_,
            self._compress,
            retrain=self.settings.retrain,
            factor=1.0,
            task_params=stored_params(self.settings.task_param_bits),
            reports=self.reports,
        )

    def _prune_(self, module: FixedMaskModule, training: Training) -> None:
        """Keep the sparsest of ever smaller masks that is accurate enough."""
        evaluate, settings = training.evaluate, self.settings
        least = evaluate(module.eval_tensors()).ranked_accuracy - settings.pruning_tolerance

        def accuracy(mask: Tensor) -> float:
            tensors = module.tensors(module.final_weights(mask))
            return evaluate({n: t.detach() for n, t in tensors.items()}).ranked_accuracy

        density = settings.density
        best = module.largest(module.keep(density))
        while True:
            density *= settings.shrink
            trial = module.largest(module.keep(density))
            if torch.equal(trial, best) or accuracy(trial) < least:
                break
            best = trial
        module.fixed.copy_(best)

    def _compress(self, trained: Compressor) -> Compressed:
        bits, own = narrowed(trained, self.settings)
        return Compressed(trained.mask, bits, own)


def _start_over_(module: FixedMaskModule, start: InitialState) -> None:
    """Give a module the values back that it started with."""
    with torch.no_grad():
        module.free.copy_(start.free)
        for name, parameter in zip(module.names, module.task_params, strict=True):
            parameter.copy_(start.task_params[name])


def narrowed(
    work: Compressor, settings: AdaQPackNetSettings
) -> tuple[int, tuple[CodebookTensor, ...]]:
    """The codes of a trained subnet, narrowed while validation accuracy stays within tolerance."""
    least = work.accuracy(work.weights(work.mask, None)) - settings.tolerance
    bits, own = settings.first_bits, work.encode(work.mask, settings.first_bits)
    for narrower in range(settings.first_bits - 1, LEAST_BITS - 1, -1):
        trial = work.encode(work.mask, narrower)
        if work.accuracy(work.weights(work.mask, trial)) < least:
            break
        bits, own = narrower, trial
    return bits, own
