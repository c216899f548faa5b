"""A task as a difference: weights that are there already, and a few own values added to them.

Beside Algorithm 1 of the paper. Nothing is shared by masks; what a task has in common with an
earlier one, or with a pretrained base, it does not store. All weights of a task are trained, and
pruned gradually. Where bytes have a price, a task climbs a ladder instead; see `ladder`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.errors import SettingError
from tinysubnets.method.banks import new_bank, remember
from tinysubnets.method.compress import Compressed, Compressor, TaskParamSettings
from tinysubnets.method.core import SubnetTrainer
from tinysubnets.method.ladder import LadderTrainer, price_of
from tinysubnets.method.pruning import PruningStep
from tinysubnets.method.reuse import below_head, best_earlier
from tinysubnets.method.settings import OVER_BASE, OVER_TASK, Rung, TSNSettings, parse_rungs
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import (
    BASE,
    MAX_CHAIN,
    NO_BANK,
    BankDecision,
    CodebookTensor,
    Subnet,
)
from tinysubnets.nn.init import InitialState, InitKey, initial_task_params
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors, LowRankModule
from tinysubnets.nn.magnitude import MagnitudeModule, MagnitudePruning
from tinysubnets.nn.norms import unfolded
from tinysubnets.tasks.divergence import InputStatistics, divergences, statistics_of
from tinysubnets.tasks.task import Task
from tinysubnets.training.features import feature_task
from tinysubnets.training.settings import TrainingSettings

if TYPE_CHECKING:
    from tinysubnets.method.learner import TinySubNets

CALIBRATION_SAMPLES = 500  # by which norms of the reference are fitted to a new task's inputs
FINE_TUNING = 0.1  # of the learning rate, for differences to a base
LOW_RANK = 0.3  # of the learning rate, for all that a rung of low rank trains
FACTOR_BITS = 2  # of a factor: its root mean square has half a step to one step
# A first difference to a base is trained longer than other rungs: which weights it moves is found
# in the first part of its steps. In as many epochs as scales and shifts take it gained nothing.
FIRST_EPOCHS = 2
WHOLE = "whole"  # the one rung of a task that climbs no ladder


def begin_difference(
    learner: TinySubNets, task: Task, isolated: bool
) -> SubnetTrainer | LadderTrainer:
    """Choose what a task is a difference to and set up its training.

    - `isolated`: whether it is to refer to no other task, and serve none.
    """
    settings, store = learner.settings, learner.store
    if learner.core.frozen_base:
        difference = _to_base(learner, task, isolated)
    else:
        memory = None if isolated or settings.reference != "similar" else remember(task, settings)
        decision = choose_reference(store, memory, settings, isolated)
        difference = _to_task(learner, task, decision, memory, isolated)
    price = price_of(settings, learner.core.frozen_base)
    if difference.reference is None or price == 0:
        density = settings.density
        if difference.reference is None:
            density = settings.first_density or density
        return difference.trainer(Rung(WHOLE, density), has_norms=True)
    over_base = difference.reference == BASE
    rungs = parse_rungs(settings.rungs or (OVER_BASE if over_base else OVER_TASK))
    if not over_base:  # a head of its own, and norms, such a task has anyhow
        rungs = (Rung("norms", has_norms=True), *(r for r in rungs if r.density > 0))
    else:
        rungs = _possible(rungs, store.layout)
        if isolated:  # nothing of another task may enter it
            rungs = tuple(r for r in rungs if not r.reuses)
    made = Rungs(difference)
    return LadderTrainer(learner.core, task, rungs, made, price, learner.reports, isolated=isolated)


def _possible(rungs: tuple[Rung, ...], layout: Layout) -> tuple[Rung, ...]:
    """Those that a network of this layout has something to train in."""
    out = tuple(r for r in rungs if not r.rank or Factors(layout, r.rank).num)
    if all(r.reuses for r in out):
        raise SettingError(
            "rungs: no weights of this network are a matrix large enough for a difference of such "
            'a rank; add another rung, such as "head".'
        )
    return out


class Rungs:
    """The trainings of a ladder's rungs, over a difference or over what an earlier task added."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference

    def __call__(
        self, rung: Rung, has_norms: bool, reuses: bool, before: MagnitudeModule | None
    ) -> SubnetTrainer | None:
        """The training of a rung; None where nothing that could be reused is worth a try.

        - `has_norms`: whether the task has vectors of its own below the head.
        - `reuses`: whether it is over an earlier task's difference to the base.
        - `before`: the trained module to go on from: of the last rung that was climbed, or of the
          denser difference before this one.
        """
        difference = self.reused if reuses else self.difference
        if difference is None:
            return None
        return difference.trainer(rung, has_norms, None if rung.reuses else before)

    @cached_property
    def reused(self) -> Difference | None:
        """The task as a difference to the earlier one whose own it can use best."""
        difference = self.difference
        learner = difference.learner
        difference.checked_tensors()
        subnet = best_earlier(learner.store, difference.task, learner.device)
        return None if subnet is None else _reusing(difference, subnet)


@dataclass(frozen=True)
class Difference:
    """What a task is a difference to, and how its training over that begins.

    - `reference`: the number of an earlier task, `BASE`, or None where the weights are its own.
    - `weights`: those that it is added to [N]; None for zeros.
    - `start`: what training begins with.
    - `memory`: what is kept of the task's inputs to compare later tasks with.
    - `taken_over`: parameters that it has from an earlier task, as they are stored there.
    """

    learner: TinySubNets
    task: Task
    decision: BankDecision
    reference: int | None
    weights: Tensor | None
    start: InitialState
    memory: InputStatistics | Tensor | None
    isolated: bool
    taken_over: Mapping[str, CodebookTensor] = field(default_factory=dict)

    @property
    def is_over_base(self) -> bool:
        """Whether it is a difference to the base, or to an earlier task that is one."""
        return self.learner.core.frozen_base

    def trainer(
        self, rung: Rung, has_norms: bool, before: MagnitudeModule | None = None
    ) -> SubnetTrainer:
        """The training of a rung, or of the whole.

        - `has_norms`: over a base, whether the task has vectors of its own below the head.
        - `before`: the trained module to go on from: of the last rung that was climbed, or of the
          denser difference before this one.
        """
        learner, settings, core = self.learner, self.learner.settings, self.learner.core
        architecture, own = learner.architecture, None
        if self.is_over_base:
            own = self._own_params(has_norms)
        pruning = MagnitudePruning(
            rung.density,
            settings.density_exponent,
            settings.width_in_training,
            settings.codebooks,
            first=rung.first,
        )
        start = self.start
        if before is not None:
            # A head that was fitted to other features has grown large; a new one learns more beside
            # factors that begin with nothing.
            start = _gone_on(start, before, f"{architecture.head}." if rung.rank else None)
        data, layout = None, learner.store.layout
        if own is not None and rung.density == rung.rank == 0 and not has_norms:
            data = self._features(start)
        if data is not None:
            architecture = architecture.from_head()
        if rung.rank:
            assert self.weights is not None and own is not None
            factors = Factors(layout, rung.rank)
            key = InitKey(settings.seed, 0, learner.store.next_number)
            first = factors, factors.start(key)
            module: MagnitudeModule = LowRankModule(
                architecture, layout, start, self.weights, first, own, FACTOR_BITS
            )
        else:
            module = MagnitudeModule(architecture, layout, start, self.weights, pruning, own)
        module.lr_factors = self._lr_factors(rung)
        bank = self.decision.bank
        return SubnetTrainer(
            core,
            self.task,
            self.decision,
            module,
            lambda trained: _compress(learner, trained, rung, bank),
            task_params=TaskParamSettings(
                settings.task_param_bits,
                settings.task_param_tolerance,
                price=0.0 if rung.name == WHOLE else price_of(settings, core.frozen_base),
            ),
            reports=learner.reports,
            memory=self.memory,
            training=self._training(rung, is_fast=data is not None),
            isolated=self.isolated,
            reference=self.reference,
            data=data,
            taken_over={n: c for n, c in self.taken_over.items() if n not in (own or ())},
        )

    def _own_params(self, has_norms: bool) -> set[str]:
        """The task-specific parameters that a task over a base has for itself."""
        architecture = self.learner.architecture
        head, stats = f"{architecture.head}.", architecture.running_stats
        return {
            s.name
            for s in architecture.task_params
            if s.name not in stats
            and (s.name.startswith(head) or (has_norms and len(s.shape) == 1))
        }

    def _features(self, start: InitialState) -> Task | None:
        """The task as it reaches the head, where nothing changes it before."""
        learner = self.learner
        if learner.training.augmentation.active or self.weights is None:
            return None
        architecture, device = learner.architecture, learner.device
        tensors = replace(self, start=start).checked_tensors()
        on_device = {n: t.to(device) for n, t in tensors.items()}
        data = learner.core.learned_data(self.task)
        return feature_task(architecture, on_device, data, device)

    def checked_tensors(self) -> dict[str, Tensor]:
        """All tensors that training over other weights begins with, tried on the task's inputs."""
        assert self.weights is not None
        architecture = self.learner.architecture
        tensors = architecture.split(self.weights) | self.start.task_params | architecture.constants
        self.learner.core.check_tensors(tensors, self.task)
        return tensors

    def _difference_lr(self) -> float | None:
        """The learning rate of a difference; None for that of training."""
        lr = self.learner.settings.difference_lr
        if lr is None and self.is_over_base:
            return FINE_TUNING * self.learner.training.lr
        return None if self.reference is None else lr

    def _lr_factors(self, rung: Rung) -> dict[str, float]:
        """By how much less a whole difference is moved than what is trained beside it."""
        lr = self._difference_lr()
        if lr is None or rung.name != WHOLE:
            return {}
        return {"free": lr / self.learner.training.lr}

    def _training(self, rung: Rung, is_fast: bool) -> TrainingSettings:
        """How a rung is trained: a difference gently, since all beside it has been trained."""
        training, settings = self.learner.training, self.learner.settings
        lr = self._difference_lr()
        if rung.rank:
            rate = LOW_RANK * training.lr
            training = replace(training, lr=rate, min_lr=min(rate, training.min_lr))
            if training.kept_epoch != "loss":  # the best of few images would be so by luck
                training = replace(training, kept_epoch="last")
        if lr is not None and rung.density > 0 and rung.name != WHOLE:
            training = replace(training, lr=lr, min_lr=min(lr, training.min_lr))
        if self.is_over_base and rung.is_first_difference:
            training = replace(training, epochs=FIRST_EPOCHS * training.epochs)
        if settings.difference_decay is not None and self.reference is not None:
            training = replace(training, weight_decay=settings.difference_decay)
        if is_fast and training.engine == "compiled":  # a compiler would take the whole network
            training = replace(training, engine="auto")
        return training


def _compress(
    learner: TinySubNets, trained: Compressor, rung: Rung, bank: int
) -> Generator[PruningStep, None, Compressed]:
    """A trained rung's mask and codes; on a ladder, post-pruning would only climb down again."""
    if rung.rank:
        return trained.factors()
    if rung.density == 0:
        return Compressed(trained.mask, 1, trained.encode(trained.mask, 1))
    return (yield from learner.compress(trained, bank, post_pruning=rung.name == WHOLE))


def _gone_on(start: InitialState, before: MagnitudeModule, new: str | None) -> InitialState:
    """What a rung starts from: what the last one has learned.

    - `new`: how the names of task-specific parameters begin that start anew; None where none do.
    """
    learned = dict(zip(before.names, before.task_params, strict=True))
    if new is not None:
        learned = {n: p for n, p in learned.items() if not n.startswith(new)}
    params = {n: learned[n].detach().cpu().clone() if n in learned else t
              for n, t in start.task_params.items()}  # fmt: skip
    free = before.difference() if isinstance(before, LowRankModule) else before.free.detach()
    return InitialState(start.scores, free.cpu().clone(), params)


def _to_base(learner: TinySubNets, task: Task, isolated: bool) -> Difference:
    """A task over the frozen base: its values to begin with, and a head from the seed."""
    store, settings, architecture = learner.store, learner.settings, learner.architecture
    assert store.base is not None and store.base.values is not None
    bank = new_bank(store) if isolated else NO_BANK  # an isolated task shares nothing, masks too
    key = InitKey(settings.seed, 0, store.next_number, settings.scale)
    num_outputs = learner.core.num_outputs(task)
    params = initial_task_params(architecture, key, num_outputs, store.base.values)
    start = InitialState(torch.zeros(0), torch.zeros(store.layout.num_weights), params)
    decision = BankDecision(bank, f"over the base {store.base.name!r}")
    return Difference(learner, task, decision, BASE, store.base_weights(), start, None, isolated)


def _reusing(difference: Difference, subnet: Subnet) -> Difference:
    """The same task over what an earlier one has added to the base: its weights and vectors."""
    learner, start = difference.learner, difference.start
    store = learner.store
    vectors, tensors = dict(below_head(store, subnet)), store.tensors(subnet.name)
    params = {
        n: tensors[n].detach().cpu().clone() if n in vectors else t
        for n, t in start.task_params.items()
    }
    reason = f"{difference.decision.reason}, with what {subnet.name!r} has added to it"
    return replace(
        difference,
        decision=replace(difference.decision, reason=reason, nearest=subnet.name),
        reference=subnet.number,
        weights=store.weights(subnet.name),
        start=replace(start, task_params=params),
        taken_over=vectors,
    )


def _to_task(
    learner: TinySubNets,
    task: Task,
    decision: BankDecision,
    memory: InputStatistics | Tensor | None,
    isolated: bool,
) -> Difference:
    """A task over the weights of an earlier one, or with weights of its own."""
    store = learner.store
    bank = NO_BANK if decision.nearest is not None else decision.bank
    start, reference, weights = learner.core.initial_state(task, max(bank, 0)), None, None
    if decision.nearest is not None:
        subnet = store.subnet(decision.nearest)
        start = _start_from(learner, task, start, subnet)
        reference, weights = subnet.number, store.weights(subnet.name)
    decision = replace(decision, bank=bank)
    return Difference(learner, task, decision, reference, weights, start, memory, isolated)


def choose_reference(
    store: SubnetStore,
    memory: InputStatistics | Tensor | None,
    settings: TSNSettings,
    isolated: bool = False,
) -> BankDecision:
    """The task that a new one is a difference to, as `nearest` of the decision, and why.

    - `memory`: what is kept of the new task's inputs; None where nothing is compared.
    - `isolated`: whether the new task is to have no reference.
    """
    earlier = [s for s in store.subnets.values() if not s.isolated]
    if isolated or settings.reference == "none" or not earlier:
        reason = "isolated: weights of its own" if isolated else "weights of its own"
        return BankDecision(new_bank(store), reason)
    # To decode a task takes as many steps as it has references behind one another.
    earlier = [s for s in earlier if len(store.chain(s)) <= MAX_CHAIN]
    last = earlier[-1].name
    if settings.reference == "similar" and memory is not None:
        mine = statistics_of(memory, settings.seed)
        kept = {s.name: s.memory for s in earlier if s.memory is not None}
        others = [statistics_of(m, settings.seed) for m in kept.values()]
        found = dict(zip(kept, divergences(mine, others), strict=True))
        if found:
            # Of equally near ones the last: it has seen the most.
            name = min(reversed(found), key=lambda n: found[n])
            reason = f"a difference to {name!r}, the nearest at {found[name]:.2f}"
            return BankDecision(NO_BANK, reason, name)
    return BankDecision(NO_BANK, f"a difference to {last!r}", last)


def _start_from(
    learner: TinySubNets, task: Task, start: InitialState, reference: Subnet
) -> InitialState:
    """What a difference starts from: no own values, and the reference's task-specific parameters.

    All but the head, whose classes are others.
    """
    architecture, store = learner.architecture, learner.store
    tensors = store.tensors(reference.name)
    count = min(CALIBRATION_SAMPLES, len(task.train))
    some = torch.linspace(0, len(task.train) - 1, count).long()
    inputs = task.normalization(task.train.inputs(some).to(store.device))
    head = f"{architecture.head}."
    new = {n: t for n, t in start.task_params.items() if n.startswith(head)}
    learner.core.check_tensors({n: t.cpu() for n, t in (tensors | new).items()}, task)
    tensors = unfolded(architecture, tensors, inputs)
    own = {
        name: value if name.startswith(head) else tensors[name].detach().cpu().clone()
        for name, value in start.task_params.items()
    }
    return InitialState(start.scores, torch.zeros_like(start.free), own)
