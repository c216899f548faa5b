"""Dense methods that know the task can keep the norms of each task as they were learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nets import TRAINING, Residual, data, task
from tinysubnets.errors import SettingError
from tinysubnets.experiments import methods
from tinysubnets.method.base import Learner
from tinysubnets.nn.architecture import Architecture

SHAPE = (1, 6, 6)


def learned(method: str, **settings: object) -> tuple[Learner, list[dict[str, torch.Tensor]]]:
    """A learner of two tasks, and the network of the first one before and after the second."""
    learn = methods.build(
        method, Architecture(Residual()), settings=settings, training=TRAINING, device="cpu"
    )
    learn.learn(task("a", SHAPE))
    before = {n: t.clone() for n, t in learn.network("a").items()}
    learn.learn(task("b", SHAPE, seed=1))
    return learn, [before, learn.network("a"), learn.network("b")]


@pytest.mark.parametrize("method", ["naive", "replay", "ewc", "si"])
def test_norms_of_a_task_stay_and_everything_else_is_shared(method: str) -> None:
    learn, (before, after, other) = learned(method, norms="per_task")
    norms = learn.norm_names()
    assert any(n.endswith("running_mean") for n in norms)
    for name in norms:
        assert torch.equal(before[name], after[name]), name
    assert any(not torch.equal(other[n], after[n]) for n in norms)
    rest = [n for n in other if n not in norms and not n.startswith("fc.")]
    assert rest and all(torch.equal(other[n], after[n]) for n in rest)
    _, (_, shared, newest) = learned(method)
    assert all(torch.equal(shared[n], newest[n]) for n in norms)


def test_norms_are_saved_counted_and_gone_on_with(tmp_path: Path) -> None:
    learn, _ = learned("replay", norms="per_task")
    plain, _ = learned("replay")
    more = sum(32 * t.numel() for n, t in learn.network("a").items() if n in learn.norm_names())
    sizes = [one.ledger().total for one in (learn, plain)]
    assert sizes[0].task_params - sizes[1].task_params == 2 * more
    assert sizes[0].memory == sizes[1].memory
    learn.save(tmp_path / "model")
    again = methods.resume(tmp_path / "model", Residual(), device="cpu")
    x = torch.from_numpy(data(SHAPE, samples=5)[0])
    for name in ("a", "b"):
        assert torch.equal(again.logits(name, x), learn.logits(name, x))


def test_norms_per_task_need_the_task() -> None:
    for method, settings in (
        ("cumulative", {}),
        ("independent", {}),
        ("gdumb", {}),
        ("naive", {"scenario_type": "class-IL"}),
    ):
        with pytest.raises(SettingError, match="per_task"):
            given = settings | {"norms": "per_task"}
            methods.build(method, Architecture(Residual()), settings=given, device="cpu")
