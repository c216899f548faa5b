"""Tasks over a frozen pretrained base: what they store, how it is known again, what is refused."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nets import points
from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.errors import (
    ArchitectureError,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.experiments import methods
from tinysubnets.format.io import encode
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, NO_BANK
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import old_weights_hash, weights_hash
from tinysubnets.tasks.task import Task

TRAINING: dict[str, Any] = {"epochs": 2, "batch_size": 32, "lr": 0.02, "optimizer": "adamw"}
TRAINING |= {"weight_decay": 0.1}


def fresh() -> nn.Module:
    """A small network with batch normalization and dropout, its weights random."""
    net = nn.Sequential()
    net.append(nn.Linear(12, 24, bias=False)).append(nn.BatchNorm1d(24)).append(nn.ReLU())
    net.append(nn.Dropout(0.2))
    net.append(nn.Linear(24, 16)).append(nn.BatchNorm1d(16)).append(nn.ReLU())
    net.add_module("fc", nn.Linear(16, 5))
    return net


@cache
def _trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, task = fresh(), points(99, 5)
        inputs, labels = task.normalization(task.train.inputs()), task.train.labels
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    return net


def pretrained() -> nn.Module:
    """The same network after some training on other data."""
    return copy.deepcopy(_trained())


def learner(net: nn.Module | None = None, **settings: Any) -> TinySubNets:
    chosen = {"price": 0.0, "density": 0.1, "post_pruning": False, "bits": 2} | settings
    training = chosen.pop("training", TRAINING)
    architecture = Architecture(net or pretrained(), base="frozen")
    return TinySubNets(architecture, training=training, device="cpu", **chosen)


def base_of(one: TinySubNets) -> dict[str, Tensor]:
    assert one.store.base is not None and one.store.base.values is not None
    return dict(one.store.base.values)


def data(store: SubnetStore) -> bytes:
    return b"".join(encode(store).parts)


def test_a_task_is_the_base_but_for_its_mask() -> None:
    one = learner()
    report = one.learn(points(0))
    subnet, base = one.store.subnet("t0"), base_of(one)
    assert subnet.reference == BASE and subnet.bank == NO_BANK == report.bank
    flat = torch.cat([base[s.name].flatten() for s in one.architecture.shared])
    weights, mask = one.store.weights("t0"), one.store.layout.expand(subnet.mask)
    assert torch.equal(weights[~mask], flat[~mask]) and 0 < mask.float().mean() < 0.3
    own = torch.cat([c.decode() for c in subnet.own])
    assert torch.equal(weights[mask], flat[mask] + own) and own.any()


def test_norms_keep_the_statistics_of_the_base() -> None:
    one = learner()
    far = points(1)
    moved = Task.from_arrays("far", far.train.inputs().numpy() * 3 + 5, far.train.labels.numpy())
    one.learn(moved)
    tensors, base = one.store.tensors("far"), base_of(one)
    assert all(torch.equal(tensors[n], base[n]) for n in one.architecture.running_stats)
    assert not torch.equal(tensors["1.weight"], base["1.weight"])  # its own, as a difference
    added = one.store.subnet("far").task_params["1.weight"].decode()
    assert torch.equal(tensors["1.weight"], base["1.weight"] + added)


def test_a_head_alone_leaves_the_base_as_it_is() -> None:
    one = learner(price=1.0, rungs=("head",))
    report = one.learn(points(0))
    tensors, base = one.store.tensors("t0"), base_of(one)
    assert all(torch.equal(tensors[n], base[n]) for n in base) and report.density == 0
    assert set(one.store.subnet("t0").task_params) == {"fc.weight", "fc.bias"}
    again = one.store.evaluate("t0", points(0)).accuracy
    assert again == pytest.approx(report.valid_accuracy)


@pytest.mark.slow
def test_many_heads_over_a_large_base_are_a_small_file_that_can_be_read(tmp_path: Path) -> None:
    """A reader grants memory in proportion to the file; heads take none per weight of the base."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU())
    net.append(nn.Linear(1500, 8)).append(nn.ReLU()).add_module("fc", nn.Linear(8, 3))
    one = learner(net, price=1.0, rungs=("head",), training=TRAINING | {"epochs": 1})
    for number in range(8):
        trainer = one.begin(points(number), isolated=number == 3)
        while not trainer.finished:
            trainer.epoch()
        trainer.finish()
    logits = one.logits("t7", points(7).valid.inputs())
    path = one.save(tmp_path)
    assert path.stat().st_size < 20_000 < one.architecture.num_shared // 100
    assert artifact.check(tmp_path, net).without_base == ()
    for task in (None, "t7"):
        store = SubnetStore.load(tmp_path, net, task=task)
        assert torch.equal(store.logits("t7", points(7).valid.inputs()), logits)
        assert store.subnet("t7").adds_nothing and not store.subnet("t7").mask.any()
    store = SubnetStore.load(tmp_path, net)
    store.save(tmp_path / "again")
    assert (tmp_path / "again" / artifact.FILE_NAME).read_bytes() == path.read_bytes()
    assert store.subnet("t3").isolated and store.banks == []


def test_nothing_is_forgotten_and_a_file_goes_on_as_if_live(tmp_path: Path) -> None:
    live = learner()
    live.learn(points(0))
    logits = live.logits("t0", points(0).valid.inputs())
    live.save(tmp_path / "early")
    resumed = TinySubNets.resume(tmp_path / "early", pretrained(), device="cpu")
    for one in (live, resumed):
        for number in (1, 2):
            one.learn(points(number))
        one.save(tmp_path / str(id(one)))
    assert torch.equal(live.logits("t0", points(0).valid.inputs()), logits)
    files = [tmp_path / str(id(one)) / artifact.FILE_NAME for one in (live, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_file_names_its_base_or_holds_it(tmp_path: Path) -> None:
    one = learner()
    one.learn(points(0))
    named = one.save(tmp_path / "named").stat().st_size
    digest, count = one.store.digest("t0"), sum(t.numel() for t in base_of(one).values())
    one.store.embed_base_()
    embedded = one.save(tmp_path / "embedded").stat().st_size
    assert embedded - named >= 4 * count
    again = SubnetStore.load(tmp_path / "embedded", fresh())  # as code alone
    assert again.digest("t0") == digest
    again.save(tmp_path / "again")  # and stays there
    assert SubnetStore.load(tmp_path / "again", fresh()).digest("t0") == digest
    for folder, held in (("named", False), ("embedded", True)):
        found = artifact.inspect(tmp_path / folder)
        assert found["base"]["embedded"] is held and found["base"]["name"] == "Sequential"
        assert found["tasks"][0]["added_to"] == "the base"


def test_a_base_is_given_as_a_module_tensors_or_a_file(tmp_path: Path) -> None:
    one = learner()
    one.learn(points(0))
    one.save(tmp_path)
    digest, net = one.store.digest("t0"), pretrained()
    torch.save({"state_dict": net.state_dict()}, tmp_path / "weights.pth")
    tensors = {f"module.{n}": t for n, t in net.state_dict().items()}
    save_file(tensors, tmp_path / "weights.safetensors")
    for how in (
        {"net": net},
        {"net": Architecture(net)},
        {"base": net},
        {"net": fresh(), "base": net},
        {"net": fresh(), "base": dict(net.state_dict())},
        {"net": fresh(), "base": tmp_path / "weights.pth"},
        {"net": fresh(), "base": str(tmp_path / "weights.safetensors")},
    ):
        assert SubnetStore.load(tmp_path, **how).digest("t0") == digest  # type: ignore[arg-type]
    alone = SubnetStore.load(tmp_path, net, task="t0")
    assert alone.digest("t0") == digest


def test_another_base_is_refused_with_both_hashes(tmp_path: Path) -> None:
    one = learner()
    one.learn(points(0))
    one.save(tmp_path)
    assert one.store.base is not None
    other = fresh()
    found = learner(other).store.base
    assert found is not None
    for how in ({"net": other}, {"base": other}, {"net": fresh(), "base": other.state_dict()}):
        with pytest.raises(MismatchError) as caught:
            SubnetStore.load(tmp_path, **how)
        assert one.store.base.sha256 in str(caught.value) and found.sha256 in str(caught.value)
    with pytest.raises(MismatchError, match="other weights"):
        TinySubNets.resume(tmp_path, other, device="cpu")
    with pytest.raises(MismatchError, match="other weights"):
        TinySubNets(Architecture(other, base="frozen"), store=one.store, device="cpu")
    with pytest.raises(MismatchError, match="network of your own"):
        SubnetStore.load(tmp_path)


def test_verify_asks_for_what_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A network of one's own: with its weights where these are not in the file."""
    one = learner(price=1.0, rungs=("head",))
    one.learn(points(0))
    one.save(tmp_path / "over")
    assert artifact.check(tmp_path / "over").without_base == ("t0",)
    one.store.embed_base_()
    one.save(tmp_path / "embedded")
    assert artifact.check(tmp_path / "embedded").without_base == ()
    for name, option in (("over", "--base"), ("embedded", "--net")):
        assert main(["verify", str(tmp_path / name)]) == 0
        told = capsys.readouterr().out
        assert f"give it with {option} to check" in told and told.count("--") == 1


def test_without_its_base_a_model_is_looked_at_but_not_used(tmp_path: Path) -> None:
    built = networks.build("mlp", in_features=12, hidden=(8,), classes=3)
    one = TinySubNets(
        Architecture(built, base="frozen"), training=TRAINING, price=0.0, device="cpu"
    )
    one.learn(points(0))
    one.save(tmp_path)
    bare = SubnetStore.load(tmp_path)  # rebuilt by name, without values
    with pytest.raises(TaskError, match="base=…"):
        bare.logits("t0", points(0).valid.inputs())
    checked = artifact.check(tmp_path)
    assert checked.is_rebuilt and checked.without_base == ("t0",)
    assert artifact.check(tmp_path, base=built).without_base == ()
    with pytest.raises(MismatchError, match="not the weights that learning began with"):
        TinySubNets.resume(tmp_path, device="cpu")
    bare.rename("t0", "renamed")
    assert SubnetStore.load(bare.save(tmp_path), base=built).tasks == ("renamed",)


def test_a_state_keeps_the_base(tmp_path: Path) -> None:
    one, two = learner(), learner()
    one.learn(points(0))
    two.restore_(*one.state())
    assert two.store.digest("t0") == one.store.digest("t0")
    for each in (one, two):
        each.learn(points(1))
    assert data(one.store) == data(two.store)
    with pytest.raises(MismatchError, match="not the weights"):
        learner(fresh()).restore_(*one.state())


def test_the_base_is_taken_when_the_learner_is_made() -> None:
    net = pretrained()
    one = learner(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    two = learner()
    for each in (one, two):
        each.learn(points(0))
    assert one.store.digest("t0") == two.store.digest("t0")


@pytest.mark.parametrize("rungs", [("head", "norms"), ("head", "norms", "rank 2", "10%")])
def test_an_isolated_task_over_a_base_can_be_removed_exactly(rungs: tuple[str, ...]) -> None:
    """Its data change neither what a later rung weighs, nor a word of what is said of it."""
    stores = []
    for seed in range(7, 12):
        one = learner(price=1e-6, rungs=rungs, training=TRAINING | {"lr": 0.05})
        mine = points(seed)
        trainer = one.begin(
            Task.from_arrays("mine", mine.train.inputs(), mine.train.labels), isolated=True
        )
        while not trainer.finished:
            trainer.epoch()
        trainer.finish()
        one.learn(points(2))
        one.learn(points(3))
        one.store.remove("mine", exact=True)
        stores.append(data(one.store))
    assert len(set(stores)) == 1


def test_the_hash_is_over_names_types_shapes_and_values() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    others: list[dict[str, Tensor]] = [
        {"a": torch.zeros(3, 2), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "c": torch.ones(4)},
        {"a": torch.zeros(2, 3), "b": torch.ones(4).double()},
        {"a": torch.zeros(2, 3), "b": torch.tensor([1.0, 1, 1, 1.0000001])},
        {"a": torch.zeros(2, 3), "b": torch.ones(8).bfloat16()},
    ]
    assert weights_hash(tensors) == weights_hash(dict(reversed(tensors.items())))
    assert len({weights_hash(t) for t in (tensors, *others)}) == 6


def test_pretrained_weights_recorded_by_an_earlier_version_are_known_again() -> None:
    net = pretrained()
    one = TinySubNets(Architecture(net), init="pretrained", training=TRAINING, device="cpu")
    one.learn(points(0))
    store = one.store
    store.base, store.settings["given"] = None, old_weights_hash(one.architecture.pretrained)
    TinySubNets(Architecture(net), init="pretrained", store=store, device="cpu")
    assert store.base is not None
    store.base, store.settings["given"] = None, "0" * 64
    with pytest.raises(MismatchError, match="init = 'pretrained'"):
        TinySubNets(Architecture(net), init="pretrained", store=store, device="cpu")


def test_weights_that_cannot_be_a_base_are_refused() -> None:
    with pytest.raises(ArchitectureError, match=r"net\.float\(\)"):
        learner(pretrained().double())
    broken = pretrained()
    with torch.no_grad():
        broken.get_submodule("0").weight[0, 0] = torch.nan
    with pytest.raises(ArchitectureError, match=r"'0\.weight' of the base is not finite"):
        learner(broken)
    negative = pretrained()
    negative.get_submodule("1").running_var[0] = -1.0
    with pytest.raises(ArchitectureError, match=r"'1\.running_var' of the base.*below 0"):
        learner(negative)
    for dtype in (torch.int8, torch.complex64, torch.float8_e4m3fn):
        strange = pretrained()
        weight = strange.get_submodule("0").weight.detach().to(dtype)
        strange.get_submodule("0").weight = nn.Parameter(weight, requires_grad=False)
        with pytest.raises(ArchitectureError, match=f"'0.weight' of the base is of type {dtype}"):
            learner(strange)
    with pytest.raises(ArchitectureError, match=r"'0\.weight' is on the meta device"):
        learner(fresh().to("meta"))
    sparse = fresh()
    rare = sparse.get_submodule("0").weight.detach().to_sparse()
    sparse.get_submodule("0").weight = nn.Parameter(rare)
    with pytest.raises(ArchitectureError, match=r"'0\.weight' is sparse"):
        learner(sparse)
    with pytest.raises(ArchitectureError, match="'frozen' or None"):
        Architecture(pretrained(), base="thawed")  # type: ignore[arg-type]
    for method in ("wsn", "packnet", "naive"):
        with pytest.raises(ArchitectureError, match="TinySubNets alone"):
            methods.build(method, Architecture(pretrained(), base="frozen"), device="cpu")


def test_half_precision_is_taken_exactly() -> None:
    half = pretrained().bfloat16()
    one, two = learner(half), learner(half.float())
    assert one.store.base is not None and two.store.base is not None
    assert one.store.base.sha256 == two.store.base.sha256


def test_a_base_where_there_is_none_is_refused(tmp_path: Path) -> None:
    one = TinySubNets(Architecture(pretrained()), training=TRAINING, device="cpu")
    one.learn(points(0))
    one.save(tmp_path)
    with pytest.raises(MismatchError, match="not learned over a base"):
        SubnetStore.load(tmp_path, pretrained(), base=pretrained())
    with pytest.raises(MismatchError, match="not learned over a base"):
        TinySubNets(Architecture(pretrained(), base="frozen"), store=one.store, device="cpu")
    with pytest.raises(TaskError, match="no base"):
        one.store.embed_base_()


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    one = learner()
    one.learn(points(0))
    one.save(tmp_path)
    (tmp_path / "bad.pth").write_bytes(b"no weights at all")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, text in (
        ("nothing.pth", "no file"),
        ("bad.pth", "cannot be read"),
        ("list.pt", "no tensors"),
    ):
        with pytest.raises(SettingError, match=text):
            SubnetStore.load(tmp_path, fresh(), base=tmp_path / name)
