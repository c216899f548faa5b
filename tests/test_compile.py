"""The compiled step: one graph for all tasks of equal class counts, and the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from nets import learner, mlp, task
from tinysubnets.training import loop as training
from tinysubnets.training.loop import loss_of

# The compiler itself instantiates autograd functions, which torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """A compiler that counts graphs and runs them as they are."""
    torch._dynamo.reset()
    counting = CompileCounter()
    compiled = torch.compile(loss_of, backend=counting, dynamic=False)
    monkeypatch.setattr(training, "compiled_loss", lambda: compiled)
    return counting


def settings(engine: str) -> dict[str, Any]:
    return {"epochs": 2, "batch_size": 16, "engine": engine}


@pytest.mark.slow
def test_one_graph_serves_all_tasks_of_equal_class_counts(counter: CompileCounter) -> None:
    teacher = learner(mlp(), training=settings("compiled"))
    teacher.learn(task("a"))
    graphs = counter.frame_count
    assert graphs > 0
    for name in "bcdefghijk":  # more tasks than a compiler forgives recompilations
        teacher.learn(task(name))
    assert counter.frame_count == graphs


@pytest.mark.slow
def test_the_compiled_step_learns_what_the_plain_one_learns(counter: CompileCounter) -> None:
    stores = []
    for engine in ("eager", "compiled"):
        teacher = learner(mlp(), training=settings(engine))
        for name in "ab":
            teacher.learn(task(name))
        stores.append(teacher.store)
    assert counter.frame_count > 0
    for name in "ab":
        one, two = (store.weights(name) for store in stores)
        torch.testing.assert_close(one, two)
