"""`tsn learn` and `tsn undo`: where the new model goes, the way back, and what is measured."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

import models
from nets import learner as make_learner
from nets import mlp, pictures
from nets import task as make_task
from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.errors import ArtifactError, TaskError
from tinysubnets.format import FILE_NAME, undo
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.evaluation import Evaluation
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

Image = pytest.importorskip("PIL.Image")


def write(folder: Path, count: int = 60, seed: int = 1, mixed: bool = False) -> Path:
    """A folder of images per class; with `mixed` their classes mean nothing."""
    images, labels = pictures(count, seed)
    if mixed:
        labels = np.random.default_rng(seed).permutation(labels)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one learned task on gray images; not to be changed."""
    learner = TinySubNets(
        Architecture(networks.build("small-cnn")), device="cpu", epochs=6, iterations=2
    )
    learner.learn(Task.from_arrays("left", *pictures(80)))
    return learner.save(tmp_path_factory.mktemp("model")).parent


@pytest.fixture
def model(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that model."""
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    copied = tmp_path / "model"
    copied.mkdir()
    for file in made.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    return copied


def learn(model: Path, task: str, data: Path, *more: str) -> int:
    words = ["learn", str(model), "--task", task, "--data", str(data), "--device", "cpu"]
    return main([*words, *more])


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, those inside it too."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_another_folder_gets_the_task_and_the_model_stays(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, before, new = write(tmp_path / "data"), contents(model), tmp_path / "new"
    model.chmod(0o500)
    try:
        assert learn(model, "again", data, "--out", str(new)) == 0
    finally:
        model.chmod(0o700)
    assert contents(model) == before
    assert SubnetStore.load(new).tasks == ("left", "again")
    assert not (new / "backup").exists() and "undo" not in capsys.readouterr().out
    # What is in the way is said before anything is learned.
    assert learn(model, "third", data, "--out", str(new)) == 2
    said = capsys.readouterr()
    assert f"{new} holds another model" in said.err and "epoch" not in said.out
    assert f"tsn learn {new}" in said.err and "overwrite" not in said.err
    assert learn(model, "third", data, "--out", str(data)) == 2
    assert f"{data} holds other files (bright, dark)" in capsys.readouterr().err
    assert not (data / ".lock").exists() and not (data / FILE_NAME).exists()
    (tmp_path / "file").write_text("no folder")
    assert learn(model, "third", data, "--out", str(tmp_path / "file")) == 2
    assert "not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_learned_in_place_can_be_taken_back(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, before = write(tmp_path / "data"), contents(model)
    assert main(["undo", str(model)]) == 2
    assert "has no backup" in capsys.readouterr().err
    assert learn(model, "again", data, "--set", "epochs=20") == 0
    said = capsys.readouterr().out
    assert f"tsn undo {model}" in said
    assert "kept with the model, and so for later tasks: --set epochs=20" in said
    assert TinySubNets.resume(model, device="cpu").training.epochs == 20
    assert SubnetStore.load(model / "backup").tasks == ("left",)  # a model as any other
    assert main(["undo", str(model)]) == 0
    assert "without 'again'" in capsys.readouterr().out
    assert contents(model) == before
    assert main(["undo", str(model)]) == 2  # there is one step back
    # Learned into itself by another name of the same folder, it keeps a backup as well.
    assert learn(model, "again", data, "--out", str(model / ".." / model.name)) == 0
    assert main(["undo", str(model)]) == 0 and contents(model) == before
    # So does a copy of it elsewhere.
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / FILE_NAME).write_bytes((model / FILE_NAME).read_bytes())
    capsys.readouterr()
    assert learn(model, "again", data, "--out", str(copied)) == 0
    assert f"tsn undo {copied}" in capsys.readouterr().out and contents(model) == before
    assert SubnetStore.load(copied / "backup").tasks == ("left",)


@pytest.mark.slow
def test_only_the_last_task_can_be_taken_back(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data")
    assert learn(model, "second", data) == 0 and learn(model, "third", data) == 0
    assert SubnetStore.load(model / "backup").tasks == ("left", "second")
    assert main(["undo", str(model)]) == 0
    assert SubnetStore.load(model).tasks == ("left", "second")
    assert not (model / "backup").exists()
    capsys.readouterr()
    assert learn(model, "second", data, "--replace", "--set", "seed=5") == 0
    if (model / "backup").exists():  # the new version was the better one
        before = SubnetStore.load(model / "backup").digest("second")
        assert main(["undo", str(model)]) == 0
        assert SubnetStore.load(model).digest("second") == before


def test_validation_data_choose_between_two_versions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test data say the opposite here, and are only told."""
    learned, turned, before = write(tmp_path / "as_learned"), tmp_path / "turned", contents(model)
    turned.mkdir()
    (turned / "dark").symlink_to(learned / "bright")
    (turned / "bright").symlink_to(learned / "dark")
    for name, trained, tested in (("new", turned, learned), ("old", learned, turned)):
        (tmp_path / name).mkdir()
        for part, source in (("train", trained), ("val", trained), ("test", tested)):
            (tmp_path / name / part).symlink_to(source)
    out, more = tmp_path / "out", ("--replace", "--keep-anyway", "--set", "epochs=8")
    assert learn(model, "left", tmp_path / "old", *more, "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "validation data: 100.00 % before" in said and "test data: 0.00 % before" in said
    assert "so the old one stays" in said and f"no model was written to {out}" in said
    assert not (out / FILE_NAME).exists() and contents(model) == before
    assert learn(model, "left", tmp_path / "new", *more) == 0
    said = capsys.readouterr().out
    assert "validation data: 0.00 % before" in said and "test data: 100.00 % before" in said
    assert "the old version of 'left' removed" in said and "after compression" in said
    assert contents(model) != before


def test_learning_that_is_stopped_says_what_is_left(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, before = write(tmp_path / "data"), contents(model)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TinySubNets, "learn", stopped)
    assert learn(model, "again", data) == 130
    said = capsys.readouterr().err
    assert f"{model / FILE_NAME} is as it was. There is nothing to resume" in said
    assert contents(model) == before


def test_a_folder_for_a_model_that_comes_to_nothing_is_taken_back(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, new = write(tmp_path / "data"), tmp_path / "above" / "new"
    out = ("--out", str(new))
    assert learn(model, "again", tmp_path / "nowhere", *out) == 2
    assert not new.parent.exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    assert learn(model, "again", tmp_path / "nowhere", "--out", str(mine)) == 2
    assert mine.is_dir()  # somebody else made it

    def refused(*_: object, **__: object) -> None:
        raise TaskError("not this one")

    monkeypatch.setattr(TinySubNets, "learn", refused)
    assert learn(model, "again", data, *out) == 2
    assert not new.parent.exists()


@pytest.mark.parametrize("change", ["remove", "rename", "python"])
def test_any_other_change_removes_the_backup(model: Path, tmp_path: Path, change: str) -> None:
    """`tsn remove` above all: what was removed must not lie beside the model."""
    assert learn(model, "again", write(tmp_path / "data")) == 0
    assert (model / "backup").is_dir()
    if change == "remove":
        assert main(["remove", str(model), "--task", "left"]) == 0
    elif change == "rename":
        assert main(["rename", str(model), "left", "right"]) == 0
    else:
        store = SubnetStore.load(model)
        store.remove("again")
        store.save(model)
    assert not (model / "backup").exists()
    with pytest.raises(ArtifactError, match="has no backup"):
        undo(model)


def test_what_killed_processes_leave_of_a_backup_goes_with_the_next_save(tmp_path: Path) -> None:
    """It holds a model that a task may have been removed from since."""
    left = tmp_path / f".backup.{'0' * 16}.tmp"
    left.mkdir(parents=True)
    (left / FILE_NAME).write_bytes(b"of an earlier model")
    models.store(tasks=1).save(tmp_path)
    assert not left.exists()


def test_a_backup_belongs_to_the_model_that_replaced_it(tmp_path: Path) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    models.add_task(store, 1)
    store.save(tmp_path, with_backup=True)
    newer = (tmp_path / FILE_NAME).read_bytes()
    store.save(tmp_path)  # the same again: nothing was changed
    assert (tmp_path / "backup").is_dir()
    models.store(tasks=3).save(tmp_path / "other")
    (tmp_path / FILE_NAME).write_bytes((tmp_path / "other" / FILE_NAME).read_bytes())
    with pytest.raises(ArtifactError, match="has no backup"):
        undo(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(newer)
    damaged = bytearray((tmp_path / "backup" / FILE_NAME).read_bytes())
    damaged[20] ^= 1
    (tmp_path / "backup" / FILE_NAME).write_bytes(damaged)
    with pytest.raises(ArtifactError):
        undo(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == newer


def test_somebody_elses_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "precious").write_text("of somebody else")
    models.store(tasks=1).save(tmp_path)
    assert (tmp_path / "backup" / "precious").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "replaced_by").write_text("x")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "backup").symlink_to(elsewhere)
    models.store(tasks=1).save(linked)
    assert (elsewhere / "replaced_by").exists()


def test_a_folder_in_the_place_of_the_backup_is_told_before_anything_is_learned(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "backup").mkdir()
    (model / "backup" / "precious").write_text("of somebody else")
    before = contents(model)
    assert learn(model, "again", write(tmp_path / "data")) == 2
    said = capsys.readouterr()
    assert f"{model / 'backup'} is not a backup" in said.err and "epoch" not in said.out
    assert contents(model) == before


def test_a_disk_that_is_full_leaves_the_model_as_it_was(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, before = write(tmp_path / "data"), contents(model)

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)  # of the backup
        assert learn(model, "again", data) == 2
    assert "the old one is as it was: No space left" in capsys.readouterr().err
    assert contents(model) == before


def test_a_task_at_chance_level_is_not_kept(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise"
    write(noise / "train", 40, mixed=True)
    write(noise / "test", 60, seed=2, mixed=True)
    before = contents(model)
    assert learn(model, "noise", noise, "--set", "epochs=3") == 1
    said = capsys.readouterr()
    assert "'noise' is not kept" in said.err and "50.00 %" in said.err
    assert "--keep-anyway" in said.err and contents(model) == before
    assert learn(model, "noise", noise, "--set", "epochs=3", "--keep-anyway") == 0
    assert SubnetStore.load(model).tasks == ("left", "noise")


def test_chance_is_what_the_commonest_class_would_get() -> None:
    def found(*rows: tuple[int, ...]) -> Evaluation:
        return Evaluation("t", tuple(range(len(rows))), np.array(rows), 0.0, "test")

    assert found((30, 20), (20, 30)).chance == 0.5
    uneven = found((90, 0), (10, 0))  # always the commonest
    assert uneven.chance == uneven.accuracy == 0.9 and uneven.is_at_chance
    assert found((26, 24), (24, 26)).is_at_chance  # 52 of 100
    assert not found((30, 20), (20, 30)).is_at_chance  # 60 of 100
    assert not found((3, 0), (1, 2)).is_at_chance  # 5 of 6
    assert found((2, 1), (1, 2)).is_at_chance  # 4 of 6


@pytest.mark.slow
def test_the_part_that_was_measured_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    write(data / "train", 60)
    write(data / "val", 20, seed=3)
    quick = ("--set", "epochs=12")
    assert learn(model, "a", data, *quick) == 0  # one folder kept aside is the test part
    text = capsys.readouterr().out
    assert "54 training, 6 validation, 20 test samples" in text
    assert "on 20 samples of val/, which nothing was learned or chosen by" in text
    write(data / "test", 30, seed=4)
    assert learn(model, "b", data, *quick) == 0
    text = capsys.readouterr().out
    assert "60 training, 20 validation, 30 test samples" in text
    assert "on 30 samples of test/, which nothing" in text
    images, labels = pictures(40)
    held = {"test_inputs": images[:10], "test_labels": (labels[:10] == "bright").astype(int)}
    numbers = (labels == "bright").astype(int)
    np.savez(tmp_path / "d.npz", inputs=images, labels=numbers, **held)
    assert learn(model, "c", tmp_path / "d.npz", *quick) == 0
    assert "on 10 samples of test_inputs, which nothing" in capsys.readouterr().out

    pytest.importorskip("onnxruntime")
    export = ["export", str(model), "--task", "b", str(tmp_path / "b.onnx"), "--data"]
    assert main([*export, str(data)]) == 0
    text = capsys.readouterr().out
    assert f"accuracy on the 30 samples of {data}, part test/: " in text
    assert "learned from" not in text


def test_few_samples_are_learned_by_settings_that_fit(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data")
    assert learn(model, "a", data, "--set", "epochs=5") == 0
    assert "the last epoch is kept and nothing is post-pruned" in capsys.readouterr().out
    settings = SubnetStore.load(model).settings
    assert settings["training"]["kept_epoch"] == "auto" and settings["pruning"]["min_valid"] == 60
    assert learn(model, "b", data, "--set", "kept_epoch=accuracy", "--set", "min_valid=0") == 0
    assert "the last epoch" not in capsys.readouterr().out
    assert SubnetStore.load(model).settings["training"]["kept_epoch"] == "accuracy"


def test_models_of_other_methods_are_learned_on_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinysubnets.baselines.masked import PackNet

    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    packed = PackNet(Architecture(networks.build("small-cnn")), device="cpu", epochs=8)
    packed.learn(Task.from_arrays("left", *pictures(80)))
    packed.save(tmp_path / "model")
    assert learn(tmp_path / "model", "again", write(tmp_path / "data"), "--keep-anyway") == 0
    assert SubnetStore.load(tmp_path / "model").tasks == ("left", "again")
    assert artifact.undo(tmp_path / "model").gone == ("again",)


def test_isolated_tasks_are_learned_from_python_too() -> None:
    learner = make_learner(mlp())
    learner.learn(make_task("a"), isolated=True)
    assert learner.store.subnet("a").isolated
    learner.learn(make_task("b", seed=1))
    assert not learner.store.subnet("b").isolated


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base that does not say how its inputs were normalized, and three sets of images."""
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bare_network.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())\n"
        "    body.add_module('fc', nn.Linear(144, 3))\n"
        "    return body\n"
    )
    rng = np.random.default_rng(0)
    for number, (mean, spread) in enumerate(((100, 20), (180, 50), (90, 30))):
        images = rng.normal(mean, spread, size=(40, 1, 8, 8)).clip(0, 255).astype(np.uint8)
        labels = (images[:, 0].mean((1, 2)) > mean).astype(int)
        np.savez(tmp_path / f"{number}.npz", inputs=images, labels=labels)
    return tmp_path


@pytest.mark.parametrize("by", ["--isolated", "--set"])
@pytest.mark.parametrize("is_isolated_first", [True, False])
def test_isolated_tasks_over_a_base_take_nothing_from_others_and_leave_nothing(
    drawn: Path, is_isolated_first: bool, by: str
) -> None:
    """What is removed exactly has left nothing, whichever of both was isolated."""
    files, isolated = [], {"--isolated": ["--isolated"], "--set": ["--set", "isolated=true"]}[by]
    options = ["--keep-anyway", "--base", "bare_network:make", "--set", "epochs=1"]
    for number in range(2):
        folder = drawn / f"model {number}"
        for name, file in (("first", number), ("second", 2)):
            more = isolated if (name == "first") == is_isolated_first else []
            if by == "--set":
                more = more or ["--set", "isolated=false"]
            assert learn(folder, name, drawn / f"{file}.npz", *options, *more) == 0
        store = SubnetStore.load(folder, base="bare_network:make")
        first, second = (store.subnet(n).normalization for n in ("first", "second"))
        assert first.mean[0] > 95 > second.mean[0]  # each of its own data
        store.remove("first", exact=True)
        assert store.tasks == ("second",)
        files.append(b"".join(artifact.encode(store).parts))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("data.nosuch=1", "unknown setting 'data.nosuch'"),
        ("data.image_sze=64", "Did you mean 'data.image_size'?"),
        ("data.image_size=64", "data.image_size is not a setting of `tsn learn`"),
        ("image_size=64", "Give --size PIXELS"),
        ("data.valid=0.2", "Give --size PIXELS"),
        ("network.name=mlp", "the model has its network"),
        ("trainig.epochs=3", "Did you mean 'training.epochs'?"),
        ("training.epohcs=3", "Did you mean 'training.epochs'?"),
        ("epohcs=3", "Did you mean 'epochs'?"),
        ("ewc.penalty_weight=3", "a setting of ewc; this model is learned by tsn"),
    ],
)
def test_settings_that_learning_has_not_are_refused_before_it(
    assignment: str, said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, before = write(tmp_path / "data"), contents(model)
    assert learn(model, "again", data, "--set", assignment) == 2
    told = capsys.readouterr()
    assert said in told.err and "epoch 1" not in told.out and "training," not in told.out
    assert contents(model) == before
