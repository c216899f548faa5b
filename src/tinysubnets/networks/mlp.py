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
) -> nn.Module:
    """A fully connected ReLU network on flattened inputs; 784-100-100 has 88,400 shared weights.

    `dropout` is the rate after every hidden layer.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = in_features
    for number, features in enumerate(hidden, start=1):
        layers[f"fc{number}"] = nn.Linear(width, features, bias=norm == "none")
        layers[f"norm{number}"] = norm1d(norm, features)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"drop{number}"] = drop(1.0, dropout)
        width = features
    layers["fc"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def small_mlp(
    classes: int = 10, in_features: int = 64, hidden: Sequence[int] = (64, 64)
) -> nn.Module:
    """A fully connected network for 8x8 digits."""
    return mlp(classes, in_features, hidden)
