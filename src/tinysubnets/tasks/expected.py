"""What a pretrained network says of the images it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinysubnets.errors import ArchitectureError
from tinysubnets.tasks.normalization import Normalization

# Where a network may say it, as those of timm do: {"input_size": (3, 224, 224), "mean": …}.
CONFIGS = ("data_config", "pretrained_cfg", "default_cfg")


@dataclass(frozen=True)
class ExpectedInputs:
    """The images that a network was trained on.

    - `channels`, `size`: how many channels, and the side in pixels.
    - `mean`, `std`: of each channel, of pixels as fractions of 1.
    """

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        kind = "gray images" if self.channels == 1 else "images"
        return f"{kind} of {self.size}x{self.size}"

    @property
    def mode(self) -> str:
        """The mode of such images in Pillow: RGB, or L for gray ones."""
        return "L" if self.channels == 1 else "RGB"

    @property
    def normalization(self) -> Normalization:
        """What the network expects to be done to raw pixels, 0 to 255."""
        mean, std = (tuple(255.0 * v for v in part) for part in (self.mean, self.std))
        return Normalization(mean, std, trailing=2)


def shape_hint(expected: ExpectedInputs | None, shape: tuple[int, ...]) -> str:
    """What to do about samples of a shape that a network fails on; empty where nothing helps.

    - `expected`: what it was trained on; None where it does not say.
    - `shape`: that of a sample, of images (channels, height, width).
    """
    sized = "Task.from_folder(…, size=…), data.image_size in a recipe, --size on the command line"
    if expected is None:
        if len(shape) != 3:
            return ""
        return (
            f"If the network takes images of another shape than {shape}, bring them to it: to its "
            f"size by {sized}; to its channels by Task.from_folder(…, mode=…), data.channels in a "
            "recipe."
        )
    if shape == (expected.channels, expected.size, expected.size):
        return ""
    if len(shape) == 3 and shape[0] != expected.channels:
        arrays = f"arrays with {expected.channels}"
        if shape[0] == 1:
            arrays += f", as inputs.repeat({expected.channels}, axis=1) of a numpy array gives"
        return (
            f"The number of channels is wrong: the network was trained on {expected.mode} images, "
            f"with {expected.channels}, and the task's are {shape}, with {shape[0]}. Give "
            f"{arrays}, or pictures by Task.from_folder(…, mode={expected.mode!r}); in a recipe "
            f"set data.channels = {expected.channels}."
        )
    return (
        f"The network was trained on {expected}, {expected.mode}, and the task's are {shape}; "
        f"bring them to that size: {sized}."
    )


def expected_inputs(network: object) -> ExpectedInputs | None:
    """What a network says of its inputs in one of `CONFIGS`; None where it says nothing.

    >>> class Network:
    ...     data_config = {"input_size": (3, 96, 96), "mean": (0.5,) * 3, "std": (0.25,) * 3}
    >>> str(expected_inputs(Network()))
    'images of 96x96'
    """
    for name in CONFIGS:
        table = getattr(network, name, None)
        table = table if isinstance(table, Mapping) else getattr(table, "__dict__", {})
        size, mean, std = (table.get(key) for key in ("input_size", "mean", "std"))
        if size is None or mean is None or std is None:
            continue
        try:
            channels, height, _ = (int(v) for v in size)
            means, stds = (tuple(float(v) for v in part) for part in (mean, std))
            fits = len(means) == len(stds) == channels and height > 0 and min(stds) > 0
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise ArchitectureError(
                f"the network's {name} has input_size {size!r}, mean {mean!r} and std {std!r}; "
                "(channels, height, width) and a mean and deviation per channel are needed."
            )
        return ExpectedInputs(channels, height, means, stds)
    return None
