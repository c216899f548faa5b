"""Permuted scenarios: one data set, its pixels in another order for each task."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets import seeds
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.scenarios.sets import load_set, make_task
from tinysubnets.scenarios.settings import PermutedSettings
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.rearranged import RearrangedInputs
from tinysubnets.tasks.task import Task


class Permuted:
    """Tasks of the same images and classes, the pixels of each in an order of its own."""

    def __init__(
        self,
        settings: PermutedSettings,
        *,
        seed: int = 0,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        with_test: bool = True,
    ) -> None:
        self.settings, self.seed, self.root, self.cache = settings, seed, root, cache
        self.with_test = with_test
        self._known: dict[str, Normalization] = {}
        self._tests: dict[int, np.ndarray] = {}  # test images of tasks, permuted
        self._copies: dict[torch.device, Tensor] = {}  # of the training images

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(f"permutation-{i}" for i in range(self.settings.num_tasks))

    @cached_property
    def _sets(self) -> tuple[DecodedSet, DecodedSet | None]:
        name = self.settings.dataset
        train = load_set(name, "train", self.root, self.cache)
        return train, load_set(name, "test", self.root, self.cache) if self.with_test else None

    def permutation(self, index: int) -> np.ndarray:
        """Where each pixel of a task's images comes from; the same in all channels."""
        _, _, height, width = self._sets[0].inputs.shape
        if self._is_upright(index):
            return np.arange(height * width)
        draws = seeds.uniform(height * width, self.seed, "permutation", index)
        return np.argsort(draws, kind="stable")

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        train = self._sets[0]
        if not self._is_upright(index):
            inputs: Any = RearrangedInputs(train.inputs, self.permutation(index), self._copies)
            # A picture has to be permuted as well, which no preprocessing says.
            train = replace(train, inputs=inputs, preprocessing=None)
        numbers = range(len(train.classes))
        return make_task(
            self.names[index],
            train,
            self._test(index),
            numbers,
            self.settings,
            self.seed,
            self._known,
        )

    def _is_upright(self, index: int) -> bool:
        return index == 0 and not self.settings.permute_first

    def _test(self, index: int) -> DecodedSet | None:
        """The test data of a task, which are measured again and again."""
        test = self._sets[1]
        if test is None or self._is_upright(index):
            return test
        if index not in self._tests:
            whole = RearrangedInputs(test.inputs, self.permutation(index), {})
            self._tests[index] = whole[:]
        return replace(test, inputs=self._tests[index], preprocessing=None)
