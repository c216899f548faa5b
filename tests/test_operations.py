"""Multiply-adds against layers counted by hand, and both conventions for bit operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tinysubnets import networks
from tinysubnets.errors import SettingError
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import NO_BANK, PackedMask, Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.paper.operations import count, paper_operations, task_operations
from tinysubnets.tasks.normalization import Normalization


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
        (nn.Linear(7, 5), (1, 7), 35),
        (nn.Linear(7, 5, bias=False), (1, 3, 7), 105),
        # 4 output positions x 6 filters x 2 channels x 3 taps
        (nn.Conv1d(2, 6, 3), (1, 2, 6), 4 * 6 * 2 * 3),
        # 8x8 with padding 1 and stride 2 gives 4x4 positions
        (nn.Conv2d(3, 5, 3, stride=2, padding=1), (1, 3, 8, 8), 16 * 5 * 3 * 9),
        # two groups: each filter sees half of the four channels
        (nn.Conv2d(4, 6, 3, groups=2), (1, 4, 5, 5), 9 * 6 * 2 * 9),
        (nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3), 8 * 2 * 8),
        # every input position is spread over all taps and filters
        (nn.ConvTranspose2d(3, 4, 2, stride=2), (1, 3, 5, 5), 25 * 3 * 4 * 4),
        (nn.BatchNorm2d(3), (1, 3, 4, 4), 0),
    ],
)
def test_layers_counted_by_hand(layer: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    assert count(layer.eval(), torch.zeros(shape)).macs == macs


def test_counts_are_per_sample() -> None:
    assert count(nn.Linear(4, 3), torch.zeros(6, 4)).macs == 12


def test_embedding_multiplies_nothing() -> None:
    assert count(nn.Embedding(10, 4), torch.zeros(1, 3, dtype=torch.long)).macs == 0


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_multiply_every_gate_at_every_step(
    kind: type[nn.Module], gates: int
) -> None:
    layer = kind(3, 5, num_layers=2, batch_first=True, bidirectional=True)
    first, second = gates * 5 * (3 + 5), gates * 5 * (10 + 5)
    operations = count(layer, torch.zeros(1, 7, 3))
    assert operations.macs == 7 * 2 * (first + second)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_counts_projections_and_both_products(batch_first: bool) -> None:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x)[0]

    sequence = torch.zeros((1, 5, 8) if batch_first else (5, 1, 8))
    operations = count(Attend().eval(), sequence)
    # `count` divides by the first dimension, which is time where the batch comes second.
    samples = 1 if batch_first else 5
    assert operations.macs * samples == 4 * 5 * 64 + 2 * 5 * 5 * 8


def test_transformer_layers_are_seen_through_in_evaluation() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    assert count(layer, torch.zeros(1, 5, 8)).macs == 4 * 5 * 64 + 2 * 5 * 5 * 8 + 2 * 5 * 8 * 16


def test_the_paper_networks_by_hand() -> None:
    mlp = networks.build("mlp").eval()
    assert count(mlp, torch.zeros(1, 784)).macs == 784 * 100 + 100 * 100 + 100 * 10


@pytest.mark.parametrize("name", networks.names())
def test_the_package_s_networks_cost_what_torch_s_own_counter_says(name: str) -> None:
    shapes = {"mlp": (784,), "small-mlp": (64,), "small-cnn": (1, 8, 8), "tinynet": (3, 64, 64)}
    inputs, net = torch.zeros(2, *shapes.get(name, (3, 32, 32))), networks.build(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(inputs)
    assert count(net, inputs).macs == counter.get_total_flops() // 2 // len(inputs)


def test_layers_of_unknown_kind_are_named() -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.matrix

    net = nn.Sequential(nn.Linear(3, 3), Strange())
    operations = count(net, torch.zeros(1, 3))
    assert operations.macs == 9
    assert operations.uncounted == ("1",)


def half_store() -> SubnetStore:
    """A store whose one task keeps 3 of 12 and 6 of 9 weights, and has a head of two classes."""
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    net.add_module("fc", nn.Linear(3, 2))
    architecture = Architecture(net)
    store = SubnetStore(architecture)
    mask = torch.zeros(21, dtype=torch.bool)
    mask[:3] = True
    mask[12:18] = True
    shapes = architecture.task_param_shapes(2)
    private = {n: code(torch.ones(torch.Size(s)).flatten(), 32) for n, s in shapes.items()}
    own = (code(torch.ones(3), 32), code(torch.ones(6), 32))
    packed = PackedMask.of(mask)
    store.add_(Subnet("a", (0, 1), Normalization(), 0, packed, 32, own, private, shapes))
    return store


def test_a_task_costs_what_its_mask_keeps() -> None:
    operations = task_operations(half_store(), "a", torch.zeros(2, 4))
    assert [p.macs for p in operations.products] == [12, 9, 6]
    assert [p.effective_macs for p in operations.products] == [3, 6, 6]
    assert operations.bit_operations(8) == 15 * 64
    assert operations.bit_operations(4, dense=True) == 27 * 16


def test_a_difference_costs_what_it_is_added_to_as_well() -> None:
    store = half_store()
    first = store.subnet("a")
    mask = torch.zeros(21, dtype=torch.bool)
    mask[2:5] = True  # one of them is kept by the first task too
    store.add_(
        replace(
            first,
            name="b",
            number=1,
            bank=NO_BANK,
            packed_mask=PackedMask.of(mask),
            own=(code(torch.ones(3), 32), code(torch.ones(0), 32)),
            reference=first.number,
        )
    )
    products = task_operations(store, "b", torch.zeros(1, 4)).products
    assert [p.effective_macs for p in products] == [5, 6, 6]


def test_the_hooks_are_gone_afterwards() -> None:
    store = half_store()
    task_operations(store, "a", torch.zeros(1, 4))
    assert not any(m._forward_hooks for m in store.architecture.code("eval").modules())


def test_the_convention_of_the_paper() -> None:
    four, eight, sixteen = (paper_operations(1000, b) for b in (4, 8, 16))
    assert (eight / four, sixteen / four) == (4, 16)
    assert paper_operations(1000, None) == 9 * eight
    assert paper_operations(1000, 8, 0.412) == pytest.approx(eight * 0.588)
    with pytest.raises(SettingError, match="4, 8, 16"):
        paper_operations(1, 5)
