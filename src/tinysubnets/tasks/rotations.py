"""Rotations as joint labels: every image is learned turned four ways, each of them a class apart.

A network that also has to tell how an image is turned learns what its classes look like, not only
what tells them from each other, and claims less of what it has never seen.

The head has an output for every class and rotation: class c turned k times is output
k * classes + c. An image is answered by the mean of its own rotations: of the image turned k times,
the outputs of rotation k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import TaskError
from tinysubnets.tasks.task import Split, Task

ROTATIONS = 4


def turned(images: Tensor, times: int) -> Tensor:
    """Square images [..., side, side] turned so many times by 90 degrees to the left."""
    if times == 0:
        return images
    if times == 2:
        return images.flip((-2, -1))
    # By flips and a transposition, which every runtime has.
    flipped = images.flip(-1 if times == 1 else -2)
    return flipped.transpose(-2, -1).contiguous()


def rotated_task(task: Task) -> Task:
    """What is learned of a task: its training and validation images in four rotations each."""
    shape = tuple(task.train.inputs(slice(0, 1)).shape[1:])
    if len(shape) != 3 or shape[1] != shape[2]:
        raise TaskError(
            f"task {task.name!r}: samples of shape {shape} cannot be learned in rotations; images "
            "(channels, height, width) of equal sides can. Set routing.rotations to 'none'."
        )
    num, weights = task.num_classes, task.class_weights
    return replace(
        task,
        classes=tuple(range(ROTATIONS * num)),
        train=_rotated(task.train, num),
        valid=_rotated(task.valid, num),
        test=None,
        class_weights=None if weights is None else ROTATIONS * weights,
    )


def _rotated(split: Split, num_classes: int) -> Split:
    labels = [split.labels + k * num_classes for k in range(ROTATIONS)]
    return Split(RotatedInputs(split), torch.cat(labels))


class RotatedInputs:
    """The images of a split, all of them upright, then all turned once, and so on."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return ROTATIONS * len(self.split)

    def __getitem__(self, index: Any, /) -> Tensor:
        where = torch.from_numpy(np.arange(len(self))[index])
        times, places = where // len(self.split), where % len(self.split)
        images = self.split.inputs(places).clone()
        for k in range(1, ROTATIONS):
            images[times == k] = turned(images[times == k], k)
        return images


def joined(outputs: Sequence[Tensor]) -> Tensor:
    """The logits [n, classes] of images from outputs [n, 4 * classes] for some of their rotations.

    - `outputs`: those of the upright images, of the same turned once, and so on, as far as they go.
    """
    own = [o.chunk(ROTATIONS, 1)[k] for k, o in enumerate(outputs)]
    return torch.stack(own).mean(0)


def joined_logits(network: Callable[[Tensor], Tensor], images: Tensor, passes: int) -> Tensor:
    """The logits [n, classes] of images from the first so many of their rotations, 1 to 4.

    - `network`: gives outputs [n, 4 * classes] for images as it sees them.
    """
    return joined([network(turned(images, k)) for k in range(passes)])


def rotation_evidence(outputs: Sequence[Tensor]) -> Tensor:
    """How surely the network tells how images are turned [n]: the mean log-probability of it.

    - `outputs`: as for `joined`.
    """
    own = [
        o.log_softmax(1).chunk(ROTATIONS, 1)[k].logsumexp(1) for k, o in enumerate(outputs)
    ]  # [n] each
    return torch.stack(own).mean(0)
