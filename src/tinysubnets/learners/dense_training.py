"""Training of dense networks: the shared training with validation over the right classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tinysubnets.dense_module import DenseModule
from tinysubnets.task import Task
from tinysubnets.training import Training
from tinysubnets.training_settings import TrainingSettings
from tinysubnets.validation import CALIBRATION_SAMPLES, calibrated, count


class DenseTraining(Training):
    """One dense network in training on a task whose labels are columns of the output."""

    def __init__(
        self,
        module: DenseModule,
        task: Task,
        settings: TrainingSettings,
        *,
        seed: int,
        number: int,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(module, task, settings, seed=seed, number=number, device=device)
        self.network = module

    def measure(self) -> Tensor:
        """Right answers and sum of losses, with statistics of the network as it stands."""
        tensors = self.settled(self.network.measured_tensors(), CALIBRATION_SAMPLES)
        answer = self.network.outputs.restrict
        return count(self.network.architecture, tensors, self.valid, answer=answer)

    def settled(self, tensors: Mapping[str, Tensor], limit: int | None = None) -> dict[str, Tensor]:
        """The tensors with the normalisation statistics of what this training shows the network."""
        if self.network.mode != "train":
            return dict(tensors)
        return calibrated(self.network.architecture, tensors, self, limit)  # type: ignore[arg-type]

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in the same mixture as in training, in a fixed order."""
        return self.train.chunks(batch_size, limit)

    def backward_(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Put the gradients of a batch's loss in place; gives the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        bfloat16 = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            loss = self.network.loss(inputs, labels, self.class_weights)
        loss.backward()
        return loss.detach()
