"""Files on disk: the one way to replace a file or folder, to lock one, and to explain a failure.

Whoever looks, and whatever is left after a crash or a power cut, is the old file or the new one.
No file is ever written through a link that lies in its place, and a pipe there blocks nobody.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from tinysubnets.errors import RunError

try:
    import fcntl
except ImportError:  # Windows: processes are not kept apart there, the last writer wins
    fcntl = None  # type: ignore[assignment]

_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "the disk quota is used up. Free some space",
    errno.EROFS: "the file system is read-only. Choose another folder with --out",
    errno.EACCES: "permission was denied. Choose another folder with --out, or change its rights",
    errno.ENOTDIR: "a part of the path is not a folder. Choose another folder with --out",
    errno.EEXIST: "it is not a folder. Choose another folder with --out",
    errno.ELOOP: "a link lies in its place. Remove it, or choose another folder with --out",
    errno.EISDIR: "a folder lies in its place. Remove it, or choose another folder with --out",
    errno.ENXIO: "a pipe lies in its place. Remove it, or choose another folder with --out",
    errno.EPERM: "the operation is not permitted. Choose another folder with --out",
}
# Never write through a link that somebody put there, never wait for the other end of a pipe.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | _NO_WAIT
_BINARY = getattr(os, "O_BINARY", 0)


class UnsyncedError(OSError):
    """The new file or folder is in its place, but a power cut may undo it: syncing failed."""


def atomic_write(
    path: Path, data: bytes | Iterable[bytes], *, is_only_writer: bool = False
) -> None:
    """Put a file in the place of another at one instant, and wait until it is on disk.

    It is written beside its place under a random name, synced and renamed, and the folder synced.
    On any error, Ctrl-C too, the file that was there stays and nothing is left beside it; but for
    an UnsyncedError, after which the new one is there.

    - `data`: the bytes of the file, or parts that are written one after the other.
    - `is_only_writer`: the caller keeps other writers out with a `lock`, so that what a killed
      process has left of this file is removed as well.
    """
    if is_only_writer:
        remove_leftovers(path)
    beside = _beside(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY
        with open(os.open(beside, flags, 0o666), "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):  # of a read-only disk: the first error says more
            beside.unlink(missing_ok=True)
        raise
    _sync_place(path)


def read(path: Path) -> bytes:
    """The bytes of a file, through a link too; a pipe in its place is an OSError, no waiting."""
    with reading(path) as file:
        return file.read()


def reading(path: Path) -> BufferedReader:
    """A file open for reading, through a link too; what is no plain file is an OSError."""
    return open(_regular(path, os.O_RDONLY | _BINARY, follow=True), "rb")


@contextlib.contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A file to add to at its end; a link or a pipe in its place is an OSError."""
    descriptor = _regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _BINARY)
    with open(descriptor, "ab") as file:
        yield file


def check_plain(path: Path) -> None:
    """Refuse, by an OSError, what is no plain file in a place that a library will write to."""
    if os.path.lexists(path):
        os.close(_regular(path, os.O_RDONLY | _BINARY))


def truncate(path: Path, size: int) -> None:
    """Cut a file to at most `size` bytes."""
    with open(_regular(path, os.O_WRONLY | _BINARY), "ab") as file:
        os.ftruncate(file.fileno(), min(size, os.fstat(file.fileno()).st_size))


@contextlib.contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill with files, which takes the place of `path` when the block ends.

    On any error, Ctrl-C too, the old one stays and nothing is left beside it; but for an
    UnsyncedError, after which the new one is there.
    """
    with folder_beside(path) as beside:
        yield beside
    try:
        put_folder(beside, path)
    finally:
        _remove(beside)


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A new folder to fill with files, beside the place that `put_folder` is to put it in.

    When the block ends all that is in it is on disk. On any error, Ctrl-C too, it is removed.
    """
    beside = _beside(path)
    try:
        beside.mkdir()
        yield beside
        for file in beside.iterdir():
            sync_file(file)
        sync_folder(beside)
    except BaseException:
        _remove(beside)
        raise


def put_folder(beside: Path, path: Path) -> None:
    """Put a folder in the place of another, which is removed, and wait until that is on disk.

    A reader finds the old folder, none for an instant, or the new one with all that is in it. On
    any error, Ctrl-C too, both stay where they were; but for an UnsyncedError, after which the new
    one is in its place. What lies there and is no folder, such as a link or a pipe, is replaced as
    well, and nothing behind it is.
    """
    old = _beside(path)
    try:
        if os.path.lexists(path):  # a folder that holds files cannot be renamed over
            os.replace(path, old)
        os.replace(beside, path)
        _sync_place(path)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.replace(old, path)
        raise
    finally:
        if os.path.lexists(path):
            _remove(old)


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it; a link, a pipe or anything else in its place stays.

    What cannot be removed is left as well.
    """
    if path.is_dir() and not path.is_symlink():  # rmtree would wait for the other end of a pipe
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def without_empty(folder: Path) -> Iterator[None]:
    """Take back, at the end, a folder and those above it that were made inside and hold nothing."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # it was not made, or something is in it
                path.rmdir()


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes have left of a file or folder; only under its `lock`."""
    if fcntl is None:  # without locks they may belong to a process that is alive
        return
    for left in leftovers(path):
        _remove(left)


def leftovers(path: Path) -> list[Path]:
    """What killed processes have left of a file or folder, as long as nobody writes it now."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.tmp"))


def sync_file(path: Path) -> None:
    """Wait until the contents of a file are on disk."""
    with open(_regular(path, os.O_RDONLY | _BINARY), "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the renames in a folder are on disk, where folders can be synced at all."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock, a file at `path`, against other processes; it goes with the process.

    The file names its holder and is removed at the end. A lock that another process holds is a
    BlockingIOError that names the holder, or with `wait` waited for.
    """
    descriptor = _locked(path, wait)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}\n".encode())
        yield
    finally:
        # The file goes first, while nobody else can hold it.
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


@contextlib.contextmanager
def friendly_os_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a RunError that says what to do.

    - `folder`: what is written to. Where it holds a run that is not finished, the error says how to
      go on with it.
    """
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        message = f"cannot write to {error.filename or folder}: {reason}."
        if (folder / "config.toml").exists() and not (folder / "result.json").exists():
            message += f" Nothing that was saved is lost; go on with: tsn resume {folder}"
        raise RunError(message) from error


def _beside(path: Path) -> Path:
    """A name in the same folder that nobody else has or can guess."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def _sync_place(path: Path) -> None:
    """Wait until what was renamed to a path is there on disk; a failure is an UnsyncedError."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise UnsyncedError(error.errno, error.strerror, str(path)) from error


def _remove(path: Path) -> None:
    """Remove whatever is at a path, a folder with all in it, as far as that can be done."""
    remove_folder(path)
    with contextlib.suppress(OSError):  # it was a folder, or there is nothing
        path.unlink()


def _locked(path: Path, wait: bool) -> int:
    """A descriptor of the file at `path`, locked."""
    while True:
        descriptor = _regular(path, os.O_RDWR | os.O_CREAT)
        if fcntl is None:
            return descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file in between: then this is a lock on nothing.
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise BlockingIOError(errno.EWOULDBLOCK, holder or "a process", str(path)) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _regular(path: Path, flags: int, *, follow: bool = False) -> int:
    """A descriptor of a file; what is no plain file is an OSError that says so.

    - `follow`: whether it may be reached through a link.
    """
    descriptor = os.open(path, flags | (_NO_WAIT if follow else _NO_FOLLOW), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENXIO, "not a plain file", str(path))
    return descriptor


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
