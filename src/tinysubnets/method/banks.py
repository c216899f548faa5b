"""Which bank a task goes to: its memory, its distance from earlier tasks, and the decision."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tinysubnets import seeds
from tinysubnets.errors import CapacityError
from tinysubnets.method.settings import TSNSettings
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BankDecision
from tinysubnets.tasks.checks import class_balanced
from tinysubnets.tasks.divergence import InputStatistics, divergences, summarise
from tinysubnets.tasks.task import Task, is_tokens

# Statistics of kept samples, by the tensor that holds them and the seed: every later task asks.
_SUMMARIES: MutableMapping[Tensor, dict[int, InputStatistics]] = WeakTensorKeyDictionary()


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
    return samples if settings.memory == "samples" else _statistics(samples, settings.seed)


def _statistics(memory: InputStatistics | Tensor, seed: int) -> InputStatistics:
    """The statistics of a memory; those of samples are computed once, for as long as these live."""
    if isinstance(memory, InputStatistics):
        return memory
    known = _SUMMARIES.setdefault(memory, {})
    if seed not in known:
        known[seed] = summarise(memory, tokens=is_tokens(memory), seed=(seed, "halves"))
    return known[seed]


def choose_bank(
    store: SubnetStore, memory: InputStatistics | Tensor | None, settings: TSNSettings
) -> BankDecision:
    """The nearest task's bank, or a new one for a task unlike all others; with room if it must."""
    decision = _by_divergence(store, memory, settings)
    if settings.sharing == "values":
        return decision
    return bank_with_room(store, decision, settings.max_banks)


def _by_divergence(
    store: SubnetStore, memory: InputStatistics | Tensor | None, settings: TSNSettings
) -> BankDecision:
    if not store.subnets or memory is None:
        return last_bank(store)
    mine = _statistics(memory, settings.seed)
    kept = {s.name: s.memory for s in store.subnets.values() if s.memory is not None}
    found = divergences(mine, [_statistics(m, settings.seed) for m in kept.values()])
    distances = dict(zip(kept, found, strict=True))
    if not distances:
        return BankDecision(len(store.banks) - 1, "earlier tasks left nothing to compare with")
    nearest = min(distances, key=lambda name: distances[name])
    bank, far = store.subnet(nearest).bank, distances[nearest]
    if far < settings.threshold:
        reason = f"like {nearest!r}: divergence {far:.2f} < {settings.threshold:g}"
    elif len(store.banks) < settings.max_banks:
        bank = len(store.banks)
        reason = (
            f"unlike all: nearest {nearest!r} at {far:.2f} >= {settings.threshold:g}: a new bank"
        )
    else:
        reason = (
            f"nearest is {nearest!r} at {far:.2f} >= {settings.threshold:g}, "
            f"but all {settings.max_banks} banks are open"
        )
    return BankDecision(bank, reason, distances, nearest)


def last_bank(store: SubnetStore) -> BankDecision:
    """The bank of methods that have one for all tasks: the first task opens it."""
    if not store.subnets:
        return BankDecision(0, "the first task opens the first bank")
    return BankDecision(len(store.banks) - 1, "one bank for all tasks: no task memory is kept")


def bank_with_room(store: SubnetStore, decision: BankDecision, max_banks: int) -> BankDecision:
    """The decision, moved to another bank if some layer of the chosen one has no free weight."""
    room = [min(b.free_per_tensor()) > 0 for b in store.banks]
    if decision.bank >= len(room) or room[decision.bank]:
        return decision
    if any(room):
        other = room.index(True)
    elif len(room) < max_banks:
        other = len(room)
    else:
        raise CapacityError(
            f"no bank has free weights left in every layer, and all {max_banks} banks are open. "
            "Raise max_banks, lower density, or use sharing='values'."
        )
    reason = f"{decision.reason}; bank {decision.bank} is full, so bank {other}"
    return BankDecision(other, reason, decision.divergences, decision.nearest)
