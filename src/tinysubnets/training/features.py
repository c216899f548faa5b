"""Features: what reaches a network's head. Where all before the head is frozen, computed once."""

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
    """The same task with features as its inputs, to train the head alone.

    None where that cannot be: the head is not called exactly once with one tensor, its output is
    not the network's output, or the features take more than `FEATURE_BYTES`.

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
