"""Kill processes in the middle of saving, and look at what they leave behind.

Run by `test_format_atomic.py` in a process of its own, because it forks. First a child is killed
before each line that saving executes, then children that save again and again at random instants.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
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
    old = models.store(tasks=2)
    old.save(where)
    before = (where / "model.safetensors").read_bytes()
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
            finished = killed_at(step, new, where, with_backup)
            counts[look(where, counts)] += 1
            if with_backup:
                look_at_backup(where, before)
            reset(where, before)
            step += 1
        assert all(counts.values()), "kills both before and after the rename"
        steps += step
    for number in range(RANDOM_KILLS):
        killed_sometime(number, old, new, where)
        look(where, counts)
        again = SubnetStore.load(where)
        again.save(where)  # neither a lock nor a left-over file is in the way
        reset(where, before)
    assert not list(where.glob(".*")), "nothing is left beside the model"
    print(f"{steps} lines, {RANDOM_KILLS} instants")


def killed_at(step: int, store: SubnetStore, where: Path, with_backup: bool) -> bool:
    """Save in a child that kills itself before executing that many lines; was it too late?"""
    child = os.fork()
    if child == 0:
        sys.settrace(killer(step))
        store.save(where, with_backup=with_backup)
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


def look_at_backup(where: Path, before: bytes) -> None:
    """There is a way back to the old model, or an error that says that there is none."""
    try:
        backup.undo(where)
        assert (where / "model.safetensors").read_bytes() == before
    except ArtifactError as error:
        assert "has no backup" in str(error)


def reset(where: Path, data: bytes) -> None:
    (where / "model.safetensors").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
