"""The folder of one run: its files, written so that no crash leaves a half-written one.

    config.toml     the effective settings, written first
    log.txt         what happened, in plain lines
    metrics.jsonl   one line of JSON per epoch
    checkpoint/     where to go on from; removed when the run is finished
    model/          the learned model
    result.json     the result, written last

One process at a time works in a folder; a second one is refused. Of processes that train together
the first one holds it, and the others write nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinysubnets import config
from tinysubnets.errors import RunError
from tinysubnets.files import (
    appending,
    atomic_write,
    friendly_os_errors,
    lock,
    read,
    sync_file,
    truncate,
    without_empty,
)

FORMAT = 1


class RunDir:
    """A run folder held by this process, until it is closed."""

    def __init__(self, path: str | Path) -> None:
        from tinysubnets.training import distributed  # torch, which `tsn list` does without

        self.path = Path(path)
        self.is_writer = distributed.is_first()
        self._made: set[str] = set()  # names of files that were not there before
        self._held = contextlib.ExitStack()  # what is given back at the end, the last first

    def __enter__(self) -> RunDir:
        from tinysubnets.training import distributed

        distributed.from_first(self._hold)
        return self

    def _hold(self) -> None:
        with friendly_os_errors(self.path), contextlib.ExitStack() as held:
            held.enter_context(without_empty(self.path))  # where a plan was refused
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(lock(self.path / ".lock"))
            except BlockingIOError as error:
                raise RunError(
                    f"{self.path} is in use by another process ({error.strerror}). "
                    "Wait for it to end, or choose another folder with --out."
                ) from None
            self._held = held.pop_all()

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def take_back(self) -> None:
        """Remove the files that this process has made here, of a run that was refused.

        The folder goes with them when it is closed, if it was made for the run and holds nothing
        else.
        """
        for name in self._made:
            with contextlib.suppress(OSError):
                os.unlink(self.path / name)
        self._made.clear()

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
        if not self.is_writer:
            return
        self._note_made(name)
        with friendly_os_errors(self.path):
            atomic_write(self.path / name, text.encode("utf-8"), is_only_writer=True)

    def log(self, line: str) -> None:
        """Add a line with the time to the log."""
        if not self.is_writer:
            return
        self._note_made("log.txt")
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        with friendly_os_errors(self.path), appending(self.path / "log.txt") as file:
            file.write(f"{stamp} {line}\n".encode(errors="replace"))

    def track(self, values: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        if not self.is_writer:
            return
        self._note_made("metrics.jsonl")
        with friendly_os_errors(self.path), appending(self.path / "metrics.jsonl") as file:
            file.write((json.dumps(plain(values)) + "\n").encode())

    def _note_made(self, name: str) -> None:
        if not os.path.lexists(self.path / name):
            self._made.add(name)

    def tracked_bytes(self) -> int:
        """The length of the metrics so far, all of them on disk."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return 0
        with friendly_os_errors(self.path):
            sync_file(path)
            return path.stat().st_size

    def forget_metrics(self, keep_bytes: int) -> None:
        """Drop the metrics of epochs after a checkpoint: they are about to be repeated."""
        path = self.path / "metrics.jsonl"
        if self.is_writer and path.exists():
            with friendly_os_errors(self.path):
                truncate(path, keep_bytes)

    def config(self) -> dict[str, Any]:
        """The effective settings of the run, checked to be of this version's format."""
        path = self.path / "config.toml"
        try:
            values = tomllib.loads(read(path).decode("utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.") from None
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {error}.") from error
        run = values.get("run", {})
        found = run.get("format") if isinstance(run, dict) else None
        if found != FORMAT:
            raise RunError(
                f"{self.path} was written in format {found}, by tinysubnets "
                f"{run.get('library', '?') if isinstance(run, dict) else '?'}; this version "
                f"works with format {FORMAT}. Go on with that version; the folder is unchanged."
            )
        return config.modernized(values)

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write the effective settings."""
        self.write("config.toml", config.to_toml(values))


def plain(value: Any) -> Any:
    """The value as JSON has it: lists, strings as keys, and null for what is no finite number."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
