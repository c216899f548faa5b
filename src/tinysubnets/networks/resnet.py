"""Residual networks."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from tinysubnets.errors import SettingError, check_setting, unknown
from tinysubnets.networks.layers import norm2d

_STEMS = ("3x3", "7x7")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added back."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, norm: str, bias: bool, affine: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=bias)
        self.norm1 = norm2d(norm, channels, affine)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm2 = norm2d(norm, channels, affine)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(in_channels, channels, 1, stride, bias=bias),
                    norm=norm2d(norm, channels, affine),
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of feature maps."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


def resnet18(
    classes: int = 10,
    in_channels: int = 3,
    width: int = 20,
    stem: str = "3x3",
    norm: str = "batch",
    bias: bool = True,
    affine: bool = True,
    pooled_size: int = 1,
) -> nn.Module:
    """ResNet-18 for images of any size.

    Width 20 with the 3x3 stem (small images) has 1,090,140 shared weights; width 64 with the 7x7
    stem, which reduces large images four times before the first stage, has 11,166,912.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`: of the images, 1 for gray and 3 for color.
    - `width`: the channels of the first stage.
    - `stem`: the first layer: "3x3" for small images, "7x7" for large ones.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `bias`: whether layers without a normalization, and the head, have biases.
    - `affine`: whether each normalization has a scale and a shift of its own.
    - `pooled_size`: the side of the maps that the last pooling leaves: the head sees its square of
      numbers per channel.
    """
    if stem not in _STEMS:
        raise SettingError(unknown("stem", stem, _STEMS))
    large, has_bias = stem == "7x7", bias and norm == "none"
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = (
        nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=has_bias)
        if large
        else nn.Conv2d(in_channels, width, 3, padding=1, bias=has_bias)
    )
    layers["norm"] = norm2d(norm, width, affine)
    layers["relu"] = nn.ReLU()
    if large:
        layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = width
    for stage in range(4):
        wide = width * 2**stage
        layers[f"stage{stage + 1}"] = nn.Sequential(
            BasicBlock(channels, wide, 1 if stage == 0 else 2, norm, has_bias, affine),
            BasicBlock(wide, wide, 1, norm, has_bias, affine),
        )
        channels = wide
    layers["average"] = nn.AdaptiveAvgPool2d(pooled_size)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels * pooled_size**2, classes, bias=bias)
    return nn.Sequential(layers)


class PlainBlock(nn.Module):
    """Two 3x3 convolutions around an identity: channels that the input lacks are zeros."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=bias)
        self.norm1 = norm2d(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm2 = norm2d(norm, channels)
        self.relu = nn.ReLU()
        self.stride, self.missing = stride, channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of feature maps."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        skip = x[:, :, :: self.stride, :: self.stride]
        if self.missing:
            skip = nn.functional.pad(skip, (0, 0, 0, 0, 0, self.missing))
        return self.relu(y + skip)


def small_resnet(
    classes: int = 10,
    in_channels: int = 3,
    width: int = 16,
    depth: int = 20,
    norm: str = "batch",
    stride: int = 1,
) -> nn.Module:
    """The residual network for small images: three stages, shortcuts without weights.

    Depth 20 and width 16 have 267,696 weights outside the head.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`: of the images, 1 for gray and 3 for color.
    - `width`: the channels of the first stage.
    - `depth`: 6n + 2, with n blocks in a stage.
    - `norm`: what follows each layer: "none", "batch" or "group" normalization.
    - `stride`: of the first layer: 2 makes images of 64 pixels cost what those of 32 do.
    """
    check_setting("stride", stride, stride in (1, 2), "1 or 2")
    check_setting("depth", depth, depth >= 8 and depth % 6 == 2, "8, 14, 20, 26, 32 or so on")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=norm == "none")
    layers["norm"] = norm2d(norm, width)
    layers["relu"] = nn.ReLU()
    channels = width
    for stage in range(3):
        wide = width * 2**stage
        blocks = [PlainBlock(channels, wide, 1 if stage == 0 else 2, norm)]
        blocks += [PlainBlock(wide, wide, 1, norm) for _ in range((depth - 2) // 6 - 1)]
        layers[f"stage{stage + 1}"] = nn.Sequential(*blocks)
        channels = wide
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, classes)
    return nn.Sequential(layers)
