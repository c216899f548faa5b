"""A thousand tasks in a tiny network: what one more task costs, and what the whole weighs."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from typing import Any

import numpy as np

from tinysubnets import networks
from tinysubnets.errors import CapacityWarning
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

WINDOW = 20  # tasks that a time is the median of


def tiny_task(number: int) -> Task:
    """Sixty points on two sides of a plane, at one of three places."""
    generator = np.random.default_rng(number)
    inputs = (generator.normal(size=(60, 8)) + number % 3).astype(np.float32)
    labels = (inputs - inputs.mean(0)) @ generator.normal(size=8) > 0
    return Task.from_arrays(f"task {number}", inputs, labels.astype(np.int64), valid=0.3)


def thousandth_task(num_tasks: int = 1000) -> dict[str, Any]:
    """What the last task costs beside its training over what the tenth does."""
    net = networks.build("mlp", classes=2, in_features=8, hidden=(16, 16))
    learner = TinySubNets(
        Architecture(net),
        density=0.2,
        training={"epochs": 1, "batch_size": 64},
        pruning={"iterations": 5},
    )
    beside: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)  # nothing is free after some tasks
        for number in range(num_tasks):
            task = tiny_task(number)
            begin = time.process_time()
            trainer = learner.begin(task)
            begun = time.process_time()
            while not trainer.finished:
                trainer.epoch()
            trained = time.process_time()
            trainer.finish()
            beside.append(time.process_time() - trained + begun - begin)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()  # beside other work the clock says little
        size = learner.save(folder).stat().st_size
        saved = time.process_time()
        SubnetStore.load(folder, net)
        loaded = time.process_time()
    early, late = (statistics.median(t) for t in (beside[10 : 10 + WINDOW], beside[-WINDOW:]))
    return {
        "what": f"beside training, task {num_tasks:,} over task 10, tiny MLP",
        "ratio": late / early,
        "target": "<= 2; file <= 600 kB, save and load <= 1 s",
        "tenth_ms": 1e3 * early,
        "last_ms": 1e3 * late,
        "file_kB": size / 1e3,
        "save_cpu_s": saved - begin,
        "load_cpu_s": loaded - saved,
        "free_share": learner.store.free_share(),
    }
