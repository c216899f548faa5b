"""Capturing CUDA graphs: nothing may disturb it. Without a GPU they are stand-ins."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from nets import learner, task
from tinysubnets.training.cuda_graphs import CapturedFunction, capturing
from tinysubnets.training.loop import Training

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs that capture nothing."""

    @contextmanager
    def graph(_: object, pool: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)


def test_the_garbage_collector_rests_while_a_graph_is_captured(stand_in: None) -> None:
    assert gc.isenabled()
    with capturing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), capturing():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_resting_garbage_collector_stays_at_rest(stand_in: None) -> None:
    gc.disable()
    try:
        with capturing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


class Graph:
    """A graph that captures nothing and has memory of its own."""

    replays = 0

    def pool(self) -> int:
        return id(self)

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Whose memory each capture asked for."""
    asked: list[int | None] = []

    @contextmanager
    def graph(_: object, pool: int | None) -> Iterator[None]:
        asked.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return asked


def test_a_function_runs_once_before_it_is_captured_and_is_replayed_ever_after(
    pools: list[int | None],
) -> None:
    calls: list[int] = []

    def count() -> torch.Tensor:
        calls.append(len(pools))  # 0 before the capture, 1 within
        return torch.tensor(len(calls))

    captured = CapturedFunction(count)
    assert calls == [0, 1]
    assert captured() is captured() is captured.result and captured.result == 2
    assert captured.graph.replays == 2 and len(calls) == 2  # type: ignore[attr-defined]


def test_evaluations_of_a_training_share_memory(
    pools: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = learner(device="cpu").begin(task()).training
    plain = training.captured(training.validation_counts)
    assert plain == training.validation_counts and not pools  # on a CPU nothing is captured
    monkeypatch.setattr(Training, "can_capture", True)
    first = training.captured(training.validation_counts)
    assert isinstance(first, CapturedFunction)
    training.restore_best_()
    second = training.captured(training.validation_counts)
    assert pools == [None, id(first.graph)]
    assert torch.equal(second(), training.validation_counts())


@needs_cuda
def test_dead_graphs_do_not_spoil_a_capture() -> None:
    source = torch.ones(3, device="cuda")
    dead = [CapturedFunction(lambda: source + 1)]
    dead.append(dead)  # type: ignore[arg-type]  # a cycle, which only the collector frees
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        del dead
        double = CapturedFunction(lambda: torch.stack([source * 2 for _ in range(100)]).sum(0))
    finally:
        gc.set_threshold(*thresholds)
    source.fill_(3.0)
    assert double().tolist() == [600.0] * 3


@needs_cuda
def test_captured_functions_share_memory_and_keep_their_results() -> None:
    source = torch.ones(1 << 20, device="cuda")

    def total() -> torch.Tensor:
        return (source + 1).square().sum()

    one = CapturedFunction(lambda: torch.stack([source * i for i in range(8)]).sum(0))
    allocations, captured = [], [CapturedFunction(total)]
    for like in (None, one):
        before = torch.cuda.memory_stats()["num_device_alloc"]
        captured.append(CapturedFunction(total, like))
        allocations.append(torch.cuda.memory_stats()["num_device_alloc"] - before)
    assert allocations[1] < allocations[0]
    for value in (1.0, 2.0):
        source.fill_(value)
        first, second = one(), captured[-1]()
        assert first.unique().tolist() == [28 * value]
        assert second == (value + 1) ** 2 * len(source)
        assert one().unique().tolist() == [28 * value]
