"""Kill processes in the middle of saving, and look at what they leave behind.

Run by `test_format_atomic.py` in a process of its own, because it forks. First a child is killed
before each line that saving executes, then before each line of going back to the backup, then
children that save again and again at random instants.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import models
from tinysubnets import files
from tinysubnets.errors import ArtifactError
from tinysubnets.format import backup, folder
from tinysubnets.model.store import SubnetStore

RANDOM_KILLS = 40


def main(root: Path) -> None:
    torch.set_num_threads(1)
    where = root / "model"
    old = models.store(tasks=1)
    old.save(where)
    first = (where / "model.safetensors").read_bytes()
    models.add_task(old, 1)
    old.save(where, with_backup=True)
    before = (where / "model.safetensors").read_bytes()
    shutil.copytree(where / "backup", root / "backup")
    new = SubnetStore.load(where)
    models.add_task(new, 3)
    new.save(root / "new")
    after = (root / "new" / "model.safetensors").read_bytes()
    new.saved_as = old.saved_as
    counts = {before: 0, after: 0}
    steps = 0
    for with_backup in (False, True):
        counts = dict.fromkeys(counts, 0)
        step, finished = 0, False
        while not finished:
            finished = killed_at(step, lambda b=with_backup: new.save(where, with_backup=b))
            counts[data := look(where, counts)] += 1
            # The old model has its own backup, the new one that of the old, if one was asked for.
            back = first if data == before else before if with_backup else None
            assert way_back(where) == back, f"killed before line {step}"
            reset(where, before, root / "backup")
            step += 1
        assert all(counts.values()), "kills both before and after the rename"
        steps += step
    step, finished = 0, False
    while not finished:
        finished = killed_at(step, lambda: backup.undo(where))
        data = (where / "model.safetensors").read_bytes()
        # It can be gone to its end, or was at its end.
        assert way_back(where) == first or data == first, f"killed before line {step}"
        reset(where, before, root / "backup")
        step += 1
    steps += step
    for number in range(RANDOM_KILLS):
        killed_sometime(number, old, new, where)
        look(where, counts)
        again = SubnetStore.load(where)
        again.save(where)  # neither a lock nor a left-over file is in the way
        reset(where, before, root / "backup")
    assert not list(where.glob(".*")), "nothing is left beside the model"
    print(f"{steps} lines, {RANDOM_KILLS} instants")


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Work in a child that kills itself before executing that many lines; was it too late?"""
    child = os.fork()
    if child == 0:
        sys.settrace(killer(step))
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFEXITED(status)


def killer(step: int) -> Any:
    """A trace function that counts the lines of the saving code, and kills."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (folder.__file__, files.__file__, backup.__file__):
            return None
        if event == "line":
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    return trace


def killed_sometime(number: int, old: SubnetStore, new: SubnetStore, where: Path) -> None:
    """Save two models in turn in a child until it is killed."""
    child = os.fork()
    if child == 0:
        stores = [new, old]
        while True:
            stores[0].saved_as = stores[1].saved_as
            stores[0].save(where)
            stores[1].saved_as = stores[0].saved_as
            stores.reverse()
    time.sleep(0.02 + random.Random(number).random() * 0.08)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def look(where: Path, allowed: dict[bytes, int]) -> bytes:
    """The model in the folder, which is the old one or the new one, whole."""
    data = (where / "model.safetensors").read_bytes()
    assert data in allowed
    store = SubnetStore.load(where)
    assert store.tasks in (("task 0", "task 1"), ("task 0", "task 1", "task 3"))
    return data


def way_back(where: Path) -> bytes | None:
    """The model that undoing leads to; None where an error says that there is no backup."""
    try:
        backup.undo(where)
    except ArtifactError as error:
        assert "has no backup" in str(error)
        return None
    return (where / "model.safetensors").read_bytes()


def reset(where: Path, data: bytes, kept: Path) -> None:
    """Put a model and its backup into the folder; what killed processes left stays."""
    (where / "model.safetensors").write_bytes(data)
    shutil.rmtree(where / "backup", ignore_errors=True)
    shutil.copytree(kept, where / "backup")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
