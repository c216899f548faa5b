"""Lessons of methods that prune by magnitude: train, prune once, train what is left."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tinysubnets import config
from tinysubnets.baselines.base import check_scenario_type
from tinysubnets.coding.seven_task_huffman import seven_tasks_size
from tinysubnets.errors import SettingError
from tinysubnets.method.compress import Compressor
from tinysubnets.method.learner import TaskTrainer, TinySubNets
from tinysubnets.model.bank import Bank
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import CodebookTensor, Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.masked import Compression, TaskModule
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.settings import TrainingSettings


class FixedMaskModule(TaskModule):
    """A task in training whose mask is given from outside, not learned by scores."""

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


class MagnitudeTrainer(TaskTrainer, ABC):
    """One task learned in two phases of the same budget of epochs: before and after pruning.

    `share` of the epochs follow the pruning, at `factor` times the learning rate.
    """

    module: FixedMaskModule

    def __init__(self, learner: TinySubNets, task: Task, *, share: float, factor: float) -> None:
        epochs = learner.training.epochs
        self.late_epochs = min(max(1, round(share * epochs)), epochs - 1)
        self.factor, self.is_pruned, self.early_seconds = factor, False, 0.0
        super().__init__(learner, task)

    @abstractmethod
    def first_mask(self, bank: Bank) -> Tensor:
        """The blocks that are used before pruning."""

    @abstractmethod
    def prune_(self) -> None:
        """Set the module's mask to what is kept."""

    @property
    def finished(self) -> bool:
        """Whether all epochs of both phases are done, so that `finish()` is next."""
        return self.training.finished and (self.is_pruned or self.late_epochs == 0)

    def epoch(self) -> EpochReport:
        """Train one epoch; the first one after the early phase prunes before it trains."""
        if self.training.finished:
            self._turn_()
        report = self.training.epoch()
        early = self.learner.training.epochs - self.late_epochs
        done = report.epoch + (early if self.is_pruned else 0)
        return dataclasses.replace(report, epoch=done, epochs=self.learner.training.epochs)

    def finish(self) -> Subnet:
        """Take the best epoch after pruning and claim it; the task is learned."""
        if not self.is_pruned:
            self._turn_()
        self.training.progress.seconds += self.early_seconds
        return super().finish()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on with this lesson later, taken between two epochs."""
        tensors, numbers = self.training.state()
        return tensors, numbers | {"pruned": self.is_pruned, "early_seconds": self.early_seconds}

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a lesson on the same task and the same store."""
        numbers = dict(numbers)
        self.is_pruned = numbers.pop("pruned")
        self.early_seconds = numbers.pop("early_seconds")
        self.training = self._train(self.learner.training)
        super().restore_(tensors, numbers)

    def _turn_(self) -> None:
        """Prune the best network of the early phase and set up the late one."""
        self.training.restore_best_()
        self.early_seconds = self.training.progress.seconds
        self.prune_()
        self.is_pruned = True
        self.training = self._train(self.learner.training)

    def _module(self, bank: Bank) -> FixedMaskModule:
        learner = self.learner
        start, mask = self._initial_state(), self.first_mask(bank)
        return FixedMaskModule(learner.architecture, learner.store.layout, bank, start, mask)

    def _train(self, settings: TrainingSettings) -> Training:
        early = settings.epochs - self.late_epochs
        if self.is_pruned:
            settings = dataclasses.replace(
                settings,
                epochs=max(self.late_epochs, 1),
                lr=settings.lr * self.factor,
                min_lr=min(settings.min_lr, settings.lr * self.factor),
            )
        else:
            settings = dataclasses.replace(settings, epochs=early)
        return super()._train(settings)


# --------------------------------------------------------------------------------------------------
# WSN: a mask per task, learned by scores together with the weights, over 32-bit weights.
#
# H. Kang et al.: Forget-free Continual Learning with Winning Subnetworks, ICML 2022. It is what
# TinySubNets grew from: no quantization, no post-pruning, one bank.


@dataclass(frozen=True)
class WSNSettings:
    """What WSN does with each task: `density` is the share of weights its mask keeps."""

    density: float = 0.5
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: Literal["task-IL", "class-IL", "domain-IL"] = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        check_scenario_type("wsn", self.scenario_type, ("task-IL",))


class WSN(TinySubNets):
    """A learner of winning subnetworks; it forgets nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        own = asdict(config.build(WSNSettings, settings))
        del own["scenario_type"]
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            bits=32,
            max_banks=1,
            memory=None,
            post_pruning=False,
            task_param_bits=32,
            **own,
        )

    def wsn_capacity(self) -> float:
        """The capacity of the WSN paper: (1 − S) + (1 − α)·T / 32, a share of 32·|Θ| bits.

        S is the share of weights that no task uses and α how much of the raw masks' bits the
        Huffman code over seven tasks saves.
        """
        subnets = list(self.store.subnets.values())
        if not subnets:
            return 0.0
        masks = [self.store.layout.expand(s.mask).numpy() for s in subnets]
        num = self.store.layout.num_weights
        return 1 - self.store.free_share() + 8 * seven_tasks_size(masks) / (32 * num)


# --------------------------------------------------------------------------------------------------
# PackNet: train all free weights, keep the largest, train them again, freeze them.
#
# A. Mallya, S. Lazebnik: PackNet: Adding Multiple Tasks to a Single Network by Iterative Pruning,
# CVPR 2018. A task uses its own weights and all earlier ones.


@dataclass(frozen=True)
class PackNetSettings:
    """What PackNet does with each task.

    - `density`: the share a task keeps, `of` "all" weights of a layer or, as in the paper, of those
      still "free".
    - `retrain`: the share of all epochs that follows pruning; `retrain_factor` scales their rate.
    """

    density: float = 0.1
    of: Literal["all", "free"] = "all"
    retrain: float = 0.25
    retrain_factor: float = 0.1
    block: int = 1
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: Literal["task-IL", "class-IL", "domain-IL"] = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, self.retrain_factor)
        check_scenario_type("packnet", self.scenario_type, ("task-IL",))


class PackNet(TinySubNets):
    """A learner that packs tasks into one network by pruning; it forgets nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        self.own = config.build(PackNetSettings, settings)
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            density=self.own.density,
            bits=32,
            max_banks=1,
            memory=None,
            post_pruning=False,
            task_param_bits=32,
            **{n: getattr(self.own, n) for n in ("block", "init", "scale", "seed")},
        )
        self.store.settings["packnet"] = config.to_dict(self.own)

    def _trainer(self, task: Task) -> TaskTrainer:
        return PackNetTrainer(self, task, share=self.own.retrain, factor=self.own.retrain_factor)


class PackNetTrainer(MagnitudeTrainer):
    """One task being packed: all weights at first, then its own largest and all owned ones."""

    learner: PackNet

    def first_mask(self, bank: Bank) -> Tensor:
        """All blocks: owned ones as they are, free ones in training."""
        if not bool((~bank.owned).any()):
            self.learner._warn_once(self.decision.bank)
        return torch.ones_like(bank.owned)

    def prune_(self) -> None:
        """Keep the task's share of the free blocks, by magnitude, and everything owned."""
        module, own = self.module, self.learner.own
        free = [int((~module.owned[i:j]).sum()) for i, j in module.layout.block_segments]
        if own.of == "free":
            keep = tuple(min(f, max(1, round(own.density * f))) for f in free)
        else:
            keep = tuple(map(min, free, module.layout.keep(own.density)))
        module.fixed.copy_(module.largest(keep) | module.owned)


def check_shares(density: float, retrain: float, factor: float) -> None:
    """Refuse shares that are none."""
    for name, value in (("density", density), ("retrain_factor", factor)):
        if not 0 < value <= 1:
            raise SettingError(f"{name} = {value!r} is not allowed; give more than 0, at most 1.")
    if not 0 <= retrain < 1:
        raise SettingError(f"retrain = {retrain!r} is not allowed; give a share from 0 to below 1.")


# --------------------------------------------------------------------------------------------------
# Ada-QPackNet: disjoint weights per task, as few and as narrow as accuracy allows.
#
# M. Pietroń, D. Żurek, K. Faber, R. Corizzo: Ada-QPackNet: Adaptive Pruning with Bit Width
# Reduction
# as an Efficient Continual Learning Method without Forgetting, ECAI 2023.


LEAST_BITS = 2


@dataclass(frozen=True)
class AdaQPackNetSettings:
    """What Ada-QPackNet does with each task.

    - `density`: the largest share of a layer's weights a task may keep; it keeps fewer, by steps of
      `shrink`, while validation accuracy loses at most `pruning_tolerance`.
    - `retrain`: the share of all epochs that the kept weights are trained for, from the values they
      started with.
    - `first_bits`, `tolerance`: codes shrink from that width while the validation accuracy lost
      stays within the tolerance.
    """

    density: float = 0.1
    shrink: float = 0.8
    pruning_tolerance: float = 0.02
    retrain: float = 0.5
    first_bits: int = 6
    tolerance: float = 0.02
    max_banks: int = 1
    block: int = 1
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    scenario_type: Literal["task-IL", "class-IL", "domain-IL"] = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shares(self.density, self.retrain, 1.0)
        check_scenario_type("ada-qpacknet", self.scenario_type, ("task-IL",))
        if not 0 < self.shrink < 1:
            raise SettingError(f"shrink = {self.shrink!r} is not allowed; give a share below 1.")
        if not 2 <= self.first_bits <= 8:
            raise SettingError(f"first_bits = {self.first_bits!r} is not allowed; give 2 to 8.")


class AdaQPackNet(TinySubNets):
    """A learner that gives every task few weights of its own; it forgets nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        self.own = config.build(AdaQPackNetSettings, settings)
        names = ("density", "max_banks", "block", "init", "scale", "seed")
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            sharing="none",
            memory=None,
            post_pruning=False,
            task_param_bits=32,
            **{n: getattr(self.own, n) for n in names},
        )
        self.store.settings["ada-qpacknet"] = config.to_dict(self.own)

    def _trainer(self, task: Task) -> TaskTrainer:
        return AdaQPackNetTrainer(self, task, share=self.own.retrain, factor=1.0)


class AdaQPackNetTrainer(MagnitudeTrainer):
    """One task being learned: a lottery ticket among the free weights, then narrow codes."""

    learner: AdaQPackNet

    def first_mask(self, bank: Bank) -> Tensor:
        """The free blocks: nothing of other tasks is used."""
        return ~bank.owned

    def prune_(self) -> None:
        """Keep the sparsest of ever smaller masks that is accurate enough, and start it anew."""
        module, evaluate = self.module, self.training.evaluate
        least = evaluate(module.eval_tensors()).accuracy - self.learner.own.pruning_tolerance
        free = [int((~module.owned[i:j]).sum()) for i, j in module.layout.block_segments]
        density = self.learner.own.density
        best = module.largest(tuple(map(min, free, module.layout.keep(density))))
        while True:
            density *= self.learner.own.shrink
            keep = tuple(map(min, free, module.layout.keep(density)))
            trial = module.largest(keep)
            if torch.equal(trial, best) or self._accuracy(trial) < least:
                break
            best = trial
        module.fixed.copy_(best)
        start = self._initial_state()
        with torch.no_grad():
            module.free.copy_(start.free)
            for name, parameter in zip(module.names, module.task_params, strict=True):
                parameter.copy_(start.task_params[name])

    def _accuracy(self, mask: Tensor) -> float:
        tensors = self.module.tensors(self.module.final_weights(mask))
        return self.training.evaluate({n: t.detach() for n, t in tensors.items()}).accuracy

    def _compress(self) -> tuple[Subnet, float]:
        work = Compressor(self)
        bits, own = shrunk(work, self.learner.own)
        return work.subnet(work.mask, bits, own), 0.0


def shrunk(
    work: Compressor, settings: AdaQPackNetSettings
) -> tuple[int, tuple[CodebookTensor, ...]]:
    """The codes of a trained subnet, narrowed while validation accuracy stays within tolerance."""
    least = work.accuracy(work.weights(work.mask, None)) - settings.tolerance
    bits, own = settings.first_bits, work.coded(work.mask, settings.first_bits)
    for narrower in range(settings.first_bits - 1, LEAST_BITS - 1, -1):
        trial = work.coded(work.mask, narrower)
        if work.accuracy(work.weights(work.mask, trial)) < least:
            break
        bits, own = narrower, trial
    return bits, own
