"""A task whose network gives NaN or infinite logits is never kept, by any method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from nets import learner, stack, task
from tinysubnets.errors import TaskError
from tinysubnets.experiments import methods
from tinysubnets.experiments.methods import METHODS
from tinysubnets.nn.architecture import Architecture
from tinysubnets.training.evaluate import EvalResult


class Breaking(nn.Module):
    """In evaluation one logit of every sample has a given value; the trial's two are spared."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer, self.fc, self.value = nn.Linear(6, 8), nn.Linear(8, 3), value
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.fc(torch.relu(self.layer(x)))
        if self.training or len(x) <= 2:
            return logits
        last = torch.full_like(logits[:, 2:], self.value)
        return torch.cat([logits[:, :2], last], 1)


def make(method: str, net: nn.Module) -> Any:
    training = {"epochs": 2, "batch_size": 16, "lr": 0.01}
    return methods.build(
        method,
        Architecture(net),
        settings={},
        training=training,
        pruning={"iterations": 2},
        seed=0,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_task_with_logits_that_are_not_finite_is_not_kept(method: str, value: float) -> None:
    learn = make(method, Breaking(value))
    with pytest.raises(TaskError, match=r"'a' is not kept: 12 of its 12 .* NaN or infinite"):
        learn.learn(task("a"))
    assert learn.tasks == () and learn.reports == {}
    if learn.store is not None:
        assert learn.store.banks == [] and learn.store.subnets == {}
    assert not getattr(learn, "extra_state", {}) and not getattr(learn, "tensors", {})


def test_an_epoch_without_numbers_is_never_the_best() -> None:
    """The first epoch has a higher accuracy, and a loss that is no number."""
    trainer = learner(training={"epochs": 2}).begin(task())
    results = iter([EvalResult(0.9, float("nan")), EvalResult(0.2, 1.0)])
    trainer.training.validate = lambda: next(results)
    first, second = trainer.epoch(), trainer.epoch()
    assert first.is_best and second.is_best and trainer.training.progress.best_epoch == 2


@pytest.mark.parametrize("seed", range(3))
def test_post_pruning_never_empties_a_row_that_weight_norm_divides_by(seed: int) -> None:
    """Greedy for weights and blind to accuracy: without a look at the logits rows would go."""
    net = stack(weight_norm(nn.Linear(24, 6)), nn.ReLU(), head=6)
    pruning = {"iterations": 40, "step": 0.1, "alpha": 1e-6, "beta": 1.0}
    learn = learner(net, pruning=pruning, density=0.5, seed=seed)
    learn.learn(task(shape=(24,), seed=seed))
    rows = learn.store.weights("a").view(6, 24)
    assert (rows != 0).any(1).all()
    assert learn.logits("a", task(shape=(24,)).train.inputs()).isfinite().all()
    assert (rows != 0).sum() < 40  # it did prune


def test_weight_norm_with_too_few_weights_says_why() -> None:
    net = stack(weight_norm(nn.Linear(6, 16)), nn.ReLU(), head=16)
    learn = learner(net, density=0.1)
    with pytest.raises(TaskError, match=r"'0.parametrizations.weight.original1'.*raise density"):
        learn.learn(task())
    assert learn.store.banks == []
