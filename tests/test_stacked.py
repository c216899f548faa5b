"""Runs trained together end where each would have ended alone, but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tinysubnets.architecture import Architecture
from tinysubnets.errors import SettingError
from tinysubnets.learners.lesson import Lesson
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.stacked import StackedTraining
from tinysubnets.task import Task


def make_lesson(seed: int, **training: object) -> Lesson:
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
    net.add_module("fc", nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 256, (90, 12), dtype=torch.uint8, generator=generator)
    labels = torch.arange(90) % 3  # equally many of each class, whatever the seed
    inputs[torch.arange(90), labels] = 255
    settings = {"epochs": 4, "batch_size": 16, "learning_rate": 1e-2} | training
    learner = TinySubNets(
        Architecture(net),
        density=0.5,
        bits=3,
        max_banks=1,
        memory=None,
        seed=seed,
        training=settings,
    )
    learner.learn(Task.from_arrays("first", inputs.flip(1), labels))
    return learner.begin(Task.from_arrays("second", inputs, labels, seed=seed))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_run_equals_its_own_single_run(optimizer: str) -> None:
    alone = [make_lesson(seed, optimizer=optimizer) for seed in range(3)]
    alone_reports = [[lesson.epoch() for _ in range(4)] for lesson in alone]
    lessons = [make_lesson(seed, optimizer=optimizer) for seed in range(3)]
    together = StackedTraining([lesson.training for lesson in lessons])
    reports = []
    while not together.finished:
        reports.append(together.epoch())
    for run in range(3):
        mine = torch.tensor([epoch[run].valid_loss for epoch in reports])
        expected = torch.tensor([r.valid_loss for r in alone_reports[run]])
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(
            lessons[run].module.free, alone[run].module.free, rtol=1e-3, atol=1e-3
        )
        assert lessons[run].training.progress.best_epoch == alone[run].training.progress.best_epoch


def test_each_run_finishes_by_itself_and_forgets_nothing() -> None:
    lessons = [make_lesson(seed) for seed in range(2)]
    before = [lesson.learner.store.digest("first") for lesson in lessons]
    together = StackedTraining([lesson.training for lesson in lessons])
    while not together.finished:
        together.epoch()
    for lesson, digest in zip(lessons, before, strict=True):
        lesson.finish()
        assert lesson.learner.store.tasks == ("first", "second")
        assert lesson.learner.store.digest("first") == digest


def test_runs_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(SettingError, match="equal settings"):
        StackedTraining([make_lesson(0).training, make_lesson(1, batch_size=8).training])
    with pytest.raises(SettingError, match="plateau"):
        StackedTraining([make_lesson(s, schedule="plateau").training for s in range(2)])
