"""Naive: plain training on one task after the other, the lower bound."""

from __future__ import annotations

from typing import ClassVar

from tinysubnets.learners.dense import DenseLearner


class Naive(DenseLearner):
    """A learner that does nothing against forgetting."""

    name: ClassVar[str] = "naive"
