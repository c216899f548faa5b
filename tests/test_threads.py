"""Threads: a store answers any number of them, a learner learns one task at a time."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from nets import learner, mlp, task
from quick import mostly_slow
from tinysubnets.errors import TaskError
from tinysubnets.experiments import methods
from tinysubnets.experiments.methods import METHODS
from tinysubnets.method.base import Learner
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.training.precision import arithmetic


def at_once(work: list[Callable[[], Any]]) -> list[Any]:
    """What the functions give, or the errors they raise, each run in a thread of its own."""
    results: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        try:
            results[number] = work[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Yielding(SubnetStore):
    """A store whose threads all wait for each other whenever decoded tensors were just kept."""

    meet: threading.Barrier | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, tuple) and self.meet is not None:
            try:
                self.meet.wait(timeout=0.05)
            except threading.BrokenBarrierError:
                self.meet.reset()


@pytest.mark.slow
@pytest.mark.parametrize("kept", mostly_slow([1, 3, 32], quick=[3]))
def test_eight_threads_each_get_their_own_task(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinysubnets.model.store.MAX_DECODED", kept)
    plain = models.store(tasks=8)
    store = Yielding(plain.architecture)
    store.banks, store.subnets = plain.banks, plain.subnets
    shape = (4, *plain.subnet("task 0").sample.shape) if plain.subnet("task 0").sample else (4, 6)
    inputs = torch.rand(shape)
    expected = {name: plain.logits(name, inputs) for name in plain.tasks}
    digests = {name: plain.digest(name) for name in plain.tasks}
    assert len(set(digests.values())) == 8

    def ask(first: int) -> int:
        wrong = 0
        for call in range(250):
            name = plain.tasks[(first + (call if call < 40 else 0)) % 8]
            wrong += not torch.equal(store.logits(name, inputs), expected[name])
            if call % 50 == 0:
                wrong += store.digest(name) != digests[name]
        return wrong

    store.meet = threading.Barrier(2)
    assert at_once([lambda i=i: ask(i) for i in range(8)]) == [0] * 8  # type: ignore[misc]


def test_a_store_that_was_restored_forgets_what_it_decoded() -> None:
    learn, other = learner(seed=1), learner(seed=2)
    for each in (learn, other):
        each.learn(task())
    probe = task().train.inputs()
    assert not torch.equal(learn.logits("a", probe), other.logits("a", probe))
    learn.restore_(*other.state())
    assert torch.equal(learn.logits("a", probe), other.logits("a", probe))


class Passing(nn.Module):
    """A network during whose pass other threads can work."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.0005)
        return self.head(self.body(x).relu())


def test_a_module_is_made_while_other_threads_answer() -> None:
    learn = learner(Passing())
    learn.learn(task())
    probe, done = task().train.inputs(), threading.Event()
    expected = learn.logits("a", probe)

    def ask() -> int:
        wrong = 0
        while not done.is_set():
            wrong += not torch.equal(learn.logits("a", probe), expected)
        return wrong

    def make() -> int:
        try:
            with torch.no_grad():
                modules = [learn.store.module("a") for _ in range(30)]
            return sum(not torch.equal(m(probe), expected) for m in modules)
        finally:
            done.set()

    assert at_once([ask, ask, make]) == [0, 0, 0]


@pytest.mark.parametrize("other", ["remove", "rename"])
def test_what_is_done_while_a_task_is_kept_is_not_undone(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = learner()
    learn.learn(task("a"))

    def meanwhile(*_: Any) -> dict[str, Tensor]:
        learn.store.remove("a") if other == "remove" else learn.store.rename("a", "new")
        return {}

    monkeypatch.setattr("tinysubnets.method.core.routing_of", meanwhile)
    with pytest.raises(TaskError, match="removed or renamed since"):
        learn.learn(task("b"))
    assert learn.tasks == (() if other == "remove" else ("new",))


class Forgetful(SubnetStore):
    """A store in which another thread drops what was made of entries right after it was made."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, {} if name == "_by_number" else value)


def test_references_are_followed_while_another_thread_drops_what_they_were_read_from() -> None:
    plain = models.store(tasks=2)
    store = Forgetful(plain.architecture)
    first, second = (replace(plain.subnets[t], number=n) for n, t in enumerate(plain.tasks))
    second = replace(second, reference=first.number)
    store.subnets = {first.name: first, second.name: second}
    assert store.chain(second) == [second, first]


def flags() -> tuple[bool, ...]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


def test_overlapping_blocks_of_arithmetic_leave_the_flags_as_they_were() -> None:
    before = flags()
    entered, left = threading.Event(), threading.Event()

    def outer() -> None:
        with arithmetic("tf32"):
            entered.set()
            left.wait(60)

    thread = threading.Thread(target=outer)
    thread.start()
    entered.wait(60)
    with arithmetic("float32", deterministic=True):  # entered last, left last
        left.set()
        thread.join()
        assert flags() == (False, False, False, True)
    assert flags() == before
    with arithmetic("tf32"):
        with arithmetic("float32"):
            assert flags()[0] is False
        assert flags()[0] is True
    assert flags() == before


def make(method: str) -> Learner:
    training = {"epochs": 2, "batch_size": 16, "lr": 0.01}
    return methods.build(
        method,
        Architecture(mlp()),
        settings={},
        training=training,
        pruning={"iterations": 2},
        seed=0,
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_second_thread_cannot_learn_meanwhile(method: str) -> None:
    learn = make(method)
    first, early = learn.begin(task("first")), learn.begin(task("early", seed=1))
    first.epoch()
    for refused in at_once(
        [lambda: learn.begin(task("second", seed=2)), early.epoch, early.finish]
    ):
        assert isinstance(refused, TaskError) and "one at a time" in str(refused)
    (done,) = at_once([first.epoch])  # the same trainer may go on in another thread
    assert not isinstance(done, Exception) and first.finished
    first.finish()
    (report,) = at_once([lambda: learn.learn(task("second", seed=2))])
    assert report.name == "second" and learn.tasks == ("first", "second")


@pytest.mark.parametrize("method", ["tsn", "packnet", "naive"])
def test_a_trainer_that_failed_or_was_let_go_has_no_turn(method: str) -> None:
    learn = make(method)
    trainer = learn.begin(task("a"))
    trainer.epoch()
    del trainer
    (report,) = at_once([lambda: learn.learn(task("b", seed=1))])
    assert report.name == "b"
    failing = learn.begin(task("c", seed=2))
    failing.epoch()
    failing.epoch()
    failing.finish()
    with pytest.raises(TaskError, match="begin it again"):
        failing.finish()
    (report,) = at_once([lambda: learn.learn(task("d", seed=3))])
    assert report.name == "d"


@pytest.mark.parametrize("method", ["tsn", "ada-qpacknet", "replay"])
def test_four_threads_learn_what_one_would_have(method: str, tmp_path: Path) -> None:
    learn = make(method)
    results = at_once([lambda n=n: learn.learn(task(f"t{n}", seed=n)) for n in range(4)])  # type: ignore[misc]
    names = [r.name for r in results if not isinstance(r, Exception)]
    assert names and all(isinstance(r, TaskError) for r in results if isinstance(r, Exception))
    assert sorted(learn.tasks) == sorted(names)
    alone = make(method)
    for name in learn.tasks:
        alone.learn(task(name, seed=int(name[1:])))
    learn.save(tmp_path / "threads")
    type(learn).resume(tmp_path / "threads", mlp())
    probe = task().train.inputs()
    if len(names) == 1:  # else the two trainings have shared torch's random numbers
        assert torch.equal(learn.logits(names[0], probe), alone.logits(names[0], probe))


def test_a_learner_can_be_copied() -> None:
    learn = make("tsn")
    learn.learn(task("a"))
    other = copy.deepcopy(learn)
    other.learn(task("b", seed=1))
    assert learn.tasks == ("a",) and other.tasks == ("a", "b")
