"""The dense module that is trained: every tensor of the network, with outputs that grow by task.

Dense methods keep one network for all tasks. Its output layer has one row per class that was seen;
which of them may answer depends on whether the task is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinysubnets.nn.architecture import Architecture, Mode


class Outputs:
    """Which columns of the network's output belong to which task.

    `columns` holds the first column of each task and the one behind its last. With `by_task` a
    sample is told apart only from the classes of its own task, as with one head per task; else from
    all classes.

        >>> outputs = Outputs([(0, 2), (2, 5)], by_task=True)
        >>> outputs.restrict(torch.zeros(1, 5), torch.tensor([3])).tolist()
        [[-inf, -inf, 0.0, 0.0, 0.0]]
    """

    def __init__(self, columns: Sequence[tuple[int, int]], *, by_task: bool) -> None:
        self.columns, self.by_task = tuple(columns), by_task
        self.num = max(stop for _, stop in columns)
        self.task_of = torch.zeros(self.num, dtype=torch.int64)
        for task, (start, stop) in enumerate(columns):
            self.task_of[start:stop] = task

    def restrict(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The logits [batch, columns] with those of other tasks than the label's at -infinity."""
        if not self.by_task or len(self.columns) == 1:
            return logits
        if self.task_of.device != logits.device:
            self.task_of = self.task_of.to(logits.device)
        other = self.task_of != self.task_of[labels][:, None]
        return logits.masked_fill(other, -torch.inf)


class DenseModule(nn.Module):
    """One dense network in training: what the optimizer sees of a method without masks.

    `tensors` are those it begins with, by the user's own names. Output rows of the `num_old`
    earlier classes and of new ones are two parameters, so that the former can stay as they are
    under any optimizer (`train_old=False`). In mode "eval" nothing but the output layer is trained.
    """

    recalibrates = True  # statistics of norms are estimated anew before the network is measured
    lr_factors: Mapping[str, float] = MappingProxyType({})  # of the learning rate, by group

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
        outputs: Outputs,
        *,
        num_old: int = 0,
        train_old: bool = True,
        mode: Mode = "train",
    ) -> None:
        super().__init__()
        self.architecture, self.outputs, self.mode = architecture, outputs, mode
        kept = {*architecture.running_stats, *architecture.output}
        specifications = (*architecture.shared, *architecture.task_params)
        self.body_names = [s.name for s in specifications if s.name not in kept]
        is_trained = mode == "train"
        self.body = nn.ParameterList(
            [nn.Parameter(tensors[n].clone(), requires_grad=is_trained) for n in self.body_names]
        )
        rows = [tensors[n] for n in architecture.output]
        self.old = nn.ParameterList(
            [nn.Parameter(r[:num_old].clone(), requires_grad=train_old) for r in rows]
        )
        self.new = nn.ParameterList([nn.Parameter(r[num_old:].clone()) for r in rows])
        self.running_stats = nn.ParameterList(
            [
                nn.Parameter(tensors[n].clone(), requires_grad=False)
                for n in architecture.running_stats
            ]
        )
        self.constant_names = list(architecture.constants)
        for i, name in enumerate(self.constant_names):
            constant = architecture.constants[name].clone()
            self.register_buffer(f"constant_{i}", constant, persistent=False)

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each tensor by name: one, or old and new rows of an output."""
        out = {n: [p] for n, p in zip(self.body_names, self.body, strict=True)}
        pairs = zip(self.old, self.new, strict=True)
        return out | dict(zip(self.architecture.output, map(list, pairs), strict=True))

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """Those parts that training moves."""
        parts = {
            n: [p for p in ps if p.requires_grad and p.numel()] for n, ps in self.parts().items()
        }
        return {n: ps for n, ps in parts.items() if ps}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves, by kind."""
        return {"dense": [p for ps in self.trained().values() for p in ps]}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the network, by the user's own names."""
        out: dict[str, Tensor] = {
            n: ps[0] if len(ps) == 1 else torch.cat([*ps]) for n, ps in self.parts().items()
        }
        out |= dict(zip(self.architecture.running_stats, self.running_stats, strict=True))
        constants = {n: getattr(self, f"constant_{i}") for i, n in enumerate(self.constant_names)}
        return out | constants

    def eval_tensors(self) -> dict[str, Tensor]:
        """All tensors of the network as it would be used now."""
        return {n: t.detach() for n, t in self.tensors().items()}

    @property
    def settled(self) -> bool:
        """Whether an epoch can be the best one: always."""
        return True

    def update_codebooks_(self, share: float = 1.0) -> None:
        """Do nothing: dense weights have no codebooks. The training loop calls it for all.

        - `share`: that of all steps which is done, 0 to 1.
        """

    def forward(
        self, inputs: Tensor, labels: Tensor | None = None, class_weights: Tensor | None = None
    ) -> Tensor:
        """The logits of normalized inputs [batch, ...] or, with labels [batch], the loss.

        The training loop calls nothing else for its gradients, so that a wrapper around the module
        sees every step. `class_weights` [classes] weigh the cross-entropy.
        """
        return self.logits(inputs) if labels is None else self.loss(inputs, labels, class_weights)

    def logits(self, inputs: Tensor) -> Tensor:
        """The logits [batch, classes] of all classes for normalized inputs."""
        return self.architecture(self.tensors(), inputs, self.mode)

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy over the classes that may answer."""
        logits = self.outputs.restrict(self.logits(inputs), labels)
        return functional.cross_entropy(logits, labels, class_weights)
