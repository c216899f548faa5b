"""The folder of one run: its files, written so that no crash leaves a half-written one.

    config.toml     the effective settings, written first
    log.txt         what happened, in plain lines
    metrics.jsonl   one line of JSON per epoch
    checkpoint/     where to go on from; removed when the run is finished
    model/          the learned model
    result.json     the result, written last

One process at a time works in a folder; a second one is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinysubnets import config
from tinysubnets.errors import RunError

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "the disk quota is used up. Free some space",
    errno.EROFS: "the file system is read-only. Choose another folder with --out",
    errno.EACCES: "permission was denied. Choose another folder with --out, or change its rights",
    errno.ENOTDIR: "a part of the path is not a folder. Choose another folder with --out",
    errno.EEXIST: "it is not a folder. Choose another folder with --out",
    errno.EPERM: "the operation is not permitted. Choose another folder with --out",
}


@contextlib.contextmanager
def friendly_os_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into one message that says what to do."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        message = f"cannot write to {error.filename or path}: {reason}."
        # Only a folder with a run in it can be gone on with; a report's folder need not be one.
        if (path / "config.toml").exists() and not (path / "result.json").exists():
            message += f" Nothing that was saved is lost; go on with: tsn resume {path}"
        raise RunError(message) from error


class RunDir:
    """A run folder held by this process, until it is closed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._is_new = False

    def __enter__(self) -> RunDir:
        with friendly_os_errors(self.path):
            self._is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path / ".lock")
        if self._lock is None:
            holder = (self.path / ".lock").read_text(errors="replace").strip()
            raise RunError(
                f"{self.path} is in use by another process{holder and f' ({holder})'}. "
                "Wait for it to end, or choose another folder with --out."
            )
        with friendly_os_errors(self.path):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            # The file goes first, while nobody else can hold it.
            with contextlib.suppress(OSError):
                os.unlink(self.path / ".lock")
            os.close(self._lock)
            self._lock = None
            if self._is_new:  # a plan that was refused leaves no empty folder
                with contextlib.suppress(OSError):
                    os.rmdir(self.path)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / "result.json").exists()

    @property
    def is_started(self) -> bool:
        """Whether a run was ever begun here."""
        return (self.path / "config.toml").exists()

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all, and wait until it is on disk."""
        replace_file(self.path / name, text.encode("utf-8"))

    def log(self, line: str) -> None:
        """Add a line with the time to the log."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        with (
            friendly_os_errors(self.path),
            open(self.path / "log.txt", "a", encoding="utf-8") as file,
        ):
            file.write(f"{stamp} {line}\n")

    def track(self, values: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        with friendly_os_errors(self.path), open(self.path / "metrics.jsonl", "ab") as file:
            file.write((json.dumps(plain(values)) + "\n").encode())

    def tracked_bytes(self) -> int:
        """The length of the metrics so far, all of them on disk."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return 0
        with friendly_os_errors(self.path), open(path, "rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def forget_metrics(self, keep_bytes: int) -> None:
        """Drop the metrics of epochs after a checkpoint: they are about to be repeated."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            with friendly_os_errors(self.path):
                os.truncate(path, min(keep_bytes, path.stat().st_size))

    def config(self) -> dict[str, Any]:
        """The effective settings of the run, checked to be of this version's format."""
        path = self.path / "config.toml"
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.") from None
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read: {error}.") from error
        found = values.get("run", {}).get("format")
        if found != FORMAT:
            raise RunError(
                f"{self.path} was written in format {found}, by tinysubnets "
                f"{values.get('run', {}).get('library', 'of an unknown version')}; this version "
                f"works with format {FORMAT}. Go on with that version; the folder is unchanged."
            )
        return config.modernized(values)

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write the effective settings."""
        self.write("config.toml", config.to_toml(values))


def _locked(path: Path) -> int | None:
    """A descriptor of the locked file, None where another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # The last holder may have removed the file in between: then this is a lock on nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        os.close(descriptor)


def plain(value: Any) -> Any:
    """The value as JSON has it: lists, strings as keys, and null for what is no finite number."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def replace_file(path: Path, data: bytes, run: Path | None = None) -> None:
    """Write beside, sync, rename, sync the folder: at any instant the old file or the new one.

    `run` is the run folder that errors name, by default the folder of the file.
    """
    beside = path.with_name(f".{path.name}.new")
    with friendly_os_errors(run or path.parent):
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder outlast a power cut, where folders can be synced at all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
