"""Which earlier task's differences to the base a new task could start from, at no cost.

A task over a base may be added to what an earlier one has added already: its file then names that
task, and its own mask is empty. Which one is found by a quick look at what reaches the head: a
linear classifier is fitted to some training samples in closed form, once for the base and once for
each earlier task, and measured on validation samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import MAX_CHAIN, CodebookTensor, Subnet
from tinysubnets.tasks.task import Split, Task
from tinysubnets.training.features import feature_task

MOST_TRIED = 8  # earlier tasks, the last ones
FITTED_TO, MEASURED_ON = 1000, 500  # samples of a quick look
RIDGE = 0.01  # of the features' mean square, added to their covariance


def best_earlier(store: SubnetStore, task: Task, device: torch.device) -> Subnet | None:
    """The earlier task whose weights tell the new one's classes apart the best.

    None where none has changed the base, or none does better than the base itself.
    """
    candidates = reusable(store)
    if not candidates:
        return None
    some = replace(
        task, train=_some(task.train, FITTED_TO), valid=_some(task.valid, MEASURED_ON), test=None
    )
    base = store.base
    assert base is not None and base.values is not None
    flat = store.architecture.split(store.base_weights())
    of_base = dict(base.values) | flat | store.architecture.constants
    # Any head will do: it is what reaches it that is looked at.
    head = {n: t for n, t in store.tensors(candidates[-1].name).items() if n not in of_base}
    least = _quick_look(store, of_base | head, some, device)
    found = [_quick_look(store, store.tensors(s.name), some, device) for s in candidates]
    best = max(range(len(candidates)), key=lambda i: (found[i], i))  # of equal ones the last
    return candidates[best] if found[best] > least else None


def reusable(store: SubnetStore) -> list[Subnet]:
    """The last earlier tasks that have changed the base, each kind of change once."""
    kinds: dict[object, Subnet] = {}
    for subnet in store.subnets.values():
        chain = store.chain(subnet)
        changed = tuple(s.number for s in chain if s.num_new)
        vectors = tuple((n, c.decode().numpy().tobytes()) for n, c in below_head(store, subnet))
        is_free = not subnet.isolated and len(chain) <= MAX_CHAIN and subnet.adds_to_base
        if is_free and (changed or vectors):
            kinds.setdefault((changed, vectors), subnet)
    return list(kinds.values())[-MOST_TRIED:]


def below_head(store: SubnetStore, subnet: Subnet) -> list[tuple[str, CodebookTensor]]:
    """The task-specific parameters that a task has for itself and that are not its head's."""
    in_head = store.architecture.in_head
    return [(n, c) for n, c in subnet.task_params.items() if not in_head(n)]


def _some(split: Split, count: int) -> Split:
    """At most so many samples, spread over the whole of a split."""
    count = min(count, len(split))
    where = torch.arange(count) * len(split) // count
    index = where if split.index is None else split.index[where]
    return Split(split.source, split.labels[where], index)


def _quick_look(
    store: SubnetStore, tensors: Mapping[str, Tensor], task: Task, device: torch.device
) -> float:
    """The share of validation samples that a linear classifier over features gets right."""
    on_device = {n: t.to(device) for n, t in tensors.items()}
    seen = feature_task(store.architecture, on_device, task, device)
    if seen is None:
        return 0.0
    parts = [(s.inputs().flatten(1).double(), s.labels) for s in (seen.train, seen.valid)]
    (x, y), (test, labels) = parts
    center = x.mean(0)
    x, test = x - center, test - center
    wanted = torch.nn.functional.one_hot(y, task.num_classes).double()
    wanted = wanted - wanted.mean(0)
    scale = RIDGE * float(x.square().mean()) * len(x) + 1e-12
    if len(x) < x.shape[1]:  # the same solution by the smaller of two systems
        inner = x @ x.T + scale * torch.eye(len(x), dtype=x.dtype)
        weights = x.T @ torch.linalg.solve(inner, wanted)
    else:
        inner = x.T @ x + scale * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(inner, x.T @ wanted)
    return float(((test @ weights).argmax(1) == labels).double().mean())
