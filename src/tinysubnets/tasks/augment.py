"""Random changes of images: pure functions of a batch, on the batch's own device.

No function loops over samples or waits for the device, and a batch keeps its shape and type, so
that raw uint8 images can be augmented before they are normalized. `generator=None` draws from the
device's global generator, which is what a captured CUDA graph needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from tinysubnets.errors import SettingError

_MAX_ASPECT = 4 / 3


@dataclass(frozen=True)
class Augmentation:
    """Which changes to make; the default makes none.

    - `flip`: mirrors half of the images.
    - `shift`: moves an image by up to so many pixels and fills what comes in.
    - `crop`: cuts out a random part of at least that share of the area and stretches it to the old
      size; 1 turns it off.
    - `fill`: what a shift brings in: "black", or the "mean" of the task's inputs, which is 0 once
      they are normalized.
    """

    flip: bool = False
    shift: int = 0
    crop: float = 1.0
    fill: Literal["black", "mean"] = "black"

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise SettingError(f"shift={self.shift}: give a number of pixels, 0 for none.")
        if not 0.0 < self.crop <= 1.0:
            raise SettingError(f"crop={self.crop}: give a share of the area in (0, 1], 1 for none.")

    @property
    def active(self) -> bool:
        """Whether anything is changed at all."""
        return self.flip or self.shift > 0 or self.crop < 1.0


def augment(batch: Tensor, spec: Augmentation, generator: torch.Generator | None = None) -> Tensor:
    """The batch (N, C, H, W) after the changes of `spec`: crop, then shift, then flip."""
    if not spec.active:
        return batch
    if batch.ndim != 4:
        raise SettingError(
            f"augmentation works on images (N, C, H, W); this batch has {tuple(batch.shape)}. "
            "Turn flip, shift and crop off for other data."
        )
    if spec.crop < 1.0:
        batch = crop(batch, spec.crop, generator)
    if spec.shift:
        batch = shift(batch, spec.shift, generator)
    return flip(batch, generator) if spec.flip else batch


def flip(batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    coin = torch.rand(len(batch), 1, 1, 1, generator=generator, device=batch.device)
    return torch.where(coin < 0.5, batch.flip(-1), batch)


def shift(batch: Tensor, pixels: int, generator: torch.Generator | None = None) -> Tensor:
    """Each image moved by up to `pixels` in both directions, uniformly; zeros come in."""
    count, channels, height, width = batch.shape
    offsets = torch.randint(
        0, 2 * pixels + 1, (2, count, 1), generator=generator, device=batch.device
    )
    rows = (offsets[0] + torch.arange(height, device=batch.device))[:, None, :, None]
    columns = (offsets[1] + torch.arange(width, device=batch.device))[:, None, None, :]
    samples = torch.arange(count, device=batch.device)[:, None, None, None]
    channel = torch.arange(channels, device=batch.device)[None, :, None, None]
    return pad(batch, (pixels, pixels, pixels, pixels))[samples, channel, rows, columns]


def crop(batch: Tensor, least: float, generator: torch.Generator | None = None) -> Tensor:
    """A random window of each image, stretched to the image's size by bilinear interpolation.

    Its area is uniform between `least` and 1 of the image's, its aspect between 3:4 and 4:3; the
    window never leaves the image.
    """
    draws = torch.rand(4, len(batch), generator=generator, device=batch.device)
    area = least + (1.0 - least) * draws[0]
    aspect = torch.exp((2.0 * draws[1] - 1.0) * math.log(_MAX_ASPECT))
    # Sides as shares of the image; grid_sample's coordinates run from -1 to 1.
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()]).clamp(max=1.0)
    centers = (2.0 * draws[2:] - 1.0) * (1.0 - sides)
    x = centers[0, :, None] + sides[0, :, None] * _pixel_centers(batch.shape[3], batch.device)
    y = centers[1, :, None] + sides[1, :, None] * _pixel_centers(batch.shape[2], batch.device)
    grid = torch.stack(
        [x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])], dim=-1
    )
    out = grid_sample(batch.float(), grid, padding_mode="border", align_corners=False)
    return (out if batch.is_floating_point() else out.round()).to(batch.dtype)


def _pixel_centers(count: int, device: torch.device) -> Tensor:
    """The middles of `count` pixels over the range -1 to 1."""
    return (2.0 * torch.arange(count, device=device) + 1.0) / count - 1.0
