"""The one backup in a model folder: what the model was before the last task was learned in place.

It is a model folder itself, `backup/`, with a file that names the model that replaced it. It is of
use only while that model is in place; saving another one removes the backup.

It is written in full under another name before the model is replaced, and takes the place of the
backup before it afterwards. So a process that is killed leaves the old model with its own backup,
or the new one with a backup that names it, which `adopt` puts in its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinysubnets.errors import ArtifactError
from tinysubnets.files import (
    UnsyncedError,
    folder_beside,
    leftovers,
    lock,
    put_folder,
    read,
    remove_folder,
    remove_leftovers,
)
from tinysubnets.format.container import (
    BESIDE,
    FILE_NAME,
    ModelFile,
    beside_is_old,
    model_path,
    nothing_changed,
    put_in_place,
    write_beside,
)
from tinysubnets.format.header import manifest_of

FOLDER, SUCCESSOR = "backup", "replaced_by"


@dataclass(frozen=True)
class Undone:
    """What going back to a backup did.

    - `path`: the model file.
    - `gone`, `back`: the names of tasks that the model has no more, and those it has again.
    """

    path: Path
    gone: tuple[str, ...]
    back: tuple[str, ...]


@contextlib.contextmanager
def keeping(model: Path, successor: str) -> Iterator[None]:
    """Back a model's folder up while another model is put in its place inside; under the lock.

    Where that fails, the earlier backup stays.

    - `successor`: the hash that stands for the other one.
    """
    check_place(model)
    folder = model.with_name(FOLDER)
    remove_leftovers(folder)
    with folder_beside(folder) as fresh:
        for name in (FILE_NAME, *BESIDE):
            source = model.with_name(name)
            if source.is_file() and not source.is_symlink():
                (fresh / name).write_bytes(source.read_bytes())
        (fresh / SUCCESSOR).write_text(successor, encoding="ascii")
    try:
        yield
    finally:  # Ctrl-C may come when the new model is in place already
        if _look(model)[0] == successor:
            _put(fresh, model)
        else:
            remove_folder(fresh)


def _put(fresh: Path, model: Path) -> None:
    """Put a backup in its place, behind the model that it names; an error says what is where."""
    folder = model.with_name(FOLDER)
    try:
        put_folder(fresh, folder)
    except UnsyncedError as error:
        raise ArtifactError(
            f"the new model is saved in {model} and the old one in {folder}, for `tsn undo`, but "
            f"it could not be made sure that a power cut leaves them there: {error.strerror}. "
            f"{beside_is_old('save')}"
        ) from error
    except OSError as error:
        raise ArtifactError(
            f"the new model is saved in {model} and the old one in {fresh}, where `tsn undo` finds "
            f"it, but it could not be moved to {folder}: {error.strerror}. {beside_is_old('save')}"
        ) from error


def adopt(model: Path, identity: str) -> None:
    """Finish what a killed writer began: put its backup in place; under the lock.

    - `identity`: the hash of the model that is there now. A backup that was written for a model
      that never came is removed.
    """
    for left in leftovers(model.with_name(FOLDER)):
        if _successor(left) == identity and os.path.lexists(left / FILE_NAME):
            check_place(model)
            put_folder(left, model.with_name(FOLDER))
    remove_leftovers(model.with_name(FOLDER))  # of models that are not there: of no use any more


def check_place(model: Path) -> None:
    """Refuse a folder with the name of the backup that is not one: it would be lost."""
    folder = model.with_name(FOLDER)
    is_folder = folder.is_dir() and not folder.is_symlink()
    if is_folder and _successor(folder) is None and any(folder.iterdir()):
        raise ArtifactError(
            f"{folder} is not a backup that this package has made, so it is not replaced by one. "
            "Move it away."
        )


def forget(
    model: Path, identity: str = "", *, done: str = "the new model is saved", rest: str = ""
) -> None:
    """Remove the backup unless the model of that hash replaced it; under the lock.

    What killed processes have left of backups is always removed.

    - `done`, `rest`: what an error says was done, and was not done yet.
    """
    folder = model.with_name(FOLDER)
    remove_leftovers(folder)
    if _successor(folder) not in (None, identity):
        with contextlib.suppress(OSError):
            for name in (FILE_NAME, *BESIDE):  # what says whose it is goes last
                (folder / name).unlink(missing_ok=True)
        remove_folder(folder)
        if folder.exists():
            raise ArtifactError(
                f"{done} in {model}, but {folder}, which is of no use any more, could not be "
                f"removed. Remove it yourself. {rest}".rstrip()
            )


def forget_stale(model: Path) -> None:
    """Remove a backup that the model which is there now has not replaced; under the lock."""
    forget(model, _look(model)[0])


def undo(where: str | os.PathLike[str]) -> Undone:
    """Put back what a model was before the last task was learned in its folder.

    Refused where there is no backup, or the model is another than the one that replaced it. An
    error says what was put back; then it can be done again, to the end.
    """
    path = model_path(where)
    folder = path.with_name(FOLDER)
    if not path.is_file():
        raise ArtifactError(f"no model at {path}.")
    with nothing_changed(path), lock(path.with_name(".lock"), wait=True):
        now, names = _look(path)
        adopt(path, now)
        # One without its model file was being removed when the process was killed.
        successor = _successor(folder) if os.path.lexists(folder / FILE_NAME) else None
        earlier, before = ("", []) if successor is None else _look(folder / FILE_NAME)
        # The earlier one is there where the last attempt came no further.
        if now not in (successor, earlier):
            raise ArtifactError(
                f"{path.parent} has no backup of what it was before. `tsn learn` keeps one when it "
                "adds a task in place; any other change of the model removes it. A task is taken "
                "out by `tsn remove` too."
            )
        files = {n: read(folder / n) for n in (FILE_NAME, *BESIDE) if (folder / n).is_file()}
        done = "the model from before the last task is back"
        put_in_place(path, files.pop(FILE_NAME), done=done, again="undo")
        write_beside(path, files, done=done, again="undo")
        forget(path, done=done)
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
        return read(folder / SUCCESSOR).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return None
