"""Architectures: what is shared, what is task-specific, and which networks are refused, and how."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nets import NETWORKS, Encoder, Residual, TiedEmbedding, learner, mlp, stack, task
from tinysubnets.errors import ArchitectureError
from tinysubnets.networks import build
from tinysubnets.nn.architecture import Architecture, TensorSpec
from tinysubnets.nn.init import InitKey, initial_state
from tinysubnets.nn.layout import Layout


def names(specifications: Any) -> list[str]:
    return [s.name for s in specifications]


def tensors_of(architecture: Architecture, classes: int = 3) -> dict[str, Tensor]:
    layout = Layout(architecture.shared)
    start = initial_state(architecture, layout, InitKey(0, 0, 0), classes)
    return architecture.split(start.free) | start.task_params | architecture.constants


def test_the_rule_of_what_is_shared() -> None:
    arch = Architecture(Encoder())
    assert names(arch.shared) == [
        "embed.weight",
        "encoder.layers.0.self_attn.in_proj_weight",
        "encoder.layers.0.self_attn.out_proj.weight",
        "encoder.layers.0.linear1.weight",
        "encoder.layers.0.linear2.weight",
    ]
    assert {"token", "fc.weight", "fc.bias", "encoder.layers.0.norm1.weight"} <= set(
        names(arch.task_params)
    )


def test_batch_norm_statistics_are_task_specific_and_counters_are_dropped() -> None:
    arch = Architecture(Residual())
    assert names(arch.shared) == ["stem.weight", "conv.weight"]
    assert arch.running_stats == (
        "norm1.running_mean",
        "norm1.running_var",
        "norm2.running_mean",
        "norm2.running_var",
    )
    assert set(arch.running_stats) < set(names(arch.task_params))
    assert not arch.constants


def test_shared_can_be_chosen() -> None:
    arch = Architecture(mlp(), shared=lambda name, tensor: name == "2.weight")
    assert names(arch.shared) == ["2.weight"] and "0.weight" in names(arch.task_params)
    with pytest.raises(ArchitectureError, match="no parameter outside the head"):
        Architecture(mlp(), shared=lambda name, tensor: False)


def test_weight_norm_gains_are_task_specific() -> None:
    arch = Architecture(NETWORKS["weight_norm"][0]())
    assert names(arch.shared) == ["0.parametrizations.weight.original1"]


def test_tied_weights_count_once() -> None:
    arch = Architecture(TiedEmbedding())
    assert names(arch.shared) == ["embed.weight"] and arch.aliases == {
        "back.weight": "embed.weight"
    }
    code = arch.code("eval")
    assert code.back.weight is code.embed.weight  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_code_computes_what_the_network_computes(name: str) -> None:
    make, shape = NETWORKS[name]
    net = make().eval()
    arch = Architecture(net)
    x = task(shape=shape).train.inputs()
    tensors = {n: t.detach() for n, t in [*net.named_parameters(), *net.named_buffers()]}
    tensors = {n: t for n, t in tensors.items() if not n.endswith("num_batches_tracked")}
    with torch.no_grad():
        assert torch.equal(arch(tensors, x), net(x))
        assert torch.equal(arch.build(tensors)(x), net(x))


def test_the_user_s_network_is_left_alone() -> None:
    net = Residual()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    learn = learner(net)
    learn.learn(task(shape=(1, 6, 6)))
    assert net.training
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert all(p.device.type == "cpu" and p.requires_grad for p in net.parameters())


def test_the_head_has_exactly_the_task_s_classes() -> None:
    arch = Architecture(mlp(classes=10))
    shapes = arch.task_param_shapes(4)
    assert shapes["fc.weight"] == (4, 10) and shapes["fc.bias"] == (4,)
    assert shapes["0.bias"] == (10,)
    assert arch.build(tensors_of(arch, 4)).fc.out_features == 4  # type: ignore[union-attr]


def test_a_head_of_several_layers() -> None:
    net = stack(nn.Linear(6, 8), nn.ReLU(), head=8)
    net.fc = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    shapes = Architecture(net).task_param_shapes(7)
    assert shapes["fc.0.weight"] == (5, 8) and shapes["fc.2.weight"] == (7, 5)


def test_a_missing_head_lists_the_candidates() -> None:
    with pytest.raises(ArchitectureError, match=r"no head named 'classifier'.*fc, 2, 0"):
        Architecture(mlp(), head="classifier")
    with pytest.raises(ArchitectureError, match="head"):
        Architecture(mlp(), head="")
    with pytest.raises(ArchitectureError, match="no layer with a weight matrix"):
        Architecture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), head="1")


def test_a_head_tied_to_the_body_is_refused() -> None:
    net = stack(nn.Linear(6, 6), head=6, classes=6)
    net.fc.weight = net.get_submodule("0").weight
    with pytest.raises(ArchitectureError, match="tied"):
        Architecture(net)


def test_lazy_networks_are_refused() -> None:
    net = stack(nn.LazyLinear(6), nn.ReLU(), head=6)
    with pytest.raises(ArchitectureError, match="no shape yet"):
        Architecture(net)
    with pytest.raises(ArchitectureError, match="no head"):
        Architecture(net, head="out")


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ArchitectureError, match=r"torch.nn.Module is needed, not dict"):
        Architecture({})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t], lambda t: {"a": (t, t)}])
def test_tensors_outside_parameters_and_buffers_are_refused(wrap: Any) -> None:
    net = mlp()
    net.get_submodule("1").scale = wrap(torch.ones(3))
    with pytest.raises(ArchitectureError, match=r"ReLU 1 keeps a tensor in .scale.*register_buff"):
        Architecture(net)


class Wrapped(nn.Module):
    """A network with some code of its own around its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.fc = nn.Linear(8, 3)
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.layer(x)) * self.scale)


class Checkpointed(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(checkpoint(lambda y: torch.relu(self.layer(y)), x, use_reentrant=False))


class Counting(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        self.scale += 1
        return super().forward(x)


class Features(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Failing(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("cannot do this")


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (Checkpointed, (6,), "activation checkpointing"),
        (Counting, (6,), r"changes the tensors \['scale'\]"),
        (Features, (6,), r"gave \(2, 8\) for 2 inputs; expected \(2, 3\)"),
        (Failing, (6,), r"fails on torch.float32 inputs.*ValueError: cannot do this"),
        (Wrapped, (5,), r"inputs of shape \(2, 5\)"),
        (Wrapped, "tokens", r"fails on torch.int64 inputs"),
    ],
)
def test_networks_that_cannot_learn_are_refused_before_training(
    net: Any, shape: Any, message: str
) -> None:
    learn = learner(net())
    state = torch.random.get_rng_state()
    with pytest.raises(ArchitectureError, match=message):
        learn.begin(task(shape=shape))
    assert learn.store.tasks == () and learn.store.banks == [] and learn.reports == {}
    assert torch.equal(torch.random.get_rng_state(), state)


def test_constant_buffers_are_kept_once_and_used() -> None:
    learn = learner(Wrapped())
    learn.learn(task())
    assert list(learn.architecture.constants) == ["scale"]
    assert "scale" not in learn.store.subnet("a").task_params
    x = task().train.inputs()
    module = learn.store.module("a")
    assert torch.equal(module(x), learn.logits("a", x))
    assert torch.equal(module.network.scale, torch.full((8,), 2.0))  # type: ignore[union-attr]


def test_networks_of_the_package_can_be_wrapped() -> None:
    arch = Architecture(build("small-mlp"))
    assert arch.num_shared == sum(s.numel for s in arch.shared) > 0


def test_layers_that_own_shared_weights() -> None:
    owners = dict(Architecture(Encoder()).layers())
    attention = "encoder.layers.0.self_attn"
    assert owners[attention] == [f"{attention}.in_proj_weight", f"{attention}.out_proj.weight"]
    assert f"{attention}.out_proj" not in owners
    assert owners["embed"] == ["embed.weight"]


def test_balance_makes_small_tensors_denser_at_the_same_total() -> None:
    """Sizes 100 and 10,000: equal shares, shares as their roots (1 to 10), equal counts, full."""
    shared = [TensorSpec("a", (10, 10)), TensorSpec("b", (100, 100))]
    layout = Layout(shared)
    assert layout.keep(0.02) == (2, 200) == layout.keep(0.02, 0.0)
    assert layout.keep(0.02, 0.5) == (18, 184)
    assert layout.keep(0.0099, 1.0) == (50, 50)
    assert layout.keep(0.2, 1.0) == (100, 1920)  # the small one is full, the other takes the rest
    assert layout.keep(1.0, 0.7) == (100, 10_000)


def test_layout_maps_blocks_to_weights_and_back() -> None:
    """Rows of 6 in blocks of 4 and 2; a convolution kernel is one block whatever its size."""
    net = stack(nn.Linear(6, 2, bias=False), head=2)
    layout = Layout(Architecture(net).shared, 4)
    assert layout.num_weights == 12 and layout.num_blocks == 4
    assert layout.block_sizes.tolist() == [4, 2, 4, 2]
    some = torch.rand(20, layout.num_blocks) < 0.5  # short blocks, at the ends of rows, count less
    assert [layout.count(m) for m in some] == (some * layout.block_sizes).sum(1).tolist()
    wide = [1.0] * 4 + [2.0] * 2 + [3.0] * 4 + [4.0] * 2
    assert layout.expand(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == wide
    assert layout.sum(torch.arange(12.0)).tolist() == [6.0, 9.0, 30.0, 21.0]
    assert layout.keep(0.5) == (2,) and layout.keep(1e-9) == (1,)

    net = stack(nn.Conv2d(2, 3, 2, bias=False), nn.Conv2d(3, 2, 1, bias=False), head=2)
    layout = Layout(Architecture(net).shared, 8)
    assert layout.segments == ((0, 24), (24, 30)) and layout.block_segments == ((0, 6), (6, 8))
    assert layout.block_sizes.tolist() == [4] * 6 + [3] * 2
    both = torch.stack([torch.arange(8.0), -torch.arange(8.0)])
    assert torch.equal(layout.sum(layout.expand(both)), both * layout.block_sizes)
    assert layout.expand(both).shape == (2, 30)


def test_no_pass_is_shared_where_changes_in_place_cannot_be_seen() -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Linear(6, 5))
    net.add_module("fc", nn.Sequential(nn.Hardswish(inplace=True), nn.Linear(5, 3)))
    architecture, inputs = Architecture(net, head="fc"), torch.randn(4, 6)
    with torch.no_grad():
        assert architecture.head_input(net.state_dict(), inputs) is None
        plain = Architecture(mlp())
        assert plain.head_input(mlp().state_dict(), inputs) is not None
    with torch.inference_mode():
        assert architecture.head_input(net.state_dict(), inputs) is None
