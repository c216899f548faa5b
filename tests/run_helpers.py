"""Small runs for tests: a recipe that takes a second, and results without their times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMALL = (
    "data.num_tasks=3",
    "data.train_limit=60",
    "data.test_limit=40",
    "training.epochs=3",
    "network.hidden=[20]",
    "pruning.iterations=4",
)


def small_options(*more: str) -> list[str]:
    """Options of `tsn run` for a run of a second."""
    return [part for text in (*SMALL, *more) for part in ("--set", text)]


def tsn(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with one thread."""
    return subprocess.run(
        [sys.executable, "-m", "tinysubnets", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=900,
        check=False,
        **kwargs,
    )


def until(is_so: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for a state that comes before the process ends."""
    end = time.monotonic() + 600
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def halt(is_so: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Stop a process in a state that it may leave again at any moment; SIGCONT lets it go on."""
    while True:
        until(is_so, process)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if process.poll() is None and is_so():
            return
        process.send_signal(signal.SIGCONT)


def children_of(process: int) -> Path:
    """The file in which Linux lists the children of a process."""
    return Path(f"/proc/{process}/task/{process}/children")


def numbers(folder: Path) -> Any:
    """The result of a run without what may differ when it is repeated."""
    return timeless(json.loads((folder / "result.json").read_text(encoding="utf-8")))


def timeless(value: Any) -> Any:
    """Plain data without seconds."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not k.endswith("seconds")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def epochs(folder: Path) -> list[Any]:
    """The epochs of a run as they were tracked, without seconds."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [timeless(json.loads(line)) for line in lines]
