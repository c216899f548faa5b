"""Prediction without the task's name: who wins, what is kept for it, and that it never changes."""

from __future__ import annotations

import copy
import gc
import json
import math
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import test_base as over_base
from digit_tasks import digits, permuted, split
from nets import points
from tinysubnets import networks
from tinysubnets.baselines.masked import WSN
from tinysubnets.cli import main
from tinysubnets.errors import SettingError, TaskError
from tinysubnets.experiments import metrics
from tinysubnets.experiments.routing import Routed, without_task
from tinysubnets.format.routed import AllTasks
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model import routing
from tinysubnets.model.evaluation import auroc
from tinysubnets.model.routing import (
    PARTS,
    Gaussian,
    Record,
    Router,
    RoutingSettings,
    fitted_weights,
    has_features,
    input_projection,
    projection,
    with_features,
)
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

SETTINGS: dict[str, Any] = {"density": 0.2, "post_pruning": False, "bits": 4}
TRAINING = {"epochs": 4, "batch_size": 32, "lr": 5e-3}


def network() -> Architecture:
    """A network of the package, which a saved model rebuilds by itself."""
    settings = {"in_features": 64, "hidden": [64, 64]}
    net = networks.build("mlp", **settings)
    return Architecture(net, rebuild={"network": "mlp", "settings": settings})


def make(architecture: Architecture | None = None, **settings: Any) -> TinySubNets:
    given = SETTINGS | {"training": TRAINING, "device": "cpu"} | settings
    return TinySubNets(architecture or network(), **given)


@lru_cache(maxsize=1)
def learned() -> TinySubNets:
    """A learner of three permutations of digits, which no test changes."""
    learner = make()
    for task in permuted():
        learner.learn(task)
    return learner


def labels_of(task: Task) -> np.ndarray:
    return np.array(task.classes)[task.test.labels.numpy()]


def mixed() -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Test inputs of all three tasks with their tasks and labels."""
    tasks = permuted()
    inputs = torch.cat([t.test.inputs() for t in tasks])
    names = np.repeat([t.name for t in tasks], [len(t.test) for t in tasks])
    return inputs, names, np.concatenate([labels_of(t) for t in tasks])


# What a user gets.


def test_tasks_and_labels_are_found_without_a_name() -> None:
    inputs, names, labels = mixed()
    store = learned().store
    found = store.predict(inputs)
    known = np.concatenate([store.predict(t.name, t.test.inputs()) for t in permuted()])
    assert (found.tasks == names).mean() > 0.98
    assert (found.labels == labels).mean() > (known == labels).mean() - 0.02
    assert len(found) == len(inputs) and found.labels.dtype == labels.dtype
    assert ((found.confidence > 0.3) & (found.confidence <= 1)).all()
    # Where the right task is found, the label is what that task says.
    right = found.tasks == names
    assert (found.labels[right] == known[right]).all()
    assert (found.probability > 0.09).all() and (found.probability <= 1).all()


def test_the_same_by_the_learner_and_with_none_for_the_task() -> None:
    inputs, _, _ = mixed()
    learner = learned()
    first, *others = (
        learner.store.predict(inputs),
        learner.predict(inputs),
        learner.predict(None, inputs),
        learner.predict(inputs=inputs),
        learner.store.predict(None, inputs),
    )
    for other in others:
        assert np.array_equal(first.labels, other.labels)
        assert np.array_equal(first.routing.scores, other.routing.scores)
    assert "p0" in str(first) and "1200 in all" in str(first)


def test_candidates_can_be_named() -> None:
    inputs, names, _ = mixed()
    found = learned().store.route(inputs, among=["p2", "p0"])
    assert found.candidates == ("p0", "p2") and found.scores.shape == (1200, 2)
    others = names != "p1"
    assert (found.tasks[others] == names[others]).mean() > 0.98
    assert set(found.tasks) == {"p0", "p2"}


def test_a_batch_of_one_task_adds_up() -> None:
    store, task = learned().store, permuted()[1]
    for start in range(0, 400, 8):
        inputs = task.test.inputs(slice(start, start + 8))
        single, together = store.route(inputs), store.route(inputs, together=True)
        assert set(together.tasks) == {"p1"}
        assert np.allclose(together.scores, single.scores.sum(0), atol=1e-3)
        assert together.confidence.min() >= single.confidence.mean() - 1e-3
    assert not store.route(task.test.inputs(), together=True).unknown.any()
    noise = torch.randint(0, 17, (64, 64), dtype=torch.uint8)
    assert store.route(noise, together=True).unknown.all()


def test_inputs_that_no_task_claims_are_unknown() -> None:
    inputs, _, _ = mixed()
    store = learned().store
    noise = torch.randint(0, 17, (300, 64), dtype=torch.uint8)
    own, other = store.route(inputs), store.route(noise)
    assert 0.01 < own.unknown.mean() < 0.12  # 0.05 of the validation data
    assert other.unknown.mean() > 0.95
    assert auroc(own.typicality, other.typicality) > 0.98
    assert abs(float(np.mean(own.typicality))) < 0.5


def test_how_well_another_data_set_is_told_from_the_tasks() -> None:
    inputs, _, _ = mixed()
    learner = learned()
    foreign = torch.randint(0, 17, (300, 64), dtype=torch.uint8)
    own, other = learner.store.route(inputs), learner.store.route(foreign)
    found = learner.evaluate_unknown(inputs, foreign)
    pairs = (own.typicality[:, None] > other.typicality[None]).mean()
    assert found.auroc == pytest.approx(pairs, abs=1e-6) and found.auroc > 0.98
    assert found.refused == other.unknown.mean() and found.own_refused == own.unknown.mean()
    assert (found.num_known, found.num_unknown) == (1200, 300)
    assert f"curve {100 * found.auroc:.2f} %, of which 50 % is" in str(
        found
    ) and "of 300 foreign inputs" in str(found)
    # One task's inputs are foreign to the two others.
    p1, p2 = (permuted()[n].test.inputs() for n in (1, 2))
    assert learner.evaluate_unknown(p1, p2, among=["p0", "p1"]).auroc > 0.9
    assert learner.store.evaluate_unknown(p1, p1).auroc == pytest.approx(0.5)
    with pytest.raises(TaskError, match="no unknown inputs"):
        learner.evaluate_unknown(p1, p1[:0])
    bare = make(routing={"parts": []})
    bare.learn(permuted()[0])
    with pytest.raises(TaskError, match="cannot be told"):
        bare.evaluate_unknown(p1, p2)


def test_how_many_own_inputs_may_be_refused_is_a_setting() -> None:
    task = permuted()[0]
    for share in (0.0, 0.3):
        learner = make(routing={"unknown_share": share})
        learner.learn(task)
        refused = learner.store.route(task.valid.inputs()).unknown.mean()
        assert refused == pytest.approx(share, abs=0.03)


def test_scores_are_what_they_say() -> None:
    task, store = permuted()[1], learned().store
    inputs = task.test.inputs(slice(0, 50))
    logits = {name: store.logits(name, inputs) for name in store.tasks}
    energy = torch.stack([z.logsumexp(1) for z in logits.values()], 1)
    shares = [z.softmax(1) for z in logits.values()]
    entropy = torch.stack([-(p * p.log()).sum(1) for p in shares], 1)
    assert np.allclose(store.route(inputs, rule="energy").scores, energy, atol=1e-5)
    assert np.allclose(store.route(inputs, rule="entropy").scores, -entropy, atol=1e-5)
    # The rule by default, from the vectors that each task keeps.
    flat = inputs.flatten(1).float()
    points = flat @ projection(64, 24).T
    columns = []
    for number, name in enumerate(store.tasks):
        kept = store.subnet(name).routing
        weights = [store.subnet("p2").routing[p][0] for p in ("energy", "inputs")]
        _, mean, deviation = kept["energy"]
        logs, center = kept["inputs.diagonal"].tensor_split(2)
        whiten = torch.eye(24)
        whiten[torch.tril_indices(24, 24, -1).unbind()] = kept["inputs.rows"]
        whiten = logs.exp()[:, None] * whiten
        density = logs.sum() - (points @ whiten.T - center).square().sum(1) / 2
        columns.append(weights[0] * (energy[:, number] - mean) / deviation + weights[1] * density)
    assert np.allclose(store.route(inputs).scores, torch.stack(columns, 1), atol=1e-3)
    assert store.route(inputs).rule == "energy + inputs"


def test_no_task_is_decoded_twice_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SubnetStore(learned().store.architecture)
    store.banks, store.subnets = learned().store.banks, learned().store.subnets
    inputs, _, _ = mixed()
    expected = learned().store.route(inputs).scores
    store.decoded_bytes = 1  # nothing stays but the last
    decoded: list[str] = []
    weights = SubnetStore.weights

    def counted(self: SubnetStore, task: str) -> torch.Tensor:
        decoded.append(task)
        return weights(self, task)

    monkeypatch.setattr(SubnetStore, "weights", counted)
    assert np.allclose(store.route(inputs, batch_size=100).scores, expected, atol=1e-4)
    assert sorted(decoded) == ["p0", "p1", "p2"]
    decoded.clear()
    assert np.allclose(store.route(inputs, stacked=True).scores, expected, atol=1e-4)
    assert sorted(set(decoded)) == sorted(decoded)
    # Of inputs that are read bit by bit, for every piece of them.
    monkeypatch.setattr("tinysubnets.model.routing.CHUNK_BYTES", 1)
    stream = torch.utils.data.TensorDataset(inputs)
    decoded.clear()
    assert np.allclose(store.route(stream, batch_size=600).scores, expected, atol=1e-4)
    assert len(decoded) > 3
    store.decoded_bytes = 1 << 20  # all tasks
    store.route(stream, batch_size=600)
    decoded.clear()
    store.route(stream, batch_size=600)
    assert not decoded


def test_a_device_is_waited_for_once_a_task_not_once_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, _, _ = mixed()
    store = copy.deepcopy(learned().store)
    expected = store.logits("p0", inputs, batch_size=50), store.route(inputs, batch_size=50).scores
    waits: list[int] = []
    cpu = Tensor.cpu

    def counted(self: Tensor) -> Tensor:
        waits.append(self.numel())
        return cpu(self)

    monkeypatch.setattr(Tensor, "cpu", counted)
    num_batches = -(-len(inputs) // 50)
    assert num_batches > 16
    logits = store.logits("p0", inputs, batch_size=50)
    assert len(waits) == -(-num_batches // 16)
    assert torch.equal(logits, expected[0])
    waits.clear()
    scores = store.route(inputs, batch_size=50).scores
    # One for each of three tasks, and one for the part of each batch that needs no network.
    assert len(waits) <= 3 + num_batches
    assert np.array_equal(scores, expected[1])


def test_few_inputs_of_a_stream_wait_however_much_stays_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, _, _ = mixed()
    store = copy.deepcopy(learned().store)
    store.decoded_bytes = 1 << 30
    monkeypatch.setattr("tinysubnets.model.routing.CHUNK_BYTES", 2 * 100 * 64)
    read: list[weakref.ref[Tensor]] = []
    waiting: list[int] = []

    def stream() -> Iterator[Tensor]:
        for part in inputs.split(100):
            waiting.append(sum(r() is not None for r in read))
            batch = part.clone()
            read.append(weakref.ref(batch))
            yield batch
            del batch

    names = list(store.subnets.values())
    claims = Router(store, names).claims(stream(), batch_size=100)
    assert len(waiting) == 12 and max(waiting) <= 2
    found = routing.decide(Router(store, names), claims)
    assert np.array_equal(found.scores, store.route(inputs, batch_size=100).scores)


def test_all_networks_in_one_pass_say_the_same() -> None:
    inputs, _, _ = mixed()
    store = learned().store
    for rule in (None, "energy"):
        one_by_one = store.route(inputs, rule=rule)
        stacked = store.route(inputs, rule=rule, stacked=True)
        assert np.allclose(one_by_one.scores, stacked.scores, atol=1e-4)
    five = split(5)  # of two classes each, whose normalizations differ
    learner = make(routing={"parts": ["energy", "features"]})
    for task in five[:3]:
        learner.learn(task)
    inputs = five[0].test.inputs()
    one_by_one = learner.store.route(inputs)
    assert np.allclose(
        one_by_one.scores, learner.store.route(inputs, stacked=True).scores, atol=1e-3
    )


def test_what_is_stacked_is_kept_while_the_tasks_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, _, _ = mixed()
    store = copy.deepcopy(learned().store)
    first = store.route(inputs, rule="energy", stacked=True).scores
    whole, made = sum(t.numel() for t in store.tensors(store.tasks[0]).values()), []
    usual = torch.stack

    def stack(tensors: Sequence[Tensor], *others: Any, **more: Any) -> Tensor:
        made.append(sum(t.numel() for t in tensors))
        return usual(tensors, *others, **more)

    monkeypatch.setattr(torch, "stack", stack)
    assert np.array_equal(store.route(inputs, rule="energy", stacked=True).scores, first)
    assert sum(n for n in made if n % whole == 0) == 0 and max(made, default=0) < whole
    two = store.route(inputs, rule="energy", stacked=True, among=list(store.tasks[:2])).scores
    assert np.allclose(two, first[:, :2], atol=1e-4)
    some = list(store.tasks[1:])  # as many others, in the same places
    apart = store.route(inputs, rule="energy", stacked=True, among=some).scores
    assert np.allclose(apart, first[:, 1:], atol=1e-4) and sum(made) >= len(some) * whole
    store.remove(store.tasks[0])
    assert np.allclose(store.route(inputs, rule="energy", stacked=True).scores, apart, atol=1e-4)


def test_what_stays_decoded_is_within_its_limit_with_what_is_stacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, _, _ = mixed()
    original = learned().store
    made: list[weakref.ref[Tensor]] = []
    usual, decode = torch.stack, SubnetStore.task_tensors

    def watched(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        made.extend(map(weakref.ref, tensors.values()))
        return tensors

    def stack(*given: Any, **more: Any) -> Tensor:
        return watched({"": usual(*given, **more)})[""]

    def task_tensors(self: SubnetStore, subnet: Any) -> dict[str, Tensor]:
        return watched({n: t.clone() for n, t in decode(self, subnet).items()})

    def split(weights: Tensor) -> dict[str, Tensor]:
        return watched({n: t.clone() for n, t in of_weights(weights).items()})

    store = SubnetStore(copy.deepcopy(original.architecture))
    store.banks, store.subnets = original.banks, original.subnets
    of_weights = store.architecture.split
    monkeypatch.setattr(store.architecture, "split", split)
    monkeypatch.setattr(torch, "stack", stack)
    monkeypatch.setattr(SubnetStore, "task_tensors", task_tensors)

    def held() -> int:
        gc.collect()
        return sum(t.nbytes for r in made if (t := r()) is not None)

    size = sum(t.nbytes for t in store.tensors("p0").values())
    assert not store.architecture.constants and held() == size
    for limit in range(1, 8):  # in tasks; two and their stack are four
        store.drop_caches_()
        store.decoded_bytes = limit * size
        two = store.route(inputs, rule="energy", stacked=True, among=["p0", "p1"]).scores
        assert held() == (min(limit, 2) + 2 * (limit >= 4)) * size
        store.tensors("p2")
        assert held() == (min(limit, 3) + 2 * (limit >= 5)) * size
        again = store.route(inputs, rule="energy", stacked=True, among=["p0", "p1"]).scores
        assert np.array_equal(two, again) and held() <= limit * size
    store.drop_caches_()
    store.decoded_bytes = 1  # nothing stays but the last
    for _ in range(2):
        store.route(inputs, rule="energy", stacked=True)
        assert held() == size


def test_a_shortlist_asks_few_networks() -> None:
    inputs, names, _ = mixed()
    store = learned().store
    calls: list[str] = []
    outputs = store.outputs

    def counted(subnet: Any, tensors: Any, raw: Any, seen: Any) -> Any:
        calls.extend([subnet.name] * len(raw))
        return outputs(subnet, tensors, raw, seen)

    store.outputs = counted  # type: ignore[method-assign]
    try:
        found = store.route(inputs, shortlist=1)
    finally:
        del store.outputs
    assert len(calls) == len(inputs) and (found.tasks == names).mean() > 0.95
    assert (np.isfinite(found.scores).sum(1) == 1).all()
    assert np.array_equal(store.route(inputs, shortlist=3).scores, store.route(inputs).scores)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", ["networks", "heads over a base"])
def test_a_shortlist_leaves_the_others_without_a_score(kind: str, stacked: bool) -> None:
    store, inputs = learned().store, mixed()[0]
    if kind != "networks":
        store = over_heads({"dims": 8}).store
        inputs = torch.cat([points(n).valid.inputs() for n in range(3)])
    full = store.route(inputs).scores
    short = store.route(inputs, shortlist=1, stacked=stacked).scores
    asked = np.isfinite(short)
    assert (asked.sum(1) == 1).all() and asked.any(0).sum() > 1
    assert np.allclose(short[asked], full[asked], atol=1e-3)


def test_typicality_is_by_the_weights_of_the_task_that_claims_most() -> None:
    inputs, _, _ = mixed()
    store = learned().store
    router = Router(store, list(store.subnets.values()))
    weights = [r.weights for r in router.records]
    assert router.whole and weights[0] != weights[1] != weights[2] != weights[0]
    claims = router.claims(inputs, batch_size=500)
    found = store.route(inputs)
    assert len(set(found.chosen)) == 3
    for place, record in enumerate(router.records):
        mean, deviation, least = record.score
        typicality = (claims.score(record.weights)[:, place] - mean) / deviation
        here = found.chosen == place
        assert np.allclose(found.typicality[here], typicality[here], rtol=1e-5, atol=1e-5)
        assert np.array_equal(found.unknown[here], typicality[here] < least)


def test_a_shortlist_leaves_out_tasks_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    densities = routing.Router._densities

    def first_unknown(*args: Any) -> Tensor:
        found = densities(*args)
        found[:, 0] = torch.nan
        return found

    monkeypatch.setattr(routing.Router, "_densities", first_unknown)
    scores = learned().store.route(mixed()[0], shortlist=1).scores
    assert not np.isfinite(scores[:, 0]).any() and (np.isfinite(scores).sum(1) == 1).all()


def test_labels_of_several_kinds_stay_what_they_are() -> None:
    x, y = digits()
    words = np.array(["zero", "one"])
    low, high = y < 2, (y > 2) & (y < 5)
    learner = make()
    learner.learn(Task.from_arrays("words", x[low][:200], words[y[low][:200]]))
    learner.learn(Task.from_arrays("numbers", x[high][:200], y[high][:200]))
    found = learner.predict(np.concatenate([x[low][-20:], x[high][-20:]]))
    assert found.labels.dtype == object and {type(v) for v in found.labels} == {str, int}
    assert set(found.labels[:20]) == {"zero", "one"} and set(found.labels[20:]) >= {3, 4}
    assert np.isin(found.labels[20:].astype(str), ["3", "4"]).mean() >= 0.9


class Flexible(nn.Module):
    """A network that takes images of any size, and tokens no less."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


def test_only_tasks_of_the_same_shape_and_kind_are_asked() -> None:
    x, y = digits()
    x = (x.reshape(-1, 1, 8, 8).astype(np.float32)) * 15
    learner = make(Architecture(Flexible()))
    small = Task.from_arrays("small", x[:300, :, 1:7, 1:7], y[:300])
    pixels = Task.from_arrays("pixels", x[:300].astype(np.uint8), y[:300])
    for task in (small, Task.from_arrays("large", x[:300], y[:300]), pixels):
        learner.learn(task)
    assert learner.store.route(x[:5, :, 1:7, 1:7]).candidates == ("small",)
    assert learner.store.route(x[:5]).candidates == ("large", "pixels")
    # Scaled pixels cannot be of a task that was learned from raw ones.
    assert learner.store.route(x[:5] / 255).candidates == ("large",)
    with pytest.raises(TaskError, match=r"no task takes .* shape \(5, 1, 9, 9\)"):
        learner.store.route(np.zeros((5, 1, 9, 9), np.float32))


def test_nothing_to_say_about_no_inputs() -> None:
    found = learned().store.predict(torch.zeros(0, 64, dtype=torch.uint8))
    assert len(found) == len(found.labels) == len(found.tasks) == len(found.unknown) == 0


def test_mistakes_are_explained() -> None:
    store = learned().store
    inputs = permuted()[0].test.inputs(slice(0, 4))
    with pytest.raises(TaskError, match=r"predict\(inputs\)"):
        store.predict("p0")
    with pytest.raises(TaskError, match="Did you mean 'p0'"):
        store.route(inputs, among=["p00"])
    with pytest.raises(TaskError, match="list of tasks"):
        store.route(inputs, among="p0")
    for strange in (["p0", ["p1"]], [3], [None], 5):
        with pytest.raises(TaskError):
            store.route(inputs, among=strange)
        with pytest.raises(TaskError):
            store.predict(inputs, among=strange)
        with pytest.raises(TaskError):
            AllTasks(store, strange)
    with pytest.raises(TaskError, match="no task to choose"):
        store.route(inputs, among=[])
    with pytest.raises(TaskError, match="given already"):
        store.predict("p0", inputs, together=True)
    with pytest.raises(SettingError, match="energy"):
        store.route(inputs, rule="energie")
    with pytest.raises(TaskError, match="shortlist"):
        store.route(inputs, rule="energy", shortlist=2)
    with pytest.raises(TaskError, match="shortlist"):
        store.route(inputs, together=True, shortlist=2)
    broken = inputs.float()
    broken[2, 5] = math.nan
    with pytest.raises(TaskError, match="first: sample 2"):
        store.route(broken)
    with pytest.raises(TaskError, match="no task"):
        SubnetStore(network()).predict(inputs)
    for wrong in (
        {"dims": 0},
        {"frequencies": 25},
        {"frequencies": -1},
        {"parts": ["energy", "energy"]},
        {"unknown_share": 1.0},
    ):
        with pytest.raises(SettingError, match=f"routing.{next(iter(wrong))}"):
            make(routing=wrong)
    with pytest.raises(SettingError, match="energy"):
        make(routing={"parts": ["energie"]})


def test_the_command_tells_labels_and_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learned().save(tmp_path / "model")
    noise = np.random.default_rng(0).integers(0, 17, (4, 64), dtype=np.uint8)
    mine = permuted()[1].test.inputs(slice(0, 6)).numpy()
    np.savez(tmp_path / "x.npz", inputs=np.concatenate([mine, noise]))
    command = ["predict", str(tmp_path / "model"), str(tmp_path / "x.npz")]
    assert main([*command, "--json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] is None and found["candidates"] == ["p0", "p1", "p2"]
    rows, live = found["predictions"], learned().predict(np.concatenate([mine, noise]))
    assert [r["task"] for r in rows] == live.tasks.tolist()
    assert [r["unknown"] for r in rows] == live.unknown.tolist()
    assert [r["classes"][0]["name"] for r in rows] == live.labels.tolist()
    assert [len(r["classes"]) for r in rows] == [2] * 10
    assert [r["confidence"] for r in rows] == pytest.approx(live.confidence.tolist())
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "p1" in lines[2] and sum("unknown" in line for line in lines) == live.unknown.sum() > 2
    guesses = [line.split() for line in lines if "unknown; best guess" in line]
    assert guesses and all(guess[-3] in ("p0", "p1", "p2") for guess in guesses)
    assert all(float(guess[-2]) > 0 for guess in guesses)
    assert main([*command, "--json", "--together"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    live = learned().predict(np.concatenate([mine, noise]), together=True)
    assert {r["task"] for r in rows} == {"p1"}
    assert [r["confidence"] for r in rows] == pytest.approx(live.confidence.tolist())
    assert main([*command, "--among", "p0", "--among", "p2", "--together"]) == 0
    out = capsys.readouterr().out
    assert "p1" not in out
    assert main([*command, "--task", "p1", "--together"]) == 2
    assert "--task names it already" in capsys.readouterr().err


# What is kept.


@pytest.mark.slow
def test_nothing_that_is_kept_changes_when_a_task_is_added(tmp_path: Path) -> None:
    learner, tasks = make(), permuted()
    for task in tasks[:2]:
        learner.learn(task)
    inputs = torch.cat([t.test.inputs() for t in tasks])
    before = learner.predict(inputs)
    kept = {
        n: {k: v.clone() for k, v in learner.store.subnet(n).routing.items()} for n in ("p0", "p1")
    }
    learner.save(tmp_path)
    learner.learn(tasks[2])
    after = learner.predict(inputs, among=["p0", "p1"])
    assert np.array_equal(before.routing.scores, after.routing.scores)
    assert np.array_equal(before.labels, after.labels)
    assert np.array_equal(before.unknown, after.unknown)
    assert np.array_equal(before.routing.typicality, after.routing.typicality)
    for name, vectors in kept.items():
        now = learner.store.subnet(name).routing
        assert now.keys() == vectors.keys()
        assert all(torch.equal(now[k], v) for k, v in vectors.items())
    # Learned on from the file, to the same numbers.
    resumed = TinySubNets.resume(tmp_path, device="cpu")
    resumed.learn(tasks[2])
    for name in resumed.tasks:
        mine, theirs = learner.store.subnet(name).routing, resumed.store.subnet(name).routing
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)
    with pytest.raises(TaskError, match="never changes"):
        learner.store.keep_routing_("p0", {})


def test_a_file_keeps_it_and_counts_it(tmp_path: Path) -> None:
    store = learned().store
    inputs, _, _ = mixed()
    store.save(tmp_path)
    loaded = SubnetStore.load(tmp_path)
    assert np.array_equal(loaded.route(inputs).scores, store.route(inputs).scores)
    ledger = store.ledger()
    assert all(200 * 8 < entry.routing < 350 * 8 for entry in ledger.tasks.values())
    alone = SubnetStore.load(tmp_path, task="p1")
    assert alone.route(inputs).candidates == ("p1",)
    bare = make(routing={"parts": []})
    bare.learn(permuted()[0])
    assert bare.store.ledger().total.routing == 0 and bare.store.subnet("p0").routing == {}


def test_models_without_it_are_routed_by_their_energies() -> None:
    inputs, names, _ = mixed()
    store = learned().store
    stripped = dict(store.subnets)
    try:
        store.subnets = {n: replace(s, routing={}) for n, s in stripped.items()}
        found, plain = store.route(inputs), store.route(inputs, rule="energy")
        assert np.array_equal(found.scores, plain.scores) and found.rule == "energy"
        assert (found.tasks == names).mean() > 0.6
        assert not found.unknown.any() and np.isnan(found.typicality).all()
        # So is a store in which one task keeps nothing, or nonsense.
        for odd in (
            {},
            {"energy": torch.ones(1)},
            {"score": torch.ones(3), "inputs": torch.ones(3)},
        ):
            store.subnets = stripped | {"p1": replace(stripped["p1"], routing=odd)}
            assert np.array_equal(store.route(inputs).scores, plain.scores)
        assert store.route(inputs, among=["p0", "p2"]).rule == "energy + inputs"
    finally:
        store.subnets = stripped


@pytest.mark.slow
def test_nothing_of_an_isolated_task_enters_another() -> None:
    tasks = permuted()
    x, y = digits()
    other = Task.from_arrays("p0", x[:300, ::-1].copy(), y[:300])
    records = []
    for first in (tasks[0], other):
        learner = make()
        trainer = learner.begin(first, isolated=True)
        while not trainer.finished:
            trainer.epoch()
        trainer.finish()
        learner.learn(tasks[1])
        records.append(learner.store.subnet("p1").routing)
    assert records[0].keys() == records[1].keys()
    assert all(torch.equal(v, records[1][k]) for k, v in records[0].items())
    # And nothing of any other enters an isolated one.
    vectors = []
    for first in (tasks[0], other):
        learner = make(isolated=True)
        learner.learn(first)
        learner.learn(tasks[1])
        vectors.append(learner.store.subnet("p1").routing)
    assert all(torch.equal(v, vectors[1][k]) for k, v in vectors[0].items())
    assert [float(vectors[0][p][0]) for p in ("energy", "inputs")] == pytest.approx(
        [PARTS["energy"], PARTS["inputs"]], abs=1e-3
    )


def test_other_methods_of_subnets_keep_it_too() -> None:
    learner = WSN(network(), training=TRAINING, density=0.3, device="cpu")
    for task in permuted()[:2]:
        learner.learn(task)
    task = permuted()[1]
    assert (learner.predict(task.test.inputs()).tasks == "p1").mean() > 0.95


# Its mathematics.


def test_gaussians_are_densities_and_survive_their_storage() -> None:
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(5, 5, generator=generator)
    groups = torch.arange(4000) % 3
    centers = 4 * torch.randn(3, 5, generator=generator)
    points = torch.randn(4000, 5, generator=generator) @ mix.T + centers[groups]
    fitted = Gaussian.fit(points, groups, 3)
    exact = torch.distributions.MultivariateNormal(centers[0], mix @ mix.T)
    near = points[groups == 0][:50]
    ours = fitted.log_density(near) - 2.5 * math.log(2 * math.pi)
    assert float((ours - exact.log_prob(near)).abs().median()) < 0.3
    record = Record({"features": 0.5}, {"features": (1.0, 2.0)}, gaussians={"features": fitted})
    read = record.rounded()
    assert read.weights == {"features": 0.5} and read.spreads == {"features": (1.0, 2.0)}
    assert read.gaussians["features"].means.shape == (3, 5)
    gap = (read.gaussians["features"].log_density(points) - fitted.log_density(points)).abs()
    assert float(gap.median()) < 1
    assert Record.read(read.vectors()) is not None
    for name in ("features.means", "features.rows"):
        assert Record.read({k: v for k, v in read.vectors().items() if k != name}) is None


def test_classes_may_spread_unlike_each_other() -> None:
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(5, 5, generator=generator)
    groups = torch.arange(6000) % 3
    spreads = 4.0 ** torch.arange(-1, 2)  # of the three classes
    centers = 4 * torch.randn(3, 5, generator=generator)
    rest = torch.randn(6000, 5, generator=generator) * spreads[groups][:, None]
    points = rest @ mix.T + centers[groups]
    fitted = Gaussian.fit(points, groups, 3, spreads=True)
    exact = [
        torch.distributions.MultivariateNormal(c, s**2 * mix @ mix.T)
        for c, s in zip(centers, spreads, strict=True)
    ]
    largest = torch.stack([d.log_prob(points) for d in exact]).amax(0)
    ours = fitted.log_density(points) - 2.5 * math.log(2 * math.pi)
    assert float((ours - largest).abs().median()) < 0.3
    # One covariance for all classes says something else: that of the widest.
    alike = Gaussian.fit(points, groups, 3).log_density(points) - 2.5 * math.log(2 * math.pi)
    assert float((alike - largest).abs().median()) > 2
    record = Record({"inputs": 0.5}, {}, gaussians={"inputs": replace(fitted, frequencies=2)})
    read = record.rounded()
    found = read.gaussians["inputs"]
    assert found.means.shape == (3, 5) and found.frequencies == 2
    assert found.spreads is not None and found.spreads.shape == (3, 5)
    assert float((found.log_density(points) - fitted.log_density(points)).abs().median()) < 1
    # What is stored is rounded already.
    vectors = read.vectors()
    assert set(vectors) == {"score", "inputs", "inputs.diagonal", "inputs.rows"}
    again = Record.read(vectors)
    assert again is not None and torch.equal(again.gaussians["inputs"].spreads, found.spreads)
    diagonal = vectors["inputs.diagonal"]
    for wrong in (
        {"inputs": torch.tensor([0.5, 6.0])},  # more frequencies than dimensions
        {"inputs": torch.tensor([0.5, -1.0])},
        {"inputs": torch.tensor([0.5, 1.5])},
        {"inputs": torch.tensor([0.5, math.inf])},
        {"inputs": torch.tensor([0.5, 2.0, 1.0])},
        {"inputs.diagonal": diagonal[:-1]},
        {"inputs.diagonal": diagonal[:-5]},
        {"inputs.diagonal": diagonal[:5]},
        {"inputs.rows": vectors["inputs.rows"][:-1]},
    ):
        assert Record.read(vectors | wrong) is None, wrong


@pytest.mark.parametrize("with_spreads", [False, True])
def test_densities_of_many_classes_are_computed_a_part_at_a_time(
    with_spreads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may hold more classes than a task has; what they take at once stays bounded."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(50, 4, generator=generator)
    spreads = torch.rand(50, 4, generator=generator) if with_spreads else None
    gaussian = Gaussian(torch.eye(4), means, 0.5, spreads)
    points = torch.randn(20, 4, generator=generator)
    whole, most = gaussian.log_density(points), 0
    monkeypatch.setattr("tinysubnets.model.routing.CLASS_VALUES", 7 * 4 * 500)

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal most
            found = func(*args, **(kwargs or {}))
            most = max(most, found.numel() if isinstance(found, Tensor) else 0)
            return found

    with Watch():
        parts = gaussian.log_density(points)
    assert most == 20 * 7 * 4 and torch.equal(parts, whole)


@pytest.mark.parametrize("shape", [(1, 1, 3000), (1, 3000, 1), (3000, 1, 1)])
def test_lowest_frequencies_take_no_more_memory_than_their_number(shape: tuple[int, ...]) -> None:
    """All frequencies of 3,000 places are 72 MB, of which two are asked for."""
    tracemalloc.start()
    rows = input_projection(shape, 3, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.shape == (3, 3000) and peak < 2_000_000


def test_a_class_of_few_samples_spreads_like_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(401, 4, generator=generator)
    groups = torch.tensor([0] * 400 + [1])
    found = Gaussian.fit(points, groups, 2, spreads=True)
    assert found.spreads is not None
    assert float(found.spreads.exp()[0].sub(1).abs().max()) < 0.1
    assert float(found.spreads.exp()[1].min()) > 0.9


def test_constant_inputs_have_a_density() -> None:
    points = torch.zeros(20, 3)
    points[:, 0] = torch.arange(20.0)
    gaussian = Gaussian.fit(points, torch.zeros(20, dtype=torch.int64), 1)
    assert torch.isfinite(gaussian.log_density(points)).all()
    nothing = Gaussian.fit(torch.ones(20, 3), torch.zeros(20, dtype=torch.int64), 1)
    assert torch.isfinite(nothing.log_density(torch.ones(2, 3))).all()


def test_projections_are_the_same_everywhere() -> None:
    signs = (projection(5, 3) * math.sqrt(5)).round().int()
    assert signs.tolist() == [[-1, -1, 1, 1, -1], [1, -1, 1, -1, -1], [1, -1, 1, 1, 1]]
    big = projection(4000, 64)
    assert float((big @ big.T - torch.eye(64)).abs().max()) < 0.1


def test_lowest_frequencies_come_first() -> None:
    rows = input_projection((3, 8, 8), 20, 12)
    assert rows.shape == (20, 192)
    lowest, others = rows[:12] * 8, rows[12:]
    assert torch.equal(others, projection(192, 8))
    assert float((lowest @ lowest.T - torch.eye(12)).abs().max()) < 1e-3
    images = lowest.reshape(12, 3, 8, 8)
    grey = [bool((i - i[0]).abs().max() < 1e-6) for i in images]
    assert torch.allclose(images[0], images[0, 0, 0, 0])  # the mean
    # How channels differ is told half as finely as their mean.
    assert grey == [True, False, False, *[True] * 5, *[False] * 4]

    def changes(wave: Tensor) -> tuple[int, int]:
        """How often an image changes its sign from top to bottom, and from left to right."""
        signs = wave.sign()
        down, across = signs[1:, 0] != signs[:-1, 0], signs[0, 1:] != signs[0, :-1]
        return int(down.sum()), int(across.sum())

    assert [changes(i[0]) for i in images[3:8]] == [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]
    assert {changes(i[0]) for i in images[8:]} == {(0, 1), (1, 0)}
    # What is no image, or is kept as it is, has none.
    assert torch.equal(input_projection((192,), 20, 12), projection(192, 20))
    assert torch.equal(input_projection((3, 8, 8), 192, 12), torch.eye(192))
    assert torch.equal(input_projection((3, 8, 8), 20, 0), projection(192, 20))
    assert len(input_projection((1, 2, 40), 30, 30)) == 30


def images_of(count: int = 3) -> list[Task]:
    """Digits as images of 8 × 8: upright, upside down, mirrored."""
    x, y = digits()
    x = x.reshape(-1, 1, 8, 8)
    turns: list[Any] = [x, x[:, :, ::-1], x[:, :, :, ::-1]]
    return [
        Task.from_arrays(f"t{n}", z[:700].copy(), y[:700], test=(z[-400:].copy(), y[-400:]))
        for n, z in enumerate(turns[:count])
    ]


@pytest.mark.slow
def test_classes_and_frequencies_find_tasks_of_images_better(tmp_path: Path) -> None:
    tasks, shares = images_of(), {}
    for label, settings in (
        ("one", {}),
        ("classes", {"per_class": True}),
        ("both", {"per_class": True, "frequencies": 6}),
    ):
        rebuild = {"network": "small-cnn", "settings": {"in_channels": 1}}
        architecture = Architecture(networks.build("small-cnn", in_channels=1), rebuild=rebuild)
        own = {"dims": 12, "parts": ["inputs"], **settings}
        learner = make(architecture, routing=own, training=TRAINING | {"epochs": 1})
        for task in tasks:
            learner.learn(task)
        store = learner.store
        found = [store.route(t.test.inputs()) for t in tasks]
        right = [float((f.tasks == t.name).mean()) for f, t in zip(found, tasks, strict=True)]
        shares[label] = float(np.mean(right))
        assert all(r.gaussians["inputs"].frequencies == settings.get("frequencies", 0)
                   for r in Router(store, list(store.subnets.values())).records)  # fmt: skip
    assert shares["classes"] > shares["one"] + 0.01 and shares["both"] > shares["one"] + 0.01
    # A file keeps it, an export gives the same scores.
    inputs = torch.cat([t.test.inputs(slice(0, 50)) for t in tasks])
    store.save(tmp_path)
    live = store.route(inputs)
    assert np.array_equal(SubnetStore.load(tmp_path).route(inputs).scores, live.scores)
    assert np.allclose(AllTasks(store)(inputs)[5].numpy(), live.scores, rtol=1e-4, atol=1e-3)


def test_densities_in_other_coordinates_are_not_compared() -> None:
    store = learned().store
    kept = dict(store.subnets)
    try:
        vectors = dict(kept["p1"].routing)
        vectors["inputs"] = torch.cat([vectors["inputs"], torch.tensor([4.0])])
        store.subnets = kept | {"p1": replace(kept["p1"], routing=vectors)}
        store.drop_caches_()
        inputs = permuted()[0].test.inputs(slice(0, 4))
        assert store.route(inputs).rule == "energy"
        assert store.route(inputs, among=["p0", "p2"]).rule == "energy + inputs"
    finally:
        store.subnets = kept
        store.drop_caches_()


def test_weights_are_those_of_the_greatest_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    # Two parts: the first tells the last task from four others, the second says nothing.
    table = torch.randn(3000, 5, 2, generator=generator, dtype=torch.float64)
    table[:, -1, 0] += 2.0
    first, second = fitted_weights(table, [0.3, 1.0])
    assert first == pytest.approx(2.0, rel=0.15) and second < 0.4
    best = _likelihood(table, [first, second])
    for weights in ([first * 1.2, second], [first / 1.2, second], [first, second + 0.2]):
        assert _likelihood(table, weights) < best
    # Where every weight would do, they stay what they were.
    certain = torch.zeros(50, 3, 2, dtype=torch.float64)
    certain[:, -1] = 1000.0
    assert fitted_weights(certain, [0.3, 1.0]) == pytest.approx([0.3, 1.0], rel=0.05)


@pytest.mark.parametrize("score", [math.inf, -math.inf, math.nan, 1e308])
def test_scores_that_overflow_leave_the_weights_as_they_were(score: float) -> None:
    """Without a warning: a task of enormous inputs may be learned."""
    table = torch.zeros(6, 3, 2, dtype=torch.float64)
    table[:, -1, 0] = score
    assert fitted_weights(table, [0.3, 1.0]) == pytest.approx([0.3, 1.0])


def _likelihood(table: torch.Tensor, weights: list[float]) -> float:
    scores = table @ torch.tensor(weights, dtype=torch.float64)
    return float(scores.log_softmax(1)[:, -1].mean())


def test_features_are_what_the_head_sees() -> None:
    architecture, store = network(), learned().store
    inputs = permuted()[0].test.inputs(slice(0, 20))
    tensors = store.tensors("p0")
    wider = with_features(architecture, tensors, 7)
    seen = store.subnet("p0").normalization(inputs)
    outputs = architecture(wider, seen)
    assert torch.allclose(outputs[:, :-7], architecture(tensors, seen), atol=1e-5)
    hidden = architecture.build(tensors)[:-1](seen)  # all but the head
    assert torch.allclose(outputs[:, -7:], hidden @ projection(64, 7).T, atol=1e-5)
    assert has_features(architecture)
    head = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1))
    head.add_module("fc", nn.Conv2d(4, 10, 1))
    assert not has_features(Architecture(nn.Sequential(*head, nn.Flatten()), head="2"))


@pytest.mark.slow
def test_every_part_finds_tasks() -> None:
    tasks = permuted()[:2]
    for parts in (("energy",), ("inputs",), ("features",), ("energy", "inputs", "features")):
        learner = make(routing=RoutingSettings(parts=parts))  # type: ignore[arg-type]
        for task in tasks:
            learner.learn(task)
        found = [learner.store.route(t.test.inputs()) for t in tasks]
        shares = [float((f.tasks == t.name).mean()) for f, t in zip(found, tasks, strict=True)]
        assert min(shares) > 0.8, (parts, shares)
        assert found[0].rule == " + ".join(parts)


def test_a_pretrained_base_finds_tasks_by_its_own_features() -> None:
    one = over_base.learner(routing={"parts": ["energy", "base"], "dims": 8})
    for number in range(3):
        one.learn(points(number))
    store, records = one.store, [one.store.subnet(f"t{n}").routing for n in range(3)]
    assert all(r["base.means"].shape == (3 * 8,) for r in records)
    inputs = torch.cat([points(n).valid.inputs() for n in range(3)])
    names = np.repeat(["t0", "t1", "t2"], len(inputs) // 3)
    found = store.route(inputs)
    assert found.rule == "energy + base" and (found.tasks == names).mean() > 0.6
    # One pass of the base for all tasks, and then few networks.
    short = store.route(inputs, shortlist=1)
    assert (np.isfinite(short.scores).sum(1) == 1).all()
    exported = AllTasks(store)(inputs)[5]
    assert np.allclose(exported.numpy(), found.scores, atol=1e-3)
    # Other networks have no base to ask.
    plain = make(routing={"parts": ["energy", "base"]})
    plain.learn(permuted()[0])
    assert set(plain.store.subnet("p0").routing) == {"score", "energy"}


def over_heads(routing: dict[str, Any], **settings: Any) -> TinySubNets:
    """A learner of three tasks that are heads over a base."""
    one = over_base.learner(price=1.0, rungs=("head",), routing=routing, **settings)
    for number in range(3):
        one.learn(points(number))
    assert all(one.store.is_head_alone(s) for s in one.store.subnets.values())
    return one


def alike(store: SubnetStore) -> SubnetStore:
    """The same tasks with one normalization, as those over a pretrained base have it."""
    first = next(iter(store.subnets.values())).normalization
    store.subnets = {n: replace(s, normalization=first) for n, s in store.subnets.items()}
    store.drop_caches_()
    return store


class Passes:
    """Counts how often inputs pass a store's network: by what its first layer sees."""

    def __init__(self, store: SubnetStore) -> None:
        self.seen = 0
        code = store.architecture.code("eval")
        next(iter(code.children())).register_forward_hook(self._one_more)

    def _one_more(self, _: nn.Module, given: tuple[torch.Tensor, ...], __: Any) -> None:
        self.seen += len(given[0])

    def of(self, call: Any, inputs: torch.Tensor, **settings: Any) -> float:
        """How many passes each input takes in a call, in the mean."""
        self.seen = 0
        call(inputs, **settings)
        return self.seen / len(inputs)


def test_heads_over_a_base_take_one_pass_of_it() -> None:
    inputs = torch.cat([points(n).valid.inputs() for n in range(3)])
    for parts in (("energy", "base"), ("energy", "inputs"), ("energy", "features"), ("base",)):
        one = over_heads({"parts": parts, "dims": 8})
        store = one.store
        by_name = [store.logits(n, inputs) for n in store.tasks]
        expected = store.predict(inputs)  # in three normalizations
        energies = torch.stack([z.logsumexp(1) for z in by_name], 1).numpy()
        # A head's outputs are those of the whole network, to the bit.
        assert np.array_equal(store.route(inputs, rule="energy").scores, energies)
        for row, task in enumerate(expected.tasks):
            logits = by_name[store.tasks.index(task)][row]
            assert expected.labels[row] == store.subnet(task).classes[int(logits.argmax())]
        passes = Passes(store)
        assert passes.of(store.predict, inputs) == 3
        alike(store)
        for call in (store.predict, store.route, AllTasks(store)):
            assert passes.of(call, inputs) == 1, (parts, call)
        assert Router(store, list(store.subnets.values())).passes() == 1
        assert passes.of(store.route, inputs, stacked=True) == 1
        if "base" in parts:
            assert passes.of(store.route, inputs, shortlist=1) == 1
            assert np.isfinite(store.route(inputs, shortlist=1).scores).any(1).all()
        exported = AllTasks(store)(inputs)
        live = store.predict(inputs)
        assert np.allclose(exported[5].numpy(), live.routing.scores, rtol=1e-5, atol=1e-5)


def test_networks_that_no_part_needs_are_not_asked() -> None:
    one = over_base.learner(routing={"parts": ["base"], "dims": 8})
    for number in range(3):
        one.learn(points(number))
    store = alike(one.store)
    assert not any(store.is_head_alone(s) for s in store.subnets.values())
    inputs = torch.cat([points(n).valid.inputs() for n in range(3)])
    passes = Passes(store)
    assert passes.of(store.route, inputs) == 1
    # The base's pass, then each input by the network of its own task alone.
    found = store.predict(inputs)
    assert passes.of(store.predict, inputs) == 2
    assert Router(store, list(store.subnets.values())).passes() == 2
    for task in store.tasks:
        mine = found.tasks == task
        assert np.array_equal(found.labels[mine], store.predict(task, inputs[mine]))
    assert np.isfinite(found.routing.scores).all()
    together = store.predict(inputs[:8], together=True)
    assert np.array_equal(together.labels, store.predict(together.tasks[0], inputs[:8]))
    plain = make(routing={"parts": ["inputs"]})
    for task in permuted()[:2]:
        plain.learn(task)
    inputs = permuted()[0].test.inputs()
    assert Passes(plain.store).of(plain.store.route, inputs) == 0


def test_heads_of_any_network_answer_as_the_whole_of_it() -> None:
    """Where what reaches the head does not tell its outputs, whole passes are made."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(12, 16)
            self.fc = nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.fc(self.body(x).relu())

    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2.0)

    torch.manual_seed(0)
    in_place = nn.Sequential(nn.Linear(12, 16))
    in_place.add_module("fc", nn.Sequential(Doubling(), nn.ReLU(), nn.Linear(16, 5)))
    for net in (Scaled(), in_place):
        one = over_heads({"parts": ["energy", "base"], "dims": 8}, net=net)
        inputs = torch.cat([points(n).valid.inputs() for n in range(3)])
        logits = [one.store.logits(n, inputs) for n in one.store.tasks]
        energies = torch.stack([z.logsumexp(1) for z in logits], 1).numpy()
        assert np.array_equal(one.store.route(inputs, rule="energy").scores, energies)


# What is measured.


def test_what_is_measured_at_the_end_is_what_would_have_been_on_the_way() -> None:
    tasks, learner = split(5)[:3], make(scenario_type="class-IL")
    probes = [metrics.Probe.of(t) for t in tasks]
    rows = []
    for number, task in enumerate(tasks):
        learner.learn(task)
        rows.append(metrics.measure_row(learner, probes, number))
    found = without_task(learner.store, probes)
    assert found["class-IL"]["matrix"] == rows and found["domain-IL"] is None
    assert found["class-IL"]["average_accuracy"] == metrics.average_accuracy(rows)
    assert [sum(row) for row in found["confusion"]] == [len(p.data) for p in probes]
    right = [row[i] / sum(row) for i, row in enumerate(found["confusion"])]
    assert found["task_accuracy"] == pytest.approx(np.mean(right))
    histogram = found["confidence"]
    assert sum(histogram["right"]) == sum(r[i] for i, r in enumerate(found["confusion"]))
    total = sum(histogram["right"]) + sum(histogram["wrong"])
    assert total == sum(map(sum, found["confusion"]))
    assert found["passes"] == 3 and 0.5 < found["unknown"]["auroc"] <= 1
    assert found["together"]["task_accuracy"] >= found["task_accuracy"]
    # Beside it the rule of SupSup, from the same passes.
    entropy = without_task(learner.store, probes, rule="entropy")
    assert found["entropy_rule"]["task_accuracy"] == pytest.approx(entropy["task_accuracy"])
    for other in (found, entropy):
        share = other["entropy_rule"]["class-IL"]
        assert share == pytest.approx(entropy["class-IL"]["average_accuracy"])


def test_where_tasks_have_the_same_classes_the_label_counts() -> None:
    probes = [metrics.Probe.of(t) for t in permuted()]
    store = learned().store
    found = without_task(store, probes, rule="energy")
    matrix = found["domain-IL"]["matrix"]
    for number, probe in enumerate(probes):
        predicted = Routed(store, probe, "energy")
        assert predicted.right(store.tasks, "domain-IL") == matrix[-1][number]
        assert matrix[-1][number] >= found["class-IL"]["matrix"][-1][number]
    assert found["unknown"] is None  # energies alone know no unknown inputs
    learner = make(scenario_type="domain-IL", store=store)
    inputs, _, labels = mixed()
    share = [metrics.accuracy(learner, p) for p in probes]
    assert np.mean(share) == pytest.approx((store.predict(inputs).labels == labels).mean())


def test_areas_under_the_curve() -> None:
    generator = np.random.default_rng(0)
    known, unknown = generator.normal(1, 1, 300), generator.normal(0, 1, 200)
    pairs = (known[:, None] > unknown[None]).mean()
    assert auroc(known, unknown) == pytest.approx(pairs)
    assert auroc(np.ones(3), np.zeros(4)) == 1.0 and auroc(np.ones(3), np.ones(4)) == 0.5
