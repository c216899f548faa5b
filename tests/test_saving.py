"""Every file that the package writes: never through a link, never into a pipe, never half of it."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from quick import mostly_slow
from tiny_runs import make_run
from tinysubnets.baselines.dense_file import load_dense, save_dense
from tinysubnets.cli import main
from tinysubnets.errors import ArtifactError, RunError, TinySubNetsError
from tinysubnets.experiments import methods, recipe
from tinysubnets.experiments.checkpoint import Checkpoints
from tinysubnets.experiments.cluster import pack, unpack
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.experiments.run_process import LocalRun
from tinysubnets.experiments.search import Search
from tinysubnets.experiments.search_space import Choices
from tinysubnets.experiments.trial import SearchPlan
from tinysubnets.files import appending, atomic_write, sync_file, truncate
from tinysubnets.format import FILE_NAME, ModelFile, backup, encode, undo
from tinysubnets.format import onnx as export
from tinysubnets.format.patch import make_patch, patch_file, write_patch
from tinysubnets.model.store import SubnetStore
from tinysubnets.report import write_report
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


@functools.cache
def finished_run() -> dict[str, bytes]:
    """The files of a run that a report is about, by name."""
    with tempfile.TemporaryDirectory() as made:
        run = make_run(Path(made) / "run")
        return {name: (run / name).read_bytes() for name in ("config.toml", "result.json")}


def save_report(folder: Path) -> None:
    run = folder.parent / "run"
    run.mkdir()
    for name, data in finished_run().items():
        (run / name).write_bytes(data)
    write_report(run, folder)


def two_versions(folder: Path) -> tuple[Path, Path]:
    """Two model files, of which the second continues the first."""
    paths = folder / "first", folder / "second"
    for path, tasks in zip(paths, (1, 2), strict=True):
        path.write_bytes(file_of(tasks))
    return paths


def file_of(tasks: int) -> bytes:
    return b"".join(encode(models.store(tasks=tasks)).parts)


def save_patch(folder: Path) -> None:
    write_patch(*two_versions(folder.parent), folder / "out.patch")


def save_patched(folder: Path) -> None:
    old, _ = two_versions(folder.parent)
    patch = folder.parent / "patch"
    patch.write_bytes(make_patch(file_of(1), file_of(2)))
    patch_file(old, patch, folder / "out.safetensors")


def learn_in_place(folder: Path) -> None:
    """Save a model with a backup of the one that was there."""
    store = models.store(tasks=1)
    store.save(folder)
    models.add_task(store, 1)
    store.save(folder, with_backup=True)


def begin_search(folder: Path) -> None:
    pytest.importorskip("optuna")
    plan = SearchPlan(recipe.load("permuted-digits"), space={"tsn.block": Choices((1, 2))})
    with RunDir(folder) as held, Search(plan, held):
        pass


def start_run(folder: Path) -> None:
    run = LocalRun(folder, ("run", "no such recipe"), None)
    run.process.wait()


def bring_back(folder: Path) -> None:
    """Unpack what another machine has sent."""
    sent = folder.parent / "sent"
    sent.mkdir()
    (sent / "log.txt").write_text("a line")
    unpack(pack(sent), folder)


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
    (save_report, "report.html", True),
    (save_patch, "out.patch", True),
    (save_patched, "out.safetensors", False),
    (save_patched, ".lock", False),
    (learn_in_place, "backup", True),
    (begin_search, "study.db", False),
    (begin_search, "study.db-journal", False),
    (start_run, "output.txt", False),
    (bring_back, "log.txt", True),
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
        assert (folder / name).is_file() or (folder / name).is_dir()
        assert not (folder / name).is_symlink()
    except (OSError, TinySubNetsError):  # refused, and it says so
        assert not is_replaced or kind == "folder"
    assert other.read_bytes() == SECRET
    assert not (tmp_path / "new").exists()
    if kind == "folder":
        assert (folder / name / "inside").is_dir(), "nothing of somebody else is removed"
    left = [p.name for p in folder.rglob("*") if p.name.endswith(".tmp")]
    assert left == [], "no temporary file stays behind"


@pytest.mark.parametrize("name", ["README.md", "config.json"])
def test_a_link_beside_a_new_model_is_replaced_and_a_file_of_others_refused(
    tmp_path: Path, name: str
) -> None:
    other, folder = tmp_path / "other", tmp_path / "m"
    other.write_bytes(SECRET)
    folder.mkdir()
    (folder / name).symlink_to(other)
    save_model(folder)
    assert not (folder / name).is_symlink() and (folder / name).is_file()
    assert SubnetStore.load(folder).tasks and other.read_bytes() == SECRET
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_bytes(SECRET)
    with pytest.raises(ArtifactError, match="no model's"):
        save_model(tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").glob("[!.]*")] == [name]


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


def fail_syncs(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    times: set[int],
    error: BaseException | None = None,
) -> None:
    """Let these syncs of a folder fail, counted from 1."""
    honest, count = os.fsync, 0

    def failing(descriptor: int) -> None:
        nonlocal count
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):
            count += 1
            if count in times:
                raise error or OSError(errno.EIO, "Input/output error")
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_an_error_says_that_the_new_model_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_at(patch, name, "replace")
        both = name if name == "README.md" else f"{name} and README.md"
        with pytest.raises(ArtifactError, match=f"the new model is saved in .*but {both} beside"):
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


def test_a_dense_model_that_is_in_place_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_baseline(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, tmp_path.name, "fsync")
        with pytest.raises(ArtifactError, match=r"the new model is in .*No space left"):
            save_dense(tmp_path, {"a": torch.ones(3)}, {"method": "other"})
    assert methods.made_by(tmp_path) == "other"


def test_nobody_waits_for_a_pipe_in_the_place_of_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(ArtifactError, match="not a plain file"):
        methods.made_by(tmp_path)
    with pytest.raises(ArtifactError, match="not a plain file"):
        load_dense(tmp_path)
    first = tmp_path / "first"
    first.write_bytes(file_of(1))
    with pytest.raises(ArtifactError, match="not a plain file"):
        write_patch(first, tmp_path / FILE_NAME, tmp_path / "patch")


@pytest.mark.parametrize("name", ["checkpoint", "model"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_folder(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name == "checkpoint":
        Checkpoints(tmp_path).remove()
        unpack(pack(Path(__file__).parent / "golden"), tmp_path)
    else:
        with pytest.raises(ArtifactError, match="not a folder to save in"):
            make_run(tmp_path)
    assert (tmp_path / name).is_fifo()


# The way back: a backup is there as long as the model is the one that replaced it.


def learned_twice(folder: Path) -> tuple[SubnetStore, list[bytes]]:
    """A store that was saved three times, with a backup of the second, and the three files."""
    store, seen = models.store(tasks=1), []
    for number in (0, 1, 2):
        if number:
            models.add_task(store, number)
        store.save(folder, with_backup=True)
        seen.append((folder / FILE_NAME).read_bytes())
    return store, seen


def there(folder: Path) -> bytes:
    return (folder / FILE_NAME).read_bytes()


def test_a_save_that_fails_leaves_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (_, second, third) = learned_twice(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_at(patch, FILE_NAME, "replace")
        with pytest.raises(OSError, match="No space left"):
            store.save(tmp_path, with_backup=True)
    assert there(tmp_path) == third and not list(tmp_path.glob(".*"))
    undo(tmp_path)
    assert there(tmp_path) == second


def test_a_model_that_could_not_be_synced_has_a_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (*_, third) = learned_twice(tmp_path)
    models.add_task(store, 3)
    card = (tmp_path / "README.md").read_bytes()
    with monkeypatch.context() as patch:
        fail_syncs(patch, tmp_path, {1})  # behind the rename
        said = r"the new model is in .*Input/output.* README.md beside it are as they were"
        with pytest.raises(ArtifactError, match=said):
            store.save(tmp_path, with_backup=True)
    assert SubnetStore.load(tmp_path).tasks == store.tasks
    assert (tmp_path / "README.md").read_bytes() == card
    undo(tmp_path)
    assert there(tmp_path) == third


def test_a_backup_that_could_not_be_synced_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (*_, third) = learned_twice(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_syncs(patch, tmp_path, {2})  # behind the model's
        said = rf"the new model is saved in .* the old one in {tmp_path / 'backup'}, .*power cut"
        with pytest.raises(ArtifactError, match=said):
            store.save(tmp_path, with_backup=True)
    assert SubnetStore.load(tmp_path).tasks == store.tasks
    assert there(tmp_path / "backup") == third
    undo(tmp_path)
    assert there(tmp_path) == third


def test_files_beside_a_model_that_could_not_be_synced_are_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_syncs(patch, tmp_path, {2})  # behind config.json
        said = r"the new model is saved in .* with config.json and README.md beside it, .*power cut"
        with pytest.raises(ArtifactError, match=said):
            store.save(tmp_path)
    for name in ("config.json", "README.md"):
        assert "task 3" in (tmp_path / name).read_text()


def test_ctrl_c_behind_the_rename_leaves_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (*_, third) = learned_twice(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_syncs(patch, tmp_path, {1}, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            store.save(tmp_path, with_backup=True)
    assert SubnetStore.load(tmp_path).tasks == store.tasks and not list(tmp_path.glob(".*"))
    undo(tmp_path)
    assert there(tmp_path) == third


def test_a_backup_that_cannot_be_moved_is_found_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (*_, third) = learned_twice(tmp_path)
    models.add_task(store, 3)
    with monkeypatch.context() as patch:
        fail_at(patch, "backup", "replace")
        with pytest.raises(ArtifactError, match=r"the new model is saved in .*tsn undo. finds it"):
            store.save(tmp_path, with_backup=True)
    assert SubnetStore.load(tmp_path).tasks == store.tasks
    store.save(tmp_path)  # known as one's own, and the same again: the way back stays
    undo(tmp_path)
    assert there(tmp_path) == third and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("has_come", [True, False])
def test_a_backup_written_ahead_counts_once_its_model_has_come(
    tmp_path: Path, has_come: bool
) -> None:
    """A process was killed just behind the model's rename, or just before it."""
    store, (_, second, third) = learned_twice(tmp_path)
    shutil.copytree(tmp_path / "backup", tmp_path / "before")
    models.add_task(store, 3)
    store.save(tmp_path, with_backup=True)
    (tmp_path / "backup").rename(tmp_path / f".backup.{'0' * 16}.tmp")
    (tmp_path / "before").rename(tmp_path / "backup")
    if not has_come:
        (tmp_path / FILE_NAME).write_bytes(third)
    undo(tmp_path)
    assert there(tmp_path) == (third if has_come else second) and not list(tmp_path.glob(".*"))


def test_a_backup_of_an_earlier_time_is_never_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process has left the backup before the last: it names what undo puts back.

    Undo then fails behind the model, and is done again.
    """
    store = models.store(tasks=1)
    store.save(tmp_path, with_backup=True)
    models.add_task(store, 1)
    store.save(tmp_path, with_backup=True)
    second = there(tmp_path)
    shutil.copytree(tmp_path / "backup", tmp_path / "before")
    models.add_task(store, 2)
    store.save(tmp_path, with_backup=True)
    (tmp_path / "before").rename(tmp_path / f".backup.{'0' * 16}.tmp")

    def fail(*_: Any, **__: Any) -> None:
        raise ArtifactError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(ArtifactError, match="full"):
        patched.setattr(backup, "write_beside", fail)
        undo(tmp_path)
    assert there(tmp_path) == second
    undo(tmp_path)
    assert there(tmp_path) == second


def test_a_backup_that_was_being_removed_is_none(tmp_path: Path) -> None:
    learned_twice(tmp_path)
    (tmp_path / "backup" / FILE_NAME).unlink()
    with pytest.raises(ArtifactError, match="has no backup"):
        undo(tmp_path)


def test_a_backup_that_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = learned_twice(tmp_path)
    store.remove("task 1")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(ArtifactError, match=r"model is saved .*backup, .* not be removed"):
            store.save(tmp_path)
    store.save(tmp_path)
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_the_way_back_can_be_gone_to_its_end(tmp_path: Path, name: str) -> None:
    _, (_, second, _) = learned_twice(tmp_path)
    before = (tmp_path / "backup" / name).read_bytes()
    (tmp_path / name).unlink()
    (tmp_path / name / "inside").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=rf"is back in .*{name} .*undo again"):
        undo(tmp_path)
    assert there(tmp_path) == second and (tmp_path / "backup").is_dir()
    (tmp_path / name / "inside").rmdir()
    (tmp_path / name).rmdir()
    assert main(["undo", str(tmp_path)]) == 0
    assert (tmp_path / name).read_bytes() == before and there(tmp_path) == second
    assert not (tmp_path / "backup").exists()


def test_a_way_back_that_fails_at_once_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (_, second, third) = learned_twice(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, FILE_NAME, "replace")
        with pytest.raises(ArtifactError, match=r"nothing was changed.*No space left"):
            undo(tmp_path)
    assert there(tmp_path) == third
    with monkeypatch.context() as patch:
        fail_at(patch, tmp_path.name, "fsync")
        with pytest.raises(ArtifactError, match=r"is back in .*No space left"):
            undo(tmp_path)
    assert there(tmp_path) == second
    undo(tmp_path)
    assert there(tmp_path) == second and not (tmp_path / "backup").exists()


def test_somebody_elses_folder_is_not_replaced_by_a_backup(tmp_path: Path) -> None:
    store = models.store(tasks=1)
    store.save(tmp_path)
    before = there(tmp_path)
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / FILE_NAME).write_bytes(SECRET)
    models.add_task(store, 1)
    with pytest.raises(ArtifactError, match="not a backup that this package has made"):
        store.save(tmp_path, with_backup=True)
    assert (tmp_path / "backup" / FILE_NAME).read_bytes() == SECRET and there(tmp_path) == before
    (tmp_path / "backup" / FILE_NAME).unlink()
    os.mkfifo(tmp_path / "backup" / "replaced_by")  # and nobody waits for it
    with pytest.raises(ArtifactError, match="not a backup that this package has made"):
        store.save(tmp_path, with_backup=True)
    store.save(tmp_path)
    with pytest.raises(ArtifactError, match="has no backup"):
        undo(tmp_path)


# Patches: what is said is what was done.


def patched(folder: Path) -> tuple[Path, Path, bytes]:
    """A model folder of one task, the patch to two, and the file that it gives."""
    models.store(tasks=1).save(folder / "model")
    patch = folder / "patch"
    patch.write_bytes(make_patch(file_of(1), file_of(2)))
    return folder / "model" / FILE_NAME, patch, file_of(2)


def test_a_patch_that_was_applied_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, patch, new = patched(tmp_path)
    old = model.read_bytes()
    with monkeypatch.context() as patching:
        fail_at(patching, FILE_NAME, "replace")
        assert main(["apply", str(model), str(patch)]) == 2
    assert "nothing was changed" in capsys.readouterr().err and model.read_bytes() == old
    with monkeypatch.context() as patching:
        fail_at(patching, "model", "fsync")
        assert main(["apply", str(model), str(patch)]) == 2
    said = capsys.readouterr().err
    assert f"the new model is in {model}" in said and "nothing was changed" not in said
    assert model.read_bytes() == new


def test_a_patch_in_place_removes_the_backup(tmp_path: Path) -> None:
    """It is of no use any more."""
    learn_in_place(tmp_path / "model")
    model, patch = tmp_path / "model" / FILE_NAME, tmp_path / "patch"
    patch.write_bytes(make_patch(model.read_bytes(), file_of(3)))
    assert patch_file(model, patch) and model.read_bytes() == file_of(3)
    assert not (tmp_path / "model" / "backup").exists()


def test_what_lies_beside_a_patched_model_is_written_the_second_time(tmp_path: Path) -> None:
    model, patch, new = patched(tmp_path)
    card = model.with_name("README.md")
    card.unlink()
    (card / "inside").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"the new model is saved in .*apply the patch again"):
        patch_file(model, patch)
    assert model.read_bytes() == new
    (card / "inside").rmdir()
    card.rmdir()
    card.write_text("of the old model")
    assert not patch_file(model, patch)
    assert "task 1" in card.read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            atomic_write(tmp_path / "file", b"")
    finally:
        tmp_path.chmod(0o700)
