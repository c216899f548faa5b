"""Fully connected networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from tinysubnets.networks.layers import drop, norm1d


def mlp(
    classes: int = 10,
    in_features: int = 784,
    hidden: Sequence[int] = (100, 100),
    norm: str = "none",
    dropout: float = 0.0,
    bias: bool = True,
    affine: bool = True,
) -> nn.Module:
    """A fully connected ReLU network on flattened inputs; 784-100-100 has 88,400 shared weights.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_features`: numbers in one input.
    - `hidden`: the width of each hidden layer.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `dropout`: the rate after every hidden layer.
    - `bias`: whether layers without a normalization, and the head, have biases.
    - `affine`: whether each normalization has a scale and a shift of its own.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = in_features
    for number, features in enumerate(hidden, start=1):
        layers[f"fc{number}"] = nn.Linear(width, features, bias=bias and norm == "none")
        layers[f"norm{number}"] = norm1d(norm, features, affine)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"drop{number}"] = drop(1.0, dropout)
        width = features
    layers["fc"] = nn.Linear(width, classes, bias=bias)
    return nn.Sequential(layers)


def small_mlp(
    classes: int = 10, in_features: int = 64, hidden: Sequence[int] = (64, 64)
) -> nn.Module:
    """A fully connected network for 8x8 digits.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_features`: numbers in one input.
    - `hidden`: the width of each hidden layer.
    """
    return mlp(classes, in_features, hidden)
