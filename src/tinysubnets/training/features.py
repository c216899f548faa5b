"""What reaches a network's head, computed once: where all before it is frozen, it never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.loader import DeviceLoader
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task
from tinysubnets.training.evaluate import EVAL_BATCH
from tinysubnets.training.precision import arithmetic

FEATURE_BYTES = 1 << 30  # of a task's training and validation samples; more are not kept


def feature_task(
    architecture: Architecture, tensors: Mapping[str, Tensor], task: Task, device: torch.device
) -> Task | None:
    """A task whose inputs are what the given one's are when they reach the head.

    None where that cannot be kept: the head is called otherwise than once with one tensor, its
    output is not the network's, or there is too much of it.

    - `tensors`: all those of the network, on the device.
    """
    parts, left = [], FEATURE_BYTES
    for split in (task.train, task.valid):
        loader = DeviceLoader(split, task.normalization, device)
        loader.prefer_channels_last_(lambda inputs: architecture(tensors, inputs))
        found = _features(architecture, tensors, loader, left)
        if found is None:
            return None
        left -= found.numel() * found.element_size()
        parts.append(Split(found, split.labels))
    train, valid = parts
    return replace(task, train=train, valid=valid, test=None, normalization=Normalization())


@torch.no_grad()
def _features(
    architecture: Architecture, tensors: Mapping[str, Tensor], loader: DeviceLoader, most_bytes: int
) -> Tensor | None:
    """What reaches the head for each sample [samples, ...], on the CPU, in the data's order."""
    found: list[Tensor] = []
    for inputs, _ in loader.chunks(EVAL_BATCH):
        with arithmetic("float32", deterministic=True):
            given = architecture.head_input(tensors, inputs)
        if given is None:
            return None
        if given.numel() // len(given) * len(loader) * given.element_size() > most_bytes:
            return None
        found.append(given.cpu())
    return torch.cat(found)
