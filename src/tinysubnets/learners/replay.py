"""Replay: every batch of a task is joined by one from a small balanced memory of earlier tasks.

A. Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tinysubnets.learners.rehearsal import RehearsalLearner, RehearsalTraining


class ReplayTraining(RehearsalTraining):
    """Training on batches of which one half is new and one half remembered."""

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step on the joined batch; gives the loss without waiting for it."""
        if self.past is not None:
            old_inputs, old_labels = self.drawn(len(labels))
            inputs, labels = torch.cat([inputs, old_inputs]), torch.cat([labels, old_labels])
        return super().step(inputs, labels)


class Replay(RehearsalLearner):
    """A learner that rehearses earlier tasks beside the new one."""

    name: ClassVar[str] = "replay"
    training_class: ClassVar[type[RehearsalTraining]] = ReplayTraining
