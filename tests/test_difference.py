"""Tasks as sparse differences: what is trained is what is stored, and nothing is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nets import points
from tinysubnets import networks
from tinysubnets.baselines.separate import SeparateNetworks
from tinysubnets.errors import ArchitectureError, SettingError
from tinysubnets.method.difference import choose_reference
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import MAX_CHAIN, NO_BANK
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.magnitude import MagnitudeModule, MagnitudePruning
from tinysubnets.nn.norms import folded, unfolded
from tinysubnets.tasks.task import Task

TRAINING = {"epochs": 4, "batch_size": 32, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9}


def net() -> nn.Module:
    """A small network with batch normalization."""
    body = nn.Sequential()
    body.append(nn.Linear(12, 24, bias=False)).append(nn.BatchNorm1d(24)).append(nn.ReLU())
    body.append(nn.Linear(24, 24, bias=False)).append(nn.BatchNorm1d(24)).append(nn.ReLU())
    body.add_module("fc", nn.Linear(24, 3))
    return body


def learner(**settings: Any) -> TinySubNets:
    chosen = {"selection": "magnitude", "reference": "previous", "bits": 1, "density": 0.1}
    chosen |= {"first_density": 0.5, "post_pruning": False, "training": TRAINING} | settings
    return TinySubNets(Architecture(net()), **chosen)


def test_tasks_are_differences_and_nothing_is_forgotten(tmp_path: Path) -> None:
    live = learner()
    first = live.learn(points(0))
    logits = live.store.logits("t0", points(0).valid.inputs())
    assert first.bank == 0 and first.density == pytest.approx(0.5, abs=0.03)
    for number in (1, 2):
        report = live.learn(points(number))
        assert report.bank == NO_BANK and report.density == pytest.approx(0.1, abs=0.03)
        assert report.reason == f"a difference to 't{number - 1}'"
        assert live.store.subnet(f"t{number}").reference == number - 1
    assert torch.equal(live.store.logits("t0", points(0).valid.inputs()), logits)
    live.save(tmp_path)
    again = SubnetStore.load(tmp_path, net())
    assert [again.digest(t) for t in again.tasks] == [live.store.digest(t) for t in again.tasks]
    alone = SubnetStore.load(tmp_path, net(), task="t2")
    assert alone.digest("t2") == live.store.digest("t2")


def test_a_difference_is_learned_on_from_a_file_as_it_is_live(tmp_path: Path) -> None:
    live = learner()
    live.learn(points(0))
    live.save(tmp_path)
    resumed = TinySubNets.resume(tmp_path, net())
    for one in (live, resumed):
        one.learn(points(1))
    assert live.store.digest("t1") == resumed.store.digest("t1")


@pytest.mark.slow
def test_a_trainer_goes_on_from_its_state_in_the_middle() -> None:
    trainers = []
    for stop in (None, 1, 3):
        one = learner()
        one.learn(points(0))
        trainer = one.begin(points(1))
        for epoch in range(4):
            trainer.epoch()
            if stop == epoch + 1:
                state = trainer.state()
                one = learner()
                one.learn(points(0))
                trainer = one.begin(points(1))
                trainer.restore_(*state)
        trainer.finish()
        trainers.append(one)
    assert len({one.store.digest("t1") for one in trainers}) == 1


def test_a_task_that_others_refer_to_can_be_removed() -> None:
    one = learner()
    for number in range(3):
        one.learn(points(number))
    before = one.store.digest("t2")
    one.store.remove("t1")
    assert one.store.digest("t2") == before and one.store.tasks == ("t0", "t2")
    one.learn(points(3))
    assert one.store.digest("t2") == before


def test_the_most_similar_task_is_the_reference() -> None:
    one = learner(reference="similar", training=TRAINING | {"epochs": 1})
    one.learn(points(0))
    far = points(1)
    moved = Task.from_arrays(
        "far", far.train.inputs().numpy() + 50, far.train.labels.numpy(), valid=0.3
    )
    one.learn(moved)
    one.learn(replace_name(points(0), "near"))
    assert one.store.subnet("near").reference == 0


def replace_name(task: Task, name: str) -> Task:
    return Task.from_arrays(
        name, task.train.inputs().numpy(), np.asarray(task.train.labels), valid=0.3
    )


@pytest.mark.slow
def test_chains_of_references_stay_short() -> None:
    one = learner(training=TRAINING | {"epochs": 1})
    for number in range(MAX_CHAIN + 4):
        one.learn(points(number))
    lengths = [len(one.store.chain(s)) for s in one.store.subnets.values()]
    assert max(lengths) == MAX_CHAIN + 1 and lengths[:3] == [1, 2, 3]
    decision = choose_reference(one.store, None, one.settings)
    assert decision.nearest == f"t{MAX_CHAIN - 1}"


def test_separate_networks_share_nothing(tmp_path: Path) -> None:
    one = SeparateNetworks(Architecture(net()), density=0.5, bits=2, training=TRAINING)
    for number in range(3):
        one.learn(points(number))
    assert [s.bank for s in one.store.subnets.values()] == [0, 1, 2]
    assert all(s.reference is None for s in one.store.subnets.values())
    for task in one.store.tasks:
        used = one.store.weights(task)
        parts = [len(p[p != 0].unique()) for p in one.architecture.split(used).values()]
        assert max(parts) <= 4
    one.save(tmp_path)
    again = SeparateNetworks.resume(tmp_path, net())
    assert again.store.digest("t1") == one.store.digest("t1")


@pytest.mark.parametrize(("bits", "density"), [(1, 0.3), (1, 1.0), (2, 1.0), (3, 0.5)])
def test_values_are_stored_as_they_were_rounded_in_training(bits: int, density: float) -> None:
    """Codebooks fitted anew to the same values would be others: a quarter off in some layers."""
    live = SeparateNetworks(
        Architecture(net()), bits=bits, density=density, device="cpu", training=TRAINING
    )
    trainer = live.begin(points(0))
    while not trainer.finished:
        trainer.epoch()
    trainer.finish()
    trained = trainer.training.unwrapped.eval_tensors()
    stored = dict(live.store.module("t0").network.named_parameters())
    for name in ("0.weight", "3.weight"):
        values = trained[name]
        assert len(values.unique()) <= 2**bits + (density < 1)
        assert torch.allclose(stored[name], values, rtol=0, atol=float(values.abs().max()) * 2**-10)


def module(density: float, bits: int, reference: torch.Tensor | None = None) -> MagnitudeModule:
    architecture = Architecture(net())
    layout = Layout(architecture.shared)
    generator = torch.Generator().manual_seed(0)
    shapes = architecture.task_param_shapes(3)
    params = {n: torch.ones(s) for n, s in shapes.items()}
    free = torch.randn(layout.num_weights, generator=generator)
    start = InitialState(torch.zeros(0), free, params)
    return MagnitudeModule(
        architecture, layout, start, reference, MagnitudePruning(density, bits=bits)
    )


def test_density_falls_and_values_become_signs() -> None:
    one = module(0.1, 1)
    counts = []
    for share in (0.0, 0.1, 0.2, 0.4, 0.5):
        one.update_codebooks_(share)
        counts.append(int(one.mask().sum()))
    total = one.layout.num_blocks
    assert counts[0] == total and counts == sorted(counts, reverse=True)
    assert counts[-1] == round(0.1 * total)
    assert one.settled
    for part in one.architecture.split(one.final_weights()).values():
        kept = part[part != 0]
        assert len(kept.unique()) <= 2


def test_pruned_values_are_trained_on_and_the_reference_stays() -> None:
    architecture = Architecture(net())
    reference = torch.randn(Layout(architecture.shared).num_weights)
    one = module(0.1, 32, reference)
    one.update_codebooks_(1.0)
    outside = ~one.layout.expand(one.mask())
    assert torch.equal(one.final_weights()[outside], reference[outside])
    gradient = torch.randn(len(reference))
    one.effective().backward(gradient)
    assert one.free.grad is not None and torch.equal(one.free.grad, gradient)
    groups = one.groups()
    assert all(p.ndim == 1 for p in groups["vectors"]) and one.free in groups["free"]


def test_without_density_the_reference_is_all_there_is() -> None:
    one = module(0.0, 1, torch.ones(Layout(Architecture(net()).shared).num_weights))
    one.update_codebooks_(0.0)
    assert not one.mask().any() and torch.equal(one.final_weights(), one.reference)
    assert one.groups()["free"] == [] and one.settled


def test_folded_norms_say_the_same_and_can_be_trained_on() -> None:
    torch.manual_seed(0)
    made = net()
    with torch.no_grad():
        for norm in (m for m in made.modules() if isinstance(m, nn.BatchNorm1d)):
            norm.weight.uniform_(-1, 2), norm.bias.normal_()
            norm.running_mean.normal_(), norm.running_var.uniform_(0.1, 3)
    architecture = Architecture(made)
    tensors = {n: t.detach().clone() for n, t in made.state_dict().items() if t.ndim}
    inputs = torch.randn(400, 12)
    stored = folded(architecture, tensors)
    expected = architecture(tensors, inputs)
    torch.testing.assert_close(architecture(stored, inputs), expected, rtol=1e-4, atol=1e-4)
    assert not stored["1.running_mean"].any()
    assert torch.equal(stored["1.running_var"], torch.full((24,), 1 - 1e-5))
    ready = unfolded(architecture, stored, inputs)
    torch.testing.assert_close(architecture(ready, inputs, "train"), expected, rtol=1e-3, atol=1e-3)


def test_a_stored_norm_costs_two_vectors(tmp_path: Path) -> None:
    one = learner(task_param_bits=16)
    one.learn(points(0))
    subnet = one.store.subnet("t0")
    assert subnet.task_params["1.running_mean"].bits == 0
    ledger = one.ledger()
    four_vectors = 2 * 4 * 24 * 16
    assert ledger.tasks["t0"].task_params < four_vectors


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"selection": "scores", "reference": "previous"}, "reference"),
        ({"layer_loss_weight": 1.0}, "layer_loss_weight"),
        ({"first_density": 0.0}, "first_density"),
        ({"difference_decay": -1.0}, "difference_decay"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingError, match=word):
        learner(**settings)


@pytest.mark.parametrize("reference", ["previous", "similar"])
def test_inputs_of_another_shape_than_the_reference_takes_are_told(reference: str) -> None:
    one = learner(reference=reference)
    one.learn(points(0))
    inputs = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    with pytest.raises(ArchitectureError, match=r"5"):
        one.learn(Task.from_arrays("narrow", inputs, np.arange(40) % 3))
    assert one.tasks == ("t0",)


def test_a_small_residual_network() -> None:
    made = networks.build("small-resnet")
    shared = Architecture(made).num_shared
    assert shared == 267_696
    assert networks.build("small-resnet", depth=8, width=4)(torch.zeros(2, 3, 32, 32)).shape == (
        2,
        10,
    )
    with pytest.raises(SettingError, match="depth"):
        networks.build("small-resnet", depth=21)


def test_post_pruning_takes_away_from_the_difference_alone() -> None:
    one = learner(post_pruning=True, pruning={"iterations": 30, "step": 0.02, "beta": 5.0})
    one.learn(points(0))
    one.learn(points(1))
    plain = learner()
    plain.learn(points(0))
    plain.learn(points(1))
    assert one.store.density("t1") < plain.store.density("t1")
    first, second = one.store.weights("t0"), one.store.weights("t1")
    kept = one.store.layout.expand(one.store.subnet("t1").mask)
    assert torch.equal(first[~kept], second[~kept])
    assert replace(one.store.subnet("t1"), name="x").num_new == int(kept.sum())
