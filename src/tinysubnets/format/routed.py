"""All tasks of a store in one module, with routing inside, for export.

    module = AllTasks(store)
    task, label, probability, confidence, unknown, scores = module(raw)

Every bank is in it once. A task is its mask, one bit a weight, its head and its norms; its weights
are put together when the module runs, which a runtime does once, when it loads the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.errors import TaskError
from tinysubnets.model.routing import (
    BasePass,
    Record,
    Router,
    Told,
    base_head,
    base_tensors,
    chosen_among,
    input_projection,
    network_part,
    projection,
    told_by,
    with_rows,
)
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, NO_BANK, Subnet
from tinysubnets.nn.low_rank import Factors, has_factors, product
from tinysubnets.tasks.rotations import turned

OUTPUTS = ("task", "label", "probability", "confidence", "unknown", "scores")


class AllTasks(nn.Module):
    """Raw inputs in; the task and label of each out, with what speaks for them.

    Of a batch it gives: `task`, the place among `tasks`; `label`, the place among `labels`;
    `probability`, that of the label in its task; `confidence`, that of the task; `unknown`, whether
    no task claims the input; `scores` [batch, tasks]. Nothing of this package is needed to run what
    is exported of it.

    - `among`: the names of the tasks; by default all. They must take the same inputs.
    """

    powers: Tensor

    def __init__(self, store: SubnetStore, among: Sequence[str] | None = None) -> None:
        super().__init__()
        self.subnets = chosen_among(store, among)
        _check_alike(self.subnets)
        self.router = Router(store, self.subnets)
        self.architecture = store.architecture
        self.tasks = [s.name for s in self.subnets]
        self.labels = [(s.name, label) for s in self.subnets for label in s.classes]
        self.register_buffer("powers", 2 ** torch.arange(8).to(torch.uint8))
        self._kept: dict[str, str] = {}  # buffers by what they hold; names of buffers have no dots
        self._base: list[str] = []  # the base's tensors, where scores have its part
        self._base_head: list[str] = []  # those of the head that gives it
        self._alone = {s.number for s in self.subnets if store.is_head_alone(s)}
        self._weights = _Weights(self, store)
        shared = {s.name for s in store.layout.shared}
        for subnet in self.subnets:
            for name, tensor in store.tensors(subnet.name).items():
                if name not in shared:
                    self.keep(_key(subnet, name), tensor)
            self._check_weights(store, subnet)
        self._keep_projections(store)

    def _keep_projections(self, store: SubnetStore) -> None:
        """Keep what projects inputs and features, where scores need them."""
        sample, records = self.subnets[0].sample, self.router.records
        if "inputs" in self.router.weights and sample is not None:
            first = records[0].gaussians["inputs"]
            rows = input_projection(sample.shape, first.dims, first.frequencies)
            self.keep("inputs", rows)
        if "base" in self.router.weights:
            dims = records[0].gaussians["base"].dims
            tensors = base_tensors(store, dims)
            for name, tensor in tensors.items():
                self.keep(f"base {name}", tensor)
            self._base, self._base_head = list(tensors), list(base_head(store, dims))
        if "features" in self.router.weights:
            weight = next(n for n in store.architecture.output if n.endswith("weight"))
            width = self.kept(f"{self.subnets[0].number} {weight}").shape[1]
            for record in records:
                dims = record.gaussians["features"].dims
                self.keep(f"features {dims}", projection(width, dims))

    def keep(self, what: str, tensor: Tensor) -> None:
        """Keep a tensor as a buffer."""
        if what not in self._kept:
            self._kept[what] = f"tensor_{len(self._kept)}"
            self.register_buffer(self._kept[what], tensor.detach().cpu().contiguous())

    def kept(self, what: str) -> Tensor:
        """A tensor that was kept."""
        found: Tensor = getattr(self, self._kept[what])
        return found

    def _check_weights(self, store: SubnetStore, subnet: Subnet) -> None:
        """Keep a task's weights as they are where banks and masks do not give the same bits."""
        exact = store.weights(subnet.name)
        found = self._weights.of(subnet, {})
        if not torch.equal(torch.cat([t.flatten() for t in found.values()]), exact):
            self._weights.replace(subnet, store.architecture.split(exact))

    def forward(self, raw: Tensor) -> tuple[Tensor, ...]:
        """The outputs for a batch of raw inputs."""
        made: dict[int, dict[str, Tensor]] = {}
        points = {}
        if "inputs" in self._kept:
            points["inputs"] = raw.flatten(1).float() @ self.kept("inputs").T
        base = self._base_pass(made)
        found = [self._claim(i, raw, points, made, base) for i in range(len(self.subnets))]
        scores = torch.stack([score for score, *_ in found], 1)
        own, chance, answer = (torch.stack([f[i] for f in found], 1) for i in (1, 2, 3))
        task = scores.argmax(1)
        place = task[:, None]
        confidence = scores.softmax(1).gather(1, place)[:, 0]
        first = np.cumsum([0, *(len(s.classes) for s in self.subnets)])[:-1]
        label = torch.from_numpy(first)[task] + answer.gather(1, place)[:, 0]
        unknown = torch.zeros_like(task, dtype=torch.bool)
        if self.router.whole:
            kept = torch.tensor([r.score for r in self.router.records])[task]
            unknown = (own.gather(1, place)[:, 0] - kept[:, 0]) / kept[:, 1] < kept[:, 2]
        return task, label, chance.gather(1, place)[:, 0], confidence, unknown, scores

    def _base_pass(self, made: dict[int, dict[str, Tensor]]) -> BasePass | None:
        """The pass of the base, where a part or a task is made of nothing else."""
        alone = [s for s in self.subnets if s.number in self._alone]
        if alone:
            return BasePass(self.architecture, self._tensors(alone[0], made))
        if self._base:
            base = {n: self.kept(f"base {n}") for n in self._base}
            return BasePass(self.architecture, base)
        return None

    def _tensors(self, subnet: Subnet, made: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
        """All tensors of a task's network; `made` has the weights of entries made already."""
        own = (*subnet.shapes, *self.architecture.constants)
        return dict(self._weights.of(subnet, made)) | {n: self.kept(_key(subnet, n)) for n in own}

    def _claim(
        self,
        index: int,
        raw: Tensor,
        points: Mapping[str, Tensor],
        made: dict[int, dict[str, Tensor]],
        base: BasePass | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A task's score, the same by its own weights, and its most probable class: [batch] each.

        - `points`: inputs in the coordinates of common parts, where scores have them.
        - `made`: the weights of entries that were put together already.
        - `base`: the pass of the base, where one is needed.
        """
        subnet, router = self.subnets[index], self.router
        record = router.records[index] if router.records else None
        tensors = self._tensors(subnet, made)
        if "features" in router.weights:
            assert record is not None
            rows = self.kept(f"features {record.gaussians['features'].dims}")
            tensors = with_rows(self.architecture, tensors, rows)
        if self._base_head:
            assert base is not None
            head = {n: self.kept(f"base {n}") for n in self._base_head}
            points = {**points, "base": base.outputs(subnet, head, raw)}
        turns = range(subnet.num_turns)
        if base is not None and subnet.number in self._alone:
            outputs = [base.outputs(subnet, tensors, raw, k) for k in turns]
        else:
            images = subnet.normalization(raw)
            outputs = [self.architecture(tensors, turned(images, k)) for k in turns]
        told = told_by(subnet, outputs)
        parts = {n: _part(n, record, told, points) for n in router.weights}
        score = _weighed(parts, router.weights)
        whole = record is not None and router.whole
        own_score = _weighed(parts, record.weights) if whole and record is not None else score
        chance, answer = told.logits.softmax(1).max(1)
        return score, own_score, chance, answer


def _key(subnet: Subnet, name: str) -> str:
    """The key of a tensor that a task uses: its own tensor, or one of the base."""
    return f"{subnet.number} {name}" if name in subnet.task_params else f"base {name}"


def _part(name: str, record: Record | None, told: Told, points: Mapping[str, Tensor]) -> Tensor:
    """One part of a score [batch]; raw where a task keeps no record."""
    if record is not None and name in points:
        return record.gaussians[name].log_density(points[name])
    return network_part(name, record, told)


class _Weights:
    """The shared weights of entries, from banks and masks that the module keeps."""

    def __init__(self, module: AllTasks, store: SubnetStore) -> None:
        self.module, self.store, self.shared = module, store, store.layout.shared
        self.replaced: set[int] = set()
        for subnet in module.subnets:
            for entry in store.chain(subnet):
                self._keep(entry)

    def _keep(self, entry: Subnet) -> None:
        """Keep what the weights of an entry are made of."""
        store, keep = self.store, self.module.keep
        mask = store.layout.expand(entry.mask)
        if entry.reference == BASE:
            self._keep_all("base", store.base_weights())
        if entry.adds_nothing:
            return
        if entry.rank:
            factors = Factors(store.layout, entry.rank)
            for place, *both in factors.split(torch.cat([c.decode() for c in entry.own])):
                for what, factor in zip(("up", "down"), both, strict=True):
                    keep(f"{what} {entry.number} {self.shared[place].name}", factor)
            return
        if entry.bank == NO_BANK:
            own = torch.cat([c.decode() for c in entry.own])
            values = torch.zeros(store.layout.num_weights).masked_scatter(mask, own)
            self._keep_all(f"own {entry.number}", values)
            return
        self._keep_all(f"bank {entry.bank}", store.banks[entry.bank].values)
        for name, part in store.architecture.split(mask).items():
            bits = np.packbits(part.flatten().numpy(), bitorder="little")
            keep(f"mask {entry.number} {name}", torch.from_numpy(bits))

    def _keep_all(self, what: str, values: Tensor) -> None:
        for name, part in self.store.architecture.split(values).items():
            self.module.keep(f"{what} {name}", part)

    def replace(self, subnet: Subnet, tensors: Mapping[str, Tensor]) -> None:
        """Keep the weights of a task as they are instead."""
        for name, tensor in tensors.items():
            self.module.keep(f"dense {subnet.number} {name}", tensor)
        self.replaced.add(subnet.number)

    def of(self, subnet: Subnet, made: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
        """The shared weights of a task, by name; `made` has those of entries made already."""
        kept = self.module.kept
        if subnet.number in self.replaced:
            return {s.name: kept(f"dense {subnet.number} {s.name}") for s in self.shared}
        for entry in reversed(self.store.chain(subnet)):
            if entry.number not in made:
                made[entry.number] = {
                    s.name: self._tensor(entry, s.name, made) for s in self.shared
                }
        return made[subnet.number]

    def _tensor(self, entry: Subnet, name: str, made: dict[int, dict[str, Tensor]]) -> Tensor:
        """One tensor of an entry, added to that of its reference where it has one."""
        kept = self.module.kept
        before: Tensor | None = None
        if entry.reference == BASE:
            before = kept(f"base {name}")
        elif entry.reference is not None:
            before = made[entry.reference][name]
        if entry.adds_nothing and before is not None:
            return before
        if entry.rank:
            assert before is not None
            if not has_factors(before.shape, entry.rank):
                return before
            up, down = (kept(f"{what} {entry.number} {name}") for what in ("up", "down"))
            return before + product(up, down).view(before.shape)
        if entry.bank == NO_BANK:
            own = kept(f"own {entry.number} {name}")
            return own if before is None else before + own
        values = kept(f"bank {entry.bank} {name}")
        bits = kept(f"mask {entry.number} {name}")[:, None] & self.module.powers
        mask = bits.bool().flatten()[: values.numel()].view(values.shape)
        if before is None:
            return torch.where(mask, values, torch.zeros(()))
        return torch.where(mask, before + values, before)


def _weighed(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted sum of parts."""
    return torch.stack([w * parts[p] for p, w in weights.items()]).sum(0)


def _check_alike(subnets: Sequence[Subnet]) -> None:
    """Refuse tasks that do not take the same inputs."""
    if not subnets:
        raise TaskError("there is no task to export.")
    kinds = {s.sample for s in subnets}
    if len(kinds) > 1:
        shown = "; ".join(f"{s.name}: {s.sample.shape if s.sample else '?'}" for s in subnets[:5])
        raise TaskError(
            f"the tasks take inputs of several kinds ({shown}); export those of one kind together."
        )
