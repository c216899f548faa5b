"""Every method is a `Learner`: built by name and used through the same calls as any other.

Interrupted between two epochs, or saved and resumed by its own class, it gives the same bits as one
that was never interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from digit_tasks import permuted
from quick import mostly_slow
from tinysubnets import networks
from tinysubnets.errors import ArtifactError, MismatchError, TaskError
from tinysubnets.experiments import methods
from tinysubnets.experiments.methods import METHODS, learner_class
from tinysubnets.method.base import Learner, TaskTrainer
from tinysubnets.method.core import MaskedLearner
from tinysubnets.model.routing import Prediction
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

# Methods with subnets learn the same in every scenario type: one of them is enough.
CASES = [
    (name, kind)
    for name in METHODS
    for kind in methods.scenario_types(name)
    if kind == "task-IL" or name == "tsn" or not issubclass(learner_class(name), MaskedLearner)
]
EACH_KIND = ["naive", "independent", "replay", "gem", "ewc", "packnet", "tsn"]
QUICK = [(name, "task-IL") for name in EACH_KIND] + [("naive", "class-IL"), ("si", "domain-IL")]
TRAINING = {"epochs": 3, "batch_size": 32, "lr": 5e-3}
NETWORK = {"in_features": 64, "hidden": [20, 16], "norm": "batch", "dropout": 0.1}


def tasks() -> tuple[Task, ...]:
    """Three small tasks of the same ten classes, so that every scenario type can have them."""
    return permuted(3, 150)


def make(method: str, scenario_type: str = "task-IL") -> Learner:
    """A new learner by name, on a network of the package."""
    rebuild = {"network": "mlp", "settings": NETWORK}
    architecture = Architecture(networks.build("mlp", **NETWORK), rebuild=rebuild)
    settings = {} if scenario_type == "task-IL" else {"scenario_type": scenario_type}
    return methods.build(
        method,
        architecture,
        settings=settings,
        training=TRAINING,
        pruning={"iterations": 4},
        seed=3,
    )


def go_on(trainer: TaskTrainer) -> None:
    """Train all epochs that are left and keep the task."""
    while not trainer.finished:
        trainer.epoch()
    trainer.finish()


def assert_same(one: Learner, other: Learner, learned: tuple[Task, ...]) -> None:
    """Both have learned these tasks and answer with the same bits."""
    assert type(one) is type(other)
    assert one.tasks == other.tasks == tuple(t.name for t in learned)
    assert one.scenario_type == other.scenario_type and one.training == other.training
    for task in learned:
        inputs = task.test.inputs()
        routed = one.store is not None
        names = [task.name] if routed or one.scenario_type == "task-IL" else [task.name, None]
        for name in names:
            assert torch.equal(one.logits(name, inputs), other.logits(name, inputs)), name
        if routed:
            scores = [learner.store.route(inputs).scores for learner in (one, other)]
            assert np.array_equal(*scores) and np.isfinite(scores[0]).all()
        assert one.columns(task.name) == other.columns(task.name)
    mine, theirs = one.state()[0], other.state()[0]
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(("method", "scenario_type"), mostly_slow(CASES, QUICK))
def test_every_method_is_a_learner(method: str, scenario_type: str, tmp_path: Path) -> None:
    first, second, third = tasks()
    live = make(method, scenario_type)
    assert type(live) is methods.learner_class(method) and live.scenario_type == scenario_type
    assert scenario_type in live.scenario_types and live.tasks == ()
    report = live.learn(first)
    assert live.reports == {first.name: report} and report.name == first.name
    assert 1 <= report.best_epoch <= 3 and 0 < report.valid_accuracy <= 1

    # Stopped within the second task, and gone on with by a new learner and a new trainer.
    trainer = live.begin(second)
    assert trainer.task is second and trainer.epochs_done == 0 and not trainer.finished
    assert trainer.epoch().epoch == trainer.epochs_done == 1
    (learned, plain), (half, numbers) = live.state(), trainer.state()
    other = make(method, scenario_type)
    other.restore_(learned, json.loads(json.dumps(plain)))
    other.revisit_(first)
    assert_same(live, other, (first,))
    assert other.reports == live.reports
    resumed_trainer = other.begin(second)
    resumed_trainer.restore_(half, json.loads(json.dumps(numbers)))
    assert resumed_trainer.epochs_done == 1
    go_on(trainer)
    go_on(resumed_trainer)
    assert_same(live, other, (first, second))

    # Saved, and resumed by its own class.
    path = live.save(tmp_path / "live")
    assert path.parent == tmp_path / "live" and path.is_file()
    assert other.save(tmp_path / "other").read_bytes() == path.read_bytes()
    resumed = type(live).resume(tmp_path / "live")
    assert_same(live, resumed, (first, second))
    assert resumed.ledger().file_bytes == live.ledger().file_bytes == path.stat().st_size
    for task in (first, second):
        resumed.revisit_(task)
    for learner in (live, resumed):
        learner.learn(third)
    assert_same(live, resumed, (first, second, third))
    assert resumed.save(tmp_path / "resumed").read_bytes() == live.save(path.parent).read_bytes()

    found = live.predict(None if scenario_type != "task-IL" else third.name, third.test.inputs())
    labels = found.labels if isinstance(found, Prediction) else found
    assert len(labels) == len(third.test) and set(labels.tolist()) <= set(third.classes)
    start, stop = live.columns(third.name)
    assert stop - start == third.num_classes
    assert live.logits(third.name, third.test.inputs()).shape == (len(third.test), stop - start)
    ledger = live.ledger()
    assert set(ledger.tasks) == {first.name, second.name, third.name} and ledger.total.total > 0
    assert all(value > 0 for value in live.capacity().values())


@pytest.mark.parametrize("method", mostly_slow(METHODS, EACH_KIND))
def test_settings_are_taken_from_the_model_unless_they_are_given(
    method: str, tmp_path: Path
) -> None:
    live = make(method)
    live.learn(tasks()[0])
    live.save(tmp_path)
    resumed = type(live).resume(tmp_path, overrides=["training.epochs=1", "training.lr=0.01"])
    assert (resumed.training.epochs, resumed.training.lr) == (1, 0.01)
    assert resumed.training.batch_size == live.training.batch_size == 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of some methods, by name."""
    found = {}
    for method in ("naive", "ewc", "tsn", "packnet"):
        learner = make(method)
        learner.learn(tasks()[0])
        found[method] = learner.save(tmp_path_factory.mktemp(method)).parent
    return found


@pytest.mark.parametrize("method", METHODS)
def test_the_model_of_another_method_is_refused(method: str, folders: dict[str, Path]) -> None:
    for other, folder in folders.items():
        if methods.learner_class(other) is methods.learner_class(method):
            continue
        with pytest.raises(ArtifactError, match="method"):
            methods.learner_class(method).resume(folder)


@pytest.mark.parametrize("method", mostly_slow(METHODS, EACH_KIND))
def test_the_state_of_another_method_is_refused(method: str) -> None:
    other = make("naive" if method != "naive" else "replay")
    other.learn(tasks()[0])
    with pytest.raises(MismatchError, match=f"{other.name!r}, not by"):
        make(method).restore_(*other.state())


@pytest.mark.parametrize("method", mostly_slow(METHODS, EACH_KIND))
def test_a_trainer_that_another_task_has_overtaken_is_refused(method: str) -> None:
    first, second, _ = tasks()
    learner = make(method)
    late = learner.begin(second)
    learner.learn(first)
    while not late.finished:
        late.epoch()
    with pytest.raises(TaskError, match="begin it again"):
        late.finish()
    assert learner.tasks == (first.name,)
