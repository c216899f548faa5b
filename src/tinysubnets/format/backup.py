"""The one backup in a model folder: what the model was before the last task was learned in place.

It is a model folder itself, `backup/`, with a file that names the model it was replaced by. So it
is of use only while that one is in place; whatever else is saved there removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tinysubnets.errors import ArtifactError
from tinysubnets.files import atomic_write, lock, replaced_folder
from tinysubnets.format.container import FILE_NAME, ModelFile, model_path
from tinysubnets.format.header import manifest_of

FOLDER, SUCCESSOR = "backup", "replaced_by"
BESIDE = ("config.json", "README.md")  # derived from the model, for people


@dataclass(frozen=True)
class Undone:
    """What going back to a backup did.

    - `path`: the model file.
    - `gone`, `back`: the names of tasks that the model has no more, and those it has again.
    """

    path: Path
    gone: tuple[str, ...]
    back: tuple[str, ...]


def keep(model: Path, successor: str) -> None:
    """Keep a model and what lies beside it, before another one takes its place; under the lock.

    - `successor`: the hash that stands for the other one.
    """
    with replaced_folder(model.with_name(FOLDER)) as fresh:
        for name in (FILE_NAME, *BESIDE):
            source = model.with_name(name)
            if source.is_file() and not source.is_symlink():
                (fresh / name).write_bytes(source.read_bytes())
        (fresh / SUCCESSOR).write_text(successor, encoding="ascii")


def forget(model: Path, identity: str = "") -> None:
    """Remove the backup unless the model of that hash replaced it; under the lock."""
    folder = model.with_name(FOLDER)
    if _successor(folder) not in (None, identity):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


def undo(where: str | os.PathLike[str]) -> Undone:
    """Put back what a model was before the last task was learned in its folder.

    Refused where there is no backup, or the model is another than the one that replaced it.
    """
    path = model_path(where)
    folder = path.with_name(FOLDER)
    if not path.is_file():
        raise ArtifactError(f"no model at {path}.")
    with lock(path.with_name(".lock"), wait=True):
        now, names = _look(path)
        if _successor(folder) != now:
            raise ArtifactError(
                f"{path.parent} has no backup of what it was before. `tsn learn` keeps one when it "
                "adds a task in place; any other change of the model removes it."
            )
        _, before = _look(folder / FILE_NAME)
        atomic_write(path, (folder / FILE_NAME).read_bytes(), is_only_writer=True)
        for name in BESIDE:
            if (folder / name).is_file():
                atomic_write(path.with_name(name), (folder / name).read_bytes())
        forget(path)
    gone = tuple(n for n in names if n not in before)
    return Undone(path, gone, tuple(n for n in before if n not in names))


def _look(path: Path) -> tuple[str, list[str]]:
    """The hash of a model file, and the names of its tasks."""
    with ModelFile(path) as file:
        tasks = manifest_of(file.config, file.file_bytes).tasks
        return file.identity, [t.name for t in tasks if t.name]


def _successor(folder: Path) -> str | None:
    """What a backup was replaced by; None where the folder is no backup of ours."""
    try:
        if folder.is_symlink():
            return None
        return (folder / SUCCESSOR).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
