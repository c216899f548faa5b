"""A task as a difference: an earlier task's weights, and a few own values added to them.

Beside Algorithm 1 of the paper. Nothing is shared by masks; what a task has in common with an
earlier one it does not store. All weights of a task are trained, and pruned gradually.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.method.banks import new_bank, remember
from tinysubnets.method.compress import TaskParamSettings
from tinysubnets.method.core import SubnetTrainer
from tinysubnets.method.settings import TSNSettings
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import MAX_CHAIN, NO_BANK, BankDecision, Subnet
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.magnitude import MagnitudeModule, MagnitudePruning
from tinysubnets.nn.norms import unfolded
from tinysubnets.tasks.divergence import InputStatistics, divergences, statistics_of
from tinysubnets.tasks.task import Task

if TYPE_CHECKING:
    from tinysubnets.method.learner import TinySubNets

CALIBRATION_SAMPLES = 500  # by which norms of the reference are fitted to a new task's inputs


def begin_difference(learner: TinySubNets, task: Task, isolated: bool) -> SubnetTrainer:
    """Choose a task's reference and set up its training.

    - `isolated`: whether it is to have none, and serve none.
    """
    settings, store = learner.settings, learner.store
    memory = None if isolated or settings.reference != "similar" else remember(task, settings)
    decision = choose_reference(store, memory, settings, isolated)
    bank = NO_BANK if decision.nearest is not None else decision.bank
    start = learner.core.initial_state(task, max(bank, 0))
    training, density, reference = learner.training, settings.density, None
    if decision.nearest is None:
        density = settings.first_density or density
    else:
        reference = store.subnet(decision.nearest)
        start = _start_from(learner, task, start, reference)
        if settings.difference_decay is not None:
            training = replace(training, weight_decay=settings.difference_decay)
    pruning = MagnitudePruning(
        density, settings.density_exponent, settings.width_in_training, settings.codebooks
    )
    weights = None if reference is None else store.weights(reference.name)
    module = MagnitudeModule(learner.architecture, store.layout, start, weights, pruning)
    return SubnetTrainer(
        learner.core,
        task,
        replace(decision, bank=bank),
        module,
        lambda trained: learner.compress(trained, bank),
        task_params=TaskParamSettings(settings.task_param_bits, settings.task_param_tolerance),
        reports=learner.reports,
        memory=memory,
        training=training,
        isolated=isolated,
        reference=None if reference is None else reference.number,
    )


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
    tensors = unfolded(architecture, tensors, inputs)
    head = f"{architecture.head}."
    own = {
        name: value if name.startswith(head) else tensors[name].detach().cpu().clone()
        for name, value in start.task_params.items()
    }
    return InitialState(start.scores, torch.zeros_like(start.free), own)
