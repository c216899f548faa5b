"""Batches of a task's data on the training device: resident where they fit, else streamed.

Data stay as the user gave them (uint8 pixels, say) and are normalized batch by batch on the device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.tasks.augment import Augmentation, augment
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split

RESIDENT_BYTES = 4 << 30  # larger splits are streamed from where they are
PREFETCH = 3  # batches that are read ahead where data are streamed
# How many input values are evaluated at once: activations of large images must fit in memory.
EVAL_VALUES = {"cpu": 1 << 22, "cuda": 1 << 25}
MIN_EVAL_BATCH = 16  # statistics of fewer samples are worth little


class Chunks(Protocol):
    """Anything that serves normalized batches in a fixed order: a loader, or a mixture of some."""

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of inputs and labels, of at most about `limit` samples in all."""


class DeviceLoader:
    """A split of a task, served in normalized batches on one device.

    The whole split is kept on the device if it has at most `resident_bytes`, else its batches are
    read as they are needed.
    """

    def __init__(
        self,
        split: Split,
        normalization: Normalization,
        device: torch.device | str,
        *,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self.split = split
        self.device = torch.device(device)
        self.affine = normalization.tensors(self.device)
        self.labels = split.labels.to(self.device)
        self.sample_values = split.inputs(slice(0, 1)).numel()
        self.memory_format = torch.contiguous_format
        self.resident: Tensor | None = None
        if split.size_bytes() <= resident_bytes:
            self.resident = split.on(self.device)

    def __len__(self) -> int:
        return len(self.split)

    def order(self, *parts: int | str) -> Tensor:
        """A random order of all samples, drawn on the device from the given seed and path."""
        generator = seeds.generator(self.device, *parts)
        return torch.randperm(len(self), generator=generator, device=self.device)

    def normalized(self, raw: Tensor) -> Tensor:
        """What the network sees of raw inputs."""
        return Normalization.apply(raw, *self.affine).contiguous(memory_format=self.memory_format)

    def prefer_channels_last_(self, network: Callable[[Tensor], Tensor]) -> None:
        """Give images with their channels last in memory, if the network can compute on them.

        Convolutions are faster so, on CPUs too; a network that views its activations cannot.
        """
        images = self.normalized(self.split.inputs(slice(0, 2)).to(self.device))
        if images.ndim != 4:
            return
        try:
            with torch.no_grad():
                network(images.contiguous(memory_format=torch.channels_last))
        except (RuntimeError, ValueError):  # of BatchNorm, where there is a single sample
            return
        self.memory_format = torch.channels_last

    def full_batches(self, order: Tensor, batch_size: int) -> Tensor:
        """The order as full batches [steps, size], the last filled up from the order's beginning.

        Equal shapes keep compiled and captured steps valid, and no batch is ever too small for
        batch statistics.
        """
        size = min(batch_size, len(order))
        steps = -(-len(order) // size)
        return torch.cat([order, order[: steps * size - len(order)]]).view(steps, size)

    def batch(
        self, where: Tensor, augmentation: Augmentation | None = None
    ) -> tuple[Tensor, Tensor]:
        """One batch of resident data, augmented by the global generator and normalized.

        `where` [batch] are positions of samples. Gives inputs [batch, ...] and labels [batch].
        """
        assert self.resident is not None
        return self._prepared(self.resident[where], augmentation), self.labels[where]

    def epoch(
        self, order: Tensor, batch_size: int, augmentation: Augmentation | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch in the given order, which holds positions of samples."""
        for raw, labels in self.raw(list(self.full_batches(order, batch_size))):
            yield self._prepared(raw, augmentation), labels

    def _prepared(self, raw: Tensor, augmentation: Augmentation | None) -> Tensor:
        if augmentation is None:
            return self.normalized(raw)
        if augmentation.fill == "mean":  # zeros come in, and zero is the mean once normalized
            changed = augment(self.normalized(raw), augmentation, None)
            return changed.contiguous(memory_format=self.memory_format)
        return self.normalized(augment(raw, augmentation, None))

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches for evaluation: in the data's own order, of nearly equal sizes, normalized.

        At most `batch_size` samples each, fewer where inputs are large; at most `limit` in all.
        """
        count = len(self) if limit is None else min(limit, len(self))
        values = EVAL_VALUES.get(self.device.type, 1 << 22)
        batch_size = min(batch_size, max(MIN_EVAL_BATCH, values // self.sample_values))
        positions = torch.arange(count, device=self.device)
        if limit is not None and count < len(self):
            # Spread over the whole set, so that sorted data are not cut to their first classes.
            positions = positions * len(self) // count
        for raw, labels in self.raw(list(positions.tensor_split(max(1, -(-count // batch_size))))):
            yield self.normalized(raw), labels

    def raw(self, positions: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Raw inputs and labels at lists of positions; read ahead in a thread where streamed."""
        if self.resident is None:
            yield from self._streamed(positions)
            return
        for where in positions:
            yield self.resident[where], self.labels[where]

    def _streamed(self, positions: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """What `raw` gives of data that are not resident: a thread reads some batches ahead."""
        ready: queue.Queue[Tensor | BaseException] = queue.Queue(PREFETCH)
        stop = threading.Event()

        def hand_over(item: Tensor | BaseException) -> None:
            """Wait for room, as long as anybody is there to take it out."""
            while not stop.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def read() -> None:
            try:
                for where in positions:
                    inputs = self.split.inputs(where.cpu())
                    hand_over(inputs.pin_memory() if self.device.type == "cuda" else inputs)
                    if stop.is_set():
                        return
            except BaseException as error:  # handed over: the reader's error is the caller's
                hand_over(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            for where in positions:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item.to(self.device, non_blocking=True), self.labels[where]
        finally:
            stop.set()
            thread.join()
