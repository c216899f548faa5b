"""What EWC and SI share: a penalty on leaving earlier weights, each by its importance.

    Σ importance·(w − anchor)²

over what all tasks use: everything but the output layer, and that too where all tasks have the same
classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from tinysubnets.nn.dense import DenseModule


def protected_names(module: DenseModule, same_classes: bool) -> list[str]:
    """The tensors of a network that are held; with the same classes the output layer as well."""
    body = set(module.body_names)
    return [n for n in module.trained() if n in body or same_classes]


def constants(tensors: Mapping[str, Tensor], names: Iterable[str]) -> nn.ParameterList:
    """Copies of the named tensors that belong to a module's state and are not trained."""
    return nn.ParameterList([nn.Parameter(tensors[n].clone(), requires_grad=False) for n in names])


def quadratic(
    weights: Iterable[Tensor], importance: Iterable[Tensor], anchor: Iterable[Tensor]
) -> Tensor:
    """Σ importance·(weight − anchor)² over tensors, each given in the same order."""
    table = zip(weights, importance, anchor, strict=True)
    return torch.stack([(i * (w - a).square()).sum() for w, i, a in table]).sum()
