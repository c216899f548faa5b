"""Divergence: about 1 for two samples of one source, far more for different sources."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from statistics import mean

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from tinysubnets.errors import TaskError
from tinysubnets.tasks import divergence as module
from tinysubnets.tasks.divergence import InputStatistics, divergences, summarize

DIGITS = torch.from_numpy(load_digits().images * 15).to(torch.uint8)[:, None]


def digits() -> Tensor:
    return DIGITS[torch.randperm(len(DIGITS))[:50]]


def sizes(stats: InputStatistics) -> tuple[int, ...]:
    return tuple(stats.mean.shape)


SOURCES: dict[str, tuple[Callable[[], Tensor], bool]] = {
    "digits": (digits, False),
    "images": (lambda: torch.randint(0, 256, (50, 3, 20, 20), dtype=torch.uint8), False),
    "vectors": (lambda: torch.randn(50, 100), False),
    "unscaled columns": (lambda: torch.randn(50, 3) * torch.tensor([1, 1e2, 2e4]) + 5e4, False),
    "sparse images": (lambda: (torch.rand(50, 1, 28, 28) < 0.02).float(), False),
    "tokens": (lambda: torch.randint(0, 1000, (50, 40)), True),
}


def divergence(one: InputStatistics, other: InputStatistics) -> float:
    (found,) = divergences(one, [other])
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_two_samples_of_one_source_are_one_apart(name: str) -> None:
    draw, tokens = SOURCES[name]
    pairs = [
        (summarize(draw(), tokens=tokens, seed=2 * i), summarize(draw(), tokens=tokens, seed=i))
        for i in range(15)
    ]
    assert 0.5 < mean(divergence(a, b) for a, b in pairs) < 1.7


def test_unlike_tasks_are_far_apart() -> None:
    one = summarize(digits(), tokens=False)
    shuffled = digits().flatten(1)[:, torch.randperm(64)].reshape(50, 1, 8, 8)
    assert divergence(one, summarize(shuffled, tokens=False)) > 20
    assert divergence(one, summarize(255 - digits(), tokens=False)) > 20
    words = summarize(torch.randint(0, 30, (50, 40)), tokens=True)
    other = summarize(torch.randint(30, 60, (50, 40)), tokens=True)
    assert divergence(words, other) > 20


def test_divergence_is_symmetric_and_zero_to_itself() -> None:
    one, two = (summarize(digits(), tokens=False, seed=s) for s in (1, 2))
    assert divergence(one, two) == divergence(two, one)
    assert divergence(one, one) == 0.0


def test_different_shapes_and_kinds_are_infinitely_far() -> None:
    image = summarize(torch.rand(9, 1, 8, 8), tokens=False)
    color = summarize(torch.rand(9, 3, 8, 8), tokens=False)
    words = summarize(torch.randint(0, 9, (9, 5)), tokens=True)
    assert divergence(image, color) == inf
    assert sizes(image) == sizes(words)
    assert divergence(image, words) == inf


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 32, 32), 192),
        ((1, 28, 5), 40),
        ((2, 20, 9, 8), 1024),
        ((1, 30), 8),
        ((300,), 64),
        ((7,), 7),
        ((), 1),
    ],
)
def test_inputs_are_pooled_to_few_numbers(shape: tuple[int, ...], size: int) -> None:
    assert sizes(summarize(torch.rand(6, *shape), tokens=False)) == (size,)


def test_pooling_averages_cells_of_bytes() -> None:
    samples = torch.zeros(6, 1, 16, 16, dtype=torch.uint8)
    samples[:, 0, :2, :2] = torch.tensor([[255, 0], [0, 255]])
    stats = summarize(samples, tokens=False)
    expected = torch.tensor(2 * (1.5**0.5 - 1)).half().float()
    assert torch.equal(stats.mean[:2], torch.stack([expected, torch.tensor(0.0)]))
    assert stats.variance is not None and torch.equal(stats.variance, torch.zeros(64))


def test_numbers_are_float16_and_finite() -> None:
    for samples in (digits(), torch.randn(50, 9) * 1e5, torch.randn(50, 9) * 1e30):
        stats = summarize(samples, tokens=False)
        assert stats.variance is not None
        for part in (stats.mean, stats.variance):
            assert part.dtype == torch.float32
            assert torch.equal(part, part.half().float())
            assert part.isfinite().all()
        assert 0 < stats.floor < inf
        assert stats.count == 50
    words = summarize(torch.randint(0, 9, (50, 400)), tokens=True)
    assert words.variance is None
    assert torch.equal(words.mean, words.mean.half().float())
    assert float(words.mean.min()) > 0
    assert abs(float(words.mean.sum()) - 1) < 1e-2


def test_the_same_path_gives_the_same_halves() -> None:
    samples = digits()
    floors = [summarize(samples, tokens=False, seed=s).floor for s in (3, 3, 4, (3,), (3, "x"))]
    assert floors[0] == floors[1] == floors[3]
    assert len(set(floors)) == 3


def test_constant_inputs_are_compared_without_dividing_by_zero() -> None:
    zeros, ones = (summarize(torch.full((9, 4), x), tokens=False) for x in (0.0, 1.0))
    assert divergence(zeros, zeros) == 0.0
    assert 1e3 < divergence(zeros, ones) < inf


def test_formulas_against_hand_made_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VARIANCE_FLOOR", 0.0)
    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    a, b = (InputStatistics("histogram", x, None, 1.0, 9) for x in (p, q))
    assert divergence(a, b) == pytest.approx((0.25 * log(1.5) - 0.25 * log(0.5)) / 4)
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    c, d = (
        InputStatistics("gaussian", one, one, 1.0, 9),
        InputStatistics("gaussian", two, two, 3.0, 9),
    )
    # KL one way plus the other: (1 + 1) / (2 * 2) + (2 + 1) / 2 - 1; half of that, over floor 2
    assert divergence(c, d) == pytest.approx((0.5 + 1.5 - 1) / 2 / 2)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(TaskError, match="by 1 samples"):
        summarize(torch.rand(1, 4), tokens=False)
    assert summarize(torch.rand(2, 4), tokens=False).floor > 0
