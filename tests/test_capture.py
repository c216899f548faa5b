"""Recording graphs: nothing may disturb it. Without a GPU the recorder is a stand-in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tinysubnets.capture import Recorded, recording

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs that record nothing."""

    @contextmanager
    def graph(_: object, pool: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)


def test_the_garbage_collector_rests_while_a_graph_is_recorded(stand_in: None) -> None:
    assert gc.isenabled()
    with recording():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), recording():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_resting_garbage_collector_stays_at_rest(stand_in: None) -> None:
    gc.disable()
    try:
        with recording():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@needs_cuda
def test_dead_graphs_do_not_spoil_a_recording() -> None:
    source = torch.ones(3, device="cuda")
    dead = [Recorded(lambda: source + 1)]
    dead.append(dead)  # type: ignore[arg-type]  # a cycle, which only the collector frees
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        del dead
        double = Recorded(lambda: torch.stack([source * 2 for _ in range(100)]).sum(0))
    finally:
        gc.set_threshold(*thresholds)
    source.fill_(3.0)
    assert double().tolist() == [600.0] * 3


@needs_cuda
def test_recordings_share_memory_and_keep_their_results() -> None:
    source = torch.ones(1 << 20, device="cuda")

    def total() -> torch.Tensor:
        return (source + 1).square().sum()

    one = Recorded(lambda: torch.stack([source * i for i in range(8)]).sum(0))
    allocations, recordings = [], [Recorded(total)]
    for like in (None, one):
        before = torch.cuda.memory_stats()["num_device_alloc"]
        recordings.append(Recorded(total, like))
        allocations.append(torch.cuda.memory_stats()["num_device_alloc"] - before)
    assert allocations[1] < allocations[0]
    for value in (1.0, 2.0):
        source.fill_(value)
        first, second = one(), recordings[-1]()
        assert first.unique().tolist() == [28 * value]
        assert second == (value + 1) ** 2 * len(source)
        assert one().unique().tolist() == [28 * value]
