"""Images learned in four rotations, each a class apart: how they answer, what the file keeps."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from digit_tasks import digits, permuted
from tinysubnets.baselines.masked import WSN, PackNet
from tinysubnets.cli import main
from tinysubnets.errors import DamageError, SettingError, TaskError
from tinysubnets.experiments import metrics
from tinysubnets.experiments.routing import without_task
from tinysubnets.format import onnx as export
from tinysubnets.format.header import config_of, manifest_of
from tinysubnets.format.routed import AllTasks
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.rotations import RotatedInputs, rotated_task, turned
from tinysubnets.tasks.task import Task

TRAINING = {"epochs": 3, "batch_size": 64, "lr": 5e-3}


def images(number: int) -> Task:
    """Some of the digits as pictures: below five, or from five on."""
    x, y = digits()
    x, mine = x.reshape(-1, 1, 8, 8), (y >= 5) == bool(number)
    train, test = mine & (np.arange(len(y)) < 800), mine & (np.arange(len(y)) >= 1400)
    return Task.from_arrays(f"i{number}", x[train], y[train], test=(x[test], y[test]))


def network() -> Architecture:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU())
    net.add_module("fc", nn.Linear(32, 10))
    return Architecture(net)


def make(rotations: str = "four-pass", method: Any = TinySubNets, **given: Any) -> Any:
    routing = {"rotations": rotations, "parts": ["energy", "inputs", "rotation"], "dims": 8}
    given = {"training": TRAINING, "routing": routing, "device": "cpu"} | given
    if method is TinySubNets:
        given = {"density": 0.3, "post_pruning": False, "bits": 4, "task_param_bits": 6} | given
    return method(network(), **given)


@cache
def learned() -> TinySubNets:
    """A learner of two tasks in rotations, which no test changes."""
    learner = make()
    for number in range(2):
        learner.learn(images(number))
    return learner


def test_every_image_is_learned_in_every_rotation() -> None:
    task = images(0)
    joint, num = rotated_task(task), len(task.train)
    assert joint.num_classes == 4 * task.num_classes and len(joint.train) == 4 * num
    upright = task.train.inputs()
    for k in range(4):
        where = slice(k * num, (k + 1) * num)
        assert torch.equal(joint.train.inputs(where), torch.rot90(upright, k, (2, 3)))
        assert torch.equal(turned(upright, k), torch.rot90(upright, k, (2, 3)))
        assert torch.equal(joint.train.labels[where], task.train.labels + k * task.num_classes)
    mixed = torch.tensor([3 * num + 5, 5, num + 5, 0])
    found = joint.train.inputs(mixed)
    for image, times, place in zip(found, (3, 0, 1, 0), (5, 5, 5, 0), strict=True):
        assert torch.equal(image, torch.rot90(upright[place], times, (1, 2)))
    assert len(RotatedInputs(task.train)) == 4 * num
    weighted = Task.from_arrays("w", upright, task.train.labels, class_weights="balanced")
    weights = rotated_task(weighted).class_weights
    assert weights is not None and weighted.class_weights is not None
    assert weights == 4 * weighted.class_weights


def test_a_known_task_is_answered_by_one_pass_or_by_four() -> None:
    task, inputs = images(0), images(0).test.inputs()
    for rotations, passes in (("one-pass", 1), ("four-pass", 4)):
        learner = learned() if passes == 4 else make(rotations)
        if passes == 1:
            learner.learn(task)
        store, subnet = learner.store, learner.store.subnet("i0")
        assert subnet.rotations == passes and subnet.num_outputs == 20
        tensors, num = store.tensors("i0"), 5
        parts = [
            store.outputs(subnet, tensors, torch.rot90(inputs, k, (2, 3)))[
                :, k * num : k * num + num
            ]
            for k in range(passes)
        ]
        logits = store.logits("i0", inputs)
        assert logits.shape == (len(inputs), 5)
        assert torch.allclose(logits, torch.stack(parts).mean(0), atol=1e-5)
        assert store.evaluate(task).accuracy > 0.8
        assert store.predict_proba("i0", inputs).shape == (len(inputs), 5)
        # What is on record is the share of classes told, as they are told.
        valid = store.evaluate("i0", task.valid.inputs(), labels_of(task)).accuracy
        assert subnet.valid_accuracy == pytest.approx(valid)
        # A plain module gives the same bits, and knows nothing of this package.
        module = store.module("i0")
        assert torch.equal(module(inputs), logits)
        assert not any("tinysubnets" in type(m).__module__ for m in module.modules())


def labels_of(task: Task) -> np.ndarray:
    return np.array(task.classes)[task.valid.labels.numpy()]


def test_without_the_name_all_rotations_are_asked() -> None:
    store, probes = learned().store, []
    for number in range(2):
        task = images(number)
        probes.append(metrics.Probe(task.name, task.classes, task.test, "test"))
    found = without_task(store, probes)
    assert found["rule"] == "energy + inputs + rotation" and found["passes"] == 8
    assert found["task_accuracy"] > 0.7
    inputs = torch.cat([p.data.inputs() for p in probes])
    routing = store.route(inputs)
    stacked = store.route(inputs, stacked=True)
    assert np.allclose(routing.scores, stacked.scores, atol=1e-3)
    module = AllTasks(store).eval()
    assert np.allclose(module(inputs)[5].numpy(), routing.scores, atol=1e-4)
    # Beside a task that was learned upright, what both keep decides.
    plain = make("none", store=store_copy(store))
    plain.learn(other())
    mixed = plain.store.route(inputs)
    assert mixed.rule == "energy + inputs" and mixed.scores.shape[1] == 3
    assert np.array_equal(plain.store.route(inputs, among=["i0", "i1"]).scores, routing.scores)


def other() -> Task:
    x, y = digits()
    noise = np.random.default_rng(0).permutation(64)
    return Task.from_arrays("other", x[:300, noise].reshape(-1, 1, 8, 8), y[:300])


def store_copy(store: SubnetStore) -> SubnetStore:
    copy = SubnetStore(store.architecture, settings=store.settings)
    copy.banks, copy.subnets = list(store.banks), dict(store.subnets)
    copy.next_number, copy.seed = store.next_number, store.seed
    return copy


def test_the_file_keeps_the_outputs_of_all_rotations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, inputs = learned().store, images(0).test.inputs()
    store.save(tmp_path / "model")
    read = SubnetStore.load(tmp_path / "model", network())
    assert read.digest("i0") == store.digest("i0")
    assert torch.equal(read.logits("i0", inputs), store.logits("i0", inputs))
    assert np.array_equal(read.route(inputs).scores, store.route(inputs).scores)
    again = TinySubNets.resume(tmp_path / "model", network(), device="cpu")
    assert again.core.routing.rotations == "four-pass"
    assert main(["inspect", str(tmp_path / "model"), "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [t["rotations"] for t in tasks] == [4, 4]
    # Four times the rows of the head, and nothing else, is what they cost.
    plain = make("none")
    plain.learn(images(0))
    shapes = {n: s for n, s in store.subnet("i0").shapes.items() if n.startswith("fc.")}
    assert shapes == {"fc.weight": (20, 32), "fc.bias": (20,)}
    heads = [s.ledger().tasks["i0"].heads for s in (plain.store, store)]
    assert 2.5 < heads[1] / heads[0] < 4.5


def test_a_file_cannot_ask_for_rotations_of_what_has_none() -> None:
    config = json.loads(json.dumps(config_of(learned().store)))
    assert manifest_of(config, 10**6).tasks[0].rotations == 4
    for wrong in (3, -1, True, "4"):
        config["tasks"][0]["rotations"] = wrong
        with pytest.raises(DamageError, match="rotations"):
            manifest_of(config, 10**6)
    config["tasks"][0]["rotations"] = 4
    for shape in ([64], [1, 8, 7]):
        config["inputs"][config["tasks"][0]["inputs"]][1] = shape
        with pytest.raises(DamageError, match="square images"):
            manifest_of(config, 10**6)


def test_what_is_no_square_image_is_refused_before_anything_is_learned() -> None:
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    net.add_module("fc", nn.Linear(32, 10))
    learner = TinySubNets(Architecture(net), routing={"rotations": "one-pass"}, device="cpu")
    with pytest.raises(TaskError, match=r"shape \(64,\) cannot be learned in rotations"):
        learner.learn(permuted()[0])
    assert not learner.tasks
    x, y = digits()
    wide = Task.from_arrays("wide", x[:200, :56].reshape(-1, 1, 8, 7), y[:200])
    with pytest.raises(TaskError, match=r"shape \(1, 8, 7\) cannot"):
        make().begin(wide)
    with pytest.raises(SettingError, match="rotations"):
        make("two-pass")


@pytest.mark.parametrize("method", [WSN, PackNet])
def test_every_method_with_masks_learns_rotations(method: Any) -> None:
    learner = make(method=method, density=0.3)
    learner.learn(images(0))
    before = learner.logits("i0", images(0).test.inputs())
    learner.learn(images(1))
    assert torch.equal(learner.logits("i0", images(0).test.inputs()), before)
    assert learner.evaluate(images(0)).accuracy > 0.6


def test_tasks_over_a_base_learn_rotations() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32))
        net.append(nn.ReLU()).add_module("fc", nn.Linear(32, 10))
    routing = {"rotations": "four-pass", "parts": ["energy", "base"]}
    training = TRAINING | {"epochs": 20}
    learner = TinySubNets(
        Architecture(net, base="frozen"), routing=routing, training=training, rungs=("head",),
        device="cpu",
    )  # fmt: skip
    report = learner.learn(images(0))
    assert report.valid_accuracy > 0.5
    assert learner.evaluate(images(0)).accuracy > 0.5
    assert learner.store.subnet("i0").shapes["fc.weight"] == (20, 32)


@pytest.mark.slow
def test_exports_answer_by_rotations_too(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    store, inputs = learned().store, images(0).test.inputs()
    one = export.to_onnx(store, "i0", tmp_path / "one.onnx")
    logits = store.logits("i0", inputs).numpy()
    assert np.allclose(export.onnx_logits(one.path, inputs.numpy()), logits, atol=1e-4)
    every = export.to_onnx(store, None, tmp_path / "all.onnx")
    found = export.onnx_predict(every.path, inputs.numpy())
    assert np.allclose(found["scores"], store.route(inputs).scores, atol=1e-4)
