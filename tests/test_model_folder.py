"""A model folder in daily use: loaded without a network, its card's snippet run, saved over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import models
from nets import NETWORKS, data, learner, mlp, task
from tinysubnets import networks
from tinysubnets.errors import ArtifactError, ConflictError, MismatchError
from tinysubnets.format import FILE_NAME
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import Sample
from tinysubnets.nn.architecture import Architecture

TRAINING: dict[str, Any] = {"epochs": 1, "iterations": 1}


def learned(net: nn.Module) -> TinySubNets:
    """A learner of one small task."""
    made = TinySubNets(Architecture(net), device="cpu", **TRAINING)
    made.learn(task("a"))
    return made


def test_a_network_of_the_package_needs_no_net_at_load(tmp_path: Path) -> None:
    made = learned(networks.build("mlp", in_features=6, hidden=(8, 8), classes=3))
    made.save(tmp_path)
    inputs = data()[0]
    store = SubnetStore.load(tmp_path)
    assert torch.equal(store.logits("a", inputs), made.logits("a", inputs))
    assert TinySubNets.resume(tmp_path, device="cpu").tasks == ("a",)


@pytest.mark.parametrize("name", networks.names())
def test_every_network_of_the_package_says_how_it_was_built(name: str) -> None:
    record = Architecture(networks.build(name, classes=3)).rebuild
    assert record == {"network": name, "settings": {"classes": 3}}


def test_a_network_that_was_changed_is_ones_own(tmp_path: Path) -> None:
    net = networks.build("mlp", in_features=6, hidden=(8, 8), classes=3)
    net.relu1 = nn.Tanh()  # type: ignore[assignment]  # of the same shapes, and another function
    made = learned(net)
    made.save(tmp_path)
    with pytest.raises(MismatchError, match="a network of your own"):
        SubnetStore.load(tmp_path)
    again = SubnetStore.load(tmp_path, net)
    assert torch.equal(again.logits("a", data()[0]), made.logits("a", data()[0]))


def test_settings_that_no_file_can_hold_leave_a_network_ones_own() -> None:
    net = networks.build("mlp", in_features=np.int64(6), hidden=(8, 8))
    assert Architecture(net).rebuild is None


def snippet(folder: Path) -> str:
    text = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)[0]


def run_snippet(folder: Path, monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    """Run what the card says, in the folder it lies in."""
    monkeypatch.chdir(folder)
    exec(compile(snippet(folder), "README.md", "exec"), names)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_cards_snippet_runs_for_every_network(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, shape = NETWORKS[kind]
    made = TinySubNets(Architecture(make()), device="cpu", **TRAINING)
    made.learn(task("it's `a`", shape))
    made.save(tmp_path)
    run_snippet(tmp_path, monkeypatch, net=make())
    assert capsys.readouterr().out.startswith("[")
    assert "`net` is your own network" in snippet(tmp_path)


def test_the_cards_snippet_runs_for_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SubnetStore(models.architecture()).save(tmp_path / "empty")
    unknown = SubnetStore(models.architecture())
    models.add_task(unknown, 0, sample=None)
    unknown.save(tmp_path / "unknown")
    names = dict.fromkeys(['"""', "'a\\", "``` <b>", "naïve ☃"])
    for number, name in enumerate(names):
        odd = SubnetStore(models.architecture())
        models.add_task(odd, number, name=name, sample=Sample(torch.float64, (6,)))
        odd.save(tmp_path / f"odd {number}")
    models.store("own").save(tmp_path / "own")
    models.store().save(tmp_path / "named")
    for folder in sorted(tmp_path.iterdir()):
        run_snippet(folder, monkeypatch, net=models.own_network())
    assert len(capsys.readouterr().out.splitlines()) == len(list(tmp_path.iterdir()))
    assert "net" not in snippet(tmp_path / "named").replace("tinysubnets", "").replace(
        "SubnetStore", ""
    )


def test_ones_own_earlier_result_is_replaced_where_that_is_said(tmp_path: Path) -> None:
    learner().save(tmp_path)  # of the same notebook, run once before
    again = learner()
    again.learn(task())
    with pytest.raises(ConflictError, match=r"save\(folder, overwrite=True\)"):
        again.save(tmp_path)
    again.save(tmp_path, overwrite=True)
    assert SubnetStore.load(tmp_path, mlp()).tasks == ("a",)
    again.learn(task("b", seed=1))
    again.save(tmp_path)  # now it is its own
    (tmp_path / FILE_NAME).write_bytes(b"precious")
    with pytest.raises(ConflictError, match="not a model that can be read"):
        again.save(tmp_path, overwrite=True)


OTHER = """
import models, sys
store = models.store(tasks=int(sys.argv[2]))
store.rename(store.tasks[0], "of another process")  # no other test of this process writes the same
store.save(sys.argv[1], overwrite=True)
"""


def another_process_saves(folder: Path, tasks: int = 1) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "src")])
    command = [sys.executable, "-c", OTHER, str(folder), str(tasks)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.slow
def test_what_another_process_saves_meanwhile_is_never_replaced(tmp_path: Path) -> None:
    another_process_saves(tmp_path)  # long before
    made = learner()
    made.learn(task())
    with pytest.raises(ConflictError, match="overwrite=True"):
        made.reserve(tmp_path)
    made.reserve(tmp_path, overwrite=True)
    another_process_saves(tmp_path, 2)
    kept = (tmp_path / FILE_NAME).read_bytes()
    for overwrite in (False, True):
        with pytest.raises(ConflictError, match="another"):
            made.save(tmp_path, overwrite=overwrite)
    assert (tmp_path / FILE_NAME).read_bytes() == kept
    late = learner()  # begun after it, so it knows what it does
    late.learn(task())
    late.save(tmp_path, overwrite=True)
    assert SubnetStore.load(tmp_path, mlp()).tasks == ("a",)


def test_a_reserved_folder_is_saved_in_without_a_further_word(tmp_path: Path) -> None:
    models.store().save(tmp_path / "m")
    made = learner()
    made.reserve(tmp_path / "m", overwrite=True)
    assert SubnetStore.load(tmp_path / "m").tasks == models.store().tasks  # nothing is lost yet
    made.learn(task())
    made.save(tmp_path / "m")
    assert SubnetStore.load(tmp_path / "m", mlp()).tasks == ("a",)
    made.reserve(tmp_path / "new")
    made.reserve(tmp_path / "m")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match="not a folder"):
        made.reserve(tmp_path / "file")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / ".lock").mkdir()
    with pytest.raises(ArtifactError, match="cannot write to"):
        made.reserve(tmp_path / "locked")


@pytest.mark.parametrize("name", ["README.md", "config.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_never_replaced(name: str, overwrite: bool, tmp_path: Path) -> None:
    one = learned(mlp())
    mine = tmp_path / name
    mine.write_text('{"architectures": ["of a library"]}')
    for act in (one.save, one.store.save):
        with pytest.raises(ConflictError, match=f"{name} is no model's"):
            act(tmp_path, overwrite=overwrite)
    assert mine.read_text().startswith('{"arch')
    assert not (tmp_path / FILE_NAME).exists()
    one.save(tmp_path / "model")  # what a model left behind is no one's
    (tmp_path / "model" / FILE_NAME).unlink()
    one.store.saved_as = None
    one.save(tmp_path / "model")
