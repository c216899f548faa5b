"""Files: replaced at one instant, locked by one process at a time, errors that say what to do."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinysubnets
from tinysubnets.errors import RunError
from tinysubnets.files import (
    UnsyncedError,
    atomic_write,
    friendly_os_errors,
    lock,
    remove_leftovers,
    replaced_folder,
)

HOLDER = """
import sys
from pathlib import Path
from tinysubnets.files import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("data", [b"new", [b"n", b"", b"ew"], iter([b"ne", b"w"])])
def test_a_file_is_replaced_by_bytes_or_parts(tmp_path: Path, data: Any) -> None:
    (tmp_path / "file").write_bytes(b"something longer")
    atomic_write(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == {"file"}


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    atomic_write(tmp_path / "file", b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        atomic_write(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_an_error_between_two_parts_leaves_the_old_file_alone(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half of it"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "file", parts())
    assert names(tmp_path) == set()


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"of somebody else")
    (tmp_path / "file").symlink_to("other")
    atomic_write(tmp_path / "file", b"mine")
    assert (tmp_path / "other").read_bytes() == b"of somebody else"
    assert not (tmp_path / "file").is_symlink()


def test_nobody_can_put_a_link_where_the_new_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one who guesses the name finds it refused, not written through."""
    (tmp_path / "other").write_bytes(b"of somebody else")
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / f".file.{'0' * 16}.tmp").symlink_to("other")
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "file", b"mine")
    assert (tmp_path / "other").read_bytes() == b"of somebody else"


def test_a_new_file_has_the_rights_that_the_user_gives_to_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_only_what_killed_writers_of_the_same_file_left_is_removed(tmp_path: Path) -> None:
    left, folder = (tmp_path / f".a[1].{digit * 16}.tmp" for digit in "9c")
    left.touch()
    folder.mkdir()
    others = {".a1.0123456789abcdef.tmp", ".a[1].tmp", "a[1].tmp", ".b.0123456789abcdef.tmp"}
    for name in others:
        (tmp_path / name).touch()
    atomic_write(tmp_path / "a[1]", b"")
    assert left.exists()
    remove_leftovers(tmp_path / "a[1]")
    assert names(tmp_path) == {"a[1]", *others}
    left.touch()
    atomic_write(tmp_path / "a[1]", b"", is_only_writer=True)
    assert names(tmp_path) == {"a[1]", *others}


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with replaced_folder(tmp_path / "set") as folder:
            (folder / text).write_text(text)
            assert names(tmp_path) - {"set"} == {folder.name}
    assert names(tmp_path / "set") == {"new"} and names(tmp_path) == {"set"}


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_folder_stays_where_its_replacement_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    with replaced_folder(tmp_path / "set") as folder:
        (folder / "old").touch()
    honest, left = os.replace, renames

    def fail_sometime(source: Any, target: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        honest(source, target)

    monkeypatch.setattr(os, "replace", fail_sometime)
    with pytest.raises(KeyboardInterrupt), replaced_folder(tmp_path / "set") as folder:
        (folder / "new").touch()
        if renames == 0:
            raise KeyboardInterrupt
    assert names(tmp_path / "set") == {"old"} and names(tmp_path) == {"set"}


def test_a_folder_that_could_not_be_synced_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced_folder(tmp_path / "set") as folder:
        (folder / "old").touch()
    honest = os.fsync

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(errno.EIO, "Input/output error")
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnsyncedError, match="Input/output"), replaced_folder(tmp_path / "set") as f:
        (f / "new").touch()
    assert names(tmp_path / "set") == {"new"} and names(tmp_path) == {"set"}


def test_a_held_lock_names_its_holder_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with lock(path):
        assert path.read_text() == f"process {os.getpid()}\n"
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()}"), lock(path):
            pass
        assert path.exists()
    assert names(tmp_path) == set()
    with pytest.raises(ZeroDivisionError), lock(path):
        _ = 1 / 0
    assert names(tmp_path) == set()


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=f"process {process.pid}"), lock(path):
            pass
        process.kill()
    assert path.exists()
    with lock(path):
        assert path.read_text() == f"process {os.getpid()}\n"
    assert names(tmp_path) == set()


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with lock(tmp_path / ".lock", wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock(tmp_path / ".lock"):
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and names(tmp_path) == set()


def test_a_lock_on_a_removed_file_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, tries = os.open, []

    def late(path: Any, *flags: int) -> int:
        descriptor = honest(path, *flags)
        tries.append(path)
        if len(tries) == 1:
            os.unlink(path)  # as the last holder does when it ends just now
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with lock(tmp_path / ".lock"):
        assert len(tries) == 2
        assert (tmp_path / ".lock").exists()


def test_errors_of_the_disk_say_what_to_do(tmp_path: Path) -> None:
    def fail(number: int) -> None:
        with friendly_os_errors(tmp_path):
            raise OSError(number, "", str(tmp_path / "a"))

    with pytest.raises(RunError, match=rf"{tmp_path}/a: the disk is full\. Free some space\.$"):
        fail(errno.ENOSPC)
    (tmp_path / "config.toml").touch()
    with pytest.raises(RunError, match=rf"read-only.*go on with: tsn resume {tmp_path}$"):
        fail(errno.EROFS)
    (tmp_path / "result.json").touch()
    with pytest.raises(RunError, match=r"permission was denied.*rights\.$"):
        fail(errno.EACCES)
    with pytest.raises(OSError) as caught:
        fail(errno.EIO)
    assert caught.value.errno == errno.EIO


def test_nobody_else_renames_syncs_or_locks() -> None:
    root = Path(tinysubnets.__file__).parent
    by_hand = re.compile(r"\bfcntl\b|\bos\.(replace|rename|fsync|link)\b|\bmkstemp\b|\bmkdtemp\b")
    found = [p for p in root.rglob("*.py") if by_hand.search(p.read_text(encoding="utf-8"))]
    assert [p.name for p in found] == ["files.py"]
