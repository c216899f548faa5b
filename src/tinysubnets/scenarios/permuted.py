"""Permuted scenarios: one data set, its pixels in another order for each task."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.scenarios.sets import Sets
from tinysubnets.scenarios.settings import PermutedSettings
from tinysubnets.tasks.rearranged import RearrangedInputs
from tinysubnets.tasks.task import Task


class Permuted:
    """Tasks of the same images and classes, the pixels of each in an order of its own."""

    def __init__(self, settings: PermutedSettings, sets: Sets) -> None:
        self.settings, self.sets = settings, sets
        self._tests: dict[int, np.ndarray] = {}  # test images of tasks, permuted
        self._copies: dict[torch.device, Tensor] = {}  # of the training images

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(f"permutation-{i}" for i in range(self.settings.num_tasks))

    @cached_property
    def _parts(self) -> tuple[DecodedSet, DecodedSet | None]:
        return self.sets.both(self.settings.dataset)

    def permutation(self, index: int) -> np.ndarray:
        """Where each pixel of a task's images comes from; the same in all channels."""
        _, _, height, width = self._parts[0].inputs.shape
        if self._is_upright(index):
            return np.arange(height * width)
        draws = seeds.uniform(height * width, self.sets.seed, "permutation", index)
        return np.argsort(draws, kind="stable")

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        train = self._parts[0]
        if not self._is_upright(index):
            inputs: Any = RearrangedInputs(train.inputs, self.permutation(index), self._copies)
            # A picture has to be permuted as well, which no preprocessing says.
            train = replace(train, inputs=inputs, preprocessing=None)
        numbers = range(len(train.classes))
        return self.sets.task(self.names[index], train, self._test(index), numbers)

    def _is_upright(self, index: int) -> bool:
        return index == 0 and not self.settings.permute_first

    def _test(self, index: int) -> DecodedSet | None:
        """The test data of a task, which are measured again and again."""
        test = self._parts[1]
        if test is None or self._is_upright(index):
            return test
        if index not in self._tests:
            whole = RearrangedInputs(test.inputs, self.permutation(index), {})
            self._tests[index] = whole[:]
        return replace(test, inputs=self._tests[index], preprocessing=None)
