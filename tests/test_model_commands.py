"""The commands on saved models, as a user calls them."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import models
from nets import pictures
from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.errors import TaskError
from tinysubnets.format import inspect
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

Image = pytest.importorskip("PIL.Image")
TRAINING = {"epochs": 2, "batch_size": 16, "lr": 0.02}


def write_folder(root: Path, seed: int = 1) -> Path:
    """A folder of images per class, larger than the network takes."""
    images, labels = pictures(60, seed)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / label).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image[0]).resize((16, 16))
        picture.save(root / label / f"{number}.png")
    return root


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of one learned task on gray images."""
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    record = {"network": "small-cnn", "settings": {}, "head": "fc"}
    architecture = Architecture(networks.build("small-cnn"), rebuild=record)
    learner = TinySubNets(architecture, training=TRAINING, pruning={"iterations": 2})
    learner.learn(Task.from_arrays("left", *pictures(80)))
    return learner.save(tmp_path / "model").parent


def test_inspect_shows_every_byte(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model)]) == 0
    text = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    size = (model / artifact.FILE_NAME).stat().st_size
    assert f"{size:,} bytes" in text and "left" in text and "small-cnn" in text
    for word in (
        "codebooks",
        "shared tensors",
        "the paper's way of counting: without heads, routing and metadata",
        "seven-task Huffman",
        "free",
    ):
        assert word in text


def test_inspect_as_plain_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = models.store("own", tasks=5)
    store.save(tmp_path)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ledger"] == json.loads(json.dumps(store.ledger().as_dict()))
    assert [t["name"] for t in found["tasks"]] == list(store.tasks)
    assert found["tasks"][1]["mask_against"] == "the mask of 'task 0'"
    assert found["tasks"][3]["density"] == store.density("task 3")
    assert found["free_share"] == pytest.approx(store.free_share())
    kept = sum(t["densities"][3] * math.prod(t["shape"]) for t in found["tensors"])
    assert kept / found["num_weights"] == pytest.approx(store.density("task 3"))
    masks = [s.mask for s in store.subnets.values()]
    both, either = (masks[0] & masks[1]).sum(), (masks[0] | masks[1]).sum()
    assert found["overlap"][0][1] == pytest.approx(float(both / either))
    assert found["overlap"][2][2] == 1.0
    assert found["masks"]["stored_bytes"] * 8 == store.ledger().total.masks
    assert sum(t["bytes"] for t in found["tasks"]) < found["ledger"]["file_bytes"]


@pytest.mark.slow
def test_every_command_finds_the_model_of_a_run_folder(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", write_folder(tmp_path / "data")
    run.mkdir()
    (run / "config.toml").write_text("", encoding="utf-8")
    assert main(["inspect", str(run)]) == 2  # a run that is not finished has no model yet
    assert "the folder of a finished run" in capsys.readouterr().err
    model.rename(run / "model")
    np.savez(tmp_path / "x.npz", inputs=pictures(3)[0])
    named = [str(run), "--task", "left"]
    assert main(["inspect", str(run)]) == 0
    assert str(run / "model" / artifact.FILE_NAME) in capsys.readouterr().out.replace("\n", "")
    assert main(["verify", str(run)]) == 0
    assert main(["predict", *named, str(tmp_path / "x.npz")]) == 0
    assert main(["export", *named, str(tmp_path / "a.pt2")]) == 0
    more = ["--data", str(data), "--device", "cpu", "--set", "epochs=1"]
    assert main(["learn", str(run), "--task", "again", *more]) == 0
    assert not (run / artifact.FILE_NAME).exists()
    assert SubnetStore.load(run).tasks == SubnetStore.load(run / "model").tasks == ("left", "again")


def test_a_model_in_the_folder_itself_comes_first(tmp_path: Path) -> None:
    models.store(tasks=1).save(tmp_path)
    models.store(tasks=2).save(tmp_path / "model")
    assert len(SubnetStore.load(tmp_path).tasks) == 1


def test_inspect_of_an_empty_model_and_of_many_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SubnetStore(models.architecture()).save(tmp_path / "empty")
    assert main(["inspect", str(tmp_path / "empty")]) == 0
    assert inspect(tmp_path / "empty")["room"]["bytes_per_task"] is None
    store = models.store(tasks=5)
    same = store.subnet("task 3")
    models.add_masked(store, 20, same.mask)
    store.save(tmp_path / "same")
    assert inspect(tmp_path / "same")["room"]["until_no_free_weights"] is None
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "same")]) == 0
    assert "any number fit by mask alone" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", ["predict {} x.npz", "evaluate {} --data x.npz --unknown x.npz"])
def test_a_model_without_tasks_answers_nothing(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", inputs=models.inputs().numpy())
    models.store("named", 0).save("model")
    assert main(words.format("model").split()) == 2
    assert "the model has no tasks" in capsys.readouterr().err


def test_verify_finds_damage_and_says_where(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(model)]) == 0
    assert "every hash right" in capsys.readouterr().out
    data = bytearray((model / artifact.FILE_NAME).read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(data)
    assert main(["verify", str(tmp_path / "bad.safetensors")]) == 1
    assert "of task 0" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "bad.safetensors")]) == 2
    assert str(tmp_path / "bad.safetensors") in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none")]) == 1
    models.store("own").save(tmp_path / "own")
    assert main(["verify", str(tmp_path / "own")]) == 0
    assert "network not at hand" in capsys.readouterr().out


def test_verify_finds_numbers_that_are_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = models.store(tasks=1)
    head = store.subnet("task 0").task_params["fc.bias"].values
    head[0] = float("nan")
    store.save(tmp_path)
    assert main(["verify", str(tmp_path)]) == 1
    assert "fc.bias is not finite" in capsys.readouterr().err


def test_predict_names_the_class_of_images_and_arrays(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(6, seed=9)
    files = []
    for number, image in enumerate(images[:2]):
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image[0]).resize((32, 32)).save(files[-1])
    np.savez(tmp_path / "more.npz", inputs=images[2:])
    files.append(str(tmp_path / "more.npz"))
    command = ["predict", str(model), "--task", "left", *files]
    assert main(command) == 0
    assert "bright" in capsys.readouterr().out
    assert main([*command, "--json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["input"] for row in found[1:3]] == [files[1], f"{files[2]}[0]"]
    assert sum(c["probability"] for c in found[0]["classes"]) == pytest.approx(1.0)
    store = SubnetStore.load(model)
    guesses = [row["classes"][0]["name"] for row in found]
    assert guesses[2:] == store.predict("left", images[2:]).tolist()
    assert np.mean([g == t for g, t in zip(guesses, labels, strict=True)]) > 0.6


def test_evaluate_measures_a_task_on_labeled_data(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(20, seed=9)
    np.savez(tmp_path / "new.npz", inputs=images, labels=labels)
    command = ["evaluate", str(model), "--task", "left", "--data", str(tmp_path / "new.npz")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    right = SubnetStore.load(model).predict("left", images) == np.array(labels)
    assert found["samples"] == 20 and found["accuracy"] == pytest.approx(right.mean())
    assert np.trace(found["confusion"]) == right.sum()
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"left: {100 * right.mean():.2f} % right of 20 samples" in shown and "all of it" in shown
    assert "note: if the task was learned from these, this is no held-out accuracy" in shown
    np.savez(tmp_path / "parts.npz", inputs=images, labels=labels, test_inputs=images,
             test_labels=labels)  # fmt: skip
    assert main([*command[:-1], str(tmp_path / "parts.npz")]) == 0
    assert "note:" not in capsys.readouterr().out
    np.savez(tmp_path / "new.npz", inputs=images, labels=["other"] * 20)
    assert main(command) == 2
    assert "other are no classes of the task" in capsys.readouterr().err


def test_evaluate_measures_how_foreign_inputs_are_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(20, seed=9)
    foreign = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", inputs=images)  # no labels are needed
    (tmp_path / "others").mkdir()
    for number, picture in enumerate(foreign):
        Image.fromarray(picture[0]).save(tmp_path / "others" / f"{number:02}.png")
    own, others = str(tmp_path / "own.npz"), str(tmp_path / "others")
    command = ["evaluate", str(model), "--data", own, "--unknown", others]
    store = SubnetStore.load(model)
    live = store.evaluate_unknown(images, foreign)
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"tasks": list(store.tasks), **asdict(live)}
    assert main([*command, "--task", "left"]) == 0
    shown = capsys.readouterr().out
    assert str(store.evaluate_unknown(images, foreign, among=["left"])) in shown
    assert f"on {own} and {others}" in shown and "right of" not in shown  # there are no labels
    # With labels, the accuracy of the task as well.
    np.savez(tmp_path / "labeled.npz", inputs=images, labels=labels)
    with_labels = [*command, "--task", "left", "--data", str(tmp_path / "labeled.npz")]
    accuracy = store.evaluate("left", images, labels).accuracy
    assert main(with_labels) == 0
    shown = capsys.readouterr().out
    assert f"left: {100 * accuracy:.2f} % right of 20 samples" in shown
    assert f"area under the ROC curve {100 * live.auroc:.2f} %, of which 50 % is chance" in shown
    assert main([*with_labels, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["accuracy"] == accuracy and told["auroc"] == live.auroc
    # Of files with a test part that part is taken.
    np.savez(
        tmp_path / "own.npz", inputs=foreign, labels=labels[:12],
        test_inputs=images, test_labels=labels,
    )  # fmt: skip
    (tmp_path / "others" / "test").mkdir()
    for picture in (tmp_path / "others").glob("1*.png"):
        picture.rename(tmp_path / "others" / "test" / picture.name)
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "tasks": list(store.tasks),
        **asdict(store.evaluate_unknown(images, foreign[10:])),
    }
    assert main(["evaluate", str(model), "--data", own]) == 2
    assert "--task NAME is needed" in capsys.readouterr().err


def test_predict_answers_what_can_be_read_and_counts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    images, _ = pictures(12, seed=9)
    for number, picture in enumerate(images):
        Image.fromarray(picture[0]).save(folder / f"{number:02}.png")
    (folder / "03.png").write_bytes(b"no image")
    (folder / "07.png").write_bytes((folder / "08.png").read_bytes()[:40])
    good = np.delete(images, [3, 7], axis=0)
    answers = SubnetStore.load(model).predict("left", good).tolist()
    command = ["predict", str(model), "--task", "left", str(folder)]
    assert main([*command, "--json"]) == 2
    said = capsys.readouterr()
    rows = json.loads(said.out)["predictions"]
    assert [row["classes"][0]["name"] for row in rows] == answers
    complaints = said.err.splitlines()
    assert len(complaints) == 2 and all(line.startswith("tsn: ") for line in complaints)
    assert "03.png" in complaints[0] and "07.png" in complaints[1]
    assert main(command) == 2
    assert "inputs." not in capsys.readouterr().out  # ten lines are soon counted
    for name in ("03.png", "07.png"):
        Image.fromarray(images[0][0]).save(folder / name)
    answers += SubnetStore.load(model).predict("left", images[[0, 0]]).tolist()
    most = max(set(answers), key=answers.count)
    for task in (["--task", "left"], []):
        assert main(["predict", str(model), *task, str(folder)]) == 0
        told = capsys.readouterr().out.splitlines()[-1]
        assert told.startswith("12 inputs. " + ("" if task else "left: "))
        if task:
            assert told.startswith(f"12 inputs. {most} {answers.count(most)}")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"no image")
    for task in (["--task", "left"], []):
        assert main(["predict", str(model), *task, str(tmp_path / "bad")]) == 2
        said = capsys.readouterr()
        assert said.out == "" and "a.png: cannot decode" in said.err


def test_predict_explains_what_it_cannot_take(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str, where: Path = model) -> str:
        assert main(["predict", str(where), *arguments]) == 2
        return capsys.readouterr().err

    np.savez(tmp_path / "wide.npz", inputs=np.zeros((2, 1, 9, 9), np.uint8))
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    (tmp_path / "no.png").write_bytes(b"no image")
    (tmp_path / "no.npz").write_bytes(b"no archive")
    assert "the task takes (1, 8, 8)" in refused("--task", "left", str(tmp_path / "wide.npz"))
    assert "Name it 'inputs'" in refused("--task", "left", str(tmp_path / "two.npz"))
    message = refused("--task", "left", str(tmp_path / "no.png"))
    assert "cannot decode" in message and "BytesIO" not in message
    assert "cannot be read as .npz" in refused("--task", "left", str(tmp_path / "no.npz"))
    assert "No such file" in refused("--task", "left", str(tmp_path / "none.png"))
    assert "unknown task 'right'" in refused("--task", "right", str(tmp_path / "no.png"))
    models.store("own").save(tmp_path / "own")
    message = refused("--task", "task 1", "x.npz", where=tmp_path / "own")
    assert "give it again" in message and "--net" in message
    models.store(tasks=3).save(tmp_path / "floats")
    message = refused("--task", "task 1", str(tmp_path / "no.png"), where=tmp_path / "floats")
    assert "which images cannot become" in message


def test_scaled_pixels_are_refused_where_raw_ones_were_learned(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(6, seed=9)
    numbers = (labels == "bright").astype(int)
    np.savez(tmp_path / "raw.npz", inputs=images.astype(np.float32))
    np.savez(tmp_path / "scaled.npz", inputs=images / 255, labels=numbers)
    command = ["predict", str(model), "--task", "left", "--json"]
    assert main([*command, str(tmp_path / "raw.npz")]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    expected = SubnetStore.load(model).predict("left", images).tolist()
    assert [row["classes"][0]["name"] for row in found] == expected
    with pytest.raises(TaskError, match="scaled already"):
        SubnetStore.load(model).predict("left", images / 255)
    assert main([*command, str(tmp_path / "raw.npz"), str(tmp_path / "scaled.npz")]) == 2
    said = capsys.readouterr().err
    assert "scaled.npz: task 'left'" in said and "inputs * 255" in said
    export = ["export", str(model), "--task", "left", str(tmp_path / "a.onnx"), "--data"]
    assert main([*export, str(tmp_path / "scaled.npz")]) == 2
    assert "inputs * 255" in capsys.readouterr().err
    assert not (tmp_path / "a.onnx").exists()


def test_files_of_nonsense_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = pictures(4)[0]
    broken = images.astype(np.float32)
    broken[2, 0, 0, 0] = np.nan
    wrong = {
        "NaN or infinite values (first in sample 2)": broken,
        "inputs are bool": images > 9,
        "inputs are complex128": images.astype(complex),
        "inputs are <U3": images.astype(str),
        "Give pixels from 0 to 255": images.astype(np.int64) * 1000,
    }
    for said, inputs in wrong.items():
        np.savez(tmp_path / "x.npz", inputs=inputs)
        assert main(["predict", str(model), "--task", "left", str(tmp_path / "x.npz")]) == 2
        message = capsys.readouterr().err
        assert said in message and "x.npz" in message
    for inputs in (images > 9, images.astype(complex)):
        with pytest.raises(TaskError, match="cannot take inputs of type"):
            SubnetStore.load(model).predict("left", inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "said"),
    [
        pytest.param(5, "% exported", marks=pytest.mark.slow),
        ("bright", "not measured: bright, dark are no classes of the task, which knows 5, 6."),
        pytest.param(6, "not measured: 7 are no classes", marks=pytest.mark.slow),
    ],
)
def test_export_says_where_labels_are_not_those_of_the_task(
    first: int | str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(40)
    record = {"network": "small-cnn", "settings": {}, "head": "fc"}
    architecture = Architecture(networks.build("small-cnn"), rebuild=record)
    learner = TinySubNets(architecture, training={"epochs": 1}, pruning={"iterations": 2})
    learner.learn(Task.from_arrays("numbers", images, (labels == "bright") + 5))
    learner.save(tmp_path / "model")
    command = ["export", str(tmp_path / "model"), "--task", "numbers", str(tmp_path / "a.onnx")]
    data = tmp_path / "x.npz"
    given = labels if first == "bright" else (labels == "bright") + first
    np.savez(data, inputs=images, labels=given)
    assert main([*command, "--data", str(data)]) == 0
    assert said in capsys.readouterr().out


def test_images_are_learned_beside_tasks_of_other_numbers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(40)
    np.savez(tmp_path / "floats.npz", inputs=(images / 255).astype(np.float32), labels=labels)
    folder = write_folder(tmp_path / "pictures")
    command = ["learn", str(model), "--set", "epochs=1", "--data"]
    assert main([*command, str(tmp_path / "floats.npz"), "--task", "floats"]) == 0
    assert main([*command, str(folder), "--task", "pictures"]) == 0
    samples = {s.name: s.sample for s in SubnetStore.load(model).subnets.values()}
    kinds = {name: s and s.dtype for name, s in samples.items()}
    assert kinds["floats"] == torch.float32 and kinds["pictures"] == torch.uint8


def test_a_network_of_ones_own_is_named_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.store("own").save(tmp_path)
    np.savez(tmp_path / "x.npz", models.inputs(3).numpy())
    arguments = [str(tmp_path), "--task", "task 1", str(tmp_path / "x.npz")]
    assert main(["predict", *arguments, "--net", "models:own_network", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 3


def test_verify_puts_tasks_into_a_network_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models.store("own").save(tmp_path)
    command = ["verify", str(tmp_path)]
    assert main(command) == 0
    assert "give it with --net" in capsys.readouterr().out
    assert main([*command, "--net", "models:own_network"]) == 0
    assert "network rebuilt" in capsys.readouterr().out
    layers = OrderedDict(one=nn.Linear(6, 13), fc=nn.Linear(13, 3))
    monkeypatch.setattr(models, "wider", lambda: nn.Sequential(layers), raising=False)
    assert main([*command, "--net", "models:wider"]) == 2  # 1 is said of damaged files alone
    assert "model (12, 6), network (13, 6)" in capsys.readouterr().err
    damaged = bytearray((tmp_path / artifact.FILE_NAME).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / artifact.FILE_NAME).write_bytes(damaged)
    assert main([*command, "--net", "models:own_network"]) == 1


def test_learn_adds_a_task_from_a_folder_of_images(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "data")
    before = SubnetStore.load(model)
    size = (model / artifact.FILE_NAME).stat().st_size
    command = ["learn", str(model), "--task", "again", "--data", str(folder), "--device", "cpu"]
    assert main([*command, "--set", "epochs=1", "--set", "density=0.1"]) == 0
    text = capsys.readouterr().out
    after = SubnetStore.load(model)
    assert after.tasks == ("left", "again") and after.digest("left") == before.digest("left")
    assert after.density("again") < 0.15 < after.density("left")
    assert after.subnet("again").classes == ("bright", "dark")
    grown = (model / artifact.FILE_NAME).stat().st_size - size
    assert f"(+{grown:,})" in text and "drawn from the training data" in text
    assert "epoch 1/1" in text and "one of these is worth 16.7 points" in text
    assert "54 training, 6 validation samples of 1x8x8, 2 classes" in text
    assert main([*command[:5], "nowhere"]) == 2  # the name is looked at before the data
    said = capsys.readouterr().err
    assert "has been learned already" in said and "--replace" in said
    assert main([*command[:3], "third", *command[4:], "--set", "training.wisdom=1"]) == 2
    assert capsys.readouterr().err.startswith("tsn: unknown setting 'training.wisdom'")
    assert main([*command[:3], "third", *command[4:], "--set", "denstiy=0.1"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'density'? `tsn settings` lists all." in said and "epochs" not in said


def test_learn_explains_a_disk_that_cannot_be_written(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (model / artifact.FILE_NAME).read_bytes()
    folder = write_folder(tmp_path / "data")
    command = ["learn", str(model), "--task", "again", "--data", str(folder), "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert main(command) == 2
    said = capsys.readouterr()
    assert "cannot write to" in said.err and "epoch" not in said.out
    with monkeypatch.context() as patch:
        patch.setattr("tinysubnets.format.folder.os.fsync", full)
        assert main([*command, "--set", "training.epochs=1"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert (model / artifact.FILE_NAME).read_bytes() == before


def test_learn_takes_arrays_too(model: Path, tmp_path: Path) -> None:
    images, labels = pictures(60, seed=3)
    np.savez(
        tmp_path / "d.npz",
        inputs=images,
        labels=(labels == "bright").astype(int),
        classes=["dark", "bright"],
    )
    command = ["learn", str(model), "--task", "b", "--data", str(tmp_path / "d.npz")]
    assert main([*command, "--device", "cpu"]) == 0
    assert set(SubnetStore.load(model).subnet("b").classes) == {"dark", "bright"}


@pytest.mark.slow
def test_export_writes_onnx_and_torch_programs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    folder = write_folder(tmp_path / "data")
    command = ["export", str(model), "--task", "left"]
    assert main([*command, str(tmp_path / "a.onnx"), "--int8", "--data", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "a.onnx" in text and "% exported" in text
    assert text.count("if the task was learned from these, this is no held-out accuracy") == 2
    assert "takes uint8 inputs of shape ('batch', 1, 8, 8), raw" in text
    card = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert "held-out accuracy, which needs other images, or a test/ folder" in card
    rows = {r.split("|")[1].strip(): r.split("|")[2:5] for r in card.splitlines() if "|" in r}
    assert int(rows["int8"][0].replace(",", "")) == (tmp_path / "a.onnx").stat().st_size
    shares = [float(s) for s in re.findall(r"([\d.]+) % (?:exported|in torch)", text)]
    assert [float(rows[kind][1]) for kind in ("int8", "float32")] == shares
    assert all(float(rows[kind][2]) > 0 for kind in ("int8", "float32"))
    assert main([*command, str(tmp_path / "a.pt2")]) == 0
    assert (tmp_path / "a.pt2").stat().st_size > 0
    assert main([*command, str(tmp_path / "a.tflite")]) == 2
    assert ".onnx or .pt2" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "a.onnx"), "--int8"]) == 2
    assert "--int8 needs --data" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tinysubnets.cli import main\n"
        "try:\n    main(['predict', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(len({'torch', 'numpy', 'rich', 'PIL'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def learned(model: Path, task: str, data: Path, *more: str) -> int:
    """The exit status of learning a task for an epoch."""
    command = ["learn", str(model), "--task", task, "--data", str(data), "--device", "cpu"]
    return main([*command, "--set", "epochs=1", *more])


@pytest.mark.slow
def test_tasks_are_renamed_and_removed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    assert learned(model, "second", data, "--set", "threshold=1000") == 0
    assert learned(model, "alone", data, "--isolated") == 0
    before = SubnetStore.load(model)
    assert before.subnet("alone").isolated and before.subnet("alone").bank == 1
    capsys.readouterr()
    assert main(["rename", str(model), "left", "right"]) == 0
    assert "its backup, of before the last task, is removed" in capsys.readouterr().out
    assert main(["rename", str(model), "left", "right"]) == 2
    assert "unknown task 'left'" in capsys.readouterr().err
    assert main(["remove", str(model), "--task", "right"]) == 0
    text = capsys.readouterr().out
    after = SubnetStore.load(model)
    assert after.tasks == ("second", "alone")
    assert all(after.digest(t) == before.digest(t) for t in after.tasks)
    assert "stay without a name, used by second" in text and "backup" not in text
    assert main(["inspect", str(model)]) == 0
    assert "weights of removed tasks in use" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["rename", "a", "b"], ["remove", "--task", "a"], ["undo"]])
def test_a_model_that_is_not_there_is_told(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *more = words
    assert main([command, str(tmp_path / "nowhere"), *more]) == 2
    assert "no model at" in capsys.readouterr().err


def test_exact_removal_asks_before_later_tasks_go(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    assert learned(model, "alone", data, "--isolated") == 0
    assert learned(model, "second", data) == 0
    file = model / artifact.FILE_NAME
    whole, command = file.read_bytes(), ["remove", str(model), "--task", "left", "--exact"]
    assert main(command) == 2  # nobody to ask
    seen = capsys.readouterr()
    assert "removed with it: second" in seen.out and "--yes" in seen.err
    assert file.read_bytes() == whole
    assert main([*command, "--yes"]) == 0
    assert "nothing in the model depends on its data" in capsys.readouterr().out
    assert SubnetStore.load(model).tasks == ("alone",)


@pytest.mark.slow
def test_learn_replaces_a_task_where_the_new_version_is_better(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    assert learned(model, "second", data) == 0
    inputs, labels = pictures(80)
    turned = np.where(labels == "dark", "bright", "dark")
    np.savez(tmp_path / "turned.npz", inputs=inputs, labels=turned)
    before = SubnetStore.load(model)
    assert learned(model, "nobody", tmp_path / "turned.npz", "--replace") == 2
    capsys.readouterr()
    more = ["--set", "epochs=8"]
    assert learned(model, "left", tmp_path / "turned.npz", "--replace", *more) == 0
    text, after = capsys.readouterr().out, SubnetStore.load(model)
    assert "the old version of 'left' removed" in text
    assert sorted(after.tasks) == ["left", "second"]
    assert after.digest("second") == before.digest("second")
    assert after.digest("left") != before.digest("left")
    assert after.subnet("left").number == 2 and after.next_number == 3
    whole = (model / artifact.FILE_NAME).read_bytes()
    worse = ["--set", "lr=1e-9", "--set", "training.min_lr=1e-10"]
    assert learned(model, "left", tmp_path / "turned.npz", "--replace", *worse) == 0
    assert "the old one stays" in capsys.readouterr().out
    assert (model / artifact.FILE_NAME).read_bytes() == whole
