"""What EWC and SI share: a penalty on leaving earlier weights, each by its importance.

    Σ importance·(w − anchor)²

over what all tasks use: everything but the output layer, and that too where all tasks have the same
classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs


class ProtectedModule(DenseModule):
    """A dense network that knows how important its weights were to earlier tasks.

    `importance` and `anchor`, the weights that it is held to, are lists in the order of the names
    in `protected`.

    - `importance`, `anchor`: by the names of the protected tensors; what is missing has the
      importance 0 and is held to where it starts.
    - `same_classes`: whether all tasks share the output layer, so that it is protected too.
    - `penalty_weight`: how strongly weights are held.
    """

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
        outputs: Outputs,
        *,
        num_old: int,
        same_classes: bool,
        penalty_weight: float,
        importance: Mapping[str, Tensor],
        anchor: Mapping[str, Tensor],
    ) -> None:
        super().__init__(architecture, tensors, outputs, num_old=num_old, train_old=same_classes)
        self.penalty_weight = penalty_weight
        body = set(self.body_names)
        self.protected = [n for n in self.trained() if n in body or same_classes]
        zeros = {n: torch.zeros_like(tensors[n]) for n in self.protected}
        self.anchor = constants({**tensors, **anchor}, self.protected)
        self.importance = constants({**zeros, **importance}, self.protected)

    def weights(self) -> list[nn.Parameter]:
        """The protected parameters."""
        parts = self.trained()
        return [parts[n][0] for n in self.protected]


def constants(tensors: Mapping[str, Tensor], names: Iterable[str]) -> nn.ParameterList:
    """Copies of the named tensors that belong to a module's state and are not trained."""
    return nn.ParameterList([nn.Parameter(tensors[n].clone(), requires_grad=False) for n in names])


def quadratic(
    weights: Iterable[Tensor], importance: Iterable[Tensor], anchor: Iterable[Tensor]
) -> Tensor:
    """Σ importance·(weight − anchor)² over tensors, each given in the same order."""
    table = zip(weights, importance, anchor, strict=True)
    return torch.stack([(i * (w - a).square()).sum() for w, i, a in table]).sum()
