"""Every file that the package writes: never through a link, never into a pipe, never half of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from quick import mostly_slow
from tinysubnets.baselines.base import save_dense
from tinysubnets.errors import ArtifactError, RunError, TinySubNetsError
from tinysubnets.experiments.checkpoint import Checkpoints
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.files import appending, atomic_write, sync_file, truncate
from tinysubnets.format import FILE_NAME, ModelFile
from tinysubnets.format import onnx as export
from tinysubnets.model.store import SubnetStore
from tinysubnets.report.drawing import Drawing

SECRET = b"of somebody else"


def save_model(folder: Path) -> None:
    models.store(tasks=2).save(folder)


def save_baseline(folder: Path) -> None:
    save_dense(folder, {"a": torch.zeros(3)}, {"method": "naive"})


def write_run(folder: Path) -> None:
    with RunDir(folder) as run:
        run.write_config({"run": {"seed": 1}})
        run.write("result.json", "{}")
        run.log("a line")
        run.track({"loss": 1.0})
        run.tracked_bytes()
        run.forget_metrics(3)


def save_checkpoint(folder: Path) -> None:
    (folder / "checkpoint").mkdir(exist_ok=True)
    Checkpoints(folder).save(({"a": torch.zeros(2)}, {}), None, {})


def save_pt2(folder: Path) -> None:
    export.to_torch(models.store(tasks=1), "task 0", folder / "out.pt2")


def save_onnx(folder: Path) -> None:
    pytest.importorskip("onnxscript")
    export.to_onnx(models.store(tasks=1), "task 0", folder / "out.onnx")


def save_picture(folder: Path) -> None:
    Drawing(10, 10, "title").save(folder / "picture.svg")


# Who writes, what is written, and whether a link or pipe in its place is replaced or refused.
WRITERS: list[tuple[Callable[[Path], None], str, bool]] = [
    (save_model, "config.json", True),
    (save_model, "README.md", True),
    (save_model, ".lock", False),
    (save_baseline, "config.json", True),
    (save_baseline, FILE_NAME, True),
    (write_run, "config.toml", True),
    (write_run, "result.json", True),
    (write_run, "log.txt", False),
    (write_run, "metrics.jsonl", False),
    (write_run, ".lock", False),
    (save_checkpoint, "checkpoint/state.json", True),
    (save_checkpoint, "checkpoint/learned-1.safetensors", True),
    (save_pt2, "out.pt2", True),
    (save_picture, "picture.svg", True),
    (save_onnx, "out.onnx", True),
]


def put(kind: str, place: Path, other: Path) -> None:
    """Put an obstacle in the place of a file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        place.symlink_to(other)
    elif kind == "link to nothing":
        place.symlink_to(other.with_name("new"))
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        (place / "inside").mkdir(parents=True)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
@pytest.mark.parametrize(("write", "name", "is_replaced"), mostly_slow(WRITERS, quick=WRITERS[:-1]))
def test_nothing_is_written_through_what_lies_in_the_way(
    tmp_path: Path, kind: str, write: Callable[[Path], None], name: str, is_replaced: bool
) -> None:
    other, folder = tmp_path / "other", tmp_path / "out"
    other.write_bytes(SECRET)
    put(kind, folder / name, other)
    try:
        write(folder)
        assert is_replaced and kind != "folder"
        assert (folder / name).is_file() and not (folder / name).is_symlink()
    except (OSError, TinySubNetsError):  # refused, and it says so
        assert not is_replaced or kind == "folder"
    assert other.read_bytes() == SECRET
    assert not (tmp_path / "new").exists()
    left = [p.name for p in folder.rglob("*") if p.name.endswith(".tmp")]
    assert left == [], "no temporary file stays behind"


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_model_is_not_saved_over_what_is_none(tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(SECRET)
    put(kind, tmp_path / "m" / FILE_NAME, other)
    with pytest.raises(ArtifactError):
        save_model(tmp_path / "m")
    assert other.read_bytes() == SECRET and not (tmp_path / "new").exists()


def test_links_with_the_old_temporary_names_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(SECRET)
    for name in (FILE_NAME, "config.json", "README.md", "config.toml"):
        (tmp_path / f".{name}.tmp").symlink_to(other)
        (tmp_path / f".{name}.new").symlink_to(other)
    save_model(tmp_path)
    write_run(tmp_path)
    assert other.read_bytes() == SECRET


def test_a_checkpoint_is_never_kept_in_a_linked_folder(tmp_path: Path) -> None:
    """Files of earlier checkpoints are removed: not those of another folder."""
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_bytes(SECRET)
    (tmp_path / "checkpoint").symlink_to(precious.parent)
    with pytest.raises(RunError, match="a link lies in its place"):
        Checkpoints(tmp_path).save(({"a": torch.zeros(2)}, {}), None, {})
    assert precious.read_bytes() == SECRET


def test_files_are_added_to_cut_and_synced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for part in (b"one ", b"two"):
        with appending(path) as file:
            file.write(part)
    assert path.read_bytes() == b"one two"
    truncate(path, 100)
    assert path.read_bytes() == b"one two"
    truncate(path, 3)
    sync_file(path)
    assert path.read_bytes() == b"one"


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: str) -> None:
    """Let a call fail once it concerns the file of that name."""
    honest = getattr(os, call)

    def failing(*arguments: Any) -> Any:
        where = arguments[-1]
        if isinstance(where, int):
            where = os.readlink(f"/proc/self/fd/{where}")
        if Path(where).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(*arguments)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_an_error_says_that_the_new_model_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_at(patch, name, "replace")
        with pytest.raises(ArtifactError, match=f"the new model is saved in .*but {name}"):
            store.save(tmp_path)
    assert SubnetStore.load(tmp_path).tasks == store.tasks
    store.save(tmp_path)  # known as one's own


def test_an_error_after_the_rename_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_at(patch, tmp_path.name, "fsync")  # of the folder, behind the rename
        with pytest.raises(ArtifactError, match="the new model is in"):
            store.save(tmp_path)
    assert SubnetStore.load(tmp_path).tasks == store.tasks
    with ModelFile(tmp_path / FILE_NAME) as file:
        assert file.identity == store.saved_as


def test_a_dense_model_comes_before_what_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_baseline(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with monkeypatch.context() as patch:
        fail_at(patch, FILE_NAME, "replace")
        with pytest.raises(OSError, match="No space left"):
            save_dense(tmp_path, {"a": torch.ones(3)}, {"method": "other"})
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            atomic_write(tmp_path / "file", b"")
    finally:
        tmp_path.chmod(0o700)
