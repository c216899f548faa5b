"""Biases before a norm go into its shift where that changes no answer, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nets import learner, stack, task
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.norms import folded, with_folded_biases


class Twice(nn.Module):
    """The convolution's output goes around the norm as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return self.fc((self.norm(out) + out).flatten(1))


class Branching(nn.Module):
    """What it does depends on values, so that no trace of it could tell."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x))
        return self.fc((out if out.sum() > 0 else out.relu()).flatten(1))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return stack(*layers, nn.Linear(64, 8), nn.BatchNorm1d(8), head=8)


def crosswise() -> nn.Module:
    """The norm's channels are the rows of its inputs, as many as the layer before has outputs."""
    return stack(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Flatten(), head=36)


def tensors_of(net: nn.Module) -> tuple[Architecture, dict[str, Tensor]]:
    """A network's tensors, drawn at random where they would be trivial."""
    torch.manual_seed(0)
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.copy_(torch.rand_like(tensor) + (0.5 if name.endswith("var") else 0.0))
    architecture = Architecture(net)
    return architecture, folded(architecture, net.state_dict())


@pytest.mark.parametrize(
    ("make", "names"), [(convolutions, ["0.bias", "4.bias"]), (Branching, ["conv.bias"])]
)
def test_biases_go_into_the_shift_of_the_norm_behind_them(make, names) -> None:
    architecture, tensors = tensors_of(make())
    inputs = torch.randn(5, 1, 6, 6)
    out = with_folded_biases(architecture, tensors, inputs)
    assert all(tensors[n].any() and not out[n].any() for n in names)
    assert torch.equal(out["fc.bias"], tensors["fc.bias"])
    torch.testing.assert_close(architecture(out, inputs), architecture(tensors, inputs))


@pytest.mark.parametrize(("make", "shape"), [(Twice, (1, 6, 6)), (crosswise, (6, 6))])
def test_biases_stay_where_others_see_them(make, shape) -> None:
    architecture, tensors = tensors_of(make())
    out = with_folded_biases(architecture, tensors, torch.randn(5, *shape))
    assert all(torch.equal(out[n], t) for n, t in tensors.items())


def test_what_was_changed_in_place_is_no_output_of_a_layer_and_others_still_are() -> None:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4)]
    layers += [nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.Flatten()]
    architecture, tensors = tensors_of(stack(*layers, head=12))
    out = with_folded_biases(architecture, tensors, torch.randn(5, 1, 6, 6))
    assert torch.equal(out["0.bias"], tensors["0.bias"]) and not out["3.bias"].any()


def test_a_stored_task_has_no_bias_before_a_norm() -> None:
    learn = learner(convolutions(), density=0.5, bits=4, task_param_bits="auto")
    learn.learn(task("a", shape=(1, 6, 6)))
    stored = learn.store.tensors("a")
    assert not stored["0.bias"].any() and not stored["4.bias"].any()
    assert learn.store.subnet("a").task_params["0.bias"].bits == 0  # nothing in the file
