"""Fixed-point numbers, and the accuracy of a small net whose answers they change predictably."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tinysubnets.errors import SettingError
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import PackedMask, Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.paper.fixed_point import Grid, best_grid, fixed_point_accuracy, rounded_tensors
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split


def test_a_grid_rounds_and_saturates() -> None:
    assert Grid(4, 0).limits == (-8, 7)
    assert Grid(4, 0, signed=False).limits == (0, 15)
    assert Grid(4, -2)(torch.tensor([0.3, 5.0, -5.0])).tolist() == [0.25, 1.75, -2.0]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_values_on_a_grid_stay_as_they_are(bits: int) -> None:
    grid = Grid(bits, -3)
    values = torch.arange(grid.limits[0], grid.limits[1] + 1) * 2.0**-3
    assert torch.equal(best_grid(values, bits)(values), values)


def test_the_best_grid_is_no_worse_than_any_neighbor() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 3
    best = best_grid(values, 4)
    error = (best(values) - values).square().sum()
    for shift in range(-3, 4):
        other = Grid(4, best.exponent + shift)
        assert error <= (other(values) - values).square().sum()


def test_only_nonnegative_values_drop_the_sign() -> None:
    assert not best_grid(torch.tensor([0.0, 1.0]), 4).signed
    assert best_grid(torch.tensor([-0.1, 1.0]), 4).signed
    assert best_grid(torch.zeros(3), 4)(torch.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(SettingError, match="2 to 24"):
        best_grid(torch.ones(1), 1)


def sign_store(gain: float = 1.0) -> SubnetStore:
    """A store of one task that answers 1 exactly where the first input is above the second."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    net.add_module("fc", nn.Linear(2, 2, bias=False))
    store = SubnetStore(Architecture(net))
    own = (code(torch.tensor([gain, 0.0, 0.0, gain]), 32),)
    private = {"fc.weight": code(torch.tensor([0.0, 1.0, 1.0, 0.0]), 32)}
    mask = torch.ones(4, dtype=torch.bool)
    shapes = {"fc.weight": (2, 2)}
    packed = PackedMask.of(mask)
    store.add_(Subnet("a", (0, 1), Normalization(), 0, packed, 32, own, private, shapes))
    return store


def test_accuracy_falls_exactly_where_rounding_makes_ties() -> None:
    store = sign_store()
    # Differences of 1/32 vanish on a 4-bit grid over [-1, 1], and survive 8 bits.
    coarse = torch.tensor([[0.75, -0.75], [-0.75, 0.75]]).repeat(4, 1)
    fine = torch.tensor([[0.5 + 1 / 32, 0.5], [0.5, 0.5 + 1 / 32]])
    inputs = torch.cat([coarse, fine])
    labels = (inputs[:, 0] > inputs[:, 1]).long()
    split = Split(inputs, labels)
    calibration = torch.cat([coarse, torch.ones(1, 2)])
    measured = {b: fixed_point_accuracy(store, "a", calibration, split, b) for b in (None, 8, 4)}
    assert measured[None] == measured[8] == 1.0
    assert measured[4] == 0.9  # of the two fine samples, a tie gets one right


def test_weights_are_rounded_and_the_store_is_left_alone() -> None:
    store = sign_store(gain=1.03)
    before = store.digest("a")
    rounded = rounded_tensors(store, "a", 4)
    assert set(rounded["0.weight"].flatten().tolist()) == {0.0, 1.0}
    split = Split(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert fixed_point_accuracy(store, "a", torch.ones(2, 2), split, 4) == 1.0
    assert store.digest("a") == before
    assert not any(m._forward_pre_hooks for m in store.architecture.code("eval").modules())
