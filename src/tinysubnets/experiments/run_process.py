"""A run of several in a process of its own: how it is started, stopped and looked at.

Nothing heavy is imported here, so that a machine of a cluster has it at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tinysubnets.files import appending

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Working(Protocol):
    """A run at work, here or on another machine."""

    def poll(self) -> int | None:
        """Its exit status; None while it goes on. A run that is given up is a RunError."""
        ...

    def stop(self) -> None:
        """Ask it to save and end; asked again, to end at once."""
        ...

    @property
    def progress(self) -> str:
        """How far it is, in one line."""
        ...


class LocalRun:
    """A run in a process of this machine; what it prints goes to `output.txt` of its folder."""

    def __init__(self, folder: Path, arguments: Sequence[str], threads: int | None) -> None:
        self.folder = folder
        with appending(folder / "output.txt") as output:
            # A session of its own: Ctrl-C reaches the parent alone, which passes it on once.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinysubnets", *command_of(folder, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(threads),
            )

    def poll(self) -> int | None:
        """Its exit status; None while it goes on."""
        return self.process.poll()

    def stop(self) -> None:
        """Ask it to save and end; asked again, it ends at once."""
        self.process.send_signal(signal.SIGINT)

    @property
    def progress(self) -> str:
        """Its last epoch."""
        return last_epoch(self.folder)


def command_of(folder: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of `tsn` that begin the run of a folder, or go on with it.

    - `arguments`: of `tsn run`, without the folder.
    """
    if not (folder / "config.toml").exists():
        return (*arguments, "--out", str(folder))
    more = [o for o in ("--tensorboard",) if o in arguments]
    # Its settings are those asked for (`check_settings`), the network among them.
    return ("resume", str(folder), "--trust", "--no-report", *more)


def environment(threads: int | None) -> dict[str, str]:
    """The environment of a run with at most so many threads, unless the user has set theirs."""
    if threads is None:
        return dict(os.environ)
    return {name: str(threads) for name in _THREAD_VARIABLES} | dict(os.environ)


def last_epoch(folder: Path) -> str:
    """The last tracked epoch of a run, in one line."""
    try:
        with open(folder / "metrics.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().split(b"\n")
        report: dict[str, Any] = json.loads(lines[-2])
    except (OSError, ValueError, IndexError, RecursionError):
        return "preparing"
    return (
        f"task {report['index'] + 1} {report['task']}, epoch {report['epoch']}/{report['epochs']}, "
        f"valid {100 * report['valid_accuracy']:.1f} %"
    )
