"""The paper by its letter: scores that go on, quantization in place, both layer-wise losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from nets import TRAINING, learner, mlp, stack, task
from run_helpers import numbers, small_options
from test_task_module import batch, make
from tinysubnets import scenarios
from tinysubnets.errors import SettingError
from tinysubnets.experiments import methods, recipe
from tinysubnets.experiments.recipe import Plan, build_architecture
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.masked import TaskModule
from tinysubnets.tasks.task import Task

FIRST, SECOND = task("a"), task("b", seed=1)


def best_of(learn: TinySubNets, given: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Learn a task; the scores and free values of its best epoch."""
    trainer = learn.begin(given)
    while not trainer.finished:
        trainer.epoch()
    trainer.finish()
    return trainer.module.scores.detach().clone(), trainer.module.free.detach().clone()


def test_scores_and_free_values_go_on_from_the_best_epoch() -> None:
    learn = learner(score_init="continue", max_banks=1, memory=None, training={"epochs": 5})
    scores, free = best_of(learn, FIRST)
    trainer = learn.begin(SECOND)
    assert torch.equal(trainer.module.scores, scores)
    assert torch.equal(trainer.module.free, free)
    assert not trainer.training.optimizer.state  # a fresh optimizer
    fresh = learner(max_banks=1, memory=None, training={"epochs": 5})
    fresh.learn(FIRST)
    start = fresh.begin(SECOND).module
    assert not torch.equal(start.scores, scores) and not torch.equal(start.free, free)
    # The head is a new one all the same.
    heads = [dict(zip(m.names, m.task_params, strict=True)) for m in (trainer.module, start)]
    assert torch.equal(heads[0]["fc.weight"], heads[1]["fc.weight"])


def test_every_bank_goes_on_by_itself() -> None:
    learn = learner(score_init="continue", max_banks=2, threshold=4.0)
    first = best_of(learn, FIRST)
    far = best_of(learn, task("far", seed=1, offset=30.0))
    assert learn.store.subnet("far").bank == 1
    near, again = learn.begin(task("c", seed=2)), learn.begin(task("d", seed=3, offset=30.0))
    assert near.decision.bank == 0 and torch.equal(near.module.scores, first[0])
    assert again.decision.bank == 1 and torch.equal(again.module.free, far[1])


def test_old_tasks_stay_as_they_are_while_scores_go_on() -> None:
    learn = learner(score_init="continue", max_banks=1, memory=None)
    learn.learn(FIRST)
    x = torch.randn(9, 6)
    before = learn.logits("a", x)
    learn.learn(SECOND)
    learn.learn(task("c", seed=2))
    assert torch.equal(learn.logits("a", x), before)


def test_what_cannot_go_on_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="isolated"):
        learner(score_init="continue", isolated=True)
    with pytest.raises(SettingError, match=r"score_init.*magnitude"):
        learner(score_init="continue", selection="magnitude")
    learn = learner(score_init="continue", max_banks=1, memory=None)
    learn.learn(FIRST)
    with pytest.raises(SettingError, match="isolated task"):
        learn.begin(SECOND, isolated=True)
    learn.save(tmp_path / "model")
    resumed = TinySubNets.resume(tmp_path / "model", mlp())
    assert torch.equal(resumed.logits("a", torch.ones(1, 6)), learn.logits("a", torch.ones(1, 6)))
    with pytest.raises(SettingError, match=r"checkpoint of its run.*score_init = 'previous_mask'"):
        resumed.learn(SECOND)
    cured = TinySubNets.resume(
        tmp_path / "model", mlp(), overrides=["tsn.score_init=previous_mask"]
    )
    cured.learn(SECOND)
    learn.learn(SECOND)
    learn.store.remove("a")
    with pytest.raises(SettingError, match="'a' was removed"):
        learn.learn(task("c", seed=2))


def test_scores_go_on_over_tasks_with_other_names() -> None:
    learn, same = (learner(score_init="continue", max_banks=1, memory=None) for _ in range(2))
    for one in (learn, same):
        one.learn(FIRST)
    learn.store.rename("a", "other")
    for one in (learn, same):
        one.learn(SECOND)
    assert learn.store.digest("b") == same.store.digest("b")


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_with_its_scores(tmp_path: Path) -> None:
    given = small_options("tsn.score_init=continue")[1::2]
    small = recipe.load("permuted-digits", method="tsn-wr", assignments=given)
    plan = Plan(small, seed=3, device="cpu", threads=1, checkpoint_seconds=0.0)
    for name, stop in (("whole", None), ("killed", 16)):
        with RunDir(tmp_path / name) as folder:
            for number, _ in enumerate(Experiment.begin(plan, folder).steps()):
                if number == stop:
                    break
    with RunDir(tmp_path / "killed") as folder:
        experiment = Experiment.resume(folder)
        assert 0 < len(experiment.matrix) < 3
        list(experiment.steps())
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def test_quantization_in_place_overwrites_own_values_and_trains_floats() -> None:
    module = make(mlp(), bits=2, in_place=True)
    own = module.layout.expand(module.mask()) & ~module.owned_weights
    assert torch.isin(module.free[own], module.centroids).all()  # as `make` has updated them
    assert not torch.isin(module.free[~own], module.centroids).any()
    with torch.no_grad():
        module.free += 0.01 * torch.randn_like(module.free)
    weights = module.effective().detach()
    assert torch.equal(weights[own], module.free.detach()[own])
    ours = make(mlp(), bits=2)
    assert not torch.isin(ours.free[own], ours.centroids).any()
    assert torch.isin(ours.effective().detach()[own], ours.centroids).all()


def test_tasks_quantized_in_place_are_stored_as_codes() -> None:
    learn = learner(quantization="in_place", bits=2, max_banks=1, memory=None)
    learn.learn(FIRST)
    assert all(len(c.decode().unique()) <= 4 for c in learn.store.subnet("a").own)
    with pytest.raises(SettingError, match="quantization"):
        learner(quantization="in_place", selection="magnitude")


def one_layer(form: str, rate: float = 0.7) -> TaskModule:
    net = stack(nn.Linear(6, 5), nn.Tanh(), head=5)
    return make(net, bits=2, layer_loss_weight=rate, layer_loss=form)


@pytest.mark.parametrize("form", ["both", "commit"])
def test_the_layer_wise_loss_equals_the_hand_computation(form: str) -> None:
    rate = 0.7
    module = one_layer(form, rate)
    x, y = batch()
    loss = module.loss(x, y)
    loss.backward()

    free = module.free.detach().clone().requires_grad_()
    kept, owned = module.layout.expand(module.mask()), module.owned_weights
    params = {n: t.detach() for n, t in zip(module.names, module.task_params, strict=True)}
    bias = params["0.bias"].clone().requires_grad_()
    near = module.quantized() + (free - free.detach())
    weight = torch.where(kept, torch.where(owned, module.bank_values, near), 0.0).view(5, 6)
    full = torch.where(owned, module.bank_values, free)
    hidden = x @ weight.T + bias
    logits = torch.tanh(hidden) @ params["fc.weight"].T + params["fc.bias"]
    if form == "both":
        extra = (hidden - (x @ full.view(5, 6).T + bias)).square().mean()
    else:
        own = torch.where(kept, full, 0.0).view(5, 6)
        still = hidden.detach()
        extra = (still - (x @ own.T + bias.detach())).square().mean() / still.square().mean()
    wanted = functional.cross_entropy(logits, y) + rate * extra
    wanted.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(module.free.grad, free.grad, rtol=1e-5, atol=1e-7)
    found = dict(zip(module.names, module.task_params, strict=True))["0.bias"].grad
    torch.testing.assert_close(found, bias.grad, rtol=1e-5, atol=1e-7)
    assert float(extra.detach()) > 1e-3


def test_committing_moves_nothing_but_the_task_s_own_values() -> None:
    grads = {}
    for rate in (0.0, 5.0):
        module = one_layer("commit", rate)
        module.loss(*batch()).backward()
        grads[rate] = module.free.grad.clone(), module.scores.grad.clone()
    own = module.layout.expand(module.mask()) & ~module.owned_weights
    assert (grads[5.0][0] != grads[0.0][0])[own].any()
    assert torch.equal(grads[5.0][0][~own], grads[0.0][0][~own])
    assert torch.equal(grads[5.0][1], grads[0.0][1])
    both = one_layer("both", 5.0)
    both.loss(*batch()).backward()
    assert both.free.grad[~own & ~both.owned_weights].any()  # the full side has all free values


def test_the_first_task_can_be_permuted_too() -> None:
    plain = scenarios.build("permuted-digits")
    permuted = scenarios.build("permuted-digits", {"permute_first": True})
    first, moved = (s.task(0).train.inputs() for s in (plain, permuted))
    assert not torch.equal(first, moved)
    assert torch.equal(first.flatten(1).sort().values, moved.flatten(1).sort().values)
    second = [s.task(1).train.inputs() for s in (plain, permuted)]
    assert torch.equal(*second)


def test_data_have_a_seed_of_their_own() -> None:
    def order(values: dict, seed: int) -> list[tuple[str, ...]]:
        made = scenarios.build("split-digits", values, seed=seed)
        return [made.task(i).classes for i in range(5)]

    assert order({"seed": 7}, 0) == order({"seed": 7}, 1) == order({}, 7) != order({}, 0)
    given = [a for a in small_options("data.seed=7")[1::2]]
    plans = [Plan(recipe.load("permuted-digits", assignments=given), seed=s) for s in (0, 1)]
    experiments = [Experiment(p, RunDir(Path("unused"))) for p in plans]
    labels = [e.probes[1].data.labels for e in experiments]
    assert torch.equal(*labels)
    starts = [e.learner.begin(e.scenario.task(0)).module.free for e in experiments]
    assert not torch.equal(*starts)


@pytest.mark.parametrize("name", ["permuted-mnist", "split-cifar100", "five-datasets"])
def test_networks_of_the_paper_have_a_head_and_statistics_alone(name: str) -> None:
    """No biases and no scales and shifts, as in the code that the paper builds on."""
    shape = {"permuted-mnist": (9, 1, 28, 28)}.get(name, (9, 3, 32, 32))
    architecture = build_architecture(recipe.load(f"paper/{name}"), shape, 0)
    own = {s.name for s in architecture.task_params} - set(architecture.running_stats)
    assert own == {"fc.weight"}
    wide = {"permuted-mnist": 100, "split-cifar100": 2048, "five-datasets": 640}[name]
    assert architecture.task_param_shapes(10)["fc.weight"] == (10, wide)


def test_the_paper_s_recipes_are_its_letter() -> None:
    for name in (n for n in recipe.names() if n.startswith("paper/")):
        own = recipe.load(name).learner
        assert (own["score_init"], own["quantization"]) == ("continue", "in_place"), name
        assert own["layer_loss"] == "both" and own["layer_loss_weight"] > 0, name
    assert recipe.load("paper/permuted-mnist").data["permute_first"]
    for name in ("split-cifar100", "tiny-imagenet", "imagenet100"):
        assert recipe.load(f"paper/{name}").data["class_order"] == "natural", name


def test_without_test_data_accuracy_is_that_of_validation_data() -> None:
    task = scenarios.build("permuted-digits", {"test": False}).task(1)
    assert task.test is None and len(task.valid)
    with_test = scenarios.build("permuted-digits").task(1)
    assert with_test.test is not None
    assert torch.equal(task.valid.inputs(), with_test.valid.inputs())


@pytest.mark.parametrize("name", ["wsn", "packnet", "ada-qpacknet"])
def test_rivals_can_be_stored_by_our_codec(name: str) -> None:
    plain = {} if name == "ada-qpacknet" else {"bits": 3}
    sizes = []
    for settings in ({}, plain | {"task_param_bits": "auto"}):
        own = methods.build(
            name,
            Architecture(mlp()),
            settings=settings | {"density": 0.3},
            training=TRAINING,
            pruning={},
            device="cpu",
            seed=0,
        )
        own.learn(FIRST)
        before = own.logits("a", torch.ones(2, 6))
        own.learn(SECOND)
        assert torch.equal(own.logits("a", torch.ones(2, 6)), before)
        sizes.append(own.ledger().total)
    assert sizes[1].heads < sizes[0].heads
    assert sizes[1].codes < sizes[0].codes or name == "ada-qpacknet"
    with pytest.raises(SettingError, match="task_param_bits"):
        methods.build(
            name, Architecture(mlp()), settings={"task_param_bits": 3}, training={}, pruning={},
            device="cpu", seed=0,
        )  # fmt: skip
