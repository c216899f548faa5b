"""Differences of low rank: what they add, how they are stored, and what is refused of them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
import plain_reader
from forge import Sections, forged
from nets import points
from test_base import TRAINING, base_of, data, learner, pretrained
from test_ladder import climb, far
from tinysubnets.errors import DamageError, SettingError, TaskError
from tinysubnets.format import ModelFile, check, limits
from tinysubnets.format.header import Manifest, manifest_of
from tinysubnets.method.difference import FACTOR_BITS
from tinysubnets.method.learner import TinySubNets
from tinysubnets.method.settings import parse_rungs
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, NO_BANK, CodebookTensor, PackedMask
from tinysubnets.nn.architecture import TensorSpec
from tinysubnets.nn.init import InitKey
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors, LowRankModule

LOW: dict[str, Any] = {"price": 1e-6, "rungs": ("head", "rank 3")}
LOW |= {"training": TRAINING | {"epochs": 12, "lr": 0.1}}


def learned(**settings: Any) -> TinySubNets:
    one = learner(**LOW | settings)
    one.learn(far(1))
    return one


def added(one: TinySubNets, name: str) -> np.ndarray:
    """What the factors of a task add to the flat weights, by numpy, in the order of the format."""
    subnet, out, shapes = one.store.subnet(name), [], [s.shape for s in one.architecture.shared]
    half = len(subnet.own) // 2
    assert half == len(shapes)  # all are large enough
    for place, shape in enumerate(shapes):
        up = subnet.own[place].decode().numpy().reshape(shape[0], subnet.rank)
        down = subnet.own[half + place].decode().numpy().reshape(subnet.rank, shape[1])
        total = np.outer(up[:, 0], down[0])
        for k in range(1, subnet.rank):
            total = total + np.outer(up[:, k], down[k])
        out.append(total.reshape(-1))
    return np.concatenate(out)


def test_a_task_is_the_base_and_a_product_of_thin_matrices() -> None:
    one = learned()
    subnet, base = one.store.subnet("far 1"), base_of(one)
    assert subnet.rank == 3 and subnet.reference == BASE and subnet.bank == NO_BANK
    assert not subnet.mask.any() and not subnet.adds_nothing and not subnet.has_mask
    flat = torch.cat([base[s.name].flatten() for s in one.architecture.shared])
    assert torch.equal(one.store.weights("far 1"), flat + torch.from_numpy(added(one, "far 1")))
    for spec in one.architecture.shared:
        change = one.store.tensors("far 1")[spec.name].double() - base[spec.name]
        ranks = torch.linalg.matrix_rank(change, atol=1e-5)
        assert change.any() and int(ranks) <= 3 < min(spec.shape)


def test_it_is_measured_as_it_is_stored() -> None:
    one = learned()
    report, task = one.reports["far 1"], far(1)
    assert [r.name for r in report.rungs if r.taken] == ["head", "rank 3"]
    assert report.rungs[1].gain > 5  # a head alone cannot tell the sign of a product
    assert one.store.evaluate("far 1", task).accuracy == pytest.approx(report.valid_accuracy)


def test_factors_are_trained_as_they_are_stored() -> None:
    one = learner(**LOW)
    trainer = climb(one, far(1))
    while trainer.rung is None or trainer.rung.name == "head":
        trainer.epoch()
    module = trainer.module
    assert isinstance(module, LowRankModule)
    for epoch in range(12):
        trainer.epoch()
        if epoch < 5:  # in the first half they move freely
            assert not module.settled and not module.steps.any()
            assert torch.equal(module.rounded(), module.factors.detach())
    assert module.settled and (module.steps > 0).all()
    used = module.rounded()
    assert torch.equal(used / module.steps, (used / module.steps).round())
    assert not torch.equal(used, module.factors.detach())
    trainer.finish()
    subnet = one.store.subnet("far 1")
    assert subnet.rank == 3 and subnet.bits == FACTOR_BITS
    assert torch.equal(torch.cat([c.decode() for c in subnet.own]), used)
    for factor, step in zip(
        module.named_factors().values(), module.steps.split(list(module.places.sizes.values())),
        strict=True,
    ):  # fmt: skip
        assert step.unique().numel() == 1  # of two bits: half a step to one in the root mean square
        assert 0.4 < float(factor.square().mean().sqrt() / step[0]) < 1.2


def test_a_rung_that_ends_early_is_rounded_by_its_size() -> None:
    one = learner(**LOW)
    trainer = climb(one, far(1))
    while trainer.rung is None or trainer.rung.name == "head":
        trainer.epoch()
    for _ in range(3):
        trainer.epoch()
    module = trainer.module
    assert isinstance(module, LowRankModule) and not module.steps.any()
    trainer.finish()
    subnet = one.store.subnet("far 1")
    assert subnet.rank == 3
    for coded, factor, step in zip(
        subnet.own, module.named_factors().values(), module.exponents(), strict=True
    ):
        nearest = (factor.flatten() / 2.0**step).round() * 2.0**step
        assert torch.equal(coded.decode(), nearest)


def test_factors_that_diverge_end_in_no_error_of_torch() -> None:
    trainer = climb(learner(**LOW), far(1))
    while trainer.rung is None or trainer.rung.name == "head":
        trainer.epoch()
    module = trainer.module
    assert isinstance(module, LowRankModule)
    for value in (3e38, math.inf, math.nan):
        with torch.no_grad():
            module.factors.fill_(value)
        module.update_codebooks_(0.75)
        assert module.steps.isfinite().all() and (module.steps > 0).all()


@pytest.mark.parametrize("kept", ["accuracy", "loss", "auto"])
def test_it_keeps_its_last_epoch_where_accuracy_would_choose(kept: str) -> None:
    one = learner(**LOW | {"training": LOW["training"] | {"kept_epoch": kept}})
    trainer, found = climb(one, far(1)), {}
    while trainer.rung is not None:
        found[trainer.rung.name] = trainer.training.settings.kept_epoch
        trainer.epoch()
    assert found == {"head": kept, "rank 3": "loss" if kept == "loss" else "last"}


def test_files_keep_it_to_the_bit_for_both_readers(tmp_path: Path) -> None:
    one = learned()
    one.learn(points(0))
    one.store.embed_base_()
    file = one.save(tmp_path / "model")
    digests = [one.store.digest(name) for name in one.tasks]
    again = SubnetStore.load(tmp_path / "model", pretrained())
    assert [again.digest(name) for name in again.tasks] == digests and data(again) == data(
        one.store
    )
    alone = SubnetStore.load(tmp_path / "model", pretrained(), task="far 1")
    assert alone.digest("far 1") == digests[0] and alone.tasks == ("far 1",)
    for name, tensors in plain_reader.read(file).items():
        mine = one.store.tensors(name)
        assert all(np.array_equal(mine[n].numpy(), t) for n, t in tensors.items())


def test_earlier_tasks_stay_as_they_are_and_later_ones_reuse_it(tmp_path: Path) -> None:
    one = learned(rungs=("head", "reuse", "rank 3"))
    before = one.store.digest("far 1")
    again = far(1)
    twin = copy.copy(again)
    object.__setattr__(twin, "name", "twin")
    one.learn(twin)
    assert one.store.digest("far 1") == before
    assert one.store.subnet("twin").reference == 0  # the same task: what is there is taken
    kept = one.store.digest("twin")
    removal = one.store.remove("far 1")
    assert removal.kept == one.store.nameless[0].num_new > 0 and removal.used_by == ("twin",)
    assert one.store.digest("twin") == kept and one.store.nameless[0].rank == 3
    one.save(tmp_path)
    loaded = SubnetStore.load(tmp_path, pretrained())
    assert loaded.digest("twin") == kept and loaded.nameless[0].rank == 3
    assert SubnetStore.load(tmp_path, pretrained(), task="twin").digest("twin") == kept
    one.store.remove("twin")
    assert not one.store.nameless  # nobody uses it any more


def test_it_goes_when_nobody_refers_to_it() -> None:
    one = learned()
    one.learn(points(0))
    kept = one.store.digest("t0")
    factors = one.store.subnet("far 1").num_new
    removal = one.store.remove("far 1")
    assert removal.freed == factors and not removal.kept and not one.store.nameless
    assert one.store.digest("t0") == kept


@pytest.mark.parametrize("epochs", [13, 20, 26])  # in the rung of low rank, and behind it
def test_an_interrupted_climb_ends_in_the_same_bytes(epochs: int) -> None:
    settings = LOW | {"rungs": ("head", "rank 3", "10%")}
    whole = learner(**settings)
    whole.learn(far(1))
    first = learner(**settings)
    trainer = climb(first, far(1))
    for _ in range(epochs):
        trainer.epoch()
    state = trainer.state()
    second = learner(**settings)
    resumed = climb(second, far(1))
    resumed.restore_(*state)
    while not resumed.finished:
        resumed.epoch()
    resumed.finish()
    assert data(second.store) == data(whole.store)


@pytest.mark.parametrize("epochs", [13, 26])  # in the rung of low rank, and behind it
def test_a_state_of_factors_that_were_not_rounded_in_training_is_refused(epochs: int) -> None:
    settings = LOW | {"rungs": ("head", "rank 3", "10%")}
    trainer = climb(learner(**settings), far(1))
    for _ in range(epochs):
        trainer.epoch()
    tensors, numbers = trainer.state()
    old = {n: t for n, t in tensors.items() if not n.endswith("steps")}
    assert old.keys() != tensors.keys()
    with pytest.raises(TaskError, match=r"earlier version.*begin the run anew"):
        climb(learner(**settings), far(1)).restore_(old, numbers)


def test_a_state_of_a_rung_that_is_not_there_is_refused() -> None:
    trainer = climb(learner(**LOW), far(1))
    other = climb(learner(**LOW | {"rungs": ("norms", "rank 3")}), far(1))
    with pytest.raises(TaskError, match="rung 'head', which is none of norms, rank 3"):
        other.restore_(*trainer.state())


def test_a_sparse_difference_begins_with_what_the_product_adds() -> None:
    one = learner(**LOW | {"rungs": ("head", "rank 3", "10%")})
    trainer = climb(one, far(1))
    while trainer.rung is not None and trainer.rung.name != "10%":
        trainer.epoch()
    assert trainer.climbed is not None and isinstance(trainer.climbed.module, LowRankModule)
    begin = trainer.module.free.detach()
    product = trainer.climbed.module.difference()
    assert begin.any() and torch.equal(begin, product)


def test_training_starts_from_the_reference_itself() -> None:
    one = learner(**LOW)
    trainer = climb(one, far(1))
    while trainer.rung is not None and trainer.rung.name == "head":
        trainer.epoch()
    module = trainer.module
    assert isinstance(module, LowRankModule)
    assert torch.equal(module.final_weights(), module.reference)
    assert torch.equal(module.effective().detach(), module.reference)
    module.factors.data += 0.1  # both sums are the same but for rounding
    torch.testing.assert_close(module.effective().detach(), module.final_weights())
    module.effective().sum().backward()
    assert module.factors.grad is not None and module.factors.grad.all()


def test_it_has_a_new_head_and_the_norms_that_were_climbed() -> None:
    one = learner(**LOW | {"rungs": ("head", "norms", "rank 3")})
    trainer = climb(one, far(1))
    while trainer.rung is not None and trainer.rung.name != "rank 3":
        trainer.epoch()
    assert trainer.climbed is not None and trainer.climbed.has_norms
    begin, before = (
        dict(zip(m.names, m.task_params, strict=True))
        for m in (trainer.module, trainer.climbed.module)
    )
    for name, parameter in begin.items():
        assert torch.equal(parameter, before[name]) == (not name.startswith("fc.")), name


class Unused(nn.Module):
    """A layer that nothing is computed with, so that its factors get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_matrix_that_gets_no_gradient_has_factors_of_zeros(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), Unused())
        net.add_module("fc", nn.Linear(24, 5))
    one = learner(net, **LOW)
    one.learn(far(1))
    subnet, half = one.store.subnet("far 1"), len(one.architecture.shared)
    ups = [c.decode() for c in subnet.own[:half]]
    assert subnet.rank == 3 and [bool(u.any()) for u in ups] == [True, False]
    one.save(tmp_path)
    again = SubnetStore.load(tmp_path, net)
    assert again.digest("far 1") == one.store.digest("far 1")


def test_products_are_counted_before_any_is_made(tmp_path: Path) -> None:
    """In a chain of eight each entry once; and what refers to one of them, not at all."""
    file = learned().save(tmp_path / "model")
    with ModelFile(file) as opened:
        real = manifest_of(opened.config, opened.file_bytes, opened.text_bytes)
    large = Layout([TensorSpec("matrix", (2000, 2000))])

    def chain(rank: int, reuses: int = 0) -> Manifest:
        first = replace(real.tasks[0], rank=rank, number=0)
        tasks = [first, *(replace(first, number=n, reference=n - 1) for n in range(1, 8))]
        empty = replace(first, rank=0, is_empty=True, reference=7)
        tasks += [replace(empty, number=8 + n) for n in range(reuses)]
        return replace(real, layout=large, tasks=tuple(tasks))

    limits.check_budget(chain(rank=1), 8_000)
    limits.check_budget(replace(chain(rank=64), tasks=chain(rank=64).tasks[:1]), 8_000)
    with pytest.raises(DamageError, match=f"from {8 * 65 * 2000**2} numbers in a file of 8000"):
        limits.check_budget(chain(rank=64), 8_000)
    limits.check_budget(chain(rank=64, reuses=300), 20_000)


def test_products_that_overflow_are_found(tmp_path: Path) -> None:
    store = models.low_rank_store()
    sizes = Factors(store.layout, 1).sizes.values()
    own = tuple(CodebookTensor(torch.full((size,), 3e38)) for size in sizes)
    none = PackedMask.none(store.layout.num_blocks)
    changes = {"packed_mask": none, "own": own, "rank": 1, "bits": 32, "reference": BASE}
    models.add_task(store, 13, bank=NO_BANK, adds_to_base=True, **changes)
    store.save(tmp_path)
    with pytest.raises(DamageError, match=r"'task 13': weights of .* not finite"):
        check(tmp_path)


def test_which_tensors_have_factors() -> None:
    shapes = [(40, 40), (40, 10, 3, 3), (40, 1, 3, 3), (7,), (6, 6)]
    layout = Layout([TensorSpec(f"t{i}", s) for i, s in enumerate(shapes)])
    factors = Factors(layout, 4)
    assert [place for place, *_ in factors.places] == [0, 1]
    assert factors.num == 4 * (80 + 130) == len(factors.start(InitKey(0, 0, 0)))
    weights = torch.randn(layout.num_weights)
    values = torch.randn(factors.num)
    exact, trained = factors.sum(weights, values), factors.trained_sum(weights, values)
    torch.testing.assert_close(exact, trained)
    rest = slice(layout.segments[2][0], None)
    assert torch.equal(exact[rest], weights[rest]) and not torch.equal(exact, weights)


def test_rungs_of_low_rank_have_their_place() -> None:
    found = parse_rungs(("head", "norms", "rank 2", "rank 16", "1%"))
    assert [r.rank for r in found] == [0, 0, 2, 16, 0]
    assert [r.density for r in parse_rungs(("1e-1%", " 5%"))] == [0.001, 0.05]  # as ever
    for wrong in (
        ("rank 4", "norms"),
        ("1%", "rank 4"),
        ("rank 4", "rank 2"),
        ("rank 0",),
        ("rank 65",),
        ("rank",),
        ("rank4",),
        ("rank -1",),
        ("rank \u0664",),
        ("x%",),
        ("nan%",),
    ):
        with pytest.raises(SettingError, match="rungs"):
            parse_rungs(wrong)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rank": 65}, "expected 1 to 64"),
        ({"rank": True}, "expected 1 to 64"),
        ({"bank": 0}, "has a bank"),
        ({"reference": None}, "no reference"),
        ({"empty": True}, "of rank 3"),
        ({"rank": 2}, "bytes of codes"),
        ({"rank": 4}, "packed bytes"),
        ({"rank": None}, "mask"),
    ],
)
def test_forged_entries_are_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    one = learned()
    file = one.save(tmp_path / "model")

    def forge(config: dict[str, Any], _: Sections) -> None:
        entry = config["tasks"][0]
        for key, value in change.items():
            entry[key] = value
            if value is None:
                del entry[key]

    forged(file, forge, file)
    with pytest.raises(DamageError, match=told):
        SubnetStore.load(tmp_path / "model", pretrained())


@pytest.mark.parametrize("kind", ["codebooks", "masks"])
def test_bytes_that_an_entry_of_low_rank_has_no_use_for(kind: str, tmp_path: Path) -> None:
    file = learned().save(tmp_path / "model")

    def forge(_: dict[str, Any], sections: Sections) -> None:
        sections[kind][0] = b"\0\0"

    forged(file, forge, file)
    with pytest.raises(DamageError, match=f"{kind} of an entry that has none"):
        SubnetStore.load(tmp_path / "model", pretrained())


def answers(one: TinySubNets, inputs: Tensor) -> list[Tensor]:
    return [one.logits(name, inputs) for name in one.tasks]


def test_learning_goes_on_from_a_file(tmp_path: Path) -> None:
    one = learned()
    one.save(tmp_path)
    resumed = TinySubNets.resume(tmp_path, pretrained(), device="cpu")
    for each in (one, resumed):
        each.learn(far(2))
    assert data(one.store) == data(resumed.store)
    inputs = far(1).valid.inputs()
    assert all(map(torch.equal, answers(one, inputs), answers(resumed, inputs)))


def test_a_network_without_large_matrices_has_no_such_rung() -> None:
    one = learner(**LOW | {"rungs": ("head", "rank 40", "5%")})  # its matrices have 64 · 40 at most
    one.learn(far(1))
    tried = [r.name for r in one.reports["far 1"].rungs]
    assert "head" in tried and "rank 40" not in tried
    one = learner(**LOW | {"rungs": ("reuse", "rank 40")})
    with pytest.raises(SettingError, match="no weights of this network are a matrix large enough"):
        one.learn(far(1))
    assert not one.tasks
