"""The ladder: a task pays only for what gains, whatever interrupts it, and nothing is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nets import points
from test_base import TRAINING, data, fresh, learner, pretrained
from test_difference import net as norm_net
from tinysubnets.errors import ArchitectureError, SettingError, TaskError
from tinysubnets.format import io
from tinysubnets.method import ladder
from tinysubnets.method.ladder import (
    LadderTrainer,
    RungReport,
    gain_by_chance,
    loss_by_chance,
    num_wrong,
    told,
)
from tinysubnets.method.learner import TinySubNets
from tinysubnets.method.settings import parse_rungs
from tinysubnets.model import removal
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, NO_BANK
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks import loader
from tinysubnets.tasks.task import Task
from tinysubnets.training import features

RUNGS = ("head", "norms", "2%", "10%")
DEAR = 400.0  # points a kilobyte: what 10 % of the weights of a tiny network gain does not pay
LADDER: dict[str, Any] = {"price": 1e-6, "rungs": RUNGS, "training": TRAINING | {"lr": 0.05}}


def far(number: int) -> Task:
    """A task that the base's features are of little use for: the sign of a product."""
    inputs = np.random.default_rng(number).normal(size=(1200, 12)).astype(np.float32)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).astype(int)
    return Task.from_arrays(f"far {number}", inputs, labels, valid=0.3)


def climb(one: TinySubNets, task: Task) -> LadderTrainer:
    trainer = one.begin(task)
    assert isinstance(trainer, LadderTrainer)
    return trainer


def test_a_rung_is_climbed_where_it_gains_what_its_bytes_cost() -> None:
    one = learner(**LADDER)
    report = one.learn(points(5))
    first, *others = report.rungs
    assert first.name == "head" and first.taken and first.gain == 100 * first.valid_accuracy
    last, ground = first, first  # the rung that was kept, and the one differences are added to
    for rung in others:
        assert rung.gain == pytest.approx(100 * (rung.valid_accuracy - last.valid_accuracy))
        assert rung.extra_bytes == rung.file_bytes - last.file_bytes
        gain = 100 * (rung.valid_accuracy - ground.valid_accuracy)
        chance = gain_by_chance(ground.valid_accuracy, len(points(5).valid))
        pays = gain > 0 and gain >= chance and rung.gain >= 1e-6 * rung.extra_bytes / 1000
        assert rung.valid_loss is not None and ground.valid_loss is not None
        fallen = ground.valid_loss - rung.valid_loss
        told_by_loss = fallen > loss_by_chance(ground.valid_loss, len(points(5).valid))
        told_by_loss = told_by_loss and abs(rung.gain) <= chance and "%" not in rung.name
        assert rung.taken == (pays or told_by_loss)
        last = rung if rung.taken else last
        ground = last if "%" not in last.name else ground
    assert last is not first  # something paid at this price
    assert report.valid_accuracy == last.valid_accuracy
    assert one.store.evaluate("t5", points(5)).accuracy == pytest.approx(last.valid_accuracy)
    decision = one.store.subnet("t5").decision
    assert decision is not None and told(list(report.rungs)) in decision.reason


def test_a_first_rung_that_reuses_looks_at_the_inputs_before() -> None:
    one = learner(**LADDER | {"rungs": ("reuse", "norms")})
    one.learn(points(0))
    inputs = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    with pytest.raises(ArchitectureError, match=r"5"):
        one.learn(Task.from_arrays("narrow", inputs, np.arange(40) % 3))
    assert one.tasks == ("t0",)


def test_few_samples_to_validate_with_climb_no_rung_by_luck() -> None:
    inputs = np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, 2, 200)  # there is nothing to learn
    for seed in range(4):
        one = learner(**LADDER)
        report = one.learn(Task.from_arrays("noise", inputs, labels, valid=0.2, seed=seed))
        for rung in report.rungs[1:]:
            assert not rung.taken or rung.gain >= 100 * 15**0.5 / 40  # of about 20 wrong


@pytest.mark.parametrize(
    ("rung", "chance", "price", "least", "taken"),
    [
        ("rank 3", 99.0, 1e-6, 0.01, True),  # accuracy cannot tell, the loss can
        ("rank 3", 99.0, 1e-6, 9.0, False),  # nor can the loss
        ("rank 3", 99.0, 1e6, 0.01, False),  # its bytes are worth more than what cannot be told
        ("10%", 99.0, 1e-6, 0.01, False),  # a sparse difference comes in the place of another
    ],
)
def test_where_accuracy_cannot_tell_the_loss_does(
    rung: str, chance: float, price: float, least: float, taken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ladder, "gain_by_chance", lambda *_: chance)
    monkeypatch.setattr(ladder, "loss_by_chance", lambda *_: least)
    training = TRAINING | {"epochs": 12, "lr": 0.1}
    one = learner(price=price, rungs=("head", rung), training=training, difference_lr=0.05)
    head, other = one.learn(far(1)).rungs
    assert head.valid_loss is not None and other.valid_loss is not None
    assert 0.01 < head.valid_loss - other.valid_loss < 9 and 0 < other.gain < 99
    assert other.taken == taken


def test_a_much_worse_rung_is_not_climbed_for_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "loss_by_chance", lambda *_: -9.0)  # any loss is low enough
    one = learner(**LADDER | {"rungs": ("head", "norms"), "training": TRAINING | {"lr": 3.0}})
    trainer = climb(one, points(5))
    while len(trainer.results) < 1:
        trainer.epoch()
    head = trainer.results[0]
    monkeypatch.setattr(ladder, "gain_by_chance", lambda *_: 0.0)
    assert not trainer._loss_tells(replace(head, name="norms", gain=-0.1))
    assert trainer._loss_tells(replace(head, name="norms", gain=0.0, extra_bytes=0))


def test_few_rungs_are_tried_unless_more_are_asked_for() -> None:
    standard = climb(learner(price=1e-6), points(0))  # of this network no matrix is large enough
    assert [r.name for r in standard.rungs] == ["head", "reuse", "rank 4"]
    named = ("head", "norms", "0.5%", "2%", "5%")
    asked = climb(learner(price=1e-6, rungs=named), points(0))
    assert {r.name for r in asked.rungs} == set(named)


def test_what_a_rung_costs_is_what_the_file_grows_by(tmp_path: Path) -> None:
    one = learner(**LADDER)
    one.learn(points(0))
    before = one.ledger().file_bytes
    report = one.learn(points(1))
    kept = [r for r in report.rungs if r.taken][-1]
    grown = (one.ledger().file_bytes or 0) - (before or 0)
    # The words about it, and what it is recognized by without its name, are not weighed.
    other = len(one.store.subnet("t1").decision.reason)  # type: ignore[union-attr]
    other += round(one.ledger().tasks["t1"].routing) // 8 + 64
    assert 0 <= grown - kept.file_bytes <= other


def test_a_high_price_stops_at_the_head_and_none_switches_the_ladder_off() -> None:
    dear = learner(**LADDER | {"price": 1e6})
    report = dear.learn(points(0))
    assert [r.taken for r in report.rungs] == [True, False, False]  # then it does not go on
    assert report.density == 0 and set(dear.store.subnet("t0").task_params) == {
        "fc.weight",
        "fc.bias",
    }
    off = learner(**LADDER | {"price": 0.0})
    assert not off.learn(points(0)).rungs and off.store.density("t0") > 0
    standard = TinySubNets(Architecture(pretrained(), base="frozen"), device="cpu")
    assert isinstance(standard.begin(points(0)), LadderTrainer)


def rungs_at(price: float) -> dict[str, RungReport]:
    """What a far task does on the ladder at a price."""
    one = learner(**LADDER | {"difference_lr": 0.05, "price": price})
    one.learn(points(1))
    return {r.name: r for r in one.learn(far(1)).rungs}


def test_differences_come_from_the_densest_down() -> None:
    rungs = rungs_at(200.0)
    assert list(rungs) == ["head", "norms", "10%", "2%"]
    two = rungs["2%"]
    assert rungs["10%"].epochs == 2 * two.epochs == 2 * rungs["norms"].epochs
    assert rungs["10%"].taken and two.taken  # it loses less than its bytes are worth
    assert 200.0 * two.extra_bytes / 1000 <= two.gain < 0


def test_where_the_densest_does_not_pay_a_sparser_one_may() -> None:
    dear = rungs_at(DEAR)
    ten, two = dear["10%"], dear["2%"]
    assert not ten.taken and ten.gain > 0
    assert two.taken and two.gain >= DEAR * two.extra_bytes / 1000


def test_where_the_densest_gains_nothing_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "gain_by_chance", lambda *_: 99.0)
    rungs = rungs_at(1e-6)
    assert list(rungs) == ["head", "norms", "10%"] and not rungs["10%"].taken


@pytest.mark.slow
# It climbs all rungs; or leaves the densest difference out and takes a sparser one.
@pytest.mark.parametrize(("number", "price"), [(1, 1e-6), (1, DEAR)])
def test_a_ladder_goes_on_from_its_state_in_the_middle_of_any_rung(
    number: int, price: float
) -> None:
    settings = LADDER | {"difference_lr": 0.05, "price": price}

    def run(stop: int | None) -> tuple[bytes, Any]:
        one = learner(**settings)
        one.learn(points(1))
        trainer = climb(one, far(number))
        count = 0
        while not trainer.finished:
            trainer.epoch()
            count += 1
            if count == stop:
                tensors, numbers = trainer.state()
                one = learner(**settings)
                one.learn(points(1))
                trainer = climb(one, far(number))
                trainer.restore_({n: t.clone() for n, t in tensors.items()}, numbers)
                assert trainer.epochs_done == count
        report = trainer.finish()
        same = [(r.name, r.valid_accuracy, r.file_bytes, r.taken) for r in report.rungs]
        return data(one.store), (same, count, report.best_epoch)

    expected, told_of = run(None)
    assert sum(r[3] for r in told_of[0]) > 1  # several rungs were climbed
    for stop in {1, 3, told_of[1] - 1, told_of[1]}:
        assert run(stop) == (expected, told_of)


def test_epochs_are_counted_over_all_rungs() -> None:
    one = learner(**LADDER)
    trainer = climb(one, points(0))
    reports = []
    while not trainer.finished:
        assert trainer.epochs_done == len(reports)
        reports.append(trainer.epoch())
    assert [r.epoch for r in reports] == list(range(1, len(reports) + 1))
    assert [r.epochs for r in reports[:4]] == [2, 2, 4, 4]
    assert [r.stage for r in reports[:4]] == ["head", "head", "norms", "norms"]
    with pytest.raises(TaskError, match="over"):
        trainer.epoch()
    trainer.finish()


def test_a_climb_can_be_ended_early() -> None:
    one = learner(**LADDER)
    trainer = climb(one, points(0))
    trainer.epoch()
    report = trainer.finish()
    assert [r.name for r in report.rungs] == ["head"] and one.tasks == ("t0",)


def test_nothing_is_forgotten_and_a_file_goes_on_as_if_live(tmp_path: Path) -> None:
    live = learner(**LADDER)
    live.learn(points(0))
    logits = live.logits("t0", points(0).valid.inputs())
    live.save(tmp_path)
    resumed = TinySubNets.resume(tmp_path, pretrained(), device="cpu")
    for one in (live, resumed):
        for number in (1, 2):
            one.learn(points(number))
    assert torch.equal(live.logits("t0", points(0).valid.inputs()), logits)
    assert data(live.store) == data(resumed.store)
    other = learner(**LADDER)
    other.restore_(*live.state())
    assert other.reports == live.reports


def test_a_store_that_changed_meanwhile_is_refused() -> None:
    one = learner(**LADDER)
    trainer = climb(one, points(0))
    one.learn(points(1))
    with pytest.raises(TaskError, match="begin it again"):
        while not trainer.finished:
            trainer.epoch()
    trainer = climb(one, points(0))
    trainer.epoch()
    one.learn(points(2))
    with pytest.raises(TaskError, match="begin it again"):
        trainer.finish()


def test_without_a_base_a_task_climbs_over_an_earlier_one() -> None:
    chosen = {"selection": "magnitude", "reference": "previous", "bits": 2, "first_density": 0.5}
    chosen |= {"price": 1e-6, "rungs": RUNGS, "post_pruning": False}
    one = TinySubNets(Architecture(norm_net()), training=TRAINING, device="cpu", **chosen)
    first = one.learn(points(0))
    assert not first.rungs and first.density > 0.3
    logits = one.logits("t0", points(0).valid.inputs())
    second = one.learn(points(1))
    assert [r.name for r in second.rungs][:2] == ["norms", "10%"]
    assert second.bank == NO_BANK and one.store.subnet("t1").reference == 0
    assert torch.equal(one.logits("t0", points(0).valid.inputs()), logits)
    if not second.density:
        assert torch.equal(one.store.weights("t0"), one.store.weights("t1"))


@pytest.mark.parametrize("rungs", [("head",), ("head", "10%"), ("10%",), None])
def test_over_an_earlier_task_head_and_norms_are_the_first_rung(
    rungs: tuple[str, ...] | None,
) -> None:
    chosen = {"selection": "magnitude", "reference": "previous", "bits": 2, "first_density": 0.5}
    chosen |= {"price": 1e-6, "rungs": rungs, "post_pruning": False}
    one = TinySubNets(Architecture(norm_net()), training=TRAINING, device="cpu", **chosen)
    one.learn(points(0))
    trainer = climb(one, points(1))
    differences = [r for r in rungs if r == "10%"] if rungs is not None else ["5%", "2%", "0.5%"]
    assert [r.name for r in trainer.rungs] == ["norms", *differences]


def test_a_climb_that_ends_between_two_rungs_trains_nothing_more() -> None:
    one = learner(**LADDER | {"difference_lr": 0.05})
    trainer = climb(one, far(1))
    while not trainer.results:
        trainer.epoch()
    assert [r.name for r in trainer.finish().rungs] == ["head"]


def test_a_state_of_rungs_in_another_order_is_refused() -> None:
    trainer = climb(learner(**LADDER), far(1))
    tensors, numbers = trainer.state()
    old = {k: v for k, v in numbers.items() if k != "rung"} | {"place": 0}
    with pytest.raises(TaskError, match="another order"):
        climb(learner(**LADDER), far(1)).restore_(tensors, old)


def test_over_a_difference_of_low_rank_a_sparser_one_saves_its_factors() -> None:
    """It takes their place, so that it may be cheap where a denser one is dear."""
    training = TRAINING | {"epochs": 6, "lr": 0.1}
    rungs = ("head", "rank 1", "2%", "10%")
    one = learner(**LADDER | {"rungs": rungs, "difference_lr": 0.05, "training": training})
    trainer = climb(one, far(1))
    while trainer.rung is not None and trainer.rung.name != "10%":
        trainer.epoch()
    rank, trainer.price = trainer.results[-1], 1e5  # points a kilobyte
    while len(trainer.results) < 3:
        trainer.epoch()
    ten = trainer.results[-1]
    assert rank.taken and not ten.taken and ten.gain > 0
    assert 0.2 * ten.file_bytes < rank.file_bytes < ten.file_bytes
    assert trainer.rung is not None and trainer.rung.name == "2%"


def test_where_one_sample_is_wrong_at_most_no_further_rung_is_tried() -> None:
    one = learner(**LADDER | {"training": TRAINING | {"lr": 0.05, "epochs": 12}})
    (head,) = one.learn(points(1)).rungs
    assert head.name == "head" and num_wrong(head.valid_accuracy, len(points(1).valid)) <= 1
    assert [r.name for r in one.learn(points(0)).rungs][:2] == ["head", "norms"]  # more are wrong


@pytest.mark.parametrize("rungs", [("head", "rank 2"), ("head", "rank 2", "5%")])
def test_no_rung_ends_at_a_higher_learning_rate_than_it_begins_with(rungs: tuple[str, ...]) -> None:
    training = TRAINING | {"epochs": 1, "lr": 0.05, "min_lr": 0.04}
    one = learner(**LADDER | {"rungs": rungs, "difference_lr": 0.03, "training": training})
    trainer, rates = climb(one, far(1)), {}
    while trainer.rung is not None:
        settings = trainer.training.settings
        rates[trainer.rung.name] = settings.lr, settings.min_lr
        trainer.epoch()
    assert rates["head"] == (0.05, 0.04) and rates["rank 2"] == pytest.approx((0.015, 0.015))
    assert rates.get("5%", (0.03, 0.03)) == (0.03, 0.03)


def beside_isolated_ones() -> TinySubNets:
    """A learner with a ladder, behind tasks of which two are isolated: a head alone, and sparse."""
    last: TinySubNets | None = None
    for number, settings in enumerate(({"price": 1.0, "rungs": ("head",)}, {}, {}, {}, LADDER)):
        one = learner(**settings)
        if last is not None:
            one.restore_(*last.state())
        if number < 4:
            one.learn(points(number), isolated=number in (0, 2))
        last = one
    assert last is not None
    assert [s.bank for s in last.store.subnets.values()] == [NO_BANK, NO_BANK, 1, NO_BANK]
    return last


def test_isolated_tasks_are_left_out_once_for_all_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there already is neither coded nor written again for every rung."""
    one, done = beside_isolated_ones(), {"coded": 0, "written": 0}
    code, write = SubnetStore.coded_mask, io.write_memory

    def coded(*given: Any) -> Any:
        done["coded"] += 1
        return code(*given)

    def written(*given: Any) -> Any:
        done["written"] += 1
        return write(*given)

    monkeypatch.setattr(SubnetStore, "coded_mask", coded)
    monkeypatch.setattr(io, "write_memory", written)
    trainer = climb(one, far(1))
    assert done["coded"] <= 2 and done["written"] == 2  # of the tasks that are not isolated
    done |= {"coded": 0, "written": 0}
    while not trainer.finished:
        trainer.epoch()
    assert len(trainer.results) > 2
    assert done == {"coded": len(trainer.results), "written": len(trainer.results)}


@pytest.mark.slow
def test_isolated_tasks_are_left_out_as_if_they_were_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_by_one(store: SubnetStore, numbers: list[int]) -> SubnetStore:
        trial = removal.copied(store)
        for name in [n for n, s in store.subnets.items() if s.number in numbers]:
            trial.remove(name)
        return trial

    found = []
    for _ in range(2):
        one = beside_isolated_ones()
        before = data(one.store)
        trainer = climb(one, far(1))
        while not trainer.finished:
            trainer.epoch()
        assert data(one.store) == before
        rungs = trainer.finish().rungs
        found.append(([r.file_bytes for r in rungs], data(one.store)))
        monkeypatch.setattr(ladder, "without", one_by_one)
    assert found[0] == found[1]


def test_what_an_isolated_task_costs_does_not_depend_on_others() -> None:
    names, other = ("a name of one class", "a name of another class"), ("x", "y")
    inputs, labels = far(1).train.inputs().numpy(), far(1).train.labels.numpy()
    stores, costs = [], []
    for classes in (names, other):
        one = learner(**LADDER)
        near = points(0, 2)
        one.learn(Task.from_arrays("a", near.train.inputs(), np.array(classes)[near.train.labels]))
        mine = Task.from_arrays("mine", inputs, np.array(names)[labels], valid=0.3)
        costs.append([r.file_bytes for r in one.learn(mine, isolated=True).rungs])
        one.store.remove("a", exact=True)
        assert one.tasks == ("mine",)
        stores.append(data(one.store))
    assert costs[0] == costs[1] and stores[0] == stores[1]


def test_a_sparser_difference_need_not_beat_chance_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = rungs_at(200.0)
    gain = 100 * (rungs["10%"].valid_accuracy - rungs["head"].valid_accuracy)
    # As much as the denser one has gained, and more than the sparser one.
    monkeypatch.setattr(ladder, "gain_by_chance", lambda *_: gain)
    monkeypatch.setattr(ladder, "loss_by_chance", lambda *_: 9.0)  # norms are not climbed by it
    assert rungs_at(200.0)["2%"].taken


@pytest.mark.parametrize("price", [0.5, 1.0])
def test_a_price_needs_something_to_start_from(price: float) -> None:
    with pytest.raises(SettingError, match="base='frozen'"):
        TinySubNets(Architecture(fresh()), price=price, device="cpu")


@pytest.mark.parametrize(
    "rungs",
    [
        (),
        ("2%", "1%"),
        ("norms", "head"),
        ("head", "head"),
        ("reuse",),
        ("norms", "reuse"),
        ("foot",),
        ("200%",),
        ("0%",),
    ],
)
def test_rungs_that_do_not_rise_are_refused(rungs: tuple[str, ...]) -> None:
    with pytest.raises(SettingError, match="rungs"):
        parse_rungs(rungs)
    with pytest.raises(SettingError, match="price"):
        learner(price=-1.0)
    with pytest.raises(SettingError, match="difference_lr"):
        learner(difference_lr=0.0)


def test_the_words_about_rungs() -> None:
    rungs = [
        RungReport("head", 0.9, 5000, 90.0, 5000, True, 2, 1, 1.0),
        RungReport("norms", 0.91, 6000, 1.0, 1000, True, 2, 1, 1.0),
        RungReport("2%", 0.912, 9000, 0.2, 3000, False, 2, 1, 1.0),
    ]
    assert told(rungs) == "head 90.0 %; norms +1.0 for 1.0 kB; 2% +0.2 for 3.0 kB, no"


# What an earlier task has added to the base is reused.

REUSE: dict[str, Any] = {
    "price": 1e-6,
    "rungs": ("head", "reuse", "norms", "20%"),
    "difference_lr": 0.05,
    "training": TRAINING | {"lr": 0.05, "epochs": 12},
}


def twin(number: int, name: str) -> Task:
    """Other samples of what `far` tells apart."""
    inputs = np.random.default_rng(100 + number).normal(size=(1200, 12)).astype(np.float32)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).astype(int)
    return Task.from_arrays(name, inputs, labels, valid=0.3)


@pytest.mark.slow
def test_later_tasks_reuse_earlier_differences_by_mask_alone(tmp_path: Path) -> None:
    one = learner(**REUSE)
    first = one.learn(far(1))
    assert first.density > 0 and "reuse" not in [r.name for r in first.rungs]  # there was nothing
    logits, weights = one.logits("far 1", far(1).valid.inputs()), one.store.weights("far 1")
    rungs = ("head", "reuse")
    other = learner(**REUSE | {"rungs": rungs})
    other.restore_(*one.state())
    report = other.learn(twin(1, "twin"))
    head, reuse = report.rungs
    assert reuse.name == "reuse" and reuse.taken and reuse.gain > 5
    subnet, store = other.store.subnet("twin"), other.store
    assert not subnet.mask.any() and subnet.num_new == 0 and report.density == 0
    assert subnet.reference == store.subnet("far 1").number and subnet.adds_to_base
    assert torch.equal(store.weights("twin"), weights)
    paid = max(r.file_bytes for r in first.rungs if r.taken)
    assert reuse.file_bytes < 0.75 * paid, (reuse.file_bytes, paid)
    assert reuse.file_bytes < head.file_bytes + 50, "a head, and whose differences"
    assert subnet.decision is not None and "what 'far 1' has added" in subnet.decision.reason
    assert torch.equal(other.logits("far 1", far(1).valid.inputs()), logits)
    # In a file, in an earlier task's absence, and where a task is to share nothing.
    before = other.logits("twin", twin(1, "twin").valid.inputs())
    other.save(tmp_path)
    loaded = SubnetStore.load(tmp_path, pretrained())
    loaded.remove("far 1")
    assert torch.equal(loaded.logits("twin", twin(1, "twin").valid.inputs()), before)
    alone = other.begin(twin(1, "alone"), isolated=True)
    assert isinstance(alone, LadderTrainer) and [r.name for r in alone.rungs] == ["head"]


@pytest.mark.slow
def test_a_task_climbs_on_from_what_it_reuses_and_from_its_state() -> None:
    def run(stop: int | None) -> tuple[bytes, list[tuple[str, bool]], int]:
        one = learner(**REUSE)
        one.learn(far(1))
        trainer, count = climb(one, twin(2, "twin")), 0
        while not trainer.finished:
            trainer.epoch()
            count += 1
            if count == stop:
                tensors, numbers = trainer.state()
                trainer = climb(one, twin(2, "twin"))
                trainer.restore_({n: t.clone() for n, t in tensors.items()}, numbers)
        report = trainer.finish()
        return data(one.store), [(r.name, r.taken) for r in report.rungs], count

    expected = run(None)
    assert ("reuse", True) in expected[1] and expected[1][-1][0] == "20%"
    for stop in (20, expected[2] - 1):
        assert run(stop) == expected


@pytest.mark.slow
def test_a_task_that_adds_nothing_can_be_reused_and_removed(tmp_path: Path) -> None:
    """One with norms of its own alone: what reuses it is the same without it."""
    norms = learner(**REUSE | {"rungs": ("norms",)})
    norms.learn(far(1))
    assert norms.store.subnet("far 1").adds_nothing
    one = learner(**REUSE | {"rungs": ("reuse", "norms")})
    one.restore_(*norms.state())
    report = one.learn(twin(1, "twin"))
    assert report.rungs[0].name == "reuse" and one.store.subnet("twin").reference == 0
    own = {n for n in one.store.subnet("twin").task_params if not n.startswith("fc.")}
    assert own
    if not report.rungs[-1].taken or len(report.rungs) == 1:
        tensors = [one.store.tensors(t) for t in one.tasks]
        assert all(torch.equal(tensors[0][n], tensors[1][n]) for n in own)
    inputs = twin(1, "twin").valid.inputs()
    logits = one.logits("twin", inputs)
    one.store.remove("far 1")
    assert one.store.subnet("twin").reference == BASE
    one.save(tmp_path)
    assert torch.equal(SubnetStore.load(tmp_path, pretrained()).logits("twin", inputs), logits)


@pytest.mark.slow
def test_what_does_no_better_than_the_base_is_not_tried() -> None:
    one = learner(**REUSE)
    one.learn(far(1))
    report = one.learn(points(99, 5))  # what the base was trained on
    assert "reuse" not in [r.name for r in report.rungs]


# What reaches the head is computed once.


def inputs_of(one: TinySubNets, task: Task) -> tuple[int, ...]:
    """The shape of what the first rung is trained on."""
    sample = climb(one, task).training.task.train.inputs(slice(0, 1))
    return tuple(sample.shape[1:])


def test_a_head_is_trained_on_features() -> None:
    assert inputs_of(learner(**LADDER), points(0)) == (16,)


def test_features_of_streamed_data_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = []
    for limit in (loader.RESIDENT_BYTES, 0):
        monkeypatch.setattr(
            loader.DeviceLoader.__init__, "__kwdefaults__", {"resident_bytes": limit}
        )
        one = learner(**LADDER)
        one.learn(points(0))
        accuracies.append((one.store.digest("t0"), one.reports["t0"].valid_accuracy))
    assert accuracies[0] == accuracies[1]


def test_features_are_not_kept_where_they_change_or_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "FEATURE_BYTES", 100)
    assert inputs_of(learner(**LADDER), points(0)) == (12,)


def test_images_that_are_augmented_pass_the_whole_network() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.add_module("fc", nn.Linear(4 * 16, 3))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 1, 6, 6), dtype=np.uint8)
    task = Task.from_arrays("a", images, np.arange(60) % 3)
    training = TRAINING | {"augmentation": {"flip": True}}
    one = learner(net, **LADDER | {"training": training})
    assert inputs_of(one, task) == (1, 6, 6)
    one.learn(task)
    tensors = one.store.tensors("a")
    base = one.store.base
    assert base is not None and base.values is not None
    stats = one.architecture.running_stats
    assert all(torch.equal(tensors[n], base.values[n]) for n in stats)


class Scaled(nn.Module):
    """A network that changes what its head gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.fc(self.body(x).relu())


def test_a_head_that_is_not_the_end_passes_the_whole_network() -> None:
    one = learner(Scaled(), **LADDER)
    assert inputs_of(one, points(0)) == (12,)
    report = one.learn(points(0))
    assert report.rungs and one.store.base is not None
