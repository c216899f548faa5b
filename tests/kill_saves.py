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
from tinysubnets.format import folder
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
    step = 0
    finished = False
    while not finished:
        finished = killed_at(step, new, where)
        counts[look(where, counts)] += 1
        reset(where, before)
        step += 1
    assert all(counts.values()), "kills both before and after the rename"
    for number in range(RANDOM_KILLS):
        killed_sometime(number, old, new, where)
        look(where, counts)
        again = SubnetStore.load(where)
        again.save(where)  # neither a lock nor a left-over file is in the way
        reset(where, before)
    assert not list(where.glob(".*")), "nothing is left beside the model"
    print(f"{step} lines, {RANDOM_KILLS} instants")


def killed_at(step: int, store: SubnetStore, where: Path) -> bool:
    """Save in a child that kills itself before executing that many lines; was it too late?"""
    child = os.fork()
    if child == 0:
        sys.settrace(killer(step))
        store.save(where)
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
        if frame.f_code.co_filename not in (folder.__file__, files.__file__):
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


def reset(where: Path, data: bytes) -> None:
    (where / "model.safetensors").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
