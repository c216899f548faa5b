"""The network of the Tiny-ImageNet scenario."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from tinysubnets.networks.layers import drop, norm1d, norm2d


def tinynet(
    classes: int = 5,
    in_channels: int = 3,
    image_size: int = 64,
    width: int = 160,
    hidden: int = 640,
    norm: str = "batch",
    dropout: float = 0.0,
    bias: bool = True,
    affine: bool = True,
) -> nn.Module:
    """Four 3x3 convolutions of stride 2 and two layers; on 3x64x64 images 2,743,520 shared weights.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`, `image_size`: of the images, 1 for gray and 3 for color; their side in pixels.
    - `width`: the channels of each convolution.
    - `hidden`: the width of the two fully connected layers.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `dropout`: the rate after the two fully connected layers.
    - `bias`: whether layers without a normalization, and the head, have biases.
    - `affine`: whether each normalization has a scale and a shift of its own.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, side = in_channels, image_size
    for number in range(1, 5):
        layers[f"conv{number}"] = nn.Conv2d(
            channels, width, 3, stride=2, padding=1, bias=bias and norm == "none"
        )
        layers[f"norm{number}"] = norm2d(norm, width, affine)
        layers[f"relu{number}"] = nn.ReLU()
        channels, side = width, (side + 1) // 2
    layers["flatten"] = nn.Flatten()
    features = width * side * side
    for number in (1, 2):
        layers[f"fc{number}"] = nn.Linear(features, hidden, bias=bias and norm == "none")
        layers[f"norm{number + 4}"] = norm1d(norm, hidden, affine)
        layers[f"relu{number + 4}"] = nn.ReLU()
        layers[f"drop{number}"] = drop(1.0, dropout)
        features = hidden
    layers["fc"] = nn.Linear(features, classes, bias=bias)
    return nn.Sequential(layers)
