"""The model file: exact to load, the same bytes again, one task alone, going on, refusals."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from torch import nn

import models
from nets import NETWORKS, data, learner, mlp, task
from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.errors import ArtifactError, ConflictError, FormatError, MismatchError, TaskError
from tinysubnets.format.io import ReadPlan
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.size import Entry
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import CodebookTensor, Subnet
from tinysubnets.nn.architecture import Architecture


def assert_same(one: SubnetStore, two: SubnetStore) -> None:
    assert one.tasks == two.tasks and one.settings == two.settings
    for name in one.tasks:
        a, b = one.subnet(name), two.subnet(name)
        assert one.digest(name) == two.digest(name)
        assert torch.equal(one.logits(name, models.inputs()), two.logits(name, models.inputs()))
        for field in fields(Subnet):
            assert_equal(getattr(a, field.name), getattr(b, field.name))
    for mine, theirs in zip(one.banks, two.banks, strict=True):
        assert torch.equal(mine.owned, theirs.owned) and torch.equal(mine.values, theirs.values)


def assert_equal(a: object, b: object) -> None:
    """Equal in every bit, whatever it is made of."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    elif isinstance(a, CodebookTensor):
        assert isinstance(b, CodebookTensor) and a.value_bits == b.value_bits and a.bits == b.bits
        assert torch.equal(a.decode(), b.decode())
    elif isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, tuple):
        assert isinstance(b, tuple) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif hasattr(a, "__dataclass_fields__"):
        for field in fields(a):  # type: ignore[arg-type]
            assert_equal(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b or (a != a and b != b)


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("kind", ["named", "own"])
def test_a_loaded_store_is_the_live_one(kind: str, block: int, tmp_path: Path) -> None:
    store = models.store(kind, tasks=6, block=block)
    path = store.save(tmp_path)
    net = models.own_network() if kind == "own" else None
    again = SubnetStore.load(tmp_path, net)
    assert_same(store, again)
    assert again.seed == store.seed == models.SEED
    assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert store.save(tmp_path / "twice").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_architecture_round_trips(kind: str, tmp_path: Path) -> None:
    build, shape = NETWORKS[kind]
    learn = learner(build(), density=0.5)
    learn.learn(task("a", shape))
    learn.learn(task("b", shape, seed=1, classes=2))
    learn.save(tmp_path)
    again = SubnetStore.load(tmp_path, build())
    for name in learn.tasks:
        x = data(shape)[0]
        assert again.digest(name) == learn.store.digest(name)
        assert torch.equal(again.logits(name, x), learn.store.logits(name, x))


@pytest.mark.parametrize("number", range(5))
def test_one_task_alone_is_what_it_is_among_all(number: int, tmp_path: Path) -> None:
    store = models.store(tasks=5)
    store.save(tmp_path)
    name = store.tasks[number]
    alone = SubnetStore.load(tmp_path, task=name)
    assert alone.tasks == (name,)
    assert alone.digest(name) == store.digest(name)
    assert torch.equal(alone.logits(name, models.inputs()), store.logits(name, models.inputs()))
    kept = alone.layout.expand(alone.subnet(name).mask)
    bank = alone.banks[alone.subnet(name).bank]
    assert not bank.values[~kept].any()
    assert all(not b.values.any() for b in alone.banks if b is not bank)


def test_one_task_alone_decodes_nothing_private_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = models.store(tasks=5)
    store.save(tmp_path)
    read: list[tuple[str, int]] = []
    section = artifact.ModelFile.section

    def spy(self: artifact.ModelFile, kind: str, number: int = 0) -> bytes:
        read.append((kind, number))
        return section(self, kind, number)

    monkeypatch.setattr(artifact.ModelFile, "section", spy)
    SubnetStore.load(tmp_path, task="task 3")
    assert {n for kind, n in read if kind in ("heads", "task_params", "memory")} == {3}
    assert 2 not in {n for kind, n in read if kind in ("masks", "codes")}  # another bank


def test_masks_nobody_needs_are_not_kept(tmp_path: Path) -> None:
    store = models.store(tasks=2)
    for number in range(10, 16):
        models.add_task(store, number)
    path, name = store.save(tmp_path), store.tasks[-1]
    with artifact.ModelFile(path) as file:
        plan = ReadPlan(file, artifact.read_contents(file).manifest, name)
    held: set[int] = set()
    most = 0
    for place in plan.places:
        held.add(plan.members[place])
        held -= set(plan.done_with(place))
        most = max(most, len(held))
    assert not held and most < len(store.tasks)
    assert SubnetStore.load(tmp_path, task=name).digest(name) == store.digest(name)


def test_a_partial_store_can_neither_learn_nor_be_saved(tmp_path: Path) -> None:
    models.store().save(tmp_path)
    alone = SubnetStore.load(tmp_path, task="task 1")
    with pytest.raises(ArtifactError, match="holds only the task 'task 1'"):
        alone.save(tmp_path)
    with pytest.raises(TaskError, match="load the whole model"):
        models.add_task(alone, 9)
    with pytest.raises(TaskError, match="Did you mean 'task "):
        SubnetStore.load(tmp_path, task="task l")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"score_init": "previous_mask"}, {"sharing": "none", "density": 0.1}]
)
def test_learning_goes_on_from_a_file_to_the_byte(settings: dict, tmp_path: Path) -> None:
    tasks = [task(n, seed=i, offset=5.0 * i) for i, n in enumerate("abc")]
    live = learner(**({"density": 0.3} | settings))
    live.learn(tasks[0])
    live.save(tmp_path / "early")
    before = live.store.digest("a")
    live.learn(tasks[1])
    live.learn(tasks[2])
    live.save(tmp_path / "live")
    later = TinySubNets.resume(tmp_path / "early", mlp())
    later.learn(tasks[1])
    later.save(tmp_path / "early")
    last = TinySubNets.resume(tmp_path / "early", Architecture(mlp()))
    last.learn(tasks[2])
    last.save(tmp_path / "early")
    files = [tmp_path / name / artifact.FILE_NAME for name in ("live", "early")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert last.store.digest("a") == before


def test_a_given_network_is_checked_when_learning_goes_on(tmp_path: Path) -> None:
    net = mlp()
    first = learner(net, init="pretrained", density=0.3)
    first.learn(task("a"))
    first.save(tmp_path)
    TinySubNets.resume(tmp_path, copy.deepcopy(net)).learn(task("b", seed=1))
    with pytest.raises(MismatchError, match="init = 'pretrained'"):
        TinySubNets.resume(tmp_path, mlp())


def test_a_store_of_another_method_cannot_be_resumed(tmp_path: Path) -> None:
    store = SubnetStore(models.architecture())
    models.add_task(store, 0)
    assert store.subnet("task 0").coded_mask.reference == 0  # type: ignore[union-attr]
    store.save(tmp_path)
    with pytest.raises(MismatchError, match="made by no method"):
        TinySubNets.resume(tmp_path)


def test_settings_of_another_version_are_named(tmp_path: Path) -> None:
    store = models.store(tasks=1)
    store.settings = {"method": "tsn", "training": {}}
    store.save(tmp_path / "none")
    with pytest.raises(FormatError, match="'tsn'"):
        TinySubNets.resume(tmp_path / "none")
    store.saved_as = None
    store.settings = {"tsn": {"seed": 0, "wisdom": 3}}
    store.save(tmp_path)
    with pytest.raises(FormatError, match="wisdom"):
        TinySubNets.resume(tmp_path)


def test_the_network_is_rebuilt_by_name_without_random_numbers(tmp_path: Path) -> None:
    store = models.store()
    store.save(tmp_path)
    state = torch.random.get_rng_state()
    again = SubnetStore.load(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.architecture.rebuild == store.architecture.rebuild
    assert again.architecture.task_params == store.architecture.task_params


SHAPES = {
    "mlp": (784,),
    "resnet18": (3, 16, 16),
    "vit": (3, 32, 32),
    "small-mlp": (64,),
    "small-cnn": (1, 8, 8),
}


@pytest.mark.parametrize("name", networks.names())
def test_networks_of_the_package_come_back(name: str, tmp_path: Path) -> None:
    settings = {"width": 4} if name == "resnet18" else {}
    record = {"network": name, "settings": settings, "head": "fc"}
    store = SubnetStore(Architecture(networks.build(name, **settings), rebuild=record))
    if name in SHAPES:  # the others are large
        mask = torch.from_numpy(np.random.default_rng(0).random(store.layout.num_blocks) < 0.05)
        models.add_masked(store, 11, mask)
    store.save(tmp_path)
    again = SubnetStore.load(tmp_path)
    assert again.architecture.shared == store.architecture.shared
    assert again.architecture.task_params == store.architecture.task_params
    assert again.architecture.running_stats == store.architecture.running_stats
    for task_name in store.tasks:
        x = torch.randint(0, 256, (2, *SHAPES[name]), dtype=torch.uint8)
        assert torch.equal(store.logits(task_name, x), again.logits(task_name, x))


def test_a_network_of_ones_own_has_to_be_given(tmp_path: Path) -> None:
    models.store("own").save(tmp_path)
    with pytest.raises(MismatchError, match="give it again"):
        SubnetStore.load(tmp_path)


def test_names_in_a_file_are_never_imported(tmp_path: Path) -> None:
    architecture = models.architecture()
    architecture.rebuild = {"network": "antigravity:fly", "settings": {}, "head": "fc"}
    SubnetStore(architecture).save(tmp_path)
    with pytest.raises(MismatchError, match="network of your own"):
        SubnetStore.load(tmp_path)


def test_a_mismatch_shows_both_sides(tmp_path: Path) -> None:
    models.store("own").save(tmp_path)
    net = models.own_network()
    net.two = nn.Linear(12, 9)
    with pytest.raises(MismatchError) as caught:
        SubnetStore.load(tmp_path, net)
    text = str(caught.value)
    assert "two.weight: model (12, 12), network (9, 12)" in text
    assert "two.bias: model has none, network (9,)" in text
    with pytest.raises(MismatchError, match=r"one.weight: model \(12, 6\), network has none"):
        SubnetStore.load(tmp_path, nn.Sequential())
    with pytest.raises(MismatchError, match="Module is needed"):
        SubnetStore.load(tmp_path, "resnet18")  # type: ignore[arg-type]
    rule = Architecture(models.own_network(), shared=lambda name, _: name == "one.weight")
    with pytest.raises(MismatchError, match="shared otherwise"):
        SubnetStore.load(tmp_path, rule)
    other = models.own_network()
    other.shift.by = torch.zeros(1, 6)  # type: ignore[union-attr]
    with pytest.raises(MismatchError, match="constant buffers differ"):
        SubnetStore.load(tmp_path, other)


def test_recorded_constants_win_over_those_given(tmp_path: Path) -> None:
    store = models.store("own")
    store.save(tmp_path)
    net = models.own_network()
    net.shift.by.zero_()  # type: ignore[union-attr, operator]
    net.fc = nn.Linear(12, 77)  # every task has a head of its own
    assert_same(store, SubnetStore.load(tmp_path, net))


def test_the_ledger_adds_up_to_the_file(tmp_path: Path) -> None:
    for kind in ("named", "own"):
        store = models.store(kind, tasks=6)
        size = store.save(tmp_path / kind).stat().st_size
        ledger = store.ledger()
        assert ledger.masks_from == "coded" and ledger.file_bytes == size
        assert ledger.total.total == 8 * size
        assert ledger.file == size / (4 * ledger.num_weights)
        assert all(e.masks and e.heads and e.metadata for e in ledger.tasks.values())
        with artifact.ModelFile(artifact.model_path(tmp_path / kind)) as file:
            for number, name in enumerate(store.tasks):
                for part in artifact.container.KINDS:
                    assert getattr(ledger.tasks[name], part) == 8 * file.size(part, number)
    assert ledger.common.task_params == 8 * 6 * 4  # the constant buffer


def test_ten_permutations_take_little_metadata() -> None:
    net = networks.build("mlp")
    record = {"network": "mlp", "settings": {}, "head": "fc"}
    empty = TinySubNets(Architecture(net, rebuild=record))
    for number in range(10):
        reason = f"nearest is 'permutation-{number}' at 25.12 >= 3, but all 2 banks are open"
        models.add_task(
            empty.store,
            12 + 2 * (number % 2),
            bank=min(number, 1),
            name=f"permutation-{number}",
            classes=tuple(range(10)),
            shapes=empty.architecture.task_param_shapes(10),
            task_params={
                n: CodebookTensor(torch.zeros(int(np.prod(s))))
                for n, s in empty.architecture.task_param_shapes(10).items()
            },
            normalization=models.Normalization((33.318447,), (78.567444,)),
            decision=models.BankDecision(min(number, 1), reason, None),
            owned_before_pruning=0.123456789012345,
            valid_accuracy=0.9716666666666667,
        )
    assert empty.ledger().total.metadata / 8 <= 4096


def test_a_folder_tells_people_what_it_holds(tmp_path: Path) -> None:
    store = models.store()
    store.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert [t["name"] for t in config["tasks"]] == list(store.tasks)
    assert config["architecture"]["rebuild"]["network"] == "mlp"
    assert config["format"] == 2 and config["seed"] == 7
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: tinysubnets")
    assert "| task 1 | cat, dog, emu | 0 | 3 |" in card and "51.56 %" in card
    for name in ("config.json", "README.md"):
        (tmp_path / name).unlink()
    assert_same(store, SubnetStore.load(tmp_path))
    assert_same(store, SubnetStore.load(tmp_path / artifact.FILE_NAME))


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    store = models.store()
    path = store.save(tmp_path)
    with safetensors.safe_open(path, "np") as file:
        names = set(file.keys())
        metadata = file.metadata()
        sizes = sum(file.get_tensor(n).size for n in names)
    assert names == {"model"} and metadata["tinysubnets"] == "2"
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert 8 + header + sizes == path.stat().st_size


def test_no_time_and_no_machine_in_the_file(tmp_path: Path) -> None:
    path = models.store().save(tmp_path)
    with artifact.ModelFile(path) as file:
        text = json.dumps(file.config)
    assert "accuracy" in text and "settings" in text
    for word in ("second", "date", "time", str(Path.home()), "thread", "cpu"):
        assert word not in text


def test_saving_over_what_another_wrote_is_refused(tmp_path: Path) -> None:
    store = models.store(tasks=2)
    store.save(tmp_path)
    mine, theirs = SubnetStore.load(tmp_path), SubnetStore.load(tmp_path)
    models.add_task(mine, 3)
    mine.save(tmp_path)
    models.add_task(theirs, 5)
    kept = (tmp_path / artifact.FILE_NAME).read_bytes()
    with pytest.raises(ConflictError, match="another writer"):
        theirs.save(tmp_path)
    assert (tmp_path / artifact.FILE_NAME).read_bytes() == kept
    theirs.save(tmp_path / "elsewhere")
    models.add_task(mine, 5)
    mine.save(tmp_path)  # what it saved itself it may replace
    SubnetStore.load(tmp_path).save(tmp_path)  # the same model again is no loss


def test_a_file_that_is_no_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / artifact.FILE_NAME).write_bytes(b"precious")
    with pytest.raises(ConflictError, match="not a model that can be read"):
        models.store().save(tmp_path)
    assert (tmp_path / artifact.FILE_NAME).read_bytes() == b"precious"
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match="not a folder"):
        models.store().save(tmp_path / "file")


def test_an_empty_store_and_odd_names_round_trip(tmp_path: Path) -> None:
    store = SubnetStore(models.architecture())
    store.save(tmp_path / "empty")
    assert SubnetStore.load(tmp_path / "empty").tasks == ()
    models.add_task(store, 0, name='ün "quoted" \\ \n naïve ☃', classes=("é|", "\u2028"))
    store.save(tmp_path / "odd")
    assert SubnetStore.load(tmp_path / "odd").tasks == store.tasks
    assert all(f.name in Entry.__dataclass_fields__ for f in fields(Entry))
