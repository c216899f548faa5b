"""Host memory of tiny-imagenet whole: 100,000 random images of 64 x 64, tasks of five classes.

    python -m benchmarks.memory [--tasks 3] [--epochs 1]

The images lie in a file, as in the cache of decoded sets; the peak includes the pages of that file
that the run has touched.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from tinysubnets import networks, scenarios
from tinysubnets.architecture import Architecture
from tinysubnets.data.loaders import DecodedSet
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.scenarios import split

CLASSES, PER_CLASS, TEST_PER_CLASS, SIZE = 200, 500, 50, 64
LIMIT_GIB = 4.0


def random_set(path: Path, per_class: int) -> DecodedSet:
    """Random pixels in a memory map, written class by class."""
    count = CLASSES * per_class
    inputs = np.lib.format.open_memmap(path, "w+", np.uint8, (count, 3, SIZE, SIZE))
    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        inputs[start : start + 1000] = rng.integers(0, 256, (1000, 3, SIZE, SIZE), np.uint8)
    inputs.flush()
    labels = np.arange(count) % CLASSES
    return DecodedSet(np.load(path, mmap_mode="c"), labels, tuple(str(c) for c in range(CLASSES)))


def peak_gib() -> float:
    """The largest resident size of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    return float("nan")


def main() -> None:
    """Learn a few tasks, print the peak, fail above the limit."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sets = {
            "train": random_set(Path(folder) / "train.npy", PER_CLASS),
            "test": random_set(Path(folder) / "test.npy", TEST_PER_CLASS),
        }
        split.load_set = lambda name, part, *rest: sets[part]
        scenario = scenarios.build("tiny-imagenet", {})
        net = networks.build("tinynet", classes=5)
        learner = TinySubNets(
            Architecture(net), density=0.15, block=8, max_banks=1, memory=None, post_pruning=False,
            training={"epochs": options.epochs, "batch_size": 64},
        )  # fmt: skip
        for index in range(options.tasks):
            task = scenario.task(index)
            learner.learn(task)
            assert task.test is not None
            learner.logits(task.name, task.test.inputs(torch.arange(len(task.test))))
            print(f"{task.name}: peak {peak_gib():.2f} GiB", flush=True)
    peak = peak_gib()
    print(f"peak {peak:.2f} GiB of {LIMIT_GIB} GiB allowed")
    raise SystemExit(peak > LIMIT_GIB)


if __name__ == "__main__":
    main()
