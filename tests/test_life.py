"""The life of a task: renamed, replaced, removed, and everything else stays to the bit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import models
import plain_reader
from nets import learner, mlp, task
from tinysubnets import format as artifact
from tinysubnets.errors import ArtifactError, MismatchError, TaskError
from tinysubnets.format.io import encode
from tinysubnets.method import core
from tinysubnets.method.banks import new_bank
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.removal import without
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, MAX_CHAIN, NO_BANK, OWNED, CodebookTensor, PackedMask
from tinysubnets.tasks.normalization import Normalization


def data(store: SubnetStore) -> bytes:
    """The bytes of a store's file."""
    return b"".join(encode(store).parts)


def digests(store: SubnetStore) -> dict[str, str]:
    """A hash of every task's tensors."""
    return {name: store.digest(name) for name in store.tasks}


def check_banks(store: SubnetStore) -> None:
    """Each bank owns what the masks of its tasks hold, and nothing else has a value."""
    for number, bank in enumerate(store.banks):
        used = torch.zeros(store.layout.num_blocks, dtype=torch.bool)
        for subnet in store.members(number):
            used |= subnet.mask
        referred = {s.reference for s in store.entries()}
        for subnet in store.nameless.values():
            if subnet.number in referred and subnet.bank == number:
                used |= subnet.mask
        assert torch.equal(bank.owned, used)
        assert not bank.values[~store.layout.expand(used)].any()


removals_of_any_kind = given(
    removals=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    block=st.sampled_from([1, 4]),
    saved=st.booleans(),
    kind=st.sampled_from(["store", "whole", "chain"]),
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@removals_of_any_kind
def test_removing_tasks_leaves_all_others_to_the_bit(
    removals: list[int],
    block: int,
    saved: bool,
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check_removals(removals, block, saved, kind, tmp_path_factory.mktemp("life"))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@removals_of_any_kind
def test_removing_tasks_in_many_ways_leaves_all_others_to_the_bit(
    removals: list[int],
    block: int,
    saved: bool,
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check_removals(removals, block, saved, kind, tmp_path_factory.mktemp("life"))


def check_removals(removals: list[int], block: int, saved: bool, kind: str, folder: Path) -> None:
    """Remove tasks one by one; after each, all others must be what they were."""
    net = models.own_network() if kind == "whole" else None
    made = {"whole": models.whole_store, "chain": models.chain_store}
    store = made[kind]() if kind in made else models.store("named", 6, block)
    inputs = models.inputs()
    for place in removals:
        if not store.tasks:
            break
        name = store.tasks[place % len(store.tasks)]
        next_number, before = store.next_number, digests(store)
        logits = {n: store.logits(n, inputs) for n in store.tasks}
        own = store.subnet(name).num_new
        removal = store.remove(name)
        assert removal.names == (name,) and removal.freed + removal.kept == own
        assert bool(removal.kept) == bool(set(removal.used_by)) or not own
        del before[name]
        assert digests(store) == before and store.next_number == next_number
        assert all(torch.equal(store.logits(n, inputs), logits[n]) for n in store.tasks)
        check_banks(store)
        if saved:
            store.save(folder)
            again = SubnetStore.load(folder, net)
            assert data(again) == data(store) and digests(again) == before
            assert all(
                SubnetStore.load(folder, net, task=n).digest(n) == before[n] for n in store.tasks
            )
            store = again


@pytest.mark.parametrize("first", range(6))
def test_tasks_in_a_chain_go_in_any_order(first: int, tmp_path: Path) -> None:
    for others in itertools.permutations(range(5), 2):
        folder = tmp_path / str(others)
        check_removals([first, *others], 1, True, "chain", folder)


def test_weights_that_nobody_uses_are_free_again() -> None:
    store = models.store("named", 6)
    before = store.free_share()
    for name in store.tasks:
        store.remove(name)
    assert before < 1 and store.free_share() == 1 and not store.entries()
    assert len(store.banks) == 2  # empty ones stay, with their numbers
    assert store.next_number == 6


def test_nothing_of_a_removed_task_is_in_the_file(tmp_path: Path) -> None:
    store, own = models.store("named", 4), ("heads", "task_params", "memory", "routing")
    rng = np.random.default_rng(8)
    values = {
        name: rng.normal(size=int(np.prod(shape))).astype(np.float32)
        for name, shape in store.architecture.task_param_shapes(2).items()
    }
    models.add_task(
        store,
        8,
        name="a secret name",
        classes=("stealthy", "labels"),
        shapes=store.architecture.task_param_shapes(2),
        task_params={n: models.code(torch.from_numpy(v), 32) for n, v in values.items()},
        memory=torch.from_numpy(rng.normal(size=(5, 6)).astype(np.float32)),  # kept samples
    )
    decision = models.BankDecision(0, "like 'a secret name'", "a secret name")
    models.add_task(store, 9, decision=decision)
    path = store.save(tmp_path)
    with artifact.ModelFile(path) as file:
        text = json.dumps(file.config)
        before = {kind: file.section(kind, 4) for kind in own}
    assert "a secret name" in text and "stealthy" in text
    assert values["fc.weight"].tobytes() in before["heads"] and before["memory"]
    store.remove("a secret name")
    assert not any(subnet.name == "a secret name" for subnet, _ in store.written)
    store.save(tmp_path)
    with artifact.ModelFile(path) as file:
        text = json.dumps(file.config)
        assert "name" not in file.config["tasks"][4], "its weights stay where task 9 uses them"
        assert not any(file.section(kind, 4) for kind in own)
    assert "accuracy" in text and "secret" not in text and "stealthy" not in text
    planted = [b"secret", b"stealthy", *(v.tobytes() for v in values.values())]
    planted += [data for data in before.values() if data]
    for file_of_model in (path, *tmp_path.iterdir()):
        data = file_of_model.read_bytes()
        assert not any(found in data for found in planted)
    left = SubnetStore.load(tmp_path).subnet("task 9").decision
    assert left is not None and "removed" in left.reason and left.nearest is None
    for file_of_people in ("config.json", "README.md"):
        assert "secret" not in (tmp_path / file_of_people).read_text()


def test_a_task_can_be_renamed(tmp_path: Path) -> None:
    store = models.store("named", 4)
    before, tasks = digests(store), store.tasks
    store.rename("task 0", "birds")
    assert store.tasks == ("birds", *tasks[1:])
    assert list(digests(store).values()) == list(before.values())
    store.save(tmp_path)
    again = SubnetStore.load(tmp_path)
    assert again.tasks == store.tasks and again.digest("birds") == before["task 0"]
    assert again.subnet("task 1").decision.nearest == "birds"  # type: ignore[union-attr]
    for wrong in ("task 1", "", "x" * 2000, "\ud800"):
        with pytest.raises(TaskError):
            store.rename("birds", wrong)
    with pytest.raises(TaskError, match="unknown task"):
        store.rename("nobody", "somebody")


def test_a_task_that_is_called_as_the_base_is_can_be_renamed() -> None:
    store = models.store("named", 1)
    store.rename("task 0", "mlp")
    reason = "over the base 'mlp', with what 'mlp' has added to it"
    decision = models.BankDecision(0, reason, "mlp")
    models.add_task(store, 1, decision=decision)
    before = data(store)
    store.rename("mlp", "birds")
    told = store.subnet("task 1").decision
    assert told is not None
    assert told.reason == "over the base 'mlp', with what 'birds' has added to it"
    store.rename("birds", "mlp")
    assert data(store) == before


@pytest.mark.parametrize("change", ["rename", "remove"])
def test_a_store_that_changes_during_a_lesson_ends_it(change: str, tmp_path: Path) -> None:
    """What the new task started from is no longer there, or has another name."""
    learn = learner(mlp(), max_banks=1, density=0.5)
    for number in range(2):
        learn.learn(task(f"task {number}", seed=number))
    trainer = learn.begin(task("new", seed=5))
    trainer.epoch()
    if change == "rename":
        learn.store.rename("task 1", "other")
    else:
        learn.store.remove("task 0")
        assert learn.store.nameless  # what is left keeps the number
    with pytest.raises(TaskError, match="begin it again"):
        trainer.finish()
    learn.learn(task("new", seed=5))
    learn.save(tmp_path)
    assert digests(SubnetStore.load(tmp_path, mlp())) == digests(learn.store)


def test_a_lesson_that_ends_while_its_task_is_kept_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last thing that is measured of a task may fail, or Ctrl-C may come then."""
    learn, other = learner(mlp(), max_banks=1), learner(mlp(), max_banks=1)
    for one in (learn, other):
        one.learn(task("first"))
    before = data(learn.store)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(core, "routing_of", stop)
        with pytest.raises(KeyboardInterrupt):
            learn.learn(task("second", seed=1))
    assert learn.tasks == ("first",) and data(learn.store) == before
    for one in (learn, other):
        one.learn(task("second", seed=1))
    assert data(learn.store) == data(other.store)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_learner_at_work_takes_another_state(first: int) -> None:
    """What it knew of tasks of the same numbers is forgotten."""

    def differing(seeds: range) -> TinySubNets:
        how: dict[str, Any] = {"selection": "magnitude", "reference": "previous"}
        learn = learner(mlp(), density=0.3, **how)
        for number, seed in enumerate(seeds):
            learn.learn(task(f"t{number}", seed=seed))
            learn.store.weights(f"t{number}")
        return learn

    learn, other = differing(range(7, 7 + first)), differing(range(2))
    learn.restore_(*other.state())
    assert digests(learn.store) == digests(other.store)
    for one in (learn, other):
        one.learn(task("next", seed=5))
    assert data(learn.store) == data(other.store)


def test_a_learner_that_continues_takes_another_state() -> None:
    """Scores and free values of banks that are not in it are not gone on from."""
    how: dict[str, Any] = {"score_init": "continue", "max_banks": 2, "threshold": 0.0}
    learn, other = learner(mlp(), **how), learner(mlp(), **how)
    for one in (learn, other):
        one.learn(task("first"))
    state = learn.state()
    learn.learn(task("second", seed=1, offset=50.0))
    assert learn.store.subnet("second").bank == 1
    learn.restore_(*state)
    for one in (learn, other):
        one.learn(task("third", seed=2, offset=-50.0))
    assert learn.store.subnet("third").bank == 1
    assert data(learn.store) == data(other.store)


def test_a_name_that_no_file_can_hold_is_refused_at_the_door() -> None:
    store = models.store("named", 1)
    for wrong in ("\ud800", "x" * 100_000):
        with pytest.raises(TaskError):
            models.add_task(store, 5, name=wrong)
    assert store.tasks == ("task 0",)


def test_partial_stores_are_not_changed(tmp_path: Path) -> None:
    models.store("named", 3).save(tmp_path)
    alone = SubnetStore.load(tmp_path, task="task 1")
    with pytest.raises(TaskError, match="whole model"):
        alone.remove("task 1")
    with pytest.raises(TaskError, match="whole model"):
        alone.rename("task 1", "other")


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_learning_goes_on_after_removals(isolated: bool, tmp_path: Path) -> None:
    def life(through_a_file: bool) -> SubnetStore:
        learn = learner(mlp(), isolated=isolated)
        for number in range(3):
            learn.learn(task(f"t{number}", seed=number))
        before = digests(learn.store)
        learn.store.remove("t1")
        if through_a_file:
            folder = tmp_path / str(isolated)
            learn.save(folder)
            learn = TinySubNets.resume(folder, mlp())
        learn.learn(task("t1", seed=1))
        learn.learn(task("t3", seed=3))
        assert [s.number for s in learn.store.subnets.values()] == [0, 2, 3, 4]
        assert all(learn.store.digest(n) == before[n] for n in ("t0", "t2"))
        return learn.store

    assert data(life(False)) == data(life(True))


def test_an_isolated_task_can_be_removed_exactly(tmp_path: Path) -> None:
    """The same sequence with other data for that task: afterwards the files are equal."""

    def life(seed: int) -> SubnetStore:
        learn = learner(mlp(), max_banks=2, threshold=3.0)
        learn.learn(task("one", seed=0))
        trainer = learn.begin(task("mine", seed=seed, offset=float(seed)), isolated=True)
        while not trainer.finished:
            trainer.epoch()
        trainer.finish()
        for number, offset in ((1, 50.0), (2, 0.0), (3, -50.0)):
            learn.learn(task(f"later {number}", seed=number, offset=offset))
        assert learn.store.subnet("mine").isolated
        assert learn.store.members(learn.store.subnet("mine").bank) == [learn.store.subnet("mine")]
        removal = learn.store.remove("mine", exact=True)
        assert removal.names == ("mine",) and removal.exact and not removal.kept
        return learn.store

    one, two = life(7), life(8)
    assert data(one) == data(two)
    assert len(one.tasks) == 4 and one.next_number == 5


def test_exact_removal_takes_later_tasks_with_it() -> None:
    store = models.store("named", 4)
    models.add_task(store, 6, bank=2, isolated=True)
    models.add_task(store, 7, bank=1)
    assert store.learned_beside("task 1") == ("task 2", "task 3", "task 7")
    before = digests(store)
    removal = store.remove("task 1", exact=True)
    assert removal.exact and removal.names == ("task 1", "task 2", "task 3", "task 7")
    assert store.tasks == ("task 0", "task 6") and not store.nameless
    assert all(store.digest(n) == before[n] for n in store.tasks)


def test_a_store_without_some_tasks_is_another_one() -> None:
    store = models.whole_store()
    before, known = data(store), digests(store)  # decoded and written, as it is in use
    out = without(store, [store.subnet(name).number for name in ("task 5", "task 6")])
    assert data(store) == before and digests(store) == known
    assert all(entry.name != "task 5" for entry in out.chain(out.subnet("task 9")))
    for name in ("task 5", "task 6"):
        store.remove(name)
    assert data(out) == data(store) and digests(out) == digests(store)
    models.add_task(out, 31, bank=NO_BANK, reference=BASE, **models.differences(out, 31))
    assert "task 31" not in store.tasks and data(out) != data(store)


def after_an_isolated_one(has_bank: bool) -> SubnetStore:
    """A store over a base with a task, and an isolated one behind it that is a head alone or not.

    Which of both it is, its data decide.
    """
    store = models.low_rank_store()
    over_base: dict[str, Any] = {"reference": BASE, "adds_to_base": True}
    own = models.differences(store, 21) | over_base
    none = PackedMask.none(store.layout.num_blocks)
    empty = (CodebookTensor(torch.zeros(0)),) * len(store.layout.shared)
    models.add_task(store, 21, bank=NO_BANK, **own)
    if has_bank:
        own = models.differences(store, 23) | over_base
        models.add_task(store, 23, bank=new_bank(store), isolated=True, **own)
    else:
        own = {"packed_mask": none, "own": empty, "bits": 2} | over_base
        models.add_task(store, 23, bank=NO_BANK, isolated=True, **own)
    return store


def test_whether_an_isolated_task_had_a_bank_shows_in_nothing_that_follows() -> None:
    banked, bare = after_an_isolated_one(True), after_an_isolated_one(False)
    assert len(banked.banks) == 1 and not bare.banks
    assert new_bank(banked) == new_bank(bare) == 1
    for store in (banked, bare):
        store.remove("task 23", exact=True)
    assert not banked.banks and data(banked) == data(bare)
    for store in (banked, bare):
        models.add_task(store, 25, bank=new_bank(store))
    assert data(banked) == data(bare)


def test_an_isolated_bank_is_never_shared() -> None:
    store = models.store("named", 2)
    models.add_task(store, 6, bank=1, isolated=True)
    with pytest.raises(TaskError, match="isolated"):
        models.add_task(store, 7, bank=1)
    with pytest.raises(TaskError, match="isolated"):
        models.add_task(store, 8, bank=0, isolated=True)


def test_chains_of_differences_end(tmp_path: Path) -> None:
    store = models.store("named", 1)
    for number in range(1, 1 + MAX_CHAIN):
        models.add_task(
            store, number, bank=NO_BANK, reference=number - 1, **models.differences(store, number)
        )
    last = store.tasks[-1]
    store.save(tmp_path)
    assert SubnetStore.load(tmp_path, task=last).digest(last) == store.digest(last)
    with pytest.raises(TaskError, match=f"more than {MAX_CHAIN} subnets"):
        models.add_task(
            store, 40, bank=NO_BANK, reference=MAX_CHAIN, **models.differences(store, 40)
        )


@pytest.mark.parametrize("removed", [None, 0, 2])
def test_a_mask_like_all_those_before_it_is_read_alone(removed: int | None, tmp_path: Path) -> None:
    """Of differences to a base, which add up to nothing else, and whose masks are as of one bank.

    - `removed`: one of the tasks that such a mask is coded against.
    """
    store = models.low_rank_store()
    for name in store.tasks:
        store.remove(name)
    rng = np.random.default_rng(0)
    num, held = store.layout.num_blocks, np.zeros(store.layout.num_blocks, np.bool_)
    for number in range(5):
        mask = rng.random(num) < 0.1
        if number in (2, 4):  # what all those before it hold, but for a few
            mask = held ^ (rng.random(num) < 0.01)
        held |= mask
        values = torch.from_numpy(rng.normal(size=num).astype(np.float32))
        own = tuple(models.code(values[i:j][mask[i:j]], 2) for i, j in store.layout.segments)
        models.add_task(
            store, 21 + 2 * number, bank=NO_BANK, reference=BASE, adds_to_base=True,
            packed_mask=PackedMask.of(torch.from_numpy(mask)), own=own, bits=2,
        )  # fmt: skip
    if removed is not None:
        store.remove(store.tasks[removed])
    coded = [subnet.coded_mask for subnet in store.entries()]
    assert OWNED in [c.reference for c in coded if c is not None]
    path = store.save(tmp_path)
    whole = SubnetStore.load(path)
    for name in store.tasks:
        alone = SubnetStore.load(path, task=name)
        assert alone.digest(name) == whole.digest(name) == store.digest(name)


def test_differences_add_up() -> None:
    store = models.whole_store()
    last, first = store.subnet("task 9"), store.subnet("task 5")
    between = store.nameless[int(last.reference or 0)]
    assert between.reference == first.number
    expected = store.weights("task 5").clone()
    for subnet in (between, last):
        values = torch.cat([c.decode() for c in subnet.own])
        expected[store.layout.expand(subnet.mask)] += values
    assert torch.equal(store.weights("task 9"), expected)
    on_base = store.weights("task 11")
    assert store.base is not None and store.base.values is not None
    base = torch.cat([store.base.values[s.name].flatten() for s in store.layout.shared])
    mask = store.layout.expand(store.subnet("task 11").mask)
    assert torch.equal(on_base[~mask], base[~mask])
    values = store.banks[0].values
    assert torch.equal(on_base[mask], (base + values)[mask])


def test_a_base_that_is_only_named_is_asked_for(tmp_path: Path) -> None:
    store = models.whole_store()
    before, base = digests(store), store.base
    assert base is not None and base.values is not None
    store.base = models.Base("small", "tests", base.sha256)
    store.save(tmp_path)
    with pytest.raises(TaskError, match=f"the base 'small' .tests, SHA-256 {base.sha256}"):
        store.weights("task 11")
    again = SubnetStore.load(tmp_path, models.own_network(), base=base.values)
    assert digests(again) == before and again.base is not None and not again.base.embedded
    with pytest.raises(MismatchError, match=base.sha256):
        SubnetStore.load(tmp_path, models.own_network())
    with pytest.raises(MismatchError, match=r"lack one\.weight"):
        SubnetStore.load(tmp_path, models.own_network(), base={"x": torch.ones(2)})


def test_preprocessing_and_routing_round_trip(tmp_path: Path) -> None:
    store = models.whole_store()
    models.add_task(store, 12, routing={"mean": torch.arange(3.0), "énergie": torch.tensor([2.5])})
    store.save(tmp_path)
    again = SubnetStore.load(tmp_path, models.own_network())
    assert again.subnet("task 5").preprocessing == store.subnet("task 5").preprocessing
    found = again.subnet("task 12").routing
    assert list(found) == ["mean", "énergie"] and torch.equal(found["mean"], torch.arange(3.0))
    ledger = store.ledger()
    with artifact.ModelFile(tmp_path / artifact.FILE_NAME) as file:
        assert ledger.total.routing == 8 * sum(
            file.size("routing", i) for i in range(file.num_tasks)
        )
    assert ledger.total.routing > 0
    for wrong in ({"a b": 1}, {"size": [[1]]}, {"x": None}, {"x": "y" * 99}, {}):
        odd = models.store("named", 1)
        models.add_task(odd, 4, preprocessing=wrong)
        with pytest.raises(ArtifactError, match="preprocessing"):
            data(odd)


def with_norms_like(store: SubnetStore, number: int, like: str) -> dict[str, Any]:
    """A difference to a task, with task-specific parameters that are nearly those of that task."""
    rng = np.random.default_rng(number)
    other = store.subnet(like)
    near = {
        n: models.rounded(
            c.decode() * torch.from_numpy(rng.normal(1, 0.02, len(c))).float(), models.Grid(4, -4)
        )
        for n, c in other.task_params.items()
    }
    changes = {"task_params": near, "classes": other.classes, "reference": other.number}
    return {"bank": models.NO_BANK, **models.differences(store, number), **changes}


def test_norms_like_those_of_the_reference_take_few_bytes(tmp_path: Path) -> None:
    built = {"in_features": 64, "hidden": [400, 300], "classes": 3}
    record = {"network": "mlp", "settings": built, "head": "fc"}
    net = models.networks.build("mlp", **built)
    store = SubnetStore(models.Architecture(net, rebuild=record), settings=models.SETTINGS)
    models.add_task(store, 5, normalization=Normalization())
    for number, like in ((21, "task 5"), (22, "task 21")):
        changes = with_norms_like(store, number, like)
        models.add_task(store, number, normalization=Normalization(), **changes)
    bytes_of = {n: e.task_params / 8 for n, e in store.ledger().tasks.items()}
    alone = 700 * 5 / 8  # what their mantissas and signs take, at the least
    assert bytes_of["task 21"] < 0.8 * alone and bytes_of["task 22"] < 0.8 * alone
    path = store.save(tmp_path)
    again = SubnetStore.load(path)
    for name in store.tasks:
        assert again.digest(name) == store.digest(name)
        assert SubnetStore.load(path, task=name).digest(name) == store.digest(name)
    found = plain_reader.read(path)
    for name, values in found["task 22"].items():
        assert store.tensors("task 22")[name].numpy().tobytes() == values.tobytes()
    assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_norms_stay_the_same_when_their_reference_is_removed(tmp_path: Path) -> None:
    store = models.store("named", 1)
    models.add_task(store, 5)
    models.add_task(store, 21, **with_norms_like(store, 21, "task 5"))
    before = store.digest("task 21")
    data(store)
    store.remove("task 5")
    assert store.digest("task 21") == before
    path = store.save(tmp_path)
    assert SubnetStore.load(path).digest("task 21") == before
    found = plain_reader.read(path)["task 21"]
    assert all(
        store.tensors("task 21")[n].numpy().tobytes() == v.tobytes() for n, v in found.items()
    )


@pytest.mark.slow
def test_a_file_grows_linearly_with_its_tasks(tmp_path: Path) -> None:
    """Beside what is its own, a task takes an entry in the header, a record and two hashes."""

    def metadata(count: int) -> float:
        store = models.store("named", 1)
        first = store.subnet("task 0")
        for number in range(1, count):
            name = f"permutation-{number}"
            reason = f"nearest is {first.name!r} at {number / 7:.2f} >= 3, but all banks are open"
            decision = models.BankDecision(0, reason, first.name)
            models.add_task(store, 2 * number, name=name, decision=decision, memory=None)
        total = store.ledger().total
        return (total.metadata + total.memory) / 8

    few, some, many = metadata(10), metadata(60), metadata(110)
    assert many - some < 1.2 * (some - few)
    assert (many - few) / 100 < 250  # bytes a task
