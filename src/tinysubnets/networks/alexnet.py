"""Convolutional networks with pooling and wide fully connected layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from tinysubnets.errors import SettingError
from tinysubnets.networks.layers import drop, norm1d, norm2d

_CHANNELS, _KERNELS, _RATES = (64, 128, 256), (4, 3, 2), (0.2, 0.2, 0.5)


def alexnet(
    classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    hidden: int = 2048,
    norm: str = "batch",
    dropout: float = 1.0,
    bias: bool = True,
    affine: bool = True,
) -> nn.Module:
    """An AlexNet-like network; on 3x32x32 images it has 6,499,328 shared weights.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`, `image_size`: of the images, 1 for gray and 3 for color; their side in pixels.
    - `hidden`: the width of the two fully connected layers.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `dropout`: scales the rates .2 .2 .5 .5 .5: 1 keeps them, 0.5 halves them, 0 turns them off.
    - `bias`: whether layers without a normalization, and the head, have biases.
    - `affine`: whether each normalization has a scale and a shift of its own.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, side = in_channels, image_size
    for number, (channels, kernel, rate) in enumerate(
        zip(_CHANNELS, _KERNELS, _RATES, strict=True), start=1
    ):
        layers[f"conv{number}"] = nn.Conv2d(width, channels, kernel, bias=bias and norm == "none")
        layers[f"norm{number}"] = norm2d(norm, channels, affine)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"drop{number}"] = drop(rate, dropout)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        width, side = channels, (side - kernel + 1) // 2
    if side < 1:
        raise SettingError(f"image_size={image_size} is too small for alexnet; give at least 18.")
    layers["flatten"] = nn.Flatten()
    width *= side * side
    for number in (1, 2):
        layers[f"fc{number}"] = nn.Linear(width, hidden, bias=bias and norm == "none")
        layers[f"norm{number + 3}"] = norm1d(norm, hidden, affine)
        layers[f"relu{number + 3}"] = nn.ReLU()
        layers[f"drop{number + 3}"] = drop(0.5, dropout)
        width = hidden
    layers["fc"] = nn.Linear(width, classes, bias=bias)
    return nn.Sequential(layers)


def small_cnn(
    classes: int = 10,
    in_channels: int = 1,
    image_size: int = 8,
    norm: str = "batch",
    convolutions: int = 2,
) -> nn.Module:
    """Some convolutions and one hidden layer, for few images and quick tests.

    On 1x8x8 digits it has 12,944 shared weights, on 3x64x64 images with four convolutions 125,872.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`, `image_size`: of the images, 1 for gray and 3 for color; their side in pixels.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `convolutions`: how many of 3x3, each followed by pooling, which halves the image; the first
      has 16 channels, the next twice as many, up to 64.
    """
    if convolutions < 1 or image_size >> convolutions < 1:
        raise SettingError(
            f"convolutions={convolutions} leave nothing of images of {image_size} pixels; give 1 "
            f"to {image_size.bit_length() - 1}."
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, side = in_channels, image_size
    for number in range(1, convolutions + 1):
        channels = min(64, 8 * 2**number)
        layers[f"conv{number}"] = nn.Conv2d(width, channels, 3, padding=1, bias=norm == "none")
        layers[f"norm{number}"] = norm2d(norm, channels)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        width, side = channels, side // 2
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(width * side * side, 64)
    layers[f"relu{convolutions + 1}"] = nn.ReLU()
    layers["fc"] = nn.Linear(64, classes)
    return nn.Sequential(layers)
