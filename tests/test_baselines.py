"""Every method by name: it learns, forgets or does not, says what it needs, can be resumed."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from digit_tasks import accuracy, backward_transfer, permuted, run, small_net, split
from quick import mostly_slow
from tinysubnets.baselines.base import DenseLearner
from tinysubnets.baselines.dense_file import load_dense, save_dense
from tinysubnets.baselines.ewc import EWC
from tinysubnets.baselines.replay import Replay
from tinysubnets.errors import (
    ArtifactError,
    CapacityError,
    CapacityWarning,
    DamageError,
    FormatError,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.experiments import methods as learners
from tinysubnets.experiments.metrics import Probe, measure_row
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

GOLDEN = Path(__file__).parent / "golden"
METHODS = list(learners.METHODS)
MASKED = ["tsn", "tsn-wr", "tsn-wr-wpp", "wsn", "packnet", "ada-qpacknet", "separate"]
FORGET_FREE = [*MASKED, "independent"]
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


# test_learners.py and test_same_numbers.py let every method learn permuted digits, quickly.
@pytest.mark.slow
@pytest.mark.parametrize("scenario", mostly_slow([permuted, split], quick=[split]))
@pytest.mark.parametrize("method", mostly_slow(METHODS, ["naive", "ewc", "gem", "packnet", "tsn"]))
def test_every_method_learns_both_scenarios(method, scenario):
    learner, tasks = make(method), scenario()
    fresh, final = run(learner, tasks)
    chance = 1 / tasks[0].num_classes
    assert final[-1] > 2 * chance if chance < 0.2 else final[-1] > 0.7
    assert tuple(learner.reports) == tuple(t.name for t in tasks)
    assert learner.ledger().total.total > 0
    assert learner.scenario_type == "task-IL"
    if method in FORGET_FREE:
        assert fresh == final  # BWT exactly 0


def test_naive_forgets_and_cumulative_and_independent_do_not():
    for scenario_type, tasks in (("domain-IL", permuted()), ("class-IL", split())):
        assert backward_transfer(*run(make("naive", scenario_type=scenario_type), tasks)) < -0.1
        assert (
            backward_transfer(*run(make("cumulative", scenario_type=scenario_type), tasks)) > -0.05
        )
    assert backward_transfer(*run(make("independent"), permuted())) == 0.0


@functools.lru_cache
def final_accuracies_of_naive() -> list[float]:
    return run(make("naive", scenario_type="domain-IL"), permuted())[1]


@pytest.mark.parametrize(
    "method",
    mostly_slow(["replay", "gdumb", "gem", "a-gem", "ewc", "si", "lwf"], ["replay", "a-gem", "si"]),
)
def test_methods_against_forgetting_forget_less_than_naive(method):
    strong = {
        "ewc": {"penalty_weight": 300.0},
        "si": {"penalty_weight": 5.0},
        "lwf": {"distillation_weight": 5.0},
    }
    naive = final_accuracies_of_naive()
    final = run(make(method, scenario_type="domain-IL", **strong.get(method, {})), permuted())[1]
    assert np.mean(final[:-1]) > np.mean(naive[:-1]) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", mostly_slow(["adamw", "sgd"], ["adamw"]))
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


@pytest.mark.parametrize("method", ["independent"])
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


class Shifted(nn.Module):
    """A network of one's own: with BatchNorm, and with a constant that no name can bring back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 16), nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 10)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.first(x)) + self.shift))


@pytest.mark.parametrize("method", DENSE)
def test_a_dense_model_is_saved_as_plain_tensors(method, tmp_path):
    learner = make(method, norm=True, training={"epochs": 2})
    learner.learn(split()[0])
    file = learner.save(tmp_path / "model")
    assert file == tmp_path / "model" / "model.safetensors"
    assert learner.ledger().file_bytes == file.stat().st_size
    assert learner.ledger().file == file.stat().st_size / (4 * learner.architecture.num_shared)
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["format"] == "tinysubnets-dense-1" and written["method"] == method
    prefix = "s0/" if method == "independent" else ""
    assert torch.equal(load_file(file)[f"{prefix}fc.weight"], learner.network("s0")["fc.weight"])


@pytest.mark.parametrize("method", ["naive", "independent", "replay", "si"])
def test_a_network_of_ones_own_is_given_again(method, tmp_path):
    def own():
        return learners.build(method, Architecture(Shifted()), training=TRAINING)

    first, second = split()[:2]
    live = own()
    live.learn(first)
    live.save(tmp_path)
    with pytest.raises(MismatchError, match="network of your own"):
        type(live).resume(tmp_path)
    with pytest.raises(MismatchError, match=r"first\.weight"):
        type(live).resume(tmp_path, nn.Sequential(nn.Linear(64, 16)))
    again = type(live).resume(tmp_path, Shifted())
    for learner in (live, again):
        learner.learn(second)
    for task in (first, second):
        inputs = task.test.inputs()
        assert torch.equal(live.logits(task.name, inputs), again.logits(task.name, inputs))


def test_pretrained_weights_are_given_again_and_no_others(tmp_path):
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU())
    net.add_module("fc", nn.Linear(16, 2))
    live = learners.build(
        "independent", Architecture(net), settings={"init": "pretrained"}, training=TRAINING
    )
    live.learn(split()[0])
    live.save(tmp_path)
    again = type(live).resume(tmp_path, net)
    for learner in (live, again):
        learner.learn(split()[1])
    inputs = split()[1].test.inputs()
    assert torch.equal(live.logits("s1", inputs), again.logits("s1", inputs))
    with torch.no_grad():
        net[0].weight[0, 0] += 1
    with pytest.raises(MismatchError, match="not the weights that learning began with"):
        type(live).resume(tmp_path, net)


def test_a_model_of_version_0_1_goes_on_when_its_network_is_given(tmp_path):
    shutil.copy(GOLDEN / "dense1-ewc.safetensors", tmp_path / "model.safetensors")
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net.add_module("fc", nn.Linear(3, 2))
    with pytest.raises(MismatchError, match="give it again"):
        EWC.resume(tmp_path)
    with pytest.raises(MismatchError, match=r"0\.weight has the shape \(64, 64\)"):
        EWC.resume(tmp_path, small_net())
    learner = EWC.resume(tmp_path, net, overrides=["training.epochs=1"])
    assert learner.tasks == ("one", "two") and learner.scenario_type == "domain-IL"
    assert (learner.settings.penalty_weight, learner.settings.init) == (7.0, "pretrained")
    stored = load_file(tmp_path / "model.safetensors")
    x = torch.arange(20, dtype=torch.uint8).reshape(5, 4)
    hidden = learner.learned["one"].normalization(x) @ stored["0.weight"].T + stored["0.bias"]
    logits = hidden.relu() @ stored["fc.weight"].T + stored["fc.bias"]
    assert torch.allclose(learner.logits(None, x), logits, atol=1e-6)
    assert "importance/0.weight" in learner.extra_state
    y = np.arange(40) % 2
    learner.learn(Task.from_arrays("three", np.random.default_rng(0).random((40, 4)), y))
    learner.save(tmp_path)
    assert EWC.resume(tmp_path, net).tasks == ("one", "two", "three")


def test_a_state_with_the_reports_of_version_0_1_is_restored():
    live, again = (make("naive", training={"epochs": 1}) for _ in range(2))
    live.learn(split()[0])
    tensors, numbers = live.state()
    numbers["reports"][0] |= {"bank": 0, "reason": "one dense network", "bits": 32, "density": 1.0}
    again.restore_(tensors, numbers)
    assert again.reports == live.reports


def test_what_a_saved_model_cannot_do_is_said(tmp_path):
    live = make("replay", training={"epochs": 1})
    live.learn(split()[0])
    file = live.save(tmp_path)
    for change, error, text in (
        ("replay.scenario_type=class-IL", SettingError, "learned with 'task-IL'"),
        ("replay.buffer=3", SettingError, "buffer_size"),
        ("tsn.density=0.1", SettingError, "unknown table of settings 'tsn'"),
        ("epochs=3", SettingError, "unknown table of settings 'epochs'"),
    ):
        with pytest.raises(error, match=text):
            Replay.resume(tmp_path, small_net(), overrides=[change])
    with pytest.raises(FormatError, match="no model at"):
        Replay.resume(tmp_path / "nothing", small_net())
    tensors, numbers = load_dense(tmp_path)
    save_dense(tmp_path, tensors, numbers | {"settings": {"buffer_size": "many"}})
    with pytest.raises(FormatError, match="not of this version"):
        Replay.resume(tmp_path, small_net())
    save_dense(tmp_path, tensors, numbers | {"tasks": [{"name": "s0"}]})
    with pytest.raises(DamageError, match="the tasks of the model are damaged"):
        Replay.resume(tmp_path, small_net())
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DamageError, match="is damaged"):
        Replay.resume(tmp_path, small_net())


def test_what_no_learner_has_saved_is_not_resumed(tmp_path):
    live = make("gem", training={"epochs": 1})
    for task in split()[:2]:
        live.learn(task)
    live.save(tmp_path)
    tensors, numbers = load_dense(tmp_path)
    first, second = numbers["tasks"]
    for change in (
        {"name": 3},
        {"name": second["name"]},
        {"classes": []},
        {"classes": [0, "a"]},
        {"classes": [[0], [1]]},
        {"columns": ["a", "b"]},
        {"columns": [0, 1]},
        {"columns": [-2, 0]},
        {"columns": [90, 92]},
        {"normalisation": first["normalisation"] | {"trailing": None}},
        {"normalisation": first["normalisation"] | {"trailing": 1 << 40}},
        {"normalisation": first["normalisation"] | {"std": ["x"]}},
    ):
        save_dense(tmp_path, tensors, numbers | {"tasks": [first | change, second]})
        with pytest.raises(ArtifactError):
            type(live).resume(tmp_path, small_net())
    for name in live.architecture.output:
        save_dense(tmp_path, tensors | {name: tensors[name].int()}, numbers)
        with pytest.raises(DamageError, match="float32"):
            type(live).resume(tmp_path, small_net())


def test_independent_refuses_a_task_whose_name_its_file_needs():
    task = dataclasses.replace(split()[0], name="learner")
    with pytest.raises(TaskError, match="cannot be named 'learner'"):
        make("independent").begin(task)


@pytest.mark.slow
@pytest.mark.parametrize("done", mostly_slow([1, 3], [1]))
@pytest.mark.parametrize("method", ["si", "packnet", "ada-qpacknet"])
def test_a_trainer_goes_on_from_its_state(method, done):
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
    whole = (shared + task_params) / shared
    assert naive.ledger().paper == whole and naive.ledger().worked_example == 1.0
    assert replay.ledger().total.memory == 40 * 8 * (64 + 2 + 2)
    body = shared + 64 * 2 + 64 * 2  # weights, biases, norm scales and shifts; no statistics
    assert ewc.ledger().total.memory == 2 * 32 * body
    assert independent.ledger().total.codes == 2 * 32 * shared
    assert independent.ledger().paper == 2 * whole


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
