"""Which bank a task goes to: its memory, its distance from earlier tasks, and the decision."""

from __future__ import annotations

from itertools import count, islice

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.errors import CapacityError
from tinysubnets.method.settings import TSNSettings
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import NO_BANK, BankDecision, distances
from tinysubnets.tasks.checks import class_balanced
from tinysubnets.tasks.divergence import InputStatistics, statistics_of
from tinysubnets.tasks.task import Task


def balanced_sample(task: Task, count: int, seed: int) -> Tensor:
    """Raw training inputs, as many of each class as possible, drawn by the portable generator."""
    order = torch.from_numpy(seeds.uniform(len(task.train), seed, "memory", task.name))
    order = order.argsort(stable=True)
    picked = order[class_balanced(task.train.labels[order], count)]
    return task.train.inputs(picked.sort().values)


def remember(task: Task, settings: TSNSettings) -> InputStatistics | Tensor | None:
    """What is kept of a task to compare later ones with: statistics, samples or nothing."""
    if settings.memory is None or settings.max_banks == 1:
        return None
    samples = balanced_sample(task, settings.memory_samples, settings.seed)
    return samples if settings.memory == "samples" else statistics_of(samples, settings.seed)


def choose_bank(
    store: SubnetStore, memory: InputStatistics | Tensor | None, settings: TSNSettings
) -> BankDecision:
    """The bank of a new task, and why: one with free weights where tasks share no values."""
    decision = _by_divergence(store, memory, settings)
    if settings.sharing == "values":
        return decision
    return bank_with_room(store, decision, settings.max_banks)


def _by_divergence(
    store: SubnetStore, memory: InputStatistics | Tensor | None, settings: TSNSettings
) -> BankDecision:
    """The nearest task's bank, or a new one for a task unlike all others, up to `max_banks`."""
    if memory is None or not shared_banks(store):
        return last_bank(store)
    others = (s for s in store.subnets.values() if not s.isolated)
    found = distances(memory, others, settings.seed)
    if not found:
        bank = shared_banks(store)[-1]
        return BankDecision(bank, "earlier tasks left nothing to compare with")
    nearest = min(found, key=lambda name: found[name])
    bank, far = store.subnet(nearest).bank, found[nearest]
    if far < settings.threshold:
        reason = f"like {nearest!r}: divergence {far:.2f} < {settings.threshold:g}"
    elif len(shared_banks(store)) < settings.max_banks:
        bank = new_bank(store)
        reason = (
            f"unlike all: nearest {nearest!r} at {far:.2f} >= {settings.threshold:g}: a new bank"
        )
    else:
        reason = (
            f"nearest is {nearest!r} at {far:.2f} >= {settings.threshold:g}, "
            f"but all {settings.max_banks} banks are open"
        )
    return BankDecision(bank, reason, nearest)


def shared_banks(store: SubnetStore) -> list[int]:
    """The numbers of the banks in use that any task may join: not those of isolated tasks."""
    entries = store.entries()
    isolated = {s.bank for s in entries if s.isolated}
    return sorted({s.bank for s in entries if s.bank != NO_BANK} - isolated)


def new_bank(store: SubnetStore) -> int:
    """The number of the next bank: one that removed tasks left empty, else one more.

    For each isolated task that turned out to need no bank a number is left out, as if it had one.
    Whether it needs one depends on its data, on which nothing of later tasks may depend.
    """
    entries = store.entries()
    used = {s.bank for s in entries}
    passed = sum(s.isolated and s.bank == NO_BANK for s in entries)
    return next(islice((i for i in count() if i not in used), passed, None))


def last_bank(store: SubnetStore) -> BankDecision:
    """The bank of methods that have one for all tasks: the first task opens it."""
    shared = shared_banks(store)
    if not shared:
        return BankDecision(new_bank(store), "the first task opens the first bank")
    return BankDecision(shared[-1], "one bank for all tasks: no task memory is kept")


def bank_with_room(store: SubnetStore, decision: BankDecision, max_banks: int) -> BankDecision:
    """The decision, moved to another bank if some layer of the chosen one has no free weight."""
    room = {i: min(store.banks[i].free_per_tensor()) > 0 for i in shared_banks(store)}
    if room.get(decision.bank, True):
        return decision
    if any(room.values()):
        other = next(i for i in room if room[i])
    elif len(room) < max_banks:
        other = new_bank(store)
    else:
        raise CapacityError(
            f"no bank has free weights left in every layer, and all {max_banks} banks are open. "
            "Raise max_banks, lower density, or use sharing='values'."
        )
    reason = f"{decision.reason}; bank {decision.bank} is full, so bank {other}"
    return BankDecision(other, reason, decision.nearest)
