"""Accuracy, that of each class, and the confusion matrix, of every method."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from digit_tasks import split
from nets import mlp, pictures
from tinysubnets import networks
from tinysubnets.baselines.joint import Naive
from tinysubnets.cli import main
from tinysubnets.errors import DataError, TaskError
from tinysubnets.experiments import methods
from tinysubnets.method.base import Learner
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.evaluation import evaluate
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

KINDS = ("tsn", "packnet", "naive", "independent")


def answers(logits: list[list[float]]) -> Any:
    """A network that gives these logits for inputs that count from 0."""
    return lambda raw: torch.tensor(logits)[raw[:, 0].long()]


def test_confusion_and_accuracies_by_hand() -> None:
    logits = [[2.0, 0, 0], [0, 2.0, 0], [0, 2.0, 0], [0, 2.0, 0], [2.0, 0, 0]]
    found = evaluate(answers(logits), "t", ("a", "b", "c"), np.arange(5.0)[:, None], list("aabba"))
    assert found.confusion.tolist() == [[2, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert found.accuracy == 0.8 and found.num_samples == 5 and found.measured_on == "data"
    assert found.per_class["a"] == pytest.approx(2 / 3) and found.per_class["b"] == 1.0
    assert math.isnan(found.per_class["c"])
    right, wrong = math.log(math.e**2 + 2) - 2, math.log(math.e**2 + 2)
    assert found.loss == pytest.approx((4 * right + wrong) / 5)
    lines = str(found).splitlines()
    assert lines[0].startswith("t: 80.00 % right of 5 samples")
    assert "66.67 % of 3; 1 taken for b" in lines[1] and "no sample" in lines[3]


def test_large_data_are_measured_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinysubnets.model.evaluation.CHUNK", 2)
    sizes: list[int] = []

    def network(raw: torch.Tensor) -> torch.Tensor:
        sizes.append(len(raw))
        return torch.eye(2)[raw[:, 0].long() % 2]

    found = evaluate(network, "t", (0, 1), np.arange(5.0)[:, None], np.arange(5) % 2)
    assert sizes == [2, 2, 1] and found.accuracy == 1.0


@pytest.mark.parametrize(
    ("data", "labels", "said"),
    [
        (np.zeros((3, 1)), None, "labels are needed"),
        (np.zeros((3, 1)), [0, 1], r"3 inputs but labels of shape \(2,\)"),
        (np.zeros((2, 1)), [0, 7], "7 are no classes of the task, which knows 0, 1"),
        (np.zeros((0, 1)), [], "no samples"),
    ],
)
def test_data_without_fitting_labels_are_refused(data: Any, labels: Any, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        evaluate(answers([[1.0, 0]]), "t", (0, 1), data, labels)


def test_numbers_for_names_are_refused_with_a_cure() -> None:
    pairs = torch.utils.data.TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    loader = torch.utils.data.DataLoader(pairs)
    with pytest.raises(TaskError, match=r"Task\.from_datasets\(…, classes=\[…\]\)"):
        evaluate(answers([[1.0, 0]]), "t", ("cat", "dog"), loader)


@pytest.fixture(scope="module", params=KINDS)
def learned(request: pytest.FixtureRequest) -> tuple[Learner, tuple[Task, ...]]:
    """A learner of two small tasks."""
    learner = methods.build(
        request.param,
        Architecture(mlp(64, 16)),
        training={"epochs": 3},
        pruning={"iterations": 2},
        device="cpu",
    )
    tasks = split()[:2]
    for task in tasks:
        learner.learn(task)
    return learner, tasks


def test_every_method_is_measured_alike(learned: tuple[Learner, tuple[Task, ...]]) -> None:
    learner, tasks = learned
    for task in tasks:
        assert task.test is not None
        inputs = task.test.inputs()
        labels = np.array(task.classes)[task.test.labels.numpy()]
        found = learner.evaluate(task)
        assert found.measured_on == "test" and found.classes == task.classes
        predicted = learner.predict(task.name, inputs)
        assert found.accuracy == pytest.approx((predicted == labels).mean())
        for label, share in found.per_class.items():
            assert share == pytest.approx((predicted == labels)[labels == label].mean())
        given = learner.evaluate(task.name, inputs, labels)
        assert np.array_equal(given.confusion, found.confusion) and given.measured_on == "data"
        shares = learner.predict_proba(task.name, inputs)
        assert np.array_equal(np.array(task.classes)[shares.argmax(1)], predicted)
        assert np.allclose(shares.sum(1), 1)
    untested = Task(tasks[0].name, tasks[0].classes, tasks[0].train, tasks[0].valid)
    assert learner.evaluate(untested).measured_on == "valid"
    with pytest.raises(TaskError, match="unknown task"):
        learner.evaluate("s9", inputs, labels)


def write(folder: Path, count: int, seed: int, side: int = 16) -> Path:
    """A folder of images per class, larger than the network takes."""
    from PIL import Image

    images, labels = pictures(count, seed)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).resize((side, side)).save(folder / label / f"{number}.png")
    return folder


def test_held_out_images_are_measured_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image")
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    net = networks.build("small-cnn")
    settings: dict[str, Any] = {"epochs": 3, "kept_epoch": "auto", "min_valid": 60}
    learner = TinySubNets(Architecture(net), device="cpu", **settings)
    things = Task.from_folder("things", write(tmp_path / "things", 80, 0), size=8)
    learner.learn(things)
    held = write(tmp_path / "held", 40, 1)
    found = learner.evaluate("things", held)
    assert (found.num_samples, found.measured_on) == (40, "data")
    model = learner.save(tmp_path / "model").parent
    asked = ["evaluate", str(model), "--task", "things", "--data", str(held), "--json"]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["confusion"] == found.confusion.tolist() and told["loss"] == found.loss
    # A Task without a test part is measured on what was not learned from, if it was the task's own.
    assert learner.evaluate(things).measured_on == "valid"
    assert learner.evaluate(things).num_samples == len(things.valid)
    # And of train/ beside test/ nothing but test/.
    write(tmp_path / "both" / "train", 40, 1)
    write(tmp_path / "both" / "test", 12, 2)
    both = learner.store.evaluate("things", str(tmp_path / "both"))
    assert (both.num_samples, both.measured_on) == (12, "test")
    images, labels = pictures(10, 3)
    np.savez(tmp_path / "arrays.npz", inputs=images, labels=labels)
    assert learner.evaluate("things", tmp_path / "arrays.npz").num_samples == 10
    with pytest.raises(TaskError, match="brings its labels"):
        learner.evaluate("things", held, ["bright"] * 40)
    with pytest.raises(DataError, match="not a folder"):
        learner.evaluate("things", tmp_path / "nowhere")
    naive = Naive(Architecture(networks.build("small-cnn")), device="cpu", epochs=1)
    naive.learn(Task.from_arrays("things", *pictures(40)))
    with pytest.raises(TaskError, match="does not record how pictures become"):
        naive.evaluate("things", held)
