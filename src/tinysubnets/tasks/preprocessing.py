"""How a picture becomes a raw input of a task: mode, resize, crop, frame; recorded with the model.

What follows, the normalization by mean and deviation, is part of the task as well and done by its
network; see `normalization.py`. Nothing here needs torch, and Pillow only to be applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tinysubnets.errors import DataError

MAX_SIDE = 1 << 14  # pixels that a picture may be brought to
MAX_VALUES = 1 << 24  # of one input that a file describes: 2,364 x 2,364 pixels in three channels
MAX_PIXELS = 1 << 25  # of a picture once it is resized, where not even more are needed
ORIENTATION = 0x0112  # the tag of EXIF
# What is always done in the same way, said for readers of a file.
CONSTANT = {"crop": "center", "interpolation": "bilinear"}


def upright(picture: Any) -> Any:
    """A picture of Pillow turned as its EXIF orientation says; itself where that says nothing."""
    if picture.getexif().get(ORIENTATION, 1) == 1:
        return picture
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def plain(picture: Any) -> Any:
    """A picture of Pillow upright, in 8 bits, and on white where it is transparent.

    Pillow's own conversions would clip 16 bits to 8, and show what is hidden.
    """
    from PIL import Image

    is_png, image = picture.format == "PNG", upright(picture)
    if image.mode.startswith("I;16") or (image.mode == "I" and is_png):
        pixels = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((pixels + 128) // 257).astype(np.uint8))
    if image.mode == "F" or (image.mode == "I" and not _is_in_bytes(image)):
        raise DataError(
            "the image holds 32-bit numbers, of which nobody says which one is white; save it with "
            "8 or 16 bits"
        )
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        return white.convert(mode)
    return image


def _is_in_bytes(image: Any) -> bool:
    least, most = image.getextrema()
    return bool(least >= 0 and most <= 255)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes a raw input.

    A picture is turned upright first, as its EXIF says: phones store many of them lying. 16 bits
    become 8, and what is transparent becomes white.

    - `mode`: "L" for gray pixels, "RGB" for colors; the picture is converted to it.
    - `resize`: the length in pixels that its shorter side is then brought to, by bilinear
      interpolation; None where pictures have the size already.
    - `height`, `width`: the pixels that are then cut out of its middle.
    - `frame`: the side of a black square that these are then put in the middle of; None: no frame.
    - `channels`: over how many channels gray pixels are repeated; None: as many as the mode has.
    """

    mode: str
    height: int
    width: int
    resize: int | None = None
    frame: int | None = None
    channels: int | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an input, channels first."""
        side = (self.frame, self.frame) if self.frame else (self.height, self.width)
        return (self.channels or len(self.mode), *side)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as a file records it."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in own.items() if v is not None} | CONSTANT

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """What `as_dict` wrote; anything else, as from a forged file, is a DataError."""
        given = {k: v for k, v in values.items() if k not in CONSTANT}
        known = {f.name for f in fields(cls)}
        wrong = [k for k in given if k not in known]
        wrong += [k for k, v in CONSTANT.items() if values.get(k, v) != v]
        wrong += ["mode"] if given.get("mode") not in ("L", "RGB") else []
        wrong += [
            k
            for k in ("height", "width", "resize", "frame", "channels")
            if k in given or k in ("height", "width")
            if type(given.get(k)) is not int or not 1 <= given[k] <= MAX_SIDE
        ]
        if not wrong:
            made = cls(**given)
            least = max(made.height, made.width)
            wrong += ["frame"] if made.frame is not None and made.frame < least else []
            several = made.channels not in (None, 1)
            wrong += ["channels"] if several and made.mode != "L" else []
            wrong += ["height"] if math.prod(made.shape) > MAX_VALUES else []
        if wrong:
            shown = str(values.get(wrong[0]))[:80]
            raise DataError(
                f"the preprocessing recorded for the task is not known to this version: "
                f"{wrong[0]} is {shown}. Give raw inputs as arrays."
            )
        return made

    def for_any_size(self) -> Preprocessing:
        """The same for pictures of any size, where those it was learned from had one already."""
        if self.resize is not None:
            return self
        return replace(self, resize=min(self.height, self.width))

    def apply(self, picture: Any) -> np.ndarray:
        """A picture of Pillow as uint8 pixels (channels, height, width)."""
        image = plain(picture)
        image = image if image.mode == self.mode else image.convert(self.mode)
        if self.resize is not None:
            image = self._resized(image)
        pixels = np.asarray(image)
        height, width = pixels.shape[:2]
        if (height, width) != (self.height, self.width):
            raise DataError(
                f"the image is {width}x{height} pixels, not {self.width}x{self.height}; "
                "sets of varying sizes need one to be brought to: data.image_size in a recipe, "
                "`size` in Python, --size of `tsn learn`"
            )
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if self.frame is None and self.channels is None:
            return pixels
        framed = np.zeros(self.shape, np.uint8)
        top, left = ((framed.shape[i] - (height, width)[i - 1]) // 2 for i in (1, 2))
        framed[:, top : top + height, left : left + width] = pixels
        return framed

    def _resized(self, image: Any) -> Any:
        """The image with its shorter side brought to `resize`, and the middle cut out."""
        from PIL import Image

        assert self.resize is not None
        # At least the crop, so that rounding and long crops never leave a black border.
        scale = max(
            self.resize / min(image.width, image.height),
            self.width / image.width,
            self.height / image.height,
        )
        width = max(self.width, round(image.width * scale))
        height = max(self.height, round(image.height * scale))
        if width * height > max(MAX_PIXELS, 4 * self.width * self.height):
            raise DataError(
                f"the image is {image.width}x{image.height} pixels, too long for its other side to "
                f"be resized to {self.resize}; cut it to a squarer shape"
            )
        if (width, height) != (image.width, image.height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        return image.crop((left, top, left + self.width, top + self.height))

    def __str__(self) -> str:
        """What is done, in words."""
        words = ["gray" if self.mode == "L" else "RGB"]
        if self.resize is not None:
            words.append(f"the shorter side resized to {self.resize} pixels (bilinear)")
            words.append(f"the middle {self.width}x{self.height} cut out")
        else:
            words.append(f"{self.width}x{self.height} pixels")
        if self.frame is not None:
            words.append(f"in the middle of a black square of {self.frame}")
        if self.channels is not None:
            words.append(f"repeated over {self.channels} channels")
        return ", ".join(words)
