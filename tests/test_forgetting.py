"""Nothing is forgotten: logits of learned tasks stay equal, bit for bit, whatever comes later."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nets import NETWORKS, data, learner, mlp, stack, task
from quick import mostly_slow
from tinysubnets.errors import CapacityWarning
from tinysubnets.method.learner import TinySubNets

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5},
}


def remembers_all(
    learn: TinySubNets, shape: tuple[int, ...] | str, *, tasks: int = 3, offset: float = 0.0
) -> None:
    """Learn tasks one by one; after each, every earlier one must be what it was."""
    probes: dict[str, torch.Tensor] = {}
    logits: dict[str, torch.Tensor] = {}
    digests: dict[str, str] = {}
    for number in range(tasks):
        name = f"t{number}"
        learn.learn(task(name, shape, seed=number, offset=offset * number))
        for old in probes:
            learn.store.drop_caches_()  # decoded anew from banks and subnets, not remembered
            assert learn.store.digest(old) == digests[old]
            assert torch.equal(learn.logits(old, probes[old]), logits[old])
        probes[name] = torch.from_numpy(data(shape, seed=100 + number)[0])
        logits[name] = learn.logits(name, probes[name])
        digests[name] = learn.store.digest(name)
        assert logits[name].isfinite().all() and logits[name].std() > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network_under_weight_decay(name: str) -> None:
    build, shape = NETWORKS[name]
    remembers_all(learner(build(), training=OPTIMIZERS["adamw"], density=0.5, bits=4), shape)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bits", mostly_slow([4, "auto", 32], ["auto"]))
def test_every_optimizer_with_and_without_quantization(optimizer: str, bits: int | str) -> None:
    settings = {"training": OPTIMIZERS[optimizer], "bits": bits, "density": 0.5}
    remembers_all(learner(mlp(), **settings), (6,))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_batch_norm_under_every_optimizer(optimizer: str) -> None:
    build, shape = NETWORKS["batchnorm_resnet"]
    remembers_all(learner(build(), training=OPTIMIZERS[optimizer], bits="auto"), shape)


@pytest.mark.parametrize("sharing", ["values", "none"])
@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("name", mostly_slow(["mlp", "conv2d", "lstm"], quick=["mlp"]))
def test_both_kinds_of_sharing_blocks_and_banks(
    name: str, banks: int, block: int, sharing: str
) -> None:
    build, shape = NETWORKS[name]
    settings = {"sharing": sharing, "block": block, "max_banks": banks, "density": 0.3, "bits": 4}
    learn = learner(build(), training=OPTIMIZERS["adamw"], **settings)
    remembers_all(learn, shape, offset=5.0)
    assert len(learn.store.banks) == banks


@pytest.mark.parametrize(
    "extra", [{"score_init": "previous_mask"}, {"codebooks": "task"}, {"init": "pretrained"}]
)
def test_other_settings(extra: dict[str, str]) -> None:
    remembers_all(learner(mlp(), training=OPTIMIZERS["adamw"], density=0.4, **extra), (6,))


def test_distillation() -> None:
    remembers_all(learner(mlp(), training=OPTIMIZERS["adamw"], layer_loss_weight=1.0), (6,))


def test_an_owned_value_never_moves() -> None:
    """The check above can fail: owned values are compared one by one over five tasks."""
    learn = learner(mlp(), training=OPTIMIZERS["adamw"], density=0.4, max_banks=1)
    for number in range(5):
        banks = learn.store.banks
        owned = banks[0].owned.clone() if banks else None
        before = banks[0].values[learn.store.layout.expand(owned)].clone() if banks else None
        learn.learn(task(f"t{number}", seed=number))
        bank = learn.store.banks[0]
        if owned is not None:
            assert torch.equal(bank.values[learn.store.layout.expand(owned)], before)
            assert bool(bank.owned[owned].all())
        assert not bank.values[~learn.store.layout.expand(bank.owned)].any()


@st.composite
def networks(draw: Any) -> tuple[nn.Module, tuple[int, ...]]:
    """A random small network with the shape of its samples."""
    width = draw(st.integers(2, 9))
    if draw(st.booleans()):
        norm = draw(st.sampled_from([nn.Identity, nn.BatchNorm1d, nn.LayerNorm]))
        layers: list[nn.Module] = [nn.Linear(6, width), norm(width), nn.ReLU()]
        if draw(st.booleans()):
            layers += [nn.Linear(width, width, bias=draw(st.booleans())), nn.Tanh()]
        return stack(*layers, nn.Dropout(0.1), head=width), (6,)
    kernel, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    layers = [nn.Conv2d(2, 4, kernel, groups=groups), nn.BatchNorm2d(4), nn.ReLU()]
    size = 4 * (6 - kernel) ** 2
    return stack(*layers, nn.Flatten(), head=size), (2, 5, 5)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    drawn=networks(),
    density=st.floats(0.02, 1.0),
    bits=st.sampled_from(["auto", 2, 3, 5, 8, 32]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    block=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 2**32),
)
def test_random_networks_and_settings(
    drawn: tuple[nn.Module, tuple[int, ...]],
    density: float,
    bits: int | str,
    optimizer: str,
    block: int,
    seed: int,
) -> None:
    net, shape = drawn
    chosen = {"density": density, "bits": bits, "block": block, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)  # high densities leave nothing free
        learn = learner(net, training=OPTIMIZERS[optimizer] | {"epochs": 1}, **chosen)
        remembers_all(learn, shape)
