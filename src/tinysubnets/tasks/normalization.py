"""The recorded normalization of a task: what its network sees of raw inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import TaskError
from tinysubnets.tasks.checks import check_scale, is_tokens


@dataclass(frozen=True)
class Normalization:
    """An affine map of raw inputs, (x - mean) / std per channel or for all; none for tokens.

    `trailing` counts the dimensions behind the channels: 2 for images, 0 for vectors.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    trailing: int = 0

    def __post_init__(self) -> None:
        fine = all(0.0 < s < float("inf") for s in self.std) and np.isfinite(self.mean).all()
        if len(self.mean) != len(self.std) or not fine:
            raise TaskError(
                f"a normalization with mean {self.mean} and std {self.std} is not allowed; "
                "give as many finite means as positive deviations."
            )

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The mean and the factor 1 / std, shaped to broadcast over a batch of inputs."""
        shape = () if len(self.mean) == 1 else (-1, *(1,) * self.trailing)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=device)
        factor = 1.0 / torch.tensor(self.std, dtype=torch.float32, device=device)
        return mean.reshape(shape), factor.reshape(shape)

    def check(self, name: str, inputs: Tensor) -> None:
        """Refuse a batch with another number of channels, which broadcasting would let pass."""
        channels = len(self.mean)
        given = inputs.shape[-1 - self.trailing] if inputs.ndim > self.trailing + 1 else None
        if channels > 1 and given != channels:
            raise TaskError(
                f"the network of task {name!r} cannot take {inputs.dtype} inputs of shape "
                f"{tuple(inputs.shape)}: give batches with {channels} channels or features."
            )

    def check_scale(self, name: str, inputs: Tensor, learned: torch.dtype) -> None:
        """Refuse scaled pixels where those learned from were raw, of the type `learned`."""
        reach = max((m + s for m, s in zip(self.mean, self.std, strict=True)), default=0.0)
        check_scale(name, inputs, learned, reach)

    def __call__(self, inputs: Tensor) -> Tensor:
        """What the network sees: float32 images and vectors, int64 tokens."""
        return self.apply(inputs, *self.tensors(inputs.device))

    @staticmethod
    def apply(inputs: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
        """The same with `tensors()` at hand, so that nothing is copied to the device."""
        if mean.numel() == 0:
            return inputs.long() if is_tokens(inputs) else inputs.float()
        return (inputs.float() - mean) * factor
