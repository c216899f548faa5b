"""Hundreds of tasks: one more costs no more than an early one, and a full network goes on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tinysubnets import networks
from tinysubnets.errors import CapacityWarning
from tinysubnets.format import encode
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model import mask_references
from tinysubnets.model.mask_references import MaskContext, code_mask, read_mask
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import FIRST_MEMBER, PackedMask
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks import divergence
from tinysubnets.tasks.task import Task


def tiny_task(number: int) -> Task:
    generator = np.random.default_rng(number)
    inputs = (generator.normal(size=(60, 8)) + number % 3).astype(np.float32)
    labels = (inputs - inputs.mean(0)) @ generator.normal(size=8) > 0
    return Task.from_arrays(f"t{number}", inputs, labels.astype(np.int64), valid=0.3)


def tiny_learner(**settings: Any) -> TinySubNets:
    net = networks.build("mlp", classes=2, in_features=8, hidden=(16, 16))
    training = {"epochs": 1, "batch_size": 64}
    return TinySubNets(
        Architecture(net), density=0.2, training=training, pruning={"iterations": 5}, **settings
    )


class Work(TorchDispatchMode):
    """The work that is done inside: calls of Python and C functions, and elements of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.elements = 0

    def __enter__(self) -> Work:
        super().__enter__()
        sys.setprofile(self.count)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(None)
        super().__exit__(*error)

    def count(self, frame: FrameType, event: str, arg: Any) -> None:
        self.calls += event in ("call", "c_call")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = (t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
        self.elements += sum(t.numel() for t in tensors)
        return out


def learn_all(learner: TinySubNets, numbers: range) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)
        for number in numbers:
            learner.learn(tiny_task(number))


def work_beside_training(learner: TinySubNets, task: Task) -> tuple[int, int]:
    """Calls and elements of tensors of learning a task, without its epochs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)
        with Work() as before:
            trainer = learner.begin(task)
        while not trainer.finished:
            trainer.epoch()
        with Work() as after:
            trainer.finish()
    return before.calls + after.calls, before.elements + after.elements


@pytest.mark.slow
def test_the_thousandth_task_costs_at_most_twice_the_tenth() -> None:
    """Work is counted, since seconds depend on what else a machine does, and is linear."""
    learner = tiny_learner()
    learn_all(learner, range(10))
    early = work_beside_training(learner, tiny_task(10))
    learn_all(learner, range(11, 100))
    middle = work_beside_training(learner, tiny_task(100))
    learn_all(learner, range(101, 190))
    late = work_beside_training(learner, tiny_task(190))
    assert learner.store.free_share() < 0.01
    for tenth, between, last in zip(early, middle, late, strict=True):
        assert last + (1000 - 190) / 90 * max(0, last - between) <= 2 * tenth


@pytest.mark.slow
def test_learning_goes_on_when_no_weight_is_free(tmp_path: Any) -> None:
    learner = tiny_learner(max_banks=1, memory=None, post_pruning=False)
    learn_all(learner, range(6))
    first = learner.store.logits("t0", tiny_task(0).train.inputs())
    learn_all(learner, range(6, 60))
    assert learner.store.free_share() == 0.0
    late = learner.store.subnet("t59")
    assert late.num_new == 0 and late.mask.any()
    assert torch.equal(learner.store.logits("t0", tiny_task(0).train.inputs()), first)
    learner.save(tmp_path)
    again = TinySubNets.resume(tmp_path, learner.architecture)
    assert again.store.digest("t59") == learner.store.digest("t59")


@pytest.mark.parametrize("tokens", [False, True])
def test_divergences_at_once_are_those_one_by_one(tokens: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def statistics_of(number: int, shape: tuple[int, ...]) -> divergence.InputStatistics:
        samples = torch.randn(20, *shape, generator=generator) * (1 + number)
        samples = samples.abs().mul(9).long() if tokens else samples
        return divergence.summarize(samples, tokens=tokens, seed=number)

    shapes = [(3, 9, 9), (3, 9, 9), (5,), (3, 9, 9), (70,), (3, 9, 9)]
    many = [statistics_of(i, shape) for i, shape in enumerate(shapes)]
    other = (
        statistics_of(7, (4,))
        if tokens
        else divergence.summarize(torch.arange(40).reshape(20, 2), tokens=True)
    )
    for one in (*many, other):
        expected = [divergence.divergences(one, [b])[0] for b in (*many, other)]
        assert divergence.divergences(one, [*many, other]) == expected
    assert divergence.divergences(many[0], []) == []


def test_statistics_of_kept_samples_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = divergence.summarize

    def counted(samples: Any, **rest: Any) -> Any:
        asked.append(id(samples))
        return real(samples, **rest)

    monkeypatch.setattr("tinysubnets.tasks.divergence.summarize", counted)
    learner = tiny_learner(memory="samples", max_banks=2)
    learn_all(learner, range(5))
    assert len(asked) == len(set(asked)) == 5


def masks_around(center: np.ndarray, count: int) -> Mapping[int, np.ndarray]:
    generator = np.random.default_rng(1)
    return {
        i: np.packbits(generator.random(len(center)) < 0.3, bitorder="little") for i in range(count)
    }


@pytest.mark.parametrize("place", [0, 150, 299])
def test_the_likest_of_many_masks_is_still_found(place: int) -> None:
    layout = Layout(Architecture(networks.build("mlp", in_features=64)).shared)
    generator = np.random.default_rng(0)
    mask = generator.random(layout.num_blocks) < 0.3
    members = dict(masks_around(mask, 300))
    near = mask ^ (generator.random(len(mask)) < 0.02)
    members[place] = np.packbits(near, bitorder="little")
    assert len(members) > mask_references.MAX_RANKED_MEMBERS
    context = MaskContext(layout, 0, 300, members, np.full_like(members[0], 255))
    coded = code_mask(mask, context, None)
    assert coded.reference == FIRST_MEMBER + place
    assert (read_mask(coded, context) == mask).all()


def stored_thousand() -> SubnetStore:
    """A store of a thousand tasks: a hundred are learned, the others are drawn like the last ones.

    Their masks hold as many blocks of each tensor at other places, which no codec foresees.
    """
    learner = tiny_learner()
    learn_all(learner, range(100))
    store, rng = learner.store, np.random.default_rng(0)
    full = [s for s in store.subnets.values() if s.num_new == 0]  # no weight was free for them
    for number in range(100, 1000):
        like = full[number % len(full)]
        mask, owned = like.mask.numpy(), store.banks[like.bank].owned.numpy()
        for i, j in store.layout.block_segments:
            places = rng.permutation(np.flatnonzero(owned[i:j]))[: mask[i:j].sum()]
            mask[i:j] = False
            mask[i + places] = True
        packed = PackedMask.of(torch.from_numpy(mask))
        store.add_(replace(like, name=f"t{number}", packed_mask=packed, coded_mask=None))
    return store


def calls_of(function: Callable[[], Any]) -> tuple[Any, int]:
    """What a function gives, and how many calls of Python and C functions it takes."""
    num = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal num
        num += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        return function(), num
    finally:
        sys.setprofile(None)


@pytest.mark.slow
def test_a_thousand_tasks_are_a_small_file_soon_written_and_read(tmp_path: Path) -> None:
    """At most 0.6 MB, and so few calls that neither takes a second of a core."""
    store = stored_thousand()
    path, saving = calls_of(lambda: store.save(tmp_path))
    assert path.stat().st_size <= 600_000
    bits = [entry.total for entry in store.ledger().tasks.values()]
    assert sum(bits[100:]) / 900 > 0.95 * sum(bits[50:100]) / 50  # drawn ones are no cheaper
    again, loading = calls_of(lambda: SubnetStore.load(tmp_path, store.architecture))
    assert again.digest("t999") == store.digest("t999")
    assert saving <= 3_200_000 and loading <= 1_300_000  # 0.9 and 0.35 s of a slow core
    # What was written before is not made anew.
    encoded, writing = calls_of(lambda: encode(store))
    assert writing <= 0.25 * saving
    assert b"".join(encoded.parts) == b"".join(encode(again).parts) == path.read_bytes()


def test_what_was_written_before_is_as_if_written_anew() -> None:
    """Between two ways of writing tasks are added, renamed and removed."""
    learner = tiny_learner(bits=1, seed=3)
    store = learner.store

    def check() -> None:
        written = b"".join(encode(store).parts)
        store.written = ()
        assert b"".join(encode(store).parts) == written

    learn_all(learner, range(3))
    check()
    learn_all(learner, range(3, 5))
    check()
    store.rename("t3", "third")
    check()
    store.remove("t1")
    check()
    learn_all(learner, range(5, 6))
    check()
