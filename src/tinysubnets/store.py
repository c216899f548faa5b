"""The store: all banks and subnets of one network, from which every learned task can be used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.architecture import Architecture
from tinysubnets.bank import Bank
from tinysubnets.capacity import Ledger, ledger_of
from tinysubnets.errors import TaskError, unknown
from tinysubnets.layout import Layout
from tinysubnets.subnet import Subnet

DEFAULT_BATCH = 500


class SubnetStore:
    """Banks and subnets over one architecture; the learned model.

    `settings` are the learner's, kept so that learning can go on from a saved store.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        block: int = 1,
        settings: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.architecture = architecture
        self.layout = Layout(architecture.shared, block)
        self.settings = dict(settings or {})
        self.device = torch.device(device)
        self.banks: list[Bank] = []
        self.subnets: dict[str, Subnet] = {}
        self._used: tuple[str, dict[str, Tensor]] | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return tuple(self.subnets)

    def subnet(self, task: str) -> Subnet:
        """The subnet of a learned task."""
        if task not in self.subnets:
            raise TaskError(unknown("task", str(task), self.subnets))
        return self.subnets[task]

    def members(self, bank: int) -> list[Subnet]:
        """The subnets of a bank, in the order of learning."""
        return [s for s in self.subnets.values() if s.bank == bank]

    def add_(self, subnet: Subnet) -> None:
        """Claim the subnet's new weights in its bank and keep the subnet."""
        if subnet.name in self.subnets:
            raise TaskError(f"a task named {subnet.name!r} has been learned already.")
        while len(self.banks) <= subnet.bank:
            self.banks.append(Bank(self.layout))
        own = [c.decode() for c in subnet.own]
        self.banks[subnet.bank].claim_(subnet.mask, torch.cat(own))
        self.subnets[subnet.name] = subnet

    def weights(self, task: str) -> Tensor:
        """The task's shared weights, flat: its bank's values under its mask, else 0."""
        subnet = self.subnet(task)
        values = self.banks[subnet.bank].values
        return torch.where(self.layout.expand(subnet.mask), values, torch.zeros(()))

    def tensors(self, task: str) -> dict[str, Tensor]:
        """All tensors the network needs for a task, decoded, by the user's own names."""
        if self._used is None or self._used[0] != task:
            tensors = (
                self.architecture.split(self.weights(task)) | self.subnet(task).private_tensors()
            )
            tensors |= self.architecture.constants
            self._used = (task, {n: t.to(self.device) for n, t in tensors.items()})
        return self._used[1]

    @torch.no_grad()
    def logits(self, task: str, inputs: Any, *, batch_size: int = DEFAULT_BATCH) -> Tensor:
        """The task's class scores for raw inputs, one row per sample, on the CPU."""
        raw = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.asarray(inputs))
        tensors, normalise = self.tensors(task), self.subnet(task).normalisation
        parts = [
            self.architecture(tensors, normalise(part.to(self.device))).cpu()
            for part in raw.split(batch_size)
        ]
        return torch.cat(parts) if parts else torch.empty(0, len(self.subnet(task).classes))

    def predict(self, task: str, inputs: Any) -> np.ndarray:
        """The user's own labels for raw inputs."""
        classes = np.array(self.subnet(task).classes)
        return classes[self.logits(task, inputs).argmax(1).numpy()]

    def module(self, task: str) -> nn.Module:
        """A plain module for one task: raw inputs in, class scores out, nothing of this package.

        It is a `torch.fx.GraphModule` around the user's own network, with the normalisation inside.
        """
        net = self.architecture.build({n: t.cpu() for n, t in self.tensors(task).items()})
        normalisation = self.subnet(task).normalisation
        root, graph = nn.Module(), torch.fx.Graph()
        root.add_module("network", net)
        node = graph.placeholder("inputs")
        if normalisation.mean:
            mean, factor = normalisation.tensors()
            root.register_buffer("mean", mean)
            root.register_buffer("factor", factor)
            node = graph.call_method("float", (node,))
            node = graph.call_function(torch.sub, (node, graph.get_attr("mean")))
            node = graph.call_function(torch.mul, (node, graph.get_attr("factor")))
        graph.output(graph.call_module("network", (node,)))
        return torch.fx.GraphModule(root, graph).eval()

    def digest(self, task: str) -> str:
        """A hash of the task's decoded tensors: equal exactly if every bit of them is equal."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.tensors(task).items()):
            sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            sha.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return sha.hexdigest()

    def free_share(self) -> float:
        """The share of weights that no task owns, over all banks opened so far."""
        if not self.banks:
            return 1.0
        return 1.0 - sum(b.owned_share() for b in self.banks) / len(self.banks)

    def ledger(self) -> Ledger:
        """What the model weighs, in bits, line by line and task by task."""
        return ledger_of(
            self.layout, self.banks, list(self.subnets.values()), self.architecture.head
        )
