"""Every method by name: it runs, it forgets or does not, it says its setting, it can be resumed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from digit_tasks import accuracy, backward_transfer, permuted, run, small_net, split
from tinysubnets.baselines.base import DenseLearner, load_dense
from tinysubnets.errors import CapacityError, CapacityWarning, SettingError, TaskError
from tinysubnets.experiments import methods as learners
from tinysubnets.experiments.metrics import Probe, measure_row
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

METHODS = list(learners.METHODS)
FORGET_FREE = ["tsn", "tsn-wr", "tsn-wr-wpp", "wsn", "packnet", "ada-qpacknet", "independent"]
DENSE = [m for m in METHODS if m not in FORGET_FREE or m == "independent"]
ONE_HEAD = [m for m in DENSE if m != "independent"]
WITH_CLASSES = ["naive", "cumulative", "replay", "gdumb", "cwr-star"]
TRAINING = {"epochs": 4, "batch_size": 32, "lr": 5e-3}
SMALL = {"packnet": {"density": 0.2}, "ada-qpacknet": {"density": 0.2}}


def make(method: str, norm: bool = False, training: dict | None = None, **settings):
    return learners.build(
        method,
        small_net(norm),
        settings=SMALL.get(method, {}) | settings,
        training=TRAINING | (training or {}),
        pruning={"iterations": 5},
    )


def ledger(learner):
    return learner.ledger() if hasattr(learner, "ledger") else learner.store.ledger()


@pytest.mark.parametrize("scenario", [permuted, split])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_both_scenarios(method, scenario):
    learner, tasks = make(method), scenario()
    fresh, final = run(learner, tasks)
    chance = 1 / tasks[0].num_classes
    assert final[-1] > 2 * chance if chance < 0.2 else final[-1] > 0.7
    assert tuple(learner.reports) == tuple(t.name for t in tasks)
    assert ledger(learner).total.total > 0
    assert getattr(learner, "scenario_type", "task-IL") == "task-IL"
    if method in FORGET_FREE:
        assert fresh == final  # BWT exactly 0


def test_naive_forgets_and_cumulative_and_independent_do_not():
    for scenario_type, tasks in (("domain-IL", permuted()), ("class-IL", split())):
        assert backward_transfer(*run(make("naive", scenario_type=scenario_type), tasks)) < -0.1
        assert (
            backward_transfer(*run(make("cumulative", scenario_type=scenario_type), tasks)) > -0.05
        )
    assert backward_transfer(*run(make("independent"), permuted())) == 0.0


@pytest.mark.parametrize("method", ["replay", "gdumb", "gem", "a-gem", "ewc", "si", "lwf"])
def test_methods_against_forgetting_forget_less_than_naive(method):
    strong = {
        "ewc": {"penalty_weight": 300.0},
        "si": {"penalty_weight": 5.0},
        "lwf": {"distillation_weight": 5.0},
    }
    naive = run(make("naive", scenario_type="domain-IL"), permuted())[1]
    final = run(make(method, scenario_type="domain-IL", **strong.get(method, {})), permuted())[1]
    assert np.mean(final[:-1]) > np.mean(naive[:-1]) + 0.02


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("method", ["wsn", "packnet", "ada-qpacknet"])
def test_old_logits_never_change_with_batch_norm_and_weight_decay(method, optimizer):
    training = {"optimizer": optimizer, "weight_decay": 0.1, "epochs": 2}
    training |= {"momentum": 0.9, "lr": 0.02} if optimizer == "sgd" else {}
    learner = make(method, norm=True, training=training)
    before: dict[str, torch.Tensor] = {}
    for task in permuted():
        learner.learn(task)
        for earlier in permuted():
            if earlier.name in before:
                now = learner.logits(earlier.name, earlier.test.inputs())
                assert torch.equal(now, before[earlier.name])
        before[task.name] = learner.logits(task.name, task.test.inputs())


def test_ada_qpacknet_shares_nothing_and_refuses_when_full():
    learner = make("ada-qpacknet", density=0.5, shrink=0.9, pruning_tolerance=0.0)
    learner.learn(permuted()[0])
    learner.learn(permuted()[1])
    first, second = (learner.store.subnet(f"p{i}") for i in range(2))
    assert not (first.mask & second.mask).any()
    assert max(first.bits, second.bits) <= 6
    full = make("ada-qpacknet", density=1.0, shrink=0.999, pruning_tolerance=-1.0)
    full.learn(permuted()[0])
    with pytest.raises(CapacityError, match="max_banks"):
        full.begin(permuted()[1])


def test_packnet_goes_on_without_free_weights_and_says_so():
    learner = make("packnet", density=1.0)
    learner.learn(permuted()[0])
    with pytest.warns(CapacityWarning, match="no free weights"):
        learner.learn(permuted()[1])
    assert learner.store.subnet("p1").num_new == 0
    assert accuracy(learner, permuted()[1]) > 0.3


@pytest.mark.parametrize("method", ONE_HEAD)
def test_settings_that_the_paper_of_a_method_does_not_define_are_refused(method):
    if method in WITH_CLASSES:
        assert make(method, scenario_type="class-IL").scenario_type == "class-IL"
    else:
        with pytest.raises(SettingError, match=f"'class-IL' is not defined for {method}"):
            make(method, scenario_type="class-IL")
    assert make(method, scenario_type="domain-IL").scenario_type == "domain-IL"


@pytest.mark.parametrize("method", ["independent", "wsn", "packnet", "ada-qpacknet"])
def test_methods_that_need_the_task_say_so(method):
    with pytest.raises(SettingError, match="not defined"):
        make(method, scenario_type="class-IL")
    learner = make(method, training={"epochs": 1})
    learner.learn(permuted()[0])
    with pytest.raises(TaskError, match="needs to know the task"):
        learner.logits(None, permuted()[0].test.inputs())


@pytest.mark.parametrize("method", WITH_CLASSES)
def test_one_head_answers_over_all_classes_seen(method):
    learner = make(method, scenario_type="class-IL", training={"epochs": 1})
    for task in split()[:3]:
        learner.learn(task)
    inputs = split()[0].test.inputs()
    assert learner.logits(None, inputs).shape == (len(inputs), 6)
    assert learner.classes == tuple((f"s{i // 2}", i) for i in range(6))
    assert torch.equal(learner.logits("s1", inputs), learner.logits(None, inputs)[:, 2:4])
    assert set(learner.predict("s1", inputs)) <= {2, 3}
    assert set(learner.predict(None, inputs)) <= set(range(6))


def test_classes_of_the_same_name_are_other_classes_in_another_task():
    learner = make("cumulative", scenario_type="class-IL", training={"epochs": 1})
    for task in permuted()[:2]:
        learner.learn(task)
    assert learner.logits(None, permuted()[0].test.inputs()).shape[1] == 20
    assert learner.columns("p1") == (10, 20) and learner.classes[13] == ("p1", 3)


def test_a_class_of_another_task_is_wrong_even_with_the_same_label():
    learner, probes = make("naive", scenario_type="class-IL"), [Probe.of(t) for t in permuted()]
    learner.learn(permuted()[0])
    assert measure_row(learner, probes, 0)[1:] == [None, None]
    learner.learn(permuted()[1])
    row = measure_row(learner, probes, 1)
    assert row[0] < 0.05 and row[1] > 0.8 and row[2] is None
    assert row[:2] == pytest.approx([accuracy(learner, t) for t in permuted()[:2]])


def test_with_the_task_unknown_all_tasks_are_normalized_like_the_first():
    learner = make("naive", scenario_type="domain-IL", training={"epochs": 1})
    first, second = permuted()[:2]
    shifted = Task.from_arrays("far", second.train.inputs() + 100, second.train.labels)
    learner.learn(first)
    trainer = learner.begin(shifted)
    assert trainer.training.task.normalization == first.normalization
    told = make("naive", training={"epochs": 1})
    told.learn(first)
    assert told.begin(shifted).training.task.normalization == shifted.normalization


def test_bad_tasks_are_refused_before_anything_is_learned():
    learner = make("naive", scenario_type="domain-IL", training={"epochs": 1})
    learner.learn(permuted()[0])
    with pytest.raises(TaskError, match="learned already"):
        learner.begin(permuted()[0])
    with pytest.raises(TaskError, match="same classes"):
        learner.begin(split()[0])
    with pytest.raises(TaskError, match="unknown task 'p7'"):
        learner.logits("p7", permuted()[0].test.inputs())
    with pytest.raises(TaskError, match="Task is needed"):
        learner.begin("p1")
    with pytest.raises(SettingError, match="penalty_weight"):
        make("naive", penalty_weight=1.0)
    with pytest.raises(SettingError, match="buffer_size"):
        make("replay", buffer_size=0)
    assert learner.tasks == ("p0",)


def test_old_heads_rest_under_weight_decay_where_nothing_of_their_task_is_seen():
    training = {"optimizer": "adamw", "weight_decay": 0.5, "epochs": 2}
    for method, rests in (("naive", True), ("ewc", True), ("replay", False)):
        learner = make(method, training=training)
        learner.learn(split()[0])
        before = learner.tensors["fc.weight"].clone()
        learner.learn(split()[1])
        assert torch.equal(learner.tensors["fc.weight"][:2], before) == rests


@pytest.mark.parametrize("method", DENSE)
def test_a_dense_model_is_saved_as_plain_tensors_and_goes_on(method, tmp_path):
    first, second = split()[:2]
    learner = make(method, norm=True, training={"epochs": 2})
    learner.learn(first)
    learner.save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    assert learner.ledger().file_bytes == file.stat().st_size
    assert learner.ledger().file == file.stat().st_size / (4 * learner.architecture.num_shared)
    assert (tmp_path / "model" / "config.json").exists()
    if method != "independent":
        assert torch.equal(load_file(file)["fc.weight"], learner.tensors["fc.weight"])
    again = make(method, norm=True, training={"epochs": 2})
    again.restore_(*load_dense(tmp_path / "model"))
    if method == "cumulative":
        with pytest.raises(TaskError, match="revisit_"):
            again.begin(second)
        again.revisit_(first)
    assert torch.equal(
        again.logits(first.name, first.test.inputs()),
        learner.logits(first.name, first.test.inputs()),
    )
    learner.learn(second)
    again.learn(second)
    for name, tensor in learner.state()[0].items():
        assert torch.equal(tensor, again.state()[0][name]), name
    assert again.tasks == learner.tasks
    learner.save(tmp_path / "one")
    again.save(tmp_path / "two")
    one, two = (tmp_path / n / "model.safetensors" for n in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("done", [1, 3])
@pytest.mark.parametrize("method", [*ONE_HEAD, "packnet", "ada-qpacknet"])
def test_a_lesson_goes_on_from_its_state(method, done):
    first, second = split()[:2]
    results = []
    for interrupted in (False, True):
        learner = make(method)
        learner.learn(first)
        trainer = learner.begin(second)
        for _ in range(done):
            trainer.epoch()
        if interrupted:
            tensors, numbers = trainer.state()
            trainer = learner.begin(second)
            trainer.restore_(tensors, numbers)
        while not trainer.finished:
            report = trainer.epoch()
        assert (report.epoch, report.epochs) == (4, 4)
        trainer.finish()
        results.append(learner.logits(second.name, second.test.inputs()))
    assert torch.equal(*results)


def test_the_ledger_of_dense_methods_counts_every_bit():
    naive, replay = make("naive", norm=True), make("replay", norm=True, buffer_size=40)
    ewc, independent = make("ewc", norm=True), make("independent", norm=True)
    for learner in (naive, replay, ewc, independent):
        for task in split()[:2]:
            learner.learn(task)
    shared = 64 * 64 * 2
    heads, task_params = 4 * 65, 64 * 2 + 64 * 4
    total = naive.ledger().total
    assert total.codes == 32 * shared and total.heads == 32 * heads
    assert total.task_params == 32 * task_params and total.memory == 0
    assert naive.ledger().paper == 1.0 and naive.ledger().worked_example == 1.0
    assert replay.ledger().total.memory == 40 * 8 * (64 + 2 + 2)
    body = shared + 64 * 2 + 64 * 2  # weights, biases, norm scales and shifts; no statistics
    assert ewc.ledger().total.memory == 2 * 32 * body
    assert independent.ledger().total.codes == 2 * 32 * shared
    assert independent.ledger().paper == 2.0


def test_dense_methods_take_convolutions_and_given_weights():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.add_module("fc", nn.Linear(4 * 36, 2))
    tasks = split()[:2]
    images = [
        Task.from_arrays(t.name, t.train.inputs().reshape(-1, 1, 8, 8), t.train.labels)
        for t in tasks
    ]
    for method in ("ewc", "lwf", "gem", "replay", "cumulative"):
        training = {"epochs": 1, "augmentation": {"shift": 1}}
        learner: DenseLearner = learners.build(
            method, Architecture(net), settings={"init": "pretrained"}, training=training
        )
        for task in images:
            learner.learn(task)
        assert learner.logits("s0", images[0].valid.inputs()).shape[1] == 2
    given = learners.build("naive", Architecture(net), settings={"init": "pretrained"}, training={})
    assert torch.equal(given.fresh(2)["0.weight"], net[0].weight)
