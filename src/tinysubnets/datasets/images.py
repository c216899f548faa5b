"""Images: one encoded one to one uint8 array, and arrays of many to a common shape."""

from __future__ import annotations

import io

import numpy as np

from tinysubnets.errors import DataError
from tinysubnets.tasks.preprocessing import Preprocessing, plain

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
GRAY_BATCH = 1024  # color images whose brightness is computed at once


def decode_image(
    encoded: bytes, form: Preprocessing, formats: tuple[str, ...] | None = None
) -> np.ndarray:
    """The image as (channels, height, width); raises a DataError that gives the reason.

    - `formats`: the kinds of files that are read, as Pillow names them; all by default.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=formats) as opened:
            return form.apply(opened)
    except DataError:
        raise
    # Pillow's decoders raise OSError, ValueError, SyntaxError, struct.error and more on bad bytes.
    except Exception as error:
        raise _undecodable(error) from error


def sniff(encoded: bytes) -> Preprocessing:
    """The form that keeps an image as it is, for sets whose form is not known beforehand."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as opened:
            image = plain(opened)
            mode = "L" if image.mode in ("1", "L", "I") else "RGB"
            return Preprocessing(mode, image.height, image.width)
    except DataError:
        raise
    except Exception as error:
        raise _undecodable(error) from error


def _undecodable(error: Exception) -> DataError:
    if type(error).__name__ == "UnidentifiedImageError":  # its text is an address in memory
        return DataError("cannot decode the image (not a format that Pillow knows)")
    return DataError(f"cannot decode the image ({type(error).__name__}: {error})")


def fit(inputs: np.ndarray, channels: int, size: int) -> np.ndarray:
    """Images of a common shape: gray repeated over the channels, smaller ones framed in black.

    Colors become gray where one channel is wanted.
    """
    if channels == 1 and inputs.shape[1] == 3 and inputs.dtype == np.uint8:
        inputs = _gray(inputs)
    _, given, height, width = inputs.shape
    if given not in (1, channels) or height > size or width > size:
        raise DataError(
            f"images of {given}x{height}x{width} do not fit into {channels}x{size}x{size}; "
            "only gray images get more channels, and images are framed, not shrunk."
        )
    if (given, height, width) == (channels, size, size):
        return inputs
    out = np.zeros((len(inputs), channels, size, size), dtype=inputs.dtype)
    top, left = (size - height) // 2, (size - width) // 2
    out[:, :, top : top + height, left : left + width] = inputs
    return out


def _gray(images: np.ndarray) -> np.ndarray:
    """The brightness of color images, as Pillow computes it, in pieces that fit in memory."""
    out = np.empty((len(images), 1, *images.shape[2:]), dtype=np.uint8)
    for start in range(0, len(images), GRAY_BATCH):
        red, green, blue = images[start : start + GRAY_BATCH].astype(np.uint32).swapaxes(0, 1)
        mixed = 19595 * red + 38470 * green + 7471 * blue + 0x8000
        out[start : start + GRAY_BATCH, 0] = mixed >> 16
    return out
